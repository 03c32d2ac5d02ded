//! A controller that is killed at its writes, hundreds of times.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use jiff::SignedDuration;

use super::environment::CallKind;
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::Commit;

/// Scenarios by incident.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("kill -9: a controller killed at its writes loses and doubles nothing", killed_unsteered),
    (
        "kill -9: a steering controller killed at its writes loses and doubles nothing",
        killed_steered,
    ),
];

/// Number of kills in each placement mode; `FLEETWRIGHT_KILLS` sets another one. Those of applies
/// are in their unit tests.
const KILLS: u64 = 120;

/// A process is killed after at most this many moments, so that later ones make progress.
const MOMENTS_MAX: u64 = 11;

/// Replicas of the workload, commit by commit.
const REPLICAS: [u32; 6] = [14, 5, 20, 2, 11, 8];

/// Runs the commits without kills, and returns how many instances were launched.
fn launches_without_kills(catalog: &Rc<Catalog>, steers: bool) -> Result<usize, String> {
    let mut run = converged(catalog, 90, commit(steers))?;
    for replicas in REPLICAS {
        run.commit(|commit| commit.with("api", replicas));
        run.wait_until(minutes(60), |run| run.check_converged().is_ok());
    }
    run.converge(minutes(60))?;
    Ok(run.checks.borrow().launches())
}

fn commit(steers: bool) -> Commit {
    let controller = format!("steer: {steers}, removals: {{ most: 100% }}, massRemoval: 100%");
    Commit { controller, ..Commit::default().with("api", 4) }
}

fn killed_unsteered(catalog: &Rc<Catalog>) -> ScenarioResult {
    killed_at_writes(catalog, false)
}

fn killed_steered(catalog: &Rc<Catalog>) -> ScenarioResult {
    killed_at_writes(catalog, true)
}

fn killed_at_writes(catalog: &Rc<Catalog>, steers: bool) -> ScenarioResult {
    let wanted = launches_without_kills(catalog, steers)?;
    let most = std::env::var("FLEETWRIGHT_KILLS").ok().and_then(|text| text.parse().ok());
    let (mut kills, mut rounds) = (0, 0);
    while kills < most.unwrap_or(KILLS) {
        let mut run = converged(catalog, 90, commit(steers))?;
        let before = run.shared.calls.borrow().len();
        for replicas in REPLICAS {
            run.commit(|commit| commit.with("api", replicas));
            kills += kill_until_converged(&mut run, kills)?;
            check_fleet(&run).map_err(|why| format!("after {kills} kills: {why}"))?;
        }
        run.converge(minutes(60))?;
        check_fleet(&run)?;
        let launches = run.checks.borrow().launches();
        ensure(launches <= wanted + 2, || {
            format!("{launches} instances were launched with kills, and {wanted} without")
        })?;
        let nominates = nominates_since(&run, before);
        ensure(nominates == steers, || format!("pods are nominated: {nominates}"))?;
        rounds += 1;
        ensure(kills > 4 * rounds, || format!("{kills} kills only"))?;
    }
    Ok(())
}

/// Returns whether a pod was nominated after the first `before` calls.
fn nominates_since(run: &Simulation, before: usize) -> bool {
    let calls = run.shared.calls.borrow();
    calls.iter().skip(before).any(|call| matches!(call.kind, CallKind::Nominate(..)))
}

/// Kills the controller at its next writes, until the fleet converges. Returns the number of kills.
fn kill_until_converged(run: &mut Simulation, before: u64) -> Result<u64, String> {
    let (mut kills, began) = (0, run.now());
    let limit = minutes(90);
    while run.check_converged().is_err() {
        run.check()?;
        run.shared.kill.set(Some((before + kills) % MOMENTS_MAX));
        while run.is_running(0) && run.check_converged().is_err() {
            run.advance(SignedDuration::from_secs(1));
            run.check()?;
            if run.now().duration_since(began) > limit {
                return Err(format!("after {kills} kills: {:?}", run.check_converged()));
            }
        }
        run.shared.kill.set(None);
        if !run.is_running(0) {
            kills += 1;
            run.start(0);
        }
    }
    Ok(kills)
}

/// Checks that every launched instance runs or was removed.
fn check_fleet(run: &Simulation) -> ScenarioResult {
    let (launched, removed) = (run.checks.borrow().launches(), run.checks.borrow().removals());
    let active = run.instances().len();
    ensure(launched - removed == active, || {
        format!("{launched} launched, {removed} removed, and {active} run")
    })
}
