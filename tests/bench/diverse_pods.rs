//! The mix of pods and types on which Karpenter measures its scheduler (`makeDiversePods` of its
//! `scheduling_benchmark_test.go`, types of its fake provider): a fifth each of plain pods, pods
//! spread over zones, pods spread over hosts, pods that want their like in one zone, and pods that
//! want none of their like on their host.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// Requests for cpu, in thousandths.
const CPU: [i64; 5] = [100, 250, 500, 1000, 1500];
/// Requests for memory, in MiB.
const MEMORY: [i64; 6] = [100, 256, 512, 1024, 2048, 4096];
/// Values of the labels that selectors look for.
const LABELS: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

/// What a pod asks of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// Nothing; the label.
    Plain(&'static str),
    /// Zones may differ by one pod labelled with the second value; its own label is the first.
    ZoneSpread(&'static str, &'static str),
    /// Hosts may differ by one pod, likewise.
    HostSpread(&'static str, &'static str),
    /// Pods of this label stay in one zone.
    ZoneAffinity(&'static str),
    /// No two on one host.
    HostAntiAffinity,
}

/// A pod of the mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pod {
    pub(crate) rule: Rule,
    /// Thousandths.
    pub(crate) cpu: i64,
    /// MiB.
    pub(crate) memory: i64,
}

/// Returns `count` pods in the order of the original: kind by kind, the remainder plain.
pub(crate) fn pods(count: usize, seed: u64) -> Vec<Pod> {
    let mut rng = Pcg64::seed_from_u64(seed);
    let fifth = count / 5;
    let mut pods = Vec::with_capacity(count);
    for kind in [0, 1, 2, 3, 4, 0] {
        let wanted = if pods.len() == 5 * fifth { count - pods.len() } else { fifth };
        for _ in 0..wanted {
            let mut value = || LABELS[rng.random_range(0..LABELS.len())];
            let rule = match kind {
                0 => Rule::Plain(value()),
                1 => Rule::ZoneSpread(value(), value()),
                2 => Rule::HostSpread(value(), value()),
                3 => Rule::ZoneAffinity(value()),
                _ => Rule::HostAntiAffinity,
            };
            let cpu = CPU[rng.random_range(0..CPU.len())];
            let memory = MEMORY[rng.random_range(0..MEMORY.len())];
            pods.push(Pod { rule, cpu, memory });
        }
    }
    pods
}
