//! Compiles what pods ask for: everything that can be worked out before a pod has to be placed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::load::{Load, Port, Request};
use super::place::View;
use super::pods::{PodSet, Selection};
use super::score::ResourceScores;
use super::spread::Spread;
use super::topology::{Carriers, Role, Step, Tally, Topology};
use super::{ClassIndex, Scheduler, SetCounts};
use crate::demand::PodShape;
use crate::ids::{LabelKey, WorkloadId, WorkloadKind};
use crate::pod::{NodeInclusion, PodAffinity, PodAffinityTerm, TopologySpread, WhenUnsatisfiable};
use crate::requirement::key;
use crate::units::ResourceName;

/// The weight that required affinity of running pods has for pods that it selects.
/// Source: `pkg/scheduler/apis/config/v1/defaults.go`.
const HARD_AFFINITY_WEIGHT: i64 = 1;

/// Spreading that the scheduler adds to pods of controllers that ask for none: key, skew.
/// Source: `pkg/scheduler/framework/plugins/podtopologyspread/plugin.go`.
const DEFAULT_SPREAD: [(&str, i32); 2] = [(key::HOSTNAME, 3), (key::ZONE, 5)];

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
    owner: Option<WorkloadId>,
    pub(super) request: Request,
    pub(super) ports: Vec<Port>,
    pub(super) view: usize,
    pub(super) resource_scores: usize,
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
    pub(super) hard_spread: Vec<usize>,
    /// Spread constraints that score.
    pub(super) soft_spread: Vec<usize>,
    /// Whether nodes without a key of the soft constraints are left out of their scores.
    pub(super) soft_needs_keys: bool,
}

impl Scheduler {
    /// Makes pods of `shape` known; the same shape and owner give the same class.
    ///
    /// The owner is the workload at the top of the pod's chain of owners. It decides whether pods
    /// that ask for no spreading are spread by default, and which pods count for that: the pods of
    /// that owner with the same labels.
    pub fn class(&mut self, shape: &Arc<PodShape>, owner: Option<&WorkloadId>) -> ClassIndex {
        let known = (Arc::clone(shape), owner.cloned());
        if let Some(index) = self.class_index.get(&known) {
            return ClassIndex(*index);
        }
        let index = self.classes.len();
        let bare = self.bare_class(shape, owner);
        self.classes.push(bare);
        self.join_sets(index);
        self.compile_affinity(index, shape);
        self.compile_spread(index, shape);
        self.class_index.insert(known, index);
        ClassIndex(index)
    }

    /// Judges whether `node` counts for each spread constraint, after it changed.
    pub(super) fn recount(&mut self, node: usize) {
        for class in 0..self.classes.len() {
            self.recount_class(class, node);
        }
    }

    fn recount_class(&mut self, class: usize, node: usize) {
        let here = self.present[node];
        let Self { classes, spreads, topologies, views, sets, .. } = self;
        let class = &classes[class];
        let view = views[class.view].node(node);
        let lists = [(&class.hard_spread, true), (&class.soft_spread, class.soft_needs_keys)];
        for (list, needs_keys) in lists {
            let has_key = |spread: &usize| topologies[spreads[*spread].topology].domain(node);
            let has_keys = !needs_keys || list.iter().all(|spread| has_key(spread).is_some());
            for spread in list {
                let spread = &mut spreads[*spread];
                let honors = |policy, passes| policy == NodeInclusion::Ignore || passes;
                let included = honors(spread.affinity_policy, view.chosen)
                    && honors(spread.taints_policy, view.tolerated);
                let domain = topologies[spread.topology].domain(node);
                let pods = sets[spread.set].on_node[node];
                spread.set_eligible(node, domain, here && has_keys && included, pods);
            }
        }
    }

    fn bare_class(&mut self, shape: &Arc<PodShape>, owner: Option<&WorkloadId>) -> Class {
        let asked = shape.requests.extended.iter().filter(|(_, amount)| **amount > 0);
        let extended = asked.map(|(name, amount)| (name.clone(), *amount)).collect::<Vec<_>>();
        let extended = extended.into_iter().map(|(name, n)| (self.column(name), n)).collect();
        let request = Request::new(&shape.requests, extended);
        Class {
            shape: Arc::clone(shape),
            owner: owner.cloned(),
            ports: shape.host_ports.iter().filter_map(Port::new).collect(),
            view: self.view(shape),
            resource_scores: self.resource_scores_of(&request),
            request,
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

    fn column(&mut self, name: ResourceName) -> usize {
        if let Some(index) = self.columns.iter().position(|known| *known == name) {
            return index;
        }
        let offered = self.nodes.iter().map(|node| node.allocatable.extended(&name));
        self.loads.iter_mut().zip(offered).for_each(|(load, has)| Load::add_column(load, has));
        self.columns.push(name);
        self.columns.len() - 1
    }

    fn view(&mut self, shape: &PodShape) -> usize {
        let known = self.views.iter().position(|view| view.is_of(&shape.nodes, &shape.tolerations));
        known.unwrap_or_else(|| {
            let mut view = View::new(&shape.nodes, &shape.tolerations);
            self.nodes.iter().enumerate().for_each(|(index, node)| view.judge(index, node));
            self.views.push(view);
            self.views.len() - 1
        })
    }

    fn resource_scores_of(&mut self, request: &Request) -> usize {
        let known = self.resource_scores.iter().position(|scores| scores.are_of(request));
        known.unwrap_or_else(|| {
            self.resource_scores.push(ResourceScores::new(request));
            self.resource_scores.len() - 1
        })
    }

    /// Finds the known sets that count pods of the class.
    fn join_sets(&mut self, index: usize) {
        let Class { shape, owner, .. } = &self.classes[index];
        let home = |set: &PodSet| set.home().is_none_or(|home| *home == shape.namespace);
        let counts =
            |set: &PodSet| home(set) && set.matches(shape, owner.as_ref(), &self.namespaces);
        let sets = self.sets.iter().enumerate().filter(|(_, counts_of)| counts(&counts_of.set));
        self.classes[index].member_of = sets.map(|(set, _)| set).collect();
    }

    fn compile_affinity(&mut self, index: usize, shape: &PodShape) {
        let PodAffinity { required, preferred } = &shape.affinity;
        let PodAffinity { required: anti_required, preferred: anti_preferred } =
            &shape.anti_affinity;
        if !required.is_empty() {
            let affinity = self.required_affinity(index, required, shape);
            self.classes[index].affinity = Some(affinity);
        }
        for term in required {
            self.carry(index, term, shape, Role::Pull(HARD_AFFINITY_WEIGHT));
        }
        for term in anti_required {
            let tally = self.term_tally(term, shape);
            self.classes[index].avoids.push(tally);
            self.carry(index, term, shape, Role::Repel);
        }
        let near = preferred.iter().map(|(weight, term)| (i64::from(*weight), term));
        let far = anti_preferred.iter().map(|(weight, term)| (-i64::from(*weight), term));
        for (weight, term) in near.chain(far) {
            let tally = self.term_tally(term, shape);
            self.classes[index].wishes.push((tally, weight));
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
        Affinity { tallies, selects_itself: self.classes[index].member_of.contains(&set) }
    }

    fn term_tally(&mut self, term: &PodAffinityTerm, shape: &PodShape) -> usize {
        let set = self.set(PodSet::one(Selection::of_term(term, shape)));
        self.tally(set, &term.topology_key)
    }

    fn carry(&mut self, index: usize, term: &PodAffinityTerm, shape: &PodShape, role: Role) {
        let set = self.set(PodSet::one(Selection::of_term(term, shape)));
        let topology = self.topology(&term.topology_key);
        let same = |held: &Carriers| held.set == set && held.topology == topology;
        let carriers = self.carriers.iter().position(same).unwrap_or_else(|| {
            self.carriers.push(Carriers::new(set, topology));
            self.sets[set].carriers.push(self.carriers.len() - 1);
            self.carriers.len() - 1
        });
        self.classes[index].carries.push((carriers, role));
    }

    fn compile_spread(&mut self, index: usize, shape: &PodShape) {
        for rule in &shape.spread {
            let set = self.set(PodSet::one(Selection::of_spread(rule, shape)));
            let spread = self.spread(index, rule, set);
            let class = &mut self.classes[index];
            match rule.when_unsatisfiable {
                WhenUnsatisfiable::DoNotSchedule => class.hard_spread.push(spread),
                WhenUnsatisfiable::ScheduleAnyway => class.soft_spread.push(spread),
            }
        }
        let spreading = self.classes[index].owner.clone().filter(|owner| spreads(owner.kind));
        if let Some(owner) = spreading.filter(|_| shape.spread.is_empty()) {
            let set = self.set(PodSet::Siblings(owner, shape.labels.clone()));
            let rules = DEFAULT_SPREAD.map(|(key, skew)| default_spread(key, skew));
            let spreads = rules.map(|rule| self.spread(index, &rule, set));
            let class = &mut self.classes[index];
            class.soft_spread.extend(spreads);
            class.soft_needs_keys = false;
        }
        for node in 0..self.nodes.len() {
            self.recount_class(index, node);
        }
    }

    fn spread(&mut self, class: usize, rule: &TopologySpread, set: usize) -> usize {
        let topology = self.topology(&rule.topology_key);
        let mut spread = Spread::new(rule, set, topology);
        spread.counts_itself = self.classes[class].member_of.contains(&set);
        self.spreads.push(spread);
        self.sets[set].spreads.push(self.spreads.len() - 1);
        self.spreads.len() - 1
    }

    fn topology(&mut self, key: &LabelKey) -> usize {
        let known = self.topologies.iter().position(|topology| topology.key == *key);
        known.unwrap_or_else(|| {
            let mut topology = Topology::new(key.clone());
            self.nodes.iter().for_each(|node| topology.push(&node.labels));
            self.topologies.push(topology);
            self.topologies.len() - 1
        })
    }

    fn tally(&mut self, set: usize, key: &LabelKey) -> usize {
        let topology = self.topology(key);
        let known = self.sets[set].tallies.iter().copied();
        if let Some(tally) = known.into_iter().find(|t| self.tallies[*t].topology == topology) {
            return tally;
        }
        let mut tally = Tally::new(topology);
        for (node, pods) in self.sets[set].on_node.iter().enumerate() {
            let domain = self.topologies[topology].domain(node);
            (0..*pods).for_each(|_| tally.step(domain, Step::Bind));
        }
        self.tallies.push(tally);
        self.sets[set].tallies.push(self.tallies.len() - 1);
        self.tallies.len() - 1
    }

    /// Makes a set known and counts the pods that are bound already.
    fn set(&mut self, set: PodSet) -> usize {
        if let Some(index) = self.set_index.get(&set) {
            return *index;
        }
        let index = self.sets.len();
        let mut members = vec![false; self.classes.len()];
        for (class, member) in self.classes.iter_mut().zip(&mut members) {
            *member = set.matches(&class.shape, class.owner.as_ref(), &self.namespaces);
            if *member {
                class.member_of.push(index);
            }
        }
        let counted = |load: &Load| load.pods().iter().filter(|pod| members[pod.class]).count();
        let on_node = self.loads.iter().map(counted).collect();
        self.set_index.insert(set.clone(), index);
        self.sets.push(SetCounts {
            set,
            on_node,
            tallies: Vec::new(),
            carriers: Vec::new(),
            spreads: Vec::new(),
        });
        index
    }
}

/// Returns whether the scheduler derives a selector from the controller of such pods.
///
/// Source: `pkg/scheduler/framework/plugins/helper/spread.go`.
fn spreads(kind: WorkloadKind) -> bool {
    match kind {
        WorkloadKind::Deployment
        | WorkloadKind::StatefulSet
        | WorkloadKind::ReplicaSet
        | WorkloadKind::ReplicationController => true,
        WorkloadKind::DaemonSet | WorkloadKind::Job | WorkloadKind::CronJob | WorkloadKind::Pod => {
            false
        }
    }
}

fn default_spread(key: &str, max_skew: i32) -> TopologySpread {
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
