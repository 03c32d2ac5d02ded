//! `minValues`: a launch must have enough alternatives with distinct values of a key.
//!
//! For each node to launch, Karpenter counts the distinct values of a key among all types that hold
//! its planned pods. A plan of Fleetwright decides the type, so the rule is inverted. An offer is
//! filled only as far as enough other offers of its pool have the same room and admit the same
//! pods. Each of them has another value of the key. Those offers become alternatives of the launch
//! at any price.
//!
//! If too few others admit the same pods, a strict pool withholds the offer. A pool with the
//! best-effort policy makes it and reports the relaxed requirement. Two differences from Karpenter
//! are intentional. If only one value of the key admits some pod, the offer has no alternatives for
//! any pod. Reservations have one type and zone by nature, and the rule does not apply to them.
//!
//! Source: karpenter core, `pkg/cloudprovider/types.go` (`SatisfiesMinValues`).

use std::collections::{BTreeMap, BTreeSet};

use super::offer::{Offer, PoolOffers, WithheldReason, admits};
use crate::demand::PodShape;
use crate::model::desired::{MinValuesPolicy, Pool};
use crate::model::ids::{LabelKey, LabelValue};
use crate::model::reason::Relaxed;
use crate::model::units::Resources;

/// The denominator of a share.
const WHOLE: i128 = 1 << 20;

/// Properties of an offer for the rule: its value of the key, the pods it admits, and its room.
type OfferProfile = (Option<LabelValue>, Vec<bool>, Resources);

/// Reduces or withholds the offers of `pool` that violate its `minValues` requirements.
pub(super) fn enforce_min_values(
    pool: &Pool,
    policy: MinValuesPolicy,
    shapes: &[&PodShape],
    stock: &mut PoolOffers,
) {
    let demands = required_value_counts(pool);
    if demands.is_empty() {
        return;
    }
    let choices: BTreeMap<_, &PodShape> =
        shapes.iter().map(|shape| ((&shape.nodes, &shape.tolerations), *shape)).collect();
    let admitted = |offer: &Offer| -> Vec<bool> {
        let node = &offer.node;
        choices.values().map(|shape| admits(shape, &node.labels, &node.taints)).collect()
    };
    for (key, demanded) in demands {
        let profile = |offer: &Offer| -> OfferProfile {
            (offer.node.labels.get(&key).cloned(), admitted(offer), offer.room.clone())
        };
        let free = stock.offers.iter().filter(|offer| offer.node.reservation.is_none());
        let profiles: BTreeSet<OfferProfile> = free.map(profile).collect();
        let mut memo: BTreeMap<OfferProfile, Result<Resources, u32>> = BTreeMap::new();
        let mut admitted_offers = Vec::with_capacity(stock.offers.len());
        for mut offer in std::mem::take(&mut stock.offers) {
            if offer.node.reservation.is_some() {
                admitted_offers.push(offer);
                continue;
            }
            let own = profile(&offer);
            let shared =
                memo.entry(own).or_insert_with_key(|own| shared_room(own, &profiles, demanded));
            match (shared.clone(), policy) {
                (Ok(room), _) => offer.room = room,
                (Err(remain), MinValuesPolicy::BestEffort) => {
                    offer.node.relaxed.push(Relaxed { key: key.clone(), demanded, remain });
                }
                (Err(remain), MinValuesPolicy::Strict) => {
                    let relaxed = Relaxed { key: key.clone(), demanded, remain };
                    stock.withheld.push((offer, WithheldReason::MinValuesUnmet(relaxed)));
                    continue;
                }
            }
            admitted_offers.push(offer);
        }
        stock.offers = admitted_offers;
    }
}

/// Returns the required number of distinct values by key, the maximum over all requirements.
pub(super) fn required_value_counts(pool: &Pool) -> BTreeMap<LabelKey, u32> {
    let mut demands = BTreeMap::new();
    for requirement in &pool.requirements {
        if let Some(least) = requirement.min_values {
            let demanded = demands.entry(requirement.key.clone()).or_insert(0);
            *demanded = least.max(*demanded);
        }
    }
    demands
}

/// Returns the room that `own` shares with the `demanded` − 1 other values that reduce it least.
/// Returns the number of available values if there are too few.
fn shared_room(
    own: &OfferProfile,
    profiles: &BTreeSet<OfferProfile>,
    demanded: u32,
) -> Result<Resources, u32> {
    let (value, admitted, room) = own;
    let covers = |other: &[bool]| admitted.iter().zip(other).all(|(own, other)| *other || !*own);
    let mut best: BTreeMap<&LabelValue, (i128, &Resources)> = BTreeMap::new();
    for (other, admits, holds) in profiles {
        let Some(other) = other.as_ref().filter(|o| Some(*o) != value.as_ref()) else { continue };
        if covers(admits) {
            let share = (least_share(room, holds), holds);
            let entry = best.entry(other).or_insert(share);
            if share.0 > entry.0 {
                *entry = share;
            }
        }
    }
    let needed = usize::try_from(demanded).unwrap_or(usize::MAX);
    let own_value = usize::from(value.is_some());
    if best.len() + own_value < needed {
        return Err(u32::try_from(best.len() + own_value).unwrap_or(u32::MAX));
    }
    let mut others: Vec<(i128, &Resources)> = best.into_values().collect();
    others.sort_by(|a, b| b.cmp(a));
    others.truncate(needed - own_value.min(needed));
    Ok(others.into_iter().fold(room.clone(), |shared, (_, other)| shared.at_most(other)))
}

/// Returns the minimum share of any resource of `room` that `other` has, in parts of [`WHOLE`].
fn least_share(room: &Resources, other: &Resources) -> i128 {
    let share = |mine: i64, theirs: i64| {
        if mine <= 0 { WHOLE } else { i128::from(theirs.clamp(0, mine)) * WHOLE / i128::from(mine) }
    };
    let extended = room.extended.iter().map(|(name, n)| share(*n, other.extended(name)));
    let plain = [
        share(room.cpu.0, other.cpu.0),
        share(room.memory.0, other.memory.0),
        share(room.ephemeral_storage.0, other.ephemeral_storage.0),
        share(room.pods, other.pods),
    ];
    extended.chain(plain).min().unwrap_or(WHOLE)
}
