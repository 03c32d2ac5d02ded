//! The market that some pods of a model make: what bound and patterns are worked out from.

use std::collections::BTreeMap;

use super::market::{Cap, Kind, Market, Ware};
use super::model::{Bin, Model};
use crate::units::MicroUsd;

/// A market, and what its classes and kinds stand for.
pub(super) struct Survey {
    /// The market.
    pub market: Market,
    /// How many pods of each of its classes are wanted.
    pub wanted: Vec<u32>,
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
    /// `singles`; `caps` (of classes of the model) hold on every node.
    pub(super) fn of(
        model: &Model,
        wanted: &[u32],
        columns: &[usize],
        singles: &[Single],
        caps: &[Cap],
    ) -> Self {
        let members = alike(model, wanted, columns, singles, caps);
        let mut class_of: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, members) in members.iter().enumerate() {
            class_of.extend(members.iter().map(|class| (*class, index)));
        }
        let columns = distinct(model, columns);
        let only = |takes: &[bool]| members.iter().map(|members| takes[members[0]]).collect();
        let kind = |column: &usize| {
            let column = &model.columns[*column];
            Kind { price: column.price.0, room: column.room.clone(), takes: only(&column.takes) }
        };
        let single = |single: &Single| Kind {
            price: single.price.0,
            room: single.bin.room.iter().map(|room| (*room).max(0)).collect(),
            takes: only(&single.bin.takes),
        };
        let cap = |cap: &Cap| {
            let known = cap.members.iter().filter_map(|class| class_of.get(class).copied());
            let mut members: Vec<usize> = known.collect();
            members.sort_unstable();
            members.dedup();
            Cap { members, most: cap.most }
        };
        let wares =
            members.iter().map(|of| Ware { ask: model.classes[of[0]].ask.clone() }).collect();
        let kinds = columns.iter().map(kind).collect();
        let singles = singles.iter().map(single).collect();
        let market = Market::new(wares, kinds, singles, caps.iter().map(cap).collect());
        let sum = |members: &Vec<usize>| {
            members.iter().map(|class| wanted[*class]).fold(0, u32::saturating_add)
        };
        let wanted = members.iter().map(sum).collect();
        Self { market, wanted }
    }
}

/// Classes of which pods are wanted; those that nothing here tells apart are together.
fn alike(
    model: &Model,
    wanted: &[u32],
    columns: &[usize],
    singles: &[Single],
    caps: &[Cap],
) -> Vec<Vec<usize>> {
    let mut caps_of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, cap) in caps.iter().enumerate() {
        cap.members.iter().for_each(|class| caps_of.entry(*class).or_default().push(index));
    }
    let mut keyed: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for class in (0..wanted.len()).filter(|class| wanted[*class] > 0) {
        let on_columns = columns.iter().map(|column| model.columns[*column].takes[class]);
        let on_singles = singles.iter().map(|single| single.bin.takes[class]);
        let takes: Vec<bool> = on_columns.chain(on_singles).collect();
        let key = (&model.classes[class].ask, takes, caps_of.get(&class));
        keyed.entry(key).or_default().push(class);
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
