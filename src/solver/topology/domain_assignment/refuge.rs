//! Refuges: the domains to which running pods may move if their node is removed.
//!
//! Running pods count in their domain and are assigned there. Without a refuge, the removal of their
//! node needs another node in that domain. kube-scheduler places an evicted pod in any domain that the
//! spread allows. The refuge is where the assignment would place the pods if they arrived: domains
//! with as few pods, whose nodes have room. A group has at most one, so that pods that move keep to the
//! spread together.

use std::collections::{BTreeMap, BTreeSet};

use super::quotas::fill_evenly;
use super::{AssignmentTask, CandidateDomains, DomainAssigner, InterPodTerm, TermKind, narrowed};
use crate::model::ids::LabelValue;
use crate::model::requirement::Requirements;
use crate::model::units::Resources;
use crate::solver::node_disposition::NodeDisposition;
use crate::solver::topology::domain_counts::PodsByDomain;

/// Running pods of one domain, with the domains to which they may move.
pub(super) struct Refuge {
    /// Required node labels of the domain in which the pods run.
    pub(super) home: Requirements,
    /// Required node labels of the other domains.
    pub(super) elsewhere: Requirements,
}

/// The nodes of a domain that run pods of a group.
#[derive(Default)]
struct HomeNodes {
    /// Number of pods of the group.
    pods: u32,
    /// Requests of all pods.
    requests: Resources,
    /// True if a node of the group's pods may not be removed to save cost.
    is_fixed: bool,
}

impl DomainAssigner<'_> {
    /// Records the refuge of a group that was assigned to domains of one key, if it has one.
    pub(super) fn record_refuge(&mut self, task: &AssignmentTask) {
        let homes = if self.is_apart(task) { self.homes(task) } else { Vec::new() };
        if homes.is_empty() {
            return;
        }
        let everywhere = Requirements::default();
        let candidate_domains = self.candidate_domains(task, &everywhere);
        for (home, pods) in homes {
            if let Some(domains) = self.refuge_of(task, &candidate_domains, (&home, pods)) {
                let home = narrowed(&everywhere, &task.key, [&home]);
                let elsewhere = narrowed(&everywhere, &task.key, domains.keys());
                self.refuges.insert(task.group, Refuge { home, elsewhere });
                return;
            }
        }
    }

    /// Returns true if the group has only spreads that select it alone, and no rule of another group
    /// selects it.
    fn is_apart(&self, task: &AssignmentTask) -> bool {
        let is_own_spread = |term: &&InterPodTerm| {
            matches!(term.kind, TermKind::Spread { .. }) && *term.members == [task.group]
        };
        task.repelling.is_empty()
            && task.own.iter().all(is_own_spread)
            && !self.shared.contains(&task.group)
    }

    /// Returns the domains in which all pods of the group run on nodes that may be removed to save
    /// cost, each with its pods. The domain whose nodes have the smallest requests comes first.
    ///
    /// There are none if every domain with nodes has pods of the group. Nor are there any beside
    /// planned nodes: a plan from nothing already chose the domains of its pods.
    fn homes(&self, task: &AssignmentTask) -> Vec<(LabelValue, u32)> {
        let group = &self.input.groups[task.group];
        let existing = self.input.existing;
        if group.running.is_empty() || existing.iter().any(|node| node.is_planned) {
            return Vec::new();
        }
        let mut homes: BTreeMap<&LabelValue, HomeNodes> = BTreeMap::new();
        for (node, free) in existing.iter().zip(&self.free) {
            let Some(domain) = node.labels.get(&task.key) else { continue };
            let home = homes.entry(domain).or_default();
            let pods = group.running.get(&node.name).copied().unwrap_or(0);
            if pods > 0 {
                home.pods += pods;
                home.requests = home.requests.plus(&node.room.minus(free));
                home.is_fixed |= node.disposition != NodeDisposition::Consolidatable;
            }
        }
        let count =
            |domain: &LabelValue| self.domain_counts.of_group(task.group, &task.key, domain);
        if homes.keys().all(|domain| count(domain) > 0) {
            return Vec::new();
        }
        // Pods that arrive in the domain are assigned there.
        homes.retain(|domain, home| home.pods > 0 && !home.is_fixed && home.pods == count(domain));
        let mut homes: Vec<(&LabelValue, HomeNodes)> = homes.into_iter().collect();
        homes.sort_by_cached_key(|(_, home)| home.requests.clone());
        homes.into_iter().map(|(domain, home)| (domain.clone(), home.pods)).collect()
    }

    /// Returns the domains in which the assignment would place the pods of a domain if they arrived
    /// and their nodes were gone. `None` if some pods would return, or find no room on existing nodes.
    fn refuge_of(
        &self,
        task: &AssignmentTask,
        candidate_domains: &CandidateDomains,
        (home, pods): (&LabelValue, u32),
    ) -> Option<PodsByDomain> {
        let free = self.free_domains(task, candidate_domains);
        let mut ranked = self.ranked(task, &Requirements::default(), free, pods);
        if let Some(rank) = ranked.get_mut(home) {
            rank.room = 0;
        }
        let mut limits = self.limits(task, candidate_domains);
        for count in limits.iter_mut().filter_map(|limit| limit.pods.get_mut(home)) {
            *count = count.saturating_sub(pods);
        }
        let mut placed = PodsByDomain::new();
        let left = fill_evenly(ranked.clone(), pods, &mut limits, &mut placed);
        let has_room = |(domain, pods): (&LabelValue, &u32)| {
            ranked.get(domain).is_some_and(|rank| rank.room >= *pods)
        };
        (left == 0 && placed.iter().all(has_room)).then_some(placed)
    }
}

/// Returns the groups that a term of another group selects, or a term of their own together with
/// other groups.
pub(super) fn shared_groups(terms: &[InterPodTerm]) -> BTreeSet<usize> {
    let (mut seen, mut shared) = (BTreeSet::new(), BTreeSet::new());
    for term in terms.iter().filter(|term| *term.members != [term.owner]) {
        if seen.insert(term.member_set) {
            shared.extend(term.members.iter().copied());
        }
    }
    shared
}
