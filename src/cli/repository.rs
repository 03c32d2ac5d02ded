//! A repository: its settings and its desired state.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::error::CliError;
use super::signature_check::{SignatureTrust, check_signatures};
use crate::adapters::external_sources::{MountedFiles, SourceCache};
use crate::adapters::git::{RepositoryTree, TreeBase, UnreadDirectory, UnreadReason};
use crate::adapters::renderers::Renderers;
use crate::catalog::{Catalog, CatalogError};
use crate::demand::DemandMode;
use crate::manifest::ports::RepositoryFiles;
use crate::manifest::{
    Alternatives, cluster_alternatives, is_read_directly, read_fleet, read_region_prices,
    read_source_lock, render_rounds,
};
#[cfg(feature = "sandbox")]
use crate::manifest::{DeclaredObject, declared_objects};
use crate::model::commit::CommitSignature;
use crate::model::desired::{
    AppliedBy, ApplyConditions, ControllerSettings, Desired, FLEET_FILE, Fleet, PoolLimits,
    PoolSource, PricingCommitment, Problem, RegionPrices, RenderResults, RepositoryLocation,
    Severity, Skipped, Tree, Unresolved, UnresolvedPolicy, is_external,
};
use crate::model::ids::{Origin, Region};
use crate::model::market::{MarketQuery, ZoneSetting};
use crate::model::observed::{ClusterIdentity, ClusterPools, Observed};
use crate::plan::wire::RenderedRow;
use crate::render::RepositoryFacts;
use crate::solver::Settings;

/// A repository that was read.
#[derive(Debug)]
pub(super) struct Repository {
    pub(super) fleet: FleetSettings,
    /// The desired state, including problems of `fleetwright.yaml`.
    pub(super) desired: Desired,
    /// The commit and digest of the tree, including the inputs of renderers.
    pub(super) base: TreeBase,
    /// True if the tree is the whole Git repository.
    pub(super) is_whole: bool,
    /// The output of renderers.
    pub(super) rendered: Vec<RenderedRow>,
    /// Digest of everything that the tree declares besides the rules that judge its plans.
    pub(super) fleet_digest: String,
    /// Whether listed signers signed the commit.
    pub(super) signature: CommitSignature,
    /// Digest of the pools of the cluster, if the settings read them and they were read.
    pub(super) cluster_pools: Option<String>,
}

/// The settings of a repository.
#[derive(Debug)]
pub(super) struct FleetSettings {
    /// True if `fleetwright.yaml` exists. Without it, the world replaces defaults.
    pub(super) is_declared: bool,
    /// True if commits must be signed by listed signers.
    pub(super) lists_signers: bool,
    pub(super) cluster: String,
    pub(super) region: Region,
    pub(super) zones: Vec<ZoneSetting>,
    /// List prices of the repository.
    prices: Option<RegionPrices>,
    pub(super) demand: DemandMode,
    /// In the syntax of `--world`.
    pub(super) world: String,
    pub(super) solve: Settings,
    /// Policy directories, relative to the root.
    pub(super) policies: Vec<String>,
    pub(super) commitments: Vec<PricingCommitment>,
    pub(super) guard: ApplyConditions,
    pub(super) controller: ControllerSettings,
    /// Where node pools and node classes are declared.
    pub(super) pools: PoolSource,
}

/// The pools of the cluster; `None` where they are not read.
pub(super) type PoolsRead = Option<Arc<ClusterPools>>;

impl Repository {
    /// Reads `fleetwright.yaml` and every manifest of a tree, including rendered ones. Pools of the
    /// cluster are not read.
    pub(super) fn read(tree: &RepositoryTree) -> Self {
        Self::read_trusting(tree, &SignatureTrust::default(), None)
    }

    /// Reads a tree, and its objects as their files write them.
    #[cfg(feature = "sandbox")]
    pub(super) fn read_with_objects(tree: &RepositoryTree) -> (Self, Vec<DeclaredObject>) {
        let mut objects = Vec::new();
        let mut keep = |tree: &Tree, fleet: &Fleet, renderings: &RenderResults| {
            objects = declared_objects(tree, fleet, renderings);
        };
        let (trust, renderers) = (SignatureTrust::default(), Renderers::from_environment());
        let repository = Self::read_and_visit(tree, &trust, &renderers, None, &mut keep);
        (repository, objects)
    }

    /// Reads a tree whose chain of signatures starts from `trust`.
    pub(super) fn read_trusting(
        tree: &RepositoryTree,
        trust: &SignatureTrust,
        pools: PoolsRead,
    ) -> Self {
        Self::read_with(tree, trust, &Renderers::from_environment(), pools)
    }

    /// Reads a tree to apply a plan of it. Renderers run again: other jobs on the same computer may
    /// write to their cache.
    pub(super) fn read_for_apply(
        tree: &RepositoryTree,
        trust: &SignatureTrust,
        pools: PoolsRead,
    ) -> Self {
        let toolbox = Renderers::from_environment().without_cache();
        Self::read_with(tree, trust, &toolbox, pools)
    }

    fn read_with(
        tree: &RepositoryTree,
        trust: &SignatureTrust,
        toolbox: &Renderers,
        pools: PoolsRead,
    ) -> Self {
        Self::read_and_visit(tree, trust, toolbox, pools, &mut |_, _, _| {})
    }

    /// Reads a tree, and shows the files and the rendered output that were read to `visit`.
    fn read_and_visit(
        tree: &RepositoryTree,
        trust: &SignatureTrust,
        toolbox: &Renderers,
        pools: PoolsRead,
        visit: &mut dyn FnMut(&Tree, &Fleet, &RenderResults),
    ) -> Self {
        let (fleet, problems) = read_fleet(&tree.tree);
        let pools = pools.filter(|_| fleet.pools == PoolSource::Cluster);
        let cluster_pools = pools.as_ref().map(|pools| pools.digest());
        let home = location(tree);
        let (locked, lock_problem) = read_source_lock(&tree.tree);
        let (prices, price_problem) = read_region_prices(&tree.tree, &fleet);
        let cache = SourceCache::from_environment();
        let files = MountedFiles::new(&*tree.files, &locked, cache.as_ref());
        let extended = files.extend_tree(&tree.tree);
        let external = files.sources().clone();
        let (mut desired, renderings) =
            render_rounds::read(&extended, &fleet, home, external, pools, &files, toolbox);
        visit(&extended, &fleet, &renderings);
        desired.problems.extend(problems);
        desired.problems.extend(lock_problem);
        desired.problems.extend(price_problem);
        desired.skipped.extend(reserved_files(tree));
        let (base, rendered) = base_with_inputs(tree, &renderings);
        let (signature, problem) = check_signatures(&fleet, tree, trust, base.dirty);
        desired.problems.extend(problem);
        desired.problems.extend(network_warning(&renderings, toolbox));
        desired.problems.extend(outer_settings_warning(tree));
        desired.skipped.extend(tree.skipped.iter().cloned());
        desired.skipped.sort();
        let unread = tree.unread_directories.iter();
        let unread = unread.filter(|directory| is_read_directly(&fleet, &directory.path));
        desired.unresolved.extend(unread.map(unresolved_directory));
        desired.unresolved.sort();
        let (directory, files) = (tree.root_in_repository(), extended.files.len());
        desired.problems.extend(nothing_declared(&fleet, &desired, directory, files));
        desired.problems.sort();
        desired.problems.dedup();
        let fleet_digest = fleet_digest(&fleet, tree, &rendered);
        let fleet = FleetSettings { prices, ..FleetSettings::from_fleet(fleet) };
        let is_whole = tree.is_whole_repository;
        Self { fleet, desired, base, is_whole, rendered, fleet_digest, signature, cluster_pools }
    }

    /// Returns the part for which EC2 offerings are read.
    pub(super) fn market_query(&self) -> MarketQuery<'_> {
        let Self { fleet, desired, .. } = self;
        MarketQuery {
            region: &fleet.region,
            zones: &fleet.zones,
            pools: &desired.pools,
            has_prices: fleet.prices.is_some(),
        }
    }

    /// Returns true if the repository declares nothing that a plan is about.
    pub(super) fn is_empty(&self) -> bool {
        declares_nothing(&self.desired)
    }

    /// Returns the facts that plans do not record. Changed files have no author.
    pub(super) fn facts(&self) -> RepositoryFacts {
        let limited =
            self.desired.pools.values().filter(|pool| pool.limits != PoolLimits::default());
        RepositoryFacts {
            origin: self.base.origin.clone().filter(|_| !self.base.dirty),
            pool_limits: limited.map(|pool| (pool.name.clone(), pool.limits.clone())).collect(),
        }
    }
}

fn location(tree: &RepositoryTree) -> RepositoryLocation {
    RepositoryLocation {
        repository: tree.base.repository.clone(),
        path: tree.root_in_repository().to_owned(),
    }
}

/// Returns the parts of a tree that belong to different clusters, whatever its settings say.
pub(super) fn alternatives(tree: &RepositoryTree) -> Vec<Alternatives> {
    let (locked, _) = read_source_lock(&tree.tree);
    let cache = SourceCache::from_environment();
    let files = MountedFiles::new(&*tree.files, &locked, cache.as_ref());
    let extended = files.extend_tree(&tree.tree);
    let (fleet, external) = (Fleet::default(), files.sources().clone());
    let toolbox = Renderers::from_environment();
    let (_, renderings) =
        render_rounds::read(&extended, &fleet, location(tree), external, None, &files, &toolbox);
    cluster_alternatives(&extended, &renderings)
}

/// Returns the digest of everything that a tree declares besides its rules.
fn fleet_digest(fleet: &Fleet, tree: &RepositoryTree, rendered: &[RenderedRow]) -> String {
    let settings = Fleet {
        origin: None,
        pools_origin: None,
        signers: Vec::new(),
        policies: Vec::new(),
        unresolved: UnresolvedPolicy::default(),
        guard: ApplyConditions::default(),
        controller: ControllerSettings::default(),
        ..fleet.clone()
    };
    let mut hash = Sha256::new_with_prefix(format!("{settings:?}"));
    for file in tree.tree.files.iter().filter(|file| &*file.path != FLEET_FILE) {
        hash.update(format!("{}\n{:?}\n", file.path, file.content));
    }
    for row in rendered {
        hash.update(&row.inputs);
    }
    hex::encode(hash.finalize())
}

/// Returns true if a file declares a pool.
fn declares_pool(desired: &Desired) -> bool {
    desired.pools.values().any(|pool| !pool.origin.is_in_cluster())
}

/// Returns true if nothing is declared that a plan is about, and nothing is unread that may declare
/// it. Pools of the cluster and groups of the settings do not count: they stay when the files are
/// lost.
fn declares_nothing(desired: &Desired) -> bool {
    let is_unread =
        !desired.unresolved.is_empty() && desired.unresolved_policy != UnresolvedPolicy::Ignore;
    !is_unread
        && desired.workloads.is_empty()
        && desired.assumed.is_empty()
        && !declares_pool(desired)
        && desired.auto_mode_pools.is_empty()
        && desired.node_groups.is_empty()
        && desired.fargate_profiles.is_empty()
}

/// Returns an error if the tree declares nothing. Its files are most likely elsewhere or lost, and
/// its plan would remove every node.
fn nothing_declared(
    fleet: &Fleet,
    desired: &Desired,
    directory: &str,
    files: usize,
) -> Option<Problem> {
    // An object with an error may be the declaration.
    let has_errors = desired.problems.iter().any(|problem| problem.severity == Severity::Error);
    let is_empty = declares_nothing(desired) && !has_errors;
    let place = if directory.is_empty() { String::new() } else { format!(" in {directory}") };
    let message = format!("no workload and no pool is declared{place}; files read: {files}");
    let hint = match fleet.origin {
        Some(_) => {
            "restore the files, or correct spec.sources; to empty the fleet, keep its pools or a \
             workload with `replicas: 0` declared until its nodes are gone"
        }
        None => "name a directory of manifests, or write the settings: fleetwright init",
    };
    is_empty.then(|| Problem::error(Origin::new(".", 0), "", message).hint(hint))
}

/// Returns a warning if the settings of a directory above are not used.
fn outer_settings_warning(tree: &RepositoryTree) -> Option<Problem> {
    let file = tree.outer_settings.as_ref()?;
    let message = format!("the settings of {file} are not used");
    let hint = "run the command in its directory, or name that directory";
    Some(Problem::warning(Origin::new(".", 0), "", message).hint(hint))
}

/// Returns a warning if renderers had network access, which may change their output.
fn network_warning(renderings: &RenderResults, toolbox: &Renderers) -> Option<Problem> {
    let ran = renderings.results.values().any(Result::is_ok);
    (ran && !toolbox.is_sandboxed()).then(|| Problem::warning(Origin::new("fleetwright.yaml", 0), "spec.sources", "the renderers ran with network access, because this computer does not allow to isolate them").hint("allow user namespaces (`unshare --map-root-user --net true` must work), use Linux 6.7 or later, or render \
             where there is no network"))
}

/// Returns the files of the repository in the directory of external sources.
fn reserved_files(tree: &RepositoryTree) -> impl Iterator<Item = Skipped> {
    let reserved = tree.tree.files.iter().filter(|file| is_external(&file.path));
    reserved.map(|file| Skipped {
        origin: Origin::new(&file.path, 0),
        reason: "its directory is reserved for external sources".to_owned(),
    })
}

fn unresolved_directory(directory: &UnreadDirectory) -> Unresolved {
    let UnreadDirectory { path, reason } = directory;
    let (kind, reason) = match reason {
        UnreadReason::Submodule => (
            "submodule",
            "its files are those of another repository; plan that one by itself, or name the paths \
             to read under `spec.sources` in fleetwright.yaml",
        ),
        UnreadReason::Link => (
            "link",
            "it is broken, or it points out of the directory that is read; replace it, or name the paths to \
             read under `spec.sources` in fleetwright.yaml",
        ),
    };
    Unresolved {
        origin: Origin::new(path, 0),
        object: format!("{kind} {path}"),
        reason: reason.to_owned(),
    }
}

/// Returns the identity of the tree, with the inputs of renderers. Files that are not manifests,
/// such as chart templates, also decide the output.
fn base_with_inputs(
    tree: &RepositoryTree,
    renderings: &RenderResults,
) -> (TreeBase, Vec<RenderedRow>) {
    let mut base = tree.base.clone();
    let mut rows = Vec::new();
    for (order, rendered) in &renderings.results {
        let Ok(rendered) = rendered else { continue };
        rows.push(RenderedRow {
            path: order.path.clone(),
            tool: rendered.tool.clone(),
            inputs: rendered.inputs.clone(),
        });
        base.dirty |= rendered.files.iter().any(|file| tree.files.is_changed(file));
    }
    rows.sort();
    if !rows.is_empty() {
        let mut hash = Sha256::new_with_prefix(&base.tree);
        for row in &rows {
            hash.update(&row.inputs);
        }
        base.tree = format!("sha256:{}", hex::encode(hash.finalize()));
    }
    (base, rows)
}

/// Reads the `fleetwright.yaml` that guards a change, or returns its problems as an error.
pub(super) fn read_guarding_fleet(tree: &RepositoryTree) -> Result<Fleet, CliError> {
    let (fleet, problems) = read_fleet(&tree.tree);
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
    let errors: Vec<String> = errors
        .map(|Problem { origin, object, message, .. }| format!("{origin}: {object}: {message}"))
        .collect();
    if errors.is_empty() {
        return Ok(fleet);
    }
    Err(CliError::text(format!("the settings that guard have errors: {}", errors.join("; ")))
        .hint("fix them there, or name another commit with --guard-ref"))
}

impl FleetSettings {
    /// Reads `fleetwright.yaml` of a tree alone, as far as possible.
    pub(super) fn read(tree: &RepositoryTree) -> Self {
        Self::from_fleet(read_fleet(&tree.tree).0)
    }

    /// Reads the `fleetwright.yaml` that guards a change. Any problem in it is an error, because
    /// unreadable settings guard nothing.
    pub(super) fn read_guarding(tree: &RepositoryTree) -> Result<Self, CliError> {
        Ok(Self::from_fleet(read_guarding_fleet(tree)?))
    }

    fn from_fleet(fleet: Fleet) -> Self {
        let zones = fleet.cluster.zones.into_iter();
        let consolidation = fleet.consolidation;
        let hours = consolidation.horizon.as_hours().max(1);
        Self {
            is_declared: fleet.origin.is_some(),
            lists_signers: !fleet.signers.is_empty(),
            cluster: fleet.cluster.name,
            region: fleet.cluster.region,
            zones: zones.map(|(name, id)| ZoneSetting { name, id }).collect(),
            prices: None,
            demand: fleet.demand.autoscaled,
            world: fleet.world,
            policies: fleet.policies,
            commitments: fleet.commitments,
            guard: fleet.guard,
            controller: fleet.controller,
            pools: fleet.pools,
            solve: Settings {
                horizon_hours: hours,
                restart_cost: consolidation.restart_cost,
                minimum_saving_milli_percent: i64::from(consolidation.minimum_saving_milli_percent),
                minimum_fleet_saving_milli_percent: i64::from(
                    consolidation.minimum_fleet_saving_milli_percent,
                ),
                worst_case: fleet.worst_case,
                ..Settings::default()
            },
        }
    }

    /// Returns the problem of keys that the controller would not check: its plans change with each
    /// observation, so no signature covers them.
    pub(super) fn ignored_keys(&self) -> Option<Problem> {
        let is_ignored =
            !self.guard.keys.is_empty() && self.controller.applied_by == AppliedBy::Controller;
        is_ignored.then(|| {
            Problem::error(
                Origin::new("fleetwright.yaml", 0),
                "spec.apply.keys",
                "the controller applies merges here, and checks no signatures of approvers",
            )
            .hint("set spec.apply.by: ci; or remove the keys, and set spec.controller.approval: digest")
        })
    }

    /// Returns the declared region, or that of the observed cluster.
    pub(super) fn region_of(&self, observed: &Observed) -> Region {
        if self.is_declared { self.region.clone() } else { observed.region() }
    }

    /// Returns the catalog of `region`, with the prices of the repository.
    pub(super) fn catalog(&self, region: &Region) -> Result<Catalog, CatalogError> {
        self.catalog_of_zones(region, &self.zones)
    }

    /// Returns the catalog of these zones, with the prices of the repository.
    pub(super) fn catalog_of_zones(
        &self,
        region: &Region,
        zones: &[ZoneSetting],
    ) -> Result<Catalog, CatalogError> {
        Catalog::load_with_prices(region, zones, self.prices.as_ref())
    }

    /// Returns the cluster identity, as far as the repository declares it.
    pub(super) fn identity(&self) -> ClusterIdentity {
        ClusterIdentity {
            name: self.cluster.clone(),
            region: self.region.to_string(),
            ..ClusterIdentity::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::{ExternalGroup, Pool};
    use crate::testing::pool;

    fn declare(desired: &mut Desired, pool: Pool) {
        desired.pools.insert(pool.name.clone(), pool);
    }

    fn unread() -> Vec<Unresolved> {
        let (object, reason) = ("chart shop".to_owned(), "is not rendered".to_owned());
        vec![Unresolved { origin: Origin::new("Chart.yaml", 1), object, reason }]
    }

    #[test]
    fn unread_part_may_declare_what_the_rest_does_not() {
        type Change = fn(&mut Desired);
        let cases: [(&str, Change, bool); 8] = [
            ("nothing", |_| {}, true),
            ("a pool of a file", |desired| declare(desired, pool()), false),
            (
                "a pool of the cluster",
                |desired| {
                    let origin = Origin::in_cluster("NodePool", "default");
                    declare(desired, Pool { origin, ..pool() });
                },
                true,
            ),
            ("unread pools of the cluster", |desired| desired.has_unread_pools = true, true),
            (
                "a group of the settings",
                |desired| {
                    let group = ExternalGroup { manage: true, origin: Origin::new(FLEET_FILE, 1) };
                    desired.external_groups.insert("web".into(), group);
                },
                true,
            ),
            ("an unread source", |desired| desired.unresolved = unread(), false),
            (
                "an unread source that counts as empty",
                |desired| {
                    desired.unresolved = unread();
                    desired.unresolved_policy = UnresolvedPolicy::Ignore;
                },
                true,
            ),
            (
                "a file with an error",
                |desired| desired.problems = vec![Problem::error(Origin::new("a", 1), "", "wrong")],
                false,
            ),
        ];
        for (case, change, is_error) in cases {
            let mut desired = Desired::default();
            change(&mut desired);
            let problem = nothing_declared(&Fleet::default(), &desired, "clusters/prod", 1);
            assert_eq!(problem.is_some(), is_error, "{case}");
            let names = |one: Problem| one.message.contains("declared in clusters/prod; files");
            assert!(problem.is_none_or(names), "{case}");
        }
    }
}
