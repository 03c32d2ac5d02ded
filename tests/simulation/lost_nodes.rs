//! Instances without a node: the Node object was deleted, or the kubelet never registered.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::InstanceId;
use jiff::{SignedDuration, Timestamp};

use super::environment::CallKind;
use super::fleet_lifecycle::{first_instance, pods_run};
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::Commit;

pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("lost nodes: a young instance without its node is replaced and ends", deleted_when_young),
    ("lost nodes: an old instance without its node is replaced and ends", deleted_when_old),
    ("lost nodes: an instance that never registers has fifteen minutes", never_registered),
    ("lost nodes: a mass deletion terminates nothing, and its pods run", mass_deletion),
];

/// Returns a commit whose nodes have room for one pod each, or two.
fn commit() -> Commit {
    Commit { cpu: 1600, ..Commit::default() }
}

/// Deletes the Node object of an instance whose kubelet does not register again.
fn delete_node(run: &Simulation, id: &InstanceId) {
    let found =
        run.observed().node_for_instance(id).map(|node| (node.name.clone(), node.uid.clone()));
    if let Some((name, uid)) = found {
        run.shared.world.remove_node_object(&name, &uid);
    }
    run.shared.world.stop_kubelet(id);
}

fn is_active(run: &Simulation, id: &InstanceId) -> bool {
    run.instances().iter().any(|instance| instance.id == *id)
}

/// Returns the number of launches since a time.
fn launches(run: &Simulation, since: Timestamp) -> usize {
    let calls = run.shared.calls.borrow();
    let is_launch = |kind: &CallKind| matches!(kind, CallKind::Launch(_, Some(_)));
    calls.iter().filter(|call| is_launch(&call.kind) && call.began >= since).count()
}

/// Deletes a Node object, and checks when the replacement is requested. The instance then ends.
fn check_replaced(run: &mut Simulation, within: SignedDuration) -> ScenarioResult {
    let id = first_instance(run)?;
    let since = run.now();
    delete_node(run, &id);
    let is_replaced = run.wait_until(within, |run| launches(run, since) > 0);
    run.check()?;
    ensure(is_replaced, || format!("nothing was launched within {within:#}"))?;
    ensure(is_active(run, &id), || "it ended before its replacement was Ready".to_owned())?;
    let has_ended = run.wait_until(minutes(4), |run| !is_active(run, &id));
    run.check()?;
    ensure(has_ended, || "it runs beside its replacement".to_owned())?;
    run.converge(minutes(20))
}

fn deleted_when_young(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 150, commit().with("api", 6))?;
    let launched_at = run.instances().iter().map(|instance| instance.launched_at).min();
    let age = launched_at.map(|at| run.now().duration_since(at)).unwrap_or_default();
    ensure(age < minutes(10), || format!("it is {age:#} old"))?;
    check_replaced(&mut run, minutes(2))
}

fn deleted_when_old(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 151, commit().with("api", 6))?;
    run.advance(minutes(60));
    check_replaced(&mut run, SignedDuration::from_secs(20))
}

fn never_registered(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 152, commit())?;
    let before = run.instances();
    let since = run.now();
    run.commit(|commit| commit.with("api", 6));
    let is_launched = run.wait_until(minutes(2), |run| run.instances().len() > before.len());
    ensure(is_launched, || "nothing was launched".to_owned())?;
    run.advance(SignedDuration::from_secs(5));
    let is_new = |id: &InstanceId| !before.iter().any(|instance| instance.id == *id);
    let silent: Vec<InstanceId> =
        run.instances().into_iter().map(|instance| instance.id).filter(is_new).collect();
    // Three launches without effect would quarantine the pool.
    ensure(silent.len() <= 2, || format!("{} instances", silent.len()))?;
    for id in &silent {
        run.shared.world.stop_kubelet(id);
    }
    run.advance(minutes(14));
    run.check()?;
    let early = launches(&run, since);
    ensure(early == silent.len(), || format!("{early} launches while they start"))?;
    let is_replaced = run.wait_until(minutes(2), |run| launches(run, since) > early);
    run.check()?;
    ensure(is_replaced, || "nothing was launched after 16 minutes".to_owned())?;
    let have_ended = run.wait_until(minutes(5), |run| !silent.iter().any(|id| is_active(run, id)));
    run.check()?;
    ensure(have_ended, || "they run beside their replacement".to_owned())?;
    run.converge(minutes(20))
}

fn mass_deletion(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 153, commit().with("api", 12))?;
    let instances = run.instances();
    ensure(instances.len() >= 6, || format!("only {} instances", instances.len()))?;
    let half = instances.iter().take(instances.len() / 2);
    let half: Vec<InstanceId> = half.map(|instance| instance.id.clone()).collect();
    for id in &half {
        delete_node(&run, id);
    }
    run.advance(SignedDuration::from_secs(5));
    ensure(!pods_run(&run), || "no pod lost its node".to_owned())?;
    // The instances are younger than fifteen minutes.
    let soon = run.wait_until(minutes(5), pods_run);
    run.check()?;
    ensure(soon, || "pods wait for instances whose nodes are gone".to_owned())?;
    let status = run.status().ok_or("no replica runs")?;
    ensure(!status.withheld_repairs.is_empty(), || "no repair is withheld".to_owned())?;
    run.advance(minutes(30));
    run.check()?;
    let left = half.iter().filter(|id| is_active(&run, id)).count();
    ensure(left == half.len(), || format!("{left} of {} instances are left", half.len()))?;
    ensure(pods_run(&run), || "pods are pending".to_owned())
}
