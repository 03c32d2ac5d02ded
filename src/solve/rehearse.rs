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
use super::offer::{Offer, admits_daemon};
use super::pack::{Opened, pack};
use super::standing::zone_of;
use super::target::Place;
use crate::demand::{Daemon, PodGroup};
use crate::ids::{Labels, Namespace, NodeName, ZoneName};
use crate::requirement::{key, label};
use crate::schedule::{Balance, ClassIndex, NodeIndex, ScheduleNode, Scheduler};
use crate::units::MicroUsd;

/// Times that nodes are added for what was left over, before the last word is "no place".
const REPAIRS_MAX: usize = 8;

/// Pods up to which a plan is rehearsed; above, it says that it was not.
const REHEARSED_PODS_MAX: usize = 300_000;

/// Shapes that are tried as the only one.
const SHAPES_MAX: usize = 10;

/// Nodes that one shape may need beyond its tightest count, in percent and at least.
const SPARE_PERCENT: usize = 12;
const SPARE_MIN: usize = 2;

/// One rehearsal: the order in which pods come, and the scheduler's rule for balance, which
/// Kubernetes 1.36 changed; a cluster may run either.
#[derive(Debug, Clone, Copy)]
struct Run {
    order: Order,
    balance: Balance,
}

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

const RUNS: [Run; 5] = [
    Run { order: Order::Declared, balance: Balance::Change },
    Run { order: Order::Declared, balance: Balance::Level },
    Run { order: Order::LargestFirst, balance: Balance::Change },
    Run { order: Order::SmallestFirst, balance: Balance::Level },
    Run { order: Order::Shuffled(1), balance: Balance::Change },
];

impl Run {
    fn name(self) -> String {
        let order = match self.order {
            Order::Declared => "declared".to_owned(),
            Order::LargestFirst => "largest-first".to_owned(),
            Order::SmallestFirst => "smallest-first".to_owned(),
            Order::Shuffled(seed) => format!("shuffled-{seed}"),
        };
        let balance = match self.balance {
            Balance::Level => "1.35",
            Balance::Change => "1.36",
        };
        format!("{order} (kube-scheduler {balance})")
    }
}

/// Names of the runs that every plan is rehearsed in.
pub(super) fn run_names() -> Vec<String> {
    RUNS.iter().map(|run| run.name()).collect()
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
        if !self.is_rehearsed() {
            return self.as_packed(layout);
        }
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

    /// Returns whether the fleet is small enough to be rehearsed.
    pub(super) fn is_rehearsed(&self) -> bool {
        let pods = self.groups.iter().map(|group| group.counts.planned);
        let pods = pods
            .fold(0_usize, |sum, n| sum.saturating_add(usize::try_from(n).unwrap_or(usize::MAX)));
        pods <= REHEARSED_PODS_MAX
    }

    /// Takes the packing's word for where pods go.
    fn as_packed(&self, layout: &Layout) -> Settled {
        let offers = self.choose_offers(layout);
        let unplaced = self.unplaced(layout);
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
            for group in &class.groups {
                let without = unplaced.get(group).copied().unwrap_or(0);
                wanted.push((*group, self.groups[*group].counts.planned.saturating_sub(without)));
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

    /// Adds nodes for what is left over until nothing is, or nothing more can be had.
    fn repaired(&self, mut layout: Layout) -> Settled {
        for _ in 0..REPAIRS_MAX {
            let left = match self.first_failure(&layout) {
                Verdict::Passed(settled) => return settled,
                Verdict::Left(left) => self.by_class(&left),
            };
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

    /// Plays the runs one by one and stops at the first that leaves pods over.
    fn first_failure(&self, layout: &Layout) -> Verdict {
        let offers = self.choose_offers(layout);
        let scene = self.scene(layout, &offers);
        let unplaced = self.unplaced(layout);
        let mut first = None;
        for run in RUNS {
            let performance = self.play(&scene, run, &unplaced);
            if !performance.left.is_empty() {
                return Verdict::Left(performance.left);
            }
            first.get_or_insert(performance);
        }
        let first = first.expect("there is at least one run");
        Verdict::Passed(self.settled(layout.clone(), first, offers))
    }

    /// What is left over in the worst order has no place: that is said, not hidden.
    fn give_up(&self, mut layout: Layout) -> Settled {
        let offers = self.choose_offers(&layout);
        let scene = self.scene(&layout, &offers);
        let unplaced = self.unplaced(&layout);
        let mut performances: Vec<Performance> =
            RUNS.iter().map(|run| self.play(&scene, *run, &unplaced)).collect();
        let mut worst: BTreeMap<usize, u32> = BTreeMap::new();
        for (group, count) in performances.iter().flat_map(|p| &p.left) {
            let most = worst.entry(*group).or_insert(0);
            *most = (*most).max(*count);
        }
        for (class, count) in self.by_class(&worst).into_iter().enumerate() {
            layout.packing.left[class] += count;
        }
        let mut settled = self.settled(layout, performances.swap_remove(0), offers);
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

    fn settled(&self, mut layout: Layout, first: Performance, offers: Vec<usize>) -> Settled {
        let unplaced = self.unplaced(&layout);
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

    fn play(&self, scene: &Scene, run: Run, unplaced: &BTreeMap<usize, u32>) -> Performance {
        let mut scheduler = scene.scheduler.clone().with_balance(run.balance);
        let (mut placements, mut left) = (scene.staying.clone(), BTreeMap::new());
        for group in self.queue(scene, run.order, unplaced) {
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

    /// Fleets in which all new nodes are of one shape, as few of them as every run passes with, if
    /// that costs less than `cap`.
    fn single_shapes(&self, layout: &Layout, mut cap: MicroUsd) -> Vec<Settled> {
        let model = self.ground.model;
        let wanted = pods_of(&layout.packing.opened, model.classes.len());
        let rest = layout.price - layout.packing.price(model);
        let takes_all = |column: &usize| {
            let takes = &model.columns[*column].takes;
            wanted.iter().zip(takes).all(|(pods, takes)| *pods == 0 || *takes)
        };
        let mut shapes: Vec<(MicroUsd, usize, usize)> = model
            .undominated
            .iter()
            .copied()
            .filter(takes_all)
            .map(|column| {
                let least = self.least_nodes(column, &wanted);
                let count = i64::try_from(least).unwrap_or(i64::MAX);
                (rest + model.columns[column].price.times(count), column, least)
            })
            .filter(|(price, ..)| *price < cap)
            .collect();
        shapes.sort_unstable();
        shapes.truncate(SHAPES_MAX);
        let mut found: Vec<Settled> = Vec::new();
        for (_, column, least) in shapes {
            if let Some(settled) = self.enough_of(layout, rest, (column, least), cap) {
                cap = settled.layout.price;
                found.push(settled);
            }
        }
        found
    }

    /// The fewest nodes of one column that could hold `wanted`, resource by resource.
    fn least_nodes(&self, column: usize, wanted: &[u32]) -> usize {
        let room = &self.ground.model.columns[column].room;
        let asked = |d: usize| -> i64 {
            let classes = self.ground.model.classes.iter().zip(wanted);
            classes.map(|(class, n)| class.ask[d].saturating_mul(i64::from(*n))).sum()
        };
        let nodes = |d: usize| (asked(d) + room[d].max(1) - 1) / room[d].max(1);
        let most = (0..room.len()).filter(|d| asked(*d) > 0).map(nodes).max().unwrap_or(0);
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Adds nodes of the shape until every run passes; gives up when the price reaches `cap`.
    fn enough_of(
        &self,
        layout: &Layout,
        rest: MicroUsd,
        (column, least): (usize, usize),
        cap: MicroUsd,
    ) -> Option<Settled> {
        let model = self.ground.model;
        let most = least + SPARE_MIN.max(least * SPARE_PERCENT / 100);
        let mut count = least;
        while count <= most {
            let mut trial = layout.clone();
            trial.packing.opened = vec![Opened { column, pods: BTreeMap::new() }; count];
            trial.price = rest + trial.packing.price(model);
            if trial.price >= cap || !self.ground.within_limits(&trial.packing.opened) {
                return None;
            }
            match self.first_failure(&trial) {
                Verdict::Passed(settled) => return Some(settled),
                Verdict::Left(left) => {
                    count += self.least_nodes(column, &self.by_class(&left)).max(1);
                }
            }
        }
        None
    }
}

/// What the runs say of a layout.
enum Verdict {
    /// Every run found each pod a place.
    Passed(Settled),
    /// A run left these pods over, by group.
    Left(BTreeMap<usize, u32>),
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
