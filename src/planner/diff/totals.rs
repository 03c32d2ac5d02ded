//! Totals over plan rows.

use super::rows::UncertainPrices;
use crate::catalog::PriceSource;
use crate::demand::Demand;
use crate::model::units::MicroUsd;
use crate::plan::wire::{
    Action, AutoscalerGrowthRow, ConsolidationPotential, Cost, CostBreakdown, ExplainRow,
    KeepReason, NodeTotals, PodTotals, Reason, ResourceChange, ResourceKind, Summary,
    UnschedulableRow,
};

/// Returns the totals over `changes`. The caller provides the number of `blocked` nodes.
pub(super) fn summary(changes: &[ResourceChange], blocked: u32) -> Summary {
    let count = |holds: &dyn Fn(&ResourceChange) -> bool| {
        u32::try_from(changes.iter().filter(|row| holds(row)).count()).unwrap_or(u32::MAX)
    };
    let is_node = |row: &ResourceChange| row.kind != ResourceKind::AutoscalingGroup;
    let has = |row: &ResourceChange, action| row.change.actions.contains(&action);
    let (add, destroy) = (count(&|r| has(r, Action::Create)), count(&|r| has(r, Action::Delete)));
    Summary {
        add,
        change: count(&|r| has(r, Action::Update)),
        destroy,
        replace: count(&|r| has(r, Action::Create) && has(r, Action::Delete)),
        blocked,
        destructive: destroy > 0,
        nodes: NodeTotals {
            before: count(&|r| is_node(r) && r.change.before.is_some()),
            launch: add,
            terminate: destroy,
            after: count(&|r| is_node(r) && r.change.after.is_some()),
        },
    }
}

/// Returns the cost of the fleet before and after the plan, and its lower bound.
pub(super) fn cost(
    explain: &[ExplainRow],
    lower_bound: MicroUsd,
    prices: &PriceSource,
    uncertain: UncertainPrices,
) -> Cost {
    let before: MicroUsd = explain.iter().filter_map(|row| row.hourly_before).sum();
    let after: MicroUsd = explain.iter().filter_map(|row| row.hourly_after).sum();
    // Rounding must not raise the bound above the cost of the fleet.
    let lower_bound = MicroUsd(lower_bound.0.min(after.0));
    Cost {
        currency: "USD".to_owned(),
        hourly_before: before,
        hourly_after: after,
        hourly_delta: after - before,
        monthly_delta: (after - before).per_month(),
        lower_bound_hourly: lower_bound,
        gap_percent: percent_above(after, lower_bound),
        consolidation_potential: explain.iter().find_map(consolidation_potential),
        prices: prices.clone(),
        list: None,
        estimated: uncertain.estimated,
        unpriced: uncertain.unpriced,
        fargate: None,
        breakdown: CostBreakdown::default(),
    }
}

/// Returns the saving of the whole fleet that the reason of a retained node names.
fn consolidation_potential(row: &ExplainRow) -> Option<ConsolidationPotential> {
    let Reason::Keep {
        because: KeepReason::NotWorthMoving { saves_hourly, needed_hourly, moves, nodes },
    } = &row.reason
    else {
        return None;
    };
    Some(ConsolidationPotential {
        saves_hourly: *saves_hourly,
        needed_hourly: *needed_hourly,
        moves: *moves,
        nodes: (*nodes)?,
    })
}

/// Returns the excess of `price` over `bound` in percent, rounded to two digits.
pub(super) fn percent_above(price: MicroUsd, bound: MicroUsd) -> String {
    if bound.0 <= 0 {
        return "0.00".to_owned();
    }
    let (above, bound) = (i128::from(price.0 - bound.0) * 10_000, i128::from(bound.0));
    let hundredths = (above + bound / 2) / bound;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// Returns the totals of pods.
pub(super) fn pods(
    demand: &Demand,
    unschedulable: &[UnschedulableRow],
    growths: &[AutoscalerGrowthRow],
    moved: u32,
) -> PodTotals {
    let planned = demand.groups.iter().map(|group| group.counts.planned);
    let taken = demand.fargate.iter().map(|taken| taken.pods);
    let total = planned.chain(taken).fold(0, u32::saturating_add);
    let fargate = super::fargate::placed_pods(demand);
    let not_placed: u32 = unschedulable.iter().map(|row| row.pods).sum();
    let served = growths.iter().flat_map(|row| row.pods.values());
    let served = served.fold(0_u32, |sum, pods| sum.saturating_add(*pods));
    PodTotals {
        total,
        placed: (total - fargate).saturating_sub(not_placed).saturating_sub(served),
        unschedulable: not_placed,
        served_by_cluster_autoscaler: served,
        fargate,
        unresolved: u32::try_from(demand.unresolved.len()).unwrap_or(u32::MAX),
        moved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_is_rounded_and_zero_bound_is_safe() {
        assert_eq!(percent_above(MicroUsd(110), MicroUsd(100)), "10.00");
        assert_eq!(percent_above(MicroUsd(300), MicroUsd(296)), "1.35");
        assert_eq!(percent_above(MicroUsd(5), MicroUsd(0)), "0.00");
    }
}
