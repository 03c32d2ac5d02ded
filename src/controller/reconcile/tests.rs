//! Additive plans for new pending pods, and the full plans after them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::controller::{Event, Signal};
use crate::model::observed::{CORDONED_ANNOTATION, Observed, Pod};
use crate::plan::wire::WaveStep;
use crate::testing::controller::{ControllerHarness, at, world};
use crate::testing::sample_plan;
use crate::testing::world::pod;

/// Returns an observation with pending pods.
fn world_with_pending(seconds: i64, pods: &[&str]) -> Observed {
    let mut world = world(seconds);
    world.pods = pods.iter().map(|name| Arc::new(pod(name))).collect();
    world
}

/// Returns a plan that keeps every node.
fn plan_keeping_all() -> Plan {
    let mut plan = sample_plan::plan();
    plan.capacity.waves.clear();
    plan
}

fn launch_plan() -> Plan {
    let mut plan = sample_plan::plan().only(WaveStep::Launch);
    plan.capacity.digest = "sha256:launches".into();
    plan
}

/// Returns a leader that has planned these pending pods with nothing to do.
fn settled_controller(mode: Mode, pods: &[&str]) -> ControllerHarness {
    let mut harness = ControllerHarness::leading_in(mode);
    harness.observe(2, world_with_pending(2, pods));
    // The plan that started before it led does not count.
    harness.finish_planning(2, plan_keeping_all());
    harness.finish_planning(2, plan_keeping_all());
    assert!(harness.state().planning.run.is_none() && harness.state().planning.current.is_some());
    harness
}

/// Returns the pass of the planning run in progress, and true if it is additive.
fn planning_in_progress(harness: &ControllerHarness) -> Option<(PlanningPass, bool)> {
    let planning = harness.state().planning.run.as_ref()?;
    Some((planning.pass, planning.scope.changeable_nodes.as_ref().is_some_and(BTreeSet::is_empty)))
}

const ADDITIVE: Option<(PlanningPass, bool)> = Some((PlanningPass::AdditiveFirst, true));
const FULL: Option<(PlanningPass, bool)> = Some((PlanningPass::Narrowed(0), false));

#[test]
fn new_pending_pods_get_an_additive_plan_first() {
    let mut harness = settled_controller(Mode::Full, &[]);
    let known = harness.state().planning.current.as_ref().map(|current| Arc::clone(&current.plan));
    harness.observe(3, world_with_pending(3, &["a"]));
    assert_eq!(planning_in_progress(&harness), ADDITIVE);
    harness.finish_planning(3, launch_plan());
    let runs: Vec<bool> =
        harness.state().applies.runs.values().map(|run| run.is_removing).collect();
    assert_eq!(runs, [false]);
    let parts = harness.state().status().partial_applies;
    assert_eq!(parts.len(), 1, "what is carried out has an object of its own");
    assert!(parts[0].plan.capacity.waves.iter().all(|wave| wave.step == WaveStep::Launch));
    // The published plan stays the full plan.
    let current =
        harness.state().planning.current.as_ref().map(|current| Arc::clone(&current.plan));
    assert!(current.zip(known).is_some_and(|(now, before)| Arc::ptr_eq(&now, &before)));
}

#[test]
fn full_plan_follows_an_empty_or_blocked_additive_plan() {
    let mut harness = settled_controller(Mode::Full, &[]);
    let world = Arc::new(world_with_pending(3, &["a"]));
    harness.step_at(3, Event::Observed(Arc::clone(&world)));
    harness.finish_planning(3, plan_keeping_all());
    assert_eq!(planning_in_progress(&harness), FULL);
    let over =
        harness.state().planning.run.as_ref().map(|planning| Arc::clone(&planning.input.world));
    assert_eq!(over.as_deref(), Some(&*world));
    assert!(harness.state().applies.runs.is_empty());
    let mut harness = settled_controller(Mode::Full, &[]);
    harness.step_at(3, Event::Observed(world));
    harness.finish_planning(3, Plan { errored: true, ..launch_plan() });
    assert_eq!(planning_in_progress(&harness), FULL);
    assert!(harness.state().applies.runs.is_empty());
}

#[test]
fn only_the_additive_first_pass_skips_demand_scenarios() {
    let skips = |harness: &ControllerHarness| {
        let planning = harness.state().planning.run.as_ref().expect("it plans");
        planning.scope.skips_demand_scenarios
    };
    for (mode, expected) in [(Mode::Full, true), (Mode::Additive, false)] {
        let mut harness = settled_controller(mode, &[]);
        harness.observe(3, world_with_pending(3, &["a"]));
        assert_eq!(skips(&harness), expected, "{mode:?}");
    }
    let mut harness = settled_controller(Mode::Full, &[]);
    harness.observe(3, world_with_pending(3, &["a"]));
    harness.finish_planning(3, plan_keeping_all());
    assert_eq!((planning_in_progress(&harness), skips(&harness)), (FULL, false));
}

#[test]
fn full_plan_goes_first_without_new_pending_pods() {
    let mut cordoned = world_with_pending(3, &["a"]);
    for node in cordoned.nodes.values_mut().take(1) {
        node.unschedulable = true;
        node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "drain".to_owned());
    }
    let mut bound = world_with_pending(3, &["a"]);
    let node = bound.nodes.keys().next().cloned();
    bound.pods = bound
        .pods
        .iter()
        .map(|of| Arc::new(Pod { node: node.clone(), ..Pod::clone(of) }))
        .collect();
    for (why, mode, before, now) in [
        ("the pod was pending before", Mode::Full, vec!["a", "b"], world_with_pending(3, &["a"])),
        ("mode observe", Mode::Observe, vec![], world_with_pending(3, &["a"])),
        ("an abandoned drain left a cordoned node", Mode::Full, vec![], cordoned),
        ("the pod is bound", Mode::Full, vec![], bound),
    ] {
        let mut harness = settled_controller(mode, &before);
        harness.observe(3, now);
        assert_eq!(planning_in_progress(&harness), FULL, "{why}");
    }
}

#[test]
fn additive_mode_publishes_the_plan_it_applies() {
    let mut harness = settled_controller(Mode::Additive, &[]);
    harness.modify(|state| {
        let revision = Arc::make_mut(state.revisions.served.as_mut().expect("read"));
        revision.controller.approval = crate::model::desired::ApprovalRule::Digest;
    });
    harness.observe(3, world_with_pending(3, &["a"]));
    assert_eq!(
        planning_in_progress(&harness),
        Some((PlanningPass::Narrowed(0), true)),
        "nothing is planned twice"
    );
    harness.finish_planning(3, launch_plan());
    assert!(harness.state().applies.runs.is_empty(), "it is not approved");
    let plan = harness.state().status().plan.expect("published");
    let digest = plan.plan.capacity.digest.clone();
    assert_eq!(digest, launch_plan().capacity.digest);
    let asks =
        |block: &Blocked| block.reason == BlockedReason::NotApproved { digest: digest.clone() };
    assert!(!plan.blocked.is_empty() && plan.blocked.values().all(asks), "{:?}", plan.blocked);
    let (digest, by) = (digest, "a".to_owned());
    let request = crate::controller::AuthorizedRequest::Approve { digest, by };
    harness.step_at(4, Event::Signal(Signal::Request(request)));
    harness.finish_planning(4, launch_plan());
    assert_eq!(harness.state().applies.runs.len(), 1);
}

#[test]
fn steady_pod_arrivals_delay_full_plan_only_for_a_time() {
    let mut harness = settled_controller(Mode::Full, &[]);
    let mut whole_after = None;
    for seconds in 3..200 {
        let names: Vec<String> = (0..seconds).map(|n| format!("pod-{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        harness.observe(seconds, world_with_pending(seconds, &names));
        if planning_in_progress(&harness) == FULL {
            whole_after = Some(seconds - 3);
            break;
        }
        assert_eq!(planning_in_progress(&harness), ADDITIVE);
        // It launches and ends at once.
        harness.finish_planning(seconds, launch_plan());
        harness.modify(|state| {
            state.applies.runs.clear();
            state.observation.require_none();
        });
    }
    assert_eq!(whole_after, Some(ADDITIVE_ONLY_MAX.as_secs()));
    // After a full plan, additive plans go first again.
    harness.finish_planning(100, plan_keeping_all());
    harness.observe(101, world_with_pending(101, &["another"]));
    assert_eq!(planning_in_progress(&harness), ADDITIVE);
}

#[test]
fn plan_is_made_anew_once_a_node_stops_counting_as_starting() {
    let mut seen = world(60);
    assert_eq!(first_start_end(&seen, at(60)), None, "all nodes are Ready");
    let node = seen.nodes.values_mut().next().expect("a node");
    (node.ready, node.created_at) = (false, at(0));
    assert_eq!(first_start_end(&seen, at(60)), Some(at(15 * 60 + 1)));
    assert_eq!(first_start_end(&seen, at(16 * 60)), None, "it is not starting");
}
