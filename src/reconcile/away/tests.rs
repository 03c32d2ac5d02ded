//! What is done of messages while an apply has the lease, or another autoscaler runs.

mod drains;
mod members;
mod observed;

use std::sync::Arc;

use jiff::Timestamp;

use super::course::{Awaits, Came, Moment, Scene};
use super::*;
use crate::fleet::{
    CORDONED_ANNOTATION, Completeness, LiveWorkload, Membership, PodPhase, fixture,
};
use crate::ids::{WorkloadId, WorkloadKind};
use crate::plan::wire::{Action, KeepReason, PlacementRow, Reason};
use crate::pod::PodTemplate;
use crate::port::Fate;
use crate::reconcile::Kind;
use crate::reconcile::current::Current;
use crate::reconcile::fixture::{Story, at, has_one_go, world};
use crate::reconcile::status::Held;
use crate::story::workload_id;

/// Returns the same with a pod of Karpenter.
fn with_karpenter(mut world: Observed) -> Observed {
    let (namespace, name) = ("kube-system".into(), "karpenter".into());
    let owner = WorkloadId { namespace, kind: WorkloadKind::Deployment, name };
    world.workloads.push(LiveWorkload {
        id: owner.clone(),
        replicas: 1,
        first_ordinal: 0,
        delivered: false,
        template: None,
    });
    world.pods.push(Arc::new(Pod {
        namespace: "kube-system".into(),
        owner: Some(owner),
        phase: PodPhase::Running,
        ..fixture::pod("karpenter-1")
    }));
    world
}

fn lost(to_apply: bool) -> Event {
    Event::Signal(Signal::Lost { holder: Some("ci".to_owned()), to_apply })
}

#[test]
fn while_an_apply_has_the_lease_nodes_of_ours_that_have_no_time_left_are_cordoned_and_nothing_else()
{
    let mut story = Story::begin();
    assert_eq!(story.next(1, lost(true)), [""; 0]);
    assert!(story.state().takes_messages() && story.state().status().lent);
    let shields = ["shields node-of-i-1 uid-of-i-1"];
    for (what, kind, ids, within, expected) in [
        (
            "ours, one of others, and a stranger",
            Kind::SpotInterruption,
            &["i-1", "i-9", "i-7"][..],
            Some(120),
            &shields[..],
        ),
        ("it comes again", Kind::SpotInterruption, &["i-1"], Some(90), &shields),
        ("hours are left", Kind::Health, &["i-1"], Some(20_000), &[]),
        ("nobody says when", Kind::Health, &["i-2"], None, &[]),
        ("minutes are left", Kind::Reservation, &["i-1"], Some(200), &shields),
        ("it stays where it is", Kind::Rebalance, &["i-2"], None, &[]),
        ("a hint", Kind::StateChange, &["i-2"], Some(0), &[]),
    ] {
        assert_eq!(story.told(2, kind, ids, within), expected, "{what}");
    }
    // One that is cordoned need not be again, whoever did it.
    let mut seen = world(3);
    seen.nodes.values_mut().for_each(|node| node.unschedulable = true);
    story.next(3, Event::World(Arc::new(seen)));
    assert_eq!(story.told(4, Kind::SpotInterruption, &["i-1"], Some(60)), [""; 0]);
    assert!(story.state().going().is_empty(), "it is for who leads next");
}

#[test]
fn who_leads_next_takes_over_what_was_shielded_and_takes_its_message_off() {
    let mut story = Story::begin();
    story.next(1, lost(true));
    story.told(2, Kind::SpotInterruption, &["i-1"], Some(120));
    story.next(3, Event::Shielded { node: "node-of-i-1".into(), end: Ok(CordonOutcome::Written) });
    let mut seen = world(4);
    let node = seen.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it");
    node.unschedulable = true;
    let seen = Arc::new(seen);
    story.next(5, Event::World(Arc::clone(&seen)));
    story.next(6, Event::Signal(Signal::Gained));
    story.lives();
    story.next(7, Event::World(Arc::clone(&seen)));
    // The queue shows it again. It is cordoned already; it is kept before the message is taken off.
    assert_eq!(story.told(8, Kind::SpotInterruption, &["i-1"], Some(60)), [""; 0]);
    assert_eq!(story.state().going(), ["i-1".into()].into());
    let mut all = Vec::new();
    for n in 9..14 {
        all.extend(story.next(n, Event::World(Arc::clone(&seen))));
        all.extend(story.next(n, Event::Saved(Ok(()))));
    }
    assert!(all.contains(&"takes off r".to_owned()), "{all:?}");
    assert!(!all.iter().any(|deed| deed.starts_with("cordons")), "{all:?}");
}

/// Returns the world with the node of `i-1` cordoned for a drain.
fn with_a_drain(seconds: i64) -> Observed {
    let mut world = world(seconds);
    let node = world.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it");
    node.unschedulable = true;
    node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "drain".to_owned());
    world
}

fn leads() -> Story {
    let mut story = Story::begin();
    story.next(1, Event::Signal(Signal::Gained));
    story.lives();
    story
}

fn cordoned(end: CordonOutcome) -> Event {
    let mark = Some(CordonedFor::Leaving);
    Event::Cordoned { instance: "i-1".into(), mark, end: Ok(end) }
}

#[test]
fn a_node_that_stands_cordoned_for_a_drain_stands_so_for_its_machine_that_goes_before_its_message_is_taken_off()
 {
    let mut story = leads();
    story.next(2, Event::World(Arc::new(with_a_drain(2))));
    let done = story.told(3, Kind::SpotInterruption, &["i-1"], Some(120));
    assert_eq!(done, ["cordons node-of-i-1"], "who drains it would uncordon it");
    assert_eq!(story.saves(3), [""; 0]);
    assert_eq!(story.next(4, cordoned(CordonOutcome::Written)), ["takes off r"]);
}

#[test]
fn what_was_written_since_it_was_seen_is_looked_at_again_before_it_is_cordoned() {
    let mut story = leads();
    story.next(2, Event::World(Arc::new(world(2))));
    let done = story.told(3, Kind::SpotInterruption, &["i-1"], Some(120));
    assert_eq!(done, ["cordons node-of-i-1"]);
    assert_eq!(story.saves(3), [""; 0]);
    assert_eq!(story.next(4, cordoned(CordonOutcome::Outdated)), [""; 0]);
    assert!(story.state().status().failing.is_empty());
    // The look that was under way may be of before.
    story.next(6, Event::World(Arc::new(world(6))));
    let done = story.next(10, Event::World(Arc::new(world(10))));
    assert_eq!(done, ["cordons node-of-i-1"]);
    assert_eq!(story.next(11, cordoned(CordonOutcome::Written)), ["takes off r"]);
}

#[test]
fn whoever_has_lost_the_lease_leaves_what_goes_to_others_and_recalls_what_they_kept() {
    let mut story = leads();
    story.next(2, Event::World(Arc::new(world(2))));
    let done = story.told(3, Kind::SpotInterruption, &["i-1"], Some(120));
    assert_eq!(done, ["cordons node-of-i-1"]);
    assert_eq!(story.next(4, lost(false)), [""; 0]);
    assert!(!story.state().status().lent);
    assert!(story.state().going().is_empty());
    assert_eq!(story.next(5, Event::World(Arc::new(world(5)))), [""; 0]);
    story.next(6, Event::Signal(Signal::Gained));
    assert!(story.state().kept.is_none() && story.state().recalling);
}

#[test]
fn a_shield_that_came_too_late_has_the_world_looked_at_before_its_message_comes_again() {
    let mut story = Story::begin();
    story.next(1, lost(true));
    story.told(2, Kind::SpotInterruption, &["i-1"], Some(120));
    let end = Ok(CordonOutcome::Outdated);
    story.next(3, Event::Shielded { node: "node-of-i-1".into(), end });
    assert!(story.state().world_due <= at(5));
    assert!(story.state().status().failing.is_empty());
}

#[test]
fn whoever_has_no_lease_and_no_apply_to_wait_for_leaves_messages_alone() {
    let mut story = Story::begin();
    story.next(1, lost(false));
    assert!(!story.state().takes_messages());
    assert_eq!(story.told(2, Kind::SpotInterruption, &["i-1"], Some(120)), [""; 0]);
}

#[test]
fn while_another_autoscaler_runs_no_message_is_received_or_taken_off() {
    let mut story = Story::begin();
    story.next(1, Event::Signal(Signal::Gained));
    story.lives();
    story.next(2, Event::World(Arc::new(world(2))));
    assert!(story.state().takes_messages());
    let rival = Arc::new(with_karpenter(world(100)));
    story.next(100, Event::World(Arc::clone(&rival)));
    assert!(story.state().rival().is_some() && !story.state().takes_messages());
    // What was on its way here by then is left alone as well: of strangers, of nobody, of ours.
    for ids in [&["i-7"][..], &["i-9"], &[], &["i-1"]] {
        assert_eq!(story.told(101, Kind::SpotInterruption, ids, Some(120)), [""; 0], "{ids:?}");
    }
    for n in 102..106 {
        assert_eq!(story.next(n, Event::World(Arc::clone(&rival))), [""; 0]);
    }
    // What was shown to the other one meanwhile is theirs; what comes once they have gone is ours.
    story.next(200, Event::World(Arc::new(world(200))));
    assert!(story.state().takes_messages());
    let done = story.told(201, Kind::SpotInterruption, &["i-1"], Some(120));
    assert_eq!(done, ["cordons node-of-i-1"]);
}

/// Returns the world with the node of `i-1` cordoned.
fn shows_cordoned(seconds: i64) -> Event {
    let mut seen = world(seconds);
    let node = seen.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it");
    node.unschedulable = true;
    Event::World(Arc::new(seen))
}

#[test]
fn a_look_that_was_begun_before_a_cordon_was_over_says_nothing_of_what_is_on_the_node() {
    let (verb, reason) = ("cordon node".to_owned(), "the answer was lost".to_owned());
    let lost = PortError { verb, reason, fate: Fate::Unknown };
    for end in [Ok(CordonOutcome::Written), Err(lost)] {
        let mut story = Story::begin();
        story.next(1, Event::Signal(Signal::Gained));
        story.lives();
        story.next(2, Event::World(Arc::new(world(2))));
        let done = story.told(100, Kind::SpotInterruption, &["i-1"], Some(60));
        assert_eq!(done, ["cordons node-of-i-1"]);
        // What this look has read of pods may be of before the cordon, what it has read of nodes of after it.
        assert!(story.state().observing, "it is looked at while it is cordoned");
        let no_end = |done: Vec<String>| !done.contains(&"ends i-1".to_owned());
        for n in 101..104 {
            assert!(no_end(story.next(n, shows_cordoned(n))), "the cordon is not over");
        }
        let (looks, mark) = (story.state().looks, Some(CordonedFor::Leaving));
        assert!(no_end(story.next(104, Event::Cordoned { instance: "i-1".into(), mark, end })));
        let mut all = Vec::new();
        for n in 105..120 {
            assert!(all.is_empty() || story.state().looks > looks, "{all:?} without another look");
            all.extend(story.next(n, shows_cordoned(n)));
        }
        assert!(all.contains(&"ends i-1".to_owned()), "{all:?}");
    }
}

#[test]
fn a_message_about_a_machine_without_a_node_is_taken_off_after_a_look_that_was_begun_since() {
    let mut story = Story::begin();
    let seen = |seconds: i64| {
        let mut seen = world(seconds);
        seen.nodes.remove(&NodeName::from("node-of-i-1"));
        Event::World(Arc::new(seen))
    };
    story.next(1, seen(1));
    // Another life, which has never seen it.
    story.change(|state| state.health.joined.clear());
    story.next(1, Event::Signal(Signal::Gained));
    story.lives();
    story.next(2, seen(2));
    assert_eq!(story.told(100, Kind::SpotInterruption, &["i-1"], Some(120)), [""; 0]);
    assert!(story.state().observing, "a node of it may have joined since the last look");
    let mut all = story.next(101, Event::Saved(Ok(())));
    assert_eq!(all, [""; 0], "it is kept, and the last look is of before the message");
    for n in 102..106 {
        all.extend(story.next(n, seen(n)));
        if story.state().saving.is_some() {
            all.extend(story.next(n, Event::Saved(Ok(()))));
        }
    }
    assert_eq!(all, ["takes off r"]);
    // It was not heard, and comes again while nobody knows whether a node has joined.
    let reason = "the second page was not answered".to_owned();
    let mut part = world(110);
    part.sources.insert("kubernetes".to_owned(), Completeness::Partial { reason });
    assert_eq!(story.next(110, Event::World(Arc::new(part))), [""; 0]);
    assert_eq!(story.told(111, Kind::SpotInterruption, &["i-1"], Some(120)), [""; 0]);
    assert!(story.next(112, seen(112)).contains(&"takes off r".to_owned()));
}

#[test]
fn a_message_about_a_machine_that_was_just_launched_waits_until_ec2_shows_it() {
    // It was launched by this life; or asked for by one that died before there was an answer.
    for heard in [true, false] {
        let mut story = Story::begin();
        story.next(1, Event::Signal(Signal::Gained));
        story.lives();
        story.next(2, Event::World(Arc::new(world(2))));
        let id = InstanceId::from("i-3");
        story.change(|state| {
            if heard {
                state.unseen.launch(&id, at(3));
            } else {
                let asked = r#"{"plan": "p", "at": "1970-01-12T13:46:43Z", "more": 1}"#;
                let asked = serde_json::from_str(asked).expect("reads");
                state.kept.as_mut().expect("recalled").asked.push(asked);
            }
        });
        assert_eq!(story.told(10, Kind::SpotInterruption, &["i-3"], Some(120)), [""; 0]);
        for n in [11, 30] {
            story.change(|state| state.world_due = at(n));
            story.next(n, Event::Timer);
            assert_eq!(story.next(n, Event::World(Arc::new(world(n)))), [""; 0], "it is late");
        }
        let mut shows = world(40);
        let found = fixture::ours("i-3", "c");
        shows.instances.insert(id.clone(), Instance { launched_at: at(3), ..found });
        story.change(|state| state.world_due = at(40));
        story.next(40, Event::Timer);
        story.next(40, Event::World(Arc::new(shows)));
        assert_eq!(story.state().going(), [id.clone()].into());
        // A look that is older than that one does not say that it is gone.
        story.next(45, Event::World(Arc::new(world(45))));
        assert_eq!(story.state().going(), [id].into());
    }
}
