use jiff::SignedDuration;

use crate::apply::ports::Cloud;
use crate::model::ids::InstanceId;
use crate::model::observed::Group;
use crate::simulator::{OfferingOutage, World};
use crate::testing::simulator::{deliver_group, members, run, world};
use crate::testing::world::group;

const NAME: &str = "asg-web";

/// Returns a world with a group of `desired` m5.large in two zones, with sizes from one to five.
fn with_group(desired: u32) -> World {
    let world = world();
    let zones = vec!["eu-west-1a".into(), "eu-west-1b".into()];
    deliver_group(&world, "web", Group { zones, ..group(NAME, desired) });
    world
}

fn settle(world: &World) {
    world.settle(SignedDuration::from_mins(10)).expect("in memory");
}

fn desired(world: &World) -> u32 {
    world.observed().groups[NAME].desired
}

fn ids(world: &World) -> Vec<InstanceId> {
    members(world).into_iter().map(|instance| instance.id).collect()
}

#[test]
fn group_launches_in_emptiest_zone() {
    let world = with_group(1);
    assert_eq!(ids(&world).len(), 1);
    run(world.raise_group(&NAME.into(), 4)).expect("below its most");
    assert_eq!(ids(&world).len(), 1, "members appear later");
    settle(&world);
    let mut zones: Vec<String> = members(&world).iter().map(|i| i.zone.to_string()).collect();
    zones.sort();
    assert_eq!(zones, ["eu-west-1a", "eu-west-1a", "eu-west-1b", "eu-west-1b"]);
    assert!(members(&world).iter().all(|i| i.group.as_ref().unwrap().lifecycle == "InService"));
    assert_eq!(world.observed().nodes.values().filter(|node| node.ready).count(), 4);
}

#[test]
fn group_capacity_never_shrinks_or_exceeds_maximum() {
    let world = with_group(3);
    for (desired, expected) in [(2, "not fewer"), (6, "above the maximum 5")] {
        let error = run(world.raise_group(&NAME.into(), desired)).expect_err("refused");
        assert!(error.reason.contains(expected), "{desired}: {error}");
    }
    let error = run(world.raise_group(&"other".into(), 3)).expect_err("refused");
    assert!(error.reason.contains("no group"), "{error}");
    assert_eq!(desired(&world), 3);
}

#[test]
fn named_member_is_terminated_and_capacity_lowered() {
    let world = with_group(3);
    let before = ids(&world);
    run(world.terminate_member(&before[1])).expect("above its least");
    run(world.terminate_member(&before[1])).expect("one that is ending is left alone");
    settle(&world);
    assert_eq!(desired(&world), 2);
    assert_eq!(
        ids(&world),
        [before[0].clone(), before[2].clone()],
        "the other members are unchanged"
    );
    run(world.terminate_member(&before[0])).expect("above its least");
    let error = run(world.terminate_member(&before[2])).expect_err("at its least");
    assert!(error.reason.contains("minimum of 1"), "{error}");
    assert_eq!(desired(&world), 1);
}

#[test]
fn terminated_member_is_replaced() {
    let world = with_group(2);
    let before = ids(&world);
    run(Cloud::terminate(&world, &before[0])).expect("EC2 obeys");
    settle(&world);
    let after = ids(&world);
    assert_eq!((after.len(), desired(&world)), (2, 2));
    assert!(!after.contains(&before[0]) && after.contains(&before[1]));
}

#[test]
fn group_retries_missing_capacity() {
    let world = with_group(1);
    world.set_unavailable(vec![OfferingOutage::default()]);
    run(world.raise_group(&NAME.into(), 3)).expect("the call says nothing of capacity");
    settle(&world);
    assert_eq!((ids(&world).len(), desired(&world)), (1, 3));
    world.set_unavailable(Vec::new());
    settle(&world);
    assert_eq!(ids(&world).len(), 3, "it was tried again");
}
