//! `comment`: what a pull request sees of a plan.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use serde_json::Value;

use super::error::CliError;
use super::settings::CommentSettings;
use super::{Console, Exit, approval, files};
use crate::apply::Receipt;
use crate::github::GitHub;
use crate::plan::{Plan, verify_approvals};
use crate::port::{Forge as _, ForgeError};
use crate::render::{MarkdownStyle, markdown};
use crate::review::{COMMENT_CHARS_MAX, Posted, comment, keep, outputs, status};

/// Most bytes of an event, and of a receipt.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// Most characters of a job's summary: a step may write a mebibyte, several bytes a character.
const SUMMARY_CHARS_MAX: usize = 250_000;
const API: &str = "https://api.github.com";

pub(super) fn run(settings: &CommentSettings, console: &mut Console) -> Result<Exit, CliError> {
    let plan = files::saved_plan(&settings.plan, console)?;
    let receipt = settings.receipt.as_deref().map(receipt).transpose()?;
    let approvals = approval::gather(&settings.approvals)?;
    let approved = verify_approvals(&plan, &approvals, &[], 1).is_ok();
    let body = |most: usize| comment(&plan, receipt.as_ref(), approved, most);
    if settings.dry_run {
        console.print(&body(COMMENT_CHARS_MAX))?;
        return Ok(Exit::Done);
    }
    write_job_files(&plan)?;
    let Some(token) = variable("GITHUB_TOKEN") else {
        console.say("GITHUB_TOKEN is not set: no comment was written.");
        return Ok(Exit::Done);
    };
    let missing = |what: &str, hint: &str| CliError::text(what.to_owned()).hint(hint.to_owned());
    let repository = settings.repository.clone().or_else(|| variable("GITHUB_REPOSITORY"));
    let repository = repository
        .filter(|name| is_repository(name))
        .ok_or_else(|| missing("the repository is not known", "pass --repository OWNER/NAME"))?;
    let pull = settings
        .pull
        .or_else(pull_of_event)
        .ok_or_else(|| missing("the pull request is not known", "pass --pull NUMBER"))?;
    let api = variable("GITHUB_API_URL").unwrap_or_else(|| API.to_owned());
    let github = GitHub::new(&api, &repository, token);
    if let Some(commit) = &settings.status {
        tolerate(github.set_status(commit, &status(&plan, receipt.as_ref())), console)?;
    }
    let posted = keep(&github, pull, &body);
    let said = match &posted {
        Ok(Posted::Created) => "The comment was written.",
        Ok(Posted::Updated) => "The comment was brought up to date.",
        Ok(Posted::Unchanged) => "The comment is up to date.",
        Err(_) => "",
    };
    tolerate(posted.map(drop), console)?;
    if !said.is_empty() {
        console.say(said);
    }
    Ok(Exit::Done)
}

/// A pull request from a fork gets a token that may only read: then the job's summary has the plan.
fn tolerate(end: Result<(), ForgeError>, console: &mut Console) -> Result<(), CliError> {
    match end {
        Err(error @ ForgeError::Refused(_)) => {
            console.say(&format!(
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

/// Writes the summary and the outputs of the job, where it has any.
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

/// Returns the number of the pull request that a workflow runs for.
fn pull_of_event() -> Option<u64> {
    let path = variable("GITHUB_EVENT_PATH")?;
    let bytes = files::read(Path::new(&path), FILE_BYTES_MAX).ok()?;
    let event: Value = serde_json::from_slice(&bytes).ok()?;
    event.pointer("/pull_request/number").or_else(|| event.pointer("/number"))?.as_u64()
}

/// Nothing but an owner and a name: the text becomes part of an address.
fn is_repository(name: &str) -> bool {
    let plain = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && part != ".." && part.chars().all(allowed)
    };
    name.split_once('/').is_some_and(|(owner, name)| plain(owner) && plain(name))
}

fn receipt(path: &Path) -> Result<Receipt, CliError> {
    let bytes = files::read(path, FILE_BYTES_MAX)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        CliError::new(error)
            .context(format!("cannot read receipt `{}`", path.display()))
            .hint("name a file that `fleetwright apply --receipt FILE` wrote")
    })
}
