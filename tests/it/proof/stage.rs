//! The planned nodes with their pods, under the scheduler's model.

use fleetwright::demand::{Demand, DemandMode, PodGroup};
use fleetwright::ids::{NodeName, PoolName};
use fleetwright::manifest::Desired;
use fleetwright::plan::wire::{NodeState, ResourceChange};
use fleetwright::pod::untolerated;
use fleetwright::requirement::label;
use fleetwright::schedule::{ClassIndex, NodeIndex, ScheduleNode, Scheduler};
use fleetwright::solve::workload_key;
use fleetwright::units::Resources;

use crate::conformance::{Given, Made, lines, resources};

/// A node after the plan, and the planned pods on it by group.
pub(super) struct Seat {
    pub(super) node: ScheduleNode,
    pub(super) pool: Option<PoolName>,
    pub(super) is_new: bool,
    pub(super) capacity: Resources,
    /// Pods that ran here before.
    pub(super) staying: Vec<u32>,
    /// Pods that come.
    pub(super) coming: Vec<u32>,
}

/// A case, its plan, and what brute force needs to judge it.
pub(super) struct Stage {
    pub(super) given: Given,
    pub(super) desired: Desired,
    pub(super) demand: Demand,
    pub(super) made: Made,
    pub(super) seats: Vec<Seat>,
}

/// A scheduler with nodes, and the classes of the groups in it.
pub(super) struct Scene {
    pub(super) scheduler: Scheduler,
    pub(super) classes: Vec<ClassIndex>,
    pub(super) nodes: Vec<NodeIndex>,
}

impl Stage {
    /// Plans the case of `text`; `None` where no cluster would run it.
    pub(super) fn of(text: &str) -> Result<Option<Self>, String> {
        let mut given = Given::default();
        for line in lines(0, text) {
            given.take(&line).map_err(|why| format!("`{}`: {why}", line.text))?;
        }
        let desired = given.desired();
        let demand = Demand::build(&desired, &given.world, DemandMode::Live);
        if !is_sound(&demand, &given) {
            return Ok(None);
        }
        let made = given.plan(&[])?;
        let mut stage = Self { given, desired, demand, made, seats: Vec::new() };
        let rows = stage.made.plan.resource_changes.iter();
        stage.seats = rows.filter_map(|row| stage.seat(row)).collect();
        Ok(Some(stage))
    }

    fn seat(&self, row: &ResourceChange) -> Option<Seat> {
        let NodeState { node: name, pool, labels, taints, allocatable, capacity, .. } =
            row.change.after.clone()?;
        let known = name.as_ref().and_then(|name| self.given.world.nodes.get(name));
        let name = name.unwrap_or_else(|| NodeName::from(row.address.as_str()));
        let mut labels = labels;
        labels.extend([label("kubernetes.io/hostname", name.as_str())]);
        let explain = self.made.plan.capacity.explain.iter().find(|e| e.address == row.address)?;
        let (mut staying, mut coming) = (Vec::new(), Vec::new());
        for group in &self.demand.groups {
            let here = explain.pods.get(&workload_key(&group.workload)).copied().unwrap_or(0);
            let ran = group.running.get(&name).copied().unwrap_or(0);
            staying.push(here.min(ran));
            coming.push(here.saturating_sub(ran));
        }
        let unschedulable = known.is_some_and(|node| node.unschedulable);
        let allocatable = resources(&allocatable);
        let node = ScheduleNode { name, labels, taints, allocatable, unschedulable };
        let is_new = known.is_none();
        Some(Seat { node, pool, is_new, capacity: resources(&capacity), staying, coming })
    }

    /// Returns how many pods of each group the plan leaves out.
    pub(super) fn left(&self) -> Vec<u32> {
        let rows = &self.made.plan.capacity.unschedulable;
        let of = |group: &PodGroup| {
            rows.iter().filter(|row| row.workload == group.workload).map(|row| row.pods).sum()
        };
        self.demand.groups.iter().map(of).collect()
    }

    /// Returns whether placement knows every rule of the group.
    pub(super) fn is_supported(&self, group: usize) -> bool {
        self.demand.groups[group].shape.unsupported.is_empty()
    }

    /// Returns a scheduler over `nodes`, whose daemons are there, and no other pod.
    pub(super) fn scene(&self, nodes: Vec<ScheduleNode>, seed: u64) -> Scene {
        let mut scheduler = Scheduler::new(Vec::new(), &self.desired.namespaces, seed);
        let groups = self.demand.groups.iter();
        let class = |scheduler: &mut Scheduler, group: &PodGroup| {
            scheduler.class(&group.shape, Some(&group.workload))
        };
        let classes = groups.map(|group| class(&mut scheduler, group)).collect();
        let nodes = scheduler.add_nodes(nodes);
        for daemon in &self.demand.daemons {
            let class = scheduler.class(&daemon.shape, Some(&daemon.workload));
            for node in &nodes {
                if scheduler.fits(class, *node).is_ok() {
                    scheduler.bind(class, *node);
                }
            }
        }
        Scene { scheduler, classes, nodes }
    }

    /// Returns the planned nodes, with the pods that stay, and one node more.
    pub(super) fn planned(&self, seed: u64, more: Option<&ScheduleNode>) -> Scene {
        let nodes = self.seats.iter().map(|seat| &seat.node).chain(more);
        let mut scene = self.scene(nodes.cloned().collect(), seed);
        for (seat, node) in self.seats.iter().zip(scene.nodes.clone()) {
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

impl Scene {
    /// Binds so many pods of each group to `node`.
    pub(super) fn bind(&mut self, counts: &[u32], node: NodeIndex) {
        for (class, count) in self.classes.iter().zip(counts) {
            (0..*count).for_each(|_| self.scheduler.bind(*class, node));
        }
    }
}

/// Returns whether every running pod might have come to its node: a pod that its own template keeps
/// off the node is about to be replaced, and what becomes of it is not for brute force to say.
fn is_sound(demand: &Demand, given: &Given) -> bool {
    demand.groups.iter().all(|group| {
        group.running.keys().filter_map(|name| given.world.nodes.get(name)).all(|node| {
            let chosen =
                group.shape.nodes.any_of.iter().any(|term| term.match_labels(&node.labels));
            chosen && untolerated(&node.taints, &group.shape.tolerations).is_none()
        })
    })
}
