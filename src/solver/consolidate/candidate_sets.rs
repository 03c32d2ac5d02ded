//! The sets of nodes that a consolidation tries to remove.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::super::disruption_budget::DisruptionBudgets;
use super::super::layout::Layout;
use super::super::node_disposition::NodeDisposition;
use super::{ConsolidationSearch, Scope, price_or_minimum};

/// Maximum number of candidates for which pairs are tried.
const PAIRS_MAX: usize = 16;

/// Number of nodes tried alone in one round, most wasteful first.
const SINGLES_MAX: usize = 96;
const SINGLES_MIN: usize = 8;

/// Work limit of all single-node tries of a round, in classes times nodes.
const SINGLES_WORK: usize = 2_000_000;

impl ConsolidationSearch<'_, '_> {
    /// Returns the nodes that may be removed, most wasteful first.
    pub(super) fn candidates(&self, layout: &Layout) -> Vec<usize> {
        let existing = self.problem.existing;
        let is_removable = |i: &usize| match existing[*i].disposition {
            NodeDisposition::Consolidatable => {
                layout.staying[*i].is_empty() || existing[*i].price.is_some()
            }
            NodeDisposition::RemoveWhenEmpty(_) => !self.occupied.contains(&existing[*i].name),
            NodeDisposition::Keep(_) | NodeDisposition::Retire(_) => false,
        };
        let retained = (0..existing.len()).filter(|i| layout.retained[*i]);
        let mut candidates: Vec<usize> = retained.filter(is_removable).collect();
        candidates.sort_by_key(|i| (Reverse(self.unused_price(layout, *i)), *i));
        candidates
    }

    /// Returns the sets of nodes to try: all empty nodes, each candidate alone, pairs if there are
    /// few candidates, and the 2, 3, 4, 6, 9, … most wasteful together up to all.
    fn candidate_sets(&self, layout: &Layout) -> Vec<Vec<usize>> {
        let candidates = self.candidates(layout);
        let is_empty = |i: &usize| layout.staying[*i].is_empty();
        let is_consolidatable =
            |i: &usize| self.problem.existing[*i].disposition == NodeDisposition::Consolidatable;
        let empty: Vec<usize> = candidates.iter().copied().filter(is_empty).collect();
        let consolidatable: Vec<usize> =
            candidates.iter().copied().filter(is_consolidatable).collect();
        let mut sets: Vec<Vec<usize>> =
            candidates.iter().take(self.singles_max()).map(|i| vec![*i]).collect();
        if consolidatable.len() <= PAIRS_MAX {
            for (at, first) in consolidatable.iter().enumerate() {
                sets.extend(consolidatable[at + 1..].iter().map(|second| vec![*first, *second]));
            }
        }
        let mut size = 2;
        while size < consolidatable.len() {
            sets.push(consolidatable[..size].to_vec());
            size += (size / 2).max(1);
        }
        sets.extend([empty, consolidatable].into_iter().filter(|set| set.len() > 1));
        sets
    }

    /// Returns the candidate sets without the nodes that disruption budgets block, and without
    /// duplicates.
    pub(super) fn removal_sets(&self, layout: &Layout, scope: Scope) -> Vec<Vec<usize>> {
        let budgets = match scope {
            Scope::WithoutMoves | Scope::WithinBudgets => self.remaining_budgets(layout),
            Scope::InSteps { .. } => DisruptionBudgets::default(),
        };
        let mut seen = BTreeSet::new();
        let sets = self.candidate_sets(layout).into_iter();
        let allowed = sets.map(|set| budgets.allowed_subset(set, self.problem.existing));
        allowed.filter(|set| !set.is_empty() && seen.insert(set.clone())).collect()
    }

    /// Returns the budgets that remain after the removals of a layout.
    pub(super) fn remaining_budgets(&self, layout: &Layout) -> DisruptionBudgets {
        let existing = self.problem.existing.iter().zip(&layout.retained);
        let removed = existing.filter(|(_, retained)| !**retained);
        self.problem.budgets.after_removing(removed.map(|(node, _)| &node.name))
    }

    /// Returns the number of nodes tried alone in one round; fewer if each try is more work.
    pub(super) fn singles_max(&self) -> usize {
        let model = self.problem.model;
        let work = model.classes.len().saturating_mul(model.bins.len()).max(1);
        (SINGLES_WORK / work).clamp(SINGLES_MIN, SINGLES_MAX)
    }

    /// Returns the price of a node less the value of its pods.
    fn unused_price(&self, layout: &Layout, node: usize) -> i128 {
        let value =
            |(class, n): (&usize, &u32)| self.problem.model.classes[*class].value * i128::from(*n);
        let used: i128 = layout.pods_on[node].iter().map(value).sum();
        i128::from(price_or_minimum(&self.problem.existing[node]).0) * 1000 - used
    }
}
