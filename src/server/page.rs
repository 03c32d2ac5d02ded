//! The page: current fleet, plan, blocked changes, history and cost.
//!
//! The server renders all content as HTML, and the page reloads without a script. With the script
//! it follows server-sent events and replaces only the changed part. Operator requests are plain
//! forms with a cluster token and no cookie, so no other page can send them. Invariants: all
//! external text is escaped; the content security policy allows only the style and scripts in the
//! page.

mod current_state;
mod history;
mod request_forms;

use jiff::Timestamp;

use crate::controller::Status;
use crate::plan::forecast::Forecast;
use crate::render::html_fragments::{SCRIPT, STYLE, hash_source, sections, text};

const FOLLOW: &str = include_str!("page/follow.js");

/// Reload interval in seconds without a script.
const RELOAD_SECONDS: u32 = 30;

/// Inputs of the page.
#[derive(Debug, Clone, Copy)]
pub struct StatusPage<'a> {
    /// Published status.
    pub status: &'a Status,
    /// Forecast, if it was computed.
    pub forecast: Option<&'a Forecast>,
    /// Kind of page.
    pub kind: PageKind,
}

/// Kind of page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// A controller.
    Controller {
        /// True if operator requests are authorized, so that the page offers forms.
        takes_requests: bool,
    },
    /// A preview of a plan or sandbox, which no controller applies.
    Preview,
}

/// Returns the content security policy, the value of the header.
#[must_use]
pub fn policy() -> String {
    format!(
        "default-src 'none'; img-src data:; style-src {}; script-src {} {}; connect-src 'self'; \
         base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
        hash_source(STYLE),
        hash_source(SCRIPT),
        hash_source(FOLLOW)
    )
}

/// Renders the page.
#[must_use]
pub fn page(page: &StatusPage<'_>) -> String {
    let cluster = text(&page.status.cluster.name, 80);
    let region = text(&page.status.cluster.region, 40);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <noscript><meta http-equiv=\"refresh\" content=\"{RELOAD_SECONDS}\"></noscript>\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{cluster}: fleet</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#live\">Skip to the fleet</a>\n\
         <header>\n<div class=\"top\"><h1>{cluster} <span class=\"dim\">{region}</span></h1>\n\
         <div><span id=\"link\" class=\"dim\" role=\"status\"></span> <button id=\"theme\" \
         type=\"button\" data-script hidden>Dark or light</button></div></div>\n\
         <p data-script hidden><label>Search <input id=\"search\" type=\"search\" \
         placeholder=\"node, pool, type, zone, workload ( / )\"></label> \
         <span id=\"found\" class=\"dim\" role=\"status\"></span></p>\n</header>\n\
         <main id=\"live\">\n{}</main>\n<script>{SCRIPT}</script>\n<script>{FOLLOW}</script>\n</body>\n</html>\n",
        live_section(page)
    )
}

/// Renders the part that the script replaces.
fn live_section(page: &StatusPage<'_>) -> String {
    let status = page.status;
    let mut html = current_state::badges(status, page.kind);
    html.push_str(&current_state::alerts(status, page.kind));
    html.push_str(&current_state::tiles(status));
    html.push_str(&current_state::terminating(status));
    let asks = match page.kind {
        PageKind::Controller { takes_requests: true } => request_forms::request_forms(status),
        PageKind::Controller { takes_requests: false } | PageKind::Preview => String::new(),
    };
    if let Some(current) = &status.plan {
        let sections = sections(&current.plan);
        html.push_str(&sections.unschedulable);
        html.push_str(&current_state::in_progress_and_blocked(status, current));
        html.push_str(&asks);
        html.push_str(&sections.changes);
        html.push_str(&sections.checks);
        html.push_str(match sections.nodes.as_str() {
            "" => "<h2 id=\"nodes\">Nodes</h2>\n<p>There is no node, and none is planned.</p>\n",
            nodes => nodes,
        });
        html.push_str(&history::history(status));
        html.push_str(&history::uncordoned(status));
        html.push_str(&history::cost_over_time(status));
        html.push_str(
            &page.forecast.map(crate::render::html_fragments::forecast).unwrap_or_default(),
        );
        for section in [&sections.cost, &sections.zones, &sections.demand, &sections.problems] {
            html.push_str(section);
        }
    } else {
        html.push_str(&asks);
        html.push_str("<h2 id=\"nodes\">Nodes</h2>\n<p>No plan was made yet.</p>\n");
        html.push_str(&history::history(status));
    }
    html.push_str(&footer(status));
    html
}

fn footer(status: &Status) -> String {
    format!(
        "<footer><p>Fleetwright {}, as {}, since {}. As of <time>{}</time>.</p></footer>\n",
        text(&status.version, 40),
        text(&status.identity, 120),
        moment(status.started_at),
        moment(status.now)
    )
}

/// Formats a time to the second.
fn moment(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Returns the first characters of a commit.
fn commit(commit: &str) -> String {
    text(&commit.chars().take(10).collect::<String>(), 20)
}
