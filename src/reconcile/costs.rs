//! What the fleet cost from moment to moment, as plans found it.

use jiff::Timestamp;

use crate::units::MicroUsd;

/// Most moments that are remembered.
const MOST: usize = 400;

/// What the fleet cost per hour, and since when; the newest last. This process remembers it alone: what plans came to that
/// were carried out is read back from their objects.
#[derive(Debug, Clone, Default)]
pub(super) struct Costs(Vec<(Timestamp, MicroUsd)>);

impl Costs {
    /// Notes what the fleet costs at a moment.
    pub(super) fn note(&mut self, at: Timestamp, hourly: MicroUsd) {
        if self.0.last().is_some_and(|(_, last)| *last == hourly) {
            return;
        }
        self.0.push((at, hourly));
        if self.0.len() > MOST {
            // What is long ago is told with fewer steps.
            let mut index = 0;
            self.0.retain(|_| {
                index += 1;
                index > MOST / 2 || index % 2 == 1
            });
        }
    }

    pub(super) fn all(&self) -> &[(Timestamp, MicroUsd)] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plan::Plan;
    use crate::reconcile::fixture::{Story, at, world};
    use crate::reconcile::{Event, Mode};
    use crate::render::fixture as plans;

    #[test]
    fn what_plans_find_is_told_and_what_one_with_errors_finds_is_not() {
        let mut story = Story::of(Mode::Observe);
        for (second, hourly, errored) in [(10, 5, false), (20, 9, true), (30, 7, false)] {
            story.change(|state| state.replan_at = at(second));
            story.next(second, Event::World(Arc::new(world(second))));
            let mut plan = Plan { errored, ..plans::plan() };
            plan.capacity.cost.hourly_before = MicroUsd(hourly);
            story.planned(second, plan);
        }
        let expected = [(at(10), MicroUsd(5)), (at(30), MicroUsd(7))];
        assert_eq!(story.state().status().costs, expected);
    }

    #[test]
    fn each_change_is_remembered_and_what_is_long_ago_with_fewer_steps() {
        let mut costs = Costs::default();
        for (second, price) in [(1, 5), (2, 5), (3, 7), (4, 5)] {
            costs.note(at(second), MicroUsd(price));
        }
        let expected = [(at(1), MicroUsd(5)), (at(3), MicroUsd(7)), (at(4), MicroUsd(5))];
        assert_eq!(costs.all(), expected);
        for second in 5..10_000 {
            costs.note(at(second), MicroUsd(second));
        }
        let all = costs.all();
        assert!((MOST / 2..=MOST).contains(&all.len()), "{}", all.len());
        assert_eq!(
            (all.first(), all.last()),
            (expected.first(), Some(&(at(9_999), MicroUsd(9_999))))
        );
        assert!(all.is_sorted(), "the newest last");
    }
}
