//! Nodes of Fleetwright whose instances lost its tags, and instances that EC2 does not list.
//!
//! An instance without our tags is not in the list of EC2. It may run all the same.

use std::collections::{BTreeMap, BTreeSet};

use super::{Instance, KEY_LABEL, Node, Observed, tag};
use crate::model::ids::{InstanceId, LabelValue, NodeName, PoolName};
use crate::model::requirement::key;

/// A node with our label whose running instance lost tags of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UntaggedNode {
    /// Instance.
    pub instance: InstanceId,
    /// Pool, from the tag of the instance, or else from the label of the node.
    pub pool: Option<PoolName>,
    /// Key within the pool, from the tag of the instance, or else from the label of the node.
    pub key: String,
    /// Missing tags.
    lost: Vec<&'static str>,
}

impl UntaggedNode {
    fn new(node: &Node, key_label: &str, instance: &Instance) -> Self {
        let pool_label = node.labels.get(key::NODEPOOL).map(LabelValue::as_str);
        let pool = instance.tags.get(tag::POOL).map(String::as_str).or(pool_label);
        let key = instance.tags.get(tag::KEY).map_or(key_label, String::as_str);
        let all = [tag::CLUSTER, tag::POOL, tag::KEY];
        Self {
            instance: instance.id.clone(),
            pool: pool.map(PoolName::from),
            key: key.to_owned(),
            lost: all.into_iter().filter(|tag| !instance.tags.contains_key(*tag)).collect(),
        }
    }

    /// Returns the missing tags, such as `fleetwright.dev/cluster`.
    ///
    /// No command to restore them is written: a kubelet may name any instance as its own, and an
    /// instance with our tags may be terminated.
    pub fn lost_tags(&self) -> String {
        self.lost.join(", ")
    }
}

impl Node {
    /// Returns true if the node carries our label, or is cordoned by us. EC2 is then asked about its
    /// instance by ID.
    pub fn has_our_marks(&self) -> bool {
        self.labels.contains_key(KEY_LABEL) || self.cordon_reason().is_some()
    }
}

impl Observed {
    /// Returns the instances of nodes with our marks that are not listed.
    pub fn unlisted_instances(&self) -> BTreeSet<InstanceId> {
        let marked = self.nodes.values().filter(|node| node.has_our_marks());
        let ids = marked.filter_map(|node| node.instance.as_ref());
        ids.filter(|id| !self.instances.contains_key(*id)).cloned().collect()
    }

    /// Returns true if the instance may run although EC2 does not list it: its node is Ready, or EC2
    /// was not asked about it by ID.
    pub fn may_run_unlisted(&self, id: &InstanceId) -> bool {
        let node = self.node_for_instance(id).filter(|_| !self.instances.contains_key(id));
        node.is_some_and(|node| node.ready || !node.has_our_marks())
    }

    /// Returns the nodes with our label whose running instances lost tags of ours.
    pub fn untagged_nodes(&self) -> BTreeMap<&NodeName, UntaggedNode> {
        let cluster = self.cluster.name.as_str();
        let untagged = self.labeled_nodes().filter_map(|(node, key_label)| {
            let instance = self.instances.get(node.instance.as_ref()?)?;
            lost_tags(instance, cluster)
                .then(|| (&node.name, UntaggedNode::new(node, key_label, instance)))
        });
        untagged.collect()
    }

    /// Returns the nodes with our label whose instances EC2 does not know, or knows as those of
    /// another cluster, each with the reason.
    pub fn contradicted_nodes(&self) -> BTreeMap<&NodeName, String> {
        let contradicted = self.labeled_nodes().filter_map(|(node, _)| {
            let id = node.instance.as_ref()?;
            let reason = match self.instances.get(id) {
                None if node.ready => format!("is Ready, and EC2 knows no instance {id}"),
                Some(instance) if instance.is_active() => {
                    let other = instance.tags.get(tag::CLUSTER);
                    match other.filter(|other| **other != self.cluster.name) {
                        Some(other) => format!("has instance {id} of cluster `{other}`"),
                        None if instance.is_managed_by(&self.cluster.name) => return None,
                        None => {
                            format!("has instance {id} with the tag `{}`", foreign_tag(instance)?)
                        }
                    }
                }
                None | Some(_) => return None,
            };
            Some((&node.name, reason))
        });
        contradicted.collect()
    }

    /// Returns true if EC2 lists the instance of a Ready node with our label as ours.
    pub fn has_tagged_node(&self) -> bool {
        let is_tagged = |node: &Node| {
            let instance = node.instance.as_ref().and_then(|id| self.instances.get(id));
            node.ready
                && instance.is_some_and(|i| i.is_active() && i.is_managed_by(&self.cluster.name))
        };
        self.labeled_nodes().any(|(node, _)| is_tagged(node))
    }

    /// Returns the current nodes with our label, each with its value.
    fn labeled_nodes(&self) -> impl Iterator<Item = (&Node, &str)> {
        let current = self.nodes_by_instance().into_values().filter(|node| !node.is_fargate());
        current.filter_map(|node| Some((node, node.labels.get(KEY_LABEL)?.as_str())))
    }
}

/// Tags of other programs that launch instances.
const FOREIGN_TAGS: [&str; 4] = [
    "aws:autoscaling:groupName",
    "eks:nodegroup-name",
    "karpenter.sh/nodepool",
    "karpenter.sh/provisioner-name",
];

/// Returns the tag of another program that launched the instance.
fn foreign_tag(instance: &Instance) -> Option<&'static str> {
    FOREIGN_TAGS.into_iter().find(|tag| instance.tags.contains_key(*tag))
}

/// Returns true if an active instance misses a tag of ours, and belongs to no group, no other program
/// and no other cluster.
fn lost_tags(instance: &Instance, cluster: &str) -> bool {
    let is_other = instance.tags.get(tag::CLUSTER).is_some_and(|name| name != cluster);
    let is_candidate = instance.is_active()
        && instance.group.is_none()
        && !is_other
        && foreign_tag(instance).is_none();
    is_candidate && !instance.is_managed_by(cluster)
}
