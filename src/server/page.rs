//! The page: current fleet, plan, blocked changes, history and cost.
//!
//! The server renders all content as HTML, and the page reloads without a script. With the script
//! it follows server-sent events and replaces only the changed part. Operator requests are plain
//! forms with a cluster token and no cookie, so no other page can send them. Invariants: all
//! external text is escaped; the content security policy allows only the style and scripts in the
//! page.

mod current_state;
mod history;
mod node_annotations;
mod request_forms;
mod verdict;

use jiff::Timestamp;

use crate::controller::Status;
use crate::plan::forecast::Forecast;
use crate::render::html_fragments::{
    FILTERS, SCRIPT, STYLE, commit_link, hash_source, plan_sections, text,
};

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
pub fn page(page: &StatusPage<'_>) -> String {
    let cluster = text(&page.status.cluster.name, 80);
    let region = text(&page.status.cluster.region, 40);
    let verdict = verdict::verdict(page);
    let (state, fleet) = live_parts(page);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <noscript><meta http-equiv=\"refresh\" content=\"{RELOAD_SECONDS}\"></noscript>\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{title}: {cluster}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">Skip to the fleet</a>\n\
         <header>\n<div class=\"top\"><h1>{cluster} <span class=\"dim\">{region}</span></h1>\n\
         <span id=\"link\" class=\"dim\" role=\"status\"></span></div>\n{verdict}</header>\n\
         <main id=\"main\">\n<div id=\"state\" data-live>\n{state}</div>\n{FILTERS}<div id=\"fleet\" data-live>\n{fleet}\
         </div>\n</main>\n<script>{SCRIPT}</script>\n<script>{FOLLOW}</script>\n</body>\n</html>\n",
        title = text(&verdict.title, 120),
        verdict = verdict.html(),
    )
}

/// Renders the parts that the script replaces: the state above the filters, and the fleet below.
fn live_parts(page: &StatusPage<'_>) -> (String, String) {
    let status = page.status;
    let mut state = verdict::status_totals(status);
    state.push_str(&verdict::status_facts(status, page.kind));
    state.push_str(&current_state::alerts(status, page.kind));
    let forms = match page.kind {
        PageKind::Controller { takes_requests: true } => request_forms::request_forms(status),
        PageKind::Controller { takes_requests: false } | PageKind::Preview => String::new(),
    };
    let Some(current) = &status.plan else {
        state.push_str(&current_state::terminating(status));
        state.push_str(&forms);
        let fleet = "<h2 id=\"nodes\">Nodes</h2>\n<p>No plan was made yet.</p>\n".to_owned();
        return (state, fleet + &history::history(status) + &footer(status));
    };
    let annotations = node_annotations::node_annotations(status, current);
    let sections =
        plan_sections(&current.plan, &annotations, &status.repository.pool_limits, status.now);
    state.push_str(&sections.attention);
    state.push_str(&current_state::in_progress_and_blocked(status, current));
    state.push_str(&current_state::terminating(status));
    for section in [&forms, &sections.checks, &sections.changes] {
        state.push_str(section);
    }
    let nodes = match sections.fleet.as_str() {
        "" => "<h2 id=\"nodes\">Nodes</h2>\n<p>There is no node, and none is planned.</p>\n",
        nodes => nodes,
    };
    let forecast = page.forecast.map(crate::render::html_fragments::forecast).unwrap_or_default();
    let fleet = [
        nodes,
        &history::cost_over_time(status),
        &history::history(status),
        &history::uncordoned(status),
        &forecast,
        &sections.cost,
        &sections.demand,
        &sections.problems,
        &footer(status),
    ]
    .concat();
    (state, fleet)
}

fn footer(status: &Status) -> String {
    format!(
        "<footer><p>Fleetwright {}, as {}, since {}. As of <time>{}</time>. \
         <a href=\"plan.json\" download>Download the plan as JSON</a>.</p></footer>\n",
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

/// Returns the first characters of a commit of the repository, linked if its web address is known.
fn commit_of(status: &Status, commit: &str) -> String {
    let plan = status.plan.as_ref();
    commit_link(plan.and_then(|current| current.plan.capacity.base.repository.as_deref()), commit)
}
