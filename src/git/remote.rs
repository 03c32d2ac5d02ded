//! Repositories named by their URL: fetched into a cache, and read there without a checkout.
//!
//! The objects are brought by the installed `git`, because credentials are its business: helpers,
//! SSH agents and configurations, keys in hardware, proxies and certificates of a company all work
//! as they do by hand, and no TLS or SSH of ours has to be kept up to date. Everything after that
//! reads the object database, as for any commit. Only `https`, `ssh` and files are fetched from; no
//! hook, filter or submodule is run, and nothing asks a question.

use std::fs::DirBuilder;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::{GitError, GitErrorKind, Limits, TreeRead, revision, without_credentials};

/// What may be fetched from.
const SCHEMES: [&str; 3] = ["https", "ssh", "file"];

/// How long a fetch may take.
const FETCH_MAX: Duration = Duration::from_mins(2);

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
    /// When the scheme is not allowed, there is no `git`, it cannot fetch, or nothing can be read.
    pub fn read(&self, revision: Option<&str>, cache: &Path) -> Result<TreeRead, GitError> {
        let fail = |kind| GitError { path: self.shown(), kind };
        let reference = self.fetch(revision.unwrap_or("HEAD"), cache).map_err(fail)?;
        let clone = self.clone_in(cache);
        let read = revision::read(&clone.join(&self.directory), &reference, Limits::DEFAULT);
        let mut read = read.map_err(|error| fail(error.kind))?;
        read.base.repository = Some(without_credentials(&self.url));
        Ok(read)
    }

    fn clone_in(&self, cache: &Path) -> PathBuf {
        cache.join(format!("{}.git", hex(&self.url)))
    }

    /// Fetches `revision` and returns the name it has in the clone.
    fn fetch(&self, revision: &str, cache: &Path) -> Result<String, GitErrorKind> {
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
        let said = |error: std::io::Error| GitErrorKind::Fetch(error.to_string());
        DirBuilder::new().recursive(true).mode(0o700).create(cache).map_err(said)?;
        let clone = self.clone_in(cache);
        if !clone.join("HEAD").is_file() {
            git(&["init", "--quiet", "--bare", "--", &clone.display().to_string()])
                .map_err(GitErrorKind::Fetch)?;
        }
        let reference = format!("refs/fleetwright/{}", &hex(revision)[..16]);
        let clone = format!("--git-dir={}", clone.display());
        let refspec = format!("+{revision}:{reference}");
        let fetched = git(&[
            &clone,
            "fetch",
            "--quiet",
            // The commit before it says whose signatures count.
            "--depth=2",
            "--no-tags",
            "--no-recurse-submodules",
            "--no-write-fetch-head",
            "--",
            &self.url,
            &refspec,
        ]);
        let plain = |said: String| said.replace(&self.url, &without_credentials(&self.url));
        fetched.map(|()| reference).map_err(|said| GitErrorKind::Fetch(plain(said)))
    }
}

/// Returns where clones are kept: below the user's cache folder, else the temporary one.
#[must_use]
pub fn clone_cache() -> PathBuf {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.filter(|path| path.is_absolute()).or_else(home);
    cache.unwrap_or_else(std::env::temp_dir).join("fleetwright").join("clones")
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
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("`git` cannot run: {error}"))?;
    let stderr = child.stderr.take();
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        if let Some(stderr) = stderr {
            // What is not text is of no use in a message.
            let _ = stderr.take(1 << 16).read_to_string(&mut said);
        }
        said
    });
    let end = Instant::now() + FETCH_MAX;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("`git` did not end within {} s", FETCH_MAX.as_secs()));
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let said = reader.join().unwrap_or_default();
    let words: Vec<&str> = said.split_whitespace().collect();
    Err(words.join(" ").chars().take(SAID_MAX).collect())
}

fn hex(text: &str) -> String {
    Sha256::digest(text).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tests::Place;
    use super::*;

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
        let cache = tempfile::tempdir().expect("a folder");
        let url = format!("file://{}//apps", place.path("").display());
        let url = url.replace("///apps", "//apps");
        let remote = Remote::parse(&url).expect("a URL");
        let read = remote.read(None, cache.path()).expect("read");
        assert_eq!(read.tree.files.len(), 1);
        assert_eq!(read.tree.files[0].content.as_deref(), Ok(&b"3"[..]));
        assert_eq!(read.base.commit.as_deref(), Some(last.as_str()));
        let clone = remote.clone_in(cache.path());
        assert!(clone.join("shallow").is_file() && !clone.join("apps").exists());
        place.write("apps/a.yaml", "4").commit();
        let read = remote.read(None, cache.path()).expect("read again");
        assert_eq!(read.tree.files[0].content.as_deref(), Ok(&b"4"[..]), "what is there now");
        let error = remote.read(Some("nowhere"), cache.path()).expect_err("no such branch");
        assert!(error.to_string().contains("nowhere"), "{error}");
    }

    #[test]
    fn only_what_is_safe_to_fetch_from_is_fetched_from() {
        let cache = tempfile::tempdir().expect("a folder");
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
            let error = remote.read(revision, cache.path()).expect_err("refused").to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
        assert!(fs::read_dir(cache.path()).expect("listed").count() <= 2);
    }
}
