//! Applies of steered plans: pods are nominated to their planned nodes before these open.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::crashes::apply_with_fault;
use super::opening::{annotations, openings, teams};
use super::*;
use crate::apply::ports::{CallEffect, ClusterObjects, PortError};
use crate::demand::Decider;
use crate::model::ids::NodeName;
use crate::model::observed::Pod;
use crate::model::reason::LaunchReason;
use crate::plan::wire::{Amount, Counts, ExplainRow, PlacementMode, Reason};
use crate::testing::plan::demand_row;

/// Pods of half a core. Nine of them run on the three nodes of the fleet.
const PODS: u32 = 13;

/// Returns a world with four pending pods, and a steered plan that launches `2` for three of them
/// and `3` for one.
fn steered() -> (World, Plan) {
    let world = fleet();
    world.deliver(&workloads(PODS)).expect("kept in memory");
    world.settle(MINUTE).expect("kept in memory");
    let mut plan = without_retirements(plan(&world));
    plan.capacity.placement.mode = PlacementMode::Steered;
    let api = id(WorkloadKind::Deployment, "api");
    let key = crate::plan::wire::workload_key(&api);
    let row = |(node, pods): (&str, u32)| {
        let because = LaunchReason::Demand { pods: BTreeMap::new() };
        let pods = [(key.as_str().into(), pods)].into();
        ExplainRow { pods, ..ExplainRow::new(address(node), Reason::Launch { because }) }
    };
    plan.capacity.explain = [("2", 3), ("3", 1)].map(row).to_vec();
    let demand = demand_row(api, Counts { planned: PODS, ..Counts::default() }, Amount::default());
    plan.capacity.demand = vec![demand];
    (world, plan)
}

/// Returns the number of `api` pods on the node of a launch.
fn pods_on(world: &World, key: &str) -> usize {
    let observed = world.observed();
    let node = node_of(&observed, key);
    let on = |pod: &&Arc<Pod>| pod.node == node && pod.needs_eviction();
    observed.pods.iter().filter(on).count()
}

fn node_of(observed: &Observed, key: &str) -> Option<NodeName> {
    let launched = |i: &&Instance| i.tags.get(tag::KEY).is_some_and(|of| of == key);
    let instance = observed.instances.values().find(launched)?;
    observed.node_for_instance(&instance.id).map(|node| node.name.clone())
}

fn pending(world: &World) -> usize {
    world.observed().pods.iter().filter(|pod| is_pending(pod)).count()
}

/// Returns the times at which nodes were opened.
fn opening_times(world: &World) -> Vec<Timestamp> {
    openings(world).into_iter().map(|(at, _)| at).collect()
}

#[test]
fn pods_of_a_steered_plan_end_up_on_their_nodes() {
    let (world, mut plan) = steered();
    plan.capacity.node_annotations.insert("web".into(), annotations("shop"));
    assert_eq!(pending(&world), 4);
    let (receipt, events) = apply_over(&plan, &world, &settings());
    assert_eq!(receipt.expect("not refused").verdict, ApplyStatus::Applied);
    let nominated = events
        .iter()
        .position(|event| matches!(event.step, Step::Nominated { pods: 4, refused: 0 }));
    let ready = events.iter().position(|event| matches!(event.step, Step::Ready { .. }));
    assert!(nominated.expect("nominated") < ready.expect("opened"));
    world.settle(MINUTE).expect("kept in memory");
    assert_eq!((pending(&world), pods_on(&world, "2"), pods_on(&world, "3")), (0, 3, 1));
    assert_eq!(teams(&world), vec![Some("shop".to_owned()); 2]);
}

#[test]
fn pods_of_other_plans_are_not_nominated() {
    let nominated = |edit: fn(&mut Plan), opened_by| {
        let (world, mut plan) = steered();
        edit(&mut plan);
        let ports = FaultyPorts::without_fault(&world);
        let settings = ApplySettings { opened_by, ..settings() };
        let receipt = apply_over(&plan, &ports, &settings).0.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied);
        assert_eq!(opening_times(&world).len(), 2);
        ports.nominated.borrow().len()
    };
    let unsteered: fn(&mut Plan) = |plan| plan.capacity.placement.mode = PlacementMode::Unsteered;
    // The pods are nominated while the nodes start, and keep their nominations.
    assert_eq!(nominated(|_| (), OpenedBy::Apply), 4);
    assert_eq!(nominated(unsteered, OpenedBy::Apply), 0);
    assert_eq!(nominated(|_| (), OpenedBy::ApplyWithoutNominations), 0);
}

#[test]
fn next_apply_finishes_after_any_fault_of_a_steered_one() {
    for fault in Fault::ALL {
        let mut at = 0;
        loop {
            let (world, plan) = steered();
            if !apply_with_fault(&plan, &world, at, fault) {
                break;
            }
            world.settle(MINUTE).expect("kept in memory");
            let receipt = applied(&plan, &world);
            world.settle(MINUTE).expect("kept in memory");
            assert_eq!(receipt.verdict, ApplyStatus::Applied, "{fault:?} at {at}");
            assert!(!world.observed().nodes.values().any(Node::is_closed), "{fault:?} at {at}");
            assert_eq!(pending(&world), 0, "{fault:?} at {at}");
            // A fault of a launch or of an opening delays one node, so that the other fills first.
            let placed = (pods_on(&world, "2"), pods_on(&world, "3"));
            assert!(!(2..6).contains(&at) || placed == (3, 1), "{fault:?} at {at}: {placed:?}");
            at += 1;
        }
        assert_eq!(at, 8, "2 launches, 4 nominations, 2 openings");
    }
}

/// An apply that was killed between its nominations and its openings is followed by one of another
/// plan.
#[test]
fn apply_of_another_plan_opens_nodes_with_their_planned_pods() {
    let (world, plan) = steered();
    // The first of four nominations follows two launches.
    assert!(apply_with_fault(&plan, &world, 2, Fault::CrashBefore));
    world.settle(MINUTE).expect("kept in memory");
    let closed = || world.observed().nodes.into_values().filter(Node::is_closed).count();
    assert_eq!((closed(), pending(&world)), (2, 4));
    let observed = world.observed();
    let mut next = plan.clone();
    (next.capacity.waves, next.capacity.plan_id) = (Vec::new(), "plan-2".into());
    for row in &mut next.resource_changes[2..] {
        let key = row.index.clone().expect("a key");
        let name = node_of(&observed, &key).expect("registered");
        let instance = observed.nodes[&name].instance.clone();
        let state =
            row.change.after.take().map(|after| NodeState { instance_id: instance, ..after });
        (row.change.before, row.change.after) = (state.clone(), state);
        row.change.actions = vec![Action::NoOp];
    }
    assert_eq!(applied(&next, &world).verdict, ApplyStatus::Applied);
    world.settle(MINUTE).expect("kept in memory");
    assert_eq!((closed(), pending(&world)), (0, 0));
    assert_eq!((pods_on(&world, "2"), pods_on(&world, "3")), (3, 1));
}

thread_local! {
    /// Number of pods that no read shows.
    static HIDDEN: Cell<usize> = const { Cell::new(0) };
}

/// Hides pending pods, as if no controller had created them yet.
#[expect(clippy::unnecessary_wraps, reason = "other edits of a read fail")]
fn hide_pods(objects: &mut ClusterObjects) -> Result<(), PortError> {
    let mut left = HIDDEN.get();
    objects.pods.retain(|pod| {
        let is_hidden = left > 0 && is_pending(pod);
        left -= usize::from(is_hidden);
        !is_hidden
    });
    Ok(())
}

#[test]
fn ready_nodes_wait_a_limited_time_for_pods_that_do_not_exist() {
    // A pod that exists waits for the others for 20 seconds.
    for (hidden, decided_by, seconds) in [
        (4, Decider::Git, 300),
        (4, Decider::World, 20),
        (1, Decider::Git, 20),
        (0, Decider::Git, 0),
    ] {
        let (world, mut plan) = steered();
        plan.capacity.demand[0].decided_by = decided_by;
        let ports = FaultyPorts::without_fault(&world);
        ports.edit_objects.set(hide_pods);
        HIDDEN.set(hidden);
        let began = world.now();
        let receipt = apply_over(&plan, &ports, &settings()).0.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied);
        let due = began + crate::simulator::delay::READY + SignedDuration::from_secs(seconds);
        assert_eq!(opening_times(&world), [due; 2], "{hidden} hidden pods");
    }
}

thread_local! {
    /// Number of reads of the cluster so far.
    static READS: Cell<usize> = const { Cell::new(0) };
}

/// Number of reads after which the nodes are Ready and closed, and wait for pods.
const READS_UNTIL_CLOSED: usize = 20;

fn count_read() -> usize {
    READS.set(READS.get() + 1);
    READS.get()
}

/// Hides pending pods, and fails while the nodes wait.
fn fail_a_read(objects: &mut ClusterObjects) -> Result<(), PortError> {
    hide_pods(objects)?;
    if count_read() == READS_UNTIL_CLOSED {
        let (verb, reason) = ("list pods".to_owned(), "a read failed".to_owned());
        return Err(PortError { verb, reason, effect: CallEffect::NotApplied });
    }
    Ok(())
}

/// Hides pending pods, and shows no new node Ready once they wait.
fn lose_nodes(objects: &mut ClusterObjects) -> Result<(), PortError> {
    hide_pods(objects)?;
    if count_read() >= READS_UNTIL_CLOSED {
        objects
            .nodes
            .iter_mut()
            .filter(|node| node.is_closed())
            .for_each(|node| node.ready = false);
    }
    Ok(())
}

#[test]
fn failed_read_opens_no_node_early() {
    let (world, plan) = steered();
    let ports = FaultyPorts::without_fault(&world);
    ports.edit_objects.set(fail_a_read);
    HIDDEN.set(4);
    READS.set(0);
    let began = world.now();
    apply_over(&plan, &ports, &settings()).0.expect("not refused");
    assert!(READS.get() > READS_UNTIL_CLOSED);
    let due = began + crate::simulator::delay::READY + SignedDuration::from_secs(300);
    assert_eq!(opening_times(&world), [due; 2]);
}

#[test]
fn node_that_is_lost_while_it_waits_is_no_finished_launch() {
    let (world, plan) = steered();
    let ports = FaultyPorts::without_fault(&world);
    ports.edit_objects.set(lose_nodes);
    HIDDEN.set(4);
    READS.set(0);
    let receipt = apply_over(&plan, &ports, &settings()).0.expect("not refused");
    assert!(READS.get() > READS_UNTIL_CLOSED);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    assert!(opening_times(&world).is_empty());
}

#[test]
fn refused_nominations_delay_no_opening() {
    let (world, plan) = steered();
    // Two launches are the first writes.
    let ports = FaultyPorts::new(&world, 2, Fault::FailBefore);
    let began = world.now();
    let (receipt, _) = apply_over(&plan, &ports, &settings());
    assert_eq!(receipt.expect("not refused").verdict, ApplyStatus::Applied);
    assert_eq!(opening_times(&world), [began + crate::simulator::delay::READY; 2]);
}
