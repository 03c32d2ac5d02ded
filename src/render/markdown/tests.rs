use super::*;
use crate::testing::sample_plan::{hostile, large, nothing, plan};

#[test]
fn comment_matches_the_snapshot() {
    insta::assert_snapshot!(markdown(&plan(), MarkdownStyle::default()));
}

#[test]
fn each_name_is_a_code_span_of_its_own() {
    let mut plan = plan();
    plan.capacity.comparison = Some(crate::plan::compare(&plan, &plan, "main"));
    let comparison = plan.capacity.comparison.as_mut().expect("compared");
    comparison.commit = Some("3ffa2a5aaaaa".into());
    let text = markdown(&plan, MarkdownStyle::default());
    assert!(text.contains("(against `main`, `3ffa2a5`)"), "{text}");
    assert!(text.contains("* note: zone ids are"), "{text}");
}

#[test]
fn comment_without_changes_is_short() {
    let text = markdown(&nothing(), MarkdownStyle::default());
    assert!(text.starts_with("### Fleetwright plan for `prod-eu1`: no changes\n"));
    assert!(text.ends_with("\nNo changes. Your infrastructure matches the configuration.\n"));
    assert!(!text.contains("Removed") && text.len() < 1_500, "{text}");
}

#[test]
fn comment_of_5000_nodes_shows_all_1000_removals() {
    let plan = large(5_000, 1_000);
    for chars_max in [MARKDOWN_CHARS_MAX, 20_000, 0] {
        let text = markdown(&plan, MarkdownStyle { chars_max });
        let most = chars_max.max(CHARS_MIN);
        assert!(length(&text) <= most, "{} of {most}", length(&text));
        let seen = text.split("<details>").next().expect("a head");
        let grouped: u32 = seen
            .lines()
            .filter(|line| line.starts_with("| `-` |"))
            .map(|line| line.split("**").nth(1).and_then(|n| n.parse::<u32>().ok()).unwrap_or(1))
            .sum();
        assert_eq!(grouped, 1_000, "every removal is in a row or a group that is not folded");
        assert!(text.ends_with("Plan: 0 to add, 0 to change, 1000 to destroy.\n"));
    }
}

#[test]
fn hostile_names_are_escaped_within_the_budget() {
    for name in [
        "```\n# owned",
        "@acme/admins",
        "<script>alert(1)</script><img src=x onerror=y>",
        "</details><!--",
        "| a | b |",
        "[click](https://evil.example)",
        "\u{202e}gnp.exe",
        "\u{1b}[2J\u{1b}]0;x\u{7}",
        "\r\n::error::x",
    ] {
        let text = markdown(&hostile(name), MarkdownStyle::default());
        assert!(length(&text) <= MARKDOWN_CHARS_MAX);
        let outside_code = without_code(&text);
        for bad in ["@acme", "<script", "<img", "](http", "\u{202e}", "\u{1b}", "\r", "<!--\n"] {
            assert!(!outside_code.contains(bad), "{name:?} brings {bad:?}:\n{outside_code}");
        }
        let folds = outside_code.matches("<details>").count();
        assert_eq!(outside_code.matches("</details>").count(), folds, "{name:?}");
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{name:?}");
    }
    let huge = markdown(&hostile(&"x".repeat(1 << 20)), MarkdownStyle::default());
    assert!(length(&huge) <= MARKDOWN_CHARS_MAX);
}

/// Returns the text without code spans and fences, which Markdown does not interpret.
fn without_code(text: &str) -> String {
    let mut rest = String::new();
    let mut fence: Option<String> = None;
    for line in text.lines() {
        let run: String = line.chars().take_while(|c| *c == '`').collect();
        match &fence {
            Some(open) if line == open => fence = None,
            Some(_) => {}
            None if run.len() >= 3 && !line[run.len()..].contains('`') => fence = Some(run),
            None => {
                rest.push_str(&without_spans(line));
                rest.push('\n');
            }
        }
    }
    rest
}

fn without_spans(line: &str) -> String {
    let (mut rest, mut left) = (String::new(), line);
    while let Some(start) = left.find('`') {
        rest.push_str(&left[..start]);
        let run: String = left[start..].chars().take_while(|c| *c == '`').collect();
        let inner = &left[start + run.len()..];
        let mut from = 0;
        left = loop {
            let Some(end) = inner[from..].find(&run) else { break inner };
            let at = from + end;
            let longer = inner[at + run.len()..].starts_with('`');
            if !longer {
                break &inner[at + run.len()..];
            }
            from = at + inner[at..].chars().take_while(|c| *c == '`').count();
        };
    }
    rest.push_str(left);
    rest
}
