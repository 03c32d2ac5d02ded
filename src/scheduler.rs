//! Model of kube-scheduler: computes the node that its default profile chooses for each pod.
//!
//! The model covers the order of the scheduling queue, filters, score plugins with weights and
//! normalization, the number and order of nodes searched, and preemption. Semantics are those of
//! Kubernetes 1.36, or of versions up to 1.35 with [`BalanceScoring::Evenness`]. Equal calls in
//! equal order with an equal seed give equal results: the seed only decides ties between nodes of
//! equal score.
//!
//! The scheduler does not know manifests, prices, instance types or time. It omits image locality
//! (images on nodes are unknown, so every node scores 0), dynamic resources, scheduling gates, and
//! batches of equal pods that share one round of scores: 1.36 batches pods that fill a node, and
//! each is scored separately here. Services are unknown as well: a Service that selects the pods of
//! a Job, or bare pods, would spread them by default.
//!
//! Namespace selectors of pod affinity follow the documentation. In 1.34 to 1.36.2, a selector that
//! matches a namespace without labels matches every namespace (kubernetes#141526).
//!
//! Invariant: every count that filters and scores read is updated with each pod that is bound or
//! removed, so that trying a node never reads the pods of other nodes. Node-local results are
//! cached until the node changes, and a search skips the nodes that are known to fail. Tests check
//! both against a reference that counts again for each pod: every choice is the same.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//! use fleetwright::scheduler::{ScheduleNode, Scheduler};
//! # use fleetwright::demand::{NodeChoice, PodShape};
//! # use fleetwright::model::ids::Labels;
//! # use fleetwright::model::pod::PodAffinity;
//! # use fleetwright::model::requirement::Requirements;
//! # use fleetwright::model::units::{Bytes, MilliCpu, Resources};
//! # let resources = |cpu, pods| Resources {
//! #     cpu: MilliCpu(cpu), memory: Bytes::gib(pods), pods, ..Resources::default()
//! # };
//! # let shape = Arc::new(PodShape {
//! #     namespace: "default".into(), labels: Labels::default(), requests: resources(600, 1),
//! #     presumed: Resources::default(),
//! #     nodes: NodeChoice { any_of: vec![Requirements::default()], ..NodeChoice::default() },
//! #     tolerations: vec![], host_ports: vec![], spread: vec![], affinity: PodAffinity::default(),
//! #     anti_affinity: PodAffinity::default(), volumes: vec![], priority: 0, preempts: true,
//! #     do_not_disrupt: false, unsupported: vec![], default_spread: None,
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

mod filter;
mod node_local;
mod node_order;
mod node_table;
mod node_usage;
mod node_view;
mod nomination;
mod pod_class;
mod pod_registry;
mod pod_selection;
mod preemption;
mod queue;
mod resource_score;
mod score;
mod select_host;
#[cfg(test)]
mod tests;
mod topology;
mod topology_spread;
mod unfit;
mod unfit_nodes;
mod volumes;

pub use pod_selection::{NamespaceLabels, PodSelector};
pub use preemption::{EvictionBudget, Preemption};
pub use queue::{PendingPod, queue_order};
pub use resource_score::BalanceScoring;
pub use select_host::TieBreaking;
pub use unfit::{Unfit, UnfitReason};

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::SeedableRng;
use rand_pcg::Pcg64;

use crate::demand::PodShape;
use crate::model::ids::{Labels, Namespace, NodeName};
use crate::model::pod::Taint;
use crate::model::units::Resources;

use node_local::ScoreCache;
use node_order::NodeOrder;
use node_table::NodeTable;
use node_usage::{BoundPod, NodeUsage};
use pod_registry::PodRegistry;
use score::FeasibleNodes;
use topology::{CountUpdate, DomainPodCounts, TermCarriers, slot_mut};
use topology_spread::DomainCounter;
use unfit_nodes::UnfitNodes;
use volumes::AttachedVolumes;

/// A node as the scheduler sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleNode {
    /// Name.
    pub name: NodeName,
    /// Labels, including `kubernetes.io/hostname`, which the kubelet sets on real nodes.
    pub labels: Labels,
    /// Taints; the taint that mirrors `unschedulable` may be omitted.
    pub taints: Vec<Taint>,
    /// Resources for pods, including `pods`. The number of attachable volumes of a driver is under
    /// [`attach_resource`]; without that entry there is no limit.
    ///
    /// [`attach_resource`]: crate::model::storage::attach_resource
    pub allocatable: Resources,
    /// True if the node is cordoned.
    pub unschedulable: bool,
}

/// Index of a node of a [`Scheduler`]. It stays valid, and is not reused, after the node is
/// removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(usize);

impl NodeIndex {
    /// Returns the number of the node; nodes are numbered from 0 in the order of their addition.
    pub fn number(self) -> usize {
        self.0
    }
}

/// Index of a class of pods: pods of one shape and workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassIndex(usize);

/// Nodes, their bound pods, and all other state of the next decision.
///
/// A clone is an independent scheduler in the same state. It is cheap: nodes and classes are shared
/// until either scheduler changes them.
#[derive(Debug, Clone)]
pub struct Scheduler {
    nodes: Arc<NodeTable>,
    order: Arc<NodeOrder>,
    registry: Arc<PodRegistry>,
    usage: Vec<NodeUsage>,
    /// Increases with every change of a node; never 0.
    versions: Vec<u32>,
    /// Number of pods of each set on each node; nodes beyond the end have none.
    pods_on_node: Vec<Vec<u32>>,
    /// Number of bound pods of each class.
    bound_by_class: Vec<u32>,
    pod_counts: Vec<DomainPodCounts>,
    term_carriers: Vec<TermCarriers>,
    spread_counters: Vec<DomainCounter>,
    nominations: Vec<(usize, usize)>,
    budgets: Vec<EvictionBudget>,
    attached_volumes: AttachedVolumes,
    score_cache: ScoreCache,
    unfit_nodes: UnfitNodes,
    feasible: FeasibleNodes,
    /// Increases with every change that may make room for a pod.
    room_version: u64,
    /// By class: the room version at which no node fit.
    unschedulable_at: Vec<Option<u64>>,
    balance: BalanceScoring,
    ties: TieBreaking,
    /// Start of the next search.
    search_start: usize,
    tries: u64,
    bind_count: u64,
    rng: Pcg64,
}

impl Scheduler {
    /// Returns a scheduler over `nodes`, tried in the given order within their zone. Namespaces
    /// that are not listed have no labels except their name. Of nodes with equal names only the
    /// first counts.
    pub fn new(
        nodes: Vec<ScheduleNode>,
        namespaces: &BTreeMap<Namespace, Labels>,
        seed: u64,
    ) -> Self {
        let mut scheduler = Self {
            nodes: Arc::default(),
            order: Arc::default(),
            registry: Arc::new(PodRegistry::new(NamespaceLabels::new(namespaces))),
            usage: Vec::new(),
            versions: Vec::new(),
            pods_on_node: Vec::new(),
            bound_by_class: Vec::new(),
            pod_counts: Vec::new(),
            term_carriers: Vec::new(),
            spread_counters: Vec::new(),
            nominations: Vec::new(),
            budgets: Vec::new(),
            attached_volumes: AttachedVolumes::default(),
            score_cache: ScoreCache::default(),
            unfit_nodes: UnfitNodes::default(),
            feasible: FeasibleNodes::default(),
            room_version: 0,
            unschedulable_at: Vec::new(),
            balance: BalanceScoring::default(),
            ties: TieBreaking::default(),
            search_start: 0,
            tries: 0,
            bind_count: 0,
            rng: Pcg64::seed_from_u64(seed),
        };
        scheduler.add_nodes(nodes);
        scheduler
    }

    /// Returns the scheduler with this rule of balanced allocation.
    #[must_use]
    pub fn with_balance(mut self, balance: BalanceScoring) -> Self {
        self.balance = balance;
        self.score_cache.clear();
        self
    }

    /// Returns the scheduler with this tie-breaking.
    #[must_use]
    pub fn with_ties(mut self, ties: TieBreaking) -> Self {
        self.ties = ties;
        self
    }

    /// Returns the scheduler with another seed for ties.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.rng = Pcg64::seed_from_u64(seed);
        self
    }

    /// Returns the scheduler with zones, and nodes within zones, in a random order from this seed:
    /// names and start order of new nodes are unknown.
    #[must_use]
    pub fn with_nodes_shuffled(mut self, seed: u64) -> Self {
        Arc::make_mut(&mut self.order).shuffle(&mut Pcg64::seed_from_u64(seed));
        self
    }

    /// Returns the scheduler with disruption budgets, which preemption avoids to violate.
    #[must_use]
    pub fn with_budgets(mut self, budgets: Vec<EvictionBudget>) -> Self {
        self.budgets = budgets;
        self
    }

    /// Adds a node without pods. If a node of that name exists, returns it unchanged.
    pub fn add_node(&mut self, node: ScheduleNode) -> NodeIndex {
        let index = self.insert_node(node);
        Arc::make_mut(&mut self.order).interleave();
        index
    }

    /// Adds nodes without pods, in order; faster than one by one.
    pub fn add_nodes(&mut self, nodes: impl IntoIterator<Item = ScheduleNode>) -> Vec<NodeIndex> {
        let added = nodes.into_iter().map(|node| self.insert_node(node)).collect();
        Arc::make_mut(&mut self.order).interleave();
        added
    }

    /// Removes a node and returns its pods, in the order in which they were bound.
    pub fn remove_node(&mut self, node: NodeIndex) -> Vec<ClassIndex> {
        let NodeIndex(index) = node;
        let mut orphans = Vec::new();
        while let Some(bound) = self.usage[index].last() {
            self.remove_pod(index, bound);
            orphans.push(ClassIndex(bound.class));
        }
        orphans.reverse();
        if self.nodes.present[index] {
            Arc::make_mut(&mut self.nodes).remove(index);
            Arc::make_mut(&mut self.order).remove(index);
            self.update_counting(index);
        }
        orphans
    }

    /// Cordons or uncordons a node.
    pub fn set_unschedulable(&mut self, node: NodeIndex, unschedulable: bool) {
        let NodeIndex(index) = node;
        Arc::make_mut(&mut self.nodes).set_unschedulable(index, unschedulable);
        self.update_counting(index);
    }

    /// Returns the node of that name.
    pub fn node(&self, name: &NodeName) -> Option<NodeIndex> {
        self.nodes.by_name.get(name).copied().map(NodeIndex)
    }

    /// Returns the existing nodes, in the order of their addition.
    pub fn nodes(&self) -> impl Iterator<Item = NodeIndex> {
        let here = |index: &usize| self.nodes.present[*index];
        (0..self.usage.len()).filter(here).map(NodeIndex)
    }

    /// Returns the name of a node.
    pub fn name(&self, node: NodeIndex) -> &NodeName {
        &self.nodes.nodes[node.0].name
    }

    /// Returns the pods bound to a node, in the order in which they were bound.
    pub fn pods_on(&self, node: NodeIndex) -> impl Iterator<Item = ClassIndex> {
        self.usage[node.0].pods().iter().map(|bound| ClassIndex(bound.class))
    }

    /// Returns the shape of a class.
    pub fn shape(&self, class: ClassIndex) -> &Arc<PodShape> {
        &self.registry.classes[class.0].shape
    }

    /// Binds a pod that runs on `node` already, without checks.
    pub fn bind(&mut self, class: ClassIndex, node: NodeIndex) {
        let bound = BoundPod { class: class.0, sequence: self.bind_count };
        self.bind_count += 1;
        self.add_pod(node.0, bound);
    }

    /// Unbinds the pod of this class that was bound to `node` last. Returns false if there is none.
    pub fn unbind(&mut self, class: ClassIndex, node: NodeIndex) -> bool {
        let found = self.usage[node.0].last_of(class.0);
        found.map(|bound| self.remove_pod(node.0, bound)).is_some()
    }

    /// Filters, scores and selects a node for a pod, and binds the pod to it.
    ///
    /// # Errors
    ///
    /// When no node fits: the number of nodes that each reason ruled out.
    /// [`Scheduler::try_schedule`] omits these reasons and is faster.
    pub fn schedule(
        &mut self,
        class: ClassIndex,
        nominated: Option<NodeIndex>,
    ) -> Result<NodeIndex, Unfit> {
        self.try_schedule(class, nominated).ok_or_else(|| self.explain(class.0))
    }

    /// Selects a node for a pod and binds the pod to it; `None` if no node fits.
    pub fn try_schedule(
        &mut self,
        class: ClassIndex,
        nominated: Option<NodeIndex>,
    ) -> Option<NodeIndex> {
        // A pod's own nomination does not block it, and ends in either case.
        let nominated = nominated.map(|node| {
            self.withdraw_nomination(class, node);
            node.0
        });
        let node = NodeIndex(self.select_host(class.0, nominated)?);
        self.bind(class, node);
        Some(node)
    }

    /// Returns true if a pod of this class that no node fits will not fit either once more pods are
    /// bound.
    pub fn stays_unschedulable(&self, class: ClassIndex) -> bool {
        self.registry.classes[class.0].only_loses()
    }

    /// Checks that a pod of this class may run on `node` now.
    ///
    /// # Errors
    ///
    /// The reasons of the first filter that fails; several only if several resources are short.
    pub fn fits(&self, class: ClassIndex, node: NodeIndex) -> Result<(), Vec<UnfitReason>> {
        let reasons = self.pod_filter(class.0).reasons(node.0);
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    /// Returns the number of node tries by pods so far, a measure of work that is independent of
    /// the computer.
    pub fn tries(&self) -> u64 {
        self.tries
    }

    fn insert_node(&mut self, node: ScheduleNode) -> NodeIndex {
        if let Some(index) = self.nodes.by_name.get(&node.name) {
            return NodeIndex(*index);
        }
        self.usage.push(NodeUsage::new(&node.allocatable, &self.registry.columns));
        self.versions.push(1);
        self.room_version += 1;
        Arc::make_mut(&mut self.order).add(self.nodes.nodes.len(), &node.labels);
        NodeIndex(Arc::make_mut(&mut self.nodes).add(node))
    }

    /// Updates the spread constraints that count `node`, after it changed.
    fn update_counting(&mut self, node: usize) {
        self.versions[node] += 1;
        self.room_version += 1;
        self.unfit_nodes.note_change(node);
        for (counting, step) in Arc::make_mut(&mut self.nodes).update_counting(node) {
            for (counter, (set, arena)) in
                self.spread_counters.iter_mut().zip(&self.registry.spread_counters)
            {
                let arena = &self.nodes.eligible_domains[*arena];
                let domain = self.nodes.topologies[arena.topology].domain(node);
                if let Some(domain) = domain.filter(|_| arena.policy == counting) {
                    let pods = self.pods_on_node[*set].get(node).copied().unwrap_or(0);
                    (0..pods).for_each(|_| counter.update(domain, step));
                }
            }
        }
    }

    fn add_pod(&mut self, node: usize, bound: BoundPod) {
        let local = &self.registry.node_locals[self.registry.classes[bound.class].node_local];
        self.usage[node].add(bound, &local.request, &local.ports);
        self.update_counts(node, bound.class, CountUpdate::Add);
    }

    fn remove_pod(&mut self, node: usize, bound: BoundPod) {
        let local = &self.registry.node_locals[self.registry.classes[bound.class].node_local];
        self.usage[node].remove(bound, &local.request, &local.ports);
        self.room_version += 1;
        self.unfit_nodes.note_change(node);
        self.update_counts(node, bound.class, CountUpdate::Remove);
    }

    /// Updates every count that a pod of this class on this node is part of.
    fn update_counts(&mut self, node: usize, class: usize, step: CountUpdate) {
        let Self {
            registry: rules,
            nodes: ground,
            pods_on_node: on_node,
            pod_counts: tallies,
            term_carriers: carriers,
            spread_counters: counters,
            attached_volumes: attached,
            ..
        } = self;
        self.versions[node] += 1;
        step.apply(&mut self.bound_by_class[class]);
        let class = &rules.classes[class];
        attached.update(node, &class.volumes, &rules.volumes, step);
        for set in &class.member_of {
            let listeners = &rules.sets[*set];
            for tally in &listeners.pod_counts {
                let tally = &mut tallies[*tally];
                tally.update(ground.topologies[tally.topology].domain(node), step);
            }
            if class.stopping {
                continue;
            }
            step.apply(slot_mut(&mut on_node[*set], node));
            for counter in &listeners.spread_counters {
                let (_, arena) = rules.spread_counters[*counter];
                if let Some(domain) = ground.counted_domain(arena, node) {
                    counters[*counter].update(domain, step);
                }
            }
        }
        for (index, role) in &class.carried_terms {
            let carriers = &mut carriers[*index];
            carriers.update(ground.topologies[carriers.topology].domain(node), *role, step);
        }
    }
}
