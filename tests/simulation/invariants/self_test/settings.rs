//! Violations of settings and operator decisions.

use std::sync::Arc;

use fleetwright::apply::{OpeningAnnotations, PodNomination};
use fleetwright::controller::{AuthorizedRequest, Suspension};
use fleetwright::model::desired::{AppliedBy, ApprovalRule, Mode, Window};
use fleetwright::model::observed::Node;
use fleetwright::model::pod::Taint;
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{Check, CheckStatus, WaveStep};
use jiff::tz::TimeZone;

use super::violations::ViolationCase;
use super::{
    CallKind, Commit, Effect, RecordedCall, SignedDuration, SimulatedCommit, ViolationTrace,
    catalog,
};
use crate::simulation::environment::ServedCommitChange;

impl ViolationTrace {
    /// Opens a closed node, and nominates a pod to `nominated`.
    fn opens(&self, nominated: &str, edit: fn(&mut Node)) {
        let pod = Arc::clone(self.world.pods.first().expect("one"));
        let mut node = self.world.nodes.values().next().expect("one").clone();
        (node.name, node.ready, node.taints) = ("n".into(), true, vec![Taint::opening()]);
        edit(&mut node);
        let nominations = vec![PodNomination { pod, node: nominated.into() }];
        let annotations = OpeningAnnotations::new();
        self.effects(&[Effect::OpenNodes { nominations, nodes: vec![node], annotations }]);
    }

    /// Opens a node, and nominates a pod to it `seconds` later.
    fn nominates_after_opening(&mut self, seconds: i64) {
        let uid = self.world.pods.first().expect("one").uid.clone();
        self.calls(CallKind::Open("n".into()));
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).expect("a time");
        self.calls(CallKind::Nominate(uid, "n".into()));
    }

    fn suspension(&self) -> Suspension {
        let (reason, by) = ("a freeze".to_owned(), "alice".to_owned());
        Suspension { reason, until: None, since: self.now, by }
    }

    fn approves(&self) {
        let digest = self.growth.capacity.digest.clone();
        let request = AuthorizedRequest::Approve { digest, by: "alice".to_owned() };
        let plan = Arc::new(self.growth.clone());
        self.checks.borrow_mut().record_request(&request, Some(&plan));
    }

    /// Sets the full plan of the leader.
    fn publish(&mut self, plan: &Plan) {
        let mut now = self.status.plan.clone().expect("planned");
        now.plan = Arc::new(plan.clone());
        (self.status.plan, self.status.is_leader) = (Some(now), true);
        self.effects(&[]);
    }

    /// Confirms each removal of the plan.
    fn confirms(&mut self) {
        self.publish(&self.scale_down.clone());
        for row in super::rows(&self.scale_down, WaveStep::Retire) {
            let before = row.change.before.as_ref().expect("it is there");
            let (instance, by) = (before.instance_id.clone().expect("known"), "alice".to_owned());
            let request = AuthorizedRequest::Confirm { instance, by };
            self.checks.borrow_mut().record_request(&request, None);
        }
    }

    fn clock_is_ahead(&self, by: SignedDuration) {
        let mut checks = self.checks.borrow_mut();
        checks.record_clock_offset(0, self.now, SignedDuration::ZERO);
        checks.record_clock_offset(0, self.now, by);
    }

    /// Merges two commits that CI applies. Returns their names.
    fn merges(&mut self) -> [String; 2] {
        self.settings.applied_by = AppliedBy::Ci;
        let (apply, catalog) = ("by: ci".to_owned(), catalog());
        let commit = Commit { apply, ..Commit::default() };
        [7, 8].map(|n| {
            let files = SimulatedCommit::read(&commit, n, &catalog);
            self.checks.borrow_mut().record_commit(&files, self.now);
            files.name.clone()
        })
    }

    fn serves_other([from, to]: [String; 2], applied: bool) -> CallKind {
        CallKind::Serves(ServedCommitChange { from, to, applied, break_glass: false, gone: false })
    }

    fn carries_out_merge(&self, commit: String, plan: &Plan) {
        let (plan, without) = (Arc::new(plan.clone()), Vec::new());
        let begun = std::collections::BTreeMap::new();
        let (ticket, waits, running) = (2, true, false);
        self.effects(&[Effect::Apply {
            ticket,
            commit,
            plan,
            excluded_instances: without,
            only_if_empty: std::collections::BTreeSet::new(),
            wait_until_ready: waits,
            running_pods_only: running,
            previous_attempts: begun,
            launches_in_progress: Vec::new(),
        }]);
    }

    /// Lets a waiting merge be the substitute of the served commit, and applies `plan` of it.
    fn applies_substitute(&mut self, plan: &Plan) {
        let [served, merged] = self.merges();
        self.persisted_state.served_commit = Some(served.clone());
        self.status.repository.substitute_for = Some(served);
        self.plans();
        self.carries_out_merge(merged, plan);
    }

    /// Sets a single window that ended an hour ago.
    fn close_window(&mut self) {
        let now = self.now.to_zoned(TimeZone::UTC);
        let minute =
            u32::from(now.hour().unsigned_abs()) * 60 + u32::from(now.minute().unsigned_abs());
        let (from, to) = (minute - 120, minute - 60);
        self.guard.windows = vec![Window { days: Vec::new(), from, to, zone: TimeZone::UTC }];
        self.status.now = self.now;
    }

    fn add_policy_warning(&mut self) {
        self.settings.approval = ApprovalRule::Policy;
        let status = CheckStatus::Warn;
        self.growth.checks = vec![Check { status, ..Check::default() }];
    }
}

pub(super) const OF_SETTINGS: &[ViolationCase] = &[
    ("I21", "a plan in mode observe", |t| {
        t.settings.mode = Mode::Observe;
        t.applies(&t.growth);
    }),
    ("I21", "a removal in mode additive", |t| {
        t.settings.mode = Mode::Additive;
        t.plans();
        t.applies(&t.scale_down);
    }),
    ("I21", "a drain in mode observe", |t| {
        t.settings.mode = Mode::Observe;
        let (instance, pods) = ("i-1".into(), Vec::new());
        t.effects(&[Effect::Evict { instance, pods }]);
    }),
    ("I21", "a write in mode observe with nothing in progress", |t| {
        t.settings.mode = Mode::Observe;
        t.effects(&[]);
        t.later(1);
        let uid = t.world.pods.first().expect("one").uid.clone();
        t.calls(CallKind::Evict(uid, None));
    }),
    ("I21", "a nomination a minute after the start of mode observe", |t| {
        t.settings.mode = Mode::Observe;
        t.effects(&[]);
        t.later(1);
        let uid = t.world.pods.first().expect("one").uid.clone();
        t.calls(CallKind::Nominate(uid, "n".into()));
    }),
    ("I22", "a plan while suspended", |t| {
        t.status.suspended = Some(t.suspension());
        t.applies(&t.growth);
    }),
    ("I22", "a plan outside of the windows", |t| {
        t.close_window();
        t.applies(&t.growth);
    }),
    ("I23", "an unapproved plan", |t| {
        t.settings.approval = ApprovalRule::Digest;
        t.applies(&t.growth);
    }),
    ("I23", "another plan than the one that was approved", |t| {
        t.settings.approval = ApprovalRule::Digest;
        t.approves();
        t.applies(&t.growth);
        t.applies(&t.rollout);
    }),
    ("I23", "a plan with policy warnings", |t| {
        t.add_policy_warning();
        t.applies(&t.growth);
    }),
    ("I23", "an unconfirmed removal", |t| {
        t.settings.confirm_pools = ["web".into()].into();
        t.plans();
        t.applies(&t.scale_down);
    }),
    ("I23", "a removal confirmed before a plan kept the instance", |t| {
        t.settings.confirm_pools = ["web".into()].into();
        t.confirms();
        let mut stay = t.scale_down.clone();
        stay.capacity.waves.clear();
        t.publish(&stay);
        t.publish(&t.scale_down.clone());
        t.plans();
        t.applies(&t.scale_down);
    }),
    ("I24", "a merge served before its receipt by a clock that is ahead", |t| {
        let both = t.merges();
        t.clock_is_ahead(SignedDuration::from_mins(1));
        t.later(50);
        t.calls(ViolationTrace::serves_other(both, false));
    }),
    ("I24", "a merge that is applied and not served", |t| {
        let [served, merged] = t.merges();
        t.persisted_state.served_commit = Some(served);
        t.carries_out_merge(merged, &t.growth);
    }),
    ("I24", "a substitute merge that launches for future pods", |t| {
        t.applies_substitute(&t.growth.clone());
    }),
    ("I24", "a substitute merge that removes", |t| t.applies_substitute(&t.rollout.clone())),
    ("I24", "a merge served before its receipt", |t| {
        let both = t.merges();
        t.calls(ViolationTrace::serves_other(both, false));
    }),
    ("I25", "a pod nominated to an open node", |t| t.nominates_after_opening(61)),
    ("I25", "a decision to nominate a pod to an open node", |t| {
        t.settings.steer = Some(true);
        t.calls(CallKind::Open("n".into()));
        t.now = t.now.checked_add(SignedDuration::from_secs(61)).expect("a time");
        t.opens("n", |_| ());
    }),
    ("I25", "an opening before Ready", |t| {
        t.settings.steer = Some(true);
        t.opens("n", |node| node.ready = false);
    }),
    ("I25", "an opening of an open node", |t| {
        t.settings.steer = Some(true);
        t.opens("n", |node| node.taints.clear());
    }),
    ("I25", "a nomination without the setting", |t| t.opens("n", |_| ())),
];

/// Actions that the settings and the operators allow.
pub(super) fn valid_trace(trace: &ViolationTrace) {
    let mut t = trace.clone();
    let mut waits = t.growth.clone();
    waits.capacity.demand.iter_mut().for_each(|row| row.counts.planned = 0);
    t.clone().applies_substitute(&waits);
    let mut confirmed = t.clone();
    confirmed.settings.confirm_pools = ["web".into()].into();
    confirmed.confirms();
    confirmed.plans();
    confirmed.applies(&confirmed.scale_down);
    t.settings.mode = Mode::Additive;
    t.settings.steer = Some(true);
    t.opens("n", |_| ());
    t.nominates_after_opening(5);
    t.settings.approval = ApprovalRule::Digest;
    t.approves();
    t.plans();
    t.applies(&t.growth);
    t.status.break_glass = Some(t.suspension());
    t.close_window();
    t.applies(&t.growth);
    t.settings.mode = Mode::Observe;
    t.effects(&[]);
    t.calls(CallKind::Ended("i-1".into()));
    let both = t.merges();
    t.calls(ViolationTrace::serves_other(both.clone(), true));
    t.later(60);
    t.call(&RecordedCall { ..t.asked(ViolationTrace::serves_other(both, false)) });
}
