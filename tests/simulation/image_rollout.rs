//! Images released under an unchanged node class.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::InstanceId;
use fleetwright::model::observed::Node;
use fleetwright::plan::wire::DiagnosticSeverity;

use super::environment::{CallKind, Faults};
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::Commit;

pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    (
        "AMIDrift: a released image rolls out once, one node at a time, replaced first",
        image_release,
    ),
    ("an unresolvable image replaces nothing and is reported", unresolvable_image),
    ("images released during a rollout converge to the latest", repeated_releases),
];

/// Image term of the node class. No commit changes it.
const LATEST: &str = "al2023@latest";

fn commit() -> Commit {
    let disruption = "disruption: { consolidateAfter: 0s, budgets: [{ nodes: '1' }] }".to_owned();
    Commit { image: LATEST.to_owned(), disruption, ..Commit::default().with("api", 12) }
}

/// Returns the instances whose image is not current.
fn outdated_instances(run: &Simulation) -> Vec<InstanceId> {
    let observed = run.observed();
    let now: Vec<_> = observed.resolved.images[LATEST].iter().map(|choice| &choice.id).collect();
    let instances = run.instances().into_iter();
    let outdated_instances =
        instances.filter(|m| m.launched_with.image.as_ref().is_none_or(|id| !now.contains(&id)));
    outdated_instances.map(|instance| instance.id).collect()
}

fn calls(run: &Simulation) -> (usize, usize) {
    let asked = run.shared.calls.borrow();
    let count = |matches_kind: fn(&CallKind) -> bool| {
        asked.iter().filter(|call| matches_kind(&call.kind)).count()
    };
    (
        count(|what| matches!(what, CallKind::Launch(..))),
        count(|what| matches!(what, CallKind::Terminate(_))),
    )
}

fn image_release(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 90, commit())?;
    let (before, asked) = (run.instances().len(), calls(&run));
    ensure(before >= 3 && outdated_instances(&run).is_empty(), || format!("{before} instances"))?;
    run.release_image(LATEST);
    ensure(outdated_instances(&run).len() == before, || {
        "the released image is not new".to_owned()
    })?;
    let begun = run.now();
    while !outdated_instances(&run).is_empty() {
        run.advance(jiff::SignedDuration::from_secs(1));
        run.check()?;
        let observed = run.observed();
        let serves = |node: &&Node| node.ready && !node.unschedulable;
        let (serving, there) =
            (observed.nodes.values().filter(serves).count(), run.instances().len());
        let moved = run.now().duration_since(begun);
        ensure(serving >= before && there <= before + 1, || {
            format!("{serving} of {before} nodes take pods, and {there} instances run")
        })?;
        ensure(moved < minutes(90), || {
            format!("{:?} are left after {moved:#}", outdated_instances(&run))
        })?;
    }
    run.converge(minutes(20))?;
    // A restarted process finds no changes.
    run.kill(0);
    run.start(0);
    run.advance(minutes(30));
    run.check()?;
    let (launches, removals) = calls(&run);
    let made = (launches - asked.0, removals - asked.1);
    ensure(made == (before, before), || format!("{made:?} for {before} instances"))
}

fn unresolvable_image(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 91, commit())?;
    let asked = calls(&run);
    run.faults(Faults { unresolved_images: 1_000, ..Faults::default() });
    run.release_image(LATEST);
    run.advance(minutes(30));
    run.check()?;
    ensure(calls(&run) == asked, || format!("{asked:?} calls became {:?}", calls(&run)))?;
    let plan = run.status().and_then(|status| status.plan).ok_or("no plan")?;
    let is_reported = plan.plan.capacity.diagnostics.iter().any(|row| {
        row.severity == DiagnosticSeverity::Warning
            && row.message.starts_with("the current image is unknown")
    });
    ensure(is_reported, || format!("{:?}", plan.plan.capacity.diagnostics))?;
    // New pods still receive nodes.
    run.commit(|commit| commit.with("api", 18));
    run.advance(minutes(5));
    let waits = run.observed().pods.iter().filter(|pod| pod.node.is_none()).count();
    ensure(waits == 0, || format!("{waits} pods are pending"))?;
    run.faults(Faults::default());
    run.converge(minutes(120))?;
    ensure(outdated_instances(&run).is_empty(), || {
        "the image was not rolled out after its resolution".to_owned()
    })
}

fn repeated_releases(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 92, commit())?;
    for _ in 0..3 {
        run.release_image(LATEST);
        run.advance(minutes(4));
        run.check()?;
    }
    run.converge(minutes(120))?;
    ensure(outdated_instances(&run).is_empty(), || {
        format!("{:?} are left", outdated_instances(&run))
    })
}
