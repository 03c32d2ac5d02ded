//! Launches of an approved plan, against the present inputs.
//!
//! Digest, ID and checksum of a plan file prove no origin: an editor of the file can compute them anew.
//! Prices and demand may differ since the approval. A type or place that the pool does not admit, or
//! that has no price, was never planned.

use std::collections::BTreeSet;

use super::Facts;
use super::context::CheckContext;
use super::launches::{alternative_labels, unmet};
use crate::catalog::Offering;
use crate::model::desired::Pool;
use crate::model::ids::Labels;
use crate::model::observed::tag;
use crate::model::reason::Alternative;
use crate::model::requirement::key;
use crate::plan::change_id;
use crate::plan::wire::{NodeState, Plan};

/// Returns a text for each launch, or alternative of a launch, that the pool does not admit, that
/// the catalog does not know, or whose price is unknown.
pub fn refused_launches(plan: &Plan, facts: &Facts<'_>) -> Vec<String> {
    let context = CheckContext::new(plan, facts);
    let mut texts = Vec::new();
    let instances = facts.observed.instances.values();
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
            texts.push(format!("`{address}` would launch a node of a pool that is not declared"));
            continue;
        };
        // Auto Scaling chooses the members of a group by its own template.
        if context.group(&pool.name).is_some() {
            continue;
        }
        if let Some(fault) = refused_node(&context, pool, after) {
            let kind = after.instance_type.as_ref().map_or("no type", |kind| kind.as_str());
            texts.push(format!("`{address}` would launch {kind}: {fault}"));
            continue;
        }
        let alternatives = plan.capacity.alternatives.iter().filter(|of| of.address == *address);
        for alternative in alternatives.flat_map(|of| &of.offerings) {
            if let Some(fault) = refused_alternative(&context, pool, after, alternative) {
                let Alternative { instance_type, zone, .. } = alternative;
                texts.push(format!(
                    "`{address}` would launch {instance_type} in {zone} as an alternative: {fault}"
                ));
            }
        }
    }
    texts
}

fn refused_node(context: &CheckContext<'_>, pool: &Pool, after: &NodeState) -> Option<String> {
    let Some(kind) = context.kind(after) else { return Some(unknown_type()) };
    let Some(offering) = context.offering(after) else { return Some(not_offered()) };
    if offering.price.is_none() {
        return Some(unpriced());
    }
    let mut labels = alternative_labels(&without_type(after), kind, kind, &offering);
    // A label of the template is stronger than that of the type.
    let of_type = pool.labels.iter().filter(|(key, _)| kind.labels.contains_key(*key));
    labels.extend(of_type.map(|(key, value)| (key.clone(), value.clone())));
    unmet(context, pool, &labels)
}

fn refused_alternative(
    context: &CheckContext<'_>,
    pool: &Pool,
    after: &NodeState,
    alternative: &Alternative,
) -> Option<String> {
    let Alternative { instance_type, zone, capacity_type, .. } = alternative;
    let Some(chosen) = context.kind(after) else { return Some(unknown_type()) };
    let Some(kind) = context.facts.catalog.types.get(instance_type) else {
        return Some(unknown_type());
    };
    let same = |o: &&Offering| o.zone == *zone && o.capacity_type == *capacity_type;
    let Some(listed) = kind.offerings.iter().find(same) else { return Some(not_offered()) };
    let labels: Labels = alternative_labels(&without_type(after), chosen, kind, listed);
    match context.catalog_offering(kind, zone, *capacity_type, &labels) {
        Some(Offering { price: Some(_), .. }) => unmet(context, pool, &labels),
        Some(_) => Some(unpriced()),
        None => Some(not_offered()),
    }
}

/// Returns a node without the labels that describe its type: the file may state those of another.
fn without_type(after: &NodeState) -> NodeState {
    let mut node = after.clone();
    node.labels.retain(|label, _| !label.as_str().starts_with(key::INSTANCE_PREFIX));
    node
}

fn unknown_type() -> String {
    "the catalog does not have this type".to_owned()
}

fn not_offered() -> String {
    "the catalog does not offer it there".to_owned()
}

fn unpriced() -> String {
    "its price is not known".to_owned()
}
