//! Auto Scaling groups: raised once in spite of crashes and interruptions, and reduced by name.

use std::sync::atomic::{AtomicBool, Ordering};

use super::super::*;
use crate::model::ids::InstanceTypeName;
use crate::model::observed::Group;
use crate::model::reason::KeepReason;
use crate::plan::wire::{Condition, ExplainRow, GroupSize, NodeState, Reason, ResourceChange};
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

fn size(desired: u32) -> NodeState {
    let group = GroupSize { name: Some(NAME.into()), min: 1, max: 5, desired };
    NodeState { group: Some(group), ..NodeState::empty() }
}

/// Returns a plan that adds `more` members and then retires one of the two old members.
fn plan(world: &World, more: u32) -> Plan {
    let observed = world.observed();
    let in_pool = |state| NodeState { pool: Some("batch".into()), ..state };
    let old = members(world).into_iter().map(|member| in_pool(old_node(&observed, &member)));
    let [retired, kept] = <[NodeState; 2]>::try_from(old.collect::<Vec<_>>()).expect("two members");
    let keys: Vec<String> = (2..2 + more).map(|key| key.to_string()).collect();
    let new = || in_pool(new_node("eu-west-1a"));
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
fn blocked_launch_wave_raises_no_group() {
    let world = world();
    let (plan, settings, ports) = (plan(&world, 2), settings(), all(&world));
    let waves = preconditions::check_plan(&plan, &settings, world.now()).expect("valid");
    let mut silent = |_: &Event| {};
    let report: &mut dyn FnMut(&Event) = &mut silent;
    let mut blocked = Run {
        plan: &plan,
        ports: &ports,
        settings: &settings,
        report: RefCell::new(report),
        groups: wave_plan::groups(&plan),
        exceptions: Exceptions::default(),
        outcomes: RefCell::default(),
        observation: None,
        joins_batches: true,
        called_off: None,
    };
    run(blocked.launch_wave(waves[0].launches(), Some("a pod fits nowhere else")));
    assert_eq!(raises(&world), 0);
    let skipped = Outcome::Skipped { why: "a pod fits nowhere else".to_owned() };
    let outcomes: Vec<Outcome> =
        blocked.outcomes.into_inner().into_iter().map(|change| change.outcome).collect();
    assert_eq!(outcomes, [skipped.clone(), skipped]);
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

/// Returns a plan that replaces all members but the first by instances, in two batches.
fn replacement(world: &World) -> Plan {
    let observed = world.observed();
    let explain = |address: Address, launches: bool| {
        let mut row = ExplainRow::new(address, Reason::Keep { because: KeepReason::NotOurs });
        row.group = Some("r0".to_owned());
        let pods = [("web/Deployment/api".into(), 1)].into();
        if launches {
            row.pods = pods;
        } else {
            row.pods_before = pods;
        }
        row
    };
    let mut plan = Plan::unchanged(&observed);
    let (mut launched, mut removed) = (Vec::new(), Vec::new());
    for (key, member) in members(world).iter().enumerate() {
        let state = NodeState { pool: Some("batch".into()), ..old_node(&observed, member) };
        let key = key.to_string();
        if key == "0" {
            plan = plan.with_rows([ResourceChange::retained("batch", &key, state)]);
            continue;
        }
        let removal = ResourceChange::removal("batch", &key, state);
        let launch = ResourceChange::launch("web", &key, new_node("eu-west-1a"));
        launched.push(launch.address.clone());
        removed.push(removal.address.clone());
        let [of_launch, of_removal] =
            [explain(launch.address.clone(), true), explain(removal.address.clone(), false)];
        plan = plan.with_explained_rows([(removal, of_removal), (launch, of_launch)]);
    }
    let members = u32::try_from(removed.len() + 1).expect("few");
    let mut plan = plan
        .with_rows([ResourceChange::resize("batch", size(members), size(1))])
        .with_wave(WaveStep::Launch, launched)
        .with_wave(WaveStep::Retire, removed)
        .with_precondition(ROW.into(), Condition::GroupIs { group: NAME.into(), desired: members });
    (plan.capacity.digest, plan.capacity.plan_id) = ("sha256:1".into(), "plan-1".into());
    plan
}

#[test]
fn member_of_a_later_batch_that_ends_is_not_missing() {
    let world = simulator::world();
    let zones = vec!["eu-west-1a".into()];
    deliver_group(&world, "batch", Group { zones, ..group(NAME, 5) });
    let (plan, last) = (replacement(&world), members(&world)[4].id.clone());
    let (settings, ports, mut waves) = (settings(), all(&world), 0);
    let mut report = |event: &Event| {
        waves += usize::from(matches!(event.step, Step::Wave { .. }));
        if matches!(event.step, Step::Cordoned { .. }) {
            world.reclaim_instance(&last);
        }
    };
    let receipt = run(apply(&plan, &ports, &settings, &mut report)).expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:#?}");
    assert_eq!(waves, 4);
}
