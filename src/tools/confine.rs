//! One run of a program that is not trusted with anything.
//!
//! The environment is empty but for what is set here; home, temporary files and every configuration
//! lie in the run's own folder. The network is taken away where the kernel lets us (a network
//! namespace of its own), and proxies lead nowhere besides. Address space is limited, output and
//! time are watched, and the whole process group is killed at the end.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal};

use super::Limits;
use super::find::on_path;
use super::stage::TOP;

/// Bytes of what a program says on stderr that are kept.
const SAID_BYTES_MAX: u64 = 64 << 10;

/// Characters of it that a reason repeats, from its beginning and from its end.
const SAID_SHOWN: (usize, usize) = (80, 220);

/// Where proxies point: the port at which nobody is ever home.
const NOWHERE: &str = "http://127.0.0.1:9";

/// How a program is kept from the network.
#[derive(Debug)]
pub(super) struct Cage {
    /// A program and its arguments that take the network away from the program they start.
    around: Vec<OsString>,
}

/// How the reading of one stream ended.
enum Stream {
    Out(Vec<u8>),
    Said(Vec<u8>),
    TooMuch,
}

impl Cage {
    /// Finds the strictest cage that this machine allows.
    pub(super) fn find(search: &[PathBuf]) -> Self {
        let mut places = search.to_vec();
        places.extend(["/usr/bin", "/bin"].map(PathBuf::from));
        let Some(unshare) = on_path("unshare", &places) else { return Self::open() };
        for flags in [&["--net"][..], &["--map-root-user", "--net"]] {
            let mut probe = Command::new(&unshare);
            probe.args(flags).args(["--", "true"]);
            probe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            if probe.status().is_ok_and(|status| status.success()) {
                let mut around = vec![unshare.into_os_string()];
                around.extend(flags.iter().map(OsString::from));
                around.push("--".into());
                return Self { around };
            }
        }
        Self::open()
    }

    fn open() -> Self {
        tracing::debug!("the network cannot be taken away from tools; proxies lead nowhere");
        Self { around: Vec::new() }
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
        command.args(rest).current_dir(folder.join(TOP)).process_group(0);
        command.env_clear().envs(environment(folder));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot be started: {error}"))?;
        limit_memory(&child, limits);
        let streams = read_streams(&mut child, limits);
        let end = Instant::now() + limits.run;
        let ended = collect(&streams, &mut child, end);
        kill(&mut child);
        match ended {
            Ok((status, output, _)) if status.success() => Ok(output),
            Ok((status, _, said)) => Err(format!("failed ({status}): {}", shown(&said))),
            Err(End::Time) => {
                Err(format!("did not end within {} s", limits.run.as_secs_f32().ceil()))
            }
            Err(End::Output) => Err(format!("writes more than {} bytes", limits.output_bytes)),
        }
    }
}

/// Why a run was ended.
enum End {
    Time,
    Output,
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

/// Limits the address space of a program that has just been started, where the system can.
fn limit_memory(child: &Child, limits: &Limits) {
    #[cfg(target_os = "linux")]
    if let Some(pid) = pid(child) {
        let most = Some(limits.memory_bytes);
        let limit = Rlimit { current: most, maximum: most };
        // A program that has ended already needs no limit.
        let _ = rustix::process::prlimit(Some(pid), Resource::As, limit);
    }
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

/// Ends the program and all that it started.
fn kill(child: &mut Child) {
    if let Some(pid) = pid(child) {
        // The group may be gone already, which is what is wanted.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads both streams, each in a thread of its own, so that neither can block the program.
fn read_streams(child: &mut Child, limits: &Limits) -> Receiver<Stream> {
    let (send, receive) = mpsc::channel();
    let most = limits.output_bytes;
    if let Some(out) = child.stdout.take() {
        let send = send.clone();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // A stream that breaks off leaves a program that failed, which its status says.
            let _ = out.take(most.saturating_add(1)).read_to_end(&mut bytes);
            let too_much = u64::try_from(bytes.len()).unwrap_or(u64::MAX) > most;
            let _ = send.send(if too_much { Stream::TooMuch } else { Stream::Out(bytes) });
        });
    }
    if let Some(mut said) = child.stderr.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = said.by_ref().take(SAID_BYTES_MAX).read_to_end(&mut bytes);
            // The rest is read and forgotten, so that a program that says a lot can end.
            let _ = std::io::copy(&mut said, &mut std::io::sink());
            let _ = send.send(Stream::Said(bytes));
        });
    }
    receive
}

fn collect(
    streams: &Receiver<Stream>,
    child: &mut Child,
    end: Instant,
) -> Result<(ExitStatus, Vec<u8>, Vec<u8>), End> {
    let (mut output, mut said) = (None, None);
    while output.is_none() || said.is_none() {
        match streams.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Stream::Out(bytes)) => output = Some(bytes),
            Ok(Stream::Said(bytes)) => said = Some(bytes),
            Ok(Stream::TooMuch) => return Err(End::Output),
            Err(RecvTimeoutError::Timeout) => return Err(End::Time),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    // A program may close its streams and go on.
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Ok((status, output.unwrap_or_default(), said.unwrap_or_default()));
        }
        if Instant::now() >= end {
            return Err(End::Time);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
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
