//! The lease of an apply, and the time for which the holder can rely on it.
//!
//! A lease alone does not exclude others: a paused holder may believe that it still holds the
//! lease. The holder therefore measures monotonic time since the *start* of its last renewal, and
//! stops writing a margin before others may acquire the lease. A lease of another holder is
//! acquired only after it was seen unchanged for its whole duration, whatever its timestamps,
//! because clocks differ. Both rules follow client-go's leader election, which however continues to
//! write.
//!
//! Applies and the controller use the same lease. The controller holds it permanently. An apply
//! *requests* it with an annotation. The controller then releases it, and for a while only the
//! requester may acquire it. Every holder preserves all annotations, including unknown ones.

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
use super::node_writes::FIELD_MANAGER;
use super::port_error;
use crate::apply::ports::PortError;
use crate::model::unavailable_offerings::UnavailableOfferings;

/// Duration of a lease without renewal.
const LEASE_DURATION: Duration = Duration::from_mins(1);

/// Margin before the end of the lease: the longest external call, half a minute, plus differences
/// in clock rates.
const SAFETY_MARGIN: Duration = Duration::from_secs(35);

/// Maximum number of retries after a concurrent request for the lease.
const CONFLICTS_MAX: u32 = 3;

/// Time for which a released lease is reserved for its requester.
const HANDOVER_WAIT: Duration = Duration::from_secs(20);

/// Annotation with the controller state.
const CONTROLLER_STATE: &str = "fleetwright.dev/controller";

/// Annotation with the offerings that have no capacity. See ADR 10. The record is a hint: a lost
/// record costs one more attempt, and an unreadable record is empty.
const UNAVAILABLE_OFFERINGS: &str = "fleetwright.dev/insufficient-capacity";

/// Annotation with the requester of the lease.
const REQUESTED_BY: &str = "fleetwright.dev/requested-by";

/// The namespace of the lease that applies and controllers share.
pub const LEASE_NAMESPACE: &str = "kube-system";

/// The name of the lease that applies and controllers share.
pub const LEASE_NAME: &str = "fleetwright-apply";

/// Poll interval while the lease is held elsewhere.
pub const LEASE_POLL: Duration = Duration::from_secs(2);

/// Renewal interval of an apply.
pub const APPLY_RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// A named lease and its potential holder.
#[derive(Debug)]
pub struct LeaseClient {
    api: Api<ApiLease>,
    name: String,
    holder: String,
    /// The last observed version of another holder's lease, with the time of its first observation.
    observed: Mutex<Option<(String, Instant)>>,
}

/// A held lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLease {
    /// Number of acquisitions. No two holders have the same number.
    pub epoch: i32,
    /// Offerings without capacity. They are preserved when the lease is released.
    pub unavailable_offerings: UnavailableOfferings,
    /// The serialized controller state.
    pub controller_state: Option<String>,
    /// UID of the API object; the API server assigns it.
    pub uid: String,
    /// All other annotations.
    other_annotations: BTreeMap<String, String>,
    resource_version: Option<String>,
    renewed_at: Instant,
    /// True if another holder was observed.
    lost: bool,
}

/// What a lease records, whoever holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Offerings without capacity.
    pub unavailable_offerings: UnavailableOfferings,
    /// The serialized controller state.
    pub controller_state: Option<String>,
    /// UID of the API object; empty without a lease.
    pub uid: String,
}

impl HeldLease {
    /// Returns whether no other process can hold the lease.
    pub fn is_certain(&self) -> bool {
        !self.lost && self.renewed_at.elapsed() + SAFETY_MARGIN < LEASE_DURATION
    }

    /// Returns the lease, marked as held by another process.
    #[must_use]
    pub fn mark_lost(self) -> Self {
        Self { lost: true, ..self }
    }

    /// Returns the requester of the lease, if there is one.
    pub fn requested_by(&self) -> Option<&str> {
        self.other_annotations.get(REQUESTED_BY).map(String::as_str)
    }

    fn annotations(&self) -> BTreeMap<String, String> {
        let mut all = self.other_annotations.clone();
        if !self.unavailable_offerings.is_empty() {
            let text = serde_json::to_string(&self.unavailable_offerings).unwrap_or_default();
            all.insert(UNAVAILABLE_OFFERINGS.to_owned(), text);
        }
        all.extend(
            self.controller_state.iter().map(|text| (CONTROLLER_STATE.to_owned(), text.clone())),
        );
        all
    }
}

/// The reason that a lease is not held.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum LeaseError {
    /// Another process holds it.
    #[error("lease `{lease}` is held by `{holder}`")]
    HeldByOther {
        /// The lease.
        lease: String,
        /// The holder.
        holder: String,
    },
    /// Another process acquired it.
    #[error("lease `{lease}` was lost to `{holder}`")]
    Lost {
        /// The lease.
        lease: String,
        /// The holder.
        holder: String,
    },
    /// The API server is unreachable or refuses the request.
    #[error(transparent)]
    Port(#[from] PortError),
}

impl LeaseClient {
    /// Returns the lease `namespace/name` for `holder`. Holder names must be unique.
    pub fn new(kubernetes: &Kubernetes, namespace: &str, name: &str, holder: String) -> Self {
        let api = Api::namespaced(kubernetes.writer.clone(), namespace);
        Self { api, name: name.to_owned(), holder, observed: Mutex::new(None) }
    }

    /// Acquires the lease if it is free, or if its holder has not renewed it for its whole
    /// duration. A lease that was released on request is reserved for the requester for a while.
    ///
    /// # Errors
    /// Returns [`LeaseError::HeldByOther`] if another process holds it. A later attempt may
    /// succeed.
    pub async fn acquire(&self, now: Timestamp) -> Result<HeldLease, LeaseError> {
        let renewed_at = Instant::now();
        let found = self.read().await?.unwrap_or_default();
        let mut held = from_api_lease(&found, renewed_at);
        let spec = found.spec.unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let is_other = !holder.is_empty() && holder != self.holder;
        if is_other {
            let seconds = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
            let duration = seconds.map_or(LEASE_DURATION, Duration::from_secs);
            if !self.is_unchanged_for(held.resource_version.as_deref(), duration) {
                return Err(self.held_by_other(holder));
            }
        }
        let requested_by =
            held.other_annotations.remove(REQUESTED_BY).filter(|by| *by != self.holder);
        if let Some(by) = requested_by.filter(|_| holder.is_empty())
            && !self.is_unchanged_for(held.resource_version.as_deref(), HANDOVER_WAIT)
        {
            return Err(self.held_by_other(by));
        }
        // Two processes may share a name, as in one pod. The older one then observes that it lost
        // the lease.
        held.epoch = held.epoch.saturating_add(1);
        if held.resource_version.is_some() {
            return self.replace(held, Some((&self.holder, LEASE_DURATION)), now).await;
        }
        let lease = self.to_api_lease(&held, Some((&self.holder, LEASE_DURATION)), now);
        match self.api.create(&params(), &lease).await {
            Ok(lease) => Ok(HeldLease {
                resource_version: lease.metadata.resource_version,
                uid: lease.metadata.uid.unwrap_or_default(),
                ..held
            }),
            // Another process was faster. The next read shows its holder.
            Err(Error::Api(status)) if status.code == 409 => Err(self.lost_error().await),
            Err(error) => Err(port_error("write lease", &error).into()),
        }
    }

    /// Renews a held lease and writes its annotations.
    ///
    /// # Errors
    /// Returns [`LeaseError::Lost`] if another process acquired it. After any other error it stays
    /// held while it [is certain](HeldLease::is_certain).
    pub async fn renew(&self, held: &HeldLease, now: Timestamp) -> Result<HeldLease, LeaseError> {
        let next = HeldLease { renewed_at: Instant::now(), ..held.clone() };
        self.replace(next, Some((&self.holder, LEASE_DURATION)), now).await
    }

    /// Releases the lease, so that the next holder need not wait.
    ///
    /// # Errors
    /// Returns an error if it cannot be written. It then expires.
    pub async fn release(&self, held: &HeldLease, now: Timestamp) -> Result<(), LeaseError> {
        self.replace(held.clone(), None, now).await.map(|_| ())
    }

    /// Requests the lease from its holder, unless another request is pending.
    ///
    /// # Errors
    /// Returns an error if it cannot be written. A later attempt may succeed.
    pub async fn request(&self) -> Result<(), LeaseError> {
        let Some(mut found) = self.read().await? else { return Ok(()) };
        let annotations = found.metadata.annotations.get_or_insert_default();
        // One request is enough: each write makes the lease look alive to processes that wait for
        // its expiry.
        if annotations.contains_key(REQUESTED_BY) {
            return Ok(());
        }
        annotations.insert(REQUESTED_BY.to_owned(), self.holder.clone());
        match self.api.replace(&self.name, &params(), &found).await {
            Ok(_) => Ok(()),
            Err(Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(port_error("request lease", &error).into()),
        }
    }

    async fn read(&self) -> Result<Option<ApiLease>, PortError> {
        let found = self.api.get_opt(&self.name).await;
        found.map_err(|error| port_error("read lease", &error))
    }

    /// Returns whether this version of the lease was observed for longer than `duration`.
    fn is_unchanged_for(&self, resource_version: Option<&str>, duration: Duration) -> bool {
        let version = resource_version.unwrap_or_default();
        let mut observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        match &*observed {
            Some((known, since)) if known == version => since.elapsed() > duration,
            Some(_) | None => {
                *observed = Some((version.to_owned(), Instant::now()));
                false
            }
        }
    }

    /// Writes the lease in place of the held version. If only the request annotation changed, the
    /// write is retried.
    async fn replace(
        &self,
        mut held: HeldLease,
        holder: Option<(&str, Duration)>,
        now: Timestamp,
    ) -> Result<HeldLease, LeaseError> {
        for _ in 0..CONFLICTS_MAX {
            let lease = self.to_api_lease(&held, holder, now);
            match self.api.replace(&self.name, &params(), &lease).await {
                Ok(lease) => {
                    held.resource_version = lease.metadata.resource_version;
                    return Ok(held);
                }
                Err(Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(port_error("write lease", &error).into()),
            }
            let found = self.read().await?.unwrap_or_default();
            let spec = found.spec.as_ref();
            let is_same_holder = spec.is_some_and(|spec| {
                spec.holder_identity.as_deref() == Some(&self.holder)
                    && spec.lease_transitions == Some(held.epoch)
            });
            if !is_same_holder {
                break;
            }
            let HeldLease { other_annotations, resource_version, .. } =
                from_api_lease(&found, held.renewed_at);
            (held.other_annotations, held.resource_version) = (other_annotations, resource_version);
        }
        Err(self.lost_error().await)
    }

    async fn lost_error(&self) -> LeaseError {
        let found = self.read().await.ok().flatten();
        let holder = found.and_then(|lease| lease.spec?.holder_identity);
        let holder = holder.unwrap_or_else(|| "another process".to_owned());
        LeaseError::Lost { lease: self.name.clone(), holder }
    }

    fn held_by_other(&self, holder: String) -> LeaseError {
        LeaseError::HeldByOther { lease: self.name.clone(), holder }
    }

    /// Returns the API object for a lease of `holder` with a duration. Without a holder, the lease
    /// is free.
    fn to_api_lease(
        &self,
        held: &HeldLease,
        holder: Option<(&str, Duration)>,
        now: Timestamp,
    ) -> ApiLease {
        let (holder, duration) = holder.unwrap_or(("", Duration::from_secs(1)));
        let now = MicroTime(now);
        let spec = LeaseSpec {
            acquire_time: held.resource_version.is_none().then(|| now.clone()),
            renew_time: Some(now),
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: i32::try_from(duration.as_secs()).ok(),
            lease_transitions: Some(held.epoch),
            ..LeaseSpec::default()
        };
        let metadata = ObjectMeta {
            name: Some(self.name.clone()),
            resource_version: held.resource_version.clone(),
            annotations: Some(held.annotations()).filter(|all| !all.is_empty()),
            ..ObjectMeta::default()
        };
        ApiLease { metadata, spec: Some(spec) }
    }
}

impl Kubernetes {
    /// Returns the offerings without capacity that the lease `namespace/name` records.
    ///
    /// # Errors
    /// Returns an error if it cannot be read. A missing lease is an empty record.
    pub async fn unavailable_offerings(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<UnavailableOfferings, PortError> {
        self.lease_record(namespace, name).await.map(|record| record.unavailable_offerings)
    }

    /// Returns what the lease `namespace/name` records.
    ///
    /// # Errors
    /// Returns an error if it cannot be read. A missing lease is an empty record.
    pub async fn lease_record(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<LeaseRecord, PortError> {
        let leases: Api<ApiLease> = Api::namespaced(self.client.clone(), namespace);
        let found = leases.get_opt(name).await;
        let found = found.map_err(|error| port_error("read lease", &error))?;
        let held = from_api_lease(&found.unwrap_or_default(), Instant::now());
        let HeldLease { unavailable_offerings, controller_state, uid, .. } = held;
        Ok(LeaseRecord { unavailable_offerings, controller_state, uid })
    }
}

/// Converts an API object to a held lease.
fn from_api_lease(found: &ApiLease, renewed_at: Instant) -> HeldLease {
    let mut other_annotations = found.metadata.annotations.clone().unwrap_or_default();
    let unavailable_offerings = other_annotations
        .remove(UNAVAILABLE_OFFERINGS)
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    HeldLease {
        epoch: found.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0),
        unavailable_offerings,
        controller_state: other_annotations.remove(CONTROLLER_STATE),
        uid: found.metadata.uid.clone().unwrap_or_default(),
        other_annotations,
        resource_version: found.metadata.resource_version.clone(),
        renewed_at,
        lost: false,
    }
}

fn params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_offerings_of_a_lease_are_empty() {
        for text in ["{", "[1]", r#"[{"offering": 1, "minutes": 15}]"#] {
            let mut lease = ApiLease::default();
            lease.metadata.annotations =
                Some([(UNAVAILABLE_OFFERINGS.to_owned(), text.to_owned())].into());
            let held = from_api_lease(&lease, Instant::now());
            assert!(held.unavailable_offerings.is_empty(), "{text}");
            assert!(held.other_annotations.is_empty(), "{text}");
        }
    }
}
