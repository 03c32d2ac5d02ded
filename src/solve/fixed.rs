//! Pools with a fixed number of nodes (`replicas`): which are missing, which are too many, and
//! which is replaced next.
//!
//! Decided before any pod is placed, and then given to the search as nodes that stand: pods use them
//! like any other, and never add to them.
//!
//! * Missing nodes are of the cheapest offering, each in the zone where the pool has the fewest.
//! * Surplus nodes go: first one that must be replaced anyway, then one that runs nothing, then
//!   whichever moves the fewest pods. They go, and so does what is replaced, where some of their pods
//!   have no other place as well: the number of nodes is declared, and the plan names those pods.
//! * A node that must be replaced (drift, age, `--replace`) is replaced one at a time: the new one
//!   comes first, so that `limits.nodes` needs room for one more. This is the one case, beside
//!   budgets, in which the plan after a plan is not empty; the nodes that wait say so.
//! * `limits.nodes` below `replicas` wins.
//!
//! Source: karpenter core, `pkg/controllers/static`, `pkg/controllers/disruption/staticdrift.go`.
//! On purpose otherwise than there: an instance that did not become a node in time does not count,
//! so that another takes its place.

use std::collections::{BTreeMap, BTreeSet};

use super::allot::Ties;
use super::assemble::Places;
use super::offer::{Offer, Offers, admits};
use super::stand_ins::Candidates;
use super::standing::{Circumstances, Fate, Leave, Standing, zone_of};
use super::target::{BlockReason, KeepReason, Launch, LaunchReason, NewNode, Place, RetireReason};
use super::{stand_ins, variety};
use crate::demand::{PodGroup, PodShape};
use crate::fleet::Observed;
use crate::ids::{LabelKey, NodeName, PoolName, ReservationId};
use crate::manifest::Pool;
use crate::units::Resources;

/// The nodes that pools of a fixed size launch.
#[derive(Default)]
pub(super) struct FixedNodes {
    launches: Vec<FixedLaunch>,
    /// Machines that each reservation has left.
    supply: BTreeMap<ReservationId, u32>,
    /// Distinct values that each pool demands.
    demands: BTreeMap<PoolName, BTreeMap<LabelKey, u32>>,
}

struct FixedLaunch {
    name: NodeName,
    offer: Offer,
    reason: LaunchReason,
}

impl FixedNodes {
    /// Decides on the nodes of every pool with a fixed number, and tells each that is there what
    /// becomes of it.
    pub(super) fn decide(
        circumstances: &Circumstances,
        observed: &Observed,
        offers: &Offers,
        standing: &mut [Standing],
    ) -> Self {
        let supply = observed.reservations.iter().map(|(id, r)| (id.clone(), r.available));
        let mut fixed = Self { supply: supply.collect(), ..Self::default() };
        for pool in circumstances.desired.pools.values() {
            let Some(declared) = pool.replicas else { continue };
            fixed.demands.insert(pool.name.clone(), variety::demands(pool));
            let there: Vec<usize> = (0..standing.len())
                .filter(|i| standing[*i].pool.as_ref() == Some(&pool.name))
                .filter(|i| {
                    let node = &standing[*i];
                    node.schedulable || observed.nodes.contains_key(&node.name)
                })
                .collect();
            let offers = offers.fixed.get(&pool.name).map(Vec::as_slice).unwrap_or_default();
            let mut of_pool = OfPool {
                pool,
                declared,
                there,
                offers,
                circumstances,
                standing,
                fixed: &mut fixed,
            };
            of_pool.decide();
        }
        fixed
    }

    /// Returns the nodes to launch, as nodes that stand.
    pub(super) fn as_standing(&self) -> impl Iterator<Item = Standing> + '_ {
        self.launches.iter().map(|launch| {
            let fate = Fate::Stays(KeepReason::Blocked { by: BlockReason::StaticPool });
            Standing::planned(launch.name.clone(), &launch.offer, fate)
        })
    }

    /// Makes launches of them, after those that there are, and says so wherever pods are placed.
    pub(super) fn launch(
        &self,
        places: &mut Places,
        launches: &mut Vec<Launch>,
        (groups, ties): (&[PodGroup], &Ties),
        offers: &Offers,
    ) {
        let first = launches.len();
        let index: BTreeMap<&NodeName, usize> =
            self.launches.iter().enumerate().map(|(at, l)| (&l.name, first + at)).collect();
        for on in places.placements.values_mut() {
            *on = std::mem::take(on)
                .into_iter()
                .map(|(place, count)| {
                    let launch = match &place {
                        Place::Node(name) => index.get(name).copied(),
                        Place::Launch(_) => None,
                    };
                    (launch.map_or(place, Place::Launch), count)
                })
                .collect();
        }
        for (at, launch) in self.launches.iter().enumerate() {
            let place = Place::Launch(first + at);
            let here =
                places.placements.iter().filter_map(|(group, on)| Some((*group, on.get(&place)?)));
            let here: Vec<(usize, u32)> = here.map(|(group, count)| (group, *count)).collect();
            let pods = here.iter().map(|(group, count)| (&*groups[*group].shape, *count)).collect();
            let fixed = here.iter().flat_map(|(group, _)| &ties[*group]).collect();
            let on_it = OnIt { pods, fixed };
            launches.push(Launch {
                node: self.with_alternatives(launch, offers, &on_it),
                reason: launch.reason.clone(),
                batch: None,
                rejected: Vec::new(),
            });
        }
    }

    fn with_alternatives(
        &self,
        launch: &FixedLaunch,
        offers: &Offers,
        OnIt { pods, fixed }: &OnIt,
    ) -> NewNode {
        let mut node = launch.offer.node.clone();
        let stays: Vec<_> =
            fixed.iter().map(|key| (*key, node.labels.get(*key).cloned())).collect();
        let keeps = |offer: &Offer| {
            stays.iter().all(|(key, is)| offer.node.labels.get(*key) == is.as_ref())
        };
        let asked = pods.iter().fold(Resources::default(), |sum, (shape, count)| {
            sum.plus(&shape.requests.times(i64::from(*count)))
        });
        let holds = |offer: &&Offer| {
            let other = &offer.node;
            let admits = |shape: &PodShape| admits(shape, &other.labels, &other.taints);
            other.reservation.is_none()
                && other.open_labels == node.open_labels
                && asked.fits(&offer.room)
                && pods.iter().all(|(shape, _)| admits(shape))
        };
        let of_pool = offers.fixed.get(&node.pool).map(Vec::as_slice).unwrap_or_default();
        let candidates: Vec<&Offer> = of_pool.iter().filter(holds).collect();
        let demands = self.demands.get(&node.pool).cloned().unwrap_or_default();
        let candidates = Candidates { offers: &candidates, keeps: &keeps };
        stand_ins::choose(&mut node, &candidates, &demands);
        node
    }

    /// Returns whether a node is one of those to launch.
    pub(super) fn contains(&self, name: &NodeName) -> bool {
        self.launches.iter().any(|launch| launch.name == *name)
    }

    /// Takes the cheapest offer that is left, in the zone with the fewest nodes of the pool.
    fn take(&mut self, offers: &[Offer], zones: &mut BTreeMap<String, u32>) -> Option<Offer> {
        let is_left = |offer: &&Offer| {
            let reservation = offer.node.reservation.as_ref();
            reservation.is_none_or(|id| self.supply.get(id).is_some_and(|left| *left > 0))
        };
        let cheapest = &offers.iter().find(is_left)?.node;
        let same = |offer: &&Offer| {
            let node = &offer.node;
            (&node.instance_type, node.capacity_type)
                == (&cheapest.instance_type, cheapest.capacity_type)
        };
        let count = |offer: &&Offer| zones.get(offer.node.zone.as_str()).copied().unwrap_or(0);
        // Of several zones with as many nodes the first, which is the cheapest, is taken.
        let chosen = offers.iter().filter(is_left).filter(same).min_by_key(count)?.clone();
        *zones.entry(chosen.node.zone.to_string()).or_insert(0) += 1;
        if let Some(left) = chosen.node.reservation.as_ref().and_then(|id| self.supply.get_mut(id))
        {
            *left -= 1;
        }
        Some(chosen)
    }

    fn add(&mut self, pool: &PoolName, offer: Offer, reason: LaunchReason) {
        let number = self.launches.len();
        let name = format!("fixed/{pool}/{number}").as_str().into();
        self.launches.push(FixedLaunch { name, offer, reason });
    }
}

/// The pods of a node to launch, and the keys of which they tie it to one value.
struct OnIt<'a> {
    pods: Vec<(&'a PodShape, u32)>,
    fixed: BTreeSet<&'a LabelKey>,
}

/// One pool and its nodes.
struct OfPool<'a> {
    pool: &'a Pool,
    declared: u32,
    /// Its nodes, among `standing`.
    there: Vec<usize>,
    offers: &'a [Offer],
    circumstances: &'a Circumstances<'a>,
    standing: &'a mut [Standing],
    fixed: &'a mut FixedNodes,
}

impl OfPool<'_> {
    fn decide(&mut self) {
        let there = u32::try_from(self.there.len()).unwrap_or(u32::MAX);
        self.shrink(there);
        let mut zones = BTreeMap::new();
        for index in &self.there {
            let node = &self.standing[*index];
            if let (Some(zone), false) = (zone_of(&node.labels), leaves(node)) {
                *zones.entry(zone.to_owned()).or_insert(0) += 1;
            }
        }
        let limit = self.pool.limits.nodes.unwrap_or(u32::MAX);
        let mut count = there;
        while count < self.declared.min(limit) {
            let Some(offer) = self.fixed.take(self.offers, &mut zones) else { break };
            let reason = LaunchReason::Static { declared: self.declared, there };
            self.fixed.add(&self.pool.name, offer, reason);
            count += 1;
        }
        self.replace(count, limit, &mut zones);
    }

    /// Has surplus nodes leave.
    fn shrink(&mut self, there: u32) {
        let surplus = usize::try_from(there.saturating_sub(self.declared)).unwrap_or(usize::MAX);
        let mut may_go: Vec<usize> =
            self.there.iter().copied().filter(|i| !is_blocked(&self.standing[*i])).collect();
        may_go.sort_by_key(|index| {
            let node = &self.standing[*index];
            let running = self.running(&node.name);
            (!leaves(node), running, std::cmp::Reverse(node.name.clone()))
        });
        may_go.truncate(surplus);
        for index in &may_go {
            let node = &mut self.standing[*index];
            node.leave = Leave::Anyway;
            if !leaves(node) {
                let reason = RetireReason::Surplus { declared: self.declared, there };
                node.fate = Fate::Leaves(reason);
            }
        }
        self.there.retain(|index| !may_go.contains(index));
    }

    /// Replaces one of the nodes that must be; the others wait.
    fn replace(&mut self, count: u32, limit: u32, zones: &mut BTreeMap<String, u32>) {
        let mut leaving: Vec<usize> =
            self.there.iter().copied().filter(|i| leaves(&self.standing[*i])).collect();
        leaving.sort_by_key(|index| {
            let requested =
                matches!(self.standing[*index].fate, Fate::Leaves(RetireReason::Requested));
            (!requested, self.standing[*index].name.clone())
        });
        let Some((first, rest)) = leaving.split_first() else { return };
        let (wait, by) = if count >= limit {
            (leaving.as_slice(), BlockReason::NodeLimit { limit })
        } else if let Some(offer) = self.fixed.take(self.offers, zones) {
            self.replace_by(*first, offer);
            (rest, BlockReason::InTurn)
        } else {
            let what = "its pool can make no node in its place".to_owned();
            (leaving.as_slice(), BlockReason::Unknown { what })
        };
        for index in wait {
            let by = by.clone();
            self.standing[*index].fate = Fate::Stays(KeepReason::Blocked { by });
        }
    }

    fn replace_by(&mut self, index: usize, offer: Offer) {
        let node = &self.standing[index];
        if let Fate::Leaves(because) = &node.fate {
            let because = Box::new(because.clone());
            let reason = LaunchReason::Replacement { of: node.name.as_str().into(), because };
            self.fixed.add(&self.pool.name, offer, reason);
            self.standing[index].leave = Leave::Anyway;
        }
    }

    /// Planned pods that run on a node now.
    fn running(&self, name: &NodeName) -> u32 {
        let groups = self.circumstances.demand.groups.iter();
        let here = groups.map(|g| g.running.get(name).copied().unwrap_or(0).min(g.counts.planned));
        here.fold(0, u32::saturating_add)
    }
}

fn leaves(node: &Standing) -> bool {
    matches!(node.fate, Fate::Leaves(_))
}

/// Returns whether something other than the pool's size forbids to touch the node.
fn is_blocked(node: &Standing) -> bool {
    let by_size = KeepReason::Blocked { by: BlockReason::StaticPool };
    matches!(&node.fate, Fate::Stays(reason) if *reason != by_size)
}
