//! New nodes: their offering, the template of their pool, their labels and their keys.

use std::collections::{BTreeMap, BTreeSet};

use super::context::{CheckContext, CheckedRow, count, resources};
use super::{Violations, words};
use crate::catalog::{Allocation, InstanceType, Offering};
use crate::model::desired::{AmiFamily, Generation, NodeGroup, Pool};
use crate::model::ids::{Address, InstanceTypeName, LabelKey, Labels, PoolName, ZoneName};
use crate::model::market::CapacityType;
use crate::model::observed::KEY_LABEL;
use crate::model::pod::Taint;
use crate::model::reason::Alternative;
use crate::model::requirement::{is_well_known, key, label};
use crate::model::units::MicroUsd;
use crate::plan::wire::{LaunchReason, NodeState, PlacementMode, Reason, Relaxed};

/// A row that launches a node of a declared pool.
struct PlannedLaunch<'a> {
    row: &'a CheckedRow<'a>,
    pool: &'a Pool,
    after: &'a NodeState,
}

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    let alternatives = context.plan.capacity.alternatives.iter();
    let alternatives: BTreeMap<&Address, &[Alternative]> =
        alternatives.map(|of| (&of.address, of.offerings.as_slice())).collect();
    for row in context.rows.iter().filter(|row| row.action.creates()) {
        let Some(after) = row.after else { continue };
        let Some(pool) = after.pool.as_ref().and_then(|name| context.pool(name)) else {
            violations.report_row("launch/pool", row.address, "its pool is not declared");
            continue;
        };
        let launch = PlannedLaunch { row, pool, after };
        template(context, &launch, violations);
        annotations(context, &launch, violations);
        let Some(kind) = context.kind(after) else {
            violations.report_row("launch/type", row.address, "its type is not in the catalog");
            continue;
        };
        if let Some(group) = context.group(&pool.name) {
            // Module `groups` checks the other properties of a new group member.
            amounts(&launch, group_allocation(context, &launch, group), violations);
            continue;
        }
        if context.plan.capacity.placement.mode == PlacementMode::Steered {
            check_occupied(&launch, violations);
        }
        match context.offering(after) {
            Some(offering) => check_offering(context, &launch, &offering, violations),
            None => violations.report_row(
                "launch/offering",
                row.address,
                "the catalog does not offer it there",
            ),
        }
        labels(context, &launch, kind, violations);
        open_labels(&launch, violations);
        overlays(context, &launch, violations);
        let others = alternatives.get(row.address).copied().unwrap_or_default();
        min_values(context, &launch, kind, others, violations);
        amounts(&launch, context.allocation(pool, kind, &after.labels), violations);
    }
    keys(context, violations);
}

fn check_offering(
    context: &CheckContext<'_>,
    launch: &PlannedLaunch<'_>,
    offering: &Offering,
    violations: &mut Violations,
) {
    let PlannedLaunch { row, after, .. } = *launch;
    let excluded = after
        .instance_type
        .as_ref()
        .is_some_and(|kind| is_excluded(context, kind, &offering.zone, offering.capacity_type));
    if excluded {
        violations.report_row(
            "launch/excluded",
            row.address,
            "EC2 recently had insufficient capacity of it",
        );
    }
    if offering.price.is_none() {
        violations.report_row("launch/offering", row.address, "its price is not known");
    }
    let zone_id = Some(offering.zone_id.clone());
    violations.require_row_equal(
        "launch/zone-id",
        row.address,
        "zone_id",
        &after.zone_id,
        &zone_id,
    );
}

/// Checks that a node of a steered plan that is launched for pods has some. An unsteered plan may
/// need a node for another order of arrival than that of its placements.
fn check_occupied(launch: &PlannedLaunch<'_>, violations: &mut Violations) {
    let PlannedLaunch { row, .. } = *launch;
    let is_for_pods = row.explain.is_some_and(|explain| {
        matches!(
            explain.reason,
            Reason::Launch {
                because: LaunchReason::Demand { .. } | LaunchReason::Consolidation { .. }
            }
        )
    });
    if is_for_pods && row.pods().all(|(_, count)| count == 0) {
        violations.report_row("launch/idle", row.address, "no pod is planned on the new node");
    }
}

/// Returns whether the observation excludes an offering for insufficient capacity.
pub(super) fn is_excluded(
    context: &CheckContext<'_>,
    kind: &InstanceTypeName,
    zone: &ZoneName,
    capacity_type: CapacityType,
) -> bool {
    let exclusions = &context.facts.observed.exclusions;
    exclusions.iter().any(|e| e.covers(context.plan.timestamp, kind, zone, capacity_type))
}

/// Checks a node against the template and the node class of its pool.
fn template(context: &CheckContext<'_>, launch: &PlannedLaunch<'_>, violations: &mut Violations) {
    let PlannedLaunch { row, pool, after } = *launch;
    let set = |taints: &[Taint]| taints.iter().cloned().collect::<BTreeSet<_>>();
    for (field, stated, declared) in [
        ("taints", &after.taints, &pool.taints),
        ("startup_taints", &after.startup_taints, &pool.startup_taints),
    ] {
        violations.require_row_equal(
            "launch/taints",
            row.address,
            field,
            &set(stated),
            &set(declared),
        );
    }
    match context.class(pool) {
        Some(class) => {
            if pool.unreadable.is_some() || class.unreadable.is_some() {
                let fault = "its pool or node class was not read completely";
                violations.report_row("launch/unreadable", row.address, fault);
            }
            let image = Some(class.image.clone());
            violations.require_row_equal(
                "launch/image",
                row.address,
                "image",
                &after.image,
                &image,
            );
        }
        None => violations.report_row(
            "launch/class",
            row.address,
            "its pool's node class is not declared",
        ),
    }
}

/// Checks the annotations of a new node against its pool.
fn annotations(
    context: &CheckContext<'_>,
    launch: &PlannedLaunch<'_>,
    violations: &mut Violations,
) {
    let stated = context.plan.capacity.node_annotations.get(&launch.pool.name);
    let declared = Some(&launch.pool.annotations).filter(|all| !all.is_empty());
    violations.require_row_equal(
        "launch/annotations",
        launch.row.address,
        "node_annotations",
        &stated,
        &declared,
    );
}

/// Checks the labels of a node against type, offering and pool.
fn labels(
    context: &CheckContext<'_>,
    launch: &PlannedLaunch<'_>,
    kind: &InstanceType,
    violations: &mut Violations,
) {
    let PlannedLaunch { row, pool, after } = *launch;
    let own = match pool.generation {
        Generation::V1alpha5 => key::PROVISIONER,
        Generation::V1beta1 | Generation::V1 | Generation::Eksctl => key::NODEPOOL,
    };
    let mut of_node = place_labels(
        after.zone.as_ref().map_or("", |zone| zone.as_str()),
        after.zone_id.as_ref().map_or("", |id| id.as_str()),
        after.capacity_type.map_or("", |how| how.as_str()),
    );
    of_node.extend([label(own, pool.name.as_str())]);
    // The image decides the operating system; the catalog states that of most images.
    if let Some(class) = context.class(pool) {
        let is_windows = class.ami_family == AmiFamily::Windows;
        of_node.extend(is_windows.then(|| label(key::OS, "windows")));
        of_node.extend(class.windows_build.map(|build| label(key::WINDOWS_BUILD, build)));
    }
    let of_pool = pool.labels.iter().filter(|(key, _)| !of_node.contains_key(*key));
    let stronger = |key| of_node.contains_key(key) || pool.labels.contains_key(key);
    let of_kind = kind.labels.iter().filter(|(key, _)| !stronger(*key));
    for (key, value) in of_node.iter().chain(of_pool).chain(of_kind) {
        let stated = after.labels.get(key);
        if stated != Some(value) {
            let stated = words(&stated);
            let fault = format!("label {key} is stated as {stated}, but is {value}");
            violations.report_row("launch/labels", row.address, fault);
        }
    }
    for name in [key::NODEPOOL, key::PROVISIONER] {
        if after.labels.get(name).is_some_and(|value| value.as_str() != pool.name.as_str()) {
            violations.report_row(
                "launch/labels",
                row.address,
                format!("{name} names another pool"),
            );
        }
    }
    let index = row.change.index.as_deref();
    if after.labels.get(KEY_LABEL).is_some_and(|value| Some(value.as_str()) != index) {
        violations.report_row(
            "launch/labels",
            row.address,
            format!("{KEY_LABEL} is not the index"),
        );
    }
    if let Some(fault) = unmet(context, pool, &after.labels) {
        violations.report_row("launch/requirements", row.address, fault);
    }
}

/// Checks that the stated open labels of a node are the labels that its pool leaves open.
fn open_labels(launch: &PlannedLaunch<'_>, violations: &mut Violations) {
    let PlannedLaunch { row, pool, after } = *launch;
    let open = |key: &&LabelKey| {
        !is_well_known(key.as_str()) && !pool.labels.contains_key(*key) && key.as_str() != KEY_LABEL
    };
    let expected: BTreeSet<&LabelKey> = after.labels.keys().filter(open).collect();
    let stated: BTreeSet<&LabelKey> = after.open_labels.iter().collect();
    violations.require_row_equal(
        "launch/open-labels",
        row.address,
        "open_labels",
        &stated,
        &expected,
    );
}

/// Checks that a node names the overlays that apply to it.
fn overlays(context: &CheckContext<'_>, launch: &PlannedLaunch<'_>, violations: &mut Violations) {
    let PlannedLaunch { row, after, .. } = *launch;
    let names = context.overlays.apply(&after.labels, Some(MicroUsd::ZERO)).names;
    let stated = row.explain.map(|explain| explain.overlays.clone()).unwrap_or_default();
    violations.require_row_equal("launch/overlays", row.address, "overlays", &stated, &names);
}

/// Checks that a launch and its alternatives meet the `minValues` of the pool, or state the
/// shortage.
fn min_values(
    context: &CheckContext<'_>,
    launch: &PlannedLaunch<'_>,
    chosen: &InstanceType,
    others: &[Alternative],
    violations: &mut Violations,
) {
    let PlannedLaunch { row, pool, after } = *launch;
    let mut demands: BTreeMap<&LabelKey, u32> = BTreeMap::new();
    for requirement in &pool.requirements {
        let demanded = demands.entry(&requirement.key).or_insert(0);
        *demanded = requirement.min_values.unwrap_or(0).max(*demanded);
    }
    // A reservation has one type and one zone, so `minValues` does not apply.
    demands.retain(|_, demanded| *demanded > 0 && after.reservation.is_none());
    let others = others.iter().filter(|_| !demands.is_empty());
    let alternative_labels_iter = others.filter_map(|offering| {
        let kind = context.facts.catalog.types.get(&offering.instance_type)?;
        let same =
            |o: &&Offering| o.zone == offering.zone && o.capacity_type == offering.capacity_type;
        Some(alternative_labels(after, chosen, kind, kind.offerings.iter().find(same)?))
    });
    let all: Vec<Labels> =
        std::iter::once(after.labels.clone()).chain(alternative_labels_iter).collect();
    let mut relaxed: Vec<Relaxed> = Vec::new();
    for (key, demanded) in demands {
        let remain =
            count(all.iter().filter_map(|labels| labels.get(key)).collect::<BTreeSet<_>>());
        if remain < demanded {
            relaxed.push(Relaxed { key: key.clone(), demanded, remain });
        }
    }
    let stated = row.explain.map(|explain| explain.relaxed.clone()).unwrap_or_default();
    violations.require_row_equal(
        "launch/min-values",
        row.address,
        "the demands for distinct values that are not met",
        &stated,
        &relaxed,
    );
}

pub(super) fn place_labels(zone: &str, zone_id: &str, capacity_type: &str) -> Labels {
    [label(key::ZONE, zone), label(key::ZONE_ID, zone_id), label(key::CAPACITY_TYPE, capacity_type)]
        .into()
}

/// Returns the requirement of `pool` that a node with `labels` does not meet.
pub(super) fn unmet(context: &CheckContext<'_>, pool: &Pool, labels: &Labels) -> Option<String> {
    let requirements = match context.requirements(pool)? {
        Ok(requirements) => requirements,
        Err(fault) => return Some(fault.clone()),
    };
    let key = requirements.unmatched(labels).next()?;
    let allowed = requirements.get(key.as_str()).map(ToString::to_string).unwrap_or_default();
    let actual = labels.get(key).map_or("absent", |value| value.as_str());
    Some(format!("pool {} requires {key} {allowed}, the node has {actual}", pool.name))
}

/// Returns the minimum of each resource over the types that a group may launch.
fn group_allocation(
    context: &CheckContext<'_>,
    launch: &PlannedLaunch<'_>,
    group: &NodeGroup,
) -> Option<Allocation> {
    let kinds = group.types.iter().filter_map(|name| context.facts.catalog.types.get(name));
    let all = kinds.map(|kind| context.allocation(launch.pool, kind, &launch.after.labels));
    all.collect::<Option<Vec<_>>>()?.into_iter().reduce(|least, other| Allocation {
        capacity: least.capacity.at_most(&other.capacity),
        allocatable: least.allocatable.at_most(&other.allocatable),
        ..least
    })
}

/// Checks capacity and allocatable against those of the catalog.
fn amounts(launch: &PlannedLaunch<'_>, expected: Option<Allocation>, violations: &mut Violations) {
    let PlannedLaunch { row, after, .. } = *launch;
    let Some(allocation) = expected else { return };
    let (rule, stated) = ("launch/amounts", resources(&after.capacity));
    violations.require_row_amounts(rule, row.address, "capacity", &stated, &allocation.capacity);
    let stated = resources(&after.allocatable);
    violations.require_row_amounts(
        rule,
        row.address,
        "allocatable",
        &stated,
        &allocation.allocatable,
    );
}

/// Checks that new nodes take the lowest unused keys of their pool.
///
/// The key of an instance that is shutting down may count as used or as unused. A partial plan
/// reserves keys for the nodes outside of it.
fn keys(context: &CheckContext<'_>, violations: &mut Violations) {
    let mut taken: BTreeMap<&PoolName, BTreeSet<&str>> = BTreeMap::new();
    let mut new_rows = Vec::new();
    for row in context.rows.iter().filter(|row| row.action.creates()) {
        let pool = row.after.and_then(|after| after.pool.as_ref());
        let Some((pool, key)) = pool.zip(row.change.index.as_deref()) else {
            violations.report_row("launch/key", row.address, "it has no pool or no key");
            continue;
        };
        if let Some(holder) = context.key_holder(pool, key, row) {
            let fault = format!("key {key} of {pool} is used by {}", holder.id);
            violations.report_row("launch/key", row.address, fault);
        }
        taken.entry(pool).or_insert_with(|| context.used_keys(pool)).insert(key);
        new_rows.push((row, pool, key));
    }
    let lowest: BTreeMap<&PoolName, u32> =
        taken.into_iter().map(|(pool, keys)| (pool, lowest_unused(&keys))).collect();
    for (row, pool, key) in new_rows {
        let number = key.parse::<u32>().ok().filter(|number| number.to_string() == key);
        let is_part = !context.plan.complete;
        let below =
            |number: u32| is_part || lowest.get(pool).is_some_and(|lowest| number < *lowest);
        // A replacement may keep the key of its predecessor, even if a lower one is free.
        let kept = row.before.is_some_and(|before| before.pool.as_ref() == Some(pool));
        if !kept && !number.is_some_and(below) {
            violations.report_row(
                "launch/key",
                row.address,
                format!("{key} is not the lowest unused key"),
            );
        }
    }
}

/// Returns the lowest number that is not in `keys`.
fn lowest_unused(keys: &BTreeSet<&str>) -> u32 {
    let numbers = 0..=u32::MAX;
    let mut unused = numbers.filter(|number| !keys.contains(number.to_string().as_str()));
    unused.next().unwrap_or(u32::MAX)
}

/// Returns the labels of a planned node if it is launched with `kind` and `offering`.
pub(super) fn alternative_labels(
    after: &NodeState,
    chosen: &InstanceType,
    kind: &InstanceType,
    offering: &Offering,
) -> Labels {
    let Offering { zone, zone_id, capacity_type, .. } = offering;
    let mut labels = after.labels.clone();
    labels.retain(|key, _| !chosen.labels.contains_key(key));
    labels.extend(kind.labels.clone());
    // The image stays, and so does the operating system.
    labels.extend(after.labels.get_key_value(key::OS).map(|(key, os)| (key.clone(), os.clone())));
    labels.extend(place_labels(zone.as_str(), zone_id.as_str(), capacity_type.as_str()));
    labels
}
