//! The state of the controller, and its reaction to each event.

use std::sync::Arc;

use jiff::Timestamp;

use super::applies::Applies;
use super::competing_autoscaler::CompetingAutoscalers;
use super::counters::{Counter, Counters};
use super::event::{Effect, Event, Signal, Ticket};
use super::failures::ActionFailures;
use super::interruption::{Interruptions, StepScope};
use super::leadership::Leadership;
use super::node_health::NodeHealth;
use super::observation::{BUSY_REFRESH, Observation};
use super::opening::NodeOpening;
use super::persisted_state::PersistedState;
use super::persistence::Persistence;
use super::planning::PlanningState;
use super::planning_snapshot::forget_planned_pods;
use super::revisions::Revisions;
use super::timing::Timing;
use super::{inflight_launches, status_snapshot};
use crate::apply::ports::PortError;
use crate::apply::{self, AcceptedNominations};
use crate::model::desired::Mode;
use crate::model::ids::PlanId;
use crate::model::observed::{ClusterIdentity, Completeness, Observed};

/// Minimum time between two reads of the branch that the cluster may be ahead of.
pub(super) const AHEAD_READ_INTERVAL: jiff::SignedDuration = jiff::SignedDuration::from_secs(5);

/// Identity of the controller and the settings that it was started with.
#[derive(Debug, Clone)]
pub struct StartOptions {
    /// Start time.
    pub started_at: Timestamp,
    /// Name of this replica, as holder of the lease.
    pub identity: String,
    /// The cluster.
    pub cluster: ClusterIdentity,
    /// Mode that overrides the mode in the repository.
    pub mode: Option<Mode>,
    /// True to exit once nothing is left to do.
    pub once: bool,
}

/// Everything that the controller remembers between events.
#[derive(Debug, Clone)]
pub struct ControllerState {
    pub(super) start: StartOptions,
    pub(super) now: Timestamp,
    pub(super) leadership: Leadership,
    pub(super) revisions: Revisions,
    pub(super) observation: Observation,
    pub(super) competing_autoscalers: CompetingAutoscalers,
    pub(super) node_health: NodeHealth,
    pub(super) planning: PlanningState,
    pub(super) applies: Applies,
    pub(super) interruptions: Interruptions,
    pub(super) persistence: Persistence,
    pub(super) nominations: AcceptedNominations,
    pub(super) opening: NodeOpening,
    /// Actions that currently fail.
    pub(super) action_failures: ActionFailures,
    pub(super) counters: Counters,
    pub(super) timing: Timing,
    last_ticket: Ticket,
    /// Step of an apply that the last event reported, with the plan.
    pub(super) apply_step: Option<(PlanId, apply::Event)>,
    pub(super) wakes_at: Option<Timestamp>,
}

/// Handles one event: returns the next state and the effects to run.
///
/// Pure: equal arguments give equal results, and nothing is read or written.
pub fn step(
    mut state: ControllerState,
    event: Event,
    now: Timestamp,
) -> (ControllerState, Vec<Effect>) {
    if now < state.now {
        state.on_clock_set_back(now);
    }
    state.now = now;
    // An expired break-glass must not approve anything that this event brings.
    if let Some(persisted) = &mut state.persistence.loaded {
        persisted.expire_break_glass(now);
    }
    let scope = StepScope::for_event(&event);
    state.apply_step = None;
    let mut effects = state.handle_event(event);
    state.advance(scope, &mut effects);
    (state, effects)
}

#[cfg(test)]
impl ControllerState {
    /// Returns the ticket of the planning run in progress.
    pub(crate) fn planning_ticket(&self) -> Option<Ticket> {
        self.planning.run.as_ref().map(|run| run.ticket)
    }

    /// Returns the served revision.
    pub(crate) fn served_revision(&mut self) -> &mut super::Revision {
        Arc::make_mut(self.revisions.served.as_mut().expect("a served revision"))
    }

    /// Returns true while the state is being saved.
    pub(crate) fn is_saving(&self) -> bool {
        self.persistence.is_saving()
    }
}

impl ControllerState {
    /// Returns the state of a controller that has read nothing.
    pub fn new(start: StartOptions) -> Self {
        let now = start.started_at;
        Self {
            now,
            leadership: Leadership::new(),
            revisions: Revisions::new(now),
            observation: Observation::new(now),
            competing_autoscalers: CompetingAutoscalers::new(now),
            node_health: NodeHealth::default(),
            planning: PlanningState::new(now),
            applies: Applies::default(),
            interruptions: Interruptions::new(now),
            persistence: Persistence::new(now),
            nominations: AcceptedNominations::default(),
            opening: NodeOpening::default(),
            action_failures: ActionFailures::default(),
            counters: Counters::default(),
            timing: Timing::default(),
            last_ticket: 0,
            apply_step: None,
            wakes_at: None,
            start,
        }
    }

    /// After the clock was set back, retries must not wait for times that were near.
    fn on_clock_set_back(&mut self, now: Timestamp) {
        self.revisions.on_clock_set_back(now);
        self.observation.on_clock_set_back(now);
        self.applies.on_clock_set_back(now);
        self.interruptions.on_clock_set_back(now);
        self.opening.clear();
        (self.planning.replan_at, self.persistence.retry.at) = (now, now);
        self.competing_autoscalers.due = now;
    }

    /// Returns the step of an apply that the last event reported, with the plan.
    pub fn apply_step(&self) -> Option<(&PlanId, &apply::Event)> {
        self.apply_step.as_ref().map(|(plan, event)| (plan, event))
    }

    pub(super) fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// Returns the effective mode: the start option, else the mode of the repository. It is
    /// `observe` while a competing autoscaler runs, and at most `additive` while a substitute
    /// revision is served.
    pub fn mode(&self) -> Mode {
        if self.competing_autoscaler().is_some() {
            return Mode::Observe;
        }
        let mode = self.start.mode.or_else(|| self.revisions.mode()).unwrap_or_default();
        if self.revisions.serves_substitute() { mode.min(Mode::Additive) } else { mode }
    }

    /// Returns true if the mode is explicitly `observe`. Work in progress continues while the mode
    /// is unknown or a competing autoscaler runs.
    pub(super) fn is_observe_only(&self) -> bool {
        self.start.mode.or_else(|| self.revisions.mode()) == Some(Mode::Observe)
    }

    /// Returns true if the mode allows handling of interrupted instances.
    pub(super) fn handles_interruptions(&self) -> bool {
        self.mode() != Mode::Observe
    }

    fn handle_event(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.action_failures.record_event(&event, self.now);
        match event {
            Event::StateLoaded(end) => self.on_state_loaded(end),
            Event::StateSaved(end) => self.on_state_saved(&end, &mut effects),
            Event::BranchRead(read) => self.on_branch_read(read),
            Event::CommitRead { commit, read } => self.on_commit_read(&commit, read),
            Event::Observed(observed) => self.on_observed(observed),
            Event::Planned { ticket, plan, took } => {
                self.on_planned(ticket, plan, took, &mut effects);
            }
            Event::ApplyProgressed { ticket, event } => self.on_apply_progress(ticket, &event),
            Event::OfferingAttemptRequested { ticket, address, attempt } => {
                self.on_offering_attempt_requested(ticket, address, attempt, &mut effects);
            }
            Event::ApplyFinished { ticket, result: end } => self.on_apply_finished(ticket, end),
            Event::Cordoned { instance, result: end } => self.on_cordoned(&instance, &end),
            Event::Uncordoned { instance, result: end } => self.on_uncordoned(&instance, &end),
            Event::CordonedWithoutLease { node: _, result: end } => {
                self.on_cordoned_without_lease(&end);
            }
            Event::Evicted { instance, results } => self.on_evicted(&instance, &results),
            Event::TerminateFinished { instance, result: end } => {
                self.on_terminated(&instance, &end);
            }
            Event::NodeDeleted { instance, result: end } => self.on_node_deleted(&instance, &end),
            Event::Acknowledged { receipt: _, result: end } => self.on_acknowledged(&end),
            Event::PodsNominated(answers) => self.on_pods_nominated(answers),
            Event::NodesOpened(batch) => self.on_nodes_opened(batch),
            Event::Signal(signal) => self.on_signal(signal, &mut effects),
            Event::PlannerMissing { ticket } => self.on_planner_missing(ticket),
            Event::Timer => {}
        }
        effects
    }

    fn on_state_loaded(&mut self, end: Result<Box<PersistedState>, PortError>) {
        let now = self.now;
        self.persistence.finish_load(end.as_deref().ok(), now);
        let Ok(mut persisted) = end else {
            self.counters.count_error("state");
            return;
        };
        persisted.clamp_times(now);
        self.restore_interruptions(&persisted);
        persisted.take_over(now);
        inflight_launches::take_over(&mut persisted.in_doubt_launches, now);
        // Earlier observations report launches, too.
        if let Some(seen) = self.observation.latest.as_ref().filter(|seen| seen.is_complete()) {
            persisted.merge_observed(seen, now);
        }
        // Recent launches of any client may not be visible yet.
        for launch in &persisted.launches {
            self.observation.unobserved.note_launch(&launch.instance, launch.at.min(now));
        }
        self.revisions.serve_persisted(&mut persisted, now);
        self.persistence.loaded = Some(*persisted);
        self.interruptions.forget_persisted();
        self.on_interruptions_persisted();
    }

    fn on_state_saved(&mut self, end: &Result<(), PortError>, effects: &mut Vec<Effect>) {
        self.persistence.finish_save(end.is_ok(), self.now);
        if end.is_ok() {
            self.on_interruptions_persisted();
        } else {
            self.on_state_unsaved(effects);
        }
    }

    /// Drops what waits for a save that failed: an apply must not start before its changes are
    /// counted.
    pub(super) fn on_state_unsaved(&mut self, effects: &mut Vec<Effect>) {
        self.counters.count_error("state");
        self.drop_unpersisted(effects);
        self.planning.replan_at = self.persistence.retry.at;
    }

    /// Drops applies and offering attempts that wait until they are persisted.
    fn drop_unpersisted(&mut self, effects: &mut Vec<Effect>) {
        self.drop_deferred_applies();
        self.applies.refuse_attempts(effects);
    }

    fn on_observed(&mut self, observed: Arc<Observed>) {
        let now = self.now;
        if observed.is_complete() {
            self.on_complete_observation(&observed);
        } else {
            self.counters.count(Counter::ClusterReadsPartial);
            for (name, _) in
                observed.sources.iter().filter(|(_, source)| **source != Completeness::Complete)
            {
                self.counters.count_error(name);
            }
            self.observation.reject(&observed, now);
        }
        let refresh = self.revisions.settings().map_or(BUSY_REFRESH, |settings| settings.refresh);
        let is_busy = !self.interruptions.all.is_empty()
            || self.opening.has_closed_nodes()
            || self.observation.unobserved.missing_launch(&observed).is_some();
        if observed.has_cluster() {
            self.opening.note_pending_pods(&observed, now);
        }
        let next = self.opening.next_observation(&observed, self.steers(), now);
        let refresh = next.map_or(refresh, |next| refresh.min(next.duration_since(now)));
        self.observation.schedule(refresh, is_busy, now);
        self.observation.summary = Some(status_snapshot::summarize(&observed));
        self.observation.latest = Some(observed);
    }

    fn on_complete_observation(&mut self, observed: &Arc<Observed>) {
        let now = self.now;
        self.counters.count(Counter::ClusterReadsDone);
        self.observation.accept(observed, now);
        let booting = self.booting_instances();
        if let Some(persisted) = &mut self.persistence.loaded {
            persisted.merge_observed(observed, now);
            inflight_launches::forget_observed(&mut persisted.in_doubt_launches, observed);
        }
        self.time_observation(observed, &booting);
        self.detect_competing_autoscalers(observed);
        if self.planning.launches_ahead.has_uncounted_pending_pods(observed) {
            // Delivery tools often apply a commit before the controller reads it.
            self.revisions.reads.bring_forward_after(AHEAD_READ_INTERVAL, now);
        }
        self.planning.note_failed_lookups(observed, now);
        self.observe_node_health(observed);
        self.planning.pod_event_times.observe(observed, now);
        self.nominations.record_bindings(observed, &mut self.counters);
        let unobserved = &self.observation.unobserved;
        let planning = &mut self.planning;
        forget_planned_pods(
            &mut planning.planned_pods,
            &mut planning.launched_demand,
            observed,
            unobserved,
        );
        if planning.planned_pods.is_empty() {
            planning.launched_demand.clear();
            planning.unplaced_since.clear();
        }
        self.observation.number = self.observation.last_number();
        self.observation.latest = Some(Arc::clone(observed));
        self.resolve_unknown_instances();
    }

    fn on_signal(&mut self, signal: Signal, effects: &mut Vec<Effect>) {
        let now = self.now;
        match signal {
            Signal::PodPending => self.observation.note_pending_pod(now),
            Signal::WorldChanged => self.observation.reads.hint(now),
            Signal::RepositoryChanged => self.revisions.reads.hint(now),
            // The step itself publishes the status.
            Signal::Wake => {}
            Signal::Message(message) => self.on_message(message, effects),
            Signal::Request(request) => self.on_request(request),
            Signal::LeaseGained => {
                self.leadership.gain(now);
                // The previous leader may have persisted newer state.
                self.persistence.loaded = None;
                self.observation.require_next();
                // Changes that were blocked because another replica led are no longer blocked.
                self.planning.replan_at = now;
            }
            Signal::LeaseLost { holder, to_apply } => {
                self.leadership.lose(holder, to_apply);
                self.interruptions.clear();
                self.opening.clear();
                self.drop_unpersisted(effects);
                effects.push(Effect::InterruptApplies);
            }
            Signal::Shutdown => {
                self.leadership.stop();
                self.drop_unpersisted(effects);
                effects.push(Effect::InterruptApplies);
            }
        }
    }
}
