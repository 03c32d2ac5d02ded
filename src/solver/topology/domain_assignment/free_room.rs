//! Ranks of domains with equally many pods: room on existing nodes comes before a new node.
//!
//! kube-scheduler may place a pod in any domain that the rules allow. A domain whose nodes have room
//! for the pod needs no new node for it.

use std::collections::BTreeMap;

use super::{AssignmentTask, DomainAssigner, DomainSlice, InterPodTerm, TopologyInput, is_within};
use crate::demand::PodShape;
use crate::model::ids::{LabelKey, LabelValue, NodeName};
use crate::model::pod::WhenUnsatisfiable;
use crate::model::requirement::{Requirements, key};
use crate::model::units::{MicroUsd, Resources};
use crate::solver::node_disposition::NodeDisposition;
use crate::solver::offer::admits;
use crate::solver::topology::domain_counts::PodsByDomain;

/// What decides between domains with equally many pods.
#[derive(Debug, Clone, Copy)]
pub(super) struct DomainRank {
    /// Number of further pods for which existing nodes have room.
    pub(super) room: u32,
    /// Price of the cheapest node.
    pub(super) price: MicroUsd,
    /// True if the domain has or gets pods of any group.
    pub(super) is_served: bool,
}

impl DomainAssigner<'_> {
    /// Returns the ranks of domains for `arriving` pods of a group within `scope`.
    pub(super) fn ranked(
        &self,
        task: &AssignmentTask,
        scope: &Requirements,
        priced: BTreeMap<LabelValue, MicroUsd>,
        arriving: u32,
    ) -> BTreeMap<LabelValue, DomainRank> {
        let is_choice = priced.len() > 1 && arriving > 0;
        let room =
            if is_choice { self.room(task, scope, arriving) } else { PodsByDomain::default() };
        let rank = |(domain, price): (LabelValue, MicroUsd)| {
            let room = room.get(&domain).copied().unwrap_or(0);
            let is_served = self.domain_counts.is_served(&task.key, &domain);
            (domain, DomainRank { room, price, is_served })
        };
        priced.into_iter().map(rank).collect()
    }

    /// Returns the number of further pods for which existing nodes within `scope` have room, by
    /// domain.
    fn room(&self, task: &AssignmentTask, scope: &Requirements, arriving: u32) -> PodsByDomain {
        let mut room = PodsByDomain::new();
        for (index, node) in self.input.existing.iter().enumerate() {
            let Some(domain) = node.labels.get(&task.key) else { continue };
            if is_within(scope, &node.labels) {
                let sum = room.entry(domain.clone()).or_insert(0);
                *sum = sum.saturating_add(self.room_on(index, task.group, arriving));
            }
        }
        room
    }

    /// Returns the number of further pods of a group for which an existing node has room, at most
    /// `most`.
    fn room_on(&self, node: usize, group: usize, most: u32) -> u32 {
        let shape = &self.input.groups[group].shape;
        let most = if is_one_per_node(shape) {
            most.min(1).saturating_sub(self.present_on(node, group))
        } else {
            most
        };
        let copies = shape.requests.copies_in(&self.free[node], i64::from(most));
        let node = &self.input.existing[node];
        let is_retired = matches!(node.disposition, NodeDisposition::Retire(_));
        let takes_pods = copies > 0
            && node.schedulable
            && !is_retired
            && admits(shape, &node.labels, &node.taints);
        if takes_pods { u32::try_from(copies).unwrap_or(0) } else { 0 }
    }

    /// Returns the number of pods of a group that run or are awaited on an existing node.
    fn present_on(&self, node: usize, group: usize) -> u32 {
        let running = self.input.groups[group].running.get(&self.input.existing[node].name);
        let awaited = self.awaited[group].get(&node);
        running.copied().unwrap_or(0) + awaited.copied().unwrap_or(0)
    }

    /// Takes room on existing nodes for the arriving pods of a group, so that no further group counts
    /// on it.
    pub(super) fn take_room(&mut self, group: usize, slices: &[DomainSlice]) {
        if self.arriving(group) == 0 {
            return;
        }
        let existing = self.input.existing;
        let requests = &self.input.groups[group].shape.requests;
        for DomainSlice { within, planned } in slices {
            let here: Vec<usize> = (0..existing.len())
                .filter(|node| is_within(within, &existing[*node].labels))
                .collect();
            let present: u32 = here.iter().map(|node| self.present_on(*node, group)).sum();
            let mut left = planned.saturating_sub(present);
            for node in here {
                if left == 0 {
                    break;
                }
                let taken = self.room_on(node, group, left);
                left -= taken;
                self.free[node] = self.free[node].minus(&requests.times(i64::from(taken)));
            }
        }
    }

    /// Returns true if a group restricts itself to some domains of a topology key of its terms.
    pub(super) fn names_domains(&self, group: usize) -> bool {
        let any_of = &self.input.groups[group].shape.nodes.any_of;
        let names = |key: &LabelKey| any_of.iter().all(|a| a.get(key.as_str()).is_some());
        let mut own = self.own.get(&group).into_iter().flatten();
        own.any(|term| names(&self.terms[*term].key))
    }
}

/// Returns the free resources of each existing node. Pods that the last plan places there count as
/// running. Without terms no group needs them, and the list is empty.
pub(super) fn free_resources(
    input: TopologyInput,
    terms: &[InterPodTerm],
    awaited: &[BTreeMap<usize, u32>],
) -> Vec<Resources> {
    let TopologyInput { groups, existing, .. } = input;
    if terms.is_empty() {
        return Vec::new();
    }
    let mut free: Vec<Resources> = existing.iter().map(|node| node.room.clone()).collect();
    let index_of: BTreeMap<&NodeName, usize> =
        existing.iter().enumerate().map(|(index, node)| (&node.name, index)).collect();
    for (group, awaited) in groups.iter().zip(awaited) {
        let running = group.running.iter();
        let running = running.filter_map(|(name, pods)| Some((*index_of.get(name)?, *pods)));
        let awaited = awaited.iter().map(|(node, pods)| (*node, *pods));
        for (node, pods) in running.chain(awaited) {
            let pods = i64::from(pods.min(group.counts.planned));
            free[node] = free[node].minus(&group.shape.requests.times(pods));
        }
    }
    free
}

/// Returns the only domain of a key that a pod may run in, if its own rules name one.
pub(super) fn only_domain(shape: &PodShape, key: &LabelKey) -> Option<LabelValue> {
    let [alternative] = shape.nodes.any_of.as_slice() else { return None };
    let set = alternative.get(key.as_str())?;
    let [domain] = set.values().finite(1)?.try_into().ok()?;
    (!set.allows_absence()).then_some(domain)
}

/// Returns true if rules of the pod may allow only one such pod on a node.
fn is_one_per_node(shape: &PodShape) -> bool {
    let is_host = |label: &LabelKey| label.as_str() == key::HOSTNAME;
    let mut spread = shape.spread.iter();
    !shape.host_ports.is_empty()
        || shape.anti_affinity.required.iter().any(|term| is_host(&term.topology_key))
        || spread.any(|rule| {
            rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule
                && is_host(&rule.topology_key)
        })
}
