//! From settings to a plan: read the tree, look at the world, ask the engine.

use super::error::CliError;
use super::repository::Repository;
use super::settings::{PlanningSettings, SourceSettings};
use super::world::{self, WorldChoice};
use super::{Console, Exit};
use crate::catalog::Catalog;
use crate::demand::DemandMode;
use crate::engine::{self, Inputs};
use crate::fleet::Observed;
use crate::git::{TreeRead, read_revision, read_tree};
use crate::plan::Plan;
use crate::plan::wire::{Base, BaseWorld};

/// Reads the files that the settings name.
pub(super) fn read(source: &SourceSettings) -> Result<TreeRead, CliError> {
    let SourceSettings { path, revision } = source;
    let read = match revision {
        None => read_tree(path),
        Some(revision) => read_revision(path, revision),
    };
    let read = read?;
    tracing::info!(files = read.tree.files.len(), commit = read.base.commit, "tree read");
    Ok(read)
}

/// Makes a plan.
pub(super) fn plan(settings: &PlanningSettings, console: &Console) -> Result<Plan, CliError> {
    let PlanningSettings { source, world: _, at, demand, scope } = settings;
    let read = read(source)?;
    let repository = Repository::read(&read);
    let world = choice(settings, &repository)?;
    let observed = world::observe(&world, &repository, *at, console)?;
    let fleet = &repository.fleet;
    let region = if fleet.is_declared { fleet.region.clone() } else { observed.region() };
    let catalog = Catalog::load(&region, &fleet.zones)?;
    let demand = demand.unwrap_or(fleet.demand);
    let plan = engine::plan(&Inputs {
        desired: &repository.desired,
        observed: &observed,
        catalog: &catalog,
        base: base(settings, &read, &world, &observed, demand),
        at: world::moment(&world, *at, &observed, console),
        demand,
        scope: scope.clone(),
        settings: fleet.solve,
    });
    tracing::info!(plan_id = %plan.capacity.plan_id, rows = plan.resource_changes.len(), "planned");
    Ok(plan)
}

/// Returns the world that the settings name, else that of `fleetwright.yaml`.
fn choice(settings: &PlanningSettings, repository: &Repository) -> Result<WorldChoice, CliError> {
    match &settings.world {
        Some(world) => Ok(world.clone()),
        // What the repository names is relative to the repository, not to where the user stands.
        None => Ok(WorldChoice::parse(&repository.fleet.world)?.below(&settings.source.path)),
    }
}

fn base(
    settings: &PlanningSettings,
    read: &TreeRead,
    world: &WorldChoice,
    observed: &Observed,
    demand: DemandMode,
) -> Base {
    Base {
        path: settings.source.path.display().to_string(),
        repository: read.base.repository.clone(),
        commit: read.base.commit.clone(),
        tree: read.base.tree.clone(),
        dirty: read.base.dirty,
        world: BaseWorld {
            name: world.to_string(),
            cluster: observed.cluster.clone(),
            taken_at: observed.taken_at,
            sources: observed.sources.clone(),
        },
        demand,
        preconditions: Vec::new(),
    }
}

/// Returns whether the plan would change anything.
pub(super) fn has_changes(plan: &Plan) -> bool {
    let summary = plan.summary;
    summary.add > 0 || summary.change > 0 || summary.destroy > 0
}

/// Returns how a plan ends a command that does not apply it: errors, then policies, then changes.
pub(super) fn exit(plan: &Plan, detailed: bool) -> Exit {
    if plan.errored {
        Exit::Failed
    } else if is_denied(plan) {
        Exit::Denied
    } else if detailed && has_changes(plan) {
        Exit::Changes
    } else {
        Exit::Done
    }
}

/// Returns whether a policy denies the plan.
pub(super) fn is_denied(plan: &Plan) -> bool {
    plan.checks.iter().any(|check| check.status == "fail")
}
