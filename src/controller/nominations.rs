//! Nominations: pending pods are nominated to their planned nodes, a bounded number of times.
//! Counters report how many pods end up there.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::counters::{Counter, Counters};
use super::event::Effect;
use super::persisted_state::later;
use super::planning_snapshot::is_pending;
use super::state::ControllerState;
use crate::apply::ports::PortError;
use crate::model::ids::{NodeName, Uid};
use crate::model::observed::{Observed, Pod};
use crate::plan::Plan;
use crate::plan::wire::{ResourceChange, workload_key};

/// Most nominations of one pod; afterwards the scheduler places it freely.
const ATTEMPTS_MAX: u32 = 3;
/// Interval between two nominations of one pod: the scheduler clears a nomination that it could not
/// follow.
const RETRY_INTERVAL: SignedDuration = SignedDuration::from_secs(10);
/// Most pods that are nominated in one step.
const PER_STEP_MAX: usize = 100;

/// Nominated pods that are not bound yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Nominations(BTreeMap<Uid, Nomination>);

#[derive(Debug, Clone)]
struct Nomination {
    node: NodeName,
    attempts: u32,
    last_attempt: Timestamp,
    /// True once a nomination was accepted. Otherwise the final node says nothing about
    /// nominations.
    accepted: bool,
}

impl Nominations {
    /// Counts how many pods with an accepted nomination were bound to their nominated node.
    pub(super) fn record_bindings(&mut self, world: &Observed, counters: &mut Counters) {
        if self.0.is_empty() {
            return;
        }
        let pods: BTreeMap<&Uid, &Pod> = world.pods.iter().map(|pod| (&pod.uid, &**pod)).collect();
        self.0.retain(|uid, nomination| {
            let counter = match pods.get(uid).map(|pod| &pod.node) {
                Some(None) => return true,
                Some(Some(node)) if *node == nomination.node => Counter::NominationsHonored,
                Some(Some(_)) | None => Counter::NominationsDropped,
            };
            if nomination.accepted {
                counters.count(counter);
            }
            false
        });
    }

    /// Returns whether a pod may be nominated to a node now, and records the nomination.
    fn nominate(&mut self, pod: &Uid, node: &NodeName, now: Timestamp) -> bool {
        let entry = self.0.entry(pod.clone()).or_insert_with(|| Nomination {
            node: node.clone(),
            attempts: 0,
            last_attempt: Timestamp::MIN,
            accepted: false,
        });
        let due = entry.attempts == 0 || now >= later(entry.last_attempt, RETRY_INTERVAL);
        if entry.attempts >= ATTEMPTS_MAX || !due {
            return false;
        }
        (entry.node, entry.last_attempt) = (node.clone(), now);
        entry.attempts += 1;
        true
    }
}

impl ControllerState {
    /// Nominates pending pods to the Ready nodes that the plan places them on.
    pub(super) fn nominate_pods(&mut self, effects: &mut Vec<Effect>) {
        let enabled = self.revisions.settings().is_some_and(|settings| settings.nominate_pods);
        let acts = enabled
            && self.leadership.is_leader()
            && self.mode() != crate::model::desired::Mode::Observe;
        let (Some(world), Some(current)) =
            (self.observation.latest.clone(), self.planning.current.as_ref())
        else {
            return;
        };
        if !acts || !world.pods.iter().any(|pod| is_pending(pod)) {
            return;
        }
        let mut nodes_by_workload = planned_nodes(&current.plan, &world);
        let now = self.now;
        let mut nominated = 0;
        for pod in world.pods.iter().filter(|pod| is_pending(pod)) {
            let Some(owner) = &pod.owner else { continue };
            let Some(free) = nodes_by_workload.get_mut(&workload_key(owner)) else { continue };
            let Some((node, left)) = free.last_mut() else { continue };
            if nominated < PER_STEP_MAX && self.nominations.nominate(&pod.uid, node, now) {
                nominated += 1;
                let (pod, node) = (Box::new(Pod::clone(pod)), node.clone());
                effects.push(Effect::Nominate { pod, node });
            }
            *left -= 1;
            if *left == 0 {
                free.pop();
            }
        }
        self.counters.add(Counter::NominationsMade, u64::try_from(nominated).unwrap_or(u64::MAX));
    }

    pub(super) fn on_nominated(&mut self, pod: &Uid, end: &Result<(), PortError>) {
        if end.is_err() {
            // The pod is nominated again as often as any other, and then placed by the scheduler.
            self.counters.count_error("kubernetes");
            self.counters.count(Counter::NominationsRefused);
        } else if let Some(nomination) = self.nominations.0.get_mut(pod) {
            nomination.accepted = true;
        }
    }
}

/// Returns the Ready nodes on which the plan places pods of each workload, with the number of pods.
fn planned_nodes(plan: &Plan, world: &Observed) -> BTreeMap<String, Vec<(NodeName, u32)>> {
    let rows = plan.resource_changes.iter();
    let nodes: BTreeMap<_, NodeName> =
        rows.filter_map(|row| Some((&row.address, ready_node(row, world)?))).collect();
    let mut places: BTreeMap<String, Vec<(NodeName, u32)>> = BTreeMap::new();
    for row in &plan.capacity.placements {
        if let Some(node) = nodes.get(&row.address).filter(|_| row.pods > 0) {
            let of = places.entry(workload_key(&row.workload)).or_default();
            of.push((node.clone(), row.pods));
        }
    }
    places
}

/// Returns the Ready node of a row.
fn ready_node(row: &ResourceChange, world: &Observed) -> Option<NodeName> {
    let before = row.change.before.as_ref()?;
    let of_instance = || world.node_for_instance(before.instance_id.as_ref()?);
    let node = match &before.node {
        Some(name) => world.nodes.get(name),
        None => of_instance(),
    }?;
    node.ready.then(|| node.name.clone())
}

#[cfg(test)]
mod tests;
