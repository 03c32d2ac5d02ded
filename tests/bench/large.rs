//! A plan over 5,000 nodes that removes 1,000 of them, made of the rows of a saved plan.

use std::path::Path;

use fleetwright::plan::wire::{Action, ExplainRow, ResourceChange};
use fleetwright::plan::{Plan, breakdown};

const NODES: usize = 5_000;
const GONE: usize = 1_000;

/// Returns a plan over 5,000 nodes that removes 1,000 of them, from the rows of the example plan.
pub(crate) fn large() -> anyhow::Result<Plan> {
    sized(NODES, GONE)
}

/// Returns a plan over `nodes` nodes that removes `gone_nodes` of them.
pub(crate) fn sized(nodes: usize, gone_nodes: usize) -> anyhow::Result<Plan> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans/quickstart.json");
    let mut plan: Plan = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let of = |plan: &Plan, action: Action| -> Vec<(ResourceChange, ExplainRow)> {
        let rows = plan.resource_changes.iter().filter(|row| row.change.actions == [action]);
        rows.filter_map(|row| {
            let why = plan.capacity.explain.iter().find(|why| why.address == row.address)?;
            Some((row.clone(), why.clone()))
        })
        .collect()
    };
    let (gone, kept) = (of(&plan, Action::Delete), of(&plan, Action::NoOp));
    plan.resource_changes.clear();
    plan.capacity.explain.clear();
    for n in 0..nodes {
        let from = if n < gone_nodes { &gone } else { &kept };
        let (mut row, mut why) = from[n % from.len()].clone();
        let zone = ["us-east-1a", "us-east-1b", "us-east-1c"][n % 3];
        row.name = format!("pool-{}", n % 12);
        row.index = Some(n.to_string());
        row.address = format!("ec2_instance.{}[\"{n}\"]", row.name).into();
        why.address = row.address.clone();
        for state in [&mut row.change.before, &mut row.change.after].into_iter().flatten() {
            state.zone = Some(zone.into());
            state.pool = Some(row.name.as_str().into());
        }
        plan.resource_changes.push(row);
        plan.capacity.explain.push(why);
    }
    let (gone, all) = (u32::try_from(gone_nodes)?, u32::try_from(nodes)?);
    plan.summary.add = 0;
    plan.summary.destroy = gone;
    plan.summary.nodes.before = all;
    plan.summary.nodes.terminate = gone;
    plan.summary.nodes.after = all - gone;
    plan.capacity.cost.hourly_before =
        plan.capacity.explain.iter().filter_map(|why| why.hourly_before).sum();
    plan.capacity.cost.hourly_after =
        plan.capacity.explain.iter().filter_map(|why| why.hourly_after).sum();
    plan.capacity.cost.breakdown = breakdown(&plan, &[]);
    Ok(plan)
}
