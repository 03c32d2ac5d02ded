//! Nodes of one shape: the same pool, type and price, wherever they are.

use std::collections::BTreeMap;

use super::allot::NodeRule;
use super::model::{Column, Model, Side};
use super::offer::Offer;
use super::pack::Opened;
use crate::units::MicroUsd;

/// How many times the least number of nodes is looked at when pods are spread.
const SPREAD_MAX: usize = 4;

/// Columns whose nodes differ in where they are alone, and so in which pods they take.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape(Vec<usize>);

/// Returns every shape that is worth opening.
pub(super) fn shapes(model: &Model, offers: &[Offer]) -> Vec<Shape> {
    let mut keyed: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for index in model.undominated.iter().copied() {
        let column = &model.columns[index];
        let node = &offers[column.offers[0]].node;
        let kind = (&node.instance_type, node.capacity_type);
        keyed.entry((column.price, &column.pool, kind, &column.room)).or_default().push(index);
    }
    keyed.into_values().map(Shape).collect()
}

impl Shape {
    /// Returns the price of one node per hour.
    pub(super) fn price(&self, model: &Model) -> MicroUsd {
        model.columns[self.0[0]].price
    }

    /// Returns the weight of the pool.
    pub(super) fn weight(&self, model: &Model) -> u32 {
        model.columns[self.0[0]].weight
    }

    /// Returns whether each of the pods may run on one of its nodes.
    pub(super) fn takes_all(&self, model: &Model, wanted: &[u32]) -> bool {
        let taken = |class: usize| self.0.iter().any(|column| model.columns[*column].takes[class]);
        wanted.iter().enumerate().all(|(class, pods)| *pods == 0 || taken(class))
    }

    /// Returns the fewest nodes that could hold the pods, resource by resource and cap by cap.
    pub(super) fn least_nodes(&self, model: &Model, wanted: &[u32]) -> usize {
        let bound: usize = self.bound_nodes(model, wanted).into_iter().sum();
        bound.max(least_nodes(model, self.0[0], wanted))
    }

    /// Returns about how many nodes hold the pods if the scheduler spreads them evenly, the smallest
    /// first: a pod then needs room beside an even share of all that came before.
    pub(super) fn spread_nodes(&self, model: &Model, wanted: &[u32]) -> usize {
        let mut fails = self.least_nodes(model, wanted).saturating_sub(1);
        let mut holds = fails.saturating_mul(SPREAD_MAX).saturating_add(SPREAD_MAX);
        while holds - fails > 1 {
            let middle = usize::midpoint(fails, holds);
            let fits = self.holds_spread(model, wanted, middle);
            if fits { holds = middle } else { fails = middle }
        }
        holds
    }

    /// Returns whether so many nodes hold the pods if they are spread evenly, the smallest first.
    fn holds_spread(&self, model: &Model, wanted: &[u32], nodes: usize) -> bool {
        let room = &model.columns[self.0[0]].room;
        let nodes = i128::try_from(nodes.max(1)).unwrap_or(i128::MAX);
        let mut used = vec![0_i128; room.len()];
        model.order.iter().rev().filter(|class| wanted[**class] > 0).all(|class| {
            let (ask, count) = (&model.classes[*class].ask, i128::from(wanted[*class]));
            let asked = (0..room.len()).filter(|d| ask[*d] > 0);
            let free = |d: usize| i128::from(room[d]) - used[d] / nodes;
            let slots = asked.map(|d| free(d).max(0) / i128::from(ask[d])).min().unwrap_or(count);
            for (used, ask) in used.iter_mut().zip(ask) {
                *used += i128::from(*ask) * count;
            }
            slots.saturating_mul(nodes) >= count
        })
    }

    /// Returns `count` nodes: as many in each place as pods need that can run nowhere else, the
    /// others evenly.
    pub(super) fn nodes(&self, model: &Model, wanted: &[u32], count: usize) -> Vec<Opened> {
        let mut counts = self.bound_nodes(model, wanted);
        // A fleet that grew beyond the least grows in every place alike.
        let least = self.least_nodes(model, wanted).max(1);
        for at_column in &mut counts {
            *at_column = at_column.saturating_mul(count) / least;
        }
        while counts.iter().sum::<usize>() < count {
            let fewest = counts.iter_mut().min().expect("a shape has a column");
            *fewest += 1;
        }
        let of = |(column, count): (&usize, usize)| {
            let node = Opened { column: *column, pods: BTreeMap::new(), offer: None };
            std::iter::repeat_n(node, count)
        };
        self.0.iter().zip(counts).flat_map(of).collect()
    }

    /// Returns what nodes of this shape and of another would cost together if pods could be split
    /// and every node be used up, in micro-USD times a common factor: the least of any share.
    ///
    /// The cost of a share is the largest of a few straight lines, so that it is least at an end or
    /// where two of them meet; shares are tried in sixteenths, which is near enough to rank shapes.
    pub(super) fn price_beside(&self, other: &Self, model: &Model, wanted: &[u32]) -> i128 {
        const PARTS: i128 = 16;
        let (mine, theirs) = (&model.columns[self.0[0]], &model.columns[other.0[0]]);
        let asked = |d: usize| -> i128 {
            let classes = model.classes.iter().zip(wanted);
            classes.map(|(class, n)| i128::from(class.ask[d]) * i128::from(*n)).sum()
        };
        let asked: Vec<i128> = (0..mine.room.len()).map(asked).collect();
        // Per unit of money, since shapes differ in size.
        let worth = |column: &Column, d: usize| {
            i128::from(column.room[d]) * 1_000_000 / i128::from(column.price.0.max(1))
        };
        let cost = |part: i128| {
            let needed = (0..asked.len()).filter(|d| asked[*d] > 0).map(|d| {
                let room = worth(mine, d) * part + worth(theirs, d) * (PARTS - part);
                asked[d] * 1_000_000 * PARTS / room.max(1)
            });
            needed.max().unwrap_or(0)
        };
        (0..=PARTS).map(cost).min().unwrap_or(0)
    }

    /// The nodes in each place that pods need which can run nowhere else.
    fn bound_nodes(&self, model: &Model, wanted: &[u32]) -> Vec<usize> {
        let places = |class: usize| self.0.iter().filter(move |c| model.columns[**c].takes[class]);
        let bound_to = |column: usize| -> Vec<u32> {
            let only = |class: usize| places(class).eq([&column]);
            let wanted = wanted.iter().enumerate();
            wanted.map(|(class, pods)| if only(class) { *pods } else { 0 }).collect()
        };
        if let [only] = self.0.as_slice() {
            return vec![least_nodes(model, *only, wanted)];
        }
        self.0.iter().map(|column| least_nodes(model, *column, &bound_to(*column))).collect()
    }
}

/// The fewest nodes of one column that could hold `wanted`.
fn least_nodes(model: &Model, column: usize, wanted: &[u32]) -> usize {
    let room = &model.columns[column].room;
    let mut asked = vec![0_i128; room.len()];
    let mut capped = vec![0_i128; model.rules.len()];
    for (class, count) in model.classes.iter().zip(wanted).filter(|(_, count)| **count > 0) {
        for (asked, ask) in asked.iter_mut().zip(&class.ask) {
            *asked += i128::from(*ask) * i128::from(*count);
        }
        for (rule, _) in class.rules.iter().filter(|(_, side)| *side == Side::Ones) {
            capped[*rule] += i128::from(*count);
        }
    }
    let by_room = asked.iter().zip(room).filter(|(asked, _)| **asked > 0);
    let by_room = by_room.map(|(asked, room)| {
        let room = i128::from((*room).max(1));
        (asked + room - 1) / room
    });
    let by_cap = model.rules.iter().zip(&capped).filter_map(|(rule, pods)| {
        let NodeRule::Cap { most, .. } = rule else { return None };
        Some((pods + i128::from(*most) - 1) / i128::from((*most).max(1)))
    });
    let most = by_room.chain(by_cap).max().unwrap_or(0);
    usize::try_from(most).unwrap_or(usize::MAX)
}
