//! Scores of a node by its free resources: `NodeResourcesFit` and
//! `NodeResourcesBalancedAllocation`.

use super::node_usage::{CpuMemory, NodeUsage, PodRequest};

/// Maximum score of one plugin.
pub(super) const SCORE_MAX: i64 = 100;

/// Rule of `NodeResourcesBalancedAllocation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BalanceScoring {
    /// Reward even use of CPU and memory with the pod (Kubernetes up to 1.35).
    Evenness,
    /// Reward more even use with the pod than without it (from 1.36, kubernetes#135573).
    #[default]
    Improvement,
}

/// Returns the sum of `NodeResourcesFit` and `NodeResourcesBalancedAllocation`, both of weight 1.
#[inline]
pub(super) fn resource_score(
    request: &PodRequest,
    load: &NodeUsage,
    balance: BalanceScoring,
) -> i32 {
    let mut score = least_allocated(load.scored.plus(request.scored), load.allocatable);
    // A pod without requests would follow the balance of other pods to one node.
    if request.cpu_memory != CpuMemory::default() {
        let after = evenness(load.used.plus(request.cpu_memory), load.allocatable);
        score += match balance {
            BalanceScoring::Evenness => after,
            BalanceScoring::Improvement => {
                let half = SCORE_MAX / 2;
                half + (half + after - load.evenness) / 2
            }
        };
    }
    i32::try_from(score).expect("two scores of at most 100")
}

/// Scores the free share of CPU and memory: the mean of both, and 0 for a resource that is
/// overcommitted.
#[inline]
fn least_allocated(used: CpuMemory, has: CpuMemory) -> i64 {
    let score = |used: i64, has: i64| {
        if used > has { 0 } else { (has - used).saturating_mul(SCORE_MAX) / has }
    };
    match (has.cpu > 0, has.memory > 0) {
        (true, true) => i64::midpoint(score(used.cpu, has.cpu), score(used.memory, has.memory)),
        (true, false) => score(used.cpu, has.cpu),
        (false, true) => score(used.memory, has.memory),
        (false, false) => 0,
    }
}

/// Scores how close the used shares of CPU and memory are: 100 less their standard deviation, which
/// for two numbers is half their distance.
#[inline]
pub(super) fn evenness(used: CpuMemory, has: CpuMemory) -> i64 {
    let share = |used: i64, has: i64| (to_f64(used) / to_f64(has)).min(1.0);
    let deviation = if has.cpu == 0 || has.memory == 0 {
        0.0
    } else {
        ((share(used.cpu, has.cpu) - share(used.memory, has.memory)) / 2.0).abs()
    };
    truncate((1.0 - deviation) * to_f64(SCORE_MAX))
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "upstream rounds alike")]
pub(super) fn to_f64(n: i64) -> f64 {
    n as f64
}

#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "it is the point")]
pub(super) fn truncate(x: f64) -> i64 {
    x as i64
}
