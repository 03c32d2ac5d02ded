//! Members of Auto Scaling groups that EC2 takes back.

use super::*;

/// Returns an observation with `i-9` in a group, its node cordoned or not.
fn with_member(seconds: i64, cordoned: bool) -> Event {
    let mut seen = world(seconds);
    let lifecycle = "InService".to_owned();
    let group = Membership { name: "g".into(), lifecycle, protected: false };
    seen.instances.get_mut(&InstanceId::from("i-9")).expect("it").group = Some(group);
    let node = seen.nodes.get_mut(&NodeName::from("node-of-i-9")).expect("it");
    node.unschedulable = cordoned;
    if cordoned {
        node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "interruption".to_owned());
    }
    let pod = world::pod("api");
    let phase = PodPhase::Running;
    seen.pods.push(Arc::new(Pod { node: Some("node-of-i-9".into()), phase, ..pod }));
    Event::Observed(Arc::new(seen))
}

/// Returns a scenario over that world, with a plan that manages the group or not.
fn manages(is_managed: bool) -> ControllerHarness {
    let mut harness = ControllerHarness::leading();
    harness.step_at(2, with_member(2, false));
    let mut plan = plan_removing_one();
    let row = plan.resource_changes.iter_mut().find(|row| {
        row.change.before.as_ref().is_some_and(|before| before.instance_id == Some("i-1".into()))
    });
    let row = row.expect("one is removed");
    row.change.before.as_mut().expect("it is there").instance_id = Some("i-9".into());
    let address = row.address.clone();
    if !is_managed {
        plan.explain_mut(&address).reason = Reason::Keep { because: KeepReason::NotOurs };
    }
    let current = CurrentPlan::new(Arc::new(plan), at(0));
    harness.modify(|state| state.planning.current = Some(current));
    harness
}

#[test]
fn managed_group_member_is_drained_but_not_terminated() {
    let mut harness = manages(true);
    let done = harness.interrupt(3, MessageKind::SpotInterruption, &["i-9"], Some(120));
    assert_eq!(done, ["cordons node-of-i-9"]);
    harness.finish_saving(3);
    let end = Ok(CordonOutcome::Written);
    let done = harness.step_at(4, Event::Cordoned { instance: "i-9".into(), result: end });
    assert_eq!(done, ["takes off r"]);
    assert!(harness.state().interruptions.planned_as_gone().is_empty(), "its group replaces it");
    let mut all = BTreeMap::new();
    for n in (5..3_000).step_by(5) {
        for deed in harness.step_at(n, with_member(n, true)) {
            all.entry(deed).or_insert(n);
        }
        harness.finish_saving(n);
    }
    // EC2 has not taken the instance by half an hour past its deadline, by any clock.
    let late = 3 + 120 + 35 * 60;
    let uncordoned = all.remove("uncordons node-of-i-9").expect("it is uncordoned");
    assert!((late..late + 10).contains(&uncordoned), "{uncordoned}");
    assert_eq!(all.into_iter().collect::<Vec<_>>(), [("drains i-9".to_owned(), 70)]);
}

#[test]
fn unmanaged_members_and_those_without_deadline_are_ignored() {
    for (is_managed, kind, within) in [
        (false, MessageKind::SpotInterruption, Some(120)),
        (true, MessageKind::Health, None),
        (true, MessageKind::Health, Some(-60)),
        (true, MessageKind::StateChange, Some(0)),
    ] {
        let mut harness = manages(is_managed);
        let done = harness.interrupt(3, kind.clone(), &["i-9"], within);
        assert_eq!(done, ["takes off r"], "{is_managed} {kind}");
    }
    // Before the first plan the owner is unknown.
    let mut harness = manages(true);
    let plan = std::cell::RefCell::new(None);
    harness.modify(|state| *plan.borrow_mut() = state.planning.current.take());
    assert_eq!(harness.interrupt(3, MessageKind::SpotInterruption, &["i-9"], Some(120)), [""; 0]);
    let observe = |harness: &mut ControllerHarness, seconds: i64| {
        harness.modify(|state| state.observation.reads.due = at(seconds));
        harness.step_at(seconds, Event::Timer);
        harness.step_at(seconds, with_member(seconds, false))
    };
    assert_eq!(observe(&mut harness, 10), [""; 0]);
    assert_eq!(observe(&mut harness, 20), [""; 0]);
    harness.modify(|state| state.planning.current = plan.take());
    assert_eq!(observe(&mut harness, 30), ["cordons node-of-i-9"]);
}

/// Replaces the last plan by one that no longer manages the group.
fn release_group(harness: &mut ControllerHarness) {
    let mut other = manages(false);
    other.modify(|other| {
        let current = other.planning.current.take();
        harness.modify(|state| state.planning.current = current);
    });
}

#[test]
fn released_group_member_is_uncordoned() {
    let two_weeks = 14 * 86_400;
    for (what, kind, within, expected) in [
        ("it has two weeks", MessageKind::Health, two_weeks, &["uncordons node-of-i-9"][..]),
        // A pod that came to it now would be evicted at once.
        ("EC2 terminates it in a moment", MessageKind::SpotInterruption, 120, &[]),
    ] {
        let mut harness = manages(true);
        harness.interrupt(3, kind, &["i-9"], Some(within));
        harness.finish_saving(3);
        let end = Ok(CordonOutcome::Written);
        harness.step_at(4, Event::Cordoned { instance: "i-9".into(), result: end });
        harness.step_at(5, with_member(5, true));
        release_group(&mut harness);
        let mut all = Vec::new();
        for n in (10..200).step_by(5) {
            let stands = all.is_empty();
            all.extend(harness.step_at(n, Event::Timer));
            all.extend(harness.step_at(n, with_member(n, stands)));
            if stands && !all.is_empty() {
                let (instance, end) = ("i-9".into(), Ok(CordonOutcome::Written));
                all.extend(harness.step_at(n, Event::Uncordoned { instance, result: end }));
            }
        }
        assert_eq!(all, expected, "{what}");
        assert!(harness.state().interruptions.instances().is_empty(), "{what}");
        // A second message changes nothing.
        let done = harness.interrupt(300, MessageKind::SpotInterruption, &["i-9"], Some(120));
        assert_eq!(done, ["takes off r"], "{what}");
    }
}
