//! Shortened texts.

/// Returns the first `max` characters of a text, and `…` in place of the rest.
pub fn shorten(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_longer_texts_are_shortened() {
        for (text, expected) in [("", ""), ("äöü", "äöü"), ("äöüß", "äöü…"), ("abcdef", "abc…")]
        {
            assert_eq!(shorten(text, 3), expected);
        }
    }
}
