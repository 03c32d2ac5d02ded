//! Applies that lose their lease: no write follows.

use std::cell::Cell;

use super::*;

/// Applies a plan with a lease that expires after `most` writes.
fn apply_with_lease_for(plan: &Plan, world: &World, most: usize) -> Receipt {
    let left = Cell::new(most);
    let is_held = || left.replace(left.get().saturating_sub(1)) > 0;
    let (cloud, cluster) = (LeaseGuard::new(world, &is_held), LeaseGuard::new(world, &is_held));
    let ports = Ports { cloud: &cloud, cluster: &cluster, clock: world };
    run(apply(plan, &ports, &settings(), &mut |_| {})).expect("not refused")
}

#[test]
fn lost_lease_stops_writes_and_a_later_apply_finishes() {
    let all_writes = {
        let world = fleet();
        applied(&plan(&world), &world);
        writes(&world).len()
    };
    assert!(all_writes >= 12, "{all_writes}");
    for most in 0..all_writes {
        let world = fleet();
        let plan = plan(&world);
        let receipt = apply_with_lease_for(&plan, &world, most);
        assert_eq!(receipt.verdict, ApplyStatus::Partly, "{most}");
        assert_eq!(writes(&world).len(), most);
        let lost_lease = |change: &ChangeOutcome| match &change.outcome {
            Outcome::Failed { why } | Outcome::Abandoned { why } => why.contains("lease"),
            Outcome::Done
            | Outcome::AlreadyDone
            | Outcome::Dropped { .. }
            | Outcome::Continues { .. }
            | Outcome::Skipped { .. } => false,
        };
        assert!(receipt.outcomes.iter().any(lost_lease), "{most}: {receipt:?}");
        assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied, "{most}");
        assert_eq!(active(&world), planned_fleet(&plan), "{most}");
    }
}
