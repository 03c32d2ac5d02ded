//! Money: sums over the rows, prices of the catalogue, and a bound that bounds.

use super::case::{Case, Row, number};
use super::{Verdict, words};
use crate::catalog::{CapacityType, Offering};
use crate::plan::wire::{NodeState, ResourceKind};
use crate::units::MicroUsd;

/// Hundredths of a percent in the whole.
const WHOLE: i128 = 10_000;

/// Most digits of a share before the point, so that no product below overflows.
const WHOLE_DIGITS_MAX: usize = 15;

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    for row in &case.rows {
        prices(case, row, verdict);
    }
    sums(case, verdict);
    bound(case, verdict);
}

fn hourly_before(row: &Row<'_>) -> Option<MicroUsd> {
    row.explain.and_then(|explain| explain.hourly_before)
}

fn hourly_after(row: &Row<'_>) -> Option<MicroUsd> {
    row.explain.and_then(|explain| explain.hourly_after)
}

/// Holds the prices of a row to those of the catalogue.
fn prices(case: &Case<'_>, row: &Row<'_>, verdict: &mut Verdict) {
    for (when, state, stated) in
        [("before", row.before, hourly_before(row)), ("after", row.after, hourly_after(row))]
    {
        let known = state.map(|state| known_prices(case, state)).unwrap_or_default();
        // What is not ours need not be priced.
        let must = row.change.kind == ResourceKind::Ec2Instance && !known.is_empty();
        let right = stated.map_or(!must, |price| known.contains(&price));
        if !right {
            let (stated, known) = (words(&stated), words(&known));
            let fault = format!("the price {when} is stated as {stated}, known are {known}");
            verdict.row("cost/price", row.address, fault);
        }
    }
}

/// Returns the price of what `state` is.
fn known_prices(case: &Case<'_>, state: &NodeState) -> Vec<MicroUsd> {
    if state.capacity_type == Some(CapacityType::Reserved) {
        return vec![MicroUsd::ZERO];
    }
    sold_as(case, state).and_then(|offering| offering.price).into_iter().collect()
}

/// Returns the offering that `state` is; where the catalogue's zones do not have it, that of the same type on
/// demand elsewhere in the region, since lists are made by region. A spot price is one zone's alone.
fn sold_as(case: &Case<'_>, state: &NodeState) -> Option<Offering> {
    case.offering(state).or_else(|| {
        let (kind, bought) = (case.kind(state)?, state.capacity_type?);
        let listed = |o: &&Offering| o.capacity_type == CapacityType::OnDemand;
        let elsewhere = kind.offerings.iter().find(listed).filter(|o| o.capacity_type == bought)?;
        case.sold(kind, &elsewhere.zone, bought, &state.labels)
    })
}

fn sums(case: &Case<'_>, verdict: &mut Verdict) {
    let cost = &case.plan.capacity.cost;
    let before: MicroUsd = case.rows.iter().filter_map(hourly_before).sum();
    let after: MicroUsd = case.rows.iter().filter_map(hourly_after).sum();
    let delta = after - before;
    verdict.equal("cost/sum", "hourly_before", &cost.hourly_before, &before);
    verdict.equal("cost/sum", "hourly_after", &cost.hourly_after, &after);
    verdict.equal("cost/sum", "hourly_delta", &cost.hourly_delta, &delta);
    verdict.equal("cost/sum", "monthly_delta", &cost.monthly_delta, &delta.times(730));
    verdict.equal("cost/source", "currency", &cost.currency, &"USD".to_owned());
    verdict.equal("cost/source", "the source of prices", &cost.prices, &case.facts.catalog.prices);
    let unpriced = |row: &&Row<'_>| {
        (row.before.is_some() && hourly_before(row).is_none())
            || (row.after.is_some() && hourly_after(row).is_none())
    };
    let unpriced = number(case.rows.iter().filter(unpriced));
    verdict.equal("cost/unpriced", "the nodes without a price", &cost.unpriced, &unpriced);
    let estimated = |state: Option<&NodeState>, price: Option<MicroUsd>| {
        let offering = state.and_then(|state| sold_as(case, state));
        price.is_some() && offering.is_some_and(|offering| offering.estimated)
    };
    let estimated = number(case.rows.iter().filter(|row| {
        estimated(row.before, hourly_before(row)) || estimated(row.after, hourly_after(row))
    }));
    verdict.equal("cost/estimated", "the nodes with estimates", &cost.estimated, &estimated);
}

fn bound(case: &Case<'_>, verdict: &mut Verdict) {
    let cost = &case.plan.capacity.cost;
    let (after, bound) = (cost.hourly_after, cost.lower_bound_hourly);
    if bound < MicroUsd::ZERO {
        verdict.plan("cost/bound", format!("the bound {bound} is below nothing"));
    }
    // The bound speaks of fleets that hold the same pods for money: it says nothing where pods have
    // no place, or one that nobody prices.
    let free = |row: &Row<'_>| hourly_after(row).is_none() && row.pods().any(|(_, pods)| pods > 0);
    let homeless = !case.plan.capacity.unschedulable.is_empty();
    if bound > after && !homeless && !case.rows.iter().any(free) {
        verdict.plan("cost/bound", format!("the bound {bound} is above the price {after}"));
    }
    let Some(stated) = hundredths(&cost.gap_percent) else {
        let fault = format!("gap_percent `{}` is no number with two digits", cost.gap_percent);
        return verdict.plan("cost/gap", fault);
    };
    if !gap_holds(stated, after, bound) {
        let fault = format!("{after} is not {}% above {bound}", cost.gap_percent);
        verdict.plan("cost/gap", fault);
    }
}

/// Returns whether `after` is `stated` hundredths of a percent above `bound`, however rounded. With
/// a bound of nothing there is no share to state.
fn gap_holds(stated: i128, after: MicroUsd, bound: MicroUsd) -> bool {
    let (after, bound) = (i128::from(after.0), i128::from(bound.0));
    bound <= 0 || (stated * bound - (after - bound) * WHOLE).abs() < bound
}

/// Reads `24.33` as 2433; `None` unless there are exactly two digits after the point.
fn hundredths(text: &str) -> Option<i128> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let (whole, fraction) = digits.split_once('.')?;
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !plain(whole) || !plain(fraction) || fraction.len() != 2 || whole.len() > WHOLE_DIGITS_MAX {
        return None;
    }
    Some(sign * (whole.parse::<i128>().ok()? * 100 + fraction.parse::<i128>().ok()?))
}
