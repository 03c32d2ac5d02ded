//! Node shapes: nodes with the same pool, instance type and price in any zone.

use std::collections::BTreeMap;

use super::greedy_packing::PackedNode;
use super::offer::Offer;
use super::packing_model::{OfferClass, PackingModel, RuleSide};
use super::topology::NodeRule;
use crate::model::units::MicroUsd;

/// Multiple of the minimum number of nodes up to which evenly spread pods are examined.
const SPREAD_MAX: usize = 4;

/// Offer classes that differ only in their topology domain, and so in the pods they admit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeShape(Vec<usize>);

/// Returns the shapes of all undominated offer classes.
pub(super) fn shapes(model: &PackingModel, offers: &[Offer]) -> Vec<NodeShape> {
    let mut keyed: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for index in model.undominated.iter().copied() {
        let offer_class = &model.offer_classes[index];
        let node = &offers[offer_class.offers[0]].node;
        let kind = (&node.instance_type, node.capacity_type);
        keyed
            .entry((offer_class.price, &offer_class.pool, kind, &offer_class.room))
            .or_default()
            .push(index);
    }
    keyed.into_values().map(NodeShape).collect()
}

impl NodeShape {
    /// Returns the price of one node per hour.
    pub(super) fn price(&self, model: &PackingModel) -> MicroUsd {
        model.offer_classes[self.0[0]].price
    }

    /// Returns the weight of the pool.
    pub(super) fn weight(&self, model: &PackingModel) -> u32 {
        model.offer_classes[self.0[0]].weight
    }

    /// Returns true if every wanted pod may run on some node of the shape.
    pub(super) fn admits_all(&self, model: &PackingModel, wanted: &[u32]) -> bool {
        let is_admitted = |class: usize| {
            self.0.iter().any(|offer_class| model.offer_classes[*offer_class].admits[class])
        };
        wanted.iter().enumerate().all(|(class, pods)| *pods == 0 || is_admitted(class))
    }

    /// Returns the minimum number of nodes for the pods, by each resource and each cap.
    pub(super) fn least_nodes(&self, model: &PackingModel, wanted: &[u32]) -> usize {
        let bound: usize = self.nodes_bound_to_place(model, wanted).into_iter().sum();
        bound.max(least_nodes(model, self.0[0], wanted))
    }

    /// Returns an estimate of the nodes needed if the scheduler spreads the pods evenly, the
    /// smallest first. Each pod then needs room beside an even share of all earlier pods.
    pub(super) fn estimated_spread_nodes(&self, model: &PackingModel, wanted: &[u32]) -> usize {
        let mut fails = self.least_nodes(model, wanted).saturating_sub(1);
        let mut holds = fails.saturating_mul(SPREAD_MAX).saturating_add(SPREAD_MAX);
        while holds - fails > 1 {
            let middle = usize::midpoint(fails, holds);
            let fits = self.fits_spread(model, wanted, middle);
            if fits { holds = middle } else { fails = middle }
        }
        holds
    }

    /// Returns true if this number of nodes holds the pods, evenly spread and the smallest first.
    fn fits_spread(&self, model: &PackingModel, wanted: &[u32], nodes: usize) -> bool {
        let room = &model.offer_classes[self.0[0]].room;
        let nodes = i128::try_from(nodes.max(1)).unwrap_or(i128::MAX);
        let mut used = vec![0_i128; room.len()];
        model.by_value.iter().rev().filter(|class| wanted[**class] > 0).all(|class| {
            let (request, count) = (&model.classes[*class].requests, i128::from(wanted[*class]));
            let requested = (0..room.len()).filter(|d| request[*d] > 0);
            let free = |d: usize| i128::from(room[d]) - used[d] / nodes;
            let slots =
                requested.map(|d| free(d).max(0) / i128::from(request[d])).min().unwrap_or(count);
            for (used, request) in used.iter_mut().zip(request) {
                *used += i128::from(*request) * count;
            }
            slots.saturating_mul(nodes) >= count
        })
    }

    /// Returns `count` nodes. Each domain gets the nodes for pods that can run nowhere else, and
    /// the others are distributed evenly.
    pub(super) fn nodes(
        &self,
        model: &PackingModel,
        wanted: &[u32],
        count: usize,
    ) -> Vec<PackedNode> {
        let mut counts = self.nodes_bound_to_place(model, wanted);
        // A fleet above the minimum grows in every domain alike.
        let least = self.least_nodes(model, wanted).max(1);
        for at_column in &mut counts {
            *at_column = at_column.saturating_mul(count) / least;
        }
        while counts.iter().sum::<usize>() < count {
            let fewest = counts.iter_mut().min().expect("a shape has an offer class");
            *fewest += 1;
        }
        let of = |(offer_class, count): (&usize, usize)| {
            let node = PackedNode { offer_class: *offer_class, pods: BTreeMap::new(), offer: None };
            std::iter::repeat_n(node, count)
        };
        self.0.iter().zip(counts).flat_map(of).collect()
    }

    /// Returns the price of this shape and another together, if pods could be split and every node
    /// were full. It is the minimum over all shares, in micro-USD times a common factor.
    ///
    /// The price is the maximum of a few linear functions of the share. Its minimum is at an end or
    /// at an intersection. Shares are tried in sixteenths, which is accurate enough to rank shapes.
    pub(super) fn combined_price(
        &self,
        other: &Self,
        model: &PackingModel,
        wanted: &[u32],
    ) -> i128 {
        const PARTS: i128 = 16;
        let (mine, theirs) = (&model.offer_classes[self.0[0]], &model.offer_classes[other.0[0]]);
        let requested = |d: usize| -> i128 {
            let classes = model.classes.iter().zip(wanted);
            classes.map(|(class, n)| i128::from(class.requests[d]) * i128::from(*n)).sum()
        };
        let requested: Vec<i128> = (0..mine.room.len()).map(requested).collect();
        // Per unit of price, because shapes differ in size.
        let room_per_price = |offer_class: &OfferClass, d: usize| {
            i128::from(offer_class.room[d]) * 1_000_000 / i128::from(offer_class.price.0.max(1))
        };
        let cost = |part: i128| {
            let needed = (0..requested.len()).filter(|d| requested[*d] > 0).map(|d| {
                let room =
                    room_per_price(mine, d) * part + room_per_price(theirs, d) * (PARTS - part);
                requested[d] * 1_000_000 * PARTS / room.max(1)
            });
            needed.max().unwrap_or(0)
        };
        (0..=PARTS).map(cost).min().unwrap_or(0)
    }

    /// Returns, for each domain, the nodes for pods that can run nowhere else.
    fn nodes_bound_to_place(&self, model: &PackingModel, wanted: &[u32]) -> Vec<usize> {
        let places =
            |class: usize| self.0.iter().filter(move |c| model.offer_classes[**c].admits[class]);
        let bound_to = |offer_class: usize| -> Vec<u32> {
            let only = |class: usize| places(class).eq([&offer_class]);
            let wanted = wanted.iter().enumerate();
            wanted.map(|(class, pods)| if only(class) { *pods } else { 0 }).collect()
        };
        if let [only] = self.0.as_slice() {
            return vec![least_nodes(model, *only, wanted)];
        }
        self.0
            .iter()
            .map(|offer_class| least_nodes(model, *offer_class, &bound_to(*offer_class)))
            .collect()
    }
}

/// Returns the minimum number of nodes of one offer class for `wanted` pods.
fn least_nodes(model: &PackingModel, offer_class: usize, wanted: &[u32]) -> usize {
    let room = &model.offer_classes[offer_class].room;
    let mut requested = vec![0_i128; room.len()];
    let mut capped = vec![0_i128; model.rules.len()];
    for (class, count) in model.classes.iter().zip(wanted).filter(|(_, count)| **count > 0) {
        for (requested, request) in requested.iter_mut().zip(&class.requests) {
            *requested += i128::from(*request) * i128::from(*count);
        }
        for (rule, _) in class.rules.iter().filter(|(_, side)| *side == RuleSide::Subject) {
            capped[*rule] += i128::from(*count);
        }
    }
    let by_room = requested.iter().zip(room).filter(|(requested, _)| **requested > 0);
    let by_room = by_room.map(|(requested, room)| {
        let room = i128::from((*room).max(1));
        (requested + room - 1) / room
    });
    let by_cap = model.rules.iter().zip(&capped).filter_map(|(rule, pods)| {
        let NodeRule::Cap { max_pods, .. } = rule else { return None };
        Some((pods + i128::from(*max_pods) - 1) / i128::from((*max_pods).max(1)))
    });
    let most = by_room.chain(by_cap).max().unwrap_or(0);
    usize::try_from(most).unwrap_or(usize::MAX)
}
