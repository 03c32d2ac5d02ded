//! When machines are replaced whose nodes say that something of them does not work.

use std::sync::Arc;

use super::*;
use crate::fleet::CordonedFor;
use crate::manifest::ControllerSettings;
use crate::port::CordonOutcome;
use crate::reconcile::Kept;
use crate::reconcile::event::{Event, Signal};
use crate::reconcile::fixture::{Story, world};

/// Returns after how many minutes which machines go, and why, of which these say that something does not work, where
/// nodes are replaced after so long.
fn goes(
    faults: &[(&str, Fault)],
    repair_after: Option<SignedDuration>,
) -> BTreeMap<String, (i64, String)> {
    let mut story = Story::begin();
    story.next(1, Event::Signal(Signal::Gained));
    story.lives();
    story.change(|state| {
        let head = state.head.as_ref().expect("it was read");
        let controller = ControllerSettings { repair_after, ..head.controller.clone() };
        let head = crate::reconcile::Head { controller, ..crate::reconcile::Head::clone(head) };
        state.head = Some(Arc::new(head));
    });
    let mut gone = BTreeMap::new();
    for minutes in 0..60 {
        let seconds = 2 + minutes * 60;
        let mut seen = world(seconds);
        for node in seen.nodes.values_mut() {
            let of = |(id, _): &&(&str, Fault)| node.name.as_str() == format!("node-of-{id}");
            node.faults = faults.iter().filter(of).map(|(_, fault)| *fault).collect();
        }
        story.next(seconds, Event::World(Arc::new(seen)));
        for (id, away) in &story.state().away {
            gone.entry(id.to_string()).or_insert((minutes, away.leaving.why.clone()));
        }
    }
    gone
}

#[test]
fn a_machine_is_replaced_whose_node_says_for_as_long_as_karpenter_tolerates_it_that_a_part_fails() {
    let half_an_hour = Some(SignedDuration::from_mins(30));
    for fault in Fault::ALL {
        let minutes = fault.tolerated().as_mins();
        let expected = ("i-1".to_owned(), (minutes, fault.reason().to_owned()));
        assert_eq!(goes(&[("i-1", fault)], half_an_hour), [expected].into(), "{fault:?}");
        assert!(!is_broken(fault.reason()), "its kubelet lives, and stops pods: {fault:?}");
    }
    // What somebody says is not waited for for longer, and counts for all of them.
    let soon = Some(SignedDuration::from_mins(20));
    let at = |fault| goes(&[("i-1", fault)], soon).remove("i-1").map(|(minutes, _)| minutes);
    assert_eq!(at(Fault::Storage), Some(20));
    assert_eq!(at(Fault::AcceleratedHardware), Some(10));
    assert_eq!(goes(&[("i-1", Fault::Kernel)], None), [].into(), "somebody repairs them");
    assert!(is_broken(NOT_READY) && is_broken(NEVER_READY) && !is_broken("health"));
}

#[test]
fn where_many_machines_fail_none_is_replaced_and_what_is_not_ours_never_is() {
    let half_an_hour = Some(SignedDuration::from_mins(30));
    let (one, other) = (("i-1", Fault::Networking), ("i-2", Fault::Storage));
    assert_eq!(goes(&[one, other], half_an_hour), [].into(), "two of two");
    // Two faults of one machine are one machine.
    let two = [("i-1", Fault::Networking), ("i-1", Fault::AcceleratedHardware)];
    let why = Fault::AcceleratedHardware.reason().to_owned();
    assert_eq!(goes(&two, half_an_hour), [("i-1".to_owned(), (10, why))].into());
    assert_eq!(goes(&[("i-9", Fault::Kernel)], half_an_hour), [].into(), "of others");
}

#[test]
fn a_fault_that_passes_counts_anew() {
    let mut story = Story::begin();
    story.next(1, Event::Signal(Signal::Gained));
    story.lives();
    for minutes in 0..120 {
        let mut seen = world(minutes * 60);
        // Each time for 25 minutes.
        if minutes % 30 < 25 {
            for node in seen.nodes.values_mut().filter(|node| node.name.as_str() == "node-of-i-1") {
                node.faults = [Fault::Storage].into();
            }
        }
        story.next(2 + minutes * 60, Event::World(Arc::new(seen)));
    }
    assert!(story.state().going().is_empty());
    assert!(story.state().health.unwell.is_empty(), "it is well by now");
}

/// Returns a loop that leads, after a quarter of an hour in which this machine says that its accelerator fails.
fn has_one_go(id: &str) -> Story {
    let mut story = Story::begin();
    story.next(1, Event::Signal(Signal::Gained));
    story.lives();
    for minutes in 0..15 {
        fails(&mut story, minutes, &[id], &[]);
    }
    assert_eq!(story.state().going(), [id.into()].into());
    story
}

/// Has these machines say that their accelerators fail, and those be gone.
fn fails(story: &mut Story, minutes: i64, ids: &[&str], gone: &[&str]) {
    let mut seen = world(2 + minutes * 60);
    for id in gone {
        seen.instances.remove(*id);
        seen.nodes.remove(format!("node-of-{id}").as_str());
    }
    for node in seen.nodes.values_mut() {
        if ids.iter().any(|id| node.name.as_str() == format!("node-of-{id}")) {
            node.faults = [Fault::AcceleratedHardware].into();
        }
    }
    let seconds = 2 + minutes * 60;
    for done in story.next(seconds, Event::World(Arc::new(seen))) {
        // Somebody wrote the node meanwhile, each time.
        let Some(instance) = done.strip_prefix("cordons node-of-") else { continue };
        let (mark, end) = (Some(CordonedFor::Leaving), Ok(CordonOutcome::Outdated));
        story.next(seconds, Event::Cordoned { instance: instance.into(), mark, end });
    }
}

#[test]
fn a_machine_is_spared_whose_fault_passes_before_its_pods_are_asked_to_leave() {
    let mut story = has_one_go("i-1");
    fails(&mut story, 16, &["i-1"], &[]);
    assert!(!story.state().going().is_empty());
    for minutes in 17..20 {
        fails(&mut story, minutes, &[], &[]);
    }
    assert!(story.state().going().is_empty());
}

#[test]
fn what_was_replaced_for_a_fault_counts_as_broken_for_an_hour() {
    let mut story = has_one_go("i-1");
    let goes = |story: &mut Story, from: i64, to: i64| {
        (from..to).find(|minutes| {
            fails(story, *minutes, &["i-2"], &["i-1"]);
            story.state().away.contains_key(&InstanceId::from("i-2"))
        })
    };
    // With the only other machine of the pool the same is wrong.
    assert_eq!(goes(&mut story, 16, 65), None);
    assert!(goes(&mut story, 65, 75).is_some());
}

#[test]
fn what_was_replaced_for_a_fault_counts_after_a_restart_as_well() {
    let kept = has_one_go("i-1").state().kept.clone().expect("it is kept");
    assert_eq!(kept.repaired.len(), 1);
    let written = serde_json::to_string(&kept).expect("text");
    let goes = |recalled: Kept| {
        let mut story = Story::begin();
        story.next(900, Event::Signal(Signal::Gained));
        story.lives();
        story.change(|state| state.kept = Some(recalled));
        for minutes in 16..60 {
            fails(&mut story, minutes, &["i-2"], &["i-1"]);
        }
        story.state().away.contains_key(&InstanceId::from("i-2"))
    };
    assert!(!goes(serde_json::from_str(&written).expect("it reads")));
    assert!(goes(Kept::default()), "where nothing was replaced it would go");
}

#[test]
fn of_more_machines_than_are_remembered_none_is_replaced_because_a_part_fails() {
    let repaired = |n: usize| Repaired {
        instance: format!("i-{n:017x}").as_str().into(),
        pool: "other".into(),
        at: Timestamp::from_second(1_000_000).expect("a time"),
    };
    for (known, goes) in [(REPAIRED_MAX - 1, true), (REPAIRED_MAX, false)] {
        let mut story = Story::begin();
        story.next(1, Event::Signal(Signal::Gained));
        story.lives();
        story.change(|state| {
            let kept = state.kept.as_mut().expect("it is kept");
            kept.repaired = (0..known).map(repaired).collect();
        });
        for minutes in 0..15 {
            fails(&mut story, minutes, &["i-1"], &[]);
        }
        assert_eq!(!story.state().going().is_empty(), goes, "{known}");
    }
}

#[test]
fn a_machine_is_spared_that_is_ready_again_before_its_pods_are_asked_to_leave() {
    let mut story = Story::begin();
    story.next(1, Event::Signal(Signal::Gained));
    story.lives();
    let mut look = |minutes: i64, ready: bool| {
        let mut seen = world(2 + minutes * 60);
        seen.nodes.get_mut("node-of-i-1").expect("its node").ready = ready;
        let seconds = 2 + minutes * 60;
        for done in story.next(seconds, Event::World(Arc::new(seen))) {
            let Some(instance) = done.strip_prefix("cordons node-of-") else { continue };
            let (mark, end) = (Some(CordonedFor::Leaving), Ok(CordonOutcome::Outdated));
            story.next(seconds, Event::Cordoned { instance: instance.into(), mark, end });
        }
        story.state().going()
    };
    look(0, true);
    assert_eq!((1..=30).find(|minutes| !look(*minutes, false).is_empty()), None);
    assert_eq!(look(31, false), [InstanceId::from("i-1")].into());
    let spared = (32..36).any(|minutes| look(minutes, true).is_empty());
    assert!(spared, "it runs again");
}

#[test]
fn a_repair_counts_as_a_removal_and_what_ec2_takes_does_not() {
    for (why, counts) in
        [(NOT_READY, 1), (NEVER_READY, 1), (Fault::Kernel.reason(), 1), ("spot-interruption", 0)]
    {
        let mut story = has_one_go("i-1");
        story.change(|state| {
            let away = state.away.get_mut("i-1").expect("it goes");
            away.leaving.why = why.to_owned();
        });
        let end = Ok(crate::reconcile::event::Ending::Told);
        story.next(1_000, Event::Ended { instance: "i-1".into(), end });
        let kept = story.state().kept.as_ref().expect("it is kept");
        assert_eq!(kept.removed.len(), counts, "{why}");
    }
}
