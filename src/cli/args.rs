//! Arguments as they are typed, with their help. Their meaning is decided in `settings`.

mod bootstrap;
mod catalog;
mod planning;
mod run;
mod setup;
mod top;
mod view;

pub(super) use bootstrap::{
    AllowArg, BootstrapArgs, BootstrapAwsArgs, CiArg, IdentityArg, TemplateFormatArg,
};
#[cfg(feature = "live")]
pub(super) use catalog::CatalogPricesArgs;
pub(super) use catalog::{
    CatalogArgs, CatalogExplainArgs, CatalogListArgs, FamilyArg, RegionArgs, SortArg,
};
pub(super) use planning::{ApplyArgs, DemandArg, GuardArgs, PlanArgs, PlanningArgs, SourceArgs};
pub(super) use run::{LogFormatArg, ModeArg, RunArgs};
#[cfg(feature = "cluster")]
pub(super) use setup::PreflightArgs;
#[cfg(feature = "sandbox")]
pub(super) use setup::SandboxArgs;
pub(super) use setup::{CompletionsArgs, DoctorArgs, InitArgs, ManArgs, VersionArgs};
#[cfg(feature = "live")]
pub(super) use setup::{SourcesArgs, SourcesUpdateArgs};
pub(super) use top::TopArgs;
pub(super) use view::{FormatArg, FormatArgs, PlanFormatArg, ValidateFormatArg, ViewArgs};

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueHint};

/// Node capacity as code: plan, review and apply EC2 nodes for the workloads of a Git repository.
///
/// `help.rs` groups the commands and adds the exit codes.
#[derive(Debug, Parser)]
#[command(name = "fleetwright", version, long_about = None)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(super) struct CliArgs {
    #[command(flatten)]
    pub(super) global: GlobalArgs,
    #[command(subcommand)]
    pub(super) command: CommandArgs,
    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, help_heading = GLOBAL)]
    pub(super) version: Option<bool>,
}

/// Heading of the options of every command.
const GLOBAL: &str = "Global options";

#[derive(Debug, Args)]
#[command(next_help_heading = GLOBAL)]
pub(super) struct GlobalArgs {
    /// Log each step to stderr, and list unchanged nodes; -vv for debugging
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(super) verbose: u8,
    /// Only log errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(super) quiet: bool,
    /// Write no colors, as with the variable `NO_COLOR`
    #[arg(long, global = true)]
    pub(super) no_color: bool,
    /// Print help; --help explains each option
    #[arg(short, long, global = true, action = ArgAction::Help)]
    pub(super) help: Option<bool>,
}

#[derive(Debug, Subcommand)]
pub(super) enum CommandArgs {
    /// Show what would change, and save it
    Plan(PlanArgs),
    /// Show a saved plan
    Show(ShowArgs),
    /// Compare two saved plans
    Diff(DiffArgs),
    /// Approve a saved plan
    Approve(ApproveArgs),
    /// Apply a saved plan, or plan and apply
    Apply(ApplyArgs),
    /// Post a plan on its pull request
    #[cfg(feature = "live")]
    Comment(CommentArgs),
    /// Explain a placement, a node or a pool
    Explain(ExplainArgs),
    /// Show changes made outside Git
    Drift(DriftArgs),
    /// Forecast scheduled capacity changes
    Forecast(ForecastArgs),
    /// Save the state of the cluster as a file
    Observe(ObserveArgs),
    /// Show the nodes of a cluster live
    Top(TopArgs),
    /// Report every problem in the files
    Validate(ValidateArgs),
    /// Show instance types, allocatable capacity and prices
    #[command(subcommand)]
    Catalog(CatalogArgs),
    /// Run the controller: keep the nodes in sync with Git
    Run(RunArgs),
    /// Serve an embedded cluster for a first try
    #[cfg(feature = "sandbox")]
    Sandbox(SandboxArgs),
    /// Write a fleetwright.yaml for a directory
    Init(InitArgs),
    /// Write templates that prepare an account
    #[command(subcommand)]
    Bootstrap(BootstrapArgs),
    /// Download charts and bases from elsewhere, and pin them
    #[cfg(feature = "live")]
    #[command(subcommand)]
    Sources(SourcesArgs),
    /// Check this computer: tools, settings, credentials
    Doctor(DoctorArgs),
    /// Check the cluster and the account: permissions, network, quotas
    #[cfg(feature = "cluster")]
    Preflight(PreflightArgs),
    /// Take over nodes that Karpenter launched
    Adopt(AdoptArgs),
    /// Test policies
    #[command(subcommand)]
    Policy(PolicyArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print or write man pages
    Man(ManArgs),
    /// Print version, commit and features
    Version(VersionArgs),
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
    #[command(flatten, next_help_heading = "Plan")]
    pub(super) planning: PlanningArgs,
    #[command(flatten, next_help_heading = "Output")]
    pub(super) format: FormatArgs,
    /// Exit with 2 if anything changed outside Git
    #[arg(long, help_heading = "Output")]
    pub(super) detailed_exitcode: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  openssl genpkey -algorithm ed25519 -out alice.pem
  fleetwright approve p.json --by alice --key alice.pem --out approvals.json
  fleetwright apply p.json --approval approvals.json

The public half of the key is in spec.apply.keys of fleetwright.yaml.")]
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
The token comes from GITHUB_TOKEN, GITLAB_TOKEN, BITBUCKET_TOKEN (with BITBUCKET_USER if it is the \
password of a user), or AZURE_DEVOPS_TOKEN and SYSTEM_ACCESSTOKEN. Jobs of these platforms set the rest; outside \
of a job, pass --host, --repository and --pull. The address of a server of your own comes from \
GITHUB_API_URL, GITLAB_API_URL, BITBUCKET_API_URL, BITBUCKET_URL (Data Center) or AZURE_DEVOPS_URL.

Examples:
  fleetwright comment --plan plan.json
  fleetwright comment --plan plan.json --host gitlab --repository acme/fleet --pull 7")]
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
    /// Directory or URL whose settings list the keys of approvers
    #[arg(long, value_name = "PATH", default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    /// Read these settings from this commit
    #[arg(long, value_name = "REV")]
    pub(super) guard_ref: Option<String>,
    /// Report this failure instead of a plan, and mark the existing comment as outdated
    #[arg(long, value_name = "WHY", conflicts_with_all = ["plan", "receipt", "approval", "dry_run"])]
    pub(super) failed: Option<String>,
    /// Cluster of the plan, if the repository has several; each then has its own commit status
    #[arg(long, value_name = "NAME")]
    pub(super) cluster: Option<String>,
    /// Code review platform [default: the platform of the job, else github]
    #[arg(long, value_enum, value_name = "HOST")]
    pub(super) host: Option<super::comment::ForgeHost>,
    /// Repository, or project of GitLab [default: the repository of the job]
    #[arg(long, value_name = "OWNER/NAME")]
    pub(super) repository: Option<String>,
    /// Pull request [default: the pull request of the job]
    #[arg(long, value_name = "NUMBER")]
    pub(super) pull: Option<u64>,
    /// Set the commit status of this commit as well
    #[arg(long, value_name = "COMMIT")]
    pub(super) status: Option<String>,
    /// Print the comment instead of posting it
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
Example:
  fleetwright observe --world sim:world --out prod.json")]
pub(super) struct ObserveArgs {
    /// Directory whose fleetwright.yaml names the cluster
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) source: SourceArgs,
    /// Cluster to observe: live, FILE or sim:DIR [default: spec.world of fleetwright.yaml]
    #[arg(long, value_name = "WORLD")]
    pub(super) world: Option<String>,
    /// Write the observed world to this file instead of stdout
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) out: Option<PathBuf>,
    /// Show instances and nodes on which EC2, Auto Scaling and Kubernetes disagree
    #[arg(long)]
    pub(super) differences: bool,
    /// Save the capacity that nodes report in fleetwright.learned.json of PATH
    ///
    /// Plans use it where no such node runs.
    #[arg(long, conflicts_with_all = ["differences", "revision"])]
    pub(super) learn: bool,
    /// Format of the differences: text, json or yaml
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", alias = "output")]
    #[arg(requires = "differences", default_value_t = FormatArg::Text, hide_possible_values = true)]
    pub(super) format: FormatArg,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A node is adopted into the pool that its label names, if the repository declares that pool. Its \
instance gets three tags, and nothing else changes. Adoption is refused while Karpenter runs.")]
pub(super) struct AdoptArgs {
    /// Directory, Git work tree or URL with the pools
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) source: SourceArgs,
    /// Cluster to change: live or sim:DIR [default: spec.world of fleetwright.yaml]
    #[arg(long, value_name = "WORLD")]
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

#[derive(Debug, Args)]
pub(super) struct ValidateArgs {
    /// Directory or Git work tree of manifests
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) source: SourceArgs,
    /// Format: text, json, yaml or sarif
    ///
    /// `text`: for a terminal. `json`: for programs; stable. `yaml`: the same document as YAML.
    /// `sarif`: SARIF 2.1.0 for code scanning, with stable codes as rules.
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", alias = "output")]
    #[arg(default_value_t = ValidateFormatArg::Text, hide_possible_values = true)]
    pub(super) format: ValidateFormatArg,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fleetwright forecast clusters/prod                          the coming week
  fleetwright forecast --from 2026-11-23T00:00:00Z --to 2026-11-24T00:00:00Z -o json")]
pub(super) struct ForecastArgs {
    /// Directory or Git work tree of manifests
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    #[command(flatten)]
    pub(super) source: SourceArgs,
    /// Cluster state to plan against: live, empty, FILE or sim:DIR [default: spec.world of
    /// fleetwright.yaml, else empty]
    #[arg(long, value_name = "WORLD")]
    pub(super) world: Option<String>,
    /// Start of the forecast (RFC 3339) [default: now; in sim:DIR the time of that world]
    #[arg(long, value_name = "TIME")]
    pub(super) from: Option<String>,
    /// End of the forecast [default: seven days after the start]
    #[arg(long, value_name = "TIME")]
    pub(super) to: Option<String>,
    /// Replicas to assume for autoscaled workloads [default: spec.demand.autoscaled of
    /// fleetwright.yaml, else live]
    #[arg(long, value_enum, value_name = "COUNT")]
    pub(super) demand: Option<DemandArg>,
    #[command(flatten)]
    pub(super) format: FormatArgs,
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fleetwright explain -n web api                        of this directory
  fleetwright explain web/api --plan p.json             of a saved plan
  fleetwright explain 'ec2_instance.web[\"0\"]' --plan p.json
  fleetwright explain i-0abc clusters/prod --world prod.json
  fleetwright explain nodepool/general                  nodes, limits and unschedulable pods")]
pub(super) struct ExplainArgs {
    /// A workload as [NAMESPACE/][KIND/]NAME, a node, or nodepool/NAME
    ///
    /// A node is named by its address, such as `ec2_instance.web["0"]`, its name or its instance
    /// ID.
    #[arg(value_name = "WHAT")]
    pub(super) query: String,
    /// Directory or Git work tree to plan, without a saved plan
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(super) path: PathBuf,
    /// Namespace of the workload
    #[arg(short, long, value_name = "NAMESPACE", help_heading = "Subject")]
    pub(super) namespace: Option<String>,
    /// Explain this saved plan; - reads stdin
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Subject")]
    pub(super) plan: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Plan")]
    pub(super) planning: PlanningArgs,
    #[command(flatten, next_help_heading = "Output")]
    pub(super) format: FormatArgs,
}
