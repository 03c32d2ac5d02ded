//! Scheduled changes that only messages announce: how many nodes they drain at once, and what they
//! change about a repair.

use super::drains::{context_at, cordoned_node, drains, drains_in_step, step_in, step_with_pod};
use super::*;

#[test]
fn announced_event_terminates_no_instance_with_pods() {
    let node = with_a_drain(0).nodes.remove(&NodeName::from("node-of-i-1")).expect("it");
    let ends_at = |why: &str, minutes: i64| {
        let mut interruption = drains(Some(at(60 * 60)));
        interruption.record.why = why.to_owned();
        let (transition, effects) = step_with_pod(&mut interruption, minutes, &node, false);
        let ends = effects.iter().any(|effect| matches!(effect, Effect::Terminate { .. }));
        (ends, matches!(transition, Transition::DrainAbandoned))
    };
    // Any sender can name a deadline; EC2 ends the instance itself if it is true.
    assert_eq!(ends_at("health", 70), (false, false));
    assert_eq!(ends_at("health", 96), (false, true), "EC2 did not take it");
    assert_eq!(ends_at("spot-interruption", 70), (true, false));
}

#[test]
fn near_deadline_begins_a_drain_that_the_limit_holds() {
    let progress = Progress::Replacing { wait: EvictionWait::Launches { since: at(0) } };
    let (hour, past) = (Some(at(3_600)), Some(at(-60)));
    for (what, deadline, minutes, room, begins) in [
        ("there is room", None, 10, DrainRoom::Any, true),
        ("it is held", None, 10, DrainRoom::NearDeadline, false),
        ("it waits for long, without a deadline", None, 600, DrainRoom::NearDeadline, false),
        ("time is left", hour, 44, DrainRoom::NearDeadline, false),
        ("time is short", hour, 45, DrainRoom::NearDeadline, true),
        ("time is short, and too many are drained", hour, 45, DrainRoom::Full, false),
        // A sender would have no need to wait.
        ("the time has just passed", past, 0, DrainRoom::NearDeadline, false),
    ] {
        let interruption = Interruption { progress, ..drains(deadline) };
        assert_eq!(drains_in_step(interruption, minutes, true, room), begins, "{what}");
    }
    // EC2 did not take an instance whose drain never had room.
    let mut held = Interruption { progress, ..drains(hour) };
    let context = |minutes| StepContext { drain_room: DrainRoom::Full, ..context_at(minutes) };
    let (transition, _) = step_in(&mut held, &cordoned_node(), context(94));
    assert!(matches!(transition, Transition::Continue));
    let (transition, effects) = step_in(&mut held, &cordoned_node(), context(95));
    assert!(matches!(transition, Transition::DrainAbandoned) && effects.is_empty(), "{effects:?}");
}

#[test]
fn announced_events_drain_few_nodes_at_once() {
    let progress = Progress::Replacing { wait: EvictionWait::Launches { since: at(0) } };
    let waiting = || Interruption { progress, ..drains(None) };
    let mut harness = ControllerHarness::leading();
    harness.observe(2, world(2));
    harness.modify(|state| {
        state.interruptions.insert(waiting());
        let room = |state: &ControllerState| state.drain_room(&"i-1".into(), &world(2));
        let mut rooms = Vec::new();
        for n in 3..6 {
            rooms.push(room(state));
            let mut other = drains(None);
            other.record.instance = format!("i-{n}").as_str().into();
            state.interruptions.insert(other);
        }
        rooms.push(room(state));
        // The removal budget allows one of three nodes, and a mass removal three.
        let near = DrainRoom::NearDeadline;
        assert_eq!(rooms, [DrainRoom::Any, near, near, DrainRoom::Full]);
        // A drain that evicts nothing is stuck, and delays no other one without a near time.
        state.now = at(14 * 60);
        assert_eq!(room(state), DrainRoom::Full);
        state.on_evicted(&"i-3".into(), &[Ok(EvictOutcome::Evicted)]);
        let blocked = EvictOutcome::Blocked { budget: "web/api".to_owned() };
        state.on_evicted(&"i-4".into(), &[Ok(blocked)]);
        state.now = at(15 * 60);
        assert_eq!(room(state), DrainRoom::Full, "one drain evicts pods, and all are cordoned");
        state.now = at(29 * 60);
        assert_eq!(room(state), DrainRoom::Any);
        // A message of EC2 about a spot instance counts at once.
        let why = "spot-interruption".to_owned();
        let record = InterruptionRecord { why, deadline: Some(at(120)), ..waiting().record };
        state.begin_interruption(record.clone(), 1);
        assert_eq!(room(state), DrainRoom::Any);
        let forged = InterruptionRecord { deadline: Some(at(60)), ..waiting().record };
        state.begin_interruption(forged, 1);
        let known = &state.interruptions.all[&InstanceId::from("i-1")].record;
        assert_eq!((&known.why, known.deadline), (&record.why, record.deadline));
    });
}

/// What happens to the pods of drained nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Evictions {
    /// No eviction succeeds.
    Blocked,
    /// Evictions succeed, and the pods never stop.
    Slow,
    /// The pods stop at once, and the instances end.
    Succeed,
}

/// Returns an observation of the nodes of twenty instances, without those that have ended. Each has
/// a pod, unless it stopped.
fn fleet_of_twenty(seconds: i64, stopped: &BTreeSet<String>, ended: &BTreeSet<String>) -> Event {
    let mut fleet = Observed::of_cluster("c", at(seconds));
    fleet.templates.insert("t".to_owned(), Arc::new(PodTemplate::default()));
    for id in (10..30).map(|n| format!("i-{n}")).filter(|id| !ended.contains(id)) {
        let instance = world::managed_instance(&id, "c");
        let mut node = Node {
            instance: Some(instance.id.clone()),
            created_at: at(-8_000),
            unschedulable: true,
            ..world::node(&format!("node-of-{id}"))
        };
        node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "interruption".to_owned());
        let instance = Instance { launched_at: at(-9_000), ..instance };
        fleet = fleet.with_instance(instance).with_node(node);
        if !stopped.contains(&id) {
            let pod = world::pod(&format!("api-{id}")).on(&format!("node-of-{id}"));
            fleet = fleet.with_pods([pod]);
        }
    }
    Event::Observed(Arc::new(fleet))
}

/// Returns how many of twenty nodes are drained until a time, in seconds, and the most at once.
/// Maintenance of all of them is announced, with a start in `within` seconds if any.
fn drained_of_twenty(within: Option<i64>, until: i64, evictions: Evictions) -> (usize, usize) {
    let (mut stopped, mut ended) = (BTreeSet::new(), BTreeSet::new());
    let mut harness = ControllerHarness::leading();
    harness.step_at(2, fleet_of_twenty(2, &stopped, &ended));
    let ids: Vec<String> = (10..30).map(|n| format!("i-{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    harness.interrupt(3, MessageKind::Health, &ids, within);
    let (mut drained, mut most) = (BTreeSet::new(), 0_usize);
    for seconds in (5..until).step_by(5) {
        harness.finish_saving(seconds);
        let done = harness.step_at(seconds, fleet_of_twenty(seconds, &stopped, &ended));
        for deed in &done {
            if let Some(id) = deed.strip_prefix("drains ") {
                drained.insert(id.to_owned());
                if evictions == Evictions::Succeed {
                    stopped.insert(id.to_owned());
                }
                if evictions != Evictions::Blocked {
                    let results = vec![Ok(EvictOutcome::Evicted)];
                    harness.step_at(seconds, Event::Evicted { instance: id.into(), results });
                }
            } else if let Some(id) = deed.strip_prefix("ends ") {
                ended.insert(id.to_owned());
                let result = Ok(TerminateOutcome::Called);
                harness.step_at(seconds, Event::TerminateFinished { instance: id.into(), result });
            }
        }
        let all = harness.state().interruptions.all.values();
        let drains = all.filter(|known| known.phase() >= InterruptionPhase::Draining);
        most = most.max(drains.filter(|known| !known.drain_abandoned).count());
    }
    (drained.len(), most)
}

#[test]
fn forged_announcements_of_all_nodes_drain_a_part_of_them() {
    use Evictions::{Blocked, Slow, Succeed};
    // The start may be as near as ten minutes. `massRemoval` is 50 %, and `removals` 10 %.
    assert_eq!(drained_of_twenty(Some(600), 295, Blocked), (0, 0));
    assert_eq!(drained_of_twenty(Some(600), 600, Blocked), (10, 10));
    // Twice, all drains are stuck, and `removals` allows two more.
    assert_eq!(drained_of_twenty(Some(600), 2_600, Blocked), (14, 14));
    assert_eq!(drained_of_twenty(Some(600), 2_600, Slow), (10, 10));
    // A round follows once instances have ended.
    let (drained, most) = drained_of_twenty(Some(600), 360, Succeed);
    assert!(drained > 10 && most == 10, "{drained}, {most} at once");
    // Without a start, a plan is awaited for half an hour.
    assert_eq!(drained_of_twenty(None, 1_800, Blocked), (0, 0));
    assert_eq!(drained_of_twenty(None, 2_600, Blocked), (2, 2));
}

#[test]
fn past_announced_time_gives_way_to_a_later_one() {
    let says = |(since, deadline): (i64, i64)| InterruptionRecord {
        since: at(since),
        ..drains(Some(at(deadline))).record
    };
    for (what, first, second, expected) in [
        ("both lie ahead", (0, 3_600), (60, 7_200), 3_600),
        ("the first one is past", (0, 600), (900, 7_200), 7_200),
        ("the second one is past", (0, 7_200), (900, 600), 7_200),
        ("both are past", (0, 600), (900, 700), 600),
    ] {
        let mut change = says(first);
        change.absorb(&says(second));
        assert_eq!(change.deadline, Some(at(expected)), "{what}");
        let why = "not-ready".to_owned();
        let mut repair = InterruptionRecord { why, ..drains(None).record };
        repair.absorb(&says(first));
        repair.absorb(&says(second));
        let announced = repair.announced.map(|announced| announced.deadline);
        assert_eq!((repair.deadline, announced), (None, Some(at(expected))), "{what}");
    }
}

/// Returns the repair of `i-1` whose replacement is blocked. A message has announced a scheduled
/// change in an hour.
fn announced_repair(why: &str) -> Interruption {
    let progress = Progress::Replacing { wait: EvictionWait::Blocked };
    let mut repair = Interruption { progress, ..drains(None) };
    repair.record.why = why.to_owned();
    let announced = drains(Some(at(3_600))).record;
    repair.record.absorb(&announced);
    repair
}

#[test]
fn announced_time_of_a_repair_evicts_pods_and_forces_nothing() {
    for why in ["not-ready", "kernel-not-ready"] {
        let repair = announced_repair(why);
        assert_eq!((repair.record.why.as_str(), repair.record.deadline), (why, None));
        assert_eq!(repair.to_status(None, None).deadline, Some(at(3_600)), "{why}");
        let begins = |minutes, room| drains_in_step(announced_repair(why), minutes, true, room);
        assert!(!begins(44, DrainRoom::Any) && begins(45, DrainRoom::Any), "{why}");
        assert!(begins(45, DrainRoom::NearDeadline) && !begins(45, DrainRoom::Full), "{why}");
        assert!(!begins(65, DrainRoom::Any), "{why}: EC2 did not take it");
        let (mut repair, mut evicts, mut abandoned) = (repair, false, Vec::new());
        for minutes in 45..=60 {
            let context = StepContext { is_replaced: false, ..context_at(minutes) };
            let (transition, effects) = step_in(&mut repair, &cordoned_node(), context);
            evicts |= effects.iter().any(|effect| matches!(effect, Effect::Evict { .. }));
            let ends = effects.iter().any(|effect| matches!(effect, Effect::Terminate { .. }));
            assert!(!ends, "{why}: after {minutes} minutes");
            if let Transition::DrainAbandoned = transition {
                abandoned.push(minutes);
            }
        }
        assert!(evicts && abandoned == [60], "{why}: {abandoned:?}");
    }
    // Once the replacement is there, the drain ends by force, as without a message.
    let mut repair = announced_repair("not-ready");
    let ends = |repair: &mut Interruption, minutes| {
        let (_, effects) = step_with_pod(repair, minutes, &cordoned_node(), false);
        effects.iter().any(|effect| matches!(effect, Effect::Terminate { .. }))
    };
    assert!(!ends(&mut repair, 5) && !ends(&mut repair, 14) && ends(&mut repair, 15));
}

/// Runs a step of a repair after this many minutes; returns whether its instance is terminated with
/// its pod.
fn ends_in_step(repair: &mut Interruption, minutes: i64, is_replaced: bool) -> bool {
    let context = StepContext { is_replaced, ..context_at(minutes) };
    let (transition, effects) = step_in(repair, &cordoned_node(), context);
    assert!(matches!(transition, Transition::Continue), "after {minutes} minutes");
    effects.iter().any(|effect| matches!(effect, Effect::Terminate { .. }))
}

#[test]
fn replacement_that_arrives_during_the_drain_lets_a_repair_end_by_force() {
    let mut repair = announced_repair("not-ready");
    for minutes in 45..50 {
        assert!(!ends_in_step(&mut repair, minutes, false), "after {minutes} minutes");
        assert!(repair.is_drained_unconfirmed());
    }
    // Its pods get the time of any other drain of a repair.
    for minutes in 50..60 {
        assert!(!ends_in_step(&mut repair, minutes, true), "after {minutes} minutes");
        assert!(!repair.is_drained_unconfirmed());
    }
    assert!(ends_in_step(&mut repair, 60, true));
    // A node that recovers before is not terminated for the repair.
    let mut repair = announced_repair("not-ready");
    assert!(!ends_in_step(&mut repair, 45, false) && repair.is_drained_unconfirmed());
    assert!(repair.cancel_repair(at(46 * 60)));
    let state = (repair.record.why.as_str(), repair.phase());
    assert_eq!(state, ("health", InterruptionPhase::Replacing));
}

#[test]
fn reason_that_is_confirmed_during_a_drain_gives_it_its_own_time() {
    for (why, deadline, is_unconfirmed) in [
        ("not-ready", None, true),
        ("kernel-not-ready", None, true),
        ("spot-interruption", Some(at(3_120)), false),
    ] {
        // Announced six hours ahead, and drained for 50 minutes.
        let mut interruption = drains(Some(at(21_600)));
        let (since, record) = (at(3_000), drains(deadline).record);
        let record = InterruptionRecord { why: why.to_owned(), since, ..record };
        assert!(interruption.absorb(&record, since));
        assert_eq!(interruption.record.why, why);
        assert_eq!(interruption.is_drained_unconfirmed(), is_unconfirmed, "{why}");
        let drain = interruption.drain_progress().expect("it is drained");
        assert_eq!(drain.since, since, "{why}");
    }
}

#[test]
fn attempts_are_frequent_near_an_announced_time() {
    let mut repair = announced_repair("not-ready");
    repair.retry_at = at(3_400);
    for _ in 0..12 {
        let now = repair.retry_at;
        assert!(repair.begin_attempt(now, RETRY_MAX));
        assert!(repair.retry_at <= later(now, BUSY_REFRESH));
    }
}

#[test]
fn scheduled_change_outlives_the_repair_that_it_met() {
    let continues = |repair: &Interruption| {
        let InterruptionRecord { why, since, deadline, announced, .. } = &repair.record;
        let expected = ("health", at(0), Some(at(3_600)), None);
        (why.as_str(), *since, *deadline, *announced) == expected && !repair.drain_abandoned
    };
    // The node recovered.
    let mut repair = announced_repair("not-ready");
    assert!(repair.cancel_repair(at(60)) && continues(&repair));
    // Its drain was abandoned.
    let mut repair = announced_repair("kernel-not-ready");
    repair.start_drain(at(0));
    let (transition, _) = step_with_pod(&mut repair, 16, &cordoned_node(), false);
    assert!(matches!(transition, Transition::DrainAbandoned));
    assert!(repair.continue_as_announced(at(16 * 60)) && continues(&repair));
    assert_eq!(repair.phase(), InterruptionPhase::Replacing);
    // Its time has passed.
    let mut repair = announced_repair("not-ready");
    assert!(!repair.cancel_repair(at(3_600)) && repair.drain_abandoned);
}
