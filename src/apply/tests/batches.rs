//! Replacements of many nodes: batch by batch, also after crashes.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use super::crashes::apply_with_fault;
use super::*;
use crate::model::reason::KeepReason;
use crate::model::units::MicroUsd;
use crate::plan::wire::{ExplainRow, Reason, ResourceChange};
use crate::simulator::Delivery;
use crate::testing::apply::{new_node, old_node, running};
use crate::testing::simulator;

/// Prices per hour of a removed and of a launched node.
const OLD_HOURLY: i64 = 100;
const NEW_HOURLY: i64 = 90;

/// Number of nodes of a batch.
const BATCH: usize = 3;

/// Returns a fleet of `old` nodes with a pod each, and a plan that replaces them by `new` nodes.
fn replacement(old: usize, new: usize) -> (World, Plan) {
    let world = simulator::world();
    for key in 0..old {
        running(&world, &format!("o{key:02}"));
    }
    let replicas = u32::try_from(old).expect("few");
    let api = Delivery::default().with(WorkloadKind::Deployment, "api", replicas, 900);
    world.deliver(&api).expect("kept in memory");
    world.settle(MINUTE * 5).expect("kept in memory");
    let plan = replacement_plan(&world, old, new);
    (world, plan)
}

fn replacement_plan(world: &World, old: usize, new: usize) -> Plan {
    let observed = world.observed();
    let workload = "web/Deployment/api";
    let explain = |key: &str| ExplainRow {
        group: Some("r0".to_owned()),
        ..ExplainRow::new(address(key), Reason::Keep { because: KeepReason::NotOurs })
    };
    let mut plan = Plan::unchanged(&observed);
    for instance in observed.instances.values() {
        let key = &instance.tags[tag::KEY];
        let node = observed.node_for_instance(&instance.id).expect("registered");
        let pods = observed.pods.iter().filter(|pod| pod.node.as_ref() == Some(&node.name));
        let pods = u32::try_from(pods.count()).expect("few");
        assert_eq!(pods, 1, "kube-scheduler spreads the pods");
        let row = ExplainRow {
            hourly_before: Some(MicroUsd(OLD_HOURLY)),
            pods_before: [(workload.into(), pods)].into(),
            ..explain(key)
        };
        let change = ResourceChange::removal("web", key, old_node(&observed, instance));
        plan = plan.with_explained_rows([(change, row)]);
    }
    let keys: Vec<String> = (0..new).map(|key| format!("n{key:02}")).collect();
    for (index, key) in keys.iter().enumerate() {
        let pods = 1 + u32::from(index < old.saturating_sub(new));
        let row = ExplainRow {
            hourly_after: Some(MicroUsd(NEW_HOURLY)),
            pods: [(workload.into(), pods)].into(),
            ..explain(key)
        };
        let change = ResourceChange::launch("web", key, new_node("eu-west-1a"));
        plan = plan.with_explained_rows([(change, row)]);
    }
    let removed = (0..old).map(|key| address(&format!("o{key:02}")));
    let mut plan = plan
        .with_wave(WaveStep::Launch, keys.iter().map(|key| address(key)))
        .with_wave(WaveStep::Retire, removed);
    (plan.capacity.digest, plan.capacity.plan_id) = ("sha256:1".into(), "plan-1".into());
    plan
}

/// Returns the largest number of nodes that ran at once, and their highest price per hour.
fn peak(world: &World) -> (usize, i64) {
    let mut running: BTreeMap<InstanceId, i64> = BTreeMap::new();
    let mut peak: (usize, i64) = (0, 0);
    for call in world.calls() {
        if let Some((request, launched)) = call.launched() {
            let is_new = request.tags.contains_key(tag::SPEC);
            running.insert(launched.id.clone(), if is_new { NEW_HOURLY } else { OLD_HOURLY });
        } else if let Some((_, instance)) = call.terminated() {
            running.remove(instance);
        }
        peak = (peak.0.max(running.len()), peak.1.max(running.values().sum()));
    }
    peak
}

fn keys(world: &World, first: char) -> Vec<String> {
    let keys = active(world).into_iter().map(|(key, _)| key);
    keys.filter(|key| key.starts_with(first)).collect()
}

fn assert_one_batch_dearer(world: &World, old: usize, context: &str) {
    let (nodes, hourly) = peak(world);
    assert!(nodes <= old + BATCH, "{context}: {nodes} nodes");
    let batch = i64::try_from(BATCH).expect("few") * NEW_HOURLY;
    let most = i64::try_from(old).expect("few") * OLD_HOURLY + batch;
    assert!(hourly <= most, "{context}: {hourly} per hour");
}

fn assert_replaced(world: &World, old: usize, new: usize, context: &str) {
    assert_one_batch_dearer(world, old, context);
    assert_eq!((keys(world, 'o').len(), keys(world, 'n').len()), (0, new), "{context}");
    world.settle(MINUTE * 5).expect("kept in memory");
    let api = pods(world, "api");
    assert_eq!(api.len(), old, "{context}");
    assert!(api.iter().all(|pod| pod.phase == PodPhase::Running), "{context}");
    let observed = world.observed();
    assert!(observed.nodes.values().all(|node| node.ready && !node.unschedulable), "{context}");
}

#[test]
fn fleet_is_at_most_one_batch_dearer_during_a_replacement() {
    for (old, new) in [(11, 10), (20, 20)] {
        let (world, plan) = replacement(old, new);
        let (receipt, events) = apply_over(&plan, &world, &settings());
        let receipt = receipt.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:#?}");
        assert!(receipt.outcomes.iter().all(|change| change.outcome == Outcome::Done));
        assert_eq!(receipt.outcomes.len(), old + new);
        assert_replaced(&world, old, new, &format!("{old} by {new}"));
        let waves = events.iter().filter(|event| matches!(event.step, Step::Wave { .. }));
        assert_eq!(waves.count(), old.div_ceil(BATCH) * 2, "{old} by {new}");
    }
}

#[test]
fn controller_launches_all_nodes_first() {
    let (world, plan) = replacement(5, 5);
    let settings = ApplySettings { opened_by: OpenedBy::ApplyWithoutNominations, ..settings() };
    let (receipt, events) = apply_over(&plan, &world, &settings);
    assert_eq!(receipt.expect("not refused").verdict, ApplyStatus::Applied);
    let waves = |events: &[Event]| {
        events.iter().filter(|event| matches!(event.step, Step::Wave { .. })).count()
    };
    assert_eq!(waves(&events), 4);
    let (world, plan) = replacement(5, 5);
    let settings = ApplySettings { opened_by: OpenedBy::Controller, ..settings };
    let (_, events) = apply_over(&plan, &world, &settings);
    assert_eq!(waves(&events), 2);
}

/// Crashes or fails at each write, and applies the same plan once more.
fn assert_finished_after_any(faults: &[Fault], old: usize, new: usize) {
    for fault in faults {
        let mut at = 0;
        loop {
            let (world, plan) = replacement(old, new);
            if !apply_with_fault(&plan, &world, at, *fault) {
                break;
            }
            let context = format!("{fault:?} at {at}");
            assert_one_batch_dearer(&world, old, &context);
            let receipt = applied(&plan, &world);
            assert_eq!(receipt.verdict, ApplyStatus::Applied, "{context}: {receipt:#?}");
            assert_replaced(&world, old, new, &context);
            let calls = world.calls().len();
            let third = applied(&plan, &world);
            assert!(third.outcomes.iter().all(|change| change.outcome == Outcome::AlreadyDone));
            assert_eq!(world.calls().len(), calls, "{context}: the fleet is at rest");
            at += 1;
        }
        assert!(at >= 4 * old, "cordons, evictions, terminations and deletions: {at}");
    }
}

#[test]
fn replacement_finishes_after_a_crash_at_any_write() {
    assert_finished_after_any(&[Fault::CrashBefore, Fault::CrashAfter], 11, 10);
}

#[test]
fn replacement_finishes_after_any_fault_at_any_write() {
    assert_finished_after_any(&Fault::ALL, 5, 4);
}

/// A planner that blocks removals at some calls, and records the part of the plan of each call.
#[derive(Debug, Default)]
struct BlockAt {
    blocked: Range<usize>,
    calls: Cell<usize>,
    /// Numbers of launches, removals and retained nodes of each judged part.
    parts: RefCell<Vec<[usize; 3]>>,
}

impl Replan for BlockAt {
    fn replan<'r>(&'r self, plan: &'r Plan, _: &'r Observed) -> Replanned<'r> {
        let call = self.calls.replace(self.calls.get() + 1);
        let count = |action| {
            let rows = plan.resource_changes.iter();
            rows.filter(|row| row.change.actions.contains(&action)).count()
        };
        let part = [Action::Create, Action::Delete, Action::NoOp].map(count);
        self.parts.borrow_mut().push(part);
        let blocked_removal =
            self.blocked.contains(&call).then(|| "a pod fits nowhere else".to_owned());
        let revalidated =
            RevalidatedPlan { blocked_removal, ..RevalidatedPlan::as_approved(plan.clone()) };
        Box::pin(std::future::ready(revalidated))
    }
}

/// A planner during whose call the world changes.
struct ChangeAt<'w> {
    call: usize,
    calls: Cell<usize>,
    change: Box<dyn Fn() + 'w>,
}

impl<'w> ChangeAt<'w> {
    fn new(call: usize, change: impl Fn() + 'w) -> Self {
        Self { call, calls: Cell::default(), change: Box::new(change) }
    }
}

impl std::fmt::Debug for ChangeAt<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ChangeAt")
    }
}

impl Replan for ChangeAt<'_> {
    fn replan<'r>(&'r self, plan: &'r Plan, _: &'r Observed) -> Replanned<'r> {
        if self.calls.replace(self.calls.get() + 1) == self.call {
            (self.change)();
        }
        Box::pin(std::future::ready(RevalidatedPlan::as_approved(plan.clone())))
    }
}

/// Applies with a planner that blocks at some calls. Returns the receipt and the judged parts.
fn apply_blocked_at(
    blocked: Range<usize>,
    world: &World,
    plan: &Plan,
) -> (Receipt, Vec<[usize; 3]>) {
    let replan = BlockAt { blocked, ..BlockAt::default() };
    let settings = ApplySettings { replan: &replan, ..settings() };
    let receipt = apply_over(plan, world, &settings).0.expect("not refused");
    (receipt, replan.parts.into_inner())
}

#[test]
fn each_step_of_a_batch_is_judged_by_itself() {
    let (world, plan) = replacement(8, 8);
    let (receipt, parts) = apply_blocked_at(0..0, &world, &plan);
    assert_eq!(receipt.verdict, ApplyStatus::Applied);
    let [all, first, second] = [[8, 8, 0], [3, 3, 5], [6, 6, 2]];
    let expected = [all, first, first, second, second, all, all];
    assert_eq!(parts, expected);
}

#[test]
fn batch_whose_pods_need_later_launches_is_joined_with_them() {
    let (world, plan) = replacement(8, 8);
    let (receipt, parts) = apply_blocked_at(1..2, &world, &plan);
    assert_eq!(receipt.verdict, ApplyStatus::Applied);
    let [all, first, second] = [[8, 8, 0], [3, 3, 5], [6, 6, 2]];
    assert_eq!(parts, [all, first, second, second, all, all]);
    assert_eq!(peak(&world).0, 8 + 2 * BATCH);
    assert_eq!((keys(&world, 'o').len(), keys(&world, 'n').len()), (0, 8));
}

#[test]
fn launches_of_the_first_batch_wait_for_no_removal() {
    let (world, plan) = replacement(8, 8);
    // All parts are blocked before the first launches, because they may be for new pods.
    let (receipt, _) = apply_blocked_at(1..4, &world, &plan);
    assert_eq!(receipt.verdict, ApplyStatus::Applied);
    assert_replaced(&world, 8, 8, "blocked at first");
}

#[test]
fn batch_that_is_blocked_before_its_launches_launches_nothing() {
    let (world, plan) = replacement(8, 8);
    let (receipt, parts) = apply_blocked_at(3..5, &world, &plan);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    let why = "a pod fits nowhere else".to_owned();
    for (key, step) in [("n03", WaveStep::Launch), ("o05", WaveStep::Retire)] {
        assert_eq!(*outcome(&receipt, key, step), Outcome::Skipped { why: why.clone() });
    }
    let why = "`ec2_instance.web[\"o05\"]` of an earlier batch did not finish".to_owned();
    for (key, step) in [("n07", WaveStep::Launch), ("o07", WaveStep::Retire)] {
        assert_eq!(*outcome(&receipt, key, step), Outcome::Skipped { why: why.clone() });
    }
    assert_eq!(parts.len(), 5, "the last batch does not start, and is not judged");
    assert_eq!(keys(&world, 'n'), ["n00", "n01", "n02"]);
    assert_eq!(keys(&world, 'o'), ["o03", "o04", "o05", "o06", "o07"]);
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied, "the same plan finishes");
    assert_replaced(&world, 8, 8, "after a block");
}

#[test]
fn later_batches_are_judged_once_after_a_batch_is_blocked() {
    let (world, mut plan) = replacement(15, 15);
    // Each batch is a replacement of its own, so that a blocked one stops no other.
    for index in 0..15 {
        for row in ["o", "n"].map(|first| address(&format!("{first}{index:02}"))) {
            let mut rows = plan.capacity.explain.iter_mut();
            let explained = rows.find(|explained| explained.address == row).expect("explained");
            explained.group = Some(format!("r{}", index / BATCH));
        }
    }
    let (receipt, parts) = apply_blocked_at(3..usize::MAX, &world, &plan);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    assert_eq!((keys(&world, 'o').len(), keys(&world, 'n').len()), (12, 3));
    // The plan as a whole, two steps of the first batch, four ends of the second, and one of each
    // later batch.
    assert_eq!(parts.len(), 1 + 2 + 4 + 3, "{parts:?}");
}

#[test]
fn batch_that_is_blocked_after_its_launches_is_taken_back() {
    let (world, plan) = replacement(8, 8);
    let (receipt, _) = apply_blocked_at(4..5, &world, &plan);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    let why = "its removals did not finish, so the unused instance was terminated".to_owned();
    assert_eq!(*outcome(&receipt, "n04", WaveStep::Launch), Outcome::Abandoned { why });
    assert_eq!(keys(&world, 'n'), ["n00", "n01", "n02"]);
    assert_eq!(keys(&world, 'o').len(), 5);
    assert_one_batch_dearer(&world, 8, "taken back");
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied, "the same plan finishes");
    assert_replaced(&world, 8, 8, "after a block");
}

#[test]
fn launches_of_a_crashed_run_are_taken_back_too() {
    let (world, plan) = replacement(8, 8);
    // The first batch writes 3 launches, 3 openings and 5 calls for each node.
    assert!(apply_with_fault(&plan, &world, 23, Fault::CrashAfter));
    assert_eq!(keys(&world, 'n').len(), 6, "the second batch is launched");
    // The first batch has ended, so the second call judges the second batch.
    let (receipt, _) = apply_blocked_at(1..3, &world, &plan);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    assert_eq!(keys(&world, 'n'), ["n00", "n01", "n02"]);
    assert_eq!(keys(&world, 'o').len(), 5);
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied, "the same plan finishes");
    assert_replaced(&world, 8, 8, "after a block");
}

#[test]
fn nodes_of_drains_that_do_not_end_are_taken_back() {
    let (world, plan) = replacement(8, 8);
    let api = Delivery::default().with(WorkloadKind::Deployment, "api", 8, 900);
    world.deliver(&api.budget("api", Some("8"), None)).expect("kept in memory");
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    let abandoned = outcome(&receipt, "o00", WaveStep::Retire);
    assert!(matches!(abandoned, Outcome::Abandoned { .. }), "{abandoned:?}");
    assert_eq!((keys(&world, 'o').len(), keys(&world, 'n').len()), (8, 0));
    assert_one_batch_dearer(&world, 8, "blocked drains");
    assert!(cordoned(&world).is_empty());
}

#[test]
fn launches_for_new_pods_stay_if_removals_are_refused() {
    // Two of the five launches are for pods that a new commit adds later.
    let (world, plan) = replacement(3, 5);
    let api = |pods| Delivery::default().with(WorkloadKind::Deployment, "api", pods, 900);
    world.deliver(&api(3).budget("api", Some("3"), None)).expect("kept in memory");
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    let refused = outcome(&receipt, "o00", WaveStep::Retire);
    assert!(matches!(refused, Outcome::Abandoned { .. }), "{refused:?}");
    assert_eq!(keys(&world, 'o').len(), 3);
    assert_eq!(keys(&world, 'n'), ["n00", "n01"]);
    for key in ["n00", "n01"] {
        assert_eq!(*outcome(&receipt, key, WaveStep::Launch), Outcome::Done, "{key}");
    }
    world.deliver(&api(5)).expect("kept in memory");
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied, "the same plan finishes");
    assert_eq!((keys(&world, 'o').len(), keys(&world, 'n').len()), (0, 5));
}

#[test]
fn missing_capacity_takes_back_the_other_launches_of_the_batch() {
    let (world, mut plan) = replacement(8, 8);
    let zone = "eu-west-1b";
    let failing = plan.row_mut(&address("n04")).change.after.as_mut().expect("a launch");
    failing.zone = Some(zone.into());
    let unavailable = crate::simulator::OfferingOutage {
        zone: Some(zone.into()),
        ..crate::simulator::OfferingOutage::default()
    };
    world.set_unavailable(vec![unavailable]);
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    // The launches in the zone of the removed nodes come first.
    assert_eq!(keys(&world, 'n'), ["n00", "n01", "n02", "n03", "n05", "n06"]);
    assert_eq!(keys(&world, 'o'), ["o06", "o07"]);
    let taken_back = outcome(&receipt, "n07", WaveStep::Launch);
    assert!(matches!(taken_back, Outcome::Abandoned { .. }), "{taken_back:?}");
    assert_one_batch_dearer(&world, 8, "missing capacity");
    world.set_unavailable(Vec::new());
    assert_eq!(applied(&plan, &world).verdict, ApplyStatus::Applied, "the same plan finishes");
    assert_replaced(&world, 8, 8, "with capacity");
}

#[test]
fn node_of_a_later_batch_that_ends_meanwhile_stops_nothing() {
    // The whole plan is judged, and then each launch and each removal of the three batches.
    for call in 0..7 {
        let (world, plan) = replacement(8, 8);
        let is_ending = |row: &&ResourceChange| row.address == address("o04");
        let ending = plan.resource_changes.iter().find(is_ending).expect("a row");
        let before = ending.change.before.as_ref().expect("it runs");
        let instance = before.instance_id.clone().expect("known");
        let replan = ChangeAt::new(call, || world.reclaim_instance(&instance));
        let settings = ApplySettings { replan: &replan, ..settings() };
        let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "call {call}: {receipt:#?}");
        assert!(replan.calls.get() > call, "call {call}");
        assert_replaced(&world, 8, 8, &format!("reclaimed at call {call}"));
    }
}

#[test]
fn no_batch_begins_after_forty_minutes() {
    let (world, plan) = replacement(8, 8);
    // The fourth replan judges the launches of the second batch.
    let replan = ChangeAt::new(3, || {
        world.advance_to(later(world.now(), MINUTE * 41));
    });
    let settings = ApplySettings { replan: &replan, ..settings() };
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    for (key, step) in [("n06", WaveStep::Launch), ("o07", WaveStep::Retire)] {
        let skipped = outcome(&receipt, key, step);
        assert!(matches!(skipped, Outcome::Skipped { why } if why.contains("40 minutes")));
    }
    assert_eq!((keys(&world, 'o'), keys(&world, 'n').len()), (vec!["o06".into(), "o07".into()], 6));
}
