//! Pricing commitments.

use crate::model::ids::InstanceTypeName;
use crate::model::units::MicroUsd;

/// A pricing commitment: lower prices in return for a fixed payment, regardless of usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PricingCommitment {
    /// Name.
    pub name: String,
    /// Kind, with its amounts.
    pub kind: CommitmentKind,
}

/// Kind of a pricing commitment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitmentKind {
    /// An hourly amount that pays for running on-demand capacity at a discount.
    SavingsPlan {
        /// Payment per hour.
        hourly: MicroUsd,
        /// Discount from list prices, in thousandths of a percent.
        discount_milli_percent: u32,
    },
    /// Reserved instances of one type.
    ReservedInstances {
        /// Instance type.
        instance_type: InstanceTypeName,
        /// Number of reserved instances.
        count: u32,
        /// Hourly cost of one instance, including upfront payments.
        hourly: MicroUsd,
    },
}

impl CommitmentKind {
    /// Returns the name of the kind in plans.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::SavingsPlan { .. } => "savings-plan",
            Self::ReservedInstances { .. } => "reserved-instances",
        }
    }
}

impl PricingCommitment {
    /// Returns the hourly cost, which is independent of usage.
    pub fn hourly(&self) -> MicroUsd {
        match &self.kind {
            CommitmentKind::SavingsPlan { hourly, .. } => *hourly,
            CommitmentKind::ReservedInstances { count, hourly, .. } => {
                hourly.times(i64::from(*count))
            }
        }
    }
}
