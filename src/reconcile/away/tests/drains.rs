//! When pods leave a machine that goes, in which order, and how that ends.

use super::*;

/// Returns `i-1` as its pods are asked to leave, since the moment at which it was told that it goes.
fn drains(deadline: Option<Timestamp>) -> Away {
    let why = "health".to_owned();
    Away {
        leaving: Leaving { instance: "i-1".into(), why, since: at(0), deadline, member: false },
        phase: AwayPhase::Draining,
        tries: 0,
        again: at(0),
        awaits: Awaits::Launches { since: at(0) },
        draining: Some(at(0)),
        emptied: None,
        ended: None,
        unschedulable: true,
        cordoning: false,
        gives_up: false,
        from: 1,
        known: 1,
    }
}

/// Has a machine act on whose node a pod is left; returns what came of it, and what it wants done.
fn acts(away: &mut Away, minutes: i64, node: &Node, drained: bool) -> (Came, Vec<Effect>) {
    let pod = Pod { node: Some(node.name.clone()), ..fixture::pod("api") };
    let moment = Moment {
        now: at(60 * minutes),
        replaced: true,
        looked: true,
        joined: true,
        drained,
        fresh: true,
        next_look: 2,
    };
    let mut effects = Vec::new();
    let (left, first) = (vec![&pod], vec![&pod]);
    let scene = Scene { node: Some(node), left, first, attached: None };
    let came = away.act(&scene, moment, &mut effects);
    (came, effects)
}

/// Returns whether pods of `i-1` are asked to leave at a minute after it was told that it goes, whose new place does not
/// come.
fn drains_at(minutes: i64, deadline: Option<i64>, held: bool) -> bool {
    drains_by(minutes, deadline, (held, true))
}

/// Returns the same; of a look that was not whole where `looked` is not set.
fn drains_by(minutes: i64, deadline: Option<i64>, (held, looked): (bool, bool)) -> bool {
    let deadline = deadline.map(|minutes| at(60 * minutes));
    let mut away = Away { phase: AwayPhase::Replacing, draining: None, ..drains(deadline) };
    if held {
        away.now_awaits(Awaits::Word);
    }
    let node = with_a_drain(0).nodes.remove(&NodeName::from("node-of-i-1")).expect("it");
    let node = Node { annotations: BTreeMap::new(), ..node };
    let moment = Moment {
        now: at(60 * minutes),
        replaced: false,
        looked,
        joined: true,
        drained: false,
        fresh: true,
        next_look: 2,
    };
    away.act(&Scene { node: Some(&node), ..Scene::default() }, moment, &mut Vec::new());
    away.phase == AwayPhase::Draining
}

#[test]
fn pods_stay_for_their_new_place_until_near_the_end_or_as_long_as_somebody_holds_that_back() {
    const DAYS: i64 = 24 * 60;
    for (what, deadline, held, stay, leave) in [
        ("two minutes", Some(2), false, 0, 1),
        ("two minutes, whoever holds it back", Some(2), true, 0, 1),
        ("half an hour", Some(30), true, 14, 15),
        ("two weeks", Some(14 * DAYS), false, 14 * DAYS - 16, 14 * DAYS - 15),
        ("two weeks, held back", Some(14 * DAYS), true, 14 * DAYS - 16, 14 * DAYS - 15),
        ("nobody says when", None, false, 9, 10),
        ("it was over long before it was told", Some(-60), false, 9, 10),
    ] {
        assert!(!drains_at(stay, deadline, held), "{what}: too soon");
        assert!(drains_at(leave, deadline, held), "{what}: too late");
    }
    assert!(drains_at(0, Some(-1), true), "by the clock of EC2 it may be about to end");
    assert!(!drains_at(2 * DAYS, None, true), "nobody says when, and it is held back");
    assert!(!drains_at(2 * DAYS, Some(-60), true), "held back, and over long before it was told");
    assert!(!drains_by(2 * DAYS, None, (false, false)), "what is on it could not be read");
    assert!(drains_by(1, Some(2), (false, false)), "EC2 waits for no look");
}

#[test]
fn what_holds_a_machine_back_concerns_the_pods_that_the_plan_has_come_to_it() {
    let mut plan = crate::render::fixture::plan();
    let (address, workload) = (plan.resource_changes[0].address.clone(), workload_id());
    let row = PlacementRow { workload: workload.clone(), address: address.clone(), pods: 1 };
    plan.capacity.placements = vec![row];
    plan.capacity.unschedulable.clear();
    let of = |namespace: &str| {
        let owner = WorkloadId { namespace: namespace.into(), ..workload.clone() };
        Pod { owner: Some(owner), ..fixture::pod("a") }
    };
    let (mine, other) = (of(workload.namespace.as_str()), of("elsewhere"));
    let row = plan.resource_changes.iter_mut().find(|row| row.address == address).expect("a row");
    row.change.actions = vec![Action::Create];
    let suspended = Held::Suspended { reason: "a freeze".to_owned(), until: None };
    for (why, stays) in [(suspended, true), (Held::UnderWay, false)] {
        let held = [(address.clone(), crate::reconcile::allow::says(why))].into();
        let (id, unknown) = (InstanceId::from("i-1"), InstanceId::from("i-2"));
        let outlook = Outlook::of(&plan, &held, [id.clone()].into());
        assert_eq!(outlook.holds(&[&other, &mine]).is_some(), stays);
        assert!(outlook.holds(&[&other]).is_none() && outlook.places(&id, &[&mine]));
        // Of one that the plan counts with it says nothing.
        assert!(!outlook.places(&unknown, &[&mine]));
        assert_eq!(outlook.awaits(&unknown, &[&other], at(5)), Awaits::Plan { since: at(5) });
        assert_eq!(outlook.awaits(&id, &[&other], at(5)), Awaits::Launches { since: at(5) });
    }
}

/// Returns the world in which `i-1` is drained, with these pods on its node; those whose names begin with `dns` are
/// critical.
fn with_pods(seconds: i64, pods: &[&str]) -> Observed {
    let mut world = with_a_drain(seconds);
    let node = world.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it");
    node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "leaving".to_owned());
    let mut template = PodTemplate::default();
    world.templates.insert("t".to_owned(), Arc::new(template.clone()));
    template.spec.priority_class_name = Some("system-cluster-critical".into());
    world.templates.insert("critical".to_owned(), Arc::new(template));
    world.pods.extend(pods.iter().map(|name| {
        let pod = fixture::pod(name);
        let template = if name.starts_with("dns") { "critical".to_owned() } else { pod.template };
        let (node, phase) = (Some("node-of-i-1".into()), PodPhase::Running);
        Arc::new(Pod { template, node, phase, ..pod })
    }));
    world
}

/// Returns a story in which the pods of `i-1` are asked to leave, of which EC2 has said that it goes in two minutes.
fn is_drained() -> Story {
    let mut story = leads();
    story.next(2, Event::World(Arc::new(with_pods(2, &["api", "dns"]))));
    story.told(3, Kind::SpotInterruption, &["i-1"], Some(120));
    for n in 63..66 {
        story.saves(n);
        story.next(n, Event::World(Arc::new(with_pods(n, &["api", "dns"]))));
    }
    assert_eq!(story.state().away[&InstanceId::from("i-1")].phase, AwayPhase::Draining);
    story
}

/// Returns the pods that are asked to leave by a look.
fn asked(story: &mut Story, seconds: i64, pods: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    story.change(|state| {
        let id = InstanceId::from("i-1");
        let away = state.away.get_mut(&id).expect("it goes");
        away.hurry(at(0));
        state.now = at(seconds);
        let world = with_pods(seconds, pods);
        let (node, mut effects) = (world.node_of(&id), Vec::new());
        let pods = |node: &NodeName| view::movable(&world, node);
        state.advance_one((&id, None), &world, (node, pods), &mut effects);
        for effect in effects {
            let Effect::Evict { pods, .. } = effect else { continue };
            found.extend(pods.into_iter().map(|pod| pod.name.to_string()));
        }
    });
    found
}

#[test]
fn what_others_need_leaves_a_machine_that_goes_after_them_unless_that_is_about_to_end() {
    let mut story = is_drained();
    assert_eq!(asked(&mut story, 70, &["api", "dns"]), ["api"]);
    assert_eq!(asked(&mut story, 80, &["dns"]), ["dns"]);
    assert_eq!(asked(&mut story, 95, &["api", "dns"]), ["api", "dns"], "EC2 ends it in a moment");
}

#[test]
fn a_machine_that_goes_ends_once_its_volumes_are_detached_or_their_bound_is_reached() {
    let node = with_a_drain(0).nodes.remove(&NodeName::from("node-of-i-1")).expect("it");
    let volume = "pv-1".to_owned();
    let mut away = drains(None);
    let ends = |away: &mut Away, minutes: i64, attached: bool| {
        let attached = attached.then_some(&volume);
        let scene = Scene { node: Some(&node), attached, ..Scene::default() };
        let moment = Moment {
            now: at(60 * minutes),
            replaced: true,
            looked: true,
            joined: false,
            drained: false,
            fresh: true,
            next_look: 2,
        };
        let mut effects = Vec::new();
        away.act(&scene, moment, &mut effects);
        effects.iter().any(|effect| matches!(effect, Effect::End { .. }))
    };
    assert!(!ends(&mut away.clone(), 1, true) && ends(&mut away.clone(), 1, false));
    assert!(!ends(&mut away, 1, true) && !ends(&mut away, 6, true));
    assert!(ends(&mut away, 7, true), "a driver that never lets go keeps nothing");
    let mut broken = drains(None);
    broken.leaving.why = "not-ready".to_owned();
    assert!(ends(&mut broken, 1, true), "nobody there lets go of any");
}

#[test]
fn the_node_of_a_machine_that_is_gone_is_removed() {
    let gone = |seconds: i64, state: Option<InstanceState>, ready: bool| {
        let mut seen = with_pods(seconds, &[]);
        let id = InstanceId::from("i-1");
        match state {
            Some(state) => seen.instances.get_mut(&id).expect("it").state = state,
            None => drop(seen.instances.remove(&id)),
        }
        seen.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it").ready = ready;
        Event::World(Arc::new(seen))
    };
    let removes = ["removes node-of-i-1"];
    let ended = Some(InstanceState::Terminated);
    for (what, state, ready, expected) in [
        ("terminated", ended, true, &removes[..]),
        // It may run, untagged or taken out of its group.
        ("listed no more", None, false, &[]),
        ("stopped", Some(InstanceState::Stopped), false, &[]),
        ("on its way out", Some(InstanceState::ShuttingDown), false, &[]),
    ] {
        let mut story = is_drained();
        let done = story.next(70, gone(70, state, ready));
        assert_eq!(done, expected, "{what}");
        let waits = expected == removes || state == Some(InstanceState::ShuttingDown);
        assert_eq!(story.state().away.is_empty(), !waits, "{what}");
    }
    let mut story = is_drained();
    story.next(70, gone(70, Some(InstanceState::ShuttingDown), false));
    assert_eq!(story.next(100, gone(100, ended, false)), removes);
    let failed = PortError {
        verb: "delete node".to_owned(),
        reason: "forbidden".to_owned(),
        fate: Fate::TurnedAway,
    };
    story.next(101, Event::NodeDeleted { instance: "i-1".into(), end: Err(failed) });
    assert_eq!(story.next(101, gone(101, ended, false)), [""; 0], "not at once");
    assert_eq!(story.next(110, gone(110, ended, false)), removes);
    story.next(111, Event::NodeDeleted { instance: "i-1".into(), end: Ok(()) });
    assert!(story.state().away.is_empty());
    // What cannot be removed is left.
    let mut story = is_drained();
    story.next(70, gone(70, ended, false));
    story.next(671, gone(671, ended, false));
    assert!(story.state().away.is_empty());
}

fn uncordons(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Cordon { mark: None, .. }))
}

#[test]
fn no_drain_is_given_up_beside_an_apply_that_drains_the_same_machine() {
    let node = with_a_drain(0).nodes.remove(&NodeName::from("node-of-i-1")).expect("it");
    let mut away = drains(None);
    for (minutes, drained, expected) in [
        (14, false, (false, false)),
        (16, true, (false, false)),
        (17, false, (true, false)),
        (18, true, (false, false)),
        (19, false, (false, true)),
    ] {
        let (came, effects) = acts(&mut away, minutes, &node, drained);
        assert_eq!((matches!(came, Came::GaveUp), uncordons(&effects)), expected, "{minutes}");
    }
}

#[test]
fn a_drain_that_is_given_up_leaves_a_node_as_a_person_has_cordoned_it() {
    let mut node = with_a_drain(0).nodes.remove(&NodeName::from("node-of-i-1")).expect("it");
    node.annotations.clear();
    let mut away = drains(None);
    assert!(matches!(acts(&mut away, 16, &node, false).0, Came::GaveUp));
    let (came, effects) = acts(&mut away, 17, &node, false);
    assert!(matches!(came, Came::Over) && effects.is_empty(), "{effects:?}");
}

#[test]
fn a_deadline_that_had_passed_when_it_was_told_has_no_machine_end_with_pods_on_it() {
    let node = with_a_drain(0).nodes.remove(&NodeName::from("node-of-i-1")).expect("it");
    let mut away = drains(Some(at(-60)));
    for minutes in [6, 14] {
        let (_, effects) = acts(&mut away, minutes, &node, false);
        let ends = effects.iter().any(|effect| matches!(effect, Effect::End { .. }));
        assert!(!ends, "{minutes}: {effects:?}");
    }
    assert!(matches!(acts(&mut away, 16, &node, false).0, Came::GaveUp));
}

/// Returns when pods leave `i-1`, in seconds after it was told that it goes sooner or later, and a plan without it is
/// made at `planned`, if any, that has no place for them.
fn leaves_at(planned: Option<i64>) -> Option<i64> {
    let mut story = leads();
    let seen = |seconds: i64| {
        let mut world = with_pods(seconds, &[]);
        let phase = PodPhase::Running;
        let (owner, node) = (Some(workload_id()), Some("node-of-i-1".into()));
        world.pods.push(Arc::new(Pod { owner, node, phase, ..fixture::pod("api") }));
        Event::World(Arc::new(world))
    };
    story.next(2, seen(2));
    let plan = || {
        let mut plan = crate::render::fixture::plan();
        plan.capacity.waves.clear();
        plan.capacity.unschedulable.iter_mut().for_each(|row| row.workload = workload_id());
        assert!(!plan.capacity.unschedulable.is_empty());
        plan
    };
    // A plan of before, which counts with it, and has nothing to wait for.
    let mut before = plan();
    before.capacity.unschedulable.clear();
    story.planned(2, before);
    story.told(3, Kind::Health, &["i-1"], None);
    for seconds in (5..3_600).step_by(5) {
        story.saves(seconds);
        let done = story.next(seconds, seen(seconds));
        if done.contains(&"drains i-1".to_owned()) {
            return Some(seconds - 3);
        }
        if planned.is_some_and(|at| seconds >= at) && story.state().planning.is_some() {
            story.planned(seconds, plan());
        }
    }
    None
}

#[test]
fn pods_of_a_machine_that_goes_stay_until_a_plan_knows_that_it_goes_and_not_for_ever() {
    let near = |at: Option<i64>, minutes: i64| {
        at.is_some_and(|at| (60 * minutes..60 * minutes + 15).contains(&at))
    };
    let never = leaves_at(None);
    assert!(near(never, 30), "no plan is made: {never:?}");
    // What the plan launches has as long as if it had been made at once.
    let late = leaves_at(Some(20 * 60));
    assert!(near(late, 30), "one is made after 20 minutes: {late:?}");
    let early = leaves_at(Some(5 * 60));
    assert!(near(early, 15), "one is made after 5 minutes: {early:?}");
}

#[test]
fn what_was_held_back_has_its_time_from_when_it_no_longer_is() {
    let mut away = Away { phase: AwayPhase::Replacing, draining: None, ..drains(None) };
    let now = |minutes: i64| at(60 * minutes);
    let begins = |away: &Away| match away.awaits {
        Awaits::Launches { since } => Some(since),
        Awaits::Plan { .. } | Awaits::Word => None,
    };
    away.now_awaits(Awaits::Word);
    assert_eq!(begins(&away), None);
    for minutes in [30, 35] {
        away.now_awaits(Awaits::Launches { since: now(minutes) });
        assert_eq!(begins(&away), Some(now(30)), "nothing holds it back since");
    }
    away.now_awaits(Awaits::Word);
    away.now_awaits(Awaits::Launches { since: now(50) });
    assert_eq!(begins(&away), Some(now(50)));
    away.hurry(now(40));
    assert_eq!(begins(&away), Some(now(40)), "a clock that is set back makes nobody wait longer");
}
