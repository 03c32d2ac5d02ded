//! A repository as commands use it: its settings, and what it asks for.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

use super::error::CliError;
use super::signers::unsigned;
use crate::catalog::ZoneSetting;
use crate::demand::DemandMode;
use crate::fleet::ClusterIdentity;
use crate::git::{TreeBase, TreeRead};
use crate::ids::{Origin, Region, hex};
use crate::manifest::{
    Autoscaled, Commitment, ControllerSettings, Desired, Fleet, GuardSettings, Home, Problem,
    Renderings, Severity, Unresolved, is_read, read_fleet,
};
use crate::plan::wire::RenderedRow;
use crate::port::Repo;
use crate::solve::Settings;
use crate::sources;
use crate::tools::Toolbox;

/// A repository, read.
#[derive(Debug)]
pub(super) struct Repository {
    pub(super) fleet: FleetSettings,
    /// What it asks for; problems of `fleetwright.yaml` are among its own.
    pub(super) desired: Desired,
    /// Where it comes from, what tools were given of it included.
    pub(super) base: TreeBase,
    /// What tools made of it.
    pub(super) rendered: Vec<RenderedRow>,
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
    /// Directories of policies, below the root.
    pub(super) policies: Vec<String>,
    pub(super) commitments: Vec<Commitment>,
    pub(super) guard: GuardSettings,
    pub(super) controller: ControllerSettings,
}

impl Repository {
    /// Reads `fleetwright.yaml` and every manifest of a tree, those that tools make included.
    pub(super) fn read(tree: &TreeRead) -> Self {
        Self::read_since(tree, &BTreeSet::new())
    }

    /// Reads a tree of which the commits `trusted` count whoever signed them.
    pub(super) fn read_since(tree: &TreeRead, trusted: &BTreeSet<String>) -> Self {
        let (fleet, problems) = read_fleet(&tree.tree);
        let base = &tree.base;
        let home = Home { repository: base.repository.clone(), below: base.below.clone() };
        let toolbox = Toolbox::of_environment();
        let (mut desired, renderings) =
            sources::read(&tree.tree, &fleet, home, &*tree.shelf, &toolbox);
        desired.problems.extend(problems);
        let (base, rendered) = base_with(tree, &renderings);
        desired.problems.extend(unsigned(&fleet, tree, (trusted, base.dirty)));
        desired.problems.extend(unconfined(&renderings, &toolbox));
        desired.problems.sort();
        desired.problems.dedup();
        desired.skipped.extend(tree.skipped.iter().cloned());
        desired.skipped.sort();
        let unknown = tree.submodules.iter().filter(|path| is_read(&fleet, path));
        desired.unresolved.extend(unknown.map(|path| of_submodule(path)));
        desired.unresolved.sort();
        Self { fleet: FleetSettings::of(fleet), desired, base, rendered }
    }
}

/// Returns a warning where tools ran with a network, which may decide what they make.
fn unconfined(renderings: &Renderings, toolbox: &Toolbox) -> Option<Problem> {
    let ran = renderings.done.values().any(Result::is_ok);
    (ran && !toolbox.is_confined()).then(|| Problem {
        origin: Origin::new("fleetwright.yaml", 0),
        severity: Severity::Warning,
        object: "spec.sources".to_owned(),
        message: "the tools that render it ran with a network: this machine does not let it be \
                  taken from them"
            .to_owned(),
        hint: Some(
            "allow user namespaces (`unshare --map-root-user --net true` must work), or render \
             where there is no network"
                .to_owned(),
        ),
    })
}

fn of_submodule(path: &str) -> Unresolved {
    Unresolved {
        origin: Origin::new(path, 0),
        object: format!("submodule {path}"),
        reason: "its files are those of another repository; plan that one by itself, or name the \
                 paths to read under `spec.sources` in fleetwright.yaml"
            .to_owned(),
    }
}

/// Returns where the tree comes from, with what tools were given of it: files that are no manifests
/// themselves, such as the templates of a chart, decide as well.
fn base_with(tree: &TreeRead, renderings: &Renderings) -> (TreeBase, Vec<RenderedRow>) {
    let mut base = tree.base.clone();
    let mut rows = Vec::new();
    for (order, rendered) in &renderings.done {
        let Ok(rendered) = rendered else { continue };
        rows.push(RenderedRow {
            path: order.path.clone(),
            tool: rendered.tool.clone(),
            inputs: rendered.inputs.clone(),
        });
        base.dirty |= rendered.files.iter().any(|file| tree.shelf.is_changed(file));
    }
    rows.sort();
    if !rows.is_empty() {
        let mut hash = Sha256::new_with_prefix(&base.tree);
        for row in &rows {
            hash.update(&row.inputs);
        }
        base.tree = format!("sha256:{}", hex(&hash.finalize()));
    }
    (base, rows)
}

impl FleetSettings {
    /// Reads `fleetwright.yaml` of a tree alone, as far as it can be read.
    pub(super) fn read(tree: &TreeRead) -> Self {
        Self::of(read_fleet(&tree.tree).0)
    }

    /// Reads `fleetwright.yaml` of a tree that guards others: what cannot be read guards nothing, so
    /// any error in it is one.
    pub(super) fn guarding(tree: &TreeRead) -> Result<Self, CliError> {
        let (fleet, problems) = read_fleet(&tree.tree);
        let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
        let errors: Vec<String> = errors
            .map(|Problem { origin, object, message, .. }| format!("{origin}: {object}: {message}"))
            .collect();
        if errors.is_empty() {
            return Ok(Self::of(fleet));
        }
        Err(CliError::text(format!("the settings that guard have errors: {}", errors.join("; ")))
            .hint("mend them there, or name another commit with --guard-ref"))
    }

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
            policies: fleet.policies,
            commitments: fleet.commitments,
            guard: fleet.guard,
            controller: fleet.controller,
            solve: Settings {
                steer: false,
                workers: None,
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
