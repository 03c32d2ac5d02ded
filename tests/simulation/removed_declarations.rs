//! Scenarios in which pools, classes or tags change under running instances.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::observed::tag;

use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::Commit;

/// Scenarios by incident.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("karpenter-6651: a missing node class removes nothing and is reported", missing_node_class),
    ("karpenter-3331: deleted pools remove no node in use", deleted_pools),
    ("karpenter-6211: external tags are no drift", external_tags),
    ("karpenter-5373: instances of another version are not replaced", other_spec_version),
];

/// Checks that the controller makes no call within half an hour.
fn makes_no_calls(run: &mut Simulation) -> ScenarioResult {
    let before = run.shared.calls.borrow().len();
    run.advance(minutes(30));
    run.check()?;
    let asked = run.shared.calls.borrow()[before..].to_vec();
    ensure(asked.is_empty(), || format!("{asked:?}"))
}

fn missing_node_class(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 120, Commit::default().with("api", 8))?;
    run.commit(|commit| Commit { class: false, ..commit });
    makes_no_calls(&mut run)?;
    let status = run.status().ok_or("no replica runs")?;
    ensure(status.repository.problems > 0, || "the missing node class is not reported".to_owned())?;
    // The same holds for a new process.
    run.kill(0);
    run.start(0);
    makes_no_calls(&mut run)?;
    run.commit(|commit| Commit { class: true, ..commit });
    makes_no_calls(&mut run)
}

fn deleted_pools(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 121, Commit::default().with("api", 8))?;
    let before = run.instances().len();
    // No breaker and no budget protects the pods. They only have no other place.
    run.commit(|commit| Commit { pool: None, ..commit });
    run.advance(minutes(30));
    run.check()?;
    ensure(run.instances().len() == before, || "instances were removed".to_owned())?;
    run.commit(|commit| Commit { pool: Some("web".to_owned()), ..commit });
    run.converge(minutes(20))?;
    ensure(run.instances().len() == before, || {
        "instances were removed after the pool returned".to_owned()
    })
}

fn external_tags(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 122, Commit::default().with("api", 8))?;
    for instance in run.instances() {
        run.shared.world.tag_instance(&instance.id, "security.example.com/scanned", "noon");
    }
    makes_no_calls(&mut run)
}

fn other_spec_version(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 123, Commit::default().with("api", 8))?;
    for instance in run.instances() {
        let written = instance.tags.get(tag::SPEC).ok_or("the instance has no spec tag")?;
        // The version of the digest is older, so the instance cannot be compared.
        let (version, digits) = written.split_once(':').ok_or("no version")?;
        ensure(version != "v1", || "the first version has no predecessor".to_owned())?;
        let other = format!("v1:{}", digits.replace('0', "1"));
        run.shared.world.tag_instance(&instance.id, tag::SPEC, &other);
    }
    run.kill(0);
    run.start(0);
    makes_no_calls(&mut run)
}
