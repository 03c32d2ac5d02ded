//! Rules of the simulated world, one test each.

mod files;
mod opening;

use jiff::SignedDuration;

use super::*;
use crate::apply::observation::observe;
use crate::apply::ports::{
    Clock, Cloud, Cluster, CordonOutcome, EvictOutcome, LaunchOutcome, LaunchRequest,
};
use crate::model::desired::RolloutShare;
use crate::model::ids::{NodeName, WorkloadKind};
use crate::model::observed::{
    CordonReason, InstanceState, Node, Pod, PodPhase, read_world, write_world,
};
use crate::model::pod::Taint;
use crate::model::requirement::key;
use crate::testing::pods::{no_schedule, topology_spread};
use crate::testing::simulator::{
    self, cluster, genesis, id, launch, pods, request, request_with, run, shapes, start, template,
    world,
};

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

fn seconds(n: i64) -> SignedDuration {
    SignedDuration::from_secs(n)
}

fn advance(world: &World, time: SignedDuration) {
    run(world.sleep(time));
}

fn settle(world: &World) {
    world.settle(MINUTE * 10).expect("in memory");
}

fn nodes(world: &World) -> Vec<Node> {
    world.observed().nodes.into_values().collect()
}

fn deliver(world: &World, delivery: &Delivery) {
    world.deliver(delivery).expect("in memory");
}

/// Returns a world with `n` Ready nodes of two cores each.
fn fleet(n: usize) -> World {
    let world = world();
    for i in 0..n {
        launch(&world, &request(&format!("token-{i}")));
    }
    settle(&world);
    world
}

#[test]
fn removed_node_wakes_the_scheduler() {
    let world = fleet(2);
    let [full, other] = <[Node; 2]>::try_from(nodes(&world)).expect("two nodes");
    // The tainted node admits no pods, but counts as an empty domain.
    run(world.cordon(&other, CordonReason::Drain.into())).expect("known");
    let mut template = template("db", 100);
    template.spec.topology_spread = vec![topology_spread(key::HOSTNAME, 1, "db")];
    let workload =
        DeliveredWorkload { replicas: 2, first_ordinal: 0, template: Arc::new(template) };
    let workloads = [(id(WorkloadKind::Deployment, "db"), workload)].into();
    deliver(&world, &Delivery { workloads, ..Delivery::default() });
    settle(&world);
    let on = |node: &Node| {
        let pods = pods(&world, "db");
        pods.into_iter().filter(|pod| pod.node.as_ref() == Some(&node.name)).count()
    };
    assert_eq!((on(&full), on(&other)), (1, 0));
    let instance = other.instance.clone().expect("it runs on one");
    run(world.terminate(&instance)).expect("known");
    settle(&world);
    assert_eq!(on(&full), 2);
}

#[test]
fn instance_boot_follows_its_delays() {
    let world = world();
    let startup = no_schedule("agent/not-ready", "");
    let id = launch(&world, &LaunchRequest { startup_taints: vec![startup], ..request("a") });
    let state = || world.observed().instances[&id].state;
    assert_eq!(state(), InstanceState::Pending, "nothing happens without time passing");
    advance(&world, seconds(9));
    assert_eq!(state(), InstanceState::Pending);
    advance(&world, seconds(1));
    assert_eq!(state(), InstanceState::Running);
    advance(&world, seconds(24));
    assert!(nodes(&world).is_empty());
    advance(&world, seconds(1));
    assert!(!nodes(&world)[0].ready && nodes(&world)[0].taints.len() == 1);
    advance(&world, seconds(10));
    assert!(nodes(&world)[0].ready && nodes(&world)[0].taints.len() == 1);
    advance(&world, seconds(5));
    let node = &nodes(&world)[0];
    assert!(node.ready && node.taints.is_empty());
    assert_eq!(node.instance.as_ref(), Some(&id));
    assert_eq!(node.labels[key::HOSTNAME].as_str(), node.name.as_str());
    assert_eq!(node.labels["team"].as_str(), "web");
}

#[test]
fn token_is_idempotent_after_termination() {
    let world = world();
    let first = launch(&world, &request("a"));
    assert_eq!(launch(&world, &request("a")), first);
    assert_ne!(launch(&world, &request("b")), first);
    run(world.terminate(&first)).expect("known");
    advance(&world, MINUTE);
    assert_eq!(launch(&world, &request("a")), first, "the dead instance is returned for ever");
    assert_eq!(world.observed().instances.len(), 2);
}

#[test]
fn token_with_other_parameters_fails() {
    let world = world();
    launch(&world, &request("a"));
    let other = request_with("a", |offering| offering.zone = "eu-west-1b".into());
    let error = run(world.launch(&other)).expect_err("mismatch");
    assert!(
        error.reason.contains("IdempotentParameterMismatch") && !error.is_transient(),
        "{error}"
    );
    assert_eq!(world.observed().instances.len(), 1);
}

#[test]
fn failed_launch_uses_no_token() {
    let world = world();
    let gone =
        OfferingOutage { instance_type: Some("m5.large".into()), ..OfferingOutage::default() };
    world.set_unavailable(vec![gone]);
    let outcome = run(world.launch(&request("a"))).expect("an answer");
    assert!(matches!(outcome, LaunchOutcome::InsufficientCapacity { .. }));
    let other = request_with("a", |offering| offering.instance_type = "m6i.large".into());
    launch(&world, &other);
}

#[test]
fn terminated_instance_is_forgotten_after_an_hour() {
    let world = fleet(1);
    let (node, instance) = {
        let node = nodes(&world).remove(0);
        let instance = node.instance.clone().expect("on an instance");
        (node, instance)
    };
    let state = || world.observed().instances.get(&instance).map(|i| i.state);
    let early = run(world.delete_node(&node.name, &node.uid)).expect_err("it runs");
    assert!(early.reason.contains("still runs"), "{early}");
    run(world.terminate(&instance)).expect("known");
    assert_eq!(state(), Some(InstanceState::ShuttingDown));
    assert!(!nodes(&world)[0].ready);
    advance(&world, seconds(20));
    assert_eq!(state(), Some(InstanceState::Terminated));
    assert_eq!(nodes(&world).len(), 1);
    advance(&world, seconds(30));
    assert!(nodes(&world).is_empty(), "the node controller removes the node");
    advance(&world, MINUTE * 59);
    assert_eq!(state(), Some(InstanceState::Terminated));
    advance(&world, MINUTE);
    assert_eq!(state(), None);
    run(world.terminate(&instance)).expect("an instance that is gone is no error");
}

#[test]
fn instance_terminated_during_boot_never_registers() {
    let world = world();
    let id = launch(&world, &request("a"));
    advance(&world, seconds(20));
    run(world.terminate(&id)).expect("known");
    settle(&world);
    assert!(nodes(&world).is_empty());
    assert_eq!(world.observed().instances[&id].state, InstanceState::Terminated);
}

#[test]
fn only_instances_of_the_cluster_are_listed() {
    let world = world();
    launch(&world, &request("ours"));
    launch(&world, &LaunchRequest { tags: [].into(), ..request("foreign") });
    assert_eq!(run(world.inventory()).expect("read").instances.len(), 1);
    assert_eq!(world.observed().instances.len(), 2);
}

#[test]
fn delivered_pods_run_once_capacity_exists() {
    let world = world();
    deliver(&world, &Delivery::default().with(WorkloadKind::Deployment, "api", 3, 900));
    assert!(pods(&world, "api").iter().all(|p| p.node.is_none() && p.phase == PodPhase::Pending));
    launch(&world, &request("a"));
    settle(&world);
    let running =
        |world: &World| pods(world, "api").iter().filter(|p| p.phase == PodPhase::Running).count();
    assert_eq!(running(&world), 2, "two of 900m fit on two cores");
    launch(&world, &request("b"));
    settle(&world);
    assert_eq!(running(&world), 3);
    assert_eq!(world.observed().workloads[0].replicas, 3);
    assert!(world.observed().workloads[0].delivered);
}

#[test]
fn pods_spread_to_the_least_allocated_node() {
    let world = fleet(2);
    deliver(&world, &Delivery::default().with(WorkloadKind::Deployment, "api", 4, 100));
    settle(&world);
    let on = |node: &NodeName| {
        pods(&world, "api").iter().filter(|p| p.node.as_ref() == Some(node)).count()
    };
    assert!(nodes(&world).iter().all(|node| on(&node.name) == 2));
}

#[test]
fn scale_down_prefers_pending_then_crowded_then_young() {
    let world = fleet(2);
    let scale = |n| Delivery::default().with(WorkloadKind::Deployment, "api", n, 900);
    deliver(&world, &scale(3));
    settle(&world);
    advance(&world, MINUTE);
    deliver(&world, &scale(6));
    settle(&world);
    let of = |world: &World| pods(world, "api").into_iter().filter(|p| !p.terminating);
    let pending: Vec<_> = of(&world).filter(|p| p.node.is_none()).map(|p| p.name).collect();
    assert_eq!(pending.len(), 2, "two nodes hold four pods of 900m");
    deliver(&world, &scale(4));
    assert!(of(&world).all(|p| p.node.is_some()), "the pending ones went first");
    let youngest = of(&world).max_by_key(|p| (p.created_at, p.uid.clone())).expect("four pods");
    deliver(&world, &scale(3));
    assert!(
        of(&world).all(|p| p.name != youngest.name),
        "both nodes hold two: the youngest is deleted"
    );
    let alone = {
        let count = |node| of(&world).filter(|p| p.node == node).count();
        of(&world).find(|p| count(p.node.clone()) == 1).expect("three pods on two nodes")
    };
    deliver(&world, &scale(2));
    assert!(of(&world).any(|p| p.name == alone.name), "the crowded node gives one up");
}

#[test]
fn scale_down_prefers_crowded_over_young() {
    let world = fleet(1);
    let scale = |n| Delivery::default().with(WorkloadKind::Deployment, "api", n, 900);
    deliver(&world, &scale(2));
    settle(&world);
    let crowded = nodes(&world).remove(0).name;
    launch(&world, &request("second"));
    settle(&world);
    deliver(&world, &scale(3));
    settle(&world);
    deliver(&world, &scale(2));
    let staying = pods(&world, "api").into_iter().filter(|pod| !pod.terminating);
    assert_eq!(staying.filter(|pod| pod.node.as_ref() == Some(&crowded)).count(), 1);
}

#[test]
fn pods_are_bound_only_to_ready_nodes() {
    let world = world();
    deliver(&world, &Delivery::default().with(WorkloadKind::Deployment, "api", 1, 900));
    launch(&world, &request("a"));
    advance(&world, seconds(44));
    assert_eq!(nodes(&world).len(), 1);
    assert_eq!(pods(&world, "api")[0].node, None);
    advance(&world, seconds(3));
    assert!(pods(&world, "api")[0].node.is_some());
}

#[test]
fn stateful_set_removes_highest_ordinals() {
    let world = fleet(2);
    let scale = |n| Delivery::default().with(WorkloadKind::StatefulSet, "db", n, 100);
    deliver(&world, &scale(3));
    settle(&world);
    let names =
        |world: &World| pods(world, "db").iter().map(|p| p.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&world), ["db-0", "db-1", "db-2"]);
    let first = pods(&world, "db").remove(0);
    run(world.evict(&first)).expect("no budget");
    assert_eq!(pods(&world, "db").len(), 3, "a name is free only once its pod has stopped");
    settle(&world);
    assert_eq!(names(&world), ["db-0", "db-1", "db-2"]);
    assert_ne!(pods(&world, "db")[0].uid, first.uid);
    deliver(&world, &scale(1));
    settle(&world);
    assert_eq!(names(&world), ["db-0"]);
}

#[test]
fn stateful_set_starts_at_first_ordinal() {
    let world = fleet(2);
    let from = |first_ordinal| {
        let mut delivery = Delivery::default().with(WorkloadKind::StatefulSet, "db", 2, 100);
        delivery.workloads.values_mut().for_each(|set| set.first_ordinal = first_ordinal);
        delivery
    };
    let names =
        |world: &World| pods(world, "db").iter().map(|p| p.name.to_string()).collect::<Vec<_>>();
    for (first, expected) in [(5, ["db-5", "db-6"]), (6, ["db-6", "db-7"]), (0, ["db-0", "db-1"])] {
        deliver(&world, &from(first));
        settle(&world);
        assert_eq!(names(&world), expected);
        assert_eq!(world.observed().workloads[0].first_ordinal, first);
    }
}

#[test]
fn rolling_update_surges_and_keeps_most_pods_available() {
    let world = fleet(2);
    deliver(&world, &Delivery::default().with(WorkloadKind::Deployment, "api", 8, 100));
    settle(&world);
    let api = id(WorkloadKind::Deployment, "api");
    world.roll_out(&api, &Arc::new(template("api", 110)), RollingUpdate::default());
    let mut most = 0;
    for _ in 0..120 {
        advance(&world, seconds(1));
        let active: Vec<_> = pods(&world, "api").into_iter().filter(Pod::is_active).collect();
        let running = active.iter().filter(|pod| pod.phase == PodPhase::Running).count();
        most = most.max(active.len());
        assert!(running >= 6, "{running} of 8 pods run");
    }
    assert!(most > 8 && most <= 10, "{most} pods, a quarter more at most");
    let after = pods(&world, "api");
    let newest = after.iter().map(|pod| &pod.template).collect::<std::collections::BTreeSet<_>>();
    assert_eq!((after.len(), newest.len()), (8, 1));
}

#[test]
fn rolling_update_without_surge_stops_a_pod_first() {
    let world = fleet(2);
    deliver(&world, &Delivery::default().with(WorkloadKind::Deployment, "api", 2, 100));
    settle(&world);
    let api = id(WorkloadKind::Deployment, "api");
    let update =
        RollingUpdate { surge: RolloutShare::Pods(0), unavailable: RolloutShare::Percent(0) };
    world.roll_out(&api, &Arc::new(template("api", 110)), update);
    for _ in 0..120 {
        advance(&world, seconds(1));
        let active = pods(&world, "api").into_iter().filter(Pod::is_active).count();
        assert!((1..=2).contains(&active), "{active} pods");
    }
    let after = pods(&world, "api");
    let newest = after.iter().map(|pod| &pod.template).collect::<std::collections::BTreeSet<_>>();
    assert_eq!((after.len(), newest.len()), (2, 1));
}

#[test]
fn scale_changes_only_the_number_of_pods() {
    let world = fleet(1);
    deliver(&world, &Delivery::default().with(WorkloadKind::Deployment, "api", 3, 100));
    settle(&world);
    world.set_replicas(&id(WorkloadKind::Deployment, "api"), 5);
    settle(&world);
    assert_eq!(pods(&world, "api").len(), 5);
}

#[test]
fn new_template_replaces_all_pods() {
    let world = fleet(2);
    deliver(&world, &Delivery::default().with(WorkloadKind::Deployment, "api", 2, 100));
    settle(&world);
    let before = pods(&world, "api");
    deliver(&world, &Delivery::default().with(WorkloadKind::Deployment, "api", 2, 200));
    settle(&world);
    let after = pods(&world, "api");
    assert_eq!(after.len(), 2);
    assert!(after.iter().all(|p| p.template != before[0].template && p.node.is_some()));
    assert_eq!(world.observed().templates.len(), 1, "unused templates are dropped");
}

#[test]
fn undelivered_workload_loses_its_pods() {
    let world = fleet(1);
    deliver(
        &world,
        &Delivery::default().with(WorkloadKind::Deployment, "api", 2, 100).with(
            WorkloadKind::Job,
            "batch",
            1,
            100,
        ),
    );
    settle(&world);
    deliver(&world, &Delivery::default().with(WorkloadKind::Job, "batch", 1, 100));
    settle(&world);
    assert!(pods(&world, "api").is_empty());
    assert_eq!(pods(&world, "batch").len(), 1);
    assert_eq!(world.observed().workloads.len(), 1);
}

#[test]
fn job_fails_with_one_eviction_too_many() {
    let world = fleet(1);
    deliver(&world, &Delivery::default().job("batch", 1, 100, 1));
    settle(&world);
    let evict = || {
        let pod = pods(&world, "batch").into_iter().find(Pod::is_active).expect("it runs");
        let outcome = run(world.evict(&pod)).expect("known");
        assert_eq!(outcome, EvictOutcome::Evicted);
        settle(&world);
    };
    evict();
    let failed: Vec<u32> = world.observed().jobs.iter().map(|job| job.failed).collect();
    assert_eq!((failed, pods(&world, "batch").len()), (vec![1], 1), "its pod is replaced");
    evict();
    assert!(world.observed().jobs.is_empty() && pods(&world, "batch").is_empty());
}

#[test]
fn daemons_run_on_every_node_that_admits_them() {
    let world = world();
    let mut delivery = Delivery::default().with(WorkloadKind::DaemonSet, "agent", 0, 100);
    launch(&world, &request("a"));
    let dedicated = no_schedule("dedicated", "x");
    launch(&world, &LaunchRequest { taints: vec![dedicated], ..request("b") });
    deliver(&world, &delivery);
    settle(&world);
    let agents = pods(&world, "agent");
    assert_eq!(agents.len(), 1, "a taint keeps daemons away as well");
    let host = agents[0].node.clone().expect("bound at once");
    assert!(world.observed().nodes[&host].taints.is_empty());
    assert_eq!(world.observed().workloads[0].replicas, 1);
    // A cordoned node keeps its daemons and gets new ones.
    let node = &world.observed().nodes[&host];
    run(world.cordon(node, CordonReason::Drain.into())).expect("known");
    delivery = delivery.with(WorkloadKind::DaemonSet, "second", 0, 100);
    deliver(&world, &delivery);
    settle(&world);
    assert_eq!(pods(&world, "second")[0].node, Some(host));
    assert_eq!(pods(&world, "agent").len(), 1);
}

#[test]
fn evicted_pod_keeps_resources_until_stopped() {
    let world = fleet(1);
    deliver(&world, &Delivery::default().with(WorkloadKind::Deployment, "api", 2, 1000));
    settle(&world);
    let victim = pods(&world, "api").remove(0);
    assert_eq!(run(world.evict(&victim)), Ok(EvictOutcome::Evicted));
    let of = |world: &World| pods(world, "api");
    assert_eq!(of(&world).iter().filter(|p| p.terminating).count(), 1);
    assert_eq!(of(&world).iter().filter(|p| p.node.is_none()).count(), 1, "its replacement");
    advance(&world, seconds(4));
    assert!(of(&world).iter().any(|p| p.node.is_none()), "the old one still has its room");
    settle(&world);
    assert!(of(&world).iter().all(|p| p.phase == PodPhase::Running) && of(&world).len() == 2);
    assert_eq!(run(world.evict(&victim)), Ok(EvictOutcome::Evicted), "gone counts as evicted");
    assert!(of(&world).iter().all(|p| !p.terminating), "another pod of that name is not meant");
}

#[test]
fn budgets_block_evictions_as_kubernetes_counts() {
    for (least, most, allowed) in [
        (Some("3"), None, 1),
        (Some("4"), None, 0),
        (Some("50%"), None, 2),
        (Some("51%"), None, 1),
        (None, Some("1"), 1),
        (None, Some("30%"), 2),
        (None, Some("0"), 0),
        (None, None, 0),
    ] {
        let world = fleet(2);
        let delivery = Delivery::default()
            .with(WorkloadKind::Deployment, "api", 4, 100)
            .budget("api", least, most);
        deliver(&world, &delivery);
        settle(&world);
        let api = pods(&world, "api");
        let evicted = api
            .iter()
            .filter(|pod| run(world.evict(pod)).expect("one budget") == EvictOutcome::Evicted);
        assert_eq!(evicted.count(), allowed, "min {least:?}, max {most:?}");
    }
}

#[test]
fn blocked_eviction_names_budget_and_two_fail() {
    let world = fleet(1);
    let delivery = Delivery::default().with(WorkloadKind::Deployment, "api", 1, 100);
    deliver(&world, &delivery.clone().budget("api", None, Some("0")));
    settle(&world);
    let pod = pods(&world, "api").remove(0);
    let blocked = EvictOutcome::Blocked { budget: "web/api-budget".into() };
    assert_eq!(run(world.evict(&pod)), Ok(blocked));
    let two = delivery.budget("api", None, Some("1")).budget("api", None, Some("1"));
    deliver(&world, &two);
    let error = run(world.evict(&pod)).expect_err("the API refuses to choose");
    assert!(error.reason.contains("more than one budget"), "{error}");
}

#[test]
fn pods_of_a_removed_node_are_replaced() {
    let world = fleet(2);
    deliver(&world, &Delivery::default().with(WorkloadKind::Deployment, "api", 2, 1500));
    settle(&world);
    let lost = nodes(&world)[0].instance.clone().expect("on an instance");
    run(world.terminate(&lost)).expect("known");
    settle(&world);
    let api = pods(&world, "api");
    assert_eq!(api.len(), 2);
    assert_eq!(api.iter().filter(|p| p.node.is_some()).count(), 1, "there is room for one");
}

#[test]
fn cordon_requires_the_observed_state() {
    let world = fleet(1);
    let node = nodes(&world).remove(0);
    let cordon = |node: &Node, mark: Option<CordonReason>| {
        let outcome = match mark {
            Some(mark) => run(world.cordon(node, mark.into())),
            None => run(world.uncordon(node)),
        };
        outcome.expect("never an error")
    };
    let drain = Some(CordonReason::Drain);
    let other = Node { uid: "other".into(), ..node.clone() };
    assert_eq!(cordon(&other, drain), CordonOutcome::Outdated);
    assert_eq!(nodes(&world)[0], node);
    assert_eq!(cordon(&node, drain), CordonOutcome::Written);
    let cordoned = nodes(&world).remove(0);
    assert!(cordoned.unschedulable && cordoned.annotations.len() == 1);
    // A caller with an outdated node may not uncordon it.
    assert_eq!(cordon(&node, None), CordonOutcome::Outdated);
    assert_eq!(cordon(&cordoned, None), CordonOutcome::Written);
    assert_eq!(nodes(&world).remove(0), node);
}

#[test]
fn time_passes_only_in_sleep() {
    let world = world();
    launch(&world, &request("a"));
    assert_eq!(world.now(), start());
    advance(&world, seconds(-5));
    assert_eq!(world.now(), start(), "time does not go back");
    advance(&world, seconds(5));
    assert_eq!(world.now(), start() + seconds(5));
}

#[test]
fn evicted_bare_pod_is_not_replaced() {
    let world = fleet(1);
    let delivery = Delivery::default().with(WorkloadKind::Pod, "tool", 1, 100);
    deliver(&world, &delivery);
    settle(&world);
    run(world.evict(&pods(&world, "tool")[0])).expect("no budget");
    settle(&world);
    assert!(pods(&world, "tool").is_empty());
    deliver(&world, &delivery);
    assert_eq!(&*pods(&world, "tool")[0].name, "tool");
    assert_eq!(world.observed().workloads[0].id, id(WorkloadKind::Pod, "tool"));
    assert_eq!(
        world.observed().templates.values().next().map(|t| &**t),
        Some(&template("tool", 100))
    );
}
