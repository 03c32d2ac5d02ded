//! The six trees of `trees/` against the better of two bounds from other programs: a fluid linear
//! program, and column generation over whole pods.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use fleetwright::adapters::git::read_tree;
use fleetwright::demand::{Demand, DemandMode};
use fleetwright::manifest::{read, read_fleet};
use fleetwright::model::observed::{ClusterIdentity, Observed};
use fleetwright::model::units::MicroUsd;
use fleetwright::plan::Plan;

use crate::scheduling_replay::{PlanInputs, REPLAY_VARIANTS, ReplayVariant, UNSEEN};
use crate::{RUNS, run};

/// Trees with the better bound, and the price of the plan of Karpenter v1.13's `Solve`, in
/// micro-USD per hour.
pub(crate) const TREES: [(&str, i64, i64); 6] = [
    ("web", 38_831_700, 50_803_200),
    ("bench", 93_481_900, 124_387_200),
    ("nodesized", 572_991_200, 818_724_500),
    ("constrained", 43_859_700, 53_848_000),
    ("openb_cpu", 787_150_000, 1_049_719_700),
    ("dlrm_cpu", 12_477_080_000, 14_029_808_600),
];

/// Prints a row for each tree with the tightest packing, the plan as applied, the plan with
/// nominated pods, and the bounds.
pub(crate) fn rows() -> anyhow::Result<()> {
    println!(
        "{:<12} {:>6} {:>11} {:>7} {:>11} {:>7} {:>8} {:>8} {:>11} {:>7} {:>11} {:>11} {:>11} {:>8}",
        "USD an hour",
        "pods",
        "packed",
        "over %",
        "applied",
        "over %",
        "pending",
        "unseen",
        "nominated",
        "over %",
        "own bound",
        "bound",
        "Karpenter",
        "ms"
    );
    for (name, bound, karpenter) in TREES {
        row(name, MicroUsd(bound), MicroUsd(karpenter))?;
    }
    Ok(())
}

fn row(name: &str, bound: MicroUsd, karpenter: MicroUsd) -> anyhow::Result<()> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench/trees").join(name);
    let (mut times, mut last) = (Vec::new(), None);
    for _ in 0..RUNS {
        let begun = Instant::now();
        last = Some(run(&tree, None, &mut BTreeMap::new())?);
        times.push(begun.elapsed());
    }
    times.sort();
    let plan = last.expect("at least one run");
    let (cost, packed) = (&plan.capacity.cost, plan.capacity.placement.packed_hourly);
    let nominated = nominated(&tree)?;
    let over = |price: MicroUsd| {
        let thousandths = (price.0 - bound.0) * 100_000 / bound.0;
        format!("{}.{:02}", thousandths / 1000, thousandths % 1000 / 10)
    };
    println!(
        "{:<12} {:>6} {:>11} {:>7} {:>11} {:>7} {:>8} {:>8} {:>11} {:>7} {:>11} {:>11} {:>11} {:>8.0}",
        name,
        plan.capacity.pods.total,
        packed.rounded(2),
        over(packed),
        cost.hourly_after.rounded(2),
        over(cost.hourly_after),
        pending(&tree, &plan, &REPLAY_VARIANTS)?,
        pending(&tree, &plan, &UNSEEN)?,
        nominated.rounded(2),
        over(nominated),
        cost.lower_bound_hourly.rounded(2),
        bound.rounded(2),
        karpenter.rounded(2),
        times[RUNS / 2].as_secs_f64() * 1000.0,
    );
    Ok(())
}

/// Returns the number of pending pods: those that the plan reports, and the largest number over the
/// variants.
fn pending(tree: &Path, plan: &Plan, variants: &[ReplayVariant]) -> anyhow::Result<u64> {
    let worst = left_over(tree, plan, variants)?.into_iter().max().unwrap_or(0);
    Ok(u64::from(plan.capacity.pods.unschedulable) + u64::try_from(worst)?)
}

/// Returns the number of placed pods that stay pending in each variant.
pub(crate) fn left_over(
    tree: &Path,
    plan: &Plan,
    variants: &[ReplayVariant],
) -> anyhow::Result<Vec<usize>> {
    let files = read_tree(tree)?;
    let (fleet, _) = read_fleet(&files.tree);
    let desired = read(&files.tree, &fleet);
    let observed = Observed::empty(ClusterIdentity::default(), "2026-11-01T00:00:00Z".parse()?);
    let demand = Demand::build(&desired, &observed, DemandMode::Live);
    let inputs = PlanInputs { desired: &desired, demand: &demand, observed: &observed };
    Ok(variants.iter().map(|variant| inputs.left_over(plan, *variant)).collect())
}

/// Returns the price of the plan with nominated pods, from the `fleetwright` process.
fn nominated(tree: &Path) -> anyhow::Result<MicroUsd> {
    let output = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
        .args(["plan", "--steer", "--world", "empty", "--format", "json"])
        .args(["--at", "2026-11-01T00:00:00Z"])
        .arg(tree)
        .stderr(Stdio::null())
        .output()?;
    anyhow::ensure!(output.status.success(), "planning {} failed", tree.display());
    let plan: Plan = serde_json::from_slice(&output.stdout)?;
    Ok(plan.capacity.cost.hourly_after)
}
