//! Searches fleets of few node shapes for the fewest nodes that pass every scheduling order.
//!
//! kube-scheduler spreads pods over all nodes by utilization. A tight packing of many shapes
//! therefore rarely survives the scheduling simulation. Room of one kind does survive: one shape
//! that suits the mix of pods, or two shapes together. The search tries single shapes first, then
//! the best shape beside others, then cheaper shapes in place of some nodes. Each count is found by
//! bisection. A fleet at or above the best price is never simulated, and the work is counted.

use std::collections::BTreeMap;

use super::layout::Layout;
use super::node_shape::{NodeShape, shapes};
use super::problem::{Problem, VerifiedFleet};
use super::repair::Repair;
use super::simulation::SimulationOutcome;
use crate::model::units::MicroUsd;

/// Maximum shapes tried alone, those first with the lowest estimated price of evenly spread pods.
const SINGLE_SHAPES_MAX: usize = 10;

/// Maximum nodes of one shape, as a multiple of the minimum number.
const NODE_FACTOR_MAX: usize = 3;

/// Percentage of the expected price of a shape above which the best fleet cannot be beaten by it.
const EXPECTED_PRICE_PERCENT: i64 = 90;

/// The count of a shape is first found to within this fraction of it, and refined for the best
/// shape only.
const COARSE_DIVISOR: usize = 64;

/// Maximum shapes tried beside the best one, those first with the lowest combined price.
const PARTNERS_MAX: usize = 8;

/// Share of its nodes that the best shape retains beside another, in sixths.
const SIXTHS: [usize; 5] = [5, 4, 3, 2, 1];

/// Maximum cheaper shapes that replace nodes.
const SUBSTITUTES_MAX: usize = 6;

/// Number of nodes by shape.
type ShapeCounts = BTreeMap<usize, usize>;

/// Outcome of one simulated fleet.
enum TrialOutcome {
    Fits,
    /// A scheduling order left these pods by class.
    LeavesPods(Vec<u32>),
    /// The fleet is too expensive, exceeds a limit, or the work limit is reached.
    Rejected,
}

/// Search state.
struct ShapeSearch<'r, 's, 'a> {
    repair: &'r mut Repair<'s, 'a>,
    problem: &'a Problem<'a>,
    layout: &'r Layout,
    /// Pods by class for the new nodes.
    wanted: Vec<u32>,
    /// Price of the retained nodes.
    retained_price: MicroUsd,
    shapes: Vec<NodeShape>,
    best: Option<(ShapeCounts, VerifiedFleet)>,
}

/// Returns the cheapest fleet whose new nodes have few shapes.
pub(super) fn search_few_shapes(repair: &mut Repair, layout: &Layout) -> Option<VerifiedFleet> {
    let problem = repair.simulation.problem;
    let model = problem.model;
    let wanted = layout.pods_on_new_nodes();
    // Pods go to the pool with the highest weight that can hold them. Pools of another weight
    // are no alternative.
    let mut weights =
        layout.packing.new_nodes.iter().map(|n| model.offer_classes[n.offer_class].weight);
    let weight = weights.next()?;
    if weights.any(|other| other != weight) {
        return None;
    }
    let mut shapes = shapes(model, problem.offers);
    shapes.retain(|shape| shape.weight(model) == weight);
    let retained_price = layout.price - layout.packing.price(model);
    let mut search =
        ShapeSearch { repair, problem, layout, wanted, retained_price, shapes, best: None };
    search.try_singles();
    if search.repair.effort.thorough {
        search.try_partners();
        search.try_substitutions();
    }
    search.best.map(|(_, fleet)| fleet)
}

impl ShapeSearch<'_, '_, '_> {
    fn price(&self, counts: &ShapeCounts) -> MicroUsd {
        let model = self.problem.model;
        let price = |(shape, count): (&usize, &usize)| {
            self.shapes[*shape].price(model).times(i64::try_from(*count).unwrap_or(i64::MAX))
        };
        self.retained_price + counts.iter().map(price).sum::<MicroUsd>()
    }

    /// Returns the layout of a fleet if it can be cheaper than the best.
    fn trial(&self, counts: &ShapeCounts) -> Option<Layout> {
        let price = self.price(counts);
        let is_more_expensive =
            |(_, best): &(ShapeCounts, VerifiedFleet)| price >= best.layout.price;
        let cannot_improve = self.repair.effort.price_below.is_some_and(|below| price >= below)
            || self.best.as_ref().is_some_and(is_more_expensive);
        if cannot_improve || self.repair.work.is_exhausted() {
            return None;
        }
        let model = self.problem.model;
        let mut trial = self.layout.clone();
        let nodes = counts.iter().filter(|(_, count)| **count > 0);
        let nodes = nodes.map(|(shape, n)| self.shapes[*shape].nodes(model, &self.wanted, *n));
        trial.packing.new_nodes = nodes.flatten().collect();
        trial.price = price;
        self.problem.is_within_limits(&trial).then_some(trial)
    }

    /// Simulates a fleet if it can be cheaper than the best, and stores it if it passes.
    fn attempt(&mut self, counts: &ShapeCounts) -> TrialOutcome {
        let Some(trial) = self.trial(counts) else { return TrialOutcome::Rejected };
        match self.repair.simulate(&trial) {
            SimulationOutcome::Passed(fleet) => {
                self.best = Some((counts.clone(), fleet));
                TrialOutcome::Fits
            }
            SimulationOutcome::LeftOver(failure) => TrialOutcome::LeavesPods(failure.left),
        }
    }

    /// Simulates a fleet like [`ShapeSearch::attempt`], and returns true if it passes.
    fn fits(&mut self, counts: &ShapeCounts) -> bool {
        let fleet = self.trial(counts).and_then(|trial| self.repair.passing(&trial));
        let Some(fleet) = fleet else { return false };
        self.best = Some((counts.clone(), fleet));
        true
    }

    /// Bisects between a count that is too low and one that is enough, until they differ by at most
    /// `within`. Returns the largest count that is too low.
    fn bisect(
        &mut self,
        make: impl Fn(usize) -> ShapeCounts,
        mut too_few: usize,
        mut enough: usize,
        within: usize,
    ) -> usize {
        while enough - too_few > within {
            let middle = usize::midpoint(too_few, enough);
            if self.fits(&make(middle)) {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        too_few
    }

    fn try_singles(&mut self) {
        let model = self.problem.model;
        let least = |shape: usize| self.shapes[shape].least_nodes(model, &self.wanted);
        let able =
            (0..self.shapes.len()).filter(|s| self.shapes[*s].admits_all(model, &self.wanted));
        let spread = |shape: usize| self.shapes[shape].estimated_spread_nodes(model, &self.wanted);
        let mut singles: Vec<(MicroUsd, usize, usize)> = able
            .map(|shape| (self.price(&[(shape, spread(shape))].into()), least(shape), shape))
            .collect();
        singles.sort_unstable();
        singles.truncate(SINGLE_SHAPES_MAX);
        let mut too_few_by_shape = BTreeMap::new();
        for (expected, least, shape) in singles {
            let is_too_expensive = |(_, best): &(ShapeCounts, VerifiedFleet)| {
                expected.0 / 100 * EXPECTED_PRICE_PERCENT > best.layout.price.0
            };
            if self.best.as_ref().is_some_and(is_too_expensive) {
                break;
            }
            if let Some(too_few) = self.try_single(shape, least) {
                too_few_by_shape.insert(shape, too_few);
            }
        }
        // Coarse counts are refined for the best shape only.
        let Some((best, _)) = &self.best else { return };
        let Some((shape, enough)) = best.first_key_value().map(|(s, n)| (*s, *n)) else { return };
        let too_few = too_few_by_shape.get(&shape).copied().unwrap_or(0);
        self.bisect(|count| [(shape, count)].into(), too_few, enough, 1);
    }

    /// Tries the largest count of a shape below the best price, or without a best fleet, increasing
    /// counts until one is enough. It then reduces the count. Returns the largest count that is
    /// known to be too low.
    fn try_single(&mut self, shape: usize, least: usize) -> Option<usize> {
        let model = self.problem.model;
        let most = least.saturating_mul(NODE_FACTOR_MAX).saturating_add(NODE_FACTOR_MAX);
        let mut too_few = least.saturating_sub(1);
        let spread = self.shapes[shape].estimated_spread_nodes(model, &self.wanted);
        let mut count =
            self.affordable_count(&ShapeCounts::new(), shape).map_or(spread, |n| n.min(most));
        let is_first = self.best.is_none();
        while count >= least && count <= most {
            let make = |count| ShapeCounts::from([(shape, count)]);
            let outcome = if is_first {
                self.attempt(&make(count))
            } else if self.fits(&make(count)) {
                TrialOutcome::Fits
            } else {
                TrialOutcome::Rejected
            };
            match outcome {
                TrialOutcome::Fits => {
                    return Some(self.bisect(make, too_few, count, 1 + count / COARSE_DIVISOR));
                }
                TrialOutcome::LeavesPods(left) => {
                    let missing = self.shapes[shape].least_nodes(model, &left);
                    let step = missing.max(1 + count / 50).max(2 * (count - too_few));
                    too_few = count;
                    count += step;
                }
                TrialOutcome::Rejected => return None,
            }
        }
        None
    }

    /// Returns the number of nodes of a shape that can join the counts below the best price.
    fn affordable_count(&self, counts: &ShapeCounts, shape: usize) -> Option<usize> {
        let (_, best) = self.best.as_ref()?;
        let left = best.layout.price - self.price(counts);
        let price = self.shapes[shape].price(self.problem.model);
        Some(usize::try_from((left.0 - 1).max(0) / price.0.max(1)).unwrap_or(0))
    }

    /// Tries other shapes beside the best one.
    fn try_partners(&mut self) {
        let Some((best, _)) = &self.best else { return };
        let Some((first, count)) = best.first_key_value().map(|(shape, n)| (*shape, *n)) else {
            return;
        };
        let model = self.problem.model;
        let mut partners: Vec<(i128, usize)> = (0..self.shapes.len())
            .filter(|shape| *shape != first)
            .map(|shape| {
                (self.shapes[first].combined_price(&self.shapes[shape], model, &self.wanted), shape)
            })
            .collect();
        partners.sort_unstable();
        for (_, partner) in partners.into_iter().take(PARTNERS_MAX) {
            for sixths in SIXTHS {
                self.try_beside(first, count * sixths / 6, partner);
            }
        }
    }

    /// Tries the largest affordable count of a shape beside `count` nodes of another, then fewer.
    fn try_beside(&mut self, first: usize, count: usize, partner: usize) {
        let most = self.affordable_count(&[(first, count)].into(), partner).unwrap_or(0);
        let make = |n: usize| ShapeCounts::from([(first, count), (partner, n)]);
        if most > 0 && self.fits(&make(most)) {
            self.bisect(make, 0, most, 1);
        }
    }

    /// Removes nodes of the best fleet or replaces them by cheaper ones, doubling the step while
    /// the fleet passes.
    fn try_substitutions(&mut self) {
        let Some((best, _)) = &self.best else { return };
        let model = self.problem.model;
        let mut used: Vec<usize> = best.keys().copied().collect();
        used.sort_by_key(|shape| std::cmp::Reverse((self.shapes[*shape].price(model), *shape)));
        for shape in used {
            self.substitute(shape, None);
            let price = self.shapes[shape].price(model);
            let cheaper = |other: &usize| self.shapes[*other].price(model) < price;
            let mut others: Vec<usize> = (0..self.shapes.len()).filter(cheaper).collect();
            others
                .sort_by_key(|other| std::cmp::Reverse((self.shapes[*other].price(model), *other)));
            for other in others.into_iter().take(SUBSTITUTES_MAX) {
                self.substitute(shape, Some(other));
            }
        }
    }

    /// Replaces nodes of a shape by the same number of another shape, or removes them.
    fn substitute(&mut self, shape: usize, other: Option<usize>) {
        let Some((start, _)) = self.best.clone() else { return };
        let current = start.get(&shape).copied().unwrap_or(0);
        let make = |remaining: usize| {
            let mut counts = start.clone();
            counts.insert(shape, remaining);
            if let Some(other) = other {
                *counts.entry(other).or_insert(0) += current - remaining;
            }
            counts.retain(|_, count| *count > 0);
            counts
        };
        let (mut step, mut remaining) = (1, current);
        while step <= remaining && self.fits(&make(remaining - step)) {
            remaining -= step;
            step *= 2;
        }
        if remaining < current && remaining > 0 {
            self.bisect(make, remaining.saturating_sub(step), remaining, 1);
        }
    }
}
