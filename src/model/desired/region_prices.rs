//! List prices of one region, in a file beside the settings.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::model::ids::{InstanceTypeName, Region};
use crate::model::units::MicroUsd;

/// File at the root of the repository with the list prices of its region.
pub const PRICE_FILE: &str = "fleetwright.prices.json";

/// Format of the file that this version reads and writes.
pub const PRICE_FILE_FORMAT: u32 = 1;

/// Currency of all prices.
pub const PRICE_CURRENCY: &str = "USD";

/// Highest accepted price per hour, about 25 times that of the most expensive type of 2026.
const PRICE_MAX: MicroUsd = MicroUsd(10_000_000_000);

/// Maximum length of the name of an instance type.
const NAME_LENGTH_MAX: usize = 64;

/// Maximum digits of a version.
const VERSION_LENGTH_MAX: usize = 20;

/// The price file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionPrices {
    /// Format of the file.
    pub format_version: u32,
    /// The region.
    pub region: Region,
    /// Version of the list of AWS, in digits.
    pub version: String,
    /// Publication of the list.
    pub published: Timestamp,
    /// Currency of the prices.
    pub currency: String,
    /// Hourly on-demand prices of Linux instances with shared tenancy, by instance type.
    #[serde(deserialize_with = "sorted_prices")]
    pub hourly: BTreeMap<InstanceTypeName, MicroUsd>,
}

/// Returns whether `text` is a version of a list. It becomes a part of a URL.
pub fn is_price_list_version(text: &str) -> bool {
    (1..=VERSION_LENGTH_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
}

/// Checks one row of the prices.
///
/// # Errors
/// Returns the reason why no list has such a row.
pub fn check_price(name: &InstanceTypeName, price: MicroUsd) -> Result<(), String> {
    let is_plain = |part: &str| {
        let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty() && part.bytes().all(is_plain)
    };
    let parts = name.as_str().split_once('.');
    let is_short = name.as_str().len() <= NAME_LENGTH_MAX;
    if !is_short || !parts.is_some_and(|(family, size)| is_plain(family) && is_plain(size)) {
        let begin: String = name.as_str().chars().take(NAME_LENGTH_MAX).collect();
        return Err(format!("`{begin}` is not the name of an instance type"));
    }
    if price <= MicroUsd::ZERO || price > PRICE_MAX {
        let most = PRICE_MAX.rounded(0);
        return Err(format!("the price of {name} is {price}, not above 0 and at most {most}"));
    }
    Ok(())
}

/// Reads prices in the order in which they are written. A type that occurs twice could hide the
/// price that counts.
fn sorted_prices<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<InstanceTypeName, MicroUsd>, D::Error> {
    struct Rows;

    impl<'de> Visitor<'de> for Rows {
        type Value = BTreeMap<InstanceTypeName, MicroUsd>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("prices by instance type")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut rows: A) -> Result<Self::Value, A::Error> {
            let mut found = BTreeMap::new();
            while let Some((name, price)) = rows.next_entry::<InstanceTypeName, MicroUsd>()? {
                check_price(&name, price).map_err(A::Error::custom)?;
                if found.last_key_value().is_some_and(|(last, _)| *last >= name) {
                    return Err(A::Error::custom(format!(
                        "{name} is listed twice or out of order"
                    )));
                }
                found.insert(name, price);
            }
            Ok(found)
        }
    }

    deserializer.deserialize_map(Rows)
}
