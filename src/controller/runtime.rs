//! The runtime of the controller: the production ports, and its background tasks.
//!
//! This module wires and decides nothing. The process around it provides its messages, its page and
//! its repository: see [`Host`] and [`RepositoryReader`].

pub mod embedded;
#[cfg(feature = "cluster")]
mod event_sources;
mod forecast_task;
#[cfg(feature = "cluster")]
mod inventory_cache;
#[cfg(feature = "cluster")]
mod leader_election;
#[cfg(feature = "cluster")]
pub mod live;
#[cfg(feature = "cluster")]
pub mod live_cluster;
#[cfg(feature = "cluster")]
mod queue_listener;
#[cfg(feature = "cluster")]
mod repository_source;
#[cfg(feature = "cluster")]
mod startup_retry;
mod status_log;
#[cfg(feature = "cluster")]
mod status_output;
#[cfg(feature = "cluster")]
mod status_throttle;
#[cfg(feature = "cluster")]
mod template_sweep;

use std::cell::RefCell;
use std::fmt::Display;
use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use thiserror::Error;
use tokio::sync::mpsc;

pub use forecast_task::ForecastReceiver;

use super::authorization::PendingRequest;
use super::{PlanScope, PodScope, Revision, RevisionError, StartOptions, Status, VerifiedCommit};
use crate::adapters::git::{RepositoryTree, TreeBase};
#[cfg(feature = "cluster")]
use crate::adapters::kube::LeaseError;
use crate::catalog::Catalog;
use crate::model::desired::{ControllerSettings, Desired, Mode};
use crate::model::market::{Market, MarketQuery};
use crate::model::observed::{ClusterIdentity, ClusterPools, Observed};
use crate::plan::forecast::Forecast;
use crate::plan::{Plan, RevalidatedPlan};
use crate::simulator::SimError;
use crate::telemetry::LogFormat;

/// Writes messages for operators.
pub trait Reporter {
    /// Writes one line, which is escaped.
    fn report(&mut self, line: &str);
    /// Writes escaped text.
    fn report_raw(&mut self, text: &str);
}

/// The page, the metrics and the probes of the controller.
pub trait StatusPage {
    /// Publishes a status.
    fn publish(&self, status: Status);
}

/// The channels between the page and the controller.
#[derive(Debug)]
pub struct PageChannels {
    /// Takes requests of operators. Without it the page is read-only.
    pub requests: Option<mpsc::Sender<PendingRequest>>,
    /// Takes hints that the repository may have changed.
    pub hints: mpsc::Sender<()>,
    /// Returns the latest forecast.
    pub forecasts: ForecastReceiver,
}

/// The process around the controller.
pub trait Host: Reporter {
    /// The error of the process.
    type Error: Display + From<RuntimeError>;
    /// The page of the process.
    type Page: StatusPage;
    /// Opens the page. An address that is not available fails the start.
    ///
    /// # Errors
    /// If the page cannot be opened.
    fn open_page(
        &mut self,
        start: &StartOptions,
        channels: PageChannels,
    ) -> Result<Self::Page, Self::Error>;
}

/// Reads the current EC2 offerings for a repository.
pub type ReadMarket<'m> = &'m dyn Fn(&MarketQuery<'_>) -> Result<Market, String>;

/// Reads the pools of the cluster; `None` if the world does not know them.
pub type ReadPools<'p> = &'p dyn Fn() -> Option<Arc<ClusterPools>>;

/// Reads the followed repository.
pub trait RepositoryReader: Clone + Send + 'static {
    /// Makes plans of one commit.
    type Planner: BlockingPlanner;
    /// Returns the reader for a cluster with this support of nominations.
    #[must_use]
    fn with_steering(self, steering: Steering) -> Self;
    /// Reads the head of the branch.
    ///
    /// # Errors
    /// With the reason, if the branch cannot be read.
    fn read_branch(&self) -> Result<RepositoryTree, String>;
    /// Reads the head of the branch. Returns `None` without reading a file if its base is `known`.
    ///
    /// # Errors
    /// With the reason, if the branch cannot be read.
    fn read_changed_branch(&self, known: &TreeBase) -> Result<Option<RepositoryTree>, String>;
    /// Reads one commit, even if the branch has moved on.
    ///
    /// # Errors
    /// If the commit does not exist or cannot be read.
    fn read_commit(&self, commit: &str) -> Result<RepositoryTree, RevisionError>;
    /// Returns the planner of a tree. Without a `market`, embedded offerings count. `pools` is called
    /// if the settings of the tree read pools from the cluster.
    ///
    /// # Errors
    /// With the reason, if the tree cannot be planned, or if its signatures do not count.
    fn planner(
        &self,
        tree: &RepositoryTree,
        trusted: &TrustedCommit,
        market: Option<ReadMarket<'_>>,
        pools: ReadPools<'_>,
    ) -> Result<Self::Planner, String>;
}

/// The commit from which a chain of signatures starts, where commits must be signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustedCommit {
    /// The last verified commit, if there is one.
    Last(Option<VerifiedCommit>),
    /// The commit that is read: it was verified before.
    Itself,
}

/// Support of nominations in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Steering {
    /// Nominations have no effect unless `spec.controller.steer` asks for them.
    #[default]
    OnRequest,
    /// kube-scheduler honors nominations.
    Supported,
    /// The controller may not write nominations.
    Forbidden,
}

impl Steering {
    /// Returns whether pods are nominated with these settings.
    pub fn resolve(self, settings: &ControllerSettings) -> bool {
        match self {
            Self::OnRequest => settings.steer == Some(true),
            Self::Supported => settings.steer.unwrap_or(settings.steers_by_default()),
            Self::Forbidden => false,
        }
    }
}

/// Makes plans of one commit, and blocks its thread meanwhile.
pub trait BlockingPlanner: Send + Sync + 'static {
    /// Returns the parts of the commit that the controller needs.
    fn revision(&self) -> Revision;
    /// Returns the cluster, as far as the commit declares it.
    fn cluster(&self) -> ClusterIdentity;
    /// Returns the identity of the tree.
    fn base(&self) -> &TreeBase;
    /// Returns the desired state.
    fn desired(&self) -> &Desired;
    /// Returns the catalog of all plans.
    fn catalog(&self) -> &Catalog;
    /// Returns whether the current EC2 offerings are known. Without them, each plan warns about the
    /// data that stands in for them.
    fn has_current_market(&self) -> bool;
    /// Returns the judged plan over `world`.
    fn plan(&self, world: &Observed, limits: PlanScope) -> Plan;
    /// Plans over `world` for `pods`, and returns the result if it is the approved `plan`.
    fn reproduce(&self, plan: &Plan, world: &Observed, pods: PodScope) -> Option<RevalidatedPlan>;
    /// Plans over `world` for `pods`, and compares the approved `plan` with the result.
    fn revalidate(&self, plan: &Plan, world: &Observed, pods: PodScope) -> RevalidatedPlan;
    /// Returns the forecast until `to`.
    fn forecast(&self, world: &Observed, to: Timestamp) -> Forecast;
}

/// Options of a controller in any world.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// The mode, unless the repository sets it.
    pub mode: Option<Mode>,
    /// True to stop once nothing is left to do.
    pub once: bool,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// True to accept tokens of operators that have no audience of ours.
    pub accepts_api_tokens: bool,
}

impl RunOptions {
    fn start(self, at: Timestamp, identity: String, cluster: ClusterIdentity) -> StartOptions {
        StartOptions { started_at: at, identity, cluster, mode: self.mode, once: self.once }
    }
}

/// The reason that the controller ended with an error.
#[derive(Debug, Error)]
pub enum RuntimeError {
    /// Threads cannot be started.
    #[error("cannot start the runtime")]
    Threads(#[source] io::Error),
    /// The lease cannot be taken.
    #[cfg(feature = "cluster")]
    #[error(transparent)]
    Lease(LeaseError),
    /// The embedded world cannot be saved.
    #[error(transparent)]
    World(#[from] SimError),
}

/// Logs the trees of the polled branch.
#[derive(Debug, Default)]
struct TreeLogger {
    last: RefCell<Option<TreeBase>>,
}

impl TreeLogger {
    /// Logs a tree unless it is the last one: most polls find the same.
    fn log_if_new(&self, tree: &RepositoryTree) {
        let base = &tree.base;
        if self.last.replace(Some(base.clone())).as_ref() != Some(base) {
            tracing::info!(files = tree.tree.files.len(), commit = base.commit, "tree read");
        }
    }
}

/// Refuses a commit that names another cluster than the `managed` one: its nodes would be foreign.
fn check_cluster(named: &ClusterIdentity, managed: &ClusterIdentity) -> Result<(), String> {
    let ClusterIdentity { name, region, .. } = named;
    if (name, region) == (&managed.name, &managed.region) {
        return Ok(());
    }
    let now = &managed.name;
    Err(format!(
        "the repository names cluster `{name}` in `{region}`, but this controller manages `{now}`; \
         start another controller for that cluster"
    ))
}

/// Returns an identity that is unique to this process.
fn process_identity(now: Timestamp) -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "local".to_owned());
    format!("{host}/{}/{}", std::process::id(), now.as_millisecond())
}
