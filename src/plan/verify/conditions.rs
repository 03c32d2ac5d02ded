//! Preconditions: every change has the preconditions that make it safe, and each of them can hold.

use std::collections::{BTreeMap, BTreeSet};

use super::context::{CheckContext, CheckedRow, RowAction};
use super::{Violations, words};
use crate::model::ids::{NodeName, WorkloadId, WorkloadKind, workload_key};
use crate::model::observed::tag;
use crate::plan::wire::{Condition, Precondition};

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    let stated = &context.plan.capacity.base.preconditions;
    if !stated.windows(2).all(|pair| pair[0] < pair[1]) {
        violations
            .report_plan("conditions/order", "preconditions are not in order, or occur twice");
    }
    let stated: BTreeSet<&Precondition> = stated.iter().collect();
    let pods = LivePods::new(context);
    for row in &context.rows {
        for condition in required(context, row, &pods) {
            let wanted = Precondition { address: row.address.clone(), condition };
            if !stated.contains(&wanted) {
                let fault = format!("lacks the precondition {}", words(&wanted.condition));
                violations.report_row("conditions/missing", row.address, fault);
            }
        }
    }
    for precondition in stated {
        check_possible(context, precondition, violations);
    }
}

/// Returns the preconditions that make the change of `row` safe.
fn required(
    context: &CheckContext<'_>,
    row: &CheckedRow<'_>,
    pods: &LivePods<'_>,
) -> Vec<Condition> {
    let mut conditions = Vec::new();
    if let (true, Some(before)) = (row.action.deletes(), row.before) {
        if let Some(instance_id) = before.instance_id.clone() {
            let node_uid = context.node_for_instance(&instance_id).map(|node| node.uid.clone());
            conditions.push(Condition::InstanceIs { instance_id, node_uid });
        }
        let shrinking = pods.shrinking(context, row).into_iter();
        conditions.extend(shrinking.map(|(workload, replicas)| Condition::ReplicasAtMost {
            workload: workload.clone(),
            replicas,
        }));
    }
    if let (true, Some(pool), Some(key)) = (
        row.action.creates() && !keeps_key(row),
        row.after.and_then(|after| after.pool.clone()),
        row.change.index.clone(),
    ) {
        conditions.push(Condition::KeyUnused { pool, key });
    }
    conditions
}

/// Returns whether the new node takes over the key of the node it replaces.
fn keeps_key(row: &CheckedRow<'_>) -> bool {
    let key = row.instance.and_then(|instance| instance.tags.get(tag::KEY));
    row.action == RowAction::Replace && key.is_some() && key == row.change.index.as_ref()
}

/// Observed pods, without DaemonSet pods.
struct LivePods<'a> {
    /// Workloads with pods on each node.
    owners: BTreeMap<&'a NodeName, BTreeSet<&'a WorkloadId>>,
    /// Replicas of each workload, or the number of its pods if the replicas are unknown.
    live: BTreeMap<&'a WorkloadId, u32>,
}

impl<'a> LivePods<'a> {
    fn new(context: &CheckContext<'a>) -> Self {
        let observed = context.facts.observed;
        let (mut owners, mut live) = (BTreeMap::<_, BTreeSet<_>>::new(), BTreeMap::new());
        // The index is large, and most plans have no removal and do not need it.
        if !context.rows.iter().any(|row| row.action.deletes()) {
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

    /// Returns the workloads on the row's node that must shrink, with their planned counts. Until
    /// they shrink, they occupy capacity that the plan uses for other pods.
    fn shrinking(
        &self,
        context: &CheckContext<'_>,
        row: &CheckedRow<'_>,
    ) -> Vec<(&'a WorkloadId, u32)> {
        let here = row.node.and_then(|node| self.owners.get(&node.name)).into_iter().flatten();
        let live = |owner: &WorkloadId| self.live.get(owner).copied().unwrap_or(0);
        here.map(|owner| (*owner, planned(context, owner)))
            .filter(|(owner, planned)| live(owner) > *planned)
            .collect()
    }
}

fn planned(context: &CheckContext<'_>, workload: &WorkloadId) -> u32 {
    let key = workload_key(workload);
    let on_nodes = context.groups.get(&key).map_or(0, |group| group.counts.planned);
    on_nodes.saturating_add(context.fargate.get(&key).map_or(0, |taken| taken.pods))
}

/// Checks that a precondition belongs to a row that changes, and that it holds in the observation.
fn check_possible(
    context: &CheckContext<'_>,
    precondition: &Precondition,
    violations: &mut Violations,
) {
    let Precondition { address, condition } = precondition;
    if let Condition::GroupIs { group, desired } = condition {
        let live = context.facts.observed.groups.get(group);
        if live.is_none_or(|live| live.desired != *desired) {
            let fault = format!("group {group} does not have {desired} members");
            violations.report_row("conditions/possible", address, fault);
        }
        return;
    }
    let Some(row) = context.row(address).filter(|row| row.action != RowAction::Keep) else {
        return violations.report_row(
            "conditions/row",
            address,
            "a precondition of a row that does not change",
        );
    };
    let fault = match condition {
        Condition::InstanceIs { instance_id, node_uid } => {
            let uid = context.node_for_instance(instance_id).map(|node| &node.uid);
            let known = context.facts.observed.instances.contains_key(instance_id);
            let is_met = known && uid == node_uid.as_ref();
            (!is_met).then(|| format!("{instance_id} differs from the observation"))
        }
        Condition::GroupIs { .. } => None,
        Condition::KeyUnused { pool, key } => context
            .key_holder(pool, key, row)
            .map(|holder| format!("key {key} of pool {pool} is used by {}", holder.id)),
        Condition::ReplicasAtMost { workload, replicas } => {
            let planned = planned(context, workload);
            (planned != *replicas)
                .then(|| format!("{workload} is planned with {planned} pods, not {replicas}"))
        }
    };
    if let Some(fault) = fault {
        violations.report_row("conditions/possible", address, fault);
    }
}
