//! The rehearsal: would kube-scheduler, which scores and spreads, find every pod a place?
//!
//! A packing says that the pods fit; the scheduler decides where they go. Here the model of the
//! scheduler places the pods on the planned nodes in several runs; what to do where it leaves pods
//! over is the business of `settle`.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use super::layout::{Ground, Layout};
use super::offer::{Offer, admits_daemon};
use super::standing::zone_of;
use super::target::Place;
use crate::demand::{Daemon, Demand, PodGroup};
use crate::ids::{Labels, Namespace, ZoneName};
use crate::requirement::{key, label};
use crate::schedule::{Balance, ClassIndex, NodeIndex, ScheduleNode, Scheduler};
use crate::units::MicroUsd;

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

/// What tells most comes first.
const RUNS: [Run; 8] = [
    Run { order: Order::Declared, balance: Balance::Change },
    Run { order: Order::LargestFirst, balance: Balance::Change },
    Run { order: Order::SmallestFirst, balance: Balance::Change },
    Run { order: Order::SmallestFirst, balance: Balance::Level },
    Run { order: Order::Shuffled(1), balance: Balance::Change },
    Run { order: Order::Declared, balance: Balance::Level },
    Run { order: Order::LargestFirst, balance: Balance::Level },
    Run { order: Order::Shuffled(2), balance: Balance::Level },
];

/// How many of the runs are made up to so many pods times nodes: on a small fleet one pod decides,
/// and a run costs little.
const RUNS_UP_TO: [(u64, usize); 2] = [(20_000, 8), (500_000, 5)];

/// Runs that are made of any fleet.
const RUNS_MIN: usize = 3;

/// Returns the runs for so many pods on so many nodes.
fn runs(pods: u64, nodes: usize) -> &'static [Run] {
    let work = pods.saturating_mul(u64::try_from(nodes).unwrap_or(u64::MAX));
    let made = RUNS_UP_TO.iter().find(|(most, _)| work <= *most).map(|(_, made)| *made);
    &RUNS[..made.unwrap_or(RUNS_MIN)]
}

/// Returns how many pods are planned.
pub(super) fn planned_pods(groups: &[PodGroup]) -> u64 {
    groups.iter().map(|group| u64::from(group.counts.planned)).fold(0, u64::saturating_add)
}

impl Run {
    /// Returns where its ties between nodes are drawn from: no two runs break them alike.
    fn seed(self) -> u64 {
        let order = match self.order {
            Order::Declared => 0,
            Order::LargestFirst => 1,
            Order::SmallestFirst => 2,
            Order::Shuffled(seed) => 2 + seed,
        };
        let balance = match self.balance {
            Balance::Change => 0,
            Balance::Level => 1,
        };
        2 * order + balance
    }

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

/// Workloads times nodes up to which default spreading, a score of its own for each workload on
/// each node, is part of the rehearsal.
const SPREAD_MAX: usize = 1_000_000;

/// A scheduler, and the classes of groups and of daemons in it.
type Blank = (Scheduler, Vec<ClassIndex>, Vec<ClassIndex>);

/// Returns whether default spreading is rehearsed for so many workloads on so many nodes.
fn spreads(groups: usize, nodes: usize) -> bool {
    groups.saturating_mul(nodes) <= SPREAD_MAX
}

/// Returns the names of the runs that a plan of this size passes.
pub(super) fn run_names(groups: &[PodGroup], nodes: usize) -> Vec<String> {
    let suffix = if spreads(groups.len(), nodes) { "" } else { ", without default spreading" };
    let runs = runs(planned_pods(groups), nodes).iter();
    runs.map(|run| format!("{}{suffix}", run.name())).collect()
}

/// What the rehearsal needs beside the problem in numbers.
pub(super) struct Stage<'a> {
    pub ground: Ground<'a>,
    pub groups: &'a [PodGroup],
    pub daemons: &'a [Daemon],
    pub offers: &'a [Offer],
    pub namespaces: &'a BTreeMap<Namespace, Labels>,
    /// Schedulers with every class known and no node yet, with and without default spreading:
    /// classes are costly to make.
    spreading: OnceCell<Blank>,
    plain: OnceCell<Blank>,
    /// Pods times nodes tried since it was last set to zero.
    pub work: Cell<u64>,
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
pub(super) struct Performance {
    pub placements: Placements,
    pub left: BTreeMap<usize, u32>,
}

impl<'a> Stage<'a> {
    /// Returns a stage for the pods of `groups`.
    pub(super) fn new(
        ground: Ground<'a>,
        demand: &'a Demand,
        offers: &'a [Offer],
        namespaces: &'a BTreeMap<Namespace, Labels>,
    ) -> Self {
        Self {
            ground,
            groups: &demand.groups,
            daemons: &demand.daemons,
            offers,
            namespaces,
            spreading: OnceCell::new(),
            plain: OnceCell::new(),
            work: Cell::new(0),
        }
    }

    /// Plays the runs one by one and stops at the first that leaves pods over.
    pub(super) fn rehearse(&self, layout: &Layout) -> Verdict {
        let offers = self.choose_offers(layout);
        let scene = self.scene(layout, &offers);
        let unplaced = self.excluded(layout, &scene);
        let mut first = None;
        for run in runs(planned_pods(self.groups), scene.place_of.len()) {
            let performance = self.play(&scene, *run, &unplaced);
            if !performance.left.is_empty() {
                return Verdict::Left(self.missing(&performance, &offers));
            }
            first.get_or_insert(performance);
        }
        let first = first.expect("there is at least one run");
        Verdict::Passed(self.settled(layout.clone(), first, offers, unplaced))
    }

    /// Plays the runs with ever more pods left out, until every run finds the others a place.
    pub(super) fn as_far_as_possible(&self, layout: &Layout) -> Settled {
        let offers = self.choose_offers(layout);
        let scene = self.scene(layout, &offers);
        let mut unplaced = self.excluded(layout, &scene);
        let runs = runs(planned_pods(self.groups), scene.place_of.len());
        let mut passed = 0;
        let mut first = None;
        for run in runs.iter().cycle() {
            let performance = self.play(&scene, *run, &unplaced);
            if performance.left.is_empty() {
                passed += 1;
                if run.name() == runs[0].name() {
                    first = Some(performance);
                }
                if passed == runs.len() {
                    break;
                }
                continue;
            }
            passed = 0;
            for (group, count) in performance.left {
                *unplaced.entry(group).or_insert(0) += count;
            }
        }
        let first = first.expect("every run passed, the first one among them");
        self.settled(layout.clone(), first, offers, unplaced)
    }

    /// Returns the layout with exactly these pods left out, where every run finds the others a
    /// place.
    pub(super) fn without(
        &self,
        layout: &Layout,
        unplaced: BTreeMap<usize, u32>,
    ) -> Option<Settled> {
        let offers = self.choose_offers(layout);
        let scene = self.scene(layout, &offers);
        let mut first = None;
        for run in runs(planned_pods(self.groups), scene.place_of.len()) {
            let performance = self.play(&scene, *run, &unplaced);
            if !performance.left.is_empty() {
                return None;
            }
            first.get_or_insert(performance);
        }
        Some(self.settled(layout.clone(), first?, offers, unplaced))
    }

    fn settled(
        &self,
        mut layout: Layout,
        first: Performance,
        offers: Vec<usize>,
        unplaced: BTreeMap<usize, u32>,
    ) -> Settled {
        self.recount(&mut layout, &first.placements, &offers, &unplaced);
        let packed = layout.price;
        Settled { layout, offers, placements: first.placements, unplaced, packed }
    }

    /// Makes the counts by class say where `placements` has the pods.
    pub(super) fn recount(
        &self,
        layout: &mut Layout,
        placements: &Placements,
        offers: &[usize],
        unplaced: &BTreeMap<usize, u32>,
    ) {
        let model = self.ground.model;
        layout.on.iter_mut().for_each(BTreeMap::clear);
        layout.packing.opened.iter_mut().for_each(|node| node.pods.clear());
        for (group, places) in placements {
            for (place, count) in places {
                let Some(class) = self.class_at(*group, place, offers) else { continue };
                let on = match place {
                    Place::Node(name) => &mut layout.on[self.ground.index_of(name)],
                    Place::Launch(node) => &mut layout.packing.opened[*node].pods,
                };
                *on.entry(class).or_insert(0) += count;
            }
        }
        layout.packing.left = vec![0; model.classes.len()];
        for (group, count) in unplaced {
            if let Some(class) = model.of_group[*group].last() {
                layout.packing.left[*class] += count;
            }
        }
    }

    /// Fills in which pods of `placements` stay where they run.
    pub(super) fn seat_again(&self, layout: &mut Layout, placements: &Placements) {
        for (group, places) in placements {
            for (place, count) in places {
                let Place::Node(name) = place else { continue };
                let running = self.groups[*group].running.get(name).copied().unwrap_or(0);
                let (Some(class), stay) = (self.class_at(*group, place, &[]), running.min(*count))
                else {
                    continue;
                };
                if stay > 0 {
                    let seats = &mut layout.staying[self.ground.index_of(name)];
                    *seats.entry(class).or_insert(0) += stay;
                }
            }
        }
    }

    /// Returns the class that pods of the group belong to where they are: the one whose domains
    /// these are, or the first where the scheduler went its own way.
    fn class_at(&self, group: usize, place: &Place, offers: &[usize]) -> Option<usize> {
        let labels = match place {
            Place::Node(name) => &self.ground.standing[self.ground.index_of(name)].labels,
            Place::Launch(node) => &self.offers[offers[*node]].node.labels,
        };
        let model = self.ground.model;
        model.class_of(group, labels).or_else(|| model.of_group[group].first().copied())
    }

    /// Returns what is left over, by class: of a group with several, of those with fewer pods than
    /// were meant for them.
    fn missing(&self, performance: &Performance, offers: &[usize]) -> Vec<u32> {
        let model = self.ground.model;
        let mut missing = vec![0; model.classes.len()];
        for (group, count) in &performance.left {
            let mut count = *count;
            let mut placed: BTreeMap<usize, u32> = BTreeMap::new();
            for (place, pods) in performance.placements.get(group).into_iter().flatten() {
                if let Some(class) = self.class_at(*group, place, offers) {
                    *placed.entry(class).or_insert(0) += pods;
                }
            }
            for class in model.of_group[*group].iter().copied() {
                let meant = model.classes[class].lots.iter().filter(|(g, _)| g == group);
                let meant: u32 = meant.map(|(_, planned)| planned).sum();
                let here = placed.get(&class).copied().unwrap_or(0);
                let short = meant.saturating_sub(here).min(count);
                missing[class] += short;
                count -= short;
            }
            if let Some(class) = model.of_group[*group].first() {
                missing[*class] += count;
            }
        }
        missing
    }

    /// Pods by group that nobody looks for a place for, since the packing has none for so many.
    ///
    /// Which ones those are is for the scheduler to say, which lets pods of higher priority go
    /// first; only where it leaves over more than the packing does, the packing's word is taken.
    fn excluded(&self, layout: &Layout, scene: &Scene) -> BTreeMap<usize, u32> {
        let total = layout.packing.left_over();
        if total == 0 {
            return BTreeMap::new();
        }
        let left = self.play(scene, RUNS[0], &BTreeMap::new()).left;
        if left.values().map(|n| u64::from(*n)).sum::<u64>() <= total {
            return left;
        }
        self.unplaced(layout, &scene.staying)
    }

    /// Pods by group that the packing left over: those that run nowhere yet, of the last groups of
    /// each class.
    pub(super) fn unplaced(&self, layout: &Layout, staying: &Placements) -> BTreeMap<usize, u32> {
        let mut unplaced = BTreeMap::new();
        let mut stays: BTreeMap<usize, u32> =
            staying.iter().map(|(group, places)| (*group, places.values().sum())).collect();
        for (class, left) in self.ground.model.classes.iter().zip(&layout.packing.left) {
            let mut left = *left;
            for (group, planned) in class.lots.iter().rev() {
                let stays = stays.entry(*group).or_insert(0);
                let stays_here = (*planned).min(*stays);
                *stays -= stays_here;
                let count = left.min(planned - stays_here);
                if count > 0 {
                    *unplaced.entry(*group).or_insert(0) += count;
                }
                left -= count;
            }
        }
        unplaced
    }

    /// Among zones at the same price the one with the fewest nodes of the pool is taken.
    pub(super) fn choose_offers(&self, layout: &Layout) -> Vec<usize> {
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
            let balanced = || column.iter().copied().min_by_key(|i| (count(i), *i));
            let chosen = node.offer.or_else(balanced).expect("a column has at least one offer");
            *zones.entry(of(&chosen)).or_insert(0) += 1;
            chosen
        });
        opened.collect()
    }

    /// Returns a scheduler for so many nodes that knows the classes of all groups and daemons.
    fn blank(&self, nodes: usize) -> &Blank {
        if spreads(self.groups.len(), nodes) {
            self.spreading.get_or_init(|| self.make_blank(true))
        } else {
            self.plain.get_or_init(|| self.make_blank(false))
        }
    }

    fn make_blank(&self, spreads: bool) -> Blank {
        let mut scheduler = Scheduler::new(Vec::new(), self.namespaces, 0);
        // Default spreading is by owner: without one there is none.
        let mut class =
            |shape, workload| scheduler.class(shape, Some(workload).filter(|_| spreads));
        let groups = self.groups.iter().map(|g| class(&g.shape, &g.workload)).collect();
        let daemons = self.daemons.iter().map(|d| class(&d.shape, &d.workload)).collect();
        (scheduler, groups, daemons)
    }

    /// Sets the scene: nodes, what DaemonSets put on them, and the pods that stay where they run.
    pub(super) fn scene(&self, layout: &Layout, offers: &[usize]) -> Scene {
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
            nodes.push(self.new_node(*offer, index));
            places.push(Place::Launch(index));
        }
        let (mut scheduler, classes, daemons) = self.blank(nodes.len()).clone();
        let indices = scheduler.add_nodes(nodes.iter().cloned());
        for (node, index) in nodes.iter().zip(&indices) {
            self.bind_daemons(&mut scheduler, &daemons, (node, *index));
        }
        let place_of = indices.into_iter().zip(places).collect();
        let staying = self.staying(layout);
        let mut scene = Scene { scheduler, classes, daemons, place_of, staying };
        Self::seat(&mut scene);
        scene
    }

    /// Returns the node that a launch becomes.
    pub(super) fn new_node(&self, offer: usize, index: usize) -> ScheduleNode {
        let offer = &self.offers[offer];
        let node = &offer.node;
        let name = format!("launch/{index}");
        let mut labels = node.labels.clone();
        labels.extend([label(key::HOSTNAME, &name)]);
        ScheduleNode {
            name: name.as_str().into(),
            labels,
            taints: node.taints.clone(),
            // The room knows what the node attaches as well, and what others must hold for it.
            allocatable: offer.planned(),
            unschedulable: false,
        }
    }

    /// Binds the pods that DaemonSets put on a node.
    pub(super) fn bind_daemons(
        &self,
        scheduler: &mut Scheduler,
        classes: &[ClassIndex],
        (node, index): (&ScheduleNode, NodeIndex),
    ) {
        for (daemon, class) in self.daemons.iter().zip(classes) {
            if admits_daemon(daemon, &node.labels, &node.taints) {
                scheduler.bind(*class, index);
            }
        }
    }

    /// Returns the pods that stay where they run, by group: those that the layout keeps there.
    pub(super) fn staying(&self, layout: &Layout) -> Placements {
        let nodes: Vec<usize> = (0..layout.kept.len()).filter(|node| layout.kept[*node]).collect();
        let nodes = self.ground.in_fill_order(nodes.into_iter());
        let mut seats = layout.staying.clone();
        let mut staying = Placements::new();
        for (index, group) in self.groups.iter().enumerate() {
            let mut wanted = group.counts.planned;
            for node in nodes.iter().copied() {
                let name = &self.ground.standing[node].name;
                let Some(running) = group.running.get(name) else { continue };
                let mut count = (*running).min(wanted);
                let labels = &self.ground.standing[node].labels;
                if let Some(class) = self.ground.model.class_of(index, labels) {
                    // Pods of no class stay unconditionally: nothing is known about their rules.
                    let seats = seats[node].entry(class).or_insert(0);
                    count = count.min(*seats);
                    *seats -= count;
                }
                wanted -= count;
                if count > 0 {
                    staying.entry(index).or_default().insert(Place::Node(name.clone()), count);
                }
            }
        }
        staying
    }

    /// Binds the pods that stay where they run.
    fn seat(scene: &mut Scene) {
        for (group, places) in &scene.staying {
            for (place, count) in places {
                let Place::Node(name) = place else { continue };
                let seat = scene.scheduler.node(name).expect("every kept node is on stage");
                for _ in 0..*count {
                    scene.scheduler.bind(scene.classes[*group], seat);
                }
            }
        }
    }

    fn play(&self, scene: &Scene, run: Run, unplaced: &BTreeMap<usize, u32>) -> Performance {
        let scheduler = scene.scheduler.clone();
        let mut scheduler = scheduler.with_balance(run.balance).with_seed(run.seed());
        let (mut placements, mut left) = (scene.staying.clone(), BTreeMap::new());
        let queue = self.queue(scene, run.order, unplaced);
        let tries = queue.len().saturating_mul(scene.place_of.len());
        self.work.set(self.work.get().saturating_add(u64::try_from(tries).unwrap_or(u64::MAX)));
        for group in queue {
            match scheduler.try_schedule(scene.classes[group], None) {
                Some(node) => {
                    let place = scene.place_of[&node].clone();
                    *placements.entry(group).or_default().entry(place).or_insert(0) += 1;
                }
                None => *left.entry(group).or_insert(0) += 1,
            }
        }
        self.retry(scene, &mut scheduler, &mut placements, &mut left);
        Performance { placements, left }
    }

    /// Tries pods that found no place again as long as that helps: a pod that came after them may
    /// be what they waited for, as the scheduler does when one is bound.
    fn retry(
        &self,
        scene: &Scene,
        scheduler: &mut Scheduler,
        placements: &mut Placements,
        left: &mut BTreeMap<usize, u32>,
    ) {
        let waits = |group: &usize| {
            let shape = &self.groups[*group].shape;
            !shape.affinity.required.is_empty() || !shape.spread.is_empty()
        };
        loop {
            let waiting: Vec<usize> = left.keys().copied().filter(waits).collect();
            let mut helped = false;
            for group in waiting {
                while let Some(count) = left.get_mut(&group) {
                    let node = scheduler.try_schedule(scene.classes[group], None);
                    let Some(node) = node else { break };
                    let place = scene.place_of[&node].clone();
                    *placements.entry(group).or_default().entry(place).or_insert(0) += 1;
                    helped = true;
                    *count -= 1;
                    if *count == 0 {
                        left.remove(&group);
                    }
                }
            }
            if !helped {
                return;
            }
        }
    }

    /// The pending pods, by group, in the order in which they come; higher priority goes first in
    /// any case.
    fn queue(&self, scene: &Scene, order: Order, unplaced: &BTreeMap<usize, u32>) -> Vec<usize> {
        let mut worth = vec![0; self.groups.len()];
        for class in &self.ground.model.classes {
            class.groups().for_each(|group| worth[group] = class.worth);
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
}

/// What the runs say of a layout.
pub(super) enum Verdict {
    /// Every run found each pod a place.
    Passed(Settled),
    /// A run left these pods over, by class.
    Left(Vec<u32>),
}

/// Nodes on stage, before the pending pods come.
pub(super) struct Scene {
    pub scheduler: Scheduler,
    /// The class of each group.
    pub classes: Vec<ClassIndex>,
    /// The class of each daemon.
    pub daemons: Vec<ClassIndex>,
    place_of: BTreeMap<NodeIndex, Place>,
    pub staying: Placements,
}
