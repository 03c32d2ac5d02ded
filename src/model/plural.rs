//! Counted nouns.

use std::fmt::Display;

/// Returns `n noun`, with an `s` where `n` is not one.
pub fn count(n: impl Display, noun: &str) -> String {
    let n = n.to_string();
    let ending = if n == "1" { "" } else { "s" };
    format!("{n} {noun}{ending}")
}

/// Returns `n nouns verb`, where the verb is `run` or similar: `1 pod runs`, `2 pods run`.
pub fn count_with_verb(n: impl Display, noun: &str, verb: &str) -> String {
    let counted = count(n, noun);
    let ending = if counted.starts_with("1 ") { "s" } else { "" };
    format!("{counted} {verb}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        let all = [0, 1, 2, 11].map(|n| count_with_verb(n, "pod", "run"));
        assert_eq!(all, ["0 pods run", "1 pod runs", "2 pods run", "11 pods run"]);
    }
}
