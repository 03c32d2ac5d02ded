//! Number of pods protected by a disruption budget.
//!
//! This module follows the disruption controller of Kubernetes. Percentages apply to the desired
//! pods of the owning controllers, and round up. An invalid amount allows no disruption.

/// Returns the number of pods that must remain available, out of `whole` desired pods. Returns
/// `None` if the amounts are invalid, so that no pod may be evicted.
pub fn pods_to_keep(min: Option<&str>, max: Option<&str>, whole: i64) -> Option<i64> {
    match (min, max) {
        (Some(least), _) => scaled_amount(least, whole),
        (None, Some(most)) => scaled_amount(most, whole).map(|most| (whole - most).max(0)),
        (None, None) => None,
    }
}

/// Returns the amount of `text`, an integer or a percentage of `whole`, rounded up.
fn scaled_amount(text: &str, whole: i64) -> Option<i64> {
    match text.strip_suffix('%') {
        None => text.parse().ok(),
        Some(percent) => {
            let share = percent.parse::<i64>().ok()?.checked_mul(whole)?;
            Some(share.div_euclid(100) + i64::from(share.rem_euclid(100) > 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{pods_to_keep, scaled_amount};

    #[test]
    fn percentages_round_up_and_invalid_amounts_are_none() {
        for (text, whole, expected) in [
            ("2", 10, Some(2)),
            ("30%", 10, Some(3)),
            ("31%", 10, Some(4)),
            ("0%", 7, Some(0)),
            ("100%", 7, Some(7)),
            ("x", 7, None),
            ("%", 7, None),
        ] {
            assert_eq!(scaled_amount(text, whole), expected, "{text} of {whole}");
        }
    }

    #[test]
    fn min_available_or_all_but_max_unavailable_remain() {
        for (min, max, expected) in [
            (Some("2"), None, Some(2)),
            (None, Some("2"), Some(3)),
            (None, Some("9"), Some(0)),
            (None, Some("50%"), Some(2)),
            (None, None, None),
        ] {
            assert_eq!(pods_to_keep(min, max, 5), expected, "{min:?} {max:?}");
        }
    }
}
