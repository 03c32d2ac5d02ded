//! Formats of money, memory, time and counts.

use jiff::SignedDuration;

use crate::model::plural;
use crate::model::units::{Bytes, MicroUsd, MilliCpu};
use crate::plan::wire::Amount;

/// Returns `n noun`, with an `s` where `n` is not one.
pub(super) fn count(n: u32, noun: &str) -> String {
    plural::count(n, noun)
}

/// Returns a price per hour, to the hundredth of a cent.
pub(super) fn hourly(price: MicroUsd) -> String {
    format!("{}/h", dollars(price, 4))
}

/// Returns an amount in dollars.
pub(super) fn dollars(amount: MicroUsd, decimals: u32) -> String {
    let text = amount.rounded(decimals);
    text.strip_prefix('-').map_or_else(|| format!("${text}"), |digits| format!("-${digits}"))
}

/// Returns an amount in dollars with its sign, `+` included.
pub(super) fn signed_dollars(amount: MicroUsd, decimals: u32) -> String {
    let text = dollars(amount, decimals);
    let is_zero = !text.contains(|c: char| c.is_ascii_digit() && c != '0');
    if text.starts_with('-') || is_zero { text } else { format!("+{text}") }
}

/// Returns memory in gibibytes with at most one decimal, rounded half up, without the unit.
pub(super) fn gib(bytes: i64) -> String {
    let tenths =
        (i128::from(bytes) * 10 + i128::from(Bytes::GIB / 2)).div_euclid(Bytes::GIB.into());
    match (tenths / 10, tenths % 10) {
        (whole, 0) => whole.to_string(),
        (whole, tenth) => format!("{whole}.{tenth}"),
    }
}

/// Returns bytes in the largest binary unit that is exact, else in mebibytes rounded down.
pub(super) fn memory(bytes: i64) -> String {
    let exact = Bytes(bytes).to_string();
    if exact.ends_with('i') && !exact.ends_with("Ki") || bytes < Bytes::MIB {
        exact
    } else {
        Bytes::mib(bytes / Bytes::MIB).to_string()
    }
}

/// Returns the non-zero parts of an amount; CPU and memory always.
pub(super) fn amount(amount: &Amount) -> String {
    let Amount { cpu_milli, memory_bytes, ephemeral_storage_bytes, pods: _, extended } = amount;
    let mut parts =
        vec![format!("cpu {}", MilliCpu(*cpu_milli)), format!("memory {}", memory(*memory_bytes))];
    if *ephemeral_storage_bytes != 0 {
        parts.push(format!("ephemeral-storage {}", memory(*ephemeral_storage_bytes)));
    }
    parts.extend(extended.iter().map(|(name, n)| format!("{name} {n}")));
    parts.join(", ")
}

/// Returns a duration in its largest unit, rounded down.
pub(crate) fn span(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns a duration in its two largest units, rounded down.
pub(super) fn long_span(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    let (unit, parts) = match seconds {
        0..3_600 => return span(duration),
        3_600..172_800 => ("m", seconds % 3_600 / 60),
        _ => ("h", seconds % 86_400 / 3_600),
    };
    if parts == 0 { span(duration) } else { format!("{}{parts}{unit}", span(duration)) }
}

/// Returns the first `most` of `items`, comma-separated, and the number of the rest.
pub(super) fn list(items: &[String], most: usize) -> String {
    let shown = items.iter().take(most).cloned().collect::<Vec<_>>().join(", ");
    match items.len().saturating_sub(most) {
        0 => shown,
        rest => format!("{shown} and {rest} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn price_differences_have_a_sign() {
        let all = |micros| {
            let amount = MicroUsd(micros);
            [dollars(amount, 2), signed_dollars(amount, 2), hourly(amount)]
        };
        assert_eq!(all(1_500_000), ["$1.50", "+$1.50", "$1.5000/h"]);
        assert_eq!(all(-1_500_000), ["-$1.50", "-$1.50", "-$1.5000/h"]);
        assert_eq!(all(4_000), ["$0.00", "$0.00", "$0.0040/h"]);
    }

    #[test]
    fn memory_is_exact_or_rounded_to_mebibytes() {
        for (bytes, in_gib, short) in [
            (0, "0", "0"),
            (Bytes::GIB * 16, "16", "16Gi"),
            (Bytes::GIB * 3 / 2, "1.5", "1536Mi"),
            (7_843_217_408, "7.3", "7479Mi"),
            (1_000, "0", "1000"),
        ] {
            assert_eq!((gib(bytes).as_str(), memory(bytes).as_str()), (in_gib, short));
        }
    }

    #[test]
    fn durations_use_their_largest_unit() {
        for (seconds, text) in
            [(-5, "0s"), (59, "59s"), (61, "1m"), (7_200, "2h"), (86_400, "24h"), (172_800, "2d")]
        {
            assert_eq!(span(SignedDuration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn long_durations_use_two_units() {
        for (seconds, text) in [
            (1_500, "25m"),
            (6_600, "1h50m"),
            (7_200, "2h"),
            (78_300, "21h45m"),
            (172_800, "2d"),
            (183_600, "2d3h"),
        ] {
            assert_eq!(long_span(SignedDuration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn lists_count_omitted_items() {
        let items = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(list(&items, 3), "a, b, c");
        assert_eq!(list(&items, 2), "a, b and 1 more");
        assert_eq!((count(1, "pod"), count(0, "pod")), ("1 pod".to_owned(), "0 pods".to_owned()));
    }
}
