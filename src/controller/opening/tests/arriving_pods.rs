//! Pods of unsteered launches, which may arrive until they run.

use super::*;
use crate::apply::{ApplyStatus, ChangeOutcome, Outcome, Receipt};
use crate::model::observed::InstanceState;
use crate::plan::wire::WaveStep;
use crate::testing::plan::{rejection, unschedulable};
use crate::testing::world::managed_instance;

/// Returns a leader that has launched these instances for three pods, two of them on each.
fn launched(steer: bool, instances: &[&str]) -> ControllerHarness {
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    harness.edit_revision(|revision| revision.controller.steer = Some(steer));
    harness.modify(|state| {
        let pods = BTreeMap::from([(workload_key(&owner()), 2)]);
        state.planning.note_launched_demand(&plan_for(3), &pods);
        for instance in instances {
            state.planning.planned_pods.insert((*instance).into(), pods.clone());
        }
    });
    harness
}

/// Returns the observation of these pods, and of instances that start at second 0.
fn starting(seconds: i64, instances: &[&str], pods: &[(&str, Option<&str>)]) -> Observed {
    let pods = seen(seconds, pods).pods;
    let world = Observed { pods, ..world(seconds) };
    instances.iter().fold(world, |world, id| {
        world.with_instance(Instance { launched_at: at(0), ..managed_instance(id, "c") })
    })
}

/// Returns the arriving pods of the workload, and until when.
fn arriving(harness: &ControllerHarness) -> Option<(u32, Timestamp)> {
    let PodsArriving { workloads, until } = harness.state().pods_arriving()?;
    Some((*workloads.get(&workload_key(&owner()))?, until))
}

#[test]
fn unsteered_pods_arrive_while_their_nodes_start() {
    let mut harness = launched(false, &["i-3"]);
    let end = at(120);
    // No controller has created the pods yet.
    for (seconds, count) in [(1, 0), (2, 1), (3, 3)] {
        observe(&mut harness, seconds, starting(seconds, &["i-3"], &PENDING[..count]));
        assert_eq!(arriving(&harness), Some((3, end)), "{count} pods exist");
    }
    let on = Some("node-of-i-9");
    observe(&mut harness, 4, starting(4, &["i-3"], &[("a", on), ("b", on), ("c", on)]));
    assert_eq!(arriving(&harness), None, "all of them have a node");
    let mut steered = launched(true, &["i-3"]);
    observe(&mut steered, 1, starting(1, &["i-3"], &PENDING));
    assert_eq!(arriving(&steered), None, "a steered plan has room for them");
}

#[test]
fn unsteered_pods_arrive_until_closed_nodes_open() {
    let mut harness = launched(false, &["i-2"]);
    observe(&mut harness, 1, seen(1, &[]));
    // Their node opens after twenty seconds, and kube-scheduler takes ten.
    assert_eq!(arriving(&harness), Some((3, at(31))));
}

#[test]
fn pods_of_failed_launches_do_not_wait() {
    let mut harness = launched(false, &["i-3", "i-4"]);
    observe(&mut harness, 1, starting(1, &["i-3", "i-4"], &PENDING));
    assert!(arriving(&harness).is_some());
    let mut ended = starting(2, &["i-3", "i-4"], &PENDING);
    ended.instances.get_mut("i-4").expect("launched").state = InstanceState::Terminated;
    observe(&mut harness, 2, ended);
    assert_eq!(arriving(&harness), None, "an instance has ended");
    let mut harness = launched(false, &["i-3"]);
    observe(&mut harness, 1, starting(1, &["i-3"], &PENDING));
    let plan = plan_for(3);
    let failed = |outcome| {
        let address = plan.resource_changes[0].address.clone();
        let step = WaveStep::Launch;
        let change = ChangeOutcome { address, step, instance_id: None, launched: None, outcome };
        Receipt {
            plan_id: plan.capacity.plan_id.clone(),
            digest: plan.capacity.digest.clone(),
            outcomes: vec![change],
            started_at: at(0),
            finished_at: at(1),
            verdict: ApplyStatus::Partly,
        }
    };
    let end = |harness: &mut ControllerHarness, outcome| {
        harness.modify(|state| state.planning.forget_failed_launches(&plan, &failed(outcome)));
    };
    end(&mut harness, Outcome::Done);
    assert!(arriving(&harness).is_some());
    end(&mut harness, Outcome::Failed { why: "no capacity".to_owned() });
    assert_eq!(arriving(&harness), None, "a launch has failed");
}

#[test]
fn pods_of_launches_that_a_plan_leaves_out_do_not_arrive() {
    for (code, expected) in [("left-out", 2), ("left-over", 3)] {
        let mut plan = plan_for(3);
        let reasons = vec![rejection(code, "", 0)];
        plan.capacity.unschedulable = vec![unschedulable(owner(), 1, reasons)];
        let mut harness = launched(false, &["i-3"]);
        harness.modify(|state| {
            state.planning.launched_demand.clear();
            let pods = BTreeMap::from([(workload_key(&owner()), 2)]);
            state.planning.note_launched_demand(&plan, &pods);
        });
        observe(&mut harness, 1, starting(1, &["i-3"], &PENDING));
        assert_eq!(arriving(&harness).map(|(pods, _)| pods), Some(expected), "{code}");
    }
}

#[test]
fn unschedulable_pods_may_find_room_on_unsteered_launches() {
    for (steer, code) in [(false, "left-over"), (false, "limit-reached"), (true, "left-over")] {
        let mut plan = plan_for(3);
        let reasons = vec![rejection(code, "", 0)];
        plan.capacity.unschedulable = vec![unschedulable(owner(), 3, reasons)];
        let mut harness = launched(steer, &["i-2"]);
        harness.modify(|state| {
            // The node is for other pods.
            state.planning.launched_demand.clear();
            let pods = BTreeMap::from([("web/Deployment/other".to_owned(), 1)]);
            state.planning.planned_pods.insert("i-2".into(), pods);
            state.planning.note_unplaced(&plan, at(0));
        });
        observe(&mut harness, 1, seen(1, &PENDING));
        assert_eq!(arriving(&harness).is_some(), !steer && code == "left-over", "{code}");
    }
}
