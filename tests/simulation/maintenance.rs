//! Scenarios of expiry, scheduled retirement and partial node failure.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::controller::{AuthorizedRequest, BlockedReason};
use fleetwright::model::ids::InstanceId;
use fleetwright::model::observed::NodeFault;
use jiff::SignedDuration;

use super::environment::CallKind;
use super::fleet_lifecycle::{first, pods_run};
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, is, minutes, settled};
use super::repository::Commit;

/// The stories.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("expiry: expired instances are replaced one at a time", expiry),
    ("maintenance: a retiring instance is replaced before its deadline", maintenance),
    ("node repair: a partially failed node is replaced unless all fail", parts_fail),
    ("maintenance: observe-only mode only reverts started work", looks_on),
    ("maintenance: pods stay while their replacement is blocked", frozen),
    ("maintenance: a blocked drain is abandoned and the node uncordoned", gives_up),
    ("maintenance: at its deadline an instance is terminated with its pods", forced),
];

fn parts_fail(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 65, Commit::default().with("api", 8))?;
    let broken = first(&run)?;
    let fails = |run: &Simulation, id: &InstanceId, faults: &[NodeFault]| {
        let node = run.observed().node_for_instance(id).cloned();
        if let Some(mut node) = node {
            node.faults = faults.iter().copied().collect();
            run.shared.world.update_node(&node);
        }
    };
    let runs =
        |run: &Simulation, id: &InstanceId| run.machines().iter().any(|machine| machine.id == *id);
    fails(&run, &broken, &[NodeFault::AcceleratedHardware]);
    run.pass(minutes(9));
    is(runs(&run, &broken), || "it went before it could mend itself".to_owned())?;
    let gone = run.until(minutes(15), |run| !runs(run, &broken));
    run.well()?;
    is(gone, || "it still runs".to_owned())?;
    run.comes_to_rest(minutes(20))?;
    // What fails everywhere is mended by no new instance.
    let all: Vec<InstanceId> = run.machines().iter().map(|machine| machine.id.clone()).collect();
    is(all.len() > 1, || "one machine is no pool".to_owned())?;
    for id in &all {
        fails(&run, id, &[NodeFault::Networking]);
    }
    run.pass(minutes(50));
    run.well()?;
    is(all.iter().all(|id| runs(&run, id)), || "machines went for what all have".to_owned())?;
    for id in &all {
        fails(&run, id, &[]);
    }
    run.comes_to_rest(minutes(20))
}

fn expiry(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "removals: { most: 1, within: 2m }, massRemoval: 100%".to_owned();
    let commit = Commit { controller, ..Commit::default().with("api", 8) };
    let mut run = settled(catalog, 58, commit)?;
    let old: Vec<InstanceId> = run.machines().iter().map(|machine| machine.id.clone()).collect();
    run.commit(|commit| Commit { template: "expireAfter: 20m".to_owned(), ..commit });
    let renewed =
        |run: &Simulation| run.machines().iter().all(|machine| !old.contains(&machine.id));
    let gone = run.until(minutes(120), renewed);
    run.well()?;
    is(gone, || "machines live longer than their pool lets them".to_owned())?;
    is(pods_run(&run), || "pods wait for a machine that was replaced too late".to_owned())
}

fn health(run: &mut Simulation, id: &InstanceId, start: Option<SignedDuration>) {
    let start = start.and_then(|span| run.now().checked_add(span).ok());
    let start = start.map(|at| format!(r#","startTime":"{at:.0}""#)).unwrap_or_default();
    let detail = format!(
        r#"{{"service":"EC2","eventTypeCategory":"scheduledChange"{start},"affectedEntities":[{{"entityValue":"{id}"}}]}}"#
    );
    run.message("AWS Health Event", "aws.health", &detail);
}

fn looks_on(catalog: &Rc<Catalog>) -> ScenarioResult {
    // Nothing that is to leave may.
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = settled(catalog, 64, commit)?;
    let retired = first(&run)?;
    let stands = |run: &Simulation, cordoned: bool| {
        run.observed()
            .node_for_instance(&retired)
            .is_some_and(|node| node.unschedulable == cordoned)
    };
    health(&mut run, &retired, Some(SignedDuration::from_hours(6)));
    let cordoned = run.until(minutes(1), |run| stands(run, true));
    is(cordoned, || "it is not cordoned".to_owned())?;
    run.commit(|commit| Commit { mode: "observe", ..commit });
    let freed = run.until(minutes(10), |run| stands(run, false));
    is(freed, || "it takes no pods, and nothing is done about that".to_owned())?;
    // What an apply had begun ends by then.
    run.pass(minutes(40));
    run.well()?;
    run.commit(|commit| Commit { budget: None, ..commit });
    let before = run.shared.asked.borrow().len();
    run.pass(minutes(40));
    run.well()?;
    let calls = run.shared.asked.borrow().len() - before;
    is(calls == 0, || format!("{calls} writes of one that only looks on"))?;
    run.commit(|commit| Commit { mode: "full", ..commit });
    let gone =
        run.until(minutes(30), |run| run.machines().iter().all(|machine| machine.id != retired));
    run.well()?;
    is(gone, || "what it knew to go is forgotten".to_owned())?;
    run.comes_to_rest(minutes(20))
}

fn maintenance(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 59, Commit::default().with("api", 8))?;
    let retired = first(&run)?;
    health(&mut run, &retired, Some(SignedDuration::from_hours(6)));
    let gone =
        run.until(minutes(20), |run| run.machines().iter().all(|machine| machine.id != retired));
    run.well()?;
    is(gone, || "it still runs".to_owned())?;
    let soon = run.until(SignedDuration::from_secs(30), pods_run);
    is(soon, || "pods wait".to_owned())?;
    run.comes_to_rest(minutes(20))
}

fn frozen(catalog: &Rc<Catalog>) -> ScenarioResult {
    let api = |run: &Simulation, id: &InstanceId| {
        let observed = run.observed();
        let node = observed.node_for_instance(id).map(|node| node.name.clone());
        let on = |pod: &&std::sync::Arc<fleetwright::model::observed::Pod>| {
            pod.is_active() && node.is_some() && pod.node == node && pod.name.starts_with("api")
        };
        observed.pods.iter().filter(on).count()
    };
    for start in [Some(SignedDuration::from_hours(2)), None] {
        let mut run = settled(catalog, 63, Commit::default().with("api", 8))?;
        let busy = run.machines().into_iter().map(|machine| machine.id);
        let busy = busy.max_by_key(|id| api(&run, id)).ok_or("no machine")?;
        let (reason, by) = ("a release".to_owned(), "alice".to_owned());
        run.ask(0, AuthorizedRequest::Suspend { reason, until: None, by: by.clone() });
        run.pass(minutes(1));
        let before = api(&run, &busy);
        health(&mut run, &busy, start);
        run.pass(minutes(100));
        run.well()?;
        let left = api(&run, &busy);
        is(before > 0 && left == before, || format!("{left} of {before} pods are left"))?;
        let status = run.status().ok_or("nobody lives")?;
        let told = status.terminating.first().and_then(|going| going.replacement_blocked.as_ref());
        let told = told.is_some_and(|held| matches!(held.reason, BlockedReason::Suspended { .. }));
        is(told, || format!("nobody says what they wait for: {:?}", status.terminating))?;
        if start.is_some() {
            // They have as long to leave as in an apply.
            let soon = run.until(minutes(8), |run| api(run, &busy) == 0);
            is(soon, || "it is about to end, and pods are on it".to_owned())?;
        }
        run.ask(0, AuthorizedRequest::Resume { by });
        run.comes_to_rest(minutes(60))?;
        let left = run.machines().iter().any(|machine| machine.id == busy);
        is(!left, || "what is to be retired still runs".to_owned())?;
    }
    Ok(())
}

fn gives_up(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = settled(catalog, 60, commit)?;
    let on_api = |run: &Simulation, machine: &InstanceId| {
        let observed = run.observed();
        let node = observed.node_for_instance(machine).map(|node| node.name.clone());
        let api = |pod: &fleetwright::model::observed::Pod| pod.name.starts_with("api");
        observed.pods.iter().any(|pod| api(pod) && pod.node == node && node.is_some())
    };
    let machines = run.machines();
    let busy = machines.iter().find(|machine| on_api(&run, &machine.id));
    let busy = busy.map(|machine| machine.id.clone()).ok_or("no machine has a pod of api")?;
    health(&mut run, &busy, None);
    run.pass(minutes(5));
    let cordoned = |run: &Simulation| {
        run.observed().node_for_instance(&busy).is_some_and(|node| node.unschedulable)
    };
    is(cordoned(&run), || "its node is not cordoned".to_owned())?;
    run.pass(minutes(40));
    run.well()?;
    is(!cordoned(&run), || "its node is still cordoned".to_owned())?;
    let given_up = run.status().and_then(|s| s.counters.get("drains.given_up").copied());
    is(given_up == Some(1), || format!("{given_up:?} drains were given up"))?;
    run.comes_to_rest(minutes(40))
}

fn forced(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = settled(catalog, 61, commit)?;
    for machine in run.machines() {
        health(&mut run, &machine.id, Some(minutes(50)));
    }
    run.pass(minutes(45));
    run.well()?;
    let evicts = |call: &&super::environment::RecordedCall| matches!(call.what, CallKind::Evict(_));
    let evictions = run.shared.asked.borrow().iter().filter(evicts).count();
    is(evictions <= 10 * 120, || format!("{evictions} evictions were asked for"))?;
    is(run.checks.borrow().removals() == 0, || "machines went before their time".to_owned())?;
    run.comes_to_rest(minutes(60))?;
    is(run.checks.borrow().removals() > 0, || "no machine went at its deadline".to_owned())
}
