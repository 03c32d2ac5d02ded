//! What was typed, understood: every text became a value, every contradiction an error.

use std::path::PathBuf;

use jiff::Timestamp;

use super::args::{
    AdoptArgs, ApplyArgs, ApproveArgs, CatalogArgs, CatalogExplainArgs, CatalogListArgs,
    CommandArgs, DemandArg, DiffArgs, DriftArgs, ExplainArgs, FamilyArg, ForecastArgs, FormatArg,
    GlobalArgs, GuardArgs, LogFormatArg, ModeArg, ObserveArgs, PlanArgs, PlanFormatArg,
    PlanningArgs, PolicyArgs, PolicyTestArgs, RegionArgs, RunArgs, ShowArgs, SortArg, SourceArgs,
    Typed, ValidateArgs, ViewArgs,
};
use super::error::CliError;
use super::progress::Form;
use super::world::WorldChoice;
use crate::catalog::NodeSettings;
use crate::demand::DemandMode;
use crate::engine::Scope;
use crate::ids::{Digest, InstanceTypeName, PoolName, Region};
use crate::manifest::{AmiFamily, KubeletSettings, Mode};
use crate::plan::wire::ResourceKind;
use crate::render::Verbosity;
use crate::requirement::Requirements;
use crate::telemetry::{LogFormat, Loudness};

/// What holds for every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Common {
    pub(super) loudness: Loudness,
    pub(super) no_color: bool,
}

/// One command with its settings.
#[derive(Debug)]
pub(super) enum Task {
    Plan(PlanSettings),
    Show(ShowSettings),
    Apply(ApplySettings),
    Adopt(AdoptSettings),
    Diff(DiffSettings),
    Drift(DriftSettings),
    Approve(ApproveSettings),
    #[cfg(feature = "live")]
    Comment(CommentSettings),
    PolicyTest(PolicyTestSettings),
    Observe(ObserveSettings),
    #[cfg(feature = "cluster")]
    Preflight(SourceSettings),
    #[cfg(feature = "sandbox")]
    Sandbox(SandboxSettings),
    Run(RunSettings),
    Validate(ValidateSettings),
    CatalogList(CatalogListSettings),
    CatalogExplain(CatalogExplainSettings),
    Forecast(ForecastSettings),
    Explain(ExplainSettings),
    Completions(clap_complete::Shell),
}

/// How the loop runs.
#[derive(Debug, Clone)]
pub(super) struct RunSettings {
    pub(super) source: SourceSettings,
    /// The world, where it is not that of the repository.
    pub(super) world: Option<WorldChoice>,
    /// What it may do, where it is not what the repository says.
    pub(super) mode: Option<Mode>,
    /// Whether it ends once nothing is left to do.
    pub(super) once: bool,
    /// Where page, metrics and answers to probes are served.
    #[cfg(feature = "page")]
    pub(super) listen: Option<std::net::SocketAddr>,
    /// Further names by which they are reached.
    #[cfg(feature = "page")]
    pub(super) listen_names: Vec<String>,
    /// What webhooks are signed with, where they are heard.
    #[cfg(feature = "page")]
    pub(super) webhook: Option<crate::listen::Secrets>,
    /// How lines on stderr look.
    pub(super) log_format: LogFormat,
    /// How many times as fast the time of an embedded world passes.
    pub(super) speed: u32,
    /// How long to wait for the lock.
    pub(super) lock_timeout: std::time::Duration,
}

/// Where desired state is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceSettings {
    pub(super) path: PathBuf,
    /// The commit to read instead of the files on disk.
    pub(super) revision: Option<String>,
}

/// What a plan is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlanningSettings {
    pub(super) source: SourceSettings,
    /// `None`: what `fleetwright.yaml` says.
    pub(super) world: Option<WorldChoice>,
    /// `None`: now, or the world's own time.
    pub(super) at: Option<Timestamp>,
    /// `None`: what `fleetwright.yaml` says.
    pub(super) demand: Option<DemandMode>,
    /// Whether pods are nominated to the nodes that they are planned on.
    pub(super) steer: bool,
    pub(super) scope: Scope,
    /// The commit to compare with.
    pub(super) compare: Option<String>,
    pub(super) guard: GuardChoice,
}

/// What a plan is judged by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct GuardChoice {
    /// Directories of policies, beside those that `fleetwright.yaml` names.
    pub(super) policies: Vec<PathBuf>,
    /// Data for policies.
    pub(super) data: Vec<PathBuf>,
    /// The commit whose settings and policies guard.
    pub(super) revision: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct DiffSettings {
    pub(super) a: PathBuf,
    pub(super) b: PathBuf,
    pub(super) format: Format,
    pub(super) detailed_exitcode: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct DriftSettings {
    pub(super) planning: PlanningSettings,
    pub(super) format: Format,
    pub(super) detailed_exitcode: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ApproveSettings {
    pub(super) plan: PathBuf,
    pub(super) by: String,
    pub(super) key: Option<PathBuf>,
    pub(super) out: PathBuf,
}

#[cfg(feature = "live")]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommentSettings {
    pub(super) about: About,
    pub(super) repository: Option<String>,
    pub(super) pull: Option<u64>,
    /// The commit whose status is set.
    pub(super) status: Option<String>,
    pub(super) dry_run: bool,
}

/// What a comment is about.
#[cfg(feature = "live")]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum About {
    Plan {
        plan: PathBuf,
        receipt: Option<PathBuf>,
        approvals: Vec<PathBuf>,
    },
    /// What failed, so that there is no plan, or none that was applied.
    Failure(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PolicyTestSettings {
    pub(super) directories: Vec<PathBuf>,
}

/// How a result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// How a plan is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Text(Verbosity),
    Json,
    Stream,
    Markdown,
    Html,
    Github,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlanSettings {
    pub(super) planning: PlanningSettings,
    pub(super) out: Option<PathBuf>,
    pub(super) view: View,
    pub(super) detailed_exitcode: bool,
    /// Where the page of the plan is served, instead of the plan being shown.
    #[cfg(feature = "page")]
    pub(super) serve: Option<std::net::SocketAddr>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShowSettings {
    pub(super) plan: PathBuf,
    pub(super) view: View,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ApplySettings {
    pub(super) subject: Subject,
    pub(super) auto_approve: bool,
    pub(super) approved_digest: Option<Digest>,
    pub(super) approvals: Vec<PathBuf>,
    /// Where what was done is written.
    pub(super) receipt: Option<PathBuf>,
    /// How it is told what happens.
    pub(super) form: Form,
    pub(super) guard: GuardChoice,
    /// How long to wait while another apply holds the lock.
    pub(super) lock_timeout: std::time::Duration,
}

/// What is applied.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A saved plan.
    Saved {
        plan: PathBuf,
        /// The world that the caller means; it must be the plan's.
        world: Option<WorldChoice>,
    },
    /// A plan that is made first.
    Fresh(Box<PlanningSettings>),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ObserveSettings {
    pub(super) source: SourceSettings,
    pub(super) world: Option<WorldChoice>,
    pub(super) out: Option<PathBuf>,
    /// How to show what sources do not agree on, where that is asked for.
    pub(super) differences: Option<Format>,
}

/// Settings of `sandbox`.
#[cfg(feature = "sandbox")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SandboxSettings {
    pub(super) source: SourceSettings,
    /// Port of the Kubernetes API; 0: any that is free.
    pub(super) port: u16,
    /// Port of the page; 0: any that is free.
    pub(super) page: u16,
    /// How many times quicker machines boot.
    pub(super) speed: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ValidateSettings {
    pub(super) source: SourceSettings,
    pub(super) format: Format,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct AdoptSettings {
    pub(super) source: SourceSettings,
    pub(super) world: Option<WorldChoice>,
    pub(super) auto_approve: bool,
    pub(super) approved_digest: Option<Digest>,
    pub(super) format: Format,
}

/// Which catalogue is looked at.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RegionSettings {
    pub(super) node: NodeSource,
    pub(super) format: Format,
}

/// Where it is told how nodes are set up.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NodeSource {
    /// On the command line.
    Typed { region: Region, node: Box<NodeSettings> },
    /// In a repository; without a world, what `fleetwright.yaml` says runs.
    Pool { name: PoolName, source: SourceSettings, world: Option<WorldChoice> },
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct CatalogListSettings {
    pub(super) requirements: Requirements,
    pub(super) sort: SortArg,
    pub(super) limit: usize,
    pub(super) allocatable: bool,
    pub(super) region: RegionSettings,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct CatalogExplainSettings {
    pub(super) name: InstanceTypeName,
    pub(super) region: RegionSettings,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ForecastSettings {
    pub(super) source: SourceSettings,
    pub(super) world: Option<WorldChoice>,
    /// `None`: now, or the world's own time.
    pub(super) from: Option<Timestamp>,
    /// `None`: a week later.
    pub(super) to: Option<Timestamp>,
    pub(super) demand: Option<DemandMode>,
    pub(super) format: Format,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExplainSettings {
    pub(super) what: String,
    pub(super) plan: PlanSource,
    pub(super) format: Format,
}

/// Where the plan comes from that is explained.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PlanSource {
    Saved(PathBuf),
    Fresh(Box<PlanningSettings>),
}

/// Returns what was typed as settings.
///
/// # Errors
/// When a text is not of the form its option needs, or options contradict each other.
pub(super) fn meaning(typed: Typed) -> Result<(Common, Task), CliError> {
    let GlobalArgs { verbose, quiet, no_color } = typed.global;
    let loudness = match (quiet, verbose) {
        (true, _) => Loudness::Quiet,
        (false, 0) => Loudness::Normal,
        (false, 1) => Loudness::Verbose,
        (false, _) => Loudness::Debug,
    };
    let task = match typed.command {
        CommandArgs::Plan(args) => Task::Plan(plan(args)?),
        CommandArgs::Show(ShowArgs { plan, view: typed }) => {
            Task::Show(ShowSettings { plan, view: view(&typed)? })
        }
        CommandArgs::Apply(args) => Task::Apply(apply(args)?),
        CommandArgs::Diff(DiffArgs { a, b, format, detailed_exitcode }) => {
            let format = of_format(format.format);
            Task::Diff(DiffSettings { a, b, format, detailed_exitcode })
        }
        CommandArgs::Drift(args) => {
            let DriftArgs { path, planning: typed, format, detailed_exitcode } = args;
            let (planning, format) = (planning(path, typed)?, of_format(format.format));
            Task::Drift(DriftSettings { planning, format, detailed_exitcode })
        }
        CommandArgs::Approve(ApproveArgs { plan, by, key, out }) => {
            Task::Approve(ApproveSettings { plan, by, key, out })
        }
        #[cfg(feature = "live")]
        CommandArgs::Comment(args) => Task::Comment(comment(args)),
        CommandArgs::Policy(PolicyArgs::Test(PolicyTestArgs { directories })) => {
            Task::PolicyTest(PolicyTestSettings { directories })
        }
        CommandArgs::Adopt(args) => Task::Adopt(adopt(args)?),
        CommandArgs::Observe(args) => Task::Observe(observe(args)?),
        #[cfg(feature = "cluster")]
        CommandArgs::Preflight(args) => Task::Preflight(of_source(args.path, args.source)),
        #[cfg(feature = "sandbox")]
        CommandArgs::Sandbox(args) => Task::Sandbox(SandboxSettings {
            source: of_source(args.path, args.source),
            port: args.port,
            page: args.page,
            speed: args.speed,
        }),
        CommandArgs::Run(args) => Task::Run(run(args)?),
        CommandArgs::Validate(ValidateArgs { path, source, format }) => {
            let source = of_source(path, source);
            Task::Validate(ValidateSettings { source, format: of_format(format.format) })
        }
        CommandArgs::Catalog(CatalogArgs::List(args)) => Task::CatalogList(catalog_list(args)?),
        CommandArgs::Catalog(CatalogArgs::Explain(args)) => {
            let CatalogExplainArgs { name, region: typed } = args;
            let (name, region) = (name.into(), region(typed)?);
            Task::CatalogExplain(CatalogExplainSettings { name, region })
        }
        CommandArgs::Forecast(args) => Task::Forecast(forecast(args)?),
        CommandArgs::Explain(args) => Task::Explain(explain(args)?),
        CommandArgs::Completions(args) => Task::Completions(args.shell),
    };
    Ok((Common { loudness, no_color }, task))
}

#[cfg(feature = "live")]
fn comment(args: super::args::CommentArgs) -> CommentSettings {
    let super::args::CommentArgs {
        plan,
        receipt,
        approval: approvals,
        failed,
        repository,
        pull,
        status,
        dry_run,
    } = args;
    let about = match (plan, failed) {
        (Some(plan), _) => About::Plan { plan, receipt, approvals },
        // The arguments want one of both.
        (None, why) => About::Failure(why.unwrap_or_default()),
    };
    CommentSettings { about, repository, pull, status, dry_run }
}

fn plan(args: PlanArgs) -> Result<PlanSettings, CliError> {
    let PlanArgs {
        path,
        planning: typed,
        out,
        view: typed_view,
        detailed_exitcode,
        #[cfg(feature = "page")]
        serve,
    } = args;
    let planning = planning(path, typed)?;
    Ok(PlanSettings {
        planning,
        out,
        view: view(&typed_view)?,
        detailed_exitcode,
        #[cfg(feature = "page")]
        serve,
    })
}

fn planning(path: PathBuf, args: PlanningArgs) -> Result<PlanningSettings, CliError> {
    let PlanningArgs { source, world, at, demand, steer, target, exclude, replace, compare, guard } =
        args;
    let guard = of_guard(guard, compare.as_deref());
    Ok(PlanningSettings {
        source: of_source(path, source),
        world: world.as_deref().map(WorldChoice::parse).transpose()?,
        at: moment("--at", at.as_deref())?,
        demand: demand.map(mode),
        steer,
        scope: Scope {
            target: addresses(target)?,
            exclude: addresses(exclude)?,
            replace: addresses(replace)?,
            only: None,
        },
        compare,
        guard,
    })
}

/// What guards a change is read from what it is compared with, unless somebody says otherwise.
fn of_guard(args: GuardArgs, compare: Option<&str>) -> GuardChoice {
    let GuardArgs { policy, policy_data, guard_ref } = args;
    let revision = guard_ref.or_else(|| compare.map(str::to_owned));
    GuardChoice { policies: policy, data: policy_data, revision }
}

fn mode(demand: DemandArg) -> DemandMode {
    match demand {
        DemandArg::Floor => DemandMode::Floor,
        DemandArg::Live => DemandMode::Live,
        DemandArg::Ceiling => DemandMode::Ceiling,
    }
}

fn forecast(args: ForecastArgs) -> Result<ForecastSettings, CliError> {
    let ForecastArgs { path, source, world, from, to, demand, format } = args;
    Ok(ForecastSettings {
        source: of_source(path, source),
        world: world.as_deref().map(WorldChoice::parse).transpose()?,
        from: moment("--from", from.as_deref())?,
        to: moment("--to", to.as_deref())?,
        demand: demand.map(mode),
        format: of_format(format.format),
    })
}

fn of_source(path: PathBuf, SourceArgs { revision }: SourceArgs) -> SourceSettings {
    SourceSettings { path, revision }
}

fn of_format(format: FormatArg) -> Format {
    match format {
        FormatArg::Text => Format::Text,
        FormatArg::Json => Format::Json,
    }
}

fn view(args: &ViewArgs) -> Result<View, CliError> {
    let ViewArgs { format, json, concise, summary } = args;
    let verbosity = match (concise, summary) {
        (_, true) => Verbosity::Summary,
        (true, false) => Verbosity::Concise,
        (false, false) => Verbosity::Full,
    };
    let view = match format {
        _ if *json => View::Stream,
        PlanFormatArg::Text => return Ok(View::Text(verbosity)),
        PlanFormatArg::Json => View::Json,
        PlanFormatArg::Markdown => View::Markdown,
        PlanFormatArg::Html => View::Html,
        PlanFormatArg::Github => View::Github,
    };
    if verbosity != Verbosity::Full {
        return Err(CliError::text(
            "--concise and --summary shorten text; other formats are whole",
        )
        .hint("leave them out, or leave --format and --json out"));
    }
    Ok(view)
}

/// Reads the moment that `option` names, where it is given.
fn moment(option: &str, text: Option<&str>) -> Result<Option<Timestamp>, CliError> {
    let read = |text: &str| {
        text.parse().map_err(|error: jiff::Error| {
            CliError::new(error)
                .context(format!("{option} `{text}` is not a moment"))
                .hint("write it as RFC 3339 does, with an offset: 2026-09-01T10:00:00Z")
        })
    };
    text.map(read).transpose()
}

fn addresses(texts: Vec<String>) -> Result<Vec<String>, CliError> {
    texts.into_iter().map(|text| address(&text)).collect()
}

/// Returns an address as plans write it: `TYPE.NAME`, or `TYPE.NAME["KEY"]`.
///
/// A shell takes the quotes out of an address that is not quoted itself, so `TYPE.NAME[KEY]` is
/// taken for what it was.
fn address(text: &str) -> Result<String, CliError> {
    let wrong = || {
        CliError::text(format!("`{text}` is not the address of a node or pool"))
            .hint("write it as a plan shows it, in single quotes: 'ec2_instance.web[\"0\"]'")
    };
    let kinds =
        [ResourceKind::Ec2Instance, ResourceKind::KubernetesNode, ResourceKind::AutoscalingGroup];
    let (kind, rest) = text.split_once('.').ok_or_else(wrong)?;
    if !kinds.iter().any(|known| known.as_str() == kind) {
        return Err(wrong());
    }
    let (name, key) = match rest.strip_suffix(']') {
        None => (rest, None),
        Some(inner) => {
            let (name, key) = inner.split_once('[').ok_or_else(wrong)?;
            let quoted = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
            (name, Some(quoted.unwrap_or(key)))
        }
    };
    let plain = |part: &str| !part.is_empty() && !part.contains(['[', ']', '"']);
    match key {
        None if plain(name) => Ok(format!("{kind}.{name}")),
        Some(key) if plain(name) && plain(key) => Ok(format!("{kind}.{name}[\"{key}\"]")),
        _ => Err(wrong()),
    }
}

fn apply(args: ApplyArgs) -> Result<ApplySettings, CliError> {
    let ApplyArgs {
        subject,
        planning: typed,
        auto_approve,
        json,
        receipt,
        approval,
        lock_timeout,
        approved_digest,
    } = args;
    let approved_digest = approved_digest.as_deref().map(digest).transpose()?;
    // A directory is planned; anything else, missing or not, was meant as a saved plan.
    let (guard, subject) = if subject.is_dir() {
        let planning = planning(subject, typed)?;
        (planning.guard.clone(), Subject::Fresh(Box::new(planning)))
    } else {
        let world = typed.world.as_deref().map(WorldChoice::parse).transpose()?;
        refuse_planning(&typed)?;
        (of_guard(typed.guard, None), Subject::Saved { plan: subject, world })
    };
    let lock_timeout = duration("--lock-timeout", &lock_timeout)?;
    Ok(ApplySettings {
        subject,
        auto_approve,
        approved_digest,
        approvals: approval,
        form: if json { Form::Stream } else { Form::Lines },
        receipt,
        guard,
        lock_timeout,
    })
}

/// Reads a duration such as `30s` or `1h 30m`, which is not negative.
fn duration(option: &str, text: &str) -> Result<std::time::Duration, CliError> {
    let read = text.parse::<jiff::SignedDuration>().ok();
    read.and_then(|duration| std::time::Duration::try_from(duration).ok()).ok_or_else(|| {
        CliError::text(format!("{option} is `{text}`, not a duration"))
            .hint("write it as 30s, 5m or 1h30m")
    })
}

/// Refuses options that a saved plan has long decided: to ignore one would apply something else
/// than what the caller asked for.
fn refuse_planning(args: &PlanningArgs) -> Result<(), CliError> {
    let PlanningArgs {
        source,
        world: _,
        at,
        demand,
        steer,
        target,
        exclude,
        replace,
        compare,
        guard: _,
    } = args;
    let given = [
        (source.revision.is_some(), "--ref"),
        (compare.is_some(), "--compare"),
        (at.is_some(), "--at"),
        (demand.is_some(), "--demand"),
        (*steer, "--steer"),
        (!target.is_empty(), "--target"),
        (!exclude.is_empty(), "--exclude"),
        (!replace.is_empty(), "--replace"),
    ];
    match given.iter().find(|(is_given, _)| *is_given) {
        None => Ok(()),
        Some((_, option)) => Err(no_effect(option)),
    }
}

fn no_effect(option: &str) -> CliError {
    CliError::text(format!("{option} has no effect on a saved plan"))
        .hint("plan again with the option, or name a directory instead of a plan")
}

fn digest(text: &str) -> Result<Digest, CliError> {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    let is_hex = hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if hex.len() == 64 && is_hex {
        return Ok(text.into());
    }
    Err(CliError::text(format!("`{text}` is not the digest of a plan"))
        .hint("write sha256: and all 64 hex digits, as `show --format json` has them"))
}

/// The variable that may hold the secret of webhooks.
#[cfg(feature = "page")]
const WEBHOOK_VARIABLE: &str = "FLEETWRIGHT_WEBHOOK_SECRET";

/// Reads what webhooks are signed with: of a file, else of a variable, else they are not heard.
#[cfg(feature = "page")]
fn webhook(
    file: Option<&std::path::Path>,
    variable: Option<String>,
) -> Result<Option<crate::listen::Secrets>, CliError> {
    let read = |text: &str, from: &str| {
        crate::listen::Secrets::read(text)
            .map(Some)
            .map_err(|why| CliError::text(format!("{from} cannot be used: {why}")))
    };
    match (file, variable.filter(|text| !text.trim().is_empty())) {
        (Some(file), _) => {
            let name = format!("the secret of webhooks in `{}`", file.display());
            let text = std::fs::read_to_string(file).map_err(|error| {
                CliError::text(format!("{name} cannot be read: {error}"))
                    .hint("name a file that holds the secret, and nothing else")
            })?;
            read(&text, &name)
        }
        (None, Some(text)) => read(&text, &format!("the secret in {WEBHOOK_VARIABLE}")),
        (None, None) => Ok(None),
    }
}

fn run(args: RunArgs) -> Result<RunSettings, CliError> {
    let RunArgs {
        path,
        source,
        world,
        mode,
        once,
        #[cfg(feature = "page")]
        listen,
        #[cfg(feature = "page")]
        listen_name,
        #[cfg(feature = "page")]
        webhook_secret,
        log_format,
        speed,
        lock_timeout,
    } = args;
    let mode = mode.map(|mode| match mode {
        ModeArg::Observe => Mode::Observe,
        ModeArg::Additive => Mode::Additive,
        ModeArg::Full => Mode::Full,
    });
    Ok(RunSettings {
        source: of_source(path, source),
        world: world.as_deref().map(WorldChoice::parse).transpose()?,
        mode,
        once,
        #[cfg(feature = "page")]
        listen,
        #[cfg(feature = "page")]
        listen_names: listen_name,
        #[cfg(feature = "page")]
        webhook: webhook(webhook_secret.as_deref(), std::env::var(WEBHOOK_VARIABLE).ok())?,
        log_format: match log_format {
            LogFormatArg::Text => LogFormat::Text,
            LogFormatArg::Json => LogFormat::Json,
        },
        speed,
        lock_timeout: duration("--lock-timeout", &lock_timeout)?,
    })
}

fn adopt(args: AdoptArgs) -> Result<AdoptSettings, CliError> {
    let AdoptArgs { path, source, world, auto_approve, approved_digest, format } = args;
    Ok(AdoptSettings {
        source: of_source(path, source),
        world: world.as_deref().map(WorldChoice::parse).transpose()?,
        auto_approve,
        approved_digest: approved_digest.as_deref().map(digest).transpose()?,
        format: of_format(format.format),
    })
}

fn observe(args: ObserveArgs) -> Result<ObserveSettings, CliError> {
    let ObserveArgs { path, source, world, out, differences, format } = args;
    let differences = differences.then(|| of_format(format));
    let world = world.as_deref().map(WorldChoice::parse).transpose()?;
    Ok(ObserveSettings { source: of_source(path, source), world, out, differences })
}

fn catalog_list(args: CatalogListArgs) -> Result<CatalogListSettings, CliError> {
    let CatalogListArgs { selector, sort, limit, allocatable, region: typed } = args;
    let mut requirements = Requirements::default();
    for text in selector {
        requirements = requirements.and(&text.parse()?);
    }
    let limit = limit.unwrap_or(usize::MAX);
    let sort = sort.unwrap_or(if allocatable { SortArg::Name } else { SortArg::Price });
    Ok(CatalogListSettings { requirements, sort, limit, allocatable, region: region(typed)? })
}

fn region(args: RegionArgs) -> Result<RegionSettings, CliError> {
    let format = of_format(args.format.format);
    let RegionArgs { region, ami_family, max_pods, pods_per_core, prefix_delegation, .. } = args;
    if let Some(name) = args.pool {
        let source = SourceSettings { path: args.path, revision: None };
        let world = args.world.as_deref().map(WorldChoice::parse).transpose()?;
        return Ok(RegionSettings {
            node: NodeSource::Pool { name: name.into(), source, world },
            format,
        });
    }
    let family = match ami_family {
        FamilyArg::Al2 => AmiFamily::Al2,
        FamilyArg::Al2023 => AmiFamily::Al2023,
        FamilyArg::Bottlerocket => AmiFamily::Bottlerocket,
        FamilyArg::Windows => AmiFamily::Windows,
    };
    let kubelet = KubeletSettings { max_pods, pods_per_core, ..KubeletSettings::default() };
    let node = NodeSettings { family, kubelet, prefix_delegation, ..NodeSettings::default() };
    let node = NodeSource::Typed { region: region.into(), node: Box::new(node) };
    Ok(RegionSettings { node, format })
}

fn explain(args: ExplainArgs) -> Result<ExplainSettings, CliError> {
    let ExplainArgs { what, path, plan, planning: typed, format } = args;
    let plan = match plan {
        None => PlanSource::Fresh(Box::new(planning(path, typed)?)),
        Some(plan) => {
            if typed.world.is_some() {
                return Err(no_effect("--world"));
            }
            refuse_planning(&typed)?;
            PlanSource::Saved(plan)
        }
    };
    Ok(ExplainSettings { what, plan, format: of_format(format.format) })
}
