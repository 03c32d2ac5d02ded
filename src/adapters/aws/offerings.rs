//! EC2 offerings and spot prices. The number of calls depends on the pages, not on the size of the
//! cluster.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_ec2::types::{AvailabilityZoneState, Filter, InstanceType, LocationType, SpotPrice};
use jiff::{SignedDuration, Timestamp};

use super::client::Aws;
use super::errors::port_error;
use super::rate_limiter::ApiBucket;
use crate::apply::ports::PortError;
use crate::model::ids::{InstanceTypeName, ZoneId, ZoneName};
use crate::model::market::ByInstanceType;
use crate::model::units::MicroUsd;

/// Product for spot prices. Windows capacity costs the same.
const PRODUCT: &str = "Linux/UNIX";

/// Maximum age of a spot price. EC2 keeps 90 days of history, and also returns prices that have not
/// changed since.
const PRICE_AGE_MAX: SignedDuration = SignedDuration::from_hours(24 * 90);

/// Maximum number of types that a spot price request names.
const TYPE_FILTER_MAX: usize = 100;

impl Aws {
    /// Reads the available zones of the account with their IDs.
    ///
    /// # Errors
    /// Returns an error if they cannot be read.
    pub async fn zones(&self) -> Result<BTreeMap<ZoneName, ZoneId>, PortError> {
        self.limiter.acquire(ApiBucket::Describe).await;
        let found = self.ec2.describe_availability_zones().send().await;
        let found = found.map_err(|error| port_error("list zones", &error))?;
        let zones = found.availability_zones.unwrap_or_default().into_iter();
        let usable = zones.filter(|zone| {
            let is_zone = zone.zone_type().is_none_or(|kind| kind == "availability-zone");
            is_zone && zone.state() == Some(&AvailabilityZoneState::Available)
        });
        let named = usable.filter_map(|zone| Some((zone.zone_name?.into(), zone.zone_id?.into())));
        Ok(named.collect())
    }

    /// Reads the instance types offered in each zone.
    ///
    /// # Errors
    /// Returns an error if any page cannot be read.
    pub async fn offerings(&self) -> Result<ByInstanceType<BTreeSet<ZoneName>>, PortError> {
        let request = self.ec2.describe_instance_type_offerings();
        let request = request.location_type(LocationType::AvailabilityZone);
        let (mut pages, mut offered) = (request.into_paginator().send(), ByInstanceType::new());
        loop {
            self.limiter.acquire(ApiBucket::Describe).await;
            let Some(page) = pages.next().await else { return Ok(offered) };
            let page = page.map_err(|error| port_error("list offerings", &error))?;
            for one in page.instance_type_offerings.unwrap_or_default() {
                let Some((kind, zone)) = one.instance_type.zip(one.location) else { continue };
                let zones: &mut BTreeSet<ZoneName> =
                    offered.entry(kind.as_str().into()).or_default();
                zones.insert(zone.into());
            }
        }
    }

    /// Reads the spot prices of `types` that are valid at `now`. If there are many types, it reads
    /// all prices.
    ///
    /// # Errors
    /// Returns an error if any page cannot be read.
    pub async fn spot_prices(
        &self,
        types: &BTreeSet<InstanceTypeName>,
        now: Timestamp,
    ) -> Result<ByInstanceType<BTreeMap<ZoneName, MicroUsd>>, PortError> {
        let product = Filter::builder().name("product-description").values(PRODUCT);
        let types = types.iter().map(|name| InstanceType::from(name.as_str()));
        // With a start time of now, EC2 returns the price in effect for each type and zone.
        let request = self
            .ec2
            .describe_spot_price_history()
            .set_instance_types(
                Some(types.collect()).filter(|types: &Vec<_>| types.len() < TYPE_FILTER_MAX),
            )
            .filters(product.build())
            .start_time(aws_sdk_ec2::primitives::DateTime::from_secs(now.as_second()));
        let (mut pages, mut found) = (request.into_paginator().send(), Vec::new());
        loop {
            self.limiter.acquire(ApiBucket::Describe).await;
            let Some(page) = pages.next().await else { return Ok(latest_prices(found, now)) };
            let page = page.map_err(|error| port_error("list spot prices", &error))?;
            found.extend(page.spot_price_history.unwrap_or_default());
        }
    }
}

/// Returns the latest price of each type and zone. Unreadable prices are skipped.
fn latest_prices(
    found: Vec<SpotPrice>,
    now: Timestamp,
) -> ByInstanceType<BTreeMap<ZoneName, MicroUsd>> {
    let mut newest: BTreeMap<_, (Timestamp, MicroUsd)> = BTreeMap::new();
    for one in found {
        let set = one.timestamp.and_then(|at| Timestamp::from_second(at.secs()).ok());
        let price = one.spot_price.and_then(|price| parse_price(&price));
        let offering = one.instance_type.zip(one.availability_zone);
        let (Some(set), Some(price), Some((kind, zone))) = (set, price, offering) else { continue };
        if now.duration_since(set) > PRICE_AGE_MAX {
            continue;
        }
        let key = (InstanceTypeName::from(kind.as_str()), ZoneName::from(zone));
        let latest = newest.entry(key).or_insert((set, price));
        if set >= latest.0 {
            *latest = (set, price);
        }
    }
    let mut by_type: ByInstanceType<BTreeMap<ZoneName, MicroUsd>> = ByInstanceType::new();
    for ((kind, zone), (_, price)) in newest {
        by_type.entry(kind).or_default().insert(zone, price);
    }
    by_type
}

/// Parses a price in dollars per hour, such as `0.031200`. A price of zero is an unknown price.
pub(super) fn parse_price(text: &str) -> Option<MicroUsd> {
    MicroUsd::from_price_list(text).filter(|price| *price > MicroUsd::ZERO)
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::primitives::DateTime;

    use super::*;

    #[test]
    fn prices_are_exact_and_round_up() {
        for (text, expected) in [
            ("0.031200", Some(31_200)),
            ("1", Some(1_000_000)),
            ("12.5", Some(12_500_000)),
            ("0.0000001", Some(1)),
            ("0.0312001", Some(31_201)),
            ("0", None),
            ("-1", None),
            ("1e3", None),
            ("", None),
        ] {
            assert_eq!(parse_price(text), expected.map(MicroUsd), "{text}");
        }
    }

    #[test]
    fn latest_price_wins_and_old_prices_are_dropped() {
        let now = Timestamp::from_second(1_800_000_000).expect("a time");
        let price = |at: i64, price: &str, zone: &str| {
            SpotPrice::builder()
                .instance_type(InstanceType::M5Large)
                .availability_zone(zone)
                .timestamp(DateTime::from_secs(now.as_second() - at))
                .spot_price(price)
                .build()
        };
        let day = 86_400;
        let found = latest_prices(
            vec![price(60, "0.04", "a"), price(3600, "0.03", "a"), price(100 * day, "0.01", "b")],
            now,
        );
        let expected = [("a".into(), MicroUsd(40_000))].into();
        assert_eq!(found, [("m5.large".into(), expected)].into());
    }
}
