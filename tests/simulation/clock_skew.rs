//! Scenarios with wrong clocks, stale observations and lost replies.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::InstanceId;
use jiff::SignedDuration;

use super::environment::Faults;
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::Commit;

/// Scenarios by fault.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    (
        "clocks: a clock that is ahead terminates no instance with pods early",
        clock_ahead_before_deadline,
    ),
    (
        "clocks: launches by a lagging clock count for the next leader",
        clock_behind_in_launch_budget,
    ),
    ("clocks: removals by a lagging clock count after a restart", clock_behind_in_removal_budget),
    (
        "core-3185: an instance reported before its node is terminated after its pods",
        interruption_before_observation,
    ),
    (
        "karpenter-5400: an interrupted instance is terminated after an early stop message",
        premature_stop_message,
    ),
    (
        "karpenter-5400: an abandoned drain is cordoned before its message is deleted",
        drain_abandoned_by_apply,
    ),
    (
        "cluster-autoscaler-6795: a replacement that is never Ready blocks no other replacement",
        replacement_never_ready,
    ),
];

fn seconds(n: i64) -> SignedDuration {
    SignedDuration::from_secs(n)
}

fn pods_on(run: &Simulation, id: &InstanceId) -> usize {
    let observed = run.observed();
    let Some(node) = observed.node_for_instance(id) else { return 0 };
    let on = |pod: &fleetwright::model::observed::Pod| {
        pod.is_active() && !pod.mirror && pod.node.as_ref() == Some(&node.name)
    };
    observed.pods.iter().filter(|pod| on(pod)).count()
}

fn clock_ahead_before_deadline(catalog: &Rc<Catalog>) -> ScenarioResult {
    for ahead in [30, 60, 110] {
        let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
        let mut run = converged(catalog, 90, commit)?;
        let instances = run.instances();
        let interrupted = instances.iter().find(|instance| pods_on(&run, &instance.id) > 1);
        let interrupted =
            interrupted.map(|instance| instance.id.clone()).ok_or("no instance has pods")?;
        run.skew(0, seconds(ahead));
        run.send_interruption_warning(&interrupted);
        run.advance(seconds(119));
        run.check().map_err(|why| format!("{ahead} s ahead: {why}"))?;
        let left = pods_on(&run, &interrupted);
        ensure(left > 0, || format!("{ahead} s ahead: the instance was terminated with its pods"))?;
        run.shared.world.reclaim_instance(&interrupted);
        run.commit(|commit| Commit { budget: None, ..commit });
        run.skew(0, SignedDuration::ZERO);
        run.converge(minutes(40))?;
    }
    Ok(())
}

fn clock_behind_in_launch_budget(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "launches: { most: 3, within: 5m }, massRemoval: 100%".to_owned();
    let commit = Commit { controller, ..Commit::default() };
    let mut run = converged(catalog, 91, commit)?;
    run.start(1);
    run.advance(seconds(5));
    run.skew(0, minutes(-4));
    run.advance(minutes(6));
    let before = run.checks.borrow().launches();
    run.commit(|commit| commit.with("api", 12));
    let launched = |run: &Simulation| run.checks.borrow().launches() - before;
    ensure(run.wait_until(minutes(2), |run| launched(run) >= 2), || {
        "nothing was launched".to_owned()
    })?;
    run.advance(seconds(10));
    let begun = launched(&run);
    run.commit(|commit| commit.with("jobs", 14));
    run.pause(0, seconds(150));
    let leads =
        run.wait_until(minutes(2), |run| run.shared.lease.get().is_some_and(|(by, _)| by == 1));
    ensure(leads, || "no other replica leads".to_owned())?;
    run.advance(minutes(2));
    run.check()?;
    // Both leaders share one launch budget.
    let launched = launched(&run);
    ensure(launched <= 3, || {
        format!("{launched} were launched, {begun} of them by the first leader")
    })?;
    run.skew(0, SignedDuration::ZERO);
    run.converge(minutes(60))
}

fn clock_behind_in_removal_budget(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "settle: 5s, removals: { most: 1, within: 3m }, massRemoval: 100%".to_owned();
    let commit = Commit { controller, ..Commit::default().with("api", 24) };
    let mut run = converged(catalog, 96, commit)?;
    run.skew(0, minutes(-4));
    run.advance(minutes(6));
    let before = run.checks.borrow().removals();
    // The request of each pod shrinks to a tenth, so that nodes with pods become removable.
    run.commit(|commit| Commit { cpu: 70, ..commit });
    let removed = |run: &Simulation| run.checks.borrow().removals() - before;
    ensure(run.wait_until(minutes(10), |run| removed(run) > 0), || {
        "nothing was removed".to_owned()
    })?;
    run.advance(seconds(20));
    // The new process has a correct clock, and the record of its predecessor.
    run.kill(0);
    run.start(0);
    run.advance(minutes(2));
    run.check()?;
    let removed = removed(&run);
    ensure(removed == 1, || format!("{removed} were removed within three minutes"))?;
    run.converge(minutes(120))
}

fn interruption_before_observation(catalog: &Rc<Catalog>) -> ScenarioResult {
    for n in 0..5 {
        let mut run = converged(catalog, 92, Commit::default())?;
        let before: Vec<InstanceId> = run.instances().into_iter().map(|i| i.id).collect();
        run.commit(|commit| commit.with("api", 12));
        let new = |run: &Simulation| {
            let instances = run.instances().into_iter().map(|instance| instance.id);
            instances.into_iter().find(|id| !before.contains(id) && pods_on(run, id) > 1)
        };
        ensure(run.wait_until(minutes(4), |run| new(run).is_some()), || {
            "no pod was bound".to_owned()
        })?;
        let interrupted = new(&run).ok_or("no instance has pods")?;
        // The last observation may predate the node.
        run.skew(0, minutes(4));
        run.advance(seconds(6 * n));
        run.send_interruption_warning(&interrupted);
        run.advance(seconds(100));
        run.check().map_err(|why| format!("{n}: {why}"))?;
        run.shared.world.reclaim_instance(&interrupted);
        run.skew(0, SignedDuration::ZERO);
        run.converge(minutes(40)).map_err(|why| format!("{n}: {why}"))?;
    }
    Ok(())
}

fn drain_abandoned_by_apply(catalog: &Rc<Catalog>) -> ScenarioResult {
    for n in [0_i64, 4, 6] {
        let commit = Commit { budget: Some("7".to_owned()), ..Commit::default().with("api", 8) };
        let mut run = converged(catalog, 94, commit)?;
        run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
        let drained = |run: &Simulation| {
            let observed = run.observed();
            let node = observed.nodes.values().find(|node| node.unschedulable)?.clone();
            node.instance.filter(|id| pods_on(run, id) > 0)
        };
        ensure(run.wait_until(minutes(10), |run| drained(run).is_some()), || {
            "no drain".to_owned()
        })?;
        let interrupted = drained(&run).ok_or("no drain")?;
        // The lease expires during the pause, which ends the drain.
        run.pause(0, seconds(100));
        run.advance(seconds(95));
        let retired = format!(
            r#"{{"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":[{{"entityValue":"{interrupted}"}}]}}"#
        );
        run.advance(seconds(n));
        run.send_message("AWS Health Event", "aws.health", &retired);
        run.advance(minutes(2));
        run.check().map_err(|why| format!("{n}: {why}"))?;
        run.commit(|commit| Commit { budget: None, ..commit });
        run.converge(minutes(90)).map_err(|why| format!("{n}: {why}"))?;
    }
    Ok(())
}

fn replacement_never_ready(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "removals: { most: 100% }, massRemoval: 100%".to_owned();
    let commit = Commit { controller, ..Commit::default().with("api", 56) };
    let mut run = converged(catalog, 95, commit)?;
    let before: Vec<InstanceId> = run.instances().into_iter().map(|i| i.id).collect();
    ensure(before.len() >= 10, || format!("only {} instances", before.len()))?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    // Its node joins, and its kubelet sends no heartbeat afterwards.
    let joined = |run: &Simulation| {
        let observed = run.observed();
        let mut nodes = observed.nodes.values().filter(|node| !node.ready);
        nodes.find_map(|node| node.instance.clone().filter(|id| !before.contains(id)))
    };
    ensure(run.wait_until(minutes(10), |run| joined(run).is_some()), || {
        "no node joined".to_owned()
    })?;
    let silent = joined(&run).ok_or("no node joined")?;
    run.shared.world.stop_kubelet(&silent);
    run.converge(minutes(90))?;
    let left = run.instances().iter().filter(|instance| before.contains(&instance.id)).count();
    ensure(left == 0, || format!("{left} instances have the old image"))?;
    let breakers = run.status().map(|status| status.breakers).unwrap_or_default();
    ensure(breakers.is_empty(), || format!("{breakers:?}"))
}

fn premature_stop_message(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 93, Commit::default().with("api", 8))?;
    let interrupted =
        run.instances().first().map(|instance| instance.id.clone()).ok_or("no instance")?;
    // A partial observation does not determine the owner of an instance, so its messages stay
    // pending.
    run.faults(Faults { partial: 1_000, ..Faults::default() });
    run.advance(minutes(1));
    let said = format!(r#"{{"instance-id":"{interrupted}","state":"stopped"}}"#);
    run.send_message("EC2 Instance State-change Notification", "aws.ec2", &said);
    run.advance(seconds(5));
    let retired = format!(
        r#"{{"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":[{{"entityValue":"{interrupted}"}}]}}"#
    );
    run.send_message("AWS Health Event", "aws.health", &retired);
    run.advance(seconds(20));
    run.check()?;
    run.faults(Faults::default());
    run.converge(minutes(40))?;
    let left = run.instances().iter().any(|instance| instance.id == interrupted);
    ensure(!left, || "the retiring instance is still active".to_owned())
}
