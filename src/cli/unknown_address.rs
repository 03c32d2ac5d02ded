//! Refuses an address of `--target`, `--exclude` or `--replace` that the plan does not have.

use super::error::CliError;
use crate::model::code::Code;
use crate::model::desired::Desired;
use crate::model::shell::quoted;
use crate::model::similar_name::nearest_of;
use crate::plan::Plan;
use crate::plan::wire::{ResourceChange, ResourceKind};
use crate::planner::Scope;

/// Checks the addresses that the user named. The planner only warns of them, because the controller
/// plans with scopes of its own, and their nodes may end at any time.
///
/// An excluded node of a known pool is no error either: the node may have ended since a script was
/// written, and nothing changes it then. The planner does not warn of a node whose instance EC2
/// still lists as terminated, so that a repeated `apply --replace` succeeds.
///
/// # Errors
/// If an address has no row, with the nearest addresses. A plan with errors is not checked, since its
/// errors may explain missing rows.
pub(super) fn check(plan: &Plan, scope: &Scope, desired: &Desired) -> Result<(), CliError> {
    if plan.errored {
        return Ok(());
    }
    let is_warned_of = |address: &&String| {
        plan.capacity.diagnostics.iter().any(|found| {
            found.object == **address
                && found.code.as_deref() == Some(Code::AddressUnknown.as_str())
        })
    };
    let pools: Vec<String> = desired
        .pools
        .keys()
        .map(|pool| format!("{}.{pool}", ResourceKind::Ec2Instance.as_str()))
        .collect();
    let has_pool = |address: &&String| {
        let pool = pool_of(address);
        let mut rows = plan.resource_changes.iter();
        pools.iter().any(|known| known == pool)
            || rows.any(|row| pool_of(row.address.as_str()) == pool)
    };
    let Scope {
        target_addresses,
        excluded_addresses,
        replaced_addresses,
        changeable_nodes: _,
        running_pods_only: _,
        skips_demand_scenarios: _,
    } = scope;
    let targets = target_addresses.iter().filter(is_warned_of).map(|address| ("--target", address));
    let replaced =
        replaced_addresses.iter().filter(is_warned_of).map(|address| ("--replace", address));
    let excluded =
        excluded_addresses.iter().filter(is_warned_of).filter(|address| !has_pool(address));
    let excluded = excluded.map(|address| ("--exclude", address));
    let unknown: Vec<(&str, &String)> = targets.chain(replaced).chain(excluded).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let named: Vec<String> =
        unknown.iter().map(|(option, address)| format!("{option} {}", quoted(address))).collect();
    let error = CliError::text(format!("no node or pool has the address of {}", named.join(", ")));
    let hints = unknown.iter().map(|(option, address)| {
        let rows = plan.resource_changes.iter();
        let rows = rows.filter(|row| *option != "--replace" || row.change.before.is_some());
        let rows = rows.map(|row: &ResourceChange| row.address.as_str());
        let pools = pools.iter().map(String::as_str).filter(|_| *option != "--replace");
        let near =
            nearest_of(name_of(address), rows.chain(pools).map(|known| (name_of(known), known)));
        match near.as_slice() {
            [] => "`fleetwright plan -v` lists the address of every node".to_owned(),
            near => {
                let near: Vec<String> = near.iter().map(|near| quoted(near)).collect();
                format!("did you mean {}?", near.join(" or "))
            }
        }
    });
    let error = hints.fold(error, CliError::hint);
    let may_have_ended =
        |(_, address): &(&str, &String)| address.contains('[') && has_pool(address);
    Err(if unknown.iter().any(may_have_ended) {
        error.hint(
            "the node may have been replaced before: EC2 lists a terminated instance for about an \
             hour, and leaves it out then",
        )
    } else {
        error
    })
}

/// Returns an address without its key.
fn pool_of(address: &str) -> &str {
    address.split_once('[').map_or(address, |(pool, _)| pool)
}

/// Returns an address without its type.
fn name_of(address: &str) -> &str {
    address.split_once('.').map_or(address, |(_, name)| name)
}
