//! What people ask of a running loop.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::allow::{GLASS_MAX, LAUNCHES, lost};
use super::kept::{Approved, later};
use super::state::State;
use super::status::Suspension;
use super::work::{instance, retired};
use crate::ids::{Digest, InstanceId};
use crate::plan::Plan;

/// Something that somebody asks of the loop. Whoever passes it on has checked that they may.
///
/// The loop takes requests from a bounded `tokio::sync::mpsc` channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// The plan with this digest may be carried out.
    Approve {
        /// What is approved.
        digest: Digest,
        /// Who approves.
        by: String,
    },
    /// A machine of a pool that asks for it (`spec.controller.confirm`) may go, where the plan has it.
    Confirm {
        /// The machine: an address is another one's, once its machine is gone.
        instance: InstanceId,
        /// Who confirms.
        by: String,
    },
    /// Nothing new is begun, until the moment or for ever.
    Suspend {
        /// Why.
        reason: String,
        /// When it ends by itself.
        until: Option<Timestamp>,
        /// Who asks.
        by: String,
    },
    /// A suspension ends.
    Resume {
        /// Who asks.
        by: String,
    },
    /// Approval, windows and the wait for CI are passed over until the moment; no rule of safety is.
    BreakGlass {
        /// Why.
        reason: String,
        /// When it ends; after [`GLASS_MAX`](super::allow::GLASS_MAX) at the latest.
        until: Timestamp,
        /// Who asks.
        by: String,
    },
    /// The glass is whole again before its time.
    MendGlass {
        /// Who asks.
        by: String,
    },
    /// A breaker that latched is opened again.
    Reset {
        /// Its name.
        breaker: String,
        /// The plan that may be carried out then, where the breaker is that of mass removals; without it the next plan
        /// that removes as much latches again.
        digest: Option<Digest>,
        /// Who asks.
        by: String,
    },
}

impl State {
    /// Does what a person asked for, as far as that makes sense still.
    pub(super) fn asked(&mut self, request: Request) {
        let now = self.now;
        let is_planned = |wanted: &InstanceId| {
            let rows = self.current.iter().flat_map(|current| retired(&current.plan));
            rows.filter_map(instance).any(|goes| goes == *wanted)
        };
        let confirmed = match &request {
            Request::Confirm { instance, .. } => Some(instance.clone()).filter(is_planned),
            Request::Approve { .. }
            | Request::Suspend { .. }
            | Request::Resume { .. }
            | Request::BreakGlass { .. }
            | Request::MendGlass { .. }
            | Request::Reset { .. } => None,
        };
        let Some(kept) = &mut self.kept else { return };
        let since = now;
        match request {
            Request::Approve { digest, by } => {
                kept.approved.push(Approved { digest, by, at: now, rows: BTreeSet::new() });
                if let Some(current) = &self.current {
                    kept.note_approved(&current.plan);
                }
            }
            Request::Confirm { .. } => {
                // Who confirms what is not planned right now takes nothing back that was confirmed before.
                if let Some(instance) = confirmed {
                    kept.confirmed.retain(|known| *known != instance);
                    kept.confirmed.push(instance);
                }
            }
            Request::Suspend { reason, until, by } => {
                kept.suspended = Some(Suspension { reason, until, since, by });
            }
            Request::Resume { .. } => kept.suspended = None,
            Request::BreakGlass { reason, until, by } => {
                let until = Some(until.min(later(now, GLASS_MAX)));
                kept.break_glass = Some(Suspension { reason, until, since, by });
            }
            Request::MendGlass { .. } => kept.break_glass = None,
            Request::Reset { breaker, digest, by } => {
                let latched = kept.breakers.iter().position(|latched| latched.name == breaker);
                // Who asks twice, or for what is not there, changes nothing.
                let Some(latched) = latched.map(|at| kept.breakers.remove(at)) else { return };
                if breaker == LAUNCHES {
                    kept.forgiven = Some(now);
                    kept.quarantine.clear();
                }
                // Whoever resets it has seen what it latched for and the plan they name, and nothing that came since.
                let plan = self.current.as_ref().map(|current| &current.plan);
                let seen = |plan: &&Arc<Plan>| {
                    let few = latched.removes.is_some_and(|most| lost(plan) <= most);
                    few && digest.as_ref() == Some(&plan.capacity.digest)
                };
                if let Some(plan) = plan.filter(seen) {
                    let digest = plan.capacity.digest.clone();
                    kept.approved.push(Approved { digest, by, at: now, rows: BTreeSet::new() });
                    kept.note_approved(plan);
                }
            }
        }
        self.replan_at = now;
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::manifest::{ApprovalRule, MergedBy};
    use crate::reconcile::allow::MASS_REMOVAL;
    use crate::reconcile::fixture::{Story, at, world};
    use crate::reconcile::kept::Quarantine;
    use crate::reconcile::{ApprovedBy, Event, Head, Kept, Signal};
    use crate::render::fixture as plans;

    const HOUR: i64 = 3_600;

    /// Returns a loop that leads and serves a commit of which plans wait for somebody to approve them.
    fn waits_for_approval() -> Story {
        let mut story = Story::begin();
        story.next(1, Event::Signal(Signal::Gained));
        story.next(1, Event::Recalled(Ok(Box::<Kept>::default())));
        story.change(|state| {
            let mut head = Head::clone(state.head.as_ref().expect("it was read"));
            head.controller.approval = ApprovalRule::Digest;
            state.head = Some(Arc::new(head));
        });
        story
    }

    fn ask(story: &mut Story, seconds: i64, request: Request) {
        story.next(seconds, Event::Signal(Signal::Request(request)));
    }

    fn breaks(until: i64) -> Request {
        Request::BreakGlass { reason: "r".into(), until: at(until), by: "carol".into() }
    }

    /// Has the plan that is being made be one that launches; returns how what is carried out was approved.
    fn planned(story: &mut Story, seconds: i64) -> Option<ApprovedBy> {
        becomes(story, seconds, plans::plan().capacity.digest.as_str());
        story.state().lanes.values().next().map(|lane| lane.past.approved.clone())
    }

    /// Has the plan that is being made be one that launches, with that digest.
    fn becomes(story: &mut Story, seconds: i64, digest: &str) {
        story.next(seconds, Event::World(Arc::new(world(seconds))));
        if story.state().planning.is_none() {
            story.change(|state| state.replan_at = at(seconds));
            story.next(seconds, Event::Timer);
        }
        let mut plan = Plan { applyable: true, ..plans::plan() };
        plan.capacity.waves.retain(|wave| wave.step == crate::plan::wire::WaveStep::Launch);
        plan.capacity.digest = digest.into();
        story.planned(seconds, plan.clone());
        // What was being planned before something was read or asked does not count.
        if story.state().lanes.is_empty() && story.state().planning.is_some() {
            story.planned(seconds, plan);
        }
    }

    #[test]
    fn with_the_glass_broken_a_plan_goes_that_nobody_approved_and_its_receipt_says_so() {
        let mut story = waits_for_approval();
        assert_eq!(planned(&mut story, 10), None);
        ask(&mut story, 11, breaks(HOUR));
        let by = ApprovedBy::BreakGlass { who: "carol".into(), reason: "r".into() };
        assert_eq!(planned(&mut story, 20), Some(by));
        let told = story.state().status().break_glass.expect("it is told");
        assert_eq!((told.by.as_str(), told.until), ("carol", Some(at(HOUR))));
    }

    #[test]
    fn no_plan_is_approved_by_glass_that_is_whole_again() {
        let ends: [fn(&mut Story); 2] = [
            |story| ask(story, 30, Request::MendGlass { by: "carol".into() }),
            // The plan itself is the first that happens after its time.
            |_| (),
        ];
        for end in ends {
            let mut story = waits_for_approval();
            ask(&mut story, 11, breaks(40));
            story.next(12, Event::World(Arc::new(world(12))));
            end(&mut story);
            assert_eq!(planned(&mut story, 41), None);
            assert_eq!(story.state().status().break_glass, None);
        }
    }

    #[test]
    fn the_glass_is_broken_no_longer_than_may_be() {
        let mut story = waits_for_approval();
        ask(&mut story, 11, breaks(HOUR * 24 * 365));
        let until = at(11) + GLASS_MAX;
        assert_eq!(story.state().status().break_glass.and_then(|told| told.until), Some(until));
        // What was kept without an end has ended.
        let mut kept = story.state().kept.clone().expect("it is kept");
        kept.break_glass.as_mut().expect("it is broken").until = None;
        kept.forget(at(12));
        assert_eq!(kept.break_glass, None);
    }

    #[test]
    fn a_plan_that_stood_for_a_while_and_was_not_begun_is_told_of_when_another_takes_its_place() {
        let digests = |story: &Story| {
            let all = story.state().status().superseded.into_iter();
            all.map(|former| former.digest.to_string()).collect::<Vec<_>>()
        };
        let mut story = waits_for_approval();
        let becomes = |story: &mut Story, now: i64, digest: &str| {
            becomes(story, now, digest);
            let current = story.state().current.as_ref().expect("a plan");
            assert_eq!(current.plan.capacity.digest.as_str(), digest);
        };
        becomes(&mut story, 10, "a");
        becomes(&mut story, 69, "b");
        assert_eq!(digests(&story), [""; 0], "it did not stand for long");
        becomes(&mut story, 100, "b");
        becomes(&mut story, 130, "c");
        assert_eq!(digests(&story), ["b"]);
        becomes(&mut story, 190, "b");
        assert_eq!(digests(&story), ["c"], "what is planned again is not over");
        for (now, digest) in [(250, "d"), (310, "e"), (370, "f"), (430, "g"), (490, "h")] {
            becomes(&mut story, now, digest);
        }
        assert_eq!(digests(&story), ["g", "f", "e", "d", "b"], "no more than a few");
        // An apply may have carried out what was planned before it gave the lease back.
        assert_eq!(story.state().aside.leads_since, at(1));
        story.change(|state| state.aside.leads_since = at(500));
        becomes(&mut story, 560, "x");
        assert_eq!(digests(&story)[0], "g");
        // What was begun has its own object, and is none of these.
        ask(&mut story, 561, Request::Approve { digest: "i".into(), by: "carol".into() });
        becomes(&mut story, 630, "i");
        let lane = story.state().lanes.keys().next().copied().expect("it is begun");
        story.next(631, Event::Applied { ticket: lane, end: Err("the world has moved".into()) });
        becomes(&mut story, 700, "j");
        assert_eq!(digests(&story)[0], "x");
    }

    #[test]
    fn a_machine_that_the_plan_knows_is_confirmed_and_no_other() {
        let mut story = waits_for_approval();
        planned(&mut story, 10);
        let whole = Plan { applyable: true, ..plans::plan() };
        let known = retired(&whole).find_map(instance).expect("a machine goes");
        let kept = whole.resource_changes.iter().filter_map(instance);
        let kept: Vec<InstanceId> = kept
            .filter(|id| !retired(&whole).filter_map(instance).any(|goes| goes == *id))
            .collect();
        assert!(!kept.is_empty(), "one is kept");
        story.change(|state| state.current.as_mut().expect("a plan").plan = Arc::new(whole));
        let strange = [InstanceId::from("i-0fffffffffffffff0"), known.clone()];
        for instance in strange.into_iter().chain(kept) {
            ask(&mut story, 20, Request::Confirm { instance, by: "carol".into() });
        }
        let confirmed =
            |story: &Story| story.state().kept.as_ref().expect("it is kept").confirmed.clone();
        assert_eq!(confirmed(&story), std::slice::from_ref(&known));
        // Who asks again while no plan has it takes nothing back.
        story.change(|state| state.current = None);
        ask(&mut story, 21, Request::Confirm { instance: known.clone(), by: "dave".into() });
        assert_eq!(confirmed(&story), [known]);
    }

    #[test]
    fn a_breaker_of_mass_removals_opens_for_the_plan_that_was_seen_and_once() {
        let mut story = waits_for_approval();
        planned(&mut story, 10);
        let whole = Plan { applyable: true, ..plans::plan() };
        let digest = whole.capacity.digest.clone();
        assert!(lost(&whole) > 0, "it removes something");
        story.change(|state| state.current.as_mut().expect("a plan").plan = Arc::new(whole));
        let resets = |breaker: &str, digest: Option<Digest>| Request::Reset {
            breaker: breaker.to_owned(),
            digest,
            by: "carol".to_owned(),
        };
        let another = Some(Digest::from("sha256:another"));
        for (seen, most, approves) in [
            (Some(digest.clone()), 100, 1),
            (another, 100, 0),
            (None, 100, 0),
            // It has grown since.
            (Some(digest.clone()), 0, 0),
        ] {
            story.change(|state| {
                let kept = state.kept.as_mut().expect("it is kept");
                kept.approved.clear();
                kept.latch(MASS_REMOVAL, ("it removes much".to_owned(), Some(most)), at(19));
                let quarantine =
                    Quarantine { until: at(9_000), times: 1, why: "none helped".to_owned() };
                kept.quarantine.insert("web".into(), quarantine);
            });
            ask(&mut story, 20, resets(MASS_REMOVAL, seen.clone()));
            // Who clicks twice asks once.
            ask(&mut story, 20, resets(MASS_REMOVAL, seen.clone()));
            let kept = story.state().kept.as_ref().expect("it is kept");
            assert_eq!((kept.approved.len(), kept.breakers.len()), (approves, 0), "{seen:?}");
            assert!(!kept.quarantine.is_empty(), "that is another breaker");
        }
        for (latched, left) in [(false, 1), (true, 0)] {
            story.change(|state| {
                let kept = state.kept.as_mut().expect("it is kept");
                if latched {
                    kept.latch(LAUNCHES, ("none helped".to_owned(), None), at(19));
                }
            });
            ask(&mut story, 20, resets(LAUNCHES, None));
            let kept = story.state().kept.as_ref().expect("it is kept");
            assert_eq!(kept.quarantine.len(), left);
        }
    }

    #[test]
    fn with_the_glass_broken_a_commit_does_not_wait_for_ci() {
        for broken in [false, true] {
            let mut story = waits_for_approval();
            if broken {
                ask(&mut story, 11, breaks(HOUR));
            }
            let mut head = Head::clone(story.state().head.as_ref().expect("it was read"));
            head.commit = "2".to_owned();
            head.controller.merged_by = MergedBy::Ci;
            head.controller.ci_patience = SignedDuration::from_hours(1);
            story.next(12, Event::Head(Ok(Arc::new(head))));
            let served = story.state().status().repository.commit;
            assert_eq!(served.as_deref(), Some(if broken { "2" } else { "1" }));
        }
    }
}
