//! Simulated staggered readiness: pods arrive before all new nodes are ready.
//!
//! kube-scheduler places pods on the nodes that are ready. The first pods fill existing nodes, and
//! nodes without startup taints fill before nodes with startup taints. The simulation covers the
//! order of readiness, but not its duration.

use std::collections::BTreeMap;

use super::offer::Offer;
use super::scheduling_runs::{Arrivals, SchedulingRun};
use super::simulation::Simulation;
use super::simulation_run::{RunResult, SimState};
use super::target_fleet::NodeRef;
use crate::scheduler::{NodeIndex, Scheduler};

/// Returns true if some nodes are ready before others: existing nodes before new ones, and nodes
/// without startup taints before nodes with startup taints.
pub(super) fn is_staggered(stands: bool, launched: &[usize], offers: &[Offer]) -> bool {
    let mut new = launched.iter().map(|offer| has_startup_taints(&offers[*offer]));
    let Some(first) = new.next() else { return false };
    stands || new.any(|other| other != first)
}

fn has_startup_taints(offer: &Offer) -> bool {
    !offer.node.startup_taints.is_empty()
}

impl Simulation<'_> {
    /// Simulates pods that arrive before the new nodes. Existing nodes take the pods that fit,
    /// whatever else is planned for them.
    pub(super) fn run_staggered(
        &self,
        state: &SimState,
        run: SchedulingRun,
        pending: &[u32],
    ) -> RunResult {
        let empty = self.empty_scheduler(state.node_count());
        let mut scheduler = run.configure(empty.scheduler.clone());
        let is_new = |node_ref: &NodeRef| matches!(node_ref, NodeRef::Launch(_));
        self.add_ready_nodes(&mut scheduler, state, |node_ref| !is_new(node_ref));
        state.bind_running(&mut scheduler);
        let arrivals = Arrivals { pending, draining: &state.draining };
        let queue = run.queue(self.problem.groups, &arrivals);
        let mut bound = Vec::with_capacity(queue.len());
        let queue = place_queue(&mut scheduler, state, queue, &mut bound);
        let starting = self.add_ready_nodes(&mut scheduler, state, is_new);
        let queue = place_queue(&mut scheduler, state, queue, &mut bound);
        for node in starting {
            scheduler.set_unschedulable(node, false);
        }
        let mut left = BTreeMap::new();
        for group in place_queue(&mut scheduler, state, queue, &mut bound) {
            *left.entry(group).or_insert(0) += 1;
        }
        RunResult { bound, left_over: left }
    }

    /// Adds the selected nodes with their DaemonSet pods. Returns those with startup taints: they
    /// exist, but pods may not use them yet.
    fn add_ready_nodes(
        &self,
        scheduler: &mut Scheduler,
        state: &SimState,
        which: impl Fn(&NodeRef) -> bool,
    ) -> Vec<NodeIndex> {
        let arrivals: Vec<_> =
            state.nodes_with_offers().filter(|(_, node_ref, _)| which(node_ref)).collect();
        let indices = scheduler.add_nodes(arrivals.iter().map(|(node, ..)| (*node).clone()));
        let mut starting = Vec::new();
        for ((node, node_ref, offer), index) in arrivals.into_iter().zip(indices) {
            let whole = self.allocatable_of(node_ref, &state.offers);
            self.bind_fixed(scheduler, &state.fixed, (node, index), whole);
            if offer.is_some_and(|offer| has_startup_taints(&self.problem.offers[offer])) {
                scheduler.set_unschedulable(index, true);
                starting.push(index);
            }
        }
        starting
    }
}

/// Places pods, retries as long as that helps, and returns the pods that are still pending.
pub(super) fn place_queue(
    scheduler: &mut Scheduler,
    state: &SimState,
    mut queue: Vec<usize>,
    bound: &mut Vec<(usize, NodeIndex)>,
) -> Vec<usize> {
    loop {
        let before = queue.len();
        queue.retain(|group| {
            let Some(node) = scheduler.try_schedule(state.classes[*group], None) else {
                return true;
            };
            // Use the node numbers of the initial state; other nodes get later numbers.
            let known = state.scheduler.node(scheduler.name(node));
            bound.push((*group, known.unwrap_or(node)));
            false
        });
        if queue.len() == before {
            return queue;
        }
    }
}
