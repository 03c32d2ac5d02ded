//! Current state: leadership, alerts, totals, draining instances and blocked changes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{PageKind, commit, moment};
use crate::controller::{Blocked, PublishedPlan, SourceState, Status, Suspension, labels};
use crate::model::ids::Address;
use crate::model::observed::Completeness;
use crate::model::units::MicroUsd;
use crate::render::html_fragments::{hourly, monthly, monthly_delta, span, text};

const NAME: usize = 120;
const LINE: usize = 600;
/// Maximum number of addresses per blocking reason.
const NAMED_MAX: usize = 12;
/// Maximum number of listed terminating instances.
const TERMINATING_LISTED_MAX: usize = 200;

/// Renders mode, leadership, revision and age of the observation.
pub(super) fn badges(status: &Status, kind: PageKind) -> String {
    let mut badges = Vec::new();
    match kind {
        PageKind::Preview => badges.push("preview: nothing is applied".to_owned()),
        PageKind::Controller { .. } => {
            badges.push(format!("mode <strong>{}</strong>", status.mode.as_str()));
            badges.push(match (&status.lease_holder, status.is_leader) {
                (_, true) => "leader".to_owned(),
                (Some(other), false) => format!("standby of {}", text(other, NAME)),
                (None, false) => "waits for the lease".to_owned(),
            });
        }
    }
    if let Some(served) = &status.repository.commit {
        badges.push(format!("commit <code>{}</code>", commit(served)));
    }
    if let Some(world) = &status.world {
        badges.push(format!("observed {} ago", span(world.age)));
    }
    let badges: Vec<String> =
        badges.into_iter().map(|badge| format!("<span class=\"badge\">{badge}</span>")).collect();
    format!("<p>{}</p>\n", badges.join("\n"))
}

/// Returns restrictions of the controller.
fn restrictions(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(competing) = &status.competing_autoscaler {
        lines.push(format!(
            "{}: a competing autoscaler, so the controller only plans and leaves interruption messages to it; \
             work in progress continues",
            text(competing, LINE)
        ));
    }
    let state = &status.persisted_state;
    if state.dropped_entries > 0 {
        lines.push(format!(
            "The persisted state exceeds its limit: {} entries were dropped to fit {} bytes",
            state.dropped_entries, state.bytes
        ));
    }
    lines
}

/// Renders alerts.
pub(super) fn alerts(status: &Status, kind: PageKind) -> String {
    let mut lines = Vec::new();
    for breaker in &status.breakers {
        lines.push(format!(
            "<strong>Breaker {} latched</strong> at {}: {}",
            text(&breaker.name, NAME),
            moment(breaker.since),
            text(&breaker.why, LINE)
        ));
    }
    if let Some(suspended) = &status.suspended {
        lines.push(suspension_alert("Suspended", suspended));
    }
    if let Some(break_glass) = &status.break_glass {
        lines.push(suspension_alert(
            "Break-glass: approvals, windows and CI are bypassed",
            break_glass,
        ));
    }
    lines.extend(restrictions(status));
    lines.extend(read_alert("The repository", &status.repository.reads));
    if let Some((commit, why)) = &status.repository.waiting {
        lines.push(format!(
            "Commit <code>{}</code> is not served yet: {}",
            super::commit(commit),
            text(why, LINE)
        ));
    }
    match &status.world {
        // A preview shows a plan with its own observation.
        None if kind == PageKind::Preview => {}
        None => lines.push("The cluster was not observed yet.".to_owned()),
        Some(world) => {
            lines.extend(read_alert("The cluster", &world.reads));
            for (source, completeness) in &world.sources {
                let why = match completeness {
                    Completeness::Complete => continue,
                    Completeness::Partial { reason } => format!("was read partially: {reason}"),
                    Completeness::Failed { reason } => format!("could not be read: {reason}"),
                };
                lines.push(text(&format!("{source} {why}"), LINE));
            }
        }
    }
    for (deed, failure) in &status.failing_actions {
        lines.push(format!(
            "{} fails since {} ({} times, last at {}): {}",
            text(&labels::failing_action(*deed, failure), NAME),
            moment(failure.since),
            failure.count,
            moment(failure.last),
            text(&failure.error, LINE)
        ));
    }
    for (pool, (why, until)) in &status.quarantined {
        lines.push(format!(
            "Pool {} launches nothing until {}: {}",
            text(pool.as_str(), NAME),
            moment(*until),
            text(why, LINE)
        ));
    }
    if let Some(current) = &status.plan
        && current.plan.errored
    {
        lines.push(
            "The inputs have errors: the plan removes nothing and is not applied.".to_owned(),
        );
    }
    let lines: Vec<String> =
        lines.iter().map(|line| format!("<p class=\"alert\">{line}</p>\n")).collect();
    lines.concat()
}

fn suspension_alert(what: &str, asked: &Suspension) -> String {
    let until = asked.until.map_or_else(
        || "until an operator ends it".to_owned(),
        |at| format!("until {}", moment(at)),
    );
    format!(
        "<strong>{what}</strong> by {} since {}, {until}: {}",
        text(&asked.by, NAME),
        moment(asked.since),
        text(&asked.reason, LINE)
    )
}

fn read_alert(what: &str, reads: &SourceState) -> Option<String> {
    let (error, since) = reads.error.as_ref()?;
    let last = reads.read_at.map_or_else(|| "never".to_owned(), |at| format!("at {}", moment(at)));
    Some(format!(
        "{what} cannot be read since {} ({} times in a row, last read {last}): {}",
        moment(*since),
        reads.failures,
        text(error, LINE)
    ))
}

/// Renders the totals.
pub(super) fn tiles(status: &Status) -> String {
    let mut tiles: Vec<(&str, String)> = Vec::new();
    if let Some(world) = &status.world {
        tiles.push(("nodes Ready", format!("{} of {}", world.ready, world.nodes)));
        tiles.push(("pods", world.pods.to_string()));
        let pending_for = world.pending_for.map(|waited| format!(" for {}", span(waited)));
        tiles.push((
            "pods pending",
            format!("{}{}", world.pending, pending_for.unwrap_or_default()),
        ));
    }
    if let Some(current) = &status.plan {
        let (plan, cost) = (&current.plan, &current.plan.capacity.cost);
        tiles.push((
            "now",
            format!("{}, {}", hourly(cost.hourly_before), monthly(cost.hourly_before)),
        ));
        tiles.push((
            "planned",
            format!("{}, {}", hourly(cost.hourly_after), monthly(cost.hourly_after)),
        ));
        if cost.hourly_delta != MicroUsd::ZERO {
            tiles.push(("difference", monthly_delta(cost.hourly_delta)));
        }
        let nodes = plan.summary.nodes;
        if status.world.is_none() {
            tiles.push(("nodes", format!("{} → {}", nodes.before, nodes.after)));
        }
        tiles.push(("launch, terminate", format!("+{} −{}", nodes.launch, nodes.terminate)));
        tiles.push(("unschedulable pods", plan.capacity.pods.unschedulable.to_string()));
        if cost.lower_bound_hourly.0 > 0 {
            tiles.push(("above the lower bound", format!("{} %", cost.gap_percent)));
        }
    }
    let tile = |(name, value): (&str, String)| {
        format!(
            "<div class=\"tile\"><b>{}</b><span class=\"dim\">{name}</span></div>\n",
            text(&value, 80)
        )
    };
    format!("<div class=\"tiles\">\n{}</div>\n", tiles.into_iter().map(tile).collect::<String>())
}

/// Renders the instances that an external event terminates.
pub(super) fn terminating(status: &Status) -> String {
    if status.terminating.is_empty() {
        return String::new();
    }
    let mut rows = String::new();
    for instance in status.terminating.iter().take(TERMINATING_LISTED_MAX) {
        let deadline = instance
            .deadline
            .map_or_else(String::new, |at| format!("in {}", span(at.duration_since(status.now))));
        let node = instance.node.as_ref().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(
            rows,
            "<tr data-text=\"{0} {1}\"><td class=\"mono\">{0}</td><td>{1}</td><td>{2}</td><td>{3}</td><td>{4}</td><td>{5}</td></tr>",
            text(instance.instance.as_str(), NAME),
            text(&node, NAME),
            text(&instance.reason, NAME),
            labels::phase(instance.phase),
            deadline,
            instance
                .replacement_blocked
                .as_ref()
                .map(|held| text(&held.message, LINE))
                .unwrap_or_default()
        );
    }
    format!(
        "<h2 id=\"draining\">Draining instances</h2>\n<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>\
         <th>instance</th><th>node</th><th>reason</th><th>phase</th><th>terminates</th><th>replacement blocked by</th></tr></thead><tbody>\n{rows}\
         </tbody></table></div>\n"
    )
}

/// Renders changes in progress and blocked changes.
pub(super) fn in_progress_and_blocked(status: &Status, current: &PublishedPlan) -> String {
    let mut html = String::new();
    for (rows, since) in status.in_progress.values() {
        let _ = writeln!(
            html,
            "<li><strong>in progress</strong> for {}: {}</li>",
            span(status.now.duration_since(*since)),
            addresses(rows)
        );
    }
    let mut reasons: BTreeMap<(String, &str), Vec<Address>> = BTreeMap::new();
    for (address, Blocked { reason, message }) in &current.blocked {
        reasons.entry((labels::blocked_reason(reason), message)).or_default().push(address.clone());
    }
    for ((reason, message), rows) in reasons {
        let _ = writeln!(
            html,
            "<li><strong>{}</strong> blocks {}: {} {}</li>",
            text(&reason, 40),
            rows.len(),
            text(message, LINE),
            addresses(&rows)
        );
    }
    if html.is_empty() {
        return html;
    }
    format!("<h2 id=\"blocked\">In progress and blocked</h2>\n<ul>\n{html}</ul>\n")
}

fn addresses(rows: &[Address]) -> String {
    let listed =
        rows.iter().take(NAMED_MAX).map(|row| format!("<code>{}</code>", text(row.as_str(), NAME)));
    let listed = listed.collect::<Vec<_>>().join(" ");
    match rows.len().saturating_sub(NAMED_MAX) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::controller::initial_status;

    #[test]
    fn competing_autoscaler_alert_promises_no_drain() {
        let status = Status {
            competing_autoscaler: Some("karpenter runs as <b>".to_owned()),
            ..initial_status()
        };
        let html = alerts(&status, PageKind::Preview);
        assert!(html.contains("karpenter runs as &lt;b&gt;: a competing autoscaler"), "{html}");
        assert!(
            html.contains("the controller only plans and leaves interruption messages to it"),
            "{html}"
        );
        assert!(!html.contains("evicts pods"), "{html}");
    }
}
