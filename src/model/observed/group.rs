//! Auto Scaling groups, as observed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::ids::{GroupName, InstanceTypeName, ZoneName};

/// An Auto Scaling group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Name.
    pub name: GroupName,
    /// Fewest members.
    pub min: u32,
    /// Most members.
    pub max: u32,
    /// Desired members; the actual number may differ for a while.
    pub desired: u32,
    /// Instance types, in launch order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<InstanceTypeName>,
    /// Zones in which it launches instances.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<ZoneName>,
    /// Tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Suspended processes, such as `Launch` or `AZRebalance`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspended: Vec<String>,
    /// Scheduled actions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<ScheduledSize>,
    /// Why scheduled actions could not be read; [`Group::schedules`] is then meaningless.
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
    /// Earliest start, regardless of the expression; `None`: no restriction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// New minimum; `None`: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// New maximum; `None`: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// New desired size; `None`: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<u32>,
}

/// The membership of an instance in its group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The group.
    pub name: GroupName,
    /// Lifecycle state in Auto Scaling: `Pending`, `InService`, `Terminating:Wait`, …
    #[serde(default = "in_service")]
    pub lifecycle: String,
    /// Whether scale-in protection is on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
}

fn in_service() -> String {
    "InService".to_owned()
}
