//! Bursts of pods that arrive in pieces: one plan for all of them launches their nodes.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::InstanceId;
use fleetwright::model::observed::Observed;
use fleetwright::plan::Plan;
use fleetwright::plan::wire::WaveStep;
use jiff::SignedDuration;

use super::environment::CallKind;
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::{Commit, SimulatedCommit};

pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("bursts: an unsteered burst in pieces launches what its first plan has", unsteered_burst),
    ("bursts: nodes of a scale-up stay, and free places are used", scale_up_with_free_places),
];

/// A Job of many pods, and a Deployment whose pod needs nearly a whole node. In some orders of
/// arrival, the pods of the Job are on every node first, so that this pod is unschedulable.
const OBJECTS: &str = "---
apiVersion: batch/v1
kind: Job
metadata: { name: import, namespace: web }
spec:
  parallelism: 32
  completions: 32
  template:
    metadata: { labels: { app: import } }
    spec:
      restartPolicy: Never
      containers: [{ name: main, image: x, resources: { requests: { cpu: 100m, memory: 1500Mi } } }]
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: report, namespace: web }
spec:
  replicas: 1
  selector: { matchLabels: { app: report } }
  template:
    metadata: { labels: { app: report } }
    spec:
      containers:
      - { name: main, image: x, resources: { requests: { cpu: 1700m, memory: 12500Mi } } }
";

/// Creates pods of the commit up to these numbers.
fn deliver(run: &Simulation, files: &SimulatedCommit, import: u32, report: u32) {
    let mut delivery = files.delivery();
    for (id, workload) in &mut delivery.workloads {
        match &*id.name {
            "import" => workload.replicas = import,
            "report" => workload.replicas = report,
            _ => {}
        }
    }
    run.shared.world.deliver(&delivery).expect("kept in memory");
}

/// Returns the number of launches of the first plan that launches nodes.
fn first_planned(run: &Simulation) -> Rc<Cell<usize>> {
    let planned = Rc::new(Cell::new(0));
    let first = Rc::clone(&planned);
    let observer = move |_: &Arc<Observed>, plan: &Plan| {
        let waves = plan.capacity.waves.iter().filter(|wave| wave.step == WaveStep::Launch);
        let launches: usize = waves.map(|wave| wave.addresses.len()).sum();
        if first.get() == 0 {
            first.set(launches);
        }
    };
    *run.shared.plan_observer.borrow_mut() = Some(Box::new(observer));
    planned
}

pub(super) fn launches(run: &Simulation) -> usize {
    let calls = run.shared.calls.borrow();
    calls.iter().filter(|call| matches!(call.kind, CallKind::Launch(_, Some(_)))).count()
}

fn unsteered_burst(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller =
        "steer: false, launches: { most: 100, within: 5m }, removals: { most: 100% }".to_owned();
    let commit = Commit { controller, ..Commit::default() }.with("api", 0).with("jobs", 0);
    let mut run = converged(catalog, 160, commit)?;
    let planned = first_planned(&run);
    let files = run.merge(|commit| Commit { objects: OBJECTS.to_owned(), ..commit });
    deliver(&run, &files, 8, 0);
    let starts = run.wait_until(minutes(5), |run| launches(run) > 0);
    ensure(starts, || "nothing was launched".to_owned())?;
    for (import, report) in [(16, 0), (32, 0), (32, 1)] {
        run.advance(SignedDuration::from_secs(3));
        deliver(&run, &files, import, report);
    }
    let all_run = run.wait_until(minutes(10), |run| {
        let pods = run.observed().pods;
        pods.len() == 33 && pods.iter().all(|pod| pod.node.is_some())
    });
    run.check()?;
    ensure(all_run, || "pods are pending".to_owned())?;
    let (planned, launched) = (planned.get(), launches(&run));
    // A pod that no order of arrival is sure to place may need one node more.
    ensure(planned > 0 && (planned..=planned + 1).contains(&launched), || {
        format!("{launched} launches, and {planned} in the first plan")
    })
}

fn scale_up_with_free_places(catalog: &Rc<Catalog>) -> ScenarioResult {
    // Each instance type has an even number of places, so that one is free.
    let commit = Commit { cpu: 900, ..Commit::default() }.with("api", 12).with("jobs", 1);
    let mut run = converged(catalog, 162, commit)?;
    let before = launched_instances(&run);
    run.commit(|commit| commit.with("api", 30));
    let all_run = run.wait_until(minutes(10), |run| {
        let pods = run.observed().pods;
        pods.iter().filter(|pod| pod.is_active() && pod.node.is_some()).count() == 31
    });
    run.check()?;
    ensure(all_run, || "pods are pending".to_owned())?;
    let launched = &launched_instances(&run) - &before;
    // At least two places each, for the 17 pods without a free place.
    ensure((1..=9).contains(&launched.len()), || format!("{} launches", launched.len()))?;
    run.advance(minutes(30));
    run.check()?;
    let left: BTreeSet<InstanceId> = run.instances().into_iter().map(|i| i.id).collect();
    let removed = launched.difference(&left).count();
    ensure(removed == 0, || format!("{removed} of {} new instances ended", launched.len()))?;
    let further = launched_instances(&run).len() - before.len() - launched.len();
    ensure(further == 0, || format!("{further} further launches"))
}

/// Returns all instances that were launched since the start of the run.
fn launched_instances(run: &Simulation) -> BTreeSet<InstanceId> {
    let calls = run.shared.calls.borrow();
    let launched = calls.iter().filter_map(|call| {
        let CallKind::Launch(_, Some(id)) = &call.kind else { return None };
        Some(id.clone())
    });
    launched.collect()
}
