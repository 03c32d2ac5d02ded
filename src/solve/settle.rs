//! From a packing to a fleet that every run of the rehearsal passes.
//!
//! Three ways, and the cheapest that passes wins: the packing as it is; one shape of node for all
//! pods that are not on standing nodes, as many as it takes; the packing with nodes added for what
//! was left over. Work is counted in pods times nodes, so that the result does not depend on the
//! machine; the count only ever ends the search for something cheaper.

use super::layout::Layout;
use super::pack::{Opened, pack};
use super::rehearse::{Placements, Settled, Stage, Verdict, planned_pods};
use super::shape::{Shape, shapes};
use super::target::Place;
use crate::demand::PodGroup;
use crate::units::MicroUsd;

/// Times that nodes are added for what was left over; each time for twice as much of it.
const REPAIRS_MAX: u32 = 10;

/// Shapes that are tried as the only one.
const SHAPES_MAX: usize = 10;

/// Nodes that one shape may need beyond its tightest count, in percent and at least.
const SPARE_PERCENT: usize = 25;
const SPARE_MIN: usize = 3;

/// Pods times nodes after which nothing cheaper is looked for.
const WORK_MAX: u64 = 25_000_000;

/// Pods times nodes of one run above which no repair of the packing is tried beside one shape.
const LARGE_RUN: u64 = 500_000;

/// Pods up to which a plan is rehearsed; above, it says that it was not.
const REHEARSED_PODS_MAX: u64 = 300_000;

impl Stage<'_> {
    /// Returns `layout` with whatever nodes it takes for every run to find each pod a place.
    pub(super) fn settle(&self, layout: &Layout) -> Settled {
        let packed = layout.price;
        if !is_rehearsed(self.groups) {
            return self.as_packed(layout);
        }
        self.work.set(0);
        if let Verdict::Passed(settled) = self.rehearse(layout) {
            return settled;
        }
        let shape = self.best_shape(layout);
        let best = match shape {
            Some(shape) if self.work.get() > WORK_MAX || is_large(self.groups, &shape) => shape,
            Some(shape) => self.repaired(layout, Some(shape.layout.price)).unwrap_or(shape),
            None => self.repaired(layout, None).unwrap_or_else(|| self.as_far_as_possible(layout)),
        };
        Settled { packed, ..best }
    }

    /// Adds nodes for what is left over until nothing is; `None` when the price reaches `cap`, or
    /// when nothing more can be had.
    ///
    /// The scheduler spreads pods over new nodes as well, so that adding just enough may go on for
    /// ever: each round adds room for twice as much of what was left as the one before.
    fn repaired(&self, layout: &Layout, cap: Option<MicroUsd>) -> Option<Settled> {
        let mut layout = layout.clone();
        for round in 0..REPAIRS_MAX {
            let left = match self.rehearse(&layout) {
                Verdict::Passed(settled) => return Some(settled),
                Verdict::Left(left) => left,
            };
            let grown: Vec<u32> = left.iter().map(|n| n.saturating_mul(1 << round)).collect();
            let limits = self.ground.limits_after(&layout.packing.opened);
            let more = pack(self.ground.model, &grown, &limits);
            if more.opened.is_empty() {
                return None;
            }
            layout.price += more.price(self.ground.model);
            layout.packing.opened.extend(more.opened);
            if cap.is_some_and(|cap| layout.price >= cap) {
                return None;
            }
        }
        None
    }

    /// Returns the cheapest fleet in which all new nodes are of one shape.
    fn best_shape(&self, layout: &Layout) -> Option<Settled> {
        let model = self.ground.model;
        let wanted = pods_of(&layout.packing.opened, model.classes.len());
        let rest = layout.price - layout.packing.price(model);
        // Pods go to the pool of the highest weight that can hold them: another weight is no way out.
        let mut weights = layout.packing.opened.iter().map(|n| model.columns[n.column].weight);
        let weight = weights.next()?;
        if weights.any(|other| other != weight) {
            return None;
        }
        let shapes = shapes(model, self.offers).into_iter();
        let able =
            shapes.filter(|shape| shape.weight(model) == weight && shape.takes_all(model, &wanted));
        let mut shapes: Vec<(MicroUsd, usize, Shape)> = able
            .map(|shape| {
                let least = shape.least_nodes(model, &wanted);
                let count = i64::try_from(least).unwrap_or(i64::MAX);
                (rest + shape.price(model).times(count), least, shape)
            })
            .collect();
        shapes.sort();
        shapes.truncate(SHAPES_MAX);
        let mut best: Option<Settled> = None;
        for (price, least, shape) in shapes {
            let cap = best.as_ref().map(|settled| settled.layout.price);
            if best.is_some() && (self.work.get() > WORK_MAX || cap.is_some_and(|cap| price >= cap))
            {
                break;
            }
            best = self.enough_of(layout, (&shape, least), (rest, cap)).or(best);
        }
        best
    }

    /// Adds nodes of the shape until every run passes; gives up when the price reaches `cap`.
    fn enough_of(
        &self,
        layout: &Layout,
        (shape, least): (&Shape, usize),
        (rest, cap): (MicroUsd, Option<MicroUsd>),
    ) -> Option<Settled> {
        let model = self.ground.model;
        let wanted = pods_of(&layout.packing.opened, model.classes.len());
        let most = least.saturating_add(SPARE_MIN.max(least / 100 * SPARE_PERCENT));
        let mut count = least;
        while count <= most {
            let price = i64::try_from(count).map(|n| shape.price(model).times(n));
            let price = rest + price.unwrap_or(MicroUsd(i64::MAX));
            if cap.is_some_and(|cap| price >= cap) {
                return None;
            }
            let mut trial = layout.clone();
            trial.packing.opened = shape.nodes(model, &wanted, count);
            trial.price = price;
            if !self.ground.within_limits(&trial.packing.opened) {
                return None;
            }
            match self.rehearse(&trial) {
                Verdict::Passed(settled) => return Some(settled),
                Verdict::Left(left) => {
                    count += shape.least_nodes(model, &left).max(1 + count / 50);
                }
            }
        }
        None
    }

    /// Takes the packing's word for where pods go.
    fn as_packed(&self, layout: &Layout) -> Settled {
        let offers = self.choose_offers(layout);
        let unplaced = self.unplaced(layout, &self.staying(layout));
        let mut placements = Placements::new();
        for (index, class) in self.ground.model.classes.iter().enumerate() {
            let standing = self.ground.standing.iter().zip(&layout.on);
            let on_nodes = standing
                .filter_map(|(node, on)| Some((Place::Node(node.name.clone()), *on.get(&index)?)));
            let opened = layout.packing.opened.iter().enumerate();
            let on_new =
                opened.filter_map(|(at, node)| Some((Place::Launch(at), *node.pods.get(&index)?)));
            let mut free: Vec<(Place, u32)> = on_nodes.chain(on_new).collect();
            let mut wanted: Vec<(usize, u32)> = Vec::new();
            for (group, planned) in &class.lots {
                let without = unplaced.get(group).copied().unwrap_or(0);
                wanted.push((*group, planned.saturating_sub(without)));
            }
            // First where a group's pods run, then anywhere.
            for stay in [true, false] {
                for (group, wanted) in &mut wanted {
                    let running = &self.groups[*group].running;
                    let places = placements.entry(*group).or_default();
                    for (place, room) in &mut free {
                        let most = match (&*place, stay) {
                            (_, false) => u32::MAX,
                            (Place::Node(name), true) => running.get(name).copied().unwrap_or(0),
                            (Place::Launch(_), true) => 0,
                        };
                        let count = (*wanted).min(*room).min(most);
                        if count > 0 {
                            *places.entry(place.clone()).or_insert(0) += count;
                        }
                        *room -= count;
                        *wanted -= count;
                    }
                }
            }
        }
        Settled { layout: layout.clone(), offers, placements, unplaced, packed: layout.price }
    }
}

/// Returns whether one run over the fleet is so much work that one shape that holds is good enough.
fn is_large(groups: &[PodGroup], settled: &Settled) -> bool {
    let nodes = u64::try_from(settled.offers.len()).unwrap_or(u64::MAX);
    planned_pods(groups).saturating_mul(nodes) > LARGE_RUN
}

/// Returns whether these pods are few enough to be rehearsed.
pub(super) fn is_rehearsed(groups: &[PodGroup]) -> bool {
    planned_pods(groups) <= REHEARSED_PODS_MAX
}

/// Pods by class on these nodes.
fn pods_of(opened: &[Opened], classes: usize) -> Vec<u32> {
    let mut pods = vec![0; classes];
    for (class, count) in opened.iter().flat_map(|node| &node.pods) {
        pods[*class] += count;
    }
    pods
}
