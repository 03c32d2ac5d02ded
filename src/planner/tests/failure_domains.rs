//! Failure domains: shares of pods per node and zone, end to end.

use super::{inputs_of, plan_of};
use crate::catalog::allocation;
use crate::demand::{Demand, DemandMode};
use crate::model::desired::{DomainShares, FailureDomains};
use crate::model::ids::{Origin, PoolName, WorkloadId};
use crate::model::requirement::key;
use crate::plan::wire::{DomainKind, FailureDomainReport};
use crate::plan::{Facts, Plan, check};
use crate::planner::{Scope, plan};
use crate::testing::{Story, requirement};
use std::collections::BTreeMap;

const QUARTER: u32 = 25_000;
const HALF: u32 = 50_000;

/// Returns pods of one core, and types of 16 and 96 cores: one node can hold them all.
fn cores(pods: u32) -> Story {
    let mut story = Story::new(&["c5.4xlarge", "c5.24xlarge"], 900, 100);
    story.scale(pods);
    story
}

fn limit(story: &mut Story, workload: DomainShares, pods: DomainShares) {
    let origin = Origin::new("fleetwright.yaml", 1);
    let limits = FailureDomains { origin, workload, pods };
    story.desired.failure_domains.insert("default".into(), limits);
}

fn node(share: u32) -> DomainShares {
    DomainShares { node: Some(share), zone: None }
}

fn zone(share: u32) -> DomainShares {
    DomainShares { node: None, zone: Some(share) }
}

fn whole(story: &Story) -> Plan {
    plan_of(story, Scope::default())
}

fn kept_apart(plan: &Plan) -> &FailureDomainReport {
    plan.capacity.placement.failure_domains.as_ref().expect("there are limits")
}

/// Returns the numbers of pods by node and by zone.
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
fn no_limits_give_no_failure_domain_report() {
    assert_eq!(whole(&cores(12)).capacity.placement.failure_domains, None);
}

#[test]
fn node_share_limits_a_workload_and_its_cost_is_reported() {
    let mut story = cores(12);
    let free = whole(&story);
    assert!(pods_by_domain(&free).0.iter().any(|pods| *pods > 3), "{:?}", pods_by_domain(&free).0);
    limit(&mut story, node(QUARTER), DomainShares::default());
    let plan = whole(&story);
    assert!(pods_by_domain(&plan).0.iter().all(|pods| *pods <= 3), "{:?}", pods_by_domain(&plan).0);
    assert_eq!(plan.capacity.pods.placed, 12);
    let dearer = plan.capacity.cost.hourly_after - free.capacity.cost.hourly_after;
    assert_eq!((kept_apart(&plan).hourly, &kept_apart(&plan).beyond), (dearer, &Vec::new()));
}

#[test]
fn share_of_all_pods_counts_every_workload() {
    let mut story = cores(6);
    let (id, workload) = story.desired.workloads.iter().next().expect("declared");
    let other = WorkloadId { name: "other".into(), ..id.clone() };
    let workload = crate::model::desired::Workload { id: other.clone(), ..workload.clone() };
    story.desired.workloads.insert(other, workload);
    limit(&mut story, DomainShares::default(), node(QUARTER));
    let plan = whole(&story);
    let (pods, _) = pods_by_domain(&plan);
    assert_eq!(pods.iter().sum::<u32>(), 12);
    assert!(pods.iter().all(|pods| *pods <= 3), "{pods:?}");
}

#[test]
fn zone_holds_no_more_than_its_share() {
    let mut story = cores(12);
    assert_eq!(pods_by_domain(&whole(&story)).1.len(), 1, "one node is cheapest");
    for (workload, pods) in
        [(zone(HALF), DomainShares::default()), (DomainShares::default(), zone(HALF))]
    {
        limit(&mut story, workload, pods);
        let plan = whole(&story);
        let (_, zones) = pods_by_domain(&plan);
        assert!(zones.len() > 1 && zones.values().all(|pods| *pods <= 6), "{zones:?}");
        assert_eq!(kept_apart(&plan).beyond, []);
    }
}

#[test]
fn unreachable_limit_is_reported_and_pods_are_placed() {
    let mut story = cores(12);
    let pool = story.desired.pools.get_mut("default").expect("declared");
    pool.requirements.push(requirement(key::ZONE, &["us-east-1a"]));
    limit(&mut story, zone(HALF), DomainShares::default());
    let plan = whole(&story);
    assert_eq!(plan.capacity.pods.placed, 12);
    let [beyond] = kept_apart(&plan).beyond.as_slice() else { panic!("one zone holds all") };
    assert_eq!((beyond.domain, beyond.holds, beyond.most), (DomainKind::Zone, 12, 6));
    assert_eq!(pods_by_domain(&plan).0.len(), 1, "what does not help is not bought");
}

#[test]
fn running_pods_beyond_a_limit_stay_later_ones_keep_it() {
    let mut story = cores(12);
    story.carry_out(&story.solve());
    limit(&mut story, node(QUARTER), DomainShares::default());
    let plan = whole(&story);
    assert_eq!((plan.summary.add, plan.summary.destroy), (0, 0));
    assert_eq!(kept_apart(&plan).beyond[0].holds, 12);
    story.scale(16);
    let plan = whole(&story);
    let new = plan.capacity.placements.iter();
    assert!(
        new.clone().count() > 0 && new.clone().all(|row| row.pods <= 4),
        "{:?}",
        plan.capacity.placements
    );
}

#[test]
fn limit_holds_in_the_second_plan() {
    for (workload, pods) in [(node(QUARTER), DomainShares::default()), (zone(HALF), node(HALF))] {
        let mut story = cores(12);
        limit(&mut story, workload, pods);
        story.carry_out(&story.solve());
        let plan = plan(&inputs_of(&story));
        assert_eq!((plan.summary.add, plan.summary.destroy), (0, 0));
        assert_eq!(kept_apart(&plan).beyond, []);
    }
}

#[test]
fn limit_applies_to_its_own_pool_only() {
    let mut story = cores(12);
    let mut limits = story.desired.failure_domains.clone();
    limit(&mut story, node(QUARTER), DomainShares::default());
    limits.insert(PoolName::from("elsewhere"), story.desired.failure_domains["default"].clone());
    story.desired.failure_domains = limits;
    let plan = whole(&story);
    assert!(pods_by_domain(&plan).0.iter().any(|pods| *pods > 3));
    assert_eq!(kept_apart(&plan).beyond, []);
}

#[test]
fn unreported_excess_of_a_limit_is_found() {
    let mut story = cores(12);
    let free = whole(&story);
    limit(&mut story, node(QUARTER), zone(HALF));
    let demand = Demand::build(&story.desired, &story.observed, DemandMode::Live);
    let facts = Facts {
        desired: &story.desired,
        demand: &demand,
        observed: &story.observed,
        catalog: &story.catalog,
        allocation,
    };
    let rules: Vec<&str> = check(&free, &facts).iter().map(|found| found.rule).collect();
    assert_eq!(rules, ["failures/share"; 2], "one node of one zone holds all");
    assert_eq!(check(&whole(&story), &facts), []);
}
