//! I16: equal fleets get equal plans, and identical nodes do not drift.

use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright::controller::{Effect, Status};
use fleetwright::demand::DoNotDisrupt;
use fleetwright::model::ids::Address;
use fleetwright::model::observed::{Exclusion, Observed};
use fleetwright::model::pod::PodTemplate;
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{ExplainRow, NodeState, RetireReason, WaveStep};
use jiff::Timestamp;

use super::{InvariantChecks, because, rows};

/// What was planned over, by any life.
#[derive(Default)]
pub(super) struct PlanStability {
    /// What each replica has asked to have planned last, of everything.
    asked: BTreeMap<usize, PlanQuestion>,
    /// A fleet in which nothing was to change, and the commit.
    rests: Option<(String, Arc<Observed>)>,
    /// When a new image was last released behind words of node classes.
    released: BTreeMap<String, Timestamp>,
}

/// What a replica has asked to have planned.
struct PlanQuestion {
    commit: String,
    world: Arc<Observed>,
    /// The plan that it held then. One look is planned over more than once, with more instances going each time:
    /// neither commit nor moment tell whether a plan is the answer.
    held: Option<Arc<Plan>>,
}

impl PlanStability {
    /// Forgets what a life asked for that has ended.
    pub(super) fn restarted(&mut self, replica: usize) {
        self.asked.remove(&replica);
    }

    /// Notes what a replica has planned, which holds what `status` says.
    pub(super) fn asks(&mut self, replica: usize, effect: &Effect, status: &Status) {
        if let Effect::Plan { commit, world, limits, .. } = effect
            && limits.is_full()
        {
            let held = status.plan.as_ref().map(|now| Arc::clone(&now.plan));
            let (commit, world) = (commit.clone(), Arc::clone(world));
            self.asked.insert(replica, PlanQuestion { commit, world, held });
        }
    }

    /// Looks at the plan that a replica holds; returns what is wrong with it.
    pub(super) fn was_planned(&mut self, replica: usize, status: &Status) -> Option<String> {
        let plan = &status.plan.as_ref()?.plan;
        let base = &plan.capacity.base;
        let PlanQuestion { commit, world, held } = self.asked.get(&replica)?;
        // The plan that it holds may be an older one.
        let is_older = held.as_ref().is_some_and(|held| Arc::ptr_eq(held, plan))
            || base.commit.as_ref() != Some(commit)
            || base.world.taken_at != world.taken_at;
        if is_older {
            return None;
        }
        let PlanQuestion { commit, world, held: _ } = self.asked.remove(&replica)?;
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

/// Returns whether an instance is not Ready: after a while nobody counts on it any more.
fn boots(world: &Observed) -> bool {
    let mut machines = world.instances.values().filter(|instance| instance.is_active());
    machines.any(|machine| !world.node_for_instance(&machine.id).is_some_and(|node| node.ready))
}

/// Returns whether a pod asks not to be moved for a time: then time changes what may go.
fn has_pins(world: &Observed) -> bool {
    let of = |template: &Arc<PodTemplate>| DoNotDisrupt::from_annotations(&template.annotations);
    world.templates.values().any(|template| matches!(of(template), DoNotDisrupt::For(_)))
}

/// Returns whether two looks show the same fleet, whenever they were taken.
fn is_same(a: &Observed, b: &Observed) -> bool {
    a.instances == b.instances
        && a.nodes == b.nodes
        && a.pods == b.pods
        && a.workloads == b.workloads
        && a.resolved == b.resolved
        && in_effect(a).eq(in_effect(b))
        && a.sources == b.sources
}

/// Returns what is left out of a plan over a look because it was sold out, at the moment of the look.
fn in_effect(look: &Observed) -> impl Iterator<Item = &Exclusion> {
    look.exclusions.iter().filter(|exclusion| exclusion.until > look.taken_at)
}

impl InvariantChecks {
    /// Notes that a new image was released behind the words of a node class.
    pub(crate) fn image_was_released(&mut self, words: &str, now: Timestamp) {
        self.neutral.released.insert(words.to_owned(), now);
    }

    /// Returns an instance of a plan that is replaced by one of the same words for the image that they mean, while they mean the
    /// one that it was launched from.
    pub(super) fn replaced_for_nothing_newer(&self, plan: &Plan) -> Option<String> {
        let explained = plan.capacity.explain.iter();
        let of_image = |row: &&ExplainRow| matches!(because(row), Some(RetireReason::Drifted { field, .. }) if field == "image");
        let drifted: Vec<&Address> = explained.filter(of_image).map(|row| &row.address).collect();
        let after: Vec<_> =
            rows(plan, WaveStep::Launch).filter_map(|row| row.change.after.as_ref()).collect();
        let goes = rows(plan, WaveStep::Retire).filter(|row| drifted.contains(&&row.address));
        goes.filter_map(|row| Some((row, row.change.before.as_ref()?))).find_map(|(row, before)| {
            let (since, change) = self.machines.get(before.instance_id.as_ref()?)?;
            let words = self.approved.get(change)?.node.image.as_ref()?;
            let same = |after: &&&NodeState| {
                after.pool == before.pool && after.image.as_ref() == Some(words)
            };
            after.iter().find(same)?;
            let newer = self.neutral.released.get(words).is_some_and(|at| at > since);
            let what = "is replaced for its image, and none was released since it was launched";
            (!newer).then(|| format!("{} {what}", row.address))
        })
    }
}

/// Returns an instance of a plan that drifts from what is launched in its place, where they are alike.
pub(super) fn drifts_from_itself(plan: &Plan) -> Option<String> {
    let explained = plan.capacity.explain.iter();
    // What it was made with no row of a plan shows: there the words are alike, and what they mean is another.
    let is_alike = |because: &RetireReason| {
        let RetireReason::Drifted { field, is, declared } = because else { return false };
        field != "image" || declared.split(' ').next() == Some(is)
    };
    let drifted = explained.filter(|row| because(row).is_some_and(is_alike));
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
