//! Scheduling of the planned pods in many orders.

use std::sync::atomic::{AtomicU64, Ordering};

use fleetwright::scheduler::{BalanceScoring, Unfit};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use super::proof_case::{PodKind, ProofCase, ScheduledNodes};

impl ScheduledNodes {
    /// Schedules pods of these kinds in turn. Pending pods are retried after later pods are
    /// scheduled.
    fn place_queue(&mut self, queue: &[usize]) -> Result<(), (usize, Unfit)> {
        let mut waiting = queue.to_vec();
        loop {
            let (mut still, mut last) = (Vec::new(), None);
            for kind in &waiting {
                if let Err(unfit) = self.scheduler.schedule(self.classes[*kind], None) {
                    still.push(*kind);
                    last = Some((*kind, unfit));
                }
            }
            match last {
                None => return Ok(()),
                Some(last) if still.len() == waiting.len() => return Err(last),
                Some(_) => waiting = still,
            }
        }
    }
}

/// Order of the pods in the scheduling queue.
#[derive(Debug, Clone, Copy)]
pub(super) enum PodOrder {
    Declared,
    LargestFirst(SortKey),
    SmallestFirst(SortKey),
    Shuffled(u64),
}

/// Resource that pods are sorted by. The other resource breaks ties.
#[derive(Debug, Clone, Copy)]
pub(super) enum SortKey {
    Cpu,
    Memory,
}

/// A scheduling order: the order of the pods, the balance scoring of Kubernetes 1.35 or 1.36, and
/// the seed of tie-breaking.
#[derive(Debug, Clone, Copy)]
pub(super) struct SchedulingOrder(PodOrder, BalanceScoring, u64);

/// Orders that the placement simulation of the solver tries as well. The plan must hold in all of
/// them.
const SIMULATED_ORDERS: [SchedulingOrder; 10] = [
    SchedulingOrder(PodOrder::Declared, BalanceScoring::Improvement, 0),
    SchedulingOrder(PodOrder::Declared, BalanceScoring::Evenness, 1),
    SchedulingOrder(PodOrder::LargestFirst(SortKey::Cpu), BalanceScoring::Improvement, 2),
    SchedulingOrder(PodOrder::LargestFirst(SortKey::Cpu), BalanceScoring::Evenness, 3),
    SchedulingOrder(PodOrder::SmallestFirst(SortKey::Cpu), BalanceScoring::Improvement, 4),
    SchedulingOrder(PodOrder::SmallestFirst(SortKey::Cpu), BalanceScoring::Evenness, 5),
    SchedulingOrder(PodOrder::LargestFirst(SortKey::Memory), BalanceScoring::Improvement, 14),
    SchedulingOrder(PodOrder::SmallestFirst(SortKey::Memory), BalanceScoring::Improvement, 16),
    SchedulingOrder(PodOrder::Shuffled(1), BalanceScoring::Improvement, 6),
    SchedulingOrder(PodOrder::Shuffled(2), BalanceScoring::Evenness, 9),
];

/// Orders in which a fleet must fit all pods before unschedulable pods count as an error of the
/// plan.
const PROOF_ORDERS: [SchedulingOrder; 14] = [
    SchedulingOrder(PodOrder::Declared, BalanceScoring::Improvement, 0),
    SchedulingOrder(PodOrder::SmallestFirst(SortKey::Cpu), BalanceScoring::Evenness, 5),
    SchedulingOrder(PodOrder::LargestFirst(SortKey::Cpu), BalanceScoring::Improvement, 2),
    SchedulingOrder(PodOrder::Declared, BalanceScoring::Evenness, 1),
    SchedulingOrder(PodOrder::SmallestFirst(SortKey::Cpu), BalanceScoring::Improvement, 4),
    SchedulingOrder(PodOrder::LargestFirst(SortKey::Cpu), BalanceScoring::Evenness, 3),
    SchedulingOrder(PodOrder::LargestFirst(SortKey::Memory), BalanceScoring::Improvement, 14),
    SchedulingOrder(PodOrder::SmallestFirst(SortKey::Memory), BalanceScoring::Improvement, 16),
    SchedulingOrder(PodOrder::Shuffled(1), BalanceScoring::Improvement, 6),
    SchedulingOrder(PodOrder::Shuffled(2), BalanceScoring::Evenness, 9),
    SchedulingOrder(PodOrder::Shuffled(3), BalanceScoring::Improvement, 20),
    SchedulingOrder(PodOrder::Shuffled(4), BalanceScoring::Evenness, 21),
    SchedulingOrder(PodOrder::Shuffled(5), BalanceScoring::Improvement, 22),
    SchedulingOrder(PodOrder::Shuffled(6), BalanceScoring::Evenness, 23),
];

/// Number of additional random orders. They detect fleets that fit the pods only in some orders.
const EXTRA_ORDERS: u64 = 24;

/// Orders that the placement simulation does not try. In few of them, a placed pod may be
/// unschedulable.
const UNSEEN_ORDERS: [SchedulingOrder; 4] = [
    SchedulingOrder(PodOrder::Shuffled(31), BalanceScoring::Improvement, 31),
    SchedulingOrder(PodOrder::Shuffled(32), BalanceScoring::Evenness, 32),
    SchedulingOrder(PodOrder::LargestFirst(SortKey::Memory), BalanceScoring::Evenness, 33),
    SchedulingOrder(PodOrder::SmallestFirst(SortKey::Memory), BalanceScoring::Evenness, 34),
];

/// Number of unseen orders that were tried, and of those with a pending pod.
#[derive(Debug, Default)]
pub(super) struct UnseenOrderCount {
    pub(super) tried: AtomicU64,
    pub(super) left: AtomicU64,
}

/// Counts of all cases of the test.
pub(super) static UNSEEN_ORDER_COUNT: UnseenOrderCount =
    UnseenOrderCount { tried: AtomicU64::new(0), left: AtomicU64::new(0) };

impl ProofCase {
    /// Checks that the scheduler places the placed pods in all simulated orders.
    pub(super) fn is_scheduled_in_simulated_orders(&self) -> Result<(), String> {
        let arriving = self.arriving();
        let scheduled = |seed| self.planned(seed, None);
        for arrival in UNSEEN_ORDERS {
            let left = self.place_all(scheduled, &arriving, &[arrival]).is_err();
            UNSEEN_ORDER_COUNT.tried.fetch_add(1, Ordering::Relaxed);
            UNSEEN_ORDER_COUNT.left.fetch_add(u64::from(left), Ordering::Relaxed);
        }
        let backwards = |seed| self.planned_backwards(seed);
        let held = self.place_all(scheduled, &arriving, &SIMULATED_ORDERS);
        let held = held.or_else(|why| {
            self.place_all(backwards, &arriving, &SIMULATED_ORDERS).map_err(|_| why)
        });
        held.map_err(|why| self.describe_failure(&why))
    }

    /// Returns the number of arriving pods of each kind.
    pub(super) fn arriving(&self) -> Vec<u32> {
        let of = |(kind, left): (&PodKind, u32)| {
            let stay: u32 = self
                .planned_nodes
                .iter()
                .map(|planned_node| kind.runs_on(&planned_node.node.name))
                .sum();
            kind.planned.saturating_sub(stay + left)
        };
        self.kinds.iter().zip(self.unschedulable()).map(of).collect()
    }

    /// Schedules `counts` pods of each kind, in each of these orders.
    pub(super) fn place_all(
        &self,
        scheduled: impl Fn(u64) -> ScheduledNodes,
        counts: &[u32],
        arrivals: &[SchedulingOrder],
    ) -> Result<(), String> {
        for SchedulingOrder(order, balance, seed) in arrivals {
            let mut scheduled = scheduled(*seed);
            scheduled.scheduler = scheduled.scheduler.with_balance(*balance);
            let queue = self.queue(counts, *order);
            if let Err((kind, unfit)) = scheduled.place_queue(&queue) {
                let name = |kind: &usize| self.kinds[*kind].workload.name.to_string();
                let names: Vec<String> = queue.iter().map(name).collect();
                let (order, last) = (names.join(" "), name(&kind));
                return Err(format!(
                    "in the order {order}, {balance:?}, {last} is pending: {unfit}"
                ));
            }
        }
        Ok(())
    }

    /// Returns whether the scheduler places `counts` pods of each kind in all tried orders.
    pub(super) fn always_places(
        &self,
        scheduled: impl Fn(u64) -> ScheduledNodes,
        counts: &[u32],
    ) -> bool {
        let more = (0..EXTRA_ORDERS).map(|number| {
            let balance = if number % 2 == 0 {
                BalanceScoring::Improvement
            } else {
                BalanceScoring::Evenness
            };
            SchedulingOrder(PodOrder::Shuffled(100 + number), balance, 100 + number)
        });
        let more: Vec<SchedulingOrder> = more.collect();
        self.place_all(&scheduled, counts, &PROOF_ORDERS).is_ok()
            && self.place_all(&scheduled, counts, &more).is_ok()
    }

    fn queue(&self, counts: &[u32], order: PodOrder) -> Vec<usize> {
        let kinds = &self.kinds;
        let size = |kind: &usize, size: SortKey| {
            let requests = &kinds[*kind].shape.requests;
            match size {
                SortKey::Cpu => (requests.cpu.0, requests.memory.0),
                SortKey::Memory => (requests.memory.0, requests.cpu.0),
            }
        };
        let pods = |(kind, count): (usize, &u32)| {
            std::iter::repeat_n(kind, usize::try_from(*count).unwrap_or(usize::MAX))
        };
        let mut queue: Vec<usize> = counts.iter().enumerate().flat_map(pods).collect();
        match order {
            PodOrder::Declared => {}
            PodOrder::SmallestFirst(by) => queue.sort_by_key(|kind| size(kind, by)),
            PodOrder::LargestFirst(by) => {
                queue.sort_by_key(|kind| std::cmp::Reverse(size(kind, by)));
            }
            PodOrder::Shuffled(seed) => queue.shuffle(&mut Pcg64::seed_from_u64(seed)),
        }
        queue.sort_by_key(|kind| std::cmp::Reverse(kinds[*kind].shape.priority));
        queue
    }
}
