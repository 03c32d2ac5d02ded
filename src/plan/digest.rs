//! Digest of the decisions of a plan. Approvals refer to this value.
//!
//! The digest covers only decisions. Commit, time, price, version, reasons, diagnostics, demand
//! mode and unchanged rows do not affect it. A squash, a new price list or a new release therefore
//! voids no approval. Invariants: everything that `apply` reads of a row is in the digest, so no
//! unapproved action is possible under it. Every wire struct that holds a decision is destructured
//! here without `..`, so a new field does not compile until it is classified.
//!
//! A field that a later minor version adds to the projection is omitted where it is absent, so the
//! digests of older plans stay unchanged.

use std::collections::BTreeMap;

use serde::Serialize;

use super::canonical::hash;
use super::wire::{
    Action, AlternativesRow, Amount, Base, BaseWorld, Capacity, Change, Condition, Contingency,
    ExplainRow, GroupSize, NodeState, Placement, Plan, PoolContingency, Precondition,
    ResourceChange, ResourceKind, Wave, WaveStep,
};
use crate::model::ids::{
    Address, Digest, InstanceId, InstanceTypeName, LabelKey, Labels, PoolName, ReservationId, Uid,
    ZoneId, ZoneName,
};
use crate::model::market::CapacityType;
use crate::model::node_annotations::NodeAnnotations;
use crate::model::observed::ClusterIdentity;
use crate::model::pod::Taint;
use crate::model::reason::Alternative;

/// Domain separation: hashes of different kinds never coincide.
const DIGEST_DOMAIN: &str = "fleetwright.dev/decisions/1";
const DIGEST_DOMAIN_V2: &str = "fleetwright.dev/decisions/2";

/// Format versions whose digests omit a part of the fields that `apply` reads.
const PARTIAL_DIGEST_VERSIONS: [&str; 2] = ["1.0", "1.1"];

/// Returns whether digest and identity of `plan` cover all fields that `apply` reads.
///
/// This is false for formats 1.0 and 1.1. Such plans can be read and rendered, but not applied.
pub fn has_complete_digest(plan: &Plan) -> bool {
    !PARTIAL_DIGEST_VERSIONS.contains(&plan.format_version.as_str())
}

/// Returns the digest of the decisions of `plan`: `sha256:` and 64 hex digits.
///
/// It is independent of the order of rows and of the digest that the plan states.
pub fn digest(plan: &Plan) -> Digest {
    format!("sha256:{}", hash(&PlanDecisions::from_plan(plan))).into()
}

/// The decisions of a plan: the input of its digest.
#[derive(Serialize)]
struct PlanDecisions<'a> {
    #[serde(rename = "of")]
    domain: &'static str,
    cluster: &'a ClusterIdentity,
    complete: bool,
    rows: Vec<DecidedRow<'a>>,
    waves: Vec<DecidedWave<'a>>,
    alternatives: Vec<DecidedAlternatives<'a>>,
    preconditions: Vec<DecidedPrecondition<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    contingency: Option<Vec<DecidedContingency<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_annotations: Option<&'a BTreeMap<PoolName, NodeAnnotations>>,
}

/// A row that changes something.
#[derive(Serialize)]
struct DecidedRow<'a> {
    address: &'a Address,
    #[serde(rename = "type")]
    kind: ResourceKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    /// Key of the node. It becomes a tag, which identifies the launched instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<&'a str>,
    /// Name of the replacement. A failed launch prevents the terminations of its replacement.
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<&'a str>,
    actions: &'a [Action],
    before: Option<DecidedBefore<'a>>,
    after: Option<DecidedAfter<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    termination_grace_seconds: Option<u64>,
}

/// Decisions about a row that the plan records outside of the row.
#[derive(Clone, Copy)]
struct RowContext<'a> {
    batch: Option<&'a str>,
}

/// Identity of the node that changes.
#[derive(Serialize)]
struct DecidedBefore<'a> {
    instance_id: &'a Option<InstanceId>,
    node_uid: &'a Option<Uid>,
    pool: &'a Option<PoolName>,
    instance_type: &'a Option<InstanceTypeName>,
    zone: &'a Option<ZoneName>,
    capacity_type: Option<CapacityType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a GroupSize>,
}

/// Decisions about the node to launch.
#[derive(Serialize)]
struct DecidedAfter<'a> {
    pool: &'a Option<PoolName>,
    instance_type: &'a Option<InstanceTypeName>,
    zone: &'a Option<ZoneName>,
    zone_id: &'a Option<ZoneId>,
    capacity_type: Option<CapacityType>,
    image: &'a Option<String>,
    labels: &'a Labels,
    taints: Vec<&'a Taint>,
    startup_taints: Vec<&'a Taint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reservation: &'a Option<ReservationId>,
    spec_digest: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: &'a Option<GroupSize>,
    /// Capacity and allocatable, which the placement simulation relies on.
    #[serde(skip_serializing_if = "Option::is_none")]
    offers: Option<[&'a Amount; 2]>,
    /// Keys of labels that become tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    open_labels: Option<Vec<&'a LabelKey>>,
}

/// A wave. The order of its addresses is irrelevant.
#[derive(Serialize)]
struct DecidedWave<'a> {
    step: WaveStep,
    addresses: Vec<&'a Address>,
}

/// Offerings that may replace the offering of one launch. Their order follows the prices, so the
/// digest ignores it. The identity covers both.
#[derive(Serialize)]
struct DecidedAlternatives<'a> {
    address: &'a Address,
    offerings: Vec<(&'a InstanceTypeName, &'a ZoneName, CapacityType)>,
}

/// Further nodes of one pool. As with launches, prices are not covered: a new price list voids no
/// approval. The controller keeps the prices that were approved.
#[derive(Serialize)]
struct DecidedContingency<'a> {
    pool: &'a PoolName,
    nodes: u32,
    instance_types: Vec<&'a InstanceTypeName>,
}

/// A precondition of one row.
#[derive(Serialize)]
struct DecidedPrecondition<'a> {
    address: &'a Address,
    condition: &'a Condition,
}

impl<'a> PlanDecisions<'a> {
    fn from_plan(plan: &'a Plan) -> Self {
        let Plan {
            format_version: _,
            tool_version: _,
            timestamp: _,
            // Part of the identity: they state whether the plan may be applied, not its effect.
            applyable: _,
            errored: _,
            complete,
            resource_changes,
            resource_drift: _,
            // Absent in memory: readers restore the rows.
            unchanged: _,
            // Derived from the rows, and absent in memory.
            planned_values: _,
            prior_state: _,
            checksum: _,
            checks: _,
            summary: _,
            capacity,
        } = plan;
        let Capacity {
            digest: _,
            plan_id: _,
            base,
            expires_at: _,
            waves,
            pods: _,
            placement,
            placements: _,
            unschedulable: _,
            cluster_autoscaler: _,
            unresolved: _,
            demand: _,
            modes: _,
            daemons: _,
            cost: _,
            alternatives,
            node_annotations,
            explain,
            diagnostics: _,
            // A comparison with another revision is no decision.
            comparison: _,
            disruption_budgets: _,
        } = capacity;
        let (cluster, preconditions) = decided_base(base);
        let whole = has_complete_digest(plan);
        let rows = rows(resource_changes, explain, whole);
        Self {
            domain: if whole { DIGEST_DOMAIN_V2 } else { DIGEST_DOMAIN },
            cluster,
            complete: *complete,
            rows: sorted(rows, |row: &DecidedRow<'_>| row.address),
            waves: waves.iter().map(DecidedWave::from_wave).collect(),
            alternatives: sorted(
                alternatives.iter().map(DecidedAlternatives::from_row).collect(),
                |row: &DecidedAlternatives<'_>| row.address,
            ),
            preconditions,
            contingency: decided_contingency(placement),
            node_annotations: Some(node_annotations).filter(|all| !all.is_empty()),
        }
    }
}

/// Returns the cluster and the preconditions.
fn decided_base(base: &Base) -> (&ClusterIdentity, Vec<DecidedPrecondition<'_>>) {
    let Base {
        path: _,
        directory: _,
        repository: _,
        commit: _,
        tree: _,
        dirty: _,
        rendered: _,
        // Part of the identity, as the tree.
        cluster_pools: _,
        world,
        demand: _,
        // Part of the identity: it states why nodes stay, not which.
        unresolved: _,
        ignores_runs: _,
        // It decides how files are named.
        whole_repository: _,
        preconditions,
        // Part of the identity.
        guard: _,
        judged_by: _,
    } = base;
    let BaseWorld { name: _, cluster, taken_at: _, sources: _ } = world;
    let preconditions = in_order(preconditions).into_iter().map(DecidedPrecondition::new);
    (cluster, preconditions.collect())
}

/// Returns the rows that change something, with their batches if `whole` is set.
fn rows<'a>(
    changes: &'a [ResourceChange],
    explain: &'a [ExplainRow],
    whole: bool,
) -> Vec<DecidedRow<'a>> {
    let batches: BTreeMap<&Address, &str> = explain.iter().filter_map(batch).collect();
    let row = |row: &'a ResourceChange| {
        let batch = batches.get(&row.address).copied();
        DecidedRow::from_change(row, whole.then_some(RowContext { batch }))
    };
    changes.iter().filter_map(row).collect()
}

/// Returns the address of a row and the name that rows of one replacement share.
fn batch(row: &ExplainRow) -> Option<(&Address, &str)> {
    let ExplainRow {
        address,
        group,
        reason: _,
        retire_reason: _,
        hourly_before: _,
        hourly_after: _,
        pods: _,
        pods_before: _,
        daemons: _,
        rejected: _,
        overlays: _,
        relaxed: _,
        drift: _,
        differences: _,
        estimated: _,
    } = row;
    Some((address, group.as_deref()?))
}

impl<'a> DecidedRow<'a> {
    /// Projects a row that changes something. `whole` is `None` in formats with partial digests.
    fn from_change(row: &'a ResourceChange, whole: Option<RowContext<'a>>) -> Option<Self> {
        let ResourceChange {
            address,
            kind,
            name,
            index,
            // Equal in all rows, and absent in memory.
            mode: _,
            provider_name: _,
            change,
            action_reason: _,
        } = row;
        let Change { actions, before, after, after_unknown: _, termination_grace_seconds } = change;
        let changes = actions.as_slice() != [Action::NoOp];
        changes.then(|| Self {
            address,
            kind: *kind,
            name: whole.map(|_| name.as_str()),
            index: whole.and(index.as_deref()),
            batch: whole.and_then(|context| context.batch),
            actions,
            before: before.as_ref().map(|state| DecidedBefore::from_state(state, whole.is_some())),
            after: after.as_ref().map(|state| DecidedAfter::from_state(state, whole.is_some())),
            termination_grace_seconds: *termination_grace_seconds,
        })
    }
}

impl<'a> DecidedBefore<'a> {
    fn from_state(state: &'a NodeState, whole: bool) -> Self {
        let NodeState {
            pool,
            instance_type,
            zone,
            // Redundant: the zone name identifies the zone within the account.
            zone_id: _,
            capacity_type,
            image: _,
            labels: _,
            taints: _,
            startup_taints: _,
            capacity: _,
            allocatable: _,
            // Redundant with the instance id.
            reservation: _,
            open_labels: _,
            spec_digest: _,
            instance_id,
            // A node name can be reused; the UID is the identity.
            node: _,
            node_uid,
            // Follows from the instance.
            launched_at: _,
            group,
        } = state;
        let (capacity_type, group) = (*capacity_type, group.as_ref().filter(|_| whole));
        Self { instance_id, node_uid, pool, instance_type, zone, capacity_type, group }
    }
}

impl<'a> DecidedAfter<'a> {
    fn from_state(state: &'a NodeState, whole: bool) -> Self {
        let NodeState {
            pool,
            instance_type,
            zone,
            zone_id,
            capacity_type,
            image,
            labels,
            taints,
            startup_taints,
            capacity,
            allocatable,
            reservation,
            open_labels,
            spec_digest,
            // The state before identifies a node that is updated in place.
            instance_id: _,
            node: _,
            node_uid: _,
            launched_at: _,
            group,
        } = state;
        Self {
            pool,
            instance_type,
            zone,
            zone_id,
            capacity_type: *capacity_type,
            image,
            labels,
            taints: in_order(taints),
            startup_taints: in_order(startup_taints),
            reservation,
            spec_digest,
            group,
            offers: whole.then_some([capacity, allocatable]),
            open_labels: whole.then(|| in_order(open_labels)),
        }
    }
}

impl<'a> DecidedWave<'a> {
    fn from_wave(wave: &'a Wave) -> Self {
        let Wave { step, addresses } = wave;
        Self { step: *step, addresses: in_order(addresses) }
    }
}

impl<'a> DecidedAlternatives<'a> {
    fn from_row(row: &'a AlternativesRow) -> Self {
        let AlternativesRow { address, offerings } = row;
        let offering = |offering: &'a Alternative| {
            let Alternative { instance_type, zone, capacity_type, hourly: _ } = offering;
            (instance_type, zone, *capacity_type)
        };
        let mut offerings: Vec<_> = offerings.iter().map(offering).collect();
        offerings.sort();
        Self { address, offerings }
    }
}

fn decided_contingency(placement: &Placement) -> Option<Vec<DecidedContingency<'_>>> {
    let Placement {
        mode: _,
        orders: _,
        packed_hourly: _,
        unsteered: _,
        contingency,
        failure_domains: _,
    } = placement;
    contingency.as_ref().map(decided_pools)
}

fn decided_pools<'a>(contingency: &'a Contingency) -> Vec<DecidedContingency<'a>> {
    // Numbers of nodes are sums over the pools. The pods only explain them.
    let Contingency { nodes: _, hourly: _, pods: _, pools } = contingency;
    let pool = |pool: &'a PoolContingency| {
        let PoolContingency { pool, nodes, hourly: _, node_hourly: _, instance_types } = pool;
        DecidedContingency { pool, nodes: *nodes, instance_types: in_order(instance_types) }
    };
    sorted(pools.iter().map(pool).collect(), |pool: &DecidedContingency<'_>| pool.pool)
}

impl<'a> DecidedPrecondition<'a> {
    fn new(precondition: &'a Precondition) -> Self {
        let Precondition { address, condition } = precondition;
        Self { address, condition }
    }
}

fn in_order<T: Ord>(items: &[T]) -> Vec<&T> {
    let mut items: Vec<&T> = items.iter().collect();
    items.sort();
    items
}

fn sorted<'a, T, K: Ord + ?Sized + 'a>(mut rows: Vec<T>, key: impl Fn(&T) -> &'a K) -> Vec<T> {
    rows.sort_by(|a, b| key(a).cmp(key(b)));
    rows
}

#[cfg(test)]
mod tests;
