//! Escaping for HTML, and hashes for the content security policy.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use super::super::text_page::{escape, shorten};

/// Returns `text` escaped for an element or a quoted attribute, at most `width` columns of it.
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
pub fn hash_source(content: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(content.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_sources_name_the_digest_in_base64() {
        let empty = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='";
        assert_eq!(hash_source(""), empty);
    }

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
}
