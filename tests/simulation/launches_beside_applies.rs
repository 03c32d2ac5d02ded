//! Pods that arrive while an apply is in progress: their launch does not wait for its end.

use std::rc::Rc;
use std::sync::Arc;

use fleetwright::apply::ApplyStatus;
use fleetwright::catalog::Catalog;
use fleetwright::controller::{AuthorizedRequest, CompletedApply};
use fleetwright::model::ids::{InstanceId, NodeName, WorkloadId, WorkloadKind};
use fleetwright::model::market::CapacityType;
use fleetwright::model::observed::tag;
use fleetwright::simulator::OfferingOutage;
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
    ("in motion: kill -9 beside a wave loses and doubles nothing", killed_beside_a_wave),
    ("in motion: a wave without capacity delays no other pool", wave_without_capacity),
    ("in motion: a lease that is lost in a wave ends both applies", lease_lost_in_a_wave),
    ("in motion: both applies share the launch budget", shared_launch_budget),
    ("in motion: lost replies in a wave launch nothing twice", lost_replies_in_a_wave),
    ("in motion: new pods take no room from an exchange", beside_an_exchange),
    ("in motion: an approval by digest covers no later pods", approval_by_digest),
    ("in motion: launches without a reason end before any pod runs on them", shrinks_while_booting),
    ("in motion: pods that come while launches boot run on them", grows_while_booting),
    (
        "in motion: launches of another image than the last commit get no pod",
        replaced_while_booting,
    ),
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

/// Starts a wave of launches in a slow EC2.
fn start_requests(run: &mut Simulation) -> ScenarioResult {
    run.faults(Faults { launch_seconds: 4, ..Faults::default() });
    scale(run, "api", 50);
    let started = run.wait_until(minutes(1), |run| {
        run.status().is_some_and(|status| !status.in_progress.is_empty())
    });
    ensure(started, || "the wave does not start".to_owned())
}

/// Starts a wave of launches in a slow EC2, and waits until its first instance is launched.
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

/// Checks that the pods have one node each, as without a wave.
fn check_launched_once(run: &mut Simulation) -> ScenarioResult {
    run.faults(Faults::default());
    run.converge(minutes(60))?;
    let pods = |name: &str| {
        let observed = run.observed();
        observed.pods.iter().filter(|pod| pod.is_active() && pod.name.starts_with(name)).count()
    };
    let of_pool = |pool: &str| {
        let instances = run.instances();
        instances.iter().filter(|i| i.tags.get(tag::POOL).is_some_and(|of| of == pool)).count()
    };
    let (web, late) = (of_pool("web"), of_pool("late"));
    let pods_of_late = pods("late");
    ensure(pods_of_late >= 3 && late <= pods_of_late, || {
        format!("{late} nodes for the {pods_of_late} later pods")
    })?;
    // A pod of `jobs` fills a node as well.
    ensure(web <= pods("api") + 2, || format!("{web} nodes for the wave"))
}

fn killed_beside_a_wave(catalog: &Rc<Catalog>) -> ScenarioResult {
    for n in 0..5 {
        let mut run = converged(catalog, 130 + n, commit())?;
        run.faults(Faults { launch_seconds: 1, ..Faults::default() });
        scale(&run, "api", 26);
        run.advance(seconds(2));
        scale(&run, "late", 3);
        run.shared.kill.set(Some(5 * n));
        let killed = run.wait_until(minutes(2), |run| !run.is_running(0));
        ensure(killed, || "it was not killed".to_owned())?;
        run.start(0);
        check_launched_once(&mut run).map_err(|why| format!("killed at write {}: {why}", 5 * n))?;
    }
    Ok(())
}

fn wave_without_capacity(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 140, commit())?;
    let outage = |instance_type: &str| OfferingOutage {
        instance_type: Some(instance_type.into()),
        capacity_type: Some(CapacityType::Spot),
        ..OfferingOutage::default()
    };
    run.shared.world.set_unavailable(["m5.large", "c5.large", "r5.large"].map(outage).into());
    start_requests(&mut run)?;
    check_launched_in_time(&mut run, seconds(12))?;
    check_launched_once(&mut run)
}

fn lease_lost_in_a_wave(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 141, commit())?;
    start_requests(&mut run)?;
    // More pods than one round of requests has launches.
    let since = run.now();
    scale(&run, "late", 48);
    let started = run.wait_until(seconds(8), |run| !launches(run, "late", since).is_empty());
    ensure(started, || "nothing is launched beside the wave".to_owned())?;
    run.give_lease_to_ci(seconds(90));
    run.advance(seconds(80));
    run.check()?;
    // Both stop on their own account: neither requests the rest of its launches.
    let status = run.status().ok_or("no replica runs")?;
    ensure(status.in_progress.is_empty(), || "an apply goes on without the lease".to_owned())?;
    let verdict = |past: &Arc<CompletedApply>| past.receipt.as_ref().map(|receipt| receipt.verdict);
    let ended: Vec<_> = status.history.iter().take(2).map(verdict).collect();
    let interrupted = Some(ApplyStatus::Interrupted);
    ensure(ended == [interrupted, interrupted], || format!("the applies ended as {ended:?}"))?;
    check_launched_once(&mut run)
}

fn shared_launch_budget(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "launches: { most: 12, within: 5m }, removals: { most: 100% }".to_owned();
    let mut run = converged(catalog, 142, Commit { controller, ..commit() })?;
    run.advance(minutes(6));
    let since = run.now();
    start_requests(&mut run)?;
    scale(&run, "late", 3);
    run.advance(minutes(4));
    run.check()?;
    let launched = launches(&run, "web", since).len() + launches(&run, "late", since).len();
    ensure(launched <= 12, || format!("{launched} launches within the window"))
}

fn lost_replies_in_a_wave(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 143, commit())?;
    let lossy =
        Faults { launch_seconds: 2, lost_replies: 400, lost_calls: 200, ..Faults::default() };
    run.faults(lossy);
    scale(&run, "api", 20);
    run.advance(seconds(5));
    scale(&run, "late", 3);
    run.advance(minutes(5));
    run.check()?;
    check_launched_once(&mut run)
}

fn beside_an_exchange(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 145, commit().with("api", 16))?;
    run.faults(Faults { launch_seconds: 4, ..Faults::default() });
    let since = run.now();
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    let is_launching =
        |run: &Simulation| run.status().is_some_and(|status| !status.in_progress.is_empty());
    ensure(run.wait_until(minutes(5), is_launching), || "no exchange starts".to_owned())?;
    scale(&run, "api", 20);
    check_launched_in_time(&mut run, seconds(6))?;
    run.faults(Faults::default());
    run.converge(minutes(90))?;
    ensure(launches(&run, "web", since).len() > 4, || "nothing was exchanged".to_owned())
}

fn approval_by_digest(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "approval: digest, removals: { most: 100% }".to_owned();
    let mut run = converged(catalog, 144, commit())?;
    run.commit(|commit| Commit { controller, ..commit });
    run.converge(minutes(10))?;
    let since = run.now();
    run.faults(Faults { launch_seconds: 4, ..Faults::default() });
    scale(&run, "api", 50);
    run.advance(seconds(20));
    let status = run.status().ok_or("no replica runs")?;
    let digest = status.plan.ok_or("no plan")?.plan.capacity.digest.clone();
    run.send_request(0, AuthorizedRequest::Approve { digest, by: "alice".to_owned() });
    let started = run.wait_until(minutes(1), |run| !launches(run, "web", since).is_empty());
    ensure(started, || "the approved wave does not start".to_owned())?;
    scale(&run, "late", 3);
    run.advance(minutes(5));
    run.check()?;
    let late = launches(&run, "late", since).len();
    ensure(late == 0, || format!("{late} launches without an approval"))?;
    // The plan for them can be approved once the wave has ended.
    let status = run.status().ok_or("no replica runs")?;
    let digest = status.plan.ok_or("no plan")?.plan.capacity.digest.clone();
    run.send_request(0, AuthorizedRequest::Approve { digest, by: "alice".to_owned() });
    let came = run.wait_until(minutes(1), |run| !launches(run, "late", since).is_empty());
    ensure(came, || "the approved launch does not start".to_owned())
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

/// Starts to replace every node, and returns the launched instances while they boot.
fn start_exchange(run: &mut Simulation) -> Result<Vec<InstanceId>, String> {
    let since = run.now();
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    let started = run.wait_until(minutes(5), |run| !launches(run, "web", since).is_empty());
    ensure(started, || "the replacement does not start".to_owned())?;
    run.advance(seconds(5));
    let young = run.instances().into_iter().filter(|instance| instance.launched_at >= since);
    let young: Vec<InstanceId> = young.map(|instance| instance.id).collect();
    ensure(young.len() >= 3, || format!("only {} nodes are replaced", young.len()))?;
    Ok(young)
}

/// Waits until the nodes of instances have registered.
fn registered(
    run: &mut Simulation,
    ids: &[InstanceId],
) -> Result<Vec<(InstanceId, NodeName)>, String> {
    let nodes = |run: &Simulation| -> Vec<(InstanceId, NodeName)> {
        let observed = run.observed();
        let node =
            |id: &InstanceId| Some((id.clone(), observed.node_for_instance(id)?.name.clone()));
        ids.iter().filter_map(node).collect()
    };
    let are_all = run.wait_until(minutes(2), |run| nodes(run).len() == ids.len());
    ensure(are_all, || "a node does not register".to_owned())?;
    Ok(nodes(run))
}

/// Returns how many pods were evicted from nodes.
fn evictions(run: &Simulation, nodes: &[(InstanceId, NodeName)]) -> usize {
    let is_of = |node: &NodeName| nodes.iter().any(|(_, launched)| launched == node);
    let is_eviction =
        |call: &&RecordedCall| matches!(&call.kind, CallKind::Evict(_, Some(node)) if is_of(node));
    run.shared.calls.borrow().iter().filter(is_eviction).count()
}

fn shrinks_while_booting(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { cpu: 1600, ..Commit::default().with("api", 8).with("jobs", 0) };
    let mut run = converged(catalog, 146, commit)?;
    let young = start_exchange(&mut run)?;
    run.commit(|commit| commit.with("api", 1));
    let nodes = registered(&mut run, &young)?;
    let active = |run: &Simulation| {
        let all = run.instances();
        young.iter().filter(|id| all.iter().any(|instance| instance.id == **id)).count()
    };
    let soon = run.wait_until(minutes(5), |run| active(run) <= 1);
    run.check()?;
    ensure(soon, || format!("{} launched instances are left after 5 minutes", active(&run)))?;
    run.converge(minutes(30))?;
    let calls = run.shared.calls.borrow();
    let is_open = |node: &&NodeName| {
        calls.iter().any(|call| matches!(&call.kind, CallKind::Open(opened) if opened == *node))
    };
    let evicted = evictions(&run, &nodes);
    ensure(evicted == 0, || format!("{evicted} pods ran on launched nodes that ended"))?;
    let all = run.instances();
    let ended = nodes.iter().filter(|(id, _)| !all.iter().any(|instance| instance.id == *id));
    let opened: Vec<&NodeName> = ended.map(|(_, node)| node).filter(is_open).collect();
    // Two plans may choose different nodes for the one pod.
    ensure(opened.len() <= 1, || format!("{opened:?} were opened before they ended"))
}

fn grows_while_booting(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { cpu: 1600, ..Commit::default().with("api", 8).with("jobs", 0) };
    let mut run = converged(catalog, 147, commit)?;
    let since = run.now();
    let young = start_exchange(&mut run)?;
    run.commit(|commit| commit.with("api", 10));
    let nodes = registered(&mut run, &young)?;
    // Nodes become Ready ten seconds after they register.
    let are_used = run.wait_until(seconds(35), |run| {
        let observed = run.observed();
        let is_new = |name: &NodeName| nodes.iter().any(|(_, node)| node == name);
        let pods = observed.pods.iter().filter(|pod| pod.is_active());
        pods.filter(|pod| pod.node.as_ref().is_some_and(is_new)).count() >= 2
    });
    run.check()?;
    ensure(are_used, || "the new pods wait beside the new nodes".to_owned())?;
    run.converge(minutes(60))?;
    let launched = launches(&run, "web", since).len();
    // Eight nodes are replaced, and two pods are new.
    ensure(launched <= 12, || format!("{launched} launches for ten pods"))
}

fn replaced_while_booting(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { cpu: 1600, ..Commit::default().with("api", 8).with("jobs", 0) };
    let mut run = converged(catalog, 148, commit)?;
    let young = start_exchange(&mut run)?;
    run.commit(|commit| Commit { image: "al2023@v20261101".to_owned(), ..commit });
    let nodes = registered(&mut run, &young)?;
    run.converge(minutes(60))?;
    // Their image is not the last one, so each pod on them would move twice.
    let evicted = evictions(&run, &nodes);
    ensure(evicted == 0, || format!("{evicted} pods moved twice"))
}
