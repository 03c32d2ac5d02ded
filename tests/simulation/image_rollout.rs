//! Images released under an unchanged node class.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::InstanceId;
use fleetwright::model::observed::Node;
use fleetwright::plan::wire::DiagnosticSeverity;

use super::environment::{CallKind, Faults};
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, is, minutes, settled};
use super::repository::Commit;

/// The stories.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    (
        "AMIDrift: an image that is released rolls one node at a time, replaced first, and no more",
        released,
    ),
    ("an unresolvable image replaces nothing and is reported", unread),
    ("images released during a rollout converge to the latest", released_again),
];

/// What the class of the stories says, which no commit changes.
const LATEST: &str = "al2023@latest";

fn commit() -> Commit {
    let disruption = "disruption: { consolidateAfter: 0s, budgets: [{ nodes: '1' }] }".to_owned();
    Commit { image: LATEST.to_owned(), disruption, ..Commit::default().with("api", 12) }
}

/// Returns the instances that were made with another image than is meant now.
fn behind(run: &Simulation) -> Vec<InstanceId> {
    let observed = run.observed();
    let now: Vec<_> = observed.resolved.images[LATEST].iter().map(|choice| &choice.id).collect();
    let machines = run.machines().into_iter();
    let behind =
        machines.filter(|m| m.launched_with.image.as_ref().is_none_or(|id| !now.contains(&id)));
    behind.map(|machine| machine.id).collect()
}

fn calls(run: &Simulation) -> (usize, usize) {
    let asked = run.shared.asked.borrow();
    let count = |is: fn(&CallKind) -> bool| asked.iter().filter(|call| is(&call.what)).count();
    (
        count(|what| matches!(what, CallKind::Launch(..))),
        count(|what| matches!(what, CallKind::Terminate(_))),
    )
}

fn released(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 90, commit())?;
    let (before, asked) = (run.machines().len(), calls(&run));
    is(before >= 3 && behind(&run).is_empty(), || format!("{before} machines"))?;
    run.release_image(LATEST);
    is(behind(&run).len() == before, || "the image is no new one".to_owned())?;
    let begun = run.now();
    while !behind(&run).is_empty() {
        run.pass(jiff::SignedDuration::from_secs(1));
        run.well()?;
        let observed = run.observed();
        let serves = |node: &&Node| node.ready && !node.unschedulable;
        let (serving, there) =
            (observed.nodes.values().filter(serves).count(), run.machines().len());
        let moved = run.now().duration_since(begun);
        is(serving >= before && there <= before + 1, || {
            format!("{serving} of {before} nodes take pods, and {there} machines run")
        })?;
        is(moved < minutes(90), || format!("{:?} are left after {moved:#}", behind(&run)))?;
    }
    run.comes_to_rest(minutes(20))?;
    // Whoever begins anew finds nothing to do.
    run.kill(0);
    run.start(0);
    run.pass(minutes(30));
    run.well()?;
    let (launches, removals) = calls(&run);
    let made = (launches - asked.0, removals - asked.1);
    is(made == (before, before), || format!("{made:?} for {before} machines"))
}

fn unread(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 91, commit())?;
    let asked = calls(&run);
    run.faults(Faults { images: 1_000, ..Faults::default() });
    run.release_image(LATEST);
    run.pass(minutes(30));
    run.well()?;
    is(calls(&run) == asked, || format!("{asked:?} calls became {:?}", calls(&run)))?;
    let plan = run.status().and_then(|status| status.plan).ok_or("no plan")?;
    let told = plan.plan.capacity.diagnostics.iter().any(|row| {
        row.severity == DiagnosticSeverity::Warning
            && row.message.starts_with("the current image is unknown")
    });
    is(told, || format!("{:?}", plan.plan.capacity.diagnostics))?;
    // Pods get their nodes all the same.
    run.commit(|commit| commit.with("api", 18));
    run.pass(minutes(5));
    let waits = run.observed().pods.iter().filter(|pod| pod.node.is_none()).count();
    is(waits == 0, || format!("{waits} pods wait"))?;
    run.faults(Faults::default());
    run.comes_to_rest(minutes(120))?;
    is(behind(&run).is_empty(), || "not rolled once it was known".to_owned())
}

fn released_again(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 92, commit())?;
    for _ in 0..3 {
        run.release_image(LATEST);
        run.pass(minutes(4));
        run.well()?;
    }
    run.comes_to_rest(minutes(120))?;
    is(behind(&run).is_empty(), || format!("{:?} are left", behind(&run)))
}
