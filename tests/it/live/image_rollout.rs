//! An image that changes, over the wire: its instances are rolled.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::cluster::runtime;
use super::controller_fixture::{ControllerFixture, ControllerProcess, PATIENCE};
use super::proxy::Fault;

/// What the Systems Manager calls the image of `al2023@latest` for the machines of the scene.
const PARAMETER: &str =
    "/aws/service/eks/optimized-ami/1.33/amazon-linux-2023/x86_64/standard/recommended/image_id";

/// Waits until every pod of the tree runs.
async fn occupied(scene: &ControllerFixture, pods: usize, replica: &ControllerProcess) {
    let begun = Instant::now();
    while scene.occupied().await.len() < pods {
        assert!(begun.elapsed() < PATIENCE, "pods wait\n{}", replica.said());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until none of three nodes is there that were before, while one moves at a time; `done` are the calls until then.
async fn rolled(
    scene: &ControllerFixture,
    before: &BTreeSet<String>,
    done: usize,
    replica: &ControllerProcess,
) {
    let begun = Instant::now();
    loop {
        let (nodes, runs) = (scene.nodes().await, scene.occupied().await.len());
        // One moves at a time.
        assert!(runs >= 2 && nodes.len() >= 2, "{runs} pods on {nodes:?}\n{}", replica.said());
        let machines = scene.instances().await.into_values().flatten().count();
        if nodes.is_disjoint(before) && (nodes.len(), runs, machines) == (3, 3, 3) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{nodes:?}\n{}", replica.said());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Until it is seen to be gone an instance may be told again.
    let mut effects = scene.effects().split_off(done);
    effects.dedup();
    assert_eq!(effects, ["CreateFleet", "TerminateInstances"].repeat(3), "{}", replica.said());
}

#[test]
fn new_image_rolls_out_within_the_budget() {
    let scene = ControllerFixture::set("controller", None);
    runtime().block_on(async {
        scene.edit("pools.yaml", "nodes: '100%'", "nodes: '1'");
        scene.commit(3);
        let replica = scene.start("a");
        let before = scene.until(3, &replica).await;
        occupied(&scene, 3, &replica).await;
        let done = scene.effects().len();
        scene.edit("pools.yaml", "al2023@v20260101", "al2023@v20260201");
        scene.push();
        rolled(&scene, &before, done, &replica).await;
        replica.end();
    });
    scene.sandbox.end();
}

/// Returns what a command says as JSON of the tree and what runs, and how it ends.
fn asked(scene: &ControllerFixture, arguments: &[&str]) -> (Option<i32>, Json) {
    let options = ["--format", "json", "--detailed-exitcode"];
    let ran = scene.command(&[arguments, &options].concat()).output().expect("the program");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    let json = serde_json::from_slice(&ran.stdout);
    (ran.status.code(), json.unwrap_or_else(|error| panic!("{error}: {said}")))
}

/// Returns what of a plan or report tells of images.
fn tells(json: &Json) -> Vec<String> {
    let all = &json["capacity"];
    let rows = all["explain"].as_array().into_iter().flatten();
    // One that goes says it as the reason, and one that waits for the budget beside another.
    let reasons = rows.flat_map(|row| ["drift", "retire_reason"].map(|key| &row[key]));
    let reasons = reasons.filter(|drift| drift["field"] == "image");
    let reasons = reasons.map(|drift| format!("{} to {}", drift["is"], drift["declared"]));
    let behind = all["diagnostics"].as_array().into_iter().flatten();
    let behind = behind.filter(|row| row["severity"] == "behind" || row["severity"] == "warning");
    reasons.chain(behind.map(|row| row["message"].to_string())).collect()
}

#[test]
fn released_image_is_reported_as_drift_and_rolled_once() {
    let scene = ControllerFixture::set("controller", None);
    runtime().block_on(async {
        scene.edit("pools.yaml", "nodes: '100%'", "nodes: '1'");
        scene.edit("pools.yaml", "al2023@v20260101", "al2023@latest");
        scene.commit(3);
        let replica = scene.start("a");
        let before = scene.until(3, &replica).await;
        occupied(&scene, 3, &replica).await;
        replica.end();
        let done = scene.effects().len();
        assert_eq!(tells(&asked(&scene, &["plan"]).1), Vec::<String>::new());
        let released = "ami-released".to_owned();
        scene.aws.add(|added| drop(added.parameters.insert(PARAMETER.to_owned(), released)));
        let (exit, drift) = asked(&scene, &["drift"]);
        assert_eq!(exit, Some(0), "nobody moved anything");
        let told = r#""image: ami-embedded-x86_64, declared: ami-released by node class own""#;
        assert_eq!(tells(&drift), [told; 3]);
        let (exit, plan) = asked(&scene, &["plan"]);
        let told = r#""ami-embedded-x86_64" to "ami-released by node class own""#;
        assert_eq!((exit, tells(&plan)), (Some(2), vec![told.to_owned(); 3]));
        assert_eq!(plan["summary"]["nodes"]["terminate"], 1, "as many as the budget allows");
        // Whoever starts asks anew; one that runs does every five minutes.
        let replica = scene.start("b");
        rolled(&scene, &before, done, &replica).await;
        replica.end();
        let (exit, plan) = asked(&scene, &["plan"]);
        assert_eq!((exit, tells(&plan)), (Some(0), Vec::new()));
    });
    scene.sandbox.end();
}

#[test]
fn unresolvable_image_is_reported_and_moves_nothing() {
    let scene = ControllerFixture::set("controller", None);
    runtime().block_on(async {
        scene.commit(1);
        let replica = scene.start("a");
        scene.until(1, &replica).await;
        occupied(&scene, 1, &replica).await;
        replica.end();
        let refusal = r#"{"__type":"AccessDeniedException","message":"not permitted"}"#;
        scene.aws.judge(|call| match call.name().as_str() {
            "GetParameter" => Fault::Answer(400, refusal.to_owned()),
            _ => Fault::None,
        });
        let (exit, plan) = asked(&scene, &["plan"]);
        let told = tells(&plan);
        assert_eq!(exit, Some(0), "{told:?}");
        assert!(told[0].contains("the current image is unknown"), "{told:?}");
    });
    scene.sandbox.end();
}
