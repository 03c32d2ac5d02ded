//! Durations of reads, plans, applies and instance lifecycles, from the times of events.
//!
//! No clock is read. Durations from observations are as exact as the interval between them; events
//! of an apply carry their own time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::counters::Counter;
use super::event::{PlanScope, Ticket};
use super::reconcile;
use super::state::ControllerState;
use crate::apply::is_pending;
use crate::apply::{Event, Step};
use crate::model::ids::{InstanceId, Uid};
use crate::model::observed::{InstanceState, Observed, Pod, tag};
use crate::telemetry::histogram::{Histograms, Measurement};

/// Most pods that are timed at once until they have a node.
const TIMED_PODS_MAX: usize = 20_000;
/// Terminations are timed for at most this long.
const TERMINATION_TIMEOUT: SignedDuration = SignedDuration::from_hours(1);

/// Measured durations, and measurements in progress.
#[derive(Debug, Clone, Default)]
pub(super) struct Timing {
    pub(super) measured: Histograms,
    /// Creation times of pods observed without a node.
    pending_pods: BTreeMap<Uid, Timestamp>,
    /// Times at which an apply cordoned the node of an instance to drain it.
    cordoned: BTreeMap<InstanceId, Timestamp>,
    /// Terminations requested in the last hour.
    terminations: BTreeMap<InstanceId, Termination>,
}

/// A requested termination.
#[derive(Debug, Clone, Copy)]
struct Termination {
    at: Timestamp,
    /// True once an observation shows the end.
    ended: bool,
}

impl Timing {
    /// Measures pods that have a node now, and starts to time new pending ones.
    fn time_pods(&mut self, observed: &Observed) {
        let at = observed.taken_at;
        let mut waiting = BTreeMap::new();
        for pod in &observed.pods {
            if is_pending(pod) {
                if waiting.len() < TIMED_PODS_MAX {
                    waiting.insert(pod.uid.clone(), pod.created_at);
                }
            } else if let Some(created) = self.pending_since(pod) {
                self.measured.note(Measurement::PodBound, at.duration_since(created));
            }
        }
        self.pending_pods = waiting;
    }

    fn pending_since(&self, pod: &Pod) -> Option<Timestamp> {
        if self.pending_pods.is_empty() || pod.node.is_none() {
            return None;
        }
        self.pending_pods.get(&pod.uid).copied()
    }

    /// Measures requested terminations that have ended.
    fn time_terminations(&mut self, observed: &Observed) {
        let at = observed.taken_at;
        for (id, termination) in &mut self.terminations {
            let instance = observed.instances.get(id);
            let gone = instance.is_none_or(|instance| instance.state == InstanceState::Terminated);
            if gone && !termination.ended {
                termination.ended = true;
                self.measured.note(Measurement::Termination, at.duration_since(termination.at));
            }
        }
        self.terminations
            .retain(|_, termination| at.duration_since(termination.at) < TERMINATION_TIMEOUT);
        // An instance that ended for another reason reports no end of its drain.
        self.cordoned.retain(|id, _| observed.instances.contains_key(id));
    }
}

impl ControllerState {
    /// Measures a complete observation. Instances that were not Ready before it are `booting`.
    pub(super) fn time_observation(&mut self, observed: &Observed, booting: &[InstanceId]) {
        let began = self.observation.reads.started_at;
        self.time_since(Measurement::Read { source: "cluster" }, began);
        self.timing.time_pods(observed);
        self.timing.time_terminations(observed);
        let launched = self.persistence.loaded.iter().flat_map(|persisted| &persisted.launches);
        for launch in launched.filter(|launch| booting.contains(&launch.instance)) {
            if let Some(ready) = launch.ready_at {
                // A process that learned of the launch by observation knows it later than it
                // happened.
                let found = observed.instances.get(&launch.instance);
                let since = found.map_or(launch.at, |found| found.launched_at.min(launch.at));
                let measurement = Measurement::NodeReady { pool: launch.pool.to_string() };
                self.timing.measured.note(measurement, ready.duration_since(since));
            }
        }
    }

    /// Returns instances known since their launch that no observation has shown Ready.
    pub(super) fn booting_instances(&self) -> Vec<InstanceId> {
        let launched = self.persistence.loaded.iter().flat_map(|persisted| &persisted.launches);
        let boots = launched.filter(|launch| launch.from_start && launch.ready_at.is_none());
        boots.map(|launch| launch.instance.clone()).collect()
    }

    /// Measures an event of an apply.
    pub(super) fn time_apply_event(&mut self, ticket: Ticket, event: &Event, why: &str) {
        let Some(run) = self.applies.runs.get(&ticket) else { return };
        let row = |event: &Event| {
            let address = event.address.as_ref()?;
            run.plan.resource_changes.iter().find(|row| row.address == *address)
        };
        let of = || row(event).and_then(reconcile::instance_of);
        if let Step::Terminating { instance_id } = &event.step {
            let since = self.timing.cordoned.remove(instance_id);
            self.time_termination(instance_id, since, why, event.at);
        } else if matches!(event.step, Step::Cordoned { .. }) {
            let of = of();
            self.timing.cordoned.extend(of.map(|instance| (instance, event.at)));
        } else if matches!(event.step, Step::Uncordoned { .. })
            && let Some(instance) = of()
        {
            self.timing.cordoned.remove(&instance);
        }
    }

    /// Measures the drain and the lifetime of an instance whose termination was requested. `since`
    /// is the start of its evictions.
    pub(super) fn time_termination(
        &mut self,
        instance: &InstanceId,
        since: Option<Timestamp>,
        why: &str,
        at: Timestamp,
    ) {
        // A repeated request was measured before.
        if self.timing.terminations.contains_key(instance) {
            return;
        }
        if let Some(since) = since {
            let measurement = Measurement::Drain { reason: why.to_owned() };
            self.timing.measured.note(measurement, at.duration_since(since));
        }
        self.timing.terminations.insert(instance.clone(), Termination { at, ended: false });
        self.time_lifetime(instance, at);
    }

    /// Measures the lifetime of an instance that ended without a request.
    pub(super) fn time_external_termination(&mut self, instance: &InstanceId) {
        if !self.timing.terminations.contains_key(instance) {
            self.time_lifetime(instance, self.now);
        }
    }

    fn time_lifetime(&mut self, instance: &InstanceId, at: Timestamp) {
        let found =
            self.observation.latest.as_ref().and_then(|world| world.instances.get(instance));
        let Some(found) = found else { return };
        // Group members belong to no pool of ours.
        let pool = found.tags.get(tag::POOL).cloned().unwrap_or_default();
        let ran = at.duration_since(found.launched_at);
        self.timing.measured.note(Measurement::NodeLifetime { pool }, ran);
    }

    /// Measures a duration that began at `since` and ends now.
    pub(super) fn time_since(&mut self, measurement: Measurement, since: Timestamp) {
        self.timing.measured.note(measurement, self.now.duration_since(since));
    }

    /// Measures a plan with these limits.
    pub(super) fn time_planning(&mut self, limits: &PlanScope, took: SignedDuration) {
        self.counters.count(Counter::PlansMade);
        let adds = limits.changeable_nodes.as_ref().is_some_and(BTreeSet::is_empty);
        let scope = if adds { "additive" } else { "all" };
        self.timing.measured.note(Measurement::Plan { scope }, took);
    }

    /// Measures the step that led to this state, by the clock of the caller.
    pub(super) fn time_step(&mut self, took: SignedDuration) {
        self.timing.measured.note(Measurement::Step, took);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::apply::{ApplyStatus, Receipt};
    use crate::controller::event::TerminateOutcome;
    use crate::controller::{
        Event as ControllerEvent, InterruptionMessage, LaunchRecord, MessageKind, PersistedState,
        Signal,
    };
    use crate::model::ids::Address;
    use crate::plan::wire::WaveStep;
    use crate::testing::controller::{ControllerHarness, at, plan_removing_one, world};
    use crate::testing::sample_plan;
    use crate::testing::world::pod;

    /// Returns the number of measurements, and their sum.
    fn measured(harness: &ControllerHarness, measurement: &Measurement) -> (u64, Duration) {
        let all = harness.state().status().durations;
        let found = all.iter().find(|(known, _)| *known == measurement);
        let found = found.map(|(_, all)| (all.count(), Duration::from_micros(all.micros)));
        found.unwrap_or_default()
    }

    const READ: Measurement = Measurement::Read { source: "cluster" };

    fn lifetime() -> Measurement {
        Measurement::NodeLifetime { pool: "web".to_owned() }
    }

    fn once(seconds: u64) -> (u64, Duration) {
        (1, Duration::from_secs(seconds))
    }

    fn observe(harness: &mut ControllerHarness, seconds: i64, world: Observed) {
        harness.observe(seconds, Observed { taken_at: at(seconds), ..world });
    }

    #[test]
    fn only_pending_pods_are_timed_until_bound() {
        let mut harness = ControllerHarness::leading();
        let with = |node: Option<&str>| {
            let mut world = world(0);
            let waits = Pod { created_at: at(-3), node: node.map(Into::into), ..pod("waits") };
            let never = Pod { node: Some("n".into()), ..pod("never-waited") };
            world.pods = vec![Arc::new(waits), Arc::new(never)];
            world
        };
        observe(&mut harness, 2, with(None));
        assert_eq!(measured(&harness, &Measurement::PodBound), (0, Duration::ZERO));
        observe(&mut harness, 9, with(Some("n")));
        observe(&mut harness, 14, with(Some("n")));
        assert_eq!(measured(&harness, &Measurement::PodBound), once(12));
    }

    #[test]
    fn readiness_is_timed_from_launch_to_observation() {
        let mut harness = ControllerHarness::leading();
        let launch = |instance: &str, from_start| LaunchRecord {
            instance: instance.into(),
            pool: "web".into(),
            // Another process launched it.
            at: at(-5),
            ready_at: None,
            useful: false,
            from_start,
            passed_over: false,
            launched_for: None,
        };
        harness.modify(|state| {
            // An earlier process may have observed one of them.
            let launched = vec![launch("i-1", true), launch("i-2", false)];
            state.persistence.loaded =
                Some(PersistedState { launches: launched, ..PersistedState::default() });
        });
        for seconds in [4, 9] {
            let mut shows = world(seconds);
            shows.instances.get_mut("i-1").expect("it is there").launched_at = at(-20);
            observe(&mut harness, seconds, shows);
        }
        assert_eq!(
            measured(&harness, &Measurement::NodeReady { pool: "web".to_owned() }),
            once(24)
        );
    }

    /// Returns a scenario that carries out a plan to remove `i-1`.
    fn removes() -> (ControllerHarness, Ticket, Address) {
        let mut harness = ControllerHarness::leading();
        harness.modify(|state| {
            let head = Arc::make_mut(state.revisions.served.as_mut().expect("read"));
            head.controller.removal_delay = SignedDuration::ZERO;
        });
        observe(&mut harness, 2, world(2));
        harness.finish_planning(2, plan_removing_one());
        if harness.state().applies.runs.is_empty() {
            harness.finish_planning(3, plan_removing_one());
        }
        harness.finish_saving(4);
        let ticket = *harness.state().applies.runs.keys().next().expect("it is in progress");
        (harness, ticket, plan_removing_one().capacity.waves[0].addresses[0].clone())
    }

    #[test]
    fn drains_and_terminations_use_times_of_apply_events() {
        let (mut harness, ticket, address) = removes();
        let report = |harness: &mut ControllerHarness, seconds, step| {
            let event = Event { at: at(seconds), address: Some(address.clone()), step };
            // The event arrives later.
            harness.step_at(seconds + 1, ControllerEvent::ApplyProgressed { ticket, event });
        };
        report(&mut harness, 10, Step::Cordoned { node: "n".into() });
        report(&mut harness, 40, Step::Terminating { instance_id: "i-1".into() });
        let plan = plan_removing_one();
        let all = harness.state().status().durations;
        let is_drain = |measured: &Measurement| matches!(measured, Measurement::Drain { .. });
        let drains: Vec<_> = all.iter().filter(|(measured, _)| is_drain(measured)).collect();
        let [(_, drain)] = drains[..] else { panic!("{drains:?}") };
        assert_eq!((drain.count(), drain.micros), (1, 30_000_000), "{plan:?}");
        // The instance ran since long before.
        assert_eq!(measured(&harness, &lifetime()).0, 1);
        let mut ends = world(70);
        ends.instances.get_mut("i-1").expect("it is there").state = InstanceState::Terminated;
        observe(&mut harness, 70, ends);
        assert_eq!(measured(&harness, &Measurement::Termination), once(30));
        let began = harness.state().applies.runs[&ticket].record.started_at;
        let receipt = Receipt {
            plan_id: plan.capacity.plan_id,
            digest: plan.capacity.digest,
            outcomes: Vec::new(),
            started_at: at(3),
            finished_at: at(75),
            verdict: ApplyStatus::Applied,
        };
        harness
            .step_at(75, ControllerEvent::ApplyFinished { ticket, result: Ok(Box::new(receipt)) });
        let took = at(75).duration_since(began).unsigned_abs();
        assert_eq!(measured(&harness, &Measurement::Apply { verdict: "applied" }), (1, took));
    }

    #[test]
    fn reads_plans_messages_and_launches_are_timed() {
        let mut harness = ControllerHarness::leading();
        harness.step_at(2, ControllerEvent::Signal(Signal::PodPending));
        let message = InterruptionMessage {
            receipt: "r".to_owned(),
            kind: MessageKind::Rebalance,
            instances: Vec::new(),
            deadline: None,
            sent: Some(at(-5)),
        };
        harness.step_at(3, ControllerEvent::Signal(Signal::Message(message)));
        assert_eq!(measured(&harness, &Measurement::MessageAge { kind: "rebalance" }), once(8));
        let ((reads, took), began) =
            (measured(&harness, &READ), harness.state().observation.reads.started_at);
        assert!(began < at(4));
        observe(&mut harness, 4, world(4));
        let took = took + at(4).duration_since(began).unsigned_abs();
        assert_eq!(measured(&harness, &READ), (reads + 1, took));
        let launches = sample_plan::plan().only(WaveStep::Launch);
        harness.finish_planning(6, launches.clone());
        if harness.state().planning.run.is_some() {
            harness.finish_planning(6, launches);
        }
        assert_eq!(measured(&harness, &Measurement::Reaction), once(4));
        assert!(measured(&harness, &Measurement::Plan { scope: "all" }).0 > 0);
        harness.modify(|state| state.time_step(SignedDuration::from_millis(3)));
        assert_eq!(measured(&harness, &Measurement::Step).1, Duration::from_millis(3));
    }

    #[test]
    fn repeated_termination_is_timed_once() {
        let mut harness = ControllerHarness::leading();
        observe(&mut harness, 2, world(2));
        harness.interrupt(3, MessageKind::SpotInterruption, &["i-1"], Some(120));
        for seconds in [10, 11] {
            let end = Ok(TerminateOutcome::Called);
            let does = harness.step_at(
                seconds,
                ControllerEvent::TerminateFinished { instance: "i-1".into(), result: end },
            );
            assert_eq!(does, [""; 0], "the request was sent just now");
        }
        let mut ends = world(20);
        ends.instances.get_mut("i-1").expect("it is there").state = InstanceState::Terminated;
        observe(&mut harness, 20, ends);
        assert_eq!(measured(&harness, &Measurement::Termination), once(10));
        assert_eq!(measured(&harness, &lifetime()).0, 1);
    }
}
