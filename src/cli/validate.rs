//! `validate`: reads everything and reports every problem.

use jiff::Timestamp;

use super::error::CliError;
use super::output::DocumentFormat;
use super::repository::{FleetSettings, Repository};
use super::settings::{Format, ValidateSettings, ValidateView};
use super::world_choice::WorldChoice;
use super::{Console, Exit, output, planning, policy, source_tree};
use crate::catalog::CatalogError;
use crate::demand::Demand;
use crate::model::desired::{Desired, Problem, Severity, Unresolved};
use crate::model::ids::{Origin, PoolName};
use crate::model::observed::Observed;
use crate::plan::wire::Diagnostic;
use crate::planner;
use crate::planner::lint::{lints, missing_pools, requests};
use crate::render::{RepositoryCounts, Verbosity, problems_json, problems_sarif, problems_text};
use crate::solver::{OfferInput, pool_problems};

pub(super) fn run(settings: &ValidateSettings, console: &mut Console) -> Result<Exit, CliError> {
    let read = source_tree::read(&settings.source)?;
    let repository = Repository::read(&read);
    let nothing = Observed::empty(repository.fleet.identity(), Timestamp::UNIX_EPOCH);
    let demand = Demand::build(&repository.desired, &nothing, repository.fleet.demand);
    let mut problems = problems(&repository, &nothing, &demand);
    problems.extend(autoscaler_warnings(settings, &repository)?);
    problems.extend(policy::policy_problems(&settings.source, &repository.fleet));
    problems.extend(ignored_keys(&repository.fleet));
    problems.sort();
    problems.dedup();
    let view = match settings.view {
        ValidateView::Sarif => {
            let sarif = problems_sarif(&problems, read.root_in_repository());
            console.print(&output::document(&sarif, DocumentFormat::Json)?)?;
            return Ok(exit(&problems));
        }
        ValidateView::Format(format) => format,
    };
    let desired = &repository.desired;
    let tally = RepositoryCounts {
        files: count(read.tree.files.len()),
        workloads: count(desired.workloads.len()),
        pools: count(desired.pools.len()),
        has_unread_pools: desired.has_unread_pools,
        unresolved: count(demand.unresolved.len()),
        has_unreported: demand.unresolved.iter().any(|one| !is_reported(one, desired, &demand)),
        skipped: desired.skipped.clone(),
    };
    finish(&problems, &tally, view, console)
}

/// Writes problems and counts. An error among them exits with 1.
pub(super) fn finish(
    problems: &[Problem],
    tally: &RepositoryCounts,
    format: Format,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let text = match format {
        Format::Text => problems_text(problems, tally, &console.style(Verbosity::Full)),
        Format::Document(format) => output::document(&problems_json(problems, tally), format)?,
    };
    console.print(&text)?;
    Ok(exit(problems))
}

/// Returns the exit of a command that reports problems. An error among them exits with 1.
fn exit(problems: &[Problem]) -> Exit {
    let has_errors = problems.iter().any(|problem| problem.severity == Severity::Error);
    if has_errors { Exit::Failed } else { Exit::Done }
}

/// Returns the problem of keys that the controller, if one runs, does not check.
fn ignored_keys(fleet: &FleetSettings) -> Option<Problem> {
    let is_for_controller = fleet.controller.is_declared();
    fleet.ignored_keys().filter(|_| is_for_controller)
}

/// Returns all problems of a repository.
fn problems(repository: &Repository, nothing: &Observed, demand: &Demand) -> Vec<Problem> {
    let desired = &repository.desired;
    let fleet = &repository.fleet;
    let mut problems = desired.problems.clone();
    let unreported = demand.unresolved.iter().filter(|one| !is_reported(one, desired, demand));
    problems.extend(unreported.map(unresolved_problem));
    // Some problems appear only in the combined desired state, as in a plan.
    problems.extend(demand.problems.iter().cloned());
    problems.extend(requests(desired));
    problems.extend(missing_pools(desired, demand));
    let external_groups = desired.external_groups.iter();
    problems
        .extend(external_groups.map(|(name, group)| external_group_warning(name, &group.origin)));
    match fleet.catalog(&fleet.region) {
        Ok(catalog) => {
            problems.extend(lints(desired, demand, &catalog));
            problems.extend(catalog.unknown_type_warnings(desired));
            problems.extend(catalog.overlay_conflicts(desired));
            problems.extend(catalog.windows_price_warnings(desired));
            let supply =
                OfferInput { desired, catalog: &catalog, observed: nothing, at: nothing.taken_at };
            problems.extend(pool_problems(&supply, demand));
        }
        Err(error) => problems.push(catalog_problem(&error)),
    }
    problems.sort();
    problems.dedup();
    problems
}

/// Returns whether an error already reports the unresolved object.
fn is_reported(unresolved: &Unresolved, desired: &Desired, demand: &Demand) -> bool {
    let Unresolved { origin, object, .. } = unresolved;
    // Rendered objects share the origin of their chart or Application, so an error without an
    // object is of this one only if no other has the same line.
    let is_alone = || {
        let mut all = demand.unresolved.iter();
        origin.line > 0 && all.all(|other| other.origin != *origin || other.object == *object)
    };
    let problems = desired.problems.iter().chain(&demand.problems);
    let mut errors = problems.filter(|p| p.severity == Severity::Error);
    errors.any(|p| {
        p.object == *object && p.origin.file == origin.file
            || p.object.is_empty() && p.origin == *origin && is_alone()
    })
}

/// Returns a warning for each autoscaler whose maximum exceeds the capacity of the pools.
fn autoscaler_warnings(
    settings: &ValidateSettings,
    repository: &Repository,
) -> Result<Vec<Problem>, CliError> {
    let fleet = &repository.fleet;
    let Ok(catalog) = fleet.catalog(&fleet.region) else { return Ok(Vec::new()) };
    let nothing = Observed::empty(fleet.identity(), Timestamp::UNIX_EPOCH);
    let world = WorldChoice::parse("empty")?;
    let inputs = planning::inputs(&settings.source, repository, &world, &nothing, &catalog);
    let found = planner::ceiling_warnings(&inputs);
    let warning = |found: Diagnostic| {
        let Diagnostic { severity: _, origin, object, message, hint, code: _ } = found;
        Some(Problem::warning(origin?, object, message).maybe_hint(hint))
    };
    Ok(found.into_iter().filter_map(warning).collect())
}

/// Returns a warning for a group that only the world can confirm. A typo would otherwise appear
/// only in a plan.
fn external_group_warning(name: &PoolName, origin: &Origin) -> Problem {
    Problem::warning(origin.clone(), "Fleet", format!(
            "`spec.groups.{name}` names a node group that no ClusterConfig declares: it must exist in the cluster"
        )).hint("`fleetwright plan --world live` shows whether it exists")
}

/// Returns the problem of an unread object. A source of the settings is an error: without it, the
/// repository is not what its settings declare.
fn unresolved_problem(unresolved: &Unresolved) -> Problem {
    let Unresolved { origin, object, reason } = unresolved;
    let is_source = object.starts_with(SOURCE_PREFIX);
    let severity = if is_source { Severity::Error } else { Severity::Warning };
    Problem::new(severity, origin.clone(), object.clone(), format!("is not counted: {reason}"))
}

fn catalog_problem(error: &CatalogError) -> Problem {
    Problem::error(Origin::new("fleetwright.yaml", 0), "spec.cluster", error.to_string())
        .maybe_hint(error.hint())
}

/// Beginning of the name of a source of `fleetwright.yaml`.
const SOURCE_PREFIX: &str = "source ";

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::manifests::WORKLOAD;
    use crate::cli::tests::run_command;

    #[test]
    fn error_of_one_rendered_object_does_not_hide_others() {
        let origin = Origin::new("charts/web/Chart.yaml", 0);
        let unresolved = |object: &str| Unresolved {
            origin: origin.clone(),
            object: object.to_owned(),
            reason: "its size is unknown".to_owned(),
        };
        let (bad, other) = (unresolved("Rollout web/a"), unresolved("Rollout web/b"));
        let problem = |object: &str| Problem::error(origin.clone(), object, "is malformed");
        let demand = Demand { unresolved: vec![bad.clone(), other.clone()], ..Demand::default() };
        for (problem, bad_is_reported) in [(problem("Rollout web/a"), true), (problem(""), false)] {
            let desired = Desired { problems: vec![problem], ..Desired::default() };
            assert_eq!(is_reported(&bad, &desired, &demand), bad_is_reported);
            assert!(!is_reported(&other, &desired, &demand));
        }
    }

    fn tree(settings: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().expect("a directory");
        let text = format!(
            "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {{ name: t }}\nspec:\n  \
             cluster: {{ name: t, region: us-east-1, zones: [us-east-1a] }}\n{settings}"
        );
        std::fs::write(tree.path().join("fleetwright.yaml"), text).expect("written");
        std::fs::write(tree.path().join("api.yaml"), WORKLOAD).expect("written");
        tree
    }

    #[test]
    fn sarif_names_files_below_the_root_of_the_repository() {
        let tree = tree("");
        let below = tree.path().join("clusters/prod");
        std::fs::create_dir_all(&below).expect("made");
        std::fs::write(below.join("a.yaml"), "kind: Deployment\napiVersion: apps/v1\nspec: [\n")
            .expect("written");
        git2::Repository::init(tree.path()).expect("a repository");
        let ran = run_command(&["validate", below.to_str().expect("UTF-8"), "-o", "sarif"]);
        assert_eq!(ran.exit, Exit::Failed, "{}", ran.err);
        let sarif: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
        // The first result is the warning that the settings above are not used.
        let results = sarif["runs"][0]["results"].as_array().expect("results");
        let result = results.iter().find(|result| result["ruleId"] == "invalid-yaml");
        let result = result.expect("an error");
        assert_eq!(result["level"], "error");
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "clusters/prod/a.yaml", "{}", ran.out);
    }

    #[cfg(feature = "policy")]
    #[test]
    fn validate_loads_policies() {
        let tree = tree("  policies: [rules]\n");
        let path = tree.path().to_str().expect("UTF-8");
        let missing = run_command(&["validate", path]);
        assert!(missing.exit == Exit::Failed && missing.out.contains("spec.policies"));
        std::fs::create_dir(tree.path().join("rules")).expect("made");
        let file = tree.path().join("rules/a.rego");
        for (text, exit, says) in [
            ("package main\ndeny[msg] { msg := \"x\"; false }\n", Exit::Done, ""),
            ("package main\ndeny[msg] {\n", Exit::Failed, "a.rego"),
            (
                "package main\nimport rego.v1\nf(x) := f(x)\ndeny contains \"x\" if f(1)\n",
                Exit::Failed,
                "call themselves: f calls f",
            ),
        ] {
            std::fs::write(&file, text).expect("written");
            let ran = run_command(&["validate", path]);
            assert_eq!(ran.exit, exit, "{text}: {}{}", ran.out, ran.err);
            assert!(ran.out.contains(says), "{}", ran.out);
        }
    }

    #[test]
    fn keys_that_the_controller_ignores_are_an_error() {
        const KEY: &str = "MCowBQYDK2VwAyEAK6r6k6xSO+Tf7GsjgOLiOP431kQtIjsjKV0hIVgox0c=";
        for (by, exit) in [("controller", Exit::Failed), ("ci", Exit::Done)] {
            let tree = tree(&format!(
                "  apply: {{ by: {by}, keys: [{{ name: alice, key: {KEY} }}] }}\n  \
                 controller: {{ mode: full }}\n"
            ));
            std::fs::write(tree.path().join("a.yaml"), "a: 1").expect("written");
            let path = tree.path().to_str().expect("UTF-8");
            let ran = run_command(&["validate", path]);
            assert_eq!(ran.exit, exit, "{}{}", ran.out, ran.err);
            assert_eq!(ran.out.contains("checks no signatures"), exit == Exit::Failed);
        }
    }
}
