//! The embedded world: what runs in it, and how a plan is carried out there.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use jiff::{SignedDuration, Timestamp};

use super::error::CliError;
use super::lock::Lock;
use super::planning;
use super::progress::Teller;
use super::replan::Again;
use super::repository::{FleetSettings, Repository};
use super::settings::{self, SourceSettings};
use super::{Console, Exit, files};
use crate::apply::{ApplyError, ApplySettings, Ports, Receipt, Verdict, apply, verify};
use crate::catalog::Catalog;
use crate::demand::{Asked, ClusterSize, Demand, ShapeContext, shape_of, sized_template};
use crate::fleet::{ClusterIdentity, Observed};
use crate::git::{Remote, read_revision, read_tree};
use crate::ids::WorkloadId;
use crate::manifest::{Desired, Scale, Workload};
use crate::plan::Plan;
use crate::sim::{DeliveredWorkload, Delivery, Genesis, ShapeOf, SimError, World, eksctl_groups};
use crate::storage::Storage;

/// How long an embedded world may take to come to rest after an apply.
const SETTLE_MAX: SignedDuration = SignedDuration::from_mins(30);

/// Decides between equally good nodes in a world that is made now.
const SEED: u64 = 1;

/// Returns what runs in the embedded world of `directory`; makes an empty one where there is none.
pub(super) fn observe(
    directory: &Path,
    repository: &Repository,
    at: Timestamp,
) -> Result<Observed, CliError> {
    let desired = Rc::new(repository.desired.clone());
    Ok(open(directory, &genesis(&repository.fleet, at), &desired)?.observed())
}

/// Returns what time it is in the embedded world of `directory`; where there is none yet, when it
/// will be made.
pub(super) fn now(directory: &Path, plan: &Plan) -> Result<Timestamp, CliError> {
    let world = &plan.capacity.base.world;
    if !World::is_kept_in(directory) {
        return Ok(world.taken_at);
    }
    let genesis = Genesis { cluster: world.cluster.clone(), now: world.taken_at, seed: SEED };
    Ok(open(directory, &genesis, &Rc::new(Desired::default()))?.observed().taken_at)
}

/// Carries an approved plan out, and tells what happens and what was done.
pub(super) fn carry_out(
    plan: &Plan,
    directory: &Path,
    asked: &settings::ApplySettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let repository = same_tree(plan)?;
    let desired = Rc::new(repository.desired.clone());
    let now = plan.capacity.base.world.taken_at;
    let fleet = &repository.fleet;
    let genesis = genesis(fleet, now);
    let catalog = Catalog::load(&genesis.cluster.region.as_str().into(), &fleet.zones)?;
    let interrupted = interrupt_flag()?;
    let again = Again::of(&repository, &catalog);
    let mut settings = ApplySettings {
        approved: asked.approved_digest.clone(),
        catalog: Some(&catalog),
        interrupted: Some(&interrupted),
        ..ApplySettings::of(genesis.cluster.clone(), &again)
    };
    if !World::is_kept_in(directory) {
        // What is refused leaves no world behind.
        verify(plan, &settings, now).map_err(refused)?;
    }
    let _lock = Lock::take(directory, asked.lock_timeout, console)?;
    let world = open(directory, &genesis, &desired)?;
    settings.cluster = world.cluster();
    verify(plan, &settings, world.observed().taken_at).map_err(refused)?;
    // What cannot be written later must be known before anything is done.
    asked.receipt.as_deref().map(files::writable).transpose()?;
    let mut delivered = delivery(&desired, &world.observed());
    delivered.groups = eksctl_groups(&desired, &catalog);
    world.deliver(&delivered).map_err(CliError::new)?;
    let mut teller = Teller::new(plan, asked.form, console);
    let receipt = run(plan, &world, &settings, &mut teller).inspect_err(|error| {
        if error.kind == Exit::Stale {
            again.show_beside(plan, teller.console);
        }
    })?;
    // What was done is told before the world comes to rest: that may fail too.
    let end = conclude(&receipt, asked.receipt.as_deref(), &mut teller)?;
    world.settle(SETTLE_MAX).map_err(CliError::new)?;
    // Autoscalers look again: some of them follow the nodes that have just come or gone.
    world.deliver(&delivery(&desired, &world.observed())).map_err(CliError::new)?;
    world.settle(SETTLE_MAX).map_err(CliError::new)?;
    Ok(end)
}

/// Says what was done, and keeps it where the caller wants it.
pub(super) fn conclude(
    receipt: &Receipt,
    file: Option<&Path>,
    teller: &mut Teller,
) -> Result<Exit, CliError> {
    if let Some(path) = file {
        let json = crate::plan::canonical::pretty(receipt).map_err(CliError::new)?;
        // Nor is it lost where it cannot be kept.
        files::write(path, &json).or_else(|error| {
            teller.receipt(receipt)?;
            Err(error)
        })?;
    }
    teller.receipt(receipt)?;
    Ok(exit(receipt))
}

fn run(
    plan: &Plan,
    world: &World,
    settings: &ApplySettings,
    teller: &mut Teller,
) -> Result<Receipt, CliError> {
    let ports = Ports { cloud: world, cluster: world, clock: world };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| CliError::new(error).context("cannot start the runtime".to_owned()))?;
    let mut report = |event: &crate::apply::Event| teller.event(event);
    runtime.block_on(apply(plan, &ports, settings, &mut report)).map_err(refused)
}

fn exit(receipt: &Receipt) -> Exit {
    match receipt.verdict {
        Verdict::Applied => Exit::Done,
        Verdict::Partly => Exit::Partly,
        Verdict::Interrupted => Exit::Interrupted,
    }
}

pub(super) fn refused(error: ApplyError) -> CliError {
    let (kind, hint) = match &error {
        ApplyError::OtherCluster { .. } => {
            (Exit::OtherCluster, "name the world that the plan was made over")
        }
        ApplyError::Unreadable(_) => (Exit::UnreadablePlan, "make the plan again"),
        ApplyError::NotApproved { .. } => {
            (Exit::Stale, "review the plan and have its digest approved")
        }
        ApplyError::Denied(_) => {
            (Exit::Denied, "change what the policy objects to, and plan again")
        }
        ApplyError::NotApplyable(_) => (Exit::NotApproved, "plan against a world that can change"),
        ApplyError::Expired { .. } => (Exit::Expired, "make the plan again"),
        ApplyError::Unknown(_) => (Exit::Failed, "try again once it can be read"),
        ApplyError::Stale(_) | ApplyError::Outgrown(_) | ApplyError::Frozen(_) => {
            (Exit::Stale, "make the plan again, and compare")
        }
        ApplyError::Interrupted => (Exit::Interrupted, "nothing was changed"),
    };
    CliError::new(error).kind(kind).hint(hint)
}

/// Returns a flag that the first Ctrl-C sets; the second ends the process at once.
pub(super) fn interrupt_flag() -> Result<Arc<AtomicBool>, CliError> {
    use signal_hook::consts::SIGINT;
    let flag = Arc::new(AtomicBool::new(false));
    let code = i32::from(Exit::Interrupted.code());
    signal_hook::flag::register_conditional_shutdown(SIGINT, code, Arc::clone(&flag))
        .and_then(|_| signal_hook::flag::register(SIGINT, Arc::clone(&flag)))
        .map_err(|error| CliError::new(error).context("cannot listen for Ctrl-C".to_owned()))?;
    Ok(flag)
}

/// Opens the world of `directory` for `repository`; makes an empty one where there is none.
pub(super) fn opened(
    directory: &Path,
    repository: &Repository,
    desired: &Rc<Desired>,
    now: Timestamp,
) -> Result<World, CliError> {
    open(directory, &genesis(&repository.fleet, now), desired)
}

fn open(directory: &Path, genesis: &Genesis, desired: &Rc<Desired>) -> Result<World, CliError> {
    World::open(directory, genesis, shapes(desired)).map_err(|error| cannot_open(directory, error))
}

/// Returns a copy of the world that is kept in a directory, or an empty one, which is kept nowhere.
#[cfg(feature = "sandbox")]
pub(super) fn copied(
    repository: &Repository,
    kept: Option<&Path>,
    now: Timestamp,
) -> Result<World, CliError> {
    let shape = shapes(&Rc::new(repository.desired.clone()));
    let genesis = genesis(&repository.fleet, now);
    let found = kept.map(|directory| {
        World::copied(directory, &genesis, &shape).map_err(|error| cannot_open(directory, error))
    });
    Ok(found.transpose()?.flatten().unwrap_or_else(|| World::in_memory(&genesis, shape)))
}

/// Returns the world that is kept in a directory, for whoever changes it otherwise than by a plan.
pub(super) fn world_in(
    directory: &Path,
    repository: &Repository,
    now: Timestamp,
) -> Result<World, CliError> {
    let desired = Rc::new(repository.desired.clone());
    open(directory, &genesis(&repository.fleet, now), &desired)
}

fn shapes(desired: &Rc<Desired>) -> ShapeOf {
    let context = Rc::clone(desired);
    Rc::new(move |namespace, template| shape_of(namespace, template, &ShapeContext::of(&context)))
}

fn cannot_open(directory: &Path, error: SimError) -> CliError {
    CliError::new(error)
        .context(format!("cannot open the embedded world in `{}`", directory.display()))
}

fn genesis(fleet: &FleetSettings, now: Timestamp) -> Genesis {
    let cluster = ClusterIdentity {
        account: "000000000000".to_owned(),
        uid: format!("sim-{}", fleet.cluster),
        ..fleet.identity()
    };
    Genesis { cluster, now, seed: SEED }
}

/// What a delivery tool would bring the world to, and what its autoscalers would do at this moment.
pub(super) fn delivery(desired: &Desired, observed: &Observed) -> Delivery {
    let asked = Asked {
        at: observed.taken_at,
        size: ClusterSize::of(observed, |_| true),
        // What windows and schedules say counts, not what is left from before them.
        is_forecast: true,
        ..Asked::default()
    };
    let demand = Demand::asked(desired, observed, &asked);
    let mut live: BTreeMap<&WorkloadId, u32> =
        demand.groups.iter().map(|group| (&group.workload, group.counts.live)).collect();
    // Pods that need no node are pods all the same.
    live.extend(demand.fargate.iter().map(|taken| (&taken.workload, taken.counts.live)));
    let replicas = |workload: &Workload| match &workload.scale {
        // Jobs that are done stay counted, as their controllers count them.
        Scale::Job { pods, completions, suspended: false } => {
            completions.unwrap_or(u32::MAX).min(*pods)
        }
        // DaemonSets count nodes; a buffer is no pod.
        Scale::PerNode | Scale::Job { suspended: true, .. } | Scale::Buffer(_) => 0,
        Scale::Replicas(_) | Scale::CronJob { .. } | Scale::ScaledJob(_) => {
            live.get(&workload.id).copied().unwrap_or(0)
        }
    };
    let workloads = desired.workloads.values().map(|workload| {
        // The webhook of a vertical autoscaler changes pods on their way in.
        let template = sized_template(desired, observed, workload);
        let (replicas, first_ordinal) = (replicas(workload), workload.first_ordinal);
        (workload.id.clone(), DeliveredWorkload { replicas, first_ordinal, template })
    });
    Delivery {
        workloads: workloads.collect(),
        budgets: desired.disruption_budgets.clone(),
        namespaces: desired.namespaces.clone(),
        storage: declared_storage(desired),
        fargate_profiles: desired.fargate_profiles.clone(),
        groups: Vec::new(),
    }
}

/// Returns the storage objects that the repository declares.
fn declared_storage(desired: &Desired) -> Storage {
    let mut storage = Storage {
        classes: desired.storage_classes.clone(),
        volumes: desired.volumes.clone(),
        ..Storage::default()
    };
    for ((namespace, name), declared) in &desired.claims {
        let claims = storage.claims.entry(namespace.clone()).or_default();
        claims.insert(name.clone(), declared.claim.clone());
    }
    storage
}

/// Reads the tree that the plan was made from: the embedded world also plays the tool that delivers
/// workloads, and delivers those, not what the files have become since.
pub(super) fn same_tree(plan: &Plan) -> Result<Repository, CliError> {
    let base = &plan.capacity.base;
    let path = Path::new(&base.path);
    let now = if Remote::parse(&base.path).is_some() {
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
    Err(other_files(plan, &now.fleet))
}

/// Says why the files that are here now are not the plan's: of another cluster, or changed since.
pub(super) fn other_files(plan: &Plan, here: &FleetSettings) -> CliError {
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
