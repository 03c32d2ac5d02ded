//! Hourly cost of the fleet over time, as plans report it.

use jiff::Timestamp;

use crate::model::units::MicroUsd;

/// Most entries that are stored.
const ENTRIES_MAX: usize = 400;

/// Hourly cost of the fleet with start times, the latest last. The history lives in this process:
/// costs of carried-out plans are read back from their objects.
#[derive(Debug, Clone, Default)]
pub(super) struct CostHistory(Vec<(Timestamp, MicroUsd)>);

impl CostHistory {
    /// Records the hourly cost at a time.
    pub(super) fn record(&mut self, at: Timestamp, hourly: MicroUsd) {
        if self.0.last().is_some_and(|(_, last)| *last == hourly) {
            return;
        }
        self.0.push((at, hourly));
        if self.0.len() > ENTRIES_MAX {
            // Older entries are thinned out.
            let mut index = 0;
            self.0.retain(|_| {
                index += 1;
                index > ENTRIES_MAX / 2 || index % 2 == 1
            });
        }
    }

    pub(super) fn entries(&self) -> &[(Timestamp, MicroUsd)] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::Mode;
    use crate::plan::Plan;
    use crate::testing::controller::{ControllerHarness, at, world};
    use crate::testing::sample_plan;

    #[test]
    fn costs_of_plans_with_errors_are_ignored() {
        let mut harness = ControllerHarness::with_mode(Mode::Observe);
        for (second, hourly, errored) in [(10, 5, false), (20, 9, true), (30, 7, false)] {
            harness.modify(|state| state.planning.replan_at = at(second));
            harness.observe(second, world(second));
            let mut plan = Plan { errored, ..sample_plan::plan() };
            plan.capacity.cost.hourly_before = MicroUsd(hourly);
            harness.finish_planning(second, plan);
        }
        let expected = [(at(10), MicroUsd(5)), (at(30), MicroUsd(7))];
        assert_eq!(harness.state().status().hourly_costs, expected);
    }

    #[test]
    fn changes_are_stored_and_older_ones_thinned_out() {
        let mut costs = CostHistory::default();
        for (second, price) in [(1, 5), (2, 5), (3, 7), (4, 5)] {
            costs.record(at(second), MicroUsd(price));
        }
        let expected = [(at(1), MicroUsd(5)), (at(3), MicroUsd(7)), (at(4), MicroUsd(5))];
        assert_eq!(costs.entries(), expected);
        for second in 5..10_000 {
            costs.record(at(second), MicroUsd(second));
        }
        let all = costs.entries();
        assert!((ENTRIES_MAX / 2..=ENTRIES_MAX).contains(&all.len()), "{}", all.len());
        assert_eq!(
            (all.first(), all.last()),
            (expected.first(), Some(&(at(9_999), MicroUsd(9_999))))
        );
        assert!(all.is_sorted(), "the newest last");
    }
}
