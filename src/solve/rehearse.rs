//! The rehearsal: would kube-scheduler, which scores and spreads, find every pod a place?
//!
//! A packing says that the pods fit; the scheduler decides where they go. Here the model of the
//! scheduler places the pods on the planned nodes in several orders. Where it leaves pods over, the
//! fleet is repaired: nodes for what was left over, or one shape of node for all, whichever is
//! cheaper, until every order passes.

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use super::layout::{Ground, Layout};
use super::model::copies;
use super::offer::{Offer, admits_daemon};
use super::pack::{Opened, pack};
use super::standing::zone_of;
use super::target::Place;
use crate::demand::{Daemon, PodGroup};
use crate::ids::{Labels, Namespace, NodeName, ZoneName};
use crate::requirement::{key, label};
use crate::schedule::{ClassIndex, NodeIndex, ScheduleNode, Scheduler};
use crate::units::MicroUsd;

/// Times that nodes are added for what was left over, before the last word is "no place".
const REPAIRS_MAX: usize = 24;

/// Shapes that are tried as the only one.
const SHAPES_MAX: usize = 6;

/// Nodes that one shape may need beyond its tightest count, in percent and at least.
const SPARE_PERCENT: usize = 12;
const SPARE_MIN: usize = 2;

/// The orders in which pods come to the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// By namespace and name, as a delivery tool applies them.
    Declared,
    /// The pods that are worth most first.
    LargestFirst,
    /// The pods that are worth least first.
    SmallestFirst,
    /// At random, from this seed.
    Shuffled(u64),
}

const ORDERS: [Order; 4] =
    [Order::Declared, Order::LargestFirst, Order::SmallestFirst, Order::Shuffled(1)];

impl Order {
    fn name(self) -> String {
        match self {
            Self::Declared => "declared".to_owned(),
            Self::LargestFirst => "largest-first".to_owned(),
            Self::SmallestFirst => "smallest-first".to_owned(),
            Self::Shuffled(seed) => format!("shuffled-{seed}"),
        }
    }
}

/// Names of the orders that every plan is rehearsed in.
pub(super) fn order_names() -> Vec<String> {
    ORDERS.iter().map(|order| order.name()).collect()
}

/// What the rehearsal needs beside the problem in numbers.
pub(super) struct Stage<'a> {
    pub ground: Ground<'a>,
    pub groups: &'a [PodGroup],
    pub daemons: &'a [Daemon],
    pub offers: &'a [Offer],
    pub namespaces: &'a BTreeMap<Namespace, Labels>,
}

/// Where pods of each group are.
pub(super) type Placements = BTreeMap<usize, BTreeMap<Place, u32>>;

/// A layout that every order of the rehearsal confirmed.
#[derive(Debug, Clone)]
pub(super) struct Settled {
    /// The layout, with the nodes that the rehearsal made necessary.
    pub layout: Layout,
    /// The offer of each new node.
    pub offers: Vec<usize>,
    /// Where the pods went in the first order.
    pub placements: Placements,
    /// Pods by group that have no place.
    pub unplaced: BTreeMap<usize, u32>,
    /// Price per hour of the packing before any repair.
    pub packed: MicroUsd,
}

/// What one order came to: where pods went, and how many of each group found no place.
struct Performance {
    placements: Placements,
    left: BTreeMap<usize, u32>,
}

impl Stage<'_> {
    /// Returns `layout` with whatever nodes it takes for every order to find each pod a place.
    pub(super) fn settle(&self, layout: &Layout) -> Settled {
        let packed = layout.price;
        let repaired = self.repaired(layout.clone());
        let passes =
            |settled: &Settled| settled.layout.packing.left_over() == layout.packing.left_over();
        if passes(&repaired) && repaired.layout.price == packed {
            return Settled { packed, ..repaired };
        }
        let shapes = self.single_shapes(layout, repaired.layout.price);
        let best = shapes.into_iter().filter(passes).fold(repaired, |best, other| {
            let better = !passes(&best) || other.layout.price < best.layout.price;
            if better { other } else { best }
        });
        Settled { packed, ..best }
    }

    /// Adds nodes for what is left over until nothing is, or nothing more can be had.
    fn repaired(&self, mut layout: Layout) -> Settled {
        for _ in 0..REPAIRS_MAX {
            let (performances, offers) = self.perform(&layout);
            let worst = performances.iter().max_by_key(|p| p.left.values().sum::<u32>());
            let left = worst.map(|worst| self.by_class(&worst.left)).unwrap_or_default();
            if left.iter().all(|n| *n == 0) {
                return self.settled(layout, performances, offers);
            }
            let limits = self.ground.limits_after(&layout.packing.opened);
            let more = pack(self.ground.model, &left, &limits);
            if more.opened.is_empty() {
                break;
            }
            layout.price += more.price(self.ground.model);
            layout.packing.opened.extend(more.opened);
        }
        self.give_up(layout)
    }

    /// What is left over in the worst order has no place: that is said, not hidden.
    fn give_up(&self, mut layout: Layout) -> Settled {
        let (performances, offers) = self.perform(&layout);
        let mut worst: BTreeMap<usize, u32> = BTreeMap::new();
        for (group, count) in performances.iter().flat_map(|p| &p.left) {
            let most = worst.entry(*group).or_insert(0);
            *most = (*most).max(*count);
        }
        for (class, count) in self.by_class(&worst).into_iter().enumerate() {
            layout.packing.left[class] += count;
        }
        let mut settled = self.settled(layout, performances, offers);
        for (group, count) in worst {
            self.withdraw(&mut settled.placements, group, count);
            *settled.unplaced.entry(group).or_insert(0) += count;
        }
        settled
    }

    /// Takes pods of a group off the nodes of one order until only those are placed that every
    /// order places.
    fn withdraw(&self, placements: &mut Placements, group: usize, unplaced: u32) {
        let planned = self.groups[group].counts.planned.saturating_sub(unplaced);
        let Some(places) = placements.get_mut(&group) else { return };
        let mut surplus = places.values().sum::<u32>().saturating_sub(planned);
        for count in places.values_mut().rev() {
            let taken = surplus.min(*count);
            *count -= taken;
            surplus -= taken;
        }
        places.retain(|_, count| *count > 0);
    }

    fn settled(
        &self,
        mut layout: Layout,
        mut performances: Vec<Performance>,
        offers: Vec<usize>,
    ) -> Settled {
        let unplaced = self.unplaced(&layout);
        let first = performances.swap_remove(0);
        self.move_pods(&mut layout, &first.placements);
        let packed = layout.price;
        Settled { layout, offers, placements: first.placements, unplaced, packed }
    }

    /// Makes the counts by class say what the performance did.
    fn move_pods(&self, layout: &mut Layout, placements: &Placements) {
        let index: BTreeMap<&NodeName, usize> =
            self.ground.standing.iter().enumerate().map(|(i, node)| (&node.name, i)).collect();
        layout.on.iter_mut().for_each(BTreeMap::clear);
        layout.packing.opened.iter_mut().for_each(|node| node.pods.clear());
        for (class, members) in self.ground.model.classes.iter().enumerate() {
            for places in members.groups.iter().filter_map(|group| placements.get(group)) {
                for (place, count) in places {
                    let on = match place {
                        Place::Node(name) => &mut layout.on[index[name]],
                        Place::Launch(node) => &mut layout.packing.opened[*node].pods,
                    };
                    *on.entry(class).or_insert(0) += count;
                }
            }
        }
    }

    fn by_class(&self, by_group: &BTreeMap<usize, u32>) -> Vec<u32> {
        let of = |group: &usize| by_group.get(group).copied().unwrap_or(0);
        let classes = self.ground.model.classes.iter();
        classes.map(|class| class.groups.iter().map(of).sum()).collect()
    }

    /// Pods by group that the packing already left over: the last groups of each class.
    fn unplaced(&self, layout: &Layout) -> BTreeMap<usize, u32> {
        let mut unplaced = BTreeMap::new();
        for (class, left) in self.ground.model.classes.iter().zip(&layout.packing.left) {
            let mut left = *left;
            for group in class.groups.iter().rev() {
                let count = left.min(self.groups[*group].counts.planned);
                if count > 0 {
                    unplaced.insert(*group, count);
                }
                left -= count;
            }
        }
        unplaced
    }

    /// Runs every order over the nodes of `layout`.
    fn perform(&self, layout: &Layout) -> (Vec<Performance>, Vec<usize>) {
        let offers = self.choose_offers(layout);
        let scene = self.scene(layout, &offers);
        let unplaced = self.unplaced(layout);
        let performances =
            ORDERS.iter().map(|order| self.play(&scene, *order, &unplaced)).collect();
        (performances, offers)
    }

    /// Among zones at the same price the one with the fewest nodes of the pool is taken.
    fn choose_offers(&self, layout: &Layout) -> Vec<usize> {
        let mut zones: BTreeMap<(&str, ZoneName), u32> = BTreeMap::new();
        for (node, kept) in self.ground.standing.iter().zip(&layout.kept) {
            if let (true, Some(pool), Some(zone)) = (*kept, &node.pool, zone_of(&node.labels)) {
                *zones.entry((pool.as_str(), zone.into())).or_insert(0) += 1;
            }
        }
        let opened = layout.packing.opened.iter().map(|node| {
            let of = |i: &usize| {
                let node = &self.offers[*i].node;
                (node.pool.as_str(), node.zone.clone())
            };
            let column = &self.ground.model.columns[node.column].offers;
            let count = |i: &usize| zones.get(&of(i)).copied().unwrap_or(0);
            let chosen = column.iter().copied().min_by_key(|i| (count(i), *i));
            let chosen = chosen.expect("a column has at least one offer");
            *zones.entry(of(&chosen)).or_insert(0) += 1;
            chosen
        });
        opened.collect()
    }

    /// Sets the scene: nodes, what DaemonSets put on them, and the pods that stay where they run.
    fn scene(&self, layout: &Layout, offers: &[usize]) -> Scene {
        let (mut nodes, mut places) = (Vec::new(), Vec::new());
        for (node, _) in self.ground.standing.iter().zip(&layout.kept).filter(|(_, kept)| **kept) {
            let daemons = super::offer::daemon_requests(self.daemons, &node.labels, &node.taints);
            nodes.push(ScheduleNode {
                name: node.name.clone(),
                labels: node.labels.clone(),
                taints: node.taints.clone(),
                allocatable: node.room.plus(&daemons),
                unschedulable: !node.schedulable,
            });
            places.push(Place::Node(node.name.clone()));
        }
        for (index, offer) in offers.iter().enumerate() {
            let node = &self.offers[*offer].node;
            let name = format!("launch/{index}");
            let mut labels = node.labels.clone();
            labels.extend([label(key::HOSTNAME, &name)]);
            nodes.push(ScheduleNode {
                name: name.as_str().into(),
                labels,
                taints: node.taints.clone(),
                allocatable: node.allocatable.clone(),
                unschedulable: false,
            });
            places.push(Place::Launch(index));
        }
        let mut scheduler = Scheduler::new(nodes.clone(), self.namespaces, 0);
        let indices: Vec<NodeIndex> = scheduler.nodes().collect();
        for daemon in self.daemons {
            let class = scheduler.class(&daemon.shape, Some(&daemon.workload));
            for (node, index) in nodes.iter().zip(&indices) {
                if admits_daemon(daemon, &node.labels, &node.taints) {
                    scheduler.bind(class, *index);
                }
            }
        }
        let place_of = indices.into_iter().zip(places).collect();
        let mut scene =
            Scene { scheduler, classes: Vec::new(), place_of, staying: BTreeMap::new() };
        self.seat(&mut scene, layout);
        scene
    }

    /// Binds the pods that run on nodes that stay, as far as they are planned and may stay.
    fn seat(&self, scene: &mut Scene, layout: &Layout) {
        let kept: BTreeMap<&NodeName, usize> = self
            .ground
            .standing
            .iter()
            .enumerate()
            .filter(|(index, _)| layout.kept[*index])
            .map(|(index, node)| (&node.name, index))
            .collect();
        for (index, group) in self.groups.iter().enumerate() {
            let class = scene.scheduler.class(&group.shape, Some(&group.workload));
            scene.classes.push(class);
            let mut wanted = group.counts.planned;
            let nodes = self
                .ground
                .in_fill_order(group.running.keys().filter_map(|n| kept.get(n).copied()));
            for node in nodes {
                let standing = &self.ground.standing[node];
                if !super::offer::admits(&group.shape, &standing.labels, &standing.taints) {
                    continue;
                }
                let count = group.running[&standing.name].min(wanted);
                let seat =
                    scene.scheduler.node(&standing.name).expect("every kept node is on stage");
                for _ in 0..count {
                    scene.scheduler.bind(class, seat);
                }
                wanted -= count;
                if count > 0 {
                    let places = scene.staying.entry(index).or_default();
                    places.insert(Place::Node(standing.name.clone()), count);
                }
            }
        }
    }

    fn play(&self, scene: &Scene, order: Order, unplaced: &BTreeMap<usize, u32>) -> Performance {
        let mut scheduler = scene.scheduler.clone();
        let (mut placements, mut left) = (scene.staying.clone(), BTreeMap::new());
        for group in self.queue(scene, order, unplaced) {
            match scheduler.schedule(scene.classes[group], None) {
                Ok(node) => {
                    let place = scene.place_of[&node].clone();
                    *placements.entry(group).or_default().entry(place).or_insert(0) += 1;
                }
                Err(_) => *left.entry(group).or_insert(0) += 1,
            }
        }
        Performance { placements, left }
    }

    /// The pending pods, by group, in the order in which they come; higher priority goes first in
    /// any case.
    fn queue(&self, scene: &Scene, order: Order, unplaced: &BTreeMap<usize, u32>) -> Vec<usize> {
        let mut worth = vec![0; self.groups.len()];
        for class in &self.ground.model.classes {
            class.groups.iter().for_each(|group| worth[*group] = class.worth);
        }
        let placeable = |(_, group): &(usize, &PodGroup)| group.shape.unsupported.is_empty();
        let mut groups: Vec<usize> =
            self.groups.iter().enumerate().filter(placeable).map(|(index, _)| index).collect();
        match order {
            Order::LargestFirst => groups.sort_by_key(|g| (std::cmp::Reverse(worth[*g]), *g)),
            Order::SmallestFirst => groups.sort_by_key(|g| (worth[*g], *g)),
            Order::Declared | Order::Shuffled(_) => {}
        }
        let pending = |group: &usize| {
            let staying: u32 =
                scene.staying.get(group).into_iter().flat_map(BTreeMap::values).sum();
            let without = unplaced.get(group).copied().unwrap_or(0);
            let count = self.groups[*group].counts.planned.saturating_sub(staying + without);
            std::iter::repeat_n(*group, usize::try_from(count).unwrap_or(usize::MAX))
        };
        let mut queue: Vec<usize> = groups.iter().flat_map(pending).collect();
        if let Order::Shuffled(seed) = order {
            queue.shuffle(&mut Pcg64::seed_from_u64(seed));
        }
        queue.sort_by_key(|group| std::cmp::Reverse(self.groups[*group].shape.priority));
        queue
    }

    /// Fleets in which all new nodes are of one shape, as few of them as every order passes with,
    /// if that costs less than `cap`.
    fn single_shapes(&self, layout: &Layout, cap: MicroUsd) -> Vec<Settled> {
        let model = self.ground.model;
        let wanted = pods_of(&layout.packing.opened, model.classes.len());
        let rest = layout.price - layout.packing.price(model);
        let takes_all = |column: &usize| {
            wanted
                .iter()
                .enumerate()
                .all(|(class, n)| *n == 0 || model.columns[*column].takes[class])
        };
        let mut shapes: Vec<(MicroUsd, usize, Vec<Opened>)> = (0..model.columns.len())
            .filter(|column| model.undominated.contains(column))
            .filter(takes_all)
            .filter_map(|column| {
                let nodes = self.filled_with(column, &wanted)?;
                let count = i64::try_from(nodes.len()).unwrap_or(i64::MAX);
                Some((rest + model.columns[column].price.times(count), column, nodes))
            })
            .filter(|(price, ..)| *price < cap)
            .collect();
        shapes.sort_by_key(|(price, column, _)| (*price, *column));
        shapes.truncate(SHAPES_MAX);
        shapes
            .into_iter()
            .filter_map(|(price, column, nodes)| {
                self.enough_of(layout, (price, column, nodes), cap)
            })
            .collect()
    }

    /// Adds nodes of the shape until every order passes; gives up when the price reaches `cap`.
    fn enough_of(
        &self,
        layout: &Layout,
        (price, column, nodes): (MicroUsd, usize, Vec<Opened>),
        cap: MicroUsd,
    ) -> Option<Settled> {
        let spare = SPARE_MIN.max(nodes.len() * SPARE_PERCENT / 100);
        let mut trial = layout.clone();
        trial.packing.opened = nodes;
        trial.price = price;
        for _ in 0..=spare {
            if trial.price >= cap || !self.ground.within_limits(&trial.packing.opened) {
                return None;
            }
            let (performances, offers) = self.perform(&trial);
            if performances.iter().all(|p| p.left.is_empty()) {
                return Some(self.settled(trial, performances, offers));
            }
            trial.packing.opened.push(Opened { column, pods: BTreeMap::new() });
            trial.price += self.ground.model.columns[column].price;
        }
        None
    }

    /// Packs `wanted` onto nodes of one column, the most valuable pods first.
    fn filled_with(&self, column: usize, wanted: &[u32]) -> Option<Vec<Opened>> {
        let model = self.ground.model;
        let (mut left, mut nodes) = (wanted.to_vec(), Vec::new());
        while left.iter().any(|n| *n > 0) {
            let (mut room, mut pods) = (model.columns[column].room.clone(), BTreeMap::new());
            for class in model.order.iter().copied() {
                let ask = &model.classes[class].ask;
                let count = copies(ask, &room, left[class]);
                if count > 0 {
                    super::model::take(&mut room, ask, count);
                    pods.insert(class, count);
                    left[class] -= count;
                }
            }
            if pods.is_empty() {
                return None;
            }
            nodes.push(Opened { column, pods });
        }
        Some(nodes)
    }
}

/// Nodes on stage, before the pending pods come.
struct Scene {
    scheduler: Scheduler,
    /// The class of each group.
    classes: Vec<ClassIndex>,
    place_of: BTreeMap<NodeIndex, Place>,
    staying: Placements,
}

/// Pods by class on these nodes.
fn pods_of(opened: &[Opened], classes: usize) -> Vec<u32> {
    let mut pods = vec![0; classes];
    for (class, count) in opened.iter().flat_map(|node| &node.pods) {
        pods[*class] += count;
    }
    pods
}
