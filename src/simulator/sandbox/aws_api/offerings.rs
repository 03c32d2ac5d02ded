//! Subnets, zones, images, reservations and prices.

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};

use super::AwsApi;
use crate::catalog::InstanceType;
use crate::model::market::CapacityType;
use crate::model::observed::{MatchCriteria, ReservationKind, ReservationState};
use crate::simulator::sandbox::object::format_time;
use crate::simulator::sandbox::xml::Xml;

/// Free addresses of every subnet.
const FREE_ADDRESSES: &str = "4000";

impl AwsApi {
    pub(super) fn subnets(&self) -> Xml {
        let of_zone = |zone: &crate::catalog::Zone| {
            Xml::default()
                .text("subnetId", &format!("subnet-{}", zone.name))
                .text("availabilityZone", zone.name.as_str())
                .text("availabilityZoneId", zone.id.as_str())
                .text("availableIpAddressCount", FREE_ADDRESSES)
                .text("state", "available")
        };
        Xml::default().list("subnetSet", "item", self.catalog.zones.iter().map(of_zone))
    }

    pub(super) fn reservations(&self) -> Xml {
        let reserved = self.world.observed().reservations.into_values().map(|own| {
            let criteria = match own.match_criteria {
                MatchCriteria::Open => "open",
                MatchCriteria::Targeted => "targeted",
            };
            let kind = match own.kind {
                ReservationKind::Default => "default",
                ReservationKind::CapacityBlock => "capacity-block",
            };
            let state = match own.state {
                ReservationState::Active => "active",
                ReservationState::Inactive => "pending",
            };
            let tags = own.tags.iter();
            let tags =
                tags.map(|(key, value)| Xml::default().text("key", key).text("value", value));
            let xml = Xml::default()
                .text("capacityReservationId", own.id.as_str())
                .text("ownerId", &own.owner)
                .text("instanceType", own.instance_type.as_str())
                .text("availabilityZone", own.zone.as_str())
                .text("availableInstanceCount", &own.available.to_string())
                .text("instanceMatchCriteria", criteria)
                .text("reservationType", kind)
                .text("state", state)
                .text("interruptible", if own.interruptible { "true" } else { "false" })
                .list("tagSet", "item", tags);
            match own.ends_at {
                Some(end) => xml.text("endDate", &format_time(end)),
                None => xml,
            }
        });
        Xml::default().list("capacityReservationSet", "item", reserved)
    }

    pub(super) fn zones(&self) -> Xml {
        let zones = self.catalog.zones.iter().map(|zone| {
            Xml::default()
                .text("zoneName", zone.name.as_str())
                .text("zoneId", zone.id.as_str())
                .text("zoneType", "availability-zone")
                .text("zoneState", "available")
        });
        Xml::default().list("availabilityZoneInfo", "item", zones)
    }

    pub(super) fn offered(&self) -> Xml {
        let mut pairs = BTreeSet::new();
        for kind in self.catalog.types.values() {
            pairs.extend(kind.offerings.iter().map(|offering| (&kind.name, &offering.zone)));
        }
        let offered = pairs.into_iter().map(|(kind, zone)| {
            Xml::default()
                .text("instanceType", kind.as_str())
                .text("locationType", "availability-zone")
                .text("location", zone.as_str())
        });
        Xml::default().list("instanceTypeOfferingSet", "item", offered)
    }

    /// Returns the on-demand prices of the catalog that match `filters`. All types have shared
    /// tenancy.
    pub(super) fn products(&self, filters: &Json) -> Json {
        let stated = |field: &str| {
            let mut all = filters.as_array().into_iter().flatten();
            all.find(|filter| filter["Field"] == field).and_then(|filter| filter["Value"].as_str())
        };
        let shared = stated("tenancy").is_none_or(|tenancy| tenancy == "Shared");
        let requested = |kind: &&InstanceType| {
            shared && stated("instanceType").is_none_or(|name| name == kind.name.as_str())
        };
        let product = |kind: &InstanceType| {
            let mut ways = kind.offerings.iter();
            let price = ways.find(|way| way.capacity_type == CapacityType::OnDemand)?.price?;
            let dimension = json!({ "unit": "Hrs", "pricePerUnit": { "USD": price.to_string() } });
            let product = json!({
                "product": { "attributes": { "instanceType": kind.name } },
                "terms": { "OnDemand": { "S.T": { "priceDimensions": { "S.T.D": dimension } } } }
            });
            Some(product.to_string())
        };
        let products = self.catalog.types.values().filter(requested).filter_map(product);
        json!({ "FormatVersion": "aws_v1", "PriceList": products.collect::<Vec<_>>() })
    }
}

pub(super) fn images() -> Xml {
    let image = |arch: &str| {
        Xml::default()
            .text("imageId", &format!("ami-embedded-{arch}"))
            .text("architecture", arch)
            .text("creationDate", "2026-01-01T00:00:00.000Z")
            .text("imageState", "available")
    };
    Xml::default().list("imagesSet", "item", ["arm64", "x86_64"].map(image))
}
