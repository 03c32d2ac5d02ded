//! What a plan decides, as one hash: what is approved.
//!
//! The digest knows decisions and refuses everything else: commit, time, price, version, reasons,
//! diagnostics, demand mode and rows that change nothing leave it as it is, so that a squash, a new
//! price list or a new release does not void an approval. Invariants: whatever `apply` reads of a row
//! is in the digest, so that nothing can be done under it that nobody approved; every struct of the
//! wire form that holds a decision is taken apart here without `..`, so that a new field does not
//! compile until someone has said whether it is one.
//!
//! A field that a later minor version adds to the projection is left out where it is absent: the
//! digests of older plans stay what they were.

use std::collections::BTreeMap;

use serde::Serialize;

use super::identity::hash;
use super::wire::{
    Action, AlternativesRow, Amount, Base, BaseWorld, Capacity, Change, Condition, ExplainRow,
    GroupSize, NodeState, Plan, Precondition, ResourceChange, ResourceKind, Wave, WaveStep,
};
use crate::catalog::CapacityType;
use crate::fleet::ClusterIdentity;
use crate::ids::{
    Address, Digest, InstanceId, InstanceTypeName, LabelKey, Labels, PoolName, ReservationId, Uid,
    ZoneId, ZoneName,
};
use crate::pod::Taint;
use crate::solve::Alternative;

/// Names what is hashed, so that no hash of one kind is ever one of another.
const DIGEST_OF: &str = "fleetwright.dev/decisions/1";
const WHOLE_DIGEST_OF: &str = "fleetwright.dev/decisions/2";

/// Versions of the format whose digests left out a part of what `apply` reads of a row.
const PARTIAL: [&str; 2] = ["1.0", "1.1"];

/// Returns whether digest and identity of `plan` hold everything that `apply` obeys: those of the
/// formats 1.0 and 1.1 do not, so such plans can be read and shown, and no longer applied.
#[must_use]
pub fn is_whole(plan: &Plan) -> bool {
    !PARTIAL.contains(&plan.format_version.as_str())
}

/// Returns the digest of what `plan` decides: `sha256:` and 64 hex digits.
///
/// It does not depend on the order of rows, and it does not read the digest that the plan states.
#[must_use]
pub fn digest(plan: &Plan) -> Digest {
    format!("sha256:{}", hash(&Decisions::of(plan))).into()
}

/// The decisions of a plan, and nothing else.
#[derive(Serialize)]
struct Decisions<'a> {
    of: &'static str,
    cluster: &'a ClusterIdentity,
    complete: bool,
    rows: Vec<Row<'a>>,
    waves: Vec<WaveOf<'a>>,
    alternatives: Vec<AlternativesOf<'a>>,
    preconditions: Vec<Expected<'a>>,
}

/// A row that changes something.
#[derive(Serialize)]
struct Row<'a> {
    address: &'a Address,
    #[serde(rename = "type")]
    kind: ResourceKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    /// Becomes a tag, by which a launch is found again.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<&'a str>,
    /// Decides whether a failed launch keeps a node from going.
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<&'a str>,
    actions: &'a [Action],
    before: Option<Before<'a>>,
    after: Option<After<'a>>,
}

/// What stands beside a row and decides something about it.
#[derive(Clone, Copy)]
struct Beside<'a> {
    batch: Option<&'a str>,
}

/// What identifies the node that changes.
#[derive(Serialize)]
struct Before<'a> {
    instance_id: &'a Option<InstanceId>,
    node_uid: &'a Option<Uid>,
    pool: &'a Option<PoolName>,
    instance_type: &'a Option<InstanceTypeName>,
    zone: &'a Option<ZoneName>,
    capacity_type: Option<CapacityType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a GroupSize>,
}

/// What is decided about the node that comes.
#[derive(Serialize)]
struct After<'a> {
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
    /// What the node is to offer: the rehearsal counts on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    offers: Option<[&'a Amount; 2]>,
    /// Keys of labels that become tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    open_labels: Option<Vec<&'a LabelKey>>,
}

/// A wave; the order of its addresses decides nothing.
#[derive(Serialize)]
struct WaveOf<'a> {
    step: WaveStep,
    addresses: Vec<&'a Address>,
}

/// The offerings that may stand in for one launch. They are a set: their order is that of prices.
#[derive(Serialize)]
struct AlternativesOf<'a> {
    address: &'a Address,
    offerings: Vec<(&'a InstanceTypeName, &'a ZoneName, CapacityType)>,
}

/// A precondition of one row.
#[derive(Serialize)]
struct Expected<'a> {
    address: &'a Address,
    condition: &'a Condition,
}

impl<'a> Decisions<'a> {
    fn of(plan: &'a Plan) -> Self {
        let Plan {
            format_version: _,
            tool_version: _,
            timestamp: _,
            // The identity holds both: they say whether, not what.
            applyable: _,
            errored: _,
            complete,
            resource_changes,
            resource_drift: _,
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
            placement: _,
            placements: _,
            unschedulable: _,
            unresolved: _,
            demand: _,
            modes: _,
            daemons: _,
            cost: _,
            alternatives,
            explain,
            diagnostics: _,
            // What another revision would do decides nothing about this one.
            comparison: _,
            disruption_budgets: _,
        } = capacity;
        let Base {
            path: _,
            directory: _,
            repository: _,
            commit: _,
            tree: _,
            dirty: _,
            rendered: _,
            world,
            demand: _,
            preconditions,
            // The identity holds both.
            guard: _,
            judged_by: _,
        } = base;
        let BaseWorld { name: _, cluster, taken_at: _, sources: _ } = world;
        let whole = is_whole(plan);
        let rows = rows(resource_changes, explain, whole);
        Self {
            of: if whole { WHOLE_DIGEST_OF } else { DIGEST_OF },
            cluster,
            complete: *complete,
            rows: sorted(rows, |row: &Row<'_>| row.address),
            waves: waves.iter().map(WaveOf::of).collect(),
            alternatives: sorted(
                alternatives.iter().map(AlternativesOf::of).collect(),
                |row: &AlternativesOf<'_>| row.address,
            ),
            preconditions: in_order(preconditions).into_iter().map(Expected::of).collect(),
        }
    }
}

/// Returns the rows that change something; `whole`: with the batch that each is of.
fn rows<'a>(changes: &'a [ResourceChange], explain: &'a [ExplainRow], whole: bool) -> Vec<Row<'a>> {
    let batches: BTreeMap<&Address, &str> = explain.iter().filter_map(batch).collect();
    let row = |row: &'a ResourceChange| {
        let batch = batches.get(&row.address).copied();
        Row::of(row, whole.then_some(Beside { batch }))
    };
    changes.iter().filter_map(row).collect()
}

/// Returns the rows that replace each other, by what they have in common.
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
        estimated: _,
    } = row;
    Some((address, group.as_deref()?))
}

impl<'a> Row<'a> {
    /// Projects a row that changes something; `whole` is absent in the formats that left a part out.
    fn of(row: &'a ResourceChange, whole: Option<Beside<'a>>) -> Option<Self> {
        let ResourceChange { address, kind, name, index, change, action_reason: _ } = row;
        let Change { actions, before, after, after_unknown: _ } = change;
        let changes = actions.as_slice() != [Action::NoOp];
        changes.then(|| Self {
            address,
            kind: *kind,
            name: whole.map(|_| name.as_str()),
            index: whole.and(index.as_deref()),
            batch: whole.and_then(|beside| beside.batch),
            actions,
            before: before.as_ref().map(|state| Before::of(state, whole.is_some())),
            after: after.as_ref().map(|state| After::of(state, whole.is_some())),
        })
    }
}

impl<'a> Before<'a> {
    fn of(state: &'a NodeState, whole: bool) -> Self {
        let NodeState {
            pool,
            instance_type,
            zone,
            // The zone's name, within the cluster's account, says it already.
            zone_id: _,
            capacity_type,
            image: _,
            labels: _,
            taints: _,
            startup_taints: _,
            capacity: _,
            allocatable: _,
            // The instance id says it already.
            reservation: _,
            open_labels: _,
            spec_digest: _,
            instance_id,
            // Nodes may be named again; the UID is the identity.
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

impl<'a> After<'a> {
    fn of(state: &'a NodeState, whole: bool) -> Self {
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
            // What is updated in place is identified by the state before.
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

impl<'a> WaveOf<'a> {
    fn of(wave: &'a Wave) -> Self {
        let Wave { step, addresses } = wave;
        Self { step: *step, addresses: in_order(addresses) }
    }
}

impl<'a> AlternativesOf<'a> {
    fn of(row: &'a AlternativesRow) -> Self {
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

impl<'a> Expected<'a> {
    fn of(precondition: &'a Precondition) -> Self {
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
