//! `observe`: saves the observed world as a file, or lists disagreements of its sources.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use super::cluster_pools;
use super::error::CliError;
use super::repository::FleetSettings;
use super::settings::{Format, ObserveSettings, SourceSettings};
use super::world;
use super::world_choice::WorldChoice;
use super::{Console, Exit, files, output, planning, source_tree};
use crate::adapters::git::RepositoryTree;
use crate::manifest::read_fleet;
use crate::model::desired::{Desired, LEARNED_FILE, LearnedNodes, PoolSource, Severity};
use crate::model::observed::{Completeness, Difference, Observed, write_world};
use crate::model::plural;
use crate::plan::canonical;
use crate::render::{escape, span};
use crate::solver::learned_nodes;

pub(super) fn run(settings: &ObserveSettings, console: &mut Console) -> Result<Exit, CliError> {
    let ObserveSettings { source, world, out, differences, learn } = settings;
    let tree = source_tree::read(source)?;
    let world = match world {
        Some(world) => {
            world.require_cluster("observe")?;
            world.clone()
        }
        None => cluster_of_settings(&tree, source, "observe")?,
    };
    let repository = cluster_pools::read_leniently(&tree, &world);
    let mut observed = world::observe(&world, &repository, None, console)?;
    let is_saved = out.is_some() || (differences.is_none() && !learn);
    if world == WorldChoice::Live && is_saved {
        // A later plan over the file uses the market of this moment.
        match world::market(&world, &repository, &observed) {
            Some(Ok(market)) => {
                for unread in &market.unread {
                    console.report(&format!("warning: {}", escape(unread)));
                }
                observed.market = Some(market);
            }
            Some(Err(why)) => console.report(&format!(
                "warning: the current EC2 offerings are not known, and are not in the file: {}",
                escape(&why)
            )),
            None => {}
        }
    }
    if repository.fleet.pools == PoolSource::Cluster {
        warn_of_unread_pools(&observed, console);
    }
    if let Some(out) = out {
        save(&observed, out, console)?;
    }
    if *learn {
        save_learned(&repository.desired, &observed, &source.path, console)?;
    }
    match (differences, out) {
        _ if *learn => {}
        (Some(format), _) => console.print(&differences_output(&observed, *format)?)?,
        (None, None) => {
            console.print(&String::from_utf8(write_world(&observed)).map_err(CliError::new)?)?;
        }
        (None, Some(_)) => {}
    }
    Ok(Exit::Done)
}

/// Returns the world of `fleetwright.yaml`, for a command that reports about a running cluster.
///
/// # Errors
/// If it is empty. A world that cannot be read counts as empty, so that an error in the settings
/// comes first.
pub(super) fn cluster_of_settings(
    tree: &RepositoryTree,
    source: &SourceSettings,
    command: &str,
) -> Result<WorldChoice, CliError> {
    let world = planning::world_choice(None, source, &FleetSettings::read(tree))?;
    if world == WorldChoice::Empty {
        let (_, problems) = read_fleet(&tree.tree);
        if let Some(problem) = problems.iter().find(|one| one.severity == Severity::Error) {
            return Err(CliError::from_problem(problem));
        }
    }
    world.require_cluster(command)?;
    Ok(world)
}

/// Warns if a plan over the observation would not know the pools of the cluster.
fn warn_of_unread_pools(observed: &Observed, console: &mut Console) {
    let unread = observed.pools.as_ref().and_then(|pools| pools.unread_reason());
    if let Some(why) = unread {
        console.report(&format!(
            "warning: the node pools of the cluster are not known: {}; {}",
            escape(&why),
            cluster_pools::PERMISSION_REMEDY
        ));
    }
}

/// Saves the capacity that nodes report in the repository at `path`.
fn save_learned(
    desired: &Desired,
    observed: &Observed,
    path: &Path,
    console: &mut Console,
) -> Result<(), CliError> {
    if !path.is_dir() {
        let path = path.display();
        return Err(CliError::text(format!(
            "`{path}` is not a directory, so learned capacity cannot be saved"
        )));
    }
    let wrong = desired.problems.iter().find(|problem| &*problem.origin.file == LEARNED_FILE);
    if let Some(problem) = wrong {
        // Writing would lose the earlier content.
        let error = CliError::text(escape(&format!("{}: {}", problem.origin, problem.message)));
        return Err(error.hint("remove it to start over"));
    }
    let broken = desired.problems.iter().any(|problem| problem.severity == Severity::Error);
    if broken || !desired.unresolved.is_empty() {
        // Writing would lose the entries of pools that cannot be read.
        let why = "the repository has errors, so learned capacity stays unchanged";
        return Err(CliError::text(why).hint("`fleetwright validate` lists the problems"));
    }
    if !observed.is_complete() {
        return Err(CliError::text(
            "the observation is incomplete, so learned capacity stays unchanged",
        ));
    }
    let nodes = learned_nodes(desired, observed);
    let (count, file) = (nodes.len(), path.join(LEARNED_FILE));
    files::write(&file, &canonical::pretty(&LearnedNodes::new(nodes)).map_err(CliError::new)?)?;
    console.report(&format!("Saved the capacity of {count} kinds of nodes in {}.", file.display()));
    Ok(())
}

fn save(observed: &Observed, out: &Path, console: &mut Console) -> Result<(), CliError> {
    files::write(out, &String::from_utf8(write_world(observed)).map_err(CliError::new)?)?;
    let (nodes, pods) = (observed.nodes.len(), observed.pods.len());
    let (nodes, pods) = (plural::count(nodes, "node"), plural::count(pods, "pod"));
    console.report(&format!("Saved {nodes} and {pods} as {}.", out.display()));
    match observed.differences().len() {
        0 => {}
        1 => console.report("Its sources disagree on 1 instance or node; see --differences."),
        n => console
            .report(&format!("Its sources disagree on {n} instances or nodes; see --differences.")),
    }
    Ok(())
}

/// Disagreements of the sources, and how completely each source was read.
#[derive(Serialize)]
struct DifferenceReport<'o> {
    sources: &'o std::collections::BTreeMap<String, Completeness>,
    differences: Vec<Difference>,
}

fn differences_output(observed: &Observed, format: Format) -> Result<String, CliError> {
    let differences = observed.differences();
    match format {
        Format::Text => Ok(text(observed, &differences)),
        Format::Document(format) => {
            let report = DifferenceReport { sources: &observed.sources, differences };
            output::document(&report, format)
        }
    }
}

/// Returns a line for each disagreement, and for each incomplete source.
fn text(observed: &Observed, differences: &[Difference]) -> String {
    let mut out = String::new();
    for (name, state) in &observed.sources {
        let (Completeness::Partial { reason } | Completeness::Failed { reason }) = state else {
            continue;
        };
        let _ = writeln!(out, "{name} was not read completely: {}", escape(reason));
    }
    for Difference { disagreement, instance, node, group, since } in differences {
        let or_none = |name: Option<String>| name.unwrap_or_else(|| "-".to_owned());
        let instance = or_none(instance.as_ref().map(ToString::to_string));
        let node = or_none(node.as_ref().map(ToString::to_string));
        let age = span(observed.taken_at.duration_since(*since));
        let group = group.as_ref().map(|name| format!(", group {name}")).unwrap_or_default();
        let (what, event) = (disagreement.description(), disagreement.event());
        let line = format!("{instance:19}  {node}  {what}{group}; {event} {since:.0} ({age} ago)");
        let _ = writeln!(out, "{}", escape(&line));
    }
    if differences.is_empty() {
        out.push_str("EC2, Auto Scaling and Kubernetes agree on every instance and node.\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::{copied_quickstart, run_command};

    #[test]
    fn source_disagreements_are_listed_as_text_and_json() {
        let world = serde_json::json!({
            "format_version": "1.0", "taken_at": "2026-11-21T10:00:00Z",
            "cluster": { "name": "prod", "region": "us-east-1", "account": "1", "uid": "u" },
            "sources": { "ec2": { "state": "complete" }, "kubernetes": { "state": "complete" } },
            "instances": { "i-1": {
                "id": "i-1", "instance_type": "m5.large", "zone": "us-east-1a",
                "capacity_type": "on-demand", "state": "running",
                "launched_at": "2026-11-21T09:30:00Z"
            } }
        });
        let tree = tempfile::tempdir().expect("a directory");
        let path = tree.path().join("world.json");
        std::fs::write(&path, world.to_string()).expect("written");
        std::fs::write(tree.path().join("a.yaml"), "").expect("written");
        let (tree, path) = (tree.path().to_str(), path.to_str());
        let (tree, path) = (tree.expect("UTF-8"), path.expect("UTF-8"));
        let arguments = ["observe", tree, "--world", path, "--differences"];
        let shown = run_command(&arguments).out;
        // The launch is known. The time at which the node was deleted is not.
        let line = "instance without a node; launched 2026-11-21T09:30:00Z (30m ago)";
        assert_eq!(shown, format!("i-1                  -  {line}\n"));
        let json = run_command(&[&arguments[..], &["--format", "json"]].concat()).out;
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["differences"][0]["disagreement"], "instance-without-node");
        assert_eq!(
            run_command(&["observe", tree, "--world", path, "--format", "json"]).exit,
            Exit::Failed
        );
    }

    #[test]
    fn learned_capacity_counts_without_running_nodes() {
        let tree = copied_quickstart();
        let shop = tree.path().join("quickstart");
        let path = shop.to_str().expect("UTF-8");
        // Counts types with measured capacity although no node runs.
        let measured = || {
            let arguments =
                ["catalog", "list", "--allocatable", "--pool", "general", "--path", path];
            let json =
                run_command(&[&arguments[..], &["--world", "empty", "--format", "json"]].concat())
                    .out;
            let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
            let types = json["types"].as_array().expect("types").clone();
            types.iter().filter(|kind| kind["nodes_measured"] == 1).count()
        };
        assert_eq!(measured(), 0);
        let saved = run_command(&["observe", path, "--learn"]);
        assert_eq!((saved.exit, saved.out.as_str()), (Exit::Done, ""), "{}", saved.err);
        let file = std::fs::read_to_string(shop.join(LEARNED_FILE)).expect("written");
        assert!(file.contains("\"pool\": \"general\""), "{file}");
        run_command(&["observe", path, "--learn"]);
        let again = std::fs::read_to_string(shop.join(LEARNED_FILE)).expect("written");
        assert_eq!(again, file);
        assert!(measured() > 0);
        std::fs::write(shop.join(LEARNED_FILE), "{").expect("written");
        let refused = run_command(&["observe", path, "--learn"]);
        assert_eq!(refused.exit, Exit::Failed);
        assert!(
            refused.err.contains("fleetwright.learned.json:1: is not a file that"),
            "{}",
            refused.err
        );
    }
}
