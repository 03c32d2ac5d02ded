//! Who leads: the lease that replicas and applies share, and what the loop keeps with it.
//!
//! Invariants: nothing counts as held unless it is certain; what is kept is written only by who holds the
//! lease, in the same write that says so; an apply that asks is given the lease as soon as nothing is under
//! way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::cli::live::{LEASE_NAME, LEASE_NAMESPACE, LOCK_POLL, LOOP, Wall, read_kept};
use crate::fleet::Pod;
use crate::ids::NodeName;
use crate::kube::{Held, Kubernetes, Lease, LeaseError};
use crate::port::{Clock as _, Fate, PortError};
use crate::reconcile::{Desk, Kept, Signal};

/// How often the lease is renewed: also the longest until it is seen that somebody asks for it.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// The longest that one renewal may take.
const RENEW_WITHIN: Duration = Duration::from_secs(8);

/// The longest that what is under way has to end before the lease is given back all the same.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(90);

/// How often what is done.
#[derive(Debug, Clone, Copy)]
struct Pace {
    renew_every: Duration,
    renew_within: Duration,
    poll: Duration,
    hand_over_within: Duration,
}

const PACE: Pace = Pace {
    renew_every: RENEW_EVERY,
    renew_within: RENEW_WITHIN,
    poll: LOCK_POLL,
    hand_over_within: HAND_OVER_WITHIN,
};

/// The place of the leader, held or wanted.
pub(super) struct Leadership {
    pace: Pace,
    kubernetes: Kubernetes,
    lease: Lease,
    held: Mutex<Option<Held>>,
    /// Of renewing and keeping one at a time: each is a write over the one before.
    pen: tokio::sync::Mutex<()>,
    /// Whether the loop has something under way.
    busy: AtomicBool,
    leads: watch::Sender<bool>,
}

impl Leadership {
    pub(super) fn new(kubernetes: &Kubernetes, identity: &str) -> Self {
        let name = identity.to_owned();
        Self {
            pace: PACE,
            kubernetes: kubernetes.clone(),
            lease: Lease::new(kubernetes, LEASE_NAMESPACE, LEASE_NAME, name),
            held: Mutex::default(),
            pen: tokio::sync::Mutex::default(),
            busy: AtomicBool::new(false),
            leads: watch::channel(false).0,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> Option<Held> {
        self.lock().clone()
    }

    fn set(&self, held: Option<Held>) {
        self.leads.send_replace(held.is_some());
        *self.lock() = held;
    }

    /// Returns whether it is certain that no other replica, and no apply, may write.
    pub(super) fn is_certain(&self) -> bool {
        self.lock().as_ref().is_some_and(Held::is_certain)
    }

    /// Tells at each time whether the lease is held.
    pub(super) fn watch(&self) -> watch::Receiver<bool> {
        self.leads.subscribe()
    }

    /// Notes whether the loop has something under way.
    pub(super) fn note_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// Takes the lease at once.
    pub(super) async fn take(&self) -> Result<(), LeaseError> {
        let held = self.lease.acquire(Wall.now()).await?;
        self.set(Some(held));
        Ok(())
    }

    /// Wants the lease, and holds it, for as long as it is polled.
    pub(super) async fn strive(&self, tell: mpsc::Sender<Signal>) {
        let mut told: Option<String> = None;
        loop {
            let had = self.held().is_some();
            let taken = if had { Ok(()) } else { self.take().await };
            match taken {
                Ok(()) => {
                    tracing::info!("the lease is held");
                    send(&tell, Signal::Gained).await;
                    told = self.hold(&tell).await;
                    self.set(None);
                    tracing::warn!(holder = told, "the lease is held no more");
                    send(&tell, lost(told.clone())).await;
                }
                Err(LeaseError::Taken { holder, .. } | LeaseError::Lost { holder, .. }) => {
                    if told.as_ref() != Some(&holder) {
                        told = Some(holder);
                        send(&tell, lost(told.clone())).await;
                    }
                }
                Err(error @ LeaseError::Port(_)) => tracing::warn!(%error, "nobody leads"),
            }
            tokio::time::sleep(self.pace.poll).await;
        }
    }

    /// Holds the lease until it is lost or asked for; returns who has it then, where that is known.
    async fn hold(&self, tell: &mpsc::Sender<Signal>) -> Option<String> {
        let mut wanted: Option<(String, tokio::time::Instant)> = None;
        loop {
            if let Some((by, since)) = &wanted {
                let busy = self.busy.load(Ordering::Relaxed);
                if !busy || since.elapsed() > self.pace.hand_over_within {
                    self.give_back().await;
                    return Some(by.clone());
                }
                tokio::time::sleep(self.pace.poll).await;
            } else {
                tokio::time::sleep(self.pace.renew_every).await;
            }
            let _alone = self.pen.lock().await;
            let held = self.held()?;
            let within = self.pace.renew_within;
            let renewed = tokio::time::timeout(within, self.lease.renew(&held, Wall.now()));
            // A connection that hangs is given up in time for another try.
            let unanswered = || LeaseError::Port(unanswered(within));
            let renewed = renewed.await.unwrap_or_else(|_| Err(unanswered()));
            match renewed {
                Ok(next) => {
                    let by = next.asked_for_by().map(str::to_owned);
                    self.set(Some(next));
                    if let Some(by) = by.filter(|_| wanted.is_none()) {
                        tracing::info!(by, "an apply asks for the lease");
                        send(tell, lost(Some(by.clone()))).await;
                        wanted = Some((by, tokio::time::Instant::now()));
                    }
                }
                Err(LeaseError::Lost { holder, .. } | LeaseError::Taken { holder, .. }) => {
                    self.set(None);
                    return Some(holder);
                }
                Err(error @ LeaseError::Port(_)) => {
                    tracing::warn!(%error, "the lease was not renewed");
                    if !held.is_certain() {
                        return None;
                    }
                }
            }
        }
    }

    /// Gives the lease back, if it is held: the next one need not wait.
    pub(super) async fn give_back(&self) {
        let _alone = self.pen.lock().await;
        let Some(held) = self.held() else { return };
        self.set(None);
        // What is not given back runs out by itself.
        if let Err(error) = self.lease.release(&held, Wall.now()).await {
            tracing::warn!(%error, "the lease was not given back");
        }
    }
}

async fn send(tell: &mpsc::Sender<Signal>, signal: Signal) {
    // Nobody listens any more where the loop has ended.
    let _ = tell.send(signal).await;
}

/// Says who has the lease.
fn lost(holder: Option<String>) -> Signal {
    // Loops are known by how their names begin; nobody has a lease without a name.
    let to_apply = holder.as_ref().is_some_and(|name| !name.is_empty() && !name.starts_with(LOOP));
    Signal::Lost { holder, to_apply }
}

fn unanswered(within: Duration) -> PortError {
    let reason = format!("no answer within {} s", within.as_secs());
    PortError { verb: "renew lease".to_owned(), reason, fate: Fate::Unknown }
}

fn not_kept(reason: String) -> PortError {
    PortError { verb: "keep what is to survive".to_owned(), reason, fate: Fate::Unknown }
}

impl Desk for Leadership {
    async fn recall(&self) -> Result<Kept, PortError> {
        let (memory, text) = self.kubernetes.record(LEASE_NAMESPACE, LEASE_NAME).await?;
        let mut kept = read_kept(text.as_deref()).map_err(not_kept)?;
        let now = Wall.now();
        // What applies found sold out counts here as well.
        for exclusion in memory.exclusions(now) {
            let known = kept.exclusions(now);
            let same = |one: &&crate::fleet::Exclusion| {
                one.instance_type == exclusion.instance_type
                    && one.zone == exclusion.zone
                    && one.capacity_type == exclusion.capacity_type
            };
            if known.iter().find(same).is_none() {
                kept.note_sold_out(exclusion, now);
            }
        }
        Ok(kept)
    }

    async fn save(&self, kept: &Kept) -> Result<(), PortError> {
        let text = serde_json::to_string(kept).map_err(|error| not_kept(error.to_string()))?;
        if kept.shed > 0 {
            let (shed, bytes) = (kept.shed, text.len());
            tracing::warn!(shed, bytes, "what is kept did not fit whole; the oldest is left out");
        }
        let _alone = self.pen.lock().await;
        let mut held = self.held().ok_or_else(|| not_kept("the lease is not held".to_owned()))?;
        held.record = Some(text);
        match self.lease.renew(&held, Wall.now()).await {
            Ok(next) => {
                self.set(Some(next));
                Ok(())
            }
            Err(LeaseError::Port(error)) => Err(error),
            Err(error @ (LeaseError::Lost { .. } | LeaseError::Taken { .. })) => {
                self.set(None);
                Err(not_kept(error.to_string()))
            }
        }
    }

    async fn nominate(&self, pod: &Pod, node: &NodeName) -> Result<(), PortError> {
        self.kubernetes.nominate(pod, node).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use serde_json::{Value as Json, json};
    use tokio::time::Instant;

    use super::*;

    /// What the API server does with a write.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Act {
        /// It refuses it.
        Refuse,
        /// It never answers.
        Hang,
        /// Another replica has taken the lease by then.
        Rob,
        /// It writes it, and its answer is lost.
        Lose,
    }

    /// An API server of one lease.
    #[derive(Default)]
    struct Server {
        lease: Mutex<Option<Json>>,
        acts: Mutex<VecDeque<Act>>,
        writes: Mutex<u32>,
    }

    impl Server {
        fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
            of.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn start() -> (Arc<Self>, Leadership) {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let url = format!("http://{}", listener.local_addr().expect("an address"));
            let server = Arc::<Self>::default();
            let serving = Arc::clone(&server);
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let serving = Arc::clone(&serving);
                    // A client that goes away in the middle is no failure of anybody here.
                    std::thread::spawn(move || serving.serve(&stream).ok());
                }
            });
            let config = kube::Config::new(url.parse().expect("a URL"));
            let kubernetes = Kubernetes::with(config).expect("a client");
            let pace = Pace {
                renew_every: Duration::from_millis(40),
                renew_within: Duration::from_millis(400),
                poll: Duration::from_millis(20),
                hand_over_within: Duration::from_millis(600),
            };
            (server, Leadership { pace, ..Leadership::new(&kubernetes, "run/a") })
        }

        fn acts(&self, acts: &[Act]) {
            Self::lock(&self.acts).extend(acts);
        }

        /// Writes something into the lease, as another does.
        fn change(&self, change: impl FnOnce(&mut Json)) {
            let mut lease = Self::lock(&self.lease);
            let lease = lease.as_mut().expect("a lease");
            change(lease);
            *Self::lock(&self.writes) += 1;
            lease["metadata"]["resourceVersion"] = Self::lock(&self.writes).to_string().into();
        }

        fn holder(&self) -> String {
            let lease = Self::lock(&self.lease);
            let holder = lease.as_ref().map(|lease| lease["spec"]["holderIdentity"].clone());
            holder.and_then(|holder| holder.as_str().map(str::to_owned)).unwrap_or_default()
        }

        fn rob(&self) {
            self.change(|lease| {
                lease["spec"]["holderIdentity"] = "run/b".into();
                lease["spec"]["leaseTransitions"] = 77.into();
            });
        }

        fn serve(&self, mut stream: &TcpStream) -> std::io::Result<()> {
            let mut reader = BufReader::new(stream.try_clone()?);
            loop {
                let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
                if reader.read_line(&mut first)? == 0 {
                    return Ok(());
                }
                while reader.read_line(&mut line)? > 0 && !line.trim().is_empty() {
                    if let Some(of) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = of.trim().parse().unwrap_or(0);
                    }
                    line.clear();
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body)?;
                let act = if first.starts_with("GET") {
                    None
                } else {
                    Self::lock(&self.acts).pop_front()
                };
                if act == Some(Act::Rob) {
                    self.rob();
                }
                let (code, answer) = match act {
                    Some(Act::Refuse) => (503, refusal(503)),
                    Some(Act::Hang) => {
                        std::thread::sleep(Duration::from_secs(3));
                        return Ok(());
                    }
                    Some(Act::Rob | Act::Lose) | None => self.answer(&first, &body),
                };
                if act == Some(Act::Lose) {
                    return Ok(());
                }
                let text = answer.to_string();
                write!(
                    stream,
                    "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
                    text.len()
                )?;
            }
        }

        fn answer(&self, first: &str, body: &[u8]) -> (u16, Json) {
            let mut lease = Self::lock(&self.lease);
            if first.starts_with("GET") {
                return lease.clone().map_or((404, refusal(404)), |lease| (200, lease));
            }
            let mut new: Json = serde_json::from_slice(body).expect("JSON");
            let version = |lease: &Json| lease["metadata"]["resourceVersion"].clone();
            let known = lease.as_ref().map(version);
            if known.as_ref().is_some_and(|known| *known != version(&new)) {
                return (409, refusal(409));
            }
            let mut writes = Self::lock(&self.writes);
            *writes += 1;
            new["metadata"]["resourceVersion"] = writes.to_string().into();
            *lease = Some(new.clone());
            (200, new)
        }
    }

    fn refusal(code: u16) -> Json {
        let reason = match code {
            404 => "NotFound",
            409 => "Conflict",
            _ => "ServiceUnavailable",
        };
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "no",
            "reason": reason, "code": code
        })
    }

    /// Runs `work` over an API server while the lease is striven for; signals come by the channel that it is given.
    fn run(work: impl AsyncFnOnce(&Server, &Leadership, mpsc::Receiver<Signal>)) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a runtime").block_on(async {
            let (server, leadership) = Server::start();
            let (tell, told) = mpsc::channel(8);
            let work = work(&server, &leadership, told);
            tokio::select! {
                () = leadership.strive(tell) => unreachable!("it goes on"),
                end = tokio::time::timeout(Duration::from_secs(30), work) => {
                    end.expect("it ends");
                }
            }
        });
    }

    async fn next(told: &mut mpsc::Receiver<Signal>) -> Signal {
        told.recv().await.expect("it strives")
    }

    fn lost_to(holder: &str, to_apply: bool) -> Signal {
        Signal::Lost { holder: Some(holder.to_owned()), to_apply }
    }

    #[test]
    fn writes_that_fail_hang_or_are_not_answered_are_made_again_while_the_lease_is_certain() {
        run(async |server, leadership, mut told| {
            assert_eq!(next(&mut told).await, Signal::Gained);
            for act in [Act::Refuse, Act::Refuse, Act::Hang, Act::Refuse, Act::Lose] {
                server.acts(&[act]);
                let before = *Server::lock(&server.writes);
                // A write that came through after it.
                while *Server::lock(&server.writes) < before + 3
                    || !Server::lock(&server.acts).is_empty()
                {
                    assert!(leadership.is_certain(), "{act:?}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            assert!(told.try_recv().is_err(), "it has led all the time");
            assert_eq!(server.holder(), "run/a");
        });
    }

    #[test]
    fn a_lease_that_somebody_else_took_is_lost_at_once_and_nothing_is_kept_with_it() {
        run(async |server, leadership, mut told| {
            assert_eq!(next(&mut told).await, Signal::Gained);
            server.acts(&[Act::Rob]);
            assert_eq!(next(&mut told).await, lost_to("run/b", false));
            assert!(!leadership.is_certain());
            let kept = leadership.save(&Kept::default()).await;
            assert!(kept.is_err_and(|error| error.reason.contains("not held")));
            assert_eq!(server.holder(), "run/b", "it is left alone");
            // Given back, it is taken again.
            server.change(|lease| lease["spec"]["holderIdentity"] = "".into());
            assert_eq!(next(&mut told).await, Signal::Gained);
        });
    }

    #[test]
    fn what_is_kept_is_kept_by_whoever_holds_the_lease_or_not_at_all() {
        run(async |server, leadership, mut told| {
            assert_eq!(next(&mut told).await, Signal::Gained);
            let kept = Kept { served: Some("a".repeat(40)), ..Kept::default() };
            leadership.save(&kept).await.expect("kept");
            assert_eq!(leadership.recall().await, Ok(kept.clone()));
            server.acts(&[Act::Refuse]);
            let mut other = Kept { served: Some("b".repeat(40)), ..Kept::default() };
            // A renewal may be refused in its place.
            while leadership.save(&other).await.is_ok() {
                server.acts(&[Act::Refuse]);
                other.waits_until = Some(Wall.now());
            }
            assert!(leadership.is_certain(), "one refusal is no loss");
            server.rob();
            assert!(leadership.save(&kept).await.is_err());
            assert!(!leadership.is_certain());
            assert_eq!(next(&mut told).await, lost_to("run/b", false));
        });
    }

    #[test]
    fn an_apply_that_asks_is_given_the_lease_once_nothing_is_under_way_or_after_a_while() {
        for busy_for in [Some(Duration::from_millis(200)), None] {
            run(async |server, leadership, mut told| {
                assert_eq!(next(&mut told).await, Signal::Gained);
                leadership.note_busy(true);
                server.change(|lease| {
                    lease["metadata"]["annotations"] =
                        json!({ "fleetwright.dev/asked-for-by": "ci/7" });
                });
                assert_eq!(next(&mut told).await, lost_to("ci/7", true), "nothing new is begun");
                let since = Instant::now();
                assert!(leadership.is_certain(), "what is under way may end");
                if let Some(busy_for) = busy_for {
                    tokio::time::sleep(busy_for).await;
                    assert_eq!(server.holder(), "run/a");
                    leadership.note_busy(false);
                }
                while !server.holder().is_empty() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                let least = busy_for.unwrap_or(Duration::from_millis(600));
                assert!(since.elapsed() >= least && !leadership.is_certain());
                assert_eq!(next(&mut told).await, lost_to("ci/7", true));
                // For a while nobody but the apply takes it.
                tokio::time::sleep(Duration::from_millis(100)).await;
                assert_eq!(server.holder(), "");
            });
        }
    }
}
