//! Node groups: nodes that Auto Scaling launches, as the repository declares them.

use std::collections::BTreeMap;

use crate::model::ids::{GroupName, InstanceTypeName, Origin, PoolName, ZoneName};
use crate::model::units::MicroUsd;

/// Tags by which Cluster Autoscaler finds groups; it needs both.
pub const DISCOVERY_TAG: &str = "k8s.io/cluster-autoscaler/enabled";
/// Prefix of the second tag; the name of the cluster follows.
pub const DISCOVERY_PREFIX: &str = "k8s.io/cluster-autoscaler/";

/// The manager of a group's nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupKind {
    /// EKS (`managedNodeGroups`).
    Managed,
    /// An Auto Scaling group of eksctl's own (`nodeGroups`).
    Unmanaged,
    /// Not in the repository: an Auto Scaling group of this name, from the settings.
    External(GroupName),
}

/// A declared node group; the pool and the node class of its name describe its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGroup {
    /// Name.
    pub name: PoolName,
    /// File and line.
    pub origin: Origin,
    /// Manager of its nodes.
    pub kind: GroupKind,
    /// Its cluster.
    pub cluster: String,
    /// Fewest nodes.
    pub min: u32,
    /// Most nodes.
    pub max: u32,
    /// Initial size; a size that was set later is not changed back.
    pub desired: Option<u32>,
    /// Instance types, in launch order.
    pub types: Vec<InstanceTypeName>,
    /// Zones; empty means those of the cluster.
    pub zones: Vec<ZoneName>,
    /// Tags of the group.
    pub tags: BTreeMap<String, String>,
    /// Maximum spot price an hour; `None`: the on-demand price.
    pub max_spot_price: Option<MicroUsd>,
    /// Whether this program resizes it, by the settings.
    pub manage: bool,
}

impl NodeGroup {
    /// Returns the tags that identify the Auto Scaling group, which has a generated name; none for a
    /// group that is identified by name.
    #[must_use]
    pub fn identity_tags(&self) -> Vec<(&'static str, &str)> {
        let (cluster, name) = match self.kind {
            GroupKind::Managed => ("eks:cluster-name", "eks:nodegroup-name"),
            GroupKind::Unmanaged => {
                ("alpha.eksctl.io/cluster-name", "alpha.eksctl.io/nodegroup-name")
            }
            GroupKind::External(_) => return Vec::new(),
        };
        vec![(cluster, self.cluster.as_str()), (name, self.name.as_str())]
    }

    /// Returns whether this is the Auto Scaling group with that name and those tags.
    #[must_use]
    pub fn matches_live_group(&self, name: &GroupName, tags: &BTreeMap<String, String>) -> bool {
        if let GroupKind::External(own) = &self.kind {
            return own == name;
        }
        let mut own = self.identity_tags().into_iter();
        own.all(|(key, value)| tags.get(key).is_some_and(|held| held == value))
    }
}
