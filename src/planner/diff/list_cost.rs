//! Cost at list prices: node overlays of the repository may state any price.
//!
//! A node without a list price counts with the price of its overlay, never as nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalog::{Catalog, Overlays};
use crate::model::desired::Desired;
use crate::model::ids::{Address, Labels};
use crate::model::market::CapacityType;
use crate::model::plural;
use crate::model::units::MicroUsd;
use crate::plan::wire::{Cost, Diagnostic, ExplainRow, ListCost, NodeState, ResourceChange};

/// Adds the cost at list prices to `cost`, and a note on it, if an overlay sets a price of the plan.
pub(super) fn add(
    cost: &mut Cost,
    diagnostics: &mut Vec<Diagnostic>,
    changes: &[ResourceChange],
    explain: &[ExplainRow],
    desired: &Desired,
    catalog: &Catalog,
) {
    cost.list = list_cost(cost, changes, explain, desired, catalog);
    if let Some(list) = &cost.list {
        diagnostics.push(note(list, cost.hourly_after));
        diagnostics.sort();
    }
}

/// Returns the cost of a plan at list prices; `None` if no overlay sets a price of the plan.
fn list_cost(
    cost: &Cost,
    changes: &[ResourceChange],
    explain: &[ExplainRow],
    desired: &Desired,
    catalog: &Catalog,
) -> Option<ListCost> {
    if desired.overlays.values().all(|overlay| overlay.price.is_none()) {
        return None;
    }
    let overlays = Overlays::from_desired(desired);
    let explain: BTreeMap<&Address, &ExplainRow> =
        explain.iter().map(|row| (&row.address, row)).collect();
    let mut list = ListCost {
        hourly_before: cost.hourly_before,
        hourly_after: cost.hourly_after,
        overlays: Vec::new(),
        unlisted: 0,
    };
    let mut names = BTreeSet::new();
    for row in changes {
        let Some(prices) = explain.get(&row.address) else { continue };
        let mut is_unlisted = false;
        for (total, state, stated) in [
            (&mut list.hourly_before, &row.change.before, prices.hourly_before),
            (&mut list.hourly_after, &row.change.after, prices.hourly_after),
        ] {
            // A node without a price counts as zero.
            let state = state.as_ref().filter(|_| stated.is_some());
            let Some((listed, labels)) = state.and_then(|state| list_price(state, catalog)) else {
                continue;
            };
            let overlaid = overlays.apply(&labels, listed);
            let Some(adjusted) = overlaid.price.filter(|adjusted| Some(*adjusted) != listed) else {
                continue;
            };
            match listed {
                Some(listed) => *total += listed - adjusted,
                None => is_unlisted = true,
            }
            names.extend(overlaid.names);
        }
        list.unlisted += u32::from(is_unlisted);
    }
    let changes_price =
        |name: &String| desired.overlays.get(name).is_some_and(|overlay| overlay.price.is_some());
    list.overlays = names.into_iter().filter(changes_price).collect();
    (!list.overlays.is_empty()).then_some(list)
}

/// Returns a note that names the overlays, and what the fleet costs without them.
fn note(list: &ListCost, hourly_after: MicroUsd) -> Diagnostic {
    let unlisted = match list.unlisted {
        0 => String::new(),
        nodes => format!(
            "; without a list price: {}, counted at the price of the overlay",
            plural::count(nodes, "node")
        ),
    };
    let message = format!(
        "prices are adjusted by NodeOverlay {}: the fleet costs {hourly_after} USD per hour, and {} \
         at list prices{unlisted}",
        list.overlays.join(", "),
        list.hourly_after
    );
    Diagnostic::note("", message)
}

/// Returns the list price of a node, if it has one, and its labels. Of several zones, the dearest one
/// counts. `None` for a node that no list could price.
fn list_price(state: &NodeState, catalog: &Catalog) -> Option<(Option<MicroUsd>, Labels)> {
    // The account pays a reservation with and without instances.
    let capacity_type = state.capacity_type.filter(|kind| *kind != CapacityType::Reserved)?;
    let kind = catalog.types.get(state.instance_type.as_ref()?)?;
    let offerings = || kind.offerings.iter().filter(|one| one.capacity_type == capacity_type);
    let here = offerings().find(|one| state.zone.as_ref() == Some(&one.zone));
    let price = match here {
        Some(one) => one.price,
        None => offerings().filter_map(|one| one.price).max(),
    };
    let mut labels = kind.labels.clone();
    labels.extend(state.labels.clone());
    Some((price, labels))
}
