//! The known names that an unknown name most likely means.

use strsim::osa_distance;

/// Maximum number of suggestions.
const SUGGESTIONS_MAX: usize = 3;

/// Longest name to compare: a longer one is no typo, and the cost of a comparison is quadratic.
const LENGTH_MAX: usize = 64;

/// Most edits between a name and the meant one.
const EDITS_MAX: usize = 2;

/// Returns the names of `known` nearest to `name`, in order. Distant names are left out.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    nearest_of(name, known.into_iter().map(|known| (known, known)))
}

/// Returns the name of `known` nearest to `name`, of equally near ones the first, if it is similar
/// enough to be meant.
pub fn most_similar<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    nearest(name, known.iter().copied()).first().copied()
}

/// Returns the values of `known` whose names are nearest to `name`, in order of the names. Distant
/// names are left out.
pub fn nearest_of<'a, T>(name: &str, known: impl IntoIterator<Item = (&'a str, T)>) -> Vec<T> {
    let length = name.chars().count();
    if length > LENGTH_MAX {
        return Vec::new();
    }
    // A third of the letters: `m5.lrage` is near `m5.large`, and `worker` is near nothing.
    let edits_max = |known: &str| (length.max(known.chars().count()) / 3).clamp(1, EDITS_MAX);
    let lower = name.to_lowercase();
    let mut near: Vec<(usize, &str, T)> = known
        .into_iter()
        .map(|(known, value)| (osa_distance(&lower, &known.to_lowercase()), known, value))
        .filter(|(distance, known, _)| *distance <= edits_max(known))
        // Another letter is another name.
        .filter(|(distance, known, _)| *distance == 0 || length.min(known.chars().count()) > 1)
        .collect();
    near.sort_by_key(|(distance, known, _)| (*distance, *known));
    let least = near.first().map(|(distance, ..)| *distance);
    let nearest = near.into_iter().take_while(|(distance, ..)| Some(*distance) == least);
    nearest.take(SUGGESTIONS_MAX).map(|(.., value)| value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_nearest_names_are_returned() {
        let known = ["c5.large", "m5.large", "m5.xlarge", "m5.metal"];
        assert_eq!(nearest("M5.lrage", known), ["m5.large"]);
        assert_eq!(nearest("d5.large", known), ["c5.large", "m5.large"]);
        assert_eq!(nearest("m5.mtal", known), ["m5.metal"]);
        assert_eq!(nearest("worker", known), Vec::<&str>::new());
        assert_eq!(nearest(&"m".repeat(1_000_000), known), Vec::<&str>::new());
    }

    #[test]
    fn a_typo_differs_by_two_characters_at_most() {
        let names = ["replicas", "revisionHistoryLimit", "os", "nodeSelector"];
        for (text, expected) in [
            ("replcas", Some("replicas")),
            ("Replicas", Some("replicas")),
            ("relpica", Some("replicas")),
            ("nodeselector", Some("nodeSelector")),
            ("revisionHistoriesLimit", None),
            ("ip", None),
            ("", None),
        ] {
            assert_eq!(most_similar(text, &names), expected, "{text}");
        }
        assert_eq!(most_similar("a", &[]), None);
    }
}
