//! Capacity reservations, and offerings that EC2 recently had no capacity for.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::ids::{InstanceTypeName, ReservationId, ZoneName};
use crate::model::market::CapacityType;

/// Offerings that EC2 had no capacity for; a part that is absent means any.
///
/// Hence an unknown key is an error: a misspelled part would mean any, and exclude too much.
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
    /// When they may be tried again.
    pub until: Timestamp,
}

impl Exclusion {
    /// Returns whether it holds at `at` for this type, zone and capacity type.
    #[must_use]
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

/// An EC2 capacity reservation: paid instances of one type in one zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Id, such as `cr-0abc`.
    pub id: ReservationId,
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Zone.
    pub zone: ZoneName,
    /// Instances that can still be launched into it.
    pub available: u32,
    /// Whether it can be used now.
    #[serde(default)]
    pub state: ReservationState,
    /// Kind of the reservation.
    #[serde(default)]
    pub kind: ReservationKind,
    /// Which launches EC2 counts against it.
    #[serde(default)]
    pub match_criteria: MatchCriteria,
    /// Account that owns it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Whether EC2 may interrupt its instances.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interruptible: bool,
    /// When it ends; absent where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// Tags.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

impl Reservation {
    /// Returns whether instances can be launched into it at `at`.
    #[must_use]
    pub fn is_open(&self, at: Timestamp) -> bool {
        self.state == ReservationState::Active && self.ends_at.is_none_or(|end| at < end)
    }
}

/// The state of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReservationState {
    /// It can be used.
    #[default]
    Active,
    /// It cannot be used yet, or no more.
    Inactive,
}

/// The kind of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReservationKind {
    /// An on-demand capacity reservation.
    #[default]
    Default,
    /// A capacity block, which begins and ends at fixed times.
    CapacityBlock,
}

impl ReservationKind {
    /// Returns the value of the label `karpenter.k8s.aws/capacity-reservation-type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::CapacityBlock => "capacity-block",
        }
    }
}

/// Which launches EC2 counts against a reservation.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum MatchCriteria {
    /// Every launch of its type in its zone.
    #[default]
    Open,
    /// Those that name it.
    Targeted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusion_with_unknown_key_is_an_error() {
        let text = r#"{ "instance_type": "m5.large", "until": "2026-11-21T12:00:00Z" }"#;
        let error = serde_json::from_str::<Exclusion>(text).expect_err("it would mean any type");
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
        for (at, kind, zone, how, covered) in [
            (early, "m5.large", "a", CapacityType::Spot, true),
            (early, "m5.large", "b", CapacityType::Spot, true),
            (early, "m5.large", "a", CapacityType::OnDemand, false),
            (early, "m5.xlarge", "a", CapacityType::Spot, false),
            (late, "m5.large", "a", CapacityType::Spot, false),
        ] {
            let at = at.parse().expect("a time");
            let found = exclusion.covers(at, &kind.into(), &zone.into(), how);
            assert_eq!(found, covered, "{at} {kind} {zone} {how}");
        }
    }
}
