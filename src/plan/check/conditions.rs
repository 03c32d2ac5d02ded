//! Preconditions: every change has those that make it safe, and each of them can hold.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Case, Deed, Row};
use super::{Verdict, words};
use crate::fleet::tag;
use crate::ids::{NodeName, WorkloadId, WorkloadKind};
use crate::plan::wire::{Condition, Precondition};
use crate::solve::workload_key;

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    let stated = &case.plan.capacity.base.preconditions;
    if !stated.windows(2).all(|pair| pair[0] < pair[1]) {
        verdict.plan("conditions/order", "preconditions are not in order, or stand twice");
    }
    let stated: BTreeSet<&Precondition> = stated.iter().collect();
    let pods = Pods::of(case);
    for row in &case.rows {
        for condition in required(case, row, &pods) {
            let wanted = Precondition { address: row.address.clone(), condition };
            if !stated.contains(&wanted) {
                let fault = format!("lacks the precondition {}", words(&wanted.condition));
                verdict.row("conditions/missing", row.address, fault);
            }
        }
    }
    for precondition in stated {
        possible(case, precondition, verdict);
    }
}

/// Returns what must hold for the change of `row` to be safe.
fn required(case: &Case<'_>, row: &Row<'_>, pods: &Pods<'_>) -> Vec<Condition> {
    let mut conditions = Vec::new();
    if let (true, Some(before)) = (row.deed.deletes(), row.before) {
        if let Some(instance_id) = before.instance_id.clone() {
            let node_uid = case.node_of(&instance_id).map(|node| node.uid.clone());
            conditions.push(Condition::InstanceIs { instance_id, node_uid });
        }
        let shrinking = pods.shrinking(case, row).into_iter();
        conditions.extend(shrinking.map(|(workload, replicas)| Condition::ReplicasAtMost {
            workload: workload.clone(),
            replicas,
        }));
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

/// The pods that the world has, without those of DaemonSets.
struct Pods<'a> {
    /// The workloads with pods on each node.
    owners: BTreeMap<&'a NodeName, BTreeSet<&'a WorkloadId>>,
    /// How many pods each workload is set to, or has where that is not known.
    live: BTreeMap<&'a WorkloadId, u32>,
}

impl<'a> Pods<'a> {
    fn of(case: &Case<'a>) -> Self {
        let observed = case.facts.observed;
        let (mut owners, mut live) = (BTreeMap::<_, BTreeSet<_>>::new(), BTreeMap::new());
        // Nobody asks for them where nothing goes, which is most often so, and they are many.
        if !case.rows.iter().any(|row| row.deed.deletes()) {
            return Self { owners, live };
        }
        for pod in observed.pods.iter().filter(|pod| pod.is_active()) {
            let scaled = |owner: &&WorkloadId| owner.kind != WorkloadKind::DaemonSet;
            let Some(owner) = pod.owner.as_ref().filter(scaled) else { continue };
            *live.entry(owner).or_default() += 1;
            if let Some(node) = &pod.node {
                owners.entry(node).or_default().insert(owner);
            }
        }
        live.extend(observed.workloads.iter().map(|workload| (&workload.id, workload.replicas)));
        Self { owners, live }
    }

    /// Returns the workloads with pods on the row's node that are to have fewer pods than they
    /// have, and how many are planned: until they have shrunk, the plan's room elsewhere is taken.
    fn shrinking(&self, case: &Case<'_>, row: &Row<'_>) -> Vec<(&'a WorkloadId, u32)> {
        let here = row.node.and_then(|node| self.owners.get(&node.name)).into_iter().flatten();
        let live = |owner: &WorkloadId| self.live.get(owner).copied().unwrap_or(0);
        here.map(|owner| (*owner, planned(case, owner)))
            .filter(|(owner, planned)| live(owner) > *planned)
            .collect()
    }
}

fn planned(case: &Case<'_>, workload: &WorkloadId) -> u32 {
    let key = workload_key(workload);
    let on_nodes = case.groups.get(&key).map_or(0, |group| group.counts.planned);
    on_nodes.saturating_add(case.fargate.get(&key).map_or(0, |taken| taken.pods))
}

/// Holds a precondition to a row that changes, and to a world in which it can hold.
fn possible(case: &Case<'_>, precondition: &Precondition, verdict: &mut Verdict) {
    let Precondition { address, condition } = precondition;
    if let Condition::GroupIs { group, desired } = condition {
        let live = case.facts.observed.groups.get(group);
        if live.is_none_or(|live| live.desired != *desired) {
            let fault = format!("group {group} is not of {desired} members");
            verdict.row("conditions/possible", address, fault);
        }
        return;
    }
    let Some(row) = case.row(address).filter(|row| row.deed != Deed::Keep) else {
        return verdict.row("conditions/row", address, "a precondition of what does not change");
    };
    let fault = match condition {
        Condition::InstanceIs { instance_id, node_uid } => {
            let uid = case.node_of(instance_id).map(|node| &node.uid);
            let known = case.facts.observed.instances.contains_key(instance_id);
            let holds = known && uid == node_uid.as_ref();
            (!holds).then(|| format!("{instance_id} is not what was observed"))
        }
        Condition::GroupIs { .. } => None,
        Condition::KeyUnused { pool, key } => case
            .holder(pool, key, row)
            .map(|holder| format!("key {key} of pool {pool} is used by {}", holder.id)),
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
