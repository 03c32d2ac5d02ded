//! Defects of the contingency.

use super::*;
use crate::plan::wire::{Contingency, PlacementMode, PoolContingency};

/// Adds the contingency of a steered plan: one further node like the launched one.
fn steer(plan: &mut Plan) -> &mut Contingency {
    let price = explain(plan, "3").hourly_after.unwrap();
    let launched = after(plan, "3").instance_type.clone().unwrap();
    let pool = PoolContingency {
        pool: "web".into(),
        nodes: 1,
        hourly: price,
        node_hourly: price,
        instance_types: vec![launched],
    };
    plan.capacity.placement.mode = PlacementMode::Steered;
    let contingency = Contingency { nodes: 1, hourly: price, pods: 1, pools: vec![pool] };
    plan.capacity.placement.contingency.insert(contingency)
}

#[test]
fn contingency_of_a_valid_plan_breaks_no_rule() {
    let mut plan = plan();
    steer(&mut plan);
    assert_eq!(verify(&plan.with_identity(), &inputs().facts()), []);
}

pub(super) const DEFECTS: &[Defect] = &[
    ("contingency/sum", "a node that is not counted", |p, _| steer(p).nodes = 0),
    ("contingency/sum", "a price that does not add up", |p, _| steer(p).hourly.0 -= 1),
    ("contingency/sum", "no pods", |p, _| steer(p).pods = 0),
    ("contingency/sum", "no nodes", |p, _| {
        let contingency = steer(p);
        (contingency.nodes, contingency.hourly) = (0, MicroUsd::ZERO);
        contingency.pools.clear();
    }),
    ("contingency/price", "two nodes for the price of half a node", |p, _| {
        let contingency = steer(p);
        contingency.hourly.0 /= 2;
        contingency.pools[0].hourly.0 /= 2;
    }),
    ("contingency/price", "one node for the price of two", |p, _| {
        let contingency = steer(p);
        contingency.hourly.0 *= 2;
        contingency.pools[0].hourly.0 *= 2;
    }),
    ("contingency/price", "a dearer node than any", |p, _| {
        let contingency = steer(p);
        contingency.hourly.0 += 1;
        contingency.pools[0].hourly.0 += 1;
        contingency.pools[0].node_hourly.0 += 1;
    }),
    ("contingency/price", "no type", |p, _| steer(p).pools[0].instance_types.clear()),
    ("contingency/type", "an unknown type", |p, _| {
        steer(p).pools[0].instance_types.push("z9.large".into());
    }),
    ("contingency/type", "a type that the steered plan does not launch", |p, i| {
        let launched = after(p, "3").instance_type.clone().unwrap();
        let other = i.catalog.types[&launched].clone();
        i.catalog.types.insert("m6a.xlarge".into(), other);
        steer(p).pools[0].instance_types.push("m6a.xlarge".into());
    }),
    ("contingency/pool", "an undeclared pool", |p, _| steer(p).pools[0].pool = "x".into()),
    ("contingency/pool", "a pool twice", |p, _| {
        let contingency = steer(p);
        let again = contingency.pools[0].clone();
        contingency.pools.push(again);
    }),
    ("contingency/limit", "more nodes than the pool may have", |p, i| {
        let of_pool = p.resource_changes.iter().filter(|row| row.name == "web").count();
        pool(i).limits.nodes = Some(u32::try_from(of_pool).unwrap());
        steer(p);
    }),
    ("contingency/limit", "more cores than the pool may have", |p, i| {
        let rows = p.resource_changes.iter().filter(|row| row.name == "web");
        let states = rows.filter_map(|row| row.change.after.as_ref());
        let cores: i64 = states.map(|state| state.capacity.cpu_milli).sum();
        pool(i).limits.resources = [("cpu".into(), cores)].into();
        steer(p);
    }),
    ("contingency/launch", "a plan that launches nothing", |p, _| {
        steer(p);
        p.resource_changes.retain(|row| !row.change.actions.contains(&Action::Create));
    }),
];
