//! Conversions between integers and the floats that guide the search.

/// Returns the nearest float.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "floats only guide")]
pub(super) fn to_f64(whole: i64) -> f64 {
    whole as f64
}

/// Returns the floor of a non-negative float. Values that are too large saturate, and NaN becomes
/// 0.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "floats only guide")]
pub(super) fn floor_to_i64(real: f64) -> i64 {
    real.max(0.0) as i64
}

/// [`floor_to_i64`] for larger values.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "floats only guide")]
pub(super) fn floor_to_i128(real: f64) -> i128 {
    real.max(0.0) as i128
}
