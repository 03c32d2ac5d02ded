//! Tests of external faults against real services: each fault is bounded and reported in the
//! outcome, nothing is lost, and a second apply of the same plan finishes.

use std::time::{Duration, Instant};

use fleetwright::apply::{ApplyStatus, Bounds, Outcome, Receipt};
use jiff::SignedDuration;

use super::cluster::runtime;
use super::control_plane::ControlPlane;
use super::crash::{CrashFixture, bounds, instances, running_count};
use super::end_to_end::nodes;
use super::moto::Moto;
use super::proxy::{Call, Fault, refusal_body};
use super::proxy_additions::fleet_refused;

/// Duration of the API server outage.
const OUTAGE: Duration = Duration::from_secs(3);

/// Short bounds.
fn short_bounds() -> Bounds {
    let seconds = SignedDuration::from_secs;
    Bounds { ready: seconds(4), drain: seconds(4), replicas: seconds(4), ..bounds() }
}

fn is_launch(call: &Call) -> bool {
    call.name() == "CreateFleet"
}

fn abandoned_count(receipt: &Receipt) -> usize {
    let outcomes = receipt.outcomes.iter();
    outcomes.filter(|change| matches!(change.outcome, Outcome::Abandoned { .. })).count()
}

#[test]
fn external_faults_are_bounded_and_plan_finishes_later() {
    let (Some(plane), Some(moto)) = (ControlPlane::start_with_controllers(), Moto::start()) else {
        return;
    };
    runtime().block_on(async {
        let mut fixture = Box::pin(CrashFixture::new(moto, plane)).await;
        check_missing_capacity(&mut fixture).await;
        check_instances_that_never_join(&mut fixture).await;
        check_throttling_and_lost_replies(&mut fixture).await;
        fixture.check().await;
    });
}

/// Checks that nothing is drained if no instance is launched.
async fn check_missing_capacity(fixture: &mut CrashFixture) {
    fixture.world.aws.set_fault_rule(|call| {
        if is_launch(call) {
            Fault::Answer(200, fleet_refused("InsufficientInstanceCapacity"))
        } else {
            Fault::None
        }
    });
    let receipt = fixture.run(short_bounds()).await.expect("no crash");
    assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:?}");
    let evicted = fixture.api.calls().iter().any(|row| row.call.path.ends_with("/eviction"));
    assert!(!evicted, "no pod was evicted");
    assert_eq!(running_count(&fixture.world, "m5a.large").await, 0);
    assert_eq!(nodes(&fixture.world).len(), 4);
    fixture.world.aws.set_fault_rule(|_| Fault::None);
}

/// Checks that instances that never join are abandoned after their bound and terminated.
async fn check_instances_that_never_join(fixture: &mut CrashFixture) {
    fixture.world.kubelets.instances_join = false;
    let receipt = fixture.run(short_bounds()).await.expect("no crash");
    assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:?}");
    assert_eq!(abandoned_count(&receipt), 3, "{receipt:?}");
    let launched = instances(&fixture.world).await;
    let of_type =
        launched.iter().filter(|m| m.instance_type().is_some_and(|t| t.as_str() == "m5a.large"));
    assert_eq!(of_type.count(), 3, "each was launched once");
    assert_eq!(running_count(&fixture.world, "m5a.large").await, 0, "and is terminated");
    fixture.world.kubelets.instances_join = true;
}

/// Checks that each instance is launched once despite throttling, a lost launch reply and a
/// temporary outage of the API server.
async fn check_throttling_and_lost_replies(fixture: &mut CrashFixture) {
    let mut calls = 0;
    fixture.world.aws.set_fault_rule(move |call| {
        if !is_launch(call) {
            return Fault::None;
        }
        calls += 1;
        match calls % 3 {
            1 => Fault::Answer(503, refusal_body("RequestLimitExceeded", "slow down")),
            2 => Fault::LoseReply,
            _ => Fault::None,
        }
    });
    let mut outage_start = None;
    fixture.api.set_fault_rule(move |call| {
        // The outage starts after the first observation, which must be complete.
        let started = *outage_start.get_or_insert_with(Instant::now);
        let is_down = started.elapsed() > Duration::from_secs(1) && started.elapsed() < OUTAGE;
        if is_down && call.method == "GET" {
            Fault::Answer(503, r#"{"kind":"Status","code":503,"message":"gone"}"#.to_owned())
        } else {
            Fault::None
        }
    });
    let receipt = fixture.run(bounds()).await.expect("no crash");
    assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
    fixture.world.aws.set_fault_rule(|_| Fault::None);
    fixture.api.set_fault_rule(|_| Fault::None);
}
