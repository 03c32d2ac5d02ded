//! Node groups declared in the repository. Auto Scaling launches their nodes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::model::ids::{GroupName, InstanceTypeName, Origin, PoolName, ZoneName};
use crate::model::market::CapacityMix;
use crate::model::units::MicroUsd;

/// First of the two tags that Cluster Autoscaler requires to discover a group.
const DISCOVERY_TAG: &str = "k8s.io/cluster-autoscaler/enabled";
/// Tag that EKS gives to the Auto Scaling groups of its managed node groups.
pub const EKS_GROUP_TAG: &str = "eks:nodegroup-name";
/// Prefix of the second discovery tag, followed by the cluster name.
pub const DISCOVERY_PREFIX: &str = "k8s.io/cluster-autoscaler/";

/// Returns the tags by which Cluster Autoscaler discovers the groups of a cluster, as EKS and eksctl
/// write them.
pub fn discovery_tags(cluster: &str) -> [(String, String); 2] {
    let of_cluster = format!("{DISCOVERY_PREFIX}{cluster}");
    [(DISCOVERY_TAG.to_owned(), "true".to_owned()), (of_cluster, "owned".to_owned())]
}

/// Manager of the nodes of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupKind {
    /// EKS managed node group (`managedNodeGroups`).
    Managed,
    /// Auto Scaling group that eksctl creates (`nodeGroups`).
    Unmanaged,
    /// Auto Scaling group with this name that only the settings declare.
    External(GroupName),
}

/// A declared node group. The pool and node class of the same name describe its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGroup {
    /// Name.
    pub name: PoolName,
    /// Source file and line.
    pub origin: Origin,
    /// Manager of the nodes.
    pub kind: GroupKind,
    /// Cluster name.
    pub cluster: String,
    /// Minimum number of nodes.
    pub min: u32,
    /// Maximum number of nodes.
    pub max: u32,
    /// Initial size. It applies only at creation, and later changes are preserved.
    pub desired: Option<u32>,
    /// Instance types, in launch order.
    pub types: Vec<InstanceTypeName>,
    /// Zones; empty means the zones of the cluster.
    pub zones: Vec<ZoneName>,
    /// Tags of the Auto Scaling group.
    pub tags: BTreeMap<String, String>,
    /// Purchase options, if the file states them.
    pub mix: Option<CapacityMix>,
    /// Maximum hourly spot price; `None` means the on-demand price.
    pub max_spot_price: Option<MicroUsd>,
    /// True if the settings allow Fleetwright to resize the group.
    pub manage: bool,
}

/// A group that only the settings declare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalGroup {
    /// True if the settings allow Fleetwright to resize the group.
    pub manage: bool,
    /// Source file and line of the setting.
    pub origin: Origin,
}

impl NodeGroup {
    /// Returns the tags that identify the Auto Scaling group, whose name is generated. Returns no
    /// tags for a group that is identified by its name.
    pub fn identity_tags(&self) -> Vec<(&'static str, &str)> {
        let (cluster, name) = match self.kind {
            GroupKind::Managed => ("eks:cluster-name", EKS_GROUP_TAG),
            GroupKind::Unmanaged => {
                ("alpha.eksctl.io/cluster-name", "alpha.eksctl.io/nodegroup-name")
            }
            GroupKind::External(_) => return Vec::new(),
        };
        vec![(cluster, self.cluster.as_str()), (name, self.name.as_str())]
    }

    /// Returns the tags that the Auto Scaling group has once it is created. EKS adds those for
    /// Cluster Autoscaler to each group of a managed node group.
    pub fn tags_at_creation(&self) -> Cow<'_, BTreeMap<String, String>> {
        let mut tags = Cow::Borrowed(&self.tags);
        if self.kind == GroupKind::Managed {
            tags.to_mut().extend(discovery_tags(&self.cluster));
        }
        tags
    }

    /// Returns true if the live group with this name and these tags is this declared group.
    pub fn matches_live_group(&self, name: &GroupName, tags: &BTreeMap<String, String>) -> bool {
        if let GroupKind::External(own) = &self.kind {
            return own == name;
        }
        let mut own = self.identity_tags().into_iter();
        own.all(|(key, value)| tags.get(key).is_some_and(|actual| actual == value))
    }
}
