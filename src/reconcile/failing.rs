//! What fails of what the loop does: the last error of each kind of deed, until it works again.
//!
//! Reads of the repository and of the world are not among them: those stand with their source. Invariant:
//! one entry for each kind, whatever fails and however often; text of others is cut to a length.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::event::{Ending, Event};
use super::kept::later;
use super::status::{Deed, Failure};
use crate::apply::{self, Step};
use crate::port::PortError;

/// How long a failure is shown that does not come again: longer than between any two tries.
const SHOWN: SignedDuration = SignedDuration::from_mins(15);
/// Most characters of an error that are kept.
const WHY_MAX: usize = 600;

/// What fails.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Failing(BTreeMap<Deed, Failure>);

/// Something that was done: what, to which object, and the error that it ended with, where it did.
pub(super) type Done<'e> = (Deed, &'e str, Option<&'e PortError>);

/// Returns what `event` says was done; `None` where it says nothing of the kind.
pub(super) fn done(event: &Event) -> Option<Done<'_>> {
    Some(match event {
        Event::Recalled(end) => (Deed::Recall, "", end.as_ref().err()),
        Event::Saved(end) => (Deed::Save, "", end.as_ref().err()),
        Event::Cordoned { instance, end, .. } => {
            (Deed::Cordon, instance.as_str(), end.as_ref().err())
        }
        Event::Shielded { node, end } => (Deed::Cordon, node.as_str(), end.as_ref().err()),
        Event::Evicted { instance, ends } => {
            (Deed::Evict, instance.as_str(), ends.iter().find_map(|end| end.as_ref().err()))
        }
        Event::Ended { instance, end } => {
            let error = match end {
                Ok(Ending::Told | Ending::Held) => None,
                Ok(Ending::Unread(error)) | Err(error) => Some(error),
            };
            (Deed::End, instance.as_str(), error)
        }
        Event::NodeDeleted { instance, end } => {
            (Deed::DeleteNode, instance.as_str(), end.as_ref().err())
        }
        // Receipts of a queue tell nobody anything.
        Event::Acknowledged { receipt: _, end } => (Deed::Acknowledge, "", end.as_ref().err()),
        Event::Nominated { pod, end } => (Deed::Nominate, pod.as_str(), end.as_ref().err()),
        Event::Head(_)
        | Event::Commit { .. }
        | Event::World(_)
        | Event::Unplanned { .. }
        | Event::Planned { .. }
        | Event::Progress { .. }
        | Event::Turning { .. }
        | Event::Applied { .. }
        | Event::Signal(_)
        | Event::Timer => return None,
    })
}

impl Failing {
    /// Notes how something ended.
    pub(super) fn heed(&mut self, event: &Event, now: Timestamp) {
        if let Event::Progress { event, .. } = event {
            self.heed_apply(event, now);
        } else if let Some((deed, of, error)) = done(event) {
            match error {
                Some(error) => self.failed(deed, of, &error.to_string(), now),
                None => self.worked(deed, of),
            }
        }
    }

    fn heed_apply(&mut self, event: &apply::Event, now: Timestamp) {
        let Some(address) = &event.address else { return };
        if let Step::Retrying { why } = &event.step {
            self.failed(Deed::Apply, address.as_str(), why, now);
        } else if event.step != Step::Unanswered {
            // Whatever else is told of it came about.
            self.worked(Deed::Apply, address.as_str());
        }
    }

    pub(super) fn failed(&mut self, deed: Deed, of: &str, why: &str, now: Timestamp) {
        let before = self.0.get(&deed).filter(|before| is_shown(before, now));
        let (since, times) = before.map_or((now, 0), |before| (before.since, before.times));
        let why = why.chars().take(WHY_MAX).collect();
        let (of, times) = (of.to_owned(), times.saturating_add(1));
        self.0.insert(deed, Failure { of, why, since: since.min(now), last: now, times });
    }

    /// Forgets what failed of an object where the same works now; that it works of another says nothing.
    fn worked(&mut self, deed: Deed, of: &str) {
        if self.0.get(&deed).is_some_and(|failure| failure.of == of) {
            self.0.remove(&deed);
        }
    }

    /// Forgets what failed of an object with which nothing more is to be done.
    pub(super) fn forget(&mut self, of: &str) {
        self.0.retain(|_, failure| failure.of != of);
    }

    /// Returns what fails at `now`.
    pub(super) fn shown(&self, now: Timestamp) -> BTreeMap<Deed, Failure> {
        let shown = self.0.iter().filter(|(_, failure)| is_shown(failure, now));
        shown.map(|(deed, failure)| (*deed, failure.clone())).collect()
    }
}

fn is_shown(failure: &Failure, now: Timestamp) -> bool {
    now < later(failure.last, SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::CordonedFor;
    use crate::port::{CordonOutcome, Fate};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).expect("a time")
    }

    fn cordoned(instance: &str, error: Option<&str>) -> Event {
        let error = error.map(|reason| PortError {
            verb: "cordon node".to_owned(),
            reason: reason.to_owned(),
            fate: Fate::Unknown,
        });
        let end = error.map_or(Ok(CordonOutcome::Written), Err);
        Event::Cordoned { instance: instance.into(), mark: Some(CordonedFor::Leaving), end }
    }

    #[test]
    fn a_failure_is_counted_until_the_same_works_of_the_same() {
        let mut failing = Failing::default();
        failing.heed(&cordoned("i-1", Some("denied")), at(0));
        failing.heed(&cordoned("i-1", Some("denied again")), at(5));
        failing.heed(&cordoned("i-2", None), at(6));
        let shown = failing.shown(at(7));
        let failure = shown.get(&Deed::Cordon).expect("it fails");
        assert_eq!((failure.of.as_str(), failure.times), ("i-1", 2));
        assert_eq!((failure.since, failure.last), (at(0), at(5)));
        assert!(failure.why.contains("denied again"), "{}", failure.why);
        failing.heed(&cordoned("i-1", None), at(8));
        assert_eq!(failing.shown(at(8)), BTreeMap::new());
    }

    #[test]
    fn what_does_not_come_again_is_shown_for_a_while_and_is_bounded() {
        let mut failing = Failing::default();
        failing.heed(&cordoned("i-1", Some(&"x".repeat(100_000))), at(0));
        assert_eq!(failing.shown(at(899)).len(), 1);
        assert_eq!(failing.shown(at(900)).len(), 0);
        failing.heed(&cordoned("i-2", Some("denied")), at(1_000));
        let shown = failing.shown(at(1_000));
        assert_eq!(shown.values().map(|failure| failure.times).sum::<u32>(), 1, "it began anew");
        failing.heed(&cordoned("i-3", Some(&"x".repeat(100_000))), at(1_001));
        let shown = failing.shown(at(1_001));
        assert!(shown.values().all(|failure| failure.why.len() <= WHY_MAX && failure.times == 2));
        failing.forget("i-3");
        assert_eq!(failing.shown(at(1_001)), BTreeMap::new());
    }
}
