//! The state before: what was observed, all of it, and nothing else.

use std::collections::BTreeMap;

use super::Verdict;
use super::case::{Case, Row, resources};
use crate::fleet::{Instance, Node, tag};
use crate::ids::{InstanceId, NodeName, PoolName};
use crate::plan::wire::{NodeState, ResourceKind};
use crate::pod::Taint;
use crate::units::Resources;

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    for row in &case.rows {
        let Some(before) = row.before else { continue };
        exists(row, before, verdict);
        if let Some(instance) = row.instance {
            same_instance(case, row, instance, verdict);
        }
        match row.node {
            Some(node) => same_node(row, before, node, verdict),
            None => expected_node(case, row, before, verdict),
        }
    }
    everything(case, verdict);
}

/// Holds `before` to name something that was observed.
fn exists(row: &Row<'_>, before: &NodeState, verdict: &mut Verdict) {
    let mut unknown = |what: &str| {
        verdict.row("observed/exists", row.address, format!("{what} was not observed"));
    };
    if let (Some(name), None) = (&before.node, row.node) {
        unknown(&format!("node {name}"));
    }
    match (&before.instance_id, row.instance, row.node) {
        (None, ..) if row.change.kind == ResourceKind::Ec2Instance => {
            verdict.row("observed/exists", row.address, "no instance is named");
        }
        (Some(id), None, node) => {
            // A node may run on an instance that is not ours, of which only its node tells.
            let told = node.is_some_and(|node| node.instance.as_ref() == Some(id));
            if !told || row.change.kind == ResourceKind::Ec2Instance {
                unknown(&format!("instance {id}"));
            }
        }
        (None, ..) if before.node.is_none() => {
            verdict.row("observed/exists", row.address, "neither instance nor node is named");
        }
        (Some(_) | None, ..) => {}
    }
}

fn same_instance(case: &Case<'_>, row: &Row<'_>, instance: &Instance, verdict: &mut Verdict) {
    let Some(before) = row.before else { return };
    let address = row.address;
    let (kind, zone) = (Some(instance.instance_type.clone()), Some(instance.zone.clone()));
    let rule = "observed/instance";
    verdict.row_equal(rule, address, ("instance_type", &before.instance_type, &kind));
    verdict.row_equal(rule, address, ("zone", &before.zone, &zone));
    let capacity_type = Some(instance.capacity_type);
    verdict.row_equal(rule, address, ("capacity_type", &before.capacity_type, &capacity_type));
    if case.is_ours(instance) {
        let pool = instance.tags.get(tag::POOL).map(|name| PoolName::from(name.as_str()));
        verdict.row_equal(rule, address, ("pool", &before.pool, &pool));
        let key = instance.tags.get(tag::KEY);
        // Of two machines that carry one key, one goes by its instance id.
        let by_id =
            row.change.index.as_deref() == Some(instance.id.as_str()) && case.has_twin(instance);
        // A node that replaces another may have a key of its own.
        if key.is_some() && !row.deed.creates() && !by_id {
            verdict.row_equal(rule, address, ("index", &row.change.index.as_ref(), &key));
        }
    }
}

fn same_node(row: &Row<'_>, before: &NodeState, node: &Node, verdict: &mut Verdict) {
    let address = row.address;
    let rule = "observed/node";
    let uid = Some(node.uid.clone());
    verdict.row_equal(rule, address, ("node_uid", &before.node_uid, &uid));
    verdict.row_equal(rule, address, ("instance_id", &before.instance_id, &node.instance));
    verdict.row_equal(rule, address, ("labels", &before.labels, &node.labels));
    let startup = |taint: &&Taint| before.startup_taints.contains(*taint);
    let lasting = sorted(node.taints.iter().filter(|taint| !startup(taint)));
    verdict.row_equal(rule, address, ("taints", &sorted(&before.taints), &lasting));
    amounts(row, before, (&node.capacity, &node.allocatable), verdict);
}

/// Holds an instance whose node has not joined to what its pool says about it.
fn expected_node(case: &Case<'_>, row: &Row<'_>, before: &NodeState, verdict: &mut Verdict) {
    let pool = before.pool.as_ref().and_then(|name| case.pool(name));
    let kind = case.kind(before);
    let expected =
        pool.zip(kind).and_then(|(pool, kind)| case.allocation(pool, kind, &before.labels));
    if let Some(expected) = expected.filter(|_| row.instance.is_some()) {
        amounts(row, before, (&expected.capacity, &expected.allocatable), verdict);
    }
}

fn amounts(
    row: &Row<'_>,
    before: &NodeState,
    (capacity, allocatable): (&Resources, &Resources),
    verdict: &mut Verdict,
) {
    let stated = (resources(&before.capacity), resources(&before.allocatable));
    let rule = "observed/amounts";
    verdict.row_amounts(rule, row.address, ("capacity", &stated.0, capacity));
    verdict.row_amounts(rule, row.address, ("allocatable", &stated.1, allocatable));
}

fn sorted<'a>(taints: impl IntoIterator<Item = &'a Taint>) -> Vec<&'a Taint> {
    let mut taints: Vec<_> = taints.into_iter().collect();
    taints.sort();
    taints
}

/// Holds the plan to one row for each node, and for each instance of ours without one.
fn everything(case: &Case<'_>, verdict: &mut Verdict) {
    let observed = case.facts.observed;
    let mut nodes: BTreeMap<&NodeName, u32> = BTreeMap::new();
    let mut instances: BTreeMap<&InstanceId, u32> = BTreeMap::new();
    for before in case.rows.iter().filter_map(|row| row.before) {
        before.node.iter().for_each(|name| *nodes.entry(name).or_default() += 1);
        before.instance_id.iter().for_each(|id| *instances.entry(id).or_default() += 1);
    }
    let going = |id: &InstanceId| observed.instances.get(id).is_some_and(|i| !i.is_active());
    for node in observed.nodes.values().filter(|node| !node.is_fargate()) {
        let rows = nodes.get(&node.name).copied().unwrap_or(0);
        let may_lack = node.instance.as_ref().is_some_and(going);
        if rows > 1 || (rows == 0 && !may_lack) {
            verdict.plan("observed/rows", format!("node {} has {rows} rows", node.name));
        }
    }
    for instance in observed.instances.values() {
        let rows = instances.get(&instance.id).copied().unwrap_or(0);
        let groups = case.facts.desired.node_groups.values();
        let member = groups.clone().any(|group| case.is_member(instance, group));
        let needs = (case.is_ours(instance) || member) && instance.is_active();
        if rows > 1 || (rows == 0 && needs) {
            verdict.plan("observed/rows", format!("instance {} has {rows} rows", instance.id));
        }
    }
}
