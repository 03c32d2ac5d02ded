//! Applies a plan to the embedded world.

use std::path::Path;
use std::rc::Rc;

use jiff::SignedDuration;

use super::apply_session::{apply_error, interrupt_flag, write_receipt};
use super::embedded::{GROUP_CREATION_MAX, genesis, open};
use super::error::CliError;
use super::lock::WorldLock;
use super::policy::Judge;
use super::progress::ProgressReporter;
use super::replan::Replanner;
use super::repository::FleetSettings;
use super::world_choice::WorldChoice;
use super::{Console, Exit, cluster_pools, files, settings, source_tree};
use crate::apply::{ApplySettings, Ports, Receipt, apply, check_plan};
use crate::plan::Plan;
use crate::simulator::{Delivery, World, eksctl_groups};

/// The longest simulated time for an embedded world to settle after an apply.
const SETTLE_MAX: SignedDuration = SignedDuration::from_mins(30);

/// Applies an approved plan, with progress and a receipt.
pub(super) fn carry_out(
    plan: &Plan,
    directory: &Path,
    apply_settings: &settings::ApplySettings,
    judge: &Judge,
    approvers: &[String],
    console: &mut Console,
) -> Result<Exit, CliError> {
    let world = WorldChoice::Sim(directory.to_owned());
    let pools = |fleet: &FleetSettings| cluster_pools::read(fleet, &world);
    let repository = source_tree::read_planned(plan, &apply_settings.caller, &judge.trust, &pools)?;
    cluster_pools::check_unchanged(plan, &repository)?;
    let desired = Rc::new(repository.desired.clone());
    let now = plan.capacity.base.world.taken_at;
    let fleet = &repository.fleet;
    let genesis = genesis(fleet, now);
    let catalog = fleet.catalog(&genesis.cluster.region.as_str().into())?;
    let interrupted = interrupt_flag()?;
    let replanner = Replanner::new(&repository, &catalog).judged_by(judge);
    let mut settings = ApplySettings {
        approved: apply_settings.approved_digest.clone(),
        catalog: Some(&catalog),
        interrupted: Some(&interrupted),
        ..ApplySettings::new(genesis.cluster.clone(), &replanner)
    };
    if !World::exists_in(directory) {
        // A refused plan creates no world.
        check_plan(plan, &settings, now).map_err(apply_error)?;
    }
    let _lock = WorldLock::acquire(directory, apply_settings.lock_timeout, console)?;
    let world = open(directory, &genesis, &desired)?;
    settings.cluster = world.cluster();
    check_plan(plan, &settings, world.observed().taken_at).map_err(apply_error)?;
    // A receipt file that cannot be written is an error before the first change.
    apply_settings.receipt.as_deref().map(files::writable).transpose()?;
    let mut delivered = Delivery::from_desired(&desired, &world.observed());
    delivered.groups = eksctl_groups(&desired, &catalog);
    world.create_groups(&delivered.groups, GROUP_CREATION_MAX).map_err(CliError::new)?;
    world.deliver(&delivered).map_err(CliError::new)?;
    let mut reporter = ProgressReporter::new(plan, apply_settings.form, console);
    let receipt = run_apply(plan, &world, &settings, &mut reporter).inspect_err(|error| {
        if error.kind == Exit::Stale {
            replanner.show_difference(plan, reporter.console);
        }
    })?;
    // The receipt comes first, because settling may fail.
    let end = write_receipt(&receipt, approvers, apply_settings.receipt.as_deref(), &mut reporter)?;
    world.settle(SETTLE_MAX).map_err(CliError::new)?;
    // Autoscalers react once more: some follow the number of nodes.
    world.deliver(&Delivery::from_desired(&desired, &world.observed())).map_err(CliError::new)?;
    world.settle(SETTLE_MAX).map_err(CliError::new)?;
    Ok(end)
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
