//! Applies a plan to the live world, under the lease.

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use super::apply_session::{apply_error, interrupt_flag, write_receipt};
use super::error::CliError;
use super::lease::{acquire_lease, lease_holder, lock, poll_while_certain, renew_periodically};
use super::live::{account_error, block_on, connect, expected_cluster};
use super::policy::Judge;
use super::progress::ProgressReporter;
use super::replan::Replanner;
use super::repository::{FleetSettings, Repository};
use super::world_choice::WorldChoice;
use super::{Console, Exit, cluster_pools, files, planning, settings, source_tree};
use crate::adapters::aws::{Aws, LaunchContext, MarketAnswers};
use crate::adapters::kube::{
    ApplyEvents, EVENTS_FLUSH_MAX, HeldLease, Kubernetes, LEASE_NAME, LEASE_NAMESPACE, LeaseClient,
    SteeringObstacle,
};
use crate::adapters::system_clock::SystemClock;
use crate::apply::ports::Clock as _;
use crate::apply::{
    ApplySettings, ApplyStatus, Event, LeaseGuard, OpenedBy, Ports, Receipt, apply, check_plan,
};
use crate::controller::apply_record;
use crate::controller::runtime::live_cluster::LiveCluster;
use crate::model::unavailable_offerings::ExclusionLimits;
use crate::plan::Plan;
use crate::plan::wire::PlacementMode;

/// Applies an approved plan, with progress on stderr and the receipt on stdout.
pub(super) fn carry_out(
    plan: &Plan,
    apply_settings: &settings::ApplySettings,
    judge: &Judge,
    approvers: &[String],
    console: &mut Console,
) -> Result<Exit, CliError> {
    let pools = |fleet: &FleetSettings| cluster_pools::read(fleet, &WorldChoice::Live);
    let repository = source_tree::read_planned(plan, &apply_settings.caller, &judge.trust, &pools)?;
    cluster_pools::check_unchanged(plan, &repository)?;
    let interrupted = interrupt_flag()?;
    // A receipt file that cannot be written is an error before the first change.
    apply_settings.receipt.as_deref().map(files::writable).transpose()?;
    let mut reporter = ProgressReporter::new(plan, apply_settings.form, console);
    let receipt = block_on(async {
        let live = connect(&repository).await?;
        let fleet = &repository.fleet;
        // No file of the cache counts: other jobs on the same computer may write to it.
        let answers = MarketAnswers::default();
        let market = repository.market_query().read_cached(&live.aws, &answers).await;
        let catalog = planning::catalog(fleet, &fleet.region, Some(&market))?;
        let replanner = Replanner::new(&repository, &catalog).judged_by(judge);
        let opened_by = opened_by(plan, &live.kubernetes, reporter.console).await;
        let settings = ApplySettings {
            approved: apply_settings.approved_digest.clone(),
            catalog: Some(&catalog),
            interrupted: Some(&interrupted),
            opened_by,
            ..ApplySettings::new(live.identity.clone(), &replanner)
        };
        let done =
            apply_under_lock(plan, live, &repository, &settings, apply_settings, &mut reporter)
                .await;
        done.inspect_err(|error| {
            reporter.clear();
            if error.kind == Exit::Stale {
                replanner.show_difference(plan, reporter.console);
            }
        })
    });
    let receipt = receipt.inspect_err(|_| reporter.clear())?;
    write_receipt(&receipt, approvers, apply_settings.receipt.as_deref(), &mut reporter)
}

/// Returns how the launched nodes are opened. Reports why the pods of a steered plan may not end up
/// on their nodes.
async fn opened_by(plan: &Plan, kubernetes: &Kubernetes, console: &mut Console) -> OpenedBy {
    if plan.capacity.placement.mode != PlacementMode::Steered {
        return OpenedBy::Apply;
    }
    // If it cannot be read, pods are nominated: refused nominations do no harm, and are reported.
    let Ok(Some(obstacle)) = kubernetes.steering_obstacle().await else { return OpenedBy::Apply };
    let SteeringObstacle { reason, is_forbidden } = obstacle;
    let effect = "kube-scheduler may place pods on other nodes than this steered plan";
    console.report(&format!("Warning: {effect}: {reason}."));
    if is_forbidden { OpenedBy::ApplyWithoutNominations } else { OpenedBy::Apply }
}

/// Verifies the plan, takes the lease, and applies under it.
async fn apply_under_lock(
    plan: &Plan,
    live: LiveCluster,
    repository: &Repository,
    settings: &ApplySettings<'_>,
    apply_settings: &settings::ApplySettings,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Receipt, CliError> {
    check_plan(plan, settings, SystemClock.now()).map_err(apply_error)?;
    let LiveCluster { kubernetes, aws, .. } = live;
    let joining = aws
        .cluster_bootstrap()
        .await
        .map_err(|error| account_error(error, &repository.fleet.region))?;
    // Launched instances join this cluster, so the kubeconfig must name the same one.
    let expected = expected_cluster(repository, &joining.endpoint.url);
    expected
        .check(kubernetes.server())
        .map_err(|error| CliError::new(error).kind(Exit::OtherCluster).hint(expected.remedy()))?;
    let context =
        LaunchContext::new(&repository.desired, joining.endpoint, &joining.kubernetes_version);
    // Launches and the repeated plan use the same lookup.
    aws.resolve_launch_context(&context).await;
    let aws = aws.with_launch_context(context);
    let lease = LeaseClient::new(&kubernetes, LEASE_NAMESPACE, LEASE_NAME, lease_holder(plan));
    let held = acquire_lease(&lease, apply_settings.lock_timeout, reporter.console).await?;
    Box::pin(apply_under_lease(plan, &kubernetes, &aws, settings, &lease, held, reporter)).await
}

/// Applies while the lease is renewed. Writes stop as soon as the lease is not held for certain.
async fn apply_under_lease(
    plan: &Plan,
    kubernetes: &Kubernetes,
    aws: &Aws,
    settings: &ApplySettings<'_>,
    lease: &LeaseClient,
    held: HeldLease,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Receipt, CliError> {
    let held = Arc::new(Mutex::new(held));
    let is_certain = || lock(&held).is_certain();
    // Lookups and rate limits of a call may take longer than the lease lasts.
    let permitting = Arc::clone(&held);
    aws.set_write_permit(move || lock(&permitting).is_certain());
    let (cloud, cluster) =
        (LeaseGuard::new(aws, &is_certain), LeaseGuard::new(kubernetes, &is_certain));
    let ports = Ports { cloud: &cloud, cluster: &cluster, clock: &SystemClock };
    let events = ApplyEvents::new(plan.capacity.plan_id.as_str(), kubernetes);
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    let mut report = |event: &Event| {
        reporter.event(event);
        events.remember_unavailable(event);
        // The receiver lives as long as the apply.
        let _ = sender.send(event.clone());
    };
    let recording = events.write(receiver);
    tokio::pin!(recording);
    let receipt = {
        let tries = Cell::new(0);
        let renewal = renew_periodically(lease, &held, &tries);
        let side_work = async { tokio::join!(renewal, recording.as_mut()) };
        let apply = apply(plan, &ports, settings, &mut report);
        Box::pin(poll_while_certain(apply, side_work, &is_certain, &tries)).await
    };
    drop(sender);
    // The last events may delay the end a little.
    let _ = tokio::time::timeout(EVENTS_FLUSH_MAX, recording).await;
    let mut last = lock(&held).clone();
    for offering in events.unavailable_offerings() {
        let (now, limits) = (SystemClock.now(), ExclusionLimits::APPLY);
        last.unavailable_offerings.record(offering, now, limits);
    }
    if let Ok(receipt) = &receipt {
        let whole = receipt.verdict == ApplyStatus::Applied && plan.complete;
        last.controller_state = Some(apply_record::with_applied(
            last.controller_state.as_deref(),
            plan,
            SystemClock.now(),
            whole,
        ));
    }
    // A lease that is not released expires.
    if let Err(error) = lease.release(&last, SystemClock.now()).await {
        tracing::warn!(%error, "cannot release lease");
    }
    receipt.map_err(apply_error)
}
