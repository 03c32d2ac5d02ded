//! The verifier of the share of Spot nodes in one offering.

use crate::catalog::allocation;
use crate::model::ids::Address;
use crate::plan::{Facts, Violation, verify};
use crate::planner::Scope;
use crate::testing::{Scenario, requirement};

fn spot(nodes: u32) -> Scenario {
    let mut scenario = Scenario::new(&["m5.large", "m6i.large", "m5a.large"], 1_500, 64);
    scenario.pool().requirements[1] = requirement("karpenter.sh/capacity-type", &["spot"]);
    scenario.scale(nodes);
    scenario
}

fn violations(plan: &crate::plan::Plan, scenario: &Scenario) -> Vec<Violation> {
    let demand = scenario.demand();
    let facts = Facts {
        desired: &scenario.desired,
        demand: &demand,
        observed: &scenario.observed,
        catalog: &scenario.catalog,
        allocation,
    };
    verify(plan, &facts)
}

#[test]
fn verification_finds_alternatives_above_the_share() {
    let mut scenario = spot(6);
    let unlimited = scenario.plan();
    scenario.desired.max_offering_share = Some(50_000);
    let found = violations(&unlimited, &scenario);
    assert!(!found.is_empty() && found.iter().all(|found| found.rule == "spot/share"), "{found:?}");
    assert!(found[0].message.starts_with("of 6 Spot nodes of default"), "{}", found[0].message);
    assert_eq!(violations(&scenario.plan(), &scenario), []);
    // Every launch of a pool with `minValues` has all alternatives that the pool demands.
    scenario.pool().requirements[0].min_values = Some(3);
    assert_eq!(violations(&scenario.plan(), &scenario), []);
}

#[test]
fn part_of_a_plan_has_the_alternatives_of_the_whole_plan() {
    let mut scenario = spot(10);
    scenario.desired.max_offering_share = Some(50_000);
    let whole = scenario.plan();
    let addresses: Vec<&Address> = whole.resource_changes.iter().map(|row| &row.address).collect();
    let target = addresses[..5].iter().map(ToString::to_string).collect();
    let part = scenario.plan_within(Scope { target_addresses: target, ..Scope::default() });
    assert_eq!((part.summary.add, part.complete), (5, false));
    assert_eq!(violations(&part, &scenario), []);
}
