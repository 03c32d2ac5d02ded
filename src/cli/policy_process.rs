//! Evaluates policies in a process of its own.
//!
//! Policies come from a repository, and perhaps from a pull request of a stranger. The engine has
//! limits between the steps of a rule, and none for a step: `replace` or `concat` can take all
//! memory. The process that evaluates them therefore has a limited address space and a limited time,
//! no environment and no plan but its input. Its end is a check with status `error`, which denies.

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

/// Time limit of all rules together.
const TIME_MAX: Duration = Duration::from_mins(2);

/// Most bytes of the results.
const RESULT_BYTES_MAX: u64 = 64 << 20;

/// Address space of the allocator and the libraries, in addition to program, stack and policies.
const OVERHEAD_BYTES: u64 = 128 << 20;

/// Stack of the thread that evaluates policies. Policies are evaluated by recursion, and the depth
/// of calls and expressions is limited for a stack of this size.
const STACK_BYTES: u32 = 256 << 20;

/// Memory limit of a container, on systems that have one.
const CONTAINER_LIMIT: &str = "/sys/fs/cgroup/memory.max";

/// The program of this process. Tests of the library have none, and evaluate policies themselves.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

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
        if let Ok(program) = std::env::current_exe() {
            let _ = PROGRAM.set(program);
        }
        return None;
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

/// Evaluates each rule of `bundle` over `plan`.
pub(super) fn evaluate(plan: &Plan, bundle: &Bundle) -> Vec<Check> {
    if bundle.is_empty() {
        return Vec::new();
    }
    let task = Task::Evaluate { input: policy::input(plan) };
    request(&task, bundle).unwrap_or_else(|why| vec![error_check("policies", &why)])
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
    let limits = Limits { memory: memory_limit(Path::new(CONTAINER_LIMIT)) };
    let result = match PROGRAM.get() {
        Some(program) => run_process(program, task, bundle, limits)?,
        None => on_large_stack(|| perform(task, bundle, limits)),
    };
    serde_json::from_slice(&result).map_err(|error| format!("the result cannot be read: {error}"))
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

/// Returns the memory limit of policies: half of the memory of the container, at most the default.
/// The other half is for the process that waits: Kubernetes ends all processes of a container.
fn memory_limit(container_limit: &Path) -> u64 {
    let most = PolicyLimits::default().memory;
    let text = std::fs::read_to_string(container_limit).unwrap_or_default();
    // Without a limit, the text is `max`.
    text.trim().parse::<u64>().map_or(most, |container| most.min(container / 2))
}

fn run_process(
    program: &Path,
    task: &Task,
    bundle: &Bundle,
    limits: Limits,
) -> Result<Vec<u8>, String> {
    let input = request_file(&(task, bundle, limits))
        .map_err(|error| format!("the policy engine has no temporary file: {error}"))?;
    let mut command = Command::new(program);
    // The allocator would reserve 1 GiB of address space at once.
    command.arg(ARGUMENT).env_clear().env("MIMALLOC_ARENA_RESERVE", "64MiB").stdin(input);
    let bounds = RunLimits {
        time: TIME_MAX,
        output_bytes: RESULT_BYTES_MAX,
        memory_bytes: Some(address_space(program, limits)),
        file_bytes: None,
    };
    let output = run(&mut command, &bounds).map_err(|why| format!("the policy engine {why}"))?;
    if output.status.success() { Ok(output.stdout) } else { Err(failure(&output, limits)) }
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

    #[test]
    fn policies_have_half_of_the_memory_of_a_container() {
        let folder = tempfile::tempdir().expect("a folder");
        let limit = |text: &str| {
            let path = folder.path().join("memory.max");
            std::fs::write(&path, text).expect("written");
            memory_limit(&path)
        };
        assert_eq!(limit("1073741824\n"), 512 << 20);
        assert_eq!(limit("max\n"), 2 << 30);
        assert_eq!(limit("1099511627776\n"), 2 << 30);
        assert_eq!(memory_limit(&folder.path().join("none")), 2 << 30);
    }
}
