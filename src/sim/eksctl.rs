//! Node groups as eksctl makes them of what a repository declares.

use std::collections::BTreeMap;

use super::{DeliveredGroup, LaunchTemplate};
use crate::catalog::{CapacityType, Catalog, InstanceType, NodeSettings};
use crate::fleet::Group;
use crate::ids::ZoneName;
use crate::manifest::{Desired, NodeGroup, Pool};
use crate::port::LaunchRequest;
use crate::requirement::{key, label};

/// Returns the node groups that the repository declares, as eksctl would make them.
#[must_use]
pub fn eksctl_groups(desired: &Desired, catalog: &Catalog) -> Vec<DeliveredGroup> {
    let one = |group: &NodeGroup| {
        let pool = desired.pools.get(&group.name)?;
        let class = desired.node_classes.get(pool.node_class.as_ref()?)?;
        let identity = group.identity().into_iter();
        let identity: BTreeMap<String, String> =
            identity.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let mut tags = group.tags.clone();
        tags.extend(identity.clone());
        let zones: Vec<ZoneName> = match group.zones.as_slice() {
            [] => catalog.zones.iter().map(|zone| zone.name.clone()).collect(),
            zones => zones.to_vec(),
        };
        let spot = pool.requirements.iter().any(|requirement| {
            requirement.values.iter().any(|value| value.as_str() == CapacityType::Spot.as_str())
        });
        let capacity_type = if spot { CapacityType::Spot } else { CapacityType::OnDemand };
        let settings = NodeSettings::of(pool, class);
        let machines = group.types.iter().filter_map(|name| {
            let kind = catalog.types.get(name)?;
            Some(machine((pool, &settings), kind, capacity_type, catalog))
        });
        Some(DeliveredGroup {
            group: Group {
                name: format!("eksctl-{}-nodegroup-{}", group.cluster, group.name).into(),
                min: group.min,
                max: group.max,
                desired: group.desired.unwrap_or(group.min),
                types: group.types.clone(),
                zones,
                tags,
                suspended: Vec::new(),
                schedules: Vec::new(),
                schedules_unread: None,
            },
            identity,
            template: LaunchTemplate::of(capacity_type, machines.collect()),
        })
    };
    desired.node_groups.values().filter_map(one).collect()
}

/// Returns what a member of a group of that type registers as.
fn machine(
    (pool, settings): (&Pool, &NodeSettings),
    kind: &InstanceType,
    capacity_type: CapacityType,
    catalog: &Catalog,
) -> LaunchRequest {
    let amounts = catalog.allocation(kind, settings);
    let mut labels = pool.labels.clone();
    let of_karpenter = |key: &str| key.starts_with("karpenter.");
    let of_kind = kind.labels.iter().filter(|(key, _)| !of_karpenter(key.as_str()));
    labels.extend(of_kind.map(|(key, value)| (key.clone(), value.clone())));
    labels.extend([label(key::REGION, catalog.region.as_str())]);
    LaunchRequest {
        token: String::new(),
        instance_type: kind.name.clone(),
        zone: "".into(),
        capacity_type,
        reservation: None,
        image: String::new(),
        tags: BTreeMap::new(),
        labels,
        taints: pool.taints.clone(),
        startup_taints: Vec::new(),
        capacity: amounts.capacity,
        allocatable: amounts.allocatable,
    }
}
