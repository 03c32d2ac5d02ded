//! Schedules the pods of a plan with the scheduler model in independent orders.
//!
//! It does not use the placement simulation of the solver. It reads a finished plan, schedules each
//! pod that the plan places onto the planned nodes, and counts the pods that stay pending.

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

/// The order in which pods arrive.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PodSequence {
    Declared,
    MostCpuFirst,
    LeastCpuFirst,
    MostMemoryFirst,
    LeastMemoryFirst,
    ByNamespace,
    /// One pod of each workload in turn.
    InTurn,
    Shuffled,
}

/// The scoring rules of Kubernetes 1.35 or 1.36. Version 1.36 without extenders breaks ties by the
/// order of the nodes instead of at random.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SchedulerRules {
    Drawn135,
    Drawn136,
    Heaped136,
}

/// A way to schedule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplayVariant {
    order: PodSequence,
    rules: SchedulerRules,
    /// Seed for shuffles, random ties and the order of nodes.
    seed: u64,
}

impl ReplayVariant {
    pub(crate) const fn new(order: PodSequence, rules: SchedulerRules, seed: u64) -> Self {
        Self { order, rules, seed }
    }
}

/// Combinations that the plan of a small fleet simulates, implemented separately.
pub(crate) const REPLAY_VARIANTS: [ReplayVariant; 10] = [
    ReplayVariant::new(PodSequence::Declared, SchedulerRules::Drawn136, 0),
    ReplayVariant::new(PodSequence::Declared, SchedulerRules::Drawn135, 1),
    ReplayVariant::new(PodSequence::MostCpuFirst, SchedulerRules::Drawn136, 2),
    ReplayVariant::new(PodSequence::LeastCpuFirst, SchedulerRules::Drawn135, 5),
    ReplayVariant::new(PodSequence::MostCpuFirst, SchedulerRules::Drawn135, 3),
    ReplayVariant::new(PodSequence::LeastCpuFirst, SchedulerRules::Drawn136, 4),
    ReplayVariant::new(PodSequence::MostMemoryFirst, SchedulerRules::Drawn136, 14),
    ReplayVariant::new(PodSequence::MostMemoryFirst, SchedulerRules::Drawn135, 15),
    ReplayVariant::new(PodSequence::LeastMemoryFirst, SchedulerRules::Drawn136, 16),
    ReplayVariant::new(PodSequence::LeastMemoryFirst, SchedulerRules::Drawn135, 17),
];

/// Combinations that no plan simulates: other orders and other tie-breaking.
pub(crate) const UNSEEN: [ReplayVariant; 12] = [
    ReplayVariant::new(PodSequence::ByNamespace, SchedulerRules::Drawn136, 31),
    ReplayVariant::new(PodSequence::Shuffled, SchedulerRules::Drawn136, 32),
    ReplayVariant::new(PodSequence::Shuffled, SchedulerRules::Drawn135, 33),
    ReplayVariant::new(PodSequence::LeastCpuFirst, SchedulerRules::Drawn136, 34),
    ReplayVariant::new(PodSequence::MostCpuFirst, SchedulerRules::Drawn135, 35),
    ReplayVariant::new(PodSequence::LeastMemoryFirst, SchedulerRules::Drawn136, 36),
    ReplayVariant::new(PodSequence::Declared, SchedulerRules::Heaped136, 37),
    ReplayVariant::new(PodSequence::LeastCpuFirst, SchedulerRules::Heaped136, 38),
    ReplayVariant::new(PodSequence::LeastMemoryFirst, SchedulerRules::Heaped136, 39),
    ReplayVariant::new(PodSequence::MostCpuFirst, SchedulerRules::Heaped136, 40),
    ReplayVariant::new(PodSequence::Shuffled, SchedulerRules::Heaped136, 41),
    ReplayVariant::new(PodSequence::InTurn, SchedulerRules::Heaped136, 42),
];

/// The state that a plan refers to.
pub(crate) struct PlanInputs<'a> {
    pub(crate) desired: &'a Desired,
    pub(crate) demand: &'a Demand,
    pub(crate) observed: &'a Observed,
}

/// Pods with the same shape.
struct InterchangeablePods<'a> {
    shape: &'a Arc<PodShape>,
    workload: &'a WorkloadId,
    /// Number of pods that stay, by node.
    staying: Vec<(&'a NodeName, u32)>,
    coming: u32,
}

impl PlanInputs<'_> {
    /// Returns the number of placed pods of `plan` that stay pending in this variant.
    pub(crate) fn left_over(&self, plan: &Plan, variant: ReplayVariant) -> usize {
        let ReplayVariant { order, rules, seed } = variant;
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
                let node = scheduler.node(name).expect("the node stays");
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

    /// Returns the pods that the plan places.
    fn kinds(&self, plan: &Plan, nodes: &[ScheduleNode]) -> Vec<InterchangeablePods<'_>> {
        let node_names: BTreeSet<&NodeName> = nodes.iter().map(|node| &node.name).collect();
        let mut kinds = Vec::new();
        for group in &self.demand.groups {
            let rows = plan.capacity.unschedulable.iter();
            let left = rows.filter(|row| row.workload == group.workload).map(|row| row.pods);
            let mut left: u32 = left.sum();
            for (shape, planned, running) in shapes_of(group) {
                let mut coming = planned;
                let mut staying = Vec::new();
                for (name, count) in running.iter().filter(|(name, _)| node_names.contains(name)) {
                    // Running pods in excess of the plan are removed.
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

/// Returns the shapes of a group with their planned pods and the running pods by node.
fn shapes_of(group: &PodGroup) -> Vec<(&Arc<PodShape>, u32, &BTreeMap<NodeName, u32>)> {
    if group.partitions.is_empty() {
        return vec![(&group.shape, group.counts.planned, &group.running)];
    }
    group.partitions.iter().map(|part| (&part.shape, part.planned, &part.running)).collect()
}

/// Returns the arriving pods by kind, in their order.
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

/// Returns the first pod of each kind, then the second, and so on.
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

/// Schedules pods in turn, and retries pending pods after each pass that bound some. Returns the
/// number of pending pods.
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
