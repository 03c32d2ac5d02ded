//! Opening of launched nodes.

use std::cell::Cell;

use jiff::Timestamp;

use super::crashes::apply_with_fault;
use super::*;
use crate::apply::ports::{ClusterObjects, PortError};
use crate::model::node_annotations::{NodeAnnotations, annotations_digest};
use crate::model::observed::KEY_LABEL;
use crate::model::pod::Taint;
use crate::testing::apply::closed_fleet;

/// Returns the time and the node of each opening.
pub(super) fn openings(world: &World) -> Vec<(Timestamp, String)> {
    let calls = world.calls().into_iter();
    let opened = calls.filter_map(|call| match call {
        PortCall::Open { at, node } => Some((at, node.to_string())),
        PortCall::Launch { .. }
        | PortCall::Terminate { .. }
        | PortCall::RaiseGroup { .. }
        | PortCall::EndMember { .. }
        | PortCall::Cordon { .. }
        | PortCall::Evict { .. }
        | PortCall::DeletePod { .. }
        | PortCall::DeleteNode { .. } => None,
    });
    opened.collect()
}

fn are_open(world: &World) -> bool {
    !world.observed().nodes.values().any(Node::is_closed)
}

#[test]
fn nodes_of_a_wave_open_together_once_all_are_ready() {
    let world = fleet();
    let plan = plan(&world);
    let began = world.now();
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied);
    let opened = openings(&world);
    assert_eq!(opened.len(), 3);
    assert!(opened.iter().all(|(at, _)| *at == began + crate::simulator::delay::READY));
    assert!(are_open(&world));
}

thread_local! {
    /// Number of further reads that show one node as not Ready.
    static UNREADY_READS: Cell<u32> = const { Cell::new(0) };
}

/// Shows the node with the largest key as not Ready.
#[expect(clippy::unnecessary_wraps, reason = "other edits of a read fail")]
fn delay_last(objects: &mut ClusterObjects) -> Result<(), PortError> {
    let ours = |node: &&mut Node| node.labels.get(KEY_LABEL).is_some_and(|key| key.as_str() == "3");
    if let Some(node) = objects.nodes.iter_mut().find(ours) {
        let left = UNREADY_READS.get();
        node.ready &= left == 0;
        UNREADY_READS.set(left.saturating_sub(1));
    }
    Ok(())
}

#[test]
fn late_node_delays_the_others_by_twenty_seconds_at_most() {
    let world = fleet();
    let plan = plan(&world);
    let ports = FaultyPorts::without_fault(&world);
    ports.edit_objects.set(delay_last);
    // Every read is five seconds after the one before.
    UNREADY_READS.set(40);
    let began = world.now();
    let receipt = apply_over(&plan, &ports, &settings()).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Applied);
    let mut times: Vec<Timestamp> = openings(&world).into_iter().map(|(at, _)| at).collect();
    let last = times.pop().expect("three openings");
    let ready = began + crate::simulator::delay::READY;
    assert_eq!(times, [ready + SignedDuration::from_secs(20); 2]);
    assert!(last > times[1] + MINUTE);
    assert!(are_open(&world));
}

#[test]
fn refused_opening_is_repeated_until_it_fails_the_change() {
    let opens = |fault, at| {
        let world = fleet();
        let plan = without_retirements(plan(&world));
        let ports = FaultyPorts::new(&world, at, fault);
        let receipt = apply_over(&plan, &ports, &settings()).0.expect("not refused");
        let outcomes = receipt.outcomes.clone();
        (receipt.verdict, outcomes, openings(&world).len())
    };
    // Two launches are the first writes.
    let (verdict, _, _) = opens(Fault::RejectTransiently, 2);
    assert_eq!(verdict, ApplyStatus::Applied);
    let (verdict, outcomes, opened) = opens(Fault::FailBefore, 2);
    assert_eq!((verdict, opened), (ApplyStatus::Partly, 1));
    let says = |outcome: &Outcome| matches!(outcome, Outcome::Failed { why } if why.contains("still closed for pods"));
    assert_eq!(outcomes.iter().filter(|change| says(&change.outcome)).count(), 1);
}

#[test]
fn next_apply_opens_the_nodes_that_a_crashed_one_left_closed() {
    let world = fleet();
    let plan = without_retirements(plan(&world));
    // The apply ends before its first opening.
    apply_with_fault(&plan, &world, 2, Fault::CrashBefore);
    world.settle(MINUTE * 5).expect("kept in memory");
    assert!(!are_open(&world));
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied);
    assert!(are_open(&world));
}

#[test]
fn apply_opens_only_our_closed_nodes_before_its_first_change() {
    for (label, opens) in [(true, true), (false, false)] {
        let world = fleet();
        let plan = plan(&world);
        let mut left = request("left");
        left.taints = vec![Taint::opening()];
        if label {
            left.offerings[0].labels.insert(KEY_LABEL.into(), "left".into());
        }
        let instance = launch(&world, &left);
        world.settle(MINUTE * 5).expect("kept in memory");
        let is_closed = || {
            let observed = world.observed();
            observed.node_for_instance(&instance).is_some_and(Node::is_closed)
        };
        assert!(is_closed());
        let _ = apply_over(&plan, &world, &settings());
        assert_eq!(is_closed(), !opens);
    }
    assert!(!are_open(&closed_fleet()));
}

pub(super) fn annotations(team: &str) -> NodeAnnotations {
    [("team".to_owned(), team.to_owned())].into()
}

/// Returns the annotation `team` of each node that was opened.
pub(super) fn teams(world: &World) -> Vec<Option<String>> {
    let observed = world.observed();
    let of_node = |name: &str| observed.nodes[name].annotations.get("team").cloned();
    openings(world).iter().map(|(_, name)| of_node(name)).collect()
}

#[test]
fn opened_nodes_get_the_annotations_of_their_pool() {
    for (pool, expected) in [("web", Some("shop".to_owned())), ("other", None)] {
        let world = fleet();
        let mut plan = plan(&world);
        plan.capacity.node_annotations.insert(pool.into(), annotations("shop"));
        assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied);
        assert_eq!(teams(&world), vec![expected.clone(); 3]);
        let digest = annotations_digest(&annotations("shop"));
        let launched = world.observed().instances.into_values().filter(|i| {
            i.is_active() && i.tags.get(tag::ANNOTATIONS).is_some_and(|tag| *tag == digest)
        });
        assert_eq!(launched.count(), if expected.is_some() { 3 } else { 0 });
    }
}

/// Launches a node with these taints and the annotation `team`.
fn launch_earlier(world: &World, taints: Vec<Taint>, team: &str) -> InstanceId {
    let mut left = request("left");
    left.taints = taints;
    left.offerings[0].labels.insert(KEY_LABEL.into(), "left".into());
    left.tags.insert(tag::ANNOTATIONS.to_owned(), annotations_digest(&annotations(team)));
    let instance = launch(world, &left);
    world.settle(MINUTE * 5).expect("kept in memory");
    instance
}

#[test]
fn failed_write_to_an_earlier_node_names_what_it_was_for() {
    for (taints, verb) in [(vec![Taint::opening()], "open"), (vec![], "annotate")] {
        let world = fleet();
        let mut plan = plan(&world);
        plan.capacity.node_annotations.insert("web".into(), annotations("shop"));
        launch_earlier(&world, taints, "shop");
        let ports = FaultyPorts::new(&world, 0, Fault::FailBefore);
        let (_, events) = apply_over(&plan, &ports, &settings());
        let failed = events.iter().filter_map(|event| {
            let Step::NodeWriteFailed { why } = &event.step else { return None };
            Some(why)
        });
        let failed: Vec<&String> = failed.collect();
        let expected = format!("cannot {verb} node ");
        assert!(failed.len() == 1 && failed[0].starts_with(&expected), "{failed:?}");
    }
}

/// A node may be left closed, or another client may have opened it.
#[test]
fn annotations_of_an_earlier_node_are_those_of_its_launch() {
    let closed = || vec![Taint::opening()];
    for (launched_with, taints, expected) in [
        ("shop", closed(), Some("shop")),
        ("other", closed(), None),
        ("shop", vec![], Some("shop")),
        ("other", vec![], None),
    ] {
        let world = fleet();
        let mut plan = plan(&world);
        plan.capacity.node_annotations.insert("web".into(), annotations("shop"));
        let instance = launch_earlier(&world, taints, launched_with);
        let _ = apply_over(&plan, &world, &settings());
        let observed = world.observed();
        let node = observed.node_for_instance(&instance).expect("registered");
        assert!(!node.is_closed());
        assert_eq!(node.annotations.get("team").map(String::as_str), expected);
    }
}

const CALLED_OFF: &str = "the workload has shrunk";

/// A planner that calls off the removals once all launches are Ready.
#[derive(Debug)]
struct CallsOff;

impl Replan for CallsOff {
    fn replan<'r>(&'r self, plan: &'r Plan, _: &'r Observed) -> Replanned<'r> {
        Box::pin(std::future::ready(RevalidatedPlan::as_approved(plan.clone())))
    }

    fn call_off<'r>(
        &'r self,
        launched: &'r BTreeSet<InstanceId>,
        observed: &'r Observed,
    ) -> CalledOff<'r> {
        let node_of = |id: &InstanceId| observed.node_for_instance(id);
        assert_eq!(launched.len(), 3);
        assert!(launched.iter().filter_map(node_of).all(|node| node.ready && node.is_closed()));
        Box::pin(std::future::ready(Some(CALLED_OFF.to_owned())))
    }
}

#[test]
fn called_off_removals_leave_the_launched_nodes_closed() {
    let world = fleet();
    let (plan, before) = (plan(&world), active(&world));
    let opened_by = OpenedBy::Controller;
    let settings = ApplySettings { opened_by, replan: &CallsOff, ..settings() };
    let began = world.now();
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    for key in ["1", "2", "3"] {
        assert_eq!(*outcome(&receipt, key, WaveStep::Launch), Outcome::Done, "{key}");
    }
    for key in ["0", "1"] {
        let skipped = Outcome::Skipped { why: CALLED_OFF.to_owned() };
        assert_eq!(*outcome(&receipt, key, WaveStep::Retire), skipped, "{key}");
    }
    assert_eq!((openings(&world), cordoned(&world)), (vec![], vec![]));
    let now = active(&world);
    assert!(before.iter().all(|instance| now.contains(instance)), "{before:?} {now:?}");
    // It does not wait for the controller.
    assert!(world.now() < began + MINUTE * 2);
}
