//! Topology spread constraints with `DoNotSchedule`.
//!
//! kube-scheduler admits a pod to a domain if the count of the domain exceeds the minimum count of
//! all domains by at most `maxSkew`. The count includes the pod itself if the constraint selects
//! it. The minimum is 0 while there are fewer domains than `minDomains`. The constraint is
//! evaluated once, when the pod is bound. Later pods may raise the count of a domain, and
//! terminated pods may lower the count of another. A state that violates the constraint may
//! therefore be valid. Let `M` be the minimum count of a constraint at the end.
//!
//! **Criterion.** Repeatedly remove each arriving pod whose constraints all hold against `M`: the
//! domain of the pod has at most `M + maxSkew` counted pods that are not removed. A pod without a
//! constraint is removed at once. Pods that cannot be removed are a violation. A single workload
//! with a single constraint violates it if it arrives in a domain with more than `M + maxSkew`
//! pods.
//!
//! **No placement by kube-scheduler violates the criterion.** While pods arrive, no count falls and
//! no domain appears. The minimum count is therefore at most `M` at all times. Suppose that some
//! pods remain, and consider the remaining pod that was bound last. All other remaining pods were
//! bound before it, so its constraints counted at least as many pods as the criterion. The
//! constraints held, so this count was at most the minimum count plus `maxSkew`, and hence at most
//! `M + maxSkew`. The criterion would then have removed the pod, which is a contradiction.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Violations;
use super::context::{InterPodContext, required_spread};
use super::eligible_nodes::EligibleNodes;
use crate::model::pod::TopologySpread;

/// One constraint of one pod set.
struct SpreadRule<'a> {
    pod_set: usize,
    constraint: &'a TopologySpread,
    topology: usize,
    /// Pod sets that count.
    members: Vec<usize>,
    /// Index of the set of nodes that count.
    eligible: usize,
    /// Number of counted pods by domain, without removed pods.
    counts: BTreeMap<usize, u32>,
    /// Maximum number of pods in a domain: minimum count at the end plus skew.
    most: u32,
}

pub(super) fn check(inter_pod: &mut InterPodContext<'_>, violations: &mut Violations) {
    let mut eligible_nodes = EligibleNodes::new(inter_pod.state);
    let (state, mut rules) = (inter_pod.state, Vec::new());
    // Many pod sets count the same pods in the same domains.
    let mut counted: BTreeMap<_, BTreeMap<usize, u32>> = BTreeMap::new();
    for (index, pod_set) in state.pod_sets.iter().enumerate() {
        if pod_set.by_node.values().all(|pods| pods.arriving == 0) {
            continue;
        }
        for constraint in required_spread(pod_set) {
            let topology = inter_pod.topologies.get(&constraint.topology_key);
            let selection = inter_pod.pod_index.select_spread(constraint, &pod_set.shape);
            let members = inter_pod.pod_index.members(selection).to_vec();
            let eligible = eligible_nodes.get(pod_set, constraint, &mut inter_pod.topologies);
            let counts = BTreeMap::new();
            let mut rule = SpreadRule {
                pod_set: index,
                constraint,
                topology,
                members,
                eligible,
                counts,
                most: 0,
            };
            let same = counted.entry((selection, topology, eligible));
            rule.counts = same.or_insert_with(|| rule.count(inter_pod, &eligible_nodes)).clone();
            rule.most = rule.most(&eligible_nodes);
            rules.push(rule);
        }
    }
    let mut any_exceeded = false;
    for rule in &rules {
        for domain in rule.domains(inter_pod, violations) {
            any_exceeded |= rule.exceeds(domain);
        }
    }
    if any_exceeded {
        let left = remove_admissible(inter_pod, &eligible_nodes, &mut rules);
        report(inter_pod, &rules, &left, violations);
    }
}

impl SpreadRule<'_> {
    /// Counts all pods on eligible nodes, by domain.
    fn count(
        &self,
        inter_pod: &InterPodContext<'_>,
        eligible_nodes: &EligibleNodes<'_>,
    ) -> BTreeMap<usize, u32> {
        let end_nodes = &eligible_nodes.sets[self.eligible].nodes;
        let mut counts: BTreeMap<usize, u32> = BTreeMap::new();
        for member in &self.members {
            for (end_node, pods) in
                inter_pod.state.pod_sets[*member].by_node.iter().filter(|(s, _)| end_nodes[**s])
            {
                if let Some(domain) = inter_pod.topologies.domain(self.topology, *end_node) {
                    let count = counts.entry(domain).or_default();
                    *count = count.saturating_add(pods.all());
                }
            }
        }
        counts
    }

    /// Returns whether `domain` has more counted pods than allowed.
    fn exceeds(&self, domain: usize) -> bool {
        self.counts.get(&domain).is_some_and(|pods| *pods > self.most)
    }

    /// Returns the maximum number of pods in a domain.
    fn most(&self, eligible_nodes: &EligibleNodes<'_>) -> u32 {
        let to_count = |number: i32| u32::try_from(number).unwrap_or(0);
        let domains = eligible_nodes.sets[self.eligible].domains.get(&self.topology).copied();
        let domains = domains.unwrap_or(0);
        let wanted = usize::try_from(self.constraint.min_domains.unwrap_or(1)).unwrap_or(0);
        let least = self.counts.values().copied().min().unwrap_or(0);
        let least = if domains < wanted || self.counts.len() < domains { 0 } else { least };
        least.saturating_add(to_count(self.constraint.max_skew))
    }

    /// Returns the domains in which pods of the set arrive, and reports nodes without a domain.
    fn domains(
        &self,
        inter_pod: &InterPodContext<'_>,
        violations: &mut Violations,
    ) -> BTreeSet<usize> {
        let mut domains = BTreeSet::new();
        let by_node = inter_pod.state.pod_sets[self.pod_set]
            .by_node
            .iter()
            .filter(|(_, pods)| pods.arriving > 0);
        for (end_node, _) in by_node {
            if let Some(domain) = inter_pod.topologies.domain(self.topology, *end_node) {
                domains.insert(domain);
                continue;
            }
            let fault = format!(
                "{} is placed here, but the node lacks the label {} of its spread constraint",
                inter_pod.name(self.pod_set),
                self.constraint.topology_key,
            );
            violations.report_row(
                "fit/spread",
                inter_pod.state.nodes[*end_node].row.address,
                fault,
            );
        }
        domains
    }
}

/// Repeatedly removes the pods that could have arrived last. Returns pod set and node of the
/// remaining pods.
fn remove_admissible(
    inter_pod: &InterPodContext<'_>,
    eligible_nodes: &EligibleNodes<'_>,
    rules: &mut [SpreadRule<'_>],
) -> BTreeSet<(usize, usize)> {
    let (mut carried, mut counting) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
    for (index, rule) in rules.iter().enumerate() {
        carried.entry(rule.pod_set).or_default().push(index);
        for member in &rule.members {
            counting.entry(*member).or_default().push(index);
        }
    }
    let mut left: BTreeSet<(usize, usize)> =
        inter_pod.pod_sets_where(|pods| pods.arriving > 0).into_iter().collect();
    loop {
        let holds = |(pod_set, end_node): &&(usize, usize)| {
            carried.get(pod_set).into_iter().flatten().all(|rule| {
                let domain = inter_pod.topologies.domain(rules[*rule].topology, *end_node);
                domain.is_none_or(|domain| !rules[*rule].exceeds(domain))
            })
        };
        let last: Vec<(usize, usize)> = left.iter().filter(holds).copied().collect();
        if last.is_empty() {
            return left;
        }
        for (pod_set, end_node) in last {
            left.remove(&(pod_set, end_node));
            let arriving = inter_pod.state.pod_sets[pod_set]
                .by_node
                .get(&end_node)
                .map_or(0, |pods| pods.arriving);
            for rule in counting.get(&pod_set).into_iter().flatten() {
                let rule = &mut rules[*rule];
                let domain = inter_pod.topologies.domain(rule.topology, end_node);
                let counts = eligible_nodes.sets[rule.eligible].nodes[end_node];
                if let Some(count) = domain.filter(|_| counts).and_then(|d| rule.counts.get_mut(&d))
                {
                    *count = count.saturating_sub(arriving);
                }
            }
        }
    }
}

/// Reports each constraint once for each domain with remaining pods.
fn report(
    inter_pod: &InterPodContext<'_>,
    rules: &[SpreadRule<'_>],
    left: &BTreeSet<(usize, usize)>,
    violations: &mut Violations,
) {
    for rule in rules {
        let mut named = BTreeSet::new();
        for (_, end_node) in left.range((rule.pod_set, 0)..=(rule.pod_set, usize::MAX)) {
            let domain = inter_pod.topologies.domain(rule.topology, *end_node);
            let Some(domain) = domain.filter(|domain| rule.exceeds(*domain)) else { continue };
            if !named.insert(domain) {
                continue;
            }
            let fault = format!(
                "{} is placed in {}, which then has {} of the pods that its spread constraint \
                 counts; with maxSkew {} no domain may have more than {}",
                inter_pod.name(rule.pod_set),
                inter_pod.topologies.describe(rule.topology, domain),
                rule.counts.get(&domain).copied().unwrap_or(0),
                rule.constraint.max_skew,
                rule.most,
            );
            violations.report_row(
                "fit/spread",
                inter_pod.state.nodes[*end_node].row.address,
                fault,
            );
        }
    }
}
