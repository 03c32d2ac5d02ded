//! Prices as integers.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Neg, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Hours in a billing month, as in cloud price lists.
const HOURS_PER_MONTH: i64 = 730;

/// An amount of money in millionths of a US dollar. Prices are amounts per hour.
///
/// The serialized form is a decimal string with six digits (`"0.096000"`) instead of a float.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MicroUsd(pub i64);

/// Error of parsing a decimal amount in US dollars.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not an amount in USD with at most six decimals")]
pub struct ParseMoneyError(String);

impl MicroUsd {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// Parses a price as AWS writes it, such as `0.0312000000`. Digits below a millionth are rounded
    /// up.
    pub fn from_price_list(text: &str) -> Option<Self> {
        let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
        let (millionth_digits, cut) = rest.split_at_checked(6).unwrap_or((rest, ""));
        let is_number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !is_number(whole) || !is_number(millionth_digits) || !is_number(cut)
        {
            return None;
        }
        let millionths: i64 = format!("{millionth_digits:0<6}").parse().ok()?;
        let up = i64::from(cut.bytes().any(|b| b != b'0'));
        let whole: i64 = whole.parse().ok()?;
        let price = whole.checked_mul(1_000_000)?.checked_add(millionths)?.checked_add(up)?;
        Some(Self(price))
    }

    /// Returns the monthly cost of an hourly price, for 730 hours.
    #[must_use]
    pub fn per_month(self) -> Self {
        Self(self.0.saturating_mul(HOURS_PER_MONTH))
    }

    /// Returns the amount multiplied by `count`, saturating.
    #[must_use]
    pub fn times(self, count: i64) -> Self {
        Self(self.0.saturating_mul(count))
    }

    /// Returns the amount rounded to `decimals` (at most six) digits, with halves rounded away from
    /// zero.
    pub fn rounded(self, decimals: u32) -> String {
        let unit = 10_i64.pow(6 - decimals.min(6));
        let rounded = (self.0.abs() + unit / 2) / unit;
        let scale = 10_i64.pow(decimals.min(6));
        let sign = if self.0 < 0 && rounded != 0 { "-" } else { "" };
        if decimals == 0 {
            return format!("{sign}{rounded}");
        }
        let width = usize::try_from(decimals.min(6)).unwrap_or(6);
        format!("{sign}{}.{:0width$}", rounded / scale, rounded % scale)
    }
}

impl fmt::Display for MicroUsd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let magnitude = self.0.unsigned_abs();
        write!(f, "{sign}{}.{:06}", magnitude / 1_000_000, magnitude % 1_000_000)
    }
}

impl FromStr for MicroUsd {
    type Err = ParseMoneyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParseMoneyError(text.chars().take(40).collect()))
    }
}

fn parse(text: &str) -> Option<MicroUsd> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let plain = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 6 || !plain(whole) || !plain(fraction) {
        return None;
    }
    let units = whole.parse::<i64>().ok()?.checked_mul(1_000_000)?;
    let micros = format!("{fraction:0<6}").parse::<i64>().ok()?;
    let value = units.checked_add(micros)?;
    Some(MicroUsd(if negative { -value } else { value }))
}

impl Add for MicroUsd {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for MicroUsd {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for MicroUsd {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Neg for MicroUsd {
    type Output = Self;
    fn neg(self) -> Self {
        Self(self.0.saturating_neg())
    }
}

impl Sum for MicroUsd {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, |total, amount| total + amount)
    }
}

impl Serialize for MicroUsd {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MicroUsd {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for MicroUsd {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Usd".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": "^-?[0-9]+(\\.[0-9]{1,6})?$",
            "description": "US dollars as a decimal string"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_round_trip_as_text() {
        for (text, micros) in
            [("0.096000", 96_000), ("-1.500000", -1_500_000), ("12.000001", 12_000_001)]
        {
            assert_eq!(text.parse(), Ok(MicroUsd(micros)));
            assert_eq!(MicroUsd(micros).to_string(), text);
        }
        assert_eq!("0.1".parse(), Ok(MicroUsd(100_000)));
        for bad in ["", ".5", "1.0000001", "1e3", "$1", "9223372036854775807"] {
            assert!(bad.parse::<MicroUsd>().is_err(), "{bad}");
        }
    }

    #[test]
    fn halves_round_away_from_zero_without_negative_zero() {
        assert_eq!(MicroUsd(1_005_000).rounded(2), "1.01");
        assert_eq!(MicroUsd(-1_005_000).rounded(2), "-1.01");
        assert_eq!(MicroUsd(-4_000).rounded(2), "0.00");
        assert_eq!(MicroUsd(70_080_000).rounded(0), "70");
        assert_eq!(MicroUsd(96_000).per_month(), MicroUsd(70_080_000));
    }
}
