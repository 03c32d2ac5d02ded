//! Simulated drain: evicted pods arrive while their old nodes still exist.
//!
//! A node to retire is cordoned, its pods are evicted, and their replacements need a node at once.
//! The old node still counts as a topology domain, and affinity still sees the terminating pods.
//! Pods that do not fit are retried once the nodes are gone.
//!
//! The simulation covers the state during a drain, but not its duration or obstacles.

use std::collections::BTreeMap;

use super::scheduling_runs::{Arrivals, SchedulingRun};
use super::simulation::Simulation;
use super::simulation_run::{RunResult, SimState};
use super::staggered_readiness::place_queue;
use crate::scheduler::{NodeIndex, ScheduleNode, Scheduler};

impl Simulation<'_> {
    /// Simulates evicted pods that arrive after the pending ones.
    pub(super) fn run_drain(
        &self,
        state: &SimState,
        run: SchedulingRun,
        pending: &[u32],
    ) -> RunResult {
        let mut scheduler = run.configure(state.scheduler.clone());
        let leaving = self.add_draining_nodes(&mut scheduler, state);
        let arrivals = Arrivals { pending, draining: &state.draining };
        let queue = run.queue(self.problem.groups, &arrivals);
        let mut bound = Vec::with_capacity(queue.len());
        let mut waiting = place_queue(&mut scheduler, state, queue, &mut bound);
        // A pod that tolerates every taint may be placed on a draining node, and must move again.
        let stays = |node: NodeIndex| node.number() < state.node_count();
        waiting.extend(bound.iter().filter(|(_, node)| !stays(*node)).map(|(group, _)| *group));
        bound.retain(|(_, node)| stays(*node));
        for node in leaving {
            scheduler.remove_node(node);
        }
        let mut left = BTreeMap::new();
        for group in place_queue(&mut scheduler, state, waiting, &mut bound) {
            *left.entry(group).or_insert(0) += 1;
        }
        RunResult { bound, left_over: left }
    }

    /// Adds the draining nodes, cordoned, with their terminating pods.
    fn add_draining_nodes(&self, scheduler: &mut Scheduler, state: &SimState) -> Vec<NodeIndex> {
        let existing = self.problem.existing;
        let node = |index: usize| ScheduleNode {
            name: existing[index].name.clone(),
            labels: existing[index].labels.clone(),
            taints: existing[index].taints.clone(),
            allocatable: existing[index].allocatable.clone(),
            unschedulable: true,
        };
        let nodes: Vec<ScheduleNode> = state.draining.iter().map(|(i, _)| node(*i)).collect();
        let indices = scheduler.add_nodes(nodes);
        for ((_, pods), index) in state.draining.iter().zip(&indices) {
            for (group, count) in pods {
                let class = scheduler.stopping_class_of(state.classes[*group]);
                (0..*count).for_each(|_| scheduler.bind(class, *index));
            }
        }
        indices
    }
}
