//! Compiles what pods ask for: everything that can be worked out before a pod has to be placed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::load::{Load, Port, Request};
use super::local::Local;
use super::pods::{PodSet, Selection};
use super::spread::{Counter, Counting, Spread};
use super::topology::{Carriers, Role, Step, Tally};
use super::volumes::Mounts;
use super::{ClassIndex, Scheduler};
use crate::demand::PodShape;
use crate::ids::{LabelKey, WorkloadId};
use crate::pod::{NodeInclusion, PodAffinity, PodAffinityTerm, TopologySpread, WhenUnsatisfiable};
use crate::requirement::key;
use crate::storage::is_attach_resource;
use crate::units::ResourceName;

/// The weight that required affinity of running pods has for pods that it selects.
/// Source: `pkg/scheduler/apis/config/v1/defaults.go`.
const HARD_AFFINITY_WEIGHT: i64 = 1;

/// Spreading that the scheduler adds to pods of controllers that ask for none: key, skew.
/// Source: `pkg/scheduler/framework/plugins/podtopologyspread/plugin.go`.
const SYSTEM_SPREAD: [(&str, i32); 2] = [(key::HOSTNAME, 3), (key::ZONE, 5)];

/// Required affinity to other pods.
#[derive(Debug, Clone)]
pub(super) struct Affinity {
    /// Pods that all terms select, one tally for each topology key among the terms.
    pub(super) tallies: Vec<usize>,
    /// Whether all terms select the pod itself.
    pub(super) selects_itself: bool,
}

/// Pods of one shape and workload, compiled.
#[derive(Debug, Clone)]
pub(super) struct Class {
    pub(super) shape: Arc<PodShape>,
    pub(super) owner: Option<WorkloadId>,
    /// Whether its pods are stopping: spreading counts them no more.
    pub(super) stopping: bool,
    /// What it asks of a node itself.
    pub(super) local: usize,
    pub(super) mounts: Mounts,
    /// The pod sets that count pods of this class.
    pub(super) member_of: Vec<usize>,
    /// What its own terms mean for others.
    pub(super) carries: Vec<(usize, Role)>,
    pub(super) affinity: Option<Affinity>,
    /// Tallies of pods whose domains it must avoid.
    pub(super) avoids: Vec<usize>,
    /// Tallies of pods that it wants near (or, below 0, far), with weights.
    pub(super) wishes: Vec<(usize, i64)>,
    /// Spread constraints that forbid.
    pub(super) hard_spread: Vec<Spread>,
    /// Spread constraints that score.
    pub(super) soft_spread: Vec<Spread>,
    /// Whether nodes without a key of the soft constraints are left out of their scores.
    pub(super) soft_needs_keys: bool,
}

impl Class {
    /// Returns whether another pod anywhere can only take nodes away from pods of this class.
    pub(super) fn only_loses(&self) -> bool {
        // A volume that another pod attaches need not be attached again.
        self.affinity.is_none() && self.hard_spread.is_empty() && self.mounts.is_none()
    }
}

impl Scheduler {
    /// Makes pods of `shape` known; the same shape and owner give the same class.
    ///
    /// The owner is the workload at the top of the pod's chain of owners. It decides whether pods
    /// that ask for no spreading are spread by default, and which pods count for that: the pods of
    /// that owner with the same labels.
    pub fn class(&mut self, shape: &Arc<PodShape>, owner: Option<&WorkloadId>) -> ClassIndex {
        self.class_of(shape, owner, false)
    }

    /// Makes pods of `shape` known that are stopping, to be bound where they still run: they use
    /// what they use, affinity sees them, and spreading counts them no more.
    ///
    /// Classes of pods that are yet to come have to be known before those that stop are bound.
    /// Source: `pkg/scheduler/framework/plugins/podtopologyspread/common.go`, `countPodsMatchSelector`.
    pub fn stopping_class(
        &mut self,
        shape: &Arc<PodShape>,
        owner: Option<&WorkloadId>,
    ) -> ClassIndex {
        self.class_of(shape, owner, true)
    }

    /// Returns the class of pods like these that are stopping.
    pub fn class_that_stops(&mut self, class: ClassIndex) -> ClassIndex {
        let Class { shape, owner, .. } = &self.rules.classes[class.0];
        let (shape, owner) = (Arc::clone(shape), owner.clone());
        self.stopping_class(&shape, owner.as_ref())
    }

    fn class_of(
        &mut self,
        shape: &Arc<PodShape>,
        owner: Option<&WorkloadId>,
        stopping: bool,
    ) -> ClassIndex {
        let known = (Arc::clone(shape), owner.cloned(), stopping);
        if let Some(index) = self.rules.class_index.get(&known) {
            return ClassIndex(*index);
        }
        let bare = Class { stopping, ..self.bare_class(shape, owner) };
        let index = Arc::make_mut(&mut self.rules).add_class(bare);
        self.pods_of.push(0);
        self.hopeless.push(None);
        self.compile_affinity(index, shape);
        self.compile_spread(index, shape);
        ClassIndex(index)
    }

    fn compiled(&mut self, class: usize) -> &mut Class {
        &mut Arc::make_mut(&mut self.rules).classes[class]
    }

    fn bare_class(&mut self, shape: &Arc<PodShape>, owner: Option<&WorkloadId>) -> Class {
        // Volumes are counted one by one, by a filter of their own.
        let asked = shape.requests.extended.iter();
        let asked = asked.filter(|(name, amount)| **amount > 0 && !is_attach_resource(name));
        let extended = asked.map(|(name, amount)| (self.column(name), *amount)).collect();
        let local = Local {
            view: Arc::make_mut(&mut self.ground).view(&shape.nodes, &shape.tolerations),
            request: Request::new(shape, extended),
            ports: shape.host_ports.iter().filter_map(Port::new).collect(),
        };
        let mounts = Arc::make_mut(&mut self.rules).volumes.compile(&shape.volumes);
        Class {
            shape: Arc::clone(shape),
            owner: owner.cloned(),
            stopping: false,
            local: Arc::make_mut(&mut self.rules).local(local),
            mounts,
            member_of: Vec::new(),
            carries: Vec::new(),
            affinity: None,
            avoids: Vec::new(),
            wishes: Vec::new(),
            hard_spread: Vec::new(),
            soft_spread: Vec::new(),
            soft_needs_keys: true,
        }
    }

    fn column(&mut self, name: &ResourceName) -> usize {
        if let Some(index) = self.rules.columns.iter().position(|known| known == name) {
            return index;
        }
        let offered = self.ground.nodes.iter().map(|node| node.allocatable.extended(name));
        self.loads.iter_mut().zip(offered).for_each(|(load, has)| load.add_column(has));
        Arc::make_mut(&mut self.rules).columns.push(name.clone());
        self.rules.columns.len() - 1
    }

    fn compile_affinity(&mut self, index: usize, shape: &PodShape) {
        let PodAffinity { required, preferred } = &shape.affinity;
        let PodAffinity { required: anti_required, preferred: anti_preferred } =
            &shape.anti_affinity;
        if !required.is_empty() {
            let affinity = self.required_affinity(index, required, shape);
            self.compiled(index).affinity = Some(affinity);
        }
        for term in required {
            self.carry(index, term, shape, Role::Pull(HARD_AFFINITY_WEIGHT));
        }
        for term in anti_required {
            let tally = self.term_tally(term, shape);
            self.compiled(index).avoids.push(tally);
            self.carry(index, term, shape, Role::Repel);
        }
        let near = preferred.iter().map(|(weight, term)| (i64::from(*weight), term));
        let far = anti_preferred.iter().map(|(weight, term)| (-i64::from(*weight), term));
        for (weight, term) in near.chain(far) {
            let tally = self.term_tally(term, shape);
            self.compiled(index).wishes.push((tally, weight));
            self.carry(index, term, shape, Role::Pull(weight));
        }
    }

    fn required_affinity(
        &mut self,
        index: usize,
        terms: &[PodAffinityTerm],
        shape: &PodShape,
    ) -> Affinity {
        let all: Option<Vec<Selection>> =
            terms.iter().map(|term| Selection::of_term(term, shape)).collect();
        // One term that selects nothing leaves nothing that all terms select.
        let set = self.set(PodSet::Selected(all.unwrap_or_default()));
        let keys: BTreeSet<&LabelKey> = terms.iter().map(|term| &term.topology_key).collect();
        let tallies = keys.into_iter().map(|key| self.tally(set, key)).collect();
        Affinity { tallies, selects_itself: self.rules.classes[index].member_of.contains(&set) }
    }

    fn term_tally(&mut self, term: &PodAffinityTerm, shape: &PodShape) -> usize {
        let set = self.set(PodSet::one(Selection::of_term(term, shape)));
        self.tally(set, &term.topology_key)
    }

    fn carry(&mut self, index: usize, term: &PodAffinityTerm, shape: &PodShape, role: Role) {
        let set = self.set(PodSet::one(Selection::of_term(term, shape)));
        let topology = Arc::make_mut(&mut self.ground).topology(&term.topology_key);
        let mut known = self.rules.sets[set].carriers.iter().copied();
        let carriers = known.find(|carriers| self.carriers[*carriers].topology == topology);
        let carriers = carriers.unwrap_or_else(|| {
            self.carriers.push(Carriers::new(topology));
            let carriers = self.carriers.len() - 1;
            Arc::make_mut(&mut self.rules).sets[set].carriers.push(carriers);
            carriers
        });
        self.compiled(index).carries.push((carriers, role));
    }

    fn compile_spread(&mut self, index: usize, shape: &PodShape) {
        if !shape.spread.is_empty() {
            let set = |rule: &TopologySpread| PodSet::one(Selection::of_spread(rule, shape));
            self.constrain(index, &shape.spread, set, true);
            return;
        }
        let owner = self.rules.classes[index].owner.clone();
        let owner = owner.filter(|owner| owner.kind.is_spread_by_default());
        let Some(owner) = owner.filter(|_| shape.default_spread.is_none()) else { return };
        let rules = SYSTEM_SPREAD.map(system_spread);
        let siblings = PodSet::Siblings(owner, shape.labels.clone());
        self.constrain(index, &rules, |_| siblings.clone(), false);
    }

    /// Compiles the constraints of a class. Those of a kind belong together: a node counts for
    /// them if it has the keys of all of them.
    fn constrain(
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
        let class = self.compiled(index);
        (class.hard_spread, class.soft_spread) = (hard_spread, soft_spread);
        class.soft_needs_keys = soft_needs_keys;
    }

    fn spreads(
        &mut self,
        index: usize,
        rules: &[&TopologySpread],
        set: &impl Fn(&TopologySpread) -> PodSet,
        needs_keys: bool,
    ) -> Vec<Spread> {
        let ground = Arc::make_mut(&mut self.ground);
        let topologies: Vec<usize> =
            rules.iter().map(|rule| ground.topology(&rule.topology_key)).collect();
        let keys: BTreeSet<usize> = topologies.iter().copied().filter(|_| needs_keys).collect();
        let keys: Vec<usize> = keys.into_iter().collect();
        let whole = |n: i32| u32::try_from(n).unwrap_or(0);
        let mut spreads = Vec::new();
        for (rule, topology) in rules.iter().zip(topologies) {
            let set = self.set(set(rule));
            let class = &self.rules.classes[index];
            let counts_itself = class.member_of.contains(&set);
            let policies = [rule.node_affinity_policy, rule.node_taints_policy];
            let sees = policies.contains(&NodeInclusion::Honor);
            let counting = Counting {
                view: sees.then_some(self.rules.locals[class.local].view),
                affinity: rule.node_affinity_policy,
                taints: rule.node_taints_policy,
                keys: keys.clone(),
            };
            let arena = Arc::make_mut(&mut self.ground).arena(counting, topology);
            let counter = self.counter(set, arena);
            let max_skew = whole(rule.max_skew);
            let min_domains = whole(rule.min_domains.unwrap_or(1)).max(1);
            spreads.push(Spread {
                set,
                counter,
                arena,
                topology,
                max_skew,
                min_domains,
                counts_itself,
            });
        }
        spreads
    }

    fn counter(&mut self, set: usize, arena: usize) -> usize {
        let mut known = self.rules.sets[set].counters.iter().copied();
        if let Some(index) = known.find(|counter| self.rules.counters[*counter].1 == arena) {
            return index;
        }
        let mut counter = Counter::new();
        for (node, pods) in self.on_node[set].iter().enumerate() {
            let domain = self.ground.counted_domain(arena, node);
            if let Some(domain) = domain {
                counter.add(domain, *pods);
            }
        }
        self.counters.push(counter);
        let index = self.counters.len() - 1;
        let rules = Arc::make_mut(&mut self.rules);
        rules.counters.push((set, arena));
        rules.sets[set].counters.push(index);
        index
    }

    fn tally(&mut self, set: usize, key: &LabelKey) -> usize {
        let topology = Arc::make_mut(&mut self.ground).topology(key);
        let mut known = self.rules.sets[set].tallies.iter().copied();
        if let Some(tally) = known.find(|tally| self.tallies[*tally].topology == topology) {
            return tally;
        }
        let mut tally = Tally::new(topology);
        for (node, pods) in self.on_node[set].iter().enumerate() {
            let domain = self.ground.topologies[topology].domain(node);
            (0..*pods).for_each(|_| tally.step(domain, Step::Bind));
        }
        self.tallies.push(tally);
        let index = self.tallies.len() - 1;
        Arc::make_mut(&mut self.rules).sets[set].tallies.push(index);
        index
    }

    /// Makes a set known and counts the pods that are bound already.
    fn set(&mut self, set: PodSet) -> usize {
        let (index, members) = Arc::make_mut(&mut self.rules).set(set);
        if index == self.on_node.len() {
            let running = members.iter().any(|class| self.pods_of[*class] > 0);
            let mut inside = vec![false; self.rules.classes.len()];
            for class in members.into_iter().filter(|class| !self.rules.classes[*class].stopping) {
                inside[class] = true;
            }
            let counted = |load: &Load| {
                load.pods().iter().filter(|pod| inside[pod.class]).fold(0, |sum, _| sum + 1)
            };
            let on_node = if running { self.loads.iter().map(counted).collect() } else { vec![] };
            self.on_node.push(on_node);
        }
        index
    }
}

fn system_spread((key, max_skew): (&str, i32)) -> TopologySpread {
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
