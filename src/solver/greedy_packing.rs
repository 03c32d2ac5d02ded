//! Greedy packing of pods onto new nodes, guided by pod values, with look-ahead.
//!
//! Each step opens the node with the lowest price for the value of its pods, and repeats it while
//! the same pods fill it. Before every step the packing also tries to end with the one cheapest
//! node that holds all remaining pods. Small remainders are searched with each offer class as the
//! next node, because for few pods the last node decides the price.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::limits::RemainingLimits;
use super::node_packing::{NodePacking, PodSet};
use super::packing_model::PackingModel;
use super::pod_ranks::PodRanks;
use crate::model::units::MicroUsd;

/// Maximum pods for which every offer class is tried as the next node.
const LOOK_AHEAD_PODS: u32 = 64;

/// Offer classes that one step fills by shape as well as by value.
const SHAPED_MAX: usize = 4;

/// Maximum classes that filling by shape chooses from.
const SHAPED_CLASSES_MAX: usize = 96;

/// A new node and its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PackedNode {
    /// Index of the offer class.
    pub offer_class: usize,
    pub pods: BTreeMap<usize, u32>,
    /// The offer of the class, if only one is suitable.
    pub offer: Option<usize>,
}

/// New nodes and the pods that remain.
#[derive(Debug, Clone, Default)]
pub(super) struct Packing {
    pub new_nodes: Vec<PackedNode>,
    /// Pods by class that no node holds.
    pub left: Vec<u32>,
}

impl Packing {
    /// Returns the price per hour of the nodes.
    pub(super) fn price(&self, model: &PackingModel) -> MicroUsd {
        self.new_nodes.iter().map(|node| model.offer_classes[node.offer_class].price).sum()
    }

    /// Returns the number of remaining pods.
    pub(super) fn left_over(&self) -> u64 {
        self.left.iter().map(|n| u64::from(*n)).sum()
    }

    /// Returns true if no class has more remaining pods than in `other`.
    pub(super) fn leaves_no_more_than(&self, other: &Self) -> bool {
        self.left.iter().zip(&other.left).all(|(mine, theirs)| mine <= theirs)
    }
}

/// Work limits of the look-ahead. Work is counted, so that the result does not depend on the speed of
/// the computer.
#[derive(Debug, Clone, Copy)]
pub(super) struct LookAhead {
    /// Maximum of one look-ahead: offer classes squared times pods.
    step_max: usize,
    /// Maximum of all look-ahead of one packing: classes and their rules, tried on offer classes.
    /// Pods that each exclude many others would otherwise take minutes. 20 million take half a
    /// second. Trees of 100 pods with many rules need up to 15 million.
    total_max: u64,
}

impl LookAhead {
    /// Limits for the packing of a fleet. A plan makes some thirty of them.
    pub(super) const DEEP: Self = Self { step_max: 1_280_000, total_max: 20_000_000 };
    /// Limits for one of hundreds of candidate packings: enough for a handful of pods.
    pub(super) const SHALLOW: Self = Self { step_max: 80_000, total_max: 500_000 };
}

/// Packs `wanted` pods by class onto new nodes, in pools of descending weight.
pub(super) fn pack_greedily(
    model: &PackingModel,
    wanted: &[u32],
    limits: &RemainingLimits,
    ahead: LookAhead,
) -> Packing {
    pack(model, wanted, limits, ahead, None)
}

/// Packs as [`pack_greedily`] does, and counts the pods of each priority in place of their values.
pub(super) fn pack_most_pods(
    model: &PackingModel,
    wanted: &[u32],
    limits: &RemainingLimits,
    ahead: LookAhead,
    ranks: &PodRanks,
) -> Packing {
    pack(model, wanted, limits, ahead, Some(ranks))
}

fn pack(
    model: &PackingModel,
    wanted: &[u32],
    limits: &RemainingLimits,
    ahead: LookAhead,
    ranks: Option<&PodRanks>,
) -> Packing {
    let mut limits = limits.clone();
    let beyond = beyond_one_node(model, wanted);
    let left = wanted.iter().zip(&beyond).map(|(wanted, beyond)| wanted - beyond).collect();
    let mut packing = Packing { new_nodes: Vec::new(), left };
    let mut weights: Vec<u32> =
        model.offer_classes.iter().map(|offer_class| offer_class.weight).collect();
    weights.sort_unstable_by(|a, b| b.cmp(a));
    weights.dedup();
    let work = Cell::new(0);
    for weight in weights {
        if packing.left_over() == 0 {
            break;
        }
        let of_weight = |i: &usize| model.offer_classes[*i].weight == weight;
        let undominated: Vec<usize> = model.undominated.iter().copied().filter(of_weight).collect();
        let all: Vec<usize> = (0..model.offer_classes.len()).filter(of_weight).collect();
        let limits_before = limits.clone();
        let mut tier = WeightTier {
            model,
            undominated: &undominated,
            all: &all,
            limits: limits_before,
            ahead,
            work: &work,
            ends: &RefCell::default(),
            ranks,
        };
        tier.run(&mut packing);
        limits = tier.limits;
    }
    packing.left.iter_mut().zip(beyond).for_each(|(left, beyond)| *left += beyond);
    packing
}

/// Returns, for each class that must share one node, the pods that exceed every node.
fn beyond_one_node(model: &PackingModel, wanted: &[u32]) -> Vec<u32> {
    let beyond = |(class, wanted): (usize, &u32)| {
        if !model.classes[class].is_colocated {
            return 0;
        }
        let able = model.offer_classes.iter().filter(|offer_class| offer_class.admits[class]);
        let most = able.map(|offer_class| model.copies(class, &offer_class.room, *wanted)).max();
        wanted - most.unwrap_or(*wanted)
    };
    wanted.iter().enumerate().map(beyond).collect()
}

/// A filled node, with its cost and the values of its pods. The values of lower priorities decide
/// only among equals.
struct ValuedNode {
    node: PackedNode,
    cost: i128,
    values: Vec<i128>,
}

impl ValuedNode {
    /// Compares the prices for the values of the pods.
    fn cmp_price(&self, other: &Self) -> Ordering {
        let values = self.values.iter().zip(&other.values);
        let mut orders =
            values.map(|(mine, theirs)| (self.cost * theirs).cmp(&(other.cost * mine)));
        orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }
}

/// The nodes for the last pods of a packing.
#[derive(Clone)]
struct PackedEnd {
    /// Remaining pods, as [`WeightTier::count_left`] counts them.
    left: Vec<u64>,
    cost: i128,
    nodes: usize,
    /// Work of the packing.
    work: u64,
}

impl PackedEnd {
    /// Returns this end after the nodes of another, with the pods that this one leaves.
    fn after(self, first: &Self) -> Self {
        let (cost, nodes) = (self.cost + first.cost, self.nodes + first.nodes);
        Self { cost, nodes, ..self }
    }
}

/// Offer classes of one pool weight.
#[derive(Clone)]
struct WeightTier<'a> {
    model: &'a PackingModel,
    /// Undominated offer classes, the cheapest first.
    undominated: &'a [usize],
    /// All offer classes, the cheapest first. Limits may forbid the undominated ones.
    all: &'a [usize],
    limits: RemainingLimits,
    ahead: LookAhead,
    /// Work of the packing so far.
    work: &'a Cell<u64>,
    /// Ends that the look-ahead packed from undominated offer classes without limits, by the pods
    /// of each class. Most next nodes leave the same few pods.
    ends: &'a RefCell<BTreeMap<Vec<u32>, PackedEnd>>,
    /// Values of the pods other than those of the model.
    ranks: Option<&'a PodRanks>,
}

impl WeightTier<'_> {
    /// Counts a try of a class with its rules.
    fn count(&self, class: usize) {
        self.count_work(self.model.work_of(class));
    }

    fn count_work(&self, work: u64) {
        self.work.set(self.work.get().saturating_add(work));
    }

    /// Returns true if no work is left for look-ahead.
    fn is_exhausted(&self) -> bool {
        self.work.get() > self.ahead.total_max
    }

    /// Returns the offer classes for which the limits allow another node.
    fn allowed<'c>(&'c self, candidates: &'c [usize]) -> impl Iterator<Item = usize> + 'c {
        candidates.iter().copied().filter(|class| self.limits.allows(*class))
    }

    fn run(&mut self, packing: &mut Packing) {
        let mut left = std::mem::take(&mut packing.left);
        self.greedy(self.undominated, &mut left, &mut packing.new_nodes, LOOK_AHEAD_PODS);
        if self.limits.has_limits() && left.iter().any(|n| *n > 0) {
            // A limit may forbid the better offer classes and still allow a smaller one.
            self.greedy(self.all, &mut left, &mut packing.new_nodes, LOOK_AHEAD_PODS);
        }
        packing.left = left;
    }

    /// Opens nodes until no further pod can be placed. Looks ahead once at most `look_ahead` pods
    /// remain.
    fn greedy(
        &mut self,
        candidates: &[usize],
        left: &mut [u32],
        new_nodes: &mut Vec<PackedNode>,
        look_ahead: u32,
    ) {
        let width = candidates.len();
        let admits = |c: &usize| self.model.offer_classes[*c].admits_any(left);
        let candidates = &candidates.iter().copied().filter(admits).collect::<Vec<_>>()[..];
        let mut best_end: Option<(Vec<PackedNode>, i128)> = None;
        let mut spent = 0;
        let start = new_nodes.len();
        while let Some(first) = self.best_next(candidates, left) {
            let remaining: u32 = self.placeable(candidates, left).iter().sum();
            if let Some(end) = self.single_node_for_all(candidates, left) {
                let total = spent + self.cost(&end);
                if best_end.as_ref().is_none_or(|(_, price)| total < *price) {
                    best_end =
                        Some((new_nodes[start..].iter().cloned().chain([end]).collect(), total));
                }
            }
            let next = if remaining <= look_ahead {
                self.look_ahead(candidates, width, left).unwrap_or(first)
            } else {
                first
            };
            spent += self.open_copies(&next, left, new_nodes, remaining > look_ahead);
        }
        self.downsize(&mut new_nodes[start..]);
        let total: i128 = new_nodes[start..].iter().map(|node| self.cost(node)).sum();
        if let Some((nodes, _)) = best_end.filter(|(_, price)| *price < total) {
            self.replace_tail(new_nodes, start, nodes, left);
        }
    }

    /// Replaces the nodes added since `start` by a cheaper set that holds at least the same pods.
    fn replace_tail(
        &mut self,
        new_nodes: &mut Vec<PackedNode>,
        start: usize,
        nodes: Vec<PackedNode>,
        left: &mut [u32],
    ) {
        for node in new_nodes.drain(start..) {
            self.limits.remove_node(node.offer_class);
            node.pods.iter().for_each(|(class, count)| left[*class] += count);
        }
        for node in nodes {
            self.limits.add_node(node.offer_class);
            node.pods.iter().for_each(|(class, count)| left[*class] -= count);
            new_nodes.push(node);
        }
    }

    /// Returns the pods by class that some candidate admits.
    fn placeable(&self, candidates: &[usize], left: &[u32]) -> Vec<u32> {
        let is_admitted =
            |class: usize| candidates.iter().any(|c| self.model.offer_classes[*c].admits[class]);
        left.iter()
            .enumerate()
            .map(|(class, n)| if *n > 0 && is_admitted(class) { *n } else { 0 })
            .collect()
    }

    /// Returns the filled candidate with the lowest price for the value of its pods.
    ///
    /// Every candidate is filled by value, which is quick. The best few are filled by shape as
    /// well.
    fn best_next(&self, candidates: &[usize], left: &[u32]) -> Option<PackedNode> {
        let filled = self.allowed(candidates).map(|class| self.fill_by_value(class, left));
        let filled = filled.filter(|node| !node.pods.is_empty()).map(|node| self.valued(node));
        let mut filled: Vec<ValuedNode> = filled.collect();
        filled.sort_by(ValuedNode::cmp_price);
        filled.truncate(SHAPED_MAX);
        let by_shape =
            |valued: &ValuedNode| self.valued(self.fill_by_shape(valued.node.offer_class, left));
        let shaped: Vec<ValuedNode> = filled.iter().map(by_shape).collect();
        // Equal nodes keep their order: the cheaper offer class first, and by value before by
        // shape.
        let all = filled.into_iter().chain(shaped);
        let best = all.reduce(|a, b| if b.cmp_price(&a).is_lt() { b } else { a });
        best.map(|best| best.node)
    }

    fn valued(&self, node: PackedNode) -> ValuedNode {
        let cost = self.cost(&node);
        // A node of no cost would equal every node in the priorities that it has no pods of.
        let cost = if self.ranks.is_some() { cost.max(1) } else { cost };
        ValuedNode { cost, values: self.values(&node), node }
    }

    /// Returns the pod classes in the order in which they fill a node.
    fn order(&self) -> &[usize] {
        self.ranks.map_or(&self.model.by_value, |ranks| &ranks.order)
    }

    /// Returns the value of the pods of a node; with ranks, the number of pods of each priority.
    fn values(&self, node: &PackedNode) -> Vec<i128> {
        if let Some(ranks) = self.ranks {
            let pods = node.pods.iter().map(|(class, count)| (*class, *count));
            return ranks.by_priority(pods).into_iter().map(i128::from).collect();
        }
        let value =
            |(class, count): (&usize, &u32)| self.model.classes[*class].value * i128::from(*count);
        vec![node.pods.iter().map(value).sum::<i128>().max(1)]
    }

    /// Returns the number of remaining pods; with ranks, that of each priority.
    fn count_left(&self, left: &[u32]) -> Vec<u64> {
        match self.ranks {
            Some(ranks) => ranks.by_priority(left.iter().copied().enumerate()),
            None => vec![left.iter().map(|pods| u64::from(*pods)).sum()],
        }
    }

    /// Returns the more valuable of two nodes: filled by value, and filled by shape.
    fn best_fill(&self, offer_class: usize, left: &[u32]) -> Option<PackedNode> {
        let by_value = self.fill_by_value(offer_class, left);
        let by_shape = self.fill_by_shape(offer_class, left);
        let is_better = self.values(&by_shape) > self.values(&by_value);
        let best = if is_better { by_shape } else { by_value };
        (!best.pods.is_empty()).then_some(best)
    }

    fn fill_by_value(&self, offer_class: usize, left: &[u32]) -> PackedNode {
        let empty = &self.model.offer_classes[offer_class];
        let mut node = self.with_companions(offer_class, left);
        for class in self.order().iter().copied().filter(|c| left[*c] > 0 && empty.admits[*c]) {
            if self.model.classes[class].is_independent() {
                self.count(class);
                let rest = left[class] - node.pods.get(&class).copied().unwrap_or(0);
                let count = node.max_more(self.model, class, rest);
                node.add(self.model, class, count);
            }
        }
        PackedNode { offer_class, pods: node.pods, offer: None }
    }

    /// Returns a node with the classes that need companions. They rarely fit once other pods fill
    /// the node.
    fn with_companions(&self, offer_class: usize, left: &[u32]) -> NodePacking {
        let empty = &self.model.offer_classes[offer_class];
        let mut node = NodePacking::new(&empty.room);
        for class in self.model.with_companions.iter().copied() {
            if left[class] > 0 && empty.admits[class] {
                node.add_with_companions(self.model, class, left, &empty.admits);
            }
        }
        node
    }

    /// Repeatedly adds the class that best matches the proportions of the remaining room. Each step
    /// adds a quarter of the pods that fit.
    fn fill_by_shape(&self, offer_class: usize, left: &[u32]) -> PackedNode {
        let empty = &self.model.offer_classes[offer_class];
        let mut node = self.with_companions(offer_class, left);
        let independent = |c: &usize| self.model.classes[*c].is_independent();
        let usable = |c: &usize| left[*c] > 0 && empty.admits[*c] && independent(c);
        let mut classes: Vec<usize> = self.order().iter().copied().filter(usable).collect();
        thin_out(&mut classes);
        while !classes.is_empty() {
            for class in &classes {
                self.count(*class);
            }
            let rest =
                |c: usize, node: &NodePacking| left[c] - node.pods.get(&c).copied().unwrap_or(0);
            classes.retain(|c| node.max_more(self.model, *c, rest(*c, &node).min(1)) == 1);
            let score =
                |c: &usize| alignment(&self.model.classes[*c].requests, &node.room, &empty.room);
            let Some(best) =
                classes.iter().copied().reduce(|a, b| if score(&b) > score(&a) { b } else { a })
            else {
                break;
            };
            let fits = node.max_more(self.model, best, rest(best, &node));
            node.add(self.model, best, fits.div_ceil(4).max(1));
        }
        PackedNode { offer_class, pods: node.pods, offer: None }
    }

    /// Returns the cheapest candidate that holds all remaining pods.
    fn single_node_for_all(&self, candidates: &[usize], left: &[u32]) -> Option<PackedNode> {
        let wanted = self.placeable(candidates, left);
        let pods: BTreeMap<usize, u32> =
            wanted.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
        let all = PodSet::new(self.model, &pods);
        let mut able = self.allowed(candidates).filter(|class| self.holds(*class, &all));
        let offer_class = if self.model.has_preferences {
            able.min_by_key(|c| (self.model.effective_cost(*c, &pods), *c))?
        } else {
            able.next()?
        };
        Some(PackedNode { offer_class, pods, offer: None })
    }

    /// Returns true if one node of the offer class holds all of `pods`.
    fn holds(&self, offer_class: usize, pods: &PodSet) -> bool {
        let empty = &self.model.offer_classes[offer_class];
        self.count_work(pods.work);
        pods.fits(&empty.room, &empty.admits)
    }

    /// Tries each candidate as the next node and packs the rest without look-ahead. Returns the
    /// next node of the cheapest result. `width` counts the candidates with those that admit none
    /// of the pods.
    fn look_ahead(&self, candidates: &[usize], width: usize, left: &[u32]) -> Option<PackedNode> {
        let pods: u32 = left.iter().sum();
        let work = width * width * usize::try_from(pods).unwrap_or(usize::MAX);
        if work > self.ahead.step_max || self.is_exhausted() {
            return None;
        }
        let ends = self.allowed(candidates).take_while(|_| !self.is_exhausted());
        let ends = ends.filter_map(|class| {
            let next = self.best_fill(class, left)?;
            let mut rest = left.to_vec();
            next.pods.iter().for_each(|(class, count)| rest[*class] -= count);
            let mut tier = self.clone();
            tier.limits.add_node(class);
            let end = if tier.limits.has_limits() {
                tier.pack_end(candidates, vec![next.clone()], rest)
            } else {
                // Each node is then downsized by itself.
                let first = tier.pack_end(&[], vec![next.clone()], vec![0; left.len()]);
                tier.known_end(candidates, rest).after(&first)
            };
            Some(((end.left, end.cost, end.nodes), next))
        });
        let best = ends.reduce(|a, b| if b.0 < a.0 { b } else { a }).map(|(_, next)| next);
        // Some candidates alone say nothing about the rest.
        best.filter(|_| !self.is_exhausted())
    }

    /// Packs the pods of `left` without look-ahead on nodes after `new_nodes`, and downsizes all.
    fn pack_end(
        &mut self,
        candidates: &[usize],
        mut new_nodes: Vec<PackedNode>,
        mut left: Vec<u32>,
    ) -> PackedEnd {
        let before = self.work.get();
        self.greedy(candidates, &mut left, &mut new_nodes, 0);
        self.downsize(&mut new_nodes);
        PackedEnd {
            left: self.count_left(&left),
            cost: new_nodes.iter().map(|node| self.cost(node)).sum(),
            nodes: new_nodes.len(),
            work: self.work.get().saturating_sub(before),
        }
    }

    /// Returns what [`Self::pack_end`] returns for these pods, and counts the same work. Nothing is
    /// limited, so that the pods alone decide the end.
    fn known_end(&mut self, candidates: &[usize], left: Vec<u32>) -> PackedEnd {
        if let Some(end) = self.ends.borrow().get(&left) {
            self.count_work(end.work);
            return end.clone();
        }
        let end = self.pack_end(candidates, Vec::new(), left.clone());
        self.ends.borrow_mut().insert(left, end.clone());
        end
    }

    /// Opens `node`. With `many`, repeats it while the remaining pods fill it. Returns the total
    /// cost.
    fn open_copies(
        &mut self,
        node: &PackedNode,
        left: &mut [u32],
        new_nodes: &mut Vec<PackedNode>,
        many: bool,
    ) -> i128 {
        let mut price = 0;
        loop {
            self.limits.add_node(node.offer_class);
            node.pods.iter().for_each(|(class, count)| left[*class] -= count);
            price += self.cost(node);
            new_nodes.push(node.clone());
            let again = node.pods.iter().all(|(class, count)| left[*class] >= *count);
            if !(many && again && self.limits.allows(node.offer_class)) {
                return price;
            }
        }
    }

    /// Returns the price of a node plus the penalty for unmet preferences.
    fn cost(&self, node: &PackedNode) -> i128 {
        self.model.effective_cost(node.offer_class, &node.pods)
    }

    /// Changes each node to the cheapest offer class that holds its pods.
    fn downsize(&mut self, new_nodes: &mut [PackedNode]) {
        for node in new_nodes {
            let outlay = self.cost(node);
            let is_cheaper = |c: &&usize| {
                self.model.offer_classes[**c].price
                    < self.model.offer_classes[node.offer_class].price
            };
            let allowed = |c: &&usize| self.limits.allows_swap(node.offer_class, **c);
            let cheaper = self.all.iter().take_while(|c| is_cheaper(c)).filter(allowed);
            let pods = PodSet::new(self.model, &node.pods);
            let saves = |c: &usize| {
                self.holds(*c, &pods) && self.model.effective_cost(*c, &node.pods) < outlay
            };
            let found = cheaper.copied().find(saves);
            if let Some(offer_class) = found {
                self.limits.remove_node(node.offer_class);
                self.limits.add_node(offer_class);
                node.offer_class = offer_class;
            }
        }
    }
}

/// Retains at most [`SHAPED_CLASSES_MAX`] classes, evenly from the most to the least valuable.
fn thin_out(classes: &mut Vec<usize>) {
    let step = classes.len().div_ceil(SHAPED_CLASSES_MAX).max(1);
    if step > 1 {
        *classes = classes.iter().copied().step_by(step).collect();
    }
}

/// Returns how well a request matches the remaining room, in fixed point: the squared dot product
/// of their shares of the node, divided by the squared length of the request.
fn alignment(request: &[i64], room: &[i64], whole: &[i64]) -> i128 {
    const ONE: i128 = 1 << 20;
    let share = |part: i64, whole: i64| i128::from(part.max(0)) * ONE / i128::from(whole.max(1));
    let (mut product, mut length) = (0_i128, 1_i128);
    for ((requested, free), whole) in request.iter().zip(room).zip(whole) {
        let (pod, rest) = (share(*requested, *whole), share(*free, *whole));
        product += pod * rest;
        length += pod * pod;
    }
    product * product / length
}

#[cfg(test)]
mod tests;
