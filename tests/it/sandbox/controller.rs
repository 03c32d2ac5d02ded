//! The sandbox with a controller, and commands against its API.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Sandbox, has_kubectl, quickstart};

/// Runs this program with the environment variables that the sandbox prints.
fn fleetwright(sandbox: &Sandbox, code: i32, arguments: &[&str]) -> String {
    let set = sandbox.output.lines().filter_map(|line| line.trim().strip_prefix("export "));
    let set = set.flat_map(|line| line.split(' ')).filter_map(|pair| pair.split_once('='));
    let output = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
        .args(arguments)
        .envs(set)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .expect("the program");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{out}\n{err}");
    out
}

#[test]
fn plan_applied_in_sandbox_leaves_an_empty_plan() {
    let tree = quickstart();
    let sandbox = Sandbox::start(tree.path());
    let path = tree.path().to_str().expect("UTF-8");
    let plan = tree.path().join("plan.json");
    let plan = plan.to_str().expect("UTF-8");
    let live = ["plan", path, "--world", "live"];
    let first = fleetwright(&sandbox, 0, &[&live[..], &["--out", plan]].concat());
    assert!(first.contains("to add"), "{first}");
    fleetwright(&sandbox, 0, &["apply", plan, "--path", path, "--auto-approve"]);
    let again = fleetwright(&sandbox, 0, &[&live[..], &["--detailed-exitcode"]].concat());
    assert!(again.contains("Plan: 0 to add, 0 to change, 0 to destroy."), "{again}");
    sandbox.end();
}

#[test]
fn expander_priorities_of_the_cluster_are_observed() {
    if !has_kubectl() {
        return;
    }
    let tree = quickstart();
    let sandbox = Sandbox::start(tree.path());
    let path = tree.path().to_str().expect("UTF-8");
    let priorities = || {
        let world = fleetwright(&sandbox, 0, &["observe", path, "--world", "live"]);
        let world: serde_json::Value = serde_json::from_str(&world).expect("a world");
        world["scaling"]["expander_priorities"].to_string()
    };
    assert_eq!(priorities(), "{}", "the cluster has none");
    let file = tree.path().join("priorities.txt");
    let text = |name: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{ name: {name}, namespace: kube-system }}\n\
             data:\n  priorities: |\n    10:\n      - .*\n    50:\n      - ^spot-\n"
        )
    };
    for name in ["other", "cluster-autoscaler-priority-expander"] {
        std::fs::write(&file, text(name)).expect("written");
        sandbox.kubectl_output(&["apply", "-f", file.to_str().expect("UTF-8")]);
    }
    let expected = "{\"kube-system\":{\"levels\":{\"10\":[\".*\"],\"50\":[\"^spot-\"]}}}";
    assert_eq!(priorities(), expected);
    sandbox.end();
}

/// A controller that waits for CI takes the record of an empty plan for its approved apply.
#[test]
fn empty_plan_is_recorded_after_checks_and_approvals() {
    let tree = quickstart();
    let sandbox = Sandbox::start(tree.path());
    let path = tree.path().to_str().expect("UTF-8");
    let file = tree.path().join("plan.json");
    let saved = file.to_str().expect("UTF-8");
    let plan = ["plan", path, "--world", "live", "--out", saved];
    let apply = ["apply", saved, "--path", path, "--auto-approve"];
    let settings = tree.path().join("fleetwright.yaml");
    append(&settings, "  apply:\n    by: ci\n");
    fleetwright(&sandbox, 0, &plan);
    fleetwright(&sandbox, 0, &apply);
    fleetwright(&sandbox, 0, &plan);
    let recorded = fleetwright(&sandbox, 0, &apply);
    assert!(recorded.contains("Nodes: 0 launched, 0 terminated"), "{recorded}");
    let text = std::fs::read_to_string(&file).expect("a plan");
    let mut expired = fleetwright::plan::Plan::from_json(&text).expect("a plan");
    expired.timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    fleetwright::plan::set_identity(&mut expired);
    std::fs::write(&file, expired.to_json()).expect("written");
    fleetwright(&sandbox, 11, &apply);
    append(&settings, &format!("    keys: [{{ name: alice, key: {ALICE_PUBLIC} }}]\n"));
    fleetwright(&sandbox, 0, &plan);
    fleetwright(&sandbox, 5, &apply);
    sandbox.end();
}

/// A key that nothing signs with.
const ALICE_PUBLIC: &str = "MCowBQYDK2VwAyEAK6r6k6xSO+Tf7GsjgOLiOP431kQtIjsjKV0hIVgox0c=";

/// Settings with which a test need not wait for removals.
const QUICK: &str = "  controller:\n    settle: 1s\n    refresh: 1s\n    \
                     removals: { most: 100%, within: 1s }\n    massRemoval: 100%\n";

fn append(file: &Path, text: &str) {
    let before = std::fs::read_to_string(file).expect("a file");
    std::fs::write(file, format!("{before}{text}")).expect("written");
}

/// A Deployment that no file declares: its pods count as they run.
const LOAD: &str = "apiVersion: apps/v1\nkind: Deployment\n\
     metadata: { name: load, namespace: shop }\n\
     spec:\n  replicas: 1\n  selector: { matchLabels: { app: load } }\n  template:\n    \
     metadata: { labels: { app: load } }\n    spec:\n      containers:\n      \
     - { name: a, image: 'load:1', resources: { requests: { cpu: 500m, memory: 1Gi } } }\n";

#[test]
fn scaled_deployment_gets_nodes_and_loses_them() {
    if !has_kubectl() {
        return;
    }
    let tree = quickstart();
    append(&tree.path().join("fleetwright.yaml"), QUICK);
    let pool = tree.path().join("platform/nodepool.yaml");
    let text = std::fs::read_to_string(&pool).expect("a file");
    std::fs::write(&pool, text.replace("consolidateAfter: 30s", "consolidateAfter: 0s"))
        .expect("written");
    let sandbox = Sandbox::start_with(tree.path(), &[]);
    assert!(sandbox.output.contains("The controller (mode `full`): http://127.0.0.1:"));
    let nodes = ["get", "nodes", "--no-headers"];
    let ready = |out: &str| out.lines().filter(|line| line.contains(" Ready ")).count();
    let file = tree.path().join("load.txt");
    std::fs::write(&file, LOAD).expect("written");
    sandbox.kubectl_output(&["apply", "-f", file.to_str().expect("UTF-8")]);
    sandbox.kubectl_output(&["scale", "-n", "shop", "deployment/load", "--replicas=50"]);
    let load = ["get", "deployment", "load", "-n", "shop", "--no-headers"];
    sandbox.wait_for_output(&load, |out| out.contains(" 50/50 "));
    let grown = sandbox.kubectl_output(&nodes);
    let used = sandbox.kubectl_output(&["top", "nodes", "--no-headers"]);
    assert_eq!(used.lines().count(), ready(&grown), "{used}\n{grown}");
    let used = sandbox.kubectl_output(&["top", "pods", "-n", "shop", "-l", "app=load"]);
    assert_eq!(used.matches("500m").count(), 50, "the usage is the request: {used}");
    let events = ["get", "events", "-n", "shop", "--field-selector", "reason=FailedScheduling"];
    let events = sandbox.kubectl_output(&events);
    assert!(events.contains("insufficient cpu") || events.contains("too many pods"), "{events}");
    let plans = sandbox.kubectl_output(&["get", "capacityplans", "--no-headers"]);
    assert!(plans.contains("Applied"), "{plans}");
    sandbox.kubectl_output(&["scale", "-n", "shop", "deployment/load", "--replicas=0"]);
    sandbox.wait_for_output(&nodes, |out| ready(out) < ready(&grown));
    sandbox.end();
}

#[test]
fn observing_controller_launches_nothing() {
    if !has_kubectl() {
        return;
    }
    let tree = quickstart();
    let sandbox = Sandbox::start_with(tree.path(), &["--mode", "observe"]);
    let plans = ["get", "capacityplans", "--no-headers"];
    sandbox.wait_for_output(&plans, |out| out.contains("+1"));
    let nodes = sandbox.kubectl_output(&["get", "nodes", "--no-headers"]);
    assert_eq!(nodes.lines().count(), 3, "{nodes}");
    sandbox.end();
}

#[test]
fn restart_and_new_image_replace_every_pod() {
    if !has_kubectl() {
        return;
    }
    let tree = quickstart();
    // The controller makes room for the surge.
    let sandbox = Sandbox::start_with(tree.path(), &[]);
    let pods = ["get", "pods", "-n", "shop", "-l", "app=cart", "-o"];
    let names = |field: &str| -> std::collections::BTreeSet<String> {
        let path = format!("jsonpath={{.items[*].{field}}}");
        let out = sandbox.kubectl_output(&[&pods[..], &[&path]].concat());
        out.split_whitespace().map(str::to_owned).collect()
    };
    let image = "spec.containers[0].image";
    assert_eq!(names(image).into_iter().collect::<Vec<_>>(), ["cart"], "as the file says");
    let status = ["rollout", "status", "-n", "shop", "deployment/cart", "--timeout=180s"];
    for change in [
        &["rollout", "restart", "-n", "shop", "deployment/cart"][..],
        &["set", "image", "-n", "shop", "deployment/cart", "cart=cart:2"],
    ] {
        let before = names("metadata.uid");
        sandbox.kubectl_output(change);
        let done = sandbox.kubectl_output(&status);
        assert!(done.contains("successfully rolled out"), "{done}");
        let after = names("metadata.uid");
        assert!(before.is_disjoint(&after) && after.len() >= 6, "{before:?} {after:?}");
    }
    assert!(names(image).contains("cart:2"));
    // Another file does not undo the changes of clients.
    std::fs::write(
        tree.path().join("apps/more.yaml"),
        "apiVersion: v1\nkind: ConfigMap\n\
         metadata: { name: more, namespace: shop }\ndata: { a: b }\n",
    )
    .expect("written");
    let more = ["get", "configmap", "-n", "shop", "-o", "name"];
    sandbox.wait_for_output(&more, |out| out.contains("configmap/more"));
    assert_eq!(names(image).into_iter().collect::<Vec<_>>(), ["cart:2"]);
    // Its own file does.
    let shop = tree.path().join("apps/shop.yaml");
    let text = std::fs::read_to_string(&shop).expect("a file");
    std::fs::write(&shop, text.replace("image: cart", "image: cart:3")).expect("written");
    let images = [&pods[..], &["jsonpath={.items[*].spec.containers[0].image}"]].concat();
    sandbox.wait_for_output(&images, |out| out.split(' ').all(|image| image == "cart:3"));
    sandbox.end();
}

/// Returns the quickstart with the annotation `team` in the template of its pool.
fn annotated_quickstart() -> tempfile::TempDir {
    let tree = quickstart();
    let pool = tree.path().join("platform/nodepool.yaml");
    let text = std::fs::read_to_string(&pool).expect("a file");
    let template = "  template:\n    metadata: { annotations: { team: shop } }\n    spec:\n";
    let annotated = text.replacen("  template:\n    spec:\n", template, 1);
    assert_ne!(annotated, text);
    std::fs::write(&pool, annotated).expect("written");
    tree
}

/// Prints the annotation `team` of each node that has it.
const TEAMS: [&str; 4] = ["get", "nodes", "-o", "jsonpath={.items[*].metadata.annotations.team}"];

#[test]
fn apply_annotates_the_nodes_that_it_launches() {
    if !has_kubectl() {
        return;
    }
    let tree = annotated_quickstart();
    let sandbox = Sandbox::start(tree.path());
    let path = tree.path().to_str().expect("UTF-8");
    let plan = tree.path().join("plan.json");
    let plan = plan.to_str().expect("UTF-8");
    assert_eq!(sandbox.kubectl_output(&TEAMS), "");
    fleetwright(&sandbox, 0, &["plan", path, "--world", "live", "--out", plan]);
    fleetwright(&sandbox, 0, &["apply", plan, "--path", path, "--auto-approve"]);
    let teams = sandbox.kubectl_output(&TEAMS);
    assert!(teams.starts_with("shop"), "{teams}");
    sandbox.end();
}

#[test]
fn controller_annotates_the_nodes_that_it_launches() {
    if !has_kubectl() {
        return;
    }
    let tree = annotated_quickstart();
    let sandbox = Sandbox::start_with(tree.path(), &[]);
    sandbox.wait_for_output(&TEAMS, |teams| teams.starts_with("shop"));
    sandbox.end();
}
