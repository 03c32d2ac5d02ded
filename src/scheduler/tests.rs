//! Small clusters for tests of the scheduler model.

mod brute_force;
mod filter_rules;
mod nominations_and_budgets;
mod recorded_clusters;
mod reference_scores;
mod scheduling;
mod score_values;
mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::resource_score::resource_score;
use super::score::FeasibleNodes;
use super::{ClassIndex, NodeIndex, ScheduleNode, Scheduler, UnfitReason};
use crate::demand::{NodeChoice, PodShape};
use crate::model::ids::{Labels, WorkloadId, WorkloadKind};
use crate::model::pod::{
    Expression, HostPort, NodeInclusion, PodAffinity, PodAffinityTerm, Selector, Taint,
    TaintEffect, Toleration, TolerationOperator, TopologySpread, WhenUnsatisfiable,
};
use crate::model::requirement::{LabelSet, Operator, Requirements, key, label};
use crate::model::units::{Bytes, MilliCpu, Resources};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| label(key, value)).collect()
}

fn resources(cpu: i64, mib: i64) -> Resources {
    Resources { cpu: MilliCpu(cpu), memory: Bytes::mib(mib), pods: 1, ..Resources::default() }
}

/// A node of 4 cores and 8 GiB in `zone` (none if empty), with its host name.
fn node(name: &str, zone: &str) -> ScheduleNode {
    let mut all = labels(&[(key::HOSTNAME, name)]);
    if !zone.is_empty() {
        all.extend([label(key::ZONE, zone)]);
    }
    ScheduleNode {
        name: name.into(),
        labels: all,
        taints: Vec::new(),
        allocatable: Resources { pods: 110, ..resources(4000, 8192) },
        unschedulable: false,
    }
}

/// A pod in `default` labelled `app: <app>` that asks for 100m and 100Mi.
fn pod(app: &str) -> PodShape {
    PodShape {
        namespace: "default".into(),
        labels: labels(&[("app", app)]),
        requests: resources(100, 100),
        nodes: NodeChoice { any_of: vec![Requirements::default()], ..NodeChoice::default() },
        tolerations: Vec::new(),
        host_ports: Vec::new(),
        spread: Vec::new(),
        affinity: PodAffinity::default(),
        anti_affinity: PodAffinity::default(),
        volumes: Vec::new(),
        priority: 0,
        preempts: true,
        do_not_disrupt: false,
        presumed: Resources::default(),
        unsupported: Vec::new(),
        default_spread: None,
    }
}

fn selects(key: &str, value: &str) -> Selector {
    Selector(vec![Expression {
        key: key.into(),
        operator: Operator::In,
        values: vec![value.into()],
    }])
}

fn requires(key: &str, value: &str) -> Requirements {
    [(key.into(), LabelSet::one(&value.into()))].into_iter().collect()
}

fn term(app: &str, topology_key: &str) -> PodAffinityTerm {
    PodAffinityTerm {
        selector: Some(selects("app", app)),
        topology_key: topology_key.into(),
        namespaces: Vec::new(),
        namespace_selector: None,
        match_label_keys: Vec::new(),
        mismatch_label_keys: Vec::new(),
    }
}

fn required(terms: Vec<PodAffinityTerm>) -> PodAffinity {
    PodAffinity { required: terms, preferred: Vec::new() }
}

fn preferred(terms: Vec<(i32, PodAffinityTerm)>) -> PodAffinity {
    PodAffinity { required: Vec::new(), preferred: terms }
}

fn spread(app: &str, topology_key: &str, max_skew: i32) -> TopologySpread {
    TopologySpread {
        max_skew,
        topology_key: topology_key.into(),
        when_unsatisfiable: WhenUnsatisfiable::DoNotSchedule,
        selector: Some(selects("app", app)),
        match_label_keys: Vec::new(),
        min_domains: None,
        node_affinity_policy: NodeInclusion::Honor,
        node_taints_policy: NodeInclusion::Ignore,
    }
}

fn taint(key: &str, effect: TaintEffect) -> Taint {
    Taint { key: key.into(), value: "x".into(), effect }
}

fn tolerates(key: &str, effect: Option<TaintEffect>) -> Toleration {
    Toleration {
        key: key.into(),
        operator: TolerationOperator::Exists,
        effect,
        ..Toleration::default()
    }
}

fn port(number: u16, protocol: &str, ip: &str) -> HostPort {
    HostPort { port: number, protocol: protocol.into(), ip: ip.into() }
}

fn deployment(name: &str) -> WorkloadId {
    WorkloadId { namespace: "default".into(), name: name.into(), kind: WorkloadKind::Deployment }
}

impl Scheduler {
    /// Returns the total scores of nodes, feasible or not.
    fn totals(&self, class: usize, nodes: &[usize]) -> Vec<i32> {
        let request = &self.registry.node_locals[self.registry.classes[class].node_local].request;
        let of = |node: &usize| resource_score(request, &self.usage[*node], self.balance);
        let mut feasible =
            FeasibleNodes { nodes: nodes.to_vec(), totals: nodes.iter().map(of).collect() };
        self.add_scores(class, &mut feasible);
        feasible.totals
    }
}

/// A scheduler with nodes addressed by name.
struct Cluster(Scheduler);

impl Cluster {
    fn new(nodes: Vec<ScheduleNode>) -> Self {
        Self(Scheduler::new(nodes, &BTreeMap::new(), 1))
    }

    fn index(&self, node: &str) -> NodeIndex {
        self.0.node(&node.into()).expect("the node is there")
    }

    fn class(&mut self, shape: &PodShape) -> ClassIndex {
        self.0.class(&Arc::new(shape.clone()), None)
    }

    fn run(&mut self, shape: &PodShape, node: &str) {
        let class = self.class(shape);
        self.0.bind(class, self.index(node));
    }

    fn run_all(&mut self, shape: &PodShape, pods_on: &[(&str, usize)]) {
        for (node, pods) in pods_on {
            (0..*pods).for_each(|_| self.run(shape, node));
        }
    }

    fn fits(&mut self, shape: &PodShape, node: &str) -> Result<(), Vec<UnfitReason>> {
        let class = self.class(shape);
        self.0.fits(class, self.index(node))
    }

    /// Returns the names of the feasible nodes, in the order of their addition.
    fn fitting(&mut self, shape: &PodShape) -> Vec<String> {
        let class = self.class(shape);
        let fits = |node: &NodeIndex| self.0.fits(class, *node).is_ok();
        self.0.nodes().filter(fits).map(|node| self.0.name(node).to_string()).collect()
    }

    fn schedule(&mut self, shape: &PodShape) -> Option<String> {
        let class = self.class(shape);
        let node = self.0.schedule(class, None).ok()?;
        Some(self.0.name(node).to_string())
    }
}

fn rng(seed: u64) -> rand_pcg::Pcg64 {
    rand::SeedableRng::seed_from_u64(seed)
}
