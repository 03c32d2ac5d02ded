//! The controller on a real control plane, end to end: `tests/control-plane/run` over examples.
//!
//! `KUBEBUILDER_ASSETS` names a directory with etcd, kube-apiserver, kube-controller-manager and
//! kube-scheduler. Without them the test is skipped, and stderr states the reason.

use std::path::Path;
use std::process::Command;

use serde_json::Value as Json;

use crate::missing_tool::not_run;

/// Exit code of the script if a program is missing.
const UNAVAILABLE: i32 = 69;

/// Runs the script over trees. Returns its reports, or `None` if it cannot run here.
fn reports(arguments: &[&str]) -> Option<Vec<Json>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().expect("a directory");
    let output = Command::new(root.join("tests/control-plane/run"))
        .current_dir(root)
        .args(arguments)
        .arg("--out")
        .arg(out.path())
        .env("FLEETWRIGHT", env!("CARGO_BIN_EXE_fleetwright"))
        .env("CONTROL_PLANE_VENV", Path::new(env!("CARGO_TARGET_TMPDIR")).join("control-plane"))
        .output()
        .expect("a finished script");
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(UNAVAILABLE) {
        let why = stderr.lines().last().unwrap_or_default();
        not_run("control-plane", why.trim_start_matches("not run: "));
        return None;
    }
    assert!(output.status.success(), "{stderr}");
    let text = std::fs::read_to_string(out.path().join("reports.jsonl")).expect("reports");
    Some(text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
}

/// Checks that every planned pod is bound, and that no node is left closed.
fn check(report: &Json) {
    for key in
        ["planned_pending", "daemons_pending", "closed", "launched_beyond_plan", "rig_errors"]
    {
        assert_eq!(report[key], 0, "{key}: {report:#}");
    }
    assert!(report["nodes"].as_u64() > Some(0), "{report:#}");
}

#[test]
fn controller_binds_planned_pods_to_their_planned_nodes() {
    let trees = ["examples/eks-workshop", "examples/quickstart"];
    let Some(reports) = reports(&[&trees[..], &["--boot", "8", "--ready-within", "6"]].concat())
    else {
        return;
    };
    assert_eq!(reports.len(), trees.len());
    for report in &reports {
        check(report);
        let nominations = &report["nominations"];
        assert_eq!(nominations["made"], report["plan_places"], "{report:#}");
        assert_eq!(nominations["honored"], nominations["made"], "{report:#}");
    }
}

#[test]
fn apply_opens_the_nodes_that_it_launches() {
    let arguments = ["examples/quickstart", "--apply", "--boot", "8", "--ready-within", "6"];
    let Some(reports) = reports(&arguments) else { return };
    let [report] = &reports[..] else { panic!("{reports:#?}") };
    check(report);
    assert_eq!(report["exit_code"], 0, "{report:#}");
    assert_eq!(report["nominations"]["made"], 0, "{report:#}");
}
