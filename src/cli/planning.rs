//! From settings to a plan: read the tree, look at the world, ask the engine.

use std::path::Path;

use super::error::CliError;
use super::policy::Judge;
use super::repository::Repository;
use super::settings::{PlanningSettings, SourceSettings};
use super::world::{self, WorldChoice};
use super::{Console, Exit};
use jiff::Timestamp;

use crate::catalog::{Catalog, Market, ZoneSetting};
use crate::demand::DemandMode;
use crate::engine::{self, Inputs};
use crate::fleet::Observed;
use crate::git::{CloneCache, Remote, TreeRead, read_revision, read_tree};
use crate::ids::Region;
use crate::plan::wire::{Action, Base, BaseWorld, ResourceChange};
use crate::plan::{Plan, breakdown, compare};
use crate::policy;

/// Reads the files that the settings name.
pub(super) fn read(source: &SourceSettings) -> Result<TreeRead, CliError> {
    let SourceSettings { path, revision } = source;
    let read = match (path.to_str().and_then(Remote::parse), revision) {
        (Some(remote), revision) => {
            let cache = CloneCache::of_environment()?;
            remote.read(revision.as_deref(), &cache)
        }
        (None, None) => read_tree(path),
        (None, Some(revision)) => read_revision(path, revision),
    };
    let read = read?;
    tracing::info!(files = read.tree.files.len(), commit = read.base.commit, "tree read");
    Ok(read)
}

/// Makes a plan, judged by policies, and compared where that is asked for.
pub(super) fn plan(settings: &PlanningSettings, console: &Console) -> Result<Plan, CliError> {
    let read = read(&settings.source)?;
    let judge = Judge::read(&settings.source, &read, &settings.guard)?;
    let repository = Repository::read_since(&read, &judge.trusted);
    let world = choice(settings.world.as_ref(), &settings.source, &repository)?;
    let mut observed = world::observe(&world, &repository, settings.at, console)?;
    let before = settings.compare.as_deref().map(|revision| compared(settings, revision));
    let before = before.transpose()?;
    if let Some((_, before)) = &before {
        // Nothing in a cluster tells whose a workload is, and the revision compared with does.
        let head = &repository.desired.workloads;
        let before = before.desired.workloads.keys();
        observed.deliver(before.filter(|id| !head.contains_key(*id)).cloned());
    }
    let at = world::moment(&world, settings.at, &observed, console);
    let market = world::market(&world, &repository, &observed);
    let ground = Ground { world, observed, at, market };
    let mut plan = ground.plan(settings, &repository)?;
    if let Some((revision, before)) = &before {
        let other = ground.plan(settings, before)?;
        plan.capacity.comparison = Some(compare(&plan, &other, revision));
    }
    judge.record(&mut plan);
    tracing::info!(plan_id = %plan.capacity.plan_id, rows = plan.resource_changes.len(), "planned");
    Ok(plan)
}

/// What every revision is planned over.
struct Ground {
    world: WorldChoice,
    observed: Observed,
    at: Timestamp,
    /// What EC2 offers now, or why that is not known; nothing where nobody asked.
    market: Option<Result<Market, String>>,
}

impl Ground {
    fn plan(&self, settings: &PlanningSettings, repository: &Repository) -> Result<Plan, CliError> {
        let Self { world, observed, at, market } = self;
        let fleet = &repository.fleet;
        let region = if fleet.is_declared { fleet.region.clone() } else { observed.region() };
        let catalog = catalog(&region, &fleet.zones, market.as_ref())?;
        let demand = settings.demand.unwrap_or(fleet.demand);
        let mut plan = engine::plan(&Inputs {
            desired: &repository.desired,
            observed,
            catalog: &catalog,
            base: base_of(&settings.source, repository, world, observed, demand),
            at: *at,
            demand,
            is_forecast: false,
            scope: settings.scope.clone(),
            settings: crate::solve::Settings { steer: settings.steer, ..fleet.solve },
        });
        plan.capacity.cost.breakdown = breakdown(&plan, &fleet.commitments);
        Ok(plan)
    }
}

/// Reads the revision that the plan is compared with.
fn compared<'a>(
    settings: &PlanningSettings,
    revision: &'a str,
) -> Result<(&'a str, Repository), CliError> {
    let source = SourceSettings { revision: Some(revision.to_owned()), ..settings.source.clone() };
    Ok((revision, Repository::read(&read(&source)?)))
}

/// Returns what the region offers: as EC2 says, where it was asked and answered.
pub(super) fn catalog(
    region: &Region,
    zones: &[ZoneSetting],
    market: Option<&Result<Market, String>>,
) -> Result<Catalog, CliError> {
    match market {
        Some(Ok(market)) => {
            let catalog = Catalog::load(region, &market.zone_settings(zones))?;
            Ok(catalog.traded(market, zones))
        }
        Some(Err(why)) => {
            let mut catalog = Catalog::load(region, zones)?;
            catalog.warnings.push(format!(
                "what EC2 offers now is not known, and what is embedded stands in: {why}"
            ));
            Ok(catalog)
        }
        None => Ok(Catalog::load(region, zones)?),
    }
}

/// Returns the world that was asked for, else that of `fleetwright.yaml`.
pub(super) fn choice(
    asked: Option<&WorldChoice>,
    source: &SourceSettings,
    repository: &Repository,
) -> Result<WorldChoice, CliError> {
    if let Some(world) = asked {
        return Ok(world.clone());
    }
    let world = WorldChoice::parse(&repository.fleet.world)?;
    // What the repository names is relative to the repository, not to where the user stands, unless
    // there is no directory of it here.
    let is_here = source.path.to_str().and_then(Remote::parse).is_none();
    Ok(if is_here { world.below(&source.path) } else { world })
}

/// Returns the path or URL as a plan records it.
fn shown(path: &Path) -> String {
    let remote = path.to_str().and_then(Remote::parse);
    remote.map_or_else(|| path.display().to_string(), |remote| remote.shown())
}

/// Returns what a plan of this tree over this world is made from.
pub(super) fn base_of(
    source: &SourceSettings,
    repository: &Repository,
    world: &WorldChoice,
    observed: &Observed,
    demand: DemandMode,
) -> Base {
    Base {
        path: shown(&source.path),
        directory: repository.base.commit.as_ref().map(|_| repository.base.below.clone()),
        repository: repository.base.repository.clone(),
        commit: repository.base.commit.clone(),
        tree: repository.base.tree.clone(),
        dirty: repository.base.dirty,
        rendered: repository.rendered.clone(),
        world: BaseWorld {
            name: world.to_string(),
            cluster: observed.cluster.clone(),
            taken_at: observed.taken_at,
            sources: observed.sources.clone(),
        },
        demand,
        preconditions: Vec::new(),
        guard: None,
        judged_by: Vec::new(),
    }
}

/// Returns whether the plan would change anything.
pub(super) fn has_changes(plan: &Plan) -> bool {
    let changes = |row: &ResourceChange| row.change.actions != [Action::NoOp];
    plan.resource_changes.iter().any(changes) || !plan.capacity.waves.is_empty()
}

/// Returns how a plan ends a command that does not apply it: errors, then policies, then changes.
pub(super) fn exit(plan: &Plan, detailed: bool) -> Exit {
    if plan.errored {
        Exit::Failed
    } else if is_denied(plan) {
        Exit::Denied
    } else if detailed && has_changes(plan) {
        Exit::Changes
    } else {
        Exit::Done
    }
}

/// Returns whether a policy denies the plan.
pub(super) fn is_denied(plan: &Plan) -> bool {
    policy::is_denied(plan)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tempfile::TempDir;

    use crate::cli::Exit;
    use crate::cli::tests::{Ran, ran};
    use crate::fleet::{ClusterIdentity, Observed, write_world};

    const FLEET: &str = "\
apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: test }
spec:
  cluster: { name: test, region: us-east-1, zones: [us-east-1a] }
";

    const POOL: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: web }
spec:
  template:
    spec:
      requirements:
      - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large] }
      - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: web }
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: web }
spec:
  role: web
  amiSelectorTerms: [{ alias: al2023@latest }]
  subnetSelectorTerms: [{ tags: { x: z } }]
  securityGroupSelectorTerms: [{ tags: { x: z } }]
";

    const WORKLOAD: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: { name: api, namespace: web }
spec:
  replicas: 3
  selector: { matchLabels: { app: api } }
  template:
    metadata: { labels: { app: api } }
    spec:
      containers:
      - name: api
        image: api
        resources: { requests: { cpu: 500m, memory: 1Gi } }
";

    const AT: [&str; 2] = ["--at", "2026-09-01T10:00:00Z"];

    fn tree() -> TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, content) in
            [("fleetwright.yaml", FLEET), ("pool.yaml", POOL), ("api.yaml", WORKLOAD)]
        {
            fs::write(directory.path().join(name), content).expect("written");
        }
        directory
    }

    fn text(path: &Path) -> &str {
        path.to_str().expect("UTF-8")
    }

    fn planned(tree: &TempDir, more: &[&str]) -> Ran {
        ran(&[&["plan", text(tree.path())], &AT[..], more].concat())
    }

    #[test]
    fn a_tree_is_planned_against_nothing_and_the_same_tree_gives_the_same_bytes() {
        let tree = tree();
        let first = planned(&tree, &["--detailed-exitcode"]);
        assert_eq!(first.exit, Exit::Changes, "{}{}", first.out, first.err);
        assert!(first.out.ends_with("\nPlan: 1 to add, 0 to change, 0 to destroy.\n"));
        assert!(first.out.contains("base ") && first.out.contains("world empty"));
        let json = || planned(&tree, &["--format", "json"]).out;
        assert_eq!(json(), json());
        let explained = ran(&[&["explain", "web/api", text(tree.path())], &AT[..]].concat());
        assert!(explained.out.contains("3 pods planned"), "{}{}", explained.out, explained.err);
    }

    #[test]
    fn a_saved_plan_is_the_plan() {
        let tree = tree();
        let saved = tree.path().join("plan.json");
        let shown = planned(&tree, &["--out", text(&saved)]);
        assert_eq!(ran(&["show", text(&saved)]).out, shown.out);
        assert_eq!(
            fs::read_to_string(&saved).expect("saved"),
            planned(&tree, &["--format", "json"]).out
        );
        let applied = ran(&["apply", text(&saved), "--auto-approve"]);
        assert_eq!(applied.exit, Exit::NotApproved, "nothing can be applied to an empty world");
    }

    #[test]
    fn an_embedded_world_is_made_once_and_keeps_its_own_time() {
        let tree = tree();
        let world = format!("sim:{}", text(&tree.path().join("world")));
        let began = planned(&tree, &["--world", &world, "--summary"]);
        assert!(began.out.contains("observed 2026-09-01T10:00:00Z (0s before)"), "{}", began.err);
        let later = ran(&["plan", text(tree.path()), "--world", &world, "--summary"]);
        assert_eq!(later.out, began.out, "the clock of the world, not that of the wall");
        let observed = ran(&["observe", text(tree.path()), "--world", &world]);
        assert_eq!(observed.exit, Exit::Done, "{}", observed.err);
        let file = tree.path().join("seen.json");
        fs::write(&file, &observed.out).expect("written");
        let from_file = planned(&tree, &["--world", text(&file), "--detailed-exitcode"]);
        assert_eq!(from_file.exit, Exit::Changes, "{}", from_file.err);
    }

    #[test]
    fn plan_apply_plan_again_finds_nothing_left_to_do() {
        let tree = tree();
        let world = format!("sim:{}", text(&tree.path().join("world")));
        let saved = tree.path().join("plan.json");
        let fresh = planned(&tree, &["--world", &world, "--out", text(&saved)]);
        assert_eq!(fresh.exit, Exit::Done, "{}", fresh.err);
        let nobody = ran(&["apply", text(&saved)]);
        assert_eq!(nobody.exit, Exit::NotApproved, "{}", nobody.err);
        let applied = ran(&["apply", text(&saved), "--auto-approve"]);
        assert_eq!(applied.exit, Exit::Done, "{}", applied.err);
        assert!(applied.err.contains("launched i-"), "{}", applied.err);
        let again = ran(&["plan", text(tree.path()), "--world", &world, "--detailed-exitcode"]);
        assert_eq!(again.exit, Exit::Done, "{}", again.out);
        assert!(again.out.ends_with("matches the configuration.\n"), "{}", again.out);
    }

    #[test]
    fn a_world_of_another_cluster_is_refused_with_10() {
        let tree = tree();
        let cluster = ClusterIdentity {
            name: "other".into(),
            region: "us-east-1".into(),
            ..ClusterIdentity::default()
        };
        let file = tree.path().join("other.json");
        let world = Observed::empty(cluster, jiff::Timestamp::UNIX_EPOCH);
        fs::write(&file, write_world(&world)).expect("written");
        let refused = planned(&tree, &["--world", text(&file)]);
        assert_eq!(refused.exit.code(), 10, "{}", refused.err);
        assert!(refused.err.contains("cluster `other`") && refused.err.contains("hint:"));
        fs::remove_file(tree.path().join("fleetwright.yaml")).expect("removed");
        let undeclared = planned(&tree, &["--world", text(&file)]);
        assert_eq!(undeclared.exit, Exit::Done, "{}", undeclared.err);
        assert!(undeclared.out.contains("Cluster other (us-east-1)"));
    }

    #[test]
    fn worlds_that_cannot_be_read_are_errors_with_a_way_out() {
        let tree = tree();
        fs::write(tree.path().join("bad.world"), "{}").expect("written");
        let bad = text(&tree.path().join("bad.world")).to_owned();
        for world in ["live", "no/such/file", &bad] {
            let refused = planned(&tree, &["--world", world]);
            assert_eq!((refused.exit, refused.out.as_str()), (Exit::Failed, ""), "{world}");
            assert!(refused.err.starts_with("error: "), "{}", refused.err);
        }
    }

    #[test]
    fn what_is_wrong_with_the_tree_ends_plan_and_validate_with_1_and_says_where() {
        let tree = tree();
        let valid = ran(&["validate", text(tree.path())]);
        assert_eq!(valid.exit, Exit::Done, "{}", valid.out);
        let broken = WORKLOAD.replace("1Gi", "1G1");
        fs::write(tree.path().join("api.yaml"), broken).expect("written");
        for command in ["plan", "validate"] {
            let ran = ran(&[command, text(tree.path())]);
            assert_eq!(ran.exit.code(), 1, "{command}");
            assert!(ran.out.contains("error: api.yaml:13: "), "{}", ran.out);
            assert!(ran.out.contains("\n  hint: "), "{}", ran.out);
        }
        let zone = FLEET.replace("us-east-1a", "us-east-1z");
        fs::write(tree.path().join("fleetwright.yaml"), zone).expect("written");
        let both = ran(&["validate", text(tree.path())]);
        assert!(both.out.contains("us-east-1z") && both.out.contains("2 errors"), "{}", both.out);
    }
}
