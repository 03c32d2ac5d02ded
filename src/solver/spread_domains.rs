//! The topology domains in which a spread needs nodes.
//!
//! kube-scheduler counts only domains with nodes, so it accepts a spread over zones in a fleet of one
//! zone. That is not the intent of a spread over zones. Karpenter counts every zone that it may launch
//! in, and so does the topology assignment. A fleet that leaves no pod over is accepted only if each
//! assigned domain has a node for its arriving pods.

use super::layout::Layout;
use super::packing_model::PackingModel;
use super::problem::Problem;
use crate::demand::PodGroup;
use crate::model::pod::{TopologySpread, WhenUnsatisfiable};
use crate::model::requirement::key;

/// Returns the pod classes with an assigned domain whose groups must spread over more than hosts.
pub(super) fn classes_spread_over_domains(model: &PackingModel, groups: &[PodGroup]) -> Vec<usize> {
    let classes = model.classes.iter().enumerate();
    let spread = classes.filter(|(_, class)| {
        !class.within.is_unconstrained()
            && class.groups().any(|group| is_spread_over_domains(&groups[group]))
    });
    spread.map(|(class, _)| class).collect()
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
        for class in &self.spread_classes {
            missing[*class] = self.arriving_without_domain(*class, layout);
        }
        missing.iter().any(|pods| *pods > 0).then_some(missing)
    }

    fn arriving_without_domain(&self, class: usize, layout: &Layout) -> u32 {
        let model = self.model;
        let mut arriving = model.classes[class].planned.saturating_sub(layout.packing.left[class]);
        for (bin, _) in model.bins.iter().zip(&layout.retained).filter(|(_, retained)| **retained) {
            if bin.schedulable && bin.admits[class] {
                return 0;
            }
            arriving = arriving.saturating_sub(bin.running[class]);
        }
        let mut columns = layout.packing.new_nodes.iter().map(|node| node.offer_class);
        let has_node = columns.any(|column| model.offer_classes[column].admits[class]);
        if has_node { 0 } else { arriving }
    }
}
