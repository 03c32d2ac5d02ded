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

    /// Has plans be made from `head` from now on.
    fn serves(&mut self, head: Arc<Head>) {
        self.newer = None;
        self.former = None;
        if let Some(kept) = &mut self.kept {
            kept.served = Some(head.commit.clone());
            kept.waits_until = None;
        }
        // As with any other autoscaler: what is not taken off yet is for others to see, and plans are made anew.
        if head.auto_mode != self.head.as_ref().is_some_and(|served| served.auto_mode) {
            self.mail.clear();
            self.replan_at = self.now;
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
