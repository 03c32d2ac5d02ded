//! Compares two plans: the differences between any two, and the changes that one revision causes
//! compared with another.
//!
//! This module depends only on the wire form. Invariant: a change is *pending* only if the other
//! plan makes the same change to the same node, or launches a node of the same kind. Row keys are
//! ignored, since they depend on the other launches of a plan.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use super::wire::{
    Action, ComparedWorkload, Comparison, Condition, DemandRow, NodeState, Plan, Precondition,
    ResourceChange, workload_key,
};
use crate::model::ids::{Address, Digest, PlanId, WorkloadId};
use crate::model::units::MicroUsd;

/// Returns the changes of `plan` that `other`, planned from `revision` over the same observation,
/// does not make.
#[must_use]
pub fn compare(plan: &Plan, other: &Plan, revision: &str) -> Comparison {
    let mut theirs: BTreeMap<String, Vec<&ResourceChange>> = BTreeMap::new();
    for row in changes(other) {
        theirs.entry(identity(row)).or_default().push(row);
    }
    let (mut caused, mut pending) = (Vec::new(), Vec::new());
    for row in changes(plan) {
        let same = theirs.get_mut(&identity(row)).and_then(Vec::pop);
        let list = if same.is_some() { &mut pending } else { &mut caused };
        list.push(row.address.clone());
    }
    let withdrawn = theirs.into_values().flatten().map(describe_change);
    let (ours, before) = (&plan.capacity.cost, &other.capacity.cost);
    let mut withdrawn: Vec<String> = withdrawn.collect();
    withdrawn.sort();
    Comparison {
        revision: revision.to_owned(),
        commit: other.capacity.base.commit.clone(),
        digest: other.capacity.digest.clone(),
        caused,
        pending,
        withdrawn,
        hourly_after: before.hourly_after,
        hourly_caused: ours.hourly_after - before.hourly_after,
        hourly_pending: before.hourly_after - ours.hourly_before,
        workloads: workloads(&other.capacity.demand, &plan.capacity.demand),
        unplaced_pending: shared_unschedulable(other, plan),
        problems_pending: shared_problems(other, plan),
    }
}

/// Returns the workloads of `ours` for which `theirs` leaves at least as many pods unschedulable.
fn shared_unschedulable(theirs: &Plan, ours: &Plan) -> Vec<WorkloadId> {
    let unschedulable = |plan: &Plan| {
        let mut pods: BTreeMap<WorkloadId, u32> = BTreeMap::new();
        for row in &plan.capacity.unschedulable {
            *pods.entry(row.workload.clone()).or_insert(0) += row.pods;
        }
        pods
    };
    let theirs = unschedulable(theirs);
    let is_known = |(workload, pods): &(WorkloadId, u32)| theirs.get(workload) >= Some(pods);
    unschedulable(ours).into_iter().filter(is_known).map(|(workload, _)| workload).collect()
}

/// Returns the problems that both plans report.
fn shared_problems(theirs: &Plan, ours: &Plan) -> Vec<String> {
    let problems = |plan: &Plan| -> BTreeSet<String> {
        plan.capacity.diagnostics.iter().map(Comparison::problem_key).collect()
    };
    problems(theirs).intersection(&problems(ours)).cloned().collect()
}

fn changes(plan: &Plan) -> impl Iterator<Item = &ResourceChange> {
    plan.resource_changes.iter().filter(|row| row.change.actions.as_slice() != [Action::NoOp])
}

/// Returns a key that is equal for equal changes.
fn identity(row: &ResourceChange) -> String {
    let before = row.change.before.as_ref().map(|state| match (&state.instance_id, &state.node) {
        (Some(id), _) => id.to_string(),
        (None, Some(node)) => node.to_string(),
        (None, None) => row.address.to_string(),
    });
    let after = row.change.after.as_ref().map(|state| {
        let NodeState { pool, instance_type, zone, capacity_type, spec_digest, taints, .. } = state;
        let size = state.group.as_ref().map(|group| group.desired);
        format!(
            "{pool:?} {instance_type:?} {zone:?} {capacity_type:?} {spec_digest:?} {taints:?} \
             {size:?}"
        )
    });
    let labels = match row.change.actions.as_slice() {
        [Action::Update] => row.change.after.as_ref().map(|state| &state.labels),
        _ => None,
    };
    format!("{:?} {:?} {before:?} {after:?} {labels:?}", row.kind, row.change.actions)
}

/// Returns a one-line description of a change, with its address.
fn describe_change(row: &ResourceChange) -> String {
    format!("{}: {}", row.address, describe_actions(row))
}

/// Returns a one-line description of the actions of a row.
fn describe_actions(row: &ResourceChange) -> String {
    let text = |state: &NodeState| {
        let parts = [
            state.instance_type.as_ref().map(ToString::to_string),
            state.zone.as_ref().map(ToString::to_string),
            state.capacity_type.map(|kind| kind.to_string()),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    let before = row.change.before.as_ref().map(text).unwrap_or_default();
    let after = row.change.after.as_ref().map(text).unwrap_or_default();
    let id = row.change.before.as_ref().and_then(|state| state.instance_id.as_ref());
    let id = id.map_or_else(String::new, |id| format!(" ({id})"));
    match row.change.actions.as_slice() {
        [Action::NoOp] => format!("keep {before}{id}"),
        [Action::Create] => format!("launch {after}"),
        [Action::Delete] => format!("terminate {before}{id}"),
        [Action::Update] => {
            match (size(row.change.before.as_ref()), size(row.change.after.as_ref())) {
                (Some(before), Some(after)) => format!("resize from {before} to {after}"),
                (_, _) => format!("update {before}{id}"),
            }
        }
        _ => format!("replace {before}{id} by {after}"),
    }
}

/// Returns the desired size of a group; `None` for a state of a node.
fn size(state: Option<&NodeState>) -> Option<u32> {
    Some(state?.group.as_ref()?.desired)
}

fn workloads(theirs: &[DemandRow], ours: &[DemandRow]) -> Vec<ComparedWorkload> {
    let by_key = |rows: &[DemandRow]| {
        let mut map: BTreeMap<String, DemandRow> = BTreeMap::new();
        for row in rows {
            let sum = map.entry(workload_key(&row.workload));
            sum.and_modify(|known| known.counts.planned += row.counts.planned)
                .or_insert_with(|| row.clone());
        }
        map
    };
    let (theirs, ours) = (by_key(theirs), by_key(ours));
    let planned = |row: Option<&DemandRow>| row.map_or(0, |row| row.counts.planned);
    let mut keys: Vec<&String> = theirs.keys().chain(ours.keys()).collect();
    keys.sort();
    keys.dedup();
    let differs = |key: &&String| {
        let (before, after) = (theirs.get(*key), ours.get(*key));
        let requests = |row: Option<&DemandRow>| row.map(|row| row.requests.clone());
        planned(before) != planned(after)
            || (before.is_some() && after.is_some() && requests(before) != requests(after))
    };
    let row = |key: &String| {
        let (before, after) = (theirs.get(key), ours.get(key));
        let workload = after.or(before)?.workload.clone();
        let origin = after.and_then(|row| row.origin.clone());
        let requests = before.zip(after).map(|(a, b)| (a.requests.clone(), b.requests.clone()));
        let (requests_before, requests_after) = requests.filter(|(a, b)| a != b).unzip();
        let (before, after) = (planned(before), planned(after));
        Some(ComparedWorkload { workload, origin, before, after, requests_before, requests_after })
    };
    keys.into_iter().filter(differs).filter_map(row).collect()
}

/// Differences between two plans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The first plan.
    pub a: PlanOverview,
    /// The second plan.
    pub b: PlanOverview,
    /// True if both plans have the same decisions.
    pub same_decisions: bool,
    /// True if both plans have the same identity, so that an approval of one covers the other.
    pub same_plan: bool,
    /// Rows with different actions, by address.
    pub rows: Vec<DifferenceRow>,
    /// Rows with different preconditions, by address.
    pub preconditions: Vec<ConditionDifference>,
}

/// Key data of one of the compared plans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanOverview {
    /// Digest.
    pub digest: Digest,
    /// Identity.
    pub plan_id: PlanId,
    /// Commit.
    pub commit: Option<String>,
    /// Time that the plan is made for.
    pub timestamp: Timestamp,
    /// Numbers of rows that create, update and delete.
    pub changes: [u32; 3],
    /// Price per hour after the apply.
    pub hourly_after: MicroUsd,
    /// Number of unschedulable pods.
    pub unschedulable: u32,
}

/// A row that differs between two plans.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DifferenceRow {
    /// Address of the row.
    pub address: Address,
    /// Action of the first plan; absent if it has no such row.
    pub a: Option<String>,
    /// Action of the second plan; absent if it has no such row.
    pub b: Option<String>,
}

/// The preconditions of a row that only one of two plans has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConditionDifference {
    /// Address of the row.
    pub address: Address,
    /// Preconditions of the first plan alone.
    pub a: BTreeSet<Condition>,
    /// Preconditions of the second plan alone.
    pub b: BTreeSet<Condition>,
}

/// Returns the differences between two plans.
#[must_use]
pub fn difference(a: &Plan, b: &Plan) -> Difference {
    Difference {
        same_decisions: a.capacity.digest == b.capacity.digest,
        same_plan: a.capacity.plan_id == b.capacity.plan_id,
        rows: differing_rows(row_descriptions(a), row_descriptions(b)),
        preconditions: differing_conditions(&conditions(a), &conditions(b)),
        a: PlanOverview::new(a),
        b: PlanOverview::new(b),
    }
}

impl PlanOverview {
    fn new(plan: &Plan) -> Self {
        let capacity = &plan.capacity;
        Self {
            digest: capacity.digest.clone(),
            plan_id: capacity.plan_id.clone(),
            commit: capacity.base.commit.clone(),
            timestamp: plan.timestamp,
            changes: [plan.summary.add, plan.summary.change, plan.summary.destroy],
            hourly_after: capacity.cost.hourly_after,
            unschedulable: capacity.pods.unschedulable,
        }
    }
}

fn row_descriptions(plan: &Plan) -> BTreeMap<Address, String> {
    plan.resource_changes.iter().map(|row| (row.address.clone(), describe_actions(row))).collect()
}

fn conditions(plan: &Plan) -> BTreeMap<Address, BTreeSet<Condition>> {
    let mut map: BTreeMap<Address, BTreeSet<Condition>> = BTreeMap::new();
    for Precondition { address, condition } in &plan.capacity.base.preconditions {
        map.entry(address.clone()).or_default().insert(condition.clone());
    }
    map
}

fn differing_conditions(
    a: &BTreeMap<Address, BTreeSet<Condition>>,
    b: &BTreeMap<Address, BTreeSet<Condition>>,
) -> Vec<ConditionDifference> {
    let addresses: BTreeSet<&Address> = a.keys().chain(b.keys()).collect();
    let none = BTreeSet::new();
    let row = |address: &Address| {
        let (a, b) = (a.get(address).unwrap_or(&none), b.get(address).unwrap_or(&none));
        let alone = |one: &BTreeSet<Condition>, other| one.difference(other).cloned().collect();
        ConditionDifference { address: address.clone(), a: alone(a, b), b: alone(b, a) }
    };
    let rows = addresses.into_iter().map(row);
    rows.filter(|row| !row.a.is_empty() || !row.b.is_empty()).collect()
}

fn differing_rows(
    a: BTreeMap<Address, String>,
    mut b: BTreeMap<Address, String>,
) -> Vec<DifferenceRow> {
    let mut rows = Vec::new();
    for (address, a) in a {
        let b = b.remove(&address);
        if b.as_ref() != Some(&a) {
            rows.push(DifferenceRow { address, a: Some(a), b });
        }
    }
    rows.extend(b.into_iter().map(|(address, b)| DifferenceRow { address, a: None, b: Some(b) }));
    rows.sort();
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::wire::{GroupSize, ResourceKind};
    use crate::testing::valid_plan::plan;

    fn launches(plan: &mut Plan) -> Vec<&mut ResourceChange> {
        let created = |row: &&mut ResourceChange| row.change.actions == [Action::Create];
        plan.resource_changes.iter_mut().filter(created).collect()
    }

    #[test]
    fn changes_of_both_revisions_are_pending_under_any_key() {
        let ours = plan();
        let mut other = plan();
        for row in launches(&mut other) {
            row.address = "ec2_instance.web[\"77\"]".into();
        }
        let found = compare(&ours, &other, "main");
        assert_eq!((found.caused.len(), found.withdrawn.len()), (0, 0), "{found:?}");
        assert_eq!(found.pending.len(), changes(&ours).count());
        assert_eq!(found.hourly_caused, MicroUsd::ZERO);
        assert_eq!(found.hourly_pending, ours.capacity.cost.hourly_delta);
    }

    #[test]
    fn changes_of_one_revision_are_caused_or_withdrawn() {
        let ours = plan();
        let mut other = plan();
        for row in launches(&mut other) {
            if let Some(state) = &mut row.change.after {
                state.instance_type = Some("x9.large".into());
            }
        }
        other.capacity.demand[0].counts.planned += 4;
        other.capacity.cost.hourly_after += MicroUsd(5);
        let found = compare(&ours, &other, "main");
        assert_eq!(found.caused.len(), 1);
        assert!(found.withdrawn[0].contains("launch x9.large"), "{:?}", found.withdrawn);
        assert_eq!(found.hourly_caused, MicroUsd(-5));
        assert_eq!(found.workloads.len(), 1);
        assert_eq!(found.workloads[0].requests_after, None, "each pod asks for the same");
        let total = found.hourly_caused + found.hourly_pending;
        assert_eq!(total, ours.capacity.cost.hourly_after - ours.capacity.cost.hourly_before);
    }

    #[test]
    fn changed_requests_are_reported_old_problems_are_pending() {
        let (ours, mut other) = (plan(), plan());
        other.capacity.demand[0].requests.cpu_milli += 100;
        let found = compare(&ours, &other, "main");
        let row = &found.workloads[0];
        assert_eq!(row.before, row.after);
        let cpu = |amount: &Option<crate::plan::wire::Amount>| amount.as_ref().map(|a| a.cpu_milli);
        assert_eq!(cpu(&row.requests_before), cpu(&row.requests_after).map(|cpu| cpu + 100));
        let diagnostic = |message: &str| crate::plan::wire::Diagnostic::warning("o", message);
        let (mut ours, mut other) = (plan(), plan());
        ours.capacity.diagnostics = vec![diagnostic("old"), diagnostic("new")];
        other.capacity.diagnostics = vec![diagnostic("old")];
        assert_eq!(compare(&ours, &other, "main").problems_pending, ["o: old"]);
    }

    #[test]
    fn group_changes_with_other_sizes_differ() {
        let sized = |desired: u32| NodeState {
            group: Some(GroupSize { name: Some("g".into()), min: 1, max: 9, desired }),
            ..NodeState::empty()
        };
        let to = |desired: u32| {
            let mut plan = plan();
            let row = plan.resource_changes.first_mut().expect("a row");
            row.kind = ResourceKind::AutoscalingGroup;
            row.change.actions = vec![Action::Update];
            (row.change.before, row.change.after) = (Some(sized(3)), Some(sized(desired)));
            plan
        };
        let found = compare(&to(5), &to(4), "main");
        assert_eq!(found.caused.len(), 1, "{found:?}");
        assert!(found.withdrawn[0].ends_with("resize from 3 to 4"), "{:?}", found.withdrawn);
        assert_eq!(difference(&to(5), &to(4)).rows.len(), 1);
        assert!(difference(&to(5), &to(5)).rows.is_empty());
    }

    #[test]
    fn difference_lists_rows_with_other_actions() {
        let a = plan();
        let none = difference(&a, &a.clone());
        assert!(none.same_decisions && none.same_plan && none.rows.is_empty());
        let mut b = plan();
        for row in launches(&mut b) {
            if let Some(state) = &mut row.change.after {
                state.instance_type = Some("x9.large".into());
            }
        }
        let found = difference(&a, &b.with_identity());
        assert!(!found.same_decisions && !found.same_plan);
        assert_eq!(found.rows.len(), 1);
        assert!(found.rows[0].b.as_ref().is_some_and(|b| b.starts_with("launch x9.large")));
    }
}
