//! Judgments of a plan that repeats a launch of an earlier plan.

use super::*;
use crate::apply::EarlierLaunch;
use crate::plan::change_id;
use crate::planner::{self, Inputs};
use crate::testing::Scenario;

#[test]
fn repeated_launch_is_a_launch_of_the_plan() {
    let mut scenario = Scenario::new(&["m5.large"], 1500, 1024);
    scenario.scale(1);
    let plan = scenario.plan();
    let launches = scenario.solve().target.launches;
    scenario.launch(&launches[0].node);
    let address = plan.resource_changes[0].address.clone();
    let change = change_id(&"earlier".into(), &address);
    scenario.instance().tags.insert(tag::CHANGE.to_owned(), change.to_string());
    let offerings = scenario.catalog.types.values_mut().flat_map(|kind| &mut kind.offerings);
    for price in offerings.filter_map(|offering| offering.price.as_mut()) {
        *price = *price + *price;
    }
    scenario.scale(3);
    let world = scenario.observed.clone();
    let planner = JudgingPlanner::new(|plan: &Plan, world: &Observed| {
        planner::revalidate(&Inputs { observed: world, ..scenario.inputs() }, plan)
    });
    let repeated_launches = [(address, EarlierLaunch { change, attempt_index: 0 })].into();
    let revalidation =
        Revalidation { repeated_launches, ..revalidation(&planner, plan.clone(), None) };
    let found = poll_once(revalidation.replan(&plan, &world)).expect("at once");
    assert_eq!(found.undeclared, [""; 0], "it was launched before its price rose");
    assert_eq!(found.missing.len(), 2, "it counts once: {:?}", found.missing);
}
