//! Replacement of instances whose nodes report faults.

use super::*;
use crate::apply::ports::CordonOutcome;
use crate::controller::event::{Event, Signal};
use crate::controller::persisted_state::LaunchRecord;
use crate::controller::{MessageKind, PersistedState};
use crate::testing::controller::{ControllerHarness, at, world};

/// Returns the interrupted instances, each with the minute and the reason, where nodes report these
/// faults and are repaired after `repair_after`.
fn repairs(
    faults: &[(&str, NodeFault)],
    repair_after: Option<SignedDuration>,
) -> BTreeMap<String, (i64, String)> {
    let mut harness = ControllerHarness::leading();
    harness.edit_revision(|revision| revision.controller.repair_after = repair_after);
    let mut gone = BTreeMap::new();
    for minutes in 0..60 {
        let seconds = 2 + minutes * 60;
        let mut seen = world(seconds);
        for node in seen.nodes.values_mut() {
            let of = |(id, _): &&(&str, NodeFault)| node.name.as_str() == format!("node-of-{id}");
            node.faults = faults.iter().filter(of).map(|(_, fault)| *fault).collect();
        }
        harness.observe(seconds, seen);
        for (id, interruption) in &harness.state().interruptions.all {
            gone.entry(id.to_string()).or_insert((minutes, interruption.record.why.clone()));
        }
    }
    gone
}

#[test]
fn faulty_node_is_replaced_after_karpenters_toleration() {
    let half_an_hour = Some(SignedDuration::from_mins(30));
    for fault in NodeFault::ALL {
        let minutes = fault.toleration_duration().as_mins();
        let expected = ("i-1".to_owned(), (minutes, fault.reason().to_owned()));
        assert_eq!(repairs(&[("i-1", fault)], half_an_hour), [expected].into(), "{fault:?}");
        assert!(!is_broken(fault.reason()), "its kubelet lives, and stops pods: {fault:?}");
    }
    // A shorter `repair_after` overrides the toleration of every fault.
    let soon = Some(SignedDuration::from_mins(20));
    let at = |fault| repairs(&[("i-1", fault)], soon).remove("i-1").map(|(minutes, _)| minutes);
    assert_eq!(at(NodeFault::Storage), Some(20));
    assert_eq!(at(NodeFault::AcceleratedHardware), Some(10));
    assert_eq!(repairs(&[("i-1", NodeFault::Kernel)], None), [].into(), "repairs are disabled");
    assert!(is_broken(NOT_READY) && is_broken(NEVER_READY) && !is_broken("health"));
}

#[test]
fn many_failures_stop_repairs_and_foreign_nodes_are_ignored() {
    let half_an_hour = Some(SignedDuration::from_mins(30));
    let (one, other) = (("i-1", NodeFault::Networking), ("i-2", NodeFault::Storage));
    assert_eq!(repairs(&[one, other], half_an_hour), [].into(), "two of two");
    // Two faults of one instance count as one broken instance.
    let two = [("i-1", NodeFault::Networking), ("i-1", NodeFault::AcceleratedHardware)];
    let why = NodeFault::AcceleratedHardware.reason().to_owned();
    assert_eq!(repairs(&two, half_an_hour), [("i-1".to_owned(), (10, why))].into());
    assert_eq!(repairs(&[("i-9", NodeFault::Kernel)], half_an_hour), [].into(), "not ours");
}

#[test]
fn fault_age_restarts_after_recovery() {
    let mut harness = ControllerHarness::leading();
    for minutes in 0..120 {
        let mut seen = world(minutes * 60);
        // Each time for 25 minutes.
        if minutes % 30 < 25 {
            for node in seen.nodes.values_mut().filter(|node| node.name.as_str() == "node-of-i-1") {
                node.faults = [NodeFault::Storage].into();
            }
        }
        harness.observe(2 + minutes * 60, seen);
    }
    assert!(harness.state().interruptions.instances().is_empty());
    assert!(harness.state().node_health.problems.is_empty(), "it has recovered");
}

/// Returns a leading scenario after a quarter of an hour in which this instance reports an
/// accelerator fault.
fn with_one_repair(id: &str) -> ControllerHarness {
    let mut harness = ControllerHarness::leading();
    for minutes in 0..15 {
        fails(&mut harness, minutes, &[id], &[]);
    }
    assert_eq!(harness.state().interruptions.instances(), [id.into()].into());
    harness
}

/// Observes these instances with accelerator faults, and those as gone.
fn fails(harness: &mut ControllerHarness, minutes: i64, ids: &[&str], gone: &[&str]) {
    let mut seen = world(2 + minutes * 60);
    for id in gone {
        seen.instances.remove(*id);
        seen.nodes.remove(format!("node-of-{id}").as_str());
    }
    for node in seen.nodes.values_mut() {
        if ids.iter().any(|id| node.name.as_str() == format!("node-of-{id}")) {
            node.faults = [NodeFault::AcceleratedHardware].into();
        }
    }
    let seconds = 2 + minutes * 60;
    for done in harness.observe(seconds, seen) {
        // Another client wrote the node meanwhile, each time.
        let Some(instance) = done.strip_prefix("cordons node-of-") else { continue };
        let end = Ok(CordonOutcome::Outdated);
        harness.step_at(seconds, Event::Cordoned { instance: instance.into(), result: end });
    }
}

#[test]
fn repair_is_canceled_when_fault_ends_before_eviction() {
    let mut harness = with_one_repair("i-1");
    fails(&mut harness, 16, &["i-1"], &[]);
    assert!(!harness.state().interruptions.instances().is_empty());
    for minutes in 17..20 {
        fails(&mut harness, minutes, &[], &[]);
    }
    assert!(harness.state().interruptions.instances().is_empty());
}

#[test]
fn scheduled_change_of_an_instance_under_repair_is_remembered() {
    let mut harness = with_one_repair("i-1");
    let record =
        |harness: &ControllerHarness| harness.state().interruptions.all["i-1"].record.clone();
    let why = record(&harness).why;
    harness.interrupt(850, MessageKind::Health, &["i-1"], Some(21_600));
    let announced = record(&harness).announced.map(|announced| announced.deadline);
    assert_eq!((record(&harness).why, record(&harness).deadline), (why, None));
    assert_eq!(announced, Some(at(850 + 21_600)));
    let persisted = serde_json::to_string(&record(&harness)).expect("text");
    assert_eq!(
        serde_json::from_str::<InterruptionRecord>(&persisted).expect("it reads"),
        record(&harness)
    );
    for minutes in 16..20 {
        fails(&mut harness, minutes, &[], &[]);
    }
    let InterruptionRecord { why, deadline, .. } = record(&harness);
    assert_eq!((why.as_str(), deadline), ("health", Some(at(850 + 21_600))), "it has recovered");
}

#[test]
fn announced_change_does_not_prevent_a_repair() {
    let mut harness = ControllerHarness::leading();
    let announced = 80 * 24 * 3_600;
    harness.observe(1, world(1));
    harness.interrupt(1, MessageKind::Health, &["i-1"], Some(announced));
    assert_eq!(harness.state().interruptions.all["i-1"].record.why, "health");
    for minutes in 0..15 {
        fails(&mut harness, minutes, &["i-1"], &[]);
    }
    let record = &harness.state().interruptions.all["i-1"].record;
    let deadline = record.announced.map(|announced| announced.deadline);
    assert_eq!(record.why, NodeFault::AcceleratedHardware.reason());
    assert_eq!((record.deadline, deadline), (None, Some(at(1 + announced))));
}

#[test]
fn repaired_instance_counts_as_broken_for_one_hour() {
    let mut harness = with_one_repair("i-1");
    let is_repaired = |harness: &mut ControllerHarness, from: i64, to: i64| {
        (from..to).find(|minutes| {
            fails(harness, *minutes, &["i-2"], &["i-1"]);
            harness.state().interruptions.all.contains_key(&InstanceId::from("i-2"))
        })
    };
    // The only other instance of the pool has the same fault.
    assert_eq!(is_repaired(&mut harness, 16, 65), None);
    assert!(is_repaired(&mut harness, 65, 75).is_some());
}

#[test]
fn repair_counts_across_restart() {
    let state = with_one_repair("i-1").state().persistence.loaded.clone().expect("loaded");
    assert_eq!(state.repairs.len(), 1);
    let written = serde_json::to_string(&state).expect("text");
    let is_repaired = |loaded: PersistedState| {
        let mut harness = ControllerHarness::started();
        harness.step_at(900, Event::Signal(Signal::LeaseGained));
        harness.load_state_and_branch();
        harness.modify(|state| state.persistence.loaded = Some(loaded));
        for minutes in 16..60 {
            fails(&mut harness, minutes, &["i-2"], &["i-1"]);
        }
        harness.state().interruptions.all.contains_key(&InstanceId::from("i-2"))
    };
    assert!(!is_repaired(serde_json::from_str(&written).expect("it reads")));
    assert!(is_repaired(PersistedState::default()), "without an earlier repair it is replaced");
}

#[test]
fn repair_limit_stops_fault_replacements() {
    let repaired = |n: usize| RepairRecord {
        instance: format!("i-{n:017x}").as_str().into(),
        pool: "other".into(),
        at: Timestamp::from_second(1_000_000).expect("a time"),
    };
    for (known, is_replaced) in [(REPAIRS_MAX - 1, true), (REPAIRS_MAX, false)] {
        let mut harness = ControllerHarness::leading();
        harness.modify(|state| {
            let state = state.persistence.loaded.as_mut().expect("loaded");
            state.repairs = (0..known).map(repaired).collect();
        });
        for minutes in 0..15 {
            fails(&mut harness, minutes, &["i-1"], &[]);
        }
        assert_eq!(!harness.state().interruptions.instances().is_empty(), is_replaced, "{known}");
    }
}

#[test]
fn repair_is_canceled_when_node_is_ready_before_eviction() {
    let mut harness = ControllerHarness::leading();
    let mut observe = |minutes: i64, ready: bool| {
        let mut seen = world(2 + minutes * 60);
        seen.nodes.get_mut("node-of-i-1").expect("its node").ready = ready;
        let seconds = 2 + minutes * 60;
        for done in harness.observe(seconds, seen) {
            let Some(instance) = done.strip_prefix("cordons node-of-") else { continue };
            let end = Ok(CordonOutcome::Outdated);
            harness.step_at(seconds, Event::Cordoned { instance: instance.into(), result: end });
        }
        harness.state().interruptions.instances()
    };
    observe(0, true);
    assert_eq!((1..=30).find(|minutes| !observe(*minutes, false).is_empty()), None);
    assert_eq!(observe(31, false), [InstanceId::from("i-1")].into());
    let is_canceled = (32..36).any(|minutes| observe(minutes, true).is_empty());
    assert!(is_canceled, "it is Ready again");
}

/// Returns the instances that are replaced after 2 minutes without these Node objects.
fn replaced_without_nodes(deleted: &[&str], repair_after: Option<SignedDuration>) -> Vec<String> {
    let mut harness = ControllerHarness::leading();
    harness.edit_revision(|revision| revision.controller.repair_after = repair_after);
    for n in 0..8 {
        let seconds = 2 + n * 15;
        let mut seen = world(seconds);
        if n > 0 {
            seen.nodes.retain(|name, _| {
                !deleted.iter().any(|id| name.as_str() == format!("node-of-{id}"))
            });
        }
        harness.observe(seconds, seen);
    }
    let all = &harness.state().interruptions.all;
    all.iter().map(|(id, of)| format!("{id} {}", of.record.why)).collect()
}

#[test]
fn instance_without_a_node_is_replaced_after_one_minute() {
    let half_an_hour = Some(SignedDuration::from_mins(30));
    assert_eq!(replaced_without_nodes(&["i-1"], half_an_hour), ["i-1 node-deleted"]);
    assert_eq!(replaced_without_nodes(&["i-1"], None), [""; 0], "repairs are disabled");
    // Many deletions may have one cause.
    assert_eq!(replaced_without_nodes(&["i-1", "i-2"], half_an_hour), [""; 0]);
}

/// Returns the instances that plans treat as gone after these seconds without both Node objects,
/// which were launched `age` before. None of them is replaced.
fn planned_as_gone(age: i64, seconds: i64) -> BTreeSet<InstanceId> {
    let mut harness = ControllerHarness::leading();
    let mut latest = world(0);
    for n in 0..=seconds / 15 {
        let now = 2 + n * 15;
        let mut seen = world(now);
        for instance in seen.instances.values_mut() {
            instance.launched_at = at(-age);
        }
        // A node of ours that stays, so that the observation is plausible.
        let third = crate::testing::world::managed_instance("i-3", "c");
        let node = Node { instance: Some("i-3".into()), ..crate::testing::world::node("n-3") };
        seen = seen.with_instance(Instance { launched_at: at(-9_000), ..third }).with_node(node);
        if n > 0 {
            seen.nodes.retain(|name, _| !["node-of-i-1", "node-of-i-2"].contains(&name.as_str()));
        }
        latest = seen.clone();
        harness.observe(now, seen);
    }
    assert!(harness.state().interruptions.instances().is_empty(), "two of three");
    harness.state().young_instances_without_node(&latest)
}

#[test]
fn young_instances_without_nodes_do_not_count_as_starting() {
    let both: BTreeSet<InstanceId> = ["i-1".into(), "i-2".into()].into();
    assert_eq!(planned_as_gone(300, 60), [].into(), "a kubelet may register again");
    assert_eq!(planned_as_gone(300, 75), both);
    assert_eq!(planned_as_gone(3_600, 75), [].into(), "they do not count as starting");
}

#[test]
fn lost_nodes_of_young_instances_start_a_plan() {
    let mut harness = ControllerHarness::leading();
    for n in 0..6 {
        let seconds = 2 + n * 15;
        let mut seen = world(seconds);
        seen.instances.values_mut().for_each(|instance| instance.launched_at = at(-300));
        let third = crate::testing::world::managed_instance("i-3", "c");
        let node = Node { instance: Some("i-3".into()), ..crate::testing::world::node("n-3") };
        seen = seen.with_instance(third).with_node(node);
        if n > 0 {
            seen.nodes.retain(|name, _| !["node-of-i-1", "node-of-i-2"].contains(&name.as_str()));
        }
        // No plan is in progress, and none is due by itself.
        harness.modify(|state| {
            state.planning.run = None;
            state.planning.replan_at = at(10_000);
        });
        harness.observe(seconds, seen);
    }
    let planning = harness.state().planning.run.as_ref().expect("a plan is being made");
    let gone = &planning.input.interrupted;
    assert_eq!(*gone, ["i-1".into(), "i-2".into()].into());
}

#[test]
fn single_instance_is_replaced_if_other_nodes_are_shown() {
    let replaced = |shows_others: bool, has_pod: bool| {
        let mut harness = ControllerHarness::leading();
        let half_an_hour = Some(SignedDuration::from_mins(30));
        harness.edit_revision(|revision| revision.controller.repair_after = half_an_hour);
        for n in 0..8 {
            let seconds = 2 + n * 15;
            let mut seen = world(seconds);
            seen.instances.remove("i-2");
            seen.nodes.remove("node-of-i-2");
            if n > 0 {
                seen.nodes.retain(|name, _| shows_others && name.as_str() == "node-of-i-9");
            }
            let pod = crate::testing::world::pod("a").on("node-of-i-1");
            harness.observe(seconds, seen.with_pods(Some(pod).filter(|_| has_pod)));
        }
        harness.state().interruptions.instances()
    };
    assert_eq!(replaced(true, false), ["i-1".into()].into());
    assert_eq!(replaced(false, false), [].into(), "the list of nodes is empty");
    assert_eq!(replaced(true, true), [].into(), "a pod runs on a node that is not shown");
}

#[test]
fn lost_node_counts_while_the_replacement_boots() {
    let mut harness = ControllerHarness::leading();
    harness.edit_revision(|revision| revision.controller.repair_after = None);
    for minutes in 0..21 {
        let seconds = 2 + minutes * 60;
        let mut seen = world(seconds);
        seen.instances.get_mut("i-1").expect("it is listed").launched_at = at(0);
        seen.instances.remove("i-2");
        let is_shown = |name: &str| name == "node-of-i-9" || name == "node-of-i-1" && minutes == 0;
        seen.nodes.retain(|name, _| is_shown(name.as_str()));
        if minutes == 4 {
            let record = LaunchRecord {
                instance: "i-3".into(),
                pool: "web".into(),
                at: at(seconds),
                ready_at: None,
                useful: false,
                from_start: true,
                passed_over: false,
                launched_for: Some(Vec::new()),
            };
            harness.modify(|state| {
                state.persistence.loaded.as_mut().expect("loaded").launches.push(record);
            });
        }
        if minutes >= 4 {
            seen = seen.with_instance(crate::testing::world::managed_instance("i-3", "c"));
        }
        harness.observe(seconds, seen.clone());
        let lost = harness.state().young_instances_without_node(&seen);
        assert_eq!(lost.contains("i-1"), (3..15).contains(&minutes), "minute {minutes}");
    }
    // It has fifteen minutes.
    assert_eq!(harness.state().interruptions.instances(), ["i-3".into()].into());
    assert_eq!(harness.state().counters.get(&Counter::ClusterReadsNoManagedNodes), 0);
}

#[test]
fn instance_that_never_joined_needs_a_proof_of_its_launch() {
    use crate::testing::world::managed_instance;
    let replaced = |tags: &[(&str, &str)]| {
        let mut harness = ControllerHarness::leading();
        let half_an_hour = Some(SignedDuration::from_mins(30));
        harness.edit_revision(|revision| revision.controller.repair_after = half_an_hour);
        for minutes in 0..45 {
            let seconds = 2 + minutes * 60;
            let instance = managed_instance("i-3", "c").with_tags(tags);
            harness.observe(seconds, world(seconds).with_instance(instance));
        }
        harness.state().interruptions.instances()
    };
    assert_eq!(replaced(&[]), [].into(), "anyone can write our tags");
    let fleet = (tag::FLEET, "fleet-1");
    assert_eq!(replaced(&[fleet]), ["i-3".into()].into());
    // An instance of Karpenter, with a copy of our tags.
    assert_eq!(replaced(&[fleet, ("karpenter.sh/nodepool", "general")]), [].into());
}

#[test]
fn repair_counts_as_removal_and_interruption_does_not() {
    for (why, counts) in [
        (NOT_READY, 1),
        (NEVER_READY, 1),
        (NodeFault::Kernel.reason(), 1),
        ("spot-interruption", 0),
    ] {
        let mut harness = with_one_repair("i-1");
        harness.modify(|state| {
            let interruption = state.interruptions.all.get_mut("i-1").expect("it goes");
            interruption.record.why = why.to_owned();
        });
        let end = Ok(crate::controller::event::TerminateOutcome::Called);
        harness.step_at(1_000, Event::TerminateFinished { instance: "i-1".into(), result: end });
        let state = harness.state().persistence.loaded.as_ref().expect("loaded");
        assert_eq!(state.removals.len(), counts, "{why}");
    }
}

#[test]
fn replaced_instances_do_not_withhold_repairs_and_withheld_repairs_are_reported() {
    let mut harness = ControllerHarness::leading();
    let half_an_hour = Some(SignedDuration::from_mins(30));
    harness.edit_revision(|revision| revision.controller.repair_after = half_an_hour);
    let observe = |harness: &mut ControllerHarness, minutes: i64| {
        let mut seen = world(2 + minutes * 60);
        for node in seen.nodes.values_mut().filter(|node| node.name.as_str() != "node-of-i-9") {
            node.ready = minutes == 0;
        }
        harness.observe(2 + minutes * 60, seen);
        let status = harness.state().status();
        status.withheld_repairs.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(observe(&mut harness, 0), [""; 0]);
    let withheld = (1..=31).map(|minutes| observe(&mut harness, minutes)).last();
    let says =
        "no broken node of pool web is replaced: 2 of its 2 nodes are broken, and at most 1 may be";
    assert_eq!(withheld, Some(vec![says.to_owned()]));
    // The replacement of one is there, and its pods are being evicted.
    let why = NOT_READY.to_owned();
    let (instance, since) = (InstanceId::from("i-1"), harness.state().now);
    let record =
        InterruptionRecord { instance, why, since, deadline: None, member: false, announced: None };
    harness.modify(|state| {
        state.begin_interruption(record, 0);
        state.interruptions.all.get_mut("i-1").expect("it").start_drain(since);
    });
    assert_eq!(observe(&mut harness, 32), [""; 0]);
    assert!(harness.state().interruptions.all.contains_key("i-2"));
}
