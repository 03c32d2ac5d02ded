//! What must hold after every step, whatever goes wrong: the invariants I1 to I20 of the design, as far as
//! an outside of the loop can tell.
//!
//! Not here: I7 (learned allocatable) is a property of the engine, and an incident has it; I11 (by id
//! alone) cannot be broken through the ports, since none shrinks by number; I16 (upgrade neutrality) is an
//! incident (a restart that changes nothing).

use std::collections::{BTreeMap, BTreeSet};

use fleetwright::fleet::{Completeness, Instance, Observed, tag};
use fleetwright::ids::{ChangeId, InstanceId};
use fleetwright::plan::wire::WaveStep;
use fleetwright::plan::{Plan, change_id};
use fleetwright::reconcile::{Effect, Status};
use jiff::{SignedDuration, Timestamp};

use super::outside::{Asked, Shared, What};

/// The longest that a node of ours may stand cordoned: every wait of an apply, one after the other.
const CORDONED_MAX: SignedDuration = SignedDuration::from_mins(60);
/// Most reads a minute of one life.
const READS_PER_MINUTE: u64 = 240;

/// What was found, and what it takes to find it.
#[derive(Default)]
pub(crate) struct Checks {
    /// The first thing that was wrong.
    broken: Option<String>,
    /// Calls that were looked at.
    seen: usize,
    /// Changes of plans that were carried out, by any life.
    approved: BTreeSet<ChangeId>,
    /// Machines that plans which are or were carried out have go, and those that go by themselves.
    may_go: BTreeSet<InstanceId>,
    /// Machines that each life knows to have launched.
    launched: BTreeMap<usize, BTreeMap<InstanceId, Timestamp>>,
    /// Since when nodes stand cordoned.
    cordoned: BTreeMap<String, Timestamp>,
    /// Launches that were made, and those that replaced nothing were of no use.
    launches: Vec<Timestamp>,
    removals: Vec<Timestamp>,
    reads: (u64, Option<Timestamp>),
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

    /// Forgets what a life knew that has ended.
    pub(crate) fn restarted(&mut self, replica: usize) {
        self.launched.remove(&replica);
    }

    /// Returns the most machines that were launched within a time.
    #[must_use]
    pub(crate) fn most_launches(&self, within: SignedDuration) -> usize {
        most(&self.launches, within)
    }

    /// Returns how many machines were told to end.
    #[must_use]
    pub(crate) fn removals(&self) -> usize {
        self.removals.len()
    }

    /// Returns how many machines were launched.
    #[must_use]
    pub(crate) fn launches(&self) -> usize {
        self.launches.len()
    }

    /// Looks at a step of a replica.
    pub(crate) fn step(
        &mut self,
        replica: usize,
        shared: &Shared,
        status: &Status,
        effects: &[Effect],
    ) {
        let now = shared.time.now();
        for going in &status.going {
            self.may_go.insert(going.instance.clone());
        }
        for effect in effects {
            if let Effect::Apply { plan, .. } = effect {
                self.carries_out(plan, now);
            }
            if let Effect::Plan { world, .. } = effect {
                self.plans_over(replica, world, now);
            }
        }
        self.calls(shared);
    }

    /// I3 and I18: nothing is carried out that was made from a part, or may not be.
    fn carries_out(&mut self, plan: &Plan, now: Timestamp) {
        if plan.errored || !plan.applyable {
            self.fail(now, "I18: a plan is carried out that may not be");
        }
        let mut sources = plan.capacity.base.world.sources.values();
        if !sources.all(|source| *source == Completeness::Complete) {
            self.fail(now, "I3: a plan is carried out over a world that was read in part");
        }
        let waves = plan.capacity.waves.iter();
        for address in waves.clone().flat_map(|wave| &wave.addresses) {
            self.approved.insert(change_id(&plan.capacity.plan_id, address));
        }
        let goes: BTreeSet<_> = waves
            .filter(|wave| wave.step == WaveStep::Retire)
            .flat_map(|wave| &wave.addresses)
            .collect();
        let rows = plan.resource_changes.iter().filter(|row| goes.contains(&row.address));
        let machines = rows.filter_map(|row| row.change.before.as_ref()?.instance_id.clone());
        self.may_go.extend(machines);
    }

    /// I13: what this life launched is in the world that it plans over, or has ended, or is long past.
    fn plans_over(&mut self, replica: usize, world: &Observed, now: Timestamp) {
        let young = |at: &Timestamp| now.duration_since(*at) < SignedDuration::from_mins(2);
        let known = self.launched.get(&replica).cloned().unwrap_or_default();
        for (id, _) in known.iter().filter(|(_, at)| young(at)) {
            if !world.instances.contains_key(id) && !self.may_go.contains(id) {
                self.fail(now, &format!("I13: planned as if {id} had not been launched"));
            }
        }
    }

    /// Looks at what was asked since.
    fn calls(&mut self, shared: &Shared) {
        let asked = shared.asked.borrow();
        let new: Vec<Asked> = asked.iter().skip(self.seen).cloned().collect();
        self.seen = asked.len();
        drop(asked);
        for call in new {
            self.call(shared, &call);
        }
    }

    fn call(&mut self, shared: &Shared, call: &Asked) {
        let Asked { at, replica, held, what } = call;
        // I12: only who holds the lease begins to write.
        if !held && !matches!(what, What::Acknowledge(_)) {
            self.fail(*at, &format!("I12: replica {replica} writes, and does not hold the lease"));
        }
        match what {
            What::Launch(request, Some(id)) => {
                self.launches.push(*at);
                let change =
                    request.tags.get(tag::CHANGE).map(|text| ChangeId::from(text.as_str()));
                if !change.is_some_and(|change| self.approved.contains(&change)) {
                    self.fail(*at, &format!("I18: {id} was launched, and is in no plan"));
                }
                if !request.tags.contains_key(tag::CLUSTER) || !request.tags.contains_key(tag::POOL)
                {
                    self.fail(*at, &format!("I2: {id} was launched without our tags"));
                }
                self.launched.entry(*replica).or_default().insert(id.clone(), *at);
            }
            What::Terminate(id, left) => {
                self.removals.push(*at);
                if !self.may_go.contains(id) {
                    self.fail(*at, &format!("I18: {id} was told to end, and nothing says why"));
                }
                let forced = shared.kept.borrow().going.iter().any(|going| going.instance == *id);
                if *left > 0 && !forced {
                    self.fail(*at, &format!("I9: {id} was told to end with {left} pods on it"));
                }
            }
            What::Launch(_, None) | What::Cordon(..) | What::Evict(_) | What::Acknowledge(_) => {}
        }
    }

    /// Looks at the world after a moment has passed.
    pub(crate) fn tick(&mut self, shared: &Shared) {
        self.calls(shared);
        let now = shared.time.now();
        let view = shared.world.view();
        let mut standing = BTreeMap::new();
        for node in view.nodes().values() {
            let ours = node.annotations.contains_key(fleetwright::fleet::CORDONED_ANNOTATION);
            if ours && node.unschedulable && node.ready {
                let name = node.name.to_string();
                let since = self.cordoned.get(&name).copied().unwrap_or(now);
                standing.insert(name, since);
            }
        }
        drop(view);
        for (name, since) in &standing {
            if now.duration_since(*since) > CORDONED_MAX {
                self.fail(now, &format!("I10: node {name} has been cordoned since {since:.0}"));
            }
        }
        self.cordoned = standing;
        self.changes_are_unique(&shared.world.observed(), now);
        let (reads, since) = self.reads;
        match since {
            Some(since) if now.duration_since(since) < SignedDuration::from_mins(1) => {}
            Some(_) | None => {
                let more = shared.reads.get() - reads;
                if since.is_some() && more > READS_PER_MINUTE {
                    self.fail(now, &format!("I19: {more} reads within a minute"));
                }
                self.reads = (shared.reads.get(), Some(now));
            }
        }
    }

    /// I1: of each change at most one machine runs.
    fn changes_are_unique(&mut self, observed: &Observed, now: Timestamp) {
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

/// Returns the most moments within a time.
fn most(moments: &[Timestamp], within: SignedDuration) -> usize {
    let mut most = 0;
    for (first, at) in moments.iter().enumerate() {
        let until = at.checked_add(within).unwrap_or(Timestamp::MAX);
        most = most.max(moments.iter().skip(first).take_while(|at| **at < until).count());
    }
    most
}
