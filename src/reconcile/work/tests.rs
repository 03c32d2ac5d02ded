//! What is planned first where pods have come that wait, and what after it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::fleet::fixture::pod;
use crate::fleet::{CORDONED_ANNOTATION, Observed, Pod};
use crate::reconcile::fixture::{Story, world};
use crate::reconcile::{Event, Signal};
use crate::render::fixture;

/// Returns the world with pods that wait.
fn waits(seconds: i64, pods: &[&str]) -> Observed {
    let mut world = world(seconds);
    world.pods = pods.iter().map(|name| Arc::new(pod(name))).collect();
    world
}

/// Returns a plan that keeps every node.
fn keeps() -> Plan {
    let mut plan = fixture::plan();
    plan.capacity.waves.clear();
    plan
}

fn launches() -> Plan {
    let mut plan = Plan { applyable: true, ..fixture::plan() };
    plan.capacity.waves.retain(|wave| wave.step == WaveStep::Launch);
    plan.capacity.digest = "sha256:launches".into();
    plan
}

/// Returns a loop that leads and has planned a world with such pods, where nothing was to be done.
fn rests(mode: Mode, pods: &[&str]) -> Story {
    let mut story = Story::of(mode);
    story.next(1, Event::Signal(Signal::Gained));
    story.lives();
    story.next(2, Event::World(Arc::new(waits(2, pods))));
    // What was being planned before it led does not count.
    story.planned(2, keeps());
    story.planned(2, keeps());
    assert!(story.state().planning.is_none() && story.state().current.is_some());
    story
}

/// Returns which plan is being made, and whether it may only add.
fn being_made(story: &Story) -> Option<(Pass, bool)> {
    let planning = story.state().planning.as_ref()?;
    Some((planning.pass, planning.limits.only.as_ref().is_some_and(BTreeSet::is_empty)))
}

const AHEAD: Option<(Pass, bool)> = Some((Pass::Ahead, true));
const WHOLE: Option<(Pass, bool)> = Some((Pass::Round(0), false));

#[test]
fn for_pods_that_have_come_what_only_adds_is_planned_first() {
    let mut story = rests(Mode::Full, &[]);
    let known = story.state().current.as_ref().map(|current| Arc::clone(&current.plan));
    story.next(3, Event::World(Arc::new(waits(3, &["a"]))));
    assert_eq!(being_made(&story), AHEAD);
    story.planned(3, launches());
    let lanes: Vec<bool> = story.state().lanes.values().map(|lane| lane.removes).collect();
    assert_eq!(lanes, [false]);
    let parts = story.state().status().parts;
    assert_eq!(parts.len(), 1, "what is carried out has an object of its own");
    assert!(parts[0].plan.capacity.waves.iter().all(|wave| wave.step == WaveStep::Launch));
    // What is shown, and judged by, is the plan of everything.
    let current = story.state().current.as_ref().map(|current| Arc::clone(&current.plan));
    assert!(current.zip(known).is_some_and(|(now, before)| Arc::ptr_eq(&now, &before)));
}

#[test]
fn a_plan_of_everything_follows_where_nothing_is_to_be_added_or_not_all_of_it_may_be() {
    let mut story = rests(Mode::Full, &[]);
    let world = Arc::new(waits(3, &["a"]));
    story.next(3, Event::World(Arc::clone(&world)));
    story.planned(3, keeps());
    assert_eq!(being_made(&story), WHOLE);
    let over = story.state().planning.as_ref().map(|planning| Arc::clone(&planning.world));
    assert_eq!(over.as_deref(), Some(&*world));
    assert!(story.state().lanes.is_empty());
    let mut story = rests(Mode::Full, &[]);
    story.next(3, Event::World(world));
    story.planned(3, Plan { errored: true, ..launches() });
    assert_eq!(being_made(&story), WHOLE);
    assert!(story.state().lanes.is_empty());
}

#[test]
fn everything_is_planned_at_once_where_nobody_new_waits_or_a_launch_may_be_spared() {
    let mut cordoned = waits(3, &["a"]);
    for node in cordoned.nodes.values_mut().take(1) {
        node.unschedulable = true;
        node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "drain".to_owned());
    }
    let mut bound = waits(3, &["a"]);
    let node = bound.nodes.keys().next().cloned();
    bound.pods = bound
        .pods
        .iter()
        .map(|of| Arc::new(Pod { node: node.clone(), ..Pod::clone(of) }))
        .collect();
    for (why, mode, before, now) in [
        ("it waited before", Mode::Full, vec!["a", "b"], waits(3, &["a"])),
        ("it only looks on", Mode::Observe, vec![], waits(3, &["a"])),
        ("a drain that died left a node", Mode::Full, vec![], cordoned),
        ("it has a node", Mode::Full, vec![], bound),
    ] {
        let mut story = rests(mode, &before);
        story.next(3, Event::World(Arc::new(now)));
        assert_eq!(being_made(&story), WHOLE, "{why}");
    }
}

#[test]
fn in_mode_additive_the_plan_that_is_shown_is_the_one_that_is_approved_and_carried_out() {
    let mut story = rests(Mode::Additive, &[]);
    story.change(|state| {
        let head = Arc::make_mut(state.head.as_mut().expect("read"));
        head.controller.approval = crate::manifest::ApprovalRule::Digest;
    });
    story.next(3, Event::World(Arc::new(waits(3, &["a"]))));
    assert_eq!(being_made(&story), Some((Pass::Round(0), true)), "nothing is planned twice");
    story.planned(3, launches());
    assert!(story.state().lanes.is_empty(), "nobody has approved it");
    let plan = story.state().status().plan.expect("it is shown");
    let shown = plan.plan.capacity.digest.clone();
    assert_eq!(shown, launches().capacity.digest);
    let asks = |held: &HeldBy| held.why == Held::NotApproved { digest: shown.clone() };
    assert!(!plan.held.is_empty() && plan.held.values().all(asks), "{:?}", plan.held);
    let (digest, by) = (shown, "a".to_owned());
    let request = crate::reconcile::Request::Approve { digest, by };
    story.next(4, Event::Signal(Signal::Request(request)));
    story.planned(4, launches());
    assert_eq!(story.state().lanes.len(), 1);
}

#[test]
fn a_plan_of_everything_is_not_put_off_for_ever_by_pods_that_keep_coming() {
    let mut story = rests(Mode::Full, &[]);
    let mut whole_after = None;
    for seconds in 3..200 {
        let names: Vec<String> = (0..seconds).map(|n| format!("pod-{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        story.next(seconds, Event::World(Arc::new(waits(seconds, &names))));
        if being_made(&story) == WHOLE {
            whole_after = Some(seconds - 3);
            break;
        }
        assert_eq!(being_made(&story), AHEAD);
        // It launches, and is over at once.
        story.planned(seconds, launches());
        story.change(|state| {
            state.lanes.clear();
            state.need = 0;
        });
    }
    assert_eq!(whole_after, Some(AHEAD_MOST.as_secs()));
    // Once that is made, launches come first again.
    story.planned(100, keeps());
    story.next(101, Event::World(Arc::new(waits(101, &["another"]))));
    assert_eq!(being_made(&story), AHEAD);
}
