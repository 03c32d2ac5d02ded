//! What is done of messages while an apply has the lease, or another autoscaler runs.

use std::sync::Arc;

use jiff::Timestamp;

use super::course::{Came, Moment, Scene};
use super::*;
use crate::fleet::{
    CORDONED_ANNOTATION, Completeness, LiveWorkload, Membership, PodPhase, fixture,
};
use crate::ids::{WorkloadId, WorkloadKind};
use crate::plan::wire::{Action, KeepReason, PlacementRow, Reason};
use crate::pod::PodTemplate;
use crate::port::Fate;
use crate::reconcile::Kind;
use crate::reconcile::fixture::{Story, at, has_one_go, world};
use crate::reconcile::state::Current;
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

/// Returns `i-1` as its pods are asked to leave, since the moment at which it was told that it goes.
fn drains(deadline: Option<Timestamp>) -> Away {
    let why = "health".to_owned();
    Away {
        leaving: Leaving { instance: "i-1".into(), why, since: at(0), deadline, member: false },
        phase: AwayPhase::Draining,
        tries: 0,
        again: at(0),
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
        held: false,
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
    let node = with_a_drain(0).nodes.remove(&NodeName::from("node-of-i-1")).expect("it");
    let node = Node { annotations: BTreeMap::new(), ..node };
    let moment = Moment {
        now: at(60 * minutes),
        replaced: false,
        held,
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
        let held = [(address.clone(), super::super::allow::says(why))].into();
        let current = Current { plan: Arc::new(plan.clone()), since: at(0), held };
        let outlook = Outlook::of(Some(&current), true);
        assert_eq!(outlook.holds(&[&other, &mine]).is_some(), stays);
        assert!(outlook.holds(&[&other]).is_none() && outlook.is_replaced(&[&mine]));
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
            held: false,
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
    let held = BTreeMap::new();
    let current = Current { plan: Arc::new(plan), since: at(0), held };
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
    story.change(|state| state.joined.clear());
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
