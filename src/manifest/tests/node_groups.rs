//! Node groups of eksctl: what a file states of the nodes besides their number.

use super::*;
use crate::model::desired::{AmiFamily, EfaInterfaces, NodeClass};
use crate::model::market::CapacityType;
use crate::model::requirement::key;

fn config(metadata: &str, groups: &str) -> String {
    format!(
        "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\n\
         metadata: {{name: c{metadata}}}\n{groups}\n"
    )
}

/// Returns the node class of a group with these fields.
fn class(kind: &str, group: &str) -> NodeClass {
    let text = config("", &format!("{kind}: [{{name: web{group}}}]"));
    clean(&text).node_classes.remove("web").expect("one group")
}

#[test]
fn a_cluster_states_tags_of_all_groups() {
    let tags = ", tags: {k8s.io/cluster-autoscaler/enabled: 'true', team: web}";
    let groups = "nodeGroups:\n- {name: a}\n\
                  - {name: b, tags: {k8s.io/cluster-autoscaler/enabled: 'no'}}";
    let desired = clean(&config(tags, groups));
    let enabled = |name: &str| desired.node_groups[name].tags.values().cloned().collect::<Vec<_>>();
    assert_eq!(enabled("a"), ["true"], "only the tags of Cluster Autoscaler are read");
    assert_eq!(enabled("b"), ["no"], "the tag of the group wins");
}

#[test]
fn eks_caps_the_pods_of_its_own_images() {
    for (kind, group, expected) in [
        ("managedNodeGroups", "", true),
        ("managedNodeGroups", ", ami: ami-1", false),
        ("nodeGroups", "", false),
    ] {
        assert_eq!(class(kind, group).eks_caps_pods, expected, "{kind}{group}");
    }
}

#[test]
fn nodes_have_adapters_only_if_the_group_enables_them() {
    assert_eq!(class("nodeGroups", "").efa, EfaInterfaces::Absent);
    assert_eq!(class("managedNodeGroups", ", efaEnabled: false").efa, EfaInterfaces::Absent);
    assert_eq!(class("managedNodeGroups", ", efaEnabled: true").efa, EfaInterfaces::All);
}

#[test]
fn settings_of_bottlerocket_change_the_room_of_nodes() {
    let settings = "amiFamily: Bottlerocket, bottlerocket: {settings: {kubernetes: {";
    let stated = "max-pods: 20, kube-reserved: {cpu: 1, memory: 4Gi}, \
                  system-reserved: {cpu: 100m}, eviction-hard: {memory.available: 200Mi}}}}";
    let class = class("managedNodeGroups", &format!(", {settings}{stated}"));
    assert_eq!(class.kubelet.max_pods, Some(20));
    assert_eq!(class.kubelet.kube_reserved["memory"], 4 << 30);
    assert_eq!(class.kubelet.system_reserved["cpu"], 100);
    assert_eq!(class.kubelet.eviction_hard.len(), 1);
    assert!(class.spec_digests.contains_key("bottlerocket"));
    for (kind, setting, expected) in [
        ("managedNodeGroups", "node-labels: {a: b}", "is refused by eksctl; write it in `labels`"),
        ("nodeGroups", "max-pods: 4", "is refused by eksctl; write it in `maxPodsPerNode`"),
        ("nodeGroups", "static-pods: {a: {enabled: true}}", "is not read: its pods take room"),
    ] {
        let text = config("", &format!("{kind}: [{{name: web, {settings}{setting}}}}}}}}}]"));
        let problems = lines(&read_text(&text));
        assert!(problems.iter().any(|p| p.contains(expected)), "{setting}: {problems:?}");
    }
}

#[test]
fn the_instance_store_of_a_node_config_is_read() {
    let command = |strategy: &str| {
        format!(
            "managedNodeGroups:\n- name: web\n  overrideBootstrapCommand: |\n    \
             apiVersion: node.eks.aws/v1alpha1\n    kind: NodeConfig\n    \
             spec: {{instance: {{localStorage: {{strategy: {strategy}}}}}}}"
        )
    };
    for (strategy, expected, warnings) in
        [("RAID0", true, 0), ("Mount", false, 0), ("RAID10", false, 1)]
    {
        let desired = read_text(&config("", &command(strategy)));
        assert_eq!(desired.node_classes["web"].instance_store_raid0, expected, "{strategy}");
        assert_eq!(desired.problems.len(), warnings, "{strategy}: {:?}", desired.problems);
    }
}

#[test]
fn capacity_blocks_are_reserved_capacity() {
    let block = "instanceMarketOptions: {marketType: capacity-block}";
    let target = "capacityReservation: {capacityReservationTarget: {capacityReservationID: cr-1}}";
    let desired =
        clean(&config("", &format!("managedNodeGroups: [{{name: web, {block}, {target}}}]")));
    let pool = &desired.pools["web"];
    assert_eq!(pool.labels["eks.amazonaws.com/capacityType"].as_str(), "CAPACITY_BLOCK");
    let bought = pool.requirements.iter().find(|one| one.key.as_str() == key::CAPACITY_TYPE);
    let bought = bought.map(|one| one.values[0].as_str());
    assert_eq!(bought, Some(CapacityType::Reserved.as_str()));
    let class = &desired.node_classes["web"];
    assert_eq!(class.reservations[0].id.as_deref(), Some("cr-1"));
    assert_eq!(class.ami_family, AmiFamily::Al2023);
    let unnamed = config("", &format!("managedNodeGroups: [{{name: web, {block}}}]"));
    let problems = lines(&read_text(&unnamed));
    assert!(problems[0].contains("does not name its reservation"), "{problems:?}");
}
