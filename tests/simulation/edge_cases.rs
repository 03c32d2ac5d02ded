//! Scenarios without external faults: signal floods, reused names, do-not-disrupt periods.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::InstanceId;
use fleetwright::simulator::OfferingOutage;
use jiff::SignedDuration;

use super::environment::{CallKind, Faults};
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::Commit;

/// Scenarios by incident.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("core-2077: a flood of signals delays neither running nor due work", signal_flood),
    ("do-not-disrupt: a do-not-disrupt duration is honored", do_not_disrupt_duration),
    ("consolidateAfter: a node stays for its consolidateAfter period", consolidate_after_period),
    ("karpenter-2734: a reused node name belongs to another instance", reused_node_name),
    ("karpenter-9175: a rejected launch blocks no other launch", rejected_launch),
    ("karpenter-oci-97: a crash between two offerings of one launch", crash_between_offerings),
    (
        "karpenter-5373: an image rolls out once within the budget across restarts",
        rollout_across_restarts,
    ),
];

fn rejected_launch(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 76, Commit::default())?;
    run.faults(Faults { writes: 1_000, ..Faults::default() });
    run.commit(|commit| commit.with("api", 12));
    // An apply ends after five calls, five seconds apart.
    run.advance(SignedDuration::from_secs(40));
    run.check()?;
    run.faults(Faults::default());
    // This plan has no earlier calls.
    run.commit(|commit| commit.with("api", 14));
    let asked = run.now();
    let serves = |run: &Simulation| {
        let observed = run.observed();
        observed.pods.iter().filter(|pod| pod.is_active() && pod.node.is_some()).count() >= 16
    };
    let soon = run.wait_until(minutes(4), serves);
    run.check()?;
    let took = run.now().duration_since(asked).as_secs();
    // Nodes take a minute to become Ready. A call in doubt would add two more.
    ensure(soon && took <= 110, || format!("it took {took} s"))?;
    run.converge(minutes(20))
}

fn crash_between_offerings(catalog: &Rc<Catalog>) -> ScenarioResult {
    for n in 0..12_i32 {
        let mut run = converged(catalog, 77, Commit::default())?;
        let before = run.instances().len();
        let types = ["m5.large", "c5.large"].map(|kind| OfferingOutage {
            instance_type: Some(kind.into()),
            ..OfferingOutage::default()
        });
        run.shared.world.set_unavailable(types.into());
        let asked = run.shared.calls.borrow().len();
        run.commit(|commit| commit.with("api", 10));
        let launches = |run: &Simulation| {
            let calls = run.shared.calls.borrow();
            calls.iter().skip(asked).filter(|a| matches!(a.kind, CallKind::Launch(..))).count()
        };
        run.wait_until(minutes(2), |run| launches(run) > 0);
        // The crash falls at various moments between the replies to the first and the next
        // offerings.
        run.advance(SignedDuration::from_millis(i64::from(n * 60)));
        run.kill(0);
        // The capacity is back before the restart.
        run.shared.world.set_unavailable(Vec::new());
        run.start(0);
        run.converge(minutes(30)).map_err(|why| format!("{n}: {why}"))?;
        let (all, active) = (run.checks.borrow().launches(), run.instances().len());
        let removed = run.checks.borrow().removals();
        ensure(all - removed == active && all <= before + 4, || {
            format!("{n}: {all} launched, {removed} removed, {before} instances became {active}")
        })?;
    }
    Ok(())
}

fn signal_flood(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 70, Commit::default().with("api", 8))?;
    let interrupted =
        run.instances().first().map(|instance| instance.id.clone()).ok_or("no instance")?;
    run.commit(|commit| commit.with("api", 14));
    run.send_interruption_warning(&interrupted);
    for _ in 0..10 {
        run.flood(SignedDuration::from_secs(10));
        // Renews the lease between the floods.
        run.advance(SignedDuration::from_secs(1));
        run.check()?;
    }
    let observed = run.observed();
    let waiting = observed.pods.iter().filter(|p| p.is_active() && p.node.is_none()).count();
    ensure(waiting == 0, || format!("{waiting} pods are pending after 110 s of signals"))?;
    let node = observed.node_for_instance(&interrupted).map(|node| node.name.clone());
    let left = observed.pods.iter().filter(|p| p.is_active() && node.is_some() && p.node == node);
    let left = left.count();
    ensure(left == 0, || format!("{left} pods are left on the interrupted instance"))?;
    run.shared.world.reclaim_instance(&interrupted);
    run.converge(minutes(20))
}

fn instances_of_image<'r>(
    run: &'r Simulation,
    image: &'r str,
) -> impl Iterator<Item = InstanceId> + 'r {
    run.instances().into_iter().filter(move |i| i.image.contains(image)).map(|instance| instance.id)
}

fn do_not_disrupt_duration(catalog: &Rc<Catalog>) -> ScenarioResult {
    let annotations = "karpenter.sh/do-not-disrupt: 10m".to_owned();
    let commit = Commit { annotations, ..Commit::default().with("api", 8).with("jobs", 0) };
    let mut run = Simulation::new(71, commit, catalog);
    let placed = |run: &Simulation| {
        let observed = run.observed();
        observed.pods.len() == 8 && observed.pods.iter().all(|pod| pod.node.is_some())
    };
    ensure(run.wait_until(minutes(10), placed), || "pods are pending".to_owned())?;
    let since = run.now();
    let old: Vec<InstanceId> = instances_of_image(&run, "v20260901").collect();
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.advance(minutes(8));
    run.check()?;
    let left = instances_of_image(&run, "v20260901").filter(|id| old.contains(id)).count();
    ensure(left == old.len(), || format!("{left} of {} are left after 8 minutes", old.len()))?;
    ensure(instances_of_image(&run, "v20261001").count() == 0, || {
        "an instance was launched although no node may be removed".to_owned()
    })?;
    let rolled =
        run.wait_until(minutes(40), |run| instances_of_image(run, "v20260901").count() == 0);
    run.check()?;
    let took = run.now().duration_since(since).as_mins();
    ensure(rolled, || format!("instances of the old image are left after {took} minutes"))?;
    ensure(took >= 10, || format!("it took {took} minutes"))?;
    run.converge(minutes(20))
}

fn consolidate_after_period(catalog: &Rc<Catalog>) -> ScenarioResult {
    let disruption =
        "disruption: { consolidateAfter: 10m, budgets: [{ nodes: '100%' }] }".to_owned();
    let commit = Commit { disruption, ..Commit::default().with("api", 20) };
    let mut run = converged(catalog, 72, commit)?;
    let before = run.instances().len();
    run.commit(|commit| commit.with("api", 2));
    run.advance(minutes(9));
    run.check()?;
    let left = run.instances().len();
    ensure(left == before, || format!("{left} of {before} instances are left after 9 minutes"))?;
    let status = run.status().and_then(|status| status.plan).ok_or("no plan")?;
    let waits = status
        .blocked
        .values()
        .any(|held| held.message.contains("within consolidateAfter of the pool"));
    ensure(waits, || format!("no change is blocked by consolidateAfter: {:?}", status.blocked))?;
    // A new process has observed no departure of a pod, so its wait starts again.
    run.kill(0);
    run.start(0);
    run.advance(minutes(8));
    run.check()?;
    ensure(run.instances().len() == before, || {
        "instances were removed after a restart".to_owned()
    })?;
    run.converge(minutes(40))?;
    ensure(run.instances().len() < before, || "no instance was removed".to_owned())
}

fn reused_node_name(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 73, Commit::default().with("api", 8))?;
    let interrupted =
        run.instances().first().map(|instance| instance.id.clone()).ok_or("no instance")?;
    let name = run
        .observed()
        .node_for_instance(&interrupted)
        .map(|node| node.name.clone())
        .ok_or("no node")?;
    // Nodes are named by their address, and the next instance receives the freed address.
    run.send_interruption_warning(&interrupted);
    run.advance(minutes(1));
    run.shared.world.reclaim_instance(&interrupted);
    let free = run.wait_until(minutes(10), |run| !run.observed().nodes.contains_key(&name));
    ensure(free, || "the node of the terminated instance still exists".to_owned())?;
    run.shared.world.set_next_node_name(name.clone());
    run.commit(|commit| commit.with("api", 14));
    run.converge(minutes(30))?;
    let observed = run.observed();
    let node = observed.nodes.get(&name).ok_or("no new node has the name")?;
    ensure(node.instance.as_ref() != Some(&interrupted), || {
        "the node belongs to the old instance".to_owned()
    })?;
    // No instance keeps running without a node, and the node with the reused name stays.
    run.advance(minutes(30));
    run.check()?;
    let there = run.observed().nodes.get(&name).map(|node| node.uid.clone());
    ensure(there == observed.nodes.get(&name).map(|node| node.uid.clone()), || {
        "the node was removed".to_owned()
    })
}

fn rollout_across_restarts(catalog: &Rc<Catalog>) -> ScenarioResult {
    let slow = "removals: { most: 2, within: 3m }, massRemoval: 100%".to_owned();
    let commit = Commit {
        controller: slow,
        budget: Some("75%".to_owned()),
        ..Commit::default().with("api", 16)
    };
    let mut run = converged(catalog, 75, commit)?;
    let before = run.instances().len();
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    let begun = run.now();
    for n in 0..40 {
        run.advance(minutes(1));
        run.check()?;
        let observed = run.observed();
        let up = observed.pods.iter().filter(|pod| pod.is_active() && pod.node.is_some()).count();
        ensure(up >= 12, || format!("{up} pods are up in minute {n}"))?;
        if n == 7 {
            run.kill(0);
            run.start(0);
        }
        if instances_of_image(&run, "v20260901").count() == 0 {
            break;
        }
    }
    let left = instances_of_image(&run, "v20260901").count();
    ensure(left == 0, || format!("{left} of {before} instances have the old image"))?;
    let took = run.now().duration_since(begun).as_mins();
    let least = i64::try_from(before).unwrap_or(0) / 2 * 3 - 6;
    ensure(took >= least, || format!("{before} instances were removed within {took} minutes"))?;
    run.converge(minutes(20))?;
    let launched = run.checks.borrow().launches();
    run.advance(minutes(60));
    run.check()?;
    ensure(run.checks.borrow().launches() == launched, || "an instance drifted again".to_owned())
}
