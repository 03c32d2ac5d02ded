//! Arguments of `top`.

use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum, ValueHint};

use super::SourceArgs;
use crate::render::TopSort;

#[derive(Debug, Args)]
#[command(after_help = "\
Keys: q or Ctrl-C ends it, the arrow keys and Page Up and Down scroll, s changes the order.

Examples:
  fleetwright top --world live                        the cluster of the kubeconfig, every 5 seconds
  fleetwright top --world sim:world --pool web        one pool of an embedded cluster
  fleetwright top --world live --sort cpu --once      one frame, for a file or a pipe")]
pub(in crate::cli) struct TopArgs {
    /// Directory, Git work tree or URL with the workloads and pools
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) path: PathBuf,
    #[command(flatten)]
    pub(in crate::cli) source: SourceArgs,
    /// World to show: live, sim:DIR, or a world FILE [default: spec.world of fleetwright.yaml]
    #[arg(long, value_name = "live|FILE|sim:DIR")]
    pub(in crate::cli) world: Option<String>,
    /// Show only the nodes of this pool (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) pool: Vec<String>,
    /// Order of the nodes
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = TopSort::Name)]
    pub(in crate::cli) sort: TopSort,
    /// Time between two observations, at least 1s
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    pub(in crate::cli) interval: String,
    /// Print one frame and exit; so does an output that is not a terminal
    #[arg(long)]
    pub(in crate::cli) once: bool,
}

impl ValueEnum for TopSort {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.as_str()).help(self.meaning()))
    }
}
