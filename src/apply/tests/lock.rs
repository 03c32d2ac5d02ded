//! Nothing is written once the lock is no longer certain to be held.

use std::cell::Cell;

use super::*;

/// Applies a plan while the lock is certain for so many writes; returns how it ended.
fn applied_for(plan: &Plan, world: &World, most: usize) -> Receipt {
    let left = Cell::new(most);
    let is_held = || left.replace(left.get().saturating_sub(1)) > 0;
    let (cloud, cluster) = (LeaseGuard::new(world, &is_held), LeaseGuard::new(world, &is_held));
    let ports = Ports { cloud: &cloud, cluster: &cluster, clock: world };
    run(apply(plan, &ports, &settings(), &mut |_| {})).expect("not refused")
}

#[test]
fn a_lock_that_is_lost_at_any_write_ends_the_writes_and_the_same_plan_finishes_later() {
    let whole = {
        let world = fleet();
        applied(&plan(&world), &world);
        writes(&world).len()
    };
    assert!(whole >= 12, "{whole}");
    for most in 0..whole {
        let world = fleet();
        let plan = plan(&world);
        let receipt = applied_for(&plan, &world, most);
        assert_eq!(receipt.verdict, ApplyStatus::Partly, "{most}");
        assert_eq!(writes(&world).len(), most);
        let why = |change: &ChangeOutcome| match &change.outcome {
            Outcome::Failed { why } | Outcome::GivenUp { why } => why.contains("lease"),
            Outcome::Done
            | Outcome::AlreadyDone
            | Outcome::Dropped { .. }
            | Outcome::Skipped { .. } => false,
        };
        assert!(receipt.outcomes.iter().any(why), "{most}: {receipt:?}");
        assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied, "{most}");
        assert_eq!(active(&world), planned_fleet(&plan), "{most}");
    }
}
