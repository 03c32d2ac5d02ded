//! Durations as Go writes them: `720h`, `1h30m`, `1.5s`.

use jiff::SignedDuration;

/// Digits after the point that matter: enough for nanoseconds of an hour.
const FRACTION_DIGITS: usize = 13;

/// Nanoseconds of each unit. A unit that is a prefix of another comes after it.
const UNITS: [(&str, i128); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3600 * 1_000_000_000),
];

/// Parses a duration; returns `None` if `text` is not one, or is negative.
#[must_use]
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

/// Returns `number × factor`, cut to whole nanoseconds.
fn nanos(number: &str, factor: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let units: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let kept = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let part: i128 = if kept.is_empty() { 0 } else { kept.parse().ok()? };
    let scale = 10_i128.pow(u32::try_from(kept.len()).ok()?);
    units.checked_mul(factor)?.checked_add(part * factor / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
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
