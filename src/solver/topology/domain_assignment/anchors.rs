//! Pods in several domains for a group that must be near them and apart from its own pods.
//!
//! A group with an affinity to other pods and a spread over the same key needs one of these pods in
//! each of its domains.

use std::collections::BTreeMap;

use super::super::TermKind;
use super::{AssignmentTask, DomainAssigner, DomainSlice, InterPodTerm, narrowed};
use crate::model::ids::{LabelKey, LabelValue};
use crate::model::requirement::Requirements;
use crate::model::units::MicroUsd;

impl<'a> DomainAssigner<'a> {
    /// Returns true if the group follows other pods by a key over which it must be spread.
    pub(super) fn follows_into_domains(&self, group: usize) -> bool {
        let terms = || self.own.get(&group).into_iter().flatten().map(|term| &self.terms[*term]);
        let mut followed = terms().filter(|term| term.kind == TermKind::Affinity);
        followed.any(|term| {
            let is_limit = |own: &InterPodTerm| {
                own.key == term.key && pods_per_domain(own.kind, own.members.contains(&group)) > 0
            };
            terms().any(is_limit)
        })
    }

    /// Assigns one pod of the `pending` groups to each domain that the group needs. Returns false,
    /// and assigns none, if the group needs at most one domain or there are no pods for a second.
    pub(super) fn anchor(
        &mut self,
        task: &AssignmentTask<'a>,
        pending: &[usize],
        free: &BTreeMap<LabelValue, MicroUsd>,
    ) -> bool {
        let groups = self.input.groups;
        let needed = needed_domains(task, groups[task.group].counts.planned, free.len());
        let mut pods: BTreeMap<usize, u32> = pending
            .iter()
            .filter(|group| !self.own.contains_key(group))
            .map(|group| (*group, groups[*group].counts.planned))
            .collect();
        let mut cheapest_first: Vec<_> = free.iter().collect();
        cheapest_first.sort_by_key(|(domain, price)| (**price, (*domain).clone()));
        let mut anchors: Vec<(usize, LabelValue)> = Vec::new();
        for (domain, _) in cheapest_first {
            if anchors.len() == needed {
                break;
            }
            let may_run = |(group, left): &(&usize, &mut u32)| {
                **left > 0 && self.may_run(**group, &task.key, domain)
            };
            if let Some((group, left)) = pods.iter_mut().find(may_run) {
                *left -= 1;
                anchors.push((*group, domain.clone()));
            }
        }
        if anchors.len() < 2 {
            return false;
        }
        for (group, left) in pods {
            let domains = anchors.iter().filter(|(of, _)| *of == group).map(|(_, domain)| domain);
            self.pin_one_each(group, &task.key, domains, left);
        }
        true
    }

    /// Assigns one pod of a group to each of the domains, and leaves the rest free.
    fn pin_one_each<'d>(
        &mut self,
        group: usize,
        key: &LabelKey,
        domains: impl Iterator<Item = &'d LabelValue>,
        rest: u32,
    ) {
        let pinned = domains.map(|domain| {
            self.domain_counts.add(group, key, domain, 1);
            let within = narrowed(&Requirements::default(), key, [domain]);
            DomainSlice { within, planned: 1 }
        });
        let mut slices: Vec<DomainSlice> = pinned.collect();
        if slices.is_empty() {
            return;
        }
        slices.push(DomainSlice::unrestricted(rest));
        self.slices.insert(group, slices);
    }
}

/// Returns the number of domains that a group needs because of its spread and anti-affinity.
///
/// While a domain has no pod, a spread allows at most its maximum skew in each of the others.
fn needed_domains(task: &AssignmentTask, planned: u32, domains: usize) -> usize {
    let limit = |own: &&InterPodTerm| pods_per_domain(own.kind, own.members.contains(&task.group));
    let limits = task.own.iter().map(limit).filter(|limit| *limit > 0);
    let Some(most) = limits.min() else { return 1 };
    usize::try_from(planned.div_ceil(most)).unwrap_or(usize::MAX).min(domains)
}

/// Returns the number of pods that a term allows in a domain while another has none, or 0 if it has
/// no limit. A spread or anti-affinity that does not select the group itself is none.
fn pods_per_domain(kind: TermKind, selects_itself: bool) -> u32 {
    match kind {
        TermKind::Spread { max_skew, .. } if selects_itself => max_skew,
        TermKind::AntiAffinity if selects_itself => 1,
        TermKind::Spread { .. } | TermKind::AntiAffinity | TermKind::Affinity => 0,
    }
}
