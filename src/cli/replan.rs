//! Planning again before an apply: the engine, asked by what carries plans out.

use std::cell::RefCell;

use super::console::Console;
use super::repository::Repository;
use crate::apply::{Replan, Replanned};
use crate::catalog::Catalog;
use crate::engine::{self, Inputs, Scope};
use crate::fleet::Observed;
use crate::plan::wire::{Base, BaseWorld, Decider};
use crate::plan::{Pinned, Plan, difference};
use crate::render::difference_text;

/// What a plan is made again from.
#[derive(Debug)]
pub(super) struct Again<'a> {
    pub(super) repository: &'a Repository,
    pub(super) catalog: &'a Catalog,
    /// What was planned last.
    now: RefCell<Option<Plan>>,
}

impl<'a> Again<'a> {
    pub(super) fn of(repository: &'a Repository, catalog: &'a Catalog) -> Self {
        Self { repository, catalog, now: RefCell::new(None) }
    }

    /// Shows the plan that would be made now beside the approved one: advice, which decides nothing.
    pub(super) fn show_beside(&self, approved: &Plan, console: &mut Console) {
        let Some(now) = self.now.take() else { return };
        let text = difference_text(&difference(approved, &now), &console.message_style());
        // Planning again decides over the whole fleet.
        let of = if approved.complete { "" } else { ", of everything" };
        console.say_raw(&format!(
            "\nThe approved plan, and the one that would be made now{of}:\n\n{text}\n"
        ));
    }
}

impl Replan for Again<'_> {
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        // Nothing else waits for this thread.
        Box::pin(std::future::ready(self.pinned(plan, observed)))
    }
}

impl Again<'_> {
    fn pinned(&self, plan: &Plan, observed: &Observed) -> Pinned {
        let base = &plan.capacity.base;
        let mut seen = observed.clone();
        // What the approved plan took for going, because a revision that it was compared with
        // declared it, is going now as well.
        let going = plan.capacity.demand.iter().filter(|row| row.decided_by == Decider::Removed);
        seen.deliver(going.map(|row| row.workload.clone()));
        let world = BaseWorld {
            name: base.world.name.clone(),
            cluster: observed.cluster.clone(),
            taken_at: observed.taken_at,
            sources: observed.sources.clone(),
        };
        let steer = plan.capacity.placement.unsteered.is_some();
        let pinned = engine::pinned(
            &Inputs {
                desired: &self.repository.desired,
                observed: &seen,
                catalog: self.catalog,
                base: Base { world, preconditions: Vec::new(), ..base.clone() },
                // A plan for a moment to come is still for that moment.
                at: observed.taken_at.max(plan.timestamp),
                demand: base.demand,
                is_forecast: false,
                scope: Scope::default(),
                settings: crate::solve::Settings { steer, ..self.repository.fleet.solve },
            },
            plan,
        );
        self.now.replace(Some(pinned.now.clone()));
        pinned
    }
}
