//! Evaluates policies in a process of its own.
//!
//! Policies come from a repository, and perhaps from a pull request of a stranger. The engine has
//! limits between the steps of a rule, and none for a step: `replace` or `concat` can take all
//! memory. The process that evaluates them therefore has a limited address space (on Linux) and a
//! limited time, no environment and no plan but its input. It limits itself before it reads any
//! policy, and fails if it cannot. Its failure is a check with status `error`, which denies.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::adapters::subprocess::{RunLimits, RunOutput, run};
use crate::plan::Plan;
use crate::plan::wire::Check;
use crate::policy::{self, Bundle, PolicyLimits, TestResult, error_check};

/// The only argument of the process that evaluates policies.
const ARGUMENT: &str = "evaluate-policies-of-stdin";

/// Time limit of all rules together, those of tests included.
const TIME_MAX: Duration = Duration::from_mins(2);

/// Most bytes of the results.
const RESULT_BYTES_MAX: u64 = 64 << 20;

/// Limits of another engine over the same policies. Programs in Go reserve more address space than
/// they use, so it is not limited.
pub(super) const OTHER_ENGINE_LIMITS: RunLimits = RunLimits {
    time: TIME_MAX,
    output_bytes: RESULT_BYTES_MAX,
    memory_bytes: None,
    file_bytes: None,
};

/// Address space of the allocator and the libraries, in addition to program, stack and policies.
const OVERHEAD_BYTES: u64 = 128 << 20;

/// Stack of the thread that evaluates policies. Policies are evaluated by recursion, and the depth
/// of calls and expressions is limited for a stack of this size.
const STACK_BYTES: u32 = 256 << 20;

/// Memory limit of a container, on systems that have one: in version 2 and 1 of cgroups.
const CONTAINER_LIMITS: [&str; 2] =
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Message of a process whose address space cannot be limited.
const UNLIMITED: &str = "the memory of the policy engine cannot be limited";

/// The program of this process, or the reason that it is unknown. Tests of the library have none,
/// and evaluate policies themselves.
static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();

#[derive(Debug, Serialize, Deserialize)]
enum Task {
    Evaluate { input: String },
    Load,
    Test,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Limits {
    memory: u64,
}

/// Evaluates the policies that another process sent on stdin, if `arguments` ask for it. Otherwise
/// remembers the program.
pub(super) fn serve(arguments: &[OsString]) -> Option<ExitCode> {
    if arguments.get(1).is_none_or(|argument| argument != ARGUMENT) {
        let _ = PROGRAM.set(own_program());
        return None;
    }
    let bytes = arguments.get(2).and_then(|bytes| bytes.to_str()?.parse::<u64>().ok());
    if bytes.is_none_or(|bytes| limit_address_space(bytes).is_err()) {
        // Without the message, the other process reports the exit status.
        let _ = io::stderr().write_all(UNLIMITED.as_bytes());
        return Some(ExitCode::FAILURE);
    }
    let mut request = Vec::new();
    let is_read = io::stdin().lock().read_to_end(&mut request).is_ok();
    let parsed = serde_json::from_slice::<(Task, Bundle, Limits)>(&request).ok();
    let Some((task, bundle, limits)) = parsed.filter(|_| is_read) else {
        return Some(ExitCode::FAILURE);
    };
    // The input of a large fleet has tens of megabytes.
    drop(request);
    let result = on_large_stack(|| perform(&task, &bundle, limits));
    let is_written = io::stdout().lock().write_all(&result).is_ok();
    Some(if is_written { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the program of this process. On Linux, this is the program that runs, even if its file was
/// replaced or removed.
fn own_program() -> Result<PathBuf, String> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe()
        .map_err(|error| format!("the program of the policy engine is unknown: {error}"))
}

/// Limits the address space of this process, on systems that support it.
#[cfg(target_os = "linux")]
fn limit_address_space(bytes: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // A limit of the process that waits holds for this one too.
    let bytes = getrlimit(Resource::As).current.map_or(bytes, |own| own.min(bytes));
    Ok(setrlimit(Resource::As, Rlimit { current: Some(bytes), maximum: Some(bytes) })?)
}

#[cfg(not(target_os = "linux"))]
fn limit_address_space(_: u64) -> io::Result<()> {
    Ok(())
}

/// Evaluates each rule of `bundle` over `plan`.
pub(super) fn evaluate(plan: &Plan, bundle: &Bundle) -> Vec<Check> {
    if bundle.is_empty() {
        return Vec::new();
    }
    let task = Task::Evaluate { input: policy::input(plan) };
    checks_of(request(&task, bundle))
}

/// Returns the checks of an evaluation. One without a result denies.
fn checks_of(result: Result<Vec<Check>, String>) -> Vec<Check> {
    result.unwrap_or_else(|why| vec![error_check("policies", &why)])
}

/// Returns the errors of loading the policies and data of `bundle`, each with its file.
pub(super) fn load_errors(bundle: &Bundle) -> Vec<(String, String)> {
    if bundle.is_empty() {
        return Vec::new();
    }
    request(&Task::Load, bundle).unwrap_or_else(|why| vec![("policies".to_owned(), why)])
}

/// Runs all tests of `bundle`.
pub(super) fn run_tests(bundle: &Bundle) -> Result<Vec<TestResult>, Vec<String>> {
    request(&Task::Test, bundle).unwrap_or_else(|why| Err(vec![why]))
}

/// Returns the result of a task, or the reason that there is none.
fn request<T: DeserializeOwned>(task: &Task, bundle: &Bundle) -> Result<T, String> {
    let limits = Limits { memory: memory_limit(&CONTAINER_LIMITS.map(Path::new)) };
    match PROGRAM.get() {
        Some(Ok(program)) => {
            let mut command = Command::new(program);
            command.arg(ARGUMENT).arg(address_space(program, limits).to_string());
            // The allocator would reserve 1 GiB of address space at once.
            command.env_clear().env("MIMALLOC_ARENA_RESERVE", "64MiB");
            answer(&mut command, (task, bundle, limits), TIME_MAX)
        }
        Some(Err(why)) => Err(why.clone()),
        None => parsed(&on_large_stack(|| perform(task, bundle, limits))),
    }
}

fn parsed<T: DeserializeOwned>(result: &[u8]) -> Result<T, String> {
    serde_json::from_slice(result).map_err(|error| format!("the result cannot be read: {error}"))
}

fn perform(task: &Task, bundle: &Bundle, limits: Limits) -> Vec<u8> {
    let limits = PolicyLimits { memory: limits.memory, ..PolicyLimits::default() };
    let result = match task {
        Task::Evaluate { input } => serde_json::to_vec(&policy::evaluate(input, bundle, limits)),
        Task::Load => serde_json::to_vec(&policy::load_errors(bundle, limits)),
        Task::Test => serde_json::to_vec(&policy::run_tests(bundle, limits)),
    };
    result.expect("results of policies are JSON")
}

/// Returns the memory limit of the engine: half of the memory of the container, at most the default.
/// Kubernetes ends all processes of a container, and the process that waits needs the other half.
/// One step of a rule may exceed the limit, up to the address space of the process.
fn memory_limit(container_limits: &[&Path]) -> u64 {
    // Without a limit, the text is `max` or a number above all memory.
    let limits = container_limits
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    limits.map(|container| container / 2).fold(PolicyLimits::default().memory, u64::min)
}

/// Sends a request to a process, and returns its result.
fn answer<T: DeserializeOwned>(
    command: &mut Command,
    request: (&Task, &Bundle, Limits),
    time: Duration,
) -> Result<T, String> {
    let input = request_file(&request)
        .map_err(|error| format!("the policy engine has no temporary file: {error}"))?;
    // The process limits its own memory, before it reads the request.
    let bounds =
        RunLimits { time, output_bytes: RESULT_BYTES_MAX, memory_bytes: None, file_bytes: None };
    let output = run(command.stdin(input), &bounds);
    let output = output.map_err(|why| format!("the policy engine {why}"))?;
    let (_, _, limits) = request;
    if output.status.success() { parsed(&output.stdout) } else { Err(failure(&output, limits)) }
}

/// Returns the address space of the process. Its program and most of its stack take no memory.
fn address_space(program: &Path, limits: Limits) -> u64 {
    let program = program.metadata().map_or(0, |program| program.len());
    limits.memory + program + u64::from(STACK_BYTES) + OVERHEAD_BYTES
}

/// Returns a temporary file with the request, at its beginning.
fn request_file(request: &impl Serialize) -> io::Result<File> {
    let mut writer = BufWriter::new(tempfile::tempfile()?);
    serde_json::to_writer(&mut writer, request)?;
    let mut file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok(file)
}

/// Returns the reason that the process failed. The same policy has the same text.
fn failure(output: &RunOutput, limits: Limits) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("memory allocation of") {
        let most = limits.memory >> 20;
        return format!("the policies need more memory than they may use, at most {most} MiB");
    }
    if stderr.contains(UNLIMITED) {
        return UNLIMITED.to_owned();
    }
    format!("the policy engine failed: {}", output.status)
}

/// Runs `work` on a thread with a large stack. If none can be started, runs it on this one.
fn on_large_stack<T: Send>(work: impl Fn() -> T + Sync) -> T {
    let done = std::thread::scope(|scope| {
        let bytes = usize::try_from(STACK_BYTES).unwrap_or(usize::MAX);
        let builder = std::thread::Builder::new().stack_size(bytes);
        let started = builder.spawn_scoped(scope, &work).ok()?;
        match started.join() {
            Ok(done) => Some(done),
            // A panic continues on the calling thread.
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    done.unwrap_or_else(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::wire::CheckStatus;

    #[test]
    fn policies_have_half_of_the_memory_of_a_container() {
        let folder = tempfile::tempdir().expect("a folder");
        let none = folder.path().join("none");
        let limit = |text: &str| {
            let path = folder.path().join("memory.max");
            std::fs::write(&path, text).expect("written");
            let found = memory_limit(&[&path, &none]);
            assert_eq!(memory_limit(&[&none, &path]), found, "either version of cgroups");
            found
        };
        assert_eq!(limit("1073741824\n"), 512 << 20);
        assert_eq!(limit("max\n"), 2 << 30);
        assert_eq!(limit("1099511627776\n"), 2 << 30);
        assert_eq!(limit("9223372036854771712\n"), 2 << 30);
        assert_eq!(memory_limit(&[&none]), 2 << 30);
    }

    /// Returns the text of the only check if the process of the engine runs `script` instead.
    fn denial(script: &str, time: Duration) -> String {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let request = (&Task::Load, &Bundle::default(), Limits { memory: 1 << 30 });
        let checks = checks_of(answer(&mut command, request, time));
        let [check] = checks.as_slice() else { panic!("{checks:?}") };
        assert_eq!(check.status, CheckStatus::Error, "{check:?}");
        check.problems.join("; ")
    }

    #[test]
    fn process_without_a_result_denies() {
        let long = Duration::from_secs(20);
        let unlimited = format!("echo '{UNLIMITED}' >&2; exit 1");
        for (script, time, expected) in [
            ("kill -SEGV $$", long, "the policy engine failed: signal: 11"),
            ("exit 1", long, "the policy engine failed: exit status: 1"),
            ("sleep 60", Duration::from_millis(200), "the policy engine did not end within 1 s"),
            ("echo no JSON", long, "the result cannot be read"),
            ("true", long, "the result cannot be read"),
            (unlimited.as_str(), long, UNLIMITED),
        ] {
            let text = denial(script, time);
            assert!(text.contains(expected), "{script}: {text}");
        }
    }
}
