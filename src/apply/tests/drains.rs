//! Drains: eviction order, blockers, timeouts and reverted drains.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::apply::ports::{ClusterObjects, PortError};
use crate::model::ids::{NodeName, Uid, WorkloadId};
use crate::model::observed::{KEY_LABEL, Pod};

#[test]
fn blocked_drain_is_reverted_at_its_timeout() {
    let world = fleet();
    world.deliver(&workloads(6).budget("api", None, Some("0"))).expect("kept in memory");
    let plan = plan(&world);
    let began = world.now();
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    for key in ["0", "1"] {
        let outcome = outcome(&receipt, key, WaveStep::Retire);
        assert!(
            matches!(outcome, Outcome::Abandoned { why } if why.contains("web/api-budget")),
            "{outcome:?}"
        );
    }
    assert!(cordoned(&world).is_empty());
    let bounds = Bounds::default();
    assert!(world.now().duration_since(began) < bounds.drain + bounds.ready);
    world.settle(MINUTE * 5).expect("kept in memory");
    let observed = world.observed();
    assert!(observed.nodes.values().all(|node| node.annotations.is_empty()));
    assert_eq!(pods(&world, "api").iter().filter(|pod| pod.terminating).count(), 0);
    world.deliver(&workloads(6)).expect("kept in memory");
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied, "the same plan finishes");
    assert_eq!(active(&world), planned_fleet(&plan));
    assert_only_approved_writes(&world, &plan);
}

#[test]
fn pods_of_all_nodes_are_evicted_concurrently() {
    let world = fleet();
    let plan = plan(&world);
    let ports = FaultyPorts { evicts_slowly: true, ..FaultyPorts::without_fault(&world) };
    let (settings, ports_of_all) = (settings(), all(&ports));
    let mut report = |_: &Event| ();
    let mut apply = Box::pin(apply(&plan, &ports_of_all, &settings, &mut report));
    let mut context = Context::from_waker(Waker::noop());
    let receipt = loop {
        if let Poll::Ready(end) = apply.as_mut().poll(&mut context) {
            break end.expect("not refused");
        }
    };
    assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:#?}");
    let (running, most) = ports.evictions.get();
    assert_eq!(running, 0, "every eviction ended");
    let pods_of_one_node = 3;
    assert!(most > pods_of_one_node, "{most}");
}

#[test]
fn drain_respects_a_pod_disruption_budget() {
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
fn critical_pods_are_evicted_last() {
    let world = fleet();
    let mut delivery = workloads(6).with(WorkloadKind::Deployment, "dns", 2, 100);
    let dns = delivery.workloads.get_mut(&id(WorkloadKind::Deployment, "dns")).expect("delivered");
    let critical = std::sync::Arc::make_mut(&mut dns.template);
    critical.spec.priority_class_name = Some("system-cluster-critical".into());
    world.deliver(&delivery).expect("kept in memory");
    world.settle(SignedDuration::from_mins(5)).expect("kept in memory");
    let plan = plan(&world);
    let observed = world.observed();
    let node_of = |name: &str| {
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
        let on_same_node = later.filter(|other| node_of(other) == node_of(name));
        assert_eq!(on_same_node.count(), 0, "{evicted:?}");
    }
}

#[test]
fn foreign_cordon_stays_after_a_reverted_drain() {
    let dir = tempfile::tempdir().expect("scratch");
    let world = fleet();
    let plan = plan(&world);
    let mut observed = world.observed();
    let name = plan.resource_changes[0].change.before.clone().and_then(|n| n.node).expect("a node");
    observed.nodes.get_mut(&name).expect("registered").unschedulable = true;
    let bytes = crate::model::observed::write_world(&observed);
    std::fs::write(dir.path().join("world.json"), bytes).expect("written");
    let genesis = crate::testing::simulator::genesis();
    let world = World::open(dir.path(), &genesis, crate::testing::simulator::shapes())
        .expect("a world file");
    world.deliver(&workloads(6).budget("api", None, Some("0"))).expect("kept");
    let receipt = applied(&plan, &world);
    assert!(matches!(outcome(&receipt, "0", WaveStep::Retire), Outcome::Abandoned { .. }));
    assert!(world.observed().nodes[&name].unschedulable, "the foreign cordon stays");
}

#[test]
fn termination_waits_for_volumes_until_the_timeout() {
    for (minutes, waits) in [(3, MINUTE * 3), (60, Bounds::default().detach)] {
        let world = fleet();
        let plan = plan(&world);
        let begun = world.now();
        let mut ports = FaultyPorts::without_fault(&world);
        ports.attached_until = begun + MINUTE * minutes;
        let (receipt, events) = apply_over(&plan, &ports, &settings());
        assert_eq!(receipt.expect("not refused").verdict, ApplyStatus::Applied);
        let is_reported = events.iter().any(
            |event| matches!(&event.step, Step::Waiting { why } if why.contains("volume vol-1")),
        );
        assert!(is_reported, "{events:?}");
        let calls = world.calls();
        let (ended, _) = calls.iter().find_map(PortCall::terminated).expect("terminated");
        assert!(ended.duration_since(begun) >= waits, "{minutes}");
    }
}

#[test]
fn do_not_disrupt_pod_keeps_its_node() {
    let world = fleet();
    let mut delivery = workloads(6);
    let api = id(WorkloadKind::Deployment, "api");
    let mut template = crate::testing::simulator::template("api", 500);
    template.annotations.insert("karpenter.sh/do-not-disrupt".into(), "true".into());
    delivery.workloads.get_mut(&api).expect("delivered").template = template.into();
    world.deliver(&delivery).expect("kept in memory");
    world.settle(MINUTE * 5).expect("kept in memory");
    let receipt = applied(&plan(&world), &world);
    let kept = outcome(&receipt, "1", WaveStep::Retire);
    assert!(
        matches!(kept, Outcome::Abandoned { why } if why.contains("must not be disrupted now")),
        "{kept:?}"
    );
    assert!(cordoned(&world).is_empty());
    assert!(!writes(&world).iter().any(|call| matches!(call, PortCall::Evict { .. })));
}

#[test]
fn job_that_might_fail_keeps_its_nodes() {
    for (backoff_limit, is_kept) in [(6, true), (20, false)] {
        let world = fleet();
        let delivery = workloads(6).job("import", 6, 300, backoff_limit);
        world.deliver(&delivery).expect("kept in memory");
        world.settle(MINUTE * 5).expect("kept in memory");
        let receipt = applied(&plan(&world), &world);
        let is_abandoned = |key: &str| {
            let outcome = outcome(&receipt, key, WaveStep::Retire);
            matches!(outcome, Outcome::Abandoned { why } if why.contains("web/import might fail"))
        };
        assert_eq!(["0", "1"].into_iter().any(is_abandoned), is_kept, "{receipt:?}");
        let failed = world.observed().jobs.iter().map(|job| job.failed).sum::<u32>();
        assert_eq!(failed == 0, is_kept, "{failed} pods of the Job were evicted");
        assert!(cordoned(&world).is_empty());
    }
}

#[test]
fn retirement_waits_for_fewer_replicas_until_the_timeout() {
    let world = fleet();
    let mut plan = plan(&world);
    plan.capacity.base.preconditions[0].condition =
        Condition::ReplicasAtMost { workload: id(WorkloadKind::Deployment, "api"), replicas: 4 };
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    let left = outcome(&receipt, "0", WaveStep::Retire);
    assert!(matches!(left, Outcome::Abandoned { why } if why.contains("6 replicas")), "{left:?}");
    assert_eq!(*outcome(&receipt, "1", WaveStep::Retire), Outcome::Done, "other nodes do not wait");
    let node_0 = plan.resource_changes[0].change.before.clone().and_then(|n| n.node).expect("node");
    let is_cordon =
        |call: &PortCall| matches!(call, PortCall::Cordon { node, .. } if *node == node_0);
    assert!(!writes(&world).iter().any(is_cordon), "the node was not cordoned");
    world.deliver(&workloads(4)).expect("kept in memory");
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied);
}

#[test]
fn interrupted_drain_is_reverted() {
    let world = fleet();
    world.deliver(&workloads(6).budget("api", None, Some("0"))).expect("kept in memory");
    let plan = plan(&world);
    let flag = AtomicBool::new(false);
    let settings = ApplySettings { interrupted: Some(&flag), ..settings() };
    let ports = all(&world);
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
fn uncordon_by_an_operator_reverts_the_drain() {
    type IsTrigger = fn(&Step) -> bool;
    let triggers: [(IsTrigger, bool); 2] = [
        (|step| matches!(step, Step::Cordoned { .. }), false),
        (|step| matches!(step, Step::Evicted { .. }), true),
    ];
    for (is_trigger, evicts) in triggers {
        let world = fleet();
        let plan = plan(&world);
        let before = active(&world);
        let ports = all(&world);
        let settings = settings();
        let mut report = |event: &Event| {
            let nodes =
                if is_trigger(&event.step) { world.observed().nodes } else { BTreeMap::new() };
            for node in nodes.into_values().filter(|node| node.unschedulable) {
                world.update_node(&Node { unschedulable: false, ..node });
            }
        };
        let receipt = run(apply(&plan, &ports, &settings, &mut report)).expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Partly);
        for key in ["0", "1"] {
            let left = outcome(&receipt, key, WaveStep::Retire);
            let is_reported =
                matches!(left, Outcome::Abandoned { why } if why.contains("was uncordoned"));
            assert!(is_reported, "{left:?}");
        }
        let now = active(&world);
        assert!(before.iter().all(|instance| now.contains(instance)), "{before:?} {now:?}");
        let nodes = world.observed().nodes;
        assert!(nodes.values().all(|node| !node.unschedulable && node.annotations.is_empty()));
        let evicted = writes(&world).iter().any(|call| matches!(call, PortCall::Evict { .. }));
        assert_eq!(evicted, evicts);
    }
}

#[test]
fn pod_bound_just_before_the_cordon_is_evicted() {
    let world = fleet_without_pods();
    let plan = plan(&world);
    let bind_pods = |_: &Node| {
        world.deliver(&workloads(6)).expect("kept in memory");
        world.settle(SignedDuration::from_secs(20)).expect("kept in memory");
    };
    let mut ports = FaultyPorts::without_fault(&world);
    ports.before_cordon = Some(&bind_pods);
    let receipt = apply_over(&plan, &ports, &settings()).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:#?}");
    let calls = writes(&world);
    let evicted = calls.iter().position(|call| matches!(call, PortCall::Evict { .. }));
    let ended = calls.iter().position(|call| matches!(call, PortCall::Terminate { .. }));
    assert!(evicted.is_some() && evicted < ended, "{calls:?}");
}

/// Removes the tags of every instance of ours, so that EC2 lists none of them.
fn lose_tags(world: &World) {
    for id in world.observed().instances.keys() {
        for key in [tag::CLUSTER, tag::POOL, tag::KEY, tag::CHANGE] {
            world.untag_instance(id, key);
        }
    }
}

fn assert_nothing_ended(world: &World) {
    let is_end =
        |call: &PortCall| matches!(call, PortCall::Terminate { .. } | PortCall::DeleteNode { .. });
    assert!(!writes(world).iter().any(is_end), "{:?}", writes(world));
}

#[test]
fn instance_that_loses_its_tags_during_the_drain_is_kept() {
    let world = fleet();
    let plan = plan(&world);
    let ports = all(&world);
    let mut report = |event: &Event| {
        if matches!(event.step, Step::Cordoned { .. }) {
            lose_tags(&world);
        }
    };
    let receipt = run(apply(&plan, &ports, &settings(), &mut report)).expect("not refused");
    for key in ["0", "1"] {
        let left = outcome(&receipt, key, WaveStep::Retire);
        let is_reported =
            matches!(left, Outcome::Abandoned { why } if why.contains("lost the tags"));
        assert!(is_reported, "{left:?}");
    }
    assert_nothing_ended(&world);
    assert!(world.observed().nodes.values().all(|node| !node.unschedulable), "uncordoned");
}

#[test]
fn instance_that_lost_its_tags_is_not_removed() {
    let world = fleet();
    let plan = plan(&world);
    lose_tags(&world);
    let ApplyError::Stale(failed) = apply_over(&plan, &world, &settings()).0.expect_err("refused")
    else {
        panic!("another error")
    };
    assert!(failed.iter().all(|failed| failed.found.contains("without our tags")), "{failed:#?}");
    assert_nothing_ended(&world);
}

/// Returns true for an instance that the plan removes.
fn is_old(instance: &Instance) -> bool {
    instance.tags.get(tag::CHANGE).is_some_and(|change| change.starts_with("earlier-"))
}

#[test]
fn node_of_an_unlisted_instance_is_not_deleted() {
    type Edit = fn(&mut ClusterObjects) -> Result<(), PortError>;
    let stays_ready: Edit = |objects| {
        objects.nodes.iter_mut().for_each(|node| node.ready = true);
        Ok(())
    };
    // EC2 is asked by ID about nodes with our marks only.
    let without_marks: Edit = |objects| {
        for node in &mut objects.nodes {
            node.labels.remove(KEY_LABEL);
            (node.ready, node.annotations) = (false, BTreeMap::new());
        }
        Ok(())
    };
    let at_cordon = |step: &Step| matches!(step, Step::Cordoned { .. });
    let at_termination = |step: &Step| matches!(step, Step::Terminating { .. });
    let terminating = || Step::Terminating { instance_id: "i-1".into() };
    let triggers: [fn(&Step) -> bool; 2] = [at_cordon, at_termination];
    for (is_trigger, edit) in
        triggers.into_iter().flat_map(|trigger| [(trigger, stays_ready), (trigger, without_marks)])
    {
        let world = fleet();
        let plan = plan(&world);
        let faulty = FaultyPorts::without_fault(&world);
        let ports = all(&faulty);
        let mut report = |event: &Event| {
            if is_trigger(&event.step) {
                faulty.edit_objects.set(edit);
                faulty.edit_inventory.set(|inventory| {
                    inventory.instances.retain(|instance| !is_old(instance));
                    Ok(())
                });
                faulty.edit_found.set(|found| {
                    found.retain(|instance| !is_old(instance));
                    Ok(())
                });
            }
        };
        let receipt = run(apply(&plan, &ports, &settings(), &mut report)).expect("not refused");
        let left = outcome(&receipt, "0", WaveStep::Retire);
        let is_reported = if let Outcome::Abandoned { why } = left {
            why.contains("EC2 does not list")
        } else {
            // Kubernetes deletes the node of an instance that has ended.
            *left == Outcome::Done && is_trigger(&terminating())
        };
        assert!(is_reported, "{left:?}");
        let is_delete = |call: &PortCall| matches!(call, PortCall::DeleteNode { .. });
        assert!(!writes(&world).iter().any(is_delete), "{:?}", writes(&world));
    }
}

/// Applies a plan, and calls `change` just before the check of the first termination.
fn apply_with_late_change(
    world: &World,
    plan: &Plan,
    change: &dyn Fn(&Node),
) -> (Receipt, InstanceId) {
    let first: RefCell<Option<InstanceId>> = RefCell::default();
    let once = |name: &NodeName| {
        let node = world.observed().nodes[name].clone();
        let mut first = first.borrow_mut();
        if first.is_none() {
            change(&node);
            *first = node.instance;
        }
    };
    let mut ports = FaultyPorts::without_fault(world);
    ports.before_node_read = Some(&once);
    let receipt = apply_over(plan, &ports, &settings()).0.expect("not refused");
    (receipt, first.take().expect("a termination was checked"))
}

/// Binds the pod `api-late` without an owner to a node.
fn bind_late_pod(world: &World, node: &NodeName) {
    let (late, namespace) = (Uid::from("late"), "web".into());
    let template = crate::testing::simulator::template("api", 100).into();
    let bare = WorkloadId { name: "api-late".into(), ..id(WorkloadKind::Pod, "api") };
    world.add_pod(&bare, late.clone(), &template);
    world.bind_pod(&namespace, "api-late", &late, node);
    let there = |pod: &Arc<Pod>| pod.uid == late && pod.node.as_ref() == Some(node);
    assert!(world.observed().pods.iter().any(there));
}

#[test]
fn late_pod_is_evicted_before_the_termination() {
    let world = fleet();
    let plan = plan(&world);
    let add_late_pod = |node: &Node| bind_late_pod(&world, &node.name);
    let (receipt, instance) = apply_with_late_change(&world, &plan, &add_late_pod);
    assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:#?}");
    let calls = writes(&world);
    let evicted =
        calls.iter().position(|c| matches!(c, PortCall::Evict { name, .. } if name == "api-late"));
    let ended =
        |c: &PortCall| matches!(c, PortCall::Terminate { instance: id, .. } if *id == instance);
    let ended = calls.iter().position(ended);
    assert!(evicted.expect("evicted") < ended.expect("terminated"), "{calls:#?}");
    assert_only_approved_writes(&world, &plan);
}

/// Whether a pod is bound to a node at a step.
type BindsAt = fn(&Step, &NodeName) -> bool;

/// Returns the fleet without pods but those of its DaemonSet.
fn fleet_without_pods() -> World {
    let world = fleet();
    world.deliver(&workloads(0)).expect("kept in memory");
    world.settle(MINUTE * 5).expect("kept in memory");
    world
}

/// Applies a plan that removes nodes `0` and `1` only while they are empty. A pod is bound to node
/// `0` at a step, and otherwise just before the check of its termination. Asserts that this node
/// stays with its pod, and that node `1` is removed. Returns the name of node `0`.
fn keep_node_with_late_pod(world: &World, binds_at: BindsAt) -> NodeName {
    let plan = plan(world);
    let removed: Vec<NodeState> =
        plan.resource_changes.iter().filter_map(|row| row.change.before.clone()).collect();
    let name = removed[0].node.clone().expect("a node");
    let only_if_empty = removed.into_iter().filter_map(|node| node.instance_id).collect();
    let settings = ApplySettings { only_if_empty, ..settings() };
    let is_bound = Cell::new(false);
    let bind = || {
        if !is_bound.replace(true) {
            bind_late_pod(world, &name);
        }
    };
    let bind_before_check = |node: &NodeName| {
        if *node == name {
            bind();
        }
    };
    let mut report = |event: &Event| {
        if binds_at(&event.step, &name) {
            bind();
        }
    };
    let mut ports = FaultyPorts::without_fault(world);
    ports.before_node_read = Some(&bind_before_check);
    let ports = all(&ports);
    let receipt = run(apply(&plan, &ports, &settings, &mut report)).expect("not refused");
    assert!(is_bound.get(), "no pod came");
    let kept = Outcome::Abandoned { why: "pods run on the node".to_owned() };
    assert_eq!(*outcome(&receipt, "0", WaveStep::Retire), kept);
    assert_eq!(*outcome(&receipt, "1", WaveStep::Retire), Outcome::Done);
    let is_eviction =
        |call: &PortCall| matches!(call, PortCall::Evict { .. } | PortCall::DeletePod { .. });
    assert!(!writes(world).iter().any(is_eviction), "{:#?}", writes(world));
    assert!(cordoned(world).is_empty());
    assert_eq!(pods(world, "api-late").len(), 1);
    name.clone()
}

#[test]
fn empty_node_with_a_pod_before_its_cordon_is_kept() {
    let world = fleet_without_pods();
    let name = keep_node_with_late_pod(&world, |step, _| matches!(step, Step::Launched { .. }));
    let is_cordon =
        |call: &PortCall| matches!(call, PortCall::Cordon { node, .. } if *node == name);
    assert!(!writes(&world).iter().any(is_cordon), "{:#?}", writes(&world));
}

#[test]
fn empty_node_with_a_pod_after_its_cordon_is_kept() {
    let at_cordon: BindsAt = |step, name| matches!(step, Step::Cordoned { node } if node == name);
    let before_termination: BindsAt = |_, _| false;
    for binds_at in [at_cordon, before_termination] {
        keep_node_with_late_pod(&fleet_without_pods(), binds_at);
    }
}

#[test]
fn late_uncordon_keeps_the_instance() {
    let world = fleet();
    let plan = plan(&world);
    let uncordon = |node: &Node| world.update_node(&Node { unschedulable: false, ..node.clone() });
    let (receipt, instance) = apply_with_late_change(&world, &plan, &uncordon);
    assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:#?}");
    assert!(world.instance(&instance).expect("it is there").is_active());
}

#[test]
fn replaced_node_object_is_not_deleted() {
    let world = fleet();
    let plan = plan(&world);
    let faulty = FaultyPorts::without_fault(&world);
    let ports = all(&faulty);
    let mut ending = 0;
    let mut report = |event: &Event| {
        ending += usize::from(matches!(event.step, Step::Terminating { .. }));
        if ending == 2 {
            faulty.edit_objects.set(|objects| {
                objects.nodes.iter_mut().for_each(|node| node.uid = "another".into());
                Ok(())
            });
        }
    };
    let receipt = run(apply(&plan, &ports, &settings(), &mut report)).expect("not refused");
    assert_eq!((receipt.verdict, ending), (ApplyStatus::Applied, 2), "{receipt:#?}");
    assert!(!writes(&world).iter().any(|call| matches!(call, PortCall::DeleteNode { .. })));
}
