//! Groups of Auto Scaling, as they were observed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{GroupName, InstanceTypeName, ZoneName};

/// An Auto Scaling group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Name.
    pub name: GroupName,
    /// Fewest members.
    pub min: u32,
    /// Most members.
    pub max: u32,
    /// Members that it is to have; those that it has may be fewer, or more for a while.
    pub desired: u32,
    /// Types that it launches, in the order in which they are tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<InstanceTypeName>,
    /// Zones that it launches in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<ZoneName>,
    /// Tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Processes that somebody suspended, such as `Launch` or `AZRebalance`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspended: Vec<String>,
}

/// What an instance is in its group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The group.
    pub name: GroupName,
    /// State in its life, as Auto Scaling names it: `Pending`, `InService`, `Terminating:Wait`, …
    #[serde(default = "in_service")]
    pub lifecycle: String,
    /// Whether it is protected from being scaled in.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
}

fn in_service() -> String {
    "InService".to_owned()
}
