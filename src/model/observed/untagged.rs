//! Nodes of Fleetwright whose instances lost its tags.

use std::collections::BTreeMap;

use super::{ClusterIdentity, Instance, KEY_LABEL, Node, Observed, tag};
use crate::model::ids::{InstanceId, NodeName, PoolName};
use crate::model::requirement::key;

/// A Ready node with our labels, whose instance carries no tags of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UntaggedNode {
    /// Instance, from the provider ID.
    pub instance: InstanceId,
    /// Pool, from the label of the node.
    pub pool: Option<PoolName>,
    /// Key within the pool, from the label of the node.
    pub key: String,
}

impl UntaggedNode {
    /// Returns the command that restores the tags.
    #[must_use]
    pub fn restore_command(&self, cluster: &ClusterIdentity) -> String {
        let ClusterIdentity { name, region, .. } = cluster;
        let pool = self.pool.as_ref().map_or("POOL", PoolName::as_str);
        let region = if region.is_empty() { String::new() } else { format!(" --region {region}") };
        format!(
            "aws ec2 create-tags{region} --resources {} --tags Key={},Value={name} \
             Key={},Value={pool} Key={},Value={}",
            self.instance,
            tag::CLUSTER,
            tag::POOL,
            tag::KEY,
            self.key
        )
    }
}

impl Observed {
    /// Returns the nodes whose instances lost their tags: EC2 does not list them for the cluster, or
    /// lists them without our tags. A node that is not Ready may have no instance anymore.
    #[must_use]
    pub fn untagged_nodes(&self) -> BTreeMap<&NodeName, UntaggedNode> {
        let current = self.nodes_by_instance();
        let untagged = self.nodes.values().filter_map(|node| {
            let instance = node.instance.as_ref().filter(|_| node.ready && !node.is_fargate())?;
            let key_label = node.labels.get(KEY_LABEL)?;
            let is_current = current.get(instance).is_some_and(|current| current.name == node.name);
            let lacks_tags = self.instances.get(instance).is_none_or(lacks_tags);
            let pool = node.labels.get(key::NODEPOOL).map(|pool| pool.as_str().into());
            let (instance, key) = (instance.clone(), key_label.as_str().to_owned());
            (is_current && lacks_tags).then_some((&node.name, UntaggedNode { instance, pool, key }))
        });
        untagged.collect()
    }

    /// Returns true if EC2 lists the instance of a Ready node of ours with our tags.
    #[must_use]
    pub fn has_tagged_node(&self) -> bool {
        let is_tagged = |node: &Node| {
            let instance = node.instance.as_ref().and_then(|id| self.instances.get(id));
            node.ready
                && node.labels.contains_key(KEY_LABEL)
                && instance.is_some_and(|i| i.is_active() && i.is_managed_by(&self.cluster.name))
        };
        self.nodes.values().any(is_tagged)
    }
}

/// Returns true if an active instance misses a tag of ours, and belongs to no group and to no other
/// cluster.
fn lacks_tags(instance: &Instance) -> bool {
    let owned = instance.tags.contains_key(tag::CLUSTER) && instance.tags.contains_key(tag::POOL);
    instance.is_active() && instance.group.is_none() && !owned
}
