//! The files of a repository: as settings name them, and as a plan recorded them.

use sha2::{Digest, Sha256};

use super::Exit;
use super::error::CliError;
use super::plan_origin::check_origin;
use super::repository::{FleetSettings, PoolsRead, Repository};
use super::settings::SourceSettings;
use super::signature_check::SignatureTrust;
use crate::adapters::git::{
    CloneCache, GitError, GitErrorKind, RemoteRepository, RepositoryTree, TreeBase, absolute_path,
    is_in_history, read_changed_revision, read_revision, read_tree,
};
use crate::manifest::{read_fleet, use_settings_of};
use crate::model::desired::FLEET_FILE;
use crate::plan::Plan;

/// Reads the files of the settings.
pub(super) fn read(source: &SourceSettings) -> Result<RepositoryTree, CliError> {
    let read = read_unlogged(source)?;
    tracing::info!(files = read.tree.files.len(), commit = read.base.commit, "tree read");
    Ok(read)
}

/// Reads as [`read`] does, for a caller that reads often and logs only new trees.
pub(super) fn read_unlogged(source: &SourceSettings) -> Result<RepositoryTree, CliError> {
    Ok(read_files(source, History::Enough)?)
}

/// Reads as [`read_unlogged`] does. Returns `None` without reading a file if the files have the base
/// `known`: their commit is the same. A work tree is always read, because it changes without a
/// commit.
pub(super) fn read_changed(
    source: &SourceSettings,
    known: &TreeBase,
) -> Result<Option<RepositoryTree>, CliError> {
    let SourceSettings { path, revision } = source;
    let near = match (path.to_str().and_then(RemoteRepository::parse), revision) {
        (Some(remote), revision) => {
            let cache = CloneCache::from_environment()?;
            remote.read_changed(revision.as_deref(), &cache, known)?
        }
        (None, None) => Some(read_tree(path)?),
        (None, Some(revision)) => read_changed_revision(path, revision, known)?,
    };
    Ok(near.map(|near| read_around(near, source)).transpose()?)
}

/// Returns `tree` with more of its history, if the chain of signatures needs it.
pub(super) fn longer_history(
    tree: &RepositoryTree,
    source: &SourceSettings,
    trust: &SignatureTrust,
) -> Result<Option<RepositoryTree>, CliError> {
    match source.path.to_str().and_then(RemoteRepository::parse) {
        Some(_) if trust.needs_more_of(tree) => {
            // A branch may have moved on.
            let revision = tree.base.commit.clone().or_else(|| source.revision.clone());
            let source = SourceSettings { revision, ..source.clone() };
            Ok(Some(read_files(&source, History::Whole)?))
        }
        Some(_) | None => Ok(None),
    }
}

/// Commits that are read with the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum History {
    /// As many as most checks of signatures need.
    Enough,
    /// All that a check considers.
    Whole,
}

/// Reads the directory of the settings, or the whole repository if its `fleetwright.yaml` says so.
fn read_files(source: &SourceSettings, history: History) -> Result<RepositoryTree, GitError> {
    read_around(read_directory(source, history)?, source)
}

/// Returns the directory of the settings, or the whole repository if its `fleetwright.yaml` says so.
fn read_around(
    mut near: RepositoryTree,
    source: &SourceSettings,
) -> Result<RepositoryTree, GitError> {
    near.outer_settings = outer_settings(source, &near);
    let below = near.base.below.clone();
    if below.is_empty() || !read_fleet(&near.tree).0.whole_repository {
        return Ok(near);
    }
    let mut whole = read_directory(&root_of(source, &near), History::Enough)?;
    let has_settings = use_settings_of(&near.tree, &mut whole.tree, &below);
    let is_root = whole.base.below.is_empty() && whole.base.commit == near.base.commit;
    if !is_root || !has_settings {
        let why = format!(
            "the repository does not hold the settings of `{below}` (spec.wholeRepository); they may be \
             ignored, or have changed while they were read"
        );
        let path = source.path.display().to_string();
        return Err(GitError { path, kind: GitErrorKind::Repository(why) });
    }
    // Two directories of one repository are different trees.
    let digest = Sha256::digest(format!("{below}\n{}", whole.base.tree));
    whole.base.tree = format!("sha256:{}", hex::encode(digest));
    whole.base.dirty |= near.base.dirty;
    whole.has_unread_objects |= near.has_unread_objects;
    whole.base.below = below;
    // The signers are those of the directory.
    whole.signed_history = near.signed_history;
    whole.is_whole_repository = true;
    Ok(whole)
}

/// Returns the nearest settings above a directory of a work tree that has none, relative to the
/// directory.
fn outer_settings(source: &SourceSettings, near: &RepositoryTree) -> Option<String> {
    let has_own = near.tree.files.iter().any(|file| &*file.path == FLEET_FILE);
    let below = &near.base.below;
    let is_remote = source.path.to_str().and_then(RemoteRepository::parse).is_some();
    if has_own || below.is_empty() || is_remote || source.revision.is_some() {
        return None;
    }
    let path = absolute_path(&source.path)?;
    let above = path.ancestors().skip(1).take(below.split('/').count());
    let ups = above.zip(1_usize..).find(|(directory, _)| directory.join(FLEET_FILE).is_file())?.1;
    Some(format!("{}{FLEET_FILE}", "../".repeat(ups)))
}

/// Reads the directory of the settings alone, whatever its `fleetwright.yaml` says.
pub(super) fn read_alone(source: &SourceSettings) -> Result<RepositoryTree, CliError> {
    Ok(read_directory(source, History::Enough)?)
}

fn read_directory(source: &SourceSettings, history: History) -> Result<RepositoryTree, GitError> {
    let SourceSettings { path, revision } = source;
    match (path.to_str().and_then(RemoteRepository::parse), revision) {
        (Some(remote), revision) => {
            let cache = CloneCache::from_environment()?;
            match history {
                History::Enough => remote.read(revision.as_deref(), &cache),
                History::Whole => remote.read_with_history(revision.as_deref(), &cache),
            }
        }
        (None, None) => read_tree(path),
        (None, Some(revision)) => read_revision(path, revision),
    }
}

/// Returns the root of the repository of a directory, at the same commit.
fn root_of(source: &SourceSettings, near: &RepositoryTree) -> SourceSettings {
    if let Some(remote) = source.path.to_str().and_then(RemoteRepository::parse) {
        let revision = near.base.commit.clone();
        return SourceSettings { path: remote.url().into(), revision };
    }
    // The directory may exist only in the commit.
    let path = absolute_path(&source.path).unwrap_or_else(|| source.path.clone());
    let depth = near.base.below.split('/').count();
    let root = path.ancestors().nth(depth).unwrap_or(&path).to_owned();
    let revision = source.revision.is_some().then(|| near.base.commit.clone()).flatten();
    SourceSettings { path: root, revision }
}

/// Returns the pools of the cluster if the settings need them.
pub(super) type ReadPools<'r> = &'r dyn Fn(&FleetSettings) -> Result<PoolsRead, CliError>;

/// Reads the files of the plan at the place of the caller. The embedded world also plays the delivery
/// tool, and must deliver the planned workloads even if the files have changed.
///
/// A plan file does not choose a commit: that of the plan must be in the history of the caller's
/// revision, or have the same files. Any other commit of the clone may be that of an open pull
/// request, and would decide the user data of the launched nodes.
pub(super) fn read_planned(
    plan: &Plan,
    caller: &SourceSettings,
    trust: &SignatureTrust,
    pools: ReadPools<'_>,
) -> Result<Repository, CliError> {
    let base = &plan.capacity.base;
    let now = read(caller)?;
    check_origin(plan, &now.base, caller)?;
    let now = for_apply(now, caller, trust, pools)?;
    if now.base.tree == base.tree {
        return Ok(now);
    }
    let Some(commit) = base.commit.as_ref().filter(|_| !base.dirty) else {
        return Err(changed_files_error(plan, caller, &now.fleet));
    };
    let here = caller.revision.as_deref().unwrap_or("HEAD");
    let is_merged = is_in_history_of(caller, here, commit)?;
    // A squash has the files of the commit, and not the commit.
    let revision = Some(if is_merged { commit.clone() } else { here.to_owned() });
    let committed = SourceSettings { revision, ..caller.clone() };
    let then = for_apply(read_files(&committed, History::Enough)?, &committed, trust, pools)?;
    if then.base.tree == base.tree {
        return Ok(then);
    }
    let error = changed_files_error(plan, caller, &now.fleet);
    if is_merged || error.kind != Exit::Stale {
        return Err(error);
    }
    Err(CliError::text(format!("commit {commit} of the plan is not in the history of {here}"))
        .kind(Exit::Stale)
        .hint("merge the commit and check it out with its history, or plan again"))
}

/// Reads the manifests of a tree to apply a plan of it.
fn for_apply(
    tree: RepositoryTree,
    source: &SourceSettings,
    trust: &SignatureTrust,
    pools: ReadPools<'_>,
) -> Result<Repository, CliError> {
    let longer = longer_history(&tree, source, trust)?;
    let tree = longer.unwrap_or(tree);
    let pools = pools(&FleetSettings::read(&tree))?;
    Ok(Repository::read_for_apply(&tree, trust, pools))
}

/// Returns true if `commit` is `revision` of the caller's repository or an ancestor of it.
fn is_in_history_of(
    caller: &SourceSettings,
    revision: &str,
    commit: &str,
) -> Result<bool, CliError> {
    if caller.path.to_str().and_then(RemoteRepository::parse).is_none() {
        return Ok(is_in_history(&caller.path, revision, commit)?);
    }
    let history = read_directory(caller, History::Whole)?.signed_history;
    Ok(history.is_some_and(|history| history.commits.iter().any(|found| found.id == *commit)))
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

#[cfg(test)]
mod tests;
