//! Tests of applies without obstacles, and helpers of the other tests.

mod batches;
mod capacity;
mod cordons;
mod crashes;
mod drains;
mod groups;
mod karpenter_workshop;
mod lease;
mod node_startup;
mod opening;
mod preconditions;
mod steering;
mod termination_grace;

use std::collections::BTreeSet;

use jiff::SignedDuration;

use super::*;
use crate::apply::ports::LaunchOutcome;
use crate::model::ids::WorkloadKind;
use crate::model::observed::{Instance, Node, PodPhase, tag};
use crate::plan::change_id;
use crate::plan::wire::{Action, Condition, NodeState};
use crate::simulator::{PortCall, World};
use crate::testing::apply::{
    Fault, FaultyPorts, active, all, apply_over, fleet, plan, planned_fleet, settings,
    without_retirements, workloads,
};
use crate::testing::plan::address;
use crate::testing::simulator::{id, launch, pods, request, run};

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

fn outcome<'r>(receipt: &'r Receipt, key: &str, step: WaveStep) -> &'r Outcome {
    let found = receipt.outcomes.iter().find(|c| c.address == address(key) && c.step == step);
    &found.expect("one outcome for each half of a row").outcome
}

fn applied(plan: &Plan, world: &World) -> Receipt {
    apply_over(plan, world, &settings()).0.expect("not refused")
}

/// Returns the writes since the setup of the fleet.
fn writes(world: &World) -> Vec<PortCall> {
    let is_setup = |call: &PortCall| match call {
        PortCall::Launch { request, .. } => !request.tags.contains_key(tag::SPEC),
        PortCall::Terminate { .. }
        | PortCall::Cordon { .. }
        | PortCall::Open { .. }
        | PortCall::Evict { .. }
        | PortCall::DeletePod { .. }
        | PortCall::RaiseGroup { .. }
        | PortCall::EndMember { .. }
        | PortCall::DeleteNode { .. } => false,
    };
    world.calls().into_iter().filter(|call| !is_setup(call)).collect()
}

/// Returns the nodes of active instances that are cordoned. A terminating instance takes no pods.
fn cordoned(world: &World) -> Vec<Node> {
    let Observed { nodes, instances, .. } = world.observed();
    let is_active = |node: &Node| {
        let instance = node.instance.as_ref().and_then(|id| instances.get(id));
        instance.is_some_and(Instance::is_active)
    };
    nodes.into_values().filter(|node| node.unschedulable && is_active(node)).collect()
}

/// Asserts that no change has two instances, and that only approved objects were written. Launches
/// may have been taken back.
fn assert_only_approved_writes(world: &World, plan: &Plan) {
    let observed = world.observed();
    let changes: Vec<String> = ["1", "2", "3"]
        .map(|key| change_id(&plan.capacity.plan_id, &address(key)).to_string())
        .into();
    for change in &changes {
        let carries = |i: &&Instance| i.is_active() && i.tags.get(tag::CHANGE) == Some(change);
        assert!(observed.instances.values().filter(carries).count() <= 1, "launched twice");
    }
    let instance_and_node = |name: &NodeState| (name.instance_id.clone(), name.node.clone());
    let allowed: Vec<_> = plan
        .resource_changes
        .iter()
        .filter_map(|row| row.change.before.as_ref().map(instance_and_node))
        .collect();
    let mut launched = BTreeSet::new();
    for call in writes(world) {
        match call {
            PortCall::Launch { request, outcome, .. } => {
                assert!(changes.contains(&request.tags[tag::CHANGE]));
                if let Some(LaunchOutcome::Launched(instance)) = outcome {
                    launched.insert(instance.id);
                }
            }
            PortCall::Terminate { instance, .. } => {
                let is_removed = allowed.iter().any(|(id, _)| id.as_ref() == Some(&instance));
                assert!(is_removed || launched.contains(&instance));
            }
            PortCall::Cordon { node, .. } => {
                let is_removed = allowed.iter().any(|(_, name)| name.as_ref() == Some(&node));
                let instance = observed.nodes.get(&node).map(|node| node.instance.as_ref());
                let is_launched =
                    |id: Option<&InstanceId>| id.is_some_and(|i| launched.contains(i));
                assert!(is_removed || instance.is_none_or(is_launched));
            }
            PortCall::DeleteNode { node, .. } => {
                assert!(allowed.iter().any(|(_, name)| name.as_ref() == Some(&node)));
            }
            PortCall::Open { node, .. } => {
                let instance = observed.nodes.get(&node).and_then(|node| node.instance.as_ref());
                let launched = instance.and_then(|id| observed.instances.get(id));
                let change = launched.and_then(|instance| instance.tags.get(tag::CHANGE));
                assert!(launched.is_none() || change.is_some_and(|c| changes.contains(c)));
            }
            PortCall::Evict { name, .. } | PortCall::DeletePod { name, .. } => {
                assert!(name.starts_with("api-"), "{name}");
            }
            call @ (PortCall::RaiseGroup { .. } | PortCall::EndMember { .. }) => {
                panic!("the plan has no group: {call:?}");
            }
        }
    }
}

#[test]
fn plan_is_applied_and_all_pods_keep_running() {
    let world = fleet();
    let plan = plan(&world);
    let (receipt, events) = apply_over(&plan, &world, &settings());
    let receipt = receipt.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:#?}");
    assert!(receipt.outcomes.iter().all(|change| change.outcome == Outcome::Done));
    assert_eq!(receipt.outcomes.len(), 5, "a replacement has two halves");
    assert_eq!(active(&world), planned_fleet(&plan));
    assert_eq!(world.observed().nodes.len(), 4, "the nodes of retired instances are deleted");
    assert_only_approved_writes(&world, &plan);
    world.settle(MINUTE * 5).expect("kept in memory");
    let api = pods(&world, "api");
    assert_eq!(api.len(), 6);
    assert!(api.iter().all(|pod| pod.phase == PodPhase::Running));
    let position = |wanted: fn(&Step) -> bool| events.iter().position(|e| wanted(&e.step));
    let last_ready = events.iter().rposition(|e| matches!(e.step, Step::Ready { .. }));
    let first_cordon = position(|step| matches!(step, Step::Cordoned { .. }));
    assert!(last_ready < first_cordon, "new capacity is Ready before old capacity is drained");
    let first_eviction = position(|step| matches!(step, Step::Evicted { .. }));
    let [cordon, eviction] = [first_cordon, first_eviction].map(|at| events[at.expect("one")].at);
    assert_eq!(cordon, eviction, "a cordoned node is observed again at once");
}

#[test]
fn launched_instance_has_the_planned_tags_and_labels() {
    let world = fleet();
    let plan = plan(&world);
    applied(&plan, &world);
    let observed = world.observed();
    let change = change_id(&plan.capacity.plan_id, &address("2"));
    let ours = |i: &&Instance| i.tags.get(tag::CHANGE).is_some_and(|c| c == change.as_str());
    let instance = observed.instances.values().find(ours).expect("launched");
    for (tag, value) in
        [(tag::CLUSTER, "prod"), (tag::POOL, "web"), (tag::KEY, "2"), (tag::SPEC, "spec-1")]
    {
        assert_eq!(instance.tags[tag], value);
    }
    let node = observed.node_for_instance(&instance.id).expect("registered");
    assert_eq!(node.labels[crate::model::observed::KEY_LABEL].as_str(), "2");
    assert_eq!(node.labels["team"].as_str(), "web");
}

#[test]
fn second_apply_writes_nothing() {
    let world = fleet();
    let plan = plan(&world);
    applied(&plan, &world);
    let (calls, now) = (world.calls().len(), world.now());
    let again = applied(&plan, &world);
    assert_eq!(again.verdict, ApplyStatus::Applied);
    assert!(again.outcomes.iter().all(|change| change.outcome == Outcome::AlreadyDone));
    assert_eq!((world.calls().len(), world.now()), (calls, now));
}

#[test]
fn terminating_instance_uses_no_key_and_is_not_drained() {
    let world = fleet();
    let plan = plan(&world);
    let mut taken = request("taken");
    taken.tags.insert(tag::KEY.into(), "3".into());
    let taken = launch(&world, &taken);
    let retiring = plan.resource_changes[0].change.before.clone().and_then(|n| n.instance_id);
    let retiring = retiring.expect("an instance");
    for id in [&taken, &retiring] {
        run(world.terminate(id)).expect("known");
    }
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, ApplyStatus::Applied);
    assert_eq!(active(&world), planned_fleet(&plan));
    let is_termination =
        |c: &&PortCall| matches!(c, PortCall::Terminate { instance, .. } if *instance == retiring);
    assert_eq!(
        world.calls().iter().filter(is_termination).count(),
        1,
        "only the test terminated it"
    );
}

#[test]
fn retirement_of_a_terminated_instance_is_already_done() {
    let world = fleet();
    let plan = plan(&world);
    let gone = plan.resource_changes[0].change.before.clone().and_then(|n| n.instance_id);
    run(world.terminate(&gone.expect("an instance"))).expect("known");
    world.settle(MINUTE * 5).expect("kept in memory");
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, ApplyStatus::Applied);
    assert_eq!(*outcome(&receipt, "0", WaveStep::Retire), Outcome::AlreadyDone);
    assert_eq!(active(&world), planned_fleet(&plan));
}

#[test]
fn receipts_and_events_are_plain_json() {
    let world = fleet();
    let (receipt, events) = apply_over(&plan(&world), &world, &settings());
    let receipt = receipt.expect("not refused");
    let first = serde_json::to_string(&events[0]).expect("text keys");
    assert_eq!(first, r#"{"at":"2026-11-21T12:00:50Z","event":"checked","dropped":0}"#);
    assert!(events.iter().all(|event| serde_json::to_value(event).is_ok()));
    let json = serde_json::to_string(&receipt).expect("text keys");
    assert!(json.contains(r#""step":"launch""#) && json.contains(r#""outcome":"done""#), "{json}");
    assert_eq!(serde_json::from_str::<Receipt>(&json).expect("own form"), receipt);
}
