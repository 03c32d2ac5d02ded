//! Pieces of a page for whoever makes one: the sections of a plan, safe text, amounts as people read
//! them.
//!
//! Invariant: whatever comes out as HTML holds text from outside only where it is escaped.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};

use super::html::{parts, pictures};
use super::row::rows;
use super::{amount, head, reason};
use crate::plan::Plan;
use crate::plan::forecast::Forecast;
use crate::plan::wire::{ExplainRow, Summary};
use crate::units::MicroUsd;

pub use super::html::{SCRIPT, STYLE, hash_source, text};

/// Phases of a forecast that the page lists; all of them are in its picture.
const PHASES_MAX: usize = 40;
/// Width and height of a picture of something over time.
const WIDTH: i64 = 720;
const HEIGHT: i64 = 110;

/// The sections of a plan; each is empty where it has nothing to say.
#[derive(Debug, Clone)]
pub struct Sections {
    /// What keeps the plan from being applied, a line each, escaped.
    pub standing: Vec<String>,
    /// Findings of policies.
    pub checks: String,
    /// Nodes before and after, as pictures.
    pub nodes: String,
    /// Rows, with their reasons and prices.
    pub changes: String,
    /// Pods without a place.
    pub unschedulable: String,
    /// The money in parts.
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
pub fn sections(plan: &Plan) -> Sections {
    let rows = rows(plan);
    Sections {
        standing: head::standing(plan).iter().map(|line| text(line, 400)).collect(),
        checks: parts::checks(plan),
        nodes: pictures(plan, &rows),
        changes: parts::changes(plan, &rows),
        unschedulable: parts::unschedulable(plan),
        cost: parts::cost(plan),
        zones: parts::zones(&rows),
        demand: parts::demand(plan),
        problems: parts::problems(plan),
    }
}

/// Returns why a row is as it is, with its numbers.
#[must_use]
pub fn row_reason(explain: &ExplainRow) -> String {
    reason::reason(&explain.reason)
}

/// Returns what a plan does in a few words.
#[must_use]
pub fn summary(plan: &Plan) -> String {
    summary_of(&plan.summary, plan.capacity.cost.monthly_delta)
}

/// Returns the same from its numbers.
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

/// Returns what a price per hour comes to in a month, in whole dollars.
#[must_use]
pub fn monthly(price: MicroUsd) -> String {
    format!("{}/mo", amount::dollars(price.per_month(), 0))
}

/// Returns a difference of prices per hour as one of a month.
#[must_use]
pub fn monthly_delta(price: MicroUsd) -> String {
    format!("{}/mo", amount::signed_dollars(price.per_month(), 2))
}

/// Returns a length of time in its largest unit.
#[must_use]
pub fn span(duration: SignedDuration) -> String {
    amount::span(duration)
}

/// Returns a picture of a price over time: steps from each point to the next, and on to `until`.
/// Empty where there are fewer than two points.
#[must_use]
pub fn steps(title: &str, points: &[(Timestamp, MicroUsd)], until: Timestamp) -> String {
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
        more => format!("<p class=\"dim\">and {more} phases more</p>\n"),
    };
    format!(
        "<h2 id=\"forecast\">Forecast</h2>\n{}<details><summary>{} until {}, {} in all</summary>\
         <div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>from</th><th class=\"n\">pods</th>\
         <th class=\"n\">nodes</th><th class=\"n\">price</th><th>because</th></tr></thead><tbody>\n{rows}\
         </tbody></table></div>\n{more}</details>\n",
        steps("price per hour as the clock will have it", &points, end),
        amount::count(u32::try_from(forecast.phases.len()).unwrap_or(u32::MAX), "phase"),
        forecast.to,
        amount::dollars(forecast.total, 2),
    )
}
