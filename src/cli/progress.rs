//! What happens while a plan is applied, in lines, and the receipt at the end.

use jiff::Timestamp;

use crate::apply::{Event, Outcome, Receipt, Step, Verdict};
use crate::plan::wire::WaveStep;
use crate::render::escape;

/// Returns the line for an event, with the time since the start.
pub(super) fn line(event: &Event, started: Timestamp) -> String {
    let seconds = event.at.duration_since(started).as_secs();
    let address = event.address.as_ref().map(|a| format!("{}: ", escape(a.as_str())));
    let text = escape(&describe(&event.step)).into_owned();
    format!("{:>4}m{:02}s  {}{text}", seconds / 60, seconds % 60, address.unwrap_or_default())
}

fn describe(step: &Step) -> String {
    match step {
        Step::Checked => "everything the plan relies on still holds".to_owned(),
        Step::Wave { step, changes } => {
            let nodes = if *changes == 1 { "node" } else { "nodes" };
            format!("{}: {changes} {nodes}", wave(*step))
        }
        Step::Launched { instance_id, instance_type, zone, capacity_type } => {
            format!("launched {instance_id} ({instance_type}, {zone}, {capacity_type})")
        }
        Step::NoCapacity { instance_type, zone, capacity_type } => {
            format!("no capacity for {instance_type} in {zone} ({capacity_type}); trying the next")
        }
        Step::Raised { group, from, to } => format!("group {group} raised from {from} to {to}"),
        Step::Joined { instance_id } => format!("{instance_id} is what its group made"),
        Step::Found { instance_id } => format!("{instance_id} was launched by an earlier run"),
        Step::Retrying { why } => format!("trying again: {why}"),
        Step::Unreadable => "the world cannot be read as a whole; waiting".to_owned(),
        Step::Ready { node } => format!("{node} is Ready"),
        Step::Waiting { why } => format!("waiting: {why}"),
        Step::Cordoned { node } => format!("{node} is cordoned"),
        Step::Evicted { node, pods } => format!("evicted {pods} pods from {node}"),
        Step::Blocked { why } => format!("blocked: {why}"),
        Step::Terminating { instance_id } => format!("terminating {instance_id}"),
        Step::Uncordoned { node } => format!("{node} takes pods again"),
        Step::Finished { step, outcome } => {
            let half = match step {
                WaveStep::Launch => "launch",
                WaveStep::Retire => "removal",
            };
            format!("{half} {}", ended(outcome))
        }
    }
}

fn wave(step: WaveStep) -> &'static str {
    match step {
        WaveStep::Launch => "launching",
        WaveStep::Retire => "retiring",
    }
}

fn ended(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done => "done".to_owned(),
        Outcome::AlreadyDone => "had been done already".to_owned(),
        Outcome::Dropped { why } => format!("no longer needed: {why}"),
        Outcome::Skipped { why } => format!("skipped: {why}"),
        Outcome::GivenUp { why } => format!("given up: {why}"),
        Outcome::Failed { why } => format!("failed: {why}"),
    }
}

/// Returns the receipt in a few lines.
pub(super) fn receipt(receipt: &Receipt) -> String {
    // What an earlier run did is not what this one did.
    let done = |step: WaveStep| {
        let of = receipt.outcomes.iter().filter(|o| o.step == step);
        of.filter(|o| o.outcome == Outcome::Done).count()
    };
    let (launched, retired) = (done(WaveStep::Launch), done(WaveStep::Retire));
    let left = receipt.outcomes.iter().filter(|o| !o.outcome.is_settled()).count();
    let before = match receipt.outcomes.len() - launched - retired - left {
        0 => String::new(),
        n => format!(" {n} with nothing to do,"),
    };
    let took = receipt.finished_at.duration_since(receipt.started_at).as_secs();
    let verdict = match receipt.verdict {
        Verdict::Applied => "Apply complete!",
        Verdict::Partly => "Partly applied; run the same plan again to finish.",
        Verdict::Interrupted => "Interrupted; run the same plan again to finish.",
    };
    let mut text = format!(
        "\n{verdict} Nodes: {launched} launched, {retired} terminated, {left} left,{before} in {}m{:02}s.\n",
        took / 60,
        took % 60
    );
    for change in receipt.outcomes.iter().filter(|change| !change.outcome.is_settled()) {
        let line = format!("  {}: {}", change.address, ended(&change.outcome));
        text.push_str(&escape(&line));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::ChangeOutcome;

    #[test]
    fn a_line_has_the_time_since_the_start_and_nothing_that_a_terminal_would_obey() {
        let started: Timestamp = "2026-11-01T00:00:00Z".parse().expect("a time");
        let event = Event {
            at: "2026-11-01T00:01:05Z".parse().expect("a time"),
            address: Some("ec2_instance.web[\"0\"]".into()),
            step: Step::Ready { node: "n\u{1b}[31m".into() },
        };
        let text = line(&event, started);
        assert!(text.starts_with("   1m05s  ec2_instance.web[\"0\"]: n"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn a_receipt_lists_what_is_left_one_line_each() {
        let at: Timestamp = "2026-11-01T00:00:00Z".parse().expect("a time");
        let left = |key: u8| ChangeOutcome {
            address: format!("ec2_instance.web[\"{key}\"]").into(),
            step: WaveStep::Retire,
            instance_id: None,
            outcome: Outcome::GivenUp { why: "not\ndrained".into() },
        };
        let verdict = Verdict::Partly;
        let (plan_id, digest) = ("p".into(), "d".into());
        let before = ChangeOutcome { outcome: Outcome::AlreadyDone, ..left(2) };
        let outcomes = vec![left(0), left(1), before];
        let (started_at, finished_at) = (at, at);
        let text =
            receipt(&Receipt { plan_id, digest, outcomes, started_at, finished_at, verdict });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(
            lines[1].ends_with("0 terminated, 2 left, 1 with nothing to do, in 0m00s."),
            "{text}"
        );
        assert_eq!(lines[2], "  ec2_instance.web[\"0\"]: given up: not\\ndrained");
        assert!(text.ends_with("drained\n"), "{text}");
    }
}
