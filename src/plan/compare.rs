//! Compares the plans of two revisions: the changes that one of them causes.
//!
//! Invariant: a change is *pending* only if the other
//! plan makes the same change to the same node, or launches a node of the same kind. Row keys are
//! ignored, since they depend on the other launches of a plan.

use std::collections::{BTreeMap, BTreeSet};

use super::change_summary::change_summary;
use super::wire::{
    Action, ComparedWorkload, Comparison, Cost, DemandRow, NodeState, Plan, ResourceChange,
    workload_key,
};
use crate::model::ids::WorkloadId;
use crate::model::units::MicroUsd;

/// Returns the changes of `plan` that `other`, planned from `revision` over the same observation,
/// does not make.
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
    let mut withdrawn: Vec<String> = theirs
        .into_values()
        .flatten()
        .map(|row| format!("{}: {}", row.address, change_summary(row)))
        .collect();
    withdrawn.sort();
    let (ours, before) = (&plan.capacity.cost, &other.capacity.cost);
    let overlays = overlays([ours, before]);
    let hourly_caused_list = (!overlays.is_empty()).then(|| list_price(ours) - list_price(before));
    Comparison {
        revision: revision.to_owned(),
        commit: other.capacity.base.commit.clone(),
        digest: other.capacity.digest.clone(),
        caused,
        pending,
        withdrawn,
        hourly_after: before.hourly_after,
        hourly_caused: ours.hourly_after - before.hourly_after,
        hourly_caused_list,
        hourly_pending: before.hourly_after - ours.hourly_before,
        overlays,
        workloads: workloads(&other.capacity.demand, &plan.capacity.demand),
        unplaced_pending: shared_unschedulable(other, plan),
        problems_pending: shared_problems(other, plan),
    }
}

/// Returns the node overlays that set a price of one of these plans.
fn overlays(costs: [&Cost; 2]) -> Vec<String> {
    let lists = costs.into_iter().filter_map(|cost| cost.list.as_ref());
    let names: BTreeSet<&String> = lists.flat_map(|list| &list.overlays).collect();
    names.into_iter().cloned().collect()
}

/// Returns the price per hour after the apply, without the prices of node overlays.
fn list_price(cost: &Cost) -> MicroUsd {
    cost.list.as_ref().map_or(cost.hourly_after, |list| list.hourly_after)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::difference;
    use crate::plan::wire::{GroupSize, ListCost, ResourceKind};
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
    fn overlays_of_either_plan_are_named_with_the_list_price() {
        let (mut ours, mut other) = (plan(), plan());
        assert_eq!(compare(&ours, &other, "main").hourly_caused_list, None);
        let list = |after: i64, overlay: &str| {
            let overlays = vec![overlay.to_owned()];
            let (hourly_before, hourly_after) = (MicroUsd::ZERO, MicroUsd(after));
            Some(ListCost { hourly_before, hourly_after, overlays, unlisted: 0 })
        };
        ours.capacity.cost.hourly_after = MicroUsd(10);
        ours.capacity.cost.list = list(70, "deal");
        other.capacity.cost.hourly_after = MicroUsd(30);
        let found = compare(&ours, &other, "main");
        let caused = (found.hourly_caused, found.hourly_caused_list);
        assert_eq!(caused, (MicroUsd(-20), Some(MicroUsd(40))));
        assert_eq!(found.overlays, ["deal"]);
        other.capacity.cost.list = list(50, "cheap");
        let found = compare(&ours, &other, "main");
        assert_eq!(found.hourly_caused_list, Some(MicroUsd(20)));
        assert_eq!(found.overlays, ["cheap", "deal"]);
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
}
