//! Views of the wire form of a plan: text, Markdown, HTML, a stream of messages, annotations; also
//! views of the catalog and of problems.
//!
//! This module knows the presentation of a plan. It knows nothing of worlds, ports or planning:
//! [`text`] takes [`Plan`] alone, so a saved plan always reads the same.
//!
//! Invariants:
//! - The same plan gives the same text.
//! - Text from outside is escaped.
//! - The last line of a plan is the one that Terraform tools look for.
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
mod forecast;
mod header;
mod html;
pub mod html_fragments;
mod markdown;
mod overlay_prices;
mod problems;
pub mod pull_request;
mod reason;
mod row;
mod sarif;
mod stream;
mod summary_line;
mod table;
#[cfg(test)]
mod tests;
mod text_page;
mod top;
mod unread;
mod workflow_annotations;

pub use catalog::{
    OfferingRow, TypeRow, allocatable_text, allocation_json, allocation_text, types_json,
    types_text,
};
pub use difference::{difference_text, drift_text};
pub use explain::{
    ExplainError, Explanation, NodeExplanation, PodExplanation, PoolExplanation, explain,
};
pub use forecast::forecast_text;
pub use html::{RepositoryFacts, html, html_with_facts};
pub use markdown::{MARKDOWN_CHARS_MAX, MarkdownStyle, code, markdown, prose};
pub use problems::{RepositoryCounts, incompleteness_text, problems_json, problems_text};
pub use sarif::problems_sarif;
pub use stream::{
    STREAM_VERSION, StreamChange, StreamCounts, StreamDiagnostic, StreamHook, StreamLevel,
    StreamLine, StreamMessage, StreamOperation, StreamResource, stream, stream_schema,
};
pub use text_page::{
    DEFAULT_WIDTH, LineBreaks, NodeColumns, TextStyle, Verbosity, escape, escape_commands,
};
pub use top::{TopFrame, TopNode, TopSort, TopState, TopView, top};
pub(crate) use unread::sentences as unread_sentences;
pub use workflow_annotations::github;

use crate::plan::Plan;
use crate::plan::wire::DiagnosticSeverity;
pub(crate) use amount::span;
pub(crate) use reason::plan_reason;
pub(crate) use summary_line::first_line;
use summary_line::{last_line, open_points};
use text_page::TextPage;

/// Returns the plan as text, with a final line feed.
pub fn text(plan: &Plan, style: &TextStyle) -> String {
    let mut page = TextPage::new(style);
    let rows = row::rows(plan);
    if let Some(line) = first_line(plan) {
        page.line([text_page::StyledText::new(&line, text_page::Tone::Warning)]);
    }
    header::write(&mut page, plan, &rows);
    if let Some(found) = &plan.capacity.comparison {
        comparison::write(&mut page, found, style.verbosity);
    }
    if style.verbosity != Verbosity::Summary {
        table::write(&mut page, &rows, style, plan.timestamp);
    }
    if style.verbosity.has_details() {
        detail::write(&mut page, plan, &rows);
    }
    findings::write(&mut page, plan, style.verbosity);
    page.gap();
    page.line([text_page::StyledText::new(&last_line(plan), text_page::Tone::Strong)]);
    page.finish()
}

/// Returns whether all errors of a plan are broken plan rules. Its inputs are then fine.
pub fn is_errored_by_rules(plan: &Plan) -> bool {
    let mut errors = plan
        .capacity
        .diagnostics
        .iter()
        .filter(|d| d.severity == DiagnosticSeverity::Error)
        .peekable();
    plan.errored
        && errors.peek().is_some()
        && errors.all(|error| error.message.starts_with("the plan breaks rule"))
}
