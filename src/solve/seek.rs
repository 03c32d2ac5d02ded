//! Other fleets for pods that have no place.
//!
//! Limits, spreading and affinity make the place of one pod depend on which nodes there are beside
//! it: a larger node where only one may be had, one more node in another zone for the least to
//! rise, a node that should leave and has to stay. What to change is not worked out from the rules
//! but sought: fleets that differ by one node are rehearsed, the one that leaves the fewest pods
//! over is changed again, and so on.
//!
//! Invariant: what comes back leaves no more pods over than what went in, those of higher priority
//! first; the work is counted, never timed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::layout::{Counts, Layout};
use super::offer::admits;
use super::pack::{Opened, Packing};
use super::rehearse::{Settled, Stage};
use super::rescue::{keys_of_rules, place_of_offer};
use super::runs::planned_pods;
use super::settle::pinned;
use super::standing::Fate;

/// Fleets that are rehearsed in one search.
const FLEETS_MAX: usize = 96;
/// Most nodes that are added one by one in the end.
const CLIMBS_MAX: usize = 32;

/// Pods times nodes that the rehearsals of one search may come to.
const WORK_MAX: u64 = 2_000_000;

/// Kinds of new nodes that a search chooses from.
const KINDS_MAX: usize = 16;

/// Nodes of one kind that are added at once: where pods spread, one more may change nothing and
/// some more may do.
const COPIES: [usize; 3] = [1, 2, 4];

/// Groups of which pods left over are let in again.
const LET_IN_MAX: usize = 16;

/// Standing nodes that stay, and the offers of new ones in order.
type Fleet = (Vec<bool>, Vec<usize>);

/// What decides between fleets, the least first: the pods left over of each priority, the highest
/// first; the nodes of lighter pools than there are; the nodes by which it differs; the price; which
/// fleet it is.
type Rank = (Vec<u32>, usize, usize, i64, Fleet);

impl Stage<'_> {
    /// Returns `settled`, or a fleet on which fewer pods are left over.
    pub(super) fn sought(&self, settled: Settled) -> Settled {
        let Some(mut search) = self.search(&settled) else { return settled };
        let start = (settled.layout.kept.clone(), sorted(settled.offers.clone()));
        search.seen.insert(start.clone());
        let rank = search.rank(&settled, (0, start));
        search.open.insert(rank, settled);
        let best = search.run();
        self.without_idle(search.climbed(best))
    }

    /// Returns `settled`, or a fleet with more nodes on which fewer pods are left over: a node that
    /// went since may have taken the place within the limits that another can have.
    pub(super) fn grown(&self, settled: Settled) -> Settled {
        match self.search(&settled) {
            Some(mut search) => self.without_idle(search.climbed(settled)),
            None => settled,
        }
    }

    /// Returns a search for fleets that leave fewer pods over, with nothing in it yet; `None` where
    /// there is nothing to look for.
    fn search(&self, settled: &Settled) -> Option<Search<'_>> {
        // In later passes the new nodes stand: what was not found for them is not found again. Those
        // of pools with a fixed number stand from the first on, and stay.
        let is_first =
            self.ground.standing.iter().all(|node| !node.is_new || node.fate != Fate::Free);
        let waiting = self.waiting(settled);
        if !is_first || waiting.is_empty() || self.is_too_large(settled) {
            return None;
        }
        Some(Search {
            stage: self,
            kinds: self.kinds(&waiting),
            seen: BTreeSet::new(),
            open: BTreeMap::new(),
            bases: BTreeMap::new(),
            work: self.work(),
            left: pods_left(settled),
        })
    }

    /// Lets pods in again that were left over for the sake of others which are left over as well.
    ///
    /// Which pods a run leaves over depends on who came first; what every run leaves over together
    /// is more than has to be.
    pub(super) fn let_in(&self, mut settled: Settled) -> Settled {
        if self.is_too_large(&settled) {
            return settled;
        }
        let mut waiting = self.waiting(&settled);
        waiting.sort_by_key(|group| (Reverse(self.groups[*group].shape.priority), *group));
        for group in waiting.into_iter().take(LET_IN_MAX) {
            let mut more = settled.unplaced.get(&group).copied().unwrap_or(0);
            while more > 0 {
                let mut unplaced = settled.unplaced.clone();
                let left = unplaced.entry(group).or_insert(0);
                if *left >= more {
                    *left -= more;
                    unplaced.retain(|_, pods| *pods > 0);
                    if let Some(better) = self.without(&pinned(&settled), unplaced) {
                        settled = Settled { packed: settled.packed, ..better };
                        continue;
                    }
                }
                more /= 2;
            }
        }
        settled
    }

    /// Groups with pods left over that some node could hold.
    fn waiting(&self, settled: &Settled) -> Vec<usize> {
        let left = settled.unplaced.iter().filter(|(_, pods)| **pods > 0);
        left.map(|(group, _)| *group).filter(|group| self.could_run(*group)).collect()
    }

    fn could_run(&self, group: usize) -> bool {
        let shape = &self.groups[group].shape;
        let offered = || (0..self.offers.len()).any(|offer| self.takes(offer, group));
        let stands =
            || (0..self.ground.standing.len()).any(|node| self.could_stand_on(group, node));
        shape.unsupported.is_empty() && (offered() || stands())
    }

    /// Returns whether a node that stands would hold a pod of the group, were it alone there.
    pub(super) fn could_stand_on(&self, group: usize, node: usize) -> bool {
        let (shape, node) = (&self.groups[group].shape, &self.ground.standing[node]);
        shape.requests.fits(&node.room) && admits(shape, &node.labels, &node.taints)
    }

    fn takes(&self, offer: usize, group: usize) -> bool {
        let (offer, shape) = (&self.offers[offer], &self.groups[group].shape);
        shape.requests.fits(&offer.room) && admits(shape, &offer.node.labels, &offer.node.taints)
    }

    fn is_too_large(&self, settled: &Settled) -> bool {
        let kept = settled.layout.kept.iter().filter(|kept| **kept).count();
        let nodes = u64::try_from(kept + settled.offers.len()).unwrap_or(u64::MAX);
        planned_pods(self.groups).saturating_mul(nodes).saturating_mul(8) > WORK_MAX
    }

    /// Offers of which no two are alike to the packing and to every rule between pods; where there
    /// are many, of each place the cheapest for the waiting pods, and the one that holds the most.
    fn kinds(&self, waiting: &[usize]) -> Vec<usize> {
        let keys = keys_of_rules(self.groups);
        let place = |offer: &usize| place_of_offer(&self.offers[*offer], &keys);
        let mut seen = BTreeSet::new();
        let placeable = |offer: &usize| {
            (0..self.groups.len())
                .any(|group| self.groups[group].counts.planned > 0 && self.takes(*offer, group))
        };
        let all = (0..self.offers.len()).filter(placeable);
        let mut all: Vec<usize> = all
            .filter(|offer| seen.insert((self.ground.model.of_offer[*offer], place(offer))))
            .collect();
        if all.len() <= KINDS_MAX {
            return all;
        }
        all.retain(|offer| waiting.iter().any(|group| self.takes(*offer, *group)));
        let mut by_place: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for offer in all {
            by_place.entry(place(&offer)).or_default().push(offer);
        }
        let held = |offer: &usize| -> u32 {
            let room = &self.offers[*offer].room;
            waiting.iter().map(|group| self.copies(*group, room)).sum()
        };
        let chosen = by_place.into_values().flat_map(|offers| {
            let price = |offer: &usize| self.offers[*offer].node.price;
            let cheapest = offers.iter().copied().min_by_key(|o| (price(o), *o));
            let largest = offers.iter().copied().min_by_key(|o| (Reverse(held(o)), price(o), *o));
            cheapest.into_iter().chain(largest)
        });
        let chosen: BTreeSet<usize> = chosen.collect();
        chosen.into_iter().take(KINDS_MAX).collect()
    }

    fn copies(&self, group: usize, room: &crate::units::Resources) -> u32 {
        let group = &self.groups[group];
        let most = i64::from(group.counts.planned);
        u32::try_from(group.shape.requests.copies_in(room, most)).unwrap_or(u32::MAX)
    }
}

struct Search<'a> {
    stage: &'a Stage<'a>,
    kinds: Vec<usize>,
    seen: BTreeSet<Fleet>,
    /// Fleets that were rehearsed, and not changed yet.
    open: BTreeMap<Rank, Settled>,
    /// For standing nodes that stay, the layout without new nodes.
    bases: BTreeMap<Vec<bool>, Layout>,
    /// Pods times nodes tried before the search.
    work: u64,
    /// Pods that were left over before the search.
    left: u32,
}

impl Search<'_> {
    /// Adds nodes one by one as long as each leaves fewer pods over: of what a search cut short
    /// found, this is still looked for.
    fn climbed(&mut self, settled: Settled) -> Settled {
        let mut best = settled;
        for _ in 0..CLIMBS_MAX {
            if best.unplaced.is_empty() {
                break;
            }
            let fleet = (best.layout.kept.clone(), sorted(best.offers.clone()));
            let left = best.left(self.stage.groups);
            let mut trials = BTreeMap::new();
            for kind in self.kinds.clone() {
                let next = (fleet.0.clone(), with(&fleet.1, kind, 1));
                let Some(layout) = self.layout(&next) else { continue };
                let settled = self.at_least(&layout, &best);
                if !self.is_earned(&settled) {
                    continue;
                }
                trials.insert(self.rank(&settled, (0, next)), settled);
            }
            match trials.pop_first() {
                Some((rank, better)) if rank.0 < left => best = better,
                Some(_) | None => break,
            }
        }
        best
    }

    /// Returns what becomes of the layout, and at least what became of one with fewer nodes.
    ///
    /// Which pods are left over for the sake of which others may come out worse with more nodes.
    fn at_least(&self, layout: &Layout, before: &Settled) -> Settled {
        let anew = self.stage.as_far_as_possible(layout);
        if anew.unplaced.is_empty() {
            return anew;
        }
        let Some(same) = self.stage.without(layout, before.unplaced.clone()) else { return anew };
        let same = self.stage.let_in(same);
        let groups = self.stage.groups;
        if same.left(groups) < anew.left(groups) { same } else { anew }
    }

    /// Changes the best fleet so far until nothing is left over, or nothing is left to try.
    fn run(&mut self) -> Settled {
        let (mut best_rank, mut best) =
            self.open.first_key_value().map(|(r, s)| (r.clone(), s.clone())).expect("a start");
        while let Some((rank, _)) = self.open.pop_first() {
            let (_, _, edits, _, fleet) = rank;
            for next in self.changed(&fleet) {
                if self.seen.len() > FLEETS_MAX
                    || self.stage.work().saturating_sub(self.work) > WORK_MAX
                {
                    return best;
                }
                if !self.seen.insert(next.clone()) {
                    continue;
                }
                let Some(layout) = self.layout(&next) else { continue };
                let settled = self.stage.as_far_as_possible(&layout);
                let rank = self.rank(&settled, (edits + 1, next));
                if rank < best_rank && self.is_earned(&settled) {
                    (best_rank, best) = (rank.clone(), settled.clone());
                    if settled.unplaced.is_empty() {
                        return best;
                    }
                }
                self.open.insert(rank, settled);
            }
        }
        best
    }

    /// Returns whether the new nodes that hold nothing are no more than the pods that got a place: where
    /// they are, pods only find one because others are likely to go elsewhere.
    fn is_earned(&self, settled: &Settled) -> bool {
        let opened = settled.layout.packing.opened.iter();
        let idle = opened.filter(|node| node.pods.is_empty()).count();
        let placed = self.left.saturating_sub(pods_left(settled));
        usize::try_from(placed).is_ok_and(|placed| idle <= placed)
    }

    fn rank(&self, settled: &Settled, (edits, fleet): (usize, Fleet)) -> Rank {
        let weight = |offer: &usize| self.stage.offers[*offer].weight;
        let most = self.kinds.iter().map(weight).max().unwrap_or(0);
        let lighter = fleet.1.iter().filter(|offer| weight(offer) < most).count();
        (settled.left(self.stage.groups), lighter, edits, settled.layout.price.0, fleet)
    }

    /// Returns the fleets that differ by little: some more nodes of a kind, another instead, one less, or one that
    /// should leave and stays.
    fn changed(&self, (kept, offers): &Fleet) -> Vec<Fleet> {
        let mut fleets = Vec::new();
        for copies in COPIES {
            let added = |kind: &usize| (kept.clone(), with(offers, *kind, copies));
            fleets.extend(self.kinds.iter().map(added));
        }
        let standing = self.stage.ground.standing;
        for index in (0..kept.len()).filter(|index| !kept[*index]) {
            if standing[index].may_stay_after_all() {
                let mut kept = kept.clone();
                kept[index] = true;
                fleets.push((kept, offers.clone()));
            }
        }
        for at in (0..offers.len()).filter(|at| *at == 0 || offers[at - 1] != offers[*at]) {
            for offer in self.kinds.iter().filter(|offer| **offer != offers[at]) {
                let mut swapped = offers.clone();
                swapped[at] = *offer;
                fleets.push((kept.clone(), sorted(swapped)));
            }
            let mut fewer = offers.clone();
            fewer.remove(at);
            fleets.push((kept.clone(), fewer));
        }
        fleets
    }

    /// Returns the fleet with no pod on it yet but those that stay; `None` beyond the limits.
    fn layout(&mut self, (kept, offers): &Fleet) -> Option<Layout> {
        let ground = &self.stage.ground;
        let opened = offers.iter().map(|offer| Opened {
            column: ground.model.of_offer[*offer],
            pods: Counts::new(),
            offer: Some(*offer),
        });
        let opened: Vec<Opened> = opened.collect();
        if !ground.within_limits(&opened) {
            return None;
        }
        let base = self.bases.entry(kept.clone()).or_insert_with(|| {
            let mut layout = ground.layout(kept.clone());
            layout.price = layout.price - layout.packing.price(ground.model);
            layout
        });
        let mut layout = base.clone();
        layout.packing = Packing { opened, left: vec![0; ground.model.classes.len()] };
        layout.price += layout.packing.price(ground.model);
        Some(layout)
    }
}

fn pods_left(settled: &Settled) -> u32 {
    settled.unplaced.values().sum()
}

/// Returns `offers` with so many nodes of another.
fn with(offers: &[usize], kind: usize, copies: usize) -> Vec<usize> {
    sorted(offers.iter().copied().chain(std::iter::repeat_n(kind, copies)).collect())
}

fn sorted(mut offers: Vec<usize>) -> Vec<usize> {
    offers.sort_unstable();
    offers
}
