//! Sensitivity of plans to tie-breaking. The pods of each tree are scheduled in each order and
//! under each rule, with random ties and random node orders.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::run;
use crate::scheduling_replay::{PodSequence, ReplayVariant, SchedulerRules};
use crate::trees::{TREES, left_over};

const ORDERS: [PodSequence; 8] = [
    PodSequence::Declared,
    PodSequence::MostCpuFirst,
    PodSequence::LeastCpuFirst,
    PodSequence::MostMemoryFirst,
    PodSequence::LeastMemoryFirst,
    PodSequence::ByNamespace,
    PodSequence::InTurn,
    PodSequence::Shuffled,
];

const RULES: [SchedulerRules; 3] =
    [SchedulerRules::Drawn135, SchedulerRules::Drawn136, SchedulerRules::Heaped136];

/// First of the seeds, which no placement simulation uses.
const FIRST_SEED: u64 = 50_000;
const SEEDS: u64 = 25;

/// Prints for each tree and version the number of runs with pods left over.
pub(crate) fn rows(trees: &[PathBuf]) -> anyhow::Result<()> {
    println!(
        "{:<14} {:>6} {:>11} {:>9} {:>24} {:>24} {:>24}",
        "left over", "pods", "USD/h", "plan ms", "1.35", "1.36, random ties", "1.36"
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench/trees");
    let own =
        TREES.iter().map(|(name, ..)| *name).chain(["harsh", "shared"]).map(|name| root.join(name));
    let trees: Vec<PathBuf> = if trees.is_empty() { own.collect() } else { trees.to_vec() };
    trees.iter().try_for_each(|tree| row(tree))
}

fn row(tree: &Path) -> anyhow::Result<()> {
    let begun = Instant::now();
    let plan = run(tree, None, &mut BTreeMap::new())?;
    let took = begun.elapsed();
    let mut cells = Vec::new();
    for rules in RULES {
        let mut by_order = Vec::new();
        let (mut runs, mut bad, mut worst) = (0, 0, 0);
        for order in ORDERS {
            let variants: Vec<ReplayVariant> = (FIRST_SEED..FIRST_SEED + SEEDS)
                .map(|seed| ReplayVariant::new(order, rules, seed))
                .collect();
            let left = left_over(tree, &plan, &variants)?;
            let missed = left.iter().filter(|left| **left > 0).count();
            runs += left.len();
            bad += missed;
            worst = worst.max(left.into_iter().max().unwrap_or(0));
            by_order.push(format!("{missed}"));
        }
        cells.push(format!("{bad}/{runs} ({worst}) {}", by_order.join(",")));
    }
    println!(
        "{:<14} {:>6} {:>11} {:>9.0} {:>24} {:>24} {:>24}",
        tree.file_name().unwrap_or_default().display(),
        plan.capacity.pods.total,
        plan.capacity.cost.hourly_after.rounded(2),
        took.as_secs_f64() * 1000.0,
        cells[0],
        cells[1],
        cells[2],
    );
    Ok(())
}
