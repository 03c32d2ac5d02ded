//! A bound below the hourly price of every fleet that holds given pods.
//!
//! Linear-programming duality: give every resource of every column a price such that a whole node
//! costs no more than the column does; then no fleet is cheaper than the sum, over all pods, of the
//! least that a pod's requests cost on any column that takes it. Every choice of prices gives a
//! valid bound; here a node's price is split over its resources in the same proportion everywhere,
//! and the best of a grid of proportions is taken. Nodes that stay whatever they cost are paid in
//! full and may hold as much as they have room for: what that is worth at these prices is taken off.

use super::model::{Bin, Model};
use crate::units::MicroUsd;

/// Steps of the grid from 0 to all.
const STEPS: i64 = 10;

/// Classes up to which every step of the grid is tried.
const FINE_CLASSES_MAX: usize = 400;

/// Binary digits of fraction that unit prices are kept with; they are rounded down.
const FRACTION: u32 = 40;

/// Unit prices of one column: micro-USD with [`FRACTION`] binary digits per unit, by resource.
type UnitPrices = Vec<i128>;

/// Returns a bound on the price of holding `placed` pods (by class), of which the `fixed` bins,
/// already paid for, may take as many as they can.
pub(super) fn lower_bound(model: &Model, placed: &[u32], fixed: &[&Bin]) -> MicroUsd {
    let columns: Vec<UnitPrices> =
        model.undominated.iter().map(|c| unit_prices(model, *c)).collect();
    let value = |split: [i64; 4]| {
        let worth = worth_at(model, &columns, split);
        let all: i128 = worth.iter().zip(placed).map(|(worth, n)| worth * i128::from(*n)).sum();
        all - fixed.iter().map(|bin| absorbed(model, &worth, placed, bin)).sum::<i128>()
    };
    // Many classes make the sum smooth: a coarser grid finds nearly the same bound.
    let step = if model.classes.len() > FINE_CLASSES_MAX { 2 } else { 1 };
    let coarse = move |split: &[i64; 4]| split.iter().all(|tenths| tenths % step == 0);
    let best = proportions().filter(coarse).map(value).max().unwrap_or(0).max(0);
    MicroUsd(i64::try_from(best >> FRACTION).unwrap_or(i64::MAX))
}

/// Ways to split a price over cpu, memory, ephemeral storage and pods, in tenths.
fn proportions() -> impl Iterator<Item = [i64; 4]> {
    (0..=STEPS).flat_map(|cpu| {
        (0..=STEPS - cpu).flat_map(move |memory| {
            let rest = STEPS - cpu - memory;
            let both = [[cpu, memory, 0, rest], [cpu, memory, rest, 0]];
            both.into_iter().take(if rest == 0 { 1 } else { 2 })
        })
    })
}

fn unit_prices(model: &Model, column: usize) -> UnitPrices {
    let column = &model.columns[column];
    let price = i128::from(column.price.0) << FRACTION;
    column
        .room
        .iter()
        .take(4)
        .map(|room| price / (i128::from((*room).max(1)) * i128::from(STEPS)))
        .collect()
}

/// What a pod of each class is worth at these prices.
fn worth_at(model: &Model, columns: &[UnitPrices], split: [i64; 4]) -> Vec<i128> {
    let weighted: Vec<[i128; 4]> = columns
        .iter()
        .map(|prices| std::array::from_fn(|d| prices[d] * i128::from(split[d])))
        .collect();
    let class_worth = |(index, class): (usize, &super::model::Class)| {
        let cost = |prices: &[i128; 4]| -> i128 {
            prices.iter().zip(&class.ask).map(|(price, asked)| price * i128::from(*asked)).sum()
        };
        let taken = model.undominated.iter().zip(&weighted);
        let taken = taken.filter(|(column, _)| model.columns[**column].takes[index]);
        taken.map(|(_, prices)| cost(prices)).min().unwrap_or(0)
    };
    model.classes.iter().enumerate().map(class_worth).collect()
}

/// The most that pods on `bin` can be worth: over each resource, its room times the highest worth
/// per unit of any class; the least of these holds.
fn absorbed(model: &Model, worth: &[i128], placed: &[u32], bin: &Bin) -> i128 {
    let taken = |class: &usize| bin.takes[*class] && placed[*class] > 0;
    let all: i128 = (0..worth.len()).filter(taken).map(|c| worth[c] * i128::from(placed[c])).sum();
    let by_resource = bin.room.iter().enumerate().filter_map(|(d, room)| {
        let asks = (0..worth.len()).filter(taken).map(|class| (class, model.classes[class].ask[d]));
        // A class that asks for nothing of it is not limited by it.
        let per_unit =
            asks.map(|(class, ask)| (ask > 0).then(|| worth[class] / i128::from(ask) + 1));
        let highest = per_unit.collect::<Option<Vec<_>>>()?.into_iter().max()?;
        highest.checked_mul(i128::from((*room).max(0)))
    });
    by_resource.min().unwrap_or(all).min(all)
}
