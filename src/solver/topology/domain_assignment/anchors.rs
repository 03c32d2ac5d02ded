//! Pods in several domains for a group that must be near them and apart from its own pods.
//!
//! A group with an affinity to other pods and a spread over the same key needs one of these pods in
//! each of its domains.

use std::collections::BTreeMap;

use super::super::TermKind;
use super::{AssignmentTask, DomainAssigner, DomainSlice, InterPodTerm, narrowed};
use crate::demand::PodGroup;
use crate::model::ids::{LabelKey, LabelValue};
use crate::model::requirement::Requirements;
use crate::model::units::MicroUsd;

impl<'a> DomainAssigner<'a> {
    /// Returns the number of domains that the group needs of a key by which it follows other pods,
    /// however many there are.
    pub(super) fn followed_domains(&self, group: usize) -> u32 {
        let planned = self.input.groups[group].counts.planned;
        let terms = || self.own.get(&group).into_iter().flatten().map(|term| &self.terms[*term]);
        let followed = terms().filter(|term| term.kind == TermKind::Affinity);
        let needed = followed
            .map(|term| needed_domains(terms().filter(|own| own.key == term.key), group, planned));
        needed.max().unwrap_or(0)
    }

    /// Assigns one pod of the selected groups to each further domain that the group needs. Assigns
    /// none if one domain is enough, or if there are no pods for a second one.
    ///
    /// Only pods that arrive are assigned: those that run stay where they are.
    pub(super) fn anchor(
        &mut self,
        task: &AssignmentTask<'a>,
        term: &InterPodTerm,
        free: &BTreeMap<LabelValue, MicroUsd>,
    ) {
        let planned = self.input.groups[task.group].counts.planned;
        let needed = needed_domains(task.own.iter().copied(), task.group, planned);
        let has_pods =
            |domain: &LabelValue| self.domain_counts.of_set(term.member_set, &task.key, domain) > 0;
        let (with, without): (Vec<_>, Vec<_>) =
            free.iter().partition(|(domain, _)| has_pods(domain));
        let with = u32::try_from(with.len()).unwrap_or(u32::MAX);
        let wanted = needed.saturating_sub(with).min(self.arriving(task.group));
        let anchors = self.anchors(task, term, without, wanted);
        let found = anchors.values().map(Vec::len).sum::<usize>();
        if found > 1 || found == 1 && with > 0 {
            for (group, domains) in anchors {
                self.pin_one_each(group, &task.key, &domains);
            }
        }
    }

    /// Chooses up to `wanted` of the domains, the cheapest first, and a group with an arriving pod
    /// for each. A group that may run in few domains comes first.
    fn anchors(
        &self,
        task: &AssignmentTask<'a>,
        term: &InterPodTerm,
        mut domains: Vec<(&LabelValue, &MicroUsd)>,
        wanted: u32,
    ) -> BTreeMap<usize, Vec<LabelValue>> {
        let mut anchors: BTreeMap<usize, Vec<LabelValue>> = BTreeMap::new();
        if wanted == 0 {
            return anchors;
        }
        domains.sort_by_key(|(domain, price)| (*price, *domain));
        let is_choice = |group: &usize| {
            *group != task.group && self.is_undecided(*group) && !self.own.contains_key(group)
        };
        let members = term.members.iter().copied().filter(is_choice);
        let mut groups: Vec<(usize, u32, Vec<&LabelValue>)> = members
            .map(|group| {
                let admits = |domain: &&LabelValue| self.may_run(group, &task.key, domain);
                let admitted = domains.iter().map(|(domain, _)| *domain).filter(admits).collect();
                (group, self.arriving(group), admitted)
            })
            .collect();
        groups.sort_by_key(|(group, _, admitted)| (admitted.len(), *group));
        let mut left = wanted;
        for (domain, _) in domains {
            let fits = |(_, pods, admitted): &&mut (usize, u32, Vec<&LabelValue>)| {
                *pods > 0 && admitted.contains(&domain)
            };
            if let Some((group, pods, _)) = groups.iter_mut().find(fits).filter(|_| left > 0) {
                *pods -= 1;
                left -= 1;
                anchors.entry(*group).or_default().push(domain.clone());
            }
        }
        anchors
    }

    /// Returns the number of planned pods that neither run nor are awaited on an existing node.
    pub(super) fn arriving(&self, group: usize) -> u32 {
        let PodGroup { counts, running, .. } = &self.input.groups[group];
        let present: u32 = running.values().chain(self.awaited[group].values()).sum();
        counts.planned.saturating_sub(present)
    }

    /// Assigns one pod of a group to each of the domains, and leaves the rest free.
    fn pin_one_each(&mut self, group: usize, key: &LabelKey, domains: &[LabelValue]) {
        let mut rest = self.input.groups[group].counts.planned;
        let mut slices = Vec::new();
        for domain in domains {
            self.domain_counts.add(group, key, domain, 1);
            let within = narrowed(&Requirements::default(), key, [domain]);
            slices.push(DomainSlice { within, planned: 1 });
            rest = rest.saturating_sub(1);
        }
        slices.push(DomainSlice::unrestricted(rest));
        self.slices.insert(group, slices);
    }
}

/// Returns the number of domains that a group needs because of its spread and anti-affinity, however
/// many there are.
///
/// While a domain has no pod, a spread allows at most its maximum skew in each of the others.
fn needed_domains<'t>(
    own: impl Iterator<Item = &'t InterPodTerm>,
    group: usize,
    planned: u32,
) -> u32 {
    let limit = |own: &InterPodTerm| match own.kind {
        TermKind::Spread { max_skew, .. } => Some(max_skew),
        TermKind::AntiAffinity => Some(1),
        TermKind::Affinity => None,
    };
    // A rule that does not select the group itself limits none of its pods.
    let limits = own.filter(|own| own.members.contains(&group)).filter_map(limit);
    limits.min().map_or(1, |most| planned.div_ceil(most))
}
