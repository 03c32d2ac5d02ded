//! In which zone new nodes are, where the packing does not say.
//!
//! Offers that differ in their zone alone are one column as long as no pod tells them apart. A pod with
//! a volume does: its zone is a column of its own then, which takes more pods than that of the others,
//! and so every node of the packing is there. Which is nobody's wish: here the nodes that need not be
//! there go where they would have gone without that pod, as far as every run still finds each pod a
//! place, and every draw: there is no saving that some luck would be worth. The price does not change,
//! and neither does who has a place.

use std::collections::BTreeMap;

use super::layout::{Counts, Layout};
use super::model::Model;
use super::offer::Offer;
use super::rehearse::{Settled, Stage};
use super::settle::{is_rehearsed, pinned};

/// How often fewer nodes are tried where a run left a pod over: half of them each time.
const TRIES_MAX: usize = 4;

/// Draws that are made of any fleet: there is nothing to gain that luck would be worth.
const DRAWS_MIN: u64 = 4;

impl Stage<'_> {
    /// Returns the fleet with its new nodes over as many zones as may be.
    pub(super) fn over_zones(&self, settled: Settled) -> Settled {
        let mut moves = self.moves_over_zones(&settled);
        for _ in 0..TRIES_MAX {
            if moves.is_empty() {
                break;
            }
            let layout = self.moved(&settled, &moves);
            if !is_rehearsed(self.groups) {
                return Settled { packed: settled.packed, ..self.as_packed(&layout) };
            }
            let over = self.without(&layout, settled.unplaced.clone());
            if let Some(over) = over.filter(|over| self.is_as_sure(over, &settled, DRAWS_MIN)) {
                return Settled { packed: settled.packed, ..over };
            }
            moves.truncate(moves.len() / 2);
        }
        settled
    }

    /// Returns the new nodes that leave their zone for one with fewer nodes of their pool, and the offer
    /// that each becomes.
    fn moves_over_zones(&self, settled: &Settled) -> Vec<(usize, usize)> {
        let model = self.ground.model;
        let opened = settled.layout.packing.opened.iter().zip(&settled.offers).enumerate();
        let mut alike: BTreeMap<(usize, Vec<usize>), Vec<usize>> = BTreeMap::new();
        let mut choices: Vec<(usize, usize, Vec<usize>)> = Vec::new();
        for (index, (node, offer)) in opened {
            let classes: Vec<usize> = node.pods.keys().copied().collect();
            let key = (model.of_offer[*offer], classes);
            let others = alike
                .entry(key)
                .or_insert_with(|| sisters(model, self.offers, *offer, &node.pods))
                .clone();
            choices.push((index, *offer, others));
        }
        let mut zones = self.zones_of(&settled.layout);
        let of = |offer: usize| {
            let node = &self.offers[offer].node;
            (node.pool.as_str(), node.zone.clone())
        };
        // Those that cannot go anywhere else are counted before the others choose.
        choices.sort_by_key(|(index, _, others)| (others.len(), *index));
        let mut moves = Vec::new();
        for (index, offer, others) in choices {
            let count = |offer: &usize| zones.get(&of(*offer)).copied().unwrap_or(0);
            let all = std::iter::once(offer).chain(others);
            let chosen = all.min_by_key(|o| (count(o), *o != offer, *o)).unwrap_or(offer);
            *zones.entry(of(chosen)).or_insert(0) += 1;
            if self.offers[chosen].node.zone != self.offers[offer].node.zone {
                moves.push((index, chosen));
            }
        }
        moves
    }

    /// Returns the layout with exactly these offers, and the others as they are.
    fn moved(&self, settled: &Settled, moves: &[(usize, usize)]) -> Layout {
        let mut layout = pinned(settled);
        for (index, offer) in moves {
            let node = &mut layout.packing.opened[*index];
            (node.column, node.offer) = (self.ground.model.of_offer[*offer], Some(*offer));
        }
        layout
    }
}

/// Returns the offers in other columns that are the same machine in every respect but where it is, and
/// that take `pods` as gladly.
fn sisters(model: &Model, offers: &[Offer], offer: usize, pods: &Counts) -> Vec<usize> {
    let (own, node) = (&model.columns[model.of_offer[offer]], &offers[offer].node);
    let alike = model.columns.iter().enumerate().filter(|(index, column)| {
        let other = &offers[column.offers[0]].node;
        let takes = |class: &usize| {
            let choice = model.classes[*class].choice;
            column.takes[*class] && column.unmet[choice] <= own.unmet[choice]
        };
        *index != model.of_offer[offer]
            && !column.scarce
            && (column.price, &column.pool, &column.room) == (own.price, &own.pool, &own.room)
            && (&other.instance_type, other.capacity_type)
                == (&node.instance_type, node.capacity_type)
            && pods.keys().all(takes)
    });
    if own.scarce {
        return Vec::new();
    }
    alike.flat_map(|(_, column)| column.offers.iter().copied()).collect()
}
