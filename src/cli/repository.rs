//! A repository as commands use it: its settings, and what it asks for.

use sha2::{Digest, Sha256};

use crate::catalog::ZoneSetting;
use crate::demand::DemandMode;
use crate::fleet::ClusterIdentity;
use crate::git::{Parent, TreeBase, TreeRead};
use crate::ids::{Origin, Region};
use crate::manifest::{
    Autoscaled, Commitment, Desired, Fleet, GuardSettings, Home, Problem, Renderings, Severity,
    Signer, Tree, TreeFile, Unresolved, is_read, read_fleet,
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
}

impl Repository {
    /// Reads `fleetwright.yaml` and every manifest of a tree, those that tools make included.
    pub(super) fn read(tree: &TreeRead) -> Self {
        let (fleet, problems) = read_fleet(&tree.tree);
        let base = &tree.base;
        let home = Home { repository: base.repository.clone(), below: base.below.clone() };
        let toolbox = Toolbox::of_environment();
        let (mut desired, renderings) =
            sources::read(&tree.tree, &fleet, home, &*tree.shelf, &toolbox);
        desired.problems.extend(problems);
        let (base, rendered) = base_with(tree, &renderings);
        desired.problems.extend(unsigned(&fleet, tree, base.dirty));
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

/// Returns what is wrong with who signed the files, where the settings say whose signature counts.
fn unsigned(fleet: &Fleet, tree: &TreeRead, dirty: bool) -> Option<Problem> {
    let problem = |message: String, hint: &str| Problem {
        origin: fleet.origin.clone().unwrap_or_else(|| Origin::new("fleetwright.yaml", 0)),
        severity: Severity::Error,
        object: "spec.signers".to_owned(),
        message,
        hint: Some(hint.to_owned()),
    };
    let Some(proof) = &tree.proof else {
        let none = "the files are in no commit, so nobody signed them".to_owned();
        return (!fleet.signers.is_empty()).then(|| problem(none, "commit and sign them"));
    };
    let before = match &proof.parent {
        Parent::Settings(Some(settings)) => signers_of(settings),
        Parent::Settings(None) | Parent::None | Parent::Absent => Vec::new(),
    };
    let signers = if before.is_empty() { &fleet.signers } else { &before };
    if signers.is_empty() {
        return None;
    }
    if proof.parent == Parent::Absent {
        let message = "the commit before, whose signers count, is not in this clone".to_owned();
        return Some(problem(message, "fetch it: `git fetch --deepen=1`"));
    }
    if dirty {
        let message = "the files differ from the commit, so nobody signed them".to_owned();
        return Some(problem(message, "commit and sign them, or plan the commit with --ref HEAD"));
    }
    let why = proof.signer(signers).err()?;
    let commit: String = tree.base.commit.iter().flat_map(|id| id.chars()).take(12).collect();
    let hint = "have it signed by one of the signers that the commit before lists";
    Some(problem(format!("commit {commit} does not count: {why}"), hint))
}

/// Returns the signers that settings list.
fn signers_of(settings: &[u8]) -> Vec<Signer> {
    let file = TreeFile { path: "fleetwright.yaml".into(), content: Ok(settings.into()) };
    read_fleet(&Tree { files: vec![file] }).0.signers
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
        base.tree = hash
            .finalize()
            .iter()
            .fold("sha256:".to_owned(), |hex, byte| format!("{hex}{byte:02x}"));
    }
    (base, rows)
}

impl FleetSettings {
    /// Reads `fleetwright.yaml` of a tree alone.
    pub(super) fn read(tree: &TreeRead) -> Self {
        Self::of(read_fleet(&tree.tree).0)
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
            solve: Settings {
                steer: false,
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
