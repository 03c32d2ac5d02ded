//! Escaping for HTML, and hashes for the content security policy.

use sha2::{Digest as _, Sha256};

use super::super::text_page::{escape, shorten};

/// Returns `text` escaped for an element or a quoted attribute, at most `width` columns of it.
#[must_use]
pub fn text(text: &str, width: usize) -> String {
    let short = shorten(text, width);
    let mut safe = String::with_capacity(short.len() + 8);
    for c in escape(&short).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// Longest word that the search has in full, in columns. Names of Kubernetes are shorter.
const WORD: usize = 400;

/// Returns the words that the search matches, escaped for a quoted attribute. Their number is not
/// limited.
pub(super) fn search_text<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let words = words.into_iter().filter(|word| !word.is_empty());
    words.map(|word| text(word, WORD)).collect::<Vec<_>>().join(" ")
}

/// Returns the source expression that allows exactly `content` in a content security policy.
#[must_use]
pub fn hash_source(content: &str) -> String {
    format!("'sha256-{}'", base64(&Sha256::digest(content.as_bytes())))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0_u32, |word, byte| (word << 8) | u32::from(*byte));
        let word = word << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let index = usize::try_from((word >> (18 - 6 * at)) & 63).unwrap_or(0);
            out.push(if at <= chunk.len() { char::from(ALPHABET[index]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_text_is_escaped_for_html() {
        assert_eq!(text("<b a=\"x\">'&", 40), "&lt;b a=&quot;x&quot;&gt;&#39;&amp;");
        assert_eq!(text("a\u{202e}b\u{1b}", 40), "a\\u{202e}b\\u{1b}");
    }

    #[test]
    fn search_text_has_all_words() {
        let name = "a".repeat(253);
        let all = search_text([name.as_str(), "", "<b>"].into_iter().cycle().take(300));
        assert_eq!(all.matches(&name).count(), 100);
        assert!(all.ends_with(" &lt;b&gt;") && !all.contains("  "));
    }

    #[test]
    fn base64_matches_the_standard() {
        for (bytes, expected) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes), expected);
        }
    }
}
