//! How many pods a disruption budget keeps.
//!
//! Follows the disruption controller of Kubernetes: a share is of the pods that the controllers of
//! the protected pods want, rounded up; what cannot be computed allows nothing.

/// Returns the pods that have to stay where `whole` are wanted; `None` where the amounts say
/// nothing that can be computed, so that none may go.
#[must_use]
pub fn kept_pods(min: Option<&str>, max: Option<&str>, whole: i64) -> Option<i64> {
    match (min, max) {
        (Some(least), _) => amount(least, whole),
        (None, Some(most)) => amount(most, whole).map(|most| (whole - most).max(0)),
        (None, None) => None,
    }
}

/// Returns the amount that `text` means where `whole` is all; a share is rounded up.
fn amount(text: &str, whole: i64) -> Option<i64> {
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
    use super::{amount, kept_pods};

    #[test]
    fn shares_are_rounded_up_and_nonsense_is_nothing() {
        for (text, whole, expected) in [
            ("2", 10, Some(2)),
            ("30%", 10, Some(3)),
            ("31%", 10, Some(4)),
            ("0%", 7, Some(0)),
            ("100%", 7, Some(7)),
            ("x", 7, None),
            ("%", 7, None),
        ] {
            assert_eq!(amount(text, whole), expected, "{text} of {whole}");
        }
    }

    #[test]
    fn the_least_stays_or_all_but_the_most() {
        for (min, max, kept) in [
            (Some("2"), None, Some(2)),
            (None, Some("2"), Some(3)),
            (None, Some("9"), Some(0)),
            (None, Some("50%"), Some(2)),
            (None, None, None),
        ] {
            assert_eq!(kept_pods(min, max, 5), kept, "{min:?} {max:?}");
        }
    }
}
