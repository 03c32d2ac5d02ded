//! What a fleet owes to luck: the same orders again, each time with ties broken otherwise.
//!
//! The runs of a rehearsal draw each order once. On a small fleet one tie may decide whether the last
//! pod finds a place, so a fleet that passed them is drawn many more times; a draw in which a pod
//! waits becomes one of the runs, and nodes are added until it passes as well. Some draws no node
//! mends, such as those that have the first of pods which must share a node go to a small one: they
//! are told. How many draws there are is counted in work. Above some size none are made: there, many
//! ties even out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use super::Purpose;
use super::play::Cast;
use super::rehearse::{Settled, Stage};
use super::runs::{Run, draws, planned_pods};
use super::settle::is_rehearsed;

/// Workloads that are named of those whose pods wait.
const NAMED_MAX: usize = 3;

/// Times that nodes are looked for on account of a draw.
const MENDED_MAX: usize = 12;

impl Stage<'_> {
    /// Returns the fleet with what it takes for each draw to find each of its pods a place, but for
    /// draws that no nodes mend.
    pub(super) fn hardened(&self, settled: Settled) -> Settled {
        if self.purpose == Purpose::Estimate {
            return settled;
        }
        let packed = settled.packed;
        let (mut best, mut hopeless) = (settled, BTreeSet::new());
        for _ in 0..MENDED_MAX {
            let draws = self.draws(&best, 0);
            let Some(at) = self.unlucky(&best, &draws, &hopeless) else { break };
            self.remember(draws[at]);
            match self.mended(&best) {
                Some(better) if better.unplaced == best.unplaced => best = better,
                Some(_) | None => {
                    self.forget_last();
                    hopeless.insert(at);
                }
            }
        }
        Settled { packed, ..best }
    }

    /// Returns whether `next` leaves no pod over in a draw in which `current` leaves none; at least so
    /// many draws are made, whatever the size.
    pub(super) fn is_as_sure(&self, next: &Settled, current: &Settled, least: u64) -> bool {
        let draws = self.draws(next, least);
        let mut passed_over = BTreeSet::new();
        while let Some(at) = self.unlucky(next, &draws, &passed_over) {
            if self.unlucky(current, &draws[at..=at], &BTreeSet::new()).is_none() {
                return false;
            }
            passed_over.insert(at);
        }
        true
    }

    /// Says, where that is so, in how many draws pods wait that the fleet has a place for, and whose.
    pub(super) fn luck_text(&self, settled: &Settled) -> Option<String> {
        let draws = self.draws(settled, 0);
        self.unlucky(settled, &draws, &BTreeSet::new())?;
        let scene = self.scene(&settled.layout, &settled.offers);
        let guided = self.steered.then(|| self.guided(&settled.layout, &scene));
        let cast = Cast { unplaced: &settled.unplaced, guided: guided.as_ref() };
        let left = draws.iter().map(|draw| self.play_one(&scene, *draw, cast).left);
        let left: Vec<BTreeMap<usize, u32>> = left.filter(|left| !left.is_empty()).collect();
        let of = |group: &usize| &self.groups[*group].workload;
        let whose: BTreeSet<_> = left.iter().flat_map(BTreeMap::keys).map(of).collect();
        let named: Vec<String> = whose.iter().take(NAMED_MAX).map(ToString::to_string).collect();
        let beyond = whose.len() - named.len();
        let more = if beyond > 0 { format!(" and {beyond} more") } else { String::new() };
        Some(format!(
            "in {} of {} further draws, with other ties or nodes in another order, pods of {}{more} wait \
             that have a place in every order named: no further node was found to help",
            left.len(),
            draws.len(),
            named.join(", "),
        ))
    }

    fn draws(&self, settled: &Settled, least: u64) -> Vec<Run> {
        if !is_rehearsed(self.groups) {
            return Vec::new();
        }
        let kept = settled.layout.kept.iter().filter(|kept| **kept).count();
        draws(planned_pods(self.groups), kept + settled.offers.len(), least)
    }

    /// Returns the first of the draws, but for some, in which a pod waits that the fleet has a place for.
    fn unlucky(
        &self,
        settled: &Settled,
        draws: &[Run],
        passed_over: &BTreeSet<usize>,
    ) -> Option<usize> {
        let scene = self.scene(&settled.layout, &settled.offers);
        let guided = self.steered.then(|| self.guided(&settled.layout, &scene));
        let cast = Cast { unplaced: &settled.unplaced, guided: guided.as_ref() };
        let looked_at: Vec<usize> =
            (0..draws.len()).filter(|draw| !passed_over.contains(draw)).collect();
        let runs: Vec<Run> = looked_at.iter().map(|draw| draws[*draw]).collect();
        let played = self.play_all(&scene, &runs, cast);
        let is_left = played.last().is_some_and(|last| !last.left.is_empty());
        is_left.then(|| looked_at[played.len() - 1])
    }

    /// Makes a draw one of the runs.
    fn remember(&self, run: Run) {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner).push(run);
    }

    fn forget_last(&self) {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner).pop();
    }

    /// Returns the draws that were made runs.
    pub(super) fn remembered(&self) -> Vec<Run> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
