//! Arguments of commands that prepare the use of Fleetwright.

use std::path::PathBuf;

#[cfg(feature = "live")]
use clap::Subcommand;
use clap::{Args, ValueHint};

use super::FormatArgs;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
use super::ModeArg;
#[cfg(any(feature = "cluster", feature = "sandbox"))]
use super::SourceArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
The name chooses between directories below `clusters`, overlays that exclude each other, and
destinations of Argo CD: `prod` and `acme-prod` choose `overlays/prod`.

Examples:
  fleetwright init clusters/prod && fleetwright validate clusters/prod
  fleetwright init --name acme-prod
  fleetwright init --matrix clusters")]
pub(in crate::cli) struct InitArgs {
    /// Directory of manifests
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) path: PathBuf,
    /// Name of the cluster [default: detected, else the name of the directory]
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) name: Option<String>,
    /// Argo CD destination that is this cluster: a name or a server [default: by the name]
    #[arg(long, value_name = "DESTINATION")]
    pub(in crate::cli) destination: Option<String>,
    /// AWS region [default: detected, else us-east-1]
    #[arg(long, value_name = "REGION")]
    pub(in crate::cli) region: Option<String>,
    /// Overwrite an existing fleetwright.yaml
    #[arg(long)]
    pub(in crate::cli) force: bool,
    /// Print the clusters with settings below the directory, as JSON for a matrix of CI jobs
    #[arg(long, conflicts_with_all = ["name", "destination", "region", "force"])]
    pub(in crate::cli) matrix: bool,
}

#[cfg(feature = "live")]
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum SourcesArgs {
    /// Resolve, download and pin the sources in fleetwright.lock.json
    Update(SourcesUpdateArgs),
}

#[cfg(feature = "live")]
#[derive(Debug, Args)]
#[command(after_help = "\
Commit fleetwright.lock.json. `plan` reads only what it names, and needs no network.

Examples:
  fleetwright sources update clusters/prod
  fleetwright sources update --check clusters/prod && fleetwright plan clusters/prod

Credentials come from the files of Helm and Docker, from netrc, and from the configuration of Git.")]
pub(in crate::cli) struct SourcesUpdateArgs {
    /// Directory of manifests
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) path: PathBuf,
    /// Download what the lock file names, and fail if it is not complete
    ///
    /// The lock file stays unchanged. The exit code is 1 if a source is missing from it, not used by
    /// the files, or different from its digest.
    #[arg(long)]
    pub(in crate::cli) check: bool,
    /// Read spec.delivery.mirrors and spec.delivery.privateHosts from this commit
    ///
    /// Name the base of a pull request, so that the change cannot open hosts for its own downloads.
    /// [default: the files]
    #[arg(long, value_name = "REV")]
    pub(in crate::cli) guard_ref: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is sent over the network, and no secret is read. `preflight` checks cluster and account.

Exit codes:
  0 nothing is missing · 5 something that this directory needs is missing")]
pub(in crate::cli) struct DoctorArgs {
    /// Directory of manifests
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) path: PathBuf,
    #[command(flatten)]
    pub(in crate::cli) format: FormatArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct VersionArgs {
    #[command(flatten)]
    pub(in crate::cli) format: FormatArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fleetwright man | man -l -                   read the page of `fleetwright`
  fleetwright man /usr/local/share/man/man1    write the page of each command")]
pub(in crate::cli) struct ManArgs {
    /// Write the page of each command to this directory [default: print the page of `fleetwright`]
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) directory: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  fleetwright completions bash > /etc/bash_completion.d/fleetwright")]
pub(in crate::cli) struct CompletionsArgs {
    /// Shell
    #[arg(value_enum)]
    pub(in crate::cli) shell: clap_complete::Shell,
}

#[cfg(feature = "cluster")]
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is changed: launches and terminations are requested as dry runs.

Exit codes:
  0 nothing is missing · 1 error · 5 a requirement is missing")]
pub(in crate::cli) struct PreflightArgs {
    /// Directory or Git work tree with the pools and node classes
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) path: PathBuf,
    #[command(flatten)]
    pub(in crate::cli) source: SourceArgs,
}

#[cfg(feature = "sandbox")]
#[derive(Debug, Args)]
#[command(after_help = "\
It runs until Ctrl-C, and saves nothing. It starts with the embedded world that fleetwright.yaml names, \
or without nodes. Changed files are delivered at once. It listens on 127.0.0.1 only, without \
authentication. The controller in it launches and removes nodes of the sandbox alone.")]
pub(in crate::cli) struct SandboxArgs {
    /// Directory or Git work tree with the workloads and pools
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(in crate::cli) path: PathBuf,
    #[command(flatten)]
    pub(in crate::cli) source: SourceArgs,
    /// Serve the Kubernetes API on this port [default: a free port]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub(in crate::cli) port: u16,
    /// Serve the page on this port [default: a free port]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub(in crate::cli) page: u16,
    /// Actions that the controller may take
    #[cfg(feature = "cluster")]
    #[arg(long, value_enum, value_name = "MODE", default_value_t = ModeArg::Full)]
    pub(in crate::cli) mode: ModeArg,
    /// Serve only the APIs, and plans on the page: nothing launches nodes
    #[cfg(feature = "cluster")]
    #[arg(long, conflicts_with = "mode")]
    pub(in crate::cli) no_controller: bool,
    /// Boot instances and start pods this many times faster
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(in crate::cli) speed: u32,
}
