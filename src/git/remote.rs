//! Repositories named by their URL: fetched into a cache, and read there without a checkout.
//!
//! The objects are brought by the installed `git`, because credentials are its business: helpers,
//! SSH agents and configurations, keys in hardware, proxies and certificates of a company all work
//! as they do by hand, and no TLS or SSH of ours has to be kept up to date. Everything after that
//! reads the object database, as for any commit. Only `https`, `ssh` and files are fetched from; no
//! hook, filter or submodule is run, and nothing asks a question.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::{
    GitError, GitErrorKind, Limits, NamedFile, TreeRead, read_named, revision, without_credentials,
};
use crate::ids::hex;
use crate::program::{self, Bounds};

/// What may be fetched from.
const SCHEMES: [&str; 3] = ["https", "ssh", "file"];

/// What a fetch may use up.
const FETCH: Bounds =
    Bounds { time: Duration::from_mins(2), output_bytes: 1 << 20, memory_bytes: None };

/// Commits that are fetched: the newest one, and one that may say whose signatures count.
const DEPTH: usize = 2;

/// Characters of what `git` says that an error repeats.
const SAID_MAX: usize = 300;

/// A repository elsewhere, and a directory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    url: String,
    /// The directory below its root; empty for the root itself.
    directory: String,
}

impl Remote {
    /// Returns the repository that `text` names, as `https://HOST/PATH`, `ssh://…`, `file://…` or
    /// `USER@HOST:PATH`, each with `//DIRECTORY` at its end or without; `None` where it is a path.
    #[must_use]
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
        // A `file://` URL may begin with further slashes, which separate nothing.
        let cut = cut.filter(|at| *at > after_scheme).last();
        let (url, directory) = cut.map_or((text, ""), |at| (&text[..at], &text[at + 2..]));
        Some(Self { url: url.to_owned(), directory: directory.trim_matches('/').to_owned() })
    }

    /// Returns the repository and directory without what may be a credential.
    #[must_use]
    pub fn shown(&self) -> String {
        let url = without_credentials(&self.url);
        if self.directory.is_empty() { url } else { format!("{url}//{}", self.directory) }
    }

    /// Fetches `revision` (the default branch unless stated) into `cache`, and reads it.
    ///
    /// # Errors
    /// When the scheme is not allowed, the cache is not ours alone, there is no `git`, it cannot fetch,
    /// or nothing can be read.
    pub fn read(&self, revision: Option<&str>, cache: &CloneCache) -> Result<TreeRead, GitError> {
        let revision = revision.unwrap_or("HEAD");
        let read = self.read_at(revision, cache, DEPTH)?;
        let mut read = match &read.proof {
            // Whose signatures count is told by all commits before.
            Some(proof) if proof.is_cut_short() => {
                self.read_at(revision, cache, super::signed::COMMITS_MAX + 1)?
            }
            Some(_) | None => read,
        };
        read.base.repository = Some(without_credentials(&self.url));
        Ok(read)
    }

    fn read_at(
        &self,
        revision: &str,
        cache: &CloneCache,
        depth: usize,
    ) -> Result<TreeRead, GitError> {
        let fail = |kind| GitError { path: self.shown(), kind };
        let reference = self.fetch(revision, cache, depth).map_err(fail)?;
        let clone = self.clone_in(cache);
        let read = revision::read(&clone.join(&self.directory), &reference, Limits::DEFAULT);
        read.map_err(|error| fail(error.kind))
    }

    /// Returns the files below `directory` of what [`Remote::read`] has fetched as `revision`, whose
    /// names end in one of `ends`.
    ///
    /// # Errors
    /// When it was not fetched, or as [`read_named`].
    pub fn read_named(
        &self,
        directory: &str,
        revision: Option<&str>,
        ends: &[&str],
        cache: &CloneCache,
    ) -> Result<Vec<NamedFile>, GitError> {
        let below = self.clone_in(cache).join(&self.directory).join(directory);
        let found = read_named(&below, None, Some(&reference(revision.unwrap_or("HEAD"))), ends);
        found.map_err(|error| GitError { path: format!("{}//{directory}", self.shown()), ..error })
    }

    /// Returns where its clone lies. Who fetches does not matter: credentials are no part of the
    /// name.
    fn clone_in(&self, cache: &CloneCache) -> PathBuf {
        cache.path.join(format!("{}.git", hex(&Sha256::digest(without_credentials(&self.url)))))
    }

    /// Fetches `revision` and returns the name it has in the clone.
    fn fetch(
        &self,
        revision: &str,
        cache: &CloneCache,
        depth: usize,
    ) -> Result<String, GitErrorKind> {
        let scheme = self.url.split_once("://").map_or("ssh", |(scheme, _)| scheme);
        if !SCHEMES.contains(&scheme) {
            return Err(GitErrorKind::Scheme { scheme: scheme.to_owned() });
        }
        let odd = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\".contains(c);
        if revision.starts_with('-') || revision.is_empty() || revision.contains(odd) {
            let reason = "name a branch, a tag or a whole commit".to_owned();
            let revision = revision.to_owned();
            return Err(GitErrorKind::UnknownRevision { revision, reason });
        }
        cache.prepare().map_err(GitErrorKind::Fetch)?;
        let clone = self.clone_in(cache);
        if !clone.join("HEAD").is_file() {
            git(&["init", "--quiet", "--bare", "--", &clone.display().to_string()])
                .map_err(GitErrorKind::Fetch)?;
        }
        remove_stale_lock(&clone.join("shallow.lock"));
        let reference = reference(revision);
        let clone = format!("--git-dir={}", clone.display());
        let refspec = format!("+{revision}:{reference}");
        let depth = format!("--depth={depth}");
        let fetched = git(&[
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
        ]);
        // Secrets go before anything is cut off, which might leave half of one.
        let plain = |said: String| cut(&redacted(&said, &self.url));
        fetched.map(|()| reference).map_err(|said| {
            let (revision, reason) = (revision.to_owned(), plain(said));
            if says_that_there_is_none(&reason) {
                return GitErrorKind::UnknownRevision { revision, reason };
            }
            GitErrorKind::Fetch(reason)
        })
    }
}

/// Returns whether what `git` said is the answer of the other side that it has no such commit or branch. One that hands out
/// only what its branches end in (`Server does not allow request for unadvertised object`) has not said that.
fn says_that_there_is_none(said: &str) -> bool {
    said.contains("not our ref") || said.contains("couldn't find remote ref")
}

/// A folder of clones.
#[derive(Debug)]
pub struct CloneCache {
    path: PathBuf,
    /// What removes it, where it lasts no longer than this run.
    _passing: Option<TempDir>,
}

impl CloneCache {
    /// Returns the folder below the user's cache; without one, a private folder for this run.
    ///
    /// # Errors
    /// When there is neither.
    pub fn of_environment() -> Result<Self, GitError> {
        if let Some(cache) = program::cache() {
            return Ok(Self { path: cache.join("clones"), _passing: None });
        }
        let passing = tempfile::Builder::new().prefix("fleetwright-").tempdir();
        let passing = passing.map_err(|error| {
            let kind = GitErrorKind::Fetch(format!("no private folder can be made: {error}"));
            GitError { path: std::env::temp_dir().display().to_string(), kind }
        })?;
        Ok(Self { path: passing.path().join("clones"), _passing: Some(passing) })
    }

    /// Makes the folder, and checks that nobody else can put anything into it.
    fn prepare(&self) -> Result<(), String> {
        let shown = self.path.display();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .map_err(|error| format!("its folder {shown} cannot be made: {error}"))?;
        let found = std::fs::symlink_metadata(&self.path)
            .map_err(|error| format!("its folder {shown} cannot be looked at: {error}"))?;
        let is_ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        if is_ours && found.mode() & 0o022 == 0 {
            return Ok(());
        }
        Err(format!(
            "others may write into its folder {shown}; remove it, or run `chmod 700` on it"
        ))
    }
}

/// Removes what a fetch that was killed has left behind, and which would keep every later one out: one
/// that is older than any fetch may take is nobody's.
fn remove_stale_lock(lock: &std::path::Path) {
    let age = std::fs::metadata(lock).and_then(|found| found.modified());
    let age = age.ok().and_then(|at| at.elapsed().ok());
    if age.is_some_and(|age| age > FETCH.time) {
        // Where it cannot be removed, the fetch says so.
        let _ = std::fs::remove_file(lock);
    }
}

/// Runs the installed `git`, which may use the user's configuration and must not ask.
fn git(arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("git");
    for setting in ["core.hooksPath=/dev/null", "fetch.fsckObjects=true", "gc.auto=0"] {
        command.args(["-c", setting]);
    }
    command.args(arguments).env("GIT_TERMINAL_PROMPT", "0");
    command.env("GIT_ALLOW_PROTOCOL", SCHEMES.join(":")).env("LC_ALL", "C");
    if std::env::var_os("GIT_SSH_COMMAND").is_none() {
        command.env("GIT_SSH_COMMAND", "ssh -oBatchMode=yes");
    }
    command.stdin(Stdio::null());
    let ended = program::run(&mut command, &FETCH).map_err(|failure| format!("`git` {failure}"))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.said);
    Err(said.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Takes out of what `git` said whatever of `url` may be a credential.
fn redacted(said: &str, url: &str) -> String {
    let mut said = said.replace(url, &without_credentials(url));
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    let query = rest.split_once(['?', '#']).map_or("", |(_, query)| query);
    let password = user.split_once(':').map_or("", |(_, password)| password);
    let values = query.split('&').filter_map(|pair| Some(pair.split_once('=')?.1));
    for secret in [user, password, query].into_iter().chain(values) {
        // The name alone that SSH is asked for is no secret.
        if !secret.is_empty() && (secret != user || user.contains(':') || url.contains("://")) {
            said = said.replace(secret, "…");
        }
    }
    said
}

fn cut(said: &str) -> String {
    said.chars().take(SAID_MAX).collect()
}

/// Returns the name that a revision has in a clone.
fn reference(revision: &str) -> String {
    format!("refs/fleetwright/{}", &hex(&Sha256::digest(revision))[..16])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tests::Place;
    use super::*;

    fn cache_in(folder: &std::path::Path) -> CloneCache {
        CloneCache { path: folder.join("clones"), _passing: None }
    }

    #[test]
    fn nothing_of_a_credential_is_left_of_what_git_says_wherever_it_is_cut() {
        let token = "ghp_0123456789".repeat(40);
        for (url, secret) in [
            (format!("https://me:{token}@h/o/r"), token.as_str()),
            (format!("https://{token}@h/o/r"), token.as_str()),
            (format!("https://h/o/r?access={token}"), token.as_str()),
        ] {
            let said = format!("fatal: unable to access '{url}/': {secret} is refused");
            let shown = cut(&redacted(&said, &url));
            assert!(!shown.contains("ghp_") && shown.contains("https://h/o/r"), "{shown}");
        }
        let said = "git@h: Permission denied (publickey)";
        assert_eq!(redacted(said, "git@h:o/r"), said, "a name is no secret");
    }

    #[test]
    fn clones_lie_where_nobody_else_can_write_and_are_found_whoever_fetches() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let cache = cache_in(folder.path());
        assert_eq!(cache.prepare(), Ok(()));
        fs::set_permissions(&cache.path, fs::Permissions::from_mode(0o777)).expect("opened");
        assert!(cache.prepare().expect_err("open to all").contains("others may write"));
        fs::remove_dir(&cache.path).expect("removed");
        std::os::unix::fs::symlink(folder.path(), &cache.path).expect("linked");
        assert!(cache.prepare().expect_err("a link").contains("others may write"));
        let remote = |url: &str| Remote::parse(url).expect("a URL").clone_in(&cache);
        assert_eq!(remote("https://a:b@h/o/r"), remote("https://h/o/r"));
        assert_ne!(remote("https://h/o/r"), remote("https://h/o/s"));
    }

    #[test]
    fn urls_are_told_from_paths_and_a_directory_stands_behind_two_slashes() {
        let remote = |url: &str, directory: &str| {
            Some(Remote { url: url.to_owned(), directory: directory.to_owned() })
        };
        for (text, expected) in [
            ("https://h/o/r", remote("https://h/o/r", "")),
            ("https://h/o/r.git//clusters/prod/", remote("https://h/o/r.git", "clusters/prod")),
            ("git@h:o/r.git//apps", remote("git@h:o/r.git", "apps")),
            ("ssh://git@h:22/o/r", remote("ssh://git@h:22/o/r", "")),
            ("file:///srv/r//apps", remote("file:///srv/r", "apps")),
            ("ext::sh -c x", None),
            ("clusters/prod", None),
            ("c:/x", None),
            (".", None),
        ] {
            assert_eq!(Remote::parse(text), expected, "{text}");
        }
        let secret = Remote::parse("https://me:token@h/o/r//x").expect("a URL");
        assert_eq!(secret.shown(), "https://h/o/r//x");
    }

    #[test]
    fn a_repository_is_fetched_shallow_and_read_without_a_checkout() {
        let place = Place::new();
        place.write("apps/a.yaml", "1").write("b.yaml", "2").commit();
        place.write("apps/a.yaml", "3");
        let last = place.commit();
        let folder = tempfile::tempdir().expect("a folder");
        let cache = cache_in(folder.path());
        let url = format!("file://{}//apps", place.path("").display());
        let url = url.replace("///apps", "//apps");
        let remote = Remote::parse(&url).expect("a URL");
        let read = remote.read(None, &cache).expect("read");
        assert_eq!(read.tree.files.len(), 1);
        assert_eq!(read.tree.files[0].content.as_deref(), Ok(&b"3"[..]));
        assert_eq!(read.base.commit.as_deref(), Some(last.as_str()));
        let clone = remote.clone_in(&cache);
        assert!(clone.join("shallow").is_file() && !clone.join("apps").exists());
        place.write("apps/a.yaml", "4").commit();
        // One that was killed in the middle leaves its lock.
        let lock = fs::File::create(clone.join("shallow.lock")).expect("a lock");
        assert!(remote.read(None, &cache).is_err(), "it may be somebody's");
        let long_ago = std::time::SystemTime::now() - FETCH.time * 2;
        lock.set_modified(long_ago).expect("an older one");
        let read = remote.read(None, &cache).expect("read again");
        assert_eq!(read.tree.files[0].content.as_deref(), Ok(&b"4"[..]), "what is there now");
        for none in ["nowhere", "1111111111111111111111111111111111111111"] {
            let error = remote.read(Some(none), &cache).expect_err("there is none");
            let certain = matches!(error.kind, GitErrorKind::UnknownRevision { .. });
            assert!(certain && error.to_string().contains(none), "{error}");
        }
    }

    #[test]
    fn only_what_is_safe_to_fetch_from_is_fetched_from() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = cache_in(folder.path());
        for (url, revision, expected) in [
            ("http://127.0.0.1:1/x", None, "scheme `http` is not fetched from"),
            ("ext://sh/x", None, "scheme `ext` is not fetched from"),
            ("git://127.0.0.1/x", None, "scheme `git` is not fetched from"),
            ("file:///nowhere", Some("--upload-pack=x"), "has no commit `--upload-pack=x`"),
            ("file:///nowhere", Some("a:b"), "has no commit `a:b`"),
            ("file:///nowhere", None, "it cannot be fetched: "),
            ("https://me:secret@127.0.0.1:1/x", None, "it cannot be fetched: "),
        ] {
            let remote = Remote::parse(url).expect("a URL");
            let error = remote.read(revision, &cache).expect_err("refused").to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
        assert!(fs::read_dir(&cache.path).expect("listed").count() <= 2);
    }
}
