//! Builds the published status.

use jiff::{SignedDuration, Timestamp};

use super::interruption::Interruption;
use super::state::ControllerState;
use super::status::{
    ApprovedBy, InterruptionPhase, PublishedPlan, SourceState, Status, WorldStatus,
};
use crate::apply::waits_for_node;
use crate::model::observed::{Instance, Observed};

impl ControllerState {
    /// Returns true once the controller has exited.
    pub fn has_ended(&self) -> bool {
        self.leadership.has_exited()
    }

    /// Returns when the controller wakes up by itself.
    pub fn wakes_at(&self) -> Option<Timestamp> {
        self.wakes_at
    }

    /// Returns a description of the competing autoscaler. While it runs, the controller only plans.
    pub fn competing_autoscaler(&self) -> Option<&str> {
        self.competing_autoscalers.description()
    }

    /// Returns true if a successor would have to finish work: a running apply, or a drain.
    pub fn is_busy(&self) -> bool {
        let drains = |interruption: &Interruption| {
            matches!(
                interruption.phase(),
                InterruptionPhase::Draining | InterruptionPhase::Terminating
            ) && !interruption.is_waiting_for_ec2()
        };
        !self.applies.is_empty() || self.interruptions.all.values().any(drains)
    }

    /// Returns true while pods wait for a launch in progress. Less urgent work waits.
    pub fn has_urgent_launches(&self) -> bool {
        self.observation.has_waiting_pods() || self.applies.is_launching()
    }

    /// Returns true if interruption messages may be received: the mode allows handling, the
    /// revision is known, and there is room. A received message is hidden from other consumers for
    /// a while, so a controller that only plans leaves it to them. Messages are also received while
    /// an apply, which receives none, holds the lease.
    pub fn accepts_messages(&self) -> bool {
        let heeds = (self.leadership.is_leader() || self.leadership.is_held_by_apply())
            && self.handles_interruptions();
        heeds
            && self.revisions.served.is_some()
            && !self.leadership.is_stopping()
            && self.interruptions.messages.has_room()
    }

    /// Returns the status as a plain value.
    pub fn status(&self) -> Status {
        let persisted = self.persistence.loaded.as_ref();
        let quarantine = persisted.into_iter().flat_map(|persisted| &persisted.quarantine);
        Status {
            now: self.now,
            started_at: self.start.started_at,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            identity: self.start.identity.clone(),
            is_leader: self.leadership.is_leader(),
            lease_holder: self.leadership.holder().map(str::to_owned),
            is_lease_held_by_apply: self.leadership.is_held_by_apply(),
            cluster: self.start.cluster.clone(),
            mode: self.mode(),
            suspended: persisted.and_then(|persisted| persisted.suspended.clone()),
            break_glass: persisted.and_then(|persisted| persisted.break_glass.clone()),
            breakers: persisted.map(|persisted| persisted.breakers.clone()).unwrap_or_default(),
            repository: self.revisions.to_status(),
            world: self.observation.summary.clone().map(|summary| self.with_current_age(summary)),
            plan: self.planning.current.as_ref().map(|current| PublishedPlan {
                plan: current.plan.clone(),
                since: current.since,
                blocked: current.blocked.clone(),
            }),
            in_progress: self.applies.changes_in_progress(),
            finished_changes: self.applies.finished_changes(),
            current_approval: self.current_approval(),
            partial_applies: self.applies.partial_applies(self.planning.current_digest()),
            history: self.applies.history.clone(),
            hourly_costs: self.planning.costs.entries().to_vec(),
            superseded: self.planning.superseded.clone(),
            history_error: None,
            interrupted: self.interruption_statuses(),
            withheld_repairs: self.node_health.withheld.clone(),
            uncordoned: self.interruptions.uncordons.done().to_vec(),
            unavailable_offerings: persisted
                .map(|persisted| persisted.unavailable_offerings.exclusions(self.now))
                .unwrap_or_default(),
            quarantined: quarantine
                .filter(|(_, quarantine)| self.now < quarantine.until)
                .map(|(pool, quarantine)| {
                    (pool.clone(), (quarantine.why.clone(), quarantine.until))
                })
                .collect(),
            failing_actions: self.action_failures.visible(self.now),
            persisted_state: self.persistence.size,
            competing_autoscaler: self.competing_autoscaler().map(str::to_owned),
            counters: self.counters.clone(),
            durations: self.timing.measured.clone(),
            wakes_at: self.wakes_at,
        }
    }

    fn current_approval(&self) -> Option<ApprovedBy> {
        let current = self.planning.current_digest()?;
        let mut runs = self.applies.runs.values();
        let run = runs.find(|run| run.plan.capacity.digest == *current)?;
        Some(run.record.approved.clone())
    }

    fn with_current_age(&self, mut summary: WorldStatus) -> WorldStatus {
        let age = self.now.duration_since(summary.taken_at);
        summary.pending_for = summary.pending_for.map(|waited| waited.saturating_add(age));
        summary.age = age;
        summary.reads.clone_from(&self.observation.reads.result);
        summary
    }
}

/// Returns the summary of an observation, as of its time.
pub(super) fn summarize(world: &Observed) -> WorldStatus {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let ours = |i: &&Instance| i.is_active() && i.is_managed_by(&world.cluster.name);
    let active = world.pods.iter().filter(|pod| pod.is_active());
    let waiting = || world.pods.iter().filter(|pod| waits_for_node(pod, world));
    let first = waiting().map(|pod| pod.created_at).min();
    WorldStatus {
        taken_at: world.taken_at,
        age: SignedDuration::ZERO,
        sources: world.sources.clone(),
        nodes: count(world.nodes.len()),
        ready: count(world.nodes.values().filter(|node| node.ready).count()),
        instances: count(world.instances.values().filter(ours).count()),
        pods: count(active.count()),
        pending: count(waiting().count()),
        pending_for: first.map(|at| world.taken_at.duration_since(at)),
        reads: SourceState::default(),
    }
}
