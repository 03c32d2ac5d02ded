//! Capacity reservations, and offerings with insufficient capacity.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::ids::{InstanceTypeName, ReservationId, ZoneName};
use crate::model::market::CapacityType;

/// Offerings for which EC2 had insufficient capacity. An absent field matches any value.
///
/// Unknown keys are errors, because a misspelled key would match any value and exclude too many
/// offerings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exclusion {
    /// Instance type.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<InstanceTypeName>,
    /// Zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<ZoneName>,
    /// Capacity type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<CapacityType>,
    /// Time of the next allowed attempt.
    pub until: Timestamp,
}

impl Exclusion {
    /// Returns true if the exclusion applies to this offering at time `at`.
    pub fn covers(
        &self,
        at: Timestamp,
        instance_type: &InstanceTypeName,
        zone: &ZoneName,
        capacity_type: CapacityType,
    ) -> bool {
        at < self.until
            && self.instance_type.as_ref().is_none_or(|t| t == instance_type)
            && self.zone.as_ref().is_none_or(|z| z == zone)
            && self.capacity_type.is_none_or(|c| c == capacity_type)
    }
}

/// An EC2 capacity reservation for instances of one type in one zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// ID, such as `cr-0abc`.
    pub id: ReservationId,
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Zone.
    pub zone: ZoneName,
    /// Number of instances that can still be launched into the reservation.
    pub available: u32,
    /// State of the reservation.
    #[serde(default)]
    pub state: ReservationState,
    /// Kind of the reservation.
    #[serde(default)]
    pub kind: ReservationKind,
    /// Launches that EC2 counts against the reservation.
    #[serde(default)]
    pub match_criteria: MatchCriteria,
    /// Owning account.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// True if EC2 may interrupt instances in the reservation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interruptible: bool,
    /// End time; absent for a reservation without an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// Tags.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

impl Reservation {
    /// Returns true if instances can be launched into the reservation at time `at`.
    pub fn is_open(&self, at: Timestamp) -> bool {
        self.state == ReservationState::Active && self.ends_at.is_none_or(|end| at < end)
    }
}

/// State of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReservationState {
    /// The reservation can be used.
    #[default]
    Active,
    /// The reservation is not usable: it is pending, or has ended.
    Inactive,
}

/// Kind of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReservationKind {
    /// An on-demand capacity reservation.
    #[default]
    Default,
    /// A capacity block with fixed start and end times.
    CapacityBlock,
}

impl ReservationKind {
    /// Returns the value of the label `karpenter.k8s.aws/capacity-reservation-type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::CapacityBlock => "capacity-block",
        }
    }
}

/// Launches that EC2 counts against a reservation.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum MatchCriteria {
    /// All launches of the instance type in the zone.
    #[default]
    Open,
    /// Only launches that name the reservation.
    Targeted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusion_with_unknown_key_is_an_error() {
        let text = r#"{ "instance_type": "m5.large", "until": "2026-11-21T12:00:00Z" }"#;
        let error = serde_json::from_str::<Exclusion>(text).expect_err("an unknown key");
        assert!(error.to_string().contains("unknown field `instance_type`"), "{error}");
    }

    #[test]
    fn exclusion_covers_its_offerings_until_it_expires() {
        let until: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
        let (early, late) = ("2026-11-21T11:59:59Z", "2026-11-21T12:00:00Z");
        let exclusion = Exclusion {
            instance_type: Some("m5.large".into()),
            zone: None,
            capacity_type: Some(CapacityType::Spot),
            until,
        };
        for (at, kind, zone, capacity_type, covered) in [
            (early, "m5.large", "a", CapacityType::Spot, true),
            (early, "m5.large", "b", CapacityType::Spot, true),
            (early, "m5.large", "a", CapacityType::OnDemand, false),
            (early, "m5.xlarge", "a", CapacityType::Spot, false),
            (late, "m5.large", "a", CapacityType::Spot, false),
        ] {
            let at = at.parse().expect("a time");
            let found = exclusion.covers(at, &kind.into(), &zone.into(), capacity_type);
            assert_eq!(found, covered, "{at} {kind} {zone} {capacity_type}");
        }
    }
}
