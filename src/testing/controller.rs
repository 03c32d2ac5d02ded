//! Test harness that drives the controller step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::sample_plan;
use super::world;
use crate::controller::{
    ControllerState, Effect, Event, InterruptionMessage, MessageKind, Revision, Signal,
    StartOptions, Status, step,
};
use crate::model::desired::{ApplyConditions, ControllerSettings, Mode, UnresolvedPolicy};
use crate::model::ids::InstanceId;
use crate::model::observed::{ClusterIdentity, Instance, Node, Observed};
use crate::plan::Plan;
use crate::plan::wire::WaveStep;

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).expect("a time")
}

/// Returns an observation with the owned instances `i-1` and `i-2` and the foreign `i-9`, each with
/// a node.
pub(crate) fn world(seconds: i64) -> Observed {
    let all = [
        world::managed_instance("i-1", "c"),
        world::managed_instance("i-2", "c"),
        world::instance("i-9"),
    ];
    all.into_iter().fold(Observed::of_cluster("c", at(seconds)), |world, instance| {
        let id = &instance.id;
        let node = Node {
            uid: format!("uid-of-{id}").as_str().into(),
            instance: Some(id.clone()),
            created_at: at(-8_000),
            ..world::node(&format!("node-of-{id}"))
        };
        world.with_instance(Instance { launched_at: at(-9_000), ..instance }).with_node(node)
    })
}

/// Returns the status of a controller that has just started.
pub(crate) fn initial_status() -> Status {
    let start = StartOptions {
        started_at: Timestamp::UNIX_EPOCH,
        identity: "a".to_owned(),
        cluster: ClusterIdentity::default(),
        mode: Some(Mode::Observe),
        once: false,
    };
    ControllerState::new(start).status()
}

/// Returns a revision without settings.
pub(crate) fn revision(commit: &str) -> Revision {
    Revision {
        commit: commit.to_owned(),
        origin: None,
        pool_limits: BTreeMap::new(),
        controller: ControllerSettings::default(),
        guard: ApplyConditions::default(),
        consolidate_after: BTreeMap::new(),
        error_count: 0,
        is_empty: false,
        autoscaler_namespaces: None,
        auto_mode: false,
        policies: BTreeSet::new(),
        fleet_digest: String::new(),
        unresolved: UnresolvedPolicy::default(),
        cluster_pools: None,
        verified: None,
    }
}

/// Returns a plan that removes `i-1` and keeps the others.
pub(crate) fn plan_removing_one() -> Plan {
    let mut plan = sample_plan::plan().only(WaveStep::Retire);
    let wave = plan.capacity.waves.first_mut().expect("some go");
    wave.addresses.truncate(1);
    let address = wave.addresses[0].clone();
    let before = plan.row_mut(&address).change.before.as_mut().expect("a running instance");
    before.instance_id = Some("i-1".into());
    plan
}

/// A controller, which reports its effects on instances and messages.
pub(crate) struct ControllerHarness(Option<ControllerState>);

impl ControllerHarness {
    /// Returns a controller in mode `full` that has loaded its state and read its revision.
    pub(crate) fn started() -> Self {
        Self::with_mode(Mode::Full)
    }

    /// Returns such a controller in another mode.
    pub(crate) fn with_mode(mode: Mode) -> Self {
        Self::new(Some(mode))
    }

    /// Returns such a controller in the mode of its repository.
    pub(crate) fn started_without_mode() -> Self {
        Self::new(None)
    }

    fn new(mode: Option<Mode>) -> Self {
        let cluster = ClusterIdentity { name: "c".into(), ..ClusterIdentity::default() };
        let identity = "a".to_owned();
        let start = StartOptions { started_at: at(0), identity, cluster, mode, once: false };
        let mut harness = Self(Some(ControllerState::new(start)));
        harness.load_state_and_branch();
        // The first observation started before the revision was known.
        for _ in 0..2 {
            harness.observe(0, world(0));
        }
        harness
    }

    /// Loads the default state and reads the branch.
    pub(crate) fn load_state_and_branch(&mut self) {
        self.step_at(0, Event::StateLoaded(Ok(Box::default())));
        self.step_at(0, Event::BranchRead(Ok(Arc::new(revision("1")))));
    }

    /// Returns a controller in mode `full` that leads.
    pub(crate) fn leading() -> Self {
        Self::leading_in(Mode::Full)
    }

    /// Returns such a controller in another mode.
    pub(crate) fn leading_in(mode: Mode) -> Self {
        let mut harness = Self::with_mode(mode);
        harness.step_at(1, Event::Signal(Signal::LeaseGained));
        harness.load_state_and_branch();
        harness
    }

    pub(crate) fn observe(&mut self, seconds: i64, world: Observed) -> Vec<String> {
        self.step_at(seconds, Event::Observed(Arc::new(world)))
    }

    pub(crate) fn state(&self) -> &ControllerState {
        self.0.as_ref().expect("between steps")
    }

    /// Changes the served revision.
    pub(crate) fn edit_revision(&mut self, edit: impl FnOnce(&mut Revision)) {
        self.modify(|state| edit(state.served_revision()));
    }

    /// Modifies the state directly.
    pub(crate) fn modify(&mut self, change: impl FnOnce(&mut ControllerState)) {
        change(self.0.as_mut().expect("between steps"));
    }

    pub(crate) fn step_at(&mut self, seconds: i64, event: Event) -> Vec<String> {
        let (state, effects) = step(self.0.take().expect("between steps"), event, at(seconds));
        self.0 = Some(state);
        let summary = |effect: &Effect| match effect {
            Effect::CordonWithoutLease { node } => {
                Some(format!("cordons without lease {} {}", node.name, node.uid))
            }
            Effect::Uncordon { node, .. } => Some(format!("uncordons {}", node.name)),
            Effect::Cordon { node, .. } => Some(format!("cordons {}", node.name)),
            Effect::Acknowledge { receipt } => Some(format!("takes off {receipt}")),
            Effect::Evict { instance, .. } => Some(format!("drains {instance}")),
            Effect::Terminate { instance, .. } => Some(format!("ends {instance}")),
            Effect::DeleteNode { node, .. } => Some(format!("removes {}", node.name)),
            Effect::LoadState
            | Effect::SaveState(_)
            | Effect::ReadBranch { .. }
            | Effect::ReadCommit { .. }
            | Effect::Observe
            | Effect::Plan { .. }
            | Effect::Apply { .. }
            | Effect::AnswerOfferingAttempt { .. }
            | Effect::InterruptApplies
            | Effect::NominatePods { .. }
            | Effect::OpenNodes { .. }
            | Effect::WakeAt(_)
            | Effect::Exit => None,
        };
        effects.iter().filter_map(summary).collect()
    }

    /// Finishes the planning run in progress with this plan.
    pub(crate) fn finish_planning(&mut self, seconds: i64, plan: Plan) -> Vec<String> {
        let ticket = self.state().planning_ticket().expect("a plan is being made");
        let (plan, took) = (Arc::new(plan), SignedDuration::ZERO);
        self.step_at(seconds, Event::Planned { ticket, plan, took })
    }

    /// Finishes saving until nothing is left to save.
    pub(crate) fn finish_saving(&mut self, seconds: i64) -> Vec<String> {
        let mut done = Vec::new();
        while self.state().is_saving() {
            done.extend(self.step_at(seconds, Event::StateSaved(Ok(()))));
        }
        done
    }

    /// Sends an interruption message for these instances.
    pub(crate) fn interrupt(
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
