//! Finds the renderer programs and their versions.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::RendererLimits;
use super::sandboxed_process::{ProcessSandbox, shorten};
use super::staging::StagedFiles;
use crate::adapters::subprocess::find_on_path;

/// Maximum length of a version.
const VERSION_MAX: usize = 40;

#[derive(Debug)]
pub(super) struct RendererProgram {
    pub(super) path: PathBuf,
    /// Arguments before those of the request.
    leading_arguments: Vec<OsString>,
    /// Name and version, such as `kustomize v5.8.1 (kubectl)`.
    pub(super) version: String,
}

/// Placeholder for an unknown version.
const UNKNOWN_VERSION: &str = "of unknown version";

impl RendererProgram {
    /// Returns whether the version is known. Otherwise cached results could be stale.
    pub(super) fn has_version(&self) -> bool {
        !self.version.contains(UNKNOWN_VERSION)
    }

    pub(super) fn arguments(&self, of_order: &[OsString]) -> Vec<OsString> {
        self.leading_arguments.iter().chain(of_order).cloned().collect()
    }

    /// Finds `kustomize`, else `kubectl`.
    pub(super) fn kustomize(
        search: &[PathBuf],
        sandbox: &ProcessSandbox,
        limits: &RendererLimits,
    ) -> Result<Self, String> {
        if let Some(path) = find_on_path("kustomize", search) {
            let output_text = read_version(&path, &["version"], sandbox, limits)?;
            let version = format!("kustomize {}", parse_version(&output_text));
            return Ok(Self { path, leading_arguments: vec!["build".into()], version });
        }
        if let Some(path) = find_on_path("kubectl", search) {
            let arguments = ["version", "--client", "--output=json"];
            let output_text = read_version(&path, &arguments, sandbox, limits)?;
            let output_text: serde_json::Value = serde_json::from_str(&output_text)
                .map_err(|_| "`kubectl version` printed no version".to_owned())?;
            let own = output_text["kustomizeVersion"].as_str().unwrap_or_default();
            let version = format!("kustomize {} (kubectl)", parse_version(own));
            return Ok(Self { path, leading_arguments: vec!["kustomize".into()], version });
        }
        Err("neither `kustomize` nor `kubectl` is on the PATH; install one of them".to_owned())
    }

    /// Finds `helm`.
    pub(super) fn helm(
        search: &[PathBuf],
        sandbox: &ProcessSandbox,
        limits: &RendererLimits,
    ) -> Result<Self, String> {
        let path = find_on_path("helm", search);
        let path = path.ok_or_else(|| "`helm` is not on the PATH; install it".to_owned())?;
        let output_text =
            read_version(&path, &["version", "--template={{.Version}}"], sandbox, limits)?;
        let version = format!("helm {}", parse_version(&output_text));
        Ok(Self { path, leading_arguments: Vec::new(), version })
    }
}

fn read_version(
    path: &Path,
    arguments: &[&str],
    sandbox: &ProcessSandbox,
    limits: &RendererLimits,
) -> Result<String, String> {
    let folder = tempfile::Builder::new().prefix("fleetwright-").tempdir();
    let folder = folder.map_err(|error| format!("cannot create a temporary directory: {error}"))?;
    StagedFiles::default()
        .write(folder.path())
        .map_err(|error| format!("cannot prepare a temporary directory: {error}"))?;
    let words: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    let output = sandbox.run(&[path], &words, folder.path(), limits);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let output = output.map_err(|why| format!("`{name} {}` {}", arguments[0], shorten(&why)))?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// Returns the first word that looks like a version, as in `v5.8.1` or `{Version:v4.5 …}`.
fn parse_version(output_text: &str) -> String {
    let is_version = |word: &&str| {
        let digits = word.strip_prefix("kustomize/").unwrap_or(word);
        let digits = digits.strip_prefix('v').unwrap_or(digits);
        digits.starts_with(|c: char| c.is_ascii_digit())
    };
    let mut words = output_text.split(|c: char| c.is_whitespace() || "{}:,\"".contains(c));
    let word = words.find(is_version).unwrap_or(UNKNOWN_VERSION);
    word.chars().take(VERSION_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_old_and_new_tools_are_parsed() {
        for (output_text, expected) in [
            ("v5.8.1\n", "v5.8.1"),
            ("{Version:kustomize/v4.5.7 GitCommit:56d82a8}", "kustomize/v4.5.7"),
            ("4.2.3", "4.2.3"),
            ("what", "of unknown version"),
            ("", "of unknown version"),
        ] {
            assert_eq!(parse_version(output_text), expected, "{output_text}");
        }
    }
}
