//! What the cluster is told of the loop: its objects, and events about nodes and plans.
//!
//! Nothing depends on any of it: what cannot be written is tried again with the next news, or passed over.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::face::object::plan_name;
use crate::kube::{About, Kubernetes, Note};
use crate::reconcile::{Effect, Past, Status, Suspension};
use crate::register::{self, Earlier, Written};

/// Between two rounds of writing: objects change in bursts.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Most events that wait to be written; the oldest are passed over.
const NOTES_MAX: usize = 200;

/// Between two looks at what another replica, which leads, has told.
const RECALL_EVERY: Duration = Duration::from_secs(30);

/// Events that are still written when the loop ends, and how long that may take.
const LAST_WITHIN: Duration = Duration::from_secs(5);

/// What there is to tell.
#[derive(Default)]
pub(super) struct Record {
    status: RefCell<Option<Status>>,
    written: RefCell<Written>,
    /// What other processes carried out, and when that was last looked at while another led.
    earlier: RefCell<Earlier>,
    recalled: Cell<Option<Instant>>,
    notes: RefCell<VecDeque<Note>>,
    /// How many plans were told to have ended.
    ended: Cell<u64>,
    /// Who was told to have broken the glass, and when.
    glass: RefCell<Option<(String, Timestamp)>>,
    news: Notify,
}

impl Record {
    /// Returns whether something of what a step led to is to be noted, whoever shows the loop when.
    pub(super) fn notes(effects: &[Effect]) -> bool {
        effects.iter().any(|effect| matches!(effect, Effect::Cordon { .. }))
    }

    /// Takes what a step led to.
    pub(super) fn look(&self, status: &Status, effects: &[Effect]) {
        for effect in effects {
            let Effect::Cordon { node, instance, mark } = effect else { continue };
            let going = status.going.iter().find(|going| going.instance == *instance);
            let (reason, message) = match (mark, going) {
                (Some(_), _) => {
                    let why = going.map_or("it goes", |going| going.why.as_str());
                    let message = format!("no pod may come any more: {instance} goes ({why})");
                    ("Leaving", message)
                }
                (None, Some(_)) => {
                    let message = "it could not be drained, and pods may come again".to_owned();
                    ("Uncordoned", message)
                }
                // Whoever uncordoned it before is told nothing new.
                (None, None) if !node.unschedulable => continue,
                (None, None) => {
                    let why = "a drain that ended early had left it cordoned";
                    ("Uncordoned", format!("pods may come again: {why}, and the plan keeps it"))
                }
            };
            self.note(About::Node(node.name.clone()), reason, (message, true), status);
        }
        self.note_glass(status);
        self.note_ended(status);
        self.status.replace(Some(status.clone()));
        self.news.notify_one();
    }

    /// Adds what other processes carried out.
    pub(super) fn complete(&self, status: &mut Status) {
        self.earlier.borrow().complete(status);
    }

    /// Notes that somebody broke the glass, with the plan that was current then, and that it is whole again.
    fn note_glass(&self, status: &Status) {
        let glass = status.break_glass.as_ref();
        let broken = glass.map(|glass| (glass.by.clone(), glass.since));
        let Some(plan) = status.plan.as_ref().filter(|_| status.leader) else { return };
        if *self.glass.borrow() == broken {
            return;
        }
        let (reason, said) = match glass {
            Some(Suspension { reason, until, by, since: _ }) => {
                let until = until.map(|until| format!(" until {until:.0}")).unwrap_or_default();
                let what = "approvals and windows are passed over";
                ("GlassBroken", format!("{what}{until}, asked for by {by}: {reason}"))
            }
            None => ("GlassMended", "plans need their approval again".to_owned()),
        };
        let about = About::Plan(plan_name(plan.digest().as_str()));
        self.note(about, reason, (said, glass.is_some()), status);
        self.glass.replace(broken);
    }

    /// Notes which plans have ended since the last look.
    fn note_ended(&self, status: &Status) {
        let ends = ["applied", "partly", "refused", "interrupted"];
        let count = |name| status.counters.get(&format!("reconciles.{name}")).copied();
        let all: u64 = ends.into_iter().filter_map(count).sum();
        let new = usize::try_from(all.saturating_sub(self.ended.replace(all))).unwrap_or(0);
        for past in status.history.iter().take(new).rev() {
            let about = About::Plan(plan_name(past.digest.as_str()));
            let (reason, said) = said(past);
            self.note(about, reason, (said, reason != "Applied"), status);
        }
    }

    fn note(
        &self,
        about: About,
        reason: &'static str,
        (message, is_warning): (String, bool),
        status: &Status,
    ) {
        let mut notes = self.notes.borrow_mut();
        notes.push_back(Note { about, reason, message, is_warning, at: status.now });
        if notes.len() > NOTES_MAX {
            notes.pop_front();
        }
    }

    /// Writes what there is to tell for as long as it is polled.
    pub(super) async fn keep(&self, kubernetes: &Kubernetes) {
        let mut failed = None;
        loop {
            self.news.notified().await;
            let end = self.write(kubernetes).await;
            let why = end.as_ref().err().map(ToString::to_string);
            if why != failed {
                if let Some(why) = &why {
                    tracing::warn!(
                        why,
                        "the objects of the loop are not kept; are its CRDs there?"
                    );
                }
                failed = why;
            }
            if end.is_err() {
                self.news.notify_one();
            }
            tokio::time::sleep(WRITE_EVERY).await;
        }
    }

    /// Writes the last of it.
    pub(super) async fn last(&self, kubernetes: &Kubernetes, status: &Status) {
        self.look(status, &[]);
        // Whoever waits for this process to end waits no longer than that.
        let _ = tokio::time::timeout(LAST_WITHIN, self.write(kubernetes)).await;
    }

    async fn write(&self, kubernetes: &Kubernetes) -> Result<(), crate::port::PortError> {
        loop {
            let Some(note) = self.notes.borrow_mut().pop_front() else { break };
            if let Err(error) = kubernetes.note(&note).await {
                tracing::warn!(%error, about = %note.about, "an event was not recorded");
            }
        }
        let Some(status) = self.status.take() else { return Ok(()) };
        let mut written = self.written.take();
        let mut end = register::keep(kubernetes, &status, &mut written).await.map(|_| ());
        let due = self.recalled.get().is_none_or(|at| at.elapsed() >= RECALL_EVERY);
        if !status.leader && due {
            end = end.and(register::recall(kubernetes, &mut written.earlier).await);
            self.recalled.set(Some(Instant::now()));
        }
        self.earlier.replace(written.earlier.clone());
        self.written.replace(written);
        let mut latest = self.status.borrow_mut();
        if end.is_err() && latest.is_none() {
            *latest = Some(status);
        }
        end
    }
}

/// Returns how a plan ended, in a word and in a sentence.
fn said(past: &Arc<Past>) -> (&'static str, String) {
    if let Some(why) = &past.refused {
        return ("Refused", format!("refused before the first change: {why}"));
    }
    let outcomes: Vec<String> =
        past.outcomes.iter().map(|(name, n)| format!("{n} {name}")).collect();
    let whole = past
        .outcomes
        .keys()
        .all(|name| ["done", "already-done", "dropped", "skipped"].contains(&name.as_str()));
    let reason = if whole { "Applied" } else { "PartlyApplied" };
    (reason, format!("carried out: {}", outcomes.join(", ")))
}
