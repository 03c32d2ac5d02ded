//! Launches: planned, unique, counted and within budgets.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright::apply::EarlierLaunch;
use fleetwright::apply::ports::{LaunchOffering, LaunchRequest};
use fleetwright::controller::Status;
use fleetwright::model::desired::ControllerSettings;
use fleetwright::model::ids::{Address, ChangeId, InstanceId, PlanId, PoolName, WorkloadKey};
use fleetwright::model::observed::{Instance, Observed, tag};
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{
    Alternative, Amount, NodeState, ResourceChange, ResourceKind, WaveStep,
};
use jiff::Timestamp;

use super::budgets::rate_excess;
use super::{
    APPLY, InvariantChecks, LISTED_WITHIN, ObservedFleet, RecordedCall, ReplicaStep, changes_of,
    rows,
};

/// A launch of an applied plan.
#[derive(Clone)]
pub(super) struct ApprovedLaunch {
    /// Group of rows that change together, or the row itself.
    pub(super) unit: String,
    /// Plan of the launch.
    pub(super) plan: PlanId,
    pub(super) begun: u64,
    /// True if the apply waits until the instance is Ready.
    pub(super) waits: bool,
    /// Planned node, and its alternatives.
    pub(super) node: NodeState,
    pub(super) alternatives: Vec<Alternative>,
    /// Number of pods by workload that the plan places on the node.
    pub(super) pods: BTreeMap<WorkloadKey, u32>,
}

impl ApprovedLaunch {
    /// Returns whether each offering of a request is the planned node or one of its alternatives.
    fn is_of(&self, request: &LaunchRequest) -> bool {
        request.offerings.iter().all(|offering| self.covers(request, offering))
    }

    fn covers(&self, request: &LaunchRequest, requested: &LaunchOffering) -> bool {
        let Self { node, alternatives, unit: _, plan: _, begun: _, waits: _, pods: _ } = self;
        let is_planned = node.instance_type.as_ref() == Some(&requested.instance_type)
            && node.zone.as_ref() == Some(&requested.zone)
            && node.capacity_type == Some(request.capacity_type);
        let stands_in = |offering: &Alternative| {
            offering.instance_type == requested.instance_type
                && offering.zone == requested.zone
                && offering.capacity_type == request.capacity_type
        };
        // A request without a pool tag violates another check.
        let pool = request.tags.get(tag::POOL);
        let of_pool =
            |pool: &String| node.pool.as_ref().map(PoolName::as_str) == Some(pool.as_str());
        (is_planned || alternatives.iter().any(stands_in))
            && node.image.as_ref() == Some(&request.image)
            && pool.is_none_or(of_pool)
    }
}

impl InvariantChecks {
    /// I6: quarantined pools launch nothing.
    pub(super) fn check_quarantine(
        &mut self,
        rows: &[&ResourceChange],
        status: &Status,
        now: Timestamp,
    ) {
        for row in rows {
            let pool = row.change.after.as_ref().and_then(|after| after.pool.as_ref());
            let held = pool.and_then(|pool| status.quarantined.get(pool));
            if held.is_some_and(|(_, until)| now < *until) {
                self.fail(now, &format!("I6: {} is launched in quarantine", row.address));
            }
        }
    }

    /// I7: plans use the observed resources of a type.
    pub(super) fn check_observed_resources(&mut self, plan: &Plan, replica: usize, now: Timestamp) {
        let observed = self.base_of(replica, plan).map(|over| over.allocatable.clone());
        let observed = observed.unwrap_or_default();
        let launched = rows(plan, WaveStep::Launch);
        for after in launched.filter_map(|row| row.change.after.as_ref()) {
            let kind = after.instance_type.as_ref().map(ToString::to_string).unwrap_or_default();
            let spec = after.spec_digest.clone().unwrap_or_default();
            let Some(known) = observed.get(&(kind.clone(), spec)) else { continue };
            let Amount { cpu_milli, memory_bytes, .. } = after.allocatable;
            // A report far below the type is not believed. A fallback to another type reports the
            // amounts of the planned type in this world.
            let is_believed = known.memory_bytes > memory_bytes / 4 * 3;
            if is_believed && (cpu_milli > known.cpu_milli || memory_bytes > known.memory_bytes) {
                self.fail(now, &format!("I7: {kind} is planned with more resources than observed"));
            }
        }
    }

    pub(super) fn launch(
        &mut self,
        call: &RecordedCall,
        request: &LaunchRequest,
        id: &InstanceId,
        settings: &ControllerSettings,
    ) {
        let at = call.at;
        let change = request.tags.get(tag::CHANGE).map(|text| ChangeId::from(text.as_str()));
        let launch = change.as_ref().and_then(|change| self.approved.get(change)).cloned();
        match &launch {
            None => self.fail(at, &format!("I18: {id} was launched without a plan")),
            Some(launch) if !launch.is_of(request) => {
                self.fail(at, &format!("I18: {id} differs from its plan"));
            }
            Some(_) => {}
        }
        if let (Some(change), Some(launch)) = (change, &launch) {
            // A late call repeats a request of the present leader, and returns the same instance.
            if !self.launched_instances.contains_key(id) {
                self.check_launches_known(call, &change, launch.begun);
            }
            self.launched_instances.entry(id.clone()).or_insert((at, change));
        }
        let unit = launch.map(|launch| launch.unit);
        if !request.tags.contains_key(tag::CLUSTER) || !request.tags.contains_key(tag::POOL) {
            self.fail(at, &format!("I2: {id} was launched without our tags"));
        }
        if call.replica == APPLY || self.launches.iter().any(|(_, known, _)| known == id) {
            return;
        }
        self.launches.push((at, id.clone(), unit.unwrap_or_default()));
        let nodes = self.most_nodes(at, settings.launches.window);
        let counted = self.is_rate_valid(settings.launches, at);
        let found = rate_excess(&self.launches, settings.launches, at, nodes).filter(|_| counted);
        if let Some(found) = found {
            self.fail(at, &format!("I5: {found} launches exceed the budget"));
        }
    }

    /// I13: a caller requests no launch before it has seen all recent launches of other plans, by a
    /// reply or in a list. The launches of one plan are concurrent, and so are those of a plan and of
    /// the plans whose launches it counts.
    fn check_launches_known(&mut self, call: &RecordedCall, change: &ChangeId, begun: u64) {
        let heard = self.launched.get(&call.replica);
        let other = self.recent_launches(call.at).find(|(id, other)| {
            let beside = self.approved.get(*other).is_some_and(|launch| {
                launch.begun == begun
                    || self.counts(begun, other)
                    || self.counts(launch.begun, change)
            });
            let known = call.listed_instances.contains(*id)
                || heard.is_some_and(|all| all.contains_key(*id));
            *other != change && !beside && !known
        });
        if let Some((id, _)) = other {
            let what = format!("I13: {change} is launched before the caller has seen {id}");
            self.fail(call.at, &what);
        }
    }

    /// Returns whether an applied plan counts a launch of another plan.
    fn counts(&self, plan: u64, change: &ChangeId) -> bool {
        self.counted_launches.get(&plan).is_some_and(|all| all.contains(change))
    }

    /// I13: the observation of a plan with new launches contains all recent instances, with or
    /// without a reply. Exceptions are launches that the plan counts or requests again, and
    /// terminated instances.
    pub(super) fn check_recent_launches(
        &mut self,
        plan: &Plan,
        begun: &BTreeMap<Address, EarlierLaunch>,
        in_progress: &[Instance],
        step: &ReplicaStep<'_>,
    ) {
        let own = rows(plan, WaveStep::Launch);
        let mut own = own.filter(|row| row.kind == ResourceKind::Ec2Instance);
        let Some(over) = self.base_of(step.replica, plan) else { return };
        if own.all(|row| begun.contains_key(&row.address)) {
            return;
        }
        let again: BTreeSet<&ChangeId> = begun.values().map(|before| &before.change).collect();
        let in_progress: BTreeSet<ChangeId> = changes_of(in_progress).collect();
        let missing = self.recent_launches(over.at).find(|(id, change)| {
            let counted = over.instances.contains(*id)
                || self.terminated.contains(*id)
                || in_progress.contains(*change);
            !counted && !again.contains(*change)
        });
        if let Some((id, _)) = missing {
            let what = format!("I13: the launches were planned without {id}");
            self.fail(step.now, &what);
        }
    }

    /// Returns the recent launches that EC2 may not list yet, with their changes.
    fn recent_launches(&self, at: Timestamp) -> impl Iterator<Item = (&InstanceId, &ChangeId)> {
        let set = self.clock_set;
        let young = move |since: Timestamp| {
            // A clock that was set since then shows that the wait is over.
            at.duration_since(since) < LISTED_WITHIN && set.is_none_or(|set| set < since)
        };
        let young = self.launched_instances.iter().filter(move |(_, (since, _))| young(*since));
        young.map(|(id, (_, change))| (id, change))
    }

    /// I1: each change has at most one active instance.
    pub(super) fn check_unique_changes(&mut self, observed: ObservedFleet<'_>, now: Timestamp) {
        let mut seen: BTreeMap<&str, &InstanceId> = BTreeMap::new();
        let active = observed.instances.values().filter(|i: &&Instance| i.is_active());
        let mut twice = None;
        for instance in active {
            let Some(change) = instance.tags.get(tag::CHANGE) else { continue };
            if let Some(other) = seen.insert(change, &instance.id) {
                twice = Some(format!("I1: {other} and {} have the same change", instance.id));
            }
        }
        if let Some(what) = twice {
            self.fail(now, &what);
        }
    }
}

/// Returns the minimum allocatable of managed Ready nodes, by type and specification.
pub(super) fn allocatable(world: &Observed) -> BTreeMap<(String, String), Amount> {
    let mut least: BTreeMap<(String, String), Amount> = BTreeMap::new();
    for node in world.nodes.values().filter(|node| node.ready && node.taints.is_empty()) {
        let instance = node.instance.as_ref().and_then(|id| world.instances.get(id));
        let ours = |i: &&Instance| i.is_active() && i.is_managed_by(&world.cluster.name);
        let Some(instance) = instance.filter(ours) else { continue };
        let Some(spec) = instance.tags.get(tag::SPEC) else { continue };
        let key = (instance.instance_type.to_string(), spec.clone());
        let has = Amount::from(&node.allocatable);
        let known = least.entry(key).or_insert_with(|| has.clone());
        known.cpu_milli = known.cpu_milli.min(has.cpu_milli);
        known.memory_bytes = known.memory_bytes.min(has.memory_bytes);
    }
    least
}
