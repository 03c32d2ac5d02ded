//! Pull request output of a plan: one comment that is kept up to date, a commit status, and the
//! summary and outputs of a job.
//!
//! This module knows the wire form, its views and the port of forges, and no HTTP.
//!
//! Invariants:
//! - One comment per cluster, never split, at most [`COMMENT_CHARS_MAX`] characters.
//! - Its first line is machine-readable, and outside text can neither end that line nor start
//!   another one.
//! - After an apply the same comment shows the receipt.

mod outputs;
mod syntax;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::apply::ports::{CommitState, CommitStatus, Forge, ForgeComment, ForgeError};
use crate::apply::{ApplyStatus, Receipt};
use crate::plan::Plan;
use crate::plan::canonical::sha256;
use crate::plan::wire::Summary;
use crate::render::{MarkdownStyle, code, is_errored_by_rules, markdown, prose};
pub use outputs::outputs;

/// Most characters of a comment; GitHub allows 65,536.
pub const COMMENT_CHARS_MAX: usize = 60_000;

/// Most characters after a forge has rejected a comment as too long.
const COMMENT_CHARS_SHORT: usize = 20_000;

/// Longest name in the first line of a comment, in characters.
const NAME_MAX: usize = 100;

/// The start of the first line of a comment.
const MARK: &str = "<!-- fleetwright v1 ";

/// Longest description of a commit status that GitHub takes, in characters.
pub const DESCRIPTION_MAX: usize = 140;

/// The machine-readable first line of a comment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CommentHeader {
    /// Cluster.
    pub cluster: String,
    /// Digest of the plan.
    pub digest: String,
    /// Identity of the plan.
    pub plan_id: String,
    /// The planned commit; empty without one.
    pub head: String,
    /// The expiry of the plan.
    pub expires: String,
    /// `planned`, `applied`, `partly`, `interrupted` or `failed`.
    pub state: String,
}

impl CommentHeader {
    fn new(plan: &Plan, receipt: Option<&Receipt>) -> Self {
        let capacity = &plan.capacity;
        let state = match receipt.map(|receipt| receipt.verdict) {
            None => "planned",
            Some(ApplyStatus::Applied) => "applied",
            Some(ApplyStatus::Partly) => "partly",
            Some(ApplyStatus::Interrupted) => "interrupted",
        };
        Self {
            cluster: bounded_name(&capacity.base.world.cluster.name),
            digest: capacity.digest.to_string(),
            plan_id: capacity.plan_id.to_string(),
            head: bounded_name(capacity.base.commit.as_deref().unwrap_or_default()),
            expires: capacity.expires_at.to_string(),
            state: state.to_owned(),
        }
    }

    /// Returns the first line of a comment.
    fn line(&self) -> String {
        // Brackets and double dashes could end the HTML comment.
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

    /// Parses the first line of a comment; `None` if Fleetwright did not write it.
    pub fn read(body: &str) -> Option<Self> {
        let line = syntax::header_line(body.lines().next()?)?;
        let json = line.strip_prefix(MARK)?.strip_suffix(" -->")?;
        serde_json::from_str(json).ok()
    }
}

/// Returns a name for the first line: a very long name is cut and gets a hash.
fn bounded_name(name: &str) -> String {
    if length(name) <= NAME_MAX {
        return name.to_owned();
    }
    let hash = sha256(name).unwrap_or_default();
    name.chars().take(NAME_MAX).chain("…".chars()).chain(hash.chars().take(16)).collect()
}

/// A condition for applying the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyRequirement {
    /// Its name, such as `approved`.
    pub name: &'static str,
    /// True if it is met.
    pub met: bool,
    /// The next step if it is not met.
    pub next: String,
}

/// Returns the conditions for applying `plan`; `approved` states whether it is approved.
pub fn requirements(plan: &Plan, approved: bool) -> Vec<ApplyRequirement> {
    let digest = &plan.capacity.digest;
    let denied = crate::policy::is_denied(plan);
    let has = |name, met, next: &str| ApplyRequirement { name, met, next: next.to_owned() };
    let errors = if is_errored_by_rules(plan) {
        has("plan that keeps its own rules", false, "report the plan: this is a defect")
    } else {
        has("inputs without errors", !plan.errored, "fix the errors that the plan lists")
    };
    let mut all =
        vec![errors, has("policies passed", !denied, "change what the policies object to")];
    // A plan with errors or denials is never applicable, so its world proves nothing.
    if !plan.errored && !denied {
        let next = "plan over a world that can change";
        all.push(has("world that can change", plan.applyable, next));
    }
    // A plan that cannot be applied is not approved, whatever was signed.
    let approved = approved && !plan.errored && !denied;
    all.push(has("approved", approved, &format!("approve `{digest}`, and merge")));
    all
}

/// Returns the comment of a plan, at most `chars_max` characters.
pub fn comment(plan: &Plan, receipt: Option<&Receipt>, approved: bool, chars_max: usize) -> String {
    let head = CommentHeader::new(plan, receipt).line();
    let body = receipt.map(|receipt| receipt_section(receipt, chars_max / 3)).unwrap_or_default();
    let foot = if receipt.is_none() { next_step(plan, approved) } else { String::new() };
    let taken = length(&head) + length(&body) + length(&foot) + 2;
    let room = chars_max.saturating_sub(taken);
    let plan = markdown(plan, MarkdownStyle { chars_max: room });
    // The last line of the plan stays last, because tools look for it there.
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

/// Most listed outcomes of a receipt; settled outcomes are only counted.
const OUTCOMES_MAX: usize = 50;

/// Returns the receipt in about `room` characters. Outcomes that do not fit are counted.
fn receipt_section(receipt: &Receipt, room: usize) -> String {
    let Receipt { outcomes, started_at, finished_at, verdict, .. } = receipt;
    let title = match verdict {
        ApplyStatus::Applied => "✅ Applied",
        ApplyStatus::Partly if receipt.only_drains_continue() => {
            "⚠️ Partly applied: the next plan continues the drains"
        }
        ApplyStatus::Partly => {
            "⚠️ Partly applied: apply the same plan once more, or plan once more if it has expired"
        }
        ApplyStatus::Interrupted => "⚠️ Interrupted: run the same plan again",
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
        let Some(why) = change.outcome.why() else { continue };
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

/// Returns the commit status of a plan, or of its apply. `cluster` is one of several clusters of
/// the repository.
pub fn status(plan: &Plan, receipt: Option<&Receipt>, cluster: Option<&str>) -> CommitStatus {
    let (step, state) = match receipt.map(|receipt| receipt.verdict) {
        Some(ApplyStatus::Applied) => ("apply", CommitState::Success),
        Some(ApplyStatus::Partly | ApplyStatus::Interrupted) => ("apply", CommitState::Failure),
        None if plan.errored || crate::policy::is_denied(plan) => ("plan", CommitState::Failure),
        None => ("plan", CommitState::Success),
    };
    let Summary { add, change, destroy, .. } = plan.summary;
    let text = format!("{add} to add, {change} to change, {destroy} to destroy");
    let description = text.chars().take(DESCRIPTION_MAX).collect();
    CommitStatus { context: status_context(step, cluster), state, description }
}

/// Returns the commit status of a plan that could not be made.
pub fn failed_status(why: &str, cluster: Option<&str>) -> CommitStatus {
    let description = why.chars().filter(|c| !c.is_control()).take(DESCRIPTION_MAX).collect();
    let context = status_context("plan", cluster);
    CommitStatus { context, state: CommitState::Failure, description }
}

/// Returns the name of a commit status. Each of several clusters has its own, because a forge shows
/// only the last status of a name.
fn status_context(step: &str, cluster: Option<&str>) -> String {
    let cluster = cluster.map(|name| format!("/{name}")).unwrap_or_default();
    format!("fleetwright/{step}{cluster}")
}

/// Accepts the name of a cluster that becomes part of the name of a commit status.
pub fn is_cluster_name(name: &str) -> bool {
    !name.is_empty() && length(name) <= NAME_MAX && !name.chars().any(char::is_control)
}

/// The result of writing the comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// A new comment was created.
    Created,
    /// The existing comment was updated.
    Updated,
    /// The existing comment has the same text.
    Unchanged,
    /// There is nothing to report, and no comment.
    NotNeeded,
}

/// Creates or updates the comment of a pull request.
///
/// `body` returns the comment for a maximum length. Of several own comments about one cluster the
/// first stays, and the others are deleted.
///
/// # Errors
/// Fails if the forge refuses, or cannot be reached.
pub fn update_comment(
    forge: &dyn Forge,
    pull: u64,
    body: &dyn Fn(usize) -> String,
) -> Result<Posted, ForgeError> {
    match update_comment_with(forge, pull, &body(COMMENT_CHARS_MAX)) {
        Err(ForgeError::Unprocessable(_)) => {
            update_comment_with(forge, pull, &body(COMMENT_CHARS_SHORT))
        }
        end => end,
    }
}

/// Creates or updates the comment of one of several clusters.
///
/// A plan with nothing to report creates none: a pull request does not get a comment for each
/// cluster that it does not concern.
///
/// # Errors
/// Fails if the forge refuses, or cannot be reached.
pub fn update_cluster_comment(
    forge: &dyn Forge,
    pull: u64,
    plan: &Plan,
    body: &dyn Fn(usize) -> String,
) -> Result<Posted, ForgeError> {
    let Summary { add, change, destroy, .. } = plan.summary;
    let is_quiet = (add, change, destroy) == (0, 0, 0)
        && plan.capacity.pods.unschedulable == 0
        && !plan.errored
        && !crate::policy::is_denied(plan);
    if is_quiet {
        let cluster = bounded_name(&plan.capacity.base.world.cluster.name);
        let author = forge.author()?;
        let is_ours = |found: &ForgeComment| {
            let header = CommentHeader::read(&found.body);
            found.author == author && header.is_some_and(|header| header.cluster == cluster)
        };
        if !forge.comments(pull)?.iter().any(is_ours) {
            return Ok(Posted::NotNeeded);
        }
    }
    update_comment(forge, pull, body)
}

fn update_comment_with(forge: &dyn Forge, pull: u64, body: &str) -> Result<Posted, ForgeError> {
    let body = &syntax::adapt(body, forge.syntax());
    let header = CommentHeader::read(body);
    let cluster = header.as_ref().map(|header| header.cluster.as_str());
    let comments = forge.comments(pull)?;
    // Other authors may copy the first line; their comments are not touched.
    let author = forge.author()?;
    let mut ours = comments.iter().filter(|found| {
        let of = CommentHeader::read(&found.body).map(|header| header.cluster);
        found.author == author && of.is_some_and(|of| of.is_empty() || Some(of.as_str()) == cluster)
    });
    let mut posted = None;
    for found in ours.by_ref() {
        if found.body.trim_end() == body.trim_end() {
            posted = Some(Posted::Unchanged);
            break;
        }
        match forge.update(pull, found.id, body) {
            Ok(()) => {
                posted = Some(Posted::Updated);
                break;
            }
            // Another author wrote the comment, or it was deleted meanwhile.
            Err(ForgeError::Refused(_) | ForgeError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let Some(posted) = posted else {
        return forge.create(pull, body).map(|()| Posted::Created);
    };
    for extra in ours {
        match forge.delete(pull, extra.id) {
            Ok(()) | Err(ForgeError::Refused(_) | ForgeError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(posted)
}

/// Marks all own comments as out of date, or creates one that reports the failure `why`. With
/// `cluster`, the comments of other clusters stay.
///
/// # Errors
/// Fails if the forge refuses, or cannot be reached.
pub fn mark_failed(
    forge: &dyn Forge,
    pull: u64,
    why: &str,
    cluster: Option<&str>,
) -> Result<Posted, ForgeError> {
    let author = forge.author()?;
    let comments = forge.comments(pull)?;
    let ours = comments.iter().filter(|found| found.author == author);
    let mut posted = None;
    for (found, header) in ours
        .filter_map(|found| Some((found, CommentHeader::read(&found.body)?)))
        .filter(|(_, header)| cluster.is_none_or(|name| header.cluster == name))
    {
        let text = failure(&CommentHeader { state: FAILED.to_owned(), ..header }, why, cluster);
        let text = syntax::adapt(&text, forge.syntax());
        if found.body.trim_end() == text.trim_end() {
            posted = posted.or(Some(Posted::Unchanged));
            continue;
        }
        match forge.update(pull, found.id, &text) {
            Ok(()) => posted = Some(Posted::Updated),
            // Another author wrote the comment, or it was deleted meanwhile.
            Err(ForgeError::Refused(_) | ForgeError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    if let Some(posted) = posted {
        return Ok(posted);
    }
    // Without a cluster, the next plan replaces this comment.
    let name = cluster.unwrap_or_default().to_owned();
    let header =
        CommentHeader { cluster: name, state: FAILED.to_owned(), ..CommentHeader::default() };
    let text = syntax::adapt(&failure(&header, why, cluster), forge.syntax());
    forge.create(pull, &text).map(|()| Posted::Created)
}

const FAILED: &str = "failed";

fn failure(header: &CommentHeader, why: &str, cluster: Option<&str>) -> String {
    let head: String = header.head.chars().take(10).collect();
    let shown = if head.is_empty() {
        String::new()
    } else {
        format!("The previous comment was about commit {}, and is out of date.\n", code(&head, 20))
    };
    let cluster = cluster.map(|name| format!("{}: ", code(name, NAME_MAX))).unwrap_or_default();
    let (line, why) = (header.line(), prose(why, 300));
    format!("{line}### ❌ {cluster}{why}\n\n{shown}See the log of the job.\n")
}

#[cfg(test)]
mod tests;
