//! Groups of Auto Scaling, as they were observed.

use std::collections::BTreeMap;

use jiff::Timestamp;
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
    /// When Auto Scaling itself sets other sizes (scheduled actions).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<ScheduledSize>,
    /// Why it is not known when it does; then [`Group::schedules`] says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedules_unread: Option<String>,
}

/// A scheduled action of a group: sizes that Auto Scaling sets at certain times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledSize {
    /// Name.
    pub name: String,
    /// A cron expression of five fields; `None`: it acts once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recurrence: Option<String>,
    /// The IANA time zone of the expression; `None`: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// When it acts first, whatever the expression says; `None`: when that says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    /// After when it acts no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// Fewest members from then on; `None`: as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// Most members from then on; `None`: as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// Members that it is to have from then on; `None`: as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<u32>,
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
