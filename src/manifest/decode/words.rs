//! Words for messages: shortened values, and the name that was probably meant.

use std::borrow::Cow;

/// Longest piece of a value that a message repeats.
const SHOWN_MAX: usize = 60;

/// Returns `text`, shortened when very long, on one line.
pub(in super::super) fn shorten(text: &str) -> Cow<'_, str> {
    if text.len() <= SHOWN_MAX && !text.contains(char::is_control) {
        return text.into();
    }
    let one_line = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(SHOWN_MAX).map(one_line).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        short.push('…');
    }
    short.into()
}

/// Returns the name most like `text`, where one is alike enough to be meant.
pub(in super::super) fn nearest<'n>(text: &str, names: &[&'n str]) -> Option<&'n str> {
    if text.len() > SHOWN_MAX {
        return None;
    }
    let lower = text.to_lowercase();
    let distance = |name: &str| edits(&lower, &name.to_lowercase());
    let (near, name) = names.iter().map(|name| (distance(name), *name)).min()?;
    let longer = text.chars().count().max(name.chars().count());
    (near * 3 <= longer.max(3)).then_some(name)
}

/// Most characters by which a slip of the pen differs from the word that was meant.
const SLIP_MAX: usize = 2;

/// Returns the name that `text` is a slip of the pen for.
pub(in super::super) fn slip_of<'n>(text: &str, names: &[&'n str]) -> Option<&'n str> {
    let near = nearest(text, names)?;
    (edits(&text.to_lowercase(), &near.to_lowercase()) <= SLIP_MAX).then_some(near)
}

/// Returns how many characters must be put in, taken out, replaced or swapped with their neighbour
/// to make `b` of `a`.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut next = vec![i];
        for j in 1..=b.len() {
            let replaced = row[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(row[j] + 1).min(next[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_only_where_it_is_alike() {
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
    fn a_slip_differs_by_two_characters_at_most() {
        let names = ["replicas", "revisionHistoryLimit", "os"];
        for (text, expected) in [
            ("replcas", Some("replicas")),
            ("Replicas", Some("replicas")),
            ("relpica", Some("replicas")),
            ("revisionHistoriesLimit", None),
            ("ip", None),
        ] {
            assert_eq!(slip_of(text, &names), expected, "{text}");
        }
    }

    #[test]
    fn values_are_shown_short_and_on_one_line() {
        assert_eq!(shorten("a\nb"), "a b");
        assert_eq!(shorten(&"é".repeat(100)).chars().count(), SHOWN_MAX + 1);
        assert_eq!(shorten("plain"), "plain");
    }
}
