//! Quotas of domains for a group that spreads over several keys.
//!
//! After the first key, the pods of a group are in several slices. If each slice spread evenly over the
//! domains of the next key, every pair of domains would need a node of its own. The quotas are the
//! even spread of all slices together. A slice takes them in one piece where it can, so that one node
//! often serves a domain of each key.

use std::collections::BTreeMap;

use super::{AssignmentTask, DomainAssigner, DomainLimit, DomainSlice};
use crate::model::ids::LabelValue;
use crate::model::requirement::Requirements;
use crate::model::units::MicroUsd;
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
        fill_evenly(&free, arriving, &mut limits, &mut quotas);
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

/// Places pods one by one, each in the allowed domain with the fewest pods, and in the cheaper one among
/// equals. Returns the number of pods that are left.
pub(super) fn fill_evenly(
    free: &BTreeMap<LabelValue, MicroUsd>,
    mut left: u32,
    limits: &mut [DomainLimit],
    placed: &mut PodsByDomain,
) -> u32 {
    while left > 0 {
        let allowed =
            free.iter().filter(|(domain, _)| limits.iter().all(|limit| limit.allow(domain)));
        let next = allowed.min_by_key(|(domain, price)| {
            let pods = limits.iter().map(|limit| limit.count_in(domain)).sum::<u32>();
            (pods, **price, (*domain).clone())
        });
        let Some((domain, _)) = next else { break };
        for limit in &mut *limits {
            limit.add(domain);
        }
        *placed.entry(domain.clone()).or_insert(0) += 1;
        left -= 1;
    }
    left
}
