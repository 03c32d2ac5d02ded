//! A repository, read: its settings and what it asks for.

use std::rc::Rc;

use super::error::CliError;
use super::settings::SourceSettings;
use crate::catalog::ZoneSetting;
use crate::demand::{DemandMode, ShapeContext, shape_of};
use crate::fleet::ClusterIdentity;
use crate::git::{TreeBase, read_revision, read_tree};
use crate::manifest::{self, Autoscaled, Desired, Fleet};
use crate::sim::ShapeOf;
use crate::solve::Settings;

/// A repository, read.
#[derive(Debug)]
pub(super) struct Repository {
    pub(super) fleet: Fleet,
    /// What it asks for, with every problem found, those of `fleetwright.yaml` included.
    pub(super) desired: Rc<Desired>,
    /// Where the files come from.
    pub(super) base: TreeBase,
    /// How many manifest files there are.
    pub(super) files: usize,
}

impl Repository {
    /// Reads the files that the settings name, and what they ask for.
    ///
    /// # Errors
    /// When there is no tree to read; what is wrong inside the tree is in `desired.problems`.
    pub(super) fn read(source: &SourceSettings) -> Result<Self, CliError> {
        let SourceSettings { path, revision } = source;
        let read = match revision {
            None => read_tree(path)?,
            Some(revision) => read_revision(path, revision)?,
        };
        let (fleet, problems) = manifest::read_fleet(&read.tree);
        let mut desired = manifest::read(&read.tree, &fleet);
        desired.problems.extend(problems);
        desired.problems.sort();
        desired.problems.dedup();
        desired.skipped.extend(read.skipped);
        desired.skipped.sort();
        let files = read.tree.files.len();
        tracing::info!(files, commit = read.base.commit, "repository read");
        Ok(Self { fleet, desired: Rc::new(desired), base: read.base, files })
    }

    /// Returns whether there is a `fleetwright.yaml`: defaults give way to what a world says.
    pub(super) fn is_declared(&self) -> bool {
        self.fleet.origin.is_some()
    }

    /// Returns who the cluster is, as far as the repository knows.
    pub(super) fn identity(&self) -> ClusterIdentity {
        ClusterIdentity {
            name: self.fleet.cluster.name.clone(),
            region: self.fleet.cluster.region.to_string(),
            ..ClusterIdentity::default()
        }
    }

    /// Returns the zones that may be used; none means all of the region.
    pub(super) fn zones(&self) -> Vec<ZoneSetting> {
        let zones = self.fleet.cluster.zones.iter();
        zones.map(|(name, id)| ZoneSetting { name: name.clone(), id: id.clone() }).collect()
    }

    /// Returns which count of autoscaled workloads the repository wants planned.
    pub(super) fn demand(&self) -> DemandMode {
        match self.fleet.demand.autoscaled {
            Autoscaled::Floor => DemandMode::Floor,
            Autoscaled::Live => DemandMode::Live,
            Autoscaled::Ceiling => DemandMode::Ceiling,
        }
    }

    /// Returns when a voluntary change is worth it.
    pub(super) fn solve_settings(&self) -> Settings {
        let consolidation = &self.fleet.consolidation;
        Settings {
            horizon_hours: consolidation.horizon.as_hours(),
            restart_cost: consolidation.restart_cost,
            minimum_saving_milli_percent: consolidation.minimum_saving_milli_percent.into(),
        }
    }

    /// Returns what turns a template into a pod, with the defaults of the repository.
    pub(super) fn shape_of(&self) -> ShapeOf {
        let desired = Rc::clone(&self.desired);
        Rc::new(move |namespace, template| {
            shape_of(namespace, template, &ShapeContext::of(&desired))
        })
    }
}
