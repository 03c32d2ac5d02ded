//! History: completed applies with their receipts, and cost over time.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::moment;
use crate::apply::{ApplyStatus, ChangeOutcome, Outcome, Receipt};
use crate::controller::{ApprovedBy, CompletedApply, Status, UncordonedNode};
use crate::model::units::MicroUsd;
use crate::render::html_fragments::{
    ChartMark, commit_link, hourly, monthly_delta, span, step_chart, text,
};

const NAME: usize = 120;
const LINE: usize = 400;
/// Maximum number of listed rows per receipt.
const ROWS_MAX: usize = 60;

/// Renders completed applies, newest first.
pub(super) fn history(status: &Status) -> String {
    let unread = status.history_error.as_ref().map(|why| {
        format!(
            "<p class=\"alert\">Applies of other processes may be missing here: {}</p>\n",
            text(why, LINE)
        )
    });
    let unread = unread.unwrap_or_default();
    if status.history.is_empty() && unread.is_empty() {
        return String::new();
    }
    let rows: String = status.history.iter().map(|apply| apply_row(apply)).collect();
    format!(
        "<h2 id=\"history\">History</h2>\n{unread}<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"table\"><table><thead><tr><th scope=\"col\">ended</th>\
         <th scope=\"col\">took</th><th scope=\"col\">commit</th><th scope=\"col\">approved</th><th scope=\"col\">outcome</th><th scope=\"col\" class=\"n\">cost</th></tr></thead>\
         <tbody>\n{rows}</tbody></table></div>\n"
    )
}

/// Renders nodes that an abandoned drain left cordoned and that were uncordoned.
pub(super) fn uncordoned(status: &Status) -> String {
    if status.uncordoned.is_empty() {
        return String::new();
    }
    let row = |one: &UncordonedNode| {
        format!(
            "<tr data-text=\"{0} {1}\"><td>{2}</td><td>{0}</td><td class=\"mono\">{1}</td></tr>\n",
            text(one.node.as_str(), NAME),
            text(one.instance.as_str(), NAME),
            moment(one.at),
        )
    };
    let rows: String = status.uncordoned.iter().map(row).collect();
    format!(
        "<h2 id=\"uncordoned\">Nodes that take pods again</h2>\n<p class=\"dim\">A drain that ended early had left \
         them cordoned, and the plan keeps them.</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"table\"><table><thead><tr>\
         <th scope=\"col\">when</th><th scope=\"col\">node</th><th scope=\"col\">instance</th></tr></thead><tbody>\n{rows}</tbody></table></div>\n"
    )
}

fn apply_row(apply: &CompletedApply) -> String {
    let counts: Vec<String> =
        apply.outcomes.iter().map(|(name, n)| format!("{n} {name}")).collect();
    let verdict = apply.receipt.as_ref().map(|receipt| receipt.verdict);
    let is_interrupted = verdict == Some(ApplyStatus::Interrupted);
    let says = match (&apply.refused, counts.is_empty()) {
        (Some(why), _) => format!("refused: {why}"),
        (None, true) if is_interrupted => "interrupted: its process ended".to_owned(),
        (None, true) => "nothing to do".to_owned(),
        (None, false) => counts.join(", "),
    };
    let bad = apply.refused.is_some()
        || is_interrupted
        || apply
            .receipt
            .as_ref()
            .is_some_and(|receipt| !receipt.outcomes.iter().all(|row| row.outcome.is_settled()));
    let class = if bad { "del" } else { "add" };
    let says = format!("<span class=\"{class}\">{}</span>", text(&says, LINE));
    let outcome = match &apply.receipt {
        Some(receipt) => {
            format!("<details><summary>{says}</summary>{}</details>", outcomes(receipt))
        }
        None => says,
    };
    format!(
        "<tr data-text=\"{0}\"><td>{1}</td><td>{2}</td><td>{3}</td><td>{4}</td><td>{outcome}</td>\
         <td class=\"n\">{5}</td></tr>\n",
        text(apply.digest.as_str(), NAME),
        moment(apply.ended_at),
        span(apply.ended_at.duration_since(apply.started_at)),
        commit_link(
            apply.decided.as_ref().and_then(|plan| plan.repository.as_deref()),
            &apply.commit
        ),
        text(&approval_text(&apply.approved), LINE),
        monthly_delta(apply.hourly_after - apply.hourly_before),
    )
}

fn approval_text(by: &ApprovedBy) -> String {
    match by {
        ApprovedBy::Merge => "by its merge".to_owned(),
        ApprovedBy::Digest { who } => format!("by {who}"),
        ApprovedBy::Policy => "by the policies".to_owned(),
        ApprovedBy::Contingency { digest, who } => {
            format!("by {who}, as contingency of {digest}")
        }
        ApprovedBy::BreakGlass { who, reason } => {
            format!("break-glass by {who}: {reason}")
        }
        ApprovedBy::Unknown => "unknown".to_owned(),
    }
}

fn outcomes(receipt: &Receipt) -> String {
    let mut rows: Vec<&ChangeOutcome> = receipt.outcomes.iter().collect();
    rows.sort_by_key(|row| row.outcome.is_settled());
    let mut html = "<ul>".to_owned();
    for row in rows.iter().take(ROWS_MAX) {
        let (how, why) = match &row.outcome {
            Outcome::Done => ("done", ""),
            Outcome::AlreadyDone => ("already done", ""),
            Outcome::Dropped { why } => ("no longer needed", why.as_str()),
            Outcome::Skipped { why } => ("skipped", why.as_str()),
            Outcome::Abandoned { why } => ("abandoned", why.as_str()),
            Outcome::Continues { why } => ("continues", why.as_str()),
            Outcome::Failed { why } => ("failed", why.as_str()),
        };
        let colon = if why.is_empty() { "" } else { ": " };
        let _ = writeln!(
            html,
            "<li><code>{}</code> {how}{colon}{}</li>",
            text(row.address.as_str(), NAME),
            text(why, LINE)
        );
    }
    let more = rows.len().saturating_sub(ROWS_MAX);
    if more > 0 {
        let _ = writeln!(html, "<li>and {more} more</li>");
    }
    html.push_str("</ul>");
    html
}

/// Renders cost over time: observed since the process started, and earlier as recorded in the
/// history.
pub(super) fn cost_over_time(status: &Status) -> String {
    let mut points: Vec<(Timestamp, MicroUsd)> = Vec::new();
    for apply in status.history.iter().rev().filter(|apply| apply.receipt.is_some()) {
        if points.is_empty() {
            points.push((apply.started_at, apply.hourly_before));
        }
        points.push((apply.ended_at, apply.hourly_after));
    }
    points.extend(&status.hourly_costs);
    // A preview has observed no changes.
    let current = status.plan.as_ref().filter(|_| status.hourly_costs.is_empty());
    points.extend(current.map(|now| (now.since, now.plan.capacity.cost.hourly_before)));
    points.sort_by_key(|(at, _)| *at);
    let marks: Vec<ChartMark> = status
        .history
        .iter()
        .filter(|apply| apply.receipt.is_some())
        .map(|apply| commit_mark(apply))
        .collect();
    let picture = step_chart("price per hour", &points, &marks, status.now);
    if picture.is_empty() {
        return picture;
    }
    let last = points.last().map_or(MicroUsd::ZERO, |(_, price)| *price);
    format!(
        "<h2 id=\"over-time\">Cost over time</h2>\n<p>Now {}. Dashed lines mark the end of an apply, with its \
         commit.</p>\n{picture}",
        hourly(last)
    )
}

fn commit_mark(apply: &CompletedApply) -> ChartMark {
    let commit: String = apply.commit.chars().take(7).collect();
    let delta = monthly_delta(apply.hourly_after - apply.hourly_before);
    ChartMark { at: apply.ended_at, label: format!("{commit} {}, {delta}", moment(apply.ended_at)) }
}
