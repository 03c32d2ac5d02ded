//! Which runs a rehearsal consists of: the orders in which pods come, and the scheduler's rules.

use std::collections::BTreeSet;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use super::standing::Standing;
use crate::demand::PodGroup;
use crate::ids::NodeName;
use crate::schedule::{Balance, Scheduler, Ties};

/// One rehearsal: the order in which pods come, and the scheduler's rule for balance, which
/// Kubernetes 1.36 changed; a cluster may run either.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    order: Order,
    balance: Balance,
}

/// The orders in which pods come to the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// By namespace and name, as a delivery tool applies them.
    Declared,
    /// The pods that ask for most of it first.
    LargestFirst(Size),
    /// The pods that ask for least of it first.
    SmallestFirst(Size),
    /// At random, from this seed.
    Shuffled(u64),
    /// Those that run nowhere yet, then those of one node that goes after the other, as drains
    /// make them come.
    Drained,
    /// By namespace and name, on the nodes that stand first, and on new ones as these come up.
    Early,
}

/// What makes a pod large. One that is large in one way may be small in the other, and what comes
/// last finds a share of every node taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Cpu,
    Memory,
}

impl Size {
    /// Returns the size of a pod, the other way of being large for those that are alike in this one.
    fn of(self, group: &PodGroup) -> (i64, i64) {
        let asks = &group.shape.requests;
        match self {
            Size::Cpu => (asks.cpu.0, asks.memory.0),
            Size::Memory => (asks.memory.0, asks.cpu.0),
        }
    }
}

/// For each node that goes, by its place among the standing ones, how many pods of which group run
/// there.
pub(super) type Leaving = Vec<(usize, Vec<(usize, u32)>)>;

/// Returns the pods on nodes that are not `kept`.
pub(super) fn leaving(groups: &[PodGroup], standing: &[Standing], kept: &[bool]) -> Leaving {
    let gone = standing.iter().zip(kept).enumerate();
    let gone = gone.filter(|(_, (node, kept))| !**kept && !node.is_new);
    let pods = |node: &Standing| -> Vec<(usize, u32)> {
        let here = |(index, group): (usize, &PodGroup)| {
            group.running.get(&node.name).map(|count| (index, *count))
        };
        groups.iter().enumerate().filter_map(here).collect()
    };
    let gone = gone.map(|(index, (node, _))| (index, pods(node)));
    gone.filter(|(_, pods)| !pods.is_empty()).collect()
}

/// Returns the nodes that planned workloads have pods on now. A node is empty that is not among them,
/// wherever its pods are to be: what is there has to move for the node to go.
pub(super) fn occupied(groups: &[PodGroup]) -> BTreeSet<&NodeName> {
    let planned = groups.iter().filter(|group| group.counts.planned > 0);
    planned.flat_map(|group| group.running.keys()).collect()
}

/// What tells most comes first.
const RUNS: [Run; 12] = [
    Run { order: Order::Declared, balance: Balance::Change },
    Run { order: Order::LargestFirst(Size::Cpu), balance: Balance::Change },
    Run { order: Order::SmallestFirst(Size::Cpu), balance: Balance::Change },
    Run { order: Order::LargestFirst(Size::Memory), balance: Balance::Change },
    Run { order: Order::SmallestFirst(Size::Memory), balance: Balance::Change },
    Run { order: Order::SmallestFirst(Size::Cpu), balance: Balance::Level },
    Run { order: Order::SmallestFirst(Size::Memory), balance: Balance::Level },
    Run { order: Order::LargestFirst(Size::Cpu), balance: Balance::Level },
    Run { order: Order::LargestFirst(Size::Memory), balance: Balance::Level },
    Run { order: Order::Declared, balance: Balance::Level },
    Run { order: Order::Shuffled(1), balance: Balance::Change },
    Run { order: Order::Shuffled(2), balance: Balance::Level },
];

/// Further orders at random, for what must not depend on luck.
const MORE: [u64; 8] = [11, 12, 13, 14, 15, 16, 17, 18];

/// Pods times nodes up to which all of them are made, and how many beyond.
const MORE_UP_TO: u64 = 200_000;
const MORE_MIN: usize = 2;

/// What more there is to tell where pods come while nodes come up.
const EARLY: [Run; 1] = [Run { order: Order::Early, balance: Balance::Change }];

/// What more there is to tell where nodes are drained.
const DRAINS: [Run; 2] = [
    Run { order: Order::Drained, balance: Balance::Change },
    Run { order: Order::Drained, balance: Balance::Level },
];

/// How many of the runs are made up to so many pods times nodes: on a small fleet one pod decides,
/// and a run costs little.
const RUNS_UP_TO: [(u64, usize); 2] = [(5_000_000, RUNS.len()), (20_000_000, 5)];

/// Runs that are made of any fleet.
const RUNS_MIN: usize = 3;

/// What happens to a fleet while its pods come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Events {
    /// Nodes are drained.
    pub drained: bool,
    /// New nodes come up later than others, which pods may use before.
    pub early: bool,
}

impl Events {
    /// Every node is there, and stays.
    pub(super) const NONE: Self = Self { drained: false, early: false };
}

/// Returns the runs for so many pods on so many nodes; what happens meanwhile is left out of those
/// of the largest fleets.
pub(super) fn runs(pods: u64, nodes: usize, events: Events) -> Vec<Run> {
    let work = pods.saturating_mul(u64::try_from(nodes).unwrap_or(u64::MAX));
    let made = RUNS_UP_TO.iter().find(|(most, _)| work <= *most).map(|(_, made)| *made);
    let drains = if events.drained && made.is_some() { &DRAINS[..] } else { &[] };
    let early = if events.early && made.is_some() { &EARLY[..] } else { &[] };
    let runs = RUNS[..made.unwrap_or(RUNS_MIN)].iter();
    runs.chain(early).chain(drains).copied().collect()
}

/// Returns further runs for so many pods on so many nodes.
pub(super) fn more_runs(pods: u64, nodes: usize) -> Vec<Run> {
    let work = pods.saturating_mul(u64::try_from(nodes).unwrap_or(u64::MAX));
    let made = if work <= MORE_UP_TO { MORE.len() } else { MORE_MIN };
    let run = |seed: &u64| {
        [Balance::Change, Balance::Level]
            .map(|balance| Run { order: Order::Shuffled(*seed), balance })
    };
    MORE[..made].iter().flat_map(run).collect()
}

/// Returns how many pods are planned.
pub(super) fn planned_pods(groups: &[PodGroup]) -> u64 {
    groups.iter().map(|group| u64::from(group.counts.planned)).fold(0, u64::saturating_add)
}

impl Run {
    /// Returns `scheduler` with the rules of the version that is played: 1.36 changed two of them.
    pub(super) fn rules_of(self, scheduler: Scheduler) -> Scheduler {
        let ties = match self.balance {
            Balance::Change => Ties::Heaped,
            Balance::Level => Ties::Drawn,
        };
        scheduler.with_balance(self.balance).with_ties(ties).with_seed(self.seed())
    }

    /// Returns where its ties between nodes are drawn from: no two runs break them alike.
    fn seed(self) -> u64 {
        let order = match self.order {
            Order::Declared => 0,
            Order::LargestFirst(Size::Cpu) => 1,
            Order::SmallestFirst(Size::Cpu) => 2,
            Order::Shuffled(seed) => 2 + seed,
            Order::Drained => 5,
            Order::Early => 6,
            Order::LargestFirst(Size::Memory) => 7,
            Order::SmallestFirst(Size::Memory) => 8,
        };
        let balance = match self.balance {
            Balance::Change => 0,
            Balance::Level => 1,
        };
        2 * order + balance
    }

    fn name(self) -> String {
        let order = match self.order {
            Order::Declared => "declared".to_owned(),
            Order::LargestFirst(Size::Cpu) => "most-cpu-first".to_owned(),
            Order::SmallestFirst(Size::Cpu) => "least-cpu-first".to_owned(),
            Order::LargestFirst(Size::Memory) => "most-memory-first".to_owned(),
            Order::SmallestFirst(Size::Memory) => "least-memory-first".to_owned(),
            Order::Shuffled(seed) => format!("shuffled-{seed}"),
            Order::Drained => "drained".to_owned(),
            Order::Early => "as-nodes-come-up".to_owned(),
        };
        let balance = match self.balance {
            Balance::Level => "1.35",
            Balance::Change => "1.36",
        };
        format!("{order} (kube-scheduler {balance})")
    }

    /// Returns the `pending` pods, by group, in the order in which they come; higher priority goes
    /// first in any case.
    pub(super) fn queue(self, groups: &[PodGroup], coming: &Coming) -> Vec<usize> {
        let pending = coming.pending;
        let mut order: Vec<usize> = (0..groups.len()).filter(|group| pending[*group] > 0).collect();
        match self.order {
            Order::LargestFirst(size) => {
                order.sort_by_key(|g| (std::cmp::Reverse(size.of(&groups[*g])), *g));
            }
            Order::SmallestFirst(size) => order.sort_by_key(|g| (size.of(&groups[*g]), *g)),
            Order::Declared | Order::Shuffled(_) | Order::Drained | Order::Early => {}
        }
        let mut queue: Vec<usize> = order.into_iter().flat_map(|g| pods(g, pending[g])).collect();
        if let Order::Shuffled(seed) = self.order {
            queue.shuffle(&mut Pcg64::seed_from_u64(seed));
        }
        let first = |queue: &mut Vec<usize>| {
            queue.sort_by_key(|group| std::cmp::Reverse(groups[*group].shape.priority));
        };
        if self.order == Order::Drained {
            // Who is evicted comes when the others have their places.
            let mut evicted;
            (queue, evicted) = coming.drained();
            first(&mut queue);
            first(&mut evicted);
            queue.extend(evicted);
        } else {
            first(&mut queue);
        }
        queue
    }

    /// Returns whether pods come while nodes come up.
    pub(super) fn is_early(self) -> bool {
        self.order == Order::Early
    }

    /// Returns whether pods come while nodes are drained.
    pub(super) fn is_drained(self) -> bool {
        self.order == Order::Drained
    }
}

/// The pods that come to the scheduler.
#[derive(Clone, Copy)]
pub(super) struct Coming<'a> {
    /// How many of each group.
    pub pending: &'a [u32],
    /// Where some of them run until their nodes are drained.
    pub leaving: &'a Leaving,
}

impl Coming<'_> {
    /// Returns the pods that run nowhere yet, and those that are evicted.
    fn drained(&self) -> (Vec<usize>, Vec<usize>) {
        let mut pending = self.pending.to_vec();
        let mut evicted = Vec::new();
        for (group, count) in self.leaving.iter().flat_map(|(_, pods)| pods) {
            let count = pending[*group].min(*count);
            pending[*group] -= count;
            evicted.extend(pods(*group, count));
        }
        let groups = 0..pending.len();
        (groups.flat_map(|group| pods(group, pending[group])).collect(), evicted)
    }
}

fn pods(group: usize, count: u32) -> impl Iterator<Item = usize> {
    std::iter::repeat_n(group, usize::try_from(count).unwrap_or(usize::MAX))
}

/// Workloads times nodes up to which default spreading, a score of its own for each workload on
/// each node, is part of the rehearsal.
const SPREAD_MAX: usize = 4_000_000;

/// Returns whether default spreading is rehearsed for so many workloads on so many nodes.
pub(super) fn spreads(groups: usize, nodes: usize) -> bool {
    groups.saturating_mul(nodes) <= SPREAD_MAX
}

/// Returns the names of the runs that a plan of this size passes.
pub(super) fn run_names(groups: &[PodGroup], nodes: usize, events: Events) -> Vec<String> {
    let suffix = if spreads(groups.len(), nodes) { "" } else { ", without default spreading" };
    let runs = runs(planned_pods(groups), nodes, events);
    runs.iter().map(|run| format!("{}{suffix}", run.name())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::{Demand, DemandMode};
    use crate::story::Story;

    #[test]
    fn a_node_is_occupied_by_pods_of_workloads_that_are_still_planned() {
        let mut story = Story::new(&["m5.large"], 1_500, 1_024);
        story.step(1);
        let nodes: Vec<NodeName> = story.observed.nodes.keys().cloned().collect();
        assert_eq!(nodes.len(), 1);
        for (replicas, expected) in [(2, nodes), (0, Vec::new())] {
            story.scale(replicas);
            let demand = Demand::build(&story.desired, &story.observed, DemandMode::Live);
            let found: Vec<NodeName> = occupied(&demand.groups).into_iter().cloned().collect();
            assert_eq!(found, expected, "{replicas} planned");
        }
    }
}
