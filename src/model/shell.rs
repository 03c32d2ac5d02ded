//! Words of a POSIX shell. A reader may paste a printed command.

use std::borrow::Cow;

/// Characters that no shell interprets, beside letters and digits.
const PLAIN: &str = "-_./:@,+=";

/// Returns `word` as one word of a command, in quotes if the shell would interpret a part of it.
pub fn quote_word(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || PLAIN.contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(quoted(word))
}

/// Returns `word` in quotes.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_runs_no_command() {
        assert_eq!(quote_word("prod/eu-1"), "prod/eu-1");
        assert_eq!(quote_word("https://eu.example.com:6443"), "https://eu.example.com:6443");
        assert_eq!(quote_word("$(reboot)"), "'$(reboot)'");
        assert_eq!(quote_word("a'; reboot #"), "'a'\\''; reboot #'");
        assert_eq!(quote_word(""), "''");
    }
}
