//! HTML fragments of a plan for the server: sections, escaped text, and amounts.
//!
//! Invariant: outside text in HTML is escaped.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};

use super::html::{attention, fleet, sections};
use super::row::rows;
use super::{amount, reason};
use crate::model::desired::PoolLimits;
use crate::model::ids::{Address, PoolName};
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::plan::forecast::Forecast;
use crate::plan::wire::Summary;

pub use super::html::{
    ChartMark, FILTERS, NodeAnnotation, NodeAnnotations, NodeMark, PageVerdict, SCRIPT, STYLE,
    VerdictTone, changes_text, commit_link, errored_text, fact_list, has_changes, hash_source,
    no_changes, origin_facts, plan_facts, plan_verdict, problem_verdict, step_chart, text,
    total_list, totals,
};

/// Most listed phases of a forecast; the chart has all of them.
const PHASES_MAX: usize = 40;

/// The sections of a plan; a section without content is empty.
#[derive(Debug, Clone)]
pub struct PlanSections {
    /// Errors, unschedulable pods, unread sources and blocked removals.
    pub attention: String,
    /// Findings of policies.
    pub checks: String,
    /// Rows that change, with their reasons and prices.
    pub changes: String,
    /// Nodes by pool and zone.
    pub fleet: String,
    /// The cost by pool, zone and capacity type.
    pub cost: String,
    /// Workloads.
    pub demand: String,
    /// Warnings and notes about the inputs.
    pub problems: String,
}

/// Returns the sections of a plan. `annotations` are facts about nodes at the time `now`, and `limits` are
/// those of the repository.
pub fn plan_sections(
    plan: &Plan,
    annotations: &NodeAnnotations,
    limits: &BTreeMap<PoolName, PoolLimits>,
    now: Timestamp,
) -> PlanSections {
    let rows = rows(plan);
    PlanSections {
        attention: attention(plan, &rows),
        checks: sections::checks(plan),
        changes: sections::changes(plan, &rows),
        fleet: fleet(plan, &rows, annotations, limits, now),
        cost: sections::cost(plan),
        demand: sections::demand(plan),
        problems: sections::problems(plan),
    }
}

/// Returns the reason of each row, with its numbers, and when its drain ends by force.
pub fn row_reasons(plan: &Plan) -> BTreeMap<&Address, String> {
    rows(plan).iter().map(|row| (&row.resource.address, reason::row_reason(row))).collect()
}

/// Returns the changes of a plan in a few words.
pub fn summary(plan: &Plan) -> String {
    summary_of(&plan.summary, plan.capacity.cost.monthly_delta)
}

/// Returns the changes of a summary in a few words.
pub fn summary_of(summary: &Summary, monthly_delta: MicroUsd) -> String {
    let nodes = summary.nodes;
    if (summary.add, summary.change, summary.destroy) == (0, 0, 0) {
        return "no changes".to_owned();
    }
    let change = match summary.change {
        0 => String::new(),
        n => format!(" ~{n}"),
    };
    let delta = amount::signed_dollars(monthly_delta, 0);
    format!("+{} -{}{change}, {delta}/mo", nodes.launch, nodes.terminate)
}

/// Returns a price per hour.
pub fn hourly(price: MicroUsd) -> String {
    amount::hourly(price)
}

/// Returns the monthly cost of an hourly price, in whole dollars.
pub fn monthly(price: MicroUsd) -> String {
    format!("{}/mo", amount::dollars(price.per_month(), 0))
}

/// Returns the monthly difference of an hourly price difference.
pub fn monthly_delta(price: MicroUsd) -> String {
    format!("{}/mo", amount::signed_dollars(price.per_month(), 2))
}

/// Returns a duration in its largest unit.
pub fn span(duration: SignedDuration) -> String {
    amount::span(duration)
}

/// Returns the section of a forecast.
pub fn forecast(forecast: &Forecast) -> String {
    let points: Vec<(Timestamp, MicroUsd)> =
        forecast.phases.iter().map(|phase| (phase.from, phase.hourly)).collect();
    let end = forecast.phases.last().map_or(forecast.to, |phase| phase.to);
    let mut rows = String::new();
    for phase in forecast.phases.iter().take(PHASES_MAX) {
        let because: Vec<String> = phase
            .because
            .iter()
            .take(3)
            .map(|event| format!("{} {}", event.object, event.what))
            .collect();
        let _ = writeln!(
            rows,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
            phase.from,
            phase.pods,
            phase.nodes,
            hourly(phase.hourly),
            text(&because.join("; "), 300)
        );
    }
    let more = match forecast.phases.len().saturating_sub(PHASES_MAX) {
        0 => String::new(),
        more => format!("<p class=\"dim\">and {more} more phases</p>\n"),
    };
    format!(
        "<h2 id=\"forecast\">Forecast</h2>\n{}<details><summary>{} until {}, {} in total</summary>\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"phases\"><table><thead><tr>\
         <th scope=\"col\">from</th><th scope=\"col\" class=\"n\">pods</th><th scope=\"col\" class=\"n\">nodes</th>\
         <th scope=\"col\" class=\"n\">price</th><th scope=\"col\">why</th></tr></thead><tbody>\n{rows}\
         </tbody></table></div>\n{more}</details>\n",
        step_chart("forecast price per hour", &points, &[], end),
        amount::count(u32::try_from(forecast.phases.len()).unwrap_or(u32::MAX), "phase"),
        forecast.to,
        amount::dollars(forecast.total, 2),
    )
}
