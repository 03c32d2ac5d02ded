//! Arguments of `catalog`: the types to show, and the settings of their nodes.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::FormatArgs;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum CatalogArgs {
    /// List instance types, allocatable capacity and prices
    List(CatalogListArgs),
    /// Show the source of each number of an instance type
    Explain(CatalogExplainArgs),
    /// Download the list prices of the region into fleetwright.prices.json
    #[cfg(feature = "live")]
    Prices(CatalogPricesArgs),
}

#[cfg(feature = "live")]
#[derive(Debug, Args)]
#[command(after_help = "\
Commit fleetwright.prices.json. Plans without a live world use its prices, and need no network.

Examples:
  fleetwright catalog prices clusters/prod
  fleetwright catalog prices --check clusters/prod

The public price list of AWS is read without credentials.")]
pub(in crate::cli) struct CatalogPricesArgs {
    /// Directory of fleetwright.yaml, which names the region
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) path: PathBuf,
    /// Compare the file with the list of AWS that it names, and fail if it differs
    ///
    /// The file stays unchanged. A newer list of AWS is no difference.
    #[arg(long)]
    pub(in crate::cli) check: bool,
    /// Read spec.delivery.mirrors and spec.delivery.privateHosts from this commit
    ///
    /// Name the base of a pull request, so that the change cannot open hosts for its own downloads.
    /// [default: the files]
    #[arg(long, value_name = "REV")]
    pub(in crate::cli) guard_ref: Option<String>,
}

/// The catalog to show, and the settings of its nodes: from options, or from a pool of a
/// repository.
#[derive(Debug, Args)]
pub(in crate::cli) struct RegionArgs {
    /// AWS region
    #[arg(long, default_value = "us-east-1")]
    pub(in crate::cli) region: String,
    /// AMI family, which decides the reserved capacity
    #[arg(long, value_enum, value_name = "FAMILY", default_value_t = FamilyArg::Al2023)]
    pub(in crate::cli) ami_family: FamilyArg,
    /// Maximum pods per node (maxPods of the kubelet)
    #[arg(long, value_name = "N")]
    pub(in crate::cli) max_pods: Option<u32>,
    /// Maximum pods per core (podsPerCore of the kubelet)
    #[arg(long, value_name = "N")]
    pub(in crate::cli) pods_per_core: Option<u32>,
    /// Assign pod addresses from prefixes of 16
    #[arg(long)]
    pub(in crate::cli) prefix_delegation: bool,
    /// Show the nodes of this pool
    ///
    /// Region, image family, kubelet settings and volumes come from the repository, and the
    /// capacity from its running nodes.
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["region", "ami_family", "max_pods", "pods_per_core", "prefix_delegation"]
    )]
    pub(in crate::cli) pool: Option<String>,
    /// Repository of the pool, or directory of fleetwright.prices.json
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) path: PathBuf,
    /// Cluster state to read nodes from: live, empty, FILE or sim:DIR [default: spec.world of
    /// fleetwright.yaml]
    #[arg(long, value_name = "WORLD", requires = "pool")]
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
  fleetwright catalog list -l 'karpenter.k8s.aws/instance-cpu>=8,kubernetes.io/arch=arm64'
  fleetwright catalog list -l 'topology.kubernetes.io/zone=eu-west-1a' --region eu-west-1
  fleetwright catalog list --allocatable --ami-family bottlerocket --max-pods 110 -o json
  fleetwright catalog list --allocatable --pool web --world prod.json")]
pub(in crate::cli) struct CatalogListArgs {
    /// Requirements on labels, such as kubernetes.io/arch=arm64 (repeatable)
    ///
    /// The forms are KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY>4, KEY>=4,
    /// KEY and !KEY, separated by commas.
    #[arg(short = 'l', long, value_name = "REQUIREMENTS")]
    pub(in crate::cli) selector: Vec<String>,
    /// Sort order [default: price; with --allocatable name]
    #[arg(long, value_enum, value_name = "ORDER")]
    pub(in crate::cli) sort: Option<SortArg>,
    /// Show capacity, reserved capacity and allocatable capacity of each type instead of prices
    #[arg(long)]
    pub(in crate::cli) allocatable: bool,
    /// List at most this many types
    #[arg(long, value_name = "N")]
    pub(in crate::cli) limit: Option<usize>,
    #[command(flatten)]
    pub(in crate::cli) region: RegionArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum SortArg {
    /// Cheapest first
    Price,
    /// By name
    Name,
    /// Fewest vCPUs first
    Cpu,
    /// Least memory first
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
