//! Builds the target: converts counts by class back to workloads and concrete nodes.

mod launch_options;

use std::collections::{BTreeMap, BTreeSet};

use launch_options::{NodeOptions, OfferOrder};

use super::alternatives::AlternativeCandidates;
use super::disruption_budget::DisruptionBudgets;
use super::existing_node::ExistingNode;
use super::layout::PodsByClass;
use super::limits::RemainingLimits;
use super::node_disposition::NodeDisposition;
use super::offer::Offer;
use super::offer_admission::OfferAdmission;
use super::packing_model::PackingModel;
use super::problem::Placements;
use super::replacement::{ReplacementBatch, ReplacementBatches, ReplacementInput};
use super::scheduling_runs::occupied_nodes;
use super::spot_diversity::{OfferingShare, limit_alternatives};
use super::strategy::{DeclinedChange, SolvedFleet};
use super::target_fleet::{Launch, NodeRef, Retire};
use super::topology::TiedKeys;
use super::{Input, Settings, alternatives, auto_scaling_groups, min_values};
use crate::demand::PodGroup;
use crate::model::ids::{LabelKey, NodeName, PoolName, workload_key};
use crate::model::reason::{BlockReason, KeepReason, LaunchReason, RetireReason};
use crate::model::units::MicroUsd;

pub(super) struct TargetBuilder<'a> {
    pub input: &'a Input<'a>,
    pub tied_keys: &'a TiedKeys,
    pub model: &'a PackingModel,
    pub groups: &'a [PodGroup],
    pub offers: &'a [Offer],
    pub admission: &'a OfferAdmission<'a>,
    pub existing: &'a [ExistingNode],
    pub budgets: &'a DisruptionBudgets,
    pub outcome: &'a SolvedFleet,
    pub settings: &'a Settings,
}

/// Placements of each group, and its unschedulable pods.
pub(super) struct PodPlacements {
    pub by_group: Placements,
    pub unplaced: BTreeMap<usize, u32>,
}

impl TargetBuilder<'_> {
    /// Returns the nodes to launch, one for each packed node and in the same order.
    pub(super) fn launches(&self) -> Vec<Launch> {
        let fleet = &self.outcome.fleet;
        let limits = self.limits();
        let order = OfferOrder::new(self.offers);
        let mut memo: BTreeMap<(usize, &PodsByClass), NodeOptions> = BTreeMap::new();
        let mut launches = Vec::with_capacity(fleet.offers.len());
        let pods_on_launch = pods_by_launch(&fleet.placements, fleet.offers.len());
        let new_nodes = fleet.layout.packing.new_nodes.iter().zip(&fleet.offers);
        for ((node, offer), pods_on_launch) in new_nodes.zip(pods_on_launch) {
            let key = (node.offer_class, &node.pods);
            let mut new = self.offers[*offer].node.clone();
            let pool = self.input.desired.pools.get(&new.pool);
            let demands = pool.map(min_values::required_value_counts).unwrap_or_default();
            // EC2 may launch an alternative of every node at once. `minValues` demands its
            // alternatives regardless.
            let together = if demands.is_empty() { self.launches_of(&new.pool) } else { 1 };
            let options = memo
                .entry(key)
                .or_insert_with(|| self.node_options(node, &order, &limits, together));
            // Alternatives must stay in the topology domains that inter-pod rules tie the pods to.
            let packed = node.pods.keys().flat_map(|class| self.model.classes[*class].groups());
            // The scheduling simulation may place other pods there than the packing.
            let groups = packed.chain(pods_on_launch.into_iter().map(|(group, _)| group));
            let tied_keys: BTreeSet<&LabelKey> =
                groups.flat_map(|group| &self.tied_keys[group]).collect();
            let candidates =
                AlternativeCandidates { offers: &options.candidates, tied_keys: &tied_keys };
            alternatives::choose_alternatives(&mut new, &candidates, &demands);
            let reason = LaunchReason::Demand { pods: BTreeMap::new() };
            let rejected = self.rejections(options, &order, &new);
            launches.push(Launch { node: new, reason, batch: None, rejected });
        }
        let share = OfferingShare::new(self.input.desired);
        limit_alternatives(&mut launches, self.existing, &fleet.layout.retained, share);
        launches
    }

    /// Returns the number of launches of a pool.
    fn launches_of(&self, pool: &PoolName) -> i64 {
        let offers = self.outcome.fleet.offers.iter();
        let launches = offers.filter(|offer| self.offers[**offer].node.pool == *pool).count();
        i64::try_from(launches).unwrap_or(i64::MAX)
    }

    /// Returns the remaining limits of pools after all launches.
    fn limits(&self) -> RemainingLimits {
        let pools = auto_scaling_groups::pool_limits(self.input.desired, self.input.observed);
        let offer_classes: Vec<&Offer> =
            self.model.offer_classes.iter().map(|c| &self.offers[c.offers[0]]).collect();
        let mut limits =
            RemainingLimits::new(&pools, std::iter::empty(), self.existing, &offer_classes);
        for node in &self.outcome.fleet.layout.packing.new_nodes {
            limits.add_node(node.offer_class);
        }
        limits
    }

    /// Returns the placements and the unschedulable pods of each group.
    pub(super) fn placements(&self) -> PodPlacements {
        let fleet = &self.outcome.fleet;
        let mut placements =
            PodPlacements { by_group: fleet.placements.clone(), unplaced: fleet.unplaced.clone() };
        self.add_unsupported(&mut placements);
        placements
    }

    /// Adds the pods that placement does not support. Running ones stay where they are, and further
    /// ones are unschedulable.
    fn add_unsupported(&self, placements: &mut PodPlacements) {
        let groups =
            self.groups.iter().enumerate().filter(|(_, g)| !g.shape.unsupported.is_empty());
        for (index, group) in groups {
            let here: u32 =
                placements.by_group.get(&index).into_iter().flat_map(BTreeMap::values).sum();
            let without = group.counts.planned.saturating_sub(here);
            if without > 0 {
                placements.unplaced.insert(index, without);
            }
        }
    }

    /// Returns the kept and the retired nodes with their reasons, and sets the reason of every
    /// launch, and the capacity type of new members of mixed groups.
    pub(super) fn keeps_and_retires(
        &self,
        placements: &PodPlacements,
        launches: &mut [Launch],
    ) -> (BTreeMap<NodeName, KeepReason>, BTreeMap<NodeName, Retire>) {
        let layout = &self.outcome.fleet.layout;
        let (mut keeps, mut retires) = (BTreeMap::new(), BTreeMap::new());
        let planned = launches.to_vec();
        let changes = ReplacementInput {
            existing: self.existing,
            retained: &layout.retained,
            groups: self.groups,
            placements: &placements.by_group,
            launches: &planned,
        };
        let mut batches = changes.batches();
        if let [only] = batches.batches.as_mut_slice() {
            // Where pods are added as well, the saving is relative to adding nodes for them alone.
            // What the other removals save is not part of it.
            let others = self.removed_beside_batches(&batches.by_node);
            only.saves = only.saves.max(self.outcome.baseline_price - layout.price - others);
        }
        let (occupied, limits) = (occupied_nodes(self.groups), self.limits());
        let bounded = self.budgets.bounded_nodes();
        for (index, node) in self.existing.iter().enumerate() {
            if layout.retained[index] {
                let pods = layout.pods_on[index].values().sum();
                let within_budget = pods > 0 && bounded.contains(&node.name);
                let keep = self.keep_reason(node, pods, within_budget);
                let keep = self.name_reached_limits(node, keep, &limits);
                keeps.insert(node.name.clone(), keep);
            } else {
                let retire = self.retire(index, node, &batches, &changes, &occupied);
                retires.insert(node.name.clone(), retire);
            }
        }
        let moved = batches.nodes().iter().map(|nodes| changes.moved_by_group(nodes)).collect();
        self.launch_reasons(placements, launches, &batches, moved);
        let Input { desired, observed, catalog, .. } = *self.input;
        auto_scaling_groups::assign_capacity_types(desired, observed, catalog, launches, &retires);
        (keeps, retires)
    }

    /// Returns the price of the nodes that are removed to save cost, and belong to no batch.
    fn removed_beside_batches(&self, by_node: &BTreeMap<usize, usize>) -> MicroUsd {
        let nodes = self.existing.iter().zip(&self.outcome.fleet.layout.retained).enumerate();
        let removed = nodes.filter(|(index, (node, retained))| {
            let is_mandatory = matches!(node.disposition, NodeDisposition::Retire(_));
            !**retained && !is_mandatory && !by_node.contains_key(index)
        });
        removed.map(|(_, (node, _))| node.price.unwrap_or_default()).sum()
    }

    /// Returns why a node stays. `within_budget` is true if a disruption budget bounds how many
    /// nodes of its pool are removed with it.
    fn keep_reason(&self, node: &ExistingNode, pods: u32, within_budget: bool) -> KeepReason {
        let needed = KeepReason::Needed { pods, within_budget };
        let blocked = |by: BlockReason| KeepReason::Blocked { by };
        let live = self.input.observed.nodes.get(&node.name);
        let is_draining = live.is_some_and(|live| live.grace_period_began_at().is_some());
        match &node.disposition {
            // An unknown blocker does not matter for a node that is needed anyway. A drain that has
            // begun waits for it.
            NodeDisposition::Keep(KeepReason::Blocked { by: BlockReason::Unknown { .. } })
                if pods > 0 && !is_draining =>
            {
                KeepReason::Needed { pods, within_budget: false }
            }
            NodeDisposition::Keep(KeepReason::Blocked { by: BlockReason::BudgetZero })
                if pods == 0 =>
            {
                blocked(BlockReason::Budget)
            }
            NodeDisposition::Keep(reason) => reason.clone(),
            NodeDisposition::Retire(_) => blocked(BlockReason::NoOtherPlace),
            NodeDisposition::RemoveWhenEmpty(BlockReason::PolicyWhenEmpty) if pods > 0 => {
                blocked(BlockReason::PolicyWhenEmpty)
            }
            // A budget for underutilized nodes blocks them only while they have pods.
            NodeDisposition::RemoveWhenEmpty(BlockReason::Budget) if pods > 0 => {
                blocked(BlockReason::BudgetZero)
            }
            // The removal passed every check. The change that was declined is a different one, such as
            // all moves of pods together.
            NodeDisposition::Consolidatable | NodeDisposition::RemoveWhenEmpty(_)
                if self.outcome.budget_blocked.contains(&node.name) =>
            {
                blocked(BlockReason::Budget)
            }
            NodeDisposition::Consolidatable | NodeDisposition::RemoveWhenEmpty(_) => {
                match self.outcome.declined.get(&node.name) {
                    Some(declined) if declined.fails_redeployment => {
                        KeepReason::NeededForRescheduling { pods }
                    }
                    Some(DeclinedChange { saves, needed, moves, nodes, .. })
                        if *saves > MicroUsd::ZERO && *saves < *needed =>
                    {
                        KeepReason::NotWorthMoving {
                            saves_hourly: *saves,
                            needed_hourly: *needed,
                            moves: *moves,
                            nodes: *nodes,
                        }
                    }
                    // No planned pod needs the node, but pods of planned workloads still run there.
                    None if pods == 0 => match &node.disposition {
                        NodeDisposition::RemoveWhenEmpty(by) => blocked(by.clone()),
                        NodeDisposition::Consolidatable
                        | NodeDisposition::Keep(_)
                        | NodeDisposition::Retire(_) => needed,
                    },
                    Some(_) | None => needed,
                }
            }
        }
    }

    fn retire(
        &self,
        index: usize,
        node: &ExistingNode,
        batches: &ReplacementBatches,
        changes: &ReplacementInput,
        occupied: &BTreeSet<&NodeName>,
    ) -> Retire {
        let price = node.price.unwrap_or_default();
        let batch_index = batches.by_node.get(&index).copied();
        if let NodeDisposition::Retire(reason) = &node.disposition {
            return Retire { reason: reason.clone(), batch: batch_index };
        }
        if !occupied.contains(&node.name) {
            return Retire { reason: RetireReason::Empty { saves_hourly: price }, batch: None };
        }
        let batch = batch_index.map(|batch| &batches.batches[batch]);
        let (saves_hourly, moves) = match batch {
            Some(batch) if batch.saves > MicroUsd::ZERO => (batch.saves, batch.moves),
            // What the removal alone saves of a batch that also makes room for more pods is unknown.
            Some(_) => (MicroUsd::ZERO, changes.moved_pods(&[index])),
            None => (price, changes.moved_pods(&[index])),
        };
        let payback_hours = if saves_hourly > MicroUsd::ZERO {
            self.settings.payback_hours(saves_hourly, moves)
        } else {
            0
        };
        Retire {
            reason: RetireReason::Underutilized { saves_hourly, moves, payback_hours },
            batch: batch_index,
        }
    }

    /// Sets the batch of each launch, and its reason unless it is fixed. `moved` has the moved pods
    /// of each batch by group.
    fn launch_reasons(
        &self,
        placements: &PodPlacements,
        launches: &mut [Launch],
        batches: &ReplacementBatches,
        mut moved: Vec<BTreeMap<usize, u32>>,
    ) {
        let pods_on_launch = pods_by_launch(&placements.by_group, launches.len());
        for (index, (launch, pods)) in launches.iter_mut().zip(pods_on_launch).enumerate() {
            launch.batch = batches.by_launch.get(&index).copied();
            let batch = launch.batch.map(|batch| &batches.batches[batch]);
            if launch.is_fixed() {
                continue;
            }
            launch.reason = match batch {
                Some(ReplacementBatch { mandatory: Some((node, reason)), .. }) => {
                    LaunchReason::Replacement {
                        of: node.as_str().into(),
                        because: Box::new(reason.clone()),
                    }
                }
                Some(ReplacementBatch { saves, moves, .. }) if *saves > MicroUsd::ZERO => {
                    LaunchReason::Consolidation { saves_hourly: *saves, moves: *moves }
                }
                // With more pods than before, the batch makes room at a lower price than adding
                // nodes.
                Some(_) | None => {
                    let moved = match launch.batch {
                        Some(batch) => moved.get_mut(batch),
                        None => None,
                    };
                    LaunchReason::Demand { pods: self.pods_without_node(pods, moved) }
                }
            };
        }
    }

    /// Returns the number of `pods` of each workload without those that ran on removed nodes, which
    /// it takes from `moved`.
    fn pods_without_node(
        &self,
        pods: Vec<(usize, u32)>,
        mut moved: Option<&mut BTreeMap<usize, u32>>,
    ) -> BTreeMap<String, u32> {
        let mut named: BTreeMap<String, u32> = BTreeMap::new();
        for (group, mut count) in pods {
            if let Some(left) = moved.as_deref_mut().and_then(|moved| moved.get_mut(&group)) {
                let taken = count.min(*left);
                *left -= taken;
                count -= taken;
            }
            if count > 0 {
                *named.entry(workload_key(&self.groups[group].workload)).or_default() += count;
            }
        }
        named
    }
}

/// Returns for each launch the groups on it, each with its pod count.
fn pods_by_launch(placements: &Placements, launches: usize) -> Vec<Vec<(usize, u32)>> {
    let mut pods_on_launch = vec![Vec::new(); launches];
    for (group, places) in placements {
        for (node_ref, count) in places {
            if let NodeRef::Launch(index) = node_ref {
                pods_on_launch[*index].push((*group, *count));
            }
        }
    }
    pods_on_launch
}
