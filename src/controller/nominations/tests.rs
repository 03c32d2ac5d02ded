//! Limits and counters of nominations.

use std::sync::Arc;

use super::*;
use crate::apply::ports::CallEffect;
use crate::controller::counters::Counter;
use crate::controller::planning::CurrentPlan;
use crate::controller::{Event, Mode, Signal};
use crate::model::ids::{WorkloadId, WorkloadKind};
use crate::plan::wire::PlacementRow;
use crate::testing::controller::{ControllerHarness, at, world};
use crate::testing::sample_plan;
use crate::testing::world::pod;

/// A pod and its node.
type PodOnNode<'a> = (&'a str, Option<&'a str>);

fn owner() -> WorkloadId {
    let kind = WorkloadKind::Deployment;
    WorkloadId { kind, namespace: "web".into(), name: "api".into() }
}

fn shows(seconds: i64, pods: &[PodOnNode<'_>]) -> Event {
    let mut world = world(seconds);
    let one = |(name, node): &PodOnNode<'_>| {
        let (uid, node) = (format!("uid-of-{name}").as_str().into(), node.map(NodeName::from));
        Arc::new(Pod { uid, node, owner: Some(owner()), ..pod(name) })
    };
    world.pods = pods.iter().map(one).collect();
    Event::Observed(Arc::new(world))
}

/// Returns a plan that places `pods` of one workload on the node of `i-1`.
fn places_on_first(pods: u32) -> Plan {
    let mut plan = sample_plan::plan();
    plan.capacity.waves.clear();
    let mut rows = plan.resource_changes.iter_mut();
    let row = rows.find(|row| row.change.before.is_some()).expect("something stands");
    let before = row.change.before.as_mut().expect("it stands");
    (before.instance_id, before.node) = (Some("i-1".into()), None);
    plan.capacity.placements =
        vec![PlacementRow { workload: owner(), address: row.address.clone(), pods }];
    plan
}

/// Returns a leading scenario with nominations enabled and a plan for this many pods.
fn nominates(mode: Mode, pods: u32) -> ControllerHarness {
    let mut harness = ControllerHarness::with_mode(mode);
    harness.step_at(0, Event::Signal(Signal::LeaseGained));
    harness.load_state_and_branch();
    harness.edit_revision(|revision| revision.controller.nominate_pods = true);
    harness.modify(|state| {
        state.planning.current = Some(CurrentPlan::new(Arc::new(places_on_first(pods)), at(0)));
    });
    harness
}

/// Returns the pods that a step nominates, with their nodes.
fn nominated(harness: &mut ControllerHarness, seconds: i64, event: Event) -> Vec<(String, String)> {
    let mut found = Vec::new();
    harness.modify(|state| {
        let (next, effects) = crate::controller::step(state.clone(), event, at(seconds));
        *state = next;
        for effect in effects {
            if let Effect::Nominate { pod, node } = effect {
                found.push((pod.name.to_string(), node.to_string()));
            }
        }
    });
    found
}

fn on_first(name: &str) -> (String, String) {
    (name.to_owned(), "node-of-i-1".to_owned())
}

fn counted(harness: &ControllerHarness, counter: &Counter) -> u64 {
    harness.state().counters.get(counter)
}

fn answers(harness: &mut ControllerHarness, seconds: i64, name: &str, end: Result<(), PortError>) {
    let pod = format!("uid-of-{name}").as_str().into();
    harness.step_at(seconds, Event::Nominated { pod, result: end });
}

fn refused() -> PortError {
    let (verb, reason) = ("nominate pod".to_owned(), "the pod has changed: conflict".to_owned());
    PortError { verb, reason, effect: CallEffect::NotApplied }
}

#[test]
fn cleared_nomination_is_repeated_three_times() {
    let mut harness = nominates(Mode::Full, 1);
    let waits: &[PodOnNode<'_>] = &[("a", None)];
    assert_eq!(nominated(&mut harness, 10, shows(10, waits)), [on_first("a")]);
    answers(&mut harness, 10, "a", Ok(()));
    // The scheduler has cleared it, and every observation shows the pod pending.
    for (seconds, again) in [(11, false), (19, false), (20, true), (29, false), (30, true)] {
        let found = nominated(&mut harness, seconds, shows(seconds, waits));
        assert_eq!(found.len(), usize::from(again), "after {seconds} s");
        answers(&mut harness, seconds, "a", Ok(()));
    }
    for seconds in [40, 50, 3_600] {
        assert_eq!(nominated(&mut harness, seconds, shows(seconds, waits)), []);
    }
    assert_eq!(counted(&harness, &Counter::NominationsMade), 3);
    // The scheduler places it freely, and the final node counts.
    harness.step_at(3_601, shows(3_601, &[("a", Some("node-of-i-2"))]));
    let counts = [Counter::NominationsHonored, Counter::NominationsDropped]
        .map(|one| counted(&harness, &one));
    assert_eq!(counts, [0, 1]);
}

#[test]
fn nominations_are_limited_to_one_hundred_per_step() {
    let names: Vec<String> = (0..250).map(|n| format!("p{n:03}")).collect();
    let pods: Vec<PodOnNode<'_>> = names.iter().map(|name| (name.as_str(), None)).collect();
    let mut harness = nominates(Mode::Full, 250);
    let mut all = std::collections::BTreeSet::new();
    for (seconds, at_once) in [(1, 100), (2, 100), (3, 50), (4, 0)] {
        let found = nominated(&mut harness, seconds, shows(seconds, &pods));
        assert_eq!(found.len(), at_once, "after {seconds} s");
        all.extend(found);
    }
    assert_eq!((all.len(), counted(&harness, &Counter::NominationsMade)), (250, 250));
}

#[test]
fn nominations_never_exceed_planned_pods_of_a_node() {
    let mut harness = nominates(Mode::Full, 2);
    let pods: &[PodOnNode<'_>] = &[("a", None), ("b", None), ("c", None)];
    let both = [on_first("a"), on_first("b")];
    assert_eq!(nominated(&mut harness, 1, shows(1, pods)), both);
}

#[test]
fn unready_or_missing_nodes_receive_no_nomination() {
    let changes: [fn(&mut crate::model::observed::Node); 2] =
        [|node| node.ready = false, |node| node.instance = None];
    for change in changes {
        let mut harness = nominates(Mode::Full, 1);
        let Event::Observed(seen) = shows(1, &[("a", None)]) else { panic!("an observation") };
        let mut seen = Observed::clone(&seen);
        change(seen.nodes.get_mut("node-of-i-1").expect("it is there"));
        assert_eq!(nominated(&mut harness, 1, Event::Observed(Arc::new(seen))), []);
    }
}

#[test]
fn refused_nominations_are_bounded_and_not_counted() {
    let mut harness = nominates(Mode::Full, 2);
    let pods: &[PodOnNode<'_>] = &[("a", None), ("b", None)];
    for seconds in [0, 10, 20, 30, 40] {
        let found = nominated(&mut harness, seconds, shows(seconds, pods));
        for (name, _) in &found {
            let end = if name == "a" { Err(refused()) } else { Ok(()) };
            answers(&mut harness, seconds, name, end);
        }
        assert_eq!(found.len(), if seconds <= 20 { 2 } else { 0 }, "after {seconds} s");
    }
    assert_eq!(counted(&harness, &Counter::NominationsRefused), 3);
    assert_eq!(counted(&harness, &Counter::Errors("kubernetes".to_owned())), 3);
    let failing = harness.state().status().failing_actions;
    assert_eq!(failing.len(), 1, "{failing:?}");
    // One reaches the same node by chance, the other because of its nomination.
    harness.step_at(50, shows(50, &[("a", Some("node-of-i-1")), ("b", Some("node-of-i-1"))]));
    let counts = [Counter::NominationsHonored, Counter::NominationsDropped]
        .map(|one| counted(&harness, &one));
    assert_eq!(counts, [1, 0]);
}

#[test]
fn bound_pods_count_as_honored_and_others_as_dropped() {
    let mut harness = nominates(Mode::Full, 4);
    let pods: &[PodOnNode<'_>] = &[("a", None), ("b", None), ("c", None), ("d", None)];
    assert_eq!(nominated(&mut harness, 1, shows(1, pods)).len(), 4);
    for name in ["a", "b", "c", "d"] {
        answers(&mut harness, 1, name, Ok(()));
    }
    let now: &[PodOnNode<'_>] =
        &[("a", Some("node-of-i-1")), ("b", Some("node-of-i-2")), ("d", None)];
    harness.step_at(2, shows(2, now));
    let counts = |harness: &ControllerHarness| {
        [Counter::NominationsMade, Counter::NominationsHonored, Counter::NominationsDropped]
            .map(|counter| counted(harness, &counter))
    };
    assert_eq!(counts(&harness), [4, 1, 2]);
    // No pod counts twice, and a pending one does not count yet.
    harness.step_at(3, shows(3, now));
    assert_eq!(counts(&harness), [4, 1, 2]);
}

#[test]
fn nominations_need_leader_active_mode_and_setting() {
    let pods: &[PodOnNode<'_>] = &[("a", None)];
    let mut harness = nominates(Mode::Observe, 1);
    assert_eq!(nominated(&mut harness, 1, shows(1, pods)), []);
    let mut harness = nominates(Mode::Full, 1);
    harness.modify(|state| state.leadership.lose(None, false));
    assert_eq!(nominated(&mut harness, 1, shows(1, pods)), []);
    let mut harness = nominates(Mode::Full, 1);
    harness.edit_revision(|revision| revision.controller.nominate_pods = false);
    assert_eq!(nominated(&mut harness, 1, shows(1, pods)), []);
}
