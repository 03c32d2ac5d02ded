//! Law: the plan after an apply is empty while nothing changes, and a small edit moves few pods.

mod drawn_trees;
mod shrinking_workloads;

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
    planned_and_applied(tree).0
}

/// Plans a new fleet for the tree and applies this plan. Returns the plan as well.
fn planned_and_applied(tree: &str) -> (Workspace, Json) {
    let workspace = Workspace::empty();
    copy_tree(tree, &workspace);
    let first = plan_with(&workspace, &["--out", "a.plan"]);
    let applied = workspace.run(&["apply", "a.plan", "--world", "sim:world", "--auto-approve"]);
    assert_eq!(applied.code, Some(0), "{tree}: {}{}", applied.out, applied.err);
    (workspace, first)
}

fn plan(workspace: &Workspace) -> Json {
    plan_with(workspace, &[])
}

fn plan_with(workspace: &Workspace, options: &[&str]) -> Json {
    let plan = ["plan", ".", "--world", "sim:world", "--format", "json"];
    let planned = workspace.run(&[&plan[..], options].concat());
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
        let (workspace, first) = planned_and_applied(tree);
        let second = plan(&workspace);
        let changes = changes(&second);
        assert!(changes.is_empty(), "{tree}: {} changes: {:#?}", changes.len(), changes.first());
        let [before, after] = [&first, &second].map(|plan| &plan["capacity"]["cost"]);
        assert!(before["lower_bound_hourly"].is_string(), "{tree}: {before}");
        assert_eq!(before["lower_bound_hourly"], after["lower_bound_hourly"], "{tree}");
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

/// An apply nominates the pods of a steered plan, so that they end up on its nodes.
#[test]
fn steered_plan_after_a_steered_apply_is_empty() {
    let workspace = Workspace::empty();
    copy_tree("left_over", &workspace);
    let steered = ["apply", ".", "--steer", "--world", "sim:world", "--auto-approve"];
    let applied = workspace.run(&steered);
    assert_eq!(applied.code, Some(0), "{}{}", applied.out, applied.err);
    let second = plan_with(&workspace, &["--steer"]);
    assert!(changes(&second).is_empty(), "{:?}", changes(&second).first());
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
    let scaled = |percent: u64| {
        let mut object: Json = serde_json::from_str(documents[0]).expect("JSON");
        let replicas = object["spec"]["replicas"].as_u64().expect("a number");
        assert!(replicas >= 10, "{replicas} replicas");
        object["spec"]["replicas"] = Json::from(replicas * percent / 100);
        [object.to_string(), documents[1..].join("\n---\n")].join("\n---\n")
    };
    let added = [text.as_str(), &documents[3].replace("web3", "added")].join("\n---\n");
    for (what, edited) in [("+10 %", scaled(110)), ("-10 %", scaled(90)), ("added", added)] {
        workspace.write("workloads.yaml", &edited);
        let second = plan(&workspace);
        let pods = &second["capacity"]["pods"];
        assert_eq!(pods["moved"], Json::from(0), "{what}: {pods}");
    }
}

/// The tightest fleet of nominated pods is the measure for a fleet that lost pods, although evicted
/// pods are not nominated.
#[test]
fn steered_fleet_shrinks_with_its_pods() {
    const STEER: [&str; 6] = ["plan", ".", "--steer", "--format", "json", "--world"];
    let workspace = Workspace::empty();
    copy_tree("web", &workspace);
    let pool = workspace.read("pool.yaml");
    let cpus = "- {key: karpenter.k8s.aws/instance-cpu, operator: Lt, values: [\"33\"]}";
    let family = "- {key: karpenter.k8s.aws/instance-category";
    assert!(pool.contains(family));
    workspace.write("pool.yaml", &pool.replacen(family, &format!("{cpus}\n        {family}"), 1));
    let text = workspace.read("workloads.yaml");
    let documents: Vec<&str> = text.split("---\n").filter(|d| d.contains("replicas")).collect();
    let scaled = |percent: u64| {
        let one = |(index, text): (usize, &&str)| {
            let mut object: Json = serde_json::from_str(text).expect("JSON");
            let replicas = object["spec"]["replicas"].as_u64().expect("a number");
            if index % 2 == 1 {
                object["spec"]["replicas"] = Json::from((replicas * percent / 100).max(1));
            }
            object.to_string()
        };
        documents.iter().step_by(2).enumerate().map(one).collect::<Vec<_>>().join("\n---\n")
    };
    workspace.write("workloads.yaml", &scaled(100));
    let apply = ["apply", ".", "--steer", "--world", "sim:world", "--auto-approve"];
    let applied = workspace.run(&apply);
    assert_eq!(applied.code, Some(0), "{}{}", applied.out, applied.err);
    workspace.write("workloads.yaml", &scaled(40));
    let price = |world: &str| {
        let planned = workspace.run(&[&STEER[..], &[world]].concat());
        assert_eq!(planned.code, Some(0), "{}", planned.err);
        let plan: Json = serde_json::from_str(&planned.out).expect("a plan");
        let hourly = plan["capacity"]["cost"]["hourly_after"].as_str().expect("a price");
        hourly.parse::<f64>().expect("a number")
    };
    // The disruption budget allows a part of the way.
    let (standing, fresh) = (price("sim:world"), price("empty"));
    assert!(standing < 1.15 * fresh, "{standing} $/h, a new fleet {fresh} $/h");
    // The fleet comes to rest within the pace of the budget.
    for _ in 0..6 {
        assert_eq!(workspace.run(&apply).code, Some(0));
    }
    let planned = workspace.run(&[&STEER[..], &["sim:world"]].concat());
    let rest: Json = serde_json::from_str(&planned.out).expect("a plan");
    assert!(changes(&rest).is_empty(), "{:?}", changes(&rest).first());
}
