//! Requests of operators to a running controller.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::gates::{BREAK_GLASS_MAX, INEFFECTIVE_LAUNCHES_BREAKER};
use super::mass_removal::unreplaced_removals;
use super::persisted_state::ApprovalRecord;
use super::reconcile::{instance_of, retired_rows};
use super::state::ControllerState;
use super::status::Suspension;
use crate::model::ids::{Digest, InstanceId};
use crate::model::saturating_time::later;
use crate::plan::Plan;

/// A request of an operator. The sender has checked that the operator is authorized.
///
/// The controller receives requests from a bounded `tokio::sync::mpsc` channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum AuthorizedRequest {
    /// Approve the plan with this digest.
    Approve {
        /// Digest of the plan.
        digest: Digest,
        /// Operator.
        by: String,
    },
    /// Confirm the planned removal of an instance, for pools in `spec.controller.confirm`.
    Confirm {
        /// The instance. An address may later belong to another instance.
        instance: InstanceId,
        /// Operator.
        by: String,
    },
    /// Start nothing new until the end of the suspension.
    Suspend {
        /// Reason.
        reason: String,
        /// End.
        until: Option<Timestamp>,
        /// Operator.
        by: String,
    },
    /// End a suspension.
    Resume {
        /// Operator.
        by: String,
    },
    /// Bypass approval, windows and the wait for CI. Safety rules still apply.
    BreakGlass {
        /// Reason.
        reason: String,
        /// End; at most [`BREAK_GLASS_MAX`](super::gates::BREAK_GLASS_MAX) from now.
        until: Timestamp,
        /// Operator.
        by: String,
    },
    /// End a break-glass early.
    EndBreakGlass {
        /// Operator.
        by: String,
    },
    /// Reset a latched breaker.
    Reset {
        /// Name of the breaker.
        breaker: String,
        /// Digest of the plan that the reset approves, for the mass-removal breaker. Without it,
        /// the next plan that removes as much latches again.
        digest: Option<Digest>,
        /// Operator.
        by: String,
    },
}

impl ControllerState {
    /// Applies a request. Unknown breakers and unplanned removals are ignored.
    pub(super) fn on_request(&mut self, request: AuthorizedRequest) {
        let now = self.now;
        let is_planned = |wanted: &InstanceId| {
            let rows = self.planning.current.iter().flat_map(|current| retired_rows(&current.plan));
            rows.filter_map(instance_of).any(|removed| removed == *wanted)
        };
        let confirmed = if let AuthorizedRequest::Confirm { instance, .. } = &request {
            Some(instance.clone()).filter(is_planned)
        } else {
            None
        };
        let Some(persisted) = &mut self.persistence.loaded else { return };
        let since = now;
        match request {
            AuthorizedRequest::Approve { digest, by } => {
                let approved = digest.clone();
                persisted.approvals.push(ApprovalRecord::new(digest, by, now));
                if let Some(current) = &self.planning.current {
                    persisted.record_approved_rows(&current.plan);
                }
                let planned = self.planning.current_digest() == Some(&approved);
                if let Some(last) = self.planning.last.as_ref().filter(|_| planned) {
                    self.revisions.accept_rules(&last.commit, persisted);
                }
            }
            AuthorizedRequest::Confirm { .. } => {
                // A confirmation of an unplanned removal must not revoke an earlier one.
                if let Some(instance) = confirmed {
                    persisted.confirmed_removals.retain(|known| *known != instance);
                    persisted.confirmed_removals.push(instance);
                }
            }
            AuthorizedRequest::Suspend { reason, until, by } => {
                persisted.suspended = Some(Suspension { reason, until, since, by });
            }
            AuthorizedRequest::Resume { .. } => persisted.suspended = None,
            AuthorizedRequest::BreakGlass { reason, until, by } => {
                let until = Some(until.min(later(now, BREAK_GLASS_MAX)));
                persisted.break_glass = Some(Suspension { reason, until, since, by });
            }
            AuthorizedRequest::EndBreakGlass { .. } => persisted.break_glass = None,
            AuthorizedRequest::Reset { breaker, digest, by } => {
                return self.reset_breaker(&breaker, digest.as_ref(), by);
            }
        }
        self.planning.replan_at = now;
    }

    /// Resets a breaker. A repeated or unknown reset changes nothing.
    fn reset_breaker(&mut self, breaker: &str, digest: Option<&Digest>, by: String) {
        let now = self.now;
        let Some(persisted) = &mut self.persistence.loaded else { return };
        let latched = persisted.breakers.iter().position(|latched| latched.name == breaker);
        let Some(latched) = latched.map(|at| persisted.breakers.remove(at)) else { return };
        if breaker == INEFFECTIVE_LAUNCHES_BREAKER {
            persisted.forgiven_before = Some(now);
            persisted.quarantine.clear();
        }
        // The reset approves only the named plan, and only up to the removals that latched the
        // breaker.
        let plan = self.planning.current.as_ref().map(|current| &current.plan);
        let seen = |plan: &&Arc<Plan>| {
            let few = latched.removes.is_some_and(|most| unreplaced_removals(plan) <= most);
            few && digest == Some(&plan.capacity.digest)
        };
        if let Some(plan) = plan.filter(seen) {
            let digest = plan.capacity.digest.clone();
            persisted.approvals.push(ApprovalRecord::new(digest, by, now));
            persisted.record_approved_rows(plan);
        }
        self.planning.replan_at = now;
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::controller::gates::MASS_REMOVAL_BREAKER;
    use crate::controller::persisted_state::Quarantine;
    use crate::controller::{ApprovedBy, Event, PersistedState, Revision, Signal};
    use crate::model::desired::{AppliedBy, ApprovalRule};
    use crate::testing::controller::{ControllerHarness, at, world};
    use crate::testing::sample_plan;

    const HOUR: i64 = 3_600;

    /// Returns a leader whose plans wait for approval.
    fn controller_awaiting_approval() -> ControllerHarness {
        let mut harness = ControllerHarness::started();
        harness.step_at(1, Event::Signal(Signal::LeaseGained));
        harness.step_at(1, Event::StateLoaded(Ok(Box::<PersistedState>::default())));
        harness.edit_revision(|revision| revision.controller.approval = ApprovalRule::Digest);
        harness
    }

    fn send_request(harness: &mut ControllerHarness, seconds: i64, request: AuthorizedRequest) {
        harness.step_at(seconds, Event::Signal(Signal::Request(request)));
    }

    fn break_glass_until(until: i64) -> AuthorizedRequest {
        AuthorizedRequest::BreakGlass { reason: "r".into(), until: at(until), by: "carol".into() }
    }

    /// Finishes planning with a launch plan, and returns how its apply was approved.
    fn approval_of_planned(harness: &mut ControllerHarness, seconds: i64) -> Option<ApprovedBy> {
        plan_with_digest(harness, seconds, sample_plan::plan().capacity.digest.as_str());
        harness.state().applies.runs.values().next().map(|run| run.record.approved.clone())
    }

    /// Finishes planning with a launch plan of that digest.
    fn plan_with_digest(harness: &mut ControllerHarness, seconds: i64, digest: &str) {
        harness.observe(seconds, world(seconds));
        if harness.state().planning.run.is_none() {
            harness.modify(|state| state.planning.replan_at = at(seconds));
            harness.step_at(seconds, Event::Timer);
        }
        let mut plan = sample_plan::plan().only(crate::plan::wire::WaveStep::Launch);
        plan.capacity.digest = digest.into();
        harness.finish_planning(seconds, plan.clone());
        // Plans that started before a read or a request do not count.
        if harness.state().applies.runs.is_empty() && harness.state().planning.run.is_some() {
            harness.finish_planning(seconds, plan);
        }
    }

    #[test]
    fn break_glass_approves_and_is_recorded() {
        let mut harness = controller_awaiting_approval();
        assert_eq!(approval_of_planned(&mut harness, 10), None);
        send_request(&mut harness, 11, break_glass_until(HOUR));
        let by = ApprovedBy::BreakGlass { who: "carol".into(), reason: "r".into() };
        assert_eq!(approval_of_planned(&mut harness, 20), Some(by));
        let break_glass = harness.state().status().break_glass.expect("break-glass is active");
        assert_eq!((break_glass.by.as_str(), break_glass.until), ("carol", Some(at(HOUR))));
    }

    #[test]
    fn ended_break_glass_approves_nothing() {
        let ends: [fn(&mut ControllerHarness); 2] = [
            |harness| {
                send_request(harness, 30, AuthorizedRequest::EndBreakGlass { by: "carol".into() });
            },
            // The plan itself is the first event after the end.
            |_| (),
        ];
        for end in ends {
            let mut harness = controller_awaiting_approval();
            send_request(&mut harness, 11, break_glass_until(40));
            harness.observe(12, world(12));
            end(&mut harness);
            assert_eq!(approval_of_planned(&mut harness, 41), None);
            assert_eq!(harness.state().status().break_glass, None);
        }
    }

    #[test]
    fn break_glass_duration_is_limited() {
        let mut harness = controller_awaiting_approval();
        send_request(&mut harness, 11, break_glass_until(HOUR * 24 * 365));
        let until = at(11) + BREAK_GLASS_MAX;
        assert_eq!(
            harness.state().status().break_glass.and_then(|break_glass| break_glass.until),
            Some(until)
        );
        // A persisted break-glass without an end has expired.
        let mut persisted = harness.state().persistence.loaded.clone().expect("loaded");
        persisted.break_glass.as_mut().expect("it is broken").until = None;
        persisted.forget(at(12));
        assert_eq!(persisted.break_glass, None);
    }

    #[test]
    fn unstarted_plan_is_recorded_as_superseded_after_a_minute() {
        let digests = |harness: &ControllerHarness| {
            let all = harness.state().status().superseded.into_iter();
            all.map(|superseded| superseded.digest.to_string()).collect::<Vec<_>>()
        };
        let mut harness = controller_awaiting_approval();
        let becomes = |harness: &mut ControllerHarness, now: i64, digest: &str| {
            plan_with_digest(harness, now, digest);
            let current = harness.state().planning.current.as_ref().expect("a plan");
            assert_eq!(current.plan.capacity.digest.as_str(), digest);
        };
        becomes(&mut harness, 10, "a");
        becomes(&mut harness, 69, "b");
        assert_eq!(digests(&harness), [""; 0], "it did not stand for long");
        becomes(&mut harness, 100, "b");
        becomes(&mut harness, 130, "c");
        assert_eq!(digests(&harness), ["b"]);
        becomes(&mut harness, 190, "b");
        assert_eq!(digests(&harness), ["c"], "what is planned again is not over");
        for (now, digest) in [(250, "d"), (310, "e"), (370, "f"), (430, "g"), (490, "h")] {
            becomes(&mut harness, now, digest);
        }
        assert_eq!(digests(&harness), ["g", "f", "e", "d", "b"], "no more than a few");
        // An apply may have applied the plan before it returned the lease.
        assert_eq!(harness.state().leadership.leader_since(), Some(at(1)));
        harness.modify(|state| state.leadership.gain(at(500)));
        becomes(&mut harness, 560, "x");
        assert_eq!(digests(&harness)[0], "g");
        // A started plan has its own object and is not superseded.
        send_request(
            &mut harness,
            561,
            AuthorizedRequest::Approve { digest: "i".into(), by: "carol".into() },
        );
        becomes(&mut harness, 630, "i");
        let run = harness.state().applies.runs.keys().next().copied().expect("it is begun");
        harness.step_at(
            631,
            Event::ApplyFinished { ticket: run, result: Err("the world has moved".into()) },
        );
        becomes(&mut harness, 700, "j");
        assert_eq!(digests(&harness)[0], "x");
    }

    #[test]
    fn only_planned_removals_can_be_confirmed() {
        let mut harness = controller_awaiting_approval();
        approval_of_planned(&mut harness, 10);
        let whole = sample_plan::plan();
        let known = retired_rows(&whole).find_map(instance_of).expect("a removal");
        let persisted = whole.resource_changes.iter().filter_map(instance_of);
        let persisted: Vec<InstanceId> = persisted
            .filter(|id| {
                !retired_rows(&whole).filter_map(instance_of).any(|removed| removed == *id)
            })
            .collect();
        assert!(!persisted.is_empty(), "some instances stay");
        harness.modify(|state| {
            state.planning.current.as_mut().expect("a plan").plan = Arc::new(whole);
        });
        let strange = [InstanceId::from("i-0fffffffffffffff0"), known.clone()];
        for instance in strange.into_iter().chain(persisted) {
            send_request(
                &mut harness,
                20,
                AuthorizedRequest::Confirm { instance, by: "carol".into() },
            );
        }
        let confirmed = |harness: &ControllerHarness| {
            harness.state().persistence.loaded.as_ref().expect("loaded").confirmed_removals.clone()
        };
        assert_eq!(confirmed(&harness), std::slice::from_ref(&known));
        // A repeated confirmation without a plan revokes nothing.
        harness.modify(|state| state.planning.current = None);
        send_request(
            &mut harness,
            21,
            AuthorizedRequest::Confirm { instance: known.clone(), by: "dave".into() },
        );
        assert_eq!(confirmed(&harness), [known]);
    }

    #[test]
    fn mass_removal_reset_approves_only_the_named_plan() {
        let mut harness = controller_awaiting_approval();
        approval_of_planned(&mut harness, 10);
        let whole = sample_plan::plan();
        let digest = whole.capacity.digest.clone();
        assert!(unreplaced_removals(&whole) > 0, "it removes something");
        harness.modify(|state| {
            state.planning.current.as_mut().expect("a plan").plan = Arc::new(whole);
        });
        let resets = |breaker: &str, digest: Option<Digest>| AuthorizedRequest::Reset {
            breaker: breaker.to_owned(),
            digest,
            by: "carol".to_owned(),
        };
        let another = Some(Digest::from("sha256:another"));
        for (seen, most, approves) in [
            (Some(digest.clone()), 100, 1),
            (another, 100, 0),
            (None, 100, 0),
            // The plan has grown since.
            (Some(digest.clone()), 0, 0),
        ] {
            harness.modify(|state| {
                let persisted = state.persistence.loaded.as_mut().expect("loaded");
                persisted.approvals.clear();
                persisted.latch(
                    MASS_REMOVAL_BREAKER,
                    "it removes much".to_owned(),
                    Some(most),
                    at(19),
                );
                let quarantine =
                    Quarantine { until: at(9_000), times: 1, why: "none helped".to_owned() };
                persisted.quarantine.insert("web".into(), quarantine);
            });
            send_request(&mut harness, 20, resets(MASS_REMOVAL_BREAKER, seen.clone()));
            // A double click resets once.
            send_request(&mut harness, 20, resets(MASS_REMOVAL_BREAKER, seen.clone()));
            let persisted = harness.state().persistence.loaded.as_ref().expect("loaded");
            assert_eq!(
                (persisted.approvals.len(), persisted.breakers.len()),
                (approves, 0),
                "{seen:?}"
            );
            assert!(!persisted.quarantine.is_empty(), "that is another breaker");
        }
        for (latched, left) in [(false, 1), (true, 0)] {
            harness.modify(|state| {
                let persisted = state.persistence.loaded.as_mut().expect("loaded");
                if latched {
                    persisted.latch(
                        INEFFECTIVE_LAUNCHES_BREAKER,
                        "none helped".to_owned(),
                        None,
                        at(19),
                    );
                }
            });
            send_request(&mut harness, 20, resets(INEFFECTIVE_LAUNCHES_BREAKER, None));
            let persisted = harness.state().persistence.loaded.as_ref().expect("loaded");
            assert_eq!(persisted.quarantine.len(), left);
        }
    }

    #[test]
    fn break_glass_skips_the_wait_for_ci() {
        for broken in [false, true] {
            let mut harness = controller_awaiting_approval();
            if broken {
                send_request(&mut harness, 11, break_glass_until(HOUR));
            }
            let mut revision =
                Revision::clone(harness.state().revisions.served.as_ref().expect("it was read"));
            revision.commit = "2".to_owned();
            revision.controller.applied_by = AppliedBy::Ci;
            revision.controller.ci_timeout = SignedDuration::from_hours(1);
            harness.step_at(12, Event::BranchRead(Ok(Arc::new(revision))));
            let served = harness.state().status().repository.commit;
            assert_eq!(served.as_deref(), Some(if broken { "2" } else { "1" }));
        }
    }
}
