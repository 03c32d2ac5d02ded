//! Where pods are if a given set of nodes stays: first where they run, then in free room, then on
//! new nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::consolidate::price_of;
pub(super) use super::fill::Counts;
use super::fill::Filling;
use super::limits::Limits;
use super::model::Model;
use super::pack::{LookAhead, Opened, Packing, pack};
use super::procure::{procure, procure_tightly};
use super::standing::{Fate, Standing};
use crate::ids::NodeName;
use crate::units::MicroUsd;

/// Classes times columns up to which pods are packed greedily as well.
const GREEDY_MAX: usize = 50_000;

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
    /// For each class, whether fewer pods are planned than run, and those that end are taken to be
    /// those beyond a cap: controllers end pods first where there are most of them.
    thinned: Vec<bool>,
    /// Standing nodes in the order in which free room is filled.
    fill_order: Vec<usize>,
    by_name: BTreeMap<&'a NodeName, usize>,
}

impl<'a> Ground<'a> {
    pub(super) fn of(model: &'a Model, standing: &'a [Standing], limits: Limits) -> Self {
        let mut fill_order: Vec<usize> = (0..standing.len()).collect();
        fill_order.sort_by_key(|i| (rank(&standing[*i].fate), wasted(model, standing, *i), *i));
        let by_name = standing.iter().enumerate().map(|(i, node)| (&node.name, i)).collect();
        let thinned = vec![false; model.classes.len()];
        Self { model, standing, limits, thinned, fill_order, by_name }
    }

    /// Returns the ground on which pods that end are those beyond a cap, where there are any.
    pub(super) fn thinned(self) -> Self {
        let running = |class: usize| self.model.bins.iter().map(move |bin| bin.running[class]);
        let classes = self.model.classes.iter().enumerate();
        let thinned = classes
            .map(|(index, class)| running(index).fold(0, u32::saturating_add) > class.planned);
        Self { thinned: thinned.collect(), ..self }
    }

    /// Returns where a standing node is among them.
    pub(super) fn index_of(&self, name: &NodeName) -> usize {
        self.by_name[name]
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
        self.layout_ahead(kept, LookAhead::FAR)
    }

    /// Returns the same for one of many layouts that are compared.
    pub(super) fn trial_layout(&self, kept: Vec<bool>) -> Layout {
        self.layout_ahead(kept, LookAhead::NEAR)
    }

    fn layout_ahead(&self, kept: Vec<bool>, ahead: LookAhead) -> Layout {
        let mut left: Vec<u32> = self.model.classes.iter().map(|class| class.planned).collect();
        let mut fillings: Vec<Filling> =
            self.model.bins.iter().map(|bin| Filling::of(&bin.room)).collect();
        let mut staying = vec![Counts::new(); kept.len()];
        let stays = || self.fill_order.iter().copied().filter(|bin| kept[*bin]);
        for bin in stays() {
            for (class, running) in self.model.bins[bin].running.iter().enumerate() {
                if *running > 0 && self.model.bins[bin].takes[class] {
                    let wanted = (*running).min(left[class]);
                    let count = if self.thinned[class] {
                        fillings[bin].most(self.model, class, wanted)
                    } else {
                        self.model.copies(class, &fillings[bin].room, wanted)
                    };
                    fillings[bin].put(self.model, class, count);
                    left[class] -= count;
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
                    self.fill(class, bin, &mut fillings[bin], &mut left);
                }
            }
        }
        let bound = self.bound(&staying, &mut left);
        let on: Vec<Counts> = fillings.into_iter().map(|filling| filling.pods).collect();
        let mut packing = self.packed(&left, ahead);
        for (class, count) in &bound {
            packing.left[*class] += count;
        }
        let standing = self.standing.iter().zip(&kept).filter(|(_, kept)| **kept);
        let price =
            standing.map(|(node, _)| price_of(node)).sum::<MicroUsd>() + packing.price(self.model);
        Layout { kept, on, staying, packing, price }
    }

    /// Packs pods on new nodes: greedily, or at solved prices where that is less work.
    fn packed(&self, left: &[u32], ahead: LookAhead) -> Packing {
        if self.is_much(left)
            && let Some(packing) = procure(self.model, left, &self.limits)
        {
            return packing;
        }
        pack(self.model, left, &self.limits, ahead)
    }

    /// Returns whether filling every column anew for each node would take long.
    fn is_much(&self, wanted: &[u32]) -> bool {
        let classes = wanted.iter().filter(|count| **count > 0).count();
        classes.saturating_mul(self.model.undominated.len()) > GREEDY_MAX
    }

    /// Returns `layout` with its new nodes bought at solved prices, where that costs less.
    pub(super) fn repacked(&self, mut layout: Layout) -> Layout {
        let mut wanted = vec![0; self.model.classes.len()];
        for (class, count) in layout.packing.opened.iter().flat_map(|node| &node.pods) {
            wanted[*class] += count;
        }
        let solved = if self.is_much(&wanted) { procure_tightly } else { procure };
        let Some(better) = solved(self.model, &wanted, &self.limits) else { return layout };
        let (old, new) = (layout.packing.price(self.model), better.price(self.model));
        if better.left_over() == 0 && new < old {
            layout.packing.opened = better.opened;
            layout.price = layout.price - old + new;
        }
        layout
    }

    /// Puts what fits of a class on a standing node.
    fn fill(&self, class: usize, bin: usize, filling: &mut Filling, left: &mut [u32]) {
        if self.model.classes[class].is_single() {
            let count = filling.most(self.model, class, left[class]);
            filling.put(self.model, class, count);
            left[class] -= count;
            return;
        }
        if self.model.classes[class].whole && filling.pods.contains_key(&class) {
            // The rest of them can only come here, as far as there is room.
            let count = filling.most(self.model, class, left[class]);
            filling.put(self.model, class, count);
            left[class] -= count;
            return;
        }
        let before = filling.pods.clone();
        filling.put_company(self.model, class, left, &self.model.bins[bin].takes);
        for (class, count) in &filling.pods {
            left[*class] -= count - before.get(class).copied().unwrap_or(0);
        }
    }

    /// Takes pods that all go to one node, some of them to one that stands, out of what is packed:
    /// on another node they could not run.
    fn bound(&self, staying: &[Counts], left: &mut [u32]) -> Counts {
        let whole = |class: &usize| self.model.classes[*class].whole;
        let here: std::collections::BTreeSet<usize> =
            staying.iter().flat_map(BTreeMap::keys).copied().filter(whole).collect();
        here.into_iter().map(|class| (class, std::mem::take(&mut left[class]))).collect()
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
