//! The catalog's types.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::allocatable::allocation;
use super::allocatable_step::AllocationStep;
use super::instance_type::InstanceType;
use super::measured_nodes::MeasuredNodes;
use super::node_resource::Allocation;
use super::node_settings::NodeSettings;
use crate::model::ids::{InstanceTypeName, Region, ZoneId, ZoneName};
use crate::model::market::{ByInstanceType, Quotas};
use crate::model::units::MicroUsd;

/// The offerings and prices of one region.
#[derive(Debug, Clone)]
pub struct Catalog {
    /// The region.
    pub region: Region,
    /// The zones that may be used, by name.
    pub zones: Vec<Zone>,
    /// Instance types offered in at least one of the zones, by name.
    pub types: BTreeMap<InstanceTypeName, InstanceType>,
    /// The source of the prices.
    pub prices: PriceSource,
    /// Hourly list prices, including those of types that the zones do not offer.
    pub listed: Arc<ByInstanceType<MicroUsd>>,
    /// Warnings for the reader of a plan: prices of another region, assumed zone ids, types without
    /// a price.
    pub warnings: Vec<String>,
    /// Capacity and allocatable measured on running nodes; empty before an observation.
    pub measured: MeasuredNodes,
    /// Quotas of the account; `None` if unknown.
    pub quotas: Option<Quotas>,
    /// Zones in which EC2 offers each type; `None` if EC2 was not asked.
    pub offered: Option<Arc<ByInstanceType<BTreeSet<ZoneName>>>>,
}

impl Catalog {
    /// Returns the allocation of a node of `kind` under `settings`: measured where possible, else
    /// by the formulas.
    pub fn allocation(&self, kind: &InstanceType, settings: &NodeSettings) -> Allocation {
        self.measured.adjust(allocation(kind, settings), &kind.name, settings)
    }

    /// Returns the steps behind the numbers of [`Catalog::allocation`].
    pub fn explain(&self, kind: &InstanceType, settings: &NodeSettings) -> Vec<AllocationStep> {
        self.measured.explain(kind, settings)
    }
}

/// An availability zone: the account's name for it, and its id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Zone {
    /// Name, such as `us-east-1a`.
    pub name: ZoneName,
    /// Id, such as `use1-az6`.
    pub id: ZoneId,
    /// The id comes from the snapshot's account instead of the settings.
    pub assumed: bool,
}

/// The source of prices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PriceSource {
    /// Name of the list, such as `embedded list prices`.
    pub source: String,
    /// The region the prices are for.
    pub region: Region,
    /// The date of the list.
    pub date: String,
    /// True if the prices are those of another region than the cluster's.
    #[serde(rename = "stand_in")]
    pub is_other_region: bool,
}

/// The reason why there is no catalog for a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CatalogError {
    /// The snapshot has no such region.
    #[error("region `{region}` is not in the embedded catalog")]
    UnknownRegion {
        /// The requested region.
        region: Region,
        /// Regions with a similar name, nearest first.
        similar: Vec<Region>,
    },
    /// The region has no such zone.
    #[error("zone `{zone}` is not a zone of region `{region}`")]
    UnknownZone {
        /// The requested zone.
        zone: ZoneName,
        /// The region.
        region: Region,
        /// The region's zones.
        known: Vec<ZoneName>,
    },
    /// The region has no zone with this id.
    #[error("zone `{zone}`: `{id}` is not a zone id of region `{region}`")]
    UnknownZoneId {
        /// The zone it was declared for.
        zone: ZoneName,
        /// The id.
        id: ZoneId,
        /// The region.
        region: Region,
        /// The region's zone ids.
        known: Vec<ZoneId>,
    },
    /// Two names refer to the same zone.
    #[error("zones `{first}` and `{second}` are both `{id}`")]
    SharedZoneId {
        /// The first zone.
        first: ZoneName,
        /// The second zone.
        second: ZoneName,
        /// The shared id.
        id: ZoneId,
    },
    /// One name is declared with two ids.
    #[error("zone `{zone}` is stated twice, as `{first}` and as `{second}`")]
    ZoneTwice {
        /// The zone.
        zone: ZoneName,
        /// One id.
        first: ZoneId,
        /// The other.
        second: ZoneId,
    },
    /// More than one of the above.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<CatalogError>),
    /// The embedded snapshot cannot be read: the build is broken.
    #[error("the embedded catalog cannot be read: {0}")]
    Snapshot(String),
}

impl CatalogError {
    /// Returns a suggestion for fixing the error, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownRegion { region, similar } => Some(match similar.as_slice() {
                _ if region.as_str().starts_with("cn-") => {
                    "regions of China are not supported".to_owned()
                }
                _ if region.as_str().starts_with("us-gov-") => {
                    "GovCloud is not supported".to_owned()
                }
                [] => "write a region's name, such as `eu-west-1`".to_owned(),
                similar => format!("did you mean {}?", quoted(similar, " or ")),
            }),
            Self::UnknownZone { known, .. } => {
                Some(format!("its zones are {}", quoted(known, ", ")))
            }
            Self::UnknownZoneId { known, .. } => {
                Some(format!("its zone ids are {}", quoted(known, ", ")))
            }
            Self::SharedZoneId { .. } => Some(
                "state the id of each zone, as `aws ec2 describe-availability-zones` shows it"
                    .to_owned(),
            ),
            Self::ZoneTwice { .. } => Some("keep the right one".to_owned()),
            Self::Several(problems) => {
                let mut hints: Vec<String> = Vec::new();
                for hint in problems.iter().filter_map(Self::hint) {
                    if !hints.contains(&hint) {
                        hints.push(hint);
                    }
                }
                Some(hints.join("; "))
            }
            Self::Snapshot(_) => None,
        }
    }
}

fn quoted<T: std::fmt::Display>(names: &[T], between: &str) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(between)
}
