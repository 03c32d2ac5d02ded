//! The rehearsal: would kube-scheduler, which scores and spreads, find every pod a place?
//!
//! A packing says that the pods fit; the scheduler decides where they go. Here the model of the
//! scheduler places the pods on the planned nodes in several runs; what to do where it leaves pods
//! over is the business of `settle`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use super::Purpose;
use super::layout::{Ground, Layout};
use super::offer::Offer;
use super::pace::Pace;
use super::play::{Blank, Cast, Performance, Scene};
use super::runs::{self, Run, planned_pods};
use super::shares::{self, Map};
use super::standing::zone_of;
use super::target::Place;
use crate::demand::{Daemon, Demand, PodGroup};
use crate::ids::{Labels, Namespace, ZoneName};
use crate::units::MicroUsd;

/// What the rehearsal needs beside the problem in numbers.
pub(super) struct Stage<'a> {
    pub ground: Ground<'a>,
    pub groups: &'a [PodGroup],
    pub daemons: &'a [Daemon],
    pub offers: &'a [Offer],
    pub namespaces: &'a BTreeMap<Namespace, Labels>,
    /// Schedulers with every class known and no node yet, with and without default spreading:
    /// classes are costly to make.
    pub spreading: OnceLock<Blank>,
    pub plain: OnceLock<Blank>,
    /// For each group the standing nodes that run pods of it, with how many.
    pub running: OnceLock<Vec<Vec<(usize, u32)>>>,
    /// Pods times nodes tried since it was last set to zero.
    work: AtomicU64,
    /// The same since the beginning.
    all_work: AtomicU64,
    /// Whether each pod is nominated to the node that the packing has it on.
    pub steered: bool,
    /// Whether pods come while nodes come up and are drained as well.
    pub eventful: bool,
    /// What the fleet is for.
    pub purpose: Purpose,
    /// How many runs are played at once; `None` is as many as the machine has cores.
    pub workers: Option<NonZero<usize>>,
    /// How many nodes may go.
    pub pace: Pace,
    /// How much one node or zone may hold.
    shares: shares::Limits<'a>,
    /// The run that failed last: it is the first to be played of the next fleet.
    hardest: AtomicUsize,
    /// Draws that were unlucky with some fleet: every other has to pass them too.
    pub remembered: Mutex<Vec<Run>>,
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

impl Settled {
    /// Returns the pods without a place of each priority that `groups` have, the highest first: the
    /// fleet is the better for which this is less, since kube-scheduler serves them in that order.
    pub(super) fn left(&self, groups: &[PodGroup]) -> Vec<u32> {
        by_priority(&self.unplaced, groups)
    }
}

/// Returns pods by group as pods of each priority that `groups` have, the highest first.
fn by_priority(pods: &BTreeMap<usize, u32>, groups: &[PodGroup]) -> Vec<u32> {
    let mut sums: BTreeMap<Reverse<i32>, u32> = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        let sum = sums.entry(Reverse(group.shape.priority)).or_insert(0);
        *sum = sum.saturating_add(pods.get(&index).copied().unwrap_or(0));
    }
    sums.into_values().collect()
}

/// Tries that setting up nodes may come to without counting for a search.
const SET_UP_FREE: u64 = 1_000_000;

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
            spreading: OnceLock::new(),
            plain: OnceLock::new(),
            running: OnceLock::new(),
            work: AtomicU64::new(0),
            all_work: AtomicU64::new(0),
            steered: false,
            eventful: true,
            purpose: Purpose::Plan,
            workers: None,
            pace: Pace::default(),
            shares: shares::Limits::none(),
            hardest: AtomicUsize::new(0),
            remembered: Mutex::default(),
        }
    }

    /// Returns the stage with pods nominated to the nodes that the packing has them on, or not.
    pub(super) fn steered(self, steered: bool) -> Self {
        Self { steered, ..self }
    }

    /// Returns the stage with pods that come while nodes come up and are drained, or not.
    pub(super) fn eventful(self, eventful: bool) -> Self {
        Self { eventful, ..self }
    }

    /// Returns the stage for that purpose, with so many runs played at once.
    pub(super) fn for_purpose(self, purpose: Purpose, workers: Option<NonZero<usize>>) -> Self {
        Self { purpose, workers, ..self }
    }

    /// Returns the stage on which nodes go at that pace.
    pub(super) fn at_pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    /// Returns the stage on which no node and zone is to hold more.
    pub(super) fn limited(self, shares: shares::Limits<'a>) -> Self {
        Self { shares, ..self }
    }

    /// Counts `tries` of a node by a pod.
    pub(super) fn count_work(&self, tries: u64) {
        self.work.fetch_add(tries, Ordering::Relaxed);
        self.all_work.fetch_add(tries, Ordering::Relaxed);
    }

    /// Counts what setting up nodes comes to, in tries. Of a single search it counts for fleets of thousands of
    /// nodes alone: elsewhere it is little beside the tries that searches are measured in.
    pub(super) fn count_set_up(&self, tries: u64) {
        self.work.fetch_add(tries.saturating_sub(SET_UP_FREE), Ordering::Relaxed);
        self.all_work.fetch_add(tries, Ordering::Relaxed);
    }

    /// Returns the pods times nodes tried since the beginning.
    pub(super) fn all_work(&self) -> u64 {
        self.all_work.load(Ordering::Relaxed)
    }

    /// Returns the pods times nodes tried since they were last forgotten.
    pub(super) fn work(&self) -> u64 {
        self.work.load(Ordering::Relaxed)
    }

    /// Forgets what was counted so far.
    pub(super) fn forget_work(&self) {
        self.work.store(0, Ordering::Relaxed);
    }

    /// Returns the runs that a fleet has to pass.
    fn runs(&self, scene: &Scene) -> Vec<Run> {
        let mut runs = runs::runs(planned_pods(self.groups), scene.nodes(), self.events(scene));
        runs.extend(self.remembered());
        runs
    }

    /// Plays the runs and stops at the first that leaves pods over.
    pub(super) fn rehearse(&self, layout: &Layout) -> Verdict {
        let offers = self.choose_offers(layout);
        let scene = self.scene(layout, &offers);
        let unplaced = self.excluded(layout, &scene);
        let runs = self.runs(&scene);
        // A fleet that does not hold fails most often where the one before it failed.
        let hardest = self.hardest.load(Ordering::Relaxed).min(runs.len() - 1);
        let order: Vec<usize> =
            [hardest].into_iter().chain((0..runs.len()).filter(|run| *run != hardest)).collect();
        let in_order: Vec<Run> = order.iter().map(|run| runs[*run]).collect();
        let guided = self.steered.then(|| self.guided(layout, &scene));
        let cast = Cast { unplaced: &unplaced, guided: guided.as_ref() };
        let mut played = self.play_all(&scene, &in_order, cast);
        let last = played.last().expect("there is at least one run");
        if !last.left.is_empty() {
            self.hardest.store(order[played.len() - 1], Ordering::Relaxed);
            return Verdict::Left(self.missing(&scene, (last, &last.left), &offers));
        }
        if !self.shares.are_none() {
            for (index, performance) in played.iter().enumerate() {
                let too_many = self.too_many(&scene, performance, &offers);
                if !too_many.is_empty() {
                    self.hardest.store(order[index], Ordering::Relaxed);
                    return Verdict::Left(self.missing(&scene, (performance, &too_many), &offers));
                }
            }
        }
        let first = order.iter().position(|run| *run == 0).expect("every run was played");
        let first = scene.placements(&played.swap_remove(first));
        Verdict::Passed(self.settled(layout.clone(), first, offers, unplaced))
    }

    /// Returns the pods by group that a run put where too many are.
    fn too_many(
        &self,
        scene: &Scene,
        performance: &Performance,
        offers: &[usize],
    ) -> BTreeMap<usize, u32> {
        let map = Map { standing: self.ground.standing, offers: self.offers, chosen: offers };
        let placements = scene.placements(performance);
        self.shares.too_many((&placements, &scene.staying), self.groups, map)
    }

    /// Returns the most pods that a run leaves over.
    pub(super) fn most_left(&self, layout: &Layout) -> u32 {
        let offers = self.choose_offers(layout);
        let scene = self.scene(layout, &offers);
        let unplaced = self.excluded(layout, &scene);
        let cast = Cast { unplaced: &unplaced, guided: None };
        let runs = self.runs(&scene);
        let left = runs.iter().map(|run| self.play_one(&scene, *run, cast).left.values().sum());
        left.max().unwrap_or(0)
    }

    /// Plays the runs with ever more pods left out, until every run finds the others a place.
    pub(super) fn as_far_as_possible(&self, layout: &Layout) -> Settled {
        let offers = self.choose_offers(layout);
        let scene = self.scene(layout, &offers);
        let mut unplaced = self.excluded(layout, &scene);
        let runs = self.runs(&scene);
        let guided = self.steered.then(|| self.guided(layout, &scene));
        loop {
            let cast = Cast { unplaced: &unplaced, guided: guided.as_ref() };
            let mut played = self.play_all(&scene, &runs, cast);
            let last = played.last().expect("there is at least one run");
            if last.left.is_empty() {
                let first = scene.placements(&played.swap_remove(0));
                return self.settled(layout.clone(), first, offers, unplaced);
            }
            for (group, count) in &last.left {
                *unplaced.entry(*group).or_insert(0) += count;
            }
        }
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
        let guided = self.steered.then(|| self.guided(layout, &scene));
        let cast = Cast { unplaced: &unplaced, guided: guided.as_ref() };
        let runs = self.runs(&scene);
        let mut played = self.play_all(&scene, &runs, cast);
        if played.last().is_none_or(|last| !last.left.is_empty()) {
            return None;
        }
        let first = scene.placements(&played.swap_remove(0));
        Some(self.settled(layout.clone(), first, offers, unplaced))
    }

    /// Returns what each run leaves over where every pod is in the queue, those that are left out
    /// as well.
    pub(super) fn left_in_each_run(&self, settled: &Settled) -> Vec<BTreeMap<usize, u32>> {
        let scene = self.scene(&settled.layout, &settled.offers);
        let guided = self.steered.then(|| self.guided(&settled.layout, &scene));
        let nobody = BTreeMap::new();
        let cast = || Cast { unplaced: &nobody, guided: guided.as_ref() };
        let runs = self.runs(&scene);
        runs.iter().map(|run| self.play_one(&scene, *run, cast()).left).collect()
    }

    fn settled(
        &self,
        mut layout: Layout,
        placements: Placements,
        offers: Vec<usize>,
        unplaced: BTreeMap<usize, u32>,
    ) -> Settled {
        self.recount(&mut layout, &placements, &offers, &unplaced);
        let packed = layout.price;
        Settled { layout, offers, placements, unplaced, packed }
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
    fn missing(
        &self,
        scene: &Scene,
        (performance, left): (&Performance, &BTreeMap<usize, u32>),
        offers: &[usize],
    ) -> Vec<u32> {
        let model = self.ground.model;
        let placements = scene.placements(performance);
        let mut missing = vec![0; model.classes.len()];
        for (group, count) in left {
            let mut count = *count;
            let mut placed: BTreeMap<usize, u32> = BTreeMap::new();
            for (place, pods) in placements.get(group).into_iter().flatten() {
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
    /// first; only where it leaves over more than the packing does, of those that it serves first,
    /// the packing's word is taken.
    fn excluded(&self, layout: &Layout, scene: &Scene) -> BTreeMap<usize, u32> {
        if layout.packing.left_over() == 0 {
            return BTreeMap::new();
        }
        let first = self.runs(scene)[0];
        let cast = Cast { unplaced: &BTreeMap::new(), guided: None };
        let left = self.play_one(scene, first, cast).left;
        let packed = self.unplaced(layout, &scene.staying);
        let is_no_more = by_priority(&left, self.groups) <= by_priority(&packed, self.groups);
        if is_no_more { left } else { packed }
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

    /// Returns how many nodes of each pool stay in each zone.
    pub(super) fn zones_of(&self, layout: &Layout) -> BTreeMap<(&str, ZoneName), u32> {
        let mut zones = BTreeMap::new();
        for (node, kept) in self.ground.standing.iter().zip(&layout.kept) {
            if let (true, Some(pool), Some(zone)) = (*kept, &node.pool, zone_of(&node.labels)) {
                *zones.entry((pool.as_str(), zone.into())).or_insert(0) += 1;
            }
        }
        zones
    }

    /// Among zones at the same price the one with the fewest nodes of the pool is taken.
    pub(super) fn choose_offers(&self, layout: &Layout) -> Vec<usize> {
        let mut zones = self.zones_of(layout);
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
}

/// What the runs say of a layout.
pub(super) enum Verdict {
    /// Every run found each pod a place.
    Passed(Settled),
    /// A run left these pods over, by class.
    Left(Vec<u32>),
}
