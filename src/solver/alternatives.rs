//! Alternative offerings for a launch that EC2 rejects.
//!
//! An alternative holds the same pods and costs no less, up to a maximum markup. If the pool
//! demands distinct values of a key (`minValues`), as many further offerings as needed are added at
//! any price. A reserved instance has no alternatives. A fallback to more expensive capacity is a
//! decision, and decisions need approval.

use std::collections::{BTreeMap, BTreeSet};

use super::offer::Offer;
use super::target_fleet::NewNode;
use crate::model::ids::LabelKey;
use crate::model::market::{CapacityType, alternative_price_max};
use crate::model::reason::{Alternative, Relaxed};

/// Maximum alternatives of a node, unless its pool demands more.
const ALTERNATIVES_MAX: usize = 15;

/// Alternatives of a Spot node that may be of another capacity type, for when no Spot capacity is
/// left.
const OTHERS_OF_SPOT: usize = 3;

/// Offers that hold the pods of a node.
pub(super) struct AlternativeCandidates<'a> {
    /// The offers, the cheapest first.
    pub offers: &'a [&'a Offer],
    /// Label keys whose values the inter-pod rules of the pods tie to those of the node.
    pub tied_keys: &'a BTreeSet<&'a LabelKey>,
}

/// Sets the alternatives of `node`, from the candidates in the topology domains of its pods.
pub(super) fn choose_alternatives(
    node: &mut NewNode,
    candidates: &AlternativeCandidates,
    demands: &BTreeMap<LabelKey, u32>,
) {
    if node.reservation.is_some() {
        return;
    }
    let cap = alternative_price_max(node.price);
    let (price, offers) = (node.price, candidates.offers);
    // An alternative must have the labels that the launch chose where its pool leaves them open, and
    // be in the same topology domains.
    let is_candidate = |offer: &&&Offer| {
        let has_same = |key: &LabelKey| offer.node.labels.get(key) == node.labels.get(key);
        node.open_labels.iter().all(has_same)
            && candidates.tied_keys.iter().all(|key| has_same(key))
    };
    let is_near = |offer: &&&Offer| (price..=cap).contains(&offer.node.price);
    let near = offers.iter().filter(is_near).filter(is_candidate).copied().collect();
    let mut selected = select_near(node.capacity_type, near);
    let is_launched_one = |offer: &Offer| {
        let other = &offer.node;
        (&other.instance_type, &other.zone, other.capacity_type)
            == (&node.instance_type, &node.zone, node.capacity_type)
    };
    selected.retain(|offer| !is_launched_one(offer));
    let mut relaxed = Vec::new();
    for (key, demanded) in demands {
        let own = node.labels.get(key).into_iter();
        let mut values: BTreeSet<_> =
            own.chain(selected.iter().filter_map(|offer| offer.node.labels.get(key))).collect();
        let needed = usize::try_from(*demanded).unwrap_or(usize::MAX);
        let no_cheaper = offers.iter().filter(|offer| offer.node.price >= price);
        let cheaper = offers.iter().filter(|offer| offer.node.price < price);
        for offer in no_cheaper.chain(cheaper).filter(is_candidate) {
            if values.len() >= needed {
                break;
            }
            if offer.node.labels.get(key).is_some_and(|value| values.insert(value)) {
                selected.push(offer);
            }
        }
        if values.len() < needed {
            let remain = u32::try_from(values.len()).unwrap_or(u32::MAX);
            relaxed.push(Relaxed { key: key.clone(), demanded: *demanded, remain });
        }
    }
    let mut alternatives: Vec<Alternative> = selected.into_iter().map(alternative).collect();
    alternatives.sort_by(|a, b| {
        let key = |of: &Alternative| {
            (of.hourly, of.instance_type.clone(), of.zone.clone(), of.capacity_type)
        };
        key(a).cmp(&key(b))
    });
    alternatives.dedup();
    (node.alternatives, node.relaxed) = (alternatives, relaxed);
}

/// Returns the cheapest of the offers within the markup, the planned one included. EC2 chooses among the
/// Spot alternatives of a Spot node, so that most of its alternatives are Spot.
fn select_near(planned: CapacityType, mut offers: Vec<&Offer>) -> Vec<&Offer> {
    if planned.is_spot() {
        let (spot, mut others): (Vec<&Offer>, Vec<&Offer>) =
            offers.into_iter().partition(|offer| offer.node.capacity_type.is_spot());
        let rest = others.split_off(others.len().min(OTHERS_OF_SPOT));
        let spot_max = ALTERNATIVES_MAX - others.len();
        offers = spot.into_iter().take(spot_max).chain(others).chain(rest).collect();
    }
    offers.truncate(ALTERNATIVES_MAX);
    offers
}

fn alternative(offer: &Offer) -> Alternative {
    let node = &offer.node;
    Alternative {
        instance_type: node.instance_type.clone(),
        zone: node.zone.clone(),
        capacity_type: node.capacity_type,
        hourly: node.price,
    }
}
