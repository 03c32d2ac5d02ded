//! Exhaustive search for few pods: it lists every fleet that costs less than the best known one,
//! and simulates the fleets in ascending price.
//!
//! The first fleet that passes is the cheapest one of the undominated offer classes, as far as the
//! list goes. The length of the list and the number of simulations are limited by counts.

use super::greedy_packing::{PackedNode, Packing};
use super::layout::{Layout, PodsByClass};
use super::problem::VerifiedFleet;
use super::repair::Repair;
use crate::model::units::MicroUsd;

/// Maximum pods for this search.
const PODS_MAX: u32 = 8;

/// Maximum fleets on the list.
const LISTED_MAX: usize = 4_096;

/// Maximum partial fleets visited for the list.
const VISITED_MAX: usize = 100_000;

/// Maximum fleets simulated.
const SIMULATED_MAX: usize = 256;

/// Returns the cheapest fleet for the pods that `layout` has on new nodes, if they are few.
/// Returns `settled` if no cheaper fleet passes every scheduling order.
pub(super) fn search_few_pods(
    repair: &mut Repair,
    layout: &Layout,
    settled: VerifiedFleet,
) -> VerifiedFleet {
    let problem = repair.simulation.problem;
    let model = problem.model;
    let wanted = layout.pods_on_new_nodes();
    let pods: u32 = wanted.iter().sum();
    let Some(first) = layout.packing.new_nodes.first() else { return settled };
    if pods > PODS_MAX || layout.packing.left_over() > 0 || problem.settings.steer {
        return settled;
    }
    let weight = model.offer_classes[first.offer_class].weight;
    let of_weight = |offer_class: &usize| model.offer_classes[*offer_class].weight == weight;
    let offer_classes: Vec<usize> = model.undominated.iter().copied().filter(of_weight).collect();
    let price = |offer_class: &usize| model.offer_classes[*offer_class].price;
    let rest = layout.price - layout.packing.price(model);
    let mut list = FleetEnumeration {
        prices: offer_classes.iter().map(price).collect(),
        rooms: offer_classes
            .iter()
            .map(|offer_class| model.offer_classes[*offer_class].room.as_slice())
            .collect(),
        below: settled.layout.price - rest,
        max_nodes: usize::try_from(pods).unwrap_or(usize::MAX),
        visited: 0,
        fleets: Vec::new(),
    };
    let request = |resource: usize| -> i64 {
        let requests = model.classes.iter().zip(&wanted);
        requests
            .map(|(class, count)| class.requests[resource].saturating_mul(i64::from(*count)))
            .sum()
    };
    let missing: Vec<i64> =
        (0..model.offer_classes[first.offer_class].room.len()).map(request).collect();
    list.extend(&mut Vec::new(), MicroUsd::ZERO, &missing);
    list.fleets.sort();
    for (_, fleet) in list.fleets.iter().take(SIMULATED_MAX) {
        let fleet = fleet.iter().map(|index| offer_classes[*index]);
        let passed = simulate_fleet(repair, layout, fleet, rest);
        if let Some(passed) = passed.filter(|passed| passed.unplaced == settled.unplaced) {
            return passed;
        }
    }
    settled
}

/// Simulates `layout` with these new nodes in place of its own.
fn simulate_fleet(
    repair: &mut Repair,
    layout: &Layout,
    offer_classes: impl Iterator<Item = usize>,
    rest: MicroUsd,
) -> Option<VerifiedFleet> {
    let problem = repair.simulation.problem;
    let model = problem.model;
    let new_nodes = offer_classes.map(|offer_class| PackedNode {
        offer_class,
        pods: PodsByClass::new(),
        offer: None,
    });
    let packing = Packing { new_nodes: new_nodes.collect(), left: layout.packing.left.clone() };
    let price = rest + packing.price(model);
    let layout = Layout { packing, price, ..layout.clone() };
    if !problem.is_within_limits(&layout) {
        return None;
    }
    repair.passing(&layout)
}

/// Enumerates the fleets below a price, as ascending indices of offer classes.
struct FleetEnumeration<'a> {
    /// Prices of the offer classes, in ascending order.
    prices: Vec<MicroUsd>,
    rooms: Vec<&'a [i64]>,
    below: MicroUsd,
    /// Maximum nodes of a fleet.
    max_nodes: usize,
    visited: usize,
    fleets: Vec<(MicroUsd, Vec<usize>)>,
}

impl FleetEnumeration<'_> {
    /// Adds `fleet` and all its extensions to the list. `missing` holds the amounts that it still
    /// lacks.
    fn extend(&mut self, fleet: &mut Vec<usize>, price: MicroUsd, missing: &[i64]) {
        self.visited += 1;
        if !fleet.is_empty() && missing.iter().all(|missing| *missing <= 0) {
            self.fleets.push((price, fleet.clone()));
        }
        if fleet.len() == self.max_nodes {
            return;
        }
        for offer_class in fleet.last().copied().unwrap_or(0)..self.prices.len() {
            let next = price + self.prices[offer_class];
            let is_full = self.visited > VISITED_MAX || self.fleets.len() >= LISTED_MAX;
            if next >= self.below || is_full {
                return;
            }
            let room = self.rooms[offer_class].iter();
            let missing: Vec<i64> = missing.iter().zip(room).map(|(m, room)| m - room).collect();
            fleet.push(offer_class);
            self.extend(fleet, next, &missing);
            fleet.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enumeration_lists_each_sufficient_cheap_fleet_once() {
        let rooms: [&[i64]; 3] = [&[2, 4], &[4, 4], &[8, 16]];
        let prices = vec![MicroUsd(2), MicroUsd(3), MicroUsd(6)];
        let mut list = FleetEnumeration {
            prices,
            rooms: rooms.to_vec(),
            below: MicroUsd(9),
            max_nodes: 3,
            visited: 0,
            fleets: vec![],
        };
        list.extend(&mut Vec::new(), MicroUsd::ZERO, &[6, 8]);
        list.fleets.sort();
        let expected = [
            (5, vec![0, 1]),
            (6, vec![0, 0, 0]),
            (6, vec![1, 1]),
            (6, vec![2]),
            (7, vec![0, 0, 1]),
            (8, vec![0, 1, 1]),
            (8, vec![0, 2]),
        ];
        let expected: Vec<_> = expected.map(|(price, fleet)| (MicroUsd(price), fleet)).into();
        assert_eq!(list.fleets, expected);
    }
}
