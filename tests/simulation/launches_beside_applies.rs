//! Pods that arrive while an apply is in progress: their launch does not wait for its end.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::{WorkloadId, WorkloadKind};
use fleetwright::model::observed::tag;
use jiff::{SignedDuration, Timestamp};

use super::environment::{CallKind, Faults, RecordedCall};
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::Commit;

pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("in motion: new pods do not wait for a wave of launches", beside_a_wave_of_launches),
    ("in motion: new pods do not wait for a node that boots", beside_a_booting_node),
    ("in motion: new pods do not wait for a blocked drain", beside_a_blocked_drain),
    ("in motion: new pods do not wait for many drains", beside_many_drains),
];

/// Pool and workload of the pods that arrive, and autoscalers, so that no commit adds pods.
const OBJECTS: &str = "---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: late }
spec:
  disruption: { budgets: [{ nodes: '100%' }] }
  template:
    metadata: { labels: { tier: late } }
    spec:
      taints: [{ key: tier, value: late, effect: NoSchedule }]
      requirements:
      - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large, c5.large] }
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: web }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: late, namespace: web }
spec:
  selector: { matchLabels: { app: late } }
  template:
    metadata: { labels: { app: late } }
    spec:
      nodeSelector: { tier: late }
      tolerations: [{ key: tier, operator: Exists }]
      containers: [{ name: main, image: x, resources: { requests: { cpu: 1, memory: 1Gi } } }]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: { name: late, namespace: web }
spec:
  scaleTargetRef: { apiVersion: apps/v1, kind: Deployment, name: late }
  minReplicas: 1
  maxReplicas: 100
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: { name: api, namespace: web }
spec:
  scaleTargetRef: { apiVersion: apps/v1, kind: Deployment, name: api }
  minReplicas: 1
  maxReplicas: 100
";

fn seconds(n: i64) -> SignedDuration {
    SignedDuration::from_secs(n)
}

fn commit() -> Commit {
    Commit { cpu: 1600, objects: OBJECTS.to_owned(), ..Commit::default().with("api", 2) }
}

fn scale(run: &Simulation, name: &str, replicas: u32) {
    let id =
        WorkloadId { namespace: "web".into(), name: name.into(), kind: WorkloadKind::Deployment };
    run.shared.world.set_replicas(&id, replicas);
}

fn is_of_pool(call: &RecordedCall, pool: &str) -> bool {
    let CallKind::Launch(request, Some(_)) = &call.kind else { return false };
    request.tags.get(tag::POOL).is_some_and(|of| of == pool)
}

/// Returns the launches of a pool since a time, in order.
fn launches(run: &Simulation, pool: &str, since: Timestamp) -> Vec<Timestamp> {
    let calls = run.shared.calls.borrow();
    let calls = calls.iter().filter(|call| is_of_pool(call, pool) && call.began >= since);
    calls.map(|call| call.began).collect()
}

/// Adds pods of `late` and checks that their launch is requested in time.
fn check_launched_in_time(run: &mut Simulation, limit: SignedDuration) -> ScenarioResult {
    let since = run.now();
    scale(run, "late", 3);
    let came = run.wait_until(minutes(30), |run| !launches(run, "late", since).is_empty());
    run.check()?;
    ensure(came, || "nothing was launched for the new pods".to_owned())?;
    let first = launches(run, "late", since)[0];
    let took = first.duration_since(since);
    ensure(took <= limit, || format!("the launch was requested after {took:#}"))
}

/// Starts a wave of launches in a slow EC2, and waits until its first launch is requested.
fn start_wave(run: &mut Simulation) -> ScenarioResult {
    run.faults(Faults { launch_seconds: 4, ..Faults::default() });
    let since = run.now();
    scale(run, "api", 50);
    let started = run.wait_until(minutes(1), |run| !launches(run, "web", since).is_empty());
    ensure(started, || "the wave does not start".to_owned())
}

fn beside_a_wave_of_launches(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 120, commit())?;
    let since = run.now();
    start_wave(&mut run)?;
    check_launched_in_time(&mut run, seconds(3))?;
    run.faults(Faults::default());
    run.converge(minutes(20))?;
    let launched = (launches(&run, "web", since).len(), launches(&run, "late", since).len());
    ensure(launched.0 <= 50 && launched.1 <= 2, || format!("{launched:?} launches"))
}

fn beside_a_booting_node(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 121, commit().with("api", 12))?;
    let since = run.now();
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    let started = run.wait_until(minutes(5), |run| !launches(run, "web", since).is_empty());
    ensure(started, || "the replacement does not start".to_owned())?;
    run.advance(seconds(5));
    let young = run.instances().into_iter().max_by_key(|instance| instance.launched_at);
    let young = young.ok_or("no instance")?;
    run.shared.world.stop_kubelet(&young.id);
    run.advance(minutes(2));
    check_launched_in_time(&mut run, seconds(3))?;
    run.converge(minutes(60))
}

fn beside_a_blocked_drain(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("100%".to_owned()), ..commit() };
    let mut run = converged(catalog, 122, commit.with("api", 4))?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    let drains = |run: &Simulation| run.observed().nodes.values().any(|node| node.unschedulable);
    let started = run.wait_until(minutes(5), drains);
    ensure(started, || "no drain begins".to_owned())?;
    run.advance(minutes(1));
    check_launched_in_time(&mut run, seconds(3))
}

fn beside_many_drains(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 123, commit().with("api", 40))?;
    run.faults(Faults { planning_seconds: 2, ..Faults::default() });
    scale(&run, "api", 1);
    run.commit(|commit| commit.with("api", 1));
    let removals = run.checks.borrow().removals();
    let started = run.wait_until(minutes(5), |run| run.checks.borrow().removals() > removals);
    ensure(started, || "no drain ends".to_owned())?;
    check_launched_in_time(&mut run, seconds(8))?;
    run.faults(Faults::default());
    run.converge(minutes(60))
}
