//! Limits on what a state that was read may claim.

use jiff::{SignedDuration, Timestamp};

use super::PersistedState;
use crate::controller::authorization::SUSPENSION_MAX;
use crate::controller::gates::BREAK_GLASS_MAX;
#[cfg(feature = "cluster")]
use crate::controller::status::Breaker;
use crate::controller::status::Suspension;
use crate::model::saturating_time::later;
use crate::model::unavailable_offerings::ExclusionLimits;

/// A newer commit waits for CI at most this long.
const CI_WAIT_MAX: SignedDuration = SUSPENSION_MAX;

impl PersistedState {
    /// Clamps times to what a controller would have written: no decision was made in the future,
    /// and none lasts longer than an operator may request.
    pub(in crate::controller) fn clamp_times(&mut self, now: Timestamp) {
        let clamp = |request: &mut Suspension, most: SignedDuration| {
            request.since = request.since.min(now);
            request.until = request.until.map(|until| until.min(later(request.since, most)));
        };
        if let Some(request) = &mut self.break_glass {
            clamp(request, BREAK_GLASS_MAX);
        }
        if let Some(request) = &mut self.suspended {
            clamp(request, SUSPENSION_MAX);
        }
        for approval in &mut self.approvals {
            approval.at = approval.at.min(now);
        }
        // Exclusions of applies are the longest.
        self.unavailable_offerings.end_by(later(now, ExclusionLimits::APPLY.longest));
        self.forgiven_before = self.forgiven_before.map(|before| before.min(now));
        self.ci_wait_until = self.ci_wait_until.map(|until| until.min(later(now, CI_WAIT_MAX)));
    }

    /// Returns the state without everything that permits a change. What delays or forbids changes
    /// stays: breakers, suspensions, budgets, rules, and launches in doubt.
    #[cfg(feature = "cluster")]
    pub(in crate::controller) fn without_decisions(self) -> Self {
        Self {
            served_commit: None,
            verified: None,
            // It lets a commit explain a mass removal.
            baseline: None,
            break_glass: None,
            approvals: Vec::new(),
            confirmed_removals: Vec::new(),
            forgiven_before: None,
            interruptions: Vec::new(),
            ..self
        }
    }

    /// Returns what counts of a state without a valid seal. Its decisions do not. Beside a state
    /// that is `known`, only its restrictions are added to those of the known one.
    #[cfg(feature = "cluster")]
    pub(in crate::controller) fn unsealed(self, known: Option<Self>) -> Self {
        let read = self.without_decisions();
        let Some(known) = known else { return read };
        let (served_commit, verified) = (known.served_commit.clone(), known.verified.clone());
        let known = known.without_decisions();
        let mut breakers = known.breakers.clone();
        let is_new = |breaker: &Breaker| known.breakers.iter().all(|one| one.name != breaker.name);
        breakers.extend(read.breakers.into_iter().filter(is_new));
        Self {
            served_commit,
            verified,
            suspended: known.suspended.clone().or(read.suspended),
            breakers,
            ci_apply: read.ci_apply,
            ..known
        }
    }

    /// Returns what counts of an old state with a valid seal: no decision of an operator that
    /// permits a change. Facts stay: without them, the controller would check less.
    #[cfg(feature = "cluster")]
    pub(in crate::controller) fn outdated(mut self) -> Self {
        let served_commit = self.served_commit.take();
        let verified = self.verified.take();
        let interruptions = std::mem::take(&mut self.interruptions);
        Self { served_commit, verified, interruptions, ..self.without_decisions() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ApprovalRecord;
    use super::*;
    use crate::testing::controller::at;

    #[test]
    fn times_of_a_read_state_are_clamped() {
        let hour = 3_600;
        let request = |since: i64, until: i64| {
            Some(Suspension {
                reason: "r".into(),
                until: Some(at(until)),
                since: at(since),
                by: "eve".into(),
            })
        };
        let mut state = PersistedState {
            break_glass: request(-hour, 9_000 * hour),
            suspended: request(9_000 * hour, 9_999 * hour),
            approvals: vec![ApprovalRecord::new("a".into(), "eve".into(), at(9_000 * hour))],
            forgiven_before: Some(at(9_000 * hour)),
            ..PersistedState::default()
        };
        state.clamp_times(at(0));
        let until = |request: &Option<Suspension>| request.as_ref().and_then(|r| r.until);
        assert_eq!(until(&state.break_glass), Some(at(3 * hour)), "it began an hour ago");
        assert_eq!(until(&state.suspended), Some(at(7 * 24 * hour)));
        assert_eq!((state.approvals[0].at, state.forgiven_before), (at(0), Some(at(0))));
        state.forget(at(24 * hour + 1));
        assert!(state.approvals.is_empty(), "an approval is valid for a day");
    }
}
