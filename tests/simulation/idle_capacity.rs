//! Scenarios with intended idle capacity, and modes that remove nothing.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::observed::{Instance, tag};

use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, is, minutes, settled};
use super::repository::Commit;

/// The stories, by what they are about.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("static: an empty static pool blocks nothing", fixed_size),
    ("buffers: a large unused buffer blocks nothing", large_buffer),
    ("modes: additive mode asks for no removal approval", additive),
];

/// Returns that nothing keeps the loop from launching.
fn launches_on(run: &Simulation) -> ScenarioResult {
    run.well()?;
    let status = run.status().ok_or("nobody lives")?;
    is(status.breakers.is_empty(), || format!("{:?}", status.breakers))?;
    is(status.quarantined.is_empty(), || format!("{:?}", status.quarantined))
}

/// Has `api` need another machine, beside machines that stand empty; returns once it has it.
fn needs_more(run: &mut Simulation) -> ScenarioResult {
    let before = run.machines().len();
    run.commit(|commit| commit.with("jobs", 60));
    let came = run.until(minutes(10), |run| {
        let pods = run.observed().pods;
        pods.len() > 60 && pods.iter().all(|pod| pod.node.is_some())
    });
    is(came && run.machines().len() > before, || "pods wait".to_owned())?;
    launches_on(run)
}

fn fixed_size(catalog: &Rc<Catalog>) -> ScenarioResult {
    let pool = "---\napiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: { name: fixed }\nspec:\n  replicas: 12\n  \
                template:\n    spec:\n      taints: [{ key: kept, value: free, effect: NoSchedule }]\n      \
                requirements:\n      - { key: node.kubernetes.io/instance-type, operator: In, values: [c5.large] }\n      \
                nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: web }\n";
    let mut run = settled(catalog, 70, Commit { objects: pool.to_owned(), ..Commit::default() })?;
    let fixed = |run: &Simulation| {
        let is_of = |i: &&Instance| i.tags.get(tag::POOL).is_some_and(|pool| pool == "fixed");
        run.machines().iter().filter(is_of).count()
    };
    is(fixed(&run) == 12, || format!("{} machines", fixed(&run)))?;
    run.pass(minutes(30));
    launches_on(&run)?;
    needs_more(&mut run)?;
    let larger = pool.replace("replicas: 12", "replicas: 18");
    run.commit(|commit| Commit { objects: larger, ..commit });
    let grew = run.until(minutes(10), |run| fixed(run) == 18);
    is(grew, || format!("{} machines of 18", fixed(&run)))?;
    run.pass(minutes(10));
    launches_on(&run)
}

fn large_buffer(catalog: &Rc<Catalog>) -> ScenarioResult {
    let objects = "---\napiVersion: autoscaling.x-k8s.io/v1beta1\nkind: CapacityBuffer\nmetadata: { name: \
                   room, namespace: web }\nspec:\n  scalableRef: { apiGroup: apps, kind: Deployment, \
                   name: api }\n  replicas: 24\n";
    let commit = Commit { cpu: 1500, objects: objects.to_owned(), ..Commit::default() };
    let mut run = settled(catalog, 71, commit)?;
    run.pass(minutes(30));
    let nodes = run.observed().nodes.len();
    is(nodes >= 12, || format!("{nodes} nodes"))?;
    launches_on(&run)?;
    needs_more(&mut run)
}

fn additive(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "removals: { most: 100% }".to_owned();
    let commit = Commit { mode: "additive", controller, ..Commit::default() };
    let mut run = settled(catalog, 72, commit.with("api", 40))?;
    let before = run.machines().len();
    run.commit(|commit| Commit { cpu: 70, ..commit });
    run.pass(minutes(30));
    launches_on(&run)?;
    is(run.checks.borrow().removals() == 0, || "machines went".to_owned())?;
    // In the other mode the same calls for somebody.
    run.commit(|commit| Commit { mode: "full", ..commit });
    let called = run
        .until(minutes(10), |run| run.status().is_some_and(|status| !status.breakers.is_empty()));
    run.well()?;
    is(called && run.machines().len() == before, || "so many went unasked".to_owned())
}
