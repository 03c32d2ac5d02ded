//! Where EC2 has nothing left of what was decided: approved alternatives, and what waits for a launch that failed.

use super::*;
use crate::catalog::{InstanceType, MeasuredNodes, PriceSource, Zone};
use crate::model::ids::InstanceTypeName;
use crate::model::market::CapacityType;
use crate::model::reason::{Alternative, KeepReason};
use crate::model::requirement::{key, label};
use crate::model::units::MicroUsd;
use crate::plan::wire::{AlternativesRow, Amount, ExplainRow, PodCounts, Reason};
use crate::simulator::OfferingOutage;

fn no_capacity(world: &World, kind: &str) {
    let instance_type = Some(InstanceTypeName::from(kind));
    world.set_unavailable(vec![OfferingOutage { instance_type, ..OfferingOutage::default() }]);
}

#[test]
fn without_capacity_or_alternative_nothing_that_depends_on_it_is_retired() {
    let world = fleet();
    let plan = plan(&world);
    no_capacity(&world, "m6i.large");
    let before = active(&world);
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    let failed = outcome(&receipt, "2", WaveStep::Launch);
    assert!(
        matches!(failed, Outcome::Failed { why } if why.contains("InsufficientInstanceCapacity")),
        "{failed:?}"
    );
    for key in ["0", "1"] {
        let skipped = outcome(&receipt, key, WaveStep::Retire);
        assert!(matches!(skipped, Outcome::Skipped { .. }), "{skipped:?}");
    }
    assert_eq!(active(&world), before);
    world.set_unavailable(Vec::new());
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied, "the same plan finishes");
    assert_eq!(active(&world), planned_fleet(&plan));
}

#[test]
fn a_group_whose_launches_succeeded_goes_on_where_another_failed() {
    let explain = |(key, group): (&str, &str)| ExplainRow {
        address: address(key),
        group: Some(group.to_owned()),
        reason: Reason::Keep { because: KeepReason::NotOurs },
        retire_reason: None,
        drift: None,
        estimated: false,
        hourly_before: None,
        hourly_after: None,
        pods: PodCounts::default(),
        pods_before: PodCounts::default(),
        daemons: Amount::default(),
        rejected: Vec::new(),
        overlays: Vec::new(),
        relaxed: Vec::new(),
    };
    // Row `0` retires with the group of the launch that fails, or without any group.
    for group_of_0 in [Some(("0", "b")), None] {
        let world = fleet();
        let mut plan = plan(&world);
        let failing = plan.resource_changes[2].change.after.as_mut().expect("a launch");
        failing.zone = Some("eu-west-1b".into());
        let groups = [("1", "a"), ("2", "b"), ("3", "a")].into_iter().chain(group_of_0);
        plan.capacity.explain = groups.map(explain).collect();
        let zone = Some("eu-west-1b".into());
        world.set_unavailable(vec![OfferingOutage { zone, ..OfferingOutage::default() }]);
        let receipt = applied(&plan, &world);
        assert_eq!(receipt.verdict, ApplyStatus::Partly);
        assert!(matches!(outcome(&receipt, "2", WaveStep::Launch), Outcome::Failed { .. }));
        assert!(matches!(outcome(&receipt, "0", WaveStep::Retire), Outcome::Skipped { .. }));
        assert_eq!(*outcome(&receipt, "1", WaveStep::Retire), Outcome::Done);
    }
}

fn catalog() -> Catalog {
    let kind = |name: &str, vcpus: i64, family: &str| InstanceType {
        name: name.into(),
        arch: "amd64".into(),
        vcpus,
        memory_mib: 8192,
        enis: 3,
        ips_per_eni: 10,
        local_nvme_gb: 0,
        ebs_attachments: None,
        extended: BTreeMap::new(),
        bare_metal: false,
        has_accelerator: false,
        labels: [
            label(key::INSTANCE_TYPE, name),
            label("karpenter.k8s.aws/instance-family", family),
        ]
        .into(),
        offerings: Vec::new(),
    };
    let types = [kind("m6i.large", 2, "m6i"), kind("m7i.large", 2, "m7i")];
    let zone = |name: &str, id: &str| Zone { name: name.into(), id: id.into(), assumed: false };
    Catalog {
        region: "eu-west-1".into(),
        zones: vec![zone("eu-west-1a", "euw1-az1"), zone("eu-west-1b", "euw1-az2")],
        types: types.map(|kind| (kind.name.clone(), kind)).into(),
        prices: PriceSource {
            source: "none".into(),
            region: "eu-west-1".into(),
            date: "2026-11-21".into(),
            stand_in: false,
        },
        warnings: Vec::new(),
        measured: MeasuredNodes::default(),
        quotas: None,
        offered: None,
    }
}

fn alternatives(kinds: &[&str]) -> Vec<AlternativesRow> {
    let offering = |kind: &&str| Alternative {
        instance_type: (*kind).into(),
        zone: "eu-west-1b".into(),
        capacity_type: CapacityType::Spot,
        hourly: MicroUsd::ZERO,
    };
    let row = |key| AlternativesRow {
        address: address(key),
        offerings: kinds.iter().map(offering).collect(),
    };
    ["1", "2", "3"].map(row).into()
}

#[test]
fn without_capacity_the_next_approved_alternative_is_taken() {
    let world = fleet();
    let mut plan = plan(&world);
    plan.capacity.alternatives = alternatives(&["m7i.large"]);
    no_capacity(&world, "m6i.large");
    let catalog = catalog();
    let settings = ApplySettings { catalog: Some(&catalog), ..settings() };
    let (receipt, events) = apply_over(&plan, &world, &settings);
    assert_eq!(receipt.expect("not refused").verdict, ApplyStatus::Applied);
    assert_eq!(active(&world), planned_fleet(&plan));
    assert!(events.iter().any(|event| matches!(event.step, Step::NoCapacity { .. })));
    let observed = world.observed();
    let has_spec = |i: &&Instance| i.is_active() && i.tags.contains_key(tag::SPEC);
    for instance in observed.instances.values().filter(has_spec) {
        assert_eq!(instance.instance_type.as_str(), "m7i.large");
        assert_eq!(instance.capacity_type, CapacityType::Spot);
        let labels = &observed.node_for_instance(&instance.id).expect("registered").labels;
        for (key, value) in [
            (key::INSTANCE_TYPE, "m7i.large"),
            (key::ZONE, "eu-west-1b"),
            (key::ZONE_ID, "euw1-az2"),
            (key::CAPACITY_TYPE, "spot"),
            ("karpenter.k8s.aws/instance-family", "m7i"),
            ("team", "web"),
        ] {
            assert_eq!(labels[key].as_str(), value, "{key}");
        }
    }
}

#[test]
fn an_alternative_the_catalogue_does_not_know_is_never_launched() {
    let world = fleet();
    let mut plan = plan(&world);
    plan.capacity.alternatives = alternatives(&["m8i.large"]);
    no_capacity(&world, "m6i.large");
    let catalog = catalog();
    let settings = ApplySettings { catalog: Some(&catalog), ..settings() };
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    assert!(matches!(outcome(&receipt, "2", WaveStep::Launch), Outcome::Failed { .. }));
    assert!(writes(&world).iter().all(|call| match call {
        PortCall::Launch { request, .. } => request.instance_type.as_str() == "m6i.large",
        PortCall::Terminate { .. }
        | PortCall::Cordon { .. }
        | PortCall::Evict { .. }
        | PortCall::RaiseGroup { .. }
        | PortCall::EndMember { .. }
        | PortCall::DeleteNode { .. } => false,
    }));
}
