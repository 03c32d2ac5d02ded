//! Arguments as they are typed, with their help. Their meaning is decided in `settings`.

mod catalog;
mod planning;
mod run;
mod top;

pub(super) use catalog::{
    CatalogArgs, CatalogExplainArgs, CatalogListArgs, FamilyArg, RegionArgs, SortArg,
};
pub(super) use planning::{DemandArg, GuardArgs, PlanningArgs, SourceArgs};
pub(super) use run::{LogFormatArg, ModeArg, RunArgs};
pub(super) use top::{TopArgs, TopSortArg};

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};

const EXAMPLES: &str = "\
Examples:
  fleetwright plan                                  what this directory needs, from nothing
  fleetwright plan --world sim:world --out p.json   against an embedded cluster, saved
  fleetwright apply p.json                          apply exactly that plan
  fleetwright explain web/api --plan p.json         why these pods are where they are

Exit codes:
  0 done, nothing to do · 1 error · 2 changes (--detailed-exitcode) · 3 stale · 4 locked
  5 approval missing · 6 denied by policy · 7 partly applied · 8 outside the window
  9 plan unreadable · 10 other cluster · 11 expired · 130 interrupted";

/// Node capacity as code: plan, review and apply the EC2 fleet that the workloads of a Git
/// repository need.
#[derive(Debug, Parser)]
#[command(name = "fleetwright", version, after_help = EXAMPLES)]
pub(super) struct CliArgs {
    #[command(flatten)]
    pub(super) global: GlobalArgs,
    #[command(subcommand)]
    pub(super) command: CommandArgs,
}

#[derive(Debug, Args)]
pub(super) struct GlobalArgs {
    /// Log each step to stderr; given twice, log details for debugging
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(super) verbose: u8,
    /// Log errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(super) quiet: bool,
    /// Write no colors, whatever the terminal supports (as `NO_COLOR` does)
    #[arg(long, global = true)]
    pub(super) no_color: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum CommandArgs {
    /// Compare the repository with the observed world, and show or save the difference
    Plan(PlanArgs),
    /// Show a saved plan
    Show(ShowArgs),
    /// Show the differences between two saved plans
    Diff(DiffArgs),
    /// Show changes made outside Git; the report cannot be applied
    Drift(DriftArgs),
    /// Approve a saved plan, in a file that `apply` reads
    Approve(ApproveArgs),
    /// Apply a saved plan; without one: plan, show and ask
    Apply(ApplyArgs),
    /// Take over nodes that Karpenter launched, without replacing them
    Adopt(AdoptArgs),
    /// Save the observed world as a file
    Observe(ObserveArgs),
    /// Show the nodes live: requests, prices, ages and planned changes
    Top(TopArgs),
    /// Check the requirements of planning and applying live, with a remedy for each missing one
    #[cfg(feature = "cluster")]
    Preflight(PreflightArgs),
    /// Serve an embedded cluster on this computer, with the workloads of the repository, for a
    /// first try
    #[cfg(feature = "sandbox")]
    Sandbox(SandboxArgs),
    /// Run the controller: continuously reconcile the cluster with the repository
    Run(RunArgs),
    /// Read everything and report every problem, with file and line
    Validate(ValidateArgs),
    /// Keep the comment of a pull request up to date, and the summary and outputs of its job
    #[cfg(feature = "live")]
    Comment(CommentArgs),
    /// Work with policies
    #[command(subcommand)]
    Policy(PolicyArgs),
    /// Show instance types, allocatable capacity and prices
    #[command(subcommand)]
    Catalog(CatalogArgs),
    /// List the times at which the needed fleet changes by schedule, with nodes and prices
    Forecast(ForecastArgs),
    /// Explain a pod or a node of a plan
    Explain(ExplainArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
}

/// The view of a plan.
#[derive(Debug, Args)]
pub(super) struct ViewArgs {
    /// Format of the plan
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = PlanFormatArg::Text)]
    pub(super) format: PlanFormatArg,
    /// Write a stream of messages, one JSON object per line, as `terraform plan -json` does
    #[arg(long, conflicts_with = "format")]
    pub(super) json: bool,
    /// Show header and table only
    #[arg(long, conflicts_with = "summary")]
    pub(super) concise: bool,
    /// Show the header only
    #[arg(long)]
    pub(super) summary: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PlanFormatArg {
    /// For a terminal
    Text,
    /// The plan itself; stable
    Json,
    /// For a comment: at most 60,000 characters
    Markdown,
    /// A self-contained page
    Html,
    /// Annotations of a GitHub workflow, at the lines that cause changes
    Github,
}

#[derive(Debug, Args)]
pub(super) struct FormatArgs {
    /// Format of the result
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = FormatArg::Text)]
    pub(super) format: FormatArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum FormatArg {
    /// For a terminal
    Text,
    /// For programs; stable
    Json,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fleetwright plan clusters/prod                        a directory of manifests
  fleetwright plan --ref main --world prod.json         a commit, against an observed world
  fleetwright plan --world sim:w --target ec2_instance.web --concise
  fleetwright plan --detailed-exitcode --format json    for CI: 2 where there are changes")]
pub(super) struct PlanArgs {
    /// Directory or Git work tree of manifests; its fleetwright.yaml holds the settings
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) planning: PlanningArgs,
    /// Save the plan for `apply` and `show`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) view: ViewArgs,
    /// Exit with 2 if there are changes, and with 0 if there are none
    #[arg(long)]
    pub(super) detailed_exitcode: bool,
    /// Serve the plan as a page that follows the files, until Ctrl-C [default address:
    /// 127.0.0.1:8080]
    #[cfg(feature = "page")]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "127.0.0.1:8080", conflicts_with_all = ["format", "json"])]
    pub(super) serve: Option<std::net::SocketAddr>,
}

#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// A saved plan
    #[arg(value_hint = ValueHint::FilePath)]
    pub(super) a: PathBuf,
    /// Another saved plan
    #[arg(value_hint = ValueHint::FilePath)]
    pub(super) b: PathBuf,
    #[command(flatten)]
    pub(super) format: FormatArgs,
    /// Exit with 2 if the plans decide differently
    #[arg(long)]
    pub(super) detailed_exitcode: bool,
}

#[derive(Debug, Args)]
pub(super) struct DriftArgs {
    /// Directory or Git work tree of manifests
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) planning: PlanningArgs,
    #[command(flatten)]
    pub(super) format: FormatArgs,
    /// Exit with 2 if anything changed outside Git
    #[arg(long)]
    pub(super) detailed_exitcode: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  openssl genpkey -algorithm ed25519 -out alice.pem       a key; its public half goes to spec.apply.keys
  fleetwright approve p.json --by alice --key alice.pem --out approvals.json
  fleetwright apply p.json --approval approvals.json")]
pub(super) struct ApproveArgs {
    /// A plan that `plan --out` saved
    #[arg(value_hint = ValueHint::FilePath)]
    pub(super) plan: PathBuf,
    /// Name of the approver
    #[arg(long, value_name = "NAME")]
    pub(super) by: String,
    /// Sign with this Ed25519 private key (PEM, PKCS #8)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) key: Option<PathBuf>,
    /// Add the approval to this file, which is created if missing
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) out: PathBuf,
}

#[cfg(feature = "live")]
#[derive(Debug, Args)]
#[command(after_help = "\
Environment: GITHUB_TOKEN (may write to pull requests), GITHUB_REPOSITORY, GITHUB_EVENT_PATH,
GITHUB_API_URL, GITHUB_STEP_SUMMARY, GITHUB_OUTPUT, as GitHub sets them.")]
pub(super) struct CommentArgs {
    /// A plan that `plan --out` saved
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(required_unless_present = "failed")]
    pub(super) plan: Option<PathBuf>,
    /// Receipt that `apply --receipt` wrote; the comment then shows it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) receipt: Option<PathBuf>,
    /// Approvals that `fleetwright approve` wrote (repeatable)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) approval: Vec<PathBuf>,
    /// Report this failure instead of a plan: the existing comment is out of date
    #[arg(long, value_name = "WHY", conflicts_with_all = ["plan", "receipt", "approval", "dry_run"])]
    pub(super) failed: Option<String>,
    /// Repository [default: the repository of the workflow]
    #[arg(long, value_name = "OWNER/NAME")]
    pub(super) repository: Option<String>,
    /// Pull request [default: the pull request of the workflow event]
    #[arg(long, value_name = "NUMBER")]
    pub(super) pull: Option<u64>,
    /// Set the commit status of this commit as well
    #[arg(long, value_name = "COMMIT")]
    pub(super) status: Option<String>,
    /// Print the comment, and do not write it
    #[arg(long)]
    pub(super) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum PolicyArgs {
    /// Run the tests of policies: rules named test_…
    Test(PolicyTestArgs),
}

#[derive(Debug, Args)]
pub(super) struct PolicyTestArgs {
    /// Directories of Rego files
    #[arg(default_value = "policies", value_hint = ValueHint::DirPath)]
    pub(super) directories: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// A plan that `plan --out` saved; - reads stdin
    #[arg(value_hint = ValueHint::FilePath)]
    pub(super) plan: PathBuf,
    #[command(flatten)]
    pub(super) view: ViewArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fleetwright apply p.json                                   ask, then apply the saved plan
  fleetwright apply p.json --approved-digest sha256:9b1e…    in CI: exactly what was approved
  fleetwright apply . --world sim:world --auto-approve       plan and apply at once")]
pub(super) struct ApplyArgs {
    /// A plan that `plan --out` saved, or a directory to plan first
    #[arg(value_name = "PLAN|PATH", default_value = ".", value_hint = ValueHint::AnyPath)]
    pub(super) subject: PathBuf,
    #[command(flatten)]
    pub(super) planning: PlanningArgs,
    /// Apply without asking for approval
    #[arg(long)]
    pub(super) auto_approve: bool,
    /// Write a stream of messages to stdout, one JSON object per line, as `terraform apply -json`
    /// does
    #[arg(long)]
    pub(super) json: bool,
    /// Write the receipt of the apply to this file, as JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) receipt: Option<PathBuf>,
    /// Approvals that `fleetwright approve` wrote (repeatable)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) approval: Vec<PathBuf>,
    /// Longest wait while another apply holds the lock of the cluster, such as 30s or 10m
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub(super) lock_timeout: String,
    /// Apply the plan only if it has this digest, which counts as approval
    #[arg(long, value_name = "DIGEST")]
    pub(super) approved_digest: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  fleetwright observe --world sim:world --out prod.json")]
pub(super) struct ObserveArgs {
    /// Directory whose fleetwright.yaml names the cluster
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) source: SourceArgs,
    /// The world to observe: live, sim:DIR, or a world FILE [default: spec.world of fleetwright.yaml]
    #[arg(long, value_name = "live|FILE|sim:DIR")]
    pub(super) world: Option<String>,
    /// Write the world file here instead of to stdout
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) out: Option<PathBuf>,
    /// Show instances and nodes on which EC2, Auto Scaling and Kubernetes disagree
    #[arg(long)]
    pub(super) differences: bool,
    /// Save the capacity that nodes report in fleetwright.learned.json of PATH; plans use it where
    /// no such node runs
    #[arg(long, conflicts_with_all = ["differences", "revision"])]
    pub(super) learn: bool,
    /// Format of the differences
    #[arg(long, value_enum, value_name = "FORMAT", requires = "differences", default_value_t = FormatArg::Text)]
    pub(super) format: FormatArg,
}

#[cfg(feature = "cluster")]
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is changed: launches and terminations are requested as dry runs. Exits with 5 if a requirement
is missing.")]
pub(super) struct PreflightArgs {
    /// Directory or Git work tree with the pools and node classes
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) source: SourceArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A node is adopted into the pool that its label names, if the repository declares that pool: its
instance gets three tags, and nothing else changes. Adoption is refused while Karpenter runs.")]
pub(super) struct AdoptArgs {
    /// Directory, Git work tree or URL with the pools
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) source: SourceArgs,
    /// World to change [default: spec.world of fleetwright.yaml]
    #[arg(long, value_name = "live|sim:DIR")]
    pub(super) world: Option<String>,
    /// Adopt without asking for approval
    #[arg(long)]
    pub(super) auto_approve: bool,
    /// Adopt only if the adoption has this digest, which counts as approval
    #[arg(long, value_name = "DIGEST")]
    pub(super) approved_digest: Option<String>,
    #[command(flatten)]
    pub(super) format: FormatArgs,
}

#[cfg(feature = "sandbox")]
#[derive(Debug, Args)]
#[command(after_help = "\
Runs until Ctrl-C; nothing is saved. It starts with the embedded world that fleetwright.yaml names, or
without nodes, and delivers the workloads again whenever the files change. It listens on 127.0.0.1
only, without authentication.")]
pub(super) struct SandboxArgs {
    /// Directory or Git work tree with the workloads and pools
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) source: SourceArgs,
    /// Serve the Kubernetes API on this port [default: a free port]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(super) port: u16,
    /// Serve the page on this port [default: a free port]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub(super) page: u16,
    /// Boot instances and start pods this many times faster
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) speed: u32,
}

#[derive(Debug, Args)]
pub(super) struct ValidateArgs {
    /// Directory or Git work tree of manifests
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) source: SourceArgs,
    #[command(flatten)]
    pub(super) format: FormatArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fleetwright forecast clusters/prod                          the coming week
  fleetwright forecast --from 2026-11-23T00:00:00Z --to 2026-11-24T00:00:00Z --format json")]
pub(super) struct ForecastArgs {
    /// Directory or Git work tree of manifests
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) source: SourceArgs,
    /// World to plan over: `empty`, a world FILE that `observe` wrote, or `sim:DIR` [default:
    /// spec.world of fleetwright.yaml, else empty]
    #[arg(long, value_name = "empty|FILE|sim:DIR")]
    pub(super) world: Option<String>,
    /// Start of the forecast (RFC 3339) [default: now; in sim:DIR the time of that world]
    #[arg(long, value_name = "TIME")]
    pub(super) from: Option<String>,
    /// End of the forecast [default: seven days after the start]
    #[arg(long, value_name = "TIME")]
    pub(super) to: Option<String>,
    /// Count of autoscaled workloads to plan for [default: spec.demand.autoscaled of
    /// fleetwright.yaml, else live]
    #[arg(long, value_enum, value_name = "COUNT")]
    pub(super) demand: Option<DemandArg>,
    #[command(flatten)]
    pub(super) format: FormatArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fleetwright explain web/api --plan p.json
  fleetwright explain 'ec2_instance.web[\"0\"]' --plan p.json
  fleetwright explain i-0abc clusters/prod --world prod.json")]
pub(super) struct ExplainArgs {
    /// A workload as NAME, NAMESPACE/NAME or NAMESPACE/KIND/NAME; or a node by its address, name or
    /// instance id
    pub(super) what: String,
    /// Directory or Git work tree to plan, without a saved plan
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    /// Explain this saved plan; - reads stdin
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) plan: Option<PathBuf>,
    #[command(flatten)]
    pub(super) planning: PlanningArgs,
    #[command(flatten)]
    pub(super) format: FormatArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  fleetwright completions bash > /etc/bash_completion.d/fleetwright")]
pub(super) struct CompletionsArgs {
    /// Shell
    #[arg(value_enum)]
    pub(super) shell: clap_complete::Shell,
}
