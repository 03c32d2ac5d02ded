//! Nodes to come: what is on offer, what the pool declares, and what may stand in.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Case, Row, number, resources};
use super::{Verdict, words};
use crate::catalog::{CapacityType, InstanceType, Offering};
use crate::fleet::KEY_LABEL;
use crate::ids::{Address, InstanceTypeName, LabelKey, Labels, PoolName, ZoneName};
use crate::manifest::{Generation, Pool};
use crate::plan::wire::{NodeState, Relaxed};
use crate::pod::Taint;
use crate::requirement::{is_well_known, key, label};
use crate::solve::Alternative;
use crate::units::MicroUsd;

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    let alternatives = case.plan.capacity.alternatives.iter();
    let alternatives: BTreeMap<&Address, &[Alternative]> =
        alternatives.map(|of| (&of.address, of.offerings.as_slice())).collect();
    for row in case.rows.iter().filter(|row| row.deed.creates()) {
        let Some(after) = row.after else { continue };
        let Some(pool) = after.pool.as_ref().and_then(|name| case.pool(name)) else {
            verdict.row("launch/pool", row.address, "its pool is not declared");
            continue;
        };
        template(case, row, (pool, after), verdict);
        let Some(kind) = case.kind(after) else {
            verdict.row("launch/type", row.address, "its type is not in the catalogue");
            continue;
        };
        if case.group(&pool.name).is_some() {
            // What is certain of the next member of a group is judged as a whole.
            amounts(case, row, (pool, after), kind, verdict);
            continue;
        }
        match case.offering(after) {
            Some(offering) => on_offer(case, row, (after, &offering), verdict),
            None => verdict.row("launch/offering", row.address, "nobody offers it there"),
        }
        labels(case, row, (pool, after), kind, verdict);
        open_labels(row, (pool, after), verdict);
        overlays(case, row, after, verdict);
        let others = alternatives.get(row.address).copied().unwrap_or_default();
        variety(case, row, (pool, after, kind), others, verdict);
        amounts(case, row, (pool, after), kind, verdict);
    }
    keys(case, verdict);
}

fn on_offer(
    case: &Case<'_>,
    row: &Row<'_>,
    (after, offering): (&NodeState, &Offering),
    verdict: &mut Verdict,
) {
    let excluded = after
        .instance_type
        .as_ref()
        .is_some_and(|kind| is_excluded(case, kind, (&offering.zone, offering.capacity_type)));
    if excluded {
        verdict.row("launch/excluded", row.address, "EC2 had none of it lately");
    }
    if offering.price.is_none() {
        verdict.row("launch/offering", row.address, "its price is not known");
    }
    let zone_id = Some(offering.zone_id.clone());
    verdict.row_equal("launch/zone-id", row.address, ("zone_id", &after.zone_id, &zone_id));
}

/// Returns whether the world says that EC2 had none of an offering.
pub(super) fn is_excluded(
    case: &Case<'_>,
    kind: &InstanceTypeName,
    (zone, capacity_type): (&ZoneName, CapacityType),
) -> bool {
    let exclusions = &case.facts.observed.exclusions;
    exclusions.iter().any(|e| e.covers(case.plan.timestamp, kind, zone, capacity_type))
}

/// Holds a node to its pool's template and node class.
fn template(
    case: &Case<'_>,
    row: &Row<'_>,
    (pool, after): (&Pool, &NodeState),
    verdict: &mut Verdict,
) {
    let set = |taints: &[Taint]| taints.iter().cloned().collect::<BTreeSet<_>>();
    for (what, stated, declared) in [
        ("taints", &after.taints, &pool.taints),
        ("startup_taints", &after.startup_taints, &pool.startup_taints),
    ] {
        verdict.row_equal("launch/taints", row.address, (what, &set(stated), &set(declared)));
    }
    match case.class(pool) {
        Some(class) => {
            if pool.unreadable.is_some() || class.unreadable.is_some() {
                let fault = "its pool or node class was not read whole";
                verdict.row("launch/unreadable", row.address, fault);
            }
            let image = Some(class.image.clone());
            verdict.row_equal("launch/image", row.address, ("image", &after.image, &image));
        }
        None => verdict.row("launch/class", row.address, "its pool's node class is not declared"),
    }
}

/// Holds the labels of a node to type, offering and pool.
fn labels(
    case: &Case<'_>,
    row: &Row<'_>,
    (pool, after): (&Pool, &NodeState),
    kind: &InstanceType,
    verdict: &mut Verdict,
) {
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
    let of_pool = pool.labels.iter().filter(|(key, _)| !of_node.contains_key(*key));
    let stronger = |key| of_node.contains_key(key) || pool.labels.contains_key(key);
    let of_kind = kind.labels.iter().filter(|(key, _)| !stronger(*key));
    for (key, value) in of_node.iter().chain(of_pool).chain(of_kind) {
        let stated = after.labels.get(key);
        if stated != Some(value) {
            let stated = words(&stated);
            let fault = format!("label {key} is stated as {stated}, but is {value}");
            verdict.row("launch/labels", row.address, fault);
        }
    }
    for name in [key::NODEPOOL, key::PROVISIONER] {
        if after.labels.get(name).is_some_and(|value| value.as_str() != pool.name.as_str()) {
            verdict.row("launch/labels", row.address, format!("{name} names another pool"));
        }
    }
    let index = row.change.index.as_deref();
    if after.labels.get(KEY_LABEL).is_some_and(|value| Some(value.as_str()) != index) {
        verdict.row("launch/labels", row.address, format!("{KEY_LABEL} is not the index"));
    }
    if let Some(fault) = unmet(case, pool, &after.labels) {
        verdict.row("launch/requirements", row.address, fault);
    }
}

/// Holds the open labels of a node to those that its pool leaves open.
fn open_labels(row: &Row<'_>, (pool, after): (&Pool, &NodeState), verdict: &mut Verdict) {
    let open = |key: &&LabelKey| {
        !is_well_known(key.as_str()) && !pool.labels.contains_key(*key) && key.as_str() != KEY_LABEL
    };
    let expected: BTreeSet<&LabelKey> = after.labels.keys().filter(open).collect();
    let stated: BTreeSet<&LabelKey> = after.open_labels.iter().collect();
    verdict.row_equal("launch/open-labels", row.address, ("open_labels", &stated, &expected));
}

/// Holds a node to name the overlays that had a say.
fn overlays(case: &Case<'_>, row: &Row<'_>, after: &NodeState, verdict: &mut Verdict) {
    let names = case.overlays.overlaid(&after.labels, Some(MicroUsd::ZERO)).names;
    let stated = row.explain.map(|explain| explain.overlays.clone()).unwrap_or_default();
    verdict.row_equal("launch/overlays", row.address, ("overlays", &stated, &names));
}

/// Holds a launch, with what may stand in for it, to the distinct values that its pool demands, or
/// to say how far it falls short.
fn variety(
    case: &Case<'_>,
    row: &Row<'_>,
    (pool, after, chosen): (&Pool, &NodeState, &InstanceType),
    others: &[Alternative],
    verdict: &mut Verdict,
) {
    let mut demands: BTreeMap<&LabelKey, u32> = BTreeMap::new();
    for requirement in &pool.requirements {
        let demanded = demands.entry(&requirement.key).or_insert(0);
        *demanded = requirement.min_values.unwrap_or(0).max(*demanded);
    }
    // A reservation is of one type and zone by nature.
    demands.retain(|_, demanded| *demanded > 0 && after.reservation.is_none());
    let others = others.iter().filter(|_| !demands.is_empty());
    let stand_ins = others.filter_map(|offering| {
        let kind = case.facts.catalog.types.get(&offering.instance_type)?;
        let same =
            |o: &&Offering| o.zone == offering.zone && o.capacity_type == offering.capacity_type;
        Some(stand_in_labels(after, (chosen, kind), kind.offerings.iter().find(same)?))
    });
    let all: Vec<Labels> = std::iter::once(after.labels.clone()).chain(stand_ins).collect();
    let mut relaxed: Vec<Relaxed> = Vec::new();
    for (key, demanded) in demands {
        let remain =
            number(all.iter().filter_map(|labels| labels.get(key)).collect::<BTreeSet<_>>());
        if remain < demanded {
            relaxed.push(Relaxed { key: key.clone(), demanded, remain });
        }
    }
    let stated = row.explain.map(|explain| explain.relaxed.clone()).unwrap_or_default();
    let what = ("the demands for distinct values that are not met", &stated, &relaxed);
    verdict.row_equal("launch/min-values", row.address, what);
}

pub(super) fn place_labels(zone: &str, zone_id: &str, capacity_type: &str) -> Labels {
    [label(key::ZONE, zone), label(key::ZONE_ID, zone_id), label(key::CAPACITY_TYPE, capacity_type)]
        .into()
}

/// Returns the requirement of `pool` that a node with `labels` does not meet.
pub(super) fn unmet(case: &Case<'_>, pool: &Pool, labels: &Labels) -> Option<String> {
    let requirements = match case.requirements(pool)? {
        Ok(requirements) => requirements,
        Err(fault) => return Some(fault.clone()),
    };
    let key = requirements.unmatched(labels)?;
    let allowed = requirements.get(key.as_str()).map(ToString::to_string).unwrap_or_default();
    let held = labels.get(key).map_or("absent", |value| value.as_str());
    Some(format!("pool {} requires {key} {allowed}, the node has {held}", pool.name))
}

/// Holds capacity and allocatable to the catalogue's rule.
fn amounts(
    case: &Case<'_>,
    row: &Row<'_>,
    (pool, after): (&Pool, &NodeState),
    kind: &InstanceType,
    verdict: &mut Verdict,
) {
    let Some(allocation) = case.allocation(pool, kind, &after.labels) else { return };
    let (rule, stated) = ("launch/amounts", resources(&after.capacity));
    verdict.row_amounts(rule, row.address, ("capacity", &stated, &allocation.capacity));
    let stated = resources(&after.allocatable);
    verdict.row_amounts(rule, row.address, ("allocatable", &stated, &allocation.allocatable));
}

/// Holds the keys of nodes to come to the lowest that are unused in their pool.
///
/// Where an instance is on its way out, its key may be counted as used or not. A plan of a part leaves out nodes whose
/// keys it keeps for them.
fn keys(case: &Case<'_>, verdict: &mut Verdict) {
    let mut taken: BTreeMap<&PoolName, BTreeSet<&str>> = BTreeMap::new();
    let mut comes = Vec::new();
    for row in case.rows.iter().filter(|row| row.deed.creates()) {
        let pool = row.after.and_then(|after| after.pool.as_ref());
        let Some((pool, key)) = pool.zip(row.change.index.as_deref()) else {
            verdict.row("launch/key", row.address, "it has no pool or no key");
            continue;
        };
        if let Some(holder) = case.holder(pool, key, row) {
            let fault = format!("key {key} of {pool} is used by {}", holder.id);
            verdict.row("launch/key", row.address, fault);
        }
        taken.entry(pool).or_insert_with(|| case.held_keys(pool)).insert(key);
        comes.push((row, pool, key));
    }
    let lowest: BTreeMap<&PoolName, u32> =
        taken.into_iter().map(|(pool, keys)| (pool, lowest_unused(&keys))).collect();
    for (row, pool, key) in comes {
        let number = key.parse::<u32>().ok().filter(|number| number.to_string() == key);
        let is_part = !case.plan.complete;
        let below =
            |number: u32| is_part || lowest.get(pool).is_some_and(|lowest| number < *lowest);
        // A replacement may keep the key of what it replaces, whatever else has become free.
        let kept = row.before.is_some_and(|before| before.pool.as_ref() == Some(pool));
        if !kept && !number.is_some_and(below) {
            verdict.row("launch/key", row.address, format!("{key} is not the lowest unused key"));
        }
    }
}

/// Returns the lowest number that is none of `keys`; below it all are used.
fn lowest_unused(keys: &BTreeSet<&str>) -> u32 {
    let numbers = 0..=u32::MAX;
    let mut unused = numbers.filter(|number| !keys.contains(number.to_string().as_str()));
    unused.next().unwrap_or(u32::MAX)
}

/// Returns the labels of a node of another type and offering in the place of a planned one.
pub(super) fn stand_in_labels(
    after: &NodeState,
    (chosen, kind): (&InstanceType, &InstanceType),
    offering: &Offering,
) -> Labels {
    let Offering { zone, zone_id, capacity_type, .. } = offering;
    let mut labels = after.labels.clone();
    labels.retain(|key, _| !chosen.labels.contains_key(key));
    labels.extend(kind.labels.clone());
    labels.extend(place_labels(zone.as_str(), zone_id.as_str(), capacity_type.as_str()));
    labels
}
