//! Node groups as eksctl creates them from declarations of the repository.

use std::collections::BTreeMap;

use super::{DeliveredGroup, LaunchTemplate};
use crate::apply::ports::{LaunchOffering, LaunchRequest};
use crate::catalog::{Catalog, InstanceType, NodeSettings};
use crate::model::desired::{Desired, NodeGroup, Pool};
use crate::model::ids::ZoneName;
use crate::model::market::CapacityType;
use crate::model::observed::Group;
use crate::model::requirement::{key, label};

/// Returns the node groups that the repository declares, as eksctl creates them.
pub fn eksctl_groups(desired: &Desired, catalog: &Catalog) -> Vec<DeliveredGroup> {
    let delivered_group = |group: &NodeGroup| {
        let pool = desired.pools.get(&group.name)?;
        let class = desired.node_classes.get(pool.node_class.as_ref()?)?;
        let identity = group.identity_tags().into_iter();
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
        let settings = NodeSettings::new(pool, class);
        let requests = group.types.iter().filter_map(|name| {
            let kind = catalog.types.get(name)?;
            Some(member_request(pool, &settings, kind, capacity_type, catalog))
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
                mix: group.mix,
                suspended: Vec::new(),
                schedules: Vec::new(),
                schedules_unread: None,
                node_group: None,
                template_unread: None,
            },
            identity,
            template: LaunchTemplate::new(capacity_type, requests.collect()),
        })
    };
    desired.node_groups.values().filter_map(delivered_group).collect()
}

/// Returns the registration of a group member of a type, as a launch request.
fn member_request(
    pool: &Pool,
    settings: &NodeSettings,
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
        offerings: vec![LaunchOffering {
            instance_type: kind.name.clone(),
            zone: "".into(),
            labels,
            capacity: amounts.capacity,
            allocatable: amounts.allocatable,
        }],
        capacity_type,
        reservation: None,
        image: String::new(),
        tags: BTreeMap::new(),
        taints: pool.taints.clone(),
        startup_taints: Vec::new(),
    }
}
