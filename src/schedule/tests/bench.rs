//! What a real kube-scheduler 1.36.2 did with 3,000 and 2,373 pods, done again by the model.
//!
//! The experiments: nodes as API objects, one DaemonSet pod of 300m and 600Mi on each, then all
//! Deployments applied at once. `bench` on 10 m5a.24xlarge and 8 c6a.48xlarge left 401 pods
//! pending; on 25 m5a.24xlarge none; `web` on 10 m5a.24xlarge none.

use std::cmp::Reverse;

use rand::RngExt;

use super::*;

/// The Deployments of the tree `bench`: replicas x cpu (m) / memory (Mi).
const BENCH: &str = "
    100x1000/512 100x500/2048 100x1000/512 100x1500/1024 100x100/4096 100x1000/1024 100x250/2048
    100x100/512 100x1500/4096 100x1500/256 100x1000/2048 100x1500/1024 100x500/4096 100x250/1024
    100x1500/4096 100x1500/256 100x500/2048 100x100/4096 100x1000/2048 100x1000/1024
    100x500/2048 100x1500/4096 100x100/1024 100x250/4096 100x500/4096 100x100/1024 100x250/4096
    100x1000/512 100x250/100 100x1500/100
";

/// The Deployments of the tree `web`.
const WEB: &str = "
    30x100/204 3x100/102 7x500/1024 5x200/102 7x500/1024 5x50/204 42x200/409 3x250/128
    38x1000/512 3x500/2048 3x500/2048 5x200/1638 3x500/1024 3x200/819 32x500/512 28x500/4096
    7x100/102 10x250/128 5x1000/2048 4x200/204 39x500/4096 17x500/1024 10x500/512 8x500/1024
    21x250/512 5x250/128 11x1000/512 4x1000/8192 3x500/2048 9x50/64 3x500/2048 116x1000/1024
    29x200/409 4x1000/1024 6x250/2048 7x500/512 12x50/102 3x1000/8192 4x1000/1024 19x50/102
    39x1000/1024 13x500/1024 3x500/512 12x1000/2048 6x250/512 3x200/819 3x100/819 16x1000/8192
    16x250/128 18x100/64 10x500/256 3x250/256 4x100/102 3x100/102 4x100/409 9x250/512 3x500/1024
    4x250/512 3x200/204 64x1000/1024 87x500/4096 4x200/102 55x50/204 5x500/2048 15x500/1024
    3x1000/2048 8x50/102 7x250/1024 4x50/204 4x200/102 28x100/102 3x250/1024 3x250/256 14x50/102
    14x500/512 4x1000/512 3x250/128 3x500/1024 4x100/409 3x1000/2048 3x500/512 4x200/1638
    4x100/102 3x250/1024 4x500/1024 11x1000/2048 3x1000/1024 3x50/64 3x100/204 5x250/512
    4x250/256 3x100/102 6x500/512 3x100/102 18x100/204 3x100/819 6x100/204 6x500/256 3x200/409
    22x250/256 5x1000/512 12x250/128 7x250/128 4x50/64 3x50/64 3x500/512 3x100/409 26x100/204
    73x500/4096 3x250/512 3x500/512 3x250/128 6x250/1024 4x500/1024 27x100/64 3x500/256
    8x1000/8192 3x250/256 3x200/204 14x250/128 5x100/819 4x250/256 4x250/128 16x250/2048
    4x250/256 6x1000/2048 3x100/102 3x200/409 3x1000/8192 7x100/64 12x250/2048 18x500/1024
    5x100/64 5x250/128 11x100/102 18x100/819 9x250/128 23x250/256 26x100/204 4x50/409
    40x1000/8192 4x200/204 3x1000/1024 11x200/204 5x500/4096 5x250/512 3x1000/2048 3x250/256
    7x50/409 3x500/1024 3x250/512 3x100/102 6x250/512 3x100/204 3x500/256 22x250/512 7x500/2048
    4x200/204 9x500/512 7x250/512 3x250/1024 5x100/819 5x250/256 4x200/204 6x250/2048 8x100/409
    3x500/1024 56x100/204 3x500/512 39x500/512 8x50/102 5x250/512 9x100/204 111x50/102
    3x250/1024 71x100/102 16x100/204 4x200/1638 3x500/1024 3x250/512 3x500/512 26x1000/2048
    3x250/256 55x1000/512 6x1000/2048 80x50/204 3x200/1638 3x100/102 4x200/204 8x250/2048
    4x100/204 3x500/4096 20x200/409 13x200/204 6x50/64 4x50/102 5x100/64 5x250/512 5x250/2048
    5x50/64
";

/// Allocatable of m5a.24xlarge: 96 vCPU less 310m; 393,216 MiB less 7.5 %, 8,362 MiB for the
/// kubelet (737 pods) and 100 MiB until eviction.
const M5A: (&str, i64, i64) = ("m5a.24xlarge", 95_690, 355_262);
/// Allocatable of c6a.48xlarge: 192 vCPU less 550m, and the same memory.
const C6A: (&str, i64, i64) = ("c6a.48xlarge", 191_450, 355_262);

const ZONES: [&str; 3] = ["us-east-1a", "us-east-1b", "us-east-1c"];

/// How the pods of all Deployments reach the queue.
#[derive(Debug, Clone, Copy)]
enum Order {
    /// One Deployment after the other.
    Declared,
    /// One pod of each Deployment in turn.
    InTurn,
    LargestFirst,
    SmallestFirst,
    Shuffled,
}

const ORDERS: [Order; 5] =
    [Order::Declared, Order::InTurn, Order::LargestFirst, Order::SmallestFirst, Order::Shuffled];

struct Run {
    scheduler: Scheduler,
    deployments: Vec<(ClassIndex, usize, i64)>,
}

impl Run {
    /// Nodes with a DaemonSet pod each, in `zones` zones in turn.
    fn new(fleet: &[((&str, i64, i64), usize)], zones: usize, tree: &str, seed: u64) -> Self {
        let all = fleet.iter().flat_map(|(kind, count)| std::iter::repeat_n(kind, *count));
        let nodes = all.enumerate().map(|(index, (kind, cpu, mib))| ScheduleNode {
            allocatable: Resources { pods: 737, ..resources(*cpu, *mib) },
            ..node(&format!("{kind}-{index}"), ZONES[index % zones])
        });
        let mut scheduler = Scheduler::new(nodes.collect(), &BTreeMap::new(), seed);
        let agent = PodShape {
            namespace: "kube-system".into(),
            tolerations: vec![tolerates("", None)],
            requests: resources(300, 600),
            ..pod("agent")
        };
        let agent = scheduler.class(&Arc::new(agent), None);
        let indices: Vec<NodeIndex> = scheduler.nodes().collect();
        indices.into_iter().for_each(|node| scheduler.bind(agent, node));
        let deployments = tree.split_whitespace().enumerate().map(|(index, row)| {
            let numbers: Vec<i64> =
                row.split(['x', '/']).map(|n| n.parse().expect("a number")).collect();
            let [replicas, cpu, mib] = numbers[..] else { panic!("three numbers: {row}") };
            let name = format!("b{index}");
            let shape = PodShape { requests: resources(cpu, mib), ..pod(&name) };
            let class = scheduler.class(&Arc::new(shape), Some(&deployment(&name)));
            (class, usize::try_from(replicas).expect("small"), cpu * 4 + mib)
        });
        let deployments = deployments.collect();
        Self { scheduler, deployments }
    }

    fn queue(&self, order: Order, seed: u64) -> Vec<ClassIndex> {
        let rows = self.deployments.iter().enumerate();
        let mut pods: Vec<(usize, usize, ClassIndex, i64)> = rows
            .flat_map(|(row, (class, replicas, size))| {
                (0..*replicas).map(move |pod| (row, pod, *class, *size))
            })
            .collect();
        match order {
            Order::Declared => {}
            Order::InTurn => pods.sort_by_key(|(row, pod, ..)| (*pod, *row)),
            Order::LargestFirst => pods.sort_by_key(|(.., size)| Reverse(*size)),
            Order::SmallestFirst => pods.sort_by_key(|(.., size)| *size),
            Order::Shuffled => {
                let mut rng = rng(seed);
                pods.sort_by_cached_key(|_| rng.random::<u64>());
            }
        }
        pods.into_iter().map(|(_, _, class, _)| class).collect()
    }

    /// Schedules all pods and returns how many found no node.
    fn pending(mut self, order: Order, seed: u64) -> usize {
        let queue = self.queue(order, seed);
        queue.into_iter().filter(|class| self.scheduler.schedule(*class, None).is_err()).count()
    }
}

fn pending(fleet: &[((&str, i64, i64), usize)], tree: &str) -> Vec<(usize, Order, usize)> {
    let mut found = Vec::new();
    for zones in [1, 3] {
        for order in ORDERS {
            let run = Run::new(fleet, zones, tree, 7);
            found.push((zones, order, run.pending(order, 7)));
        }
    }
    println!("{found:?}");
    found
}

#[test]
fn two_shapes_of_different_ratio_leave_hundreds_pending() {
    let found = pending(&[(M5A, 10), (C6A, 8)], BENCH);
    for (zones, order, pending) in found {
        assert!((200..=800).contains(&pending), "{zones} zones, {order:?}: {pending}");
    }
}

#[test]
fn one_shape_that_fits_the_mix_takes_every_pod() {
    let found = pending(&[(M5A, 25)], BENCH);
    assert!(found.iter().all(|(.., pending)| *pending == 0), "{found:?}");
}

#[test]
fn ten_nodes_take_every_pod_of_web() {
    let found = pending(&[(M5A, 10)], WEB);
    assert!(found.iter().all(|(.., pending)| *pending == 0), "{found:?}");
}
