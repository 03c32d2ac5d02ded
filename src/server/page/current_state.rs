//! Current state: alerts, draining instances, changes in progress and blocked changes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::verdict::gate;
use super::{PageKind, commit_of, moment};
use crate::controller::{Blocked, PublishedPlan, SourceState, Status, Suspension, labels};
use crate::model::ids::Address;
use crate::model::observed::Completeness;
use crate::render::html_fragments::{errored_text, span, text};

const NAME: usize = 120;
const LINE: usize = 600;
/// Maximum number of addresses per blocking reason.
const NAMED_MAX: usize = 12;
/// Maximum number of listed terminating instances.
const TERMINATING_LISTED_MAX: usize = 200;

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

/// Returns the rules of the served commit that do not count yet.
fn loosened_rules(status: &Status) -> Option<String> {
    let rules = &status.repository.loosened;
    (!rules.is_empty()).then(|| {
        format!(
            "The served commit loosens {}. The rules before it count until an operator approves one \
             of its plans by digest.",
            text(&rules.join(", "), LINE)
        )
    })
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
    lines.extend(match kind {
        PageKind::Controller { .. } => read_alert("The repository", &status.repository.reads),
        PageKind::Preview => preview_alert(&status.repository.reads),
    });
    lines.extend(loosened_rules(status));
    if let Some((commit, why)) = &status.repository.waiting {
        lines.push(format!(
            "Commit <code>{}</code> is not served yet: {}",
            commit_of(status, commit),
            text(why, LINE)
        ));
    }
    lines.extend(world_alerts(status, kind));
    for (action, failure) in &status.failing_actions {
        lines.push(format!(
            "{} fails since {} ({} times, last at {}): {}",
            text(&labels::failing_action(*action, failure), NAME),
            moment(failure.since),
            failure.count,
            moment(failure.last),
            text(&failure.error, LINE)
        ));
    }
    lines.extend(status.withheld_repairs.iter().map(|withheld| {
        let says = withheld.to_string();
        format!("Repair is withheld: {}", text(&says, LINE))
    }));
    for (pool, (why, until)) in &status.quarantined {
        lines.push(format!(
            "Pool {} launches nothing until {}: {}",
            text(pool.as_str(), NAME),
            moment(*until),
            text(why, LINE)
        ));
    }
    let errored = status.plan.as_ref().and_then(|current| errored_text(&current.plan));
    lines.extend(errored.map(|why| text(&why, LINE)));
    if lines.is_empty() {
        return String::new();
    }
    let alerts: Vec<String> =
        lines.iter().map(|line| format!("<p class=\"alert\">{line}</p>\n")).collect();
    let alerts = alerts.concat();
    format!(
        "<h2 id=\"attention\">Needs attention <span class=\"dim\">{}</span></h2>\n{alerts}",
        lines.len()
    )
}

/// Returns alerts about the observation of the cluster.
fn world_alerts(status: &Status, kind: PageKind) -> Vec<String> {
    let Some(world) = &status.world else {
        // A preview shows a plan with its own observation.
        let is_missing = kind != PageKind::Preview;
        return is_missing
            .then(|| "The cluster was not observed yet.".to_owned())
            .into_iter()
            .collect();
    };
    let mut lines: Vec<String> = read_alert("The cluster", &world.reads).into_iter().collect();
    for (source, completeness) in &world.sources {
        let why = match completeness {
            Completeness::Complete => continue,
            Completeness::Partial { reason } => format!("was read partially: {reason}"),
            Completeness::Failed { reason } => format!("could not be read: {reason}"),
        };
        lines.push(text(&format!("{source} {why}"), LINE));
    }
    lines
}

fn suspension_alert(title: &str, suspension: &Suspension) -> String {
    let until = suspension.until.map_or_else(
        || "until an operator ends it".to_owned(),
        |at| format!("until {}", moment(at)),
    );
    format!(
        "<strong>{title}</strong> by {} since {}, {until}: {}",
        text(&suspension.by, NAME),
        moment(suspension.since),
        text(&suspension.reason, LINE)
    )
}

fn read_alert(source: &str, reads: &SourceState) -> Option<String> {
    let (error, since) = reads.error.as_ref()?;
    let last = reads.read_at.map_or_else(|| "never".to_owned(), |at| format!("at {}", moment(at)));
    Some(format!(
        "{source} cannot be read since {} ({} times in a row, last read {last}): {}",
        moment(*since),
        reads.failures,
        text(error, LINE)
    ))
}

/// Returns the alert of a preview whose files are not readable or do not make a plan.
fn preview_alert(reads: &SourceState) -> Option<String> {
    let (error, since) = reads.error.as_ref()?;
    Some(format!(
        "This page shows the previous plan: no plan could be made since {} ({} times in a row): {}",
        moment(*since),
        reads.failures,
        text(error, LINE)
    ))
}

/// Renders the instances that an external event terminates.
pub(super) fn terminating(status: &Status) -> String {
    if status.interrupted.is_empty() {
        return String::new();
    }
    let mut rows = String::new();
    for instance in status.interrupted.iter().take(TERMINATING_LISTED_MAX) {
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
                .map(|blocked| text(&blocked.message, LINE))
                .unwrap_or_default()
        );
    }
    format!(
        "<h2 id=\"draining\">Draining instances</h2>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" \
         aria-labelledby=\"draining\"><table><thead><tr><th scope=\"col\">instance</th><th scope=\"col\">node</th>\
         <th scope=\"col\">reason</th><th scope=\"col\">phase</th><th scope=\"col\">terminates</th><th scope=\"col\">replacement blocked by</th></tr></thead><tbody>\n{rows}\
         </tbody></table></div>\n"
    )
}

/// Renders changes in progress and blocked changes.
pub(super) fn in_progress_and_blocked(status: &Status, current: &PublishedPlan) -> String {
    let mut html = String::new();
    for (rows, since) in status.in_progress.values() {
        let is_open = |row: &&Address| !status.finished_changes.contains(*row);
        let open: Vec<Address> = rows.iter().filter(is_open).cloned().collect();
        let finished = match rows.len() - open.len() {
            0 => String::new(),
            n => format!("{n} finished, "),
        };
        let _ = writeln!(
            html,
            "<li class=\"work\"><strong>{finished}{} in progress</strong> for {}{}{}</li>",
            open.len(),
            span(status.now.duration_since(*since)),
            if open.is_empty() { "" } else { ": " },
            addresses(&open)
        );
    }
    let mut reasons: BTreeMap<(&str, &str), Vec<Address>> = BTreeMap::new();
    for (address, Blocked { reason, message }) in &current.blocked {
        reasons.entry((gate(reason), message)).or_default().push(address.clone());
    }
    for ((gate, message), rows) in reasons {
        let noun = if rows.len() == 1 { "change" } else { "changes" };
        let _ = writeln!(
            html,
            "<li><strong>{} {noun} blocked by: {gate}</strong>. {} {}</li>",
            rows.len(),
            text(message, LINE),
            addresses(&rows)
        );
    }
    if html.is_empty() {
        return html;
    }
    format!("<h2 id=\"blocked\">In progress and blocked</h2>\n<ul class=\"todo\">\n{html}</ul>\n")
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
    use super::super::StatusPage;
    use super::super::verdict::verdict;
    use super::*;
    use crate::testing::controller::initial_status;

    #[test]
    fn preview_shows_why_it_has_no_newer_plan() {
        let mut status = initial_status();
        status.repository.reads.error = Some(("denied <b>".to_owned(), status.now));
        let html = alerts(&status, PageKind::Preview);
        assert!(html.contains("This page shows the previous plan"), "{html}");
        assert!(html.contains("denied &lt;b&gt;"), "{html}");
        let page = StatusPage { status: &status, forecast: None, kind: PageKind::Preview };
        let title = verdict(&page).title;
        assert_eq!(title, "Degraded: no new plan for 0s, this page shows the previous plan");
    }

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
