//! Lint for zone spread constraints that need more zones than the pools offer.

use std::collections::BTreeSet;

use super::warning;
use crate::catalog::Catalog;
use crate::model::desired::{Desired, Pool, Problem, Workload};
use crate::model::ids::LabelValue;
use crate::model::pod::{TopologySpread, WhenUnsatisfiable};
use crate::model::requirement::{LabelSet, Requirements, key, label};

/// Returns a warning for each workload whose spread constraint needs more zones than the pools
/// offer.
pub(super) fn zones(desired: &Desired, catalog: &Catalog) -> Vec<Problem> {
    if desired.pools.is_empty() {
        return Vec::new();
    }
    let all = desired.pools.values().flat_map(|pool| zones_of(pool, catalog));
    let zones: BTreeSet<String> = all.collect();
    let check = |workload: &Workload| {
        let spread = workload.template.spec.topology_spread.iter();
        spread.filter_map(|rule| check_constraint(workload, rule, &zones)).collect::<Vec<_>>()
    };
    desired.workloads.values().flat_map(check).collect()
}

fn zones_of(pool: &Pool, catalog: &Catalog) -> Vec<String> {
    let of_zone = pool.requirements.iter().filter(|r| r.key.as_str() == key::ZONE);
    let of_zone = of_zone.map(|requirement| {
        let values: Vec<&str> = requirement.values.iter().map(LabelValue::as_str).collect();
        // An invalid requirement is reported separately as an error, and permits all zones here.
        let set = LabelSet::from_operator(requirement.operator, &values);
        (requirement.key.clone(), set.unwrap_or_else(|_| LabelSet::all()))
    });
    let wanted: Requirements = of_zone.collect();
    let admits = |zone: &str| wanted.matches_labels(&[label(key::ZONE, zone)].into());
    let names = catalog.zones.iter().map(|zone| zone.name.as_str());
    names.filter(|zone| admits(zone)).map(str::to_owned).collect()
}

fn check_constraint(
    workload: &Workload,
    rule: &TopologySpread,
    zones: &BTreeSet<String>,
) -> Option<Problem> {
    if rule.topology_key.as_str() != key::ZONE
        || rule.when_unsatisfiable != WhenUnsatisfiable::DoNotSchedule
    {
        return None;
    }
    let available = u32::try_from(zones.len()).unwrap_or(u32::MAX);
    let wanted = rule.min_domains.map_or(2, |domains| u32::try_from(domains).unwrap_or(0));
    if available >= wanted {
        return None;
    }
    let names: Vec<&str> = zones.iter().map(String::as_str).collect();
    let object = format!("{} {}", workload.id.kind, workload.id);
    let what = match rule.min_domains {
        Some(_) => format!("is to be spread over {wanted} zones"),
        None => "is to be spread over zones".to_owned(),
    };
    let message = format!("{what}, and pools have {available}: {}", names.join(", "));
    Some(warning(&workload.origin, &object, message, "let a pool have more zones"))
}
