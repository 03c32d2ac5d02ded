//! A plan as one comment: Markdown of bounded length, whatever the size of the plan.
//!
//! This module knows the wire form and GitHub's dialect. Invariants: the text never exceeds its
//! budget; what is removed is always there, one row each or grouped, and never folded; every text
//! from outside is escaped; the last line is the one that tools for Terraform look for.

mod group;
mod safe;
mod section;

use super::row::rows;
use super::{last_line, unfinished};
use crate::plan::Plan;
use crate::render::page::Verbosity;
pub use safe::{code, prose};
use section::{
    caution, changes, comparison, cost, details, effect, footer, policies, problems, removals,
    title, unschedulable,
};

/// Most characters of a comment; GitHub takes 65,536, and what wraps a comment needs some.
pub const MARKDOWN_CHARS_MAX: usize = 60_000;

/// How a comment is written.
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
/// Below 8,000 characters the budget is taken for 8,000: less does not hold what must be said.
#[must_use]
pub fn markdown(plan: &Plan, style: MarkdownStyle) -> String {
    let rows = rows(plan);
    let budget = style.chars_max.max(CHARS_MIN);
    let mut end = String::new();
    if let Some(line) = unfinished(plan, Verbosity::Full) {
        end = format!("{line}\n\n");
    }
    end = format!("{}\n{end}{}\n", footer(plan), last_line(plan));
    let mut sheet = Sheet { text: String::new(), left: budget - length(&end) };
    sheet.add(&title(plan, &rows));
    sheet.add(&caution(plan, &rows, budget / 20));
    sheet.add(&comparison(plan, budget / 12));
    sheet.add(&effect(plan));
    sheet.add(&policies(plan, budget / 8));
    sheet.add(&removals(&rows, budget / 2));
    sheet.add(&unschedulable(plan, (budget / 10).min(sheet.left / 3)));
    sheet.add(&changes(&rows, sheet.left / 2));
    sheet.add(&cost(plan, sheet.left / 3));
    sheet.add(&problems(plan, sheet.left / 3));
    sheet.add(&details(plan, &rows, sheet.left));
    sheet.text.push_str(&end);
    sheet.text
}

/// Fewest characters that hold what must be said.
const CHARS_MIN: usize = 8_000;

/// A text that grows within a budget.
struct Sheet {
    text: String,
    left: usize,
}

impl Sheet {
    /// Adds a section, if there is one, and if it fits: each is made for the room it is given.
    fn add(&mut self, section: &str) {
        let length = length(section) + 1;
        if !section.is_empty() && length <= self.left {
            self.text.push_str(section);
            self.text.push('\n');
            self.left -= length;
        }
    }
}

/// Returns the length as GitHub counts it.
fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests;
