//! Which nodes are uncordoned that somebody left so, and which are not.

use std::sync::Arc;

use super::*;
use crate::fleet::{CORDONED_ANNOTATION, Observed};
use crate::port::{CordonOutcome, Fate};
use crate::reconcile::fixture::{Story, at, has_one_go, world};
use crate::reconcile::status::Suspension;
use crate::reconcile::{Event, Kind, Signal};
use crate::render::fixture;

/// Returns the world with both nodes of ours, and that of others, cordoned under a mark, if any.
fn cordoned(seconds: i64, mark: Option<&str>) -> Observed {
    let mut world = world(seconds);
    for node in world.nodes.values_mut() {
        node.unschedulable = true;
        let mark = mark.map(|mark| (CORDONED_ANNOTATION.to_owned(), mark.to_owned()));
        node.annotations.extend(mark);
    }
    world
}

/// Returns a plan that keeps every node.
fn keeps() -> Plan {
    let mut plan = fixture::plan();
    plan.capacity.waves.clear();
    plan
}

/// Returns a loop that leads and has just seen `world`.
fn leads(mode: Mode, world: Observed) -> Story {
    let mut story = Story::of(mode);
    story.next(1, Event::Signal(Signal::Gained));
    story.lives();
    story.next(2, Event::World(Arc::new(world)));
    // What was being planned before it led does not count.
    assert_eq!(story.planned(2, keeps()), [""; 0]);
    story
}

/// Returns that uncordoning the node of a machine ended so.
fn uncordoned(instance: &str, end: Result<CordonOutcome, PortError>) -> Event {
    Event::Cordoned { instance: instance.into(), mark: None, end }
}

const FIRST: &str = "uncordons node-of-i-1";
const SECOND: &str = "uncordons node-of-i-2";

#[test]
fn what_a_drain_left_cordoned_and_a_plan_keeps_takes_pods_again_before_anything_else_is_done() {
    let mut story = leads(Mode::Full, cordoned(2, Some("drain")));
    assert_eq!(story.planned(3, keeps()), [FIRST, SECOND]);
    assert!(story.state().planning.is_none() && story.state().lanes.is_empty());
    // Meanwhile nothing is planned: it would count without them.
    story.next(4, Event::World(Arc::new(cordoned(4, Some("drain")))));
    assert!(story.state().planning.is_none());
    for id in ["i-1", "i-2"] {
        assert_eq!(story.next(5, uncordoned(id, Ok(CordonOutcome::Written))), [""; 0]);
    }
    assert!(story.state().planning.is_none(), "what was seen before does not count");
    // One look was under way when the second was heard of.
    for seconds in [6, 7] {
        assert!(story.state().planning.is_none());
        story.next(seconds, Event::World(Arc::new(world(seconds))));
    }
    assert_eq!(story.planned(8, keeps()), [""; 0]);
    let status = story.state().status();
    assert_eq!(status.counters["nodes.uncordoned"], 2);
    let told: Vec<_> = status.uncordoned.iter().map(|one| (one.node.as_str(), one.at)).collect();
    assert_eq!(told, [("node-of-i-2", at(5)), ("node-of-i-1", at(5))]);
}

#[test]
fn what_somebody_else_cordoned_what_goes_and_what_may_go_stays_cordoned() {
    let drain = Some("drain");
    for (what, mode, mark, plan, expected) in [
        ("kept", Mode::Full, drain, keeps(), &[FIRST, SECOND][..]),
        ("one goes", Mode::Full, drain, has_one_go(), &[SECOND]),
        (
            "where nothing may be removed nothing goes",
            Mode::Additive,
            drain,
            has_one_go(),
            &[FIRST, SECOND],
        ),
        ("a person did it", Mode::Full, None, keeps(), &[]),
        ("it may be known tomorrow that it goes", Mode::Full, Some("leaving"), keeps(), &[]),
        ("another version did it", Mode::Full, Some("true"), keeps(), &[]),
        ("it only looks on", Mode::Observe, drain, keeps(), &[]),
        ("the repository has errors", Mode::Full, drain, Plan { errored: true, ..keeps() }, &[]),
    ] {
        let mut story = leads(mode, cordoned(2, mark));
        assert_eq!(story.planned(3, plan), expected, "{what}");
    }
}

#[test]
fn a_machine_that_goes_by_itself_a_loop_that_is_suspended_and_one_that_ends_leave_it() {
    let drain = Some("drain");
    let mut story = leads(Mode::Full, cordoned(2, drain));
    // From now on it stands cordoned for that.
    let done = story.told(3, Kind::SpotInterruption, &["i-1"], Some(120));
    assert_eq!(done, ["cordons node-of-i-1"]);
    // The plan that was being made counted with it.
    assert_eq!(story.planned(4, keeps()), [""; 0]);
    assert_eq!(story.planned(4, keeps()), [SECOND]);

    let mut story = leads(Mode::Full, cordoned(2, drain));
    let (reason, by) = ("a migration".to_owned(), "alice".to_owned());
    let suspended = Suspension { reason, until: None, since: at(2), by };
    story.change(|state| {
        state.kept.as_mut().expect("it was recalled").suspended = Some(suspended);
    });
    assert_eq!(story.planned(3, keeps()), [""; 0]);

    let mut story = leads(Mode::Full, cordoned(2, drain));
    story.next(3, Event::Signal(Signal::Shutdown));
    assert_eq!(story.planned(4, keeps()), [""; 0]);
}

#[test]
fn one_whose_machine_was_to_go_by_itself_waits_for_its_message_to_come_again() {
    let mut story = leads(Mode::Full, cordoned(2, Some("leaving")));
    let mut done = Vec::new();
    for n in 0_i64..40 {
        let seconds = 3 + 20 * n;
        let world = Arc::new(cordoned(seconds, Some("leaving")));
        done.extend(story.next(seconds, Event::World(world)).into_iter().map(|deed| (n, deed)));
        if story.state().planning.is_some() {
            done.extend(story.planned(seconds, keeps()).into_iter().map(|deed| (n, deed)));
        }
    }
    let expected = [FIRST, SECOND].map(|deed| (30, deed.to_owned()));
    assert_eq!(done, expected);
}

#[test]
fn a_mark_is_taken_off_a_node_that_takes_pods_at_once_and_counts_as_nothing_that_was_uncordoned() {
    for mark in ["drain", "leaving", "true"] {
        let mut world = cordoned(2, Some(mark));
        world.nodes.values_mut().for_each(|node| node.unschedulable = false);
        let mut story = leads(Mode::Full, world);
        assert_eq!(story.planned(3, keeps()), [FIRST, SECOND], "{mark}");
        for id in ["i-1", "i-2"] {
            story.next(4, uncordoned(id, Ok(CordonOutcome::Written)));
        }
        let status = story.state().status();
        assert!(!status.counters.contains_key("nodes.uncordoned") && status.uncordoned.is_empty());
    }
}

#[test]
fn where_somebody_wrote_the_node_since_it_is_looked_at_again_and_nothing_failed() {
    let mut story = leads(Mode::Full, cordoned(2, Some("drain")));
    assert_eq!(story.planned(3, keeps()), [FIRST, SECOND]);
    story.next(4, uncordoned("i-1", Ok(CordonOutcome::Outdated)));
    story.next(4, uncordoned("i-2", Ok(CordonOutcome::Outdated)));
    let status = story.state().status();
    assert!(status.failing.is_empty() && !status.counters.contains_key("nodes.uncordoned"));
    // A person has cordoned the first one meanwhile.
    let mut seen = cordoned(5, Some("drain"));
    let first = seen.nodes.values_mut().next().expect("one");
    first.annotations.clear();
    let seen = Arc::new(seen);
    story.next(5, Event::World(Arc::clone(&seen)));
    story.next(6, Event::World(seen));
    assert_eq!(story.planned(7, keeps()), [SECOND]);
}

#[test]
fn a_node_that_somebody_writes_all_the_time_keeps_nothing_else_waiting() {
    let mut story = leads(Mode::Full, cordoned(2, Some("drain")));
    let mut tries = 0;
    for second in 1..40 {
        let done = story.planned(3 * second, keeps());
        if done.is_empty() {
            break;
        }
        tries += 1;
        for id in ["i-1", "i-2"] {
            story.next(3 * second + 1, uncordoned(id, Ok(CordonOutcome::Outdated)));
        }
        let seen = Arc::new(cordoned(3 * second + 2, Some("drain")));
        story.next(3 * second + 2, Event::World(Arc::clone(&seen)));
        story.next(3 * second + 2, Event::World(seen));
    }
    assert_eq!(tries, 4, "once, and three times more");
}

#[test]
fn a_machine_that_goes_is_cordoned_again_where_its_node_was_being_uncordoned() {
    let mut story = leads(Mode::Full, cordoned(2, Some("drain")));
    assert_eq!(story.planned(3, keeps()), [FIRST, SECOND]);
    // It is heard of while the write is under way, and stands cordoned as far as is known.
    story.told(4, Kind::SpotInterruption, &["i-1"], Some(120));
    let leaving = CordonOutcome::Outdated;
    let mark = Some(CordonedFor::Leaving);
    let cordoned_again = |end| Event::Cordoned { instance: "i-1".into(), mark, end: Ok(end) };
    story.next(5, cordoned_again(leaving));
    let mut done = story.saves(5);
    done.extend(story.next(5, uncordoned("i-1", Ok(CordonOutcome::Written))));
    done.extend(story.saves(6));
    assert_eq!(done, [""; 0], "its message stays, and nobody takes its uncordon for a cordon");
    let mut open = cordoned(7, Some("drain"));
    let first = open.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it");
    (first.unschedulable, first.annotations) = (false, [].into());
    let open = Arc::new(open);
    let mut done = story.next(8, Event::World(Arc::clone(&open)));
    done.extend(story.next(9, Event::World(open)));
    assert_eq!(done, ["cordons node-of-i-1"]);
    let done = story.next(10, cordoned_again(CordonOutcome::Written));
    assert_eq!(done, ["takes off r"]);
}

#[test]
fn where_it_fails_it_is_tried_again_after_a_while_and_holds_nothing_up() {
    let mut story = leads(Mode::Full, cordoned(2, Some("drain")));
    assert_eq!(story.planned(3, keeps()).len(), 2);
    for id in ["i-1", "i-2"] {
        let error = PortError {
            verb: "cordon node".to_owned(),
            reason: "too many requests".to_owned(),
            fate: Fate::TurnedAway,
        };
        story.next(4, uncordoned(id, Err(error)));
    }
    let mut done = Vec::new();
    for n in 0..40 {
        let seconds = 5 + 10 * n;
        story.next(seconds, Event::World(Arc::new(cordoned(seconds, Some("drain")))));
        if story.state().planning.is_some() {
            done.push((seconds, story.planned(seconds, keeps()).len()));
        }
    }
    assert_eq!(done, [(5, 0), (305, 2)], "a plan at once, and one more try");
    assert!(!story.state().status().counters.contains_key("nodes.uncordoned"));
    // A clock that is set back makes nobody wait for longer.
    for id in ["i-1", "i-2"] {
        story.next(-7_000, uncordoned(id, Ok(CordonOutcome::Written)));
    }
    for _ in 0..2 {
        story.next(-6_999, Event::World(Arc::new(cordoned(-6_999, Some("drain")))));
    }
    assert_eq!(story.planned(-6_999, keeps()), [""; 0]);
    let mut tried = 0;
    for n in 0..40 {
        let seconds = -6_990 + 10 * n;
        story.next(seconds, Event::World(Arc::new(cordoned(seconds, Some("drain")))));
        if story.state().planning.is_some() {
            tried += story.planned(seconds, keeps()).len();
        }
    }
    assert_eq!(tried, 2);
}
