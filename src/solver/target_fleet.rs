//! Result of the solver.

use std::collections::BTreeMap;

use super::auto_scaling_groups::GroupGrowth;
use crate::model::ids::{
    InstanceTypeName, LabelKey, Labels, NodeClassName, NodeName, PoolName, ReservationId, ZoneId,
    ZoneName,
};
use crate::model::market::CapacityType;
use crate::model::pod::Taint;
use crate::model::reason::{
    Alternative, Contingency, FailureDomainReport, KeepReason, LaunchReason, Rejection, Relaxed,
    RetireReason, Unsteered,
};
use crate::model::units::{MicroUsd, Resources};

/// Target fleet, with reasons.
#[derive(Debug, Clone, Default)]
pub struct TargetFleet {
    /// Nodes to launch, in a fixed order; `placements` refers to them by index.
    pub launches: Vec<Launch>,
    /// Observed nodes to keep, by name, with the reason.
    pub keeps: BTreeMap<NodeName, KeepReason>,
    /// Observed nodes to retire, by name.
    pub retires: BTreeMap<NodeName, Retire>,
    /// Placement of each placed pod: group index → node → number of pods.
    pub placements: BTreeMap<usize, BTreeMap<NodeRef, u32>>,
    /// By group: reasons that keep its placed pods off the other nodes, with counts. Empty for
    /// fleets that are too large to check.
    pub placement_rejections: BTreeMap<usize, Vec<Rejection>>,
    /// Unschedulable pods, by group index.
    pub unschedulable: Vec<UnschedulablePods>,
    /// Groups that Cluster Autoscaler scales up for pods without a node, in the order of names.
    pub growths: Vec<GroupGrowth>,
    /// Price per hour of the tightest packing found for the placed pods.
    pub packed_price: MicroUsd,
    /// Names of the placement simulation runs.
    pub simulated_runs: Vec<String>,
    /// Shortage without nominations. `None` unless pods are nominated to their nodes.
    pub without_nominations: Option<Unsteered>,
    /// Further nodes for pods that stay pending, if the fleet has any.
    pub contingency: Option<Contingency>,
    /// Lower bound on the hourly price of every fleet that holds all placed pods.
    pub lower_bound: MicroUsd,
    /// Effect of failure-domain limits, if any are declared.
    pub failure_domains: Option<FailureDomainReport>,
}

/// Reference to the node of a placed pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeRef {
    /// An existing node.
    Existing(NodeName),
    /// A node to launch, by index into [`TargetFleet::launches`].
    Launch(usize),
}

/// A node to launch, with the reason.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Node to launch.
    pub node: NewNode,
    /// Reason.
    pub reason: LaunchReason,
    /// Batch shared with the nodes that it replaces; `None` if it replaces no node.
    pub batch: Option<usize>,
    /// Rejected offers.
    pub rejected: Vec<Rejection>,
}

impl Launch {
    /// Returns true for a node of a pool of fixed size, which is decided before pods are placed.
    pub(super) fn is_fixed(&self) -> bool {
        match &self.reason {
            LaunchReason::Static { .. } | LaunchReason::Replacement { .. } => true,
            LaunchReason::Demand { .. } | LaunchReason::Consolidation { .. } => false,
        }
    }
}

/// A node to retire, with the reason.
#[derive(Debug, Clone)]
pub struct Retire {
    /// Reason.
    pub reason: RetireReason,
    /// Batch shared with the nodes that replace it; `None` if no node does.
    pub batch: Option<usize>,
}

/// Complete description of a node to launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewNode {
    /// Pool.
    pub pool: PoolName,
    /// Node class.
    pub node_class: NodeClassName,
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Zone name.
    pub zone: ZoneName,
    /// Zone id.
    pub zone_id: ZoneId,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// Image as the node class names it.
    pub image: String,
    /// All labels of the node, except the host name.
    pub labels: Labels,
    /// Taints that remain once the node is initialized.
    pub taints: Vec<Taint>,
    /// Taints that are removed once the node is initialized.
    pub startup_taints: Vec<Taint>,
    /// Capacity that the node will report; pool limits count this amount.
    pub capacity: Resources,
    /// Resources for pods, DaemonSet pods included.
    pub allocatable: Resources,
    /// Price per hour.
    pub price: MicroUsd,
    /// True if the price is an estimate because the actual price is unknown.
    pub price_estimated: bool,
    /// Digest of pool template and node class, stored as a tag. Drift detection compares it later.
    pub spec_digest: String,
    /// Capacity reservation to launch into; no other capacity is used.
    pub reservation: Option<ReservationId>,
    /// Keys among `labels` whose values the pool leaves open; stored as tags.
    pub open_labels: Vec<LabelKey>,
    /// Names of the node overlays that changed its price or capacity.
    pub overlays: Vec<String>,
    /// `minValues` demands that the node and its alternatives do not meet.
    pub relaxed: Vec<Relaxed>,
    /// Alternative offerings, cheapest first.
    pub alternatives: Vec<Alternative>,
}

/// Unschedulable pods of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnschedulablePods {
    /// Index of the group.
    pub group: usize,
    /// Number of pods.
    pub pods: u32,
    /// Number of offerings (pool × type × zone × capacity type) that each reason ruled out.
    pub rejections: Vec<Rejection>,
    /// Number of offerings checked.
    pub offerings: u32,
    /// Description of a change that would help, if one is known.
    pub suggested_change: Option<String>,
    /// Effect on other pods while these pods are pending.
    pub contention: Contention,
    /// Description of the resource in which the pods exceed every node that admits them. `None` if
    /// size is not the reason.
    pub oversize: Option<String>,
}

/// Effect of unschedulable pods on other pods while they are in kube-scheduler's queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contention {
    /// Number of these pods that kube-scheduler places anyway, by evicting other pods.
    pub let_in: u32,
    /// Number of evicted pods, by workload.
    pub evicts: BTreeMap<String, u32>,
    /// Number of placed pods that become pending where these pods come first, by workload: the
    /// maximum over all simulated runs.
    pub displaces: BTreeMap<String, u32>,
}
