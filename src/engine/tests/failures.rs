//! Failure domains: what one node and one zone may hold, end to end.

use super::{inputs_of, plan_of};
use crate::catalog::allocation;
use crate::demand::{Demand, DemandMode};
use crate::engine::{Scope, plan};
use crate::ids::{Origin, PoolName, WorkloadId};
use crate::manifest::{FailureDomains, Shares};
use crate::plan::wire::{DomainKind, KeptApart};
use crate::plan::{Facts, Plan, check};
use crate::requirement::key;
use crate::story::{Story, requirement};
use std::collections::BTreeMap;

const QUARTER: u32 = 25_000;
const HALF: u32 = 50_000;

/// Pods of one core, and types of 16 and 96 cores: one node holds them all.
fn cores(pods: u32) -> Story {
    let mut story = Story::new(&["c5.4xlarge", "c5.24xlarge"], 900, 100);
    story.scale(pods);
    story
}

fn limit(story: &mut Story, workload: Shares, pods: Shares) {
    let origin = Origin::new("fleetwright.yaml", 1);
    let limits = FailureDomains { origin, workload, pods };
    story.desired.failure_domains.insert("default".into(), limits);
}

fn node(share: u32) -> Shares {
    Shares { node: Some(share), zone: None }
}

fn zone(share: u32) -> Shares {
    Shares { node: None, zone: Some(share) }
}

fn whole(story: &Story) -> Plan {
    plan_of(story, Scope::default())
}

fn kept_apart(plan: &Plan) -> &KeptApart {
    plan.capacity.placement.failure_domains.as_ref().expect("there are limits")
}

/// Pods by node, and by zone.
fn held(plan: &Plan) -> (Vec<u32>, BTreeMap<String, u32>) {
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
fn without_limits_nothing_is_said_of_them() {
    assert_eq!(whole(&cores(12)).capacity.placement.failure_domains, None);
}

#[test]
fn a_node_holds_no_more_of_a_workload_than_its_share_and_the_price_of_it_is_told() {
    let mut story = cores(12);
    let free = whole(&story);
    assert!(held(&free).0.iter().any(|pods| *pods > 3), "{:?}", held(&free).0);
    limit(&mut story, node(QUARTER), Shares::default());
    let plan = whole(&story);
    assert!(held(&plan).0.iter().all(|pods| *pods <= 3), "{:?}", held(&plan).0);
    assert_eq!(plan.capacity.pods.placed, 12);
    let dearer = plan.capacity.cost.hourly_after - free.capacity.cost.hourly_after;
    assert_eq!((kept_apart(&plan).hourly, &kept_apart(&plan).beyond), (dearer, &Vec::new()));
}

#[test]
fn a_share_of_all_pods_counts_every_workload() {
    let mut story = cores(6);
    let (id, workload) = story.desired.workloads.iter().next().expect("declared");
    let other = WorkloadId { name: "other".into(), ..id.clone() };
    let workload = crate::manifest::Workload { id: other.clone(), ..workload.clone() };
    story.desired.workloads.insert(other, workload);
    limit(&mut story, Shares::default(), node(QUARTER));
    let plan = whole(&story);
    let (pods, _) = held(&plan);
    assert_eq!(pods.iter().sum::<u32>(), 12);
    assert!(pods.iter().all(|pods| *pods <= 3), "{pods:?}");
}

#[test]
fn a_zone_holds_no_more_than_its_share() {
    let mut story = cores(12);
    assert_eq!(held(&whole(&story)).1.len(), 1, "one node is cheapest");
    for (workload, pods) in [(zone(HALF), Shares::default()), (Shares::default(), zone(HALF))] {
        limit(&mut story, workload, pods);
        let plan = whole(&story);
        let (_, zones) = held(&plan);
        assert!(zones.len() > 1 && zones.values().all(|pods| *pods <= 6), "{zones:?}");
        assert_eq!(kept_apart(&plan).beyond, []);
    }
}

#[test]
fn what_cannot_be_reached_is_said_and_leaves_no_pod_without_a_place() {
    let mut story = cores(12);
    let pool = story.desired.pools.get_mut("default").expect("declared");
    pool.requirements.push(requirement(key::ZONE, &["us-east-1a"]));
    limit(&mut story, zone(HALF), Shares::default());
    let plan = whole(&story);
    assert_eq!(plan.capacity.pods.placed, 12);
    let [beyond] = kept_apart(&plan).beyond.as_slice() else { panic!("one zone holds all") };
    assert_eq!((beyond.domain, beyond.holds, beyond.most), (DomainKind::Zone, 12, 6));
    assert_eq!(held(&plan).0.len(), 1, "what does not help is not bought");
}

#[test]
fn pods_that_run_beyond_a_limit_stay_and_later_ones_keep_it() {
    let mut story = cores(12);
    story.carry_out(&story.solve());
    limit(&mut story, node(QUARTER), Shares::default());
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
fn a_limit_is_kept_in_the_second_plan_too() {
    for (workload, pods) in [(node(QUARTER), Shares::default()), (zone(HALF), node(HALF))] {
        let mut story = cores(12);
        limit(&mut story, workload, pods);
        story.carry_out(&story.solve());
        let plan = plan(&inputs_of(&story));
        assert_eq!((plan.summary.add, plan.summary.destroy), (0, 0));
        assert_eq!(kept_apart(&plan).beyond, []);
    }
}

#[test]
fn a_limit_of_one_pool_is_none_of_another() {
    let mut story = cores(12);
    let mut limits = story.desired.failure_domains.clone();
    limit(&mut story, node(QUARTER), Shares::default());
    limits.insert(PoolName::from("elsewhere"), story.desired.failure_domains["default"].clone());
    story.desired.failure_domains = limits;
    let plan = whole(&story);
    assert!(held(&plan).0.iter().any(|pods| *pods > 3));
    assert_eq!(kept_apart(&plan).beyond, []);
}

#[test]
fn the_judge_finds_what_is_beyond_a_limit_and_not_said() {
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
