//! Arguments of planning: inputs and policies.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

/// The source of the desired state.
#[derive(Debug, Args)]
pub(in crate::cli) struct SourceArgs {
    /// Read this commit, branch or tag instead of the files on disk, which stay unchanged
    #[arg(long = "ref", value_name = "REV")]
    pub(in crate::cli) revision: Option<String>,
}

/// The inputs of a plan, in addition to the files.
#[derive(Debug, Args)]
pub(in crate::cli) struct PlanningArgs {
    #[command(flatten)]
    pub(in crate::cli) source: SourceArgs,
    /// World to plan over: `empty`, a world FILE that `observe` wrote, or `sim:DIR` (an embedded
    /// cluster stored in DIR, which `apply` changes) [default: spec.world of fleetwright.yaml, else
    /// empty]
    #[arg(long, value_name = "empty|FILE|sim:DIR")]
    pub(in crate::cli) world: Option<String>,
    /// Plan for this time (RFC 3339, such as 2026-09-01T10:00:00Z) [default: now; in sim:DIR the
    /// time of that world]
    #[arg(long, value_name = "TIME")]
    pub(in crate::cli) at: Option<String>,
    /// Count of autoscaled workloads to plan for: minimum, current or maximum [default:
    /// spec.demand.autoscaled of fleetwright.yaml, else live]
    #[arg(long, value_enum, value_name = "COUNT")]
    pub(in crate::cli) demand: Option<DemandArg>,
    /// Assume that kube-scheduler first tries each pod on its planned node (its nominated node);
    /// the plan shows the capacity missing without nominations
    #[arg(long)]
    pub(in crate::cli) steer: bool,
    /// Change only this address (repeatable): a row such as `ec2_instance.web["0"]` (in single
    /// quotes), or every row of a pool as `ec2_instance.web`
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) target: Vec<String>,
    /// Do not change this address (repeatable)
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) exclude: Vec<String>,
    /// Replace the node at this address even without another reason (repeatable)
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) replace: Vec<String>,
    /// Also plan this commit over the same world, and separate changes caused by the planned files
    /// from changes that were pending
    #[arg(long, value_name = "REV")]
    pub(in crate::cli) compare: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) guard: GuardArgs,
}

/// The policies that judge a plan.
#[derive(Debug, Args)]
pub(in crate::cli) struct GuardArgs {
    /// Judge by the Rego files below this directory (repeatable), in addition to spec.policies of
    /// fleetwright.yaml; always read from disk, even with --guard-ref
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) policy: Vec<PathBuf>,
    /// Policy data as JSON (repeatable), read from disk; a later file replaces the same keys of
    /// earlier files
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(in crate::cli) policy_data: Vec<PathBuf>,
    /// Read spec.policies and spec.apply from this commit instead of the planned files, such as the
    /// base of a pull request [default: the commit of --compare; in apply the recorded guard of the
    /// plan, else the planned commit]
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
