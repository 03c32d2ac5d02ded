//! Settings of `comment`.

use std::path::PathBuf;

use super::planning::{GuardChoice, SourceSettings};
use crate::cli::args::CommentArgs;
use crate::cli::comment::ForgeHost;

/// Settings of `comment`.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct CommentSettings {
    pub(in crate::cli) about: CommentSubject,
    /// One of several clusters of the repository.
    pub(in crate::cli) cluster: Option<String>,
    /// `None`: the platform of the job.
    pub(in crate::cli) host: Option<ForgeHost>,
    pub(in crate::cli) repository: Option<String>,
    pub(in crate::cli) pull: Option<u64>,
    /// The commit of the status.
    pub(in crate::cli) status: Option<String>,
    pub(in crate::cli) dry_run: bool,
}

/// The subject of a comment.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) enum CommentSubject {
    Plan {
        plan: PathBuf,
        receipt: Option<PathBuf>,
        approvals: Vec<PathBuf>,
        /// The place whose settings count.
        caller: SourceSettings,
        guard: GuardChoice,
    },
    /// The failure that prevented a plan or an apply.
    Failure(String),
}

pub(super) fn comment(args: CommentArgs) -> CommentSettings {
    let CommentArgs {
        plan,
        receipt,
        approval: approvals,
        path,
        guard_ref,
        failed,
        cluster,
        host,
        repository,
        pull,
        status,
        dry_run,
    } = args;
    let about = match (plan, failed) {
        (Some(plan), _) => CommentSubject::Plan {
            plan,
            receipt,
            approvals,
            caller: SourceSettings { path, revision: None },
            guard: GuardChoice { revision: guard_ref, ..GuardChoice::default() },
        },
        // Clap requires one of both.
        (None, why) => CommentSubject::Failure(why.unwrap_or_default()),
    };
    CommentSettings { about, cluster, host, repository, pull, status, dry_run }
}
