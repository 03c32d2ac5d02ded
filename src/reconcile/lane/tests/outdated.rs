//! What was allowed is judged once more before it is begun: what people, settings and the world say may be otherwise by
//! then, and what it counts as in budgets, or that it is under way, is no ground against it.

use super::removals::removes;
use super::*;
use crate::fleet::Node;
use crate::manifest::{ApprovalRule, Most, Rate, Window};
use crate::reconcile::allow::{LAUNCHES, MASS_REMOVAL};
use crate::reconcile::fixture::has_one_go;
use crate::reconcile::status::{Breaker, Suspension};
use crate::reconcile::{Approved, Head, Mode, State};

/// Has the commit that is served say something else.
fn says(state: &mut State, change: impl FnOnce(&mut Head)) {
    change(Arc::make_mut(state.head.as_mut().expect("read")));
}

fn kept(state: &mut State) -> &mut Kept {
    state.kept.as_mut().expect("recalled")
}

fn latches(state: &mut State, name: &str) {
    let (name, why) = (name.to_owned(), String::new());
    kept(state).breakers.push(Breaker { name, since: at(3), why, removes: None });
}

/// Has the only window be one in the early morning: it is afternoon in these tests.
fn closes(state: &mut State) {
    let window = Window { days: Vec::new(), from: 60, to: 120, zone: jiff::tz::TimeZone::UTC };
    says(state, |head| head.guard.windows.push(window));
}

/// What happens between the moment at which a removal is allowed and that at which it is kept, and whether it is begun.
type Case = (&'static str, fn(&mut State), bool);

const CASES: &[Case] = &[
    ("nothing", |_| (), true),
    ("the mode allows no removal any more", |s| s.start.mode = Some(Mode::Additive), false),
    ("it is only to look on", |s| s.start.mode = Some(Mode::Observe), false),
    ("the window closes", closes, false),
    (
        "the window closes, and the glass is broken",
        |s| {
            closes(s);
            let (reason, by, until) = ("r".to_owned(), "a".to_owned(), Some(at(900)));
            kept(s).break_glass = Some(Suspension { reason, until, since: at(3), by });
        },
        true,
    ),
    (
        "plans are approved by their digests from now on",
        |s| says(s, |head| head.controller.approval = ApprovalRule::Digest),
        false,
    ),
    (
        "the same, and this one is",
        |s| {
            says(s, |head| head.controller.approval = ApprovalRule::Digest);
            let (digest, by) = (has_one_go().capacity.digest, "a".to_owned());
            kept(s).approved.push(Approved { digest, by, at: at(3), rows: BTreeSet::new() });
        },
        true,
    ),
    (
        "somebody suspends the loop",
        |s| {
            let (reason, by) = ("r".to_owned(), "a".to_owned());
            kept(s).suspended = Some(Suspension { reason, until: None, since: at(3), by });
        },
        false,
    ),
    ("the breaker of removals latches", |s| latches(s, MASS_REMOVAL), false),
    ("the breaker of launches latches, and it launches nothing", |s| latches(s, LAUNCHES), true),
    (
        "its pool asks for a confirmation from now on",
        |s| says(s, |head| head.controller.confirm.extend(["batch".into(), "web".into()])),
        false,
    ),
    (
        "the same, and it has that",
        |s| {
            says(s, |head| head.controller.confirm.extend(["batch".into(), "web".into()]));
            kept(s).confirmed.push("i-1".into());
        },
        true,
    ),
    ("its commit asks for nothing", |s| says(s, |head| head.is_empty = true), false),
    (
        "the budget, which it is counted in, allows one",
        |s| {
            let within = SignedDuration::from_mins(5);
            says(s, |head| head.controller.removals = Rate { most: Most::Count(1), within });
        },
        true,
    ),
    ("another replica leads", |s| s.leader = false, false),
];

#[test]
fn a_removal_is_begun_where_it_would_still_be_allowed_once_it_is_kept() {
    for (name, change, begins) in CASES {
        let mut story = removes();
        story.change(change);
        story.saves(4);
        let begun = story.state().lanes.values().filter(|lane| lane.begins.is_none()).count();
        assert_eq!(begun, usize::from(*begins), "{name}");
        assert_eq!(story.state().lanes.len(), begun, "{name}: the rest is dropped");
    }
}

#[test]
fn a_confirmation_that_lapses_before_a_removal_is_begun_ends_it() {
    for lapses in [false, true] {
        let mut story = removes();
        story.change(|state| {
            says(state, |head| head.controller.confirm.extend(["batch".into(), "web".into()]));
            kept(state).confirmed.push("i-1".into());
        });
        if lapses {
            story.change(|state| kept(state).confirmed.clear());
        }
        story.saves(4);
        assert_eq!(story.state().lanes.is_empty(), lapses);
    }
}

#[test]
fn nothing_is_removed_where_nodes_have_become_unready_since_it_was_allowed() {
    for unready in [3, 4] {
        let mut story = removes();
        let mut shows = world(4);
        let node = shows.nodes.values().next().expect("one").clone();
        for n in 0..4 {
            let name = format!("other-{n}").as_str().into();
            let uid = format!("uid-of-other-{n}").as_str().into();
            let ready = n >= unready;
            let other = Node { name, uid, instance: None, ready, ..node.clone() };
            shows.nodes.insert(other.name.clone(), other);
        }
        story.next(4, Heard::World(Arc::new(shows)));
        story.saves(5);
        assert_eq!(story.state().lanes.is_empty(), unready > 3, "{unready} of 7");
    }
}

#[test]
fn of_two_that_wait_only_the_one_is_dropped_that_may_not_begin() {
    let mut story = removes();
    // What only launches, beside it.
    let (other, ticket) = applies();
    let mut lane = other.state().lanes[&ticket].clone();
    story.change(|state| {
        let waiting = state.lanes.values().next().and_then(|lane| lane.begins.clone());
        lane.begins = waiting;
        let asked = &mut kept(state).asked;
        asked.clone_from(&other.state().kept.as_ref().expect("recalled").asked);
        state.lanes.insert(99, lane);
        latches(state, MASS_REMOVAL);
    });
    story.next(4, Heard::Timer);
    let left: Vec<(Ticket, bool)> =
        story.state().lanes.iter().map(|(ticket, lane)| (*ticket, lane.begins.is_some())).collect();
    assert_eq!(left, [(99, true)], "it waits to be kept on");
    let kept = story.state().kept.as_ref().expect("recalled");
    assert!(kept.removed.is_empty() && !kept.asked.is_empty(), "one counts, the other does not");
    story.saves(5);
    story.saves(6);
    assert!(story.state().lanes[&99].begins.is_none(), "and is begun");
}
