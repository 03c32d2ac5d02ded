//! Cost: sums over the rows, prices of the catalog, and the lower bound.

use super::context::{CheckContext, CheckedRow, count};
use super::{Violations, words};
use crate::catalog::Offering;
use crate::model::ids::ZoneName;
use crate::model::market::CapacityType;
use crate::model::units::MicroUsd;
use crate::plan::wire::{NodeState, ResourceKind};

/// 100 % in hundredths of a percent.
const WHOLE: i128 = 10_000;

/// Maximum number of digits before the decimal point. With more digits, a product below could
/// overflow.
const WHOLE_DIGITS_MAX: usize = 15;

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    for row in &context.rows {
        prices(context, row, violations);
    }
    sums(context, violations);
    bound(context, violations);
}

fn hourly_before(row: &CheckedRow<'_>) -> Option<MicroUsd> {
    row.explain.and_then(|explain| explain.hourly_before)
}

fn hourly_after(row: &CheckedRow<'_>) -> Option<MicroUsd> {
    row.explain.and_then(|explain| explain.hourly_after)
}

/// Checks the prices of a row against the catalog.
fn prices(context: &CheckContext<'_>, row: &CheckedRow<'_>, violations: &mut Violations) {
    for (when, state, stated) in
        [("before", row.before, hourly_before(row)), ("after", row.after, hourly_after(row))]
    {
        let known = state.map(|state| known_prices(context, state)).unwrap_or_default();
        // Unmanaged nodes need no price.
        let is_required = row.change.kind == ResourceKind::Ec2Instance && !known.is_empty();
        let is_valid = stated.map_or(!is_required, |price| known.contains(&price));
        if !is_valid {
            let (stated, known) = (words(&stated), words(&known));
            let fault = format!("the price {when} is stated as {stated}, known are {known}");
            violations.report_row("cost/price", row.address, fault);
        }
    }
}

/// Returns the possible prices of `state`.
fn known_prices(context: &CheckContext<'_>, state: &NodeState) -> Vec<MicroUsd> {
    if state.capacity_type == Some(CapacityType::Reserved) {
        return vec![MicroUsd::ZERO];
    }
    let offerings = offerings(context, state).into_iter().chain(member_offerings(context, state));
    offerings.filter_map(|offering| offering.price).collect()
}

/// Returns the offerings of `state` as each type of its group. A new member has the price of the
/// dearest one.
fn member_offerings(context: &CheckContext<'_>, state: &NodeState) -> Vec<Offering> {
    let group = state.pool.as_ref().and_then(|pool| context.group(pool));
    let Some((group, capacity_type)) = group.zip(state.capacity_type) else { return Vec::new() };
    let is_at = |zone: &ZoneName| match &state.zone {
        Some(own) => own == zone,
        None => group.zones.is_empty() || group.zones.contains(zone),
    };
    let kinds = group.types.iter().filter_map(|name| context.facts.catalog.types.get(name));
    let offerings = kinds.flat_map(|kind| {
        let mut labels = kind.labels.clone();
        labels.extend(state.labels.clone());
        let listed = kind.offerings.iter().filter(|one| is_at(&one.zone));
        let zones: Vec<&ZoneName> = listed.map(|one| &one.zone).collect();
        let priced = zones
            .into_iter()
            .filter_map(|zone| context.catalog_offering(kind, zone, capacity_type, &labels));
        priced.collect::<Vec<_>>()
    });
    offerings.collect()
}

/// Returns the offering of `state`; for a new member of a group of several zones, those of each
/// zone.
fn offerings(context: &CheckContext<'_>, state: &NodeState) -> Vec<Offering> {
    let known = priced_offering(context, state);
    let member = state.pool.as_ref().filter(|_| state.zone.is_none());
    let group = member.and_then(|pool| context.group(pool)).zip(context.kind(state));
    let Some((group, kind)) = group.filter(|_| known.is_none()) else {
        return known.into_iter().collect();
    };
    let is_one = |one: &&Offering| {
        Some(one.capacity_type) == state.capacity_type
            && (group.zones.is_empty() || group.zones.contains(&one.zone))
    };
    let listed = kind.offerings.iter().filter(is_one);
    let all = listed.filter_map(|one| {
        context.catalog_offering(kind, &one.zone, one.capacity_type, &state.labels)
    });
    all.collect()
}

/// Returns the offering of `state`.
///
/// If the catalog lacks the zone, an on-demand state uses the offering of another zone, since price
/// lists are regional. A spot price is valid in one zone only, and a Local Zone has prices of its own.
fn priced_offering(context: &CheckContext<'_>, state: &NodeState) -> Option<Offering> {
    context.offering(state).or_else(|| {
        let (kind, capacity_type) = (context.kind(state)?, state.capacity_type?);
        let region = &context.facts.catalog.region;
        if state.zone.as_ref().is_some_and(|zone| zone.is_edge_of(region)) {
            return None;
        }
        let listed = |o: &&Offering| o.capacity_type == CapacityType::OnDemand;
        let elsewhere =
            kind.offerings.iter().find(listed).filter(|o| o.capacity_type == capacity_type)?;
        context.catalog_offering(kind, &elsewhere.zone, capacity_type, &state.labels)
    })
}

fn sums(context: &CheckContext<'_>, violations: &mut Violations) {
    let cost = &context.plan.capacity.cost;
    let before: MicroUsd = context.rows.iter().filter_map(hourly_before).sum();
    let after: MicroUsd = context.rows.iter().filter_map(hourly_after).sum();
    let delta = after - before;
    violations.require_equal("cost/sum", "hourly_before", &cost.hourly_before, &before);
    violations.require_equal("cost/sum", "hourly_after", &cost.hourly_after, &after);
    violations.require_equal("cost/sum", "hourly_delta", &cost.hourly_delta, &delta);
    violations.require_equal("cost/sum", "monthly_delta", &cost.monthly_delta, &delta.times(730));
    violations.require_equal("cost/source", "currency", &cost.currency, &"USD".to_owned());
    violations.require_equal(
        "cost/source",
        "the source of prices",
        &cost.prices,
        &context.facts.catalog.prices,
    );
    let unpriced = |row: &&CheckedRow<'_>| {
        (row.before.is_some() && hourly_before(row).is_none())
            || (row.after.is_some() && hourly_after(row).is_none())
    };
    let unpriced = count(context.rows.iter().filter(unpriced));
    violations.require_equal(
        "cost/unpriced",
        "the nodes without a price",
        &cost.unpriced,
        &unpriced,
    );
    let estimated = |state: Option<&NodeState>, price: Option<MicroUsd>| {
        let known = state.map(|state| offerings(context, state)).unwrap_or_default();
        price.is_some() && known.iter().any(|one| one.price == price && one.estimated)
    };
    // A new member may have the price of another type of its group.
    let is_new_estimate = |row: &CheckedRow<'_>| {
        let members = row.after.filter(|_| row.before.is_none());
        let members = members.map(|state| member_offerings(context, state)).unwrap_or_default();
        let price = hourly_after(row);
        price.is_some() && members.iter().any(|one| one.price == price && one.estimated)
    };
    let estimated = count(context.rows.iter().filter(|row| {
        estimated(row.before, hourly_before(row))
            || estimated(row.after, hourly_after(row))
            || is_new_estimate(row)
    }));
    violations.require_equal(
        "cost/estimated",
        "the nodes with estimates",
        &cost.estimated,
        &estimated,
    );
}

fn bound(context: &CheckContext<'_>, violations: &mut Violations) {
    let cost = &context.plan.capacity.cost;
    let (after, bound) = (cost.hourly_after, cost.lower_bound_hourly);
    if bound < MicroUsd::ZERO {
        violations.report_plan("cost/bound", format!("the bound {bound} is negative"));
    }
    // The bound applies to fleets of priced nodes that hold the same pods. It does not apply if
    // pods are unschedulable or run on unpriced nodes.
    let is_unpriced =
        |row: &CheckedRow<'_>| hourly_after(row).is_none() && row.pods().any(|(_, pods)| pods > 0);
    let capacity = &context.plan.capacity;
    let has_unschedulable =
        !capacity.unschedulable.is_empty() || !capacity.cluster_autoscaler.is_empty();
    if bound > after && !has_unschedulable && !context.rows.iter().any(is_unpriced) {
        violations
            .report_plan("cost/bound", format!("the bound {bound} is above the price {after}"));
    }
    let Some(stated) = hundredths(&cost.gap_percent) else {
        let fault = format!("gap_percent `{}` is not a number with two decimals", cost.gap_percent);
        return violations.report_plan("cost/gap", fault);
    };
    if !gap_holds(stated, after, bound) {
        let fault = format!("{after} is not {}% above {bound}", cost.gap_percent);
        violations.report_plan("cost/gap", fault);
    }
}

/// Returns whether `after` is `stated` hundredths of a percent above `bound`, with any rounding.
/// With a zero bound, any percentage is accepted.
fn gap_holds(stated: i128, after: MicroUsd, bound: MicroUsd) -> bool {
    let (after, bound) = (i128::from(after.0), i128::from(bound.0));
    bound <= 0 || (stated * bound - (after - bound) * WHOLE).abs() < bound
}

/// Parses `24.33` as 2433; `None` unless there are exactly two decimals.
fn hundredths(text: &str) -> Option<i128> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let (whole, fraction) = digits.split_once('.')?;
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !plain(whole) || !plain(fraction) || fraction.len() != 2 || whole.len() > WHOLE_DIGITS_MAX {
        return None;
    }
    Some(sign * (whole.parse::<i128>().ok()? * 100 + fraction.parse::<i128>().ok()?))
}
