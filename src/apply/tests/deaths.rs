//! A run may die at any write: the next one finishes, and launches nothing twice.

use super::*;
use crate::plan::client_token;
use crate::simulator::fixture::poll_once;

/// Applies with a fault at the `at`-th write; returns whether the run got that far.
fn run_into(plan: &Plan, world: &World, at: usize, fault: Fault) -> bool {
    let faulty = FaultyPorts::new(world, at, fault);
    let ports = Ports { cloud: &faulty, cluster: &faulty, clock: &faulty };
    let settings = settings();
    let mut silent = |_: &Event| {};
    let cut = poll_once(apply(plan, &ports, &settings, &mut silent));
    if let Some(result) = cut {
        result.expect("a fault on the way is no refusal");
    }
    faulty.calls.get() > at
}

#[test]
fn the_same_plan_finishes_after_any_fault_at_any_write() {
    for fault in Fault::ALL {
        let mut at = 0;
        loop {
            let world = fleet();
            let plan = plan(&world);
            if !run_into(&plan, &world, at, fault) {
                break;
            }
            let receipt = applied(&plan, &world);
            assert_eq!(receipt.verdict, ApplyStatus::Applied, "{fault:?} at {at}: {receipt:#?}");
            assert_eq!(active(&world), planned_fleet(&plan), "{fault:?} at {at}");
            assert_lawful(&world, &plan);
            let observed = world.observed();
            assert!(observed.nodes.values().all(|n| n.ready && !n.unschedulable));
            at += 1;
        }
        assert!(at >= 12, "3 launches, 2 cordons, 4 evictions or more, 2 ends, 2 deletions: {at}");
    }
}

#[test]
fn a_run_may_die_twice() {
    for first in 0..14 {
        for second in 0..14 {
            let world = fleet();
            let plan = plan(&world);
            run_into(&plan, &world, first, Fault::DieAfter);
            run_into(&plan, &world, second, Fault::DieBefore);
            assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied, "{first}, {second}");
            assert_eq!(active(&world), planned_fleet(&plan), "{first}, {second}");
            assert_lawful(&world, &plan);
        }
    }
}

#[test]
fn where_the_list_lags_the_token_keeps_a_launch_from_happening_twice() {
    let world = fleet();
    let plan = plan(&world);
    assert!(run_into(&plan, &world, 1, Fault::DieAfter));
    let mut lagging = FaultyPorts::new(&world, usize::MAX, Fault::DieBefore);
    lagging.lag = SignedDuration::from_secs(20);
    let receipt = apply_over(&plan, &lagging, &settings()).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Applied);
    assert_eq!(active(&world), planned_fleet(&plan));
    assert_lawful(&world, &plan);
}

#[test]
fn an_attempt_is_a_token_of_its_own_and_fits_ec2() {
    let change = change_id(&"plan".into(), &address("0"));
    let (first, second) = (client_token(&change, 0), client_token(&change, 1));
    assert_ne!(first, second);
    assert!(first.len() <= 64 && first.is_ascii());
    assert_ne!(change, change_id(&"plan".into(), &address("1")));
}

#[test]
fn what_a_run_that_died_left_cordoned_takes_pods_again_in_the_next_one_unless_it_goes() {
    // One whose machine ends already takes no more pods, whoever does what.
    let cordoned = |world: &World| {
        let Observed { nodes, instances, .. } = world.observed();
        let runs = |node: &Node| {
            let instance = node.instance.as_ref().and_then(|id| instances.get(id));
            instance.is_some_and(Instance::is_active)
        };
        let all = nodes.into_values().filter(|node| node.unschedulable && runs(node));
        all.map(|node| node.name).collect::<Vec<_>>()
    };
    let (mut at, mut found) = (0, 0);
    loop {
        let world = fleet();
        let plan = plan(&world);
        if !run_into(&plan, &world, at, Fault::DieAfter) {
            break;
        }
        at += 1;
        let left = cordoned(&world);
        let mut other = plan.clone();
        for row in &mut other.resource_changes[..2] {
            row.change.actions = vec![Action::NoOp];
        }
        other.capacity.waves.retain(|wave| wave.step == WaveStep::Launch);
        other.capacity.waves[0].addresses.retain(|one| *one != address("1"));
        // One of those that do not go: whoever cordoned it, we did not.
        let mut nodes = world.observed().nodes.into_values();
        let theirs = nodes.find(|node| !node.unschedulable);
        let theirs = Node { unschedulable: true, ..theirs.expect("another") };
        world.update_node(&theirs);
        for alone in [false, true] {
            let settings = ApplySettings { is_exclusive: alone, ..settings() };
            let (receipt, events) = apply_over(&other, &world, &settings);
            assert_eq!(receipt.map(|receipt| receipt.verdict), Ok(ApplyStatus::Applied));
            let opened = events.iter().filter_map(|event| {
                let Step::Uncordoned { node } = &event.step else { return None };
                Some(node.clone())
            });
            let expected = if alone { left.clone() } else { Vec::new() };
            assert_eq!(opened.collect::<Vec<_>>(), expected, "{at}");
        }
        assert_eq!(cordoned(&world), [theirs.name], "{at}");
        found += left.len();
    }
    assert!(found > 2, "{found} were left");
}
