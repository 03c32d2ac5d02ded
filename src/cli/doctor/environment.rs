//! Tools, credentials and files of this computer. Names only: no secret is read.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::Finding;
use crate::adapters::subprocess::{self, RunLimits, find_on_path};
use crate::cli::init::detect::Detected;
use crate::model::desired::{Fleet, Renderer};

/// Limits of a call that prints a version.
const LIMITS: RunLimits = RunLimits {
    time: Duration::from_secs(5),
    output_bytes: 64 << 10,
    memory_bytes: None,
    file_bytes: None,
};

/// Most bytes of a kubeconfig that are read.
const KUBECONFIG_BYTES_MAX: u64 = 16 << 20;

/// Most files of the cache that are counted.
const CACHE_FILES_MAX: usize = 100_000;

/// A program that Fleetwright calls.
struct Tool {
    name: &'static str,
    arguments: &'static [&'static str],
    remedy: &'static str,
    needed: Need,
}

/// Who needs a tool.
#[derive(Debug, Clone, Copy)]
enum Need {
    /// Plans of this directory.
    Directory,
    /// Some commands, or Argo CD and Flux sources of this directory.
    Some,
    /// Plans of other directories.
    None,
}

impl Need {
    /// Returns who needs a renderer: settings may name it, and the directory may hold its sources.
    fn for_renderer(is_named: bool, sources: &BTreeSet<String>) -> Self {
        match (is_named, sources.is_empty()) {
            (true, _) => Self::Directory,
            (false, false) => Self::Some,
            (false, true) => Self::None,
        }
    }
}

/// Returns the state of each program that Fleetwright calls.
pub(super) fn tools(fleet: &Fleet, detected: &Detected) -> Vec<Finding> {
    let search: Vec<PathBuf> = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    let has_kubectl = find_on_path("kubectl", &search).is_some();
    let renders = |renderer| fleet.sources.iter().any(|source| source.render == Some(renderer));
    let tools = [
        Tool {
            name: "git",
            arguments: &["--version"],
            remedy: "install Git: it fetches repositories that are named by URL",
            needed: Need::Some,
        },
        Tool {
            name: "kubectl",
            arguments: &["version", "--client"],
            remedy: "install kubectl: it renders kustomizations where there is no kustomize",
            needed: Need::None,
        },
        Tool {
            name: "kustomize",
            arguments: &["version"],
            remedy: "install kustomize or kubectl: one of them renders kustomizations",
            needed: Need::for_renderer(renders(Renderer::Kustomize), &detected.kustomizations),
        },
        Tool {
            name: "helm",
            arguments: &["version", "--short"],
            remedy: "install Helm: it renders charts",
            needed: Need::for_renderer(renders(Renderer::Helm), &detected.charts),
        },
    ];
    tools.iter().map(|tool| tool_finding(tool, &search, has_kubectl)).collect()
}

fn tool_finding(tool: &Tool, search: &[PathBuf], has_kubectl: bool) -> Finding {
    let Tool { name, arguments, remedy, needed } = *tool;
    let Some(path) = find_on_path(name, search) else {
        if name == "kustomize" && has_kubectl {
            return Finding::ok(name, "not on the PATH; kubectl renders kustomizations");
        }
        return match needed {
            Need::Directory => {
                Finding::missing(name, "not on the PATH, and this directory needs it", remedy)
            }
            Need::Some => Finding::warn(name, "not on the PATH", remedy),
            Need::None => Finding::ok(name, "not on the PATH; this directory does not need it"),
        };
    };
    match version(&path, arguments) {
        Ok(version) => Finding::ok(name, format!("{version} ({})", path.display())),
        Err(why) => {
            let remedy = format!("run `{name} {}`: it should print a version", arguments.join(" "));
            Finding::warn(name, format!("{} {why}", path.display()), remedy)
        }
    }
}

/// Returns the version that a program prints, or why there is none.
fn version(path: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::null());
    let ran = subprocess::run(&mut command, &LIMITS).map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&ran.stdout);
    let mut words = text.split(|c: char| c.is_whitespace() || c == '"');
    let is_version = |word: &&str| {
        let rest = word.trim_start_matches('v');
        rest.starts_with(|c: char| c.is_ascii_digit()) && rest.contains('.')
    };
    match words.find(is_version) {
        Some(version) if ran.status.success() => {
            Ok(version.trim_start_matches('v').chars().take(40).collect())
        }
        _ => Err("prints no version".to_owned()),
    }
}

/// Returns the sources of AWS credentials, in the order in which the AWS SDK asks them.
pub(super) fn aws() -> Finding {
    const PART: &str = "aws";
    let sources = aws_sources(&|name| env::var_os(name).filter(|value| !value.is_empty()));
    if sources.is_empty() {
        return Finding::warn(
            PART,
            "no credentials in the environment or in ~/.aws; an instance role is not looked up",
            "for `--world live`: aws configure sso, or set AWS_PROFILE",
        );
    }
    Finding::ok(PART, sources.join("; otherwise "))
}

/// Returns the sources that variables and files name: environment, profile, web identity, and
/// container.
///
/// A file of profiles may hold no credentials, which only the SDK finds out.
fn aws_sources(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<String> {
    let is_set = |name: &str| variable(name).is_some();
    // The SDK reads the second variable of a secret key if the first is missing.
    let has_secret = is_set("AWS_SECRET_ACCESS_KEY") || is_set("SECRET_ACCESS_KEY");
    if is_set("AWS_ACCESS_KEY_ID") && has_secret {
        return vec!["credentials in the environment (AWS_ACCESS_KEY_ID)".to_owned()];
    }
    let mut sources = Vec::new();
    let files =
        [("AWS_CONFIG_FILE", ".aws/config"), ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials")];
    let file = files.iter().find_map(|(name, default)| {
        let at_home = || variable("HOME").map(|home| PathBuf::from(home).join(default));
        let path = variable(name).map(PathBuf::from).or_else(at_home)?;
        path.is_file().then_some(path)
    });
    match (variable("AWS_PROFILE"), file) {
        (Some(profile), _) => {
            sources.push(format!("profile {} (AWS_PROFILE)", profile.to_string_lossy()));
        }
        (None, Some(path)) => sources.push(format!("profile default ({})", path.display())),
        (None, None) => {}
    }
    if is_set("AWS_WEB_IDENTITY_TOKEN_FILE") && is_set("AWS_ROLE_ARN") {
        sources.push("web identity token (AWS_WEB_IDENTITY_TOKEN_FILE)".to_owned());
    }
    let container =
        ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];
    if let Some(name) = container.into_iter().find(|name| is_set(name)) {
        sources.push(format!("container credentials ({name})"));
    }
    sources
}

/// Returns the context of the kubeconfig.
pub(super) fn kubeconfig() -> Finding {
    const PART: &str = "kubeconfig";
    let remedy = "for `--world live`: aws eks update-kubeconfig --name CLUSTER";
    let listed = env::var_os("KUBECONFIG").filter(|value| !value.is_empty());
    let files: Vec<PathBuf> = match &listed {
        Some(listed) => {
            env::split_paths(listed).filter(|path| !path.as_os_str().is_empty()).collect()
        }
        None => in_home(".kube/config").into_iter().collect(),
    };
    let context = files.iter().find_map(|path| {
        let bytes = crate::cli::files::read(path, KUBECONFIG_BYTES_MAX).ok()?;
        let context = current_context(&String::from_utf8_lossy(&bytes))?;
        Some(format!("{context} ({})", path.display()))
    });
    match context {
        Some(detail) => Finding::ok(PART, detail),
        None if env::var_os("KUBERNETES_SERVICE_HOST").is_some() => {
            Finding::ok(PART, "service account of this pod")
        }
        None => Finding::warn(PART, "no current context", remedy),
    }
}

/// Returns a description of `current-context`. The rest of a kubeconfig may hold secrets: it is not
/// parsed, and only a plain name is shown.
fn current_context(text: &str) -> Option<String> {
    let quotes = ['"', '\''];
    let mut values = text.lines().filter_map(|line| {
        let line = line.trim_start_matches(['{', ' ']);
        line.trim_start_matches(quotes).strip_prefix("current-context")
    });
    let value = values.next()?.trim_start_matches(quotes).trim().strip_prefix(':')?.trim_start();
    let value = value.strip_prefix(quotes).unwrap_or(value);
    let is_end = |c: char| c.is_whitespace() || matches!(c, ',' | '}' | '"' | '\'' | '#');
    let name = value.split(is_end).next().filter(|name| !name.is_empty())?;
    if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":/@._-".contains(&byte)) {
        Some(format!("context {name}"))
    } else {
        Some("a context is set; its name is not shown".to_owned())
    }
}

/// Returns folder and size of the cache.
pub(super) fn cache() -> Finding {
    const PART: &str = "cache";
    let Some(directory) = subprocess::cache_directory() else {
        let remedy = "set HOME or XDG_CACHE_HOME: without a cache, each run renders again";
        return Finding::warn(PART, "this user has no home directory", remedy);
    };
    if !directory.exists() {
        return Finding::ok(PART, format!("{}: empty", directory.display()));
    }
    let tenths = size(&directory) / ((1 << 20) / 10);
    let size = match (tenths / 10, tenths % 10) {
        (mebibytes, _) if mebibytes >= 1_024 => {
            format!("{}.{} GiB", mebibytes / 1_024, mebibytes % 1_024 * 10 / 1_024)
        }
        (mebibytes, tenth) => format!("{mebibytes}.{tenth} MiB"),
    };
    Finding::ok(PART, format!("{}: {size}", directory.display()))
}

/// Returns the size of the files below a directory. Links are not followed.
fn size(directory: &Path) -> u64 {
    let (mut open, mut bytes, mut files) = (vec![directory.to_owned()], 0_u64, 0);
    while let Some(next) = open.pop() {
        let Ok(entries) = std::fs::read_dir(next) else { continue };
        for entry in entries.flatten() {
            files += 1;
            match entry.metadata() {
                Ok(found) if found.is_dir() && files < CACHE_FILES_MAX => open.push(entry.path()),
                Ok(found) => bytes = bytes.saturating_add(found.len()),
                Err(_) => {}
            }
        }
    }
    bytes
}

fn in_home(name: &str) -> Option<PathBuf> {
    env::var_os("HOME").map(|home| PathBuf::from(home).join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_context_is_read_from_yaml_and_json() {
        for text in [
            "apiVersion: v1\ncurrent-context: prod\n",
            "current-context: \"prod\"\n",
            "{\n  \"current-context\": \"prod\",\n",
            "current-context: prod # of the team\n",
        ] {
            assert_eq!(current_context(text).as_deref(), Some("context prod"), "{text}");
        }
        for text in ["", "current-context: \"\"\n", "users:\n- name: a\n"] {
            assert_eq!(current_context(text), None, "{text}");
        }
    }

    #[test]
    fn current_context_shows_nothing_of_the_rest_of_a_line() {
        for text in [
            r#"{"current-context":"prod","users":[{"user":{"token":"T"}}]}"#,
            "{current-context: prod, users: [{user: {token: T}}]}",
            "{'current-context':'prod','users':[{'user':{'token':'T'}}]}",
        ] {
            assert_eq!(current_context(text).as_deref(), Some("context prod"), "{text}");
        }
        for text in [
            r#"{"current-context":["prod",{"token":"T"}]}"#,
            "current-context: prod=T\n",
            "current-context: a\u{202e}b\n",
        ] {
            let shown = current_context(text).expect("a context");
            assert_eq!(shown, "a context is set; its name is not shown", "{text}");
        }
        assert_eq!(current_context(r#"{"current-context":"","token":"T"}"#), None);
    }

    #[test]
    fn aws_sources_have_the_order_of_the_sdk() {
        let sources = |set: &[&str]| {
            aws_sources(&|name| set.contains(&name).then(|| OsString::from("value")))
        };
        let profile = "profile value (AWS_PROFILE)";
        let identity = "web identity token (AWS_WEB_IDENTITY_TOKEN_FILE)";
        let full = "container credentials (AWS_CONTAINER_CREDENTIALS_FULL_URI)";
        assert_eq!(sources(&["AWS_ACCESS_KEY_ID", "AWS_PROFILE"]), [profile]);
        assert_eq!(
            sources(&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"]),
            ["credentials in the environment (AWS_ACCESS_KEY_ID)"]
        );
        let all = [
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_PROFILE",
            "AWS_ROLE_ARN",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
        ];
        assert_eq!(sources(&all), [profile, identity, full]);
        assert!(sources(&["AWS_WEB_IDENTITY_TOKEN_FILE"]).is_empty(), "a role is missing");
    }
}
