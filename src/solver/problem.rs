//! The immutable problem of one pass: pods, nodes, offers, limits and settings.
//!
//! Everything here is a pure function of the inputs. The placement simulation and the strategies
//! borrow the problem and never change it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use super::consolidate::price_or_minimum;
use super::disruption_budget::DisruptionBudgets;
use super::existing_node::{ExistingNode, zone_of};
use super::failure_domains::FailureDomainLimits;
use super::layout::Layout;
use super::limits::RemainingLimits;
use super::node_disposition::NodeDisposition;
use super::offer::Offer;
use super::offer_admission::OfferAdmission;
use super::packing_model::PackingModel;
use super::redeployment::Redeployment;
use super::scheduling_runs::{CoveredOrders, DrainingPods};
use super::spot_diversity::OfferingShare;
use super::spread_domains::{SpreadClass, classes_spread_over_domains};
use super::target_fleet::NodeRef;
use super::{Purpose, Settings};
use crate::demand::{Daemon, PodGroup};
use crate::model::desired::{FailureDomains, WorstCase};
use crate::model::ids::{Labels, Namespace, NodeName, PoolName, ZoneName};

/// What a fleet is checked for before it is accepted.
#[derive(Clone, Copy)]
pub(super) struct FleetChecks<'a> {
    /// Failure-domain limits.
    pub failure_domains: FailureDomainLimits<'a>,
    /// True if simulated runs include staggered node readiness and drains.
    pub with_events: bool,
    /// Orders of arrival that place all pods.
    pub orders: CoveredOrders,
    /// True if unschedulable pods arrive as well and must not take the room of others.
    pub unschedulable_pods_arrive: bool,
    /// True if the fleet is searched as if no pod were nominated.
    pub ignores_nominations: bool,
    pub followed_pods: FollowedPods,
}

/// Where pods go that others must be near, if these others are spread over domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FollowedPods {
    /// To each domain that the others need.
    Spread,
    /// To one domain.
    Together,
}

impl<'a> FleetChecks<'a> {
    /// Returns the checks of a fleet in every order, with nominations.
    pub(super) fn all(limits: &'a BTreeMap<PoolName, FailureDomains>) -> Self {
        Self {
            failure_domains: FailureDomainLimits::new(limits),
            with_events: true,
            orders: CoveredOrders::All,
            unschedulable_pods_arrive: false,
            ignores_nominations: false,
            followed_pods: FollowedPods::Spread,
        }
    }
}

/// The parts of a problem.
pub(super) struct ProblemInput<'a> {
    pub model: &'a PackingModel,
    pub groups: &'a [PodGroup],
    pub daemons: &'a [Daemon],
    pub offers: &'a [Offer],
    pub admission: &'a OfferAdmission<'a>,
    pub existing: &'a [ExistingNode],
    pub namespaces: &'a BTreeMap<Namespace, Labels>,
    pub limits: RemainingLimits,
    pub settings: Settings,
    /// Purpose of the fleet.
    pub purpose: Purpose,
    /// What a fleet is checked for.
    pub checks: FleetChecks<'a>,
    /// Disruption budgets of the pools.
    pub budgets: DisruptionBudgets,
    /// Maximum share of Spot nodes in one offering.
    pub offering_share: OfferingShare<'a>,
    /// Check of changes that move pods; `None` if they are not checked.
    pub redeployment: Option<&'a Redeployment<'a>>,
}

/// The input, with indices that every strategy uses.
pub(super) struct Problem<'a> {
    input: ProblemInput<'a>,
    /// Existing nodes in the order in which free resources are filled.
    pub fill_order: Vec<usize>,
    by_name: BTreeMap<&'a NodeName, usize>,
    /// Existing nodes with pods of each group, with pod counts.
    running_pods: Vec<Vec<(usize, u32)>>,
    /// Pod classes that need a node in their topology domain.
    pub spread_classes: Vec<SpreadClass>,
}

impl<'a> Deref for Problem<'a> {
    type Target = ProblemInput<'a>;

    fn deref(&self) -> &ProblemInput<'a> {
        &self.input
    }
}

/// Placement by group: node → number of pods.
pub(super) type Placements = BTreeMap<usize, BTreeMap<NodeRef, u32>>;

/// A layout that passes every run of the placement simulation.
#[derive(Debug, Clone)]
pub(super) struct VerifiedFleet {
    /// Layout, with the nodes that the simulation required.
    pub layout: Layout,
    /// The offer of each new node.
    pub offers: Vec<usize>,
    /// Placement of the pods in the first run.
    pub placements: Placements,
    /// Unschedulable pods, by group.
    pub unplaced: BTreeMap<usize, u32>,
}

impl VerifiedFleet {
    /// Returns the number of unschedulable pods of each priority in `groups`, highest first.
    /// kube-scheduler serves pods in that order, so the smaller list is the better fleet.
    pub(super) fn unplaced_by_priority(&self, groups: &[PodGroup]) -> Vec<u32> {
        sum_by_priority(&self.unplaced, groups)
    }
}

/// Converts counts by group to counts by priority, highest priority first.
pub(super) fn sum_by_priority(pods: &BTreeMap<usize, u32>, groups: &[PodGroup]) -> Vec<u32> {
    let mut sums: BTreeMap<Reverse<i32>, u32> = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        let sum = sums.entry(Reverse(group.shape.priority)).or_insert(0);
        *sum = sum.saturating_add(pods.get(&index).copied().unwrap_or(0));
    }
    sums.into_values().collect()
}

impl<'a> Problem<'a> {
    pub(super) fn new(input: ProblemInput<'a>) -> Self {
        let (model, existing) = (input.model, input.existing);
        let mut fill_order: Vec<usize> = (0..existing.len()).collect();
        fill_order.sort_by_key(|i| {
            (fill_rank(&existing[*i].disposition), unused_price(model, existing, *i), *i)
        });
        let by_name: BTreeMap<&NodeName, usize> =
            existing.iter().enumerate().map(|(i, node)| (&node.name, i)).collect();
        let on = |(name, count): (&NodeName, &u32)| Some((*by_name.get(name)?, *count));
        let running_on = |group: &PodGroup| group.running.iter().filter_map(on).collect();
        let running_pods = input.groups.iter().map(running_on).collect();
        let spread_classes = classes_spread_over_domains(model, input.groups);
        Self { input, fill_order, by_name, running_pods, spread_classes }
    }

    /// Returns the problem in which no pod is nominated to its planned node, and pods arrive in any
    /// order.
    pub(super) fn without_nominations(mut self) -> Self {
        self.input.settings.steer = false;
        self.input.settings.worst_case = WorstCase::Capacity;
        self
    }

    /// Returns the problem with a check of changes that move pods.
    pub(super) fn with_redeployment(mut self, redeployment: Option<&'a Redeployment<'a>>) -> Self {
        self.input.redeployment = redeployment;
        self
    }

    /// Returns the index of an existing node.
    pub(super) fn index_of(&self, name: &NodeName) -> usize {
        self.by_name[name]
    }

    /// Returns existing nodes in the order in which free resources are filled.
    pub(super) fn in_fill_order(&self, nodes: impl Iterator<Item = usize>) -> Vec<usize> {
        let wanted: BTreeSet<usize> = nodes.collect();
        self.fill_order.iter().copied().filter(|node| wanted.contains(node)).collect()
    }

    /// Updates the counts by class from `placements`.
    pub(super) fn recount_classes(
        &self,
        layout: &mut Layout,
        placements: &Placements,
        offers: &[usize],
        unplaced: &BTreeMap<usize, u32>,
    ) {
        let model = self.model;
        layout.pods_on.iter_mut().for_each(BTreeMap::clear);
        layout.packing.new_nodes.iter_mut().for_each(|node| node.pods.clear());
        for (group, places) in placements {
            for (node_ref, count) in places {
                let Some(class) = self.class_at(*group, node_ref, offers) else { continue };
                let on = match node_ref {
                    NodeRef::Existing(name) => &mut layout.pods_on[self.index_of(name)],
                    NodeRef::Launch(node) => &mut layout.packing.new_nodes[*node].pods,
                };
                *on.entry(class).or_insert(0) += count;
            }
        }
        layout.packing.left = vec![0; model.classes.len()];
        for (group, count) in unplaced {
            if let Some(class) = model.classes_of_group[*group].last() {
                layout.packing.left[*class] += count;
            }
        }
    }

    /// Records the pods of `placements` that stay on their nodes.
    pub(super) fn record_staying(&self, layout: &mut Layout, placements: &Placements) {
        for (group, places) in placements {
            for (node_ref, count) in places {
                let NodeRef::Existing(name) = node_ref else { continue };
                let running = self.groups[*group].running.get(name).copied().unwrap_or(0);
                let (Some(class), stay) =
                    (self.class_at(*group, node_ref, &[]), running.min(*count))
                else {
                    continue;
                };
                if stay > 0 {
                    let seats = &mut layout.staying[self.index_of(name)];
                    *seats.entry(class).or_insert(0) += stay;
                }
            }
        }
    }

    /// Returns the class of the group's pods on a node: the class of the node's topology domains,
    /// or the first class if the scheduler chose another domain.
    pub(super) fn class_at(
        &self,
        group: usize,
        node_ref: &NodeRef,
        offers: &[usize],
    ) -> Option<usize> {
        let labels = match node_ref {
            NodeRef::Existing(name) => &self.existing[self.index_of(name)].labels,
            NodeRef::Launch(node) => &self.offers[offers[*node]].node.labels,
        };
        let model = self.model;
        model.pod_class_of(group, labels).or_else(|| model.classes_of_group[group].first().copied())
    }

    /// Returns the nodes to drain, with their running pods.
    pub(super) fn draining_pods(&self, layout: &Layout) -> DrainingPods {
        let mut draining: BTreeMap<usize, Vec<(usize, u32)>> = BTreeMap::new();
        for (group, runs_on) in self.running_pods.iter().enumerate() {
            for (node, count) in runs_on {
                if !layout.retained[*node] && !self.existing[*node].is_planned {
                    draining.entry(*node).or_default().push((group, *count));
                }
            }
        }
        draining.into_iter().collect()
    }

    /// Returns the pods that stay on their nodes in the layout, by group.
    pub(super) fn staying_pods(&self, layout: &Layout) -> Placements {
        let nodes = (0..layout.retained.len()).filter(|node| layout.retained[*node]);
        let mut rank = vec![usize::MAX; layout.retained.len()];
        for (at, node) in self.in_fill_order(nodes).into_iter().enumerate() {
            rank[node] = at;
        }
        let mut staying_left = layout.staying.clone();
        let mut staying = Placements::new();
        for (index, (group, runs_on)) in self.groups.iter().zip(&self.running_pods).enumerate() {
            let mut wanted = group.counts.planned;
            let mut nodes: Vec<&(usize, u32)> =
                runs_on.iter().filter(|(node, _)| rank[*node] < usize::MAX).collect();
            nodes.sort_unstable_by_key(|(node, _)| rank[*node]);
            for (node, running) in nodes {
                let (name, labels) = {
                    let node = &self.existing[*node];
                    (&node.name, &node.labels)
                };
                let mut count = (*running).min(wanted);
                if let Some(class) = self.model.pod_class_of(index, labels) {
                    // Pods without a class always stay: their rules are unknown.
                    let staying_left = staying_left[*node].entry(class).or_insert(0);
                    count = count.min(*staying_left);
                    *staying_left -= count;
                }
                wanted -= count;
                if count > 0 {
                    staying
                        .entry(index)
                        .or_default()
                        .insert(NodeRef::Existing(name.clone()), count);
                }
            }
        }
        staying
    }

    /// Returns the pods that the packing left over, by group: pending pods of the last groups of
    /// each class.
    pub(super) fn left_over_by_group(
        &self,
        layout: &Layout,
        staying: &Placements,
    ) -> BTreeMap<usize, u32> {
        let mut unplaced = BTreeMap::new();
        let mut stays: BTreeMap<usize, u32> =
            staying.iter().map(|(group, places)| (*group, places.values().sum())).collect();
        for (class, left) in self.model.classes.iter().zip(&layout.packing.left) {
            let mut left = *left;
            for (group, planned) in class.group_counts.iter().rev() {
                let stays = stays.entry(*group).or_insert(0);
                let stays_here = (*planned).min(*stays);
                *stays -= stays_here;
                let count = left.min(planned - stays_here);
                if count > 0 {
                    *unplaced.entry(*group).or_insert(0) += count;
                }
                left -= count;
            }
        }
        unplaced
    }

    /// Returns the number of retained nodes by pool and zone.
    pub(super) fn pool_zone_counts(&self, layout: &Layout) -> BTreeMap<(&str, ZoneName), u32> {
        let mut zones = BTreeMap::new();
        for (node, retained) in self.existing.iter().zip(&layout.retained) {
            if let (true, Some(pool), Some(zone)) = (*retained, &node.pool, zone_of(&node.labels)) {
                *zones.entry((pool.as_str(), zone.into())).or_insert(0) += 1;
            }
        }
        zones
    }

    /// Chooses an offer for each new node. Among zones of equal price, it prefers the zone with the
    /// fewest nodes of the pool.
    pub(super) fn choose_offers(&self, layout: &Layout) -> Vec<usize> {
        let mut zones = self.pool_zone_counts(layout);
        let new_nodes = layout.packing.new_nodes.iter().map(|node| {
            let of = |i: &usize| {
                let node = &self.offers[*i].node;
                (node.pool.as_str(), node.zone.clone())
            };
            let column = &self.model.offer_classes[node.offer_class].offers;
            let count = |i: &usize| zones.get(&of(i)).copied().unwrap_or(0);
            let balanced = || column.iter().copied().min_by_key(|i| (count(i), *i));
            let chosen = node.offer.or_else(balanced).expect("a column has at least one offer");
            *zones.entry(of(&chosen)).or_insert(0) += 1;
            chosen
        });
        new_nodes.collect()
    }
}

/// Returns the fill order: nodes to keep first, nodes to retire last.
fn fill_rank(disposition: &NodeDisposition) -> u8 {
    match disposition {
        NodeDisposition::Keep(_) => 0,
        NodeDisposition::RemoveWhenEmpty(_) => 1,
        NodeDisposition::Consolidatable => 2,
        NodeDisposition::Retire(_) => 3,
    }
}

/// Returns the price of a node less the worth of its running pods, so that well-used nodes fill up
/// first and others run empty.
fn unused_price(model: &PackingModel, existing: &[ExistingNode], bin: usize) -> i128 {
    let running = model.bins[bin].running.iter().zip(&model.classes);
    let worth: i128 = running.map(|(count, class)| i128::from(*count) * class.value).sum();
    i128::from(price_or_minimum(&existing[bin]).0) * 1000 - worth
}
