//! Scenarios of expiry, scheduled retirement and partial node failure.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::controller::{AuthorizedRequest, BlockedReason, Counter};
use fleetwright::model::ids::InstanceId;
use fleetwright::model::observed::NodeFault;
use jiff::SignedDuration;

use super::environment::CallKind;
use super::fleet_lifecycle::{first_instance, pods_run};
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::Commit;

pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("expiry: expired instances are replaced one at a time", expiry),
    ("maintenance: a retiring instance is replaced before its deadline", maintenance),
    ("node repair: a partially failed node is replaced unless all fail", partial_node_failure),
    (
        "expiry: at the end of its grace period a drain ends despite disruption budgets",
        ended_by_force,
    ),
    ("expiry: observe-only mode uncordons nodes within their grace period", observed_in_period),
    ("maintenance: observe-only mode only reverts started work", observe_only),
    ("maintenance: pods stay while their replacement is blocked", blocked_replacement),
    ("maintenance: a blocked drain is abandoned and the node uncordoned", abandoned_drain),
    (
        "maintenance: an instance that EC2 does not take at its deadline keeps its pods",
        unconfirmed_deadline,
    ),
];

fn partial_node_failure(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 65, Commit::default().with("api", 8))?;
    let broken = first_instance(&run)?;
    let fails = |run: &Simulation, id: &InstanceId, faults: &[NodeFault]| {
        let node = run.observed().node_for_instance(id).cloned();
        if let Some(mut node) = node {
            node.faults = faults.iter().copied().collect();
            run.shared.world.update_node(&node);
        }
    };
    let runs = |run: &Simulation, id: &InstanceId| {
        run.instances().iter().any(|instance| instance.id == *id)
    };
    fails(&run, &broken, &[NodeFault::AcceleratedHardware]);
    run.advance(minutes(9));
    ensure(runs(&run, &broken), || "the instance was removed before it could recover".to_owned())?;
    let gone = run.wait_until(minutes(15), |run| !runs(run, &broken));
    run.check()?;
    ensure(gone, || "the instance is still active".to_owned())?;
    run.converge(minutes(20))?;
    // A replacement does not fix a failure of all nodes.
    let all: Vec<InstanceId> = run.instances().iter().map(|instance| instance.id.clone()).collect();
    ensure(all.len() > 1, || "the pool has only one instance".to_owned())?;
    for id in &all {
        fails(&run, id, &[NodeFault::Networking]);
    }
    run.advance(minutes(50));
    run.check()?;
    ensure(all.iter().all(|id| runs(&run, id)), || {
        "instances were removed for a failure of all nodes".to_owned()
    })?;
    for id in &all {
        fails(&run, id, &[]);
    }
    run.converge(minutes(20))
}

fn expiry(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "removals: { most: 1, within: 2m }, massRemoval: 100%".to_owned();
    let commit = Commit { controller, ..Commit::default().with("api", 8) };
    let mut run = converged(catalog, 58, commit)?;
    let old: Vec<InstanceId> = run.instances().iter().map(|instance| instance.id.clone()).collect();
    run.commit(|commit| Commit { template: "expireAfter: 20m".to_owned(), ..commit });
    let renewed =
        |run: &Simulation| run.instances().iter().all(|instance| !old.contains(&instance.id));
    let gone = run.wait_until(minutes(120), renewed);
    run.check()?;
    ensure(gone, || "instances outlived expireAfter".to_owned())?;
    ensure(pods_run(&run), || "pods are pending because of a late replacement".to_owned())
}

fn ended_by_force(catalog: &Rc<Catalog>) -> ScenarioResult {
    // The budget allows no eviction.
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = converged(catalog, 66, commit)?;
    let old: Vec<InstanceId> = run.instances().iter().map(|instance| instance.id.clone()).collect();
    let renewed =
        |run: &Simulation| run.instances().iter().all(|instance| !old.contains(&instance.id));
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.advance(minutes(60));
    run.check()?;
    ensure(!renewed(&run), || "the budget was ignored without a grace period".to_owned())?;
    let template = "terminationGracePeriod: 40m".to_owned();
    run.commit(|commit| Commit { template, ..commit });
    run.advance(minutes(38));
    run.check()?;
    ensure(run.instances().iter().any(|instance| old.contains(&instance.id)), || {
        "the drains ended before their period".to_owned()
    })?;
    let cordoned = run.observed().nodes.values().any(|node| node.unschedulable);
    ensure(cordoned, || "no drain is in progress".to_owned())?;
    let gone = run.wait_until(minutes(240), renewed);
    run.check()?;
    ensure(gone, || "the drains did not end".to_owned())?;
    run.converge(minutes(60))?;
    ensure(pods_run(&run), || "pods are pending".to_owned())
}

fn observed_in_period(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit {
        budget: Some("100%".to_owned()),
        template: "terminationGracePeriod: 12h".to_owned(),
        ..Commit::default().with("api", 8)
    };
    let mut run = converged(catalog, 67, commit)?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    let cordoned = |run: &Simulation| run.observed().nodes.values().any(|node| node.unschedulable);
    let begun = run.wait_until(minutes(60), cordoned);
    ensure(begun, || "no drain has begun".to_owned())?;
    run.advance(minutes(45));
    run.check()?;
    ensure(cordoned(&run), || "the drain was reverted within its period".to_owned())?;
    run.commit(|commit| Commit { mode: "observe", ..commit });
    let freed = run.wait_until(minutes(30), |run| !cordoned(run));
    run.check()?;
    ensure(freed, || "a node stayed cordoned".to_owned())
}

fn send_health_event(run: &mut Simulation, id: &InstanceId, start: Option<SignedDuration>) {
    let start = start.and_then(|span| run.now().checked_add(span).ok());
    let start = start.map(|at| format!(r#","startTime":"{at:.0}""#)).unwrap_or_default();
    let detail = format!(
        r#"{{"service":"EC2","eventTypeCategory":"scheduledChange"{start},"affectedEntities":[{{"entityValue":"{id}"}}]}}"#
    );
    run.send_message("AWS Health Event", "aws.health", &detail);
}

fn observe_only(catalog: &Rc<Catalog>) -> ScenarioResult {
    // The budget allows no eviction.
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = converged(catalog, 64, commit)?;
    let retired = first_instance(&run)?;
    let stands = |run: &Simulation, cordoned: bool| {
        run.observed()
            .node_for_instance(&retired)
            .is_some_and(|node| node.unschedulable == cordoned)
    };
    send_health_event(&mut run, &retired, Some(SignedDuration::from_hours(6)));
    let cordoned = run.wait_until(minutes(1), |run| stands(run, true));
    ensure(cordoned, || "the node is not cordoned".to_owned())?;
    run.commit(|commit| Commit { mode: "observe", ..commit });
    let freed = run.wait_until(minutes(10), |run| stands(run, false));
    ensure(freed, || "the node stayed cordoned".to_owned())?;
    // Applies in progress end within this time.
    run.advance(minutes(40));
    run.check()?;
    run.commit(|commit| Commit { budget: None, ..commit });
    let before = run.shared.calls.borrow().len();
    run.advance(minutes(40));
    run.check()?;
    let calls = run.shared.calls.borrow().len() - before;
    ensure(calls == 0, || format!("{calls} writes in observe-only mode"))?;
    run.commit(|commit| Commit { mode: "full", ..commit });
    let gone = run.wait_until(minutes(30), |run| {
        run.instances().iter().all(|instance| instance.id != retired)
    });
    run.check()?;
    ensure(gone, || "the retirement was forgotten".to_owned())?;
    run.converge(minutes(20))
}

fn maintenance(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 59, Commit::default().with("api", 8))?;
    let retired = first_instance(&run)?;
    send_health_event(&mut run, &retired, Some(SignedDuration::from_hours(6)));
    let gone = run.wait_until(minutes(20), |run| {
        run.instances().iter().all(|instance| instance.id != retired)
    });
    run.check()?;
    ensure(gone, || "the instance is still active".to_owned())?;
    let soon = run.wait_until(SignedDuration::from_secs(30), pods_run);
    ensure(soon, || "pods are pending".to_owned())?;
    run.converge(minutes(20))
}

fn blocked_replacement(catalog: &Rc<Catalog>) -> ScenarioResult {
    let api = |run: &Simulation, id: &InstanceId| {
        let observed = run.observed();
        let node = observed.node_for_instance(id).map(|node| node.name.clone());
        let on = |pod: &&std::sync::Arc<fleetwright::model::observed::Pod>| {
            pod.is_active() && node.is_some() && pod.node == node && pod.name.starts_with("api")
        };
        observed.pods.iter().filter(on).count()
    };
    for start in [Some(SignedDuration::from_hours(2)), None] {
        let mut run = converged(catalog, 63, Commit::default().with("api", 8))?;
        let busy = run.instances().into_iter().map(|instance| instance.id);
        let busy = busy.max_by_key(|id| api(&run, id)).ok_or("no instance")?;
        let (reason, by) = ("a release".to_owned(), "alice".to_owned());
        run.send_request(0, AuthorizedRequest::Suspend { reason, until: None, by: by.clone() });
        run.advance(minutes(1));
        let before = api(&run, &busy);
        send_health_event(&mut run, &busy, start);
        run.advance(minutes(100));
        run.check()?;
        let left = api(&run, &busy);
        ensure(before > 0 && left == before, || format!("{left} of {before} pods are left"))?;
        let status = run.status().ok_or("no replica runs")?;
        let is_reported = status
            .interrupted
            .first()
            .and_then(|terminating| terminating.replacement_blocked.as_ref());
        let is_reported =
            is_reported.is_some_and(|held| matches!(held.reason, BlockedReason::Suspended { .. }));
        ensure(is_reported, || format!("no blocker is reported: {:?}", status.interrupted))?;
        if start.is_some() {
            // The pods have the same eviction time as in an apply.
            let soon = run.wait_until(minutes(8), |run| api(run, &busy) == 0);
            ensure(soon, || "the deadline is near, and pods are left".to_owned())?;
        }
        run.send_request(0, AuthorizedRequest::Resume { by });
        run.converge(minutes(60))?;
        let left = run.instances().iter().any(|instance| instance.id == busy);
        ensure(!left, || "the retiring instance is still active".to_owned())?;
    }
    Ok(())
}

fn abandoned_drain(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = converged(catalog, 60, commit)?;
    let on_api = |run: &Simulation, instance: &InstanceId| {
        let observed = run.observed();
        let node = observed.node_for_instance(instance).map(|node| node.name.clone());
        let api = |pod: &fleetwright::model::observed::Pod| pod.name.starts_with("api");
        observed.pods.iter().any(|pod| api(pod) && pod.node == node && node.is_some())
    };
    let instances = run.instances();
    let busy = instances.iter().find(|instance| on_api(&run, &instance.id));
    let busy = busy.map(|instance| instance.id.clone()).ok_or("no instance has a pod of api")?;
    send_health_event(&mut run, &busy, None);
    run.advance(minutes(5));
    let cordoned = |run: &Simulation| {
        run.observed().node_for_instance(&busy).is_some_and(|node| node.unschedulable)
    };
    ensure(cordoned(&run), || "the node is not cordoned".to_owned())?;
    run.advance(minutes(40));
    run.check()?;
    ensure(!cordoned(&run), || "the node is still cordoned".to_owned())?;
    let abandoned = run.status().map(|s| s.counters.get(&Counter::DrainsAbandoned));
    ensure(abandoned == Some(1), || format!("{abandoned:?} drains were abandoned"))?;
    run.converge(minutes(40))
}

fn unconfirmed_deadline(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = converged(catalog, 61, commit)?;
    let pods = |run: &Simulation| -> std::collections::BTreeSet<String> {
        let observed = run.observed();
        let all = observed.pods.iter().filter(|pod| pod.is_active() && pod.name.starts_with("api"));
        all.map(|pod| pod.name.to_string()).collect()
    };
    let before = pods(&run);
    for instance in run.instances() {
        send_health_event(&mut run, &instance.id, Some(minutes(50)));
    }
    run.advance(minutes(45));
    run.check()?;
    let evicts =
        |call: &&super::environment::RecordedCall| matches!(call.kind, CallKind::Evict(..));
    let evictions = run.shared.calls.borrow().iter().filter(evicts).count();
    ensure(evictions <= 10 * 120, || format!("{evictions} evictions were asked for"))?;
    ensure(run.checks.borrow().removals() == 0, || {
        "instances were removed before their deadline".to_owned()
    })?;
    run.converge(minutes(90))?;
    ensure(pods(&run) == before, || "an instance was terminated with its pods".to_owned())?;
    let cordoned = run.observed().nodes.values().any(|node| node.unschedulable);
    ensure(!cordoned, || "a node stayed cordoned".to_owned())
}
