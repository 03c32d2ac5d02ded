//! The planned nodes with their pods, under the scheduler's model.

use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright::demand::{Demand, DemandMode, PodGroup, PodShape, Sharing};
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
use fleetwright::solver::{admits_daemon, daemon_requests};

use crate::conformance::{CaseInput, CasePlan, lines, resources};

/// A node after the plan, and the planned pods on it by group.
pub(super) struct PlannedNode {
    pub(super) address: Address,
    pub(super) node: ScheduleNode,
    pub(super) pool: Option<PoolName>,
    pub(super) is_new: bool,
    pub(super) reservation: Option<ReservationId>,
    pub(super) capacity: Resources,
    /// Pods of each kind that ran here before.
    pub(super) staying: Vec<u32>,
    /// Pods of each group that come: a plan tells those of one workload not apart.
    pub(super) coming: Vec<u32>,
}

/// Pods of one group that are alike: all of them, or those whose volumes are in one place.
pub(super) struct PodKind {
    pub(super) group: usize,
    pub(super) workload: WorkloadId,
    pub(super) shape: Arc<PodShape>,
    pub(super) planned: u32,
    pub(super) running: BTreeMap<NodeName, u32>,
}

impl PodKind {
    fn of(group: usize, pods: &PodGroup) -> Vec<Self> {
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

/// A case, its plan, and what brute force needs to judge it.
pub(super) struct ProofCase {
    pub(super) given: CaseInput,
    pub(super) desired: Desired,
    pub(super) demand: Demand,
    pub(super) kinds: Vec<PodKind>,
    pub(super) made: CasePlan,
    pub(super) seats: Vec<PlannedNode>,
}

/// A scheduler with nodes, and the classes of the kinds in it.
pub(super) struct ScheduledNodes {
    pub(super) scheduler: Scheduler,
    pub(super) classes: Vec<ClassIndex>,
    pub(super) nodes: Vec<NodeIndex>,
}

impl ProofCase {
    /// Plans the case of `text`; `None` where no cluster would run it.
    pub(super) fn of(text: &str) -> Result<Option<Self>, String> {
        let mut given = CaseInput::default();
        for line in lines(0, text) {
            given.take(&line).map_err(|why| format!("`{}`: {why}", line.text))?;
        }
        let desired = given.desired();
        let demand = Demand::build(&desired, &given.world, DemandMode::Live);
        let groups = demand.groups.iter().enumerate();
        let kinds: Vec<PodKind> =
            groups.flat_map(|(index, pods)| PodKind::of(index, pods)).collect();
        let refused = |problem: &Problem| problem.message.starts_with("the API server refuses");
        if demand.problems.iter().any(refused) || !is_sound(&demand, &kinds, &given) {
            return Ok(None);
        }
        let made = given.plan(&[])?;
        let mut stage = Self { given, desired, demand, kinds, made, seats: Vec::new() };
        if !stage.is_told_apart() {
            return Ok(None);
        }
        let rows = stage.made.plan.resource_changes.iter();
        stage.seats = rows.filter_map(|row| stage.seat(row)).collect();
        Ok(Some(stage))
    }

    fn seat(&self, row: &ResourceChange) -> Option<PlannedNode> {
        let NodeState {
            node: name, pool, labels, taints, allocatable, capacity, reservation, ..
        } = row.change.after.clone()?;
        // An instance of which nobody knows what node it becomes is none yet.
        if labels.is_empty() {
            return None;
        }
        let known = name.as_ref().and_then(|name| self.given.world.nodes.get(name));
        let name = name.unwrap_or_else(|| NodeName::from(row.address.as_str()));
        let mut labels = labels;
        labels.extend([label("kubernetes.io/hostname", name.as_str())]);
        let explain = self.made.plan.capacity.explain.iter().find(|e| e.address == row.address)?;
        let staying: Vec<u32> = self.kinds.iter().map(|kind| kind.runs_on(&name)).collect();
        let coming = self.demand.groups.iter().enumerate().map(|(index, group)| {
            let here =
                explain.pods.get(workload_key(&group.workload).as_str()).copied().unwrap_or(0);
            let of_group = self.kinds.iter().zip(&staying).filter(|(kind, _)| kind.group == index);
            here.saturating_sub(of_group.map(|(_, count)| count).sum())
        });
        let coming = coming.collect();
        let unschedulable = known.is_some_and(|node| node.unschedulable);
        let mut allocatable = resources(&allocatable);
        if let Some(limit) = self.attach_limit(&name, &labels) {
            allocatable.extended.insert(attach_resource(EBS_DRIVER), limit);
        }
        let node = ScheduleNode { name, labels, taints, allocatable, unschedulable };
        let is_new = known.is_none();
        let address = row.address.clone();
        let capacity = resources(&capacity);
        Some(PlannedNode { address, node, pool, is_new, reservation, capacity, staying, coming })
    }

    /// Returns how many EBS volumes a node attaches, where some node tells.
    pub(super) fn attach_limit(&self, name: &NodeName, labels: &Labels) -> Option<i64> {
        let told = &self.given.world.storage.attach_limits;
        let of = |node: &NodeName| told.get(node)?.get(EBS_DRIVER).copied().map(i64::from);
        let kind = labels.get(key::INSTANCE_TYPE);
        let alike = self.given.world.nodes.values();
        let alike = alike.filter(|node| node.labels.get(key::INSTANCE_TYPE) == kind);
        of(name).or_else(|| alike.filter_map(|node| of(&node.name)).min())
    }

    /// Returns how many pods of each group the plan leaves out.
    fn left_of_groups(&self) -> Vec<u32> {
        let rows = &self.made.plan.capacity.unschedulable;
        let of = |group: &PodGroup| {
            rows.iter().filter(|row| row.workload == group.workload).map(|row| row.pods).sum()
        };
        self.demand.groups.iter().map(of).collect()
    }

    /// Returns how many pods of each kind the plan leaves out; those of a group with several are the
    /// ones that have to wait whatever happens.
    pub(super) fn left(&self) -> Vec<u32> {
        let mut of_groups = self.left_of_groups();
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

    /// Returns whether it is known which pods the plan leaves out.
    fn is_told_apart(&self) -> bool {
        self.left().iter().sum::<u32>() == self.left_of_groups().iter().sum::<u32>()
    }

    /// Returns whether placement knows every rule of the kind.
    pub(super) fn is_supported(&self, kind: usize) -> bool {
        self.kinds[kind].shape.unsupported.is_empty()
    }

    /// Returns a scheduler over `nodes`, whose daemons are there, and no other pod.
    pub(super) fn scene(&self, nodes: Vec<ScheduleNode>, seed: u64) -> ScheduledNodes {
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

    /// Returns the planned nodes, with the pods that stay, and one node more.
    pub(super) fn planned(&self, seed: u64, more: Option<&ScheduleNode>) -> ScheduledNodes {
        let seats: Vec<&PlannedNode> = self.seats.iter().collect();
        self.planned_in(&seats, seed, more)
    }

    /// Returns the same with the nodes of the last pool first: which of two equal nodes the scheduler
    /// takes depends on their order, and no plan tells in which they come.
    pub(super) fn planned_backwards(&self, seed: u64) -> ScheduledNodes {
        let mut seats: Vec<&PlannedNode> = self.seats.iter().collect();
        seats.sort_by_key(|seat| (seat.is_new, std::cmp::Reverse(seat.pool.clone())));
        self.planned_in(&seats, seed, None)
    }

    fn planned_in(
        &self,
        seats: &[&PlannedNode],
        seed: u64,
        more: Option<&ScheduleNode>,
    ) -> ScheduledNodes {
        let nodes = seats.iter().map(|seat| &seat.node).chain(more);
        let mut scene = self.scene(nodes.cloned().collect(), seed);
        for (seat, node) in seats.iter().zip(scene.nodes.clone()) {
            scene.bind(&seat.staying, node);
        }
        scene
    }

    /// The order of documents and of rows of the world changes no decision.
    pub(super) fn does_not_depend_on_order(&self) -> Result<(), String> {
        let again = self.given.reversed().plan(&[])?;
        if again.plan.capacity.digest == self.made.plan.capacity.digest {
            return Ok(());
        }
        Err(self.story(&again.with_story("from the same documents in another order comes:")))
    }

    /// Returns `why` with the rows of the plan below it.
    pub(super) fn story(&self, why: &str) -> String {
        self.made.with_story(why)
    }
}

impl ScheduledNodes {
    /// Binds so many pods of each kind to `node`.
    pub(super) fn bind(&mut self, counts: &[u32], node: NodeIndex) {
        for (class, count) in self.classes.iter().zip(counts) {
            (0..*count).for_each(|_| self.scheduler.bind(*class, node));
        }
    }
}

/// Returns whether every running pod might have come to its node: a pod that its own template keeps
/// off the node is about to be replaced, and what becomes of it is not for brute force to say. Neither
/// is what becomes of a node that holds more than it has room for.
fn is_sound(demand: &Demand, kinds: &[PodKind], given: &CaseInput) -> bool {
    given.world.nodes.values().all(|node| {
        let daemons = demand.daemons.iter();
        let daemons = daemons.filter(|daemon| admits_daemon(daemon, &node.labels, &node.taints));
        let ports: Vec<u16> = daemons.flat_map(|d| &d.shape.host_ports).map(|p| p.port).collect();
        let clashes =
            |kind: &PodKind| kind.shape.host_ports.iter().any(|p| ports.contains(&p.port));
        let room = daemon_requests(&demand.daemons, &node.labels, &node.taints);
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
        // The claim of a pod that runs is bound, and then the tree says where.
        let unbound = |kind: &PodKind| {
            let mut volumes = kind.shape.volumes.iter();
            volumes.any(|mount| mount.zone_set_by_first_pod && mount.sharing != Sharing::Own)
        };
        let own = |kind: &PodKind| {
            let mounts = kind.shape.volumes.iter().filter(|mount| mount.driver.is_some());
            mounts.count() * usize::try_from(kind.runs_on(&node.name)).unwrap_or(usize::MAX)
        };
        let told = given.world.storage.attach_limits.get(&node.name);
        let limit = told.and_then(|of_node| of_node.get(EBS_DRIVER)).copied();
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        here.clone().all(admits)
            && here.clone().map(own).sum::<usize>() <= limit
            && !here.clone().any(clashes)
            && !here.clone().any(unbound)
            && here.fold(Resources::default(), takes).fits(&room)
    })
}
