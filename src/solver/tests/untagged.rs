//! Nodes whose instances lost their tags: kept, counted in their pool, and named.

use crate::model::ids::NodeName;
use crate::model::observed::{KEY_LABEL, Node, tag};
use crate::model::reason::{BlockReason, KeepReason};
use crate::model::units::{Bytes, MilliCpu, Resources};
use crate::solver::TargetFleet;
use crate::testing::Scenario;

/// Returns a scenario with one node for each of `replicas` pods, labeled as at launch.
fn fleet(replicas: u32) -> Scenario {
    let mut scenario = Scenario::new(&["m5.large"], 1_500, 512);
    scenario.step(replicas);
    for node in scenario.observed.nodes.values_mut() {
        let instance = &scenario.observed.instances[node.instance.as_ref().expect("an instance")];
        node.labels.insert(KEY_LABEL.into(), instance.tags[tag::KEY].as_str().into());
    }
    scenario
}

/// Removes the tags of the first `count` instances. Returns the names of their nodes.
fn lose_tags(scenario: &mut Scenario, count: usize) -> Vec<NodeName> {
    let nodes: Vec<Node> = scenario.observed.nodes.values().take(count).cloned().collect();
    let lost = nodes.into_iter().map(|node| {
        let instance = scenario.observed.instances.get_mut(&node.instance.expect("an instance"));
        instance.expect("listed").tags.clear();
        node.name
    });
    lost.collect()
}

fn is_held(target: &TargetFleet, node: &NodeName) -> bool {
    let reason = target.keeps.get(node);
    matches!(reason, Some(KeepReason::Blocked { by: BlockReason::TagsLost { .. } }))
}

#[test]
fn untagged_node_stays_and_other_changes_continue() {
    for lost in [&tag_keys()[..], &[tag::POOL], &[tag::CLUSTER]] {
        let mut scenario = fleet(3);
        let name = scenario.observed.nodes.keys().next().expect("a node").clone();
        let tags = &mut scenario.instance().tags;
        tags.retain(|key, _| !lost.contains(&key.as_str()));
        let target = scenario.solve().target;
        assert!(target.launches.is_empty() && target.retires.is_empty());
        let Some(KeepReason::Blocked { by: BlockReason::TagsLost { missing, .. } }) =
            target.keeps.get(&name)
        else {
            panic!("{:?}", target.keeps)
        };
        assert_eq!(*missing, lost.join(", "));
        scenario.scale(5);
        let plan = scenario.plan();
        let rows = plan.resource_changes.iter().filter(|row| row.change.before.is_none());
        let launched: Vec<&str> = rows.filter_map(|row| row.index.as_deref()).collect();
        assert_eq!(launched, ["3", "4"], "its key stays in use");
        assert!(!plan.errored, "{:?}", plan.capacity.diagnostics);
        scenario.scale(0);
        let target = scenario.solve().target;
        assert_eq!(target.keeps.keys().collect::<Vec<_>>(), [&name], "the others are removed");
        assert!(!scenario.plan().errored, "{:?}", scenario.plan().capacity.diagnostics);
    }
}

fn tag_keys() -> [&'static str; 3] {
    [tag::CLUSTER, tag::POOL, tag::KEY]
}

#[test]
fn untagged_node_counts_in_the_limits_of_its_pool() {
    // Also a node that drifted, and one whose kubelet is down.
    let changes: [fn(&mut Scenario); 4] = [
        |_| (),
        |scenario| drop(scenario.node().labels.remove("node.kubernetes.io/instance-type")),
        |scenario| drop(scenario.pool().labels.insert("team".into(), "web".into())),
        |scenario| scenario.node().ready = false,
    ];
    for change in changes {
        let mut scenario = fleet(3);
        scenario.pool().limits.nodes = Some(4);
        let lost = lose_tags(&mut scenario, 1);
        change(&mut scenario);
        scenario.scale(6);
        let target = scenario.solve().target;
        assert!(target.launches.len() <= 1, "{:?}", target.launches);
        assert!(is_held(&target, &lost[0]), "{:?}", target.keeps);
        assert!(!scenario.plan().errored, "{:?}", scenario.plan().capacity.diagnostics);
    }
}

#[test]
fn amounts_of_an_untagged_node_are_clamped() {
    let lies: [fn(&mut Node); 3] = [
        |node| (node.capacity, node.allocatable) = (all(i64::MAX), all(i64::MAX)),
        |node| (node.capacity, node.allocatable) = (all(0), all(0)),
        |node| node.allocatable = all(i64::MAX),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let mut scenario = fleet(3);
        lose_tags(&mut scenario, 1);
        // m5.large has 2 cores, and no device.
        let limits = &mut scenario.pool().limits.resources;
        limits.extend([("cpu".into(), 10_200), ("example.com/dongle".into(), 0)]);
        lie(scenario.node());
        scenario.scale(5);
        let solution = scenario.solve();
        assert_eq!(solution.target.launches.len(), 2, "{number}: {:?}", solution.target);
        let node = &solution.existing_nodes[0];
        let no_room = Resources::default();
        assert_eq!(node.room.at_least(&no_room), node.room);
        assert!(node.room.cpu <= MilliCpu(2_000), "{:?}", node.room);
        assert!(!scenario.plan().errored, "{:?}", scenario.plan().capacity.diagnostics);
    }
}

fn all(amount: i64) -> Resources {
    Resources {
        cpu: MilliCpu(amount),
        memory: Bytes(amount),
        ephemeral_storage: Bytes(amount),
        pods: amount,
        extended: [("example.com/dongle".into(), amount)]
            .into_iter()
            .filter(|(_, n)| *n != 0)
            .collect(),
    }
}

#[test]
fn all_nodes_may_lose_their_tags() {
    let before = fleet(4).solve().target;
    for count in [2, 4] {
        let mut scenario = fleet(4);
        let tagged = scenario.observed.instances.clone();
        let lost = lose_tags(&mut scenario, count);
        let target = scenario.solve().target;
        assert!(target.launches.is_empty() && target.retires.is_empty());
        assert!(lost.iter().all(|name| is_held(&target, name)), "{:?}", target.keeps);
        scenario.observed.instances = tagged;
        assert_eq!(scenario.solve().target.keeps, before.keeps, "the tags are back");
    }
}

#[test]
fn untagged_node_of_a_static_pool_is_not_replaced() {
    for replicas in [1, 2] {
        let mut scenario = fleet(2);
        scenario.pool().replicas = Some(replicas);
        let lost = lose_tags(&mut scenario, 1);
        let target = scenario.solve().target;
        assert!(target.launches.is_empty(), "{:?}", target.launches);
        // It never pushes out a node with tags, because a label is the only evidence of its pool.
        assert!(target.retires.is_empty(), "{:?}", target.retires);
        assert!(is_held(&target, &lost[0]));
        assert!(!scenario.plan().errored, "{:?}", scenario.plan().capacity.diagnostics);
    }
}

#[test]
fn node_of_a_foreign_instance_takes_no_place_in_a_pool() {
    let foreign: [fn(&mut Scenario); 3] = [
        |scenario| drop(scenario.observed.instances.pop_first()),
        |scenario| drop(scenario.instance().tags.insert(tag::CLUSTER.into(), "other".into())),
        |scenario| {
            drop(scenario.node().labels.insert("karpenter.sh/nodepool".into(), "none".into()));
        },
    ];
    for change in foreign {
        let mut scenario = fleet(2);
        scenario.pool().replicas = Some(2);
        let name = lose_tags(&mut scenario, 1).remove(0);
        change(&mut scenario);
        let target = scenario.solve().target;
        assert_eq!(target.launches.len(), 1);
        assert!(target.retires.is_empty() && target.keeps.contains_key(&name));
        assert!(!scenario.plan().errored, "{:?}", scenario.plan().capacity.diagnostics);
    }
}

#[test]
fn instance_of_another_program_is_named_and_never_ours() {
    let mut scenario = fleet(3);
    let name = scenario.observed.nodes.keys().next().expect("a node").clone();
    let instance = scenario.instance();
    instance.tags.retain(|key, _| !tag_keys().contains(&key.as_str()));
    instance.tags.insert("aws:autoscaling:groupName".to_owned(), "database".to_owned());
    assert!(scenario.observed.untagged_nodes().is_empty());
    let contradicted = scenario.observed.contradicted_nodes();
    assert!(contradicted[&name].ends_with("with the tag `aws:autoscaling:groupName`"));
    assert!(!scenario.solve().target.retires.contains_key(&name));
}
