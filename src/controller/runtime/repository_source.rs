//! The followed branch, and plans of its commits over current EC2 offerings.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use super::forecast_task::ForecastTask;
use super::{
    BlockingPlanner, ReadMarket, RepositoryReader, TreeLogger, TrustedCommit, check_cluster,
};
use crate::adapters::aws::{Aws, ClusterBootstrap, LaunchContext, MarketAnswers, mark_unresolved};
use crate::adapters::git::{RepositoryTree, TreeBase};
use crate::adapters::kube::WatchedCluster;
use crate::catalog::Catalog;
use crate::controller::{
    PlanScope, PodScope, Revision, RevisionError, RevisionPlanner, RevisionSource, StartOptions,
    VerifiedCommit,
};
use crate::model::desired::Severity;
use crate::model::market::MarketQuery;
use crate::model::observed::{ClusterIdentity, Observed};
use crate::plan::{Plan, RevalidatedPlan};
use crate::render::escape;

/// Validity of EC2 offerings, join settings and launch lookups.
const VALID_FOR: Duration = Duration::from_mins(5);

/// Delay before a failed read of EC2 offerings is repeated.
const UNKNOWN_MARKET_VALID_FOR: Duration = Duration::from_secs(30);

/// Interval of refreshing the lookups of node classes.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);

/// The longest time that a commit waits for the lookups of its node classes.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest delay of a read. It spreads the reads of many clusters.
const JITTER_MAX: Duration = Duration::from_secs(5);
const JITTER_SHARE: u32 = 10;

/// Most logged errors of a commit; `fleetwright validate` lists all of them.
const ERRORS_MAX: usize = 10;

/// The followed repository of one cluster.
pub(super) struct RepositorySource<R: RepositoryReader> {
    reader: R,
    cluster: ClusterIdentity,
    aws: Arc<Aws>,
    watched: Arc<WatchedCluster>,
    /// Publishes the interruption queue that the repository names.
    queue: watch::Sender<Option<String>>,
    forecast_task: Arc<ForecastTask>,
    last: RefCell<Option<LastRevision<R::Planner>>>,
    tree_logger: TreeLogger,
    joining: RefCell<Option<(Instant, ClusterBootstrap)>>,
    /// Recent EC2 answers that rarely change. They stand in when EC2 cannot be reached.
    answers: Arc<MarketAnswers>,
    /// State of the pseudo-random delays.
    jitter_seed: Cell<u32>,
    /// Closed with the source, which ends reads in other threads before their runtime ends.
    alive: watch::Sender<()>,
}

/// The last revision that was read.
struct LastRevision<P> {
    base: TreeBase,
    /// True if a later read of the same commit may find more.
    has_unread_objects: bool,
    trusted: TrustedCommit,
    at: Instant,
    valid_for: Duration,
    revision: Revision,
    planner: Arc<LivePlanner<P>>,
}

impl<P> LastRevision<P> {
    /// Returns true if the revision is recent, and its signatures start from `trusted`.
    fn is_valid(&self, trusted: &TrustedCommit) -> bool {
        self.trusted == *trusted && self.at.elapsed() < self.valid_for
    }
}

/// Plans of one commit, with the launch settings of its node classes.
pub(super) struct LivePlanner<P> {
    plans: P,
    launch_context: Arc<LaunchContext>,
    aws: Arc<Aws>,
    forecast_task: Arc<ForecastTask>,
}

/// A revision, and the planner of its plans.
type PlannedRevision<R> = (Revision, Arc<LivePlanner<<R as RepositoryReader>::Planner>>);

impl<R: RepositoryReader> RepositorySource<R> {
    /// Returns the source of a controller that starts with `start`.
    pub(super) fn new(
        reader: R,
        start: &StartOptions,
        aws: Arc<Aws>,
        watched: Arc<WatchedCluster>,
        queue: watch::Sender<Option<String>>,
        forecast_task: Arc<ForecastTask>,
    ) -> Self {
        Self {
            reader,
            cluster: start.cluster.clone(),
            aws,
            watched,
            queue,
            forecast_task,
            last: RefCell::default(),
            tree_logger: TreeLogger::default(),
            joining: RefCell::default(),
            answers: Arc::default(),
            jitter_seed: Cell::new(
                u32::try_from(start.started_at.subsec_nanosecond()).unwrap_or(0),
            ),
            alive: watch::Sender::new(()),
        }
    }

    /// Sleeps for a pseudo-random part of the poll interval.
    async fn sleep_jitter(&self) {
        let poll = self.last.borrow().as_ref().map(|last| last.revision.controller.poll);
        let Some(poll) = poll else { return };
        let most = (poll.unsigned_abs() / JITTER_SHARE).min(JITTER_MAX);
        let next = self.jitter_seed.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.jitter_seed.set(next);
        tokio::time::sleep(most * (next >> 24) / 256).await;
    }

    /// Refreshes the node class lookups of the newest commit and of the planned commit, for as long
    /// as it is polled. It also works while Git cannot be read.
    pub(super) async fn refresh_lookups(&self) {
        loop {
            tokio::time::sleep(LOOKUP_INTERVAL).await;
            let newest =
                self.last.borrow().as_ref().map(|last| Arc::clone(&last.planner.launch_context));
            for context in newest.into_iter().chain(self.aws.launch_context()) {
                self.aws.resolve_launch_context(&context).await;
            }
        }
    }

    async fn read_branch(
        &self,
        verified: Option<VerifiedCommit>,
    ) -> Result<PlannedRevision<R>, String> {
        let trusted = TrustedCommit::Last(verified);
        self.sleep_jitter().await;
        let known = self.known_base(&trusted);
        let tree = match known.clone() {
            Some(known) => {
                let reader = self.reader.clone();
                run_blocking(move || reader.read_changed_branch(&known)).await?
            }
            None => Some(self.read_tree().await?),
        };
        let pools = self.current_pools().await;
        let base = tree.as_ref().map(|tree| &tree.base).or(known.as_ref());
        if let Some(last) = &*self.last.borrow()
            && base == Some(&last.base)
            && last.revision.cluster_pools == pools
            && last.is_valid(&trusted)
        {
            return Ok((last.revision.clone(), Arc::clone(&last.planner)));
        }
        let tree = match tree {
            Some(tree) => tree,
            None => self.read_tree().await?,
        };
        self.tree_logger.log_if_new(&tree);
        let (base, at) = (tree.base.clone(), Instant::now());
        let has_unread_objects = tree.has_unread_objects;
        let (revision, planner) = self.prepare(tree, trusted.clone()).await?;
        self.queue.send_if_modified(|queue| {
            let changed = *queue != revision.controller.queue;
            queue.clone_from(&revision.controller.queue);
            changed
        });
        let is_current = planner.plans.has_current_market();
        let valid_for = if is_current { VALID_FOR } else { UNKNOWN_MARKET_VALID_FOR };
        let last = LastRevision {
            base,
            has_unread_objects,
            trusted,
            at,
            valid_for,
            revision: revision.clone(),
            planner: Arc::clone(&planner),
        };
        self.last.replace(Some(last));
        Ok((revision, planner))
    }

    /// Returns the base of the last revision, if a branch with this base need not be read.
    fn known_base(&self, trusted: &TrustedCommit) -> Option<TreeBase> {
        let last = self.last.borrow();
        let last = last.as_ref().filter(|last| last.is_valid(trusted))?;
        (!last.has_unread_objects).then(|| last.base.clone())
    }

    async fn read_tree(&self) -> Result<RepositoryTree, String> {
        let reader = self.reader.clone();
        run_blocking(move || reader.read_branch()).await
    }

    /// Returns the digest of the pools of the cluster, if the last commit reads them.
    async fn current_pools(&self) -> Option<String> {
        let is_read = |last: &LastRevision<_>| last.revision.cluster_pools.is_some();
        if !self.last.borrow().as_ref().is_some_and(is_read) {
            return None;
        }
        Some(self.watched.pools().await.digest())
    }

    /// Reads one commit, even if the branch has moved on.
    async fn read_commit(&self, commit: &str) -> Result<PlannedRevision<R>, RevisionError> {
        let (reader, commit) = (self.reader.clone(), commit.to_owned());
        let tree = run_blocking(move || reader.read_commit(&commit)).await?;
        let prepared = self.prepare(tree, TrustedCommit::Itself).await;
        prepared.map_err(RevisionError::Unreadable)
    }

    /// Returns the revision and its planner, with launch settings looked up.
    async fn prepare(
        &self,
        tree: RepositoryTree,
        trusted: TrustedCommit,
    ) -> Result<PlannedRevision<R>, String> {
        let plans = self.read_planner(tree, trusted).await?;
        check_cluster(&plans.cluster(), &self.cluster)?;
        let joining = self.joining().await?;
        let revision = Revision { auto_mode: joining.has_auto_mode(), ..plans.revision() };
        let desired = plans.desired();
        let launch_context =
            LaunchContext::new(desired, joining.endpoint, &joining.kubernetes_version);
        self.aws.set_reads_reservations(desired.uses_reservations());
        let errors = desired.problems.iter().filter(|problem| problem.severity == Severity::Error);
        for error in errors.take(ERRORS_MAX) {
            let (at, message) = (&error.origin, escape(&error.message));
            tracing::warn!(%at, object = %escape(&error.object), "{message}");
        }
        let (launch_context, aws) = (Arc::new(launch_context), Arc::clone(&self.aws));
        let (ahead, of) = (Arc::clone(&aws), Arc::clone(&launch_context));
        let looked_up = tokio::spawn(async move { ahead.prefetch(&of).await });
        // A slow lookup continues in the background; later plans use it.
        let _ = tokio::time::timeout(LOOKUP_TIMEOUT, looked_up).await;
        let forecast_task = Arc::clone(&self.forecast_task);
        Ok((revision, Arc::new(LivePlanner { plans, launch_context, aws, forecast_task })))
    }

    /// Reads the desired state of the tree, and the current EC2 offerings for it.
    async fn read_planner(
        &self,
        tree: RepositoryTree,
        trusted: TrustedCommit,
    ) -> Result<R::Planner, String> {
        let (reader, aws) = (self.reader.clone(), Arc::clone(&self.aws));
        let watched = Arc::clone(&self.watched);
        let answers = Arc::clone(&self.answers);
        let runtime = tokio::runtime::Handle::current();
        let alive = self.alive.subscribe();
        run_blocking(move || {
            let market: ReadMarket<'_> = &|query: &MarketQuery<'_>| {
                let mut alive = alive.clone();
                let market = runtime.block_on(async {
                    tokio::select! {
                        biased;
                        _ = alive.changed() => Err("the controller has ended".to_owned()),
                        market = query.read_cached(&aws, &answers) => market,
                    }
                });
                // Embedded or earlier data stands in. Each plan that uses it says so.
                match &market {
                    Ok(market) => {
                        for why in &market.unread {
                            tracing::warn!(why, "EC2 offerings are partly unknown");
                        }
                    }
                    Err(why) => tracing::warn!(why, "EC2 offerings are unknown"),
                }
                market
            };
            let pools = || {
                let mut alive = alive.clone();
                runtime.block_on(async {
                    tokio::select! {
                        biased;
                        _ = alive.changed() => None,
                        pools = watched.pools() => Some(Arc::new(pools)),
                    }
                })
            };
            reader.planner(&tree, &trusted, Some(market), &pools)
        })
        .await
    }

    async fn joining(&self) -> Result<ClusterBootstrap, String> {
        let known = self.joining.borrow().clone();
        if let Some((_, joining)) = known.filter(|(at, _)| at.elapsed() < VALID_FOR) {
            return Ok(joining);
        }
        let joining = self.aws.cluster_bootstrap().await.map_err(|error| error.to_string())?;
        self.joining.replace(Some((Instant::now(), joining.clone())));
        Ok(joining)
    }
}

impl<R: RepositoryReader> RevisionSource for RepositorySource<R> {
    type Planner = Arc<LivePlanner<R::Planner>>;

    async fn read_branch(
        &self,
        verified: Option<VerifiedCommit>,
    ) -> Result<PlannedRevision<R>, String> {
        self.read_branch(verified).await
    }

    async fn read_commit(&self, commit: &str) -> Result<PlannedRevision<R>, RevisionError> {
        self.read_commit(commit).await
    }
}

impl<P: BlockingPlanner> RevisionPlanner for Arc<LivePlanner<P>> {
    async fn plan(&self, world: Arc<Observed>, limits: PlanScope) -> Plan {
        // The next launches belong to this plan.
        self.aws.set_launch_context(Arc::clone(&self.launch_context));
        let (planner, over) = (Self::clone(self), mark_unresolved(&world, &self.launch_context));
        let plan = run_blocking(move || planner.plans.plan(&over, limits)).await;
        if let Some(permit) = self.forecast_task.try_begin(&plan, &world) {
            // The forecast does not delay the plan.
            let planner = Self::clone(self);
            tokio::spawn(log_forecast(spawn_blocking(move || {
                permit.publish_forecast(&planner.plans, &world)
            })));
        }
        plan
    }

    async fn reproduce(
        &self,
        plan: Arc<Plan>,
        world: Arc<Observed>,
        pods: PodScope,
    ) -> Option<RevalidatedPlan> {
        let (planner, over) = (Self::clone(self), mark_unresolved(&world, &self.launch_context));
        run_blocking(move || planner.plans.reproduce(&plan, &over, pods)).await
    }

    async fn revalidate(
        &self,
        plan: Arc<Plan>,
        world: Arc<Observed>,
        pods: PodScope,
    ) -> RevalidatedPlan {
        let (planner, over) = (Self::clone(self), mark_unresolved(&world, &self.launch_context));
        run_blocking(move || planner.plans.revalidate(&plan, &over, pods)).await
    }

    fn catalog(&self) -> &Catalog {
        self.plans.catalog()
    }
}

/// Waits for a forecast and logs its result. A failure affects nothing else.
async fn log_forecast(forecast: JoinHandle<Duration>) {
    match forecast.await {
        Ok(took) => tracing::debug!(took_ms = took.as_millis(), "forecast made"),
        Err(error) => tracing::warn!(%error, "forecast failed"),
    }
}

/// Runs long work on a thread of its own, so that leases are renewed meanwhile.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        // A panic continues on the calling thread.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests;
