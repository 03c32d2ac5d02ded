//! What `deploy/github` runs in CI, run here as it stands there, over an embedded world.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::binary::Place;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/github")
}

/// Runs the action's script, with the program under test on the path.
fn step(place: &Place, variables: &[(&str, &str)]) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_fleetwright"));
    let own = program.parent().expect("a directory").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("bash")
        .arg(deploy().join("run.sh"))
        .current_dir(place.root())
        .env_clear()
        .env("PATH", format!("{own}:{path}"))
        .env("GITHUB_OUTPUT", place.path("outputs"))
        .env("GITHUB_STEP_SUMMARY", place.path("summary.md"))
        .envs(variables.iter().copied())
        .output()
        .expect("bash runs")
}

fn output(place: &Place, key: &str) -> String {
    let text = place.read("outputs");
    let found = text.lines().rev().find_map(|line| line.strip_prefix(&format!("{key}=")));
    found.unwrap_or_default().to_owned()
}

#[test]
fn the_steps_of_the_workflows_plan_apply_and_find_no_drift() {
    let place = Place::example("eks-workshop");
    let world = ("FLEETWRIGHT_WORLD", "sim:world");
    let planned = step(&place, &[("FLEETWRIGHT_COMMAND", "plan"), world]);
    let said = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(planned.status.success(), "{said}{}", String::from_utf8_lossy(&planned.stderr));
    assert!(said.contains("::notice file=inflate.yaml,line="), "{said}");
    assert_eq!(output(&place, "changes"), "true");
    assert!(place.read("summary.md").starts_with("### Fleetwright plan for `eks-workshop`"));

    let refused = step(
        &place,
        &[
            ("FLEETWRIGHT_COMMAND", "apply"),
            ("FLEETWRIGHT_APPROVED_DIGEST", &format!("sha256:{:064}", 0)),
        ],
    );
    assert_eq!(refused.status.code(), Some(3));
    let digest = output(&place, "digest");
    let applied =
        step(&place, &[("FLEETWRIGHT_COMMAND", "apply"), ("FLEETWRIGHT_APPROVED_DIGEST", &digest)]);
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    assert!(place.read("receipt.json").contains("\"verdict\": \"applied\""));

    let told = step(&place, &[("FLEETWRIGHT_COMMAND", "comment")]);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    assert!(String::from_utf8_lossy(&told.stderr).contains("GITHUB_TOKEN is not set"));
    let drift = step(&place, &[("FLEETWRIGHT_COMMAND", "drift"), world]);
    assert_eq!(drift.status.code(), Some(0), "{}", String::from_utf8_lossy(&drift.stdout));
    assert_eq!(step(&place, &[("FLEETWRIGHT_COMMAND", "x; rm -rf y")]).status.code(), Some(1));
}

#[test]
fn workflows_are_pinned_and_ask_for_no_more_than_they_need() {
    for name in ["plan", "apply", "drift"] {
        let path = deploy().join(format!("workflows/{name}.yml"));
        let text = std::fs::read_to_string(&path).expect("a workflow");
        assert!(text.contains("\npermissions: {}\n"), "{name}: nothing is granted to all jobs");
        assert!(
            !text.contains("pull_request_target") && !text.contains("contents: write"),
            "{name}"
        );
        for uses in text
            .lines()
            .filter_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix("uses: "))
        {
            let pin = uses.split(['@', ' ']).nth(1).unwrap_or_default();
            assert!(
                pin.len() == 40 && pin.chars().all(|c| c.is_ascii_hexdigit()),
                "{name}: {uses}"
            );
        }
    }
}
