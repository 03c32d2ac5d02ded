//! What was typed: options as text, with their help. What they mean is decided in `settings`.

mod catalog;
mod planning;
mod run;

pub(super) use catalog::{
    CatalogArgs, CatalogExplainArgs, CatalogListArgs, FamilyArg, RegionArgs, SortArg,
};
pub(super) use planning::{DemandArg, GuardArgs, PlanningArgs, SourceArgs};
pub(super) use run::{LogFormatArg, ModeArg, RunArgs};

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};

const EXAMPLES: &str = "\
Examples:
  fleetwright plan                                  what this directory needs, from nothing
  fleetwright plan --world sim:world --out p.json   against an embedded cluster, saved
  fleetwright apply p.json                          carry exactly that plan out
  fleetwright explain web/api --plan p.json         why these pods are where they are

Exit codes:
  0 done, nothing to do · 1 error · 2 changes (--detailed-exitcode) · 3 stale · 4 locked
  5 approval missing · 6 denied by policy · 7 partly applied · 8 outside the window
  9 plan unreadable · 10 other cluster · 11 expired · 130 interrupted";

/// Node capacity as code: plan, review and apply the EC2 fleet that the workloads of a Git
/// repository need.
#[derive(Debug, Parser)]
#[command(name = "fleetwright", version, after_help = EXAMPLES)]
pub(super) struct Typed {
    #[command(flatten)]
    pub(super) global: GlobalArgs,
    #[command(subcommand)]
    pub(super) command: CommandArgs,
}

#[derive(Debug, Args)]
pub(super) struct GlobalArgs {
    /// Log each step to stderr; twice: everything that helps to find a fault
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(super) verbose: u8,
    /// Log errors alone
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(super) quiet: bool,
    /// Write no colours, whatever the terminal can do (as `NO_COLOR` does)
    #[arg(long, global = true)]
    pub(super) no_color: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum CommandArgs {
    /// Compare what the repository asks for with what runs, and show or save the difference
    Plan(PlanArgs),
    /// Show a saved plan again
    Show(ShowArgs),
    /// Show what differs between two saved plans
    Diff(DiffArgs),
    /// Show what moved outside Git; nothing it shows can be applied
    Drift(DriftArgs),
    /// Approve a saved plan, in a file that `apply` reads
    Approve(ApproveArgs),
    /// Carry a plan out; without a saved one: plan, show, ask
    Apply(ApplyArgs),
    /// Take over nodes that Karpenter left, without replacing them
    Adopt(AdoptArgs),
    /// Save what runs as a world file
    Observe(ObserveArgs),
    /// Check that everything is in place to plan and apply live, and say what to do where not
    #[cfg(feature = "cluster")]
    Preflight(PreflightArgs),
    /// Serve an embedded cluster on this machine, with the repository's workloads, for a first try
    #[cfg(feature = "sandbox")]
    Sandbox(SandboxArgs),
    /// Keep what runs together with the repository, for as long as it lives
    Run(RunArgs),
    /// Read everything and report every problem, with file and line
    Validate(ValidateArgs),
    /// Keep the one comment of a pull request up to date, and the summary and outputs of a job
    #[cfg(feature = "live")]
    Comment(CommentArgs),
    /// Work with policies
    #[command(subcommand)]
    Policy(PolicyArgs),
    /// Look at instance types, what their nodes offer to pods, and prices
    #[command(subcommand)]
    Catalog(CatalogArgs),
    /// List the moments at which the needed fleet changes by the clock, with nodes and dollars
    Forecast(ForecastArgs),
    /// Say why a pod or a node of a plan is as it is
    Explain(ExplainArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
}

/// How a plan is shown.
#[derive(Debug, Args)]
pub(super) struct ViewArgs {
    /// How to write the plan
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = PlanFormatArg::Text)]
    pub(super) format: PlanFormatArg,
    /// Write a stream of messages, one JSON object a line, as `terraform plan -json` does
    #[arg(long, conflicts_with = "format")]
    pub(super) json: bool,
    /// Show head and table alone
    #[arg(long, conflicts_with = "summary")]
    pub(super) concise: bool,
    /// Show the head alone
    #[arg(long)]
    pub(super) summary: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PlanFormatArg {
    /// For people at a terminal
    Text,
    /// The plan itself; stable
    Json,
    /// For a comment: at most 60,000 characters
    Markdown,
    /// A page that needs nothing else
    Html,
    /// Annotations of a GitHub workflow, at the lines that cause changes
    Github,
}

#[derive(Debug, Args)]
pub(super) struct FormatArgs {
    /// How to write the result
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = FormatArg::Text)]
    pub(super) format: FormatArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum FormatArg {
    /// For people
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
    /// End with 2 where there are changes, and 0 where there are none
    #[arg(long)]
    pub(super) detailed_exitcode: bool,
    /// Show the plan as a page that follows the files, until Ctrl-C [default address: 127.0.0.1:8080]
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
    /// End with 2 where the plans do not decide the same
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
    /// End with 2 where anything moved
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
    /// Who approves
    #[arg(long, value_name = "NAME")]
    pub(super) by: String,
    /// Sign with this Ed25519 private key (PEM, PKCS #8)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) key: Option<PathBuf>,
    /// Add the approval to this file, which is made when absent
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
    /// What `apply --receipt` wrote: then the comment is the receipt
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) receipt: Option<PathBuf>,
    /// Approvals that `fleetwright approve` wrote (repeatable)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) approval: Vec<PathBuf>,
    /// Instead of a plan, say what failed: what the comment shows is out of date then
    #[arg(long, value_name = "WHY", conflicts_with_all = ["plan", "receipt", "approval", "dry_run"])]
    pub(super) failed: Option<String>,
    /// Repository [default: that of the workflow]
    #[arg(long, value_name = "OWNER/NAME")]
    pub(super) repository: Option<String>,
    /// Pull request [default: that of the workflow's event]
    #[arg(long, value_name = "NUMBER")]
    pub(super) pull: Option<u64>,
    /// Set the commit status of this commit too
    #[arg(long, value_name = "COMMIT")]
    pub(super) status: Option<String>,
    /// Print the comment, and write it nowhere
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
    /// Directories of Rego
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
  fleetwright apply p.json                                   ask, then carry the saved plan out
  fleetwright apply p.json --approved-digest sha256:9b1e…    in CI: exactly what was approved
  fleetwright apply . --world sim:world --auto-approve       plan and apply at once")]
pub(super) struct ApplyArgs {
    /// A plan that `plan --out` saved, or a directory to plan first
    #[arg(value_name = "PLAN|PATH", default_value = ".", value_hint = ValueHint::AnyPath)]
    pub(super) subject: PathBuf,
    #[command(flatten)]
    pub(super) planning: PlanningArgs,
    /// Do not ask
    #[arg(long)]
    pub(super) auto_approve: bool,
    /// Write a stream of messages to stdout, one JSON object a line, as `terraform apply -json` does
    #[arg(long)]
    pub(super) json: bool,
    /// Write what was done to this file, as JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) receipt: Option<PathBuf>,
    /// Approvals that `fleetwright approve` wrote (repeatable)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) approval: Vec<PathBuf>,
    /// Wait so long while another apply holds the lock of the cluster, such as 30s or 10m
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub(super) lock_timeout: String,
    /// Apply the plan only if it has this digest, which is then taken as approved
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
    /// Show instead where EC2, Auto Scaling and Kubernetes say different things of a machine
    #[arg(long)]
    pub(super) differences: bool,
    /// Keep what nodes report in fleetwright.learned.json of PATH, which plans read where no such node runs
    #[arg(long, conflicts_with_all = ["differences", "revision"])]
    pub(super) learn: bool,
    /// How differences are shown
    #[arg(long, value_enum, value_name = "FORMAT", requires = "differences", default_value_t = FormatArg::Text)]
    pub(super) format: FormatArg,
}

#[cfg(feature = "cluster")]
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is changed: launches and terminations are asked for as dry runs. Ends with 5 where anything is
missing.")]
pub(super) struct PreflightArgs {
    /// Directory or Git work tree with the pools and node classes
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) source: SourceArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A node is taken over into the pool that its label names, where the repository declares that pool: its
instance gets three tags, and nothing else changes. It refuses while Karpenter runs.")]
pub(super) struct AdoptArgs {
    /// Directory, Git work tree or URL with the pools
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) source: SourceArgs,
    /// What runs [default: spec.world of fleetwright.yaml]
    #[arg(long, value_name = "live|sim:DIR")]
    pub(super) world: Option<String>,
    /// Do not ask
    #[arg(long)]
    pub(super) auto_approve: bool,
    /// Take over only what has this digest, which is then taken as approved
    #[arg(long, value_name = "DIGEST")]
    pub(super) approved_digest: Option<String>,
    #[command(flatten)]
    pub(super) format: FormatArgs,
}

#[cfg(feature = "sandbox")]
#[derive(Debug, Args)]
#[command(after_help = "\
Runs until Ctrl-C; nothing is kept. It begins with the embedded world that fleetwright.yaml names, or
with no node, and delivers the workloads again whenever the files change. It listens on 127.0.0.1
alone, and lets everybody there do everything.")]
pub(super) struct SandboxArgs {
    /// Directory or Git work tree with the workloads and pools
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) source: SourceArgs,
    /// Serve the Kubernetes API on this port [default: any that is free]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(super) port: u16,
    /// Show the page on this port [default: any that is free]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub(super) page: u16,
    /// Let machines boot and pods start this many times quicker
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
    /// What runs: `empty` (nothing), a world FILE that `observe` wrote, or `sim:DIR` [default:
    /// spec.world of fleetwright.yaml, else empty]
    #[arg(long, value_name = "empty|FILE|sim:DIR")]
    pub(super) world: Option<String>,
    /// When to begin (RFC 3339) [default: now; in sim:DIR the time of that world]
    #[arg(long, value_name = "TIME")]
    pub(super) from: Option<String>,
    /// When to end [default: seven days later]
    #[arg(long, value_name = "TIME")]
    pub(super) to: Option<String>,
    /// Which count of autoscaled workloads to look at [default: spec.demand.autoscaled of
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
    /// Directory or Git work tree to plan, where no saved plan is named
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
