//! New nodes for pods that have no room: price-guided greedy with look-ahead.
//!
//! Each step opens the node whose price is least for what its pods are worth, many at once while
//! the same filling repeats. Before every step the end is tried as well: the one cheapest node that
//! takes all that is left. Small remainders are searched with each column as the next node, since
//! for few pods the last node decides the price.

use std::collections::BTreeMap;

use super::fill::{Filling, holds};
use super::limits::Limits;
use super::model::Model;
use crate::units::MicroUsd;

/// Pods up to which every column is tried as the next node.
const LOOK_AHEAD_PODS: u32 = 64;

/// Columns that are filled by shape as well as by value in one step.
const SHAPED_MAX: usize = 4;

/// Classes that filling by shape chooses from.
const SHAPED_CLASSES_MAX: usize = 96;

/// A node to open, and the pods on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Opened {
    /// Column.
    pub column: usize,
    /// Pods by class.
    pub pods: BTreeMap<usize, u32>,
    /// The one offer of the column that it has to be, where that matters.
    pub offer: Option<usize>,
}

/// Nodes to open, what they cost, and what is left over.
#[derive(Debug, Clone, Default)]
pub(super) struct Packing {
    /// The nodes.
    pub opened: Vec<Opened>,
    /// Pods by class that no node takes.
    pub left: Vec<u32>,
}

impl Packing {
    /// Returns the price per hour of the nodes.
    pub(super) fn price(&self, model: &Model) -> MicroUsd {
        self.opened.iter().map(|node| model.columns[node.column].price).sum()
    }

    /// Returns how many pods are left over.
    pub(super) fn left_over(&self) -> u64 {
        self.left.iter().map(|n| u64::from(*n)).sum()
    }

    /// Returns whether no class has more pods left over than in `other`.
    pub(super) fn leaves_no_more_than(&self, other: &Self) -> bool {
        self.left.iter().zip(&other.left).all(|(mine, theirs)| mine <= theirs)
    }
}

/// How much is done to look ahead: columns squared times pods, counted instead of time so that the
/// result does not depend on the machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct LookAhead(usize);

impl LookAhead {
    /// For the packing of a fleet.
    pub(super) const FAR: Self = Self(1_280_000);
    /// For one of many that are compared: far enough for a handful of pods.
    pub(super) const NEAR: Self = Self(80_000);
}

/// Packs `wanted` pods (by class) onto new nodes, pools of higher weight first.
pub(super) fn pack(model: &Model, wanted: &[u32], limits: &Limits, ahead: LookAhead) -> Packing {
    let mut limits = limits.clone();
    let beyond = beyond_one_node(model, wanted);
    let left = wanted.iter().zip(&beyond).map(|(wanted, beyond)| wanted - beyond).collect();
    let mut packing = Packing { opened: Vec::new(), left };
    let mut weights: Vec<u32> = model.columns.iter().map(|column| column.weight).collect();
    weights.sort_unstable_by(|a, b| b.cmp(a));
    weights.dedup();
    for weight in weights {
        if packing.left_over() == 0 {
            break;
        }
        let of_weight = |i: &usize| model.columns[*i].weight == weight;
        let lean: Vec<usize> = model.undominated.iter().copied().filter(of_weight).collect();
        let all: Vec<usize> = (0..model.columns.len()).filter(of_weight).collect();
        let mut tier = Tier { model, lean, all, limits: limits.clone(), ahead };
        tier.run(&mut packing);
        limits = tier.limits;
    }
    packing.left.iter_mut().zip(beyond).for_each(|(left, beyond)| *left += beyond);
    packing
}

/// Of pods that all go to one node, those that are too many for any.
fn beyond_one_node(model: &Model, wanted: &[u32]) -> Vec<u32> {
    let beyond = |(class, wanted): (usize, &u32)| {
        if !model.classes[class].whole {
            return 0;
        }
        let able = model.columns.iter().filter(|column| column.takes[class]);
        let most = able.map(|column| model.copies(class, &column.room, *wanted)).max();
        wanted - most.unwrap_or(*wanted)
    };
    wanted.iter().enumerate().map(beyond).collect()
}

/// The columns of one weight.
struct Tier<'a> {
    model: &'a Model,
    /// Columns worth opening, cheapest first.
    lean: Vec<usize>,
    /// All columns, cheapest first: limits may forbid the better ones.
    all: Vec<usize>,
    limits: Limits,
    ahead: LookAhead,
}

impl Tier<'_> {
    fn run(&mut self, packing: &mut Packing) {
        let mut left = std::mem::take(&mut packing.left);
        let lean = std::mem::take(&mut self.lean);
        self.greedy(&lean, &mut left, &mut packing.opened, LOOK_AHEAD_PODS);
        if self.limits.bind() && left.iter().any(|n| *n > 0) {
            // A limit may forbid the better columns and still leave room for a smaller one.
            let all = self.all.clone();
            self.greedy(&all, &mut left, &mut packing.opened, LOOK_AHEAD_PODS);
        }
        packing.left = left;
    }

    /// Opens nodes until nothing more can be placed; looks ahead once few pods are left.
    fn greedy(
        &mut self,
        candidates: &[usize],
        left: &mut [u32],
        opened: &mut Vec<Opened>,
        look_ahead: u32,
    ) {
        let mut best_end: Option<(Vec<Opened>, i128)> = None;
        let mut spent = 0;
        let start = opened.len();
        while let Some(first) = self.best_next(candidates, left) {
            let remaining: u32 = self.placeable(candidates, left).iter().sum();
            if let Some(end) = self.one_for_all(candidates, left) {
                let total = spent + self.outlay(&end);
                if best_end.as_ref().is_none_or(|(_, price)| total < *price) {
                    best_end =
                        Some((opened[start..].iter().cloned().chain([end]).collect(), total));
                }
            }
            let next = if remaining <= look_ahead {
                self.looked_ahead(candidates, left).unwrap_or(first)
            } else {
                first
            };
            spent += self.open_copies(&next, left, opened, remaining > look_ahead);
        }
        self.shrink(&mut opened[start..]);
        let total: i128 = opened[start..].iter().map(|node| self.outlay(node)).sum();
        if let Some((nodes, _)) = best_end.filter(|(_, price)| *price < total) {
            self.replace_end(opened, start, nodes, left);
        }
    }

    /// Swaps the nodes opened since `start` for a cheaper set that holds at least the same pods.
    fn replace_end(
        &mut self,
        opened: &mut Vec<Opened>,
        start: usize,
        nodes: Vec<Opened>,
        left: &mut [u32],
    ) {
        for node in opened.drain(start..) {
            self.limits.give_back(node.column);
            node.pods.iter().for_each(|(class, count)| left[*class] += count);
        }
        for node in nodes {
            self.limits.take(node.column);
            node.pods.iter().for_each(|(class, count)| left[*class] -= count);
            opened.push(node);
        }
    }

    /// Pods that some candidate takes.
    fn placeable(&self, candidates: &[usize], left: &[u32]) -> Vec<u32> {
        let takes = |class: usize| candidates.iter().any(|c| self.model.columns[*c].takes[class]);
        left.iter()
            .enumerate()
            .map(|(class, n)| if *n > 0 && takes(class) { *n } else { 0 })
            .collect()
    }

    /// Returns the candidate, filled, whose price is least for what its pods are worth.
    ///
    /// Every candidate is filled by value, which is quick; the best few are filled by shape too.
    fn best_next(&self, candidates: &[usize], left: &[u32]) -> Option<Opened> {
        let open = |c: &&usize| self.limits.allows(**c);
        let filled = candidates.iter().filter(open).map(|c| self.fill_by_value(*c, left));
        let mut filled: Vec<Opened> = filled.filter(|node| !node.pods.is_empty()).collect();
        let cost = |node: &Opened| self.model.outlay(node.column, &node.pods);
        let better =
            |a: &Opened, b: &Opened| (cost(a) * self.worth(b)).cmp(&(cost(b) * self.worth(a)));
        filled.sort_by(better);
        filled.truncate(SHAPED_MAX);
        let shaped: Vec<Opened> =
            filled.iter().map(|node| self.fill_by_shape(node.column, left)).collect();
        // Equal ones keep their order: the cheaper column, and by value before by shape.
        filled.into_iter().chain(shaped).reduce(|a, b| if better(&b, &a).is_lt() { b } else { a })
    }

    fn worth(&self, node: &Opened) -> i128 {
        let worth =
            |(class, count): (&usize, &u32)| self.model.classes[*class].worth * i128::from(*count);
        node.pods.iter().map(worth).sum::<i128>().max(1)
    }

    /// Returns the better of two fillings of a column: the most valuable pods first, and pods that
    /// use what the node has in the proportion in which it is left.
    fn filled(&self, column: usize, left: &[u32]) -> Option<Opened> {
        let by_value = self.fill_by_value(column, left);
        let by_shape = self.fill_by_shape(column, left);
        let best = if self.worth(&by_shape) > self.worth(&by_value) { by_shape } else { by_value };
        (!best.pods.is_empty()).then_some(best)
    }

    fn fill_by_value(&self, column: usize, left: &[u32]) -> Opened {
        let target = &self.model.columns[column];
        let mut filling = self.with_company(column, left);
        for class in self.model.order.iter().copied().filter(|c| left[*c] > 0 && target.takes[*c]) {
            if self.model.classes[class].is_single() {
                let rest = left[class] - filling.pods.get(&class).copied().unwrap_or(0);
                let count = filling.most(self.model, class, rest);
                filling.put(self.model, class, count);
            }
        }
        Opened { column, pods: filling.pods, offer: None }
    }

    /// Returns a node of the column with the pods that come with others: they find no place once a
    /// node is full of pods that come alone.
    fn with_company(&self, column: usize, left: &[u32]) -> Filling {
        let target = &self.model.columns[column];
        let mut filling = Filling::of(&target.room);
        for class in self.model.in_company.iter().copied() {
            if left[class] > 0 && target.takes[class] {
                filling.put_company(self.model, class, left, &target.takes);
            }
        }
        filling
    }

    /// Places step by step the class that best matches the proportions of what is left, a quarter
    /// of what fits at a time.
    fn fill_by_shape(&self, column: usize, left: &[u32]) -> Opened {
        let target = &self.model.columns[column];
        let mut filling = self.with_company(column, left);
        let single = |c: &usize| self.model.classes[*c].is_single();
        let usable = |c: &usize| left[*c] > 0 && target.takes[*c] && single(c);
        let mut classes: Vec<usize> = self.model.order.iter().copied().filter(usable).collect();
        thin_out(&mut classes);
        while !classes.is_empty() {
            let rest =
                |c: usize, filling: &Filling| left[c] - filling.pods.get(&c).copied().unwrap_or(0);
            classes.retain(|c| filling.most(self.model, *c, rest(*c, &filling).min(1)) == 1);
            let score =
                |c: &usize| alignment(&self.model.classes[*c].ask, &filling.room, &target.room);
            let Some(best) =
                classes.iter().copied().reduce(|a, b| if score(&b) > score(&a) { b } else { a })
            else {
                break;
            };
            let fits = filling.most(self.model, best, rest(best, &filling));
            filling.put(self.model, best, fits.div_ceil(4).max(1));
        }
        Opened { column, pods: filling.pods, offer: None }
    }

    /// Returns the cheapest candidate that takes everything that is left.
    fn one_for_all(&self, candidates: &[usize], left: &[u32]) -> Option<Opened> {
        let wanted = self.placeable(candidates, left);
        let pods: BTreeMap<usize, u32> =
            wanted.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
        let open = |c: &&usize| self.limits.allows(**c);
        let mut able = candidates.iter().copied().filter(|c| open(&c) && self.holds(*c, &pods));
        let column = if self.model.has_wishes {
            able.min_by_key(|c| (self.model.outlay(*c, &pods), *c))?
        } else {
            able.next()?
        };
        Some(Opened { column, pods, offer: None })
    }

    /// Returns whether one node of `column` holds all of `pods`.
    fn holds(&self, column: usize, pods: &BTreeMap<usize, u32>) -> bool {
        let target = &self.model.columns[column];
        holds(self.model, &target.room, &target.takes, pods)
    }

    /// Tries each candidate as the next node, the rest without looking ahead, and returns the next
    /// node of the cheapest end.
    fn looked_ahead(&self, candidates: &[usize], left: &[u32]) -> Option<Opened> {
        let pods: u32 = left.iter().sum();
        let work =
            candidates.len() * candidates.len() * usize::try_from(pods).unwrap_or(usize::MAX);
        if work > self.ahead.0 {
            return None;
        }
        let open = |c: &&usize| self.limits.allows(**c);
        let ends = candidates.iter().filter(open).filter_map(|c| {
            let next = self.filled(*c, left)?;
            let mut rest = left.to_vec();
            let mut limits = self.limits.clone();
            limits.take(*c);
            next.pods.iter().for_each(|(class, count)| rest[*class] -= count);
            let (model, all, ahead) = (self.model, self.all.clone(), self.ahead);
            let mut tier = Tier { model, lean: Vec::new(), all, limits, ahead };
            let mut opened = vec![next.clone()];
            tier.greedy(candidates, &mut rest, &mut opened, 0);
            tier.shrink(&mut opened);
            let price: i128 = opened.iter().map(|node| self.outlay(node)).sum();
            Some(((rest.iter().sum::<u32>(), price, opened.len()), next))
        });
        ends.reduce(|a, b| if b.0 < a.0 { b } else { a }).map(|(_, next)| next)
    }

    /// Opens `node`, and as many copies as the remaining pods fill alike if `many`; returns the
    /// price of all of them.
    fn open_copies(
        &mut self,
        node: &Opened,
        left: &mut [u32],
        opened: &mut Vec<Opened>,
        many: bool,
    ) -> i128 {
        let mut price = 0;
        loop {
            self.limits.take(node.column);
            node.pods.iter().for_each(|(class, count)| left[*class] -= count);
            price += self.outlay(node);
            opened.push(node.clone());
            let again = node.pods.iter().all(|(class, count)| left[*class] >= *count);
            if !(many && again && self.limits.allows(node.column)) {
                return price;
            }
        }
    }

    /// What a node costs, with what it costs to go against the wishes of its pods.
    fn outlay(&self, node: &Opened) -> i128 {
        self.model.outlay(node.column, &node.pods)
    }

    /// Gives each node the cheapest column that holds its pods.
    fn shrink(&mut self, opened: &mut [Opened]) {
        for node in opened {
            let outlay = self.outlay(node);
            let dearer =
                |c: &&usize| self.model.columns[**c].price < self.model.columns[node.column].price;
            let allowed = |c: &&usize| self.limits.allows_swap(node.column, **c);
            let cheaper = self.all.iter().take_while(|c| dearer(c)).filter(allowed);
            let saves = |c: &usize| {
                self.holds(*c, &node.pods) && self.model.outlay(*c, &node.pods) < outlay
            };
            let found = cheaper.copied().find(saves);
            if let Some(column) = found {
                self.limits.give_back(node.column);
                self.limits.take(column);
                node.column = column;
            }
        }
    }
}

/// Leaves at most [`SHAPED_CLASSES_MAX`] classes, evenly from the most valuable to the least.
fn thin_out(classes: &mut Vec<usize>) {
    let step = classes.len().div_ceil(SHAPED_CLASSES_MAX).max(1);
    if step > 1 {
        *classes = classes.iter().copied().step_by(step).collect();
    }
}

/// How well `ask` matches what is left: the dot product of the pod's and the remainder's shares of
/// the node, over the length of the pod's, in fixed point.
fn alignment(ask: &[i64], room: &[i64], whole: &[i64]) -> i128 {
    const ONE: i128 = 1 << 20;
    let share = |part: i64, whole: i64| i128::from(part.max(0)) * ONE / i128::from(whole.max(1));
    let (mut product, mut length) = (0_i128, 1_i128);
    for ((asked, free), whole) in ask.iter().zip(room).zip(whole) {
        let (pod, rest) = (share(*asked, *whole), share(*free, *whole));
        product += pod * rest;
        length += pod * pod;
    }
    product * product / length
}
