//! How good each feasible node is: the score plugins of the default profile.
//!
//! A score is an integer from 0 to 100, multiplied by the plugin's weight, and added up. Three
//! plugins compute in floating point upstream and truncate or round the result. So does this
//! module, with nothing but additions, multiplications, divisions and comparisons of IEEE doubles,
//! whose results are the same on every machine (the logarithm is computed from them, too): the
//! integers that decide are reproducible, and equal to upstream's on amd64.
//!
//! Source: `pkg/scheduler/apis/config/v1/default_plugins.go` (weights), and `scoring.go` or
//! `*_allocation.go` of each plugin below `pkg/scheduler/framework/plugins`.

use super::Scheduler;
use super::class::Class;
use super::load::{Load, Pair, Request};
use super::topology::{Topology, slot};
use crate::requirement::key;

/// The highest score of one plugin.
const SCORE_MAX: i64 = 100;

/// Weight of `TaintToleration`.
const TAINT_WEIGHT: i64 = 3;
/// Weight of `NodeAffinity`.
const NODE_AFFINITY_WEIGHT: i64 = 2;
/// Weight of `PodTopologySpread`.
const SPREAD_WEIGHT: i64 = 2;
/// Weight of `InterPodAffinity`.
const POD_AFFINITY_WEIGHT: i64 = 2;

/// What `NodeResourcesBalancedAllocation` rewards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Balance {
    /// Cpu and memory of the node are used evenly with the pod on it (Kubernetes up to 1.35).
    Level,
    /// They are used more evenly with the pod than without (from 1.36, kubernetes#135573).
    #[default]
    Change,
}

/// The resource scores of one request on every node, kept until the node's load changes.
#[derive(Debug, Clone)]
pub(super) struct ResourceScores {
    asked: Pair,
    scored: Pair,
    /// The node's version that the score is of, and the score.
    nodes: Vec<(u64, i64)>,
}

impl ResourceScores {
    pub(super) fn new(request: &Request) -> Self {
        Self { asked: request.main, scored: request.scored, nodes: Vec::new() }
    }

    pub(super) fn are_of(&self, request: &Request) -> bool {
        self.asked == request.main && self.scored == request.scored
    }

    pub(super) fn forget(&mut self) {
        self.nodes.clear();
    }

    /// `NodeResourcesFit` and `NodeResourcesBalancedAllocation`, both of weight 1.
    fn of(&mut self, node: usize, load: &Load, balance: Balance) -> i64 {
        let (asked, scored) = (self.asked, self.scored);
        let (version, score) = slot(&mut self.nodes, node);
        if *version != load.version {
            *version = load.version;
            *score = least_allocated(load.scored.plus(scored), load.has);
            // A pod that asks for nothing would follow the balance of others to one node.
            if asked != Pair::default() {
                *score += balanced(load.used, load.used.plus(asked), load.has, balance);
            }
        }
        *score
    }
}

impl Scheduler {
    /// Returns the totals of `nodes`, which all fit, for a pod of `class`.
    pub(super) fn totals(&mut self, class: usize, nodes: &[usize]) -> Vec<i64> {
        let Self { classes, loads, resource_scores, balance, .. } = self;
        let resources = &mut resource_scores[classes[class].resource_scores];
        let of = |node: &usize| resources.of(*node, &loads[*node], *balance);
        let mut totals: Vec<i64> = nodes.iter().map(of).collect();
        let class = &self.classes[class];
        let view = &self.views[class.view];
        let mut add = |scores: Vec<i64>, weight: i64| {
            totals.iter_mut().zip(scores).for_each(|(total, score)| *total += weight * score);
        };
        if view.discourages {
            let taints: Vec<i64> = nodes.iter().map(|node| view.node(*node).discouraged).collect();
            // Where no node is discouraged, all would gain the same.
            if taints.iter().any(|taints| *taints > 0) {
                add(reversed(share_of_highest(taints)), TAINT_WEIGHT);
            }
        }
        if view.wishes() {
            let wishes = nodes.iter().map(|node| view.node(*node).wish).collect();
            add(share_of_highest(wishes), NODE_AFFINITY_WEIGHT);
        }
        if !class.soft_spread.is_empty() {
            add(self.spread_scores(class, nodes), SPREAD_WEIGHT);
        }
        if let Some(sums) = self.affinity_sums(class, nodes) {
            add(share_of_range(&sums), POD_AFFINITY_WEIGHT);
        }
        totals
    }

    fn spread_scores(&self, class: &Class, nodes: &[usize]) -> Vec<i64> {
        let topology = |spread: &usize| &self.topologies[self.spreads[*spread].topology];
        let has_keys =
            |node: usize| class.soft_spread.iter().all(|s| topology(s).domain(node).is_some());
        let scored: Vec<bool> =
            nodes.iter().map(|node| !class.soft_needs_keys || has_keys(*node)).collect();
        let weights: Vec<f64> = class
            .soft_spread
            .iter()
            .map(|spread| logarithm(spread_size(topology(spread), nodes, &scored) + 2))
            .collect();
        let raw = nodes.iter().zip(&scored).map(|(node, scored)| {
            let sum = || self.spread_sum(class, *node, &weights);
            scored.then(sum)
        });
        invert_spread(&raw.collect::<Vec<_>>())
    }

    /// Adds up the pods of the node's domains, each topology by its weight.
    fn spread_sum(&self, class: &Class, node: usize, weights: &[f64]) -> i64 {
        let mut sum = 0.0;
        for (spread, weight) in class.soft_spread.iter().zip(weights) {
            let spread = &self.spreads[*spread];
            let topology = &self.topologies[spread.topology];
            let Some(domain) = topology.domain(node) else { continue };
            // Pods of the node itself count, whether or not the constraint counts the node.
            let pods = if is_hostname(topology) {
                self.sets[spread.set].on_node[node]
            } else {
                spread.pods(domain)
            };
            sum += float(pods) * weight + (float(spread.max_skew) - 1.0);
        }
        truncate(sum.round())
    }

    /// Returns how much each node is wanted: by the pod for who is there, and by those who are
    /// there for the pod. `None` where nobody wants anything.
    fn affinity_sums(&self, class: &Class, nodes: &[usize]) -> Option<Vec<i64>> {
        let sets = class.member_of.iter().map(|set| &self.sets[*set]);
        let pulled_by: Vec<_> = sets
            .flat_map(|set| &set.carriers)
            .map(|index| &self.carriers[*index])
            .filter(|carriers| carriers.pulling > 0)
            .collect();
        if class.wishes.is_empty() && pulled_by.is_empty() {
            return None;
        }
        let domain = |topology: usize, node: usize| self.topologies[topology].domain(node);
        let sum = |node: &usize| {
            let wishes = class.wishes.iter().filter_map(|(tally, weight)| {
                let tally = &self.tallies[*tally];
                let pods = tally.count(domain(tally.topology, *node)?);
                Some(i64::try_from(pods).unwrap_or(i64::MAX).saturating_mul(*weight))
            });
            let pulls = pulled_by.iter().filter_map(|c| Some(c.pull(domain(c.topology, *node)?)));
            wishes.chain(pulls).fold(0, i64::saturating_add)
        };
        Some(nodes.iter().map(sum).collect())
    }
}

/// Scores how much of cpu and memory stays free: the mean of both shares, 0 where more than all
/// is asked for.
fn least_allocated(used: Pair, has: Pair) -> i64 {
    let parts = [(used.cpu, has.cpu), (used.memory, has.memory)];
    let scores = parts.into_iter().filter(|(_, has)| *has > 0).map(|(used, has)| {
        if used > has { 0 } else { (has - used).saturating_mul(SCORE_MAX) / has }
    });
    let (sum, count) = scores.fold((0, 0), |(sum, count), score| (sum + score, count + 1));
    i64::checked_div(sum, count).unwrap_or(0)
}

fn balanced(before: Pair, after: Pair, has: Pair, balance: Balance) -> i64 {
    match balance {
        Balance::Level => evenness(after, has),
        Balance::Change => {
            let half = SCORE_MAX / 2;
            half + (half + evenness(after, has) - evenness(before, has)) / 2
        }
    }
}

/// Scores how close the shares of cpu and memory are to each other: 100 less their standard
/// deviation, which for two numbers is half their distance.
fn evenness(used: Pair, has: Pair) -> i64 {
    let share = |used: i64, has: i64| (wide(used) / wide(has)).min(1.0);
    let deviation = if has.cpu == 0 || has.memory == 0 {
        0.0
    } else {
        ((share(used.cpu, has.cpu) - share(used.memory, has.memory)) / 2.0).abs()
    };
    truncate((1.0 - deviation) * wide(SCORE_MAX))
}

/// Scales scores so that the highest becomes 100.
fn share_of_highest(scores: Vec<i64>) -> Vec<i64> {
    let highest = scores.iter().copied().max().unwrap_or(0);
    if highest == 0 {
        return scores;
    }
    scores.into_iter().map(|score| SCORE_MAX.saturating_mul(score) / highest).collect()
}

/// Turns scores around, so that the lowest is the best.
fn reversed(scores: Vec<i64>) -> Vec<i64> {
    scores.into_iter().map(|score| SCORE_MAX - score).collect()
}

/// Scales scores so that the lowest becomes 0 and the highest 100.
fn share_of_range(scores: &[i64]) -> Vec<i64> {
    let lowest = scores.iter().copied().min().unwrap_or(0);
    let range = scores.iter().copied().max().unwrap_or(0).saturating_sub(lowest);
    let share = |score: i64| {
        if range == 0 {
            return 0;
        }
        truncate(wide(SCORE_MAX) * (wide(score.saturating_sub(lowest)) / wide(range)))
    };
    scores.iter().copied().map(share).collect()
}

/// Turns pods counted into scores: fewer are better. Nodes that are not scored get 0.
fn invert_spread(raw: &[Option<i64>]) -> Vec<i64> {
    let counted = || raw.iter().copied().flatten();
    let (lowest, highest) = (counted().min().unwrap_or(0), counted().max().unwrap_or(0));
    let score = |sum: i64| match highest {
        0 => SCORE_MAX,
        _ => SCORE_MAX * (highest + lowest - sum) / highest,
    };
    raw.iter().map(|sum| sum.map_or(0, score)).collect()
}

/// Counts the domains among the nodes that are scored. Nodes without the key are one more.
fn spread_size(topology: &Topology, nodes: &[usize], scored: &[bool]) -> usize {
    if is_hostname(topology) {
        return scored.iter().filter(|scored| **scored).count();
    }
    let mut seen = vec![false; topology.domains() + 1];
    for (node, _) in nodes.iter().zip(scored).filter(|(_, scored)| **scored) {
        seen[topology.domain(*node).unwrap_or(topology.domains())] = true;
    }
    seen.into_iter().filter(|seen| *seen).count()
}

fn is_hostname(topology: &Topology) -> bool {
    topology.key.as_str() == key::HOSTNAME
}

/// Returns the natural logarithm of `n`, which is not 0, to the last but one digit of a double.
///
/// The standard library's is the platform's, and platforms differ. `n` is halved into
/// [0.75, 1.5), where the series of ln x = 2 artanh((x − 1) / (x + 1)) is short.
pub(super) fn logarithm(n: usize) -> f64 {
    const TERMS: u32 = 24;
    let (mut rest, mut halvings) = (float(n), 0.0);
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

/// Counts beyond 2³² do not occur; they would be capped.
fn float(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "upstream rounds alike")]
fn wide(n: i64) -> f64 {
    n as f64
}

#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "it is the point")]
fn truncate(x: f64) -> i64 {
    x as i64
}
