//! A plan as one Markdown comment of bounded length.
//!
//! This module knows the wire form and the dialect of GitHub.
//!
//! Invariants:
//! - The text never exceeds its budget.
//! - Removals are always visible, as rows or groups, and never folded.
//! - Outside text is escaped.
//! - The last line is the one that Terraform tools look for.

mod escape;
mod row_groups;
mod sections;

use super::last_line;
use super::row::rows;
use crate::plan::Plan;
pub use escape::{code, prose};
use sections::{
    caution, changes, comparison, cost, details, effect, footer, not_counted, policies, problems,
    removals, served, title, unschedulable,
};

/// Most characters of a comment. GitHub allows 65,536, and the wrapping comment needs some.
pub const MARKDOWN_CHARS_MAX: usize = 60_000;

/// The style of a comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkdownStyle {
    /// Most characters.
    pub chars_max: usize,
}

impl Default for MarkdownStyle {
    fn default() -> Self {
        Self { chars_max: MARKDOWN_CHARS_MAX }
    }
}

/// Returns the plan as Markdown of at most `style.chars_max` characters, with a final line feed.
///
/// The budget is at least 8,000 characters, the minimum for essential content.
pub fn markdown(plan: &Plan, style: MarkdownStyle) -> String {
    let rows = rows(plan);
    let budget = style.chars_max.max(CHARS_MIN);
    let end = format!("{}\n{}\n", footer(plan), last_line(plan));
    let mut text = BoundedText { text: String::new(), left: budget - length(&end) };
    text.add(&title(plan, &rows));
    text.add(&caution(plan, &rows, budget / 20));
    text.add(&comparison(plan, budget / 12));
    text.add(&effect(plan));
    text.add(&policies(plan, budget / 8));
    text.add(&removals(&rows, budget / 2));
    text.add(&unschedulable(plan, (budget / 10).min(text.left / 3)));
    text.add(&served(plan, (budget / 20).min(text.left / 3)));
    text.add(&changes(&rows, text.left / 2));
    text.add(&not_counted(plan, text.left / 4));
    text.add(&cost(plan, text.left / 3));
    text.add(&problems(plan, text.left / 3));
    text.add(&details(plan, &rows, text.left));
    text.text.push_str(&end);
    text.text
}

/// The minimum budget for essential content.
const CHARS_MIN: usize = 8_000;

/// Text that grows within a budget.
struct BoundedText {
    text: String,
    left: usize,
}

impl BoundedText {
    /// Adds a section if it is not empty and fits. Sections are built for their budget.
    fn add(&mut self, section: &str) {
        let length = length(section) + 1;
        if !section.is_empty() && length <= self.left {
            self.text.push_str(section);
            self.text.push('\n');
            self.left -= length;
        }
    }
}

/// Returns the length as GitHub counts it, in characters.
fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests;
