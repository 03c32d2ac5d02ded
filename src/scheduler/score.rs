//! Scores of feasible nodes: the score plugins of the default profile.
//!
//! Each plugin gives an integer score from 0 to 100, which is multiplied by the plugin's weight and
//! added up. Three plugins compute in floating point upstream, and truncate or round the result.
//! This module does the same with additions, multiplications, divisions and comparisons of IEEE
//! doubles alone. Their results are equal on every computer, and the logarithm is computed from
//! them as well. The resulting integers are reproducible, and equal to upstream's on amd64.
//!
//! Source: `pkg/scheduler/apis/config/v1/default_plugins.go` (weights), and `scoring.go` or
//! `*_allocation.go` of each plugin below `pkg/scheduler/framework/plugins`.

use std::sync::LazyLock;

use super::Scheduler;
use super::pod_class::PodClass;
use super::resource_score::{SCORE_MAX, to_f64, truncate};
use super::topology::{ABSENT, Topology, to_index};

/// Weight of `TaintToleration`.
const TAINT_WEIGHT: i32 = 3;
/// Weight of `NodeAffinity`.
const NODE_AFFINITY_WEIGHT: i32 = 2;
/// Weight of `PodTopologySpread`.
const SPREAD_WEIGHT: i32 = 2;
/// Weight of `InterPodAffinity`.
const POD_AFFINITY_WEIGHT: i32 = 2;

/// Ranges of spread sums below this are scored from a table.
const RANGE_MAX: usize = 64;

/// Feasible nodes of a pod, with their total scores.
#[derive(Debug, Clone, Default)]
pub(super) struct FeasibleNodes {
    pub(super) nodes: Vec<usize>,
    /// Initially the resource scores.
    pub(super) totals: Vec<i32>,
}

impl FeasibleNodes {
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.totals.clear();
    }

    #[inline]
    pub(super) fn push(&mut self, node: usize, score: i32) {
        self.nodes.push(node);
        self.totals.push(score);
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    fn add(&mut self, weight: i32, scores: impl Iterator<Item = i64>) {
        for (total, score) in self.totals.iter_mut().zip(scores) {
            *total += weight * i32::try_from(score).expect("a score is at most 100");
        }
    }
}

impl Scheduler {
    /// Adds the scores of the other plugins to the resource scores of feasible nodes.
    pub(super) fn add_scores(&self, class: usize, feasible: &mut FeasibleNodes) {
        let class = &self.registry.classes[class];
        let view = &self.nodes.views[self.registry.node_locals[class.node_local].views];
        if view.has_prefer_no_schedule {
            let taints = feasible.nodes.iter().map(|node| view.node(*node).prefer_no_schedule);
            let taints: Vec<i64> = taints.collect();
            // Without such taints all nodes would gain the same score.
            if let Some(highest) = taints.iter().copied().max().filter(|highest| *highest > 0) {
                let scores = taints.iter().map(|taints| SCORE_MAX - SCORE_MAX * taints / highest);
                feasible.add(TAINT_WEIGHT, scores);
            }
        }
        if view.has_preferences() {
            let preferences: Vec<i64> =
                feasible.nodes.iter().map(|node| view.node(*node).preferred_weight).collect();
            let highest = preferences.iter().copied().max().unwrap_or(0);
            if highest != 0 {
                let share = |preference: &i64| SCORE_MAX.saturating_mul(*preference) / highest;
                feasible.add(NODE_AFFINITY_WEIGHT, preferences.iter().map(share));
            }
        }
        if !class.soft_spread.is_empty() {
            self.add_spread_scores(class, feasible);
        }
        if let Some(sums) = self.affinity_sums(class, &feasible.nodes) {
            feasible.add(POD_AFFINITY_WEIGHT, normalize(&sums));
        }
    }

    fn add_spread_scores(&self, class: &PodClass, feasible: &mut FeasibleNodes) {
        let topologies = &self.nodes.topologies;
        let soft = || class.soft_spread.iter().map(|spread| &topologies[spread.topology]);
        let has_keys = |node: &usize| soft().all(|topology| topology.domain(*node).is_some());
        let nodes = &feasible.nodes;
        let scored: Vec<bool> = if class.soft_needs_keys {
            nodes.iter().map(has_keys).collect()
        } else {
            vec![true; nodes.len()]
        };
        let worths = class.soft_spread.iter().map(|spread| {
            let topology = &topologies[spread.topology];
            SpreadWorth {
                of_node: topology.domain_of_nodes(),
                // Pods of the node itself count, even if the constraint does not count the node.
                pods_on_node: topology.is_hostname.then(|| &*self.pods_on_node[spread.set]),
                pods_in_domain: self.spread_counters[spread.counter].pods(),
                weight: logarithm(spread_size(topology, nodes, &scored) + 2),
                skew: f64::from(spread.max_skew) - 1.0,
            }
        });
        let worths: Vec<SpreadWorth> = worths.collect();
        let sum = |node: &usize| round(worths.iter().map(|worth| worth.of(*node)).sum());
        let sums: Vec<i64> = nodes.iter().map(sum).collect();
        feasible.add(SPREAD_WEIGHT, invert_spread(&sums, &scored));
    }

    /// Returns the affinity sum of each node: preferences of the pod for running pods, and of
    /// running pods for the pod. `None` if there are no preferences.
    fn affinity_sums(&self, class: &PodClass, nodes: &[usize]) -> Option<Vec<i64>> {
        let selecting =
            class.member_of.iter().flat_map(|set| &self.registry.sets[*set].term_carriers);
        let mut pulled_by =
            selecting.map(|index| &self.term_carriers[*index]).filter(|c| c.pulling > 0);
        let first = pulled_by.next();
        if class.preferred.is_empty() && first.is_none() {
            return None;
        }
        let mut sums = vec![0_i64; nodes.len()];
        let mut add = |topology: usize, worth: &dyn Fn(usize) -> i64| {
            let of_node = self.nodes.topologies[topology].domain_of_nodes();
            for (node, sum) in nodes.iter().zip(&mut sums) {
                if of_node[*node] != ABSENT {
                    *sum = sum.saturating_add(worth(to_index(of_node[*node])));
                }
            }
        };
        for (counts, weight) in &class.preferred {
            let counts = &self.pod_counts[*counts];
            let pods = |domain: usize| i64::from(counts.counts().get(domain).copied().unwrap_or(0));
            add(counts.topology, &|domain| pods(domain).saturating_mul(*weight));
        }
        for carriers in first.into_iter().chain(pulled_by) {
            let pulls = carriers.pulls();
            add(carriers.topology, &|domain| pulls.get(domain).copied().unwrap_or(0));
        }
        Some(sums)
    }
}

/// Pods that one soft constraint counts, and their worth.
struct SpreadWorth<'a> {
    /// Domain of each node.
    of_node: &'a [u32],
    /// Number of pods of each node, for the host name key.
    pods_on_node: Option<&'a [u32]>,
    /// Number of pods of each domain; domains beyond the end have none.
    pods_in_domain: &'a [u32],
    weight: f64,
    skew: f64,
}

impl SpreadWorth<'_> {
    /// Returns the worth of the pods in the domain of a node; 0 without a domain.
    #[inline]
    fn of(&self, node: usize) -> f64 {
        let domain = self.of_node[node];
        if domain == ABSENT {
            return 0.0;
        }
        let pods = match self.pods_on_node {
            Some(pods) => pods.get(node),
            None => self.pods_in_domain.get(to_index(domain)),
        };
        f64::from(pods.copied().unwrap_or(0)) * self.weight + self.skew
    }
}

/// Scales scores to a minimum of 0 and a maximum of 100.
fn normalize(scores: &[i64]) -> impl Iterator<Item = i64> {
    let lowest = scores.iter().copied().min().unwrap_or(0);
    let range = scores.iter().copied().max().unwrap_or(0).saturating_sub(lowest);
    let share = move |score: i64| {
        if range == 0 {
            return 0;
        }
        truncate(to_f64(SCORE_MAX) * (to_f64(score.saturating_sub(lowest)) / to_f64(range)))
    };
    scores.iter().copied().map(share)
}

/// Converts the worth of pods to scores: fewer pods are better. Nodes that are not scored get 0.
fn invert_spread(sums: &[i64], scored: &[bool]) -> impl Iterator<Item = i64> {
    let counted = || sums.iter().zip(scored).filter(|(_, scored)| **scored).map(|(sum, _)| *sum);
    let lowest = counted().fold(i64::MAX, i64::min);
    let highest = counted().fold(i64::MIN, i64::max);
    let score = move |sum: i64| match highest {
        0 => SCORE_MAX,
        _ => SCORE_MAX * (highest + lowest - sum) / highest,
    };
    // Sums are close together, so each score is computed once and not for each node.
    let range = usize::try_from(highest.saturating_sub(lowest)).unwrap_or(0);
    let known: Vec<i64> =
        if range < RANGE_MAX { (lowest..=highest).map(score).collect() } else { Vec::new() };
    let look_up = move |sum: i64| {
        let at = usize::try_from(sum - lowest).unwrap_or(usize::MAX);
        known.get(at).copied().unwrap_or_else(|| score(sum))
    };
    sums.iter().zip(scored).map(move |(sum, scored)| if *scored { look_up(*sum) } else { 0 })
}

/// Counts the domains of the scored nodes. Nodes without the key count as one domain.
fn spread_size(topology: &Topology, nodes: &[usize], scored: &[bool]) -> usize {
    if topology.is_hostname {
        return scored.iter().filter(|scored| **scored).count();
    }
    let mut seen = vec![false; topology.domains() + 1];
    for (node, _) in nodes.iter().zip(scored).filter(|(_, scored)| **scored) {
        seen[topology.domain(*node).map_or(topology.domains(), to_index)] = true;
    }
    seen.into_iter().filter(|seen| *seen).count()
}

/// Rounds to the nearest integer, halves away from 0; `x` is not negative.
fn round(x: f64) -> i64 {
    let whole = truncate(x);
    // The difference is exact, so this rounds like upstream's `math.Round`.
    if x - to_f64(whole) >= 0.5 { whole + 1 } else { whole }
}

/// Natural logarithms from 1 on. The scores of one pod count fewer nodes in all but huge clusters.
static LOGARITHMS: LazyLock<Vec<f64>> =
    LazyLock::new(|| (1..=LOGARITHMS_MAX).map(compute_logarithm).collect());

/// Number of logarithms that are computed once.
const LOGARITHMS_MAX: usize = 1_024;

/// Returns the natural logarithm of `n`, which must not be 0, accurate to the last but one digit of
/// a double.
pub(super) fn logarithm(n: usize) -> f64 {
    LOGARITHMS.get(n - 1).copied().unwrap_or_else(|| compute_logarithm(n))
}

/// Computes a natural logarithm.
///
/// Logarithms of the standard library depend on the platform. `n` is halved into [0.75, 1.5), where
/// the series of ln x = 2 artanh((x − 1) / (x + 1)) is short.
fn compute_logarithm(n: usize) -> f64 {
    const TERMS: u32 = 24;
    let (mut rest, mut halvings) = (usize_to_f64(n), 0.0);
    while rest >= 1.5 {
        rest /= 2.0;
        halvings += 1.0;
    }
    let base = (rest - 1.0) / (rest + 1.0);
    let square = base * base;
    let (mut power, mut sum) = (base, 0.0);
    for term in 0..TERMS {
        sum += power / f64::from(2 * term + 1);
        power *= square;
    }
    2.0 * sum + halvings * std::f64::consts::LN_2
}

/// Counts above 2³² do not occur and would be capped.
fn usize_to_f64(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}
