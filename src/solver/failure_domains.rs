//! Failure domains: the maximum share of a workload, or of all pods, on one node or in one zone of
//! a pool.
//!
//! kube-scheduler does not know these limits. The solver therefore chooses nodes with which the
//! scheduler satisfies them anyway. The packing treats them as topology rules, and a scheduling
//! order that exceeds one fails the simulation. Invariants: a limit makes no pod unschedulable,
//! running pods are not moved for a limit, and a limit that is not met is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::existing_node::{ExistingNode, zone_of};
use super::offer::Offer;
use super::problem::Placements;
use super::target_fleet::NodeRef;
use super::topology::{InterPodTerm, TermKind, TopologyInput, is_placeable};
use crate::demand::PodGroup;
use crate::model::desired::{FailureDomains, MaxShares};
use crate::model::ids::{NodeName, PoolName, WorkloadId, ZoneName};
use crate::model::reason::{DomainKind, ExceededLimit};
use crate::model::requirement::key;

/// 100 %, in thousandths of a percent.
const WHOLE: u64 = 100_000;

/// The limits of all pools.
#[derive(Debug, Clone, Copy)]
pub(super) struct FailureDomainLimits<'a>(&'a BTreeMap<PoolName, FailureDomains>);

static NONE: BTreeMap<PoolName, FailureDomains> = BTreeMap::new();

/// The pool and zone of a node.
type PoolAndZone<'a> = (&'a PoolName, Option<ZoneName>);

/// Nodes and offers that locate placements.
#[derive(Clone, Copy)]
pub(super) struct PlacementMap<'a> {
    pub existing: &'a [ExistingNode],
    pub offers: &'a [Offer],
    /// The offer of each new node.
    pub chosen: &'a [usize],
}

impl<'a> PlacementMap<'a> {
    /// Returns the location of each node with pods. Nodes without a pool have none.
    fn locations(&self, placements: &'a Placements) -> BTreeMap<&'a NodeRef, PoolAndZone<'a>> {
        let by_name: BTreeMap<&NodeName, &ExistingNode> =
            self.existing.iter().map(|node| (&node.name, node)).collect();
        let nodes: BTreeSet<&NodeRef> = placements.values().flat_map(BTreeMap::keys).collect();
        let location = |node_ref: &'a NodeRef| match node_ref {
            NodeRef::Existing(name) => {
                let node = by_name.get(name)?;
                Some((node_ref, (node.pool.as_ref()?, zone_of(&node.labels).map(ZoneName::from))))
            }
            NodeRef::Launch(index) => {
                let node = &self.offers[*self.chosen.get(*index)?].node;
                Some((node_ref, (&node.pool, Some(node.zone.clone()))))
            }
        };
        nodes.into_iter().filter_map(location).collect()
    }
}

/// A failure domain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum NodeOrZone<'a> {
    Node(&'a NodeRef),
    Zone(ZoneName),
}

/// Pod counts by group.
type PodsByGroup = BTreeMap<usize, u32>;

/// Pods of a group on one node.
#[derive(Clone)]
struct PlacedPods<'a> {
    group: usize,
    node: &'a NodeRef,
    zone: Option<ZoneName>,
    count: u32,
}

/// One limit and its pods.
struct LimitedPods<'a> {
    pool: &'a PoolName,
    /// The workload, or `None` for all pods.
    workload: Option<&'a WorkloadId>,
    kind: DomainKind,
    /// Total number of pods that the share refers to.
    of: u32,
    /// Maximum pods in one domain.
    most: u32,
    pods: BTreeMap<NodeOrZone<'a>, PodsByGroup>,
}

impl<'a> FailureDomainLimits<'a> {
    pub(super) fn new(limits: &'a BTreeMap<PoolName, FailureDomains>) -> Self {
        Self(limits)
    }

    pub(super) fn none() -> Self {
        Self(&NONE)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns the limits as topology terms for the packing. `from` is the first unused set number.
    ///
    /// A term is not specific to a pool. Pods that may run in a limited pool are packed by its
    /// limits in every pool.
    pub(super) fn spread_terms(self, input: TopologyInput, from: usize) -> Vec<InterPodTerm> {
        let mut terms = Vec::new();
        let mut set = from;
        for (pool, limits) in self.0 {
            let admitted: Vec<usize> = (0..input.groups.len())
                .filter(|index| {
                    is_placeable(&input.groups[*index]) && pool_admits(input, pool, *index)
                })
                .collect();
            let mut by_workload: BTreeMap<&WorkloadId, Vec<usize>> = BTreeMap::new();
            for group in &admitted {
                by_workload.entry(&input.groups[*group].workload).or_default().push(*group);
            }
            let workloads = by_workload.into_values().map(|groups| (limits.workload, groups));
            for (shares, members) in workloads.chain([(limits.pods, admitted)]) {
                let planned = |group: &usize| input.groups[*group].counts.planned;
                let pods = members.iter().map(planned).fold(0, u32::saturating_add);
                let members: Rc<[usize]> = members.into();
                for (key, kind) in term_kinds(shares, pods) {
                    let term = |owner: &usize| InterPodTerm {
                        owner: *owner,
                        key: key.into(),
                        members: Rc::clone(&members),
                        member_set: set,
                        kind,
                    };
                    terms.extend(members.iter().map(term));
                    set += 1;
                }
            }
        }
        terms
    }

    /// Returns the newly placed pods, by group, that exceed a limit.
    ///
    /// Excess that further nodes cannot reduce is not included: running pods, and zones that exceed
    /// the limit because the pool has too few zones.
    pub(super) fn excess_pods(
        self,
        placements: &Placements,
        staying: &Placements,
        groups: &[PodGroup],
        map: PlacementMap,
    ) -> BTreeMap<usize, u32> {
        let mut excess: BTreeMap<usize, u32> = BTreeMap::new();
        for limited in self.limited_pods(placements, groups, map) {
            let most = limited.attainable_max(map.offers);
            for (domain, pods) in &limited.pods {
                let mut over = pods.values().sum::<u32>().saturating_sub(most);
                for (group, count) in pods {
                    let arrived = count.saturating_sub(staying_pods(staying, *group, domain, map));
                    let moves = arrived.min(over);
                    over -= moves;
                    let pods = excess.entry(*group).or_insert(0);
                    *pods = (*pods).max(moves);
                }
            }
        }
        excess.retain(|_, pods| *pods > 0);
        excess
    }

    /// Returns the limits that `placements` exceed, each with the count of its largest domain.
    pub(super) fn exceeded(
        self,
        placements: &Placements,
        groups: &[PodGroup],
        map: PlacementMap,
    ) -> Vec<ExceededLimit> {
        let worst = |limited: LimitedPods| {
            let holds = limited.pods.values().map(|pods| pods.values().sum::<u32>()).max()?;
            (holds > limited.most).then(|| ExceededLimit {
                pool: limited.pool.clone(),
                workload: limited.workload.cloned(),
                domain: limited.kind,
                holds,
                of: limited.of,
                most: limited.most,
            })
        };
        self.limited_pods(placements, groups, map).into_iter().filter_map(worst).collect()
    }

    /// Returns each limit with its pods by domain.
    fn limited_pods<'m>(
        self,
        placements: &'m Placements,
        groups: &'m [PodGroup],
        map: PlacementMap<'m>,
    ) -> Vec<LimitedPods<'m>>
    where
        'a: 'm,
    {
        let locations = map.locations(placements);
        let mut pods_of_workload: BTreeMap<&WorkloadId, u32> = BTreeMap::new();
        for (group, nodes) in placements {
            *pods_of_workload.entry(&groups[*group].workload).or_insert(0) +=
                nodes.values().sum::<u32>();
        }
        let mut limited = Vec::new();
        for (pool, limits) in self.0 {
            let mut in_pool: Vec<PlacedPods> = Vec::new();
            for (group, nodes) in placements {
                for (node, count) in nodes {
                    if let Some((node_pool, zone)) = locations.get(node)
                        && *node_pool == pool
                    {
                        let (group, zone, count) = (*group, zone.clone(), *count);
                        in_pool.push(PlacedPods { group, node, zone, count });
                    }
                }
            }
            for (workload, total) in &pods_of_workload {
                let pods: Vec<PlacedPods> = in_pool
                    .iter()
                    .filter(|pods| groups[pods.group].workload == **workload)
                    .cloned()
                    .collect();
                if !pods.is_empty() {
                    let shares = limits.workload;
                    limited.extend(LimitedPods::by_share(
                        pool,
                        Some(*workload),
                        shares,
                        *total,
                        &pods,
                    ));
                }
            }
            let total = in_pool.iter().map(|pods| pods.count).sum();
            limited.extend(LimitedPods::by_share(pool, None, limits.pods, total, &in_pool));
        }
        limited
    }
}

impl<'a> LimitedPods<'a> {
    /// Returns the limits of `shares`, each with its pods. The shares refer to `of` pods.
    fn by_share(
        pool: &'a PoolName,
        workload: Option<&'a WorkloadId>,
        shares: MaxShares,
        of: u32,
        placed: &[PlacedPods<'a>],
    ) -> Vec<Self> {
        let mut limited = Vec::new();
        for (kind, share) in [(DomainKind::Node, shares.node), (DomainKind::Zone, shares.zone)] {
            let Some(share) = share else { continue };
            let mut pods: BTreeMap<NodeOrZone, PodsByGroup> = BTreeMap::new();
            for PlacedPods { group, node, zone, count } in placed {
                let domain = match kind {
                    DomainKind::Node => Some(NodeOrZone::Node(node)),
                    DomainKind::Zone => zone.clone().map(NodeOrZone::Zone),
                };
                if let Some(domain) = domain {
                    *pods.entry(domain).or_default().entry(*group).or_insert(0) += count;
                }
            }
            limited.push(Self { pool, workload, kind, of, most: max_pods(share, of), pods });
        }
        limited
    }
}

impl LimitedPods<'_> {
    /// Returns the maximum pods per domain that further nodes could achieve.
    fn attainable_max(&self, offers: &[Offer]) -> u32 {
        match self.kind {
            DomainKind::Node => self.most,
            DomainKind::Zone => {
                let of_pool = offers.iter().filter(|offer| offer.node.pool == *self.pool);
                let zones: BTreeSet<&ZoneName> = of_pool.map(|offer| &offer.node.zone).collect();
                let zones = u32::try_from(zones.len()).unwrap_or(u32::MAX).max(1);
                self.most.max(self.of.div_ceil(zones))
            }
        }
    }
}

/// Returns the maximum pods in one domain. It is at least one, because a pod cannot be divided.
fn max_pods(share: u32, of: u32) -> u32 {
    let most = u64::from(of) * u64::from(share) / WHOLE;
    u32::try_from(most).unwrap_or(u32::MAX).max(1)
}

/// Returns the topology constraints that approximate `shares`: a maximum per node, and an even
/// spread over zones.
fn term_kinds(shares: MaxShares, pods: u32) -> Vec<(&'static str, TermKind)> {
    let spread = |max_skew| TermKind::Spread {
        max_skew,
        min_domains: 1,
        honors_affinity: true,
        honors_taints: true,
    };
    let node = shares.node.map(|share| (key::HOSTNAME, max_pods(share, pods)));
    let zone = shares.zone.map(|share| (key::ZONE, max_pods(share, pods)));
    let mut kinds = Vec::new();
    kinds.extend(node.filter(|(_, most)| *most < pods).map(|(key, most)| (key, spread(most))));
    kinds.extend(zone.filter(|(_, most)| *most < pods).map(|(key, _)| (key, spread(1))));
    kinds
}

/// Returns true if some node of the pool admits the pods, regardless of room.
fn pool_admits(input: TopologyInput, pool: &PoolName, group: usize) -> bool {
    let mut offers = input.offers.iter().zip(input.admission.of_group(group));
    offers.any(|(offer, admitted)| *admitted && offer.node.pool == *pool)
}

/// Returns the pods of the group that run in a domain and stay there.
fn staying_pods(staying: &Placements, group: usize, domain: &NodeOrZone, map: PlacementMap) -> u32 {
    let in_zone = |name: &NodeName, zone: &ZoneName| {
        let node = map.existing.iter().find(|node| node.name == *name);
        node.and_then(|node| zone_of(&node.labels)).is_some_and(|of| of == zone.as_str())
    };
    let is_there = |node_ref: &NodeRef| match (domain, node_ref) {
        (NodeOrZone::Node(domain), node_ref) => *domain == node_ref,
        (NodeOrZone::Zone(zone), NodeRef::Existing(name)) => in_zone(name, zone),
        (NodeOrZone::Zone(_), NodeRef::Launch(_)) => false,
    };
    let places = staying.get(&group).into_iter().flatten();
    places.filter(|(node_ref, _)| is_there(node_ref)).map(|(_, count)| *count).sum()
}
