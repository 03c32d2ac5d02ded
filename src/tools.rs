//! Runs the tools that make manifests: kustomize, kubectl and Helm.
//!
//! This adapter knows how the tools are found, confined, called and given up on; it knows nothing of
//! what they make. A tool sees a copy of exactly the files that were hashed, in a private folder,
//! and nothing else: no network, no credentials, no configuration of the user, no other program.
//! Nothing of the repository is executed: plugins, functions, exec generators and post-renderers
//! stay off. Invariants: a result is a function of order, files and tool version, and may thus be
//! kept between runs; whatever fails, hangs, is missing or asks for more than its share is an
//! answer with the reason, and never an empty output.

mod confine;
mod find;
mod stage;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::cache::Cache;
use crate::ids::hex;
use crate::manifest::{Order, Recipe, Release, Rendered, STAGED_PREFIX};
use crate::port::{Repo, Tools};
use crate::program;
use confine::Cage;
use find::Program;
use stage::Stage;

/// What a tool may use up.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time of one run.
    pub run: Duration,
    /// Time of all runs together.
    pub total: Duration,
    /// Bytes that one run may write.
    pub output_bytes: u64,
    /// Bytes that all runs together may write.
    pub total_output_bytes: u64,
    /// Bytes of address space of one run.
    pub memory_bytes: u64,
    /// Files that one run may see.
    pub files: usize,
    /// Bytes of those files together.
    pub file_bytes: u64,
}

impl Limits {
    /// What a tool may use up unless a test says otherwise.
    pub const DEFAULT: Self = Self {
        run: Duration::from_secs(30),
        total: Duration::from_mins(10),
        output_bytes: 64 << 20,
        total_output_bytes: 1 << 30,
        memory_bytes: 4 << 30,
        files: 20_000,
        file_bytes: 64 << 20,
    };
}

/// What stands behind a tool in the plan that ran with a network.
const UNCONFINED: &str = ", with a network";

/// The tools of this machine.
#[derive(Debug)]
pub struct Toolbox {
    /// Directories in which programs are looked for.
    search: Vec<PathBuf>,
    limits: Limits,
    cache: Option<Cache>,
    kustomize: OnceLock<Result<Program, String>>,
    helm: OnceLock<Result<Program, String>>,
    cage: OnceLock<Cage>,
    /// Bytes that all runs have written so far.
    written: AtomicU64,
}

impl Toolbox {
    /// Returns the tools in the directories `search`, which keeps results in `cache`.
    #[must_use]
    pub fn new(search: Vec<PathBuf>, cache: Option<PathBuf>, limits: Limits) -> Self {
        let (kustomize, helm, cage) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let (cache, written) = (cache.map(Cache::in_directory), AtomicU64::new(0));
        Self { search, limits, cache, kustomize, helm, cage, written }
    }

    /// Returns whether tools run without a network: else what they fetch in spite of everything may
    /// decide what they make.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        self.cage().is_closed()
    }

    /// Returns the tools that the environment names, with a cache where XDG has it.
    #[must_use]
    pub fn of_environment() -> Self {
        let search = std::env::var_os("PATH").unwrap_or_default();
        let cache = program::cache().map(|cache| cache.join("render"));
        Self::new(std::env::split_paths(&search).collect(), cache, Limits::DEFAULT)
    }

    fn cage(&self) -> &Cage {
        self.cage.get_or_init(|| Cage::find(&self.search))
    }

    fn program(&self, recipe: &Recipe) -> Result<&Program, String> {
        let found = match recipe {
            Recipe::Kustomize(_) => self
                .kustomize
                .get_or_init(|| Program::kustomize(&self.search, self.cage(), &self.limits)),
            Recipe::Helm(_) => {
                self.helm.get_or_init(|| Program::helm(&self.search, self.cage(), &self.limits))
            }
        };
        found.as_ref().map_err(Clone::clone)
    }

    fn render_one(
        &self,
        repo: &dyn Repo,
        order: &Order,
        deadline: Instant,
    ) -> Result<Rendered, String> {
        let stage = Stage::of(order, repo, &self.limits)?;
        let program = self.program(&order.recipe)?;
        let inputs = digest(order, &program.version, &stage);
        let cache = self.cache.as_ref().filter(|_| program.has_version());
        let kept = cache.and_then(|cache| cache.get(&inputs));
        let output = if let Some(output) = kept {
            output
        } else {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let most = self.limits.total.as_secs();
                return Err(format!("not rendered: all tools together took over {most} s"));
            }
            let limits = Limits { run: self.limits.run.min(left), ..self.limits };
            let output = run(program, order, &stage, self.cage(), &limits)?;
            if let Some(cache) = cache {
                cache.put(&inputs, &output);
            }
            output
        };
        let bytes = u64::try_from(output.len()).unwrap_or(u64::MAX);
        if self.written.fetch_add(bytes, Ordering::Relaxed) > self.limits.total_output_bytes {
            return Err(self.too_much());
        }
        let files = stage.files.keys().cloned().collect();
        let mut tool = program.version.clone();
        if !self.is_confined() {
            tool.push_str(UNCONFINED);
        }
        Ok(Rendered { output: output.into(), tool, inputs, files })
    }

    fn too_much(&self) -> String {
        let most = self.limits.total_output_bytes;
        format!("not rendered: all tools together write more than {most} bytes")
    }
}

impl Tools for Toolbox {
    fn render(&self, repo: &(dyn Repo + Sync), orders: &[Order]) -> Vec<Result<Rendered, String>> {
        let deadline = Instant::now() + self.limits.total;
        let next = AtomicUsize::new(0);
        let results: Vec<Mutex<Option<Result<Rendered, String>>>> =
            orders.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            while let Some((order, result)) = {
                let at = next.fetch_add(1, Ordering::Relaxed);
                orders.get(at).zip(results.get(at))
            } {
                let made = self.render_one(repo, order, deadline);
                if let Ok(mut result) = result.lock() {
                    *result = Some(made);
                }
            }
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..workers.min(orders.len()) {
                scope.spawn(work);
            }
        });
        if let Some(cache) = &self.cache {
            cache.prune();
        }
        if self.written.load(Ordering::Relaxed) > self.limits.total_output_bytes {
            // Which of them came first depends on the machine; that there are too many does not.
            return orders.iter().map(|_| Err(self.too_much())).collect();
        }
        let result = |made: Mutex<Option<_>>| made.into_inner().ok().flatten();
        let lost = || Err("it was not rendered: the run was lost".to_owned());
        results.into_iter().map(|made| result(made).unwrap_or_else(lost)).collect()
    }
}

/// Runs the program on the files of `stage`, in a folder of its own that is gone afterwards.
fn run(
    program: &Program,
    order: &Order,
    stage: &Stage,
    cage: &Cage,
    limits: &Limits,
) -> Result<Vec<u8>, String> {
    let folder = tempfile::Builder::new().prefix("fleetwright-").tempdir();
    let folder = folder.map_err(|error| format!("no private folder can be made: {error}"))?;
    let failed = |error: std::io::Error| format!("its files cannot be copied: {error}");
    stage.write(folder.path()).map_err(failed)?;
    let arguments = match &order.recipe {
        Recipe::Kustomize(_) => program.arguments(&[OsString::from(".")]),
        Recipe::Helm(release) => program.arguments(&helm_arguments(order, release, stage)),
    };
    let name = order.recipe.as_str();
    let output = cage.run(&program.path, &arguments, folder.path(), limits);
    let output = output.map_err(|why| {
        let why = without_log_heads(&without_folder(&why, folder.path()));
        format!("{name} {}", confine::shorten(&why))
    })?;
    if output.is_empty() && matches!(order.recipe, Recipe::Kustomize(_)) {
        tracing::debug!(path = order.path, "kustomize made nothing");
    }
    Ok(output)
}

fn helm_arguments(order: &Order, release: &Release, stage: &Stage) -> Vec<OsString> {
    let mut arguments = vec![
        OsString::from("template"),
        format!("--namespace={}", release.namespace).into(),
        "--skip-tests".into(),
    ];
    arguments.extend(stage.values.iter().map(|name| format!("--values={name}").into()));
    for set in &release.set {
        let flag = if set.is_text { "--set-string" } else { "--set" };
        arguments.push(format!("{flag}={}={}", set.name, set.value).into());
    }
    let chart = format!("{}{}", STAGED_PREFIX, order.path);
    arguments.extend(["--".into(), release.name.clone().into(), chart.into()]);
    arguments
}

/// Takes the private folder out of what a tool said: it is another one on each run.
fn without_folder(text: &str, folder: &Path) -> String {
    let tree = folder.join("tree").display().to_string();
    let text = text.replace(&format!("{tree}/"), "").replace(&tree, ".");
    let text = text.replace(&folder.display().to_string(), "");
    text.replace("../tree/", "")
}

/// Takes time, process and source line out of what kubectl logs (`E1102 12:00:00.000000    4711
/// main.go:1] why`): the same failure is the same text on each run.
fn without_log_heads(text: &str) -> String {
    let said = |line: &str| after_log_head(line).unwrap_or(line).to_owned();
    text.split('\n').map(said).collect::<Vec<_>>().join("\n")
}

/// Returns what stands behind the head of a line that klog wrote.
fn after_log_head(line: &str) -> Option<&str> {
    let head = line.strip_prefix(['I', 'W', 'E', 'F'])?;
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let (date, rest) = head.split_once(' ')?;
    let (time, rest) = rest.trim_start().split_once(' ')?;
    let (process, rest) = rest.trim_start().split_once(' ')?;
    let (place, said) = rest.split_once("] ")?;
    let is_time = time.split(['.', ':']).count() == 4 && time.split(['.', ':']).all(is_number);
    let is_head =
        date.len() == 4 && is_number(date) && is_time && is_number(process) && !place.contains(' ');
    is_head.then_some(said)
}

/// Hashes everything that decides what comes out.
fn digest(order: &Order, tool: &str, stage: &Stage) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(bytes);
    };
    part(b"render 1");
    part(tool.as_bytes());
    part(format!("{order:?}").as_bytes());
    for (path, content) in stage
        .files
        .iter()
        .map(|(path, c)| (path.as_str(), &**c))
        .chain(stage.extra.iter().map(|(path, content)| (path.as_str(), content.as_bytes())))
    {
        part(path.as_bytes());
        part(content);
    }
    format!("sha256:{}", hex(&hash.finalize()))
}

#[cfg(test)]
mod tests;
