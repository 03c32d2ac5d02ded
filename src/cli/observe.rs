//! `observe`: save what runs as a world file, or list where its sources disagree.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use super::error::CliError;
use super::repository::Repository;
use super::settings::{Format, ObserveSettings};
use super::world::{self, WorldChoice};
use super::{Console, Exit, files, planning};
use crate::fleet::{Completeness, Difference, Observed, write_world};
use crate::manifest::{Desired, LEARNED_FILE, Learned, Severity};
use crate::plan::canonical;
use crate::render::escape;
use crate::solve::learn;

pub(super) fn run(settings: &ObserveSettings, console: &mut Console) -> Result<Exit, CliError> {
    let ObserveSettings { source, world, out, differences, learn } = settings;
    let repository = Repository::read(&planning::read(source)?);
    let world = match world {
        Some(world) => world.clone(),
        None => WorldChoice::parse(&repository.fleet.world)?.below(&source.path),
    };
    let mut observed = world::observe(&world, &repository, None, console)?;
    let is_kept = out.is_some() || (differences.is_none() && !learn);
    if world == WorldChoice::Live && is_kept {
        // Whoever plans over the file later sees what a plan would see now.
        match world::market(&world, &repository, &observed) {
            Some(Ok(market)) => {
                for unread in &market.unread {
                    console.say(&format!("warning: {}", escape(unread)));
                }
                observed.market = Some(market);
            }
            Some(Err(why)) => console.say(&format!(
                "warning: what EC2 offers now is not known, and is not in the file: {}",
                escape(&why)
            )),
            None => {}
        }
    }
    if let Some(out) = out {
        save(&observed, out, console)?;
    }
    if *learn {
        keep(&repository.desired, &observed, &source.path, console)?;
    }
    match (differences, out) {
        _ if *learn => {}
        (Some(format), _) => console.print(&listed(&observed, *format)?)?,
        (None, None) => {
            console.print(&String::from_utf8(write_world(&observed)).map_err(CliError::new)?)?;
        }
        (None, Some(_)) => {}
    }
    Ok(Exit::Done)
}

/// Keeps what nodes report in the repository at `path`.
fn keep(
    desired: &Desired,
    observed: &Observed,
    path: &Path,
    console: &mut Console,
) -> Result<(), CliError> {
    if !path.is_dir() {
        let path = path.display();
        return Err(CliError::text(format!(
            "`{path}` is no directory to keep what nodes report in"
        )));
    }
    let wrong = desired.problems.iter().find(|problem| &*problem.origin.file == LEARNED_FILE);
    if let Some(problem) = wrong {
        // What was kept so far would be lost.
        let error = CliError::text(escape(&format!("{}: {}", problem.origin, problem.message)));
        return Err(error.hint("remove it to begin anew"));
    }
    let broken = desired.problems.iter().any(|problem| problem.severity == Severity::Error);
    if broken || !desired.unresolved.is_empty() {
        // What is kept of a pool that cannot be read would be lost.
        let why = "the repository cannot be read whole, and what is kept stays";
        return Err(CliError::text(why).hint("`fleetwright validate` says what is wrong"));
    }
    if !observed.is_complete() {
        return Err(CliError::text("not everything could be read, and what is kept stays"));
    }
    let nodes = learn(desired, observed);
    let (count, file) = (nodes.len(), path.join(LEARNED_FILE));
    files::write(&file, &canonical::pretty(&Learned::of(nodes)).map_err(CliError::new)?)?;
    console.say(&format!("Kept what {count} kinds of nodes report in {}.", file.display()));
    Ok(())
}

fn save(observed: &Observed, out: &Path, console: &mut Console) -> Result<(), CliError> {
    files::write(out, &String::from_utf8(write_world(observed)).map_err(CliError::new)?)?;
    let (nodes, pods) = (observed.nodes.len(), observed.pods.len());
    console.say(&format!("Saved {nodes} nodes and {pods} pods as {}.", out.display()));
    match observed.differences().len() {
        0 => {}
        1 => console.say("Its sources disagree on one machine; see --differences."),
        n => console.say(&format!("Its sources disagree on {n} machines; see --differences.")),
    }
    Ok(())
}

/// What sources disagree on, and how far each could be read.
#[derive(Serialize)]
struct Listed<'o> {
    sources: &'o std::collections::BTreeMap<String, Completeness>,
    differences: Vec<Difference>,
}

fn listed(observed: &Observed, format: Format) -> Result<String, CliError> {
    let differences = observed.differences();
    match format {
        Format::Text => Ok(text(observed, &differences)),
        Format::Json => {
            let listed = Listed { sources: &observed.sources, differences };
            canonical::pretty(&listed).map_err(CliError::new)
        }
    }
}

/// Returns a line for each difference, and one for each source that could not be read whole.
fn text(observed: &Observed, differences: &[Difference]) -> String {
    let mut out = String::new();
    for (name, state) in &observed.sources {
        let (Completeness::Partial { reason } | Completeness::Failed { reason }) = state else {
            continue;
        };
        let _ = writeln!(out, "{name} was not read whole: {}", escape(reason));
    }
    for Difference { disagreement, instance, node, group, since } in differences {
        let or_none = |name: Option<String>| name.unwrap_or_else(|| "-".to_owned());
        let instance = or_none(instance.as_ref().map(ToString::to_string));
        let node = or_none(node.as_ref().map(ToString::to_string));
        let minutes = observed.taken_at.duration_since(*since).as_mins().max(0);
        let group = group.as_ref().map(|name| format!(", group {name}")).unwrap_or_default();
        let line =
            format!("{instance:19}  {node}  {} for {minutes} min{group}", disagreement.words());
        let _ = writeln!(out, "{}", escape(&line));
    }
    if differences.is_empty() {
        out.push_str("EC2, Auto Scaling and Kubernetes agree on every machine.\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::ran;

    #[test]
    fn machines_that_sources_disagree_on_are_listed_as_text_and_json() {
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
        let asked = ["observe", tree, "--world", path, "--differences"];
        let shown = ran(&asked).out;
        assert_eq!(shown, "i-1                  -  instance without a node for 30 min\n");
        let json = ran(&[&asked[..], &["--format", "json"]].concat()).out;
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["differences"][0]["disagreement"], "instance-without-node");
        assert_eq!(ran(&["observe", tree, "--world", path, "--format", "json"]).exit, Exit::Failed);
    }

    #[test]
    fn what_nodes_report_is_kept_in_the_repository_and_counts_where_none_runs() {
        let tree = tempfile::tempdir().expect("a directory");
        let from = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart");
        let copied = std::process::Command::new("cp").arg("-r").arg(from).arg(tree.path()).status();
        assert!(copied.expect("cp runs").success());
        let shop = tree.path().join("quickstart");
        let path = shop.to_str().expect("UTF-8");
        // How many types are known by what nodes report, where none runs.
        let measured = || {
            let asked = ["catalog", "list", "--allocatable", "--pool", "general", "--path", path];
            let json = ran(&[&asked[..], &["--world", "empty", "--format", "json"]].concat()).out;
            let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
            let types = json["types"].as_array().expect("types").clone();
            types.iter().filter(|kind| kind["nodes_measured"] == 1).count()
        };
        assert_eq!(measured(), 0);
        let kept = ran(&["observe", path, "--learn"]);
        assert_eq!((kept.exit, kept.out.as_str()), (Exit::Done, ""), "{}", kept.err);
        let file = std::fs::read_to_string(shop.join(LEARNED_FILE)).expect("written");
        assert!(file.contains("\"pool\": \"general\""), "{file}");
        ran(&["observe", path, "--learn"]);
        let again = std::fs::read_to_string(shop.join(LEARNED_FILE)).expect("written");
        assert_eq!(again, file);
        assert!(measured() > 0);
        std::fs::write(shop.join(LEARNED_FILE), "{").expect("written");
        let refused = ran(&["observe", path, "--learn"]);
        assert_eq!(refused.exit, Exit::Failed);
        assert!(refused.err.contains("fleetwright.learned.json:1: is not what"), "{}", refused.err);
    }
}
