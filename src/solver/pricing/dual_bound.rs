//! Bounds proven by dual prices, exact and in integers.
//!
//! Give every class a dual price. Suppose that no pattern is worth more than the price of its node.
//! Then no fleet is cheaper than the total value of all pods (the dual of Gilmore and Gomory).
//!
//! Any dual prices can be scaled to satisfy this. Each class is scaled by the minimum, over the
//! offerings that admit it, of price divided by the maximum pattern value (Farley's bound, per
//! class).
//!
//! The maximum pattern value is bounded from above by row prices. It is at most the cost of the
//! whole room plus a surplus for each item. The surplus is the value of the item beyond the cost of
//! its room, times its maximum count.
use super::empty_pattern::EmptyPattern;
use super::float_conversion::{floor_to_i64, floor_to_i128};

/// Number of binary fraction digits of a dual price in micro-USD per hour.
pub(super) const FRACTION_BITS: u32 = 20;

/// The value 1.0 in this fixed-point format.
pub(super) const FIXED_POINT_ONE: f64 = 1_048_576.0;

/// Additional binary fraction digits of row prices.
pub(super) const EXTRA_FRACTION_BITS: u32 = 40;

/// Prices of the rows of an empty pattern: value per unit, with [`EXTRA_FRACTION_BITS`] more binary
/// fraction digits.
pub(super) type RowPrices = Vec<i128>;

/// Converts row prices to integers. `per_room` holds the price of the whole room of each row.
pub(super) fn row_prices(empty: &EmptyPattern, per_room: &[f64]) -> RowPrices {
    let finer = FIXED_POINT_ONE * FIXED_POINT_ONE;
    let per_unit =
        |(price, room): (&f64, &i64)| floor_to_i128(price * finer) / i128::from((*room).max(1));
    per_room.iter().zip(&empty.room).map(per_unit).collect()
}

/// Returns the cost of the room of one pod of an item, rounded down.
pub(super) fn item_cost(empty: &EmptyPattern, prices: &[i128], item: usize) -> i64 {
    let all: i128 =
        empty.requests(item).iter().zip(prices).map(|(request, p)| i128::from(*request) * p).sum();
    i64::try_from(all >> EXTRA_FRACTION_BITS).unwrap_or(i64::MAX)
}

/// Returns the cost of the whole room, rounded up.
pub(super) fn room_cost(empty: &EmptyPattern, prices: &[i128]) -> i128 {
    let all: i128 = empty.room.iter().zip(prices).map(|(room, p)| i128::from(*room) * p).sum();
    (all >> EXTRA_FRACTION_BITS) + 1
}

/// Returns an upper bound on the value of a pattern, for any row `prices`.
pub(super) fn pattern_value_bound(empty: &EmptyPattern, duals: &[i64], prices: &[i128]) -> i128 {
    let surplus = |(item, item_of_class): (usize, &super::empty_pattern::Item)| {
        let value = i128::from(duals[item_of_class.class]);
        (value - i128::from(item_cost(empty, prices, item))).max(0)
            * i128::from(item_of_class.max_count)
    };
    room_cost(empty, prices) + empty.items.iter().enumerate().map(surplus).sum::<i128>()
}

/// Returns the bound in micro-USD per hour, rounded down, that `duals` prove for `wanted` pods by
/// class. The dual prices must be feasible; see [`farley_scaled`].
pub(in crate::solver) fn dual_bound(duals: &[i64], wanted: &[u32]) -> i64 {
    let all: i128 = duals.iter().zip(wanted).map(|(w, n)| i128::from(*w) * i128::from(*n)).sum();
    i64::try_from(all.max(0) >> FRACTION_BITS).unwrap_or(i64::MAX)
}

/// Returns dual prices scaled so that no pattern is worth more than its node. `most` bounds the
/// pattern value of each offering.
pub(super) fn farley_scaled(duals: &[i64], most: &[i128], offerings: &[EmptyPattern]) -> Vec<i64> {
    let mut least: Vec<Option<(i128, i128)>> = vec![None; duals.len()];
    for (empty, most) in offerings.iter().zip(most) {
        let this = (i128::from(empty.price) << FRACTION_BITS, (*most).max(1));
        for item in &empty.items {
            let ratio = &mut least[item.class];
            if ratio.is_none_or(|(price, most)| this.0 * most < price * this.1) {
                *ratio = Some(this);
            }
        }
    }
    let scale = |(dual, ratio): (&i64, &Option<(i128, i128)>)| match ratio {
        Some((price, most)) => scaled_dual(i128::from(*dual), *price, *most),
        None => 0,
    };
    duals.iter().zip(&least).map(scale).collect()
}

/// Returns `dual × price / most`, rounded down, or 0 on overflow.
fn scaled_dual(dual: i128, price: i128, most: i128) -> i64 {
    dual.checked_mul(price).map_or(0, |all| i64::try_from(all / most).unwrap_or(i64::MAX))
}

/// Converts values in micro-USD to fixed point.
pub(super) fn to_fixed_point(values: &[f64]) -> Vec<i64> {
    values.iter().map(|value| floor_to_i64(value * FIXED_POINT_ONE)).collect()
}
