//! kube-scheduler as a model: where its default profile would put pods, one after the other.
//!
//! Knows the queue's order, the filters, the score plugins with their weights and their
//! normalization, how many nodes are searched and from where, and preemption; semantics are those
//! of Kubernetes 1.36 (with [`Balance::Level`] those up to 1.35). The same calls in the same order
//! with the same seed give the same result: ties between nodes of equal score are the only thing
//! that the seed decides.
//!
//! Refuses to know manifests, prices, instance types and time. What it leaves out, and callers
//! have to say: rules of volumes ([`Scheduler::ignores_volumes`]), image locality (images on nodes
//! are unknown; every node scores 0), room held for nominated pods of others, pod disruption
//! budgets in preemption, dynamic resources, scheduling gates. A pod without requests scores as if
//! it asked for 100m and 200Mi; upstream does so for each container, which a [`PodShape`] no longer
//! shows. A Service that selects the pods of a Job or bare pods would make them spread by default;
//! Services are not known here.
//!
//! Invariant: every count that filters and scores read is kept up with each pod that comes or
//! goes, so that trying a node never looks at the pods of other nodes.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//! use fleetwright::schedule::{ScheduleNode, Scheduler};
//! # use fleetwright::demand::{NodeChoice, PodShape};
//! # use fleetwright::pod::PodAffinity;
//! # use fleetwright::requirement::Requirements;
//! # use fleetwright::units::{Bytes, MilliCpu, Resources};
//! # let resources = |cpu, pods| Resources {
//! #     cpu: MilliCpu(cpu), memory: Bytes::gib(pods), pods, ..Resources::default()
//! # };
//! # let shape = Arc::new(PodShape {
//! #     namespace: "default".into(), labels: BTreeMap::new(), requests: resources(600, 1),
//! #     nodes: NodeChoice { any_of: vec![Requirements::default()], ..NodeChoice::default() },
//! #     tolerations: vec![], host_ports: vec![], spread: vec![], affinity: PodAffinity::default(),
//! #     anti_affinity: PodAffinity::default(), volumes: vec![], priority: 0, pinned: false,
//! #     unsupported: vec![],
//! # });
//! let node = ScheduleNode {
//!     name: "n1".into(),
//!     labels: BTreeMap::new(),
//!     taints: vec![],
//!     allocatable: resources(1000, 110),
//!     unschedulable: false,
//! };
//! let mut scheduler = Scheduler::new(vec![node], &BTreeMap::new(), 7);
//! let class = scheduler.class(&shape, None);
//! let first = scheduler.schedule(class, None).expect("the node is empty");
//! assert_eq!(scheduler.name(first).as_str(), "n1");
//! let unfit = scheduler.schedule(class, None).expect_err("600m are taken");
//! assert_eq!(unfit.to_string(), "0/1 nodes: 1 insufficient cpu");
//! ```

mod choose;
mod class;
mod filter;
mod load;
mod order;
mod place;
mod pods;
mod preempt;
mod queue;
mod score;
mod spread;
#[cfg(test)]
mod tests;
mod topology;

pub use filter::{Unfit, UnfitReason};
pub use preempt::Preemption;
pub use queue::{PendingPod, queue_order};
pub use score::Balance;

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::SeedableRng;
use rand_pcg::Pcg64;

use crate::demand::PodShape;
use crate::ids::{Labels, Namespace, NodeName, WorkloadId};
use crate::pod::{Taint, VolumeSource};
use crate::units::{ResourceName, Resources};

use class::Class;
use load::{Bound, Load};
use order::NodeOrder;
use place::View;
use pods::{NamespaceLabels, PodSet};
use score::ResourceScores;
use spread::Spread;
use topology::{Carriers, Step, Tally, Topology};

/// A node as the scheduler sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleNode {
    /// Name.
    pub name: NodeName,
    /// Labels; `kubernetes.io/hostname` as well, which the kubelet sets on real nodes.
    pub labels: Labels,
    /// Taints; the one that mirrors `unschedulable` may be left out.
    pub taints: Vec<Taint>,
    /// What pods may use, `pods` included.
    pub allocatable: Resources,
    /// Whether the node is cordoned.
    pub unschedulable: bool,
}

/// A node of a [`Scheduler`]; stays valid, and is not given out again, after the node was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(usize);

/// Pods of one shape and workload, known to a [`Scheduler`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassIndex(usize);

/// Nodes, the pods bound to them, and everything the next decision depends on.
///
/// Cloning gives an independent scheduler in the same state.
#[derive(Debug, Clone)]
pub struct Scheduler {
    nodes: Vec<ScheduleNode>,
    /// Whether a node is still there; its index is never given to another.
    present: Vec<bool>,
    by_name: BTreeMap<NodeName, usize>,
    loads: Vec<Load>,
    columns: Vec<ResourceName>,
    order: NodeOrder,
    namespaces: NamespaceLabels,
    classes: Vec<Class>,
    class_index: BTreeMap<(Arc<PodShape>, Option<WorkloadId>), usize>,
    views: Vec<View>,
    sets: Vec<SetCounts>,
    set_index: BTreeMap<PodSet, usize>,
    topologies: Vec<Topology>,
    tallies: Vec<Tally>,
    carriers: Vec<Carriers>,
    spreads: Vec<Spread>,
    resource_scores: Vec<ResourceScores>,
    balance: Balance,
    bound: u64,
    rng: Pcg64,
}

/// The pods of a set on each node, and who wants to hear of them.
#[derive(Debug, Clone)]
struct SetCounts {
    set: PodSet,
    on_node: Vec<usize>,
    tallies: Vec<usize>,
    carriers: Vec<usize>,
    spreads: Vec<usize>,
}

impl Scheduler {
    /// Makes a scheduler over `nodes`, tried in the order given within their zone. Namespaces
    /// that are not listed have no labels but their name. Equal names stand for one node: the
    /// first.
    #[must_use]
    pub fn new(
        nodes: Vec<ScheduleNode>,
        namespaces: &BTreeMap<Namespace, Labels>,
        seed: u64,
    ) -> Self {
        let mut scheduler = Self {
            nodes: Vec::new(),
            present: Vec::new(),
            by_name: BTreeMap::new(),
            loads: Vec::new(),
            columns: Vec::new(),
            order: NodeOrder::default(),
            namespaces: NamespaceLabels::new(namespaces),
            classes: Vec::new(),
            class_index: BTreeMap::new(),
            views: Vec::new(),
            sets: Vec::new(),
            set_index: BTreeMap::new(),
            topologies: Vec::new(),
            tallies: Vec::new(),
            carriers: Vec::new(),
            spreads: Vec::new(),
            resource_scores: Vec::new(),
            balance: Balance::default(),
            bound: 0,
            rng: Pcg64::seed_from_u64(seed),
        };
        for node in nodes {
            scheduler.enlist(node);
        }
        scheduler.order.interleave();
        scheduler
    }

    /// Returns the scheduler with another rule for balanced allocation.
    #[must_use]
    pub fn with_balance(mut self, balance: Balance) -> Self {
        self.balance = balance;
        self.resource_scores.iter_mut().for_each(ResourceScores::forget);
        self
    }

    /// Adds a node, without pods; a node of that name that is there already is returned as it is.
    pub fn add_node(&mut self, node: ScheduleNode) -> NodeIndex {
        let index = self.enlist(node);
        self.order.interleave();
        index
    }

    /// Adds nodes, without pods, in their order; quicker than one by one.
    pub fn add_nodes(&mut self, nodes: impl IntoIterator<Item = ScheduleNode>) -> Vec<NodeIndex> {
        let added = nodes.into_iter().map(|node| self.enlist(node)).collect();
        self.order.interleave();
        added
    }

    /// Removes a node and returns the pods that were bound to it, the longest bound first.
    pub fn remove_node(&mut self, node: NodeIndex) -> Vec<ClassIndex> {
        let NodeIndex(index) = node;
        let mut orphans = Vec::new();
        while let Some(bound) = self.loads[index].last() {
            self.lift(index, bound);
            orphans.push(ClassIndex(bound.class));
        }
        orphans.reverse();
        if std::mem::replace(&mut self.present[index], false) {
            self.by_name.remove(&self.nodes[index].name);
            self.order.remove(index);
            self.order.interleave();
            self.recount(index);
        }
        orphans
    }

    /// Cordons a node, or lifts the cordon.
    pub fn set_unschedulable(&mut self, node: NodeIndex, unschedulable: bool) {
        let NodeIndex(index) = node;
        self.nodes[index].unschedulable = unschedulable;
        for view in &mut self.views {
            view.judge(index, &self.nodes[index]);
        }
        self.recount(index);
    }

    /// Returns the node of that name.
    #[must_use]
    pub fn node(&self, name: &NodeName) -> Option<NodeIndex> {
        self.by_name.get(name).copied().map(NodeIndex)
    }

    /// Returns the nodes that are there, in the order in which they were added.
    pub fn nodes(&self) -> impl Iterator<Item = NodeIndex> {
        let here = |index: &usize| self.present[*index];
        (0..self.nodes.len()).filter(here).map(NodeIndex)
    }

    /// Returns the name of a node.
    #[must_use]
    pub fn name(&self, node: NodeIndex) -> &NodeName {
        &self.nodes[node.0].name
    }

    /// Returns the pods bound to a node, the longest bound first.
    pub fn pods_on(&self, node: NodeIndex) -> impl Iterator<Item = ClassIndex> {
        self.loads[node.0].pods().iter().map(|bound| ClassIndex(bound.class))
    }

    /// Returns the shape of a class.
    #[must_use]
    pub fn shape(&self, class: ClassIndex) -> &Arc<PodShape> {
        &self.classes[class.0].shape
    }

    /// Returns whether pods of this class have volumes whose rules are not modelled: binding,
    /// zones and attach limits. Such a pod may be found a node that its volumes forbid.
    #[must_use]
    pub fn ignores_volumes(&self, class: ClassIndex) -> bool {
        let bound = |source: &VolumeSource| match source {
            VolumeSource::Claim(_)
            | VolumeSource::EphemeralClaim(_)
            | VolumeSource::ClaimTemplate(_)
            | VolumeSource::Ebs(_)
            | VolumeSource::InTree(_) => true,
            VolumeSource::HostPath | VolumeSource::EmptyDir | VolumeSource::Other => false,
        };
        self.shape(class).volumes.iter().any(|volume| bound(&volume.source))
    }

    /// Counts a pod that runs on `node` already; nothing is checked.
    pub fn bind(&mut self, class: ClassIndex, node: NodeIndex) {
        let bound = Bound { class: class.0, since: self.bound };
        self.bound += 1;
        self.place(node.0, bound);
    }

    /// Takes the pod of this class that was bound to `node` last away again; returns whether
    /// there was one.
    pub fn unbind(&mut self, class: ClassIndex, node: NodeIndex) -> bool {
        let found = self.loads[node.0].last_of(class.0);
        found.map(|bound| self.lift(node.0, bound)).is_some()
    }

    /// Finds a node for a pod and binds the pod to it: filters, scores, chooses.
    ///
    /// # Errors
    /// When no node fits: how many nodes each reason ruled out.
    pub fn schedule(
        &mut self,
        class: ClassIndex,
        nominated: Option<NodeIndex>,
    ) -> Result<NodeIndex, Unfit> {
        let node = self.choose(class.0, nominated)?;
        self.bind(class, NodeIndex(node));
        Ok(NodeIndex(node))
    }

    /// Returns whether a pod of this class may run on `node` now.
    ///
    /// # Errors
    /// The reasons of the first filter that fails; several only where several resources are short.
    pub fn fits(&self, class: ClassIndex, node: NodeIndex) -> Result<(), Vec<UnfitReason>> {
        let reasons = self.gate(class.0).reasons(node.0);
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    fn enlist(&mut self, node: ScheduleNode) -> NodeIndex {
        if let Some(index) = self.by_name.get(&node.name) {
            return NodeIndex(*index);
        }
        let index = self.nodes.len();
        self.by_name.insert(node.name.clone(), index);
        self.order.add(index, &node.labels);
        self.loads.push(Load::new(&node.allocatable, &self.columns));
        self.topologies.iter_mut().for_each(|topology| topology.push(&node.labels));
        self.views.iter_mut().for_each(|view| view.judge(index, &node));
        self.sets.iter_mut().for_each(|set| set.on_node.push(0));
        self.nodes.push(node);
        self.present.push(true);
        self.recount(index);
        NodeIndex(index)
    }

    fn place(&mut self, node: usize, bound: Bound) {
        let class = &self.classes[bound.class];
        self.loads[node].place(bound, &class.request, &class.ports);
        self.tell(node, bound.class, Step::Bind);
    }

    fn lift(&mut self, node: usize, bound: Bound) {
        let class = &self.classes[bound.class];
        self.loads[node].lift(bound, &class.request, &class.ports);
        self.tell(node, bound.class, Step::Unbind);
    }

    /// Keeps every count that a pod of this class on this node is part of.
    fn tell(&mut self, node: usize, class: usize, step: Step) {
        let class = &self.classes[class];
        for set in &class.member_of {
            let set = &mut self.sets[*set];
            step.count(&mut set.on_node[node]);
            for tally in &set.tallies {
                let tally = &mut self.tallies[*tally];
                tally.step(self.topologies[tally.topology].domain(node), step);
            }
            for spread in &set.spreads {
                let spread = &mut self.spreads[*spread];
                spread.step(node, self.topologies[spread.topology].domain(node), step);
            }
        }
        for (carriers, role) in &class.carries {
            let carriers = &mut self.carriers[*carriers];
            carriers.step(self.topologies[carriers.topology].domain(node), *role, step);
        }
    }
}
