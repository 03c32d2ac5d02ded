//! The embedded world: how commands observe and open it.

use std::path::Path;
use std::rc::Rc;

use jiff::{SignedDuration, Timestamp};

use super::error::CliError;
use super::repository::{FleetSettings, PoolsRead, Repository};
use crate::demand::{ShapeContext, pod_shape};
use crate::model::desired::Desired;
use crate::model::observed::{ClusterIdentity, Observed};
use crate::plan::Plan;
use crate::simulator::{ShapeFn, SimError, World, WorldInit, eksctl_groups};

/// Seed of the tie-breaking between equally good nodes in a new world.
const SEED: u64 = 1;

/// The longest simulated time until the members of a new node group have joined.
pub(super) const GROUP_CREATION_MAX: SignedDuration = SignedDuration::from_mins(30);

/// Observes the embedded world of `directory`, which stays as it is; a missing one is empty. Declared
/// node groups and their first members are part of it: an apply creates the missing ones first, as
/// eksctl does.
pub(super) fn observe(
    directory: &Path,
    repository: &Repository,
    at: Timestamp,
) -> Result<Observed, CliError> {
    let world = copy(repository, Some(directory), at)?;
    let desired = &repository.desired;
    if desired.node_groups.is_empty() {
        return Ok(world.observed());
    }
    let region = world.cluster().region.as_str().into();
    let catalog = repository.fleet.catalog(&region)?;
    let groups = eksctl_groups(desired, &catalog);
    world
        .create_groups(&groups, GROUP_CREATION_MAX)
        .map_err(|error| cannot_open(directory, error))?;
    Ok(world.observed())
}

/// Returns the pools of the world of `directory`, if it was observed with them.
pub(super) fn pools(directory: &Path, fleet: &FleetSettings) -> Result<PoolsRead, CliError> {
    let genesis = genesis(fleet, Timestamp::UNIX_EPOCH);
    let shape = shapes(&Rc::new(Desired::default()));
    let world = World::copy_in_memory(directory, &genesis, &shape)
        .map_err(|error| cannot_open(directory, error))?;
    Ok(world.and_then(|world| world.observed().pools))
}

/// Returns the simulated time of the world of `directory`; without a world, the time of its
/// creation.
pub(super) fn now(directory: &Path, plan: &Plan) -> Result<Timestamp, CliError> {
    let world = &plan.capacity.base.world;
    if !World::exists_in(directory) {
        return Ok(world.taken_at);
    }
    let genesis = WorldInit { cluster: world.cluster.clone(), now: world.taken_at, seed: SEED };
    Ok(open(directory, &genesis, &Rc::new(Desired::default()))?.observed().taken_at)
}

/// Opens the world of `directory` for `repository`; creates an empty world if missing.
pub(super) fn open_for(
    directory: &Path,
    repository: &Repository,
    desired: &Rc<Desired>,
    now: Timestamp,
) -> Result<World, CliError> {
    open(directory, &genesis(&repository.fleet, now), desired)
}

pub(super) fn open(
    directory: &Path,
    genesis: &WorldInit,
    desired: &Rc<Desired>,
) -> Result<World, CliError> {
    World::open(directory, genesis, shapes(desired)).map_err(|error| cannot_open(directory, error))
}

/// Returns an in-memory copy of the world of a directory, or an empty world.
pub(super) fn copy(
    repository: &Repository,
    directory: Option<&Path>,
    now: Timestamp,
) -> Result<World, CliError> {
    let shape = shapes(&Rc::new(repository.desired.clone()));
    let genesis = genesis(&repository.fleet, now);
    let found = directory.map(|directory| {
        World::copy_in_memory(directory, &genesis, &shape)
            .map_err(|error| cannot_open(directory, error))
    });
    Ok(found.transpose()?.flatten().unwrap_or_else(|| World::in_memory(&genesis, shape)))
}

/// Opens the world of a directory for changes outside a plan.
pub(super) fn open_in(
    directory: &Path,
    repository: &Repository,
    now: Timestamp,
) -> Result<World, CliError> {
    let desired = Rc::new(repository.desired.clone());
    open(directory, &genesis(&repository.fleet, now), &desired)
}

fn shapes(desired: &Rc<Desired>) -> ShapeFn {
    let context = Rc::clone(desired);
    Rc::new(move |namespace, template| pod_shape(namespace, template, &ShapeContext::new(&context)))
}

fn cannot_open(directory: &Path, error: SimError) -> CliError {
    CliError::new(error)
        .context(format!("cannot open the embedded world in `{}`", directory.display()))
}

pub(super) fn genesis(fleet: &FleetSettings, now: Timestamp) -> WorldInit {
    let cluster = ClusterIdentity {
        account: "000000000000".to_owned(),
        uid: format!("sim-{}", fleet.cluster),
        ..fleet.identity()
    };
    WorldInit { cluster, now, seed: SEED }
}
