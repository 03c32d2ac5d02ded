//! What EC2 says now, joined with what is embedded: what is live wins.
//!
//! Facts of instance types change seldom and are embedded, with the list prices of one region. Which
//! type is offered in which zone, the ids of zones and spot prices differ by account and by hour, and
//! types are added every month: where they could be read they replace what the snapshot assumes, and
//! the plan says where its prices come from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::described::TypeFacts;
use super::facts::{Interner, instance_type, runs_kubernetes};
use super::load::{warnings, ways_to_buy};
use super::model::{CapacityType, Catalog, InstanceType, Offering, PriceSource, ZoneSetting};
use super::quota::Quotas;
use super::snapshot::{self, Row};
use crate::ids::{InstanceTypeName, ZoneId, ZoneName};
use crate::units::MicroUsd;

/// Most names that a warning lists.
const NAMES_MAX: usize = 5;

/// What EC2 offers in one region, as an account sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Market {
    /// When it was read.
    pub read_at: Timestamp,
    /// Zones of the account that can be used, with their ids.
    pub zones: BTreeMap<ZoneName, ZoneId>,
    /// Zones that offer a type, by type.
    pub offered: Places<BTreeSet<ZoneName>>,
    /// Whether that is an older answer, since no newer one could be had.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offered_is_old: bool,
    /// Spot prices an hour, by type and zone; empty where none were asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spot: Places<BTreeMap<ZoneName, MicroUsd>>,
    /// List prices of the region, where they were asked for.
    #[serde(default)]
    pub listed: Listed,
    /// Types that the snapshot does not know, as EC2 describes them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<InstanceTypeName, TypeFacts>,
    /// What the account may run at once; `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quotas: Option<Quotas>,
    /// What could not be read, why, and what stands in for it: a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
}

/// Something of each type, in some zones.
pub type Places<T> = BTreeMap<InstanceTypeName, T>;

/// On-demand prices of a region, as AWS lists them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Whether the whole list was read, and not the prices of some types alone.
    pub whole: bool,
    /// Prices an hour of Linux, shared tenancy.
    pub hourly: BTreeMap<InstanceTypeName, MicroUsd>,
    /// When it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_at: Option<Timestamp>,
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

/// Returns the types among `offered` of which the snapshot tells too little: EC2 has to describe them.
/// Of what runs no Kubernetes it tells enough.
#[must_use]
pub fn unfamiliar<'n>(
    offered: impl IntoIterator<Item = &'n InstanceTypeName>,
) -> BTreeSet<InstanceTypeName> {
    let text = snapshot::types_text().unwrap_or_default();
    let rows = snapshot::parse_types(&text).unwrap_or_default();
    let known: BTreeSet<&str> = rows.iter().filter(|r| !r.partial).map(|r| r.name).collect();
    offered.into_iter().filter(|name| !known.contains(name.as_str())).cloned().collect()
}

impl Catalog {
    /// Returns the catalogue with what a market offers: offerings that EC2 does not list go, those
    /// that the snapshot lacks come, types that it lacks too where EC2 described them, and spot and
    /// list prices are the market's.
    #[must_use]
    pub fn traded(mut self, market: &Market, settings: &[ZoneSetting]) -> Self {
        let Strangers { described, unknown } = self.admit_strangers(market);
        let was_stand_in = self.prices.stand_in;
        self.reprice(market);
        for kind in self.types.values_mut() {
            trade(kind, market, &self.zones, was_stand_in);
        }
        self.types.retain(|_, kind| !kind.offerings.is_empty());
        self.quotas.clone_from(&market.quotas);
        // What was not offered a while ago may be by now.
        let offered = (!market.offered_is_old).then(|| Arc::new(market.offered.clone()));
        self.offered = offered;
        self.warnings = warnings(&self.region, &self.zones, &self.prices, &self.types);
        self.warnings.extend(market.contradictions(settings));
        self.warnings.extend(strange(
            &described,
            "newer than this version, and counted as EC2 \
            describes them, without branch interfaces",
        ));
        self.warnings.extend(strange(&unknown, "not described by EC2, and never launched"));
        self.warnings.extend(market.unread.iter().cloned());
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
        self
    }

    /// Returns whether EC2 said that it offers a type in a zone no more: it offers others there.
    #[must_use]
    pub fn is_withdrawn(&self, kind: &InstanceTypeName, zone: &ZoneName) -> bool {
        let Some(offered) = &self.offered else { return false };
        let there = offered.get(kind).is_some_and(|zones| zones.contains(zone));
        !there && offered.values().any(|zones| zones.contains(zone))
    }

    /// Adds the types that EC2 offers and that the catalogue lacks: those that the snapshot knows from
    /// other regions, and those that EC2 described.
    fn admit_strangers(&mut self, market: &Market) -> Strangers {
        let lacking = market.offered.keys().filter(|name| !self.types.contains_key(*name));
        let lacking: BTreeSet<InstanceTypeName> = lacking.cloned().collect();
        let mut strangers = Strangers::default();
        if lacking.is_empty() {
            return strangers;
        }
        let text = snapshot::types_text().unwrap_or_default();
        let rows = snapshot::parse_types(&text).unwrap_or_default();
        let rows: BTreeMap<&str, &Row<'_>> =
            rows.iter().filter(|r| !r.partial).map(|r| (r.name, r)).collect();
        let list = snapshot::prices(self.region.as_str()).ok();
        let mut interner = Interner::default();
        for name in lacking {
            let own = market.types.get(&name).and_then(|facts| facts.row(&name));
            let row = match (rows.get(name.as_str()), &own) {
                (Some(row), _) if !runs_kubernetes(row) => continue,
                (Some(row), _) => *row,
                (None, Some(row)) => {
                    strangers.described.push(name.clone());
                    row
                }
                (None, None) => {
                    strangers.unknown.push(name);
                    continue;
                }
            };
            let price = list.as_ref().and_then(|list| list.hourly.get(name.as_str()).copied());
            let zones = self.zones.iter();
            let offerings = zones.flat_map(|zone| ways_to_buy(row, zone, price)).collect();
            let kind = InstanceType { offerings, ..instance_type(row, &mut interner) };
            self.types.insert(name, kind);
        }
        strangers
    }

    /// Says where the prices come from.
    fn reprice(&mut self, market: &Market) {
        let moment = |at: Timestamp| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let listed_at = market.listed.read_at.unwrap_or(market.read_at);
        if market.listed.whole {
            self.prices = PriceSource {
                source: "list prices of AWS".to_owned(),
                region: self.region.clone(),
                date: listed_at.strftime("%Y-%m-%d").to_string(),
                stand_in: false,
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

/// Types that EC2 offers and the snapshot does not know.
#[derive(Default)]
struct Strangers {
    described: Vec<InstanceTypeName>,
    unknown: Vec<InstanceTypeName>,
}

/// Returns a warning about `types`, if there are any.
fn strange(types: &[InstanceTypeName], what: &str) -> Option<String> {
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

fn trade(kind: &mut InstanceType, market: &Market, zones: &[super::Zone], was_stand_in: bool) {
    // A snapshot knows of a type how it is sold; the market only where.
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
            // What another region charges says nothing once the list of this one is known.
            let assumed = way.price.filter(|_| !(market.listed.whole && was_stand_in));
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
            listed: Listed::default(),
            types: BTreeMap::new(),
            quotas: None,
            offered_is_old: false,
            unread: Vec::new(),
        }
    }

    fn catalog(settings: &[ZoneSetting]) -> Catalog {
        traded("us-east-1", &market(), settings)
    }

    fn traded(region: &str, market: &Market, settings: &[ZoneSetting]) -> Catalog {
        let zones = market.zone_settings(settings);
        let catalog = Catalog::load(&region.into(), &zones).expect("known region");
        catalog.traded(market, settings)
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
        let never =
            "1 instance type that EC2 offers is not described by EC2, and never launched: z9.big";
        assert!(catalog.warnings.iter().any(|w| w == never), "{:?}", catalog.warnings);
    }

    #[test]
    fn a_type_newer_than_the_snapshot_is_sold_at_the_prices_that_are_known_and_no_others() {
        let described = Market { types: [("z9.big".into(), big())].into(), ..market() };
        let price = |catalog: &Catalog, how| {
            let offerings = catalog.types["z9.big"].offerings.iter();
            let found: Vec<_> = offerings.filter(|o| o.capacity_type == how).collect();
            assert_eq!(found.len(), 1, "in the zone that offers it");
            found[0].price
        };
        let unpriced = traded("us-east-1", &described, &[]);
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
        let bid = traded("us-east-1", &on_spot, &[]);
        assert_eq!(price(&bid, CapacityType::Spot), Some(MicroUsd(90_000)));
        assert_eq!(price(&bid, CapacityType::OnDemand), None);

        let mut listed = described;
        listed.listed.hourly.insert("z9.big".into(), MicroUsd(300_000));
        let listed = traded("us-east-1", &listed, &[]);
        assert_eq!(price(&listed, CapacityType::OnDemand), Some(MicroUsd(300_000)));
        assert!(listed.prices.source.contains("1 of them of AWS"), "{:?}", listed.prices);
    }

    #[test]
    fn the_list_of_a_region_takes_the_place_of_that_which_stood_in() {
        let zone = ZoneName::from("eu-west-1a");
        let offered = |name: &str| (name.into(), [zone.clone()].into());
        let mut market = Market {
            zones: [(zone.clone(), "euw1-az1".into())].into(),
            offered: [offered("m5.large"), offered("c5.large")].into(),
            ..market()
        };
        let stood_in = traded("eu-west-1", &market, &[]);
        assert!(
            stood_in.prices.stand_in && stood_in.types["c5.large"].offerings[0].price.is_some()
        );
        market.listed.whole = true;
        market.listed.hourly.insert("m5.large".into(), MicroUsd(107_000));
        let own = traded("eu-west-1", &market, &[]);
        assert_eq!(own.types["m5.large"].offerings[0].price, Some(MicroUsd(107_000)));
        assert_eq!(own.types["c5.large"].offerings[0].price, None, "not on the list");
        assert!(!own.prices.stand_in && own.prices.region.as_str() == "eu-west-1");
        assert!(own.warnings.iter().all(|w| !w.contains("stand in")), "{:?}", own.warnings);
    }

    #[test]
    fn what_ec2_alone_knows_is_told_from_what_the_snapshot_knows() {
        let market = market();
        let found = unfamiliar(market.offered.keys());
        assert_eq!(found, ["z9.big".into()].into(), "Macs are known, and run no Kubernetes");
    }

    #[test]
    fn a_world_file_holds_all_of_it() {
        let market = Market { types: [("z9.big".into(), big())].into(), ..market() };
        let text = serde_json::to_string(&market).expect("names are the keys");
        assert_eq!(serde_json::from_str::<Market>(&text).expect("reads"), market);
    }

    #[test]
    fn what_could_not_be_read_is_a_warning_of_every_plan() {
        let why = "spot prices cannot be read now";
        let market = Market { unread: vec![why.to_owned()], ..market() };
        let catalog = traded("us-east-1", &market, &[]);
        assert!(catalog.warnings.iter().any(|w| w == why), "{:?}", catalog.warnings);
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
