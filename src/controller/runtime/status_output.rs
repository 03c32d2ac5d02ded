//! Status output to the cluster: Kubernetes objects of the controller, and events about nodes and
//! plans.
//!
//! No decision depends on this output. A failed write is retried with the next change; a failed
//! event is dropped.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::adapters::kube::{EventSubject, Kubernetes, KubernetesEvent, apply_event};
use crate::apply::{self, ApplyStatus};
use crate::controller::resources::plan_name;
use crate::controller::status_writer::{self, RecoveredHistory, WriterState};
use crate::controller::{CompletedApply, Effect, Status, Suspension};
use crate::model::event_reason::EventReason;
use crate::model::ids::{InstanceId, PlanId};

/// Time between two writes: objects change in bursts.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);

/// Most events that wait to be written; the oldest are dropped.
const EVENTS_MAX: usize = 200;

/// Interval of reading the objects that the leader writes, while another replica leads.
const RECALL_INTERVAL: Duration = Duration::from_secs(30);

/// The longest time that the last writes may take at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The status and events to write.
#[derive(Default)]
pub(super) struct StatusOutput {
    status: RefCell<Option<Status>>,
    written: RefCell<WriterState>,
    /// Applies of other processes, read from the cluster while another replica leads.
    earlier: RefCell<RecoveredHistory>,
    recalled_at: Cell<Option<Instant>>,
    events: RefCell<VecDeque<KubernetesEvent>>,
    /// The number of completed applies that have an event.
    reported_applies: Cell<u64>,
    /// The operator and start of the break-glass that has an event.
    break_glass: RefCell<Option<(String, Timestamp)>>,
    changed: Notify,
}

impl StatusOutput {
    /// Returns whether the effects of a step need an event now, even if publishing is throttled.
    pub(super) fn has_events(effects: &[Effect]) -> bool {
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Cordon { .. } | Effect::Uncordon { .. }))
    }

    /// Adds the event for a step of an apply, if the step concerns a node.
    pub(super) fn note_apply_step(&self, plan: &PlanId, step: &apply::Event) {
        let Some(event) = apply_event(plan.as_str(), step) else { return };
        self.push_event(event);
        self.changed.notify_one();
    }

    /// Records the result of a step.
    pub(super) fn record(&self, status: &Status, effects: &[Effect]) {
        for effect in effects {
            let interruption =
                |instance: &InstanceId| status.interrupted.iter().find(|t| t.instance == *instance);
            if let Effect::Cordon { node, instance, .. } = effect {
                let found = interruption(instance);
                let why = found.map_or("interrupted", |found| found.reason.as_str());
                let message = format!("cordoned: {instance} is terminating ({why})");
                let subject = EventSubject::Node(node.name.clone());
                self.add_event(subject, EventReason::Terminating, message, status);
            } else if let Effect::Uncordon { node, instance } = effect {
                let message = match interruption(instance) {
                    Some(_) => "uncordoned: the drain was abandoned",
                    // Another actor has uncordoned the node: no event is needed.
                    None if !node.unschedulable => continue,
                    None => {
                        "uncordoned: an interrupted drain had left it cordoned, and the plan keeps it"
                    }
                };
                let subject = EventSubject::Node(node.name.clone());
                self.add_event(subject, EventReason::Uncordoned, message.to_owned(), status);
            }
        }
        self.note_break_glass(status);
        self.note_completed_applies(status);
        self.status.replace(Some(status.clone()));
        self.changed.notify_one();
    }

    /// Adds applies of other processes.
    pub(super) fn add_earlier(&self, status: &mut Status) {
        self.earlier.borrow().complete(status);
    }

    /// Adds an event about the current plan when break-glass starts or ends.
    fn note_break_glass(&self, status: &Status) {
        let break_glass = status.break_glass.as_ref();
        let current = break_glass.map(|active| (active.by.clone(), active.since));
        let Some(plan) = status.plan.as_ref().filter(|_| status.is_leader) else { return };
        if *self.break_glass.borrow() == current {
            return;
        }
        let (reason, message) = match break_glass {
            Some(Suspension { reason, until, by, since: _ }) => {
                let until = until.map(|until| format!(" until {until:.0}")).unwrap_or_default();
                let what = "approvals and windows are bypassed";
                {
                    let message = format!("{what}{until}, requested by {by}: {reason}");
                    (EventReason::BreakGlassStarted, message)
                }
            }
            None => (EventReason::BreakGlassEnded, "plans need their approval again".to_owned()),
        };
        let subject = EventSubject::Plan(plan_name(plan.digest().as_str()));
        self.add_event(subject, reason, message, status);
        self.break_glass.replace(current);
    }

    /// Adds events for applies that completed since the last call.
    fn note_completed_applies(&self, status: &Status) {
        let all = status.counters.completed_applies();
        let new =
            usize::try_from(all.saturating_sub(self.reported_applies.replace(all))).unwrap_or(0);
        for past in status.history.iter().take(new).rev() {
            let subject = EventSubject::Plan(plan_name(past.digest.as_str()));
            let (reason, message) = outcome_event(past);
            self.add_event(subject, reason, message, status);
        }
    }

    fn add_event(
        &self,
        subject: EventSubject,
        reason: EventReason,
        message: String,
        status: &Status,
    ) {
        self.push_event(KubernetesEvent { subject, reason, message, at: status.now });
    }

    fn push_event(&self, event: KubernetesEvent) {
        let mut events = self.events.borrow_mut();
        events.push_back(event);
        if events.len() > EVENTS_MAX {
            events.pop_front();
        }
    }

    /// Writes recorded changes for as long as it is polled.
    pub(super) async fn write_periodically(&self, kubernetes: &Kubernetes) {
        let mut failed = None;
        loop {
            self.changed.notified().await;
            let end = self.write(kubernetes).await;
            let why = end.as_ref().err().map(ToString::to_string);
            if why != failed {
                if let Some(why) = &why {
                    tracing::warn!(
                        why,
                        "cannot write controller objects; check that the CRDs are installed"
                    );
                }
                failed = why;
            }
            if end.is_err() {
                self.changed.notify_one();
            }
            tokio::time::sleep(WRITE_INTERVAL).await;
        }
    }

    /// Writes the last status.
    pub(super) async fn flush(&self, kubernetes: &Kubernetes, status: &Status) {
        self.record(status, &[]);
        // Shutdown waits no longer.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, self.write(kubernetes)).await;
    }

    async fn write(&self, kubernetes: &Kubernetes) -> Result<(), crate::apply::ports::PortError> {
        // An event names the UID of its object.
        let end = self.write_objects(kubernetes).await;
        loop {
            let Some(event) = self.events.borrow_mut().pop_front() else { break };
            if let Err(error) = kubernetes.record_event(&event).await {
                tracing::warn!(%error, about = %event.subject, "cannot record event");
            }
        }
        end
    }

    async fn write_objects(
        &self,
        kubernetes: &Kubernetes,
    ) -> Result<(), crate::apply::ports::PortError> {
        let Some(status) = self.status.take() else { return Ok(()) };
        let mut written = self.written.take();
        let mut end =
            status_writer::write_objects(kubernetes, &status, &mut written).await.map(|_| ());
        let due = self.recalled_at.get().is_none_or(|at| at.elapsed() >= RECALL_INTERVAL);
        if !status.is_leader && due {
            end = end.and(
                status_writer::recover_history(kubernetes, &mut written.recovered_history).await,
            );
            self.recalled_at.set(Some(Instant::now()));
        }
        self.earlier.replace(written.recovered_history.clone());
        self.written.replace(written);
        let mut latest = self.status.borrow_mut();
        if end.is_err() && latest.is_none() {
            *latest = Some(status);
        }
        end
    }
}

/// Returns the reason and the message of the event for a completed apply.
fn outcome_event(past: &Arc<CompletedApply>) -> (EventReason, String) {
    if let Some(why) = &past.refused {
        return (EventReason::Refused, format!("refused before the first change: {why}"));
    }
    let outcomes: Vec<String> =
        past.outcomes.iter().map(|(name, n)| format!("{n} {name}")).collect();
    let verdict = past.receipt.as_ref().map(|receipt| receipt.verdict);
    let whole = verdict == Some(ApplyStatus::Applied);
    let reason = if whole { EventReason::Applied } else { EventReason::PartlyApplied };
    (reason, format!("applied: {}", outcomes.join(", ")))
}
