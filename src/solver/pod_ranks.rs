//! Pods ranked by priority.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::greedy_packing::Packing;
use super::packing_model::PackingModel;
use crate::demand::PodGroup;

/// Pods counted by priority, for a packing that a limit ends before all pods are placed. There each
/// pod counts, whatever its room costs. Pods of a lower priority count only among equals, because
/// no number of them makes up for a pod of a higher one.
pub(super) struct PodRanks {
    /// Number of distinct priorities.
    levels: usize,
    /// For each class, the number of priorities above the highest one of its pods.
    ranks: Vec<usize>,
    /// Classes, the highest priority first, and the least costly first among equals.
    pub order: Vec<usize>,
}

impl PodRanks {
    pub(super) fn new(model: &PackingModel, groups: &[PodGroup]) -> Self {
        let priority = |group: usize| groups[group].shape.priority;
        let priorities: Vec<i32> = model
            .classes
            .iter()
            .map(|class| class.groups().map(priority).max().unwrap_or(0))
            .collect();
        let distinct: BTreeSet<Reverse<i32>> = priorities.iter().copied().map(Reverse).collect();
        let rank = |priority: &i32| distinct.range(..Reverse(*priority)).count();
        let ranks: Vec<usize> = priorities.iter().map(rank).collect();
        let mut order: Vec<usize> = (0..ranks.len()).collect();
        order.sort_by_key(|class| (ranks[*class], model.classes[*class].value, *class));
        Self { levels: distinct.len(), ranks, order }
    }

    /// Returns the ranks in which these classes precede others of the same priority.
    pub(super) fn with_first(mut self, is_first: &[bool]) -> Self {
        let ranks = &self.ranks;
        self.order.sort_by_key(|class| (ranks[*class], !is_first[*class]));
        self
    }

    /// Returns the remaining pods of each priority, highest first.
    pub(super) fn left_by_priority(&self, packing: &Packing) -> Vec<u64> {
        self.by_priority(packing.left.iter().copied().enumerate())
    }

    /// Returns the number of pods of each priority, highest first. `pods` holds classes with their
    /// pods.
    pub(super) fn by_priority(&self, pods: impl Iterator<Item = (usize, u32)>) -> Vec<u64> {
        let mut sums = vec![0_u64; self.levels];
        for (class, count) in pods {
            sums[self.ranks[class]] += u64::from(count);
        }
        sums
    }
}
