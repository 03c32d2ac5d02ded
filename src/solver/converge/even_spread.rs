//! Fleets whose nodes fill evenly with pods that spread over hostnames.
//!
//! A new node without pods allows only the maximum skew of a spread over hostnames. If several
//! nodes open together and fill evenly, each may hold more. Such a fleet has fewer nodes and may
//! cost less. It passes the same placement simulation as any other fleet.
//!
//! Steered plans stay capped: a steered even fleet of 17 nodes changed in the plan after its apply.

use std::collections::BTreeSet;

use super::super::layout::Layout;
use super::super::node_disposition::NodeDisposition;
use super::super::packing_model::PackingModel;
use super::super::problem::{FleetChecks, HostSpread, VerifiedFleet};
use super::{ConvergedFleet, Passes};
use crate::demand::PodGroup;
use crate::model::pod::{TopologySpread, WhenUnsatisfiable};
use crate::model::requirement::key;

impl<'a> Passes<'a> {
    /// Returns the passes for nodes that fill evenly, if the packing is better than with the
    /// `capped` model.
    pub(super) fn with_even_spread(&self, capped: &PackingModel) -> Option<Passes<'a>> {
        let groups = &self.demand.groups;
        let is_steered = self.input.settings.steer;
        if is_steered || !groups.iter().any(|group| host_skew(group).is_some()) {
            return None;
        }
        let checks = FleetChecks { host_spread: HostSpread::Even, ..self.checks };
        let passes = self.with_checks(checks);
        let model = passes.model(groups, self.existing);
        if model.rules == capped.rules {
            return None;
        }
        let (even, capped) = (self.packed_anew(&model), self.packed_anew(capped));
        // Limits may leave no room beside running nodes. Nodes may then still be removed.
        let is_better = even.packing.left_over() > 0 || even.price < capped.price;
        is_better.then_some(passes)
    }

    /// Returns the packing without the nodes that may be removed.
    fn packed_anew(&self, model: &PackingModel) -> Layout {
        let is_retained = |disposition: &NodeDisposition| match disposition {
            NodeDisposition::Keep(_) | NodeDisposition::RemoveWhenEmpty(_) => true,
            NodeDisposition::Consolidatable | NodeDisposition::Retire(_) => false,
        };
        let retained = self.existing.iter().map(|node| is_retained(&node.disposition)).collect();
        self.problem(&self.demand.groups, self.existing, model).trial_layout(retained)
    }

    /// Returns true if the even fleet leaves fewer pods over, or costs less. It holds the same
    /// orders of arrival, and puts no further workload on one node.
    pub(super) fn is_better_even(&self, even: &ConvergedFleet, capped: &ConvergedFleet) -> bool {
        let groups = &self.demand.groups;
        let rank = |converged: &ConvergedFleet| {
            let fleet = &converged.outcome.fleet;
            (fleet.unplaced_by_priority(groups), fleet.layout.price)
        };
        let orders = |converged: &ConvergedFleet| {
            let FleetChecks { with_events, orders, .. } = converged.checks;
            (with_events, orders, converged.outcome.is_partly_covered)
        };
        let on_one_node =
            |converged: &ConvergedFleet| groups_on_one_node(groups, &converged.outcome.fleet);
        rank(even) < rank(capped)
            && orders(even) == orders(capped)
            && on_one_node(even).is_subset(&on_one_node(capped))
    }
}

/// Returns the groups that spread over hostnames and have more pods on one node than the skew
/// allows, and none on another.
fn groups_on_one_node(groups: &[PodGroup], fleet: &VerifiedFleet) -> BTreeSet<usize> {
    let is_on_one = |group: &usize| {
        let nodes = fleet.placements.get(group);
        let pods = nodes.filter(|nodes| nodes.len() == 1).and_then(|nodes| nodes.values().next());
        let skew = host_skew(&groups[*group]);
        pods.zip(skew).is_some_and(|(pods, skew)| i64::from(*pods) > i64::from(skew))
    };
    (0..groups.len()).filter(is_on_one).collect()
}

/// Returns the minimum skew of the required spreads over hostnames, if the group has one.
fn host_skew(group: &PodGroup) -> Option<i32> {
    let is_required = |rule: &&TopologySpread| {
        rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule
            && rule.topology_key.as_str() == key::HOSTNAME
    };
    group.shape.spread.iter().filter(is_required).map(|rule| rule.max_skew).min()
}
