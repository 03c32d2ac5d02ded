//! Plans by size of the fleet: nodes of 20 pods each, one of each of 20 workloads.
//!
//! Each size is planned from nothing, and then three times over the fleet of that plan: without a
//! change, with one percent more pods, and with ten percent fewer, which consolidates. Run it alone
//! with `cargo bench --bench plan -- scale`. `FLEETWRIGHT_CURVES` names a file for a picture.

use std::path::Path;
use std::time::{Duration, Instant};

use fleetwright::model::observed::Observed;
use fleetwright::plan::{Plan, RowSelection};

use crate::curves::{self, Curve, FITTED_NODES, Panel};
use crate::repository::peak_kib;
use crate::standing_fleets::{FLEET, POOL, StandingInputs, write_deployment};

/// File with the workloads.
const PODS: &str = "pods.yaml";
const WORKLOADS: usize = 20;
const SIZES: [usize; 5] = [500, 1_000, 5_000, 10_000, 50_000];

/// Prints a row for each size, and the exponents of time and memory.
#[expect(clippy::print_stdout, reason = "a benchmark prints its table")]
pub(crate) fn rows() -> anyhow::Result<()> {
    println!(
        "{:<8} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "scale",
        "nodes",
        "first",
        "same",
        "1 %",
        "launch",
        "-10 %",
        "terminate",
        "JSON kB",
        "short kB",
        "peak MiB"
    );
    let mut curves =
        ["first plan", "same", "1 %", "memory"].map(|name| Curve { name, points: Vec::new() });
    for nodes in SIZES {
        let size = f64::from(u32::try_from(nodes)?);
        for (curve, value) in curves.iter_mut().zip(row(nodes)?) {
            curve.points.push((size, value));
        }
    }
    let exponents =
        curves.each_ref().map(|curve| format!("{} {:.2}", curve.name, curve.exponent()));
    println!("exponents up to {FITTED_NODES} nodes: {}", exponents.join(", "));
    if let Some(file) = std::env::var_os("FLEETWRIGHT_CURVES") {
        let (times, memory) = curves.split_at(3);
        let times = Panel { title: "Seconds of a plan", curves: times };
        let memory = Panel { title: "Peak memory in MiB", curves: memory };
        std::fs::write(file, curves::svg(&[times, memory]))?;
    }
    Ok(())
}

/// Prints a row. Returns the seconds of the first plan, of the same and of that with one percent
/// more pods, and the peak memory in MiB.
#[expect(clippy::print_stdout, reason = "a benchmark prints its table")]
fn row(nodes: usize) -> anyhow::Result<[f64; 4]> {
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
    std::fs::write(root.path().join(PODS), deployments(nodes)?)?;
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
    let fleet = rescaled(root.path(), fleet.world, nodes + nodes / 100)?;
    let (plan, changed) = timed(&fleet);
    let launched = plan.summary.nodes.launch;
    drop(plan);
    let fleet = rescaled(root.path(), fleet.world, nodes - nodes / 10)?;
    let (plan, consolidated) = timed(&fleet);
    let peak = peak_kib(std::process::id()) / 1_024;
    println!(
        "{:<8} {standing:>6} {:>9} {:>9} {:>9} {launched:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "",
        first.as_millis(),
        same.as_millis(),
        changed.as_millis(),
        consolidated.as_millis(),
        plan.summary.nodes.terminate,
        sizes[0] / 1000,
        sizes[1] / 1000,
        peak,
    );
    let [first, same, changed] = [first, same, changed].map(|took| took.as_secs_f64());
    Ok([first, same, changed, f64::from(u32::try_from(peak.max(1))?)])
}

/// Returns the fleet that stands, with another number of pods for each workload.
fn rescaled(root: &Path, world: Observed, replicas: usize) -> anyhow::Result<StandingInputs> {
    std::fs::write(root.join(PODS), deployments(replicas)?)?;
    let mut fleet = StandingInputs::read(root)?;
    fleet.world = world;
    Ok(fleet)
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
