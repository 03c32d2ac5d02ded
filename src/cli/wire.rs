//! Where the command line meets what is still being built beside it.
//!
//! Every function here has the signature it will keep; a body that only answers
//! `not_wired` waits for its module.

use std::path::Path;

use jiff::Timestamp;

use super::error::CliError;
use super::world::WorldChoice;
use super::{Console, Exit};
use crate::catalog::ZoneSetting;
use crate::demand::DemandMode;
use crate::fleet::{ClusterIdentity, Observed};
use crate::git::TreeRead;
use crate::ids::Region;
use crate::manifest::Desired;
use crate::plan::{Plan, canonical};
use crate::solve::Settings;

/// A repository, read.
#[derive(Debug)]
pub(super) struct Repository {
    pub(super) fleet: FleetSettings,
    /// What it asks for; problems of `fleetwright.yaml` are among its own.
    pub(super) desired: Desired,
}

/// The settings of a repository.
#[derive(Debug)]
pub(super) struct FleetSettings {
    /// Whether there is a `fleetwright.yaml`: defaults give way to what a world says.
    pub(super) is_declared: bool,
    pub(super) cluster: String,
    pub(super) region: Region,
    pub(super) zones: Vec<ZoneSetting>,
    pub(super) demand: DemandMode,
    /// As `--world` writes it.
    pub(super) world: String,
    pub(super) solve: Settings,
}

impl FleetSettings {
    /// Returns who the cluster is, as far as the repository knows.
    pub(super) fn identity(&self) -> ClusterIdentity {
        ClusterIdentity {
            name: self.cluster.clone(),
            region: self.region.to_string(),
            ..ClusterIdentity::default()
        }
    }
}

/// Reads `fleetwright.yaml` and every manifest of a tree.
///
/// The tree's own `skipped` parts belong to those of [`Desired`].
pub(super) fn read_repository(_read: &TreeRead) -> Result<Repository, CliError> {
    Err(not_wired("reading manifests"))
}

/// Returns what runs in the embedded world of `directory`; makes an empty one where there is none.
pub(super) fn observe_sim(
    _directory: &Path,
    _repository: &Repository,
    _at: Timestamp,
) -> Result<Observed, CliError> {
    Err(not_wired("the embedded world"))
}

/// Reads a world file.
pub(super) fn read_world(bytes: &[u8]) -> Result<Observed, CliError> {
    serde_json::from_slice(bytes).map_err(|error| {
        CliError::new(error).hint("name a file that `fleetwright observe --out FILE` wrote")
    })
}

/// Returns a world as its file holds it.
pub(super) fn world_json(observed: &Observed) -> Result<String, CliError> {
    canonical::pretty(observed).map_err(CliError::new)
}

/// Carries an approved plan out in `world`, with progress on stderr and the receipt on stdout.
pub(super) fn apply(
    _plan: &Plan,
    _world: &WorldChoice,
    _console: &mut Console,
) -> Result<Exit, CliError> {
    Err(not_wired("apply"))
}

fn not_wired(what: &str) -> CliError {
    CliError::text(format!("{what} is not wired yet"))
}
