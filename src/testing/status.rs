//! An empty status for unit tests.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::controller::{Counters, Mode, PersistedStateSize, RepositoryStatus, Status};
use crate::model::observed::ClusterIdentity;

/// Returns the status of a process that has just started.
pub(crate) fn initial_status() -> Status {
    Status {
        now: Timestamp::UNIX_EPOCH,
        started_at: Timestamp::UNIX_EPOCH,
        version: "0".to_owned(),
        identity: "a".to_owned(),
        is_leader: false,
        lease_holder: None,
        is_lease_held_by_apply: false,
        cluster: ClusterIdentity::default(),
        mode: Mode::Observe,
        suspended: None,
        break_glass: None,
        breakers: Vec::new(),
        repository: RepositoryStatus::default(),
        world: None,
        plan: None,
        in_progress: BTreeMap::new(),
        history: Vec::new(),
        partial_applies: Vec::new(),
        hourly_costs: Vec::new(),
        superseded: Vec::new(),
        history_error: None,
        uncordoned: Vec::new(),
        terminating: Vec::new(),
        sold_out: Vec::new(),
        quarantined: BTreeMap::new(),
        failing_actions: BTreeMap::new(),
        persisted_state: PersistedStateSize::default(),
        competing_autoscaler: None,
        counters: Counters::default(),
        durations: crate::telemetry::histogram::Histograms::default(),
        wakes_at: None,
    }
}
