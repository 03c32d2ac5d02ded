//! The log of the controller on stderr: one line for each change, as text or JSON.

use std::collections::BTreeMap;
use std::mem::discriminant;

use jiff::Timestamp;
use serde_json::{Map, Value as Json};

use super::Reporter;
use crate::apply::Receipt;
use crate::controller::{
    CompletedApply, Counter, PublishedPlan, Status, Suspension, UncordonedNode,
};
use crate::model::plural::count;
use crate::plan::wire::Summary;
use crate::render::{escape, plan_reason};
use crate::telemetry::{LogFormat, json_line};

/// Logs the changes from one status to the next.
pub(super) struct StatusLogger<'r> {
    reporter: &'r mut dyn Reporter,
    format: LogFormat,
    /// The last logged text of each subject.
    last_logged: BTreeMap<String, String>,
    /// The last logged plan, with the reasons that blocked it.
    last_plan: String,
    /// The number of completed applies that are logged.
    logged_applies: usize,
    /// The number of uncordoned nodes that are logged.
    logged_uncordoned: usize,
}

struct LogEntry {
    /// The name of the event.
    event: &'static str,
    /// Constant message of a JSON entry, whose fields have the values.
    message: &'static str,
    is_warning: bool,
    /// Line of the text log, with the values.
    text: String,
    /// Names and values of the objects concerned.
    fields: Map<String, Json>,
}

impl LogEntry {
    fn new(event: &'static str, message: &'static str, text: impl Into<String>) -> Self {
        Self { event, message, is_warning: false, text: text.into(), fields: Map::new() }
    }

    fn warning(self) -> Self {
        Self { is_warning: true, ..self }
    }

    fn with_suspension(self, suspension: Option<&Suspension>) -> Self {
        self.with_optional("by", suspension.map(|suspension| &suspension.by))
            .with_optional("until", suspension.and_then(|suspension| suspension.until))
            .with_optional("reason", suspension.map(|suspension| &suspension.reason))
    }

    fn with_optional<T: ToString>(self, name: &'static str, value: Option<T>) -> Self {
        match value {
            Some(value) => self.with_field(name, &value),
            None => self,
        }
    }

    fn with_field(self, name: &'static str, value: &impl ToString) -> Self {
        self.with_value(name, value.to_string())
    }

    fn with_value(mut self, name: &'static str, value: impl Into<Json>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }
}

impl<'r> StatusLogger<'r> {
    pub(super) fn new(reporter: &'r mut dyn Reporter, format: LogFormat) -> Self {
        Self {
            reporter,
            format,
            last_logged: BTreeMap::new(),
            last_plan: String::new(),
            logged_applies: 0,
            logged_uncordoned: 0,
        }
    }

    /// Logs the changes of `status` since the last call.
    pub(super) fn log_changes(&mut self, status: &Status) {
        let now = status.now;
        self.log_sources(now, status);
        // A plan is logged again if a block reason changes, and not if only its time moves.
        if let Some(plan) = &status.plan {
            let kinds: Vec<_> = plan.blocked.values().map(|by| discriminant(&by.reason)).collect();
            let summary = &plan.plan.summary;
            let subject = format!("{} {kinds:?} {summary:?}", plan.digest());
            if self.last_plan != subject {
                let Summary { add, change, destroy, .. } = summary;
                let blocked = plan.blocked.values().next().map(|first| &first.message);
                let entry = LogEntry::new("plan_changed", "plan changed", plan_text(plan))
                    .with_field("plan", plan.digest())
                    .with_value("add", *add)
                    .with_value("change", *change)
                    .with_value("destroy", *destroy)
                    .with_value("blocked", plan.blocked.len())
                    .with_optional("commit", plan.plan.capacity.base.commit.as_ref())
                    .with_optional("cause", plan_reason(&plan.plan))
                    .with_optional("reason", blocked);
                self.log_if_changed(now, "plan", Some(entry));
                self.last_plan = subject;
            }
        }
        self.log_incidents(now, status);
        self.log_withheld_repairs(now, status);
        self.log_uncordoned(now, status);
        self.log_completed_applies(now, status);
    }

    /// Logs the served commit, and sources that cannot be read.
    fn log_sources(&mut self, now: Timestamp, status: &Status) {
        let repository = &status.repository;
        let served = repository.commit.as_ref().map(|commit| {
            let errors = match repository.problems {
                0 => String::new(),
                1 => ", which has an error: nothing changes until it is fixed".to_owned(),
                n => format!(", which has {n} errors: nothing changes until they are fixed"),
            };
            let text = format!("serving {}{errors}", short_commit(commit));
            LogEntry::new("revision_served", "revision served", text)
                .with_field("commit", commit)
                .with_value("errors", repository.problems)
        });
        self.log_if_changed(now, "commit", served);
        let waiting = repository.waiting.as_ref().map(|(commit, why)| {
            let text = format!("{} waits {why}", short_commit(commit));
            LogEntry::new("revision_waiting", "revision waits for CI", text)
                .with_field("commit", commit)
                .with_field("reason", why)
        });
        self.log_if_changed(now, "waiting", waiting);
        let error = repository.reads.error.as_ref().map(|(why, _)| why);
        let text = error.map_or_else(String::new, |why| {
            format!("cannot read the repository; nothing is removed because of it: {why}")
        });
        let entry = LogEntry::new("repository", "cannot read the repository", text);
        self.log_if_changed(now, "repository", Some(entry.with_optional("error", error).warning()));
        let error = status.world.as_ref().and_then(|world| world.reads.error.as_ref());
        let error = error.map(|(why, _)| why);
        let text = error.map_or_else(String::new, |why| {
            format!("cannot observe the cluster completely; nothing is changed: {why}")
        });
        let entry = LogEntry::new("cluster", "cannot observe the cluster completely", text);
        self.log_if_changed(now, "cluster", Some(entry.with_optional("error", error).warning()));
    }

    /// Logs a competing autoscaler.
    #[cfg(feature = "cluster")]
    pub(super) fn log_competing_autoscaler(&mut self, now: Timestamp, autoscaler: Option<&str>) {
        let text = autoscaler.map_or_else(String::new, |autoscaler| {
            format!(
                "{autoscaler}: the controller only plans until it stops; deploy/migrate describes the migration"
            )
        });
        let entry = LogEntry::new("competing_autoscaler", "competing autoscaler runs", text);
        let entry = entry.with_optional("autoscaler", autoscaler);
        self.log_if_changed(now, "competing_autoscaler", Some(entry.warning()));
    }

    /// Logs terminating instances, break-glass, suspension and latched breakers.
    fn log_incidents(&mut self, now: Timestamp, status: &Status) {
        // Forgets instances that are no longer terminating, so that a second interruption is
        // logged.
        let is_gone = |subject: &String| {
            subject.starts_with("i-")
                && !status
                    .interrupted
                    .iter()
                    .any(|terminating| terminating.instance.as_str() == subject.as_str())
        };
        self.last_logged.retain(|subject, _| !is_gone(subject));
        for terminating in &status.interrupted {
            let when = terminating.deadline.map(|at| format!(" at {at:.0}")).unwrap_or_default();
            let blocked = terminating.replacement_blocked.as_ref();
            let blocked = blocked.map(|by| format!("; its replacement is blocked: {}", by.message));
            let blocked = blocked.unwrap_or_default();
            let text = format!(
                "{} is terminating ({}){when}{blocked}",
                terminating.instance, terminating.reason
            );
            let blocked = terminating.replacement_blocked.as_ref().map(|by| &by.message);
            let entry = LogEntry::new("instance_interrupted", "instance interrupted", text)
                .with_field("instance", &terminating.instance)
                .with_field("reason", &terminating.reason)
                .with_optional("deadline", terminating.deadline)
                .with_optional("replacement_blocked", blocked)
                .with_optional("node", terminating.node.as_ref());
            let entry = if blocked.is_some() { entry.warning() } else { entry };
            self.log_if_changed(now, terminating.instance.as_str(), Some(entry));
        }
        let until = |suspension: &Suspension| {
            suspension.until.map(|until| format!(" until {until:.0}")).unwrap_or_default()
        };
        let break_glass = status.break_glass.as_ref().map_or_else(String::new, |break_glass| {
            format!(
                "{} started break-glass: approvals and windows are bypassed{}: {}",
                break_glass.by,
                until(break_glass),
                break_glass.reason
            )
        });
        let entry = LogEntry::new("break_glass", "break-glass started", break_glass)
            .with_suspension(status.break_glass.as_ref());
        self.log_if_changed(now, "break_glass", Some(entry.warning()));
        let suspended = status.suspended.as_ref().map_or_else(String::new, |suspension| {
            format!(
                "{} suspended the controller{}: {}",
                suspension.by,
                until(suspension),
                suspension.reason
            )
        });
        let entry = LogEntry::new("suspended", "controller suspended", suspended)
            .with_suspension(status.suspended.as_ref());
        self.log_if_changed(now, "suspended", Some(entry));
        for breaker in &status.breakers {
            let text = format!("breaker {} latched: {}", breaker.name, breaker.why);
            let entry = LogEntry::new("breaker", "breaker latched", text)
                .with_field("breaker", &breaker.name)
                .with_field("reason", &breaker.why);
            self.log_if_changed(now, &breaker.name, Some(entry.warning()));
        }
    }

    /// Logs pools whose broken nodes are not replaced.
    fn log_withheld_repairs(&mut self, now: Timestamp, status: &Status) {
        let all = status.withheld_repairs.iter().map(ToString::to_string);
        let text = all.collect::<Vec<_>>().join("; ");
        let entry = LogEntry::new("repair_withheld", "repair withheld", text);
        self.log_if_changed(now, "repair_withheld", Some(entry.warning()));
    }

    /// Logs nodes that were uncordoned since the last call.
    fn log_uncordoned(&mut self, now: Timestamp, status: &Status) {
        let all = status.counters.get(&Counter::NodesUncordoned);
        let all = usize::try_from(all).unwrap_or(usize::MAX);
        let new = all.saturating_sub(self.logged_uncordoned);
        for UncordonedNode { node, instance, at: _ } in status.uncordoned.iter().take(new).rev() {
            let why = "an interrupted drain had left it cordoned, and the plan keeps it";
            let text = format!("{node} is uncordoned: {why}");
            let entry = LogEntry::new("uncordoned", "stale cordon removed", text);
            self.write(now, &entry.with_field("node", node).with_field("instance", instance));
        }
        self.logged_uncordoned = all;
    }

    /// Logs applies that completed since the last call.
    fn log_completed_applies(&mut self, now: Timestamp, status: &Status) {
        let ends = usize::try_from(status.counters.completed_applies()).unwrap_or(usize::MAX);
        let new = ends.saturating_sub(self.logged_applies).min(status.history.len());
        for past in status.history.iter().take(new).rev() {
            let message = match past.refused {
                Some(_) => "apply refused before the first change",
                None => "plan applied",
            };
            let mut entry = LogEntry::new("applied", message, apply_text(past))
                .with_field("plan", &past.digest)
                .with_field("commit", &past.commit)
                .with_field("hourly_before", &past.hourly_before)
                .with_field("hourly_after", &past.hourly_after)
                .with_optional("reason", past.refused.as_ref());
            entry.is_warning = past.refused.is_some();
            self.write(now, &entry);
            if let (LogFormat::Json, Some(receipt)) = (self.format, &past.receipt) {
                self.log_outcomes(now, past, receipt);
            }
        }
        self.logged_applies = ends;
    }

    /// Logs the outcome of each change of an apply.
    fn log_outcomes(&mut self, now: Timestamp, past: &CompletedApply, receipt: &Receipt) {
        for change in &receipt.outcomes {
            let mut entry = LogEntry::new("change", "change finished", "")
                .with_field("plan", &past.digest)
                .with_field("change", &change.address)
                .with_field("step", &change.step.as_str())
                .with_field("outcome", &change.outcome.as_str())
                .with_optional("reason", change.outcome.why())
                .with_optional("instance", change.instance_id.as_ref());
            entry.is_warning = !change.outcome.is_settled();
            self.write(now, &entry);
        }
    }

    /// Logs `entry` about a subject, unless its text is empty or unchanged.
    fn log_if_changed(&mut self, now: Timestamp, subject: &str, entry: Option<LogEntry>) {
        let Some(entry) = entry else { return };
        if self.last_logged.get(subject) == Some(&entry.text) {
            return;
        }
        if !entry.text.is_empty() {
            self.write(now, &entry);
        }
        self.last_logged.insert(subject.to_owned(), entry.text);
    }

    fn write(&mut self, now: Timestamp, entry: &LogEntry) {
        match self.format {
            LogFormat::Text => self.reporter.report(&format!("{now:.0}  {}", escape(&entry.text))),
            LogFormat::Json => {
                let level = if entry.is_warning { "warn" } else { "info" };
                let fields = entry.fields.clone();
                let line = json_line(now, level, entry.event, entry.message, fields);
                self.reporter.report_raw(&format!("{line}\n"));
            }
        }
    }
}

fn short_commit(commit: &str) -> String {
    if commit.starts_with("sha256:") {
        return "uncommitted files".to_owned();
    }
    let digits: String = commit.chars().take(12).collect();
    format!("commit {digits}")
}

fn plan_text(now: &PublishedPlan) -> String {
    let Summary { add, change, destroy, .. } = now.plan.summary;
    let digest: String = now.digest().as_str().chars().take(19).collect();
    if (add, change, destroy) == (0, 0, 0) {
        let unschedulable = now.plan.capacity.pods.unschedulable;
        let unschedulable = match unschedulable {
            0 => String::new(),
            1 => "; 1 pod is unschedulable".to_owned(),
            more => format!("; {more} pods are unschedulable"),
        };
        let served = match now.plan.capacity.pods.served_by_cluster_autoscaler {
            0 => String::new(),
            pods => format!("; cluster-autoscaler serves {}", count(pods, "pod")),
        };
        return format!("nothing to change{unschedulable}{served}");
    }
    let commit = now.plan.capacity.base.commit.as_deref();
    let commit = commit.map(|commit| format!(" for {}", short_commit(commit))).unwrap_or_default();
    let because = plan_reason(&now.plan).map(|because| format!("; {because}")).unwrap_or_default();
    let held = match now.blocked.values().next() {
        Some(first) => format!("; {} blocked: {}", now.blocked.len(), first.message),
        None => String::new(),
    };
    format!(
        "plan {digest}{commit}: {add} to add, {change} to change, {destroy} to destroy{because}{held}"
    )
}

fn apply_text(past: &CompletedApply) -> String {
    let took = past.ended_at.duration_since(past.started_at).as_secs();
    if let Some(why) = &past.refused {
        return format!("refused before the first change: {why}");
    }
    let outcomes: Vec<String> =
        past.outcomes.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let (before, after) = (past.hourly_before, past.hourly_after);
    format!("applied in {took} s: {}; ${before}/h -> ${after}/h", outcomes.join(", "))
}
