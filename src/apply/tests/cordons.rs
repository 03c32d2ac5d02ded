//! Cordons of other clients, stale cordons, and cordons after a launch timeout.

use std::cell::Cell;

use super::*;
use crate::model::ids::NodeName;
use crate::model::observed::{CORDONED_ANNOTATION, CordonReason};

/// Edit of a node by an operator.
type NodeEdit = fn(&Node) -> Node;

/// Cordons a node like `kubectl cordon`, which keeps its annotations.
fn cordons(node: &Node) -> Node {
    Node { unschedulable: true, ..node.clone() }
}

/// Takes over a cordon by removing our annotation.
fn takes_over(node: &Node) -> Node {
    Node { annotations: [].into(), ..cordons(node) }
}

/// Applies a plan while an operator edits the first node just before the apply writes it.
fn apply_with_operator_edit(plan: &Plan, world: &World, edit: NodeEdit) -> (Receipt, NodeName) {
    let first: Cell<Option<NodeName>> = Cell::default();
    let before_cordon = |node: &Node| {
        let name = first.take().unwrap_or_else(|| {
            let now = world.observed().nodes[&node.name].clone();
            world.update_node(&edit(&now));
            node.name.clone()
        });
        first.set(Some(name));
    };
    let mut ports = FaultyPorts::without_fault(world);
    ports.before_cordon = Some(&before_cordon);
    let receipt = apply_over(plan, &ports, &settings()).0.expect("not refused");
    (receipt, first.take().expect("a node was to be written"))
}

/// Adds our drain annotation to the node of row `n`, and returns the node.
fn mark_node(plan: &Plan, world: &World, n: usize, unschedulable: bool) -> Node {
    let before = plan.resource_changes[n].change.before.as_ref();
    let name = before.and_then(|before| before.node.clone()).expect("a node");
    let mark = (CORDONED_ANNOTATION.to_owned(), "drain".to_owned());
    let node = world.observed().nodes[&name].clone();
    let node = Node { unschedulable, annotations: [mark].into(), ..node };
    world.update_node(&node);
    node
}

#[test]
fn cordon_by_an_operator_before_our_write_gets_no_mark() {
    let world = fleet();
    world.deliver(&workloads(6).budget("api", None, Some("0"))).expect("kept in memory");
    let (receipt, name) = apply_with_operator_edit(&plan(&world), &world, cordons);
    let abandoned =
        |key| matches!(outcome(&receipt, key, WaveStep::Retire), Outcome::Abandoned { .. });
    assert!(abandoned("0") && abandoned("1"), "{receipt:#?}");
    let node = &world.observed().nodes[&name];
    assert_eq!((node.unschedulable, node.cordon_reason()), (true, None));
}

#[test]
fn stale_cordon_without_our_mark_stays() {
    // `kubectl cordon` does not change a cordoned node, so it does not take over the cordon.
    let edits: [(NodeEdit, bool); 2] = [(takes_over, true), (cordons, false)];
    for (edit, stays) in edits {
        let world = fleet();
        let plan = without_retirements(plan(&world));
        let node = mark_node(&plan, &world, 0, true);
        let (receipt, name) = apply_with_operator_edit(&plan, &world, edit);
        assert_eq!((receipt.verdict, &name), (ApplyStatus::Applied, &node.name));
        let node = &world.observed().nodes[&name];
        assert_eq!((node.unschedulable, node.cordon_reason()), (stays, None));
    }
}

#[test]
fn kubelet_update_after_the_observation_is_no_conflict() {
    let world = fleet();
    let plan = without_retirements(plan(&world));
    let node = mark_node(&plan, &world, 0, true);
    let reports = |node: &Node| {
        let mut labels = node.labels.clone();
        labels.insert("example.com/beat".into(), "1".into());
        Node { labels, ..node.clone() }
    };
    apply_with_operator_edit(&plan, &world, reports);
    assert_eq!(world.observed().nodes[&node.name].cordon_reason(), None);
}

#[test]
fn mark_of_a_schedulable_node_is_removed_without_an_event() {
    let world = fleet();
    let plan = without_retirements(plan(&world));
    let node = mark_node(&plan, &world, 0, false);
    let (receipt, events) = apply_over(&plan, &world, &settings());
    assert_eq!(receipt.map(|receipt| receipt.verdict), Ok(ApplyStatus::Applied));
    let found = &world.observed().nodes[&node.name];
    assert_eq!((found.unschedulable, found.cordon_reason()), (false, None));
    assert!(!events.iter().any(|event| matches!(event.step, Step::Uncordoned { .. })));
}

/// Applies a plan, interrupted after the checks if `interrupts`. Returns the number of Kubernetes
/// reads before the first launch.
fn reads_before_launch(plan: &Plan, ports: &FaultyPorts<'_>, interrupts: bool) -> usize {
    let flag = AtomicBool::new(false);
    let mut settings = ApplySettings { interrupted: Some(&flag), ..settings() };
    settings.launch_wait = LaunchWait::UntilLaunched;
    let mut reads = 0;
    let mut report = |event: &Event| {
        if matches!(event.step, Step::Checked { .. }) {
            flag.store(interrupts, std::sync::atomic::Ordering::Relaxed);
        } else if matches!(event.step, Step::Launched { .. }) {
            reads = ports.reads.get();
        }
    };
    let all = all(ports);
    run(apply(plan, &all, &settings, &mut report)).expect("begun");
    reads
}

#[test]
fn uncordon_discards_the_observation_unless_interrupted() {
    // After an uncordon, the first observation is outdated.
    for (interrupts, at, reads, left) in [
        (true, usize::MAX, 0, Some(CordonReason::Drain)),
        (false, usize::MAX, 2, None),
        (false, 0, 2, None),
    ] {
        let world = fleet();
        let plan = without_retirements(plan(&world));
        let node = mark_node(&plan, &world, 0, true);
        let ports = FaultyPorts::new(&world, at, Fault::LoseReply);
        assert_eq!(reads_before_launch(&plan, &ports, interrupts), reads, "at {at}");
        assert_eq!(world.observed().nodes[&node.name].cordon_reason(), left, "at {at}");
    }
}

/// Returns settings with a Ready timeout at which launched nodes have joined but are not Ready.
fn short_ready_timeout() -> ApplySettings<'static> {
    let mut settings = settings();
    settings.bounds.ready = SignedDuration::from_secs(40);
    settings
}

fn abandoned(receipt: &Receipt) -> Vec<(&InstanceId, &str)> {
    let all = receipt.outcomes.iter().filter_map(|change| {
        let Outcome::Abandoned { why } = &change.outcome else { return None };
        Some((change.instance_id.as_ref()?, why.as_str()))
    });
    all.collect()
}

#[test]
fn one_observation_after_the_last_cordon_serves_all_timeouts() {
    let world = fleet();
    let ports = FaultyPorts::without_fault(&world);
    let (mut before, mut after) = (None, 0);
    let mut report = |event: &Event| {
        if matches!(event.step, Step::Cordoned { .. }) {
            before.get_or_insert(ports.reads.get());
        } else if matches!(event.step, Step::Finished { step: WaveStep::Launch, .. }) {
            after = ports.reads.get();
        }
    };
    let all = all(&ports);
    let receipt =
        run(apply(&plan(&world), &all, &short_ready_timeout(), &mut report)).expect("begun");
    let all = abandoned(&receipt);
    assert_eq!(all.len(), 3, "{receipt:#?}");
    assert!(all.iter().all(|(_, why)| why.contains("terminated")), "{all:?}");
    assert_eq!(before.map(|reads| reads + 1), Some(after));
}

#[test]
fn transient_errors_leave_no_timed_out_instance() {
    for fault in [Fault::RejectTransiently, Fault::LoseReply] {
        let mut timed_out = 0;
        for at in 0..12 {
            let world = fleet();
            let ports = FaultyPorts::new(&world, at, fault);
            let receipt =
                apply_over(&plan(&world), &ports, &short_ready_timeout()).0.expect("not refused");
            let observed = world.observed();
            for (id, why) in abandoned(&receipt) {
                let runs = observed.instances.get(id).is_some_and(Instance::is_active);
                assert!(!runs, "{fault:?} at {at}: {id}: {why}");
                timed_out += 1;
            }
        }
        assert!(timed_out >= 12, "{timed_out}");
    }
}

#[test]
fn late_ready_node_is_uncordoned() {
    let mut ready = 0;
    for at in 0..24 {
        let world = fleet();
        let ports = FaultyPorts::new(&world, at, Fault::RejectTransiently);
        let receipt =
            apply_over(&plan(&world), &ports, &short_ready_timeout()).0.expect("not refused");
        let observed = world.observed();
        let done = receipt.outcomes.iter().filter(|change| change.outcome == Outcome::Done);
        for node in
            done.filter_map(|change| observed.node_for_instance(change.instance_id.as_ref()?))
        {
            assert!(!node.unschedulable && node.annotations.is_empty(), "at {at}: {node:?}");
            ready += 1;
        }
    }
    assert!(ready > 0, "no node was Ready late");
}

#[test]
fn unlisted_instance_is_reported_as_not_listed() {
    let world = fleet();
    let mut ports = FaultyPorts::without_fault(&world);
    ports.lag = SignedDuration::from_secs(45);
    let receipt = apply_over(&plan(&world), &ports, &short_ready_timeout()).0.expect("not refused");
    for (_, why) in abandoned(&receipt) {
        assert!(why.contains("EC2 does not show the instance"), "{why}");
    }
    assert_eq!(abandoned(&receipt).len(), 3);
}
