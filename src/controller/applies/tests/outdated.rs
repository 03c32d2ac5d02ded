//! Gates are evaluated again before a deferred apply starts. Operators, settings or the cluster may
//! block it by then. Its own budget use and progress must not block it.

use super::removals::controller_removing;
use super::*;
use crate::controller::gates::{INEFFECTIVE_LAUNCHES_BREAKER, MASS_REMOVAL_BREAKER};
use crate::controller::status::{Breaker, Suspension};
use crate::controller::{ApprovalRecord, ControllerState, Mode, Revision};
use crate::model::desired::{ApprovalRule, CountOrShare, RateLimit, Window};
use crate::model::observed::Node;
use crate::testing::controller::plan_removing_one;

/// Changes the served revision.
fn change_revision(state: &mut ControllerState, change: impl FnOnce(&mut Revision)) {
    change(Arc::make_mut(state.revisions.served.as_mut().expect("read")));
}

fn persisted(state: &mut ControllerState) -> &mut PersistedState {
    state.persistence.loaded.as_mut().expect("recalled")
}

fn latch_breaker(state: &mut ControllerState, name: &str) {
    let (name, why) = (name.to_owned(), String::new());
    persisted(state).breakers.push(Breaker { name, since: at(3), why, removes: None });
}

/// Sets the only window to the early morning; these tests run in the afternoon.
fn close_window(state: &mut ControllerState) {
    let window = Window { days: Vec::new(), from: 60, to: 120, zone: jiff::tz::TimeZone::UTC };
    change_revision(state, |revision| revision.guard.windows.push(window));
}

/// Name, change between the evaluation and the save, and true if the removal still starts.
type StartCase = (&'static str, fn(&mut ControllerState), bool);

const CASES: &[StartCase] = &[
    ("nothing", |_| (), true),
    ("mode additive", |s| s.start.mode = Some(Mode::Additive), false),
    ("mode observe", |s| s.start.mode = Some(Mode::Observe), false),
    ("the window closes", close_window, false),
    (
        "the window closes during break-glass",
        |s| {
            close_window(s);
            let (reason, by, until) = ("r".to_owned(), "a".to_owned(), Some(at(900)));
            persisted(s).break_glass = Some(Suspension { reason, until, since: at(3), by });
        },
        true,
    ),
    (
        "approval by digest",
        |s| change_revision(s, |revision| revision.controller.approval = ApprovalRule::Digest),
        false,
    ),
    (
        "approval by digest, and approved",
        |s| {
            change_revision(s, |revision| revision.controller.approval = ApprovalRule::Digest);
            let (digest, by) = (plan_removing_one().capacity.digest, "a".to_owned());
            persisted(s).approvals.push(ApprovalRecord::new(digest, by, at(3)));
        },
        true,
    ),
    (
        "suspension",
        |s| {
            let (reason, by) = ("r".to_owned(), "a".to_owned());
            persisted(s).suspended = Some(Suspension { reason, until: None, since: at(3), by });
        },
        false,
    ),
    ("the mass-removal breaker latches", |s| latch_breaker(s, MASS_REMOVAL_BREAKER), false),
    (
        "the launch breaker latches for a pure removal",
        |s| latch_breaker(s, INEFFECTIVE_LAUNCHES_BREAKER),
        true,
    ),
    (
        "confirmation required",
        |s| {
            change_revision(s, |revision| {
                revision.controller.confirm_pools.extend(["batch".into(), "web".into()]);
            });
        },
        false,
    ),
    (
        "confirmation required, and given",
        |s| {
            change_revision(s, |revision| {
                revision.controller.confirm_pools.extend(["batch".into(), "web".into()]);
            });
            persisted(s).confirmed_removals.push("i-1".into());
        },
        true,
    ),
    ("an empty commit", |s| change_revision(s, |revision| revision.is_empty = true), false),
    (
        "a removal budget of one, used by itself",
        |s| {
            let within = SignedDuration::from_mins(5);
            change_revision(s, |revision| {
                revision.controller.removals =
                    RateLimit { limit: CountOrShare::Count(1), window: within }
            });
        },
        true,
    ),
    ("another replica leads", |s| s.leadership.lose(None, false), false),
];

#[test]
fn removal_starts_if_still_allowed_once_persisted() {
    for (name, change, begins) in CASES {
        let mut harness = controller_removing();
        harness.modify(change);
        harness.finish_saving(4);
        let begun = harness
            .state()
            .applies
            .runs
            .values()
            .filter(|run| run.deferred_start.is_none())
            .count();
        assert_eq!(begun, usize::from(*begins), "{name}");
        assert_eq!(harness.state().applies.runs.len(), begun, "{name}: the rest is dropped");
    }
}

#[test]
fn lapsed_confirmation_drops_a_removal_before_its_start() {
    for lapses in [false, true] {
        let mut harness = controller_removing();
        harness.modify(|state| {
            change_revision(state, |revision| {
                revision.controller.confirm_pools.extend(["batch".into(), "web".into()]);
            });
            persisted(state).confirmed_removals.push("i-1".into());
        });
        if lapses {
            harness.modify(|state| persisted(state).confirmed_removals.clear());
        }
        harness.finish_saving(4);
        assert_eq!(harness.state().applies.runs.is_empty(), lapses);
    }
}

#[test]
fn unready_nodes_drop_a_removal_before_its_start() {
    for unready in [3, 4] {
        let mut harness = controller_removing();
        let mut shows = world(4);
        let node = shows.nodes.values().next().expect("one").clone();
        for n in 0..4 {
            let name = format!("other-{n}").as_str().into();
            let uid = format!("uid-of-other-{n}").as_str().into();
            let ready = n >= unready;
            let other = Node { name, uid, instance: None, ready, ..node.clone() };
            shows.nodes.insert(other.name.clone(), other);
        }
        harness.step_at(4, ControllerEvent::Observed(Arc::new(shows)));
        harness.finish_saving(5);
        assert_eq!(harness.state().applies.runs.is_empty(), unready > 3, "{unready} of 7");
    }
}

#[test]
fn only_the_blocked_one_of_two_deferred_applies_is_dropped() {
    let mut harness = controller_removing();
    // Adds an apply that only launches.
    let (other, ticket) = controller_applying();
    let mut run = other.state().applies.runs[&ticket].clone();
    harness.modify(|state| {
        let waiting = state.applies.runs.values().next().and_then(|run| run.deferred_start.clone());
        run.deferred_start = waiting;
        let asked = &mut persisted(state).in_doubt_launches;
        asked.clone_from(
            &other.state().persistence.loaded.as_ref().expect("recalled").in_doubt_launches,
        );
        state.applies.runs.insert(99, run);
        latch_breaker(state, MASS_REMOVAL_BREAKER);
    });
    harness.step_at(4, ControllerEvent::Timer);
    let left: Vec<(Ticket, bool)> = harness
        .state()
        .applies
        .runs
        .iter()
        .map(|(ticket, run)| (*ticket, run.deferred_start.is_some()))
        .collect();
    assert_eq!(left, [(99, true)], "it still waits to be persisted");
    let persisted = harness.state().persistence.loaded.as_ref().expect("recalled");
    assert!(
        persisted.removals.is_empty() && !persisted.in_doubt_launches.is_empty(),
        "one counts, the other does not"
    );
    harness.finish_saving(5);
    harness.finish_saving(6);
    assert!(harness.state().applies.runs[&99].deferred_start.is_none(), "and is begun");
}
