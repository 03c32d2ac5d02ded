//! Spot nodes: EC2 cannot exceed the share of one offering by choosing alternatives.

use std::collections::BTreeMap;

use super::Violations;
use super::context::CheckContext;
use crate::model::ids::{Address, LabelValue, PoolName};
use crate::model::market::CapacityType;
use crate::model::requirement::key;
use crate::plan::wire::AlternativesRow;

/// Minimum number of Spot nodes of a pool for the share to apply.
const NODES_MIN: u64 = 4;

/// 100 %, in thousandths of a percent.
const WHOLE: u64 = 100_000;

#[derive(Default)]
struct OfferingNodes {
    /// Nodes that the plan places in the offering.
    planned: u64,
    /// Launches for which EC2 may choose the offering instead of the planned one.
    alternatives: u64,
}

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    let desired = &context.facts.desired;
    // A plan with a limited scope lacks launches that the share counts.
    let Some(share) = desired.max_offering_share.filter(|_| context.plan.complete) else { return };
    let alternatives = context.plan.capacity.alternatives.iter();
    let by_address: BTreeMap<&Address, &AlternativesRow> =
        alternatives.map(|row| (&row.address, row)).collect();
    let mut pools: BTreeMap<&PoolName, BTreeMap<(&str, &str), OfferingNodes>> = BTreeMap::new();
    for row in &context.rows {
        let label = |key: &str| row.after?.labels.get(key).map(LabelValue::as_str);
        if label(key::CAPACITY_TYPE) != Some(CapacityType::Spot.as_str()) {
            continue;
        }
        let pool = row.after.and_then(|after| after.pool.as_ref());
        let (Some(pool), Some(instance_type), Some(zone)) =
            (pool, label(key::INSTANCE_TYPE), label(key::ZONE))
        else {
            continue;
        };
        let offerings = pools.entry(pool).or_default();
        offerings.entry((instance_type, zone)).or_default().planned += 1;
        for other in by_address.get(row.address).into_iter().flat_map(|of| &of.offerings) {
            if other.capacity_type == CapacityType::Spot {
                let offering = (other.instance_type.as_str(), other.zone.as_str());
                offerings.entry(offering).or_default().alternatives += 1;
            }
        }
    }
    for (pool, offerings) in pools {
        let is_exempt = desired.node_groups.contains_key(pool.as_str())
            || desired.pools.get(pool).is_some_and(|pool| {
                pool.replicas.is_some()
                    || pool.requirements.iter().any(|of| of.min_values.is_some())
            });
        let nodes: u64 = offerings.values().map(|offering| offering.planned).sum();
        if nodes < NODES_MIN || is_exempt {
            continue;
        }
        let most = (nodes * u64::from(share) / WHOLE).max(1);
        for ((instance_type, zone), OfferingNodes { planned, alternatives }) in offerings {
            if alternatives > 0 && planned + alternatives > most {
                violations.report_plan(
                    "spot/share",
                    format!(
                        "of {nodes} Spot nodes of {pool}, {planned} are {instance_type} in {zone}, \
                         and {alternatives} more may be; its share is {most}"
                    ),
                );
            }
        }
    }
}
