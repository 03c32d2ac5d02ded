//! The lock of an apply: a Lease, and the time for which holding it is certain.
//!
//! A lease alone does not exclude: a holder that was paused may believe that it still holds. So a
//! holder counts, on a clock that only goes forward, from the moment it *asked* for its last renewal,
//! and stops writing a margin before the others may take over; and a lease of somebody else is taken
//! only after it was seen unchanged for its whole duration, whatever times stand in it, since clocks
//! of machines differ. Both rules are those of client-go's leader election, but that it goes on
//! writing.

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

/// How long before its end a lease no longer counts as held: the longest call to the outside, and
/// clocks that run at different rates.
const MARGIN: Duration = Duration::from_secs(20);

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
    /// How often the lease changed hands: no two holders have the same number.
    pub epoch: i32,
    /// What EC2 had no capacity for lately; it is kept when the lease is given back.
    pub memory: Memory,
    version: String,
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

    /// Takes the lease if nobody has it, or who has it has not renewed it for its whole duration.
    ///
    /// # Errors
    /// [`LeaseError::Taken`] where somebody has it; asking again later may help.
    pub async fn acquire(&self, now: Timestamp) -> Result<Held, LeaseError> {
        let asked = Instant::now();
        let found = self.api.get_opt(&self.name).await;
        let found = found.map_err(|error| port_error("read lease", &error))?;
        let memory = found.as_ref().map(memory_of).unwrap_or_default();
        let (spec, version) = match found {
            None => (None, None),
            Some(lease) => (lease.spec, lease.metadata.resource_version),
        };
        let spec = spec.unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let others = !holder.is_empty() && holder != self.holder;
        if others && !self.is_abandoned(version.as_deref(), &spec) {
            return Err(self.taken(holder));
        }
        let changed = i32::from(holder != self.holder);
        let epoch = spec.lease_transitions.unwrap_or(0).saturating_add(changed);
        self.write((epoch, memory), version, asked, now).await
    }

    /// Renews a lease that is held.
    ///
    /// # Errors
    /// [`LeaseError::Lost`] where it changed hands; any other error leaves it held for as long as it
    /// [is certain](Held::is_certain).
    pub async fn renew(&self, held: &Held, now: Timestamp) -> Result<Held, LeaseError> {
        let kept = (held.epoch, held.memory.clone());
        self.write(kept, Some(held.version.clone()), Instant::now(), now).await
    }

    /// Gives the lease back, so that the next one need not wait.
    ///
    /// # Errors
    /// When it cannot be written; then it runs out by itself.
    pub async fn release(&self, held: &Held, now: Timestamp) -> Result<(), LeaseError> {
        let mut lease = self.lease((held.epoch, &held.memory), Some(held.version.clone()), now);
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
        }
        self.api
            .replace(&self.name, &params(), &lease)
            .await
            .map(|_| ())
            .map_err(|error| port_error("release lease", &error).into())
    }

    /// Returns whether the lease of somebody else was seen unchanged for its whole duration.
    fn is_abandoned(&self, version: Option<&str>, spec: &LeaseSpec) -> bool {
        let seconds = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
        let lasts = seconds.map_or(DURATION, Duration::from_secs);
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

    async fn write(
        &self,
        (epoch, memory): (i32, Memory),
        version: Option<String>,
        asked: Instant,
        now: Timestamp,
    ) -> Result<Held, LeaseError> {
        let lease = self.lease((epoch, &memory), version.clone(), now);
        let written = match version {
            None => self.api.create(&params(), &lease).await,
            Some(_) => self.api.replace(&self.name, &params(), &lease).await,
        };
        match written {
            Ok(lease) => Ok(Held {
                epoch,
                memory,
                version: lease.metadata.resource_version.unwrap_or_default(),
                asked,
                lost: false,
            }),
            // Somebody wrote in between: who holds it now is for the next look to tell.
            Err(Error::Api(status)) if status.code == 409 => Err(self.who_won().await),
            Err(error) => Err(port_error("write lease", &error).into()),
        }
    }

    async fn who_won(&self) -> LeaseError {
        let found = self.api.get_opt(&self.name).await.ok().flatten();
        let holder = found.and_then(|lease| lease.spec?.holder_identity);
        let holder = holder.unwrap_or_else(|| "somebody else".to_owned());
        LeaseError::Lost { lease: self.name.clone(), holder }
    }

    fn taken(&self, holder: String) -> LeaseError {
        LeaseError::Taken { lease: self.name.clone(), holder }
    }

    fn lease(
        &self,
        (epoch, memory): (i32, &Memory),
        version: Option<String>,
        now: Timestamp,
    ) -> ApiLease {
        let now = MicroTime(now);
        let spec = LeaseSpec {
            acquire_time: version.is_none().then(|| now.clone()),
            renew_time: Some(now),
            holder_identity: Some(self.holder.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            lease_transitions: Some(epoch),
            ..LeaseSpec::default()
        };
        let metadata = ObjectMeta {
            name: Some(self.name.clone()),
            resource_version: version,
            annotations: (*memory != Memory::default())
                .then(|| [(ANNOTATION.to_owned(), memory.text())].into()),
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
        let leases: Api<ApiLease> = Api::namespaced(self.client.clone(), namespace);
        let found = leases.get_opt(name).await;
        let found = found.map_err(|error| port_error("read lease", &error))?;
        Ok(found.as_ref().map(memory_of).unwrap_or_default())
    }
}

fn memory_of(lease: &ApiLease) -> Memory {
    let kept = lease.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION));
    kept.map(|text| Memory::read(text)).unwrap_or_default()
}

fn params() -> PostParams {
    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
}
