//! Failure domains: how much of a workload, or of all pods, one node or one zone of a pool may hold.
//!
//! kube-scheduler knows nothing of these limits, so that nodes are chosen with which it keeps them by
//! itself: the packing takes them for rules of the pods, and a run of the rehearsal that goes beyond
//! one counts as failed. Invariants: a limit leaves no pod without a place; pods that run beyond one
//! are not moved for it; where a limit is not reached, that is said.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::allot::{Field, Kind, Relation, is_placeable};
use super::offer::{Offer, admits};
use super::rehearse::Placements;
use super::standing::{Standing, zone_of};
use super::target::{Beyond, DomainKind, Place};
use crate::demand::PodGroup;
use crate::ids::{NodeName, PoolName, WorkloadId, ZoneName};
use crate::manifest::{FailureDomains, Shares};
use crate::requirement::key;

/// A whole, in thousandths of a percent.
const WHOLE: u64 = 100_000;

/// The limits of all pools.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits<'a>(&'a BTreeMap<PoolName, FailureDomains>);

/// No limits.
static NONE: BTreeMap<PoolName, FailureDomains> = BTreeMap::new();

/// Where a place is: its pool and its zone.
type Whereabouts<'a> = (&'a PoolName, Option<ZoneName>);

/// What is there to ask where places are.
#[derive(Clone, Copy)]
pub(super) struct Map<'a> {
    pub standing: &'a [Standing],
    pub offers: &'a [Offer],
    /// The offer of each new node.
    pub chosen: &'a [usize],
}

impl<'a> Map<'a> {
    /// Returns where each place with pods is; a node without a pool is in none.
    fn whereabouts(&self, placements: &'a Placements) -> BTreeMap<&'a Place, Whereabouts<'a>> {
        let by_name: BTreeMap<&NodeName, &Standing> =
            self.standing.iter().map(|node| (&node.name, node)).collect();
        let places: BTreeSet<&Place> = placements.values().flat_map(BTreeMap::keys).collect();
        let of = |place: &'a Place| match place {
            Place::Node(name) => {
                let node = by_name.get(name)?;
                Some((place, (node.pool.as_ref()?, zone_of(&node.labels).map(ZoneName::from))))
            }
            Place::Launch(index) => {
                let node = &self.offers[*self.chosen.get(*index)?].node;
                Some((place, (&node.pool, Some(node.zone.clone()))))
            }
        };
        places.into_iter().filter_map(of).collect()
    }
}

/// A node or a zone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Domain<'a> {
    Node(&'a Place),
    Zone(ZoneName),
}

/// Pods of several groups in one domain.
type Held = BTreeMap<usize, u32>;

/// One limit, and the pods that it is about.
struct Limited<'a> {
    pool: &'a PoolName,
    /// The workload, or `None` for all pods.
    workload: Option<&'a WorkloadId>,
    kind: DomainKind,
    /// All pods that the share is of.
    of: u32,
    /// The most pods that a domain may hold.
    most: u32,
    held: BTreeMap<Domain<'a>, Held>,
}

impl<'a> Limits<'a> {
    pub(super) fn new(limits: &'a BTreeMap<PoolName, FailureDomains>) -> Self {
        Self(limits)
    }

    /// Returns no limits.
    pub(super) fn none() -> Self {
        Self(&NONE)
    }

    pub(super) fn are_none(self) -> bool {
        self.0.is_empty()
    }

    /// Returns the limits as rules between pods, for whatever packs them; `from` is the number of the
    /// first set of groups that is free.
    ///
    /// A rule knows no pools: pods that may run in a limited pool are packed by its limits in any.
    pub(super) fn relations(self, field: Field, from: usize) -> Vec<Relation> {
        let mut relations = Vec::new();
        let mut set = from;
        for (pool, limits) in self.0 {
            let groups = field.groups.iter().enumerate();
            let may = |(index, group): (usize, &PodGroup)| {
                (is_placeable(group) && is_admitted(field.offers, pool, group)).then_some(index)
            };
            let admitted: Vec<usize> = groups.filter_map(may).collect();
            let mut by_workload: BTreeMap<&WorkloadId, Vec<usize>> = BTreeMap::new();
            for group in &admitted {
                by_workload.entry(&field.groups[*group].workload).or_default().push(*group);
            }
            let workloads = by_workload.into_values().map(|groups| (limits.workload, groups));
            for (shares, members) in workloads.chain([(limits.pods, admitted)]) {
                let planned = |group: &usize| field.groups[*group].counts.planned;
                let pods = members.iter().map(planned).fold(0, u32::saturating_add);
                let members: Rc<[usize]> = members.into();
                for (key, kind) in kinds(shares, pods) {
                    let relation = |carrier: &usize| Relation {
                        carrier: *carrier,
                        key: key.into(),
                        members: Rc::clone(&members),
                        set,
                        kind,
                    };
                    relations.extend(members.iter().map(relation));
                    set += 1;
                }
            }
        }
        relations
    }

    /// Returns the pods, by group, that came to a domain which holds too many then.
    ///
    /// What more nodes cannot mend is none of it: pods that run there already, and zones that hold
    /// too many because the pool has too few of them.
    pub(super) fn too_many(
        self,
        (placements, staying): (&Placements, &Placements),
        groups: &[PodGroup],
        map: Map,
    ) -> BTreeMap<usize, u32> {
        let mut too_many: BTreeMap<usize, u32> = BTreeMap::new();
        for limited in self.limited(placements, groups, map) {
            let most = limited.attainable(map.offers);
            for (domain, held) in &limited.held {
                let mut over = held.values().sum::<u32>().saturating_sub(most);
                for (group, count) in held {
                    let came = count.saturating_sub(stays(staying, *group, domain, map));
                    let moves = came.min(over);
                    over -= moves;
                    let pods = too_many.entry(*group).or_insert(0);
                    *pods = (*pods).max(moves);
                }
            }
        }
        too_many.retain(|_, pods| *pods > 0);
        too_many
    }

    /// Returns the limits that `placements` goes beyond, each with the domain that holds most.
    pub(super) fn beyond(
        self,
        placements: &Placements,
        groups: &[PodGroup],
        map: Map,
    ) -> Vec<Beyond> {
        let worst = |limited: Limited| {
            let holds = limited.held.values().map(|held| held.values().sum::<u32>()).max()?;
            (holds > limited.most).then(|| Beyond {
                pool: limited.pool.clone(),
                workload: limited.workload.cloned(),
                domain: limited.kind,
                holds,
                of: limited.of,
                most: limited.most,
            })
        };
        self.limited(placements, groups, map).into_iter().filter_map(worst).collect()
    }

    /// Returns each limit with the pods that are where.
    fn limited<'m>(
        self,
        placements: &'m Placements,
        groups: &'m [PodGroup],
        map: Map<'m>,
    ) -> Vec<Limited<'m>>
    where
        'a: 'm,
    {
        let at = map.whereabouts(placements);
        let mut of_workload: BTreeMap<&WorkloadId, u32> = BTreeMap::new();
        for (group, places) in placements {
            *of_workload.entry(&groups[*group].workload).or_insert(0) +=
                places.values().sum::<u32>();
        }
        let mut all = Vec::new();
        for (pool, limits) in self.0 {
            let here = placements.iter().flat_map(|(group, places)| {
                places.iter().map(move |(place, count)| (*group, place, *count))
            });
            let here = here.filter(|(_, place, _)| at.get(place).is_some_and(|(p, _)| *p == pool));
            let here: Vec<(usize, &Place, u32)> = here.collect();
            let zone = |place: &Place| at.get(place).and_then(|(_, zone)| zone.clone());
            let mut limit =
                |workload, shares: Shares, of: u32, pods: &[(usize, &'m Place, u32)]| {
                    for (kind, share) in
                        [(DomainKind::Node, shares.node), (DomainKind::Zone, shares.zone)]
                    {
                        let Some(share) = share else { continue };
                        let mut held: BTreeMap<Domain, Held> = BTreeMap::new();
                        for (group, place, count) in pods {
                            let domain = match kind {
                                DomainKind::Node => Some(Domain::Node(place)),
                                DomainKind::Zone => zone(place).map(Domain::Zone),
                            };
                            let Some(domain) = domain else { continue };
                            *held.entry(domain).or_default().entry(*group).or_insert(0) += count;
                        }
                        all.push(Limited { pool, workload, kind, of, most: most(share, of), held });
                    }
                };
            for (workload, of) in &of_workload {
                let theirs: Vec<(usize, &Place, u32)> = here
                    .iter()
                    .filter(|pod| groups[pod.0].workload == **workload)
                    .copied()
                    .collect();
                if !theirs.is_empty() {
                    limit(Some(*workload), limits.workload, *of, &theirs);
                }
            }
            limit(None, limits.pods, here.iter().map(|pod| pod.2).sum(), &here);
        }
        all
    }
}

impl Limited<'_> {
    /// The most pods of a domain that more nodes could bring about.
    fn attainable(&self, offers: &[Offer]) -> u32 {
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

/// Returns how many pods may be in one domain: at least one, since no domain can hold less of what
/// is there.
fn most(share: u32, of: u32) -> u32 {
    let most = u64::from(of) * u64::from(share) / WHOLE;
    u32::try_from(most).unwrap_or(u32::MAX).max(1)
}

/// Returns the rules that come closest to `shares`: so many on a node, and evenly over zones.
fn kinds(shares: Shares, pods: u32) -> Vec<(&'static str, Kind)> {
    let spread = |max_skew| Kind::Spread {
        max_skew,
        min_domains: 1,
        honors_affinity: true,
        honors_taints: true,
    };
    let node = shares.node.map(|share| (key::HOSTNAME, most(share, pods)));
    let zone = shares.zone.map(|share| (key::ZONE, most(share, pods)));
    let mut kinds = Vec::new();
    kinds.extend(node.filter(|(_, most)| *most < pods).map(|(key, most)| (key, spread(most))));
    kinds.extend(zone.filter(|(_, most)| *most < pods).map(|(key, _)| (key, spread(1))));
    kinds
}

/// Returns whether some node of the pool would admit the pods, room aside.
fn is_admitted(offers: &[Offer], pool: &PoolName, group: &PodGroup) -> bool {
    let of_pool = offers.iter().map(|offer| &offer.node).filter(|node| node.pool == *pool);
    of_pool.into_iter().any(|node| admits(&group.shape, &node.labels, &node.taints))
}

/// Returns how many pods of the group run in a domain and stay there.
fn stays(staying: &Placements, group: usize, domain: &Domain, map: Map) -> u32 {
    let in_zone = |name: &NodeName, zone: &ZoneName| {
        let node = map.standing.iter().find(|node| node.name == *name);
        node.and_then(|node| zone_of(&node.labels)).is_some_and(|of| of == zone.as_str())
    };
    let is_there = |place: &Place| match (domain, place) {
        (Domain::Node(domain), place) => *domain == place,
        (Domain::Zone(zone), Place::Node(name)) => in_zone(name, zone),
        (Domain::Zone(_), Place::Launch(_)) => false,
    };
    let places = staying.get(&group).into_iter().flatten();
    places.filter(|(place, _)| is_there(place)).map(|(_, count)| *count).sum()
}
