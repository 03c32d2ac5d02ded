//! Admission of pods to nodes, computed once for all pods with the same rules.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::PackingSupply;
use crate::demand::{Daemon, NodeChoice, PodGroup, PodShape};
use crate::model::ids::Labels;
use crate::model::pod::{HostPort, Taint, TaintEffect, Toleration};
use crate::model::requirement::Requirements;
use crate::model::units::Resources;
use crate::solver::existing_node::ExistingNode;
use crate::solver::offer::{admits, runs_daemon};
use crate::solver::offer_admission::OfferAdmission;
use crate::solver::target_fleet::NewNode;
use crate::solver::topology::{DomainShare, host_ports_conflict, is_within};

/// The properties of a pod that decide which nodes admit it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodAdmissionKey<'a> {
    nodes: &'a NodeChoice,
    tolerations: &'a [Toleration],
    ports: &'a [HostPort],
    pub(super) within: &'a Requirements,
}

impl<'a> PodAdmissionKey<'a> {
    pub(super) fn new(groups: &'a [PodGroup], domain_share: &'a DomainShare) -> Self {
        let shape: &PodShape = &groups[domain_share.group].shape;
        let (nodes, tolerations) = (&shape.nodes, shape.tolerations.as_slice());
        Self { nodes, tolerations, ports: &shape.host_ports, within: &domain_share.within }
    }
}

/// The distinct admission keys, each with a pod shape. Admission to a node is computed once per
/// key.
pub(super) struct AdmissionTable<'a> {
    index: BTreeMap<PodAdmissionKey<'a>, usize>,
    keys: Vec<KeyedPods<'a>>,
    daemons: &'a [Daemon],
    offers: &'a OfferAdmission<'a>,
}

/// Pods with the same key.
struct KeyedPods<'a> {
    group: usize,
    shape: &'a PodShape,
    within: &'a Requirements,
}

/// Admission of each key to one node.
pub(super) struct NodeAdmission {
    pub(super) admitted: Vec<bool>,
    /// Penalty for unmet preferences, in percent of the pod value.
    pub(super) unmet: Vec<u32>,
}

impl<'a> AdmissionTable<'a> {
    pub(super) fn new(
        groups: &'a [PodGroup],
        shares: &'a [DomainShare],
        supply: PackingSupply<'a>,
    ) -> Self {
        let (daemons, offers) = (supply.daemons, supply.admission);
        let mut admissions = Self { index: BTreeMap::new(), keys: Vec::new(), daemons, offers };
        for domain_share in shares {
            if let Entry::Vacant(vacant) =
                admissions.index.entry(PodAdmissionKey::new(groups, domain_share))
            {
                vacant.insert(admissions.keys.len());
                let (group, within) = (domain_share.group, &domain_share.within);
                admissions.keys.push(KeyedPods { group, shape: &groups[group].shape, within });
            }
        }
        admissions
    }

    /// Returns the index of a key.
    pub(super) fn index_of(&self, key: &PodAdmissionKey<'a>) -> usize {
        self.index[key]
    }

    /// Returns the admission of each key to the nodes of an offer.
    pub(super) fn of_offer(&self, offer: usize, node: &NewNode) -> NodeAdmission {
        let admitted = |pods: &KeyedPods| self.offers.of_group(pods.group)[offer];
        self.admission_of(&node.labels, &node.taints, &node.allocatable, admitted)
    }

    /// Returns the admission of each key to an existing node.
    pub(super) fn of_existing(&self, node: &ExistingNode) -> NodeAdmission {
        let admitted = |pods: &KeyedPods| admits(pods.shape, &node.labels, &node.taints);
        self.admission_of(&node.labels, &node.taints, &node.allocatable, admitted)
    }

    fn admission_of(
        &self,
        labels: &Labels,
        taints: &[Taint],
        allocatable: &Resources,
        is_selected: impl Fn(&KeyedPods) -> bool,
    ) -> NodeAdmission {
        let binds = |daemon: &&Daemon| !daemon.shape.host_ports.is_empty();
        let here = self.daemons.iter().filter(binds);
        let here = here.filter(|daemon| runs_daemon(daemon, labels, taints, allocatable));
        let bound_ports: Vec<&HostPort> =
            here.flat_map(|daemon| &daemon.shape.host_ports).collect();
        let admitted = |pods: &KeyedPods| {
            let clash =
                |port: &HostPort| bound_ports.iter().any(|bound| host_ports_conflict(port, bound));
            is_selected(pods)
                && is_within(pods.within, labels)
                && !pods.shape.host_ports.iter().any(clash)
        };
        let unmet = |pods: &KeyedPods| preference_penalty(pods.shape, labels, taints);
        NodeAdmission {
            admitted: self.keys.iter().map(admitted).collect(),
            unmet: self.keys.iter().map(unmet).collect(),
        }
    }
}

/// Returns the penalty for unmet preferences on a node, in percent of the pod value.
///
/// A preference of weight 1 to 100 costs as many percent of the pod value. Preferences add up, so
/// that one that no node satisfies does not hide the others. An untolerated `PreferNoSchedule`
/// taint adds 100.
fn preference_penalty(shape: &PodShape, labels: &Labels, taints: &[Taint]) -> u32 {
    let preferences = shape.nodes.preferred.iter();
    let unmet = preferences.filter(|(_, preference)| !preference.matches_labels(labels));
    let weights = unmet.map(|(weight, _)| u32::try_from(*weight).unwrap_or(0));
    let weight = weights.fold(0, u32::saturating_add);
    let soft_taints = taints.iter().filter(|taint| taint.effect == TaintEffect::PreferNoSchedule);
    let tolerated = |taint: &&Taint| shape.tolerations.iter().any(|t| t.tolerates(taint));
    let avoided = soft_taints.into_iter().any(|taint| !tolerated(&taint));
    weight.saturating_add(if avoided { 100 } else { 0 })
}
