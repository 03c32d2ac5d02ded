//! Preconditions: every change has those that make it safe, and each of them can hold.

use std::collections::{BTreeMap, BTreeSet};

use super::Verdict;
use super::case::{Case, Deed, Row, number};
use crate::fleet::tag;
use crate::ids::{PoolName, WorkloadId, WorkloadKind};
use crate::plan::wire::{Condition, Precondition};
use crate::solve::workload_key;

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    let stated = &case.plan.capacity.base.preconditions;
    if !stated.windows(2).all(|pair| pair[0] < pair[1]) {
        verdict.plan("conditions/order", "preconditions are not in order, or stand twice");
    }
    let stated: BTreeSet<&Precondition> = stated.iter().collect();
    for row in &case.rows {
        for condition in required(case, row) {
            let wanted = Precondition { address: row.address.clone(), condition };
            if !stated.contains(&wanted) {
                let fault = format!("lacks the precondition {:?}", wanted.condition);
                verdict.row("conditions/missing", row.address, fault);
            }
        }
    }
    for precondition in stated {
        possible(case, precondition, verdict);
    }
}

/// Returns what must hold for the change of `row` to be safe.
fn required(case: &Case<'_>, row: &Row<'_>) -> Vec<Condition> {
    let mut conditions = Vec::new();
    if let (true, Some(before)) = (row.deed.deletes(), row.before) {
        if let Some(instance_id) = before.instance_id.clone() {
            let node = case.facts.observed.node_of(&instance_id);
            let node_uid = node.map(|node| node.uid.clone());
            conditions.push(Condition::InstanceIs { instance_id, node_uid });
        }
        conditions.extend(
            shrinking(case, row)
                .into_iter()
                .map(|(workload, replicas)| Condition::ReplicasAtMost { workload, replicas }),
        );
    }
    if let (true, Some(pool), Some(key)) = (
        row.deed.creates() && !keeps_key(row),
        row.after.and_then(|after| after.pool.clone()),
        row.change.index.clone(),
    ) {
        conditions.push(Condition::KeyUnused { pool, key });
    }
    conditions
}

/// Returns whether the node that comes takes over the key of the one that it replaces.
fn keeps_key(row: &Row<'_>) -> bool {
    let key = row.instance.and_then(|instance| instance.tags.get(tag::KEY));
    row.deed == Deed::Replace && key.is_some() && key == row.change.index.as_ref()
}

/// Returns the workloads with pods on the node that have more pods than planned, and how many are
/// planned: until they have shrunk, the pods of the node have no room elsewhere.
fn shrinking(case: &Case<'_>, row: &Row<'_>) -> BTreeMap<WorkloadId, u32> {
    let Some(node) = row.node else { return BTreeMap::new() };
    let observed = case.facts.observed;
    let here = observed.pods.iter().filter(|pod| pod.is_active());
    let here = here.filter(|pod| pod.node.as_ref() == Some(&node.name));
    let owners: BTreeSet<&WorkloadId> = here.filter_map(|pod| pod.owner.as_ref()).collect();
    let scaled = owners.into_iter().filter(|owner| owner.kind != WorkloadKind::DaemonSet);
    scaled
        .map(|owner| (owner, planned(case, owner)))
        .filter(|(owner, planned)| live(case, owner) > *planned)
        .map(|(owner, planned)| (owner.clone(), planned))
        .collect()
}

fn planned(case: &Case<'_>, workload: &WorkloadId) -> u32 {
    case.groups.get(&workload_key(workload)).map_or(0, |group| group.counts.planned)
}

/// Returns the replicas that the cluster has the workload set to, or its pods where it is not known.
fn live(case: &Case<'_>, workload: &WorkloadId) -> u32 {
    let observed = case.facts.observed;
    let known = observed.workloads.iter().find(|live| live.id == *workload);
    let pods = || {
        let pods = observed.pods.iter().filter(|pod| pod.is_active());
        number(pods.filter(|pod| pod.owner.as_ref() == Some(workload)))
    };
    known.map_or_else(pods, |live| live.replicas)
}

/// Holds a precondition to a row that changes, and to a world in which it can hold.
fn possible(case: &Case<'_>, precondition: &Precondition, verdict: &mut Verdict) {
    let Precondition { address, condition } = precondition;
    let Some(row) = case.row(address).filter(|row| row.deed != Deed::Keep) else {
        return verdict.row("conditions/row", address, "a precondition of what does not change");
    };
    let fault = match condition {
        Condition::InstanceIs { instance_id, node_uid } => {
            let observed = case.facts.observed;
            let uid = observed.node_of(instance_id).map(|node| &node.uid);
            let holds = observed.instances.contains_key(instance_id) && uid == node_uid.as_ref();
            (!holds).then(|| format!("{instance_id} is not what was observed"))
        }
        Condition::KeyUnused { pool, key } => {
            let user = row.instance.filter(|_| keeps_key(row)).map(|instance| &instance.id);
            let others = used_by(case, pool, key).into_iter().find(|id| Some(*id) != user);
            others.map(|id| format!("key {key} of pool {pool} is used by {id}"))
        }
        Condition::ReplicasAtMost { workload, replicas } => {
            let planned = planned(case, workload);
            (planned != *replicas)
                .then(|| format!("{workload} is planned with {planned} pods, not {replicas}"))
        }
    };
    if let Some(fault) = fault {
        verdict.row("conditions/possible", address, fault);
    }
}

fn used_by<'a>(case: &Case<'a>, pool: &PoolName, key: &str) -> Vec<&'a crate::ids::InstanceId> {
    let instances = case.facts.observed.instances.values();
    let ours = instances.filter(|instance| instance.is_active() && case.is_ours(instance));
    let of = |tags: &BTreeMap<String, String>, name: &str, value: &str| {
        tags.get(name).is_some_and(|held| held == value)
    };
    ours.filter(|i| of(&i.tags, tag::POOL, pool.as_str()) && of(&i.tags, tag::KEY, key))
        .map(|instance| &instance.id)
        .collect()
}
