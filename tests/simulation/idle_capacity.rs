//! Scenarios with intended idle capacity, and modes that remove nothing.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::observed::{Instance, tag};

use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::Commit;

pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("static: an empty static pool blocks nothing", static_pool),
    ("buffers: a large unused buffer blocks nothing", large_buffer),
    ("modes: additive mode asks for no removal approval", additive_mode),
];

/// Checks that no breaker and no quarantine blocks launches.
fn check_launches_allowed(run: &Simulation) -> ScenarioResult {
    run.check()?;
    let status = run.status().ok_or("no replica runs")?;
    ensure(status.breakers.is_empty(), || format!("{:?}", status.breakers))?;
    ensure(status.quarantined.is_empty(), || format!("{:?}", status.quarantined))
}

/// Adds pods that need another instance beside the idle ones, and waits until they run.
fn check_new_pods_run(run: &mut Simulation) -> ScenarioResult {
    let before = run.instances().len();
    run.commit(|commit| commit.with("jobs", 60));
    let came = run.wait_until(minutes(10), |run| {
        let pods = run.observed().pods;
        pods.len() > 60 && pods.iter().all(|pod| pod.node.is_some())
    });
    ensure(came && run.instances().len() > before, || "pods are pending".to_owned())?;
    check_launches_allowed(run)
}

fn static_pool(catalog: &Rc<Catalog>) -> ScenarioResult {
    let pool = "---\napiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: { name: fixed }\nspec:\n  replicas: 12\n  \
                template:\n    spec:\n      taints: [{ key: kept, value: free, effect: NoSchedule }]\n      \
                requirements:\n      - { key: node.kubernetes.io/instance-type, operator: In, values: [c5.large] }\n      \
                nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: web }\n";
    let mut run = converged(catalog, 70, Commit { objects: pool.to_owned(), ..Commit::default() })?;
    let fixed = |run: &Simulation| {
        let is_of = |i: &&Instance| i.tags.get(tag::POOL).is_some_and(|pool| pool == "fixed");
        run.instances().iter().filter(is_of).count()
    };
    ensure(fixed(&run) == 12, || format!("{} instances", fixed(&run)))?;
    run.advance(minutes(30));
    check_launches_allowed(&run)?;
    check_new_pods_run(&mut run)?;
    let larger = pool.replace("replicas: 12", "replicas: 18");
    run.commit(|commit| Commit { objects: larger, ..commit });
    let grew = run.wait_until(minutes(10), |run| fixed(run) == 18);
    ensure(grew, || format!("{} instances of 18", fixed(&run)))?;
    run.advance(minutes(10));
    check_launches_allowed(&run)
}

fn large_buffer(catalog: &Rc<Catalog>) -> ScenarioResult {
    let objects = "---\napiVersion: autoscaling.x-k8s.io/v1beta1\nkind: CapacityBuffer\nmetadata: { name: \
                   room, namespace: web }\nspec:\n  scalableRef: { apiGroup: apps, kind: Deployment, \
                   name: api }\n  replicas: 24\n";
    let commit = Commit { cpu: 1500, objects: objects.to_owned(), ..Commit::default() };
    let mut run = converged(catalog, 71, commit)?;
    run.advance(minutes(30));
    let nodes = run.observed().nodes.len();
    ensure(nodes >= 12, || format!("{nodes} nodes"))?;
    check_launches_allowed(&run)?;
    check_new_pods_run(&mut run)
}

fn additive_mode(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "removals: { most: 100% }".to_owned();
    let commit = Commit { mode: "additive", controller, ..Commit::default() };
    let mut run = converged(catalog, 72, commit.with("api", 40))?;
    let before = run.instances().len();
    run.commit(|commit| Commit { cpu: 70, ..commit });
    run.advance(minutes(30));
    check_launches_allowed(&run)?;
    ensure(run.checks.borrow().removals() == 0, || "instances were removed".to_owned())?;
    // Mode full requires an approval for the same removals.
    run.commit(|commit| Commit { mode: "full", ..commit });
    let called = run.wait_until(minutes(10), |run| {
        run.status().is_some_and(|status| !status.breakers.is_empty())
    });
    run.check()?;
    ensure(called && run.instances().len() == before, || {
        "instances were removed without approval".to_owned()
    })
}
