//! Cost of a plan, its parts, and the effect of commitments.

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
    /// The difference.
    pub hourly_delta: MicroUsd,
    /// The difference for a month of 730 hours.
    pub monthly_delta: MicroUsd,
    /// Lower bound of the hourly price of every fleet that holds the same pods.
    pub lower_bound_hourly: MicroUsd,
    /// Distance of `hourly_after` above the bound, in percent with two digits.
    pub gap_percent: String,
    /// Source of the prices.
    pub prices: PriceSource,
    /// Number of nodes with an estimated price.
    pub estimated: u32,
    /// Number of nodes with an unknown price, which count as zero.
    pub unpriced: u32,
    /// Cost of Fargate, which none of the amounts above includes; absent where it runs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fargate: Option<FargateCost>,
    /// The same cost in parts, and what it includes.
    #[serde(default, skip_serializing_if = "CostBreakdown::is_empty")]
    pub breakdown: CostBreakdown,
}

/// Cost of Fargate, apart from nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FargateCost {
    /// Prices from `fleetwright.yaml`; absent where it states none, so that nothing is priced.
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
    /// Pods.
    pub pods: u32,
    /// CPU of their sizes, in thousandths of a vCPU.
    pub cpu_milli: i64,
    /// Memory of their sizes, in MiB.
    pub memory_mib: i64,
    /// Price per hour; absent where no price is stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly: Option<MicroUsd>,
}

/// Cost in parts, and what it includes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CostBreakdown {
    /// By pool; nodes without a pool have the empty name.
    pub by_pool: Vec<CostRow>,
    /// By zone.
    pub by_zone: Vec<CostRow>,
    /// By capacity type.
    pub by_capacity_type: Vec<CostRow>,
    /// Bounds of the price after, where prices are estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<CostRange>,
    /// Totals with commitments; absent where none are declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<Committed>,
    /// Costs that the figures include, in words.
    pub included: Vec<String>,
    /// Costs that the figures do not include, in words.
    pub not_included: Vec<String>,
}

impl CostBreakdown {
    /// Returns whether there is no breakdown.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One part of the cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CostRow {
    /// Pool, zone or capacity type.
    pub name: String,
    /// Nodes before.
    pub nodes_before: u32,
    /// Nodes after.
    pub nodes_after: u32,
    /// Price per hour before.
    pub hourly_before: MicroUsd,
    /// Price per hour after.
    pub hourly_after: MicroUsd,
}

/// Bounds of an estimated price.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CostRange {
    /// Lowest possible price per hour after the apply.
    pub hourly_low: MicroUsd,
    /// Highest possible price per hour.
    pub hourly_high: MicroUsd,
    /// Reasons for the range, in words.
    pub because: Vec<String>,
}

/// Totals with the commitments that `fleetwright.yaml` declares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Committed {
    /// Price per hour before, commitments included.
    pub hourly_before: MicroUsd,
    /// Price per hour after, commitments included.
    pub hourly_after: MicroUsd,
    /// Each commitment and its use.
    pub commitments: Vec<CommitmentRow>,
}

/// A commitment and its use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommitmentRow {
    /// Its name in `fleetwright.yaml`.
    pub name: String,
    /// `savings-plan` or `reserved-instances`.
    pub kind: String,
    /// Price per hour of the commitment, used or not.
    pub hourly: MicroUsd,
    /// List price per hour of the covered capacity before.
    pub covers_before: MicroUsd,
    /// List price per hour of the covered capacity after.
    pub covers_after: MicroUsd,
    /// List price per hour that the commitment can cover.
    pub capacity: MicroUsd,
}
