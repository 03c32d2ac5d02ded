//! Nodes whose pods have ended: they are removed in the pace of their pool.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::{WorkloadId, WorkloadKind};

use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, ensure, minutes};
use super::repository::Commit;

pub(crate) const ALL: &[(&str, ScenarioFn)] =
    &[("empty nodes: those of a KEDA window are removed in the pace of their pool", keda_window)];

/// A Deployment with five pods from 12:20 to 12:40, and no pod otherwise. Each pod needs a node of
/// its own, where no other pod fits.
const WINDOW: &str = "---
apiVersion: apps/v1
kind: Deployment
metadata: { name: window, namespace: web }
spec:
  selector: { matchLabels: { app: window } }
  template:
    metadata: { labels: { app: window } }
    spec:
      containers: [{ name: main, image: x, resources: { requests: { cpu: 3300m, memory: 1Gi } } }]
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: { name: window, namespace: web }
spec:
  scaleTargetRef: { name: window }
  minReplicaCount: 0
  maxReplicaCount: 5
  cooldownPeriod: 60
  triggers:
  - type: cron
    metadata: { timezone: UTC, start: 20 12 * * *, end: 40 12 * * *, desiredReplicas: \"5\" }
";
/// Start of the pods, and their end after the cooldown and one poll of KEDA.
const WINDOW_BEGINS: &str = "2026-11-21T12:20";
const WINDOW_ENDS: &str = "2026-11-21T12:41:30";

/// Scales the Deployment as KEDA does.
fn scale_window(run: &Simulation, pods: u32) {
    let kind = WorkloadKind::Deployment;
    let id = WorkloadId { namespace: "web".into(), name: "window".into(), kind };
    run.shared.world.set_replicas(&id, pods);
}

fn is_at(run: &Simulation, time: &str) -> bool {
    run.now().to_string().as_str() >= time
}

fn keda_window(catalog: &Rc<Catalog>) -> ScenarioResult {
    let consolidate_after = minutes(2);
    let commit = Commit {
        controller: "settle: 15s".to_owned(),
        disruption: "disruption: { consolidateAfter: 2m, budgets: [{ nodes: '100%' }] }".to_owned(),
        objects: WINDOW.to_owned(),
        ..Commit::default()
    };
    let mut run = Simulation::new(161, commit, catalog);
    scale_window(&run, 0);
    run.advance(minutes(8));
    run.check()?;
    let before = run.instances().len();
    ensure(before > 0, || "no instance was launched".to_owned())?;
    run.wait_until(minutes(30), |run| is_at(run, WINDOW_BEGINS));
    scale_window(&run, 5);
    run.wait_until(minutes(30), |run| is_at(run, WINDOW_ENDS));
    run.check()?;
    let pods = run.observed().pods;
    let running = pods.iter().filter(|pod| pod.is_active() && pod.node.is_some()).count();
    ensure(running == 11, || format!("{running} pods run"))?;
    let grown = run.instances().len();
    ensure(grown == before + 5, || format!("{before} instances became {grown}"))?;
    scale_window(&run, 0);
    let gone =
        run.wait_until(consolidate_after + minutes(2), |run| run.instances().len() <= before);
    run.check()?;
    ensure(gone, || format!("{} of {grown} instances are left", run.instances().len()))
}
