//! Resources of nodes and pods, and pods that are bound to nodes without a scheduler.

use std::sync::Arc;

use jiff::SignedDuration;

use super::plan_of;
use crate::model::ids::{NodeName, WorkloadId, WorkloadKind};
use crate::model::observed::Node;
use crate::model::pod::{Expression, NodeTerm, PodSpec, PodTemplate, Taint, TaintEffect};
use crate::model::requirement::{Operator, key};
use crate::model::units::Bytes;
use crate::plan::wire::Plan;
use crate::planner::Scope;
use crate::testing::{Story, workload_id};

fn plan(story: &Story) -> Plan {
    plan_of(story, Scope::default())
}

/// Returns the numbers of launched and terminated nodes, and of unschedulable pods.
fn changes(plan: &Plan) -> (u32, u32, u32) {
    (plan.summary.add, plan.summary.destroy, plan.capacity.pods.unschedulable)
}

/// Applies the plan of the solver. New nodes report `memory_mib` and `pods` more than the rules
/// give.
fn carry_out(story: &mut Story, memory_mib: i64, pods: i64) {
    let known: Vec<NodeName> = story.observed.nodes.keys().cloned().collect();
    let solution = story.solve();
    let model = story.catalog.clone();
    story.carry_out(&solution);
    for node in story.observed.nodes.values_mut().filter(|node| !known.contains(&node.name)) {
        let kind = node.labels["node.kubernetes.io/instance-type"].as_str();
        let pool = story.desired.pools.values().next().expect("one pool");
        let class = story.desired.node_classes.values().next().expect("one class");
        let settings = crate::catalog::NodeSettings::new(pool, class);
        let kind = model.get(&kind.into()).expect("offered");
        let by_rules = crate::catalog::allocation(kind, &settings);
        for (amounts, rules) in [
            (&mut node.capacity, &by_rules.capacity),
            (&mut node.allocatable, &by_rules.allocatable),
        ] {
            amounts.clone_from(rules);
            amounts.memory = Bytes(rules.memory.0 + Bytes::mib(memory_mib).0);
            amounts.pods = rules.pods + pods;
        }
    }
}

fn spec(story: &mut Story) -> &mut PodSpec {
    let workload = story.desired.workloads.get_mut(&workload_id()).expect("declared");
    &mut Arc::make_mut(&mut workload.template).spec
}

fn node(story: &mut Story) -> &mut Node {
    story.observed.nodes.values_mut().next().expect("one node")
}

/// Returns one m5.large with `pods` pods of 500m, launched as declared.
fn one_node(pods: u32) -> Story {
    let mut story = Story::new(&["m5.large"], 500, 256);
    story.scale(pods);
    carry_out(&mut story, 0, 0);
    let node = node(&mut story);
    let name = node.name.as_str().into();
    node.labels.insert(key::HOSTNAME.into(), name);
    story
}

fn age(story: &mut Story, minutes: i64) {
    let created = story.observed.taken_at - SignedDuration::from_mins(minutes);
    node(story).created_at = created;
}

#[test]
fn deviating_node_resources_need_no_second_plan() {
    for (memory_mib, pods) in [(-100, 0), (150, 0), (0, -3), (0, 81), (-40, 10)] {
        let mut story = Story::new(&["m5.large", "c5.large", "m5.xlarge"], 300, 1000);
        for replicas in [3, 9, 14, 6, 1] {
            story.scale(replicas);
            carry_out(&mut story, memory_mib, pods);
            let case = format!("{memory_mib} MiB, {pods} pods, {replicas} replicas");
            assert_eq!(changes(&plan(&story)), (0, 0, 0), "{case}");
        }
    }
}

#[test]
fn much_smaller_node_resources_are_planned_for() {
    let mut story = Story::new(&["m5.large"], 100, 2000);
    story.scale(6);
    carry_out(&mut story, -2000, 0);
    // By the rules three pods of 2000 MiB fit a node; in fact two do.
    assert_eq!(story.observed.nodes.len(), 2);
    let again = plan(&story);
    assert_eq!(changes(&again), (1, 0, 0), "one more node, and every pod has a place");
    let row = again.resource_changes.iter().find(|row| row.change.before.is_none());
    let after = row.and_then(|row| row.change.after.as_ref()).expect("a launch");
    assert_eq!(after.allocatable.memory_bytes, Bytes::mib(6903 - 2000).0, "as the others report");
    carry_out(&mut story, -2000, 0);
    assert_eq!(changes(&plan(&story)), (0, 0, 0));
}

#[test]
fn pod_with_node_name_uses_only_that_node() {
    for (rule, named, pods, placed, left) in [
        ("there is room for both", "n1", 2, 2, 0),
        ("for three of 500m in 1930m", "n1", 5, 3, 2),
        ("the node is not there", "n7", 2, 0, 2),
    ] {
        let mut story = one_node(1);
        story.observed.pods.clear();
        spec(&mut story).node_name = Some(named.to_owned());
        story.scale(pods);
        let plan = plan(&story);
        assert_eq!(
            (plan.capacity.pods.placed, plan.capacity.pods.unschedulable),
            (placed, left),
            "{rule}"
        );
        assert_eq!(plan.summary.add, 0, "{rule}: no node is launched for it");
        if left > 0 {
            let reasons = &plan.capacity.unschedulable[0].reasons;
            assert_eq!(reasons[0].reason, "names-its-node", "{rule}");
        }
    }
}

#[test]
fn node_name_affinity_matches_existing_nodes_only() {
    for (rule, operator, name, expected) in [
        ("In: it is there", Operator::In, "n1", (0, 0, 0)),
        ("In: a node to come has another name", Operator::In, "n7", (0, 0, 1)),
        ("NotIn: a new node will do", Operator::NotIn, "n1", (1, 1, 0)),
        ("NotIn: any other node will do", Operator::NotIn, "n7", (0, 0, 0)),
    ] {
        let mut story = one_node(1);
        let values = vec![name.into()];
        let field = Expression { key: "metadata.name".into(), operator, values };
        let term = NodeTerm { fields: vec![field], ..NodeTerm::default() };
        spec(&mut story).node_affinity.required = Some(vec![term]);
        // The pod runs on another node, or is pending.
        story.observed.pods.clear();
        let plan = plan(&story);
        let (add, destroy, left) = changes(&plan);
        let destroy = if expected.0 == 0 { 0 } else { destroy };
        assert_eq!((add, destroy, left), expected, "{rule}");
    }
}

#[test]
fn node_name_may_differ_from_host_name() {
    let mut story = one_node(1);
    node(&mut story).labels.insert(key::HOSTNAME.into(), "ip-10-0-0-1".into());
    let field = Expression {
        key: "metadata.name".into(),
        operator: Operator::In,
        values: vec!["n1".into()],
    };
    let term = NodeTerm { fields: vec![field], ..NodeTerm::default() };
    spec(&mut story).node_affinity.required = Some(vec![term]);
    assert_eq!(changes(&plan(&story)), (0, 0, 0));
}

#[test]
fn observed_daemon_set_counts_on_new_nodes() {
    let mut story = one_node(2);
    let field = Expression {
        key: "metadata.name".into(),
        operator: Operator::In,
        values: vec!["n1".into()],
    };
    let mut template = PodTemplate::clone(&story.observed.templates["t"]);
    template.spec.node_selector.clear();
    template.spec.node_affinity.required =
        Some(vec![NodeTerm { fields: vec![field], ..NodeTerm::default() }]);
    story.bind("n1".into());
    let pod = Arc::make_mut(story.observed.pods.last_mut().expect("bound"));
    let (namespace, name) = ("kube-system".into(), "agent".into());
    pod.owner = Some(WorkloadId { namespace, name, kind: WorkloadKind::DaemonSet });
    pod.template = "agent".to_owned();
    story.observed.templates.insert("agent".to_owned(), Arc::new(template));
    // Three pods of 500m fit one node of 1930m; with the agent's 500m only two do.
    story.scale(5);
    let plan = plan(&story);
    assert_eq!(changes(&plan), (2, 0, 0));
    let taken = |row: &crate::plan::wire::ExplainRow| row.daemons.cpu_milli;
    assert_eq!(plan.capacity.explain.iter().map(taken).collect::<Vec<_>>(), [500, 500, 500]);
}

#[test]
fn case_21_startup_taints_are_ignored_on_young_nodes_only() {
    let taint =
        |key: &str| Taint { key: key.into(), value: "".into(), effect: TaintEffect::NoSchedule };
    let ephemeral = "node.cloudprovider.kubernetes.io/uninitialized";
    for (rule, key, minutes, expected) in [
        ("a startup taint of a young node", "cilium", 1, 0),
        ("a startup taint that is back", "cilium", 60, 1),
        ("what the kubelet removes", ephemeral, 1, 0),
        ("resources that were not removed", ephemeral, 60, 1),
    ] {
        let mut story = one_node(1);
        let pool = story.desired.pools.values_mut().next().expect("one pool");
        pool.startup_taints.push(taint("cilium"));
        node(&mut story).taints.push(taint(key));
        age(&mut story, minutes);
        story.observed.instances.values_mut().for_each(|instance| {
            instance.tags.remove(crate::model::observed::tag::SPEC);
        });
        assert_eq!(plan(&story).summary.add, 0, "{rule}: the pod that runs stays");
        story.scale(2);
        assert_eq!(plan(&story).summary.add, expected, "{rule}");
    }
}

#[test]
fn case_25_young_node_has_its_devices_before_reporting_them() {
    for (minutes, expected) in [(1, 0), (60, 1)] {
        let mut story = Story::new(&["g4dn.xlarge"], 500, 256);
        spec(&mut story).containers[0].resources.requests.insert("nvidia.com/gpu".into(), 1);
        story.scale(1);
        carry_out(&mut story, 0, 0);
        story.observed.pods.clear();
        let node = node(&mut story);
        node.allocatable.extended.clear();
        node.capacity.extended.clear();
        age(&mut story, minutes);
        assert_eq!(plan(&story).summary.add, expected, "{minutes} minutes after it came");
    }
}
