//! `minValues`: enough others must be able to stand in for whatever is launched.
//!
//! Karpenter counts, for each machine it is about to launch, the distinct values of a key among all
//! types that hold the pods planned for it. A plan here decides the type, so the rule is turned
//! round: an offer is filled only as far as enough others of its pool, each with another value of
//! the key, hold as much and admit the same pods. Those others are then among the launch's
//! alternatives, whatever they cost.
//!
//! Where too few others admit the same pods, a strict pool does not make the offer, and a pool
//! under the best-effort policy makes it and says so. On purpose otherwise than in Karpenter: an
//! offer that some pod may use which no other value of the key admits counts as having no others
//! for every pod, and reservations, being of one type and zone by nature, are not held to the rule.
//!
//! Source: karpenter core, `pkg/cloudprovider/types.go` (`SatisfiesMinValues`).

use std::collections::{BTreeMap, BTreeSet};

use super::offer::{Offer, Stock, Withheld, admits};
use super::target::Relaxed;
use crate::demand::PodShape;
use crate::ids::{LabelKey, LabelValue};
use crate::manifest::{MinValuesPolicy, Pool};
use crate::units::Resources;

/// A resource of one amount as a share of another, in parts of this.
const WHOLE: i128 = 1 << 20;

/// What an offer is to the rule: its value of the key, the pods it admits, and its room.
type Kind = (Option<LabelValue>, Vec<bool>, Resources);

/// Holds the offers of `pool` to its demands for distinct values.
pub(super) fn hold(pool: &Pool, policy: MinValuesPolicy, shapes: &[&PodShape], stock: &mut Stock) {
    let demands = demands(pool);
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
        let kind = |offer: &Offer| -> Kind {
            (offer.node.labels.get(&key).cloned(), admitted(offer), offer.room.clone())
        };
        let free = stock.offers.iter().filter(|offer| offer.node.reservation.is_none());
        let kinds: BTreeSet<Kind> = free.map(kind).collect();
        let mut memo: BTreeMap<Kind, Result<Resources, u32>> = BTreeMap::new();
        let mut kept = Vec::with_capacity(stock.offers.len());
        for mut offer in std::mem::take(&mut stock.offers) {
            if offer.node.reservation.is_some() {
                kept.push(offer);
                continue;
            }
            let own = kind(&offer);
            let shared = memo.entry(own).or_insert_with_key(|own| shared(own, &kinds, demanded));
            match (shared.clone(), policy) {
                (Ok(room), _) => offer.room = room,
                (Err(remain), MinValuesPolicy::BestEffort) => {
                    offer.node.relaxed.push(Relaxed { key: key.clone(), demanded, remain });
                }
                (Err(remain), MinValuesPolicy::Strict) => {
                    let relaxed = Relaxed { key: key.clone(), demanded, remain };
                    stock.withheld.push((offer, Withheld::TooFewValues(relaxed)));
                    continue;
                }
            }
            kept.push(offer);
        }
        stock.offers = kept;
    }
}

/// Returns how many distinct values the pool demands of each key; of several demands the greatest.
pub(super) fn demands(pool: &Pool) -> BTreeMap<LabelKey, u32> {
    let mut demands = BTreeMap::new();
    for requirement in &pool.requirements {
        if let Some(least) = requirement.min_values {
            let demanded = demands.entry(requirement.key.clone()).or_insert(0);
            *demanded = least.max(*demanded);
        }
    }
    demands
}

/// Returns the room that `own` has in common with the `demanded` − 1 other values of the key that
/// leave it most, or how many values there are.
fn shared(own: &Kind, kinds: &BTreeSet<Kind>, demanded: u32) -> Result<Resources, u32> {
    let (value, admitted, room) = own;
    let covers = |other: &[bool]| admitted.iter().zip(other).all(|(own, other)| *other || !*own);
    let mut best: BTreeMap<&LabelValue, (i128, &Resources)> = BTreeMap::new();
    for (other, admits, holds) in kinds {
        let Some(other) = other.as_ref().filter(|o| Some(*o) != value.as_ref()) else { continue };
        if covers(admits) {
            let share = (least_share(room, holds), holds);
            let held = best.entry(other).or_insert(share);
            if share.0 > held.0 {
                *held = share;
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

/// Returns the least share of any resource of `room` that `other` has, in parts of [`WHOLE`].
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
