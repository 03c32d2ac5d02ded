//! `plan --serve`: the page of a plan on this machine, made again when the files change; and what the
//! sandbox shows of itself in the same way.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::error::CliError;
use super::settings::PlanSettings;
use super::{Console, Exit, embedded, forecast, planning};
use crate::fleet::{Observed, PodPhase};
use crate::listen::{Listening, Serves, Site, listen};
use crate::manifest::Mode;
use crate::plan::Plan;
use crate::plan::forecast::Forecast;
use crate::reconcile::{Board, PlanNow, RepositoryNow, SourceState, Status, WorldNow};

/// Between two looks at Ctrl-C.
const WAKE: Duration = Duration::from_millis(100);

/// Between two looks at the files.
const READ_EVERY: Duration = Duration::from_secs(2);

/// Between two plans over a world that may have changed while the files have not.
const PLAN_EVERY: Duration = Duration::from_mins(1);

/// A page on this machine.
pub(super) struct Preview {
    board: Board,
    forecast: tokio::sync::watch::Sender<Option<Arc<Forecast>>>,
    listening: Listening,
    since: Timestamp,
}

impl Preview {
    /// Serves what `plan` says on `address`.
    pub(super) fn open(
        address: SocketAddr,
        plan: Plan,
        observed: Option<&Observed>,
        now: Timestamp,
    ) -> Result<Self, CliError> {
        let (board, reader) = Board::new(status(plan, observed, (now, now)));
        let (forecast, forecasts) = tokio::sync::watch::channel(None);
        let site = Site { forecast: forecasts, ..Site::of(reader, Serves::Preview) };
        let listening = listen(address, site).map_err(|error| {
            CliError::text(error.to_string())
                .context(format!("cannot serve a page on {address}"))
                .hint("name a port that is free, or port 0")
        })?;
        Ok(Self { board, forecast, listening, since: now })
    }

    /// Returns where the page is.
    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.listening.address())
    }

    /// Shows a newer plan.
    pub(super) fn show(&self, plan: Plan, observed: Option<&Observed>, now: Timestamp) {
        self.board.publish(status(plan, observed, (self.since, now)));
    }

    /// Shows what the clock will bring.
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
    let mut shown = planning::read(&planning.source)?.base.tree;
    let plan = planning::plan(planning, console)?;
    super::plan::save(&plan, settings)?;
    let preview = Preview::open(address, plan, None, console.now())?;
    console.print(&format!("The page of the plan is at {}. Ctrl-C ends it.\n", preview.url()))?;
    let week = |console: &mut Console| forecast::of_a_week(planning, console);
    match week(console) {
        Ok(forecast) => preview.show_forecast(forecast),
        Err(error) => console.say(&format!("there is no forecast: {error}")),
    }
    let interrupted = embedded::interrupt_flag()?;
    let (mut read_at, mut planned_at) = (Instant::now(), Instant::now());
    while !interrupted.load(Ordering::Relaxed) {
        std::thread::sleep(WAKE);
        if read_at.elapsed() < READ_EVERY {
            continue;
        }
        read_at = Instant::now();
        // Files that are being written are looked at again.
        let Ok(tree) = planning::read(&planning.source) else { continue };
        if tree.base.tree == shown && planned_at.elapsed() < PLAN_EVERY {
            continue;
        }
        planned_at = Instant::now();
        shown = tree.base.tree;
        match planning::plan(planning, console) {
            Ok(plan) => preview.show(plan, None, console.now()),
            Err(error) => console.say(&format!("the page shows the plan before: {error}")),
        }
    }
    Ok(Exit::Done)
}

/// Returns what a loop would tell that made this plan and may carry out nothing.
fn status(plan: Plan, observed: Option<&Observed>, (since, now): (Timestamp, Timestamp)) -> Status {
    let base = &plan.capacity.base;
    Status {
        now,
        started_at: since,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        identity: "a preview".to_owned(),
        leader: false,
        led_by: None,
        lent: false,
        cluster: base.world.cluster.clone(),
        mode: Mode::Observe,
        suspended: None,
        break_glass: None,
        breakers: Vec::new(),
        repository: RepositoryNow { commit: base.commit.clone(), ..RepositoryNow::default() },
        world: observed.map(|observed| world(observed, now)),
        plan: Some(PlanNow { since: plan.timestamp, plan: Arc::new(plan), held: [].into() }),
        applying: [].into(),
        history: Vec::new(),
        parts: Vec::new(),
        costs: Vec::new(),
        superseded: Vec::new(),
        unread: None,
        uncordoned: Vec::new(),
        going: Vec::new(),
        sold_out: Vec::new(),
        quarantined: [].into(),
        failing: [].into(),
        kept: crate::reconcile::KeptNow::default(),
        rival: None,
        counters: [].into(),
        measured: crate::measure::Measured::default(),
        wakes_at: None,
    }
}

fn world(observed: &Observed, now: Timestamp) -> WorldNow {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let active = observed.pods.iter().filter(|pod| pod.is_active());
    let waits = active.clone().filter(|pod| pod.phase == PodPhase::Pending && pod.node.is_none());
    let first = waits.clone().map(|pod| pod.created_at).min();
    WorldNow {
        taken_at: observed.taken_at,
        age: now.duration_since(observed.taken_at).max(jiff::SignedDuration::ZERO),
        sources: observed.sources.clone(),
        nodes: count(observed.nodes.len()),
        ready: count(observed.nodes.values().filter(|node| node.ready).count()),
        instances: count(observed.instances.values().filter(|one| one.is_active()).count()),
        pods: count(active.count()),
        pending: count(waits.count()),
        pending_for: first.map(|since| observed.taken_at.duration_since(since)),
        reads: SourceState { read_at: Some(observed.taken_at), error: None, failures: 0 },
    }
}
