//! Insufficient capacity: approved alternatives, and retirements that depend on a failed launch.

use super::crashes::apply_with_fault;
use super::*;
use crate::catalog::Catalog;
use crate::model::ids::InstanceTypeName;
use crate::model::market::CapacityType;
use crate::model::reason::{Alternative, KeepReason};
use crate::model::requirement::key;
use crate::model::units::MicroUsd;
use crate::plan::WithdrawnOffering;
use crate::plan::wire::{AlternativesRow, ExplainRow, Reason};
use crate::simulator::OfferingOutage;
use crate::testing::apply::FixedReplan;
use crate::testing::catalog::{self, instance_type};

fn set_insufficient_capacity(world: &World, kind: &str) {
    let instance_type = Some(InstanceTypeName::from(kind));
    world.set_unavailable(vec![OfferingOutage { instance_type, ..OfferingOutage::default() }]);
}

#[test]
fn failed_launch_skips_the_dependent_retirements() {
    let world = fleet();
    let plan = plan(&world);
    set_insufficient_capacity(&world, "m6i.large");
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
fn failed_launch_does_not_stop_other_replacement_groups() {
    let explain = |(key, group): (&str, &str)| ExplainRow {
        group: Some(group.to_owned()),
        ..ExplainRow::new(address(key), Reason::Keep { because: KeepReason::NotOurs })
    };
    // Row `0` retires with the group of the failed launch, or without a group.
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
    let kind = |name: &str, family| {
        instance_type(name, 2, 8192, &[("karpenter.k8s.aws/instance-family", family)])
    };
    let zones = [("eu-west-1a", "euw1-az1"), ("eu-west-1b", "euw1-az2")];
    catalog::catalog("eu-west-1", &zones, [kind("m6i.large", "m6i"), kind("m7i.large", "m7i")])
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
fn next_approved_alternative_is_launched_without_capacity() {
    let world = fleet();
    let mut plan = plan(&world);
    plan.capacity.alternatives = alternatives(&["m7i.large"]);
    set_insufficient_capacity(&world, "m6i.large");
    let catalog = catalog();
    let settings = ApplySettings { catalog: Some(&catalog), ..settings() };
    let (receipt, events) = apply_over(&plan, &world, &settings);
    assert_eq!(receipt.expect("not refused").verdict, ApplyStatus::Applied);
    assert_eq!(active(&world), planned_fleet(&plan));
    assert!(events.iter().any(|event| matches!(event.step, Step::InsufficientCapacity { .. })));
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

/// Returns the plan with Spot launches that may be `m7i.large` at a price within the markup.
fn spot_plan(world: &World) -> Plan {
    let mut plan = plan(world);
    for row in &mut plan.resource_changes {
        let launches = row.change.actions.contains(&Action::Create);
        if let Some(after) = row.change.after.as_mut().filter(|_| launches) {
            after.capacity_type = Some(CapacityType::Spot);
        }
    }
    plan.capacity.alternatives = alternatives(&["m7i.large"]);
    for row in &mut plan.capacity.alternatives {
        row.offerings[0].hourly = MicroUsd(110);
        let launch = Reason::Keep { because: KeepReason::NotOurs };
        let hourly_after = Some(MicroUsd(100));
        plan.capacity.explain.retain(|known| known.address != row.address);
        let explained = ExplainRow::new(row.address.clone(), launch);
        plan.capacity.explain.push(ExplainRow { hourly_after, ..explained });
    }
    plan
}

#[test]
fn receipt_names_the_offering_that_ec2_chose() {
    for has_capacity in [true, false] {
        let world = fleet();
        let plan = spot_plan(&world);
        if !has_capacity {
            set_insufficient_capacity(&world, "m6i.large");
        }
        let catalog = catalog();
        let settings = ApplySettings { catalog: Some(&catalog), ..settings() };
        let (receipt, events) = apply_over(&plan, &world, &settings);
        let receipt = receipt.expect("not refused");
        let launched: Vec<_> = receipt.outcomes.iter().filter_map(|o| o.launched.clone()).collect();
        assert_eq!(launched.len(), 3, "{receipt:?}");
        for LaunchedOffering { instance_type, instead_of, .. } in launched {
            let expected = if has_capacity { "m6i.large" } else { "m7i.large" };
            assert_eq!(instance_type.as_str(), expected);
            let planned = "m6i.large in eu-west-1a (spot)".to_owned();
            assert_eq!(instead_of, (!has_capacity).then_some(planned));
        }
        let calls = writes(&world);
        let requests = calls.iter().filter_map(|call| {
            let PortCall::Launch { request, .. } = call else { return None };
            Some(request.offerings.len())
        });
        assert_eq!(requests.collect::<Vec<_>>(), [2; 3], "one request offers both");
        let unavailable = events
            .iter()
            .filter(|event| matches!(event.step, Step::InsufficientCapacity { .. }))
            .count();
        assert_eq!(unavailable, if has_capacity { 0 } else { 3 });
    }
}

#[test]
fn receipt_has_the_observed_offering_that_ec2_did_not_name() {
    let world = fleet();
    let plan = spot_plan(&world);
    set_insufficient_capacity(&world, "m6i.large");
    let catalog = catalog();
    let ports = FaultyPorts { hides_offerings: true, ..FaultyPorts::without_fault(&world) };
    let settings = ApplySettings { catalog: Some(&catalog), ..settings() };
    let (receipt, events) = apply_over(&plan, &ports, &settings);
    let receipt = receipt.expect("not refused");
    let launched = receipt.outcomes.iter().filter_map(|o| o.launched.as_ref());
    let launched: Vec<&str> = launched.map(|o| o.instance_type.as_str()).collect();
    assert_eq!(launched, ["m7i.large"; 3], "{receipt:?}");
    let is_unknown = |event: &&Event| matches!(event.step, Step::Launched { offering: None, .. });
    assert_eq!(events.iter().filter(is_unknown).count(), 3);
}

#[test]
fn alternative_missing_in_the_catalog_is_never_launched() {
    let world = fleet();
    let mut plan = plan(&world);
    plan.capacity.alternatives = alternatives(&["m8i.large"]);
    set_insufficient_capacity(&world, "m6i.large");
    let catalog = catalog();
    let settings = ApplySettings { catalog: Some(&catalog), ..settings() };
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    assert!(matches!(outcome(&receipt, "2", WaveStep::Launch), Outcome::Failed { .. }));
    assert!(writes(&world).iter().all(|call| match call {
        PortCall::Launch { request, .. } =>
            request.offerings[0].instance_type.as_str() == "m6i.large",
        PortCall::Open { .. } => true,
        PortCall::Terminate { .. }
        | PortCall::Cordon { .. }
        | PortCall::Evict { .. }
        | PortCall::DeletePod { .. }
        | PortCall::RaiseGroup { .. }
        | PortCall::EndMember { .. }
        | PortCall::DeleteNode { .. } => false,
    }));
}

#[test]
fn withdrawn_offering_is_not_requested() {
    let world = fleet();
    let plan = spot_plan(&world);
    let one = |of: &AlternativesRow| WithdrawnOffering {
        instance_type: "m6i.large".into(),
        zone: "eu-west-1a".into(),
        capacity_type: CapacityType::Spot,
        why: format!("{} is dearer", of.address),
    };
    let rows = plan.capacity.alternatives.iter();
    let withdrawn = rows.map(|row| (row.address.clone(), vec![one(row)])).collect();
    let replan = FixedReplan { withdrawn, ..FixedReplan::default() };
    let catalog = catalog();
    let settings = ApplySettings { replan: &replan, catalog: Some(&catalog), ..settings() };
    let (receipt, events) = apply_over(&plan, &world, &settings);
    let receipt = receipt.expect("not refused");
    let launched: Vec<_> = receipt.outcomes.iter().filter_map(|o| o.launched.clone()).collect();
    assert_eq!(launched.len(), 3, "{receipt:?}");
    for LaunchedOffering { instance_type, instead_of, .. } in launched {
        assert_eq!(instance_type.as_str(), "m7i.large");
        assert_eq!(instead_of.as_deref(), Some("m6i.large in eu-west-1a (spot)"));
    }
    let is_withdrawn = |event: &&Event| matches!(event.step, Step::Withdrawn { .. });
    assert_eq!(events.iter().filter(is_withdrawn).count(), 3);
}

/// Returns the withdrawal of one offering of each launch.
fn withdrawing(plan: &Plan, kind: &str, zone: &str, capacity_type: CapacityType) -> FixedReplan {
    let one = || WithdrawnOffering {
        instance_type: kind.into(),
        zone: zone.into(),
        capacity_type,
        why: "it is dearer".to_owned(),
    };
    let rows = plan.capacity.alternatives.iter();
    let withdrawn = rows.map(|row| (row.address.clone(), vec![one()])).collect();
    FixedReplan { withdrawn, ..FixedReplan::default() }
}

/// A record of requests that accepts each one.
#[derive(Debug)]
struct Recorded;

impl OfferingAttempts for Recorded {
    fn record<'t>(
        &'t self,
        _: &'t Address,
        _: u32,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + 't>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Returns the launches of a plan as requests of an earlier process.
fn earlier(plan: &Plan, attempt_index: u32) -> BTreeMap<Address, EarlierLaunch> {
    let one = |row: &AlternativesRow| {
        let change = change_id(&plan.capacity.plan_id, &row.address);
        (row.address.clone(), EarlierLaunch { change, attempt_index })
    };
    plan.capacity.alternatives.iter().map(one).collect()
}

#[test]
fn withdrawal_after_an_unanswered_request_launches_no_second_instance() {
    for is_recorded in [true, false] {
        let world = fleet();
        let mut plan = plan(&world);
        plan.capacity.alternatives = alternatives(&["m7i.large"]);
        let catalog = catalog();
        let settings = ApplySettings { catalog: Some(&catalog), ..settings() };
        // The process ends after the launch of `1`, before the answer.
        assert!(apply_with_fault(&plan, &world, 1, Fault::CrashAfter));
        let planned = plan.resource_changes.iter().find(|row| row.address == address("1"));
        let planned = planned.and_then(|row| row.change.after.as_ref()).expect("a launch");
        let (zone, capacity_type) = (planned.zone.clone(), planned.capacity_type);
        let (zone, capacity_type) = (zone.expect("a zone"), capacity_type.expect("a type"));
        let replan = withdrawing(&plan, "m6i.large", zone.as_str(), capacity_type);
        let settings = if is_recorded {
            let earlier_launches = earlier(&plan, 0);
            ApplySettings {
                replan: &replan,
                earlier_launches,
                offering_attempts: Some(&Recorded),
                ..settings
            }
        } else {
            ApplySettings { replan: &replan, ..settings }
        };
        let mut lagging = FaultyPorts::without_fault(&world);
        lagging.lag = SignedDuration::from_secs(20);
        let receipt = apply_over(&plan, &lagging, &settings).0.expect("not refused");
        let instances = world.observed().instances;
        let mut changes: Vec<&String> =
            instances.values().filter_map(|instance| instance.tags.get(tag::CHANGE)).collect();
        let all = changes.len();
        changes.sort();
        changes.dedup();
        assert_eq!(changes.len(), all, "recorded: {is_recorded}: {receipt:?}");
    }
}

#[test]
fn withdrawn_request_that_was_recorded_is_repeated_unchanged() {
    let world = fleet();
    let mut plan = plan(&world);
    plan.capacity.alternatives = alternatives(&["m7i.large"]);
    set_insufficient_capacity(&world, "m7i.large");
    let catalog = catalog();
    let replan = withdrawing(&plan, "m7i.large", "eu-west-1b", CapacityType::Spot);
    let settings = ApplySettings {
        replan: &replan,
        catalog: Some(&catalog),
        earlier_launches: earlier(&plan, 1),
        offering_attempts: Some(&Recorded),
        ..settings()
    };
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    let failed = outcome(&receipt, "2", WaveStep::Launch);
    let text = "no approved offering has capacity";
    assert!(matches!(failed, Outcome::Failed { why } if why.contains(text)), "{failed:?}");
    let calls = writes(&world);
    let mut kinds = calls.iter().filter_map(|call| {
        let PortCall::Launch { request, .. } = call else { return None };
        Some(request.offerings[0].instance_type.as_str())
    });
    assert!(kinds.all(|kind| kind == "m7i.large"));
}

#[test]
fn launch_whose_remaining_offerings_are_withdrawn_says_so() {
    let world = fleet();
    let mut plan = plan(&world);
    plan.capacity.alternatives = alternatives(&[]);
    let launch = plan.resource_changes.iter().find(|row| row.address == address("2"));
    let launch = launch.and_then(|row| row.change.after.as_ref()).expect("a launch");
    let zone = launch.zone.clone().expect("a zone");
    let capacity_type = launch.capacity_type.expect("a capacity type");
    let replan = withdrawing(&plan, "m6i.large", zone.as_str(), capacity_type);
    let settings =
        ApplySettings { replan: &replan, offering_attempts: Some(&Recorded), ..settings() };
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    let failed = outcome(&receipt, "2", WaveStep::Launch);
    let text = "every remaining offering is withdrawn";
    assert!(matches!(failed, Outcome::Failed { why } if why == text), "{failed:?}");
}
