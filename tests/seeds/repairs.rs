//! Machines that go by themselves: too old, to be retired, broken in part.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::fleet::Fault;
use fleetwright::ids::InstanceId;
use fleetwright::reconcile::{Held, Request};
use jiff::SignedDuration;

use super::files::Commit;
use super::hardships::{first, pods_run};
use super::incidents::{End, Story, is, minutes, settled};
use super::outside::What;
use super::run::Run;

/// The stories.
pub(crate) const ALL: &[(&str, Story)] = &[
    ("expiry: machines that are too old are replaced first, one after the other", expiry),
    ("maintenance: a machine that is to be retired is replaced before its time", maintenance),
    ("node repair: a machine of which a part fails is replaced, and not where all do", parts_fail),
    ("maintenance: whoever is told to look on only takes back what was begun", looks_on),
    ("maintenance: pods stay while what is to replace their machine is held back", frozen),
    ("maintenance: a drain that never yields is given up, and its node serves again", gives_up),
    ("maintenance: at its deadline a machine goes with what is left on it", forced),
];

fn parts_fail(catalog: &Rc<Catalog>) -> End {
    let mut run = settled(catalog, 65, Commit::default().with("api", 8))?;
    let broken = first(&run)?;
    let fails = |run: &Run, id: &InstanceId, faults: &[Fault]| {
        let node = run.observed().node_of(id).cloned();
        if let Some(mut node) = node {
            node.faults = faults.iter().copied().collect();
            run.shared.world.change_node(&node);
        }
    };
    let runs = |run: &Run, id: &InstanceId| run.machines().iter().any(|machine| machine.id == *id);
    fails(&run, &broken, &[Fault::AcceleratedHardware]);
    run.pass(minutes(9));
    is(runs(&run, &broken), || "it went before it could mend itself".to_owned())?;
    let gone = run.until(minutes(15), |run| !runs(run, &broken));
    run.well()?;
    is(gone, || "it still runs".to_owned())?;
    run.comes_to_rest(minutes(20))?;
    // What fails everywhere is mended by no new machine.
    let all: Vec<InstanceId> = run.machines().iter().map(|machine| machine.id.clone()).collect();
    is(all.len() > 1, || "one machine is no pool".to_owned())?;
    for id in &all {
        fails(&run, id, &[Fault::Networking]);
    }
    run.pass(minutes(50));
    run.well()?;
    is(all.iter().all(|id| runs(&run, id)), || "machines went for what all have".to_owned())?;
    for id in &all {
        fails(&run, id, &[]);
    }
    run.comes_to_rest(minutes(20))
}

fn expiry(catalog: &Rc<Catalog>) -> End {
    let controller = "removals: { most: 1, within: 2m }, massRemoval: 100%".to_owned();
    let commit = Commit { controller, ..Commit::default().with("api", 8) };
    let mut run = settled(catalog, 58, commit)?;
    let old: Vec<InstanceId> = run.machines().iter().map(|machine| machine.id.clone()).collect();
    run.commit(|commit| Commit { template: "expireAfter: 20m".to_owned(), ..commit });
    let renewed = |run: &Run| run.machines().iter().all(|machine| !old.contains(&machine.id));
    let gone = run.until(minutes(120), renewed);
    run.well()?;
    is(gone, || "machines live longer than their pool lets them".to_owned())?;
    is(pods_run(&run), || "pods wait for a machine that was replaced too late".to_owned())
}

fn health(run: &mut Run, id: &InstanceId, start: Option<SignedDuration>) {
    let start = start.and_then(|span| run.now().checked_add(span).ok());
    let start = start.map(|at| format!(r#","startTime":"{at:.0}""#)).unwrap_or_default();
    let detail = format!(
        r#"{{"service":"EC2","eventTypeCategory":"scheduledChange"{start},"affectedEntities":[{{"entityValue":"{id}"}}]}}"#
    );
    run.message("AWS Health Event", "aws.health", &detail);
}

fn looks_on(catalog: &Rc<Catalog>) -> End {
    // Nothing that is to leave may.
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = settled(catalog, 64, commit)?;
    let retired = first(&run)?;
    let stands = |run: &Run, cordoned: bool| {
        run.observed().node_of(&retired).is_some_and(|node| node.unschedulable == cordoned)
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

fn maintenance(catalog: &Rc<Catalog>) -> End {
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

fn frozen(catalog: &Rc<Catalog>) -> End {
    let api = |run: &Run, id: &InstanceId| {
        let observed = run.observed();
        let node = observed.node_of(id).map(|node| node.name.clone());
        let on = |pod: &&std::sync::Arc<fleetwright::fleet::Pod>| {
            pod.is_active() && node.is_some() && pod.node == node && pod.name.starts_with("api")
        };
        observed.pods.iter().filter(on).count()
    };
    for start in [Some(SignedDuration::from_hours(2)), None] {
        let mut run = settled(catalog, 63, Commit::default().with("api", 8))?;
        let busy = run.machines().into_iter().map(|machine| machine.id);
        let busy = busy.max_by_key(|id| api(&run, id)).ok_or("no machine")?;
        let (reason, by) = ("a release".to_owned(), "alice".to_owned());
        run.ask(0, Request::Suspend { reason, until: None, by: by.clone() });
        run.pass(minutes(1));
        let before = api(&run, &busy);
        health(&mut run, &busy, start);
        run.pass(minutes(100));
        run.well()?;
        let left = api(&run, &busy);
        is(before > 0 && left == before, || format!("{left} of {before} pods are left"))?;
        let status = run.status().ok_or("nobody lives")?;
        let told = status.going.first().and_then(|going| going.held.as_ref());
        let told = told.is_some_and(|held| matches!(held.why, Held::Suspended { .. }));
        is(told, || format!("nobody says what they wait for: {:?}", status.going))?;
        if start.is_some() {
            // They have as long to leave as in an apply.
            let soon = run.until(minutes(8), |run| api(run, &busy) == 0);
            is(soon, || "it is about to end, and pods are on it".to_owned())?;
        }
        run.ask(0, Request::Resume { by });
        run.comes_to_rest(minutes(60))?;
        let left = run.machines().iter().any(|machine| machine.id == busy);
        is(!left, || "what is to be retired still runs".to_owned())?;
    }
    Ok(())
}

fn gives_up(catalog: &Rc<Catalog>) -> End {
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = settled(catalog, 60, commit)?;
    let on_api = |run: &Run, machine: &InstanceId| {
        let observed = run.observed();
        let node = observed.node_of(machine).map(|node| node.name.clone());
        let api = |pod: &fleetwright::fleet::Pod| pod.name.starts_with("api");
        observed.pods.iter().any(|pod| api(pod) && pod.node == node && node.is_some())
    };
    let machines = run.machines();
    let busy = machines.iter().find(|machine| on_api(&run, &machine.id));
    let busy = busy.map(|machine| machine.id.clone()).ok_or("no machine has a pod of api")?;
    health(&mut run, &busy, None);
    run.pass(minutes(5));
    let cordoned = |run: &Run| run.observed().node_of(&busy).is_some_and(|node| node.unschedulable);
    is(cordoned(&run), || "its node is not cordoned".to_owned())?;
    run.pass(minutes(40));
    run.well()?;
    is(!cordoned(&run), || "its node is still cordoned".to_owned())?;
    let given_up = run.status().and_then(|s| s.counters.get("drains.given_up").copied());
    is(given_up == Some(1), || format!("{given_up:?} drains were given up"))?;
    run.comes_to_rest(minutes(40))
}

fn forced(catalog: &Rc<Catalog>) -> End {
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = settled(catalog, 61, commit)?;
    for machine in run.machines() {
        health(&mut run, &machine.id, Some(minutes(50)));
    }
    run.pass(minutes(45));
    run.well()?;
    let evicts = |call: &&super::outside::Asked| matches!(call.what, What::Evict(_));
    let evictions = run.shared.asked.borrow().iter().filter(evicts).count();
    is(evictions <= 10 * 120, || format!("{evictions} evictions were asked for"))?;
    is(run.checks.borrow().removals() == 0, || "machines went before their time".to_owned())?;
    run.comes_to_rest(minutes(60))?;
    is(run.checks.borrow().removals() > 0, || "no machine went at its deadline".to_owned())
}
