//! Runs the manifest renderers: kustomize, kubectl and Helm.
//!
//! This adapter finds, isolates, calls and limits the tools. It does not interpret their output. A
//! tool sees a copy of exactly the hashed files in a private directory: no network, no credentials,
//! no user configuration, no other program. Nothing of the repository is executed: plugins,
//! functions, exec generators and post-renderers are disabled.
//!
//! Invariants: a result is a function of request, files and tool version, and can be cached. Any
//! failure, timeout, missing tool or exceeded limit is an error with a reason, never an empty
//! output.

mod access_rules;
mod discover;
mod sandboxed_process;
mod staging;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::adapters::cache::ResultCache;
use crate::adapters::subprocess;
use crate::manifest::STAGED_PREFIX;
use crate::manifest::ports::{ManifestRenderer, RepositoryFiles};
use crate::model::desired::{Recipe, Release, RenderRequest, Rendered};
use discover::RendererProgram;
use sandboxed_process::ProcessSandbox;
use staging::StagedFiles;

/// Limits of the tools.
#[derive(Debug, Clone, Copy)]
pub struct RendererLimits {
    /// Time of one run.
    pub run: Duration,
    /// Time of all runs.
    pub total: Duration,
    /// Output bytes of one run.
    pub output_bytes: u64,
    /// Output bytes of all runs.
    pub total_output_bytes: u64,
    /// Address space of one run in bytes.
    pub memory_bytes: u64,
    /// Number of files of one run.
    pub files: usize,
    /// Total bytes of those files.
    pub file_bytes: u64,
}

impl RendererLimits {
    /// The limits outside tests.
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

/// Suffix of the tool version in a plan if the tool had network access.
const NETWORK_SUFFIX: &str = ", with a network";

/// The installed renderers.
#[derive(Debug)]
pub struct Renderers {
    /// Directories that are searched for programs.
    search_path: Vec<PathBuf>,
    limits: RendererLimits,
    cache: Option<ResultCache>,
    kustomize: OnceLock<Result<RendererProgram, String>>,
    helm: OnceLock<Result<RendererProgram, String>>,
    sandbox: OnceLock<ProcessSandbox>,
    /// Output bytes of all runs so far.
    bytes_written: AtomicU64,
}

impl Renderers {
    /// Returns the tools in the directories `search_path`, with results cached in `cache`.
    pub fn new(search_path: Vec<PathBuf>, cache: Option<PathBuf>, limits: RendererLimits) -> Self {
        let (kustomize, helm, sandbox) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let (cache, bytes_written) = (cache.map(ResultCache::new), AtomicU64::new(0));
        Self { search_path, limits, cache, kustomize, helm, sandbox, bytes_written }
    }

    /// Returns whether tools run without network access. Otherwise fetched data may affect their
    /// output.
    pub fn is_sandboxed(&self) -> bool {
        self.sandbox().is_network_isolated()
    }

    /// Returns the tools without a cache.
    #[must_use]
    pub fn without_cache(self) -> Self {
        Self { cache: None, ..self }
    }

    /// Returns the tools on the `PATH`, with the cache in the XDG cache directory.
    pub fn from_environment() -> Self {
        let search_path = std::env::var_os("PATH").unwrap_or_default();
        let cache = subprocess::cache_directory().map(|cache| cache.join("render"));
        Self::new(std::env::split_paths(&search_path).collect(), cache, RendererLimits::DEFAULT)
    }

    fn sandbox(&self) -> &ProcessSandbox {
        self.sandbox.get_or_init(|| ProcessSandbox::detect(&self.search_path))
    }

    fn program(&self, recipe: &Recipe) -> Result<&RendererProgram, String> {
        let found = match recipe {
            Recipe::Kustomize(_) => self.kustomize.get_or_init(|| {
                RendererProgram::kustomize(&self.search_path, self.sandbox(), &self.limits)
            }),
            Recipe::Helm(_) => return self.helm(),
        };
        found.as_ref().map_err(Clone::clone)
    }

    fn helm(&self) -> Result<&RendererProgram, String> {
        let found = self
            .helm
            .get_or_init(|| RendererProgram::helm(&self.search_path, self.sandbox(), &self.limits));
        found.as_ref().map_err(Clone::clone)
    }

    fn render_one(
        &self,
        repo: &dyn RepositoryFiles,
        order: &RenderRequest,
        deadline: Instant,
    ) -> Result<Rendered, String> {
        let staged = StagedFiles::collect(order, repo, &self.limits)?;
        let program = self.program(&order.recipe)?;
        let helm = staged.needs_helm.then(|| self.helm()).transpose()?;
        let mut tool = program.version.clone();
        if let Some(helm) = helm {
            tool = format!("{tool}, {}", helm.version);
        }
        let inputs = input_digest(order, &tool, &staged);
        let cache = self.cache.as_ref().filter(|_| program.has_version());
        let cached = cache.and_then(|cache| cache.get(&inputs));
        let output = if let Some(output) = cached {
            output
        } else {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let most = self.limits.total.as_secs();
                return Err(format!("not rendered: all tools together took more than {most} s"));
            }
            let limits = RendererLimits { run: self.limits.run.min(left), ..self.limits };
            let tools = RendererTools { program, helm, sandbox: self.sandbox() };
            let output = run_renderer(&tools, order, &staged, &limits)?;
            if let Some(cache) = cache {
                cache.put(&inputs, &output);
            }
            output
        };
        let bytes = u64::try_from(output.len()).unwrap_or(u64::MAX);
        if self.bytes_written.fetch_add(bytes, Ordering::Relaxed) > self.limits.total_output_bytes {
            return Err(self.output_limit_error());
        }
        let files = staged.files.keys().cloned().collect();
        if !self.is_sandboxed() {
            tool.push_str(NETWORK_SUFFIX);
        }
        Ok(Rendered { output: output.into(), tool, inputs, files })
    }

    fn output_limit_error(&self) -> String {
        let most = self.limits.total_output_bytes;
        format!("not rendered: all tools together write more than {most} bytes")
    }
}

impl ManifestRenderer for Renderers {
    fn render(
        &self,
        repo: &(dyn RepositoryFiles + Sync),
        orders: &[RenderRequest],
    ) -> Vec<Result<Rendered, String>> {
        let deadline = Instant::now() + self.limits.total;
        let next = AtomicUsize::new(0);
        let results: Vec<Mutex<Option<Result<Rendered, String>>>> =
            orders.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            while let Some((order, result)) = {
                let at = next.fetch_add(1, Ordering::Relaxed);
                orders.get(at).zip(results.get(at))
            } {
                let rendered = self.render_one(repo, order, deadline);
                if let Ok(mut result) = result.lock() {
                    *result = Some(rendered);
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
        if self.bytes_written.load(Ordering::Relaxed) > self.limits.total_output_bytes {
            // The order of the runs depends on the host, so that every request fails.
            return orders.iter().map(|_| Err(self.output_limit_error())).collect();
        }
        let result = |rendered: Mutex<Option<_>>| rendered.into_inner().ok().flatten();
        let lost = || Err("not rendered: the run was lost".to_owned());
        results.into_iter().map(|rendered| result(rendered).unwrap_or_else(lost)).collect()
    }
}

/// The programs of one run.
struct RendererTools<'a> {
    program: &'a RendererProgram,
    /// Helm, if kustomize needs it.
    helm: Option<&'a RendererProgram>,
    sandbox: &'a ProcessSandbox,
}

/// Runs the program on the staged files in a temporary directory.
fn run_renderer(
    tools: &RendererTools<'_>,
    order: &RenderRequest,
    staged: &StagedFiles,
    limits: &RendererLimits,
) -> Result<Vec<u8>, String> {
    let folder = tempfile::Builder::new().prefix("fleetwright-").tempdir();
    let folder = folder.map_err(|error| format!("cannot create a temporary directory: {error}"))?;
    let failed = |error: std::io::Error| format!("its files cannot be copied: {error}");
    staged.write(folder.path()).map_err(failed)?;
    let RendererTools { program, helm, sandbox } = tools;
    let arguments = match &order.recipe {
        Recipe::Kustomize(_) => program.arguments(&kustomize_arguments(staged, *helm)),
        Recipe::Helm(release) => program.arguments(&helm_arguments(order, release, staged)),
    };
    let name = order.recipe.as_str();
    let programs: Vec<&Path> =
        [Some(*program), *helm].into_iter().flatten().map(|program| &*program.path).collect();
    let output = sandbox.run(&programs, &arguments, folder.path(), limits);
    let output = output.map_err(|why| {
        let why = strip_log_headers(&strip_folder(&why, folder.path()));
        if let Some(why) = outside_root(&why) {
            return why;
        }
        format!("{name} {}", sandboxed_process::shorten(&why))
    })?;
    if output.is_empty() && matches!(order.recipe, Recipe::Kustomize(_)) {
        tracing::debug!(path = order.path, "kustomize output is empty");
    }
    Ok(output)
}

/// Returns the explanation of a file outside the root of a kustomization, which kustomize reports
/// as `security; file 'FILE' is not in or below 'ROOT'`.
fn outside_root(stderr: &str) -> Option<String> {
    let (before, after) = stderr.split_once("' is not in or below '")?;
    let (_, file) = before.rsplit_once('\'')?;
    let (root, _) = after.split_once('\'')?;
    Some(format!("kustomize does not read `{file}`, because it is outside of its root `{root}`"))
}

fn kustomize_arguments(staged: &StagedFiles, helm: Option<&RendererProgram>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    if staged.loads_anywhere {
        arguments.push("--load-restrictor=LoadRestrictionsNone".into());
    }
    if let Some(helm) = helm {
        // Charts are in the directory already, so that Helm downloads nothing.
        arguments.extend(["--enable-helm".into(), "--helm-command".into()]);
        arguments.push(helm.path.clone().into_os_string());
    }
    arguments.push(".".into());
    arguments
}

fn helm_arguments(order: &RenderRequest, release: &Release, staged: &StagedFiles) -> Vec<OsString> {
    let mut arguments = vec![
        OsString::from("template"),
        format!("--namespace={}", release.namespace).into(),
        "--skip-tests".into(),
    ];
    if release.skips_schema {
        arguments.push("--skip-schema-validation".into());
    }
    arguments.extend(staged.values.iter().map(|name| format!("--values={name}").into()));
    for set in &release.set {
        let flag = if set.is_text { "--set-string" } else { "--set" };
        arguments.push(format!("{flag}={}={}", set.name, set.value).into());
    }
    let chart = format!("{}{}", STAGED_PREFIX, order.path);
    arguments.extend(["--".into(), release.name.clone().into(), chart.into()]);
    arguments
}

/// Removes the path of the temporary directory from tool output, because it differs between runs.
fn strip_folder(text: &str, folder: &Path) -> String {
    let tree = folder.join("tree").display().to_string();
    let text = text.replace(&format!("{tree}/"), "").replace(&tree, ".");
    let text = text.replace(&folder.display().to_string(), "");
    text.replace("../tree/", "")
}

/// Removes time, process and source line from kubectl logs (`E1102 12:00:00.000000    4711
/// main.go:1] why`), so that the same failure has the same text.
fn strip_log_headers(text: &str) -> String {
    let lines = text.split('\n').map(|line| after_log_header(line).unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the message of a klog line.
fn after_log_header(line: &str) -> Option<&str> {
    let head = line.strip_prefix(['I', 'W', 'E', 'F'])?;
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let (date, rest) = head.split_once(' ')?;
    let (time, rest) = rest.trim_start().split_once(' ')?;
    let (process, rest) = rest.trim_start().split_once(' ')?;
    let (source, message) = rest.split_once("] ")?;
    let is_time = time.split(['.', ':']).count() == 4 && time.split(['.', ':']).all(is_number);
    let is_head = date.len() == 4
        && is_number(date)
        && is_time
        && is_number(process)
        && !source.contains(' ');
    is_head.then_some(message)
}

/// Hashes all inputs of a rendering.
fn input_digest(order: &RenderRequest, tool: &str, staged: &StagedFiles) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(bytes);
    };
    part(b"render 1");
    part(tool.as_bytes());
    // The text is part of saved plans; it names no type, so that a rename changes no digest.
    part(format!("Order {{ path: {:?}, recipe: {:?} }}", order.path, order.recipe).as_bytes());
    for (path, content) in
        staged.files.iter().map(|(path, c)| (path.as_str(), &**c)).chain(
            staged.generated.iter().map(|(path, content)| (path.as_str(), content.as_bytes())),
        )
    {
        part(path.as_bytes());
        part(content);
    }
    format!("sha256:{}", hex::encode(hash.finalize()))
}

#[cfg(test)]
mod tests;
