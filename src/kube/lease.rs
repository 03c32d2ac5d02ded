//! The lock of an apply: a Lease, and the time for which holding it is certain.
//!
//! A lease alone does not exclude: a holder that was paused may believe that it still holds. So a
//! holder counts, on a clock that only goes forward, from the moment it *asked* for its last renewal,
//! and stops writing a margin before the others may take over; and a lease of somebody else is taken
//! only after it was seen unchanged for its whole duration, whatever times stand in it, since clocks
//! of machines differ. Both rules are those of client-go's leader election, but that it goes on
//! writing.
//!
//! Applies and the loop want the same lease. The loop holds it for as long as it lives, so that an apply
//! *asks* for it, by an annotation; the loop gives it back, and for a while nobody but who asked takes it.
//! What is kept with the lease is passed on by whoever holds it, whether or not they know what it is.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ::kube::Error;
use ::kube::api::{Api, ObjectMeta, PostParams};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease as ApiLease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use thiserror::Error as ThisError;
use tokio::time::Instant;

use super::client::Kubernetes;
use super::memory::{ANNOTATION, Memory};
use super::port_error;
use super::write::MANAGER;
use crate::port::PortError;

/// How long a lease lasts that is not renewed.
const DURATION: Duration = Duration::from_mins(1);

/// How long before its end a lease no longer counts as held: the longest call to the outside, half a
/// minute, and clocks that run at different rates.
const MARGIN: Duration = Duration::from_secs(35);

/// How often a write is tried again because somebody asked for the lease meanwhile.
const WRITES_MAX: u32 = 3;

/// How long a lease that was given back is left to whoever asked for it.
const LEFT_FOR: Duration = Duration::from_secs(20);

/// Annotation that holds what the loop keeps.
const RECORD: &str = "fleetwright.dev/controller";

/// Annotation that holds who asks for the lease.
const ASKED: &str = "fleetwright.dev/asked-for-by";

/// How often a lease is renewed.
pub const RENEW_EVERY: Duration = Duration::from_secs(10);

/// A lease of one name, as one process wants it.
#[derive(Debug)]
pub struct Lease {
    api: Api<ApiLease>,
    name: String,
    holder: String,
    /// The lease of somebody else as it was last seen to change, and when that was.
    seen: Mutex<Option<(String, Instant)>>,
}

/// A lease that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// How often the lease was taken: no two holders have the same number.
    pub epoch: i32,
    /// What EC2 had no capacity for lately; it is kept when the lease is given back.
    pub memory: Memory,
    /// What the loop keeps, as it wrote it.
    pub record: Option<String>,
    /// Everything else that is kept with it.
    others: BTreeMap<String, String>,
    version: Option<String>,
    asked: Instant,
    /// Whether somebody else was seen to hold it.
    lost: bool,
}

impl Held {
    /// Returns whether it is certain that nobody else holds the lease.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        !self.lost && self.asked.elapsed() + MARGIN < DURATION
    }

    /// Returns the same lease, known to be in other hands.
    #[must_use]
    pub fn lost(self) -> Self {
        Self { lost: true, ..self }
    }

    /// Returns who asks for the lease, if anybody does.
    #[must_use]
    pub fn asked_for_by(&self) -> Option<&str> {
        self.others.get(ASKED).map(String::as_str)
    }

    fn annotations(&self) -> BTreeMap<String, String> {
        let mut all = self.others.clone();
        if self.memory != Memory::default() {
            all.insert(ANNOTATION.to_owned(), self.memory.text());
        }
        all.extend(self.record.iter().map(|text| (RECORD.to_owned(), text.clone())));
        all
    }
}

/// Why a lease is not held.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum LeaseError {
    /// Somebody else holds it.
    #[error("lease `{lease}` is held by `{holder}`")]
    Taken {
        /// The lease.
        lease: String,
        /// The holder.
        holder: String,
    },
    /// It changed hands.
    #[error("lease `{lease}` was lost to `{holder}`")]
    Lost {
        /// The lease.
        lease: String,
        /// The holder.
        holder: String,
    },
    /// The API server does not answer, or refuses.
    #[error(transparent)]
    Port(#[from] PortError),
}

impl Lease {
    /// Returns the lease `namespace/name`, wanted by `holder`, which no other process is called.
    #[must_use]
    pub fn new(kubernetes: &Kubernetes, namespace: &str, name: &str, holder: String) -> Self {
        let api = Api::namespaced(kubernetes.writer.clone(), namespace);
        Self { api, name: name.to_owned(), holder, seen: Mutex::new(None) }
    }

    /// Takes the lease if nobody has it, or who has it has not renewed it for its whole duration. One
    /// that was given back for somebody who asked is left to them for a while.
    ///
    /// # Errors
    /// [`LeaseError::Taken`] where somebody has it; asking again later may help.
    pub async fn acquire(&self, now: Timestamp) -> Result<Held, LeaseError> {
        let asked = Instant::now();
        let found = self.look().await?.unwrap_or_default();
        let mut held = held(&found, asked);
        let spec = found.spec.unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let others = !holder.is_empty() && holder != self.holder;
        if others {
            let seconds = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
            let lasts = seconds.map_or(DURATION, Duration::from_secs);
            if !self.is_unchanged_for(held.version.as_deref(), lasts) {
                return Err(self.taken(holder));
            }
        }
        let wanted_by = held.others.remove(ASKED).filter(|by| *by != self.holder);
        if let Some(by) = wanted_by.filter(|_| holder.is_empty())
            && !self.is_unchanged_for(held.version.as_deref(), LEFT_FOR)
        {
            return Err(self.taken(by));
        }
        // Two processes may go by one name, as in one pod: the older one finds that it has lost.
        held.epoch = held.epoch.saturating_add(1);
        if held.version.is_some() {
            return self.replace(held, Some((&self.holder, DURATION)), now).await;
        }
        let lease = self.lease(&held, Some((&self.holder, DURATION)), now);
        match self.api.create(&params(), &lease).await {
            Ok(lease) => Ok(Held { version: lease.metadata.resource_version, ..held }),
            // Somebody was quicker: who holds it now is for the next look to tell.
            Err(Error::Api(status)) if status.code == 409 => Err(self.who_won().await),
            Err(error) => Err(port_error("write lease", &error).into()),
        }
    }

    /// Renews a lease that is held, and writes what is kept with it.
    ///
    /// # Errors
    /// [`LeaseError::Lost`] where it changed hands; any other error leaves it held for as long as it
    /// [is certain](Held::is_certain).
    pub async fn renew(&self, held: &Held, now: Timestamp) -> Result<Held, LeaseError> {
        let next = Held { asked: Instant::now(), ..held.clone() };
        self.replace(next, Some((&self.holder, DURATION)), now).await
    }

    /// Gives the lease back, so that the next one need not wait.
    ///
    /// # Errors
    /// When it cannot be written; then it runs out by itself.
    pub async fn release(&self, held: &Held, now: Timestamp) -> Result<(), LeaseError> {
        self.replace(held.clone(), None, now).await.map(|_| ())
    }

    /// Asks whoever holds the lease for it, unless somebody else asks already.
    ///
    /// # Errors
    /// When it cannot be written; asking again later may help.
    pub async fn ask(&self) -> Result<(), LeaseError> {
        let Some(mut found) = self.look().await? else { return Ok(()) };
        let annotations = found.metadata.annotations.get_or_insert_default();
        // Once is enough: each write makes the lease look alive to those who wait for its end.
        if annotations.contains_key(ASKED) {
            return Ok(());
        }
        annotations.insert(ASKED.to_owned(), self.holder.clone());
        match self.api.replace(&self.name, &params(), &found).await {
            Ok(_) => Ok(()),
            Err(Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(port_error("ask for lease", &error).into()),
        }
    }

    async fn look(&self) -> Result<Option<ApiLease>, PortError> {
        let found = self.api.get_opt(&self.name).await;
        found.map_err(|error| port_error("read lease", &error))
    }

    /// Returns whether the lease was seen in this version for as long as `lasts`.
    fn is_unchanged_for(&self, version: Option<&str>, lasts: Duration) -> bool {
        let version = version.unwrap_or_default();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match &*seen {
            Some((known, since)) if known == version => since.elapsed() > lasts,
            Some(_) | None => {
                *seen = Some((version.to_owned(), Instant::now()));
                false
            }
        }
    }

    /// Writes the lease in place of the version that is held. One that is in the same hands, and in
    /// which only somebody's question is new, is written again.
    async fn replace(
        &self,
        mut held: Held,
        holder: Option<(&str, Duration)>,
        now: Timestamp,
    ) -> Result<Held, LeaseError> {
        for _ in 0..WRITES_MAX {
            let lease = self.lease(&held, holder, now);
            match self.api.replace(&self.name, &params(), &lease).await {
                Ok(lease) => {
                    held.version = lease.metadata.resource_version;
                    return Ok(held);
                }
                Err(Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(port_error("write lease", &error).into()),
            }
            let found = self.look().await?.unwrap_or_default();
            let spec = found.spec.as_ref();
            let mine = spec.is_some_and(|spec| {
                spec.holder_identity.as_deref() == Some(&self.holder)
                    && spec.lease_transitions == Some(held.epoch)
            });
            if !mine {
                break;
            }
            let self::Held { others, version, .. } = self::held(&found, held.asked);
            (held.others, held.version) = (others, version);
        }
        Err(self.who_won().await)
    }

    async fn who_won(&self) -> LeaseError {
        let found = self.look().await.ok().flatten();
        let holder = found.and_then(|lease| lease.spec?.holder_identity);
        let holder = holder.unwrap_or_else(|| "somebody else".to_owned());
        LeaseError::Lost { lease: self.name.clone(), holder }
    }

    fn taken(&self, holder: String) -> LeaseError {
        LeaseError::Taken { lease: self.name.clone(), holder }
    }

    /// Returns the lease in the hands of `holder`, for as long as it says; without one, in nobody's.
    fn lease(&self, held: &Held, holder: Option<(&str, Duration)>, now: Timestamp) -> ApiLease {
        let (holder, lasts) = holder.unwrap_or(("", Duration::from_secs(1)));
        let now = MicroTime(now);
        let spec = LeaseSpec {
            acquire_time: held.version.is_none().then(|| now.clone()),
            renew_time: Some(now),
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: i32::try_from(lasts.as_secs()).ok(),
            lease_transitions: Some(held.epoch),
            ..LeaseSpec::default()
        };
        let metadata = ObjectMeta {
            name: Some(self.name.clone()),
            resource_version: held.version.clone(),
            annotations: Some(held.annotations()).filter(|all| !all.is_empty()),
            ..ObjectMeta::default()
        };
        ApiLease { metadata, spec: Some(spec) }
    }
}

impl Kubernetes {
    /// Returns what the lease `namespace/name` remembers that EC2 had no capacity for.
    ///
    /// # Errors
    /// When it cannot be read; where there is no lease, nothing is remembered.
    pub async fn memory(&self, namespace: &str, name: &str) -> Result<Memory, PortError> {
        self.record(namespace, name).await.map(|(memory, _)| memory)
    }

    /// Returns what is kept with the lease `namespace/name`: what EC2 had no capacity for, and what the
    /// loop wrote.
    ///
    /// # Errors
    /// When it cannot be read; where there is no lease, nothing is kept.
    pub async fn record(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<(Memory, Option<String>), PortError> {
        let leases: Api<ApiLease> = Api::namespaced(self.client.clone(), namespace);
        let found = leases.get_opt(name).await;
        let found = found.map_err(|error| port_error("read lease", &error))?;
        let held = held(&found.unwrap_or_default(), Instant::now());
        Ok((held.memory, held.record))
    }
}

/// Returns a lease that was found, as whoever takes it holds it.
fn held(found: &ApiLease, asked: Instant) -> Held {
    let mut others = found.metadata.annotations.clone().unwrap_or_default();
    let memory = others.remove(ANNOTATION).map(|text| Memory::read(&text)).unwrap_or_default();
    Held {
        epoch: found.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0),
        memory,
        record: others.remove(RECORD),
        others,
        version: found.metadata.resource_version.clone(),
        asked,
        lost: false,
    }
}

fn params() -> PostParams {
    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
}
