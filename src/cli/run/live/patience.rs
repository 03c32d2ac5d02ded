//! The start of a loop that is to run for long: what cannot be read yet is tried again.
//!
//! Invariants: nothing is written before the repository, the cluster and the account were read; whoever asks
//! whether the replica is ready is told what it waits for; each wait is bounded, and the signal to end cuts it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::cli::Console;
use crate::cli::error::CliError;
use crate::cli::live::{Live, Wall};
use crate::cli::planning;
use crate::cli::repository::Repository;
use crate::cli::run::foresight::Foresight;
use crate::cli::run::{Face, start};
use crate::cli::settings::RunSettings;
use crate::fleet::ClusterIdentity;
use crate::port::Clock as _;
use crate::reconcile::{Start, State};
use crate::render::escape;

/// The longest that one try may take: a connection that hangs is given up. A fetch ends before by itself, so
/// that the next try finds none under way.
const TRY_WITHIN: Duration = Duration::from_mins(3);

/// The first wait after a try, and the longest.
const WAIT_FIRST: Duration = Duration::from_secs(1);
const WAIT_MOST: Duration = Duration::from_mins(1);

/// Between two looks at the signal to end.
const WAKE: Duration = Duration::from_millis(100);

/// Waits until the repository, the cluster and the account can be read; `None` where the process is to end
/// before.
pub(super) async fn connect(
    settings: &RunSettings,
    ended: &AtomicBool,
    console: &mut Console,
) -> Result<Option<Live>, CliError> {
    let mut wait = WAIT_FIRST;
    let mut waiting: Option<Waiting> = None;
    loop {
        let tried = tokio::select! {
            tried = timeout(TRY_WITHIN, once(settings)) => tried,
            () = until(ended) => return Ok(None),
        };
        let why = match tried {
            Ok(Ok(live)) => return Ok(Some(live)),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => format!("nobody answered within {} s", TRY_WITHIN.as_secs()),
        };
        let waiting = match &mut waiting {
            Some(waiting) => waiting,
            none => none.insert(Waiting::begin(settings, console)?),
        };
        waiting.failed(&why, console);
        tokio::select! {
            () = sleep(wait) => {}
            () = until(ended) => return Ok(None),
        }
        wait = (wait * 2).min(WAIT_MOST);
    }
}

async fn until(ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        sleep(WAKE).await;
    }
}

/// Reads what the loop begins with.
async fn once(settings: &RunSettings) -> Result<Live, CliError> {
    let source = settings.source.clone();
    let read = spawn_blocking(move || Ok(Repository::read(&planning::read(&source)?))).await;
    let read: Result<Repository, CliError> = match read {
        Ok(read) => read,
        // A fault of ours goes on where it would have without the thread.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    Live::connect(&read?).await
}

/// A loop that has not begun.
struct Waiting {
    face: Face,
    start: Start,
    since: Timestamp,
    failures: u32,
    said: String,
    /// Hints to read the repository, which is tried again by itself.
    _unread: mpsc::Receiver<()>,
}

impl Waiting {
    fn begin(settings: &RunSettings, console: &mut Console) -> Result<Self, CliError> {
        let now = Wall.now();
        let start = start(settings, now, ClusterIdentity::default());
        let (pushed, unread) = mpsc::channel(1);
        let (_, told) = Foresight::new();
        let face = Face::open(settings, &start, (pushed, told), console)?;
        Ok(Self { face, start, since: now, failures: 0, said: String::new(), _unread: unread })
    }

    /// Says why it waits, each reason once.
    fn failed(&mut self, why: &str, console: &mut Console) {
        self.failures = self.failures.saturating_add(1);
        if self.said != why {
            console.say(&format!("the loop cannot begin, and is tried again: {}", escape(why)));
            why.clone_into(&mut self.said);
        }
        let mut status = State::new(Start { at: Wall.now(), ..self.start.clone() }).status();
        status.repository.reads.failures = self.failures;
        status.repository.reads.error = Some((why.to_owned(), self.since));
        self.face.show(status);
    }
}
