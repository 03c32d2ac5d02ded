//! A repository as commands use it: its settings, and what it asks for.

use crate::catalog::ZoneSetting;
use crate::demand::DemandMode;
use crate::fleet::ClusterIdentity;
use crate::git::TreeRead;
use crate::ids::Region;
use crate::manifest::{Autoscaled, Desired, Fleet, read, read_fleet};
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

impl Repository {
    /// Reads `fleetwright.yaml` and every manifest of a tree.
    pub(super) fn read(tree: &TreeRead) -> Self {
        let (fleet, problems) = read_fleet(&tree.tree);
        let mut desired = read(&tree.tree, &fleet);
        desired.problems.extend(problems);
        desired.problems.sort();
        desired.problems.dedup();
        desired.skipped.extend(tree.skipped.iter().cloned());
        desired.skipped.sort();
        Self { fleet: FleetSettings::of(fleet), desired }
    }
}

impl FleetSettings {
    fn of(fleet: Fleet) -> Self {
        let zones = fleet.cluster.zones.into_iter();
        let consolidation = fleet.consolidation;
        let hours = consolidation.horizon.as_hours().max(1);
        Self {
            is_declared: fleet.origin.is_some(),
            cluster: fleet.cluster.name,
            region: fleet.cluster.region,
            zones: zones.map(|(name, id)| ZoneSetting { name, id }).collect(),
            demand: match fleet.demand.autoscaled {
                Autoscaled::Floor => DemandMode::Floor,
                Autoscaled::Live => DemandMode::Live,
                Autoscaled::Ceiling => DemandMode::Ceiling,
            },
            world: fleet.world,
            solve: Settings {
                horizon_hours: hours,
                restart_cost: consolidation.restart_cost,
                minimum_saving_milli_percent: i64::from(consolidation.minimum_saving_milli_percent),
            },
        }
    }

    /// Returns who the cluster is, as far as the repository knows.
    pub(super) fn identity(&self) -> ClusterIdentity {
        ClusterIdentity {
            name: self.cluster.clone(),
            region: self.region.to_string(),
            ..ClusterIdentity::default()
        }
    }
}
