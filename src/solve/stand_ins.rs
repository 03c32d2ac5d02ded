//! Which offerings may stand in for a launch that EC2 refuses.
//!
//! Those that hold the same pods and cost no less, up to a band above its price; and, where the pool
//! demands distinct values of a key (`minValues`), as many more as it takes, whatever they cost. For
//! a reserved machine nothing stands in: to fall back to capacity that costs more is a decision, and
//! decisions are approved.

use std::collections::{BTreeMap, BTreeSet};

use super::offer::Offer;
use super::target::{Alternative, NewNode, Relaxed};
use crate::ids::LabelKey;
use crate::units::MicroUsd;

/// How much dearer than the node itself an alternative may be, in percent.
const BAND_PERCENT: i64 = 20;

/// Most alternatives kept for a node, unless its pool demands more.
const ALTERNATIVES_MAX: usize = 15;

/// Offers that hold the pods of a node.
pub(super) struct Candidates<'a> {
    /// They, the cheapest first.
    pub offers: &'a [&'a Offer],
    /// Whether one is where the pods have to be.
    pub keeps: &'a dyn Fn(&Offer) -> bool,
}

/// Gives `node` its alternatives, of those candidates that are where its pods have to be.
pub(super) fn choose(
    node: &mut NewNode,
    candidates: &Candidates,
    demands: &BTreeMap<LabelKey, u32>,
) {
    if node.reservation.is_some() {
        return;
    }
    let cap = MicroUsd(node.price.0 + node.price.0 * BAND_PERCENT / 100);
    let (price, offers) = (node.price, candidates.offers);
    // The labels that the launch chose where its pool leaves them open are those of what stands in.
    let chosen = |offer: &Offer| {
        let same = |key: &LabelKey| offer.node.labels.get(key) == node.labels.get(key);
        node.open_labels.iter().all(same)
    };
    let keeps = |offer: &&&Offer| chosen(offer) && (candidates.keeps)(offer);
    let near = |offer: &&&Offer| (price..=cap).contains(&offer.node.price);
    let mut taken: Vec<&Offer> =
        offers.iter().filter(near).filter(keeps).take(ALTERNATIVES_MAX).copied().collect();
    let itself = |other: &Offer| {
        let other = &other.node;
        (&other.instance_type, &other.zone, other.capacity_type)
            == (&node.instance_type, &node.zone, node.capacity_type)
    };
    taken.retain(|offer| !itself(offer));
    let mut relaxed = Vec::new();
    for (key, demanded) in demands {
        let own = node.labels.get(key).into_iter();
        let mut values: BTreeSet<_> =
            own.chain(taken.iter().filter_map(|offer| offer.node.labels.get(key))).collect();
        let needed = usize::try_from(*demanded).unwrap_or(usize::MAX);
        let no_dearer = offers.iter().filter(|offer| offer.node.price >= price);
        let cheaper = offers.iter().filter(|offer| offer.node.price < price);
        for offer in no_dearer.chain(cheaper).filter(keeps) {
            if values.len() >= needed {
                break;
            }
            if offer.node.labels.get(key).is_some_and(|value| values.insert(value)) {
                taken.push(offer);
            }
        }
        if values.len() < needed {
            let remain = u32::try_from(values.len()).unwrap_or(u32::MAX);
            relaxed.push(Relaxed { key: key.clone(), demanded: *demanded, remain });
        }
    }
    let mut alternatives: Vec<Alternative> = taken.into_iter().map(alternative).collect();
    alternatives.sort_by(|a, b| {
        let key = |of: &Alternative| {
            (of.hourly, of.instance_type.clone(), of.zone.clone(), of.capacity_type)
        };
        key(a).cmp(&key(b))
    });
    alternatives.dedup();
    (node.alternatives, node.relaxed) = (alternatives, relaxed);
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
