//! What happens while a plan is applied, told as it happens, and the receipt at the end: in lines for
//! a person, or as a stream.

mod stream;

use jiff::Timestamp;

use super::Console;
use super::error::CliError;
use crate::apply::{ChangeOutcome, Event, Outcome, Receipt, Step, Verdict};
use crate::plan::Plan;
use crate::plan::wire::WaveStep;
use crate::render::escape;

/// Clears the line that the cursor of a terminal is on.
const CLEAR: &str = "\r\x1b[2K";

/// Tells what happens while a plan is applied.
///
/// In lines: on stderr, with a last line on a terminal that says what is under way; only the receipt
/// is a result. As a stream: on stdout.
pub(super) struct Teller<'a> {
    pub(super) console: &'a mut Console,
    plan: &'a Plan,
    form: Form,
    started: Option<Timestamp>,
    /// Whether the last line of the terminal says what is under way.
    has_status: bool,
}

/// How it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Lines,
    Stream,
}

impl<'a> Teller<'a> {
    pub(super) fn new(plan: &'a Plan, form: Form, console: &'a mut Console) -> Self {
        Self { console, plan, form, started: None, has_status: false }
    }

    /// Tells of an event.
    pub(super) fn event(&mut self, event: &Event) {
        let started = *self.started.get_or_insert(event.at);
        match self.form {
            Form::Lines => self.line(event, started),
            Form::Stream => {
                let line = stream::line(event, started, self.plan);
                // An apply is not given up because nobody reads on.
                let _ = self.console.print(&line.written());
            }
        }
    }

    fn line(&mut self, event: &Event, started: Timestamp) {
        let is_status = matches!(event.step, Step::Going { .. });
        let clear = if self.has_status { CLEAR } else { "" };
        let text = line(event, started);
        if !is_status {
            self.console.say_raw(&format!("{clear}{text}\n"));
            self.has_status = false;
        } else if self.console.is_terminal() {
            self.console.say_raw(&format!("{clear}{text} …"));
            self.has_status = true;
        }
    }

    /// Tells what was done.
    ///
    /// # Errors
    /// When stdout cannot be written to.
    pub(super) fn receipt(&mut self, done: &Receipt) -> Result<(), CliError> {
        self.clear();
        match self.form {
            Form::Lines => self.console.print(&receipt(done)),
            Form::Stream => self.console.print(&stream::summary(done).written()),
        }
    }

    /// Takes the line away that says what is under way.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.has_status) {
            self.console.say_raw(CLEAR);
        }
    }
}

/// Returns why there was no apply, or no more of it, as the line of a stream.
pub(super) fn failure(error: &CliError, now: Timestamp) -> String {
    stream::failure(error, now).written()
}

/// Returns the line for an event, with the time since the start.
fn line(event: &Event, started: Timestamp) -> String {
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
        Step::Unanswered => "nobody knows whether EC2 has heard of it".to_owned(),
        Step::Unreadable => "the world cannot be read as a whole; waiting".to_owned(),
        Step::Going { left } => format!("{left} under way"),
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

/// How many changes ended in which way.
struct Tally {
    launched: usize,
    retired: usize,
    left: usize,
    dropped: usize,
}

impl Tally {
    fn of(receipt: &Receipt) -> Self {
        let count = |is: &dyn Fn(&ChangeOutcome) -> bool| {
            receipt.outcomes.iter().filter(|change| is(change)).count()
        };
        // What an earlier run did is not what this one did.
        let done = |step| count(&|change| change.step == step && change.outcome == Outcome::Done);
        Self {
            launched: done(WaveStep::Launch),
            retired: done(WaveStep::Retire),
            left: count(&|change| !change.outcome.is_settled()),
            dropped: count(&|change| matches!(change.outcome, Outcome::Dropped { .. })),
        }
    }
}

/// Returns the receipt in a few lines.
fn receipt(receipt: &Receipt) -> String {
    let Tally { launched, retired, left, dropped } = Tally::of(receipt);
    let counted = |count: usize, what: &str| match count {
        0 => String::new(),
        n => format!(" {n} {what},"),
    };
    let before = receipt.outcomes.len() - launched - retired - left - dropped;
    let before = counted(before, "with nothing to do") + &counted(dropped, "no longer needed");
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
        let why = "room elsewhere".to_owned();
        let dropped = ChangeOutcome { outcome: Outcome::Dropped { why }, ..left(3) };
        let outcomes = vec![left(0), left(1), before, dropped];
        let (started_at, finished_at) = (at, at);
        let text =
            receipt(&Receipt { plan_id, digest, outcomes, started_at, finished_at, verdict });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(
            lines[1].ends_with(
                "0 terminated, 2 left, 1 with nothing to do, 1 no longer needed, in 0m00s."
            ),
            "{text}"
        );
        assert_eq!(lines[2], "  ec2_instance.web[\"0\"]: given up: not\\ndrained");
        assert!(text.ends_with("drained\n"), "{text}");
    }
}
