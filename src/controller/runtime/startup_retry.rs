//! Start-up of a long-running controller: failed reads are retried.
//!
//! Invariants:
//! - Nothing is written before the repository, the cluster and the account are read.
//! - The readiness probe reports the reason of the wait.
//! - Each wait is bounded and ends on shutdown.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::forecast_task::ForecastTask;
use super::live_cluster::{LiveCluster, LiveOptions};
use super::{Host, PageChannels, Reporter, StatusPage, process_identity};
use crate::adapters::system_clock::SystemClock;
use crate::apply::ports::Clock as _;
use crate::controller::{ControllerState, StartOptions};
use crate::model::observed::ClusterIdentity;
use crate::render::escape;

/// The timeout of one attempt. A fetch has a shorter timeout, so that attempts do not overlap.
const ATTEMPT_TIMEOUT: Duration = Duration::from_mins(3);

/// The shortest and longest wait between attempts.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_mins(1);

const SHUTDOWN_POLL: Duration = Duration::from_millis(100);

/// Waits until the repository, the cluster and the account can be read. Returns `None` if the
/// process is shut down before.
pub(super) async fn connect_with_retry<H: Host>(
    host: &mut H,
    options: &LiveOptions,
    connect: impl AsyncFn() -> Result<LiveCluster, H::Error>,
) -> Result<Option<LiveCluster>, H::Error> {
    let shutdown = &*options.shutdown;
    let mut backoff = BACKOFF_MIN;
    let mut waiting: Option<StartupStatus<H::Page>> = None;
    loop {
        let attempt = tokio::select! {
            attempt = timeout(ATTEMPT_TIMEOUT, connect()) => attempt,
            () = wait_for_shutdown(shutdown) => return Ok(None),
        };
        let why = match attempt {
            Ok(Ok(live)) => return Ok(Some(live)),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", ATTEMPT_TIMEOUT.as_secs()),
        };
        let waiting = match &mut waiting {
            Some(waiting) => waiting,
            none => none.insert(StartupStatus::open(host, options)?),
        };
        waiting.report_failure(&why, host);
        tokio::select! {
            () = sleep(backoff) => {}
            () = wait_for_shutdown(shutdown) => return Ok(None),
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

async fn wait_for_shutdown(shutdown: &AtomicBool) {
    while !shutdown.load(Ordering::Relaxed) {
        sleep(SHUTDOWN_POLL).await;
    }
}

/// The status of a controller that has not started.
struct StartupStatus<P> {
    status_page: P,
    start: StartOptions,
    since: Timestamp,
    failures: u32,
    last_reported: String,
    /// Receives webhook hints, which are not needed before the start.
    _unread: mpsc::Receiver<()>,
}

impl<P: StatusPage> StartupStatus<P> {
    fn open<H: Host<Page = P>>(host: &mut H, options: &LiveOptions) -> Result<Self, H::Error> {
        let now = SystemClock.now();
        let start = options.run.start(now, process_identity(now), ClusterIdentity::default());
        let (hints, unread) = mpsc::channel(1);
        let (_, forecasts) = ForecastTask::new();
        let channels = PageChannels { requests: None, hints, forecasts };
        let status_page = host.open_page(&start, channels)?;
        Ok(Self {
            status_page,
            start,
            since: now,
            failures: 0,
            last_reported: String::new(),
            _unread: unread,
        })
    }

    /// Publishes the reason of the wait, and logs each new reason once.
    fn report_failure(&mut self, why: &str, reporter: &mut impl Reporter) {
        self.failures = self.failures.saturating_add(1);
        if self.last_reported != why {
            reporter.report(&format!("cannot start the controller, retrying: {}", escape(why)));
            why.clone_into(&mut self.last_reported);
        }
        let mut status = ControllerState::new(StartOptions {
            started_at: SystemClock.now(),
            ..self.start.clone()
        })
        .status();
        status.repository.reads.failures = self.failures;
        status.repository.reads.error = Some((why.to_owned(), self.since));
        self.status_page.publish(status);
    }
}
