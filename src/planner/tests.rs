//! End-to-end tests of the planner with the fleets of the source documents.

mod cluster_autoscaler;
mod daemon_sets;
mod drift_report;
mod failure_domains;
mod group_growth;
mod jobs;
mod pools;
mod reservations;
mod resources;
mod revalidation;
mod spot_offerings;
mod stateful_sets;
mod termination_grace;
mod unread_sources;
mod windows;
mod worlds;

use std::num::NonZero;
use std::sync::Arc;

use super::*;
use crate::model::ids::{InstanceTypeName, ZoneName};
use crate::model::market::{ListPrices, Market, Quotas, TypeFacts};
use crate::model::observed::{InstanceState, Pod, PodPhase, tag};
use crate::model::units::MicroUsd;
use crate::plan::canonical;
use crate::plan::wire::{DiagnosticSeverity, Reason};
use crate::testing::Scenario;

/// Returns the numbers of launched and terminated nodes.
fn changes(plan: &Plan) -> (u32, u32) {
    (plan.summary.add, plan.summary.destroy)
}

fn workshop() -> Scenario {
    Scenario::new(&["c5.large", "m5.large", "r5.large", "m5.xlarge"], 0, 1024)
}

#[test]
fn plan_warns_only_of_stale_fleetwright_cordons() {
    let mut scenario = workshop();
    scenario.scale(5);
    scenario.carry_out(&scenario.solve());
    for (mark, unschedulable, expected) in [
        (Some("drain"), true, Some("an apply cordoned it for a drain")),
        (Some("interruption"), true, Some("an interruption of its instance")),
        (Some("leaving"), true, Some("an interruption of its instance")),
        (Some("true"), true, Some("an interruption of its instance")),
        (Some("drain"), false, None),
        (None, true, None),
    ] {
        let node = scenario.node();
        node.unschedulable = unschedulable;
        let mark = mark
            .map(|mark| (crate::model::observed::CORDONED_ANNOTATION.to_owned(), mark.to_owned()));
        node.annotations = mark.into_iter().collect();
        let object = format!("node {}", node.name);
        let plan = scenario.plan();
        let found = plan.capacity.diagnostics.iter().filter(|row| row.object == object);
        let found: Vec<_> = found.map(|row| row.message.as_str()).collect();
        let is_removed =
            plan.resource_changes.iter().any(|row| row.change.actions.contains(&Action::Delete));
        assert!(!is_removed);
        match expected {
            Some(text) => assert!(found.len() == 1 && found[0].contains(text), "{found:?}"),
            None => assert!(found.is_empty(), "{found:?}"),
        }
    }
}

#[test]
fn running_scope_plans_for_existing_pods_only() {
    let mut scenario = workshop();
    scenario.scale(5);
    scenario.carry_out(&scenario.solve());
    let scope = || Scope {
        changeable_nodes: Some(BTreeSet::new()),
        running_pods_only: true,
        ..Scope::default()
    };
    let adds = |scenario: &Scenario| scenario.plan_within(scope()).summary.add;
    scenario.scale(40);
    assert!(scenario.plan().summary.add > 0);
    assert_eq!(adds(&scenario), 0, "the commit declares more, but no pod is pending");
    let pending: Vec<_> = (0..30)
        .map(|n| {
            let mut pod = Pod::clone(&scenario.observed.pods[0]);
            (pod.node, pod.phase) = (None, PodPhase::Pending);
            pod.name = format!("pending-{n}").into();
            pod.uid = format!("uid-pending-{n}").as_str().into();
            Arc::new(pod)
        })
        .collect();
    scenario.observed.pods.extend(pending);
    scenario.scale(0);
    scenario.observed.mark_delivered([crate::testing::workload_id()]);
    assert!(scenario.plan().summary.destroy > 0);
    let plan = scenario.plan_within(scope());
    assert!(plan.summary.add > 0 && plan.summary.destroy == 0, "{:?}", plan.summary);
    let placed: u32 = plan.capacity.placements.iter().map(|row| row.pods).sum();
    assert!(placed >= 30, "{placed}");
    let inputs = Inputs {
        scope: Scope { running_pods_only: true, ..Scope::default() },
        ..scenario.inputs()
    };
    let revalidated = crate::planner::revalidate(&inputs, &plan);
    assert!(
        revalidated.missing.is_empty() && revalidated.dropped.is_empty(),
        "{:?}",
        revalidated.dropped
    );
}

#[test]
fn plan_after_an_apply_has_no_changes() {
    let mut scenario = workshop();
    for replicas in [0, 5, 12, 5, 1, 0] {
        scenario.scale(replicas);
        let first = scenario.plan();
        assert!(first.applyable && first.complete);
        scenario.carry_out(&scenario.solve());
        let again = scenario.plan();
        assert_eq!((again.summary.add, again.summary.destroy), (0, 0), "{replicas}");
        assert_eq!(again.capacity.cost.hourly_after, first.capacity.cost.hourly_after);
    }
}

#[test]
fn plan_bytes_do_not_depend_on_worker_count() {
    for (cpu, memory, walk) in [(0, 1024, [12, 5]), (700, 300, [60, 20]), (1_900, 900, [9, 31])] {
        let mut scenario =
            Scenario::new(&["c5.large", "m5.large", "r5.large", "m5.xlarge"], cpu, memory);
        for replicas in walk {
            scenario.scale(replicas);
            let bytes = [None, NonZero::new(1), NonZero::new(2), NonZero::new(5)].map(|workers| {
                scenario.settings.workers = workers;
                canonical::compact(&scenario.plan()).expect("a canonical plan")
            });
            assert!(bytes.iter().all(|other| *other == bytes[0]), "{replicas} of {cpu}m");
            scenario.carry_out(&scenario.solve());
        }
    }
}

#[test]
fn one_for_one_replacement_has_a_single_row() {
    let mut scenario = workshop();
    scenario.step(5);
    scenario.scale(1);
    let plan = scenario.plan();
    assert_eq!((plan.summary.add, plan.summary.destroy, plan.summary.replace), (1, 1, 1));
    let [row] = plan.resource_changes.as_slice() else { panic!("one row: {plan:#?}") };
    assert_eq!(row.change.actions, [Action::Create, Action::Delete]);
    assert_eq!(row.action_reason.as_deref(), Some("replace_because_underutilized"));
    assert!(matches!(plan.capacity.explain[0].reason, Reason::Launch { .. }));
    assert!(plan.capacity.explain[0].retire_reason.is_some());
}

#[test]
fn same_inputs_give_the_same_bytes() {
    let mut scenario = workshop();
    scenario.scale(17);
    let text = |plan: &Plan| crate::plan::canonical::pretty(plan).expect("a canonical plan");
    let first = text(&scenario.plan());
    for _ in 0..10 {
        assert_eq!(text(&scenario.plan()), first);
    }
}

#[test]
fn excluded_node_is_retained_and_plan_is_partial() {
    let mut scenario = workshop();
    scenario.step(5);
    scenario.scale(0);
    let all = scenario.plan();
    let address = all.resource_changes[0].address.to_string();
    assert_eq!(all.summary.destroy, 1);
    let scope = Scope { excluded_addresses: vec![address.clone()], ..Scope::default() };
    let limited = scenario.plan_within(scope);
    assert_eq!((limited.summary.destroy, limited.complete), (0, false));
    let scope = Scope { target_addresses: vec![address], ..Scope::default() };
    assert_eq!(scenario.plan_within(scope).summary.destroy, 1);
}

#[test]
fn excluded_launch_leaves_its_pods_unschedulable() {
    let mut scenario = workshop();
    scenario.scale(5);
    let address = scenario.plan().resource_changes[0].address.to_string();
    let limited =
        scenario.plan_within(Scope { excluded_addresses: vec![address], ..Scope::default() });
    assert_eq!((limited.summary.add, limited.capacity.pods.unschedulable), (0, 5));
}

#[test]
fn node_without_a_decision_is_an_error_of_the_plan() {
    let mut scenario = workshop();
    scenario.scale(1);
    scenario.carry_out(&scenario.solve());
    let (inputs, demand, mut solution) = (scenario.inputs(), scenario.demand(), scenario.solve());
    let finished = |solution: &Solution| {
        let plan = assemble_plan(&inputs, &demand, solution);
        finish(&inputs, &demand, plan)
    };
    assert!(!finished(&solution).errored);
    solution.target.keeps.clear();
    let plan = finished(&solution);
    assert!(plan.errored && !plan.applyable && plan.resource_changes.is_empty());
    let is_about_rows = |row: &Diagnostic| row.message.contains("observed/rows");
    assert!(plan.capacity.diagnostics.iter().any(is_about_rows), "{:?}", plan.capacity.diagnostics);
}

#[test]
fn excluding_the_first_launch_keeps_other_keys() {
    let mut scenario = Scenario::new(&["m5.large"], 1000, 100);
    scenario.scale(3);
    let all = scenario.plan();
    let addresses: Vec<_> = all.resource_changes.iter().map(|row| row.address.clone()).collect();
    assert_eq!(addresses.len(), 3);
    let limited = scenario.plan_within(Scope {
        excluded_addresses: vec![addresses[0].to_string()],
        ..Scope::default()
    });
    let left = limited.resource_changes.iter().map(|row| row.address.clone());
    assert_eq!(left.collect::<Vec<_>>(), addresses[1..]);
}

#[test]
fn plan_without_some_launches_has_no_contingency() {
    let mut scenario = Scenario::new(&["m5.large"], 1000, 100);
    scenario.settings.steer = true;
    scenario.scale(3);
    let all = scenario.plan();
    let contingency = all.capacity.placement.contingency.as_ref().expect("it is steered");
    assert_eq!((contingency.nodes, contingency.pods), (1, 1));
    let address = all.resource_changes[0].address.to_string();
    let limited =
        scenario.plan_within(Scope { excluded_addresses: vec![address], ..Scope::default() });
    assert_eq!((limited.summary.add, limited.capacity.placement.contingency), (2, None));
    // Nothing to launch: nothing further either.
    scenario.step(3);
    let settled = scenario.plan();
    assert_eq!((settled.summary.add, settled.capacity.placement.contingency), (0, None));
}

#[test]
fn unschedulable_pods_of_a_workload_have_one_row() {
    let mut scenario = Scenario::new(&["m5.large"], 1000, 100);
    scenario.scale(3);
    scenario.desired.pools.get_mut("default").expect("declared").limits.nodes = Some(1);
    let first = scenario.plan();
    let address = first.resource_changes[0].address.to_string();
    let limited =
        scenario.plan_within(Scope { excluded_addresses: vec![address], ..Scope::default() });
    let [row] = limited.capacity.unschedulable.as_slice() else { panic!("{limited:#?}") };
    let reasons: Vec<&str> = row.reasons.iter().map(|reason| reason.reason.as_str()).collect();
    assert_eq!((row.pods, reasons), (3, vec!["limit-reached", "left-out"]));
}

/// Returns a catalog with one instance type that the embedded data lacks, at this on-demand price.
fn catalog_with_new_type(price: Option<MicroUsd>) -> Catalog {
    let facts = TypeFacts {
        architectures: vec!["x86_64".to_owned()],
        usage: vec!["on-demand".to_owned()],
        vcpus: 8,
        memory_mib: 32_768,
        enis: 4,
        ips_per_eni: 15,
        ..TypeFacts::default()
    };
    let (name, zone) = (InstanceTypeName::from("z99.big"), ZoneName::from("us-east-1a"));
    let hourly = price.map(|price| (name.clone(), price)).into_iter().collect();
    let market = Market {
        read_at: Timestamp::UNIX_EPOCH,
        zones: [(zone.clone(), "use1-az6".into())].into(),
        offered: [(name.clone(), [zone].into())].into(),
        spot: [].into(),
        listed: ListPrices { hourly, ..ListPrices::default() },
        types: [(name, facts)].into(),
        quotas: None,
        offered_is_old: false,
        unread: Vec::new(),
    };
    let catalog = Catalog::load(&"us-east-1".into(), &market.resolve_zones(&[]));
    catalog.expect("the region is embedded").with_market(&market, &[])
}

#[test]
fn node_of_unknown_type_keeps_its_capacity() {
    let mut scenario = Scenario::new(&["z99.big"], 1000, 1024);
    scenario.catalog = catalog_with_new_type(Some(MicroUsd(300_000)));
    scenario.step(2);
    assert_eq!(scenario.observed.nodes.len(), 1);
    // An instance that has not joined yet counts as its future node.
    let (nodes, pods) = (scenario.observed.nodes.clone(), scenario.observed.pods.clone());
    scenario.observed.nodes.clear();
    scenario.observed.pods.clear();
    assert_eq!(scenario.plan().summary.add, 0);
    // This also applies if the price was known at launch but is unknown now.
    let priced = std::mem::replace(&mut scenario.catalog, catalog_with_new_type(None));
    let plan = scenario.plan();
    assert_eq!((plan.summary.add, plan.capacity.pods.unschedulable), (0, 0), "{plan:#?}");
    scenario.catalog = priced;
    scenario.observed.nodes = nodes;
    scenario.observed.pods = pods;
    // Without a price, the node is retained and gets more pods, but no further node is launched.
    scenario.catalog = catalog_with_new_type(None);
    for (pods, placed) in [(7, 7), (9, 7)] {
        scenario.scale(pods);
        let plan = scenario.plan();
        let result = (plan.summary.add, plan.summary.destroy, plan.capacity.pods.placed);
        assert_eq!(result, (0, 0, placed), "{pods} pods");
    }
}

#[test]
fn launches_beyond_quota_are_planned_with_a_warning() {
    let mut scenario = Scenario::new(&["m5.large"], 1000, 100);
    scenario.step(1);
    scenario.scale(3);
    let mut quota_warning = |vcpus: Option<i64>| {
        let mut quotas = Quotas::default();
        if let Some(vcpus) = vcpus {
            quotas.set("L-1216C47A", vcpus);
        }
        scenario.catalog.quotas = Some(quotas);
        let plan = scenario.plan();
        assert_eq!(plan.summary.add, 2);
        let found = plan.capacity.diagnostics.into_iter();
        let mut found = found.filter(|d| d.object == "quota L-1216C47A");
        found.next().map(|found| (found.severity, found.message))
    };
    // One node with two vCPUs is running, and two more are launched.
    assert_eq!([quota_warning(Some(6)), quota_warning(None)], [None, None]);
    let (severity, message) = quota_warning(Some(5)).expect("a quota warning");
    assert_eq!(severity, DiagnosticSeverity::Warning);
    assert_eq!(
        message,
        "the cluster runs 2 vCPUs of Standard (A, C, D, H, I, M, R, T, Z) on-demand instances, the \
         plan launches 4 more before it terminates any, and the quota of the account is 5"
    );
}

#[test]
fn node_of_unknown_price_is_counted_once() {
    let mut scenario = workshop();
    scenario.step(5);
    let node = scenario.node();
    node.instance = None;
    let plan = scenario.plan();
    assert_eq!(plan.capacity.cost.unpriced, 1);
}

#[test]
fn requested_replacement_keeps_its_address() {
    let mut scenario = workshop();
    scenario.step(5);
    let address = scenario.plan().resource_changes[0].address.to_string();
    let plan = scenario
        .plan_within(Scope { replaced_addresses: vec![address.clone()], ..Scope::default() });
    assert_eq!((plan.summary.add, plan.summary.destroy, plan.summary.replace), (1, 1, 1));
    assert_eq!(plan.resource_changes[0].address.as_str(), address);
    assert_eq!(plan.resource_changes[0].action_reason.as_deref(), Some("replace_by_request"));
}

#[test]
fn replaced_node_that_ended_is_a_note() {
    let mut scenario = workshop();
    scenario.step(5);
    let row = scenario.plan().resource_changes[0].clone();
    let address = row.address.to_string();
    let id = row.change.before.and_then(|node| node.instance_id).expect("an instance");
    let by_id = format!("ec2_instance.default[\"{id}\"]");
    let replace = vec![address.clone(), by_id.clone(), format!("{address}x")];
    let replaces = Scope { replaced_addresses: replace, ..Scope::default() };
    scenario.scale(0);
    scenario.observed.nodes.clear();
    scenario.observed.pods.clear();
    let notes = |scenario: &Scenario| {
        let plan = scenario.plan_within(replaces.clone());
        let found = plan.capacity.diagnostics.into_iter();
        let found = found.filter(|found| found.object.starts_with("ec2_instance."));
        found.map(|found| (found.object, found.severity, found.code)).collect::<Vec<_>>()
    };
    let unknown = |object: &str| {
        let code = Some(Code::AddressUnknown.as_str().to_owned());
        (object.to_owned(), DiagnosticSeverity::Warning, code)
    };
    let ended = |object: &String| (object.clone(), DiagnosticSeverity::Note, None);
    for state in [InstanceState::Terminated, InstanceState::ShuttingDown] {
        scenario.observed.instances.get_mut(&id).expect("an instance").state = state;
        let found = notes(&scenario);
        assert!(found.contains(&ended(&address)) && found.contains(&ended(&by_id)), "{found:?}");
        assert!(found.contains(&unknown(&format!("{address}x"))), "{found:?}");
    }
    // An instance of another cluster is no evidence.
    let instance = scenario.observed.instances.get_mut(&id).expect("an instance");
    instance.tags.insert(tag::CLUSTER.to_owned(), "other".to_owned());
    assert!(notes(&scenario).contains(&unknown(&address)));
}

#[test]
fn unknown_size_blocks_removals() {
    let mut scenario = workshop();
    scenario.step(5);
    scenario.scale(0);
    scenario.desired.unresolved_policy = UnresolvedPolicy::Hold;
    scenario.desired.unresolved.push(crate::model::desired::Unresolved {
        origin: crate::model::ids::Origin::new("release.yaml", 1),
        object: "HelmRelease web/shop".into(),
        reason: "the chart is not rendered".into(),
    });
    let plan = scenario.plan();
    assert_eq!((plan.summary.destroy, plan.capacity.pods.unresolved), (0, 1));
    assert_eq!(plan.summary.blocked, 1);
}

#[test]
fn oversized_replica_count_is_an_error() {
    let mut scenario = workshop();
    scenario.step(5);
    scenario.scale(u32::MAX);
    let plan = plan(&scenario.inputs());
    assert!(plan.errored && !plan.applyable);
    assert_eq!((plan.summary.destroy, plan.capacity.pods.unresolved), (0, 1));
    let is_limit = |d: &Diagnostic| d.message.contains("at most 1000000 are planned");
    assert!(plan.capacity.diagnostics.iter().any(is_limit));
}
