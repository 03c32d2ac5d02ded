//! Offerings of EC2 in one region: zones, instance types, prices and quotas of an account.

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

/// How capacity is bought.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CapacityType {
    /// At list price, until terminated.
    OnDemand,
    /// At the spot price, until reclaimed.
    Spot,
    /// From a capacity reservation.
    Reserved,
}

impl CapacityType {
    /// Returns the value of the label `karpenter.sh/capacity-type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Spot => "spot",
            Self::Reserved => "reserved",
        }
    }
}

impl std::fmt::Display for CapacityType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// A zone that a cluster may use, as configured.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ZoneSetting {
    /// Name, such as `us-east-1a`.
    pub name: ZoneName,
    /// Id, such as `use1-az6`; `None`: as in the account of the embedded snapshot.
    pub id: Option<ZoneId>,
}

/// The part of a repository for which EC2 offerings are read.
#[derive(Debug, Clone, Copy)]
pub struct MarketQuery<'q> {
    /// The region of the cluster.
    pub region: &'q Region,
    /// The zones of the cluster.
    pub zones: &'q [ZoneSetting],
    /// The pools, which admit instance types and capacity types.
    pub pools: &'q BTreeMap<PoolName, Pool>,
}

/// The offerings of EC2 in one region, for one account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Market {
    /// When it was read.
    pub read_at: Timestamp,
    /// Available zones of the account, with their ids.
    pub zones: BTreeMap<ZoneName, ZoneId>,
    /// Zones that offer a type, by type.
    pub offered: ByInstanceType<BTreeSet<ZoneName>>,
    /// Whether `offered` is stale, because a refresh failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offered_is_old: bool,
    /// Spot prices an hour, by type and zone; empty if not requested.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spot: ByInstanceType<BTreeMap<ZoneName, MicroUsd>>,
    /// List prices of the region, if requested.
    #[serde(default)]
    pub listed: ListPrices,
    /// Types missing in the embedded snapshot, as EC2 describes them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<InstanceTypeName, TypeFacts>,
    /// Service quotas of the account; `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quotas: Option<Quotas>,
    /// Data that could not be read, with the reason and the substitute: a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
}

/// Values by instance type.
pub type ByInstanceType<T> = BTreeMap<InstanceTypeName, T>;

/// On-demand prices of a region, as AWS lists them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPrices {
    /// Whether the whole list was read, rather than the prices of some types.
    pub whole: bool,
    /// Prices an hour of Linux, shared tenancy.
    pub hourly: BTreeMap<InstanceTypeName, MicroUsd>,
    /// When it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_at: Option<Timestamp>,
}

impl Market {
    /// Returns the zones of `settings` with their ids; all zones of the account if none is named.
    ///
    /// A wrong id is replaced.
    #[must_use]
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
