//! Pools that the cluster has (`spec.pools: cluster`), in the API of `fleetwright sandbox`.

use std::fs;

use super::controller_fixture::{ControllerFixture, git};

#[test]
fn pool_in_a_file_and_in_the_cluster_is_an_error() {
    let fixture = ControllerFixture::new("controller", None);
    let clone = tempfile::tempdir().expect("a directory");
    let path = clone.path();
    git(path, &["clone", "-q", fixture.bare().to_str().expect("UTF-8"), "."]);
    let file = path.join("fleetwright.yaml");
    let settings = fs::read_to_string(&file).expect("settings");
    let settings = settings.replace("  world: live\n", "  world: live\n  pools: cluster\n");
    fs::write(&file, settings).expect("written");
    let output = fixture.command(&["plan"]).current_dir(path).output().expect("the program");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let plan = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{plan}");
    for part in
        ["pools.yaml:1: NodePool general: is declared in a file", "cluster:nodepool/general"]
    {
        assert!(plan.contains(part), "{plan}");
    }
    fixture.sandbox.end();
}
