//! Checks with the scheduler model that the end state of a plan can be reached pod by pod.

use std::collections::{BTreeMap, BTreeSet};

use crate::demand::{Demand, PodShape};
use crate::model::ids::{Labels, Namespace, NodeName, workload_key};
use crate::model::pod::untolerated;
use crate::model::requirement::key;
use crate::model::units::{Bytes, MilliCpu, Resources};
use crate::plan::Plan;
use crate::plan::wire::{Action, ResourceChange};
use crate::scheduler::{ClassIndex, NodeIndex, ScheduleNode, Scheduler};

/// Maximum number of states in the search for a binding order.
const STATES_MAX: usize = 5_000;

/// The nodes of a plan with their running pods, and the pods to bind.
pub(crate) struct PlacementSimulation {
    scheduler: Scheduler,
    /// Pods to bind: class, node and number.
    arriving: Vec<(ClassIndex, NodeIndex, u32)>,
}

impl PlacementSimulation {
    pub(crate) fn new(
        plan: &Plan,
        demand: &Demand,
        namespaces: &BTreeMap<Namespace, Labels>,
    ) -> Self {
        let rows: Vec<&ResourceChange> =
            plan.resource_changes.iter().filter(|row| row.change.after.is_some()).collect();
        let nodes = rows.iter().map(|row| node_of(row)).collect();
        let mut scheduler = Scheduler::new(nodes, namespaces, 1);
        let node_indexes: Vec<NodeIndex> = scheduler.nodes().collect();
        for daemon in &demand.daemons {
            let class = scheduler.class(&daemon.shape, None);
            for (row, place) in rows.iter().zip(&node_indexes) {
                if admits(&daemon.shape, row) {
                    scheduler.bind(class, *place);
                }
            }
        }
        let explain: BTreeMap<_, _> =
            plan.capacity.explain.iter().map(|row| (&row.address, &row.pods)).collect();
        let mut arriving = Vec::new();
        for group in &demand.groups {
            let class = scheduler.class(&group.shape, None);
            let key = workload_key(&group.workload);
            for (row, place) in rows.iter().zip(&node_indexes) {
                let pods = explain.get(&row.address).and_then(|pods| pods.get(key.as_str()));
                let pods = pods.copied().unwrap_or(0);
                let runs = retained_node(row).and_then(|name| group.running.get(name)).copied();
                let stay = runs.unwrap_or(0).min(pods);
                (0..stay).for_each(|_| scheduler.bind(class, *place));
                arriving.extend((pods > stay).then_some((class, *place, pods - stay)));
            }
        }
        Self { scheduler, arriving }
    }

    /// Returns the nodes with their running pods, and the node indexes in the order of the rows.
    pub(crate) fn build(&self) -> (Scheduler, Vec<NodeIndex>) {
        (self.scheduler.clone(), self.scheduler.nodes().collect())
    }

    /// Returns whether some binding order leads to the end state. Returns `None` if the search
    /// reaches its limit.
    pub(crate) fn is_reachable(&self) -> Option<bool> {
        let mut scheduler = self.scheduler.clone();
        let left: Vec<u32> = self.arriving.iter().map(|(.., pods)| *pods).collect();
        let mut seen = BTreeSet::new();
        let found = self.search(&mut scheduler, &left, &mut seen);
        (found || seen.len() < STATES_MAX).then_some(found)
    }

    fn search(
        &self,
        scheduler: &mut Scheduler,
        left: &[u32],
        seen: &mut BTreeSet<Vec<u32>>,
    ) -> bool {
        if left.iter().all(|pods| *pods == 0) {
            return true;
        }
        if seen.len() >= STATES_MAX || !seen.insert(left.to_vec()) {
            return false;
        }
        for (index, (class, node, _)) in self.arriving.iter().enumerate() {
            if left[index] == 0 || scheduler.fits(*class, *node).is_err() {
                continue;
            }
            let mut rest = left.to_vec();
            rest[index] -= 1;
            scheduler.bind(*class, *node);
            let found = self.search(scheduler, &rest, seen);
            scheduler.unbind(*class, *node);
            if found {
                return true;
            }
        }
        false
    }

    /// Returns whether each planned pod fits on its node as the last one.
    pub(crate) fn fits_at_end(&self) -> bool {
        let mut scheduler = self.scheduler.clone();
        for (class, node, pods) in &self.arriving {
            (0..*pods).for_each(|_| scheduler.bind(*class, *node));
        }
        self.arriving.iter().all(|(class, node, _)| {
            scheduler.unbind(*class, *node);
            let fits = scheduler.fits(*class, *node).is_ok();
            scheduler.bind(*class, *node);
            fits
        })
    }
}

/// Returns the name of the node that a row retains.
fn retained_node(row: &ResourceChange) -> Option<&NodeName> {
    let stays = matches!(row.change.actions.as_slice(), [Action::NoOp | Action::Update]);
    row.change.before.as_ref().filter(|_| stays)?.node.as_ref()
}

fn node_of(row: &ResourceChange) -> ScheduleNode {
    let after = row.change.after.as_ref().expect("the row has a node");
    let name = retained_node(row).map_or_else(|| row.address.as_str(), NodeName::as_str);
    let mut labels = after.labels.clone();
    if retained_node(row).is_none() {
        labels.entry(key::HOSTNAME.into()).or_insert_with(|| name.into());
    }
    let amount = &after.allocatable;
    let extended = amount.extended.iter().map(|(name, n)| (name.as_str().into(), *n));
    let allocatable = Resources {
        cpu: MilliCpu(amount.cpu_milli),
        memory: Bytes(amount.memory_bytes),
        ephemeral_storage: Bytes(amount.ephemeral_storage_bytes),
        pods: amount.pods,
        extended: extended.collect(),
    };
    let taints = after.taints.clone();
    ScheduleNode { name: name.into(), labels, taints, allocatable, unschedulable: false }
}

fn admits(shape: &PodShape, row: &ResourceChange) -> bool {
    let after = row.change.after.as_ref().expect("the row has a node");
    untolerated(&after.taints, &shape.tolerations).is_none()
        && shape.nodes.any_of.iter().any(|choice| choice.matches_labels(&after.labels))
}
