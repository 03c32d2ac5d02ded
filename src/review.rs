//! What a pull request sees of a plan: one comment that is kept up to date, a commit status, the
//! summary of a job and its outputs.
//!
//! This module knows the wire form, its views and the port of forges; it knows no HTTP. Invariants:
//! one comment for each cluster, never split, at most [`COMMENT_CHARS_MAX`] characters; its first
//! line says to machines what it is about, and nothing from outside can end that line or begin
//! another such; after an apply the same comment is the receipt.

mod outputs;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::apply::{Outcome, Receipt, Verdict};
use crate::plan::Plan;
use crate::plan::canonical::sha256;
use crate::plan::wire::Summary;
use crate::port::{CommitState, CommitStatus, Forge, ForgeError};
use crate::render::{MarkdownStyle, code, is_errored_by_rules, markdown, prose};
pub use outputs::outputs;

/// Most characters of a comment; GitHub takes 65,536.
pub const COMMENT_CHARS_MAX: usize = 60_000;

/// Most characters where a forge says that a comment is too long.
const COMMENT_CHARS_SHORT: usize = 20_000;

/// Longest name in a comment's first line, in characters.
const NAME_MAX: usize = 100;

/// What a comment's first line begins with.
const MARK: &str = "<!-- fleetwright v1 ";

/// Longest description of a commit status that GitHub takes, in characters.
pub const DESCRIPTION_MAX: usize = 140;

/// What a comment is about, as its first line says to machines.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Header {
    /// Cluster.
    pub cluster: String,
    /// Digest of the plan.
    pub digest: String,
    /// Identity of the plan.
    pub plan_id: String,
    /// Commit that was planned; empty where there is none.
    pub head: String,
    /// When the plan may no longer be applied.
    pub expires: String,
    /// `planned`, `applied`, `partly`, `interrupted` or `failed`.
    pub state: String,
}

impl Header {
    fn of(plan: &Plan, receipt: Option<&Receipt>) -> Self {
        let capacity = &plan.capacity;
        let state = match receipt.map(|receipt| receipt.verdict) {
            None => "planned",
            Some(Verdict::Applied) => "applied",
            Some(Verdict::Partly) => "partly",
            Some(Verdict::Interrupted) => "interrupted",
        };
        Self {
            cluster: bounded(&capacity.base.world.cluster.name),
            digest: capacity.digest.to_string(),
            plan_id: capacity.plan_id.to_string(),
            head: bounded(capacity.base.commit.as_deref().unwrap_or_default()),
            expires: capacity.expires_at.to_string(),
            state: state.to_owned(),
        }
    }

    /// Writes the first line of a comment.
    fn line(&self) -> String {
        // Neither a bracket nor two dashes may end the comment of HTML before its time.
        let json = json!(self).to_string();
        let safe: String = json
            .chars()
            .map(|c| match c {
                '<' | '>' | '-' => format!("\\u{:04x}", u32::from(c)),
                c => c.to_string(),
            })
            .collect::<Vec<_>>()
            .concat();
        format!("{MARK}{safe} -->\n")
    }

    /// Reads the first line of a comment; `None` where it is none of ours.
    #[must_use]
    pub fn read(body: &str) -> Option<Self> {
        let json = body.lines().next()?.strip_prefix(MARK)?.strip_suffix(" -->")?;
        serde_json::from_str(json).ok()
    }
}

/// Returns a name as the first line has it: of one that is very long, its beginning and a hash.
fn bounded(name: &str) -> String {
    if length(name) <= NAME_MAX {
        return name.to_owned();
    }
    let hash = sha256(name).unwrap_or_default();
    name.chars().take(NAME_MAX).chain("…".chars()).chain(hash.chars().take(16)).collect()
}

/// A thing that must hold before the plan is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Its name, such as `approved`.
    pub name: &'static str,
    /// Whether it holds.
    pub met: bool,
    /// What to do where it does not.
    pub next: String,
}

/// Returns what must hold before `plan` is applied; `approved` says whether somebody has.
#[must_use]
pub fn requirements(plan: &Plan, approved: bool) -> Vec<Requirement> {
    let digest = &plan.capacity.digest;
    let denied = crate::policy::is_denied(plan);
    let has = |name, met, next: &str| Requirement { name, met, next: next.to_owned() };
    let errors = if is_errored_by_rules(plan) {
        has("plan that keeps its own rules", false, "report the plan: this is a defect")
    } else {
        has("inputs without errors", !plan.errored, "mend what the plan lists as errors")
    };
    let mut all =
        vec![errors, has("policies passed", !denied, "change what the policies object to")];
    // Of a plan that cannot be applied anyway, nothing tells whether its world could change.
    if !plan.errored && !denied {
        let next = "plan over a world that can change";
        all.push(has("world that can change", plan.applyable, next));
    }
    // What cannot be applied is not approved, whoever signed.
    let approved = approved && !plan.errored && !denied;
    all.push(has("approved", approved, &format!("approve `{digest}`, and merge")));
    all
}

/// Returns the comment of a plan: at most `chars_max` characters.
#[must_use]
pub fn comment(plan: &Plan, receipt: Option<&Receipt>, approved: bool, chars_max: usize) -> String {
    let head = Header::of(plan, receipt).line();
    let body = receipt.map(|receipt| receipt_of(receipt, chars_max / 3)).unwrap_or_default();
    let foot = if receipt.is_none() { next_step(plan, approved) } else { String::new() };
    let taken = length(&head) + length(&body) + length(&foot) + 2;
    let room = chars_max.saturating_sub(taken);
    let plan = markdown(plan, MarkdownStyle { chars_max: room });
    // The plan's last line stays the last one: tools look for it there.
    format!("{head}{body}{foot}{plan}")
}

fn length(text: &str) -> usize {
    text.chars().count()
}

fn next_step(plan: &Plan, approved: bool) -> String {
    let Summary { add, change, destroy, .. } = plan.summary;
    if (add, change, destroy) == (0, 0, 0) && !plan.errored {
        return String::new();
    }
    let all = requirements(plan, approved);
    let marks: Vec<String> =
        all.iter().map(|r| format!("{} {}", r.name, if r.met { "✓" } else { "✗" })).collect();
    let next = all.iter().find(|r| !r.met).map_or_else(
        || {
            "After the merge it is planned again, and that plan is applied once it is approved."
                .into()
        },
        |missing| format!("Next: {}.", missing.next),
    );
    format!("**Requirements**: {} — {next}\n\n", marks.join(" · "))
}

/// Most outcomes that a receipt lists; settled ones are only counted.
const OUTCOMES_MAX: usize = 50;

/// Returns what was done, in about `room` characters: what does not fit is counted.
fn receipt_of(receipt: &Receipt, room: usize) -> String {
    let Receipt { outcomes, started_at, finished_at, verdict, .. } = receipt;
    let title = match verdict {
        Verdict::Applied => "✅ Applied",
        Verdict::Partly => "⚠️ Partly applied: run the same plan again",
        Verdict::Interrupted => "⚠️ Interrupted: run the same plan again",
    };
    let settled = outcomes.iter().filter(|change| change.outcome.is_settled()).count();
    let took = finished_at.duration_since(*started_at).as_secs();
    let mut text = format!(
        "### {title}\n\n{settled} of {} changes done, in {took} s, until {finished_at}.\n\n",
        outcomes.len()
    );
    let left: Vec<_> = outcomes.iter().filter(|change| !change.outcome.is_settled()).collect();
    let mut shown = 0;
    for change in left.iter().take(OUTCOMES_MAX) {
        let why = match &change.outcome {
            Outcome::Done | Outcome::AlreadyDone => continue,
            Outcome::Dropped { why }
            | Outcome::Skipped { why }
            | Outcome::GivenUp { why }
            | Outcome::Failed { why } => why,
        };
        let address = code(change.address.as_str(), 80);
        let line = ["* ❌ ", &address, ": ", &prose(why, 300), "\n"].concat();
        if length(&text) + length(&line) > room {
            break;
        }
        text.push_str(&line);
        shown += 1;
    }
    if let Some(more) = left.len().checked_sub(shown).filter(|more| *more > 0) {
        text.push_str(&["* and ", &more.to_string(), " more, in the receipt's file\n"].concat());
    }
    text.push('\n');
    text
}

/// Returns the commit status of a plan, or of its apply.
#[must_use]
pub fn status(plan: &Plan, receipt: Option<&Receipt>) -> CommitStatus {
    let (context, state) = match receipt.map(|receipt| receipt.verdict) {
        Some(Verdict::Applied) => ("fleetwright/apply", CommitState::Success),
        Some(Verdict::Partly | Verdict::Interrupted) => ("fleetwright/apply", CommitState::Failure),
        None if plan.errored || crate::policy::is_denied(plan) => {
            ("fleetwright/plan", CommitState::Failure)
        }
        None => ("fleetwright/plan", CommitState::Success),
    };
    let Summary { add, change, destroy, .. } = plan.summary;
    let text = format!("{add} to add, {change} to change, {destroy} to destroy");
    let description = text.chars().take(DESCRIPTION_MAX).collect();
    CommitStatus { context: context.to_owned(), state, description }
}

/// What was done about the comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// There was none.
    Created,
    /// There was one, which is up to date now.
    Updated,
    /// There was one with the same text.
    Unchanged,
}

/// Keeps the one comment of a pull request up to date.
///
/// `body` gives the comment of at most so many characters. Of several comments of ours about the
/// same cluster the first stays, and the rest go.
///
/// # Errors
/// When the forge refuses, or cannot be reached.
pub fn keep(
    forge: &dyn Forge,
    pull: u64,
    body: &dyn Fn(usize) -> String,
) -> Result<Posted, ForgeError> {
    match keep_with(forge, pull, &body(COMMENT_CHARS_MAX)) {
        Err(ForgeError::Unprocessable(_)) => keep_with(forge, pull, &body(COMMENT_CHARS_SHORT)),
        end => end,
    }
}

fn keep_with(forge: &dyn Forge, pull: u64, body: &str) -> Result<Posted, ForgeError> {
    let header = Header::read(body);
    let cluster = header.as_ref().map(|header| header.cluster.as_str());
    let comments = forge.comments(pull)?;
    // Anybody may write our first line; what others wrote is theirs.
    let author = forge.author()?;
    let mut ours = comments.iter().filter(|found| {
        let of = Header::read(&found.body).map(|header| header.cluster);
        found.author == author && of.is_some_and(|of| of.is_empty() || Some(of.as_str()) == cluster)
    });
    let mut posted = None;
    for found in ours.by_ref() {
        if found.body == body {
            posted = Some(Posted::Unchanged);
            break;
        }
        match forge.update(found.id, body) {
            Ok(()) => {
                posted = Some(Posted::Updated);
                break;
            }
            // Somebody else wrote it, with our first line in it; or it went meanwhile.
            Err(ForgeError::Refused(_) | ForgeError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let Some(posted) = posted else {
        return forge.create(pull, body).map(|()| Posted::Created);
    };
    for extra in ours {
        match forge.delete(extra.id) {
            Ok(()) | Err(ForgeError::Refused(_) | ForgeError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(posted)
}

/// Says in every comment of ours that what it shows is out of date, or in a new one where there is
/// none: `why` is what failed.
///
/// # Errors
/// When the forge refuses, or cannot be reached.
pub fn fail(forge: &dyn Forge, pull: u64, why: &str) -> Result<Posted, ForgeError> {
    let author = forge.author()?;
    let comments = forge.comments(pull)?;
    let ours = comments.iter().filter(|found| found.author == author);
    let mut posted = None;
    for (found, header) in ours.filter_map(|found| Some((found, Header::read(&found.body)?))) {
        let text = failure(&Header { state: FAILED.to_owned(), ..header }, why);
        if found.body == text {
            posted = posted.or(Some(Posted::Unchanged));
        } else {
            forge.update(found.id, &text)?;
            posted = Some(Posted::Updated);
        }
    }
    if let Some(posted) = posted {
        return Ok(posted);
    }
    // Of which cluster is not known: the next plan takes this one over.
    let header = Header { state: FAILED.to_owned(), ..Header::default() };
    forge.create(pull, &failure(&header, why)).map(|()| Posted::Created)
}

const FAILED: &str = "failed";

fn failure(header: &Header, why: &str) -> String {
    let head: String = header.head.chars().take(10).collect();
    let shown = if head.is_empty() {
        String::new()
    } else {
        format!("What stood here was of commit {}, and is out of date.\n", code(&head, 20))
    };
    format!("{}### ❌ {}\n\n{shown}The log of the job says more.\n", header.line(), prose(why, 300))
}

#[cfg(test)]
mod tests;
