//! End-to-end tests of the planner on the fleets of the source documents.

mod failure_domains;
mod pinned;
mod pools;
mod resources;
mod worlds;

use std::num::NonZero;
use std::sync::Arc;

use super::*;
use crate::model::ids::{InstanceTypeName, ZoneName};
use crate::model::market::{ListPrices, Market, Quotas, TypeFacts};
use crate::model::observed::{ClusterIdentity, Pod, PodPhase};
use crate::model::units::MicroUsd;
use crate::plan::canonical;
use crate::plan::wire::{BaseWorld, DiagnosticSeverity, Reason};
use crate::testing::Story;

pub(super) fn base(observed: &Observed, name: &str) -> Base {
    Base {
        path: ".".into(),
        repository: None,
        commit: Some("4f2c9a1".into()),
        tree: "0".repeat(64),
        dirty: false,
        directory: None,
        rendered: Vec::new(),
        world: BaseWorld {
            name: name.into(),
            cluster: ClusterIdentity::clone(&observed.cluster),
            taken_at: observed.taken_at,
            sources: observed.sources.clone(),
        },
        demand: DemandMode::Live,
        preconditions: Vec::new(),
        guard: None,
        judged_by: Vec::new(),
    }
}

/// Returns inputs for the whole story.
fn inputs_of(story: &Story) -> Inputs<'_> {
    Inputs {
        desired: &story.desired,
        observed: &story.observed,
        catalog: &story.catalog,
        base: base(&story.observed, "sim:world"),
        at: story.observed.taken_at,
        demand: DemandMode::Live,
        is_forecast: false,
        scope: Scope::default(),
        settings: story.settings,
    }
}

fn plan_of(story: &Story, scope: Scope) -> Plan {
    let plan = plan(&Inputs { scope, ..inputs_of(story) });
    let errors: Vec<&Diagnostic> = plan
        .capacity
        .diagnostics
        .iter()
        .filter(|d| d.severity == DiagnosticSeverity::Error)
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
    plan
}

fn workshop() -> Story {
    Story::new(&["c5.large", "m5.large", "r5.large", "m5.xlarge"], 0, 1024)
}

#[test]
fn plan_warns_of_nodes_with_our_stale_cordons_only() {
    let mut story = workshop();
    story.scale(5);
    story.carry_out(&story.solve());
    for (mark, unschedulable, says) in [
        (Some("drain"), true, Some("an apply cordoned it for a drain")),
        (Some("leaving"), true, Some("an interruption of its instance")),
        (Some("true"), true, Some("or by an earlier version")),
        (Some("drain"), false, None),
        (None, true, None),
    ] {
        let node = story.observed.nodes.values_mut().next().expect("one");
        node.unschedulable = unschedulable;
        let mark = mark
            .map(|mark| (crate::model::observed::CORDONED_ANNOTATION.to_owned(), mark.to_owned()));
        node.annotations = mark.into_iter().collect();
        let object = format!("node {}", node.name);
        let plan = plan_of(&story, Scope::default());
        let found = plan.capacity.diagnostics.iter().filter(|row| row.object == object);
        let found: Vec<_> = found.map(|row| row.message.as_str()).collect();
        let is_removed =
            plan.resource_changes.iter().any(|row| row.change.actions.contains(&Action::Delete));
        assert!(!is_removed);
        match says {
            Some(says) => assert!(found.len() == 1 && found[0].contains(says), "{found:?}"),
            None => assert!(found.is_empty(), "{found:?}"),
        }
    }
}

#[test]
fn running_scope_plans_for_existing_pods_only() {
    let mut story = workshop();
    story.scale(5);
    story.carry_out(&story.solve());
    let scope = || Scope { only: Some(BTreeSet::new()), running: true, ..Scope::default() };
    let adds = |story: &Story| plan_of(story, scope()).summary.add;
    story.scale(40);
    assert!(plan_of(&story, Scope::default()).summary.add > 0);
    assert_eq!(adds(&story), 0, "the commit asks for more, and no pod waits");
    let waits: Vec<_> = (0..30)
        .map(|n| {
            let mut pod = Pod::clone(&story.observed.pods[0]);
            (pod.node, pod.phase) = (None, PodPhase::Pending);
            pod.name = format!("waits-{n}").into();
            pod.uid = format!("uid-waits-{n}").as_str().into();
            Arc::new(pod)
        })
        .collect();
    story.observed.pods.extend(waits);
    story.scale(0);
    story.observed.mark_delivered([crate::testing::workload_id()]);
    assert!(plan_of(&story, Scope::default()).summary.destroy > 0);
    let plan = plan_of(&story, scope());
    assert!(plan.summary.add > 0 && plan.summary.destroy == 0, "{:?}", plan.summary);
    let placed: u32 = plan.capacity.placements.iter().map(|row| row.pods).sum();
    assert!(placed >= 30, "{placed}");
    let inputs = Inputs { scope: Scope { running: true, ..Scope::default() }, ..inputs_of(&story) };
    let again = crate::planner::plan_pinned(&inputs, &plan);
    assert!(again.missing.is_empty() && again.dropped.is_empty(), "{:?}", again.dropped);
}

#[test]
fn applied_workshop_plans_leave_nothing_to_do() {
    let mut story = workshop();
    for replicas in [0, 5, 12, 5, 1, 0] {
        story.scale(replicas);
        let first = plan_of(&story, Scope::default());
        assert!(first.applyable && first.complete);
        story.carry_out(&story.solve());
        let again = plan_of(&story, Scope::default());
        assert_eq!((again.summary.add, again.summary.destroy), (0, 0), "{replicas}");
        assert_eq!(again.capacity.cost.hourly_after, first.capacity.cost.hourly_after);
    }
}

#[test]
fn worker_count_changes_no_byte_of_a_plan() {
    for (cpu, memory, walk) in [(0, 1024, [12, 5]), (700, 300, [60, 20]), (1_900, 900, [9, 31])] {
        let mut story = Story::new(&["c5.large", "m5.large", "r5.large", "m5.xlarge"], cpu, memory);
        for replicas in walk {
            story.scale(replicas);
            let bytes = [None, NonZero::new(1), NonZero::new(2), NonZero::new(5)].map(|workers| {
                story.settings.workers = workers;
                canonical::compact(&plan_of(&story, Scope::default())).expect("a plan is canonical")
            });
            assert!(bytes.iter().all(|other| *other == bytes[0]), "{replicas} of {cpu}m");
            story.carry_out(&story.solve());
        }
    }
}

#[test]
fn one_for_one_replacement_is_one_row() {
    let mut story = workshop();
    story.step(5);
    story.scale(1);
    let plan = plan_of(&story, Scope::default());
    assert_eq!((plan.summary.add, plan.summary.destroy, plan.summary.replace), (1, 1, 1));
    let [row] = plan.resource_changes.as_slice() else { panic!("one row: {plan:#?}") };
    assert_eq!(row.change.actions, [Action::Create, Action::Delete]);
    assert_eq!(row.action_reason.as_deref(), Some("replace_because_underutilized"));
    assert!(matches!(plan.capacity.explain[0].reason, Reason::Launch { .. }));
    assert!(plan.capacity.explain[0].retire_reason.is_some());
}

#[test]
fn same_inputs_give_the_same_bytes() {
    let mut story = workshop();
    story.scale(17);
    let text = |plan: &Plan| crate::plan::canonical::pretty(plan).expect("no floats");
    let first = text(&plan_of(&story, Scope::default()));
    for _ in 0..10 {
        assert_eq!(text(&plan_of(&story, Scope::default())), first);
    }
}

#[test]
fn excluded_node_is_retained_and_plan_is_partial() {
    let mut story = workshop();
    story.step(5);
    story.scale(0);
    let all = plan_of(&story, Scope::default());
    let address = all.resource_changes[0].address.to_string();
    assert_eq!(all.summary.destroy, 1);
    let scope = Scope { exclude: vec![address.clone()], ..Scope::default() };
    let limited = plan_of(&story, scope);
    assert_eq!((limited.summary.destroy, limited.complete), (0, false));
    let scope = Scope { target: vec![address], ..Scope::default() };
    assert_eq!(plan_of(&story, scope).summary.destroy, 1);
}

#[test]
fn excluded_launch_leaves_its_pods_unschedulable() {
    let mut story = workshop();
    story.scale(5);
    let address = plan_of(&story, Scope::default()).resource_changes[0].address.to_string();
    let limited = plan_of(&story, Scope { exclude: vec![address], ..Scope::default() });
    assert_eq!((limited.summary.add, limited.capacity.pods.unschedulable), (0, 5));
}

#[test]
fn excluding_the_first_launch_keeps_other_keys() {
    let mut story = Story::new(&["m5.large"], 1000, 100);
    story.scale(3);
    let all = plan_of(&story, Scope::default());
    let addresses: Vec<_> = all.resource_changes.iter().map(|row| row.address.clone()).collect();
    assert_eq!(addresses.len(), 3);
    let limited =
        plan_of(&story, Scope { exclude: vec![addresses[0].to_string()], ..Scope::default() });
    let left = limited.resource_changes.iter().map(|row| row.address.clone());
    assert_eq!(left.collect::<Vec<_>>(), addresses[1..]);
}

#[test]
fn unschedulable_pods_of_a_workload_have_one_row() {
    let mut story = Story::new(&["m5.large"], 1000, 100);
    story.scale(3);
    story.desired.pools.get_mut("default").expect("declared").limits.nodes = Some(1);
    let first = plan_of(&story, Scope::default());
    let address = first.resource_changes[0].address.to_string();
    let limited = plan_of(&story, Scope { exclude: vec![address], ..Scope::default() });
    let [row] = limited.capacity.unschedulable.as_slice() else { panic!("{limited:#?}") };
    let reasons: Vec<&str> = row.reasons.iter().map(|reason| reason.reason.as_str()).collect();
    assert_eq!((row.pods, reasons), (3, vec!["limit-reached", "left-out"]));
}

/// Returns a catalog with one type that the embedded data does not have, at this on-demand price.
fn newer(price: Option<MicroUsd>) -> Catalog {
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
    let mut story = Story::new(&["z99.big"], 1000, 1024);
    story.catalog = newer(Some(MicroUsd(300_000)));
    story.step(2);
    assert_eq!(story.observed.nodes.len(), 1);
    // A joining instance counts as its future node.
    let (nodes, pods) = (story.observed.nodes.clone(), story.observed.pods.clone());
    story.observed.nodes.clear();
    story.observed.pods.clear();
    assert_eq!(plan_of(&story, Scope::default()).summary.add, 0);
    // The same holds if its price was known at the launch and is unknown now.
    let priced = std::mem::replace(&mut story.catalog, newer(None));
    let plan = plan_of(&story, Scope::default());
    assert_eq!((plan.summary.add, plan.capacity.pods.unschedulable), (0, 0), "{plan:#?}");
    story.catalog = priced;
    story.observed.nodes = nodes;
    story.observed.pods = pods;
    // Without a price the node is retained and takes more pods, and no further one is launched.
    story.catalog = newer(None);
    for (pods, placed) in [(7, 7), (9, 7)] {
        story.scale(pods);
        let plan = plan_of(&story, Scope::default());
        let done = (plan.summary.add, plan.summary.destroy, plan.capacity.pods.placed);
        assert_eq!(done, (0, 0, placed), "{pods} pods");
    }
}

#[test]
fn launches_beyond_quota_are_planned_with_a_warning() {
    let mut story = Story::new(&["m5.large"], 1000, 100);
    story.step(1);
    story.scale(3);
    let mut warned = |vcpus: Option<i64>| {
        let mut quotas = Quotas::default();
        if let Some(vcpus) = vcpus {
            quotas.set("L-1216C47A", vcpus);
        }
        story.catalog.quotas = Some(quotas);
        let plan = plan_of(&story, Scope::default());
        assert_eq!(plan.summary.add, 2);
        let found = plan.capacity.diagnostics.into_iter();
        let mut found = found.filter(|d| d.object == "quota L-1216C47A");
        found.next().map(|found| (found.severity, found.message))
    };
    // One node of two vCPUs runs, and two more are launched.
    assert_eq!([warned(Some(6)), warned(None)], [None, None]);
    let (severity, message) = warned(Some(5)).expect("beyond");
    assert_eq!(severity, DiagnosticSeverity::Warning);
    assert_eq!(
        message,
        "the cluster runs 2 vCPUs of Standard (A, C, D, H, I, M, R, T, Z) on-demand instances, the \
         plan launches 4 more before it terminates any, and the quota of the account is 5"
    );
}

#[test]
fn node_of_unknown_price_is_counted_once() {
    let mut story = workshop();
    story.step(5);
    let node = story.observed.nodes.values_mut().next().expect("launched");
    node.instance = None;
    let plan = plan_of(&story, Scope::default());
    assert_eq!(plan.capacity.cost.unpriced, 1);
}

#[test]
fn requested_replacement_keeps_its_address() {
    let mut story = workshop();
    story.step(5);
    let address = plan_of(&story, Scope::default()).resource_changes[0].address.to_string();
    let plan = plan_of(&story, Scope { replace: vec![address.clone()], ..Scope::default() });
    assert_eq!((plan.summary.add, plan.summary.destroy, plan.summary.replace), (1, 1, 1));
    assert_eq!(plan.resource_changes[0].address.as_str(), address);
    assert_eq!(plan.resource_changes[0].action_reason.as_deref(), Some("replace_by_request"));
}

#[test]
fn errors_and_unknown_sizes_remove_nothing() {
    let mut story = workshop();
    story.step(5);
    story.scale(0);
    story.desired.unresolved.push(crate::model::desired::Unresolved {
        origin: crate::model::ids::Origin::new("release.yaml", 1),
        object: "HelmRelease web/shop".into(),
        reason: "the chart is not rendered".into(),
    });
    let plan = plan_of(&story, Scope::default());
    assert_eq!((plan.summary.destroy, plan.capacity.pods.unresolved), (0, 1));
    assert_eq!(plan.summary.blocked, 1);
}

#[test]
fn oversized_replica_count_is_an_error() {
    let mut story = workshop();
    story.step(5);
    story.scale(u32::MAX);
    let plan = plan(&inputs_of(&story));
    assert!(plan.errored && !plan.applyable);
    assert_eq!((plan.summary.destroy, plan.capacity.pods.unresolved), (0, 1));
    let says = |d: &Diagnostic| d.message.contains("at most 1000000 are planned");
    assert!(plan.capacity.diagnostics.iter().any(says));
}
