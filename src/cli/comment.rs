//! `comment`: publishes a plan to its pull request.

mod host;

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::error::CliError;
use super::policy::apply_guard;
use super::settings::{CommentSettings, CommentSubject, GuardChoice, SourceSettings};
use super::{Console, Exit, approval, files};
use crate::apply::Receipt;
use crate::apply::ports::{CommitStatus, Forge, ForgeError};
use crate::plan::{Plan, verify_approvals};
use crate::render::pull_request::{
    COMMENT_CHARS_MAX, Posted, comment, failed_status, is_cluster_name, mark_failed, outputs,
    status, update_cluster_comment, update_comment,
};
use crate::render::{MarkdownStyle, markdown};
pub(super) use host::ForgeHost;
use host::PullRequest;

/// Most bytes of a workflow event or a receipt.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// Most characters of a job summary: GitHub allows a mebibyte per step, and a character takes
/// several bytes.
const SUMMARY_CHARS_MAX: usize = 250_000;

pub(super) fn run(settings: &CommentSettings, console: &mut Console) -> Result<Exit, CliError> {
    if let Some(commit) = settings.status.as_ref().filter(|commit| !is_commit(commit)) {
        return Err(CliError::text(format!("`{commit}` is not a commit"))
            .hint("name it by its 40 hex digits, as `git rev-parse HEAD` does"));
    }
    let cluster = settings.cluster.as_deref();
    if let Some(name) = cluster.filter(|name| !is_cluster_name(name)) {
        return Err(CliError::text(format!("`{name}` is not the name of a cluster"))
            .hint("pass the name in the plan, of at most 100 characters"));
    }
    match &settings.about {
        CommentSubject::Plan { plan, receipt, approvals, caller, guard } => {
            let plan = files::saved_plan(plan, console)?;
            check_cluster(&plan, cluster)?;
            let receipt = receipt.as_deref().map(|path| read_receipt(path, &plan)).transpose()?;
            let approved = is_approved(&plan, approvals, (caller, guard), console)?;
            let body = |most: usize| comment(&plan, receipt.as_ref(), approved, most);
            if settings.dry_run {
                console.print(&body(COMMENT_CHARS_MAX))?;
                return Ok(Exit::Done);
            }
            write_job_files(&plan)?;
            let status = status(&plan, receipt.as_ref(), cluster);
            let write = |forge: &dyn Forge, pull| {
                if cluster.is_some() {
                    update_cluster_comment(forge, pull, &plan, &body)
                } else {
                    update_comment(forge, pull, &body)
                }
            };
            post(settings, &status, &write, console)
        }
        CommentSubject::Failure(why) => {
            let status = failed_status(why, cluster);
            post(settings, &status, &|forge, pull| mark_failed(forge, pull, why, cluster), console)
        }
    }
}

/// Checks that the plan is of the named cluster.
fn check_cluster(plan: &Plan, cluster: Option<&str>) -> Result<(), CliError> {
    let own = &plan.capacity.base.world.cluster.name;
    let Some(named) = cluster.filter(|name| name != own) else { return Ok(()) };
    Err(CliError::text(format!("the plan is of cluster `{own}`, not of `{named}`"))
        .hint("pass the plan of that cluster, or its name as --cluster"))
}

/// Returns whether the plan is approved by the keys of its guarding settings.
fn is_approved(
    plan: &Plan,
    files: &[PathBuf],
    (caller, guard): (&SourceSettings, &GuardChoice),
    console: &mut Console,
) -> Result<bool, CliError> {
    if files.is_empty() {
        return Ok(false);
    }
    let approvals = approval::gather(files)?;
    match apply_guard(plan, guard, caller) {
        Ok(guard) => Ok(verify_approvals(plan, &approvals, &guard.keys, guard.approvals).is_ok()),
        Err(error) => {
            console.report("The approvals are ignored, because the settings that guard the plan cannot be read:");
            error.write(console);
            Ok(false)
        }
    }
}

/// Sets the commit status and writes the comment.
fn post(
    settings: &CommentSettings,
    status: &CommitStatus,
    write: &dyn Fn(&dyn Forge, u64) -> Result<Posted, ForgeError>,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let host = ForgeHost::choose(settings.host);
    let Some(PullRequest { forge, number }) = host.connect(settings, console)? else {
        return Ok(Exit::Done);
    };
    if let Some(commit) = &settings.status {
        tolerate_refusal(forge.set_status(commit, status), console)?;
    }
    match write(&*forge, number) {
        Ok(Posted::Created) => console.report("The comment was written."),
        Ok(Posted::Updated) => console.report("The comment was updated."),
        Ok(Posted::Unchanged) => console.report("The comment is up to date."),
        Ok(Posted::NotNeeded) => {
            console.report("The plan has no changes: no comment was written.");
        }
        Err(error) => tolerate_refusal(Err(error), console)?,
    }
    Ok(Exit::Done)
}

/// Tolerates a refused write: a pull request from a fork has a read-only token. The job summary
/// still has the plan.
fn tolerate_refusal(end: Result<(), ForgeError>, console: &mut Console) -> Result<(), CliError> {
    match end {
        Err(error @ ForgeError::Refused(_)) => {
            console.report(&format!(
                "{error}; a pull request from a fork has a token that may not write. The summary of \
                 the job has the plan."
            ));
            Ok(())
        }
        Err(error) => {
            Err(CliError::new(error).context("cannot write to the pull request".to_owned()))
        }
        Ok(()) => Ok(()),
    }
}

/// Writes the summary and the outputs of the job, if the environment names their files.
fn write_job_files(plan: &Plan) -> Result<(), CliError> {
    if let Some(path) = variable("GITHUB_STEP_SUMMARY") {
        let style = MarkdownStyle { chars_max: SUMMARY_CHARS_MAX };
        append(Path::new(&path), &markdown(plan, style))?;
    }
    if let Some(path) = variable("GITHUB_OUTPUT") {
        append(Path::new(&path), &outputs(plan))?;
    }
    Ok(())
}

fn append(path: &Path, text: &str) -> Result<(), CliError> {
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| CliError::new(error).context(format!("cannot write `{}`", path.display())))
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Accepts a commit alone, because the text becomes part of a URL.
fn is_commit(name: &str) -> bool {
    (7..=64).contains(&name.len()) && name.chars().all(|c| c.is_ascii_hexdigit())
}

fn read_receipt(path: &Path, plan: &Plan) -> Result<Receipt, CliError> {
    let bytes = files::read(path, FILE_BYTES_MAX)?;
    let receipt: Receipt = serde_json::from_slice(&bytes).map_err(|error| {
        CliError::new(error)
            .context(format!("cannot read receipt `{}`", path.display()))
            .hint("name a file that `fleetwright apply --receipt FILE` wrote")
    })?;
    let capacity = &plan.capacity;
    if (&receipt.plan_id, &receipt.digest) == (&capacity.plan_id, &capacity.digest) {
        return Ok(receipt);
    }
    let (path, of, own) = (path.display(), &receipt.plan_id, &capacity.plan_id);
    Err(CliError::text(format!("receipt `{path}` is of plan {of}, not of {own}"))
        .hint("name the receipt of the apply of this very plan"))
}
