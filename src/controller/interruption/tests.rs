//! Message handling while an apply holds the lease or a competing autoscaler runs, and the order of
//! cordons and acknowledgements.

mod announcements;
mod drains;
mod group_members;
mod observe_only;

use std::sync::Arc;

use jiff::Timestamp;

use super::drain_limit::DrainRoom;
use super::state_machine::{
    Drain, EvictionWait, NodeSighting, NodeView, Progress, StepContext, Transition,
};
use super::*;
use crate::apply::ports::CallEffect;
use crate::controller::MessageKind;
use crate::controller::node_health::NODE_DELETED;
use crate::controller::planning::CurrentPlan;
use crate::controller::status::BlockedReason;
use crate::model::ids::WorkloadId;
use crate::model::observed::{CORDONED_ANNOTATION, Completeness, Membership, PodPhase, tag};
use crate::model::pod::PodTemplate;
use crate::plan::wire::{Action, KeepReason, PlacementRow, Reason};
use crate::testing::controller::{ControllerHarness, at, plan_removing_one, world};
use crate::testing::pods::deployment;
use crate::testing::workload_id;
use crate::testing::world::{self, live_workload};

/// Returns the world with a pod of Karpenter.
fn with_karpenter(world: Observed) -> Observed {
    let owner = deployment("kube-system", "karpenter");
    world
        .with_workload(live_workload(&owner, 1))
        .with_pods([world::pod("karpenter-1").owned_by(&owner)])
}

fn lost(to_apply: bool) -> Event {
    Event::Signal(Signal::LeaseLost { holder: Some("ci".to_owned()), to_apply })
}

#[test]
fn lease_held_by_apply_cordons_only_own_urgent_nodes() {
    let mut harness = ControllerHarness::started();
    let mut seen = world(1);
    let found = seen.instances.get_mut(&InstanceId::from("i-1")).expect("it");
    found.reservation = Some("cr-1".into());
    harness.observe(1, seen);
    assert_eq!(harness.step_at(1, lost(true)), [""; 0]);
    assert!(harness.state().accepts_messages() && harness.state().status().is_lease_held_by_apply);
    let cordons = ["cordons without lease node-of-i-1 uid-of-i-1"];
    for (what, kind, ids, within, expected) in [
        (
            "one of ours, one of another owner, and an unknown one",
            MessageKind::SpotInterruption,
            &["i-1", "i-9", "i-7"][..],
            Some(120),
            &cordons[..],
        ),
        ("the message returns", MessageKind::SpotInterruption, &["i-1"], Some(90), &cordons),
        ("hours are left", MessageKind::Health, &["i-1"], Some(20_000), &[]),
        ("without a deadline", MessageKind::Health, &["i-2"], None, &[]),
        ("anyone can announce a past time", MessageKind::Health, &["i-1"], Some(-60), &[]),
        ("minutes are left", MessageKind::Reservation, &["i-1"], Some(200), &cordons),
        ("not a termination", MessageKind::Rebalance, &["i-2"], None, &[]),
        ("a hint", MessageKind::StateChange, &["i-2"], Some(0), &[]),
    ] {
        assert_eq!(harness.interrupt(2, kind, ids, within), expected, "{what}");
    }
    // A cordoned node needs no second cordon.
    let mut seen = world(3);
    seen.nodes.values_mut().for_each(|node| node.unschedulable = true);
    harness.observe(3, seen);
    assert_eq!(harness.interrupt(4, MessageKind::SpotInterruption, &["i-1"], Some(60)), [""; 0]);
    assert!(harness.state().interruptions.instances().is_empty(), "the next leader handles it");
}

#[test]
fn next_leader_takes_over_nodes_cordoned_during_apply() {
    let mut harness = ControllerHarness::started();
    harness.step_at(1, lost(true));
    harness.interrupt(2, MessageKind::SpotInterruption, &["i-1"], Some(120));
    harness.step_at(
        3,
        Event::CordonedWithoutLease {
            node: "node-of-i-1".into(),
            result: Ok(CordonOutcome::Written),
        },
    );
    let mut seen = world(4);
    let node = seen.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it");
    node.unschedulable = true;
    let seen = Arc::new(seen);
    harness.step_at(5, Event::Observed(Arc::clone(&seen)));
    harness.step_at(6, Event::Signal(Signal::LeaseGained));
    harness.load_state_and_branch();
    harness.step_at(7, Event::Observed(Arc::clone(&seen)));
    // The queue delivers the message again. The node is cordoned already; the interruption is
    // persisted before the message is acknowledged.
    assert_eq!(harness.interrupt(8, MessageKind::SpotInterruption, &["i-1"], Some(60)), [""; 0]);
    assert_eq!(harness.state().interruptions.instances(), ["i-1".into()].into());
    let mut all = Vec::new();
    for n in 9..14 {
        all.extend(harness.step_at(n, Event::Observed(Arc::clone(&seen))));
        all.extend(harness.step_at(n, Event::StateSaved(Ok(()))));
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

fn cordoned(end: CordonOutcome) -> Event {
    Event::Cordoned { instance: "i-1".into(), result: Ok(end) }
}

#[test]
fn drain_cordon_becomes_interruption_cordon() {
    let mut harness = ControllerHarness::leading();
    harness.observe(2, with_a_drain(2));
    let done = harness.interrupt(3, MessageKind::SpotInterruption, &["i-1"], Some(120));
    assert_eq!(done, ["cordons node-of-i-1"], "the apply that drains it would uncordon it");
    assert_eq!(harness.finish_saving(3), [""; 0]);
    assert_eq!(harness.step_at(4, cordoned(CordonOutcome::Written)), ["takes off r"]);
}

#[test]
fn changed_node_is_observed_again_before_cordon() {
    let mut harness = ControllerHarness::leading();
    harness.observe(2, world(2));
    let done = harness.interrupt(3, MessageKind::SpotInterruption, &["i-1"], Some(120));
    assert_eq!(done, ["cordons node-of-i-1"]);
    assert_eq!(harness.finish_saving(3), [""; 0]);
    assert_eq!(harness.step_at(4, cordoned(CordonOutcome::Outdated)), [""; 0]);
    assert!(harness.state().status().failing_actions.is_empty());
    // The observation in progress may be older than the write.
    harness.observe(6, world(6));
    let done = harness.observe(10, world(10));
    assert_eq!(done, ["cordons node-of-i-1"]);
    assert_eq!(harness.step_at(11, cordoned(CordonOutcome::Written)), ["takes off r"]);
}

#[test]
fn lost_lease_drops_interruptions_and_reloads_state() {
    let mut harness = ControllerHarness::leading();
    harness.observe(2, world(2));
    let done = harness.interrupt(3, MessageKind::SpotInterruption, &["i-1"], Some(120));
    assert_eq!(done, ["cordons node-of-i-1"]);
    assert_eq!(harness.step_at(4, lost(false)), [""; 0]);
    assert!(!harness.state().status().is_lease_held_by_apply);
    assert!(harness.state().interruptions.instances().is_empty());
    assert_eq!(harness.observe(5, world(5)), [""; 0]);
    harness.step_at(6, Event::Signal(Signal::LeaseGained));
    assert!(
        harness.state().persistence.loaded.is_none() && harness.state().persistence.is_loading()
    );
}

#[test]
fn outdated_cordon_during_apply_triggers_observation() {
    let mut harness = ControllerHarness::started();
    harness.step_at(1, lost(true));
    harness.interrupt(2, MessageKind::SpotInterruption, &["i-1"], Some(120));
    let end = Ok(CordonOutcome::Outdated);
    harness.step_at(3, Event::CordonedWithoutLease { node: "node-of-i-1".into(), result: end });
    assert!(harness.state().observation.reads.due <= at(5));
    assert!(harness.state().status().failing_actions.is_empty());
}

#[test]
fn standby_without_apply_ignores_messages() {
    let mut harness = ControllerHarness::started();
    harness.step_at(1, lost(false));
    assert!(!harness.state().accepts_messages());
    assert_eq!(harness.interrupt(2, MessageKind::SpotInterruption, &["i-1"], Some(120)), [""; 0]);
}

#[test]
fn competing_autoscaler_stops_message_handling() {
    let mut harness = ControllerHarness::leading();
    harness.observe(2, world(2));
    assert!(harness.state().accepts_messages());
    let competing = Arc::new(with_karpenter(world(100)));
    harness.step_at(100, Event::Observed(Arc::clone(&competing)));
    assert!(
        harness.state().competing_autoscaler().is_some() && !harness.state().accepts_messages()
    );
    // Messages already in transit are left alone as well: about unknown, foreign, no or own
    // instances.
    for ids in [&["i-7"][..], &["i-9"], &[], &["i-1"]] {
        assert_eq!(
            harness.interrupt(101, MessageKind::SpotInterruption, ids, Some(120)),
            [""; 0],
            "{ids:?}"
        );
    }
    for n in 102..106 {
        assert_eq!(harness.step_at(n, Event::Observed(Arc::clone(&competing))), [""; 0]);
    }
    // Messages delivered meanwhile belong to the other autoscaler; later ones are handled here.
    harness.observe(200, world(200));
    assert!(harness.state().accepts_messages());
    let done = harness.interrupt(201, MessageKind::SpotInterruption, &["i-1"], Some(120));
    assert_eq!(done, ["cordons node-of-i-1"]);
}

/// Returns the world with the node of `i-1` cordoned.
fn shows_cordoned(seconds: i64) -> Event {
    let mut seen = world(seconds);
    let node = seen.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it");
    node.unschedulable = true;
    Event::Observed(Arc::new(seen))
}

#[test]
fn observation_during_cordon_does_not_prove_node_empty() {
    let (verb, reason) = ("cordon node".to_owned(), "the answer was lost".to_owned());
    let lost = PortError { verb, reason, effect: CallEffect::Unknown };
    for result in [Ok(CordonOutcome::Written), Err(lost)] {
        let mut harness = ControllerHarness::leading();
        harness.observe(2, world(2));
        let done = harness.interrupt(100, MessageKind::SpotInterruption, &["i-1"], Some(60));
        assert_eq!(done, ["cordons node-of-i-1"]);
        // This observation may have read pods before the cordon and nodes after it.
        assert!(
            harness.state().observation.reads.is_running,
            "an observation runs during the cordon"
        );
        let no_end = |done: Vec<String>| !done.contains(&"ends i-1".to_owned());
        for n in 101..104 {
            assert!(no_end(harness.step_at(n, shows_cordoned(n))), "the cordon has not ended");
        }
        let started = harness.state().observation.last_number();
        assert!(no_end(harness.step_at(104, Event::Cordoned { instance: "i-1".into(), result })));
        let mut all = Vec::new();
        for n in 105..120 {
            assert!(
                all.is_empty() || harness.state().observation.last_number() > started,
                "{all:?} without another observation"
            );
            all.extend(harness.step_at(n, shows_cordoned(n)));
        }
        assert!(all.contains(&"ends i-1".to_owned()), "{all:?}");
    }
}

#[test]
fn messages_that_the_instance_contradicts_are_counted_and_change_nothing() {
    use crate::model::market::CapacityType;
    for (kind, capacity_type) in [
        (MessageKind::SpotInterruption, CapacityType::OnDemand),
        (MessageKind::SpotInterruption, CapacityType::Reserved),
        (MessageKind::Reservation, CapacityType::OnDemand),
        (MessageKind::Reservation, CapacityType::Spot),
    ] {
        let mut seen = world(2);
        let found = seen.instances.get_mut(&InstanceId::from("i-1")).expect("it");
        found.capacity_type = capacity_type;
        let mut harness = ControllerHarness::leading();
        harness.observe(2, seen.clone());
        let done = harness.interrupt(3, kind.clone(), &["i-1"], Some(120));
        assert_eq!(done, ["takes off r"], "{kind} {capacity_type}");
        assert!(harness.state().interruptions.instances().is_empty(), "{kind} {capacity_type}");
        let counted = harness.state().counters.get(&Counter::Messages("contradicted"));
        assert_eq!(counted, 1, "{kind} {capacity_type}");
        // Nor is its node cordoned while an apply holds the lease.
        let mut harness = ControllerHarness::started();
        harness.observe(1, seen);
        harness.step_at(1, lost(true));
        let done = harness.interrupt(2, kind.clone(), &["i-1"], Some(120));
        assert_eq!(done, [""; 0], "{kind} {capacity_type}");
    }
}

#[test]
fn message_about_an_instance_without_node_needs_a_proof_of_its_launch() {
    let is_interrupted = |tags: &[(&str, &str)], has_node: bool| {
        let mut harness = ControllerHarness::leading();
        let mut seen = world(2);
        seen = seen.with_instance(world::managed_instance("i-3", "c").with_tags(tags));
        if has_node {
            let (instance, created_at) = (Some("i-3".into()), at(-8_000));
            seen = seen.with_node(Node { instance, created_at, ..world::node("node-of-i-3") });
        }
        harness.observe(2, seen);
        let done = harness.interrupt(3, MessageKind::SpotInterruption, &["i-3"], Some(120));
        let is_known = !harness.state().interruptions.instances().is_empty();
        assert_eq!(done.contains(&"takes off r".to_owned()), !is_known, "{tags:?}: {done:?}");
        is_known
    };
    assert!(!is_interrupted(&[], false), "anyone can write our tags");
    assert!(is_interrupted(&[], true));
    let fleet = (tag::FLEET, "fleet-1");
    assert!(is_interrupted(&[fleet, ("karpenter.sh/discovery", "c")], false));
    // Karpenter and Auto Scaling groups launch by fleet requests as well.
    for key in tag::OTHER_LAUNCHERS {
        assert!(!is_interrupted(&[fleet, (key, "x")], false), "{key}");
    }
}

#[test]
fn message_without_node_waits_for_newer_observation() {
    let mut harness = ControllerHarness::started();
    let seen = |seconds: i64| {
        let mut seen = world(seconds);
        seen.nodes.remove(&NodeName::from("node-of-i-1"));
        let found = seen.instances.get_mut(&InstanceId::from("i-1")).expect("it");
        found.tags.insert(tag::FLEET.to_owned(), "fleet-1".to_owned());
        Event::Observed(Arc::new(seen))
    };
    harness.step_at(1, seen(1));
    // Another process, which has never observed the node.
    harness.modify(|state| state.node_health.joined.clear());
    harness.step_at(1, Event::Signal(Signal::LeaseGained));
    harness.load_state_and_branch();
    harness.step_at(2, seen(2));
    assert_eq!(harness.interrupt(100, MessageKind::SpotInterruption, &["i-1"], Some(120)), [""; 0]);
    assert!(
        harness.state().observation.reads.is_running,
        "a node may have joined since the last observation"
    );
    let mut all = harness.step_at(101, Event::StateSaved(Ok(())));
    assert_eq!(all, [""; 0], "it is persisted, and the last observation is older than the message");
    for n in 102..106 {
        all.extend(harness.step_at(n, seen(n)));
        if harness.state().persistence.is_saving() {
            all.extend(harness.step_at(n, Event::StateSaved(Ok(()))));
        }
    }
    assert_eq!(all, ["takes off r"]);
    // The acknowledgement was lost, and the message returns while joined nodes cannot be read.
    let reason = "the second page was not answered".to_owned();
    let mut part = world(110);
    part.sources.insert("kubernetes".to_owned(), Completeness::Partial { reason });
    assert_eq!(harness.observe(110, part), [""; 0]);
    assert_eq!(harness.interrupt(111, MessageKind::SpotInterruption, &["i-1"], Some(120)), [""; 0]);
    assert!(harness.step_at(112, seen(112)).contains(&"takes off r".to_owned()));
}

#[test]
fn message_about_new_instance_waits_until_ec2_shows_it() {
    // Launched by this process, or requested by one that died before the answer.
    for is_answered in [true, false] {
        let mut harness = ControllerHarness::leading();
        harness.observe(2, world(2));
        let id = InstanceId::from("i-3");
        harness.modify(|state| {
            if is_answered {
                state.observation.unobserved.note_launch(&id, at(3));
            } else {
                let entry = r#"{"plan": "p", "at": "1970-01-12T13:46:43Z", "unlisted": 1}"#;
                let entry = serde_json::from_str(entry).expect("reads");
                state.persistence.loaded.as_mut().expect("recalled").in_doubt_launches.push(entry);
            }
        });
        assert_eq!(
            harness.interrupt(10, MessageKind::SpotInterruption, &["i-3"], Some(120)),
            [""; 0]
        );
        for n in [11, 30] {
            harness.modify(|state| state.observation.reads.due = at(n));
            harness.step_at(n, Event::Timer);
            assert_eq!(harness.observe(n, world(n)), [""; 0], "EC2 shows it late");
        }
        let mut shows = world(40);
        let found = world::managed_instance("i-3", "c").with_tags(&[(tag::FLEET, "fleet-1")]);
        shows.instances.insert(id.clone(), Instance { launched_at: at(3), ..found });
        harness.modify(|state| state.observation.reads.due = at(40));
        harness.step_at(40, Event::Timer);
        harness.observe(40, shows);
        assert_eq!(harness.state().interruptions.instances(), [id.clone()].into());
        // An older observation does not show that it is gone.
        harness.observe(45, world(45));
        assert_eq!(harness.state().interruptions.instances(), [id].into());
    }
}
