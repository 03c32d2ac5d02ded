//! Loads the catalog of one region from the snapshot: zones, offerings, prices and warnings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::instance_type::{InstanceType, Interner, Offering, instance_type, runs_kubernetes};
use super::measured_nodes::MeasuredNodes;
use super::snapshot::{self, InstanceTypeRow, RegionRow};
use super::types::{Catalog, CatalogError, PriceSource, Zone};
use crate::model::code::Code;
use crate::model::desired::{PRICE_FILE, RegionPrices};
use crate::model::ids::{InstanceTypeName, Region, ZoneId, ZoneName};
use crate::model::market::{ByInstanceType, CapacityType, ZoneSetting};
use crate::model::similar_name::nearest;
use crate::model::units::MicroUsd;

/// Maximum number of names that an error or a warning lists before it counts the rest.
const NAMES_MAX: usize = 5;

impl Catalog {
    /// Returns the catalog of `region` in `zones`, or in all its zones if `zones` is empty.
    ///
    /// A declared zone id wins. Without one, the id is that of the snapshot's account, which may be
    /// another zone in the user's account. It is marked as assumed, with a warning. A region
    /// without a price list of its own uses that of us-east-1, with a warning. See ADR 0002.
    ///
    /// # Errors
    ///
    /// Fails if the snapshot has no such region or zone, or if zones contradict each other. All
    /// problems are returned at once.
    pub fn load(region: &Region, zones: &[ZoneSetting]) -> Result<Self, CatalogError> {
        Self::load_with_prices(region, zones, None)
    }

    /// Returns the catalog with the prices of a repository instead of embedded ones. A type that
    /// they lack has no price. Prices of another region are ignored.
    ///
    /// # Errors
    ///
    /// As [`Catalog::load`].
    pub fn load_with_prices(
        region: &Region,
        zones: &[ZoneSetting],
        own: Option<&RegionPrices>,
    ) -> Result<Self, CatalogError> {
        let text = snapshot::region_text(region.as_str()).map_err(CatalogError::Snapshot)?;
        let text = text.ok_or_else(|| unknown_region(region))?;
        let offered = snapshot::parse_region(&text).map_err(CatalogError::Snapshot)?;
        let known = KnownZones::new(region, &offered);
        let zones = known.resolve(zones)?;
        let (prices, listed) = list_prices(region, own)?;

        let rows = snapshot::types_text().map_err(CatalogError::Snapshot)?;
        let rows = snapshot::parse_types(&rows).map_err(CatalogError::Snapshot)?;
        let types = types(&rows, &offered, &zones, &listed);
        let warnings = warnings(region, &zones, &prices, &types);
        let measured = MeasuredNodes::default();
        Ok(Self {
            region: region.clone(),
            zones,
            types,
            prices,
            listed: Arc::new(listed),
            warnings,
            measured,
            quotas: None,
            offered: None,
        })
    }
}

/// Returns the list prices of a repository if they are of `region`, else embedded ones.
fn list_prices(
    region: &Region,
    own: Option<&RegionPrices>,
) -> Result<(PriceSource, ByInstanceType<MicroUsd>), CatalogError> {
    if let Some(own) = own.filter(|own| own.region == *region) {
        let source = PriceSource {
            source: PRICE_FILE.to_owned(),
            region: region.clone(),
            date: own.published.strftime("%Y-%m-%d").to_string(),
            is_other_region: false,
        };
        return Ok((source, own.hourly.clone()));
    }
    let list = snapshot::prices(region.as_str()).map_err(CatalogError::Snapshot)?;
    let source = PriceSource {
        source: "embedded list prices".to_owned(),
        region: list.region.into(),
        date: list.date.to_owned(),
        is_other_region: list.region != region.as_str(),
    };
    Ok((source, list.hourly))
}

/// Returns all zones of `region` that the snapshot knows.
pub(super) fn zones_of_region(region: &Region) -> BTreeSet<ZoneName> {
    let Ok(Some(text)) = snapshot::region_text(region.as_str()) else { return BTreeSet::new() };
    let Ok(offered) = snapshot::parse_region(&text) else { return BTreeSet::new() };
    KnownZones::new(region, &offered).ids.into_keys().collect()
}

fn unknown_region(region: &Region) -> CatalogError {
    let similar = nearest(region.as_str(), snapshot::regions());
    CatalogError::UnknownRegion {
        region: region.clone(),
        similar: similar.into_iter().map(Region::from).collect(),
    }
}

/// The zones of a region, as the snapshot names them.
struct KnownZones<'a> {
    region: &'a Region,
    ids: BTreeMap<ZoneName, ZoneId>,
}

impl<'a> KnownZones<'a> {
    fn new(region: &'a Region, offered: &RegionRow<'_>) -> Self {
        let named = |name: &ZoneName| offered.zones.values().flatten().any(|n| *n == name.as_str());
        // The snapshot lacks the names of some zones. Zones of one kind offer the same types
        // (snapshot/README.md), so such a zone takes any free name of the region.
        let mut free = ('a'..='z').map(|c| ZoneName::from(format!("{region}{c}")));
        let mut ids = BTreeMap::new();
        for (digit, name) in &offered.zones {
            let name = name.map(ZoneName::from).or_else(|| free.find(|name| !named(name)));
            let id = ZoneId::from(format!("{}{digit}", offered.prefix));
            ids.extend(name.map(|name| (name, id)));
        }
        Self { region, ids }
    }

    /// Returns the zones of `settings`, by name.
    fn resolve(&self, settings: &[ZoneSetting]) -> Result<Vec<Zone>, CatalogError> {
        if settings.is_empty() {
            let zone = |(name, id): (&ZoneName, &ZoneId)| zone(name, id, true);
            return Ok(self.ids.iter().map(zone).collect());
        }
        let (mut zones, mut problems) = (Vec::new(), Vec::new());
        for setting in without_repeats(settings) {
            match self.resolve_one(setting) {
                Ok(zone) => zones.push(zone),
                Err(problem) => problems.push(problem),
            }
        }
        problems.extend(zone_conflicts(&zones));
        match problems.len() {
            0 => Ok(zones),
            1 => Err(problems.remove(0)),
            _ => Err(CatalogError::Several(problems)),
        }
    }

    fn resolve_one(&self, setting: &ZoneSetting) -> Result<Zone, CatalogError> {
        let name = &setting.name;
        match (&setting.id, self.ids.get(name)) {
            (None, Some(id)) => Ok(zone(name, id, true)),
            // An account may have a zone name that the snapshot's account lacks, such as an older
            // account's ap-northeast-1b. A declared id identifies it.
            (Some(id), known) if known.is_some() || self.may_name_a_zone(name) => {
                self.check_id(name, id).map(|()| zone(name, id, false))
            }
            (_, _) => Err(CatalogError::UnknownZone {
                zone: name.clone(),
                region: self.region.clone(),
                known: self.ids.keys().cloned().collect(),
            }),
        }
    }

    fn check_id(&self, name: &ZoneName, id: &ZoneId) -> Result<(), CatalogError> {
        let mut known: Vec<ZoneId> = self.ids.values().cloned().collect();
        if known.contains(id) {
            return Ok(());
        }
        known.sort();
        let (zone, id, region) = (name.clone(), id.clone(), self.region.clone());
        Err(CatalogError::UnknownZoneId { zone, id, region, known })
    }

    fn may_name_a_zone(&self, name: &ZoneName) -> bool {
        let letter = name.as_str().strip_prefix(self.region.as_str()).unwrap_or_default();
        letter.len() == 1 && letter.bytes().all(|b| b.is_ascii_lowercase())
    }
}

fn zone(name: &ZoneName, id: &ZoneId, assumed: bool) -> Zone {
    Zone { name: name.clone(), id: id.clone(), assumed }
}

/// Returns the settings by name, without those that another setting of the same name makes
/// redundant.
fn without_repeats(settings: &[ZoneSetting]) -> impl Iterator<Item = &ZoneSetting> {
    let all: BTreeSet<&ZoneSetting> = settings.iter().collect();
    let stated: BTreeSet<&ZoneName> =
        all.iter().filter(|setting| setting.id.is_some()).map(|setting| &setting.name).collect();
    all.into_iter().filter(move |setting| setting.id.is_some() || !stated.contains(&setting.name))
}

/// Returns an error for each two zones with the same name or the same id. `zones` are sorted by
/// name.
fn zone_conflicts(zones: &[Zone]) -> Vec<CatalogError> {
    let mut problems = Vec::new();
    let mut first: BTreeMap<&ZoneId, &ZoneName> = BTreeMap::new();
    let mut before: Option<&Zone> = None;
    for zone in zones {
        if let Some(earlier) = before.filter(|earlier| earlier.name == zone.name) {
            problems.push(CatalogError::ZoneTwice {
                zone: zone.name.clone(),
                first: earlier.id.clone(),
                second: zone.id.clone(),
            });
        }
        if let Some(earlier) = first.insert(&zone.id, &zone.name) {
            let (first, second) = (earlier.clone(), zone.name.clone());
            problems.push(CatalogError::SharedZoneId { first, second, id: zone.id.clone() });
        }
        before = Some(zone);
    }
    problems
}

/// Returns the types that at least one of `zones` offers, with their offerings.
fn types(
    rows: &[InstanceTypeRow<'_>],
    offered: &RegionRow<'_>,
    zones: &[Zone],
    listed: &ByInstanceType<MicroUsd>,
) -> BTreeMap<InstanceTypeName, InstanceType> {
    let mut interner = Interner::default();
    let mut types = Vec::with_capacity(rows.len());
    for row in rows.iter().filter(|row| !row.partial && runs_kubernetes(row)) {
        let Some(digits) = offered.types.get(row.name) else { continue };
        let has = |zone: &&Zone| {
            zone.id.as_str().strip_prefix(offered.prefix).is_some_and(|id| digits.contains(id))
        };
        let price = listed.get(row.name).copied();
        let offerings: Vec<Offering> =
            zones.iter().filter(has).flat_map(|zone| offerings_in_zone(row, zone, price)).collect();
        if !offerings.is_empty() {
            let kind = InstanceType { offerings, ..instance_type(row, &mut interner) };
            types.push((kind.name.clone(), kind));
        }
    }
    types.into_iter().collect()
}

/// Returns the offerings of a type in a zone, at the given on-demand price.
pub(super) fn offerings_in_zone(
    row: &InstanceTypeRow<'_>,
    zone: &Zone,
    price: Option<MicroUsd>,
) -> Vec<Offering> {
    let sold = |(usage, ..): &(&str, CapacityType, bool)| row.usage.contains(usage);
    // No spot price list is embedded. By default, spot never costs more than on-demand.
    [("on-demand", CapacityType::OnDemand, false), ("spot", CapacityType::Spot, true)]
        .into_iter()
        .filter(sold)
        .map(|(_, capacity_type, estimated)| Offering {
            zone: zone.name.clone(),
            zone_id: zone.id.clone(),
            capacity_type,
            price,
            estimated,
        })
        .collect()
}

/// Beginning of the warning about assumed zone ids, which plans without zones in the settings have.
pub const ZONES_ASSUMED: &str = "zone ids are assumed";

/// Part of the warning about instance types without a price.
pub const TYPES_UNPRICED: &str = "have no known price and are never launched";

/// Part of the warning about prices of another region.
const OTHER_REGION_PRICES: &str = "are used instead";

/// Returns the code of a warning about the catalog.
pub fn warning_code(warning: &str) -> Option<Code> {
    if warning.contains(TYPES_UNPRICED) {
        Some(Code::PriceMissing)
    } else if warning.contains(OTHER_REGION_PRICES) {
        Some(Code::PriceEstimated)
    } else {
        warning.starts_with(ZONES_ASSUMED).then_some(Code::ZonesAssumed)
    }
}

/// Returns warnings about the catalog for the reader of a plan.
pub(super) fn warnings(
    region: &Region,
    zones: &[Zone],
    prices: &PriceSource,
    types: &BTreeMap<InstanceTypeName, InstanceType>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if prices.is_other_region {
        warnings.push(format!(
            "prices of {region} are unknown: list prices of {} ({}) {OTHER_REGION_PRICES}",
            prices.region, prices.date
        ));
    }
    let assumed: Vec<String> =
        zones.iter().filter(|z| z.assumed).map(|z| format!("{} = {}", z.name, z.id)).collect();
    if !assumed.is_empty() {
        warnings.push(format!(
            "{ZONES_ASSUMED}, and may differ in your account: {}; state them in spec.cluster.zones",
            assumed.join(", ")
        ));
    }
    let unpriced: Vec<&str> = types
        .values()
        .filter(|kind| kind.offerings.iter().all(|offering| offering.price.is_none()))
        .map(|kind| kind.name.as_str())
        .collect();
    if !unpriced.is_empty() {
        let listed = unpriced.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
        let more = match unpriced.len().saturating_sub(NAMES_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        warnings.push(format!(
            "{} instance types of {region} {TYPES_UNPRICED}: {listed}{more}",
            unpriced.len()
        ));
    }
    warnings
}

#[cfg(test)]
mod tests;
