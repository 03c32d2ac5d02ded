//! Node groups as eksctl would make them.

use std::collections::BTreeMap;

use fleetwright::catalog::{CapacityType, Catalog, InstanceType, NodeSettings, allocation};
use fleetwright::fleet::Group;
use fleetwright::manifest::{Desired, NodeGroup};
use fleetwright::port::LaunchRequest;
use fleetwright::requirement::label;
use fleetwright::sim::{DeliveredGroup, LaunchTemplate};

/// Returns the declared groups, and what their members register as.
#[must_use]
pub(crate) fn declared(desired: &Desired, catalog: &Catalog) -> Vec<DeliveredGroup> {
    let one = |group: &NodeGroup| {
        let pool = &desired.pools[&group.name];
        let class = &desired.node_classes[pool.node_class.as_ref()?];
        let own = group.identity().into_iter();
        let identity: BTreeMap<String, String> =
            own.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let mut tags = group.tags.clone();
        tags.extend(identity.clone());
        let kinds = group.types.iter().filter_map(|name| catalog.types.get(name));
        let machine = |kind: &InstanceType| {
            let amounts = allocation(kind, &NodeSettings::of(pool, class));
            let mut labels = kind.labels.clone();
            labels.retain(|key, _| !key.as_str().starts_with("karpenter."));
            labels.extend(pool.labels.clone());
            labels.extend([label("topology.kubernetes.io/region", catalog.region.as_str())]);
            LaunchRequest {
                token: String::new(),
                instance_type: kind.name.clone(),
                zone: "".into(),
                capacity_type: CapacityType::OnDemand,
                reservation: None,
                image: String::new(),
                tags: BTreeMap::new(),
                labels,
                taints: pool.taints.clone(),
                startup_taints: Vec::new(),
                capacity: amounts.capacity,
                allocatable: amounts.allocatable,
            }
        };
        Some(DeliveredGroup {
            group: Group {
                name: format!("asg-{}", group.name).as_str().into(),
                min: group.min,
                max: group.max,
                desired: group.desired.unwrap_or(group.min),
                types: group.types.clone(),
                zones: group.zones.clone(),
                tags,
                suspended: Vec::new(),
                schedules: Vec::new(),
                schedules_unread: None,
            },
            identity,
            template: LaunchTemplate::of(CapacityType::OnDemand, kinds.map(machine).collect()),
        })
    };
    desired.node_groups.values().filter_map(one).collect()
}
