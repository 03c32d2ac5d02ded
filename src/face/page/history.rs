//! What was done: plans with their receipts, and what the fleet cost meanwhile.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::{commit, moment};
use crate::apply::{ChangeOutcome, Outcome, Receipt};
use crate::reconcile::{ApprovedBy, Past, Status, Uncordoned};
use crate::render::web::{hourly, monthly_delta, span, steps, text};
use crate::units::MicroUsd;

const NAME: usize = 120;
const LINE: usize = 400;
/// Rows of one receipt; further ones are counted.
const ROWS_MAX: usize = 60;

/// Returns the plans that were carried out, the newest first.
pub(super) fn history(status: &Status) -> String {
    let unread = status.unread.as_ref().map(|why| {
        format!(
            "<p class=\"alert\">What other processes carried out may be missing here: {}</p>\n",
            text(why, LINE)
        )
    });
    let unread = unread.unwrap_or_default();
    if status.history.is_empty() && unread.is_empty() {
        return String::new();
    }
    let rows: String = status.history.iter().map(|past| row(past)).collect();
    format!(
        "<h2 id=\"history\">History</h2>\n{unread}<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th>ended</th>\
         <th>took</th><th>commit</th><th>approved</th><th>outcome</th><th class=\"n\">difference</th></tr></thead>\
         <tbody>\n{rows}</tbody></table></div>\n"
    )
}

/// Returns the nodes that a drain left cordoned which ended early, and that take pods again.
pub(super) fn uncordoned(status: &Status) -> String {
    if status.uncordoned.is_empty() {
        return String::new();
    }
    let row = |one: &Uncordoned| {
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
         them cordoned, and the plan keeps them.</p>\n<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>\
         <th>when</th><th>node</th><th>instance</th></tr></thead><tbody>\n{rows}</tbody></table></div>\n"
    )
}

fn row(past: &Past) -> String {
    let counts: Vec<String> = past.outcomes.iter().map(|(name, n)| format!("{n} {name}")).collect();
    let says = match (&past.refused, counts.is_empty()) {
        (Some(why), _) => format!("refused: {why}"),
        (None, true) => "nothing to do".to_owned(),
        (None, false) => counts.join(", "),
    };
    let bad = past.refused.is_some()
        || past
            .receipt
            .as_ref()
            .is_some_and(|receipt| !receipt.outcomes.iter().all(|row| row.outcome.is_settled()));
    let class = if bad { "del" } else { "add" };
    let says = format!("<span class=\"{class}\">{}</span>", text(&says, LINE));
    let outcome = match &past.receipt {
        Some(receipt) => {
            format!("<details><summary>{says}</summary>{}</details>", outcomes(receipt))
        }
        None => says,
    };
    format!(
        "<tr data-text=\"{0}\"><td>{1}</td><td>{2}</td><td><code>{3}</code></td><td>{4}</td><td>{outcome}</td>\
         <td class=\"n\">{5}</td></tr>\n",
        text(past.digest.as_str(), NAME),
        moment(past.ended_at),
        span(past.ended_at.duration_since(past.started_at)),
        commit(&past.commit),
        text(&approved(&past.approved), LINE),
        monthly_delta(past.hourly_after - past.hourly_before),
    )
}

fn approved(by: &ApprovedBy) -> String {
    match by {
        ApprovedBy::Merge => "by its merge".to_owned(),
        ApprovedBy::Digest { who } => format!("by {who}"),
        ApprovedBy::Policy => "by the policies".to_owned(),
        ApprovedBy::BreakGlass { who, reason } => {
            format!("by nobody: {who} broke the glass: {reason}")
        }
        ApprovedBy::Unknown => "not known any more".to_owned(),
    }
}

fn outcomes(receipt: &Receipt) -> String {
    let mut rows: Vec<&ChangeOutcome> = receipt.outcomes.iter().collect();
    rows.sort_by_key(|row| row.outcome.is_settled());
    let mut html = "<ul>".to_owned();
    for row in rows.iter().take(ROWS_MAX) {
        let (how, why) = match &row.outcome {
            Outcome::Done => ("done", ""),
            Outcome::AlreadyDone => ("was done already", ""),
            Outcome::Dropped { why } => ("not needed any more", why.as_str()),
            Outcome::Skipped { why } => ("skipped", why.as_str()),
            Outcome::GivenUp { why } => ("given up", why.as_str()),
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

/// Returns what the fleet cost, as plans found it since this process began, and before as far as the history tells.
pub(super) fn cost(status: &Status) -> String {
    let mut points: Vec<(Timestamp, MicroUsd)> = Vec::new();
    for past in status.history.iter().rev().filter(|past| past.receipt.is_some()) {
        if points.is_empty() {
            points.push((past.started_at, past.hourly_before));
        }
        points.push((past.ended_at, past.hourly_after));
    }
    points.extend(&status.costs);
    // Whoever only shows a plan has seen nothing change.
    let current = status.plan.as_ref().filter(|_| status.costs.is_empty());
    points.extend(current.map(|now| (now.since, now.plan.capacity.cost.hourly_before)));
    points.sort_by_key(|(at, _)| *at);
    let picture = steps("price per hour", &points, status.now);
    if picture.is_empty() {
        return picture;
    }
    let last = points.last().map_or(MicroUsd::ZERO, |(_, price)| *price);
    format!("<h2 id=\"over-time\">Cost over time</h2>\n<p>Now {}.</p>\n{picture}", hourly(last))
}
