//! What objects tell of plans that other processes carried out: those before this one, and those beside it.
//!
//! Invariants: what cannot be read is said, and never taken for nothing; no more is read than is kept, and nothing
//! twice that did not change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::blank;
use crate::face::object::{ObjectKind, PLANS_MAX, Told, plan_name, told};
use crate::ids::Digest;
use crate::port::{Listed, PortError, Record, Register};
use crate::reconcile::{Past, Status};

/// Most objects that are read: those that are kept, and as many that nobody can read.
const READ_MAX: usize = 2 * PLANS_MAX;

/// Objects that cannot be read and are named.
const NAMED_MAX: usize = 3;

/// What objects tell of plans that this process did not carry out.
#[derive(Debug, Clone, Default)]
pub struct Earlier {
    known: BTreeMap<String, Known>,
    /// Why they cannot be listed or got, where that is so.
    failed: Option<String>,
}

/// An object as it was read.
#[derive(Debug, Clone)]
struct Known {
    version: String,
    /// What it tells, or why that cannot be said.
    told: Result<Arc<Told>, String>,
}

/// Reads what changed since.
///
/// # Errors
/// When the API server does not answer; what was read before still counts.
pub async fn recall(register: &impl Register, earlier: &mut Earlier) -> Result<(), PortError> {
    let end = read(register, &mut earlier.known).await;
    earlier.failed = end.as_ref().err().map(ToString::to_string);
    end
}

async fn read(
    register: &impl Register,
    known: &mut BTreeMap<String, Known>,
) -> Result<(), PortError> {
    let like = blank(ObjectKind::CapacityPlan);
    let mut listed = register.list(&like).await?;
    listed.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.name.cmp(&b.name)));
    listed.truncate(READ_MAX);
    let names: BTreeSet<&String> = listed.iter().map(|one| &one.name).collect();
    known.retain(|name, _| names.contains(name));
    for Listed { name, version, created_at: _ } in &listed {
        if known.get(name).is_some_and(|known| known.version == *version) {
            continue;
        }
        let version = version.clone();
        match register.get(&like, name).await? {
            Some(record) => {
                known.insert(name.clone(), Known { version, told: of(&record).map(Arc::new) })
            }
            None => known.remove(name),
        };
    }
    Ok(())
}

fn of(record: &Record) -> Result<Told, String> {
    let told = told(record.spec.as_ref(), &record.status)?;
    let past = told.past.as_ref().map(|past| &past.digest);
    let mut digests = past.into_iter().chain(told.superseded.as_ref().map(|former| &former.digest));
    let named = digests.all(|digest| plan_name(digest.as_str()) == record.name);
    named.then_some(told).ok_or_else(|| "it has the digest of another one".to_owned())
}

impl Earlier {
    /// Adds what other processes carried out to the history of a status, and what they left aside, and says what
    /// cannot be read.
    pub fn complete(&self, status: &mut Status) {
        status.unread = self.failed.clone().or_else(|| self.unread());
        let mut own: BTreeMap<String, jiff::Timestamp> = BTreeMap::new();
        for past in &status.history {
            let ended = own.entry(plan_name(past.digest.as_str())).or_insert(past.ended_at);
            *ended = past.ended_at.max(*ended);
        }
        for (name, told) in self.told() {
            let is_new = |past: &&Past| own.get(name).is_none_or(|ended| *ended < past.ended_at);
            // Whoever leads may be at it.
            let counts = status.leader || !told.is_open;
            if let Some(past) = told.past.as_ref().filter(is_new).filter(|_| counts) {
                status.history.push(Arc::new(past.clone()));
            }
        }
        status.history.sort_by_key(|past| std::cmp::Reverse(past.ended_at));
        status.history.truncate(Status::PAST_MAX);
        let own: BTreeSet<Digest> =
            status.superseded.iter().map(|one| one.digest.clone()).collect();
        let others = self.told().filter_map(|(_, told)| told.superseded.clone());
        status.superseded.extend(others.filter(|former| !own.contains(&former.digest)));
        status.superseded.sort_by_key(|former| std::cmp::Reverse(former.at));
        status.superseded.truncate(Status::SUPERSEDED_MAX);
    }

    fn told(&self) -> impl Iterator<Item = (&String, &Arc<Told>)> {
        self.known.iter().filter_map(|(name, known)| Some((name, known.told.as_ref().ok()?)))
    }

    /// Returns what cannot be read.
    fn unread(&self) -> Option<String> {
        let unread = self.known.iter().filter_map(|(name, known)| {
            known.told.as_ref().err().map(|why| format!("{name}: {why}"))
        });
        let unread: Vec<String> = unread.collect();
        let more = match unread.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let named = unread.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join("; ");
        (!unread.is_empty()).then(|| format!("{named}{more}"))
    }

    /// Returns whether it is known what an object tells.
    pub(super) fn has_read(&self, name: &str) -> bool {
        self.known.get(name).is_some_and(|known| known.told.is_ok())
    }

    /// Returns whether an object says that its plan is the current one, as whoever wrote it last had it.
    pub(super) fn is_outdated(&self, name: &str) -> bool {
        let told = self.known.get(name).and_then(|known| known.told.as_ref().ok());
        told.is_some_and(|told| told.is_current)
    }
}
