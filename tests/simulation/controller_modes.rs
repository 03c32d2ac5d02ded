//! Scenarios in which settings block part of the work.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use jiff::SignedDuration;

use super::environment::Faults;
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, is, minutes, settled};
use super::repository::Commit;

/// The stories.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    (
        "additive, or confirm: new pods get capacity while an image rollout is blocked",
        comes_while_image_rolls,
    ),
    (
        "atlantis-5955: a new leader keeps the served commit and the waiting merge",
        another_leads_while_a_merge_waits,
    ),
    (
        "atlantis-5955: an unreadable served commit blocks merges but not capacity",
        pods_come_while_what_is_served_cannot_be_read,
    ),
    (
        "a branch that was forced: after a forced push the newest commit is served at once",
        what_is_served_is_no_more,
    ),
];

fn comes_while_image_rolls(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "confirm: [web], removals: { most: 100% }, massRemoval: 100%".to_owned();
    let asks = Commit { controller, ..Commit::default() };
    let controller = "removals: { most: 0 }, massRemoval: 100%".to_owned();
    let never = Commit { controller, ..Commit::default() };
    for commit in [Commit { mode: "additive", ..Commit::default() }, asks, never] {
        pods_have_machines(settled(catalog, 140, commit)?)?;
    }
    Ok(())
}

fn pods_have_machines(mut run: Simulation) -> ScenarioResult {
    let before = run.machines().len();
    let image = "al2023@v20261001".to_owned();
    run.commit(|commit| Commit { image, ..commit.with("api", 16) });
    let placed = |run: &Simulation| {
        let observed = run.observed();
        observed.pods.len() == 18 && observed.pods.iter().all(|pod| pod.node.is_some())
    };
    let soon = run.until(minutes(5), placed);
    run.well()?;
    is(soon, || "pods wait for machines that may come".to_owned())?;
    is(run.checks.borrow().removals() == 0, || "machines went".to_owned())?;
    is(run.machines().len() > before, || "nothing was launched".to_owned())
}

/// Returns a run of which the process begins anew while a merge waits for a CI that never comes.
fn begins_while_a_merge_waits(
    catalog: &Rc<Catalog>,
    seed: u64,
    breaks: impl FnOnce(&mut Simulation, &str),
) -> Result<Simulation, String> {
    let commit = Commit {
        apply: "by: ci".to_owned(),
        controller: "ciPatience: 40m, removals: { most: 100% }, massRemoval: 100%".to_owned(),
        ..Commit::default().with("api", 12)
    };
    let mut run = settled(catalog, seed, commit)?;
    let served = run.status().and_then(|status| status.repository.commit);
    let served = served.ok_or("nothing is served")?;
    let image = "al2023@v20261001".to_owned();
    run.commit(|commit| Commit { image, ..commit.with("jobs", 3) });
    run.pass(minutes(2));
    run.kill(0);
    breaks(&mut run, &served);
    run.start(0);
    run.commit(|commit| commit.with("api", 30));
    Ok(run)
}

fn all_are_placed(run: &Simulation) -> bool {
    let observed = run.observed();
    observed.pods.len() >= 33 && observed.pods.iter().all(|pod| pod.node.is_some())
}

fn pods_come_while_what_is_served_cannot_be_read(catalog: &Rc<Catalog>) -> ScenarioResult {
    let breaks =
        |run: &mut Simulation, _: &str| run.faults(Faults { named: 1_000, ..Faults::default() });
    let mut run = begins_while_a_merge_waits(catalog, 142, breaks)?;
    let soon = run.until(minutes(5), all_are_placed);
    run.well()?;
    is(soon, || "pods wait for machines that may come".to_owned())?;
    is(run.checks.borrow().removals() == 0, || "machines went".to_owned())?;
    run.faults(Faults::default());
    run.pass(minutes(6));
    run.well()?;
    let (_, status) = run.leader().ok_or("nobody leads")?;
    let repository = status.repository;
    let read = repository.stands_in_for.is_none() && repository.waiting.is_some();
    is(read, || format!("what is served is not read: {repository:?}"))?;
    run.comes_to_rest(minutes(90))
}

fn what_is_served_is_no_more(catalog: &Rc<Catalog>) -> ScenarioResult {
    let breaks = |run: &mut Simulation, served: &str| {
        run.shared.gone.borrow_mut().insert(served.to_owned());
    };
    let mut run = begins_while_a_merge_waits(catalog, 143, breaks)?;
    let serves = run.until(minutes(2), |run| {
        let newest = run.shared.files.borrow().name.clone();
        run.leader().is_some_and(|(_, status)| {
            let repository = status.repository;
            repository.commit == Some(newest.clone()) && repository.stands_in_for.is_none()
        })
    });
    is(serves, || "the newest is not served".to_owned())?;
    run.until(minutes(5), all_are_placed);
    // A life that begins after it serves it on.
    run.kill(0);
    run.start(0);
    run.comes_to_rest(minutes(60))
}

fn another_leads_while_a_merge_waits(catalog: &Rc<Catalog>) -> ScenarioResult {
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
