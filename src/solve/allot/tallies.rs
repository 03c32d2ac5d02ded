//! Where pods are by domain: of each group, and of each set of groups that some rule speaks of.
//!
//! Invariant: the pods of a set are those of its groups together, kept up with each pod that comes,
//! so that asking for a set never looks at its groups.

use std::collections::BTreeMap;

use super::relations::Relation;
use crate::ids::{LabelKey, LabelValue};

/// Pods by domain.
pub(super) type Counts = BTreeMap<LabelValue, u32>;

/// Pods of groups and of sets.
pub(super) struct Tallies {
    /// For each group, the sets that it is in.
    sets_of: Vec<Vec<usize>>,
    groups: BTreeMap<LabelKey, BTreeMap<usize, Counts>>,
    sets: BTreeMap<LabelKey, BTreeMap<usize, Counts>>,
}

impl Tallies {
    /// Returns no pods, of so many groups, in the sets that `relations` speak of.
    pub(super) fn new(groups: usize, relations: &[Relation]) -> Self {
        let mut sets_of = vec![Vec::new(); groups];
        let sets: BTreeMap<usize, &Relation> = relations.iter().map(|r| (r.set, r)).collect();
        for (set, relation) in sets {
            relation.members.iter().for_each(|group| sets_of[*group].push(set));
        }
        Self { sets_of, groups: BTreeMap::new(), sets: BTreeMap::new() }
    }

    /// Counts so many more pods of a group in a domain.
    pub(super) fn add(&mut self, group: usize, key: &LabelKey, domain: &LabelValue, pods: u32) {
        let more = |of: &mut BTreeMap<usize, Counts>, index| {
            let counts: &mut Counts = of.entry(index).or_default();
            *counts.entry(domain.clone()).or_insert(0) += pods;
        };
        more(self.groups.entry(key.clone()).or_default(), group);
        let sets = self.sets.entry(key.clone()).or_default();
        self.sets_of[group].iter().for_each(|set| more(sets, *set));
    }

    /// Takes the pods of a group out of all domains of a key.
    pub(super) fn clear(&mut self, group: usize, key: &LabelKey) {
        let Some(counts) = self.groups.get_mut(key).and_then(|of| of.remove(&group)) else {
            return;
        };
        let sets = self.sets.entry(key.clone()).or_default();
        for set in &self.sets_of[group] {
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
    counts: &BTreeMap<LabelKey, BTreeMap<usize, Counts>>,
    index: usize,
    key: &LabelKey,
    domain: &LabelValue,
) -> u32 {
    counts.get(key).and_then(|of| of.get(&index)?.get(domain)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::relations::Kind;
    use super::*;

    #[test]
    fn a_set_has_the_pods_of_its_groups_whatever_comes_and_goes() {
        let key = LabelKey::from("topology.kubernetes.io/zone");
        let relation = |set, members: &[usize]| Relation {
            carrier: 0,
            key: key.clone(),
            members: members.into(),
            set,
            kind: Kind::Near,
        };
        let members: [&[usize]; 2] = [&[0, 2], &[1, 2]];
        let mut tallies = Tallies::new(
            3,
            &[relation(0, members[0]), relation(1, members[1]), relation(0, members[0])],
        );
        let domains = ["a", "b"].map(LabelValue::from);
        for step in 0..30_u32 {
            let (group, domain) = (
                usize::try_from(step % 3).expect("small"),
                &domains[usize::from(step.is_multiple_of(2))],
            );
            if step % 7 == 6 {
                tallies.clear(group, &key);
                assert!(domains.iter().all(|domain| tallies.of_group(group, &key, domain) == 0));
            }
            tallies.add(group, &key, domain, step);
            for (set, members) in members.iter().enumerate() {
                for domain in &domains {
                    let sum: u32 = members.iter().map(|g| tallies.of_group(*g, &key, domain)).sum();
                    assert_eq!(tallies.of_set(set, &key, domain), sum, "step {step}");
                }
            }
        }
    }
}
