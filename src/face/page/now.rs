//! What is now: who leads, what is wrong, what it comes to, what goes, what is held back.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{PageKind, commit, moment};
use crate::face::words;
use crate::fleet::Completeness;
use crate::ids::Address;
use crate::reconcile::{HeldBy, PlanNow, SourceState, Status, Suspension};
use crate::render::web::{hourly, monthly, monthly_delta, span, text};
use crate::units::MicroUsd;

const NAME: usize = 120;
const LINE: usize = 600;
/// Addresses that one reason for holding back names.
const NAMED_MAX: usize = 12;
/// Machines that go and are listed.
const GOING_MAX: usize = 200;

/// Returns what this replica is and serves.
pub(super) fn badges(status: &Status, kind: PageKind) -> String {
    let mut badges = Vec::new();
    match kind {
        PageKind::Preview => badges.push("preview: nothing is carried out".to_owned()),
        PageKind::Loop { .. } => {
            badges.push(format!("mode <strong>{}</strong>", status.mode.as_str()));
            badges.push(match (&status.led_by, status.leader) {
                (_, true) => "leads".to_owned(),
                (Some(other), false) => format!("follows {}", text(other, NAME)),
                (None, false) => "waits for the lease".to_owned(),
            });
        }
    }
    if let Some(served) = &status.repository.commit {
        badges.push(format!("commit <code>{}</code>", commit(served)));
    }
    if let Some(world) = &status.world {
        badges.push(format!("world {} old", span(world.age)));
    }
    let badges: Vec<String> =
        badges.into_iter().map(|badge| format!("<span class=\"badge\">{badge}</span>")).collect();
    format!("<p>{}</p>\n", badges.join("\n"))
}

/// Returns what keeps the loop from doing all that it is to do.
fn limits(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(rival) = &status.rival {
        lines.push(format!(
            "{}: it would fight for nodes, so that this loop only plans, and leaves to it what EC2 tells of \
             machines that it takes back; what has begun goes on",
            text(rival, LINE)
        ));
    }
    let kept = &status.kept;
    if kept.shed > 0 {
        lines.push(format!(
            "What survives a restart did not fit: {} entries were left out of {} bytes",
            kept.shed, kept.bytes
        ));
    }
    lines
}

/// Returns what somebody should know before anything else.
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
        lines.push(asked("Suspended", suspended));
    }
    if let Some(broken) = &status.break_glass {
        lines.push(asked("Approvals and windows are passed over", broken));
    }
    lines.extend(limits(status));
    lines.extend(unread("The repository", &status.repository.reads));
    if let Some((commit, why)) = &status.repository.waiting {
        lines.push(format!(
            "Commit <code>{}</code> is not served yet: {}",
            super::commit(commit),
            text(why, LINE)
        ));
    }
    match &status.world {
        // A preview shows a plan, and the world as the plan has it.
        None if kind == PageKind::Preview => {}
        None => lines.push("The world was not read yet.".to_owned()),
        Some(world) => {
            lines.extend(unread("The world", &world.reads));
            for (source, completeness) in &world.sources {
                let why = match completeness {
                    Completeness::Complete => continue,
                    Completeness::Partial { reason } => format!("was read in part: {reason}"),
                    Completeness::Failed { reason } => format!("could not be read: {reason}"),
                };
                lines.push(text(&format!("{source} {why}"), LINE));
            }
        }
    }
    for (deed, failure) in &status.failing {
        lines.push(format!(
            "{} fails since {} ({} times, last at {}): {}",
            text(&words::failing(*deed, failure), NAME),
            moment(failure.since),
            failure.times,
            moment(failure.last),
            text(&failure.why, LINE)
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
            "The inputs have errors: the plan removes nothing and is not carried out.".to_owned(),
        );
    }
    let lines: Vec<String> =
        lines.iter().map(|line| format!("<p class=\"alert\">{line}</p>\n")).collect();
    lines.concat()
}

fn asked(what: &str, asked: &Suspension) -> String {
    let until = asked
        .until
        .map_or_else(|| "until somebody ends it".to_owned(), |at| format!("until {}", moment(at)));
    format!(
        "<strong>{what}</strong> by {} since {}, {until}: {}",
        text(&asked.by, NAME),
        moment(asked.since),
        text(&asked.reason, LINE)
    )
}

fn unread(what: &str, reads: &SourceState) -> Option<String> {
    let (error, since) = reads.error.as_ref()?;
    let last = reads.read_at.map_or_else(|| "never".to_owned(), |at| format!("at {}", moment(at)));
    Some(format!(
        "{what} cannot be read since {} ({} times in a row, last read {last}): {}",
        moment(*since),
        reads.failures,
        text(error, LINE)
    ))
}

/// Returns the totals.
pub(super) fn tiles(status: &Status) -> String {
    let mut tiles: Vec<(&str, String)> = Vec::new();
    if let Some(world) = &status.world {
        tiles.push(("nodes Ready", format!("{} of {}", world.ready, world.nodes)));
        tiles.push(("pods", world.pods.to_string()));
        let waits = world.pending_for.map(|waited| format!(" for {}", span(waited)));
        tiles.push(("pods waiting", format!("{}{}", world.pending, waits.unwrap_or_default())));
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
        tiles.push(("pods without a place", plan.capacity.pods.unschedulable.to_string()));
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

/// Returns the machines that go because of something that nobody here decided.
pub(super) fn going(status: &Status) -> String {
    if status.going.is_empty() {
        return String::new();
    }
    let mut rows = String::new();
    for machine in status.going.iter().take(GOING_MAX) {
        let deadline = machine
            .deadline
            .map_or_else(String::new, |at| format!("in {}", span(at.duration_since(status.now))));
        let node = machine.node.as_ref().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(
            rows,
            "<tr data-text=\"{0} {1}\"><td class=\"mono\">{0}</td><td>{1}</td><td>{2}</td><td>{3}</td><td>{4}</td><td>{5}</td></tr>",
            text(machine.instance.as_str(), NAME),
            text(&node, NAME),
            text(&machine.why, NAME),
            words::phase(machine.phase),
            deadline,
            machine.held.as_ref().map(|held| text(&held.says, LINE)).unwrap_or_default()
        );
    }
    format!(
        "<h2 id=\"going\">Machines that go</h2>\n<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>\
         <th>instance</th><th>node</th><th>why</th><th>phase</th><th>gone</th><th>its replacement is held back</th></tr></thead><tbody>\n{rows}\
         </tbody></table></div>\n"
    )
}

/// Returns what is under way, and what holds the rest back.
pub(super) fn held(status: &Status, current: &PlanNow) -> String {
    let mut html = String::new();
    for (rows, since) in status.applying.values() {
        let _ = writeln!(
            html,
            "<li><strong>under way</strong> for {}: {}</li>",
            span(status.now.duration_since(*since)),
            addresses(rows)
        );
    }
    let mut reasons: BTreeMap<(String, &str), Vec<Address>> = BTreeMap::new();
    for (address, HeldBy { why, says }) in &current.held {
        reasons.entry((words::held(why), says)).or_default().push(address.clone());
    }
    for ((reason, says), rows) in reasons {
        let _ = writeln!(
            html,
            "<li><strong>{}</strong> holds back {}: {} {}</li>",
            text(&reason, 40),
            rows.len(),
            text(says, LINE),
            addresses(&rows)
        );
    }
    if html.is_empty() {
        return html;
    }
    format!("<h2 id=\"held\">Under way, and held back</h2>\n<ul>\n{html}</ul>\n")
}

fn addresses(rows: &[Address]) -> String {
    let shown =
        rows.iter().take(NAMED_MAX).map(|row| format!("<code>{}</code>", text(row.as_str(), NAME)));
    let shown = shown.collect::<Vec<_>>().join(" ");
    match rows.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::fixture::begun;

    #[test]
    fn beside_another_autoscaler_nothing_is_promised_for_what_ec2_takes_back() {
        let status = Status { rival: Some("karpenter runs as <b>".to_owned()), ..begun() };
        let said = alerts(&status, PageKind::Preview);
        assert!(said.contains("karpenter runs as &lt;b&gt;: it would fight for nodes"), "{said}");
        assert!(said.contains("this loop only plans, and leaves to it what EC2 tells"), "{said}");
        assert!(!said.contains("has pods leave"), "{said}");
    }
}
