//! Launches of an approved plan, against the present inputs.
//!
//! Digest, ID and checksum of a plan file prove no origin: an editor of the file can compute them anew.
//! A type that the pool does not admit was never planned, so its plan is refused. Markets change: an
//! offering that is gone, or dearer than the approver saw, is withdrawn. A launch uses those that
//! remain, and a launch without any is refused.

use std::collections::{BTreeMap, BTreeSet};

use super::Facts;
use super::context::{CheckContext, CheckedRow};
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

/// Reviews the launch of a row: the node `after` of a pool. The identity of the plan covers the price
/// of a row, and not those of its alternatives.
fn review_launch(
    context: &CheckContext<'_>,
    row: &CheckedRow<'_>,
    (pool, after): (&Pool, &NodeState),
    review: &mut LaunchReview,
) {
    let address = row.address;
    let price = row.explain.and_then(|explain| explain.hourly_after);
    let fault = node_fault(context, pool, after, price.map(alternative_price_max));
    let kind = after.instance_type.as_ref().map_or("no type", |kind| kind.as_str());
    let planned = |fault: &str| format!("`{address}` would launch {kind}: {fault}");
    if let Some(Fault::Refused(fault)) = &fault {
        review.refused.push(planned(fault));
        return;
    }
    let (mut withdrawn, mut remaining) = (Vec::new(), usize::from(fault.is_none()));
    let withdrawn_fault = fault.map(|(Fault::Refused(why) | Fault::Withdrawn(why))| why);
    let place = after.instance_type.clone().zip(after.zone.clone()).zip(after.capacity_type);
    if let (Some(fault), Some(((instance_type, zone), capacity_type))) = (&withdrawn_fault, place) {
        let why = fault.clone();
        withdrawn.push(WithdrawnOffering { instance_type, zone, capacity_type, why });
    }
    // `minValues` demands alternatives at any price.
    let is_bound = pool.requirements.iter().all(|requirement| requirement.min_values.is_none());
    let most = price.filter(|_| is_bound).map(alternative_price_max);
    let alternatives = context.plan.capacity.alternatives.iter();
    let alternatives = alternatives.filter(|of| of.address == *address);
    for alternative in alternatives.flat_map(|of| &of.offerings) {
        let Alternative { instance_type, zone, capacity_type, hourly: _ } = alternative;
        match alternative_fault(context, (pool, after), alternative, most) {
            None => remaining += 1,
            Some(Fault::Refused(fault)) => review.refused.push(format!(
                "`{address}` would launch {instance_type} in {zone} as an alternative: {fault}"
            )),
            Some(Fault::Withdrawn(why)) => withdrawn.push(WithdrawnOffering {
                instance_type: instance_type.clone(),
                zone: zone.clone(),
                capacity_type: *capacity_type,
                why,
            }),
        }
    }
    match withdrawn_fault.filter(|_| remaining == 0) {
        Some(fault) => review.refused.push(planned(&fault)),
        None if withdrawn.is_empty() => {}
        None => drop(review.withdrawn.insert(address.clone(), withdrawn)),
    }
}

/// Returns the fault of the planned node. `most` is the highest price that was approved.
fn node_fault(
    context: &CheckContext<'_>,
    pool: &Pool,
    after: &NodeState,
    most: Option<MicroUsd>,
) -> Option<Fault> {
    let Some(kind) = context.kind(after) else { return Some(unknown_type()) };
    let Some(offering) = context.offering(after) else { return Some(not_offered()) };
    let mut labels = alternative_labels(&without_type(after), kind, kind, &offering);
    // A label of the template is stronger than that of the type.
    let of_type = pool.labels.iter().filter(|(key, _)| kind.labels.contains_key(*key));
    labels.extend(of_type.map(|(key, value)| (key.clone(), value.clone())));
    let unmet = unmet(context, pool, &labels).map(Fault::Refused);
    unmet.or_else(|| price_fault(&offering, most))
}

/// Returns the fault of an alternative to the node `after` of a pool.
fn alternative_fault(
    context: &CheckContext<'_>,
    (pool, after): (&Pool, &NodeState),
    alternative: &Alternative,
    most: Option<MicroUsd>,
) -> Option<Fault> {
    let Alternative { instance_type, zone, capacity_type, .. } = alternative;
    let Some(chosen) = context.kind(after) else { return Some(unknown_type()) };
    let Some(kind) = context.facts.catalog.types.get(instance_type) else {
        return Some(unknown_type());
    };
    let same = |o: &&Offering| o.zone == *zone && o.capacity_type == *capacity_type;
    let Some(listed) = kind.offerings.iter().find(same) else { return Some(not_offered()) };
    let labels: Labels = alternative_labels(&without_type(after), chosen, kind, listed);
    let Some(offering) = context.catalog_offering(kind, zone, *capacity_type, &labels) else {
        return Some(not_offered());
    };
    let unmet = unmet(context, pool, &labels).map(Fault::Refused);
    unmet.or_else(|| price_fault(&offering, most))
}

/// Returns the fault of the present price of an offering.
fn price_fault(offering: &Offering, most: Option<MicroUsd>) -> Option<Fault> {
    let Some(price) = offering.price else {
        return Some(Fault::Withdrawn("its price is not known".to_owned()));
    };
    let most = most.filter(|most| price > *most)?;
    let fault = format!("it costs ${price} per hour now, and at most ${most} was approved");
    Some(Fault::Withdrawn(fault))
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
