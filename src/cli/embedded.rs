//! The embedded world: how commands observe it, and apply plans to it.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use jiff::{SignedDuration, Timestamp};

use super::error::CliError;
use super::lock::WorldLock;
use super::progress::ProgressReporter;
use super::replan::Replanner;
use super::repository::{FleetSettings, Repository};
use super::settings::{self, SourceSettings};
use super::{Console, Exit, files, planning};
use crate::adapters::git::{RemoteRepository, read_revision, read_tree};
use crate::apply::{ApplyError, ApplySettings, ApplyStatus, Ports, Receipt, apply, verify};
use crate::catalog::Catalog;
use crate::demand::{ShapeContext, pod_shape};
use crate::model::desired::Desired;
use crate::model::observed::{ClusterIdentity, Observed};
use crate::plan::Plan;
use crate::simulator::{Delivery, ShapeFn, SimError, World, WorldInit, eksctl_groups};

/// The longest simulated time for an embedded world to settle after an apply.
const SETTLE_MAX: SignedDuration = SignedDuration::from_mins(30);

/// Seed of the tie-breaking between equally good nodes in a new world.
const SEED: u64 = 1;

/// Observes the embedded world of `directory`, which is created if missing.
pub(super) fn observe(
    directory: &Path,
    repository: &Repository,
    at: Timestamp,
) -> Result<Observed, CliError> {
    let desired = Rc::new(repository.desired.clone());
    Ok(open(directory, &genesis(&repository.fleet, at), &desired)?.observed())
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

/// Applies an approved plan, with progress and a receipt.
pub(super) fn carry_out(
    plan: &Plan,
    directory: &Path,
    apply_settings: &settings::ApplySettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let repository = read_planned_tree(plan)?;
    let desired = Rc::new(repository.desired.clone());
    let now = plan.capacity.base.world.taken_at;
    let fleet = &repository.fleet;
    let genesis = genesis(fleet, now);
    let catalog = Catalog::load(&genesis.cluster.region.as_str().into(), &fleet.zones)?;
    let interrupted = interrupt_flag()?;
    let replanner = Replanner::new(&repository, &catalog);
    let mut settings = ApplySettings {
        approved: apply_settings.approved_digest.clone(),
        catalog: Some(&catalog),
        interrupted: Some(&interrupted),
        ..ApplySettings::new(genesis.cluster.clone(), &replanner)
    };
    if !World::exists_in(directory) {
        // A refused plan creates no world.
        verify(plan, &settings, now).map_err(apply_error)?;
    }
    let _lock = WorldLock::acquire(directory, apply_settings.lock_timeout, console)?;
    let world = open(directory, &genesis, &desired)?;
    settings.cluster = world.cluster();
    verify(plan, &settings, world.observed().taken_at).map_err(apply_error)?;
    // A receipt file that cannot be written is an error before the first change.
    apply_settings.receipt.as_deref().map(files::writable).transpose()?;
    let mut delivered = Delivery::from_desired(&desired, &world.observed());
    delivered.groups = eksctl_groups(&desired, &catalog);
    world.deliver(&delivered).map_err(CliError::new)?;
    let mut reporter = ProgressReporter::new(plan, apply_settings.form, console);
    let receipt = run_apply(plan, &world, &settings, &mut reporter).inspect_err(|error| {
        if error.kind == Exit::Stale {
            replanner.show_difference(plan, reporter.console);
        }
    })?;
    // The receipt comes first, because settling may fail.
    let end = write_receipt(&receipt, apply_settings.receipt.as_deref(), &mut reporter)?;
    world.settle(SETTLE_MAX).map_err(CliError::new)?;
    // Autoscalers react once more: some follow the number of nodes.
    world.deliver(&Delivery::from_desired(&desired, &world.observed())).map_err(CliError::new)?;
    world.settle(SETTLE_MAX).map_err(CliError::new)?;
    Ok(end)
}

/// Prints the receipt, and writes it to `file` if given.
pub(super) fn write_receipt(
    receipt: &Receipt,
    file: Option<&Path>,
    reporter: &mut ProgressReporter,
) -> Result<Exit, CliError> {
    if let Some(path) = file {
        let json = crate::plan::canonical::pretty(receipt).map_err(CliError::new)?;
        // If the file cannot be written, the receipt is still printed.
        files::write(path, &json).or_else(|error| {
            reporter.receipt(receipt)?;
            Err(error)
        })?;
    }
    reporter.receipt(receipt)?;
    Ok(receipt_exit(receipt))
}

fn run_apply(
    plan: &Plan,
    world: &World,
    settings: &ApplySettings,
    reporter: &mut ProgressReporter,
) -> Result<Receipt, CliError> {
    let ports = Ports { cloud: world, cluster: world, clock: world };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| CliError::new(error).context("cannot start the runtime".to_owned()))?;
    let mut report = |event: &crate::apply::Event| reporter.event(event);
    runtime.block_on(apply(plan, &ports, settings, &mut report)).map_err(apply_error)
}

fn receipt_exit(receipt: &Receipt) -> Exit {
    match receipt.verdict {
        ApplyStatus::Applied => Exit::Done,
        ApplyStatus::Partly => Exit::Partly,
        ApplyStatus::Interrupted => Exit::Interrupted,
    }
}

pub(super) fn apply_error(error: ApplyError) -> CliError {
    let (kind, hint) = match &error {
        ApplyError::OtherCluster { .. } => {
            (Exit::OtherCluster, "name the world that the plan was made over")
        }
        ApplyError::InvalidPlan(_) => (Exit::UnreadablePlan, "make the plan again"),
        ApplyError::NotApproved { .. } => {
            (Exit::Stale, "review the plan and have its digest approved")
        }
        ApplyError::Denied(_) => {
            (Exit::Denied, "change what the policy objects to, and plan again")
        }
        ApplyError::NotApplyable(_) => (Exit::NotApproved, "plan against a world that can change"),
        ApplyError::Expired { .. } => (Exit::Expired, "make the plan again"),
        ApplyError::IncompleteObservation(_) => (Exit::Failed, "try again once it can be read"),
        ApplyError::Stale(_) | ApplyError::ExceedsApproval(_) | ApplyError::Frozen(_) => {
            (Exit::Stale, "make the plan again, and compare")
        }
        ApplyError::Interrupted => (Exit::Interrupted, "nothing was changed"),
    };
    CliError::new(error).kind(kind).hint(hint)
}

/// Returns a flag that the first Ctrl-C sets. A second Ctrl-C ends the process at once.
pub(super) fn interrupt_flag() -> Result<Arc<AtomicBool>, CliError> {
    use signal_hook::consts::SIGINT;
    let flag = Arc::new(AtomicBool::new(false));
    let code = i32::from(Exit::Interrupted.code());
    signal_hook::flag::register_conditional_shutdown(SIGINT, code, Arc::clone(&flag))
        .and_then(|_| signal_hook::flag::register(SIGINT, Arc::clone(&flag)))
        .map_err(|error| CliError::new(error).context("cannot listen for Ctrl-C".to_owned()))?;
    Ok(flag)
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

fn open(directory: &Path, genesis: &WorldInit, desired: &Rc<Desired>) -> Result<World, CliError> {
    World::open(directory, genesis, shapes(desired)).map_err(|error| cannot_open(directory, error))
}

/// Returns an in-memory copy of the world of a directory, or an empty world.
#[cfg(feature = "sandbox")]
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

fn genesis(fleet: &FleetSettings, now: Timestamp) -> WorldInit {
    let cluster = ClusterIdentity {
        account: "000000000000".to_owned(),
        uid: format!("sim-{}", fleet.cluster),
        ..fleet.identity()
    };
    WorldInit { cluster, now, seed: SEED }
}

/// Reads the tree of the plan. The embedded world also plays the delivery tool, and must deliver
/// the planned workloads even if the files have changed.
pub(super) fn read_planned_tree(plan: &Plan) -> Result<Repository, CliError> {
    let base = &plan.capacity.base;
    let path = Path::new(&base.path);
    let now = if RemoteRepository::parse(&base.path).is_some() {
        let (path, revision) = (path.to_path_buf(), base.commit.clone());
        planning::read(&SourceSettings { path, revision })?
    } else {
        read_tree(path)?
    };
    let now = Repository::read(&now);
    if now.base.tree == base.tree {
        return Ok(now);
    }
    let committed = base.commit.as_ref().filter(|_| !base.dirty);
    if let Some(then) = committed.and_then(|commit| read_revision(path, commit).ok()) {
        let then = Repository::read(&then);
        if then.base.tree == base.tree {
            return Ok(then);
        }
    }
    Err(changed_files_error(plan, &now.fleet))
}

/// Returns the error of files that differ from the plan: another cluster, or changed since.
pub(super) fn changed_files_error(plan: &Plan, here: &FleetSettings) -> CliError {
    let (path, planned) = (&plan.capacity.base.path, &plan.capacity.base.world.cluster.name);
    if here.cluster != *planned {
        let here = &here.cluster;
        return CliError::text(format!(
            "the files in `{path}` are of cluster `{here}`, and the plan is of cluster `{planned}`"
        ))
        .kind(Exit::OtherCluster)
        .hint("run it from the directory where the plan was made");
    }
    CliError::text(format!("the files in `{path}` are not those that were planned"))
        .kind(Exit::Stale)
        .hint("plan again")
}
