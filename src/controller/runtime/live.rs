//! The controller in a real cluster: the production ports, and the background tasks of the
//! controller.
//!
//! See ADR 13. This module wires and decides nothing. The controller has a thread of its own; other
//! threads renew the lease, read watches and receive messages.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::event_sources::{self, EventSources};
use super::forecast_task::ForecastTask;
use super::inventory_cache::InventoryCache;
use super::leader_election::LeaderElector;
use super::live_cluster::{LiveCluster, LiveOptions};
use super::queue_listener::{self, ReceiveGate};
use super::repository_source::RepositorySource;
use super::status_log::StatusLogger;
use super::status_output::StatusOutput;
use super::status_throttle::StatusThrottle;
use super::{
    Host, PageChannels, RepositoryReader, RunOptions, RuntimeError, StatusPage, Steering,
    process_identity, startup_retry, template_sweep,
};
use crate::adapters::aws::Aws;
use crate::adapters::kube::{Kubernetes, LEASE_POLL, LeaseError, WatchedCluster};
use crate::adapters::system_clock::SystemClock;
use crate::apply::Bounds;
use crate::apply::ports::Clock as _;
use crate::controller::{
    AuthorizedRequest, ControllerState, Effect, ExternalPorts, LEASE_HOLDER_PREFIX, Signal,
    StartOptions, authorization, run as run_controller,
};
use crate::render::escape;

/// Signals and hints that are buffered for the controller.
const SIGNALS_MAX: usize = 16;
const CLUSTER_CHANGES_MAX: usize = 8;

/// The longest time that other threads may work after the controller has ended.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the controller over a live cluster, and returns its last state; `None` if the process is
/// shut down before it starts.
///
/// # Errors
/// If the cluster cannot be used, the lease cannot be taken, or the page cannot be opened.
pub fn run<H: Host>(
    host: &mut H,
    options: &LiveOptions,
    reader: impl RepositoryReader,
    connect: impl AsyncFn() -> Result<LiveCluster, H::Error>,
) -> Result<Option<ControllerState>, H::Error> {
    let runtime: Runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(RuntimeError::Threads)?;
    let end = runtime.block_on(Box::pin(connect_and_run(host, options, reader, connect)));
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    end
}

/// Returns an identity that is unique to this replica. Its prefix tells applies that the lease
/// holder is a controller.
///
/// In a cluster it is the name of the pod: a container that restarts in its pod takes its own lease
/// back without waiting.
fn replica_identity(at: Timestamp) -> String {
    let pod = std::env::var("POD_NAME").ok().filter(|pod| !pod.is_empty());
    format!("{LEASE_HOLDER_PREFIX}{}", pod.unwrap_or_else(|| process_identity(at)))
}

async fn connect_and_run<H: Host>(
    host: &mut H,
    options: &LiveOptions,
    reader: impl RepositoryReader,
    connect: impl AsyncFn() -> Result<LiveCluster, H::Error>,
) -> Result<Option<ControllerState>, H::Error> {
    let connected = if options.retries_connect {
        Box::pin(startup_retry::connect_with_retry(host, options, connect)).await?
    } else {
        Some(connect().await?)
    };
    let Some(LiveCluster { kubernetes, aws, identity: cluster }) = connected else {
        return Ok(None);
    };
    let reader = reader.with_steering(steering(host, &kubernetes).await);
    let now = SystemClock.now();
    let start = options.run.start(now, replica_identity(now), cluster);
    let kubernetes = kubernetes.accept_api_tokens(options.run.accepts_api_tokens);
    let tasks = BackgroundTasks::start(kubernetes, aws, &start, options);
    if start.once {
        let acquired = acquire_within(&tasks.elector, options.lock_timeout).await;
        acquired.map_err(RuntimeError::Lease)?;
    }
    Box::pin(tasks.run(host, options.run, start, reader)).await.map(Some)
}

/// Returns whether kube-scheduler honors nominations, and reports why it does not.
async fn steering<H: Host>(host: &mut H, kubernetes: &Kubernetes) -> Steering {
    let (steering, obstacle) = match kubernetes.steering_obstacle().await {
        Ok(None) => return Steering::Supported,
        Ok(Some(obstacle)) => {
            let is_forbidden = obstacle.is_forbidden;
            let steering = if is_forbidden { Steering::Forbidden } else { Steering::OnRequest };
            (steering, obstacle.reason)
        }
        // Refused nominations do no harm, and are counted.
        Err(error) => (Steering::Supported, error.to_string()),
    };
    if steering != Steering::Supported {
        host.report(&format!(
            "kube-scheduler decides freely where pods go, so plans include spare room: {}.",
            escape(&obstacle)
        ));
    }
    steering
}

/// Takes the lease, waiting up to `timeout` while another replica or an apply holds it.
async fn acquire_within(elector: &LeaderElector, timeout: Duration) -> Result<(), LeaseError> {
    let until = Instant::now() + timeout;
    loop {
        match elector.acquire().await {
            Ok(()) => return Ok(()),
            Err(error @ LeaseError::Port(_)) => return Err(error),
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => tokio::time::sleep(LEASE_POLL).await,
        }
    }
}

/// The tasks beside the controller. Dropping it stops them.
struct BackgroundTasks {
    kubernetes: Kubernetes,
    elector: Arc<LeaderElector>,
    aws: Arc<Aws>,
    watched: Arc<WatchedCluster>,
    channels: ControllerChannels,
    queue: watch::Sender<Option<String>>,
    /// True if the controller can take messages.
    ready: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

/// The channels between the background tasks and the controller.
struct ControllerChannels {
    urgent: mpsc::Receiver<Signal>,
    messages: mpsc::Receiver<crate::controller::InterruptionMessage>,
    cluster_changes: mpsc::Receiver<crate::adapters::kube::ClusterChange>,
    acknowledgements: mpsc::Sender<queue_listener::Acknowledgement>,
    signals: mpsc::Sender<Signal>,
}

impl ControllerChannels {
    /// Combines these channels and those of the page into the signals of the controller.
    fn into_signals<'l>(
        self,
        elector: &'l LeaderElector,
        inventory: &'l InventoryCache<Aws>,
        requests: mpsc::Receiver<AuthorizedRequest>,
        hints: mpsc::Receiver<()>,
    ) -> EventSources<'l> {
        EventSources {
            elector,
            inventory,
            urgent: RefCell::new(self.urgent),
            messages: RefCell::new(self.messages),
            requests: RefCell::new(requests),
            hints: RefCell::new(hints),
            cluster_changes: RefCell::new(self.cluster_changes),
            acknowledgements: self.acknowledgements,
        }
    }
}

impl BackgroundTasks {
    fn start(
        kubernetes: Kubernetes,
        aws: Aws,
        start: &StartOptions,
        options: &LiveOptions,
    ) -> Self {
        let aws = Arc::new(aws);
        let keys = options.state_keys.clone();
        let elector = Arc::new(LeaderElector::new(&kubernetes, &start.identity, keys));
        let certain = Arc::clone(&elector);
        aws.set_write_permit(move || certain.is_certain());
        let (signals, urgent) = mpsc::channel(SIGNALS_MAX);
        let (message_sender, messages) = mpsc::channel(queue_listener::BUFFERED_MAX);
        let (change_sender, cluster_changes) = mpsc::channel(CLUSTER_CHANGES_MAX);
        let (acknowledgements, acknowledged) = mpsc::channel(queue_listener::BUFFERED_MAX);
        let (queue, ready) = (watch::channel(None).0, watch::channel(false).0);
        let mut tasks = JoinSet::new();
        let named = queue.subscribe();
        let gate = ReceiveGate { ready: ready.subscribe(), queue: named.clone() };
        let (burst, urls) = (Arc::<Notify>::default(), Arc::<queue_listener::QueueUrls>::default());
        for n in 0..queue_listener::LISTENERS {
            let long_polls = n < queue_listener::LONG_POLLING;
            let role = queue_listener::ListenerRole {
                long_polls,
                burst: Arc::clone(&burst),
                urls: Arc::clone(&urls),
            };
            tasks.spawn(queue_listener::receive_messages(
                Arc::clone(&aws),
                gate.clone(),
                role,
                message_sender.clone(),
            ));
        }
        tasks.spawn(queue_listener::acknowledge_in_batches(
            Arc::clone(&aws),
            named,
            urls,
            acknowledged,
        ));
        tasks.spawn(event_sources::wait_for_shutdown(
            Arc::clone(&options.shutdown),
            signals.clone(),
        ));
        let (election, election_signals) = (Arc::clone(&elector), signals.clone());
        let once = start.once;
        tasks.spawn(async move {
            if once {
                // `acquire_within` has taken the lease already, or failed.
                while !*election.subscribe().borrow() {
                    tokio::time::sleep(LEASE_POLL / 20).await;
                }
            }
            election.run(election_signals).await;
        });
        let watched = Arc::new(WatchedCluster::start(kubernetes.clone(), change_sender));
        let channels =
            ControllerChannels { urgent, messages, cluster_changes, acknowledgements, signals };
        Self { kubernetes, elector, aws, watched, channels, queue, ready, _tasks: tasks }
    }

    async fn run<H: Host>(
        self,
        host: &mut H,
        options: RunOptions,
        start: StartOptions,
        reader: impl RepositoryReader,
    ) -> Result<ControllerState, H::Error> {
        let Self { kubernetes, elector, aws, watched, channels, queue, ready, _tasks } = self;
        let (inventory, sweeper) = (InventoryCache::new(Arc::clone(&aws)), Arc::clone(&aws));
        let caller = Arc::clone(&aws);
        let (requests, controller_requests) = mpsc::channel(SIGNALS_MAX);
        let (request_sender, pending) = mpsc::channel(authorization::PENDING_REQUESTS_MAX);
        let (hint_sender, hints) = mpsc::channel(1);
        let (forecast_task, forecasts) = ForecastTask::new();
        let page_channels =
            PageChannels { requests: Some(request_sender), hints: hint_sender, forecasts };
        let status_page = host.open_page(&start, page_channels)?;
        let answering = async {
            authorization::serve_requests(&kubernetes, pending, requests).await;
            // The page has closed its channel: no request can come.
            std::future::pending::<()>().await;
        };
        let pools = Arc::clone(&watched);
        let source = RepositorySource::new(reader, &start, aws, pools, queue, forecast_task);
        let wake_sender = channels.signals.clone();
        let signals = channels.into_signals(&elector, &inventory, controller_requests, hints);
        let ports = ExternalPorts {
            cloud: &inventory,
            cluster: &*watched,
            clock: &SystemClock,
            source: &source,
            signals: &signals,
            store: &*elector,
        };
        let (output, throttle, may_act) =
            (StatusOutput::default(), StatusThrottle::default(), Cell::new(false));
        let logger = StatusLogger::new(host, options.log_format);
        let mut observers =
            Observers { logger, output: &output, throttle: &throttle, status_page, aws: &caller };
        let mut on_step = |state: &ControllerState, effects: &[Effect]| {
            elector.set_busy(state.is_busy());
            may_act.set(state.may_act());
            let accepts = state.accepts_messages();
            ready.send_if_modified(|ready| std::mem::replace(ready, accepts) != accepts);
            observers.publish(state, effects);
        };
        let state = tokio::select! {
            state = run_controller(ports, start, Bounds::default(), &mut on_step) => state,
            () = inventory.refresh_periodically() => unreachable!("it never ends"),
            () = output.write_periodically(&kubernetes) => unreachable!("it never ends"),
            () = template_sweep::sweep_launch_resources(&sweeper, &inventory, &may_act) => unreachable!("it never ends"),
            () = source.refresh_lookups() => unreachable!("it never ends"),
            () = throttle.wake_when_due(&wake_sender) => unreachable!("it never ends"),
            () = answering => unreachable!("it never ends"),
        };
        observers.logger.log_changes(&state.status());
        output.flush(&kubernetes, &state.status()).await;
        elector.release().await;
        Ok(state)
    }
}

/// Outputs of the controller status: log, Kubernetes objects and page.
struct Observers<'n, P> {
    logger: StatusLogger<'n>,
    output: &'n StatusOutput,
    throttle: &'n StatusThrottle,
    status_page: P,
    aws: &'n Aws,
}

impl<P: StatusPage> Observers<'_, P> {
    /// Publishes the result of a step, unless a later step publishes it soon enough.
    fn publish(&mut self, state: &ControllerState, effects: &[Effect]) {
        let Self { logger, output, throttle, status_page, aws } = self;
        if let Some((plan, step)) = state.apply_step() {
            output.note_apply_step(plan, step);
        }
        if !throttle.is_due(state.has_urgent_launches()) && !StatusOutput::has_events(effects) {
            return;
        }
        throttle.publish(|| {
            let mut status = state.status();
            logger.log_changes(&status);
            logger.log_competing_autoscaler(status.now, state.competing_autoscaler());
            output.record(&status, effects);
            output.add_earlier(&mut status);
            status.durations.extend(aws.call_latencies());
            status_page.publish(status);
        });
    }
}
