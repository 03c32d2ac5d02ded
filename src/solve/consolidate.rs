//! Which nodes go: those that should leave, those that are empty, and those whose removal or
//! replacement saves more than the moves cost.

use super::Settings;
use super::layout::{Ground, Layout};
use super::standing::Fate;
use crate::ids::NodeName;
use crate::units::MicroUsd;

/// Rounds of improvement; each accepted round strictly lowers the price, this bounds the work.
const ROUNDS_MAX: usize = 64;

/// Candidates up to which pairs are tried as well.
const PAIRS_MAX: usize = 16;

/// Candidates above which the first improvement of a round is taken instead of the best.
const EXHAUSTIVE_MAX: usize = 48;

/// A change that was looked at: nodes that would go, what that saves, what it moves.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    pub layout: Layout,
    pub saves: MicroUsd,
    pub needed: MicroUsd,
    pub moves: u32,
}

/// The outcome.
#[derive(Debug, Clone)]
pub(super) struct Consolidated {
    /// Where pods are in the end.
    pub layout: Layout,
    /// Price before any voluntary change, new nodes for pending pods included.
    pub baseline: MicroUsd,
    /// Nodes that should leave but hold pods that have no other place, by index.
    pub stuck: Vec<usize>,
    /// For each node that stays, the best change of it alone that was not worth it.
    pub declined: std::collections::BTreeMap<NodeName, (MicroUsd, MicroUsd, u32)>,
}

/// Returns the layout after every removal and replacement that is worth it.
pub(super) fn consolidate(ground: &Ground, settings: &Settings) -> Consolidated {
    let (start, stuck) = without_leavers(ground);
    let baseline = start.price;
    let mut layout = start;
    let mut declined = std::collections::BTreeMap::new();
    for _ in 0..ROUNDS_MAX {
        drop_empty(ground, &mut layout);
        declined.clear();
        match improve(ground, settings, &layout, &mut declined) {
            Some(better) => layout = better,
            None => break,
        }
    }
    drop_empty(ground, &mut layout);
    declined.retain(|name, _| {
        ground.standing.iter().zip(&layout.kept).any(|(node, kept)| *kept && node.name == *name)
    });
    Consolidated { layout, baseline, stuck, declined }
}

/// Leaves out the nodes that should leave, unless that would leave pods without a place.
fn without_leavers(ground: &Ground) -> (Layout, Vec<usize>) {
    let leaves = |i: usize| matches!(ground.standing[i].fate, Fate::Leaves(_));
    let all = ground.layout(vec![true; ground.standing.len()]);
    let mut layout = all;
    let mut stuck = Vec::new();
    for index in (0..ground.standing.len()).filter(|i| leaves(*i)) {
        let mut kept = layout.kept.clone();
        kept[index] = false;
        let trial = ground.layout(kept);
        if trial.packing.left_over() > layout.packing.left_over() {
            stuck.push(index);
        } else {
            layout = trial;
        }
    }
    (layout, stuck)
}

/// Nodes that hold nothing go; nothing else changes.
fn drop_empty(ground: &Ground, layout: &mut Layout) {
    for (index, node) in ground.standing.iter().enumerate() {
        let may_go = matches!(node.fate, Fate::Free | Fate::OnlyWhenEmpty(_));
        if may_go && layout.kept[index] && layout.on[index].is_empty() {
            layout.kept[index] = false;
            layout.price = layout.price - node.price.unwrap_or_default();
        }
    }
}

fn improve(
    ground: &Ground,
    settings: &Settings,
    layout: &Layout,
    declined: &mut std::collections::BTreeMap<NodeName, (MicroUsd, MicroUsd, u32)>,
) -> Option<Layout> {
    let candidates = candidates(ground, layout);
    let mut best: Option<(MicroUsd, Layout)> = None;
    for set in sets(&candidates) {
        let trial = try_without(ground, settings, layout, &set);
        let gain = settings.gain(trial.saves, trial.moves);
        let worth_it = trial.layout.packing.left_over() <= layout.packing.left_over()
            && gain > MicroUsd::ZERO
            && trial.saves >= trial.needed;
        if !worth_it {
            if let [only] = set.as_slice() {
                let name = ground.standing[*only].name.clone();
                declined.insert(name, (trial.saves, trial.needed, trial.moves));
            }
        } else if best.as_ref().is_none_or(|(held, _)| gain > *held) {
            best = Some((gain, trial.layout));
            if candidates.len() > EXHAUSTIVE_MAX {
                break;
            }
        }
    }
    best.map(|(_, layout)| layout)
}

/// Nodes that may go, the most wasteful first.
fn candidates(ground: &Ground, layout: &Layout) -> Vec<usize> {
    let wasted = |i: usize| {
        let node = &ground.standing[i];
        let worth =
            |(class, n): (&usize, &u32)| ground.model.classes[*class].worth * i128::from(*n);
        let used: i128 = layout.on[i].iter().map(worth).sum();
        i128::from(node.price.unwrap_or_default().0) * 1000 - used
    };
    let free = |i: &usize| {
        let node = &ground.standing[*i];
        layout.kept[*i] && node.fate == Fate::Free && node.price.is_some()
    };
    let mut list: Vec<usize> = (0..ground.standing.len()).filter(free).collect();
    list.sort_by_key(|i| (std::cmp::Reverse(wasted(*i)), *i));
    list
}

/// The sets of nodes to try: each alone, pairs where there are few, and the most wasteful 2, 3, 4,
/// 6, 8, 12, … together up to all.
fn sets(candidates: &[usize]) -> Vec<Vec<usize>> {
    let mut sets: Vec<Vec<usize>> = candidates.iter().map(|i| vec![*i]).collect();
    if candidates.len() <= PAIRS_MAX {
        let pairs = candidates
            .iter()
            .enumerate()
            .flat_map(|(at, a)| candidates[at + 1..].iter().map(move |b| vec![*a, *b]));
        sets.extend(pairs);
    }
    let mut size = 2;
    while size < candidates.len() {
        sets.push(candidates[..size].to_vec());
        size += (size / 2).max(1);
    }
    if candidates.len() > 1 {
        sets.push(candidates.to_vec());
    }
    sets
}

fn try_without(ground: &Ground, settings: &Settings, layout: &Layout, set: &[usize]) -> Trial {
    let mut kept = layout.kept.clone();
    for index in set {
        kept[*index] = false;
    }
    let trial = ground.layout(kept);
    let affected: MicroUsd =
        set.iter().map(|i| ground.standing[*i].price.unwrap_or_default()).sum();
    let moves = set.iter().map(|i| layout.staying[*i]).sum();
    let saves = layout.price - trial.price;
    Trial { saves, needed: settings.needed_saving(affected, moves), moves, layout: trial }
}
