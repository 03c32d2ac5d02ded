//! Plans again before an apply.

use std::cell::RefCell;

use super::console::Console;
use super::repository::Repository;
use crate::apply::{Replan, Replanned};
use crate::catalog::Catalog;
use crate::model::observed::Observed;
use crate::plan::wire::{Base, BaseWorld, Decider};
use crate::plan::{PinnedPlan, Plan, difference, planned_pods};
use crate::planner::{self, Inputs, Scope};
use crate::render::difference_text;

/// The inputs of the repeated plan.
#[derive(Debug)]
pub(super) struct Replanner<'a> {
    pub(super) repository: &'a Repository,
    pub(super) catalog: &'a Catalog,
    /// The last repeated plan.
    now: RefCell<Option<Plan>>,
}

impl<'a> Replanner<'a> {
    pub(super) fn new(repository: &'a Repository, catalog: &'a Catalog) -> Self {
        Self { repository, catalog, now: RefCell::new(None) }
    }

    /// Shows the difference between the approved plan and the current one. It is advice alone.
    pub(super) fn show_difference(&self, approved: &Plan, console: &mut Console) {
        let Some(now) = self.now.take() else { return };
        let text = difference_text(&difference(approved, &now), &console.message_style());
        // The repeated plan covers the whole fleet.
        let of = if approved.complete { "" } else { " of the whole fleet" };
        console.report_raw(&format!("\nThe approved plan, and the current plan{of}:\n\n{text}\n"));
    }
}

impl Replan for Replanner<'_> {
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        // No other task needs this thread.
        Box::pin(std::future::ready(self.pinned(plan, observed)))
    }
}

impl Replanner<'_> {
    fn pinned(&self, plan: &Plan, observed: &Observed) -> PinnedPlan {
        let base = &plan.capacity.base;
        let mut observed_now = observed.clone();
        observed_now.planned_pods = planned_pods(plan);
        // The approved plan counted these workloads as removed, because a compared revision
        // declared them.
        let removed = plan.capacity.demand.iter().filter(|row| row.decided_by == Decider::Removed);
        observed_now.mark_delivered(removed.map(|row| row.workload.clone()));
        let world = BaseWorld {
            name: base.world.name.clone(),
            cluster: observed.cluster.clone(),
            taken_at: observed.taken_at,
            sources: observed.sources.clone(),
        };
        let steer = plan.capacity.placement.unsteered.is_some();
        let pinned = planner::plan_pinned(
            &Inputs {
                desired: &self.repository.desired,
                observed: &observed_now,
                catalog: self.catalog,
                base: Base { world, preconditions: Vec::new(), ..base.clone() },
                // A plan for a future time stays at that time.
                at: observed.taken_at.max(plan.timestamp),
                demand: base.demand,
                is_forecast: false,
                scope: Scope::default(),
                settings: crate::solver::Settings { steer, ..self.repository.fleet.solve },
            },
            plan,
        );
        self.now.replace(Some(pinned.current.clone()));
        pinned
    }
}
