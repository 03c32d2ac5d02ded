//! Arrival orders: the queue in which pods reach the scheduler.
//!
//! The order comes from whatever creates the pods: a delivery tool, controllers, or a drain. Higher
//! priorities come first in every order but one.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use crate::demand::PodGroup;
use crate::solver::existing_node::ExistingNode;

/// Order in which pods arrive at the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArrivalOrder {
    /// By namespace and name, as a delivery tool applies them.
    Declared,
    /// Pods with the largest request first.
    LargestFirst(SizeResource),
    /// Pods with the smallest request first.
    SmallestFirst(SizeResource),
    /// One pod of each workload in turn, as controllers that start together create them.
    Interleaved,
    /// Random order from this seed.
    Shuffled(u64),
    /// By namespace and name, and last the pods of a higher priority that never preempt.
    PatientLast,
    /// Pending pods first, then the pods of each drained node, one node after the other.
    Drained,
    /// By namespace and name, first on existing nodes, then on new nodes as they become ready.
    AsNodesBecomeReady,
}

impl ArrivalOrder {
    /// Returns the arriving pods by group in arrival order. Higher priorities always come first.
    pub(super) fn queue(self, groups: &[PodGroup], arrivals: &Arrivals) -> Vec<usize> {
        let pending = arrivals.pending;
        let mut order: Vec<usize> = (0..groups.len()).filter(|group| pending[*group] > 0).collect();
        match self {
            ArrivalOrder::LargestFirst(size) => {
                order.sort_by_key(|g| (std::cmp::Reverse(size.key(&groups[*g])), *g));
            }
            ArrivalOrder::SmallestFirst(size) => order.sort_by_key(|g| (size.key(&groups[*g]), *g)),
            ArrivalOrder::Declared
            | ArrivalOrder::Interleaved
            | ArrivalOrder::Shuffled(_)
            | ArrivalOrder::PatientLast
            | ArrivalOrder::Drained
            | ArrivalOrder::AsNodesBecomeReady => {}
        }
        let mut queue: Vec<usize> =
            order.into_iter().flat_map(|g| repeat_group(g, pending[g])).collect();
        match self {
            ArrivalOrder::Shuffled(seed) => queue.shuffle(&mut Pcg64::seed_from_u64(seed)),
            ArrivalOrder::Interleaved => queue = interleave(&queue),
            ArrivalOrder::Declared
            | ArrivalOrder::LargestFirst(_)
            | ArrivalOrder::SmallestFirst(_)
            | ArrivalOrder::PatientLast
            | ArrivalOrder::Drained
            | ArrivalOrder::AsNodesBecomeReady => {}
        }
        let first = |queue: &mut Vec<usize>| {
            queue.sort_by_key(|group| std::cmp::Reverse(groups[*group].shape.priority));
        };
        if self == ArrivalOrder::Drained {
            // Evicted pods arrive after the others are placed.
            let mut evicted;
            (queue, evicted) = arrivals.split_evicted();
            first(&mut queue);
            first(&mut evicted);
            queue.extend(evicted);
        } else {
            first(&mut queue);
        }
        if self == ArrivalOrder::PatientLast {
            queue.sort_by_key(|group| is_patient(&groups[*group]));
        }
        queue
    }
}

/// Resource that ranks pods by size. A pod that is large in one resource may be small in another.
/// The last pods to arrive find every node partly used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SizeResource {
    Cpu,
    Memory,
}

impl SizeResource {
    /// Returns the sort key of a pod; the other resource breaks ties.
    fn key(self, group: &PodGroup) -> (i64, i64) {
        let asks = &group.shape.requests;
        match self {
            SizeResource::Cpu => (asks.cpu.0, asks.memory.0),
            SizeResource::Memory => (asks.memory.0, asks.cpu.0),
        }
    }
}

/// Draining nodes by index among the existing nodes, each with running pods by group.
pub(in crate::solver) type DrainingPods = Vec<(usize, Vec<(usize, u32)>)>;

/// Returns the pods on nodes that are not retained.
pub(in crate::solver) fn draining_pods(
    groups: &[PodGroup],
    existing: &[ExistingNode],
    retained: &[bool],
) -> DrainingPods {
    let gone = existing.iter().zip(retained).enumerate();
    let gone = gone.filter(|(_, (node, retained))| !**retained && !node.is_planned);
    let pods = |node: &ExistingNode| -> Vec<(usize, u32)> {
        let here = |(index, group): (usize, &PodGroup)| {
            group.running.get(&node.name).map(|count| (index, *count))
        };
        groups.iter().enumerate().filter_map(here).collect()
    };
    let gone = gone.map(|(index, (node, _))| (index, pods(node)));
    gone.filter(|(_, pods)| !pods.is_empty()).collect()
}

/// Pods that arrive at the scheduler.
#[derive(Clone, Copy)]
pub(in crate::solver) struct Arrivals<'a> {
    /// Number of pods by group.
    pub pending: &'a [u32],
    /// Nodes that some of the pods run on until they are drained.
    pub draining: &'a DrainingPods,
}

impl Arrivals<'_> {
    /// Returns the pending pods and the evicted pods.
    fn split_evicted(&self) -> (Vec<usize>, Vec<usize>) {
        let mut pending = self.pending.to_vec();
        let mut evicted = Vec::new();
        for (group, count) in self.draining.iter().flat_map(|(_, pods)| pods) {
            let count = pending[*group].min(*count);
            pending[*group] -= count;
            evicted.extend(repeat_group(*group, count));
        }
        let groups = 0..pending.len();
        (groups.flat_map(|group| repeat_group(group, pending[group])).collect(), evicted)
    }
}

/// Reorders pods from group by group to one of each group in turn.
fn interleave(queue: &[usize]) -> Vec<usize> {
    let groups = queue.chunk_by(|a, b| a == b);
    let mut turns: Vec<(usize, usize)> =
        groups.flat_map(|pods| pods.iter().copied().enumerate()).collect();
    turns.sort_unstable();
    turns.into_iter().map(|(_, group)| group).collect()
}

fn repeat_group(group: usize, count: u32) -> impl Iterator<Item = usize> {
    std::iter::repeat_n(group, usize::try_from(count).unwrap_or(usize::MAX))
}

/// Returns true if some pods have a higher priority than others, and never preempt them.
pub(in crate::solver) fn has_patient_pods(groups: &[PodGroup]) -> bool {
    let planned = || groups.iter().filter(|group| group.counts.planned > 0);
    let lowest = planned().map(|group| group.shape.priority).min();
    planned().any(|group| is_patient(group) && Some(group.shape.priority) > lowest)
}

fn is_patient(group: &PodGroup) -> bool {
    !group.shape.preempts && group.shape.priority > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaving_takes_one_pod_of_each_workload_in_turn() {
        assert_eq!(interleave(&[4, 4, 4, 1, 2, 2]), [1, 2, 4, 2, 4, 4]);
    }
}
