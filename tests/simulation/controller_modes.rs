//! Scenarios in which settings block part of the work.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use jiff::SignedDuration;

use super::environment::Faults;
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::Commit;

pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    (
        "modes: new pods get capacity while an image rollout is blocked",
        launches_while_rollout_is_blocked,
    ),
    (
        "atlantis-5955: a new leader keeps the served commit and the waiting merge",
        leader_change_while_merge_waits,
    ),
    (
        "atlantis-5955: an unreadable served commit blocks merges but not capacity",
        served_commit_unreadable,
    ),
    ("forced push: the newest commit is served at once", forced_push_drops_served_commit),
];

fn launches_while_rollout_is_blocked(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "confirm: [web], removals: { most: 100% }, massRemoval: 100%".to_owned();
    let asks = Commit { controller, ..Commit::default() };
    let controller = "removals: { most: 0 }, massRemoval: 100%".to_owned();
    let never = Commit { controller, ..Commit::default() };
    for commit in [Commit { mode: "additive", ..Commit::default() }, asks, never] {
        pods_get_instances(converged(catalog, 140, commit)?)?;
    }
    Ok(())
}

fn pods_get_instances(mut run: Simulation) -> ScenarioResult {
    let before = run.instances().len();
    let image = "al2023@v20261001".to_owned();
    run.commit(|commit| Commit { image, ..commit.with("api", 16) });
    let placed = |run: &Simulation| {
        let observed = run.observed();
        observed.pods.len() == 18 && observed.pods.iter().all(|pod| pod.node.is_some())
    };
    let soon = run.wait_until(minutes(5), placed);
    run.check()?;
    ensure(soon, || "pods are pending although launches are allowed".to_owned())?;
    ensure(run.checks.borrow().removals() == 0, || "instances were removed".to_owned())?;
    ensure(run.instances().len() > before, || "nothing was launched".to_owned())
}

/// Returns a run whose process restarts while a merge waits for a CI apply that never happens.
fn restart_while_merge_waits(
    catalog: &Rc<Catalog>,
    seed: u64,
    breaks: impl FnOnce(&mut Simulation, &str),
) -> Result<Simulation, String> {
    let commit = Commit {
        apply: "by: ci".to_owned(),
        controller: "ciTimeout: 40m, removals: { most: 100% }, massRemoval: 100%".to_owned(),
        ..Commit::default().with("api", 12)
    };
    let mut run = converged(catalog, seed, commit)?;
    let served = run.status().and_then(|status| status.repository.commit);
    let served = served.ok_or("nothing is served")?;
    let image = "al2023@v20261001".to_owned();
    run.commit(|commit| Commit { image, ..commit.with("jobs", 3) });
    run.advance(minutes(2));
    run.kill(0);
    breaks(&mut run, &served);
    run.start(0);
    run.commit(|commit| commit.with("api", 30));
    Ok(run)
}

fn all_pods_are_placed(run: &Simulation) -> bool {
    let observed = run.observed();
    observed.pods.len() >= 33 && observed.pods.iter().all(|pod| pod.node.is_some())
}

fn served_commit_unreadable(catalog: &Rc<Catalog>) -> ScenarioResult {
    let breaks = |run: &mut Simulation, _: &str| {
        run.faults(Faults { commits_by_name: 1_000, ..Faults::default() });
    };
    let mut run = restart_while_merge_waits(catalog, 142, breaks)?;
    let soon = run.wait_until(minutes(5), all_pods_are_placed);
    run.check()?;
    ensure(soon, || "pods are pending although launches are allowed".to_owned())?;
    ensure(run.checks.borrow().removals() == 0, || "instances were removed".to_owned())?;
    run.faults(Faults::default());
    run.advance(minutes(6));
    run.check()?;
    let (_, status) = run.leader().ok_or("no replica leads")?;
    let repository = status.repository;
    let read = repository.substitute_for.is_none() && repository.waiting.is_some();
    ensure(read, || format!("the served commit is not read: {repository:?}"))?;
    run.converge(minutes(90))
}

fn forced_push_drops_served_commit(catalog: &Rc<Catalog>) -> ScenarioResult {
    let breaks = |run: &mut Simulation, served: &str| {
        run.shared.deleted_commits.borrow_mut().insert(served.to_owned());
    };
    let mut run = restart_while_merge_waits(catalog, 143, breaks)?;
    let serves = run.wait_until(minutes(2), |run| {
        let newest = run.shared.files.borrow().name.clone();
        run.leader().is_some_and(|(_, status)| {
            let repository = status.repository;
            repository.commit == Some(newest.clone()) && repository.substitute_for.is_none()
        })
    });
    ensure(serves, || "the newest commit is not served".to_owned())?;
    run.wait_until(minutes(5), all_pods_are_placed);
    // A later restart continues to serve the newest commit.
    run.kill(0);
    run.start(0);
    run.converge(minutes(60))
}

fn leader_change_while_merge_waits(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit {
        apply: "by: ci".to_owned(),
        controller: "ciTimeout: 10m, removals: { most: 100% }, massRemoval: 100%".to_owned(),
        ..Commit::default().with("api", 12)
    };
    let mut run = converged(catalog, 141, commit)?;
    run.start(1);
    let first = run.status().and_then(|status| status.repository.commit);
    run.commit(|commit| commit.with("jobs", 3));
    // The standby reads nothing in the meantime, so it has only seen the first merge.
    run.advance(minutes(2));
    run.faults(Faults { repository_down: true, ..Faults::default() });
    run.advance(SignedDuration::from_secs(30));
    run.faults(Faults::default());
    let adopted = run.wait_until(minutes(12), |run| {
        run.leader().is_some_and(|(_, status)| status.repository.commit != first)
    });
    ensure(adopted, || "the merge waits too long".to_owned())?;
    let served = run.leader().and_then(|(_, status)| status.repository.commit);
    run.advance(SignedDuration::from_secs(5));
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.advance(minutes(2));
    run.kill(0);
    run.advance(minutes(6));
    run.check()?;
    let (leader, status) = run.leader().ok_or("no replica leads")?;
    ensure(leader == 1, || "the killed replica leads".to_owned())?;
    ensure(status.repository.commit == served, || "another commit is served".to_owned())?;
    let rolled =
        run.instances().iter().filter(|instance| instance.image.contains("v20261001")).count();
    ensure(rolled == 0, || format!("{rolled} instances belong to the waiting merge"))?;
    run.start(0);
    run.converge(minutes(60))
}
