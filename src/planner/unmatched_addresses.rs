//! Addresses of the scope that match no row.

use super::diff::instance_address;
use super::{Inputs, Scope};
use crate::model::code::Code;
use crate::model::observed::{Instance, Observed, tag};
use crate::plan::Plan;
use crate::plan::wire::{Diagnostic, ResourceKind};

/// Returns a warning for each address of the scope without a matching row, which is most likely a
/// typing error. A node that has ended already is a note: an earlier run may have replaced it.
pub(super) fn diagnostics(inputs: &Inputs, plan: &Plan) -> Vec<Diagnostic> {
    let Scope {
        target_addresses,
        excluded_addresses,
        replaced_addresses,
        changeable_nodes: _,
        running_pods_only: _,
        skips_demand_scenarios: _,
    } = &inputs.scope;
    let has = |pattern: &String| {
        let scope = Scope { target_addresses: vec![pattern.clone()], ..Scope::default() };
        plan.resource_changes.iter().any(|row| scope.allows(&row.address))
    };
    let has_node = |address: &String| {
        let rows = plan.resource_changes.iter();
        rows.filter(|row| row.change.before.is_some()).any(|row| address == row.address.as_str())
    };
    // A pool without nodes is a valid target even if it needs no launch.
    let is_pool = |pattern: &String| {
        let kind = format!("{}.", ResourceKind::Ec2Instance.as_str());
        pattern.strip_prefix(&kind).is_some_and(|name| inputs.desired.pools.contains_key(name))
    };
    let is_unmatched = |pattern: &&String| !has(pattern) && !is_pool(pattern);
    let of_changed = |address: &String, what: &str| match ended(inputs.observed, address) {
        Some(instance) => Diagnostic::note(
            address.clone(),
            format!(
                "its instance {} is terminated already, and nothing is left to do",
                instance.id
            ),
        ),
        None => unmatched(address, what),
    };
    let targets = target_addresses.iter().filter(is_unmatched);
    let targets = targets.map(|it| of_changed(it, "is targeted, and no row has this address"));
    let excluded = excluded_addresses.iter().filter(is_unmatched);
    let excluded = excluded.map(|it| unmatched(it, "is excluded, and no row has this address"));
    let replaced = replaced_addresses.iter().filter(|address| !has_node(address));
    let replaced =
        replaced.map(|it| of_changed(it, "is to be replaced, and no node has this address"));
    targets.chain(excluded).chain(replaced).collect()
}

fn unmatched(address: &str, what: &str) -> Diagnostic {
    Diagnostic::warning(address, what).code(Code::AddressUnknown)
}

/// Returns an ended instance of ours that had the address. EC2 lists it for about an hour.
fn ended<'a>(observed: &'a Observed, address: &str) -> Option<&'a Instance> {
    let has_ended = |instance: &&Instance| {
        instance.has_ended() && instance.is_managed_by(&observed.cluster.name)
    };
    let had_address = |instance: &&Instance| {
        let Some(pool) = instance.tags.get(tag::POOL) else { return false };
        let keys = [instance.tags.get(tag::KEY).map(String::as_str), Some(instance.id.as_str())];
        keys.into_iter().flatten().any(|key| instance_address(pool, key).as_str() == address)
    };
    observed.instances.values().filter(has_ended).find(had_address)
}
