//! Removals: planned, drained, replaced first, within budgets, and none in a broken fleet.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright::controller::{
    BlockedReason, Effect, InterruptionPhase, PublishedPlan, TerminatingInstance,
};
use fleetwright::model::desired::{ControllerSettings, CountOrShare, RateLimit};
use fleetwright::model::ids::{Address, ChangeId, InstanceId, NodeName, PlanId, WorkloadId};
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{ExplainRow, RetireReason, WaveStep};
use jiff::{SignedDuration, Timestamp};

use super::budgets::over;
use super::{
    APPLY, InvariantChecks, ObservedFleet, RecordedCall, ReplicaStep, TerminatedInstance, because,
    rows,
};

/// The longest that a read of Kubernetes takes.
const READ_TAKES: SignedDuration = SignedDuration::from_millis(200);
/// The longest that a node of ours may stand cordoned: every wait of an apply, one after the other.
const CORDONED_MAX: SignedDuration = SignedDuration::from_mins(60);
/// How long an instance whose kubelet is gone is drained before it is ended with what is on it.
const BROKEN_DRAIN: SignedDuration = SignedDuration::from_mins(10);
/// The longest before EC2 ends an instance that its pods are asked to leave it without another place.
const DRAINED_BEFORE: SignedDuration = SignedDuration::from_mins(15);
/// How long an apply waits until an instance that it launched is Ready.
const READY_WITHIN: SignedDuration = SignedDuration::from_mins(15);
/// The most that two clocks are apart: each at most five minutes off.
const CLOCKS_APART: SignedDuration = SignedDuration::from_mins(10);
/// Share of nodes that are not Ready above which nothing is removed, in percent, and how many are few.
const UNREADY: (usize, usize) = (45, 3);

/// An instance that a plan has go.
#[derive(Clone)]
pub(super) struct PlannedRemoval {
    /// Rows that go together, or the row itself.
    pub(super) unit: String,
    /// What has to be Ready before, and the rows of plans that have it come.
    pub(super) after: BTreeMap<ChangeId, (PlanId, Address)>,
}

/// For how long a node has stood cordoned.
#[derive(Clone, Copy)]
pub(super) struct CordonPeriod {
    since: Timestamp,
    /// Until when, where it does not any more.
    until: Option<Timestamp>,
}

impl CordonPeriod {
    /// Returns whether it stood so when a look was begun.
    fn stood_at(&self, looked: Timestamp) -> bool {
        looked >= self.since && self.until.is_none_or(|until| looked <= until)
    }
}

impl InvariantChecks {
    /// Notes that a node stands cordoned from a moment on, unless it has stood so before.
    pub(super) fn stands_cordoned(&mut self, node: &NodeName, since: Timestamp) {
        if self.cordons.get(node).is_none_or(|stood| stood.until.is_some()) {
            self.cordons.insert(node.clone(), CordonPeriod { since, until: None });
        }
    }

    /// Notes which nodes stand cordoned by whomever: what persons do, they do right after the world was looked at.
    pub(super) fn cordons_stand(&mut self, observed: ObservedFleet<'_>, now: Timestamp) {
        // What a look shows is read a while after it was begun.
        let since = self.ticked.checked_sub(READ_TAKES).unwrap_or(self.ticked);
        for node in observed.nodes.values().filter(|node| node.unschedulable) {
            self.stands_cordoned(&node.name, since);
        }
        let stands =
            |name: &NodeName| observed.nodes.get(name).is_some_and(|node| node.unschedulable);
        for (_, stood) in self.cordons.iter_mut().filter(|(name, _)| !stands(name)) {
            stood.until.get_or_insert(self.ticked);
        }
        self.ticked = now;
    }

    /// I9: what is being drained is not uncordoned by whoever looks after instances that go, or were left.
    pub(super) fn uncordons(&mut self, effect: &Effect, step: &ReplicaStep<'_>) {
        let Effect::Cordon { instance, node, mark: None } = effect else { return };
        let node = &node.name;
        let goes = step.status.terminating.iter().any(|going| going.instance == *instance);
        let applying = &step.status.in_progress;
        // Of an instance that goes by itself it is known which apply may drain it as well.
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

    /// I14, I15 and I17: nothing is removed over what cannot be read, where the fleet is broken, or for a
    /// commit that asks for nothing at all.
    pub(super) fn may_remove(&mut self, step: &ReplicaStep<'_>) {
        let ReplicaStep { now, replica, status, is_empty, .. } = *step;
        if status.world.as_ref().is_none_or(|world| world.reads.failures > 0) {
            self.fail(now, "I14: a removal is begun while the world cannot be read");
        }
        let over = self.over.get(&replica);
        let (nodes, unready) = over.map_or((0, 0), |over| (over.nodes, over.unready));
        let (percent, few) = UNREADY;
        if unready > few && unready * 100 > nodes * percent {
            self.fail(now, &format!("I15: a removal is begun, {unready} of {nodes} not Ready"));
        }
        if is_empty {
            self.fail(now, "I17: a removal is begun for a commit that asks for nothing");
        }
    }

    /// I4: no more than a share of the fleet goes at once with what runs on it.
    pub(super) fn is_no_mass_removal(
        &mut self,
        plan: &Plan,
        settings: &ControllerSettings,
        now: Timestamp,
    ) {
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

    pub(super) fn terminate(
        &mut self,
        call: &RecordedCall,
        ended: &TerminatedInstance,
        settings: &ControllerSettings,
    ) {
        let (at, id) = (call.at, &ended.id);
        if !ended.ours {
            self.fail(at, &format!("I2: {id} is none of ours, and was told to end"));
        }
        let going = self.going.get(&call.replica).and_then(|going| going.get(id)).cloned();
        let planned = self.planned.get(id).cloned();
        let again = !self.all_ended.insert(id.clone());
        if !self.went.contains(id) && planned.is_none() && !self.was_given_up(call.replica, id, at)
        {
            self.fail(at, &format!("I18: {id} was told to end, and nothing says why"));
        }
        if again || !ended.runs {
            return;
        }
        self.was_emptied(call, ended, going.as_ref());
        let Some(planned) = planned.filter(|_| going.is_none()) else { return };
        // What was Ready when the drain began may have broken since; and what was found to be needed no more when
        // the plan was made once again, over what there was before its first call, does not come.
        let came = |(change, (plan, row)): &(&ChangeId, &(PlanId, Address))| {
            ended.ready.contains(*change)
                || self.ready.contains(*change)
                || self.dropped.get(plan).is_some_and(|dropped| dropped.contains(row))
        };
        if let Some((missing, _)) = planned.after.iter().find(|launch| !came(launch)) {
            self.fail(at, &format!("I8: {id} was told to end before {missing} was Ready"));
        }
        if call.replica == APPLY {
            return;
        }
        self.removals.push((at, id.clone(), planned.unit));
        let nodes = self.most_nodes(at, settings.removals.window);
        let counted = self.counts(settings.removals, at);
        let found = over(&self.removals, settings.removals, at, nodes).filter(|_| counted);
        if let Some(found) = found {
            self.fail(at, &format!("I4: {found} machines were removed, too many for the budget"));
        }
    }

    /// Notes of which instances pods are to leave from now on, though what the plan has them come to is held back by
    /// somebody's word or by a safeguard, and EC2 leaves them for long; and which wait for that.
    pub(super) fn waits_for_new_places(
        &mut self,
        step: &ReplicaStep<'_>,
        going: &BTreeMap<InstanceId, TerminatingInstance>,
    ) {
        let before = self.going.get(&step.replica);
        let drains =
            |going: &TerminatingInstance| matches!(going.phase, InterruptionPhase::Draining);
        let later = step.now.checked_add(DRAINED_BEFORE).unwrap_or(step.now);
        let long =
            |going: &TerminatingInstance| going.deadline.is_none_or(|deadline| deadline > later);
        let held = step.status.plan.iter().flat_map(held_back).collect::<BTreeSet<_>>();
        for (id, told) in going {
            let begins = drains(told) && !before.and_then(|b| b.get(id)).is_some_and(drains);
            if begins && long(told) && !held.is_empty() {
                self.too_soon.insert((step.replica, id.clone()), held.clone());
            }
            let Some(node) = &told.node else { continue };
            if told.replacement_blocked.is_some()
                || told.deadline.is_some_and(|deadline| deadline > step.now)
            {
                self.patient.insert(node.clone());
            } else {
                self.patient.remove(node);
            }
        }
    }

    /// I8: pods of an instance that goes by itself stay while what they are to come to is held back, until EC2 is about to
    /// end it.
    pub(super) fn leaves_too_soon(&mut self, effect: &Effect, step: &ReplicaStep<'_>) {
        let Effect::Evict { instance, pods } = effect else { return };
        let Some(held) = self.too_soon.remove(&(step.replica, instance.clone())) else { return };
        let mut owners = pods.iter().filter_map(|pod| pod.owner.as_ref());
        if let Some(owner) = owners.find(|owner| held.contains(owner)) {
            let what = format!("I8: pods of {owner} are to leave {instance}");
            self.fail(step.now, &format!("{what}, and what they are to come to is held back"));
        }
    }

    /// Returns whether an instance was launched so long ago that the apply of this replica that launched it, which goes
    /// on, no longer waits for it, and was never of use to anybody: no node of it was ever Ready.
    fn was_given_up(&self, replica: usize, id: &InstanceId, at: Timestamp) -> bool {
        let applying = self.applying.get(&replica);
        let goes_on = |change: &ChangeId| {
            let launch = self.approved.get(change).filter(|launch| launch.waits);
            launch.is_some_and(|launch| applying.is_some_and(|plans| plans.contains(&launch.plan)))
        };
        self.machines.get(id).filter(|(_, change)| goes_on(change)).is_some_and(
            |(since, change)| {
                // Who waits may have been told since that it is later.
                let set = self.clock_set.is_some_and(|set| set >= *since);
                let waits = if set { READY_WITHIN - CLOCKS_APART } else { READY_WITHIN };
                !self.ready.contains(change) && at.duration_since(*since) >= waits
            },
        )
    }

    /// I9: an instance is told to end once its node was cordoned, read again, and empty; what is on it goes with
    /// it where its kubelet has long been gone, or a deadline that somebody else set has passed.
    fn was_emptied(
        &mut self,
        call: &RecordedCall,
        ended: &TerminatedInstance,
        going: Option<&TerminatingInstance>,
    ) {
        let RecordedCall { at, .. } = *call;
        let id = &ended.id;
        let Some(node) = &ended.node else { return };
        let broken = going.is_some_and(|going| {
            let broken = going.reason == "not-ready" || going.reason == "never-ready";
            broken && at.duration_since(going.since) >= BROKEN_DRAIN
        });
        let overdue = going.and_then(|going| going.deadline.filter(|d| *d > going.since));
        let forced = broken || overdue.is_some_and(|deadline| at >= deadline);
        let stood = self.cordons.get(node).copied();
        let seen = call.looked.filter(|looked| stood.is_some_and(|stood| stood.stood_at(*looked)));
        // Nobody can tell of a person who lets pods come again while the call is on its way.
        let unknown = |since: &Option<Timestamp>| {
            ended.open && seen.is_some_and(|seen| since.is_none_or(|since| since > seen))
        };
        let left = ended.left.iter().filter(|since| !unknown(since)).count();
        if left > 0 && !forced {
            self.fail(at, &format!("I9: {id} was told to end with {left} pods on it"));
        }
        match (stood, seen) {
            (_, Some(_)) => {}
            _ if forced => {}
            (None, None) => self.fail(at, &format!("I9: {id} was told to end, and never cordoned")),
            (Some(_), None) => {
                self.fail(at, &format!("I9: {id} was told to end, and not read under its cordon"));
            }
        }
    }

    /// I10: every drain ends.
    pub(super) fn cordons_end(&mut self, observed: ObservedFleet<'_>, now: Timestamp) {
        let mut standing = BTreeMap::new();
        for node in observed.nodes.values() {
            let ours = node.cordon_reason().is_some();
            let patient = self.patient.contains(&node.name);
            if ours && node.unschedulable && node.ready && !patient {
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
}

/// Returns the workloads whose pods the plan has come to instances that are held back, and will be until somebody or
/// something else ends that.
fn held_back(now: &PublishedPlan) -> impl Iterator<Item = WorkloadId> {
    let stays = |held: &BlockedReason| {
        matches!(
            held,
            BlockedReason::Suspended { .. }
                | BlockedReason::OutsideWindow { .. }
                | BlockedReason::NotApproved { .. }
                | BlockedReason::Breaker { .. }
                | BlockedReason::Quarantined { .. }
        )
    };
    let comes = rows(&now.plan, WaveStep::Launch).filter(|row| row.change.before.is_none());
    let held =
        comes.filter(|row| now.blocked.get(&row.address).is_some_and(|held| stays(&held.reason)));
    let held: BTreeSet<&Address> = held.map(|row| &row.address).collect();
    let placed = now.plan.capacity.placements.iter();
    let placed = placed.filter(|row| held.contains(&row.address)).map(|row| row.workload.clone());
    placed.collect::<Vec<_>>().into_iter()
}

fn is_empty_node(row: &ExplainRow) -> bool {
    matches!(because(row), Some(RetireReason::Empty { .. }))
}

fn allowed(most: CountOrShare, nodes: u32) -> u32 {
    RateLimit { limit: most, window: SignedDuration::ZERO }.limit_for(nodes)
}
