//! From settings to a plan: read, observe, price, plan, compare, judge.

use std::path::Path;
use std::sync::Arc;

use super::cluster_pools;
use super::error::CliError;
use super::policy::Judge;
use super::repository::{FleetSettings, Repository};
use super::settings::{PlanningSettings, SourceSettings};
use super::signature_check::SignatureTrust;
use super::source_tree::{self, read};
use super::unknown_address;
use super::world;
use super::world_choice::WorldChoice;
use super::{Console, Exit};
use jiff::Timestamp;

use crate::adapters::git::RemoteRepository;
use crate::catalog::Catalog;
use crate::model::ids::{Region, WorkloadId};
use crate::model::market::Market;
use crate::model::observed::Observed;
use crate::plan::wire::{Action, Base, BaseWorld, ResourceChange};
use crate::plan::{Plan, breakdown, compare, is_incomplete};
use crate::planner::{self, Inputs, Scope};
use crate::policy;
use crate::render::RepositoryFacts;

/// A plan, and the facts of its repository that its pages show.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) facts: RepositoryFacts,
}

/// Makes a plan, compared with another revision if asked for, and judged by policies.
pub(super) fn plan(settings: &PlanningSettings, console: &mut Console) -> Result<Plan, CliError> {
    plan_with_facts(settings, console).map(|planned| planned.plan)
}

/// Makes a plan as [`plan`] does, and returns the facts of its repository.
pub(super) fn plan_with_facts(
    settings: &PlanningSettings,
    console: &mut Console,
) -> Result<Planned, CliError> {
    let sources = PlanSources::read(settings)?;
    let observation = Observation::take(settings, &sources, console)?;
    let context = PlanContext::price(settings, observation, &sources.head);
    let mut plan = context.plan(&sources.head)?;
    unknown_address::check(&plan, &settings.scope, &sources.head.desired)?;
    if let Some((revision, before)) = &sources.compared {
        plan.capacity.comparison = Some(compare(&plan, &context.plan(before)?, revision));
    }
    sources.judge.record(&mut plan);
    tracing::info!(plan_id = %plan.capacity.plan_id, rows = plan.resource_changes.len(), "planned");
    Ok(Planned { plan, facts: sources.head.facts() })
}

/// The planned revision, the compared revision, and the policies that judge the plan.
struct PlanSources<'s> {
    judge: Judge,
    head: Repository,
    world: WorldChoice,
    compared: Option<(&'s str, Repository)>,
}

impl<'s> PlanSources<'s> {
    fn read(settings: &'s PlanningSettings) -> Result<Self, CliError> {
        let tree = read(&settings.source)?;
        let judge = Judge::read(&settings.source, &tree, &settings.guard)?;
        let longer = source_tree::longer_history(&tree, &settings.source, &judge.trust)?;
        let tree = longer.unwrap_or(tree);
        let fleet = FleetSettings::read(&tree);
        let world = world_choice(settings.world.as_ref(), &settings.source, &fleet)?;
        let pools = cluster_pools::read(&fleet, &world)?;
        let head = Repository::read_trusting(&tree, &judge.trust, pools.clone());
        let compared = settings.compare.as_deref().map(|revision| -> Result<_, CliError> {
            let named = Some(revision.to_owned());
            let source = SourceSettings { revision: named, ..settings.source.clone() };
            let tree = read(&source)?;
            // It may say otherwise where pools are declared.
            let pools = match &pools {
                Some(pools) => Some(Arc::clone(pools)),
                None => cluster_pools::read(&FleetSettings::read(&tree), &world)?,
            };
            let trust = SignatureTrust::default();
            Ok((revision, Repository::read_trusting(&tree, &trust, pools)))
        });
        Ok(Self { judge, head, world, compared: compared.transpose()? })
    }
}

/// The observed world, at the time of the plan.
struct Observation {
    world: WorldChoice,
    observed: Observed,
    at: Timestamp,
}

impl Observation {
    fn take(
        settings: &PlanningSettings,
        PlanSources { head, world, compared, judge: _ }: &PlanSources<'_>,
        console: &mut Console,
    ) -> Result<Self, CliError> {
        let world = world.clone();
        let mut observed = world::observe(&world, head, settings.at, console)?;
        if let Some((_, before)) = compared {
            // The cluster does not record ownership of a workload. The compared revision shows
            // which workloads the repository removed.
            let (head, before) = (&head.desired, &before.desired);
            // Some stay nevertheless: their delivery tool does not remove them.
            let is_removed = |id: &&WorkloadId| {
                !head.workloads.contains_key(*id)
                    && !head.retained.contains(*id)
                    && !before.retained.contains(*id)
            };
            observed.mark_delivered(before.workloads.keys().filter(is_removed).cloned());
        }
        let at = world::planning_time(&world, settings.at, &observed, console);
        Ok(Self { world, observed, at })
    }
}

/// The inputs that all planned revisions share.
struct PlanContext<'s> {
    settings: &'s PlanningSettings,
    observation: Observation,
    /// The current EC2 offerings, or the reason why they are not known. `None` if the world has no
    /// market.
    market: Option<Result<Market, String>>,
}

impl<'s> PlanContext<'s> {
    fn price(settings: &'s PlanningSettings, observation: Observation, head: &Repository) -> Self {
        let market = world::market(&observation.world, head, &observation.observed);
        Self { settings, observation, market }
    }

    fn plan(&self, repository: &Repository) -> Result<Plan, CliError> {
        let Self { settings, observation: Observation { world, observed, at }, market } = self;
        let fleet = &repository.fleet;
        let region = fleet.region_of(observed);
        let catalog = catalog(fleet, &region, market.as_ref())?;
        let demand = settings.demand.unwrap_or(fleet.demand);
        let defaults = inputs(&settings.source, repository, world, observed, &catalog);
        let mut plan = planner::plan(&Inputs {
            base: Base { demand, ignores_runs: settings.at.is_none(), ..defaults.base },
            at: *at,
            demand,
            scope: settings.scope.clone(),
            settings: crate::solver::Settings {
                steer: steers(settings, repository, world),
                ..fleet.solve
            },
            ..defaults
        });
        plan.capacity.cost.breakdown = breakdown(&plan, &fleet.commitments);
        Ok(plan)
    }
}

/// Returns whether pods are planned as nominated: on request, or as the controller of the repository
/// does it by default in a live cluster.
fn steers(settings: &PlanningSettings, repository: &Repository, world: &WorldChoice) -> bool {
    let controller = &repository.fleet.controller;
    let is_real = matches!(world, WorldChoice::Live | WorldChoice::File(_));
    let is_default = is_real && controller.is_declared() && controller.steers_by_default();
    settings.steer || controller.steer.unwrap_or(is_default)
}

/// Returns the catalog of the region, with the current EC2 offerings if known.
pub(super) fn catalog(
    fleet: &FleetSettings,
    region: &Region,
    market: Option<&Result<Market, String>>,
) -> Result<Catalog, CliError> {
    match market {
        Some(Ok(market)) => {
            let zones = &fleet.zones;
            let catalog = fleet.catalog_of_zones(region, &market.resolve_zones(zones))?;
            Ok(catalog.with_market(market, zones))
        }
        Some(Err(why)) => {
            let mut catalog = fleet.catalog(region)?;
            catalog.warnings.push(format!(
                "the current EC2 offerings are not known, and embedded data stands in: {why}"
            ));
            Ok(catalog)
        }
        None => Ok(fleet.catalog(region)?),
    }
}

/// Returns the requested world, or that of `fleetwright.yaml`.
pub(super) fn world_choice(
    requested: Option<&WorldChoice>,
    source: &SourceSettings,
    fleet: &FleetSettings,
) -> Result<WorldChoice, CliError> {
    if let Some(world) = requested {
        return Ok(world.clone());
    }
    let world = WorldChoice::parse(&fleet.world)?;
    // A path in the repository is relative to the repository, unless the repository is remote.
    let is_here = source.path.to_str().and_then(RemoteRepository::parse).is_none();
    world.within(if is_here { &source.path } else { Path::new(".") })
}

/// Returns the path or URL as a plan records it.
fn display_path(path: &Path) -> String {
    let remote = path.to_str().and_then(RemoteRepository::parse);
    remote.map_or_else(|| path.display().to_string(), |remote| remote.display_url())
}

/// Returns the inputs of a plan at the time of the observation, with the repository's settings.
pub(super) fn inputs<'i>(
    source: &SourceSettings,
    repository: &'i Repository,
    world: &WorldChoice,
    observed: &'i Observed,
    catalog: &'i Catalog,
) -> Inputs<'i> {
    let FleetSettings { demand, solve, .. } = repository.fleet;
    let (path, tree) = (display_path(&source.path), repository.base.tree.clone());
    let base = Base {
        directory: repository.base.commit.as_ref().map(|_| repository.base.below.clone()),
        repository: repository.base.repository.clone(),
        commit: repository.base.commit.clone(),
        dirty: repository.base.dirty,
        rendered: repository.rendered.clone(),
        cluster_pools: repository.cluster_pools.clone(),
        whole_repository: repository.is_whole,
        ..Base::new(path, tree, BaseWorld::new(world.to_string(), observed), demand)
    };
    Inputs {
        desired: &repository.desired,
        observed,
        catalog,
        base,
        at: observed.taken_at,
        demand,
        is_forecast: false,
        scope: Scope::default(),
        settings: solve,
    }
}

/// Returns whether the plan has changes.
pub(super) fn has_changes(plan: &Plan) -> bool {
    let changes = |row: &ResourceChange| row.change.actions != [Action::NoOp];
    plan.resource_changes.iter().any(changes) || !plan.capacity.waves.is_empty()
}

/// Returns the exit of a command that does not apply the plan: errors, then policies, then
/// unread inputs, then changes.
pub(super) fn exit(plan: &Plan, detailed: bool) -> Exit {
    if plan.errored {
        Exit::Failed
    } else if is_denied(plan) {
        Exit::Denied
    } else if detailed && is_incomplete(plan) {
        Exit::Incomplete
    } else if detailed && has_changes(plan) {
        Exit::Changes
    } else {
        Exit::Done
    }
}

pub(super) fn is_denied(plan: &Plan) -> bool {
    policy::is_denied(plan)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tempfile::TempDir;

    use crate::cli::Exit;
    use crate::cli::tests::manifests::{CLASS, FLEET, POOL, WORKLOAD};
    use crate::cli::tests::{CommandOutput, run_command};
    use crate::model::observed::{ClusterIdentity, Observed, write_world};

    const AT: [&str; 2] = ["--at", "2026-09-01T10:00:00Z"];

    fn tree() -> TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, content) in [
            ("fleetwright.yaml", FLEET),
            ("pool.yaml", POOL),
            ("class.yaml", CLASS),
            ("api.yaml", WORKLOAD),
        ] {
            fs::write(directory.path().join(name), content).expect("written");
        }
        directory
    }

    fn text(path: &Path) -> &str {
        path.to_str().expect("UTF-8")
    }

    fn planned(tree: &TempDir, more: &[&str]) -> CommandOutput {
        run_command(&[&["plan", text(tree.path())], &AT[..], more].concat())
    }

    #[test]
    fn same_tree_gives_the_same_plan_bytes() {
        let tree = tree();
        let first = planned(&tree, &["--detailed-exitcode"]);
        assert_eq!(first.exit, Exit::Changes, "{}{}", first.out, first.err);
        assert!(first.out.ends_with("\nPlan: 1 to add, 0 to change, 0 to destroy.\n"));
        assert!(first.out.contains("base ") && first.out.contains("world empty"));
        let json = || planned(&tree, &["--format", "json"]).out;
        assert_eq!(json(), json());
        let explained =
            run_command(&[&["explain", "web/api", text(tree.path())], &AT[..]].concat());
        assert!(explained.out.contains("3 pods planned"), "{}{}", explained.out, explained.err);
    }

    #[test]
    fn saved_plan_is_shown_unchanged() {
        let tree = tree();
        let saved = tree.path().join("plan.json");
        let shown = planned(&tree, &["--out", text(&saved)]);
        assert_eq!(run_command(&["show", text(&saved)]).out, shown.out);
        assert_eq!(
            run_command(&["show", text(&saved), "--format", "json"]).out,
            planned(&tree, &["--format", "json"]).out
        );
        let applied =
            run_command(&["apply", text(&saved), "--auto-approve", "--path", text(tree.path())]);
        assert_eq!(applied.exit, Exit::NotApproved, "nothing can be applied to an empty world");
    }

    #[test]
    fn embedded_world_keeps_its_own_time() {
        let tree = tree();
        let world = format!("sim:{}", text(&tree.path().join("world")));
        let place = text(tree.path());
        let apply = ["apply", place, "--world", &world, "--auto-approve"];
        let applied = run_command(&[&apply[..], &AT].concat());
        assert_eq!(applied.exit, Exit::Done, "{}", applied.err);
        let began = run_command(&["plan", place, "--world", &world, "--summary"]);
        assert!(began.out.contains("observed 2026-09-01T10:0"), "{}", began.err);
        assert!(began.out.contains(" (0s before)"), "the clock of the world: {}", began.out);
        let later = run_command(&["plan", text(tree.path()), "--world", &world, "--summary"]);
        assert_eq!(later.out, began.out, "the clock of the world, not that of the wall");
        let observed = run_command(&["observe", text(tree.path()), "--world", &world]);
        assert_eq!(observed.exit, Exit::Done, "{}", observed.err);
        let file = tree.path().join("seen.json");
        fs::write(&file, &observed.out).expect("written");
        let from_file = planned(&tree, &["--world", text(&file), "--detailed-exitcode"]);
        assert_eq!(from_file.exit, Exit::Done, "{}", from_file.err);
    }

    #[test]
    fn second_plan_after_apply_has_no_changes() {
        let tree = tree();
        let world = format!("sim:{}", text(&tree.path().join("world")));
        let saved = tree.path().join("plan.json");
        let fresh = planned(&tree, &["--world", &world, "--out", text(&saved)]);
        assert_eq!(fresh.exit, Exit::Done, "{}", fresh.err);
        let path = ["--path", text(tree.path())];
        let (file, place) = (text(&saved), text(tree.path()));
        let next = format!("To apply it: fleetwright apply {file} --path {place}\n");
        assert!(fresh.err.ends_with(&next), "{}", fresh.err);
        let unapproved = run_command(&[&["apply", text(&saved)][..], &path].concat());
        assert_eq!(unapproved.exit, Exit::NotApproved, "{}", unapproved.err);
        let elsewhere = run_command(&["apply", text(&saved), "--auto-approve"]);
        assert_eq!(elsewhere.exit.code(), 10, "{}", elsewhere.err);
        let applied =
            run_command(&[&["apply", text(&saved), "--auto-approve"][..], &path].concat());
        assert_eq!(applied.exit, Exit::Done, "{}", applied.err);
        assert!(applied.err.contains("launched i-"), "{}", applied.err);
        let again =
            run_command(&["plan", text(tree.path()), "--world", &world, "--detailed-exitcode"]);
        assert_eq!(again.exit, Exit::Done, "{}", again.out);
        assert!(again.out.ends_with("matches the configuration.\n"), "{}", again.out);
    }

    #[test]
    fn changes_only_file_is_shown_and_applied_like_the_whole() {
        let tree = tree();
        let world = format!("sim:{}", text(&tree.path().join("world")));
        let (whole, short) = (tree.path().join("whole.json"), tree.path().join("short.json"));
        let path = ["--path", text(tree.path())];
        planned(&tree, &["--world", &world, "--out", text(&whole)]);
        let first = run_command(&[&["apply", text(&whole), "--auto-approve"][..], &path].concat());
        assert_eq!(first.exit, Exit::Done, "{}", first.err);
        let more = WORKLOAD.replace("replicas: 3", "replicas: 9");
        fs::write(tree.path().join("api.yaml"), more).expect("written");
        let save = |more: &[&str]| {
            let saved = [&["plan", text(tree.path()), "--world", &world], more].concat();
            assert_eq!(run_command(&saved).exit, Exit::Done);
        };
        save(&["--out", text(&whole)]);
        save(&["--out", text(&short), "--changes-only"]);
        for view in [&["-o", "text"][..], &["-o", "html"], &["-o", "json"], &["--json"]] {
            let show = |file: &Path| run_command(&[&["show", text(file)], view].concat()).out;
            assert!(show(&short) == show(&whole), "{view:?}");
        }
        let read = |file: &Path| fs::read_to_string(file).expect("a file");
        let (whole, saved) = (read(&whole), read(&short));
        assert!(saved.contains("\"unchanged\": [") && !saved.contains("\"no-op\""), "{saved}");
        assert!(whole.contains("\"no-op\"") && saved.len() < whole.len());
        let digest = crate::plan::Plan::from_json(&whole).expect("a plan").capacity.digest;
        let approved = ["--approved-digest", digest.as_str()];
        let applied = run_command(&[&["apply", text(&short)][..], &approved, &path].concat());
        assert_eq!(applied.exit, Exit::Done, "{}", applied.err);
        let again =
            run_command(&["plan", text(tree.path()), "--world", &world, "--detailed-exitcode"]);
        assert_eq!(again.exit, Exit::Done, "{}", again.out);
    }

    #[test]
    fn world_of_another_cluster_exits_with_10() {
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
    fn unreadable_world_is_an_error_with_a_hint() {
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
    fn invalid_tree_exits_with_1_and_names_the_line() {
        let tree = tree();
        let valid = run_command(&["validate", text(tree.path())]);
        assert_eq!(valid.exit, Exit::Done, "{}", valid.out);
        let broken = WORKLOAD.replace("1Gi", "1G1");
        fs::write(tree.path().join("api.yaml"), broken).expect("written");
        for command in ["plan", "validate"] {
            let ran = run_command(&[command, text(tree.path())]);
            assert_eq!(ran.exit.code(), 1, "{command}");
            assert!(ran.out.contains("error: api.yaml:13: "), "{}", ran.out);
            assert!(ran.out.contains("\n  hint: "), "{}", ran.out);
        }
        let zone = FLEET.replace("us-east-1a", "us-east-1z");
        fs::write(tree.path().join("fleetwright.yaml"), zone).expect("written");
        let both = run_command(&["validate", text(tree.path())]);
        assert!(both.out.contains("us-east-1z") && both.out.contains("2 errors"), "{}", both.out);
    }
}
