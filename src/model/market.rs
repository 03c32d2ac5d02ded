//! EC2 offerings in one region: zones, instance types, prices and account quotas.

mod quota;
mod type_facts;

pub use quota::{Quota, QuotaClass, Quotas};
pub use type_facts::{DeviceFacts, TypeFacts};

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::desired::Pool;
use crate::model::ids::{InstanceTypeName, PoolName, Region, ZoneId, ZoneName};
use crate::model::units::MicroUsd;

/// Purchase options of the members of an Auto Scaling group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityMix {
    /// Number of members that are bought on demand first.
    pub on_demand_base: u32,
    /// Percentage of on-demand members above the base.
    pub on_demand_percent: u32,
}

impl CapacityMix {
    /// Returns the number of on-demand members of a group of `size` members. Fractions are rounded
    /// up.
    pub fn on_demand(self, size: u32) -> u32 {
        let base = self.on_demand_base.min(size);
        let above = u64::from(size - base) * u64::from(self.on_demand_percent.min(100));
        base.saturating_add(u32::try_from(above.div_ceil(100)).unwrap_or(u32::MAX))
    }

    /// Returns true if a group of any size has spot members only.
    pub fn is_spot(self) -> bool {
        self.on_demand_base == 0 && self.on_demand_percent == 0
    }

    /// Returns true if the group has members of both kinds once it is large enough.
    pub fn is_mixed(self) -> bool {
        !self.is_spot() && self.on_demand_percent < 100
    }
}

/// Purchase option of capacity.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CapacityType {
    /// On-demand capacity at list price.
    OnDemand,
    /// Spot capacity at the spot price. EC2 may reclaim it.
    Spot,
    /// Capacity from a capacity reservation.
    Reserved,
}

impl CapacityType {
    /// Returns the value of the label `karpenter.sh/capacity-type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Spot => "spot",
            Self::Reserved => "reserved",
        }
    }

    /// Returns true for Spot capacity.
    pub fn is_spot(self) -> bool {
        self == Self::Spot
    }
}

impl std::fmt::Display for CapacityType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Maximum markup of an alternative offering, in percent of the planned price. A Spot launch
/// requests all alternatives within it at once, and EC2 chooses.
const MARKUP_MAX_PERCENT: i64 = 20;

/// Returns the maximum price of an alternative for a node of this price.
pub fn alternative_price_max(price: MicroUsd) -> MicroUsd {
    MicroUsd(price.0.saturating_add(price.0.saturating_mul(MARKUP_MAX_PERCENT) / 100))
}

/// Returns the part of a Spot price that EC2's choice of an alternative may account for.
pub fn alternative_markup_in(price: MicroUsd) -> MicroUsd {
    MicroUsd(price.0.saturating_mul(MARKUP_MAX_PERCENT) / (100 + MARKUP_MAX_PERCENT))
}

/// A configured zone of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ZoneSetting {
    /// Name, such as `us-east-1a`.
    pub name: ZoneName,
    /// ID, such as `use1-az6`; `None` means the ID in the account of the embedded snapshot.
    pub id: Option<ZoneId>,
}

/// Query for EC2 offerings.
#[derive(Debug, Clone, Copy)]
pub struct MarketQuery<'q> {
    /// Region of the cluster.
    pub region: &'q Region,
    /// Zones of the cluster.
    pub zones: &'q [ZoneSetting],
    /// Pools, which admit instance types and capacity types.
    pub pools: &'q BTreeMap<PoolName, Pool>,
    /// True if the repository has list prices, which those of AWS replace.
    pub has_prices: bool,
}

/// EC2 offerings in one region, for one account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Market {
    /// Time of the read.
    pub read_at: Timestamp,
    /// Available zones of the account, with their IDs.
    pub zones: BTreeMap<ZoneName, ZoneId>,
    /// Zones that offer an instance type, by type.
    pub offered: ByInstanceType<BTreeSet<ZoneName>>,
    /// True if `offered` is stale because a refresh failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offered_is_old: bool,
    /// Hourly spot prices, by instance type and zone; empty if not requested.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spot: ByInstanceType<BTreeMap<ZoneName, MicroUsd>>,
    /// List prices of the region, if requested.
    #[serde(default)]
    pub listed: ListPrices,
    /// Instance types that the embedded snapshot lacks, as described by EC2.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<InstanceTypeName, TypeFacts>,
    /// Service quotas of the account; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quotas: Option<Quotas>,
    /// Descriptions of data that could not be read, each a sentence with the reason and the
    /// substitute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
}

/// Values by instance type.
pub type ByInstanceType<T> = BTreeMap<InstanceTypeName, T>;

/// On-demand list prices of a region.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPrices {
    /// True if the whole price list was read; false if only some instance types were read.
    pub whole: bool,
    /// Hourly prices of Linux instances with shared tenancy, by instance type.
    pub hourly: BTreeMap<InstanceTypeName, MicroUsd>,
    /// Time of the read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_at: Option<Timestamp>,
}

impl Market {
    /// Returns the zones of `settings` with their IDs. Empty settings mean all zones of the
    /// account.
    ///
    /// The ID of the account replaces a different configured ID.
    pub fn resolve_zones(&self, settings: &[ZoneSetting]) -> Vec<ZoneSetting> {
        let setting = |(name, id): (&ZoneName, &ZoneId)| ZoneSetting {
            name: name.clone(),
            id: Some(id.clone()),
        };
        if settings.is_empty() {
            return self.zones.iter().map(setting).collect();
        }
        let known = |zone: &ZoneSetting| {
            let id = self.zones.get(&zone.name).cloned().or_else(|| zone.id.clone());
            ZoneSetting { name: zone.name.clone(), id }
        };
        settings.iter().map(known).collect()
    }
}
