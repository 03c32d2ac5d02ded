//! Incidents of other projects; each scenario shows that it does not recur here.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::controller::{AuthorizedRequest, Counter};
use fleetwright::model::ids::InstanceId;
use fleetwright::model::observed::Node;
use fleetwright::model::pod::{Taint, TaintEffect};
use fleetwright::simulator::OfferingOutage;
use jiff::SignedDuration;

use super::environment::Faults;
use super::harness::Simulation;
use super::repository::Commit;

/// Result of a scenario. The error states the failed expectation.
pub(crate) type ScenarioResult = Result<(), String>;
pub(crate) type ScenarioFn = fn(&Rc<Catalog>) -> ScenarioResult;

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

pub(crate) fn minutes(n: i64) -> SignedDuration {
    SignedDuration::from_mins(n)
}

pub(crate) fn ensure(what: bool, why: impl FnOnce() -> String) -> ScenarioResult {
    if what { Ok(()) } else { Err(why()) }
}

/// Returns all scenarios by incident, including those of the other files.
pub(crate) fn all() -> impl Iterator<Item = &'static (&'static str, ScenarioFn)> {
    let more = [
        super::fleet_lifecycle::ALL,
        super::idle_capacity::ALL,
        super::image_rollout::ALL,
        super::jobs::ALL,
        super::crashes::ALL,
        super::edge_cases::ALL,
        super::empty_nodes::ALL,
        super::external_actors::ALL,
        super::maintenance::ALL,
        super::clock_skew::ALL,
        super::removed_declarations::ALL,
        super::controller_modes::ALL,
        super::launches_beside_applies::ALL,
        super::lost_nodes::ALL,
        super::bursts::ALL,
    ];
    ALL.iter().chain(more.into_iter().flatten())
}

const ALL: &[(&str, ScenarioFn)] = &[
    ("a commit becomes nodes and zero replicas remove them", commit_becomes_nodes),
    ("argo-cd-18480: unreadable files remove nothing", unreadable_removes_nothing),
    ("argo-cd-18480: unlisted pods are not treated as deleted", partial_reads_remove_nothing),
    ("karpenter-1040: empty nodes of deleted workloads wait for no budget", scaled_to_nothing),
    ("karpenter-2821: a node that never fits its pod is not relaunched endlessly", taint_adder),
    ("cluster-autoscaler-4095: an instance that never joins is terminated once", never_joins),
    ("core-3198: unavailable offerings are retried with backoff", no_offering_available),
    ("karpenter-549: instances launched before a crash are found again", crash_while_launching),
    ("karpenter-oci-97: a lost reply launches nothing twice", lost_replies),
    ("kubernetes-67651: of two replicas one writes, even after a pause of the other", two_replicas),
    ("core-1776: a blocked eviction ends with an uncordoned node", blocked_eviction),
    ("core-3185: pods that arrive during selection keep the node", pods_arrive_on_empty_node),
    ("karpenter-5400: an interruption takes precedence", interruption),
    ("karpenter-5400: 15,000 messages are processed without loss", many_messages),
    ("karpenter-9226: a reclaimed instance leaves no ghost node", reclaimed_at_once),
    ("core-2077: a stuck node blocks no other node", stuck_node),
    ("karpenter-9175: throttling causes backoff", throttled),
    ("controllers at midnight: a clock jump stops nothing", clock_jumps),
    ("karpenter-5373: a restart changes nothing", restart_changes_nothing),
    ("karpenter-6591: an image change rolls out within the budget", image_change),
    ("fail static: without Kubernetes nothing is removed", kubernetes_unreachable),
    ("mass unready: with half of the fleet unready nothing is removed", mass_unready),
    ("mass removal: removals that no commit explains wait for confirmation", mass_removal),
    ("mass removal: the removals of a commit go on in parts", explained_mass_removal),
    ("budgets: nodes with pods are removed one at a time", scales_down_stepwise),
    ("atlantis-5955: with spec.apply.by ci a merge waits for its receipt", merge_waits_for_ci),
    ("atlantis-5955: a restart during a CI apply keeps the served commit", restart_during_ci_apply),
    ("suspended: no work starts until the suspension expires", suspended),
    ("a shutdown leaves no partial work", graceful_shutdown),
];

pub(crate) fn converged(
    catalog: &Rc<Catalog>,
    seed: u64,
    commit: Commit,
) -> Result<Simulation, String> {
    let mut run = Simulation::new(seed, commit, catalog);
    run.converge(minutes(10)).map_err(|why| format!("at the beginning: {why}"))?;
    Ok(run)
}

fn commit_becomes_nodes(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 1, Commit::default())?;
    let before = run.instances().len();
    ensure(before > 0, || "there is no instance".to_owned())?;
    run.commit(|commit| commit.with("api", 12));
    run.converge(minutes(10))?;
    ensure(run.instances().len() > before, || "nothing was launched".to_owned())?;
    run.commit(|commit| commit.with("api", 0).with("jobs", 0));
    run.converge(minutes(20))?;
    ensure(run.instances().is_empty(), || format!("{} instances are left", run.instances().len()))
}

fn unreadable_removes_nothing(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 2, Commit::default().with("api", 8))?;
    let before = run.instances().len();
    run.faults(Faults { repository_down: true, ..Faults::default() });
    run.advance(minutes(30));
    run.check()?;
    ensure(run.instances().len() == before, || "instances were removed".to_owned())?;
    let status = run.status().ok_or("no replica runs")?;
    ensure(status.repository.reads.error.is_some(), || "the error is not reported".to_owned())?;
    // A process that starts without a readable repository removes nothing.
    run.kill(0);
    run.start(0);
    run.advance(minutes(10));
    ensure(run.instances().len() == before, || {
        "instances were removed after a restart".to_owned()
    })?;
    run.faults(Faults::default());
    run.converge(minutes(10))?;
    ensure(run.instances().len() == before, || {
        "instances were removed after the repository returned".to_owned()
    })
}

fn partial_reads_remove_nothing(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 3, Commit::default().with("api", 8))?;
    let before = run.instances().len();
    run.faults(Faults { partial: 700, ..Faults::default() });
    run.advance(minutes(20));
    run.check()?;
    let after = run.instances().len();
    ensure(after == before, || format!("{after} instances of {before} are left"))
}

fn scaled_to_nothing(catalog: &Rc<Catalog>) -> ScenarioResult {
    let slow = "removals: { most: 1, within: 3m }, massRemoval: 100%".to_owned();
    let commit = Commit { controller: slow, ..Commit::default().with("api", 20) };
    let mut run = converged(catalog, 4, commit)?;
    let before = run.instances().len();
    ensure(before >= 3, || format!("only {before} instances"))?;
    // The removal budget counts younger nodes.
    run.advance(minutes(10));
    run.commit(|commit| commit.with("api", 0).with("jobs", 0));
    let gone = run.wait_until(minutes(5), |run| run.instances().is_empty());
    run.check()?;
    ensure(gone, || format!("{} of {before} instances are left", run.instances().len()))
}

fn taint_adder(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(5, Commit::default(), catalog);
    // Karpenter's chaos test: an external actor taints each new node.
    for _ in 0..300 {
        run.advance(SignedDuration::from_secs(1));
        let nodes: Vec<_> = run.shared.world.view().nodes().values().cloned().collect();
        let is_tainted =
            |node: &Node| node.taints.iter().any(|taint| taint.key.as_str() == "chaos");
        for mut node in nodes.into_iter().filter(|node| !is_tainted(node)) {
            let (key, effect) = ("chaos".into(), TaintEffect::NoExecute);
            node.taints.push(Taint { key, value: "true".into(), effect });
            run.shared.world.update_node(&node);
        }
    }
    run.check()?;
    let launched = run.checks.borrow().most_launches(minutes(5));
    // Karpenter's own test allows 35.
    ensure(launched <= 6, || format!("{launched} instances within 5 minutes"))
}

fn never_joins(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(6, Commit::default(), catalog);
    run.wait_until(minutes(5), |run| !run.instances().is_empty());
    let silent: Vec<InstanceId> =
        run.instances().iter().map(|instance| instance.id.clone()).collect();
    for id in &silent {
        run.shared.world.stop_kubelet(id);
    }
    run.converge(minutes(40))?;
    let left = run.instances().iter().filter(|instance| silent.contains(&instance.id)).count();
    ensure(left == 0, || format!("{left} instances that never joined are left"))
}

fn no_offering_available(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(7, Commit::default(), catalog);
    run.shared.world.set_unavailable(vec![OfferingOutage::default()]);
    run.advance(minutes(20));
    run.check()?;
    let asked = run.shared.calls.borrow().len();
    ensure(asked < 300, || format!("{asked} calls within 20 minutes"))?;
    run.shared.world.set_unavailable(Vec::new());
    run.converge(minutes(70))
}

fn crash_while_launching(catalog: &Rc<Catalog>) -> ScenarioResult {
    for (n, millis) in (0..12).map(|n| (n, 300 * n)) {
        let mut run = Simulation::new(100 + n, Commit::default().with("api", 10), catalog);
        run.advance(SignedDuration::from_millis(i64::try_from(millis).unwrap_or(0)));
        run.kill(0);
        run.advance(SignedDuration::from_secs(20));
        run.start(0);
        run.converge(minutes(30)).map_err(|why| format!("died after {millis} ms: {why}"))?;
    }
    Ok(())
}

fn lost_replies(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(8, Commit::default().with("api", 10), catalog);
    run.faults(Faults { lost_replies: 500, ..Faults::default() });
    run.advance(minutes(10));
    run.faults(Faults::default());
    run.converge(minutes(30))
}

fn two_replicas(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 9, Commit::default())?;
    run.start(1);
    for n in 0..3 {
        run.commit(|commit| commit.with("api", 4 + 3 * (n % 3)));
        run.advance(SignedDuration::from_secs(3));
        let leads = run.shared.lease.get().map_or(0, |(by, _)| by);
        run.pause(leads, SignedDuration::from_secs(100));
        run.advance(minutes(4));
        run.check()?;
    }
    run.converge(minutes(30))
}

fn blocked_eviction(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = converged(catalog, 10, commit)?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.advance(minutes(40));
    run.check()?;
    let observed = run.observed();
    let running = observed.pods.iter().filter(|pod| pod.is_active() && pod.node.is_some()).count();
    ensure(running == 10, || format!("{running} pods run"))
}

fn pods_arrive_on_empty_node(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 11, Commit::default().with("api", 10))?;
    for n in 0..3 {
        run.commit(|commit| commit.with("api", 2));
        run.advance(SignedDuration::from_secs(54 + 4 * n));
        run.commit(|commit| commit.with("api", 10));
        run.advance(minutes(4));
        run.check()?;
    }
    run.converge(minutes(30))
}

fn interruption(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 12, Commit::default().with("api", 8))?;
    let interrupted =
        run.instances().first().map(|instance| instance.id.clone()).ok_or("no instance")?;
    run.send_interruption_warning(&interrupted);
    let cordoned = |run: &Simulation| {
        run.observed().node_for_instance(&interrupted).is_none_or(|node| node.unschedulable)
    };
    let soon = run.wait_until(SignedDuration::from_secs(5), cordoned);
    run.check()?;
    ensure(soon, || "the node was not cordoned within 5 seconds".to_owned())?;
    run.advance(SignedDuration::from_secs(110));
    let observed = run.observed();
    let on = |node: &fleetwright::model::observed::Node| {
        observed
            .pods
            .iter()
            .filter(|p| p.is_active() && p.node.as_ref() == Some(&node.name))
            .count()
    };
    let left = observed.node_for_instance(&interrupted).map_or(0, on);
    ensure(left == 0, || format!("{left} pods ran on the node until its termination"))?;
    run.shared.world.reclaim_instance(&interrupted);
    run.converge(minutes(15))?;
    ensure(run.shared.queue.borrow().len() == 0, || "the message is still there".to_owned())
}

fn many_messages(catalog: &Rc<Catalog>) -> ScenarioResult {
    const MESSAGES: u64 = 15_000;
    let mut run = converged(catalog, 13, Commit::default().with("api", 8))?;
    let interrupted =
        run.instances().first().map(|instance| instance.id.clone()).ok_or("no instance")?;
    let begun = run.now();
    for n in 1..MESSAGES {
        // Instances in the same account that are not managed.
        let detail = format!(r#"{{"instance-id":"i-f{n:016x}","state":"terminated"}}"#);
        run.send_message("EC2 Instance State-change Notification", "aws.ec2", &detail);
    }
    run.send_interruption_warning(&interrupted);
    let made = |run: &Simulation| run.status().map(|s| s.counters.get(&Counter::PlansMade));
    let before = made(&run);
    let drained = run.wait_until(minutes(10), |run| run.shared.queue.borrow().len() == 0);
    run.check()?;
    ensure(drained, || format!("{} messages are left", run.shared.queue.borrow().len()))?;
    let took = run.now().duration_since(begun).as_secs();
    ensure(took <= 300, || format!("they took {took} s"))?;
    // Acknowledgements are counted after their replies.
    run.advance(minutes(1));
    let status = run.status().ok_or("no replica runs")?;
    let acknowledged = status.counters.get(&Counter::MessagesAcknowledged);
    ensure(acknowledged >= MESSAGES, || format!("{acknowledged} messages were acknowledged"))?;
    // Foreign instances neither change nor invalidate a plan.
    let plans = made(&run).unwrap_or(0) - before.unwrap_or(0);
    ensure(plans <= 30, || format!("{plans} plans were made meanwhile"))?;
    ensure(run.shared.persisted_state.borrow().interruptions.len() <= 1, || {
        "foreign instances are persisted".to_owned()
    })?;
    run.shared.world.reclaim_instance(&interrupted);
    run.converge(minutes(10))
}

fn reclaimed_at_once(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 14, Commit::default().with("api", 8))?;
    let interrupted =
        run.instances().first().map(|instance| instance.id.clone()).ok_or("no instance")?;
    run.shared.world.reclaim_instance(&interrupted);
    run.converge(minutes(10))?;
    let status = run.status().ok_or("no replica runs")?;
    ensure(status.interrupted.is_empty(), || "a terminated instance is still tracked".to_owned())
}

fn stuck_node(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 4) };
    let mut run = converged(catalog, 15, commit)?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.advance(minutes(3));
    // The blocked drain delays no launch.
    run.commit(|commit| commit.with("jobs", 12));
    let all = |run: &Simulation| {
        let observed = run.observed();
        observed.pods.iter().all(|pod| !pod.is_active() || pod.node.is_some())
    };
    let soon = run.wait_until(minutes(3), all);
    run.check()?;
    ensure(soon, || "pods are pending because of a stuck node".to_owned())
}

fn throttled(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(16, Commit::default().with("api", 12), catalog);
    run.faults(Faults { reads: 500, writes: 800, ..Faults::default() });
    run.advance(minutes(15));
    run.check()?;
    run.faults(Faults::default());
    run.converge(minutes(20))
}

fn clock_jumps(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 17, Commit::default())?;
    for (n, hours) in [-2, 3, 0, -1, 0].into_iter().enumerate() {
        run.skew(0, SignedDuration::from_hours(hours));
        let replicas = if n % 2 == 0 { 10 } else { 5 };
        run.commit(|commit| commit.with("api", replicas));
        run.advance(minutes(6));
        run.check()?;
    }
    run.converge(minutes(30))
}

fn restart_changes_nothing(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 18, Commit::default().with("api", 8))?;
    let before = run.shared.calls.borrow().len();
    for _ in 0..5 {
        run.kill(0);
        run.start(0);
        run.advance(minutes(5));
    }
    run.check()?;
    let calls = run.shared.calls.borrow().len() - before;
    ensure(calls == 0, || format!("{calls} writes after restarts"))
}

fn image_change(catalog: &Rc<Catalog>) -> ScenarioResult {
    let slow = "removals: { most: 1, within: 2m }, massRemoval: 100%".to_owned();
    let commit = Commit { controller: slow, ..Commit::default().with("api", 16) };
    let mut run = converged(catalog, 19, commit)?;
    let old: Vec<InstanceId> = run.instances().iter().map(|instance| instance.id.clone()).collect();
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.converge(minutes(120))?;
    let left = run.instances().iter().filter(|instance| old.contains(&instance.id)).count();
    ensure(left == 0, || format!("{left} instances of {} have the old image", old.len()))
}

fn kubernetes_unreachable(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 20, Commit::default().with("api", 8))?;
    let before = run.instances().len();
    run.faults(Faults { kubernetes_down: true, ..Faults::default() });
    run.commit(|commit| commit.with("api", 0));
    run.advance(minutes(20));
    run.check()?;
    ensure(run.instances().len() == before, || "instances were removed".to_owned())?;
    run.faults(Faults::default());
    run.converge(minutes(30))
}

fn mass_unready(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 21, Commit::default().with("api", 30))?;
    let instances = run.instances();
    ensure(instances.len() >= 6, || format!("only {} instances", instances.len()))?;
    // The nodes are healthy. The partition separates their kubelets from the API server.
    let broken: Vec<InstanceId> =
        instances.iter().take(instances.len() - 1).map(|instance| instance.id.clone()).collect();
    let before = run.checks.borrow().removals();
    for id in &broken {
        run.shared.world.stop_kubelet(id);
    }
    // Kubernetes notices lost kubelets after 40 seconds.
    run.advance(minutes(1));
    run.commit(|commit| commit.with("jobs", 0));
    run.advance(minutes(50));
    run.check()?;
    let removed = run.checks.borrow().removals() - before;
    ensure(removed == 0, || format!("{removed} instances were removed"))
}

fn explained_mass_removal(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { controller: "removals: { most: 100% }".to_owned(), ..Commit::default() };
    let mut run = converged(catalog, 22, commit.with("api", 40))?;
    let before = run.instances().len();
    ensure(before >= 5, || format!("only {before} instances"))?;
    // The request of each pod shrinks to a tenth, so most nodes with pods become removable.
    run.commit(|commit| Commit { cpu: 70, ..commit });
    // The invariants limit each apply.
    run.converge(minutes(60))?;
    let after = run.instances().len();
    ensure(after * 2 < before, || format!("{after} instances of {before} are left"))?;
    let breakers = run.status().map_or(0, |status| status.breakers.len());
    ensure(breakers == 0, || "a breaker latched".to_owned())
}

fn mass_removal(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "removals: { most: 100% }".to_owned();
    let commit = Commit { mode: "additive", controller, ..Commit::default() };
    let mut run = converged(catalog, 22, commit.with("api", 40))?;
    let before = run.instances().len();
    ensure(before >= 5, || format!("only {before} instances"))?;
    // The request of each pod shrinks to a tenth. In mode `full`, no earlier plan shows that the
    // fleet was larger than needed.
    run.commit(|commit| Commit { cpu: 70, ..commit });
    run.advance(minutes(5));
    run.commit(|commit| Commit { mode: "full", ..commit });
    run.advance(minutes(20));
    run.check()?;
    ensure(run.instances().len() == before, || "instances were removed".to_owned())?;
    let status = run.status().ok_or("no replica runs")?;
    let tripped = status.breakers.first().map(|breaker| breaker.name.clone());
    ensure(tripped.as_deref() == Some("mass-removal"), || format!("{tripped:?} tripped"))?;
    // A restart does not reset the breaker.
    run.kill(0);
    run.start(0);
    run.advance(minutes(10));
    ensure(run.instances().len() == before, || {
        "instances were removed after a restart".to_owned()
    })?;
    let shown = run.status().and_then(|status| status.plan).ok_or("no plan")?;
    let reset = |digest| {
        let (breaker, by) = ("mass-removal".to_owned(), "alice".to_owned());
        AuthorizedRequest::Reset { breaker, digest, by }
    };
    // A reset that names another plan does not approve this one.
    run.send_request(0, reset(Some("sha256:another".into())));
    run.advance(minutes(5));
    ensure(run.instances().len() == before, || {
        "instances were removed without approval".to_owned()
    })?;
    run.send_request(0, reset(Some(shown.digest().clone())));
    run.converge(minutes(60))?;
    let after = run.instances().len();
    ensure(after * 2 < before, || format!("{after} instances of {before} are left"))
}

fn scales_down_stepwise(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "removals: { most: 1 }, massRemoval: 100%".to_owned();
    let commit = Commit { controller, ..Commit::default() };
    let mut run = converged(catalog, 23, commit.with("api", 24))?;
    let before = run.instances().len();
    ensure(before >= 4, || format!("only {before} instances"))?;
    // The request of each pod shrinks to a tenth, so that nodes with pods become removable.
    run.commit(|commit| Commit { cpu: 70, ..commit });
    run.converge(minutes(120))?;
    let after = run.instances().len();
    ensure(after + 2 < before, || format!("{before} instances became {after}"))
}

fn merge_waits_for_ci(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit {
        apply: "by: ci".to_owned(),
        controller: "ciTimeout: 15m, removals: { most: 100% }, massRemoval: 100%".to_owned(),
        ..Commit::default().with("api", 12)
    };
    let mut run = converged(catalog, 23, commit)?;
    let before = run.instances().len();
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.advance(minutes(10));
    run.check()?;
    let status = run.status().ok_or("no replica runs")?;
    ensure(status.repository.waiting.is_some(), || "the merge does not wait".to_owned())?;
    ensure(run.checks.borrow().removals() == 0, || "instances were removed".to_owned())?;
    // Interrupted instances are replaced in the meantime.
    let interrupted =
        run.instances().first().map(|instance| instance.id.clone()).ok_or("no instance")?;
    run.shared.world.reclaim_instance(&interrupted);
    let replaced = run.wait_until(minutes(4), |run| {
        let observed = run.observed();
        run.instances().len() == before
            && observed.pods.iter().all(|pod| !pod.is_active() || pod.node.is_some())
    });
    run.check()?;
    ensure(replaced, || "the interrupted instance was not replaced".to_owned())?;
    run.converge(minutes(60))
}

fn restart_during_ci_apply(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit {
        apply: "by: ci".to_owned(),
        controller: "ciTimeout: 30m, removals: { most: 100% }, massRemoval: 100%".to_owned(),
        ..Commit::default().with("api", 12)
    };
    let mut run = converged(catalog, 26, commit)?;
    let before = run.instances().len();
    let served = run.status().and_then(|status| status.repository.commit);
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.advance(minutes(2));
    // Restarts within the CI timeout do not restart the timeout.
    for _ in 0..4 {
        run.kill(0);
        run.start(0);
        let interrupted =
            run.instances().first().map(|instance| instance.id.clone()).ok_or("no instance")?;
        run.shared.world.reclaim_instance(&interrupted);
        let replaced = run.wait_until(minutes(4), |run| {
            let observed = run.observed();
            run.instances().len() == before
                && observed.pods.iter().all(|pod| !pod.is_active() || pod.node.is_some())
        });
        run.check()?;
        ensure(replaced, || {
            "the interrupted instance was not replaced after a restart".to_owned()
        })?;
        let now = run.status().and_then(|status| status.repository.commit);
        ensure(now == served, || format!("the served commit is {now:?}"))?;
        ensure(run.checks.borrow().removals() == 0, || "instances were removed".to_owned())?;
        run.advance(minutes(3));
    }
    let begun = run.now();
    let adopted = run.wait_until(minutes(30), |run| {
        run.status().is_some_and(|status| status.repository.commit != served)
    });
    run.check()?;
    let waited = run.now().duration_since(begun).as_mins();
    ensure(adopted && waited <= 20, || format!("the CI timeout lasted {waited} more minutes"))?;
    run.converge(minutes(60))
}

fn suspended(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 24, Commit::default())?;
    let before = run.instances().len();
    let until = run.now().checked_add(minutes(10)).ok();
    let (reason, by) = ("a migration".to_owned(), "alice".to_owned());
    run.send_request(0, AuthorizedRequest::Suspend { reason, until, by });
    run.advance(MINUTE);
    run.commit(|commit| commit.with("api", 16));
    run.advance(minutes(5));
    ensure(run.instances().len() == before, || "something was launched".to_owned())?;
    run.kill(0);
    run.start(0);
    run.advance(minutes(2));
    ensure(run.instances().len() == before, || "a restart ended the suspension".to_owned())?;
    run.converge(minutes(20))
}

fn graceful_shutdown(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("7".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = converged(catalog, 25, commit)?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    let drains = |run: &Simulation| run.observed().nodes.values().any(|node| node.unschedulable);
    ensure(run.wait_until(minutes(10), drains), || "nothing is drained".to_owned())?;
    run.shut_down(0);
    run.advance(minutes(2));
    run.check()?;
    let left = run.observed().nodes.values().filter(|node| node.unschedulable).count();
    ensure(left == 0, || format!("{left} nodes are left cordoned"))
}
