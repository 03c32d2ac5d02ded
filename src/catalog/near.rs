//! Names that are near a name that nobody knows: what its author most likely meant.

/// Most names to suggest.
const SUGGESTIONS_MAX: usize = 3;

/// Longest name to compare; a longer one is no slip of the pen, and comparing costs its square.
const LENGTH_MAX: usize = 48;

/// Returns the names of `known` nearest to `name`, nearest first, then by name; none if all are far.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let length = name.chars().count();
    if length > LENGTH_MAX {
        return Vec::new();
    }
    // A quarter of the letters: `m5.lrage` is near `m5.large`, and `worker` near nothing.
    let far = (length / 4).max(1);
    let lower = name.to_lowercase();
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .map(|candidate| (distance(&lower, candidate), candidate))
        .filter(|(distance, _)| *distance <= far)
        .collect();
    near.sort_unstable();
    near.into_iter().take(SUGGESTIONS_MAX).map(|(_, candidate)| candidate).collect()
}

/// Returns how many letters to insert, remove, replace or swap with their neighbour make `a` into
/// `b` (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let mut previous = None;
    for (i, x) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = row[j] + usize::from(x != *y);
            let mut best = replaced.min(row[j + 1] + 1).min(next[j] + 1);
            if j > 0 && previous == Some(*y) && b[j - 1] == x {
                best = best.min(before[j - 1] + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
        previous = Some(x);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_single_slips() {
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
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn the_nearest_come_first_and_the_far_never() {
        let known = ["c5.large", "m5.large", "m5.xlarge", "m5.metal"];
        assert_eq!(nearest("M5.lrage", known), ["m5.large", "c5.large", "m5.xlarge"]);
        assert_eq!(nearest("m5.mtal", known), ["m5.metal"]);
        assert_eq!(nearest("worker", known), Vec::<&str>::new());
        assert_eq!(nearest(&"m".repeat(1_000_000), known), Vec::<&str>::new());
    }
}
