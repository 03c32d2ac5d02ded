//! Machines of Auto Scaling groups that EC2 takes back.

use super::*;

/// Returns a look at the world with `i-9` in a group; its node stands cordoned, or does not.
fn with_member(seconds: i64, cordoned: bool) -> Event {
    let mut seen = world(seconds);
    let lifecycle = "InService".to_owned();
    let group = Membership { name: "g".into(), lifecycle, protected: false };
    seen.instances.get_mut(&InstanceId::from("i-9")).expect("it").group = Some(group);
    let node = seen.nodes.get_mut(&NodeName::from("node-of-i-9")).expect("it");
    node.unschedulable = cordoned;
    if cordoned {
        node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "leaving".to_owned());
    }
    let pod = fixture::pod("api");
    let phase = PodPhase::Running;
    seen.pods.push(Arc::new(Pod { node: Some("node-of-i-9".into()), phase, ..pod }));
    Event::World(Arc::new(seen))
}

/// Returns a story over that world, with a plan that manages the group, or does not.
fn manages(is_managed: bool) -> Story {
    let mut story = leads();
    story.next(2, with_member(2, false));
    let mut plan = has_one_go();
    let row = plan.resource_changes.iter_mut().find(|row| {
        row.change.before.as_ref().is_some_and(|before| before.instance_id == Some("i-1".into()))
    });
    let row = row.expect("one goes");
    row.change.before.as_mut().expect("it is there").instance_id = Some("i-9".into());
    let address = row.address.clone();
    if !is_managed {
        let row = plan.capacity.explain.iter_mut().find(|row| row.address == address);
        row.expect("explained").reason = Reason::Keep { because: KeepReason::NotOurs };
    }
    let current = Current::new(Arc::new(plan), at(0));
    story.change(|state| state.current = Some(current));
    story
}

#[test]
fn a_member_of_a_group_that_we_manage_is_cordoned_and_drained_and_left_to_ec2_and_its_group() {
    let mut story = manages(true);
    let done = story.told(3, Kind::SpotInterruption, &["i-9"], Some(120));
    assert_eq!(done, ["cordons node-of-i-9"]);
    story.saves(3);
    let mark = Some(CordonedFor::Leaving);
    let end = Ok(CordonOutcome::Written);
    let done = story.next(4, Event::Cordoned { instance: "i-9".into(), mark, end });
    assert_eq!(done, ["takes off r"]);
    assert!(story.state().replaced_here().is_empty(), "its group replaces it");
    let mut all = BTreeMap::new();
    for n in (5..3_000).step_by(5) {
        for deed in story.next(n, with_member(n, true)) {
            all.entry(deed).or_insert(n);
        }
        story.saves(n);
    }
    // EC2 has not taken it by half an hour past the moment that it had named, by any clock.
    let late = 3 + 120 + 35 * 60;
    let uncordoned = all.remove("uncordons node-of-i-9").expect("it serves again");
    assert!((late..late + 10).contains(&uncordoned), "{uncordoned}");
    assert_eq!(all.into_iter().collect::<Vec<_>>(), [("drains i-9".to_owned(), 70)]);
}

#[test]
fn members_of_other_groups_and_those_of_which_nobody_says_when_they_go_are_left_alone() {
    for (is_managed, kind, within) in [
        (false, Kind::SpotInterruption, Some(120)),
        (true, Kind::Health, None),
        (true, Kind::Health, Some(-60)),
        (true, Kind::StateChange, Some(0)),
    ] {
        let mut story = manages(is_managed);
        let done = story.told(3, kind.clone(), &["i-9"], within);
        assert_eq!(done, ["takes off r"], "{is_managed} {kind}");
    }
    // Before there is a plan nobody knows whose it is.
    let mut story = manages(true);
    let plan = std::cell::RefCell::new(None);
    story.change(|state| *plan.borrow_mut() = state.current.take());
    assert_eq!(story.told(3, Kind::SpotInterruption, &["i-9"], Some(120)), [""; 0]);
    let looks = |story: &mut Story, seconds: i64| {
        story.change(|state| state.world_due = at(seconds));
        story.next(seconds, Event::Timer);
        story.next(seconds, with_member(seconds, false))
    };
    assert_eq!(looks(&mut story, 10), [""; 0]);
    assert_eq!(looks(&mut story, 20), [""; 0]);
    story.change(|state| state.current = plan.take());
    assert_eq!(looks(&mut story, 30), ["cordons node-of-i-9"]);
}

/// Has the last plan be one that manages the group no more.
fn lets_go(story: &mut Story) {
    let mut other = manages(false);
    other.change(|other| {
        let current = other.current.take();
        story.change(|state| state.current = current);
    });
}

#[test]
fn a_member_whose_group_is_no_longer_ours_to_manage_is_left_alone_and_its_node_uncordoned() {
    let two_weeks = 14 * 86_400;
    for (what, within, expected) in [
        ("it has two weeks", two_weeks, &["uncordons node-of-i-9"][..]),
        // Whoever comes to it now would have to leave at once.
        ("EC2 ends it in a moment", 120, &[]),
    ] {
        let mut story = manages(true);
        story.told(3, Kind::SpotInterruption, &["i-9"], Some(within));
        story.saves(3);
        let (mark, end) = (Some(CordonedFor::Leaving), Ok(CordonOutcome::Written));
        story.next(4, Event::Cordoned { instance: "i-9".into(), mark, end });
        story.next(5, with_member(5, true));
        lets_go(&mut story);
        let mut all = Vec::new();
        for n in (10..200).step_by(5) {
            let stands = all.is_empty();
            all.extend(story.next(n, Event::Timer));
            all.extend(story.next(n, with_member(n, stands)));
            if stands && !all.is_empty() {
                let (instance, end) = ("i-9".into(), Ok(CordonOutcome::Written));
                all.extend(story.next(n, Event::Cordoned { instance, mark: None, end }));
            }
        }
        assert_eq!(all, expected, "{what}");
        assert!(story.state().going().is_empty(), "{what}");
        // A second message about it finds it so.
        let done = story.told(300, Kind::SpotInterruption, &["i-9"], Some(120));
        assert_eq!(done, ["takes off r"], "{what}");
    }
}
