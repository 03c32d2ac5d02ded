//! Reference scores and choices, computed for each pod from all nodes and pods as the plugin
//! documentation describes. Nothing is counted incrementally or cached.

use rand::RngExt;
use rand_pcg::Pcg64;

use super::brute_force::{OracleCluster, owner};
use super::*;
use crate::scheduler::BalanceScoring;

/// State of the next choice apart from nodes and pods.
pub(super) struct SearchState {
    pub(super) start: usize,
    pub(super) rng: Pcg64,
}

fn percent(part: i64, whole: i64) -> i64 {
    if part > whole { 0 } else { (whole - part) * 100 / whole }
}

fn float(n: i64) -> f64 {
    f64::from(i32::try_from(n).expect("test worlds are small"))
}

/// Returns each of `scores` (higher is better) as a share of the highest.
fn of_highest(scores: Vec<i64>) -> Vec<i64> {
    let highest = scores.iter().copied().max().unwrap_or(0);
    scores.into_iter().map(|score| if highest == 0 { 0 } else { score * 100 / highest }).collect()
}

#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "Go's int64(x)")]
fn truncate(x: f64) -> i64 {
    x as i64
}

impl OracleCluster {
    fn resource_score(&self, pod: &PodShape, node: usize, balance: BalanceScoring) -> i64 {
        let pairs = |pod: &PodShape| (pod.requests.cpu.0, pod.requests.memory.0);
        let presumed = |pod: &PodShape| (pod.presumed.cpu.0, pod.presumed.memory.0);
        let plus = |a: (i64, i64), b: (i64, i64)| (a.0 + b.0, a.1 + b.1);
        let has =
            pairs(&PodShape { requests: self.nodes[node].allocatable.clone(), ..pod.clone() });
        let (mut used, mut scored) = ((0, 0), (0, 0));
        for other in self.on_node(node) {
            used = plus(used, pairs(other));
            scored = plus(scored, presumed(other));
        }
        let asked = pairs(pod);
        let scored = plus(plus(used, asked), plus(scored, presumed(pod)));
        let least = i64::midpoint(percent(scored.0, has.0), percent(scored.1, has.1));
        let mib = |n: i64| n >> 10;
        let evenness = |used: (i64, i64)| {
            let share = |used: i64, has: i64| (float(used) / float(has)).min(1.0);
            let gap = share(used.0, has.0) - share(mib(used.1), mib(has.1));
            truncate((1.0 - (gap / 2.0).abs()) * 100.0)
        };
        let after = evenness(plus(used, asked));
        least
            + match balance {
                _ if asked == (0, 0) => 0,
                BalanceScoring::Evenness => after,
                BalanceScoring::Improvement => 50 + (50 + after - evenness(used)) / 2,
            }
    }

    fn taint_scores(&self, pod: &PodShape, nodes: &[usize]) -> Vec<i64> {
        let bad = |node: &usize| {
            let soft = self.nodes[*node].taints.iter();
            let soft = soft.filter(|taint| taint.effect == TaintEffect::PreferNoSchedule);
            let bad = soft.filter(|taint| !pod.tolerations.iter().any(|t| t.tolerates(taint)));
            i64::try_from(bad.count()).expect("few")
        };
        let bad = of_highest(nodes.iter().map(bad).collect());
        bad.into_iter().map(|share| 100 - share).collect()
    }

    fn preference_scores(&self, pod: &PodShape, nodes: &[usize]) -> Vec<i64> {
        let wish = |node: &usize| {
            let terms = pod.nodes.preferred.iter();
            let held = terms.filter(|(_, term)| term.matches_labels(&self.nodes[*node].labels));
            held.map(|(weight, _)| i64::from(*weight)).sum()
        };
        of_highest(nodes.iter().map(wish).collect())
    }

    /// Returns the soft constraints, and true if nodes without a key are not scored.
    fn soft_rules(pod: &PodShape) -> (Vec<TopologySpread>, bool) {
        if pod.spread.is_empty() && owner(pod).is_some() {
            let soft = |key, skew| TopologySpread {
                when_unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
                selector: None,
                ..topology_spread(key, skew, "")
            };
            return (vec![soft(key::HOSTNAME, 3), soft(key::ZONE, 5)], false);
        }
        let soft =
            |rule: &&TopologySpread| rule.when_unsatisfiable == WhenUnsatisfiable::ScheduleAnyway;
        (pod.spread.iter().filter(soft).cloned().collect(), true)
    }

    fn spread_scores(&self, pod: &PodShape, nodes: &[usize]) -> Vec<i64> {
        let (rules, needs_keys) = Self::soft_rules(pod);
        let value = |node: usize, rule: &TopologySpread| {
            self.nodes[node].labels.get(&rule.topology_key).cloned()
        };
        let left_out =
            |node: usize| needs_keys && rules.iter().any(|rule| value(node, rule).is_none());
        let counted = |rule: &TopologySpread, other: &PodShape| match &rule.selector {
            None if needs_keys => false,
            None => owner(other) == owner(pod) && other.labels == pod.labels,
            Some(_) => Self::counted_by(rule, pod, other),
        };
        let on = |rule: &TopologySpread, node: usize| {
            float(self.on_node(node).filter(|other| counted(rule, other)).fold(0, |n, _| n + 1))
        };
        let sum = |node: usize| {
            let mut sum = 0.0;
            for rule in &rules {
                let Some(here) = value(node, rule) else { continue };
                let by_host = rule.topology_key.as_str() == key::HOSTNAME;
                let scored = nodes.iter().filter(|node| !left_out(**node));
                let mut values: Vec<_> = scored.map(|node| value(*node, rule)).collect();
                if !by_host {
                    values.sort();
                    values.dedup();
                }
                let weight = float(i64::try_from(values.len()).expect("few") + 2).ln();
                let alike = |other: &usize| {
                    value(*other, rule).as_ref() == Some(&here)
                        && !left_out(*other)
                        && self.included(rule, pod, *other)
                };
                let all = 0..self.nodes.len();
                let pods: f64 = if by_host {
                    on(rule, node)
                } else {
                    all.filter(alike).map(|other| on(rule, other)).sum()
                };
                sum += pods * weight + (f64::from(rule.max_skew) - 1.0);
            }
            truncate(sum.round())
        };
        let sums: Vec<Option<i64>> =
            nodes.iter().map(|node| (!left_out(*node)).then(|| sum(*node))).collect();
        let lowest = sums.iter().copied().flatten().min().unwrap_or(0);
        let highest = sums.iter().copied().flatten().max().unwrap_or(0);
        let score =
            |sum: i64| if highest == 0 { 100 } else { 100 * (highest + lowest - sum) / highest };
        if rules.is_empty() {
            return vec![0; nodes.len()];
        }
        sums.into_iter().map(|sum| sum.map_or(0, score)).collect()
    }

    fn affinity_scores(&self, pod: &PodShape, nodes: &[usize]) -> Vec<i64> {
        let near =
            |a: usize, b: usize, term: &PodAffinityTerm| self.together(a, b, &term.topology_key);
        let sum = |node: usize| {
            let mut sum = 0;
            for (other, on) in &self.pods {
                let mut weigh =
                    |weight: i64, term: &PodAffinityTerm, of: &PodShape, to: &PodShape| {
                        if self.selects(term, of, to) && near(*on, node, term) {
                            sum += weight;
                        }
                    };
                for (of, to) in [(pod, other), (other, pod)] {
                    for (weight, term) in &of.affinity.preferred {
                        weigh(i64::from(*weight), term, of, to);
                    }
                    for (weight, term) in &of.anti_affinity.preferred {
                        weigh(-i64::from(*weight), term, of, to);
                    }
                }
                other.affinity.required.iter().for_each(|term| weigh(1, term, other, pod));
            }
            sum
        };
        let sums: Vec<i64> = nodes.iter().map(|node| sum(*node)).collect();
        let lowest = sums.iter().copied().min().unwrap_or(0);
        let range = sums.iter().copied().max().unwrap_or(0) - lowest;
        let share = |sum: i64| {
            if range == 0 { 0 } else { truncate(100.0 * (float(sum - lowest) / float(range))) }
        };
        sums.into_iter().map(share).collect()
    }

    /// Returns the total scores of feasible nodes.
    pub(super) fn totals(
        &self,
        pod: &PodShape,
        nodes: &[usize],
        balance: BalanceScoring,
    ) -> Vec<i64> {
        let resource = nodes.iter().map(|node| self.resource_score(pod, *node, balance)).collect();
        [
            (1, resource),
            (3, self.taint_scores(pod, nodes)),
            (2, self.preference_scores(pod, nodes)),
            (2, self.spread_scores(pod, nodes)),
            (2, self.affinity_scores(pod, nodes)),
        ]
        .into_iter()
        .fold(vec![0; nodes.len()], |totals, (weight, scores): (i64, Vec<i64>)| {
            totals.iter().zip(scores).map(|(total, score)| total + weight * score).collect()
        })
    }

    /// Returns the nodes in search order: one of each zone in search.
    fn order(&self) -> Vec<usize> {
        let zone = |node: usize| self.nodes[node].labels.get(key::ZONE).cloned();
        let nodes = 0..self.nodes.len();
        let search = |node: usize| (0..node).filter(|other| zone(*other) == zone(node)).count();
        let rank = |node: usize| self.zones.iter().position(|known| *known == zone(node));
        let mut order: Vec<usize> = nodes.collect();
        order.sort_by_key(|node| (search(*node), rank(*node)));
        order
    }

    /// Binds a pod, returns its node, and advances the search start.
    pub(super) fn choose(
        &self,
        pod: &PodShape,
        balance: BalanceScoring,
        search: &mut SearchState,
    ) -> Option<usize> {
        let order = self.order();
        let wanted = match order.len() {
            few @ 0..100 => few,
            many => (many * (50 - many / 125).max(5) / 100).max(100),
        };
        let (mut found, mut tried) = (Vec::new(), 0);
        for step in 0..order.len() {
            let node = order[(search.start + step) % order.len()];
            tried += 1;
            if self.legal(pod, node) {
                found.push(node);
                if found.len() == wanted {
                    break;
                }
            }
        }
        search.start = (search.start + tried) % order.len();
        if found.len() < 2 {
            return found.first().copied();
        }
        let totals = self.totals(pod, &found, balance);
        let highest = totals.iter().max().expect("some were found");
        let ties = found.iter().zip(&totals).filter(|(_, total)| *total == highest);
        let ties: Vec<usize> = ties.map(|(node, _)| *node).collect();
        let pick = if ties.len() > 1 { search.rng.random_range(0..ties.len()) } else { 0 };
        Some(ties[pick])
    }
}
