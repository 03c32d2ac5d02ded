//! Defects of launches, their alternatives and the limits of pools.

use super::*;
use crate::plan::wire::PlacementMode;

pub(super) const LAUNCHES: &[Defect] = &[
    ("launch/pool", "a pool that is not declared", |_, i| i.desired.pools.clear()),
    ("launch/class", "a class that is not declared", |_, i| i.desired.node_classes.clear()),
    ("launch/type", "a type that does not exist", |p, _| {
        after(p, "3").instance_type = Some("m5.huge".into());
    }),
    ("launch/idle", "a new node without pods", |p, _| {
        p.capacity.placement.mode = PlacementMode::Steered;
        explain(p, "3").pods.clear();
    }),
    ("launch/offering", "a zone without the type", |p, _| {
        after(p, "3").zone = Some("us-east-1c".into());
    }),
    ("launch/offering", "a capacity type that is not offered", |p, _| {
        after(p, "3").capacity_type = Some(CapacityType::Spot);
    }),
    ("launch/offering", "an offering without a price", |_, i| {
        i.catalog.types.get_mut("m5.xlarge").unwrap().offerings[0].price = None;
    }),
    ("launch/zone-id", "the id of another zone", |p, _| {
        after(p, "3").zone_id = Some("use1-az9".into());
    }),
    ("launch/image", "another image", |p, _| after(p, "3").image = Some("al2@v1".to_owned())),
    ("launch/taints", "a missing taint", |p, _| after(p, "3").taints.clear()),
    ("launch/taints", "a startup taint among the permanent taints", |p, _| {
        let taints = std::mem::take(&mut after(p, "3").startup_taints);
        after(p, "3").taints.extend(taints);
    }),
    ("launch/annotations", "an annotation that the pool does not have", |p, _| {
        let annotations = [("team".to_owned(), "web".to_owned())].into();
        p.capacity.node_annotations.insert("web".into(), annotations);
    }),
    ("launch/annotations", "a missing annotation of the pool", |_, i| {
        pool(i).annotations.insert("team".to_owned(), "web".to_owned());
    }),
    ("launch/labels", "a missing label of the pool", |p, _| {
        after(p, "3").labels.remove("team");
    }),
    ("launch/labels", "a label of another type", |p, _| {
        after(p, "3").labels.extend([label("karpenter.k8s.aws/instance-cpu", "64")]);
    }),
    ("launch/labels", "a missing pool label", |p, _| {
        after(p, "3").labels.remove(key::NODEPOOL);
    }),
    ("launch/labels", "a provisioner label of another pool", |p, _| {
        after(p, "3").labels.extend([label(key::PROVISIONER, "api")]);
    }),
    ("launch/labels", "the key of another node", |p, _| {
        after(p, "3").labels.extend([label(crate::model::observed::KEY_LABEL, "7")]);
    }),
    ("launch/requirements", "a type that the pool does not allow", |_, i| {
        pool(i).requirements[0].values = vec!["c5.large".into()];
    }),
    ("launch/amounts", "more allocatable CPU than the type has", |p, _| {
        after(p, "3").allocatable.cpu_milli += 1;
    }),
    ("launch/amounts", "less capacity than the type has", |p, _| {
        after(p, "3").capacity.cpu_milli -= 1;
    }),
    ("launch/key", "a key in use", |_, i| {
        i.observed.instances.get_mut("i-1").unwrap().tags.insert(tag::KEY.to_owned(), "3".into());
    }),
    ("launch/key", "a key above the lowest", |p, _| rename(p, "3", "4")),
    ("launch/key", "a key that is not a number", |p, _| rename(p, "3", "x")),
    ("alternatives/row", "alternatives of a retained node", |p, _| {
        p.capacity.alternatives[0].address = address("0");
    }),
    ("alternatives/order", "the most expensive alternative first", |p, _| {
        p.capacity.alternatives[0].offerings.reverse();
    }),
    ("alternatives/offering", "an alternative that is not offered", |p, _| {
        p.capacity.alternatives[0].offerings[0].capacity_type = CapacityType::Spot;
    }),
    ("alternatives/price", "an alternative at another price", |p, _| {
        p.capacity.alternatives[0].offerings[0].hourly = MicroUsd(1);
    }),
    ("alternatives/requirements", "an alternative that the pool does not allow", |_, i| {
        pool(i).requirements[0].values = vec!["c5.large".into(), "m5.xlarge".into()];
    }),
    ("alternatives/fit", "an alternative that is too small for its pods", |p, _| {
        p.capacity.alternatives[1].offerings = p.capacity.alternatives[0].offerings.clone();
    }),
    ("alternatives/fit", "an alternative in a zone that its pods exclude", |_, i| {
        shape(i, "api", |shape| {
            let here = [label(key::ZONE, "us-east-1a")].into();
            shape.nodes.any_of = vec![Requirements::from_labels(&here)];
        });
    }),
];

pub(super) const LIMITS: &[Defect] = &[
    ("limits/resources", "more CPU than the limit of the pool", |_, i| {
        pool(i).limits.resources = [("cpu".into(), 13_999)].into();
    }),
    ("limits/resources", "more memory than the limit of the pool", |_, i| {
        pool(i).limits.resources = [("memory".into(), 52 << 30)].into();
        pool(i).limits.resources.values_mut().for_each(|limit| *limit -= 1);
    }),
    ("limits/nodes", "more nodes than the limit of the pool", |_, i| {
        pool(i).limits.nodes = Some(2);
    }),
    ("limits/nodes", "a limit that is too small for old and new nodes together", |_, i| {
        pool(i).limits.nodes = Some(4);
    }),
    ("limits/alternative", "an alternative beyond the pool's limit", |p, _| {
        let large = p.capacity.alternatives[1].offerings.clone();
        p.capacity.alternatives[0].offerings = large;
    }),
    ("limits/alternatives", "alternatives that exceed the pool's limit together", |p, i| {
        // Each launch has an alternative with 4 GiB more, and the limit leaves 4 GiB.
        after(p, "3").capacity.memory_bytes -= 4 << 30;
        pool(i).limits.resources = [("memory".into(), 52 << 30)].into();
    }),
];
