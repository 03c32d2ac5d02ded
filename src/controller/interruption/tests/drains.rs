//! Start, order and end of the evictions of an interrupted instance.

use super::*;

/// Returns the interruption of `i-1`, draining since it became known.
pub(super) fn drains(deadline: Option<Timestamp>) -> Interruption {
    let why = "health".to_owned();
    Interruption {
        record: InterruptionRecord {
            instance: "i-1".into(),
            why,
            since: at(0),
            deadline,
            member: false,
            announced: None,
        },
        progress: Progress::Draining(Drain::new(at(0), true)),
        attempts: 0,
        retry_at: at(0),
        unschedulable: true,
        cordoning: false,
        drain_abandoned: false,
        trusted_from: 1,
        known_from: 1,
    }
}

/// Returns the node of `i-1`, cordoned without our mark.
pub(super) fn cordoned_node() -> Node {
    let node = with_a_drain(0).nodes.remove(&NodeName::from("node-of-i-1")).expect("it");
    Node { annotations: BTreeMap::new(), ..node }
}

/// Returns the context of a step after this many minutes: the replacement is there.
pub(super) fn context_at(minutes: i64) -> StepContext {
    StepContext {
        now: at(60 * minutes),
        sighting: NodeSighting::Present,
        is_replaced: true,
        is_observation_trusted: true,
        is_observation_newer: true,
        is_drained_by_apply: false,
        drain_room: DrainRoom::Any,
        next_observation: 2,
    }
}

/// Runs a step of an interruption with one pod left on its node; returns the transition and the
/// effects.
pub(super) fn step_with_pod(
    interruption: &mut Interruption,
    minutes: i64,
    node: &Node,
    drained: bool,
) -> (Transition, Vec<Effect>) {
    let context = StepContext { is_drained_by_apply: drained, ..context_at(minutes) };
    step_in(interruption, node, context)
}

/// Runs such a step in a context.
pub(super) fn step_in(
    interruption: &mut Interruption,
    node: &Node,
    context: StepContext,
) -> (Transition, Vec<Effect>) {
    let pod = Pod { node: Some(node.name.clone()), ..world::pod("api") };
    let mut effects = Vec::new();
    let (to_evict, evict_next) = (vec![&pod], vec![&pod]);
    let view = NodeView { node: Some(node), to_evict, evict_next, attached: None };
    let transition = interruption.step(&view, context, &mut effects);
    (transition, effects)
}

/// Returns whether pods of `i-1` are evicted this many minutes after its interruption became known,
/// without a replacement.
fn drains_at(minutes: i64, deadline: Option<i64>, blocked: bool) -> bool {
    let launches = EvictionWait::Launches { since: at(0) };
    drains_by(minutes, deadline, if blocked { EvictionWait::Blocked } else { launches }, true)
}

/// Returns the same; for a partial observation where `observed` is not set.
fn drains_by(minutes: i64, deadline: Option<i64>, wait: EvictionWait, observed: bool) -> bool {
    let deadline = deadline.map(|minutes| at(60 * minutes));
    let progress = Progress::Replacing { wait };
    let interruption = Interruption { progress, ..drains(deadline) };
    drains_in_step(interruption, minutes, observed, DrainRoom::Any)
}

/// Returns whether a step after this many minutes begins to evict.
pub(super) fn drains_in_step(
    mut interruption: Interruption,
    minutes: i64,
    observed: bool,
    drain_room: DrainRoom,
) -> bool {
    let node = cordoned_node();
    let context = StepContext {
        is_replaced: false,
        is_observation_trusted: observed,
        drain_room,
        ..context_at(minutes)
    };
    interruption.step(
        &NodeView { node: Some(&node), ..NodeView::default() },
        context,
        &mut Vec::new(),
    );
    interruption.phase() == InterruptionPhase::Draining
}

#[test]
fn pods_wait_for_replacement_until_deadline_or_while_blocked() {
    const DAYS: i64 = 24 * 60;
    for (what, deadline, blocked, stay, leave) in [
        ("two minutes", Some(2), false, 0, 1),
        ("two minutes, blocked", Some(2), true, 0, 1),
        ("half an hour", Some(30), true, 14, 15),
        ("two weeks", Some(14 * DAYS), false, 14 * DAYS - 16, 14 * DAYS - 15),
        ("two weeks, blocked", Some(14 * DAYS), true, 14 * DAYS - 16, 14 * DAYS - 15),
        ("without a deadline", None, false, 9, 10),
        ("past long before it became known", Some(-60), false, 9, 10),
    ] {
        assert!(!drains_at(stay, deadline, blocked), "{what}: too soon");
        assert!(drains_at(leave, deadline, blocked), "{what}: too late");
    }
    assert!(drains_at(0, Some(-1), true), "by the clock of EC2 it may lie ahead");
    assert!(!drains_at(2 * DAYS, None, true), "without a deadline, and blocked");
    assert!(!drains_at(2 * DAYS, Some(-60), true), "blocked, and past long before it became known");
    let launches = EvictionWait::Launches { since: at(0) };
    assert!(!drains_by(2 * DAYS, None, launches, false), "its pods could not be read");
    assert!(drains_by(1, Some(2), launches, false), "EC2 does not wait for an observation");
}

#[test]
fn block_applies_to_pods_planned_on_the_blocked_launch() {
    let mut plan = crate::testing::sample_plan::plan();
    let (address, workload) = (plan.resource_changes[0].address.clone(), workload_id());
    let row = PlacementRow { workload: workload.clone(), address: address.clone(), pods: 1 };
    plan.capacity.placements = vec![row];
    plan.capacity.unschedulable.clear();
    let of = |namespace: &str| {
        let owner = WorkloadId { namespace: namespace.into(), ..workload.clone() };
        Pod { owner: Some(owner), ..world::pod("a") }
    };
    let (mine, other) = (of(workload.namespace.as_str()), of("elsewhere"));
    plan.row_mut(&address).change.actions = vec![Action::Create];
    let suspended = BlockedReason::Suspended { reason: "a freeze".to_owned(), until: None };
    for (why, stays) in [(suspended, true), (BlockedReason::InProgress, false)] {
        let blocked = [(address.clone(), crate::controller::gates::with_message(why))].into();
        let (id, unknown) = (InstanceId::from("i-1"), InstanceId::from("i-2"));
        let outlook = PlannedReplacements::from_plan(&plan, &blocked, [id.clone()].into());
        assert_eq!(outlook.block_on(&[&other, &mine]).is_some(), stays);
        assert!(outlook.block_on(&[&other]).is_none() && outlook.has_places_for(&id, &[&mine]));
        // The plan says nothing about an instance that it still counts.
        assert!(!outlook.has_places_for(&unknown, &[&mine]));
        assert_eq!(
            outlook.wait_for(&unknown, &[&other], at(5)),
            EvictionWait::Plan { since: at(5) }
        );
        assert_eq!(
            outlook.wait_for(&id, &[&other], at(5)),
            EvictionWait::Launches { since: at(5) }
        );
    }
}

/// Returns the world in which `i-1` is drained, with these pods on its node. Pods whose names begin
/// with `dns` are critical.
fn with_pods(seconds: i64, pods: &[&str]) -> Observed {
    let mut world = with_a_drain(seconds);
    let node = world.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it");
    node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "interruption".to_owned());
    let mut template = PodTemplate::default();
    world.templates.insert("t".to_owned(), Arc::new(template.clone()));
    template.spec.priority_class_name = Some("system-cluster-critical".into());
    world.templates.insert("critical".to_owned(), Arc::new(template));
    world.pods.extend(pods.iter().map(|name| {
        let pod = world::pod(name);
        let template = if name.starts_with("dns") { "critical".into() } else { pod.template };
        let (node, phase) = (Some("node-of-i-1".into()), PodPhase::Running);
        Arc::new(Pod { template, node, phase, ..pod })
    }));
    world
}

/// Returns a scenario that evicts pods of `i-1`, which EC2 reclaims in two minutes.
fn is_drained() -> ControllerHarness {
    let mut harness = ControllerHarness::leading();
    harness.observe(2, with_pods(2, &["api", "dns"]));
    harness.interrupt(3, MessageKind::SpotInterruption, &["i-1"], Some(120));
    for n in 63..66 {
        harness.finish_saving(n);
        harness.observe(n, with_pods(n, &["api", "dns"]));
    }
    assert_eq!(
        harness.state().interruptions.all[&InstanceId::from("i-1")].phase(),
        InterruptionPhase::Draining
    );
    harness
}

/// Returns the pods that are evicted after an observation.
fn evicted_pods(harness: &mut ControllerHarness, seconds: i64, pods: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    harness.modify(|state| {
        let id = InstanceId::from("i-1");
        let interruption = state.interruptions.all.get_mut(&id).expect("it goes");
        interruption.retry_now(at(0));
        state.now = at(seconds);
        let world = with_pods(seconds, pods);
        let (node, mut effects) = (world.node_for_instance(&id), Vec::new());
        let pods = |node: &NodeName| planning_snapshot::pods_to_evict(&world, node);
        state.advance_interruption(&id, None, &world, node, pods, &mut effects);
        for effect in effects {
            let Effect::Evict { pods, .. } = effect else { continue };
            found.extend(pods.into_iter().map(|pod| pod.name.to_string()));
        }
    });
    found
}

#[test]
fn critical_pods_are_evicted_last_unless_end_is_near() {
    let mut harness = is_drained();
    assert_eq!(evicted_pods(&mut harness, 70, &["api", "dns"]), ["api"]);
    assert_eq!(evicted_pods(&mut harness, 80, &["dns"]), ["dns"]);
    assert_eq!(
        evicted_pods(&mut harness, 95, &["api", "dns"]),
        ["api", "dns"],
        "EC2 ends it in a context"
    );
}

#[test]
fn instance_terminates_after_volumes_detach_or_time_out() {
    let node = with_a_drain(0).nodes.remove(&NodeName::from("node-of-i-1")).expect("it");
    let volume = "pv-1".to_owned();
    let mut interruption = drains(None);
    let ends = |interruption: &mut Interruption, minutes: i64, attached: bool| {
        let attached = attached.then_some(&volume);
        let view = NodeView { node: Some(&node), attached, ..NodeView::default() };
        let mut effects = Vec::new();
        interruption.step(&view, context_at(minutes), &mut effects);
        effects.iter().any(|effect| matches!(effect, Effect::Terminate { .. }))
    };
    assert!(!ends(&mut interruption.clone(), 1, true) && ends(&mut interruption.clone(), 1, false));
    assert!(!ends(&mut interruption, 1, true) && !ends(&mut interruption, 6, true));
    assert!(ends(&mut interruption, 7, true), "a driver that never detaches delays nothing");
    let mut broken = drains(None);
    broken.record.why = "not-ready".to_owned();
    assert!(ends(&mut broken, 1, true), "a dead kubelet detaches nothing");
}

#[test]
fn instance_of_a_deleted_node_is_terminated_once_replaced() {
    let is_terminated = |sighting: NodeSighting| {
        let mut interruption = drains(None);
        interruption.record.why = NODE_DELETED.to_owned();
        interruption.progress = Progress::Noticed { since: at(0) };
        (1..=5).any(|seconds| {
            let context = StepContext { now: at(seconds), sighting, ..context_at(0) };
            let mut effects = Vec::new();
            interruption.step(&NodeView::default(), context, &mut effects);
            effects.iter().any(|effect| matches!(effect, Effect::Terminate { .. }))
        })
    };
    assert!(is_terminated(NodeSighting::Deleted));
    assert!(!is_terminated(NodeSighting::Lost), "one observation cannot show that it is gone");
}

#[test]
fn node_of_terminated_instance_is_deleted() {
    let gone = |seconds: i64, state: Option<InstanceState>, ready: bool| {
        let mut seen = with_pods(seconds, &[]);
        let id = InstanceId::from("i-1");
        match state {
            Some(state) => seen.instances.get_mut(&id).expect("it").state = state,
            None => drop(seen.instances.remove(&id)),
        }
        seen.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it").ready = ready;
        Event::Observed(Arc::new(seen))
    };
    let removes = ["removes node-of-i-1"];
    let ended = Some(InstanceState::Terminated);
    for (what, state, ready, expected) in [
        ("terminated", ended, true, &removes[..]),
        // It may run, untagged or detached from its group.
        ("no longer listed", None, false, &[]),
        ("stopped", Some(InstanceState::Stopped), false, &[]),
        ("shutting down", Some(InstanceState::ShuttingDown), false, &[]),
    ] {
        let mut harness = is_drained();
        let done = harness.step_at(70, gone(70, state, ready));
        assert_eq!(done, expected, "{what}");
        let waits = expected == removes || state == Some(InstanceState::ShuttingDown);
        assert_eq!(harness.state().interruptions.all.is_empty(), !waits, "{what}");
    }
    let mut harness = is_drained();
    harness.step_at(70, gone(70, Some(InstanceState::ShuttingDown), false));
    assert_eq!(harness.step_at(100, gone(100, ended, false)), removes);
    let failed = PortError {
        verb: "delete node".to_owned(),
        reason: "forbidden".to_owned(),
        effect: CallEffect::NotApplied,
    };
    harness.step_at(101, Event::NodeDeleted { instance: "i-1".into(), result: Err(failed) });
    assert_eq!(harness.step_at(101, gone(101, ended, false)), [""; 0], "not at once");
    assert_eq!(harness.step_at(110, gone(110, ended, false)), removes);
    harness.step_at(111, Event::NodeDeleted { instance: "i-1".into(), result: Ok(()) });
    assert!(harness.state().interruptions.all.is_empty());
    // A node that cannot be deleted is left.
    let mut harness = is_drained();
    harness.step_at(70, gone(70, ended, false));
    harness.step_at(671, gone(671, ended, false));
    assert!(harness.state().interruptions.all.is_empty());
}

#[test]
fn replacement_is_noticed_during_a_drain_that_an_announcement_began() {
    let mut harness = is_drained();
    harness.modify(|state| {
        let id = InstanceId::from("i-1");
        let mut plan = crate::testing::sample_plan::plan();
        plan.capacity.unschedulable.clear();
        let gone = [id.clone()].into();
        let replacements = PlannedReplacements::from_plan(&plan, &BTreeMap::new(), gone);
        state.planning.replacements = replacements;
        let interruption = state.interruptions.all.get_mut(&id).expect("it goes");
        (interruption.record.why, interruption.record.deadline) = ("not-ready".to_owned(), None);
        interruption.progress = Progress::Draining(Drain::new(at(65), true));
        let world = with_pods(65, &["api"]);
        for is_replaced in [false, true] {
            let (node, mut effects) = (world.node_for_instance(&id), Vec::new());
            let pods = |node: &NodeName| planning_snapshot::pods_to_evict(&world, node);
            state.advance_interruption(&id, Some(is_replaced), &world, node, pods, &mut effects);
            let interruption = &state.interruptions.all[&id];
            assert_eq!(interruption.is_drained_unconfirmed(), !is_replaced);
        }
    });
}

#[test]
fn message_about_an_instance_whose_drain_is_abandoned_is_not_lost() {
    let mut harness = is_drained();
    let id = InstanceId::from("i-1");
    harness.modify(|state| {
        let interruption = state.interruptions.all.get_mut("i-1").expect("it goes");
        // Its node is being uncordoned.
        (interruption.drain_abandoned, interruption.cordoning) = (true, true);
    });
    let done = harness.interrupt(70, MessageKind::SpotInterruption, &["i-1"], Some(120));
    assert_eq!(done, [""; 0], "it is not cordoned for the warning yet");
    let known = &harness.state().interruptions.all[&id];
    assert!(!known.drain_abandoned && known.cordoning);
    assert_eq!(known.phase(), InterruptionPhase::Noticed);
    let result = Ok(CordonOutcome::Written);
    let mut done = harness.step_at(71, Event::Uncordoned { instance: id.clone(), result });
    assert!(harness.state().interruptions.all.contains_key(&id), "the warning is known");
    for seconds in [72, 90, 110, 130] {
        let mut seen = with_pods(seconds, &["api"]);
        let node = seen.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it");
        node.unschedulable = false;
        done.extend(harness.finish_saving(seconds));
        harness.modify(|state| state.observation.reads.due = at(seconds));
        done.extend(harness.step_at(seconds, Event::Timer));
        done.extend(harness.observe(seconds, seen));
    }
    assert_eq!(done, ["cordons node-of-i-1"]);
}

fn uncordons(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Uncordon { .. }))
}

#[test]
fn drain_is_not_abandoned_while_an_apply_drains_the_node() {
    let node = with_a_drain(0).nodes.remove(&NodeName::from("node-of-i-1")).expect("it");
    let mut interruption = drains(None);
    for (minutes, drained, expected) in [
        (14, false, (false, false)),
        (16, true, (false, false)),
        (17, false, (true, false)),
        (18, true, (false, false)),
        (19, false, (false, true)),
    ] {
        let (transition, effects) = step_with_pod(&mut interruption, minutes, &node, drained);
        assert_eq!(
            (matches!(transition, Transition::DrainAbandoned), uncordons(&effects)),
            expected,
            "{minutes}"
        );
    }
}

#[test]
fn abandoned_drain_keeps_a_foreign_cordon() {
    let mut node = with_a_drain(0).nodes.remove(&NodeName::from("node-of-i-1")).expect("it");
    node.annotations.clear();
    let mut interruption = drains(None);
    assert!(matches!(
        step_with_pod(&mut interruption, 16, &node, false).0,
        Transition::DrainAbandoned
    ));
    let (transition, effects) = step_with_pod(&mut interruption, 17, &node, false);
    assert!(matches!(transition, Transition::Finished) && effects.is_empty(), "{effects:?}");
}

#[test]
fn past_deadline_does_not_force_termination() {
    let node = with_a_drain(0).nodes.remove(&NodeName::from("node-of-i-1")).expect("it");
    let mut interruption = drains(Some(at(-60)));
    for minutes in [6, 14] {
        let (_, effects) = step_with_pod(&mut interruption, minutes, &node, false);
        let ends = effects.iter().any(|effect| matches!(effect, Effect::Terminate { .. }));
        assert!(!ends, "{minutes}: {effects:?}");
    }
    assert!(matches!(
        step_with_pod(&mut interruption, 16, &node, false).0,
        Transition::DrainAbandoned
    ));
}

/// Returns when pods of `i-1` are evicted, in seconds after its interruption without a deadline
/// became known. A plan without the instance is made at `planned`, if any; the pods are
/// unschedulable in it.
fn evicts_at(planned: Option<i64>) -> Option<i64> {
    let mut harness = ControllerHarness::leading();
    let seen = |seconds: i64| {
        let mut world = with_pods(seconds, &[]);
        let phase = PodPhase::Running;
        let (owner, node) = (Some(workload_id()), Some("node-of-i-1".into()));
        world.pods.push(Arc::new(Pod { owner, node, phase, ..world::pod("api") }));
        Event::Observed(Arc::new(world))
    };
    harness.step_at(2, seen(2));
    let plan = || {
        let mut plan = crate::testing::sample_plan::plan();
        plan.capacity.waves.clear();
        plan.capacity.unschedulable.iter_mut().for_each(|row| row.workload = workload_id());
        assert!(!plan.capacity.unschedulable.is_empty());
        plan
    };
    // An earlier plan, which counts the instance and blocks nothing.
    let mut before = plan();
    before.capacity.unschedulable.clear();
    harness.finish_planning(2, before);
    harness.interrupt(3, MessageKind::Health, &["i-1"], None);
    for seconds in (5..3_600).step_by(5) {
        harness.finish_saving(seconds);
        let done = harness.step_at(seconds, seen(seconds));
        if done.contains(&"drains i-1".to_owned()) {
            return Some(seconds - 3);
        }
        if planned.is_some_and(|at| seconds >= at) && harness.state().planning.run.is_some() {
            harness.finish_planning(seconds, plan());
        }
    }
    None
}

#[test]
fn pods_wait_for_a_plan_without_the_instance_but_not_forever() {
    let near = |at: Option<i64>, minutes: i64| {
        at.is_some_and(|at| (60 * minutes..60 * minutes + 15).contains(&at))
    };
    let never = evicts_at(None);
    assert!(near(never, 30), "no plan is made: {never:?}");
    // The launches of a plan have as long as if the plan had been made at once.
    let late = evicts_at(Some(20 * 60));
    assert!(near(late, 30), "one is made after 20 minutes: {late:?}");
    let early = evicts_at(Some(5 * 60));
    assert!(near(early, 15), "one is made after 5 minutes: {early:?}");
}

#[test]
fn replacement_wait_starts_when_the_block_ends() {
    let mut interruption = Interruption {
        progress: Progress::Replacing { wait: EvictionWait::Launches { since: at(0) } },
        ..drains(None)
    };
    let now = |minutes: i64| at(60 * minutes);
    let begins = |interruption: &Interruption| match interruption.progress {
        Progress::Replacing { wait: EvictionWait::Launches { since } } => Some(since),
        Progress::Noticed { .. }
        | Progress::Replacing { .. }
        | Progress::Draining(_)
        | Progress::Terminating { .. } => None,
    };
    interruption.set_wait(EvictionWait::Blocked);
    assert_eq!(begins(&interruption), None);
    for minutes in [30, 35] {
        interruption.set_wait(EvictionWait::Launches { since: now(minutes) });
        assert_eq!(begins(&interruption), Some(now(30)), "it has been unblocked since");
    }
    interruption.set_wait(EvictionWait::Blocked);
    interruption.set_wait(EvictionWait::Launches { since: now(50) });
    assert_eq!(begins(&interruption), Some(now(50)));
    interruption.retry_now(now(40));
    assert_eq!(begins(&interruption), Some(now(40)), "a clock that is set back extends no wait");
}
