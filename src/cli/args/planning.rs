//! What a plan is made from, and judged by.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

/// Where desired state is read.
#[derive(Debug, Args)]
pub(in crate::cli) struct SourceArgs {
    /// Read this commit, branch or tag instead of the files on disk, which are left alone
    #[arg(long = "ref", value_name = "REV")]
    pub(in crate::cli) revision: Option<String>,
}

/// What a plan is made from, beside the files.
#[derive(Debug, Args)]
pub(in crate::cli) struct PlanningArgs {
    #[command(flatten)]
    pub(in crate::cli) source: SourceArgs,
    /// What runs: `empty` (nothing), a world FILE that `observe` wrote, or `sim:DIR` (an embedded
    /// cluster kept in DIR, which `apply` changes) [default: spec.world of fleetwright.yaml, else
    /// empty]
    #[arg(long, value_name = "empty|FILE|sim:DIR")]
    pub(in crate::cli) world: Option<String>,
    /// Plan for this moment (RFC 3339, such as 2026-09-01T10:00:00Z) [default: now; in sim:DIR the
    /// time of that world]
    #[arg(long, value_name = "TIME")]
    pub(in crate::cli) at: Option<String>,
    /// Which count of autoscaled workloads to plan for: the least, what runs, or the most [default:
    /// spec.demand.autoscaled of fleetwright.yaml, else live]
    #[arg(long, value_enum, value_name = "COUNT")]
    pub(in crate::cli) demand: Option<DemandArg>,
    /// Count on kube-scheduler to try each pod on the node that the plan has it on first (its
    /// nominated node); shows what would be missing if it did not
    #[arg(long)]
    pub(in crate::cli) steer: bool,
    /// Change this address alone (repeatable): a row such as `ec2_instance.web["0"]` (in single
    /// quotes), or every row of a pool as `ec2_instance.web`
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) target: Vec<String>,
    /// Do not change this address (repeatable)
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) exclude: Vec<String>,
    /// Replace the node at this address even if nothing else asks for it (repeatable)
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) replace: Vec<String>,
    /// Plan this commit too, over the same world, and tell what the planned files cause from what
    /// was pending anyway
    #[arg(long, value_name = "REV")]
    pub(in crate::cli) compare: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) guard: GuardArgs,
}

/// What a plan is judged by.
#[derive(Debug, Args)]
pub(in crate::cli) struct GuardArgs {
    /// Judge by the Rego below this directory (repeatable), beside spec.policies of fleetwright.yaml;
    /// read from disk as it is, whatever --guard-ref says
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) policy: Vec<PathBuf>,
    /// Data for policies, as JSON (repeatable), read from disk; replaces what files before it say of
    /// the same keys
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(in crate::cli) policy_data: Vec<PathBuf>,
    /// Read spec.policies and spec.apply from this commit, not from the files that are planned: in a
    /// pull request its base [default: the commit of --compare; in apply what guarded the plan when it
    /// was made, else the commit that was planned]
    #[arg(long, value_name = "REV")]
    pub(in crate::cli) guard_ref: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum DemandArg {
    /// The least an autoscaler may choose
    Floor,
    /// What runs now, or what Git says where nothing decides otherwise
    Live,
    /// The most an autoscaler may choose
    Ceiling,
}
