//! Mass removals: plans that remove a large share of the nodes with pods at once.
//!
//! The removals of a new commit go on in parts, because the commit explains them. Removals that no
//! commit explains latch a breaker, which an operator resets: a lost pool, or pods that vanished
//! from the cluster. Invariant: without an approval by digest, no apply removes more than
//! `spec.controller.massRemoval` allows.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::gates::{GateContext, MASS_REMOVAL_BREAKER, approval_by_digest, change_groups};
use super::state::ControllerState;
use crate::model::desired::{CountOrShare, Mode, RateLimit};
use crate::model::ids::PoolName;
use crate::model::observed::Observed;
use crate::model::plural::count;
use crate::plan::Plan;
use crate::plan::wire::{Reason, ResourceChange, RetireReason};

/// Plans that remove at most this many nodes are never a mass removal.
const IGNORED_MAX: u32 = 3;

/// Change of the number of pods, in percent, after which the baseline is written again.
const BASELINE_DRIFT_PERCENT: u64 = 10;

/// Commit and pods at the last plan that was no mass removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetBaseline {
    /// The served commit.
    pub commit: String,
    /// Number of pods of the cluster, without those of `DaemonSet`s.
    pub pods: u32,
    /// True if the cluster has had all pods that the commit adds.
    #[serde(default)]
    pub is_delivered: bool,
}

impl FleetBaseline {
    /// Returns the baseline of a plan over `observed`.
    pub(super) fn new(commit: &str, observed: &Observed, is_delivered: bool) -> Self {
        Self { commit: commit.to_owned(), pods: workload_pods(observed), is_delivered }
    }

    /// Returns true if `latest` is worth a write of the persisted state.
    pub(super) fn differs_from(&self, latest: &Self) -> bool {
        let change = u64::from(self.pods.abs_diff(latest.pods));
        self.commit != latest.commit
            || self.is_delivered != latest.is_delivered
            || change * 100 > u64::from(self.pods) * BASELINE_DRIFT_PERCENT
    }
}

/// A plan that removes more nodes than may be removed at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MassRemoval {
    /// Description of a loss that no commit explains.
    pub unexplained: Option<String>,
}

impl ControllerState {
    /// Notes for which workloads nodes may be launched before their pods exist.
    pub(super) fn update_launches_ahead(&mut self, plan: &Plan) {
        let (Some(revision), Some(last)) = (&self.revisions.served, &self.planning.last) else {
            return;
        };
        let persisted = self.persistence.loaded.as_ref();
        let baseline = persisted.and_then(|persisted| persisted.baseline.as_ref());
        let was_delivered =
            baseline.is_some_and(|of| of.commit == revision.commit && of.is_delivered);
        self.planning.launches_ahead.update(plan, &revision.commit, was_delivered, &last.world);
    }

    /// Latches the breaker for a mass removal that no commit explains, even after the branch was read
    /// once more. Any other plan is the baseline of the next ones.
    pub(super) fn detect_mass_removal(&mut self, plan: &Plan) {
        let now = self.now;
        // A mode without removals needs no breaker.
        if !self.leadership.is_leader() || self.mode() != Mode::Full {
            return;
        }
        let Some(context) = self.gate_context() else { return };
        let mass = mass_removal(plan, &context);
        let is_delivered = self.planning.launches_ahead.is_delivered();
        let baseline = FleetBaseline::new(&context.revision.commit, context.observed, is_delivered);
        let Some(persisted) = &mut self.persistence.loaded else { return };
        let Some(mass) = mass else {
            self.planning.unexplained_since = None;
            if !plan.errored
                && persisted.baseline.as_ref().is_none_or(|of| of.differs_from(&baseline))
            {
                persisted.baseline = Some(baseline);
            }
            return;
        };
        let Some(why) = mass.unexplained else {
            self.planning.unexplained_since = None;
            return;
        };
        let since = *self.planning.unexplained_since.get_or_insert(now);
        let reads = &mut self.revisions.reads;
        if reads.is_running || reads.has_failed() || reads.started_at < since {
            reads.hint(now);
            return;
        }
        let removes = unreplaced_removals(plan);
        persisted.latch(MASS_REMOVAL_BREAKER, why, Some(removes), now);
    }
}

/// Returns the mass removal of `plan`, if it is one and its digest is not approved.
pub fn mass_removal(plan: &Plan, context: &GateContext<'_>) -> Option<MassRemoval> {
    let most = removals_at_once(context);
    let removed = unreplaced_removals(plan);
    if removed <= most || approval_by_digest(plan, context.persisted).is_some() {
        return None;
    }
    let nodes = count(context.nodes, "node");
    let loss = lost_pool(plan, most)
        .map(|pool| format!("pool {pool} is no longer in the repository"))
        .or_else(|| lost_pods(context, most));
    let unexplained = loss.map(|loss| {
        format!(
            "the plan removes {removed} of {nodes} without replacement, and at most {most} \
             may be removed at once: {loss}"
        )
    });
    Some(MassRemoval { unexplained })
}

/// Returns how many nodes with pods one apply may remove without replacement.
pub(super) fn removals_at_once(context: &GateContext<'_>) -> u32 {
    nodes_at_once(context.revision.controller.mass_removal, context.nodes)
}

/// Returns how many of `nodes` nodes may be removed at once under `limit`.
pub(super) fn nodes_at_once(limit: CountOrShare, nodes: u32) -> u32 {
    let rate = RateLimit { limit, window: SignedDuration::ZERO };
    rate.limit_for(nodes).max(IGNORED_MAX)
}

/// Returns how many non-empty instances a plan removes without replacement. Empty nodes are
/// excluded: a commit without pods is intended, and an apply waits until the last pod is gone. Pods
/// that are gone need no node. The removal budget limits the pace while pods run there, and while
/// more nodes are empty than may be removed at once.
pub fn unreplaced_removals(plan: &Plan) -> u32 {
    let groups = change_groups(plan);
    let removes: u32 = groups.iter().map(|group| group.removes - group.empty).sum();
    let launches: u32 =
        groups.iter().filter(|group| group.removes > 0).map(|group| group.launches).sum();
    removes.saturating_sub(launches)
}

/// Returns the number of pods, without those of `DaemonSet`s.
fn workload_pods(observed: &Observed) -> u32 {
    let pods = observed.pods.iter().filter(|pod| pod.is_active() && !pod.is_node_bound());
    u32::try_from(pods.count()).unwrap_or(u32::MAX)
}

/// Returns a pool that is gone from the repository, if the plan removes more than `most` of the
/// nodes of such pools.
fn lost_pool(plan: &Plan, most: u32) -> Option<PoolName> {
    let lost: BTreeSet<_> = plan
        .capacity
        .explain
        .iter()
        .filter(|row| matches!(row.reason, Reason::Retire { because: RetireReason::PoolRemoved }))
        .map(|row| &row.address)
        .collect();
    let mut rows = plan.resource_changes.iter().filter(|row| lost.contains(&row.address));
    (u32::try_from(lost.len()).unwrap_or(u32::MAX) > most)
        .then(|| rows.next().map(ResourceChange::pool))
        .flatten()
}

/// Returns a description of the pods that are gone since the last ordinary plan, if neither a new
/// commit nor a few pods explain the removals.
fn lost_pods(context: &GateContext<'_>, most: u32) -> Option<String> {
    let commit = &context.revision.commit;
    let Some(before) = &context.persisted.baseline else {
        return Some("no earlier plan shows that the fleet was larger than needed".to_owned());
    };
    if before.commit != *commit {
        return None;
    }
    let now = workload_pods(context.observed);
    let lost = u64::from(before.pods.saturating_sub(now));
    let is_large = lost * u64::from(context.nodes) > u64::from(most) * u64::from(before.pods);
    is_large.then(|| {
        let was = before.pods;
        format!("{now} of {was} pods are left in the cluster, and no commit removes the others")
    })
}
