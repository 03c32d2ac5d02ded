//! Views of the wire form of a plan: text, Markdown, HTML, a stream of messages, annotations;
//! and of the catalogue and of problems.
//!
//! This module knows how a plan reads to a person. It knows nothing of worlds, ports or how a plan
//! was found: [`text`] takes [`Plan`] alone, so that a saved plan reads exactly as it did when it
//! was made. Invariants: the same plan gives the same text; every text that comes from outside is
//! escaped; the last line of a plan is the one that tools for Terraform look for.
//!
//! ```
//! use fleetwright::render::escape;
//! assert_eq!(escape("web\u{1b}[2J"), "web\\u{1b}[2J");
//! ```

mod amount;
mod catalog;
mod comparison;
mod detail;
mod difference;
mod explain;
mod fargate;
mod findings;
#[cfg(test)]
pub(crate) mod fixture;
mod forecast;
mod github;
mod head;
mod html;
mod markdown;
mod page;
mod problems;
mod reason;
mod row;
mod stream;
mod table;
#[cfg(test)]
mod tests;
pub mod web;

pub use catalog::{
    OfferingRow, TypeRow, allocatable_text, allocation_json, allocation_text, types_json,
    types_text,
};
pub use difference::{difference_text, drift_text};
pub use explain::{ExplainError, Explanation, NodeExplanation, PodExplanation, explain};
pub use forecast::forecast_text;
pub use github::github;
pub use html::html;
pub use markdown::{MARKDOWN_CHARS_MAX, MarkdownStyle, code, markdown, prose};
pub use page::{DEFAULT_WIDTH, TextStyle, Verbosity, escape};
pub use problems::{Tally, problems_json, problems_text};
pub use stream::{
    Counts, Hook, Level, Line, Message, Operation, Planned, Problem, Resource, STREAM_VERSION,
    stream, stream_schema,
};

use crate::plan::Plan;
use page::Page;

/// Returns the plan as a person reads it, with a final line feed.
#[must_use]
pub fn text(plan: &Plan, style: &TextStyle) -> String {
    let mut page = Page::new(style);
    let rows = row::rows(plan);
    head::write(&mut page, plan, &rows);
    if let Some(found) = &plan.capacity.comparison {
        comparison::write(&mut page, found, style.verbosity);
    }
    if style.verbosity != Verbosity::Summary {
        table::write(&mut page, &rows);
    }
    if style.verbosity == Verbosity::Full {
        detail::write(&mut page, plan, &rows);
    }
    findings::write(&mut page, plan, style.verbosity);
    page.gap();
    if let Some(line) = unfinished(plan, style.verbosity) {
        page.line([page::Span::new(&line, page::Tone::Warning)]);
    }
    page.line([page::Span::new(&last_line(plan), page::Tone::Strong)]);
    page.finish()
}

/// Returns what a plan without changes leaves open, so that its last line is not taken for more than
/// it says.
fn unfinished(plan: &Plan, verbosity: Verbosity) -> Option<String> {
    let crate::plan::wire::Summary { add, change, destroy, .. } = plan.summary;
    if (add, change, destroy) != (0, 0, 0) || plan.errored {
        return None;
    }
    let verb = |n: u32, one: &'static str, many: &'static str| if n == 1 { one } else { many };
    let mut open = Vec::new();
    let pods = plan.capacity.pods.unschedulable;
    if pods > 0 {
        open.push(format!("{} {} no place", amount::count(pods, "pod"), verb(pods, "has", "have")));
    }
    let sources = u32::try_from(plan.capacity.unresolved.len()).unwrap_or(u32::MAX);
    if sources > 0 {
        let count = amount::count(sources, "source");
        open.push(format!("{count} {} unresolved", verb(sources, "is", "are")));
    }
    let seen = if verbosity == Verbosity::Full { "; see above" } else { "" };
    (!open.is_empty()).then(|| format!("{}{seen}.", open.join(" and ")))
}

/// Returns whether a plan is errored by nothing but rules that it breaks itself: its inputs are
/// fine.
#[must_use]
pub fn is_errored_by_rules(plan: &Plan) -> bool {
    let mut errors = plan.capacity.diagnostics.iter().filter(|d| d.severity == "error").peekable();
    plan.errored
        && errors.peek().is_some()
        && errors.all(|error| error.message.starts_with("the plan breaks rule"))
}

/// Returns the line that tools look for, worded as Terraform words it.
///
/// A plan with errors never claims that everything matches: it may have nothing to change only
/// because it does not know better.
fn last_line(plan: &Plan) -> String {
    let crate::plan::wire::Summary { add, change, destroy, .. } = plan.summary;
    if (add, change, destroy) == (0, 0, 0) && !plan.errored {
        return "No changes. Your infrastructure matches the configuration.".to_owned();
    }
    format!("Plan: {add} to add, {change} to change, {destroy} to destroy.")
}
