//! Machines that go when the loop is told to look on only.

use super::*;
use crate::manifest::Mode;

/// Returns the world with `i-1` running a pod, cordoned because it goes, or not.
fn seen(seconds: i64, cordoned: bool) -> Event {
    let mut world = with_a_drain(seconds);
    let node = world.nodes.get_mut(&NodeName::from("node-of-i-1")).expect("it");
    node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "leaving".to_owned());
    if !cordoned {
        (node.unschedulable, node.annotations) = (false, BTreeMap::new());
    }
    let (node, phase) = (Some("node-of-i-1".into()), PodPhase::Running);
    world.pods.push(Arc::new(Pod { node, phase, ..fixture::pod("api") }));
    Event::World(Arc::new(world))
}

/// Returns a story in which `i-1` goes, `within` so many seconds where somebody says so, and its node is cordoned.
fn goes(within: Option<i64>) -> Story {
    let mut story = leads();
    story.next(2, seen(2, false));
    story.told(3, Kind::Health, &["i-1"], within);
    story.saves(3);
    story.next(4, cordoned(CordonOutcome::Written));
    story
}

/// Has the loop take part, or look on.
fn is_told(story: &mut Story, mode: Mode) {
    story.change(|state| state.start.mode = Some(mode));
}

/// Has it look each five seconds; returns what it wants done, and when first.
fn looks(story: &mut Story, from: i64, to: i64, cordoned: bool) -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    for seconds in (from..to).step_by(5) {
        for deed in story.next(seconds, seen(seconds, cordoned)) {
            all.entry(deed).or_insert(seconds);
        }
        story.saves(seconds);
    }
    all
}

#[test]
fn whoever_looks_on_only_has_no_pod_leave_and_takes_back_the_cordon_of_a_machine_that_stays() {
    for (what, within) in [("nobody says when", None), ("it has two weeks", Some(14 * 86_400))] {
        let mut story = goes(within);
        assert_eq!(looks(&mut story, 5, 60, true).len(), 0, "{what}: it waits for a plan");
        is_told(&mut story, Mode::Observe);
        let done = looks(&mut story, 60, 3_000, true);
        assert_eq!(done.keys().collect::<Vec<_>>(), ["uncordons node-of-i-1"], "{what}");
        let mark = None;
        let end = Ok(CordonOutcome::Written);
        story.next(3_000, Event::Cordoned { instance: "i-1".into(), mark, end });
        assert_eq!(looks(&mut story, 3_005, 9_000, false).len(), 0, "{what}: it stands as it did");
        assert_eq!(story.state().going(), ["i-1".into()].into(), "{what}: it goes all the same");
        // Once it may do something again, it begins anew.
        is_told(&mut story, Mode::Full);
        let done = looks(&mut story, 9_000, 9_010, false);
        assert_eq!(done.keys().collect::<Vec<_>>(), ["cordons node-of-i-1"], "{what}");
        story.next(9_010, cordoned(CordonOutcome::Written));
        assert_eq!(looks(&mut story, 9_015, 9_600, true).len(), 0, "{what}: it has its time");
    }
}

#[test]
fn whoever_looks_on_only_leaves_a_machine_that_ec2_is_about_to_end_cordoned_and_its_pods_alone() {
    let mut story = goes(Some(120));
    is_told(&mut story, Mode::Observe);
    assert_eq!(looks(&mut story, 5, 60 * 30, true).len(), 0, "EC2 ends it in a moment");
    // It was not to end.
    let done = looks(&mut story, 60 * 30, 60 * 40, true);
    assert_eq!(done.keys().collect::<Vec<_>>(), ["uncordons node-of-i-1"]);
    // Nor is the node of one removed that has ended.
    let mut story = goes(Some(120));
    is_told(&mut story, Mode::Observe);
    let mut gone = with_a_drain(130);
    gone.instances.get_mut(&InstanceId::from("i-1")).expect("it").state = InstanceState::Terminated;
    for seconds in (130..160).step_by(5) {
        let gone = Event::World(Arc::new(Observed { taken_at: at(seconds), ..gone.clone() }));
        assert_eq!(story.next(seconds, Event::Timer), [""; 0]);
        assert_eq!(story.next(seconds, gone), [""; 0]);
    }
    assert!(story.state().going().is_empty());
}

#[test]
fn what_goes_already_goes_on_beside_another_autoscaler_and_while_nobody_knows_the_mode() {
    for unknown in [true, false] {
        let mut story = goes(Some(120));
        story.change(|state| {
            if unknown {
                (state.start.mode, state.head) = (None, None);
            } else {
                state.rivals.found = Some("karpenter runs".to_owned());
            }
        });
        assert_eq!(story.state().mode(), Mode::Observe);
        // The next look for another one is minutes away.
        story.change(|state| state.rivals.due = at(10_000));
        let done = looks(&mut story, 5, 100, true);
        assert!(done.contains_key("drains i-1"), "{unknown}: {done:?}");
    }
}
