//! Who leads: the lease that replicas and applies share, and what the loop keeps with it.
//!
//! Invariants: nothing counts as held unless it is certain; what is kept is written only by who holds the
//! lease, in the same write that says so; an apply that asks is given the lease as soon as nothing is under
//! way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::cli::live::{LEASE_NAME, LEASE_NAMESPACE, LOCK_POLL, Wall, read_kept};
use crate::fleet::Pod;
use crate::ids::NodeName;
use crate::kube::{Held, Kubernetes, Lease, LeaseError};
use crate::port::{Clock as _, PortError};
use crate::reconcile::{Desk, Kept, Signal};

/// How often the lease is renewed: also the longest until it is seen that somebody asks for it.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// The longest that one renewal may take.
const RENEW_WITHIN: Duration = Duration::from_secs(8);

/// The longest that what is under way has to end before the lease is given back all the same.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(90);

/// The place of the leader, held or wanted.
pub(super) struct Leadership {
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
                    send(&tell, Signal::Lost { holder: told.clone() }).await;
                }
                Err(LeaseError::Taken { holder, .. } | LeaseError::Lost { holder, .. }) => {
                    if told.as_ref() != Some(&holder) {
                        told = Some(holder);
                        send(&tell, Signal::Lost { holder: told.clone() }).await;
                    }
                }
                Err(error @ LeaseError::Port(_)) => tracing::warn!(%error, "nobody leads"),
            }
            tokio::time::sleep(LOCK_POLL).await;
        }
    }

    /// Holds the lease until it is lost or asked for; returns who has it then, where that is known.
    async fn hold(&self, tell: &mpsc::Sender<Signal>) -> Option<String> {
        let mut wanted: Option<(String, tokio::time::Instant)> = None;
        loop {
            if let Some((by, since)) = &wanted {
                let busy = self.busy.load(Ordering::Relaxed);
                if !busy || since.elapsed() > HAND_OVER_WITHIN {
                    self.give_back().await;
                    return Some(by.clone());
                }
                tokio::time::sleep(LOCK_POLL).await;
            } else {
                tokio::time::sleep(RENEW_EVERY).await;
            }
            let _alone = self.pen.lock().await;
            let held = self.held()?;
            let renewed = tokio::time::timeout(RENEW_WITHIN, self.lease.renew(&held, Wall.now()));
            // A connection that hangs is given up in time for another try.
            let renewed = renewed.await.unwrap_or_else(|_| Err(LeaseError::Port(unanswered())));
            match renewed {
                Ok(next) => {
                    let by = next.asked_for_by().map(str::to_owned);
                    self.set(Some(next));
                    if let Some(by) = by.filter(|_| wanted.is_none()) {
                        tracing::info!(by, "an apply asks for the lease");
                        send(tell, Signal::Lost { holder: Some(by.clone()) }).await;
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

fn unanswered() -> PortError {
    let reason = format!("no answer within {} s", RENEW_WITHIN.as_secs());
    PortError { verb: "renew lease".to_owned(), reason, transient: true }
}

fn not_kept(reason: String) -> PortError {
    PortError { verb: "keep what is to survive".to_owned(), reason, transient: true }
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
