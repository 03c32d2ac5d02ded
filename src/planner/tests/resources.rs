//! Tests of node and pod resources, and of pods bound to nodes without a scheduler.

use std::sync::Arc;

use jiff::SignedDuration;

use crate::model::ids::{NodeName, WorkloadId, WorkloadKind};
use crate::model::pod::{Expression, NodeTerm, PodTemplate};
use crate::model::requirement::{Operator, key};
use crate::model::units::Bytes;
use crate::plan::wire::Plan;
use crate::testing::pods::{no_schedule, one_of};
use crate::testing::world::live_workload;
use crate::testing::{Scenario, workload_id};

/// Returns the numbers of launched nodes, terminated nodes and unschedulable pods.
fn counts(plan: &Plan) -> (u32, u32, u32) {
    (plan.summary.add, plan.summary.destroy, plan.capacity.pods.unschedulable)
}

/// Applies the plan of the solver. New nodes report `memory_mib` and `pods` more than the model
/// computes.
fn carry_out(scenario: &mut Scenario, memory_mib: i64, pods: i64) {
    let known: Vec<NodeName> = scenario.observed.nodes.keys().cloned().collect();
    let solution = scenario.solve();
    let model = scenario.catalog.clone();
    scenario.carry_out(&solution);
    for node in scenario.observed.nodes.values_mut().filter(|node| !known.contains(&node.name)) {
        let kind = node.labels["node.kubernetes.io/instance-type"].as_str();
        let pool = scenario.desired.pools.values().next().expect("one pool");
        let class = scenario.desired.node_classes.values().next().expect("one class");
        let settings = crate::catalog::NodeSettings::new(pool, class);
        let kind = model.get(&kind.into()).expect("offered");
        let expected = crate::catalog::allocation(kind, &settings);
        for (amounts, modeled) in [
            (&mut node.capacity, &expected.capacity),
            (&mut node.allocatable, &expected.allocatable),
        ] {
            amounts.clone_from(modeled);
            amounts.memory = Bytes(modeled.memory.0 + Bytes::mib(memory_mib).0);
            amounts.pods = modeled.pods + pods;
        }
    }
}

/// Returns a scenario with one m5.large and `pods` pods of 500m, launched as declared.
fn one_node(pods: u32) -> Scenario {
    let mut scenario = Scenario::new(&["m5.large"], 500, 256);
    scenario.scale(pods);
    carry_out(&mut scenario, 0, 0);
    let node = scenario.node();
    let name = node.name.as_str().into();
    node.labels.insert(key::HOSTNAME.into(), name);
    scenario
}

fn age(scenario: &mut Scenario, minutes: i64) {
    let created = scenario.observed.taken_at - SignedDuration::from_mins(minutes);
    scenario.node().created_at = created;
}

#[test]
fn deviating_node_resources_cause_no_second_change() {
    for (memory_mib, pods) in [(-100, 0), (150, 0), (0, -3), (0, 81), (-40, 10)] {
        let mut scenario = Scenario::new(&["m5.large", "c5.large", "m5.xlarge"], 300, 1000);
        for replicas in [3, 9, 14, 6, 1] {
            scenario.scale(replicas);
            carry_out(&mut scenario, memory_mib, pods);
            let case = format!("{memory_mib} MiB, {pods} pods, {replicas} replicas");
            assert_eq!(counts(&scenario.plan()), (0, 0, 0), "{case}");
        }
    }
}

#[test]
fn much_smaller_node_resources_are_considered() {
    let mut scenario = Scenario::new(&["m5.large"], 100, 2000);
    scenario.scale(6);
    carry_out(&mut scenario, -2000, 0);
    // By the model, three pods of 2000 MiB fit on a node, but only two actually do.
    assert_eq!(scenario.observed.nodes.len(), 2);
    let again = scenario.plan();
    assert_eq!(counts(&again), (1, 0, 0), "one more node, and all pods are scheduled");
    let row = again.resource_changes.iter().find(|row| row.change.before.is_none());
    let after = row.and_then(|row| row.change.after.as_ref()).expect("a launch");
    assert_eq!(
        after.allocatable.memory_bytes,
        Bytes::mib(6903 - 2000).0,
        "as reported by the other nodes"
    );
    carry_out(&mut scenario, -2000, 0);
    assert_eq!(counts(&scenario.plan()), (0, 0, 0));
}

#[test]
fn pod_with_node_name_uses_only_that_node() {
    for (rule, named, pods, placed, left) in [
        ("room for both", "n1", 2, 2, 0),
        ("room for three of 500m in 1930m", "n1", 5, 3, 2),
        ("the node does not exist", "n7", 2, 0, 2),
    ] {
        let mut scenario = one_node(1);
        scenario.observed.pods.clear();
        scenario.template().spec.node_name = Some(named.to_owned());
        scenario.scale(pods);
        let plan = scenario.plan();
        assert_eq!(
            (plan.capacity.pods.placed, plan.capacity.pods.unschedulable),
            (placed, left),
            "{rule}"
        );
        assert_eq!(plan.summary.add, 0, "{rule}: no node is launched");
        if left > 0 {
            let reasons = &plan.capacity.unschedulable[0].reasons;
            assert_eq!(reasons[0].reason, "names-its-node", "{rule}");
        }
    }
}

#[test]
fn node_name_affinity_matches_existing_nodes_only() {
    for (rule, operator, name, expected) in [
        ("In: an existing node", Operator::In, "n1", (0, 0, 0)),
        ("In: a missing node", Operator::In, "n7", (0, 0, 1)),
        ("NotIn: a new node is required", Operator::NotIn, "n1", (1, 1, 0)),
        ("NotIn: another node is excluded", Operator::NotIn, "n7", (0, 0, 0)),
    ] {
        let mut scenario = one_node(1);
        let values = vec![name.into()];
        let field = Expression { key: "metadata.name".into(), operator, values };
        let term = NodeTerm { fields: vec![field], ..NodeTerm::default() };
        scenario.template().spec.node_affinity.required = Some(vec![term]);
        // The pod is not bound yet.
        scenario.observed.pods.clear();
        let plan = scenario.plan();
        let (add, destroy, left) = counts(&plan);
        let destroy = if expected.0 == 0 { 0 } else { destroy };
        assert_eq!((add, destroy, left), expected, "{rule}");
    }
}

#[test]
fn node_name_may_differ_from_host_name() {
    let mut scenario = one_node(1);
    scenario.node().labels.insert(key::HOSTNAME.into(), "ip-10-0-0-1".into());
    let field = one_of("metadata.name", &["n1"]);
    let term = NodeTerm { fields: vec![field], ..NodeTerm::default() };
    scenario.template().spec.node_affinity.required = Some(vec![term]);
    assert_eq!(counts(&scenario.plan()), (0, 0, 0));
}

#[test]
fn observed_daemon_set_counts_on_new_nodes() {
    let mut scenario = one_node(2);
    let field = one_of("metadata.name", &["n1"]);
    let mut template = PodTemplate::clone(&scenario.observed.templates[&workload_id().to_string()]);
    template.spec.node_selector.clear();
    template.spec.node_affinity.required =
        Some(vec![NodeTerm { fields: vec![field], ..NodeTerm::default() }]);
    scenario.bind("n1");
    let pod = scenario.last_pod();
    let (namespace, name) = ("kube-system".into(), "agent".into());
    let agent = WorkloadId { namespace, name, kind: WorkloadKind::DaemonSet };
    pod.owner = Some(agent.clone());
    pod.template = "agent".into();
    scenario.observed.workloads.push(live_workload(&agent, 1));
    scenario.observed.templates.insert("agent".to_owned(), Arc::new(template));
    // Three pods of 500m fit on a node with 1930m; with the 500m of the agent, only two fit.
    scenario.scale(5);
    let plan = scenario.plan();
    assert_eq!(counts(&plan), (2, 0, 0));
    let taken = |row: &crate::plan::wire::ExplainRow| row.daemons.cpu_milli;
    assert_eq!(plan.capacity.explain.iter().map(taken).collect::<Vec<_>>(), [500, 500, 500]);
    // A pod that names a DaemonSet which does not exist counts on its own node only.
    scenario.observed.workloads.clear();
    let plan = scenario.plan();
    assert_eq!(counts(&plan), (1, 0, 0));
    assert_eq!(plan.capacity.explain.iter().map(taken).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn startup_taints_are_ignored_only_on_young_nodes() {
    let ephemeral = "node.cloudprovider.kubernetes.io/uninitialized";
    for (rule, key, minutes, expected) in [
        ("a startup taint of a young node", "cilium", 1, 0),
        ("a startup taint that was added again", "cilium", 60, 1),
        ("a taint that the kubelet removes", ephemeral, 1, 0),
        ("a taint that was not removed", ephemeral, 60, 1),
    ] {
        let mut scenario = one_node(1);
        let pool = scenario.pool();
        pool.startup_taints.push(no_schedule("cilium", ""));
        scenario.node().taints.push(no_schedule(key, ""));
        age(&mut scenario, minutes);
        scenario.observed.instances.values_mut().for_each(|instance| {
            instance.tags.remove(crate::model::observed::tag::SPEC);
        });
        assert_eq!(scenario.plan().summary.add, 0, "{rule}: the running pod stays");
        scenario.scale(2);
        assert_eq!(scenario.plan().summary.add, expected, "{rule}");
    }
}

#[test]
fn young_node_counts_devices_it_has_not_reported() {
    for (minutes, expected) in [(1, 0), (60, 1)] {
        let mut scenario = Scenario::new(&["g4dn.xlarge"], 500, 256);
        scenario.template().spec.containers[0]
            .resources
            .requests
            .insert("nvidia.com/gpu".into(), 1);
        scenario.scale(1);
        carry_out(&mut scenario, 0, 0);
        scenario.observed.pods.clear();
        let node = scenario.node();
        node.allocatable.extended.clear();
        node.capacity.extended.clear();
        age(&mut scenario, minutes);
        assert_eq!(scenario.plan().summary.add, expected, "{minutes} minutes after registration");
    }
}
