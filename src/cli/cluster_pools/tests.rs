use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::adapters::git::read_tree;
use crate::cli::Exit;
use crate::cli::repository::Repository;
use crate::cli::signature_check::SignatureTrust;
use crate::cli::tests::manifests::{CLASS, FLEET, POOL, WORKLOAD};
use crate::cli::tests::{CommandOutput, run_command};
use crate::model::observed::{ClusterIdentity, ClusterPools, Observed, PoolObject, write_world};

const AT: [&str; 2] = ["--at", "2026-09-01T10:00:00Z"];

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn tree(settings: &str, files: &[(&str, &str)]) -> TempDir {
    let tree = tempfile::tempdir().expect("a directory");
    let write = |name: &str, content: &str| fs::write(tree.path().join(name), content);
    write("fleetwright.yaml", &format!("{FLEET}{settings}")).expect("written");
    write("api.yaml", WORKLOAD).expect("written");
    for (name, content) in files {
        write(name, content).expect("written");
    }
    tree
}

fn object(manifest: &str) -> PoolObject {
    let object: Json = serde_saphyr::from_str(manifest).expect("YAML");
    PoolObject::from_json(&object).expect("an object")
}

fn own_pools() -> ClusterPools {
    ClusterPools::new(vec![object(POOL), object(CLASS)], BTreeMap::new())
}

/// Writes a world with these pools into a directory.
fn write_into(directory: &Path, pools: Option<ClusterPools>) -> String {
    let cluster = ClusterIdentity {
        name: "test".into(),
        region: "us-east-1".into(),
        account: "000000000000".into(),
        uid: "sim-test".into(),
    };
    let mut world = Observed::empty(cluster, "2026-09-01T10:00:00Z".parse().expect("a time"));
    world.pools = pools.map(Arc::new);
    fs::create_dir_all(directory).expect("made");
    let file = directory.join("world.json");
    fs::write(&file, write_world(&world)).expect("written");
    text(&file).to_owned()
}

fn planned(tree: &TempDir, more: &[&str]) -> CommandOutput {
    run_command(&[&["plan", text(tree.path())], &AT[..], more].concat())
}

/// Removes the places of pools and what follows from the files, which may differ.
fn without_places(value: &mut Json) {
    match value {
        Json::Object(fields) => {
            let is_place = |file: &Json| {
                file.as_str().is_some_and(|f| f.starts_with("cluster:") || f == "pools.yaml")
            };
            if fields.get("file").is_some_and(is_place) {
                fields.insert("file".to_owned(), json!("pools"));
                fields.insert("line".to_owned(), json!(0));
            }
            fields.values_mut().for_each(without_places);
        }
        Json::Array(items) => items.iter_mut().for_each(without_places),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
}

fn decided(tree: &TempDir, world: &str) -> Json {
    let ran = planned(tree, &["--world", world, "--format", "json"]);
    assert_eq!(ran.exit, Exit::Done, "{}{}", ran.out, ran.err);
    let mut plan: Json = serde_json::from_str(&ran.out).expect("JSON");
    let fields = plan.as_object_mut().expect("an object");
    fields.remove("checksum");
    let capacity = fields["capacity"].as_object_mut().expect("an object");
    for key in ["base", "plan_id"] {
        capacity.remove(key);
    }
    without_places(&mut plan);
    plan
}

#[test]
fn pools_of_the_cluster_plan_like_those_of_files() {
    let files = tree("", &[("pools.yaml", &format!("{POOL}---\n{CLASS}"))]);
    let cluster = tree("  pools: cluster\n", &[]);
    let world = write_into(&cluster.path().join("seen"), Some(own_pools()));
    let (of_files, of_cluster) = (decided(&files, &world), decided(&cluster, &world));
    assert!(of_files.to_string().contains("m5.large"));
    assert_eq!(of_cluster["capacity"]["digest"], of_files["capacity"]["digest"]);
    assert_eq!(of_cluster, of_files);
}

#[test]
fn plan_without_known_pools_is_an_error_with_the_way_out() {
    let tree = tree("  pools: cluster\n", &[]);
    let older = write_into(&tree.path().join("older"), None);
    let forbidden = "nodepools.karpenter.sh is forbidden: User \"ci\" cannot list resource (403)";
    let unread = [("NodePool".to_owned(), forbidden.to_owned())].into();
    let unread = ClusterPools { objects: vec![object(CLASS)], unread };
    let unread = write_into(&tree.path().join("unread"), Some(unread));
    let missing = format!("sim:{}", text(&tree.path().join("missing")));
    let observe = "fleetwright observe --world live --out FILE";
    for (world, why, hint) in [
        ("empty", "world `empty` does not say which node pools the cluster has", observe),
        (&older, "does not say which node pools the cluster has", "an earlier version wrote"),
        (&unread, forbidden, "hint:  apply deploy/kubernetes/rbac.yaml"),
        (&missing, "does not say which node pools the cluster has", observe),
    ] {
        let ran = planned(&tree, &["--world", world]);
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Failed, ""), "{world}: {}", ran.err);
        assert!(ran.err.contains(why) && ran.err.contains(hint), "{world}: {}", ran.err);
    }
}

#[test]
fn cluster_without_pools_makes_no_plan_that_removes_the_fleet() {
    let tree = tree("  pools: cluster\n", &[]);
    let world = write_into(&tree.path().join("seen"), Some(ClusterPools::default()));
    let ran = planned(&tree, &["--world", &world]);
    assert_eq!(ran.exit, Exit::Failed, "{}", ran.out);
    assert!(ran.out.contains("the cluster has no NodePool"), "{}{}", ran.out, ran.err);
}

#[test]
fn lost_files_are_an_error_although_the_cluster_has_pools() {
    let tree = tree("  pools: cluster\n", &[]);
    let read = || {
        let files = read_tree(tree.path()).expect("files");
        let pools = Some(Arc::new(own_pools()));
        Repository::read_trusting(&files, &SignatureTrust::default(), pools)
    };
    let is_refused = |repository: &Repository| {
        let mut problems = repository.desired.problems.iter();
        problems.any(|problem| problem.message.starts_with("no workload and no pool is declared"))
    };
    let before = read();
    assert!(!before.is_empty() && !is_refused(&before), "{:?}", before.desired.problems);
    fs::remove_file(tree.path().join("api.yaml")).expect("removed");
    let lost = read();
    assert!(lost.is_empty() && is_refused(&lost), "{:?}", lost.desired.problems);
    let validated = run_command(&["validate", text(tree.path())]);
    assert_eq!(validated.exit, Exit::Failed, "{}", validated.out);
    assert!(validated.out.contains("a workload with `replicas: 0`"), "{}", validated.out);
}

#[test]
fn pool_change_makes_a_saved_plan_stale() {
    let tree = tree("  pools: cluster\n", &[]);
    let directory = tree.path().join("world");
    write_into(&directory, Some(own_pools()));
    let world = format!("sim:{}", text(&directory));
    let saved = tree.path().join("plan.json");
    let place = ["--path", text(tree.path())];
    let plan = || {
        let path = text(tree.path());
        let ran = run_command(&["plan", path, "--world", &world, "--out", text(&saved)]);
        assert_eq!(ran.exit, Exit::Done, "{}{}", ran.out, ran.err);
    };
    let apply = || run_command(&[&["apply", text(&saved), "--auto-approve"][..], &place].concat());
    plan();
    let mut heavier = object(POOL);
    heavier.spec["weight"] = json!(7);
    let changed = ClusterPools::new(vec![heavier, object(CLASS)], BTreeMap::new());
    write_into(&directory, Some(changed));
    let refused = apply();
    assert_eq!(refused.exit, Exit::Stale, "{}", refused.err);
    assert!(
        refused.err.contains("the node pools of the cluster are not those that were planned"),
        "{}",
        refused.err
    );
    // A plan file does not choose its pools.
    let edited = fs::read_to_string(&saved).expect("saved");
    let edited: String =
        edited.lines().filter(|line| !line.contains("\"cluster_pools\"")).collect();
    fs::write(&saved, edited).expect("written");
    assert_ne!(apply().exit, Exit::Done);
    plan();
    let applied = apply();
    assert_eq!(applied.exit, Exit::Done, "{}", applied.err);
    let again = run_command(&["plan", text(tree.path()), "--world", &world, "--detailed-exitcode"]);
    assert_eq!(again.exit, Exit::Done, "{}", again.out);
}

#[test]
fn text_of_cluster_pools_is_escaped() {
    let tree = tree("  pools: cluster\n", &[]);
    let mut hostile = object(POOL);
    hostile.metadata.name = "a\u{1b}[2Jb".to_owned();
    hostile.spec["template"]["spec"]["nodeClassRef"]["name"] = json!("x\u{1b}]0;y\u{7}");
    hostile.spec["weight"] = json!("\u{1b}[31m");
    let pools = ClusterPools::new(vec![hostile, object(CLASS)], BTreeMap::new());
    let world = write_into(&tree.path().join("seen"), Some(pools));
    for view in [&["-o", "text"][..], &["-o", "markdown"], &["-o", "html"], &["--json"]] {
        let ran = planned(&tree, &[&["--world", &world], view].concat());
        assert_eq!(ran.exit, Exit::Failed, "{view:?}: {}", ran.out);
        let shown = format!("{}{}", ran.out, ran.err);
        assert!(!shown.contains('\u{1b}') && !shown.contains('\u{7}'), "{view:?}: {shown:?}");
    }
}

#[test]
fn validation_says_that_pools_are_in_the_cluster() {
    let tree = tree("  pools: cluster\n", &[]);
    let ran = run_command(&["validate", text(tree.path())]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.out);
    assert!(ran.out.contains("2 files: 1 workload, pools in the cluster\n"), "{}", ran.out);
    assert!(ran.out.contains("0 errors, 0 warnings."), "{}", ran.out);
    let json = run_command(&["validate", text(tree.path()), "--format", "json"]).out;
    let json: Json = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["pools"], &json["unread_pools"]), (&json!(0), &json!(true)));
}

#[test]
fn commands_over_a_world_read_its_pools() {
    let tree = tree("  pools: cluster\n", &[]);
    let world = write_into(&tree.path().join("seen"), Some(own_pools()));
    let path = text(tree.path());
    for command in [
        &["drift", path][..],
        &["forecast", path],
        &["adopt", path],
        &["catalog", "list", "--pool", "web", "--path", path],
        &["explain", "web", path],
    ] {
        let ran = run_command(&[command, &["--world", &world]].concat());
        assert_eq!(ran.exit, Exit::Done, "{command:?}: {}{}", ran.out, ran.err);
    }
    let observed = run_command(&["observe", path, "--world", &world]);
    assert!(observed.out.contains("\"kind\": \"NodePool\""), "{}", observed.out);
    // An observation is the way out of unknown pools, so it needs none.
    let older = write_into(&tree.path().join("older"), None);
    let observed = run_command(&["observe", path, "--world", &older]);
    assert_eq!(observed.exit, Exit::Done, "{}", observed.err);
}
