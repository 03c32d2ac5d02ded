//! Launches in progress: requested launches that EC2 does not list yet, as the instances that they
//! become.
//!
//! A wave of launches takes minutes under the rate limit of EC2. Pods that arrive meanwhile must not
//! wait for its end, and no node may be launched twice. So a plan beside the wave counts its
//! launches as capacity, each with the pods that its own plan places there.
//!
//! Invariants:
//! - Such a plan launches only. Nothing is removed for capacity that may never come.
//! - A launch counts once, by its change: as its request, or as the instance that EC2 lists.
//! - A launch whose result is unknown for good is in doubt, and no other launch begins.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::applies::{Applies, ApplyRun};
use super::event::Ticket;
use super::inflight_launches::{self, PriorAttempts};
use super::planning_snapshot::{UnobservedChanges, has_new_pending_pods};
use super::state::ControllerState;
use crate::apply::{LaunchedOffering, requested_offering};
use crate::model::ids::{Address, InstanceId, PlanId};
use crate::model::market::CapacityType;
use crate::model::observed::{Instance, Observed, PlannedPods, tag};
use crate::plan::{Plan, change_id, launched_instance, planned_pods_at};

/// Launches in progress, with the pods planned for those that EC2 has not answered.
#[derive(Debug, Clone, Default)]
pub(super) struct LaunchesInProgress {
    pub(super) instances: Vec<Instance>,
    pub(super) planned_pods: PlannedPods,
}

/// Launches that applies of this process request now. They are not in doubt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CurrentRequests {
    pub(super) addresses: BTreeSet<Address>,
    /// Plans without a launch in doubt.
    pub(super) plans: BTreeSet<PlanId>,
}

/// Returns the instances that the launches of a plan become. `None` if groups launch some of them:
/// their members are unknown until the group has launched them.
pub(super) fn expected_instances(
    plan: &Plan,
    previous: &PriorAttempts,
    cluster: &str,
    now: Timestamp,
) -> Option<BTreeMap<Address, Instance>> {
    let own = inflight_launches::own_launches(plan);
    let instances = own.map(|row| {
        let before = previous.get(&row.address).map(|before| before.change.clone());
        let change = before.unwrap_or_else(|| change_id(&plan.capacity.plan_id, &row.address));
        let mut instance = launched_instance(row, row.change.after.as_ref()?, cluster, now)?;
        instance.id = InstanceId::from(format!("launch-{change}").as_str());
        instance.tags.extend([(tag::CHANGE.to_owned(), change.to_string())]);
        // An earlier apply had no capacity at the offerings before this one.
        let attempt = previous.get(&row.address).map_or(0, |before| before.attempt_index);
        let offering = requested_offering(plan, row, attempt);
        Some((row.address.clone(), with_offering(instance, offering.as_ref())))
    });
    let instances: BTreeMap<_, _> = instances.collect::<Option<_>>()?;
    (instances.len() == super::reconcile::launched_rows(plan).count()).then_some(instances)
}

/// Returns the instance that EC2 launched, by the answer to its request.
pub(super) fn answered_instance(
    expected: Instance,
    id: &InstanceId,
    offering: Option<&LaunchedOffering>,
) -> Instance {
    with_offering(Instance { id: id.clone(), ..expected }, offering)
}

/// Returns the instance as EC2 launches it at an offering. Only reserved capacity uses a
/// reservation.
fn with_offering(mut instance: Instance, offering: Option<&LaunchedOffering>) -> Instance {
    if let Some(LaunchedOffering { instance_type, zone, capacity_type, instead_of: _ }) = offering {
        instance.instance_type = instance_type.clone();
        instance.zone = zone.clone();
        instance.capacity_type = *capacity_type;
        instance.reservation.take_if(|_| *capacity_type != CapacityType::Reserved);
    }
    instance
}

impl ApplyRun {
    /// Notes that a launch requests its next offerings: the instance will be of one of them.
    pub(super) fn note_requested_offering(&mut self, address: &Address, attempt: u32) {
        let rows = &self.plan.resource_changes;
        let row = rows.iter().find(|row| row.address == *address);
        let offering = row.and_then(|row| requested_offering(&self.plan, row, attempt));
        let expected = self.expected.as_mut().and_then(|expected| expected.get_mut(address));
        if let Some(instance) = expected {
            *instance = with_offering(instance.clone(), offering.as_ref());
        }
    }
}

impl Applies {
    fn launching(&self) -> impl Iterator<Item = &ApplyRun> {
        self.runs.values().filter(|run| run.is_launching)
    }

    /// Returns the number of launches without an answer.
    pub(super) fn unanswered_requests(&self) -> usize {
        self.launching().flat_map(|run| &run.expected).map(BTreeMap::len).sum()
    }

    pub(super) fn current_requests(&self) -> CurrentRequests {
        let is_known = |run: &&ApplyRun| {
            let expected = run.expected.as_ref();
            let mut unanswered = run.unanswered_launches.iter();
            expected.is_some_and(|all| unanswered.all(|address| all.contains_key(address)))
        };
        let expected = self.launching().filter_map(|run| run.expected.as_ref());
        CurrentRequests {
            addresses: expected.flat_map(|all| all.keys().cloned()).collect(),
            plans: self
                .launching()
                .filter(is_known)
                .map(|run| run.record.plan_id.clone())
                .collect(),
        }
    }

    /// Returns true if a plan may count every launch in progress.
    pub(super) fn are_launches_known(&self) -> bool {
        self.launching().all(|run| run.expected.is_some())
    }

    /// Returns the launches that `observed` lacks. Only a plan beside a wave of launches counts
    /// them: any other plan waits until EC2 lists them.
    pub(super) fn launches_in_progress(
        &self,
        observed: &Observed,
        unobserved: &UnobservedChanges,
    ) -> LaunchesInProgress {
        if !self.is_launching() {
            return LaunchesInProgress::default();
        }
        let listed = changes_of(observed);
        let is_unlisted = |instance: &&Instance| {
            let change = instance.tags.get(tag::CHANGE);
            change.is_none_or(|change| !listed.contains(change.as_str()))
        };
        let mut found = LaunchesInProgress::default();
        for run in self.launching() {
            let expected = run.expected.iter().flatten();
            for (address, instance) in expected.filter(|(_, instance)| is_unlisted(instance)) {
                let pods = planned_pods_at(&run.plan, address);
                found.planned_pods.insert(instance.id.clone(), pods);
                found.instances.push(instance.clone());
            }
        }
        let answered = unobserved.answered_launches(observed).filter(is_unlisted);
        found.instances.extend(answered.cloned());
        found
    }
}

impl ControllerState {
    /// Returns true if a plan from this observation counts every launch. Only a wave of launches is
    /// not awaited: it takes minutes.
    pub(super) fn are_launches_counted(&self, seen: &Observed) -> bool {
        let unobserved = &self.observation.unobserved;
        if self.applies.is_launching() {
            self.applies.are_launches_known() && !unobserved.has_unknown_launch(seen)
        } else {
            unobserved.missing_launch(seen).is_none()
        }
    }

    /// Returns false if a plan can wait until all launches are requested: no new pod is pending, and
    /// no further instance is interrupted.
    pub(super) fn needs_plan_beside_launches(&self, seen: &Observed) -> bool {
        let last = self.planning.last.as_ref();
        let has_new_pods = || last.is_none_or(|last| has_new_pending_pods(&last.world, seen));
        !self.applies.is_launching()
            || self.now >= self.planning.replan_at
            || self.planning.interruptions_version != self.interruptions.version()
            || has_new_pods()
    }

    /// Notes the instance that EC2 launched for a request.
    pub(super) fn note_answer(
        &mut self,
        ticket: Ticket,
        address: Option<&Address>,
        instance: &InstanceId,
        offering: Option<&LaunchedOffering>,
    ) {
        let run = self.applies.runs.get(&ticket);
        let expected = run.and_then(|run| run.expected.as_ref()?.get(address?).cloned());
        let launched = expected.map(|found| answered_instance(found, instance, offering));
        self.observation.unobserved.note_answered_launch(instance, launched, self.now);
    }
}

fn changes_of(observed: &Observed) -> BTreeSet<&str> {
    let tags = observed.instances.values().filter_map(|instance| instance.tags.get(tag::CHANGE));
    tags.map(String::as_str).collect()
}

/// Adds launches in progress to an observation. Those into a reservation use its capacity.
pub(super) fn add_instances(world: &mut Observed, instances: &[Instance]) {
    for instance in instances {
        let reservation = instance.reservation.as_ref();
        if let Some(reservation) = reservation.and_then(|id| world.reservations.get_mut(id)) {
            reservation.available = reservation.available.saturating_sub(1);
        }
        world.instances.insert(instance.id.clone(), instance.clone());
    }
}

/// Removes launched instances from an observation, as if they had not been requested.
pub(super) fn remove_launches(world: &mut Observed, launched: &BTreeSet<InstanceId>) {
    world.remove_instances(launched);
    for id in launched {
        let Some(instance) = world.instances.remove(id) else { continue };
        let reservation = instance.reservation.as_ref();
        if let Some(reservation) = reservation.and_then(|id| world.reservations.get_mut(id)) {
            reservation.available = reservation.available.saturating_add(1);
        }
    }
}

/// Makes an observation comparable with the one of a plan that counted launches in progress. An
/// instance that EC2 lists by now has the id that the plan knows.
pub(super) fn add_launches_of_plan(world: &mut Observed, instances: &[Instance]) {
    let mut listed: BTreeMap<String, InstanceId> = BTreeMap::new();
    for instance in world.instances.values() {
        let change = instance.tags.get(tag::CHANGE);
        listed.extend(change.map(|change| (change.clone(), instance.id.clone())));
    }
    let mut unlisted = Vec::new();
    for planned in instances {
        let id = planned.tags.get(tag::CHANGE).and_then(|change| listed.get(change));
        let Some(id) = id else {
            unlisted.push(planned.clone());
            continue;
        };
        let Some(found) = world.instances.remove(id) else { continue };
        for node in world.nodes.values_mut().filter(|node| node.instance.as_ref() == Some(id)) {
            node.instance = Some(planned.id.clone());
        }
        world.instances.insert(planned.id.clone(), Instance { id: planned.id.clone(), ..found });
    }
    add_instances(world, &unlisted);
}

#[cfg(test)]
mod tests;
