//! Removals: they count before they are begun, and no longer where they do not come about.

use super::*;
use crate::fleet::{CORDONED_ANNOTATION, Completeness, CordonedFor};
use crate::port::{CordonOutcome, Fate, PortError};
use crate::reconcile::Kind;
use crate::reconcile::fixture::has_one_go;

/// Returns a loop that was given a plan by which `i-1` goes, and may have it go at once.
pub(super) fn removes() -> Story {
    let mut story = Story::begin();
    story.change(|state| {
        let head = Arc::make_mut(state.head.as_mut().expect("read"));
        head.controller.settle = SignedDuration::ZERO;
    });
    story.next(1, Heard::Signal(Signal::Gained));
    story.next(2, Heard::Recalled(Ok(Box::default())));
    story.next(2, Heard::World(Arc::new(world(2))));
    // What was being planned before it led does not count.
    story.planned(2, has_one_go());
    story.planned(3, has_one_go());
    story
}

/// Returns the machines that count as removed, and whether they are about to be.
fn counted(story: &Story) -> Vec<(&str, bool)> {
    let kept = story.state().kept.as_ref().expect("recalled");
    kept.removed.iter().map(|removal| (removal.instance.as_str(), removal.open)).collect()
}

/// Returns whether what is carried out waits to be begun.
fn waits(story: &Story) -> bool {
    let lane = story.state().lanes.values().next();
    lane.expect("it is carried out").begins.is_some()
}

#[test]
fn a_removal_is_begun_once_it_is_kept_that_it_counts() {
    let mut story = removes();
    assert_eq!(counted(&story), [("i-1", true)]);
    assert!(waits(&story), "it is not kept yet");
    story.saves(4);
    assert!(!waits(&story));
}

#[test]
fn what_can_no_more_be_kept_or_read_before_a_removal_is_begun_ends_it_uncounted() {
    let (verb, reason) = ("write record".to_owned(), "the answer was lost".to_owned());
    let lost = PortError { verb, reason, fate: Fate::Unknown };
    let reason = "the second page was not answered".to_owned();
    let mut part = world(4);
    part.sources.insert("kubernetes".to_owned(), Completeness::Partial { reason });
    for event in [Heard::Saved(Err(lost)), Heard::World(Arc::new(part))] {
        let mut story = removes();
        story.next(4, event.clone());
        assert!(story.state().lanes.is_empty(), "{event:?}");
        assert_eq!(counted(&story), [], "{event:?}");
    }
}

#[test]
fn a_removal_counts_no_longer_where_its_machine_stays() {
    let why = || "a budget holds it".to_owned();
    for (told, outcome, expected) in [
        (false, Outcome::GivenUp { why: why() }, &[][..]),
        (false, Outcome::Skipped { why: why() }, &[]),
        (false, Outcome::Dropped { why: why() }, &[]),
        // The call may have been heard.
        (false, Outcome::Failed { why: why() }, &[("i-1", false)]),
        (true, Outcome::GivenUp { why: why() }, &[("i-1", false)]),
        (true, Outcome::Done, &[("i-1", false)]),
    ] {
        let mut story = removes();
        story.saves(4);
        let ticket = *story.state().lanes.keys().next().expect("it is carried out");
        let address = has_one_go().capacity.waves[0].addresses[0].clone();
        let instance = InstanceId::from("i-1");
        if told {
            let step = Step::Terminating { instance_id: instance.clone() };
            tells(&mut story, 5, ticket, Some(&address), step);
        }
        let (step, instance_id) = (WaveStep::Retire, Some(instance));
        let ended = ChangeOutcome { address, step, instance_id, outcome: outcome.clone() };
        ends_with(&mut story, 9, ticket, vec![ended]);
        assert_eq!(counted(&story), expected, "{outcome:?}");
    }
}

#[test]
fn a_message_about_what_an_apply_drains_is_taken_off_once_that_has_ended_and_the_cordon_stands() {
    let mut story = removes();
    story.saves(4);
    let ticket = *story.state().lanes.keys().next().expect("it is carried out");
    let mut all = story.told(5, Kind::SpotInterruption, &["i-1"], Some(120));
    assert_eq!(all, ["cordons node-of-i-1"]);
    all.extend(story.saves(5));
    let (mark, end) = (Some(CordonedFor::Leaving), Ok(CordonOutcome::Written));
    all.extend(story.next(6, Heard::Cordoned { instance: "i-1".into(), mark, end }));
    let stands = |seconds| {
        let mut world = world(seconds);
        let node = world.nodes.values_mut().find(|node| node.instance == Some("i-1".into()));
        let node = node.expect("it joined");
        node.unschedulable = true;
        node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "leaving".to_owned());
        Heard::World(Arc::new(world))
    };
    for seconds in 7..10 {
        all.extend(story.next(seconds, stands(seconds)));
    }
    let is_off = |all: &[String]| all.contains(&"takes off r".to_owned());
    assert!(!is_off(&all), "whoever drains it may uncordon it: {all:?}");
    ends(&mut story, 10, ticket);
    for seconds in 11..14 {
        all.extend(story.next(seconds, stands(seconds)));
    }
    assert!(is_off(&all), "{all:?}");
}
