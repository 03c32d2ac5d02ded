//! Whose cordon is whose, and what is given up with its node cordoned.

use std::cell::Cell;

use super::*;
use crate::model::ids::NodeName;
use crate::model::observed::{CORDONED_ANNOTATION, CordonReason};

/// What somebody makes of a node.
type NodeEdit = fn(&Node) -> Node;

/// Cordons a node as `kubectl cordon` does: what else is written on it stays.
fn cordons(node: &Node) -> Node {
    Node { unschedulable: true, ..node.clone() }
}

/// Takes a cordon over: the mark that says that it is ours is taken off.
fn takes_over(node: &Node) -> Node {
    Node { annotations: [].into(), ..cordons(node) }
}

/// Has a person write the first node that is about to be written, just before it is.
fn applies_beside_a_person(plan: &Plan, world: &World, person: NodeEdit) -> (Receipt, NodeName) {
    let first: Cell<Option<NodeName>> = Cell::default();
    let meddles = |node: &Node| {
        let name = first.take().unwrap_or_else(|| {
            let now = world.observed().nodes[&node.name].clone();
            world.update_node(&person(&now));
            node.name.clone()
        });
        first.set(Some(name));
    };
    let mut ports = FaultyPorts::new(world, usize::MAX, Fault::FailBefore);
    ports.meddles = Some(&meddles);
    let receipt = apply_over(plan, &ports, &settings()).0.expect("not refused");
    (receipt, first.take().expect("a node was to be written"))
}

/// Returns the node of the `n`-th row of a plan, marked as cordoned for a drain.
fn marked(plan: &Plan, world: &World, n: usize, unschedulable: bool) -> Node {
    let before = plan.resource_changes[n].change.before.as_ref();
    let name = before.and_then(|before| before.node.clone()).expect("a node");
    let mark = (CORDONED_ANNOTATION.to_owned(), "drain".to_owned());
    let node = world.observed().nodes[&name].clone();
    let node = Node { unschedulable, annotations: [mark].into(), ..node };
    world.update_node(&node);
    node
}

/// Returns the same without what goes.
fn without_retirements(mut plan: Plan) -> Plan {
    for row in &mut plan.resource_changes[..2] {
        row.change.actions = vec![Action::NoOp];
    }
    plan.capacity.waves.retain(|wave| wave.step == WaveStep::Launch);
    plan.capacity.waves[0].addresses.retain(|one| *one != address("1"));
    plan
}

#[test]
fn what_a_person_cordons_between_look_and_write_keeps_their_cordon_and_gets_no_mark() {
    let world = fleet();
    world.deliver(&workloads(6).budget("api", None, Some("0"))).expect("kept in memory");
    let (receipt, name) = applies_beside_a_person(&plan(&world), &world, cordons);
    let given_up =
        |key| matches!(outcome(&receipt, key, WaveStep::Retire), Outcome::GivenUp { .. });
    assert!(given_up("0") && given_up("1"), "{receipt:#?}");
    let node = &world.observed().nodes[&name];
    assert_eq!((node.unschedulable, node.cordon_reason()), (true, None));
}

#[test]
fn a_stale_cordon_that_a_person_takes_over_stays_and_one_that_still_has_our_mark_goes() {
    // `kubectl cordon` changes nothing of what is cordoned already: it is no way of taking it over.
    let persons: [(NodeEdit, bool); 2] = [(takes_over, true), (cordons, false)];
    for (person, stays) in persons {
        let world = fleet();
        let plan = without_retirements(plan(&world));
        let node = marked(&plan, &world, 0, true);
        let (receipt, name) = applies_beside_a_person(&plan, &world, person);
        assert_eq!((receipt.verdict, &name), (ApplyStatus::Applied, &node.name));
        let node = &world.observed().nodes[&name];
        assert_eq!((node.unschedulable, node.cordon_reason()), (stays, None));
    }
}

#[test]
fn a_node_is_written_although_its_kubelet_wrote_it_since_it_was_seen() {
    let world = fleet();
    let plan = without_retirements(plan(&world));
    let node = marked(&plan, &world, 0, true);
    let reports = |node: &Node| {
        let mut labels = node.labels.clone();
        labels.insert("example.com/beat".into(), "1".into());
        Node { labels, ..node.clone() }
    };
    applies_beside_a_person(&plan, &world, reports);
    assert_eq!(world.observed().nodes[&node.name].cordon_reason(), None);
}

#[test]
fn a_mark_is_taken_off_a_node_that_takes_pods_and_nobody_is_told_that_it_does() {
    let world = fleet();
    let plan = without_retirements(plan(&world));
    let node = marked(&plan, &world, 0, false);
    let (receipt, events) = apply_over(&plan, &world, &settings());
    assert_eq!(receipt.map(|receipt| receipt.verdict), Ok(ApplyStatus::Applied));
    let found = &world.observed().nodes[&node.name];
    assert_eq!((found.unschedulable, found.cordon_reason()), (false, None));
    assert!(!events.iter().any(|event| matches!(event.step, Step::Uncordoned { .. })));
}

/// Applies, interrupted once it is checked where that is said; returns how often Kubernetes was read before the first launch.
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
    let all = Ports { cloud: ports, cluster: ports, clock: ports };
    run(apply(plan, &all, &settings, &mut report)).expect("begun");
    reads
}

#[test]
fn an_apply_that_is_interrupted_uncordons_nothing_and_one_that_may_have_looks_again() {
    // What was seen before shows a node cordoned that takes pods.
    for (interrupts, at, reads, left) in [
        (true, usize::MAX, 0, Some(CordonReason::Drain)),
        (false, usize::MAX, 2, None),
        (false, 0, 2, None),
    ] {
        let world = fleet();
        let plan = without_retirements(plan(&world));
        let node = marked(&plan, &world, 0, true);
        let ports = FaultyPorts::new(&world, at, Fault::LoseReply);
        assert_eq!(reads_before_launch(&plan, &ports, interrupts), reads, "at {at}");
        assert_eq!(world.observed().nodes[&node.name].cordon_reason(), left, "at {at}");
    }
}

/// Returns settings by which what was launched has joined and is not Ready when its time is over.
fn impatient() -> ApplySettings<'static> {
    let mut settings = settings();
    settings.bounds.ready = SignedDuration::from_secs(40);
    settings
}

fn given_up(receipt: &Receipt) -> Vec<(&InstanceId, &str)> {
    let all = receipt.outcomes.iter().filter_map(|change| {
        let Outcome::GivenUp { why } = &change.outcome else { return None };
        Some((change.instance_id.as_ref()?, why.as_str()))
    });
    all.collect()
}

#[test]
fn all_that_are_not_ready_in_time_are_judged_by_one_look_after_the_last_was_cordoned() {
    let world = fleet();
    let ports = FaultyPorts::new(&world, usize::MAX, Fault::FailBefore);
    let (mut before, mut after) = (None, 0);
    let mut report = |event: &Event| {
        if matches!(event.step, Step::Cordoned { .. }) {
            before.get_or_insert(ports.reads.get());
        } else if matches!(event.step, Step::Finished { step: WaveStep::Launch, .. }) {
            after = ports.reads.get();
        }
    };
    let all = Ports { cloud: &ports, cluster: &ports, clock: &ports };
    let receipt = run(apply(&plan(&world), &all, &impatient(), &mut report)).expect("begun");
    let all = given_up(&receipt);
    assert_eq!(all.len(), 3, "{receipt:#?}");
    assert!(all.iter().all(|(_, why)| why.contains("terminated")), "{all:?}");
    assert_eq!(before.map(|reads| reads + 1), Some(after));
}

#[test]
fn a_call_that_fails_for_now_leaves_no_machine_that_is_not_ready_in_time() {
    for fault in [Fault::TurnAway, Fault::LoseReply] {
        let mut given = 0;
        for at in 0..12 {
            let world = fleet();
            let ports = FaultyPorts::new(&world, at, fault);
            let receipt = apply_over(&plan(&world), &ports, &impatient()).0.expect("not refused");
            let observed = world.observed();
            for (id, why) in given_up(&receipt) {
                let runs = observed.instances.get(id).is_some_and(Instance::is_active);
                assert!(!runs, "{fault:?} at {at}: {id}: {why}");
                given += 1;
            }
        }
        assert!(given >= 12, "{given}");
    }
}

#[test]
fn a_node_that_is_ready_after_all_while_its_machine_is_given_up_takes_pods() {
    let mut ready = 0;
    for at in 0..24 {
        let world = fleet();
        let ports = FaultyPorts::new(&world, at, Fault::TurnAway);
        let receipt = apply_over(&plan(&world), &ports, &impatient()).0.expect("not refused");
        let observed = world.observed();
        let done = receipt.outcomes.iter().filter(|change| change.outcome == Outcome::Done);
        for node in
            done.filter_map(|change| observed.node_for_instance(change.instance_id.as_ref()?))
        {
            assert!(!node.unschedulable && node.annotations.is_empty(), "at {at}: {node:?}");
            ready += 1;
        }
    }
    assert!(ready > 0, "none was Ready after all");
}

#[test]
fn a_machine_that_ec2_no_longer_shows_is_not_said_to_hold_pods() {
    let world = fleet();
    let mut ports = FaultyPorts::new(&world, usize::MAX, Fault::FailBefore);
    ports.lag = SignedDuration::from_secs(45);
    let receipt = apply_over(&plan(&world), &ports, &impatient()).0.expect("not refused");
    for (_, why) in given_up(&receipt) {
        assert!(why.contains("EC2 does not show the instance"), "{why}");
    }
    assert_eq!(given_up(&receipt).len(), 3);
}
