//! Compiles pod shapes: everything that can be computed before a pod is scheduled.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::node_local::NodeLocalFilter;
use super::node_usage::{HostPortKey, NodeUsage, PodRequest};
use super::pod_selection::{PodSelector, PodSet};
use super::topology::{CountUpdate, DomainPodCounts, TermCarriers, TermRole};
use super::topology_spread::{CountingPolicy, DomainCounter, SpreadConstraint};
use super::volumes::PodMounts;
use super::{ClassIndex, Scheduler};
use crate::demand::PodShape;
use crate::model::ids::{LabelKey, WorkloadId};
use crate::model::pod::{
    NodeInclusion, PodAffinity, PodAffinityTerm, TopologySpread, WhenUnsatisfiable,
};
use crate::model::requirement::key;
use crate::model::storage::is_attach_resource;
use crate::model::units::ResourceName;

/// Weight of required affinity of running pods for the pods that it selects. Source:
/// `pkg/scheduler/apis/config/v1/defaults.go`.
const HARD_AFFINITY_WEIGHT: i64 = 1;

/// Default spread constraints of pods with a controller and no constraints: key, skew. Source:
/// `pkg/scheduler/framework/plugins/podtopologyspread/plugin.go`.
const SYSTEM_SPREAD: [(&str, i32); 2] = [(key::HOSTNAME, 3), (key::ZONE, 5)];

/// Required affinity to other pods.
#[derive(Debug, Clone)]
pub(super) struct RequiredAffinity {
    /// Counts of the pods that all terms select, one for each topology key of the terms.
    pub(super) tallies: Vec<usize>,
    /// True if all terms select the pod itself.
    pub(super) selects_itself: bool,
}

/// A compiled class of pods: one shape and workload.
#[derive(Debug, Clone)]
pub(super) struct PodClass {
    pub(super) shape: Arc<PodShape>,
    pub(super) owner: Option<WorkloadId>,
    /// True if its pods are terminating: spreading no longer counts them.
    pub(super) stopping: bool,
    /// Node-local requirements.
    pub(super) node_local: usize,
    pub(super) volumes: PodMounts,
    /// Pod sets that include pods of this class.
    pub(super) member_of: Vec<usize>,
    /// Own terms and their effect on other pods.
    pub(super) carried_terms: Vec<(usize, TermRole)>,
    pub(super) affinity: Option<RequiredAffinity>,
    /// Counts of pods whose domains it must avoid.
    pub(super) avoided: Vec<usize>,
    /// Counts of pods that it prefers near (or far, with a negative weight), with weights.
    pub(super) preferred: Vec<(usize, i64)>,
    /// Spread constraints with `DoNotSchedule`.
    pub(super) hard_spread: Vec<SpreadConstraint>,
    /// Spread constraints with `ScheduleAnyway`.
    pub(super) soft_spread: Vec<SpreadConstraint>,
    /// True if nodes without a key of the soft constraints are not scored by them.
    pub(super) soft_needs_keys: bool,
}

impl PodClass {
    /// Returns true if another bound pod can never make a node feasible for this class.
    pub(super) fn only_loses(&self) -> bool {
        // A volume that another pod attaches is not attached again.
        self.affinity.is_none() && self.hard_spread.is_empty() && self.volumes.is_none()
    }
}

impl Scheduler {
    /// Adds the class of pods of `shape`; equal shape and owner give the same class.
    ///
    /// The owner is the workload at the top of the pod's owner chain. It decides whether pods
    /// without spread constraints are spread by default, and which pods count: pods of that owner
    /// with equal labels.
    pub fn class(&mut self, shape: &Arc<PodShape>, owner: Option<&WorkloadId>) -> ClassIndex {
        self.find_or_add_class(shape, owner, false)
    }

    /// Adds a class of terminating pods, to be bound where they still run. They use resources,
    /// affinity sees them, and spreading does not count them.
    ///
    /// Add the classes of arriving pods before terminating pods are bound. Source:
    /// `pkg/scheduler/framework/plugins/podtopologyspread/common.go`, `countPodsMatchSelector`.
    pub fn stopping_class(
        &mut self,
        shape: &Arc<PodShape>,
        owner: Option<&WorkloadId>,
    ) -> ClassIndex {
        self.find_or_add_class(shape, owner, true)
    }

    /// Returns the class of terminating pods with the shape and owner of `class`.
    pub fn stopping_class_of(&mut self, class: ClassIndex) -> ClassIndex {
        let PodClass { shape, owner, .. } = &self.registry.classes[class.0];
        let (shape, owner) = (Arc::clone(shape), owner.clone());
        self.stopping_class(&shape, owner.as_ref())
    }

    fn find_or_add_class(
        &mut self,
        shape: &Arc<PodShape>,
        owner: Option<&WorkloadId>,
        stopping: bool,
    ) -> ClassIndex {
        let known = (Arc::clone(shape), owner.cloned(), stopping);
        if let Some(index) = self.registry.class_index.get(&known) {
            return ClassIndex(*index);
        }
        let bare = PodClass { stopping, ..self.class_without_rules(shape, owner) };
        let index = Arc::make_mut(&mut self.registry).add_class(bare);
        self.bound_by_class.push(0);
        self.unschedulable_at.push(None);
        self.compile_affinity(index, shape);
        self.compile_spread(index, shape);
        ClassIndex(index)
    }

    fn class_mut(&mut self, class: usize) -> &mut PodClass {
        &mut Arc::make_mut(&mut self.registry).classes[class]
    }

    fn class_without_rules(
        &mut self,
        shape: &Arc<PodShape>,
        owner: Option<&WorkloadId>,
    ) -> PodClass {
        // Volumes have a separate filter that counts each one.
        let asked = shape.requests.extended.iter();
        let asked = asked.filter(|(name, amount)| **amount > 0 && !is_attach_resource(name));
        let extended = asked.map(|(name, amount)| (self.column(name), *amount)).collect();
        let local = NodeLocalFilter {
            views: Arc::make_mut(&mut self.nodes).view(&shape.nodes, &shape.tolerations),
            request: PodRequest::new(shape, extended),
            ports: shape.host_ports.iter().filter_map(HostPortKey::new).collect(),
        };
        let mounts = Arc::make_mut(&mut self.registry).volumes.compile(&shape.volumes);
        PodClass {
            shape: Arc::clone(shape),
            owner: owner.cloned(),
            stopping: false,
            node_local: Arc::make_mut(&mut self.registry).node_local(local),
            volumes: mounts,
            member_of: Vec::new(),
            carried_terms: Vec::new(),
            affinity: None,
            avoided: Vec::new(),
            preferred: Vec::new(),
            hard_spread: Vec::new(),
            soft_spread: Vec::new(),
            soft_needs_keys: true,
        }
    }

    fn column(&mut self, name: &ResourceName) -> usize {
        if let Some(index) = self.registry.columns.iter().position(|known| known == name) {
            return index;
        }
        let offered = self.nodes.nodes.iter().map(|node| node.allocatable.extended(name));
        self.usage.iter_mut().zip(offered).for_each(|(load, has)| load.add_column(has));
        Arc::make_mut(&mut self.registry).columns.push(name.clone());
        self.registry.columns.len() - 1
    }

    fn compile_affinity(&mut self, index: usize, shape: &PodShape) {
        let PodAffinity { required, preferred } = &shape.affinity;
        let PodAffinity { required: anti_required, preferred: anti_preferred } =
            &shape.anti_affinity;
        if !required.is_empty() {
            let affinity = self.required_affinity(index, required, shape);
            self.class_mut(index).affinity = Some(affinity);
        }
        for term in required {
            self.carry_term(index, term, shape, TermRole::Pull(HARD_AFFINITY_WEIGHT));
        }
        for term in anti_required {
            let tally = self.term_tally(term, shape);
            self.class_mut(index).avoided.push(tally);
            self.carry_term(index, term, shape, TermRole::Repel);
        }
        let near = preferred.iter().map(|(weight, term)| (i64::from(*weight), term));
        let far = anti_preferred.iter().map(|(weight, term)| (-i64::from(*weight), term));
        for (weight, term) in near.chain(far) {
            let tally = self.term_tally(term, shape);
            self.class_mut(index).preferred.push((tally, weight));
            self.carry_term(index, term, shape, TermRole::Pull(weight));
        }
    }

    fn required_affinity(
        &mut self,
        index: usize,
        terms: &[PodAffinityTerm],
        shape: &PodShape,
    ) -> RequiredAffinity {
        let all: Option<Vec<PodSelector>> =
            terms.iter().map(|term| PodSelector::from_term(term, shape)).collect();
        // If one term selects no pod, no pod matches all terms.
        let set = self.set(PodSet::Selected(all.unwrap_or_default()));
        let keys: BTreeSet<&LabelKey> = terms.iter().map(|term| &term.topology_key).collect();
        let tallies = keys.into_iter().map(|key| self.tally(set, key)).collect();
        RequiredAffinity {
            tallies,
            selects_itself: self.registry.classes[index].member_of.contains(&set),
        }
    }

    fn term_tally(&mut self, term: &PodAffinityTerm, shape: &PodShape) -> usize {
        let set = self.set(PodSet::one(PodSelector::from_term(term, shape)));
        self.tally(set, &term.topology_key)
    }

    fn carry_term(
        &mut self,
        index: usize,
        term: &PodAffinityTerm,
        shape: &PodShape,
        role: TermRole,
    ) {
        let set = self.set(PodSet::one(PodSelector::from_term(term, shape)));
        let topology = Arc::make_mut(&mut self.nodes).topology(&term.topology_key);
        let mut known = self.registry.sets[set].term_carriers.iter().copied();
        let carriers = known.find(|carriers| self.term_carriers[*carriers].topology == topology);
        let carriers = carriers.unwrap_or_else(|| {
            self.term_carriers.push(TermCarriers::new(topology));
            let carriers = self.term_carriers.len() - 1;
            Arc::make_mut(&mut self.registry).sets[set].term_carriers.push(carriers);
            carriers
        });
        self.class_mut(index).carried_terms.push((carriers, role));
    }

    fn compile_spread(&mut self, index: usize, shape: &PodShape) {
        if !shape.spread.is_empty() {
            let set = |rule: &TopologySpread| PodSet::one(PodSelector::from_spread(rule, shape));
            self.compile_constraints(index, &shape.spread, set, true);
            return;
        }
        let owner = self.registry.classes[index].owner.clone();
        let owner = owner.filter(|owner| owner.kind.is_spread_by_default());
        let Some(owner) = owner.filter(|_| shape.default_spread.is_none()) else { return };
        let rules = SYSTEM_SPREAD.map(|(key, max_skew)| system_spread(key, max_skew));
        let siblings = PodSet::Siblings(owner, shape.labels.clone());
        self.compile_constraints(index, &rules, |_| siblings.clone(), false);
    }

    /// Compiles the spread constraints of a class. Constraints of one kind belong together: a node
    /// counts only if it has the keys of all of them.
    fn compile_constraints(
        &mut self,
        index: usize,
        rules: &[TopologySpread],
        set: impl Fn(&TopologySpread) -> PodSet,
        soft_needs_keys: bool,
    ) {
        let of_kind = |when| rules.iter().filter(move |rule| rule.when_unsatisfiable == when);
        let hard: Vec<_> = of_kind(WhenUnsatisfiable::DoNotSchedule).collect();
        let soft: Vec<_> = of_kind(WhenUnsatisfiable::ScheduleAnyway).collect();
        let hard_spread = self.spreads(index, &hard, &set, true);
        let soft_spread = self.spreads(index, &soft, &set, soft_needs_keys);
        let class = self.class_mut(index);
        (class.hard_spread, class.soft_spread) = (hard_spread, soft_spread);
        class.soft_needs_keys = soft_needs_keys;
    }

    fn spreads(
        &mut self,
        index: usize,
        rules: &[&TopologySpread],
        set: &impl Fn(&TopologySpread) -> PodSet,
        needs_keys: bool,
    ) -> Vec<SpreadConstraint> {
        let ground = Arc::make_mut(&mut self.nodes);
        let topologies: Vec<usize> =
            rules.iter().map(|rule| ground.topology(&rule.topology_key)).collect();
        let keys: BTreeSet<usize> = topologies.iter().copied().filter(|_| needs_keys).collect();
        let keys: Vec<usize> = keys.into_iter().collect();
        let whole = |n: i32| u32::try_from(n).unwrap_or(0);
        let mut spreads = Vec::new();
        for (rule, topology) in rules.iter().zip(topologies) {
            let set = self.set(set(rule));
            let class = &self.registry.classes[index];
            let counts_itself = class.member_of.contains(&set);
            let policies = [rule.node_affinity_policy, rule.node_taints_policy];
            let sees = policies.contains(&NodeInclusion::Honor);
            let counting = CountingPolicy {
                views: sees.then_some(self.registry.node_locals[class.node_local].views),
                affinity: rule.node_affinity_policy,
                taints: rule.node_taints_policy,
                keys: keys.clone(),
            };
            let arena = Arc::make_mut(&mut self.nodes).eligible_domains(counting, topology);
            let counter = self.counter(set, arena);
            let max_skew = whole(rule.max_skew);
            let min_domains = whole(rule.min_domains.unwrap_or(1)).max(1);
            spreads.push(SpreadConstraint {
                set,
                counter,
                eligible_domains: arena,
                topology,
                max_skew,
                min_domains,
                selects_itself: counts_itself,
            });
        }
        spreads
    }

    fn counter(&mut self, set: usize, arena: usize) -> usize {
        let mut known = self.registry.sets[set].spread_counters.iter().copied();
        if let Some(index) =
            known.find(|counter| self.registry.spread_counters[*counter].1 == arena)
        {
            return index;
        }
        let mut counter = DomainCounter::new();
        for (node, pods) in self.pods_on_node[set].iter().enumerate() {
            let domain = self.nodes.counted_domain(arena, node);
            if let Some(domain) = domain {
                counter.add(domain, *pods);
            }
        }
        self.spread_counters.push(counter);
        let index = self.spread_counters.len() - 1;
        let rules = Arc::make_mut(&mut self.registry);
        rules.spread_counters.push((set, arena));
        rules.sets[set].spread_counters.push(index);
        index
    }

    fn tally(&mut self, set: usize, key: &LabelKey) -> usize {
        let topology = Arc::make_mut(&mut self.nodes).topology(key);
        let mut known = self.registry.sets[set].pod_counts.iter().copied();
        if let Some(tally) = known.find(|tally| self.pod_counts[*tally].topology == topology) {
            return tally;
        }
        let mut tally = DomainPodCounts::new(topology);
        for (node, pods) in self.pods_on_node[set].iter().enumerate() {
            let domain = self.nodes.topologies[topology].domain(node);
            (0..*pods).for_each(|_| tally.update(domain, CountUpdate::Add));
        }
        self.pod_counts.push(tally);
        let index = self.pod_counts.len() - 1;
        Arc::make_mut(&mut self.registry).sets[set].pod_counts.push(index);
        index
    }

    /// Adds a pod set and counts the pods that are already bound.
    fn set(&mut self, set: PodSet) -> usize {
        let (index, members) = Arc::make_mut(&mut self.registry).set(set);
        if index == self.pods_on_node.len() {
            let running = members.iter().any(|class| self.bound_by_class[*class] > 0);
            let mut inside = vec![false; self.registry.classes.len()];
            for class in members.into_iter().filter(|class| !self.registry.classes[*class].stopping)
            {
                inside[class] = true;
            }
            let counted = |load: &NodeUsage| {
                load.pods().iter().filter(|pod| inside[pod.class]).fold(0, |sum, _| sum + 1)
            };
            let on_node = if running { self.usage.iter().map(counted).collect() } else { vec![] };
            self.pods_on_node.push(on_node);
        }
        index
    }
}

fn system_spread(key: &str, max_skew: i32) -> TopologySpread {
    TopologySpread {
        max_skew,
        topology_key: key.into(),
        when_unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
        selector: None,
        match_label_keys: Vec::new(),
        min_domains: None,
        node_affinity_policy: NodeInclusion::Honor,
        node_taints_policy: NodeInclusion::Ignore,
    }
}
