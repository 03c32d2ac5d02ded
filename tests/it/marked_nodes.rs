//! Law: a node that an operator taints, cordons or drains by hand moves no pod of another node.

use serde_json::{Value as Json, json};

use crate::binary::{Workspace, parsed};

const NODE: &str = "ip-10-0-0-22.us-east-1.compute.internal";

/// Returns the quickstart with its plan applied, and a change of its world after that.
fn quickstart_after(change: impl FnOnce(&mut Json)) -> Workspace {
    let workspace = Workspace::example("quickstart");
    let applied = workspace.run(&["apply", ".", "--auto-approve"]);
    assert_eq!(applied.code, Some(0), "{}{}", applied.out, applied.err);
    let mut world = parsed(&workspace.read("world/world.json"));
    assert!(world["nodes"][NODE].is_object(), "the node exists");
    change(&mut world);
    workspace.write("world/world.json", &world.to_string());
    workspace
}

/// Checks the exit code of `drift`, and that the plan moves no pod and changes no other node.
/// Returns the number of launches, and the number of changes of the node.
fn check_plan(workspace: &Workspace, has_drift: bool) -> (usize, usize) {
    let drift = workspace.run(&["drift", "--detailed-exitcode"]);
    let code = if has_drift { 2 } else { 0 };
    assert_eq!(drift.code, Some(code), "{}{}", drift.out, drift.err);
    let planned = workspace.run(&["plan", "--format", "json"]);
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    let plan = parsed(&planned.out);
    let pods = &plan["capacity"]["pods"];
    assert_eq!(pods["moved"], Json::from(0), "{pods}");
    // `reports` fits on no node.
    assert_eq!(pods["unschedulable"], Json::from(1), "{pods}");
    let rows = plan["resource_changes"].as_array().expect("rows").iter();
    let changed = rows.filter(|row| row["change"]["actions"][0] != "no-op");
    let (launches, changes): (Vec<&Json>, Vec<&Json>) =
        changed.partition(|row| row["change"]["before"].is_null());
    for row in &changes {
        assert_eq!(row["change"]["before"]["node"], NODE, "{row}");
    }
    (launches.len(), changes.len())
}

#[test]
fn taint_by_hand_is_drift_and_changes_no_node() {
    let workspace = quickstart_after(|world| {
        let taint = json!({"key": "maintenance", "value": "true", "effect": "NoSchedule"});
        world["nodes"][NODE]["taints"] = json!([taint]);
    });
    assert_eq!(check_plan(&workspace, true), (0, 0));
    let drift = workspace.run(&["drift"]);
    assert!(drift.out.contains("maintenance"), "{}", drift.out);
}

/// The cluster itself cordons nodes, so a cordon is no drift.
#[test]
fn cordon_by_hand_changes_no_node() {
    let workspace = quickstart_after(|world| {
        world["nodes"][NODE]["unschedulable"] = Json::from(true);
    });
    assert_eq!(check_plan(&workspace, false), (0, 0));
}

#[test]
fn drained_node_is_replaced_by_what_its_pods_need() {
    let workspace = quickstart_after(|world| {
        world["nodes"][NODE]["unschedulable"] = Json::from(true);
        let mut evicted = 0;
        for pod in world["pods"].as_array_mut().expect("pods") {
            if pod["node"] == NODE && pod["owner"]["kind"] != "DaemonSet" {
                pod["phase"] = Json::from("Pending");
                pod.as_object_mut().expect("a pod").remove("node");
                evicted += 1;
            }
        }
        assert!(evicted > 1, "{evicted} pods");
    });
    let (launches, _) = check_plan(&workspace, false);
    assert_eq!(launches, 1, "one node has room for its pods");
}
