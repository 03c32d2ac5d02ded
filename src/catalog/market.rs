//! What EC2 says now, joined with what is embedded: what is live wins.
//!
//! On-demand list prices and the facts of instance types change seldom and are embedded. Which type is
//! offered in which zone, the ids of zones and spot prices differ by account and by hour: where they
//! could be read they replace what the snapshot assumes, and the plan says where its prices come from.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::model::{CapacityType, Catalog, InstanceType, Offering, ZoneSetting};
use crate::ids::{InstanceTypeName, ZoneId, ZoneName};
use crate::units::MicroUsd;

/// Most names that a warning lists.
const NAMES_MAX: usize = 5;

/// What EC2 offers in one region, as an account sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Market {
    /// When it was read.
    pub read_at: Timestamp,
    /// Zones of the account that can be used, with their ids.
    pub zones: BTreeMap<ZoneName, ZoneId>,
    /// Types, and the zones that offer them.
    pub offered: BTreeSet<(InstanceTypeName, ZoneName)>,
    /// Spot prices an hour, by type and zone; empty where none were asked for.
    pub spot: BTreeMap<(InstanceTypeName, ZoneName), MicroUsd>,
}

impl Market {
    /// Returns the zones that `settings` mean, with their ids; all of the account where none is named.
    ///
    /// An id that is stated and wrong is replaced, see [`Catalog::traded`].
    #[must_use]
    pub fn zone_settings(&self, settings: &[ZoneSetting]) -> Vec<ZoneSetting> {
        let setting = |(name, id): (&ZoneName, &ZoneId)| ZoneSetting {
            name: name.clone(),
            id: Some(id.clone()),
        };
        if settings.is_empty() {
            return self.zones.iter().map(setting).collect();
        }
        let known = |zone: &ZoneSetting| {
            let id = self.zones.get(&zone.name).cloned().or_else(|| zone.id.clone());
            ZoneSetting { name: zone.name.clone(), id }
        };
        settings.iter().map(known).collect()
    }

    /// Returns what a reader of a plan should know of `settings`: ids that are others in the account.
    fn contradictions(&self, settings: &[ZoneSetting]) -> Vec<String> {
        let wrong = settings.iter().filter_map(|zone| {
            let (stated, real) = (zone.id.as_ref()?, self.zones.get(&zone.name)?);
            let name = &zone.name;
            (stated != real).then(|| {
                format!(
                    "spec.cluster.zones says that {name} is {stated}; EC2 says {real}, which counts"
                )
            })
        });
        wrong.collect()
    }
}

impl Catalog {
    /// Returns the catalogue with what a market offers: offerings that EC2 does not list go, those
    /// that the snapshot lacks come at the type's on-demand price, and spot prices are the market's.
    #[must_use]
    pub fn traded(mut self, market: &Market, settings: &[ZoneSetting]) -> Self {
        let unknown: BTreeSet<&InstanceTypeName> =
            market.offered.iter().map(|(kind, _)| kind).collect();
        let unknown = unknown.into_iter().filter(|name| !self.types.contains_key(*name)).count();
        let zones: Vec<(ZoneName, ZoneId)> =
            self.zones.iter().map(|zone| (zone.name.clone(), zone.id.clone())).collect();
        for kind in self.types.values_mut() {
            trade(kind, market, &zones);
        }
        self.types.retain(|_, kind| !kind.offerings.is_empty());
        self.warnings.extend(market.contradictions(settings));
        if unknown > 0 {
            self.warnings.push(format!(
                "EC2 offers {unknown} instance types that this version does not know, or that run \
                 no Kubernetes; they are never launched"
            ));
        }
        let gone: Vec<&str> = self
            .zones
            .iter()
            .filter(|zone| !market.zones.contains_key(&zone.name))
            .map(|zone| zone.name.as_str())
            .take(NAMES_MAX)
            .collect();
        if !gone.is_empty() {
            self.warnings.push(format!("the account has no zone {}", gone.join(", ")));
        }
        if !market.spot.is_empty() {
            let at = market.read_at.strftime("%Y-%m-%dT%H:%M:%SZ");
            self.prices.source = format!("{}, spot prices of EC2 ({at})", self.prices.source);
        }
        self
    }
}

fn trade(kind: &mut InstanceType, market: &Market, zones: &[(ZoneName, ZoneId)]) {
    let is_offered = |zone: &ZoneName| market.offered.contains(&(kind.name.clone(), zone.clone()));
    // A snapshot knows of a type how it is sold; the market only where.
    let sold = |capacity_type| kind.offerings.iter().find(|o| o.capacity_type == capacity_type);
    let ways: Vec<Offering> = [CapacityType::OnDemand, CapacityType::Spot]
        .into_iter()
        .filter_map(|capacity_type| sold(capacity_type).cloned())
        .collect();
    let mut offerings = Vec::new();
    for (zone, zone_id) in zones.iter().filter(|(zone, _)| is_offered(zone)) {
        for way in &ways {
            let place = (kind.name.clone(), zone.clone());
            let spot = market.spot.get(&place).filter(|_| way.capacity_type == CapacityType::Spot);
            offerings.push(Offering {
                zone: zone.clone(),
                zone_id: zone_id.clone(),
                capacity_type: way.capacity_type,
                price: spot.copied().or(way.price),
                estimated: way.estimated && spot.is_none(),
            });
        }
    }
    kind.offerings = offerings;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn market() -> Market {
        let pair = |kind: &str, zone: &str| (kind.into(), zone.into());
        Market {
            read_at: Timestamp::UNIX_EPOCH,
            zones: [
                ("us-east-1a".into(), "use1-az1".into()),
                ("us-east-1b".into(), "use1-az4".into()),
            ]
            .into(),
            offered: [
                pair("m5.large", "us-east-1a"),
                pair("m5.large", "us-east-1b"),
                pair("z9.big", "us-east-1a"),
            ]
            .into(),
            spot: [(pair("m5.large", "us-east-1b"), MicroUsd(31_200))].into(),
        }
    }

    fn catalog(settings: &[ZoneSetting]) -> Catalog {
        let market = market();
        let zones = market.zone_settings(settings);
        let catalog = Catalog::load(&"us-east-1".into(), &zones).expect("known region");
        catalog.traded(&market, settings)
    }

    #[test]
    fn what_is_live_wins_and_says_so() {
        let catalog = catalog(&[]);
        let types: Vec<&str> = catalog.types.keys().map(InstanceTypeName::as_str).collect();
        assert_eq!(types, ["m5.large"], "EC2 lists nothing else that is known");
        let spot = |zone: &str| {
            let offerings = catalog.types["m5.large"].offerings.iter();
            let mut spot = offerings.filter(|o| o.capacity_type == CapacityType::Spot);
            let found = spot.find(|o| o.zone.as_str() == zone).expect("offered");
            (found.price, found.estimated)
        };
        assert_eq!(spot("us-east-1b"), (Some(MicroUsd(31_200)), false));
        assert!(spot("us-east-1a").1, "no spot price is known there");
        assert!(catalog.prices.source.contains("spot prices of EC2 (1970-01-01T00:00:00Z)"));
        assert!(catalog.zones.iter().all(|zone| !zone.assumed));
        assert!(catalog.warnings.iter().any(|w| w.contains("1 instance types that this version")));
    }

    #[test]
    fn a_zone_id_that_is_stated_wrong_gives_way_and_is_named() {
        let stated = |name: &str, id: &str| ZoneSetting { name: name.into(), id: Some(id.into()) };
        let catalog = catalog(&[stated("us-east-1a", "use1-az6")]);
        assert_eq!(catalog.zones[0].id.as_str(), "use1-az1");
        let warned = |w: &String| w.contains("us-east-1a is use1-az6; EC2 says use1-az1");
        assert!(catalog.warnings.iter().any(warned), "{:?}", catalog.warnings);
    }
}
