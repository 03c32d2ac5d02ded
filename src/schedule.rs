//! kube-scheduler as a model: where its default profile would put pods, one after the other.
//!
//! Knows the queue's order, the filters, the score plugins with their weights and their
//! normalization, how many nodes are searched and from where, and preemption; semantics are those
//! of Kubernetes 1.36 (with [`Balance::Level`] those up to 1.35). The same calls in the same order
//! with the same seed give the same result: ties between nodes of equal score are the only thing
//! that the seed decides.
//!
//! Refuses to know manifests, prices, instance types and time. What it leaves out, and callers
//! have to say: image locality (images on nodes are unknown; every node scores 0), dynamic resources, scheduling gates, batches of equal pods
//! that share one round of scores (a pod that fills its node, such as one of 1.36's batches, is
//! scored anew here). A Service that selects the pods of a Job or bare pods would make them spread by
//! default; Services are not known here. Namespace selectors of pod affinity mean what is
//! documented; in 1.34 to 1.36.2 one that matches a namespace without labels matches every namespace
//! (kubernetes#141526).
//!
//! Invariant: every count that filters and scores read is kept up with each pod that comes or
//! goes, so that trying a node never looks at the pods of other nodes. What a node by itself says
//! of a pod is kept until the node changes. Both are checked against a plain model that counts
//! anew for each pod: the choices are the same, one by one.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//! use fleetwright::schedule::{ScheduleNode, Scheduler};
//! # use fleetwright::demand::{NodeChoice, PodShape};
//! # use fleetwright::ids::Labels;
//! # use fleetwright::pod::PodAffinity;
//! # use fleetwright::requirement::Requirements;
//! # use fleetwright::units::{Bytes, MilliCpu, Resources};
//! # let resources = |cpu, pods| Resources {
//! #     cpu: MilliCpu(cpu), memory: Bytes::gib(pods), pods, ..Resources::default()
//! # };
//! # let shape = Arc::new(PodShape {
//! #     namespace: "default".into(), labels: Labels::default(), requests: resources(600, 1),
//! #     presumed: Resources::default(),
//! #     nodes: NodeChoice { any_of: vec![Requirements::default()], ..NodeChoice::default() },
//! #     tolerations: vec![], host_ports: vec![], spread: vec![], affinity: PodAffinity::default(),
//! #     anti_affinity: PodAffinity::default(), volumes: vec![], priority: 0, preempts: true,
//! #     pinned: false, unsupported: vec![], default_spread: None,
//! # });
//! let node = ScheduleNode {
//!     name: "n1".into(),
//!     labels: Labels::default(),
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
mod ground;
mod load;
mod local;
mod nominate;
mod order;
mod place;
mod pods;
mod preempt;
mod queue;
mod rules;
mod score;
mod spread;
#[cfg(test)]
mod tests;
mod topology;
mod volumes;

pub use choose::Ties;
pub use filter::{Unfit, UnfitReason};
pub use pods::{NamespaceLabels, Selection};
pub use preempt::{Budget, Preemption};
pub use queue::{PendingPod, queue_order};
pub use score::Balance;

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::SeedableRng;
use rand_pcg::Pcg64;

use crate::demand::PodShape;
use crate::ids::{Labels, Namespace, NodeName};
use crate::pod::Taint;
use crate::units::Resources;

use ground::Ground;
use load::{Bound, Load};
use local::Rows;
use order::NodeOrder;
use rules::Rules;
use score::Finds;
use spread::Counter;
use topology::{Carriers, Step, Tally, slot};
use volumes::Attached;

/// A node as the scheduler sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleNode {
    /// Name.
    pub name: NodeName,
    /// Labels; `kubernetes.io/hostname` as well, which the kubelet sets on real nodes.
    pub labels: Labels,
    /// Taints; the one that mirrors `unschedulable` may be left out.
    pub taints: Vec<Taint>,
    /// What pods may use, `pods` included; how many volumes of a driver it attaches stands under
    /// [`attach_resource`], no such amount meaning no limit.
    ///
    /// [`attach_resource`]: crate::storage::attach_resource
    pub allocatable: Resources,
    /// Whether the node is cordoned.
    pub unschedulable: bool,
}

/// A node of a [`Scheduler`]; stays valid, and is not given out again, after the node was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(usize);

impl NodeIndex {
    /// Returns its number: nodes are numbered from 0 in the order in which they were added.
    #[must_use]
    pub fn number(self) -> usize {
        self.0
    }
}

/// Pods of one shape and workload, known to a [`Scheduler`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassIndex(usize);

/// Nodes, the pods bound to them, and everything the next decision depends on.
///
/// Cloning gives an independent scheduler in the same state, and is cheap: nodes and rules are
/// shared until one of the two changes them.
#[derive(Debug, Clone)]
pub struct Scheduler {
    ground: Arc<Ground>,
    order: Arc<NodeOrder>,
    rules: Arc<Rules>,
    loads: Vec<Load>,
    /// Rises with every change of a node; never 0.
    versions: Vec<u32>,
    /// The pods of each set on each node; nodes beyond the end have none.
    on_node: Vec<Vec<u32>>,
    /// The bound pods of each class.
    pods_of: Vec<u32>,
    tallies: Vec<Tally>,
    carriers: Vec<Carriers>,
    counters: Vec<Counter>,
    nominations: Vec<(usize, usize)>,
    budgets: Vec<Budget>,
    attached: Attached,
    rows: Rows,
    finds: Finds,
    /// Rises with everything that may make room where there was none.
    eased: u64,
    /// What that was when a class found no node.
    hopeless: Vec<Option<u64>>,
    balance: Balance,
    ties: Ties,
    /// Where the next search begins.
    start: usize,
    tries: u64,
    bound: u64,
    rng: Pcg64,
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
            ground: Arc::default(),
            order: Arc::default(),
            rules: Arc::new(Rules::new(NamespaceLabels::new(namespaces))),
            loads: Vec::new(),
            versions: Vec::new(),
            on_node: Vec::new(),
            pods_of: Vec::new(),
            tallies: Vec::new(),
            carriers: Vec::new(),
            counters: Vec::new(),
            nominations: Vec::new(),
            budgets: Vec::new(),
            attached: Attached::default(),
            rows: Rows::default(),
            finds: Finds::default(),
            eased: 0,
            hopeless: Vec::new(),
            balance: Balance::default(),
            ties: Ties::default(),
            start: 0,
            tries: 0,
            bound: 0,
            rng: Pcg64::seed_from_u64(seed),
        };
        scheduler.add_nodes(nodes);
        scheduler
    }

    /// Returns the scheduler with another rule for balanced allocation.
    #[must_use]
    pub fn with_balance(mut self, balance: Balance) -> Self {
        self.balance = balance;
        self.rows.forget();
        self
    }

    /// Returns the scheduler with ties between nodes broken in another way.
    #[must_use]
    pub fn with_ties(mut self, ties: Ties) -> Self {
        self.ties = ties;
        self
    }

    /// Returns the scheduler with its ties between nodes drawn from another seed on.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.rng = Pcg64::seed_from_u64(seed);
        self
    }

    /// Returns the scheduler with zones, and nodes within them, tried in an order drawn from this
    /// seed: nobody knows beforehand what nodes will be called, nor which comes up first.
    #[must_use]
    pub fn with_nodes_shuffled(mut self, seed: u64) -> Self {
        Arc::make_mut(&mut self.order).shuffle(&mut Pcg64::seed_from_u64(seed));
        self
    }

    /// Returns the scheduler with disruption budgets, which preemption prefers not to break.
    #[must_use]
    pub fn with_budgets(mut self, budgets: Vec<Budget>) -> Self {
        self.budgets = budgets;
        self
    }

    /// Adds a node, without pods; a node of that name that is there already is returned as it is.
    pub fn add_node(&mut self, node: ScheduleNode) -> NodeIndex {
        let index = self.enlist(node);
        Arc::make_mut(&mut self.order).interleave();
        index
    }

    /// Adds nodes, without pods, in their order; quicker than one by one.
    pub fn add_nodes(&mut self, nodes: impl IntoIterator<Item = ScheduleNode>) -> Vec<NodeIndex> {
        let added = nodes.into_iter().map(|node| self.enlist(node)).collect();
        Arc::make_mut(&mut self.order).interleave();
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
        if self.ground.present[index] {
            Arc::make_mut(&mut self.ground).remove(index);
            Arc::make_mut(&mut self.order).remove(index);
            self.recount(index);
        }
        orphans
    }

    /// Cordons a node, or lifts the cordon.
    pub fn set_unschedulable(&mut self, node: NodeIndex, unschedulable: bool) {
        let NodeIndex(index) = node;
        Arc::make_mut(&mut self.ground).set_unschedulable(index, unschedulable);
        self.recount(index);
    }

    /// Returns the node of that name.
    #[must_use]
    pub fn node(&self, name: &NodeName) -> Option<NodeIndex> {
        self.ground.by_name.get(name).copied().map(NodeIndex)
    }

    /// Returns the nodes that are there, in the order in which they were added.
    pub fn nodes(&self) -> impl Iterator<Item = NodeIndex> {
        let here = |index: &usize| self.ground.present[*index];
        (0..self.loads.len()).filter(here).map(NodeIndex)
    }

    /// Returns the name of a node.
    #[must_use]
    pub fn name(&self, node: NodeIndex) -> &NodeName {
        &self.ground.nodes[node.0].name
    }

    /// Returns the pods bound to a node, the longest bound first.
    pub fn pods_on(&self, node: NodeIndex) -> impl Iterator<Item = ClassIndex> {
        self.loads[node.0].pods().iter().map(|bound| ClassIndex(bound.class))
    }

    /// Returns the shape of a class.
    #[must_use]
    pub fn shape(&self, class: ClassIndex) -> &Arc<PodShape> {
        &self.rules.classes[class.0].shape
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
    /// When no node fits: how many nodes each reason ruled out. Where the reasons do not matter,
    /// [`Scheduler::try_schedule`] does not work them out.
    pub fn schedule(
        &mut self,
        class: ClassIndex,
        nominated: Option<NodeIndex>,
    ) -> Result<NodeIndex, Unfit> {
        self.try_schedule(class, nominated).ok_or_else(|| self.explain(class.0))
    }

    /// Finds a node for a pod and binds the pod to it; `None` when no node fits.
    pub fn try_schedule(
        &mut self,
        class: ClassIndex,
        nominated: Option<NodeIndex>,
    ) -> Option<NodeIndex> {
        // A pod's own nomination holds nothing against it, and ends either way.
        let nominated = nominated.map(|node| {
            self.withdraw(class, node);
            node.0
        });
        let node = NodeIndex(self.choose(class.0, nominated)?);
        self.bind(class, node);
        Some(node)
    }

    /// Returns whether a pod of this class may run on `node` now.
    ///
    /// # Errors
    /// The reasons of the first filter that fails; several only where several resources are short.
    pub fn fits(&self, class: ClassIndex, node: NodeIndex) -> Result<(), Vec<UnfitReason>> {
        let reasons = self.gate(class.0).reasons(node.0);
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    /// Returns how often a node was tried by a pod so far: the work done, whatever the machine.
    #[must_use]
    pub fn tries(&self) -> u64 {
        self.tries
    }

    fn enlist(&mut self, node: ScheduleNode) -> NodeIndex {
        if let Some(index) = self.ground.by_name.get(&node.name) {
            return NodeIndex(*index);
        }
        self.loads.push(Load::new(&node.allocatable, &self.rules.columns));
        self.versions.push(1);
        self.eased += 1;
        Arc::make_mut(&mut self.order).add(self.ground.nodes.len(), &node.labels);
        NodeIndex(Arc::make_mut(&mut self.ground).add(node))
    }

    /// Judges anew for which spread constraints `node` counts, after it changed.
    fn recount(&mut self, node: usize) {
        self.versions[node] += 1;
        self.eased += 1;
        for (counting, step) in Arc::make_mut(&mut self.ground).recount(node) {
            for (counter, (set, arena)) in self.counters.iter_mut().zip(&self.rules.counters) {
                let arena = &self.ground.arenas[*arena];
                let domain = self.ground.topologies[arena.topology].domain(node);
                if let Some(domain) = domain.filter(|_| arena.counting == counting) {
                    let pods = self.on_node[*set].get(node).copied().unwrap_or(0);
                    (0..pods).for_each(|_| counter.step(domain, step));
                }
            }
        }
    }

    fn place(&mut self, node: usize, bound: Bound) {
        let local = &self.rules.locals[self.rules.classes[bound.class].local];
        self.loads[node].place(bound, &local.request, &local.ports);
        self.tell(node, bound.class, Step::Bind);
    }

    fn lift(&mut self, node: usize, bound: Bound) {
        let local = &self.rules.locals[self.rules.classes[bound.class].local];
        self.loads[node].lift(bound, &local.request, &local.ports);
        self.eased += 1;
        self.tell(node, bound.class, Step::Unbind);
    }

    /// Keeps every count that a pod of this class on this node is part of.
    fn tell(&mut self, node: usize, class: usize, step: Step) {
        let Self { rules, ground, on_node, tallies, carriers, counters, attached, .. } = self;
        self.versions[node] += 1;
        step.count(&mut self.pods_of[class]);
        let class = &rules.classes[class];
        attached.step(node, &class.mounts, &rules.volumes, step);
        for set in &class.member_of {
            let listeners = &rules.sets[*set];
            for tally in &listeners.tallies {
                let tally = &mut tallies[*tally];
                tally.step(ground.topologies[tally.topology].domain(node), step);
            }
            if class.stopping {
                continue;
            }
            step.count(slot(&mut on_node[*set], node));
            for counter in &listeners.counters {
                let (_, arena) = rules.counters[*counter];
                if let Some(domain) = ground.counted_domain(arena, node) {
                    counters[*counter].step(domain, step);
                }
            }
        }
        for (index, role) in &class.carries {
            let carriers = &mut carriers[*index];
            carriers.step(ground.topologies[carriers.topology].domain(node), *role, step);
        }
    }
}
