//! Quantities in the syntax of Kubernetes: decimal and binary suffixes, exponents and rounding.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::model::text::shorten;

/// Billionths per unit, the finest fraction in Kubernetes.
const NANOS: i128 = 1_000_000_000;

/// Maximum number of significant integer digits. Longer amounts exceed the cap.
const WHOLE_DIGITS_MAX: usize = 20;

/// Number of exact fraction digits: enough for a billionth of a byte of an exbibyte, and few enough
/// to avoid overflow of the products below. Further digits only affect rounding.
const FRACTION_DIGITS: usize = 18;

/// Maximum length of a quotation in an error message, in characters.
const SHOWN_MAX: usize = 40;

/// An exact Kubernetes quantity, stored in billionths of a unit.
///
/// As in `k8s.io/apimachinery/pkg/api/resource`, finer fractions are rounded away from zero, and
/// amounts are capped at ±(2⁶³ − 1) units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    nanos: i128,
}

/// Error of parsing a quantity.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is not a quantity")]
pub struct QuantityError {
    /// Invalid text as written, shortened if long.
    pub text: String,
    /// Suggested correction.
    pub hint: String,
}

impl Quantity {
    /// Returns a quantity of `units` whole units.
    pub fn from_units(units: i64) -> Self {
        Self { nanos: i128::from(units) * NANOS }
    }

    /// Returns the amount in whole units, rounded up (towards +∞).
    pub fn ceil_units(self) -> i64 {
        saturate(div_ceil(self.nanos, NANOS))
    }

    /// Returns the amount in thousandths, rounded up (towards +∞).
    pub fn ceil_milli(self) -> i64 {
        saturate(div_ceil(self.nanos, NANOS / 1000))
    }

    /// Returns a whole number with the largest suffix, which is the same for equal amounts. A binary
    /// suffix is preferred.
    pub fn canonical(self) -> String {
        let Self { nanos } = self;
        if nanos == 0 {
            return "0".to_owned();
        }
        let binary =
            BINARY_SUFFIXES.iter().map(|(suffix, bits)| (suffix, (1_i128 << bits) * NANOS));
        let decimal = DECIMAL_SUFFIXES.iter().map(|(suffix, power)| (suffix, 10_i128.pow(*power)));
        let mut units = binary.chain(decimal);
        match units.find(|(_, unit)| nanos % unit == 0) {
            Some((suffix, unit)) => format!("{}{suffix}", nanos / unit),
            None => format!("{nanos}n"),
        }
    }

    /// Returns true if the amount is negative.
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }
}

/// Suffixes of powers of 1024, the largest first.
const BINARY_SUFFIXES: [(&str, u32); 6] =
    [("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];

/// Decimal suffixes, the largest first, each with the power of ten in billionths.
const DECIMAL_SUFFIXES: [(&str, u32); 9] =
    [("E", 27), ("P", 24), ("T", 21), ("G", 18), ("M", 15), ("k", 12), ("", 9), ("m", 6), ("u", 3)];

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text)
            .ok_or_else(|| QuantityError { text: shorten(text, SHOWN_MAX), hint: hint_for(text) })
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos % NANOS == 0 {
            write!(f, "{}", self.nanos / NANOS)
        } else if self.nanos % (NANOS / 1000) == 0 {
            write!(f, "{}m", self.nanos / (NANOS / 1000))
        } else {
            write!(f, "{}n", self.nanos)
        }
    }
}

/// Returns `numerator / denominator`, rounded towards +∞. `denominator` must be positive.
fn div_ceil(numerator: i128, denominator: i128) -> i128 {
    numerator.div_euclid(denominator) + i128::from(numerator.rem_euclid(denominator) != 0)
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// Scale of a suffix.
#[derive(Clone, Copy)]
enum Scale {
    /// A power of 1024.
    Binary(u32),
    /// A power of ten.
    Decimal(i32),
}

fn parse(text: &str) -> Option<Quantity> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let number_len = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, suffix) = rest.split_at(number_len);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let scale = parse_suffix(suffix)?;
    let magnitude = scaled(whole, fraction, scale).min(i128::from(i64::MAX) * NANOS);
    Some(Quantity { nanos: if negative { -magnitude } else { magnitude } })
}

fn parse_suffix(suffix: &str) -> Option<Scale> {
    let scale = match suffix {
        "" => Scale::Decimal(0),
        "n" => Scale::Decimal(-9),
        "u" => Scale::Decimal(-6),
        "m" => Scale::Decimal(-3),
        "k" => Scale::Decimal(3),
        "M" => Scale::Decimal(6),
        "G" => Scale::Decimal(9),
        "T" => Scale::Decimal(12),
        "P" => Scale::Decimal(15),
        "E" => Scale::Decimal(18),
        "Ki" => Scale::Binary(1),
        "Mi" => Scale::Binary(2),
        "Gi" => Scale::Binary(3),
        "Ti" => Scale::Binary(4),
        "Pi" => Scale::Binary(5),
        "Ei" => Scale::Binary(6),
        exponent => Scale::Decimal(parse_exponent(exponent)?),
    };
    Some(scale)
}

/// Parses an exponent such as `e3` or `E-2`. It is limited to four digits, because larger exponents
/// result in the cap or in zero.
fn parse_exponent(text: &str) -> Option<i32> {
    let digits = text.strip_prefix(['e', 'E'])?;
    let unsigned = digits.strip_prefix(['-', '+']).unwrap_or(digits);
    if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let magnitude = unsigned.parse::<i32>().unwrap_or(9_999).min(9_999);
    Some(if digits.starts_with('-') { -magnitude } else { magnitude })
}

/// Returns `whole.fraction × scale` in billionths, rounded up. Values beyond the cap may saturate.
fn scaled(whole: &str, fraction: &str, scale: Scale) -> i128 {
    let (whole, fraction, factor) = match scale {
        Scale::Binary(n) => (whole.to_owned(), fraction.to_owned(), 1_i128 << (10 * n)),
        Scale::Decimal(exponent) => {
            let (whole, fraction) = move_point(whole, fraction, exponent);
            (whole, fraction, 1)
        }
    };
    let whole = whole.trim_start_matches('0');
    if whole.len() > WHOLE_DIGITS_MAX {
        return i128::MAX;
    }
    let (exact, rest) = fraction.split_at(fraction.len().min(FRACTION_DIGITS));
    let units = whole.parse::<i128>().unwrap_or(0);
    let fraction = format!("{exact:0<FRACTION_DIGITS$}").parse::<i128>().unwrap_or(0) * factor;
    let sticky = i128::from(rest.bytes().any(|digit| digit != b'0'));
    let nanos = div_ceil(fraction.saturating_add(sticky), NANOS);
    units.saturating_mul(factor).saturating_mul(NANOS).saturating_add(nanos)
}

/// Moves the decimal point by `exponent` digits, to the right for a positive exponent.
fn move_point(whole: &str, fraction: &str, exponent: i32) -> (String, String) {
    let by = usize::try_from(exponent.unsigned_abs()).unwrap_or(usize::MAX);
    if exponent >= 0 {
        let digits = format!("{fraction:0<by$}");
        let (moved, rest) = digits.split_at(by);
        (format!("{whole}{moved}"), rest.to_owned())
    } else {
        let digits = format!("{whole:0>by$}");
        let (rest, moved) = digits.split_at(digits.len() - by);
        (rest.to_owned(), format!("{moved}{fraction}"))
    }
}

/// Returns a suggested correction, based on the letters after the number.
fn hint_for(text: &str) -> String {
    let trimmed = text.trim();
    let number: String =
        trimmed.chars().take_while(|c| c.is_ascii_digit() || *c == '.').take(20).collect();
    let suffix = trimmed[number.len()..].trim().to_ascii_lowercase();
    if number.is_empty() {
        return "write a number with an optional suffix, such as 500m, 2, 512Mi or 2Gi".to_owned();
    }
    match suffix.chars().next() {
        Some('k') => format!("write {number}Ki or {number}k"),
        Some('m') => format!("write {number}Mi, {number}M or, for thousandths, {number}m"),
        Some('g') => format!("write {number}Gi or {number}G"),
        Some('t') => format!("write {number}Ti or {number}T"),
        Some('c' | 'v') => format!("write {number}"),
        _ => format!("write {number}, {number}m, {number}Mi or {number}Gi"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(text: &str) -> i64 {
        text.parse::<Quantity>().unwrap_or_else(|e| panic!("{e}")).ceil_units()
    }

    fn milli(text: &str) -> i64 {
        text.parse::<Quantity>().unwrap_or_else(|e| panic!("{e}")).ceil_milli()
    }

    #[test]
    fn canonical_text_is_the_same_for_equal_amounts() {
        for (written, expected) in [
            (&["1024Gi", "1Ti", "1099511627776"][..], "1Ti"),
            (&["100Gi", "102400Mi"], "100Gi"),
            (&["1", "1000m", "1e0"], "1"),
            (&["80m", "0.08"], "80m"),
            (&["2500", "2.5k"], "2500"),
            (&["0", "0Gi"], "0"),
            (&["-1Ki"], "-1Ki"),
            (&["1500u", "1.5m"], "1500u"),
            (&["7n"], "7n"),
        ] {
            for text in written {
                let quantity: Quantity = text.parse().expect("a quantity");
                assert_eq!(quantity.canonical(), expected, "{text}");
            }
        }
    }

    #[test]
    fn suffixes_scale_as_in_kubernetes() {
        for (text, expected) in [
            ("0", 0),
            ("3", 3),
            ("+3", 3),
            ("-3", -3),
            ("1k", 1_000),
            ("256M", 256_000_000),
            ("2.5G", 2_500_000_000),
            ("1Ki", 1_024),
            ("180Mi", 188_743_680),
            ("1.5Gi", 1_610_612_736),
            ("10Gi", 10_737_418_240),
            ("262144k", 262_144_000),
            ("1e3", 1_000),
            ("1E3", 1_000),
            ("12e-1", 2),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ei", 1_152_921_504_606_846_976),
            (".5", 1),
            ("5.", 5),
            ("0.5Ki", 512),
            ("0.1Ki", 103),
        ] {
            assert_eq!(units(text), expected, "{text}");
        }
    }

    #[test]
    fn thousandths_round_up() {
        for (text, expected) in [
            ("200m", 200),
            ("0.15", 150),
            (".5", 500),
            ("1n", 1),
            ("1u", 1),
            ("1001u", 2),
            ("2", 2000),
        ] {
            assert_eq!(milli(text), expected, "{text}");
        }
        assert_eq!(milli("-1u"), 0, "negative amounts round up as well");
    }

    #[test]
    fn extreme_quantities_are_capped() {
        assert_eq!(units("8Ei"), i64::MAX);
        assert_eq!(
            units("99999999999999999999999999999999999999999999999999999999999999999999999"),
            i64::MAX
        );
        assert_eq!(units("1e9999"), i64::MAX);
        assert_eq!(units("1e99999999999"), i64::MAX);
        assert_eq!(units("0e99999"), 0);
        assert_eq!(units("1e-9999"), 1);
        assert_eq!(
            milli("0.0000000000000000000000000000000000000000000000000000000000000000000001"),
            1
        );
    }

    #[test]
    fn invalid_quantity_is_an_error_with_a_hint() {
        for text in [
            "", " ", "1 Gi", "2G1", "Gi", ".", "1.2.3", "--1", "1ki", "1e", "1eX", "0x10", "1,5",
            "½", "1Gi ",
        ] {
            let error = text.parse::<Quantity>().expect_err(text);
            assert!(!error.hint.is_empty(), "{text}");
        }
        assert_eq!("2G1".parse::<Quantity>().expect_err("bad").hint, "write 2Gi or 2G");
        assert_eq!(
            "500MB".parse::<Quantity>().expect_err("bad").hint,
            "write 500Mi, 500M or, for thousandths, 500m"
        );
    }

    #[test]
    fn error_shortens_long_text() {
        let error = "x".repeat(1_000_000).parse::<Quantity>().expect_err("bad");
        assert!(error.text.chars().count() <= SHOWN_MAX + 1);
    }
}
