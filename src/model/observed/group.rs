//! Observed Auto Scaling groups.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::ids::{GroupName, InstanceTypeName, ZoneName};
use crate::model::market::{CapacityMix, CapacityType};
use crate::model::pod::Taint;

/// An Auto Scaling group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Name.
    pub name: GroupName,
    /// Minimum number of members.
    pub min: u32,
    /// Maximum number of members.
    pub max: u32,
    /// Desired number of members. The actual number may differ temporarily.
    pub desired: u32,
    /// Instance types, in launch order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<InstanceTypeName>,
    /// Zones for launches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<ZoneName>,
    /// Tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Purchase options of the mixed instances policy; unknown if the key is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix: Option<CapacityMix>,
    /// Suspended processes, such as `Launch` or `AZRebalance`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspended: Vec<String>,
    /// Scheduled actions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<ScheduledSize>,
    /// Reason if the scheduled actions could not be read; [`Group::schedules`] is then unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedules_unread: Option<String>,
    /// Nodes of a managed node group, as EKS states them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_group: Option<NodeGroupTemplate>,
    /// Reason if the launch template or the node group of EKS could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_unread: Option<String>,
}

/// Nodes of a managed node group, as EKS states them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeGroupTemplate {
    /// Name.
    pub name: String,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Capacity type; unknown if the key is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<CapacityType>,
    /// AMI type, such as `AL2023_x86_64_STANDARD`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ami_type: Option<String>,
    /// Size of the disk, in GiB. A launch template may set another size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_gib: Option<u32>,
}

/// A scheduled action of a group: Auto Scaling sets these sizes at certain times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledSize {
    /// Name.
    pub name: String,
    /// Cron expression with five fields; `None` for a one-time action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recurrence: Option<String>,
    /// IANA time zone of the expression; `None` means UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Earliest time of the action, regardless of the expression; `None` means no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    /// Expiry time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// New minimum; `None` means unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// New maximum; `None` means unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// New desired size; `None` means unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<u32>,
}

/// Membership of an instance in an Auto Scaling group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Group name.
    pub name: GroupName,
    /// Lifecycle state in Auto Scaling: `Pending`, `InService`, `Terminating:Wait`, …
    #[serde(default = "in_service")]
    pub lifecycle: String,
    /// True if the instance is protected from scale-in.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
}

fn in_service() -> String {
    "InService".to_owned()
}
