//! Resolves existing nodes to their instances, addresses and states.

use std::collections::BTreeMap;

use super::DiffInputs;
use super::address::{PoolKeys, RowIdentity};
use crate::model::ids::{NodeName, WorkloadId, WorkloadKey, workload_key};
use crate::model::observed::{Instance, Node, tag};
use crate::model::reason::{LaunchReason, RetireReason};
use crate::model::requirement::key;
use crate::plan::wire::{Amount, NodeState, PodCounts, ResourceKind};
use crate::solver::{ExistingNode, NewNode, daemon_requests};

/// Resolves instances, nodes and addresses of existing nodes.
pub(super) struct NodeResolver<'a> {
    pub(super) inputs: &'a DiffInputs<'a>,
    pub(super) keys: PoolKeys,
    /// Running pods by node.
    running: BTreeMap<&'a NodeName, PodCounts>,
}

impl<'a> NodeResolver<'a> {
    pub(super) fn new(inputs: &'a DiffInputs<'a>) -> Self {
        let mut running: BTreeMap<&NodeName, PodCounts> = BTreeMap::new();
        for group in &inputs.demand.groups {
            let workload = WorkloadKey::from(workload_key(&group.workload));
            let on = group.active_by_node().into_iter();
            for (node, pods) in on.filter(|(_, pods)| *pods > 0) {
                *running.entry(node).or_default().entry(workload.clone()).or_insert(0) += pods;
            }
        }
        Self { inputs, keys: PoolKeys::from_observed(inputs.observed), running }
    }

    pub(super) fn pods_before(&self, existing: &ExistingNode) -> PodCounts {
        self.running.get(&existing.name).cloned().unwrap_or_default()
    }

    pub(super) fn node(&self, existing: &ExistingNode) -> Option<&'a Node> {
        self.inputs.observed.nodes.get(&existing.name)
    }

    /// Returns the instance of an existing node. Before the node has joined, its name is the
    /// instance ID.
    pub(super) fn instance(&self, existing: &ExistingNode) -> Option<&'a Instance> {
        let observed = self.inputs.observed;
        match self.node(existing) {
            Some(node) => observed.instances.get(node.instance.as_ref()?),
            None => observed.instances.get(existing.name.as_str()),
        }
    }

    pub(super) fn identity_of(&self, existing: &ExistingNode) -> RowIdentity {
        match self.instance(existing) {
            Some(instance) => self.keys.identity_of(&instance.id).unwrap_or_else(|| {
                // Members of groups have no key, because Auto Scaling launches them.
                match &existing.pool {
                    Some(pool) => RowIdentity::instance(pool.as_str(), instance.id.as_str()),
                    None => RowIdentity::foreign(&instance.id),
                }
            }),
            None => RowIdentity::node(&existing.name),
        }
    }

    pub(super) fn kind(&self, existing: &ExistingNode) -> ResourceKind {
        match self.instance(existing) {
            Some(_) => ResourceKind::Ec2Instance,
            None => ResourceKind::KubernetesNode,
        }
    }

    /// Returns launches that share a row with the replaced node. Such a batch has exactly one
    /// launch and one retired node of the same pool.
    pub(super) fn replacement_pairs(&self) -> BTreeMap<usize, &'a ExistingNode> {
        let solution = self.inputs.solution;
        let mut batches: BTreeMap<usize, (Vec<usize>, Vec<&ExistingNode>)> = BTreeMap::new();
        for (index, launch) in solution.target.launches.iter().enumerate() {
            if let Some(batch) = launch.batch {
                batches.entry(batch).or_default().0.push(index);
            }
        }
        for existing in &solution.existing_nodes {
            let retire = solution.target.retires.get(&existing.name);
            if let Some(batch) = retire.and_then(|retire| retire.batch) {
                batches.entry(batch).or_default().1.push(existing);
            }
        }
        let one_for_one = batches.into_values().filter_map(|members| match members {
            (launches, retired) if launches.len() == 1 && retired.len() == 1 => {
                Some((launches[0], retired[0]))
            }
            _ => None,
        });
        let node = |launch: usize| &solution.target.launches[launch].node;
        one_for_one.filter(|(launch, s)| self.can_reuse_key(s, node(*launch))).collect()
    }

    /// Returns true if the new node can take over the key of the existing node. Both must be in the
    /// same pool, and the key must be reusable.
    fn can_reuse_key(&self, existing: &ExistingNode, node: &NewNode) -> bool {
        existing.pool.as_ref() == Some(&node.pool)
            && self
                .instance(existing)
                .is_some_and(|instance| self.keys.has_reusable_key(&instance.id))
    }

    /// Returns the seconds after which a drain for `reason` deletes the pods that are left.
    pub(super) fn termination_grace_seconds(
        &self,
        existing: &ExistingNode,
        reason: &RetireReason,
    ) -> Option<u64> {
        let pool = self.inputs.desired.pools.get(existing.pool.as_ref()?)?;
        u64::try_from(pool.forced_drain_period(reason)?.as_secs()).ok()
    }

    pub(super) fn before(&self, existing: &ExistingNode) -> NodeState {
        let (node, instance) = (self.node(existing), self.instance(existing));
        let zone = instance.map(|i| i.zone.clone());
        let known = self.inputs.catalog.zones.iter().find(|z| Some(&z.name) == zone.as_ref());
        NodeState {
            pool: existing.pool.clone(),
            instance_type: instance.map(|i| i.instance_type.clone()),
            zone_id: known.map(|zone| zone.id.clone()),
            zone,
            capacity_type: instance.map(|i| i.capacity_type),
            image: instance.map(|i| i.image.clone()).filter(|image| !image.is_empty()),
            labels: existing.labels.clone(),
            taints: existing.taints.clone(),
            startup_taints: existing.startup_taints.clone(),
            capacity: Amount::from(&existing.capacity),
            allocatable: Amount::from(&existing.allocatable),
            reservation: instance.and_then(|i| i.reservation.clone()),
            open_labels: Vec::new(),
            spec_digest: instance.and_then(|i| i.tags.get(tag::SPEC).cloned()),
            // An unmanaged instance may be absent from the observation. Only the node then refers
            // to it.
            instance_id: instance
                .map(|i| i.id.clone())
                .or_else(|| node.and_then(|node| node.instance.clone())),
            node: node.map(|node| node.name.clone()),
            node_uid: node.map(|node| node.uid.clone()),
            launched_at: instance.map(|i| i.launched_at),
            group: None,
        }
    }

    /// Returns the state after a launch. The zone of a new group member is known only for groups
    /// with a single zone.
    pub(super) fn after(&self, node: &NewNode) -> NodeState {
        let mut state = after(node);
        if self.has_open_zone(node) {
            (state.zone, state.zone_id) = (None, None);
        }
        state
    }

    fn has_open_zone(&self, node: &NewNode) -> bool {
        let is_member = self.inputs.desired.node_groups.contains_key(&node.pool);
        is_member && !node.labels.contains_key(key::ZONE)
    }

    /// Returns the fields that are unknown before the launch.
    pub(super) fn unknown_fields(&self, node: &NewNode) -> BTreeMap<String, bool> {
        let zone_fields = ["zone", "zone_id"].into_iter().filter(|_| self.has_open_zone(node));
        let keys = ["instance_id", "node", "node_uid"].into_iter().chain(zone_fields);
        keys.map(|key| (key.to_owned(), true)).collect()
    }

    /// Returns the requests of the DaemonSet pods on an existing node; zero before the node has
    /// joined.
    pub(super) fn daemons(&self, existing: &ExistingNode) -> Amount {
        if existing.labels.is_empty() && self.node(existing).is_none() {
            return Amount::default();
        }
        let daemons = &self.inputs.demand.daemons;
        Amount::from(&daemon_requests(
            daemons,
            &existing.labels,
            &existing.taints,
            &existing.allocatable,
        ))
    }

    /// Returns the workloads on which a removal depends, with their maximum number of pods:
    /// workloads on the node, and workloads with more pods than planned.
    pub(super) fn workloads_at_most(&self, existing: &ExistingNode) -> Vec<(WorkloadId, u32)> {
        let demand = self.inputs.demand;
        let concerns = |group: &&crate::demand::PodGroup| {
            group.active_on(&existing.name) > 0 || group.active() > demand.planned(group)
        };
        let groups = demand.groups.iter().filter(concerns);
        groups.map(|group| (group.workload.clone(), demand.planned(group))).collect()
    }

    /// Replaces the node name in a reason of the solver with the row address.
    pub(super) fn with_address(&self, reason: &LaunchReason) -> LaunchReason {
        match reason {
            LaunchReason::Replacement { of, because } => {
                let existing = self
                    .inputs
                    .solution
                    .existing_nodes
                    .iter()
                    .find(|s| s.name.as_str() == of.as_str());
                let of = existing
                    .map_or_else(|| of.clone(), |existing| self.identity_of(existing).address);
                LaunchReason::Replacement { of, because: because.clone() }
            }
            LaunchReason::Demand { .. }
            | LaunchReason::Consolidation { .. }
            | LaunchReason::Static { .. } => reason.clone(),
        }
    }
}

fn after(node: &NewNode) -> NodeState {
    let NewNode {
        pool,
        node_class: _, // determined by the pool and `spec_digest`
        instance_type,
        zone,
        zone_id,
        capacity_type,
        image,
        labels,
        taints,
        startup_taints,
        capacity,
        allocatable,
        price: _,           // part of `explain`, because a price is no decision
        price_estimated: _, // part of `cost`
        spec_digest,
        reservation,
        open_labels,
        overlays: _,     // part of `explain`; amounts and prices include their changes
        relaxed: _,      // part of `explain`
        alternatives: _, // a separate row
    } = node;
    NodeState {
        pool: Some(pool.clone()),
        instance_type: Some(instance_type.clone()),
        zone: Some(zone.clone()),
        zone_id: Some(zone_id.clone()),
        capacity_type: Some(*capacity_type),
        image: Some(image.clone()),
        labels: labels.clone(),
        taints: taints.clone(),
        startup_taints: startup_taints.clone(),
        capacity: Amount::from(capacity),
        allocatable: Amount::from(allocatable),
        reservation: reservation.clone(),
        open_labels: open_labels.clone(),
        spec_digest: Some(spec_digest.clone()),
        instance_id: None,
        node: None,
        node_uid: None,
        launched_at: None,
        group: None,
    }
}
