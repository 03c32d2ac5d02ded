//! Which changes of a plan may be carried out now, and what holds the others back.
//!
//! [`allowed`] is the one place that says so. It knows the plan, the settings and what was done lately,
//! and nothing of how anything is carried out. Invariants: a row that is not allowed is not begun; an
//! exchange (rows that replace each other) goes as a whole or not at all; what holds a row back is
//! typed, with its numbers.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::event::Head;
use super::kept::{self, Approved, Kept, LAUNCHES_MAX, later};
use super::status::{ApprovedBy, Held, HeldBy};
use crate::ids::{Address, InstanceId, PoolName};
use crate::manifest::{ApprovalRule, Mode, Rate};
use crate::plan::Plan;
use crate::plan::wire::{ExplainRow, Reason, ResourceChange, RetireReason, WaveStep};

/// Share of nodes that are not Ready, in percent, above which nothing is removed, and the number of
/// them up to which that does not count. Cluster Autoscaler halts at the same.
const UNREADY_PERCENT: u64 = 45;
const UNREADY_FEW: u32 = 3;

/// Fewest nodes of which a removal at once is a mass removal.
const MASS_LEAST: u32 = 3;

/// Longest that approval may be passed over at a time: an emergency that lasts longer is asked for again.
pub const GLASS_MAX: jiff::SignedDuration = jiff::SignedDuration::from_hours(4);

/// Name of the breaker that a plan latches which removes too much.
pub const MASS_REMOVAL: &str = "mass-removal";
/// Name of the breaker that launches latch which do not help.
pub const LAUNCHES: &str = "launches-do-not-help";

/// What may be done with a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may be carried out.
    Go,
    /// It may not, now.
    Hold(Held),
}

/// What verdicts depend on, beside the plan.
#[derive(Debug, Clone)]
pub struct Circumstances<'a> {
    /// Whether this replica may write.
    pub leader: bool,
    /// What the loop may do.
    pub mode: Mode,
    /// The settings of the commit that is served.
    pub head: &'a Head,
    /// What was done lately and asked for.
    pub kept: &'a Kept,
    /// Nodes that there are, and how many of them are not Ready.
    pub nodes: u32,
    /// See above.
    pub unready: u32,
    /// Rows that are being carried out.
    pub under_way: &'a BTreeSet<Address>,
    /// Whether a removal is being carried out: one plan at a time removes.
    pub removing: bool,
    /// Until when nothing of a pool is removed, because the last try did not come about.
    pub removes_after: &'a BTreeMap<PoolName, Timestamp>,
    /// Until when nothing of a pool is launched, because the last try did not come about.
    pub launches_after: &'a BTreeMap<PoolName, Timestamp>,
    /// Since when each machine has been planned to go, without a break.
    pub planned_since: &'a BTreeMap<InstanceId, Timestamp>,
    /// Since when no pod came to the node of each machine or left it, as far as is known.
    pub quiet_since: &'a BTreeMap<InstanceId, Timestamp>,
}

/// Returns for each change of `plan` whether it may be carried out now, by address.
#[must_use]
pub fn allowed(plan: &Plan, with: &Circumstances<'_>, now: Timestamp) -> Vec<(Address, Verdict)> {
    judged(plan, with, Room::of(with, now), now)
}

/// Returns whether a plan that was allowed may still be begun once its changes are kept: by then people, settings or the
/// world may say otherwise of any of them. Budgets count it already, and what is under way is itself or was there before.
pub(super) fn may_begin(plan: &Plan, with: &Circumstances<'_>, now: Timestamp) -> bool {
    let nothing = BTreeSet::new();
    let with = Circumstances { under_way: &nothing, removing: false, ..with.clone() };
    judged(plan, &with, Room::endless(now), now).iter().all(|(_, of)| *of == Verdict::Go)
}

fn judged(
    plan: &Plan,
    with: &Circumstances<'_>,
    mut room: Room,
    now: Timestamp,
) -> Vec<(Address, Verdict)> {
    let units = units(plan);
    let mut verdicts: BTreeMap<Address, Verdict> = BTreeMap::new();
    // What may wait for a launch takes no room from what launches: where it had the last of a budget, that launch was
    // held back by it, and it by that launch, for ever.
    let (free, others): (Vec<&Unit<'_>>, Vec<&Unit<'_>>) = units.iter().partition(|u| u.is_free);
    for unit in others.into_iter().chain(free) {
        let held = of_all(plan, with, now)
            .or_else(|| of_nothing(plan, with).filter(|_| unit.removes > 0))
            .or_else(|| of_unit(unit, with, &room, now));
        if held.is_none() {
            room.take(unit);
        }
        for row in &unit.rows {
            let own = held.as_ref().map(|(address, held)| match address {
                Some(cause) if *cause != row.address => Held::Together { with: cause.clone() },
                Some(_) | None => held.clone(),
            });
            let verdict = own.map_or(Verdict::Go, Verdict::Hold);
            verdicts.insert(row.address.clone(), verdict);
        }
    }
    hold_dependents(&units, &mut verdicts);
    verdicts.into_iter().collect()
}

/// Returns how `plan` is approved, or nothing where it is not.
#[must_use]
pub fn approval(plan: &Plan, with: &Circumstances<'_>) -> Option<ApprovedBy> {
    let digest = &plan.capacity.digest;
    // A part of what was approved is approved: what is held back of it takes nothing from the rest.
    let in_parts = with.kept.approved.iter().any(|approval| !approval.rows.is_empty());
    let changes: BTreeSet<String> =
        if in_parts { kept::rows_of(plan).collect() } else { BTreeSet::new() };
    let approved = |approval: &&Approved| {
        let part = !changes.is_empty() && changes.is_subset(&approval.rows);
        approval.digest == *digest || part
    };
    if let Some(found) = with.kept.approved.iter().rev().find(approved) {
        return Some(ApprovedBy::Digest { who: found.by.clone() });
    }
    if let Some(glass) = &with.kept.break_glass {
        let (who, reason) = (glass.by.clone(), glass.reason.clone());
        return Some(ApprovedBy::BreakGlass { who, reason });
    }
    match with.head.controller.approval {
        ApprovalRule::Merge => Some(ApprovedBy::Merge),
        ApprovalRule::Digest => None,
        ApprovalRule::Policy => {
            let objects = plan.checks.iter().any(|check| check.status != "pass");
            (!objects).then_some(ApprovedBy::Policy)
        }
    }
}

/// Returns why `plan` removes too much at once, where it does and nobody approved it by its digest.
#[must_use]
pub fn mass_removal(plan: &Plan, with: &Circumstances<'_>) -> Option<String> {
    let most = with.head.controller.mass_removal;
    let most = Rate { most, within: jiff::SignedDuration::ZERO }.of(with.nodes);
    let lost = lost(plan);
    if lost <= most || lost <= MASS_LEAST {
        return None;
    }
    (!is_seen(plan, with)).then(|| {
        format!(
            "the plan removes {lost} of {} nodes without replacing them, and at most {most} may go \
             at once",
            with.nodes
        )
    })
}

/// Returns whether somebody has seen the plan itself, and approved it.
fn is_seen(plan: &Plan, with: &Circumstances<'_>) -> bool {
    matches!(approval(plan, with), Some(ApprovedBy::Digest { .. }))
}

/// Returns how many machines a plan removes without replacing them, those that are empty aside: a commit
/// that asks for no pods any more is meant so, an apply waits until the last of them is gone, and the
/// budget of removals sets the pace.
#[must_use]
pub fn lost(plan: &Plan) -> u32 {
    let explained = plan.capacity.explain.iter();
    let empty: BTreeSet<&Address> =
        explained.filter(|row| is_empty(row)).map(|row| &row.address).collect();
    let units = units(plan);
    let counts = |unit: &Unit<'_>| {
        let empty = unit.rows.iter().filter(|row| empty.contains(&row.address)).count();
        unit.removes.saturating_sub(u32::try_from(empty).unwrap_or(u32::MAX))
    };
    let removes: u32 = units.iter().map(counts).sum();
    let launches: u32 = units.iter().filter(|unit| unit.removes > 0).map(|u| u.launches).sum();
    removes.saturating_sub(launches)
}

/// Returns whether a row goes because nothing but pods of `DaemonSet`s is left on it.
fn is_empty(row: &ExplainRow) -> bool {
    matches!(because(row), Some(RetireReason::Empty { .. }))
}

/// Returns why a row goes, where it does.
fn because(row: &ExplainRow) -> Option<&RetireReason> {
    match &row.reason {
        Reason::Retire { because } => Some(because),
        Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => {
            row.retire_reason.as_ref()
        }
    }
}

/// Rows that go together: an exchange, or one row by itself.
struct Unit<'p> {
    rows: Vec<&'p ResourceChange>,
    launches: u32,
    removes: u32,
    /// Whether pods of nodes that go may have been counted on any launch of the plan.
    is_free: bool,
    /// Those of the rows that go to save money, and for no other reason.
    saves: BTreeSet<&'p Address>,
}

impl Unit<'_> {
    fn pools(&self) -> impl Iterator<Item = PoolName> {
        let mut pools: Vec<PoolName> = self.rows.iter().map(|row| pool(row)).collect();
        pools.sort();
        pools.dedup();
        pools.into_iter()
    }
}

/// Returns the pool of a row; of what has none the row's own name.
pub(super) fn pool(row: &ResourceChange) -> PoolName {
    let side = row.change.after.as_ref().or(row.change.before.as_ref());
    let pool = side.and_then(|side| side.pool.clone());
    pool.unwrap_or_else(|| PoolName::from(row.name.as_str()))
}

fn units(plan: &Plan) -> Vec<Unit<'_>> {
    let steps = |step: WaveStep| -> BTreeSet<&Address> {
        let waves = plan.capacity.waves.iter().filter(|wave| wave.step == step);
        waves.flat_map(|wave| &wave.addresses).collect()
    };
    let (launched, retired) = (steps(WaveStep::Launch), steps(WaveStep::Retire));
    let explained = plan.capacity.explain.iter();
    let groups: BTreeMap<&Address, &str> =
        explained.filter_map(|row| Some((&row.address, row.group.as_deref()?))).collect();
    let moves: BTreeSet<&Address> = plan
        .capacity
        .explain
        .iter()
        .filter(|row| !row.pods_before.is_empty())
        .map(|row| &row.address)
        .collect();
    let saves = |row: &&ExplainRow| {
        matches!(
            because(row),
            Some(RetireReason::Empty { .. } | RetireReason::Underutilized { .. })
        )
    };
    let saving: BTreeSet<&Address> =
        plan.capacity.explain.iter().filter(saves).map(|row| &row.address).collect();
    // Launches alone first: pods wait for them.
    let mut found: BTreeMap<(bool, String), Unit<'_>> = BTreeMap::new();
    for row in &plan.resource_changes {
        let address = &row.address;
        let (comes, goes) = (launched.contains(address), retired.contains(address));
        if !comes && !goes {
            continue;
        }
        let group = groups.get(address).copied();
        let name = group.map_or_else(|| address.to_string(), |group| format!("~{group}"));
        let unit = found.entry((group.is_some() || goes, name)).or_insert(Unit {
            rows: Vec::new(),
            launches: 0,
            removes: 0,
            is_free: false,
            saves: BTreeSet::new(),
        });
        unit.rows.push(row);
        unit.launches += u32::from(comes);
        unit.removes += u32::from(goes);
        if saving.contains(address) {
            unit.saves.insert(address);
        }
        unit.is_free |= group.is_none() && goes && !comes && moves.contains(address);
    }
    found.into_values().collect()
}

/// What budgets have left.
struct Room {
    launches: u32,
    launches_unused: bool,
    next_launch: Timestamp,
    removals: u32,
    removals_unused: bool,
    next_removal: Timestamp,
}

impl Room {
    fn of(with: &Circumstances<'_>, now: Timestamp) -> Self {
        let settings = &with.head.controller;
        // Of more it is not remembered which they are, so that some would count twice.
        let most = u32::try_from(LAUNCHES_MAX).unwrap_or(u32::MAX);
        let of = |rate: Rate| rate.of(with.nodes);
        let (most_in, most_out) = (of(settings.launches).min(most), of(settings.removals));
        let (came, went) = (with.kept.came(), with.kept.went());
        let (launches, next_launch) = Kept::room(came, most_in, settings.launches.within, now);
        let (removals, next_removal) = Kept::room(went, most_out, settings.removals.within, now);
        // A plan removes no more at once than are remembered one by one.
        let removals = removals.min(with.kept.open_left());
        Self {
            launches,
            launches_unused: launches == most_in && most_in > 0,
            next_launch,
            removals,
            removals_unused: removals == most_out && most_out > 0,
            next_removal,
        }
    }

    /// Returns what there is where budgets hold nothing back.
    fn endless(now: Timestamp) -> Self {
        Self {
            launches: u32::MAX,
            launches_unused: true,
            next_launch: now,
            removals: u32::MAX,
            removals_unused: true,
            next_removal: now,
        }
    }

    /// Returns whether a unit has room. One that is larger than a budget goes alone, while nothing of
    /// the budget is used: else it would never go.
    fn launches(&self, unit: &Unit<'_>) -> bool {
        unit.launches <= self.launches || (self.launches_unused && unit.rows.len() > 1)
    }

    fn removes(&self, unit: &Unit<'_>) -> bool {
        unit.removes <= self.removals || (self.removals_unused && unit.rows.len() > 1)
    }

    fn take(&mut self, unit: &Unit<'_>) {
        self.launches = self.launches.saturating_sub(unit.launches);
        self.removals = self.removals.saturating_sub(unit.removes);
        self.launches_unused &= unit.launches == 0;
        self.removals_unused &= unit.removes == 0;
    }
}

/// What holds a unit back, and the row that it is about, where it is about one.
type Cause = Option<(Option<Address>, Held)>;

/// Returns what holds every change of the plan back.
fn of_all(plan: &Plan, with: &Circumstances<'_>, now: Timestamp) -> Cause {
    let all = |held| Some((None, held));
    if !with.leader {
        return all(Held::NotLeader);
    }
    if plan.errored || !plan.applyable {
        let why = if plan.errored { "its inputs have errors" } else { "policies deny it" };
        return all(Held::NotApplyable { why: why.to_owned() });
    }
    if let Some(asked) = &with.kept.suspended {
        return all(Held::Suspended { reason: asked.reason.clone(), until: asked.until });
    }
    if with.mode == Mode::Observe {
        return all(Held::Mode { mode: with.mode });
    }
    if approval(plan, with).is_none() {
        return all(Held::NotApproved { digest: plan.capacity.digest.clone() });
    }
    let guard = &with.head.guard;
    if with.kept.break_glass.is_none() && !guard.is_open(now) {
        return all(Held::Window { opens: guard.next_opening(now) });
    }
    None
}

/// Returns what holds every removal back where the commit asks for nothing: absence is no wish.
fn of_nothing(plan: &Plan, with: &Circumstances<'_>) -> Cause {
    if !with.head.is_empty || is_seen(plan, with) {
        return None;
    }
    let why = "its commit asks for nothing at all, neither a workload nor a pool, which looks like a \
               render that failed; approve the plan by its digest where it is meant so";
    Some((None, Held::NotApplyable { why: why.to_owned() }))
}

fn of_unit(unit: &Unit<'_>, with: &Circumstances<'_>, room: &Room, now: Timestamp) -> Cause {
    let busy = unit.rows.iter().find(|row| with.under_way.contains(&row.address));
    if let Some(row) = busy {
        return Some((Some(row.address.clone()), Held::UnderWay));
    }
    let launches = if unit.launches > 0 { of_launches(unit, with, room, now) } else { None };
    launches.or_else(|| if unit.removes > 0 { of_removals(unit, with, room, now) } else { None })
}

fn of_launches(unit: &Unit<'_>, with: &Circumstances<'_>, room: &Room, now: Timestamp) -> Cause {
    let all = |held| Some((None, held));
    if let Some(breaker) = with.kept.breakers.iter().find(|breaker| breaker.name == LAUNCHES) {
        return all(Held::Breaker { name: breaker.name.clone() });
    }
    if let Some(until) = backing_off(unit, with.launches_after, now) {
        return all(Held::BackingOff { until });
    }
    for pool in unit.pools() {
        if let Some(held) = with.kept.quarantined(&pool, now) {
            return all(Held::Quarantined { pool, until: held.until });
        }
    }
    if room.launches(unit) {
        return None;
    }
    let rate = with.head.controller.launches;
    let (most, within, next) = (rate.of(with.nodes), rate.within, room.next_launch);
    all(Held::LaunchBudget { most, within, next })
}

fn of_removals(unit: &Unit<'_>, with: &Circumstances<'_>, room: &Room, now: Timestamp) -> Cause {
    let all = |held| Some((None, held));
    if with.mode != Mode::Full {
        return all(Held::Mode { mode: with.mode });
    }
    if let Some(breaker) = with.kept.breakers.iter().find(|breaker| breaker.name == MASS_REMOVAL) {
        return all(Held::Breaker { name: breaker.name.clone() });
    }
    let Circumstances { nodes, unready, .. } = *with;
    if unready > UNREADY_FEW && u64::from(unready) * 100 > u64::from(nodes) * UNREADY_PERCENT {
        return all(Held::MassUnready { unready, nodes });
    }
    if with.removing {
        return all(Held::UnderWay);
    }
    if let Some(until) = backing_off(unit, with.removes_after, now) {
        return all(Held::BackingOff { until });
    }
    let own = unit
        .rows
        .iter()
        .find_map(|row| of_row(row, unit, with, now).map(|held| (Some(row.address.clone()), held)));
    if own.is_some() {
        return own;
    }
    if room.removes(unit) {
        return None;
    }
    let rate = with.head.controller.removals;
    let (most, within, next) = (rate.of(with.nodes), rate.within, room.next_removal);
    all(Held::RemovalBudget { most, within, next })
}

/// Returns until when one of the pools of a unit is left alone.
fn backing_off(
    unit: &Unit<'_>,
    after: &BTreeMap<PoolName, Timestamp>,
    now: Timestamp,
) -> Option<Timestamp> {
    let until = unit.pools().filter_map(|pool| after.get(&pool).copied());
    until.filter(|until| now < *until).max()
}

/// Returns what holds the removal of one machine back.
fn of_row(
    row: &ResourceChange,
    unit: &Unit<'_>,
    with: &Circumstances<'_>,
    now: Timestamp,
) -> Option<Held> {
    let before = row.change.before.as_ref()?;
    let instance = before.instance_id.as_ref()?;
    let settings = &with.head.controller;
    let asks = before.pool.as_ref().filter(|pool| settings.confirm.contains(*pool));
    if let Some(pool) = asks.filter(|_| !with.kept.confirmed.contains(instance)) {
        return Some(Held::NotConfirmed { pool: pool.clone() });
    }
    let since = with.planned_since.get(instance).copied().unwrap_or(now);
    let until = later(since, settings.settle);
    if now < until {
        return Some(Held::Settling { until });
    }
    // What has to go for another reason does not wait for quiet.
    let rest = before.pool.as_ref().filter(|_| unit.saves.contains(&row.address));
    let rest = rest.and_then(|pool| with.head.rests.get(pool)).copied()?;
    let until = later(with.quiet_since.get(instance).copied().unwrap_or(now), rest);
    (now < until).then_some(Held::Resting { until })
}

/// Holds removals back whose pods may have been counted on a launch that is held back.
fn hold_dependents(units: &[Unit<'_>], verdicts: &mut BTreeMap<Address, Verdict>) {
    let held = |unit: &&Unit<'_>| {
        unit.launches > 0
            && unit.rows.iter().any(|row| verdicts.get(&row.address) != Some(&Verdict::Go))
    };
    let Some(cause) = units.iter().find(held).and_then(|unit| unit.rows.first()) else { return };
    let cause = cause.address.clone();
    for row in units.iter().filter(|unit| unit.is_free).flat_map(|unit| &unit.rows) {
        let verdict = verdicts.entry(row.address.clone()).or_insert(Verdict::Go);
        if *verdict == Verdict::Go {
            *verdict = Verdict::Hold(Held::Together { with: cause.clone() });
        }
    }
}

/// Returns what holds a change back, for a person.
#[must_use]
pub fn says(held: Held) -> HeldBy {
    let at = |at: &Timestamp| format!("{at:.0}");
    let says = match &held {
        Held::NotLeader => "another replica leads".to_owned(),
        Held::Mode { mode } => format!("mode {} allows no such change", mode.as_str()),
        Held::Suspended { reason, until } => {
            let until = until.as_ref().map(|until| format!(" until {}", at(until)));
            format!("suspended{}: {reason}", until.unwrap_or_default())
        }
        Held::NotApplyable { why } => format!("the plan may not be applied: {why}"),
        Held::Window { opens: Some(opens) } => {
            format!("outside the windows; the next opens {}", at(opens))
        }
        Held::Window { opens: None } => "outside the windows, and none opens".to_owned(),
        Held::NotApproved { digest } => format!("nobody has approved {digest}"),
        Held::NotConfirmed { pool } => {
            format!("pool {pool} asks for a confirmation of each removal")
        }
        Held::LaunchBudget { most, within, next } => format!(
            "no more than {most} may be launched within {within:#}; the next at {}",
            at(next)
        ),
        Held::RemovalBudget { most, within, next } => {
            format!("no more than {most} may go within {within:#}; the next at {}", at(next))
        }
        Held::Settling { until } => {
            format!("planned too short a time; begun at {} where it still is", at(until))
        }
        Held::Resting { until } => {
            format!("pods came or left too short a time ago; its pool waits until {}", at(until))
        }
        Held::MassUnready { unready, nodes } => {
            format!("{unready} of {nodes} nodes are not Ready; removing more is no help")
        }
        Held::Breaker { name } => format!("breaker {name} has latched; somebody must reset it"),
        Held::Quarantined { pool, until } => {
            format!("what pool {pool} launched did not help; it tries again at {}", at(until))
        }
        Held::Together { with } => format!("goes together with {with}, which is held back"),
        Held::BackingOff { until } => {
            format!("the last try did not come about; tried again at {}", at(until))
        }
        Held::Unheard { until } => {
            format!("what was asked for before may be on its way; awaited until {}", at(until))
        }
        Held::UnderWay => "under way".to_owned(),
    };
    HeldBy { why: held, says }
}

#[cfg(test)]
mod tests;
