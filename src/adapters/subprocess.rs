//! Runs an untrusted program with limits.
//!
//! This module handles time, output and process groups. It has no knowledge of the program, its
//! arguments or its environment. Invariant: after a run, neither the program nor any process of its
//! group remains, and the retained output is within the limits.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use thiserror::Error;

/// Maximum retained bytes of stderr.
const STDERR_BYTES_MAX: u64 = 64 << 10;

/// Limits of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunLimits {
    /// Maximum duration.
    pub(crate) time: Duration,
    /// Maximum bytes on stdout.
    pub(crate) output_bytes: u64,
    /// Address space in bytes, on systems that can limit it. `None` is unlimited.
    pub(crate) memory_bytes: Option<u64>,
    /// Size of one written file in bytes, on systems that can limit it. `None` is unlimited.
    pub(crate) file_bytes: Option<u64>,
}

/// The output of a program that exited.
#[derive(Debug)]
pub(crate) struct RunOutput {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    /// The beginning of stderr.
    pub(crate) stderr: Vec<u8>,
}

/// The reason that a run was aborted.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    /// The program could not be started.
    #[error("cannot be started: {0}")]
    Start(std::io::Error),
    /// The time limit was exceeded.
    #[error("did not end within {} s", .0.as_secs_f32().ceil())]
    Timeout(Duration),
    /// The output limit was exceeded.
    #[error("writes more than {0} bytes")]
    OutputTooLarge(u64),
}

/// Returns the first program `name` in the directories.
pub(crate) fn find_on_path(name: &str, search: &[PathBuf]) -> Option<PathBuf> {
    let absolute = search.iter().filter(|directory| directory.is_absolute());
    absolute.map(|directory| directory.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Runs a command in its own process group, and kills the group at the end.
///
/// # Errors
/// Returns an error if the program cannot be started or exceeds a limit. A failing exit status is
/// no error.
pub(crate) fn run(command: &mut Command, limits: &RunLimits) -> Result<RunOutput, RunError> {
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let deadline = Instant::now() + limits.time;
    let mut child = command.spawn().map_err(RunError::Start)?;
    if let Err(error) = limit_resources(&child, limits) {
        kill(&mut child);
        let why = format!("its memory and files cannot be limited: {error}");
        return Err(RunError::Start(std::io::Error::new(error.kind(), why)));
    }
    let streams = read_streams(&mut child, limits.output_bytes);
    let ended = wait_for_output(&streams, &mut child, deadline, limits);
    kill(&mut child);
    ended
}

/// Returns the XDG cache directory of this program, or `None` for a user without a home directory.
pub(crate) fn cache_directory() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.filter(|path| path.is_absolute()).or_else(home);
    cache.filter(|path| path.is_absolute()).map(|cache| cache.join("fleetwright"))
}

enum StreamResult {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    TooLarge,
}

/// Limits the address space and the files of a started program, on systems that support it.
fn limit_resources(child: &Child, limits: &RunLimits) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    if let Some(pid) = pid(child) {
        use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
        let all = [(Resource::As, limits.memory_bytes), (Resource::Fsize, limits.file_bytes)];
        for (resource, bytes_max) in all {
            let Some(bytes_max) = bytes_max else { continue };
            // A limit of this process holds for its programs too.
            let own = getrlimit(resource).current;
            let bytes_max = own.map_or(bytes_max, |own| own.min(bytes_max));
            let limit = Rlimit { current: Some(bytes_max), maximum: Some(bytes_max) };
            if let Err(error) = prlimit(Some(pid), resource, limit) {
                // A program that has exited needs no limit.
                if error != rustix::io::Errno::SRCH {
                    return Err(error.into());
                }
            }
        }
    }
    Ok(())
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

/// Kills the process group of the program.
fn kill(child: &mut Child) {
    if let Some(pid) = pid(child) {
        // The group may be gone already.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads both streams in separate threads, so that neither blocks the program.
fn read_streams(child: &mut Child, bytes_max: u64) -> Receiver<StreamResult> {
    let (send, receive) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        let send = send.clone();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // A broken stream belongs to a failed program, which its status shows.
            let _ = out.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes);
            let too_large = u64::try_from(bytes.len()).unwrap_or(u64::MAX) > bytes_max;
            let _ = send.send(if too_large {
                StreamResult::TooLarge
            } else {
                StreamResult::Stdout(bytes)
            });
        });
    }
    if let Some(mut stderr) = child.stderr.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stderr.by_ref().take(STDERR_BYTES_MAX).read_to_end(&mut bytes);
            // The rest is discarded, so that a verbose program can finish.
            let _ = std::io::copy(&mut stderr, &mut std::io::sink());
            let _ = send.send(StreamResult::Stderr(bytes));
        });
    }
    receive
}

fn wait_for_output(
    streams: &Receiver<StreamResult>,
    child: &mut Child,
    deadline: Instant,
    limits: &RunLimits,
) -> Result<RunOutput, RunError> {
    let (mut stdout, mut stderr) = (None, None);
    while stdout.is_none() || stderr.is_none() {
        match streams.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(StreamResult::Stdout(bytes)) => stdout = Some(bytes),
            Ok(StreamResult::Stderr(bytes)) => stderr = Some(bytes),
            Ok(StreamResult::TooLarge) => {
                return Err(RunError::OutputTooLarge(limits.output_bytes));
            }
            Err(RecvTimeoutError::Timeout) => return Err(RunError::Timeout(limits.time)),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    // A program may close its streams and continue.
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            let (stdout, stderr) = (stdout.unwrap_or_default(), stderr.unwrap_or_default());
            return Ok(RunOutput { status, stdout, stderr });
        }
        if Instant::now() >= deadline {
            return Err(RunError::Timeout(limits.time));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, millis: u64) -> Result<RunOutput, RunError> {
        let time = Duration::from_millis(millis);
        let limits = RunLimits { time, output_bytes: 1_000, memory_bytes: None, file_bytes: None };
        run(Command::new("/bin/sh").args(["-c", script]).stdin(Stdio::null()), &limits)
    }

    #[test]
    fn run_ends_on_exit_or_at_limit() {
        let ended = shell("echo out; echo said >&2; exit 3", 20_000).expect("it ends");
        assert_eq!(
            (ended.status.code(), &*ended.stdout, &*ended.stderr),
            (Some(3), &b"out\n"[..], &b"said\n"[..])
        );
        assert!(matches!(shell("sleep 60", 200), Err(RunError::Timeout(_))));
        assert!(matches!(shell("exec >&- 2>&-; sleep 60", 200), Err(RunError::Timeout(_))));
        assert!(matches!(shell("yes", 20_000), Err(RunError::OutputTooLarge(1_000))));
        let loud = shell("head -c 1000000 /dev/zero >&2", 20_000).expect("it can end");
        assert_eq!(u64::try_from(loud.stderr.len()), Ok(STDERR_BYTES_MAX));
    }

    #[test]
    fn child_processes_are_killed() {
        let folder = tempfile::tempdir().expect("a folder");
        let mark = folder.path().join("alive");
        let script = format!("(sleep 1; touch '{}') >&- 2>&- & exit 0", mark.display());
        shell(&script, 20_000).expect("it ends");
        std::thread::sleep(Duration::from_millis(1_500));
        assert!(!mark.exists());
    }
}
