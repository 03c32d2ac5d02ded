//! Which nodes go: those that should leave, those that are empty, and those whose removal or
//! replacement saves more than the moves cost.
//!
//! Every candidate is judged by its packing first, which is cheap, and the promising ones by the
//! rehearsal, which decides: a node that only a perfect scheduler could do without stays.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::Settings;
use super::layout::{Ground, Layout};
use super::pace::Pace;
use super::rehearse::{Settled, Stage, Verdict};
use super::runs::{Run, occupied, planned_pods};
use super::settle::is_rehearsed;
use super::standing::{Fate, Leave, Standing};
use super::target::{BlockReason, KeepReason};
use crate::ids::NodeName;
use crate::pod::{TopologySpread, WhenUnsatisfiable};
use crate::requirement::key;
use crate::units::MicroUsd;

/// Rounds of improvement; each accepted round strictly lowers the price, this bounds the work.
const ROUNDS_MAX: usize = 64;

/// Candidates up to which pairs are tried as well.
const PAIRS_MAX: usize = 16;

/// Nodes that are tried alone in one round, the most wasteful first.
const SINGLES_MAX: usize = 96;
const SINGLES_MIN: usize = 8;

/// Classes times nodes that all tries of single nodes in one round may come to.
const SINGLES_WORK: usize = 2_000_000;

/// Promising sets that are rehearsed in one round: fewer where each is more work.
const REHEARSED_MAX: usize = 48;
const REHEARSED_MIN: usize = 3;

/// Pods times nodes that all rehearsals of one round may come to.
const REHEARSED_WORK: u64 = 1_000_000;

/// Pods times nodes that the rehearsals of one answer may come to beyond those of what is needed: some seconds of one
/// core. What else could go from a fleet so large is found by later plans.
const WORK_MAX: u64 = 1_000_000_000;

/// Pods times nodes above which a set that costs too much is not followed to its price.
const CAPPED_WORK: u64 = 1_000_000;

/// The outcome.
pub(super) struct Consolidated {
    /// Where pods are in the end.
    pub settled: Settled,
    /// Price before any voluntary change, new nodes for pending pods included.
    pub baseline: MicroUsd,
    /// For each node that stays, the best change of it alone that was not worth it.
    pub declined: BTreeMap<NodeName, Declined>,
    /// Nodes that stay only because no more of their pool may go.
    pub barred: BTreeSet<NodeName>,
    /// Draws that were made runs.
    pub drawn: Vec<Run>,
    /// Whether more may go than was looked at.
    pub is_cut_short: bool,
}

/// A change that was not worth it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Declined {
    /// What it would save per hour.
    pub saves: MicroUsd,
    /// What it would have to save.
    pub needed: MicroUsd,
    /// Running pods it would move.
    pub moves: u32,
}

/// Returns the layout after every removal and replacement that is worth it.
pub(super) fn consolidate(stage: &Stage, settings: &Settings) -> Consolidated {
    let mut settled = settled_at_best(stage, &without_leavers(&stage.ground));
    settled = stage.let_in(stage.sought(with_needed_leavers(stage, settled)));
    settled = stage.hardened(settled);
    let baseline = settled.layout.price;
    let (declined, barred) = (BTreeMap::new(), BTreeSet::new());
    let occupied = occupied(stage.groups);
    let ends = stage.all_work().saturating_add(WORK_MAX);
    let mut round = Round { stage, settings, occupied, declined, barred, ends };
    for _ in 0..ROUNDS_MAX {
        if round.is_enough() {
            break;
        }
        match round.improve(&settled) {
            Some(better) => settled = better,
            None => break,
        }
    }
    round.note_barred(&settled);
    let kept = |name: &NodeName| {
        let mut nodes = stage.ground.standing.iter().zip(&settled.layout.kept);
        nodes.any(|(node, kept)| *kept && node.name == *name)
    };
    let is_cut_short = round.is_enough();
    let Round { mut declined, mut barred, .. } = round;
    declined.retain(|name, _| kept(name));
    barred.retain(kept);
    let drawn = stage.remembered();
    Consolidated { settled, baseline, declined, barred, drawn, is_cut_short }
}

/// Leaves out the nodes that should leave, unless that would leave pods without a place.
pub(super) fn without_leavers(ground: &Ground) -> Layout {
    let leaves = |i: usize| matches!(ground.standing[i].fate, Fate::Leaves(_));
    let mut layout = ground.layout(vec![true; ground.standing.len()]);
    for index in (0..ground.standing.len()).filter(|i| leaves(*i)) {
        let mut kept = layout.kept.clone();
        kept[index] = false;
        let trial = ground.layout(kept);
        let goes_anyway = ground.standing[index].leave == Leave::Anyway;
        if goes_anyway || trial.packing.leaves_no_more_than(&layout.packing) {
            layout = trial;
        }
    }
    ground.repacked(layout)
}

/// Returns the layout with no node more than every run needs.
fn settled_at_best(stage: &Stage, layout: &Layout) -> Settled {
    on_what_stands(stage, layout).unwrap_or_else(|| stage.rescued(stage.settle(layout)))
}

/// Returns the layout without new nodes, where kube-scheduler places every pod all the same: then
/// none of them is ever pending, whatever rules of one node say of new nodes. Pods that spread over
/// other domains get theirs, which kube-scheduler would not miss.
fn on_what_stands(stage: &Stage, layout: &Layout) -> Option<Settled> {
    let model = stage.ground.model;
    let mut classes = layout.packing.opened.iter().flat_map(|node| node.pods.keys());
    let spreads_wide = |class: &usize| {
        let mut groups = model.classes[*class].groups();
        groups.any(|group| stage.groups[group].shape.spread.iter().any(is_wide))
    };
    let is_none = layout.packing.opened.is_empty() || !is_rehearsed(stage.groups);
    if is_none || classes.any(spreads_wide) {
        return None;
    }
    let mut bare = layout.clone();
    bare.price = bare.price - bare.packing.price(stage.ground.model);
    bare.packing.opened.clear();
    bare.packing.left.fill(0);
    match stage.rehearse(&bare) {
        Verdict::Passed(settled) => Some(settled),
        Verdict::Left(_) => None,
    }
}

fn is_wide(rule: &TopologySpread) -> bool {
    rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule
        && rule.topology_key.as_str() != key::HOSTNAME
}

/// Keeps nodes that should leave as long as pods would have no place without them.
fn with_needed_leavers(stage: &Stage, mut settled: Settled) -> Settled {
    for index in 0..stage.ground.standing.len() {
        let leaves = stage.ground.standing[index].may_stay_after_all();
        let could_help =
            || settled.unplaced.keys().any(|group| stage.could_stand_on(*group, index));
        if !leaves || settled.layout.kept[index] || !could_help() {
            continue;
        }
        let mut kept = settled.layout.kept.clone();
        kept[index] = true;
        let trial = settled_at_best(stage, &stage.ground.layout(kept));
        if trial.left(stage.groups) < settled.left(stage.groups) {
            settled = trial;
        }
    }
    settled
}

/// A set of nodes that could go, and what that comes to.
struct Trial {
    set: Vec<usize>,
    layout: Layout,
    gain: MicroUsd,
    needed: MicroUsd,
    moves: u32,
}

struct Round<'a> {
    stage: &'a Stage<'a>,
    settings: &'a Settings,
    /// Nodes that planned workloads have pods on.
    occupied: BTreeSet<&'a NodeName>,
    declined: BTreeMap<NodeName, Declined>,
    barred: BTreeSet<NodeName>,
    /// Work of the stage after which nothing further is tried.
    ends: u64,
}

impl Round<'_> {
    /// Returns whether so much was tried that what else could go is left to a later plan.
    fn is_enough(&self) -> bool {
        self.stage.all_work() > self.ends
    }

    /// Returns the best change that holds in the rehearsal.
    fn improve(&mut self, current: &Settled) -> Option<Settled> {
        self.declined.clear();
        let sets = self.sets(&current.layout);
        let mut trials: Vec<Trial> = self
            .at_pace(&current.layout, sets)
            .into_iter()
            .filter_map(|set| self.try_without(current, set))
            .collect();
        trials.sort_by_key(|trial| (Reverse(trial.gain), trial.set.len()));
        for trial in trials.into_iter().take(self.rehearsals()) {
            if self.is_enough() {
                break;
            }
            if let Some(better) = self.rehearsed(current, trial) {
                return Some(better);
            }
        }
        None
    }

    /// Packs without the nodes of `set`; `None` where even the packing says it is not worth it.
    fn try_without(&mut self, current: &Settled, set: Vec<usize>) -> Option<Trial> {
        let ground = &self.stage.ground;
        let mut kept = current.layout.kept.clone();
        for index in &set {
            kept[*index] = false;
        }
        let layout = ground.trial_layout(kept);
        // Nodes that are only planned are planned away at no cost.
        let real = || set.iter().filter(|i| !ground.standing[**i].is_new);
        let affected: MicroUsd = real().map(|i| price_of(&ground.standing[*i])).sum();
        let moves = real().map(|i| current.layout.stay_on(*i)).sum();
        let needed = self.settings.needed_saving(affected, moves);
        let saves = current.layout.price - layout.price;
        let gain = self.settings.gain(saves, moves);
        let fits = layout.packing.leaves_no_more_than(&current.layout.packing);
        if fits && gain > MicroUsd::ZERO && saves >= needed {
            return Some(Trial { set, layout, gain, needed, moves });
        }
        self.decline(&set, Declined { saves, needed, moves });
        None
    }

    /// Rehearses a trial; what it takes for every order to pass counts against it.
    fn rehearsed(&mut self, current: &Settled, trial: Trial) -> Option<Settled> {
        let Trial { set, layout, needed, moves, .. } = trial;
        let settled = if self.is_capped(current, &set) {
            // One more than what it may cost, so that it is below.
            let cap = current.layout.price - needed + MicroUsd(1);
            self.stage.settle_below(&layout, cap)?
        } else {
            self.stage.settle_trial(&layout)
        };
        let saves = current.layout.price - settled.layout.price;
        // Not one pod more may be without a place, of whichever workload.
        let has_place = |(group, pods): (&usize, &u32)| {
            current.unplaced.get(group).is_some_and(|before| pods <= before)
        };
        let holds = settled.unplaced.iter().all(has_place);
        let holds = holds && !self.leans_on_starting(current, &settled);
        let pays = saves >= needed && self.settings.gain(saves, moves) > MicroUsd::ZERO;
        if holds && pays && self.stage.is_as_sure(&settled, current, 0) {
            return Some(settled);
        }
        self.decline(&set, Declined { saves, needed, moves });
        None
    }

    /// Returns whether a set is given up as soon as it turns out to cost too much: where it is work to
    /// find out how much, and nobody is told.
    fn is_capped(&self, current: &Settled, set: &[usize]) -> bool {
        let nodes = u64::try_from(current.layout.kept.len()).unwrap_or(u64::MAX);
        let work = planned_pods(self.stage.groups).saturating_mul(nodes);
        current.unplaced.is_empty()
            && set.len() > 1
            && work > CAPPED_WORK
            && is_rehearsed(self.stage.groups)
    }

    /// Returns whether pods would move to nodes that are not Ready yet: they may never be.
    fn leans_on_starting(&self, current: &Settled, next: &Settled) -> bool {
        let starts = |index: &usize| match &self.stage.ground.standing[*index].fate {
            Fate::Stays(KeepReason::Blocked { by }) => *by == BlockReason::NotReady,
            Fate::Stays(_) | Fate::OnlyWhenEmpty(_) | Fate::Free | Fate::Leaves(_) => false,
        };
        let pods = |settled: &Settled, index: usize| settled.layout.on[index].values().sum::<u32>();
        let mut starting = (0..self.stage.ground.standing.len()).filter(starts);
        starting.any(|index| pods(next, index) > pods(current, index))
    }

    fn decline(&mut self, set: &[usize], declined: Declined) {
        if let [only] = set {
            let name = self.stage.ground.standing[*only].name.clone();
            self.declined.insert(name, declined);
        }
    }

    /// The nodes that may go, the most wasteful first.
    fn may_go(&self, layout: &Layout) -> Vec<usize> {
        let standing = self.stage.ground.standing;
        let there = |i: &usize| layout.kept[*i];
        let idle = |i: &usize| layout.staying[*i].is_empty();
        let may_go = |i: &usize| match standing[*i].fate {
            Fate::Free => idle(i) || standing[*i].price.is_some(),
            Fate::OnlyWhenEmpty(_) => !self.occupied.contains(&standing[*i].name),
            Fate::Stays(_) | Fate::Leaves(_) => false,
        };
        let mut all: Vec<usize> = (0..standing.len()).filter(there).filter(may_go).collect();
        all.sort_by_key(|i| (Reverse(self.wasted(layout, *i)), *i));
        all
    }

    /// The sets of nodes to try: all that nothing runs on, each alone, pairs where there are few,
    /// and the most wasteful 2, 3, 4, 6, 9, … together up to all.
    fn sets(&self, layout: &Layout) -> Vec<Vec<usize>> {
        let standing = self.stage.ground.standing;
        let all = self.may_go(layout);
        let idle = |i: &usize| layout.staying[*i].is_empty();
        let empty: Vec<usize> = all.iter().copied().filter(idle).collect();
        let free: Vec<usize> =
            all.iter().copied().filter(|i| standing[*i].fate == Fate::Free).collect();
        let mut sets: Vec<Vec<usize>> = all.iter().take(self.singles()).map(|i| vec![*i]).collect();
        if free.len() <= PAIRS_MAX {
            let pairs = free.iter().enumerate();
            sets.extend(pairs.flat_map(|(at, a)| free[at + 1..].iter().map(|b| vec![*a, *b])));
        }
        let mut size = 2;
        while size < free.len() {
            sets.push(free[..size].to_vec());
            size += (size / 2).max(1);
        }
        sets.extend([empty, free].into_iter().filter(|set| set.len() > 1));
        sets
    }

    /// Leaves out of each set what budgets of pools keep beside what is gone.
    fn at_pace(&self, layout: &Layout, sets: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
        let pace = self.pace_beside(layout);
        let mut seen = BTreeSet::new();
        let sets = sets.into_iter().map(|set| pace.within(set, self.stage.ground.standing));
        sets.filter(|set| !set.is_empty() && seen.insert(set.clone())).collect()
    }

    /// Returns how many nodes may go beside those that do.
    fn pace_beside(&self, layout: &Layout) -> Pace {
        let gone = self.stage.ground.standing.iter().zip(&layout.kept).filter(|(_, kept)| !**kept);
        self.stage.pace.without(gone.map(|(node, _)| &node.name))
    }

    /// Notes the nodes that would go beside those that do if more of their pool might: those that
    /// nothing is on together, then one after the other what pays. What is needed, or not worth it
    /// without those, no budget keeps.
    fn note_barred(&mut self, settled: &Settled) {
        let pace = self.pace_beside(&settled.layout);
        if pace.is_unbounded() {
            return;
        }
        let standing = self.stage.ground.standing;
        let mut waits = self.may_go(&settled.layout);
        waits.retain(|index| !pace.lets(&standing[*index].name));
        let is_idle = |index: &usize| settled.layout.on[*index].is_empty();
        let idle: Vec<usize> = waits.iter().copied().filter(is_idle).collect();
        let alone = waits.into_iter().map(|index| vec![index]);
        let sets = std::iter::once(idle).filter(|set| !set.is_empty()).chain(alone);
        let (mut beyond, mut rehearsals) = (settled.clone(), self.rehearsals());
        for set in sets.take(self.singles()) {
            if rehearsals == 0
                || self.is_enough()
                || set.iter().any(|index| !beyond.layout.kept[*index])
            {
                continue;
            }
            let Some(trial) = self.try_without(&beyond, set.clone()) else { continue };
            rehearsals -= 1;
            if let Some(next) = self.rehearsed(&beyond, trial) {
                self.barred.extend(set.iter().map(|index| standing[*index].name.clone()));
                beyond = next;
            }
        }
    }

    /// Promising sets rehearsed in one round.
    fn rehearsals(&self) -> usize {
        let pods = self.stage.ground.model.classes.iter().map(|class| u64::from(class.planned));
        let nodes = u64::try_from(self.stage.ground.standing.len()).unwrap_or(u64::MAX);
        let work = pods.fold(0, u64::saturating_add).saturating_mul(nodes).max(1);
        usize::try_from(REHEARSED_WORK / work)
            .unwrap_or(REHEARSED_MAX)
            .clamp(REHEARSED_MIN, REHEARSED_MAX)
    }

    /// Nodes tried alone in one round: fewer where each try is more work.
    fn singles(&self) -> usize {
        let model = self.stage.ground.model;
        let work = model.classes.len().saturating_mul(model.bins.len()).max(1);
        (SINGLES_WORK / work).clamp(SINGLES_MIN, SINGLES_MAX)
    }

    /// The price of a node that the pods on it are not worth.
    fn wasted(&self, layout: &Layout, node: usize) -> i128 {
        let worth = |(class, n): (&usize, &u32)| {
            self.stage.ground.model.classes[*class].worth * i128::from(*n)
        };
        let used: i128 = layout.on[node].iter().map(worth).sum();
        i128::from(price_of(&self.stage.ground.standing[node]).0) * 1000 - used
    }
}

/// The price of a node; one whose price is not known counts as the least there is, so that it
/// goes when nothing needs it and is never replaced to save money.
pub(super) fn price_of(node: &Standing) -> MicroUsd {
    node.price.unwrap_or(MicroUsd(1))
}
