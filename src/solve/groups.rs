//! Groups of Auto Scaling: which pool a member is of, whether the group may be touched, and how many
//! of its members must stay.
//!
//! A group that anything else may resize is observed only: two that write one number undo each other.

mod elsewhere;

pub use elsewhere::{amiss_elsewhere, with_groups_made_elsewhere};

use std::collections::{BTreeMap, BTreeSet};

use super::standing::{Fate, Standing};
use super::target::{BlockReason, KeepReason, RetireReason};
use crate::catalog::{Allocation, Catalog, InstanceType, NodeSettings};
use crate::demand::Demand;
use crate::fleet::{Group, Instance, Observed};
use crate::ids::{GroupName, NodeName, PoolName};
use crate::manifest::{DISCOVERY_PREFIX, Desired, NodeGroup, Pool, PoolLimits};
use crate::rival::resizer;

/// Returns the live group that `declared` is: the one with its tags.
#[must_use]
pub fn live_group<'a>(declared: &NodeGroup, observed: &'a Observed) -> Option<&'a Group> {
    observed.groups.values().find(|live| declared.is_live(&live.name, &live.tags))
}

/// Returns why a declared group is only observed; `None` where it may be resized.
#[must_use]
pub fn observed_only(
    declared: &NodeGroup,
    desired: &Desired,
    observed: &Observed,
) -> Option<String> {
    let name = &declared.name;
    if !declared.manage {
        return Some(format!(
            "fleetwright.yaml does not say `spec.groups.{name}: {{ manage: true }}`"
        ));
    }
    let live = live_group(declared, observed);
    let tags = declared.tags.keys().chain(live.into_iter().flat_map(|group| group.tags.keys()));
    if let Some(tag) = tags.into_iter().find(|tag| is_discovery(tag)) {
        return Some(format!("its tag {tag} hands it to Cluster Autoscaler"));
    }
    if let Some(workload) = resizer(observed, desired) {
        return Some(format!("Deployment {workload} is Cluster Autoscaler, which may resize it"));
    }
    let Some(live) = live else {
        // Where nothing runs yet, the group comes with the cluster.
        return (!is_bare(observed)).then(|| {
            "the world has no Auto Scaling group with its tags; create it with eksctl".to_owned()
        });
    };
    let there = u32::try_from(members(observed, &live.name).count()).unwrap_or(u32::MAX);
    (there != live.desired)
        .then(|| format!("it is on its way: {} of its {} members are there", there, live.desired))
}

/// Returns whether nothing runs in the world.
fn is_bare(observed: &Observed) -> bool {
    observed.groups.is_empty() && observed.instances.is_empty() && observed.nodes.is_empty()
}

/// Returns the least and the largest size that a group may be brought to: Auto Scaling holds to the
/// bounds that the live group has, and the repository may declare tighter ones.
fn bounds(declared: &NodeGroup, observed: &Observed) -> (u32, u32) {
    let live = live_group(declared, observed);
    let least = live.map_or(declared.min, |live| live.min.max(declared.min));
    let most = live.map_or(declared.max, |live| live.max.min(declared.max));
    (least, most)
}

/// Returns the limits of each pool; those of a group are what Auto Scaling lets it grow to.
pub(super) fn limits(desired: &Desired, observed: &Observed) -> BTreeMap<PoolName, PoolLimits> {
    let limits = |(name, pool): (&PoolName, &Pool)| {
        let mut limits = pool.limits.clone();
        if let Some(group) = desired.node_groups.get(name) {
            limits.nodes = Some(bounds(group, observed).1);
        }
        (name.clone(), limits)
    };
    desired.pools.iter().map(limits).collect()
}

/// Returns whether a tag is one of those by which Cluster Autoscaler finds groups.
fn is_discovery(tag: &str) -> bool {
    tag.strip_prefix(DISCOVERY_PREFIX).is_some_and(|rest| !rest.starts_with("node-template/"))
}

/// Returns the members of a group that run or are about to.
fn members<'a>(observed: &'a Observed, name: &'a GroupName) -> impl Iterator<Item = &'a Instance> {
    observed.instances.values().filter(move |instance| {
        instance.is_active() && instance.group.as_ref().is_some_and(|of| of.name == *name)
    })
}

/// The type that every node of a group is at least as large as, and what it offers.
///
/// # Errors
/// When no type of the group is least in everything, or one is not in the catalogue.
pub(super) fn guarantee<'c>(
    pool: &Pool,
    types: &[crate::ids::InstanceTypeName],
    catalog: &'c Catalog,
    settings: &NodeSettings,
) -> Result<&'c InstanceType, String> {
    let mut known: Vec<(&InstanceType, Allocation)> = Vec::new();
    for name in types {
        let kind = catalog.types.get(name);
        let kind = kind.ok_or_else(|| format!("its type {name} is not in the catalogue"))?;
        known.push((kind, catalog.allocation(kind, settings)));
    }
    let is_least = |least: &Allocation| {
        known.iter().all(|(_, other)| least.allocatable.fits(&other.allocatable))
    };
    let least = known.iter().find(|(_, allocation)| is_least(allocation));
    least.map(|(kind, _)| *kind).ok_or_else(|| {
        let names: Vec<&str> = types.iter().map(crate::ids::InstanceTypeName::as_str).collect();
        format!(
            "none of the types of group {} ({}) is least in everything, so that nothing can be \
             promised of its next node",
            pool.name,
            names.join(", ")
        )
    })
}

/// The declared groups, as they stand.
pub(super) struct Groups<'a> {
    /// The pool of each live group.
    pools: BTreeMap<&'a GroupName, &'a PoolName>,
    /// Why a group is only observed.
    observed_only: BTreeMap<&'a PoolName, Option<String>>,
    desired: &'a Desired,
    observed: &'a Observed,
}

impl<'a> Groups<'a> {
    pub(super) fn of(desired: &'a Desired, observed: &'a Observed) -> Self {
        let groups = desired.node_groups.values();
        let live = groups.clone().filter_map(|g| Some((&live_group(g, observed)?.name, &g.name)));
        let verdict = |group: &'a NodeGroup| (&group.name, observed_only(group, desired, observed));
        Self {
            pools: live.collect(),
            observed_only: groups.map(verdict).collect(),
            desired,
            observed,
        }
    }

    /// Returns the pool that an instance is of as the member of a group.
    pub(super) fn pool_of(&self, instance: &Instance) -> Option<&'a PoolName> {
        self.pools.get(&instance.group.as_ref()?.name).copied()
    }

    /// Returns why the group of a pool is only observed.
    pub(super) fn observed_only(&self, pool: &str) -> Option<&str> {
        self.observed_only.iter().find(|(name, _)| name.as_str() == pool)?.1.as_deref()
    }

    /// Has as many members of each group stay as its least size asks for, and those go that are more
    /// than its largest.
    pub(super) fn bound(&self, standing: &mut [Standing], demand: &Demand) {
        for group in self.desired.node_groups.values() {
            if self.observed_only(group.name.as_str()).is_some() {
                continue;
            }
            let mut members: Vec<usize> = (0..standing.len())
                .filter(|index| standing[*index].pool.as_ref() == Some(&group.name))
                .collect();
            let there = u32::try_from(members.len()).unwrap_or(u32::MAX);
            let may_go = |node: &Standing| !matches!(node.fate, Fate::Stays(_));
            members.retain(|index| may_go(&standing[*index]));
            // What has to go anyway goes first, then what holds the fewest pods; between equals the
            // last by name.
            members.sort_by_key(|index| {
                let Standing { name, fate, .. } = &standing[*index];
                let stays = !matches!(fate, Fate::Leaves(_));
                (stays, running(demand, name), std::cmp::Reverse(name.clone()))
            });
            let (least, _) = bounds(group, self.observed);
            let above =
                |size: u32| usize::try_from(there.saturating_sub(size)).unwrap_or(usize::MAX);
            let (surplus, spare) = (above(group.max.max(least)), above(least));
            for (turn, index) in members.into_iter().enumerate() {
                let node = &mut standing[index];
                if turn < surplus {
                    node.fate = Fate::Leaves(RetireReason::Surplus { declared: group.max, there });
                } else if turn >= spare {
                    let by = BlockReason::GroupMinimum { minimum: least };
                    node.fate = Fate::Stays(KeepReason::Blocked { by });
                }
            }
        }
    }
}

/// Planned pods that run on a node now.
fn running(demand: &Demand, name: &NodeName) -> u32 {
    let here = demand
        .groups
        .iter()
        .map(|group| group.running.get(name).copied().unwrap_or(0).min(group.counts.planned));
    here.fold(0, u32::saturating_add)
}

/// Keys of labels that Karpenter gives to the nodes that it makes, and nobody to members of groups.
pub(super) fn is_karpenters(key: &str) -> bool {
    key.split_once('/').is_some_and(|(domain, _)| {
        domain == "karpenter.sh" || domain == "karpenter.k8s.aws" || domain == "fleetwright.dev"
    })
}

/// What is not known of the next member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Open {
    /// Its zone.
    pub zone: bool,
    /// Its type.
    pub kind: bool,
}

/// Returns what is not known of the next member of a group with so many types and zones.
pub(super) fn open(types: &[crate::ids::InstanceTypeName], zones: usize) -> Open {
    let types: BTreeSet<_> = types.iter().collect();
    Open { zone: zones != 1, kind: types.len() > 1 }
}
