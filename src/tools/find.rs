//! Which programs there are, and of which version.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::Limits;
use super::confine::{Cage, shorten};
use super::stage::Stage;

/// Longest version that is taken for one.
const VERSION_MAX: usize = 40;

/// A program that renders.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// Arguments before those of an order.
    first: Vec<OsString>,
    /// Name and version, such as `kustomize v5.8.1 (kubectl)`.
    pub(super) version: String,
}

/// What stands for a version that a program does not tell.
const UNKNOWN: &str = "of unknown version";

impl Program {
    /// Returns whether its version is known: else nothing tells when its results change.
    pub(super) fn has_version(&self) -> bool {
        !self.version.contains(UNKNOWN)
    }

    pub(super) fn arguments(&self, of_order: &[OsString]) -> Vec<OsString> {
        self.first.iter().chain(of_order).cloned().collect()
    }

    /// Finds `kustomize`, else `kubectl`.
    pub(super) fn kustomize(
        search: &[PathBuf],
        cage: &Cage,
        limits: &Limits,
    ) -> Result<Self, String> {
        if let Some(path) = on_path("kustomize", search) {
            let said = version(&path, &["version"], cage, limits)?;
            let version = format!("kustomize {}", word_of(&said));
            return Ok(Self { path, first: vec!["build".into()], version });
        }
        if let Some(path) = on_path("kubectl", search) {
            let arguments = ["version", "--client", "--output=json"];
            let said = version(&path, &arguments, cage, limits)?;
            let said: serde_json::Value = serde_json::from_str(&said)
                .map_err(|_| "`kubectl version` does not say its version".to_owned())?;
            let own = said["kustomizeVersion"].as_str().unwrap_or_default();
            let version = format!("kustomize {} (kubectl)", word_of(own));
            return Ok(Self { path, first: vec!["kustomize".into()], version });
        }
        Err("neither `kustomize` nor `kubectl` is on the PATH; install one of them".to_owned())
    }

    /// Finds `helm`.
    pub(super) fn helm(search: &[PathBuf], cage: &Cage, limits: &Limits) -> Result<Self, String> {
        let path = on_path("helm", search);
        let path = path.ok_or_else(|| "`helm` is not on the PATH; install it".to_owned())?;
        let said = version(&path, &["version", "--template={{.Version}}"], cage, limits)?;
        let version = format!("helm {}", word_of(&said));
        Ok(Self { path, first: Vec::new(), version })
    }
}

/// Returns the program `name` in the first of the directories that has it.
pub(super) fn on_path(name: &str, search: &[PathBuf]) -> Option<PathBuf> {
    let absolute = search.iter().filter(|directory| directory.is_absolute());
    absolute.map(|directory| directory.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn version(
    path: &Path,
    arguments: &[&str],
    cage: &Cage,
    limits: &Limits,
) -> Result<String, String> {
    let folder = tempfile::Builder::new().prefix("fleetwright-").tempdir();
    let folder = folder.map_err(|error| format!("no private folder can be made: {error}"))?;
    Stage::default().write(folder.path()).map_err(|error| format!("no private folder: {error}"))?;
    let words: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    let output = cage.run(path, &words, folder.path(), limits);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let output = output.map_err(|why| format!("`{name} {}` {}", arguments[0], shorten(&why)))?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// Returns the first word that looks like a version, in `v5.8.1` and in `{Version:v4.5 …}` alike.
fn word_of(said: &str) -> String {
    let is_version = |word: &&str| {
        let digits = word.strip_prefix("kustomize/").unwrap_or(word);
        let digits = digits.strip_prefix('v').unwrap_or(digits);
        digits.starts_with(|c: char| c.is_ascii_digit())
    };
    let mut words = said.split(|c: char| c.is_whitespace() || "{}:,\"".contains(c));
    let word = words.find(is_version).unwrap_or(UNKNOWN);
    word.chars().take(VERSION_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_old_and_new_programs_say() {
        for (said, expected) in [
            ("v5.8.1\n", "v5.8.1"),
            ("{Version:kustomize/v4.5.7 GitCommit:56d82a8}", "kustomize/v4.5.7"),
            ("4.2.3", "4.2.3"),
            ("what", "of unknown version"),
            ("", "of unknown version"),
        ] {
            assert_eq!(word_of(said), expected, "{said}");
        }
    }
}
