//! Plans that are rejected before the first write, and changes that a new plan drops or blocks.

use std::cell::RefCell;

use super::*;
use crate::apply::nomination::is_pending;
use crate::plan::wire::{Check, CheckStatus, Precondition};
use crate::testing::apply::FixedReplan;

#[test]
fn every_rejection_precedes_the_first_write() {
    type Case = (fn(&mut Plan, &mut ApplySettings<'_>), fn(&ApplyError) -> bool);
    let cases: [Case; 10] = [
        (|_, s| s.cluster.uid = "u-2".into(), |e| matches!(e, ApplyError::OtherCluster { .. })),
        (
            |_, s| s.approved = Some("sha256:2".into()),
            |e| matches!(e, ApplyError::NotApproved { .. }),
        ),
        (|p, _| p.applyable = false, |e| matches!(e, ApplyError::NotApplyable(_))),
        (|p, _| p.errored = true, |e| matches!(e, ApplyError::NotApplyable(_))),
        (
            |p, _| {
                p.applyable = false;
                let problems = vec!["too dear".to_owned()];
                p.checks.push(Check {
                    name: "cost".into(),
                    status: CheckStatus::Fail,
                    problems,
                    ..Check::default()
                });
            },
            |e| matches!(e, ApplyError::Denied(why) if why == &["cost: too dear"]),
        ),
        (|p, _| p.capacity.expires_at = p.timestamp, |e| matches!(e, ApplyError::Expired { .. })),
        (
            |p, _| p.capacity.waves.truncate(1),
            |e| matches!(e, ApplyError::InvalidPlan(why) if why.len() == 2),
        ),
        (|p, _| p.capacity.waves.reverse(), |e| matches!(e, ApplyError::InvalidPlan(_))),
        (
            |p, _| p.resource_changes[2].change.actions = vec![Action::Update],
            |e| matches!(e, ApplyError::InvalidPlan(_)),
        ),
        (
            |p, _| {
                for row in &mut p.resource_changes {
                    row.change.after = None;
                    row.change.before = None;
                }
            },
            |e| matches!(e, ApplyError::InvalidPlan(why) if why.len() == 5),
        ),
    ];
    for (n, (change, expected)) in cases.into_iter().enumerate() {
        let world = fleet();
        let mut plan = plan(&world);
        let mut settings = settings();
        change(&mut plan, &mut settings);
        let error = apply_over(&plan, &world, &settings).0.expect_err("refused");
        assert!(expected(&error), "case {n}: {error:?}");
        assert!(writes(&world).is_empty(), "case {n} wrote");
    }
}

#[test]
fn plan_with_the_approved_digest_is_applied() {
    let world = fleet();
    let plan = plan(&world);
    let approved = Some(plan.capacity.digest.clone());
    let settings = ApplySettings { approved, ..settings() };
    assert!(apply_over(&plan, &world, &settings).0.is_ok());
}

#[test]
fn incomplete_observation_is_rejected() {
    let world = fleet();
    let plan = plan(&world);
    let mut faulty = FaultyPorts::without_fault(&world);
    faulty.lag = MINUTE * 60;
    let error = apply_over(&plan, &faulty, &settings()).0.expect_err("EC2 lists nothing");
    assert!(
        matches!(&error, ApplyError::IncompleteObservation(why) if why[0].starts_with("ec2")),
        "{error}"
    );
    assert!(writes(&world).is_empty());
}

#[test]
fn stale_plan_lists_every_failed_condition() {
    let world = fleet();
    let mut plan = plan(&world);
    let before = |row: usize| plan.resource_changes[row].change.before.clone().expect("a node");
    let other = Precondition {
        address: address("9"),
        condition: Condition::InstanceIs {
            instance_id: "i-unknown".into(),
            node_uid: Some("u".into()),
        },
    };
    let mut other_uid = before(0);
    other_uid.node_uid = Some("another".into());
    let found_uid = before(0).node_uid.expect("registered").to_string();
    plan.resource_changes[0].change.before = Some(other_uid);
    plan.capacity.base.preconditions.push(other);
    let taken = {
        let mut request = request("taken");
        request.tags.insert(tag::KEY.into(), "3".into());
        launch(&world, &request)
    };
    let error = apply_over(&plan, &world, &settings()).0.expect_err("stale");
    let ApplyError::Stale(failed) = error else { panic!("{error}") };
    let found: Vec<_> = failed.iter().map(|f| (f.address.clone(), f.found.clone())).collect();
    assert_eq!(found.len(), 3, "{failed:#?}");
    assert!(found[0].0 == address("0") && found[0].1.contains(&found_uid));
    assert!(found[1].0 == address("3") && found[1].1.contains(taken.as_str()));
    assert_eq!(found[2], (address("9"), "no such instance".into()));
    assert!(writes(&world).iter().all(|call| !matches!(call, PortCall::Terminate { .. })));
}

#[test]
fn instance_without_our_tags_is_not_retired() {
    let world = fleet();
    let mut plan = plan(&world);
    let observed = world.observed();
    let foreign = observed.instances.values().find(|i| !i.is_managed_by("prod")).expect("one");
    let before = plan.resource_changes[0].change.before.as_mut().expect("a node");
    before.instance_id = Some(foreign.id.clone());
    before.node_uid = observed.node_for_instance(&foreign.id).map(|node| node.uid.clone());
    let error = apply_over(&plan, &world, &settings()).0.expect_err("not listed as ours");
    assert!(matches!(error, ApplyError::Stale(_)), "{error}");
    assert!(writes(&world).is_empty());
}

#[test]
fn instance_with_only_our_cluster_tag_is_not_retired() {
    let world = fleet();
    let mut plan = plan(&world);
    let mut half = request("half");
    half.tags.remove(tag::POOL);
    let instance = launch(&world, &half);
    world.settle(MINUTE * 5).expect("kept in memory");
    let before = plan.resource_changes[0].change.before.as_mut().expect("a node");
    before.node_uid = world.observed().node_for_instance(&instance).map(|node| node.uid.clone());
    before.instance_id = Some(instance);
    let error = apply_over(&plan, &world, &settings()).0.expect_err("not ours");
    let ApplyError::Stale(failed) = error else { panic!("{error}") };
    assert!(failed[0].found.contains("without our tags"), "{failed:#?}");
    assert!(writes(&world).is_empty());
}

#[test]
fn dropped_changes_are_skipped() {
    let world = fleet();
    let plan = plan(&world);
    let why = "no pod needs it any more".to_owned();
    let dropped = ["0", "3"].map(|key| (address(key), why.clone())).into();
    let replan = FixedReplan { dropped, ..FixedReplan::default() };
    let settings = ApplySettings { replan: &replan, ..settings() };
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Applied);
    assert_eq!(*outcome(&receipt, "3", WaveStep::Launch), Outcome::Dropped { why: why.clone() });
    assert_eq!(*outcome(&receipt, "0", WaveStep::Retire), Outcome::Dropped { why });
    let keys: Vec<_> = active(&world).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["", "0", "1", "2"]);
}

#[test]
fn demand_beyond_the_approval_is_rejected() {
    let world = fleet();
    let plan = plan(&world);
    let before = (active(&world), writes(&world));
    let missing = vec!["m6i.large eu-west-1a on-demand of pool web".to_owned()];
    let replan = FixedReplan { missing: missing.clone(), ..FixedReplan::default() };
    let settings = ApplySettings { replan: &replan, ..settings() };
    let (refused, events) = apply_over(&plan, &world, &settings);
    assert_eq!(refused, Err(ApplyError::ExceedsApproval(missing)));
    assert!(events.is_empty(), "{events:?}");
    assert_eq!((active(&world), writes(&world)), before);
}

/// A planner that returns the approved plan until a launch, and then blocks removals.
#[derive(Debug)]
struct BlockedAfterLaunch {
    initial_instances: usize,
}

impl Replan for BlockedAfterLaunch {
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        let has_launched = observed.instances.len() > self.initial_instances;
        let blocked_removal = has_launched.then(|| "1 more pod would be unschedulable".to_owned());
        // This missing node could not be replaced by the nodes to remove, so it blocks nothing.
        let missing = vec!["m6i.large eu-west-1a on-demand of pool web".to_owned()];
        let missing = if has_launched { missing } else { Vec::new() };
        let revalidated = RevalidatedPlan {
            missing,
            blocked_removal,
            ..RevalidatedPlan::as_approved(plan.clone())
        };
        Box::pin(std::future::ready(revalidated))
    }
}

#[test]
fn new_demand_during_the_apply_blocks_removals() {
    let world = fleet();
    let plan = plan(&world);
    let before = active(&world);
    let replan = BlockedAfterLaunch { initial_instances: before.len() };
    let settings = ApplySettings { replan: &replan, ..settings() };
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    let why = "its removals did not finish, so the unused instance was terminated".to_owned();
    assert_eq!(*outcome(&receipt, "1", WaveStep::Launch), Outcome::Abandoned { why });
    assert_eq!(*outcome(&receipt, "3", WaveStep::Launch), Outcome::Done, "it is for new pods");
    let why = "1 more pod would be unschedulable".to_owned();
    assert_eq!(*outcome(&receipt, "0", WaveStep::Retire), Outcome::Skipped { why });
    let now = active(&world);
    assert!(before.iter().all(|instance| now.contains(instance)), "{before:?} {now:?}");
}

/// A planner of files that declare the launches otherwise once they are made.
#[derive(Debug)]
struct DeclaredOtherwise {
    initial_instances: usize,
}

impl Replan for DeclaredOtherwise {
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        let mut revalidated = RevalidatedPlan::as_approved(plan.clone());
        if observed.instances.len() > self.initial_instances {
            revalidated.undeclared.push("another image".to_owned());
        }
        Box::pin(std::future::ready(revalidated))
    }
}

#[test]
fn launches_that_are_declared_otherwise_block_removals() {
    let world = fleet();
    let plan = plan(&world);
    let before = active(&world);
    let replan = DeclaredOtherwise { initial_instances: before.len() };
    let settings = ApplySettings { replan: &replan, ..settings() };
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    assert_eq!(receipt.verdict, ApplyStatus::Partly);
    for key in ["0", "1"] {
        let skipped = Outcome::Skipped { why: "another image".to_owned() };
        assert_eq!(*outcome(&receipt, key, WaveStep::Retire), skipped, "{key}");
    }
    let now = active(&world);
    assert!(before.iter().all(|instance| now.contains(instance)), "{before:?} {now:?}");
}

/// A planner that blocks removals after a launch while pods wait for a node.
#[derive(Debug)]
struct BlockedByWaitingPods {
    initial_instances: usize,
    /// Number of waiting pods at each judgment after the launch.
    waiting: RefCell<Vec<usize>>,
}

impl Replan for BlockedByWaitingPods {
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        let mut revalidated = RevalidatedPlan::as_approved(plan.clone());
        if observed.instances.len() > self.initial_instances {
            let waiting = observed.pods.iter().filter(|pod| is_pending(pod)).count();
            self.waiting.borrow_mut().push(waiting);
            revalidated.blocked_removal =
                (waiting > 0).then(|| "more launches would be needed".to_owned());
        }
        Box::pin(std::future::ready(revalidated))
    }
}

#[test]
fn removals_are_judged_once_more_when_waiting_pods_are_bound() {
    // Nodes have room for three pods each: nine run, and the launches have room for nine more.
    for (replicas, judged, verdict) in
        [(12, [3, 0], ApplyStatus::Applied), (20, [11, 2], ApplyStatus::Partly)]
    {
        let world = fleet();
        world.deliver(&workloads(replicas)).expect("kept in memory");
        world.settle(MINUTE * 5).expect("kept in memory");
        let mut plan = plan(&world);
        plan.capacity.base.preconditions.clear();
        let before = active(&world);
        let replan =
            BlockedByWaitingPods { initial_instances: before.len(), waiting: RefCell::default() };
        let settings = ApplySettings { replan: &replan, ..settings() };
        let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
        assert_eq!(replan.waiting.take(), judged, "{replicas}");
        assert_eq!(receipt.verdict, verdict, "{replicas}: {receipt:#?}");
        let why = "more launches would be needed".to_owned();
        let is_applied = verdict == ApplyStatus::Applied;
        let expected = if is_applied { Outcome::Done } else { Outcome::Skipped { why } };
        assert_eq!(*outcome(&receipt, "0", WaveStep::Retire), expected, "{replicas}");
        let now = active(&world);
        let has_removed = !before.iter().all(|instance| now.contains(instance));
        assert_eq!(has_removed, is_applied, "{replicas}: {now:?}");
    }
}

#[test]
fn plan_with_removals_is_rejected_while_removals_are_frozen() {
    let world = fleet();
    let plan = plan(&world);
    let before = (active(&world), writes(&world));
    let why = "the size of HelmRelease web/shop is not known".to_owned();
    let replan = FixedReplan { frozen: Some(why.clone()), ..FixedReplan::default() };
    let settings = ApplySettings { replan: &replan, ..settings() };
    let (refused, _) = apply_over(&plan, &world, &settings);
    assert_eq!(refused, Err(ApplyError::Frozen(why)));
    assert_eq!((active(&world), writes(&world)), before);
}
