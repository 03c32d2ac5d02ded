//! Instances whose nodes are not Ready, never joined, or are Ready and report a fault.
//!
//! Invariant: a repair needs observations that agree for long enough. An observation does not count
//! if it shows no node of ours although some had joined.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::counters::Counter;
use super::interruption::Interruption;
use super::persisted_state::{InterruptionRecord, READY_WITHIN, REPAIRS_MAX, RepairRecord};
use super::state::ControllerState;
use super::status::{InterruptionPhase, WithheldRepair};
use crate::model::desired::Mode;
use crate::model::ids::{InstanceId, PoolName};
use crate::model::observed::{Instance, Node, NodeFault, Observed, tag};
use crate::model::saturating_time::later;

/// Share of a pool that may be broken for one of its nodes to be replaced, in percent.
const BROKEN_PERCENT: usize = 20;
/// Fewest observations of a problem before an instance counts as broken.
const OBSERVATIONS_MIN: u32 = 10;
/// The same for a deleted Node object, and how long it may be missing: a kubelet that restarts
/// registers its node again within seconds.
const DELETED_OBSERVATIONS_MIN: u32 = 3;
const DELETED_FOR: SignedDuration = SignedDuration::from_mins(1);

/// Reason to replace an instance whose node is not Ready.
pub(super) const NOT_READY: &str = "not-ready";
/// Reason to terminate an instance whose node never joined.
pub(super) const NEVER_READY: &str = "never-ready";

/// Reason to replace an instance whose Node object was deleted.
pub(super) const NODE_DELETED: &str = "node-deleted";

/// Returns whether the kubelet of an instance interrupted for this reason is gone: its pods may
/// never stop by themselves. An instance with another fault is drained like any other.
pub(super) fn is_broken(why: &str) -> bool {
    why == NOT_READY || why == NEVER_READY || why == NODE_DELETED
}

/// Returns whether the reason is a repair decided from node health.
pub(super) fn is_repair(why: &str) -> bool {
    is_broken(why) || fault_for_reason(why).is_some()
}

fn fault_for_reason(why: &str) -> Option<NodeFault> {
    NodeFault::ALL.into_iter().find(|fault| why == fault.reason())
}

/// Health problem of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HealthProblem {
    /// Its node is not Ready, or has not joined.
    Unready,
    /// Its node had joined, and its Node object is gone.
    NodeDeleted,
    /// Its node reports a fault.
    Fault(NodeFault),
}

impl HealthProblem {
    /// Returns all problems of an instance with that node. `has_joined` is true if it had a node.
    fn all(node: Option<&Node>, has_joined: bool) -> impl Iterator<Item = Self> {
        let ready = node.is_some_and(|node| node.ready);
        let unready = if node.is_none() && has_joined { Self::NodeDeleted } else { Self::Unready };
        let faults = node.into_iter().flat_map(|node| &node.faults);
        (!ready).then_some(unready).into_iter().chain(faults.copied().map(Self::Fault))
    }

    /// Returns how long a joined node may have the problem, where `repair_after` is set.
    fn tolerated(self, repair_after: SignedDuration) -> SignedDuration {
        match self {
            Self::Unready => repair_after,
            Self::NodeDeleted => DELETED_FOR.min(repair_after),
            Self::Fault(fault) => fault.toleration_duration().min(repair_after),
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Unready => NOT_READY,
            Self::NodeDeleted => NODE_DELETED,
            Self::Fault(fault) => fault.reason(),
        }
    }
}

/// Observations of one health problem.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProblemObservation {
    since: Timestamp,
    observations: u32,
    joined: bool,
}

impl ProblemObservation {
    fn is_old(&self, problem: HealthProblem, age: SignedDuration, now: Timestamp) -> bool {
        let observations = match problem {
            HealthProblem::NodeDeleted => DELETED_OBSERVATIONS_MIN,
            HealthProblem::Unready | HealthProblem::Fault(_) => OBSERVATIONS_MIN,
        };
        now >= later(self.since, age) && self.observations >= observations
    }
}

/// Health problems of instances, and the instances whose nodes joined.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeHealth {
    /// Instances with problems, by problem.
    pub(super) problems: BTreeMap<(InstanceId, HealthProblem), ProblemObservation>,
    /// Instances whose node was observed.
    pub(super) joined: BTreeSet<InstanceId>,
    /// Instances whose Node object was deleted for good.
    lost_nodes: BTreeSet<InstanceId>,
    /// Pools whose broken instances are not replaced, because too many are broken.
    pub(super) withheld: Vec<WithheldRepair>,
}

/// Instances of a pool.
#[derive(Debug, Clone, Copy, Default)]
struct PoolSize {
    all: usize,
    /// Broken instances whose replacement is not there yet.
    broken: usize,
    /// Broken instances that are being drained or terminated, since their replacement is there.
    replaced: usize,
}

impl PoolSize {
    /// Returns the most instances that may be broken for one to be replaced. Many failures at once
    /// have a cause that a new instance does not fix.
    fn most(self) -> usize {
        (self.all * BROKEN_PERCENT).div_ceil(100)
    }
}

/// Instances by pool.
type PoolSizes = BTreeMap<String, PoolSize>;

impl ControllerState {
    /// Records health problems, and begins repairs of those that last too long.
    ///
    /// Ages are counted from the first observation by this process, and in observations as well:
    /// the clocks of EC2 and of this process may differ by hours, and either may jump.
    pub(super) fn observe_node_health(&mut self, world: &Observed) {
        let nodes = world.nodes_by_instance();
        self.node_health.joined.retain(|id| world.instances.contains_key(id));
        self.node_health.joined.extend(nodes.keys().map(|id| (*id).clone()));
        let possibly_joined = self.possibly_joined(world);
        let blind = is_blind(world, &nodes, |id| {
            self.node_health.joined.contains(id) || possibly_joined.contains(id)
        });
        if blind {
            // Ages begin anew after an implausible observation.
            self.counters.count(Counter::ClusterReadsNoManagedNodes);
            self.node_health.problems.clear();
        }
        let sizes = self.record_problems(world, &nodes, &possibly_joined);
        self.note_lost_nodes();
        self.node_health.withheld = self.withheld_repairs(&sizes);
        if !blind {
            self.cancel_recovered_repairs(&nodes);
            if self.may_repair() {
                self.repair_unhealthy(world, &sizes);
            }
        }
    }

    /// Returns whether the instance had a node before, as far as this process or the persisted
    /// state knows.
    pub(super) fn has_joined(&self, id: &InstanceId) -> bool {
        let launched = self.persistence.loaded.iter().flat_map(|persisted| &persisted.launches);
        let ready = |launch: &super::persisted_state::LaunchRecord| {
            launch.instance == *id && launch.ready_at.is_some()
        };
        self.node_health.joined.contains(id) || launched.into_iter().any(ready)
    }

    /// Returns the instances that may have joined: those whose launch is not recorded, and those
    /// recorded as Ready.
    fn possibly_joined(&self, world: &Observed) -> BTreeSet<InstanceId> {
        let launched = self.persistence.loaded.iter().flat_map(|persisted| &persisted.launches);
        let never = launched.filter(|launch| launch.from_start && launch.ready_at.is_none());
        let never: BTreeSet<&InstanceId> = never.map(|launch| &launch.instance).collect();
        world.instances.keys().filter(|id| !never.contains(id)).cloned().collect()
    }

    fn record_problems(
        &mut self,
        world: &Observed,
        nodes: &BTreeMap<&InstanceId, &Node>,
        possibly_joined: &BTreeSet<InstanceId>,
    ) -> PoolSizes {
        let now = self.now;
        let mut problems: BTreeMap<(InstanceId, HealthProblem), ProblemObservation> =
            BTreeMap::new();
        let mut sizes = PoolSizes::new();
        let repair_after = self.revisions.settings().and_then(|settings| settings.repair_after);
        let counts_after = |problem: HealthProblem| {
            repair_after.map_or(READY_WITHIN, |after| problem.tolerated(after).min(READY_WITHIN))
        };
        // Without `repair_after`, faults of joined nodes are ignored.
        let counts = |problem: &HealthProblem| {
            repair_after.is_some() || !matches!(problem, HealthProblem::Fault(_))
        };
        for instance in world.instances.values().filter(|i| is_ours(i, world)) {
            let size = sizes.entry(pool_of(instance).to_owned()).or_default();
            size.all += 1;
            // An instance whose node was deleted counts as joined, since many deletions may have
            // one cause.
            let joined = self.node_health.joined.contains(&instance.id)
                || possibly_joined.contains(&instance.id);
            let mut broken = false;
            let node = nodes.get(&instance.id).copied();
            let had_node = self.has_joined(&instance.id);
            for problem in HealthProblem::all(node, had_node).filter(counts) {
                let key = (instance.id.clone(), problem);
                let before =
                    self.node_health.problems.get(&key).filter(|before| before.joined == joined);
                let since = before.map_or(now, |before| before.since.min(now));
                let observations = before.map_or(0, |before| before.observations).saturating_add(1);
                let found = ProblemObservation { since, observations, joined };
                broken |= joined && found.is_old(problem, counts_after(problem), now);
                problems.insert(key, found);
            }
            let is_replaced = self.is_replaced_by_repair(&instance.id);
            size.broken += usize::from(broken && !is_replaced);
            size.replaced += usize::from(broken && is_replaced);
        }
        self.node_health.problems = problems;
        sizes
    }

    /// Notes the instances whose Node object was deleted for good, whether or not they are repaired.
    /// Plans count on none of them, so a new one is a reason to plan.
    fn note_lost_nodes(&mut self) {
        let now = self.now;
        let deleted = self.node_health.problems.iter().filter(|((_, problem), found)| {
            *problem == HealthProblem::NodeDeleted && found.is_old(*problem, DELETED_FOR, now)
        });
        let lost: BTreeSet<InstanceId> = deleted.map(|((id, _), _)| id.clone()).collect();
        if !lost.is_subset(&self.node_health.lost_nodes) {
            self.planning.replan_at = self.planning.replan_at.min(now);
        }
        self.node_health.lost_nodes = lost;
    }

    /// Returns the instances that would count as starting, although their node had joined and was
    /// deleted. Plans count all instances without a node as starting for a while after the launch.
    pub(super) fn young_instances_without_node(&self, world: &Observed) -> BTreeSet<InstanceId> {
        let is_young = |id: &&InstanceId| {
            let launched = world.instances.get(*id).map(|instance| instance.launched_at);
            launched.is_some_and(|at| self.now <= later(at, READY_WITHIN))
        };
        self.node_health.lost_nodes.iter().filter(is_young).cloned().collect()
    }

    /// Cancels repairs of instances that recovered before their pods were evicted.
    fn cancel_recovered_repairs(&mut self, nodes: &BTreeMap<&InstanceId, &Node>) {
        let now = self.now;
        let has_recovered = |(id, interruption): &(&InstanceId, &Interruption)| {
            let why = &interruption.record.why;
            let fault = fault_for_reason(why);
            let is_well = |node: &&Node| {
                node.ready && fault.is_none_or(|fault| !node.faults.contains(&fault))
            };
            is_repair(why) && nodes.get(*id).is_some_and(is_well)
        };
        let recovered = self.interruptions.all.iter().filter(has_recovered);
        let recovered: Vec<InstanceId> = recovered.map(|(id, _)| id.clone()).collect();
        for id in &recovered {
            self.interruptions.cancel_repair(id, now);
        }
    }

    fn repair_unhealthy(&mut self, world: &Observed, sizes: &PoolSizes) {
        let now = self.now;
        let is_gone = |id: &InstanceId| !world.instances.get(id).is_some_and(Instance::is_active);
        let mut replaced_by_pool: BTreeMap<PoolName, usize> = BTreeMap::new();
        let repaired = self.persistence.loaded.iter().flat_map(|persisted| &persisted.repairs);
        for repair in repaired.filter(|repair| is_gone(&repair.instance)) {
            *replaced_by_pool.entry(repair.pool.clone()).or_default() += 1;
        }
        let repair_after = self.revisions.settings().and_then(|settings| settings.repair_after);
        let nodes = world.nodes_by_instance();
        for ((id, problem), found) in self.node_health.problems.clone() {
            let had_node = nodes.contains_key(&id) || self.has_joined(&id);
            if !had_node && !self.is_launch_proven(&id, world) {
                continue;
            }
            let pool = world.instances.get(&id).map(pool_of);
            let size = pool.and_then(|pool| sizes.get(pool)).copied();
            let size = size.unwrap_or(PoolSize { all: 1, broken: 1, replaced: 0 });
            let replaced = pool.and_then(|pool| replaced_by_pool.get(pool)).copied().unwrap_or(0);
            let few = match problem {
                HealthProblem::Unready | HealthProblem::NodeDeleted => size.broken <= size.most(),
                // An instance that works in part is replaced only in full mode.
                HealthProblem::Fault(_) => {
                    size.broken + size.replaced + replaced <= size.most()
                        && self.mode() == Mode::Full
                }
            };
            if !found.joined && found.is_old(problem, READY_WITHIN, now) {
                self.begin_repair(id, NEVER_READY);
            } else if found.joined
                && few
                && repair_after
                    .is_some_and(|after| found.is_old(problem, problem.tolerated(after), now))
            {
                if let (HealthProblem::Fault(_), Some(pool)) = (problem, pool)
                    && !self.record_repair(&id, pool)
                {
                    continue;
                }
                self.begin_repair(id, problem.reason());
            }
        }
    }

    /// Returns whether an instance with our tags has or had a node, or was launched as one. Anyone
    /// with `ec2:CreateTags` can give our tags to an instance of another owner, such as a database.
    pub(super) fn is_proven_node(&self, id: &InstanceId, world: &Observed) -> bool {
        world.node_for_instance(id).is_some()
            || self.has_joined(id)
            || self.is_launch_proven(id, world)
    }

    /// Returns whether the instance was launched as a node: this controller recorded the launch, or
    /// tags show a fleet request and no other launcher ([`Instance::is_launched_by_fleet`]). Tags
    /// are weaker than the record: they do not show whose fleet request it was, and a holder of
    /// `ec2:DeleteTags` can hide those of Karpenter.
    fn is_launch_proven(&self, id: &InstanceId, world: &Observed) -> bool {
        let mut launched = self.persistence.loaded.iter().flat_map(|persisted| &persisted.launches);
        world.instances.get(id).is_some_and(Instance::is_launched_by_fleet)
            || launched.any(|launch| launch.instance == *id && launch.launched_for.is_some())
    }

    /// Returns the pools whose broken instances are not replaced because there are too many.
    fn withheld_repairs(&self, sizes: &PoolSizes) -> Vec<WithheldRepair> {
        let repairs = self.revisions.settings().is_some_and(|all| all.repair_after.is_some());
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let many = sizes.iter().filter(|(_, size)| repairs && size.broken > size.most());
        let withheld = many.map(|(pool, size)| WithheldRepair {
            pool: pool.as_str().into(),
            broken: number(size.broken),
            nodes: number(size.all),
            most: number(size.most()),
        });
        withheld.collect()
    }

    /// Records that an instance is replaced for a fault; returns whether it is recorded, now or
    /// before.
    fn record_repair(&mut self, id: &InstanceId, pool: &str) -> bool {
        let now = self.now;
        let Some(persisted) = &mut self.persistence.loaded else { return false };
        if persisted.repairs.iter().any(|repair| repair.instance == *id) {
            return true;
        }
        let room = persisted.repairs.len() < REPAIRS_MAX;
        if room {
            persisted.repairs.push(RepairRecord {
                instance: id.clone(),
                pool: pool.into(),
                at: now,
            });
        }
        room
    }

    /// Returns true if an instance is interrupted by a repair and its pods are being evicted for it:
    /// its replacement is there.
    fn is_replaced_by_repair(&self, id: &InstanceId) -> bool {
        self.interruptions.all.get(id).is_some_and(|interruption| {
            is_repair(&interruption.record.why)
                && interruption.phase() >= InterruptionPhase::Draining
                && !interruption.is_drained_unconfirmed()
        })
    }

    fn may_repair(&self) -> bool {
        let suspended =
            self.persistence.loaded.as_ref().is_none_or(|persisted| persisted.suspended.is_some());
        self.leadership.is_leader() && self.mode() != Mode::Observe && !suspended
    }

    /// Begins a repair. An announced change that nothing confirms does not prevent it: the change
    /// may be months ahead.
    fn begin_repair(&mut self, instance: InstanceId, why: &str) {
        let is_removed = self.applies.removes_instance(&instance);
        let known = self.interruptions.all.get(&instance);
        if is_removed || known.is_some_and(|known| !known.record.is_unconfirmed()) {
            return;
        }
        let (why, since) = (why.to_owned(), self.now);
        let record = InterruptionRecord {
            instance,
            why,
            since,
            deadline: None,
            member: false,
            announced: None,
        };
        self.begin_interruption(record, self.observation.last_number());
    }
}

fn is_ours(instance: &Instance, world: &Observed) -> bool {
    instance.is_active() && instance.is_managed_by(&world.cluster.name)
}

fn pool_of(instance: &Instance) -> &str {
    instance.tags.get(tag::POOL).map_or("", String::as_str)
}

/// Returns whether an observation cannot be right. It shows no node of ours, although instances of
/// ours had joined or pods run on nodes that it does not show. The node of a single joined instance
/// may be gone where other nodes show that the list is not empty.
fn is_blind(
    world: &Observed,
    nodes: &BTreeMap<&InstanceId, &Node>,
    has_joined: impl Fn(&InstanceId) -> bool,
) -> bool {
    let ours = || world.instances.values().filter(|i| is_ours(i, world));
    if ours().any(|instance| nodes.contains_key(&instance.id)) {
        return false;
    }
    let lost = |pod: &crate::model::observed::Pod| {
        pod.is_active() && pod.node.as_ref().is_some_and(|node| !world.nodes.contains_key(node))
    };
    let joined = ours().filter(|instance| has_joined(&instance.id)).count();
    let is_single =
        joined == 1 && world.nodes.values().any(|node| node.ready && !node.is_fargate());
    (joined > 0 && !is_single)
        || (ours().next().is_some() && world.pods.iter().any(|pod| lost(pod)))
}

#[cfg(test)]
mod tests;
