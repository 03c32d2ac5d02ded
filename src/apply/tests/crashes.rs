//! Crashes and faults at any write: the next run finishes and repeats no launch.

use super::*;
use crate::plan::client_token;
use crate::testing::simulator::poll_once;

/// Applies with a fault at write `at`. Returns true if the run reached that write.
pub(super) fn apply_with_fault(plan: &Plan, world: &World, at: usize, fault: Fault) -> bool {
    let faulty = FaultyPorts::new(world, at, fault);
    let ports = all(&faulty);
    let settings = settings();
    let mut silent = |_: &Event| {};
    let result = poll_once(apply(plan, &ports, &settings, &mut silent));
    if let Some(result) = result {
        result.expect("the plan is not rejected");
    }
    faulty.calls.get() > at
}

#[test]
fn same_plan_finishes_after_any_fault_at_any_write() {
    for fault in Fault::ALL {
        let mut at = 0;
        loop {
            let world = fleet();
            let plan = plan(&world);
            if !apply_with_fault(&plan, &world, at, fault) {
                break;
            }
            let receipt = applied(&plan, &world);
            assert_eq!(receipt.verdict, ApplyStatus::Applied, "{fault:?} at {at}: {receipt:#?}");
            assert_eq!(active(&world), planned_fleet(&plan), "{fault:?} at {at}");
            assert_only_approved_writes(&world, &plan);
            assert!(cordoned(&world).is_empty());
            world.settle(MINUTE * 5).expect("kept in memory");
            assert!(world.observed().nodes.values().all(|n| n.ready && !n.unschedulable));
            at += 1;
        }
        assert!(
            at >= 12,
            "3 launches, 2 cordons, 4 evictions or more, 2 terminations, 2 deletions: {at}"
        );
    }
}

#[test]
fn same_plan_finishes_after_two_crashes() {
    for first in 0..14 {
        for second in 0..14 {
            let world = fleet();
            let plan = plan(&world);
            apply_with_fault(&plan, &world, first, Fault::CrashAfter);
            apply_with_fault(&plan, &world, second, Fault::CrashBefore);
            assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied, "{first}, {second}");
            assert_eq!(active(&world), planned_fleet(&plan), "{first}, {second}");
            assert_only_approved_writes(&world, &plan);
        }
    }
}

#[test]
fn client_token_prevents_a_second_launch_if_reads_lag() {
    let world = fleet();
    let plan = plan(&world);
    assert!(apply_with_fault(&plan, &world, 1, Fault::CrashAfter));
    let mut lagging = FaultyPorts::without_fault(&world);
    lagging.lag = SignedDuration::from_secs(20);
    let receipt = apply_over(&plan, &lagging, &settings()).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Applied);
    assert_eq!(active(&world), planned_fleet(&plan));
    assert_only_approved_writes(&world, &plan);
}

#[test]
fn each_attempt_has_its_own_valid_client_token() {
    let change = change_id(&"plan".into(), &address("0"));
    let (first, second) = (client_token(&change, 0), client_token(&change, 1));
    assert_ne!(first, second);
    assert!(first.len() <= 64 && first.is_ascii());
    assert_ne!(change, change_id(&"plan".into(), &address("1")));
}

#[test]
fn next_run_uncordons_the_kept_nodes_of_a_crashed_run() {
    let cordoned =
        |world: &World| -> Vec<_> { cordoned(world).into_iter().map(|node| node.name).collect() };
    let (mut at, mut found) = (0, 0);
    loop {
        let world = fleet();
        let plan = plan(&world);
        if !apply_with_fault(&plan, &world, at, Fault::CrashAfter) {
            break;
        }
        at += 1;
        let stale = cordoned(&world);
        let other = without_retirements(plan.clone());
        // A kept node with a cordon of another client.
        let mut nodes = world.observed().nodes.into_values();
        let foreign = nodes.find(|node| !node.unschedulable);
        let foreign = Node { unschedulable: true, ..foreign.expect("a schedulable node") };
        world.update_node(&foreign);
        for is_exclusive in [false, true] {
            let settings = ApplySettings { is_exclusive, ..settings() };
            let (receipt, events) = apply_over(&other, &world, &settings);
            assert_eq!(receipt.map(|receipt| receipt.verdict), Ok(ApplyStatus::Applied));
            let uncordoned = events.iter().filter_map(|event| {
                let Step::Uncordoned { node } = &event.step else { return None };
                Some(node.clone())
            });
            let expected = if is_exclusive { stale.clone() } else { Vec::new() };
            assert_eq!(uncordoned.collect::<Vec<_>>(), expected, "{at}");
        }
        assert_eq!(cordoned(&world), [foreign.name], "{at}");
        found += stale.len();
    }
    assert!(found > 2, "{found} cordons were found");
}
