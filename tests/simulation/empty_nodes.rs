//! Nodes whose pods have ended: they are removed in the pace of their pool, and no pod is evicted.

use std::collections::BTreeSet;
use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::controller::AuthorizedRequest;
use fleetwright::model::ids::{NodeName, WorkloadId, WorkloadKind};
use jiff::{SignedDuration, Timestamp};

use super::bursts::launches;
use super::environment::CallKind;
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::Commit;

pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("empty nodes: those of a KEDA window are removed in the pace of their pool", keda_window),
    (
        "empty nodes: those of most of the fleet begin in the pace of the removal budget",
        keda_window_of_most_nodes,
    ),
    ("empty nodes: those with pods before their cordon stay", burst_on_empty_nodes),
];

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
    run_keda_window(catalog, "massRemoval: 100%", 5, minutes(2))
}

/// Five empty nodes of seven or eight are more than half of the fleet.
fn keda_window_of_most_nodes(catalog: &Rc<Catalog>) -> ScenarioResult {
    run_keda_window(catalog, "massRemoval: 50%", 2, minutes(4))
}

/// Ends a window of five nodes. They are removed within a time after `consolidateAfter`, and at most
/// `first` of them within the first seconds.
fn run_keda_window(
    catalog: &Rc<Catalog>,
    limit: &str,
    first: usize,
    within: SignedDuration,
) -> ScenarioResult {
    let consolidate_after = minutes(2);
    let commit = Commit {
        controller: format!("settle: 15s, {limit}"),
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
    let ended_at = run.now();
    let schedulable =
        |run: &Simulation| run.observed().nodes.values().filter(|node| !node.unschedulable).count();
    run.wait_until(consolidate_after + within, |run| schedulable(run) < grown);
    run.advance(SignedDuration::from_secs(3));
    let begun = grown - schedulable(&run);
    ensure((1..=first).contains(&begun), || format!("{begun} removals begin together"))?;
    let left = consolidate_after + within - run.now().duration_since(ended_at);
    let gone = run.wait_until(left, |run| run.instances().len() <= before);
    run.check()?;
    ensure(gone, || format!("{} of {grown} instances are left", run.instances().len()))
}

/// Returns a Deployment of the namespace `web`.
fn deployment(name: &str, replicas: u32, cpu: &str, node_selector: &str) -> String {
    format!(
        "---
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: {name}, namespace: web }}
spec:
  replicas: {replicas}
  selector: {{ matchLabels: {{ app: {name} }} }}
  template:
    metadata: {{ labels: {{ app: {name} }} }}
    spec:
      nodeSelector: {{ {node_selector} }}
      containers:
      - {{ name: main, image: x, resources: {{ requests: {{ cpu: {cpu}, memory: 100Mi }} }} }}
"
    )
}

/// Returns the nodes with pods of a workload.
fn nodes_of(run: &Simulation, workload: &str) -> BTreeSet<NodeName> {
    let pods = run.observed().pods;
    let pods = pods.iter().filter(|pod| pod.is_active() && *pod.workload().name == *workload);
    pods.filter_map(|pod| pod.node.clone()).collect()
}

/// Returns the nodes from which pods were evicted since a time.
fn nodes_with_evictions(run: &Simulation, since: Timestamp) -> BTreeSet<NodeName> {
    let calls = run.shared.calls.borrow();
    let evicted = calls.iter().filter(|call| call.at >= since).filter_map(|call| {
        let CallKind::Evict(_, Some(node)) = &call.kind else { return None };
        Some(node.clone())
    });
    evicted.collect()
}

/// A plan removes three empty nodes once its launch is Ready. While the launch boots, small pods
/// land on these nodes. They would fit on the other nodes, also if all three were removed.
fn burst_on_empty_nodes(catalog: &Rc<Catalog>) -> ScenarioResult {
    let large = |replicas| deployment("large", replicas, "3300m", "");
    let controller = "settle: 15s, removals: { most: 1, within: 5m }".to_owned();
    let commit = Commit { controller, objects: large(3), ..Commit::default() };
    let mut run = converged(catalog, 163, commit)?;
    let emptied = nodes_of(&run, "large");
    ensure(emptied.len() == 3, || format!("{} nodes have large pods", emptied.len()))?;
    // The suspension ends once launch and removals are both planned, so that one apply has both.
    let until = run.now().checked_add(minutes(10)).ok();
    let (reason, by) = ("a migration".to_owned(), "alice".to_owned());
    run.send_request(0, AuthorizedRequest::Suspend { reason, until, by });
    run.advance(minutes(1));
    run.commit(|commit| Commit { objects: large(0), ..commit });
    run.advance(minutes(3));
    let selector = "node.kubernetes.io/instance-type: r5.large";
    let special = deployment("special", 1, "300m", selector);
    let objects = large(0) + &special + &deployment("small", 6, "100m", "");
    let files = run.merge(|commit| Commit { objects, ..commit });
    run.advance(minutes(3));
    let before = launches(&run);
    let starts = run.wait_until(minutes(10), |run| launches(run) > before);
    run.check()?;
    ensure(starts, || "nothing was launched".to_owned())?;
    run.shared.world.deliver(&files.delivery()).expect("kept in memory");
    let landed_at = run.now();
    run.advance(SignedDuration::from_secs(10));
    let landed = &nodes_of(&run, "small") & &emptied;
    ensure(landed.len() > 1, || format!("{} empty nodes got pods", landed.len()))?;
    let removes = |run: &Simulation| {
        let nodes = run.observed().nodes;
        nodes.values().any(|node| node.unschedulable)
            || !emptied.iter().all(|n| nodes.contains_key(n))
    };
    ensure(!removes(&run), || "removals began before the pods came".to_owned())?;
    // Within the window of the budget, one node may be drained.
    run.advance(minutes(4));
    let evicted = nodes_with_evictions(&run, landed_at);
    ensure(evicted.len() <= 1, || format!("pods were evicted from {evicted:?}"))?;
    run.advance(minutes(20));
    run.check()
}
