//! HTML fragments of a plan for the server: sections, escaped text, and amounts.
//!
//! Invariant: outside text in HTML is escaped.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};

use super::html::{pictures, sections};
use super::row::rows;
use super::{amount, header, reason};
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::plan::forecast::Forecast;
use crate::plan::wire::{ExplainRow, Summary};

pub use super::html::{SCRIPT, STYLE, hash_source, text};

/// Most listed phases of a forecast; the chart has all of them.
const PHASES_MAX: usize = 40;
/// Width and height of a chart over time.
const WIDTH: i64 = 720;
const HEIGHT: i64 = 110;

/// The sections of a plan; a section without content is empty.
#[derive(Debug, Clone)]
pub struct PlanSections {
    /// Reasons why the plan is limited or cannot be applied, escaped.
    pub limitations: Vec<String>,
    /// Findings of policies.
    pub checks: String,
    /// Charts of nodes before and after.
    pub nodes: String,
    /// Rows with their reasons and prices.
    pub changes: String,
    /// Unschedulable pods.
    pub unschedulable: String,
    /// The cost by pool, zone and capacity type.
    pub cost: String,
    /// A map of the zones.
    pub zones: String,
    /// Workloads.
    pub demand: String,
    /// Problems of the inputs.
    pub problems: String,
}

/// Returns the sections of a plan.
#[must_use]
pub fn sections(plan: &Plan) -> PlanSections {
    let rows = rows(plan);
    PlanSections {
        limitations: header::limitations(plan).iter().map(|line| text(line, 400)).collect(),
        checks: sections::checks(plan),
        nodes: pictures(plan, &rows),
        changes: sections::changes(plan, &rows),
        unschedulable: sections::unschedulable(plan),
        cost: sections::cost(plan),
        zones: sections::zones(&rows),
        demand: sections::demand(plan),
        problems: sections::problems(plan),
    }
}

/// Returns the reason of a row, with its numbers.
#[must_use]
pub fn row_reason(explain: &ExplainRow) -> String {
    reason::reason(&explain.reason)
}

/// Returns the changes of a plan in a few words.
#[must_use]
pub fn summary(plan: &Plan) -> String {
    summary_of(&plan.summary, plan.capacity.cost.monthly_delta)
}

/// Returns the changes of a summary in a few words.
#[must_use]
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
#[must_use]
pub fn hourly(price: MicroUsd) -> String {
    amount::hourly(price)
}

/// Returns the monthly cost of an hourly price, in whole dollars.
#[must_use]
pub fn monthly(price: MicroUsd) -> String {
    format!("{}/mo", amount::dollars(price.per_month(), 0))
}

/// Returns the monthly difference of an hourly price difference.
#[must_use]
pub fn monthly_delta(price: MicroUsd) -> String {
    format!("{}/mo", amount::signed_dollars(price.per_month(), 2))
}

/// Returns a duration in its largest unit.
#[must_use]
pub fn span(duration: SignedDuration) -> String {
    amount::span(duration)
}

/// Returns a step chart of a price over time, up to `until`. Empty with fewer than two points.
#[must_use]
pub fn step_chart(title: &str, points: &[(Timestamp, MicroUsd)], until: Timestamp) -> String {
    let (Some((from, _)), true) = (points.first(), points.len() > 1) else { return String::new() };
    let most = points.iter().map(|(_, price)| price.0).max().unwrap_or(0).max(1);
    let whole = i128::from(until.duration_since(*from).as_secs().max(1));
    let x = |at: Timestamp| {
        let part = i128::from(at.duration_since(*from).as_secs());
        i64::try_from(part * i128::from(WIDTH) / whole).unwrap_or(WIDTH).clamp(0, WIDTH)
    };
    let y = |price: MicroUsd| {
        let part = i128::from(price.0.max(0)) * i128::from(HEIGHT - 10) / i128::from(most);
        HEIGHT - i64::try_from(part).unwrap_or(0)
    };
    let mut line = String::new();
    for (index, (at, price)) in points.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = if index == 0 {
            write!(line, "M{} {}", x(*at), y(*price))
        } else {
            write!(line, "H{}V{}", x(*at), y(*price))
        };
    }
    let _ = write!(line, "H{WIDTH}");
    let last = points.last().map_or(MicroUsd::ZERO, |(_, price)| *price);
    let minute = |at: Timestamp| at.strftime("%Y-%m-%d %H:%M UTC");
    let says = format!("{title}: at most {}, at the end {}", hourly(MicroUsd(most)), hourly(last));
    format!(
        "<svg class=\"steps\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" \
         role=\"img\"><title>{0}</title><path class=\"area\" d=\"{line}V{HEIGHT}H0Z\"/>\
         <path class=\"line\" d=\"{line}\"/></svg>\n<p class=\"dim axis\"><span>{1}</span>\
         <span>at most {2}</span><span>{3}</span></p>\n",
        text(&says, 200),
        minute(*from),
        hourly(MicroUsd(most)),
        minute(until),
    )
}

/// Returns the section of a forecast.
#[must_use]
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
        "<h2 id=\"forecast\">Forecast</h2>\n{}<details><summary>{} until {}, {} in all</summary>\
         <div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>from</th><th class=\"n\">pods</th>\
         <th class=\"n\">nodes</th><th class=\"n\">price</th><th>because</th></tr></thead><tbody>\n{rows}\
         </tbody></table></div>\n{more}</details>\n",
        step_chart("forecast price per hour", &points, end),
        amount::count(u32::try_from(forecast.phases.len()).unwrap_or(u32::MAX), "phase"),
        forecast.to,
        amount::dollars(forecast.total, 2),
    )
}
