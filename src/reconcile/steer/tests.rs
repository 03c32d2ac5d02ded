//! The bounds of steering, and what is counted of it.

use std::sync::Arc;

use super::*;
use crate::fleet::fixture::pod;
use crate::ids::{WorkloadId, WorkloadKind};
use crate::plan::wire::PlacementRow;
use crate::port::Fate;
use crate::reconcile::current::Current;
use crate::reconcile::fixture::{Story, at, world};
use crate::reconcile::{Event, Head, Mode, Signal};
use crate::render::fixture;

/// A pod, and the node it is on.
type Seen<'a> = (&'a str, Option<&'a str>);

fn owner() -> WorkloadId {
    let kind = WorkloadKind::Deployment;
    WorkloadId { kind, namespace: "web".into(), name: "api".into() }
}

fn shows(seconds: i64, pods: &[Seen<'_>]) -> Event {
    let mut world = world(seconds);
    let one = |(name, node): &Seen<'_>| {
        let (uid, node) = (format!("uid-of-{name}").as_str().into(), node.map(NodeName::from));
        Arc::new(Pod { uid, node, owner: Some(owner()), ..pod(name) })
    };
    world.pods = pods.iter().map(one).collect();
    Event::World(Arc::new(world))
}

/// Returns a plan that has `pods` of one workload on the node of `i-1`.
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

/// Returns a loop that leads and steers, and has a plan for so many pods.
fn steers(mode: Mode, pods: u32) -> Story {
    let mut story = Story::of(mode);
    story.next(0, Event::Signal(Signal::Gained));
    story.lives();
    story.change(|state| {
        let mut head = Head::clone(state.head.as_ref().expect("it was read"));
        head.controller.steer = true;
        state.head = Some(Arc::new(head));
        state.current = Some(Current::new(Arc::new(places_on_first(pods)), at(0)));
    });
    story
}

/// Returns which pods a step nominates, and where.
fn nominated(story: &mut Story, seconds: i64, event: Event) -> Vec<(String, String)> {
    let mut found = Vec::new();
    story.change(|state| {
        let (next, effects) = crate::reconcile::step(state.clone(), event, at(seconds));
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

fn counted(story: &Story, name: &str) -> u64 {
    story.state().timing.counters.get(name).copied().unwrap_or(0)
}

fn answers(story: &mut Story, seconds: i64, name: &str, end: Result<(), PortError>) {
    let pod = format!("uid-of-{name}").as_str().into();
    story.next(seconds, Event::Nominated { pod, end });
}

fn refused() -> PortError {
    let (verb, reason) = ("nominate pod".to_owned(), "the pod has changed: conflict".to_owned());
    PortError { verb, reason, fate: Fate::TurnedAway }
}

#[test]
fn a_pod_whose_nomination_is_cleared_is_nominated_three_times_ten_seconds_apart_and_then_no_more() {
    let mut story = steers(Mode::Full, 1);
    let waits: &[Seen<'_>] = &[("a", None)];
    assert_eq!(nominated(&mut story, 10, shows(10, waits)), [on_first("a")]);
    answers(&mut story, 10, "a", Ok(()));
    // The scheduler has cleared it, and every look shows the pod waiting.
    for (seconds, again) in [(11, false), (19, false), (20, true), (29, false), (30, true)] {
        let found = nominated(&mut story, seconds, shows(seconds, waits));
        assert_eq!(found.len(), usize::from(again), "after {seconds} s");
        answers(&mut story, seconds, "a", Ok(()));
    }
    for seconds in [40, 50, 3_600] {
        assert_eq!(nominated(&mut story, seconds, shows(seconds, waits)), []);
    }
    assert_eq!(counted(&story, "nominations.made"), 3);
    // It goes wherever the scheduler has it, and that is what counts in the end.
    story.next(3_601, shows(3_601, &[("a", Some("node-of-i-2"))]));
    let counts =
        ["honoured", "dropped"].map(|name| counted(&story, &format!("nominations.{name}")));
    assert_eq!(counts, [0, 1]);
}

#[test]
fn a_hundred_pods_are_nominated_at_once_and_the_others_after_them() {
    let names: Vec<String> = (0..250).map(|n| format!("p{n:03}")).collect();
    let pods: Vec<Seen<'_>> = names.iter().map(|name| (name.as_str(), None)).collect();
    let mut story = steers(Mode::Full, 250);
    let mut all = std::collections::BTreeSet::new();
    for (seconds, at_once) in [(1, 100), (2, 100), (3, 50), (4, 0)] {
        let found = nominated(&mut story, seconds, shows(seconds, &pods));
        assert_eq!(found.len(), at_once, "after {seconds} s");
        all.extend(found);
    }
    assert_eq!((all.len(), counted(&story, "nominations.made")), (250, 250));
}

#[test]
fn no_more_pods_are_nominated_to_a_node_than_the_plan_has_there() {
    let mut story = steers(Mode::Full, 2);
    let pods: &[Seen<'_>] = &[("a", None), ("b", None), ("c", None)];
    let both = [on_first("a"), on_first("b")];
    assert_eq!(nominated(&mut story, 1, shows(1, pods)), both);
}

#[test]
fn a_node_that_is_not_ready_or_not_there_is_no_place_to_nominate_to() {
    let changes: [fn(&mut crate::fleet::Node); 2] =
        [|node| node.ready = false, |node| node.instance = None];
    for change in changes {
        let mut story = steers(Mode::Full, 1);
        let Event::World(seen) = shows(1, &[("a", None)]) else { panic!("a look") };
        let mut seen = Observed::clone(&seen);
        change(seen.nodes.get_mut("node-of-i-1").expect("it is there"));
        assert_eq!(nominated(&mut story, 1, Event::World(Arc::new(seen))), []);
    }
}

#[test]
fn what_is_refused_every_time_is_tried_three_times_holds_up_nothing_and_counts_for_no_hint() {
    let mut story = steers(Mode::Full, 2);
    let pods: &[Seen<'_>] = &[("a", None), ("b", None)];
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
    let failing = story.state().status().failing;
    assert_eq!(failing.len(), 1, "{failing:?}");
    // By chance it comes to the same node; the other does because it was told.
    story.next(50, shows(50, &[("a", Some("node-of-i-1")), ("b", Some("node-of-i-1"))]));
    let counts =
        ["honoured", "dropped"].map(|name| counted(&story, &format!("nominations.{name}")));
    assert_eq!(counts, [1, 0]);
}

#[test]
fn pods_count_as_honoured_where_they_were_nominated_to_and_as_dropped_elsewhere_or_gone() {
    let mut story = steers(Mode::Full, 4);
    let pods: &[Seen<'_>] = &[("a", None), ("b", None), ("c", None), ("d", None)];
    assert_eq!(nominated(&mut story, 1, shows(1, pods)).len(), 4);
    for name in ["a", "b", "c", "d"] {
        answers(&mut story, 1, name, Ok(()));
    }
    let now: &[Seen<'_>] = &[("a", Some("node-of-i-1")), ("b", Some("node-of-i-2")), ("d", None)];
    story.next(2, shows(2, now));
    let counts = |story: &Story| {
        ["made", "honoured", "dropped"].map(|name| counted(story, &format!("nominations.{name}")))
    };
    assert_eq!(counts(&story), [4, 1, 2]);
    // None counts twice, and one that waits still does not count yet.
    story.next(3, shows(3, now));
    assert_eq!(counts(&story), [4, 1, 2]);
}

#[test]
fn nobody_is_nominated_by_who_only_looks_on_does_not_lead_or_was_not_asked_to() {
    let pods: &[Seen<'_>] = &[("a", None)];
    let mut story = steers(Mode::Observe, 1);
    assert_eq!(nominated(&mut story, 1, shows(1, pods)), []);
    let mut story = steers(Mode::Full, 1);
    story.change(|state| state.leader = false);
    assert_eq!(nominated(&mut story, 1, shows(1, pods)), []);
    let mut story = steers(Mode::Full, 1);
    story.change(|state| {
        let mut head = Head::clone(state.head.as_ref().expect("it was read"));
        head.controller.steer = false;
        state.head = Some(Arc::new(head));
    });
    assert_eq!(nominated(&mut story, 1, shows(1, pods)), []);
}
