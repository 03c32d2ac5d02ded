//! Approved alternatives: the requests that offer them to EC2, and the nodes that they provide.

use super::receipt::LaunchedOffering;
use crate::catalog::{Catalog, InstanceType};
use crate::model::ids::{Address, InstanceTypeName, Labels, ZoneName};
use crate::model::market::{CapacityType, alternative_price_max};
use crate::model::observed::Instance;
use crate::model::reason::Alternative;
use crate::model::requirement::{key, label};
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::plan::wire::{Amount, NodeState, ResourceChange};

/// Instance type, zone and capacity type of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offering {
    pub(super) instance_type: InstanceTypeName,
    pub(super) zone: ZoneName,
    pub(super) capacity_type: CapacityType,
}

impl Offering {
    /// Returns the offering of a running instance.
    pub(super) fn of_instance(instance: &Instance) -> Self {
        let Instance { instance_type, zone, capacity_type, .. } = instance;
        Self {
            instance_type: instance_type.clone(),
            zone: zone.clone(),
            capacity_type: *capacity_type,
        }
    }
}

impl std::fmt::Display for Offering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { instance_type, zone, capacity_type } = self;
        write!(f, "{instance_type} in {zone} ({capacity_type})")
    }
}

/// Returns the offering that a request of the launch of `row` prefers. `None` if the launch has no
/// such request.
pub fn requested_offering(
    plan: &Plan,
    row: &ResourceChange,
    attempt_index: u32,
) -> Option<LaunchedOffering> {
    let node = row.change.after.as_ref()?;
    let planned = Offering {
        instance_type: node.instance_type.clone()?,
        zone: node.zone.clone()?,
        capacity_type: node.capacity_type?,
    };
    let attempts = attempts_of(plan, &row.address, &planned);
    let preferred = attempts.get(usize::try_from(attempt_index).ok()?)?.first()?;
    Some(launched_offering(&attempts, preferred))
}

/// Returns the record of an offering of these requests. The first request prefers the planned one.
pub(super) fn launched_offering(
    attempts: &[Vec<Offering>],
    offering: &Offering,
) -> LaunchedOffering {
    let planned = attempts.first().and_then(|attempt| attempt.first());
    let instead_of = planned.filter(|planned| *planned != offering).map(ToString::to_string);
    let Offering { instance_type, zone, capacity_type } = offering.clone();
    LaunchedOffering { instance_type, zone, capacity_type, instead_of }
}

/// Returns the offerings of each request of the launch at `address`.
pub(super) fn attempts_of(
    plan: &Plan,
    address: &Address,
    planned: &Offering,
) -> Vec<Vec<Offering>> {
    let capacity = &plan.capacity;
    let alternatives = capacity.alternatives.iter().filter(|of| of.address == *address);
    let explained = capacity.explain.iter().find(|of| of.address == *address);
    let price = explained.and_then(|row| row.hourly_after);
    launch_attempts(planned, price, alternatives.flat_map(|of| &of.offerings))
}

/// Returns the offerings of each request of a launch.
///
/// A Spot launch first requests the planned offering and every Spot alternative within the maximum
/// markup, so that EC2 takes the one with the most capacity. Any other launch first requests the
/// planned offering alone, because its capacity is not reclaimed. The remaining alternatives follow,
/// one request for each capacity type.
fn launch_attempts<'a>(
    planned: &Offering,
    price: Option<MicroUsd>,
    alternatives: impl Iterator<Item = &'a Alternative>,
) -> Vec<Vec<Offering>> {
    let most = price.map(alternative_price_max).filter(|_| planned.capacity_type.is_spot());
    let mut attempts = vec![vec![planned.clone()]];
    for alternative in alternatives {
        let Alternative { instance_type, zone, capacity_type, hourly } = alternative;
        let is_first =
            *capacity_type == planned.capacity_type && most.is_some_and(|m| *hourly <= m);
        let offering = Offering {
            instance_type: instance_type.clone(),
            zone: zone.clone(),
            capacity_type: *capacity_type,
        };
        if attempts.iter().flatten().any(|known| *known == offering) {
            continue;
        }
        let same = |attempt: &&mut Vec<Offering>| attempt[0].capacity_type == *capacity_type;
        let later = attempts.iter_mut().skip(1).find(same);
        match (is_first, later) {
            (true, _) => attempts[0].push(offering),
            (false, Some(later)) => later.push(offering),
            (false, None) => attempts.push(vec![offering]),
        }
    }
    attempts
}

/// Returns the node of the fallback `offering`; `None` if the catalog lacks a type or the zone.
///
/// The plan has no capacity for fallbacks. The amounts are those of the planned node, scaled down
/// for a smaller type. The kubelet reports the actual amounts.
pub(super) fn fallback_node(
    planned: &NodeState,
    offering: &Offering,
    catalog: &Catalog,
) -> Option<NodeState> {
    let kind = |name: &InstanceTypeName| catalog.types.get(name);
    let (old, new) = (kind(planned.instance_type.as_ref()?)?, kind(&offering.instance_type)?);
    let Offering { instance_type, zone, capacity_type } = offering;
    let zone_id = catalog.zones.iter().find(|known| known.name == *zone)?.id.clone();
    let mut labels: Labels = planned
        .labels
        .iter()
        .filter(|(key, _)| !old.labels.contains_key(*key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    labels.extend(new.labels.clone());
    labels.extend([
        label(key::INSTANCE_TYPE, instance_type.as_str()),
        label(key::ZONE, zone.as_str()),
        label(key::ZONE_ID, zone_id.as_str()),
        label(key::CAPACITY_TYPE, capacity_type.as_str()),
    ]);
    Some(NodeState {
        instance_type: Some(instance_type.clone()),
        zone: Some(zone.clone()),
        zone_id: Some(zone_id),
        capacity_type: Some(*capacity_type),
        labels,
        capacity: scaled_down(&planned.capacity, old, new),
        allocatable: scaled_down(&planned.allocatable, old, new),
        ..planned.clone()
    })
}

fn scaled_down(planned: &Amount, old: &InstanceType, new: &InstanceType) -> Amount {
    let share = |amount: i64, old: i64, new: i64| {
        if new >= old || old <= 0 { amount } else { amount.saturating_mul(new) / old }
    };
    Amount {
        cpu_milli: share(planned.cpu_milli, old.vcpus, new.vcpus),
        memory_bytes: share(planned.memory_bytes, old.memory_mib, new.memory_mib),
        ..planned.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offering(kind: &str, capacity_type: CapacityType) -> Offering {
        let zone = "eu-west-1a".into();
        Offering { instance_type: kind.into(), zone, capacity_type }
    }

    fn alternative(kind: &str, capacity_type: CapacityType, hourly: i64) -> Alternative {
        let Offering { instance_type, zone, capacity_type } = offering(kind, capacity_type);
        Alternative { instance_type, zone, capacity_type, hourly: MicroUsd(hourly) }
    }

    /// Returns the instance types of each request.
    fn requests(
        planned: CapacityType,
        price: Option<i64>,
        alternatives: &[Alternative],
    ) -> Vec<Vec<String>> {
        let planned = offering("planned", planned);
        let attempts = launch_attempts(&planned, price.map(MicroUsd), alternatives.iter());
        let names = |attempt: Vec<Offering>| -> Vec<String> {
            attempt.iter().map(|of| of.instance_type.to_string()).collect()
        };
        attempts.into_iter().map(names).collect()
    }

    #[test]
    fn spot_request_has_all_spot_alternatives_within_the_markup() {
        use CapacityType::{OnDemand, Spot};
        let alternatives = [
            alternative("planned", Spot, 100),
            alternative("near", Spot, 110),
            alternative("full-price", OnDemand, 115),
            alternative("edge", Spot, 120),
            alternative("dearer", Spot, 121),
            alternative("other-price", OnDemand, 130),
        ];
        let found = requests(Spot, Some(100), &alternatives);
        let expected: [&[&str]; 3] =
            [&["planned", "near", "edge"], &["full-price", "other-price"], &["dearer"]];
        assert_eq!(found, expected);
    }

    #[test]
    fn later_requests_prefer_an_alternative() {
        let plan = crate::testing::sample_plan::plan();
        let of = &plan.capacity.alternatives[0];
        let mut rows = plan.resource_changes.iter();
        let row = rows.find(|row| row.address == of.address).expect("a launch");
        let node = row.change.after.as_ref().expect("a launch");
        let found = |attempt| requested_offering(&plan, row, attempt);
        let first = found(0).expect("the planned one");
        assert_eq!(
            (Some(first.instance_type), first.instead_of),
            (node.instance_type.clone(), None)
        );
        let second = found(1).expect("an alternative");
        assert_eq!(second.instance_type, of.offerings[0].instance_type);
        assert!(second.instead_of.is_some());
        assert_eq!(found(2), None);
    }

    #[test]
    fn other_launches_request_the_planned_offering_first() {
        use CapacityType::{OnDemand, Reserved, Spot};
        let alternatives = [alternative("a", OnDemand, 100), alternative("b", OnDemand, 110)];
        let expected: [&[&str]; 2] = [&["planned"], &["a", "b"]];
        assert_eq!(requests(OnDemand, Some(100), &alternatives), expected);
        assert_eq!(requests(Spot, None, &alternatives), expected, "the price is unknown");
        assert_eq!(requests(Reserved, Some(100), &[]), [["planned"]]);
    }
}
