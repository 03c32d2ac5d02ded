//! What prices of pods prove: exact, in integers.
//!
//! Give every class a worth. If no node of any kind can hold pods worth more than it costs, then no
//! fleet is cheaper than what all pods are worth (Gilmore and Gomory's dual). Any worth can be made
//! to fit that: a class is scaled by the least, over the kinds that take it, of price over the most
//! that a node of the kind can hold (Farley's bound, per class). How much a node can hold at most is
//! bounded from above: for any prices of its rows, pods are worth no more than the whole room at
//! these prices plus, for each item, what it is worth beyond what its room costs times the most
//! there may be of it. A node that can be had once is worth at most what it can hold less its price.

use super::blank::Blank;
use super::number::{real, whole, whole_wide};
use super::relaxation::relax;

/// Worth is counted in micro-USD per hour with so many binary digits of fraction.
pub(super) const FRACTION: u32 = 20;

/// The same as a factor.
pub(super) const UNIT: f64 = 1_048_576.0;

/// Prices of rows have so many more.
pub(super) const FINER: u32 = 40;

/// Prices of the rows of one blank: worth per unit, with [`FINER`] more binary digits.
pub(super) type RowPrices = Vec<i128>;

/// Returns row prices in integers; `per_room` prices the whole room of each row.
pub(super) fn row_prices(blank: &Blank, per_room: &[f64]) -> RowPrices {
    let finer = UNIT * UNIT;
    let per_unit =
        |(price, room): (&f64, &i64)| whole_wide(price * finer) / i128::from((*room).max(1));
    per_room.iter().zip(&blank.room).map(per_unit).collect()
}

/// Returns what the room that one pod of an item takes costs, rounded down.
pub(super) fn cost(blank: &Blank, prices: &[i128], item: usize) -> i64 {
    let all: i128 = blank.ask(item).iter().zip(prices).map(|(ask, p)| i128::from(*ask) * p).sum();
    i64::try_from(all >> FINER).unwrap_or(i64::MAX)
}

/// Returns what the whole room costs, rounded up.
pub(super) fn cost_of_room(blank: &Blank, prices: &[i128]) -> i128 {
    let all: i128 = blank.room.iter().zip(prices).map(|(room, p)| i128::from(*room) * p).sum();
    (all >> FINER) + 1
}

/// Returns a bound on what the pods on `blank` can be worth, given any `prices` of its rows.
pub(super) fn most_at(blank: &Blank, worth: &[i64], prices: &[i128]) -> i128 {
    let surplus = |(item, held): (usize, &super::blank::Item)| {
        let worth = i128::from(worth[held.class]);
        (worth - i128::from(cost(blank, prices, item))).max(0) * i128::from(held.most)
    };
    cost_of_room(blank, prices) + blank.items.iter().enumerate().map(surplus).sum::<i128>()
}

/// Returns prices of the rows at which little is worth more than its room costs.
fn guided(blank: &Blank, worth: &[i64]) -> RowPrices {
    let guide: Vec<f64> = blank.items.iter().map(|item| real(worth[item.class])).collect();
    row_prices(blank, &relax(blank, &guide).prices)
}

/// Returns the bound in micro-USD per hour, rounded down, that `worth` proves for `wanted` pods by
/// class, given that no node of any kind can hold more than it costs; see [`scaled`].
pub(super) fn bound(worth: &[i64], wanted: &[u32], singles: &[(Blank, u32)]) -> i64 {
    let pods: i128 = worth.iter().zip(wanted).map(|(w, n)| i128::from(*w) * i128::from(*n)).sum();
    let gain = |(single, count): &(Blank, u32)| {
        let most = most_at(single, worth, &guided(single, worth));
        (most - (i128::from(single.price) << FRACTION)).max(0) * i128::from(*count)
    };
    let all = pods - singles.iter().map(gain).sum::<i128>();
    i64::try_from(all.max(0) >> FRACTION).unwrap_or(i64::MAX)
}

/// Returns the worth scaled so that no kind holds more than it costs; `most` bounds what a node of
/// each kind can hold.
pub(super) fn scaled(worth: &[i64], most: &[i128], kinds: &[Blank]) -> Vec<i64> {
    let mut least: Vec<Option<(i128, i128)>> = vec![None; worth.len()];
    for (blank, most) in kinds.iter().zip(most) {
        let this = (i128::from(blank.price) << FRACTION, (*most).max(1));
        for item in &blank.items {
            let ratio = &mut least[item.class];
            if ratio.is_none_or(|(price, most)| this.0 * most < price * this.1) {
                *ratio = Some(this);
            }
        }
    }
    let scale = |(worth, ratio): (&i64, &Option<(i128, i128)>)| match ratio {
        Some((price, most)) => share(i128::from(*worth), *price, *most),
        None => 0,
    };
    worth.iter().zip(&least).map(scale).collect()
}

/// `worth × price / most`, rounded down.
fn share(worth: i128, price: i128, most: i128) -> i64 {
    worth.checked_mul(price).map_or(0, |all| i64::try_from(all / most).unwrap_or(i64::MAX))
}

/// Returns worth in integers from worth in micro-USD.
pub(super) fn grains(worth: &[f64]) -> Vec<i64> {
    worth.iter().map(|worth| whole(worth * UNIT)).collect()
}
