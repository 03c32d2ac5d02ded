//! The pod mix of Karpenter's scheduling benchmark: `makeDiversePods` in
//! `scheduling_benchmark_test.go`, with the types of its fake provider. One fifth each are plain
//! pods, pods with a zone spread, pods with a host spread, pods with zone affinity, and pods with
//! host anti-affinity.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// CPU requests in millicores.
const CPU: [i64; 5] = [100, 250, 500, 1000, 1500];
/// Memory requests in MiB.
const MEMORY: [i64; 6] = [100, 256, 512, 1024, 2048, 4096];
/// Values of the labels that selectors match.
const LABELS: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

/// Placement rule of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// No rule. The value is that of the pod's label.
    Plain(&'static str),
    /// A zone spread with a skew of one. The values are those of the pod's own label and of the
    /// selector.
    ZoneSpread(&'static str, &'static str),
    /// A host spread with a skew of one, with the same values.
    HostSpread(&'static str, &'static str),
    /// Pods with this label share one zone.
    ZoneAffinity(&'static str),
    /// Each pod is on a host of its own.
    HostAntiAffinity,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pod {
    pub(crate) rule: Rule,
    /// CPU request in millicores.
    pub(crate) cpu: i64,
    /// Memory request in MiB.
    pub(crate) memory: i64,
}

/// Returns `count` pods in the order of Karpenter's benchmark: grouped by rule, with the remainder
/// plain.
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
