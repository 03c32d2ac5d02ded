//! How the loop runs.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use super::SourceArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
It follows the repository and the live state, and carries out what its mode allows. SIGTERM and Ctrl-C
end it in order: drains are undone, and nothing new begins.

Examples:
  fleetwright run . --world sim:world                        plan for ever, and change nothing
  fleetwright run . --world sim:world --mode full --once     do what there is to do, and end
  fleetwright run . --world sim:world --mode full --speed 10 go on, ten times as fast as the clock
  fleetwright run https://example.com/fleet.git --ref main --world live --listen 0.0.0.0:8080
                                                             in a cluster, as the chart runs it")]
pub(in crate::cli) struct RunArgs {
    /// Directory, Git work tree or URL with the workloads and pools
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) path: PathBuf,
    #[command(flatten)]
    pub(in crate::cli) source: SourceArgs,
    /// What is kept together with the repository [default: spec.world of fleetwright.yaml]
    #[arg(long, value_name = "live|sim:DIR")]
    pub(in crate::cli) world: Option<String>,
    /// What it may do: only plan, launch, or launch and remove [default: spec.controller.mode of
    /// fleetwright.yaml, else observe]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(in crate::cli) mode: Option<ModeArg>,
    /// End once nothing is left to do
    #[arg(long)]
    pub(in crate::cli) once: bool,
    /// Serve page, metrics and answers to probes on this address, such as 127.0.0.1:8080
    #[cfg(feature = "page")]
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) listen: Option<std::net::SocketAddr>,
    /// A further name by which the page is reached, such as that of an ingress; may be repeated
    #[cfg(feature = "page")]
    #[arg(long, value_name = "NAME", requires = "listen")]
    pub(in crate::cli) listen_name: Vec<String>,
    /// Hear webhooks of GitHub, or of a host that signs as it does, on /webhook: the repository is read at
    /// once then. FILE holds the secret, or two while one takes the place of the other, one a line
    /// [default: the variable `FLEETWRIGHT_WEBHOOK_SECRET`]
    #[cfg(feature = "page")]
    #[arg(long, value_name = "FILE", requires = "listen", value_hint = ValueHint::FilePath)]
    pub(in crate::cli) webhook_secret: Option<PathBuf>,
    /// How lines on stderr look; json: one object a line, with time, level and event
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormatArg::Text)]
    pub(in crate::cli) log_format: LogFormatArg,
    /// Let the time of sim:DIR pass this many times as fast
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(in crate::cli) speed: u32,
    /// Wait so long while an apply holds the lock of the cluster, such as 30s or 10m
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub(in crate::cli) lock_timeout: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum LogFormatArg {
    /// For people
    Text,
    /// For machines
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ModeArg {
    /// Plan, and change nothing
    Observe,
    /// Launch; remove nothing but what goes anyway
    Additive,
    /// Keep the fleet as the repository asks for it
    Full,
}
