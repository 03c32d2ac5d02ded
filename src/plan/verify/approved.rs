//! Launches of an approved plan, against the present inputs.
//!
//! Digest, ID and checksum of a plan file prove no origin: an editor of the file can compute them anew.
//! A type that the pool does not admit was never planned, so its plan is refused. Markets change: an
//! offering that is gone, or dearer than the approver saw, is withdrawn. A launch uses those that
//! remain, and a launch without any is refused.

use std::collections::{BTreeMap, BTreeSet};

use super::Facts;
use super::context::{CheckContext, CheckedRow, count};
use super::launches::{alternative_labels, unmet};
use crate::catalog::Offering;
use crate::model::desired::Pool;
use crate::model::ids::{Address, Labels};
use crate::model::market::alternative_price_max;
use crate::model::observed::tag;
use crate::model::reason::Alternative;
use crate::model::requirement::key;
use crate::model::units::MicroUsd;
use crate::plan::wire::{NodeState, Plan};
use crate::plan::{WithdrawnOffering, change_id};

/// The approved launches, against the present inputs.
#[derive(Debug, Default)]
pub struct LaunchReview {
    /// Launches that must not be made, in words. Their plan is refused.
    pub refused: Vec<String>,
    /// Offerings that must not be requested, by launch. Each launch has an offering that remains.
    pub withdrawn: BTreeMap<Address, Vec<WithdrawnOffering>>,
    /// Present price of the dearest offering that remains, for launches whose planned offering is
    /// withdrawn.
    pub dearest: BTreeMap<Address, MicroUsd>,
}

/// Fault of an offering.
enum Fault {
    /// It was never planned.
    Refused(String),
    /// It is not available any more.
    Withdrawn(String),
}

/// Compares the launches of a plan, and their alternatives, with their pools and the catalog.
pub fn review_launches(plan: &Plan, facts: &Facts<'_>) -> LaunchReview {
    let context = CheckContext::new(plan, facts);
    let mut review = LaunchReview::default();
    let instances = facts.observed.instances.values().filter(|instance| !instance.has_ended());
    let started: BTreeSet<&String> =
        instances.filter_map(|instance| instance.tags.get(tag::CHANGE)).collect();
    for row in context.rows.iter().filter(|row| row.action.creates()) {
        let Some(after) = row.after else { continue };
        let address = row.address;
        // An earlier run of the plan launched this node.
        if started.contains(&change_id(&plan.capacity.plan_id, address).to_string()) {
            continue;
        }
        let Some(pool) = after.pool.as_ref().and_then(|name| context.pool(name)) else {
            let text = format!("`{address}` would launch a node of a pool that is not declared");
            review.refused.push(text);
            continue;
        };
        // Auto Scaling chooses the members of a group by its own template.
        if context.group(&pool.name).is_none() {
            review_launch(&context, row, (pool, after), &mut review);
        }
    }
    review
}

/// An offering that may be requested, as it is now.
struct RemainingOffering {
    labels: Labels,
    price: MicroUsd,
}

/// Reviews the launch of a row: the node `after` of a pool. The identity of the plan covers the price
/// of a row and those of its alternatives. The digest covers neither.
fn review_launch(
    context: &CheckContext<'_>,
    row: &CheckedRow<'_>,
    (pool, after): (&Pool, &NodeState),
    review: &mut LaunchReview,
) {
    let address = row.address;
    let kind = after.instance_type.as_ref().map_or("no type", |kind| kind.as_str());
    let planned = |fault: &str| format!("`{address}` would launch {kind}: {fault}");
    let (mut withdrawn, mut remaining) = (Vec::new(), Vec::new());
    let Some(price) = row.explain.and_then(|explain| explain.hourly_after) else {
        review.refused.push(planned("the plan states no price for it"));
        return;
    };
    let most = alternative_price_max(price);
    let withdrawn_fault = match checked_node(context, pool, after, most) {
        Ok(offering) => {
            remaining.push(offering);
            None
        }
        Err(Fault::Refused(fault)) => {
            review.refused.push(planned(&fault));
            return;
        }
        Err(Fault::Withdrawn(why)) => Some(why),
    };
    let place = after.instance_type.clone().zip(after.zone.clone()).zip(after.capacity_type);
    if let (Some(fault), Some(((instance_type, zone), capacity_type))) = (&withdrawn_fault, place) {
        let why = fault.clone();
        withdrawn.push(WithdrawnOffering { instance_type, zone, capacity_type, why });
    }
    // `minValues` demands alternatives at any price, so that one may cost more than the row.
    let is_bound = pool.requirements.iter().all(|requirement| requirement.min_values.is_none());
    let alternatives = context.plan.capacity.alternatives.iter();
    let alternatives = alternatives.filter(|of| of.address == *address);
    for alternative in alternatives.flat_map(|of| &of.offerings) {
        let Alternative { instance_type, zone, capacity_type, hourly } = alternative;
        let most = if is_bound { most } else { most.max(alternative_price_max(*hourly)) };
        match checked_alternative(context, (pool, after), alternative, most) {
            Ok(offering) => remaining.push(offering),
            Err(Fault::Refused(fault)) => review.refused.push(format!(
                "`{address}` would launch {instance_type} in {zone} as an alternative: {fault}"
            )),
            Err(Fault::Withdrawn(why)) => withdrawn.push(WithdrawnOffering {
                instance_type: instance_type.clone(),
                zone: zone.clone(),
                capacity_type: *capacity_type,
                why,
            }),
        }
    }
    if withdrawn.is_empty() && withdrawn_fault.is_none() {
        return;
    }
    if let Some(fault) = withdrawn_fault {
        let Some(dearest) = remaining.iter().map(|offering| offering.price).max() else {
            review.refused.push(planned(&fault));
            return;
        };
        review.dearest.insert(address.clone(), dearest);
    }
    review.refused.extend(missed_values(row, pool, &remaining).map(|fault| planned(&fault)));
    review.withdrawn.insert(address.clone(), withdrawn);
}

/// Returns the `minValues` demand of a pool that the offerings that remain do not meet. A row may
/// state a shortage, which its approver saw.
fn missed_values(
    row: &CheckedRow<'_>,
    pool: &Pool,
    remaining: &[RemainingOffering],
) -> Option<String> {
    // A reservation has one type and one zone, so `minValues` does not apply.
    if row.after.is_some_and(|after| after.reservation.is_some()) {
        return None;
    }
    let relaxed = row.explain.map(|explain| explain.relaxed.as_slice()).unwrap_or_default();
    pool.requirements.iter().find_map(|requirement| {
        let (key, demanded) = (&requirement.key, requirement.min_values?);
        let stated = relaxed.iter().find(|stated| stated.key == *key);
        let demanded = stated.map_or(demanded, |stated| stated.remain.min(demanded));
        let values = remaining.iter().filter_map(|offering| offering.labels.get(key));
        let there = count(values.collect::<BTreeSet<_>>());
        (there < demanded).then(|| {
            format!(
                "minValues of {key} demands {demanded} values, and its offerings that remain have \
                 {there}"
            )
        })
    })
}

/// Returns the planned node as it is offered now. `most` is the highest price that was approved.
fn checked_node(
    context: &CheckContext<'_>,
    pool: &Pool,
    after: &NodeState,
    most: MicroUsd,
) -> Result<RemainingOffering, Fault> {
    let kind = context.kind(after).ok_or_else(unknown_type)?;
    let offering = context.offering(after).ok_or_else(not_offered)?;
    let mut labels = alternative_labels(&without_type(after), kind, kind, &offering);
    // A label of the template is stronger than that of the type.
    let of_type = pool.labels.iter().filter(|(key, _)| kind.labels.contains_key(*key));
    labels.extend(of_type.map(|(key, value)| (key.clone(), value.clone())));
    checked_offering(context, pool, (labels, &offering), most)
}

/// Returns an alternative to the node `after` of a pool as it is offered now.
fn checked_alternative(
    context: &CheckContext<'_>,
    (pool, after): (&Pool, &NodeState),
    alternative: &Alternative,
    most: MicroUsd,
) -> Result<RemainingOffering, Fault> {
    let Alternative { instance_type, zone, capacity_type, .. } = alternative;
    let chosen = context.kind(after).ok_or_else(unknown_type)?;
    let kind = context.facts.catalog.types.get(instance_type).ok_or_else(unknown_type)?;
    let same = |o: &&Offering| o.zone == *zone && o.capacity_type == *capacity_type;
    let listed = kind.offerings.iter().find(same).ok_or_else(not_offered)?;
    let labels = alternative_labels(&without_type(after), chosen, kind, listed);
    let offering = context.catalog_offering(kind, zone, *capacity_type, &labels);
    checked_offering(context, pool, (labels, &offering.ok_or_else(not_offered)?), most)
}

/// Checks an offering against the requirements of its pool and the highest price.
fn checked_offering(
    context: &CheckContext<'_>,
    pool: &Pool,
    (labels, offering): (Labels, &Offering),
    most: MicroUsd,
) -> Result<RemainingOffering, Fault> {
    if let Some(unmet) = unmet(context, pool, &labels) {
        return Err(Fault::Refused(unmet));
    }
    let Some(price) = offering.price else {
        return Err(Fault::Withdrawn("its price is not known".to_owned()));
    };
    if price > most {
        let fault = format!("it costs ${price} per hour now, and at most ${most} was approved");
        return Err(Fault::Withdrawn(fault));
    }
    Ok(RemainingOffering { labels, price })
}

/// Returns a node without the labels that describe its type: the file may state those of another.
fn without_type(after: &NodeState) -> NodeState {
    let mut node = after.clone();
    node.labels.retain(|label, _| !label.as_str().starts_with(key::INSTANCE_PREFIX));
    node
}

fn unknown_type() -> Fault {
    Fault::Refused("the catalog does not have this type".to_owned())
}

fn not_offered() -> Fault {
    Fault::Withdrawn("the catalog does not offer it there".to_owned())
}
