//! I16: whoever plans over the same fleet comes to the same, and nothing drifts from its like.

use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright::demand::Pin;
use fleetwright::fleet::Observed;
use fleetwright::ids::Address;
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{ExplainRow, RetireReason, WaveStep};
use fleetwright::pod::PodTemplate;
use fleetwright::reconcile::{Effect, Status};

use super::{because, rows};

/// What was planned over, by any life.
#[derive(Default)]
pub(super) struct Neutral {
    /// What each replica has asked to have planned, of everything.
    asked: BTreeMap<usize, (String, Arc<Observed>)>,
    /// A fleet in which nothing was to change, and the commit.
    rests: Option<(String, Arc<Observed>)>,
}

impl Neutral {
    /// Forgets what a life asked for that has ended.
    pub(super) fn restarted(&mut self, replica: usize) {
        self.asked.remove(&replica);
    }

    /// Notes what a replica has planned.
    pub(super) fn asks(&mut self, replica: usize, effect: &Effect) {
        if let Effect::Plan { commit, world, limits, .. } = effect
            && limits.is_none()
        {
            self.asked.insert(replica, (commit.clone(), Arc::clone(world)));
        }
    }

    /// Looks at the plan that a replica holds; returns what is wrong with it.
    pub(super) fn was_planned(&mut self, replica: usize, status: &Status) -> Option<String> {
        let plan = &status.plan.as_ref()?.plan;
        let base = &plan.capacity.base;
        let (commit, world) = self.asked.get(&replica)?;
        // The plan that it holds may be an older one.
        if base.commit.as_ref() != Some(commit) || base.world.taken_at != world.taken_at {
            return None;
        }
        let (commit, world) = self.asked.remove(&replica)?;
        let changes = plan.capacity.waves.iter().any(|wave| !wave.addresses.is_empty());
        if !changes && !plan.errored {
            self.rests = Some((commit, world));
            return None;
        }
        let (rested, before) = self.rests.as_ref()?;
        if *rested != commit || !is_same(before, &world) || has_pins(&world) || boots(&world) {
            return None;
        }
        let moved = rows(plan, WaveStep::Retire).map(|row| &row.address).find(|address| {
            let mut explained = plan.capacity.explain.iter();
            explained.find(|row| row.address == **address).is_some_and(|row| !is_of_time(row))
        })?;
        Some(format!("{moved} goes from a fleet in which nothing was to change before"))
    }
}

/// Returns whether a row goes because time has passed, and nothing else.
fn is_of_time(row: &ExplainRow) -> bool {
    matches!(because(row), Some(RetireReason::Expired { .. }))
}

/// Returns whether a machine is not Ready: after a while nobody counts on it any more.
fn boots(world: &Observed) -> bool {
    let mut machines = world.instances.values().filter(|instance| instance.is_active());
    machines.any(|machine| !world.node_of(&machine.id).is_some_and(|node| node.ready))
}

/// Returns whether a pod asks not to be moved for a time: then time changes what may go.
fn has_pins(world: &Observed) -> bool {
    let of = |template: &Arc<PodTemplate>| Pin::of(&template.annotations);
    world.templates.values().any(|template| matches!(of(template), Pin::For(_)))
}

/// Returns whether two looks show the same fleet, whenever they were taken.
fn is_same(a: &Observed, b: &Observed) -> bool {
    a.instances == b.instances
        && a.nodes == b.nodes
        && a.pods == b.pods
        && a.workloads == b.workloads
        && a.exclusions == b.exclusions
        && a.sources == b.sources
}

/// Returns a machine of a plan that drifts from what is launched in its place, where they are alike.
pub(super) fn drifts_from_itself(plan: &Plan) -> Option<String> {
    let explained = plan.capacity.explain.iter();
    let drifted =
        explained.filter(|row| matches!(because(row), Some(RetireReason::Drifted { .. })));
    let drifted: Vec<&Address> = drifted.map(|row| &row.address).collect();
    let launched: Vec<_> =
        rows(plan, WaveStep::Launch).filter_map(|row| row.change.after.as_ref()).collect();
    rows(plan, WaveStep::Retire).filter(|row| drifted.contains(&&row.address)).find_map(|row| {
        let before = row.change.before.as_ref()?;
        let spec = before.spec_digest.as_ref()?;
        // Of the same specification, and of the same pool: nothing of it is another.
        let like = launched.iter().find(|after| {
            after.pool == before.pool
                && after.spec_digest.as_ref() == Some(spec)
                && after.labels == before.labels
        });
        like.map(|_| format!("{} drifts from what is launched in its place", row.address))
    })
}
