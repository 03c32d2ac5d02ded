//! Law: a plan made before its commit is delivered predicts which pods the controllers delete. Its
//! apply is not refused, evicts no more pods than the plan moves, and leaves nothing to do.

use serde_json::Value as Json;

use crate::binary::Workspace;

/// Number of drawn trees, unless `FLEETWRIGHT_DRAWN_TREES` is set.
const TREES: u64 = 24;

/// A change of the repository that leaves surplus pods.
#[derive(Clone, Copy, Debug)]
enum Edit {
    /// Halves the replicas of every second workload.
    Halve,
    /// Deletes every third workload.
    Delete,
    /// Removes one replica of each workload that has two.
    MinusOne,
}

const EDITS: [Edit; 3] = [Edit::Halve, Edit::Delete, Edit::MinusOne];

impl Edit {
    /// Returns the replicas of a workload after the edit.
    fn replicas(self, number: usize, replicas: u32) -> u32 {
        match self {
            Self::Halve if number.is_multiple_of(2) => (replicas / 2).max(1),
            Self::MinusOne => (replicas - 1).max(1),
            Self::Halve | Self::Delete => replicas,
        }
    }

    /// Returns the manifests after the edit.
    fn of(self, manifests: &str) -> String {
        let mut number = 0;
        let mut edited = Vec::new();
        for document in manifests.split("---\n") {
            let declared = document.lines().find_map(|line| line.strip_prefix("  replicas: "));
            let Some(declared) = declared else {
                edited.push(document.to_owned());
                continue;
            };
            let replicas = declared.parse().expect("a number");
            if !(matches!(self, Self::Delete) && number % 3 == 0) {
                let (old, new) = (
                    format!("  replicas: {replicas}\n"),
                    format!("  replicas: {}\n", self.replicas(number, replicas)),
                );
                edited.push(document.replacen(&old, &new, 1));
            }
            number += 1;
        }
        edited.join("---\n")
    }
}

/// Returns the number of pods that an apply evicted.
fn evicted(progress: &str) -> u64 {
    let evictions = progress.split("evicted ").skip(1);
    evictions.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok()).sum()
}

/// Applies the edit of a standing fleet from a saved plan. Returns the broken parts of the law, and
/// the number of removed nodes.
fn apply_edit(seed: u64, edit: Edit) -> (Vec<String>, usize) {
    let workspace = Workspace::empty();
    super::drawn_trees::write(&workspace, seed);
    let manifests = workspace.read("manifests.yaml");
    let (pace, at_once) =
        ("consolidateAfter: 0s", "consolidateAfter: 0s, budgets: [{nodes: 100%}]");
    let manifests = manifests.replace(pace, at_once);
    workspace.write("manifests.yaml", &manifests);
    let first = workspace.run(&["apply", ".", "--world", "sim:world", "--auto-approve"]);
    assert_eq!(first.code, Some(0), "seed {seed}: {}{}", first.out, first.err);
    workspace.write("manifests.yaml", &edit.of(&manifests));
    let plan = ["plan", ".", "--world", "sim:world", "--out", "a.plan", "--format", "json"];
    let planned = workspace.run(&plan);
    assert_eq!(planned.code, Some(0), "seed {seed}: {}", planned.err);
    let planned: Json = serde_json::from_str(&planned.out).expect("a plan");
    let removed = super::changes(&planned).len();
    let moved = planned["capacity"]["pods"]["moved"].as_u64().expect("a number");
    let applied = workspace.run(&["apply", "a.plan", "--world", "sim:world", "--auto-approve"]);
    let mut broken = Vec::new();
    if applied.code != Some(0) {
        broken.push(format!("apply ends with {:?}: {}", applied.code, applied.err));
    }
    let evicted = evicted(&applied.err);
    if evicted > moved {
        broken.push(format!("{evicted} pods evicted, {moved} planned"));
    }
    let rest = super::changes(&super::plan(&workspace)).len();
    if rest > 0 {
        broken.push(format!("the second plan has {rest} changes"));
    }
    let describe = |what: String| format!("seed {seed}, {edit:?}: {what}");
    (broken.into_iter().map(describe).collect(), removed)
}

#[test]
fn plan_before_its_delivery_is_what_its_apply_does() {
    let trees = std::env::var("FLEETWRIGHT_DRAWN_TREES").ok();
    let trees = trees.and_then(|text| text.parse().ok()).unwrap_or(TREES);
    let (mut broken, mut removed) = (Vec::new(), 0);
    for (seed, edit) in (0..trees).zip(EDITS.into_iter().cycle()) {
        let (faults, nodes) = apply_edit(seed, edit);
        broken.extend(faults);
        removed += nodes;
    }
    assert!(removed > 0, "no edit frees a node");
    assert!(broken.is_empty(), "{broken:#?}");
}
