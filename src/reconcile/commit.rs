//! Which commit is served: the newest, or the one before for as long as CI has to apply the newest.
//!
//! Invariant: a newer commit that waits for CI never leaves the loop without one to plan from. Until the one that was
//! served before was read, another one stands in for it: of that only pods that there are have their machines, and
//! nothing that stands goes. Where there is no such commit any more, the newest is served.

use std::sync::Arc;

use super::event::{Effect, Head, NoCommit};
use super::kept::{Applied, later};
use super::state::{State, backoff, failed};
use super::status::SourceState;
use crate::manifest::MergedBy;

impl State {
    pub(super) fn head_was_read(&mut self, read: Result<Arc<Head>, String>) {
        self.reading = false;
        let now = self.now;
        match read {
            Ok(head) => {
                self.count("reads.git.done", 1);
                self.times("read", "repository", self.timing.asked_git_at);
                self.git = SourceState { read_at: Some(now), error: None, failures: 0 };
                self.git_due = later(now, head.controller.poll);
                if std::mem::take(&mut self.git_hinted) {
                    self.git_due = self.git_due.min(self.next_read());
                }
                self.hears_of_auto_mode(head.auto_mode);
                let begins = self.head.is_none();
                self.serve(head);
                if begins {
                    // What its node classes come to was looked up with it, and is in no look that was begun before.
                    self.need = self.looks + 1;
                }
            }
            Err(why) => {
                self.count("reads.git.failed", 1);
                self.count("errors.git", 1);
                failed(&mut self.git, why, now);
                self.git_due = later(now, backoff(self.git.failures));
            }
        }
    }

    /// Serves a commit that was read, or has it wait for CI.
    fn serve(&mut self, head: Arc<Head>) {
        let known = self.head.as_ref().is_some_and(|served| served.commit == head.commit);
        if known && !self.has_stand_in() {
            self.serves(head);
            return;
        }
        let waits = head.controller.merged_by == MergedBy::Ci && !self.is_applied(&head.commit);
        // A loop that begins serves what it served before, as soon as it reads it, and anything else
        // only once CI is done; where nothing was served before, there is nothing to hold back.
        let served = self.kept.as_ref().and_then(|kept| kept.served.clone());
        let begins = self.head.is_none() && served.is_none();
        let same = served.as_ref() == Some(&head.commit);
        if !waits || begins || same {
            self.serves(head);
            return;
        }
        if self.head.is_none() {
            self.former = self.former.take().or(served.map(|commit| (commit, None)));
            self.head = Some(Arc::clone(&head));
        }
        let patience = later(self.now, head.controller.ci_patience);
        let Some(kept) = &mut self.kept else { return };
        // Merges that come faster than CI applies them must not wait for ever, nor restarts of this
        // process that come faster than its patience ends.
        let until = *kept.waits_until.get_or_insert(patience);
        self.newer = Some((head, until));
    }

    /// Serves what whoever led before served, where CI carries out merges, and has anything else wait for as long as it
    /// was to wait there: what this process took for served while another led, or did not keep, says nothing of that.
    pub(super) fn serve_as_kept(&mut self) {
        let served = self.kept.as_ref().and_then(|kept| kept.served.clone());
        let newest = self.newer.as_ref().map(|(newer, _)| newer).or(self.head.as_ref());
        let newest = newest.filter(|newest| newest.controller.merged_by == MergedBy::Ci).cloned();
        let (Some(served), Some(newest)) = (served, newest) else { return };
        self.newer = None;
        if self.head.as_ref().is_some_and(|head| head.commit != served) {
            self.former = Some((served, None));
            self.former_due.worked(self.now);
        }
        let is_newest = self.head.as_ref().is_some_and(|head| head.commit == newest.commit);
        if !is_newest || self.has_stand_in() {
            self.serve(newest);
        }
    }

    /// Returns whether the commit that plans are made from only stands in for one that was served before and was not read
    /// yet: it may be one that waits for CI.
    pub(super) fn has_stand_in(&self) -> bool {
        let wanted = self.former.as_ref().zip(self.head.as_ref());
        wanted.is_some_and(|((former, _), head)| *former != head.commit)
    }

    /// Has plans be made from `head` from now on.
    fn serves(&mut self, head: Arc<Head>) {
        self.newer = None;
        self.former = None;
        if let Some(kept) = &mut self.kept {
            kept.served = Some(head.commit.clone());
            kept.waits_until = None;
        }
        self.head = Some(head);
    }

    fn is_applied(&self, commit: &str) -> bool {
        let applied = self.kept.as_ref().and_then(|kept| kept.applied.as_ref());
        applied.is_some_and(|Applied { commit: of, whole, .. }| of == commit && *whole)
    }

    /// Serves a newer commit once CI is done with it, or has not been for too long, or somebody broke the glass.
    pub(super) fn adopt_newer(&mut self) {
        let Some((newer, until)) = &self.newer else { return };
        let broken = self.kept.as_ref().is_some_and(|kept| kept.break_glass.is_some());
        if broken || self.is_applied(&newer.commit) || self.now >= *until {
            let newer = Arc::clone(newer);
            self.serves(newer);
        }
    }

    /// Has a commit read that plans are made from and the branch no longer ends in.
    pub(super) fn read_former(&mut self, effects: &mut Vec<Effect>) {
        let Some((commit, _)) = &self.former else { return };
        if !self.reading_former && self.now >= self.former_due.at {
            self.reading_former = true;
            effects.push(Effect::ReadCommit { commit: commit.clone() });
        }
    }

    pub(super) fn commit_was_read(&mut self, commit: &str, read: Result<Arc<Head>, NoCommit>) {
        self.reading_former = false;
        let now = self.now;
        let wanted = self.former.as_ref().is_some_and(|(wanted, _)| wanted == commit);
        if !wanted {
            return;
        }
        match read {
            Ok(head) => {
                self.count("reads.git.done", 1);
                self.former_due.worked(now);
                self.former = None;
                self.hears_of_auto_mode(head.auto_mode);
                self.head = Some(head);
                // What its node classes come to is in no look that was begun before.
                self.need = self.looks + 1;
                self.replan_at = now;
            }
            Err(NoCommit::Gone(_)) if self.newer.is_some() => {
                self.count("reads.git.gone", 1);
                self.former_due.worked(now);
                if let Some((newest, _)) = self.newer.take() {
                    self.serves(newest);
                }
                self.replan_at = now;
            }
            Err(NoCommit::Gone(why) | NoCommit::Failed(why)) => {
                self.count("reads.git.failed", 1);
                self.count("errors.git", 1);
                self.former_due.failed(now);
                self.former = Some((commit.to_owned(), Some(why)));
                // What the branch ends in by now takes its place, where it is gone.
                self.git_due = self.git_due.min(self.next_read());
            }
        }
    }

    /// Has the commit that is served read again: what makes plans from it is no longer at hand.
    pub(super) fn lacks_planner(&mut self) {
        if self.has_stand_in() {
            // The newest was read last.
            self.head =
                self.newer.as_ref().map(|(newer, _)| Arc::clone(newer)).or(self.head.take());
        } else if let Some(head) = self.head.as_ref().filter(|_| self.former.is_none()) {
            self.former = Some((head.commit.clone(), None));
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::manifest::Mode;
    use crate::plan::Plan;
    use crate::plan::wire::WaveStep;
    use crate::reconcile::fixture::{Story, at, world};
    use crate::reconcile::{Event, Kept, Limits, Signal};
    use crate::render::fixture;

    /// Has the branch end in a commit that CI carries out.
    fn reads(story: &mut Story, seconds: i64, commit: &str) {
        let head = story.state().head.as_ref().or(story.state().newer.as_ref().map(|(h, _)| h));
        let mut head = Head::clone(head.expect("one is known"));
        head.commit = commit.to_owned();
        head.controller.merged_by = MergedBy::Ci;
        head.controller.ci_patience = SignedDuration::from_mins(10);
        story.next(seconds, Event::Head(Ok(Arc::new(head))));
    }

    fn leads(story: &mut Story, seconds: i64, served: &str, waits_until: Option<i64>) {
        let waits_until = waits_until.map(at);
        let kept = Kept { served: Some(served.to_owned()), waits_until, ..Kept::default() };
        story.next(seconds, Event::Signal(Signal::Gained));
        story.next(seconds, Event::Recalled(Ok(Box::new(kept))));
    }

    fn served(story: &Story) -> Option<&str> {
        story.state().head.as_ref().map(|head| head.commit.as_str())
    }

    #[test]
    fn who_comes_to_lead_serves_what_was_served_and_has_a_merge_wait_as_it_was_to() {
        let mut story = Story::begin();
        // Without the lease it serves the first still, and has what came since wait.
        reads(&mut story, 10, "2");
        reads(&mut story, 20, "3");
        let until =
            story.state().newer.as_ref().map(|(newer, until)| (newer.commit.clone(), *until));
        assert_eq!(until, Some(("3".to_owned(), at(10 + 600))), "since the first that waits");
        // Whoever led had served 3 already, and was told of a merge after it that waits for longer.
        reads(&mut story, 500, "4");
        leads(&mut story, 550, "3", Some(1_100));
        assert_eq!(served(&story), Some("1"), "what it served itself stands in for 3");
        let former = story.state().former.as_ref().map(|(commit, _)| commit.clone());
        assert_eq!(former.as_deref(), Some("3"));
        let mut read = Head::clone(&story.state().newer.as_ref().expect("it waits").0);
        read.commit = "3".to_owned();
        let (commit, read) = ("3".to_owned(), Ok(Arc::new(read)));
        story.next(560, Event::Commit { commit, read });
        story.next(700, Event::Timer);
        assert_eq!(served(&story), Some("3"), "it waits for longer than this process had it wait");
        story.next(1_100, Event::Timer);
        assert_eq!(served(&story), Some("4"));
    }

    /// Returns a loop that comes to lead where `3` is served and `4` waits for CI, and has read `4` alone, or `1` before.
    fn leads_without_what_is_served(knows: bool) -> Story {
        let mut story = Story::begin();
        reads(&mut story, 10, "4");
        if !knows {
            // A process that has only begun.
            story.change(|state| (state.head, state.former) = (None, None));
        }
        leads(&mut story, 20, "3", Some(2_000));
        story.change(|state| state.planning = None);
        story
    }

    /// Has the commit that is waited for be read; returns whether it is read again at once or later.
    fn answers(story: &mut Story, seconds: i64, read: Result<Arc<Head>, NoCommit>) {
        story.next(seconds, Event::Commit { commit: "3".to_owned(), read });
    }

    /// Has pods wait, and returns what is planned for them.
    fn plans(story: &mut Story, seconds: i64) -> Option<Limits> {
        story.change(|state| state.planning = None);
        story.next(seconds, Event::World(Arc::new(world(seconds))));
        story.change(|state| state.replan_at = at(seconds));
        story.next(seconds, Event::Timer);
        story.state().planning.as_ref().map(|planning| planning.limits.clone())
    }

    #[test]
    fn until_what_is_served_was_read_another_commit_stands_in_by_which_pods_have_machines_and_nothing_goes()
     {
        for (knows, stands_in) in [(true, "1"), (false, "4")] {
            let mut story = leads_without_what_is_served(knows);
            for seconds in [30, 60, 400] {
                answers(&mut story, seconds, Err(NoCommit::Failed("no route".to_owned())));
                assert_eq!(served(&story), Some(stands_in), "{seconds}");
                let adds = Limits { running: true, ..Limits::adds() };
                assert_eq!(plans(&mut story, seconds + 1), Some(adds), "{seconds}");
                assert_eq!(story.state().mode(), Mode::Additive, "and interruptions are heeded");
                assert!(!story.state().reading_former, "not at once again");
            }
            let repository = story.state().status().repository;
            assert_eq!(repository.stands_in_for.as_deref(), Some("3"));
            let why = repository.waiting.map(|(_, why)| why).unwrap_or_default();
            assert!(why.contains("commit 3") && why.contains("no route"), "{why}");
            // What is launched is begun.
            let mut launches = Plan { applyable: true, ..fixture::plan() };
            launches.capacity.waves.retain(|wave| wave.step == WaveStep::Launch);
            story.planned(402, launches);
            let waits = |story: &Story| {
                let mut lanes = story.state().lanes.values();
                lanes.any(|lane| lane.begins.is_some())
            };
            assert!(waits(&story), "they are being kept");
            story.next(800, Event::Timer);
            assert!(story.state().reading_former, "it is asked for again");
            let mut head = Head::clone(story.state().head.as_ref().expect("one stands in"));
            head.commit = "3".to_owned();
            answers(&mut story, 801, Ok(Arc::new(head)));
            assert_eq!((served(&story), story.state().has_stand_in()), (Some("3"), false));
            assert!(!waits(&story), "what waited is planned of the one that is served");
            assert_eq!(
                story.state().need,
                story.state().looks + 1,
                "over a look that is begun now"
            );
            assert_eq!(story.state().mode(), Mode::Full);
            assert_eq!(story.state().status().repository.stands_in_for, None);
        }
    }

    #[test]
    fn the_first_plan_is_made_over_a_look_that_was_begun_once_the_commit_was_known() {
        let mut story = Story::begin();
        let head = story.state().head.clone().expect("one is served");
        for (known, awaited) in [(true, false), (false, true)] {
            story.change(|state| {
                state.planning = None;
                state.head = known.then(|| Arc::clone(&head));
                state.replan_at = at(0);
            });
            story.next(5, Event::Head(Ok(Arc::clone(&head))));
            let state = story.state();
            assert_eq!(state.need > state.world_no, awaited, "{known}");
            assert_eq!(state.planning.is_none(), awaited, "{known}");
        }
        story.next(6, Event::World(Arc::new(world(6))));
        story.next(6, Event::World(Arc::new(world(6))));
        assert!(story.state().planning.is_some());
    }

    #[test]
    fn where_there_is_no_such_commit_any_more_the_newest_is_served_at_once() {
        for knows in [true, false] {
            let mut story = leads_without_what_is_served(knows);
            answers(&mut story, 30, Err(NoCommit::Gone("not our ref".to_owned())));
            assert_eq!((served(&story), story.state().has_stand_in()), (Some("4"), false));
            assert!(story.state().newer.is_none(), "it waits for nothing");
            let kept = story.state().kept.as_ref().and_then(|kept| kept.served.as_deref());
            assert_eq!(kept, Some("4"));
            assert_eq!(plans(&mut story, 31), Some(Limits::default()));
        }
    }

    #[test]
    fn what_was_confirmed_stays_so_while_another_commit_stands_in() {
        let mut story = leads_without_what_is_served(true);
        story.change(|state| {
            state.kept.as_mut().expect("recalled").confirmed.push("i-1".into());
        });
        plans(&mut story, 40);
        story.planned(41, fixture::plan());
        assert!(story.state().current.is_some());
        assert_eq!(story.state().kept.as_ref().expect("recalled").confirmed.len(), 1);
    }

    #[test]
    fn who_comes_to_lead_serves_on_what_it_serves_where_that_is_kept_or_nobody_waits_for_ci() {
        let mut story = Story::begin();
        leads(&mut story, 10, "of before", None);
        assert_eq!(served(&story), Some("1"), "a merge is carried out here");
        reads(&mut story, 20, "1");
        leads(&mut story, 30, "1", None);
        assert_eq!((served(&story), story.state().newer.is_none()), (Some("1"), true));
    }
}
