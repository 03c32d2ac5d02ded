//! The scheduler left to itself, in orders that nobody chose.

use std::sync::atomic::{AtomicU64, Ordering};

use fleetwright::scheduler::{BalanceScoring, Unfit};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use super::proof_case::{PodKind, ProofCase, ScheduledNodes};

impl ScheduledNodes {
    /// Places pods of these kinds in turn; one that waits is tried again whenever others that came
    /// after it have a place.
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

/// The orders in which pods come to the scheduler.
#[derive(Debug, Clone, Copy)]
pub(super) enum PodOrder {
    Declared,
    LargestFirst(SortKey),
    SmallestFirst(SortKey),
    Shuffled(u64),
}

/// What makes a pod large; of those that are alike in it, the other decides.
#[derive(Debug, Clone, Copy)]
pub(super) enum SortKey {
    Cpu,
    Memory,
}

/// One way in which pods may come: their order, the rule for balance of Kubernetes 1.35 or of 1.36,
/// and the seed from which ties between nodes are broken.
#[derive(Debug, Clone, Copy)]
pub(super) struct SchedulingOrder(PodOrder, BalanceScoring, u64);

/// Ways that the rehearsal tries as well, in the same words: it has to be right about them.
const REHEARSED: [SchedulingOrder; 10] = [
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

/// Ways in which a fleet holds pods that a plan leaves out, before that is held against the plan.
const ALL: [SchedulingOrder; 14] = [
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

/// So many more ways, so that no fleet is said to hold everything which does so by luck.
const MORE: u64 = 24;

/// Ways that no rehearsal tries, of which few leave a pod over that a plan calls placed.
const UNSEEN: [SchedulingOrder; 4] = [
    SchedulingOrder(PodOrder::Shuffled(31), BalanceScoring::Improvement, 31),
    SchedulingOrder(PodOrder::Shuffled(32), BalanceScoring::Evenness, 32),
    SchedulingOrder(PodOrder::LargestFirst(SortKey::Memory), BalanceScoring::Evenness, 33),
    SchedulingOrder(PodOrder::SmallestFirst(SortKey::Memory), BalanceScoring::Evenness, 34),
];

/// How often pods came in some way that is not rehearsed, and how often one of them waits.
#[derive(Debug, Default)]
pub(super) struct UntriedOrderCount {
    pub(super) tried: AtomicU64,
    pub(super) left: AtomicU64,
}

/// What was seen since the test began.
pub(super) static SEEN: UntriedOrderCount =
    UntriedOrderCount { tried: AtomicU64::new(0), left: AtomicU64::new(0) };

impl ProofCase {
    /// In the orders that are rehearsed, the scheduler places what the plan places.
    pub(super) fn holds_in_rehearsed_orders(&self) -> Result<(), String> {
        let coming = self.coming();
        let scene = |seed| self.planned(seed, None);
        for arrival in UNSEEN {
            let left = self.place_all(scene, &coming, &[arrival]).is_err();
            SEEN.tried.fetch_add(1, Ordering::Relaxed);
            SEEN.left.fetch_add(u64::from(left), Ordering::Relaxed);
        }
        let backwards = |seed| self.planned_backwards(seed);
        let held = self.place_all(scene, &coming, &REHEARSED);
        let held =
            held.or_else(|why| self.place_all(backwards, &coming, &REHEARSED).map_err(|_| why));
        held.map_err(|why| self.story(&why))
    }

    /// Returns how many pods of each kind come to planned nodes.
    pub(super) fn coming(&self) -> Vec<u32> {
        let of = |(kind, left): (&PodKind, u32)| {
            let stay: u32 = self.seats.iter().map(|seat| kind.runs_on(&seat.node.name)).sum();
            kind.planned.saturating_sub(stay + left)
        };
        self.kinds.iter().zip(self.left()).map(of).collect()
    }

    /// Has the scheduler place so many pods of each kind, coming in each of these ways.
    pub(super) fn place_all(
        &self,
        scene: impl Fn(u64) -> ScheduledNodes,
        counts: &[u32],
        arrivals: &[SchedulingOrder],
    ) -> Result<(), String> {
        for SchedulingOrder(order, balance, seed) in arrivals {
            let mut scene = scene(*seed);
            scene.scheduler = scene.scheduler.with_balance(*balance);
            let queue = self.queue(counts, *order);
            if let Err((kind, unfit)) = scene.place_queue(&queue) {
                let name = |kind: &usize| self.kinds[*kind].workload.name.to_string();
                let names: Vec<String> = queue.iter().map(name).collect();
                let (order, last) = (names.join(" "), name(&kind));
                return Err(format!("in the order {order}, {balance:?}, {last} waits: {unfit}"));
            }
        }
        Ok(())
    }

    /// Returns whether the scheduler places so many pods of each group in whatever way they come.
    pub(super) fn always_places(
        &self,
        scene: impl Fn(u64) -> ScheduledNodes,
        counts: &[u32],
    ) -> bool {
        let more = (0..MORE).map(|number| {
            let balance = if number % 2 == 0 {
                BalanceScoring::Improvement
            } else {
                BalanceScoring::Evenness
            };
            SchedulingOrder(PodOrder::Shuffled(100 + number), balance, 100 + number)
        });
        let more: Vec<SchedulingOrder> = more.collect();
        self.place_all(&scene, counts, &ALL).is_ok()
            && self.place_all(&scene, counts, &more).is_ok()
    }

    fn queue(&self, counts: &[u32], order: PodOrder) -> Vec<usize> {
        let kinds = &self.kinds;
        let size = |kind: &usize, size: SortKey| {
            let asks = &kinds[*kind].shape.requests;
            match size {
                SortKey::Cpu => (asks.cpu.0, asks.memory.0),
                SortKey::Memory => (asks.memory.0, asks.cpu.0),
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
