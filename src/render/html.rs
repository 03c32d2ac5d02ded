//! A plan as one self-contained HTML page: no network, no other file, and no script for essential
//! content.
//!
//! This module knows the wire form and HTML.
//!
//! Invariants:
//! - Outside text is escaped.
//! - The content security policy allows only the embedded style and script.
//! - The page stays small, because equal nodes of a large fleet share a line.

mod attention;
mod chart;
mod escape;
mod fleet;
mod fleet_bar;
mod links;
pub(super) mod sections;
mod verdict;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::amount;
use super::row::{PlanRow, Symbol, count as counted, displaced_text, rows};
use crate::model::commit::CommitOrigin;
use crate::model::desired::PoolLimits;
use crate::model::ids::PoolName;
use crate::plan::Plan;
pub(super) use attention::attention;
pub use chart::{ChartMark, step_chart};
pub use escape::{hash_source, text};
pub(super) use fleet::fleet;
pub use fleet::{NodeAnnotation, NodeAnnotations, NodeMark};
pub use links::commit as commit_link;
use sections::{changes, checks, comparison, cost, demand, footer, problems};
pub use verdict::{
    PageVerdict, VerdictTone, changes_text, errored_text, fact_list, has_changes, no_changes,
    origin_facts, plan_facts, plan_verdict, problem_verdict, total_list, totals,
};

/// The style of the page.
pub const STYLE: &str = include_str!("html/style.css");
/// The script of the page: filters.
pub const SCRIPT: &str = include_str!("html/script.js");
/// The filters, which the script shows. Without the script, everything is shown.
pub const FILTERS: &str = "<div id=\"filters\" role=\"search\" data-script hidden>\
     <label>Pool <select id=\"pool\"><option value=\"\">all pools</option></select></label>\
     <label>Zone <select id=\"zone\"><option value=\"\">all zones</option></select></label>\
     <label>Workload, node or type <input id=\"search\" type=\"search\" placeholder=\"press / to search\"></label>\
     <button id=\"csv\" type=\"button\">Download CSV</button>\
     <span id=\"found\" class=\"dim\" role=\"status\"></span></div>\n";

/// Facts of the repository that a plan does not record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RepositoryFacts {
    /// Author and pull request of the planned commit.
    pub origin: Option<CommitOrigin>,
    /// Limits of the pools that have some.
    pub pool_limits: BTreeMap<PoolName, PoolLimits>,
}

/// Returns the plan as an HTML page, with a final line feed.
pub fn html(plan: &Plan) -> String {
    html_with_facts(plan, &RepositoryFacts::default())
}

/// Returns the plan as an HTML page that also shows facts of the repository.
pub fn html_with_facts(plan: &Plan, facts: &RepositoryFacts) -> String {
    let rows = rows(plan);
    let cluster = text(&plan.capacity.base.world.cluster.name, 80);
    let verdict = text(&plan_verdict(plan).title, 120);
    let policy = format!(
        "default-src 'none'; img-src data:; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
        hash_source(STYLE),
        hash_source(SCRIPT)
    );
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{verdict}: plan for {cluster}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#main\">Skip to the plan</a>\n"
    );
    page.push_str(&header(plan, facts));
    let annotations = NodeAnnotations::new();
    for section in [
        removals(plan, &rows),
        attention(plan, &rows),
        comparison(plan),
        checks(plan),
        changes(plan, &rows),
        FILTERS.to_owned(),
        fleet(plan, &rows, &annotations, &facts.pool_limits, plan.timestamp),
        cost(plan),
        demand(plan),
        problems(plan),
        "</main>\n".to_owned(),
        footer(plan),
    ] {
        page.push_str(&section);
    }
    let _ = write!(page, "<script>{SCRIPT}</script>\n</body>\n</html>\n");
    page
}

fn header(plan: &Plan, facts: &RepositoryFacts) -> String {
    let base = &plan.capacity.base;
    let cluster = &base.world.cluster;
    let mut lines = plan_facts(plan, None);
    // They follow the commit.
    let origin = origin_facts(base.repository.as_deref(), facts.origin.as_ref());
    let second = lines.len().min(1);
    lines.splice(second..second, origin);
    format!(
        "<header>\n<h1>Plan for {} <span class=\"dim\">{}</span></h1>\n{}{}{}\
         </header>\n<main id=\"main\">\n",
        text(&cluster.name, 80),
        text(&cluster.region, 40),
        plan_verdict(plan).html(),
        totals(plan),
        fact_list(&lines)
    )
}

/// Returns an alert if the plan removes nodes.
fn removals(plan: &Plan, rows: &[PlanRow<'_>]) -> String {
    let removed = counted(rows, Symbol::Terminate);
    if removed == 0 {
        return String::new();
    }
    format!(
        "<p class=\"alert\"><strong>Removes {}</strong>; {}.</p>\n",
        amount::count(removed, "node"),
        displaced_text(plan, rows)
    )
}

#[cfg(test)]
mod tests;
