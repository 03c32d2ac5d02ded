//! End-to-end tests of failure domains: shares of pods per node and zone.

use crate::catalog::allocation;
use crate::demand::{Demand, DemandMode};
use crate::model::desired::{FailureDomains, MaxShares};
use crate::model::ids::{Origin, PoolName, WorkloadId};
use crate::model::requirement::key;
use crate::plan::wire::{AlternativesRow, DomainKind, FailureDomainReport};
use crate::plan::{Facts, Plan, verify};
use crate::planner::plan;
use crate::testing::{Scenario, requirement};
use std::collections::{BTreeMap, BTreeSet};

const QUARTER: u32 = 25_000;
const HALF: u32 = 50_000;

/// Returns a scenario with pods of about one core, and instance types with 16 and 96 cores. One node
/// has room for all pods.
fn cores(pods: u32) -> Scenario {
    let mut scenario = Scenario::new(&["c5.4xlarge", "c5.24xlarge"], 900, 100);
    scenario.scale(pods);
    scenario
}

fn limit(scenario: &mut Scenario, workload: MaxShares, pods: MaxShares) {
    let origin = Origin::new("fleetwright.yaml", 1);
    let limits = FailureDomains { origin, workload, pods };
    scenario.desired.failure_domains.insert("default".into(), limits);
}

fn node(share: u32) -> MaxShares {
    MaxShares { node: Some(share), zone: None }
}

fn zone(share: u32) -> MaxShares {
    MaxShares { node: None, zone: Some(share) }
}

fn report(plan: &Plan) -> &FailureDomainReport {
    plan.capacity.placement.failure_domains.as_ref().expect("a report of the limits")
}

/// Returns the number of pods by node and by zone.
fn pods_by_domain(plan: &Plan) -> (Vec<u32>, BTreeMap<String, u32>) {
    let mut zones: BTreeMap<String, u32> = BTreeMap::new();
    let pods = plan.capacity.explain.iter().map(|row| {
        let pods = row.pods.values().sum();
        let of_row = plan.resource_changes.iter().find(|r| r.address == row.address);
        let after = of_row.and_then(|row| row.change.after.as_ref());
        let zone = after.and_then(|node| node.labels.get(key::ZONE));
        *zones.entry(zone.map(ToString::to_string).unwrap_or_default()).or_insert(0) += pods;
        pods
    });
    (pods.collect(), zones)
}

#[test]
fn report_is_absent_without_limits() {
    assert_eq!(cores(12).plan().capacity.placement.failure_domains, None);
}

#[test]
fn node_share_limits_a_workload_and_its_cost_is_reported() {
    let mut scenario = cores(12);
    let free = scenario.plan();
    assert!(pods_by_domain(&free).0.iter().any(|pods| *pods > 3), "{:?}", pods_by_domain(&free).0);
    limit(&mut scenario, node(QUARTER), MaxShares::default());
    let plan = scenario.plan();
    assert!(pods_by_domain(&plan).0.iter().all(|pods| *pods <= 3), "{:?}", pods_by_domain(&plan).0);
    assert_eq!(plan.capacity.pods.placed, 12);
    let increase = plan.capacity.cost.hourly_after - free.capacity.cost.hourly_after;
    assert_eq!((report(&plan).hourly, &report(&plan).beyond), (increase, &Vec::new()));
}

#[test]
fn share_of_all_pods_counts_every_workload() {
    let mut scenario = cores(6);
    let (id, workload) = scenario.desired.workloads.iter().next().expect("a declared object");
    let other = WorkloadId { name: "other".into(), ..id.clone() };
    let workload = crate::model::desired::Workload { id: other.clone(), ..workload.clone() };
    scenario.desired.workloads.insert(other, workload);
    limit(&mut scenario, MaxShares::default(), node(QUARTER));
    let plan = scenario.plan();
    let (pods, _) = pods_by_domain(&plan);
    assert_eq!(pods.iter().sum::<u32>(), 12);
    assert!(pods.iter().all(|pods| *pods <= 3), "{pods:?}");
}

#[test]
fn zone_share_limits_the_pods_of_a_zone() {
    let mut scenario = cores(12);
    assert_eq!(pods_by_domain(&scenario.plan()).1.len(), 1, "a single node is cheapest");
    for (workload, pods) in [(zone(HALF), MaxShares::default()), (MaxShares::default(), zone(HALF))]
    {
        limit(&mut scenario, workload, pods);
        let plan = scenario.plan();
        let (_, zones) = pods_by_domain(&plan);
        assert!(zones.len() > 1 && zones.values().all(|pods| *pods <= 6), "{zones:?}");
        assert_eq!(report(&plan).beyond, []);
    }
}

#[test]
fn unreachable_limit_is_reported_and_pods_are_placed() {
    let mut scenario = cores(12);
    let pool = scenario.desired.pools.get_mut("default").expect("a declared object");
    pool.requirements.push(requirement(key::ZONE, &["us-east-1a"]));
    limit(&mut scenario, zone(HALF), MaxShares::default());
    let plan = scenario.plan();
    assert_eq!(plan.capacity.pods.placed, 12);
    let [beyond] = report(&plan).beyond.as_slice() else { panic!("a single zone has all pods") };
    assert_eq!((beyond.domain, beyond.holds, beyond.most), (DomainKind::Zone, 12, 6));
    assert_eq!(pods_by_domain(&plan).0.len(), 1, "nodes that do not help are not launched");
}

#[test]
fn limit_applies_only_to_new_pods() {
    let mut scenario = cores(12);
    scenario.carry_out(&scenario.solve());
    limit(&mut scenario, node(QUARTER), MaxShares::default());
    let plan = scenario.plan();
    assert_eq!((plan.summary.add, plan.summary.destroy), (0, 0));
    assert_eq!(report(&plan).beyond[0].holds, 12);
    scenario.scale(16);
    let plan = scenario.plan();
    let new = plan.capacity.placements.iter();
    assert!(
        new.clone().count() > 0 && new.clone().all(|row| row.pods <= 4),
        "{:?}",
        plan.capacity.placements
    );
}

#[test]
fn plan_after_an_apply_still_satisfies_the_limit() {
    for (workload, pods) in [(node(QUARTER), MaxShares::default()), (zone(HALF), node(HALF))] {
        let mut scenario = cores(12);
        limit(&mut scenario, workload, pods);
        scenario.carry_out(&scenario.solve());
        let plan = plan(&scenario.inputs());
        assert_eq!((plan.summary.add, plan.summary.destroy), (0, 0));
        assert_eq!(report(&plan).beyond, []);
    }
}

#[test]
fn limit_applies_only_to_its_own_pool() {
    let mut scenario = cores(12);
    let mut limits = scenario.desired.failure_domains.clone();
    limit(&mut scenario, node(QUARTER), MaxShares::default());
    limits.insert(PoolName::from("elsewhere"), scenario.desired.failure_domains["default"].clone());
    scenario.desired.failure_domains = limits;
    let plan = scenario.plan();
    assert!(pods_by_domain(&plan).0.iter().any(|pods| *pods > 3));
    assert_eq!(report(&plan).beyond, []);
}

#[test]
fn verification_finds_an_unreported_excess() {
    let mut scenario = cores(12);
    let free = scenario.plan();
    limit(&mut scenario, node(QUARTER), zone(HALF));
    let demand = Demand::build(&scenario.desired, &scenario.observed, DemandMode::Live);
    let facts = Facts {
        desired: &scenario.desired,
        demand: &demand,
        observed: &scenario.observed,
        catalog: &scenario.catalog,
        allocation,
    };
    let found = verify(&free, &facts);
    let (rules, others): (Vec<&str>, Vec<&str>) =
        found.iter().map(|found| found.rule).partition(|rule| rule.starts_with("failures/"));
    assert_eq!(rules, ["failures/share"; 2], "a single node in a single zone has all pods");
    // EC2 could launch every node in the same zone.
    assert!(!others.is_empty() && others.iter().all(|rule| *rule == "alternatives/topology"));
    assert_eq!(verify(&scenario.plan(), &facts), []);
}

#[test]
fn alternatives_stay_in_the_zone_of_a_limited_pool() {
    for shares in [(zone(HALF), MaxShares::default()), (MaxShares::default(), zone(HALF))] {
        let mut scenario = cores(40);
        scenario.pool().requirements[1] = requirement("karpenter.sh/capacity-type", &["spot"]);
        let zones = |plan: &Plan| -> BTreeSet<bool> {
            let of_row = |row: &AlternativesRow| {
                let mut rows = plan.resource_changes.iter();
                let after = rows.find(|change| change.address == row.address);
                let zone = after.and_then(|row| row.change.after.as_ref()?.zone.clone());
                let zone = zone.expect("a launch");
                row.offerings.iter().map(|of| of.zone == zone).collect::<Vec<_>>()
            };
            plan.capacity.alternatives.iter().flat_map(of_row).collect()
        };
        assert!(zones(&scenario.plan()).contains(&false), "other zones without a limit");
        limit(&mut scenario, shares.0, shares.1);
        assert!(!zones(&scenario.plan()).contains(&false));
    }
}
