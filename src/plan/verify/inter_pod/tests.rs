//! Fixture for inter-pod rules: six nodes in three zones, and the pods on them.

mod alternatives;
mod defects;
mod harmless;
mod oracle;
mod parts;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::demand::{Daemon, PodGroup, PodShape};
use crate::model::ids::{NodeName, WorkloadId, WorkloadKind};
use crate::model::pod::{
    NodeInclusion, PodAffinityTerm, Selector, TopologySpread, WhenUnsatisfiable,
};
use crate::model::requirement::{Requirements, key, label};
use crate::model::units::{Bytes, MilliCpu, Resources};
use crate::plan::Plan;
use crate::plan::verify::{Violation, verify};
use crate::plan::wire::{
    Action, Amount, ExplainRow, NodeState, PlacementRow, PodCounts, ResourceChange,
};
use crate::testing::plan::address;
use crate::testing::pods::{
    self, affinity_term, host_port, pod_group, resources, selector, topology_spread,
};
use crate::testing::valid_plan::{Inputs, inputs, plan, workload};

pub(super) const ZONE: &str = key::ZONE;
pub(super) const HOST: &str = key::HOSTNAME;

/// The nodes: the first half is retained, the second half is launched.
pub(super) const NODES: [&str; 6] = ["a1", "b1", "c1", "a2", "b2", "c2"];

/// A plan and its inputs, as far as placement rules use them.
#[derive(Clone)]
pub(super) struct PlanFixture {
    pub(super) plan: Plan,
    pub(super) inputs: Inputs,
}

impl PlanFixture {
    /// Returns a fixture without pods.
    pub(super) fn new() -> Self {
        let mut fixture = Self { plan: plan(), inputs: inputs() };
        let retained = fixture.plan.resource_changes[0].clone();
        let comes = fixture.plan.resource_changes[3].clone();
        let explain = fixture.plan.capacity.explain.clone();
        let node = fixture.inputs.observed.nodes["n0"].clone();
        fixture.plan.resource_changes.clear();
        fixture.plan.capacity.explain.clear();
        fixture.plan.capacity.placements.clear();
        fixture.plan.capacity.alternatives.clear();
        fixture.inputs.observed.nodes.clear();
        fixture.inputs.observed.pods.clear();
        fixture.inputs.demand.groups.clear();
        fixture.inputs.demand.daemons.clear();
        for (index, name) in NODES.into_iter().enumerate() {
            let stays = index < NODES.len() / 2;
            let (row, explain) =
                if stays { (&retained, &explain[0]) } else { (&comes, &explain[3]) };
            fixture.plan.resource_changes.push(row_of(row, name, stays));
            fixture.plan.capacity.explain.push(ExplainRow {
                address: address(name),
                pods: PodCounts::default(),
                daemons: Amount::default(),
                ..explain.clone()
            });
            let node = crate::model::observed::Node { name: name.into(), ..node.clone() };
            fixture.inputs.observed.nodes.extend(stays.then(|| (node.name.clone(), node)));
        }
        fixture
    }

    /// Adds a workload whose pods have the label `app` with its name. `on` has nodes with their
    /// staying and arriving pods.
    pub(super) fn add_workload(
        &mut self,
        name: &str,
        edit: impl FnOnce(&mut PodShape),
        on: &[(&str, u32, u32)],
    ) {
        let mut shape = shape(name);
        edit(&mut shape);
        let id = WorkloadId { namespace: shape.namespace.clone(), ..workload(name) };
        let running = on.iter().filter(|(_, stay, _)| *stay > 0);
        let planned = on.iter().map(|(_, stay, come)| stay + come).sum();
        let running = running.map(|(node, stay, _)| (NodeName::from(*node), *stay)).collect();
        let group = PodGroup { running, ..pod_group(id.clone(), shape, planned) };
        self.inputs.demand.groups.push(group);
        let key = crate::model::ids::workload_key(&id);
        for (node, stay, come) in on {
            self.explain(node).pods.insert(key.as_str().into(), stay + come);
            let row = PlacementRow { workload: id.clone(), address: address(node), pods: *come };
            self.plan.capacity.placements.extend((*come > 0).then_some(row));
        }
    }

    /// Adds a DaemonSet, which runs on all nodes that admit its pods.
    pub(super) fn add_daemon_set(&mut self, name: &str, edit: impl FnOnce(&mut PodShape)) {
        let mut shape = shape(name);
        edit(&mut shape);
        let workload = WorkloadId { kind: WorkloadKind::DaemonSet, ..workload(name) };
        self.inputs.demand.daemons.push(Daemon { workload, origin: None, shape: Arc::new(shape) });
    }

    /// Changes the states of a node before and after the plan.
    pub(super) fn edit_node(&mut self, name: &str, edit: impl Fn(&mut NodeState)) {
        let change = &mut self.plan.row_mut(&address(name)).change;
        change.before.iter_mut().chain(&mut change.after).for_each(edit);
    }

    pub(super) fn explain(&mut self, name: &str) -> &mut ExplainRow {
        self.plan.explain_mut(&address(name))
    }

    /// Returns the violations of the rules in `of`.
    pub(super) fn violations(&self, of: &[&str]) -> Vec<Violation> {
        let found = verify(&self.plan.clone().with_identity(), &self.inputs.facts());
        found.into_iter().filter(|violation| of.contains(&violation.rule)).collect()
    }
}

fn row_of(row: &ResourceChange, name: &str, stays: bool) -> ResourceChange {
    let mut row =
        ResourceChange { address: address(name), index: Some(name.to_owned()), ..row.clone() };
    let plenty = Resources {
        cpu: MilliCpu(64_000),
        memory: Bytes::gib(64),
        pods: 99,
        ..Resources::default()
    };
    let zone = &name[..1];
    let host = stays.then(|| label(HOST, name));
    for state in row.change.before.iter_mut().chain(&mut row.change.after) {
        state.labels =
            [label(ZONE, zone), label("team", "web")].into_iter().chain(host.clone()).collect();
        state.taints.clear();
        state.allocatable = Amount::from(&plenty);
        state.zone = Some(zone.into());
        state.node = stays.then(|| name.into());
    }
    let action = if stays { Action::NoOp } else { Action::Create };
    row.change.actions = vec![action];
    row
}

/// Returns pods with the label `app` with this name.
fn shape(name: &str) -> PodShape {
    let labels = [label("app", name)].into();
    PodShape { labels, requests: resources(100, 0), ..pods::shape("shop") }
}

/// Returns a selector for all pods.
pub(super) fn everything() -> Selector {
    Selector(Vec::new())
}

/// Restricts pods to nodes with this label.
pub(super) fn only(shape: &mut PodShape, key: &str, value: &str) {
    shape.nodes.any_of = vec![Requirements::from_labels(&[label(key, value)].into())];
}
