//! The loop over an embedded world: one thread, and a time that passes as on the wall, or at once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::foresight::Foresight;
use super::plans::{Plans, unread};
use super::tell::Teller;
use crate::apply::Bounds;
use crate::cli::error::CliError;
use crate::cli::lock::Lock;
use crate::cli::planning;
use crate::cli::repository::Repository;
use crate::cli::settings::{RunSettings, SourceSettings};
use crate::cli::world::WorldChoice;
use crate::cli::{Console, Exit, embedded};
use crate::fleet::Pod;
use crate::ids::{NodeName, Uid};
use crate::manifest::Desired;
use crate::port::{Clock, Fate, PortError};
use crate::reconcile::{
    Desk, Head, Kept, NoCommit, Outside, Signal, Signals, Source, State, drive,
};
use crate::sim::World;

/// What the loop keeps, beside the world.
const KEPT: &str = "controller.json";
/// The longest step of a time that passes at once: pods come, and are seen to.
const STEP: SignedDuration = SignedDuration::from_secs(1);
/// Between two looks at a time that passes as on the wall.
const WAKE: Duration = Duration::from_millis(20);

/// Drives the loop over the world that is kept in `directory`.
pub(super) fn run(
    settings: &RunSettings,
    repository: &Repository,
    directory: &Path,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let _lock = Lock::take(directory, settings.lock_timeout, console)?;
    let desired = Rc::new(repository.desired.clone());
    let world = Rc::new(embedded::opened(directory, repository, &desired, console.now())?);
    let start = super::start(settings, world.observed_at(), world.cluster());
    let (pushed, hints) = mpsc::channel(1);
    let (foresight, told) = Foresight::new();
    let outside = Here {
        foresight,
        source: settings.source.clone(),
        choice: WorldChoice::Sim(directory.to_owned()),
        delivered: RefCell::default(),
        kept: directory.join(KEPT),
        told: RefCell::default(),
        leads: Cell::default(),
        ended: embedded::interrupt_flag()?,
        hints: RefCell::new(hints),
        world: Rc::clone(&world),
    };
    crate::cli::run::embedded::also_on_term(&outside.ended)?;
    let time = Passing {
        world: Rc::clone(&world),
        sleepers: RefCell::default(),
        pace: (!settings.once).then(|| (Instant::now(), world.observed_at(), settings.speed)),
    };
    let face = super::Face::open(settings, &start, (pushed, told), console)?;
    let mut teller = Teller::new(console, settings.log_format);
    let mut watch = |state: &State, _: &[crate::reconcile::Effect]| {
        let status = state.status();
        teller.look(&status);
        face.show(status);
    };
    let ports = Outside {
        cloud: &*world,
        cluster: &*world,
        clock: &time,
        source: &outside,
        signals: &outside,
        desk: &outside,
    };
    let state = time.until_done(drive(ports, start, Bounds::default(), &mut watch))?;
    world.save().map_err(CliError::new)?;
    Ok(super::exit(&state, settings.once))
}

/// Has the signal by which a cluster ends a process end the loop in order, too.
pub(super) fn also_on_term(flag: &Arc<AtomicBool>) -> Result<(), CliError> {
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(flag))
        .map(|_| ())
        .map_err(|error| CliError::new(error).context("cannot listen for SIGTERM".to_owned()))
}

/// What is written of a loop. By its two keys it is known as output, so that a record which is kept inside
/// of the tree is no part of it.
#[derive(Serialize, Deserialize)]
struct Record {
    format_version: String,
    kept: Kept,
}

/// The version of a record.
const RECORD_VERSION: &str = "1.0";

/// Repository, signals and record of a loop on this machine.
struct Here {
    source: SourceSettings,
    choice: WorldChoice,
    /// The tree that was delivered last.
    delivered: RefCell<Option<String>>,
    kept: PathBuf,
    told: RefCell<BTreeSet<Uid>>,
    leads: Cell<bool>,
    ended: Arc<AtomicBool>,
    /// Told that the repository may have changed.
    hints: RefCell<mpsc::Receiver<()>>,
    foresight: Arc<Foresight>,
    world: Rc<World>,
}

impl Here {
    /// Brings the workloads of the world to what the repository asks for: the embedded world also plays
    /// the tool that delivers them, and their autoscalers.
    fn deliver(&self, plans: &Plans) -> Result<(), CliError> {
        let repository = plans.repository();
        let desired: &Desired = &repository.desired;
        let mut delivery = embedded::delivery(desired, &self.world.observed());
        let mut delivered = self.delivered.borrow_mut();
        if delivered.as_ref() != Some(&repository.base.tree) {
            let catalog = crate::reconcile::Planner::catalog(plans);
            delivery.groups = crate::sim::eksctl_groups(desired, catalog);
            *delivered = Some(repository.base.tree.clone());
        }
        self.world.deliver(&delivery).map_err(CliError::new)
    }
}

impl Source for Here {
    type Planner = Plans;

    async fn head(&self) -> Result<(Head, Plans), String> {
        let read = || {
            let plans = Plans::read(&self.source, &self.choice)?.foretold(&self.foresight);
            self.deliver(&plans)?;
            Ok((plans.head(), plans))
        };
        read().map_err(|error: CliError| error.to_string())
    }

    async fn commit(&self, commit: &str) -> Result<(Head, Plans), NoCommit> {
        // Files that are not committed are there only as long as they are what they were.
        let revision = (!commit.starts_with("sha256:")).then(|| commit.to_owned());
        let source = SourceSettings { revision, ..self.source.clone() };
        let tree = planning::read(&source).map_err(unread)?;
        let plans = Plans::of(&source, &self.choice, &tree, |_| None);
        let plans = plans.map_err(|error| NoCommit::Failed(error.to_string()))?;
        Ok((plans.head(), plans))
    }
}

impl Signals for Here {
    async fn next(&self) -> Signal {
        std::future::poll_fn(|_| self.signal().map_or(Poll::Pending, Poll::Ready)).await
    }

    async fn acknowledge(&self, _receipt: &str) -> Result<(), PortError> {
        Ok(())
    }

    fn may_write(&self) -> bool {
        // The lock of the directory is held for as long as the process lives.
        true
    }
}

impl Here {
    fn signal(&self) -> Option<Signal> {
        if !self.leads.replace(true) {
            return Some(Signal::Gained);
        }
        if self.ended.swap(false, Ordering::Relaxed) {
            return Some(Signal::Shutdown);
        }
        if self.hints.borrow_mut().try_recv().is_ok() {
            return Some(Signal::Pushed);
        }
        let view = self.world.view();
        let mut told = self.told.borrow_mut();
        let waits = |pod: &&Pod| pod.is_active() && pod.node.is_none();
        let new = view.pods().filter(waits).find(|pod| !told.contains(&pod.uid))?;
        told.insert(new.uid.clone());
        Some(Signal::PodPending)
    }
}

impl Desk for Here {
    async fn recall(&self) -> Result<Kept, PortError> {
        let failed = |reason: String| PortError {
            verb: "read record".to_owned(),
            reason,
            fate: Fate::Unknown,
        };
        match std::fs::read(&self.kept) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map(|Record { kept, .. }| kept).map_err(|error| {
                    failed(format!("`{}` cannot be read: {error}", self.kept.display()))
                })
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Kept::default()),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    async fn save(&self, kept: &Kept) -> Result<(), PortError> {
        let record = Record { format_version: RECORD_VERSION.to_owned(), kept: kept.clone() };
        let text = crate::plan::canonical::pretty(&record);
        let written = text
            .map_err(CliError::new)
            .and_then(|text| crate::cli::files::write(&self.kept, &text));
        written.map_err(|error| PortError {
            verb: "write record".to_owned(),
            reason: error.to_string(),
            fate: Fate::Unknown,
        })
    }

    async fn nominate(&self, _pod: &Pod, _node: &NodeName) -> Result<(), PortError> {
        // The scheduler of the embedded world takes no hints.
        Ok(())
    }
}

/// The time of an embedded world.
struct Passing {
    world: Rc<World>,
    sleepers: RefCell<BTreeSet<Timestamp>>,
    /// When the world began to follow the wall, what time it was there, and how many times as fast it
    /// goes; `None`: time passes whenever nobody has anything to do.
    pace: Option<(Instant, Timestamp, u32)>,
}

impl Passing {
    /// Runs a future until it is done, letting time pass.
    fn until_done<F: Future>(&self, work: F) -> Result<F::Output, CliError> {
        let mut work = pin!(work);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(output) = work.as_mut().poll(&mut context) {
                return Ok(output);
            }
            let due = self.sleepers.borrow_mut().pop_first();
            self.sleepers.borrow_mut().clear();
            let now = self.world.observed_at();
            let until = match self.pace {
                Some((began, at, speed)) => {
                    std::thread::sleep(WAKE);
                    let gone = began.elapsed().saturating_mul(speed);
                    let gone = SignedDuration::try_from(gone).unwrap_or(SignedDuration::MAX);
                    at.checked_add(gone).unwrap_or(Timestamp::MAX)
                }
                None => due.unwrap_or(now).min(now.checked_add(STEP).unwrap_or(now)).max(now),
            };
            if self.world.pass(until) {
                self.world.save().map_err(CliError::new)?;
            }
        }
    }
}

impl Clock for Passing {
    fn now(&self) -> Timestamp {
        self.world.observed_at()
    }

    async fn sleep(&self, duration: SignedDuration) {
        let until = self.now().checked_add(duration).unwrap_or(Timestamp::MAX);
        Until { time: self, until }.await;
    }
}

/// A wait.
struct Until<'t> {
    time: &'t Passing,
    until: Timestamp,
}

impl Future for Until<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.time.now() >= self.until {
            return Poll::Ready(());
        }
        self.time.sleepers.borrow_mut().insert(self.until);
        Poll::Pending
    }
}
