//! Removal of stale cordons, and cordons that stay.

use std::sync::Arc;

use super::*;
use crate::apply::ports::{CallEffect, CordonOutcome};
use crate::controller::counters::Counter;
use crate::controller::status::Suspension;
use crate::controller::{Event, MessageKind, Signal};
use crate::model::observed::{CORDONED_ANNOTATION, GRACE_PERIOD_ANNOTATION, Observed};
use crate::testing::controller::{ControllerHarness, at, plan_removing_one, world};
use crate::testing::sample_plan;

/// Returns the world with our two nodes and that of another owner cordoned, with a mark if any.
fn cordoned(seconds: i64, mark: Option<&str>) -> Observed {
    let mut world = world(seconds);
    for node in world.nodes.values_mut() {
        node.unschedulable = true;
        let mark = mark.map(|mark| (CORDONED_ANNOTATION.to_owned(), mark.to_owned()));
        node.annotations.extend(mark);
    }
    world
}

/// Returns a plan that keeps every node.
fn keeps() -> Plan {
    let mut plan = sample_plan::plan();
    plan.capacity.waves.clear();
    plan
}

/// Returns a leading scenario that has just observed `world`.
fn leads(mode: Mode, world: Observed) -> ControllerHarness {
    let mut harness = ControllerHarness::leading_in(mode);
    harness.observe(2, world);
    // A plan begun before it led does not count.
    assert_eq!(harness.finish_planning(2, keeps()), [""; 0]);
    harness
}

/// Returns the end of uncordoning the node of an instance.
fn uncordoned(instance: &str, end: Result<CordonOutcome, PortError>) -> Event {
    Event::Uncordoned { instance: instance.into(), result: end }
}

const FIRST: &str = "uncordons node-of-i-1";
const SECOND: &str = "uncordons node-of-i-2";

#[test]
fn stale_drain_cordon_is_removed_before_other_changes() {
    let mut harness = leads(Mode::Full, cordoned(2, Some("drain")));
    assert_eq!(harness.finish_planning(3, keeps()), [FIRST, SECOND]);
    assert!(harness.state().planning.run.is_none() && harness.state().applies.runs.is_empty());
    // Meanwhile nothing is planned: a plan would not count the nodes.
    harness.observe(4, cordoned(4, Some("drain")));
    assert!(harness.state().planning.run.is_none());
    for id in ["i-1", "i-2"] {
        assert_eq!(harness.step_at(5, uncordoned(id, Ok(CordonOutcome::Written))), [""; 0]);
    }
    assert!(harness.state().planning.run.is_none(), "earlier observations do not count");
    // One observation was in progress when the second write ended.
    for seconds in [6, 7] {
        assert!(harness.state().planning.run.is_none());
        harness.observe(seconds, world(seconds));
    }
    assert_eq!(harness.finish_planning(8, keeps()), [""; 0]);
    let status = harness.state().status();
    assert_eq!(status.counters.get(&Counter::NodesUncordoned), 2);
    let listed: Vec<_> = status.uncordoned.iter().map(|one| (one.node.as_str(), one.at)).collect();
    assert_eq!(listed, [("node-of-i-2", at(5)), ("node-of-i-1", at(5))]);
}

#[test]
fn foreign_cordons_and_removed_nodes_stay_cordoned() {
    let drain = Some("drain");
    for (what, mode, mark, plan, expected) in [
        ("kept", Mode::Full, drain, Box::new(keeps()), &[FIRST, SECOND][..]),
        ("one is removed", Mode::Full, drain, Box::new(plan_removing_one()), &[SECOND]),
        (
            "without permission to remove none is removed",
            Mode::Additive,
            drain,
            Box::new(plan_removing_one()),
            &[FIRST, SECOND],
        ),
        ("an operator cordoned it", Mode::Full, None, Box::new(keeps()), &[]),
        (
            "its interruption may become known later",
            Mode::Full,
            Some("interruption"),
            Box::new(keeps()),
            &[],
        ),
        ("another version cordoned it", Mode::Full, Some("true"), Box::new(keeps()), &[]),
        ("observe-only", Mode::Observe, drain, Box::new(keeps()), &[]),
        (
            "the repository has errors",
            Mode::Full,
            drain,
            Box::new(Plan { errored: true, ..keeps() }),
            &[],
        ),
    ] {
        let mut harness = leads(mode, cordoned(2, mark));
        assert_eq!(harness.finish_planning(3, *plan), expected, "{what}");
    }
}

#[test]
fn blocked_drain_is_reverted_an_hour_after_its_period() {
    for (hours, expected) in [(1, &[SECOND][..]), (3, &[FIRST, SECOND])] {
        let mut plan = plan_removing_one();
        for row in &mut plan.resource_changes {
            row.change.termination_grace_seconds = Some(3_600);
            let before = row.change.before.as_mut();
            let removed = before.filter(|before| before.instance_id == Some("i-1".into()));
            if let Some(before) = removed {
                before.node = Some("node-of-i-1".into());
            }
        }
        let seconds = hours * 3_600;
        let mut world = cordoned(seconds, Some("drain"));
        let node = world.nodes.get_mut("node-of-i-1").expect("a node");
        let began = (GRACE_PERIOD_ANNOTATION.to_owned(), at(0).to_string());
        node.annotations.extend([began]);
        let mut harness = ControllerHarness::leading_in(Mode::Full);
        harness.observe(seconds, world);
        assert_eq!(harness.finish_planning(seconds, keeps()), [""; 0]);
        assert_eq!(harness.finish_planning(seconds + 1, plan), expected, "{hours}");
    }
}

#[test]
fn interruption_suspension_and_shutdown_keep_the_cordon() {
    let drain = Some("drain");
    let mut harness = leads(Mode::Full, cordoned(2, drain));
    // From now on the cordon belongs to the interruption.
    let done = harness.interrupt(3, MessageKind::SpotInterruption, &["i-1"], Some(120));
    assert_eq!(done, ["cordons node-of-i-1"]);
    // The plan in progress still counted the instance.
    assert_eq!(harness.finish_planning(4, keeps()), [""; 0]);
    assert_eq!(harness.finish_planning(4, keeps()), [SECOND]);

    let mut harness = leads(Mode::Full, cordoned(2, drain));
    let (reason, by) = ("a migration".to_owned(), "alice".to_owned());
    let suspended = Suspension { reason, until: None, since: at(2), by };
    harness.modify(|state| {
        state.persistence.loaded.as_mut().expect("it was recalled").suspended = Some(suspended);
    });
    assert_eq!(harness.finish_planning(3, keeps()), [""; 0]);

    let mut harness = leads(Mode::Full, cordoned(2, drain));
    harness.step_at(3, Event::Signal(Signal::Shutdown));
    assert_eq!(harness.finish_planning(4, keeps()), [""; 0]);
}

#[test]
fn interruption_cordon_waits_for_its_message_to_return() {
    let mut harness = leads(Mode::Full, cordoned(2, Some("interruption")));
    let mut done = Vec::new();
    for n in 0_i64..40 {
        let seconds = 3 + 20 * n;
        let world = Arc::new(cordoned(seconds, Some("interruption")));
        done.extend(
            harness.step_at(seconds, Event::Observed(world)).into_iter().map(|deed| (n, deed)),
        );
        if harness.state().planning.run.is_some() {
            done.extend(
                harness.finish_planning(seconds, keeps()).into_iter().map(|deed| (n, deed)),
            );
        }
    }
    let expected = [FIRST, SECOND].map(|deed| (30, deed.to_owned()));
    assert_eq!(done, expected);
}

#[test]
fn mark_on_open_node_is_removed_without_being_counted() {
    for mark in ["drain", "interruption", "true"] {
        let mut world = cordoned(2, Some(mark));
        world.nodes.values_mut().for_each(|node| node.unschedulable = false);
        let mut harness = leads(Mode::Full, world);
        assert_eq!(harness.finish_planning(3, keeps()), [FIRST, SECOND], "{mark}");
        for id in ["i-1", "i-2"] {
            harness.step_at(4, uncordoned(id, Ok(CordonOutcome::Written)));
        }
        let status = harness.state().status();
        assert!(
            status.counters.get(&Counter::NodesUncordoned) == 0 && status.uncordoned.is_empty()
        );
    }
}

#[test]
fn conflicting_write_triggers_observation_not_failure() {
    let mut harness = leads(Mode::Full, cordoned(2, Some("drain")));
    assert_eq!(harness.finish_planning(3, keeps()), [FIRST, SECOND]);
    harness.step_at(4, uncordoned("i-1", Ok(CordonOutcome::Outdated)));
    harness.step_at(4, uncordoned("i-2", Ok(CordonOutcome::Outdated)));
    let status = harness.state().status();
    assert!(
        status.failing_actions.is_empty() && status.counters.get(&Counter::NodesUncordoned) == 0
    );
    // An operator has cordoned the first one meanwhile.
    let mut seen = cordoned(5, Some("drain"));
    let first = seen.nodes.values_mut().next().expect("one");
    first.annotations.clear();
    let seen = Arc::new(seen);
    harness.step_at(5, Event::Observed(Arc::clone(&seen)));
    harness.step_at(6, Event::Observed(seen));
    assert_eq!(harness.finish_planning(7, keeps()), [SECOND]);
}

#[test]
fn constant_conflicts_do_not_block_planning() {
    let mut harness = leads(Mode::Full, cordoned(2, Some("drain")));
    let mut tries = 0;
    for second in 1..40 {
        let done = harness.finish_planning(3 * second, keeps());
        if done.is_empty() {
            break;
        }
        tries += 1;
        for id in ["i-1", "i-2"] {
            harness.step_at(3 * second + 1, uncordoned(id, Ok(CordonOutcome::Outdated)));
        }
        let seen = Arc::new(cordoned(3 * second + 2, Some("drain")));
        harness.step_at(3 * second + 2, Event::Observed(Arc::clone(&seen)));
        harness.step_at(3 * second + 2, Event::Observed(seen));
    }
    assert_eq!(tries, 4, "once, and three times more");
}

#[test]
fn interrupted_node_is_cordoned_again_after_uncordon() {
    let mut harness = leads(Mode::Full, cordoned(2, Some("drain")));
    assert_eq!(harness.finish_planning(3, keeps()), [FIRST, SECOND]);
    // The message arrives during the write, while the last observation shows a cordon.
    harness.interrupt(4, MessageKind::SpotInterruption, &["i-1"], Some(120));
    let leaving = CordonOutcome::Outdated;
    let cordoned_again = |end| Event::Cordoned { instance: "i-1".into(), result: Ok(end) };
    harness.step_at(5, cordoned_again(leaving));
    let mut done = harness.finish_saving(5);
    done.extend(harness.step_at(5, uncordoned("i-1", Ok(CordonOutcome::Written))));
    done.extend(harness.finish_saving(6));
    assert_eq!(done, [""; 0], "its message stays, and the uncordon does not count as a cordon");
    let mut open = cordoned(7, Some("drain"));
    let first = open.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it");
    (first.unschedulable, first.annotations) = (false, [].into());
    let open = Arc::new(open);
    let mut done = harness.step_at(8, Event::Observed(Arc::clone(&open)));
    done.extend(harness.step_at(9, Event::Observed(open)));
    assert_eq!(done, ["cordons node-of-i-1"]);
    let done = harness.step_at(10, cordoned_again(CordonOutcome::Written));
    assert_eq!(done, ["takes off r"]);
}

#[test]
fn failed_uncordon_is_retried_later_without_blocking() {
    let mut harness = leads(Mode::Full, cordoned(2, Some("drain")));
    assert_eq!(harness.finish_planning(3, keeps()).len(), 2);
    for id in ["i-1", "i-2"] {
        let error = PortError {
            verb: "cordon node".to_owned(),
            reason: "too many requests".to_owned(),
            effect: CallEffect::NotApplied,
        };
        harness.step_at(4, uncordoned(id, Err(error)));
    }
    let mut done = Vec::new();
    for n in 0..40 {
        let seconds = 5 + 10 * n;
        harness.observe(seconds, cordoned(seconds, Some("drain")));
        if harness.state().planning.run.is_some() {
            done.push((seconds, harness.finish_planning(seconds, keeps()).len()));
        }
    }
    assert_eq!(done, [(5, 0), (305, 2)], "a plan at once, and one more try");
    assert!(harness.state().counters.get(&Counter::NodesUncordoned) == 0);
    // A clock that is set back extends no wait.
    for id in ["i-1", "i-2"] {
        harness.step_at(-7_000, uncordoned(id, Ok(CordonOutcome::Written)));
    }
    for _ in 0..2 {
        harness.observe(-6_999, cordoned(-6_999, Some("drain")));
    }
    assert_eq!(harness.finish_planning(-6_999, keeps()), [""; 0]);
    let mut tried = 0;
    for n in 0..40 {
        let seconds = -6_990 + 10 * n;
        harness.observe(seconds, cordoned(seconds, Some("drain")));
        if harness.state().planning.run.is_some() {
            tried += harness.finish_planning(seconds, keeps()).len();
        }
    }
    assert_eq!(tried, 2);
}
