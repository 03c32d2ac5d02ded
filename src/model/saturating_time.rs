//! Arithmetic with times that ends at the first or last representable time instead of failing.

use jiff::{SignedDuration, Timestamp};

/// Returns the time `span` after `at`, saturating.
pub fn later(at: Timestamp, span: SignedDuration) -> Timestamp {
    at.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// Returns the time `span` before `at`, saturating.
pub fn earlier(at: Timestamp, span: SignedDuration) -> Timestamp {
    at.checked_sub(span).unwrap_or(Timestamp::MIN)
}

/// Returns `first` doubled `times` times, at most `most`.
pub fn doubling_delay(first: SignedDuration, times: u32, most: SignedDuration) -> SignedDuration {
    let factor = 1_i32.checked_shl(times.min(20)).unwrap_or(i32::MAX);
    first.checked_mul(factor).map_or(most, |wait| wait.min(most))
}
