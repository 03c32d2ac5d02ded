//! Test harness that drives the controller step by step.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    ControllerState, Effect, Event, InterruptionMessage, MessageKind, Revision, Signal,
    StartOptions, step,
};
use crate::model::desired::{ControllerSettings, GuardSettings, Mode};
use crate::model::ids::InstanceId;
use crate::model::observed::{ClusterIdentity, Instance, Node, Observed, fixture};
use crate::plan::Plan;
use crate::plan::wire::WaveStep;
use crate::render::fixture as plans;

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).expect("a time")
}

/// Returns an observation with the owned instances `i-1` and `i-2` and the foreign `i-9`, each with
/// a node.
pub(super) fn world(seconds: i64) -> Observed {
    let cluster = ClusterIdentity { name: "c".into(), ..ClusterIdentity::default() };
    let mut world = Observed::empty(cluster, at(seconds));
    let all = [
        fixture::managed_instance("i-1", "c"),
        fixture::managed_instance("i-2", "c"),
        fixture::instance("i-9"),
    ];
    for instance in all {
        let id = &instance.id;
        let node = Node {
            uid: format!("uid-of-{id}").as_str().into(),
            instance: Some(id.clone()),
            created_at: at(-8_000),
            ..fixture::node(&format!("node-of-{id}"))
        };
        world.nodes.insert(node.name.clone(), node);
        let launched_at = at(-9_000);
        world.instances.insert(instance.id.clone(), Instance { launched_at, ..instance });
    }
    world
}

/// Returns a plan that removes `i-1` and keeps the others.
pub(super) fn plan_removing_one() -> Plan {
    let mut plan = Plan { applyable: true, ..plans::plan() };
    plan.capacity.waves.retain(|wave| wave.step == WaveStep::Retire);
    let wave = plan.capacity.waves.first_mut().expect("some go");
    wave.addresses.truncate(1);
    let address = wave.addresses[0].clone();
    let row = plan.resource_changes.iter_mut().find(|row| row.address == address);
    row.and_then(|row| row.change.before.as_mut()).expect("it is there").instance_id =
        Some("i-1".into());
    plan
}

/// A controller, which reports its effects on instances and messages.
pub(super) struct ControllerHarness(Option<ControllerState>);

impl ControllerHarness {
    /// Returns a controller in mode `full` that has loaded its state and read its revision.
    pub(super) fn started() -> Self {
        Self::with_mode(Mode::Full)
    }

    /// Returns such a controller in another mode.
    pub(super) fn with_mode(mode: Mode) -> Self {
        let cluster = ClusterIdentity { name: "c".into(), ..ClusterIdentity::default() };
        let (identity, mode) = ("a".to_owned(), Some(mode));
        let start = StartOptions { started_at: at(0), identity, cluster, mode, once: false };
        let mut harness = Self(Some(ControllerState::new(start)));
        harness.load_state_and_branch();
        // The first observation started before the revision was known.
        for _ in 0..2 {
            harness.step_at(0, Event::Observed(Arc::new(world(0))));
        }
        harness
    }

    /// Loads the default state and reads the branch.
    pub(super) fn load_state_and_branch(&mut self) {
        self.step_at(0, Event::StateLoaded(Ok(Box::default())));
        let revision = Revision {
            commit: "1".to_owned(),
            controller: ControllerSettings::default(),
            guard: GuardSettings::default(),
            consolidate_after: BTreeMap::new(),
            error_count: 0,
            is_empty: false,
            autoscaler_namespaces: None,
            auto_mode: false,
        };
        self.step_at(0, Event::BranchRead(Ok(Arc::new(revision))));
    }

    pub(super) fn state(&self) -> &ControllerState {
        self.0.as_ref().expect("between steps")
    }

    /// Modifies the state directly.
    pub(super) fn modify(&mut self, change: impl FnOnce(&mut ControllerState)) {
        change(self.0.as_mut().expect("between steps"));
    }

    pub(super) fn step_at(&mut self, seconds: i64, event: Event) -> Vec<String> {
        let (state, effects) = step(self.0.take().expect("between steps"), event, at(seconds));
        self.0 = Some(state);
        let summary = |effect: &Effect| match effect {
            Effect::CordonWithoutLease { node } => {
                Some(format!("shields {} {}", node.name, node.uid))
            }
            Effect::Cordon { node, mark: None, .. } => Some(format!("uncordons {}", node.name)),
            Effect::Cordon { node, mark: Some(_), .. } => Some(format!("cordons {}", node.name)),
            Effect::Acknowledge { receipt } => Some(format!("takes off {receipt}")),
            Effect::Evict { instance, .. } => Some(format!("drains {instance}")),
            Effect::Terminate { instance, .. } => Some(format!("ends {instance}")),
            Effect::DeleteNode { node, .. } => Some(format!("removes {}", node.name)),
            Effect::LoadState
            | Effect::SaveState(_)
            | Effect::ReadBranch
            | Effect::ReadCommit { .. }
            | Effect::Observe
            | Effect::Plan { .. }
            | Effect::Apply { .. }
            | Effect::AnswerOfferingAttempt { .. }
            | Effect::InterruptApplies
            | Effect::Nominate { .. }
            | Effect::WakeAt(_)
            | Effect::Exit => None,
        };
        effects.iter().filter_map(summary).collect()
    }

    /// Finishes the planning run in progress with this plan.
    pub(super) fn finish_planning(&mut self, seconds: i64, plan: Plan) -> Vec<String> {
        let ticket = self.state().planning.run.as_ref().expect("a plan is being made").ticket;
        let (plan, took) = (Arc::new(plan), SignedDuration::ZERO);
        self.step_at(seconds, Event::Planned { ticket, plan, took })
    }

    /// Finishes saving until nothing is left to save.
    pub(super) fn finish_saving(&mut self, seconds: i64) -> Vec<String> {
        let mut done = Vec::new();
        while self.state().persistence.is_saving() {
            done.extend(self.step_at(seconds, Event::StateSaved(Ok(()))));
        }
        done
    }

    /// Sends an interruption message for these instances.
    pub(super) fn interrupt(
        &mut self,
        seconds: i64,
        kind: MessageKind,
        ids: &[&str],
        within: Option<i64>,
    ) -> Vec<String> {
        let instances = ids.iter().copied().map(InstanceId::from).collect();
        let deadline = within.map(|within| at(seconds + within));
        let receipt = "r".to_owned();
        let message = InterruptionMessage { receipt, kind, instances, deadline, sent: None };
        self.step_at(seconds, Event::Signal(Signal::Message(message)))
    }
}
