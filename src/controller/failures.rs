//! Failing actions of the controller: the last error of each kind of action, until it works again.
//!
//! Failed reads of the repository and the world are reported with their source instead. Invariant:
//! one entry per kind of action, however often it fails; error text is cut to a length.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::event::{Event, TerminateOutcome};
use super::status::{ActionFailure, ControllerAction};
use crate::apply::ports::PortError;
use crate::apply::{self, NominationAnswer, Step};
use crate::model::ids::Uid;
use crate::model::saturating_time::later;

/// A failure that does not recur is shown this long: longer than any retry interval.
const VISIBLE_FOR: SignedDuration = SignedDuration::from_mins(15);
/// Most characters of an error that are stored.
const REASON_CHARS_MAX: usize = 600;

/// Failing actions, by kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ActionFailures(BTreeMap<ControllerAction, ActionFailure>);

/// A finished action: its kind, its object, and its error, if any.
pub(super) type ActionOutcome<'e> = (ControllerAction, &'e str, Option<&'e PortError>);

/// Returns the action that `event` reports, or `None`.
pub(super) fn action_outcome(event: &Event) -> Option<ActionOutcome<'_>> {
    Some(match event {
        Event::StateLoaded(end) => (ControllerAction::LoadState, "", end.as_ref().err()),
        Event::StateSaved(end) => (ControllerAction::SaveState, "", end.as_ref().err()),
        Event::Cordoned { instance, result: end } => {
            (ControllerAction::Cordon, instance.as_str(), end.as_ref().err())
        }
        Event::Uncordoned { instance, result: end } => {
            (ControllerAction::Uncordon, instance.as_str(), end.as_ref().err())
        }
        Event::CordonedWithoutLease { node, result: end } => {
            (ControllerAction::Cordon, node.as_str(), end.as_ref().err())
        }
        Event::Evicted { instance, results } => (
            ControllerAction::Evict,
            instance.as_str(),
            results.iter().find_map(|result| result.as_ref().err()),
        ),
        Event::TerminateFinished { instance, result: end } => {
            let error = match end {
                Ok(TerminateOutcome::Called | TerminateOutcome::NodeChanged) => None,
                Ok(TerminateOutcome::NodeUnreadable(error)) | Err(error) => Some(error),
            };
            (ControllerAction::Terminate, instance.as_str(), error)
        }
        Event::NodeDeleted { instance, result: end } => {
            (ControllerAction::DeleteNode, instance.as_str(), end.as_ref().err())
        }
        // Receipts of a queue are of no use to a reader.
        Event::Acknowledged { receipt: _, result: end } => {
            (ControllerAction::Acknowledge, "", end.as_ref().err())
        }
        // A pod may be gone by now.
        Event::PodsNominated(answers) => {
            let are_all_refused = answers.iter().all(|(.., answer)| answer.is_err());
            let refused = refused_nomination(answers).filter(|_| are_all_refused);
            (ControllerAction::Nominate, "", refused.map(|(_, error)| error))
        }
        Event::NodesOpened(batch) => {
            let open =
                batch.nodes.iter().find_map(|(_, node, end)| Some((node, end.as_ref().err()?)));
            match (open, refused_nomination(&batch.nominations)) {
                (Some((node, error)), _) => {
                    (ControllerAction::OpenNodes, node.as_str(), Some(error))
                }
                (None, Some((pod, error))) => {
                    (ControllerAction::Nominate, pod.as_str(), Some(error))
                }
                (None, None) => (ControllerAction::OpenNodes, "", None),
            }
        }
        Event::BranchRead(_)
        | Event::CommitRead { .. }
        | Event::Observed(_)
        | Event::PlannerMissing { .. }
        | Event::Planned { .. }
        | Event::ApplyProgressed { .. }
        | Event::OfferingAttemptRequested { .. }
        | Event::ApplyFinished { .. }
        | Event::Signal(_)
        | Event::Timer => return None,
    })
}

impl ActionFailures {
    /// Records the end of an action.
    pub(super) fn record_event(&mut self, event: &Event, now: Timestamp) {
        if let Event::ApplyProgressed { event, .. } = event {
            self.record_apply_event(event, now);
        } else if let Some((action, of, error)) = action_outcome(event) {
            match error {
                Some(error) => self.record_failure(action, of, &error.to_string(), now),
                None => self.record_success(action, of),
            }
        }
    }

    fn record_apply_event(&mut self, event: &apply::Event, now: Timestamp) {
        let Some(address) = &event.address else { return };
        if let Step::Retrying { why } = &event.step {
            self.record_failure(ControllerAction::Apply, address.as_str(), why, now);
        } else if event.step != Step::Unanswered {
            // Every other step succeeded.
            self.record_success(ControllerAction::Apply, address.as_str());
        }
    }

    pub(super) fn record_failure(
        &mut self,
        action: ControllerAction,
        of: &str,
        why: &str,
        now: Timestamp,
    ) {
        let before = self.0.get(&action).filter(|before| is_visible(before, now));
        let (since, times) = before.map_or((now, 0), |before| (before.since, before.count));
        let why = why.chars().take(REASON_CHARS_MAX).collect();
        let (of, times) = (of.to_owned(), times.saturating_add(1));
        self.0.insert(
            action,
            ActionFailure {
                object: of,
                error: why,
                since: since.min(now),
                last: now,
                count: times,
            },
        );
    }

    /// Forgets the failure of an object once the same action succeeds on it. Success on another
    /// object says nothing.
    fn record_success(&mut self, action: ControllerAction, of: &str) {
        if self.0.get(&action).is_some_and(|failure| failure.object == of) {
            self.0.remove(&action);
        }
    }

    /// Forgets the failures of an object that needs no more action.
    pub(super) fn forget(&mut self, of: &str) {
        self.0.retain(|_, failure| failure.object != of);
    }

    /// Returns the failures to show at `now`.
    pub(super) fn visible(&self, now: Timestamp) -> BTreeMap<ControllerAction, ActionFailure> {
        let visible = self.0.iter().filter(|(_, failure)| is_visible(failure, now));
        visible.map(|(action, failure)| (*action, failure.clone())).collect()
    }
}

/// Returns the first pod whose nomination failed.
fn refused_nomination(answers: &[NominationAnswer]) -> Option<(&Uid, &PortError)> {
    answers.iter().find_map(|(pod, _, answer)| Some((pod, answer.as_ref().err()?)))
}

fn is_visible(failure: &ActionFailure, now: Timestamp) -> bool {
    now < later(failure.last, VISIBLE_FOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::ports::{CallEffect, CordonOutcome};
    use crate::testing::controller::at;

    fn cordoned(instance: &str, error: Option<&str>) -> Event {
        let error = error.map(|reason| PortError {
            verb: "cordon node".to_owned(),
            reason: reason.to_owned(),
            effect: CallEffect::Unknown,
        });
        let end = error.map_or(Ok(CordonOutcome::Written), Err);
        Event::Cordoned { instance: instance.into(), result: end }
    }

    #[test]
    fn failure_counts_until_the_action_succeeds_on_the_object() {
        let mut failures = ActionFailures::default();
        failures.record_event(&cordoned("i-1", Some("denied")), at(0));
        failures.record_event(&cordoned("i-1", Some("denied again")), at(5));
        failures.record_event(&cordoned("i-2", None), at(6));
        let visible = failures.visible(at(7));
        let failure = visible.get(&ControllerAction::Cordon).expect("it fails");
        assert_eq!((failure.object.as_str(), failure.count), ("i-1", 2));
        assert_eq!((failure.since, failure.last), (at(0), at(5)));
        assert!(failure.error.contains("denied again"), "{}", failure.error);
        failures.record_event(&cordoned("i-1", None), at(8));
        assert_eq!(failures.visible(at(8)), BTreeMap::new());
    }

    #[test]
    fn failed_uncordon_is_not_shown_as_a_cordon() {
        let Event::Cordoned { instance, result } = cordoned("i-1", Some("denied")) else {
            unreachable!("it is one")
        };
        let mut failures = ActionFailures::default();
        failures.record_event(&Event::Uncordoned { instance, result }, at(0));
        let visible = failures.visible(at(1));
        let (action, failure) = visible.iter().next().expect("it fails");
        let text = crate::controller::labels::failing_action(*action, failure);
        assert_eq!(text, "Uncordoning the node of i-1");
    }

    #[test]
    fn failure_is_shown_for_a_while_and_bounded() {
        let mut failures = ActionFailures::default();
        failures.record_event(&cordoned("i-1", Some(&"x".repeat(100_000))), at(0));
        assert_eq!(failures.visible(at(899)).len(), 1);
        assert_eq!(failures.visible(at(900)).len(), 0);
        failures.record_event(&cordoned("i-2", Some("denied")), at(1_000));
        let visible = failures.visible(at(1_000));
        assert_eq!(
            visible.values().map(|failure| failure.count).sum::<u32>(),
            1,
            "it started over"
        );
        failures.record_event(&cordoned("i-3", Some(&"x".repeat(100_000))), at(1_001));
        let visible = failures.visible(at(1_001));
        assert!(
            visible
                .values()
                .all(|failure| failure.error.len() <= REASON_CHARS_MAX && failure.count == 2)
        );
        failures.forget("i-3");
        assert_eq!(failures.visible(at(1_001)), BTreeMap::new());
    }
}
