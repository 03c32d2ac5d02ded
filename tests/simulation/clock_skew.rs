//! Scenarios with wrong clocks, stale observations and lost replies.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::InstanceId;
use jiff::SignedDuration;

use super::environment::Faults;
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, is, minutes, settled};
use super::repository::Commit;

/// The stories, by what goes wrong.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    (
        "clocks: one that is ahead ends nothing with its pods before EC2 takes it",
        ahead_of_a_deadline,
    ),
    ("clocks: launches by a lagging clock count for the next leader", behind_in_a_budget),
    ("clocks: removals by a lagging clock count after a restart", behind_in_removals),
    (
        "core-3185: an instance reported before its node is terminated after its pods",
        told_before_seen,
    ),
    (
        "karpenter-5400: an interrupted instance is terminated after an early stop message",
        said_to_have_stopped,
    ),
    (
        "karpenter-5400: an abandoned drain is cordoned before its message is deleted",
        given_up_by_an_apply,
    ),
    (
        "cluster-autoscaler-6795: one of many replacements that never is Ready costs no more than itself",
        one_never_ready,
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

fn ahead_of_a_deadline(catalog: &Rc<Catalog>) -> ScenarioResult {
    for ahead in [30, 60, 110] {
        let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
        let mut run = settled(catalog, 90, commit)?;
        let machines = run.machines();
        let taken = machines.iter().find(|machine| pods_on(&run, &machine.id) > 1);
        let taken = taken.map(|machine| machine.id.clone()).ok_or("no machine has pods")?;
        run.skew(0, seconds(ahead));
        run.warn(&taken);
        run.pass(seconds(119));
        run.well().map_err(|why| format!("{ahead} s ahead: {why}"))?;
        let left = pods_on(&run, &taken);
        is(left > 0, || format!("{ahead} s ahead: it went with pods that nothing lets go"))?;
        run.shared.world.reclaim_instance(&taken);
        run.commit(|commit| Commit { budget: None, ..commit });
        run.skew(0, SignedDuration::ZERO);
        run.comes_to_rest(minutes(40))?;
    }
    Ok(())
}

fn behind_in_a_budget(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "launches: { most: 3, within: 5m }, massRemoval: 100%".to_owned();
    let commit = Commit { controller, ..Commit::default() };
    let mut run = settled(catalog, 91, commit)?;
    run.start(1);
    run.pass(seconds(5));
    run.skew(0, minutes(-4));
    run.pass(minutes(6));
    let before = run.checks.borrow().launches();
    run.commit(|commit| commit.with("api", 12));
    let launched = |run: &Simulation| run.checks.borrow().launches() - before;
    is(run.until(minutes(2), |run| launched(run) >= 2), || "nothing was launched".to_owned())?;
    run.pass(seconds(10));
    let begun = launched(&run);
    run.commit(|commit| commit.with("jobs", 14));
    run.pause(0, seconds(150));
    let leads = run.until(minutes(2), |run| run.shared.lease.get().is_some_and(|(by, _)| by == 1));
    is(leads, || "nobody else leads".to_owned())?;
    run.pass(minutes(2));
    run.well()?;
    // The budget is one, whoever leads.
    let launched = launched(&run);
    is(launched <= 3, || format!("{launched} were launched, {begun} of them by the first"))?;
    run.skew(0, SignedDuration::ZERO);
    run.comes_to_rest(minutes(60))
}

fn behind_in_removals(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "settle: 5s, removals: { most: 1, within: 3m }, massRemoval: 100%".to_owned();
    let commit = Commit { controller, ..Commit::default().with("api", 24) };
    let mut run = settled(catalog, 96, commit)?;
    run.skew(0, minutes(-4));
    run.pass(minutes(6));
    let before = run.checks.borrow().removals();
    run.commit(|commit| commit.with("api", 0));
    let removed = |run: &Simulation| run.checks.borrow().removals() - before;
    is(run.until(minutes(5), |run| removed(run) > 0), || "nothing was removed".to_owned())?;
    run.pass(seconds(20));
    // What begins anew has another clock, and the record of the one before.
    run.kill(0);
    run.start(0);
    run.pass(minutes(2));
    run.well()?;
    let removed = removed(&run);
    is(removed == 1, || format!("{removed} were removed within three minutes"))?;
    run.comes_to_rest(minutes(120))
}

fn told_before_seen(catalog: &Rc<Catalog>) -> ScenarioResult {
    for n in 0..5 {
        let mut run = settled(catalog, 92, Commit::default())?;
        let before: Vec<InstanceId> = run.machines().into_iter().map(|i| i.id).collect();
        run.commit(|commit| commit.with("api", 12));
        let new = |run: &Simulation| {
            let machines = run.machines().into_iter().map(|machine| machine.id);
            machines.into_iter().find(|id| !before.contains(id) && pods_on(run, id) > 1)
        };
        is(run.until(minutes(4), |run| new(run).is_some()), || "no pod came".to_owned())?;
        let taken = new(&run).ok_or("no machine has pods")?;
        // Only now EC2 says that it goes; the look that the loop has may be from before its node joined.
        run.skew(0, minutes(4));
        run.pass(seconds(6 * n));
        run.warn(&taken);
        run.pass(seconds(100));
        run.well().map_err(|why| format!("{n}: {why}"))?;
        run.shared.world.reclaim_instance(&taken);
        run.skew(0, SignedDuration::ZERO);
        run.comes_to_rest(minutes(40)).map_err(|why| format!("{n}: {why}"))?;
    }
    Ok(())
}

fn given_up_by_an_apply(catalog: &Rc<Catalog>) -> ScenarioResult {
    for n in [0_i64, 4, 6] {
        let commit = Commit { budget: Some("7".to_owned()), ..Commit::default().with("api", 8) };
        let mut run = settled(catalog, 94, commit)?;
        run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
        let drained = |run: &Simulation| {
            let observed = run.observed();
            let node = observed.nodes.values().find(|node| node.unschedulable)?.clone();
            node.instance.filter(|id| pods_on(run, id) > 0)
        };
        is(run.until(minutes(10), |run| drained(run).is_some()), || "no drain".to_owned())?;
        let taken = drained(&run).ok_or("no drain")?;
        // Its lease is over when it goes on, and with that its drain.
        run.pause(0, seconds(100));
        run.pass(seconds(95));
        let retired = format!(
            r#"{{"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":[{{"entityValue":"{taken}"}}]}}"#
        );
        run.pass(seconds(n));
        run.message("AWS Health Event", "aws.health", &retired);
        run.pass(minutes(2));
        run.well().map_err(|why| format!("{n}: {why}"))?;
        run.commit(|commit| Commit { budget: None, ..commit });
        run.comes_to_rest(minutes(90)).map_err(|why| format!("{n}: {why}"))?;
    }
    Ok(())
}

fn one_never_ready(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "removals: { most: 100% }, massRemoval: 100%".to_owned();
    let commit = Commit { controller, ..Commit::default().with("api", 56) };
    let mut run = settled(catalog, 95, commit)?;
    let before: Vec<InstanceId> = run.machines().into_iter().map(|i| i.id).collect();
    is(before.len() >= 10, || format!("only {} machines", before.len()))?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    // Its node has joined, and its kubelet is never heard of again.
    let joined = |run: &Simulation| {
        let observed = run.observed();
        let mut nodes = observed.nodes.values().filter(|node| !node.ready);
        nodes.find_map(|node| node.instance.clone().filter(|id| !before.contains(id)))
    };
    is(run.until(minutes(10), |run| joined(run).is_some()), || "no node joined".to_owned())?;
    let silent = joined(&run).ok_or("no node joined")?;
    run.shared.world.stop_kubelet(&silent);
    run.comes_to_rest(minutes(90))?;
    let left = run.machines().iter().filter(|machine| before.contains(&machine.id)).count();
    is(left == 0, || format!("{left} machines are of the old image"))?;
    let breakers = run.status().map(|status| status.breakers).unwrap_or_default();
    is(breakers.is_empty(), || format!("{breakers:?}"))
}

fn said_to_have_stopped(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 93, Commit::default().with("api", 8))?;
    let taken = run.machines().first().map(|machine| machine.id.clone()).ok_or("no machine")?;
    // While the world cannot be read nobody knows whose an instance is, and messages about it wait.
    run.faults(Faults { partial: 1_000, ..Faults::default() });
    run.pass(minutes(1));
    let said = format!(r#"{{"instance-id":"{taken}","state":"stopped"}}"#);
    run.message("EC2 Instance State-change Notification", "aws.ec2", &said);
    run.pass(seconds(5));
    let retired = format!(
        r#"{{"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":[{{"entityValue":"{taken}"}}]}}"#
    );
    run.message("AWS Health Event", "aws.health", &retired);
    run.pass(seconds(20));
    run.well()?;
    run.faults(Faults::default());
    run.comes_to_rest(minutes(40))?;
    let left = run.machines().iter().any(|machine| machine.id == taken);
    is(!left, || "a machine that is to be retired stays".to_owned())
}
