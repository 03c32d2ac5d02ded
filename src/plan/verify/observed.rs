//! The state before: each observed node and instance has one row, and each row matches the
//! observation.

use std::collections::BTreeMap;

use super::Violations;
use super::context::{CheckContext, CheckedRow, resources};
use crate::model::ids::{InstanceId, NodeName, PoolName};
use crate::model::observed::{Instance, Node, tag};
use crate::model::pod::Taint;
use crate::model::units::Resources;
use crate::plan::wire::{NodeState, ResourceKind};

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    for row in &context.rows {
        let Some(before) = row.before else { continue };
        exists(row, before, violations);
        if let Some(instance) = row.instance {
            same_instance(context, row, instance, violations);
        }
        match row.node {
            Some(node) => same_node(context, row, before, node, violations),
            None => expected_node(context, row, before, violations),
        }
    }
    check_completeness(context, violations);
}

/// Checks that `before` names an observed object.
fn exists(row: &CheckedRow<'_>, before: &NodeState, violations: &mut Violations) {
    let mut unknown = |what: &str| {
        violations.report_row("observed/exists", row.address, format!("{what} was not observed"));
    };
    if let (Some(name), None) = (&before.node, row.node) {
        unknown(&format!("node {name}"));
    }
    match (&before.instance_id, row.instance, row.node) {
        (None, ..) if row.change.kind == ResourceKind::Ec2Instance => {
            violations.report_row("observed/exists", row.address, "no instance is named");
        }
        (Some(id), None, node) => {
            // An unmanaged instance may be known only through its node.
            let is_on_node = node.is_some_and(|node| node.instance.as_ref() == Some(id));
            if !is_on_node || row.change.kind == ResourceKind::Ec2Instance {
                unknown(&format!("instance {id}"));
            }
        }
        (None, ..) if before.node.is_none() => {
            violations.report_row(
                "observed/exists",
                row.address,
                "neither instance nor node is named",
            );
        }
        (Some(_) | None, ..) => {}
    }
}

fn same_instance(
    context: &CheckContext<'_>,
    row: &CheckedRow<'_>,
    instance: &Instance,
    violations: &mut Violations,
) {
    let Some(before) = row.before else { return };
    let address = row.address;
    let (kind, zone) = (Some(instance.instance_type.clone()), Some(instance.zone.clone()));
    let rule = "observed/instance";
    violations.require_row_equal(rule, address, "instance_type", &before.instance_type, &kind);
    violations.require_row_equal(rule, address, "zone", &before.zone, &zone);
    let capacity_type = Some(instance.capacity_type);
    violations.require_row_equal(
        rule,
        address,
        "capacity_type",
        &before.capacity_type,
        &capacity_type,
    );
    if context.is_managed(instance) {
        let pool = instance.tags.get(tag::POOL).map(|name| PoolName::from(name.as_str()));
        violations.require_row_equal(rule, address, "pool", &before.pool, &pool);
        let key = instance.tags.get(tag::KEY);
        // If two instances carry the same key, the index of one of them is its instance id.
        let by_id = row.change.index.as_deref() == Some(instance.id.as_str())
            && context.shares_key(instance);
        // A replacement may have a new key.
        if key.is_some() && !row.action.creates() && !by_id {
            violations.require_row_equal(rule, address, "index", &row.change.index.as_ref(), &key);
        }
    }
}

fn same_node(
    context: &CheckContext<'_>,
    row: &CheckedRow<'_>,
    before: &NodeState,
    node: &Node,
    violations: &mut Violations,
) {
    let address = row.address;
    let rule = "observed/node";
    let uid = Some(node.uid.clone());
    violations.require_row_equal(rule, address, "node_uid", &before.node_uid, &uid);
    violations.require_row_equal(rule, address, "instance_id", &before.instance_id, &node.instance);
    violations.require_row_equal(rule, address, "labels", &before.labels, &node.labels);
    let startup = |taint: &&Taint| before.startup_taints.contains(*taint);
    let permanent = sorted(node.taints.iter().filter(|taint| !startup(taint)));
    violations.require_row_equal(rule, address, "taints", &sorted(&before.taints), &permanent);
    // Without tags, a node may count with less than it reports.
    let capacity = if context.is_untagged(&node.name) {
        node.capacity.at_most(&resources(&before.capacity))
    } else {
        node.capacity.clone()
    };
    amounts(row, before, &capacity, &node.allocatable, violations);
}

/// Checks an instance that has not joined against the node that its pool declares.
fn expected_node(
    context: &CheckContext<'_>,
    row: &CheckedRow<'_>,
    before: &NodeState,
    violations: &mut Violations,
) {
    let pool = before.pool.as_ref().and_then(|name| context.pool(name));
    let kind = context.kind(before);
    let expected =
        pool.zip(kind).and_then(|(pool, kind)| context.allocation(pool, kind, &before.labels));
    if let Some(expected) = expected.filter(|_| row.instance.is_some()) {
        amounts(row, before, &expected.capacity, &expected.allocatable, violations);
    }
}

fn amounts(
    row: &CheckedRow<'_>,
    before: &NodeState,
    capacity: &Resources,
    allocatable: &Resources,
    violations: &mut Violations,
) {
    let stated = (resources(&before.capacity), resources(&before.allocatable));
    let rule = "observed/amounts";
    violations.require_row_amounts(rule, row.address, "capacity", &stated.0, capacity);
    violations.require_row_amounts(rule, row.address, "allocatable", &stated.1, allocatable);
}

fn sorted<'a>(taints: impl IntoIterator<Item = &'a Taint>) -> Vec<&'a Taint> {
    let mut taints: Vec<_> = taints.into_iter().collect();
    taints.sort();
    taints
}

/// Checks that each node, and each managed instance without a node, has exactly one row.
fn check_completeness(context: &CheckContext<'_>, violations: &mut Violations) {
    let observed = context.facts.observed;
    let mut nodes: BTreeMap<&NodeName, u32> = BTreeMap::new();
    let mut instances: BTreeMap<&InstanceId, u32> = BTreeMap::new();
    for before in context.rows.iter().filter_map(|row| row.before) {
        before.node.iter().for_each(|name| *nodes.entry(name).or_default() += 1);
        before.instance_id.iter().for_each(|id| *instances.entry(id).or_default() += 1);
    }
    let going = |id: &InstanceId| observed.instances.get(id).is_some_and(|i| !i.is_active());
    for node in observed.nodes.values().filter(|node| !node.is_fargate()) {
        let rows = nodes.get(&node.name).copied().unwrap_or(0);
        let may_lack = node.instance.as_ref().is_some_and(going);
        if rows > 1 || (rows == 0 && !may_lack) {
            violations.report_plan("observed/rows", format!("node {} has {rows} rows", node.name));
        }
    }
    for instance in observed.instances.values() {
        let rows = instances.get(&instance.id).copied().unwrap_or(0);
        let groups = context.facts.desired.node_groups.values();
        let member = groups.clone().any(|group| context.is_member(instance, group));
        let needs = (context.is_managed(instance) || member) && instance.is_active();
        if rows > 1 || (rows == 0 && needs) {
            violations
                .report_plan("observed/rows", format!("instance {} has {rows} rows", instance.id));
        }
    }
}
