//! When batches of closed nodes open, and which pods are nominated before.

mod annotations;
mod arriving_pods;
mod held_nodes;
mod nominations;

use super::*;
use crate::apply::ports::{CallEffect, PortError};
use crate::controller::planning::CurrentPlan;
use crate::controller::{Event, Mode, Signal};
use crate::demand::Decider;
use crate::model::ids::{WorkloadId, WorkloadKind};
use crate::model::observed::{Completeness, Pod};
use crate::model::pod::{PodTemplate, Taint};
use crate::plan::wire::{ExplainRow, PlacementRow};
use crate::testing::controller::{ControllerHarness, at, world};
use crate::testing::sample_plan;
use crate::testing::world::pod;

fn owner() -> WorkloadId {
    let kind = WorkloadKind::Deployment;
    WorkloadId { kind, namespace: "web".into(), name: "api".into() }
}

/// Returns the observation of two closed nodes and these pods, each with its node.
fn seen(seconds: i64, pods: &[(&str, Option<&str>)]) -> Observed {
    let mut world = world(seconds);
    for name in ["node-of-i-1", "node-of-i-2"] {
        let node = world.nodes.get_mut(name).expect("it is there");
        node.taints = vec![Taint::opening()];
        node.labels.insert(KEY_LABEL.into(), "tagged".into());
    }
    let one = |(name, node): &(&str, Option<&str>)| {
        let (uid, node) = (format!("uid-of-{name}").as_str().into(), node.map(NodeName::from));
        Arc::new(Pod { uid, node, owner: Some(owner()), ..pod(name) })
    };
    world.pods = pods.iter().map(one).collect();
    world
}

fn node<'w>(world: &'w mut Observed, name: &str) -> &'w mut Node {
    world.nodes.get_mut(name).expect("it is there")
}

/// Returns a plan for `pods` pods of one workload: one on the first node, the others on the second.
fn plan_for(pods: u32) -> Plan {
    let mut plan = sample_plan::plan();
    plan.capacity.waves.clear();
    let row = plan.resource_changes.iter().find(|row| row.change.before.is_some());
    let row = row.expect("something stands").clone();
    plan.resource_changes = ["i-1", "i-2"]
        .map(|id| {
            let mut row = row.clone();
            row.address = format!("aws_instance.web[\"{id}\"]").as_str().into();
            let before = row.change.before.as_mut().expect("it stands");
            (before.instance_id, before.node) = (Some(id.into()), None);
            row
        })
        .to_vec();
    let placed = [1, pods - 1].into_iter().zip(&plan.resource_changes);
    plan.capacity.placements = placed
        .map(|(pods, row)| PlacementRow { workload: owner(), address: row.address.clone(), pods })
        .collect();
    let explained = plan.capacity.explain[0].clone();
    let explain = plan.capacity.placements.iter().map(|placed| {
        let pods = [(workload_key(&placed.workload).as_str().into(), placed.pods)].into();
        ExplainRow { address: placed.address.clone(), pods, ..explained.clone() }
    });
    plan.capacity.explain = explain.collect();
    let mut demand = plan.capacity.demand[0].clone();
    (demand.workload, demand.counts.planned) = (owner(), pods);
    demand.decided_by = Decider::Git;
    plan.capacity.demand = vec![demand];
    plan
}

fn leads(mode: Mode, plan: Option<Plan>) -> ControllerHarness {
    let mut harness = ControllerHarness::with_mode(mode);
    harness.step_at(0, Event::Signal(Signal::LeaseGained));
    harness.load_state_and_branch();
    harness.edit_revision(|revision| revision.controller.steer = Some(true));
    harness.modify(|state| {
        state.planning.current = plan.map(|plan| CurrentPlan::new(Arc::new(plan), at(0)));
    });
    harness
}

/// Nominated pods, and opened nodes.
type Opened = (Vec<(String, String)>, Vec<String>);

/// Returns what a step nominates and opens. Early nominations open nothing.
fn step(harness: &mut ControllerHarness, seconds: i64, event: Event) -> Vec<Opened> {
    let mut found = Vec::new();
    harness.modify(|state| {
        let (next, effects) = crate::controller::step(state.clone(), event, at(seconds));
        *state = next;
        for effect in effects {
            let (nominations, nodes) = if let Effect::OpenNodes { nominations, nodes, .. } = effect
            {
                (nominations, nodes)
            } else if let Effect::NominatePods { nominations } = effect {
                (nominations, vec![])
            } else {
                continue;
            };
            let pods = nominations.into_iter();
            let pods = pods.map(|n| (n.pod.name.to_string(), n.node.to_string())).collect();
            found.push((pods, nodes.into_iter().map(|node| node.name.to_string()).collect()));
        }
    });
    found
}

fn observe(harness: &mut ControllerHarness, seconds: i64, world: Observed) -> Vec<Opened> {
    step(harness, seconds, Event::Observed(Arc::new(world)))
}

fn opened(pods: &[(&str, u32)], nodes: &[u32]) -> Vec<Opened> {
    let pods = pods.iter().map(|(pod, node)| ((*pod).to_owned(), format!("node-of-i-{node}")));
    vec![(pods.collect(), nodes.iter().map(|node| format!("node-of-i-{node}")).collect())]
}

const PENDING: [(&str, Option<&str>); 3] = [("a", None), ("b", None), ("c", None)];

#[test]
fn ready_batch_opens_with_its_planned_pods_nominated() {
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    let all = opened(&[("a", 2), ("b", 1), ("c", 2)], &[1, 2]);
    assert_eq!(observe(&mut harness, 1, seen(1, &PENDING)), all);
    // The opening is in progress.
    assert_eq!(observe(&mut harness, 2, seen(2, &PENDING)), []);
    // More pods than planned: the others are left to kube-scheduler.
    let mut harness = leads(Mode::Full, Some(plan_for(2)));
    let two = opened(&[("a", 2), ("b", 1)], &[1, 2]);
    assert_eq!(observe(&mut harness, 1, seen(1, &PENDING)), two);
}

#[test]
fn pods_wait_for_a_booting_node_at_most_twenty_seconds() {
    type Boot = (fn(&mut Observed), &'static [(&'static str, u32)]);
    let boots: [Boot; 2] = [
        (|world| node(world, "node-of-i-2").ready = false, &[("a", 2), ("b", 1), ("c", 2)]),
        // Its node has not registered.
        (|world| drop(world.nodes.remove("node-of-i-2")), &[("a", 1)]),
    ];
    for (boot, nominated) in boots {
        let mut harness = leads(Mode::Full, Some(plan_for(3)));
        let early = opened(nominated, &[]);
        for (seconds, expected) in [(10, early), (20, vec![]), (29, vec![])] {
            let mut world = seen(seconds, &PENDING);
            boot(&mut world);
            assert_eq!(observe(&mut harness, seconds, world), expected, "after {seconds} s");
        }
        let mut world = seen(30, &PENDING);
        boot(&mut world);
        assert_eq!(observe(&mut harness, 30, world), opened(nominated, &[1]));
    }
}

#[test]
fn deadline_passes_without_an_observation() {
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    let mut world = seen(10, &PENDING);
    node(&mut world, "node-of-i-2").ready = false;
    observe(&mut harness, 10, world);
    assert!(harness.state().wakes_at.is_some_and(|at_time| at_time <= at(30)));
    let all = opened(&[("a", 2), ("b", 1), ("c", 2)], &[1]);
    assert_eq!(step(&mut harness, 30, Event::Timer), all);
}

#[test]
fn pods_that_stay_pending_after_an_opening_are_observed_soon() {
    let next_read = |pods: &[(&str, Option<&str>)]| {
        let mut harness = leads(Mode::Full, Some(plan_for(3)));
        observe(&mut harness, 1, seen(1, &PENDING));
        let nodes = [1, 2].map(|id| {
            let (uid, name) = (format!("uid-of-i-{id}"), format!("node-of-i-{id}"));
            (uid.as_str().into(), name.as_str().into(), Ok(()))
        });
        let batch = OpenedBatch { nominations: vec![], nodes: nodes.to_vec() };
        step(&mut harness, 2, Event::NodesOpened(batch));
        observe(&mut harness, 3, seen(3, pods));
        harness.state().observation.reads.due
    };
    let on = Some("node-of-i-1");
    assert_eq!(next_read(&[("a", on), ("b", None), ("c", None)]), at(8));
    assert!(next_read(&PENDING) > at(8), "no pod was placed");
    assert!(next_read(&[("a", on), ("b", on), ("c", on)]) > at(8), "no pod is pending");
}

#[test]
fn next_batch_waits_for_the_end_of_an_opening() {
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    let mut world = seen(1, &PENDING);
    world.instances.remove("i-2");
    let late = world.nodes.remove("node-of-i-2").expect("it is there");
    assert_eq!(observe(&mut harness, 1, world), opened(&[("a", 1)], &[1]));
    let mut world = seen(22, &PENDING);
    world.nodes.insert(late.name.clone(), late);
    assert_eq!(observe(&mut harness, 22, world), opened(&[("a", 2), ("b", 2)], &[]));
    let nodes = vec![("uid-of-i-1".into(), "node-of-i-1".into(), Ok(()))];
    let batch = OpenedBatch { nominations: vec![], nodes };
    assert_eq!(
        step(&mut harness, 23, Event::NodesOpened(batch)),
        opened(&[("a", 2), ("b", 2)], &[2])
    );
}

/// Returns a leader whose commit adds the pods of the plan.
fn leads_with_new_pods(pods: u32) -> ControllerHarness {
    let plan = plan_for(pods);
    let mut harness = leads(Mode::Full, Some(plan.clone()));
    harness.modify(|state| {
        state.planning.launches_ahead.update(&plan, "new", false, &seen(0, &[]));
    });
    harness
}

#[test]
fn ready_nodes_wait_for_pods_that_a_commit_adds() {
    // Without a pending pod, the delivery tool has five minutes.
    let mut harness = leads_with_new_pods(3);
    for seconds in [0, 100, 299] {
        assert_eq!(observe(&mut harness, seconds, seen(seconds, &[])), [], "after {seconds} s");
    }
    assert_eq!(observe(&mut harness, 300, seen(300, &[])), opened(&[], &[1, 2]));
    // A pod that waits has twenty seconds.
    let mut harness = leads_with_new_pods(3);
    assert_eq!(observe(&mut harness, 0, seen(0, &[])), []);
    assert_eq!(observe(&mut harness, 100, seen(100, &PENDING[..1])), opened(&[("a", 2)], &[]));
    assert_eq!(observe(&mut harness, 119, seen(119, &PENDING[..1])), []);
    assert_eq!(observe(&mut harness, 120, seen(120, &PENDING[..1])), opened(&[("a", 2)], &[1, 2]));
}

#[test]
fn ready_nodes_wait_briefly_for_earlier_pods() {
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    for seconds in [0, 19] {
        assert_eq!(observe(&mut harness, seconds, seen(seconds, &[])), [], "after {seconds} s");
    }
    assert_eq!(observe(&mut harness, 20, seen(20, &[])), opened(&[], &[1, 2]));
}

#[test]
fn nodes_without_planned_pods_open_once_all_are_ready() {
    let mut plan = plan_for(3);
    plan.capacity.placements.clear();
    plan.capacity.explain.iter_mut().for_each(|row| row.pods.clear());
    let mut harness = leads(Mode::Full, Some(plan));
    assert_eq!(observe(&mut harness, 1, seen(1, &[])), opened(&[], &[1, 2]));
}

#[test]
fn nodes_that_no_plan_knows_open_at_their_deadline() {
    for plan in [None, Some(sample_plan::plan())] {
        let mut harness = leads(Mode::Full, plan);
        assert_eq!(observe(&mut harness, 0, seen(0, &PENDING)), []);
        assert_eq!(observe(&mut harness, 19, seen(19, &PENDING)), []);
        assert_eq!(observe(&mut harness, 20, seen(20, &PENDING)), opened(&[], &[1, 2]));
    }
}

#[test]
fn nodes_open_without_nominations_in_every_mode() {
    let all = opened(&[], &[1, 2]);
    let mut harness = leads(Mode::Observe, Some(plan_for(3)));
    assert_eq!(observe(&mut harness, 1, seen(1, &PENDING)), all);
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    harness.edit_revision(|revision| revision.controller.steer = Some(false));
    assert_eq!(observe(&mut harness, 1, seen(1, &PENDING)), all);
}

#[test]
fn nodes_open_without_ec2_reads_and_wait_for_kubernetes() {
    let failed = || Completeness::Failed { reason: "throttled".to_owned() };
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    for (seconds, due) in [(0, false), (20, true)] {
        let mut world = seen(seconds, &PENDING);
        world.sources.insert("ec2".to_owned(), failed());
        world.instances.clear();
        let nodes = observe(&mut harness, seconds, world).into_iter().flat_map(|(_, nodes)| nodes);
        assert_eq!(nodes.count() > 0, due, "after {seconds} s");
    }
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    for seconds in [0, 400] {
        let mut world = seen(seconds, &PENDING);
        world.sources.insert("kubernetes".to_owned(), failed());
        assert_eq!(observe(&mut harness, seconds, world), [], "after {seconds} s");
    }
}

#[test]
fn only_the_leader_opens_nodes_and_only_ours() {
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    harness.modify(|state| state.leadership.lose(None, false));
    assert_eq!(observe(&mut harness, 1, seen(1, &PENDING)), []);
    // A node with our taint that we did not label.
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    for seconds in [0, 20, 400] {
        let mut world = seen(seconds, &PENDING);
        for name in ["node-of-i-1", "node-of-i-2"] {
            node(&mut world, name).labels.remove(KEY_LABEL);
        }
        assert_eq!(observe(&mut harness, seconds, world), []);
    }
}

#[test]
fn next_leader_continues_a_batch() {
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    let all = opened(&[("a", 2), ("b", 1), ("c", 2)], &[1, 2]);
    assert_eq!(observe(&mut harness, 1, seen(1, &PENDING)), all);
    // Its predecessor ended between the nominations and the opening.
    let mut next = leads(Mode::Full, Some(plan_for(3)));
    let mut world = seen(2, &PENDING);
    for pod in &mut world.pods {
        Arc::make_mut(pod).nominated = Some("node-of-i-1".into());
    }
    // The first keeps its node, which has room for one.
    assert_eq!(observe(&mut next, 2, world), opened(&[("b", 2), ("c", 2)], &[1, 2]));
}

#[test]
fn pods_that_kube_scheduler_does_not_place_now_are_left_alone() {
    let mut world = seen(1, &PENDING);
    // Preemption nominated one elsewhere, another scheduler places one, one is gated.
    Arc::make_mut(&mut world.pods[0]).nominated = Some("node-of-i-9".into());
    let mut other = PodTemplate::default();
    other.spec.scheduler_name = Some("volcano".to_owned());
    let mut gated = PodTemplate::default();
    gated.spec.scheduling_gates = vec!["quota".to_owned()];
    for (key, template, pod) in [("other", other, 1), ("gated", gated, 2)] {
        world.templates.insert(key.to_owned(), Arc::new(template));
        Arc::make_mut(&mut world.pods[pod]).template = key.into();
    }
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    assert_eq!(observe(&mut harness, 1, world), opened(&[], &[1, 2]));
}

#[test]
fn only_a_failed_opening_is_repeated_after_two_seconds() {
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    observe(&mut harness, 1, seen(1, &PENDING));
    let error = PortError {
        verb: "open node".to_owned(),
        reason: "conflict".to_owned(),
        effect: CallEffect::NotApplied,
    };
    let answer = |id: &str, answer| {
        (format!("uid-of-{id}").as_str().into(), format!("node-of-{id}").as_str().into(), answer)
    };
    let batch = OpenedBatch {
        nominations: vec![
            ("uid-of-a".into(), "node-of-i-2".into(), Ok(())),
            ("uid-of-b".into(), "node-of-i-2".into(), Err(error.clone())),
        ],
        nodes: vec![answer("i-1", Ok(())), answer("i-2", Err(error))],
    };
    // The refused pod is nominated while the node waits.
    assert_eq!(step(&mut harness, 2, Event::NodesOpened(batch)), opened(&[("b", 2)], &[]));
    let failing = harness.state().status().failing_actions;
    assert_eq!(failing.len(), 1, "{failing:?}");
    // The first node is open, though the observation may lag.
    let found = observe(&mut harness, 4, seen(4, &PENDING));
    assert_eq!(found, opened(&[("a", 2), ("b", 2)], &[2]));
    let counters = &harness.state().counters;
    let counted = [Counter::NodesOpened, Counter::NominationsMade, Counter::NominationsRefused]
        .map(|counter| counters.get(&counter));
    assert_eq!(counted, [1, 2, 1]);
}

/// Moves the second node, which is still starting, to another pool.
fn move_second_node(plan: &mut Plan, world: &mut Observed) {
    let row = &mut plan.resource_changes[1];
    for side in [&mut row.change.before, &mut row.change.after].into_iter().flatten() {
        side.pool = Some("other".into());
    }
    let instance = world.instances.get_mut("i-2").expect("it is there");
    let mut tags = std::collections::BTreeMap::clone(&instance.tags);
    tags.insert(tag::POOL.to_owned(), "other".to_owned());
    instance.tags = tags.into();
    node(world, "node-of-i-2").ready = false;
}

#[test]
fn pools_that_share_a_workload_open_together() {
    // The plan places the workload on both pools.
    let (mut plan, mut world) = (plan_for(3), seen(1, &PENDING));
    move_second_node(&mut plan, &mut world);
    let mut shared = leads(Mode::Full, Some(plan.clone()));
    let early = opened(&[("a", 2), ("b", 1), ("c", 2)], &[]);
    assert_eq!(observe(&mut shared, 1, world.clone()), early);
    // Nothing connects the pools: one does not wait for the other.
    plan.capacity.placements.truncate(1);
    let mut apart = leads(Mode::Full, Some(plan));
    assert_eq!(observe(&mut apart, 1, world), opened(&[("a", 1)], &[1]));
}

/// Checks that both nodes open at once, with the pods of the launches nominated to them.
fn assert_opened_as_launched(mut harness: ControllerHarness) {
    harness.modify(|state| {
        for (instance, pods) in [("i-1", 1), ("i-2", 2)] {
            let pods = [(workload_key(&owner()), pods)].into();
            state.planning.planned_pods.insert(instance.into(), pods);
        }
    });
    let all = opened(&[("a", 2), ("b", 1), ("c", 2)], &[1, 2]);
    assert_eq!(observe(&mut harness, 1, seen(1, &PENDING)), all);
}

#[test]
fn nodes_that_an_apply_launched_open_although_the_plan_is_older() {
    let mut older = sample_plan::plan();
    older.capacity.demand.clear();
    let harness = leads(Mode::Full, Some(older));
    assert_opened_as_launched(harness);
}

#[test]
fn pods_arrive_for_ten_seconds_after_the_last_one() {
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    harness.modify(|state| {
        let pods = BTreeMap::from([(workload_key(&owner()), 2)]);
        state.planning.note_launched_demand(&plan_for(3), &pods);
        state.planning.planned_pods.insert("i-2".into(), pods);
    });
    observe(&mut harness, 1, seen(1, &PENDING));
    let until = |harness: &ControllerHarness| {
        let arriving = harness.state().pods_arriving()?;
        (!arriving.workloads.is_empty()).then_some(arriving.until)
    };
    assert_eq!(until(&harness), Some(at(31)));
    let nodes = [1, 2].map(|id| {
        let node = format!("node-of-i-{id}");
        (format!("uid-of-i-{id}").as_str().into(), node.as_str().into(), Ok(()))
    });
    let batch = OpenedBatch { nominations: vec![], nodes: nodes.to_vec() };
    step(&mut harness, 2, Event::NodesOpened(batch));
    let bound = [("a", Some("node-of-i-2")), ("b", None), ("c", None)];
    observe(&mut harness, 9, seen(9, &bound));
    assert_eq!(until(&harness), Some(at(19)));
    // kube-scheduler places some pod every few seconds, for at most a minute.
    observe(&mut harness, 58, seen(58, &[bound[0], ("b", Some("node-of-i-2")), bound[2]]));
    assert_eq!(until(&harness), Some(at(62)));
}
