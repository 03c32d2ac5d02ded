//! Balances new nodes over zones where the packing leaves the zone open.
//!
//! Offers that differ only in their zone form one offer class unless a pod distinguishes them. A
//! pod with a volume does. Its zone becomes an offer class of its own that admits more pods, so the
//! packing puts every node there. That is not intended. This step moves the nodes that need not be
//! there to the zones they would have had without that pod. Every scheduling order and every
//! tie-break sample must still place all pods, because no saving would justify relying on luck. The
//! price and the placed pods stay the same.

use std::collections::BTreeMap;

use super::layout::{Layout, PodsByClass};
use super::offer::Offer;
use super::packing_model::PackingModel;
use super::problem::{Problem, VerifiedFleet};
use super::repair::{is_simulated, pin_offers};
use super::simulation::Simulation;
use super::strategy::{SolvedFleet, Strategy};
use super::tie_break_sampling::passes_same_samples;
use super::work_budget::WorkBudget;

/// Maximum attempts. Each failed attempt halves the number of moves.
const TRIES_MAX: usize = 4;

/// Minimum tie-break samples for any fleet, because the moves save nothing that would justify a
/// risk.
const SAMPLES_MIN: u64 = 4;

/// Moves new nodes to the zones that have the fewest nodes of their pool, at the same price.
pub(super) struct ZoneBalance;

impl Strategy for ZoneBalance {
    fn improve(&self, simulation: &mut Simulation, current: SolvedFleet) -> SolvedFleet {
        SolvedFleet { fleet: balance_zones(simulation, current.fleet), ..current }
    }
}

fn balance_zones(simulation: &Simulation, fleet: VerifiedFleet) -> VerifiedFleet {
    let (problem, work) = (simulation.problem, &mut WorkBudget::unlimited());
    let mut moves = zone_moves(problem, &fleet);
    for _ in 0..TRIES_MAX {
        if moves.is_empty() {
            break;
        }
        let layout = with_moves(problem, &fleet, &moves);
        if !is_simulated(problem.groups) {
            return problem.as_packed(&layout);
        }
        let balanced = simulation.simulate_excluding(&layout, fleet.unplaced.clone(), work);
        if let Some(balanced) = balanced
            .filter(|balanced| passes_same_samples(simulation, balanced, &fleet, SAMPLES_MIN, work))
        {
            return balanced;
        }
        moves.truncate(moves.len() / 2);
    }
    fleet
}

/// Returns the new nodes that move to a zone with fewer nodes of their pool, each with its new
/// offer.
fn zone_moves(problem: &Problem, fleet: &VerifiedFleet) -> Vec<(usize, usize)> {
    let model = problem.model;
    let new_nodes = fleet.layout.packing.new_nodes.iter().zip(&fleet.offers).enumerate();
    let mut equivalents: BTreeMap<(usize, Vec<usize>), Vec<usize>> = BTreeMap::new();
    let mut choices: Vec<(usize, usize, Vec<usize>)> = Vec::new();
    for (index, (node, offer)) in new_nodes {
        let classes: Vec<usize> = node.pods.keys().copied().collect();
        let key = (model.class_of_offer[*offer], classes);
        let alternatives = equivalents
            .entry(key)
            .or_insert_with(|| {
                equivalents_in_other_zones(model, problem.offers, *offer, &node.pods)
            })
            .clone();
        choices.push((index, *offer, alternatives));
    }
    let mut zones = problem.pool_zone_counts(&fleet.layout);
    let of = |offer: usize| {
        let node = &problem.offers[offer].node;
        (node.pool.as_str(), node.zone.clone())
    };
    // Nodes without an alternative are counted before the others choose.
    choices.sort_by_key(|(index, _, alternatives)| (alternatives.len(), *index));
    let mut moves = Vec::new();
    for (index, offer, alternatives) in choices {
        let count = |offer: &usize| zones.get(&of(*offer)).copied().unwrap_or(0);
        let all = std::iter::once(offer).chain(alternatives);
        let chosen = all.min_by_key(|o| (count(o), *o != offer, *o)).unwrap_or(offer);
        *zones.entry(of(chosen)).or_insert(0) += 1;
        if problem.offers[chosen].node.zone != problem.offers[offer].node.zone {
            moves.push((index, chosen));
        }
    }
    moves
}

/// Returns the layout with these offers, and the other nodes unchanged.
fn with_moves(problem: &Problem, fleet: &VerifiedFleet, moves: &[(usize, usize)]) -> Layout {
    let mut layout = pin_offers(fleet);
    for (index, offer) in moves {
        let node = &mut layout.packing.new_nodes[*index];
        (node.offer_class, node.offer) = (problem.model.class_of_offer[*offer], Some(*offer));
    }
    layout
}

/// Returns the offers of other classes that differ only in their location, and that satisfy the
/// preferences of `pods` equally well.
fn equivalents_in_other_zones(
    model: &PackingModel,
    offers: &[Offer],
    offer: usize,
    pods: &PodsByClass,
) -> Vec<usize> {
    let (own, node) = (&model.offer_classes[model.class_of_offer[offer]], &offers[offer].node);
    let equivalents = model.offer_classes.iter().enumerate().filter(|(index, offer_class)| {
        let other = &offers[offer_class.offers[0]].node;
        let admits = |class: &usize| {
            let choice = model.classes[*class].admission;
            offer_class.holds_in_place_of(own, *class)
                && offer_class.preference_penalty[choice] <= own.preference_penalty[choice]
        };
        *index != model.class_of_offer[offer]
            && !offer_class.is_reserved
            && (offer_class.price, &offer_class.pool, &offer_class.room)
                == (own.price, &own.pool, &own.room)
            && (&other.instance_type, other.capacity_type)
                == (&node.instance_type, node.capacity_type)
            && pods.keys().all(admits)
    });
    if own.is_reserved {
        return Vec::new();
    }
    equivalents.flat_map(|(_, offer_class)| offer_class.offers.iter().copied()).collect()
}
