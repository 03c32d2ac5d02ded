//! The rules that plans of a commit are judged by, and their order.
//!
//! A commit does not loosen the rules it is judged by. The controller remembers the rules that it
//! served last. If the next commit has looser rules and also changes the fleet, the stricter of both
//! judge its plans. This ends when the operator approves one by digest, or when nothing is left to
//! do. A commit that changes rules alone is accepted by its merge, unless
//! its own approval was stricter than a merge and it loosens who approves.
//!
//! From strict to loose:
//!
//! | rule | order |
//! |---|---|
//! | `mode` | `observe`, `additive`, `full` |
//! | `approval` | `digest`, `policy`, `merge` |
//! | `apply.by` | `ci`, `controller` |
//! | `ciTimeout` | a longer time |
//! | `launches`, `removals` | a lower limit, a longer window |
//! | `massRemoval` | a lower limit |
//! | `settle` | a longer delay |
//! | `confirm` | more pools |
//! | `unresolved` | `hold`, `running`, `ignore` |
//! | `windows` | fewer of the same windows; none is the loosest |
//! | `keys`, `approvals` | the same keys and as many approvals; none is the loosest |
//! | policies | the same files; any change is looser, because one file may change the result of another |
//!
//! A count and a share have no order: a change of one to the other is looser. Windows, keys,
//! policies and `unresolved` cannot be combined, so where they are looser, plans need an approval by digest.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::event::Revision;
use crate::model::desired::{
    AppliedBy, ApplyConditions, ApprovalRule, ControllerSettings, CountOrShare, Mode, RateLimit,
    TrustedKey, UnresolvedPolicy, Window,
};
use crate::model::ids::PoolName;

/// The rules of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedRules {
    mode: Mode,
    approval: ApprovalRule,
    applied_by: AppliedBy,
    #[serde(default)]
    ci_timeout: SignedDuration,
    launches: RateLimit,
    removals: RateLimit,
    mass_removal: CountOrShare,
    removal_delay: SignedDuration,
    confirm_pools: BTreeSet<PoolName>,
    windows: BTreeSet<String>,
    keys: BTreeSet<String>,
    approvals: u32,
    policies: BTreeSet<String>,
    #[serde(default)]
    unresolved: UnresolvedPolicy,
    /// Digest of everything that the commit declares besides its rules.
    fleet: String,
}

/// A rule that a commit loosens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LoosenedRule {
    Mode,
    Approval,
    AppliedBy,
    CiTimeout,
    Launches,
    Removals,
    MassRemoval,
    RemovalDelay,
    Confirm,
    Windows,
    Keys,
    Policies,
    Unresolved,
}

impl LoosenedRule {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Mode => "spec.controller.mode",
            Self::Approval => "spec.controller.approval",
            Self::AppliedBy => "spec.apply.by",
            Self::CiTimeout => "spec.controller.ciTimeout",
            Self::Launches => "spec.controller.launches",
            Self::Removals => "spec.controller.removals",
            Self::MassRemoval => "spec.controller.massRemoval",
            Self::RemovalDelay => "spec.controller.settle",
            Self::Confirm => "spec.controller.confirm",
            Self::Windows => "spec.apply.windows",
            Self::Keys => "spec.apply.keys",
            Self::Policies => "spec.policies",
            Self::Unresolved => "spec.unresolved",
        }
    }

    /// Returns whether the rule decides who approves.
    fn is_about_approval(self) -> bool {
        matches!(
            self,
            Self::Approval | Self::AppliedBy | Self::CiTimeout | Self::Keys | Self::Policies
        )
    }

    /// Returns whether the stricter of two such rules cannot be formed.
    fn needs_approval(self) -> bool {
        matches!(self, Self::Windows | Self::Keys | Self::Policies | Self::Unresolved)
    }
}

impl ServedRules {
    /// Returns the rules of a revision.
    pub(super) fn of(revision: &Revision) -> Self {
        let ControllerSettings {
            mode,
            approval,
            applied_by,
            ci_timeout,
            poll: _,
            refresh: _,
            batch_idle: _,
            batch_max: _,
            removal_delay,
            launches,
            removals,
            mass_removal,
            repair_after: _,
            confirm_pools,
            steer: _,
            queue: _,
        } = &revision.controller;
        let ApplyConditions { keys, approvals, windows, windows_origin: _ } = &revision.guard;
        Self {
            mode: *mode,
            approval: *approval,
            applied_by: *applied_by,
            ci_timeout: *ci_timeout,
            launches: *launches,
            removals: *removals,
            mass_removal: *mass_removal,
            removal_delay: *removal_delay,
            confirm_pools: confirm_pools.clone(),
            windows: windows.iter().map(window_text).collect(),
            keys: keys.iter().map(key_text).collect(),
            approvals: *approvals,
            policies: revision.policies.clone(),
            unresolved: revision.unresolved,
            fleet: revision.fleet_digest.clone(),
        }
    }

    /// Returns true if only signed approvals count.
    pub(super) fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Returns the rules that are looser in `next`.
    pub(super) fn loosened_by(&self, next: &Self) -> BTreeSet<LoosenedRule> {
        use LoosenedRule as Rule;
        let windows = !self.windows.is_empty()
            && (next.windows.is_empty() || !next.windows.is_subset(&self.windows));
        let keys = !self.keys.is_empty()
            && (next.keys.is_empty()
                || !next.keys.is_subset(&self.keys)
                || next.approvals < self.approvals);
        let looser = [
            (Rule::Mode, next.mode > self.mode),
            (Rule::Approval, looseness(next.approval) > looseness(self.approval)),
            (Rule::AppliedBy, (self.applied_by, next.applied_by) == CI_TO_CONTROLLER),
            (Rule::CiTimeout, self.waits_for_ci() && next.ci_timeout < self.ci_timeout),
            (Rule::Launches, is_looser_rate(self.launches, next.launches)),
            (Rule::Removals, is_looser_rate(self.removals, next.removals)),
            (Rule::MassRemoval, is_looser_limit(self.mass_removal, next.mass_removal)),
            (Rule::RemovalDelay, next.removal_delay < self.removal_delay),
            (Rule::Confirm, !self.confirm_pools.is_subset(&next.confirm_pools)),
            (Rule::Windows, windows),
            (Rule::Keys, keys),
            (Rule::Policies, self.policies != next.policies),
            (Rule::Unresolved, next.unresolved > self.unresolved),
        ];
        looser.into_iter().filter(|(_, is_looser)| *is_looser).map(|(rule, _)| rule).collect()
    }

    /// Returns whether the merge of a commit with the rules `next` accepts what it loosens.
    pub(super) fn accepts_merge(&self, next: &Self, loosened: &BTreeSet<LoosenedRule>) -> bool {
        self.fleet == next.fleet && self.accepts_done(loosened)
    }

    /// Returns whether loosened rules are accepted once nothing of their commit is left to do.
    pub(super) fn accepts_done(&self, loosened: &BTreeSet<LoosenedRule>) -> bool {
        // Where approvers sign, a merge alone is never enough.
        let by_merge = self.approval == ApprovalRule::Merge && self.keys.is_empty();
        by_merge || !loosened.iter().any(|rule| rule.is_about_approval())
    }

    /// Returns `revision` with the stricter of its rules and these.
    pub(super) fn restrict(
        &self,
        revision: &Revision,
        loosened: &BTreeSet<LoosenedRule>,
    ) -> Revision {
        use LoosenedRule as Rule;
        let mut revision = revision.clone();
        let settings = &mut revision.controller;
        for rule in loosened {
            match rule {
                Rule::Mode => settings.mode = self.mode,
                Rule::Approval => settings.approval = self.approval,
                Rule::AppliedBy => settings.applied_by = self.applied_by,
                Rule::CiTimeout => settings.ci_timeout = self.ci_timeout,
                Rule::Launches => settings.launches = self.launches,
                Rule::Removals => settings.removals = self.removals,
                Rule::MassRemoval => settings.mass_removal = self.mass_removal,
                Rule::RemovalDelay => settings.removal_delay = self.removal_delay,
                Rule::Confirm => settings.confirm_pools.extend(self.confirm_pools.iter().cloned()),
                Rule::Windows | Rule::Keys | Rule::Policies | Rule::Unresolved => {}
            }
        }
        if loosened.iter().any(|rule| rule.needs_approval()) {
            settings.approval = ApprovalRule::Digest;
        }
        revision
    }

    /// Returns the time that CI has to apply a commit with the rules `next`, which these rules may
    /// extend.
    pub(super) fn ci_timeout(&self, next: &Self) -> SignedDuration {
        let loosened = self.loosened_by(next);
        let is_held = loosened.contains(&LoosenedRule::CiTimeout);
        if is_held && !self.accepts_merge(next, &loosened) {
            self.ci_timeout
        } else {
            next.ci_timeout
        }
    }

    fn waits_for_ci(&self) -> bool {
        self.applied_by == AppliedBy::Ci
    }

    /// Returns whether a commit with the rules `next` waits for CI, although it declares that the
    /// controller applies it.
    pub(super) fn keeps_ci(&self, next: &Self) -> bool {
        let loosened = self.loosened_by(next);
        loosened.contains(&LoosenedRule::AppliedBy) && !self.accepts_merge(next, &loosened)
    }
}

const CI_TO_CONTROLLER: (AppliedBy, AppliedBy) = (AppliedBy::Ci, AppliedBy::Controller);

fn looseness(approval: ApprovalRule) -> u8 {
    match approval {
        ApprovalRule::Digest => 0,
        ApprovalRule::Policy => 1,
        ApprovalRule::Merge => 2,
    }
}

fn is_looser_rate(before: RateLimit, next: RateLimit) -> bool {
    is_looser_limit(before.limit, next.limit) || next.window < before.window
}

fn is_looser_limit(before: CountOrShare, next: CountOrShare) -> bool {
    match (before, next) {
        (CountOrShare::Count(before), CountOrShare::Count(next))
        | (CountOrShare::Share(before), CountOrShare::Share(next)) => next > before,
        (CountOrShare::Count(_), CountOrShare::Share(_))
        | (CountOrShare::Share(_), CountOrShare::Count(_)) => true,
    }
}

fn window_text(window: &Window) -> String {
    let Window { days, from, to, zone } = window;
    let mut days: Vec<String> = days.iter().map(|day| format!("{day:?}")).collect();
    days.sort();
    let zone = zone.iana_name().unwrap_or("UTC");
    format!("{} {from}-{to} {zone}", days.join(","))
}

fn key_text(key: &TrustedKey) -> String {
    let TrustedKey { name, key } = key;
    format!("{name} {}", hex::encode(key.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::controller::operator_requests::AuthorizedRequest;
    use crate::controller::{Event, Signal};
    use crate::plan::wire::WaveStep;
    use crate::testing::controller::{ControllerHarness, at, revision, world};
    use crate::testing::sample_plan;

    /// A change of a revision.
    type RevisionEdit = fn(&mut Revision);

    fn strict() -> Revision {
        let mut revision = revision("1");
        let settings = &mut revision.controller;
        settings.mode = Mode::Observe;
        settings.approval = ApprovalRule::Digest;
        settings.applied_by = AppliedBy::Ci;
        settings.confirm_pools = ["gpu".into()].into();
        revision.policies = ["a".to_owned(), "b".to_owned()].into();
        revision.unresolved = UnresolvedPolicy::Hold;
        let windows = [(9, 10), (11, 12)].map(|(from, to)| Window {
            days: Vec::new(),
            from: from * 60,
            to: to * 60,
            zone: jiff::tz::TimeZone::UTC,
        });
        revision.guard.windows = windows.into();
        revision
    }

    #[test]
    fn each_rule_has_an_order() {
        use LoosenedRule as Rule;
        let edits: [(Rule, RevisionEdit); 15] = [
            (Rule::Mode, |r| r.controller.mode = Mode::Additive),
            (Rule::Approval, |r| r.controller.approval = ApprovalRule::Policy),
            (Rule::AppliedBy, |r| r.controller.applied_by = AppliedBy::Controller),
            (Rule::Launches, |r| r.controller.launches.limit = CountOrShare::Count(201)),
            (Rule::Launches, |r| r.controller.launches.window = SignedDuration::ZERO),
            (Rule::Removals, |r| r.controller.removals.limit = CountOrShare::Count(1)),
            (Rule::MassRemoval, |r| r.controller.mass_removal = CountOrShare::Share(100_000)),
            (Rule::RemovalDelay, |r| r.controller.removal_delay = SignedDuration::ZERO),
            (Rule::Confirm, |r| r.controller.confirm_pools = BTreeSet::new()),
            (Rule::Windows, |r| r.guard.windows = Vec::new()),
            (Rule::Windows, |r| r.guard.windows[0].to += 1),
            (Rule::Policies, |r| r.policies = ["a".to_owned(), "c".to_owned()].into()),
            (Rule::Policies, |r| _ = r.policies.insert("c".to_owned())),
            (Rule::CiTimeout, |r| r.controller.ci_timeout = SignedDuration::from_secs(1)),
            (Rule::Unresolved, |r| r.unresolved = UnresolvedPolicy::Running),
        ];
        let before = ServedRules::of(&strict());
        for (rule, edit) in edits {
            let mut next = strict();
            edit(&mut next);
            let rules = ServedRules::of(&next);
            let loosened = before.loosened_by(&rules);
            assert_eq!(loosened, BTreeSet::from([rule]));
            // The way back is stricter, except between a count and a share.
            let back = rules.loosened_by(&before);
            assert!(
                back.is_empty()
                    || rule == Rule::Removals
                    || rule == Rule::Policies
                    || rule == Rule::Windows,
                "{back:?}"
            );
            let restricted = ServedRules::of(&before.restrict(&next, &loosened));
            let left = before.loosened_by(&restricted);
            assert!(left.iter().all(|rule| rule.needs_approval()), "{left:?}");
        }
        let mut stricter = strict();
        stricter.guard.windows.truncate(1);
        stricter.controller.confirm_pools.insert("web".into());
        assert_eq!(before.loosened_by(&ServedRules::of(&stricter)), BTreeSet::new());
    }

    #[test]
    fn merge_does_not_remove_the_keys_of_approvers() {
        let unsigned = ServedRules::of(&revision("1"));
        let signed = ServedRules { keys: ["alice 00".to_owned()].into(), ..unsigned.clone() };
        assert!(signed.has_keys() && signed.approval == ApprovalRule::Merge);
        let loosened = signed.loosened_by(&unsigned);
        assert_eq!(loosened, BTreeSet::from([LoosenedRule::Keys]));
        assert!(!signed.accepts_merge(&unsigned, &loosened), "the fleet is unchanged");
        assert!(!signed.accepts_done(&loosened), "nothing is left to do");
        assert!(unsigned.accepts_done(&unsigned.loosened_by(&signed)), "keys are stricter");
    }

    /// A leader over a commit in mode observe, where each plan needs an approval.
    fn strict_controller() -> ControllerHarness {
        let mut harness = ControllerHarness::started_without_mode();
        let mut first = revision("1");
        first.controller.approval = ApprovalRule::Digest;
        first.fleet_digest = "before".to_owned();
        harness.step_at(1, Event::Signal(Signal::LeaseGained));
        harness.step_at(1, Event::StateLoaded(Ok(Box::default())));
        harness.step_at(2, Event::BranchRead(Ok(Arc::new(first))));
        harness
    }

    fn loose(commit: &str, fleet: &str) -> Revision {
        let mut next = revision(commit);
        next.controller.mode = Mode::Full;
        next.controller.mass_removal = CountOrShare::Share(100_000);
        next.fleet_digest = fleet.to_owned();
        next
    }

    fn served(harness: &ControllerHarness) -> (Mode, ApprovalRule, Vec<String>) {
        let revisions = &harness.state().revisions;
        let settings = &revisions.served.as_ref().expect("one is served").controller;
        (settings.mode, settings.approval, harness.state().status().repository.loosened)
    }

    #[test]
    fn loosening_commit_is_judged_by_the_rules_before() {
        let mut harness = strict_controller();
        harness.step_at(10, Event::BranchRead(Ok(Arc::new(loose("2", "shrunk")))));
        let held =
            ["spec.controller.mode", "spec.controller.approval", "spec.controller.massRemoval"];
        let held = held.map(str::to_owned).to_vec();
        assert_eq!(served(&harness), (Mode::Observe, ApprovalRule::Digest, held.clone()));
        // Another read, and another commit after it, accept nothing.
        harness.step_at(70, Event::BranchRead(Ok(Arc::new(loose("2", "shrunk")))));
        harness.step_at(130, Event::BranchRead(Ok(Arc::new(loose("3", "shrunk")))));
        assert_eq!(served(&harness), (Mode::Observe, ApprovalRule::Digest, held.clone()));
        // A new leader remembers the rules.
        let persisted = harness.state().persistence.loaded.clone().expect("loaded");
        let text = serde_json::to_string(&persisted).expect("JSON");
        let persisted = serde_json::from_str(&text).expect("the same");
        harness.step_at(200, Event::StateLoaded(Ok(Box::new(persisted))));
        harness.step_at(201, Event::BranchRead(Ok(Arc::new(loose("3", "shrunk")))));
        assert_eq!(served(&harness), (Mode::Observe, ApprovalRule::Digest, held));
    }

    #[test]
    fn approval_by_digest_accepts_loosened_rules() {
        let mut harness = strict_controller();
        harness.step_at(10, Event::BranchRead(Ok(Arc::new(loose("2", "shrunk")))));
        let approve = |digest: crate::model::ids::Digest| {
            let by = "ann".to_owned();
            Event::Signal(Signal::Request(AuthorizedRequest::Approve { digest, by }))
        };
        harness.modify(|state| {
            state.planning.run = None;
            state.planning.replan_at = at(20);
        });
        harness.observe(20, world(20));
        harness.observe(20, world(20));
        harness.step_at(20, Event::Timer);
        harness.finish_planning(21, sample_plan::plan().only(WaveStep::Retire));
        harness.step_at(22, approve("sha256:other".into()));
        assert_eq!(served(&harness).0, Mode::Observe, "the approval is of another plan");
        let digest = harness.state().planning.current_digest().expect("a plan").clone();
        harness.step_at(23, approve(digest));
        assert_eq!(served(&harness), (Mode::Full, ApprovalRule::Merge, Vec::new()));
    }

    #[test]
    fn rules_are_accepted_unless_approvals_were_stricter() {
        let mut harness = ControllerHarness::started_without_mode();
        harness.step_at(10, Event::BranchRead(Ok(Arc::new(loose("2", "")))));
        assert_eq!(served(&harness), (Mode::Full, ApprovalRule::Merge, Vec::new()));
        let mut harness = strict_controller();
        harness.step_at(10, Event::BranchRead(Ok(Arc::new(loose("2", "before")))));
        assert_eq!(served(&harness).0, Mode::Observe, "it loosens who approves");
    }
}
