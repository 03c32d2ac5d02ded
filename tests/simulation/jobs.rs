//! Jobs whose pods run on nodes that drift and consolidation would remove.

use std::collections::BTreeSet;
use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::{Uid, WorkloadKind};
use fleetwright::model::observed::Pod;

use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::Commit;

pub(crate) const ALL: &[(&str, ScenarioFn)] =
    &[("jobs: voluntary removals never make a Job fail", removals_spare_jobs)];

/// A Job that fails with its third failed pod.
const JOB: &str = "---\napiVersion: batch/v1\nkind: Job\nmetadata: { name: import, namespace: web }\nspec:\n  \
                   parallelism: PODS\n  completions: PODS\n  backoffLimit: 2\n  podFailurePolicy: { rules: [RULES] }\n  \
                   template:\n    spec:\n      restartPolicy: Never\n      \
                   containers: [{ name: main, image: x, resources: { requests: { cpu: 700m, memory: 1Gi } } }]\n";

/// Rule by which evicted pods do not count.
const IGNORE: &str = "{ action: Ignore, onPodConditions: [{ type: DisruptionTarget }] }";

fn removals_spare_jobs(catalog: &Rc<Catalog>) -> ScenarioResult {
    // One of the two failures is left for the Job's own use. The Job that ignores evictions shows that
    // all nodes with its pods would be removed.
    for (pods, rules, evicted, failed) in [("6", "", 0, 0), ("1", "", 1, 1), ("6", IGNORE, 6, 0)] {
        let objects = JOB.replace("PODS", pods).replace("RULES", rules);
        let commit = Commit { objects, ..Commit::default() };
        let mut run = converged(catalog, 73, commit.with("api", 24))?;
        let before = uids_of_job(&run);
        run.commit(|commit| {
            Commit { image: "al2023@v20261001".to_owned(), ..commit }.with("api", 1)
        });
        run.advance(minutes(90));
        run.check()?;
        let case = format!("{pods} pods, rules `{rules}`");
        let failures: Vec<u32> = run.observed().jobs.iter().map(|job| job.failed).collect();
        ensure(failures == [failed], || format!("{case}: failures of the Job: {failures:?}"))?;
        let gone = before.difference(&uids_of_job(&run)).count();
        ensure(gone == evicted, || format!("{case}: {gone} pods were evicted"))?;
    }
    Ok(())
}

/// Returns the UIDs of the running pods of the Job.
fn uids_of_job(run: &Simulation) -> BTreeSet<Uid> {
    let is_of_job = |pod: &Pod| {
        pod.is_active() && pod.owner.as_ref().is_some_and(|owner| owner.kind == WorkloadKind::Job)
    };
    let pods = run.observed().pods;
    pods.iter().filter(|pod| is_of_job(pod)).map(|pod| pod.uid.clone()).collect()
}
