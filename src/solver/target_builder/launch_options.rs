//! Alternatives of a new node, and the instance types that it does not use.
//!
//! Thousands of different new nodes are compared with a thousand offer classes each, so instance
//! types are numbers here.

use std::collections::BTreeSet;

use super::super::greedy_packing::PackedNode;
use super::super::limits::RemainingLimits;
use super::super::offer::Offer;
use super::super::packing_model::{OfferClass, ResourceVector};
use super::super::target_fleet::NewNode;
use super::TargetBuilder;
use crate::model::ids::InstanceTypeName;
use crate::model::reason::Rejection;
use crate::model::units::MicroUsd;

/// Offers and their instance types in order.
pub(super) struct OfferOrder<'a> {
    /// Names of the types, in ascending order.
    names: Vec<&'a InstanceTypeName>,
    /// For each offer, the index of its type.
    types: Vec<usize>,
    /// For each offer, its position by price, type and zone.
    ranks: Vec<usize>,
}

impl<'a> OfferOrder<'a> {
    pub(super) fn new(offers: &'a [Offer]) -> Self {
        let names: BTreeSet<&InstanceTypeName> =
            offers.iter().map(|offer| &offer.node.instance_type).collect();
        let names: Vec<&InstanceTypeName> = names.into_iter().collect();
        let index = |offer: &Offer| {
            let found = names.binary_search(&&offer.node.instance_type);
            found.expect("the names are those of the offers")
        };
        let types: Vec<usize> = offers.iter().map(index).collect();
        let mut by_price: Vec<usize> = (0..offers.len()).collect();
        by_price.sort_by_key(|offer| {
            let node = &offers[*offer].node;
            (node.price, types[*offer], &node.zone)
        });
        let mut ranks = vec![0; offers.len()];
        for (rank, offer) in by_price.into_iter().enumerate() {
            ranks[offer] = rank;
        }
        Self { names, types, ranks }
    }

    fn type_of(&self, class: &OfferClass) -> usize {
        self.types[class.offers[0]]
    }

    fn no_types(&self) -> TypeSet {
        TypeSet(vec![false; self.names.len()])
    }
}

/// A set of instance types.
struct TypeSet(Vec<bool>);

impl TypeSet {
    fn insert(&mut self, index: usize) {
        self.0[index] = true;
    }

    fn remove_all(&mut self, other: &Self) {
        for (has, other) in self.0.iter_mut().zip(&other.0) {
            *has &= !other;
        }
    }

    fn len(&self) -> u32 {
        let types = self.0.iter().filter(|has| **has).count();
        u32::try_from(types).unwrap_or(u32::MAX)
    }
}

/// Alternatives of a node, and the types that it does not use.
pub(super) struct NodeOptions<'a> {
    /// Offers that hold the same pods, the cheapest first.
    pub candidates: Vec<&'a Offer>,
    /// Offer classes that hold the same pods and cost no less.
    no_cheaper: Vec<usize>,
    /// Instance types that are rejected for another reason than their price.
    rejected: Vec<Rejection>,
}

/// Instance types without an offering that holds the pods of a node.
struct UnfitTypes {
    /// Types whose offerings are too small, as far as the rules of the pods allow them.
    too_small: TypeSet,
    /// Types whose offerings the rules of the pods all exclude.
    not_allowed: TypeSet,
}

impl TargetBuilder<'_> {
    /// Returns the alternative offers for `node`, and the rejected offer classes with their
    /// reasons. The limits hold if as many nodes as `together` launch an alternative.
    pub(super) fn node_options(
        &self,
        node: &PackedNode,
        order: &OfferOrder,
        limits: &RemainingLimits,
        together: i64,
    ) -> NodeOptions<'_> {
        let selected = &self.model.offer_classes[node.offer_class];
        let mut candidates: Vec<usize> = Vec::new();
        let mut no_cheaper = Vec::new();
        let (mut too_tight, mut used_up) = (order.no_types(), order.no_types());
        let requested = self.total_requests(node);
        for (index, offer_class) in self.model.offer_classes.iter().enumerate() {
            if offer_class.pool != selected.pool || !holds(offer_class, selected, node, &requested)
            {
                continue;
            }
            let kind = order.type_of(offer_class);
            if offer_class.is_reserved {
                if !selected.is_reserved {
                    used_up.insert(kind);
                }
                continue;
            }
            if limits.allows_swap(node.offer_class, index)
                && limits.allows_swaps(node.offer_class, index, together)
            {
                candidates.extend(&offer_class.offers);
            }
            if offer_class.price < selected.price {
                too_tight.insert(kind);
            } else if index != node.offer_class {
                no_cheaper.push(index);
            }
        }
        candidates.sort_by_key(|offer| order.ranks[*offer]);
        let candidates = candidates.into_iter().map(|offer| &self.offers[offer]).collect();
        let UnfitTypes { too_small, not_allowed } = self.unfit_types(node, order, &requested);
        let rejected = [
            (
                "too-tight",
                "cheaper, but kube-scheduler would leave pods unschedulable on them",
                too_tight,
            ),
            ("too-small", "cannot hold these pods on one node", too_small),
            ("not-allowed", "rules of these pods exclude them", not_allowed),
            ("reservation-full", "of a capacity reservation, which this plan uses up", used_up),
        ];
        let rejected = rejected.into_iter().map(|(reason, detail, types)| Rejection {
            reason: reason.to_owned(),
            detail: detail.to_owned(),
            count: types.len(),
        });
        let rejected = rejected.filter(|rejection| rejection.count > 0).collect();
        NodeOptions { candidates, no_cheaper, rejected }
    }

    /// Returns the instance types of the pool without an offering that holds the pods of `node`.
    fn unfit_types(&self, node: &PackedNode, order: &OfferOrder, requested: &[i64]) -> UnfitTypes {
        let selected = &self.model.offer_classes[node.offer_class];
        let mut fitting = order.no_types();
        fitting.insert(order.type_of(selected));
        let (mut too_small, mut not_allowed) = (order.no_types(), order.no_types());
        let classes = self.model.offer_classes.iter().filter(|class| class.pool == selected.pool);
        for class in classes {
            let types = match (self.allows(class, node), has_room(class, requested)) {
                (true, true) => &mut fitting,
                (true, false) => &mut too_small,
                (false, _) => &mut not_allowed,
            };
            types.insert(order.type_of(class));
        }
        not_allowed.remove_all(&fitting);
        not_allowed.remove_all(&too_small);
        too_small.remove_all(&fitting);
        UnfitTypes { too_small, not_allowed }
    }

    /// Returns true if node selectors, node affinity and tolerations of all pods of `node` admit
    /// them to nodes of this offer class.
    fn allows(&self, offer_class: &OfferClass, node: &PackedNode) -> bool {
        let offer = offer_class.offers[0];
        let mut groups = node.pods.keys().flat_map(|class| self.model.classes[*class].groups());
        groups.all(|group| self.admission.of_group(group)[offer])
    }

    /// Returns the instance types that `node` does not use, with the reasons. Its own type and those
    /// of its alternatives are not among the types that cost no less.
    pub(super) fn rejections(
        &self,
        options: &NodeOptions<'_>,
        order: &OfferOrder,
        node: &NewNode,
    ) -> Vec<Rejection> {
        let alternatives = node.alternatives.iter();
        let used: BTreeSet<_> = alternatives
            .map(|other| (&other.instance_type, other.capacity_type))
            .chain([(&node.instance_type, node.capacity_type)])
            .filter_map(|(name, capacity)| Some((order.names.binary_search(&name).ok()?, capacity)))
            .collect();
        let mut prices: Vec<Option<MicroUsd>> = vec![None; order.names.len()];
        for index in &options.no_cheaper {
            let class = &self.model.offer_classes[*index];
            let other = &self.offers[class.offers[0]].node;
            let kind = order.type_of(class);
            if !used.contains(&(kind, other.capacity_type)) {
                let least = prices[kind].get_or_insert(other.price);
                *least = other.price.min(*least);
            }
        }
        let prices =
            || prices.iter().enumerate().filter_map(|(kind, price)| Some((kind, (*price)?)));
        let equal = prices().filter(|(_, price)| *price == node.price);
        let dearer = prices().filter(|(_, price)| *price != node.price);
        let rejection = |reason: &str, types: Vec<(usize, MicroUsd)>| {
            let (kind, price) = types.iter().min_by_key(|(kind, price)| (*price, *kind))?;
            let name = order.names[*kind];
            Some(Rejection {
                reason: reason.to_owned(),
                detail: format!("holds the same pods, from {name} at ${}/h", price.rounded(4)),
                count: u32::try_from(types.len()).unwrap_or(u32::MAX),
            })
        };
        let of_price =
            [rejection("no-cheaper", equal.collect()), rejection("dearer", dearer.collect())];
        of_price.into_iter().flatten().chain(options.rejected.iter().cloned()).collect()
    }

    fn total_requests(&self, node: &PackedNode) -> ResourceVector {
        let mut requested = vec![0_i64; self.model.offer_classes[node.offer_class].room.len()];
        for (class, count) in &node.pods {
            for (sum, request) in requested.iter_mut().zip(&self.model.classes[*class].requests) {
                *sum = sum.saturating_add(request.saturating_mul(i64::from(*count)));
            }
        }
        requested
    }
}

/// Returns true if a node of this offer class has room for `requested` and holds the pods of
/// `node`, whose own offer class is `selected`.
fn holds(
    offer_class: &OfferClass,
    selected: &OfferClass,
    node: &PackedNode,
    requested: &[i64],
) -> bool {
    has_room(offer_class, requested)
        && node.pods.keys().all(|class| offer_class.holds_in_place_of(selected, *class))
}

/// Returns true if a node of this offer class has room for `requested`.
fn has_room(offer_class: &OfferClass, requested: &[i64]) -> bool {
    let mut amounts = requested.iter().zip(&offer_class.room);
    amounts.all(|(requested, room)| *requested <= 0 || requested <= room)
}

#[cfg(test)]
mod tests;
