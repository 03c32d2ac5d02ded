//! Volume attach limits, as an additional resource for the packing.
//!
//! A pod requests one attachment for each volume of its own. A volume that several pods share costs
//! a node one attachment, which only the scheduling simulation counts. The limit of a node is the
//! one reported for it, else the one reported for its instance type, else the limit of the type.
//!
//! Karpenter differs: it applies no limit to new nodes. kube-scheduler applies the limit as soon as
//! the driver has registered on the node, and rejects pods that were planned there.

use std::collections::{BTreeMap, BTreeSet};

use super::existing_node::ExistingNode;
use super::offer::Offer;
use crate::catalog::{Catalog, ebs_volumes};
use crate::demand::{Demand, PodShape, Sharing};
use crate::model::desired::Desired;
use crate::model::ids::{InstanceTypeName, LabelValue, Labels, PoolName};
use crate::model::observed::Observed;
use crate::model::requirement::key;
use crate::model::storage::{EBS_DRIVER, attach_resource};
use crate::model::units::Resources;

/// Stands for a driver without a limit. No node attaches as many volumes.
const NO_LIMIT: i64 = 1 << 20;

/// Returns the requests of a pod including its own volumes, or `None` if it has none.
pub(super) fn requests_with_volumes(shape: &PodShape) -> Option<Resources> {
    let own = shape.volumes.iter().filter(|mount| mount.sharing == Sharing::Own);
    let drivers = own.filter_map(|mount| mount.driver.as_deref());
    let mut requests = shape.requests.clone();
    let mut counted = false;
    for driver in drivers {
        *requests.extended.entry(attach_resource(driver)).or_insert(0) += 1;
        counted = true;
    }
    counted.then_some(requests)
}

/// Attach limits for the drivers of the volumes to place.
pub(super) struct VolumeLimits<'a> {
    desired: &'a Desired,
    observed: &'a Observed,
    catalog: &'a Catalog,
    drivers: BTreeSet<&'a str>,
    /// The minimum reported limit of a driver, by instance type and for any node.
    reported: BTreeMap<(&'a str, Option<&'a str>), i64>,
}

impl<'a> VolumeLimits<'a> {
    pub(super) fn new(
        desired: &'a Desired,
        observed: &'a Observed,
        catalog: &'a Catalog,
        demand: &'a Demand,
    ) -> Self {
        let parts = demand.groups.iter().flat_map(|group| &group.partitions);
        let shapes = demand.groups.iter().map(|group| &group.shape);
        let shapes = shapes.chain(parts.map(|part| &part.shape));
        let shapes = shapes.chain(demand.daemons.iter().map(|daemon| &daemon.shape));
        let mounts = shapes.flat_map(|shape| &shape.volumes);
        let drivers = mounts.filter_map(|mount| mount.driver.as_deref()).collect();
        let mut reported = BTreeMap::new();
        for (node, limits) in &observed.storage.attach_limits {
            let node = observed.nodes.get(node);
            let instance_type = node.and_then(|node| node.labels.get(key::INSTANCE_TYPE));
            for (driver, limit) in limits {
                let limit = i64::from(*limit);
                for of in [instance_type.map(LabelValue::as_str), None] {
                    let least = reported.entry((driver.as_str(), of)).or_insert(limit);
                    *least = limit.min(*least);
                }
            }
        }
        Self { desired, observed, catalog, drivers, reported }
    }

    /// Adds the limits to the room of new nodes.
    pub(super) fn limit_offers<'o>(&self, offers: impl IntoIterator<Item = &'o mut Offer>) {
        for offer in offers {
            let (name, pool) = (&offer.node.instance_type, Some(&offer.node.pool));
            for driver in &self.drivers {
                let limit = self.limit_for_type(driver, Some(name), pool);
                offer.room.extended.insert(attach_resource(driver), limit);
            }
        }
    }

    /// Adds the limits to the room of existing nodes.
    pub(super) fn limit_existing(&self, existing: &mut [ExistingNode]) {
        for node in existing {
            let reported = self.observed.storage.attach_limits.get(&node.name);
            let instance_type = type_of(&node.labels);
            for driver in &self.drivers {
                let reported =
                    reported.and_then(|limits| limits.get(*driver)).copied().map(i64::from);
                let limit = reported.unwrap_or_else(|| {
                    self.limit_for_type(driver, instance_type.as_ref(), node.pool.as_ref())
                });
                node.room.extended.insert(attach_resource(driver), limit);
            }
        }
    }

    fn limit_for_type(
        &self,
        driver: &str,
        instance_type: Option<&InstanceTypeName>,
        pool: Option<&PoolName>,
    ) -> i64 {
        let reported =
            |instance_type: Option<&str>| self.reported.get(&(driver, instance_type)).copied();
        if let Some(limit) =
            instance_type.and_then(|instance_type| reported(Some(instance_type.as_str())))
        {
            return limit;
        }
        if driver == EBS_DRIVER
            && let Some(instance_type) =
                instance_type.and_then(|instance_type| self.catalog.get(instance_type))
        {
            let (volumes, interfaces) = self.own_attachments(pool);
            return i64::from(ebs_volumes(instance_type, volumes, interfaces));
        }
        reported(None).unwrap_or(NO_LIMIT)
    }

    /// Returns the numbers of volumes and network interfaces of a pool's node class. A node without a
    /// pool has one of each.
    fn own_attachments(&self, pool: Option<&PoolName>) -> (i64, i64) {
        let pool = pool.and_then(|name| self.desired.pools.get(name));
        let class = pool.and_then(|pool| self.desired.node_classes.get(pool.node_class.as_ref()?));
        class.map_or((1, 1), |class| (class.volumes(), class.interfaces()))
    }
}

fn type_of(labels: &Labels) -> Option<InstanceTypeName> {
    labels.get(key::INSTANCE_TYPE).map(|value| value.as_str().into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::demand::{DemandMode, PodVolume, TopologySource};
    use crate::model::desired::{AmiFamily, BlockDevice, NodeClass};
    use crate::model::requirement::Requirements;
    use crate::solver::{OfferInput, Offers};
    use crate::testing::Scenario;

    fn mount(driver: &str, sharing: Sharing) -> PodVolume {
        PodVolume {
            name: "web/data".to_owned(),
            sharing,
            driver: Some(driver.to_owned()),
            nodes: vec![Requirements::default()],
            cause: TopologySource::Bound,
            zone_set_by_first_pod: false,
            problem: None,
        }
    }

    fn demand(scenario: &Scenario, drivers: &[&str]) -> Demand {
        let mut demand = Demand::build(&scenario.desired, &scenario.observed, DemandMode::Live);
        let shape = Arc::make_mut(&mut demand.groups[0].shape);
        shape.volumes = drivers.iter().map(|driver| mount(driver, Sharing::Own)).collect();
        demand
    }

    fn limits(scenario: &Scenario, driver: &str) -> BTreeMap<String, i64> {
        let demand = demand(scenario, &[driver]);
        let shapes = demand.groups.iter().map(|group| &*group.shape);
        let supply = OfferInput {
            desired: &scenario.desired,
            catalog: &scenario.catalog,
            observed: &scenario.observed,
            at: scenario.observed.taken_at,
        };
        let mut offers = Offers::new(&supply, &[], shapes);
        let rules =
            VolumeLimits::new(&scenario.desired, &scenario.observed, &scenario.catalog, &demand);
        rules.limit_offers(&mut offers.list);
        let limit = |offer: &Offer| offer.room.extended(&attach_resource(driver));
        offers.list.iter().map(|o| (o.node.instance_type.to_string(), limit(o))).collect()
    }

    #[test]
    fn pod_requests_one_attachment_per_own_volume() {
        let scenario = Scenario::new(&["m5.large"], 100, 100);
        let mut shape = (*demand(&scenario, &[EBS_DRIVER, EBS_DRIVER]).groups[0].shape).clone();
        let attachments = |shape: &PodShape| {
            requests_with_volumes(shape)
                .map(|requests| requests.extended(&attach_resource(EBS_DRIVER)))
        };
        assert_eq!(attachments(&shape), Some(2));
        shape.volumes[0].sharing = Sharing::Shared;
        assert_eq!(attachments(&shape), Some(1));
        shape.volumes[1].driver = None;
        assert_eq!(attachments(&shape), None, "pods without own volumes are unchanged");
    }

    #[test]
    fn node_volumes_reduce_the_attach_limit() {
        let mut scenario = Scenario::new(&["m5.large"], 100, 100);
        let more = |class: &mut NodeClass, names: &[&str]| {
            let device =
                |name: &&str| BlockDevice { name: (*name).to_owned(), ..Default::default() };
            class.instance_settings.devices = names.iter().map(device).collect();
        };
        for (rule, family, names, expected) in [
            ("the root volume", AmiFamily::Al2023, &[][..], 25),
            ("the root volume, set up otherwise", AmiFamily::Al2023, &["/dev/xvda"], 25),
            ("one beside it", AmiFamily::Al2023, &["/dev/xvda", "/dev/xvdb"], 24),
            ("one beside it, which alone is named", AmiFamily::Al2023, &["/dev/xvdb"], 24),
            ("two of Bottlerocket", AmiFamily::Bottlerocket, &["/dev/xvdb"], 24),
            ("an image of the user's own", AmiFamily::Custom, &[], 25),
        ] {
            for class in scenario.desired.node_classes.values_mut() {
                class.ami_family = family;
                more(class, names);
            }
            assert_eq!(limits(&scenario, EBS_DRIVER).get("m5.large"), Some(&expected), "{rule}");
        }
    }

    #[test]
    fn reported_limit_of_a_type_applies_to_new_nodes() {
        let mut scenario = Scenario::new(&["m5.large", "m5.xlarge"], 100, 100);
        let expected = |large, xlarge| {
            [("m5.large".to_owned(), large), ("m5.xlarge".to_owned(), xlarge)].into()
        };
        assert_eq!(limits(&scenario, EBS_DRIVER), expected(25, 25));
        assert_eq!(limits(&scenario, "fsx.csi.aws.com"), expected(NO_LIMIT, NO_LIMIT));
        scenario.scale(1);
        let solution = scenario.solve();
        scenario.carry_out(&solution);
        let node = scenario.observed.nodes.keys().next().expect("launched").clone();
        let reported = [(EBS_DRIVER.to_owned(), 9), ("fsx.csi.aws.com".to_owned(), 3)].into();
        scenario.observed.storage.attach_limits.insert(node, reported);
        assert_eq!(limits(&scenario, EBS_DRIVER), expected(9, 25), "of its type");
        assert_eq!(limits(&scenario, "fsx.csi.aws.com"), expected(3, 3), "of any node");
    }
}
