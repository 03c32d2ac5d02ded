//! Admission of pods to the nodes of offers.
//!
//! Node selectors, node affinity and taints do not change while a fleet is searched, and every
//! search asks for them. The answer is computed once for all groups with the same rules.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::offer::{Offer, admits};
use crate::demand::{NodeChoice, PodGroup, PodShape};
use crate::model::pod::Toleration;

/// Admission of each group to the nodes of each offer. It is computed on the first question about
/// a group.
pub(super) struct OfferAdmission<'a> {
    offers: &'a [Offer],
    rules: Vec<AdmissionRule<'a>>,
    /// The rule of each group.
    rule_of_group: Vec<usize>,
}

/// Groups with the same node selection and the same tolerations.
struct AdmissionRule<'a> {
    shape: &'a PodShape,
    /// For each offer, true if its nodes admit the pods.
    admitted: OnceLock<Vec<bool>>,
}

impl<'a> OfferAdmission<'a> {
    pub(super) fn new(groups: &'a [PodGroup], offers: &'a [Offer]) -> Self {
        let mut known: BTreeMap<(&NodeChoice, &[Toleration]), usize> = BTreeMap::new();
        let mut rules = Vec::new();
        let mut rule_of = |group: &'a PodGroup| {
            let shape: &PodShape = &group.shape;
            *known.entry((&shape.nodes, &shape.tolerations)).or_insert_with(|| {
                rules.push(AdmissionRule { shape, admitted: OnceLock::new() });
                rules.len() - 1
            })
        };
        let rule_of_group = groups.iter().map(&mut rule_of).collect();
        Self { offers, rules, rule_of_group }
    }

    /// Returns for each offer whether its nodes admit pods of the group, apart from free resources.
    pub(super) fn of_group(&self, group: usize) -> &[bool] {
        let AdmissionRule { shape, admitted } = &self.rules[self.rule_of_group[group]];
        admitted.get_or_init(|| {
            let nodes = self.offers.iter().map(|offer| &offer.node);
            nodes.map(|node| admits(shape, &node.labels, &node.taints)).collect()
        })
    }
}
