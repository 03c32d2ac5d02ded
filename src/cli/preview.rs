//! `plan --serve`: a local page of the plan that follows the files; also the page of the sandbox.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::error::CliError;
use super::planning::Planned;
use super::settings::{PlanSettings, PlanningSettings};
use super::{Console, Exit, apply_session, files, forecast, planning, source_tree};
use crate::controller::{
    Counters, PublishedPlan, RepositoryStatus, SourceState, Status, StatusPublisher,
    StatusReceiver, WorldStatus,
};
use crate::model::desired::Mode;
use crate::model::observed::{Observed, PodPhase};
use crate::plan::forecast::Forecast;
use crate::server::http::{HttpServer, PageSource, ServerConfig, listen};

const CTRL_C_POLL: Duration = Duration::from_millis(100);

/// Time between two reads of the files.
const READ_EVERY: Duration = Duration::from_secs(2);

/// Time between two plans while the files are unchanged, because the world may change.
const PLAN_EVERY: Duration = Duration::from_mins(1);

/// A local page.
pub(super) struct Preview {
    board: StatusPublisher,
    latest: StatusReceiver,
    forecast: tokio::sync::watch::Sender<Option<Arc<Forecast>>>,
    listening: HttpServer,
    since: Timestamp,
}

impl Preview {
    /// Serves the page of `plan` on `address`.
    pub(super) fn open(
        address: SocketAddr,
        planned: Planned,
        observed: Option<&Observed>,
        now: Timestamp,
    ) -> Result<Self, CliError> {
        let (board, reader) = StatusPublisher::new(preview_status(planned, observed, now, now));
        let latest = reader.clone();
        let (forecast, forecasts) = tokio::sync::watch::channel(None);
        let site =
            ServerConfig { forecast: forecasts, ..ServerConfig::new(reader, PageSource::Preview) };
        let listening = listen(address, site).map_err(|error| {
            CliError::text(error.to_string())
                .context(format!("cannot serve a page on {address}"))
                .hint("name a port that is free, or port 0")
        })?;
        Ok(Self { board, latest, forecast, listening, since: now })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.listening.address())
    }

    /// Publishes a newer plan.
    pub(super) fn show(&self, planned: Planned, observed: Option<&Observed>, now: Timestamp) {
        self.board.publish(preview_status(planned, observed, self.since, now));
    }

    /// Publishes why no newer plan could be made. The page keeps the previous plan.
    fn show_error(&self, error: &str, now: Timestamp) {
        let mut status = Status::clone(&self.latest.borrow());
        status.now = now;
        let reads = &mut status.repository.reads;
        let since = reads.error.take().map_or(now, |(_, since)| since);
        reads.error = Some((error.to_owned(), since));
        reads.failures = reads.failures.saturating_add(1);
        self.board.publish(status);
    }

    /// Publishes a forecast.
    pub(super) fn show_forecast(&self, forecast: Forecast) {
        self.forecast.send_replace(Some(Arc::new(forecast)));
    }
}

/// Plans, and serves the page until Ctrl-C.
pub(super) fn serve(
    address: SocketAddr,
    settings: &PlanSettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let planning = &settings.planning;
    let shown = source_tree::read(&planning.source)?.base.tree;
    let planned = planning::plan_with_facts(planning, console)?;
    files::save_plan(&planned.plan, settings.out.as_deref(), settings.saved_rows)?;
    let preview = Preview::open(address, planned, None, console.now())?;
    console.print(&format!("The page of the plan is at {}. Ctrl-C ends it.\n", preview.url()))?;
    let week = |console: &mut Console| forecast::weekly(planning, console);
    match week(console) {
        Ok(forecast) => preview.show_forecast(forecast),
        Err(error) => console.report(&format!("there is no forecast: {error}")),
    }
    let interrupted = apply_session::interrupt_flag()?;
    let mut read_at = Instant::now();
    let mut follower =
        Follower { planning, preview: &preview, shown, planned_at: Instant::now(), failed: false };
    while !interrupted.load(Ordering::Relaxed) {
        std::thread::sleep(CTRL_C_POLL);
        if read_at.elapsed() >= READ_EVERY {
            read_at = Instant::now();
            follower.follow(console);
        }
    }
    Ok(Exit::Done)
}

/// Keeps a page up to date with the files.
struct Follower<'a> {
    planning: &'a PlanningSettings,
    preview: &'a Preview,
    /// Digest of the files of the last plan.
    shown: String,
    planned_at: Instant,
    /// True if the last read failed.
    failed: bool,
}

impl Follower<'_> {
    /// Reads the files, and plans if they changed or the plan is old. Errors go to the page.
    fn follow(&mut self, console: &mut Console) {
        let tree = match source_tree::read_unlogged(&self.planning.source) {
            Ok(read) => read.base.tree,
            Err(error) => {
                self.failed = true;
                self.preview.show_error(&error.to_string(), console.now());
                return;
            }
        };
        let has_recovered = std::mem::take(&mut self.failed);
        if tree == self.shown && !has_recovered && self.planned_at.elapsed() < PLAN_EVERY {
            return;
        }
        self.planned_at = Instant::now();
        self.shown = tree;
        match planning::plan_with_facts(self.planning, console) {
            Ok(planned) => self.preview.show(planned, None, console.now()),
            Err(error) => {
                let error = error.to_string();
                self.preview.show_error(&error, console.now());
                console.report(&format!("the page shows the previous plan: {error}"));
            }
        }
    }
}

/// Returns the status of an observe-only controller with this plan.
fn preview_status(
    Planned { plan, facts }: Planned,
    observed: Option<&Observed>,
    since: Timestamp,
    now: Timestamp,
) -> Status {
    let base = &plan.capacity.base;
    Status {
        now,
        started_at: since,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        identity: "preview".to_owned(),
        is_leader: false,
        lease_holder: None,
        is_lease_held_by_apply: false,
        cluster: base.world.cluster.clone(),
        mode: Mode::Observe,
        suspended: None,
        break_glass: None,
        breakers: Vec::new(),
        repository: RepositoryStatus {
            commit: base.commit.clone(),
            origin: facts.origin,
            pool_limits: facts.pool_limits,
            ..RepositoryStatus::default()
        },
        world: observed.map(|observed| world_status(observed, now)),
        plan: Some(PublishedPlan {
            since: plan.timestamp,
            plan: Arc::new(plan),
            blocked: [].into(),
        }),
        in_progress: [].into(),
        finished_changes: [].into(),
        history: Vec::new(),
        partial_applies: Vec::new(),
        hourly_costs: Vec::new(),
        superseded: Vec::new(),
        history_error: None,
        withheld_repairs: Vec::new(),
        current_approval: None,
        uncordoned: Vec::new(),
        interrupted: Vec::new(),
        unavailable_offerings: Vec::new(),
        quarantined: [].into(),
        failing_actions: [].into(),
        persisted_state: crate::controller::PersistedStateSize::default(),
        competing_autoscaler: None,
        counters: Counters::default(),
        durations: crate::telemetry::histogram::Histograms::default(),
        wakes_at: None,
    }
}

fn world_status(observed: &Observed, now: Timestamp) -> WorldStatus {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let active = observed.pods.iter().filter(|pod| pod.is_active());
    let pending = active.clone().filter(|pod| pod.phase == PodPhase::Pending && pod.node.is_none());
    let first = pending.clone().map(|pod| pod.created_at).min();
    WorldStatus {
        taken_at: observed.taken_at,
        age: now.duration_since(observed.taken_at).max(jiff::SignedDuration::ZERO),
        sources: observed.sources.clone(),
        nodes: count(observed.nodes.len()),
        ready: count(observed.nodes.values().filter(|node| node.ready).count()),
        instances: count(observed.instances.values().filter(|one| one.is_active()).count()),
        pods: count(active.count()),
        pending: count(pending.count()),
        pending_for: first.map(|since| observed.taken_at.duration_since(since)),
        reads: SourceState { read_at: Some(observed.taken_at), error: None, failures: 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::settings::{GuardChoice, SourceSettings};
    use crate::cli::tests::with_console;
    use crate::planner::Scope;
    use crate::render::RepositoryFacts;
    use crate::testing::sample_plan::nothing;

    fn no_changes() -> Planned {
        Planned { plan: nothing(), facts: RepositoryFacts::default() }
    }

    #[test]
    fn first_failed_read_is_on_the_page() {
        let now = nothing().timestamp;
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let preview = Preview::open(any_port, no_changes(), None, now).expect("a port");
        let source = SourceSettings { path: "/no/such/directory".into(), revision: None };
        let planning = PlanningSettings {
            source,
            world: None,
            at: None,
            demand: None,
            steer: false,
            scope: Scope::default(),
            compare: None,
            guard: GuardChoice::default(),
        };
        with_console(None, |console| {
            let shown = String::new();
            let planned_at = Instant::now();
            let mut follower = Follower {
                planning: &planning,
                preview: &preview,
                shown,
                planned_at,
                failed: false,
            };
            follower.follow(console);
            Exit::Done
        });
        let status = preview.latest.borrow().clone();
        let (error, _) = status.repository.reads.error.clone().expect("an error");
        assert!(error.contains("/no/such/directory"), "{error}");
    }

    #[test]
    fn page_shows_errors_until_the_next_plan() {
        let now = nothing().timestamp;
        let later = now + jiff::SignedDuration::from_mins(5);
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let preview = Preview::open(any_port, no_changes(), None, now).expect("a port");
        preview.show_error("no such directory", now);
        preview.show_error("the directory is empty", later);
        let status = preview.latest.borrow().clone();
        let reads = &status.repository.reads;
        assert_eq!(reads.error, Some(("the directory is empty".to_owned(), now)));
        assert_eq!((reads.failures, status.now), (2, later));
        preview.show(no_changes(), None, later);
        assert_eq!(preview.latest.borrow().repository.reads.error, None);
    }
}
