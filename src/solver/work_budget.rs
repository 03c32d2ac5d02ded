//! Limit of a search, in steps.
//!
//! A step is one pod tried on one node. Steps are counted and never timed, so that the result does
//! not depend on the computer.

/// Setup steps of one fleet that are free for a search: they matter only for fleets of thousands of
/// nodes.
const FREE_SETUP_STEPS: u64 = 1_000_000;

/// Steps that a search may take, and the steps that it took.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WorkBudget {
    max: u64,
    /// Setup steps of each simulated fleet that do not count against the limit.
    free_setup: u64,
    /// Steps that count against the limit.
    counted: u64,
    /// All steps, free ones included.
    taken: u64,
}

impl WorkBudget {
    /// Returns the budget of one search.
    pub(super) fn for_search(max: u64) -> Self {
        Self { max, free_setup: FREE_SETUP_STEPS, counted: 0, taken: 0 }
    }

    /// Returns the budget of many searches together, in which setup counts in full.
    pub(super) fn for_searches(max: u64) -> Self {
        Self { free_setup: 0, ..Self::for_search(max) }
    }

    /// Returns a budget without a limit.
    pub(super) fn unlimited() -> Self {
        Self::for_searches(u64::MAX)
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.counted > self.max
    }

    /// Counts attempts to place a pod on a node.
    pub(super) fn count(&mut self, steps: u64) {
        self.counted = self.counted.saturating_add(steps);
        self.taken = self.taken.saturating_add(steps);
    }

    /// Counts the setup of the nodes of one fleet.
    pub(super) fn count_setup(&mut self, steps: u64) {
        self.counted = self.counted.saturating_add(steps.saturating_sub(self.free_setup));
        self.taken = self.taken.saturating_add(steps);
    }

    /// Counts all steps of a search that had a budget of its own.
    pub(super) fn count_search(&mut self, search: &Self) {
        self.count(search.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_setup_is_free_for_a_search_and_counts_outside() {
        let mut search = WorkBudget::for_search(10);
        search.count_setup(FREE_SETUP_STEPS);
        search.count(10);
        assert!(!search.is_exhausted());
        let mut all = WorkBudget::for_searches(FREE_SETUP_STEPS + 10);
        all.count_search(&search);
        assert!(!all.is_exhausted());
        search.count(1);
        all.count(1);
        assert!(search.is_exhausted() && all.is_exhausted());
    }
}
