//! The market that some pods of a model make: what bound and patterns are worked out from.

use std::collections::BTreeMap;

use super::allot::NodeRule;
use super::market::{self, Cap, Kind, Market, Ware};
use super::model::{Bin, Model};
use crate::units::MicroUsd;

/// A market, and what its classes and kinds stand for.
pub(super) struct Survey {
    /// The market.
    pub market: Market,
    /// How many pods of each of its classes are wanted.
    pub wanted: Vec<u32>,
    /// Columns that its kinds stand for.
    pub columns: Vec<usize>,
    /// Classes of the model that its classes stand for.
    pub members: Vec<Vec<usize>>,
}

/// A node that can be had once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Single<'a> {
    /// What it costs; nothing, where it is paid for anyhow.
    pub price: MicroUsd,
    /// What it has room for.
    pub bin: &'a Bin,
}

impl Survey {
    /// Returns the market of `wanted` pods (by class) and of `columns`, beside which there are
    /// `singles`. Of the rules about one node only caps are part of it.
    pub(super) fn of(model: &Model, wanted: &[u32], columns: &[usize], singles: &[Single]) -> Self {
        let members = alike(model, wanted, columns, singles);
        let columns = distinct(model, columns);
        let only = |takes: &[bool]| members.iter().map(|of| takes[of[0]]).collect();
        let kind = |column: &usize| {
            let column = &model.columns[*column];
            Kind { price: column.price.0, room: column.room.clone(), takes: only(&column.takes) }
        };
        let kinds: Vec<Kind> = columns.iter().map(kind).collect();
        let caps = caps(model, &members);
        let mut counts: BTreeMap<Kind, u32> = BTreeMap::new();
        for single in singles {
            let room = single.bin.room.iter().map(|room| (*room).max(0)).collect();
            let kind = Kind { price: single.price.0, room, takes: only(&single.bin.takes) };
            // Rules between pods may have come after those that run: caps hold on new nodes alone, so
            // a node that is there is no new one wherever a cap concerns it.
            let is_capped =
                caps.iter().any(|cap| cap.members.iter().any(|class| kind.takes[*class]));
            if is_capped || !kinds.iter().any(|other| is_no_better(&kind, other)) {
                *counts.entry(kind).or_insert(0) += 1;
            }
        }
        let singles = counts.into_iter().map(|(kind, count)| market::Single { kind, count });
        let ware = |of: &Vec<usize>| Ware { ask: model.classes[of[0]].ask.clone() };
        let wares = members.iter().map(ware).collect();
        let market = Market::new(wares, kinds, singles.collect(), caps);
        let sum = |of: &Vec<usize>| of.iter().map(|c| wanted[*c]).fold(0, u32::saturating_add);
        let wanted = members.iter().map(sum).collect();
        Self { market, wanted, columns, members }
    }
}

/// Returns whether a node could as well be had as one more of `kind`.
fn is_no_better(node: &Kind, kind: &Kind) -> bool {
    node.price >= kind.price
        && node.room.iter().zip(&kind.room).all(|(mine, theirs)| mine <= theirs)
        && node.takes.iter().zip(&kind.takes).all(|(mine, theirs)| !*mine || *theirs)
}

/// The caps of the model that concern some of these.
fn caps(model: &Model, members: &[Vec<usize>]) -> Vec<Cap> {
    let cap = |(index, rule): (usize, &NodeRule)| {
        let NodeRule::Cap { most, .. } = rule else { return None };
        let concerns = |of: &Vec<usize>| {
            model.classes[of[0]].rules.iter().any(|(of_class, _)| *of_class == index)
        };
        let members: Vec<usize> =
            (0..members.len()).filter(|class| concerns(&members[*class])).collect();
        (!members.is_empty()).then_some(Cap { members, most: *most })
    };
    model.rules.iter().enumerate().filter_map(cap).collect()
}

/// Classes of which pods are wanted; those that nothing here tells apart are together.
fn alike(model: &Model, wanted: &[u32], columns: &[usize], singles: &[Single]) -> Vec<Vec<usize>> {
    let mut keyed: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for class in (0..wanted.len()).filter(|class| wanted[*class] > 0) {
        let on_columns = columns.iter().map(|column| model.columns[*column].takes[class]);
        let on_singles = singles.iter().map(|single| single.bin.takes[class]);
        let takes: Vec<bool> = on_columns.chain(on_singles).collect();
        let class_key = &model.classes[class];
        keyed.entry((&class_key.ask, &class_key.rules, takes)).or_default().push(class);
    }
    keyed.into_values().collect()
}

/// Of columns that differ in their pool alone, the first.
fn distinct(model: &Model, columns: &[usize]) -> Vec<usize> {
    let mut seen = BTreeMap::new();
    for column in columns {
        let of = &model.columns[*column];
        seen.entry((of.price, &of.room, &of.takes)).or_insert(*column);
    }
    let mut columns: Vec<usize> = seen.into_values().collect();
    columns.sort_unstable();
    columns
}
