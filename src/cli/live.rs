//! The live world: a real cluster and its AWS account.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use jiff::Timestamp;

use super::adopt::{check_still_current, tag_all};
use super::error::CliError;
use super::progress::ProgressReporter;
use super::replan::Replanner;
use super::repository::Repository;
use super::settings::SourceSettings;
use super::{Console, Exit, embedded, files, planning, settings};
use crate::adapters::aws::{Aws, AwsError, LaunchContext, MarketAnswers, NodeRole, Preflight};
use crate::adapters::kube::{
    ApplyEvents, ConnectError, EVENTS_FLUSH_MAX, ExpectedCluster, HeldLease, Kubernetes,
    LEASE_NAME, LEASE_NAMESPACE, LOCK_POLL, LeaseError, LeaseLock, RENEW_EVERY,
};
use crate::adapters::system_clock::SystemClock;
use crate::apply::adoption::Adoption;
use crate::apply::ports::{Clock, Cluster as _, Requirement};
use crate::apply::{ApplySettings, ApplyStatus, Event, LeaseGuard, Ports, Receipt, apply, verify};
use crate::controller::runtime::live::LiveCluster;
use crate::controller::{LEASE_HOLDER_PREFIX, apply_record};
use crate::model::competing_autoscaler::{
    CompetingAutoscaler, detect_autoscalers, partition_by_namespace,
};
use crate::model::desired::Desired;
use crate::model::ids::Namespace;
use crate::model::market::Market;
use crate::model::observed::{ClusterIdentity, Observed};
use crate::plan::Plan;

/// Instances that are tagged between two renewals of the lock.
const TAG_BATCH: usize = 20;

/// The longest wait for a controller to release the lock: the time to undo its drains.
const HANDOVER_MAX: Duration = Duration::from_mins(2);

/// Connects to the cluster of the kubeconfig and the account of the environment.
pub(super) async fn connect(repository: &Repository) -> Result<LiveCluster, CliError> {
    let kubernetes = Kubernetes::connect().await.map_err(cluster_error)?;
    let uid = kubernetes.cluster_uid().await.map_err(cluster_error)?;
    let fleet = &repository.fleet;
    let aws = Aws::connect(&fleet.cluster, fleet.region.as_str()).await;
    let aws = aws.with_reservations(repository.desired.uses_reservations());
    let account = aws.account_id().await.map_err(account_error)?;
    let identity = ClusterIdentity { account, uid: uid.to_string(), ..fleet.identity() };
    Ok(LiveCluster { kubernetes, aws, identity })
}

/// Reads the repository and connects, for one attempt of a controller to start.
pub(super) async fn read_and_connect(source: &SourceSettings) -> Result<LiveCluster, CliError> {
    let source = source.clone();
    let read = move || Ok(Repository::read(&planning::read(&source)?));
    let read: Result<Repository, CliError> = match tokio::task::spawn_blocking(read).await {
        Ok(read) => read,
        // A panic continues on the calling thread.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    connect(&read?).await
}

impl LiveCluster {
    /// Resolves the node classes of all pools for the next observation. Classes that cannot be
    /// resolved are recorded as well.
    async fn look_up_classes(&self, repository: &Repository) {
        let Desired { pools, node_classes, .. } = &repository.desired;
        let used: BTreeSet<_> =
            pools.values().filter_map(|pool| pool.node_class.as_ref()).collect();
        let classes: Vec<_> = used.into_iter().filter_map(|name| node_classes.get(name)).collect();
        if classes.is_empty() {
            return;
        }
        let joining = self.aws.cluster_bootstrap().await.map_err(|error| error.to_string());
        let kubernetes = joining.as_ref().map(|joining| joining.kubernetes_version.as_str());
        self.aws.resolve_node_classes(&classes, kubernetes.map_err(String::as_str)).await;
    }

    /// Observes the cluster and the account, with recently sold-out offerings.
    async fn observe(&self) -> Observed {
        let Self { kubernetes, aws, identity } = self;
        let mut observed =
            crate::apply::observation::observe(aws, kubernetes, &SystemClock, identity.clone())
                .await;
        match kubernetes.unavailable_offerings(LEASE_NAMESPACE, LEASE_NAME).await {
            Ok(memory) => observed.exclusions = memory.exclusions(observed.taken_at),
            // Sold-out offerings are a hint: a launch finds them again.
            Err(error) => tracing::warn!(%error, "cannot read sold-out offerings"),
        }
        observed.canonicalize();
        observed
    }
}

fn expected_cluster<'c>(repository: &'c Repository, endpoint: &'c str) -> ExpectedCluster<'c> {
    let fleet = &repository.fleet;
    ExpectedCluster { name: &fleet.cluster, region: &fleet.region, endpoint }
}

/// Returns the current or recently cached EC2 offerings of `account`, with spot prices if a pool
/// allows spot.
pub(super) fn market(repository: &Repository, account: &str) -> Result<Market, String> {
    let fleet = &repository.fleet;
    let market = block_on(async {
        let aws = Aws::connect(&fleet.cluster, fleet.region.as_str()).await;
        Ok(repository.market_query().read(&aws, account).await)
    });
    market.unwrap_or_else(|_| Err("the runtime cannot be started".to_owned()))
}

/// Observes the live cluster and account.
pub(super) fn observe(repository: &Repository) -> Result<Observed, CliError> {
    block_on(async {
        let live = connect(repository).await?;
        live.look_up_classes(repository).await;
        Ok(live.observe().await)
    })
}

/// Tags the instances of an approved adoption under the lock of applies, unless it has changed.
/// Returns the number of instances.
pub(super) fn tag_adopted(
    repository: &Repository,
    adoption: &Adoption,
    console: &mut Console,
) -> Result<usize, CliError> {
    block_on(async {
        let live = connect(repository).await?;
        let holder = format!("adopt/{}/{}", std::process::id(), SystemClock.now().as_millisecond());
        let lease = LeaseLock::new(&live.kubernetes, LEASE_NAMESPACE, LEASE_NAME, holder);
        let locked = |error: LeaseError| CliError::new(error).kind(Exit::Locked);
        let mut held = acquire_lease(&lease, Duration::ZERO, console).await?;
        let mut done = check_still_current(adoption, &repository.desired, &live.observe().await);
        // One batch is tagged long before the lock expires.
        for rows in adoption.rows.chunks(TAG_BATCH) {
            if done.is_err() {
                break;
            }
            held = lease.renew(&held, SystemClock.now()).await.map_err(locked)?;
            done = tag_all(&live.aws, rows).await.map_err(CliError::new);
        }
        // A lock that is not released expires.
        drop(lease.release(&held, SystemClock.now()).await);
        done.map(|()| adoption.rows.len())
    })
}

/// Returns the requirements of planning and applying live, with their state.
pub(super) fn preflight(repository: &Repository) -> Result<Vec<Requirement>, CliError> {
    let fleet = &repository.fleet;
    block_on(async {
        let aws = Aws::connect(&fleet.cluster, fleet.region.as_str()).await;
        let queue = fleet.controller.queue.as_deref();
        let found = aws.preflight(&repository.desired, queue).await;
        let Preflight { mut requirements, node_roles, endpoint } = found;
        if endpoint.is_some() {
            requirements.push(market_requirement(&aws, repository).await);
        }
        let kubernetes = match Kubernetes::connect().await {
            Ok(kubernetes) => kubernetes,
            Err(error) => {
                let remedy = "run `aws eks update-kubeconfig --name CLUSTER`";
                requirements.push(Requirement::from_result(
                    "kubeconfig",
                    Err(error.to_string()),
                    remedy,
                ));
                return Ok(requirements);
            }
        };
        let server =
            endpoint.map(|url| expected_cluster(repository, &url).requirement(kubernetes.server()));
        requirements.extend(server);
        requirements.extend(kubernetes.preflight(|| SystemClock.now()).await);
        let homes = repository.desired.autoscaler_namespaces.as_ref();
        requirements.push(autoscaler_requirement(&kubernetes, homes).await);
        for NodeRole { arn, has_entry } in node_roles {
            let mapped = if has_entry {
                Ok("by an access entry".to_owned())
            } else {
                match kubernetes.is_role_mapped(&arn).await {
                    Ok(true) => Ok("by the ConfigMap aws-auth".to_owned()),
                    Ok(false) => Err("neither an access entry nor aws-auth names it".to_owned()),
                    Err(error) => Err(error.to_string()),
                }
            };
            let remedy =
                format!("eksctl create accessentry --principal-arn {arn} --type EC2_LINUX");
            requirements.push(Requirement::from_result(
                &format!("{arn} may join"),
                mapped,
                &remedy,
            ));
        }
        Ok(requirements)
    })
}

/// Returns whether all EC2 offerings can be read. Without them, plans use embedded data.
async fn market_requirement(aws: &Aws, repository: &Repository) -> Requirement {
    // An empty cache: an earlier answer proves nothing here.
    let found = match repository.market_query().read_cached(aws, &MarketAnswers::default()).await {
        Ok(market) if market.unread.is_empty() => {
            Ok(format!("{} types in {} zones", market.offered.len(), market.zones.len()))
        }
        Ok(market) => Err(market.unread.join("; ")),
        Err(why) => Err(why),
    };
    let remedy =
        "attach deploy/aws/plan.json to the planning role, and allow it to reach these services";
    Requirement::from_result("read EC2 offerings", found, remedy)
}

/// Returns whether a competing autoscaler runs: in the declared namespaces, or without a
/// declaration in any.
async fn autoscaler_requirement(
    kubernetes: &Kubernetes,
    homes: Option<&BTreeSet<Namespace>>,
) -> Requirement {
    let found = match kubernetes.objects().await {
        Ok(objects) => {
            let all = detect_autoscalers(&objects.workloads, &objects.pods, &objects.templates);
            // Without declared namespaces, a workload with the name of an autoscaler is reported.
            let (count, others) = match homes {
                Some(homes) => partition_by_namespace(all, &objects.nodes, Some(homes)),
                None => (all, Vec::new()),
            };
            match (autoscaler_names(&count), autoscaler_names(&others)) {
                (Some(count), _) => {
                    Err(format!("{count} would compete for nodes, if it is an autoscaler"))
                }
                (None, None) => Ok("neither Karpenter nor Cluster Autoscaler runs".to_owned()),
                (None, Some(others)) => Ok(format!(
                    "none in the namespaces of `spec.autoscalers.namespaces`; ignored: {others}"
                )),
            }
        }
        Err(error) => Err(error.to_string()),
    };
    let remedy =
        "deploy/migrate describes the migration; groups that only it resizes may stay with it";
    Requirement::from_result("no competing autoscaler", found, remedy)
}

/// Returns the names of competing autoscalers; `None` if there are none.
fn autoscaler_names(autoscalers: &[CompetingAutoscaler]) -> Option<String> {
    let names: Vec<String> =
        autoscalers.iter().map(|found| format!("{} ({})", found.kind, found.workload)).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Applies an approved plan, with progress on stderr and the receipt on stdout.
pub(super) fn carry_out(
    plan: &Plan,
    apply_settings: &settings::ApplySettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let repository = embedded::read_planned_tree(plan)?;
    let interrupted = embedded::interrupt_flag()?;
    // A receipt file that cannot be written is an error before the first change.
    apply_settings.receipt.as_deref().map(files::writable).transpose()?;
    let mut reporter = ProgressReporter::new(plan, apply_settings.form, console);
    let receipt = block_on(async {
        let live = connect(&repository).await?;
        let fleet = &repository.fleet;
        // Cached for the account that answers, whichever account the plan names.
        let market = repository.market_query().read(&live.aws, &live.identity.account).await;
        let catalog = planning::catalog(&fleet.region, &fleet.zones, Some(&market))?;
        let replanner = Replanner::new(&repository, &catalog);
        let settings = ApplySettings {
            approved: apply_settings.approved_digest.clone(),
            catalog: Some(&catalog),
            interrupted: Some(&interrupted),
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
    embedded::write_receipt(&receipt, apply_settings.receipt.as_deref(), &mut reporter)
}

/// Verifies the plan, takes the lock, and applies under it.
async fn apply_under_lock(
    plan: &Plan,
    live: LiveCluster,
    repository: &Repository,
    settings: &ApplySettings<'_>,
    apply_settings: &settings::ApplySettings,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Receipt, CliError> {
    verify(plan, settings, SystemClock.now()).map_err(embedded::apply_error)?;
    let LiveCluster { kubernetes, aws, .. } = live;
    let joining = aws.cluster_bootstrap().await.map_err(account_error)?;
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
    let lease = LeaseLock::new(&kubernetes, LEASE_NAMESPACE, LEASE_NAME, lease_holder(plan));
    let held = acquire_lease(&lease, apply_settings.lock_timeout, reporter.console).await?;
    Box::pin(apply_under_lease(plan, &kubernetes, &aws, settings, &lease, held, reporter)).await
}

/// Applies while the lease is renewed. Writes stop as soon as the lease is not held for certain.
async fn apply_under_lease(
    plan: &Plan,
    kubernetes: &Kubernetes,
    aws: &Aws,
    settings: &ApplySettings<'_>,
    lease: &LeaseLock,
    held: HeldLease,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Receipt, CliError> {
    let held = Rc::new(RefCell::new(held));
    let is_certain = || held.borrow().is_certain();
    let (cloud, cluster) =
        (LeaseGuard::new(aws, &is_certain), LeaseGuard::new(kubernetes, &is_certain));
    let ports = Ports { cloud: &cloud, cluster: &cluster, clock: &SystemClock };
    let events = ApplyEvents::new(plan.capacity.plan_id.as_str(), kubernetes);
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    let mut report = |event: &Event| {
        reporter.event(event);
        events.remember_sold_out(event);
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
    let mut last = held.borrow().clone();
    for sold_out in events.sold_out() {
        last.unavailable_offerings.record(sold_out, SystemClock.now());
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
    // A lock that is not released expires.
    if let Err(error) = lease.release(&last, SystemClock.now()).await {
        tracing::warn!(%error, "cannot release lock");
    }
    receipt.map_err(embedded::apply_error)
}

/// Polls `work` while the lease is held for certain, together with `beside`. After an uncertain
/// phase, such as a long computation, `work` continues only after another of the `tries` to renew
/// the lease. The fence decides about writes after a failed try.
async fn poll_while_certain<T>(
    work: impl Future<Output = T>,
    side_work: impl Future,
    is_certain: &dyn Fn() -> bool,
    tries: &Cell<u32>,
) -> T {
    tokio::pin!(work, side_work);
    let mut waiting_since = None;
    let mut side_work_ended = false;
    std::future::poll_fn(|context| {
        let before = tries.get();
        // The side work does not end the apply: the receipt counts.
        side_work_ended = side_work_ended || side_work.as_mut().poll(context).is_ready();
        if is_certain() || side_work_ended {
            waiting_since = None;
        } else if *waiting_since.get_or_insert(before) == tries.get() {
            return Poll::Pending;
        }
        work.as_mut().poll(context)
    })
    .await
}

/// Renews the lease for as long as it is polled, and counts the attempts.
async fn renew_periodically(lease: &LeaseLock, held: &RefCell<HeldLease>, tries: &Cell<u32>) {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        let current = held.borrow().clone();
        let renewed = lease.renew(&current, SystemClock.now()).await;
        tries.set(tries.get().wrapping_add(1));
        match renewed {
            Ok(renewed) => *held.borrow_mut() = renewed,
            // Another holder took the lease before it expired: further writes could conflict with
            // theirs.
            Err(error @ LeaseError::Lost { .. }) => {
                tracing::error!(%error, "lock lost; no further writes");
                *held.borrow_mut() = current.mark_lost();
                return std::future::pending().await;
            }
            Err(error) => tracing::warn!(%error, "cannot renew lock"),
        }
    }
}

/// Takes the lock, waiting up to `patience` while another apply holds it.
async fn acquire_lease(
    lease: &LeaseLock,
    patience: Duration,
    console: &mut Console,
) -> Result<HeldLease, CliError> {
    let begun = tokio::time::Instant::now();
    let mut until = begun + patience;
    let mut is_reported = false;
    loop {
        let error = match lease.acquire(SystemClock.now()).await {
            Ok(held) => return Ok(held),
            Err(error) => error,
        };
        let taken = matches!(error, LeaseError::HeldByOther { .. } | LeaseError::Lost { .. });
        if !taken {
            return Err(
                CliError::new(error).hint("applying needs permission to read and write leases")
            );
        }
        if let LeaseError::HeldByOther { holder, .. } = &error
            && holder.starts_with(LEASE_HOLDER_PREFIX)
        {
            // A controller releases the lock on request.
            until = until.max(begun + HANDOVER_MAX);
            if let Err(error) = lease.request().await {
                tracing::warn!(%error, "cannot request the lock from the controller");
            }
        }
        if tokio::time::Instant::now() >= until {
            return Err(CliError::new(error)
                .kind(Exit::Locked)
                .hint("wait for the other apply, or pass a longer --lock-timeout"));
        }
        if !is_reported {
            console.report(&format!("{error}; waiting"));
            is_reported = true;
        }
        tokio::time::sleep(LOCK_POLL).await;
    }
}

/// Returns a holder name that is unique to this plan and process.
fn lease_holder(plan: &Plan) -> String {
    let id: String = plan.capacity.plan_id.as_str().chars().take(19).collect();
    format!("{id}/{}/{}", std::process::id(), Timestamp::now().as_nanosecond())
}

/// Records that a plan without changes was applied, for a controller that waits for it.
pub(super) fn record_nothing_to_apply(plan: &Plan, console: &mut Console) -> Result<(), CliError> {
    let repository = embedded::read_planned_tree(plan)?;
    block_on(async {
        let LiveCluster { kubernetes, .. } = connect(&repository).await?;
        let lease = LeaseLock::new(&kubernetes, LEASE_NAMESPACE, LEASE_NAME, lease_holder(plan));
        let mut held = acquire_lease(&lease, Duration::ZERO, console).await?;
        let record = held.controller_state.as_deref();
        let record = apply_record::with_applied(record, plan, SystemClock.now(), plan.complete);
        held.controller_state = Some(record);
        lease.release(&held, SystemClock.now()).await.map_err(CliError::new)
    })
}

pub(super) fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::new(error).context("cannot start the runtime".to_owned()))?
        .block_on(work)
}

pub(super) fn cluster_error(error: ConnectError) -> CliError {
    let hint = match error {
        ConnectError::NoConfig(_) => "run `aws eks update-kubeconfig --name CLUSTER`",
        ConnectError::NoContext(_) => {
            "run `kubectl config get-contexts`, or `aws eks update-kubeconfig --name CLUSTER`"
        }
        ConnectError::Client(_) | ConnectError::Refused(_) => {
            "try `kubectl get nodes` with the same kubeconfig and context"
        }
    };
    CliError::new(error).context("cannot use the cluster".to_owned()).hint(hint)
}

pub(super) fn account_error(error: AwsError) -> CliError {
    CliError::new(error)
        .context("cannot use the AWS account".to_owned())
        .hint("try `aws sts get-caller-identity` with the same environment")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs work that computes for longer than the lock is certain. Returns whether the lock was
    /// certain afterwards.
    fn after_a_long_computation(renews: bool) -> bool {
        let certain = Cell::new(true);
        let tries = Cell::new(0);
        let is_certain = || certain.get();
        let work = async {
            certain.set(false);
            SystemClock.yield_now().await;
            is_certain()
        };
        let side_work = async {
            // The renewal takes a moment, and the work must wait for it.
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            certain.set(renews);
            tries.set(1);
            std::future::pending::<()>().await;
        };
        block_on(async { Ok(poll_while_certain(work, side_work, &is_certain, &tries).await) })
            .expect("ends")
    }

    #[test]
    fn work_continues_after_a_renewal_found_the_lock_lost() {
        let certain = Cell::new(true);
        let tries = Cell::new(0);
        let is_certain = || certain.get();
        let work = async {
            while is_certain() {
                SystemClock.yield_now().await;
            }
        };
        let side_work = async {
            tokio::task::yield_now().await;
            tries.set(1);
            certain.set(false);
            std::future::pending::<()>().await;
        };
        let ends = async {
            let held = poll_while_certain(work, side_work, &is_certain, &tries);
            Ok(tokio::time::timeout(Duration::from_secs(10), held).await)
        };
        assert!(block_on(ends).expect("runs").is_ok());
    }

    #[test]
    fn work_waits_for_a_renewal_after_a_long_computation() {
        assert!(after_a_long_computation(true), "renewed");
        assert!(!after_a_long_computation(false), "the fence decides");
    }
}
