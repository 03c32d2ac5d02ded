//! Which commit is served: the newest, or the one before for as long as CI has to apply the newest.
//!
//! Invariant: a newer commit that waits for CI never leaves the loop without one to plan from, where
//! the one that was served before can still be read.

use std::sync::Arc;

use super::event::{Effect, Head};
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
                self.git = SourceState { read_at: Some(now), error: None, failures: 0 };
                self.git_due = later(now, head.controller.poll);
                if std::mem::take(&mut self.git_hinted) {
                    self.git_due = self.git_due.min(self.next_read());
                }
                self.hears_of_auto_mode(head.auto_mode);
                self.serve(head);
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
        if known {
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
        if self.head.is_none() && self.former.is_none() {
            self.former = served.map(|commit| (commit, None));
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
            (self.head, self.former) = (None, None);
        }
        if self.head.as_ref().is_none_or(|head| head.commit != newest.commit) {
            self.serve(newest);
        }
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

    pub(super) fn commit_was_read(&mut self, commit: &str, read: Result<Arc<Head>, String>) {
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
                self.replan_at = now;
            }
            Err(why) => {
                self.count("reads.git.failed", 1);
                self.count("errors.git", 1);
                self.former_due.failed(now);
                self.former = Some((commit.to_owned(), Some(why)));
            }
        }
    }

    /// Has the commit that is served read again: what makes plans from it is no longer at hand.
    pub(super) fn lacks_planner(&mut self) {
        if let Some(head) = self.head.as_ref().filter(|_| self.former.is_none()) {
            self.former = Some((head.commit.clone(), None));
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::reconcile::fixture::{Story, at};
    use crate::reconcile::{Event, Kept, Signal};

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
        assert_eq!(
            served(&story),
            None,
            "it has only read of 3 that it is, and plans from nothing else"
        );
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
