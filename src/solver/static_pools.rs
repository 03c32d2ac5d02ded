//! Static pools (`replicas`): missing nodes, surplus nodes, and the next node to replace.
//!
//! These nodes are decided before any pod is placed, and are then given to the search as existing
//! nodes. Pods use them like other nodes and never add any.
//!
//! * Missing nodes use the cheapest offering, each in the zone with the fewest nodes of the pool.
//! * Surplus nodes are retired: first a node that must be replaced anyway, then an empty one, then
//!   the one with the fewest pods. Surplus and replaced nodes are retired even if their pods fit
//!   nowhere else: the number of nodes is declared, and the plan names those pods.
//! * Nodes that must be replaced (drift, age, `--replace`) are replaced one at a time. The new node
//!   comes first, so `limits.nodes` needs room for one more. Apart from budgets, this is the only
//!   case in which the plan after a plan is not empty; the waiting nodes say so.
//! * `limits.nodes` below `replicas` wins.
//!
//! Auto Scaling groups below their minimum size get the missing nodes in the same way. Nothing else
//! here applies to them.
//!
//! Source: karpenter core, `pkg/controllers/static`, `pkg/controllers/disruption/staticdrift.go`.
//! Deliberate difference: an instance that did not become a node in time does not count, so another
//! replaces it.

use std::collections::{BTreeMap, BTreeSet};

use super::alternatives::AlternativeCandidates;
use super::auto_scaling_groups::group_size;
use super::existing_node::{ExistingNode, zone_of};
use super::node_disposition::{NodeDisposition, RetireCondition};
use super::offer::{Offer, Offers, admits};
use super::target_builder::PodPlacements;
use super::target_fleet::{Launch, NewNode, NodeRef};
use super::topology::TiedKeys;
use super::{Input, alternatives, min_values};
use crate::demand::{PodGroup, PodShape};
use crate::model::desired::Pool;
use crate::model::ids::{LabelKey, NodeName, PoolName, ReservationId};
use crate::model::reason::{BlockReason, KeepReason, LaunchReason, RetireReason};
use crate::model::units::Resources;

/// Nodes that static pools launch.
#[derive(Default)]
pub(super) struct StaticPoolNodes {
    launches: Vec<StaticLaunch>,
    /// Instances available in each reservation.
    supply: BTreeMap<ReservationId, u32>,
    /// `minValues` demands of each pool.
    demands: BTreeMap<PoolName, BTreeMap<LabelKey, u32>>,
}

struct StaticLaunch {
    name: NodeName,
    offer: Offer,
    reason: LaunchReason,
}

impl StaticPoolNodes {
    /// Decides the nodes of every static pool, and sets the disposition of existing ones.
    pub(super) fn decide(input: &Input, offers: &Offers, existing: &mut [ExistingNode]) -> Self {
        let observed = input.observed;
        let supply = observed.reservations.iter().map(|(id, r)| (id.clone(), r.available));
        let mut nodes = Self { supply: supply.collect(), ..Self::default() };
        for pool in input.desired.pools.values() {
            let Some(declared) = pool.replicas else { continue };
            nodes.demands.insert(pool.name.clone(), min_values::required_value_counts(pool));
            let members: Vec<usize> = (0..existing.len())
                .filter(|i| existing[*i].pool.as_ref() == Some(&pool.name))
                .filter(|i| {
                    let node = &existing[*i];
                    node.schedulable || observed.nodes.contains_key(&node.name)
                })
                .collect();
            let offers = offers.static_pools.get(&pool.name).map(Vec::as_slice).unwrap_or_default();
            let mut plan = StaticPoolPlan {
                pool,
                declared,
                members,
                offers,
                input,
                existing,
                nodes: &mut nodes,
            };
            plan.decide();
        }
        nodes.fill_groups(input, offers);
        nodes
    }

    /// Adds the nodes that groups lack to their minimum sizes.
    fn fill_groups(&mut self, input: &Input, offers: &Offers) {
        for group in input.desired.node_groups.values() {
            let of_group: Vec<Offer> =
                offers.list.iter().filter(|offer| offer.node.pool == group.name).cloned().collect();
            let size = group_size(group, input.observed);
            let (declared, there) = (size.least.min(size.most), size.members);
            let mut zones = BTreeMap::new();
            for _ in there..declared {
                let Some(offer) = self.take_offer(&of_group, &mut zones) else { break };
                self.add(&group.name, offer, LaunchReason::Static { declared, there });
            }
        }
    }

    /// Returns the nodes to launch as existing nodes.
    pub(super) fn as_existing_nodes(&self) -> impl Iterator<Item = ExistingNode> + '_ {
        self.launches.iter().map(|launch| {
            let disposition =
                NodeDisposition::Keep(KeepReason::Blocked { by: BlockReason::StaticPool });
            ExistingNode::from_offer(launch.name.clone(), &launch.offer, disposition)
        })
    }

    /// Appends the nodes to `launches`, and updates the placements that refer to them.
    pub(super) fn add_launches(
        &self,
        placements: &mut PodPlacements,
        launches: &mut Vec<Launch>,
        groups: &[PodGroup],
        ties: &TiedKeys,
        offers: &Offers,
    ) {
        let first = launches.len();
        let index: BTreeMap<&NodeName, usize> =
            self.launches.iter().enumerate().map(|(at, l)| (&l.name, first + at)).collect();
        for on in placements.by_group.values_mut() {
            *on = std::mem::take(on)
                .into_iter()
                .map(|(node, count)| {
                    let launch = match &node {
                        NodeRef::Existing(name) => index.get(name).copied(),
                        NodeRef::Launch(_) => None,
                    };
                    (launch.map_or(node, NodeRef::Launch), count)
                })
                .collect();
        }
        for (at, launch) in self.launches.iter().enumerate() {
            let node = NodeRef::Launch(first + at);
            let mut on_it = PodsOnLaunch { pods: Vec::new(), tied_keys: BTreeSet::new() };
            for (group, nodes) in &placements.by_group {
                if let Some(count) = nodes.get(&node) {
                    on_it.pods.push((&*groups[*group].shape, *count));
                    on_it.tied_keys.extend(&ties[*group]);
                }
            }
            launches.push(Launch {
                node: self.with_alternatives(launch, offers, &on_it),
                reason: launch.reason.clone(),
                batch: None,
                rejected: Vec::new(),
            });
        }
    }

    fn with_alternatives(
        &self,
        launch: &StaticLaunch,
        offers: &Offers,
        PodsOnLaunch { pods, tied_keys }: &PodsOnLaunch,
    ) -> NewNode {
        let mut node = launch.offer.node.clone();
        let requests = pods.iter().fold(Resources::default(), |sum, (shape, count)| {
            sum.plus(&shape.requests.times(i64::from(*count)))
        });
        let holds = |offer: &&Offer| {
            let other = &offer.node;
            let admits = |shape: &PodShape| admits(shape, &other.labels, &other.taints);
            other.reservation.is_none()
                && other.open_labels == node.open_labels
                && requests.fits(&offer.room)
                && pods.iter().all(|(shape, _)| admits(shape))
        };
        let of_pool = offers.static_pools.get(&node.pool).map(Vec::as_slice).unwrap_or_default();
        let candidates: Vec<&Offer> = of_pool.iter().filter(holds).collect();
        let demands = self.demands.get(&node.pool).cloned().unwrap_or_default();
        let candidates = AlternativeCandidates { offers: &candidates, tied_keys };
        alternatives::choose_alternatives(&mut node, &candidates, &demands);
        node
    }

    pub(super) fn contains(&self, name: &NodeName) -> bool {
        self.launches.iter().any(|launch| launch.name == *name)
    }

    /// Takes the cheapest available offer, in the zone with the fewest nodes of the pool.
    fn take_offer(&mut self, offers: &[Offer], zones: &mut BTreeMap<String, u32>) -> Option<Offer> {
        let is_left = |offer: &&Offer| {
            let reservation = offer.node.reservation.as_ref();
            reservation.is_none_or(|id| self.supply.get(id).is_some_and(|left| *left > 0))
        };
        let cheapest = &offers.iter().find(is_left)?.node;
        let same = |offer: &&Offer| {
            let node = &offer.node;
            (&node.instance_type, node.capacity_type)
                == (&cheapest.instance_type, cheapest.capacity_type)
        };
        let count = |offer: &&Offer| zones.get(offer.node.zone.as_str()).copied().unwrap_or(0);
        // Ties go to the first zone, which is the cheapest.
        let chosen = offers.iter().filter(is_left).filter(same).min_by_key(count)?.clone();
        *zones.entry(chosen.node.zone.to_string()).or_insert(0) += 1;
        if let Some(left) = chosen.node.reservation.as_ref().and_then(|id| self.supply.get_mut(id))
        {
            *left -= 1;
        }
        Some(chosen)
    }

    fn add(&mut self, pool: &PoolName, offer: Offer, reason: LaunchReason) {
        let number = self.launches.len();
        let name = format!("fixed/{pool}/{number}").as_str().into();
        self.launches.push(StaticLaunch { name, offer, reason });
    }
}

/// Pods of a node to launch, and the label keys that they tie to one value.
struct PodsOnLaunch<'a> {
    pods: Vec<(&'a PodShape, u32)>,
    tied_keys: BTreeSet<&'a LabelKey>,
}

/// One static pool and its nodes.
struct StaticPoolPlan<'a> {
    pool: &'a Pool,
    declared: u32,
    /// Indices of its existing nodes.
    members: Vec<usize>,
    offers: &'a [Offer],
    input: &'a Input<'a>,
    existing: &'a mut [ExistingNode],
    nodes: &'a mut StaticPoolNodes,
}

impl StaticPoolPlan<'_> {
    fn decide(&mut self) {
        let there = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let untagged = self.members.iter().filter(|index| lost_tags(&self.existing[**index]));
        let untagged = u32::try_from(untagged.count()).unwrap_or(u32::MAX);
        // A node whose labels are its only evidence delays a launch, and removes no other node.
        self.retire_surplus(there.saturating_sub(untagged));
        let mut zones = BTreeMap::new();
        for index in &self.members {
            let node = &self.existing[*index];
            if let (Some(zone), false) = (zone_of(&node.labels), is_retiring(node)) {
                *zones.entry(zone.to_owned()).or_insert(0) += 1;
            }
        }
        let limit = self.pool.limits.nodes.unwrap_or(u32::MAX);
        let declared = self.declared.min(limit);
        let mut count = there;
        while count < declared {
            let Some(offer) = self.nodes.take_offer(self.offers, &mut zones) else { break };
            let reason = LaunchReason::Static { declared, there };
            self.nodes.add(&self.pool.name, offer, reason);
            count += 1;
        }
        self.replace(count, limit, &mut zones);
    }

    fn retire_surplus(&mut self, there: u32) {
        let surplus = usize::try_from(there.saturating_sub(self.declared)).unwrap_or(usize::MAX);
        let mut surplus_nodes: Vec<usize> =
            self.members.iter().copied().filter(|i| !is_blocked(&self.existing[*i])).collect();
        surplus_nodes.sort_by_key(|index| {
            let node = &self.existing[*index];
            let running = self.running_pods(&node.name);
            (!is_retiring(node), running, std::cmp::Reverse(node.name.clone()))
        });
        surplus_nodes.truncate(surplus);
        for index in &surplus_nodes {
            let node = &mut self.existing[*index];
            node.retire_condition = RetireCondition::Unconditional;
            if !is_retiring(node) {
                let reason = RetireReason::Surplus { declared: self.declared, there };
                node.disposition = NodeDisposition::Retire(reason);
            }
        }
        self.members.retain(|index| !surplus_nodes.contains(index));
    }

    /// Replaces one of the nodes to replace; the others are blocked.
    fn replace(&mut self, count: u32, limit: u32, zones: &mut BTreeMap<String, u32>) {
        let mut retiring: Vec<usize> =
            self.members.iter().copied().filter(|i| is_retiring(&self.existing[*i])).collect();
        retiring.sort_by_key(|index| {
            let requested = matches!(
                self.existing[*index].disposition,
                NodeDisposition::Retire(RetireReason::Requested)
            );
            (!requested, self.existing[*index].name.clone())
        });
        let Some((first, rest)) = retiring.split_first() else { return };
        let (wait, by) = if count >= limit {
            (retiring.as_slice(), BlockReason::NodeLimit { limit })
        } else if let Some(offer) = self.nodes.take_offer(self.offers, zones) {
            self.replace_by(*first, offer);
            (rest, BlockReason::InTurn)
        } else {
            let what = "its pool cannot launch a replacement".to_owned();
            (retiring.as_slice(), BlockReason::Unknown { what })
        };
        for index in wait {
            let by = by.clone();
            self.existing[*index].disposition = NodeDisposition::Keep(KeepReason::Blocked { by });
        }
    }

    fn replace_by(&mut self, index: usize, offer: Offer) {
        let node = &self.existing[index];
        if let NodeDisposition::Retire(because) = &node.disposition {
            let because = Box::new(because.clone());
            let reason = LaunchReason::Replacement { of: node.name.as_str().into(), because };
            self.nodes.add(&self.pool.name, offer, reason);
            self.existing[index].retire_condition = RetireCondition::Unconditional;
        }
    }

    /// Returns the number of planned pods that run on a node.
    fn running_pods(&self, name: &NodeName) -> u32 {
        let groups = self.input.demand.groups.iter();
        let here = groups.map(|g| g.running.get(name).copied().unwrap_or(0).min(g.counts.planned));
        here.fold(0, u32::saturating_add)
    }
}

fn is_retiring(node: &ExistingNode) -> bool {
    matches!(node.disposition, NodeDisposition::Retire(_))
}

fn lost_tags(node: &ExistingNode) -> bool {
    let NodeDisposition::Keep(KeepReason::Blocked { by }) = &node.disposition else { return false };
    matches!(by, BlockReason::TagsLost { .. })
}

/// Returns true if a rule other than the pool size blocks changes of the node.
fn is_blocked(node: &ExistingNode) -> bool {
    let by_size = KeepReason::Blocked { by: BlockReason::StaticPool };
    matches!(&node.disposition, NodeDisposition::Keep(reason) if *reason != by_size)
}
