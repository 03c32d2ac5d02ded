//! Tests of the prices, limits and refusals of node groups that grow.

use super::cluster_autoscaler::{GROUP, cluster, discovery, group, served, without_pools};
use super::*;
use crate::model::cluster_autoscaler::AutoscalerFlags;
use crate::model::desired::ExternalGroup;
use crate::model::ids::Origin;
use crate::model::market::{CapacityMix, CapacityType};
use crate::model::observed::Group;
use crate::plan::{Facts, verify};
use crate::solver::with_external_groups;
use crate::testing::pods;

/// Price of one m5.large on demand.
const ON_DEMAND: MicroUsd = MicroUsd(96_000);
const SPOT: MicroUsd = MicroUsd(30_000);

fn set_spot_price(scenario: &mut Scenario) {
    let kind = scenario.catalog.types.get_mut("m5.large").expect("a type");
    let spot = kind.offerings.iter_mut().filter(|o| o.capacity_type == CapacityType::Spot);
    spot.for_each(|offering| (offering.price, offering.estimated) = (Some(SPOT), false));
}

/// Lets Fleetwright resize the group.
fn manage(scenario: &mut Scenario) {
    let declared = ExternalGroup { manage: true, origin: Origin::new("fleetwright.yaml", 3) };
    scenario.desired.external_groups.insert(GROUP.into(), declared);
}

#[test]
fn price_of_growth_is_that_of_the_next_members() {
    for (nodes, expected) in [(1, ON_DEMAND), (2, ON_DEMAND + SPOT), (3, ON_DEMAND + SPOT.times(2))]
    {
        let mut scenario = without_pools(nodes);
        set_spot_price(&mut scenario);
        group(&mut scenario).max = 9;
        group(&mut scenario).mix = Some(CapacityMix { on_demand_base: 1, on_demand_percent: 0 });
        let hourly = scenario.plan().capacity.cluster_autoscaler[0].hourly;
        assert_eq!(hourly, Some(expected), "{nodes}");
    }
}

#[test]
fn mix_of_a_partial_plan_counts_its_launches_alone() {
    let mut scenario = without_pools(2);
    scenario.observed.workloads.clear();
    scenario.observed.pods.clear();
    set_spot_price(&mut scenario);
    let group = group(&mut scenario);
    group.tags.clear();
    group.mix = Some(CapacityMix { on_demand_base: 1, on_demand_percent: 0 });
    manage(&mut scenario);
    let new = |plan: &Plan| -> Vec<_> {
        let created = plan.resource_changes.iter().filter_map(|row| row.change.after.as_ref());
        created.filter_map(|state| state.capacity_type).collect()
    };
    let all = scenario.plan();
    assert_eq!(new(&all), [CapacityType::OnDemand, CapacityType::Spot]);
    for key in ["0", "1"] {
        let exclude = vec![format!("ec2_instance.{GROUP}[\"{key}\"]")];
        let plan = scenario.plan_within(Scope { excluded_addresses: exclude, ..Scope::default() });
        assert_eq!((new(&plan), plan.complete), (vec![CapacityType::OnDemand], false), "{key}");
        assert_eq!(plan.capacity.cost.hourly_delta, ON_DEMAND, "{key}");
        let desired = with_external_groups(&scenario.desired, &scenario.observed);
        let facts = Facts {
            desired: desired.as_ref().expect("a group"),
            demand: &scenario.demand(),
            observed: &scenario.observed,
            catalog: &scenario.catalog,
            allocation: crate::catalog::allocation,
        };
        let found = verify(&plan, &facts);
        assert!(found.iter().all(|found| found.rule != "group/mix"), "{key}: {found:?}");
    }
}

#[test]
fn advice_about_a_full_group_names_its_maximum() {
    let mut scenario = without_pools(5);
    let declared = ExternalGroup { manage: false, origin: Origin::new("fleetwright.yaml", 3) };
    scenario.desired.external_groups.insert(GROUP.into(), declared);
    let plan = scenario.plan();
    assert_eq!(served(&plan), (3, 2));
    let fix = plan.capacity.unschedulable[0].nearest.clone().unwrap_or_default();
    assert!(fix.starts_with("raise maxSize of"), "{fix}");
    assert!(fix.contains("from 3 to 5: "), "{fix}");
}

/// Fleetwright may resize the group, and the flags of a Cluster Autoscaler name it.
#[test]
fn room_of_a_group_is_counted_once() {
    let flags =
        AutoscalerFlags { groups: [(GROUP.into(), (0, 3))].into(), ..AutoscalerFlags::default() };
    let mut scenario = cluster("kube-system", flags);
    scenario.desired.pools.clear();
    scenario.scale(6);
    group(&mut scenario).tags.clear();
    manage(&mut scenario);
    // Its image alone reveals it.
    let id = scenario.observed.workloads[0].id.clone();
    let other = crate::model::ids::WorkloadId { name: "scaler".into(), ..id.clone() };
    scenario.observed.workloads[0].id = other.clone();
    for pod in &mut scenario.observed.pods {
        if pod.owner.as_ref() == Some(&id) {
            Arc::make_mut(pod).owner = Some(other.clone());
        }
    }
    let plan = scenario.plan();
    let grown: u32 = plan.capacity.cluster_autoscaler.iter().map(|row| row.nodes).sum();
    assert_eq!((plan.summary.add, grown), (0, 3), "the group has room for three nodes");
    assert_eq!(plan.capacity.pods.unschedulable, 3);
}

#[test]
fn refused_group_is_a_warning() {
    type Change = fn(&mut Scenario);
    let ways: [(&str, Change); 4] = [
        ("names no instance type", |s| group(s).types.clear()),
        ("is a Local Zone", |s| group(s).zones = vec!["us-east-1-bos-1a".into()]),
        ("a pool has the same name", |s| {
            let mut pool = crate::testing::pool();
            (pool.name, pool.limits.nodes) = (GROUP.into(), Some(0));
            s.desired.pools.insert(pool.name.clone(), pool);
        }),
        ("taints without an effect (gpu)", |s| {
            let tag = "k8s.io/cluster-autoscaler/node-template/taint/gpu".to_owned();
            group(s).tags.insert(tag, "true".to_owned());
        }),
    ];
    let warnings = |scenario: &Scenario, part: &str| {
        let plan = scenario.plan();
        let found = plan.capacity.diagnostics.iter().filter(|d| d.message.contains(part));
        (served(&plan).0, found.count())
    };
    for (part, change) in ways {
        let mut scenario = without_pools(2);
        assert_eq!(warnings(&scenario, part), (2, 0), "{part}");
        change(&mut scenario);
        assert_eq!(warnings(&scenario, part), (0, 1), "{part}");
        scenario.scale(0);
        assert_eq!(warnings(&scenario, part), (0, 0), "{part}: no pod waits");
    }
}

/// Each of twelve groups is packed with the pods of two hundred workloads.
#[test]
fn too_many_pods_and_groups_are_a_warning() {
    let mut scenario = cluster("kube-system", discovery());
    scenario.desired.pools.clear();
    let live = group(&mut scenario).clone();
    for index in 0..12 {
        let name = format!("group-{index:02}").as_str().into();
        let group = Group { name, max: 1_000, ..live.clone() };
        scenario.observed.groups.insert(group.name.clone(), group);
    }
    for index in 0..200 {
        scenario.deploy(&format!("app-{index:03}"), 50, pods::template(1500, 1024));
    }
    let plan = scenario.plan();
    let is_cut =
        |d: &crate::plan::wire::Diagnostic| d.message.starts_with("too many pods and node");
    assert_eq!(plan.capacity.diagnostics.iter().filter(|d| is_cut(d)).count(), 1);
    let (served, unschedulable) = served(&plan);
    assert_eq!(served + unschedulable, 10_000);
}
