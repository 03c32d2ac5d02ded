//! The pools of the cluster, for repositories with `spec.pools: cluster`.
//!
//! A plan without the pools of the cluster would remove every node. Pools that are not known are
//! therefore an error, and never an empty list.

use std::path::Path;

use super::error::CliError;
use super::planning;
use super::repository::{FleetSettings, PoolsRead, Repository};
use super::settings::SourceSettings;
use super::signature_check::SignatureTrust;
use super::world_choice::WorldChoice;
use super::{Exit, world};
use crate::adapters::git::RepositoryTree;
use crate::model::desired::PoolSource;
use crate::model::observed::ClusterPools;
use crate::plan::Plan;
use crate::simulator::World;

/// What lets a user list pools.
pub(super) const PERMISSION_REMEDY: &str =
    "apply deploy/kubernetes/rbac.yaml, which permits listing node pools and node classes";

const OBSERVE: &str = "fleetwright observe --world live --out FILE";

/// Reads a tree for plans over the requested world, or that of the settings.
pub(super) fn read_over(
    tree: &RepositoryTree,
    requested: Option<&WorldChoice>,
    source: &SourceSettings,
) -> Result<(Repository, WorldChoice), CliError> {
    let fleet = FleetSettings::read(tree);
    let world = planning::world_choice(requested, source, &fleet)?;
    let pools = read(&fleet, &world)?;
    Ok((Repository::read_trusting(tree, &SignatureTrust::default(), pools), world))
}

/// Reads a tree to observe or check `world`. Pools that are not known are left out.
pub(super) fn read_leniently(tree: &RepositoryTree, world: &WorldChoice) -> Repository {
    let pools = read(&FleetSettings::read(tree), world).unwrap_or_default();
    Repository::read_trusting(tree, &SignatureTrust::default(), pools)
}

/// Returns the pools of `world` if the settings read pools from the cluster.
///
/// # Errors
/// If the world does not know them, or does not know all of them.
pub(super) fn read(fleet: &FleetSettings, world: &WorldChoice) -> Result<PoolsRead, CliError> {
    if fleet.pools == PoolSource::Repository {
        return Ok(None);
    }
    let pools = match world {
        WorldChoice::Empty => None,
        WorldChoice::File(path) => world::read(path)?.pools,
        #[cfg(feature = "cluster")]
        WorldChoice::Live => Some(std::sync::Arc::new(super::live::pools()?)),
        #[cfg(not(feature = "cluster"))]
        WorldChoice::Live => return Err(world::not_built()),
        WorldChoice::Sim(directory) => simulated(directory, fleet)?,
    };
    let pools = pools.ok_or_else(|| unknown(world))?;
    check_read(&pools)?;
    Ok(Some(pools))
}

/// Refuses pools that were not read completely.
pub(super) fn check_read(pools: &ClusterPools) -> Result<(), CliError> {
    let Some(why) = pools.unread_reason() else { return Ok(()) };
    let text = format!("the node pools of the cluster are not known: {why}");
    Err(CliError::text(text).hint(PERMISSION_REMEDY))
}

fn simulated(directory: &Path, fleet: &FleetSettings) -> Result<PoolsRead, CliError> {
    if !World::exists_in(directory) {
        return Ok(None);
    }
    super::embedded::pools(directory, fleet)
}

/// Returns the error of a world without pools.
pub(super) fn unknown(world: &WorldChoice) -> CliError {
    let error = CliError::text(format!(
        "`spec.pools` is `cluster`, and world `{world}` does not say which node pools the cluster has"
    ));
    match world {
        WorldChoice::File(_) => {
            error.hint(format!("an earlier version wrote the file; write a new one: {OBSERVE}"))
        }
        WorldChoice::Empty | WorldChoice::Live | WorldChoice::Sim(_) => error.hint(format!(
            "plan over `--world live`; or observe the cluster, and name the file: {OBSERVE}"
        )),
    }
}

/// Refuses a plan that was made with other pools than those of `repository`.
pub(super) fn check_unchanged(plan: &Plan, repository: &Repository) -> Result<(), CliError> {
    if plan.capacity.base.cluster_pools == repository.cluster_pools {
        return Ok(());
    }
    Err(CliError::text("the node pools of the cluster are not those that were planned")
        .kind(Exit::Stale)
        .hint("plan again"))
}

#[cfg(test)]
mod tests;
