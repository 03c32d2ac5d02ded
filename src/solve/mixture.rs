//! Fleets of few shapes, found by counting: the fewest nodes of each that every run of the
//! rehearsal passes.
//!
//! The scheduler spreads pods over all nodes by the share of them that is used, so that exact
//! fittings of many shapes do not survive it. What does survive is room of one kind: one shape that
//! suits the mix of the pods, or two that together do. Here shapes are tried alone, then the best
//! with others beside it, then with some of its nodes exchanged for cheaper ones; each count is
//! found by halving. A price that is not below the best one is never tried, and the work is counted.

use std::collections::BTreeMap;

use super::layout::Layout;
use super::rehearse::{Settled, Stage, Verdict};
use super::settle::Budget;
use super::shape::{Shape, shapes};
use crate::units::MicroUsd;

/// Shapes that are tried as the only one, those first that would cost least if pods were spread
/// evenly.
const SINGLES_MAX: usize = 10;

/// Nodes of one shape that are tried at most, of those that would do if nothing were lost.
const NODES_MAX: usize = 3;

/// Percent of what a shape is expected to cost that a better fleet would have to cost more than.
const BELOW: i64 = 90;

/// Part of its number within which the count of a shape is found before it is known to be the best.
const COARSE: usize = 64;

/// Shapes that are tried beside the best one, those first with which a fleet would cost least.
const PARTNERS_MAX: usize = 8;

/// Shares of its nodes that the best shape keeps beside another, in sixths.
const SIXTHS: [usize; 5] = [5, 4, 3, 2, 1];

/// Cheaper shapes that nodes are exchanged for.
const EXCHANGES_MAX: usize = 6;

/// Nodes by shape.
type Mixture = BTreeMap<usize, usize>;

/// What an attempt came to.
enum Attempt {
    Holds,
    /// A run left pods over, by class.
    Fails(Vec<u32>),
    /// It is too dear, beyond a limit, or too much work.
    Unfit,
}

/// The search for the cheapest fleet of few shapes.
struct Search<'s> {
    stage: &'s Stage<'s>,
    layout: &'s Layout,
    /// Pods by class that the new nodes are for.
    wanted: Vec<u32>,
    /// What the nodes that stay cost.
    rest: MicroUsd,
    shapes: Vec<Shape>,
    budget: Budget,
    best: Option<(Mixture, Settled)>,
}

impl Stage<'_> {
    /// Returns the cheapest fleet found in which the new nodes are of few shapes.
    pub(super) fn of_few_shapes(&self, layout: &Layout, budget: Budget) -> Option<Settled> {
        let model = self.ground.model;
        let mut wanted = vec![0; model.classes.len()];
        for (class, count) in layout.packing.opened.iter().flat_map(|node| &node.pods) {
            wanted[*class] += count;
        }
        // Pods go to the pool of the highest weight that can hold them: another weight is no way out.
        let mut weights = layout.packing.opened.iter().map(|n| model.columns[n.column].weight);
        let weight = weights.next()?;
        if weights.any(|other| other != weight) {
            return None;
        }
        let mut shapes = shapes(model, self.offers);
        shapes.retain(|shape| shape.weight(model) == weight);
        let rest = layout.price - layout.packing.price(model);
        let mut search = Search { stage: self, layout, wanted, rest, shapes, budget, best: None };
        search.try_singles();
        if budget.thorough {
            search.try_partners();
            search.try_exchanges();
        }
        search.best.map(|(_, settled)| settled)
    }
}

impl Search<'_> {
    fn price(&self, mixture: &Mixture) -> MicroUsd {
        let model = self.stage.ground.model;
        let price = |(shape, count): (&usize, &usize)| {
            self.shapes[*shape].price(model).times(i64::try_from(*count).unwrap_or(i64::MAX))
        };
        self.rest + mixture.iter().map(price).sum::<MicroUsd>()
    }

    /// Plays the runs on a fleet, unless it cannot be better than the best, and keeps it if it holds.
    fn attempt(&mut self, mixture: &Mixture) -> Attempt {
        let price = self.price(mixture);
        let is_dearer = |(_, best): &(Mixture, Settled)| price >= best.layout.price;
        let is_of_no_use = self.budget.below.is_some_and(|below| price >= below)
            || self.best.as_ref().is_some_and(is_dearer);
        if is_of_no_use || self.stage.work() > self.budget.work {
            return Attempt::Unfit;
        }
        let model = self.stage.ground.model;
        let mut trial = self.layout.clone();
        let nodes = mixture.iter().filter(|(_, count)| **count > 0);
        let nodes = nodes.map(|(shape, n)| self.shapes[*shape].nodes(model, &self.wanted, *n));
        trial.packing.opened = nodes.flatten().collect();
        trial.price = price;
        if !self.stage.ground.within_limits(&trial.packing.opened) {
            return Attempt::Unfit;
        }
        match self.stage.rehearse(&trial) {
            Verdict::Passed(settled) => {
                self.best = Some((mixture.clone(), settled));
                Attempt::Holds
            }
            Verdict::Left(left) => Attempt::Fails(left),
        }
    }

    /// Finds by halving the fewest nodes that hold, between a number that does not and one that
    /// does, until they are within so many of each other; returns the largest that does not.
    fn halve(
        &mut self,
        make: impl Fn(usize) -> Mixture,
        (mut fails, mut holds): (usize, usize),
        within: usize,
    ) -> usize {
        while holds - fails > within {
            let middle = usize::midpoint(fails, holds);
            match self.attempt(&make(middle)) {
                Attempt::Holds => holds = middle,
                Attempt::Fails(_) | Attempt::Unfit => fails = middle,
            }
        }
        fails
    }

    fn try_singles(&mut self) {
        let model = self.stage.ground.model;
        let least = |shape: usize| self.shapes[shape].least_nodes(model, &self.wanted);
        let able =
            (0..self.shapes.len()).filter(|s| self.shapes[*s].takes_all(model, &self.wanted));
        let spread = |shape: usize| self.shapes[shape].spread_nodes(model, &self.wanted);
        let mut singles: Vec<(MicroUsd, usize, usize)> = able
            .map(|shape| (self.price(&[(shape, spread(shape))].into()), least(shape), shape))
            .collect();
        singles.sort_unstable();
        singles.truncate(SINGLES_MAX);
        let mut counts = BTreeMap::new();
        for (expected, least, shape) in singles {
            let is_dear =
                |(_, best): &(Mixture, Settled)| expected.0 / 100 * BELOW > best.layout.price.0;
            if self.best.as_ref().is_some_and(is_dear) {
                break;
            }
            if let Some(fails) = self.try_single(shape, least) {
                counts.insert(shape, fails);
            }
        }
        // What is coarse is made fine for the best alone.
        let Some((best, _)) = &self.best else { return };
        let Some((shape, holds)) = best.first_key_value().map(|(s, n)| (*s, *n)) else { return };
        let fails = counts.get(&shape).copied().unwrap_or(0);
        self.halve(|count| [(shape, count)].into(), (fails, holds), 1);
    }

    /// Tries as many nodes of a shape as are cheaper than the best fleet, or else more and more
    /// until they hold, and then about as few as do; returns the most that were seen not to.
    fn try_single(&mut self, shape: usize, least: usize) -> Option<usize> {
        let model = self.stage.ground.model;
        let most = least.saturating_mul(NODES_MAX).saturating_add(NODES_MAX);
        let mut fails = least.saturating_sub(1);
        let spread = self.shapes[shape].spread_nodes(model, &self.wanted);
        let mut count = self.affordable(&Mixture::new(), shape).map_or(spread, |n| n.min(most));
        let is_first = self.best.is_none();
        while count >= least && count <= most {
            match self.attempt(&[(shape, count)].into()) {
                Attempt::Holds => {
                    let make = |count| [(shape, count)].into();
                    return Some(self.halve(make, (fails, count), 1 + count / COARSE));
                }
                Attempt::Fails(left) if is_first => {
                    let missing = self.shapes[shape].least_nodes(model, &left);
                    let step = missing.max(1 + count / 50).max(2 * (count - fails));
                    fails = count;
                    count += step;
                }
                Attempt::Fails(_) | Attempt::Unfit => return None,
            }
        }
        None
    }

    /// Returns how many nodes of a shape beside a mixture are still cheaper than the best fleet.
    fn affordable(&self, mixture: &Mixture, shape: usize) -> Option<usize> {
        let (_, best) = self.best.as_ref()?;
        let left = best.layout.price - self.price(mixture);
        let price = self.shapes[shape].price(self.stage.ground.model);
        Some(usize::try_from((left.0 - 1).max(0) / price.0.max(1)).unwrap_or(0))
    }

    /// Tries other shapes beside the best one.
    fn try_partners(&mut self) {
        let Some((best, _)) = &self.best else { return };
        let Some((first, count)) = best.first_key_value().map(|(shape, n)| (*shape, *n)) else {
            return;
        };
        let model = self.stage.ground.model;
        let mut partners: Vec<(i128, usize)> = (0..self.shapes.len())
            .filter(|shape| *shape != first)
            .map(|shape| {
                (self.shapes[first].price_beside(&self.shapes[shape], model, &self.wanted), shape)
            })
            .collect();
        partners.sort_unstable();
        for (_, partner) in partners.into_iter().take(PARTNERS_MAX) {
            for sixths in SIXTHS {
                self.try_beside((first, count * sixths / 6), partner);
            }
        }
    }

    /// Tries as many nodes of a shape as are cheaper beside so many of another, and then fewer.
    fn try_beside(&mut self, (first, count): (usize, usize), partner: usize) {
        let most = self.affordable(&[(first, count)].into(), partner).unwrap_or(0);
        let make = |n: usize| Mixture::from([(first, count), (partner, n)]);
        if most > 0 && matches!(self.attempt(&make(most)), Attempt::Holds) {
            self.halve(make, (0, most), 1);
        }
    }

    /// Leaves nodes of the best fleet out, or exchanges them for cheaper ones, ever more at once
    /// while that holds.
    fn try_exchanges(&mut self) {
        let Some((best, _)) = &self.best else { return };
        let model = self.stage.ground.model;
        let mut used: Vec<usize> = best.keys().copied().collect();
        used.sort_by_key(|shape| std::cmp::Reverse((self.shapes[*shape].price(model), *shape)));
        for shape in used {
            self.exchange(shape, None);
            let price = self.shapes[shape].price(model);
            let cheaper = |other: &usize| self.shapes[*other].price(model) < price;
            let mut others: Vec<usize> = (0..self.shapes.len()).filter(cheaper).collect();
            others
                .sort_by_key(|other| std::cmp::Reverse((self.shapes[*other].price(model), *other)));
            for other in others.into_iter().take(EXCHANGES_MAX) {
                self.exchange(shape, Some(other));
            }
        }
    }

    /// Exchanges nodes of a shape for as many of another, or leaves them out.
    fn exchange(&mut self, shape: usize, other: Option<usize>) {
        let Some((start, _)) = self.best.clone() else { return };
        let there = start.get(&shape).copied().unwrap_or(0);
        let make = |kept: usize| {
            let mut mixture = start.clone();
            mixture.insert(shape, kept);
            if let Some(other) = other {
                *mixture.entry(other).or_insert(0) += there - kept;
            }
            mixture.retain(|_, count| *count > 0);
            mixture
        };
        let (mut step, mut kept) = (1, there);
        while step <= kept && matches!(self.attempt(&make(kept - step)), Attempt::Holds) {
            kept -= step;
            step *= 2;
        }
        if kept < there && kept > 0 {
            self.halve(make, (kept.saturating_sub(step), kept), 1);
        }
    }
}
