//! Arguments of planning and applying: inputs, policies and approvals.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use super::ViewArgs;

/// The source of the desired state.
#[derive(Debug, Args)]
pub(in crate::cli) struct SourceArgs {
    /// Read this commit, branch or tag instead of the files on disk
    ///
    /// The files on disk stay unchanged.
    #[arg(long = "ref", value_name = "REV")]
    pub(in crate::cli) revision: Option<String>,
}

/// The inputs of a plan, in addition to the files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Plan")]
pub(in crate::cli) struct PlanningArgs {
    /// Cluster state to plan against: live, empty, FILE or sim:DIR
    ///
    /// `live`: the cluster and the AWS account, in builds with the feature `cluster`. `empty`: no
    /// nodes. FILE: a world that `observe` wrote. `sim:DIR`: an embedded cluster stored in DIR,
    /// which `apply` changes. [default: spec.world of fleetwright.yaml, else empty]
    #[arg(long, value_name = "WORLD")]
    pub(in crate::cli) world: Option<String>,
    /// Plan for this time, such as 2026-09-01T10:00:00Z
    ///
    /// RFC 3339. [default: now; in sim:DIR the time of that world]
    #[arg(long, value_name = "TIME")]
    pub(in crate::cli) at: Option<String>,
    /// Replicas to assume for autoscaled workloads: floor, live or ceiling
    ///
    /// `floor`: the minimum of each autoscaler. `live`: the running count, or the count in Git if
    /// nothing else decides. `ceiling`: the maximum of each autoscaler. [default:
    /// spec.demand.autoscaled of fleetwright.yaml, else live]
    #[arg(long, value_enum, value_name = "COUNT", hide_possible_values = true)]
    pub(in crate::cli) demand: Option<DemandArg>,
    /// Change only this address (repeatable)
    ///
    /// A row such as `ec2_instance.web["0"]` (in single quotes), or every row of a pool as
    /// `ec2_instance.web`.
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) target: Vec<String>,
    /// Do not change this address (repeatable)
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) exclude: Vec<String>,
    /// Replace the node at this address (repeatable)
    ///
    /// It is replaced even without another reason. A repeated command replaces the new node at the
    /// address, and has nothing to do if no node has the address any more.
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) replace: Vec<String>,
    /// Assume that pods are nominated to their planned nodes
    ///
    /// kube-scheduler then tries the planned node of each pod first. The plan shows the capacity
    /// missing without nominations.
    #[arg(long, hide_short_help = true)]
    pub(in crate::cli) steer: bool,
    #[command(flatten, next_help_heading = "Source")]
    pub(in crate::cli) source: SourceArgs,
    /// Also plan this commit, and show which changes the planned files cause
    ///
    /// Both commits are planned over the same world. The other changes were pending before.
    #[arg(long, value_name = "REV", help_heading = "Source")]
    pub(in crate::cli) compare: Option<String>,
    #[command(flatten, next_help_heading = "Safety")]
    pub(in crate::cli) guard: GuardArgs,
}

/// The policies that judge a plan.
#[derive(Debug, Args)]
#[command(next_help_heading = "Safety")]
pub(in crate::cli) struct GuardArgs {
    /// Judge by the Rego files below this directory (repeatable)
    ///
    /// They count in addition to spec.policies of fleetwright.yaml, and are always read from disk,
    /// even with --guard-ref.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) policy: Vec<PathBuf>,
    /// Policy data as JSON (repeatable)
    ///
    /// It is read from disk. A later file replaces the same keys of earlier files.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(in crate::cli) policy_data: Vec<PathBuf>,
    /// Read spec.policies and spec.apply from this commit
    ///
    /// It replaces the planned files for these settings, such as with the base of a pull request.
    /// [default: the commit of --compare; in apply the commit that is checked out]
    #[arg(long, value_name = "REV")]
    pub(in crate::cli) guard_ref: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum DemandArg {
    /// The minimum of each autoscaler
    Floor,
    /// The running count, or the count in Git if nothing else decides
    Live,
    /// The maximum of each autoscaler
    Ceiling,
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fleetwright plan clusters/prod                        a directory of manifests
  fleetwright plan --world live --out p.json            against the cluster, saved for `apply`
  fleetwright plan --ref main --world prod.json         a commit, against an observed world
  fleetwright plan --world sim:w --target ec2_instance.web --concise
  fleetwright plan --detailed-exitcode -o json          for CI: 2 if there are changes")]
pub(in crate::cli) struct PlanArgs {
    /// Directory or Git work tree of manifests
    ///
    /// Its fleetwright.yaml holds the settings.
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) path: PathBuf,
    #[command(flatten, next_help_heading = "Plan")]
    pub(in crate::cli) planning: PlanningArgs,
    /// Save the plan for `apply` and `show`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub(in crate::cli) out: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Output")]
    pub(in crate::cli) view: ViewArgs,
    /// Exit with 12 if inputs were not read, 2 for changes, 0 for none
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) detailed_exitcode: bool,
    /// Serve the plan as a page that is updated when files change
    ///
    /// It is served until Ctrl-C. [default address: 127.0.0.1:8080]
    #[cfg(feature = "page")]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "127.0.0.1:8080", conflicts_with_all = ["format", "json"])]
    #[arg(help_heading = "Output")]
    pub(in crate::cli) serve: Option<std::net::SocketAddr>,
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fleetwright apply p.json                                   apply the saved plan
  fleetwright apply p.json --approved-digest sha256:9b1e…    in CI: exactly the approved plan
  fleetwright apply . --world sim:world --auto-approve       plan and apply at once

The options of planning count only with a directory. A saved plan has its own inputs.")]
pub(in crate::cli) struct ApplyArgs {
    /// A plan that `plan --out` saved, or a directory to plan first
    #[arg(value_name = "PLAN|PATH", default_value = ".", value_hint = ValueHint::AnyPath)]
    pub(in crate::cli) subject: PathBuf,
    /// Apply without asking for approval
    #[arg(long, help_heading = "Approval")]
    pub(in crate::cli) auto_approve: bool,
    /// Apply the plan only if it has this digest, which counts as approval
    #[arg(long, value_name = "DIGEST", help_heading = "Approval")]
    pub(in crate::cli) approved_digest: Option<String>,
    /// Apply the plan only if it has this plan ID, which counts as approval
    ///
    /// The ID covers everything that apply reads: the digest, the commit, the observation, the times
    /// and the policies. A new plan has another ID, also with the same decisions.
    #[arg(long, value_name = "ID", help_heading = "Approval")]
    pub(in crate::cli) approved_plan: Option<String>,
    /// Approvals that `fleetwright approve` wrote (repeatable)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Approval")]
    pub(in crate::cli) approval: Vec<PathBuf>,
    /// Public key of an approver, in PEM (repeatable)
    ///
    /// These keys replace spec.apply.keys, so that the keys come from outside of the repository.
    #[arg(long, value_name = "NAME=FILE", help_heading = "Approval")]
    pub(in crate::cli) key: Vec<String>,
    /// Number of approvers of --key who must approve [default: all keys]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(requires = "key", help_heading = "Approval")]
    pub(in crate::cli) approvals: Option<u32>,
    /// Directory, work tree or URL of the saved plan
    ///
    /// Settings, policies and files come from here, never from a place that the plan names. A plan
    /// of another repository or directory is refused. Outside of Git, a directory with the same
    /// files is accepted. [default: the working directory]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath, help_heading = "Safety")]
    pub(in crate::cli) path: Option<PathBuf>,
    /// Longest wait for the lock of the cluster, such as 30s or 10m
    ///
    /// Another apply may hold the lock.
    #[arg(long, value_name = "DURATION", default_value = "0s", help_heading = "Safety")]
    pub(in crate::cli) lock_timeout: String,
    /// Write a stream of messages, as `terraform apply -json` does
    ///
    /// Each line on stdout is one JSON object.
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,
    /// Write the receipt of the apply to this file, as JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Output")]
    pub(in crate::cli) receipt: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Plan")]
    pub(in crate::cli) planning: PlanningArgs,
}
