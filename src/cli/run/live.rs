//! The loop in a real cluster: the ports of production, and what goes on beside the loop.
//!
//! See ADR 13. This module wires, and decides nothing. The loop itself runs on one thread, which nothing else needs:
//! the lease is renewed, watches are read and messages are received on others.

mod account;
mod lead;
mod patience;
mod queue;
mod shown;
mod source;
mod sweep;
mod tell;
mod wires;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use jiff::Timestamp;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use account::Account;
use lead::Leadership;
use queue::When;
use shown::Shown;
use source::Followed;
use tell::Record;
use wires::Wires;

use super::foresight::{Foresight, Told};
use super::tell::Teller;
use crate::apply::Bounds;
use crate::aws::Aws;
use crate::cli::error::CliError;
use crate::cli::live::{LOCK_POLL, LOOP, Live, Wall};
use crate::cli::repository::Repository;
use crate::cli::settings::RunSettings;
use crate::cli::{Console, Exit, embedded};
use crate::door;
use crate::kube::{Kubernetes, LeaseError, Watched};
use crate::port::Clock as _;
use crate::reconcile::{Effect, Outside, Request, Signal, Start, State, drive};

/// Signals and hints that wait for the loop.
const SIGNALS_MAX: usize = 16;
const NEWS_MAX: usize = 8;

/// The longest that work on other threads may go on once the loop has ended.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Drives the loop over the cluster that the environment names. Without a `repository` it waits until one, and a
/// cluster, and an account can be read.
pub(super) fn run(
    settings: &RunSettings,
    repository: Option<&Repository>,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let runtime: Runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| CliError::new(error).context("cannot start the runtime".to_owned()))?;
    let end = runtime.block_on(Box::pin(looped(settings, repository, console)));
    runtime.shutdown_timeout(END_WITHIN);
    end
}

/// A name that no other replica has; by its beginning applies know that it is a loop's.
///
/// In a cluster it is that of the pod: what starts anew in the same pod is not there twice at a time, and
/// need not wait for the lease of the one before.
fn identity(at: Timestamp) -> String {
    let pod = std::env::var("POD_NAME").ok().filter(|pod| !pod.is_empty());
    format!("{LOOP}{}", pod.unwrap_or_else(|| super::identity(at)))
}

async fn looped(
    settings: &RunSettings,
    repository: Option<&Repository>,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let ended = embedded::interrupt_flag()?;
    super::embedded::also_on_term(&ended)?;
    let live = match repository {
        Some(repository) => Live::connect(repository).await?,
        None => match Box::pin(patience::connect(settings, &ended, console)).await? {
            Some(live) => live,
            None => return Ok(Exit::Done),
        },
    };
    let Live { kubernetes, aws, identity: cluster } = live;
    let now = Wall.now();
    let start = Start { identity: identity(now), ..super::start(settings, now, cluster) };
    let world = Beside::begin(kubernetes, aws, &start, ended);
    if settings.once {
        patiently(&world.leadership, settings.lock_timeout).await?;
    }
    let state = Box::pin(world.drive(settings, start, console)).await;
    Ok(super::exit(&state?, settings.once))
}

/// Takes the lease, waiting for as long as `patience` while another replica or an apply holds it.
async fn patiently(leadership: &Leadership, patience: Duration) -> Result<(), CliError> {
    let until = Instant::now() + patience;
    loop {
        match leadership.take().await {
            Ok(()) => return Ok(()),
            Err(error @ LeaseError::Port(_)) => {
                return Err(CliError::new(error).hint("the loop needs to read and write leases"));
            }
            Err(error) if Instant::now() >= until => {
                let hint = "wait for it, or pass a longer --lock-timeout";
                return Err(CliError::new(error).kind(Exit::Locked).hint(hint));
            }
            Err(_) => tokio::time::sleep(LOCK_POLL).await,
        }
    }
}

/// What goes on beside the loop, until this is dropped.
struct Beside {
    kubernetes: Kubernetes,
    leadership: Arc<Leadership>,
    aws: Arc<Aws>,
    watched: Watched,
    wires: Ends,
    queue: watch::Sender<Option<String>>,
    /// Told whether the loop can take messages.
    ready: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

/// The ends of wires that the loop holds.
struct Ends {
    urgent: mpsc::Receiver<Signal>,
    messages: mpsc::Receiver<crate::reconcile::Message>,
    news: mpsc::Receiver<crate::kube::News>,
    done: mpsc::Sender<queue::Done>,
    tell: mpsc::Sender<Signal>,
}

impl Ends {
    /// Returns what comes in through them, and through the page.
    fn into_signals<'l>(
        self,
        leadership: &'l Leadership,
        account: &'l Account<Aws>,
        (requests, hints): (mpsc::Receiver<Request>, mpsc::Receiver<()>),
    ) -> Wires<'l> {
        Wires {
            leadership,
            account,
            urgent: RefCell::new(self.urgent),
            messages: RefCell::new(self.messages),
            requests: RefCell::new(requests),
            hints: RefCell::new(hints),
            news: RefCell::new(self.news),
            done: self.done,
        }
    }
}

impl Beside {
    fn begin(kubernetes: Kubernetes, aws: Aws, start: &Start, ended: Arc<AtomicBool>) -> Self {
        let aws = Arc::new(aws);
        let leadership = Arc::new(Leadership::new(&kubernetes, &start.identity));
        let certain = Arc::clone(&leadership);
        aws.permitted_by(move || certain.is_certain());
        let (tell, urgent) = mpsc::channel(SIGNALS_MAX);
        let (to, messages) = mpsc::channel(queue::WAITING_MAX);
        let (newsfeed, news) = mpsc::channel(NEWS_MAX);
        let (done, acknowledged) = mpsc::channel(queue::WAITING_MAX);
        let (queue, ready) = (watch::channel(None).0, watch::channel(false).0);
        let mut tasks = JoinSet::new();
        let named = queue.subscribe();
        let when = When { ready: ready.subscribe(), queue: named.clone() };
        let (much, urls) = (Arc::<Notify>::default(), Arc::<queue::Urls>::default());
        for n in 0..queue::LISTENERS {
            let waits = n < queue::WAITING;
            let duty = queue::Duty { waits, much: Arc::clone(&much), urls: Arc::clone(&urls) };
            tasks.spawn(queue::listen(Arc::clone(&aws), when.clone(), duty, to.clone()));
        }
        tasks.spawn(queue::take_off(Arc::clone(&aws), (named, urls), acknowledged));
        tasks.spawn(wires::until_told(ended, tell.clone()));
        let (striving, telling) = (Arc::clone(&leadership), tell.clone());
        let once = start.once;
        tasks.spawn(async move {
            if once {
                // It was taken before, or there is nothing to begin.
                while !*striving.watch().borrow() {
                    tokio::time::sleep(LOCK_POLL / 20).await;
                }
            }
            striving.strive(telling).await;
        });
        let watched = Watched::start(kubernetes.clone(), newsfeed);
        let wires = Ends { urgent, messages, news, done, tell };
        Self { kubernetes, leadership, aws, watched, wires, queue, ready, _tasks: tasks }
    }

    async fn drive(
        self,
        settings: &RunSettings,
        start: Start,
        console: &mut Console,
    ) -> Result<State, CliError> {
        let Self { kubernetes, leadership, aws, watched, wires, queue, ready, _tasks } = self;
        let (account, sweeper) = (Account::new(Arc::clone(&aws)), Arc::clone(&aws));
        let caller = Arc::clone(&aws);
        let (requests, asked_of_loop) = mpsc::channel(SIGNALS_MAX);
        let (pushed, hints) = mpsc::channel(1);
        let (foresight, told) = Foresight::new();
        let wires_of_page = (requests, pushed, told);
        let (face, door) = opened(settings, &start, &kubernetes, wires_of_page, console)?;
        let source = followed((settings, &start), aws, queue, foresight);
        let tell = wires.tell.clone();
        let signals = wires.into_signals(&leadership, &account, (asked_of_loop, hints));
        let outside = Outside {
            cloud: &account,
            cluster: &watched,
            clock: &Wall,
            source: &source,
            signals: &signals,
            desk: &*leadership,
        };
        let (record, shown, acts) = (Record::default(), Shown::default(), Cell::new(false));
        let teller = Teller::new(console, settings.log_format);
        let mut onlookers =
            Onlookers { teller, record: &record, shown: &shown, face, aws: &caller };
        let mut look = |state: &State, effects: &[Effect]| {
            leadership.note_busy(state.is_busy());
            acts.set(state.may_act());
            let takes = state.takes_messages();
            ready.send_if_modified(|ready| std::mem::replace(ready, takes) != takes);
            onlookers.look(state, effects);
        };
        let state = tokio::select! {
            state = drive(outside, start, Bounds::default(), &mut look) => state,
            () = account.keep_fresh() => unreachable!("it goes on"),
            () = record.keep(&kubernetes) => unreachable!("it goes on"),
            () = sweep::sweep(&sweeper, &account, &acts) => unreachable!("it goes on"),
            () = source.keep_looked_up() => unreachable!("it goes on"),
            () = shown.catch_up(&tell) => unreachable!("it goes on"),
            () = door => unreachable!("it goes on"),
        };
        onlookers.teller.look(&state.status());
        record.last(&kubernetes, &state.status()).await;
        leadership.give_back().await;
        Ok(state)
    }
}

/// What people are told and shown of the loop.
struct Onlookers<'c, 'n> {
    teller: Teller<'c>,
    record: &'n Record,
    shown: &'n Shown,
    face: super::Face,
    aws: &'n Aws,
}

impl Onlookers<'_, '_> {
    /// Tells and shows what a step led to, unless the next will do.
    fn look(&mut self, state: &State, effects: &[Effect]) {
        let Self { teller, record, shown, face, aws } = self;
        if !shown.is_due(state.is_pressed()) && !Record::notes(effects) {
            return;
        }
        shown.show(|| {
            let mut status = state.status();
            teller.look(&status);
            teller.rival(status.now, state.rival());
            record.look(&status, effects);
            record.complete(&mut status);
            status.measured.extend(aws.measured());
            face.show(status);
        });
    }
}

/// Returns the repository as the loop follows it, from its first read.
fn followed(
    (settings, start): (&RunSettings, &Start),
    aws: Arc<Aws>,
    queue: watch::Sender<Option<String>>,
    foresight: Arc<Foresight>,
) -> Followed {
    Followed {
        settings: settings.source.clone(),
        identity: start.cluster.clone(),
        aws,
        queue,
        foresight,
        last: RefCell::default(),
        joining: RefCell::default(),
        answers: Arc::default(),
        dice: Cell::new(u32::try_from(start.at.subsec_nanosecond()).unwrap_or(0)),
    }
}

/// Opens the page, with a door behind it where people ask something of the loop.
#[cfg(feature = "page")]
fn opened<'k>(
    settings: &RunSettings,
    start: &Start,
    kubernetes: &'k Kubernetes,
    (requests, pushed, told): (mpsc::Sender<Request>, mpsc::Sender<()>, Told),
    console: &mut Console,
) -> Result<(super::Face, impl Future<Output = ()> + use<'k>), CliError> {
    let (asks, asked) = mpsc::channel(door::ASKED_MAX);
    let serves = crate::listen::Serves::Loop(Some(asks));
    let face = super::Face::asked(settings, start, serves, (pushed, told), console)?;
    let door = async move {
        door::answer(kubernetes, asked, requests).await;
        // Nobody can ask any more.
        std::future::pending::<()>().await;
    };
    Ok((face, door))
}

#[cfg(not(feature = "page"))]
fn opened<'k>(
    settings: &RunSettings,
    start: &Start,
    _: &'k Kubernetes,
    (_, pushed, told): (mpsc::Sender<Request>, mpsc::Sender<()>, Told),
    console: &mut Console,
) -> Result<(super::Face, impl Future<Output = ()> + use<'k>), CliError> {
    Ok((super::Face::open(settings, start, (pushed, told), console)?, std::future::pending()))
}
