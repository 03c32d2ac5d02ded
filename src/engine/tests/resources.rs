//! What nodes have, what pods take, and pods that are bound to nodes in other ways than by a
//! scheduler: repositories and worlds, and the plans between them.

use std::sync::Arc;

use jiff::SignedDuration;

use super::plan_of;
use crate::engine::Scope;
use crate::fleet::Node;
use crate::ids::{NodeName, WorkloadId, WorkloadKind};
use crate::plan::wire::Plan;
use crate::pod::{Expression, NodeTerm, PodSpec, PodTemplate, Taint, TaintEffect};
use crate::requirement::{Operator, key};
use crate::story::{Story, workload_id};
use crate::units::Bytes;

fn plan(story: &Story) -> Plan {
    plan_of(story, Scope::default())
}

/// Nodes that come and go, and pods without a place.
fn changes(plan: &Plan) -> (u32, u32, u32) {
    (plan.summary.add, plan.summary.destroy, plan.capacity.pods.unschedulable)
}

/// Carries the plan of the solver out; nodes that come report `memory_mib` and `pods` more than the
/// rules say.
fn carry_out(story: &mut Story, memory_mib: i64, pods: i64) {
    let known: Vec<NodeName> = story.observed.nodes.keys().cloned().collect();
    let solution = story.solve();
    let model = story.catalog.clone();
    story.carry_out(&solution);
    for node in story.observed.nodes.values_mut().filter(|node| !known.contains(&node.name)) {
        let kind = node.labels["node.kubernetes.io/instance-type"].as_str();
        let pool = story.desired.pools.values().next().expect("one pool");
        let class = story.desired.node_classes.values().next().expect("one class");
        let settings = crate::catalog::NodeSettings::of(pool, class);
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

/// One m5.large with `pods` pods of 500m, launched as declared.
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
fn a_world_that_reports_other_amounts_than_the_rules_needs_no_second_plan() {
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
fn a_world_that_reports_much_less_is_planned_for_once_it_is_seen() {
    let mut story = Story::new(&["m5.large"], 100, 2000);
    story.scale(6);
    carry_out(&mut story, -2000, 0);
    // By the rules three pods of 2000 MiB fit a node; two do.
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
fn a_pod_that_names_its_node_takes_room_there_and_nowhere_else() {
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
fn affinity_to_the_name_of_a_node_is_about_nodes_that_are_there() {
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
        // The pod runs somewhere else, or nowhere yet.
        story.observed.pods.clear();
        let plan = plan(&story);
        let (add, destroy, left) = changes(&plan);
        let destroy = if expected.0 == 0 { 0 } else { destroy };
        assert_eq!((add, destroy, left), expected, "{rule}");
    }
}

#[test]
fn the_name_of_a_node_may_differ_from_its_host_name() {
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
fn a_daemon_set_that_only_the_world_knows_runs_on_new_nodes_too() {
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
    // Three pods of 500m fit one node of 1930m, and with the agent's 500m only two.
    story.scale(5);
    let plan = plan(&story);
    assert_eq!(changes(&plan), (2, 0, 0));
    let taken = |row: &crate::plan::wire::ExplainRow| row.daemons.cpu_milli;
    assert_eq!(plan.capacity.explain.iter().map(taken).collect::<Vec<_>>(), [500, 500, 500]);
}

#[test]
fn case_21_what_keeps_pods_from_a_young_node_keeps_no_plan_from_it_and_later_it_does() {
    let taint =
        |key: &str| Taint { key: key.into(), value: "".into(), effect: TaintEffect::NoSchedule };
    let ephemeral = "node.cloudprovider.kubernetes.io/uninitialized";
    for (rule, key, minutes, expected) in [
        ("a startup taint of a young node", "cilium", 1, 0),
        ("a startup taint that is back", "cilium", 60, 1),
        ("what the kubelet removes", ephemeral, 1, 0),
        ("what nobody removed", ephemeral, 60, 1),
    ] {
        let mut story = one_node(1);
        let pool = story.desired.pools.values_mut().next().expect("one pool");
        pool.startup_taints.push(taint("cilium"));
        node(&mut story).taints.push(taint(key));
        age(&mut story, minutes);
        story.observed.instances.values_mut().for_each(|instance| {
            instance.tags.remove(crate::fleet::tag::SPEC);
        });
        assert_eq!(plan(&story).summary.add, 0, "{rule}: the pod that runs stays");
        story.scale(2);
        assert_eq!(plan(&story).summary.add, expected, "{rule}");
    }
}

#[test]
fn case_25_a_young_node_has_the_devices_of_its_type_before_it_reports_them() {
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
