//! Removals count before they start, and no longer once they failed.

use super::*;
use crate::apply::ports::{CallEffect, CordonOutcome, PortError};
use crate::controller::MessageKind;
use crate::model::observed::{CORDONED_ANNOTATION, Completeness};
use crate::model::units::MicroUsd;
use crate::plan::wire::{Reason, RetireReason};
use crate::testing::controller::plan_removing_one;

/// Returns a controller with a plan that removes `i-1` at once.
pub(super) fn controller_removing() -> ControllerHarness {
    controller_removing_by(&plan_removing_one())
}

fn controller_removing_by(plan: &Plan) -> ControllerHarness {
    let mut harness = ControllerHarness::started();
    harness.edit_revision(|revision| revision.controller.removal_delay = SignedDuration::ZERO);
    harness.step_at(1, ControllerEvent::Signal(Signal::LeaseGained));
    harness.step_at(2, ControllerEvent::StateLoaded(Ok(Box::default())));
    harness.observe(2, world(2));
    // The plan that started before it led does not count.
    harness.finish_planning(2, plan.clone());
    harness.finish_planning(3, plan.clone());
    harness
}

/// Returns the counted removals, and true for those that have not started.
fn counted_removals(harness: &ControllerHarness) -> Vec<(&str, bool)> {
    let persisted = harness.state().persistence.loaded.as_ref().expect("recalled");
    persisted.removals.iter().map(|removal| (removal.instance.as_str(), removal.pending)).collect()
}

/// Returns true if the apply has not started.
fn is_waiting_to_start(harness: &ControllerHarness) -> bool {
    let run = harness.state().applies.runs.values().next();
    run.expect("it is carried out").deferred_start.is_some()
}

#[test]
fn removal_starts_once_its_budget_use_is_persisted() {
    let mut harness = controller_removing();
    assert_eq!(counted_removals(&harness), [("i-1", true)]);
    assert!(is_waiting_to_start(&harness), "it is not persisted yet");
    harness.finish_saving(4);
    assert!(!is_waiting_to_start(&harness));
}

#[test]
fn removal_of_an_empty_node_starts_at_once_and_never_counts() {
    let mut plan = plan_removing_one();
    let address = plan.capacity.waves[0].addresses[0].clone();
    let because = RetireReason::Empty { saves_hourly: MicroUsd(0) };
    plan.explain_mut(&address).reason = Reason::Retire { because };
    let mut harness = controller_removing_by(&plan);
    assert!(!is_waiting_to_start(&harness), "nothing has to be persisted");
    let ticket = *harness.state().applies.runs.keys().next().expect("it is carried out");
    let instance_id = InstanceId::from("i-1");
    let step = Step::Terminating { instance_id: instance_id.clone() };
    report_step(&mut harness, 5, ticket, Some(&address), step);
    assert_eq!(counted_removals(&harness), []);
    let (step, instance_id) = (WaveStep::Retire, Some(instance_id));
    let (launched, outcome) = (None, Outcome::Done);
    let ended = ChangeOutcome { address, step, instance_id, launched, outcome };
    finish_apply_with(&mut harness, 9, ticket, vec![ended]);
    assert_eq!(counted_removals(&harness), []);
}

#[test]
fn failed_save_or_observation_drops_a_removal_uncounted() {
    let (verb, reason) = ("write record".to_owned(), "the answer was lost".to_owned());
    let lost = PortError { verb, reason, effect: CallEffect::Unknown };
    let reason = "the second page was not answered".to_owned();
    let mut part = world(4);
    part.sources.insert("kubernetes".to_owned(), Completeness::Partial { reason });
    for event in [ControllerEvent::StateSaved(Err(lost)), ControllerEvent::Observed(Arc::new(part))]
    {
        let mut harness = controller_removing();
        harness.step_at(4, event.clone());
        assert!(harness.state().applies.runs.is_empty(), "{event:?}");
        assert_eq!(counted_removals(&harness), [], "{event:?}");
    }
}

#[test]
fn removal_is_released_if_its_instance_stays() {
    let why = || "a budget holds it".to_owned();
    for (called, outcome, expected) in [
        (false, Outcome::Abandoned { why: why() }, &[][..]),
        (false, Outcome::Skipped { why: why() }, &[]),
        (false, Outcome::Dropped { why: why() }, &[]),
        // EC2 may have received the call.
        (false, Outcome::Failed { why: why() }, &[("i-1", false)]),
        (true, Outcome::Abandoned { why: why() }, &[("i-1", false)]),
        (true, Outcome::Done, &[("i-1", false)]),
    ] {
        let mut harness = controller_removing();
        harness.finish_saving(4);
        let ticket = *harness.state().applies.runs.keys().next().expect("it is carried out");
        let address = plan_removing_one().capacity.waves[0].addresses[0].clone();
        let instance = InstanceId::from("i-1");
        if called {
            let step = Step::Terminating { instance_id: instance.clone() };
            report_step(&mut harness, 5, ticket, Some(&address), step);
        }
        let (step, instance_id) = (WaveStep::Retire, Some(instance));
        let outcome_of = outcome.clone();
        let launched = None;
        let ended = ChangeOutcome { address, step, instance_id, launched, outcome: outcome_of };
        finish_apply_with(&mut harness, 9, ticket, vec![ended]);
        assert_eq!(counted_removals(&harness), expected, "{outcome:?}");
    }
}

#[test]
fn message_is_deleted_once_apply_ended_and_cordon_is_observed() {
    let mut harness = controller_removing();
    harness.finish_saving(4);
    let ticket = *harness.state().applies.runs.keys().next().expect("it is carried out");
    let mut all = harness.interrupt(5, MessageKind::SpotInterruption, &["i-1"], Some(120));
    assert_eq!(all, ["cordons node-of-i-1"]);
    all.extend(harness.finish_saving(5));
    let end = Ok(CordonOutcome::Written);
    all.extend(
        harness.step_at(6, ControllerEvent::Cordoned { instance: "i-1".into(), result: end }),
    );
    let stands = |seconds| {
        let mut world = world(seconds);
        let node = world.nodes.values_mut().find(|node| node.instance == Some("i-1".into()));
        let node = node.expect("it joined");
        node.unschedulable = true;
        node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "interruption".to_owned());
        ControllerEvent::Observed(Arc::new(world))
    };
    for seconds in 7..10 {
        all.extend(harness.step_at(seconds, stands(seconds)));
    }
    let is_off = |all: &[String]| all.contains(&"takes off r".to_owned());
    assert!(!is_off(&all), "the apply may still uncordon it: {all:?}");
    finish_apply(&mut harness, 10, ticket);
    for seconds in 11..14 {
        all.extend(harness.step_at(seconds, stands(seconds)));
    }
    assert!(is_off(&all), "{all:?}");
}
