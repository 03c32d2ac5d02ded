//! What a plan decides, as one hash; and the identities that follow from it.
//!
//! The chain is: [`digest`] (what is approved) → [`plan_id`] (that, over one commit and one world:
//! what is applied at most once) → [`change_id`] (one row of it, a tag of what it launches) →
//! [`client_token`] (one attempt, at most one instance). Each is a SHA-256 over canonical JSON.
//!
//! The digest knows decisions and refuses everything else: commit, time, price, version, reasons,
//! diagnostics, demand mode and rows that change nothing leave it as it is, so that a squash, a new
//! price list or a new release does not void an approval. Invariant: every struct of the wire form
//! that holds a decision is taken apart here without `..`, so that a new field does not compile
//! until someone has said whether it is one.
//!
//! A field that a later minor version adds to the projection is left out where it is absent: the
//! digests of older plans stay what they were.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::canonical;
use super::wire::{
    Action, AlternativesRow, Base, BaseWorld, Capacity, Change, Condition, GroupSize, NodeState,
    Plan, Precondition, ResourceChange, ResourceKind, Wave, WaveStep,
};
use crate::catalog::CapacityType;
use crate::fleet::ClusterIdentity;
use crate::ids::{
    Address, ChangeId, Digest, InstanceId, InstanceTypeName, Labels, PlanId, PoolName,
    ReservationId, Uid, ZoneId, ZoneName,
};
use crate::pod::Taint;
use crate::solve::Alternative;

/// Names what is hashed, so that no hash of one kind is ever one of another.
const DIGEST_OF: &str = "fleetwright.dev/decisions/1";
const PLAN_ID_OF: &str = "fleetwright.dev/plan/1";
const CHANGE_ID_OF: &str = "fleetwright.dev/change/1";
const CLIENT_TOKEN_OF: &str = "fleetwright.dev/attempt/1";

/// What the files of a plan came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source<'a> {
    /// A commit, with nothing changed beside it.
    Commit(&'a str),
    /// A tree, by the hash of its paths and contents: no commit says what was read.
    Tree(&'a str),
}

impl<'a> Source<'a> {
    /// Returns the commit of `base`, or its tree where there is no commit or where the work tree
    /// differs from it.
    #[must_use]
    pub fn of(base: &'a Base) -> Self {
        match &base.commit {
            Some(commit) if !base.dirty => Self::Commit(commit),
            Some(_) | None => Self::Tree(&base.tree),
        }
    }
}

/// Returns the digest of what `plan` decides: `sha256:` and 64 hex digits.
///
/// It does not depend on the order of rows, and it does not read the digest that the plan states.
#[must_use]
pub fn digest(plan: &Plan) -> Digest {
    format!("sha256:{}", hash(&Decisions::of(plan))).into()
}

/// Returns the identity of one plan over one world, 64 hex digits: what is applied at most once.
///
/// The same decisions made from another commit, or over a world observed at another time, are
/// another plan, because they may be carried out once more.
#[must_use]
pub fn plan_id(digest: &Digest, source: Source<'_>, taken_at: Timestamp) -> PlanId {
    #[derive(Serialize)]
    struct Parts<'a> {
        of: &'static str,
        digest: &'a Digest,
        source: Source<'a>,
        taken_at: Timestamp,
    }
    hash(&Parts { of: PLAN_ID_OF, digest, source, taken_at }).into()
}

/// Returns the identity of the change at `address`, 64 hex digits; instances carry it as a tag.
#[must_use]
pub fn change_id(plan_id: &PlanId, address: &Address) -> ChangeId {
    #[derive(Serialize)]
    struct Parts<'a> {
        of: &'static str,
        plan_id: &'a PlanId,
        address: &'a Address,
    }
    hash(&Parts { of: CHANGE_ID_OF, plan_id, address }).into()
}

/// Returns the client token of the `attempt`-th launch of a change: 64 ASCII characters, the most
/// that EC2 accepts.
///
/// The same token never launches a second instance; the attempt rises only after a terminal
/// outcome was seen.
#[must_use]
pub fn client_token(change_id: &ChangeId, attempt: u32) -> String {
    #[derive(Serialize)]
    struct Parts<'a> {
        of: &'static str,
        change_id: &'a ChangeId,
        attempt: u32,
    }
    hash(&Parts { of: CLIENT_TOKEN_OF, change_id, attempt })
}

/// Returns the SHA-256 of the canonical JSON of `value`, as 64 hex digits.
fn hash<T: Serialize>(value: &T) -> String {
    let text = canonical::compact(value).expect("what is hashed holds neither floats nor bytes");
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        // Writing to a `String` cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
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
    actions: &'a [Action],
    before: Option<Before<'a>>,
    after: Option<After<'a>>,
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
            // Both follow from how the plan came about; apply refuses on its own account.
            applyable: _,
            errored: _,
            complete,
            resource_changes,
            resource_drift: _,
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
            explain: _,
            diagnostics: _,
            // What another revision would do decides nothing about this one.
            comparison: _,
            disruption_budgets: _,
        } = capacity;
        let Base {
            path: _,
            repository: _,
            commit: _,
            tree: _,
            dirty: _,
            rendered: _,
            world,
            demand: _,
            preconditions,
            guard: _,
        } = base;
        let BaseWorld { name: _, cluster, taken_at: _, sources: _ } = world;
        let rows = resource_changes.iter().filter_map(Row::of).collect();
        Self {
            of: DIGEST_OF,
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

impl<'a> Row<'a> {
    fn of(row: &'a ResourceChange) -> Option<Self> {
        // Name and index repeat the address; a judge holds them to it.
        let ResourceChange { address, kind, name: _, index: _, change, action_reason: _ } = row;
        let Change { actions, before, after, after_unknown: _ } = change;
        let changes = actions.as_slice() != [Action::NoOp];
        changes.then(|| Self {
            address,
            kind: *kind,
            actions,
            before: before.as_ref().map(Before::of),
            after: after.as_ref().map(After::of),
        })
    }
}

impl<'a> Before<'a> {
    fn of(state: &'a NodeState) -> Self {
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
            // Its precondition says it already.
            group: _,
        } = state;
        Self { instance_id, node_uid, pool, instance_type, zone, capacity_type: *capacity_type }
    }
}

impl<'a> After<'a> {
    fn of(state: &'a NodeState) -> Self {
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
            // Both follow from type, pool and class.
            capacity: _,
            allocatable: _,
            reservation,
            // Follows from the labels and the pool.
            open_labels: _,
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
