//! Arguments of `run`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use super::SourceArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
The controller observes the repository and the cluster, and applies the changes that its mode allows. \
On SIGTERM or Ctrl-C it undoes drains and starts nothing new.

Examples:
  fleetwright run --world sim:world                      plan continuously, and change nothing
  fleetwright run --world sim:world --mode full --once   reconcile until nothing is left
  fleetwright run --world sim:world --mode full --speed 10
                                                         reconcile ten times as fast
  fleetwright run https://example.com/fleet.git --ref main --world live --listen 0.0.0.0:8080
                                                         in a cluster, as the chart runs it

Exit codes:
  0 ended by a signal · 1 error · 4 the lease is held · 5 the world cannot change
With --once:
  0 nothing is left, or the mode allows no changes · 1 error
  5 an approval or a confirmation is missing · 6 a policy denies the plan
  7 changes are left · 8 changes wait for a window")]
pub(in crate::cli) struct RunArgs {
    /// Directory, Git work tree or URL with the workloads and pools
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) path: PathBuf,
    #[command(flatten)]
    pub(in crate::cli) source: SourceArgs,
    /// Cluster to reconcile: live or sim:DIR [default: spec.world of fleetwright.yaml]
    #[arg(long, value_name = "WORLD")]
    pub(in crate::cli) world: Option<String>,
    /// Actions that are allowed [default: spec.controller.mode of fleetwright.yaml, else observe]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(in crate::cli) mode: Option<ModeArg>,
    /// Trust this commit and its ancestors at the first start, where commits must be signed
    ///
    /// Later commits need a chain of signatures that ends at it. The controller then remembers
    /// the last commit that it verified. Another REV makes it start anew.
    #[arg(long, value_name = "REV")]
    pub(in crate::cli) guard_ref: Option<String>,
    /// Serve only commits that a signer of this file has signed
    ///
    /// It has the form of fleetwright.yaml with spec.signers, and replaces the signers that the
    /// repository lists.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(in crate::cli) signers: Option<PathBuf>,
    /// Authenticate approvals, break-glass and other stored decisions with the key in this file
    ///
    /// They are an annotation of the lease, which applies may write as well. With a key, decisions
    /// that another process has written do not count. The key has at least 32 characters. During a
    /// rotation the file holds two keys, one per line, the new one first. Without the file, a
    /// warning is printed, and all stored decisions count.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(in crate::cli) state_key: Option<PathBuf>,
    /// Exit once nothing is left to do
    #[arg(long)]
    pub(in crate::cli) once: bool,
    /// Serve page, metrics and probes on this address, such as 127.0.0.1:8080
    #[cfg(feature = "page")]
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) listen: Option<std::net::SocketAddr>,
    /// Serve metrics and probes on this address instead of that of the page
    ///
    /// So they answer however many clients the page has.
    #[cfg(feature = "page")]
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) listen_metrics: Option<std::net::SocketAddr>,
    /// Additional host name of the page, such as that of an ingress (repeatable)
    #[cfg(feature = "page")]
    #[arg(long, value_name = "NAME", requires = "listen")]
    pub(in crate::cli) listen_name: Vec<String>,
    /// Receive webhooks on /webhook, signed with the secret in this file
    ///
    /// They are signed as GitHub signs them, and each one triggers a read of the repository. During
    /// a rotation the file holds two secrets, one per line. [default: the variable
    /// `FLEETWRIGHT_WEBHOOK_SECRET`]
    #[cfg(feature = "page")]
    #[arg(long, value_name = "FILE", requires = "listen", value_hint = ValueHint::FilePath)]
    pub(in crate::cli) webhook_secret: Option<PathBuf>,
    /// Accept tokens of operators that the API server itself accepts
    ///
    /// Without it, a token needs the audience `fleetwright.dev`, so it is of no use anywhere else.
    /// Use it only if clients reach the page over TLS.
    #[cfg(feature = "page")]
    #[arg(long, requires = "listen")]
    pub(in crate::cli) accept_api_tokens: bool,
    /// Format of log lines on stderr
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormatArg::Text)]
    pub(in crate::cli) log_format: LogFormatArg,
    /// Run the clock of sim:DIR this many times as fast
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(in crate::cli) speed: u32,
    /// Longest wait for the lock of the cluster, such as 30s or 10m
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub(in crate::cli) lock_timeout: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum LogFormatArg {
    /// For a terminal
    Text,
    /// For programs: one object per line, with time, level and event
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ModeArg {
    /// Plan, and change nothing
    Observe,
    /// Launch; remove only instances that are terminating anyway
    Additive,
    /// Reconcile fully: launch and remove
    Full,
}
