//! Quotas of domains for a group that spreads over several keys.
//!
//! After the first key, the pods of a group are in several slices. If each slice spread evenly over the
//! domains of the next key, every pair of domains would need a node of its own. The quotas are the
//! even spread of all slices together. A slice takes them in one piece where it can, so that one node
//! often serves a domain of each key.

use std::collections::BTreeMap;

use super::free_room::DomainRank;
use super::{AssignmentTask, DomainAssigner, DomainLimit, DomainSlice};
use crate::model::ids::LabelValue;
use crate::model::requirement::Requirements;
use crate::solver::topology::TermKind;
use crate::solver::topology::domain_counts::PodsByDomain;

impl DomainAssigner<'_> {
    /// Returns the even spread of the arriving pods of all slices. It is empty if there is one slice, or
    /// if the slices may not use the same domains.
    pub(super) fn quotas(&mut self, task: &AssignmentTask, slices: &[DomainSlice]) -> PodsByDomain {
        let mut quotas = PodsByDomain::new();
        let is_followed = task.of_kind(TermKind::Affinity).next().is_some();
        if slices.len() < 2 || task.is_free() || is_followed {
            return quotas;
        }
        let candidate_domains = self.candidate_domains(task, &Requirements::default());
        let free = self.free_domains(task, &candidate_domains);
        let mut arriving = 0;
        for slice in slices {
            let of_slice = self.candidate_domains(task, &slice.within);
            if !self.free_domains(task, &of_slice).keys().eq(free.keys()) {
                return quotas;
            }
            let running: u32 = self.running(task.group, &task.key, &slice.within).values().sum();
            let (staying, _) = self.running_keyless(task, &slice.within);
            arriving += slice.planned.saturating_sub(running + staying);
        }
        let mut limits = self.limits(task, &candidate_domains);
        let free = self.ranked(task, &Requirements::default(), free, arriving);
        fill_evenly(free, arriving, &mut limits, &mut quotas);
        quotas
    }
}

/// Places pods of a slice in domains with a quota, in as few domains as possible. Returns the number of
/// pods that are left.
pub(super) fn take_quotas(
    quotas: &mut PodsByDomain,
    mut left: u32,
    limits: &mut [DomainLimit],
    placed: &mut PodsByDomain,
) -> u32 {
    while left > 0 {
        // The smallest quota for all pods, else the largest one.
        let open = quotas.iter().filter(|(_, quota)| **quota > 0);
        let best = open.min_by_key(|(_, quota)| (**quota < left, quota.abs_diff(left)));
        let Some((domain, quota)) = best.map(|(domain, quota)| (domain.clone(), *quota)) else {
            break;
        };
        let taken = quota.min(left);
        quotas.insert(domain.clone(), quota - taken);
        for limit in &mut *limits {
            (0..taken).for_each(|_| limit.add(&domain));
        }
        *placed.entry(domain).or_insert(0) += taken;
        left -= taken;
    }
    left
}

/// Places pods one by one, each in the allowed domain with the fewest pods. Among equals, a domain with
/// room on existing nodes comes first, then the cheaper one, then one with pods of any group. Returns
/// the number of pods that are left.
pub(super) fn fill_evenly(
    mut free: BTreeMap<LabelValue, DomainRank>,
    mut left: u32,
    limits: &mut [DomainLimit],
    placed: &mut PodsByDomain,
) -> u32 {
    while left > 0 {
        let allowed =
            free.iter().filter(|(domain, _)| limits.iter().all(|limit| limit.allow(domain)));
        let next = allowed.min_by_key(|(domain, rank)| {
            let pods = limits.iter().map(|limit| limit.count_in(domain)).sum::<u32>();
            (pods, rank.room == 0, rank.price, !rank.is_served, (*domain).clone())
        });
        let Some(domain) = next.map(|(domain, _)| domain.clone()) else { break };
        for limit in &mut *limits {
            limit.add(&domain);
        }
        if let Some(rank) = free.get_mut(&domain) {
            rank.room = rank.room.saturating_sub(1);
        }
        *placed.entry(domain).or_insert(0) += 1;
        left -= 1;
    }
    left
}

#[cfg(test)]
mod tests {
    use super::super::LimitRule;
    use super::*;
    use crate::model::units::MicroUsd;

    fn rank(room: u32, price: i64, is_served: bool) -> DomainRank {
        DomainRank { room, price: MicroUsd(price), is_served }
    }

    /// Returns the pods per domain, for a spread with a maximum skew of 1.
    fn filled(domains: &[(&str, DomainRank)], pods: u32) -> Vec<u32> {
        let free: BTreeMap<LabelValue, DomainRank> =
            domains.iter().map(|(name, rank)| (LabelValue::from(*name), *rank)).collect();
        let mut placed: PodsByDomain = free.keys().map(|domain| (domain.clone(), 0)).collect();
        let rule = LimitRule::Skew { max_skew: 1, min_domains: 1 };
        let mut limits = [DomainLimit { rule, pods: placed.clone(), counts_itself: true }];
        assert_eq!(fill_evenly(free, pods, &mut limits, &mut placed), 0);
        placed.into_values().collect()
    }

    #[test]
    fn room_on_existing_nodes_decides_between_equal_domains() {
        let domains = [("a", rank(0, 1, true)), ("b", rank(1, 2, false)), ("c", rank(5, 2, false))];
        assert_eq!(filled(&domains, 1), [0, 1, 0]);
        assert_eq!(filled(&domains, 2), [0, 1, 1]);
        assert_eq!(filled(&domains, 3), [1, 1, 1], "the fewest pods come first");
        assert_eq!(filled(&domains, 4), [1, 1, 2], "the room in b is taken");
    }

    #[test]
    fn price_and_pods_of_other_groups_decide_without_room() {
        let domains = |price: i64| [("a", rank(0, price, false)), ("b", rank(0, 2, true))];
        assert_eq!(filled(&domains(1), 1), [1, 0]);
        assert_eq!(filled(&domains(2), 1), [0, 1]);
    }
}
