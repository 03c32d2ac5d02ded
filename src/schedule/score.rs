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
use super::topology::{ABSENT, Topology, at};

/// The highest score of one plugin.
const SCORE_MAX: i64 = 100;

/// Weight of `TaintToleration`.
const TAINT_WEIGHT: i32 = 3;
/// Weight of `NodeAffinity`.
const NODE_AFFINITY_WEIGHT: i32 = 2;
/// Weight of `PodTopologySpread`.
const SPREAD_WEIGHT: i32 = 2;
/// Weight of `InterPodAffinity`.
const POD_AFFINITY_WEIGHT: i32 = 2;

/// Differences of spread sums below this are worked out once each.
const RANGE_MAX: usize = 64;

/// What `NodeResourcesBalancedAllocation` rewards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Balance {
    /// Cpu and memory of the node are used evenly with the pod on it (Kubernetes up to 1.35).
    Level,
    /// They are used more evenly with the pod than without (from 1.36, kubernetes#135573).
    #[default]
    Change,
}

/// Returns `NodeResourcesFit` and `NodeResourcesBalancedAllocation`, both of weight 1.
pub(super) fn resource_score(request: &Request, load: &Load, balance: Balance) -> i32 {
    let mut score = least_allocated(load.scored.plus(request.scored), load.has);
    // A pod that asks for nothing would follow the balance of others to one node.
    if request.main != Pair::default() {
        score += balanced(load.used, load.used.plus(request.main), load.has, balance);
    }
    i32::try_from(score).expect("two scores of at most 100")
}

/// Nodes that fit a pod, with their totals.
#[derive(Debug, Clone, Default)]
pub(super) struct Finds {
    pub(super) nodes: Vec<usize>,
    /// Begin as the resource scores.
    pub(super) totals: Vec<i32>,
}

impl Finds {
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
        self.totals.clear();
    }

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
    /// Adds to the resource scores what the other plugins say of nodes that all fit.
    pub(super) fn add_scores(&self, class: usize, finds: &mut Finds) {
        let class = &self.rules.classes[class];
        let view = &self.ground.views[self.rules.locals[class.local].view];
        if view.discourages {
            let taints = finds.nodes.iter().map(|node| view.node(*node).discouraged);
            let taints: Vec<i64> = taints.collect();
            // Where no node is discouraged, all would gain the same.
            if let Some(highest) = taints.iter().copied().max().filter(|highest| *highest > 0) {
                let scores = taints.iter().map(|taints| SCORE_MAX - SCORE_MAX * taints / highest);
                finds.add(TAINT_WEIGHT, scores);
            }
        }
        if view.wishes() {
            let wishes: Vec<i64> = finds.nodes.iter().map(|node| view.node(*node).wish).collect();
            let highest = wishes.iter().copied().max().unwrap_or(0);
            if highest != 0 {
                let share = |wish: &i64| SCORE_MAX.saturating_mul(*wish) / highest;
                finds.add(NODE_AFFINITY_WEIGHT, wishes.iter().map(share));
            }
        }
        if !class.soft_spread.is_empty() {
            let scores = self.spread_scores(class, &finds.nodes);
            finds.add(SPREAD_WEIGHT, scores.into_iter());
        }
        if let Some(sums) = self.affinity_sums(class, &finds.nodes) {
            finds.add(POD_AFFINITY_WEIGHT, shares_of_range(&sums));
        }
    }

    fn spread_scores(&self, class: &Class, nodes: &[usize]) -> Vec<i64> {
        let topologies = &self.ground.topologies;
        let soft = || class.soft_spread.iter().map(|spread| &topologies[spread.topology]);
        let has_keys = |node: usize| soft().all(|topology| topology.domain(node).is_some());
        let scored: Vec<bool> =
            nodes.iter().map(|node| !class.soft_needs_keys || has_keys(*node)).collect();
        let mut sums = vec![0.0; nodes.len()];
        for spread in &class.soft_spread {
            let topology = &topologies[spread.topology];
            let weight = logarithm(spread_size(topology, nodes, &scored) + 2);
            let skew = f64::from(spread.max_skew) - 1.0;
            let worth = |pods: u32| f64::from(pods) * weight + skew;
            let of_node = topology.of_nodes();
            let pods = self.counters[spread.counter].pods();
            let here = &self.on_node[spread.set];
            // Most hosts have none of the pods, and zones are few.
            let none = worth(0);
            let by_domain: Vec<f64> = if topology.is_hostname {
                Vec::new()
            } else {
                pods.iter().map(|pods| worth(*pods)).collect()
            };
            for (node, sum) in nodes.iter().zip(&mut sums) {
                let domain = of_node[*node];
                if domain == ABSENT {
                    continue;
                }
                // Pods of the node itself count, whether or not the constraint counts it.
                *sum += if topology.is_hostname {
                    let pods = here.get(*node).copied().unwrap_or(0);
                    if pods == 0 { none } else { worth(pods) }
                } else {
                    by_domain.get(at(domain)).copied().unwrap_or(none)
                };
            }
        }
        invert_spread(&sums, &scored)
    }

    /// Returns how much each node is wanted: by the pod for who is there, and by those who are
    /// there for the pod. `None` where nobody wants anything.
    fn affinity_sums(&self, class: &Class, nodes: &[usize]) -> Option<Vec<i64>> {
        let heard = class.member_of.iter().flat_map(|set| &self.rules.sets[*set].carriers);
        let mut pulled_by = heard.map(|index| &self.carriers[*index]).filter(|c| c.pulling > 0);
        let first = pulled_by.next();
        if class.wishes.is_empty() && first.is_none() {
            return None;
        }
        let mut sums = vec![0_i64; nodes.len()];
        let mut add = |topology: usize, worth: &dyn Fn(usize) -> i64| {
            let of_node = self.ground.topologies[topology].of_nodes();
            for (node, sum) in nodes.iter().zip(&mut sums) {
                if of_node[*node] != ABSENT {
                    *sum = sum.saturating_add(worth(at(of_node[*node])));
                }
            }
        };
        for (tally, weight) in &class.wishes {
            let tally = &self.tallies[*tally];
            let pods = |domain: usize| i64::from(tally.counts().get(domain).copied().unwrap_or(0));
            add(tally.topology, &|domain| pods(domain).saturating_mul(*weight));
        }
        for carriers in first.into_iter().chain(pulled_by) {
            let pulls = carriers.pulls();
            add(carriers.topology, &|domain| pulls.get(domain).copied().unwrap_or(0));
        }
        Some(sums)
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

/// Scales scores so that the lowest becomes 0 and the highest 100.
fn shares_of_range(scores: &[i64]) -> impl Iterator<Item = i64> {
    let lowest = scores.iter().copied().min().unwrap_or(0);
    let range = scores.iter().copied().max().unwrap_or(0).saturating_sub(lowest);
    let share = move |score: i64| {
        if range == 0 {
            return 0;
        }
        truncate(wide(SCORE_MAX) * (wide(score.saturating_sub(lowest)) / wide(range)))
    };
    scores.iter().copied().map(share)
}

/// Turns pods counted into scores: fewer are better. Nodes that are not scored get 0.
fn invert_spread(sums: &[f64], scored: &[bool]) -> Vec<i64> {
    let raw: Vec<i64> = sums.iter().map(|sum| round(*sum)).collect();
    let counted = || raw.iter().zip(scored).filter(|(_, scored)| **scored).map(|(sum, _)| *sum);
    let (lowest, highest) = (counted().min().unwrap_or(0), counted().max().unwrap_or(0));
    let score = |sum: i64| match highest {
        0 => SCORE_MAX,
        _ => SCORE_MAX * (highest + lowest - sum) / highest,
    };
    // Sums lie close together, so that each is divided once and not for each node.
    let range = usize::try_from(highest - lowest).unwrap_or(usize::MAX);
    let known: Vec<i64> =
        if range < RANGE_MAX { (lowest..=highest).map(score).collect() } else { Vec::new() };
    let look_up = |sum: i64| {
        let at = usize::try_from(sum - lowest).unwrap_or(usize::MAX);
        known.get(at).copied().unwrap_or_else(|| score(sum))
    };
    raw.iter().zip(scored).map(|(sum, scored)| if *scored { look_up(*sum) } else { 0 }).collect()
}

/// Counts the domains among the nodes that are scored. Nodes without the key are one more.
fn spread_size(topology: &Topology, nodes: &[usize], scored: &[bool]) -> usize {
    if topology.is_hostname {
        return scored.iter().filter(|scored| **scored).count();
    }
    let mut seen = vec![false; topology.domains() + 1];
    for (node, _) in nodes.iter().zip(scored).filter(|(_, scored)| **scored) {
        seen[topology.domain(*node).map_or(topology.domains(), at)] = true;
    }
    seen.into_iter().filter(|seen| *seen).count()
}

/// Rounds to the nearest integer, halves away from 0; `x` is not negative.
fn round(x: f64) -> i64 {
    let whole = truncate(x);
    // The difference is exact, so that this rounds as upstream's `math.Round` does.
    if x - wide(whole) >= 0.5 { whole + 1 } else { whole }
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
