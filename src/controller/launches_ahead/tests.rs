use super::*;
use crate::model::observed::Pod;
use crate::testing::controller::at;
use crate::testing::pods::deployment;
use crate::testing::{sample_plan, world};

/// A plan in which the repository declares `pods` pods of one workload.
fn plan(pods: u32) -> Plan {
    let mut plan = sample_plan::plan();
    plan.capacity.demand.truncate(1);
    let row = &mut plan.capacity.demand[0];
    row.workload = deployment("web", "api");
    (row.decided_by, row.counts.planned) = (Decider::Git, pods);
    plan
}

fn observed(running: usize, pending: usize) -> Observed {
    let api = deployment("web", "api");
    let pod = |n: usize| world::pod(&format!("api-{n}")).owned_by(&api);
    let placed = (0..running).map(|n| pod(n).on("a"));
    let waiting = (0..pending).map(|n| pod(running + n));
    let pods: Vec<Pod> = placed.chain(waiting).collect();
    Observed::of_cluster("c", at(0)).with_pods(pods)
}

fn is_missing(ahead: &LaunchesAhead, planned: u32, world: &Observed) -> bool {
    !ahead.missing_workloads(&plan(planned), world).is_empty()
}

#[test]
fn added_pods_allow_launches_until_all_have_existed() {
    let mut ahead = LaunchesAhead::default();
    ahead.update(&plan(4), "a", false, &observed(0, 0));
    assert!(!is_missing(&ahead, 4, &observed(0, 0)), "the first commit adds them");
    ahead.update(&plan(4), "a", false, &observed(4, 0));
    assert!(is_missing(&ahead, 4, &observed(1, 0)), "the cluster had all four");
    assert!(!is_missing(&ahead, 4, &observed(1, 1)), "one is pending");
    ahead.update(&plan(4), "b", false, &observed(1, 0));
    assert!(is_missing(&ahead, 4, &observed(1, 0)), "the commit adds none");
    ahead.update(&plan(6), "c", false, &observed(4, 0));
    assert!(!is_missing(&ahead, 6, &observed(4, 0)), "the commit adds two");
    ahead.update(&plan(1), "d", false, &observed(4, 0));
    assert!(!is_missing(&ahead, 1, &observed(4, 0)), "more pods run than declared");
}

#[test]
fn restart_at_a_planned_commit_adds_nothing() {
    let mut ahead = LaunchesAhead::default();
    ahead.update(&plan(4), "a", true, &observed(1, 0));
    assert!(is_missing(&ahead, 4, &observed(1, 0)));
    ahead.update(&plan(5), "b", true, &observed(1, 0));
    assert!(!is_missing(&ahead, 5, &observed(1, 0)));
}

#[test]
fn pending_pods_beyond_the_repository_are_uncounted() {
    let mut ahead = LaunchesAhead::default();
    assert!(!ahead.has_uncounted_pending_pods(&observed(2, 0)), "none is pending");
    assert!(ahead.has_uncounted_pending_pods(&observed(2, 1)), "no plan has the workload");
    ahead.update(&plan(3), "a", false, &observed(2, 0));
    assert!(!ahead.has_uncounted_pending_pods(&observed(2, 1)));
    assert!(ahead.has_uncounted_pending_pods(&observed(3, 1)));
    let mut scaled = plan(3);
    scaled.capacity.demand[0].decided_by = Decider::World;
    ahead.update(&scaled, "b", false, &observed(2, 0));
    assert!(!ahead.has_uncounted_pending_pods(&observed(3, 1)), "the plan counts running pods");
}
