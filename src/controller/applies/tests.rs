//! Launches in doubt: the same process or its successor awaits them after their apply ended.

mod launches_in_progress;
mod outdated;
mod removals;

use jiff::Timestamp;

use super::*;
use crate::apply::ChangeOutcome;
use crate::controller::planning_snapshot::EC2_VISIBILITY_MAX;
use crate::controller::{
    BlockedReason, Event as ControllerEvent, InDoubtLaunches, PersistedState, Signal,
};
use crate::model::observed::InstanceState;
use crate::testing::controller::{ControllerHarness, at, world};
use crate::testing::sample_plan;

/// Returns a plan that launches, and removes nothing.
fn launch_plan() -> Plan {
    sample_plan::plan().only(WaveStep::Launch)
}

/// Returns the same plan with another zone for the first launch.
fn launch_plan_in_other_zone() -> Plan {
    let mut plan = replanned_launches();
    let first = reconcile::launched_rows(&plan).next().expect("one comes").address.clone();
    plan.row_mut(&first).change.after.as_mut().expect("a launch").zone = Some("us-east-1z".into());
    plan
}

/// Returns the same changes with another plan id.
fn replanned_launches() -> Plan {
    let mut plan = launch_plan();
    plan.capacity.plan_id = "anew".into();
    plan
}

/// Returns a leader that has loaded this state and finished this plan.
fn controller_with_plan(persisted: PersistedState, plan: &Plan) -> ControllerHarness {
    let mut harness = ControllerHarness::started();
    harness.step_at(1, ControllerEvent::Signal(Signal::LeaseGained));
    harness.step_at(2, ControllerEvent::StateLoaded(Ok(Box::new(persisted))));
    harness.observe(2, world(2));
    // The plan that started before it led does not count.
    harness.finish_planning(2, plan.clone());
    harness.finish_planning(3, plan.clone());
    harness
}

/// Returns a controller that applies [`launch_plan`], and the ticket of the apply.
fn controller_applying() -> (ControllerHarness, Ticket) {
    let mut harness = controller_with_plan(PersistedState::default(), &launch_plan());
    harness.finish_saving(3);
    let ticket = *harness.state().applies.runs.keys().next().expect("it is carried out");
    (harness, ticket)
}

/// Reports a step of a launch.
fn report_step(
    harness: &mut ControllerHarness,
    seconds: i64,
    ticket: Ticket,
    address: Option<&Address>,
    step: Step,
) {
    let event = Event { at: at(seconds), address: address.cloned(), step };
    harness.step_at(seconds, ControllerEvent::ApplyProgressed { ticket, event });
}

fn finish_apply(harness: &mut ControllerHarness, seconds: i64, ticket: Ticket) {
    finish_apply_with(harness, seconds, ticket, Vec::new());
}

fn finish_apply_with(
    harness: &mut ControllerHarness,
    seconds: i64,
    ticket: Ticket,
    outcomes: Vec<ChangeOutcome>,
) {
    let plan = launch_plan();
    let receipt = Receipt {
        plan_id: plan.capacity.plan_id,
        digest: plan.capacity.digest,
        outcomes,
        started_at: at(3),
        finished_at: at(seconds),
        verdict: ApplyStatus::Partly,
    };
    harness
        .step_at(seconds, ControllerEvent::ApplyFinished { ticket, result: Ok(Box::new(receipt)) });
}

/// Returns the launches in doubt, and since when.
fn awaited_launches(harness: &ControllerHarness) -> Vec<(Address, Timestamp)> {
    let all = harness
        .state()
        .persistence
        .loaded
        .iter()
        .flat_map(|persisted| &persisted.in_doubt_launches);
    all.flat_map(|asked| asked.rows.keys().map(|address| (address.clone(), asked.at))).collect()
}

#[test]
fn unanswered_launch_is_awaited_from_the_end_of_its_apply() {
    let (mut harness, ticket) = controller_applying();
    let plan = launch_plan();
    let all: Vec<Address> =
        reconcile::launched_rows(&plan).map(|row| row.address.clone()).collect();
    assert!(all.len() > 1);
    assert_eq!(awaited_launches(&harness).len(), all.len(), "each is about to be asked for");
    report_step(&mut harness, 10, ticket, Some(&all[0]), Step::Unanswered);
    finish_apply(&mut harness, 50, ticket);
    assert_eq!(awaited_launches(&harness), [(all[0].clone(), at(50))]);
    let until = 50 + EC2_VISIBILITY_MAX.as_secs();
    harness.step_at(until - 1, ControllerEvent::Timer);
    assert_eq!(awaited_launches(&harness).len(), 1);
    harness.step_at(until, ControllerEvent::Timer);
    assert_eq!(awaited_launches(&harness), [], "it would be visible by now");
}

#[test]
fn unanswered_launch_of_a_running_apply_counts_from_last_call() {
    let (mut harness, ticket) = controller_applying();
    let first = reconcile::launched_rows(&launch_plan()).next().expect("one comes").address.clone();
    report_step(&mut harness, 10, ticket, Some(&first), Step::Unanswered);
    let retires = Step::Wave { step: WaveStep::Retire, changes: 1 };
    report_step(&mut harness, 90, ticket, None, retires);
    assert!(!harness.state().applies.runs[&ticket].is_launching);
    let since = awaited_launches(&harness).into_iter().find(|(address, _)| *address == first);
    assert_eq!(since, Some((first.clone(), at(90))), "until then it may have been heard");
    harness.step_at(89 + EC2_VISIBILITY_MAX.as_secs(), ControllerEvent::Timer);
    assert!(awaited_launches(&harness).iter().any(|(address, _)| *address == first));
}

#[test]
fn launches_in_doubt_are_repeated_and_block_other_launches() {
    let (harness, _) = controller_applying();
    let persisted = |at: Timestamp| {
        let mut persisted = harness.state().persistence.loaded.clone().expect("recalled");
        persisted
            .in_doubt_launches
            .iter_mut()
            .for_each(|asked: &mut InDoubtLaunches| asked.at = at);
        persisted
    };
    // The previous process had a slow clock, or stopped long ago.
    let other = controller_with_plan(persisted(at(-5_000)), &launch_plan_in_other_zone());
    assert!(other.state().applies.runs.is_empty(), "one of them may be on its way");
    let held = other.state().status().plan.expect("planned").blocked;
    let until = later(at(2), EC2_VISIBILITY_MAX);
    assert!(
        !held.is_empty()
            && held.values().all(|by| by.reason == BlockedReason::LaunchInDoubt { until })
    );
    let same = controller_with_plan(persisted(at(-5_000)), &replanned_launches());
    let run = same.state().applies.runs.values().next().expect("it is carried out");
    assert_eq!(
        run.unanswered_launches.len(),
        awaited_launches(&harness).len(),
        "each is asked for again"
    );
    let asked = &same.state().persistence.loaded.as_ref().expect("recalled").in_doubt_launches;
    let plans: Vec<_> = asked.iter().map(|asked| (&asked.plan, asked.attempts)).collect();
    assert_eq!(plans, [(&launch_plan().capacity.plan_id, 1)], "as the same changes");
}

#[test]
fn planning_waits_until_recent_launches_are_visible() {
    let new = LaunchRecord {
        instance: "i-new".into(),
        pool: "web".into(),
        at: at(0),
        ready_at: None,
        useful: false,
        from_start: true,
        passed_over: false,
        launched_for: None,
    };
    let persisted = PersistedState { launches: vec![new], ..PersistedState::default() };
    let mut harness = ControllerHarness::started();
    harness.step_at(1, ControllerEvent::Signal(Signal::LeaseGained));
    harness.modify(|state| state.planning.run = None);
    harness.step_at(2, ControllerEvent::StateLoaded(Ok(Box::new(persisted))));
    let until = EC2_VISIBILITY_MAX.as_secs();
    for seconds in [2, until - 1] {
        harness.observe(seconds, world(seconds));
        assert!(harness.state().planning.run.is_none(), "{seconds}");
    }
    harness.observe(until, world(until));
    assert!(harness.state().planning.run.is_some());
}

#[test]
fn stale_observation_does_not_revive_a_terminated_instance() {
    let (mut harness, ticket) = controller_applying();
    let id = InstanceId::from("i-1");
    report_step(&mut harness, 10, ticket, None, Step::Terminating { instance_id: id.clone() });
    finish_apply(&mut harness, 20, ticket);
    let shows = |seconds, state| {
        let mut world = world(seconds);
        world.instances.get_mut(&id).expect("there").state = state;
        ControllerEvent::Observed(Arc::new(world))
    };
    // The end was observed late, and a stale observation followed.
    for (seconds, state) in [
        (21, InstanceState::Running),
        (30, InstanceState::Terminated),
        (40, InstanceState::Running),
        (50, InstanceState::Running),
    ] {
        harness.modify(|state| state.planning.run = None);
        harness.step_at(seconds, shows(seconds, state));
        harness.modify(|state| state.planning.replan_at = at(seconds));
        harness.step_at(seconds, ControllerEvent::Timer);
        let planning = harness.state().planning.run.as_ref().expect("a plan is being made");
        let state = planning.input.world.instances[&id].state;
        assert!(state != InstanceState::Running, "{seconds}: {state:?}");
    }
}

#[test]
fn suspension_while_persisting_prevents_the_start() {
    for suspends in [false, true] {
        let mut harness = ControllerHarness::leading();
        harness.observe(2, world(2));
        let plan = sample_plan::plan().only(WaveStep::Launch);
        for _ in 0..2 {
            if harness.state().planning.run.is_some() {
                harness.finish_planning(3, plan.clone());
            }
        }
        let waits = |harness: &ControllerHarness| {
            harness.state().applies.runs.values().any(|run| run.deferred_start.is_some())
        };
        assert!(waits(&harness), "its launches are being persisted");
        if suspends {
            let (reason, by) = ("r".to_owned(), "a".to_owned());
            let request = crate::controller::AuthorizedRequest::Suspend { reason, until: None, by };
            harness
                .step_at(4, ControllerEvent::Signal(crate::controller::Signal::Request(request)));
        }
        harness.finish_saving(5);
        assert!(!waits(&harness));
        assert_eq!(harness.state().applies.runs.is_empty(), suspends);
    }
}

#[test]
fn launch_in_place_of_others_waits_for_a_decision() {
    let replacing = gates::replacing_rows(&sample_plan::plan());
    let row = |pool: &str, key: &str| crate::testing::plan::instance_address(pool, key);
    let expected = [row("batch", "0"), row("batch", "1"), row("batch", "2"), row("web", "1")];
    assert_eq!(replacing, expected.into());
    let launched = |is_replacing: bool| {
        let (mut harness, ticket) = controller_applying();
        let address =
            reconcile::launched_rows(&launch_plan()).next().expect("one comes").address.clone();
        harness.modify(|state| {
            let run = state.applies.runs.get_mut(&ticket).expect("it is carried out");
            run.replacing = if is_replacing { [address.clone()].into() } else { [].into() };
        });
        let step = Step::Launched { instance_id: "i-7".into(), offering: None };
        report_step(&mut harness, 10, ticket, Some(&address), step);
        (harness, ticket)
    };
    let is_undecided =
        |harness: &ControllerHarness| harness.state().applies.is_undecided(&"i-7".into());
    assert!(!is_undecided(&launched(false).0));
    let (mut harness, ticket) = launched(true);
    assert!(is_undecided(&harness));
    report_step(&mut harness, 60, ticket, None, Step::Checked { dropped: 0 });
    assert!(!is_undecided(&harness));
    finish_apply(&mut harness, 70, ticket);
    assert!(harness.state().opening.undecided.is_empty());
    // Its removals were called off.
    let (mut harness, ticket) = launched(true);
    finish_apply(&mut harness, 70, ticket);
    assert_eq!(harness.state().opening.undecided, ["i-7".into()].into());
}
