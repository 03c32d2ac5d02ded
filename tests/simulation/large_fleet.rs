//! Scenarios that need an optimized build.

use std::rc::Rc;

use fleetwright::catalog::Catalog;

use crate::simulation::harness::Simulation;
use crate::simulation::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use crate::simulation::repository::Commit;

/// Scenarios by incident.
pub(crate) const ALL: &[(&str, ScenarioFn)] =
    &[("karpenter-5505: two thousand new pods get capacity within minutes", two_thousand_pods)];

fn two_thousand_pods(catalog: &Rc<Catalog>) -> ScenarioResult {
    const PODS: u32 = 2_089;
    let controller = "removals: { most: 100% }, launches: { most: 1000 }, massRemoval: 100%";
    let commit = Commit { controller: controller.to_owned(), cpu: 350, ..Commit::default() };
    let mut run = converged(catalog, 74, commit)?;
    run.commit(|commit| commit.with("api", PODS));
    let all = |run: &Simulation| {
        let observed = run.observed();
        let runs = observed.pods.iter().filter(|pod| pod.is_active() && pod.node.is_some());
        runs.count() >= usize::try_from(PODS).unwrap_or(usize::MAX)
    };
    let soon = run.wait_until(minutes(5), all);
    run.check()?;
    ensure(soon, || "pods are pending after five minutes".to_owned())
}
