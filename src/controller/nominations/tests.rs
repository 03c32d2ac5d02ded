//! Limits and counters of nominations.

use std::sync::Arc;

use super::*;
use crate::apply::ports::CallEffect;
use crate::controller::fixture::{ControllerHarness, at, world};
use crate::controller::planning::CurrentPlan;
use crate::controller::{Event, Mode, Revision, Signal};
use crate::model::ids::{WorkloadId, WorkloadKind};
use crate::model::observed::fixture::pod;
use crate::plan::wire::PlacementRow;
use crate::render::fixture;

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
    let mut plan = fixture::plan();
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
    let mut story = ControllerHarness::with_mode(mode);
    story.step_at(0, Event::Signal(Signal::LeaseGained));
    story.load_state_and_branch();
    story.modify(|state| {
        let mut head = Revision::clone(state.revisions.served.as_ref().expect("it was read"));
        head.controller.nominate_pods = true;
        state.revisions.served = Some(Arc::new(head));
        state.planning.current = Some(CurrentPlan::new(Arc::new(places_on_first(pods)), at(0)));
    });
    story
}

/// Returns the pods that a step nominates, with their nodes.
fn nominated(story: &mut ControllerHarness, seconds: i64, event: Event) -> Vec<(String, String)> {
    let mut found = Vec::new();
    story.modify(|state| {
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

fn counted(story: &ControllerHarness, name: &str) -> u64 {
    story.state().counters.by_name().get(name).copied().unwrap_or(0)
}

fn answers(story: &mut ControllerHarness, seconds: i64, name: &str, end: Result<(), PortError>) {
    let pod = format!("uid-of-{name}").as_str().into();
    story.step_at(seconds, Event::Nominated { pod, result: end });
}

fn refused() -> PortError {
    let (verb, reason) = ("nominate pod".to_owned(), "the pod has changed: conflict".to_owned());
    PortError { verb, reason, effect: CallEffect::NotApplied }
}

#[test]
fn cleared_nomination_is_repeated_three_times() {
    let mut story = nominates(Mode::Full, 1);
    let waits: &[PodOnNode<'_>] = &[("a", None)];
    assert_eq!(nominated(&mut story, 10, shows(10, waits)), [on_first("a")]);
    answers(&mut story, 10, "a", Ok(()));
    // The scheduler has cleared it, and every observation shows the pod pending.
    for (seconds, again) in [(11, false), (19, false), (20, true), (29, false), (30, true)] {
        let found = nominated(&mut story, seconds, shows(seconds, waits));
        assert_eq!(found.len(), usize::from(again), "after {seconds} s");
        answers(&mut story, seconds, "a", Ok(()));
    }
    for seconds in [40, 50, 3_600] {
        assert_eq!(nominated(&mut story, seconds, shows(seconds, waits)), []);
    }
    assert_eq!(counted(&story, "nominations.made"), 3);
    // The scheduler places it freely, and the final node counts.
    story.step_at(3_601, shows(3_601, &[("a", Some("node-of-i-2"))]));
    let counts =
        ["honoured", "dropped"].map(|name| counted(&story, &format!("nominations.{name}")));
    assert_eq!(counts, [0, 1]);
}

#[test]
fn nominations_are_limited_to_one_hundred_per_step() {
    let names: Vec<String> = (0..250).map(|n| format!("p{n:03}")).collect();
    let pods: Vec<PodOnNode<'_>> = names.iter().map(|name| (name.as_str(), None)).collect();
    let mut story = nominates(Mode::Full, 250);
    let mut all = std::collections::BTreeSet::new();
    for (seconds, at_once) in [(1, 100), (2, 100), (3, 50), (4, 0)] {
        let found = nominated(&mut story, seconds, shows(seconds, &pods));
        assert_eq!(found.len(), at_once, "after {seconds} s");
        all.extend(found);
    }
    assert_eq!((all.len(), counted(&story, "nominations.made")), (250, 250));
}

#[test]
fn nominations_never_exceed_planned_pods_of_a_node() {
    let mut story = nominates(Mode::Full, 2);
    let pods: &[PodOnNode<'_>] = &[("a", None), ("b", None), ("c", None)];
    let both = [on_first("a"), on_first("b")];
    assert_eq!(nominated(&mut story, 1, shows(1, pods)), both);
}

#[test]
fn unready_or_missing_nodes_receive_no_nomination() {
    let changes: [fn(&mut crate::model::observed::Node); 2] =
        [|node| node.ready = false, |node| node.instance = None];
    for change in changes {
        let mut story = nominates(Mode::Full, 1);
        let Event::Observed(seen) = shows(1, &[("a", None)]) else { panic!("an observation") };
        let mut seen = Observed::clone(&seen);
        change(seen.nodes.get_mut("node-of-i-1").expect("it is there"));
        assert_eq!(nominated(&mut story, 1, Event::Observed(Arc::new(seen))), []);
    }
}

#[test]
fn refused_nominations_are_bounded_and_not_counted() {
    let mut story = nominates(Mode::Full, 2);
    let pods: &[PodOnNode<'_>] = &[("a", None), ("b", None)];
    for seconds in [0, 10, 20, 30, 40] {
        let found = nominated(&mut story, seconds, shows(seconds, pods));
        for (name, _) in &found {
            let end = if name == "a" { Err(refused()) } else { Ok(()) };
            answers(&mut story, seconds, name, end);
        }
        assert_eq!(found.len(), if seconds <= 20 { 2 } else { 0 }, "after {seconds} s");
    }
    assert_eq!(counted(&story, "nominations.refused"), 3);
    assert_eq!(counted(&story, "errors.kubernetes"), 3);
    let failing = story.state().status().failing_actions;
    assert_eq!(failing.len(), 1, "{failing:?}");
    // One reaches the same node by chance, the other because of its nomination.
    story.step_at(50, shows(50, &[("a", Some("node-of-i-1")), ("b", Some("node-of-i-1"))]));
    let counts =
        ["honoured", "dropped"].map(|name| counted(&story, &format!("nominations.{name}")));
    assert_eq!(counts, [1, 0]);
}

#[test]
fn bound_pods_count_as_honored_and_others_as_dropped() {
    let mut story = nominates(Mode::Full, 4);
    let pods: &[PodOnNode<'_>] = &[("a", None), ("b", None), ("c", None), ("d", None)];
    assert_eq!(nominated(&mut story, 1, shows(1, pods)).len(), 4);
    for name in ["a", "b", "c", "d"] {
        answers(&mut story, 1, name, Ok(()));
    }
    let now: &[PodOnNode<'_>] =
        &[("a", Some("node-of-i-1")), ("b", Some("node-of-i-2")), ("d", None)];
    story.step_at(2, shows(2, now));
    let counts = |story: &ControllerHarness| {
        ["made", "honoured", "dropped"].map(|name| counted(story, &format!("nominations.{name}")))
    };
    assert_eq!(counts(&story), [4, 1, 2]);
    // No pod counts twice, and a pending one does not count yet.
    story.step_at(3, shows(3, now));
    assert_eq!(counts(&story), [4, 1, 2]);
}

#[test]
fn nominations_need_leader_active_mode_and_setting() {
    let pods: &[PodOnNode<'_>] = &[("a", None)];
    let mut story = nominates(Mode::Observe, 1);
    assert_eq!(nominated(&mut story, 1, shows(1, pods)), []);
    let mut story = nominates(Mode::Full, 1);
    story.modify(|state| state.leadership.lose(None, false));
    assert_eq!(nominated(&mut story, 1, shows(1, pods)), []);
    let mut story = nominates(Mode::Full, 1);
    story.modify(|state| {
        let mut head = Revision::clone(state.revisions.served.as_ref().expect("it was read"));
        head.controller.nominate_pods = false;
        state.revisions.served = Some(Arc::new(head));
    });
    assert_eq!(nominated(&mut story, 1, shows(1, pods)), []);
}
