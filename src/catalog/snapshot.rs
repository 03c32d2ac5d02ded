//! The embedded facts: inflated, and parsed into rows that borrow from the text.
//!
//! This module knows how the facts are stored, and nothing of what follows from them. Where they
//! come from, and how they are brought up to date, is in `snapshot/README.md`.

use std::collections::BTreeMap;

use miniz_oxide::inflate::decompress_to_vec_zlib;
use serde::Deserialize;

use crate::units::MicroUsd;

include!(concat!(env!("OUT_DIR"), "/snapshot.rs"));

/// The day the list prices were made, by region.
const PRICE_DATE: &str = "2026-07-20";

/// The region whose prices stand in where a region has no list of its own.
pub(super) const STAND_IN_REGION: &str = "us-east-1";

/// The facts of one instance type, as the snapshot states them.
///
/// A field that is absent means false, none or not known; `partial` marks the rows where it is
/// "not known".
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "the columns of a table of facts")]
pub(super) struct Row<'a> {
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
    pub(super) ips_per_eni: i64,
    pub(super) branch_enis: i64,
    pub(super) efas: i64,
    pub(super) net_mbps: Option<i64>,
    pub(super) ebs_max_mbps: Option<i64>,
    pub(super) ebs_opt: &'a str,
    pub(super) ebs_attach: Option<i64>,
    pub(super) ebs_attach_kind: &'a str,
    pub(super) nvme_gb: i64,
    pub(super) gpus: Vec<Device<'a>>,
    pub(super) neuron: Vec<Device<'a>>,
    pub(super) accel: Vec<Device<'a>>,
    pub(super) fpgas: Vec<Device<'a>>,
    pub(super) media: Vec<Device<'a>>,
}

/// A model of GPU or accelerator in an instance type.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Device<'a> {
    pub(super) name: &'a str,
    pub(super) mfr: &'a str,
    /// How many; 0 for a part of one, as EC2 states it.
    pub(super) count: i64,
    /// Cores of each.
    pub(super) cores: i64,
    /// MiB of each.
    pub(super) mem_mib: i64,
}

/// What one region offers.
#[derive(Debug, Deserialize)]
pub(super) struct RegionRow<'a> {
    /// What zone ids begin with; a zone's digit follows.
    pub(super) prefix: &'a str,
    /// Zone names by digit, in the account the facts were taken in; `None`: could not be told.
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
    pub(super) hourly: BTreeMap<String, MicroUsd>,
}

/// Returns the regions whose offerings are known, by name.
pub(super) fn regions() -> impl Iterator<Item = &'static str> {
    OFFERINGS.iter().map(|(region, _)| *region)
}

/// Returns the text of every type's row.
pub(super) fn types_text() -> Result<String, String> {
    TYPES.first().map_or_else(|| Err("no instance types".to_owned()), |(_, packed)| inflate(packed))
}

/// Reads the rows from what [`types_text`] returned.
pub(super) fn parse_types(text: &str) -> Result<Vec<Row<'_>>, String> {
    parse("instance types", text)
}

/// Returns the text of a region's offerings; `None`: the region is not known.
pub(super) fn region_text(region: &str) -> Result<Option<String>, String> {
    find(OFFERINGS, region).map(|(_, packed)| inflate(packed)).transpose()
}

/// Reads a region's offerings from what [`region_text`] returned.
pub(super) fn parse_region(text: &str) -> Result<RegionRow<'_>, String> {
    parse("offerings", text)
}

/// Returns the region's own list prices, else those of [`STAND_IN_REGION`].
pub(super) fn prices(region: &str) -> Result<PriceList, String> {
    let (region, packed) = find(PRICES, region)
        .or_else(|| find(PRICES, STAND_IN_REGION))
        .ok_or_else(|| format!("no prices of {STAND_IN_REGION}"))?;
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
        let full: BTreeMap<&str, &Row<'_>> =
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
