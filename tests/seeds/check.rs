//! What must hold after every step, whatever goes wrong: the invariants I1 to I20 of the design, as far as
//! an outside of the loop can tell.
//!
//! Checks know what was asked and what was shown, and nothing of how the loop came to it; so each can be
//! given a trace that violates it, and has to complain ([`prove`]). Of I16 (upgrade neutrality) that is what
//! can be told of one version: nothing drifts from what is launched in its place, and no life finds
//! anything to change in a fleet that another has left at rest. Liveness is checked once nothing goes wrong
//! any more.

mod neutral;
mod proof;

pub(crate) use proof::prove;

use std::collections::{BTreeMap, BTreeSet};

use fleetwright::apply::Before;
use fleetwright::fleet::{Completeness, Instance, Node, Observed, tag};
use fleetwright::ids::{Address, ChangeId, InstanceId, NodeName, PlanId, PoolName};
use fleetwright::manifest::{ControllerSettings, Most, Rate};
use fleetwright::plan::wire::{
    Alternative, Amount, ExplainRow, NodeState, Reason, ResourceChange, RetireReason, WaveStep,
};
use fleetwright::plan::{Plan, change_id};
use fleetwright::port::LaunchRequest;
use fleetwright::reconcile::{Effect, Going, Status};
use jiff::{SignedDuration, Timestamp};

use super::outside::{Asked, Ended, What};

/// The longest that a node of ours may stand cordoned: every wait of an apply, one after the other.
const CORDONED_MAX: SignedDuration = SignedDuration::from_mins(60);
/// Most reads a minute of one life.
const READS_PER_MINUTE: u64 = 240;
/// How long EC2 may take to show what was asked of it.
const SHOWN_WITHIN: SignedDuration = SignedDuration::from_mins(2);
/// How long a machine whose kubelet is gone is drained before it is ended with what is on it.
const BROKEN_DRAIN: SignedDuration = SignedDuration::from_mins(10);
/// How long an apply waits until a machine that it launched is Ready.
const READY_WITHIN: SignedDuration = SignedDuration::from_mins(15);
/// The most that two clocks are apart: each at most five minutes off.
const CLOCKS_APART: SignedDuration = SignedDuration::from_mins(10);
/// Most times that the same thing is written again, and within how long.
const SAME_MOST: usize = 25;
const SAME_WITHIN: SignedDuration = SignedDuration::from_mins(5);
/// How long an answer may take from the port to the mind of the loop.
const HEARD: SignedDuration = SignedDuration::from_millis(500);
/// Share of nodes that are not Ready above which nothing is removed, in percent, and how many are few.
const UNREADY: (usize, usize) = (45, 3);

/// What was found, and what it takes to find it.
#[derive(Default)]
pub(crate) struct Checks {
    /// The first thing that was wrong.
    broken: Option<String>,
    /// Calls that were looked at.
    seen: usize,
    /// Launches of plans that were carried out, by any life, as the changes that they are asked for as.
    approved: BTreeMap<ChangeId, Launch>,
    /// Machines that plans which are or were carried out have go, and what comes in their place.
    planned: BTreeMap<InstanceId, Removal>,
    /// The same of each plan.
    drains: BTreeMap<PlanId, BTreeSet<InstanceId>>,
    /// Machines that go by themselves, as each replica last told it.
    going: BTreeMap<usize, BTreeMap<InstanceId, Going>>,
    /// Machines that went by themselves as any replica ever told it.
    went: BTreeSet<InstanceId>,
    /// Launches of which nobody has heard, whoever asked for them: when that was, and as which change.
    unheard: BTreeMap<InstanceId, (Timestamp, ChangeId)>,
    /// Every machine that was launched: when that was asked for first, and as which change.
    machines: BTreeMap<InstanceId, (Timestamp, ChangeId)>,
    /// Plans that were begun.
    begun: u64,
    /// Machines that each life knows to have launched, and to have told to end.
    launched: BTreeMap<usize, BTreeMap<InstanceId, Timestamp>>,
    ended: BTreeMap<usize, BTreeMap<InstanceId, Timestamp>>,
    /// When nodes were last cordoned.
    cordons: BTreeMap<NodeName, Timestamp>,
    /// Since when nodes stand cordoned.
    cordoned: BTreeMap<String, Timestamp>,
    /// What each replica planned over last.
    world: BTreeMap<usize, (usize, usize)>,
    allocatable: BTreeMap<usize, BTreeMap<(String, String), Amount>>,
    /// Launches and removals that a plan decided, and the unit that each is of.
    launches: Vec<(Timestamp, InstanceId, String)>,
    removals: Vec<(Timestamp, InstanceId, String)>,
    /// Changes of which a machine was Ready once.
    ready: BTreeSet<ChangeId>,
    /// Every machine that was told to end.
    all_ended: BTreeSet<InstanceId>,
    /// Nodes that there were, as they became fewer or more.
    nodes: Vec<(Timestamp, u32)>,
    /// When the same thing was written.
    writes: BTreeMap<String, Vec<Timestamp>>,
    reads: (u64, Option<Timestamp>),
    /// When a clock was last set: what is counted over time is counted anew then.
    clock_set: Option<Timestamp>,
    /// What is planned again, and must come to the same.
    neutral: neutral::Neutral,
    /// Whether somebody has asked for something: people may approve what nothing else does.
    asked: bool,
}

/// A machine that a plan has come.
#[derive(Clone)]
struct Launch {
    /// Rows that go together, or the row itself.
    unit: String,
    /// Which of all plans that were begun asks for it.
    begun: u64,
    /// What it is to be, and what may stand in for that.
    node: NodeState,
    alternatives: Vec<Alternative>,
}

impl Launch {
    /// Returns whether a launch asks for what was decided.
    fn is_of(&self, request: &LaunchRequest) -> bool {
        let Self { node, alternatives, unit: _, begun: _ } = self;
        let is_planned = node.instance_type.as_ref() == Some(&request.instance_type)
            && node.zone.as_ref() == Some(&request.zone)
            && node.capacity_type == Some(request.capacity_type);
        let stands_in = |offering: &Alternative| {
            offering.instance_type == request.instance_type
                && offering.zone == request.zone
                && offering.capacity_type == request.capacity_type
        };
        // One that carries none is complained of for that.
        let pool = request.tags.get(tag::POOL);
        let of_pool =
            |pool: &String| node.pool.as_ref().map(PoolName::as_str) == Some(pool.as_str());
        (is_planned || alternatives.iter().any(stands_in))
            && node.image.as_ref() == Some(&request.image)
            && pool.is_none_or(of_pool)
    }
}

/// A machine that a plan has go.
#[derive(Clone)]
struct Removal {
    /// Rows that go together, or the row itself.
    unit: String,
    /// What has to be Ready before, and the rows of plans that have it come.
    after: BTreeMap<ChangeId, (PlanId, Address)>,
}

/// What there is, after a moment has passed.
#[derive(Clone, Copy)]
pub(crate) struct Sight<'a> {
    pub(crate) nodes: &'a BTreeMap<NodeName, Node>,
    pub(crate) instances: &'a BTreeMap<InstanceId, Instance>,
}

/// A step of a replica.
pub(crate) struct Step<'a> {
    pub(crate) replica: usize,
    pub(crate) now: Timestamp,
    pub(crate) status: &'a Status,
    pub(crate) effects: &'a [Effect],
    /// The settings of the commit that is served.
    pub(crate) settings: &'a ControllerSettings,
    /// Whether that commit asks for nothing at all.
    pub(crate) is_empty: bool,
}

impl Checks {
    /// Returns whether nothing was wrong.
    #[must_use]
    pub(crate) fn is_well(&self) -> bool {
        self.broken.is_none()
    }

    /// Returns what was wrong.
    ///
    /// # Errors
    /// With the first of it.
    pub(crate) fn well(&self) -> Result<(), String> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Notes that something is wrong.
    pub(crate) fn fail(&mut self, at: Timestamp, what: &str) {
        self.broken.get_or_insert_with(|| format!("{at:.0}: {what}"));
    }

    /// Notes that somebody has asked for something.
    pub(crate) fn somebody_asks(&mut self) {
        self.asked = true;
    }

    /// Notes that the clock of a replica was set.
    pub(crate) fn clock_is_set(&mut self, now: Timestamp) {
        self.clock_set = Some(now);
    }

    /// Forgets what a life knew that has ended.
    pub(crate) fn restarted(&mut self, replica: usize) {
        self.neutral.restarted(replica);
        self.launched.remove(&replica);
        self.ended.remove(&replica);
        self.going.remove(&replica);
    }

    /// Returns the most machines that were launched within a time.
    #[must_use]
    pub(crate) fn most_launches(&self, within: SignedDuration) -> usize {
        let moments: Vec<Timestamp> = self.launches.iter().map(|(at, ..)| *at).collect();
        most(&moments, within)
    }

    /// Returns how many machines were told to end.
    #[must_use]
    pub(crate) fn removals(&self) -> usize {
        self.all_ended.len()
    }

    /// Returns how many machines were launched.
    #[must_use]
    pub(crate) fn launches(&self) -> usize {
        self.launches.len()
    }

    /// Looks at a step of a replica.
    pub(crate) fn step(&mut self, step: &Step<'_>) {
        let going = step.status.going.iter().map(|going| (going.instance.clone(), going.clone()));
        let going: BTreeMap<_, _> = going.collect();
        self.went.extend(going.keys().cloned());
        self.going.insert(step.replica, going);
        if let Some(why) = self.neutral.was_planned(step.replica, step.status) {
            self.fail(step.now, &format!("I16: {why}"));
        }
        for effect in step.effects {
            if let Effect::Plan { world, .. } = effect {
                self.plans_over(step.replica, world, step.now);
            }
            self.neutral.asks(step.replica, effect, step.status);
            self.uncordons(effect, step);
            if let Effect::Apply { plan, begun, .. } = effect {
                self.carries_out(plan, begun, step);
            }
        }
    }

    /// I9: what is being drained is not uncordoned by whoever looks after machines that go, or were left.
    fn uncordons(&mut self, effect: &Effect, step: &Step<'_>) {
        let Effect::Cordon { instance, node, mark: None } = effect else { return };
        let node = &node.name;
        let goes = step.status.going.iter().any(|going| going.instance == *instance);
        let applying = &step.status.applying;
        // Of a machine that goes by itself it is known which apply may drain it as well.
        let drains = |plan: &PlanId| self.drains.get(plan).is_none_or(|all| all.contains(instance));
        if if goes { applying.keys().any(drains) } else { !applying.is_empty() } {
            self.fail(step.now, &format!("I9: {node} is uncordoned beside an apply"));
        }
        let plan = step.status.plan.iter().flat_map(|plan| rows(&plan.plan, WaveStep::Retire));
        let mut planned = plan.filter_map(|row| row.change.before.as_ref()?.instance_id.as_ref());
        if planned.any(|id| id == instance) {
            self.fail(step.now, &format!("I9: {node} is uncordoned, and the plan has it go"));
        }
    }

    /// Looks at a plan that is begun, of which those launches that were asked for before, by whichever life,
    /// are asked for again as the same changes: each row is one change, and its own only where it is new.
    fn carries_out(&mut self, plan: &Plan, begun: &BTreeMap<Address, Before>, step: &Step<'_>) {
        let Step { now, replica, status, settings, .. } = *step;
        if plan.errored || !plan.applyable {
            self.fail(now, "I18: a plan is carried out that may not be");
        }
        let mut sources = plan.capacity.base.world.sources.values();
        if !sources.all(|source| *source == Completeness::Complete) {
            self.fail(now, "I3: a plan is carried out over a world that was read in part");
        }
        if let Some(why) = neutral::drifts_from_itself(plan) {
            self.fail(now, &format!("I16: {why}"));
        }
        self.drains.entry(plan.capacity.plan_id.clone()).or_default();
        let launched: Vec<&ResourceChange> = rows(plan, WaveStep::Launch).collect();
        let retired: Vec<&ResourceChange> = rows(plan, WaveStep::Retire).collect();
        self.quarantines_hold(&launched, status, now);
        self.learned_is_used(&launched, replica, now);
        if !retired.is_empty() {
            self.may_remove(step);
            self.is_no_mass_removal(plan, settings, now);
        }
        let plan_id = &plan.capacity.plan_id;
        let groups: BTreeMap<_, _> = plan
            .capacity
            .explain
            .iter()
            .filter_map(|row| Some((&row.address, row.group.as_deref()?)))
            .collect();
        let unit = |row: &ResourceChange| {
            let group = groups.get(&row.address).copied();
            format!("{plan_id} {}", group.unwrap_or(row.address.as_str()))
        };
        let change = |address: &Address| {
            let before = begun.get(address).map(|before| before.change.clone());
            before.unwrap_or_else(|| change_id(plan_id, address))
        };
        self.begun += 1;
        for row in &launched {
            let Some(node) = row.change.after.clone() else { continue };
            let alternatives = plan.capacity.alternatives.iter();
            let alternatives = alternatives.filter(|of| of.address == row.address);
            let alternatives = alternatives.flat_map(|of| of.offerings.clone()).collect();
            let launch = Launch { unit: unit(row), begun: self.begun, node, alternatives };
            self.approved.insert(change(&row.address), launch);
        }
        for row in retired {
            let Some(id) = row.change.before.as_ref().and_then(|b| b.instance_id.clone()) else {
                continue;
            };
            let group = groups.get(&row.address).copied();
            let mine = |other: &&&ResourceChange| {
                other.address == row.address
                    || group.is_some() && groups.get(&other.address).copied() == group
            };
            let after = launched.iter().filter(mine);
            let row_of = |row: &ResourceChange| (plan_id.clone(), row.address.clone());
            let after = after.map(|row| (change(&row.address), row_of(row))).collect();
            self.drains.entry(plan_id.clone()).or_default().insert(id.clone());
            self.planned.insert(id, Removal { unit: unit(row), after });
        }
    }

    /// I6: what did not help is not launched again at once.
    fn quarantines_hold(&mut self, rows: &[&ResourceChange], status: &Status, now: Timestamp) {
        for row in rows {
            let pool = row.change.after.as_ref().and_then(|after| after.pool.as_ref());
            let held = pool.and_then(|pool| status.quarantined.get(pool));
            if held.is_some_and(|(_, until)| now < *until) {
                self.fail(now, &format!("I6: {} is launched in quarantine", row.address));
            }
        }
    }

    /// I7: what was observed of a type is what plans count with.
    fn learned_is_used(&mut self, rows: &[&ResourceChange], replica: usize, now: Timestamp) {
        let observed = self.allocatable.get(&replica).cloned().unwrap_or_default();
        for after in rows.iter().filter_map(|row| row.change.after.as_ref()) {
            let kind = after.instance_type.as_ref().map(ToString::to_string).unwrap_or_default();
            let spec = after.spec_digest.clone().unwrap_or_default();
            let Some(known) = observed.get(&(kind.clone(), spec)) else { continue };
            let Amount { cpu_milli, memory_bytes, .. } = after.allocatable;
            if cpu_milli > known.cpu_milli || memory_bytes > known.memory_bytes {
                self.fail(
                    now,
                    &format!("I7: {kind} is counted with more than it was seen to have"),
                );
            }
        }
    }

    /// I14, I15 and I17: nothing is removed over what cannot be read, where the fleet is broken, or for a
    /// commit that asks for nothing at all.
    fn may_remove(&mut self, step: &Step<'_>) {
        let Step { now, replica, status, is_empty, .. } = *step;
        if status.world.as_ref().is_none_or(|world| world.reads.failures > 0) {
            self.fail(now, "I14: a removal is begun while the world cannot be read");
        }
        let (nodes, unready) = self.world.get(&replica).copied().unwrap_or_default();
        let (percent, few) = UNREADY;
        if unready > few && unready * 100 > nodes * percent {
            self.fail(now, &format!("I15: a removal is begun, {unready} of {nodes} not Ready"));
        }
        if is_empty {
            self.fail(now, "I17: a removal is begun for a commit that asks for nothing");
        }
    }

    /// I4: no more than a share of the fleet goes at once with what runs on it.
    fn is_no_mass_removal(&mut self, plan: &Plan, settings: &ControllerSettings, now: Timestamp) {
        let explained = plan.capacity.explain.iter();
        let empty: BTreeSet<_> =
            explained.filter(|row| is_empty_node(row)).map(|row| &row.address).collect();
        let lost = rows(plan, WaveStep::Retire).filter(|row| !empty.contains(&row.address)).count();
        let lost = lost.saturating_sub(rows(plan, WaveStep::Launch).count());
        let nodes = self.nodes.last().map_or(0, |(_, nodes)| *nodes);
        let most = allowed(settings.mass_removal, nodes).max(3);
        if !self.asked && u32::try_from(lost).unwrap_or(u32::MAX) > most {
            self.fail(now, &format!("I4: {lost} of {nodes} nodes go at once"));
        }
    }

    /// I13: what this life launched is in the world that it plans over, and what it told to end is not in use,
    /// or it is long past.
    fn plans_over(&mut self, replica: usize, world: &Observed, now: Timestamp) {
        let young = |at: &Timestamp| now.duration_since(*at) < SHOWN_WITHIN;
        let known = self.launched.get(&replica).cloned().unwrap_or_default();
        for (id, _) in known.iter().filter(|(_, at)| young(at)) {
            let may_go = self.planned.contains_key(id) || self.went.contains(id);
            if !world.instances.contains_key(id) && !may_go {
                self.fail(now, &format!("I13: planned as if {id} had not been launched"));
            }
        }
        let ended = self.ended.get(&replica).cloned().unwrap_or_default();
        // What comes back at the same moment is heard after what is under way.
        for (id, _) in ended.iter().filter(|(_, at)| young(at) && now.duration_since(**at) > HEARD)
        {
            if world.instances.get(id).is_some_and(Instance::is_active) {
                self.fail(now, &format!("I13: planned as if {id} had not been told to end"));
            }
        }
        let nodes = world.nodes.values().filter(|node| !node.is_fargate());
        let unready = nodes.clone().filter(|node| !node.ready).count();
        self.world.insert(replica, (nodes.count(), unready));
        self.allocatable.insert(replica, allocatable(world));
    }

    /// Looks at what was asked since; `all` is everything that ever was.
    pub(crate) fn calls(&mut self, all: &[Asked], settings: &ControllerSettings) {
        let new: Vec<Asked> = all.iter().skip(self.seen).cloned().collect();
        self.seen = all.len();
        for call in new {
            self.call(&call, settings);
        }
    }

    /// Looks at one call.
    pub(crate) fn call(&mut self, call: &Asked, settings: &ControllerSettings) {
        let Asked { at, replica, lease, what, .. } = call;
        // I12: only who holds the lease, and holds it for long enough, begins to write.
        let holds = lease.is_some_and(|(by, until)| {
            by == *replica
                && call.began < until.checked_sub(super::outside::LEASE_MARGIN).unwrap_or(until)
        });
        // While an apply has it, nodes that EC2 takes back are cordoned, and nothing else.
        let shields = matches!(what, What::Cordon { on: true, .. })
            && lease.is_some_and(|(by, _)| by == super::outside::APPLY);
        let hears = matches!(what, What::Ended(_) | What::Launched(_));
        if !holds && !shields && !hears && !matches!(what, What::Acknowledge(..)) {
            self.fail(*at, &format!("I12: replica {replica} writes, and does not hold the lease"));
        }
        self.is_polite(*at, what);
        match what {
            What::Launch(request, Some(id)) => self.launch(call, (request, id), settings),
            What::Terminate(ended) => self.terminate(call, ended, settings),
            What::Cordon { node, ours: false, .. } => {
                self.fail(*at, &format!("I2: {node} is none of ours, and was cordoned"));
            }
            What::Cordon { node, on: true, .. } => {
                self.cordons.insert(node.clone(), *at);
            }
            What::Raise { group, from, to } if to < from => {
                self.fail(*at, &format!("I11: group {group} is shrunk by number"));
            }
            What::Acknowledge(receipt, open) => {
                if let Some(id) = open.first() {
                    let why = "before it is cordoned and kept";
                    self.fail(*at, &format!("I20: {receipt} is taken off {why}, about {id}"));
                }
            }
            What::Ended(id) => {
                self.ended.entry(*replica).or_default().insert(id.clone(), *at);
            }
            What::Launched(id) => {
                self.unheard.remove(id);
                self.launched.entry(*replica).or_default().insert(id.clone(), *at);
            }
            What::Raise { .. } | What::Launch(_, None) | What::Cordon { .. } | What::Evict(_) => {}
        }
    }

    fn launch(
        &mut self,
        call: &Asked,
        (request, id): (&LaunchRequest, &InstanceId),
        settings: &ControllerSettings,
    ) {
        let at = call.at;
        let change = request.tags.get(tag::CHANGE).map(|text| ChangeId::from(text.as_str()));
        let launch = change.as_ref().and_then(|change| self.approved.get(change)).cloned();
        match &launch {
            None => self.fail(at, &format!("I18: {id} was launched, and is in no plan")),
            Some(launch) if !launch.is_of(request) => {
                self.fail(at, &format!("I18: {id} is not the machine that was decided"));
            }
            Some(_) => {}
        }
        if let (Some(change), Some(launch)) = (change, &launch) {
            self.unheard.retain(|id, _| !call.shown.contains(id));
            self.is_all_heard(at, &change, launch.begun);
            self.machines.entry(id.clone()).or_insert((at, change.clone()));
            self.unheard.insert(id.clone(), (at, change));
        }
        let unit = launch.map(|launch| launch.unit);
        if !request.tags.contains_key(tag::CLUSTER) || !request.tags.contains_key(tag::POOL) {
            self.fail(at, &format!("I2: {id} was launched without our tags"));
        }
        if self.launches.iter().any(|(_, known, _)| known == id) {
            return;
        }
        self.launches.push((at, id.clone(), unit.unwrap_or_default()));
        let nodes = self.most_nodes(at, settings.launches.within);
        let counted = self.counts(settings.launches, at);
        let found = over(&self.launches, settings.launches, at, nodes).filter(|_| counted);
        if let Some(found) = found {
            self.fail(at, &format!("I5: {found} machines were launched, too many for the budget"));
        }
    }

    /// I13: while nobody has heard of a launch, and EC2 may not show it yet, no other one is asked for: neither who
    /// asked nor who comes after can count with it. Those of one plan are asked for at the same time.
    fn is_all_heard(&mut self, at: Timestamp, change: &ChangeId, begun: u64) {
        let set = self.clock_set;
        let other = self.unheard.iter().find(|(_, (since, other))| {
            let beside = self.approved.get(other).is_some_and(|launch| launch.begun == begun);
            let young = at.duration_since(*since) < SHOWN_WITHIN;
            // Who counts with a clock that was set since has waited for as long by that.
            other != change && !beside && young && set.is_none_or(|set| set < *since)
        });
        if let Some((id, _)) = other {
            let what = format!("I13: {change} is launched, and nobody has heard of {id} yet");
            self.fail(at, &what);
        }
    }

    fn terminate(&mut self, call: &Asked, ended: &Ended, settings: &ControllerSettings) {
        let (at, id) = (call.at, &ended.id);
        if !ended.ours {
            self.fail(at, &format!("I2: {id} is none of ours, and was told to end"));
        }
        let going = self.going.get(&call.replica).and_then(|going| going.get(id)).cloned();
        let planned = self.planned.get(id).cloned();
        let again = !self.all_ended.insert(id.clone());
        if !self.went.contains(id) && planned.is_none() && !self.never_served(id, at) {
            self.fail(at, &format!("I18: {id} was told to end, and nothing says why"));
        }
        if again || !ended.runs {
            return;
        }
        self.was_emptied(call, ended, going.as_ref());
        let Some(planned) = planned.filter(|_| going.is_none()) else { return };
        // What was Ready when the drain began may have broken since; and what was found to be needed no more when
        // the plan was made once again, over what there was before its first call, does not come.
        let came = |(change, row): &(&ChangeId, &(PlanId, Address))| {
            ended.ready.contains(*change)
                || self.ready.contains(*change)
                || ended.dropped.contains(*row)
        };
        if let Some((missing, _)) = planned.after.iter().find(|launch| !came(launch)) {
            self.fail(at, &format!("I8: {id} was told to end before {missing} was Ready"));
        }
        self.removals.push((at, id.clone(), planned.unit));
        let nodes = self.most_nodes(at, settings.removals.within);
        let counted = self.counts(settings.removals, at);
        let found = over(&self.removals, settings.removals, at, nodes).filter(|_| counted);
        if let Some(found) = found {
            self.fail(at, &format!("I4: {found} machines were removed, too many for the budget"));
        }
    }

    /// Returns whether a machine was launched so long ago that an apply no longer waits for it, and was never of
    /// use to anybody: no node of it was ever Ready.
    fn never_served(&self, id: &InstanceId, at: Timestamp) -> bool {
        self.machines.get(id).is_some_and(|(since, change)| {
            // Who waits may have been told since that it is later.
            let set = self.clock_set.is_some_and(|set| set >= *since);
            let waits = if set { READY_WITHIN - CLOCKS_APART } else { READY_WITHIN };
            !self.ready.contains(change) && at.duration_since(*since) >= waits
        })
    }

    /// I9: a machine is told to end once its node was cordoned, read again, and empty; what is on it goes with
    /// it where its kubelet has long been gone, or a deadline that somebody else set has passed.
    fn was_emptied(&mut self, call: &Asked, ended: &Ended, going: Option<&Going>) {
        let Asked { at, .. } = *call;
        let id = &ended.id;
        let Some(node) = &ended.node else { return };
        let broken = going.is_some_and(|going| {
            let broken = going.why == "not-ready" || going.why == "never-ready";
            broken && at.duration_since(going.since) >= BROKEN_DRAIN
        });
        let overdue = going.and_then(|going| going.deadline.filter(|d| *d > going.since));
        let forced = broken || overdue.is_some_and(|deadline| at >= deadline);
        if ended.left > 0 && !forced {
            self.fail(at, &format!("I9: {id} was told to end with {} pods on it", ended.left));
        }
        match (self.cordons.get(node), call.looked) {
            (Some(cordoned), Some(looked)) if looked >= *cordoned => {}
            _ if forced => {}
            (None, _) => self.fail(at, &format!("I9: {id} was told to end, and never cordoned")),
            (Some(_), _) => {
                self.fail(at, &format!("I9: {id} was told to end, and not read after its cordon"));
            }
        }
    }

    /// I19: the same thing is not written over and over.
    fn is_polite(&mut self, at: Timestamp, what: &What) {
        let key = match what {
            What::Launch(request, _) => format!("launch {}", request.token),
            What::Terminate(ended) => format!("end {}", ended.id),
            What::Cordon { node, on, .. } => format!("cordon {node} {on}"),
            // Budgets of disruption are asked anew by every drain there is.
            What::Evict(_)
            | What::Acknowledge(..)
            | What::Ended(_)
            | What::Launched(_)
            | What::Raise { .. } => return,
        };
        let times = self.writes.entry(key.clone()).or_default();
        times.push(at);
        times.retain(|time| at.duration_since(*time) < SAME_WITHIN);
        if times.len() > SAME_MOST {
            self.fail(at, &format!("I19: {key}: more than {SAME_MOST} times within 5 minutes"));
        }
    }

    /// Returns whether no clock was set within the time of a budget.
    fn counts(&self, rate: Rate, now: Timestamp) -> bool {
        self.clock_set.is_none_or(|at| now.duration_since(at) >= rate.within)
    }

    /// Returns the most nodes that there were within a time, and while the plan was made and carried out.
    fn most_nodes(&self, at: Timestamp, within: SignedDuration) -> u32 {
        let since = at.checked_sub(within).unwrap_or(at);
        let since = since.checked_sub(SignedDuration::from_mins(40)).unwrap_or(since);
        let before = self.nodes.iter().rev().find(|(time, _)| *time <= since);
        let during = self.nodes.iter().rev().take_while(|(time, _)| *time > since);
        during.chain(before).map(|(_, nodes)| *nodes).max().unwrap_or(0)
    }

    /// Looks at the world after a moment has passed.
    pub(crate) fn tick(&mut self, observed: Sight<'_>, reads: u64, now: Timestamp) {
        let nodes = u32::try_from(observed.nodes.len()).unwrap_or(u32::MAX);
        if self.nodes.last().is_none_or(|(_, last)| *last != nodes) {
            self.nodes.push((now, nodes));
        }
        let serve = observed.nodes.values().filter(|node| node.ready);
        let serve = serve.filter_map(|node| observed.instances.get(node.instance.as_ref()?));
        let changes = serve.filter_map(|instance| instance.tags.get(tag::CHANGE));
        self.ready.extend(changes.map(|change| ChangeId::from(change.as_str())));
        self.cordons_end(observed, now);
        self.changes_are_unique(observed, now);
        let (before, since) = self.reads;
        match since {
            Some(since) if now.duration_since(since) < SignedDuration::from_mins(1) => {}
            Some(_) | None => {
                let more = reads - before;
                if since.is_some() && more > READS_PER_MINUTE {
                    self.fail(now, &format!("I19: {more} reads within a minute"));
                }
                self.reads = (reads, Some(now));
            }
        }
    }

    /// I10: every drain ends.
    fn cordons_end(&mut self, observed: Sight<'_>, now: Timestamp) {
        let mut standing = BTreeMap::new();
        for node in observed.nodes.values() {
            let ours = node.cordoned_for().is_some();
            if ours && node.unschedulable && node.ready {
                let name = node.name.to_string();
                let since = self.cordoned.get(&name).copied().unwrap_or(now);
                standing.insert(name, since);
            }
        }
        for (name, since) in &standing {
            if now.duration_since(*since) > CORDONED_MAX {
                self.fail(now, &format!("I10: node {name} has been cordoned since {since:.0}"));
            }
        }
        self.cordoned = standing;
    }

    /// I1: of each change at most one machine runs.
    fn changes_are_unique(&mut self, observed: Sight<'_>, now: Timestamp) {
        let mut seen: BTreeMap<&str, &InstanceId> = BTreeMap::new();
        let active = observed.instances.values().filter(|i: &&Instance| i.is_active());
        let mut twice = None;
        for instance in active {
            let Some(change) = instance.tags.get(tag::CHANGE) else { continue };
            if let Some(other) = seen.insert(change, &instance.id) {
                twice = Some(format!("I1: {other} and {} are of one change", instance.id));
            }
        }
        if let Some(what) = twice {
            self.fail(now, &what);
        }
    }
}

fn rows(plan: &Plan, step: WaveStep) -> impl Iterator<Item = &ResourceChange> {
    let waves = plan.capacity.waves.iter().filter(move |wave| wave.step == step);
    let addresses: BTreeSet<_> = waves.flat_map(|wave| &wave.addresses).collect();
    plan.resource_changes.iter().filter(move |row| addresses.contains(&row.address))
}

fn is_empty_node(row: &ExplainRow) -> bool {
    matches!(because(row), Some(RetireReason::Empty { .. }))
}

fn because(row: &ExplainRow) -> Option<&RetireReason> {
    match &row.reason {
        Reason::Retire { because } => Some(because),
        Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => {
            row.retire_reason.as_ref()
        }
    }
}

fn allowed(most: Most, nodes: u32) -> u32 {
    Rate { most, within: SignedDuration::ZERO }.of(nodes)
}

/// Returns the least that Ready nodes of ours have, by type and specification.
fn allocatable(world: &Observed) -> BTreeMap<(String, String), Amount> {
    let mut least: BTreeMap<(String, String), Amount> = BTreeMap::new();
    for node in world.nodes.values().filter(|node| node.ready && node.taints.is_empty()) {
        let instance = node.instance.as_ref().and_then(|id| world.instances.get(id));
        let ours = |i: &&Instance| i.is_active() && i.is_ours(&world.cluster.name);
        let Some(instance) = instance.filter(ours) else { continue };
        let Some(spec) = instance.tags.get(tag::SPEC) else { continue };
        let key = (instance.instance_type.to_string(), spec.clone());
        let has = Amount::from(&node.allocatable);
        let known = least.entry(key).or_insert_with(|| has.clone());
        known.cpu_milli = known.cpu_milli.min(has.cpu_milli);
        known.memory_bytes = known.memory_bytes.min(has.memory_bytes);
    }
    least
}

/// Returns how many moves there were within the time of a budget, where that is too many. A unit that is
/// larger than its budget may go alone.
fn over(
    moves: &[(Timestamp, InstanceId, String)],
    rate: Rate,
    now: Timestamp,
    nodes: u32,
) -> Option<usize> {
    let recent = moves.iter().filter(|(at, ..)| now.duration_since(*at) < rate.within);
    let units: BTreeSet<&String> = recent.clone().map(|(.., unit)| unit).collect();
    let count = recent.count();
    let most = usize::try_from(rate.of(nodes)).unwrap_or(usize::MAX);
    (count > most && units.len() > 1).then_some(count)
}

/// Returns the most moments within a time.
fn most(moments: &[Timestamp], within: SignedDuration) -> usize {
    let mut most = 0;
    for (first, at) in moments.iter().enumerate() {
        let until = at.checked_add(within).unwrap_or(Timestamp::MAX);
        most = most.max(moments.iter().skip(first).take_while(|at| **at < until).count());
    }
    most
}
