//! All interrupted instances, their pending messages, and the uncordons in progress.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::state_machine::Interruption;
use crate::controller::applies::ApplyRun;
use crate::controller::interruption_queue::PendingMessages;
use crate::controller::persisted_state::{INTERRUPTIONS_MAX, InterruptionRecord, PersistedState};
use crate::controller::stale_cordons::UncordonTracker;
use crate::model::ids::InstanceId;

/// Interrupted instances, and which of them are persisted.
#[derive(Debug, Clone)]
pub(in crate::controller) struct Interruptions {
    pub(in crate::controller) all: BTreeMap<InstanceId, Interruption>,
    /// When all interruptions are checked next, regardless of events about single instances.
    pub(super) due: Timestamp,
    /// Version that changes with the set of interrupted instances.
    version: u64,
    /// Version that changes with their records, and its value in the persisted state.
    records_version: u64,
    persisted_records_version: Option<u64>,
    /// Interrupted instances in the last persisted record.
    pub(super) recorded: BTreeSet<InstanceId>,
    pub(in crate::controller) messages: PendingMessages,
    /// Nodes that an abandoned drain left cordoned.
    pub(in crate::controller) uncordons: UncordonTracker,
}

impl Interruptions {
    pub(in crate::controller) fn new(now: Timestamp) -> Self {
        Self {
            all: BTreeMap::new(),
            due: now,
            version: 0,
            records_version: 0,
            persisted_records_version: None,
            recorded: BTreeSet::new(),
            messages: PendingMessages::default(),
            uncordons: UncordonTracker::default(),
        }
    }

    pub(in crate::controller) fn on_clock_set_back(&mut self, now: Timestamp) {
        self.all.values_mut().for_each(|interruption| interruption.retry_now(now));
        self.due = now;
    }

    /// Forgets everything, because another process leads.
    pub(in crate::controller) fn clear(&mut self) {
        self.all.clear();
        self.version += 1;
        self.records_version += 1;
        self.messages.clear();
    }

    pub(in crate::controller) fn version(&self) -> u64 {
        self.version
    }

    /// Returns when interruptions are advanced without an event, if there are any.
    pub(in crate::controller) fn next_due(&self) -> Option<Timestamp> {
        (!self.all.is_empty()).then_some(self.due)
    }

    /// Adds a record to the known interruption of its instance, and returns whether there is one. An
    /// interruption whose drain is abandoned ends with the uncordon, and takes no other record.
    pub(super) fn absorb(&mut self, record: &InterruptionRecord, now: Timestamp) -> bool {
        let known = self.all.get_mut(&record.instance);
        let Some(interruption) = known.filter(|known| !known.drain_abandoned) else {
            return false;
        };
        let has_changed = interruption.absorb(record, now);
        self.records_version += u64::from(has_changed);
        true
    }

    /// Cancels a repair if no pod has been evicted yet.
    pub(in crate::controller) fn cancel_repair(&mut self, instance: &InstanceId, now: Timestamp) {
        let Some(interruption) = self.all.get_mut(instance) else { return };
        self.records_version += u64::from(interruption.cancel_repair(now));
    }

    /// Lets an interruption go on as the scheduled change that was announced meanwhile, if any.
    pub(super) fn continue_as_announced(&mut self, instance: &InstanceId, now: Timestamp) {
        let Some(interruption) = self.all.get_mut(instance) else { return };
        self.records_version += u64::from(interruption.continue_as_announced(now));
    }

    /// Adds an interruption, in place of one whose drain is abandoned.
    pub(super) fn insert(&mut self, mut interruption: Interruption) {
        if let Some(before) = self.all.get(&interruption.record.instance) {
            // The uncordon may be in progress. No observation before its end shows the cordon.
            interruption.cordoning = before.cordoning;
            interruption.trusted_from = interruption.trusted_from.max(before.trusted_from);
        }
        self.all.insert(interruption.record.instance.clone(), interruption);
        self.records_version += 1;
        self.version += 1;
    }

    pub(super) fn forget(&mut self, instance: &InstanceId) {
        if self.all.remove(instance).is_some() {
            self.records_version += 1;
            self.version += 1;
        }
        self.messages.mark_handled(instance);
    }

    pub(in crate::controller) fn instances(&self) -> BTreeSet<InstanceId> {
        self.all.keys().cloned().collect()
    }

    /// Returns the interrupted instances that plans must treat as already gone. A group member is
    /// not among them: only its group replaces it.
    pub(in crate::controller) fn planned_as_gone(&self) -> BTreeSet<InstanceId> {
        let all = self.all.iter().filter(|(_, interruption)| !interruption.record.member);
        all.map(|(id, _)| id.clone()).collect()
    }

    /// Marks the cordons of an ended apply as unconfirmed until observation `next`: the apply has
    /// uncordoned the nodes that it did not drain.
    pub(in crate::controller) fn invalidate_cordons_of(&mut self, run: &ApplyRun, next: u64) {
        for (_, interruption) in self.all.iter_mut().filter(|(id, _)| run.removes_instance(id)) {
            (interruption.unschedulable, interruption.trusted_from) = (false, next);
        }
    }

    /// Returns the interruptions to persist: the oldest where they exceed the limit. Messages about
    /// the rest stay on their queue meanwhile.
    fn records(&self) -> Vec<InterruptionRecord> {
        let mut all: Vec<&InterruptionRecord> =
            self.all.values().map(|interruption| &interruption.record).collect();
        if all.len() > INTERRUPTIONS_MAX {
            all.sort_by(|a, b| (a.since, &a.instance).cmp(&(b.since, &b.instance)));
            all.truncate(INTERRUPTIONS_MAX);
        }
        all.into_iter().cloned().collect()
    }

    /// Writes the records to the state to persist if they have changed.
    pub(in crate::controller) fn update_persisted(&mut self, persisted: &mut PersistedState) {
        if self.persisted_records_version != Some(self.records_version) {
            persisted.interruptions = self.records();
            self.persisted_records_version = Some(self.records_version);
        }
    }

    /// Writes the records to the next state to persist in any case: another state was loaded.
    pub(in crate::controller) fn forget_persisted(&mut self) {
        self.persisted_records_version = None;
    }
}
