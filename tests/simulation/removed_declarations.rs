//! Scenarios in which pools, classes or tags change under running instances.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::observed::tag;

use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, is, minutes, settled};
use super::repository::Commit;

/// The stories, by the incident that each retells.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("karpenter-6651: a missing node class removes nothing and is reported", class_gone),
    ("karpenter-3331: deleted pools remove no node in use", pools_gone),
    ("karpenter-6211: external tags are no drift", others_tag_machines),
    ("karpenter-5373: instances of another version are not replaced", other_version),
];

/// Lets half an hour pass, in which nothing may be asked for.
fn nothing_is_asked(run: &mut Simulation) -> ScenarioResult {
    let before = run.shared.asked.borrow().len();
    run.pass(minutes(30));
    run.well()?;
    let asked = run.shared.asked.borrow()[before..].to_vec();
    is(asked.is_empty(), || format!("{asked:?}"))
}

fn class_gone(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 120, Commit::default().with("api", 8))?;
    run.commit(|commit| Commit { class: false, ..commit });
    nothing_is_asked(&mut run)?;
    let status = run.status().ok_or("nobody lives")?;
    is(status.repository.problems > 0, || "that it is missing is not told".to_owned())?;
    // Nor does a process that has never seen it.
    run.kill(0);
    run.start(0);
    nothing_is_asked(&mut run)?;
    run.commit(|commit| Commit { class: true, ..commit });
    nothing_is_asked(&mut run)
}

fn pools_gone(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 121, Commit::default().with("api", 8))?;
    let before = run.machines().len();
    // Nothing but that there is nowhere to go keeps the pods where they are: no breaker, and no budget.
    run.commit(|commit| Commit { pool: None, ..commit });
    run.pass(minutes(30));
    run.well()?;
    is(run.machines().len() == before, || "machines went".to_owned())?;
    run.commit(|commit| Commit { pool: Some("web".to_owned()), ..commit });
    run.comes_to_rest(minutes(20))?;
    is(run.machines().len() == before, || "machines went once the pool was back".to_owned())
}

fn others_tag_machines(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 122, Commit::default().with("api", 8))?;
    for machine in run.machines() {
        run.shared.world.tag_instance(&machine.id, "security.example.com/scanned", "noon");
    }
    nothing_is_asked(&mut run)
}

fn other_version(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 123, Commit::default().with("api", 8))?;
    for machine in run.machines() {
        let written = machine.tags.get(tag::SPEC).ok_or("it does not tell how it was launched")?;
        // The same digits, and the version before: of these it cannot be said what they are of.
        let (version, digits) = written.split_once(':').ok_or("no version")?;
        is(version != "v1", || "the first version has none before it".to_owned())?;
        let other = format!("v1:{}", digits.replace('0', "1"));
        run.shared.world.tag_instance(&machine.id, tag::SPEC, &other);
    }
    run.kill(0);
    run.start(0);
    nothing_is_asked(&mut run)
}
