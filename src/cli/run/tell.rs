//! What a person reads of a loop: a line for each thing that changed. Machines read the same as JSON.

use std::collections::BTreeMap;
use std::mem::discriminant;

use jiff::Timestamp;
use serde_json::{Map, Value as Json};

use crate::apply::{ChangeOutcome, Outcome, Receipt};
use crate::cli::Console;
use crate::plan::wire::{Summary, WaveStep};
use crate::reconcile::{Past, PlanNow, Status, Suspension, Uncordoned};
use crate::render::escape;
use crate::telemetry::{LogFormat, line};

/// Tells what changed from one snapshot to the next.
pub(super) struct Teller<'c> {
    console: &'c mut Console,
    format: LogFormat,
    /// What was told last, by what it is about.
    told: BTreeMap<String, String>,
    /// The plan that was told last, and what held it back.
    about: String,
    /// How many plans were told to have ended.
    ended: usize,
    /// How many nodes were told to take pods again.
    uncordoned: usize,
}

/// Something to tell.
struct News {
    /// What happened, in a word.
    event: &'static str,
    /// Whether somebody should look.
    is_bad: bool,
    text: String,
    /// What it is about, by the name of each.
    fields: Vec<(&'static str, String)>,
}

impl News {
    fn of(event: &'static str, text: impl Into<String>) -> Self {
        Self { event, is_bad: false, text: text.into(), fields: Vec::new() }
    }

    fn bad(self) -> Self {
        Self { is_bad: true, ..self }
    }

    fn with(mut self, name: &'static str, value: &impl ToString) -> Self {
        self.fields.push((name, value.to_string()));
        self
    }
}

impl<'c> Teller<'c> {
    pub(super) fn new(console: &'c mut Console, format: LogFormat) -> Self {
        Self {
            console,
            format,
            told: BTreeMap::new(),
            about: String::new(),
            ended: 0,
            uncordoned: 0,
        }
    }

    /// Tells what is new in `status`.
    pub(super) fn look(&mut self, status: &Status) {
        let now = status.now;
        self.sources(now, status);
        // That a moment moves on while the reason stays is no news.
        if let Some(plan) = &status.plan {
            let kinds: Vec<_> = plan.held.values().map(|by| discriminant(&by.why)).collect();
            let summary = &plan.plan.summary;
            let about = format!("{} {kinds:?} {summary:?}", plan.digest());
            if self.about != about {
                let news = News::of("plan", self::plan(plan)).with("plan", plan.digest());
                self.tell(now, "plan", Some(news));
                self.about = about;
            }
        }
        self.incidents(now, status);
        self.uncordons(now, status);
        self.ends(now, status);
    }

    /// Tells what is served, and what cannot be read.
    fn sources(&mut self, now: Timestamp, status: &Status) {
        let repository = &status.repository;
        let served = repository.commit.as_ref().map(|commit| {
            let errors = match repository.problems {
                0 => String::new(),
                1 => ", which has an error: nothing is changed before they are mended".to_owned(),
                n => format!(", which has {n} errors: nothing is changed before they are mended"),
            };
            News::of("commit", format!("serving {}{errors}", short(commit))).with("commit", commit)
        });
        self.tell(now, "commit", served);
        let waiting = repository.waiting.as_ref().map(|(commit, why)| {
            let says = format!("commit {} waits {why}", short(commit));
            News::of("waiting", says).with("commit", commit)
        });
        self.tell(now, "waiting", waiting);
        let git = repository.reads.error.as_ref().map_or_else(String::new, |(why, _)| {
            format!("the repository cannot be read; nothing is removed because of that: {why}")
        });
        self.tell(now, "git", Some(News::of("git", git).bad()));
        let world = status.world.as_ref().and_then(|world| world.reads.error.as_ref());
        let world = world.map_or_else(String::new, |(why, _)| {
            format!("the world cannot be read as a whole; nothing is changed: {why}")
        });
        self.tell(now, "world", Some(News::of("world", world).bad()));
    }

    /// Tells who else makes and removes nodes.
    #[cfg(feature = "cluster")]
    pub(super) fn rival(&mut self, now: Timestamp, rival: Option<&str>) {
        let says = rival.map_or_else(String::new, |rival| {
            format!(
                "{rival} and would fight for nodes: this loop only plans until that has gone; \
                 deploy/migrate says how to take over from it"
            )
        });
        self.tell(now, "rival", Some(News::of("rival", says).bad()));
    }

    /// Tells which machines go, and what latched.
    fn incidents(&mut self, now: Timestamp, status: &Status) {
        // What has gone may go again.
        let gone = |what: &String| {
            what.starts_with("i-")
                && !status.going.iter().any(|going| going.instance.as_str() == what.as_str())
        };
        self.told.retain(|what, _| !gone(what));
        for going in &status.going {
            let when = going.deadline.map(|at| format!(" at {at:.0}")).unwrap_or_default();
            let held = going.held.as_ref();
            let held = held.map(|held| format!("; no machine comes in its place: {}", held.says));
            let held = held.unwrap_or_default();
            let says = format!("{} goes ({}){when}{held}", going.instance, going.why);
            let news = News::of("going", says).with("instance", &going.instance);
            let mut news = if going.held.is_some() { news.bad() } else { news };
            if let Some(node) = &going.node {
                news = news.with("node", node);
            }
            self.tell(now, going.instance.as_str(), Some(news));
        }
        let until = |asked: &Suspension| {
            asked.until.map(|until| format!(" until {until:.0}")).unwrap_or_default()
        };
        let glass = status.break_glass.as_ref().map_or_else(String::new, |glass| {
            format!(
                "{} broke the glass: approvals and windows are passed over{}: {}",
                glass.by,
                until(glass),
                glass.reason
            )
        });
        self.tell(now, "glass", Some(News::of("glass", glass).bad()));
        let suspended = status.suspended.as_ref().map_or_else(String::new, |asked| {
            format!("{} suspended the loop{}: {}", asked.by, until(asked), asked.reason)
        });
        self.tell(now, "suspended", Some(News::of("suspended", suspended)));
        for breaker in &status.breakers {
            let says = format!("breaker {} latched: {}", breaker.name, breaker.why);
            self.tell(now, &breaker.name, Some(News::of("breaker", says).bad()));
        }
    }

    /// Tells which nodes take pods again since the last look.
    fn uncordons(&mut self, now: Timestamp, status: &Status) {
        let all = status.counters.get("nodes.uncordoned").copied().unwrap_or(0);
        let all = usize::try_from(all).unwrap_or(usize::MAX);
        let new = all.saturating_sub(self.uncordoned);
        for Uncordoned { node, instance, at: _ } in status.uncordoned.iter().take(new).rev() {
            let why = "a drain that ended early had left it cordoned, and the plan keeps it";
            let news = News::of("uncordoned", format!("{node} takes pods again: {why}"));
            self.say(now, &news.with("node", node).with("instance", instance));
        }
        self.uncordoned = all;
    }

    /// Tells how plans ended since the last look.
    fn ends(&mut self, now: Timestamp, status: &Status) {
        let all = status.counters.iter().filter(|(name, _)| name.starts_with("reconciles."));
        let ends = all.filter(|(name, _)| !name.ends_with("nothing") && !name.ends_with("held"));
        let ends = usize::try_from(ends.map(|(_, n)| *n).sum::<u64>()).unwrap_or(usize::MAX);
        let new = ends.saturating_sub(self.ended).min(status.history.len());
        for past in status.history.iter().take(new).rev() {
            let news = News::of("applied", ended(past)).with("plan", &past.digest);
            let bad = past.refused.is_some();
            self.say(now, &News { is_bad: bad, ..news.with("commit", &past.commit) });
            if let (LogFormat::Json, Some(receipt)) = (self.format, &past.receipt) {
                self.changes(now, past, receipt);
            }
        }
        self.ended = ends;
    }

    /// Tells how each change of a plan ended.
    fn changes(&mut self, now: Timestamp, past: &Past, receipt: &Receipt) {
        for change in &receipt.outcomes {
            let news = News::of("change", outcome(change)).with("plan", &past.digest);
            let mut news = news.with("change", &change.address);
            if let Some(instance) = &change.instance_id {
                news = news.with("instance", instance);
            }
            self.say(now, &News { is_bad: !change.outcome.is_settled(), ..news });
        }
    }

    /// Says something about `what`, unless it is what was said last; an empty text is never said.
    fn tell(&mut self, now: Timestamp, what: &str, news: Option<News>) {
        let Some(news) = news else { return };
        if self.told.get(what) == Some(&news.text) {
            return;
        }
        if !news.text.is_empty() {
            self.say(now, &news);
        }
        self.told.insert(what.to_owned(), news.text);
    }

    fn say(&mut self, now: Timestamp, news: &News) {
        match self.format {
            LogFormat::Text => self.console.say(&format!("{now:.0}  {}", escape(&news.text))),
            LogFormat::Json => {
                let level = if news.is_bad { "warn" } else { "info" };
                let fields = news.fields.iter();
                let fields: Map<String, Json> = fields
                    .map(|(name, value)| ((*name).to_owned(), value.as_str().into()))
                    .collect();
                let line = line(now, level, news.event, (&news.text, fields));
                self.console.say_raw(&format!("{line}\n"));
            }
        }
    }
}

fn outcome(change: &ChangeOutcome) -> String {
    let step = match change.step {
        WaveStep::Launch => "launch",
        WaveStep::Retire => "retire",
    };
    match &change.outcome {
        Outcome::Done => format!("{step}: done"),
        Outcome::AlreadyDone => format!("{step}: was done already"),
        Outcome::Dropped { why } => format!("{step}: not needed any more: {why}"),
        Outcome::Skipped { why } => format!("{step}: skipped: {why}"),
        Outcome::GivenUp { why } => format!("{step}: given up: {why}"),
        Outcome::Failed { why } => format!("{step}: failed: {why}"),
    }
}
fn short(commit: &str) -> String {
    if commit.starts_with("sha256:") {
        return "the files as they are".to_owned();
    }
    let digits: String = commit.chars().take(12).collect();
    format!("commit {digits}")
}

fn plan(now: &PlanNow) -> String {
    let Summary { add, change, destroy, .. } = now.plan.summary;
    let digest: String = now.digest().as_str().chars().take(19).collect();
    if (add, change, destroy) == (0, 0, 0) {
        let left = now.plan.capacity.pods.unschedulable;
        let left = match left {
            0 => String::new(),
            1 => "; a pod has no place".to_owned(),
            more => format!("; {more} pods have no place"),
        };
        return format!("nothing to change{left}");
    }
    let held = match now.held.values().next() {
        Some(first) => format!("; {} held back: {}", now.held.len(), first.says),
        None => String::new(),
    };
    format!("plan {digest}: {add} to add, {change} to change, {destroy} to destroy{held}")
}

fn ended(past: &Past) -> String {
    let took = past.ended_at.duration_since(past.started_at).as_secs();
    if let Some(why) = &past.refused {
        return format!("refused before the first change: {why}");
    }
    let outcomes: Vec<String> =
        past.outcomes.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let (before, after) = (past.hourly_before, past.hourly_after);
    format!("carried out in {took} s: {}; ${before}/h -> ${after}/h", outcomes.join(", "))
}
