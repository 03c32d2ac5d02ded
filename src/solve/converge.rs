//! Planning until there is nothing left to plan.
//!
//! A first answer only asks what pods without a place need; seen as a fleet that stands, it may be
//! improved like any other. So each answer is taken as carried out and consolidated again, with
//! nodes that are only planned costing nothing to plan away, until nothing changes: what would be
//! the next plan's changes are this plan's.

use std::collections::{BTreeMap, BTreeSet};

use super::allot::{Allotment, Field};
use super::bound::{Proof, lower_bound};
use super::consolidate::{Consolidated, consolidate};
use super::layout::{Counts, Ground, Layout};
use super::limits::Limits;
use super::model::{Model, Supply};
use super::offer::Offer;
use super::pace::Pace;
use super::pack::{Opened, Packing};
use super::rehearse::{Placements, Settled, Stage, Verdict};
use super::shares::Map;
use super::standing::{Fate, Standing};
use super::survey::Single;
use super::target::{KeptApart, Place, Unsteered};
use super::{Input, Settings, groups, shares};
use crate::demand::{Demand, PodGroup};
use crate::ids::NodeName;
use crate::units::MicroUsd;

/// Times that an answer is taken as carried out.
const PASSES_MAX: usize = 8;

/// Pods times nodes up to which an answer is taken as carried out and improved.
const PASS_WORK_MAX: u64 = 20_000;

/// What every pass works on.
pub(super) struct Passes<'a> {
    pub input: &'a Input<'a>,
    /// The demand, each group of alike pods.
    pub demand: &'a Demand,
    pub offers: &'a [Offer],
    pub standing: &'a [Standing],
    /// How many of these may go.
    pub pace: &'a Pace,
    /// How much one node or zone may hold.
    pub shares: shares::Limits<'a>,
    /// Whether pods are rehearsed to come while nodes come up and are drained as well.
    pub eventful: bool,
}

/// An answer, and the problem that it is one to.
pub(super) struct Answer {
    pub outcome: Consolidated,
    pub model: Model,
    /// Whether it was rehearsed with what happens meanwhile.
    pub eventful: bool,
    /// What it comes to that one node or zone may only hold so much.
    pub kept_apart: Option<KeptApart>,
}

impl Passes<'_> {
    /// Returns the answer to the whole problem.
    ///
    /// Limits to what one node or zone holds give way where more pods would have no place.
    pub(super) fn answer(&self) -> Answer {
        let limited = self.answer_alone();
        if self.shares.are_none() {
            return limited;
        }
        let free = Passes { shares: shares::Limits::none(), ..*self }.answer_alone();
        let left = |answer: &Answer| answer.outcome.settled.left(&self.demand.groups);
        let price = |answer: &Answer| answer.outcome.settled.layout.price;
        let dearer = (price(&limited) - price(&free)).max(MicroUsd::ZERO);
        let (answer, hourly) =
            if left(&limited) > left(&free) { (free, MicroUsd::ZERO) } else { (limited, dearer) };
        let settled = &answer.outcome.settled;
        let map = Map { standing: self.standing, offers: self.offers, chosen: &settled.offers };
        let beyond = self.shares.beyond(&settled.placements, &self.demand.groups, map);
        Answer { kept_apart: Some(KeptApart { hourly, beyond }), ..answer }
    }

    fn answer_alone(&self) -> Answer {
        let model = self.model(&self.demand.groups, self.standing);
        let (outcome, eventful) = self.run_at_best(&model);
        Answer { outcome, model, eventful, kept_apart: None }
    }

    /// Returns the answer, and whether it was rehearsed with what happens meanwhile: where no fleet
    /// holds every pod then, one that holds more of them otherwise is the better answer.
    pub(super) fn run_at_best(&self, model: &Model) -> (Consolidated, bool) {
        let left = |outcome: &Consolidated| outcome.settled.left(&self.demand.groups);
        let outcome = self.run(model);
        if outcome.settled.unplaced.is_empty() || !self.has_events() {
            return (outcome, true);
        }
        let other = Passes { eventful: false, ..*self }.run(model);
        if left(&other) < left(&outcome) { (other, false) } else { (outcome, true) }
    }

    /// Returns whether some nodes may be usable before others, or drained.
    fn has_events(&self) -> bool {
        let is_tainted = |offer: &Offer| !offer.node.startup_taints.is_empty();
        !self.standing.is_empty()
            || self.offers.iter().any(is_tainted) && !self.offers.iter().all(is_tainted)
    }

    /// Returns the answer that no further pass improves, in terms of `model`, which is the problem
    /// of the groups over the nodes that really stand.
    pub(super) fn run(&self, model: &Model) -> Consolidated {
        let mut outcome = self.pass(&self.demand.groups, self.standing, model);
        for _ in 0..PASSES_MAX {
            if outcome.settled.offers.is_empty() || self.is_large(&outcome.settled) {
                break;
            }
            let groups = self.carried_out(&outcome.settled);
            let standing = self.fleet_after(&outcome.settled);
            let next = self.model(&groups, &standing);
            let better = self.pass(&groups, &standing, &next);
            let layout = &better.settled.layout;
            if layout.kept.iter().all(|kept| *kept) && layout.packing.opened.is_empty() {
                break;
            }
            if layout.price > outcome.settled.layout.price {
                break;
            }
            let leaner = self.translated(model, &outcome.settled, &better.settled);
            let Some(proven) = self.proven(model, &outcome.settled, &leaner) else { break };
            outcome.settled = proven;
            outcome.barred.retain(|name| !better.declined.contains_key(name));
            outcome.declined.retain(|name, _| !better.barred.contains(name));
            outcome.declined.extend(better.declined);
            outcome.barred.extend(better.barred);
        }
        outcome.settled = self.kept_back(model, outcome.settled);
        let stage = self.stage(self.demand, self.standing, model);
        let before = outcome.settled.layout.price;
        let grown = stage.grown(outcome.settled.clone());
        // More pods have a place now, which takes luck of its own.
        let has_grown = grown.unplaced != outcome.settled.unplaced;
        outcome.settled = if has_grown { stage.hardened(grown) } else { grown };
        if has_grown {
            outcome.drawn = stage.remembered();
        }
        outcome.baseline += outcome.settled.layout.price - before;
        outcome.settled = stage.over_zones(outcome.settled);
        let kept = |name: &NodeName| {
            let mut nodes = self.standing.iter().zip(&outcome.settled.layout.kept);
            nodes.any(|(node, kept)| *kept && node.name == *name)
        };
        outcome.declined.retain(|name, _| kept(name));
        outcome.barred.retain(kept);
        outcome
    }

    /// Returns the problem of placing `groups`, of which some run on `standing`.
    pub(super) fn model(&self, groups: &[PodGroup], standing: &[Standing]) -> Model {
        let supply = Supply { offers: self.offers, standing, daemons: &self.demand.daemons };
        Model::of(groups, &Allotment::of(self.field(groups, standing)), supply)
    }

    /// Returns what rules between pods are looked for in.
    pub(super) fn field<'f>(
        &'f self,
        groups: &'f [PodGroup],
        standing: &'f [Standing],
    ) -> Field<'f> {
        let namespaces = &self.input.desired.namespaces;
        Field { groups, offers: self.offers, standing, namespaces, shares: self.shares }
    }

    /// Plays the runs over a fleet that was found with pods seen as running which are yet to come:
    /// `None` where, coming in other orders, they would not all find a place on it.
    fn proven(&self, model: &Model, earlier: &Settled, leaner: &Settled) -> Option<Settled> {
        let stage = self.stage(self.demand, self.standing, model);
        let Verdict::Passed(proven) = stage.rehearse(&leaner.layout) else { return None };
        let left = |settled: &Settled| settled.left(&self.demand.groups);
        let packed = leaner.packed;
        let holds = left(&proven) <= left(earlier) && stage.is_as_sure(&proven, earlier, 0);
        holds.then_some(Settled { packed, ..proven })
    }

    /// Returns a bound on every fleet that holds the placed pods and keeps the nodes that stay in
    /// any case; no domain is chosen for pods here, since another fleet may choose another.
    pub(super) fn bound(&self, outcome: &Consolidated, proof: Proof) -> MicroUsd {
        let (settled, standing) = (&outcome.settled, self.standing);
        let groups = &self.demand.groups;
        let supply = Supply { offers: self.offers, standing, daemons: &self.demand.daemons };
        let model = Model::of(groups, &Allotment::loose(self.field(groups, standing)), supply);
        let placed = |(group, planned): &(usize, u32)| {
            planned.saturating_sub(settled.unplaced.get(group).copied().unwrap_or(0))
        };
        let classes = model.classes.iter();
        let placed: Vec<u32> = classes.map(|c| c.lots.iter().map(placed).sum()).collect();
        let stays = |index: &usize| {
            settled.layout.kept[*index] && !matches!(standing[*index].fate, Fate::Free)
        };
        let price = |index: usize| standing[index].price.unwrap_or_default();
        let single = |index: usize| {
            let bin = &model.bins[index];
            match standing[index].fate {
                _ if stays(&index) => Some(Single { price: MicroUsd::ZERO, bin }),
                Fate::Leaves(_) => None,
                Fate::Free | Fate::OnlyWhenEmpty(_) | Fate::Stays(_) => {
                    Some(Single { price: price(index), bin })
                }
            }
        };
        let singles: Vec<Single> = (0..standing.len()).filter_map(single).collect();
        let paid: MicroUsd = (0..standing.len()).filter(stays).map(price).sum();
        paid + lower_bound(&model, &placed, (&singles, proof))
    }

    /// Returns a bound on every fleet that holds what a packing holds.
    pub(super) fn bound_of_packing(
        &self,
        model: &Model,
        layout: &Layout,
        proof: Proof,
    ) -> MicroUsd {
        let settled = self.stage(self.demand, self.standing, model).as_packed(layout);
        let (baseline, declined, barred) = (layout.price, BTreeMap::new(), BTreeSet::new());
        let drawn = Vec::new();
        self.bound(
            &Consolidated { settled, baseline, declined, barred, drawn, is_cut_short: false },
            proof,
        )
    }

    /// Places `groups` on `standing` and what else it takes, and consolidates.
    fn pass(&self, groups: &[PodGroup], standing: &[Standing], model: &Model) -> Consolidated {
        let demand = Demand {
            groups: groups.to_vec(),
            daemons: self.demand.daemons.clone(),
            ..Demand::default()
        };
        let settings: &Settings = &self.input.settings;
        consolidate(&self.stage(&demand, standing, model), settings)
    }

    pub(super) fn stage<'s>(
        &'s self,
        demand: &'s Demand,
        standing: &'s [Standing],
        model: &'s Model,
    ) -> Stage<'s> {
        let columns: Vec<&Offer> =
            model.columns.iter().map(|c| &self.offers[c.offers[0]]).collect();
        let pools = groups::limits(self.input.desired, self.input.observed);
        // Nodes that go still count, because they go last.
        let new = standing.iter().filter(|node| node.is_new);
        let there = self.standing.iter().filter(|node| !node.is_new);
        let counted: Vec<Standing> = there.chain(new).cloned().collect();
        let reservations = self.input.observed.reservations.iter();
        let supply = reservations.map(|(id, reservation)| (id, reservation.available));
        let limits = Limits::of(&pools, supply, &counted, &columns);
        let ground = Ground::of(model, standing, limits);
        let ground = if self.shares.are_none() { ground } else { ground.thinned() };
        let stage = Stage::new(ground, demand, self.offers, &self.input.desired.namespaces);
        let Settings { steer, workers, .. } = self.input.settings;
        let stage = stage.steered(steer).eventful(self.eventful);
        let stage = stage.for_purpose(self.input.purpose, workers);
        stage.at_pace(self.pace_of(standing)).limited(self.shares)
    }

    /// Returns the pace that is left with those of the nodes gone that are not `standing`.
    fn pace_of(&self, standing: &[Standing]) -> Pace {
        if self.pace.is_unbounded() {
            return self.pace.clone();
        }
        let there: BTreeSet<&NodeName> = standing.iter().map(|node| &node.name).collect();
        let names = self.standing.iter().map(|node| &node.name);
        self.pace.without(names.filter(|name| !there.contains(name)))
    }

    /// Returns what the fleet lacks for every order to pass if no nomination is honoured.
    pub(super) fn unsteered(&self, model: &Model, outcome: &Consolidated) -> Unsteered {
        let stage = self.stage(self.demand, self.standing, model).steered(false);
        stage.missing_unsteered(&outcome.settled)
    }

    /// Keeps nodes that would be replaced by others just like them, where that costs no more: a
    /// node does not go for the sake of its neighbours.
    fn kept_back(&self, model: &Model, mut settled: Settled) -> Settled {
        let stage = self.stage(self.demand, self.standing, model);
        for (index, node) in self.standing.iter().enumerate() {
            let alike = |offer: &usize| self.offers[*offer].is_like(node);
            let replaced = !settled.layout.kept[index] && settled.offers.iter().any(alike);
            if !replaced || node.fate != Fate::Free {
                continue;
            }
            let mut kept = settled.layout.kept.clone();
            kept[index] = true;
            let other = stage.settle(&stage.ground.layout(kept));
            let costs_no_more = other.layout.price <= settled.layout.price;
            if costs_no_more
                && other.unplaced == settled.unplaced
                && stage.is_as_sure(&other, &settled, 0)
            {
                settled = Settled { packed: settled.packed.min(other.packed), ..other };
            }
        }
        settled
    }

    /// Returns whether another pass would take too long.
    ///
    /// For such a fleet the first answer stands, and a later plan may still improve it.
    fn is_large(&self, settled: &Settled) -> bool {
        let pods = self.demand.groups.iter().map(|group| u64::from(group.counts.planned));
        let kept = settled.layout.kept.iter().filter(|kept| **kept).count();
        let nodes = u64::try_from(kept + settled.offers.len()).unwrap_or(u64::MAX);
        pods.fold(0, u64::saturating_add).saturating_mul(nodes) > PASS_WORK_MAX
    }

    /// Returns the groups with their pods running where `settled` has them.
    fn carried_out(&self, settled: &Settled) -> Vec<PodGroup> {
        let running = |index: usize| -> BTreeMap<NodeName, u32> {
            let places = settled.placements.get(&index).into_iter().flatten();
            places.map(|(place, count)| (name_of(place), *count)).collect()
        };
        let groups = self.demand.groups.iter().enumerate();
        groups.map(|(index, group)| PodGroup { running: running(index), ..group.clone() }).collect()
    }

    /// Returns the nodes that stay, then those that are launched.
    fn fleet_after(&self, settled: &Settled) -> Vec<Standing> {
        let kept = self.standing.iter().zip(&settled.layout.kept).filter(|(_, kept)| **kept);
        let kept = kept.map(|(node, _)| node.clone());
        let launched = settled.offers.iter().enumerate().map(|(index, offer)| {
            let name = name_of(&Place::Launch(index));
            Standing::planned(name, &self.offers[*offer], Fate::Free)
        });
        kept.chain(launched).collect()
    }

    /// Returns `later`, which speaks of the fleet after `earlier`, in terms of what stands now.
    fn translated(&self, model: &Model, earlier: &Settled, later: &Settled) -> Settled {
        let mut later_kept = later.layout.kept.iter().copied();
        let kept: Vec<bool> = earlier
            .layout
            .kept
            .iter()
            .map(|kept| *kept && later_kept.next().unwrap_or(false))
            .collect();
        let (mut offers, mut places) = (Vec::new(), BTreeMap::new());
        for (index, offer) in earlier.offers.iter().enumerate() {
            if later_kept.next().unwrap_or(false) {
                places.insert(Place::Node(name_of(&Place::Launch(index))), offers.len());
                offers.push(*offer);
            }
        }
        for (index, offer) in later.offers.iter().enumerate() {
            places.insert(Place::Launch(index), offers.len());
            offers.push(*offer);
        }
        let moved =
            |place: &Place| places.get(place).map_or_else(|| place.clone(), |i| Place::Launch(*i));
        let of_group = |on: &BTreeMap<Place, u32>| on.iter().map(|(p, n)| (moved(p), *n)).collect();
        let placements: Placements =
            later.placements.iter().map(|(group, on)| (*group, of_group(on))).collect();
        // Where pods run decides what alike offers are, so that columns are looked up anew.
        let column = |offer: &usize| model.of_offer[*offer];
        let opened = offers.iter().map(|offer| Opened {
            column: column(offer),
            pods: Counts::new(),
            offer: Some(*offer),
        });
        let packing = Packing { opened: opened.collect(), left: Vec::new() };
        let mut layout = Layout {
            on: vec![Counts::new(); kept.len()],
            staying: vec![Counts::new(); kept.len()],
            kept,
            packing,
            price: later.layout.price,
        };
        let stage = self.stage(self.demand, self.standing, model);
        stage.recount(&mut layout, &placements, &offers, &later.unplaced);
        stage.seat_again(&mut layout, &placements);
        let packed = earlier.packed.min(later.packed);
        Settled { layout, offers, placements, unplaced: later.unplaced.clone(), packed }
    }
}

/// The name that a planned node goes by while it is taken as standing.
fn name_of(place: &Place) -> NodeName {
    match place {
        Place::Node(name) => name.clone(),
        Place::Launch(index) => format!("launch/{index}").as_str().into(),
    }
}
