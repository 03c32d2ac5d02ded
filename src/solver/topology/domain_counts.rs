//! Pod counts by domain, for each group and for each set of groups of a term.
//!
//! Invariant: the count of a set is the sum of its groups. It is updated with every pod, so a query
//! for a set never reads its groups.

use std::collections::{BTreeMap, BTreeSet};

use super::inter_pod_terms::InterPodTerm;
use crate::model::ids::{LabelKey, LabelValue};

/// Pod counts by domain.
pub(super) type PodsByDomain = BTreeMap<LabelValue, u32>;

/// Pod counts of groups and of sets.
pub(super) struct DomainCounts {
    /// For each group, the sets that contain it.
    sets_of_group: Vec<Vec<usize>>,
    groups: BTreeMap<LabelKey, BTreeMap<usize, PodsByDomain>>,
    sets: BTreeMap<LabelKey, BTreeMap<usize, PodsByDomain>>,
    /// Domains that have or get pods of any group.
    served: BTreeMap<LabelKey, BTreeSet<LabelValue>>,
}

impl DomainCounts {
    /// Returns zero counts for `groups` groups and the sets of `terms`.
    pub(super) fn new(groups: usize, terms: &[InterPodTerm]) -> Self {
        let mut sets_of_group = vec![Vec::new(); groups];
        let sets: BTreeMap<usize, &InterPodTerm> =
            terms.iter().map(|r| (r.member_set, r)).collect();
        for (set, term) in sets {
            term.members.iter().for_each(|group| sets_of_group[*group].push(set));
        }
        let (groups, sets, served) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { sets_of_group, groups, sets, served }
    }

    /// Adds pods of a group to a domain.
    pub(super) fn add(&mut self, group: usize, key: &LabelKey, domain: &LabelValue, pods: u32) {
        let more = |of: &mut BTreeMap<usize, PodsByDomain>, index| {
            let counts: &mut PodsByDomain = of.entry(index).or_default();
            *counts.entry(domain.clone()).or_insert(0) += pods;
        };
        more(self.groups.entry(key.clone()).or_default(), group);
        let sets = self.sets.entry(key.clone()).or_default();
        self.sets_of_group[group].iter().for_each(|set| more(sets, *set));
        if pods > 0 {
            self.serve(key, domain);
        }
    }

    /// Records that a domain has or gets pods of some group, whether or not a term selects them.
    pub(super) fn serve(&mut self, key: &LabelKey, domain: &LabelValue) {
        self.served.entry(key.clone()).or_default().insert(domain.clone());
    }

    /// Returns true if a domain has or gets pods of any group.
    pub(super) fn is_served(&self, key: &LabelKey, domain: &LabelValue) -> bool {
        self.served.get(key).is_some_and(|served| served.contains(domain))
    }

    /// Removes the pods of a group from all domains of a key.
    pub(super) fn clear(&mut self, group: usize, key: &LabelKey) {
        let Some(counts) = self.groups.get_mut(key).and_then(|of| of.remove(&group)) else {
            return;
        };
        let sets = self.sets.entry(key.clone()).or_default();
        for set in &self.sets_of_group[group] {
            let of_set = sets.entry(*set).or_default();
            for (domain, pods) in &counts {
                if let Some(all) = of_set.get_mut(domain) {
                    *all -= pods;
                }
            }
        }
    }

    /// Returns the pods of a group in a domain.
    pub(super) fn of_group(&self, group: usize, key: &LabelKey, domain: &LabelValue) -> u32 {
        look_up(&self.groups, group, key, domain)
    }

    /// Returns the pods of a set in a domain.
    pub(super) fn of_set(&self, set: usize, key: &LabelKey, domain: &LabelValue) -> u32 {
        look_up(&self.sets, set, key, domain)
    }
}

fn look_up(
    counts: &BTreeMap<LabelKey, BTreeMap<usize, PodsByDomain>>,
    index: usize,
    key: &LabelKey,
    domain: &LabelValue,
) -> u32 {
    counts.get(key).and_then(|of| of.get(&index)?.get(domain)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::inter_pod_terms::TermKind;
    use super::*;

    #[test]
    fn set_count_is_the_sum_of_its_groups() {
        let key = LabelKey::from("topology.kubernetes.io/zone");
        let term = |set, members: &[usize]| InterPodTerm {
            owner: 0,
            key: key.clone(),
            members: members.into(),
            member_set: set,
            kind: TermKind::Affinity,
        };
        let members: [&[usize]; 2] = [&[0, 2], &[1, 2]];
        let mut domain_counts =
            DomainCounts::new(3, &[term(0, members[0]), term(1, members[1]), term(0, members[0])]);
        let domains = ["a", "b"].map(LabelValue::from);
        for step in 0..30_u32 {
            let (group, domain) = (
                usize::try_from(step % 3).expect("small"),
                &domains[usize::from(step.is_multiple_of(2))],
            );
            if step % 7 == 6 {
                domain_counts.clear(group, &key);
                assert!(
                    domains.iter().all(|domain| domain_counts.of_group(group, &key, domain) == 0)
                );
            }
            domain_counts.add(group, &key, domain, step);
            for (set, members) in members.iter().enumerate() {
                for domain in &domains {
                    let sum: u32 =
                        members.iter().map(|g| domain_counts.of_group(*g, &key, domain)).sum();
                    assert_eq!(domain_counts.of_set(set, &key, domain), sum, "step {step}");
                }
            }
        }
    }
}
