//! Pods that may still be placed on launched nodes. A launch for them waits.
//!
//! Plans limit the price of further orders of arrival in relation to the price of the fleet. Beside
//! launched nodes, an unsteered plan of the same pods may therefore pay for more orders than the plan
//! of the launch. The next plan may pay for still more. But the pods arrive in one order, and no
//! plan knows it before they run. So without nominations, launches wait from the request of the
//! nodes on.
//!
//! Invariant: every wait ends. Nodes open in a bounded time, and pods wait at most two minutes for
//! nodes to start. Pods of a failed node do not wait.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::controller::planning::demand_with_launches;
use crate::controller::state::ControllerState;
use crate::model::observed::{Node, Observed};
use crate::model::saturating_time::later;
use crate::plan::wire::workload_key;

/// Longest wait for launched nodes to start. Most are Ready within it; a slow one must not hold pods
/// that need another node.
const START_WAIT_MAX: SignedDuration = SignedDuration::from_mins(2);

/// Pods that kube-scheduler may still place on launched nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodsArriving {
    /// Planned pods of each workload when nodes were launched for it. Pods that were added since
    /// have no node yet.
    pub workloads: BTreeMap<String, u32>,
    /// End of the time.
    pub until: Timestamp,
}

/// Launches whose nodes are not Ready yet.
#[derive(Default)]
struct StartingLaunches<'s> {
    /// Workloads of their planned pods.
    workloads: BTreeSet<&'s str>,
    /// Planned pods of the workloads of launches without an answer.
    requested: BTreeMap<String, u32>,
    /// Workloads with planned pods on instances that start for too long or lost their node.
    failed: BTreeSet<&'s str>,
    /// End of the wait for the last of them.
    until: Option<Timestamp>,
}

impl ControllerState {
    /// Returns the workloads of planned pods that may still be placed on launched nodes. Until
    /// then, a launch for these pods could be superfluous.
    pub(in crate::controller) fn pods_arriving(&self) -> Option<PodsArriving> {
        // Pods of an interrupted node have no other place.
        if !self.interruptions.all.is_empty() {
            return None;
        }
        let world = self.observation.latest.as_ref()?;
        let steers = self.steers();
        let starting =
            if steers { StartingLaunches::default() } else { self.starting_launches(world) };
        let until = self.opening.places_pods_until(steers).max(starting.until);
        let until = until.filter(|until| self.now < *until)?;
        let takes_pods = |node: &&Node| self.opening.takes_pods(&node.uid, self.now);
        let planned = &self.planning.planned_pods;
        let nodes = world.nodes.values().filter(takes_pods);
        let pods = nodes.filter_map(|node| planned.get(node.instance.as_ref()?)).flatten();
        let mut placed = starting.workloads;
        placed.extend(pods.filter(|(_, pods)| **pods > 0).map(|(workload, _)| workload.as_str()));
        if !steers {
            placed.extend(self.unplaced_workloads());
        }
        let launched = self.planning.launched_demand.iter();
        let launched = launched.filter(|(workload, _)| placed.contains(workload.as_str()));
        let mut workloads: BTreeMap<String, u32> =
            launched.map(|(workload, pods)| (workload.clone(), *pods)).collect();
        if !steers {
            for (workload, pods) in starting.requested {
                let known = workloads.entry(workload).or_default();
                *known = (*known).max(pods);
            }
            let bound = bound_pods(world);
            workloads.retain(|workload, pods| {
                bound.get(workload).is_none_or(|bound| *bound < *pods)
                    && !starting.failed.contains(workload.as_str())
            });
        }
        Some(PodsArriving { workloads, until })
    }

    /// Returns the workloads that launches left unschedulable, for a bounded time.
    fn unplaced_workloads(&self) -> impl Iterator<Item = &str> {
        let unplaced = self.planning.unplaced_since.iter();
        let unplaced = unplaced.filter(|(_, since)| self.now < later(**since, START_WAIT_MAX));
        unplaced.map(|(workload, _)| workload.as_str())
    }

    fn starting_launches(&self, world: &Observed) -> StartingLaunches<'_> {
        let nodes = world.nodes_by_instance();
        let lost_nodes = self.young_instances_without_node(world);
        let mut found = StartingLaunches::default();
        for (id, pods) in &self.planning.planned_pods {
            if self.observation.unobserved.is_terminated(id) {
                continue;
            }
            let began = match nodes.get(id) {
                Some(node) if node.ready => continue,
                Some(node) => node.created_at,
                None => world.instances.get(id).map_or(self.now, |instance| instance.launched_at),
            };
            let pods = pods.iter().filter(|(_, pods)| **pods > 0);
            let workloads = pods.map(|(workload, _)| workload.as_str());
            let end = later(began, START_WAIT_MAX);
            if self.now < end && !lost_nodes.contains(id) {
                found.workloads.extend(workloads);
                found.until = found.until.max(Some(end));
            } else {
                found.failed.extend(workloads);
            }
        }
        let is_launching = self.applies.runs.values().filter(|run| run.is_launching);
        // A launch that waits to be persisted would wait for itself.
        for run in is_launching.filter(|run| run.deferred_start.is_none()) {
            let Some(expected) = run.expected.as_ref().filter(|rows| !rows.is_empty()) else {
                continue;
            };
            let demand = demand_with_launches(&run.plan);
            let explained = run.plan.capacity.explain.iter();
            let rows = explained.filter(|row| expected.contains_key(&row.address));
            let workloads = rows.flat_map(|row| row.pods.keys());
            let pods = workloads.filter_map(|workload| demand.get_key_value(workload.as_str()));
            found.requested.extend(pods.map(|(workload, pods)| (workload.clone(), *pods)));
            found.until = found.until.max(Some(later(run.record.started_at, START_WAIT_MAX)));
        }
        found
    }
}

/// Returns the number of pods of each workload that have a node.
fn bound_pods(world: &Observed) -> BTreeMap<String, u32> {
    let mut bound: BTreeMap<String, u32> = BTreeMap::new();
    for (workload, pods) in world.pod_runs() {
        let count = pods.iter().filter(|pod| pod.is_active() && pod.node.is_some()).count();
        let pods = bound.entry(workload_key(&workload)).or_default();
        *pods = pods.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }
    bound
}
