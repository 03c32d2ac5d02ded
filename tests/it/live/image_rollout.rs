//! End-to-end tests of image rollouts by the controller.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::cluster::runtime;
use super::controller_fixture::{ControllerFixture, ControllerProcess, TIMEOUT};
use super::proxy::Fault;

/// Systems Manager parameter of the image `al2023@latest` for the instances of the fixture.
const PARAMETER: &str =
    "/aws/service/eks/optimized-ami/1.33/amazon-linux-2023/x86_64/standard/recommended/image_id";

/// Waits until all pods of the tree run.
async fn wait_for_running_pods(
    fixture: &ControllerFixture,
    pods: usize,
    replica: &ControllerProcess,
) {
    let started = Instant::now();
    while fixture.nodes_of_running_pods().await.len() < pods {
        assert!(started.elapsed() < TIMEOUT, "pods are not running\n{}", replica.read_log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until all three nodes are replaced, one at a time. `calls_before` is the number of effects
/// before the rollout.
async fn wait_for_rollout(
    fixture: &ControllerFixture,
    before: &BTreeSet<String>,
    calls_before: usize,
    replica: &ControllerProcess,
) {
    let started = Instant::now();
    loop {
        let (nodes, running) = (fixture.nodes().await, fixture.nodes_of_running_pods().await.len());
        // One node is replaced at a time.
        assert!(
            running >= 2 && nodes.len() >= 2,
            "{running} pods on {nodes:?}\n{}",
            replica.read_log()
        );
        let instances = fixture.instances().await.into_values().flatten().count();
        if nodes.is_disjoint(before) && (nodes.len(), running, instances) == (3, 3, 3) {
            break;
        }
        assert!(started.elapsed() < TIMEOUT, "{nodes:?}\n{}", replica.read_log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Termination may be requested again until the instance is observed to be gone.
    let mut effects = fixture.effects().split_off(calls_before);
    effects.dedup();
    assert_eq!(effects, ["CreateFleet", "TerminateInstances"].repeat(3), "{}", replica.read_log());
}

#[test]
fn new_image_rolls_out_within_the_budget() {
    let fixture = ControllerFixture::new("controller", None);
    runtime().block_on(async {
        fixture.edit("pools.yaml", "nodes: '100%'", "nodes: '1'");
        fixture.commit(3);
        let replica = fixture.start("a");
        let before = fixture.wait_for_nodes(3, &replica).await;
        wait_for_running_pods(&fixture, 3, &replica).await;
        let calls_before = fixture.effects().len();
        fixture.edit("pools.yaml", "al2023@v20260101", "al2023@v20260201");
        fixture.push();
        wait_for_rollout(&fixture, &before, calls_before, &replica).await;
        replica.end();
    });
    fixture.sandbox.end();
}

/// Runs a command with JSON output. Returns its exit code and its output.
fn run_json(fixture: &ControllerFixture, arguments: &[&str]) -> (Option<i32>, Json) {
    let options = ["--format", "json", "--detailed-exitcode"];
    let output = fixture.command(&[arguments, &options].concat()).output().expect("the program");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let json = serde_json::from_slice(&output.stdout);
    (output.status.code(), json.unwrap_or_else(|error| panic!("{error}: {stderr}")))
}

/// Returns the image drift and the diagnostics in a plan or drift report.
fn image_messages(json: &Json) -> Vec<String> {
    let all = &json["capacity"];
    let rows = all["explain"].as_array().into_iter().flatten();
    // An instance in the plan has drift as its reason. An instance that waits for the budget has
    // drift beside another reason.
    let reasons = rows.flat_map(|row| ["drift", "retire_reason"].map(|key| &row[key]));
    let reasons = reasons.filter(|drift| drift["field"] == "image");
    let reasons = reasons.map(|drift| format!("{} to {}", drift["is"], drift["declared"]));
    let diagnostics = all["diagnostics"].as_array().into_iter().flatten();
    let diagnostics =
        diagnostics.filter(|row| row["severity"] == "behind" || row["severity"] == "warning");
    reasons.chain(diagnostics.map(|row| row["message"].to_string())).collect()
}

#[test]
fn released_image_is_reported_as_drift_and_rolled_once() {
    let fixture = ControllerFixture::new("controller", None);
    runtime().block_on(async {
        fixture.edit("pools.yaml", "nodes: '100%'", "nodes: '1'");
        fixture.edit("pools.yaml", "al2023@v20260101", "al2023@latest");
        fixture.commit(3);
        let replica = fixture.start("a");
        let before = fixture.wait_for_nodes(3, &replica).await;
        wait_for_running_pods(&fixture, 3, &replica).await;
        replica.end();
        let calls_before = fixture.effects().len();
        assert_eq!(image_messages(&run_json(&fixture, &["plan"]).1), Vec::<String>::new());
        let released = "ami-released".to_owned();
        fixture.aws.edit_additions(|additions| {
            drop(additions.parameters.insert(PARAMETER.to_owned(), released));
        });
        let (exit, drift) = run_json(&fixture, &["drift"]);
        assert_eq!(exit, Some(0), "there is no manual change");
        let expected = r#""image: ami-embedded-x86_64, declared: ami-released by node class own""#;
        assert_eq!(image_messages(&drift), [expected; 3]);
        let (exit, plan) = run_json(&fixture, &["plan"]);
        let expected = r#""ami-embedded-x86_64" to "ami-released by node class own""#;
        assert_eq!((exit, image_messages(&plan)), (Some(2), vec![expected.to_owned(); 3]));
        assert_eq!(plan["summary"]["nodes"]["terminate"], 1, "as many as the budget allows");
        // A started controller reads the parameter at once. A running controller reads it every
        // five minutes.
        let replica = fixture.start("b");
        wait_for_rollout(&fixture, &before, calls_before, &replica).await;
        replica.end();
        let (exit, plan) = run_json(&fixture, &["plan"]);
        assert_eq!((exit, image_messages(&plan)), (Some(0), Vec::new()));
    });
    fixture.sandbox.end();
}

#[test]
fn selector_of_the_same_image_replaces_no_node() {
    let fixture = ControllerFixture::new("controller", None);
    runtime().block_on(async {
        fixture.edit("pools.yaml", "al2023@v20260101", "al2023@latest");
        fixture.commit(2);
        let replica = fixture.start("a");
        let before = fixture.wait_for_nodes(2, &replica).await;
        wait_for_running_pods(&fixture, 2, &replica).await;
        let calls_before = fixture.effects().len();
        fixture.edit("pools.yaml", "alias: al2023@latest", "id: ami-embedded-x86_64");
        fixture.commit(3);
        let after = fixture.wait_for_nodes(3, &replica).await;
        wait_for_running_pods(&fixture, 3, &replica).await;
        assert!(after.is_superset(&before), "{before:?} {after:?}\n{}", replica.read_log());
        let effects = fixture.effects().split_off(calls_before);
        assert_eq!(effects, ["CreateFleet"], "{}", replica.read_log());
        replica.end();
        let (exit, plan) = run_json(&fixture, &["plan"]);
        assert_eq!((exit, image_messages(&plan)), (Some(0), Vec::new()));
    });
    fixture.sandbox.end();
}

#[test]
fn unresolvable_image_is_reported_and_moves_nothing() {
    let fixture = ControllerFixture::new("controller", None);
    runtime().block_on(async {
        fixture.commit(1);
        let replica = fixture.start("a");
        fixture.wait_for_nodes(1, &replica).await;
        wait_for_running_pods(&fixture, 1, &replica).await;
        replica.end();
        let refusal = r#"{"__type":"AccessDeniedException","message":"not permitted"}"#;
        fixture.aws.set_fault_rule(|call| match call.name().as_str() {
            "GetParameter" => Fault::Answer(400, refusal.to_owned()),
            _ => Fault::None,
        });
        let (exit, plan) = run_json(&fixture, &["plan"]);
        let messages = image_messages(&plan);
        assert_eq!(exit, Some(0), "{messages:?}");
        assert!(messages[0].contains("the current image is unknown"), "{messages:?}");
    });
    fixture.sandbox.end();
}
