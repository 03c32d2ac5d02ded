//! Pods without any pool.

use crate::demand::Demand;
use crate::model::code::Code;
use crate::model::desired::{Desired, FLEET_FILE, Problem};
use crate::model::ids::Origin;
use crate::solver::EXPORT_POOLS;

/// Returns a warning if pods need nodes, and nothing declares where they come from.
///
/// Terraform often creates the pools, so that they exist in the cluster alone.
pub fn missing_pools(desired: &Desired, demand: &Demand) -> Option<Problem> {
    let Desired { pools, auto_mode_pools, node_groups, external_groups, .. } = desired;
    let is_declared = desired.has_unread_pools
        || !pools.is_empty()
        || !auto_mode_pools.is_empty()
        || !node_groups.is_empty()
        || !external_groups.is_empty();
    if is_declared {
        return None;
    }
    let message = "no file declares a NodePool or a node group, so that no pod gets a node";
    let (origin, message) = match (demand.groups.first(), desired.unresolved.first()) {
        (Some(first), _) => (first.origin.clone(), message.to_owned()),
        // Sources that are not read have pods as well, and may declare the pools.
        (None, Some(first)) => {
            (Some(first.origin.clone()), message.replacen("file", "file that is read", 1))
        }
        (None, None) => return None,
    };
    let origin = origin.unwrap_or_else(|| Origin::new(FLEET_FILE, 0));
    let hint = format!(
        "declare one; if Terraform makes them, set spec.pools: cluster, or export them: `{EXPORT_POOLS}`"
    );
    Some(Problem::warning(origin, "Fleet", message).hint(hint).code(Code::NoPool))
}
