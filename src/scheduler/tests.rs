//! Small clusters for tests of the scheduler model.

mod brute_force;
mod filter_rules;
mod nominations_and_budgets;
mod recorded_clusters;
mod reference_scores;
mod scheduling;
mod score_values;
mod unfit_nodes;
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
use crate::model::units::{Bytes, Resources};
use crate::testing::pods::{
    affinity_term, deployment, host_port, resources, selector, shape, topology_spread,
};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| label(key, value)).collect()
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
    PodShape { labels: labels(&[("app", app)]), requests: resources(100, 100), ..shape("default") }
}

fn requires(key: &str, value: &str) -> Requirements {
    [(key.into(), LabelSet::one(&value.into()))].into_iter().collect()
}

fn required(terms: Vec<PodAffinityTerm>) -> PodAffinity {
    PodAffinity { required: terms, preferred: Vec::new() }
}

fn preferred(terms: Vec<(i32, PodAffinityTerm)>) -> PodAffinity {
    PodAffinity { required: Vec::new(), preferred: terms }
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
