//! The controller over an embedded world: one thread, with simulated time that follows the wall
//! clock or skips idle time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::forecast_task::ForecastTask;
use super::status_log::StatusLogger;
use super::{
    BlockingPlanner, Host, PageChannels, RepositoryReader, RunOptions, RuntimeError,
    StatusPage as _, TreeLogger, TrustedCommit, check_cluster, process_identity,
};
use crate::adapters::files::{read_regular, write_atomically};
use crate::adapters::git::RepositoryTree;
use crate::apply::Bounds;
use crate::apply::ports::{CallEffect, Clock, PortError};
use crate::catalog::Catalog;
use crate::controller::{
    ControllerState, ExternalPorts, PersistedState, PlanScope, PodScope, Revision, RevisionError,
    RevisionPlanner, RevisionSource, Signal, SignalSource, StateStore, VerifiedCommit,
    run as run_controller,
};
use crate::model::ids::Uid;
use crate::model::observed::{ClusterIdentity, ClusterPools, Observed, Pod};
use crate::plan::{Plan, RevalidatedPlan};
use crate::simulator::{Delivery, World, eksctl_groups};

/// The file of the persisted controller state, beside the world.
const STATE_FILE: &str = "controller.json";
/// Most bytes of this file: far more than a state that is saved.
const STATE_BYTES_MAX: u64 = 64 << 20;
/// The longest step of skipped time. It bounds the reaction time to new pods.
const STEP_MAX: SignedDuration = SignedDuration::from_secs(1);
/// Poll interval while simulated time follows the wall clock.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Options of a controller over an embedded world.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// Options of any world.
    pub run: RunOptions,
    /// The directory of the world, which its caller has locked.
    pub directory: PathBuf,
    /// The cluster that the repository names at the start.
    pub cluster: ClusterIdentity,
    /// Speed factor of the time of the world.
    pub speed: u32,
    /// True once the process is to end.
    pub shutdown: Arc<AtomicBool>,
}

/// Runs the controller over an embedded world, and returns its last state.
///
/// # Errors
/// If the page cannot be opened, or the world cannot be saved.
pub fn run<H: Host>(
    host: &mut H,
    options: EmbeddedOptions,
    world: World,
    reader: impl RepositoryReader,
) -> Result<ControllerState, H::Error> {
    let EmbeddedOptions { run: options, directory, cluster, speed, shutdown } = options;
    let world = Rc::new(world);
    let now = world.current_time();
    let start = options.start(now, process_identity(now), world.cluster());
    let (hint_sender, hints) = mpsc::channel(1);
    let (forecast_task, forecasts) = ForecastTask::new();
    let runtime = EmbeddedPorts {
        forecast_task,
        reader,
        cluster,
        tree_logger: TreeLogger::default(),
        delivered_tree: RefCell::default(),
        state_file: directory.join(STATE_FILE),
        announced: RefCell::default(),
        is_leader: Cell::default(),
        shutdown,
        hints: RefCell::new(hints),
        world: Rc::clone(&world),
    };
    let clock = WorldClock {
        world: Rc::clone(&world),
        sleepers: RefCell::default(),
        pace: (!options.once).then(|| (Instant::now(), now, speed)),
    };
    let channels = PageChannels { requests: None, hints: hint_sender, forecasts };
    let status_page = host.open_page(&start, channels)?;
    let mut logger = StatusLogger::new(host, options.log_format);
    let mut watch = |state: &ControllerState, _: &[crate::controller::Effect]| {
        let status = state.status();
        logger.log_changes(&status);
        status_page.publish(status);
    };
    let ports = ExternalPorts {
        cloud: &*world,
        cluster: &*world,
        clock: &clock,
        source: &runtime,
        signals: &runtime,
        store: &runtime,
    };
    let state =
        clock.run_until_complete(run_controller(ports, start, Bounds::default(), &mut watch))?;
    world.save().map_err(RuntimeError::World)?;
    Ok(state)
}

/// The file of the persisted state. Its two keys identify it as output, so that a state file inside
/// the tree is not read as a manifest.
#[derive(Serialize, Deserialize)]
struct StateFile {
    format_version: String,
    #[serde(rename = "kept")]
    state: PersistedState,
}

/// The format version of the state file.
const STATE_FILE_VERSION: &str = "1.0";

/// Repository, signals and state store of a controller over an embedded world.
struct EmbeddedPorts<R> {
    reader: R,
    /// The cluster that every commit has to name.
    cluster: ClusterIdentity,
    tree_logger: TreeLogger,
    /// The tree of the last delivery.
    delivered_tree: RefCell<Option<String>>,
    state_file: PathBuf,
    announced: RefCell<BTreeSet<Uid>>,
    is_leader: Cell<bool>,
    shutdown: Arc<AtomicBool>,
    /// Hints that the repository may have changed.
    hints: RefCell<mpsc::Receiver<()>>,
    forecast_task: Arc<ForecastTask>,
    world: Rc<World>,
}

/// Plans of one commit.
struct EmbeddedPlanner<P> {
    plans: P,
    /// Publishes forecasts for the page, if the commit is the head of the branch.
    forecast_task: Option<Arc<ForecastTask>>,
}

impl<R: RepositoryReader> EmbeddedPorts<R> {
    /// Returns the pools of the world, if it was observed with them.
    fn pools(&self) -> Option<Arc<ClusterPools>> {
        self.world.observed().pools
    }

    /// Returns the planner of a tree that names the managed cluster.
    fn planner(
        &self,
        tree: &RepositoryTree,
        trusted: &TrustedCommit,
    ) -> Result<R::Planner, String> {
        let plans = self.reader.planner(tree, trusted, None, &|| self.pools())?;
        check_cluster(&plans.cluster(), &self.cluster)?;
        Ok(plans)
    }

    /// Delivers the workloads of the repository. The embedded world also plays the delivery tool
    /// and the autoscalers.
    fn deliver(&self, plans: &R::Planner) -> Result<(), String> {
        let (desired, tree) = (plans.desired(), &plans.base().tree);
        let mut delivery = Delivery::from_desired(desired, &self.world.observed());
        let mut delivered = self.delivered_tree.borrow_mut();
        if delivered.as_ref() != Some(tree) {
            delivery.groups = eksctl_groups(desired, plans.catalog());
            *delivered = Some(tree.clone());
        }
        // The alternate form writes the causes as well.
        let delivered = self.world.deliver(&delivery);
        delivered.map_err(|error| format!("{:#}", anyhow::Error::new(error)))
    }
}

impl<R: RepositoryReader> RevisionSource for EmbeddedPorts<R> {
    type Planner = EmbeddedPlanner<R::Planner>;

    async fn read_branch(
        &self,
        verified: Option<VerifiedCommit>,
    ) -> Result<(Revision, Self::Planner), String> {
        let trusted = TrustedCommit::Last(verified);
        let tree = self.reader.read_branch()?;
        self.tree_logger.log_if_new(&tree);
        let plans = self.planner(&tree, &trusted)?;
        self.deliver(&plans)?;
        let forecast_task = Some(Arc::clone(&self.forecast_task));
        Ok((plans.revision(), EmbeddedPlanner { plans, forecast_task }))
    }

    async fn read_commit(&self, commit: &str) -> Result<(Revision, Self::Planner), RevisionError> {
        let tree = self.reader.read_commit(commit)?;
        let plans = self.planner(&tree, &TrustedCommit::Itself);
        let plans = plans.map_err(RevisionError::Unreadable)?;
        Ok((plans.revision(), EmbeddedPlanner { plans, forecast_task: None }))
    }
}

impl<P: BlockingPlanner> RevisionPlanner for EmbeddedPlanner<P> {
    async fn plan(&self, world: Arc<Observed>, limits: PlanScope) -> Plan {
        let plan = self.plans.plan(&world, limits);
        if let Some(permit) = self.forecast_task.as_ref().and_then(|f| f.try_begin(&plan, &world)) {
            permit.publish_forecast(&self.plans, &world);
        }
        plan
    }

    async fn reproduce(
        &self,
        plan: Arc<Plan>,
        world: Arc<Observed>,
        pods: PodScope,
    ) -> Option<RevalidatedPlan> {
        self.plans.reproduce(&plan, &world, pods)
    }

    async fn revalidate(
        &self,
        plan: Arc<Plan>,
        world: Arc<Observed>,
        pods: PodScope,
    ) -> RevalidatedPlan {
        self.plans.revalidate(&plan, &world, pods)
    }

    fn catalog(&self) -> &Catalog {
        self.plans.catalog()
    }
}

impl<R> SignalSource for EmbeddedPorts<R> {
    async fn next(&self) -> Signal {
        std::future::poll_fn(|_| self.next_signal().map_or(Poll::Pending, Poll::Ready)).await
    }

    async fn acknowledge(&self, _receipt: &str) -> Result<(), PortError> {
        Ok(())
    }

    fn may_write(&self) -> bool {
        // The process holds the lock of the directory until it ends.
        true
    }
}

impl<R> EmbeddedPorts<R> {
    fn next_signal(&self) -> Option<Signal> {
        if !self.is_leader.replace(true) {
            return Some(Signal::LeaseGained);
        }
        if self.shutdown.swap(false, Ordering::Relaxed) {
            return Some(Signal::Shutdown);
        }
        if self.hints.borrow_mut().try_recv().is_ok() {
            return Some(Signal::RepositoryChanged);
        }
        let view = self.world.view();
        let mut announced = self.announced.borrow_mut();
        let is_pending = |pod: &&Pod| pod.is_active() && pod.node.is_none();
        let pods = view.pods().filter(is_pending);
        // A closed node may complete its batch. Nodes and pods share one numbering of UIDs.
        let nodes = view.nodes().values().filter(|node| node.ready && node.is_closed());
        let pods = pods.map(|pod| (&pod.uid, Signal::PodPending));
        let nodes = nodes.map(|node| (&node.uid, Signal::WorldChanged));
        let (uid, signal) = pods.chain(nodes).find(|(uid, _)| !announced.contains(*uid))?;
        announced.insert(uid.clone());
        Some(signal)
    }
}

impl<R> StateStore for EmbeddedPorts<R> {
    async fn load(&self) -> Result<PersistedState, PortError> {
        let failed = |reason: String| PortError {
            verb: "read persisted state".to_owned(),
            reason,
            effect: CallEffect::Unknown,
        };
        let path = self.state_file.display();
        match read_regular(&self.state_file, STATE_BYTES_MAX) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(|StateFile { state, .. }| state)
                .map_err(|error| failed(format!("cannot read `{path}`: {error}"))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(PersistedState::default())
            }
            Err(error) => Err(failed(format!("cannot read `{path}`: {error}"))),
        }
    }

    async fn save(&self, state: &PersistedState) -> Result<(), PortError> {
        let file =
            StateFile { format_version: STATE_FILE_VERSION.to_owned(), state: state.clone() };
        let text = crate::plan::canonical::pretty(&file).map_err(|error| error.to_string());
        let written = text.and_then(|text| {
            write_atomically(&self.state_file, &text)
                .map_err(|error| format!("cannot write `{}`: {error}", self.state_file.display()))
        });
        written.map_err(|reason| PortError {
            verb: "write persisted state".to_owned(),
            reason,
            effect: CallEffect::Unknown,
        })
    }
}

/// The clock of an embedded world.
struct WorldClock {
    world: Rc<World>,
    sleepers: RefCell<BTreeSet<Timestamp>>,
    /// Wall-clock start, simulated start and speed. `None`: idle time is skipped.
    pace: Option<(Instant, Timestamp, u32)>,
}

impl WorldClock {
    /// Runs a future to completion while simulated time advances.
    fn run_until_complete<F: Future>(&self, work: F) -> Result<F::Output, RuntimeError> {
        let mut work = pin!(work);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(output) = work.as_mut().poll(&mut context) {
                return Ok(output);
            }
            let due = self.sleepers.borrow_mut().pop_first();
            self.sleepers.borrow_mut().clear();
            let now = self.world.current_time();
            let until = match self.pace {
                Some((began, at, speed)) => {
                    std::thread::sleep(POLL_INTERVAL);
                    let elapsed = began.elapsed().saturating_mul(speed);
                    let elapsed = SignedDuration::try_from(elapsed).unwrap_or(SignedDuration::MAX);
                    at.checked_add(elapsed).unwrap_or(Timestamp::MAX)
                }
                None => due.unwrap_or(now).min(now.checked_add(STEP_MAX).unwrap_or(now)).max(now),
            };
            if self.world.advance_to(until) {
                self.world.save()?;
            }
        }
    }
}

impl Clock for WorldClock {
    fn now(&self) -> Timestamp {
        self.world.current_time()
    }

    async fn sleep(&self, duration: SignedDuration) {
        let until = self.now().checked_add(duration).unwrap_or(Timestamp::MAX);
        Sleep { clock: self, until }.await;
    }
}

struct Sleep<'t> {
    clock: &'t WorldClock,
    until: Timestamp,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.until {
            return Poll::Ready(());
        }
        self.clock.sleepers.borrow_mut().insert(self.until);
        Poll::Pending
    }
}
