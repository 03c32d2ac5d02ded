//! Pods that the packing has no place for, asked of the scheduler itself.
//!
//! The packing follows rules between pods by amounts, which is quick and sometimes wrong: it may
//! think a pod has no place where there is one. So the pods that are left over in the end are put
//! to the model of the scheduler one by one: is there a node after all, or one that could be
//! launched? The answer is rehearsed like any other before it counts.

mod elsewhere;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::layout::Layout;
use super::limits::Limits;
use super::offer::{Offer, admits};
use super::pack::Opened;
use super::rehearse::{Settled, Stage, Verdict};
use super::settle::is_rehearsed;
use super::target::Place;
use crate::demand::PodGroup;
use crate::ids::{LabelKey, LabelValue, PoolName, WorkloadId};
use crate::schedule::{Budget, ClassIndex, NodeIndex, Preemption, Scheduler, UnfitReason};

/// Times that pods are put to the scheduler again after some of them found a place.
const ROUNDS_MAX: u32 = 10;

/// Pods of one group, and of all groups, that are asked for one by one; each round for twice as many.
const ASKED_MAX: u32 = 256;
const ASKED_OF_ALL_MAX: u32 = 2_048;

/// Offers of one kind of place that are tried before the place is taken to be wrong.
const TRIES_OF_PLACE: usize = 2;

/// What the scheduler says of one more pod on nodes that could be launched.
pub(super) struct Hearing<'a> {
    rescue: Rescue<'a>,
    classes: Vec<ClassIndex>,
    known: BTreeMap<(usize, Where<'a>), Vec<UnfitReason>>,
    /// What is left of the limits of pools.
    limits: Limits,
}

impl<'a> Hearing<'a> {
    /// Returns a hearing over the fleet as it was settled.
    pub(super) fn of(stage: &'a Stage<'a>, settled: &Settled) -> Self {
        let rescue = Rescue::of(stage, settled);
        let classes = stage.scene(&settled.layout, &settled.offers).classes;
        let limits = stage.ground.limits_after(&rescue.layout.packing.opened);
        Self { rescue, classes, known: BTreeMap::new(), limits }
    }

    /// Returns the hearing with budgets that evictions respect where they can.
    pub(super) fn with_budgets(mut self, budgets: Vec<Budget>) -> Self {
        self.rescue.scheduler = self.rescue.scheduler.with_budgets(budgets);
        self
    }

    /// Puts one more pod of the group where the scheduler would, and returns whose pods are evicted
    /// for it; none where it has room without. `None` where no eviction helps.
    pub(super) fn evict_for(&mut self, group: usize) -> Option<Vec<&'a WorkloadId>> {
        let (class, stage) = (self.classes[group], self.rescue.stage);
        let scheduler = &mut self.rescue.scheduler;
        if scheduler.try_schedule(class, None).is_some() {
            return Some(Vec::new());
        }
        let Preemption { node, victims } = scheduler.preempt(class)?;
        let groups = self.classes.iter().zip(stage.groups.iter().map(|group| &group.workload));
        let daemons = stage.daemons.iter().map(|daemon| &daemon.workload);
        let known: BTreeMap<ClassIndex, &WorkloadId> =
            self.rescue.daemons.iter().zip(daemons).chain(groups).map(|(c, w)| (*c, w)).collect();
        for victim in &victims {
            scheduler.unbind(*victim, node);
        }
        scheduler.bind(class, node);
        Some(victims.iter().filter_map(|victim| known.get(victim).copied()).collect())
    }

    /// Returns whether the limits of its pool leave room for one more node of the offer.
    pub(super) fn is_within_limits(&self, offer: usize) -> bool {
        self.limits.allows(self.rescue.stage.ground.model.of_offer[offer])
    }

    /// Returns whether they would once the nodes that go are gone; until then those count, because
    /// new nodes come first.
    pub(super) fn is_within_limits_once_applied(&self, offer: usize) -> bool {
        let Rescue { stage, layout, .. } = &self.rescue;
        let mut limits = stage.ground.limits_after(&layout.packing.opened);
        let gone = stage.ground.standing.iter().zip(&layout.kept).filter(|(_, kept)| !**kept);
        gone.for_each(|(node, _)| limits.let_go(node));
        limits.allows(stage.ground.model.of_offer[offer])
    }

    /// Returns what rules out a pod of the group, which has room there, on a node of the offer.
    pub(super) fn refusal(&mut self, group: usize, offer: usize) -> Vec<UnfitReason> {
        let place = self.rescue.place_of(offer);
        if let Some(known) = self.known.get(&(group, place.clone())) {
            return known.clone();
        }
        let at = self.rescue.add(offer);
        let reasons = self.rescue.scheduler.fits(self.classes[group], at).err().unwrap_or_default();
        self.rescue.scheduler.remove_node(at);
        self.known.insert((group, place), reasons.clone());
        reasons
    }
}

/// The scheduler with every placed pod in its place, and nodes that are launched as they are needed.
struct Rescue<'a> {
    stage: &'a Stage<'a>,
    scheduler: Scheduler,
    daemons: Vec<ClassIndex>,
    layout: Layout,
    /// How many nodes are launched.
    launches: usize,
    /// The offers, those of the heaviest pools first, of each weight the cheapest.
    order: Vec<usize>,
    keys: BTreeSet<&'a LabelKey>,
}

impl Stage<'_> {
    /// Returns `settled` with as many of the pods left over as the scheduler finds places for.
    pub(super) fn rescued(&self, mut settled: Settled) -> Settled {
        for round in 0..ROUNDS_MAX {
            if settled.unplaced.is_empty() {
                break;
            }
            if !is_rehearsed(self.groups) {
                break;
            }
            let Some(layout) = self.with_room(&settled, 1 << round) else { break };
            let trial = match self.rehearse(&layout) {
                Verdict::Passed(passed) => passed,
                Verdict::Left(_) => self.as_far_as_possible(&layout),
            };
            if trial.left(self.groups) >= settled.left(self.groups) {
                break;
            }
            settled = self.without_idle(trial);
        }
        settled
    }

    /// Leaves out nodes that were launched for pods which then went elsewhere.
    pub(super) fn without_idle(&self, settled: Settled) -> Settled {
        let mut layout = settled.layout.clone();
        let nodes = layout.packing.opened.iter_mut().zip(&settled.offers);
        nodes.for_each(|(node, offer)| node.offer = Some(*offer));
        layout.packing.opened.retain(|node| !node.pods.is_empty());
        if layout.packing.opened.len() == settled.offers.len() {
            return settled;
        }
        layout.price = settled.layout.price - settled.layout.packing.price(self.ground.model)
            + layout.packing.price(self.ground.model);
        match self.rehearse(&layout) {
            Verdict::Passed(leaner) if leaner.unplaced == settled.unplaced => leaner,
            Verdict::Passed(_) | Verdict::Left(_) => settled,
        }
    }

    /// Returns the layout in which pods that were left over are expected to find a place; so many
    /// times as many of them are asked for as at first.
    fn with_room(&self, settled: &Settled, times: u32) -> Option<Layout> {
        let mut rescue = Rescue::of(self, settled);
        let mut groups: Vec<usize> = settled.unplaced.keys().copied().collect();
        groups.sort_by_key(|group| (Reverse(self.groups[*group].shape.priority), *group));
        let classes = self.scene(&settled.layout, &settled.offers).classes;
        let (mut found, mut asked) = (0, 0);
        for group in groups {
            if !self.groups[group].shape.unsupported.is_empty() {
                continue;
            }
            let wanted = settled.unplaced[&group]
                .min(ASKED_MAX * times)
                .min(ASKED_OF_ALL_MAX * times - asked);
            asked += wanted;
            for _ in 0..wanted {
                if !rescue.place(group, classes[group]) {
                    break;
                }
                let last = self.ground.model.of_group[group].last();
                if let Some(class) = last {
                    let left = &mut rescue.layout.packing.left[*class];
                    *left = left.saturating_sub(1);
                }
                found += 1;
            }
        }
        (found > 0).then_some(rescue.layout)
    }
}

impl<'a> Rescue<'a> {
    fn of(stage: &'a Stage<'a>, settled: &Settled) -> Self {
        let scene = stage.scene(&settled.layout, &settled.offers);
        let mut scheduler = scene.scheduler;
        for (group, places) in &settled.placements {
            for (place, count) in places {
                let name = match place {
                    Place::Node(name) => name.clone(),
                    Place::Launch(index) => format!("launch/{index}").as_str().into(),
                };
                let node = scheduler.node(&name).expect("pods are placed on nodes of the scene");
                let stays = scene.staying.get(group).and_then(|on| on.get(place)).unwrap_or(&0);
                for _ in *stays..*count {
                    scheduler.bind(scene.classes[*group], node);
                }
            }
        }
        let mut layout = settled.layout.clone();
        for (node, offer) in layout.packing.opened.iter_mut().zip(&settled.offers) {
            node.offer = Some(*offer);
        }
        let (launches, keys) = (settled.offers.len(), keys_of_rules(stage.groups));
        let mut order: Vec<usize> = (0..stage.offers.len()).collect();
        order.sort_by_key(|offer| Reverse(stage.offers[*offer].weight));
        Self { stage, scheduler, daemons: scene.daemons, layout, launches, order, keys }
    }

    /// Finds a place for one pod, on a node that is there or on one that is launched for it.
    fn place(&mut self, group: usize, class: ClassIndex) -> bool {
        self.scheduler.try_schedule(class, None).is_some()
            || self.launch_for(group, class).is_some_and(|node| {
                self.scheduler.bind(class, node);
                true
            })
    }

    /// Returns where the nodes of an offer are, as far as rules between pods can tell.
    fn place_of(&self, offer: usize) -> Where<'a> {
        place_of_offer(&self.stage.offers[offer], &self.keys)
    }

    /// Adds a node of the offer, with the pods of its DaemonSets.
    fn add(&mut self, offer: usize) -> NodeIndex {
        let node = self.stage.new_node(offer, self.launches);
        let at = self.scheduler.add_node(node.clone());
        self.stage.bind_daemons(&mut self.scheduler, &self.daemons, (&node, at));
        at
    }

    /// Launches the cheapest node on which the scheduler would let a pod of the group run, of the
    /// heaviest pool that has one.
    fn launch_for(&mut self, group: usize, class: ClassIndex) -> Option<NodeIndex> {
        let stage = self.stage;
        let shape = &stage.groups[group].shape;
        let limits = stage.ground.limits_after(&self.layout.packing.opened);
        let mut wrong: BTreeMap<Where, usize> = BTreeMap::new();
        for index in self.order.clone() {
            let offer = &stage.offers[index];
            let node = &offer.node;
            let column = stage.ground.model.of_offer[index];
            let place = self.place_of(index);
            let suits = limits.allows(column)
                && wrong.get(&place).is_none_or(|tries| *tries < TRIES_OF_PLACE)
                && shape.requests.fits(&offer.room)
                && admits(shape, &node.labels, &node.taints);
            if !suits {
                continue;
            }
            let at = self.add(index);
            if self.scheduler.fits(class, at).is_ok() {
                let pods = BTreeMap::new();
                self.layout.packing.opened.push(Opened { column, pods, offer: Some(index) });
                self.layout.price += offer.node.price;
                self.launches += 1;
                return Some(at);
            }
            self.scheduler.remove_node(at);
            *wrong.entry(place).or_insert(0) += 1;
        }
        None
    }
}

/// What rules between pods may tell offers apart by: pool, and the labels that make domains.
pub(super) type Where<'a> = (&'a PoolName, Vec<Option<&'a LabelValue>>);

/// Returns where the nodes of an offer are, as far as rules over these labels can tell.
pub(super) fn place_of_offer<'a>(offer: &'a Offer, keys: &BTreeSet<&LabelKey>) -> Where<'a> {
    let node = &offer.node;
    (&node.pool, keys.iter().map(|key| node.labels.get(*key)).collect())
}

/// Returns the labels that make domains for some rule between pods.
pub(super) fn keys_of_rules(groups: &[PodGroup]) -> BTreeSet<&LabelKey> {
    groups.iter().flat_map(keys_of).collect()
}

fn keys_of(group: &PodGroup) -> Vec<&LabelKey> {
    let shape = &group.shape;
    let terms = shape.affinity.required.iter().chain(&shape.anti_affinity.required);
    let spread = shape.spread.iter().map(|rule| &rule.topology_key);
    terms.map(|term| &term.topology_key).chain(spread).collect()
}
