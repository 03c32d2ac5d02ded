//! Cost of a plan, its breakdown, and the effect of commitments.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::catalog::PriceSource;
use crate::model::fargate::Rates as FargateRates;
use crate::model::units::MicroUsd;

/// Cost; every amount is in USD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Always `USD`.
    pub currency: String,
    /// Price per hour of the running fleet.
    pub hourly_before: MicroUsd,
    /// Price per hour after the apply.
    pub hourly_after: MicroUsd,
    /// Difference of the two prices per hour.
    pub hourly_delta: MicroUsd,
    /// Difference for a month of 730 hours.
    pub monthly_delta: MicroUsd,
    /// Lower bound of the hourly price of every fleet of new nodes that holds the placed pods; at
    /// most `hourly_after`. Unschedulable pods, which depend on the running nodes, do not count.
    pub lower_bound_hourly: MicroUsd,
    /// Excess of `hourly_after` over the lower bound, in percent with two decimals.
    pub gap_percent: String,
    /// Saving that the plan does not make, because it is too small a share of the fleet's price;
    /// absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consolidation_potential: Option<ConsolidationPotential>,
    /// Source of the prices.
    pub prices: PriceSource,
    /// Cost at list prices; absent unless node overlays set a price of the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<ListCost>,
    /// Number of nodes with an estimated price.
    pub estimated: u32,
    /// Number of nodes with an unknown price, which count as zero.
    pub unpriced: u32,
    /// Cost of Fargate, which the other amounts exclude; absent without pods on Fargate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fargate: Option<FargateCost>,
    /// Breakdown of the cost, and the items that it includes.
    #[serde(default, skip_serializing_if = "CostBreakdown::is_empty")]
    pub breakdown: CostBreakdown,
}

/// Cost at list prices, without the prices that node overlays state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListCost {
    /// Price per hour of the running fleet.
    pub hourly_before: MicroUsd,
    /// Price per hour after the apply.
    pub hourly_after: MicroUsd,
    /// Names of the overlays that set a price of the plan.
    pub overlays: Vec<String>,
    /// Number of nodes, before or after the apply, without a list price. They count with the price
    /// of their overlay; absent if there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unlisted: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Saving of a change that the plan does not make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConsolidationPotential {
    /// Saving per hour.
    pub saves_hourly: MicroUsd,
    /// Minimum saving per hour, at which the plan would make the change.
    pub needed_hourly: MicroUsd,
    /// Number of running pods that the change would move.
    pub moves: u32,
    /// Number of nodes that the change would remove.
    pub nodes: u32,
}

/// Cost of Fargate, without nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FargateCost {
    /// Prices from `fleetwright.yaml`; absent if it states none. Fargate then has no price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<FargateRates>,
    /// Running pods.
    pub before: FargateBill,
    /// Planned pods.
    pub after: FargateBill,
}

/// Pods on Fargate at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FargateBill {
    /// Number of pods.
    pub pods: u32,
    /// CPU of the pod sizes, in thousandths of a vCPU.
    pub cpu_milli: i64,
    /// Memory of the pod sizes, in MiB.
    pub memory_mib: i64,
    /// Price per hour; absent if no price is stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly: Option<MicroUsd>,
}

/// Breakdown of the cost, and the items that it includes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CostBreakdown {
    /// Cost by pool. Nodes without a pool have the empty name.
    pub by_pool: Vec<CostRow>,
    /// Cost by zone.
    pub by_zone: Vec<CostRow>,
    /// Cost by capacity type.
    pub by_capacity_type: Vec<CostRow>,
    /// Bounds of the price after the apply; absent without estimated spot prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<CostRange>,
    /// Totals with commitments; absent if none are declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<Committed>,
    /// Costs that the figures include, in words.
    pub included: Vec<String>,
    /// Costs that the figures do not include, in words.
    pub not_included: Vec<String>,
}

impl CostBreakdown {
    /// Returns whether the breakdown is empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One part of the cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CostRow {
    /// Pool, zone or capacity type.
    pub name: String,
    /// Number of nodes before the apply.
    pub nodes_before: u32,
    /// Number of nodes after the apply.
    pub nodes_after: u32,
    /// Price per hour before the apply.
    pub hourly_before: MicroUsd,
    /// Price per hour after the apply.
    pub hourly_after: MicroUsd,
}

/// Bounds of an estimated price.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CostRange {
    /// Lowest possible price per hour after the apply.
    pub hourly_low: MicroUsd,
    /// Highest possible price per hour after the apply.
    pub hourly_high: MicroUsd,
    /// Reasons for the range, in words.
    pub because: Vec<String>,
}

/// Totals with the commitments that `fleetwright.yaml` declares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Committed {
    /// Price per hour before the apply, with commitments.
    pub hourly_before: MicroUsd,
    /// Price per hour after the apply, with commitments.
    pub hourly_after: MicroUsd,
    /// Each commitment and its use.
    pub commitments: Vec<CommitmentRow>,
}

/// A commitment and its use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommitmentRow {
    /// Name in `fleetwright.yaml`.
    pub name: String,
    /// `savings-plan` or `reserved-instances`.
    pub kind: String,
    /// Price per hour of the commitment, independent of its use.
    pub hourly: MicroUsd,
    /// List price per hour of the covered capacity before the apply.
    pub covers_before: MicroUsd,
    /// List price per hour of the covered capacity after the apply.
    pub covers_after: MicroUsd,
    /// List price per hour that the commitment can cover.
    pub capacity: MicroUsd,
}
