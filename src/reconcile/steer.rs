//! Steering: pods that wait are nominated to the nodes that the plan has them on, a bounded number of
//! times, and it is counted how many end up there.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::event::Effect;
use super::kept::later;
use super::state::State;
use super::view::is_waiting;
use crate::fleet::{Observed, Pod};
use crate::ids::{NodeName, Uid};
use crate::plan::Plan;
use crate::plan::wire::{ResourceChange, workload_key};
use crate::port::PortError;

/// How often a pod is nominated; then it goes wherever the scheduler has it.
const TIMES_MAX: u32 = 3;
/// Between two nominations of the same pod: the scheduler clears one that it could not follow.
const AGAIN_AFTER: SignedDuration = SignedDuration::from_secs(10);
/// Most pods that are nominated at once.
const AT_ONCE: usize = 100;

/// Pods that were nominated and are not bound yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Steering(BTreeMap<Uid, Nomination>);

#[derive(Debug, Clone)]
struct Nomination {
    node: NodeName,
    times: u32,
    last: Timestamp,
    /// Whether any was accepted: where a pod goes that the scheduler was told nothing of says nothing of hints.
    accepted: bool,
}

impl Steering {
    /// Counts which pods ended up where they were nominated to, of those of which that was accepted.
    pub(super) fn judge(&mut self, world: &Observed, counters: &mut BTreeMap<String, u64>) {
        if self.0.is_empty() {
            return;
        }
        let pods: BTreeMap<&Uid, &Pod> = world.pods.iter().map(|pod| (&pod.uid, &**pod)).collect();
        self.0.retain(|uid, nomination| {
            let name = match pods.get(uid).map(|pod| &pod.node) {
                Some(None) => return true,
                Some(Some(node)) if *node == nomination.node => "nominations.honoured",
                Some(Some(_)) | None => "nominations.dropped",
            };
            if nomination.accepted {
                *counters.entry(name.to_owned()).or_insert(0) += 1;
            }
            false
        });
    }

    /// Returns whether a pod may be nominated to a node now, and notes that it is.
    fn nominate(&mut self, pod: &Uid, node: &NodeName, now: Timestamp) -> bool {
        let entry = self.0.entry(pod.clone()).or_insert_with(|| Nomination {
            node: node.clone(),
            times: 0,
            last: Timestamp::MIN,
            accepted: false,
        });
        let due = entry.times == 0 || now >= later(entry.last, AGAIN_AFTER);
        if entry.times >= TIMES_MAX || !due {
            return false;
        }
        (entry.node, entry.last) = (node.clone(), now);
        entry.times += 1;
        true
    }
}

impl State {
    /// Nominates pods that wait to Ready nodes that the plan has them on.
    pub(super) fn steer(&mut self, effects: &mut Vec<Effect>) {
        let steers = self.head.as_ref().is_some_and(|head| head.controller.steer);
        let acts = steers && self.leader && self.mode() != crate::manifest::Mode::Observe;
        let (Some(world), Some(current)) = (self.world.clone(), self.current.as_ref()) else {
            return;
        };
        if !acts || !world.pods.iter().any(|pod| is_waiting(pod)) {
            return;
        }
        let mut places = places(&current.plan, &world);
        let now = self.now;
        let mut made = 0;
        for pod in world.pods.iter().filter(|pod| is_waiting(pod)) {
            let Some(owner) = &pod.owner else { continue };
            let Some(free) = places.get_mut(&workload_key(owner)) else { continue };
            let Some((node, left)) = free.last_mut() else { continue };
            if made < AT_ONCE && self.steering.nominate(&pod.uid, node, now) {
                made += 1;
                let (pod, node) = (Box::new(Pod::clone(pod)), node.clone());
                effects.push(Effect::Nominate { pod, node });
            }
            *left -= 1;
            if *left == 0 {
                free.pop();
            }
        }
        self.count("nominations.made", u64::try_from(made).unwrap_or(u64::MAX));
    }

    pub(super) fn was_nominated(&mut self, pod: &Uid, end: &Result<(), PortError>) {
        if end.is_err() {
            // It is tried again as often as any other, and then goes wherever the scheduler has it.
            self.count("errors.kubernetes", 1);
            self.count("nominations.refused", 1);
        } else if let Some(nomination) = self.steering.0.get_mut(pod) {
            nomination.accepted = true;
        }
    }
}

/// Returns on which Ready nodes the plan has pods of each workload, and how many.
fn places(plan: &Plan, world: &Observed) -> BTreeMap<String, Vec<(NodeName, u32)>> {
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

/// Returns the Ready node that a row stands for.
fn ready_node(row: &ResourceChange, world: &Observed) -> Option<NodeName> {
    let before = row.change.before.as_ref()?;
    let of_instance = || world.node_of(before.instance_id.as_ref()?);
    let node = match &before.node {
        Some(name) => world.nodes.get(name),
        None => of_instance(),
    }?;
    node.ready.then(|| node.name.clone())
}

#[cfg(test)]
mod tests;
