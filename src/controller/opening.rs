//! Opening of closed nodes: launched nodes register with a taint of ours, and all nodes of a batch
//! are opened at the same moment (ADR 16).
//!
//! Before, each pending pod of the batch is nominated to its planned node. A node that opens alone
//! would be filled with whatever pods wait.
//!
//! A node that was launched in place of existing nodes belongs to no batch until it is decided that
//! these end. If its apply does not decide so, the next plan uses the node, or removes it while it
//! is closed.
//!
//! Invariants: the state of a batch is in the cluster, so any leader continues it. A closed node
//! opens after a bounded time, whatever the mode, the plan or the other nodes do. Only nodes of
//! ours are opened.

mod arriving_pods;
mod missing_annotations;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

pub use self::arriving_pods::PodsArriving;
use self::missing_annotations::AnnotationAttempts;
use super::counters::Counter;
use super::event::Effect;
use super::observation::BUSY_REFRESH;
use super::planning_snapshot::EC2_VISIBILITY_MAX;
use super::reconcile::{instance_of, retired_rows};
use super::state::ControllerState;
use crate::apply::{
    BatchPods, EARLY_NOMINATIONS_MAX, NominationAnswer, OpenedBatch, PlannedNodes, PodNomination,
    WaitingNode, batch_pools, is_pending, opening_annotations, sort_by_queue_order,
};
use crate::model::desired::{ControllerSettings, Mode};
use crate::model::ids::{InstanceId, NodeName, PoolName, Uid};
use crate::model::observed::{Instance, KEY_LABEL, Node, Observed, PlannedPods, Pod, tag};
use crate::model::requirement::key;
use crate::model::saturating_time::{doubling_delay, later};
use crate::plan::wire::workload_key;
use crate::plan::{Plan, planned_pods_on};

/// Time after which kube-scheduler has placed no further pod and will place none: it retries within
/// ten seconds, and later pods come after every node that is opened.
const QUIET_AFTER: SignedDuration = SignedDuration::from_secs(10);
/// Longest time for which kube-scheduler is expected to place pods on opened nodes.
const PLACES_PODS_MAX: SignedDuration = SignedDuration::from_mins(1);
/// Interval between two attempts to open a node.
const RETRY_INTERVAL: SignedDuration = SignedDuration::from_secs(2);
/// First interval after which early nominations are repeated. It doubles each time.
const REPEAT_INTERVAL_FIRST: SignedDuration = SignedDuration::from_secs(5);
const REPEAT_INTERVAL_MAX: SignedDuration = SignedDuration::from_mins(5);

/// State of the pods of a node that no pod should get now.
const HELD: BatchPods = BatchPods { are_pending: false, are_missing: true, are_added: true };

/// Closed nodes, and the openings in progress.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeOpening {
    /// Closed Ready nodes, by UID.
    waiting: BTreeMap<Uid, WaitingNode>,
    /// Nodes that are being opened.
    in_progress: BTreeSet<Uid>,
    /// Recently opened nodes, with the time. An observation may still show them closed.
    opened_at: BTreeMap<Uid, Timestamp>,
    /// Time of the last opening.
    last_opening: Option<Timestamp>,
    /// Number of pending pods, and when it fell last.
    pending: usize,
    placed_at: Option<Timestamp>,
    /// True if one batch opens at a time: pods are nominated, and batches may need the same pods.
    is_serial: bool,
    /// Pods whose early nomination was refused.
    refused: BTreeSet<Uid>,
    /// True while pods of waiting batches are being nominated.
    is_nominating: bool,
    /// Time of the last answer to nominations. Earlier observations do not show them.
    nominated_at: Option<Timestamp>,
    /// When an observation shows which early nominations kube-scheduler has cleared.
    repeat_at: Option<Timestamp>,
    /// How often early nominations were repeated since the last opening.
    repeats: u32,
    /// Pods whose nomination was cleared and is to be repeated.
    cleared: BTreeSet<Uid>,
    /// Time of the next attempt after a failure.
    retry_at: Option<Timestamp>,
    /// Instances whose apply ended without a decision, until a plan counts their Ready nodes.
    pub(super) undecided: BTreeSet<InstanceId>,
    /// Attempts to annotate open nodes.
    annotated: BTreeMap<Uid, AnnotationAttempts>,
}

impl NodeOpening {
    /// Forgets everything: another replica leads, or the clock was set back.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Notes instances that an apply launched in place of existing nodes, if it ended without a
    /// decision about these.
    pub(super) fn add_undecided(&mut self, instances: BTreeSet<InstanceId>) {
        self.undecided.extend(instances);
    }

    /// Notes that a full plan without errors was made from `world`. It decides about the nodes that
    /// are Ready there.
    pub(super) fn note_planned(&mut self, world: &Observed) {
        let nodes = world.nodes_by_instance();
        self.undecided.retain(|id| {
            world.instances.get(id).is_some_and(Instance::is_active)
                && !nodes.get(id).is_some_and(|node| node.ready)
        });
    }

    /// Returns true while closed Ready nodes wait or are being opened.
    pub(super) fn has_closed_nodes(&self) -> bool {
        !self.waiting.is_empty() || !self.in_progress.is_empty()
    }

    /// Returns when pending pods need the next observation: kube-scheduler may have cleared early
    /// nominations, or may be placing pods on opened nodes.
    pub(super) fn next_observation(
        &self,
        observed: &Observed,
        steers: bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let repeat_at = self.repeat_at.filter(|at| *at > observed.taken_at);
        let repeat_at = repeat_at.map(|at| at.max(now));
        // If no pod was placed since the opening, something else may keep them from the nodes.
        let is_placing = self.placed_at > self.last_opening
            && self.places_pods_until(steers).is_some_and(|until| now < until)
            && observed.pods.iter().any(|pod| is_pending(pod));
        let places_at = is_placing.then(|| later(now, BUSY_REFRESH));
        [repeat_at, places_at].into_iter().flatten().min()
    }

    /// Begins to repeat nominations that the observation shows as cleared, if it is time.
    fn repeat_if_due(&mut self, missing: BTreeSet<Uid>, world: &Observed) {
        if !missing.is_empty() && self.repeat_at.is_some_and(|at| at <= world.taken_at) {
            self.repeats = self.repeats.saturating_add(1);
            self.repeat_at = Some(later(world.taken_at, self.repeat_interval()));
            self.cleared = missing;
        }
    }

    fn repeat_interval(&self) -> SignedDuration {
        doubling_delay(REPEAT_INTERVAL_FIRST, self.repeats, REPEAT_INTERVAL_MAX)
    }

    /// Notes the number of pending pods, and the time if it fell.
    pub(super) fn note_pending_pods(&mut self, world: &Observed, now: Timestamp) {
        let pending = world.pods.iter().filter(|pod| is_pending(pod)).count();
        if pending < self.pending {
            self.placed_at = Some(now);
        }
        self.pending = pending;
    }

    /// Keeps the waiting times of nodes that are being opened alone. If an opening fails, its nodes
    /// are due at once.
    fn retain_in_progress(&mut self) {
        let in_progress = &self.in_progress;
        self.waiting.retain(|uid, _| in_progress.contains(uid));
    }

    /// Returns until when kube-scheduler may place pods on nodes that wait for them or were opened.
    /// Without nominations, pods that do not exist yet count as well.
    fn places_pods_until(&self, steers: bool) -> Option<Timestamp> {
        let waiting = self.waiting.values();
        let waiting = waiting.filter(|node| !steers || node.pods_since.is_some());
        let opens = waiting.map(|node| later(node.deadline(), QUIET_AFTER)).max();
        let places = self.last_opening.map(|opened| {
            let last = self.placed_at.map_or(opened, |placed| placed.max(opened));
            later(last, QUIET_AFTER).min(later(opened, PLACES_PODS_MAX))
        });
        opens.max(places)
    }

    /// Returns true if kube-scheduler may place pods on the node soon, or did until a moment ago.
    fn takes_pods(&self, node: &Uid, now: Timestamp) -> bool {
        let opened = self.opened_at.get(node);
        self.waiting.contains_key(node)
            || self.in_progress.contains(node)
            || opened.is_some_and(|at| now < later(*at, PLACES_PODS_MAX))
    }

    /// Returns the time of the next deadline.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        if self.is_serial && !self.in_progress.is_empty() {
            // Its end is an event.
            return None;
        }
        let waiting = self.waiting.iter().filter(|(uid, _)| !self.in_progress.contains(*uid));
        let due = waiting.map(|(_, node)| node.deadline()).min()?;
        Some(self.retry_at.map_or(due, |retry| due.max(retry)))
    }
}

/// Nodes of some pools that open together.
#[derive(Default)]
struct Batch<'w> {
    /// Closed Ready nodes.
    ready: Vec<&'w Node>,
    /// Closed nodes that are not Ready yet.
    joining: Vec<&'w Node>,
    /// True if further instances of the pools are starting.
    is_booting: bool,
    /// True if one of them has no node yet. When a node is added, kube-scheduler tries all pending
    /// pods, and clears nominations to closed nodes.
    lacks_node: bool,
}

/// Nodes that open now, and the nominations before.
#[derive(Default)]
struct DueNodes {
    nominations: Vec<PodNomination>,
    nodes: Vec<Node>,
}

impl DueNodes {
    fn into_effect(self, plan: Option<&Plan>, world: &Observed) -> Effect {
        let Self { mut nominations, nodes } = self;
        sort_by_queue_order(&mut nominations, world);
        let annotations = plan.map(|plan| opening_annotations(plan, world, &nodes));
        Effect::OpenNodes { nominations, nodes, annotations: annotations.unwrap_or_default() }
    }
}

impl ControllerState {
    /// Opens every batch that is complete or whose deadline has passed.
    pub(super) fn open_nodes(&mut self, effects: &mut Vec<Effect>) {
        // Nodes open even while EC2 cannot be read: pods wait for them.
        let Some(world) = self.observation.latest.clone().filter(|seen| seen.has_cluster()) else {
            return;
        };
        if !self.leadership.is_leader() || self.leadership.is_stopping() {
            return;
        }
        let now = self.now;
        self.opening.opened_at.retain(|_, at| now < later(*at, EC2_VISIBILITY_MAX));
        // A later batch may need the pods of the batch that is being opened.
        self.opening.is_serial = self.steers();
        self.restore_nominations(&world, effects);
        let closed: Vec<&Node> =
            world.nodes.values().filter(|node| self.is_to_open(node)).collect();
        if closed.is_empty() {
            self.opening.retain_in_progress();
            return;
        }
        // Without EC2, it is unknown whether further instances are starting.
        let is_settled = world.is_complete() && !self.applies.is_launching();
        let plan = self.planning.current.as_ref().map(|current| current.plan.clone());
        let latest = planned_pods_of_nodes(plan.as_deref(), &closed);
        let (held, closed) = self.held_nodes(&world, closed, plan.as_deref());
        let batches = self.batches(&world, &closed, plan.as_deref());
        let is_free = !self.opening.is_serial || self.opening.in_progress.is_empty();
        let may_try = is_free && self.opening.retry_at.is_none_or(|at| at <= now);
        let mut still_waiting = BTreeMap::new();
        let mut due = DueNodes::default();
        let mut early = Vec::new();
        let mut missing = BTreeSet::new();
        for node in held {
            let before = self.opening.waiting.get(&node.uid).copied();
            let waiting = WaitingNode::observed(before, HELD, now);
            if waiting.deadline() <= now && may_try {
                due.nodes.push(node.clone());
            }
            still_waiting.insert(node.uid.clone(), waiting);
        }
        for batch in batches {
            let pods = self.pods_of(&batch, plan.as_deref(), &world, &latest);
            let mut is_due = is_settled && !batch.is_booting && !pods.are_missing;
            for node in &batch.ready {
                let before = self.opening.waiting.get(&node.uid).copied();
                let waiting = WaitingNode::observed(before, pods, now);
                is_due |= waiting.deadline() <= now;
                still_waiting.insert(node.uid.clone(), waiting);
            }
            let nominations = self.nominations_for(&world, &latest, &batch);
            if is_due && may_try {
                due.nominations.extend(nominations);
                due.nodes.extend(batch.ready.into_iter().cloned());
            } else {
                if !batch.lacks_node {
                    let accepted =
                        nominations.iter().filter(|one| !self.nominations.is_untried(one));
                    missing.extend(accepted.map(|one| one.pod.uid.clone()));
                }
                early.extend(nominations);
            }
        }
        if due.nodes.is_empty() {
            self.opening.repeat_if_due(missing, &world);
            self.nominate_early(early, &world, effects);
        } else {
            self.opening.in_progress.extend(due.nodes.iter().map(|node| node.uid.clone()));
            // Batches that are due together may compete for pods.
            effects.push(due.into_effect(plan.as_deref(), &world));
        }
        self.opening.retain_in_progress();
        self.opening.waiting.extend(still_waiting);
    }

    /// Nominates pods to their opened nodes once more. kube-scheduler clears the nominations of pods
    /// that it tries while the last nodes of a batch open. Other pods could take their room.
    fn restore_nominations(&mut self, world: &Observed, effects: &mut Vec<Effect>) {
        let opening = &self.opening;
        let is_recent = |at: &Timestamp| self.now < later(*at, PLACES_PODS_MAX);
        let is_shown = opening.nominated_at.is_none_or(|at| at < world.taken_at);
        // Each observation is used once.
        let may_restore = opening.is_serial && !opening.is_nominating && is_shown;
        if !may_restore || !opening.opened_at.values().any(is_recent) {
            return;
        }
        let is_opened = |name: &NodeName| {
            let opened_at = world.nodes.get(name).and_then(|node| opening.opened_at.get(&node.uid));
            opened_at.is_some_and(|at| *at < world.taken_at && is_recent(at))
        };
        let is_cleared = |pod: &Pod| {
            is_pending(pod) && pod.nominated.is_none() && !opening.refused.contains(&pod.uid)
        };
        let cleared = world.pods.iter().filter(|pod| is_cleared(pod)).filter_map(|pod| {
            let node = self.nominations.0.get(&pod.uid).filter(|node| is_opened(node))?;
            Some(PodNomination { pod: Arc::clone(pod), node: node.clone() })
        });
        let nominations: Vec<PodNomination> = cleared.collect();
        if !nominations.is_empty() {
            self.opening.is_nominating = true;
            effects.push(Effect::NominatePods { nominations });
        }
    }

    /// Returns the state of the pods that are planned on a batch.
    fn pods_of(
        &self,
        batch: &Batch<'_>,
        plan: Option<&Plan>,
        world: &Observed,
        latest: &PlannedPods,
    ) -> BatchPods {
        match (self.planned_nodes(latest, &batch.ready), plan) {
            (Some(planned), Some(plan)) => {
                let ahead = &self.planning.launches_ahead;
                BatchPods::new(plan, world, &planned, |workload| ahead.has_added(workload))
            }
            // A later plan counts the nodes. Until then any pod may be for them.
            (_, _) => BatchPods {
                are_pending: world.pods.iter().any(|pod| is_pending(pod)),
                are_missing: true,
                are_added: true,
            },
        }
    }

    /// Returns true if the node is closed, and neither opened yet nor being opened.
    fn is_to_open(&self, node: &Node) -> bool {
        is_closed_by_us(node)
            && !self.opening.in_progress.contains(&node.uid)
            && !self.opening.opened_at.contains_key(&node.uid)
    }

    /// Separates closed Ready nodes that no pod should get now: of launches in place of other nodes,
    /// while it is undecided whether these end, and those that the current plan removes.
    fn held_nodes<'w>(
        &self,
        world: &Observed,
        closed: Vec<&'w Node>,
        plan: Option<&Plan>,
    ) -> (Vec<&'w Node>, Vec<&'w Node>) {
        let plan = plan.filter(|_| self.mode() == Mode::Full && self.may_act());
        let removed: BTreeSet<InstanceId> =
            plan.into_iter().flat_map(retired_rows).filter_map(instance_of).collect();
        let is_undecided =
            |id: &InstanceId| self.applies.is_undecided(id) || self.opening.undecided.contains(id);
        closed.into_iter().partition(|node| {
            let id = node.instance.as_ref().filter(|_| node.ready);
            id.is_some_and(|id| {
                removed.contains(id) || is_undecided(id) && !self.has_pending_pods_of(id, world)
            })
        })
    }

    /// Returns true if a pod is pending of a workload with pods that are planned on the instance.
    fn has_pending_pods_of(&self, instance: &InstanceId, world: &Observed) -> bool {
        let Some(planned) = self.planning.planned_pods.get(instance) else { return false };
        let mut pending = world.pods.iter().filter(|pod| is_pending(pod));
        pending.any(|pod| planned.contains_key(&workload_key(&pod.workload())))
    }

    /// Nominates pods while their nodes start, so that a batch that is due opens at once.
    fn nominate_early(
        &mut self,
        mut nominations: Vec<PodNomination>,
        world: &Observed,
        effects: &mut Vec<Effect>,
    ) {
        let opening = &self.opening;
        nominations.retain(|one| {
            let is_new = opening.cleared.contains(&one.pod.uid) || self.nominations.is_untried(one);
            // Refused ones are tried once more when the nodes open.
            is_new && !opening.refused.contains(&one.pod.uid)
        });
        if nominations.is_empty() || self.opening.is_nominating {
            return;
        }
        sort_by_queue_order(&mut nominations, world);
        nominations.truncate(EARLY_NOMINATIONS_MAX);
        self.opening.is_nominating = true;
        effects.push(Effect::NominatePods { nominations });
    }

    pub(super) fn on_pods_nominated(&mut self, answers: Vec<NominationAnswer>) {
        self.opening.is_nominating = false;
        self.opening.nominated_at = Some(self.now);
        // Later pods do not delay the repeat of earlier nominations.
        let taken_at = self.observation.latest.as_ref().map(|latest| latest.taken_at);
        if self.opening.repeat_at <= taken_at {
            let repeat_at = later(self.now, self.opening.repeat_interval());
            self.opening.repeat_at = Some(repeat_at);
            self.observation.reads.due = self.observation.reads.due.min(repeat_at);
        }
        let refused = answers.iter().filter(|(.., answer)| answer.is_err());
        self.opening.refused.extend(refused.map(|(pod, ..)| pod.clone()));
        for (pod, node, answer) in answers {
            self.opening.cleared.remove(&pod);
            self.nominations.record_answer(pod, node, &answer, &mut self.counters);
        }
    }

    /// Returns true if pods are nominated.
    pub(super) fn steers(&self) -> bool {
        let settings = self.revisions.settings();
        settings.is_some_and(ControllerSettings::nominates_pods) && self.may_act()
    }

    /// Returns the nominations that pods of the batch do not have.
    fn nominations_for(
        &self,
        world: &Observed,
        latest: &PlannedPods,
        batch: &Batch<'_>,
    ) -> Vec<PodNomination> {
        if !self.steers() {
            return vec![];
        }
        let nodes = batch.ready.iter().chain(&batch.joining);
        let known = nodes.filter(|node| self.planned_pods_of(node, latest).is_some());
        let planned = self.planned_nodes(latest, &known.copied().collect::<Vec<_>>());
        self.nominations.missing(world, planned.unwrap_or_default())
    }

    /// Returns the planned pods of closed nodes. `None` if one of the nodes is unknown.
    fn planned_nodes(&self, latest: &PlannedPods, nodes: &[&Node]) -> Option<PlannedNodes> {
        let mut planned = PlannedNodes::default();
        for node in nodes {
            planned.add(&node.name, self.planned_pods_of(node, latest)?);
        }
        Some(planned)
    }

    /// Returns the planned pods of a node: those of the apply that launched it, or of a later plan.
    fn planned_pods_of<'p>(
        &'p self,
        node: &Node,
        latest: &'p PlannedPods,
    ) -> Option<&'p BTreeMap<String, u32>> {
        let instance = node.instance.as_ref()?;
        self.planning.planned_pods.get(instance).or_else(|| latest.get(instance))
    }

    /// Returns the batches of closed nodes: pools that share a workload open together.
    fn batches<'w>(
        &self,
        world: &'w Observed,
        closed: &[&'w Node],
        plan: Option<&Plan>,
    ) -> Vec<Batch<'w>> {
        let first_pools = plan.map(batch_pools).unwrap_or_default();
        let mut batches: BTreeMap<PoolName, Batch<'w>> = BTreeMap::new();
        let mut batch_of = |pool: PoolName, node: Option<&'w Node>| {
            let pool = first_pools.get(&pool).cloned().unwrap_or(pool);
            let batch = batches.entry(pool).or_default();
            match node {
                Some(node) if node.ready => batch.ready.push(node),
                _ => batch.is_booting = true,
            }
            batch.lacks_node |= node.is_none();
            batch.joining.extend(node.filter(|node| !node.ready));
        };
        for &node in closed {
            batch_of(pool_of(node, world), Some(node));
        }
        let joined = world.nodes_by_instance();
        let is_booting = |instance: &&Instance| {
            instance.is_active()
                && instance.is_managed_by(&world.cluster.name)
                && !joined.contains_key(&instance.id)
                && !self.interruptions.all.contains_key(&instance.id)
        };
        for instance in world.instances.values().filter(is_booting) {
            batch_of(pool_tag(instance), None);
        }
        batches.into_values().collect()
    }

    pub(super) fn on_nodes_opened(&mut self, batch: OpenedBatch) {
        self.opening.refused.clear();
        for (pod, node, answer) in batch.nominations {
            self.nominations.record_answer(pod, node, &answer, &mut self.counters);
        }
        for (uid, _, answer) in batch.nodes {
            if !self.opening.in_progress.remove(&uid) {
                // An open node was annotated, or the opening was forgotten.
                if answer.is_err() {
                    self.counters.count_error("kubernetes");
                }
                continue;
            }
            if answer.is_ok() {
                self.counters.count(Counter::NodesOpened);
                self.opening.last_opening = Some(self.now);
                self.opening.waiting.remove(&uid);
                self.opening.opened_at.insert(uid, self.now);
                // New nodes make kube-scheduler try the pods of other batches as well.
                self.opening.repeats = 0;
                if let Some(repeat_at) = &mut self.opening.repeat_at {
                    *repeat_at = later(self.now, REPEAT_INTERVAL_FIRST);
                }
            } else {
                self.counters.count_error("kubernetes");
                self.opening.retry_at = Some(later(self.now, RETRY_INTERVAL));
            }
        }
        // Earlier observations show the nodes closed.
        self.observation.require_next();
    }
}

/// Returns the pods that the plan places on nodes, by instance.
fn planned_pods_of_nodes(plan: Option<&Plan>, nodes: &[&Node]) -> PlannedPods {
    let instances: BTreeSet<&InstanceId> =
        nodes.iter().filter_map(|node| node.instance.as_ref()).collect();
    plan.map(|plan| planned_pods_on(plan, |id| instances.contains(id))).unwrap_or_default()
}

/// Returns true if the node has our label and our taint, which our launches set.
fn is_closed_by_us(node: &Node) -> bool {
    node.is_closed() && node.labels.contains_key(KEY_LABEL)
}

fn pool_of(node: &Node, world: &Observed) -> PoolName {
    let instance = node.instance.as_ref().and_then(|id| world.instances.get(id));
    let label = || node.labels.get(key::NODEPOOL).map_or("", |pool| pool.as_str()).into();
    instance.map_or_else(label, pool_tag)
}

fn pool_tag(instance: &Instance) -> PoolName {
    instance.tags.get(tag::POOL).map_or("", String::as_str).into()
}

#[cfg(test)]
mod tests;
