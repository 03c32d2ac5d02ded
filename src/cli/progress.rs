//! Progress of an apply and its receipt, as text lines or as a JSON stream.

mod stream;

use jiff::Timestamp;

use super::Console;
use super::error::CliError;
use crate::apply::{ApplyStatus, ChangeOutcome, Event, LaunchedOffering, Outcome, Receipt, Step};
use crate::model::plural::count;
use crate::plan::Plan;
use crate::plan::wire::WaveStep;
use crate::render::escape;

/// Clears the current line of the terminal.
const CLEAR: &str = "\r\x1b[2K";

/// Reports the progress of an apply.
///
/// Text lines go to stderr, with a status line on a terminal; only the receipt goes to stdout. The
/// JSON stream goes to stdout.
pub(super) struct ProgressReporter<'a> {
    pub(super) console: &'a mut Console,
    plan: &'a Plan,
    form: ProgressFormat,
    started: Option<Timestamp>,
    /// True if the current line of the terminal is the status line.
    has_status: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgressFormat {
    Lines,
    Stream,
}

impl<'a> ProgressReporter<'a> {
    pub(super) fn new(plan: &'a Plan, form: ProgressFormat, console: &'a mut Console) -> Self {
        Self { console, plan, form, started: None, has_status: false }
    }

    /// Reports an event.
    pub(super) fn event(&mut self, event: &Event) {
        let started = *self.started.get_or_insert(event.at);
        match self.form {
            ProgressFormat::Lines => self.write_line(event, started),
            ProgressFormat::Stream => {
                let line = stream::line(event, started, self.plan);
                // A closed reader does not stop the apply.
                let _ = self.console.print(&line.to_json_line());
            }
        }
    }

    fn write_line(&mut self, event: &Event, started: Timestamp) {
        let is_status = matches!(event.step, Step::InProgress { .. });
        let clear = if self.has_status { CLEAR } else { "" };
        let text = event_line(event, started);
        if !is_status {
            self.console.report_raw(&format!("{clear}{text}\n"));
            self.has_status = false;
        } else if self.console.is_terminal() {
            self.console.report_raw(&format!("{clear}{text} …"));
            self.has_status = true;
        }
    }

    /// Reports the receipt, with the names of those who approved.
    ///
    /// # Errors
    /// Fails if stdout cannot be written.
    pub(super) fn receipt(&mut self, done: &Receipt, approvers: &[String]) -> Result<(), CliError> {
        self.clear();
        match self.form {
            ProgressFormat::Lines => self.console.print(&receipt_text(done, approvers)),
            ProgressFormat::Stream => self.console.print(&stream::summary(done).to_json_line()),
        }
    }

    /// Clears the status line.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.has_status) {
            self.console.report_raw(CLEAR);
        }
    }
}

/// Returns the stream line of an error that ended the apply.
pub(super) fn failure(error: &CliError, now: Timestamp) -> String {
    stream::failure(error, now).to_json_line()
}

/// Returns the line of an event, with the time since the start.
fn event_line(event: &Event, started: Timestamp) -> String {
    let seconds = event.at.duration_since(started).as_secs();
    let address = event.address.as_ref().map(|a| format!("{}: ", escape(a.as_str())));
    let text = escape(&describe(&event.step)).into_owned();
    format!("{:>4}m{:02}s  {}{text}", seconds / 60, seconds % 60, address.unwrap_or_default())
}

fn describe(step: &Step) -> String {
    match step {
        Step::Checked { dropped: 0 } => "everything the plan relies on still holds".to_owned(),
        Step::Checked { dropped } => {
            let changes = if *dropped == 1 { "change is" } else { "changes are" };
            format!("the plan still holds; {dropped} {changes} no longer needed")
        }
        Step::Wave { step, changes } => {
            let nodes = if *changes == 1 { "node" } else { "nodes" };
            format!("{}: {changes} {nodes}", wave_text(*step))
        }
        Step::Launched { instance_id, offering: None } => {
            format!("launched {instance_id} (unknown offering)")
        }
        Step::Launched { instance_id, offering: Some(offering) } => {
            let LaunchedOffering { instance_type, zone, capacity_type, instead_of } = offering;
            let planned = instead_of.as_ref().map(|planned| format!(" instead of {planned}"));
            let planned = planned.unwrap_or_default();
            format!("launched {instance_id} ({instance_type}, {zone}, {capacity_type}){planned}")
        }
        Step::InsufficientCapacity { instance_type, zone, capacity_type } => {
            format!("no capacity for {instance_type} in {zone} ({capacity_type})")
        }
        Step::Withdrawn { instance_type, zone, capacity_type, why } => {
            format!("not requesting {instance_type} in {zone} ({capacity_type}): {why}")
        }
        Step::Raised { group, from, to } => format!("group {group} raised from {from} to {to}"),
        Step::Joined { instance_id } => format!("{instance_id} was launched by its group"),
        Step::Found { instance_id } => format!("{instance_id} was launched by an earlier run"),
        Step::Retrying { why } => format!("retrying: {why}"),
        Step::Unanswered => "EC2 did not answer, so the result is unknown".to_owned(),
        Step::Unreadable => "the observation is incomplete; waiting".to_owned(),
        Step::InProgress { left } => format!("{left} in progress"),
        Step::Ready { node } => format!("{node} is Ready"),
        Step::Nominated { pods, refused } => nominated_text(*pods, *refused),
        Step::Waiting { why } => format!("waiting: {why}"),
        Step::Cordoned { node } => format!("{node} is cordoned"),
        Step::Evicted { node, pods } => format!("evicted {} from {node}", count(*pods, "pod")),
        Step::PodsDeleted { node, pods } => {
            let pods = count(*pods, "pod");
            format!("deleted {pods} from {node}: its termination grace period ends")
        }
        Step::Blocked { why } => format!("blocked: {why}"),
        Step::NodeWriteFailed { why } => why.clone(),
        Step::Terminating { instance_id } => format!("terminating {instance_id}"),
        Step::Uncordoned { node } => format!("{node} is uncordoned"),
        Step::Finished { step, outcome } => {
            let half = match step {
                WaveStep::Launch => "launch",
                WaveStep::Retire => "removal",
            };
            format!("{half} {}", outcome_text(outcome))
        }
    }
}

fn nominated_text(pods: usize, refused: usize) -> String {
    let refused = match refused {
        0 => String::new(),
        refused => {
            format!("; {} refused, which kube-scheduler places freely", count(refused, "pod"))
        }
    };
    format!("nominated {} to planned nodes{refused}", count(pods, "pod"))
}

fn wave_text(step: WaveStep) -> &'static str {
    match step {
        WaveStep::Launch => "launching",
        WaveStep::Retire => "retiring",
    }
}

fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done => "done".to_owned(),
        Outcome::AlreadyDone => "already done".to_owned(),
        Outcome::Dropped { why } => format!("no longer needed: {why}"),
        Outcome::Skipped { why } => format!("skipped: {why}"),
        Outcome::Abandoned { why } => format!("abandoned: {why}"),
        Outcome::Continues { why } => format!("continues: {why}"),
        Outcome::Failed { why } => format!("failed: {why}"),
    }
}

/// Numbers of changes by outcome.
struct ReceiptCounts {
    launched: usize,
    retired: usize,
    left: usize,
    dropped: usize,
}

impl ReceiptCounts {
    fn from_receipt(receipt: &Receipt) -> Self {
        let count = |is: &dyn Fn(&ChangeOutcome) -> bool| {
            receipt.outcomes.iter().filter(|change| is(change)).count()
        };
        // Work of an earlier run is not counted.
        let done = |step| count(&|change| change.step == step && change.outcome == Outcome::Done);
        Self {
            launched: done(WaveStep::Launch),
            retired: done(WaveStep::Retire),
            left: count(&|change| !change.outcome.is_settled()),
            dropped: count(&|change| matches!(change.outcome, Outcome::Dropped { .. })),
        }
    }
}

fn receipt_text(receipt: &Receipt, approvers: &[String]) -> String {
    let ReceiptCounts { launched, retired, left, dropped } = ReceiptCounts::from_receipt(receipt);
    let counted = |count: usize, noun: &str| match count {
        0 => String::new(),
        n => format!(" {n} {noun},"),
    };
    let before = receipt.outcomes.len() - launched - retired - left - dropped;
    let before = counted(before, "with nothing to do") + &counted(dropped, "no longer needed");
    let took = receipt.finished_at.duration_since(receipt.started_at).as_secs();
    let verdict = match receipt.verdict {
        ApplyStatus::Applied => "Apply complete!",
        ApplyStatus::Partly if receipt.only_drains_continue() => {
            "Partly applied; the next plan continues the drains."
        }
        ApplyStatus::Partly => {
            "Partly applied; apply the same plan once more, or plan once more if it has expired."
        }
        ApplyStatus::Interrupted => "Interrupted; run the same plan again to finish.",
    };
    let mut text = format!(
        "\n{verdict} Nodes: {launched} launched, {retired} terminated, {left} not finished,{before} in {}m{:02}s.\n",
        took / 60,
        took % 60
    );
    if !approvers.is_empty() {
        text.push_str(&escape(&format!("  approved by {}", approvers.join(", "))));
        text.push('\n');
    }
    for change in receipt.outcomes.iter().filter(|change| !change.outcome.is_settled()) {
        let line = format!("  {}: {}", change.address, outcome_text(&change.outcome));
        text.push_str(&escape(&line));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_line_has_elapsed_time_and_no_terminal_controls() {
        let started: Timestamp = "2026-11-01T00:00:00Z".parse().expect("a time");
        let event = Event {
            at: "2026-11-01T00:01:05Z".parse().expect("a time"),
            address: Some("ec2_instance.web[\"0\"]".into()),
            step: Step::Ready { node: "n\u{1b}[31m".into() },
        };
        let text = event_line(&event, started);
        assert!(text.starts_with("   1m05s  ec2_instance.web[\"0\"]: n"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn receipt_lists_unfinished_changes() {
        let at: Timestamp = "2026-11-01T00:00:00Z".parse().expect("a time");
        let left = |key: u8| ChangeOutcome {
            address: format!("ec2_instance.web[\"{key}\"]").into(),
            step: WaveStep::Retire,
            instance_id: None,
            launched: None,
            outcome: Outcome::Abandoned { why: "not\ndrained".into() },
        };
        let verdict = ApplyStatus::Partly;
        let (plan_id, digest) = ("p".into(), "d".into());
        let before = ChangeOutcome { outcome: Outcome::AlreadyDone, ..left(2) };
        let why = "room elsewhere".to_owned();
        let dropped = ChangeOutcome { outcome: Outcome::Dropped { why }, ..left(3) };
        let outcomes = vec![left(0), left(1), before, dropped];
        let (started_at, finished_at) = (at, at);
        let receipt = Receipt { plan_id, digest, outcomes, started_at, finished_at, verdict };
        let text = receipt_text(&receipt, &["alice".to_owned(), "b\nob".to_owned()]);
        let mut lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert_eq!(lines.remove(2), "  approved by alice, b\\nob");
        assert!(
            lines[1].ends_with(
                "0 terminated, 2 not finished, 1 with nothing to do, 1 no longer needed, in 0m00s."
            ),
            "{text}"
        );
        assert_eq!(lines[2], "  ec2_instance.web[\"0\"]: abandoned: not\\ndrained");
        assert!(text.ends_with("drained\n"), "{text}");
    }
}
