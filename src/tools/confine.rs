//! One run of a program that is not trusted with anything.
//!
//! The environment is empty but for what is set here; home, temporary files and every configuration
//! lie in the run's own folder. The network is taken away where the kernel lets us (a network
//! namespace of its own), and proxies lead nowhere besides; where it does not, that is said with
//! every result. Address space, output and time are bounded, and nothing is left running.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::Limits;
use super::find::on_path;
use super::stage::TOP;
use crate::program::{Bounds, run};

/// Characters of what a program says that a reason repeats, from its beginning and from its end.
const SAID_SHOWN: (usize, usize) = (80, 220);

/// How long it may take to find out whether the network can be taken away.
const PROBE: Bounds =
    Bounds { time: Duration::from_secs(5), output_bytes: 1_000, memory_bytes: None };

/// Where proxies point: the port at which nobody is ever home.
const NOWHERE: &str = "http://127.0.0.1:9";

/// How a program is kept from the network.
#[derive(Debug)]
pub(super) struct Cage {
    /// A program and its arguments that take the network away from the program they start; empty
    /// where nothing can.
    around: Vec<OsString>,
}

impl Cage {
    /// Finds the strictest cage that this machine allows.
    pub(super) fn find(search: &[PathBuf]) -> Self {
        let mut places = search.to_vec();
        places.extend(["/usr/bin", "/bin"].map(PathBuf::from));
        let (unshare, nothing) = (on_path("unshare", &places), on_path("true", &places));
        let (Some(unshare), Some(nothing)) = (unshare, nothing) else { return Self::open() };
        for flags in [&["--net"][..], &["--map-root-user", "--net"]] {
            let mut probe = Command::new(&unshare);
            probe.args(flags).arg("--").arg(&nothing).stdin(Stdio::null());
            if run(&mut probe, &PROBE).is_ok_and(|ended| ended.status.success()) {
                let mut around = vec![unshare.into_os_string()];
                around.extend(flags.iter().map(OsString::from));
                around.push("--".into());
                return Self { around };
            }
        }
        Self::open()
    }

    /// Returns the cage of a machine on which the network cannot be taken away.
    pub(super) fn open() -> Self {
        Self { around: Vec::new() }
    }

    /// Returns whether programs have no network in it.
    pub(super) fn is_closed(&self) -> bool {
        !self.around.is_empty()
    }

    /// Runs `program` in the directory `top` of `folder`, which holds all that is its own.
    pub(super) fn run(
        &self,
        program: &Path,
        arguments: &[OsString],
        folder: &Path,
        limits: &Limits,
    ) -> Result<Vec<u8>, String> {
        let mut words: Vec<OsString> = self.around.clone();
        words.push(program.into());
        words.extend_from_slice(arguments);
        let (first, rest) = words.split_first().expect("the program itself is a word");
        let mut command = Command::new(first);
        command.args(rest).current_dir(folder.join(TOP)).stdin(Stdio::null());
        command.env_clear().envs(environment(folder));
        let bounds = Bounds {
            time: limits.run,
            output_bytes: limits.output_bytes,
            memory_bytes: Some(limits.memory_bytes),
        };
        let ended = run(&mut command, &bounds).map_err(|failure| failure.to_string())?;
        if ended.status.success() {
            return Ok(ended.output);
        }
        Err(format!("failed ({}): {}", ended.status, shown(&ended.said)))
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
        // No program can be found, Git and plugins included.
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
        all.push((name, NOWHERE.into()));
    }
    all
}

/// Returns what a program said as one line.
fn shown(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    let line = line.strip_prefix("Error: ").or(line.strip_prefix("error: ")).unwrap_or(&line);
    if line.is_empty() { "it said nothing".to_owned() } else { line.to_owned() }
}

/// Returns a line with its middle left out where it is long.
pub(super) fn shorten(line: &str) -> String {
    let (head, tail) = SAID_SHOWN;
    let count = line.chars().count();
    if count <= head + tail {
        return line.to_owned();
    }
    let first: String = line.chars().take(head).collect();
    let last: String = line.chars().skip(count - tail).collect();
    format!("{first} … {last}")
}
