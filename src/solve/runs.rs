//! Which runs a rehearsal consists of: the orders in which pods come, and the scheduler's rules.

use std::collections::BTreeSet;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use super::standing::Standing;
use crate::demand::PodGroup;
use crate::ids::NodeName;
use crate::schedule::{Balance, Scheduler, Ties};

/// One rehearsal: the order in which pods come, and the rules of the scheduler.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    order: Order,
    rules: Rules,
    /// Which time it is that this order is drawn: 0 is that of the rehearsal itself.
    draw: u64,
}

/// The rules of a scheduler where versions differ; a cluster may run any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    /// Of Kubernetes up to 1.35.
    Drawn135,
    /// Of 1.36, which changed how balance is scored, and breaks ties by the order of nodes: one that
    /// is drawn here, since nobody knows how new nodes will be called.
    Heaped136,
    /// Of 1.36 with ties that are drawn, as they are where a scheduler has extenders.
    Drawn136,
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
    /// One of each workload in turn, as controllers that start at once create them.
    Interleaved,
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
const RUNS: [Run; 20] = [
    Run { order: Order::Declared, rules: Rules::Drawn136, draw: 0 },
    Run { order: Order::LargestFirst(Size::Cpu), rules: Rules::Heaped136, draw: 0 },
    Run { order: Order::SmallestFirst(Size::Cpu), rules: Rules::Heaped136, draw: 0 },
    Run { order: Order::LargestFirst(Size::Memory), rules: Rules::Heaped136, draw: 0 },
    Run { order: Order::SmallestFirst(Size::Memory), rules: Rules::Heaped136, draw: 0 },
    Run { order: Order::SmallestFirst(Size::Cpu), rules: Rules::Drawn135, draw: 0 },
    Run { order: Order::SmallestFirst(Size::Memory), rules: Rules::Drawn135, draw: 0 },
    Run { order: Order::LargestFirst(Size::Cpu), rules: Rules::Drawn135, draw: 0 },
    Run { order: Order::LargestFirst(Size::Memory), rules: Rules::Drawn135, draw: 0 },
    Run { order: Order::Declared, rules: Rules::Drawn135, draw: 0 },
    Run { order: Order::Shuffled(1), rules: Rules::Drawn136, draw: 0 },
    Run { order: Order::Shuffled(2), rules: Rules::Drawn135, draw: 0 },
    Run { order: Order::Declared, rules: Rules::Heaped136, draw: 0 },
    Run { order: Order::Interleaved, rules: Rules::Heaped136, draw: 0 },
    Run { order: Order::Interleaved, rules: Rules::Drawn135, draw: 0 },
    Run { order: Order::Shuffled(3), rules: Rules::Heaped136, draw: 0 },
    Run { order: Order::LargestFirst(Size::Cpu), rules: Rules::Drawn136, draw: 0 },
    Run { order: Order::SmallestFirst(Size::Cpu), rules: Rules::Drawn136, draw: 0 },
    Run { order: Order::LargestFirst(Size::Memory), rules: Rules::Drawn136, draw: 0 },
    Run { order: Order::SmallestFirst(Size::Memory), rules: Rules::Drawn136, draw: 0 },
];

/// Pods times nodes over all draws, and the most of them.
const DRAWS_WORK: u64 = 20_000_000;
const DRAWS_MAX: u64 = 120;

/// The seed of the first shuffle that is drawn.
const FIRST_SHUFFLE: u64 = 10;

/// The orders that are drawn, in turn, by one version after the other; each shuffle is another.
const DRAWN: [Order; 9] = [
    Order::SmallestFirst(Size::Memory),
    Order::LargestFirst(Size::Cpu),
    Order::SmallestFirst(Size::Cpu),
    Order::Shuffled(0),
    Order::LargestFirst(Size::Memory),
    Order::Interleaved,
    Order::Shuffled(0),
    Order::Declared,
    Order::Shuffled(0),
];

/// What more there is to tell where pods come while nodes come up.
const EARLY: [Run; 1] = [Run { order: Order::Early, rules: Rules::Drawn136, draw: 0 }];

/// What more there is to tell where nodes are drained.
const DRAINS: [Run; 2] = [
    Run { order: Order::Drained, rules: Rules::Drawn136, draw: 0 },
    Run { order: Order::Drained, rules: Rules::Drawn135, draw: 0 },
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

/// Returns what is drawn of so many pods on so many nodes, beside the runs: at least so many draws,
/// whatever the work.
pub(super) fn draws(pods: u64, nodes: usize, least: u64) -> Vec<Run> {
    let work = pods.saturating_mul(u64::try_from(nodes).unwrap_or(u64::MAX)).max(1);
    let rules = [Rules::Heaped136, Rules::Drawn135, Rules::Drawn136];
    let rules = rules.into_iter().flat_map(|rules| [rules; DRAWN.len()]).cycle();
    let orders = DRAWN.into_iter().cycle();
    let draws = 1..=(DRAWS_WORK / work).clamp(least, DRAWS_MAX);
    let run = |(draw, (order, rules))| {
        let order =
            if order == Order::Shuffled(0) { Order::Shuffled(FIRST_SHUFFLE + draw) } else { order };
        Run { order, rules, draw }
    };
    draws.zip(orders.zip(rules)).map(run).collect()
}

/// Returns how many pods are planned.
pub(super) fn planned_pods(groups: &[PodGroup]) -> u64 {
    groups.iter().map(|group| u64::from(group.counts.planned)).fold(0, u64::saturating_add)
}

impl Run {
    /// Returns `scheduler` with the rules of the version that is played.
    pub(super) fn rules_of(self, scheduler: Scheduler) -> Scheduler {
        let scheduler = scheduler.with_seed(self.seed());
        match self.rules {
            Rules::Drawn135 => scheduler.with_balance(Balance::Level),
            Rules::Drawn136 => scheduler.with_balance(Balance::Change),
            Rules::Heaped136 => scheduler
                .with_balance(Balance::Change)
                .with_ties(Ties::Heaped)
                .with_nodes_shuffled(self.seed()),
        }
    }

    /// Returns where what is left to chance is drawn from: no two runs draw alike.
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
            Order::Interleaved => 9,
        };
        let run = match self.rules {
            Rules::Drawn136 => 2 * order,
            Rules::Drawn135 => 2 * order + 1,
            Rules::Heaped136 => 1_000 + order,
        };
        10_000 * self.draw + run
    }

    fn name(self) -> String {
        let order = match self.order {
            Order::Declared => "declared".to_owned(),
            Order::LargestFirst(Size::Cpu) => "most-cpu-first".to_owned(),
            Order::SmallestFirst(Size::Cpu) => "least-cpu-first".to_owned(),
            Order::LargestFirst(Size::Memory) => "most-memory-first".to_owned(),
            Order::SmallestFirst(Size::Memory) => "least-memory-first".to_owned(),
            Order::Interleaved => "interleaved".to_owned(),
            Order::Shuffled(seed) => format!("shuffled-{seed}"),
            Order::Drained => "drained".to_owned(),
            Order::Early => "as-nodes-come-up".to_owned(),
        };
        let version = match self.rules {
            Rules::Drawn135 => "1.35",
            Rules::Heaped136 => "1.36",
            Rules::Drawn136 => "1.36, ties drawn",
        };
        format!("{order} (kube-scheduler {version})")
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
            Order::Declared
            | Order::Interleaved
            | Order::Shuffled(_)
            | Order::Drained
            | Order::Early => {}
        }
        let mut queue: Vec<usize> = order.into_iter().flat_map(|g| pods(g, pending[g])).collect();
        match self.order {
            Order::Shuffled(seed) => queue.shuffle(&mut Pcg64::seed_from_u64(seed)),
            Order::Interleaved => queue = interleaved(&queue),
            Order::Declared
            | Order::LargestFirst(_)
            | Order::SmallestFirst(_)
            | Order::Drained
            | Order::Early => {}
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

/// Returns pods that come group by group in turn instead: the first of each, then the second.
fn interleaved(queue: &[usize]) -> Vec<usize> {
    let groups = queue.chunk_by(|a, b| a == b);
    let mut turns: Vec<(usize, usize)> =
        groups.flat_map(|pods| pods.iter().copied().enumerate()).collect();
    turns.sort_unstable();
    turns.into_iter().map(|(_, group)| group).collect()
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
    names(&runs(planned_pods(groups), nodes, events), (groups, nodes))
}

/// Returns names of runs over so many nodes.
pub(super) fn names(runs: &[Run], (groups, nodes): (&[PodGroup], usize)) -> Vec<String> {
    let suffix = if spreads(groups.len(), nodes) { "" } else { ", without default spreading" };
    let draw = |run: &Run| match run.draw {
        0 => String::new(),
        draw => format!(", draw {draw}"),
    };
    runs.iter().map(|run| format!("{}{}{suffix}", run.name(), draw(run))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::{Demand, DemandMode};
    use crate::story::Story;

    #[test]
    fn what_is_drawn_is_drawn_once_and_bounded_by_work() {
        let seeds = |runs: &[Run]| runs.iter().map(|run| run.seed()).collect::<BTreeSet<u64>>();
        let events = Events { drained: true, early: true };
        let all = [runs(100, 10, events), draws(100, 10, 0)].concat();
        assert_eq!(all.len(), RUNS.len() + 3 + usize::try_from(DRAWS_MAX).expect("small"));
        assert_eq!(seeds(&all).len(), all.len());
        let orders = |draws: &[Run]| draws.iter().map(|run| run.name()).collect::<BTreeSet<_>>();
        assert_eq!(draws(2_000, 1_000, 0).len(), 10);
        assert_eq!(orders(&draws(2_000, 1_000, 0)).len(), 10);
        assert!(draws(100_000, 1_000, 0).is_empty());
        assert_eq!(draws(100_000, 1_000, 4).len(), 4);
    }

    #[test]
    fn pods_come_one_of_each_workload_in_turn() {
        assert_eq!(interleaved(&[4, 4, 4, 1, 2, 2]), [1, 2, 4, 2, 4, 4]);
    }

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
