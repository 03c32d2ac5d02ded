//! What a person reads of a loop: a line for each thing that changed.

use std::collections::BTreeMap;
use std::mem::discriminant;

use crate::cli::Console;
use crate::plan::wire::Summary;
use crate::reconcile::{Past, PlanNow, Status};
use crate::render::escape;

/// Tells what changed from one snapshot to the next.
pub(super) struct Teller<'c> {
    console: &'c mut Console,
    /// What was told last, by what it is about.
    told: BTreeMap<String, String>,
    /// The plan that was told last, and what held it back.
    about: String,
    /// How many plans were told to have ended.
    ended: usize,
}

impl<'c> Teller<'c> {
    pub(super) fn new(console: &'c mut Console) -> Self {
        Self { console, told: BTreeMap::new(), about: String::new(), ended: 0 }
    }

    /// Tells what is new in `status`.
    pub(super) fn look(&mut self, status: &Status) {
        let now = format!("{:.0}", status.now);
        self.sources(&now, status);
        // That a moment moves on while the reason stays is no news.
        if let Some(plan) = &status.plan {
            let kinds: Vec<_> = plan.held.values().map(|by| discriminant(&by.why)).collect();
            let summary = &plan.plan.summary;
            let about = format!("{} {kinds:?} {summary:?}", plan.digest());
            if self.about != about {
                self.tell(&now, "plan", Some(self::plan(plan)));
                self.about = about;
            }
        }
        self.incidents(&now, status);
        self.ends(&now, status);
    }

    /// Tells what is served, and what cannot be read.
    fn sources(&mut self, now: &str, status: &Status) {
        let repository = &status.repository;
        self.tell(
            now,
            "commit",
            repository.commit.as_ref().map(|commit| {
                let errors = match repository.problems {
                    0 => String::new(),
                    n => {
                        let errors =
                            if n == 1 { "an error".to_owned() } else { format!("{n} errors") };
                        format!(", which has {errors}: nothing is changed before they are mended")
                    }
                };
                format!("serving {}{errors}", short(commit))
            }),
        );
        let waiting = repository.waiting.as_ref();
        self.tell(
            now,
            "waiting",
            waiting.map(|(commit, why)| format!("commit {} waits {why}", short(commit))),
        );
        let git = repository.reads.error.as_ref();
        self.tell(
            now,
            "git",
            Some(git.map_or_else(String::new, |(why, _)| {
                format!("the repository cannot be read; nothing is removed because of that: {why}")
            })),
        );
        let world = status.world.as_ref().and_then(|world| world.reads.error.as_ref());
        self.tell(
            now,
            "world",
            Some(world.map_or_else(String::new, |(why, _)| {
                format!("the world cannot be read as a whole; nothing is changed: {why}")
            })),
        );
    }

    /// Tells who else makes and removes nodes.
    #[cfg(feature = "cluster")]
    pub(super) fn rival(&mut self, now: jiff::Timestamp, rival: Option<&str>) {
        let said = rival.map_or_else(String::new, |rival| {
            format!(
                "{rival} and would fight for nodes: this loop only plans until that has gone; \
                 deploy/migrate says how to take over from it"
            )
        });
        self.tell(&format!("{now:.0}"), "rival", Some(said));
    }

    /// Tells which machines go, and what latched.
    fn incidents(&mut self, now: &str, status: &Status) {
        // What has gone may go again.
        let gone = |what: &String| {
            what.starts_with("i-")
                && !status.going.iter().any(|going| going.instance.as_str() == what.as_str())
        };
        self.told.retain(|what, _| !gone(what));
        for going in &status.going {
            let said = format!("{} goes ({})", going.instance, going.why);
            self.tell(now, going.instance.as_str(), Some(said));
        }
        for breaker in &status.breakers {
            let said = format!("breaker {} latched: {}", breaker.name, breaker.why);
            self.tell(now, &breaker.name, Some(said));
        }
    }

    /// Tells how plans ended since the last look.
    fn ends(&mut self, now: &str, status: &Status) {
        let all = status.counters.iter().filter(|(name, _)| name.starts_with("reconciles."));
        let ends = all.filter(|(name, _)| !name.ends_with("nothing") && !name.ends_with("held"));
        let ends = usize::try_from(ends.map(|(_, n)| *n).sum::<u64>()).unwrap_or(usize::MAX);
        let new = ends.saturating_sub(self.ended).min(status.history.len());
        for past in status.history.iter().take(new).rev() {
            self.console.say(&format!("{now}  {}", escape(&ended(past))));
        }
        self.ended = ends;
    }

    /// Says something about `what`, unless it is what was said last; an empty text is never said.
    fn tell(&mut self, now: &str, what: &str, text: Option<String>) {
        let Some(text) = text else { return };
        if self.told.get(what) == Some(&text) {
            return;
        }
        if !text.is_empty() {
            self.console.say(&format!("{now}  {}", escape(&text)));
        }
        self.told.insert(what.to_owned(), text);
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
