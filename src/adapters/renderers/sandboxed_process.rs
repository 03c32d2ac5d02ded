//! Runs an untrusted program.
//!
//! The environment is empty apart from the variables set here. Home, temporary files and
//! configuration are in the directory of the run. Landlock and a network namespace remove access to
//! other files and to the network if the kernel allows them, and proxies point nowhere. Without
//! either, every result records the network access. Address space, output and time are limited, and
//! no process remains.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::RendererLimits;
use super::access_rules::AccessRules;
use super::staging::WRAPPER_DIRECTORY;
use crate::adapters::subprocess::{RunLimits, find_on_path, run};

/// Maximum characters of program output in an error, from its start and from its end.
const ERROR_CHARS: (usize, usize) = (80, 220);

/// Limits of the probe for network isolation.
const PROBE_LIMITS: RunLimits = RunLimits {
    time: Duration::from_secs(5),
    output_bytes: 1_000,
    memory_bytes: None,
    file_bytes: None,
};

/// Proxy address at the discard port, where no server listens.
const DISCARD_PROXY: &str = "http://127.0.0.1:9";

/// Isolation of programs from files and from the network.
#[derive(Debug)]
pub(super) struct ProcessSandbox {
    /// Wrapper program with arguments that removes network access. Empty without isolation.
    wrapper: Vec<OsString>,
    rules: AccessRules,
}

impl ProcessSandbox {
    /// Detects the strictest isolation that the host supports.
    pub(super) fn detect(search: &[PathBuf]) -> Self {
        let rules = AccessRules::detect();
        let mut directories = search.to_vec();
        directories.extend(["/usr/bin", "/bin"].map(PathBuf::from));
        let (unshare, nothing) =
            (find_on_path("unshare", &directories), find_on_path("true", &directories));
        let (Some(unshare), Some(nothing)) = (unshare, nothing) else {
            return Self { wrapper: Vec::new(), rules };
        };
        for flags in [&["--net"][..], &["--map-root-user", "--net"]] {
            let mut probe = Command::new(&unshare);
            probe.args(flags).arg("--").arg(&nothing).stdin(Stdio::null());
            let probed = rules.confine(&[&unshare, &nothing], None, || {
                run(&mut probe, &PROBE_LIMITS).is_ok_and(|output| output.status.success())
            });
            if probed == Ok(true) {
                let mut wrapper = vec![unshare.into_os_string()];
                wrapper.extend(flags.iter().map(OsString::from));
                wrapper.push("--".into());
                return Self { wrapper, rules };
            }
        }
        Self { wrapper: Vec::new(), rules }
    }

    /// Returns a sandbox without any isolation.
    #[cfg(test)]
    pub(super) fn without_isolation() -> Self {
        Self { wrapper: Vec::new(), rules: AccessRules::default() }
    }

    /// Returns a sandbox without a network namespace.
    #[cfg(test)]
    pub(super) fn without_namespace() -> Self {
        Self { wrapper: Vec::new(), rules: AccessRules::detect() }
    }

    #[cfg(test)]
    pub(super) fn rules(&self) -> AccessRules {
        self.rules
    }

    pub(super) fn is_network_isolated(&self) -> bool {
        !self.wrapper.is_empty() || self.rules.connections
    }

    /// Runs the first of `programs`, which may run the others, in a subdirectory of `folder`, its
    /// private directory.
    pub(super) fn run(
        &self,
        programs: &[&Path],
        arguments: &[OsString],
        folder: &Path,
        limits: &RendererLimits,
    ) -> Result<Vec<u8>, String> {
        let mut words: Vec<OsString> = self.wrapper.clone();
        words.extend(programs.first().map(OsString::from));
        words.extend_from_slice(arguments);
        let (first, rest) = words.split_first().expect("the program itself is a word");
        let mut command = Command::new(first);
        command.args(rest).current_dir(folder.join(WRAPPER_DIRECTORY)).stdin(Stdio::null());
        command.env_clear().envs(environment(folder));
        let bounds = RunLimits {
            time: limits.run,
            output_bytes: limits.output_bytes,
            memory_bytes: Some(limits.memory_bytes),
            file_bytes: None,
        };
        // Rules name the file, not a link to it.
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let programs: Vec<PathBuf> =
            programs.iter().copied().chain(self.wrapper.first().map(Path::new)).map(real).collect();
        let readable: Vec<&Path> = programs.iter().map(PathBuf::as_path).collect();
        let ran = || run(&mut command, &bounds).map_err(|failure| failure.to_string());
        let output = self.rules.confine(&readable, Some(folder), ran)??;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(format!("failed ({}): {}", output.status, stderr_line(&output.stderr)))
    }
}

fn environment(folder: &Path) -> Vec<(&'static str, OsString)> {
    let own = |name: &str| folder.join(name).into_os_string();
    let mut all: Vec<(&str, OsString)> = vec![
        ("HOME", own("home")),
        ("TMPDIR", own("tmp")),
        ("XDG_CONFIG_HOME", own("home")),
        ("XDG_CACHE_HOME", own("home")),
        ("XDG_DATA_HOME", own("home")),
        // No program can be found, including Git and plugins.
        ("PATH", own("none")),
        ("KUBECONFIG", own("none")),
        ("HELM_PLUGINS", own("none")),
        ("KUSTOMIZE_PLUGIN_HOME", own("none")),
        ("LANG", "C".into()),
        ("GOMAXPROCS", "1".into()),
        ("AWS_EC2_METADATA_DISABLED", "true".into()),
    ];
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"]
    {
        all.push((name, DISCARD_PROXY.into()));
    }
    all
}

/// Returns stderr as one line.
fn stderr_line(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines = text.lines().map(|line| without_log_prefix(line.trim()));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let line = words.join(" ");
    if line.is_empty() { "no error output".to_owned() } else { line }
}

/// Returns a line without what loggers write before the message: the time as Go's `log` writes it
/// (`2026/11/26 16:03:00 `), or level, time, process and source as klog does
/// (`W1126 16:03:00.123456   123 main.go:42] `), and `Error: `.
fn without_log_prefix(line: &str) -> &str {
    let is_time = |text: &str, pattern: &str| {
        text.len() == pattern.len()
            && text.bytes().zip(pattern.bytes()).all(|(byte, expected)| match expected {
                b'0' => byte.is_ascii_digit(),
                other => byte == other,
            })
    };
    let go_time = line.get(..20).filter(|time| is_time(time, "0000/00/00 00:00:00 "));
    let line = go_time.and_then(|time| line.strip_prefix(time)).unwrap_or(line);
    let is_klog = line.starts_with(['I', 'W', 'E', 'F'])
        && line.get(1..14).is_some_and(|time| is_time(time, "0000 00:00:00"));
    let klog = line.split_once("] ").filter(|_| is_klog).map(|(_, message)| message);
    let line = klog.unwrap_or(line);
    line.strip_prefix("Error: ").or(line.strip_prefix("error: ")).unwrap_or(line)
}

/// Shortens a long line in the middle.
pub(super) fn shorten(line: &str) -> String {
    let (head, tail) = ERROR_CHARS;
    let count = line.chars().count();
    if count <= head + tail {
        return line.to_owned();
    }
    let first: String = line.chars().take(head).collect();
    let last: String = line.chars().skip(count - tail).collect();
    format!("{first} … {last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_no_prefix_of_a_logger() {
        for (stderr, expected) in [
            ("Error: no such chart\n", "no such chart"),
            (
                "2026/11/26 16:03:00 well-defined vars that were never replaced\n",
                "well-defined vars that were never replaced",
            ),
            (
                "W1126 16:03:00.123456     123 main.go:42] deprecated\nerror: bad\n",
                "deprecated bad",
            ),
            ("Everything] failed\n", "Everything] failed"),
            ("", "no error output"),
        ] {
            assert_eq!(stderr_line(stderr.as_bytes()), expected);
        }
    }
}
