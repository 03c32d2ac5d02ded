//! Launches of which nobody has heard: they are awaited once their apply is over, and by whoever comes after it.

mod outdated;
mod removals;

use jiff::Timestamp;

use super::*;
use crate::apply::ChangeOutcome;
use crate::fleet::InstanceState;
use crate::reconcile::fixture::{Story, at, world};
use crate::reconcile::view::SHOWN_WITHIN;
use crate::reconcile::{Asked, Event as Heard, Held, Kept, Signal};
use crate::render::fixture;

/// Returns a plan that launches, and removes nothing.
fn launches() -> Plan {
    let mut plan = Plan { applyable: true, ..fixture::plan() };
    plan.capacity.waves.retain(|wave| wave.step == WaveStep::Launch);
    plan
}

/// Returns the same, but for the zone of the first launch.
fn launches_elsewhere() -> Plan {
    let mut plan = anew();
    let first = work::launched(&plan).next().expect("one comes").address.clone();
    let row = plan.resource_changes.iter_mut().find(|row| row.address == first);
    row.and_then(|row| row.change.after.as_mut()).expect("it comes").zone =
        Some("us-east-1z".into());
    plan
}

/// Returns [`launches`] as it is made once more.
fn anew() -> Plan {
    let mut plan = launches();
    plan.capacity.plan_id = "anew".into();
    plan
}

/// Returns a loop that leads, was told what an earlier life kept, and has been given a plan.
fn given(kept: Kept, plan: &Plan) -> Story {
    let mut story = Story::begin();
    story.next(1, Heard::Signal(Signal::Gained));
    story.next(2, Heard::Recalled(Ok(Box::new(kept))));
    story.next(2, Heard::World(Arc::new(world(2))));
    // What was being planned before it led does not count.
    story.planned(2, plan.clone());
    story.planned(3, plan.clone());
    story
}

/// Returns a loop that carries [`launches`] out, and under which ticket.
fn applies() -> (Story, Ticket) {
    let mut story = given(Kept::default(), &launches());
    story.saves(3);
    let ticket = *story.state().lanes.keys().next().expect("it is carried out");
    (story, ticket)
}

/// Has something be told of a launch.
fn tells(story: &mut Story, seconds: i64, ticket: Ticket, address: Option<&Address>, step: Step) {
    let event = Event { at: at(seconds), address: address.cloned(), step };
    story.next(seconds, Heard::Progress { ticket, event });
}

fn ends(story: &mut Story, seconds: i64, ticket: Ticket) {
    ends_with(story, seconds, ticket, Vec::new());
}

fn ends_with(story: &mut Story, seconds: i64, ticket: Ticket, outcomes: Vec<ChangeOutcome>) {
    let plan = launches();
    let receipt = Receipt {
        plan_id: plan.capacity.plan_id,
        digest: plan.capacity.digest,
        outcomes,
        started_at: at(3),
        finished_at: at(seconds),
        verdict: Verdict::Partly,
    };
    story.next(seconds, Heard::Applied { ticket, end: Ok(Box::new(receipt)) });
}

/// Returns the launches that are awaited, and since when.
fn awaited(story: &Story) -> Vec<(Address, Timestamp)> {
    let all = story.state().kept.iter().flat_map(|kept| &kept.asked);
    all.flat_map(|asked| asked.rows.keys().map(|address| (address.clone(), asked.at))).collect()
}

#[test]
fn a_launch_that_nobody_answered_is_awaited_from_the_end_of_its_apply_and_no_other_is() {
    let (mut story, ticket) = applies();
    let plan = launches();
    let all: Vec<Address> = work::launched(&plan).map(|row| row.address.clone()).collect();
    assert!(all.len() > 1);
    assert_eq!(awaited(&story).len(), all.len(), "each is about to be asked for");
    tells(&mut story, 10, ticket, Some(&all[0]), Step::Unanswered);
    ends(&mut story, 50, ticket);
    assert_eq!(awaited(&story), [(all[0].clone(), at(50))]);
    let until = 50 + SHOWN_WITHIN.as_secs();
    story.next(until - 1, Heard::Timer);
    assert_eq!(awaited(&story).len(), 1);
    story.next(until, Heard::Timer);
    assert_eq!(awaited(&story), [], "it would be shown by now");
}

#[test]
fn a_launch_that_nobody_answered_is_awaited_from_the_last_call_where_its_apply_goes_on() {
    let (mut story, ticket) = applies();
    let first = work::launched(&launches()).next().expect("one comes").address.clone();
    tells(&mut story, 10, ticket, Some(&first), Step::Unanswered);
    let retires = Step::Wave { step: WaveStep::Retire, changes: 1 };
    tells(&mut story, 90, ticket, None, retires);
    assert!(!story.state().lanes[&ticket].launching);
    let since = awaited(&story).into_iter().find(|(address, _)| *address == first);
    assert_eq!(since, Some((first.clone(), at(90))), "until then it may have been heard");
    story.next(89 + SHOWN_WITHIN.as_secs(), Heard::Timer);
    assert!(awaited(&story).iter().any(|(address, _)| *address == first));
}

#[test]
fn what_an_earlier_life_was_about_to_ask_for_is_asked_for_again_and_anything_else_waits_for_it() {
    let (story, _) = applies();
    let kept = |at: Timestamp| {
        let mut kept = story.state().kept.clone().expect("recalled");
        kept.asked.iter_mut().for_each(|asked: &mut Asked| asked.at = at);
        kept
    };
    // Whoever asked had a clock that was behind, or asked long ago.
    let other = given(kept(at(-5_000)), &launches_elsewhere());
    assert!(other.state().lanes.is_empty(), "one of them may be on its way");
    let held = other.state().status().plan.expect("planned").held;
    let until = later(at(2), SHOWN_WITHIN);
    assert!(!held.is_empty() && held.values().all(|by| by.why == Held::Unheard { until }));
    let same = given(kept(at(-5_000)), &anew());
    let lane = same.state().lanes.values().next().expect("it is carried out");
    assert_eq!(lane.unheard.len(), awaited(&story).len(), "each is asked for again");
    let asked = &same.state().kept.as_ref().expect("recalled").asked;
    let plans: Vec<_> = asked.iter().map(|asked| (&asked.plan, asked.times)).collect();
    assert_eq!(plans, [(&launches().capacity.plan_id, 1)], "as the same changes");
}

#[test]
fn nobody_plans_without_what_an_earlier_life_launched_last_until_it_would_be_shown() {
    let new = Launched {
        instance: "i-new".into(),
        pool: "web".into(),
        at: at(0),
        ready_at: None,
        helped: false,
        from_start: true,
        passed_over: false,
    };
    let kept = Kept { launched: vec![new], ..Kept::default() };
    let mut story = Story::begin();
    story.next(1, Heard::Signal(Signal::Gained));
    story.change(|state| state.planning = None);
    story.next(2, Heard::Recalled(Ok(Box::new(kept))));
    let until = SHOWN_WITHIN.as_secs();
    for seconds in [2, until - 1] {
        story.next(seconds, Heard::World(Arc::new(world(seconds))));
        assert!(story.state().planning.is_none(), "{seconds}");
    }
    story.next(until, Heard::World(Arc::new(world(until))));
    assert!(story.state().planning.is_some());
}

#[test]
fn a_machine_that_was_told_to_end_is_no_more_whatever_an_older_look_shows() {
    let (mut story, ticket) = applies();
    let id = InstanceId::from("i-1");
    tells(&mut story, 10, ticket, None, Step::Terminating { instance_id: id.clone() });
    ends(&mut story, 20, ticket);
    let shows = |seconds, state| {
        let mut world = world(seconds);
        world.instances.get_mut(&id).expect("there").state = state;
        Heard::World(Arc::new(world))
    };
    // It was not shown as ended at once, then it was, and then a look was late.
    for (seconds, state) in [
        (21, InstanceState::Running),
        (30, InstanceState::Terminated),
        (40, InstanceState::Running),
        (50, InstanceState::Running),
    ] {
        story.change(|state| state.planning = None);
        story.next(seconds, shows(seconds, state));
        story.change(|state| state.replan_at = at(seconds));
        story.next(seconds, Heard::Timer);
        let planning = story.state().planning.as_ref().expect("a plan is being made");
        let state = planning.world.instances[&id].state;
        assert!(state != InstanceState::Running, "{seconds}: {state:?}");
    }
}

#[test]
fn what_was_allowed_is_not_begun_once_somebody_suspended_it_while_it_was_being_kept() {
    for suspends in [false, true] {
        let mut story = Story::begin();
        story.next(1, Heard::Signal(crate::reconcile::Signal::Gained));
        story.lives();
        story.next(2, Heard::World(Arc::new(world(2))));
        let mut plan = Plan { applyable: true, ..fixture::plan() };
        plan.capacity.waves.retain(|wave| wave.step == WaveStep::Launch);
        for _ in 0..2 {
            if story.state().planning.is_some() {
                story.planned(3, plan.clone());
            }
        }
        let waits = |story: &Story| story.state().lanes.values().any(|lane| lane.begins.is_some());
        assert!(waits(&story), "its launches are being kept");
        if suspends {
            let (reason, by) = ("r".to_owned(), "a".to_owned());
            let request = crate::reconcile::Request::Suspend { reason, until: None, by };
            story.next(4, Heard::Signal(crate::reconcile::Signal::Request(request)));
        }
        story.saves(5);
        assert!(!waits(&story));
        assert_eq!(story.state().lanes.is_empty(), suspends);
    }
}
