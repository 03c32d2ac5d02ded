//! Launches: planned, unique, counted and within budgets.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright::apply::EarlierLaunch;
use fleetwright::apply::ports::LaunchRequest;
use fleetwright::controller::Status;
use fleetwright::model::desired::ControllerSettings;
use fleetwright::model::ids::{Address, ChangeId, InstanceId, PlanId, PoolName};
use fleetwright::model::observed::{Instance, Observed, tag};
use fleetwright::plan::wire::{Alternative, Amount, NodeState, ResourceChange, ResourceKind};
use jiff::Timestamp;

use super::budgets::over;
use super::{APPLY, InvariantChecks, ObservedFleet, RecordedCall, ReplicaStep, SHOWN_WITHIN};

/// An instance that a plan has come.
#[derive(Clone)]
pub(super) struct ApprovedLaunch {
    /// Rows that go together, or the row itself.
    pub(super) unit: String,
    /// The plan that asks for it, and which of all that were begun.
    pub(super) plan: PlanId,
    pub(super) begun: u64,
    /// Whether whoever carries it out waits until the instance is Ready.
    pub(super) waits: bool,
    /// What it is to be, and what may stand in for that.
    pub(super) node: NodeState,
    pub(super) alternatives: Vec<Alternative>,
}

impl ApprovedLaunch {
    /// Returns whether a launch asks for what was decided.
    fn is_of(&self, request: &LaunchRequest) -> bool {
        let Self { node, alternatives, unit: _, plan: _, begun: _, waits: _ } = self;
        let is_planned = node.instance_type.as_ref() == Some(&request.instance_type)
            && node.zone.as_ref() == Some(&request.zone)
            && node.capacity_type == Some(request.capacity_type);
        let stands_in = |offering: &Alternative| {
            offering.instance_type == request.instance_type
                && offering.zone == request.zone
                && offering.capacity_type == request.capacity_type
        };
        // One that carries none is complained of for that.
        let pool = request.tags.get(tag::POOL);
        let of_pool =
            |pool: &String| node.pool.as_ref().map(PoolName::as_str) == Some(pool.as_str());
        (is_planned || alternatives.iter().any(stands_in))
            && node.image.as_ref() == Some(&request.image)
            && pool.is_none_or(of_pool)
    }
}

impl InvariantChecks {
    /// I6: what did not help is not launched again at once.
    pub(super) fn quarantines_hold(
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

    /// I7: what was observed of a type is what plans count with.
    pub(super) fn learned_is_used(
        &mut self,
        rows: &[&ResourceChange],
        replica: usize,
        now: Timestamp,
    ) {
        let observed = self.over.get(&replica).map(|over| over.allocatable.clone());
        let observed = observed.unwrap_or_default();
        for after in rows.iter().filter_map(|row| row.change.after.as_ref()) {
            let kind = after.instance_type.as_ref().map(ToString::to_string).unwrap_or_default();
            let spec = after.spec_digest.clone().unwrap_or_default();
            let Some(known) = observed.get(&(kind.clone(), spec)) else { continue };
            let Amount { cpu_milli, memory_bytes, .. } = after.allocatable;
            if cpu_milli > known.cpu_milli || memory_bytes > known.memory_bytes {
                self.fail(
                    now,
                    &format!("I7: {kind} is counted with more than it was seen to have"),
                );
            }
        }
    }

    pub(super) fn launch(
        &mut self,
        call: &RecordedCall,
        (request, id): (&LaunchRequest, &InstanceId),
        settings: &ControllerSettings,
    ) {
        let at = call.at;
        let change = request.tags.get(tag::CHANGE).map(|text| ChangeId::from(text.as_str()));
        let launch = change.as_ref().and_then(|change| self.approved.get(change)).cloned();
        match &launch {
            None => self.fail(at, &format!("I18: {id} was launched, and is in no plan")),
            Some(launch) if !launch.is_of(request) => {
                self.fail(at, &format!("I18: {id} is not the machine that was decided"));
            }
            Some(_) => {}
        }
        if let (Some(change), Some(launch)) = (change, &launch) {
            // A call that comes late, after whoever leads by now has asked for the same, is answered with what there is.
            if !self.machines.contains_key(id) {
                self.is_all_known(call, &change, launch.begun);
            }
            self.machines.entry(id.clone()).or_insert((at, change));
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
        let counted = self.counts(settings.launches, at);
        let found = over(&self.launches, settings.launches, at, nodes).filter(|_| counted);
        if let Some(found) = found {
            self.fail(at, &format!("I5: {found} machines were launched, too many for the budget"));
        }
    }

    /// I13: while whoever launches has neither heard of another launch, nor been shown its instance, no other one is
    /// asked for: it cannot be counted with. Those of one plan are asked for at the same time.
    fn is_all_known(&mut self, call: &RecordedCall, change: &ChangeId, begun: u64) {
        let heard = self.launched.get(&call.replica);
        let other = self.lately(call.at).find(|(id, other)| {
            let beside = self.approved.get(*other).is_some_and(|launch| launch.begun == begun);
            let known = call.shown.contains(*id) || heard.is_some_and(|all| all.contains_key(*id));
            *other != change && !beside && !known
        });
        if let Some((id, _)) = other {
            let what = format!("I13: {change} is launched, and who asks has not heard of {id} yet");
            self.fail(call.at, &what);
        }
    }

    /// I13: a plan that launches something new is made over every instance that came lately, whoever asked for it and
    /// whether or not there was an answer, but for what it asks for again and for what was told to end.
    pub(super) fn counts_with_all(
        &mut self,
        launched: &[&ResourceChange],
        begun: &BTreeMap<Address, EarlierLaunch>,
        step: &ReplicaStep<'_>,
    ) {
        let own = launched.iter().filter(|row| row.kind == ResourceKind::Ec2Instance);
        let Some(over) = self.over.get(&step.replica) else { return };
        if own.into_iter().all(|row| begun.contains_key(&row.address)) {
            return;
        }
        let again: BTreeSet<&ChangeId> = begun.values().map(|before| &before.change).collect();
        let missing = self.lately(over.at).find(|(id, change)| {
            let counted = over.machines.contains(*id) || self.all_ended.contains(*id);
            !counted && !again.contains(*change)
        });
        if let Some((id, _)) = missing {
            let what = format!("I13: what is launched was planned without {id}");
            self.fail(step.now, &what);
        }
    }

    /// Returns the instances that were launched so lately that EC2 may not show them yet, and as which changes.
    fn lately(&self, at: Timestamp) -> impl Iterator<Item = (&InstanceId, &ChangeId)> {
        let set = self.clock_set;
        let young = move |since: Timestamp| {
            // Who counts with a clock that was set since has waited for as long by that.
            at.duration_since(since) < SHOWN_WITHIN && set.is_none_or(|set| set < since)
        };
        let young = self.machines.iter().filter(move |(_, (since, _))| young(*since));
        young.map(|(id, (_, change))| (id, change))
    }

    /// I1: of each change at most one instance runs.
    pub(super) fn changes_are_unique(&mut self, observed: ObservedFleet<'_>, now: Timestamp) {
        let mut seen: BTreeMap<&str, &InstanceId> = BTreeMap::new();
        let active = observed.instances.values().filter(|i: &&Instance| i.is_active());
        let mut twice = None;
        for instance in active {
            let Some(change) = instance.tags.get(tag::CHANGE) else { continue };
            if let Some(other) = seen.insert(change, &instance.id) {
                twice = Some(format!("I1: {other} and {} are of one change", instance.id));
            }
        }
        if let Some(what) = twice {
            self.fail(now, &what);
        }
    }
}

/// Returns the least that Ready nodes of ours have, by type and specification.
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
