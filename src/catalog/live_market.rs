//! Merges live EC2 data into the embedded catalog. Live data wins.
//!
//! Facts of instance types seldom change and are embedded, with the list prices of one region.
//! Offerings by zone, zone ids and spot prices differ by account and by hour, and types are added
//! every month. Live values replace the snapshot's assumptions where they could be read, and the
//! plan states the source of its prices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::instance_type::{InstanceType, Interner, Offering, instance_type, runs_kubernetes};
use super::loader::{offerings_in_zone, warnings};
use super::snapshot::{self, InstanceTypeRow};
use super::types::{Catalog, PriceSource};
use crate::model::ids::{InstanceTypeName, ZoneName};
use crate::model::market::{CapacityType, Market, ZoneSetting};

/// Maximum number of names that a warning lists.
const NAMES_MAX: usize = 5;

/// Returns a warning for each configured zone id that differs from the account's.
fn zone_id_mismatches(market: &Market, settings: &[ZoneSetting]) -> Vec<String> {
    let wrong = settings.iter().filter_map(|zone| {
        let (stated, real) = (zone.id.as_ref()?, market.zones.get(&zone.name)?);
        let name = &zone.name;
        (stated != real).then(|| {
            format!(
                "spec.cluster.zones states that {name} is {stated}; EC2 reports {real}, which is used"
            )
        })
    });
    wrong.collect()
}

/// Returns the `offered` types that the snapshot does not fully describe, so that EC2 has to. Types
/// that run no Kubernetes count as described.
pub fn types_missing_from_snapshot<'n>(
    offered: impl IntoIterator<Item = &'n InstanceTypeName>,
) -> BTreeSet<InstanceTypeName> {
    let text = snapshot::types_text().unwrap_or_default();
    let rows = snapshot::parse_types(&text).unwrap_or_default();
    let known: BTreeSet<&str> = rows.iter().filter(|r| !r.partial).map(|r| r.name).collect();
    offered.into_iter().filter(|name| !known.contains(name.as_str())).cloned().collect()
}

impl Catalog {
    /// Returns the catalog with the offerings and prices of a live market.
    ///
    /// Offerings that EC2 does not list are removed, and missing ones are added. Types that the
    /// snapshot lacks are added if EC2 describes them. Spot and list prices are the market's.
    #[must_use]
    pub fn with_market(mut self, market: &Market, settings: &[ZoneSetting]) -> Self {
        let UnknownTypes { described, unknown } = self.add_unknown_types(market);
        let had_other_region = self.prices.is_other_region;
        self.update_price_source(market);
        for kind in self.types.values_mut() {
            apply_market(kind, market, &self.zones, had_other_region);
        }
        self.types.retain(|_, kind| !kind.offerings.is_empty());
        self.quotas.clone_from(&market.quotas);
        // An old list may lack offerings that were added since.
        let offered = (!market.offered_is_old).then(|| Arc::new(market.offered.clone()));
        self.offered = offered;
        self.warnings = warnings(&self.region, &self.zones, &self.prices, &self.types);
        self.warnings.extend(zone_id_mismatches(market, settings));
        self.warnings.extend(unknown_types_warning(
            &described,
            "newer than this version, and counted as EC2 \
            describes them, without branch interfaces",
        ));
        self.warnings
            .extend(unknown_types_warning(&unknown, "not described by EC2, and never launched"));
        self.warnings.extend(market.unread.iter().cloned());
        let missing: Vec<&str> = self
            .zones
            .iter()
            .filter(|zone| !market.zones.contains_key(&zone.name))
            .map(|zone| zone.name.as_str())
            .take(NAMES_MAX)
            .collect();
        if !missing.is_empty() {
            self.warnings.push(format!("the account has no zone {}", missing.join(", ")));
        }
        self
    }

    /// Returns whether EC2 offers other types in `zone`, but not this one.
    pub fn is_withdrawn(&self, kind: &InstanceTypeName, zone: &ZoneName) -> bool {
        let Some(offered) = &self.offered else { return false };
        let there = offered.get(kind).is_some_and(|zones| zones.contains(zone));
        !there && offered.values().any(|zones| zones.contains(zone))
    }

    /// Adds the types that EC2 offers and the catalog lacks: those that the snapshot knows from
    /// other regions, and those that EC2 describes.
    fn add_unknown_types(&mut self, market: &Market) -> UnknownTypes {
        let lacking = market.offered.keys().filter(|name| !self.types.contains_key(*name));
        let lacking: BTreeSet<InstanceTypeName> = lacking.cloned().collect();
        let mut unknown = UnknownTypes::default();
        if lacking.is_empty() {
            return unknown;
        }
        let text = snapshot::types_text().unwrap_or_default();
        let rows = snapshot::parse_types(&text).unwrap_or_default();
        let rows: BTreeMap<&str, &InstanceTypeRow<'_>> =
            rows.iter().filter(|r| !r.partial).map(|r| (r.name, r)).collect();
        let mut interner = Interner::default();
        for name in lacking {
            let own = market.types.get(&name).and_then(|facts| facts.to_row(&name));
            let row = match (rows.get(name.as_str()), &own) {
                (Some(row), _) if !runs_kubernetes(row) => continue,
                (Some(row), _) => *row,
                (None, Some(row)) => {
                    unknown.described.push(name.clone());
                    row
                }
                (None, None) => {
                    unknown.unknown.push(name);
                    continue;
                }
            };
            let price = self.listed.get(&name).copied();
            let zones = self.zones.iter();
            let offerings = zones.flat_map(|zone| offerings_in_zone(row, zone, price)).collect();
            let kind = InstanceType { offerings, ..instance_type(row, &mut interner) };
            self.types.insert(name, kind);
        }
        unknown
    }

    /// Updates the description of the price source.
    fn update_price_source(&mut self, market: &Market) {
        let moment = |at: Timestamp| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let listed_at = market.listed.read_at.unwrap_or(market.read_at);
        if market.listed.whole {
            self.prices = PriceSource {
                source: "list prices of AWS".to_owned(),
                region: self.region.clone(),
                date: listed_at.strftime("%Y-%m-%d").to_string(),
                is_other_region: false,
            };
        } else if !market.listed.hourly.is_empty() {
            let (types, at) = (market.listed.hourly.len(), moment(listed_at));
            self.prices.source = format!("{}, {types} of them of AWS ({at})", self.prices.source);
        }
        if !market.spot.is_empty() {
            let at = moment(market.read_at);
            self.prices.source = format!("{}, spot prices of EC2 ({at})", self.prices.source);
        }
    }
}

/// Types that EC2 offers and the snapshot does not contain.
#[derive(Default)]
struct UnknownTypes {
    described: Vec<InstanceTypeName>,
    unknown: Vec<InstanceTypeName>,
}

fn unknown_types_warning(types: &[InstanceTypeName], what: &str) -> Option<String> {
    let listed: Vec<&str> = types.iter().take(NAMES_MAX).map(InstanceTypeName::as_str).collect();
    let more = match types.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let listed = listed.join(", ");
    match types.len() {
        0 => None,
        1 => Some(format!("1 instance type that EC2 offers is {what}: {listed}")),
        n => Some(format!("{n} instance types that EC2 offers are {what}: {listed}{more}")),
    }
}

fn apply_market(
    kind: &mut InstanceType,
    market: &Market,
    zones: &[super::Zone],
    had_other_region: bool,
) {
    // The snapshot knows the capacity types of an instance type; the market knows its zones.
    let sold = |capacity_type| kind.offerings.iter().find(|o| o.capacity_type == capacity_type);
    let ways: Vec<Offering> = [CapacityType::OnDemand, CapacityType::Spot]
        .into_iter()
        .filter_map(|capacity_type| sold(capacity_type).cloned())
        .collect();
    let none = BTreeSet::new();
    let offered = market.offered.get(&kind.name).unwrap_or(&none);
    let spot = market.spot.get(&kind.name);
    let listed = market.listed.hourly.get(&kind.name).copied();
    let mut offerings = Vec::new();
    for zone in zones.iter().filter(|zone| offered.contains(&zone.name)) {
        for way in &ways {
            let spot = spot.and_then(|prices| prices.get(&zone.name));
            let spot = spot.filter(|_| way.capacity_type == CapacityType::Spot);
            // Another region's price is no estimate once this region's list is known.
            let assumed = way.price.filter(|_| !(market.listed.whole && had_other_region));
            offerings.push(Offering {
                zone: zone.name.clone(),
                zone_id: zone.id.clone(),
                capacity_type: way.capacity_type,
                price: spot.copied().or(listed).or(assumed),
                estimated: way.estimated && spot.is_none(),
            });
        }
    }
    kind.offerings = offerings;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::RegionPrices;
    use crate::model::market::ListPrices;
    use crate::model::market::TypeFacts;
    use crate::model::units::MicroUsd;

    fn market() -> Market {
        Market {
            read_at: Timestamp::UNIX_EPOCH,
            zones: [
                ("us-east-1a".into(), "use1-az1".into()),
                ("us-east-1b".into(), "use1-az4".into()),
            ]
            .into(),
            offered: [
                ("m5.large".into(), ["us-east-1a".into(), "us-east-1b".into()].into()),
                ("z9.big".into(), ["us-east-1a".into()].into()),
                ("mac2.metal".into(), ["us-east-1a".into()].into()),
            ]
            .into(),
            spot: [("m5.large".into(), [("us-east-1b".into(), MicroUsd(31_200))].into())].into(),
            listed: ListPrices::default(),
            types: BTreeMap::new(),
            quotas: None,
            offered_is_old: false,
            unread: Vec::new(),
        }
    }

    fn catalog(settings: &[ZoneSetting]) -> Catalog {
        with_market("us-east-1", &market(), settings)
    }

    fn with_market(region: &str, market: &Market, settings: &[ZoneSetting]) -> Catalog {
        let zones = market.resolve_zones(settings);
        let catalog = Catalog::load(&region.into(), &zones).expect("known region");
        catalog.with_market(market, settings)
    }

    fn big() -> TypeFacts {
        TypeFacts {
            architectures: vec!["arm64".to_owned()],
            vcpus: 8,
            memory_mib: 32_768,
            hypervisor: "nitro".to_owned(),
            usage: vec!["on-demand".to_owned(), "spot".to_owned()],
            enis: 4,
            ips_per_eni: 15,
            ..TypeFacts::default()
        }
    }

    #[test]
    fn live_data_wins_and_names_its_source() {
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
        let never =
            "1 instance type that EC2 offers is not described by EC2, and never launched: z9.big";
        assert!(catalog.warnings.iter().any(|w| w == never), "{:?}", catalog.warnings);
    }

    #[test]
    fn a_type_newer_than_the_snapshot_has_only_known_prices() {
        let described = Market { types: [("z9.big".into(), big())].into(), ..market() };
        let price = |catalog: &Catalog, how| {
            let offerings = catalog.types["z9.big"].offerings.iter();
            let found: Vec<_> = offerings.filter(|o| o.capacity_type == how).collect();
            assert_eq!(found.len(), 1, "in the zone that offers it");
            found[0].price
        };
        let unpriced = with_market("us-east-1", &described, &[]);
        let kind = &unpriced.types["z9.big"];
        assert_eq!((kind.vcpus, kind.arch.as_str()), (8, "arm64"));
        assert_eq!(kind.labels["karpenter.k8s.aws/instance-generation"].as_str(), "9");
        for how in [CapacityType::OnDemand, CapacityType::Spot] {
            assert_eq!(price(&unpriced, how), None, "{how} is never launched");
        }
        let warned = |w: &String| w.contains("no known price and are never launched: z9.big");
        assert!(unpriced.warnings.iter().any(warned), "{:?}", unpriced.warnings);

        let mut on_spot = described.clone();
        let spot = [("us-east-1a".into(), MicroUsd(90_000))];
        on_spot.spot.insert("z9.big".into(), spot.into());
        let bid = with_market("us-east-1", &on_spot, &[]);
        assert_eq!(price(&bid, CapacityType::Spot), Some(MicroUsd(90_000)));
        assert_eq!(price(&bid, CapacityType::OnDemand), None);

        let mut listed = described;
        listed.listed.hourly.insert("z9.big".into(), MicroUsd(300_000));
        let listed = with_market("us-east-1", &listed, &[]);
        assert_eq!(price(&listed, CapacityType::OnDemand), Some(MicroUsd(300_000)));
        assert!(listed.prices.source.contains("1 of them of AWS"), "{:?}", listed.prices);
    }

    #[test]
    fn a_regions_own_price_list_replaces_another() {
        let zone = ZoneName::from("eu-west-1a");
        let offered = |name: &str| (name.into(), [zone.clone()].into());
        let mut market = Market {
            zones: [(zone.clone(), "euw1-az1".into())].into(),
            offered: [offered("m5.large"), offered("c5.large")].into(),
            ..market()
        };
        let of_other_region = with_market("eu-west-1", &market, &[]);
        assert!(
            of_other_region.prices.is_other_region
                && of_other_region.types["c5.large"].offerings[0].price.is_some()
        );
        market.listed.whole = true;
        market.listed.hourly.insert("m5.large".into(), MicroUsd(107_000));
        let own = with_market("eu-west-1", &market, &[]);
        assert_eq!(own.types["m5.large"].offerings[0].price, Some(MicroUsd(107_000)));
        assert_eq!(own.types["c5.large"].offerings[0].price, None, "not on the list");
        assert!(!own.prices.is_other_region && own.prices.region.as_str() == "eu-west-1");
        assert!(own.warnings.iter().all(|w| !w.contains("are used instead")), "{:?}", own.warnings);
    }

    #[test]
    fn prices_are_of_the_account_else_the_repository_else_embedded() {
        let hourly = |prices: &[(&str, i64)]| {
            let price = |(name, micros): &(&str, i64)| ((*name).into(), MicroUsd(*micros));
            prices.iter().map(price).collect()
        };
        let own = RegionPrices {
            format_version: 1,
            region: "eu-west-1".into(),
            version: "1".to_owned(),
            published: Timestamp::UNIX_EPOCH,
            currency: "USD".to_owned(),
            hourly: hourly(&[("m5.large", 111_000), ("c5.large", 95_000), ("z9.big", 900_000)]),
        };
        let price = |catalog: &Catalog, name: &str| catalog.types[name].offerings[0].price;
        let catalog = Catalog::load_with_prices(&"eu-west-1".into(), &[], Some(&own));
        let catalog = catalog.expect("known region");
        assert_eq!(price(&catalog, "m5.large"), Some(MicroUsd(111_000)));
        assert_eq!(price(&catalog, "r5.large"), None, "no price of another region stands in");
        let PriceSource { source, region, date, is_other_region } = &catalog.prices;
        assert_eq!((source.as_str(), region.as_str()), ("fleetwright.prices.json", "eu-west-1"));
        assert_eq!((date.as_str(), *is_other_region), ("1970-01-01", false));
        assert!(catalog.warnings.iter().all(|w| !w.contains("are used instead")));

        let zone = ZoneName::from("eu-west-1a");
        let offered = |name: &str| (InstanceTypeName::from(name), [zone.clone()].into());
        let mut market = Market {
            zones: [(zone.clone(), "euw1-az1".into())].into(),
            offered: ["m5.large", "c5.large", "z9.big"].map(offered).into(),
            types: [("z9.big".into(), big())].into(),
            ..market()
        };
        market.listed.hourly = hourly(&[("m5.large", 107_000)]);
        let live = catalog.with_market(&market, &[]);
        assert_eq!(price(&live, "m5.large"), Some(MicroUsd(107_000)), "the account's");
        assert_eq!(price(&live, "c5.large"), Some(MicroUsd(95_000)), "the repository's");
        assert_eq!(price(&live, "z9.big"), Some(MicroUsd(900_000)), "newer than the snapshot");

        let elsewhere = Catalog::load_with_prices(&"us-east-1".into(), &[], Some(&own));
        let embedded = Catalog::load(&"us-east-1".into(), &[]).expect("known region");
        let elsewhere = elsewhere.expect("known region");
        assert_eq!(price(&elsewhere, "m5.large"), price(&embedded, "m5.large"));
        assert_eq!(elsewhere.prices, embedded.prices);
    }

    #[test]
    fn types_missing_from_the_snapshot_are_found() {
        let market = market();
        let found = types_missing_from_snapshot(market.offered.keys());
        assert_eq!(found, ["z9.big".into()].into(), "Macs are known, and run no Kubernetes");
    }

    #[test]
    fn a_market_survives_a_world_file() {
        let market = Market { types: [("z9.big".into(), big())].into(), ..market() };
        let text = serde_json::to_string(&market).expect("names are the keys");
        assert_eq!(serde_json::from_str::<Market>(&text).expect("reads"), market);
    }

    #[test]
    fn unread_market_data_is_a_warning_of_every_plan() {
        let why = "spot prices cannot be read now";
        let market = Market { unread: vec![why.to_owned()], ..market() };
        let catalog = with_market("us-east-1", &market, &[]);
        assert!(catalog.warnings.iter().any(|w| w == why), "{:?}", catalog.warnings);
    }

    #[test]
    fn a_wrong_zone_id_is_replaced_with_a_warning() {
        let stated = |name: &str, id: &str| ZoneSetting { name: name.into(), id: Some(id.into()) };
        let catalog = catalog(&[stated("us-east-1a", "use1-az6")]);
        assert_eq!(catalog.zones[0].id.as_str(), "use1-az1");
        let warned = |w: &String| w.contains("us-east-1a is use1-az6; EC2 reports use1-az1");
        assert!(catalog.warnings.iter().any(warned), "{:?}", catalog.warnings);
    }
}
