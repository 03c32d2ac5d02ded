//! Shortened values for messages.

use std::borrow::Cow;

use crate::model::text;

/// Maximum length of a value in a message.
const SHORTENED_MAX: usize = 60;

/// Returns `text` on one line, shortened if it is very long.
pub(in super::super) fn shorten(text: &str) -> Cow<'_, str> {
    if text.len() <= SHORTENED_MAX && !text.contains(char::is_control) {
        return text.into();
    }
    text::shorten(text, SHORTENED_MAX).replace(char::is_control, " ").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shortened_to_one_line() {
        assert_eq!(shorten("a\nb"), "a b");
        assert_eq!(shorten(&"é".repeat(100)).chars().count(), SHORTENED_MAX + 1);
        assert_eq!(shorten("plain"), "plain");
    }
}
