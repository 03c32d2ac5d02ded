//! Drains that end by force: when pods are deleted, and what stays cordoned in between.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::apply::ports::Cluster as _;
use crate::model::ids::NodeName;
use crate::model::observed::{CORDONED_ANNOTATION, CordonReason, GRACE_PERIOD_ANNOTATION};

/// Returns a fleet whose pods no eviction may remove, and the plan to retire its nodes with a
/// termination grace period.
fn blocked_fleet(grace: SignedDuration) -> (World, Plan) {
    let world = fleet();
    world.deliver(&workloads(6).budget("api", None, Some("0"))).expect("kept in memory");
    let plan = with_grace(plan(&world), grace);
    (world, plan)
}

/// Returns the plan with a grace period in each row that retires a node.
fn with_grace(mut plan: Plan, grace: SignedDuration) -> Plan {
    for row in &mut plan.resource_changes {
        if row.change.actions.contains(&Action::Delete) {
            row.change.termination_grace_seconds = Some(grace.as_secs().unsigned_abs());
        }
    }
    plan
}

/// Returns the number of pods on the nodes that the plan retires.
fn pods_to_move(world: &World, plan: &Plan) -> usize {
    let deleted = plan.resource_changes.iter();
    let deleted = deleted.filter(|row| row.change.actions.contains(&Action::Delete));
    let nodes: Vec<_> =
        deleted.filter_map(|row| row.change.before.as_ref()?.node.clone()).collect();
    let moved =
        |pod: &crate::model::observed::Pod| pod.node.as_ref().is_some_and(|n| nodes.contains(n));
    pods(world, "api").iter().filter(|pod| moved(pod)).count()
}

/// Returns the times and the grace periods of the pod deletions.
fn deletions(world: &World) -> Vec<(Timestamp, u32)> {
    let deletion = |call: PortCall| match call {
        PortCall::DeletePod { at, grace_seconds, .. } => Some((at, grace_seconds)),
        PortCall::Launch { .. }
        | PortCall::Terminate { .. }
        | PortCall::RaiseGroup { .. }
        | PortCall::EndMember { .. }
        | PortCall::Cordon { .. }
        | PortCall::Open { .. }
        | PortCall::Evict { .. }
        | PortCall::DeleteNode { .. } => None,
    };
    world.calls().into_iter().filter_map(deletion).collect()
}

#[test]
fn blocked_pods_are_deleted_in_time_for_the_end_of_the_period() {
    let (world, plan) = blocked_fleet(MINUTE * 10);
    let moved = pods_to_move(&world, &plan);
    let (receipt, events) = apply_over(&plan, &world, &settings());
    assert_eq!(receipt.expect("not refused").verdict, ApplyStatus::Applied);
    assert_eq!(active(&world), planned_fleet(&plan));
    let at = |step: fn(&Step) -> bool| events.iter().find(|e| step(&e.step)).expect("one").at;
    let began = at(|step| matches!(step, Step::Cordoned { .. }));
    let ended = at(|step| matches!(step, Step::Terminating { .. }));
    let deleted = deletions(&world);
    assert_eq!(deleted.len(), moved);
    let poll = Bounds::default().poll;
    for (at, grace) in deleted {
        // Each pod has the 30 s of Kubernetes to stop before the period ends.
        let early = at.duration_since(began);
        assert!((MINUTE * 10 - SignedDuration::from_secs(30)..MINUTE * 10).contains(&early));
        let left = (began + MINUTE * 10).duration_since(at).as_secs();
        assert_eq!(i64::from(grace), left.max(30));
    }
    assert!(ended < began + MINUTE * 10 + poll * 2);
    assert_only_approved_writes(&world, &plan);
}

#[test]
fn drain_continues_in_later_applies_until_the_period_ends() {
    let (world, plan) = blocked_fleet(MINUTE * 60);
    let (began, moved) = (world.now(), pods_to_move(&world, &plan));
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    assert!(receipt.only_drains_continue());
    for key in ["0", "1"] {
        let left = outcome(&receipt, key, WaveStep::Retire);
        assert!(
            matches!(left, Outcome::Continues { why } if why.contains("web/api-budget")
                && why.contains("the node stays cordoned; pods left at ")),
            "{left:?}"
        );
    }
    assert_eq!(cordoned(&world).len(), 2);
    for node in cordoned(&world) {
        let since = node.grace_period_began_at().expect("an annotation");
        assert!(since.duration_since(began) < Bounds::default().ready, "{since}");
    }
    // A later attempt ends soon, because other removals wait for it.
    let second = world.now();
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Partly);
    assert!(world.now().duration_since(second) < MINUTE * 2);
    assert_eq!(deletions(&world), []);
    run(world.sleep(MINUTE * 60));
    let late = world.now();
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied);
    let deleted = deletions(&world);
    assert_eq!(deleted.len(), moved);
    assert!(deleted.iter().all(|(at, grace)| *at >= late && *grace == 30), "{deleted:?}");
    assert_eq!(active(&world), planned_fleet(&plan));
    assert!(!applied(&plan, &world).only_drains_continue(), "nothing is left");
}

#[test]
fn period_does_not_begin_with_the_cordon_of_another_drain() {
    let (world, plan) = blocked_fleet(MINUTE * 60);
    for node in world.observed().nodes.values() {
        run(world.cordon(node, CordonReason::Drain.into())).expect("known");
    }
    run(world.sleep(MINUTE * 120));
    let now = world.now();
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Partly);
    assert_eq!(deletions(&world), [], "no drain with a grace period had begun");
    let began: Vec<_> = cordoned(&world).iter().filter_map(Node::grace_period_began_at).collect();
    assert!(began.len() == 2 && began.iter().all(|at| *at >= now), "{began:?}");
}

#[test]
fn wrong_annotations_shorten_no_period() {
    for wrong in ["2030-01-01T00:00:00Z", "soon", ""] {
        let (world, plan) = blocked_fleet(MINUTE * 60);
        annotate(&world, wrong, |_| true);
        assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Partly, "{wrong}");
        assert_eq!(deletions(&world), [], "{wrong}");
        let began = cordoned(&world).into_iter().map(|node| node.grace_period_began_at());
        let began: Vec<_> = began.collect();
        let is_written = |began: &&Option<Timestamp>| began.is_some_and(|at| at <= world.now());
        assert_eq!(began.iter().filter(is_written).count(), 2, "{wrong}: {began:?}");
    }
}

#[test]
fn past_annotation_concerns_its_own_node_only() {
    let (world, plan) = blocked_fleet(MINUTE * 60);
    let node_of =
        |key: usize| plan.resource_changes[key].change.before.clone().and_then(|n| n.node);
    let (first, second) = (node_of(0).expect("a node"), node_of(1).expect("a node"));
    let on = |node: &NodeName| -> Vec<_> {
        let pods = pods(&world, "api").into_iter();
        pods.filter(|pod| pod.node.as_ref() == Some(node)).map(|pod| pod.uid.clone()).collect()
    };
    let (of_first, of_second) = (on(&first), on(&second));
    run(world.sleep(MINUTE * 30));
    let began = world.now() - MINUTE * 61;
    annotate(&world, &began.to_string(), |node| node.name == first);
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Partly);
    assert_eq!(deletions(&world).len(), of_first.len());
    assert_eq!(on(&second), of_second, "they still run");
}

/// Cordons nodes for a drain whose period began at the time of the text.
fn annotate(world: &World, began: &str, which: impl Fn(&Node) -> bool) {
    for node in world.observed().nodes.into_values().filter(|node| which(node)) {
        let annotations = [
            (CORDONED_ANNOTATION.to_owned(), "drain".to_owned()),
            (GRACE_PERIOD_ANNOTATION.to_owned(), began.to_owned()),
        ];
        world.update_node(&Node { unschedulable: true, annotations: annotations.into(), ..node });
    }
}

#[test]
fn instance_ends_with_pods_that_never_stop() {
    for grace in [None, Some(MINUTE * 10)] {
        let world = fleet();
        let plan = grace.map_or_else(|| plan(&world), |grace| with_grace(plan(&world), grace));
        world.stall_pods();
        let (receipt, events) = apply_over(&plan, &world, &settings());
        let ended = events.iter().find(|e| matches!(e.step, Step::Terminating { .. }));
        let cordon = events.iter().find(|e| matches!(e.step, Step::Cordoned { .. }));
        let verdict = receipt.expect("not refused").verdict;
        let Some(grace) = grace else {
            assert_eq!((verdict, ended), (ApplyStatus::Partly, None));
            continue;
        };
        let waited = ended.expect("ended").at.duration_since(cordon.expect("cordoned").at);
        assert_eq!(verdict, ApplyStatus::Applied);
        assert!((grace..grace + MINUTE).contains(&waited), "{waited}");
    }
}

#[test]
fn late_deletion_leaves_two_minutes_also_after_a_crash() {
    let (world, plan) = blocked_fleet(MINUTE * 60);
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Partly);
    run(world.sleep(MINUTE * 70));
    world.stall_pods();
    for pod in pods(&world, "api") {
        run(world.delete_pod(&pod, 30)).expect("known");
    }
    let deleted = world.now();
    let (receipt, events) = apply_over(&plan, &world, &settings());
    assert_eq!(receipt.expect("not refused").verdict, ApplyStatus::Applied);
    let ended = events.iter().find(|e| matches!(e.step, Step::Terminating { .. }));
    let waited = ended.expect("ended").at.duration_since(deleted);
    assert!((MINUTE * 2..MINUTE * 3).contains(&waited), "{waited}");
}

#[test]
fn attempt_waits_for_pods_that_are_due_before_the_next_one() {
    let world = fleet();
    let mut delivery = workloads(6).budget("api", None, Some("0"));
    let api = id(WorkloadKind::Deployment, "api");
    let mut template = crate::testing::simulator::template("api", 500);
    template.spec.termination_grace_seconds = Some(600);
    delivery.workloads.get_mut(&api).expect("delivered").template = template.into();
    world.deliver(&delivery).expect("kept in memory");
    world.settle(MINUTE * 5).expect("kept in memory");
    // The pods are due three minutes after the first attempt would end.
    let plan = with_grace(plan(&world), Bounds::default().drain + MINUTE * 13);
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied);
    let deleted = deletions(&world);
    assert!(!deleted.is_empty() && deleted.iter().all(|(_, grace)| *grace > 590), "{deleted:?}");
}

#[test]
fn foreign_cordon_begins_no_period() {
    let (world, plan) = blocked_fleet(MINUTE);
    for node in world.observed().nodes.into_values() {
        world.update_node(&Node { unschedulable: true, ..node });
    }
    let receipt = applied(&plan, &world);
    let left = outcome(&receipt, "0", WaveStep::Retire);
    assert!(matches!(left, Outcome::Abandoned { .. }), "{left:?}");
    assert_eq!(deletions(&world), []);
}

#[test]
fn do_not_disrupt_pods_run_until_the_period_ends() {
    let world = fleet();
    let mut delivery = workloads(6);
    let api = id(WorkloadKind::Deployment, "api");
    let mut template = crate::testing::simulator::template("api", 500);
    template.annotations.insert("karpenter.sh/do-not-disrupt".into(), "true".into());
    template.spec.termination_grace_seconds = Some(240);
    delivery.workloads.get_mut(&api).expect("delivered").template = template.into();
    world.deliver(&delivery).expect("kept in memory");
    world.settle(MINUTE * 5).expect("kept in memory");
    let plan = with_grace(plan(&world), MINUTE * 10);
    let (receipt, events) = apply_over(&plan, &world, &settings());
    assert_eq!(receipt.expect("not refused").verdict, ApplyStatus::Applied);
    assert!(!writes(&world).iter().any(|call| matches!(call, PortCall::Evict { .. })));
    let cordon = events.iter().find(|e| matches!(e.step, Step::Cordoned { .. })).expect("one").at;
    let deleted = deletions(&world);
    assert!(!deleted.is_empty());
    for (at, grace) in deleted {
        let after = at.duration_since(cordon);
        assert!((MINUTE * 6..MINUTE * 7).contains(&after), "{after}");
        assert!((180..=240).contains(&grace), "{grace}");
    }
}

#[test]
fn pods_of_a_job_that_might_fail_run_until_the_period_ends() {
    let world = fleet();
    world.deliver(&workloads(6).job("import", 6, 300, 6)).expect("kept in memory");
    world.settle(MINUTE * 5).expect("kept in memory");
    let plan = with_grace(plan(&world), MINUTE * 10);
    let (receipt, _) = apply_over(&plan, &world, &settings());
    assert_eq!(receipt.expect("not refused").verdict, ApplyStatus::Applied);
    let is_of_job = |name: &str| name.starts_with("import-");
    let calls = writes(&world);
    let is_eviction =
        |call: &PortCall| matches!(call, PortCall::Evict { name, .. } if is_of_job(name));
    let is_deletion =
        |call: &PortCall| matches!(call, PortCall::DeletePod { name, .. } if is_of_job(name));
    assert!(!calls.iter().any(is_eviction) && calls.iter().any(is_deletion), "{calls:?}");
}

#[test]
fn interrupted_drain_with_a_period_stays_cordoned() {
    let at_wave: fn(&Step) -> bool =
        |step| matches!(step, Step::Wave { step: WaveStep::Retire, .. });
    let when_blocked: fn(&Step) -> bool = |step| matches!(step, Step::Blocked { .. });
    for (is_moment, of_later_apply) in [(when_blocked, false), (at_wave, true)] {
        let (world, plan) = blocked_fleet(MINUTE * 60);
        if of_later_apply {
            assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Partly);
        }
        let flag = AtomicBool::new(false);
        let settings = ApplySettings { interrupted: Some(&flag), ..settings() };
        let ports = all(&world);
        let mut report = |event: &Event| {
            if is_moment(&event.step) {
                flag.store(true, Ordering::Relaxed);
            }
        };
        let receipt = run(apply(&plan, &ports, &settings, &mut report)).expect("begun");
        assert_eq!(receipt.verdict, ApplyStatus::Interrupted);
        let began: Vec<_> =
            cordoned(&world).iter().filter_map(Node::grace_period_began_at).collect();
        assert_eq!(began.len(), 2, "{of_later_apply}");
    }
}

#[test]
fn node_owner_ends_a_drain_with_a_period() {
    let (world, plan) = blocked_fleet(MINUTE * 60);
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Partly);
    for mut node in cordoned(&world) {
        node.annotations.insert("karpenter.sh/do-not-disrupt".to_owned(), "true".to_owned());
        world.update_node(&node);
    }
    run(world.sleep(MINUTE * 60));
    let receipt = applied(&plan, &world);
    let left = outcome(&receipt, "0", WaveStep::Retire);
    assert!(matches!(left, Outcome::Abandoned { .. }), "{left:?}");
    assert_eq!((cordoned(&world).len(), deletions(&world).len()), (0, 0));
    let nodes = world.observed().nodes;
    assert!(nodes.values().all(|node| !node.annotations.contains_key(GRACE_PERIOD_ANNOTATION)));
}

#[test]
fn refused_deletion_reverts_the_drain_in_the_end() {
    let (world, plan) = blocked_fleet(MINUTE);
    let ports = FaultyPorts { refuses_deletions: true, ..FaultyPorts::without_fault(&world) };
    let receipt = || run(apply(&plan, &all(&ports), &settings(), &mut |_: &Event| ()));
    let first = receipt().expect("not refused");
    let left = outcome(&first, "0", WaveStep::Retire);
    assert!(matches!(left, Outcome::Continues { why } if why.contains("delete pod")), "{left:?}");
    run(world.sleep(MINUTE * 120));
    let last = receipt().expect("not refused");
    let left = outcome(&last, "0", WaveStep::Retire);
    assert!(matches!(left, Outcome::Abandoned { why } if why.contains("delete pod")), "{left:?}");
    assert_eq!(cordoned(&world).len(), 0);
    assert!(pods(&world, "api").iter().all(|pod| !pod.terminating));
}

#[test]
fn pod_that_returns_past_the_cordon_ends_the_drain() {
    let (world, plan) = blocked_fleet(MINUTE * 60);
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Partly);
    run(world.sleep(MINUTE * 70));
    let node = cordoned(&world).first().expect("a node").name.clone();
    let now = world.now();
    let ports = FaultyPorts::without_fault(&world);
    ports.edit_objects.set(|objects| {
        let cordoned = objects.nodes.iter().find(|node| node.unschedulable).map(|n| n.name.clone());
        for pod in objects.pods.iter_mut().filter(|pod| pod.node == cordoned) {
            let pod = std::sync::Arc::make_mut(pod);
            pod.created_at = "2026-11-21T23:00:00Z".parse().expect("a time");
        }
        Ok(())
    });
    let receipt = run(apply(&plan, &all(&ports), &settings(), &mut |_: &Event| ()));
    let receipt = receipt.expect("not refused");
    let abandoned = receipt.outcomes.iter().any(|change| {
        matches!(&change.outcome, Outcome::Abandoned { why } if why.contains("tolerates the cordon"))
    });
    assert!(abandoned, "{node} at {now}: {receipt:?}");
}
