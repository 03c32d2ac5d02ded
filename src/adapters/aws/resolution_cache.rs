//! Cached results of the selectors of node classes.
//!
//! Invariants: a result is fresh for some minutes, and remains usable for a while if it cannot be
//! refreshed. A failed lookup is reported with its reason.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::errors::AwsError;
use crate::model::ids::ZoneName;
use crate::model::observed::{ImageChoice, NodeClassField, Resolved, UnresolvedTerm};

/// Refresh interval. Images are released weekly, and Karpenter also resolves every five minutes.
pub(super) const FRESH_FOR: Duration = Duration::from_mins(5);

/// Delay before a failed lookup is retried.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Time for which a result remains usable without a refresh.
const USABLE_FOR: Duration = Duration::from_mins(15);

/// Reason of a lookup without a result so far.
pub(super) const NOT_RESOLVED_YET: &str = "it is not resolved yet";

/// Subnets by zone, those with the most free addresses first.
pub(super) type Subnets = BTreeMap<ZoneName, Vec<Subnet>>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subnet {
    pub(super) id: String,
    /// Free addresses at the time of the read.
    pub(super) free_addresses: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResolutionKey {
    /// The kind of resource that is selected.
    pub(super) part: NodeClassField,
    pub(super) words: String,
    /// The Kubernetes version of an image lookup. Empty if unknown or irrelevant.
    pub(super) kubernetes: String,
}

#[derive(Debug, Clone)]
pub(super) enum ResolvedSelector {
    Images(Vec<ImageChoice>),
    Subnets(Subnets),
    SecurityGroups(Vec<String>),
}

/// The latest result and failure of a lookup.
#[derive(Debug, Clone, Default)]
struct ResolutionEntry {
    value: Option<(ResolutionTime, ResolvedSelector)>,
    /// The last failure since the last success.
    failure: Option<(ResolutionTime, String)>,
    /// The time since which the first lookup is pending.
    pending: Option<ResolutionTime>,
}

/// The start of a lookup.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResolutionTime {
    at: Instant,
    /// The same as wall-clock time. Launches are compared with it.
    time: Timestamp,
}

impl ResolutionTime {
    pub(super) fn now() -> Self {
        Self { at: Instant::now(), time: Timestamp::now() }
    }

    fn is_within(self, time: Duration, now: Instant) -> bool {
        now.duration_since(self.at) < time
    }
}

impl ResolutionEntry {
    fn is_due(&self, now: Instant) -> bool {
        let counts = self.value.as_ref().is_some_and(|(when, _)| when.is_within(FRESH_FOR, now));
        let rests = self.failure.as_ref().is_some_and(|(when, _)| when.is_within(RETRY_AFTER, now));
        !(counts || rests)
    }

    /// Returns the result, failure or pending state that is still usable, with its time.
    fn current(&self, now: Instant) -> Option<(ResolutionTime, Result<&ResolvedSelector, &str>)> {
        let answer = self.value.as_ref().map(|(when, answer)| (*when, Ok(answer)));
        let failed = self.failure.as_ref().map(|(when, why)| (*when, Err(why.as_str())));
        let pending = self.pending.map(|when| (when, Err(NOT_RESOLVED_YET)));
        let value = |value: &(ResolutionTime, Result<&ResolvedSelector, &str>)| {
            value.0.is_within(USABLE_FOR, now)
        };
        answer.filter(value).or_else(|| failed.filter(value)).or_else(|| pending.filter(value))
    }
}

/// Recent lookups.
#[derive(Debug, Default)]
pub(super) struct ResolutionCache {
    entries: Mutex<BTreeMap<ResolutionKey, ResolutionEntry>>,
    /// Held during a resolution.
    pub(super) resolve_lock: tokio::sync::Mutex<()>,
}

impl ResolutionCache {
    fn with_entries<T>(
        &self,
        change: impl FnOnce(&mut BTreeMap<ResolutionKey, ResolutionEntry>) -> T,
    ) -> T {
        change(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn is_due(&self, key: &ResolutionKey, now: Instant) -> bool {
        self.with_entries(|all| all.get(key).is_none_or(|entry| entry.is_due(now)))
    }

    /// Marks a lookup as pending, so that it is reported as unknown until its first result.
    pub(super) fn mark_pending(&self, key: &ResolutionKey, when: ResolutionTime) {
        self.with_entries(|all| {
            let known = all.get(key).is_some_and(|entry| entry.current(when.at).is_some());
            if !known {
                all.entry(key.clone()).or_default().pending = Some(when);
            }
        });
    }

    /// Records the result of a lookup.
    pub(super) fn record(
        &self,
        key: ResolutionKey,
        when: ResolutionTime,
        result: Result<ResolvedSelector, AwsError>,
    ) {
        self.with_entries(|all| {
            let entry = all.entry(key).or_default();
            entry.pending = None;
            match result {
                Ok(answer) => (entry.value, entry.failure) = (Some((when, answer)), None),
                Err(error) => entry.failure = Some((when, error.to_string())),
            }
        });
    }

    /// Returns the usable result of a lookup.
    pub(super) fn resolved_selector(&self, key: &ResolutionKey) -> Option<ResolvedSelector> {
        let now = Instant::now();
        self.with_entries(|all| all.get(key)?.current(now)?.1.ok().cloned())
    }

    /// Returns the resolved and the unresolved selectors. With a `kubernetes` version, only images
    /// of that version are included. Expired entries are removed.
    pub(super) fn snapshot(&self, kubernetes: Option<&str>, now: Instant) -> Resolved {
        let is_of = |key: &ResolutionKey| {
            key.part != NodeClassField::Image
                || kubernetes.is_none_or(|version| key.kubernetes == version)
        };
        let mut resolved = Resolved::default();
        self.with_entries(|all| {
            all.retain(|_, entry| entry.current(now).is_some());
            for (key, entry) in all.iter().filter(|(key, _)| is_of(key)) {
                let Some((when, value)) = entry.current(now) else { continue };
                let words = key.words.clone();
                if value.is_ok() {
                    let oldest = resolved.resolved_at.map_or(when.time, |time| time.min(when.time));
                    resolved.resolved_at = Some(oldest);
                }
                match value {
                    Ok(ResolvedSelector::Images(choices)) => {
                        resolved.images.insert(words, choices.clone());
                    }
                    Ok(ResolvedSelector::Subnets(subnets)) => {
                        let ids =
                            subnets.values().flatten().map(|subnet| subnet.id.as_str().into());
                        resolved.subnets.insert(words, ids.collect());
                    }
                    Ok(ResolvedSelector::SecurityGroups(ids)) => {
                        let ids = ids.iter().map(|id| id.as_str().into());
                        resolved.security_groups.insert(words, ids.collect());
                    }
                    Err(why) => {
                        let (part, reason) = (key.part, why.to_owned());
                        resolved.unread.insert(UnresolvedTerm { part, words, reason });
                    }
                }
            }
        });
        resolved
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::model::observed::Hardware;

    fn test_key(part: NodeClassField, words: &str, kubernetes: &str) -> ResolutionKey {
        ResolutionKey { part, words: words.to_owned(), kubernetes: kubernetes.to_owned() }
    }

    fn key() -> ResolutionKey {
        test_key(NodeClassField::SecurityGroups, "tag a=b", "")
    }

    fn found(id: &str) -> ResolvedSelector {
        ResolvedSelector::SecurityGroups(vec![id.to_owned()])
    }

    fn failed() -> AwsError {
        AwsError::Missing("no response".to_owned())
    }

    #[test]
    fn results_are_fresh_then_usable_then_expire() {
        let (cache, started) = (ResolutionCache::default(), ResolutionTime::now());
        let at = |minutes| started.at + Duration::from_mins(minutes);
        let when = |minutes| ResolutionTime { at: at(minutes), ..started };
        let is_due = |minutes| cache.is_due(&key(), at(minutes));
        let note = |result, minutes| cache.record(key(), when(minutes), result);
        let resolved = |minutes| cache.snapshot(Some("1.33"), at(minutes));
        let known = |minutes| resolved(minutes).security_groups.remove("tag a=b");
        assert!(is_due(0) && resolved(0).is_empty());
        note(Ok(found("sg-1")), 0);
        assert!(!is_due(4) && is_due(5), "it counts for a while");
        note(Err(failed()), 5);
        assert!(!cache.is_due(&key(), at(5) + Duration::from_secs(29)));
        assert!(is_due(6), "it is asked again, and not at once");
        assert_eq!(known(14), Some(["sg-1".into()].into()), "what was known stands in");
        assert!(resolved(14).unread.is_empty());
        note(Err(failed()), 14);
        assert_eq!(known(15), None, "and not for ever");
        let unread = resolved(15).unread.pop_first().expect("an unread selector");
        assert_eq!(
            (unread.part, unread.reason.as_str()),
            (NodeClassField::SecurityGroups, "no response")
        );
        note(Ok(found("sg-2")), 16);
        assert_eq!(known(16), Some(["sg-2".into()].into()));
        assert!(resolved(31).is_empty(), "all entries expired");
    }

    #[test]
    fn pending_lookup_is_unread_and_due() {
        let (cache, when) = (ResolutionCache::default(), ResolutionTime::now());
        let unread = || cache.snapshot(None, when.at).unread.len();
        cache.mark_pending(&key(), when);
        assert_eq!(unread(), 1);
        assert!(cache.is_due(&key(), when.at));
        cache.record(key(), when, Ok(found("sg-1")));
        cache.mark_pending(&key(), when);
        assert_eq!((unread(), cache.resolved_selector(&key()).is_some()), (0, true));
    }

    #[test]
    fn images_are_cached_per_kubernetes_version() {
        let (cache, when) = (ResolutionCache::default(), ResolutionTime::now());
        let images = |id: &str| {
            let [hardware, ..] = Hardware::ALL;
            ResolvedSelector::Images(vec![ImageChoice { id: id.into(), hardware }])
        };
        for (version, id) in [("1.33", "ami-33"), ("1.34", "ami-34")] {
            cache.record(
                test_key(NodeClassField::Image, "al2023@latest", version),
                when,
                Ok(images(id)),
            );
        }
        cache.record(test_key(NodeClassField::Image, "al2023@latest", "1.35"), when, Err(failed()));
        cache.record(key(), when, Ok(found("sg-1")));
        for (version, id) in [("1.33", "ami-33"), ("1.34", "ami-34")] {
            assert!(
                !cache.is_due(&test_key(NodeClassField::Image, "al2023@latest", version), when.at)
            );
            let resolved = cache.snapshot(Some(version), when.at);
            let known = resolved.images["al2023@latest"].iter().map(|choice| choice.id.as_str());
            assert_eq!(known.collect::<Vec<_>>(), [id]);
            assert!(resolved.unread.is_empty(), "what failed, failed for another version");
            assert_eq!(resolved.security_groups.len(), 1, "which are the same for all");
        }
        let resolved = cache.snapshot(Some("1.35"), when.at);
        assert_eq!((resolved.images.len(), resolved.unread.len()), (0, 1));
        assert_eq!(
            cache.snapshot(None, when.at).unread.len(),
            1,
            "without a version, all are included"
        );
    }

    #[test]
    fn snapshot_time_is_the_oldest_lookup() {
        let (cache, newer) = (ResolutionCache::default(), ResolutionTime::now());
        let older = ResolutionTime { time: newer.time - SignedDuration::from_mins(4), ..newer };
        cache.record(
            test_key(NodeClassField::SecurityGroups, "tag c=d", ""),
            newer,
            Ok(found("sg-2")),
        );
        cache.record(key(), older, Ok(found("sg-1")));
        assert_eq!(cache.snapshot(None, newer.at).resolved_at, Some(older.time));
    }
}
