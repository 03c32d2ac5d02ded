//! Batches of closed nodes, and when a batch opens.
//!
//! Invariant: a Ready node opens after a bounded time, whatever pods or nodes are missing.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::nomination::PlannedNodes;
use crate::model::ids::{PoolName, WorkloadKind};
use crate::model::observed::Observed;
use crate::model::saturating_time::later;
use crate::plan::Plan;
use crate::plan::wire::workload_key;

/// Longest time for which pending pods wait for further nodes of a batch, once one is Ready.
const PODS_WAIT_MAX: SignedDuration = SignedDuration::from_secs(20);
/// Longest time for which a Ready node waits for pods that a new commit adds. Delivery tools poll
/// every few minutes.
const NODE_WAIT_MAX: SignedDuration = SignedDuration::from_mins(5);

/// Waiting times of a closed Ready node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitingNode {
    /// First observation of the node as Ready.
    pub(crate) ready_since: Timestamp,
    /// First observation with pending pods for the batch of the node, without a gap since.
    pub(crate) pods_since: Option<Timestamp>,
    /// True if pods that a new commit adds are still to come.
    pub(crate) awaits_commit: bool,
}

impl WaitingNode {
    /// Returns the waiting times after an observation of the pods of the batch.
    pub(crate) fn observed(before: Option<Self>, pods: BatchPods, now: Timestamp) -> Self {
        let pods_since = before.and_then(|before| before.pods_since).unwrap_or(now);
        Self {
            ready_since: before.map_or(now, |before| before.ready_since),
            pods_since: pods.are_pending.then_some(pods_since),
            awaits_commit: pods.are_added,
        }
    }

    /// Returns the time at which the node opens, however many others are missing.
    pub(crate) fn deadline(self) -> Timestamp {
        let wait = if self.awaits_commit { NODE_WAIT_MAX } else { PODS_WAIT_MAX };
        let of_node = later(self.ready_since, wait);
        self.pods_since.map_or(of_node, |since| of_node.min(later(since, PODS_WAIT_MAX)))
    }
}

/// Pods of the workloads that a plan places on a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchPods {
    /// True if some of them are pending.
    pub(crate) are_pending: bool,
    /// True if some of them do not exist yet.
    pub(crate) are_missing: bool,
    /// True if a new commit adds some of those that do not exist.
    pub(crate) are_added: bool,
}

impl BatchPods {
    /// Returns the state of the pods that a plan places on the nodes of a batch.
    pub(crate) fn new(
        plan: &Plan,
        world: &Observed,
        planned: &PlannedNodes,
        is_added: impl Fn(&str) -> bool,
    ) -> Self {
        let mut active: BTreeMap<String, u32> = BTreeMap::new();
        let mut are_pending = false;
        for (workload, pods) in world.pod_runs() {
            let key = workload_key(&workload);
            if planned.by_workload.contains_key(&key) {
                let pods = pods.iter().filter(|pod| pod.is_active());
                are_pending |= pods.clone().any(|pod| pod.node.is_none());
                *active.entry(key).or_insert(0) += u32::try_from(pods.count()).unwrap_or(u32::MAX);
            }
        }
        // A capacity buffer has no pods.
        let demand = plan.capacity.demand.iter();
        let demand = demand.filter(|row| row.workload.kind != WorkloadKind::CapacityBuffer);
        let missing = demand
            .map(|row| (workload_key(&row.workload), row.counts.planned))
            .filter(|(key, wanted)| {
                planned.by_workload.contains_key(key)
                    && active.get(key).copied().unwrap_or(0) < *wanted
            })
            .map(|(key, _)| key)
            .collect::<BTreeSet<String>>();
        let are_added = missing.iter().any(|workload| is_added(workload));
        Self { are_pending, are_missing: !missing.is_empty(), are_added }
    }
}

/// Returns for each pool of a plan the first pool of its batch: pools that share a workload open
/// together, directly or through other pools.
pub(crate) fn batch_pools(plan: &Plan) -> BTreeMap<PoolName, PoolName> {
    let rows = plan.resource_changes.iter();
    let pools: BTreeMap<_, PoolName> = rows.map(|row| (&row.address, row.pool())).collect();
    let mut by_workload: BTreeMap<String, BTreeSet<&PoolName>> = BTreeMap::new();
    for row in &plan.capacity.placements {
        let pool = pools.get(&row.address);
        by_workload.entry(workload_key(&row.workload)).or_default().extend(pool);
    }
    let mut sets: Vec<BTreeSet<&PoolName>> = Vec::new();
    for pools in by_workload.into_values() {
        let (joined, apart): (Vec<_>, Vec<_>) =
            sets.into_iter().partition(|of| !of.is_disjoint(&pools));
        sets = apart;
        sets.push(joined.into_iter().flatten().chain(pools).collect());
    }
    let mut first_pools = BTreeMap::new();
    for set in sets {
        let Some(first) = set.first().copied() else { continue };
        first_pools.extend(set.iter().map(|pool| ((*pool).clone(), first.clone())));
    }
    first_pools
}
