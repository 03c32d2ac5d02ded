//! Nodes of one shape: the same pool, type and price, wherever they are.

use std::collections::BTreeMap;

use super::allot::NodeRule;
use super::model::{Model, Side};
use super::offer::Offer;
use super::pack::Opened;
use crate::units::MicroUsd;

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
    let asked = |d: usize| -> i128 {
        let classes = model.classes.iter().zip(wanted);
        classes.map(|(class, n)| i128::from(class.ask[d]) * i128::from(*n)).sum()
    };
    let by_room = (0..room.len()).filter(|d| asked(*d) > 0).map(|d| {
        let room = i128::from(room[d].max(1));
        (asked(d) + room - 1) / room
    });
    let by_cap = model.rules.iter().enumerate().filter_map(|(index, rule)| {
        let NodeRule::Cap { most, .. } = rule else { return None };
        let capped = model.classes.iter().zip(wanted);
        let capped = capped.filter(|(class, _)| class.rules.contains(&(index, Side::Ones)));
        let pods: i128 = capped.map(|(_, pods)| i128::from(*pods)).sum();
        Some((pods + i128::from(*most) - 1) / i128::from((*most).max(1)))
    });
    let most = by_room.chain(by_cap).max().unwrap_or(0);
    usize::try_from(most).unwrap_or(usize::MAX)
}
