//! Feasibility and cost → [`Target`]: which nodes there should be, and which pods go where.
//!
//! This module knows pods, nodes, offerings and pools. It knows nothing of files, plans or how
//! anything is carried out; it does not log, and the moment it plans for is an argument.
//! Invariants: same inputs, same target; "cannot be placed" is an answer with its reasons, not an
//! error; work is counted, never timed.

mod abreast;
mod allot;
mod aside;
mod assemble;
mod attach;
mod bound;
mod consolidate;
mod contest;
mod converge;
mod drain;
mod drift;
mod early;
mod exchange;
mod few;
mod fill;
mod fixed;
mod groups;
mod joining;
mod layout;
mod learned;
mod leave;
mod limits;
mod luck;
mod market;
mod mixture;
mod model;
mod offer;
mod outdated;
mod pace;
mod pack;
mod parts;
mod play;
mod procure;
mod rehearse;
mod rescue;
mod runs;
mod seats;
mod seek;
mod settle;
mod shape;
mod shares;
mod stand_ins;
mod standing;
mod survey;
mod target;
mod template;
#[cfg(test)]
mod tests;
mod unplaced;
mod variety;
mod zones;

#[cfg(doc)]
#[doc = include_str!("adr/0005-rehearsal.md")]
pub mod adr_0005 {}

#[cfg(doc)]
#[doc = include_str!("adr/0006-rules-between-pods.md")]
pub mod adr_0006 {}

#[cfg(doc)]
#[doc = include_str!("adr/0007-groups.md")]
pub mod adr_0007 {}

#[cfg(doc)]
#[doc = include_str!("adr/0009-few-shapes.md")]
pub mod adr_0009 {}

#[cfg(doc)]
#[doc = include_str!("adr/0011-budgets.md")]
pub mod adr_0011 {}

pub use bound::Proof;
pub use groups::{amiss_elsewhere, live_group, observed_only, with_groups_made_elsewhere};
pub use learned::{learn, measure};
pub use offer::{
    Offer, Offers, PoolRefusal, Supply, Withheld, admits, admits_daemon, daemon_requests,
    pool_requirements,
};
pub use outdated::unresolved;
pub use standing::{Circumstances, Fate, Leave, Standing};
pub use target::{
    Alternative, Beyond, BlockReason, Contest, DomainKind, KeepReason, KeptApart, Launch,
    LaunchReason, NewNode, Place, Rejection, Relaxed, Retire, RetireReason, Target, Unplaced,
    Unsteered, workload_key,
};

use std::num::NonZero;

use jiff::Timestamp;

use crate::catalog::Catalog;
use crate::demand::{Demand, PodGroup};
use crate::fleet::Observed;
use crate::ids::NodeName;
use crate::manifest::Desired;
use crate::units::MicroUsd;
use assemble::Assembly;
use attach::AttachRules;
use converge::{Answer, Passes};
use fixed::FixedNodes;
use pace::Pace;
use parts::Apart;

/// When a voluntary change is worth it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Hours over which a saving is counted.
    pub horizon_hours: i64,
    /// What moving one running pod costs.
    pub restart_cost: MicroUsd,
    /// Least saving, in thousandths of a percent of the price of the nodes concerned.
    pub minimum_saving_milli_percent: i64,
    /// Whether pods are nominated to the nodes that they are planned on, which the scheduler then
    /// tries first.
    pub steer: bool,
    /// How much is done at once; `None` is as much as the machine has cores. It decides how long
    /// planning takes, and nothing else.
    pub workers: Option<NonZero<usize>>,
}

/// What a target is for, which decides how long a cheaper one is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Purpose {
    /// The fleet is to be had.
    #[default]
    Plan,
    /// What the fleet would come to is to be known: large ones are not searched as far.
    Estimate,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            horizon_hours: 24,
            restart_cost: MicroUsd(1_000),
            minimum_saving_milli_percent: 5_000,
            steer: false,
            workers: None,
        }
    }
}

impl Settings {
    /// Returns what a change gains over the horizon once the moves are paid for.
    fn gain(&self, saves_hourly: MicroUsd, moves: u32) -> MicroUsd {
        saves_hourly.times(self.horizon_hours) - self.restart_cost.times(i64::from(moves))
    }

    /// Returns the least hourly saving that makes a change of nodes of this price worth it.
    fn needed_saving(&self, affected: MicroUsd, moves: u32) -> MicroUsd {
        let share =
            MicroUsd(affected.0.saturating_mul(self.minimum_saving_milli_percent) / 100_000);
        let repaid = self.restart_cost.times(i64::from(moves)).0 / self.horizon_hours.max(1);
        MicroUsd(share.0.max(repaid + 1))
    }

    /// Returns the hours after which a saving has paid for the moves.
    fn payback_hours(&self, saves_hourly: MicroUsd, moves: u32) -> u32 {
        let cost = self.restart_cost.times(i64::from(moves)).0;
        u32::try_from(cost / saves_hourly.0.max(1) + i64::from(cost % saves_hourly.0.max(1) != 0))
            .unwrap_or(u32::MAX)
    }
}

/// Everything a target follows from.
pub struct Input<'a> {
    /// What the repository declares.
    pub desired: &'a Desired,
    /// What has to be placed.
    pub demand: &'a Demand,
    /// What runs.
    pub observed: &'a Observed,
    /// What can be had.
    pub catalog: &'a Catalog,
    /// The moment planned for.
    pub at: Timestamp,
    /// Why nothing may be removed, where something says so.
    pub frozen: Option<String>,
    /// Nodes that the user asked to replace.
    pub replace: &'a [NodeName],
    /// Nodes that must not change.
    pub untouched: &'a [NodeName],
    /// When a voluntary change is worth it.
    pub settings: Settings,
    /// What the target is for.
    pub purpose: Purpose,
}

/// A target, and the nodes it speaks of.
pub struct Solution {
    /// The target.
    pub target: Target,
    /// The nodes that are there.
    pub standing: Vec<Standing>,
    /// Pools that can make no nodes.
    pub refusals: Vec<String>,
}

/// The tightest packing of all pods, before any rehearsal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// Nodes, those that stay among them.
    pub nodes: usize,
    /// Price per hour of all of them.
    pub hourly: MicroUsd,
    /// A bound below the price of every fleet that holds the pods that have a place.
    pub lower_bound: MicroUsd,
    /// Pods that it has no place for.
    pub left: u64,
}

/// Returns the tightest packing found, which only a scheduler could follow that does as it is told;
/// what solving alone comes to, beside what proving it takes.
#[must_use]
pub fn packing(input: &Input, proof: Option<Proof>) -> Packed {
    let Prepared { apart, offers, standing, fixed: _, pace } = Prepared::of(input);
    let (demand, list) = (&apart.demand, &offers.list);
    let shares = shares::Limits::new(&input.desired.failure_domains);
    let standing = &*standing;
    let passes =
        Passes { input, demand, offers: list, standing, pace: &pace, shares, eventful: true };
    let model = passes.model(&apart.demand.groups, standing);
    let stage = passes.stage(&apart.demand, standing, &model);
    let layout = consolidate::without_leavers(&stage.ground);
    let left = layout.packing.left_over();
    let kept = layout.kept.iter().filter(|kept| **kept).count();
    let nodes = kept + layout.packing.opened.len();
    let hourly = layout.price;
    let bound = |proof| passes.bound_of_packing(&model, &layout, proof);
    let lower_bound = proof.map_or(MicroUsd::ZERO, bound);
    Packed { nodes, hourly, lower_bound, left }
}

/// What every answer begins with.
struct Prepared {
    apart: Apart,
    offers: Offers,
    standing: Vec<Standing>,
    fixed: FixedNodes,
    pace: Pace,
}

impl Prepared {
    fn of(input: &Input) -> Self {
        let apart = Apart::of(input.demand);
        let shapes = apart.demand.groups.iter().map(|group| &*group.shape);
        let supply = Supply {
            desired: input.desired,
            catalog: input.catalog,
            observed: input.observed,
            at: input.at,
        };
        let mut offers = Offers::of(&supply, &input.demand.daemons, shapes);
        let attach = AttachRules::of(input.desired, input.observed, input.catalog, input.demand);
        attach.limit_offers(offers.all_mut());
        let circumstances = Circumstances {
            desired: input.desired,
            demand: input.demand,
            at: input.at,
            frozen: input.frozen.clone(),
            replace: input.replace,
            untouched: input.untouched,
        };
        let mut standing =
            standing::standing_nodes(input.observed, input.catalog, &offers, &circumstances);
        // Before pools of a fixed size choose what they replace: what waits is not replaced.
        let moment = (input.desired, input.at);
        let pace = Pace::of(moment, input.observed, &mut standing, &apart.demand.groups);
        let fixed = FixedNodes::decide(&circumstances, input.observed, &offers, &mut standing);
        standing.extend(fixed.as_standing());
        attach.limit_standing(&mut standing);
        Self { apart, offers, standing, fixed, pace }
    }
}

/// Returns the fleet to have.
#[must_use]
pub fn solve(input: &Input) -> Solution {
    let Prepared { apart, offers, mut standing, fixed, pace } = Prepared::of(input);
    let groups = &apart.demand.groups;
    let (demand, list) = (&apart.demand, &offers.list);
    let shares = shares::Limits::new(&input.desired.failure_domains);
    let passes = Passes {
        input,
        demand,
        offers: list,
        standing: &standing,
        pace: &pace,
        shares,
        eventful: true,
    };
    let Answer { outcome, model, eventful, kept_apart } = passes.answer();
    let passes = Passes { eventful, ..passes };
    let assembly = Assembly {
        input,
        field: passes.field(groups, &standing),
        model: &model,
        groups,
        offers: &offers.list,
        standing: &standing,
        outcome: &outcome,
        settings: &input.settings,
    };
    let mut places = assembly.places();
    let mut launches = assembly.new_nodes();
    let ties = allot::ties(passes.field(groups, &standing));
    fixed.launch(&mut places, &mut launches, (groups, &ties), &offers);
    let (mut keeps, retires) = assembly.fates(&places, &mut launches);
    keeps.retain(|name, _| !fixed.contains(name));
    let inquest = unplaced::Inquest { input, offers: &offers };
    let stage = passes.stage(&apart.demand, &standing, &model);
    let unplaced = inquest
        .explain_all(groups, &places.unplaced, || rescue::Hearing::of(&stage, &outcome.settled));
    let budgets = contest::budgets(input.desired, groups);
    let mut contests = stage.contests(&outcome.settled, budgets);
    let contested = |unplaced: Unplaced| Unplaced {
        contest: contests.remove(&unplaced.group).unwrap_or_default(),
        ..unplaced
    };
    let unplaced = unplaced.into_iter().map(contested).collect();
    let refusals = offers.refusals.iter().map(|(p, r)| unplaced::refusal_text(p, r));
    let refusals = refusals.chain(settle::unrehearsed_text(groups));
    let refusals = refusals.chain(stage.uncontested_text(&outcome.settled));
    let refusals = refusals.chain((!eventful).then(|| LUCK.to_owned()));
    let luck = (input.purpose == Purpose::Plan).then(|| stage.luck_text(&outcome.settled));
    let refusals = refusals.chain(luck.flatten());
    let refusals = refusals.chain(outcome.is_cut_short.then(|| CUT_SHORT.to_owned())).collect();
    let target = Target {
        elsewhere: apart.elsewhere(stage.elsewhere(&outcome.settled)),
        launches,
        keeps,
        retires,
        placements: apart.placements(places.placements),
        unplaced: apart.unplaced(unplaced),
        packed: outcome.settled.packed.min(outcome.settled.layout.price),
        orders: orders((groups, &offers.list), &standing, (&outcome, eventful)),
        unsteered: input.settings.steer.then(|| passes.unsteered(&model, &outcome)),
        lower_bound: passes.bound(&outcome, Proof::Quick),
        failure_domains: kept_apart,
    };
    standing.retain(|node| !fixed.contains(&node.name));
    Solution { target, standing, refusals }
}

/// What is said of a fleet that holds its pods once every node is there, and not before.
const LUCK: &str = "no fleet was found that holds every pod while nodes come up or are drained: \
                    some may wait then, and a plan made afterwards looks for a place for them";

/// What is said of a fleet too large for all that could go from it to be looked at.
const CUT_SHORT: &str = "not all that could be saved in a fleet of this size was looked for: a later plan may find more";

/// Names of the runs that the fleet passed, and of the draws that were made runs.
fn orders(
    (groups, offers): (&[PodGroup], &[Offer]),
    standing: &[Standing],
    (outcome, eventful): (&consolidate::Consolidated, bool),
) -> Vec<String> {
    if !settle::is_rehearsed(groups) {
        return Vec::new();
    }
    let layout = &outcome.settled.layout;
    let nodes = layout.kept.iter().filter(|kept| **kept).count() + layout.packing.opened.len();
    let events = || {
        let drained = !runs::leaving(groups, standing, &layout.kept).is_empty();
        let stays = |(node, kept): (&Standing, &bool)| *kept && !node.is_new;
        let stands = standing.iter().zip(&layout.kept).any(stays);
        let early = early::is_early(stands, &outcome.settled.offers, offers);
        runs::Events { drained, early }
    };
    let events = if eventful { events() } else { runs::Events::NONE };
    let mut orders = runs::run_names(groups, nodes, events);
    // One fleet may owe to the draw of another that came before it.
    for name in runs::names(&outcome.drawn, (groups, nodes)) {
        if !orders.contains(&name) {
            orders.push(name);
        }
    }
    orders
}
