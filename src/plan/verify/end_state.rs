//! The state after a plan: its nodes and the pods on them.
//!
//! It separates staying from arriving pods. If a retained node runs `n` pods of a workload and `m`
//! are planned, the smaller number stays and the rest arrives. DaemonSet pods and static pods start
//! with their node, so both precede all other pods. This module checks no rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::admission::{AdmissionView, runs_daemon};
use super::context::{CheckContext, CheckedRow, resources};
use crate::demand::{PodShape, ShapeContext, pod_shape};
use crate::model::ids::{Namespace, NodeName, WorkloadKind, workload_key};
use crate::model::pod::Taint;
use crate::plan::wire::NodeState;

/// Nodes after the plan, and the pods on them.
pub(super) struct EndState<'a> {
    /// Nodes, in the order of the plan's rows.
    pub(super) nodes: Vec<EndNode<'a>>,
    pub(super) pod_sets: Vec<PodSet>,
    /// Pod sets with pods on each node.
    pub(super) sets_by_node: Vec<Vec<usize>>,
}

/// A node that exists after the plan.
pub(super) struct EndNode<'a> {
    pub(super) row: &'a CheckedRow<'a>,
    pub(super) after: &'a NodeState,
    /// Node name in Kubernetes; `None` before the node joins.
    pub(super) name: Option<&'a NodeName>,
    /// True for a retained node that is cordoned or not Ready, or that an operator tainted. Such a
    /// node has a taint that the plan does not count.
    pub(super) closed: bool,
    /// True for an instance that has not joined and whose pool no longer declares its kind of node.
    /// The properties of its node are unknown. No pod is planned on it, and no rule applies.
    pub(super) unknown: bool,
}

/// Pods that no rule distinguishes: those of one workload, one DaemonSet or one static template.
pub(super) struct PodSet {
    /// `namespace/kind/name`.
    pub(super) name: String,
    pub(super) shape: Arc<PodShape>,
    pub(super) kind: PodSetKind,
    /// Pods by node.
    pub(super) by_node: BTreeMap<usize, Presence>,
}

/// Origin of the pods of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodSetKind {
    /// Pods that the plan places.
    Placed,
    /// DaemonSet pods, which run on every node that admits them.
    Daemon,
    /// Pods bound to their node: static pods, and DaemonSet pods on nodes that should not admit
    /// them.
    Fixed,
}

/// Numbers of staying and arriving pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Presence {
    pub(super) staying: u32,
    pub(super) arriving: u32,
}

impl Presence {
    pub(super) fn all(self) -> u32 {
        self.staying.saturating_add(self.arriving)
    }

    pub(super) fn add(&mut self, other: Self) {
        self.staying = self.staying.saturating_add(other.staying);
        self.arriving = self.arriving.saturating_add(other.arriving);
    }
}

impl<'a> EndNode<'a> {
    fn from_row(context: &CheckContext<'_>, row: &'a CheckedRow<'a>) -> Option<Self> {
        let after = row.after?;
        let retained = row.before.filter(|_| row.action.keeps());
        let node = row.node.filter(|_| retained.is_some());
        let pool = after.pool.as_ref().and_then(|name| context.facts.desired.pools.get(name));
        let stays = |taint: &Taint| {
            let is_startup = pool.is_some_and(|pool| pool.startup_taints.contains(taint));
            !taint.is_ephemeral() && !is_startup
        };
        let closed = node.is_some_and(|node| {
            node.unschedulable || !node.ready || after.startup_taints.iter().any(stays)
        });
        let name = retained.and_then(|state| state.node.as_ref());
        let unknown = retained.is_some() && name.is_none() && after.labels.is_empty();
        Some(Self { row, after, name, closed, unknown })
    }

    /// Returns the properties of the node that decide admission.
    pub(super) fn admission_view(&self) -> AdmissionView<'_> {
        let Self { after, name, .. } = self;
        AdmissionView {
            labels: &after.labels,
            taints: &after.taints,
            name: name.map(NodeName::as_str),
        }
    }
}

impl<'a> EndState<'a> {
    pub(super) fn new(context: &'a CheckContext<'a>) -> Self {
        let end_nodes: Vec<EndNode<'a>> =
            context.rows.iter().filter_map(|row| EndNode::from_row(context, row)).collect();
        let mut pod_sets = placed(context, &end_nodes);
        let daemons = daemons(context, &end_nodes);
        let fixed = fixed(context, &end_nodes, &daemons);
        pod_sets.extend(daemons);
        pod_sets.extend(fixed);
        let mut sets_by_node = vec![Vec::new(); end_nodes.len()];
        for (index, pod_set) in pod_sets.iter().enumerate() {
            pod_set.by_node.keys().for_each(|end_node| sets_by_node[*end_node].push(index));
        }
        Self { nodes: end_nodes, pod_sets, sets_by_node }
    }

    /// Returns the pod sets on a node, with their pods there.
    pub(super) fn pods_on(&self, end_node: usize) -> impl Iterator<Item = (&PodSet, Presence)> {
        let pod_sets = self.sets_by_node[end_node].iter().map(|pod_set| &self.pod_sets[*pod_set]);
        pod_sets.filter_map(move |pod_set| Some((pod_set, *pod_set.by_node.get(&end_node)?)))
    }
}

/// Returns the pods of workloads. Module `fit` reports unknown workloads.
fn placed(context: &CheckContext<'_>, end_nodes: &[EndNode<'_>]) -> Vec<PodSet> {
    let pod_set = |(name, group): (&String, &&crate::demand::PodGroup)| PodSet {
        name: name.clone(),
        shape: Arc::clone(&group.shape),
        kind: PodSetKind::Placed,
        by_node: BTreeMap::new(),
    };
    let mut pod_sets: Vec<PodSet> = context.groups.iter().map(pod_set).collect();
    let groups: Vec<_> = context.groups.values().copied().collect();
    let index: BTreeMap<&str, usize> =
        context.groups.keys().enumerate().map(|(index, key)| (key.as_str(), index)).collect();
    for (at, end_node) in end_nodes.iter().enumerate() {
        for (key, pods) in end_node.row.pods().filter(|(_, pods)| *pods > 0) {
            let Some(index) = index.get(key) else { continue };
            let staying = CheckContext::running_pods(groups[*index], end_node.name).min(pods);
            pod_sets[*index].by_node.insert(at, Presence { staying, arriving: pods - staying });
        }
    }
    pod_sets
}

fn daemons(context: &CheckContext<'_>, end_nodes: &[EndNode<'_>]) -> Vec<PodSet> {
    let one_pod = Presence { staying: 1, arriving: 0 };
    let pod_set = |daemon: &crate::demand::Daemon| {
        let runs = |end_node: &EndNode<'_>| {
            let allocatable = resources(&end_node.after.allocatable);
            !end_node.unknown
                && runs_daemon(&daemon.shape, &end_node.admission_view(), &allocatable)
        };
        let by_node = end_nodes.iter().enumerate().filter(|(_, end_node)| runs(end_node));
        PodSet {
            name: workload_key(&daemon.workload),
            shape: Arc::clone(&daemon.shape),
            kind: PodSetKind::Daemon,
            by_node: by_node.map(|(at, _)| (at, one_pod)).collect(),
        }
    };
    context.facts.demand.daemons.iter().map(pod_set).collect()
}

/// Returns pods outside of plan and demand: static pods, and DaemonSet pods on nodes that should
/// not admit them.
fn fixed(context: &CheckContext<'_>, end_nodes: &[EndNode<'_>], daemons: &[PodSet]) -> Vec<PodSet> {
    let observed = context.facts.observed;
    let shape_context = ShapeContext::new(context.facts.desired);
    let names =
        end_nodes.iter().enumerate().filter_map(|(at, end_node)| Some((end_node.name?, at)));
    let names: BTreeMap<&NodeName, usize> = names.collect();
    let daemons: BTreeMap<&str, &PodSet> =
        daemons.iter().map(|pod_set| (pod_set.name.as_str(), pod_set)).collect();
    let mut fixed: BTreeMap<(&Namespace, &str), PodSet> = BTreeMap::new();
    for pod in observed.pods.iter().filter(|pod| pod.is_active()) {
        let set = pod.owner.as_ref().filter(|owner| owner.kind == WorkloadKind::DaemonSet);
        // Most pods are neither, so the node lookup is skipped for them.
        if !pod.mirror && set.is_none() {
            continue;
        }
        let Some(at) = pod.node.as_ref().and_then(|name| names.get(name)) else { continue };
        let set = set.map(workload_key);
        let expected =
            |key: &String| daemons.get(key.as_str()).is_some_and(|c| c.by_node.contains_key(at));
        if !(pod.mirror || set.as_ref().is_some_and(|key| !expected(key))) {
            continue;
        }
        let Some(template) = observed.templates.get(&*pod.template) else { continue };
        let pod_set = fixed.entry((&pod.namespace, &*pod.template)).or_insert_with(|| PodSet {
            name: set.unwrap_or_else(|| format!("{}/Pod/{}", pod.namespace, pod.name)),
            shape: Arc::new(pod_shape(&pod.namespace, template, &shape_context)),
            kind: PodSetKind::Fixed,
            by_node: BTreeMap::new(),
        });
        pod_set.by_node.entry(*at).or_default().add(Presence { staying: 1, arriving: 0 });
    }
    fixed.into_values().collect()
}
