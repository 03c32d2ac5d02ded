//! The page: the fleet now, the plan and what holds it back, what was done, what it costs.
//!
//! Everything that matters is HTML that the server writes; without a script the page reloads itself.
//! With one it follows the loop by server-sent events, and only what changed is put in place. What
//! may be asked of the loop is a plain form with a token of the cluster in it, and no cookie, so that
//! no other page can send it. Invariants: every text from outside is escaped; the policy lets nothing
//! run or load but the style and the scripts that stand in the page.

mod ask;
mod history;
mod now;

use jiff::Timestamp;

use crate::plan::forecast::Forecast;
use crate::reconcile::Status;
use crate::render::web::{SCRIPT, STYLE, hash_source, sections, text};

const FOLLOW: &str = include_str!("page/follow.js");

/// Seconds after which a browser without scripts loads the page again.
const RELOAD_SECONDS: u32 = 30;

/// What the page is made from.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    /// What the loop knows.
    pub status: &'a Status,
    /// What the clock will bring, where it was computed.
    pub forecast: Option<&'a Forecast>,
    /// What this is a page of, and what may be done with it.
    pub kind: PageKind,
}

/// What serves a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// The loop, of which things may be asked where somebody checks who asks.
    Loop {
        /// Whether somebody does.
        takes_requests: bool,
    },
    /// A preview: a plan or a sandbox, which no loop carries out.
    Preview,
}

/// Returns what a browser is told to let the page do, for the header of the same name.
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

/// Returns the page.
#[must_use]
pub fn page(page: &Page<'_>) -> String {
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
        live(page)
    )
}

/// Returns what changes while somebody looks.
fn live(page: &Page<'_>) -> String {
    let status = page.status;
    let mut html = now::badges(status, page.kind);
    html.push_str(&now::alerts(status, page.kind));
    html.push_str(&now::tiles(status));
    html.push_str(&now::going(status));
    let asks = match page.kind {
        PageKind::Loop { takes_requests: true } => ask::requests(status),
        PageKind::Loop { takes_requests: false } | PageKind::Preview => String::new(),
    };
    if let Some(current) = &status.plan {
        let sections = sections(&current.plan);
        html.push_str(&sections.unschedulable);
        html.push_str(&now::held(status, current));
        html.push_str(&asks);
        html.push_str(&sections.changes);
        html.push_str(&sections.checks);
        html.push_str(match sections.nodes.as_str() {
            "" => "<h2 id=\"nodes\">Nodes</h2>\n<p>There is no node, and none is planned.</p>\n",
            nodes => nodes,
        });
        html.push_str(&history::history(status));
        html.push_str(&history::uncordoned(status));
        html.push_str(&history::cost(status));
        html.push_str(&page.forecast.map(crate::render::web::forecast).unwrap_or_default());
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

/// Returns a moment to the second.
fn moment(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Returns the first digits of a commit.
fn commit(commit: &str) -> String {
    text(&commit.chars().take(10).collect::<String>(), 20)
}
