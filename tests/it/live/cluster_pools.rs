//! Pools that only the cluster has (`spec.pools: cluster`), in the API of `fleetwright sandbox`.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::controller_fixture::{ControllerFixture, git};
use super::end_to_end::deployment;

/// Pushes a commit that declares no pool and reads those of the cluster. Returns its clone.
fn push_without_pools(fixture: &ControllerFixture, replicas: u32) -> TempDir {
    let clone = tempfile::tempdir().expect("a directory");
    let path = clone.path();
    git(path, &["clone", "-q", fixture.bare().to_str().expect("UTF-8"), "."]);
    fs::remove_file(path.join("pools.yaml")).expect("removed");
    let settings = fs::read_to_string(path.join("fleetwright.yaml")).expect("settings");
    // Without a change in the cluster, the branch is not read for a long time.
    let settings = settings.replace("    poll: 1s\n", "    poll: 1h\n");
    let settings = settings.replace("  world: live\n", "  world: live\n  pools: cluster\n");
    fs::write(path.join("fleetwright.yaml"), settings).expect("written");
    let apps = deployment("api", replicas, "pool", "general").to_string();
    fs::write(path.join("apps.yaml"), &apps).expect("written");
    // The sandbox delivers the workloads of its own tree.
    fs::write(fixture.tree.path().join("apps.yaml"), &apps).expect("written");
    git(path, &["add", "-A"]);
    git(path, &["commit", "-q", "-m", "pools of the cluster"]);
    git(path, &["push", "-q", "origin", "main"]);
    clone
}

/// Runs a command of the program in the directory of a clone, and returns its exit code and output.
fn run(fixture: &ControllerFixture, clone: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = fixture.command(arguments).current_dir(clone).output().expect("the program");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), format!("{}{}", text(&output.stdout), text(&output.stderr)))
}

#[test]
fn pool_in_a_file_and_in_the_cluster_is_an_error() {
    let fixture = ControllerFixture::new("controller", None);
    let clone = push_without_pools(&fixture, 0);
    let pools = fixture.tree.path().join("pools.yaml");
    fs::copy(pools, clone.path().join("pools.yaml")).expect("copied");
    let (code, plan) = run(&fixture, clone.path(), &["plan"]);
    assert_eq!(code, Some(1), "{plan}");
    for part in
        ["pools.yaml:1: NodePool general: is declared in a file", "cluster:nodepool/general"]
    {
        assert!(plan.contains(part), "{plan}");
    }
    fixture.sandbox.end();
}
