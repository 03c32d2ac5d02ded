//! Contingency of an approved plan: further launches that its approval covers.
//!
//! [`cover`] decides which launches of a later plan need no approval of their own.
//!
//! Invariants:
//! - Only a plan that an operator approved by its digest and that was applied has a contingency.
//! - Each of its launches is for pods that are pending now, of workloads that the approved plan
//!   places.
//! - What is used is never refunded, and persisted before the launch.
//!
//! A launch under a contingency has no contingency of its own. Every other gate applies as before.
//! See ADR 0017.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::gates::{GateContext, approval_by_digest};
use super::persisted_state::{
    ApprovalRecord, CLOCK_DIFFERENCE_MAX, LaunchRecord, PersistedState, READY_WITHIN,
};
use crate::apply::is_pending;
use crate::model::ids::{Address, Digest, PoolName, workload_key};
use crate::model::observed::{Node, Observed};
use crate::model::saturating_time::later;
use crate::model::units::MicroUsd;
use crate::plan::canonical::short_digest;
use crate::plan::wire::{
    Action, Contingency, ExplainRow, LaunchReason, PodCounts, PoolContingency, Reason,
    ResourceChange, WaveStep,
};
use crate::plan::{Plan, set_identity};

/// A contingency is valid this long after an apply of its plan. Pods that are pending later are
/// pending for another reason.
const VALID_FOR: SignedDuration = SignedDuration::from_hours(1);

/// Most workloads of an approved plan whose contingency is stored. A larger plan has none.
const WORKLOADS_MAX: usize = 1_000;

/// Stored digits of the digest of a workload.
const DIGEST_LENGTH: usize = 12;

/// What is left of the contingency of an approved plan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApprovedContingency {
    /// Nodes that are left in each pool.
    pub pools: BTreeMap<PoolName, ApprovedNodes>,
    /// Price per hour that is left.
    pub hourly: MicroUsd,
    /// Short digests of the workloads whose pods the plan places.
    pub workloads: BTreeSet<String>,
    /// Last apply of the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied: Option<ContingencyStart>,
    /// Number of applies that used it.
    pub uses: u32,
}

/// Approved nodes of one pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovedNodes {
    /// Number of nodes.
    pub nodes: u32,
    /// Maximum price per hour of one node.
    pub node_hourly: MicroUsd,
}

/// The apply that made a contingency usable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContingencyStart {
    /// Commit of the apply.
    pub commit: String,
    /// Start of the apply.
    pub at: Timestamp,
}

/// One use of a contingency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContingencyUse {
    digest: Digest,
    approved_at: Timestamp,
    /// Number of uses, this one included.
    uses: u32,
}

/// Launches that a contingency covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cover {
    /// Digest of the approved plan.
    pub(super) digest: Digest,
    /// The operator who approved it.
    pub(super) who: String,
    approved_at: Timestamp,
    /// Pool and maximum price of each launch.
    launches: BTreeMap<Address, (PoolName, MicroUsd)>,
}

impl ApprovedContingency {
    /// Returns the contingency of an approved plan. It cannot be used before the plan is applied.
    fn of_plan(plan: &Plan) -> Self {
        let Some(contingency) = &plan.capacity.placement.contingency else {
            return Self::default();
        };
        let placed = plan.capacity.placements.iter();
        let workloads: BTreeSet<String> =
            placed.map(|row| short_digest(&workload_key(&row.workload), DIGEST_LENGTH)).collect();
        if workloads.len() > WORKLOADS_MAX {
            return Self::default();
        }
        let Contingency { nodes: _, hourly, pods: _, pools } = contingency;
        let pool = |of: &PoolContingency| {
            let PoolContingency { pool, nodes, hourly: _, node_hourly, instance_types: _ } = of;
            (pool.clone(), ApprovedNodes { nodes: *nodes, node_hourly: *node_hourly })
        };
        Self {
            pools: pools.iter().map(pool).collect(),
            hourly: *hourly,
            workloads,
            applied: None,
            uses: 0,
        }
    }

    /// Returns true while the contingency may be used at this commit.
    fn is_valid(&self, commit: &str, now: Timestamp) -> bool {
        self.applied.as_ref().is_some_and(|applied| {
            // A clock that was set back must not lengthen it.
            let is_near = applied.at <= later(now, CLOCK_DIFFERENCE_MAX);
            applied.commit == commit && is_near && now < later(applied.at, VALID_FOR)
        })
    }

    /// Takes a launch from what is left; returns false, and takes nothing, if it is not covered.
    fn take(&mut self, pool: &PoolName, most: MicroUsd) -> bool {
        let Some(nodes) = self.pools.get_mut(pool) else { return false };
        let is_covered = nodes.nodes > 0 && most <= nodes.node_hourly && most <= self.hourly;
        if is_covered {
            nodes.nodes -= 1;
            self.hourly = self.hourly - most;
        }
        is_covered
    }
}

impl ApprovalRecord {
    /// Returns the approval of a plan that was not seen yet.
    pub fn new(digest: Digest, by: String, at: Timestamp) -> Self {
        Self { digest, by, at, rows: BTreeSet::new(), contingency: None }
    }

    /// Makes the contingency unusable for good; returns whether it was usable.
    pub(super) fn drop_contingency(&mut self) -> bool {
        let contingency = self.contingency.as_mut();
        let left = contingency.map(std::mem::take);
        left.is_some_and(|left| !left.pools.is_empty())
    }
}

impl PersistedState {
    /// Stores the contingency of a plan whose digest is approved.
    pub(super) fn record_approved_contingency(&mut self, plan: &Plan) {
        let same = self.approvals.iter_mut().filter(|a| a.digest == plan.capacity.digest);
        for approval in same.filter(|approval| approval.contingency.is_none()) {
            approval.contingency = Some(ApprovedContingency::of_plan(plan));
        }
    }

    /// Makes the contingency of the approval of `plan` usable: the plan is applied. Repeated
    /// approvals of the same plan add nothing.
    pub(super) fn start_contingency(&mut self, plan: &Plan, commit: &str, now: Timestamp) {
        self.record_approved_contingency(plan);
        let Some(approved) = approval_by_digest(plan, self) else { return };
        let digest = self.approvals[approved].digest.clone();
        for (index, approval) in self.approvals.iter_mut().enumerate() {
            if index != approved {
                if approval.digest == digest {
                    approval.drop_contingency();
                }
            } else if let Some(contingency) = &mut approval.contingency {
                let commit = commit.to_owned();
                contingency.applied = Some(ContingencyStart { commit, at: now });
            }
        }
    }

    /// Takes the covered launches from what is left of a contingency.
    pub(super) fn use_contingency(&mut self, cover: &Cover) -> Option<ContingencyUse> {
        let Cover { digest, who: _, approved_at, launches } = cover;
        let mut approvals = self.approvals.iter_mut();
        let of = approvals.find(|a| a.digest == *digest && a.at == *approved_at)?;
        let contingency = of.contingency.as_mut()?;
        for (pool, most) in launches.values() {
            contingency.take(pool, *most);
        }
        contingency.uses = contingency.uses.saturating_add(1);
        let (digest, approved_at) = (digest.clone(), *approved_at);
        Some(ContingencyUse { digest, approved_at, uses: contingency.uses })
    }

    /// Returns the contingency of a use, if the state counts that use.
    fn counted_use(&self, of: &ContingencyUse) -> Option<&ApprovedContingency> {
        let ContingencyUse { digest, approved_at, uses } = of;
        let mut approvals = self.approvals.iter();
        let found = approvals.find(|a| a.digest == *digest && a.at == *approved_at)?;
        found.contingency.as_ref().filter(|contingency| contingency.uses >= *uses)
    }

    /// Returns true if the state counts a use.
    pub(super) fn has_counted_use(&self, of: &ContingencyUse) -> bool {
        self.counted_use(of).is_some()
    }
}

/// Returns true while launches that a contingency covered may still start.
pub(super) fn is_still_valid(
    of: &ContingencyUse,
    context: &GateContext<'_>,
    now: Timestamp,
) -> bool {
    let counted = context.persisted.counted_use(of);
    counted.is_some_and(|contingency| contingency.is_valid(&context.revision.commit, now))
}

/// Returns the launches of a plan that the contingency of an applied plan covers. One contingency
/// has to cover all of them: the newest with any.
pub(super) fn cover(plan: &Plan, context: &GateContext<'_>, now: Timestamp) -> Option<Cover> {
    let is_valid = |contingency: &ApprovedContingency| {
        contingency.is_valid(&context.revision.commit, now)
            && contingency.pools.values().any(|pool| pool.nodes > 0)
    };
    let approvals = context.persisted.approvals.iter().rev();
    let valid =
        approvals.filter_map(|a| Some((a, a.contingency.as_ref().filter(|c| is_valid(c))?)));
    let mut valid = valid.peekable();
    valid.peek()?;
    let launches = pod_launches(plan);
    let pending = pending_pods(context.observed);
    valid.find_map(|(approval, contingency)| {
        let since = contingency.applied.as_ref()?.at;
        if !are_nodes_open(context, since, now) {
            return None;
        }
        let launches = covered(&launches, contingency.clone(), pending.clone());
        (!launches.is_empty()).then(|| Cover {
            digest: approval.digest.clone(),
            who: approval.by.clone(),
            approved_at: approval.at,
            launches,
        })
    })
}

impl Cover {
    /// Returns true if the launch at `address` is covered.
    pub(super) fn has(&self, address: &Address) -> bool {
        self.launches.contains_key(address)
    }

    /// Returns true if every change of `plan` is covered.
    pub(super) fn has_all(&self, plan: &Plan) -> bool {
        let mut changes = plan.capacity.waves.iter().flat_map(|wave| &wave.addresses);
        changes.all(|address| self.has(address))
    }

    /// Returns the plan without fallback offerings that cost more than the contingency allows.
    pub(super) fn without_dearer_offerings(&self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
        for row in &mut plan.capacity.alternatives {
            if let Some((_, most)) = self.launches.get(&row.address) {
                row.offerings.retain(|offering| offering.hourly <= *most);
            }
        }
        plan.capacity.alternatives.retain(|row| !row.offerings.is_empty());
        set_identity(&mut plan);
        plan
    }
}

/// A launch that replaces nothing, for pods.
struct PodLaunch<'p> {
    address: &'p Address,
    pool: &'p PoolName,
    hourly: MicroUsd,
    /// Prices of its fallback offerings.
    fallbacks: Vec<MicroUsd>,
    pods: &'p PodCounts,
}

/// Returns the launches of a plan that replace nothing and are for pods.
fn pod_launches<'p>(plan: &'p Plan) -> Vec<PodLaunch<'p>> {
    let of_step = |step: WaveStep| -> BTreeSet<&Address> {
        let waves = plan.capacity.waves.iter().filter(|wave| wave.step == step);
        waves.flat_map(|wave| &wave.addresses).collect()
    };
    let (launched, retired) = (of_step(WaveStep::Launch), of_step(WaveStep::Retire));
    let explained: BTreeMap<&Address, &ExplainRow> =
        plan.capacity.explain.iter().map(|row| (&row.address, row)).collect();
    let fallbacks = |address: &Address| -> Vec<MicroUsd> {
        let rows = plan.capacity.alternatives.iter().filter(|row| row.address == *address);
        rows.flat_map(|row| &row.offerings).map(|offering| offering.hourly).collect()
    };
    let is_new = |row: &&ResourceChange| {
        launched.contains(&row.address)
            && !retired.contains(&row.address)
            && row.change.actions == [Action::Create]
    };
    let launch = |row: &'p ResourceChange| {
        let ResourceChange { address, change, .. } = row;
        let explain = explained.get(address).filter(|explain| explain.group.is_none())?;
        let Reason::Launch { because: LaunchReason::Demand { .. } } = &explain.reason else {
            return None;
        };
        Some(PodLaunch {
            address,
            pool: change.after.as_ref()?.pool.as_ref()?,
            hourly: explain.hourly_after?,
            fallbacks: fallbacks(address),
            pods: &explain.pods,
        })
    };
    plan.resource_changes.iter().filter(is_new).filter_map(launch).collect()
}

/// Returns the launches that a contingency covers, with the maximum price of each. `pending` holds
/// the pending pods by workload key.
fn covered(
    launches: &[PodLaunch<'_>],
    mut left: ApprovedContingency,
    mut pending: BTreeMap<String, u32>,
) -> BTreeMap<Address, (PoolName, MicroUsd)> {
    let mut covered = BTreeMap::new();
    for launch in launches {
        let waits = |workload: &str| pending.get(workload).copied().unwrap_or(0);
        let is_for_pending = !launch.pods.is_empty()
            && launch.pods.iter().all(|(workload, count)| {
                let is_approved =
                    left.workloads.contains(&short_digest(workload.as_str(), DIGEST_LENGTH));
                is_approved && *count <= waits(workload.as_str())
            });
        let Some(pool) = left.pools.get(launch.pool).filter(|_| is_for_pending) else { continue };
        // Dearer fallback offerings are dropped before the launch.
        let fallbacks = launch.fallbacks.iter().copied().filter(|of| *of <= pool.node_hourly);
        let most = fallbacks.chain([launch.hourly]).max().unwrap_or(launch.hourly);
        if !left.take(launch.pool, most) {
            continue;
        }
        for (workload, count) in launch.pods {
            if let Some(waits) = pending.get_mut(workload.as_str()) {
                *waits = waits.saturating_sub(*count);
            }
        }
        covered.insert(launch.address.clone(), (launch.pool.clone(), most));
    }
    covered
}

/// Returns the pods that wait for a node, by workload key.
fn pending_pods(observed: &Observed) -> BTreeMap<String, u32> {
    let mut pending = BTreeMap::new();
    for pod in observed.pods.iter().filter(|pod| is_pending(pod)) {
        *pending.entry(workload_key(&pod.workload())).or_insert(0) += 1;
    }
    pending
}

/// Returns true if the nodes that were launched since then take pods: they are Ready or late, and
/// none is closed. A pod that may still get a place on one of them is not left over.
fn are_nodes_open(context: &GateContext<'_>, since: Timestamp, now: Timestamp) -> bool {
    let starts = |launch: &LaunchRecord| {
        let is_new = launch.at >= since && launch.ready_at.is_none() && !launch.useful;
        is_new && now < later(launch.at, READY_WITHIN)
    };
    let is_closed = context.observed.nodes.values().any(Node::is_closed);
    !is_closed && !context.persisted.launches.iter().any(starts)
}

/// Returns the largest contingency that is stored.
#[cfg(test)]
pub(super) fn largest() -> ApprovedContingency {
    ApprovedContingency {
        pools: [("web".into(), ApprovedNodes { nodes: 1, node_hourly: MicroUsd(1) })].into(),
        workloads: (0..WORKLOADS_MAX)
            .map(|n| short_digest(&n.to_string(), DIGEST_LENGTH))
            .collect(),
        ..ApprovedContingency::default()
    }
}

#[cfg(test)]
mod tests;
