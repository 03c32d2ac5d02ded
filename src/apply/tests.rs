//! What apply refuses, what it does, and that it can die anywhere.

mod cordons;
mod groups;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use jiff::SignedDuration;

use super::fixture::{
    Fault, Faulty, Otherwise, active, address, apply_over, fleet, plan, planned_fleet, settings,
    workloads,
};
use super::*;
use crate::catalog::{CapacityType, InstanceType, Measured, PriceSource, Zone};
use crate::demand::DemandMode;
use crate::fleet::{Instance, Node, PodPhase, tag};
use crate::ids::{InstanceTypeName, WorkloadKind};
use crate::plan::wire::{
    Action, AlternativesRow, Amount, Base, BaseWorld, Check, Condition, ExplainRow, NodeState,
    Precondition, Reason,
};
use crate::plan::{change_id, client_token};
use crate::pod::{Taint, TaintEffect, Toleration, TolerationOperator};
use crate::requirement::{key, label};
use crate::sim::fixture::{id, launch, pods, poll_once, request, run};
use crate::sim::{Call, DeliveredWorkload, Delivery, Genesis, Unavailable, World};
use crate::solve::{Alternative, KeepReason};
use crate::story::Story;
use crate::units::MicroUsd;

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

fn outcome<'r>(receipt: &'r Receipt, key: &str, step: WaveStep) -> &'r Outcome {
    let found = receipt.outcomes.iter().find(|c| c.address == address(key) && c.step == step);
    &found.expect("one outcome for each half of a row").outcome
}

fn applied(plan: &Plan, world: &World) -> Receipt {
    apply_over(plan, world, &settings()).0.expect("not refused")
}

/// Writing calls that the fixture's own set-up did not make.
fn writes(world: &World) -> Vec<Call> {
    let set_up = |call: &Call| match call {
        Call::Launch { request, .. } => !request.tags.contains_key(tag::SPEC),
        Call::Terminate { .. }
        | Call::Cordon { .. }
        | Call::Evict { .. }
        | Call::RaiseGroup { .. }
        | Call::EndMember { .. }
        | Call::DeleteNode { .. } => false,
    };
    world.ledger().into_iter().filter(|call| !set_up(call)).collect()
}

/// Asserts from the ledger that no change launched twice, and that nothing foreign was touched.
fn assert_lawful(world: &World, plan: &Plan) {
    let observed = world.observed();
    let changes: Vec<String> = ["1", "2", "3"]
        .map(|key| change_id(&plan.capacity.plan_id, &address(key)).to_string())
        .into();
    for change in &changes {
        let carries = |i: &&Instance| i.tags.get(tag::CHANGE) == Some(change);
        assert!(observed.instances.values().filter(carries).count() <= 1, "launched twice");
    }
    let retired = |name: &NodeState| (name.instance_id.clone(), name.node.clone());
    let allowed: Vec<_> = plan
        .resource_changes
        .iter()
        .filter_map(|row| row.change.before.as_ref().map(retired))
        .collect();
    for call in writes(world) {
        match call {
            Call::Launch { request, .. } => {
                assert!(changes.contains(&request.tags[tag::CHANGE]));
            }
            Call::Terminate { instance, .. } => {
                assert!(allowed.iter().any(|(id, _)| id.as_ref() == Some(&instance)));
            }
            Call::Cordon { node, .. } | Call::DeleteNode { node, .. } => {
                assert!(allowed.iter().any(|(_, name)| name.as_ref() == Some(&node)));
            }
            Call::Evict { name, .. } => assert!(name.starts_with("api-"), "{name}"),
            call @ (Call::RaiseGroup { .. } | Call::EndMember { .. }) => {
                panic!("the plan has no group: {call:?}");
            }
        }
    }
}

#[test]
fn a_plan_is_carried_out_and_all_pods_run_on() {
    let world = fleet();
    let plan = plan(&world);
    let (receipt, events) = apply_over(&plan, &world, &settings());
    let receipt = receipt.expect("not refused");
    assert_eq!(receipt.verdict, Verdict::Applied, "{receipt:#?}");
    assert!(receipt.outcomes.iter().all(|change| change.outcome == Outcome::Done));
    assert_eq!(receipt.outcomes.len(), 5, "a replacement has two halves");
    assert_eq!(active(&world), planned_fleet(&plan));
    assert_eq!(world.observed().nodes.len(), 4, "the nodes of what went are gone");
    assert_lawful(&world, &plan);
    world.settle(MINUTE * 5).expect("kept in memory");
    let api = pods(&world, "api");
    assert_eq!(api.len(), 6);
    assert!(api.iter().all(|pod| pod.phase == PodPhase::Running));
    let position = |wanted: fn(&Step) -> bool| events.iter().position(|e| wanted(&e.step));
    let last_ready = events.iter().rposition(|e| matches!(e.step, Step::Ready { .. }));
    let first_cordon = position(|step| matches!(step, Step::Cordoned { .. }));
    assert!(last_ready < first_cordon, "new capacity is Ready before old capacity is drained");
    let first_eviction = position(|step| matches!(step, Step::Evicted { .. }));
    let [cordon, eviction] = [first_cordon, first_eviction].map(|at| events[at.expect("one")].at);
    assert_eq!(cordon, eviction, "who was cordoned is read again at once");
}

#[test]
fn what_is_launched_carries_what_was_decided() {
    let world = fleet();
    let plan = plan(&world);
    applied(&plan, &world);
    let observed = world.observed();
    let change = change_id(&plan.capacity.plan_id, &address("2"));
    let ours = |i: &&Instance| i.tags.get(tag::CHANGE).is_some_and(|c| c == change.as_str());
    let instance = observed.instances.values().find(ours).expect("launched");
    for (tag, value) in
        [(tag::CLUSTER, "prod"), (tag::POOL, "web"), (tag::KEY, "2"), (tag::SPEC, "spec-1")]
    {
        assert_eq!(instance.tags[tag], value);
    }
    let node = observed.node_of(&instance.id).expect("registered");
    assert_eq!(node.labels[crate::fleet::KEY_LABEL].as_str(), "2");
    assert_eq!(node.labels["team"].as_str(), "web");
}

#[test]
fn applied_twice_nothing_happens_the_second_time() {
    let world = fleet();
    let plan = plan(&world);
    applied(&plan, &world);
    let (calls, now) = (world.ledger().len(), world.now());
    let again = applied(&plan, &world);
    assert_eq!(again.verdict, Verdict::Applied);
    assert!(again.outcomes.iter().all(|change| change.outcome == Outcome::AlreadyDone));
    assert_eq!((world.ledger().len(), world.now()), (calls, now));
}

#[test]
fn every_refusal_comes_before_the_first_write() {
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
                    status: "fail".into(),
                    problems,
                    ..Check::default()
                });
            },
            |e| matches!(e, ApplyError::Denied(why) if why == &["cost: too dear"]),
        ),
        (|p, _| p.capacity.expires_at = p.timestamp, |e| matches!(e, ApplyError::Expired { .. })),
        (
            |p, _| p.capacity.waves.truncate(1),
            |e| matches!(e, ApplyError::Unreadable(why) if why.len() == 2),
        ),
        (|p, _| p.capacity.waves.reverse(), |e| matches!(e, ApplyError::Unreadable(_))),
        (
            |p, _| p.resource_changes[2].change.actions = vec![Action::Update],
            |e| matches!(e, ApplyError::Unreadable(_)),
        ),
        (
            |p, _| {
                for row in &mut p.resource_changes {
                    row.change.after = None;
                    row.change.before = None;
                }
            },
            |e| matches!(e, ApplyError::Unreadable(why) if why.len() == 5),
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
fn the_approved_digest_lets_the_plan_pass() {
    let world = fleet();
    let plan = plan(&world);
    let approved = Some(plan.capacity.digest.clone());
    let settings = ApplySettings { approved, ..settings() };
    assert!(apply_over(&plan, &world, &settings).0.is_ok());
}

#[test]
fn an_unknown_world_is_no_empty_one() {
    let world = fleet();
    let plan = plan(&world);
    let mut faulty = Faulty::new(&world, usize::MAX, Fault::DieBefore);
    faulty.lag = MINUTE * 60;
    let error = apply_over(&plan, &faulty, &settings()).0.expect_err("EC2 lists nothing");
    assert!(matches!(&error, ApplyError::Unknown(why) if why[0].starts_with("ec2")), "{error}");
    assert!(writes(&world).is_empty());
}

#[test]
fn a_stale_plan_names_every_condition_with_what_was_found() {
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
    assert!(writes(&world).iter().all(|call| !matches!(call, Call::Terminate { .. })));
}

#[test]
fn an_instance_that_lost_our_tags_is_not_ours_to_retire() {
    let world = fleet();
    let mut plan = plan(&world);
    let observed = world.observed();
    let foreign = observed.instances.values().find(|i| !i.is_ours("prod")).expect("one");
    let before = plan.resource_changes[0].change.before.as_mut().expect("a node");
    before.instance_id = Some(foreign.id.clone());
    before.node_uid = observed.node_of(&foreign.id).map(|node| node.uid.clone());
    let error = apply_over(&plan, &world, &settings()).0.expect_err("not listed as ours");
    assert!(matches!(error, ApplyError::Stale(_)), "{error}");
    assert!(writes(&world).is_empty());
}

#[test]
fn an_instance_with_our_cluster_tag_alone_is_not_ours_to_retire() {
    let world = fleet();
    let mut plan = plan(&world);
    let mut half = request("half");
    half.tags.remove(tag::POOL);
    let instance = launch(&world, &half);
    world.settle(MINUTE * 5).expect("kept in memory");
    let before = plan.resource_changes[0].change.before.as_mut().expect("a node");
    before.node_uid = world.observed().node_of(&instance).map(|node| node.uid.clone());
    before.instance_id = Some(instance);
    let error = apply_over(&plan, &world, &settings()).0.expect_err("not ours");
    let ApplyError::Stale(failed) = error else { panic!("{error}") };
    assert!(failed[0].found.contains("without our tags"), "{failed:#?}");
    assert!(writes(&world).is_empty());
}

#[test]
fn what_is_ending_holds_no_key_and_is_not_drained_again() {
    let world = fleet();
    let plan = plan(&world);
    let mut taken = request("taken");
    taken.tags.insert(tag::KEY.into(), "3".into());
    let taken = launch(&world, &taken);
    let retiring = plan.resource_changes[0].change.before.clone().and_then(|n| n.instance_id);
    let retiring = retiring.expect("an instance");
    for id in [&taken, &retiring] {
        run(world.terminate(id)).expect("known");
    }
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, Verdict::Applied);
    assert_eq!(active(&world), planned_fleet(&plan));
    let again =
        |call: &&Call| matches!(call, Call::Terminate { instance, .. } if *instance == retiring);
    assert_eq!(world.ledger().iter().filter(again).count(), 1, "only the test ended it");
}

#[test]
fn a_node_counts_as_ready_once_its_startup_taints_are_gone() {
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
        assert_eq!(receipt.expect("not refused").verdict, Verdict::Applied);
        let ready = events.iter().find(|event| matches!(event.step, Step::Ready { .. }));
        ready.expect("three of them").at.duration_since(began)
    };
    let effect = TaintEffect::NoSchedule;
    let taint = Taint { key: "agent/not-ready".into(), value: "".into(), effect };
    assert_eq!(ready_after(Vec::new()), crate::sim::delay::READY);
    assert_eq!(ready_after(vec![taint]), crate::sim::delay::INITIALIZED);
}

#[test]
fn an_instance_that_went_by_itself_is_a_change_already_done() {
    let world = fleet();
    let plan = plan(&world);
    let gone = plan.resource_changes[0].change.before.clone().and_then(|n| n.instance_id);
    run(world.terminate(&gone.expect("an instance"))).expect("known");
    world.settle(MINUTE * 5).expect("kept in memory");
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, Verdict::Applied);
    assert_eq!(*outcome(&receipt, "0", WaveStep::Retire), Outcome::AlreadyDone);
    assert_eq!(active(&world), planned_fleet(&plan));
}

#[test]
fn dropped_changes_are_left_out() {
    let world = fleet();
    let plan = plan(&world);
    let why = "no pod needs it any more".to_owned();
    let dropped = ["0", "3"].map(|key| (address(key), why.clone())).into();
    let replan = Otherwise { dropped, ..Otherwise::default() };
    let settings = ApplySettings { replan: &replan, ..settings() };
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    assert_eq!(receipt.verdict, Verdict::Applied);
    assert_eq!(*outcome(&receipt, "3", WaveStep::Launch), Outcome::Dropped { why: why.clone() });
    assert_eq!(*outcome(&receipt, "0", WaveStep::Retire), Outcome::Dropped { why });
    let keys: Vec<_> = active(&world).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["", "0", "1", "2"]);
}

#[test]
fn what_is_needed_beyond_the_approved_stops_an_apply_before_its_first_write() {
    let world = fleet();
    let plan = plan(&world);
    let before = (active(&world), writes(&world));
    let missing = vec!["m6i.large eu-west-1a on-demand of pool web".to_owned()];
    let replan = Otherwise { missing: missing.clone(), ..Otherwise::default() };
    let settings = ApplySettings { replan: &replan, ..settings() };
    let (refused, events) = apply_over(&plan, &world, &settings);
    assert_eq!(refused, Err(ApplyError::Outgrown(missing)));
    assert!(events.is_empty(), "{events:?}");
    assert_eq!((active(&world), writes(&world)), before);
}

/// Plans again as approved until machines were launched, and then lacks something.
#[derive(Debug)]
struct OutgrownSince {
    machines: usize,
}

impl Replan for OutgrownSince {
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        let grown = observed.instances.len() > self.machines;
        let held = grown.then(|| "1 more pods would have no place".to_owned());
        // What is missing besides is nothing that the nodes that go could give.
        let missing = vec!["m6i.large eu-west-1a on-demand of pool web".to_owned()];
        let missing = if grown { missing } else { Vec::new() };
        let pinned = Pinned { missing, held, ..Pinned::as_approved(plan.clone()) };
        Box::pin(std::future::ready(pinned))
    }
}

#[test]
fn what_came_to_need_the_nodes_meanwhile_keeps_them() {
    let world = fleet();
    let plan = plan(&world);
    let before = active(&world);
    let replan = OutgrownSince { machines: before.len() };
    let settings = ApplySettings { replan: &replan, ..settings() };
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    assert_eq!(receipt.verdict, Verdict::Partly);
    assert_eq!(*outcome(&receipt, "3", WaveStep::Launch), Outcome::Done);
    let why = "by now it is not as approved: 1 more pods would have no place".to_owned();
    assert_eq!(*outcome(&receipt, "0", WaveStep::Retire), Outcome::Skipped { why });
    let now = active(&world);
    assert!(before.iter().all(|machine| now.contains(machine)), "{before:?} {now:?}");
}

#[test]
fn a_plan_that_removes_is_stopped_while_nothing_may_be_removed() {
    let world = fleet();
    let plan = plan(&world);
    let before = (active(&world), writes(&world));
    let why = "the size of HelmRelease web/shop is not known".to_owned();
    let replan = Otherwise { frozen: Some(why.clone()), ..Otherwise::default() };
    let settings = ApplySettings { replan: &replan, ..settings() };
    let (refused, _) = apply_over(&plan, &world, &settings);
    assert_eq!(refused, Err(ApplyError::Frozen(why)));
    assert_eq!((active(&world), writes(&world)), before);
}

fn no_capacity(world: &World, kind: &str) {
    let instance_type = Some(InstanceTypeName::from(kind));
    world.set_unavailable(vec![Unavailable { instance_type, ..Unavailable::default() }]);
}

#[test]
fn without_capacity_or_alternative_nothing_that_depends_on_it_is_retired() {
    let world = fleet();
    let plan = plan(&world);
    no_capacity(&world, "m6i.large");
    let before = active(&world);
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, Verdict::Partly);
    let failed = outcome(&receipt, "2", WaveStep::Launch);
    assert!(
        matches!(failed, Outcome::Failed { why } if why.contains("InsufficientInstanceCapacity")),
        "{failed:?}"
    );
    for key in ["0", "1"] {
        let skipped = outcome(&receipt, key, WaveStep::Retire);
        assert!(matches!(skipped, Outcome::Skipped { .. }), "{skipped:?}");
    }
    assert_eq!(active(&world), before);
    world.set_unavailable(Vec::new());
    assert_eq!(applied(&plan, &world).verdict, Verdict::Applied, "the same plan finishes");
    assert_eq!(active(&world), planned_fleet(&plan));
}

#[test]
fn a_group_whose_launches_succeeded_goes_on_where_another_failed() {
    let explain = |(key, group): (&str, &str)| ExplainRow {
        address: address(key),
        group: Some(group.to_owned()),
        reason: Reason::Keep { because: KeepReason::NotOurs },
        retire_reason: None,
        drift: None,
        estimated: false,
        hourly_before: None,
        hourly_after: None,
        pods: BTreeMap::new(),
        pods_before: BTreeMap::new(),
        daemons: Amount::default(),
        rejected: Vec::new(),
        overlays: Vec::new(),
        relaxed: Vec::new(),
    };
    // Row `0` retires with the group of the launch that fails, or without any group.
    for group_of_0 in [Some(("0", "b")), None] {
        let world = fleet();
        let mut plan = plan(&world);
        let failing = plan.resource_changes[2].change.after.as_mut().expect("a launch");
        failing.zone = Some("eu-west-1b".into());
        let groups = [("1", "a"), ("2", "b"), ("3", "a")].into_iter().chain(group_of_0);
        plan.capacity.explain = groups.map(explain).collect();
        let zone = Some("eu-west-1b".into());
        world.set_unavailable(vec![Unavailable { zone, ..Unavailable::default() }]);
        let receipt = applied(&plan, &world);
        assert_eq!(receipt.verdict, Verdict::Partly);
        assert!(matches!(outcome(&receipt, "2", WaveStep::Launch), Outcome::Failed { .. }));
        assert!(matches!(outcome(&receipt, "0", WaveStep::Retire), Outcome::Skipped { .. }));
        assert_eq!(*outcome(&receipt, "1", WaveStep::Retire), Outcome::Done);
    }
}

fn catalog() -> Catalog {
    let kind = |name: &str, vcpus: i64, family: &str| InstanceType {
        name: name.into(),
        arch: "amd64".into(),
        vcpus,
        memory_mib: 8192,
        enis: 3,
        ips_per_eni: 10,
        local_nvme_gb: 0,
        ebs_attachments: None,
        extended: BTreeMap::new(),
        bare_metal: false,
        has_accelerator: false,
        labels: [
            label(key::INSTANCE_TYPE, name),
            label("karpenter.k8s.aws/instance-family", family),
        ]
        .into(),
        offerings: Vec::new(),
    };
    let types = [kind("m6i.large", 2, "m6i"), kind("m7i.large", 2, "m7i")];
    let zone = |name: &str, id: &str| Zone { name: name.into(), id: id.into(), assumed: false };
    Catalog {
        region: "eu-west-1".into(),
        zones: vec![zone("eu-west-1a", "euw1-az1"), zone("eu-west-1b", "euw1-az2")],
        types: types.map(|kind| (kind.name.clone(), kind)).into(),
        prices: PriceSource {
            source: "none".into(),
            region: "eu-west-1".into(),
            date: "2026-11-21".into(),
            stand_in: false,
        },
        warnings: Vec::new(),
        measured: Measured::default(),
        quotas: None,
    }
}

fn alternatives(kinds: &[&str]) -> Vec<AlternativesRow> {
    let offering = |kind: &&str| Alternative {
        instance_type: (*kind).into(),
        zone: "eu-west-1b".into(),
        capacity_type: CapacityType::Spot,
        hourly: MicroUsd::ZERO,
    };
    let row = |key| AlternativesRow {
        address: address(key),
        offerings: kinds.iter().map(offering).collect(),
    };
    ["1", "2", "3"].map(row).into()
}

#[test]
fn without_capacity_the_next_approved_alternative_is_taken() {
    let world = fleet();
    let mut plan = plan(&world);
    plan.capacity.alternatives = alternatives(&["m7i.large"]);
    no_capacity(&world, "m6i.large");
    let catalog = catalog();
    let settings = ApplySettings { catalog: Some(&catalog), ..settings() };
    let (receipt, events) = apply_over(&plan, &world, &settings);
    assert_eq!(receipt.expect("not refused").verdict, Verdict::Applied);
    assert_eq!(active(&world), planned_fleet(&plan));
    assert!(events.iter().any(|event| matches!(event.step, Step::NoCapacity { .. })));
    let observed = world.observed();
    let has_spec = |i: &&Instance| i.is_active() && i.tags.contains_key(tag::SPEC);
    for instance in observed.instances.values().filter(has_spec) {
        assert_eq!(instance.instance_type.as_str(), "m7i.large");
        assert_eq!(instance.capacity_type, CapacityType::Spot);
        let labels = &observed.node_of(&instance.id).expect("registered").labels;
        for (key, value) in [
            (key::INSTANCE_TYPE, "m7i.large"),
            (key::ZONE, "eu-west-1b"),
            (key::ZONE_ID, "euw1-az2"),
            (key::CAPACITY_TYPE, "spot"),
            ("karpenter.k8s.aws/instance-family", "m7i"),
            ("team", "web"),
        ] {
            assert_eq!(labels[key].as_str(), value, "{key}");
        }
    }
}

#[test]
fn an_alternative_the_catalogue_does_not_know_is_never_launched() {
    let world = fleet();
    let mut plan = plan(&world);
    plan.capacity.alternatives = alternatives(&["m8i.large"]);
    no_capacity(&world, "m6i.large");
    let catalog = catalog();
    let settings = ApplySettings { catalog: Some(&catalog), ..settings() };
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    assert!(matches!(outcome(&receipt, "2", WaveStep::Launch), Outcome::Failed { .. }));
    assert!(writes(&world).iter().all(|call| match call {
        Call::Launch { request, .. } => request.instance_type.as_str() == "m6i.large",
        Call::Terminate { .. }
        | Call::Cordon { .. }
        | Call::Evict { .. }
        | Call::RaiseGroup { .. }
        | Call::EndMember { .. }
        | Call::DeleteNode { .. } => false,
    }));
}

#[test]
fn a_blocked_drain_is_given_up_and_uncordoned_within_its_bound() {
    let world = fleet();
    world.deliver(&workloads(6).budget("api", None, Some("0"))).expect("kept in memory");
    let plan = plan(&world);
    let began = world.now();
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, Verdict::Partly);
    for key in ["0", "1"] {
        let outcome = outcome(&receipt, key, WaveStep::Retire);
        assert!(
            matches!(outcome, Outcome::GivenUp { why } if why.contains("web/api-budget")),
            "{outcome:?}"
        );
    }
    let observed = world.observed();
    assert!(observed.nodes.values().all(|node| !node.unschedulable));
    assert!(observed.nodes.values().all(|node| node.annotations.is_empty()));
    let bounds = Bounds::default();
    assert!(world.now().duration_since(began) < bounds.drain + bounds.ready);
    assert_eq!(pods(&world, "api").iter().filter(|pod| pod.terminating).count(), 0);
    world.deliver(&workloads(6)).expect("kept in memory");
    assert_eq!(applied(&plan, &world).verdict, Verdict::Applied, "the same plan finishes");
    assert_eq!(active(&world), planned_fleet(&plan));
    assert_lawful(&world, &plan);
}

#[test]
fn a_budget_that_lets_one_pod_go_at_a_time_slows_a_drain_and_is_kept() {
    let world = fleet();
    world.deliver(&workloads(6).budget("api", Some("5"), None)).expect("kept in memory");
    let plan = plan(&world);
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, Verdict::Applied, "{receipt:#?}");
    let blocked = |call: &Call| {
        matches!(call, Call::Evict { outcome: Some(crate::port::EvictOutcome::Blocked { .. }), .. })
    };
    assert!(world.ledger().iter().any(blocked));
}

#[test]
fn critical_pods_leave_a_node_after_all_others() {
    let world = fleet();
    let mut delivery = workloads(6).with(WorkloadKind::Deployment, "dns", 2, 100);
    let dns = delivery.workloads.get_mut(&id(WorkloadKind::Deployment, "dns")).expect("delivered");
    let critical = std::sync::Arc::make_mut(&mut dns.template);
    critical.spec.priority_class_name = Some("system-cluster-critical".into());
    world.deliver(&delivery).expect("kept in memory");
    world.settle(SignedDuration::from_mins(5)).expect("kept in memory");
    let plan = plan(&world);
    let observed = world.observed();
    let on = |name: &str| {
        let pod = observed.pods.iter().find(|pod| *pod.name == *name);
        pod.and_then(|pod| pod.node.clone())
    };
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, Verdict::Applied, "{receipt:#?}");
    let evicted = writes(&world).into_iter().filter_map(|call| {
        let Call::Evict { name, outcome: Some(outcome), .. } = call else { return None };
        (outcome == crate::port::EvictOutcome::Evicted).then_some(name)
    });
    let evicted: Vec<String> = evicted.collect();
    let critical: Vec<&String> = evicted.iter().filter(|name| name.contains("dns")).collect();
    assert!(!critical.is_empty(), "{evicted:?}");
    for name in critical {
        let at = evicted.iter().position(|other| other == name).expect("evicted");
        let later = evicted[at..].iter().filter(|other| !other.contains("dns"));
        let of_its_node = later.filter(|other| on(other) == on(name));
        assert_eq!(of_its_node.count(), 0, "{evicted:?}");
    }
}

#[test]
fn a_node_that_another_one_cordoned_stays_cordoned_when_its_drain_is_given_up() {
    let dir = tempfile::tempdir().expect("scratch");
    let world = fleet();
    let plan = plan(&world);
    let mut observed = world.observed();
    let name = plan.resource_changes[0].change.before.clone().and_then(|n| n.node).expect("a node");
    observed.nodes.get_mut(&name).expect("registered").unschedulable = true;
    let bytes = crate::fleet::write_world(&observed);
    std::fs::write(dir.path().join("world.json"), bytes).expect("written");
    let genesis = crate::sim::fixture::genesis();
    let world =
        World::open(dir.path(), &genesis, crate::sim::fixture::shapes()).expect("a world file");
    world.deliver(&workloads(6).budget("api", None, Some("0"))).expect("kept");
    let receipt = applied(&plan, &world);
    assert!(matches!(outcome(&receipt, "0", WaveStep::Retire), Outcome::GivenUp { .. }));
    assert!(world.observed().nodes[&name].unschedulable, "their mark is not ours to remove");
}

#[test]
fn what_a_run_that_died_left_cordoned_takes_pods_again_in_the_next_one_unless_it_goes() {
    // One whose machine ends already takes no more pods, whoever does what.
    let cordoned = |world: &World| {
        let Observed { nodes, instances, .. } = world.observed();
        let runs = |node: &Node| {
            let instance = node.instance.as_ref().and_then(|id| instances.get(id));
            instance.is_some_and(Instance::is_active)
        };
        let all = nodes.into_values().filter(|node| node.unschedulable && runs(node));
        all.map(|node| node.name).collect::<Vec<_>>()
    };
    let (mut at, mut found) = (0, 0);
    loop {
        let world = fleet();
        let plan = plan(&world);
        if !run_into(&plan, &world, at, Fault::DieAfter) {
            break;
        }
        at += 1;
        let left = cordoned(&world);
        let mut other = plan.clone();
        for row in &mut other.resource_changes[..2] {
            row.change.actions = vec![Action::NoOp];
        }
        other.capacity.waves.retain(|wave| wave.step == WaveStep::Launch);
        other.capacity.waves[0].addresses.retain(|one| *one != address("1"));
        // One of those that do not go: whoever cordoned it, we did not.
        let mut nodes = world.observed().nodes.into_values();
        let theirs = nodes.find(|node| !node.unschedulable);
        let theirs = Node { unschedulable: true, ..theirs.expect("another") };
        world.change_node(&theirs);
        for alone in [false, true] {
            let settings = ApplySettings { alone, ..settings() };
            let (receipt, events) = apply_over(&other, &world, &settings);
            assert_eq!(receipt.map(|receipt| receipt.verdict), Ok(Verdict::Applied));
            let opened = events.iter().filter_map(|event| {
                let Step::Uncordoned { node } = &event.step else { return None };
                Some(node.clone())
            });
            let expected = if alone { left.clone() } else { Vec::new() };
            assert_eq!(opened.collect::<Vec<_>>(), expected, "{at}");
        }
        assert_eq!(cordoned(&world), [theirs.name], "{at}");
        found += left.len();
    }
    assert!(found > 2, "{found} were left");
}

#[test]
fn a_machine_ends_once_its_volumes_are_detached_or_their_bound_is_reached() {
    for (minutes, waits) in [(3, MINUTE * 3), (60, Bounds::default().detach)] {
        let world = fleet();
        let plan = plan(&world);
        let begun = world.now();
        let mut ports = Faulty::new(&world, usize::MAX, Fault::FailBefore);
        ports.attached = begun + MINUTE * minutes;
        let (receipt, events) = apply_over(&plan, &ports, &settings());
        assert_eq!(receipt.expect("not refused").verdict, Verdict::Applied);
        let said = events.iter().any(
            |event| matches!(&event.step, Step::Waiting { why } if why.contains("volume vol-1")),
        );
        assert!(said, "{events:?}");
        let ended = world.ledger().into_iter().find_map(|call| match call {
            Call::Terminate { at, .. } => Some(at),
            Call::Launch { .. }
            | Call::RaiseGroup { .. }
            | Call::EndMember { .. }
            | Call::Cordon { .. }
            | Call::Evict { .. }
            | Call::DeleteNode { .. } => None,
        });
        assert!(ended.expect("it ended").duration_since(begun) >= waits, "{minutes}");
    }
}

#[test]
fn a_pod_that_asks_not_to_be_moved_keeps_its_node() {
    let world = fleet();
    let mut delivery = workloads(6);
    let api = id(WorkloadKind::Deployment, "api");
    let mut template = crate::sim::fixture::template("api", 500);
    template.annotations.insert("karpenter.sh/do-not-disrupt".into(), "true".into());
    delivery.workloads.get_mut(&api).expect("delivered").template = template.into();
    world.deliver(&delivery).expect("kept in memory");
    world.settle(MINUTE * 5).expect("kept in memory");
    let receipt = applied(&plan(&world), &world);
    let kept = outcome(&receipt, "1", WaveStep::Retire);
    assert!(matches!(kept, Outcome::GivenUp { why } if why.contains("asks not to")), "{kept:?}");
    assert!(world.observed().nodes.values().all(|node| !node.unschedulable));
    assert!(!writes(&world).iter().any(|call| matches!(call, Call::Evict { .. })));
}

#[test]
fn a_node_waits_for_its_workload_to_shrink_and_is_left_when_it_does_not() {
    let world = fleet();
    let mut plan = plan(&world);
    plan.capacity.base.preconditions[0].condition =
        Condition::ReplicasAtMost { workload: id(WorkloadKind::Deployment, "api"), replicas: 4 };
    let receipt = applied(&plan, &world);
    assert_eq!(receipt.verdict, Verdict::Partly);
    let left = outcome(&receipt, "0", WaveStep::Retire);
    assert!(matches!(left, Outcome::GivenUp { why } if why.contains("6 replicas")), "{left:?}");
    assert_eq!(*outcome(&receipt, "1", WaveStep::Retire), Outcome::Done, "nobody else waits");
    let zero = plan.resource_changes[0].change.before.clone().and_then(|n| n.node).expect("node");
    let touched = |call: &Call| matches!(call, Call::Cordon { node, .. } if *node == zero);
    assert!(!writes(&world).iter().any(touched), "it was not even cordoned");
    world.deliver(&workloads(4)).expect("kept in memory");
    assert_eq!(applied(&plan, &world).verdict, Verdict::Applied);
}

#[test]
fn a_machine_that_never_becomes_ready_is_terminated_and_tried_again_by_the_next_run() {
    let world = fleet();
    let plan = plan(&world);
    let mut settings = settings();
    settings.bounds.ready = SignedDuration::from_secs(30);
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    assert_eq!(receipt.verdict, Verdict::Partly);
    let outcome = outcome(&receipt, "2", WaveStep::Launch);
    assert!(
        matches!(outcome, Outcome::GivenUp { why } if why.contains("terminated")),
        "{outcome:?}"
    );
    let keys = |world: &World| active(world).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(keys(&world), ["", "0", "1"], "what did not boot is ended, the rest is kept");
    world.settle(MINUTE * 5).expect("kept in memory");
    assert_eq!(applied(&plan, &world).verdict, Verdict::Applied);
    assert_eq!(active(&world), planned_fleet(&plan), "a new attempt has a new token");
}

#[test]
fn a_node_that_joined_and_is_not_ready_in_time_is_cordoned_before_its_machine_ends() {
    let world = fleet();
    let plan = plan(&world);
    let mut settings = settings();
    settings.bounds.ready = SignedDuration::from_secs(40);
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    let given_up = receipt.outcomes.iter().filter(|change| {
        matches!(&change.outcome, Outcome::GivenUp { why } if why.contains("was terminated"))
    });
    let given_up: Vec<InstanceId> = given_up.filter_map(|c| c.instance_id.clone()).collect();
    assert!(!given_up.is_empty(), "{receipt:?}");
    let (mut cordoned, mut ended) = (0, 0);
    for call in writes(&world) {
        if let Call::Terminate { instance, .. } = &call
            && given_up.contains(instance)
        {
            ended += 1;
            assert!(cordoned >= ended, "{instance} ended, and no pod was kept from it");
        }
        cordoned += usize::from(matches!(call, Call::Cordon { unschedulable: true, .. }));
    }
    assert_eq!(ended, given_up.len());
}

#[test]
fn a_machine_that_is_not_ready_in_time_but_holds_pods_is_left() {
    let world = fleet();
    let plan = plan(&world);
    let mut delivery = workloads(12);
    let mut template = crate::sim::fixture::template("api", 500);
    let anything = Toleration { operator: TolerationOperator::Exists, ..Toleration::default() };
    template.spec.tolerations.push(anything);
    let api = id(WorkloadKind::Deployment, "api");
    delivery.workloads.get_mut(&api).expect("delivered").template = template.into();
    world.deliver(&delivery).expect("kept in memory");
    let mut settings = settings();
    settings.bounds.ready = SignedDuration::from_secs(40);
    let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
    let outcomes = ["1", "2", "3"].map(|key| outcome(&receipt, key, WaveStep::Launch));
    let left = |o: &&&Outcome| matches!(o, Outcome::GivenUp { why } if why.contains("was left"));
    assert!(outcomes.iter().any(|o| left(&o)), "{outcomes:?}");
    world.settle(MINUTE * 5).expect("kept in memory");
    assert!(active(&world).len() > 3, "what holds pods runs on");
}

#[test]
fn an_interrupted_drain_is_taken_back() {
    let world = fleet();
    world.deliver(&workloads(6).budget("api", None, Some("0"))).expect("kept in memory");
    let plan = plan(&world);
    let flag = AtomicBool::new(false);
    let settings = ApplySettings { interrupted: Some(&flag), ..settings() };
    let ports = Ports { cloud: &world, cluster: &world, clock: &world };
    let mut report = |event: &Event| {
        if matches!(event.step, Step::Blocked { .. }) {
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let receipt = run(apply(&plan, &ports, &settings, &mut report)).expect("begun");
    assert_eq!(receipt.verdict, Verdict::Interrupted);
    assert!(world.observed().nodes.values().all(|node| !node.unschedulable));
    let early = apply_over(&plan, &world, &settings).0.expect_err("refused");
    assert_eq!(early, ApplyError::Interrupted);
}

/// Applies with a fault at the `at`-th write; returns whether the run got that far.
fn run_into(plan: &Plan, world: &World, at: usize, fault: Fault) -> bool {
    let faulty = Faulty::new(world, at, fault);
    let ports = Ports { cloud: &faulty, cluster: &faulty, clock: &faulty };
    let settings = settings();
    let mut silent = |_: &Event| {};
    let cut = poll_once(apply(plan, &ports, &settings, &mut silent));
    if let Some(result) = cut {
        result.expect("a fault on the way is no refusal");
    }
    faulty.calls.get() > at
}

#[test]
fn the_same_plan_finishes_after_any_fault_at_any_write() {
    for fault in Fault::ALL {
        let mut at = 0;
        loop {
            let world = fleet();
            let plan = plan(&world);
            if !run_into(&plan, &world, at, fault) {
                break;
            }
            let receipt = applied(&plan, &world);
            assert_eq!(receipt.verdict, Verdict::Applied, "{fault:?} at {at}: {receipt:#?}");
            assert_eq!(active(&world), planned_fleet(&plan), "{fault:?} at {at}");
            assert_lawful(&world, &plan);
            let observed = world.observed();
            assert!(observed.nodes.values().all(|n| n.ready && !n.unschedulable));
            at += 1;
        }
        assert!(at >= 12, "3 launches, 2 cordons, 4 evictions or more, 2 ends, 2 deletions: {at}");
    }
}

#[test]
fn a_run_may_die_twice() {
    for first in 0..14 {
        for second in 0..14 {
            let world = fleet();
            let plan = plan(&world);
            run_into(&plan, &world, first, Fault::DieAfter);
            run_into(&plan, &world, second, Fault::DieBefore);
            assert_eq!(applied(&plan, &world).verdict, Verdict::Applied, "{first}, {second}");
            assert_eq!(active(&world), planned_fleet(&plan), "{first}, {second}");
            assert_lawful(&world, &plan);
        }
    }
}

#[test]
fn where_the_list_lags_the_token_keeps_a_launch_from_happening_twice() {
    let world = fleet();
    let plan = plan(&world);
    assert!(run_into(&plan, &world, 1, Fault::DieAfter));
    let mut lagging = Faulty::new(&world, usize::MAX, Fault::DieBefore);
    lagging.lag = SignedDuration::from_secs(20);
    let receipt = apply_over(&plan, &lagging, &settings()).0.expect("not refused");
    assert_eq!(receipt.verdict, Verdict::Applied);
    assert_eq!(active(&world), planned_fleet(&plan));
    assert_lawful(&world, &plan);
}

#[test]
fn an_attempt_is_a_token_of_its_own_and_fits_ec2() {
    let change = change_id(&"plan".into(), &address("0"));
    let (first, second) = (client_token(&change, 0), client_token(&change, 1));
    assert_ne!(first, second);
    assert!(first.len() <= 64 && first.is_ascii());
    assert_ne!(change, change_id(&"plan".into(), &address("1")));
}

#[test]
fn receipts_and_events_are_plain_json() {
    let world = fleet();
    let (receipt, events) = apply_over(&plan(&world), &world, &settings());
    let receipt = receipt.expect("not refused");
    let first = serde_json::to_string(&events[0]).expect("text keys");
    assert_eq!(first, r#"{"at":"2026-11-21T12:00:50Z","event":"checked","dropped":0}"#);
    assert!(events.iter().all(|event| serde_json::to_value(event).is_ok()));
    let json = serde_json::to_string(&receipt).expect("text keys");
    assert!(json.contains(r#""step":"launch""#) && json.contains(r#""outcome":"done""#), "{json}");
    assert_eq!(serde_json::from_str::<Receipt>(&json).expect("own form"), receipt);
}

/// Plans the story's repository over a simulated world.
fn plan_over(story: &Story, world: &World) -> Plan {
    let observed = run(observe(world, world, world, world.cluster()));
    let world = BaseWorld {
        name: "sim:world".into(),
        cluster: observed.cluster.clone(),
        taken_at: observed.taken_at,
        sources: observed.sources.clone(),
    };
    crate::engine::plan(&crate::engine::Inputs {
        desired: &story.desired,
        observed: &observed,
        catalog: &story.catalog,
        base: Base {
            path: ".".into(),
            repository: None,
            commit: None,
            tree: "0".repeat(64),
            dirty: false,
            directory: None,
            rendered: Vec::new(),
            world,
            demand: DemandMode::Live,
            preconditions: Vec::new(),
            guard: None,
            judged_by: Vec::new(),
        },
        at: observed.taken_at,
        demand: DemandMode::Live,
        is_forecast: false,
        scope: crate::engine::Scope::default(),
        settings: crate::solve::Settings::default(),
    })
}

#[test]
fn the_workshop_walk_plan_apply_plan_again_finds_nothing_to_do() {
    let mut story = Story::new(&["c5.large", "m5.large", "r5.large", "m5.xlarge"], 0, 1024);
    let genesis =
        Genesis { cluster: story.observed.cluster.clone(), now: story.observed.taken_at, seed: 1 };
    let world = World::in_memory(&genesis, crate::sim::fixture::shapes());
    for replicas in [0, 5, 12, 5, 1, 0] {
        story.scale(replicas);
        let deliver = |workload: &crate::manifest::Workload| DeliveredWorkload {
            replicas,
            first_ordinal: workload.first_ordinal,
            template: workload.template.clone(),
        };
        let workloads = story.desired.workloads.iter();
        let workloads = workloads.map(|(id, workload)| (id.clone(), deliver(workload))).collect();
        let delivery = Delivery { workloads, ..Delivery::default() };
        let plan = plan_over(&story, &world);
        assert!(plan.applyable, "{replicas}: {:?}", plan.capacity.diagnostics);
        world.deliver(&delivery).expect("kept in memory");
        let settings = ApplySettings { cluster: world.cluster(), ..settings() };
        let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
        assert_eq!(receipt.verdict, Verdict::Applied, "{replicas}: {receipt:#?}");
        world.settle(MINUTE * 5).expect("kept in memory");
        let running = pods_of(&world);
        assert_eq!(running, usize::try_from(replicas).expect("small"), "every pod runs");
        let again = plan_over(&story, &world);
        assert_eq!((again.summary.add, again.summary.destroy), (0, 0), "{replicas}: {again:#?}");
    }
    assert!(active(&world).is_empty());
}

fn pods_of(world: &World) -> usize {
    pods(world, "inflate").iter().filter(|pod| pod.phase == PodPhase::Running).count()
}
