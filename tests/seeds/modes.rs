//! What settings hold back while something else is called for: found by seeds that draw settings, or near them.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use jiff::SignedDuration;

use super::files::Commit;
use super::incidents::{End, Story, is, minutes, settled};
use super::outside::Faults;
use super::run::Run;

/// The stories.
pub(crate) const ALL: &[(&str, Story)] = &[
    (
        "additive, or confirm: pods that come while an image may not roll have their machines",
        comes_while_image_rolls,
    ),
    (
        "atlantis-5955: who comes to lead serves what was served, and has a merge wait for as long",
        another_leads_while_a_merge_waits,
    ),
];

fn comes_while_image_rolls(catalog: &Rc<Catalog>) -> End {
    let controller = "confirm: [web], removals: { most: 100% }, massRemoval: 100%".to_owned();
    let asks = Commit { controller, ..Commit::default() };
    for commit in [Commit { mode: "additive", ..Commit::default() }, asks] {
        pods_have_machines(settled(catalog, 140, commit)?)?;
    }
    Ok(())
}

fn pods_have_machines(mut run: Run) -> End {
    let before = run.machines().len();
    let image = "al2023@v20261001".to_owned();
    run.commit(|commit| Commit { image, ..commit.with("api", 16) });
    let placed = |run: &Run| {
        let observed = run.observed();
        observed.pods.len() == 18 && observed.pods.iter().all(|pod| pod.node.is_some())
    };
    let soon = run.until(minutes(5), placed);
    run.well()?;
    is(soon, || "pods wait for machines that may come".to_owned())?;
    is(run.checks.borrow().removals() == 0, || "machines went".to_owned())?;
    is(run.machines().len() > before, || "nothing was launched".to_owned())
}

fn another_leads_while_a_merge_waits(catalog: &Rc<Catalog>) -> End {
    let commit = Commit {
        apply: "by: ci".to_owned(),
        controller: "ciPatience: 10m, removals: { most: 100% }, massRemoval: 100%".to_owned(),
        ..Commit::default().with("api", 12)
    };
    let mut run = settled(catalog, 141, commit)?;
    run.start(1);
    let first = run.status().and_then(|status| status.repository.commit);
    run.commit(|commit| commit.with("jobs", 3));
    // The one that does not lead reads nothing meanwhile, and knows of no merge but the first.
    run.pass(minutes(2));
    run.faults(Faults { git: true, ..Faults::default() });
    run.pass(SignedDuration::from_secs(30));
    run.faults(Faults::default());
    let adopted = run.until(minutes(12), |run| {
        run.leader().is_some_and(|(_, status)| status.repository.commit != first)
    });
    is(adopted, || "it waits for ever".to_owned())?;
    let served = run.leader().and_then(|(_, status)| status.repository.commit);
    run.pass(SignedDuration::from_secs(5));
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.pass(minutes(2));
    run.kill(0);
    run.pass(minutes(6));
    run.well()?;
    let (leader, status) = run.leader().ok_or("nobody leads")?;
    is(leader == 1, || "the dead leads".to_owned())?;
    is(status.repository.commit == served, || "another commit is served".to_owned())?;
    let rolled =
        run.machines().iter().filter(|machine| machine.image.contains("v20261001")).count();
    is(rolled == 0, || format!("{rolled} machines are of a merge that waits"))?;
    run.start(0);
    run.comes_to_rest(minutes(60))
}
