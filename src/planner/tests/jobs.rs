//! Jobs, which count evicted pods as failed.

use jiff::SignedDuration;

use super::changes;
use crate::model::desired::Scale;
use crate::model::ids::{WorkloadId, WorkloadKind};
use crate::model::job::{JobRetries, OnEviction};
use crate::model::observed::LiveJob;
use crate::model::reason::{BlockReason, KeepReason};
use crate::plan::wire::{Plan, Reason};
use crate::testing::Scenario;
use crate::testing::pods::{deployment, template};

fn job() -> WorkloadId {
    WorkloadId { kind: WorkloadKind::Job, ..deployment("other", "import") }
}

fn retries(backoff_limit: u32, on_eviction: OnEviction) -> JobRetries {
    JobRetries { backoff_limit, per_index: None, on_eviction }
}

/// Returns two nodes with one pod of a Job each. Both pods fit on one node.
fn scattered_job() -> Scenario {
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    // Otherwise both pods of the Job might arrive first, on one node.
    scenario.settings.steer = true;
    scenario.deploy("a", 2, template(1000, 100));
    let scale = Scale::Job { pods: 2, completions: Some(2), suspended: false };
    scenario.declare(job(), scale, template(800, 100));
    scenario.apply();
    assert_eq!(scenario.observed.nodes.len(), 2);
    scenario.deploy("a", 0, template(1000, 100));
    scenario
}

/// Returns the reasons of nodes that stay for the sake of a Job.
fn job_reasons(plan: &Plan) -> Vec<String> {
    let rows = plan.capacity.explain.iter().filter_map(|row| {
        let Reason::Keep { because: KeepReason::Blocked { by } } = &row.reason else { return None };
        let BlockReason::JobMightFail { job, why } = by else { return None };
        Some(format!("{job} {why}"))
    });
    rows.collect()
}

#[test]
fn consolidation_moves_pods_only_of_jobs_that_survive_it() {
    use OnEviction::{Counted, Fatal, Ignored};
    for (limit, on_eviction, failed, removed) in [
        (6, Counted, 0, 1),
        (6, Counted, 3, 1),
        (6, Counted, 4, 0),
        (2, Counted, 0, 0),
        (0, Counted, 0, 0),
        (0, Ignored, 9, 1),
        (9, Fatal, 0, 0),
    ] {
        let mut scenario = scattered_job();
        let retries = retries(limit, on_eviction);
        scenario.observed.jobs = vec![LiveJob { id: job(), retries, failed }];
        let plan = scenario.plan();
        let case = format!("{limit} {on_eviction:?} {failed}");
        assert_eq!(changes(&plan), (0, removed), "{case}");
        assert_eq!(job_reasons(&plan).is_empty(), removed > 0, "{case}");
    }
}

#[test]
fn node_with_pods_of_a_job_states_the_failures() {
    let mut scenario = scattered_job();
    let counted = retries(6, OnEviction::Counted);
    scenario.observed.jobs = vec![LiveJob { id: job(), retries: counted, failed: 5 }];
    let reason = "Job other/import might fail if its pods are evicted (backoffLimit 6, 5 failed, 2 \
                  unfinished)";
    assert_eq!(job_reasons(&scenario.plan()), [reason, reason]);
}

#[test]
fn drift_waits_for_a_job_unless_the_drain_ends_by_force() {
    let mut scenario = scattered_job();
    let counted = retries(0, OnEviction::Counted);
    scenario.observed.jobs = vec![LiveJob { id: job(), retries: counted, failed: 0 }];
    scenario.drift();
    let plan = scenario.plan();
    assert_eq!((changes(&plan), job_reasons(&plan).len()), ((0, 0), 2));
    scenario.pool().termination_grace_period = Some(SignedDuration::from_hours(1));
    let plan = scenario.plan();
    assert!(changes(&plan).1 > 0 && job_reasons(&plan).is_empty());
}

#[test]
fn job_that_was_not_read_keeps_its_pods_unless_it_is_declared() {
    let mut scenario = scattered_job();
    let plan = scenario.plan();
    let reason = "Job other/import was not read, so it might fail without its pods";
    assert_eq!((changes(&plan), job_reasons(&plan)), ((0, 0), vec![reason.to_owned(); 2]));
    let declared = scenario.desired.workloads.get_mut(&job()).expect("declared");
    declared.retries = Some(retries(0, OnEviction::Ignored));
    assert_eq!(changes(&scenario.plan()), (0, 1));
}
