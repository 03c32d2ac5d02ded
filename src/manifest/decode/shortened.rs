//! Helpers for messages: shortened values, and the nearest known name.

use std::borrow::Cow;

use strsim::osa_distance;

/// Maximum length of a value in a message.
const SHORTENED_MAX: usize = 60;

/// Returns `text` on one line, shortened if it is very long.
pub(in super::super) fn shorten(text: &str) -> Cow<'_, str> {
    if text.len() <= SHORTENED_MAX && !text.contains(char::is_control) {
        return text.into();
    }
    let one_line = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(SHORTENED_MAX).map(one_line).collect();
    if text.chars().nth(SHORTENED_MAX).is_some() {
        short.push('…');
    }
    short.into()
}

/// Returns the name nearest to `text`, if it is similar enough to be meant.
pub(in super::super) fn nearest<'n>(text: &str, names: &[&'n str]) -> Option<&'n str> {
    if text.len() > SHORTENED_MAX {
        return None;
    }
    let lower = text.to_lowercase();
    let distance = |name: &str| osa_distance(&lower, &name.to_lowercase());
    let (near, name) = names.iter().map(|name| (distance(name), *name)).min()?;
    let longer = text.chars().count().max(name.chars().count());
    (near * 3 <= longer.max(3)).then_some(name)
}

/// Maximum edit distance of a typo.
const TYPO_DISTANCE_MAX: usize = 2;

/// Returns the name that `text` is a likely typo of.
pub(in super::super) fn likely_typo_of<'n>(text: &str, names: &[&'n str]) -> Option<&'n str> {
    let near = nearest(text, names)?;
    (osa_distance(&text.to_lowercase(), &near.to_lowercase()) <= TYPO_DISTANCE_MAX).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let names = ["replicas", "requests", "limits", "nodeSelector"];
        for (text, expected) in [
            ("replica", Some("replicas")),
            ("relpicas", Some("replicas")),
            ("nodeselector", Some("nodeSelector")),
            ("limit", Some("limits")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(text, &names), expected, "{text}");
        }
        assert_eq!(nearest("a", &[]), None);
    }

    #[test]
    fn a_typo_differs_by_two_characters_at_most() {
        let names = ["replicas", "revisionHistoryLimit", "os"];
        for (text, expected) in [
            ("replcas", Some("replicas")),
            ("Replicas", Some("replicas")),
            ("relpica", Some("replicas")),
            ("revisionHistoriesLimit", None),
            ("ip", None),
        ] {
            assert_eq!(likely_typo_of(text, &names), expected, "{text}");
        }
    }

    #[test]
    fn values_are_shortened_to_one_line() {
        assert_eq!(shorten("a\nb"), "a b");
        assert_eq!(shorten(&"é".repeat(100)).chars().count(), SHORTENED_MAX + 1);
        assert_eq!(shorten("plain"), "plain");
    }
}
