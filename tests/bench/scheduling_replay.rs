//! A plan's pods put to the scheduler's model once more, in orders of its own.
//!
//! The rehearsal of `solve` is not asked: what stands here reads a finished plan, places each pod that
//! it calls placed on the nodes that it plans, and counts those that wait in the end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fleetwright::demand::{Demand, PodGroup, PodShape};
use fleetwright::model::desired::Desired;
use fleetwright::model::ids::{Namespace, NodeName, WorkloadId};
use fleetwright::model::observed::Observed;
use fleetwright::model::requirement::label;
use fleetwright::model::units::{Bytes, MilliCpu, Resources};
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{Amount, NodeState, ResourceChange};
use fleetwright::scheduler::{
    BalanceScoring, ClassIndex, NodeIndex, ScheduleNode, Scheduler, TieBreaking,
};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

/// In which order pods come.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PodSequence {
    Declared,
    MostCpuFirst,
    LeastCpuFirst,
    MostMemoryFirst,
    LeastMemoryFirst,
    ByNamespace,
    /// One of each workload after the other.
    InTurn,
    Shuffled,
}

/// The rules of Kubernetes 1.35 or of 1.36, which breaks ties by the order of nodes instead of drawing
/// them, unless its scheduler has extenders.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SchedulerRules {
    Drawn135,
    Drawn136,
    Heaped136,
}

/// A way to come: an order, the rules of the scheduler, and the seed of shuffles, ties and, where these
/// go by it, the order of nodes.
pub(crate) type ReplayVariant = (PodSequence, SchedulerRules, u64);

/// Ways that the plan of a fleet that is not large names, in code of its own.
pub(crate) const REPLAY_VARIANTS: [ReplayVariant; 10] = [
    (PodSequence::Declared, SchedulerRules::Drawn136, 0),
    (PodSequence::Declared, SchedulerRules::Drawn135, 1),
    (PodSequence::MostCpuFirst, SchedulerRules::Drawn136, 2),
    (PodSequence::LeastCpuFirst, SchedulerRules::Drawn135, 5),
    (PodSequence::MostCpuFirst, SchedulerRules::Drawn135, 3),
    (PodSequence::LeastCpuFirst, SchedulerRules::Drawn136, 4),
    (PodSequence::MostMemoryFirst, SchedulerRules::Drawn136, 14),
    (PodSequence::MostMemoryFirst, SchedulerRules::Drawn135, 15),
    (PodSequence::LeastMemoryFirst, SchedulerRules::Drawn136, 16),
    (PodSequence::LeastMemoryFirst, SchedulerRules::Drawn135, 17),
];

/// Ways that no plan names: other orders, and ties that are broken otherwise.
pub(crate) const UNSEEN: [ReplayVariant; 12] = [
    (PodSequence::ByNamespace, SchedulerRules::Drawn136, 31),
    (PodSequence::Shuffled, SchedulerRules::Drawn136, 32),
    (PodSequence::Shuffled, SchedulerRules::Drawn135, 33),
    (PodSequence::LeastCpuFirst, SchedulerRules::Drawn136, 34),
    (PodSequence::MostCpuFirst, SchedulerRules::Drawn135, 35),
    (PodSequence::LeastMemoryFirst, SchedulerRules::Drawn136, 36),
    (PodSequence::Declared, SchedulerRules::Heaped136, 37),
    (PodSequence::LeastCpuFirst, SchedulerRules::Heaped136, 38),
    (PodSequence::LeastMemoryFirst, SchedulerRules::Heaped136, 39),
    (PodSequence::MostCpuFirst, SchedulerRules::Heaped136, 40),
    (PodSequence::Shuffled, SchedulerRules::Heaped136, 41),
    (PodSequence::InTurn, SchedulerRules::Heaped136, 42),
];

/// What a plan is about.
pub(crate) struct PlanInputs<'a> {
    pub(crate) desired: &'a Desired,
    pub(crate) demand: &'a Demand,
    pub(crate) observed: &'a Observed,
}

/// Pods that are alike.
struct InterchangeablePods<'a> {
    shape: &'a Arc<PodShape>,
    workload: &'a WorkloadId,
    /// How many stay where.
    staying: Vec<(&'a NodeName, u32)>,
    coming: u32,
}

impl PlanInputs<'_> {
    /// Returns how many pods that `plan` calls placed wait in the end where they come in this way.
    pub(crate) fn left_over(&self, plan: &Plan, (order, rules, seed): ReplayVariant) -> usize {
        let rows = plan.resource_changes.iter();
        let nodes: Vec<ScheduleNode> = rows.filter_map(|row| self.node(row)).collect();
        let kinds = self.kinds(plan, &nodes);
        let scheduler = Scheduler::new(nodes, &self.desired.namespaces, seed);
        let mut scheduler = match rules {
            SchedulerRules::Drawn135 => scheduler.with_balance(BalanceScoring::Evenness),
            SchedulerRules::Drawn136 => scheduler,
            SchedulerRules::Heaped136 => {
                scheduler.with_ties(TieBreaking::HeapOrder).with_nodes_shuffled(seed)
            }
        };
        let all: Vec<NodeIndex> = scheduler.nodes().collect();
        for daemon in &self.demand.daemons {
            let class = scheduler.class(&daemon.shape, Some(&daemon.workload));
            for node in &all {
                if scheduler.fits(class, *node).is_ok() {
                    scheduler.bind(class, *node);
                }
            }
        }
        let classes: Vec<ClassIndex> =
            kinds.iter().map(|kind| scheduler.class(kind.shape, Some(kind.workload))).collect();
        for (kind, class) in kinds.iter().zip(&classes) {
            for (name, count) in &kind.staying {
                let node = scheduler.node(name).expect("it stays");
                (0..*count).for_each(|_| scheduler.bind(*class, node));
            }
        }
        waiting(&mut scheduler, queue(&kinds, order, seed).into_iter().map(|kind| classes[kind]))
    }

    fn node(&self, row: &ResourceChange) -> Option<ScheduleNode> {
        let state = row.change.after.as_ref()?;
        let NodeState { node, labels, taints, allocatable, .. } = state;
        if labels.is_empty() {
            return None;
        }
        let known = node.as_ref().and_then(|name| self.observed.nodes.get(name));
        let name = node.clone().unwrap_or_else(|| NodeName::from(row.address.as_str()));
        let mut labels = labels.clone();
        labels.extend([label("kubernetes.io/hostname", name.as_str())]);
        Some(ScheduleNode {
            name,
            labels,
            taints: taints.clone(),
            allocatable: resources(allocatable),
            unschedulable: known.is_some_and(|node| node.unschedulable),
        })
    }

    /// Returns the pods that the plan calls placed.
    fn kinds(&self, plan: &Plan, nodes: &[ScheduleNode]) -> Vec<InterchangeablePods<'_>> {
        let there: BTreeSet<&NodeName> = nodes.iter().map(|node| &node.name).collect();
        let mut kinds = Vec::new();
        for group in &self.demand.groups {
            let rows = plan.capacity.unschedulable.iter();
            let left = rows.filter(|row| row.workload == group.workload).map(|row| row.pods);
            let mut left: u32 = left.sum();
            for (shape, planned, running) in alike(group) {
                let mut coming = planned;
                let mut staying = Vec::new();
                for (name, count) in running.iter().filter(|(name, _)| there.contains(name)) {
                    // Of more pods than are planned some are about to go.
                    let stays = coming.min(*count);
                    staying.push((name, stays));
                    coming -= stays;
                }
                let out = left.min(coming);
                (left, coming) = (left - out, coming - out);
                kinds.push(InterchangeablePods {
                    shape,
                    workload: &group.workload,
                    staying,
                    coming,
                });
            }
        }
        kinds
    }
}

/// Returns the pods of a group that are alike, how many are planned, and how many run where.
fn alike(group: &PodGroup) -> Vec<(&Arc<PodShape>, u32, &BTreeMap<NodeName, u32>)> {
    if group.partitions.is_empty() {
        return vec![(&group.shape, group.counts.planned, &group.running)];
    }
    group.partitions.iter().map(|part| (&part.shape, part.planned, &part.running)).collect()
}

/// Returns the pods that come, by kind, as they come.
fn queue(kinds: &[InterchangeablePods<'_>], order: PodSequence, seed: u64) -> Vec<usize> {
    let asks = |kind: &usize| &kinds[*kind].shape.requests;
    let by_cpu = |kind: &usize| (asks(kind).cpu, asks(kind).memory);
    let by_memory = |kind: &usize| (asks(kind).memory, asks(kind).cpu);
    let namespace = |kind: &usize| -> &Namespace { &kinds[*kind].shape.namespace };
    let pods = |(index, kind): (usize, &InterchangeablePods)| {
        std::iter::repeat_n(index, usize::try_from(kind.coming).unwrap_or(usize::MAX))
    };
    let mut queue: Vec<usize> = kinds.iter().enumerate().flat_map(pods).collect();
    match order {
        PodSequence::Declared => {}
        PodSequence::MostCpuFirst => queue.sort_by_key(|kind| Reverse(by_cpu(kind))),
        PodSequence::LeastCpuFirst => queue.sort_by_key(by_cpu),
        PodSequence::MostMemoryFirst => queue.sort_by_key(|kind| Reverse(by_memory(kind))),
        PodSequence::LeastMemoryFirst => queue.sort_by_key(by_memory),
        PodSequence::InTurn => queue = in_turn(&queue),
        PodSequence::ByNamespace => queue.sort_by(|a, b| namespace(a).cmp(namespace(b))),
        PodSequence::Shuffled => queue.shuffle(&mut Pcg64::seed_from_u64(seed)),
    }
    queue.sort_by_key(|kind| Reverse(kinds[*kind].shape.priority));
    queue
}

/// Returns the first pod of each kind, then the second of each that has one, and so on.
fn in_turn(queue: &[usize]) -> Vec<usize> {
    let mut seen: BTreeMap<usize, usize> = BTreeMap::new();
    let mut turns: Vec<(usize, usize)> = Vec::new();
    for kind in queue {
        let turn = seen.entry(*kind).or_default();
        turns.push((*turn, *kind));
        *turn += 1;
    }
    turns.sort_unstable();
    turns.into_iter().map(|(_, kind)| kind).collect()
}

/// Has the scheduler place pods in turn, and those that wait again whenever others found a place;
/// returns how many wait in the end.
fn waiting(scheduler: &mut Scheduler, queue: impl Iterator<Item = ClassIndex>) -> usize {
    let mut waiting: Vec<ClassIndex> = queue.collect();
    loop {
        let before = waiting.len();
        waiting.retain(|class| scheduler.try_schedule(*class, None).is_none());
        if waiting.is_empty() || waiting.len() == before {
            return waiting.len();
        }
    }
}

fn resources(amount: &Amount) -> Resources {
    Resources {
        cpu: MilliCpu(amount.cpu_milli),
        memory: Bytes(amount.memory_bytes),
        ephemeral_storage: Bytes(amount.ephemeral_storage_bytes),
        pods: amount.pods,
        extended: amount.extended.iter().map(|(k, n)| (k.as_str().into(), *n)).collect(),
    }
}
