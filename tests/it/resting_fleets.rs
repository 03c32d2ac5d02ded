//! Law: the plan after an apply is empty while nothing changes, and a small edit moves few pods.

mod drawn_trees;

use std::path::Path;

use serde_json::Value as Json;

use crate::binary::Workspace;

/// Benchmark repositories that are planned within seconds without optimization.
const TREES: [&str; 4] = ["web", "bench", "nodesized", "openb_cpu"];

fn copy_tree(tree: &str, workspace: &Workspace) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench/trees").join(tree);
    for name in ["fleetwright.yaml", "pool.yaml", "workloads.yaml"] {
        let text = std::fs::read_to_string(from.join(name)).expect("the tree is readable");
        workspace.write(name, &text);
    }
}

fn applied(tree: &str) -> Workspace {
    let workspace = Workspace::empty();
    copy_tree(tree, &workspace);
    let applied = workspace.run(&["apply", ".", "--world", "sim:world", "--auto-approve"]);
    assert_eq!(applied.code, Some(0), "{tree}: {}{}", applied.out, applied.err);
    workspace
}

fn plan(workspace: &Workspace) -> Json {
    let planned = workspace.run(&["plan", ".", "--world", "sim:world", "--format", "json"]);
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    serde_json::from_str(&planned.out).expect("a plan")
}

/// Returns the rows that change something.
fn changes(plan: &Json) -> Vec<&Json> {
    let rows = plan["resource_changes"].as_array().expect("rows").iter();
    rows.filter(|row| row["change"]["actions"][0] != "no-op").collect()
}

#[test]
fn plan_after_an_apply_is_empty() {
    for tree in TREES {
        let second = plan(&applied(tree));
        let changes = changes(&second);
        assert!(changes.is_empty(), "{tree}: {} changes: {:#?}", changes.len(), changes.first());
    }
}

/// One order of arrival leaves seven of the 42 pods over. The first plan has nodes for them, as the
/// next plan would.
#[test]
fn first_plan_places_pods_that_one_order_leaves_over() {
    let workspace = Workspace::empty();
    copy_tree("left_over", &workspace);
    let first = plan(&workspace);
    let pods = &first["capacity"]["pods"];
    assert_eq!((&pods["placed"], &pods["unschedulable"]), (&Json::from(42), &Json::from(0)));
    let second = plan(&applied("left_over"));
    assert!(changes(&second).is_empty(), "{:?}", changes(&second));
}

/// The share is no reason to rest: the first plan holds what a later one would change.
#[test]
fn fleet_rests_without_a_minimum_share() {
    let workspace = applied("openb_cpu");
    let settings = workspace.read("fleetwright.yaml");
    let share = "  consolidation: {minimumFleetSaving: 0%}\n";
    workspace.write("fleetwright.yaml", &format!("{}\n{share}", settings.trim_end()));
    let second = plan(&workspace);
    assert!(changes(&second).is_empty(), "{:?}", changes(&second));
}

#[test]
fn small_edits_move_no_pod() {
    let workspace = applied("web");
    let text = workspace.read("workloads.yaml");
    let documents: Vec<&str> = text.split("\n---\n").collect();
    assert!(documents.len() > 20, "{} documents", documents.len());
    for edited in [3, 11, 19] {
        let without: Vec<&str> =
            documents.iter().enumerate().filter(|(at, _)| *at != edited).map(|(_, d)| *d).collect();
        workspace.write("workloads.yaml", &without.join("\n---\n"));
        let second = plan(&workspace);
        let removed = changes(&second).len();
        assert_eq!(removed, 0, "without document {edited}: {removed} changes");
    }
}
