//! The plan of everything, and those that it took the place of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::kept::later;
use super::state::State;
use super::status::{HeldBy, Status, Superseded};
use super::work::{instance, retired};
use crate::fleet::Observed;
use crate::ids::{Address, Digest, InstanceId};
use crate::plan::wire::Action;
use crate::plan::{Plan, left_to_others};

/// How long a plan has to stand for it to be told of that another one took its place: in a busy cluster plans change
/// by the second, and each that is told of is written twice more.
const SUPERSEDED_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// How long confirmations outlive plans over a world of which something cannot be looked up: as long as nobody can tell
/// why a machine stays, and not for as long as a lookup is denied.
const UNREAD_FOR: SignedDuration = SignedDuration::from_mins(15);

/// The plan of everything.
#[derive(Debug, Clone)]
pub(super) struct Current {
    pub(super) plan: Arc<Plan>,
    pub(super) since: Timestamp,
    pub(super) held: BTreeMap<Address, HeldBy>,
    /// Machines that it leaves alone because of whose they are.
    pub(super) of_others: BTreeSet<InstanceId>,
}

impl Current {
    /// Returns it as of `since`, before anybody has judged what of it is held back.
    pub(super) fn new(plan: Arc<Plan>, since: Timestamp) -> Self {
        let of_others = left_to_others(&plan).into_iter().cloned().collect();
        Self { plan, since, held: BTreeMap::new(), of_others }
    }
}

/// Plans that others took the place of.
#[derive(Debug, Clone, Default)]
pub(super) struct Aside {
    /// The newest first.
    pub(super) plans: Vec<Superseded>,
    /// Since when this process leads: before, others may have carried out what was planned.
    pub(super) leads_since: Timestamp,
}

impl State {
    /// Takes a plan of everything for what is pursued from now on; `stands_in` where its commit only stands in for another.
    pub(super) fn becomes_current(&mut self, plan: &Arc<Plan>, stands_in: bool) {
        let digest = &plan.capacity.digest;
        let same = self.current.as_ref().filter(|c| c.plan.capacity.digest == *digest);
        let since = same.map_or(self.now, |current| current.since);
        if same.is_none() {
            self.count("plans.changed", 1);
            self.supersedes(digest);
        }
        self.ahead_since = None;
        if !plan.errored {
            self.costs.note(self.now, plan.capacity.cost.hourly_before);
        }
        let going: BTreeSet<InstanceId> = retired(plan).filter_map(instance).collect();
        // What a plan with errors leaves alone it has not forgiven.
        if !plan.errored {
            // A machine may be left alone for now because something could not be looked up: nobody changed their mind.
            let unread = self.is_unread();
            if let Some(kept) = self.kept.as_mut().filter(|_| !stands_in && !unread) {
                // What was confirmed is that it goes for the reason of that day.
                kept.confirmed.retain(|id| going.contains(id));
            }
            self.planned_since.retain(|id, _| going.contains(id));
            for id in going {
                self.planned_since.entry(id).or_insert(self.now);
            }
        }
        if let Some(kept) = &mut self.kept {
            kept.note_approved(plan);
        }
        self.current = Some(Current::new(Arc::clone(plan), since));
    }

    /// Notes since when what a whole look does not know could not be looked up.
    pub(super) fn look_for_unread(&mut self, observed: &Observed) {
        let since = observed.resolved.unread.iter().map(|unread| {
            let of = (unread.part, unread.words.clone());
            let since = self.unread_since.get(&of).copied().unwrap_or(self.now);
            (of, since)
        });
        self.unread_since = since.collect();
    }

    /// Returns whether something could not be looked up, since lately, of the world that was planned over.
    fn is_unread(&self) -> bool {
        let Some((world, _)) = &self.planned else { return false };
        world.resolved.unread.iter().any(|unread| {
            let since = self.unread_since.get(&(unread.part, unread.words.clone()));
            since.is_none_or(|since| self.now < later(*since, UNREAD_FOR))
        })
    }

    /// Remembers the current plan where it stood for long enough that somebody may ask for it, and nothing of it was
    /// begun: another one takes its place.
    fn supersedes(&mut self, by: &Digest) {
        let now = self.now;
        self.aside.plans.retain(|former| former.digest != *by);
        // Who does not lead does not know what is carried out: by the other replica, or by an apply.
        let leads = |former: &&Current| self.leader && self.aside.leads_since <= former.since;
        let Some(former) = self.current.as_ref().filter(leads) else { return };
        let mut rows = former.plan.resource_changes.iter();
        let changes = rows.any(|row| row.change.actions.iter().any(|a| *a != Action::NoOp));
        let may_go = changes && !former.plan.errored;
        let begun = self.lanes.values().map(|lane| lane.past.started_at);
        let mut begun = begun.chain(self.history.iter().map(|past| past.started_at));
        let untouched = !begun.any(|at| former.since <= at);
        if may_go && untouched && later(former.since, SUPERSEDED_AFTER) <= now {
            let digest = former.plan.capacity.digest.clone();
            self.aside.plans.insert(0, Superseded { digest, at: now });
            self.aside.plans.truncate(Status::SUPERSEDED_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Part, Unread};
    use crate::reconcile::fixture::{Story, at, world};
    use crate::reconcile::{Event, Kept, Signal};
    use crate::render::fixture;

    /// Has a plan be made that has every machine stay, over a world of which images of these words could not be looked up.
    fn stays(story: &mut Story, seconds: i64, unread: &[&str]) {
        let mut world = world(seconds);
        let denied = |words: &&str| {
            let (words, reason) = ((*words).to_owned(), "AccessDenied".to_owned());
            Unread { part: Part::Image, words, reason }
        };
        world.resolved.unread = unread.iter().map(denied).collect();
        story.change(|state| state.planning = None);
        story.next(seconds, Event::World(Arc::new(world)));
        story.change(|state| state.replan_at = at(seconds));
        story.next(seconds, Event::Timer);
        let mut plan = fixture::plan();
        plan.resource_changes.clear();
        plan.capacity.waves.clear();
        story.planned(seconds, plan);
    }

    #[test]
    fn a_confirmation_outlives_a_lookup_that_fails_for_a_while_and_not_for_ever() {
        for (looks, kept) in [
            (&[(10, &["a"][..]), (800, &["a"])][..], true),
            (&[(10, &["a"]), (920, &["a"])], false),
            (&[(10, &["a"]), (800, &[])], false),
            (&[(10, &[])], false),
            // What fails for good says nothing of what fails now.
            (&[(10, &["a"]), (800, &["a", "b"]), (1_600, &["a", "b"])], true),
        ] {
            let mut story = Story::begin();
            story.next(1, Event::Signal(Signal::Gained));
            let confirmed = vec!["i-1".into()];
            story.next(1, Event::Recalled(Ok(Box::new(Kept { confirmed, ..Kept::default() }))));
            for (seconds, unread) in looks {
                stays(&mut story, *seconds, unread);
            }
            let confirmed = &story.state().kept.as_ref().expect("recalled").confirmed;
            assert_eq!(!confirmed.is_empty(), kept, "{looks:?}");
        }
    }
}
