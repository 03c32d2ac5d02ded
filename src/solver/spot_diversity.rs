//! Distributes the Spot nodes of a pool over offerings (instance type and zone).
//!
//! EC2 reclaims Spot instances by offering, so that equal nodes may end together. A pool with at
//! least [`NODES_MIN`] Spot nodes has at most a share of them in one offering, as far as offerings
//! within the price of an alternative hold the pods. Running nodes count and are not moved.
//!
//! The limit covers the alternatives of the launches too, because EC2 chooses among them. Each
//! offering is listed by at most as many launches as it may have nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::existing_node::{ExistingNode, zone_of};
use super::greedy_packing::PackedNode;
use super::layout::Layout;
use super::packing_model::{OfferClass, PackingModel};
use super::problem::{Problem, VerifiedFleet};
use super::repair::{is_simulated, pin_offers};
use super::simulation::Simulation;
use super::strategy::{SolvedFleet, Strategy};
use super::target_fleet::{Launch, NewNode};
use super::tie_break_sampling::passes_same_samples;
use super::work_budget::WorkBudget;
use crate::model::desired::Desired;
use crate::model::ids::{InstanceTypeName, PoolName, ZoneName};
use crate::model::market::{CapacityType, alternative_price_max};
use crate::model::reason::Alternative;
use crate::model::requirement::key;

/// Minimum number of Spot nodes of a pool for the limit to apply.
const NODES_MIN: u32 = 4;

/// 100 %, in thousandths of a percent.
const WHOLE: u64 = 100_000;

/// Maximum attempts for one kind of moves. Each failed attempt halves the number of moves.
const TRIES_MAX: usize = 4;

/// Minimum tie-break samples for any fleet, because the moves save nothing that would justify a
/// risk.
const SAMPLES_MIN: u64 = 4;

/// Maximum share of the Spot nodes of a pool in one offering.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfferingShare<'a> {
    desired: &'a Desired,
}

/// An instance type in a zone.
type SpotOffering = (InstanceTypeName, ZoneName);

/// Spot nodes of the pools that have a limit.
#[derive(Debug, Clone, Default)]
struct SpotNodes {
    by_offering: BTreeMap<PoolName, BTreeMap<SpotOffering, u32>>,
}

impl SpotNodes {
    fn add(&mut self, pool: &PoolName, offering: SpotOffering) {
        *self.by_offering.entry(pool.clone()).or_default().entry(offering).or_insert(0) += 1;
    }

    fn remove(&mut self, pool: &PoolName, offering: &SpotOffering) {
        let nodes = self.by_offering.get_mut(pool).and_then(|all| all.get_mut(offering));
        if let Some(nodes) = nodes {
            *nodes = nodes.saturating_sub(1);
        }
    }

    fn count(&self, pool: &PoolName, offering: &SpotOffering) -> u32 {
        self.by_offering.get(pool).and_then(|all| all.get(offering)).copied().unwrap_or(0)
    }

    fn total(&self, pool: &PoolName) -> u32 {
        self.by_offering.get(pool).into_iter().flat_map(BTreeMap::values).sum()
    }
}

impl<'a> OfferingShare<'a> {
    pub(super) fn new(desired: &'a Desired) -> Self {
        Self { desired }
    }

    /// Returns the maximum number of nodes in one offering, if the pool has this many Spot nodes.
    /// `None` means no limit.
    fn nodes_max(self, pool: &PoolName, nodes: u32) -> Option<u32> {
        let share = self.desired.max_offering_share?;
        let is_group = self.desired.node_groups.contains_key(pool.as_str());
        let most = u64::from(nodes) * u64::from(share) / WHOLE;
        (nodes >= NODES_MIN && !is_group).then(|| u32::try_from(most.max(1)).unwrap_or(u32::MAX))
    }

    /// Returns a message for each offering with launches above the limit.
    pub(super) fn messages(self, problem: &Problem, fleet: &VerifiedFleet) -> Vec<String> {
        let nodes = spot_nodes(problem, fleet);
        let launched: BTreeSet<(&PoolName, SpotOffering)> = fleet
            .offers
            .iter()
            .map(|offer| &problem.offers[*offer].node)
            .filter(|node| node.capacity_type.is_spot())
            .map(|node| (&node.pool, offering_of(node)))
            .collect();
        let mut messages = Vec::new();
        for (pool, offering) in launched {
            let (count, total) = (nodes.count(pool, &offering), nodes.total(pool));
            if let Some(most) = self.nodes_max(pool, total).filter(|most| count > *most) {
                let (instance_type, zone) = offering;
                messages.push(format!(
                    "pool `{pool}`: {count} of {total} Spot nodes are {instance_type} in {zone}, \
                     and `spec.spot.maxOfferingShare` allows {most}: every other offering has its \
                     share, is more than 20 % dearer, or would leave pods pending"
                ));
            }
        }
        messages
    }
}

fn offering_of(node: &NewNode) -> SpotOffering {
    (node.instance_type.clone(), node.zone.clone())
}

/// Returns the pool and offering of an existing Spot node.
fn offering_of_existing(node: &ExistingNode) -> Option<(&PoolName, SpotOffering)> {
    let label = |key: &str| Some(node.labels.get(key)?.as_str());
    (label(key::CAPACITY_TYPE)? == CapacityType::Spot.as_str()).then_some(())?;
    let offering = (label(key::INSTANCE_TYPE)?.into(), zone_of(&node.labels)?.into());
    Some((node.pool.as_ref()?, offering))
}

/// Returns the retained and the new Spot nodes.
fn spot_nodes(problem: &Problem, fleet: &VerifiedFleet) -> SpotNodes {
    let mut nodes = existing_spot_nodes(problem.existing, &fleet.layout.retained);
    for offer in &fleet.offers {
        let node = &problem.offers[*offer].node;
        if node.capacity_type.is_spot() {
            nodes.add(&node.pool, offering_of(node));
        }
    }
    nodes
}

fn existing_spot_nodes(existing: &[ExistingNode], retained: &[bool]) -> SpotNodes {
    let mut nodes = SpotNodes::default();
    for (node, _) in existing.iter().zip(retained).filter(|(_, retained)| **retained) {
        if let Some((pool, offering)) = offering_of_existing(node) {
            nodes.add(pool, offering);
        }
    }
    nodes
}

/// Moves new Spot nodes above the share of their offering to other offerings.
pub(super) struct SpotDiversity;

impl Strategy for SpotDiversity {
    fn improve(&self, simulation: &mut Simulation, current: SolvedFleet) -> SolvedFleet {
        let price = current.fleet.layout.price;
        let fleet = distribute(simulation, current.fleet);
        let baseline_price = current.baseline_price + fleet.layout.price - price;
        SolvedFleet { fleet, baseline_price, ..current }
    }
}

/// Returns the fleet with Spot nodes moved, if every scheduling order and every tie-break sample
/// still places the same pods. Moves to other instance types are tried first, because they may be
/// cheaper; moves to other zones alone change no placement.
fn distribute(simulation: &Simulation, fleet: VerifiedFleet) -> VerifiedFleet {
    let (problem, work) = (simulation.problem, &mut WorkBudget::unlimited());
    for same_type in [false, true] {
        let mut moves = moves(problem, &fleet, same_type);
        for _ in 0..TRIES_MAX {
            if moves.is_empty() {
                break;
            }
            let layout = with_moves(problem, &fleet, &moves);
            if !is_simulated(problem.groups) {
                return problem.as_packed(&layout);
            }
            let moved = simulation.simulate_excluding(&layout, fleet.unplaced.clone(), work);
            let moved = moved
                .filter(|moved| passes_same_samples(simulation, moved, &fleet, SAMPLES_MIN, work));
            if let Some(moved) = moved {
                return moved;
            }
            moves.truncate(moves.len() / 2);
        }
    }
    fleet
}

/// Returns the new Spot nodes above the share of their offering, each with its new offer: the
/// cheapest one below the share.
fn moves(problem: &Problem, fleet: &VerifiedFleet, same_type: bool) -> Vec<(usize, usize)> {
    let mut nodes = spot_nodes(problem, fleet);
    let mut limits = problem.limits_after(&fleet.layout);
    let mut moves = Vec::new();
    let new_nodes = fleet.layout.packing.new_nodes.iter().zip(&fleet.offers).enumerate();
    for (index, (node, offer)) in new_nodes.rev() {
        let new = &problem.offers[*offer].node;
        let share = problem.offering_share.nodes_max(&new.pool, nodes.total(&new.pool));
        let Some(most) = share.filter(|_| new.capacity_type.is_spot()) else { continue };
        if nodes.count(&new.pool, &offering_of(new)) <= most {
            continue;
        }
        let offer_class = problem.model.class_of_offer[*offer];
        let has_room = |other: &NewNode| nodes.count(&new.pool, &offering_of(other)) < most;
        let candidates = candidates(problem, node, *offer);
        let target = candidates.into_iter().find(|candidate| {
            let other = &problem.offers[*candidate].node;
            has_room(other)
                && (!same_type || other.instance_type == new.instance_type)
                && limits.allows_swap(offer_class, problem.model.class_of_offer[*candidate])
        });
        if let Some(target) = target {
            nodes.remove(&new.pool, &offering_of(new));
            nodes.add(&new.pool, offering_of(&problem.offers[target].node));
            limits.remove_node(offer_class);
            limits.add_node(problem.model.class_of_offer[target]);
            moves.push((index, target));
        }
    }
    moves
}

/// Returns the Spot offers of the same pool that hold the pods of a node and cost no more than an
/// alternative may, the cheapest first.
fn candidates(problem: &Problem, node: &PackedNode, offer: usize) -> Vec<usize> {
    let model = problem.model;
    let (new, own) = (&problem.offers[offer].node, &model.offer_classes[node.offer_class]);
    let price_max = alternative_price_max(new.price);
    let classes = model.offer_classes.iter().filter(|other| {
        other.pool == own.pool
            && !other.is_reserved
            && other.price <= price_max
            && holds_as_well(model, other, own, node)
    });
    let is_spot = |other: &usize| problem.offers[*other].node.capacity_type.is_spot();
    let same_labels = |other: &usize| {
        let other = &problem.offers[*other].node;
        let same = |key| other.labels.get(key) == new.labels.get(key);
        new.open_labels.iter().all(same)
    };
    let offers = classes.flat_map(|class| class.offers.iter().copied());
    let mut offers: Vec<usize> = offers.filter(is_spot).filter(same_labels).collect();
    offers.sort_by_key(|other| (problem.offers[*other].node.price, *other));
    offers
}

/// Returns true if a node of the class holds the pods of `node`, and meets their preferences.
fn holds_as_well(
    model: &PackingModel,
    class: &OfferClass,
    own: &OfferClass,
    node: &PackedNode,
) -> bool {
    let admits = |pod_class: &usize| {
        let choice = model.classes[*pod_class].admission;
        class.holds_in_place_of(own, *pod_class)
            && class.preference_penalty[choice] <= own.preference_penalty[choice]
    };
    let requested = |resource: usize| -> i64 {
        let of = |(class, count): (&usize, &u32)| {
            model.classes[*class].requests[resource].saturating_mul(i64::from(*count))
        };
        node.pods.iter().map(of).fold(0, i64::saturating_add)
    };
    let fits = |(resource, room): (usize, &i64)| {
        let requested = requested(resource);
        requested <= 0 || requested <= *room
    };
    node.pods.keys().all(admits) && class.room.iter().enumerate().all(fits)
}

/// Returns the layout with these offers, and the other nodes unchanged.
fn with_moves(problem: &Problem, fleet: &VerifiedFleet, moves: &[(usize, usize)]) -> Layout {
    let mut layout = pin_offers(fleet);
    for (index, offer) in moves {
        let node = &mut layout.packing.new_nodes[*index];
        let offer_class = problem.model.class_of_offer[*offer];
        let price = |class: usize| problem.model.offer_classes[class].price;
        layout.price = layout.price + price(offer_class) - price(node.offer_class);
        (node.offer_class, node.offer) = (offer_class, Some(*offer));
    }
    layout
}

/// Removes Spot alternatives, so that EC2 cannot exceed the share by choosing one offering for
/// many launches.
///
/// The launches of a pool take turns: each retains its next cheapest alternative that is below the
/// share. A pool with `minValues` retains all alternatives.
pub(super) fn limit_alternatives(
    launches: &mut [Launch],
    existing: &[ExistingNode],
    retained: &[bool],
    share: OfferingShare,
) {
    let mut nodes = existing_spot_nodes(existing, retained);
    let mut of_pool: BTreeMap<PoolName, Vec<usize>> = BTreeMap::new();
    for (index, launch) in launches.iter().enumerate() {
        let node = &launch.node;
        if node.capacity_type.is_spot() {
            nodes.add(&node.pool, offering_of(node));
            of_pool.entry(node.pool.clone()).or_default().push(index);
        }
    }
    for (pool, members) in of_pool {
        let has_min_values = share
            .desired
            .pools
            .get(&pool)
            .is_some_and(|pool| !super::min_values::required_value_counts(pool).is_empty());
        let Some(most) = share.nodes_max(&pool, nodes.total(&pool)).filter(|_| !has_min_values)
        else {
            continue;
        };
        take_turns(launches, &members, &pool, &mut nodes, most);
    }
}

/// Distributes the Spot alternatives of some launches of a pool.
fn take_turns(
    launches: &mut [Launch],
    members: &[usize],
    pool: &PoolName,
    nodes: &mut SpotNodes,
    most: u32,
) {
    let mut open: Vec<(usize, Vec<Alternative>)> = Vec::new();
    for index in members {
        let node = &mut launches[*index].node;
        let (mut spot, others): (Vec<_>, Vec<_>) = std::mem::take(&mut node.alternatives)
            .into_iter()
            .partition(|alternative| alternative.capacity_type.is_spot());
        node.alternatives = others;
        // Taken from the end, so that the cheapest comes first.
        spot.reverse();
        open.push((*index, spot));
    }
    while !open.is_empty() {
        open.retain_mut(|(index, spot)| {
            while let Some(next) = spot.pop() {
                let offering = (next.instance_type.clone(), next.zone.clone());
                if nodes.count(pool, &offering) < most {
                    nodes.add(pool, offering);
                    launches[*index].node.alternatives.push(next);
                    return true;
                }
            }
            false
        });
    }
    for index in members {
        launches[*index].node.alternatives.sort_by(|a, b| {
            let key = |of: &Alternative| {
                (of.hourly, of.instance_type.clone(), of.zone.clone(), of.capacity_type)
            };
            key(a).cmp(&key(b))
        });
    }
}
