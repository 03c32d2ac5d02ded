//! Which runs a rehearsal consists of: the orders in which pods come, and the scheduler's rules.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use crate::demand::PodGroup;
use crate::schedule::Balance;

/// One rehearsal: the order in which pods come, and the scheduler's rule for balance, which
/// Kubernetes 1.36 changed; a cluster may run either.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    order: Order,
    pub balance: Balance,
}

/// The orders in which pods come to the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// By namespace and name, as a delivery tool applies them.
    Declared,
    /// The pods that are worth most first.
    LargestFirst,
    /// The pods that are worth least first.
    SmallestFirst,
    /// At random, from this seed.
    Shuffled(u64),
}

/// What tells most comes first.
const RUNS: [Run; 8] = [
    Run { order: Order::Declared, balance: Balance::Change },
    Run { order: Order::LargestFirst, balance: Balance::Change },
    Run { order: Order::SmallestFirst, balance: Balance::Change },
    Run { order: Order::SmallestFirst, balance: Balance::Level },
    Run { order: Order::Shuffled(1), balance: Balance::Change },
    Run { order: Order::Declared, balance: Balance::Level },
    Run { order: Order::LargestFirst, balance: Balance::Level },
    Run { order: Order::Shuffled(2), balance: Balance::Level },
];

/// How many of the runs are made up to so many pods times nodes: on a small fleet one pod decides,
/// and a run costs little.
const RUNS_UP_TO: [(u64, usize); 2] = [(20_000, 8), (20_000_000, 5)];

/// Runs that are made of any fleet.
const RUNS_MIN: usize = 3;

/// Returns the runs for so many pods on so many nodes.
pub(super) fn runs(pods: u64, nodes: usize) -> &'static [Run] {
    let work = pods.saturating_mul(u64::try_from(nodes).unwrap_or(u64::MAX));
    let made = RUNS_UP_TO.iter().find(|(most, _)| work <= *most).map(|(_, made)| *made);
    &RUNS[..made.unwrap_or(RUNS_MIN)]
}

/// Returns how many pods are planned.
pub(super) fn planned_pods(groups: &[PodGroup]) -> u64 {
    groups.iter().map(|group| u64::from(group.counts.planned)).fold(0, u64::saturating_add)
}

impl Run {
    /// Returns where its ties between nodes are drawn from: no two runs break them alike.
    pub(super) fn seed(self) -> u64 {
        let order = match self.order {
            Order::Declared => 0,
            Order::LargestFirst => 1,
            Order::SmallestFirst => 2,
            Order::Shuffled(seed) => 2 + seed,
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
            Order::LargestFirst => "largest-first".to_owned(),
            Order::SmallestFirst => "smallest-first".to_owned(),
            Order::Shuffled(seed) => format!("shuffled-{seed}"),
        };
        let balance = match self.balance {
            Balance::Level => "1.35",
            Balance::Change => "1.36",
        };
        format!("{order} (kube-scheduler {balance})")
    }

    /// Returns the `pending` pods, by group, in the order in which they come, given what a pod of
    /// each group is worth; higher priority goes first in any case.
    pub(super) fn queue(self, groups: &[PodGroup], worth: &[i128], pending: &[u32]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..groups.len()).filter(|group| pending[*group] > 0).collect();
        match self.order {
            Order::LargestFirst => order.sort_by_key(|g| (std::cmp::Reverse(worth[*g]), *g)),
            Order::SmallestFirst => order.sort_by_key(|g| (worth[*g], *g)),
            Order::Declared | Order::Shuffled(_) => {}
        }
        let count = |group: usize| usize::try_from(pending[group]).unwrap_or(usize::MAX);
        let pods = |group: usize| std::iter::repeat_n(group, count(group));
        let mut queue: Vec<usize> = order.into_iter().flat_map(pods).collect();
        if let Order::Shuffled(seed) = self.order {
            queue.shuffle(&mut Pcg64::seed_from_u64(seed));
        }
        queue.sort_by_key(|group| std::cmp::Reverse(groups[*group].shape.priority));
        queue
    }
}

/// Workloads times nodes up to which default spreading, a score of its own for each workload on
/// each node, is part of the rehearsal.
const SPREAD_MAX: usize = 4_000_000;

/// Returns whether default spreading is rehearsed for so many workloads on so many nodes.
pub(super) fn spreads(groups: usize, nodes: usize) -> bool {
    groups.saturating_mul(nodes) <= SPREAD_MAX
}

/// Returns the names of the runs that a plan of this size passes.
pub(super) fn run_names(groups: &[PodGroup], nodes: usize) -> Vec<String> {
    let suffix = if spreads(groups.len(), nodes) { "" } else { ", without default spreading" };
    let runs = runs(planned_pods(groups), nodes).iter();
    runs.map(|run| format!("{}{suffix}", run.name())).collect()
}
