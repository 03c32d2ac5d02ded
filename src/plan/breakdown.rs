//! Cost of a plan by pool, zone and capacity type, with commitments and with bounds for estimated
//! prices.
//!
//! This module depends on the wire form and the rules of commitments, and on no price list.
//! Invariants: each list of parts adds up to the totals of the plan. The breakdown is
//! informational, so the digest does not cover it.

use std::collections::BTreeMap;

use super::wire::{
    CommitmentRow, Committed, Cost, CostBreakdown, CostRange, CostRow, ExplainRow, NodeState, Plan,
    ResourceKind,
};
use crate::model::desired::{CommitmentKind, PricingCommitment};
use crate::model::ids::Address;
use crate::model::market::CapacityType;
use crate::model::units::MicroUsd;

/// Lowest spot price in percent of the on-demand price: EC2 advertises discounts of up to 90 %.
const SPOT_PERCENT_MIN: i64 = 10;

/// 100 % in thousandths of a percent.
const WHOLE_MILLI_PERCENT: i64 = 100_000;

/// Returns the cost of `plan` in parts. `commitments` affect only the separate totals with
/// commitments.
pub fn breakdown(plan: &Plan, commitments: &[PricingCommitment]) -> CostBreakdown {
    let nodes = nodes(plan);
    let by = |name: &dyn Fn(&NodeState) -> String| parts(&nodes, name);
    CostBreakdown {
        by_pool: by(&|state| state.pool.as_ref().map(ToString::to_string).unwrap_or_default()),
        by_zone: by(&|state| state.zone.as_ref().map(ToString::to_string).unwrap_or_default()),
        by_capacity_type: by(&|state| {
            state.capacity_type.map(|kind| kind.to_string()).unwrap_or_default()
        }),
        range: range(&nodes, &plan.capacity.cost),
        committed: committed(&nodes, commitments),
        included: included(plan),
        not_included: not_included(plan),
    }
}

/// One side of a row: a state with its price.
struct PricedState<'a> {
    state: &'a NodeState,
    hourly: Option<MicroUsd>,
    /// True if the price is an estimate.
    estimated: bool,
}

/// A row before and after the plan.
struct PricedNode<'a> {
    before: Option<PricedState<'a>>,
    after: Option<PricedState<'a>>,
}

fn nodes(plan: &Plan) -> Vec<PricedNode<'_>> {
    let explained: BTreeMap<&Address, &ExplainRow> =
        plan.capacity.explain.iter().map(|row| (&row.address, row)).collect();
    plan.resource_changes
        .iter()
        // The cost of a group is the cost of its members.
        .filter(|row| row.kind != ResourceKind::AutoscalingGroup)
        .map(|row| {
            let explain = explained.get(&row.address);
            let before = explain.and_then(|row| row.hourly_before);
            let after = explain.and_then(|row| row.hourly_after);
            let estimated = explain.is_some_and(|row| row.estimated);
            let side = |state, hourly, estimated| PricedState { state, hourly, estimated };
            PricedNode {
                before: row.change.before.as_ref().map(|state| side(state, before, false)),
                after: row.change.after.as_ref().map(|state| side(state, after, estimated)),
            }
        })
        .collect()
}

fn parts(nodes: &[PricedNode<'_>], name: &dyn Fn(&NodeState) -> String) -> Vec<CostRow> {
    let mut rows: BTreeMap<String, CostRow> = BTreeMap::new();
    let mut row = |state: &NodeState, add: &dyn Fn(&mut CostRow)| {
        let name = name(state);
        let empty = CostRow {
            name: name.clone(),
            nodes_before: 0,
            nodes_after: 0,
            hourly_before: MicroUsd::ZERO,
            hourly_after: MicroUsd::ZERO,
        };
        add(rows.entry(name).or_insert(empty));
    };
    for node in nodes {
        if let Some(PricedState { state, hourly, .. }) = &node.before {
            row(state, &|row| {
                row.nodes_before += 1;
                row.hourly_before += hourly.unwrap_or_default();
            });
        }
        if let Some(PricedState { state, hourly, .. }) = &node.after {
            row(state, &|row| {
                row.nodes_after += 1;
                row.hourly_after += hourly.unwrap_or_default();
            });
        }
    }
    rows.into_values().collect()
}

/// Returns bounds of the price after the plan; `None` without estimated spot prices.
fn range(nodes: &[PricedNode<'_>], cost: &Cost) -> Option<CostRange> {
    let after = nodes.iter().filter_map(|node| node.after.as_ref());
    let is_spot = |side: &&PricedState| side.state.capacity_type == Some(CapacityType::Spot);
    let spot = after.filter(is_spot).filter(|side| side.estimated);
    let spot: MicroUsd = spot.filter_map(|side| side.hourly).sum();
    if spot == MicroUsd::ZERO {
        return None;
    }
    let saved = MicroUsd(spot.0.saturating_mul(100 - SPOT_PERCENT_MIN) / 100);
    let mut because = vec![format!(
        "spot capacity is priced as on demand, its ceiling; EC2 advertises discounts of up to {} %",
        100 - SPOT_PERCENT_MIN
    )];
    if cost.unpriced > 0 {
        let nodes = node_count_text(cost.unpriced);
        because.push(format!("{nodes} without a known price counted as nothing"));
    }
    Some(CostRange {
        hourly_low: cost.hourly_after - saved,
        hourly_high: cost.hourly_after,
        because,
    })
}

/// Returns the totals with commitments. EC2 applies reserved instances before savings plans.
fn committed(nodes: &[PricedNode<'_>], commitments: &[PricingCommitment]) -> Option<Committed> {
    if commitments.is_empty() {
        return None;
    }
    let before = Coverage::new(nodes.iter().filter_map(|node| node.before.as_ref()), commitments);
    let after = Coverage::new(nodes.iter().filter_map(|node| node.after.as_ref()), commitments);
    let row = |(index, commitment): (usize, &PricingCommitment)| CommitmentRow {
        name: commitment.name.clone(),
        kind: commitment.kind.as_str().to_owned(),
        hourly: commitment.hourly(),
        covers_before: before.covers[index],
        covers_after: after.covers[index],
        capacity: capacity(commitment).unwrap_or(after.covers[index]),
    };
    Some(Committed {
        hourly_before: before.hourly,
        hourly_after: after.hourly,
        commitments: commitments.iter().enumerate().map(row).collect(),
    })
}

/// Amounts that commitments cover on one side of a plan.
struct Coverage {
    covers: Vec<MicroUsd>,
    hourly: MicroUsd,
}

impl Coverage {
    fn new<'a>(
        sides: impl Iterator<Item = &'a PricedState<'a>>,
        commitments: &[PricingCommitment],
    ) -> Self {
        let (mut open, mut rest) = (Vec::new(), MicroUsd::ZERO);
        for PricedState { state, hourly, .. } in sides {
            let price = hourly.unwrap_or_default();
            match state.capacity_type {
                Some(CapacityType::OnDemand) => open.push((state.instance_type.as_ref(), price)),
                Some(CapacityType::Spot | CapacityType::Reserved) | None => rest += price,
            }
        }
        let mut covers = vec![MicroUsd::ZERO; commitments.len()];
        for (covered, commitment) in covers.iter_mut().zip(commitments) {
            let CommitmentKind::ReservedInstances { instance_type, count, .. } = &commitment.kind
            else {
                continue;
            };
            let mut left = *count;
            open.retain(|(kind, price)| {
                let taken = left > 0 && *kind == Some(instance_type);
                left -= u32::from(taken);
                *covered += if taken { *price } else { MicroUsd::ZERO };
                !taken
            });
        }
        let mut list: MicroUsd = open.iter().map(|(_, price)| *price).sum();
        for (covered, commitment) in covers.iter_mut().zip(commitments) {
            if let (CommitmentKind::SavingsPlan { .. }, Some(most)) =
                (&commitment.kind, capacity(commitment))
            {
                *covered = MicroUsd(most.0.min(list.0));
                list = list - *covered;
            }
        }
        let paid: MicroUsd = commitments.iter().map(PricingCommitment::hourly).sum();
        Self { covers, hourly: rest + list + paid }
    }
}

/// Returns the list price per hour that a savings plan can cover: its hourly commitment divided by
/// the share of the list price after its discount. `None` for reserved instances.
fn capacity(commitment: &PricingCommitment) -> Option<MicroUsd> {
    let CommitmentKind::SavingsPlan { hourly, discount_milli_percent } = &commitment.kind else {
        return None;
    };
    let left = i128::from(WHOLE_MILLI_PERCENT - i64::from(*discount_milli_percent)).max(1);
    let most = i128::from(hourly.0) * i128::from(WHOLE_MILLI_PERCENT) / left;
    Some(MicroUsd(i64::try_from(most).unwrap_or(i64::MAX)))
}

fn included(plan: &Plan) -> Vec<String> {
    let cost = &plan.capacity.cost;
    let mut lines = vec![format!(
        "EC2 instances of the nodes, by the hour, {} of {} as of {}",
        cost.prices.source, cost.prices.region, cost.prices.date
    )];
    if let Some(list) = &cost.list {
        let (names, hourly) = (list.overlays.join(", "), list.hourly_after);
        lines.push(format!(
            "prices adjusted by NodeOverlay {names}; {hourly} USD per hour at list prices"
        ));
        if list.unlisted > 0 {
            let nodes = node_count_text(list.unlisted);
            lines.push(format!("{nodes} without a list price, at the price of the overlay"));
        }
    }
    if cost.estimated > 0 {
        lines.push(format!("{} at an estimated price", node_count_text(cost.estimated)));
    }
    lines
}

fn not_included(plan: &Plan) -> Vec<String> {
    let cost = &plan.capacity.cost;
    let mut lines: Vec<String> = [
        "EBS: root volumes of the nodes, and volumes of pods",
        "traffic between zones, to the internet and through NAT gateways",
        "the EKS control plane, which costs the same before and after",
        "load balancers, addresses, logs, taxes and support",
    ]
    .map(str::to_owned)
    .into();
    if cost.unpriced > 0 {
        lines.push(format!("{} without a known price", node_count_text(cost.unpriced)));
    }
    if plan.capacity.pods.fargate > 0 {
        lines.push("pods on Fargate, which are listed under `capacity.cost.fargate`".to_owned());
    }
    lines
}

fn node_count_text(n: u32) -> String {
    if n == 1 { "1 node".to_owned() } else { format!("{n} nodes") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::valid_plan::plan;

    fn total(rows: &[CostRow]) -> (MicroUsd, MicroUsd) {
        let sum = |of: fn(&CostRow) -> MicroUsd| rows.iter().map(of).sum();
        (sum(|row| row.hourly_before), sum(|row| row.hourly_after))
    }

    #[test]
    fn each_breakdown_adds_up_to_the_totals() {
        let plan = plan();
        let parts = breakdown(&plan, &[]);
        let cost = &plan.capacity.cost;
        for rows in [&parts.by_pool, &parts.by_zone, &parts.by_capacity_type] {
            assert!(!rows.is_empty());
            assert_eq!(total(rows), (cost.hourly_before, cost.hourly_after));
        }
        assert_eq!(parts.committed, None);
        assert!(parts.not_included.iter().any(|line| line.starts_with("EBS")));
    }

    #[test]
    fn commitment_is_paid_in_full_and_covers_on_demand_only() {
        let mut plan = plan();
        for row in &mut plan.resource_changes {
            for state in [&mut row.change.before, &mut row.change.after].into_iter().flatten() {
                state.capacity_type = Some(CapacityType::OnDemand);
            }
        }
        let list = plan.capacity.cost.hourly_after;
        let savings_plan = |hourly: i64, discount_milli_percent| PricingCommitment {
            name: "sp".into(),
            kind: CommitmentKind::SavingsPlan { hourly: MicroUsd(hourly), discount_milli_percent },
        };
        let after = |commitments: &[PricingCommitment]| {
            breakdown(&plan, commitments).committed.expect("declared").hourly_after
        };
        // 0.05 USD at half the list price covers 0.10 USD of it.
        assert_eq!(after(&[savings_plan(50_000, 50_000)]), list - MicroUsd(50_000));
        // The commitment exceeds the fleet, so only the commitment is paid.
        assert_eq!(after(&[savings_plan(9_000_000, 50_000)]), MicroUsd(9_000_000));
        let unused = PricingCommitment {
            name: "ri".into(),
            kind: CommitmentKind::ReservedInstances {
                instance_type: "p5.48xlarge".into(),
                count: 2,
                hourly: MicroUsd(1_000_000),
            },
        };
        assert_eq!(after(&[unused]), list + MicroUsd(2_000_000));
    }

    #[test]
    fn estimated_spot_price_gives_range_below_on_demand() {
        let mut plan = plan();
        assert_eq!(breakdown(&plan, &[]).range, None);
        for row in &mut plan.resource_changes {
            if let Some(state) = &mut row.change.after {
                state.capacity_type = Some(CapacityType::Spot);
            }
        }
        assert_eq!(breakdown(&plan, &[]).range, None, "known spot prices have no range");
        let explain = &mut plan.capacity.explain;
        let node = explain.iter_mut().find(|row| row.hourly_after.is_some()).expect("a node stays");
        node.estimated = true;
        let estimate = node.hourly_after.expect("priced").0;
        let range = breakdown(&plan, &[]).range.expect("estimated");
        assert_eq!(range.hourly_high, plan.capacity.cost.hourly_after);
        assert_eq!(range.hourly_low.0, range.hourly_high.0 - estimate * 90 / 100);
    }
}
