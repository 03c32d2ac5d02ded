//! The plan being made, the current full plan, and the plans that it superseded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::consolidate_after::PodEventTimes;
use super::cost_history::CostHistory;
use super::counters::Counter;
use super::event::{PlanScope, Ticket};
use super::interruption::PlannedReplacements;
use super::launches_ahead::LaunchesAhead;
use super::persisted_state::READY_WITHIN;
use super::reconcile::{instance_of, launched_rows, retired_rows};
use super::state::ControllerState;
use super::status::{Blocked, BlockedReason, Status, SupersededPlan};
use crate::apply::Receipt;
use crate::model::code::Code;
use crate::model::ids::{Address, Digest, InstanceId};
use crate::model::observed::{Instance, Node, NodeClassField, Observed, PlannedPods};
use crate::model::reason::{BlockReason, KeepReason};
use crate::model::saturating_time::later;
use crate::plan::wire::{
    Action, ExplainRow, PlacementMode, Reason, ResourceChange, UnschedulableRow, WaveStep,
    workload_key,
};
use crate::plan::{Plan, planned_pods_at, planned_pods_on, unmanaged_instances};

/// Minimum age of a plan that is recorded as superseded. Plans of a busy cluster change every
/// second, and each record costs two more writes.
const SUPERSEDED_AGE_MIN: SignedDuration = SignedDuration::from_mins(1);

/// How long confirmations survive plans from an observation with failed lookups. A lookup that
/// stays denied must not keep them forever.
const FAILED_LOOKUP_GRACE: SignedDuration = SignedDuration::from_mins(15);

/// The full plan that the controller pursues.
#[derive(Debug, Clone)]
pub(super) struct CurrentPlan {
    pub(super) plan: Arc<Plan>,
    pub(super) since: Timestamp,
    pub(super) blocked: BTreeMap<Address, Blocked>,
    /// Instances that the plan leaves alone because another owner manages them.
    pub(super) foreign_instances: BTreeSet<InstanceId>,
}

impl CurrentPlan {
    pub(super) fn new(plan: Arc<Plan>, since: Timestamp) -> Self {
        let of_others = unmanaged_instances(&plan).into_iter().cloned().collect();
        Self { plan, since, blocked: BTreeMap::new(), foreign_instances: of_others }
    }
}

/// Selects the plan to make from one observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlanningPass {
    /// An additive plan, made before the full plan because new pods are pending.
    AdditiveFirst,
    /// A full plan, narrowed so many times by its blocked changes.
    Narrowed(u32),
}

/// Inputs of a plan from the cluster.
#[derive(Debug, Clone)]
pub(super) struct PlanningInput {
    pub(super) world: Arc<Observed>,
    /// Interrupted instances, which the plan treats as gone.
    pub(super) interrupted: BTreeSet<InstanceId>,
    /// Launches of applies in progress that `world` has as instances.
    pub(super) launches_in_progress: Vec<Instance>,
}

/// A plan that is being made.
#[derive(Debug, Clone)]
pub(super) struct PlanningRun {
    pub(super) ticket: Ticket,
    pub(super) input: PlanningInput,
    pub(super) scope: PlanScope,
    /// True if the plan becomes the current one: its scope is as wide as the mode allows, and no
    /// apply is running.
    pub(super) is_published: bool,
    pub(super) pass: PlanningPass,
    /// Versions of the interruptions and terminations when planning started.
    pub(super) interruptions_version: u64,
    pub(super) terminations_version: u64,
    /// First observation that counted when planning started. A change makes the plan outdated.
    pub(super) required_observation: u64,
    /// Digest of the pools of the cluster when planning started, if the commit reads them.
    pub(super) cluster_pools: Option<String>,
}

/// Observation, commit and pools of the last plan.
#[derive(Debug, Clone)]
pub(super) struct LastPlanned {
    pub(super) world: Arc<Observed>,
    pub(super) commit: String,
    /// Digest of the pools of the cluster, if the commit reads them.
    pub(super) cluster_pools: Option<String>,
}

/// The plan being made, the current plan, and what the next plan depends on.
#[derive(Debug, Clone)]
pub(super) struct PlanningState {
    pub(super) run: Option<PlanningRun>,
    pub(super) current: Option<CurrentPlan>,
    /// Replacements that the last plan has for pods of interrupted instances.
    pub(super) replacements: PlannedReplacements,
    pub(super) last: Option<LastPlanned>,
    pub(super) replan_at: Timestamp,
    /// Version of the interruptions that the last plan counts.
    pub(super) interruptions_version: u64,
    pub(super) removal_planned_since: BTreeMap<InstanceId, Timestamp>,
    /// Failed lookups, and since when each fails.
    failed_lookups_since: BTreeMap<(NodeClassField, String), Timestamp>,
    /// Last pod event of each node, for `consolidateAfter`.
    pub(super) pod_event_times: PodEventTimes,
    /// Since when only additive plans are made.
    pub(super) additive_only_since: Option<Timestamp>,
    /// Version of the interruptions for which the last plan leaves nothing to do.
    pub(super) settled_version: Option<u64>,
    /// Version of the interruptions for which the last plan also leaves nothing to launch.
    pub(super) covered_version: Option<u64>,
    /// Plans that a newer plan replaced before they were applied, the newest first.
    pub(super) superseded: Vec<SupersededPlan>,
    pub(super) costs: CostHistory,
    /// Pods that the last plan places on launched instances that take no pods yet.
    pub(super) planned_pods: PlannedPods,
    /// Planned pods of each workload when nodes were last launched for it.
    pub(super) launched_demand: BTreeMap<String, u32>,
    /// Workloads that an unsteered plan with launches leaves unschedulable, since the first one.
    /// In another order of arrival, the launched nodes have room for them.
    pub(super) unplaced_since: BTreeMap<String, Timestamp>,
    /// Workloads for which nodes may be launched before their pods exist.
    pub(super) launches_ahead: LaunchesAhead,
    /// Plan with a group that exceeds the removal budget and has no part that could be planned.
    pub(super) inseparable: Option<Digest>,
    /// Since when the full plan is a mass removal that no commit explains.
    pub(super) unexplained_since: Option<Timestamp>,
}

/// Returns when the first instance of ours that is not Ready stops counting as starting. Plans place
/// pods on it until then.
pub(super) fn first_start_end(world: &Observed, now: Timestamp) -> Option<Timestamp> {
    let nodes = world.nodes_by_instance();
    let ours = world
        .instances
        .values()
        .filter(|instance| instance.is_active() && instance.is_managed_by(&world.cluster.name));
    let began_at = ours.filter_map(|instance| match nodes.get(&instance.id) {
        None => Some(instance.launched_at),
        Some(node) => (!node.ready || !node.taints.is_empty()).then_some(node.created_at),
    });
    began_at.map(start_end).filter(|end| *end > now).min()
}

/// Returns when an instance that is not Ready stops counting as starting.
fn start_end(began: Timestamp) -> Timestamp {
    // The last second still counts.
    later(later(began, READY_WITHIN), SignedDuration::from_secs(1))
}

/// Returns the number of pods of each workload that a plan counts.
pub(super) fn planned_demand(plan: &Plan) -> BTreeMap<String, u32> {
    let mut demand: BTreeMap<String, u32> = BTreeMap::new();
    for row in &plan.capacity.demand {
        let pods = demand.entry(workload_key(&row.workload)).or_default();
        *pods = pods.saturating_add(row.counts.planned);
    }
    demand
}

/// Returns the same without the pods of launches that the plan leaves out.
pub(super) fn demand_with_launches(plan: &Plan) -> BTreeMap<String, u32> {
    let mut demand = planned_demand(plan);
    for row in plan.capacity.unschedulable.iter().filter(|row| is_left_out(row)) {
        if let Some(pods) = demand.get_mut(&workload_key(&row.workload)) {
            *pods = pods.saturating_sub(row.pods);
        }
    }
    demand
}

/// Returns true if the plan leaves out a launch for these pods.
fn is_left_out(row: &UnschedulableRow) -> bool {
    row.reasons.iter().any(|rejection| rejection.reason == Code::LeftOut.as_str())
}

/// Returns true if one order of arrival leaves these pods over.
fn is_left_over(row: &UnschedulableRow) -> bool {
    row.reasons.iter().any(|rejection| rejection.reason == Code::LeftOver.as_str())
}

impl PlanningState {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            run: None,
            current: None,
            replacements: PlannedReplacements::default(),
            last: None,
            replan_at: now,
            interruptions_version: 0,
            removal_planned_since: BTreeMap::new(),
            failed_lookups_since: BTreeMap::new(),
            pod_event_times: PodEventTimes::default(),
            additive_only_since: None,
            settled_version: None,
            covered_version: None,
            superseded: Vec::new(),
            costs: CostHistory::default(),
            planned_pods: PlannedPods::new(),
            launched_demand: BTreeMap::new(),
            unplaced_since: BTreeMap::new(),
            launches_ahead: LaunchesAhead::default(),
            inseparable: None,
            unexplained_since: None,
        }
    }

    /// Takes over the planned pods of launched instances from a new plan. If it only distributes the
    /// same pods in another way, the nodes keep theirs: pods may be nominated already.
    fn update_planned_pods(&mut self, latest: PlannedPods, is_opening: bool) {
        let is_same = || pods_by_workload(&latest) == pods_by_workload(&self.planned_pods);
        if is_opening && is_same() {
            return;
        }
        // A plan from before a launch does not know its instance.
        self.planned_pods.extend(latest);
    }

    /// Notes how many pods of these workloads a plan expects that launches a node for them.
    pub(super) fn note_launched_demand(&mut self, plan: &Plan, pods: &BTreeMap<String, u32>) {
        for (workload, demand) in demand_with_launches(plan) {
            if pods.contains_key(&workload) {
                let launched = self.launched_demand.entry(workload).or_default();
                // A plan without some launches does not undo earlier ones.
                *launched = (*launched).max(demand);
            }
        }
    }

    /// Notes the workloads that an unsteered plan with launches leaves over for want of room. Other
    /// reasons are none that another order of arrival changes.
    pub(super) fn note_unplaced(&mut self, plan: &Plan, now: Timestamp) {
        if plan.capacity.placement.mode != PlacementMode::Unsteered {
            return;
        }
        let rows = plan.capacity.unschedulable.iter().filter(|row| is_left_over(row));
        let unplaced: BTreeMap<String, u32> =
            rows.map(|row| (workload_key(&row.workload), row.pods)).collect();
        self.note_launched_demand(plan, &unplaced);
        for workload in unplaced.into_keys() {
            self.unplaced_since.entry(workload).or_insert(now);
        }
    }

    /// Forgets the demand of launches that failed. Their pods need other nodes.
    pub(super) fn forget_failed_launches(&mut self, plan: &Plan, receipt: &Receipt) {
        let failed = receipt
            .outcomes
            .iter()
            .filter(|change| change.step == WaveStep::Launch && !change.outcome.is_settled());
        for change in failed {
            for workload in planned_pods_at(plan, &change.address).keys() {
                self.launched_demand.remove(workload);
            }
        }
    }

    /// Pods that are added after a scale-down are new.
    fn lower_launched_demand(&mut self, plan: &Plan) {
        for (workload, demand) in planned_demand(plan) {
            if let Some(launched) = self.launched_demand.get_mut(&workload) {
                *launched = (*launched).min(demand);
            }
        }
    }

    pub(super) fn current_digest(&self) -> Option<&Digest> {
        self.current.as_ref().map(|current| &current.plan.capacity.digest)
    }

    /// Notes that the plan leaves nothing to do, and whether it also leaves nothing to launch. A
    /// plan with excluded or blocked launches does not count as covered, nor does one that counts
    /// launches in progress: they may fail.
    pub(super) fn note_settled(&mut self, planning: &PlanningRun, plan: &Plan) {
        self.settled_version = Some(planning.interruptions_version);
        let whole =
            planning.scope.excluded_addresses.is_empty() && self.replacements.is_unblocked();
        let whole = whole && planning.input.launches_in_progress.is_empty();
        let all = whole && launched_rows(plan).next().is_none();
        self.covered_version = all.then_some(planning.interruptions_version);
    }

    /// Schedules the next plan for the time when the first blocked change is unblocked.
    pub(super) fn replan_when_unblocked(
        &mut self,
        blocked: &[(Address, BlockedReason)],
        now: Timestamp,
    ) {
        let ends = blocked.iter().filter_map(|(_, reason)| reason.ends_at());
        if let Some(first) = ends.min() {
            // Not immediately: a change that is still blocked would be blocked again.
            let soonest = later(now, SignedDuration::from_secs(1));
            self.replan_at = self.replan_at.min(first.max(soonest));
        }
    }

    /// Notes since when each failed lookup of a complete observation fails.
    pub(super) fn note_failed_lookups(&mut self, observed: &Observed, now: Timestamp) {
        let since = observed.resolved.unread.iter().map(|unread| {
            let of = (unread.part, unread.words.clone());
            let since = self.failed_lookups_since.get(&of).copied().unwrap_or(now);
            (of, since)
        });
        self.failed_lookups_since = since.collect();
    }

    /// Returns true if a lookup of the last planned observation has failed only recently.
    fn has_recent_failed_lookup(&self, now: Timestamp) -> bool {
        let Some(LastPlanned { world, .. }) = &self.last else { return false };
        world.resolved.unread.iter().any(|unread| {
            let since = self.failed_lookups_since.get(&(unread.part, unread.words.clone()));
            since.is_none_or(|since| now < later(*since, FAILED_LOOKUP_GRACE))
        })
    }

    /// Notes since when each instance is planned for removal without interruption.
    fn note_removals(&mut self, removed: BTreeSet<InstanceId>, now: Timestamp) {
        self.removal_planned_since.retain(|id, _| removed.contains(id));
        for id in removed {
            self.removal_planned_since.entry(id).or_insert(now);
        }
    }

    /// Records the current plan as superseded if it stood long enough. `is_untouched` is true if
    /// nothing of it was started.
    fn note_superseded(&mut self, by: &Digest, is_untouched: bool, now: Timestamp) {
        self.superseded.retain(|superseded| superseded.digest != *by);
        let Some(current) = self.current.as_ref().filter(|_| is_untouched) else { return };
        let mut rows = current.plan.resource_changes.iter();
        let changes = rows.any(|row| row.change.actions.iter().any(|a| *a != Action::NoOp));
        let may_go = changes && !current.plan.errored;
        if may_go && later(current.since, SUPERSEDED_AGE_MIN) <= now {
            let digest = current.plan.capacity.digest.clone();
            self.superseded.insert(0, SupersededPlan { digest, at: now });
            self.superseded.truncate(Status::SUPERSEDED_MAX);
        }
    }
}

/// Returns the rows whose node only a disruption budget of its pool keeps.
fn budget_delayed_rows(plan: &Plan) -> impl Iterator<Item = &ResourceChange> {
    let is_by_budget = |row: &&ExplainRow| {
        let Reason::Keep { because: KeepReason::Blocked { by } } = &row.reason else {
            return false;
        };
        matches!(by, BlockReason::Budget | BlockReason::BudgetZero)
    };
    let explained = plan.capacity.explain.iter().filter(is_by_budget);
    let addresses: BTreeSet<&Address> = explained.map(|row| &row.address).collect();
    plan.resource_changes.iter().filter(move |row| addresses.contains(&row.address))
}

/// Returns the number of planned pods of each workload.
fn pods_by_workload(planned: &PlannedPods) -> BTreeMap<&str, u32> {
    let mut pods = BTreeMap::new();
    for (workload, count) in planned.values().flatten().filter(|(_, count)| **count > 0) {
        *pods.entry(workload.as_str()).or_insert(0) += count;
    }
    pods
}

impl ControllerState {
    /// Makes a full plan current. `is_substitute` is true if its revision is the substitute of another.
    pub(super) fn set_current_plan(&mut self, plan: &Arc<Plan>, is_substitute: bool) {
        let (digest, now) = (&plan.capacity.digest, self.now);
        let current = self.planning.current.as_ref();
        let same = current.filter(|current| current.plan.capacity.digest == *digest);
        let since = same.map_or(now, |current| current.since);
        if same.is_none() {
            self.counters.count(Counter::PlansChanged);
            // A standby does not know what the leader or an apply has started.
            let led = self.leadership.leader_since();
            let is_untouched = current.is_some_and(|current| {
                led.is_some_and(|led| led <= current.since)
                    && !self.applies.has_started_since(current.since)
            });
            self.planning.note_superseded(digest, is_untouched, now);
        }
        self.planning.additive_only_since = None;
        let world = self.observation.latest.as_ref();
        let is_opening =
            self.steers() && world.is_some_and(|world| world.nodes.values().any(Node::is_closed));
        let latest =
            planned_pods_on(plan, |instance| self.planning.planned_pods.contains_key(instance));
        self.planning.update_planned_pods(latest, is_opening);
        self.planning.lower_launched_demand(plan);
        // A plan with errors withdraws no removal.
        if !plan.errored {
            self.planning.costs.record(now, plan.capacity.cost.hourly_before);
            let removed: BTreeSet<InstanceId> =
                retired_rows(plan).filter_map(instance_of).collect();
            // A failed lookup may remove a row for a while without any change of intent.
            let unread = self.planning.has_recent_failed_lookup(now);
            if let Some(persisted) =
                self.persistence.loaded.as_mut().filter(|_| !is_substitute && !unread)
            {
                // A confirmation is valid only while the removal stays planned.
                persisted.confirmed_removals.retain(|id| removed.contains(id));
            }
            // Removals that a disruption budget delays settle meanwhile.
            let delayed = budget_delayed_rows(plan).filter_map(instance_of);
            self.planning.note_removals(removed.into_iter().chain(delayed).collect(), now);
        }
        if let Some(persisted) = &mut self.persistence.loaded {
            persisted.record_approved_rows(plan);
        }
        self.planning.current = Some(CurrentPlan::new(Arc::clone(plan), since));
    }
}

#[cfg(test)]
mod tests {
    use crate::controller::{Event, PersistedState, Signal};
    use crate::model::observed::{NodeClassField, UnresolvedTerm};
    use crate::testing::controller::{ControllerHarness, at, world};
    use crate::testing::sample_plan;

    /// Makes a plan that keeps every instance, from an observation with failed image lookups.
    fn plan_keeping_all(harness: &mut ControllerHarness, seconds: i64, unread: &[&str]) {
        let mut world = world(seconds);
        let denied = |words: &&str| {
            let (words, reason) = ((*words).to_owned(), "AccessDenied".to_owned());
            UnresolvedTerm { part: NodeClassField::Image, words, reason }
        };
        world.resolved.unread = unread.iter().map(denied).collect();
        harness.modify(|state| state.planning.run = None);
        harness.observe(seconds, world);
        harness.modify(|state| state.planning.replan_at = at(seconds));
        harness.step_at(seconds, Event::Timer);
        let mut plan = sample_plan::plan();
        plan.resource_changes.clear();
        plan.capacity.waves.clear();
        harness.finish_planning(seconds, plan);
    }

    #[test]
    fn confirmation_outlives_recent_failed_lookups_only() {
        for (observations, persisted) in [
            (&[(10, &["a"][..]), (800, &["a"])][..], true),
            (&[(10, &["a"]), (920, &["a"])], false),
            (&[(10, &["a"]), (800, &[])], false),
            (&[(10, &[])], false),
            // A permanent failure does not affect a new one.
            (&[(10, &["a"]), (800, &["a", "b"]), (1_600, &["a", "b"])], true),
        ] {
            let mut harness = ControllerHarness::started();
            harness.step_at(1, Event::Signal(Signal::LeaseGained));
            let confirmed = vec!["i-1".into()];
            harness.step_at(
                1,
                Event::StateLoaded(Ok(Box::new(PersistedState {
                    confirmed_removals: confirmed,
                    ..PersistedState::default()
                }))),
            );
            for (seconds, unread) in observations {
                plan_keeping_all(&mut harness, *seconds, unread);
            }
            let confirmed =
                &harness.state().persistence.loaded.as_ref().expect("recalled").confirmed_removals;
            assert_eq!(!confirmed.is_empty(), persisted, "{observations:?}");
        }
    }
}
