//! The embedded facts, decompressed and parsed into rows that borrow from the text.
//!
//! This module knows the storage format only. `snapshot/README.md` describes the sources and how to
//! update them.

use std::collections::BTreeMap;

use miniz_oxide::inflate::decompress_to_vec_zlib;
use serde::Deserialize;

use crate::model::market::ByInstanceType;
use crate::model::units::MicroUsd;

include!(concat!(env!("OUT_DIR"), "/snapshot.rs"));

/// The date of the list prices.
const PRICE_DATE: &str = "2026-07-20";

/// The region whose prices are used for regions without a list of their own.
pub(super) const DEFAULT_PRICE_REGION: &str = "us-east-1";

/// The facts of one instance type, as the snapshot states them.
///
/// An absent field means false, none or unknown; `partial` marks the rows where it means unknown.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "the columns of a table of facts")]
pub(super) struct InstanceTypeRow<'a> {
    pub(super) name: &'a str,
    pub(super) family: &'a str,
    pub(super) size: &'a str,
    pub(super) category: Option<&'a str>,
    pub(super) generation: Option<i64>,
    pub(super) partial: bool,
    pub(super) flex: bool,
    pub(super) arch: &'a str,
    #[serde(borrow)]
    pub(super) raw_arch: Vec<&'a str>,
    pub(super) vcpu: i64,
    pub(super) mem_mib: i64,
    pub(super) cpu_mfr: &'a str,
    pub(super) clock_mhz: i64,
    pub(super) hypervisor: &'a str,
    pub(super) bare_metal: bool,
    pub(super) enclaves: bool,
    pub(super) encrypt_transit: bool,
    pub(super) usage: Vec<&'a str>,
    pub(super) enis: i64,
    /// Network cards; `None` for one, and 0 if unknown.
    pub(super) cards: Option<i64>,
    /// Network interfaces on all cards, if there are several.
    pub(super) enis_total: i64,
    pub(super) ips_per_eni: i64,
    pub(super) branch_enis: i64,
    pub(super) efas: i64,
    pub(super) net_mbps: Option<i64>,
    pub(super) ebs_max_mbps: Option<i64>,
    pub(super) ebs_opt: &'a str,
    pub(super) ebs_attach: Option<i64>,
    pub(super) ebs_attach_kind: &'a str,
    pub(super) nvme_gb: i64,
    pub(super) gpus: Vec<DeviceRow<'a>>,
    pub(super) neuron: Vec<DeviceRow<'a>>,
    pub(super) accel: Vec<DeviceRow<'a>>,
    pub(super) fpgas: Vec<DeviceRow<'a>>,
    pub(super) media: Vec<DeviceRow<'a>>,
}

/// A model of GPU or accelerator in an instance type.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct DeviceRow<'a> {
    pub(super) name: &'a str,
    pub(super) mfr: &'a str,
    /// Number of devices; 0 for a fraction of one, as EC2 states it.
    pub(super) count: i64,
    /// Cores of each.
    pub(super) cores: i64,
    /// MiB of each.
    pub(super) mem_mib: i64,
}

/// The offerings of one region.
#[derive(Debug, Deserialize)]
pub(super) struct RegionRow<'a> {
    /// Prefix of the zone ids; the digit of a zone follows.
    pub(super) prefix: &'a str,
    /// Zone names by digit, in the snapshot's account; `None` if the name is unknown.
    #[serde(borrow)]
    pub(super) zones: BTreeMap<char, Option<&'a str>>,
    /// Digits of the zones that offer a type, by type.
    pub(super) types: BTreeMap<&'a str, &'a str>,
}

/// The list prices of one region.
#[derive(Debug)]
pub(super) struct PriceList {
    pub(super) region: &'static str,
    pub(super) date: &'static str,
    pub(super) hourly: ByInstanceType<MicroUsd>,
}

/// Returns the regions whose offerings are known, by name.
pub(super) fn regions() -> impl Iterator<Item = &'static str> {
    OFFERINGS.iter().map(|(region, _)| *region)
}

/// Returns the text of every type's row.
pub(super) fn types_text() -> Result<String, String> {
    TYPES.first().map_or_else(|| Err("no instance types".to_owned()), |(_, packed)| inflate(packed))
}

/// Parses the rows from the text that [`types_text`] returns.
pub(super) fn parse_types(text: &str) -> Result<Vec<InstanceTypeRow<'_>>, String> {
    parse("instance types", text)
}

/// Returns the text of a region's offerings; `None` if the region is unknown.
pub(super) fn region_text(region: &str) -> Result<Option<String>, String> {
    find(OFFERINGS, region).map(|(_, packed)| inflate(packed)).transpose()
}

/// Parses a region's offerings from the text that [`region_text`] returns.
pub(super) fn parse_region(text: &str) -> Result<RegionRow<'_>, String> {
    parse("offerings", text)
}

/// Returns the region's own list prices, else those of [`DEFAULT_PRICE_REGION`].
pub(super) fn prices(region: &str) -> Result<PriceList, String> {
    let (region, packed) = find(PRICES, region)
        .or_else(|| find(PRICES, DEFAULT_PRICE_REGION))
        .ok_or_else(|| format!("no prices of {DEFAULT_PRICE_REGION}"))?;
    let text = inflate(packed)?;
    let hourly = parse("prices", &text)?;
    Ok(PriceList { region, date: PRICE_DATE, hourly })
}

fn find(
    table: &[(&'static str, &'static [u8])],
    key: &str,
) -> Option<(&'static str, &'static [u8])> {
    table.iter().find(|(name, _)| *name == key).copied()
}

fn inflate(packed: &[u8]) -> Result<String, String> {
    let bytes = decompress_to_vec_zlib(packed).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

fn parse<'a, T: Deserialize<'a>>(what: &str, text: &'a str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_region_and_price_list_can_be_read() {
        assert_eq!(regions().count(), 30);
        for region in regions() {
            let text = region_text(region).expect("inflates").expect("is listed");
            let row = parse_region(&text).expect("parses");
            assert!(row.types.len() > 250, "{region}");
            let digits = |digits: &str| digits.chars().all(|digit| row.zones.contains_key(&digit));
            assert!(row.types.values().all(|zones| digits(zones)), "{region}");
        }
        for (region, count) in [("us-east-1", 1367), ("us-gov-west-1", 770), ("us-gov-east-1", 549)]
        {
            let list = prices(region).expect("parses");
            assert_eq!((list.region, list.hourly.len()), (region, count));
        }
        assert_eq!(region_text("us-gov-west-1"), Ok(None), "prices alone make no region");
    }

    #[test]
    fn every_offered_type_has_a_full_row() {
        let text = types_text().expect("inflates");
        let rows = parse_types(&text).expect("parses");
        assert_eq!(rows.len(), 1421);
        assert_eq!(rows.iter().filter(|row| !row.partial).count(), 1395);
        let full: BTreeMap<&str, &InstanceTypeRow<'_>> =
            rows.iter().filter(|row| !row.partial).map(|row| (row.name, row)).collect();
        for region in regions() {
            let text = region_text(region).expect("inflates").expect("is listed");
            for name in parse_region(&text).expect("parses").types.keys() {
                assert!(full.contains_key(name), "{name} in {region}");
            }
        }
        for row in full.values() {
            assert!(row.vcpu > 0 && row.mem_mib > 0 && row.enis > 0 && row.ips_per_eni > 0);
            assert_eq!(row.name, format!("{}.{}", row.family, row.size));
        }
    }

    #[test]
    fn a_price_is_read_to_the_last_digit() {
        let list = prices("us-east-1").expect("parses");
        for (name, micros) in
            [("m5.large", 96_000), ("x8i.metal-96xl", 48_744_380), ("t4g.nano", 4_200)]
        {
            assert_eq!(list.hourly.get(name), Some(&MicroUsd(micros)), "{name}");
        }
    }
}
