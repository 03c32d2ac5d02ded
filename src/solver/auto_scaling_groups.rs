//! Auto Scaling groups: the pool of each member, whether the group may be resized, and its minimum
//! size.
//!
//! A group that another component may resize is observe-only: two controllers that write one size
//! undo each other.

mod autoscaler_growth;
mod capacity_mix;
mod external;

pub use autoscaler_growth::GroupGrowth;
pub(super) use autoscaler_growth::grow;
pub use capacity_mix::assign_capacity_types;
pub(super) use capacity_mix::{OptionPrice, average_price, dearest_price, mix_of};
pub use external::{external_group_problems, with_external_groups};

use std::collections::{BTreeMap, BTreeSet};

use super::existing_node::ExistingNode;
use super::node_disposition::NodeDisposition;
use crate::catalog::{Allocation, Catalog, InstanceType, NodeSettings};
use crate::demand::Demand;
use crate::model::competing_autoscaler::group_resizer;
use crate::model::desired::{
    DISCOVERY_PREFIX, Desired, EKS_GROUP_TAG, GroupKind, NodeGroup, Pool, PoolLimits,
};
use crate::model::ids::{GroupName, NodeName, PoolName};
use crate::model::observed::{Group, Instance, Observed};
use crate::model::plural;
use crate::model::reason::{BlockReason, KeepReason, RetireReason};
use crate::model::units::Resources;

/// Process of Auto Scaling without which a group launches nothing.
const LAUNCH_PROCESS: &str = "Launch";

/// Returns the observed group with the tags of a declared one.
pub fn live_group<'a>(declared: &NodeGroup, observed: &'a Observed) -> Option<&'a Group> {
    observed.groups.values().find(|live| declared.matches_live_group(&live.name, &live.tags))
}

/// Returns the reason why a declared group is observe-only; `None` if it may be resized.
pub fn observe_only_reason(
    declared: &NodeGroup,
    desired: &Desired,
    observed: &Observed,
) -> Option<String> {
    if declared.manage {
        return resize_obstacle(declared, desired, observed);
    }
    let name = &declared.name;
    let setting = format!("fleetwright.yaml does not say `spec.groups.{name}: {{ manage: true }}`");
    let first = declared.desired.unwrap_or(declared.min);
    let is_new = live_group(declared, observed).is_none() && is_bare(observed);
    Some(if is_new && first > 0 {
        let nodes = plural::count(first, "node");
        format!("{setting}; not counted: the {nodes} that eksctl creates it with")
    } else {
        setting
    })
}

/// Returns the reason why a group stays observe-only although the settings allow its management.
pub(super) fn resize_obstacle(
    declared: &NodeGroup,
    desired: &Desired,
    observed: &Observed,
) -> Option<String> {
    let live = live_group(declared, observed);
    if let Some(tag) = handing_tag(declared, live) {
        return Some(format!("its tag {tag} hands it to Cluster Autoscaler"));
    }
    let zones = declared.zones.iter().chain(live.into_iter().flat_map(|group| &group.zones));
    let region = observed.region();
    if let Some(zone) = zones.into_iter().find(|zone| zone.is_edge_of(&region)) {
        return Some(format!(
            "its zone {zone} is a Local Zone or Wavelength Zone, whose offerings and prices are not \
             read"
        ));
    }
    if let Some(workload) = group_resizer(observed, desired) {
        return Some(format!("Deployment {workload} is Cluster Autoscaler, which may resize it"));
    }
    let Some(live) = live else {
        // In an empty world, the group is created with the cluster.
        return (!is_bare(observed)).then(|| {
            "the world has no Auto Scaling group with its tags; create it with eksctl".to_owned()
        });
    };
    if live.suspended.iter().any(|process| process == LAUNCH_PROCESS) {
        return Some(format!("its process {LAUNCH_PROCESS} is suspended, so it launches nothing"));
    }
    let there = member_count(observed, &live.name);
    (there != live.desired)
        .then(|| format!("it is scaling: {} of its {} members exist", there, live.desired))
}

/// Returns the tag by which a user hands a group to Cluster Autoscaler.
///
/// EKS gives such tags to every managed node group by itself, so that those of its Auto Scaling
/// group prove nothing.
fn handing_tag<'a>(declared: &'a NodeGroup, live: Option<&'a Group>) -> Option<&'a String> {
    // A group of the settings has the tags of its Auto Scaling group.
    let is_of_file = !matches!(declared.kind, GroupKind::External(_));
    let of_file = declared.tags.keys().filter(|_| is_of_file);
    let by_user = live.filter(|live| !live.tags.contains_key(EKS_GROUP_TAG));
    let observed = by_user.into_iter().flat_map(|live| live.tags.keys());
    of_file.chain(observed).find(|tag| is_discovery(tag))
}

fn is_bare(observed: &Observed) -> bool {
    observed.groups.is_empty() && observed.instances.is_empty() && observed.nodes.is_empty()
}

/// Returns the minimum and maximum size of a group. Auto Scaling enforces the bounds of the
/// observed group, and the repository may declare tighter ones.
fn bounds(declared: &NodeGroup, observed: &Observed) -> (u32, u32) {
    let live = live_group(declared, observed);
    let least = live.map_or(declared.min, |live| live.min.max(declared.min));
    let most = live.map_or(declared.max, |live| live.max.min(declared.max));
    (least, most)
}

/// Size of a group.
pub(super) struct GroupSize {
    /// Members that run or are starting.
    pub(super) members: u32,
    /// Minimum number of members.
    pub(super) least: u32,
    /// Maximum number of members.
    pub(super) most: u32,
}

/// Returns the size of a group.
pub(super) fn group_size(declared: &NodeGroup, observed: &Observed) -> GroupSize {
    let live = live_group(declared, observed);
    let members = live.map_or(0, |live| member_count(observed, &live.name));
    let (least, most) = bounds(declared, observed);
    GroupSize { members, least, most }
}

/// Returns the limits of each pool. The node limit of a group is its maximum size.
pub(super) fn pool_limits(
    desired: &Desired,
    observed: &Observed,
) -> BTreeMap<PoolName, PoolLimits> {
    let limits = |(name, pool): (&PoolName, &Pool)| {
        let mut limits = pool.limits.clone();
        if let Some(group) = desired.node_groups.get(name) {
            limits.nodes = Some(bounds(group, observed).1);
        }
        (name.clone(), limits)
    };
    desired.pools.iter().map(limits).collect()
}

/// Returns true for a tag by which Cluster Autoscaler discovers groups.
fn is_discovery(tag: &str) -> bool {
    tag.strip_prefix(DISCOVERY_PREFIX).is_some_and(|rest| !rest.starts_with("node-template/"))
}

/// Returns the members of a group that run or are starting.
fn members<'a>(observed: &'a Observed, name: &'a GroupName) -> impl Iterator<Item = &'a Instance> {
    observed.instances.values().filter(move |instance| {
        instance.is_active() && instance.group.as_ref().is_some_and(|of| of.name == *name)
    })
}

fn member_count(observed: &Observed, name: &GroupName) -> u32 {
    u32::try_from(members(observed, name).count()).unwrap_or(u32::MAX)
}

/// What every node of a group has at least.
pub(super) struct GroupGuarantee<'c> {
    /// The smallest type, or the first one if no type is the smallest in every resource. Its price
    /// may be lower than that of a node.
    pub(super) kind: &'c InstanceType,
    /// Amounts by which the capacity of a node may be smaller than that of `kind`.
    pub(super) less_capacity: Resources,
    /// Amounts by which a node may have less for pods than `kind`.
    pub(super) less_allocatable: Resources,
}

/// Returns what every node of a group has at least: the minimum of each resource over its types.
///
/// # Errors
///
/// When the types are unknown, or one is not in the catalog.
pub(super) fn group_guarantee<'c>(
    pool: &Pool,
    types: &[crate::model::ids::InstanceTypeName],
    catalog: &'c Catalog,
    settings: &NodeSettings,
) -> Result<GroupGuarantee<'c>, String> {
    let mut known: Vec<(&InstanceType, Allocation)> = Vec::new();
    for name in types {
        let kind = catalog.types.get(name);
        let kind = kind.ok_or_else(|| format!("its type {name} is not in the catalog"))?;
        known.push((kind, catalog.allocation(kind, settings)));
    }
    let is_least = |least: &Allocation| {
        known.iter().all(|(_, other)| least.allocatable.fits(&other.allocatable))
    };
    let chosen = known.iter().find(|(_, allocation)| is_least(allocation)).or(known.first());
    let (kind, own) =
        chosen.ok_or_else(|| format!("the instance types of group {} are unknown", pool.name))?;
    let mut guarantee = GroupGuarantee {
        kind,
        less_capacity: Resources::default(),
        less_allocatable: Resources::default(),
    };
    for (_, other) in &known {
        let GroupGuarantee { less_capacity, less_allocatable, .. } = &mut guarantee;
        *less_capacity = less_capacity.at_least(&own.capacity.minus(&other.capacity));
        *less_allocatable = less_allocatable.at_least(&own.allocatable.minus(&other.allocatable));
    }
    Ok(guarantee)
}

/// Declared groups with their observed state.
pub(super) struct AutoScalingGroups<'a> {
    /// Pool of each observed group.
    pools: BTreeMap<&'a GroupName, &'a PoolName>,
    /// By pool: the reason why its group is observe-only.
    observe_only_reasons: BTreeMap<&'a PoolName, Option<String>>,
    desired: &'a Desired,
    observed: &'a Observed,
}

impl<'a> AutoScalingGroups<'a> {
    pub(super) fn new(desired: &'a Desired, observed: &'a Observed) -> Self {
        let groups = desired.node_groups.values();
        let live = groups.clone().filter_map(|g| Some((&live_group(g, observed)?.name, &g.name)));
        let verdict =
            |group: &'a NodeGroup| (&group.name, observe_only_reason(group, desired, observed));
        Self {
            pools: live.collect(),
            observe_only_reasons: groups.map(verdict).collect(),
            desired,
            observed,
        }
    }

    /// Returns the pool of an instance that is a member of a declared group.
    pub(super) fn pool_of(&self, instance: &Instance) -> Option<&'a PoolName> {
        self.pools.get(&instance.group.as_ref()?.name).copied()
    }

    /// Returns the reason why the group of a pool is observe-only.
    pub(super) fn observe_only_reason(&self, pool: &str) -> Option<&str> {
        self.observe_only_reasons.iter().find(|(name, _)| name.as_str() == pool)?.1.as_deref()
    }

    /// Keeps as many members of each group as its minimum size requires, and retires members above
    /// its maximum size.
    pub(super) fn apply_bounds(&self, existing: &mut [ExistingNode], demand: &Demand) {
        for group in self.desired.node_groups.values() {
            if self.observe_only_reason(group.name.as_str()).is_some() {
                continue;
            }
            let mut members: Vec<usize> = (0..existing.len())
                .filter(|index| existing[*index].pool.as_ref() == Some(&group.name))
                .collect();
            let there = u32::try_from(members.len()).unwrap_or(u32::MAX);
            let may_go =
                |node: &ExistingNode| !matches!(node.disposition, NodeDisposition::Keep(_));
            members.retain(|index| may_go(&existing[*index]));
            // Retire nodes that must be retired anyway first, then those with the fewest pods, last
            // name first.
            members.sort_by_key(|index| {
                let ExistingNode { name, disposition, .. } = &existing[*index];
                let stays = !matches!(disposition, NodeDisposition::Retire(_));
                (stays, running_pods(demand, name), std::cmp::Reverse(name.clone()))
            });
            let (least, _) = bounds(group, self.observed);
            let above =
                |size: u32| usize::try_from(there.saturating_sub(size)).unwrap_or(usize::MAX);
            let (surplus, spare) = (above(group.max.max(least)), above(least));
            for (position, index) in members.into_iter().enumerate() {
                let node = &mut existing[index];
                if position < surplus {
                    node.disposition = NodeDisposition::Retire(RetireReason::Surplus {
                        declared: group.max,
                        there,
                    });
                } else if position >= spare {
                    let by = BlockReason::GroupMinimum { minimum: least };
                    node.disposition = NodeDisposition::Keep(KeepReason::Blocked { by });
                }
            }
        }
    }
}

/// Returns the number of planned pods that run on a node.
fn running_pods(demand: &Demand, name: &NodeName) -> u32 {
    let here = demand
        .groups
        .iter()
        .map(|group| group.running.get(name).copied().unwrap_or(0).min(group.counts.planned));
    here.fold(0, u32::saturating_add)
}

/// Returns true for a label key that Karpenter sets on its nodes. Members of groups never have it.
pub(super) fn is_karpenter_label(key: &str) -> bool {
    key.split_once('/').is_some_and(|(domain, _)| {
        domain == "karpenter.sh" || domain == "karpenter.k8s.aws" || domain == "fleetwright.dev"
    })
}

/// Unknown attributes of the next member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnknownAttributes {
    /// The zone is unknown.
    pub zone: bool,
    /// The instance type is unknown.
    pub instance_type: bool,
}

/// Returns the unknown attributes of the next member of a group with these types and this number of
/// zones.
pub(super) fn unknown_attributes(
    types: &[crate::model::ids::InstanceTypeName],
    zones: usize,
) -> UnknownAttributes {
    let types: BTreeSet<_> = types.iter().collect();
    UnknownAttributes { zone: zones != 1, instance_type: types.len() > 1 }
}
