//! Suggests known names that are similar to an unknown name.

use strsim::osa_distance;

/// Maximum number of suggestions.
const SUGGESTIONS_MAX: usize = 3;

/// Longest name to compare: a longer one is no typo, and the cost of a comparison is quadratic.
const LENGTH_MAX: usize = 48;

/// Returns the names of `known` nearest to `name`, nearest first, then by name. Distant names are
/// left out.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let length = name.chars().count();
    if length > LENGTH_MAX {
        return Vec::new();
    }
    // A quarter of the letters: `m5.lrage` is near `m5.large`, and `worker` is near nothing.
    let far = (length / 4).max(1);
    let lower = name.to_lowercase();
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .map(|candidate| (osa_distance(&lower, candidate), candidate))
        .filter(|(distance, _)| *distance <= far)
        .collect();
    near.sort_unstable();
    near.into_iter().take(SUGGESTIONS_MAX).map(|(_, candidate)| candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_single_edits() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("m5.large", "m5.large", 0),
            ("m5.lrage", "m5.large", 1),
            ("m5large", "m5.large", 1),
            ("m5.llarge", "m5.large", 1),
            ("m6.large", "m5.large", 1),
            ("ca", "abc", 3),
        ] {
            assert_eq!(osa_distance(a, b), expected, "{a} {b}");
            assert_eq!(osa_distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn nearest_names_come_first_and_distant_ones_never() {
        let known = ["c5.large", "m5.large", "m5.xlarge", "m5.metal"];
        assert_eq!(nearest("M5.lrage", known), ["m5.large", "c5.large", "m5.xlarge"]);
        assert_eq!(nearest("m5.mtal", known), ["m5.metal"]);
        assert_eq!(nearest("worker", known), Vec::<&str>::new());
        assert_eq!(nearest(&"m".repeat(1_000_000), known), Vec::<&str>::new());
    }
}
