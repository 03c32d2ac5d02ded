//! Limit of the rules between pods in one plan.
//!
//! Each pair of a rule and a workload that it selects slows every solver step. A user of one
//! namespace can declare any number of them. The limit is a count of such pairs,
//! so that the result does not depend on the computer. Namespaces share it: each one gets an equal
//! part, and what it does not use goes to the others. Workloads beyond it are not placed, and are
//! named with this reason. Their running pods stay where they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::demand::{Demand, PodGroup, Unsupported};
use crate::model::ids::{LabelKey, Labels, Namespace};
use crate::scheduler::{NamespaceLabels, PodSelector};

/// Maximum number of pairs of a rule and another workload. Clusters with rules that select few
/// workloads each stay far below it.
const PAIRS_MAX: usize = 4_000;

/// Maximum number of comparisons to count pairs exactly. Pairs of the rules beyond it are estimated:
/// one for each workload of the cluster.
const COMPARISONS_MAX: usize = 4_000_000;

/// Marks workloads whose rules exceed the limit as unsupported.
pub(super) fn limit_pod_rules(demand: &mut Demand, namespaces: &BTreeMap<Namespace, Labels>) {
    limit(&mut demand.groups, namespaces, PAIRS_MAX);
}

fn limit(groups: &mut [PodGroup], namespaces: &BTreeMap<Namespace, Labels>, pairs_max: usize) {
    let rules = rules_by_subject(groups);
    if rules.is_empty() {
        return;
    }
    let pairs = pairs_by_group(groups, &rules, &NamespaceLabels::new(namespaces), pairs_max);
    if pairs.values().fold(0_usize, |sum, count| sum.saturating_add(*count)) <= pairs_max {
        return;
    }
    for index in beyond_share(groups, &pairs, pairs_max) {
        if let Some(group) = groups.get_mut(index) {
            let shapes = group.partitions.iter_mut().map(|part| &mut part.shape);
            for shape in shapes.chain([&mut group.shape]) {
                Arc::make_mut(shape).unsupported.push(Unsupported::TooManyPodRules);
            }
        }
    }
}

/// Returns the distinct rules, each with the groups that have it. Equal rules of several groups take
/// the work of one.
fn rules_by_subject(groups: &[PodGroup]) -> BTreeMap<(LabelKey, PodSelector), BTreeSet<usize>> {
    let mut rules: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        let shape = &group.shape;
        if group.counts.planned == 0 || !shape.unsupported.is_empty() {
            continue;
        }
        for affinity in [&shape.affinity, &shape.anti_affinity] {
            let preferred = affinity.preferred.iter().map(|(_, term)| term);
            for term in affinity.required.iter().chain(preferred) {
                if let Some(selector) = PodSelector::from_term(term, shape) {
                    let key = (term.topology_key.clone(), selector);
                    rules.entry(key).or_default().insert(index);
                }
            }
        }
    }
    rules
}

/// Returns the number of pairs of each group that has any.
fn pairs_by_group(
    groups: &[PodGroup],
    rules: &BTreeMap<(LabelKey, PodSelector), BTreeSet<usize>>,
    namespaces: &NamespaceLabels,
    pairs_max: usize,
) -> BTreeMap<usize, usize> {
    let mut pairs: BTreeMap<usize, usize> = BTreeMap::new();
    let mut comparisons = 0_usize;
    for ((_, selector), subjects) in rules {
        let others = if comparisons < COMPARISONS_MAX {
            comparisons = comparisons.saturating_add(groups.len());
            let is_other = |(index, group): &(usize, &PodGroup)| {
                group.counts.planned > 0
                    && !subjects.contains(index)
                    && selector.matches(&group.shape, namespaces)
            };
            groups.iter().enumerate().filter(is_other).count()
        } else {
            groups.len()
        };
        for index in subjects {
            let own = pairs.entry(*index).or_insert(0);
            *own = own.saturating_add(others.div_ceil(subjects.len().max(1))).min(pairs_max + 1);
        }
    }
    pairs.retain(|_, count| *count > 0);
    pairs
}

/// Returns the groups beyond the share of their namespace. Groups with few pairs come first.
fn beyond_share(
    groups: &[PodGroup],
    pairs: &BTreeMap<usize, usize>,
    pairs_max: usize,
) -> Vec<usize> {
    let mut by_namespace: BTreeMap<&Namespace, Vec<(usize, usize)>> = BTreeMap::new();
    for (index, count) in pairs {
        if let Some(group) = groups.get(*index) {
            by_namespace.entry(&group.workload.namespace).or_default().push((*count, *index));
        }
    }
    let total = |rows: &[(usize, usize)]| rows.iter().map(|(count, _)| count).sum::<usize>();
    let mut all: Vec<Vec<(usize, usize)>> = by_namespace.into_values().collect();
    all.sort_by_key(|rows| total(rows));
    let (mut left, mut waiting, mut beyond) = (pairs_max, all.len(), Vec::new());
    for mut rows in all {
        let mut share = left / waiting.max(1);
        waiting = waiting.saturating_sub(1);
        rows.sort_unstable();
        for (count, index) in rows {
            if count <= share {
                share -= count;
                left -= count;
            } else {
                beyond.push(index);
            }
        }
    }
    beyond
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pod::Selector;
    use crate::model::requirement::{Operator, label};
    use crate::testing::pods::{affinity_term, deployment, one_of, pod_group, shape};

    fn plain(namespace: &str, name: &str) -> PodGroup {
        let mut shape = shape(namespace);
        shape.labels = [label("app", name)].into();
        pod_group(deployment(namespace, name), shape, 3)
    }

    /// Returns a group of pods labeled `app: name` that keeps apart from all others in the cluster.
    fn hostile(namespace: &str, name: &str) -> PodGroup {
        let mut group = plain(namespace, name);
        let mut term = affinity_term("kubernetes.io/hostname", name);
        let mut others = one_of("app", &[name]);
        others.operator = Operator::NotIn;
        term.selector = Some(Selector(vec![others]));
        term.namespace_selector = Some(Selector(Vec::new()));
        Arc::make_mut(&mut group.shape).anti_affinity.required.push(term);
        group
    }

    fn excluded(groups: &[PodGroup]) -> Vec<String> {
        let is_excluded =
            |group: &&PodGroup| group.shape.unsupported.contains(&Unsupported::TooManyPodRules);
        groups.iter().filter(is_excluded).map(|group| group.workload.name.to_string()).collect()
    }

    #[test]
    fn hostile_namespace_exceeds_its_own_share_only() {
        let mut groups: Vec<PodGroup> =
            (0..20).map(|n| hostile("evil", &format!("evil-{n:02}"))).collect();
        groups.push(hostile("shop", "careful"));
        groups.extend((0..20).map(|n| plain("shop", &format!("plain-{n:02}"))));
        let mut all = groups.clone();
        limit(&mut all, &BTreeMap::new(), usize::MAX - 1);
        assert!(excluded(&all).is_empty(), "no limit");
        // Each of the 21 rules selects 40 other workloads.
        limit(&mut groups, &BTreeMap::new(), 200);
        let found = excluded(&groups);
        assert_eq!(found.len(), 16, "{found:?}");
        assert!(found.iter().all(|name| name.starts_with("evil-")), "{found:?}");
        let again = {
            let mut again = all;
            limit(&mut again, &BTreeMap::new(), 200);
            excluded(&again)
        };
        assert_eq!(found, again, "the same inputs exclude the same workloads");
    }

    #[test]
    fn rules_that_workloads_share_count_once() {
        let shared = |n: usize| {
            let mut group = plain("shop", &format!("db-{n:02}"));
            let shape = Arc::make_mut(&mut group.shape);
            shape.labels = [label("app", "db")].into();
            shape.anti_affinity.required = vec![affinity_term("kubernetes.io/hostname", "db")];
            group
        };
        let mut groups: Vec<PodGroup> = (0..100).map(shared).collect();
        limit(&mut groups, &BTreeMap::new(), 10);
        assert!(excluded(&groups).is_empty());
    }
}
