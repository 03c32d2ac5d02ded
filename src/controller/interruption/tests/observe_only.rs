//! Interruptions while the controller is in observe-only mode.

use super::*;
use crate::model::desired::Mode;

/// Returns the world with `i-1` running a pod, with an interruption cordon or without.
fn world_with_pod(seconds: i64, cordoned: bool) -> Event {
    let mut world = with_a_drain(seconds);
    let node = world.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it");
    node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "interruption".to_owned());
    if !cordoned {
        (node.unschedulable, node.annotations) = (false, BTreeMap::new());
    }
    let (node, phase) = (Some("node-of-i-1".into()), PodPhase::Running);
    world.pods.push(Arc::new(Pod { node, phase, ..world::pod("api") }));
    Event::Observed(Arc::new(world))
}

/// Returns a scenario in which `i-1` is interrupted, with a deadline in `within` seconds if any,
/// and its node is cordoned.
fn interrupted(within: Option<i64>) -> ControllerHarness {
    let mut harness = ControllerHarness::leading();
    harness.step_at(2, world_with_pod(2, false));
    // Only a warning about a spot instance is that near.
    let kind = match within {
        Some(..=120) => MessageKind::SpotInterruption,
        Some(_) | None => MessageKind::Health,
    };
    harness.interrupt(3, kind, &["i-1"], within);
    harness.finish_saving(3);
    harness.step_at(4, cordoned(CordonOutcome::Written));
    harness
}

fn set_mode(harness: &mut ControllerHarness, mode: Mode) {
    harness.modify(|state| state.start.mode = Some(mode));
}

/// Observes the world every five seconds; returns the effects, each with the time of its first
/// occurrence.
fn observe_every_five_seconds(
    harness: &mut ControllerHarness,
    from: i64,
    to: i64,
    cordoned: bool,
) -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    for seconds in (from..to).step_by(5) {
        for deed in harness.step_at(seconds, world_with_pod(seconds, cordoned)) {
            all.entry(deed).or_insert(seconds);
        }
        harness.finish_saving(seconds);
    }
    all
}

#[test]
fn observe_only_removes_cordon_without_near_deadline() {
    for (what, within) in [("without a deadline", None), ("it has two weeks", Some(14 * 86_400))] {
        let mut harness = interrupted(within);
        assert_eq!(
            observe_every_five_seconds(&mut harness, 5, 60, true).len(),
            0,
            "{what}: it waits for a plan"
        );
        set_mode(&mut harness, Mode::Observe);
        let done = observe_every_five_seconds(&mut harness, 60, 3_000, true);
        assert_eq!(done.keys().collect::<Vec<_>>(), ["uncordons node-of-i-1"], "{what}");
        let end = Ok(CordonOutcome::Written);
        harness.step_at(3_000, Event::Uncordoned { instance: "i-1".into(), result: end });
        assert_eq!(
            observe_every_five_seconds(&mut harness, 3_005, 9_000, false).len(),
            0,
            "{what}: the node is unchanged"
        );
        assert_eq!(
            harness.state().interruptions.instances(),
            ["i-1".into()].into(),
            "{what}: the interruption stays known"
        );
        // Once the controller may act again, the interruption starts anew.
        set_mode(&mut harness, Mode::Full);
        let done = observe_every_five_seconds(&mut harness, 9_000, 9_010, false);
        assert_eq!(done.keys().collect::<Vec<_>>(), ["cordons node-of-i-1"], "{what}");
        harness.step_at(9_010, cordoned(CordonOutcome::Written));
        assert_eq!(
            observe_every_five_seconds(&mut harness, 9_015, 9_600, true).len(),
            0,
            "{what}: its wait starts anew"
        );
    }
}

#[test]
fn observe_only_keeps_cordon_near_the_deadline() {
    let mut harness = interrupted(Some(120));
    set_mode(&mut harness, Mode::Observe);
    assert_eq!(
        observe_every_five_seconds(&mut harness, 5, 60 * 30, true).len(),
        0,
        "EC2 terminates it in a moment"
    );
    // EC2 did not terminate it.
    let done = observe_every_five_seconds(&mut harness, 60 * 30, 60 * 40, true);
    assert_eq!(done.keys().collect::<Vec<_>>(), ["uncordons node-of-i-1"]);
    // Nor is the node of a terminated instance deleted.
    let mut harness = interrupted(Some(120));
    set_mode(&mut harness, Mode::Observe);
    let mut gone = with_a_drain(130);
    gone.instances.get_mut(&InstanceId::from("i-1")).expect("it").state = InstanceState::Terminated;
    for seconds in (130..160).step_by(5) {
        let gone = Event::Observed(Arc::new(Observed { taken_at: at(seconds), ..gone.clone() }));
        assert_eq!(harness.step_at(seconds, Event::Timer), [""; 0]);
        assert_eq!(harness.step_at(seconds, gone), [""; 0]);
    }
    assert!(harness.state().interruptions.instances().is_empty());
}

#[test]
fn interruption_continues_with_competitor_or_unknown_mode() {
    for unknown in [true, false] {
        let mut harness = interrupted(Some(120));
        harness.modify(|state| {
            if unknown {
                (state.start.mode, state.revisions.served) = (None, None);
            } else {
                state.competing_autoscalers.detected = Some("karpenter runs".to_owned());
            }
        });
        assert_eq!(harness.state().mode(), Mode::Observe);
        // The next check for competing autoscalers is minutes away.
        harness.modify(|state| state.competing_autoscalers.due = at(10_000));
        let done = observe_every_five_seconds(&mut harness, 5, 100, true);
        assert!(done.contains_key("drains i-1"), "{unknown}: {done:?}");
    }
}
