//! A planned case with its nodes and pods, in the form of the scheduler model.

use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright::demand::{Daemon, Demand, DemandMode, PodGroup, PodShape, Sharing};
use fleetwright::model::desired::{Desired, Problem};
use fleetwright::model::ids::{
    Address, Labels, NodeName, PoolName, ReservationId, WorkloadId, workload_key,
};
use fleetwright::model::pod::untolerated;
use fleetwright::model::requirement::{key, label};
use fleetwright::model::storage::{EBS_DRIVER, attach_resource};
use fleetwright::model::units::Resources;
use fleetwright::plan::wire::{NodeState, ResourceChange};
use fleetwright::scheduler::{ClassIndex, NodeIndex, ScheduleNode, Scheduler};
use fleetwright::solver::{daemon_requests, runs_daemon};

use crate::conformance::{CaseInput, CasePlan, lines, resources};

/// A node after the plan, with its planned pods.
pub(super) struct PlannedNode {
    pub(super) address: Address,
    pub(super) node: ScheduleNode,
    pub(super) pool: Option<PoolName>,
    pub(super) is_new: bool,
    pub(super) reservation: Option<ReservationId>,
    pub(super) capacity: Resources,
    /// Number of pods of each kind that ran on the node before.
    pub(super) staying: Vec<u32>,
    /// Number of arriving pods of each group. A plan does not distinguish the pods of a workload.
    pub(super) arriving: Vec<u32>,
}

/// Equal pods of one group: all of them, or those with volumes on the same nodes.
pub(super) struct PodKind {
    pub(super) group: usize,
    pub(super) workload: WorkloadId,
    pub(super) shape: Arc<PodShape>,
    pub(super) planned: u32,
    pub(super) running: BTreeMap<NodeName, u32>,
}

impl PodKind {
    fn from_group(group: usize, pods: &PodGroup) -> Vec<Self> {
        let workload = &pods.workload;
        let kind = |shape: &Arc<PodShape>, planned, running: &BTreeMap<NodeName, u32>| Self {
            group,
            workload: workload.clone(),
            shape: Arc::clone(shape),
            planned,
            running: running.clone(),
        };
        match pods.partitions.as_slice() {
            [] => vec![kind(&pods.shape, pods.counts.planned, &pods.running)],
            parts => parts.iter().map(|p| kind(&p.shape, p.planned, &p.running)).collect(),
        }
    }

    pub(super) fn runs_on(&self, node: &NodeName) -> u32 {
        self.running.get(node).copied().unwrap_or(0)
    }
}

/// A case with its plan, prepared for brute force.
pub(super) struct ProofCase {
    pub(super) input: CaseInput,
    pub(super) desired: Desired,
    pub(super) demand: Demand,
    pub(super) kinds: Vec<PodKind>,
    pub(super) case_plan: CasePlan,
    pub(super) planned_nodes: Vec<PlannedNode>,
}

/// A scheduler with nodes, and the scheduling classes of the pod kinds.
pub(super) struct ScheduledNodes {
    pub(super) scheduler: Scheduler,
    pub(super) classes: Vec<ClassIndex>,
    pub(super) nodes: Vec<NodeIndex>,
}

impl ProofCase {
    /// Parses and plans a case; `None` if no cluster could run it.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, String> {
        let mut input = CaseInput::default();
        for line in lines(0, text) {
            input.read_line(&line).map_err(|why| format!("`{}`: {why}", line.text))?;
        }
        let desired = input.desired();
        let demand = Demand::build(&desired, &input.world, DemandMode::Live);
        let groups = demand.groups.iter().enumerate();
        let kinds: Vec<PodKind> =
            groups.flat_map(|(index, pods)| PodKind::from_group(index, pods)).collect();
        let refused = |problem: &Problem| problem.message.starts_with("the API server refuses");
        if demand.problems.iter().any(refused) || !is_plausible(&demand, &kinds, &input) {
            return Ok(None);
        }
        let case_plan = input.plan(&[])?;
        let mut case = Self { input, desired, demand, kinds, case_plan, planned_nodes: Vec::new() };
        if !case.has_known_unschedulable_pods() {
            return Ok(None);
        }
        let rows = case.case_plan.plan.resource_changes.iter();
        case.planned_nodes = rows.filter_map(|row| case.planned_node(row)).collect();
        Ok(Some(case))
    }

    fn planned_node(&self, row: &ResourceChange) -> Option<PlannedNode> {
        let NodeState {
            node: name, pool, labels, taints, allocatable, capacity, reservation, ..
        } = row.change.after.clone()?;
        // The node of a joining instance may be unknown.
        if labels.is_empty() {
            return None;
        }
        let known = name.as_ref().and_then(|name| self.input.world.nodes.get(name));
        let name = name.unwrap_or_else(|| NodeName::from(row.address.as_str()));
        let mut labels = labels;
        labels.extend([label("kubernetes.io/hostname", name.as_str())]);
        let explain =
            self.case_plan.plan.capacity.explain.iter().find(|e| e.address == row.address)?;
        let staying: Vec<u32> = self.kinds.iter().map(|kind| kind.runs_on(&name)).collect();
        let arriving = self.demand.groups.iter().enumerate().map(|(index, group)| {
            let here =
                explain.pods.get(workload_key(&group.workload).as_str()).copied().unwrap_or(0);
            let of_group = self.kinds.iter().zip(&staying).filter(|(kind, _)| kind.group == index);
            here.saturating_sub(of_group.map(|(_, count)| count).sum())
        });
        let arriving = arriving.collect();
        let unschedulable = known.is_some_and(|node| node.unschedulable);
        let mut allocatable = resources(&allocatable);
        if let Some(limit) = self.attach_limit(&name, &labels) {
            allocatable.extended.insert(attach_resource(EBS_DRIVER), limit);
        }
        let node = ScheduleNode { name, labels, taints, allocatable, unschedulable };
        let is_new = known.is_none();
        let address = row.address.clone();
        let capacity = resources(&capacity);
        Some(PlannedNode { address, node, pool, is_new, reservation, capacity, staying, arriving })
    }

    /// Returns the attach limit of a node for EBS volumes, if it or a node of the same type reports
    /// it.
    pub(super) fn attach_limit(&self, name: &NodeName, labels: &Labels) -> Option<i64> {
        let attach_limits = &self.input.world.storage.attach_limits;
        let of = |node: &NodeName| attach_limits.get(node)?.get(EBS_DRIVER).copied().map(i64::from);
        let kind = labels.get(key::INSTANCE_TYPE);
        let alike = self.input.world.nodes.values();
        let alike = alike.filter(|node| node.labels.get(key::INSTANCE_TYPE) == kind);
        of(name).or_else(|| alike.filter_map(|node| of(&node.name)).min())
    }

    /// Returns the number of unschedulable pods of each group.
    fn unschedulable_by_group(&self) -> Vec<u32> {
        let rows = &self.case_plan.plan.capacity.unschedulable;
        let of = |group: &PodGroup| {
            rows.iter().filter(|row| row.workload == group.workload).map(|row| row.pods).sum()
        };
        self.demand.groups.iter().map(of).collect()
    }

    /// Returns the number of unschedulable pods of each kind. In a group with several kinds, only
    /// kinds with unsupported rules count.
    pub(super) fn unschedulable(&self) -> Vec<u32> {
        let mut of_groups = self.unschedulable_by_group();
        let of = |(index, kind): (usize, &PodKind)| {
            let runs: u32 = kind.running.values().sum();
            let pending = kind.planned.saturating_sub(runs);
            let alone = self.kinds.iter().filter(|other| other.group == kind.group).count() == 1;
            let waits = alone || !self.is_supported(index);
            let left = if alone { u32::MAX } else { pending };
            let left = if waits { left.min(of_groups[kind.group]) } else { 0 };
            of_groups[kind.group] -= left;
            left
        };
        self.kinds.iter().enumerate().map(of).collect()
    }

    /// Returns whether the kinds of all unschedulable pods are known.
    fn has_known_unschedulable_pods(&self) -> bool {
        self.unschedulable().iter().sum::<u32>()
            == self.unschedulable_by_group().iter().sum::<u32>()
    }

    /// Returns whether all rules of the kind are supported.
    pub(super) fn is_supported(&self, kind: usize) -> bool {
        self.kinds[kind].shape.unsupported.is_empty()
    }

    /// Returns a scheduler over `nodes` with their DaemonSet pods and no other pods.
    pub(super) fn scheduled(&self, nodes: Vec<ScheduleNode>, seed: u64) -> ScheduledNodes {
        let mut scheduler = Scheduler::new(Vec::new(), &self.desired.namespaces, seed);
        let kinds = self.kinds.iter();
        let classes = kinds.map(|kind| scheduler.class(&kind.shape, Some(&kind.workload)));
        let classes = classes.collect();
        let nodes = scheduler.add_nodes(nodes);
        for daemon in &self.demand.daemons {
            let class = scheduler.class(&daemon.shape, Some(&daemon.workload));
            for node in &nodes {
                if scheduler.fits(class, *node).is_ok() {
                    scheduler.bind(class, *node);
                }
            }
        }
        ScheduledNodes { scheduler, classes, nodes }
    }

    /// Returns a scheduler over the planned nodes with their staying pods, and one more node.
    pub(super) fn planned(&self, seed: u64, more: Option<&ScheduleNode>) -> ScheduledNodes {
        let planned_nodes: Vec<&PlannedNode> = self.planned_nodes.iter().collect();
        self.planned_in(&planned_nodes, seed, more)
    }

    /// Returns the same with new nodes in reverse order of pools. The order of nodes breaks ties in
    /// the scheduler, and the plan does not determine it.
    pub(super) fn planned_backwards(&self, seed: u64) -> ScheduledNodes {
        let mut planned_nodes: Vec<&PlannedNode> = self.planned_nodes.iter().collect();
        planned_nodes.sort_by_key(|planned_node| {
            (planned_node.is_new, std::cmp::Reverse(planned_node.pool.clone()))
        });
        self.planned_in(&planned_nodes, seed, None)
    }

    fn planned_in(
        &self,
        planned_nodes: &[&PlannedNode],
        seed: u64,
        more: Option<&ScheduleNode>,
    ) -> ScheduledNodes {
        let nodes = planned_nodes.iter().map(|planned_node| &planned_node.node).chain(more);
        let mut scheduled = self.scheduled(nodes.cloned().collect(), seed);
        for (planned_node, node) in planned_nodes.iter().zip(scheduled.nodes.clone()) {
            scheduled.bind(&planned_node.staying, node);
        }
        scheduled
    }

    /// Checks that the order of documents and observed pods changes no decision.
    pub(super) fn is_independent_of_document_order(&self) -> Result<(), String> {
        let again = self.input.reversed().plan(&[])?;
        if again.plan.capacity.digest == self.case_plan.plan.capacity.digest {
            return Ok(());
        }
        Err(self.describe_failure(&again.with_details("reversed documents give another plan:")))
    }

    /// Returns `why`, followed by the rows of the plan.
    pub(super) fn describe_failure(&self, why: &str) -> String {
        self.case_plan.with_details(why)
    }
}

impl ScheduledNodes {
    /// Binds `counts` pods of each kind to `node`.
    pub(super) fn bind(&mut self, counts: &[u32], node: NodeIndex) {
        for (class, count) in self.classes.iter().zip(counts) {
            (0..*count).for_each(|_| self.scheduler.bind(*class, node));
        }
    }
}

/// Returns whether every running pod could have been scheduled to its node. Brute force cannot
/// check pods that their node no longer admits, or overcommitted nodes.
fn is_plausible(demand: &Demand, kinds: &[PodKind], input: &CaseInput) -> bool {
    input.world.nodes.values().all(|node| {
        let daemons = demand.daemons.iter();
        let runs =
            |daemon: &&Daemon| runs_daemon(daemon, &node.labels, &node.taints, &node.allocatable);
        let daemons = daemons.filter(runs);
        let ports: Vec<u16> = daemons.flat_map(|d| &d.shape.host_ports).map(|p| p.port).collect();
        let clashes =
            |kind: &PodKind| kind.shape.host_ports.iter().any(|p| ports.contains(&p.port));
        let room = daemon_requests(&demand.daemons, &node.labels, &node.taints, &node.allocatable);
        let room = node.allocatable.minus(&room);
        let here = kinds.iter().filter(|kind| kind.runs_on(&node.name) > 0);
        let admits = |kind: &PodKind| {
            let mut terms = kind.shape.nodes.any_of.iter();
            terms.any(|term| term.matches_labels(&node.labels))
                && untolerated(&node.taints, &kind.shape.tolerations).is_none()
        };
        let takes = |sum: Resources, kind: &PodKind| {
            sum.plus(&kind.shape.requests.times(kind.runs_on(&node.name).into()))
        };
        // The claim of a running pod is bound, so its volume must be declared.
        let unbound = |kind: &PodKind| {
            let mut volumes = kind.shape.volumes.iter();
            volumes.any(|mount| mount.zone_set_by_first_pod && mount.sharing != Sharing::Own)
        };
        let own = |kind: &PodKind| {
            let mounts = kind.shape.volumes.iter().filter(|mount| mount.driver.is_some());
            mounts.count() * usize::try_from(kind.runs_on(&node.name)).unwrap_or(usize::MAX)
        };
        let limits = input.world.storage.attach_limits.get(&node.name);
        let limit = limits.and_then(|of_node| of_node.get(EBS_DRIVER)).copied();
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        here.clone().all(admits)
            && here.clone().map(own).sum::<usize>() <= limit
            && !here.clone().any(clashes)
            && !here.clone().any(unbound)
            && here.fold(Resources::default(), takes).fits(&room)
    })
}
