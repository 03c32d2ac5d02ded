//! How many volumes nodes attach, as one more resource for packing to count.
//!
//! A pod asks for as many as it has volumes of its own; a volume that several pods share costs a node
//! one attachment however many of them it has, which only the rehearsal counts. Limits are those that
//! the world tells of a node; of others like it, where it tells; else what the type attaches.
//!
//! Karpenter differs: it puts no limit on nodes to come. kube-scheduler knows the limit as soon as the
//! driver has registered on the node, and leaves pods over that were planned there.

use std::collections::{BTreeMap, BTreeSet};

use super::offer::Offer;
use super::standing::Standing;
use crate::catalog::{Catalog, ebs_volumes};
use crate::demand::{Demand, PodShape, Sharing};
use crate::fleet::Observed;
use crate::ids::{InstanceTypeName, LabelValue, Labels, PoolName};
use crate::manifest::{Desired, NodeClass};
use crate::requirement::key;
use crate::storage::{EBS_DRIVER, attach_resource};
use crate::units::Resources;

/// More volumes than any node attaches: stands for a driver without a limit.
const NO_LIMIT: i64 = 1 << 20;

/// Returns what a pod takes of a node, its own volumes counted as resources.
pub(super) fn requests(shape: &PodShape) -> Option<Resources> {
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

/// What is known of limits, for the drivers whose volumes are to be placed.
pub(super) struct AttachRules<'a> {
    desired: &'a Desired,
    observed: &'a Observed,
    catalog: &'a Catalog,
    drivers: BTreeSet<&'a str>,
    /// The least that the world tells of a driver, by type, and of any node.
    told: BTreeMap<(&'a str, Option<&'a str>), i64>,
}

impl<'a> AttachRules<'a> {
    pub(super) fn of(
        desired: &'a Desired,
        observed: &'a Observed,
        catalog: &'a Catalog,
        demand: &'a Demand,
    ) -> Self {
        let parts = demand.groups.iter().flat_map(|group| &group.parts);
        let shapes = demand.groups.iter().map(|group| &group.shape);
        let shapes = shapes.chain(parts.map(|part| &part.shape));
        let shapes = shapes.chain(demand.daemons.iter().map(|daemon| &daemon.shape));
        let mounts = shapes.flat_map(|shape| &shape.volumes);
        let drivers = mounts.filter_map(|mount| mount.driver.as_deref()).collect();
        let mut told = BTreeMap::new();
        for (node, limits) in &observed.storage.attach_limits {
            let node = observed.nodes.get(node);
            let kind = node.and_then(|node| node.labels.get(key::INSTANCE_TYPE));
            for (driver, limit) in limits {
                let limit = i64::from(*limit);
                for of in [kind.map(LabelValue::as_str), None] {
                    let least = told.entry((driver.as_str(), of)).or_insert(limit);
                    *least = limit.min(*least);
                }
            }
        }
        Self { desired, observed, catalog, drivers, told }
    }

    /// Adds the limits to what nodes to come have room for.
    pub(super) fn limit_offers<'o>(&self, offers: impl IntoIterator<Item = &'o mut Offer>) {
        for offer in offers {
            let (name, pool) = (&offer.node.instance_type, Some(&offer.node.pool));
            for driver in &self.drivers {
                let limit = self.of_type(driver, Some(name), pool);
                offer.room.extended.insert(attach_resource(driver), limit);
            }
        }
    }

    /// Adds the limits to what nodes have room for that are there.
    pub(super) fn limit_standing(&self, standing: &mut [Standing]) {
        for node in standing {
            let told = self.observed.storage.attach_limits.get(&node.name);
            let kind = type_of(&node.labels);
            for driver in &self.drivers {
                let told = told.and_then(|limits| limits.get(*driver)).copied().map(i64::from);
                let limit =
                    told.unwrap_or_else(|| self.of_type(driver, kind.as_ref(), node.pool.as_ref()));
                node.room.extended.insert(attach_resource(driver), limit);
            }
        }
    }

    fn of_type(
        &self,
        driver: &str,
        kind: Option<&InstanceTypeName>,
        pool: Option<&PoolName>,
    ) -> i64 {
        let told = |kind: Option<&str>| self.told.get(&(driver, kind)).copied();
        if let Some(limit) = kind.and_then(|kind| told(Some(kind.as_str()))) {
            return limit;
        }
        if driver == EBS_DRIVER
            && let Some(kind) = kind.and_then(|kind| self.catalog.get(kind))
        {
            return i64::from(ebs_volumes(kind, self.volumes(pool)));
        }
        told(None).unwrap_or(NO_LIMIT)
    }

    /// Returns how many volumes nodes of a pool have themselves; a node of no pool has one.
    fn volumes(&self, pool: Option<&PoolName>) -> i64 {
        let pool = pool.and_then(|name| self.desired.pools.get(name));
        let class = pool.and_then(|pool| self.desired.node_classes.get(pool.node_class.as_ref()?));
        class.map_or(1, NodeClass::volumes)
    }
}

fn type_of(labels: &Labels) -> Option<InstanceTypeName> {
    labels.get(key::INSTANCE_TYPE).map(|value| value.as_str().into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::demand::{Cause, DemandMode, Mount};
    use crate::manifest::{AmiFamily, BlockDevice};
    use crate::requirement::Requirements;
    use crate::solve::{Offers, Supply};
    use crate::story::Story;

    fn mount(driver: &str, sharing: Sharing) -> Mount {
        Mount {
            name: "web/data".to_owned(),
            sharing,
            driver: Some(driver.to_owned()),
            nodes: vec![Requirements::default()],
            cause: Cause::Bound,
            settles: false,
            waits: None,
        }
    }

    /// A story whose pods have a volume of each driver.
    fn demand(story: &Story, drivers: &[&str]) -> Demand {
        let mut demand = Demand::build(&story.desired, &story.observed, DemandMode::Live);
        let shape = Arc::make_mut(&mut demand.groups[0].shape);
        shape.volumes = drivers.iter().map(|driver| mount(driver, Sharing::Own)).collect();
        demand
    }

    fn limits(story: &Story, driver: &str) -> BTreeMap<String, i64> {
        let demand = demand(story, &[driver]);
        let shapes = demand.groups.iter().map(|group| &*group.shape);
        let supply = Supply {
            desired: &story.desired,
            catalog: &story.catalog,
            observed: &story.observed,
            at: story.observed.taken_at,
        };
        let mut offers = Offers::of(&supply, &[], shapes);
        let rules = AttachRules::of(&story.desired, &story.observed, &story.catalog, &demand);
        rules.limit_offers(&mut offers.list);
        let limit = |offer: &Offer| offer.room.extended(&attach_resource(driver));
        offers.list.iter().map(|o| (o.node.instance_type.to_string(), limit(o))).collect()
    }

    #[test]
    fn volumes_of_its_own_are_what_a_pod_asks_for() {
        let story = Story::new(&["m5.large"], 100, 100);
        let mut shape = (*demand(&story, &[EBS_DRIVER, EBS_DRIVER]).groups[0].shape).clone();
        let asked = |shape: &PodShape| {
            requests(shape).map(|requests| requests.extended(&attach_resource(EBS_DRIVER)))
        };
        assert_eq!(asked(&shape), Some(2));
        shape.volumes[0].sharing = Sharing::Shared;
        assert_eq!(asked(&shape), Some(1));
        shape.volumes[1].driver = None;
        assert_eq!(asked(&shape), None, "and nothing changes for pods without any");
    }

    #[test]
    fn volumes_of_the_node_itself_take_the_place_of_those_of_pods() {
        let mut story = Story::new(&["m5.large"], 100, 100);
        let more = |class: &mut NodeClass, names: &[&str]| {
            let device =
                |name: &&str| BlockDevice { name: (*name).to_owned(), ..Default::default() };
            class.machine.devices = names.iter().map(device).collect();
        };
        for (rule, family, names, expected) in [
            ("the root volume", AmiFamily::Al2023, &[][..], 25),
            ("the root volume, set up otherwise", AmiFamily::Al2023, &["/dev/xvda"], 25),
            ("one beside it", AmiFamily::Al2023, &["/dev/xvda", "/dev/xvdb"], 24),
            ("one beside it, which alone is named", AmiFamily::Al2023, &["/dev/xvdb"], 24),
            ("two of Bottlerocket", AmiFamily::Bottlerocket, &["/dev/xvdb"], 24),
            ("an image of the user's own", AmiFamily::Custom, &[], 25),
        ] {
            for class in story.desired.node_classes.values_mut() {
                class.ami_family = family;
                more(class, names);
            }
            assert_eq!(limits(&story, EBS_DRIVER).get("m5.large"), Some(&expected), "{rule}");
        }
    }

    #[test]
    fn what_the_world_tells_of_a_type_counts_for_nodes_to_come() {
        let mut story = Story::new(&["m5.large", "m5.xlarge"], 100, 100);
        let expected = |large, xlarge| {
            [("m5.large".to_owned(), large), ("m5.xlarge".to_owned(), xlarge)].into()
        };
        assert_eq!(limits(&story, EBS_DRIVER), expected(25, 25));
        assert_eq!(limits(&story, "fsx.csi.aws.com"), expected(NO_LIMIT, NO_LIMIT));
        story.scale(1);
        let solution = story.solve();
        story.carry_out(&solution);
        let node = story.observed.nodes.keys().next().expect("launched").clone();
        let told = [(EBS_DRIVER.to_owned(), 9), ("fsx.csi.aws.com".to_owned(), 3)].into();
        story.observed.storage.attach_limits.insert(node, told);
        assert_eq!(limits(&story, EBS_DRIVER), expected(9, 25), "of its type");
        assert_eq!(limits(&story, "fsx.csi.aws.com"), expected(3, 3), "of any node");
    }
}
