//! Where pods are if a given set of nodes stays: first where they run, then in free room, then on
//! new nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::consolidate::price_of;
use super::limits::Limits;
use super::model::{Model, take};
use super::pack::{Opened, Packing, pack};
use super::standing::{Fate, Standing};
use crate::units::MicroUsd;

/// Pods by class.
pub(super) type Counts = BTreeMap<usize, u32>;

/// A complete answer for one set of nodes that stay.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// For each standing node, whether it stays.
    pub kept: Vec<bool>,
    /// For each standing node, the pods on it.
    pub on: Vec<Counts>,
    /// For each standing node, the pods that run there already and stay.
    pub staying: Vec<Counts>,
    /// New nodes, and what has no place.
    pub packing: Packing,
    /// Price per hour of the nodes that stay and the new ones.
    pub price: MicroUsd,
}

impl Layout {
    /// Returns how many pods that run on a standing node stay there.
    pub(super) fn stay_on(&self, node: usize) -> u32 {
        self.staying[node].values().sum()
    }
}

/// What layouts are made from.
pub(super) struct Ground<'a> {
    pub model: &'a Model,
    pub standing: &'a [Standing],
    pub limits: Limits,
    /// Standing nodes in the order in which free room is filled.
    fill_order: Vec<usize>,
}

impl<'a> Ground<'a> {
    pub(super) fn of(model: &'a Model, standing: &'a [Standing], limits: Limits) -> Self {
        let mut fill_order: Vec<usize> = (0..standing.len()).collect();
        fill_order.sort_by_key(|i| (rank(&standing[*i].fate), wasted(model, standing, *i), *i));
        Self { model, standing, limits, fill_order }
    }

    /// Returns standing nodes in the order in which their free room is filled.
    pub(super) fn in_fill_order(&self, nodes: impl Iterator<Item = usize>) -> Vec<usize> {
        let wanted: BTreeSet<usize> = nodes.collect();
        self.fill_order.iter().copied().filter(|node| wanted.contains(node)).collect()
    }

    /// Returns the limits that are left once these nodes are launched.
    pub(super) fn limits_after(&self, opened: &[Opened]) -> Limits {
        let mut limits = self.limits.clone();
        for node in opened {
            limits.take(node.column);
        }
        limits
    }

    /// Returns whether these nodes stay within the limits of their pools.
    pub(super) fn within_limits(&self, opened: &[Opened]) -> bool {
        let mut limits = self.limits.clone();
        opened.iter().all(|node| {
            let allowed = limits.allows(node.column);
            limits.take(node.column);
            allowed
        })
    }

    /// Returns where pods are if exactly the nodes in `kept` stay.
    pub(super) fn layout(&self, kept: Vec<bool>) -> Layout {
        let mut left: Vec<u32> = self.model.classes.iter().map(|class| class.planned).collect();
        let mut rooms: Vec<Vec<i64>> = self.model.bins.iter().map(|bin| bin.room.clone()).collect();
        let mut on = vec![Counts::new(); kept.len()];
        let mut staying = vec![Counts::new(); kept.len()];
        let stays = || self.fill_order.iter().copied().filter(|bin| kept[*bin]);
        for bin in stays() {
            for (class, running) in self.model.bins[bin].running.iter().enumerate() {
                if *running > 0 && self.model.bins[bin].takes[class] {
                    let wanted = (*running).min(left[class]);
                    let count = self.model.copies(class, &rooms[bin], wanted);
                    self.put(class, count, (&mut rooms[bin], &mut on[bin], &mut left));
                    if count > 0 {
                        staying[bin].insert(class, count);
                    }
                }
            }
        }
        for class in self.model.order.iter().copied() {
            for bin in stays() {
                if left[class] == 0 {
                    break;
                }
                if self.model.bins[bin].open && self.model.bins[bin].takes[class] {
                    let count = self.model.copies(class, &rooms[bin], left[class]);
                    self.put(class, count, (&mut rooms[bin], &mut on[bin], &mut left));
                }
            }
        }
        let packing = pack(self.model, &left, &self.limits);
        let standing = self.standing.iter().zip(&kept).filter(|(_, kept)| **kept);
        let price =
            standing.map(|(node, _)| price_of(node)).sum::<MicroUsd>() + packing.price(self.model);
        Layout { kept, on, staying, packing, price }
    }

    fn put(
        &self,
        class: usize,
        count: u32,
        (room, on, left): (&mut Vec<i64>, &mut Counts, &mut Vec<u32>),
    ) {
        if count > 0 {
            take(room, &self.model.classes[class].ask, count);
            *on.entry(class).or_insert(0) += count;
            left[class] -= count;
        }
    }
}

/// Nodes that stay anyway are filled first, those that should leave last.
fn rank(fate: &Fate) -> u8 {
    match fate {
        Fate::Stays(_) => 0,
        Fate::OnlyWhenEmpty(_) => 1,
        Fate::Free => 2,
        Fate::Leaves(_) => 3,
    }
}

/// The price of a node that its running pods are not worth, so that well-used nodes fill up first
/// and the others run empty.
fn wasted(model: &Model, standing: &[Standing], bin: usize) -> i128 {
    let running = model.bins[bin].running.iter().zip(&model.classes);
    let worth: i128 = running.map(|(count, class)| i128::from(*count) * class.worth).sum();
    i128::from(price_of(&standing[bin]).0) * 1000 - worth
}
