//! Recovers the history of other processes from plan objects.
//!
//! Invariants: unreadable objects are reported and never ignored; at most twice as many objects are
//! read as are stored, and an unchanged object is read once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::empty_record;
use crate::apply::ports::{ObjectStore, PortError, StoredObject, StoredObjectHead};
use crate::controller::resources::{
    ObjectKind, PLAN_OBJECTS_MAX, RecordedPlan, parse_recorded_plan, plan_name,
};
use crate::controller::{CompletedApply, Status};
use crate::model::ids::Digest;

/// Maximum number of objects to read: the stored ones, and as many unreadable ones.
const READ_MAX: usize = 2 * PLAN_OBJECTS_MAX;

/// Maximum number of unreadable objects in a message.
const NAMED_MAX: usize = 3;

/// Plans of other processes.
#[derive(Debug, Clone, Default)]
pub struct RecoveredHistory {
    known: BTreeMap<String, ReadObject>,
    /// Error of the last list or get, if it failed.
    failed: Option<String>,
}

/// An object as read.
#[derive(Debug, Clone)]
struct ReadObject {
    version: String,
    /// The parsed plan, or the reason why it is unreadable.
    parsed: Result<Arc<RecordedPlan>, String>,
}

/// Reads objects that changed since the last call.
///
/// # Errors
/// If the API server does not answer. Earlier results stay valid.
pub async fn recover_history(
    register: &impl ObjectStore,
    earlier: &mut RecoveredHistory,
) -> Result<(), PortError> {
    let end = read(register, &mut earlier.known).await;
    earlier.failed = end.as_ref().err().map(ToString::to_string);
    end
}

async fn read(
    register: &impl ObjectStore,
    known: &mut BTreeMap<String, ReadObject>,
) -> Result<(), PortError> {
    let like = empty_record(ObjectKind::CapacityPlan);
    let mut listed = register.list(&like).await?;
    listed.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.name.cmp(&b.name)));
    listed.truncate(READ_MAX);
    let names: BTreeSet<&String> = listed.iter().map(|one| &one.name).collect();
    known.retain(|name, _| names.contains(name));
    for StoredObjectHead { name, version, created_at: _ } in &listed {
        if known.get(name).is_some_and(|known| known.version == *version) {
            continue;
        }
        let version = version.clone();
        match register.get(&like, name).await? {
            Some(record) => known.insert(
                name.clone(),
                ReadObject { version, parsed: parse_record(&record).map(Arc::new) },
            ),
            None => known.remove(name),
        };
    }
    Ok(())
}

fn parse_record(record: &StoredObject) -> Result<RecordedPlan, String> {
    let recorded = parse_recorded_plan(record.spec.as_ref(), &record.status)?;
    let completed = recorded.completed.as_ref().map(|apply| &apply.digest);
    let mut digests = completed
        .into_iter()
        .chain(recorded.superseded.as_ref().map(|superseded| &superseded.digest));
    let named = digests.all(|digest| plan_name(digest.as_str()) == record.name);
    named.then_some(recorded).ok_or_else(|| "it has the digest of another one".to_owned())
}

impl RecoveredHistory {
    /// Adds applies and superseded plans of other processes to a status, and reports unreadable
    /// objects.
    pub fn complete(&self, status: &mut Status) {
        status.history_error = self.failed.clone().or_else(|| self.unreadable_objects());
        let mut own: BTreeMap<String, jiff::Timestamp> = BTreeMap::new();
        for apply in &status.history {
            let ended = own.entry(plan_name(apply.digest.as_str())).or_insert(apply.ended_at);
            *ended = apply.ended_at.max(*ended);
        }
        for (name, recorded) in self.recorded_plans() {
            let is_new =
                |apply: &&CompletedApply| own.get(name).is_none_or(|ended| *ended < apply.ended_at);
            // The current leader may still run it.
            let counts = status.is_leader || !recorded.is_open;
            if let Some(apply) = recorded.completed.as_ref().filter(is_new).filter(|_| counts) {
                status.history.push(Arc::new(apply.clone()));
            }
        }
        status.history.sort_by_key(|apply| std::cmp::Reverse(apply.ended_at));
        status.history.truncate(Status::HISTORY_MAX);
        let own: BTreeSet<Digest> =
            status.superseded.iter().map(|one| one.digest.clone()).collect();
        let others = self.recorded_plans().filter_map(|(_, recorded)| recorded.superseded.clone());
        status.superseded.extend(others.filter(|superseded| !own.contains(&superseded.digest)));
        status.superseded.sort_by_key(|superseded| std::cmp::Reverse(superseded.at));
        status.superseded.truncate(Status::SUPERSEDED_MAX);
    }

    fn recorded_plans(&self) -> impl Iterator<Item = (&String, &Arc<RecordedPlan>)> {
        self.known.iter().filter_map(|(name, known)| Some((name, known.parsed.as_ref().ok()?)))
    }

    fn unreadable_objects(&self) -> Option<String> {
        let unread = self.known.iter().filter_map(|(name, known)| {
            known.parsed.as_ref().err().map(|why| format!("{name}: {why}"))
        });
        let unread: Vec<String> = unread.collect();
        let more = match unread.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let named = unread.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join("; ");
        (!unread.is_empty()).then(|| format!("{named}{more}"))
    }

    /// Returns true if the object was parsed.
    pub(super) fn has_read(&self, name: &str) -> bool {
        self.known.get(name).is_some_and(|known| known.parsed.is_ok())
    }

    /// Returns true if the object marks its plan as current.
    pub(super) fn claims_current(&self, name: &str) -> bool {
        let recorded = self.known.get(name).and_then(|known| known.parsed.as_ref().ok());
        recorded.is_some_and(|recorded| recorded.is_current)
    }
}
