//! Which types of the catalogue are looked at, and for nodes of which set-up.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::FormatArgs;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum CatalogArgs {
    /// List instance types, what their nodes offer to pods, and prices
    List(CatalogListArgs),
    /// Show where each number of an instance type comes from
    Explain(CatalogExplainArgs),
}

/// Which catalogue to look at, and how its nodes are set up: by options, or as a pool of a repository
/// declares it.
#[derive(Debug, Args)]
pub(in crate::cli) struct RegionArgs {
    /// AWS region
    #[arg(long, default_value = "us-east-1")]
    pub(in crate::cli) region: String,
    /// AMI family, which decides what is kept for the system
    #[arg(long, value_enum, value_name = "FAMILY", default_value_t = FamilyArg::Al2023)]
    pub(in crate::cli) ami_family: FamilyArg,
    /// Most pods on a node (maxPods of the kubelet)
    #[arg(long, value_name = "N")]
    pub(in crate::cli) max_pods: Option<u32>,
    /// Most pods for each core (podsPerCore of the kubelet)
    #[arg(long, value_name = "N")]
    pub(in crate::cli) pods_per_core: Option<u32>,
    /// Pods get addresses from prefixes of 16
    #[arg(long)]
    pub(in crate::cli) prefix_delegation: bool,
    /// Nodes as this pool makes them: region, image family, kubelet settings and volumes of the
    /// repository, and what nodes of the pool report that run
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["region", "ami_family", "max_pods", "pods_per_core", "prefix_delegation"]
    )]
    pub(in crate::cli) pool: Option<String>,
    /// Repository of the pool
    #[arg(long, value_name = "DIR", default_value = ".", requires = "pool", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) path: PathBuf,
    /// What runs: `empty`, a world FILE or `sim:DIR` [default: spec.world of fleetwright.yaml]
    #[arg(long, value_name = "empty|FILE|sim:DIR", requires = "pool")]
    pub(in crate::cli) world: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) format: FormatArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum FamilyArg {
    /// Amazon Linux 2
    Al2,
    /// Amazon Linux 2023
    Al2023,
    /// Bottlerocket
    Bottlerocket,
    /// Windows Server
    Windows,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fleetwright catalog list -l 'karpenter.k8s.aws/instance-cpu>=8,kubernetes.io/arch=arm64' --limit 10
  fleetwright catalog list -l 'topology.kubernetes.io/zone=eu-west-1a' --region eu-west-1
  fleetwright catalog list --allocatable --ami-family bottlerocket --max-pods 110 --format json
  fleetwright catalog list --allocatable --pool web --world prod.json")]
pub(in crate::cli) struct CatalogListArgs {
    /// Requirements on labels: KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY>4, KEY,
    /// !KEY; commas between them, repeatable
    #[arg(short = 'l', long, value_name = "REQUIREMENTS")]
    pub(in crate::cli) selector: Vec<String>,
    /// What comes first [default: price; with --allocatable name]
    #[arg(long, value_enum, value_name = "ORDER")]
    pub(in crate::cli) sort: Option<SortArg>,
    /// Show what each type has, what is kept of it, and what is left for pods, instead of prices
    #[arg(long)]
    pub(in crate::cli) allocatable: bool,
    /// List at most so many types
    #[arg(long, value_name = "N")]
    pub(in crate::cli) limit: Option<usize>,
    #[command(flatten)]
    pub(in crate::cli) region: RegionArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum SortArg {
    /// The cheapest
    Price,
    /// The first by name
    Name,
    /// The fewest vCPUs
    Cpu,
    /// The least memory
    Memory,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct CatalogExplainArgs {
    /// Instance type, such as m5.large
    #[arg(value_name = "TYPE")]
    pub(in crate::cli) name: String,
    #[command(flatten)]
    pub(in crate::cli) region: RegionArgs,
}
