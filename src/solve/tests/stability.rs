//! A small change of the repository is a small change of the fleet.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::rules::deployment;
use crate::manifest::{Fleet, Tree, TreeFile, read};
use crate::solve::{RetireReason, Settings};
use crate::story::Story;

const TYPES: [&str; 5] = ["c5.large", "m5.large", "r5.large", "m5.xlarge", "m5.2xlarge"];

/// Fleets that are drawn.
const CASES: u64 = 24;

#[test]
fn one_more_deployment_changes_nothing_else_unless_that_pays() {
    let settings = Settings::default();
    for seed in 0..CASES {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut story =
            Story::new(&TYPES, rng.random_range(100..1_500), rng.random_range(64..4_096));
        story.scale(rng.random_range(1..30));
        let first = story.solve();
        story.carry_out(&first);
        let cpu: u32 = rng.random_range(100..1_500);
        let containers = format!(
            "containers: [{{name: app, resources: {{requests: {{cpu: {cpu}m, memory: 64Mi}}}}}}]"
        );
        let text = deployment("more", rng.random_range(1..6), &containers);
        let file = TreeFile { path: "w.yaml".into(), content: Ok(text.into_bytes().into()) };
        let read = read(&Tree { files: vec![file] }, &Fleet::default());
        story.desired.workloads.extend(read.workloads);
        let target = story.solve().target;
        for (name, retire) in &target.retires {
            let RetireReason::Underutilized { saves_hourly, moves, payback_hours } = retire.reason
            else {
                panic!("seed {seed}: {name} goes, and only savings may move what runs: {retire:?}");
            };
            let pays = i64::from(payback_hours) <= settings.horizon_hours;
            assert!(pays && saves_hourly.0 > 0, "seed {seed}: {name} {saves_hourly:?} {moves}");
        }
        let moved = target.retires.len();
        let stays = story.observed.nodes.len() - moved;
        assert_eq!(target.keeps.len(), stays, "seed {seed}: each node stays or has a reason to go");
    }
}
