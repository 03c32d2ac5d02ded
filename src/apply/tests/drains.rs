//! Drains: in which order pods leave, what holds a drain up, and how one ends that does not come about.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::model::ids::{NodeName, Uid, WorkloadId};
use crate::model::observed::Pod;

#[test]
fn a_blocked_drain_is_given_up_and_uncordoned_within_its_bound() {
    let world = fleet();
    world.deliver(&workloads(6).budget("api", None, Some("0"))).expect("kept in memory");
    let plan = plan(&world);
    let began = world.now();
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    for key in ["0", "1"] {
        let outcome = outcome(&receipt, key, WaveStep::Retire);
        assert!(
            matches!(outcome, Outcome::GivenUp { why } if why.contains("web/api-budget")),
            "{outcome:?}"
        );
    }
    let observed = world.observed();
    assert!(observed.nodes.values().all(|node| !node.unschedulable));
    assert!(observed.nodes.values().all(|node| node.annotations.is_empty()));
    let bounds = Bounds::default();
    assert!(world.now().duration_since(began) < bounds.drain + bounds.ready);
    assert_eq!(pods(&world, "api").iter().filter(|pod| pod.terminating).count(), 0);
    world.deliver(&workloads(6)).expect("kept in memory");
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied, "the same plan finishes");
    assert_eq!(active(&world), planned_fleet(&plan));
    assert_lawful(&world, &plan);
}

#[test]
fn a_budget_that_lets_one_pod_go_at_a_time_slows_a_drain_and_is_kept() {
    let world = fleet();
    world.deliver(&workloads(6).budget("api", Some("5"), None)).expect("kept in memory");
    let plan = plan(&world);
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:#?}");
    let blocked = |call: &PortCall| {
        matches!(
            call,
            PortCall::Evict {
                outcome: Some(crate::apply::ports::EvictOutcome::Blocked { .. }),
                ..
            }
        )
    };
    assert!(world.calls().iter().any(blocked));
}

#[test]
fn critical_pods_leave_a_node_after_all_others() {
    let world = fleet();
    let mut delivery = workloads(6).with(WorkloadKind::Deployment, "dns", 2, 100);
    let dns = delivery.workloads.get_mut(&id(WorkloadKind::Deployment, "dns")).expect("delivered");
    let critical = std::sync::Arc::make_mut(&mut dns.template);
    critical.spec.priority_class_name = Some("system-cluster-critical".into());
    world.deliver(&delivery).expect("kept in memory");
    world.settle(SignedDuration::from_mins(5)).expect("kept in memory");
    let plan = plan(&world);
    let observed = world.observed();
    let on = |name: &str| {
        let pod = observed.pods.iter().find(|pod| *pod.name == *name);
        pod.and_then(|pod| pod.node.clone())
    };
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:#?}");
    let evicted = writes(&world).into_iter().filter_map(|call| {
        let PortCall::Evict { name, outcome: Some(outcome), .. } = call else { return None };
        (outcome == crate::apply::ports::EvictOutcome::Evicted).then_some(name)
    });
    let evicted: Vec<String> = evicted.collect();
    let critical: Vec<&String> = evicted.iter().filter(|name| name.contains("dns")).collect();
    assert!(!critical.is_empty(), "{evicted:?}");
    for name in critical {
        let at = evicted.iter().position(|other| other == name).expect("evicted");
        let later = evicted[at..].iter().filter(|other| !other.contains("dns"));
        let of_its_node = later.filter(|other| on(other) == on(name));
        assert_eq!(of_its_node.count(), 0, "{evicted:?}");
    }
}

#[test]
fn a_node_that_another_one_cordoned_stays_cordoned_when_its_drain_is_given_up() {
    let dir = tempfile::tempdir().expect("scratch");
    let world = fleet();
    let plan = plan(&world);
    let mut observed = world.observed();
    let name = plan.resource_changes[0].change.before.clone().and_then(|n| n.node).expect("a node");
    observed.nodes.get_mut(&name).expect("registered").unschedulable = true;
    let bytes = crate::model::observed::write_world(&observed);
    std::fs::write(dir.path().join("world.json"), bytes).expect("written");
    let genesis = crate::simulator::fixture::genesis();
    let world = World::open(dir.path(), &genesis, crate::simulator::fixture::shapes())
        .expect("a world file");
    world.deliver(&workloads(6).budget("api", None, Some("0"))).expect("kept");
    let receipt = applied(&plan, &world);
    assert!(matches!(outcome(&receipt, "0", WaveStep::Retire), Outcome::GivenUp { .. }));
    assert!(world.observed().nodes[&name].unschedulable, "their mark is not ours to remove");
}

#[test]
fn a_machine_ends_once_its_volumes_are_detached_or_their_bound_is_reached() {
    for (minutes, waits) in [(3, MINUTE * 3), (60, Bounds::default().detach)] {
        let world = fleet();
        let plan = plan(&world);
        let begun = world.now();
        let mut ports = FaultyPorts::new(&world, usize::MAX, Fault::FailBefore);
        ports.attached = begun + MINUTE * minutes;
        let (receipt, events) = apply_over(&plan, &ports, &settings());
        assert_eq!(receipt.expect("not refused").verdict, ApplyStatus::Applied);
        let said = events.iter().any(
            |event| matches!(&event.step, Step::Waiting { why } if why.contains("volume vol-1")),
        );
        assert!(said, "{events:?}");
        let ended = world.calls().into_iter().find_map(|call| match call {
            PortCall::Terminate { at, .. } => Some(at),
            PortCall::Launch { .. }
            | PortCall::RaiseGroup { .. }
            | PortCall::EndMember { .. }
            | PortCall::Cordon { .. }
            | PortCall::Evict { .. }
            | PortCall::DeleteNode { .. } => None,
        });
        assert!(ended.expect("it ended").duration_since(begun) >= waits, "{minutes}");
    }
}

#[test]
fn a_pod_that_asks_not_to_be_moved_keeps_its_node() {
    let world = fleet();
    let mut delivery = workloads(6);
    let api = id(WorkloadKind::Deployment, "api");
    let mut template = crate::simulator::fixture::template("api", 500);
    template.annotations.insert("karpenter.sh/do-not-disrupt".into(), "true".into());
    delivery.workloads.get_mut(&api).expect("delivered").template = template.into();
    world.deliver(&delivery).expect("kept in memory");
    world.settle(MINUTE * 5).expect("kept in memory");
    let receipt = applied(&plan(&world), &world);
    let kept = outcome(&receipt, "1", WaveStep::Retire);
    assert!(matches!(kept, Outcome::GivenUp { why } if why.contains("asks not to")), "{kept:?}");
    assert!(world.observed().nodes.values().all(|node| !node.unschedulable));
    assert!(!writes(&world).iter().any(|call| matches!(call, PortCall::Evict { .. })));
}

#[test]
fn a_node_waits_for_its_workload_to_shrink_and_is_left_when_it_does_not() {
    let world = fleet();
    let mut plan = plan(&world);
    plan.capacity.base.preconditions[0].condition =
        Condition::ReplicasAtMost { workload: id(WorkloadKind::Deployment, "api"), replicas: 4 };
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    let left = outcome(&receipt, "0", WaveStep::Retire);
    assert!(matches!(left, Outcome::GivenUp { why } if why.contains("6 replicas")), "{left:?}");
    assert_eq!(*outcome(&receipt, "1", WaveStep::Retire), Outcome::Done, "nobody else waits");
    let zero = plan.resource_changes[0].change.before.clone().and_then(|n| n.node).expect("node");
    let touched = |call: &PortCall| matches!(call, PortCall::Cordon { node, .. } if *node == zero);
    assert!(!writes(&world).iter().any(touched), "it was not even cordoned");
    world.deliver(&workloads(4)).expect("kept in memory");
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied);
}

#[test]
fn an_interrupted_drain_is_taken_back() {
    let world = fleet();
    world.deliver(&workloads(6).budget("api", None, Some("0"))).expect("kept in memory");
    let plan = plan(&world);
    let flag = AtomicBool::new(false);
    let settings = ApplySettings { interrupted: Some(&flag), ..settings() };
    let ports = Ports { cloud: &world, cluster: &world, clock: &world };
    let mut report = |event: &Event| {
        if matches!(event.step, Step::Blocked { .. }) {
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let receipt = run(apply(&plan, &ports, &settings, &mut report)).expect("begun");
    assert_eq!(receipt.verdict, ApplyStatus::Interrupted);
    assert!(world.observed().nodes.values().all(|node| !node.unschedulable));
    let early = apply_over(&plan, &world, &settings).0.expect_err("refused");
    assert_eq!(early, ApplyError::Interrupted);
}

#[test]
fn a_node_that_a_person_uncordons_while_it_is_drained_keeps_its_machine_and_has_no_mark() {
    type Moment = fn(&Step) -> bool;
    let moments: [(Moment, bool); 2] = [
        (|step| matches!(step, Step::Cordoned { .. }), false),
        (|step| matches!(step, Step::Evicted { .. }), true),
    ];
    for (is_it, evicts) in moments {
        let world = fleet();
        let plan = plan(&world);
        let before = active(&world);
        let ports = Ports { cloud: &world, cluster: &world, clock: &world };
        let settings = settings();
        let mut report = |event: &Event| {
            let nodes = if is_it(&event.step) { world.observed().nodes } else { BTreeMap::new() };
            for node in nodes.into_values().filter(|node| node.unschedulable) {
                world.update_node(&Node { unschedulable: false, ..node });
            }
        };
        let receipt = run(apply(&plan, &ports, &settings, &mut report)).expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Partly);
        for key in ["0", "1"] {
            let left = outcome(&receipt, key, WaveStep::Retire);
            let says = matches!(left, Outcome::GivenUp { why } if why.contains("uncordoned node"));
            assert!(says, "{left:?}");
        }
        let now = active(&world);
        assert!(before.iter().all(|machine| now.contains(machine)), "{before:?} {now:?}");
        let nodes = world.observed().nodes;
        assert!(nodes.values().all(|node| !node.unschedulable && node.annotations.is_empty()));
        let evicted = writes(&world).iter().any(|call| matches!(call, PortCall::Evict { .. }));
        assert_eq!(evicted, evicts);
    }
}

#[test]
fn a_pod_that_comes_just_before_a_cordon_leaves_before_its_machine_ends() {
    let world = fleet();
    world.deliver(&workloads(0)).expect("kept in memory");
    world.settle(MINUTE * 5).expect("kept in memory");
    let plan = plan(&world);
    let comes = |_: &Node| {
        world.deliver(&workloads(6)).expect("kept in memory");
        world.settle(SignedDuration::from_secs(20)).expect("kept in memory");
    };
    let mut ports = FaultyPorts::new(&world, usize::MAX, Fault::FailBefore);
    ports.meddles = Some(&comes);
    let receipt = apply_over(&plan, &ports, &settings()).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:#?}");
    let calls = writes(&world);
    let evicted = calls.iter().position(|call| matches!(call, PortCall::Evict { .. }));
    let ended = calls.iter().position(|call| matches!(call, PortCall::Terminate { .. }));
    assert!(evicted.is_some() && evicted < ended, "{calls:?}");
}

#[test]
fn a_machine_that_somebody_takes_our_tags_off_while_it_is_drained_is_left() {
    let world = fleet();
    let plan = plan(&world);
    let faulty = FaultyPorts::new(&world, usize::MAX, Fault::FailBefore);
    let ports = Ports { cloud: &faulty, cluster: &faulty, clock: &faulty };
    let mut report = |event: &Event| {
        faulty.untagged.set(faulty.untagged.get() || matches!(event.step, Step::Cordoned { .. }));
    };
    let receipt = run(apply(&plan, &ports, &settings(), &mut report)).expect("not refused");
    for key in ["0", "1"] {
        let left = outcome(&receipt, key, WaveStep::Retire);
        let says = matches!(left, Outcome::GivenUp { why } if why.contains("no longer carries"));
        assert!(says, "{left:?}");
    }
    assert!(!writes(&world).iter().any(|call| matches!(call, PortCall::Terminate { .. })));
}

/// Applies while `comes` happens to the first node that is about to end, after the last look at everything.
fn applies_while(world: &World, plan: &Plan, comes: &dyn Fn(&Node)) -> (Receipt, InstanceId) {
    let first: RefCell<Option<InstanceId>> = RefCell::default();
    let once = |name: &NodeName| {
        let node = world.observed().nodes[name].clone();
        let mut first = first.borrow_mut();
        if first.is_none() {
            comes(&node);
            *first = node.instance;
        }
    };
    let mut ports = FaultyPorts::new(world, usize::MAX, Fault::FailBefore);
    ports.comes = Some(&once);
    let receipt = apply_over(plan, &ports, &settings()).0.expect("not refused");
    (receipt, first.take().expect("a machine was about to end"))
}

#[test]
fn a_machine_to_which_a_pod_came_after_the_last_look_ends_once_that_has_left() {
    let world = fleet();
    let plan = plan(&world);
    let (late, namespace) = (Uid::from("late"), "web".into());
    let comes = |node: &Node| {
        let template = crate::simulator::fixture::template("api", 100).into();
        let bare = WorkloadId { name: "api-late".into(), ..id(WorkloadKind::Pod, "api") };
        world.add_pod(&bare, late.clone(), &template);
        world.bind_pod(&namespace, "api-late", &late, &node.name);
        let there = |pod: &Arc<Pod>| pod.uid == late && pod.node.as_ref() == Some(&node.name);
        assert!(world.observed().pods.iter().any(there));
    };
    let (receipt, instance) = applies_while(&world, &plan, &comes);
    assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:#?}");
    let calls = writes(&world);
    let evicted =
        calls.iter().position(|c| matches!(c, PortCall::Evict { name, .. } if name == "api-late"));
    let ended =
        |c: &PortCall| matches!(c, PortCall::Terminate { instance: id, .. } if *id == instance);
    let ended = calls.iter().position(ended);
    assert!(evicted.expect("asked to leave") < ended.expect("told to end"), "{calls:#?}");
    assert_lawful(&world, &plan);
}

#[test]
fn a_machine_whose_node_somebody_uncordoned_after_the_last_look_stays() {
    let world = fleet();
    let plan = plan(&world);
    let comes = |node: &Node| world.update_node(&Node { unschedulable: false, ..node.clone() });
    let (receipt, instance) = applies_while(&world, &plan, &comes);
    assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:#?}");
    assert!(world.instance(&instance).expect("it is there").is_active());
}

#[test]
fn a_node_that_has_taken_the_place_of_one_whose_machine_ended_is_not_deleted() {
    let world = fleet();
    let plan = plan(&world);
    let faulty = FaultyPorts::new(&world, usize::MAX, Fault::FailBefore);
    let ports = Ports { cloud: &faulty, cluster: &faulty, clock: &faulty };
    let mut ending = 0;
    let mut report = |event: &Event| {
        ending += usize::from(matches!(event.step, Step::Terminating { .. }));
        if ending == 2 {
            faulty.shown.set(|objects| {
                objects.nodes.iter_mut().for_each(|node| node.uid = "another".into());
            });
        }
    };
    let receipt = run(apply(&plan, &ports, &settings(), &mut report)).expect("not refused");
    assert_eq!((receipt.verdict, ending), (ApplyStatus::Applied, 2), "{receipt:#?}");
    assert!(!writes(&world).iter().any(|call| matches!(call, PortCall::DeleteNode { .. })));
}
