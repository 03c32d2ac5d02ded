//! Leader election: the lease that replicas and applies share, and the controller state persisted
//! with it.
//!
//! Invariants:
//! - The lease counts as held only while that is certain.
//! - Only the holder writes the persisted state, in the same write that renews the lease.
//! - With a key, a renewal also seals the state anew.
//! - An apply that requests the lease gets it as soon as no work is in progress.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use crate::adapters::kube::{
    HeldLease, Kubernetes, LEASE_NAME, LEASE_NAMESPACE, LEASE_POLL, LeaseClient, LeaseError,
    LeaseRecord,
};
use crate::adapters::system_clock::SystemClock;
use crate::apply::ports::{CallEffect, Clock as _, PortError};
use crate::controller::apply_record::read_persisted_state;
use crate::controller::state_memory::StateMemory;
use crate::controller::{LEASE_HOLDER_PREFIX, PersistedState, Signal, StateKeys, StateStore};
use crate::model::unavailable_offerings::ExclusionLimits;

/// Renewal interval of the lease. It also bounds the time until a request for the lease is noticed.
const CONTROLLER_RENEW_INTERVAL: Duration = Duration::from_secs(5);

const RENEW_WITHIN: Duration = Duration::from_secs(8);

/// The longest time that work in progress may delay the release of the lease.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(90);

/// Interval at which a standby reads the persisted state, so that it knows the newest one.
const LEADER_STATE_INTERVAL: Duration = Duration::from_secs(20);

/// Intervals and timeouts of the lease.
#[derive(Debug, Clone, Copy)]
struct LeaseTiming {
    renew_every: Duration,
    renew_within: Duration,
    poll: Duration,
    hand_over_within: Duration,
}

const LEASE_TIMING: LeaseTiming = LeaseTiming {
    renew_every: CONTROLLER_RENEW_INTERVAL,
    renew_within: RENEW_WITHIN,
    poll: LEASE_POLL,
    hand_over_within: HAND_OVER_WITHIN,
};

/// Acquires, renews and releases the lease.
pub(super) struct LeaderElector {
    timing: LeaseTiming,
    kubernetes: Kubernetes,
    lease: LeaseClient,
    held: Mutex<Option<HeldLease>>,
    /// The keys that authenticate the persisted state, if any.
    state_keys: Option<StateKeys>,
    /// The newest sealed state that is known.
    memory: Mutex<StateMemory>,
    /// Serializes renewals and state writes: each replaces the previous version.
    write_lock: tokio::sync::Mutex<()>,
    /// True if the controller has work in progress.
    is_busy: AtomicBool,
    is_leader: watch::Sender<bool>,
}

impl LeaderElector {
    pub(super) fn new(
        kubernetes: &Kubernetes,
        identity: &str,
        state_keys: Option<StateKeys>,
    ) -> Self {
        let name = identity.to_owned();
        Self {
            timing: LEASE_TIMING,
            kubernetes: kubernetes.clone(),
            lease: LeaseClient::new(kubernetes, LEASE_NAMESPACE, LEASE_NAME, name),
            held: Mutex::default(),
            state_keys,
            memory: Mutex::default(),
            write_lock: tokio::sync::Mutex::default(),
            is_busy: AtomicBool::new(false),
            is_leader: watch::channel(false).0,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<HeldLease>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self) -> MutexGuard<'_, StateMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held_lease(&self) -> Option<HeldLease> {
        self.lock().clone()
    }

    fn set_held(&self, held: Option<HeldLease>) {
        self.is_leader.send_replace(held.is_some());
        *self.lock() = held;
    }

    /// Returns whether it is certain that no other replica and no apply may write.
    pub(super) fn is_certain(&self) -> bool {
        self.lock().as_ref().is_some_and(HeldLease::is_certain)
    }

    /// Returns a receiver of whether the lease is held.
    pub(super) fn subscribe(&self) -> watch::Receiver<bool> {
        self.is_leader.subscribe()
    }

    /// Records whether the controller has work in progress.
    pub(super) fn set_busy(&self, busy: bool) {
        self.is_busy.store(busy, Ordering::Relaxed);
    }

    /// Takes the lease, without waiting.
    pub(super) async fn acquire(&self) -> Result<(), LeaseError> {
        let held = self.lease.acquire(SystemClock.now()).await?;
        self.memory().begin_tenure();
        self.set_held(Some(held));
        Ok(())
    }

    /// Contends for the lease and holds it, for as long as it is polled.
    pub(super) async fn run(&self, signals: mpsc::Sender<Signal>) {
        let mut last_holder: Option<String> = None;
        let mut leader_state_read_at: Option<tokio::time::Instant> = None;
        loop {
            let is_held = self.held_lease().is_some();
            let acquired = if is_held { Ok(()) } else { self.acquire().await };
            match acquired {
                Ok(()) => {
                    tracing::info!("lease acquired");
                    send_signal(&signals, Signal::LeaseGained).await;
                    last_holder = self.hold_until_lost(&signals).await;
                    self.set_held(None);
                    tracing::warn!(holder = last_holder, "lease lost");
                    send_signal(&signals, lost_signal(last_holder.clone())).await;
                }
                Err(LeaseError::HeldByOther { holder, .. } | LeaseError::Lost { holder, .. }) => {
                    if last_holder.as_ref() != Some(&holder) {
                        last_holder = Some(holder);
                        send_signal(&signals, lost_signal(last_holder.clone())).await;
                    }
                    if leader_state_read_at.is_none_or(|at| at.elapsed() >= LEADER_STATE_INTERVAL) {
                        leader_state_read_at = Some(tokio::time::Instant::now());
                        self.read_leader_state().await;
                    }
                }
                Err(error @ LeaseError::Port(_)) => tracing::warn!(%error, "cannot acquire lease"),
            }
            tokio::time::sleep(self.timing.poll).await;
        }
    }

    /// Holds the lease until it is lost or requested. Returns the new holder if known.
    async fn hold_until_lost(&self, signals: &mpsc::Sender<Signal>) -> Option<String> {
        let mut requested_by: Option<(String, tokio::time::Instant)> = None;
        loop {
            if let Some((by, since)) = &requested_by {
                let busy = self.is_busy.load(Ordering::Relaxed);
                if !busy || since.elapsed() > self.timing.hand_over_within {
                    self.release().await;
                    return Some(by.clone());
                }
                tokio::time::sleep(self.timing.poll).await;
            } else {
                tokio::time::sleep(self.timing.renew_every).await;
            }
            let _guard = self.write_lock.lock().await;
            let mut held = self.held_lease()?;
            let resealed = self.resealed(&mut held);
            let within = self.timing.renew_within;
            let renewed = tokio::time::timeout(within, self.lease.renew(&held, SystemClock.now()));
            // A renewal that hangs is abandoned early enough for another attempt.
            let timed_out = || LeaseError::Port(timeout_error(within));
            let renewed = renewed.await.unwrap_or_else(|_| Err(timed_out()));
            match renewed {
                Ok(next) => {
                    let by = next.requested_by().map(str::to_owned);
                    self.set_held(Some(next));
                    if let Some((state, at)) = resealed {
                        self.memory().record_written(state, at);
                    }
                    if let Some(by) = by.filter(|_| requested_by.is_none()) {
                        tracing::info!(by, "apply requested the lease");
                        send_signal(signals, lost_signal(Some(by.clone()))).await;
                        requested_by = Some((by, tokio::time::Instant::now()));
                    }
                }
                Err(LeaseError::Lost { holder, .. } | LeaseError::HeldByOther { holder, .. }) => {
                    self.set_held(None);
                    return Some(holder);
                }
                Err(error @ LeaseError::Port(_)) => {
                    tracing::warn!(%error, "cannot renew lease");
                    if !held.is_certain() {
                        return None;
                    }
                }
            }
        }
    }

    /// Lets a renewal write the state with a new seal, if that is due. Returns the state and the
    /// time of the seal.
    fn resealed(&self, held: &mut HeldLease) -> Option<(PersistedState, Timestamp)> {
        let keys = self.state_keys.as_ref()?;
        let (mut memory, now) = (self.memory(), SystemClock.now());
        let state = memory.due(now)?.clone();
        let at = memory.next_seal(now);
        // A state that cannot be sealed keeps its old seal.
        held.controller_state = Some(keys.seal(&state, at, &held.uid).ok()?);
        Some((state, at))
    }

    /// Remembers the state of the leader.
    async fn read_leader_state(&self) {
        let Some(keys) = &self.state_keys else { return };
        match self.kubernetes.lease_record(LEASE_NAMESPACE, LEASE_NAME).await {
            Ok(LeaseRecord { controller_state: Some(text), uid, .. }) => {
                self.memory().remember_leader_state(&text, keys, &uid, SystemClock.now());
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "cannot read persisted state"),
        }
    }

    /// Releases the lease, if held, so that the next holder need not wait.
    pub(super) async fn release(&self) {
        let _guard = self.write_lock.lock().await;
        let Some(held) = self.held_lease() else { return };
        self.set_held(None);
        // A lease that is not released expires.
        if let Err(error) = self.lease.release(&held, SystemClock.now()).await {
            tracing::warn!(%error, "cannot release lease");
        }
    }
}

async fn send_signal(signals: &mpsc::Sender<Signal>, signal: Signal) {
    // The receiver is gone once the controller has ended.
    let _ = signals.send(signal).await;
}

fn lost_signal(holder: Option<String>) -> Signal {
    // The prefix of the name identifies controllers. An empty name means that no controller holds the
    // lease.
    let to_apply = holder
        .as_ref()
        .is_some_and(|name| !name.is_empty() && !name.starts_with(LEASE_HOLDER_PREFIX));
    Signal::LeaseLost { holder, to_apply }
}

fn timeout_error(within: Duration) -> PortError {
    let reason = format!("no answer within {} s", within.as_secs());
    PortError { verb: "renew lease".to_owned(), reason, effect: CallEffect::Unknown }
}

fn state_error(verb: &str, reason: String) -> PortError {
    PortError { verb: verb.to_owned(), reason, effect: CallEffect::Unknown }
}

fn read_error(reason: String) -> PortError {
    state_error("read persisted state", reason)
}

fn write_error(reason: String) -> PortError {
    state_error("write persisted state", reason)
}

impl StateStore for LeaderElector {
    async fn load(&self) -> Result<PersistedState, PortError> {
        let LeaseRecord { unavailable_offerings, controller_state: text, uid } =
            self.kubernetes.lease_record(LEASE_NAMESPACE, LEASE_NAME).await?;
        let now = SystemClock.now();
        let read = match &self.state_keys {
            Some(keys) => self.memory().load(text.as_deref(), keys, &uid, now),
            None => read_persisted_state(text.as_deref()).map(|state| (state, None)),
        };
        let (mut state, problem) = read.map_err(read_error)?;
        if let Some(problem) = problem {
            tracing::warn!(consequence = problem.consequence(), "persisted state is not trusted");
        }
        // Offerings that applies found without capacity are excluded here as well, and as long.
        state.unavailable_offerings.merge(&unavailable_offerings, now, ExclusionLimits::APPLY);
        Ok(state)
    }

    async fn save(&self, state: &PersistedState) -> Result<(), PortError> {
        let _guard = self.write_lock.lock().await;
        let mut held =
            self.held_lease().ok_or_else(|| write_error("the lease is not held".to_owned()))?;
        let now = SystemClock.now();
        let at = self.memory().next_seal(now);
        let text = match &self.state_keys {
            Some(keys) => keys.seal(state, at, &held.uid),
            None => serde_json::to_string(state).map_err(|error| error.to_string()),
        };
        let text = text.map_err(write_error)?;
        if state.dropped_entries > 0 {
            let (dropped, bytes) = (state.dropped_entries, text.len());
            tracing::warn!(dropped, bytes, "persisted state shortened to fit the annotation");
        }
        held.controller_state = Some(text);
        match self.lease.renew(&held, now).await {
            Ok(next) => {
                self.set_held(Some(next));
                self.memory().record_written(state.clone(), at);
                Ok(())
            }
            Err(LeaseError::Port(error)) => Err(error),
            Err(error @ (LeaseError::Lost { .. } | LeaseError::HeldByOther { .. })) => {
                self.set_held(None);
                Err(write_error(error.to_string()))
            }
        }
    }
}

#[cfg(test)]
mod tests;
