//! What a fleet owes to luck: the same orders again, each time with ties broken otherwise.
//!
//! The runs of a rehearsal draw each order once. On a small fleet one tie may decide whether the last
//! pod finds a place, so a fleet that passed them is drawn many more times; a draw in which a pod
//! waits becomes one of the runs, and nodes are added until it passes as well. How many draws there
//! are is counted in work. Above some size none are made: there, many ties even out.

use std::sync::PoisonError;

use super::play::Cast;
use super::rehearse::{Settled, Stage};
use super::runs::{Run, draws, planned_pods};
use super::settle::is_rehearsed;

/// Times that nodes are looked for on account of a draw.
const MENDED_MAX: usize = 12;

impl Stage<'_> {
    /// Returns the fleet with what it takes for every draw to find each of its pods a place; a draw
    /// for which no nodes bring that about is passed over, and may leave the same pods over later.
    pub(super) fn hardened(&self, settled: Settled) -> Settled {
        let packed = settled.packed;
        let (mut best, mut from) = (settled, 0);
        for _ in 0..MENDED_MAX {
            let Some((at, run)) = self.unlucky(&best, from) else { break };
            self.remember(run);
            match self.mended(&best) {
                Some(better) if better.unplaced == best.unplaced => best = better,
                Some(_) | None => {
                    self.forget_last();
                    from = at + 1;
                }
            }
        }
        Settled { packed, ..best }
    }

    /// Returns whether `next` holds as well as `current` does, whatever is drawn.
    pub(super) fn is_as_sure(&self, next: &Settled, current: &Settled) -> bool {
        self.unlucky(next, 0).is_none() || self.unlucky(current, 0).is_some()
    }

    /// Returns the first draw, of those from the one numbered `from` on, in which a pod waits that the
    /// fleet has a place for.
    fn unlucky(&self, settled: &Settled, from: usize) -> Option<(usize, Run)> {
        if !is_rehearsed(self.groups) {
            return None;
        }
        let scene = self.scene(&settled.layout, &settled.offers);
        let guided = self.steered.then(|| self.guided(&settled.layout, &scene));
        let cast = Cast { unplaced: &settled.unplaced, guided: guided.as_ref() };
        let draws = draws(planned_pods(self.groups), scene.nodes());
        let played = self.play_all(&scene, draws.get(from..)?, cast);
        let is_left = played.last().is_some_and(|last| !last.left.is_empty());
        let at = from + played.len().checked_sub(1)?;
        is_left.then(|| (at, draws[at]))
    }

    /// Makes a draw one of the runs.
    fn remember(&self, run: Run) {
        self.unlucky.lock().unwrap_or_else(PoisonError::into_inner).push(run);
    }

    fn forget_last(&self) {
        self.unlucky.lock().unwrap_or_else(PoisonError::into_inner).pop();
    }

    /// Returns the draws that were made runs.
    pub(super) fn remembered(&self) -> Vec<Run> {
        self.unlucky.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
