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

/// The observations that were planned over.
#[derive(Default)]
pub(super) struct PlanStability {
    /// Last full planning request of each replica.
    requests: BTreeMap<usize, PlanQuestion>,
    /// Observation whose plan had no changes, and its commit.
    unchanged: Option<(String, Arc<Observed>)>,
    /// Time of the last release by image term.
    released: BTreeMap<String, Timestamp>,
}

/// A planning request.
struct PlanQuestion {
    commit: String,
    world: Arc<Observed>,
    /// Plan that the replica held before. The replica plans over one observation repeatedly, with
    /// more terminating instances each time. Commit and time alone do not identify the answer.
    held: Option<Arc<Plan>>,
}

impl PlanStability {
    /// Forgets the request of a process that has ended.
    pub(super) fn record_restart(&mut self, replica: usize) {
        self.requests.remove(&replica);
    }

    /// Records a full planning request and the plan that the replica holds.
    pub(super) fn record_request(&mut self, replica: usize, effect: &Effect, status: &Status) {
        if let Effect::Plan { commit, world, limits, .. } = effect
            && limits.is_unlimited()
        {
            let held = status.plan.as_ref().map(|now| Arc::clone(&now.plan));
            let (commit, world) = (commit.clone(), Arc::clone(world));
            self.requests.insert(replica, PlanQuestion { commit, world, held });
        }
    }

    /// Checks the plan that a replica holds. Returns the violation.
    pub(super) fn check_plan(&mut self, replica: usize, status: &Status) -> Option<String> {
        let plan = &status.plan.as_ref()?.plan;
        let base = &plan.capacity.base;
        let PlanQuestion { commit, world, held } = self.requests.get(&replica)?;
        // The replica may still hold an earlier plan.
        let is_older = held.as_ref().is_some_and(|held| Arc::ptr_eq(held, plan))
            || base.commit.as_ref() != Some(commit)
            || base.world.taken_at != world.taken_at;
        if is_older {
            return None;
        }
        let PlanQuestion { commit, world, held: _ } = self.requests.remove(&replica)?;
        let changes = plan.capacity.waves.iter().any(|wave| !wave.addresses.is_empty());
        if !changes && !plan.errored {
            self.unchanged = Some((commit, world));
            return None;
        }
        let (rested, before) = self.unchanged.as_ref()?;
        if *rested != commit
            || !is_same(before, &world)
            || has_timed_do_not_disrupt(&world)
            || has_unready_instance(&world)
        {
            return None;
        }
        let moved = rows(plan, WaveStep::Retire).map(|row| &row.address).find(|address| {
            let mut explained = plan.capacity.explain.iter();
            explained.find(|row| row.address == **address).is_some_and(|row| !is_expiry(row))
        })?;
        Some(format!("{moved} is removed from a fleet without changes before"))
    }
}

/// Returns whether a row is removed only because time has passed.
fn is_expiry(row: &ExplainRow) -> bool {
    matches!(because(row), Some(RetireReason::Expired { .. }))
}

/// Returns whether an instance is not Ready. A plan counts on it for a limited time only.
fn has_unready_instance(world: &Observed) -> bool {
    let mut instances = world.instances.values().filter(|instance| instance.is_active());
    instances.any(|instance| !world.node_for_instance(&instance.id).is_some_and(|node| node.ready))
}

/// Returns whether a pod has a `do-not-disrupt` duration, whose end allows new changes.
fn has_timed_do_not_disrupt(world: &Observed) -> bool {
    let of = |template: &Arc<PodTemplate>| DoNotDisrupt::from_annotations(&template.annotations);
    world.templates.values().any(|template| matches!(of(template), DoNotDisrupt::For(_)))
}

/// Returns whether two observations show the same fleet, regardless of their time.
fn is_same(a: &Observed, b: &Observed) -> bool {
    a.instances == b.instances
        && a.nodes == b.nodes
        && a.pods == b.pods
        && a.workloads == b.workloads
        && a.resolved == b.resolved
        && a.planned_pods == b.planned_pods
        && in_effect(a).eq(in_effect(b))
        && a.sources == b.sources
        && a.unread == b.unread
}

/// Returns the excluded offerings at the time of an observation.
fn in_effect(observation: &Observed) -> impl Iterator<Item = &Exclusion> {
    observation.exclusions.iter().filter(|exclusion| exclusion.until > observation.taken_at)
}

impl InvariantChecks {
    pub(crate) fn record_image_release(&mut self, words: &str, now: Timestamp) {
        self.plan_stability.released.insert(words.to_owned(), now);
    }

    /// Returns an instance that the plan replaces for its image, although no image was released
    /// since its launch.
    pub(super) fn replaced_without_release(&self, plan: &Plan) -> Option<String> {
        let explained = plan.capacity.explain.iter();
        let of_image = |row: &&ExplainRow| matches!(because(row), Some(RetireReason::Drifted { field, .. }) if field == "image");
        let drifted: Vec<&Address> = explained.filter(of_image).map(|row| &row.address).collect();
        let after: Vec<_> =
            rows(plan, WaveStep::Launch).filter_map(|row| row.change.after.as_ref()).collect();
        let removed = rows(plan, WaveStep::Retire).filter(|row| drifted.contains(&&row.address));
        removed.filter_map(|row| Some((row, row.change.before.as_ref()?))).find_map(
            |(row, before)| {
                let (since, change) = self.launched_instances.get(before.instance_id.as_ref()?)?;
                let words = self.approved.get(change)?.node.image.as_ref()?;
                let same = |after: &&&NodeState| {
                    after.pool == before.pool && after.image.as_ref() == Some(words)
                };
                after.iter().find(same)?;
                let newer = self.plan_stability.released.get(words).is_some_and(|at| at > since);
                let what = "is replaced for its image without a release since its launch";
                (!newer).then(|| format!("{} {what}", row.address))
            },
        )
    }
}

/// Returns an instance that drifts from its own replacement, although they are equal.
pub(super) fn drifts_from_replacement(plan: &Plan) -> Option<String> {
    let explained = plan.capacity.explain.iter();
    // Rows do not show the image ID. For an image drift, the terms are equal and resolve to another
    // image.
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
        // Pool, specification and labels are equal, so nothing differs.
        let like = launched.iter().find(|after| {
            after.pool == before.pool
                && after.spec_digest.as_ref() == Some(spec)
                && after.labels == before.labels
        });
        like.map(|_| format!("{} drifts from its own replacement", row.address))
    })
}
