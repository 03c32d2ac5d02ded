//! Comments in the Markdown of each forge.
//!
//! Outside text in a comment is escaped for GitHub. Two forges read further things: GitLab runs
//! commands of lines that begin with a slash, with the rights of the token; and Bitbucket shows HTML as
//! text.

use crate::apply::ports::CommentSyntax;

/// The start of the first line for forges without HTML: the definition of a link that nothing uses,
/// which no Markdown shows.
const PLAIN_MARK: &str = "[fleetwright]: #";

/// An empty HTML comment, which separates a sign from the name after it.
const SEPARATOR: &str = "<!-- -->";

/// Separates as well, where HTML is not known: a word joiner.
const PLAIN_SEPARATOR: &str = "\u{2060}";

/// Returns a comment in the syntax of a forge.
pub(super) fn adapt(body: &str, syntax: CommentSyntax) -> String {
    match syntax {
        CommentSyntax::GitHub => body.to_owned(),
        CommentSyntax::GitLab => lines(body, for_gitlab),
        CommentSyntax::Plain => {
            let (head, rest) = body.split_once('\n').unwrap_or((body, ""));
            format!("{PLAIN_MARK}{}\n{}", hex::encode(head), lines(rest, without_html))
        }
    }
}

/// Returns the first line of a comment as it was before [`adapt`].
pub(super) fn header_line(line: &str) -> Option<String> {
    let Some(encoded) = line.trim_end().strip_prefix(PLAIN_MARK) else {
        return Some(line.to_owned());
    };
    String::from_utf8(hex::decode(encoded).ok()?).ok()
}

fn lines(text: &str, line: fn(&str) -> String) -> String {
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// GitLab also reads commands, and references to merge requests and labels.
fn for_gitlab(line: &str) -> String {
    let line = line.replace("&#33;", &format!("!{SEPARATOR}"));
    let line = line.replace("&#126;", &format!("~{SEPARATOR}"));
    let (indent, rest) = line.split_at(line.len() - line.trim_start().len());
    match rest.strip_prefix('/') {
        Some(rest) => format!("{indent}&#47;{rest}"),
        None => line,
    }
}

fn without_html(line: &str) -> String {
    let summary = line.strip_prefix("<details><summary>");
    if let Some(title) = summary.and_then(|rest| rest.strip_suffix("</summary>")) {
        return format!("**{}**", without_html(title));
    }
    if line == "</details>" {
        return String::new();
    }
    let small = line.strip_prefix("<sub>").and_then(|rest| rest.strip_suffix("</sub>"));
    small.unwrap_or(line).replace(SEPARATOR, PLAIN_SEPARATOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::pull_request::{COMMENT_CHARS_MAX, CommentHeader, comment};
    use crate::testing::sample_plan::plan;

    #[test]
    fn plain_comment_has_no_html_and_keeps_its_header() {
        let body = comment(&plan(), None, false, COMMENT_CHARS_MAX);
        let plain = adapt(&body, CommentSyntax::Plain);
        assert_eq!(CommentHeader::read(&plain), CommentHeader::read(&body));
        assert!(CommentHeader::read(&plain).is_some());
        for tag in ["<details", "</details", "<summary", "<sub>", "<!--"] {
            assert!(!plain.contains(tag), "{tag}: {plain}");
        }
        assert_eq!(adapt(&body, CommentSyntax::GitHub), body);
    }

    #[test]
    fn gitlab_reads_no_command_of_outside_text() {
        let text = "a\n/merge\n  /close now\n* /x\nsee &#33;12 and &#126;bug";
        let expected = "a\n&#47;merge\n  &#47;close now\n* /x\nsee !<!-- -->12 and ~<!-- -->bug";
        assert_eq!(adapt(text, CommentSyntax::GitLab), expected);
    }

    #[test]
    fn damaged_header_is_none() {
        assert_eq!(header_line("[fleetwright]: #zz"), None);
        assert_eq!(header_line("hello").as_deref(), Some("hello"));
    }
}
