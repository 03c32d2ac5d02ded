//! Groups: raised once by number, however often the run dies or is interrupted, and shrunk by name.

use std::sync::atomic::{AtomicBool, Ordering};

use super::super::fixture::{Fault, FaultyPorts, apply_over, capacity, new_node, row, settings};
use super::super::*;
use crate::apply::ports::LaunchRequest;
use crate::model::ids::InstanceTypeName;
use crate::model::market::CapacityType;
use crate::model::observed::{Group, Instance};
use crate::plan::wire::{
    Action, Condition, GroupSize, NodeState, Precondition, ResourceChange, ResourceKind, Summary,
    Wave,
};
use crate::simulator::fixture::{genesis, poll_once, request, run, shapes};
use crate::simulator::{DeliveredGroup, Delivery, LaunchTemplate, OfferingOutage, PortCall, World};

const NAME: &str = "asg-batch";
const ROW: &str = "autoscaling_group.batch";

/// A world with a group of two m5.large that may have one to five.
fn world() -> World {
    let world = World::in_memory(&genesis(), shapes());
    let tags = [("alpha.eksctl.io/nodegroup-name".to_owned(), "batch".to_owned())];
    let group = Group {
        name: NAME.into(),
        min: 1,
        max: 5,
        desired: 2,
        types: vec!["m5.large".into()],
        zones: vec!["eu-west-1a".into()],
        tags: tags.clone().into(),
        suspended: Vec::new(),
        schedules: Vec::new(),
        schedules_unread: None,
    };
    let machine = LaunchRequest { tags: [].into(), ..request("unused") };
    let template = LaunchTemplate::new(CapacityType::OnDemand, vec![machine]);
    let groups = vec![DeliveredGroup { group, identity: tags.into(), template }];
    world.deliver(&Delivery { groups, ..Delivery::default() }).expect("kept in memory");
    world.settle(SignedDuration::from_mins(10)).expect("kept in memory");
    world
}

fn members(world: &World) -> Vec<Instance> {
    let all = world.observed().instances.into_values();
    all.filter(|instance| instance.is_active() && instance.group.is_some()).collect()
}

fn raises(world: &World) -> usize {
    world.calls().iter().filter(|call| matches!(call, PortCall::RaiseGroup { .. })).count()
}

fn in_pool(mut row: ResourceChange) -> ResourceChange {
    row.address = format!("ec2_instance.batch[\"{}\"]", row.index.as_deref().unwrap_or("")).into();
    row.name = "batch".into();
    for state in [&mut row.change.before, &mut row.change.after].into_iter().flatten() {
        state.pool = Some("batch".into());
    }
    row
}

fn of(instance: &Instance, observed: &Observed) -> NodeState {
    let node = observed.node_for_instance(&instance.id).expect("registered");
    NodeState {
        instance_type: Some(instance.instance_type.clone()),
        instance_id: Some(instance.id.clone()),
        node: Some(node.name.clone()),
        node_uid: Some(node.uid.clone()),
        ..new_node("eu-west-1a")
    }
}

/// Has one of the two members go once `more` new ones are there.
fn plan(world: &World, more: u32) -> Plan {
    let observed = world.observed();
    let old = members(world);
    let mut rows = vec![in_pool(row("0", &[Action::Delete], [Some(of(&old[0], &observed)), None]))];
    rows.push(in_pool(row(
        "1",
        &[Action::NoOp],
        [Some(of(&old[1], &observed)), Some(of(&old[1], &observed))],
    )));
    for key in 2..2 + more {
        let fresh = new_node("eu-west-1a");
        rows.push(in_pool(row(&key.to_string(), &[Action::Create], [None, Some(fresh)])));
    }
    let size = |desired| {
        let group = GroupSize { name: Some(NAME.into()), min: 1, max: 5, desired };
        Some(NodeState { group: Some(group), ..NodeState::empty() })
    };
    let mut group = row("0", &[Action::Update], [size(2), size(1 + more)]);
    (group.address, group.name, group.index) = (ROW.into(), "batch".into(), None);
    group.kind = ResourceKind::AutoscalingGroup;
    let addresses = |action: Action| {
        let of = rows.iter().filter(|row| row.change.actions == [action]);
        of.map(|row| row.address.clone()).collect()
    };
    let waves = vec![
        Wave { step: WaveStep::Launch, addresses: addresses(Action::Create) },
        Wave { step: WaveStep::Retire, addresses: addresses(Action::Delete) },
    ];
    let mut capacity = capacity(&observed, waves);
    capacity.base.preconditions = vec![Precondition {
        address: ROW.into(),
        condition: Condition::GroupIs { group: NAME.into(), desired: 2 },
    }];
    rows.push(group);
    Plan {
        format_version: crate::plan::wire::FORMAT_VERSION.into(),
        tool_version: "test".into(),
        timestamp: observed.taken_at,
        applyable: true,
        complete: true,
        errored: false,
        resource_changes: rows,
        resource_drift: Vec::new(),
        checksum: None,
        checks: Vec::new(),
        summary: Summary::default(),
        capacity,
    }
}

fn assert_as_planned(world: &World, gone: &InstanceId, more: usize) {
    world.settle(SignedDuration::from_mins(10)).expect("kept in memory");
    let members = members(world);
    assert_eq!(members.len(), 1 + more, "one stays, and what was asked for comes");
    assert!(members.iter().all(|member| member.id != *gone));
    let desired = world.observed().groups[NAME].desired;
    assert_eq!(usize::try_from(desired), Ok(1 + more), "the group is as large as it has members");
}

#[test]
fn a_group_is_raised_once_for_all_of_its_new_members_and_loses_the_named_one() {
    let world = world();
    let gone = members(&world)[0].id.clone();
    let receipt = apply_over(&plan(&world, 3), &world, &settings()).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:#?}");
    assert_eq!(raises(&world), 1);
    assert_as_planned(&world, &gone, 3);
}

#[test]
fn an_interrupted_group_apply_is_finished_by_the_same_plan_and_raises_no_further() {
    let world = world();
    let gone = members(&world)[0].id.clone();
    let plan = plan(&world, 2);
    let flag = AtomicBool::new(false);
    let settings_now = ApplySettings { interrupted: Some(&flag), ..settings() };
    let ports = Ports { cloud: &world, cluster: &world, clock: &world };
    let mut report = |event: &Event| {
        if matches!(event.step, Step::Raised { .. }) {
            flag.store(true, Ordering::Relaxed);
        }
    };
    let receipt = run(apply(&plan, &ports, &settings_now, &mut report)).expect("begun");
    assert_eq!(receipt.verdict, ApplyStatus::Interrupted);
    assert!(members(&world).iter().any(|member| member.id == gone), "nothing went");
    let again = apply_over(&plan, &world, &settings()).0.expect("not refused");
    assert_eq!(again.verdict, ApplyStatus::Applied, "{again:#?}");
    assert_eq!(raises(&world), 1);
    assert_as_planned(&world, &gone, 2);
}

#[test]
fn a_group_apply_may_die_at_any_write_and_the_same_plan_finishes_it() {
    for fault in Fault::ALL {
        for at in 0..4 {
            let world = world();
            let gone = members(&world)[0].id.clone();
            let plan = plan(&world, 2);
            let faulty = FaultyPorts::new(&world, at, fault);
            let ports = Ports { cloud: &faulty, cluster: &faulty, clock: &faulty };
            let (settings, mut silent) = (settings(), |_: &Event| {});
            drop(poll_once(apply(&plan, &ports, &settings, &mut silent)));
            let again = apply_over(&plan, &world, &settings).0.expect("not refused");
            assert_eq!(again.verdict, ApplyStatus::Applied, "{fault:?} at {at}: {again:#?}");
            assert_as_planned(&world, &gone, 2);
        }
    }
}

#[test]
fn members_that_do_not_come_are_given_up_and_nothing_goes() {
    let world = world();
    let gone = members(&world)[0].id.clone();
    let plan = plan(&world, 2);
    let instance_type = Some(InstanceTypeName::from("m5.large"));
    world.set_unavailable(vec![OfferingOutage { instance_type, ..OfferingOutage::default() }]);
    let receipt = apply_over(&plan, &world, &settings()).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    let given_up = |change: &&ChangeOutcome| matches!(change.outcome, Outcome::GivenUp { .. });
    assert_eq!(receipt.outcomes.iter().filter(given_up).count(), 2, "{receipt:#?}");
    assert!(members(&world).iter().any(|member| member.id == gone));
}

#[test]
fn a_group_that_somebody_else_resized_is_stale() {
    let world = world();
    let plan = plan(&world, 1);
    run(world.raise_group(&NAME.into(), 5)).expect("below its most");
    let refused = apply_over(&plan, &world, &settings()).0.expect_err("another size");
    assert!(
        matches!(&refused, ApplyError::Stale(failed) if failed[0].found == "5 members"),
        "{refused}"
    );
}
