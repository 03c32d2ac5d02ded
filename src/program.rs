//! One run of a program that may do anything: hang, talk without end, leave others running.
//!
//! Knows time, output and process groups; it knows nothing of what is run, of its arguments and of
//! its environment. Invariant: when a run has ended in any way, neither the program nor anything
//! that it started in its process group is left, and no more than the bounds was kept of what it
//! wrote.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use thiserror::Error;

/// Bytes of what a program says on stderr that are kept.
const SAID_BYTES_MAX: u64 = 64 << 10;

/// What a run may use up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// How long it may take.
    pub(crate) time: Duration,
    /// Bytes that it may write to stdout.
    pub(crate) output_bytes: u64,
    /// Bytes of address space, where the system can limit it; `None` is no limit.
    pub(crate) memory_bytes: Option<u64>,
}

/// What a program that ended by itself leaves.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// What it wrote to stdout.
    pub(crate) output: Vec<u8>,
    /// The first of what it wrote to stderr.
    pub(crate) said: Vec<u8>,
}

/// Why a run did not come to its own end.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// It could not begin.
    #[error("cannot be started: {0}")]
    Start(std::io::Error),
    /// It took too long.
    #[error("did not end within {} s", .0.as_secs_f32().ceil())]
    Time(Duration),
    /// It wrote too much.
    #[error("writes more than {0} bytes")]
    Output(u64),
}

/// Runs a command in a process group of its own, which is killed at the end.
///
/// # Errors
/// Where it cannot be started or goes beyond its bounds. That it fails is no error here.
pub(crate) fn run(command: &mut Command, bounds: &Bounds) -> Result<Ended, Failure> {
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let end = Instant::now() + bounds.time;
    let mut child = command.spawn().map_err(Failure::Start)?;
    limit_memory(&child, bounds);
    let streams = read_streams(&mut child, bounds.output_bytes);
    let ended = collect(&streams, &mut child, (end, bounds));
    kill(&mut child);
    ended
}

/// Returns where this program keeps what can be made again: below the user's cache folder, as XDG
/// has it; `None` for a user without a home.
pub(crate) fn cache() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.filter(|path| path.is_absolute()).or_else(home);
    cache.filter(|path| path.is_absolute()).map(|cache| cache.join("fleetwright"))
}

/// How the reading of one stream ended.
enum Stream {
    Out(Vec<u8>),
    Said(Vec<u8>),
    TooMuch,
}

/// Limits the address space of a program that has just been started, where the system can.
fn limit_memory(child: &Child, bounds: &Bounds) {
    #[cfg(target_os = "linux")]
    if let (Some(pid), Some(most)) = (pid(child), bounds.memory_bytes) {
        use rustix::process::{Resource, Rlimit, prlimit};
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        // A program that has ended already needs no limit.
        let _ = prlimit(Some(pid), Resource::As, limit);
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
fn read_streams(child: &mut Child, most: u64) -> Receiver<Stream> {
    let (send, receive) = mpsc::channel();
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
    (end, bounds): (Instant, &Bounds),
) -> Result<Ended, Failure> {
    let (mut output, mut said) = (None, None);
    while output.is_none() || said.is_none() {
        match streams.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Stream::Out(bytes)) => output = Some(bytes),
            Ok(Stream::Said(bytes)) => said = Some(bytes),
            Ok(Stream::TooMuch) => return Err(Failure::Output(bounds.output_bytes)),
            Err(RecvTimeoutError::Timeout) => return Err(Failure::Time(bounds.time)),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    // A program may close its streams and go on.
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            let (output, said) = (output.unwrap_or_default(), said.unwrap_or_default());
            return Ok(Ended { status, output, said });
        }
        if Instant::now() >= end {
            return Err(Failure::Time(bounds.time));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, millis: u64) -> Result<Ended, Failure> {
        let time = Duration::from_millis(millis);
        let bounds = Bounds { time, output_bytes: 1_000, memory_bytes: None };
        run(Command::new("/bin/sh").args(["-c", script]).stdin(Stdio::null()), &bounds)
    }

    #[test]
    fn a_run_ends_by_itself_or_at_its_bounds() {
        let ended = shell("echo out; echo said >&2; exit 3", 20_000).expect("it ends");
        assert_eq!(
            (ended.status.code(), &*ended.output, &*ended.said),
            (Some(3), &b"out\n"[..], &b"said\n"[..])
        );
        assert!(matches!(shell("sleep 60", 200), Err(Failure::Time(_))));
        assert!(matches!(shell("exec >&- 2>&-; sleep 60", 200), Err(Failure::Time(_))));
        assert!(matches!(shell("yes", 20_000), Err(Failure::Output(1_000))));
        let loud = shell("head -c 1000000 /dev/zero >&2", 20_000).expect("it can end");
        assert_eq!(u64::try_from(loud.said.len()), Ok(SAID_BYTES_MAX));
    }

    #[test]
    fn what_a_program_leaves_behind_is_ended_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let mark = folder.path().join("alive");
        let script = format!("(sleep 1; touch '{}') >&- 2>&- & exit 0", mark.display());
        shell(&script, 20_000).expect("it ends");
        std::thread::sleep(Duration::from_millis(1_500));
        assert!(!mark.exists());
    }
}
