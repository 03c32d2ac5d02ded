//! The files of a repository: as settings name them, and as a plan recorded them.

use super::Exit;
use super::error::CliError;
use super::plan_origin::check_origin;
use super::repository::{FleetSettings, Repository};
use super::settings::SourceSettings;
use super::signature_check::SignatureTrust;
use crate::adapters::git::{
    CloneCache, GitErrorKind, RemoteRepository, RepositoryTree, read_revision, read_tree,
};
use crate::plan::Plan;

/// Reads the files of the settings.
pub(super) fn read(source: &SourceSettings) -> Result<RepositoryTree, CliError> {
    let SourceSettings { path, revision } = source;
    let read = match (path.to_str().and_then(RemoteRepository::parse), revision) {
        (Some(remote), revision) => {
            let cache = CloneCache::from_environment()?;
            remote.read(revision.as_deref(), &cache)
        }
        (None, None) => read_tree(path),
        (None, Some(revision)) => read_revision(path, revision),
    };
    let read = read?;
    tracing::info!(files = read.tree.files.len(), commit = read.base.commit, "tree read");
    Ok(read)
}

/// Returns `tree` with more of its history, if the chain of signatures needs it.
pub(super) fn longer_history(
    tree: &RepositoryTree,
    source: &SourceSettings,
    trust: &SignatureTrust,
) -> Result<Option<RepositoryTree>, CliError> {
    let SourceSettings { path, revision } = source;
    match path.to_str().and_then(RemoteRepository::parse) {
        Some(remote) if trust.needs_more_of(tree) => {
            let cache = CloneCache::from_environment()?;
            // A branch may have moved on.
            let read = tree.base.commit.as_deref().or(revision.as_deref());
            Ok(Some(remote.read_with_history(read, &cache)?))
        }
        Some(_) | None => Ok(None),
    }
}

/// Reads the tree of the plan at the place of the caller. The embedded world also plays the delivery
/// tool, and must deliver the planned workloads even if the files have changed.
pub(super) fn read_planned(plan: &Plan, caller: &SourceSettings) -> Result<Repository, CliError> {
    let base = &plan.capacity.base;
    let committed = base.commit.as_ref().filter(|_| !base.dirty);
    let is_remote = caller.path.to_str().and_then(RemoteRepository::parse).is_some();
    let revision = committed.filter(|_| is_remote).cloned();
    let now = read(&SourceSettings { revision, ..caller.clone() })?;
    check_origin(plan, &now.base, caller)?;
    let now = Repository::read_for_apply(&now);
    if now.base.tree == base.tree {
        return Ok(now);
    }
    let Some(commit) = committed.filter(|_| !is_remote) else {
        return Err(changed_files_error(plan, caller, &now.fleet));
    };
    let then = read_revision(&caller.path, commit).map_err(|error| {
        let is_unknown = matches!(error.kind, GitErrorKind::UnknownRevision { .. });
        let error = CliError::from(error);
        if is_unknown { error.kind(Exit::OtherCluster) } else { error }
    })?;
    let then = Repository::read_for_apply(&then);
    if then.base.tree == base.tree {
        return Ok(then);
    }
    Err(changed_files_error(plan, caller, &now.fleet))
}

/// Returns the error of files that differ from the plan: another cluster, or changed since.
pub(super) fn changed_files_error(
    plan: &Plan,
    caller: &SourceSettings,
    here: &FleetSettings,
) -> CliError {
    let (path, planned) = (caller.path.display(), &plan.capacity.base.world.cluster.name);
    if here.cluster != *planned {
        let here = &here.cluster;
        return CliError::text(format!(
            "the files in `{path}` are of cluster `{here}`, and the plan is of cluster `{planned}`"
        ))
        .kind(Exit::OtherCluster)
        .hint("run it from the directory where the plan was made, or name that: --path DIR");
    }
    CliError::text(format!("the files in `{path}` are not those that were planned"))
        .kind(Exit::Stale)
        .hint("plan again")
}
