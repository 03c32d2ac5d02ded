//! Closed nodes that stay closed: of launches in place of nodes that may stay, and those that the
//! plan removes.

use super::*;
use crate::plan::wire::WaveStep;

/// Pods that run elsewhere.
const RUNNING: [(&str, Option<&str>); 3] =
    [("a", Some("node-of-i-9")), ("b", Some("node-of-i-9")), ("c", Some("node-of-i-9"))];

/// Returns a leader that has not decided about the nodes.
fn leads_undecided(instances: &[&str]) -> ControllerHarness {
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    let instances: BTreeSet<InstanceId> = instances.iter().map(|id| (*id).into()).collect();
    harness.modify(|state| state.opening.add_undecided(instances));
    harness
}

/// Returns the plan of three pods that removes the first node.
fn plan_removing_the_first() -> Plan {
    let plan = plan_for(3);
    let first = plan.resource_changes[0].address.clone();
    plan.with_wave(WaveStep::Retire, [first])
}

/// Reports that the second node was opened.
fn second_was_opened(harness: &mut ControllerHarness, seconds: i64) {
    let nodes = vec![("uid-of-i-2".into(), "node-of-i-2".into(), Ok(()))];
    let batch = OpenedBatch { nominations: vec![], nodes };
    assert_eq!(step(harness, seconds, Event::NodesOpened(batch)), []);
}

#[test]
fn undecided_nodes_stay_closed_for_five_minutes_at_most() {
    let mut harness = leads_undecided(&["i-1", "i-2"]);
    for seconds in [0, 20, 299] {
        assert_eq!(observe(&mut harness, seconds, seen(seconds, &RUNNING)), [], "{seconds} s");
    }
    assert_eq!(observe(&mut harness, 300, seen(300, &RUNNING)), opened(&[], &[1, 2]));
}

#[test]
fn nodes_open_once_a_plan_counts_them_as_ready() {
    let mut harness = leads_undecided(&["i-1", "i-2"]);
    assert_eq!(observe(&mut harness, 0, seen(0, &RUNNING)), []);
    let mut starting = seen(1, &RUNNING);
    node(&mut starting, "node-of-i-1").ready = false;
    harness.modify(|state| state.opening.note_planned(&starting));
    assert_eq!(harness.state().opening.undecided, ["i-1".into()].into());
    harness.modify(|state| state.opening.note_planned(&seen(2, &RUNNING)));
    assert_eq!(observe(&mut harness, 3, seen(3, &RUNNING)), opened(&[], &[1, 2]));
}

#[test]
fn plan_with_errors_decides_about_no_node() {
    for errored in [false, true] {
        let mut harness = leads_undecided(&["i-1", "i-2"]);
        observe(&mut harness, 2, seen(2, &RUNNING));
        // The plan that started before it led does not count.
        for _ in 0..2 {
            harness.finish_planning(2, Plan { errored, ..plan_for(3) });
        }
        assert_eq!(harness.state().opening.undecided.is_empty(), !errored);
    }
}

#[test]
fn node_that_the_plan_removes_stays_closed() {
    let mut harness = leads(Mode::Full, Some(plan_removing_the_first()));
    assert_eq!(observe(&mut harness, 0, seen(0, &RUNNING)), opened(&[], &[2]));
    second_was_opened(&mut harness, 1);
    for (seconds, expected) in [(30, vec![]), (299, vec![]), (300, opened(&[], &[1]))] {
        let mut world = seen(seconds, &RUNNING);
        node(&mut world, "node-of-i-2").taints.clear();
        assert_eq!(observe(&mut harness, seconds, world), expected, "{seconds} s");
    }
    // This mode removes nothing.
    let mut harness = leads(Mode::Additive, Some(plan_removing_the_first()));
    assert_eq!(observe(&mut harness, 0, seen(0, &RUNNING)), opened(&[], &[1, 2]));
}

#[test]
fn pending_pods_of_a_launch_do_not_wait_for_a_decision() {
    let harness = leads_undecided(&["i-1", "i-2"]);
    assert_opened_as_launched(harness);
}
