//! Replanning during an apply: before its first write, and before its removals.
//!
//! While launched nodes boot, a commit or an autoscaler may change what the launches are for. So
//! removals are judged by the planners of two commits: that of the plan, and the one planned last.
//! A newer commit counts once a plan of it has begun.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use jiff::SignedDuration;

use super::super::event::PodScope;
use super::super::gates::change_groups;
use super::super::inflight_launches::{PriorAttempts, tag_repeated_launches};
use super::super::launches_in_progress::{add_launches_of_plan, remove_launches};
use super::super::observation_diff::{is_demand_unchanged, is_same_observation};
use super::super::ports::RevisionPlanner;
use super::super::reconcile::{launched_rows, retired_rows};
use super::PlannerCache;
use crate::apply::{BatchPods, CalledOff, PlannedNodes, Replan, Replanned};
use crate::model::ids::{InstanceId, NodeName};
use crate::model::observed::{Instance, Observed};
use crate::plan::{Plan, RevalidatedPlan, planned_pods, planned_pods_at};

/// Maximum age of a plan that needs no replanning for an equal observation. Time-dependent changes
/// may become due later.
const REUSABLE_PLAN_AGE_MAX: SignedDuration = SignedDuration::from_secs(5);

const CALLED_OFF: &str = "the nodes are not replaced in this way any more; the next plan decides";

/// Replans without the interrupted instances.
pub(super) struct Revalidation<'p, P> {
    /// Planner of the commit of the plan.
    pub(super) planner: &'p P,
    pub(super) planners: PlannerCache<P>,
    pub(super) commit: String,
    /// True once the first write may have been made.
    pub(super) is_begun: Cell<bool>,
    pub(super) plan: Arc<Plan>,
    pub(super) excluded_instances: Vec<InstanceId>,
    /// Launches of the plan that repeat the request of an earlier plan.
    pub(super) repeated_launches: PriorAttempts,
    /// Launches of other applies that the plan counts as instances.
    pub(super) launches_in_progress: Vec<Instance>,
    pub(super) pods: PodScope,
    /// Observation of the plan, if it is the last plan.
    pub(super) planned_world: Option<Arc<Observed>>,
}

impl<P> Revalidation<'_, P> {
    /// Returns true if the plan was just made from an equal observation, so that replanning would
    /// not change it. A plan without removals is also valid while all its launches are still
    /// needed: pending pods must not wait because another node became Ready.
    fn is_still_valid(&self, world: &Observed) -> bool {
        self.planned_world.as_ref().is_some_and(|over| {
            let age = world.taken_at.duration_since(over.taken_at);
            let launches_needed =
                || retired_rows(&self.plan).next().is_none() && is_demand_unchanged(over, world);
            age.abs() <= REUSABLE_PLAN_AGE_MAX
                && (is_same_observation(over, world) || launches_needed())
        })
    }

    /// Returns true if pods that the plan expects on its launches do not exist.
    fn lacks_planned_pods(&self, world: &Observed) -> bool {
        let mut planned = PlannedNodes::default();
        for row in launched_rows(&self.plan) {
            let node = NodeName::from(row.address.as_str());
            planned.add(&node, &planned_pods_at(&self.plan, &row.address));
        }
        BatchPods::new(&self.plan, world, &planned, |_| false).are_missing
    }

    /// Returns true if `now` makes every removal of the plan, and launches as many nodes in place
    /// of each group of them. Launches for new pods do not count.
    fn is_still_planned(&self, now: &Plan) -> bool {
        let current = change_groups(now);
        let planned = change_groups(&self.plan);
        let planned: Vec<_> = planned.iter().filter(|group| group.removes > 0).collect();
        // Each launch of `now` takes the place of one launch of the plan, also if the groups differ.
        let removed: BTreeSet<_> = planned.iter().flat_map(|group| &group.removed).collect();
        let instead =
            current.iter().filter(|group| group.removed.iter().any(|id| removed.contains(id)));
        let launches: u32 = instead.map(|group| group.launches).sum();
        planned.iter().map(|group| group.launches).sum::<u32>() <= launches
            && planned.iter().all(|group| {
                let same = current.iter();
                let same = same.filter(|other| !other.removed.is_disjoint(&group.removed));
                let same: Vec<_> = same.collect();
                let launches: u32 = same.iter().map(|other| other.launches).sum();
                let is_removed =
                    |id: &InstanceId| same.iter().any(|other| other.removed.contains(id));
                group.removed.iter().all(is_removed) && group.launches <= launches
            })
    }
}

impl<P: RevisionPlanner> Revalidation<'_, P> {
    /// Returns the result if the world is as it was planned, and leads to the same plan. With the
    /// pods of the plan on their nodes, the search may end in another plan.
    async fn reproduced(&self, world: &Observed) -> Option<RevalidatedPlan> {
        let over = self.planned_world.as_ref().filter(|over| is_same_observation(over, world))?;
        let world = Observed {
            planned_pods: over.planned_pods.clone(),
            exclusions: over.exclusions.clone(),
            ..world.clone()
        };
        self.planner.reproduce(Arc::clone(&self.plan), Arc::new(world), self.pods).await
    }
}

impl<P> std::fmt::Debug for Revalidation<'_, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Revalidation")
            .field("excluded_instances", &self.excluded_instances)
            .finish_non_exhaustive()
    }
}

impl<P: RevisionPlanner> Replan for Revalidation<'_, P> {
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        Box::pin(async move {
            let mut world = Cow::Borrowed(observed);
            // A launch in progress may be interrupted as well.
            if !self.launches_in_progress.is_empty() {
                add_launches_of_plan(world.to_mut(), &self.launches_in_progress);
            }
            if !self.excluded_instances.is_empty() {
                world.to_mut().remove_instances(&self.excluded_instances.iter().cloned().collect());
            }
            let is_begun = self.is_begun.replace(true);
            // Later, `plan` may be a part of the plan: launches that failed are not in it.
            if !is_begun {
                if self.is_still_valid(&world) {
                    return RevalidatedPlan::as_approved(plan.clone());
                }
                if let Some(reproduced) = self.reproduced(&world).await {
                    return reproduced;
                }
            }
            let mut world = world.into_owned();
            world.planned_pods = planned_pods(plan);
            tag_repeated_launches(&mut world, &plan.capacity.plan_id, &self.repeated_launches);
            let (plan, world) = (Arc::new(plan.clone()), Arc::new(world));
            let newer = self.planners.newer_than(&self.commit).filter(|_| is_begun);
            if let Some(newer) = newer {
                let (plan, world) = (Arc::clone(&plan), Arc::clone(&world));
                let found = newer.revalidate(plan, world, self.pods).await;
                if found.removal_freeze().is_some() || found.blocked_removal.is_some() {
                    return found;
                }
            }
            // A newer commit does not loosen the rules of the plan.
            self.planner.revalidate(plan, world, self.pods).await
        })
    }

    fn call_off<'r>(
        &'r self,
        launched: &'r BTreeSet<InstanceId>,
        observed: &'r Observed,
    ) -> CalledOff<'r> {
        Box::pin(async move {
            let newer: Option<Rc<P>> = self.planners.newer_than(&self.commit);
            if newer.is_none() && !self.lacks_planned_pods(observed) {
                return None;
            }
            let mut world = observed.clone();
            world.remove_instances(&self.excluded_instances.iter().cloned().collect());
            remove_launches(&mut world, launched);
            let (plan, world) = (Arc::clone(&self.plan), Arc::new(world));
            let planner: &P = newer.as_deref().unwrap_or(self.planner);
            let found = planner.revalidate(plan, world, self.pods).await;
            // A launch without a permitted offering counts too: the next plan has present prices.
            let is_same = found.undeclared.is_empty() && self.is_still_planned(&found.current);
            // Errors of the inputs block the removals later.
            (!found.current.errored && !is_same).then(|| CALLED_OFF.to_owned())
        })
    }
}
