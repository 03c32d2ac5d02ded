//! What was typed, understood: every text became a value, every contradiction an error.

mod catalog;
mod planning;
mod run;
mod texts;

pub(super) use catalog::{CatalogExplainSettings, CatalogListSettings, NodeSource, RegionSettings};
pub(super) use planning::{GuardChoice, PlanningSettings, SourceSettings};
pub(super) use run::RunSettings;

use std::path::PathBuf;

use jiff::Timestamp;

use super::args::{
    AdoptArgs, ApplyArgs, ApproveArgs, CatalogArgs, CommandArgs, DiffArgs, DriftArgs, ExplainArgs,
    ForecastArgs, FormatArg, GlobalArgs, ObserveArgs, PlanArgs, PlanFormatArg, PolicyArgs,
    PolicyTestArgs, ShowArgs, Typed, ValidateArgs, ViewArgs,
};
use super::error::CliError;
use super::progress::Form;
use super::world::WorldChoice;
use crate::demand::DemandMode;
use crate::ids::Digest;
use crate::render::Verbosity;
use crate::telemetry::Loudness;
use catalog::{catalog_explain, catalog_list};
use planning::{mode, no_effect, of_guard, of_source, planning, refuse_planning};
use run::run;
use texts::{digest, duration, moment};

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
    /// Whether to keep what nodes report in the repository.
    pub(super) learn: bool,
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
            Task::CatalogExplain(catalog_explain(args)?)
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
    let ObserveArgs { path, source, world, out, differences, learn, format } = args;
    let differences = differences.then(|| of_format(format));
    let world = world.as_deref().map(WorldChoice::parse).transpose()?;
    Ok(ObserveSettings { source: of_source(path, source), world, out, differences, learn })
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
