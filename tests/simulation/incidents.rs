//! Incidents of other projects; each scenario shows that it does not recur here.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::controller::AuthorizedRequest;
use fleetwright::model::ids::InstanceId;
use fleetwright::model::pod::{Taint, TaintEffect};
use fleetwright::simulator::OfferingOutage;
use jiff::SignedDuration;

use super::environment::Faults;
use super::harness::Simulation;
use super::repository::Commit;

/// How a story ends.
pub(crate) type ScenarioResult = Result<(), String>;
/// A story.
pub(crate) type ScenarioFn = fn(&Rc<Catalog>) -> ScenarioResult;

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

pub(crate) fn minutes(n: i64) -> SignedDuration {
    SignedDuration::from_mins(n)
}

pub(crate) fn is(what: bool, why: impl FnOnce() -> String) -> ScenarioResult {
    if what { Ok(()) } else { Err(why()) }
}

/// Returns all stories, those of the other files too, by the incident that each retells.
pub(crate) fn all() -> impl Iterator<Item = &'static (&'static str, ScenarioFn)> {
    let more = [
        super::fleet_lifecycle::ALL,
        super::idle_capacity::ALL,
        super::image_rollout::ALL,
        super::edge_cases::ALL,
        super::external_actors::ALL,
        super::maintenance::ALL,
        super::clock_skew::ALL,
        super::removed_declarations::ALL,
        super::controller_modes::ALL,
    ];
    ALL.iter().chain(more.into_iter().flatten())
}

const ALL: &[(&str, ScenarioFn)] = &[
    ("a commit becomes nodes and zero replicas remove them", commit_becomes_nodes),
    ("argo-cd-18480: unreadable files remove nothing", unreadable_removes_nothing),
    ("argo-cd-18480: unlisted pods are not treated as deleted", partial_reads_remove_nothing),
    ("karpenter-1040: deleted workloads scale down within the budget", scaled_to_nothing),
    ("karpenter-2821: a node that never fits its pod is not relaunched endlessly", taint_adder),
    ("cluster-autoscaler-4095: an instance that never joins is terminated once", never_joins),
    ("core-3198: unavailable offerings are retried with backoff", sold_out),
    ("karpenter-549: instances launched before a crash are found again", dies_while_launching),
    ("karpenter-oci-97: a lost reply launches nothing twice", lost_replies),
    (
        "kubernetes-67651: of two replicas one writes, even where the other wakes up late",
        two_replicas,
    ),
    ("core-1776: a blocked eviction ends with an uncordoned node", budget_never_yields),
    ("core-3185: pods that arrive during selection keep the node", pods_come_to_empty_node),
    ("karpenter-5400: an interruption takes precedence", interruption),
    ("karpenter-5400: 15,000 messages are processed without loss", many_messages),
    ("karpenter-9226: a reclaimed instance leaves no ghost node", reclaimed_at_once),
    ("core-2077: a stuck node blocks no other node", stuck_node),
    ("karpenter-9175: throttling causes backoff", throttled),
    ("controllers at midnight: a clock jump stops nothing", clock_jumps),
    ("karpenter-5373: a restart changes nothing", restart_changes_nothing),
    ("karpenter-6591: an image change rolls out within the budget", image_drifts),
    ("fail static: without Kubernetes nothing is removed", kubernetes_gone),
    ("mass unready: with half of the fleet unready nothing is removed", mass_unready),
    ("mass removal: a plan that empties the fleet waits for confirmation", mass_removal),
    ("budgets: a fleet scales down one instance at a time", shrinks),
    ("atlantis-5955: with spec.apply.by ci a merge waits for its receipt", ci_applies),
    ("atlantis-5955: a restart during a CI apply keeps the served commit", ci_restarts),
    ("suspended: no work starts until the suspension expires", suspended),
    ("a shutdown leaves no partial work", ends_in_order),
];

pub(crate) fn settled(
    catalog: &Rc<Catalog>,
    seed: u64,
    commit: Commit,
) -> Result<Simulation, String> {
    let mut run = Simulation::new(seed, commit, catalog);
    run.comes_to_rest(minutes(10)).map_err(|why| format!("at the beginning: {why}"))?;
    Ok(run)
}

fn commit_becomes_nodes(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 1, Commit::default())?;
    let before = run.machines().len();
    is(before > 0, || "there is no machine".to_owned())?;
    run.commit(|commit| commit.with("api", 12));
    run.comes_to_rest(minutes(10))?;
    is(run.machines().len() > before, || "nothing was launched".to_owned())?;
    run.commit(|commit| commit.with("api", 0).with("jobs", 0));
    run.comes_to_rest(minutes(20))?;
    is(run.machines().is_empty(), || format!("{} machines are left", run.machines().len()))
}

fn unreadable_removes_nothing(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 2, Commit::default().with("api", 8))?;
    let before = run.machines().len();
    run.faults(Faults { git: true, ..Faults::default() });
    run.pass(minutes(30));
    run.well()?;
    is(run.machines().len() == before, || "machines went".to_owned())?;
    let status = run.status().ok_or("nobody lives")?;
    is(status.repository.reads.error.is_some(), || "the error is not told".to_owned())?;
    // A process that begins then knows of nothing that it could remove.
    run.kill(0);
    run.start(0);
    run.pass(minutes(10));
    is(run.machines().len() == before, || "machines went after a restart".to_owned())?;
    run.faults(Faults::default());
    run.comes_to_rest(minutes(10))?;
    is(run.machines().len() == before, || "machines went once it was back".to_owned())
}

fn partial_reads_remove_nothing(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 3, Commit::default().with("api", 8))?;
    let before = run.machines().len();
    run.faults(Faults { partial: 700, ..Faults::default() });
    run.pass(minutes(20));
    run.well()?;
    let after = run.machines().len();
    is(after == before, || format!("{after} machines of {before} are left"))
}

fn scaled_to_nothing(catalog: &Rc<Catalog>) -> ScenarioResult {
    let slow = "removals: { most: 1, within: 3m }, massRemoval: 100%".to_owned();
    let commit = Commit { controller: slow, ..Commit::default().with("api", 20) };
    let mut run = settled(catalog, 4, commit)?;
    let before = run.machines().len();
    is(before >= 3, || format!("only {before} machines"))?;
    run.commit(|commit| commit.with("api", 0).with("jobs", 0));
    run.pass(minutes(5));
    run.well()?;
    let gone = before - run.machines().len();
    is(gone <= 3, || format!("{gone} machines went within 5 minutes"))?;
    run.comes_to_rest(minutes(60))
}

fn taint_adder(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(5, Commit::default(), catalog);
    // Karpenter's chaos test: somebody taints every new node.
    for _ in 0..300 {
        run.pass(SignedDuration::from_secs(1));
        let nodes: Vec<_> = run.shared.world.view().nodes().values().cloned().collect();
        for mut node in nodes.into_iter().filter(|node| node.taints.is_empty()) {
            let (key, effect) = ("chaos".into(), TaintEffect::NoExecute);
            node.taints.push(Taint { key, value: "true".into(), effect });
            run.shared.world.update_node(&node);
        }
    }
    run.well()?;
    let launched = run.checks.borrow().most_launches(minutes(5));
    // Karpenter's own test allows 35.
    is(launched <= 6, || format!("{launched} machines within 5 minutes"))
}

fn never_joins(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(6, Commit::default(), catalog);
    run.until(minutes(5), |run| !run.machines().is_empty());
    let silent: Vec<InstanceId> = run.machines().iter().map(|machine| machine.id.clone()).collect();
    for id in &silent {
        run.shared.world.stop_kubelet(id);
    }
    run.comes_to_rest(minutes(40))?;
    let left = run.machines().iter().filter(|machine| silent.contains(&machine.id)).count();
    is(left == 0, || format!("{left} machines that never joined are left"))
}

fn sold_out(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(7, Commit::default(), catalog);
    run.shared.world.set_unavailable(vec![OfferingOutage::default()]);
    run.pass(minutes(20));
    run.well()?;
    let asked = run.shared.asked.borrow().len();
    is(asked < 300, || format!("{asked} calls within 20 minutes"))?;
    run.shared.world.set_unavailable(Vec::new());
    run.comes_to_rest(minutes(70))
}

fn dies_while_launching(catalog: &Rc<Catalog>) -> ScenarioResult {
    for (n, millis) in (0..12).map(|n| (n, 300 * n)) {
        let mut run = Simulation::new(100 + n, Commit::default().with("api", 10), catalog);
        run.pass(SignedDuration::from_millis(i64::try_from(millis).unwrap_or(0)));
        run.kill(0);
        run.pass(SignedDuration::from_secs(20));
        run.start(0);
        run.comes_to_rest(minutes(30)).map_err(|why| format!("died after {millis} ms: {why}"))?;
    }
    Ok(())
}

fn lost_replies(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(8, Commit::default().with("api", 10), catalog);
    run.faults(Faults { lost: 500, ..Faults::default() });
    run.pass(minutes(10));
    run.faults(Faults::default());
    run.comes_to_rest(minutes(30))
}

fn two_replicas(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 9, Commit::default())?;
    run.start(1);
    for n in 0..3 {
        run.commit(|commit| commit.with("api", 4 + 3 * (n % 3)));
        run.pass(SignedDuration::from_secs(3));
        let leads = run.shared.lease.get().map_or(0, |(by, _)| by);
        run.pause(leads, SignedDuration::from_secs(100));
        run.pass(minutes(4));
        run.well()?;
    }
    run.comes_to_rest(minutes(30))
}

fn budget_never_yields(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = settled(catalog, 10, commit)?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.pass(minutes(40));
    run.well()?;
    let observed = run.observed();
    let running = observed.pods.iter().filter(|pod| pod.is_active() && pod.node.is_some()).count();
    is(running == 10, || format!("{running} pods run"))
}

fn pods_come_to_empty_node(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 11, Commit::default().with("api", 10))?;
    for n in 0..3 {
        run.commit(|commit| commit.with("api", 2));
        run.pass(SignedDuration::from_secs(54 + 4 * n));
        run.commit(|commit| commit.with("api", 10));
        run.pass(minutes(4));
        run.well()?;
    }
    run.comes_to_rest(minutes(30))
}

fn interruption(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 12, Commit::default().with("api", 8))?;
    let taken = run.machines().first().map(|machine| machine.id.clone()).ok_or("no machine")?;
    run.warn(&taken);
    let cordoned = |run: &Simulation| {
        run.observed().node_for_instance(&taken).is_none_or(|node| node.unschedulable)
    };
    let soon = run.until(SignedDuration::from_secs(5), cordoned);
    run.well()?;
    is(soon, || "it was not cordoned within 5 seconds".to_owned())?;
    run.pass(SignedDuration::from_secs(110));
    let observed = run.observed();
    let on = |node: &fleetwright::model::observed::Node| {
        observed
            .pods
            .iter()
            .filter(|p| p.is_active() && p.node.as_ref() == Some(&node.name))
            .count()
    };
    let left = observed.node_for_instance(&taken).map_or(0, on);
    is(left == 0, || format!("{left} pods were on it to the end"))?;
    run.shared.world.reclaim_instance(&taken);
    run.comes_to_rest(minutes(15))?;
    is(run.shared.queue.borrow().len() == 0, || "the message is still there".to_owned())
}

fn many_messages(catalog: &Rc<Catalog>) -> ScenarioResult {
    const MESSAGES: u64 = 15_000;
    let mut run = settled(catalog, 13, Commit::default().with("api", 8))?;
    let taken = run.machines().first().map(|machine| machine.id.clone()).ok_or("no machine")?;
    let begun = run.now();
    for n in 1..MESSAGES {
        // Of an account in which others launch and end instances all the time.
        let detail = format!(r#"{{"instance-id":"i-f{n:016x}","state":"terminated"}}"#);
        run.message("EC2 Instance State-change Notification", "aws.ec2", &detail);
    }
    run.warn(&taken);
    let made = |run: &Simulation| run.status().and_then(|s| s.counters.get("plans.made").copied());
    let before = made(&run);
    let drained = run.until(minutes(10), |run| run.shared.queue.borrow().len() == 0);
    run.well()?;
    is(drained, || format!("{} messages are left", run.shared.queue.borrow().len()))?;
    let took = run.now().duration_since(begun).as_secs();
    is(took <= 300, || format!("they took {took} s"))?;
    // What was taken off is known once the answers are in.
    run.pass(minutes(1));
    let status = run.status().ok_or("nobody lives")?;
    let acknowledged = status.counters.get("messages.acknowledged").copied();
    is(acknowledged >= Some(MESSAGES), || format!("{acknowledged:?} were acknowledged"))?;
    // Machines of others change no plan, and throw none away.
    let plans = made(&run).unwrap_or(0) - before.unwrap_or(0);
    is(plans <= 30, || format!("{plans} plans were made meanwhile"))?;
    is(run.shared.kept.borrow().interruptions.len() <= 1, || {
        "others' machines are kept".to_owned()
    })?;
    run.shared.world.reclaim_instance(&taken);
    run.comes_to_rest(minutes(10))
}

fn reclaimed_at_once(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 14, Commit::default().with("api", 8))?;
    let taken = run.machines().first().map(|machine| machine.id.clone()).ok_or("no machine")?;
    run.shared.world.reclaim_instance(&taken);
    run.comes_to_rest(minutes(10))?;
    let status = run.status().ok_or("nobody lives")?;
    is(status.terminating.is_empty(), || "a machine that is gone still goes".to_owned())
}

fn stuck_node(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 4) };
    let mut run = settled(catalog, 15, commit)?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.pass(minutes(3));
    // Whatever drains now holds up no launch.
    run.commit(|commit| commit.with("jobs", 12));
    let all = |run: &Simulation| {
        let observed = run.observed();
        observed.pods.iter().all(|pod| !pod.is_active() || pod.node.is_some())
    };
    let soon = run.until(minutes(3), all);
    run.well()?;
    is(soon, || "pods wait for a node that is stuck".to_owned())
}

fn throttled(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(16, Commit::default().with("api", 12), catalog);
    run.faults(Faults { reads: 500, writes: 800, ..Faults::default() });
    run.pass(minutes(15));
    run.well()?;
    run.faults(Faults::default());
    run.comes_to_rest(minutes(20))
}

fn clock_jumps(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 17, Commit::default())?;
    for (n, hours) in [-2, 3, 0, -1, 0].into_iter().enumerate() {
        run.skew(0, SignedDuration::from_hours(hours));
        let replicas = if n % 2 == 0 { 10 } else { 5 };
        run.commit(|commit| commit.with("api", replicas));
        run.pass(minutes(6));
        run.well()?;
    }
    run.comes_to_rest(minutes(30))
}

fn restart_changes_nothing(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 18, Commit::default().with("api", 8))?;
    let before = run.shared.asked.borrow().len();
    for _ in 0..5 {
        run.kill(0);
        run.start(0);
        run.pass(minutes(5));
    }
    run.well()?;
    let calls = run.shared.asked.borrow().len() - before;
    is(calls == 0, || format!("{calls} writes after restarts"))
}

fn image_drifts(catalog: &Rc<Catalog>) -> ScenarioResult {
    let slow = "removals: { most: 1, within: 2m }, massRemoval: 100%".to_owned();
    let commit = Commit { controller: slow, ..Commit::default().with("api", 16) };
    let mut run = settled(catalog, 19, commit)?;
    let old: Vec<InstanceId> = run.machines().iter().map(|machine| machine.id.clone()).collect();
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.comes_to_rest(minutes(120))?;
    let left = run.machines().iter().filter(|machine| old.contains(&machine.id)).count();
    is(left == 0, || format!("{left} machines of {} are of the old image", old.len()))
}

fn kubernetes_gone(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 20, Commit::default().with("api", 8))?;
    let before = run.machines().len();
    run.faults(Faults { kubernetes: true, ..Faults::default() });
    run.commit(|commit| commit.with("api", 0));
    run.pass(minutes(20));
    run.well()?;
    is(run.machines().len() == before, || "machines went".to_owned())?;
    run.faults(Faults::default());
    run.comes_to_rest(minutes(30))
}

fn mass_unready(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 21, Commit::default().with("api", 30))?;
    let machines = run.machines();
    is(machines.len() >= 6, || format!("only {} machines", machines.len()))?;
    // Nothing is wrong with them; whoever asks them is cut off.
    let broken: Vec<InstanceId> =
        machines.iter().take(machines.len() - 1).map(|machine| machine.id.clone()).collect();
    let before = run.checks.borrow().removals();
    for id in &broken {
        run.shared.world.stop_kubelet(id);
    }
    run.commit(|commit| commit.with("jobs", 0));
    run.pass(minutes(50));
    run.well()?;
    let removed = run.checks.borrow().removals() - before;
    is(removed == 0, || format!("{removed} machines were removed"))
}

fn mass_removal(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { controller: "removals: { most: 100% }".to_owned(), ..Commit::default() };
    let mut run = settled(catalog, 22, commit.with("api", 40))?;
    let before = run.machines().len();
    is(before >= 5, || format!("only {before} machines"))?;
    // What every pod asks for shrinks to a tenth: most of the fleet could go, with pods on it.
    run.commit(|commit| Commit { cpu: 70, ..commit });
    run.pass(minutes(20));
    run.well()?;
    is(run.machines().len() == before, || "machines went".to_owned())?;
    let status = run.status().ok_or("nobody lives")?;
    let latched = status.breakers.first().map(|breaker| breaker.name.clone());
    is(latched.as_deref() == Some("mass-removal"), || format!("{latched:?} latched"))?;
    // Nor does a restart open it.
    run.kill(0);
    run.start(0);
    run.pass(minutes(10));
    is(run.machines().len() == before, || "machines went after a restart".to_owned())?;
    let shown = run.status().and_then(|status| status.plan).ok_or("no plan is shown")?;
    let reset = |digest| {
        let (breaker, by) = ("mass-removal".to_owned(), "alice".to_owned());
        AuthorizedRequest::Reset { breaker, digest, by }
    };
    // Whoever has seen another plan has approved nothing of this one.
    run.ask(0, reset(Some("sha256:another".into())));
    run.pass(minutes(5));
    is(run.machines().len() == before, || "machines went that nobody approved".to_owned())?;
    run.ask(0, reset(Some(shown.digest().clone())));
    run.comes_to_rest(minutes(60))?;
    let after = run.machines().len();
    is(after * 2 < before, || format!("{after} machines of {before} are left"))
}

fn shrinks(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "removals: { most: 1 }, massRemoval: 100%".to_owned();
    let commit = Commit { controller, ..Commit::default() };
    let mut run = settled(catalog, 23, commit.with("api", 24))?;
    let before = run.machines().len();
    is(before >= 4, || format!("only {before} machines"))?;
    run.commit(|commit| commit.with("api", 3).with("jobs", 0));
    run.comes_to_rest(minutes(120))?;
    let after = run.machines().len();
    is(after + 2 < before, || format!("{before} machines became {after}"))
}

fn ci_applies(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit {
        apply: "by: ci".to_owned(),
        controller: "ciPatience: 15m, removals: { most: 100% }, massRemoval: 100%".to_owned(),
        ..Commit::default().with("api", 12)
    };
    let mut run = settled(catalog, 23, commit)?;
    let before = run.machines().len();
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.pass(minutes(10));
    run.well()?;
    let status = run.status().ok_or("nobody lives")?;
    is(status.repository.waiting.is_some(), || "the merge does not wait".to_owned())?;
    is(run.checks.borrow().removals() == 0, || "machines went".to_owned())?;
    // What is taken back meanwhile is replaced all the same.
    let taken = run.machines().first().map(|machine| machine.id.clone()).ok_or("no machine")?;
    run.shared.world.reclaim_instance(&taken);
    let replaced = run.until(minutes(4), |run| {
        let observed = run.observed();
        run.machines().len() == before
            && observed.pods.iter().all(|pod| !pod.is_active() || pod.node.is_some())
    });
    run.well()?;
    is(replaced, || "what was taken back is not replaced".to_owned())?;
    run.comes_to_rest(minutes(60))
}

fn ci_restarts(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit {
        apply: "by: ci".to_owned(),
        controller: "ciPatience: 30m, removals: { most: 100% }, massRemoval: 100%".to_owned(),
        ..Commit::default().with("api", 12)
    };
    let mut run = settled(catalog, 26, commit)?;
    let before = run.machines().len();
    let served = run.status().and_then(|status| status.repository.commit);
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.pass(minutes(2));
    // Restarts that come faster than the patience ends must not make it begin anew.
    for _ in 0..4 {
        run.kill(0);
        run.start(0);
        let taken = run.machines().first().map(|machine| machine.id.clone()).ok_or("no machine")?;
        run.shared.world.reclaim_instance(&taken);
        let replaced = run.until(minutes(4), |run| {
            let observed = run.observed();
            run.machines().len() == before
                && observed.pods.iter().all(|pod| !pod.is_active() || pod.node.is_some())
        });
        run.well()?;
        is(replaced, || "what was taken back after a restart is not replaced".to_owned())?;
        let now = run.status().and_then(|status| status.repository.commit);
        is(now == served, || format!("{now:?} is served"))?;
        is(run.checks.borrow().removals() == 0, || "machines went".to_owned())?;
        run.pass(minutes(3));
    }
    let begun = run.now();
    let adopted = run.until(minutes(30), |run| {
        run.status().is_some_and(|status| status.repository.commit != served)
    });
    run.well()?;
    let waited = run.now().duration_since(begun).as_mins();
    is(adopted && waited <= 20, || format!("the patience lasted {waited} minutes more"))?;
    run.comes_to_rest(minutes(60))
}

fn suspended(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 24, Commit::default())?;
    let before = run.machines().len();
    let until = run.now().checked_add(minutes(10)).ok();
    let (reason, by) = ("a migration".to_owned(), "alice".to_owned());
    run.ask(0, AuthorizedRequest::Suspend { reason, until, by });
    run.pass(MINUTE);
    run.commit(|commit| commit.with("api", 16));
    run.pass(minutes(5));
    is(run.machines().len() == before, || "something was launched".to_owned())?;
    run.kill(0);
    run.start(0);
    run.pass(minutes(2));
    is(run.machines().len() == before, || "a restart ended it".to_owned())?;
    run.comes_to_rest(minutes(20))
}

fn ends_in_order(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("7".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = settled(catalog, 25, commit)?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    let drains = |run: &Simulation| run.observed().nodes.values().any(|node| node.unschedulable);
    is(run.until(minutes(10), drains), || "nothing is drained".to_owned())?;
    run.end(0);
    run.pass(minutes(2));
    run.well()?;
    let left = run.observed().nodes.values().filter(|node| node.unschedulable).count();
    is(left == 0, || format!("{left} nodes are left cordoned"))
}
