//! End-to-end tests of pool rules. Each plan is verified.

use jiff::SignedDuration;

use super::*;
use crate::model::desired::{
    Budget, BudgetNodes, MinValuesPolicy, NodeOverlay, PoolRequirement, PriceChange,
};
use crate::model::ids::{InstanceTypeName, Origin};
use crate::model::market::CapacityType;
use crate::model::observed::Exclusion;
use crate::model::requirement::{Operator, key, label};
use crate::model::units::MicroUsd;
use crate::plan::drift;
use crate::plan::wire::{
    BlockReason, DiagnosticSeverity, KeepReason, LaunchReason, NodeState, RetireReason,
};
use crate::testing::pods::{deployment, template};
use crate::testing::{requirement, workload_id};

/// Returns a scenario with an on-demand pool of these instance types, and pods of one core.
pub(super) fn cores(types: &[&str], pods: u32) -> Scenario {
    let mut scenario = Scenario::new(types, 1000, 100);
    scenario.scale(pods);
    scenario
}

/// Applies the plan, and checks that the next plan has no changes.
pub(super) fn apply_and_check(scenario: &mut Scenario) {
    scenario.carry_out(&scenario.solve());
    assert_eq!(changes(&scenario.plan()), (0, 0));
}

pub(super) fn launched(plan: &Plan) -> Vec<&NodeState> {
    let rows = plan.resource_changes.iter();
    rows.filter(|row| row.change.actions.contains(&Action::Create))
        .filter_map(|row| row.change.after.as_ref())
        .collect()
}

fn types(plan: &Plan) -> Vec<&str> {
    let types = launched(plan).into_iter().filter_map(|node| node.instance_type.as_ref());
    types.map(InstanceTypeName::as_str).collect()
}

/// Returns the reasons of unschedulable pods, with the number of rejected offerings.
pub(super) fn reasons(plan: &Plan) -> Vec<(&str, u32)> {
    let rows = plan.capacity.unschedulable.iter().flat_map(|row| &row.reasons);
    rows.map(|rejection| (rejection.reason.as_str(), rejection.count)).collect()
}

fn keeps(plan: &Plan, by: &BlockReason) -> usize {
    let blocked = Reason::Keep { because: KeepReason::Blocked { by: by.clone() } };
    plan.capacity.explain.iter().filter(|row| row.reason == blocked).count()
}

#[test]
fn drifted_node_that_cannot_be_replaced_uses_up_no_budget() {
    let mut scenario = Scenario::new(&["m5.large"], 1_500, 512);
    scenario.scale(2);
    apply_and_check(&mut scenario);
    let first = scenario.node();
    first.labels.insert(key::HOSTNAME.into(), "first".into());
    let first = first.name.clone();
    // No other node has this host name.
    let mut pinned = template(100, 64);
    pinned.spec.node_selector.extend([label(key::HOSTNAME, "first")]);
    scenario.deploy("pinned", 1, pinned.clone());
    scenario.run(&deployment("other", "pinned"), &first, &Arc::new(pinned));
    scenario.pool().budgets = vec![Budget {
        nodes: BudgetNodes::Count(1),
        reasons: vec![],
        schedule: None,
        duration: None,
    }];
    scenario.age();
    scenario.drift();
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (1, 1));
    assert_eq!(keeps(&plan, &BlockReason::NoOtherPlace), 1);
    assert_eq!(keeps(&plan, &BlockReason::Budget), 0);
    assert!(scenario.solve().target.keeps.contains_key(&first), "the first by name stays");
}

#[test]
fn limits_that_block_a_replacement_are_named() {
    for (nodes, cpu, expected) in [
        (Some(3), None, BlockReason::NodeLimit { limit: 3 }),
        (None, Some(7_000), BlockReason::PoolLimits { limits: "cpu 7".to_owned() }),
    ] {
        let mut scenario = Scenario::new(&["m5.large"], 1_500, 512);
        scenario.scale(3);
        apply_and_check(&mut scenario);
        scenario.pool().limits.nodes = nodes;
        scenario.pool().limits.resources.extend(cpu.map(|cpu| ("cpu".into(), cpu)));
        for most in [1, 3] {
            scenario.pool().budgets = vec![Budget {
                nodes: BudgetNodes::Count(most),
                reasons: vec![],
                schedule: None,
                duration: None,
            }];
            scenario.age();
            scenario.drift();
            let plan = scenario.plan();
            assert_eq!(changes(&plan), (0, 0), "{expected:?}");
            assert_eq!(keeps(&plan, &expected), 3, "{most}: {:?}", plan.capacity.explain);
        }
    }
}

// --- pools with a fixed number of nodes ---

fn static_pool(replicas: u32) -> Scenario {
    let mut scenario = cores(&["m5.large", "m5.xlarge"], 0);
    scenario.pool().replicas = Some(replicas);
    scenario
}

#[test]
fn static_pool_launches_its_nodes_without_pods() {
    let mut scenario = static_pool(4);
    let plan = scenario.plan();
    assert_eq!(types(&plan), ["m5.large"; 4]);
    let zones: BTreeSet<_> = launched(&plan).into_iter().map(|node| node.zone.clone()).collect();
    assert!(zones.len() >= 4, "nodes are spread over zones: {zones:?}");
    let reason = LaunchReason::Static { declared: 4, there: 0 };
    let reason = Reason::Launch { because: reason };
    assert!(plan.capacity.explain.iter().all(|row| row.reason == reason));
    apply_and_check(&mut scenario);
}

#[test]
fn pods_use_static_nodes_without_adding_any() {
    let mut scenario = static_pool(2);
    scenario.scale(2);
    let plan = scenario.plan();
    assert_eq!((changes(&plan), plan.capacity.pods.placed), ((2, 0), 2));
    apply_and_check(&mut scenario);
    scenario.scale(9);
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (0, 0));
    assert_eq!(plan.capacity.pods.unschedulable, 7);
    assert_eq!(reasons(&plan)[0].0, "fixed-size");
    let nearest = plan.capacity.unschedulable[0].nearest.as_deref().unwrap_or_default();
    assert!(nearest.starts_with("raise `replicas` of pool default"), "{nearest}");
}

#[test]
fn shrinking_static_pool_retires_empty_nodes_first() {
    let mut scenario = static_pool(3);
    scenario.scale(1);
    apply_and_check(&mut scenario);
    let used = scenario.observed.pods[0].node.clone();
    scenario.pool().replicas = Some(1);
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (0, 2));
    let retired = plan.capacity.explain.iter().filter(|row| {
        let surplus = RetireReason::Surplus { declared: 1, there: 3 };
        row.reason == Reason::Retire { because: surplus }
    });
    assert_eq!(retired.count(), 2);
    scenario.carry_out(&scenario.solve());
    assert_eq!(scenario.observed.nodes.keys().next(), used.as_ref());
    assert_eq!(changes(&scenario.plan()), (0, 0));
}

#[test]
fn static_pool_drift_is_replaced_one_at_a_time() {
    let mut scenario = static_pool(3);
    apply_and_check(&mut scenario);
    scenario.pool().labels.extend([label("team", "b")]);
    scenario.pool().limits.nodes = Some(3);
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (0, 0));
    assert_eq!(keeps(&plan, &BlockReason::NodeLimit { limit: 3 }), 3);
    let report = drift(&plan);
    let behind = report
        .capacity
        .diagnostics
        .iter()
        .filter(|d| d.severity == DiagnosticSeverity::Behind)
        .count();
    assert_eq!(
        (behind, report.resource_drift.len()),
        (3, 0),
        "a commit caused the difference, not a manual change"
    );
    scenario.pool().limits.nodes = Some(4);
    for left in [2, 1, 0] {
        let plan = scenario.plan();
        assert_eq!((changes(&plan), plan.summary.replace), ((1, 1), 1), "{left}");
        assert_eq!(keeps(&plan, &BlockReason::InTurn), left);
        scenario.carry_out(&scenario.solve());
    }
    assert_eq!(changes(&scenario.plan()), (0, 0));
}

#[test]
fn node_limit_overrides_higher_replicas() {
    let mut scenario = static_pool(3);
    scenario.pool().limits.nodes = Some(2);
    assert_eq!(changes(&scenario.plan()), (2, 0));
    apply_and_check(&mut scenario);
}

// --- overlays ---

fn overlay(values: &[&str]) -> NodeOverlay {
    NodeOverlay {
        name: "deal".into(),
        origin: Origin::new("overlay.yaml", 1),
        weight: 0,
        requirements: vec![requirement(key::INSTANCE_TYPE, values)],
        price: None,
        capacity: [].into(),
    }
}

#[test]
fn overlay_price_applies_and_is_reported() {
    let mut scenario = cores(&["c5.large", "m5.large"], 1);
    assert_eq!(types(&scenario.plan()), ["c5.large"]);
    let overlay =
        NodeOverlay { price: Some(PriceChange::ByMilliPercent(-50_000)), ..overlay(&["m5.large"]) };
    scenario.desired.overlays.insert(overlay.name.clone(), overlay);
    let plan = scenario.plan();
    assert_eq!(types(&plan), ["m5.large"]);
    assert_eq!(plan.capacity.cost.hourly_after, MicroUsd(48_000));
    assert_eq!(plan.capacity.explain[0].overlays, ["deal"]);
    // A budget policy judges list prices: the change that it judges may hold the overlay.
    let list = plan.capacity.cost.list.as_ref().expect("an overlay changes a price");
    assert_eq!((list.hourly_before, list.hourly_after), (MicroUsd::ZERO, MicroUsd(96_000)));
    assert_eq!(list.overlays, ["deal"]);
    let included = plan.capacity.cost.breakdown.included.join("; ");
    assert!(included.contains("prices adjusted by NodeOverlay deal"), "{included}");
    apply_and_check(&mut scenario);
    let cost = scenario.plan().capacity.cost;
    assert_eq!(cost.hourly_before, MicroUsd(48_000));
    assert_eq!(cost.list.map(|list| list.hourly_before), Some(MicroUsd(96_000)));
}

#[test]
fn overlay_price_without_a_list_price_is_counted_and_named() {
    let mut scenario = cores(&["m5.large"], 2);
    for offering in scenario.catalog.types.values_mut().flat_map(|kind| &mut kind.offerings) {
        offering.price = None;
    }
    let overlay =
        NodeOverlay { price: Some(PriceChange::To(MicroUsd(1_000))), ..overlay(&["m5.large"]) };
    scenario.desired.overlays.insert(overlay.name.clone(), overlay);
    let plan = scenario.plan();
    assert_eq!(types(&plan), ["m5.large"; 2]);
    let cost = &plan.capacity.cost;
    assert_eq!((cost.hourly_after, cost.unpriced), (MicroUsd(2_000), 0));
    let list = cost.list.as_ref().expect("an overlay sets the price");
    assert_eq!((list.hourly_after, list.unlisted), (MicroUsd(2_000), 2));
    assert_eq!(list.overlays, ["deal"]);
    let notes = plan.capacity.diagnostics.iter().map(|found| &found.message);
    let unlisted = "without a list price: 2 nodes, counted at the price of the overlay";
    assert_eq!(notes.filter(|note| note.ends_with(unlisted)).count(), 1);
    // A node that stays counts once.
    apply_and_check(&mut scenario);
    assert_eq!(scenario.plan().capacity.cost.list.map(|list| list.unlisted), Some(2));
}

#[test]
fn overlay_adds_requested_resources() {
    let mut scenario = cores(&["c5.large", "m5.large"], 2);
    let template = scenario.template();
    let resources = &mut template.spec.containers[0].resources;
    resources.requests.insert("example.com/fuse".into(), 1);
    assert_eq!(scenario.plan().capacity.pods.unschedulable, 2);
    let capacity = [("example.com/fuse".into(), 1)].into();
    let overlay = NodeOverlay { capacity, ..overlay(&["m5.large"]) };
    scenario.desired.overlays.insert(overlay.name.clone(), overlay);
    let plan = scenario.plan();
    assert_eq!(types(&plan), ["m5.large"; 2]);
    assert_eq!(launched(&plan)[0].allocatable.extended["example.com/fuse"], 1);
    apply_and_check(&mut scenario);
}

#[test]
fn conflicting_overlays_of_equal_weight_are_errors() {
    let mut scenario = cores(&["m5.large"], 1);
    for (name, price) in [("a", 1), ("b", 2)] {
        let price = Some(PriceChange::To(MicroUsd(price)));
        let overlay = NodeOverlay { name: name.into(), price, ..overlay(&["m5.large"]) };
        scenario.desired.overlays.insert(name.into(), overlay);
    }
    let plan = plan(&scenario.inputs());
    assert!(plan.errored && !plan.applyable);
    let errors =
        plan.capacity.diagnostics.iter().filter(|d| d.severity == DiagnosticSeverity::Error);
    let objects: Vec<&str> = errors.map(|d| d.object.as_str()).collect();
    assert_eq!(objects, ["NodeOverlay a", "NodeOverlay b"]);
}

// --- offerings with insufficient capacity ---

#[test]
fn excluded_offerings_are_skipped_until_their_retry_time() {
    let mut scenario = cores(&["c5.large", "m5.large"], 1);
    let at = scenario.observed.taken_at;
    let later = at.checked_add(jiff::SignedDuration::from_mins(3)).expect("a time");
    let exclude = |kind: Option<&str>, until| Exclusion {
        instance_type: kind.map(Into::into),
        zone: None,
        capacity_type: None,
        until,
    };
    for (kind, until, expected) in [
        (Some("c5.large"), later, &["m5.large"][..]),
        (Some("c5.large"), at, &["c5.large"]),
        (None, later, &[]),
    ] {
        scenario.observed.exclusions = vec![exclude(kind, until)];
        let plan = scenario.plan();
        assert_eq!(types(&plan), expected, "{kind:?} {until}");
        if expected.is_empty() {
            assert_eq!(reasons(&plan)[0].0, "excluded");
            let nearest = plan.capacity.unschedulable[0].nearest.as_deref().unwrap_or_default();
            assert!(nearest.starts_with("wait until 2026-11-01T00:03:00Z"), "{nearest}");
        }
    }
}

// --- minValues ---

fn min_values_pool(types: &[&str], least: u32) -> Scenario {
    let mut scenario = cores(types, 1);
    scenario.pool().requirements[0].min_values = Some(least);
    scenario
}

#[test]
fn min_values_are_met_by_alternatives_of_any_price() {
    let mut scenario = min_values_pool(&["c5.large", "m5.large", "m5.4xlarge"], 3);
    let plan = scenario.plan();
    assert_eq!(types(&plan), ["c5.large"]);
    let alternatives = &plan.capacity.alternatives[0].offerings;
    let types: BTreeSet<&str> = alternatives.iter().map(|a| a.instance_type.as_str()).collect();
    assert!(types.contains("m5.large") && types.contains("m5.4xlarge"), "{types:?}");
    apply_and_check(&mut scenario);
}

#[test]
fn node_is_filled_up_to_its_smallest_alternative() {
    let mut scenario = min_values_pool(&["m5.large", "m5.4xlarge"], 2);
    scenario.scale(6);
    let plan = scenario.plan();
    assert_eq!(types(&plan), ["m5.large"; 6], "one pod per node, as on the smaller type");
    apply_and_check(&mut scenario);
}

#[test]
fn unmet_min_values_block_or_are_reported() {
    let mut scenario = min_values_pool(&["c5.large", "m5.large"], 3);
    let plan = scenario.plan();
    assert_eq!((changes(&plan), reasons(&plan)[0].0), ((0, 0), "min-values"));
    scenario.desired.min_values_policy = MinValuesPolicy::BestEffort;
    let plan = scenario.plan();
    assert_eq!(types(&plan), ["c5.large"]);
    let relaxed = &plan.capacity.explain[0].relaxed;
    assert_eq!((relaxed[0].demanded, relaxed[0].remain), (3, 2));
    apply_and_check(&mut scenario);
}

// --- labels ---

#[test]
fn unreadable_pool_launches_no_nodes() {
    let mut scenario = cores(&["m5.large"], 1);
    scenario.pool().unreadable = Some("spec.template.spec.requirements[0].values".into());
    let plan = scenario.plan();
    assert_eq!((changes(&plan), reasons(&plan)[0].0), ((0, 0), "pool-unusable"));
    let is_reported =
        plan.capacity.diagnostics.iter().any(|d| d.message.contains("could not be read"));
    assert!(is_reported);
}

#[test]
fn undefined_label_can_be_excluded_but_not_required() {
    for (operator, values, placed) in [
        (Operator::In, &["a"][..], 0),
        (Operator::Exists, &[], 0),
        (Operator::NotIn, &["a"], 1),
        (Operator::DoesNotExist, &[], 1),
    ] {
        for (pool_operator, placed) in [(None, placed), (Some(Operator::NotIn), placed.min(1))] {
            let mut scenario = cores(&["m5.large"], 1);
            if let Some(operator) = pool_operator {
                let values = vec!["a".into()];
                let requirement =
                    PoolRequirement { key: "zoo".into(), operator, values, min_values: None };
                scenario.pool().requirements.push(requirement);
            }
            let template = scenario.template();
            let expression = crate::model::pod::Expression {
                key: "zoo".into(),
                operator,
                values: values.iter().map(|v| (*v).into()).collect(),
            };
            let term =
                crate::model::pod::NodeTerm { expressions: vec![expression], ..Default::default() };
            template.spec.node_affinity.required = Some(vec![term]);
            // A pool that excludes one value launches nodes with other values, for pods that
            // require any value.
            let expected =
                if pool_operator.is_some() && operator == Operator::Exists { 1 } else { placed };
            assert_eq!(
                scenario.plan().capacity.pods.placed,
                expected,
                "{operator:?} {pool_operator:?}"
            );
        }
    }
}

#[test]
fn joining_instance_has_its_launch_labels() {
    let mut scenario = cores(&["m5.large"], 1);
    let exists = PoolRequirement {
        key: "team".into(),
        operator: Operator::Exists,
        values: Vec::new(),
        min_values: None,
    };
    scenario.pool().requirements.push(exists);
    let first = scenario.desired.workloads[&workload_id()].clone();
    for (name, team) in [("one", "a"), ("two", "b")] {
        let mut workload = first.clone();
        workload.id.name = name.into();
        let template = std::sync::Arc::make_mut(&mut workload.template);
        template.spec.node_selector.extend([label("team", team)]);
        scenario.desired.workloads.insert(workload.id.clone(), workload);
    }
    scenario.scale(0);
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (2, 0));
    assert_eq!(launched(&plan)[0].open_labels, ["team".into()]);
    for launch in scenario.solve().target.launches {
        scenario.launch(&launch.node);
    }
    scenario.observed.nodes.clear();
    let plan = scenario.plan();
    assert_eq!((changes(&plan), plan.capacity.pods.placed), ((0, 0), 2));
}

// --- weights and limits ---

#[test]
fn pool_weight_precedes_price() {
    for (weight, expected) in [(1, "m5.xlarge"), (0, "m5.large")] {
        let mut scenario = cores(&["m5.large"], 1);
        let mut other = scenario.pool().clone();
        (other.name, other.weight) = ("zebra".into(), weight);
        other.requirements[0].values = vec!["m5.xlarge".into()];
        scenario.desired.pools.insert(other.name.clone(), other);
        assert_eq!(types(&scenario.plan()), [expected], "{weight}");
    }
}

#[test]
fn weighted_pool_is_filled_to_its_limit() {
    for (limit, expected) in [
        (2_000, ["c5.large", "m5.large"].as_slice()),
        (4_000, &["m5.large"; 2]),
        (5_000, &["m5.large"; 2]),
    ] {
        let mut scenario = cores(&["c5.large"], 2);
        let mut other = scenario.pool().clone();
        (other.name, other.weight) = ("reserved".into(), 50);
        other.requirements[0].values = vec!["m5.large".into()];
        other.limits.resources = [("cpu".into(), limit)].into();
        scenario.desired.pools.insert(other.name.clone(), other);
        assert_eq!(types(&scenario.plan()), expected, "{limit}");
        // A replacement of the heavier pool would exceed its limits, and the lighter one is cheaper.
        scenario.settings.minimum_fleet_saving_milli_percent = 0;
        apply_and_check(&mut scenario);
        assert_eq!(changes(&scenario.plan()), (0, 0), "{limit}");
    }
}

#[test]
fn annotated_pool_retains_its_nodes() {
    let mut scenario = cores(&["m5.large"], 3);
    apply_and_check(&mut scenario);
    scenario.scale(0);
    assert!(changes(&scenario.plan()).1 > 0);
    scenario.pool().do_not_disrupt = true;
    scenario.pool().labels.extend([label("team", "b")]);
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (0, 0));
    assert_eq!(keeps(&plan, &BlockReason::DoNotDisrupt), scenario.observed.nodes.len());
}

#[test]
fn annotations_of_a_pool_are_planned_and_their_change_is_drift() {
    let mut scenario = cores(&["m5.large"], 1);
    assert!(scenario.plan().capacity.node_annotations.is_empty());
    scenario.pool().annotations.insert("team".to_owned(), "a".to_owned());
    apply_and_check(&mut scenario);
    let plan = scenario.plan();
    assert_eq!(plan.capacity.node_annotations["default"]["team"], "a");
    scenario.pool().annotations.insert("team".to_owned(), "b".to_owned());
    assert_eq!(changes(&scenario.plan()), (1, 1));
    // A removed annotation is a change as well.
    scenario.pool().annotations.clear();
    assert_eq!(changes(&scenario.plan()), (1, 1));
}

#[test]
fn replacement_and_old_node_both_count_against_limits() {
    let mut scenario = cores(&["m5.large"], 1);
    apply_and_check(&mut scenario);
    scenario.pool().labels.extend([label("team", "b")]);
    for (limit, expected) in [(1, (0, 0)), (2, (1, 1))] {
        scenario.pool().limits.nodes = Some(limit);
        assert_eq!(changes(&scenario.plan()), expected, "{limit} nodes");
    }
    scenario.pool().limits.nodes = None;
    for (cores, expected) in [(3_000, (0, 0)), (4_000, (1, 1))] {
        scenario.pool().limits.resources = [("cpu".into(), cores)].into();
        assert_eq!(changes(&scenario.plan()), expected, "{cores}");
    }
}

#[test]
fn spot_is_preferred_while_its_price_is_unknown() {
    let mut scenario = Scenario::new(&["c5.large", "m5.large"], 900, 100);
    scenario.pool().requirements[1] =
        requirement("karpenter.sh/capacity-type", &["on-demand", "spot"]);
    scenario.scale(9);
    let plan = scenario.plan();
    let launched = plan.resource_changes.iter().filter_map(|row| row.change.after.as_ref());
    let spot: Vec<bool> =
        launched.map(|node| node.capacity_type == Some(CapacityType::Spot)).collect();
    assert!(spot.len() > 4 && spot.iter().all(|is_spot| *is_spot), "{spot:?}");
    assert!(plan.capacity.explain.iter().all(|row| row.estimated), "no price is known");
}

#[test]
fn node_younger_than_consolidate_after_stays() {
    let mut scenario = Scenario::new(&["m5.large"], 1000, 100);
    scenario.step(3);
    scenario.scale(1);
    scenario.pool().consolidate_after = Some(SignedDuration::from_mins(10));
    let launched = scenario.observed.taken_at;
    let mut planned = |minutes: i64, keep_young_nodes: bool| {
        scenario.observed.taken_at = launched + SignedDuration::from_mins(minutes);
        scenario.settings.keep_young_nodes = keep_young_nodes;
        let plan = scenario.plan();
        (plan.summary.destroy, keeps(&plan, &BlockReason::ConsolidateAfter { seconds: 600 }))
    };
    assert_eq!(planned(9, true), (0, 3), "all nodes are young");
    assert_eq!(planned(10, true), (2, 0), "as old as consolidateAfter");
    assert_eq!(planned(9, false), (2, 0), "the controller waits by itself");
}
