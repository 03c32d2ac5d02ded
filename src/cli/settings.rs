//! Settings: every argument as a value, every contradiction as an error.

mod bootstrap;
mod catalog;
#[cfg(feature = "live")]
mod comment;
mod parse;
mod planning;
mod run;
mod top;

pub(super) use bootstrap::{BootstrapSettings, CiHost, CiJobs, ControllerIdentity, QUEUE_PREFIX};
pub(super) use catalog::{CatalogExplainSettings, CatalogListSettings, NodeSource, RegionSettings};
#[cfg(feature = "live")]
pub(super) use comment::{CommentSettings, CommentSubject};
pub(super) use planning::{GuardChoice, PlanningSettings, SourceSettings};
pub(super) use run::RunSettings;
pub(super) use top::TopSettings;

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::args::{
    AdoptArgs, ApplyArgs, ApproveArgs, BootstrapArgs, CatalogArgs, CliArgs, CommandArgs, DiffArgs,
    DoctorArgs, DriftArgs, ExplainArgs, ForecastArgs, FormatArg, GlobalArgs, InitArgs, ObserveArgs,
    PlanArgs, PlanFormatArg, PolicyArgs, PolicyTestArgs, ShowArgs, ValidateArgs, ValidateFormatArg,
    ViewArgs,
};
use super::error::CliError;
use super::output::DocumentFormat;
use super::progress::ProgressFormat;
use super::world_choice::WorldChoice;
use crate::demand::DemandMode;
#[cfg(feature = "sandbox")]
use crate::model::desired::Mode;
use crate::model::ids::{Digest, PlanId};
use crate::plan::RowSelection;
use crate::render::Verbosity;
use crate::telemetry::LogLevel;
use bootstrap::bootstrap;
use catalog::{catalog_explain, catalog_list};
use parse::{digest, duration, moment, named_file, plan_id};
use planning::{demand_mode, guard_choice, no_effect, planning, refuse_planning, source_settings};
#[cfg(all(feature = "cluster", feature = "sandbox"))]
use run::mode;
use run::run;
use top::top;

/// The settings of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GlobalSettings {
    pub(super) loudness: LogLevel,
    pub(super) no_color: bool,
}

/// One command with its settings.
#[derive(Debug)]
pub(super) enum CommandSettings {
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
    Top(TopSettings),
    Run(RunSettings),
    Validate(ValidateSettings),
    CatalogList(CatalogListSettings),
    CatalogExplain(CatalogExplainSettings),
    #[cfg(feature = "live")]
    CatalogPrices(CatalogPricesSettings),
    Forecast(ForecastSettings),
    Explain(ExplainSettings),
    Init(InitSettings),
    /// The directory whose clusters are printed for a matrix of CI jobs.
    InitMatrix(PathBuf),
    Bootstrap(BootstrapSettings),
    #[cfg(feature = "live")]
    SourcesUpdate(SourcesUpdateSettings),
    Doctor(DoctorSettings),
    Completions(clap_complete::Shell),
    /// The directory of the man pages; `None` prints the page of the program.
    Man(Option<PathBuf>),
    Version(Format),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct InitSettings {
    pub(super) path: PathBuf,
    /// `None`: detected.
    pub(super) name: Option<String>,
    /// `None`: by the name.
    pub(super) destination: Option<String>,
    /// `None`: detected.
    pub(super) region: Option<String>,
    /// True if an existing file is overwritten.
    pub(super) force: bool,
}

#[cfg(feature = "live")]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SourcesUpdateSettings {
    pub(super) path: PathBuf,
    /// True if the lock file is checked and stays unchanged.
    pub(super) check: bool,
    /// The commit whose settings decide which hosts are reached. `None`: the files.
    pub(super) guard_ref: Option<String>,
}

#[cfg(feature = "live")]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CatalogPricesSettings {
    pub(super) path: PathBuf,
    /// True if the price file is checked and stays unchanged.
    pub(super) check: bool,
    /// The commit whose settings decide which hosts are reached. `None`: the files.
    pub(super) guard_ref: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct DoctorSettings {
    pub(super) path: PathBuf,
    pub(super) format: Format,
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

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PolicyTestSettings {
    pub(super) directories: Vec<PathBuf>,
}

/// The format of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Document(DocumentFormat),
}

/// The format of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlanView {
    Text(Verbosity),
    /// Text with more columns, in lines as long as they are.
    Wide(Verbosity),
    Document(DocumentFormat, RowSelection),
    Stream,
    Markdown,
    Html,
    Github,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlanSettings {
    pub(super) planning: PlanningSettings,
    pub(super) out: Option<PathBuf>,
    /// The rows of the saved file.
    pub(super) saved_rows: RowSelection,
    pub(super) view: PlanView,
    pub(super) detailed_exitcode: bool,
    /// The address of the page, which replaces the output.
    #[cfg(feature = "page")]
    pub(super) serve: Option<std::net::SocketAddr>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShowSettings {
    pub(super) plan: PathBuf,
    pub(super) view: PlanView,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ApplySettings {
    pub(super) subject: ApplySubject,
    pub(super) auto_approve: bool,
    pub(super) approved_digest: Option<Digest>,
    pub(super) approved_plan: Option<PlanId>,
    /// Approvers of `keys` who must approve; `None` if all must.
    pub(super) approvers_min: Option<u32>,
    pub(super) approvals: Vec<PathBuf>,
    /// The file of the receipt.
    pub(super) receipt: Option<PathBuf>,
    /// The format of progress.
    pub(super) form: ProgressFormat,
    pub(super) guard: GuardChoice,
    /// Names and files of public keys, which replace those of the settings.
    pub(super) keys: Vec<(String, PathBuf)>,
    /// The place whose settings, policies and files count.
    pub(super) caller: SourceSettings,
    /// The longest wait for the lock.
    pub(super) lock_timeout: std::time::Duration,
}

/// The plan to apply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ApplySubject {
    /// A saved plan.
    Saved {
        plan: PathBuf,
        /// The expected world, which must match the plan.
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
    /// The format of source disagreements, if requested.
    pub(super) differences: Option<Format>,
    /// True to save the capacity that nodes report.
    pub(super) learn: bool,
}

/// Settings of `sandbox`.
#[cfg(feature = "sandbox")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SandboxSettings {
    pub(super) source: SourceSettings,
    /// Port of the Kubernetes API; 0 selects a free port.
    pub(super) port: u16,
    /// Port of the page; 0 selects a free port.
    pub(super) page: u16,
    /// The mode of the controller. Without one, no controller runs.
    pub(super) mode: Option<Mode>,
    /// Speed factor of instance boot and pod start.
    pub(super) speed: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ValidateSettings {
    pub(super) source: SourceSettings,
    pub(super) view: ValidateView,
}

/// The format of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValidateView {
    Format(Format),
    /// SARIF 2.1.0.
    Sarif,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct AdoptSettings {
    pub(super) source: SourceSettings,
    pub(super) world: Option<WorldChoice>,
    pub(super) auto_approve: bool,
    pub(super) approved_digest: Option<Digest>,
    pub(super) format: Format,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ForecastSettings {
    pub(super) source: SourceSettings,
    pub(super) world: Option<WorldChoice>,
    /// `None`: now, or the time of the world.
    pub(super) from: Option<Timestamp>,
    /// `None`: a week later.
    pub(super) to: Option<Timestamp>,
    pub(super) demand: Option<DemandMode>,
    pub(super) format: Format,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExplainSettings {
    pub(super) query: String,
    pub(super) plan: PlanSource,
    pub(super) format: Format,
}

/// The plan to explain.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PlanSource {
    Saved(PathBuf),
    Fresh(Box<PlanningSettings>),
}

/// Converts arguments to settings.
///
/// # Errors
/// Fails if a value is malformed, or options contradict each other.
pub(super) fn resolve(typed: CliArgs) -> Result<(GlobalSettings, CommandSettings), CliError> {
    let GlobalArgs { verbose, quiet, no_color, help: _ } = typed.global;
    let loudness = match (quiet, verbose) {
        (true, _) => LogLevel::Quiet,
        (false, 0) => LogLevel::Normal,
        (false, 1) => LogLevel::Verbose,
        (false, _) => LogLevel::Debug,
    };
    let task = match typed.command {
        CommandArgs::Plan(args) => CommandSettings::Plan(plan(args)?),
        CommandArgs::Show(ShowArgs { plan, view: typed }) => {
            refuse_unused_selection(&typed, None)?;
            CommandSettings::Show(ShowSettings { plan, view: plan_view(&typed)? })
        }
        CommandArgs::Apply(args) => CommandSettings::Apply(apply(args)?),
        CommandArgs::Diff(DiffArgs { a, b, format, detailed_exitcode }) => {
            let format = to_format(format.format);
            CommandSettings::Diff(DiffSettings { a, b, format, detailed_exitcode })
        }
        CommandArgs::Drift(args) => {
            let DriftArgs { path, planning: typed, format, detailed_exitcode } = args;
            let (planning, format) = (planning(path, typed)?, to_format(format.format));
            CommandSettings::Drift(DriftSettings { planning, format, detailed_exitcode })
        }
        CommandArgs::Approve(ApproveArgs { plan, by, key, out }) => {
            CommandSettings::Approve(ApproveSettings { plan, by, key, out })
        }
        #[cfg(feature = "live")]
        CommandArgs::Comment(args) => CommandSettings::Comment(comment::comment(args)),
        CommandArgs::Policy(PolicyArgs::Test(PolicyTestArgs { directories })) => {
            CommandSettings::PolicyTest(PolicyTestSettings { directories })
        }
        CommandArgs::Adopt(args) => CommandSettings::Adopt(adopt(args)?),
        CommandArgs::Observe(args) => CommandSettings::Observe(observe(args)?),
        #[cfg(feature = "cluster")]
        CommandArgs::Preflight(args) => {
            CommandSettings::Preflight(source_settings(args.path, args.source))
        }
        #[cfg(feature = "sandbox")]
        CommandArgs::Sandbox(args) => CommandSettings::Sandbox(sandbox(args)),
        CommandArgs::Top(args) => CommandSettings::Top(top(args)?),
        CommandArgs::Run(args) => CommandSettings::Run(run(args)?),
        CommandArgs::Validate(ValidateArgs { path, source, format }) => {
            let source = source_settings(path, source);
            CommandSettings::Validate(ValidateSettings { source, view: validate_view(format) })
        }
        CommandArgs::Catalog(args) => catalog(args)?,
        CommandArgs::Forecast(args) => CommandSettings::Forecast(forecast(args)?),
        CommandArgs::Explain(args) => CommandSettings::Explain(explain(args)?),
        CommandArgs::Init(InitArgs { path, matrix: true, .. }) => CommandSettings::InitMatrix(path),
        CommandArgs::Init(InitArgs { path, name, destination, region, force, matrix: false }) => {
            CommandSettings::Init(InitSettings { path, name, destination, region, force })
        }
        CommandArgs::Bootstrap(BootstrapArgs::Aws(args)) => {
            CommandSettings::Bootstrap(bootstrap(args)?)
        }
        #[cfg(feature = "live")]
        CommandArgs::Sources(args) => sources(args),
        CommandArgs::Doctor(DoctorArgs { path, format }) => {
            CommandSettings::Doctor(DoctorSettings { path, format: to_format(format.format) })
        }
        CommandArgs::Completions(args) => CommandSettings::Completions(args.shell),
        CommandArgs::Man(args) => CommandSettings::Man(args.directory),
        CommandArgs::Version(args) => CommandSettings::Version(to_format(args.format.format)),
    };
    Ok((GlobalSettings { loudness, no_color }, task))
}

#[cfg(feature = "sandbox")]
fn sandbox(args: super::args::SandboxArgs) -> SandboxSettings {
    SandboxSettings {
        source: source_settings(args.path, args.source),
        port: args.port,
        page: args.page,
        #[cfg(feature = "cluster")]
        mode: (!args.no_controller).then(|| mode(args.mode)),
        #[cfg(not(feature = "cluster"))]
        mode: None,
        speed: args.speed,
    }
}

fn catalog(args: CatalogArgs) -> Result<CommandSettings, CliError> {
    Ok(match args {
        CatalogArgs::List(args) => CommandSettings::CatalogList(catalog_list(args)?),
        CatalogArgs::Explain(args) => CommandSettings::CatalogExplain(catalog_explain(args)?),
        #[cfg(feature = "live")]
        CatalogArgs::Prices(super::args::CatalogPricesArgs { path, check, guard_ref }) => {
            CommandSettings::CatalogPrices(CatalogPricesSettings { path, check, guard_ref })
        }
    })
}

#[cfg(feature = "live")]
fn sources(args: super::args::SourcesArgs) -> CommandSettings {
    let super::args::SourcesArgs::Update(args) = args;
    let super::args::SourcesUpdateArgs { path, check, guard_ref } = args;
    CommandSettings::SourcesUpdate(SourcesUpdateSettings { path, check, guard_ref })
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
    refuse_unused_selection(&typed_view, out.as_deref())?;
    Ok(PlanSettings {
        planning,
        out,
        saved_rows: selected_rows(&typed_view),
        view: plan_view(&typed_view)?,
        detailed_exitcode,
        #[cfg(feature = "page")]
        serve,
    })
}

fn forecast(args: ForecastArgs) -> Result<ForecastSettings, CliError> {
    let ForecastArgs { path, source, world, from, to, demand, format } = args;
    Ok(ForecastSettings {
        source: source_settings(path, source),
        world: world.as_deref().map(WorldChoice::parse).transpose()?,
        from: moment("--from", from.as_deref())?,
        to: moment("--to", to.as_deref())?,
        demand: demand.map(demand_mode),
        format: to_format(format.format),
    })
}

fn validate_view(format: ValidateFormatArg) -> ValidateView {
    ValidateView::Format(match format {
        ValidateFormatArg::Text => Format::Text,
        ValidateFormatArg::Json => Format::Document(DocumentFormat::Json),
        ValidateFormatArg::Yaml => Format::Document(DocumentFormat::Yaml),
        ValidateFormatArg::Sarif => return ValidateView::Sarif,
    })
}

fn to_format(format: FormatArg) -> Format {
    match format {
        FormatArg::Text => Format::Text,
        FormatArg::Json => Format::Document(DocumentFormat::Json),
        FormatArg::Yaml => Format::Document(DocumentFormat::Yaml),
    }
}

fn selected_rows(args: &ViewArgs) -> RowSelection {
    if args.changes_only { RowSelection::ChangesOnly } else { RowSelection::All }
}

/// Refuses `--changes-only` for a result that has no rows to leave out.
fn refuse_unused_selection(args: &ViewArgs, out: Option<&Path>) -> Result<(), CliError> {
    let is_document = matches!(args.format, PlanFormatArg::Json | PlanFormatArg::Yaml);
    if !args.changes_only || is_document || out.is_some() {
        return Ok(());
    }
    Err(CliError::text("--changes-only shortens JSON, YAML and the file of --out")
        .hint("add --format json; text already counts unchanged nodes in one line"))
}

fn plan_view(args: &ViewArgs) -> Result<PlanView, CliError> {
    let ViewArgs { format, json, changes_only: _, concise, summary } = args;
    let verbosity = match (concise, summary) {
        (_, true) => Verbosity::Summary,
        (true, false) => Verbosity::Concise,
        (false, false) => Verbosity::Full,
    };
    let view = match format {
        _ if *json => PlanView::Stream,
        PlanFormatArg::Text => return Ok(PlanView::Text(verbosity)),
        PlanFormatArg::Wide => return Ok(PlanView::Wide(verbosity)),
        PlanFormatArg::Json => PlanView::Document(DocumentFormat::Json, selected_rows(args)),
        PlanFormatArg::Yaml => PlanView::Document(DocumentFormat::Yaml, selected_rows(args)),
        PlanFormatArg::Markdown => PlanView::Markdown,
        PlanFormatArg::Html => PlanView::Html,
        PlanFormatArg::Github => PlanView::Github,
    };
    if verbosity != Verbosity::Full {
        return Err(CliError::text(
            "--concise and --summary shorten text; other formats are whole",
        )
        .hint("leave them out, or leave --format and --json out"));
    }
    Ok(view)
}

fn apply(args: ApplyArgs) -> Result<ApplySettings, CliError> {
    let ApplyArgs {
        subject,
        planning: typed,
        auto_approve,
        json,
        receipt,
        approval,
        approved_plan,
        approvals: approvers_min,
        key,
        path,
        lock_timeout,
        approved_digest,
    } = args;
    let approved_digest = approved_digest.as_deref().map(digest).transpose()?;
    // A directory is planned; any other path is a saved plan, even a missing one.
    let (guard, caller, subject) = if subject.is_dir() {
        if path.is_some() {
            let hint = "name one of them, or a saved plan before --path";
            return Err(CliError::text("a directory and --path are both given").hint(hint));
        }
        let planning = planning(subject, typed)?;
        let caller = planning.source.clone();
        (planning.guard.clone(), caller, ApplySubject::Fresh(Box::new(planning)))
    } else {
        let world = typed.world.as_deref().map(WorldChoice::parse).transpose()?;
        refuse_planning(&typed)?;
        let path = path.unwrap_or_else(|| PathBuf::from("."));
        let caller = SourceSettings { path, revision: None };
        (guard_choice(typed.guard, None), caller, ApplySubject::Saved { plan: subject, world })
    };
    let lock_timeout = duration("--lock-timeout", &lock_timeout)?;
    Ok(ApplySettings {
        subject,
        auto_approve,
        approved_digest,
        approved_plan: approved_plan.as_deref().map(plan_id).transpose()?,
        approvers_min,
        approvals: approval,
        form: if json { ProgressFormat::Stream } else { ProgressFormat::Lines },
        receipt,
        guard,
        keys: key.iter().map(|text| named_file(text)).collect::<Result<_, _>>()?,
        caller,
        lock_timeout,
    })
}

fn adopt(args: AdoptArgs) -> Result<AdoptSettings, CliError> {
    let AdoptArgs { path, source, world, auto_approve, approved_digest, format } = args;
    Ok(AdoptSettings {
        source: source_settings(path, source),
        world: world.as_deref().map(WorldChoice::parse).transpose()?,
        auto_approve,
        approved_digest: approved_digest.as_deref().map(digest).transpose()?,
        format: to_format(format.format),
    })
}

fn observe(args: ObserveArgs) -> Result<ObserveSettings, CliError> {
    let ObserveArgs { path, source, world, out, differences, learn, format } = args;
    let differences = differences.then(|| to_format(format));
    let world = world.as_deref().map(WorldChoice::parse).transpose()?;
    Ok(ObserveSettings { source: source_settings(path, source), world, out, differences, learn })
}

fn explain(args: ExplainArgs) -> Result<ExplainSettings, CliError> {
    let ExplainArgs { query, path, namespace, plan, planning: typed, format } = args;
    let query = match namespace {
        None => query,
        Some(namespace) if query.contains('/') => {
            return Err(CliError::text(format!(
                "`{query}` names a namespace, and -n names `{namespace}`"
            ))
            .hint("leave one of them out"));
        }
        Some(namespace) => format!("{namespace}/{query}"),
    };
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
    Ok(ExplainSettings { query, plan, format: to_format(format.format) })
}
