//! Remote repositories: fetched into a cache and read there without a checkout.
//!
//! The installed `git` fetches the objects, so that credentials, SSH agents, hardware keys, proxies
//! and company certificates work as usual. This program then needs no TLS or SSH of its own. All
//! reads use the object database, as for any commit. Only `https`, `ssh` and `file` URLs are
//! allowed. No hook, filter or submodule is run, and nothing prompts.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::{
    GitError, GitErrorKind, RepositoryTree, TextFile, TreeBase, TreeLimits, clone_size,
    read_text_files, revision, revision_name, strip_credentials,
};
use crate::adapters::subprocess::{self, RunLimits};

/// Allowed URL schemes.
const SCHEMES: [&str; 3] = ["https", "ssh", "file"];

/// Allowed URL schemes of external sources.
#[cfg(feature = "live")]
const SOURCE_SCHEMES: [&str; 3] = ["https", "http", "ssh"];

/// Rules of a fetch.
#[derive(Clone, Copy)]
struct FetchRules<'a> {
    /// Allowed URL schemes.
    schemes: &'a [&'a str],
    /// Number of commits.
    depth: usize,
}

const FETCH_LIMITS: RunLimits = RunLimits {
    time: Duration::from_mins(2),
    output_bytes: 1 << 20,
    memory_bytes: None,
    file_bytes: Some(FETCHED_BYTES_MAX),
};

/// Maximum size of one pack. A larger repository would fill the disk of the controller.
const FETCHED_BYTES_MAX: u64 = 512 << 20;

/// Number of fetched commits: the newest, and its parent, which may list the accepted signers.
const FETCH_DEPTH: usize = 2;

/// Maximum characters of `git` output in an error.
const ERROR_CHARS_MAX: usize = 300;

/// A remote repository and a directory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRepository {
    url: String,
    /// The directory below the root. Empty for the root.
    directory: String,
}

impl RemoteRepository {
    /// Parses `https://HOST/PATH`, `ssh://…`, `file://…` or `USER@HOST:PATH`, each with an optional
    /// `//DIRECTORY`. Returns `None` for a local path.
    pub fn parse(text: &str) -> Option<Self> {
        let after_scheme = if let Some(at) = text.find("://") {
            at + 3
        } else {
            let (address, _) = text.split_once(':')?;
            if address.contains('/') || !address.contains('@') {
                return None;
            }
            0
        };
        let cut = text[after_scheme..].match_indices("//").map(|(at, _)| after_scheme + at);
        // A `file://` URL may begin with more slashes, which are not a separator.
        let cut = cut.filter(|at| *at > after_scheme).last();
        let (url, directory) = cut.map_or((text, ""), |at| (&text[..at], &text[at + 2..]));
        Some(Self { url: url.to_owned(), directory: directory.trim_matches('/').to_owned() })
    }

    /// Returns the URL of the repository, with its credentials.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the URL and the directory without credentials.
    pub fn display_url(&self) -> String {
        let url = strip_credentials(&self.url);
        if self.directory.is_empty() { url } else { format!("{url}//{}", self.directory) }
    }

    /// Fetches `revision` (by default the default branch) into `cache` and reads it.
    ///
    /// # Errors
    /// Returns an error if the scheme is not allowed, others can write to the cache, `git` is
    /// missing or fails, or nothing can be read.
    pub fn read(
        &self,
        revision: Option<&str>,
        cache: &CloneCache,
    ) -> Result<RepositoryTree, GitError> {
        let revision = revision.unwrap_or("HEAD");
        let reference = self.fetch_newest(revision, cache)?;
        self.read_newest(revision, &reference, cache)
    }

    /// Reads `revision` as [`Self::read`] does. Returns `None` without reading a file if the files
    /// have the base `known`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_changed(
        &self,
        revision: Option<&str>,
        cache: &CloneCache,
        known: &TreeBase,
    ) -> Result<Option<RepositoryTree>, GitError> {
        let revision = revision.unwrap_or("HEAD");
        let reference = self.fetch_newest(revision, cache)?;
        let base = revision::read_base(&self.directory_path(cache), &reference);
        let base = base.map_err(|error| self.error(error.kind))?;
        let base = TreeBase { repository: Some(strip_credentials(&self.url)), ..base };
        if base.is_known(known) {
            return Ok(None);
        }
        self.read_newest(revision, &reference, cache).map(Some)
    }

    /// Fetches the newest commits of `revision`, and returns its reference in the clone.
    fn fetch_newest(&self, revision: &str, cache: &CloneCache) -> Result<String, GitError> {
        let rules = FetchRules { schemes: &SCHEMES, depth: FETCH_DEPTH };
        self.fetch(revision, cache, &rules).map_err(|kind| self.error(kind))
    }

    /// Reads the newest commit of `revision`, which was fetched as `reference`.
    fn read_newest(
        &self,
        revision: &str,
        reference: &str,
        cache: &CloneCache,
    ) -> Result<RepositoryTree, GitError> {
        let tree = self.read_reference(reference, cache)?;
        let mut tree = match &tree.signed_history {
            // All earlier commits determine the accepted signers.
            Some(history) if history.is_truncated() => {
                return self.read_with_history(Some(revision), cache);
            }
            Some(_) | None => tree,
        };
        tree.base.repository = Some(strip_credentials(&self.url));
        Ok(tree)
    }

    /// Reads `revision` as [`Self::read`] does, with all commits that a verification considers.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_with_history(
        &self,
        revision: Option<&str>,
        cache: &CloneCache,
    ) -> Result<RepositoryTree, GitError> {
        let rules = FetchRules { schemes: &SCHEMES, depth: super::signatures::COMMITS_MAX + 1 };
        let mut tree = self.read_by(revision.unwrap_or("HEAD"), cache, &rules)?;
        tree.base.repository = Some(strip_credentials(&self.url));
        Ok(tree)
    }

    /// Reads `revision` as an external source: the caller has checked the host, so that `http` is
    /// allowed and redirects are not followed.
    ///
    /// # Errors
    /// As [`Self::read`].
    #[cfg(feature = "live")]
    pub(crate) fn read_source(
        &self,
        revision: &str,
        cache: &CloneCache,
    ) -> Result<RepositoryTree, GitError> {
        self.read_by(revision, cache, &FetchRules { schemes: &SOURCE_SCHEMES, depth: 1 })
    }

    /// Returns the tags of an external source.
    ///
    /// # Errors
    /// As [`Self::read_source`].
    #[cfg(feature = "live")]
    pub(crate) fn source_tags(&self) -> Result<Vec<String>, GitError> {
        let fail = |kind| self.error(kind);
        let rules = FetchRules { schemes: &SOURCE_SCHEMES, depth: 1 };
        self.check_scheme(&rules).map_err(fail)?;
        let listed = run_git(&["ls-remote", "--tags", "--refs", "--", &self.url], &rules);
        let listed = listed
            .map_err(|message| fail(GitErrorKind::Fetch(truncate(&redact(&message, &self.url)))))?;
        let tag = |line: &str| Some(line.split_once("refs/tags/")?.1.trim().to_owned());
        Ok(listed.lines().filter_map(tag).collect())
    }

    fn check_scheme(&self, rules: &FetchRules<'_>) -> Result<(), GitErrorKind> {
        let scheme = self.url.split_once("://").map_or("ssh", |(scheme, _)| scheme);
        if rules.schemes.contains(&scheme) {
            return Ok(());
        }
        Err(GitErrorKind::Scheme { scheme: scheme.to_owned() })
    }

    fn read_by(
        &self,
        revision: &str,
        cache: &CloneCache,
        rules: &FetchRules<'_>,
    ) -> Result<RepositoryTree, GitError> {
        let reference = self.fetch(revision, cache, rules).map_err(|kind| self.error(kind))?;
        self.read_reference(&reference, cache)
    }

    /// Reads a fetched reference.
    fn read_reference(
        &self,
        reference: &str,
        cache: &CloneCache,
    ) -> Result<RepositoryTree, GitError> {
        let tree = revision::read(&self.directory_path(cache), reference, TreeLimits::DEFAULT);
        tree.map_err(|error| self.error(error.kind))
    }

    fn error(&self, kind: GitErrorKind) -> GitError {
        GitError { path: self.display_url(), kind }
    }

    /// Returns the path of the directory in the clone. It exists in commits only.
    fn directory_path(&self, cache: &CloneCache) -> PathBuf {
        self.clone_path(cache).join(&self.directory)
    }

    /// Returns the files below `directory` of the fetched `revision` whose names end with one of
    /// `ends`.
    ///
    /// # Errors
    /// Returns an error if the revision was not fetched, and otherwise as [`read_text_files`].
    pub fn read_text_files(
        &self,
        directory: &str,
        revision: Option<&str>,
        ends: &[&str],
        cache: &CloneCache,
    ) -> Result<Vec<TextFile>, GitError> {
        let below = self.directory_path(cache).join(directory);
        let found =
            read_text_files(&below, None, Some(&local_reference(revision.unwrap_or("HEAD"))), ends);
        found.map_err(|error| GitError {
            path: format!("{}//{directory}", self.display_url()),
            ..error
        })
    }

    /// Returns the path of the clone. Credentials are not part of the name, so that all users of a
    /// URL share it.
    fn clone_path(&self, cache: &CloneCache) -> PathBuf {
        cache
            .path
            .join(format!("{}.git", hex::encode(Sha256::digest(strip_credentials(&self.url)))))
    }

    /// Fetches `revision` and returns its reference in the clone.
    fn fetch(
        &self,
        revision: &str,
        cache: &CloneCache,
        rules: &FetchRules<'_>,
    ) -> Result<String, GitErrorKind> {
        self.check_scheme(rules)?;
        let odd = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\".contains(c);
        if revision.starts_with('-') || revision.is_empty() || revision.contains(odd) {
            let reason = "name a branch, a tag or a whole commit".to_owned();
            let revision = revision.to_owned();
            return Err(GitErrorKind::UnknownRevision { revision, reason });
        }
        cache.prepare().map_err(GitErrorKind::Fetch)?;
        let clone = self.clone_path(cache);
        let Some(depth) = clone_size::renewal_depth(&clone, rules.depth) else {
            return self.fetch_into(&clone, revision, rules);
        };
        // A new clone has only the wanted commits. Readers of the old one have opened its files.
        let failed = |error: std::io::Error| GitErrorKind::Fetch(error.to_string());
        let mut renewed = tempfile::Builder::new();
        let renewed = renewed.prefix(clone_size::RENEWAL_PREFIX).tempdir_in(&cache.path);
        let renewed = renewed.map_err(failed)?;
        let (fresh, old) = (renewed.path().join("new.git"), renewed.path().join("old.git"));
        let reference = self.fetch_into(&fresh, revision, &FetchRules { depth, ..*rules })?;
        std::fs::rename(&clone, old).map_err(failed)?;
        std::fs::rename(fresh, &clone).map_err(failed)?;
        Ok(reference)
    }

    /// Fetches `revision` into `clone`, which is created if it does not exist.
    fn fetch_into(
        &self,
        clone: &std::path::Path,
        revision: &str,
        rules: &FetchRules<'_>,
    ) -> Result<String, GitErrorKind> {
        if !clone.join("HEAD").is_file() {
            run_git(&["init", "--quiet", "--bare", "--", &clone.display().to_string()], rules)
                .map_err(GitErrorKind::Fetch)?;
        }
        remove_stale_lock(&clone.join("shallow.lock"));
        let reference = local_reference(revision);
        let mut fetched = Ok(());
        for name in revision_name::remote_names(revision) {
            fetched = self.fetch_reference(clone, &name, &reference, rules);
            // If the server has no such branch, the name may be one of a tag, or of a pull request.
            if !matches!(fetched, Err(GitErrorKind::UnknownRevision { .. })) {
                break;
            }
        }
        if let Err(GitErrorKind::UnknownRevision { reason, .. }) = fetched {
            return Err(GitErrorKind::UnknownRevision { revision: revision.to_owned(), reason });
        }
        fetched.map(|()| reference)
    }

    /// Fetches the reference `name` of the server into `clone`, as `reference`.
    fn fetch_reference(
        &self,
        directory: &std::path::Path,
        name: &str,
        reference: &str,
        rules: &FetchRules<'_>,
    ) -> Result<(), GitErrorKind> {
        let clone = format!("--git-dir={}", directory.display());
        let refspec = format!("+{name}:{reference}");
        let depth = format!("--depth={}", rules.depth);
        let fetched = run_git(
            &[
                &clone,
                "fetch",
                "--quiet",
                &depth,
                "--no-tags",
                "--no-recurse-submodules",
                "--no-write-fetch-head",
                "--",
                &self.url,
                &refspec,
            ],
            rules,
        );
        // Credentials are removed before truncation, which could leave half of one.
        let plain = |message: String| truncate(&redact(&message, &self.url));
        if fetched.is_ok() {
            clone_size::record(directory, rules.depth);
        }
        fetched.map(|_| ()).map_err(|message| {
            if is_too_large(&message) {
                let most = FETCHED_BYTES_MAX >> 20;
                let reason = format!("its newest commits have more than {most} MiB");
                return GitErrorKind::Fetch(format!("{reason}; plan a checkout instead"));
            }
            let (revision, reason) = (name.to_owned(), plain(message));
            if is_missing_revision(&reason) {
                return GitErrorKind::UnknownRevision { revision, reason };
            }
            GitErrorKind::Fetch(reason)
        })
    }
}

/// Returns whether the server reported a missing commit or branch. A server that only serves branch
/// heads (`Server does not allow request for unadvertised object`) has not reported that.
fn is_missing_revision(message: &str) -> bool {
    message.contains("not our ref") || message.contains("couldn't find remote ref")
}

/// Returns whether `git` wrote a file that is larger than allowed.
fn is_too_large(message: &str) -> bool {
    message.contains("died of signal 25") || message.contains("File too large")
}

/// A directory of clones.
#[derive(Debug)]
pub struct CloneCache {
    path: PathBuf,
    /// Removes a temporary directory at the end of the run.
    _temporary: Option<TempDir>,
}

impl CloneCache {
    /// Returns the directory below the user's cache. Without one, it is a private directory for
    /// this run.
    ///
    /// # Errors
    /// Returns an error if neither can be used.
    pub fn from_environment() -> Result<Self, GitError> {
        if let Some(cache) = subprocess::cache_directory() {
            return Ok(Self { path: cache.join("clones"), _temporary: None });
        }
        let temporary = tempfile::Builder::new().prefix("fleetwright-").tempdir();
        let temporary = temporary.map_err(|error| {
            let kind = GitErrorKind::Fetch(format!("cannot create a temporary directory: {error}"));
            GitError { path: std::env::temp_dir().display().to_string(), kind }
        })?;
        Ok(Self { path: temporary.path().join("clones"), _temporary: Some(temporary) })
    }

    /// Creates the directory and checks that only the user can write to it.
    fn prepare(&self) -> Result<(), String> {
        let display = self.path.display();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .map_err(|error| format!("its directory {display} cannot be created: {error}"))?;
        let found = std::fs::symlink_metadata(&self.path)
            .map_err(|error| format!("its directory {display} cannot be inspected: {error}"))?;
        let is_ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        if is_ours && found.mode() & 0o022 == 0 {
            clone_size::remove_stale_renewals(&self.path);
            return Ok(());
        }
        Err(format!(
            "other users can write to its directory {display}; remove it, or run `chmod 700` on it"
        ))
    }
}

/// Removes the lock of a killed fetch, which would block every later fetch. A lock older than the
/// fetch timeout has no owner.
fn remove_stale_lock(lock: &std::path::Path) {
    let age = std::fs::metadata(lock).and_then(|found| found.modified());
    let age = age.ok().and_then(|at| at.elapsed().ok());
    if age.is_some_and(|age| age > FETCH_LIMITS.time) {
        // If the removal fails, the fetch reports it.
        let _ = std::fs::remove_file(lock);
    }
}

/// Runs the installed `git` with the user's configuration and without prompts. Returns its output.
fn run_git(arguments: &[&str], rules: &FetchRules<'_>) -> Result<String, String> {
    let mut command = Command::new("git");
    for setting in ["core.hooksPath=/dev/null", "fetch.fsckObjects=true", "gc.auto=0"] {
        command.args(["-c", setting]);
    }
    if !rules.schemes.contains(&"file") {
        // The host behind a redirect is not checked.
        command.args(["-c", "http.followRedirects=false"]);
    }
    command.args(arguments).env("GIT_TERMINAL_PROMPT", "0");
    command.env("GIT_ALLOW_PROTOCOL", rules.schemes.join(":")).env("LC_ALL", "C");
    if std::env::var_os("GIT_SSH_COMMAND").is_none() {
        command.env("GIT_SSH_COMMAND", "ssh -oBatchMode=yes");
    }
    command.stdin(Stdio::null());
    let output = subprocess::run(&mut command, &FETCH_LIMITS)
        .map_err(|failure| format!("`git` {failure}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(message.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Removes everything that may be a credential of `url` from `git` output.
fn redact(message: &str, url: &str) -> String {
    let mut message = message.replace(url, &strip_credentials(url));
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    let query = rest.split_once(['?', '#']).map_or("", |(_, query)| query);
    let password = user.split_once(':').map_or("", |(_, password)| password);
    let values = query.split('&').filter_map(|pair| Some(pair.split_once('=')?.1));
    // Git ends the user at the first `@`, so that the rest of a password with one reads as the host.
    let tails = user.match_indices('@').map(|(at, _)| &user[at + 1..]);
    for secret in [user, password, query].into_iter().chain(values).chain(tails) {
        // A user name alone, as for SSH, is not a secret.
        if !secret.is_empty() && (secret != user || user.contains(':') || url.contains("://")) {
            message = message.replace(secret, "…");
        }
    }
    message
}

fn truncate(message: &str) -> String {
    message.chars().take(ERROR_CHARS_MAX).collect()
}

fn local_reference(revision: &str) -> String {
    format!("refs/fleetwright/{}", &hex::encode(Sha256::digest(revision))[..16])
}

#[cfg(test)]
mod tests;
