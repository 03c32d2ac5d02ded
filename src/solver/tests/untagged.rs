//! Nodes whose instances lost their tags: kept, counted in their pool, and named.

use crate::model::ids::{InstanceId, NodeName};
use crate::model::observed::{Instance, KEY_LABEL, Node, tag};
use crate::model::reason::{BlockReason, KeepReason};
use crate::model::units::MilliCpu;
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

/// Removes the tags of the first `count` instances, as EC2 then does not list them. Returns them with
/// the names of their nodes.
fn lose_tags(scenario: &mut Scenario, count: usize) -> Vec<(NodeName, Instance)> {
    let nodes: Vec<Node> = scenario.observed.nodes.values().take(count).cloned().collect();
    let lost = nodes.into_iter().map(|node| {
        let id: InstanceId = node.instance.expect("an instance");
        (node.name, scenario.observed.instances.remove(&id).expect("listed"))
    });
    lost.collect()
}

fn is_held(target: &TargetFleet, node: &NodeName) -> bool {
    let reason = target.keeps.get(node);
    matches!(reason, Some(KeepReason::Blocked { by: BlockReason::TagsLost { .. } }))
}

#[test]
fn untagged_node_is_kept_and_the_rest_goes_on() {
    for listed in [false, true] {
        let mut scenario = fleet(3);
        let (name, mut instance) = lose_tags(&mut scenario, 1).remove(0);
        if listed {
            // EC2 lists it, because only the tag of the pool is lost.
            instance.tags.remove(tag::POOL);
            scenario.observed.instances.insert(instance.id.clone(), instance);
        }
        let target = scenario.solve().target;
        assert!(target.launches.is_empty() && target.retires.is_empty());
        assert!(is_held(&target, &name), "{:?}", target.keeps);
        let KeepReason::Blocked { by: BlockReason::TagsLost { restore, .. } } =
            &target.keeps[&name]
        else {
            panic!("{:?}", target.keeps)
        };
        assert_eq!(
            restore,
            "aws ec2 create-tags --region us-east-1 --resources i-0001 --tags \
             Key=fleetwright.dev/cluster,Value=c Key=fleetwright.dev/pool,Value=default \
             Key=fleetwright.dev/key,Value=0"
        );
        scenario.scale(5);
        let plan = scenario.plan();
        let launched: Vec<&str> = plan
            .resource_changes
            .iter()
            .filter(|row| row.change.before.is_none())
            .filter_map(|row| row.index.as_deref())
            .collect();
        assert_eq!(launched, ["3", "4"], "its key stays in use");
        scenario.scale(0);
        let target = scenario.solve().target;
        assert_eq!(target.keeps.keys().collect::<Vec<_>>(), [&name], "the others are removed");
        assert!(!scenario.plan().errored, "{:?}", scenario.plan().capacity.diagnostics);
    }
}

#[test]
fn untagged_node_counts_in_the_limits_of_its_pool() {
    let mut scenario = fleet(3);
    scenario.pool().limits.nodes = Some(4);
    lose_tags(&mut scenario, 1);
    scenario.scale(6);
    assert_eq!(scenario.solve().target.launches.len(), 1);
    assert!(!scenario.plan().errored);
}

#[test]
fn half_of_the_fleet_may_lose_its_tags() {
    let mut scenario = fleet(4);
    let lost = lose_tags(&mut scenario, 2);
    let target = scenario.solve().target;
    assert!(target.launches.is_empty() && target.retires.is_empty());
    assert!(lost.iter().all(|(name, _)| is_held(&target, name)), "{:?}", target.keeps);
    let before = fleet(4).solve().target;
    for (_, instance) in lost {
        scenario.observed.instances.insert(instance.id.clone(), instance);
    }
    assert_eq!(scenario.solve().target.keeps, before.keeps, "the tags are back");
}

#[test]
fn untagged_node_of_a_static_pool_is_not_replaced() {
    for replicas in [1, 2] {
        let mut scenario = fleet(2);
        scenario.pool().replicas = Some(replicas);
        let lost = lose_tags(&mut scenario, 1);
        let target = scenario.solve().target;
        assert!(target.launches.is_empty(), "{:?}", target.launches);
        // It never pushes out a node with tags, because its labels are its only evidence.
        assert!(target.retires.is_empty(), "{:?}", target.retires);
        assert!(is_held(&target, &lost[0].0));
        assert!(!scenario.plan().errored, "{:?}", scenario.plan().capacity.diagnostics);
    }
    let mut alone = fleet(1);
    alone.pool().replicas = Some(1);
    lose_tags(&mut alone, 1);
    assert!(alone.solve().target.launches.is_empty());
}

#[test]
fn node_that_is_not_ready_counts_nowhere_without_tags() {
    let mut scenario = fleet(2);
    scenario.pool().replicas = Some(2);
    let (name, _) = lose_tags(&mut scenario, 1).remove(0);
    scenario.observed.nodes.get_mut(&name).expect("a node").ready = false;
    let target = scenario.solve().target;
    assert_eq!(target.launches.len(), 1, "the instance may have ended");
    assert_eq!(target.keeps[&name], KeepReason::NotOurs);
}

#[test]
fn forged_labels_take_at_most_one_launch_of_a_pool() {
    type Forgery = fn(&mut Node);
    let forgeries: [(Forgery, usize); 4] = [
        // As large as a node of the pool: it takes the place of one launch.
        (|_| {}, 0),
        (|node| node.capacity.cpu = MilliCpu(64_000), 1),
        (|node| drop(node.labels.remove("node.kubernetes.io/instance-type")), 1),
        (|node| drop(node.labels.insert("karpenter.sh/nodepool".into(), "none".into())), 1),
    ];
    for (forge, launches) in forgeries {
        let mut scenario = fleet(2);
        let (name, _) = lose_tags(&mut scenario, 1).remove(0);
        forge(scenario.observed.nodes.get_mut(&name).expect("a node"));
        scenario.pool().replicas = Some(2);
        let target = scenario.solve().target;
        assert_eq!(target.launches.len(), launches);
        assert!(target.retires.is_empty() && is_held(&target, &name));
        assert!(!scenario.plan().errored, "{:?}", scenario.plan().capacity.diagnostics);
    }
}
