//! Plans by size of the fleet: nodes of 20 pods each, one of each of 20 workloads.
//!
//! Each size is planned from nothing, then over the fleet of that plan without a change, and then
//! with one percent more pods. Run it alone with `cargo bench --bench plan -- scale`.

use std::time::{Duration, Instant};

use fleetwright::plan::{Plan, RowSelection};

use crate::repository::peak_kib;
use crate::standing_fleets::{FLEET, POOL, StandingInputs, write_deployment};

const WORKLOADS: usize = 20;
const SIZES: [usize; 5] = [500, 1_000, 5_000, 10_000, 50_000];

/// Prints a row for each size.
#[expect(clippy::print_stdout, reason = "a benchmark prints its table")]
pub(crate) fn rows() -> anyhow::Result<()> {
    println!(
        "{:<8} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "scale", "nodes", "first", "same", "1 %", "launch", "JSON kB", "short kB", "peak MiB"
    );
    for nodes in SIZES {
        row(nodes)?;
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its table")]
fn row(nodes: usize) -> anyhow::Result<()> {
    let root = tempfile::tempdir()?;
    // The kernel then records a new peak.
    std::fs::write("/proc/self/clear_refs", "5")?;
    // A node has room for 20 pods, one of each workload.
    let one_type = POOL.replace(
        "- { key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r] }",
        "- { key: node.kubernetes.io/instance-type, operator: In, values: [c5.2xlarge] }",
    );
    std::fs::write(root.path().join("fleetwright.yaml"), FLEET)?;
    std::fs::write(root.path().join("pool.yaml"), one_type)?;
    let pods = root.path().join("pods.yaml");
    std::fs::write(&pods, deployments(nodes)?)?;
    let mut fleet = StandingInputs::read(root.path())?;
    let (plan, first) = fleet.planned();
    fleet.carry_out(&plan);
    drop(plan);
    let (plan, same) = timed(&fleet);
    anyhow::ensure!(plan.summary.nodes.launch == 0, "the second plan has changes");
    let standing = plan.summary.nodes.after;
    let sizes =
        [RowSelection::All, RowSelection::ChangesOnly].map(|rows| plan.to_file_json(rows).len());
    drop(plan);
    let world = fleet.world;
    std::fs::write(&pods, deployments(nodes + nodes / 100)?)?;
    let mut fleet = StandingInputs::read(root.path())?;
    fleet.world = world;
    let (plan, changed) = timed(&fleet);
    println!(
        "{:<8} {standing:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "",
        first.as_millis(),
        same.as_millis(),
        changed.as_millis(),
        plan.summary.nodes.launch,
        sizes[0] / 1000,
        sizes[1] / 1000,
        peak_kib(std::process::id()) / 1_024,
    );
    Ok(())
}

/// Returns the plan and the median of its durations.
fn timed(fleet: &StandingInputs) -> (Plan, Duration) {
    let begun = Instant::now();
    let (plan, took) = fleet.planned();
    // Plans of seconds vary little.
    if begun.elapsed() > Duration::from_secs(5) {
        return (plan, took);
    }
    let mut times: Vec<_> = (1..super::RUNS).map(|_| fleet.planned().1).chain([took]).collect();
    times.sort_unstable();
    (plan, times[times.len() / 2])
}

fn deployments(replicas: usize) -> anyhow::Result<String> {
    let mut text = String::new();
    for n in 0..WORKLOADS {
        write_deployment(&mut text, &format!("app-{n:02}"), replicas, 380, 700)?;
    }
    Ok(text)
}
