//! Parser for Go durations, such as `720h`, `1h30m` or `1.5s`.

use jiff::SignedDuration;

/// Maximum number of significant fraction digits: enough for nanoseconds of an hour.
const FRACTION_DIGITS: usize = 13;

/// Nanoseconds per unit. The first matching prefix applies, so `ms` precedes `m`.
const UNITS: [(&str, i128); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3600 * 1_000_000_000),
];

/// Parses a duration. Returns `None` for invalid or negative durations.
pub fn parse(text: &str) -> Option<SignedDuration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, tail) = rest.split_at(digits);
        let (_, factor, after) = UNITS
            .iter()
            .find_map(|(unit, factor)| Some((unit, factor, tail.strip_prefix(unit)?)))?;
        total = total.checked_add(nanos(number, *factor)?)?;
        rest = after;
    }
    let seconds = i64::try_from(total / 1_000_000_000).ok()?;
    let nanos = i32::try_from(total % 1_000_000_000).ok()?;
    Some(SignedDuration::new(seconds, nanos))
}

/// Returns `number × factor`, truncated to whole nanoseconds.
fn nanos(number: &str, factor: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let units: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let significant = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let part: i128 = if significant.is_empty() { 0 } else { significant.parse().ok()? };
    let scale = 10_i128.pow(u32::try_from(significant.len()).ok()?);
    units.checked_mul(factor)?.checked_add(part * factor / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_parsed() {
        for (text, seconds, nanos) in [
            ("0", 0, 0),
            ("30s", 30, 0),
            ("720h", 2_592_000, 0),
            ("1h30m", 5_400, 0),
            ("1.5h", 5_400, 0),
            (".5s", 0, 500_000_000),
            ("100ms", 0, 100_000_000),
            ("1us1ns", 0, 1_001),
        ] {
            assert_eq!(parse(text), Some(SignedDuration::new(seconds, nanos)), "{text}");
        }
        for bad in ["", "5", "h", "5d", "-5s", "1.2.3s", "1 h", ".s", "999999999999999999999h"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
