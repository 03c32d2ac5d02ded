//! Launches until the node is Ready, or until the timeout.

use std::cell::RefCell;

use super::*;
use crate::model::pod::{Taint, TaintEffect, Toleration, TolerationOperator};

#[test]
fn node_is_ready_once_its_startup_taints_are_removed() {
    let ready_after = |startup_taints: Vec<Taint>| {
        let world = fleet();
        let mut plan = plan(&world);
        for row in &mut plan.resource_changes {
            if let Some(after) = &mut row.change.after {
                after.startup_taints.clone_from(&startup_taints);
            }
        }
        let began = world.now();
        let (receipt, events) = apply_over(&plan, &world, &settings());
        assert_eq!(receipt.expect("not refused").verdict, ApplyStatus::Applied);
        let ready = events.iter().find(|event| matches!(event.step, Step::Ready { .. }));
        ready.expect("three of them").at.duration_since(began)
    };
    let effect = TaintEffect::NoSchedule;
    let taint = Taint { key: "agent/not-ready".into(), value: "".into(), effect };
    assert_eq!(ready_after(Vec::new()), crate::simulator::delay::READY);
    assert_eq!(ready_after(vec![taint]), crate::simulator::delay::INITIALIZED);
}

#[test]
fn timed_out_launch_is_terminated_and_retried_by_the_next_run() {
    let world = fleet();
    let plan = plan(&world);
    let mut settings = settings();
    settings.bounds.ready = SignedDuration::from_secs(30);
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    let outcome = outcome(&receipt, "2", WaveStep::Launch);
    assert!(
        matches!(outcome, Outcome::Abandoned { why } if why.contains("terminated")),
        "{outcome:?}"
    );
    let keys = |world: &World| active(world).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(keys(&world), ["", "0", "1"], "timed-out instances are terminated, others are kept");
    world.settle(MINUTE * 5).expect("kept in memory");
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied);
    assert_eq!(active(&world), planned_fleet(&plan), "a new attempt has a new token");
}

#[test]
fn timed_out_node_is_cordoned_before_its_termination() {
    let world = fleet();
    let plan = plan(&world);
    let mut settings = settings();
    settings.bounds.ready = SignedDuration::from_secs(40);
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    let abandoned = receipt.outcomes.iter().filter(|change| {
        matches!(&change.outcome, Outcome::Abandoned { why } if why.contains("was terminated"))
    });
    let abandoned: Vec<InstanceId> = abandoned.filter_map(|c| c.instance_id.clone()).collect();
    assert!(!abandoned.is_empty(), "{receipt:?}");
    let (mut cordoned, mut terminated) = (0, 0);
    for call in writes(&world) {
        if let PortCall::Terminate { instance, .. } = &call
            && abandoned.contains(instance)
        {
            terminated += 1;
            assert!(cordoned >= terminated, "{instance} was terminated without a cordon");
        }
        cordoned += usize::from(matches!(call, PortCall::Cordon { unschedulable: true, .. }));
    }
    assert_eq!(terminated, abandoned.len());
}

#[test]
fn timed_out_instance_with_pods_is_kept() {
    let world = fleet();
    let plan = plan(&world);
    let mut delivery = workloads(12);
    let mut template = crate::testing::simulator::template("api", 500);
    let tolerates_all =
        Toleration { operator: TolerationOperator::Exists, ..Toleration::default() };
    template.spec.tolerations.push(tolerates_all);
    let api = id(WorkloadKind::Deployment, "api");
    delivery.workloads.get_mut(&api).expect("delivered").template = template.into();
    world.deliver(&delivery).expect("kept in memory");
    let mut settings = settings();
    settings.bounds.ready = SignedDuration::from_secs(40);
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    let outcomes = ["1", "2", "3"].map(|key| outcome(&receipt, key, WaveStep::Launch));
    let is_kept =
        |o: &&&Outcome| matches!(o, Outcome::Abandoned { why } if why.contains("was kept"));
    assert!(outcomes.iter().any(|o| is_kept(&o)), "{outcomes:?}");
    world.settle(MINUTE * 5).expect("kept in memory");
    assert!(active(&world).len() > 3, "instances with pods are kept");
}

#[test]
fn uncordon_during_the_timeout_prevents_the_termination() {
    let world = fleet();
    // Without removals, a late launch is not taken back.
    let plan = without_retirements(plan(&world));
    let mut settings = settings();
    settings.bounds.ready = SignedDuration::from_secs(40);
    let first = RefCell::new(None);
    let mut report = |event: &Event| {
        let mut first = first.borrow_mut();
        if let (Step::Cordoned { node }, None) = (&event.step, &*first) {
            let found = world.observed().nodes[node].clone();
            world.update_node(&Node { unschedulable: false, ..found });
            *first = Some(node.clone());
        }
    };
    let ports = all(&world);
    run(apply(&plan, &ports, &settings, &mut report)).expect("not refused");
    let first = first.take().expect("one was cordoned");
    let node = world.observed().nodes.remove(&first).expect("it joined");
    assert!(!node.unschedulable && node.annotations.is_empty());
    let instance = node.instance.and_then(|id| world.instance(&id)).expect("it was launched");
    assert!(instance.is_active(), "the node became Ready");
}

#[test]
fn observation_with_pods_but_no_nodes_terminates_nothing() {
    let world = fleet();
    let plan = plan(&world);
    let faulty = FaultyPorts::without_fault(&world);
    let ports = all(&faulty);
    let mut report = |event: &Event| {
        if matches!(event.step, Step::Launched { .. }) {
            faulty.edit_objects.set(|objects| {
                objects.nodes.clear();
                Ok(())
            });
        }
    };
    let receipt = run(apply(&plan, &ports, &settings(), &mut report)).expect("not refused");
    for key in ["1", "2", "3"] {
        let kept = outcome(&receipt, key, WaveStep::Launch);
        let is_reported = matches!(kept, Outcome::Abandoned { why } if why.contains("and no node"));
        assert!(is_reported, "{kept:?}");
    }
    assert!(!writes(&world).iter().any(|call| matches!(call, PortCall::Terminate { .. })));
}
