//! What EC2 offers where, and at what spot price: one pass over pages, whatever the cluster's size.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_ec2::types::{AvailabilityZoneState, Filter, InstanceType, LocationType, SpotPrice};
use jiff::{SignedDuration, Timestamp};

use super::client::Aws;
use super::fault::port_error;
use super::limiter::Api;
use crate::catalog::Places;
use crate::ids::{InstanceTypeName, ZoneId, ZoneName};
use crate::port::PortError;
use crate::units::MicroUsd;

/// Product whose spot prices count; Windows costs the same for capacity.
const PRODUCT: &str = "Linux/UNIX";

/// Oldest spot price that counts: EC2 keeps 90 days of history, and a price that did not change since
/// is told all the same.
const PRICE_MAX: SignedDuration = SignedDuration::from_hours(24 * 90);

/// Most types whose spot prices are asked for by name.
const NAMED_MAX: usize = 100;

impl Aws {
    /// Reads the zones of the account, with their ids.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn zones(&self) -> Result<BTreeMap<ZoneName, ZoneId>, PortError> {
        self.limiter.take(Api::Describe).await;
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

    /// Reads which types are offered in which zones.
    ///
    /// # Errors
    /// When any page cannot be read.
    pub async fn offered(&self) -> Result<Places<BTreeSet<ZoneName>>, PortError> {
        let request = self.ec2.describe_instance_type_offerings();
        let request = request.location_type(LocationType::AvailabilityZone);
        let (mut pages, mut offered) = (request.into_paginator().send(), Places::new());
        loop {
            self.limiter.take(Api::Describe).await;
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

    /// Reads the spot prices of `types` that hold `now`; of all types where they are many.
    ///
    /// # Errors
    /// When any page cannot be read.
    pub async fn spot_prices(
        &self,
        types: &BTreeSet<InstanceTypeName>,
        now: Timestamp,
    ) -> Result<Places<BTreeMap<ZoneName, MicroUsd>>, PortError> {
        let product = Filter::builder().name("product-description").values(PRODUCT);
        let types = types.iter().map(|name| InstanceType::from(name.as_str()));
        // From now on: of each type and zone the price that holds.
        let request = self
            .ec2
            .describe_spot_price_history()
            .set_instance_types(
                Some(types.collect()).filter(|types: &Vec<_>| types.len() < NAMED_MAX),
            )
            .filters(product.build())
            .start_time(aws_sdk_ec2::primitives::DateTime::from_secs(now.as_second()));
        let (mut pages, mut found) = (request.into_paginator().send(), Vec::new());
        loop {
            self.limiter.take(Api::Describe).await;
            let Some(page) = pages.next().await else { return Ok(newest(found, now)) };
            let page = page.map_err(|error| port_error("list spot prices", &error))?;
            found.extend(page.spot_price_history.unwrap_or_default());
        }
    }
}

/// Returns of each type and zone the price that was set last; what cannot be read is no price.
fn newest(found: Vec<SpotPrice>, now: Timestamp) -> Places<BTreeMap<ZoneName, MicroUsd>> {
    let mut newest: BTreeMap<_, (Timestamp, MicroUsd)> = BTreeMap::new();
    for one in found {
        let set = one.timestamp.and_then(|at| Timestamp::from_second(at.secs()).ok());
        let price = one.spot_price.and_then(|price| micro_usd(&price));
        let place = one.instance_type.zip(one.availability_zone);
        let (Some(set), Some(price), Some((kind, zone))) = (set, price, place) else { continue };
        if now.duration_since(set) > PRICE_MAX {
            continue;
        }
        let key = (InstanceTypeName::from(kind.as_str()), ZoneName::from(zone));
        let held = newest.entry(key).or_insert((set, price));
        if set >= held.0 {
            *held = (set, price);
        }
    }
    let mut by_type: Places<BTreeMap<ZoneName, MicroUsd>> = Places::new();
    for ((kind, zone), (_, price)) in newest {
        by_type.entry(kind).or_default().insert(zone, price);
    }
    by_type
}

/// Reads a price such as `0.031200`, in dollars an hour; digits below a millionth are rounded up.
pub(super) fn micro_usd(text: &str) -> Option<MicroUsd> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let (kept, cut) = rest.split_at_checked(6).unwrap_or((rest, ""));
    let is_number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(kept) || !is_number(cut) {
        return None;
    }
    let millionths: i64 = format!("{kept:0<6}").parse().ok()?;
    let up = i64::from(cut.bytes().any(|b| b != b'0'));
    let whole: i64 = whole.parse().ok()?;
    let price = whole.checked_mul(1_000_000)?.checked_add(millionths)?.checked_add(up)?;
    // A price of nothing is a price that is not known.
    (price > 0).then_some(MicroUsd(price))
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::primitives::DateTime;

    use super::*;

    #[test]
    fn a_price_is_read_exactly_and_never_rounded_down() {
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
            assert_eq!(micro_usd(text), expected.map(MicroUsd), "{text}");
        }
    }

    #[test]
    fn the_price_that_was_set_last_counts_and_an_old_one_does_not() {
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
        let found = newest(
            vec![price(60, "0.04", "a"), price(3600, "0.03", "a"), price(100 * day, "0.01", "b")],
            now,
        );
        let expected = [("a".into(), MicroUsd(40_000))].into();
        assert_eq!(found, [("m5.large".into(), expected)].into());
    }
}
