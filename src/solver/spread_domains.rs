//! The topology domains in which a spread needs nodes.
//!
//! kube-scheduler counts only domains with nodes, so it accepts a spread over zones in a fleet of one
//! zone. That is not the intent of a spread over zones. Karpenter counts every zone that it may launch
//! in, and so does the topology assignment. A fleet that leaves no pod over is accepted only if each
//! assigned domain has a node for its arriving pods.

use std::collections::BTreeMap;

use super::layout::Layout;
use super::packing_model::PackingModel;
use super::problem::Problem;
use crate::demand::PodGroup;
use crate::model::ids::LabelKey;
use crate::model::pod::{TopologySpread, WhenUnsatisfiable};
use crate::model::requirement::{LabelSet, key};

/// A pod class with an assigned domain, of a group that must spread over more than hosts.
pub(super) struct SpreadClass {
    class: usize,
    /// For each topology key, the classes of the same groups with the same domain. A node for one of
    /// them is in that domain.
    of_domain: Vec<Vec<usize>>,
}

/// Returns the pod classes with an assigned domain whose groups must spread over more than hosts.
pub(super) fn classes_spread_over_domains(
    model: &PackingModel,
    groups: &[PodGroup],
) -> Vec<SpreadClass> {
    let mut of_groups: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
    for (index, class) in model.classes.iter().enumerate() {
        let is_spread = class.groups().any(|group| is_spread_over_domains(&groups[group]));
        if is_spread && !class.within.is_unconstrained() {
            of_groups.entry(class.groups().collect()).or_default().push(index);
        }
    }
    let spread_class = |class: usize, peers: &[usize]| {
        let of_key = |(key, domain): (&LabelKey, &LabelSet)| -> Vec<usize> {
            let is_there =
                |peer: &usize| model.classes[*peer].within.get(key.as_str()) == Some(domain);
            peers.iter().copied().filter(is_there).collect()
        };
        let of_domain = model.classes[class].within.iter().map(of_key).collect();
        SpreadClass { class, of_domain }
    };
    let mut spread = Vec::new();
    for peers in of_groups.values() {
        spread.extend(peers.iter().map(|class| spread_class(*class, peers)));
    }
    spread.sort_by_key(|spread| spread.class);
    spread
}

/// Returns true if the pods of the group must spread over more than hosts.
pub(super) fn is_spread_over_domains(group: &PodGroup) -> bool {
    let is_required = |rule: &TopologySpread| {
        rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule
            && rule.topology_key.as_str() != key::HOSTNAME
    };
    group.shape.spread.iter().any(is_required)
}

impl Problem<'_> {
    /// Returns the arriving pods whose assigned domain has no node, by class. `None` if there are
    /// none.
    pub(super) fn pods_without_domain(&self, layout: &Layout) -> Option<Vec<u32>> {
        let mut missing = vec![0; self.model.classes.len()];
        for spread in &self.spread_classes {
            missing[spread.class] = self.arriving_without_domain(spread, layout);
        }
        missing.iter().any(|pods| *pods > 0).then_some(missing)
    }

    fn arriving_without_domain(&self, spread: &SpreadClass, layout: &Layout) -> u32 {
        let SpreadClass { class, ref of_domain } = *spread;
        let model = self.model;
        let mut arriving = model.classes[class].planned.saturating_sub(layout.packing.left[class]);
        for (bin, _) in model.bins.iter().zip(&layout.retained).filter(|(_, retained)| **retained) {
            if bin.schedulable && bin.admits[class] {
                return 0;
            }
            arriving = arriving.saturating_sub(bin.running[class]);
        }
        // A pod that spreads over zones and types needs a node in its zone and a node of its type. One
        // node may be both, or each may be another.
        let admits_any = |peers: &Vec<usize>| {
            let mut columns = layout.packing.new_nodes.iter().map(|node| node.offer_class);
            columns.any(|column| {
                let offer_class = &model.offer_classes[column];
                peers.iter().any(|peer| offer_class.admits[*peer])
            })
        };
        let has_node = of_domain.iter().all(admits_any);
        if has_node { 0 } else { arriving }
    }
}
