//! Removals: planned, drained, replaced first, within budgets, and none in a broken fleet.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright::controller::{
    BlockedReason, Effect, InterruptionPhase, InterruptionStatus, PublishedPlan,
};
use fleetwright::model::desired::{ControllerSettings, CountOrShare, Mode, RateLimit};
use fleetwright::model::ids::{
    Address, ChangeId, InstanceId, NodeName, PlanId, WorkloadId, WorkloadKey,
};
use fleetwright::model::observed::Observed;
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{ExplainRow, RetireReason, WaveStep};
use jiff::{SignedDuration, Timestamp};

use super::budgets::rate_excess;
use super::{
    APPLY, InvariantChecks, ObservedFleet, RecordedCall, ReplicaStep, TerminatedInstance, because,
    rows,
};

/// Time after which a wait has read a Ready node or a pending pod, whatever the faults of a seed: it
/// reads every five seconds.
const SEEN_WITHIN: SignedDuration = SignedDuration::from_mins(2);
/// Longest duration of a read of Kubernetes.
const READ_DURATION_MAX: SignedDuration = SignedDuration::from_millis(200);
/// Longest time for which our cordon of a node may last: all waits of an apply in sequence.
const CORDON_DURATION_MAX: SignedDuration = SignedDuration::from_mins(60);
/// Time that pods without a period of their own have to stop.
const POD_GRACE: SignedDuration = SignedDuration::from_secs(30);
/// Drain time after which an instance without a kubelet is terminated together with its pods.
const BROKEN_DRAIN: SignedDuration = SignedDuration::from_mins(10);
/// Reason of an interruption that only a message announces.
const ANNOUNCED: &str = "health";
/// Time before a termination by EC2 from which pods are evicted without another place.
const FORCED_EVICTION_LEAD: SignedDuration = SignedDuration::from_mins(15);
/// Time for which an apply waits until a launched instance is Ready.
const READY_WITHIN: SignedDuration = SignedDuration::from_mins(15);
/// Largest difference of two clocks. Each is off by at most five minutes.
const CLOCK_DIFFERENCE_MAX: SignedDuration = SignedDuration::from_mins(10);
/// Number of nodes that an apply always replaces in one batch.
const BATCH_NODES: usize = 3;
/// Share of unready nodes in percent above which removals are blocked, and the number that is
/// always allowed.
const UNREADY: (usize, usize) = (45, 3);

/// A removal of an applied plan.
#[derive(Clone)]
pub(super) struct PlannedRemoval {
    /// Row of the plan.
    pub(super) row: Address,
    /// Group of rows that change together, or the row itself.
    pub(super) unit: String,
    /// Node of the instance, if it has joined.
    pub(super) node: Option<NodeName>,
    /// Launches that have to be Ready before the removal, and their rows in the plans.
    pub(super) after: BTreeMap<ChangeId, (PlanId, Address)>,
    /// Number of pods by workload that the plan moves.
    pub(super) pods: BTreeMap<WorkloadKey, u32>,
    /// True if the plan removes the node as empty, only pods of the node ran there, and no pod was
    /// evicted from it since its apply began.
    pub(super) is_empty: bool,
}

/// The time for which a node has been cordoned.
#[derive(Clone, Copy)]
pub(super) struct CordonPeriod {
    since: Timestamp,
    /// End of the cordon, if it has ended.
    until: Option<Timestamp>,
}

impl CordonPeriod {
    /// Returns whether the node was cordoned at a time.
    fn stood_at(&self, at: Timestamp) -> bool {
        at >= self.since && self.until.is_none_or(|until| at <= until)
    }
}

impl InvariantChecks {
    /// Records that a node is cordoned since a time, unless its cordon is known.
    pub(super) fn record_cordon(&mut self, node: &NodeName, since: Timestamp) {
        if self.cordon_periods.get(node).is_none_or(|stood| stood.until.is_some()) {
            self.cordon_periods.insert(node.clone(), CordonPeriod { since, until: None });
        }
    }

    /// Records all cordoned nodes. Operators act right after the last evaluation.
    pub(super) fn record_cordons(&mut self, observed: ObservedFleet<'_>, now: Timestamp) {
        // A read returns a while after its start.
        let since = self.checked_at.checked_sub(READ_DURATION_MAX).unwrap_or(self.checked_at);
        for node in observed.nodes.values().filter(|node| node.unschedulable) {
            self.record_cordon(&node.name, since);
        }
        let stands =
            |name: &NodeName| observed.nodes.get(name).is_some_and(|node| node.unschedulable);
        for (_, stood) in self.cordon_periods.iter_mut().filter(|(name, _)| !stands(name)) {
            stood.until.get_or_insert(self.checked_at);
        }
        self.checked_at = now;
    }

    /// I9: a node in a drain is not uncordoned, and neither is a node that the plan removes.
    pub(super) fn check_uncordon(&mut self, effect: &Effect, step: &ReplicaStep<'_>) {
        let Effect::Uncordon { instance, node } = effect else { return };
        // A drain whose period ended long ago is reverted if something blocks it.
        let began = node.grace_period_began_at();
        let is_overdue = began.is_some_and(|began| {
            let shortest = self.grace_periods.first().copied().unwrap_or_default();
            step.now.duration_since(began) > shortest + CORDON_DURATION_MAX
        });
        let node = &node.name;
        let is_terminating =
            step.status.interrupted.iter().any(|terminating| terminating.instance == *instance);
        let applying = &step.status.in_progress;
        // The apply of a terminating instance is known.
        let drains = |plan: &PlanId| self.drains.get(plan).is_none_or(|all| all.contains(instance));
        if if is_terminating { applying.keys().any(drains) } else { !applying.is_empty() } {
            self.fail(step.now, &format!("I9: {node} is uncordoned during an apply"));
        }
        let plan = step.status.plan.iter().flat_map(|plan| rows(&plan.plan, WaveStep::Retire));
        let mut planned = plan.filter_map(|row| row.change.before.as_ref()?.instance_id.as_ref());
        // An observe-only replica carries out no plan.
        if step.settings.mode != Mode::Observe && !is_overdue && planned.any(|id| id == instance) {
            self.fail(step.now, &format!("I9: {node} is uncordoned, and the plan removes it"));
        }
    }

    /// I14, I15 and I17: no removal starts without a complete observation, in a broken fleet, or
    /// for an empty commit.
    pub(super) fn check_removal_allowed(&mut self, plan: &Plan, step: &ReplicaStep<'_>) {
        let ReplicaStep { now, replica, status, is_empty, .. } = *step;
        if status.world.as_ref().is_none_or(|world| world.reads.failures > 0) {
            self.fail(now, "I14: a removal starts without a complete observation");
        }
        let over = self.base_of(replica, plan);
        let (nodes, unready) = over.map_or((0, 0), |over| (over.nodes, over.unready));
        let (percent, few) = UNREADY;
        if unready > few && unready * 100 > nodes * percent {
            self.fail(
                now,
                &format!("I15: a removal starts with {unready} of {nodes} nodes not Ready"),
            );
        }
        if is_empty {
            self.fail(now, "I17: a removal starts for an empty commit");
        }
    }

    /// I4: a plan removes at most a share of the nodes with pods.
    pub(super) fn check_mass_removal(
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
        if !self.has_requests && u32::try_from(lost).unwrap_or(u32::MAX) > most {
            self.fail(now, &format!("I4: a plan removes {lost} of {nodes} nodes"));
        }
    }

    /// Checks a termination.
    ///
    /// I4: within the window of the removal budget, plans of the controller remove at most as many
    /// nodes with pods as it allows. A node is without pods if its plan removes it as empty, the
    /// observation of the plan has no pod there but those of the node, and no pod is evicted from it
    /// afterwards. A pod that stops counts.
    pub(super) fn terminate(
        &mut self,
        call: &RecordedCall,
        ended: &TerminatedInstance,
        settings: &ControllerSettings,
    ) {
        let (at, id) = (call.at, &ended.id);
        if !ended.ours {
            self.fail(at, &format!("I2: {id} was terminated and is not managed"));
        }
        let terminating = self
            .terminating
            .get(&call.replica)
            .and_then(|terminating| terminating.get(id))
            .cloned();
        let planned = self.planned_removals.get(id).cloned();
        let again = !self.terminated.insert(id.clone());
        if !self.ever_terminating.contains(id)
            && planned.is_none()
            && !self.is_launch_timed_out(call.replica, id, at)
            && !self.is_taken_back(call, ended)
        {
            self.fail(at, &format!("I18: {id} was terminated without a reason"));
        }
        if again || !ended.runs {
            return;
        }
        self.check_drained(call, ended, terminating.as_ref());
        let Some(planned) = planned.filter(|_| terminating.is_none()) else { return };
        self.check_replaced_first(call, ended, &planned);
        if call.replica == APPLY || planned.is_empty {
            return;
        }
        self.removals.push((at, id.clone(), planned.unit));
        let nodes = self.most_nodes(at, settings.removals.window);
        let counted = self.is_rate_valid(settings.removals, at);
        let found = rate_excess(&self.removals, settings.removals, at, nodes).filter(|_| counted);
        if let Some(found) = found {
            self.fail(at, &format!("I4: {found} removals exceed the budget"));
        }
    }

    /// Notes that pods were evicted from a node, so that its removal counts.
    pub(super) fn record_eviction(&mut self, node: Option<&NodeName>) {
        let removals = self.planned_removals.values_mut();
        for removal in removals.filter(|of| node.is_some() && of.node.as_ref() == node) {
            removal.is_empty = false;
        }
    }

    /// I8: the launches that replace an instance are Ready before it is terminated. A CI apply that
    /// replaces many nodes works in batches. There, the pods of the nodes removed so far have places
    /// by the plan.
    fn check_replaced_first(
        &mut self,
        call: &RecordedCall,
        ended: &TerminatedInstance,
        planned: &PlannedRemoval,
    ) {
        // A replacement may have failed after the drain began. A launch that was dropped when the
        // plan was made again does not come.
        let came = |(change, (plan, row)): &(&ChangeId, &(PlanId, Address))| {
            ended.ready.contains(*change)
                || self.ready_changes.contains(*change)
                || self.dropped_launches.get(plan).is_some_and(|dropped| dropped.contains(row))
        };
        let missing: Vec<_> = planned.after.iter().filter(|launch| !came(launch)).collect();
        let in_batches = call.replica == APPLY && self.is_in_batches(planned);
        let mut unplaced: BTreeMap<&WorkloadKey, u32> = BTreeMap::new();
        let mut violation = None;
        for (change, (_, row)) in missing {
            let pods = self.approved.get(change).map(|launch| &launch.pods);
            match pods.filter(|pods| in_batches && !pods.is_empty() && *row != planned.row) {
                Some(pods) if !planned.pods.is_empty() => {
                    for (workload, count) in pods {
                        *unplaced.entry(workload).or_insert(0) += count;
                    }
                }
                Some(_) | None => violation = Some(format!("before {change} was Ready")),
            }
        }
        let standing = self.standing_pods(&planned.unit);
        let lacks = |(workload, count): &(&&WorkloadKey, &u32)| {
            planned.pods.contains_key(**workload) && standing.get(**workload).unwrap_or(&0) < *count
        };
        if let Some((workload, count)) = unplaced.iter().find(lacks) {
            let stay = standing.get(*workload).unwrap_or(&0);
            violation = Some(format!(
                "while {count} planned places of {workload} are missing, and {stay} pods stay"
            ));
        }
        if let Some(why) = violation {
            self.fail(call.at, &format!("I8: {} was terminated {why}", ended.id));
        }
    }

    /// Returns whether the plan of a removal replaces more nodes than one batch has.
    fn is_in_batches(&self, planned: &PlannedRemoval) -> bool {
        let Some((plan, _)) = planned.after.values().next() else { return false };
        let launches = self.approved.values().filter(|launch| launch.plan == *plan).count();
        let removals = self.drains.get(plan).map_or(0, BTreeSet::len);
        launches.max(removals) > BATCH_NODES
    }

    /// Returns the pods of nodes of a unit that its plan removes, and that we have not terminated. A
    /// node that ended without us took its pods with it.
    fn standing_pods(&self, unit: &str) -> BTreeMap<&WorkloadKey, u32> {
        let mut standing: BTreeMap<&WorkloadKey, u32> = BTreeMap::new();
        for (id, removal) in self.planned_removals.iter().filter(|(_, of)| of.unit == unit) {
            if !self.terminated.contains(id) {
                for (workload, count) in &removal.pods {
                    *standing.entry(workload).or_insert(0) += count;
                }
            }
        }
        standing
    }

    /// Records the drains of instances without a near deadline whose pods have no place, because a
    /// safeguard or an operator blocks the launches. Records also the nodes that may stay cordoned
    /// for long.
    pub(super) fn record_drains(
        &mut self,
        step: &ReplicaStep<'_>,
        terminating: &BTreeMap<InstanceId, InterruptionStatus>,
    ) {
        let before = self.terminating.get(&step.replica);
        let drains = |terminating: &InterruptionStatus| {
            matches!(terminating.phase, InterruptionPhase::Draining)
        };
        let later = step.now.checked_add(FORCED_EVICTION_LEAD).unwrap_or(step.now);
        let long = |terminating: &InterruptionStatus| {
            terminating.deadline.is_none_or(|deadline| deadline > later)
        };
        let held = step.status.plan.iter().flat_map(blocked_workloads).collect::<BTreeSet<_>>();
        // Few nodes are drained at once because of messages that nothing confirms.
        let nodes = self.nodes.last().map_or(0, |(_, nodes)| *nodes);
        let most = allowed(step.settings.removals.limit, nodes).max(1);
        let announced = terminating.values().filter(|status| status.reason == ANNOUNCED);
        let drained = announced.filter(|status| status.phase >= InterruptionPhase::Draining);
        let is_full = u32::try_from(drained.count()).unwrap_or(u32::MAX) >= most;
        for (id, status) in terminating {
            let begins = drains(status) && !before.and_then(|b| b.get(id)).is_some_and(drains);
            if begins && long(status) && !held.is_empty() {
                self.early_drains.insert((step.replica, id.clone()), held.clone());
            }
            let Some(node) = &status.node else { continue };
            let waits = status.phase < InterruptionPhase::Draining;
            let waits = waits && is_full && status.reason == ANNOUNCED;
            if status.replacement_blocked.is_some()
                || waits
                || status.deadline.is_some_and(|deadline| deadline > step.now)
            {
                self.long_cordons.insert(node.clone());
            } else {
                self.long_cordons.remove(node);
            }
        }
    }

    /// I8: the pods of a terminating instance are not evicted while their replacement is blocked,
    /// until its deadline is near.
    pub(super) fn check_eviction_time(&mut self, effect: &Effect, step: &ReplicaStep<'_>) {
        let Effect::Evict { instance, pods } = effect else { return };
        let Some(held) = self.early_drains.remove(&(step.replica, instance.clone())) else {
            return;
        };
        let mut owners = pods.iter().filter_map(|pod| pod.owner.as_ref());
        if let Some(owner) = owners.find(|owner| held.contains(owner)) {
            let what = format!("I8: pods of {owner} are evicted from {instance}");
            self.fail(step.now, &format!("{what} while their launch is blocked"));
        }
    }

    /// Returns whether an apply in progress has stopped waiting for an instance that it launched,
    /// and its node was never Ready and open for long enough to be read.
    fn is_launch_timed_out(&self, replica: usize, id: &InstanceId, at: Timestamp) -> bool {
        let applying = self.applying.get(&replica);
        let is_in_progress = |change: &ChangeId| {
            let launch = self.approved.get(change).filter(|launch| launch.waits);
            launch.is_some_and(|launch| applying.is_some_and(|plans| plans.contains(&launch.plan)))
        };
        self.launched_instances.get(id).filter(|(_, change)| is_in_progress(change)).is_some_and(
            |(since, change)| {
                // The wait may use a clock that was set since.
                let set = self.clock_set.is_some_and(|set| set >= *since);
                let waits = if set { READY_WITHIN - CLOCK_DIFFERENCE_MAX } else { READY_WITHIN };
                // Reads fail. A kubelet that stops at once may be Ready in none of them.
                let serving = self.serving.get(change);
                let is_seen =
                    serving.is_some_and(|(from, to)| to.duration_since(*from) >= SEEN_WITHIN);
                !is_seen && at.duration_since(*since) >= waits
            },
        )
    }

    /// Returns whether a CI apply in progress launched the instance in exchange for instances, some of
    /// them stay, and no pod waits for a node. The controller takes no launch back.
    fn is_taken_back(&self, call: &RecordedCall, ended: &TerminatedInstance) -> bool {
        let change = self.launched_instances.get(&ended.id).map(|(_, change)| change);
        let Some(launch) = change.and_then(|change| self.approved.get(change)) else {
            return false;
        };
        let applying = self.applying.get(&call.replica);
        let mut exchanged = self.planned_removals.iter().filter(|(_, of)| of.unit == launch.unit);
        let waits = |since: &Timestamp| call.at.duration_since(*since) > SEEN_WITHIN;
        call.replica == APPLY
            && applying.is_some_and(|plans| plans.contains(&launch.plan))
            && exchanged.any(|(removed, _)| !self.terminated.contains(removed))
            && !ended.pending.iter().any(waits)
    }

    /// I9: an instance is terminated after its node is cordoned, observed again and empty. With a
    /// broken kubelet or after a deadline of EC2 it is terminated together with its pods. A
    /// scheduled change, which nothing confirms, forces nothing.
    fn check_drained(
        &mut self,
        call: &RecordedCall,
        ended: &TerminatedInstance,
        terminating: Option<&InterruptionStatus>,
    ) {
        let RecordedCall { at, .. } = *call;
        let id = &ended.id;
        let Some(node) = &ended.node else { return };
        let broken = terminating.is_some_and(|terminating| {
            let broken = ["not-ready", "never-ready", "node-deleted"];
            let broken = broken.contains(&terminating.reason.as_str());
            broken && at.duration_since(terminating.since) >= BROKEN_DRAIN
        });
        let overdue = terminating
            .filter(|terminating| terminating.reason != ANNOUNCED)
            .and_then(|terminating| terminating.deadline.filter(|d| *d > terminating.since));
        let forced = broken || overdue.is_some_and(|deadline| at >= deadline);
        let stood = self.cordon_periods.get(node).copied();
        let seen = call.cluster_read_at.filter(|at| stood.is_some_and(|stood| stood.stood_at(*at)));
        // The caller cannot detect that an operator uncordons the node during the call.
        let unknown = |since: &Option<Timestamp>| {
            ended.open && seen.is_some_and(|seen| since.is_none_or(|since| since > seen))
        };
        let left = ended.left.iter().filter(|since| !unknown(since)).count();
        if left > 0 && !forced {
            self.fail(at, &format!("I9: {id} was terminated with {left} pods"));
        }
        match (stood, seen) {
            (_, Some(_)) => {}
            _ if forced => {}
            (None, None) => self.fail(at, &format!("I9: {id} was terminated without a cordon")),
            (Some(_), None) => {
                self.fail(
                    at,
                    &format!("I9: {id} was terminated without an observation under its cordon"),
                );
            }
        }
    }

    /// I26: a pod is deleted past its budgets only at the end of a declared period.
    pub(super) fn check_pod_deletion(&mut self, at: Timestamp, node: Option<&NodeName>) {
        let cordon = node.and_then(|node| self.cordon_periods.get(node));
        let since = cordon.filter(|cordon| cordon.until.is_none()).map(|cordon| cordon.since);
        // The pods of the simulation have half a minute to stop.
        let period = self.grace_periods.first().map(|period| *period - POD_GRACE);
        if since.zip(period).is_none_or(|(since, period)| at.duration_since(since) < period) {
            let why = format!("cordoned since {since:?}, shortest period {period:?}");
            self.fail(at, &format!("I26: a pod of {node:?} is deleted too early: {why}"));
        }
    }

    /// I10: each drain ends.
    pub(super) fn check_cordon_duration(&mut self, observed: ObservedFleet<'_>, now: Timestamp) {
        let mut standing = BTreeMap::new();
        for node in observed.nodes.values() {
            let ours = node.cordon_reason().is_some();
            let longest = self.grace_periods.last().copied().unwrap_or_default();
            let continues = node
                .grace_period_began_at()
                .is_some_and(|began| now.duration_since(began) < longest + CORDON_DURATION_MAX);
            let patient = self.long_cordons.contains(&node.name) || continues;
            if ours && node.unschedulable && node.ready && !patient {
                let name = node.name.to_string();
                let since = self.cordoned_since.get(&name).copied().unwrap_or(now);
                standing.insert(name, since);
            }
        }
        for (name, since) in &standing {
            if now.duration_since(*since) > CORDON_DURATION_MAX {
                self.fail(now, &format!("I10: node {name} has been cordoned since {since:.0}"));
            }
        }
        self.cordoned_since = standing;
    }
}

/// Returns the workloads with pods on planned launches that an operator or a safeguard blocks.
fn blocked_workloads(now: &PublishedPlan) -> impl Iterator<Item = WorkloadId> {
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

pub(super) fn is_empty_node(row: &ExplainRow) -> bool {
    matches!(because(row), Some(RetireReason::Empty { .. }))
}

/// Returns the instances with a node on which no pod runs but those of the node.
pub(super) fn instances_without_pods(world: &Observed) -> BTreeSet<InstanceId> {
    let pods = world.pods.iter().filter(|pod| pod.needs_eviction());
    let busy: BTreeSet<&NodeName> = pods.filter_map(|pod| pod.node.as_ref()).collect();
    let of_nodes = |is_busy: bool| {
        let nodes = world.nodes.values().filter(|node| busy.contains(&node.name) == is_busy);
        nodes.filter_map(|node| node.instance.clone()).collect::<BTreeSet<_>>()
    };
    &of_nodes(false) - &of_nodes(true)
}

fn allowed(most: CountOrShare, nodes: u32) -> u32 {
    RateLimit { limit: most, window: SignedDuration::ZERO }.limit_for(nodes)
}
