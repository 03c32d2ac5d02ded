//! Money: the prices of a plan, in parts, with what was committed to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::catalog::PriceSource;
use crate::fargate::Rates as FargateRates;
use crate::units::MicroUsd;

/// Money; every amount is in USD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Always `USD`.
    pub currency: String,
    /// Price per hour of what runs.
    pub hourly_before: MicroUsd,
    /// Price per hour once the plan is applied.
    pub hourly_after: MicroUsd,
    /// The difference.
    pub hourly_delta: MicroUsd,
    /// The difference in a month of 730 hours.
    pub monthly_delta: MicroUsd,
    /// A bound below the hourly price of every fleet that holds the same pods.
    pub lower_bound_hourly: MicroUsd,
    /// How far `hourly_after` is above the bound, in percent with two digits.
    pub gap_percent: String,
    /// Where prices come from.
    pub prices: PriceSource,
    /// How many nodes have an estimated price.
    pub estimated: u32,
    /// How many nodes have no known price and count as nothing.
    pub unpriced: u32,
    /// What Fargate costs, which is in none of the amounts above; absent where it runs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fargate: Option<FargateCost>,
    /// The same money in parts, and what is in it.
    #[serde(default, skip_serializing_if = "CostBreakdown::is_empty")]
    pub breakdown: CostBreakdown,
}

/// What Fargate costs, apart from nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FargateCost {
    /// Prices, from `fleetwright.yaml`; absent where it states none: then nothing is priced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<FargateRates>,
    /// What runs now.
    pub before: FargateBill,
    /// What is planned.
    pub after: FargateBill,
}

/// What Fargate runs at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FargateBill {
    /// Pods.
    pub pods: u32,
    /// CPU of their sizes, in thousandths of a vCPU.
    pub cpu_milli: i64,
    /// Memory of their sizes, in MiB.
    pub memory_mib: i64,
    /// Price per hour; absent where it is not priced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly: Option<MicroUsd>,
}

/// Money in parts, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CostBreakdown {
    /// By pool; what belongs to none stands under the empty name.
    pub by_pool: Vec<CostRow>,
    /// By zone.
    pub by_zone: Vec<CostRow>,
    /// By capacity type.
    pub by_capacity_type: Vec<CostRow>,
    /// Bounds of the price after, where prices are uncertain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<CostRange>,
    /// What commitments change; absent where none are declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<Committed>,
    /// What the figures hold, in words.
    pub included: Vec<String>,
    /// What they do not hold, in words.
    pub not_included: Vec<String>,
}

impl CostBreakdown {
    /// Returns whether nothing was broken down.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One part of the money.
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

/// Bounds of a price that is not known exactly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CostRange {
    /// The least that the fleet may cost per hour after.
    pub hourly_low: MicroUsd,
    /// The most.
    pub hourly_high: MicroUsd,
    /// Why there is a range, in words.
    pub because: Vec<String>,
}

/// What commitments that `fleetwright.yaml` declares make of the list prices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Committed {
    /// Price per hour before, commitments included.
    pub hourly_before: MicroUsd,
    /// Price per hour after, commitments included.
    pub hourly_after: MicroUsd,
    /// Each commitment, and how much of it is used.
    pub commitments: Vec<CommitmentRow>,
}

/// A commitment, and how much of it is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommitmentRow {
    /// Its name in `fleetwright.yaml`.
    pub name: String,
    /// `savings-plan` or `reserved-instances`.
    pub kind: String,
    /// What is paid per hour whether or not it is used.
    pub hourly: MicroUsd,
    /// List price per hour of what it covers before.
    pub covers_before: MicroUsd,
    /// List price per hour of what it covers after.
    pub covers_after: MicroUsd,
    /// List price per hour that it could cover.
    pub capacity: MicroUsd,
}
