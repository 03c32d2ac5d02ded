//! Resource lists: requests, limits, overhead.

use super::decode::{Field, shorten};
use crate::model::pod::{ContainerResources, ResourceList};
use crate::model::similar_name::most_similar;
use crate::model::units::{Quantity, ResourceName};

/// Built-in resources of Kubernetes; others have a domain.
const STANDARD: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "storage"];

/// Reads a mapping of non-negative amounts: `cpu` in thousandths, others in whole units.
pub(super) fn resource_list(field: &Field<'_>) -> ResourceList {
    let mut amounts = ResourceList::new();
    let Some(map) = field.map() else { return amounts };
    for (name, value) in map.entries() {
        if let Some(quantity) = non_negative_quantity(&value) {
            amounts.insert(name.into(), to_units(name, quantity));
        }
    }
    amounts
}

/// Reads a quantity that is not negative.
pub(super) fn non_negative_quantity(field: &Field<'_>) -> Option<Quantity> {
    let quantity = field.quantity()?;
    if quantity.is_negative() {
        field.error(format_args!("is {quantity}, below zero"), None);
        return None;
    }
    Some(quantity)
}

fn to_units(name: &str, quantity: Quantity) -> i64 {
    if name == "cpu" { quantity.ceil_milli() } else { quantity.ceil_units() }
}

/// Reads requests and limits, with the validation of the API server.
pub(super) fn container_resources(field: &Field<'_>) -> ContainerResources {
    let Some(map) = field.map() else { return ContainerResources::default() };
    let read = |part: Option<Field<'_>>| {
        part.map(|part| {
            check_names(&part);
            resource_list(&part)
        })
    };
    let requests = read(map.get("requests")).unwrap_or_default();
    let limits = read(map.get("limits")).unwrap_or_default();
    map.ignore(&["claims"]);
    map.finish_with_typo_check();
    check_limits(field, &requests, &limits);
    ContainerResources { requests, limits }
}

fn check_names(field: &Field<'_>) {
    let Some(map) = field.map() else { return };
    for (name, value) in map.entries() {
        let known = STANDARD.contains(&name) || name.starts_with("hugepages-");
        if !known && !name.contains('/') {
            value.error(
                format_args!("is an amount of `{}`, which is not a resource", shorten(name)),
                most_similar(name, &STANDARD).map_or_else(
                    || "extended resources carry a domain, such as nvidia.com/gpu".to_owned(),
                    |name| format!("did you mean `{name}`?"),
                ),
            );
        }
    }
}

fn check_limits(field: &Field<'_>, requests: &ResourceList, limits: &ResourceList) {
    for (name, request) in requests {
        match limits.get(name) {
            Some(limit) if request > limit => field.error(
                format_args!(
                    "requests {} of {name}, more than the limit of {}",
                    display_amount(name, *request),
                    display_amount(name, *limit)
                ),
                "raise the limit, or lower the request".to_owned(),
            ),
            Some(limit) if request < limit && !allows_overcommit(name) => field.error(
                format_args!("requests {request} of {name} with a limit of {limit}"),
                format!("{name} cannot be overcommitted: request and limit must be equal"),
            ),
            None if !allows_overcommit(name) => field.error(
                format_args!("requests {request} of {name} without a limit"),
                format!("{name} cannot be overcommitted: give it the same limit"),
            ),
            Some(_) | None => {}
        }
    }
}

fn display_amount(name: &ResourceName, amount: i64) -> String {
    if name.as_str() == "cpu" { format!("{amount}m") } else { amount.to_string() }
}

fn allows_overcommit(name: &ResourceName) -> bool {
    let name = name.as_str();
    !name.contains('/') && !name.starts_with("hugepages-")
}
