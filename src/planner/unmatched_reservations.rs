//! Selectors of capacity reservations without a match, and the price of the nodes that are bought
//! instead.

use std::collections::BTreeMap;

use super::Inputs;
use crate::model::ids::{Address, PoolName};
use crate::model::market::CapacityType;
use crate::model::plural;
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::plan::wire::{Action, Diagnostic, ResourceChange};
use crate::solver::{UnmatchedReservations, unmatched_reservations};

/// Returns a warning for each node class with selectors that match no capacity reservation. A pool
/// that allows other capacity launches that, as with Karpenter, and the account pays for it.
pub(super) fn warnings(inputs: &Inputs, plan: &Plan) -> Vec<Diagnostic> {
    let found = unmatched_reservations(inputs.desired, inputs.observed).into_iter();
    found.map(|unmatched| warning(&unmatched, plan)).collect()
}

fn warning(unmatched: &UnmatchedReservations<'_>, plan: &Plan) -> Diagnostic {
    let UnmatchedReservations { class, field, selectors, pools } = unmatched;
    let names: Vec<&str> = pools.iter().map(|pool| pool.as_str()).collect();
    let noun = if names.len() == 1 { "pool" } else { "pools" };
    let pools_text = format!("{noun} {}", names.join(", "));
    let effect = match bought(pools, plan) {
        Bought { nodes: 0, .. } => format!("and {pools_text} cannot launch in it"),
        Bought { nodes, unpriced, hourly } => {
            let without = match unpriced {
                0 => String::new(),
                unpriced => format!(" and {unpriced} without a price"),
            };
            format!(
                "and {} of {pools_text} outside of reservations cost{} {hourly} USD per hour\
                 {without}",
                plural::count(nodes, "new node"),
                if nodes == 1 { "s" } else { "" }
            )
        }
    };
    let message = format!("{selectors} of `{field}` matches no capacity reservation, {effect}");
    Diagnostic::warning(format!("{} {}", class.generation.class_kind(), class.name), message)
        .origin(class.origin.clone())
        .hint(format!("correct or remove the selector in `{field}`"))
}

/// Launches outside of reservations.
struct Bought {
    nodes: u32,
    /// Nodes without a known price.
    unpriced: usize,
    /// Price per hour of the other nodes.
    hourly: MicroUsd,
}

fn bought(pools: &[&PoolName], plan: &Plan) -> Bought {
    let prices: BTreeMap<&Address, MicroUsd> = plan
        .capacity
        .explain
        .iter()
        .filter_map(|row| Some((&row.address, row.hourly_after?)))
        .collect();
    let is_bought = |row: &&ResourceChange| {
        row.change.actions.contains(&Action::Create)
            && row.change.after.as_ref().is_some_and(|after| {
                after.capacity_type != Some(CapacityType::Reserved)
                    && after.pool.as_ref().is_some_and(|pool| pools.contains(&pool))
            })
    };
    let rows = plan.resource_changes.iter().filter(is_bought);
    let found: Vec<Option<MicroUsd>> = rows.map(|row| prices.get(&row.address).copied()).collect();
    Bought {
        nodes: u32::try_from(found.len()).unwrap_or(u32::MAX),
        unpriced: found.iter().filter(|price| price.is_none()).count(),
        hourly: found.into_iter().flatten().sum(),
    }
}
