//! Nodes of Fleetwright whose instances lost its tags, and instances that EC2 does not list.
//!
//! An instance without our tags is not in the list of EC2. It may run all the same.

use std::collections::{BTreeMap, BTreeSet};

use super::{ClusterIdentity, Instance, KEY_LABEL, Node, Observed, tag};
use crate::model::ids::{InstanceId, NodeName, PoolName};
use crate::model::requirement::key;
use crate::model::shell::quote_word;

/// A node with our label whose running instance lost tags of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UntaggedNode {
    /// Instance.
    pub instance: InstanceId,
    /// Pool, from the tag of the instance, or else from the label of the node.
    pub pool: Option<PoolName>,
    /// Key within the pool, from the tag of the instance, or else from the label of the node.
    pub key: String,
    /// Tags to restore, with their values.
    lost: Vec<(&'static str, String)>,
}

impl UntaggedNode {
    fn new(node: &Node, key_label: &str, instance: &Instance, cluster: &str) -> Self {
        let pool_label = node.labels.get(key::NODEPOOL).map(|pool| pool.as_str());
        let pool = instance.tags.get(tag::POOL).map(String::as_str).or(pool_label);
        let key = instance.tags.get(tag::KEY).map_or(key_label, String::as_str);
        let all = [(tag::CLUSTER, cluster), (tag::POOL, pool.unwrap_or("POOL")), (tag::KEY, key)];
        let lost = all.into_iter().filter(|(tag, _)| !instance.tags.contains_key(*tag));
        Self {
            instance: instance.id.clone(),
            pool: pool.map(PoolName::from),
            key: key.to_owned(),
            lost: lost.map(|(tag, value)| (tag, value.to_owned())).collect(),
        }
    }

    /// Returns the command that restores the tags.
    #[must_use]
    pub fn restore_command(&self, cluster: &ClusterIdentity) -> String {
        let region = match cluster.region.as_str() {
            "" => String::new(),
            region => format!(" --region {}", quote_word(region)),
        };
        let tags = self.lost.iter().map(|(tag, value)| {
            let word = format!("Key={tag},Value={value}");
            format!(" {}", quote_word(&word))
        });
        let tags: String = tags.collect();
        format!("aws ec2 create-tags{region} --resources {} --tags{tags}", self.instance)
    }
}

impl Node {
    /// Returns true if the node carries our label, or is cordoned by us. EC2 is then asked about its
    /// instance by ID.
    #[must_use]
    pub fn has_our_marks(&self) -> bool {
        self.labels.contains_key(KEY_LABEL) || self.cordon_reason().is_some()
    }
}

impl Observed {
    /// Returns the instances of nodes with our marks that are not listed.
    #[must_use]
    pub fn unlisted_instances(&self) -> BTreeSet<InstanceId> {
        let marked = self.nodes.values().filter(|node| node.has_our_marks());
        let ids = marked.filter_map(|node| node.instance.as_ref());
        ids.filter(|id| !self.instances.contains_key(*id)).cloned().collect()
    }

    /// Returns true if the instance may run although EC2 does not list it: its node is Ready, or EC2
    /// was not asked about it by ID.
    #[must_use]
    pub fn may_run_unlisted(&self, id: &InstanceId) -> bool {
        let node = self.node_for_instance(id).filter(|_| !self.instances.contains_key(id));
        node.is_some_and(|node| node.ready || !node.has_our_marks())
    }

    /// Returns the nodes with our label whose running instances lost tags of ours.
    #[must_use]
    pub fn untagged_nodes(&self) -> BTreeMap<&NodeName, UntaggedNode> {
        let cluster = self.cluster.name.as_str();
        let untagged = self.labeled_nodes().filter_map(|(node, key_label)| {
            let instance = self.instances.get(node.instance.as_ref()?)?;
            lost_tags(instance, cluster)
                .then(|| (&node.name, UntaggedNode::new(node, key_label, instance, cluster)))
        });
        untagged.collect()
    }

    /// Returns the nodes with our label whose instances EC2 does not know, or knows as those of
    /// another cluster, each with the reason.
    #[must_use]
    pub fn contradicted_nodes(&self) -> BTreeMap<&NodeName, String> {
        let contradicted = self.labeled_nodes().filter_map(|(node, _)| {
            let id = node.instance.as_ref()?;
            let reason = match self.instances.get(id) {
                None if node.ready => format!("is Ready, and EC2 knows no instance {id}"),
                Some(instance) if instance.is_active() => {
                    let other = instance.tags.get(tag::CLUSTER)?;
                    let is_other = *other != self.cluster.name;
                    is_other.then(|| format!("has instance {id} of cluster `{other}`"))?
                }
                None | Some(_) => return None,
            };
            Some((&node.name, reason))
        });
        contradicted.collect()
    }

    /// Returns true if EC2 lists the instance of a Ready node with our label as ours.
    #[must_use]
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

/// Returns true if an active instance misses a tag of ours, and belongs to no group and to no other
/// cluster.
fn lost_tags(instance: &Instance, cluster: &str) -> bool {
    let is_other = instance.tags.get(tag::CLUSTER).is_some_and(|name| name != cluster);
    let is_candidate = instance.is_active() && instance.group.is_none() && !is_other;
    is_candidate && !instance.is_managed_by(cluster)
}
