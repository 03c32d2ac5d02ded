//! Between whole numbers and the floats that guide.

/// Returns the float nearest to a whole number.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "floats only guide")]
pub(super) fn real(whole: i64) -> f64 {
    whole as f64
}

/// Returns the whole number below a float that is not negative; what is too large becomes the
/// largest, what is not a number nothing.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "floats only guide")]
pub(super) fn whole(real: f64) -> i64 {
    real.max(0.0) as i64
}

/// [`whole`] for numbers that may be larger.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "floats only guide")]
pub(super) fn whole_wide(real: f64) -> i128 {
    real.max(0.0) as i128
}
