//! An image that changes, over the wire: its machines are rolled.

use std::time::{Duration, Instant};

use super::cluster::runtime;
use super::scene::{PATIENCE, Scene};

#[test]
fn a_new_image_is_rolled_machine_by_machine_each_replaced_first_within_the_budget() {
    let scene = Scene::set("controller", None);
    runtime().block_on(async {
        scene.edit("pools.yaml", "nodes: '100%'", "nodes: '1'");
        scene.commit(3);
        let replica = scene.start("a");
        let before = scene.until(3, &replica).await;
        let begun = Instant::now();
        while scene.occupied().await.len() < 3 {
            assert!(begun.elapsed() < PATIENCE, "pods wait\n{}", replica.said());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let done = scene.effects().len();
        scene.edit("pools.yaml", "al2023@v20260101", "al2023@v20260201");
        scene.push();
        let begun = Instant::now();
        loop {
            let (nodes, runs) = (scene.nodes().await, scene.occupied().await.len());
            // One moves at a time.
            assert!(runs >= 2 && nodes.len() >= 2, "{runs} pods on {nodes:?}\n{}", replica.said());
            let machines = scene.instances().await.into_values().flatten().count();
            if nodes.is_disjoint(&before) && (nodes.len(), runs, machines) == (3, 3, 3) {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{nodes:?}\n{}", replica.said());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // Until it is seen to be gone a machine may be told again.
        let mut effects = scene.effects().split_off(done);
        effects.dedup();
        assert_eq!(effects, ["CreateFleet", "TerminateInstances"].repeat(3), "{}", replica.said());
        replica.end();
    });
    scene.sandbox.end();
}
