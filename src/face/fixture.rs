//! A status that knows nothing yet, for unit tests of what drives the face.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::fleet::ClusterIdentity;
use crate::reconcile::{KeptNow, Mode, RepositoryNow, Status};

/// Returns a process that has just begun.
pub(crate) fn begun() -> Status {
    Status {
        now: Timestamp::UNIX_EPOCH,
        started_at: Timestamp::UNIX_EPOCH,
        version: "0".to_owned(),
        identity: "a".to_owned(),
        leader: false,
        led_by: None,
        lent: false,
        cluster: ClusterIdentity::default(),
        mode: Mode::Observe,
        suspended: None,
        break_glass: None,
        breakers: Vec::new(),
        repository: RepositoryNow::default(),
        world: None,
        plan: None,
        applying: BTreeMap::new(),
        history: Vec::new(),
        parts: Vec::new(),
        costs: Vec::new(),
        superseded: Vec::new(),
        unread: None,
        uncordoned: Vec::new(),
        going: Vec::new(),
        sold_out: Vec::new(),
        quarantined: BTreeMap::new(),
        failing: BTreeMap::new(),
        kept: KeptNow::default(),
        rival: None,
        counters: BTreeMap::new(),
        measured: crate::measure::Measured::default(),
        wakes_at: None,
    }
}
