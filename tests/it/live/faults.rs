//! What goes wrong outside stays bounded: the outcome says so, nothing is lost, and the same plan run
//! again finishes.

use std::time::{Duration, Instant};

use fleetwright::apply::{ApplyStatus, Bounds, Outcome, Receipt};
use jiff::SignedDuration;

use super::cluster::runtime;
use super::control_plane::ControlPlane;
use super::crash::{CrashFixture, bounds, machines, runs};
use super::end_to_end::nodes;
use super::moto::Moto;
use super::proxy::{Call, Fault, refusal_body};
use super::proxy_additions::fleet_refused;

/// How long the API server is gone.
const GONE: Duration = Duration::from_secs(3);

/// Bounds that are soon reached.
fn short() -> Bounds {
    let seconds = SignedDuration::from_secs;
    Bounds { ready: seconds(4), drain: seconds(4), replicas: seconds(4), ..bounds() }
}

fn is_launch(call: &Call) -> bool {
    call.name() == "CreateFleet"
}

fn given_up(receipt: &Receipt) -> usize {
    let outcomes = receipt.outcomes.iter();
    outcomes.filter(|change| matches!(change.outcome, Outcome::GivenUp { .. })).count()
}

#[test]
fn external_faults_are_bounded_and_plan_finishes_later() {
    let (Some(plane), Some(moto)) = (ControlPlane::start_whole(), Moto::start()) else { return };
    runtime().block_on(async {
        let mut scene = Box::pin(CrashFixture::set(moto, plane)).await;
        nowhere_any_capacity(&mut scene).await;
        machines_that_never_join(&mut scene).await;
        throttled_and_lost(&mut scene).await;
        scene.check().await;
    });
}

/// No instance comes, so none goes: nothing is drained.
async fn nowhere_any_capacity(scene: &mut CrashFixture) {
    scene.world.aws.judge(|call| {
        if is_launch(call) {
            Fault::Answer(200, fleet_refused("InsufficientInstanceCapacity"))
        } else {
            Fault::None
        }
    });
    let receipt = scene.run(short()).await.expect("nobody dies");
    assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:?}");
    let evicted = scene.api.ledger().iter().any(|row| row.call.path.ends_with("/eviction"));
    assert!(!evicted, "no pod was asked to leave");
    assert_eq!(runs(&scene.world, "m5a.large").await, 0);
    assert_eq!(nodes(&scene.world).len(), 4);
    scene.world.aws.judge(|_| Fault::None);
}

/// They are given up after their bound, and terminated.
async fn machines_that_never_join(scene: &mut CrashFixture) {
    scene.world.kubelets.boots = false;
    let receipt = scene.run(short()).await.expect("nobody dies");
    assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:?}");
    assert_eq!(given_up(&receipt), 3, "{receipt:?}");
    let launched = machines(&scene.world).await;
    let of_type =
        launched.iter().filter(|m| m.instance_type().is_some_and(|t| t.as_str() == "m5a.large"));
    assert_eq!(of_type.count(), 3, "each was launched once");
    assert_eq!(runs(&scene.world, "m5a.large").await, 0, "and is gone");
    scene.world.kubelets.boots = true;
}

/// EC2 throttles, the first answer to each launch is lost, and the API server is gone for a while: all
/// that is borne, and each instance comes once.
async fn throttled_and_lost(scene: &mut CrashFixture) {
    let mut calls = 0;
    scene.world.aws.judge(move |call| {
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
    let mut since = None;
    scene.api.judge(move |call| {
        // From a moment after the first look, which must be whole.
        let begun = *since.get_or_insert_with(Instant::now);
        let gone = begun.elapsed() > Duration::from_secs(1) && begun.elapsed() < GONE;
        if gone && call.method == "GET" {
            Fault::Answer(503, r#"{"kind":"Status","code":503,"message":"gone"}"#.to_owned())
        } else {
            Fault::None
        }
    });
    let receipt = scene.run(bounds()).await.expect("nobody dies");
    assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
    scene.world.aws.judge(|_| Fault::None);
    scene.api.judge(|_| Fault::None);
}
