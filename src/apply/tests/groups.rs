//! Auto Scaling groups: raised once in spite of crashes and interruptions, and reduced by name.

use std::sync::atomic::{AtomicBool, Ordering};

use super::super::*;
use crate::model::ids::InstanceTypeName;
use crate::model::observed::Group;
use crate::plan::wire::{Condition, GroupSize, NodeState, ResourceChange};
use crate::simulator::{OfferingOutage, PortCall, World};
use crate::testing::apply::{Fault, FaultyPorts, all, apply_over, new_node, old_node, settings};
use crate::testing::plan::instance_address;
use crate::testing::simulator::{self, deliver_group, members, poll_once, run};
use crate::testing::world::group;

const NAME: &str = "asg-batch";
const ROW: &str = "autoscaling_group.batch";

/// Returns a world with a group of two m5.large instances (minimum 1, maximum 5).
fn world() -> World {
    let world = simulator::world();
    let zones = vec!["eu-west-1a".into()];
    deliver_group(&world, "batch", Group { zones, ..group(NAME, 2) });
    world
}

fn raises(world: &World) -> usize {
    world.calls().iter().filter(|call| matches!(call, PortCall::RaiseGroup { .. })).count()
}

/// Returns a plan that adds `more` members and then retires one of the two old members.
fn plan(world: &World, more: u32) -> Plan {
    let observed = world.observed();
    let in_pool = |state| NodeState { pool: Some("batch".into()), ..state };
    let old = members(world).into_iter().map(|member| in_pool(old_node(&observed, &member)));
    let [retired, kept] = <[NodeState; 2]>::try_from(old.collect::<Vec<_>>()).expect("two members");
    let keys: Vec<String> = (2..2 + more).map(|key| key.to_string()).collect();
    let new = || in_pool(new_node("eu-west-1a"));
    let size = |desired| {
        let group = GroupSize { name: Some(NAME.into()), min: 1, max: 5, desired };
        NodeState { group: Some(group), ..NodeState::empty() }
    };
    let mut plan = Plan::unchanged(&observed)
        .with_rows([
            ResourceChange::removal("batch", "0", retired),
            ResourceChange::retained("batch", "1", kept),
        ])
        .with_rows(keys.iter().map(|key| ResourceChange::launch("batch", key, new())))
        .with_rows([ResourceChange::resize("batch", size(2), size(1 + more))])
        .with_wave(WaveStep::Launch, keys.iter().map(|key| instance_address("batch", key)))
        .with_wave(WaveStep::Retire, [instance_address("batch", "0")])
        .with_precondition(ROW.into(), Condition::GroupIs { group: NAME.into(), desired: 2 });
    (plan.capacity.digest, plan.capacity.plan_id) = ("sha256:1".into(), "plan-1".into());
    plan
}

fn assert_as_planned(world: &World, retired: &InstanceId, more: usize) {
    world.settle(SignedDuration::from_mins(10)).expect("kept in memory");
    let members = members(world);
    assert_eq!(members.len(), 1 + more, "one old member and the new members");
    assert!(members.iter().all(|member| member.id != *retired));
    let desired = world.observed().groups[NAME].desired;
    assert_eq!(
        usize::try_from(desired),
        Ok(1 + more),
        "the desired size equals the number of members"
    );
}

#[test]
fn group_is_raised_once_and_loses_the_named_member() {
    let world = world();
    let retired = members(&world)[0].id.clone();
    let receipt = apply_over(&plan(&world, 3), &world, &settings()).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:#?}");
    assert_eq!(raises(&world), 1);
    assert_as_planned(&world, &retired, 3);
}

#[test]
fn interrupted_group_apply_is_finished_without_a_second_raise() {
    let world = world();
    let retired = members(&world)[0].id.clone();
    let plan = plan(&world, 2);
    let flag = AtomicBool::new(false);
    let settings_now = ApplySettings { interrupted: Some(&flag), ..settings() };
    let ports = all(&world);
    let mut report = |event: &Event| {
        if matches!(event.step, Step::Raised { .. }) {
            flag.store(true, Ordering::Relaxed);
        }
    };
    let receipt = run(apply(&plan, &ports, &settings_now, &mut report)).expect("begun");
    assert_eq!(receipt.verdict, ApplyStatus::Interrupted);
    assert!(members(&world).iter().any(|member| member.id == retired), "no member was terminated");
    let again = apply_over(&plan, &world, &settings()).0.expect("not refused");
    assert_eq!(again.verdict, ApplyStatus::Applied, "{again:#?}");
    assert_eq!(raises(&world), 1);
    assert_as_planned(&world, &retired, 2);
}

#[test]
fn same_plan_finishes_a_group_apply_after_any_fault() {
    for fault in Fault::ALL {
        for at in 0..4 {
            let world = world();
            let retired = members(&world)[0].id.clone();
            let plan = plan(&world, 2);
            let faulty = FaultyPorts::new(&world, at, fault);
            let ports = all(&faulty);
            let (settings, mut silent) = (settings(), |_: &Event| {});
            drop(poll_once(apply(&plan, &ports, &settings, &mut silent)));
            let again = apply_over(&plan, &world, &settings).0.expect("not refused");
            assert_eq!(again.verdict, ApplyStatus::Applied, "{fault:?} at {at}: {again:#?}");
            assert_as_planned(&world, &retired, 2);
        }
    }
}

#[test]
fn missing_members_time_out_and_nothing_is_terminated() {
    let world = world();
    let retired = members(&world)[0].id.clone();
    let plan = plan(&world, 2);
    let instance_type = Some(InstanceTypeName::from("m5.large"));
    world.set_unavailable(vec![OfferingOutage { instance_type, ..OfferingOutage::default() }]);
    let receipt = apply_over(&plan, &world, &settings()).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    let abandoned = |change: &&ChangeOutcome| matches!(change.outcome, Outcome::Abandoned { .. });
    assert_eq!(receipt.outcomes.iter().filter(abandoned).count(), 2, "{receipt:#?}");
    assert!(members(&world).iter().any(|member| member.id == retired));
}

#[test]
fn group_resized_by_another_client_is_stale() {
    let world = world();
    let plan = plan(&world, 1);
    run(world.raise_group(&NAME.into(), 5)).expect("below the maximum");
    let refused = apply_over(&plan, &world, &settings()).0.expect_err("another size");
    assert!(
        matches!(&refused, ApplyError::Stale(failed) if failed[0].found == "5 members"),
        "{refused}"
    );
}
