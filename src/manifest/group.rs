//! Node groups: what Auto Scaling makes by number, and what the repository says of it.

use std::collections::BTreeMap;

use crate::ids::{GroupName, InstanceTypeName, Origin, PoolName, ZoneName};
use crate::units::MicroUsd;

/// Tags by which Cluster Autoscaler finds groups; it needs both.
pub const DISCOVERY_TAG: &str = "k8s.io/cluster-autoscaler/enabled";
/// What the second of them begins with; the name of the cluster follows.
pub const DISCOVERY_PREFIX: &str = "k8s.io/cluster-autoscaler/";

/// Who makes the nodes of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupKind {
    /// EKS (`managedNodeGroups`).
    Managed,
    /// An Auto Scaling group of eksctl's own (`nodeGroups`).
    Unmanaged,
    /// Somebody else: an Auto Scaling group of this name, which only the settings name.
    Elsewhere(GroupName),
}

/// A node group as the repository declares it; what its nodes are like stands in the pool and the
/// node class of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGroup {
    /// Name.
    pub name: PoolName,
    /// File and line.
    pub origin: Origin,
    /// Who makes its nodes.
    pub kind: GroupKind,
    /// Cluster it is of.
    pub cluster: String,
    /// Fewest nodes.
    pub min: u32,
    /// Most nodes.
    pub max: u32,
    /// Nodes that it is made with; a size that something set since is left alone.
    pub desired: Option<u32>,
    /// Types, in the order in which they are tried.
    pub types: Vec<InstanceTypeName>,
    /// Zones; empty means those of the cluster.
    pub zones: Vec<ZoneName>,
    /// Tags of the group.
    pub tags: BTreeMap<String, String>,
    /// What a spot instance may cost an hour; `None`: what it costs on demand.
    pub max_spot_price: Option<MicroUsd>,
    /// Whether the settings say that this program resizes it.
    pub manage: bool,
}

impl NodeGroup {
    /// Returns the tags that tell the group's Auto Scaling group, which has a name of its own; none of
    /// a group that is told by that name.
    #[must_use]
    pub fn identity(&self) -> Vec<(&'static str, &str)> {
        let (cluster, name) = match self.kind {
            GroupKind::Managed => ("eks:cluster-name", "eks:nodegroup-name"),
            GroupKind::Unmanaged => {
                ("alpha.eksctl.io/cluster-name", "alpha.eksctl.io/nodegroup-name")
            }
            GroupKind::Elsewhere(_) => return Vec::new(),
        };
        vec![(cluster, self.cluster.as_str()), (name, self.name.as_str())]
    }

    /// Returns whether the Auto Scaling group of that name and those tags is this one.
    #[must_use]
    pub fn is_live(&self, name: &GroupName, tags: &BTreeMap<String, String>) -> bool {
        if let GroupKind::Elsewhere(own) = &self.kind {
            return own == name;
        }
        let mut own = self.identity().into_iter();
        own.all(|(key, value)| tags.get(key).is_some_and(|held| held == value))
    }
}
