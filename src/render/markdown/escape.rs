//! Escaping for Markdown: outside text cannot end a fence, open a link, mention a person, start a
//! table or become HTML.

use std::fmt::Write as _;

use crate::render::text_page::{escape, shorten};

/// Returns `text` escaped for a sentence, at most `width` columns of it.
///
/// Markdown punctuation becomes an entity. GitHub decodes entities before it looks for people and
/// issues, so an invisible empty comment follows `@` and `#`. The same protects the dot of a web
/// server name, and the hyphen of an issue such as `GH-26`.
pub fn prose(text: &str, width: usize) -> String {
    let short = shorten(text, width);
    let mut safe = String::with_capacity(short.len() + 16);
    let escaped = escape(&short);
    let mut rest = escaped.chars().peekable();
    let mut before = [' '; 3];
    while let Some(c) = rest.next() {
        let is_www = before.iter().all(|c| c.eq_ignore_ascii_case(&'w'));
        let [first, g, h] = before;
        let is_issue = !first.is_ascii_alphanumeric()
            && g.eq_ignore_ascii_case(&'g')
            && h.eq_ignore_ascii_case(&'h')
            && rest.peek().is_some_and(char::is_ascii_digit);
        before = [before[1], before[2], c];
        match c {
            '.' if is_www => safe.push_str("<!-- -->."),
            '-' if is_issue => safe.push_str("-<!-- -->"),
            // A colon starts a URL only before a slash.
            ':' if rest.peek() != Some(&'/') => safe.push(':'),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '@' => safe.push_str("@<!-- -->"),
            '#' => safe.push_str("#<!-- -->"),
            '&' | '`' | '*' | '_' | '~' | '|' | '[' | ']' | '\\' | '!' | ':' => {
                let _ = write!(safe, "&#{};", u32::from(c));
            }
            c => safe.push(c),
        }
    }
    safe
}

/// Returns `text` as a code span that works in a table, at most `width` columns of it.
///
/// Markdown, HTML, people and issues have no meaning in a code span. Only the fence and the table
/// border need care.
pub fn code(text: &str, width: usize) -> String {
    let short = shorten(text, width);
    let safe = escape(&short).replace('|', "\\|");
    if safe.trim().is_empty() {
        return "—".to_owned();
    }
    let fence = "`".repeat(longest_run(&safe, '`') + 1);
    let pad = if safe.starts_with('`') || safe.ends_with('`') { " " } else { "" };
    format!("{fence}{pad}{safe}{pad}{fence}")
}

/// Returns a fence that is longer than any run of backticks in `text`.
pub(super) fn fence(text: &str) -> String {
    "`".repeat(longest_run(text, '`').max(2) + 1)
}

fn longest_run(text: &str, of: char) -> usize {
    let (mut longest, mut run) = (0, 0);
    for c in text.chars() {
        run = if c == of { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_text_is_escaped_for_markdown() {
        for (hostile, shown) in [
            ("plain-name_1", "plain-name&#95;1"),
            ("@team", "@<!-- -->team"),
            ("fixes #1", "fixes #<!-- -->1"),
            ("<img src=x>", "&lt;img src=x&gt;"),
            ("**b** | [x](y)", "&#42;&#42;b&#42;&#42; &#124; &#91;x&#93;(y)"),
            ("a\n```\nb", "a&#92;n&#96;&#96;&#96;&#92;nb"),
            ("https://x.y", "https&#58;//x.y"),
            ("www.evil.example", "www<!-- -->.evil.example"),
            ("see WWW.evil", "see WWW<!-- -->.evil"),
            ("fixes GH-26", "fixes GH-<!-- -->26"),
            ("gh-26 (Gh-7)", "gh-<!-- -->26 (Gh-<!-- -->7)"),
            ("high-2 gh-x", "high-2 gh-x"),
        ] {
            assert_eq!(prose(hostile, 80), shown);
        }
    }

    #[test]
    fn code_span_content_cannot_end_it() {
        assert_eq!(code("web/api", 40), "`web/api`");
        assert_eq!(code("a|b", 40), "`a\\|b`");
        assert_eq!(code("a``b`", 40), "``` a``b` ```");
        assert_eq!(code("", 40), "—");
        assert_eq!(code("a\n# b", 40), "`a\\n# b`");
        assert_eq!(code(&"x".repeat(1_000), 5), "`xxxx…`");
        assert_eq!(fence("a ```` b"), "`````");
        assert_eq!(fence("a"), "```");
    }
}
