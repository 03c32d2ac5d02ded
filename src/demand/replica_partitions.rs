//! Pods of one workload that their volumes bind to different nodes, and claims that only one pod
//! can use.
//!
//! Invariant: the planned counts of a group's partitions add up to the planned count of the group.
//! Each running pod that stays is in one of the partitions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::pod_volume::{Sharing, VolumeProblem};
use super::shape::Unsupported;
use super::volume_claims::Claims;
use super::{Demand, PodGroup, PodShape, ReplicaPartition};
use crate::model::ids::{NodeName, WorkloadKind};
use crate::model::observed::Pod;
use crate::model::pod::{PodTemplate, Volume, VolumeSource};

/// Returns the partitions of a `StatefulSet`. The claims of each ordinal may be bound to different
/// nodes. The result is empty if the workload has no claim templates.
pub(super) fn stateful_set_partitions(
    group: &PodGroup,
    template: &PodTemplate,
    first_ordinal: u32,
    claims: &Claims<'_>,
    live: &[&Pod],
) -> Vec<ReplicaPartition> {
    let templated = |volume: &Volume| matches!(volume.source, VolumeSource::ClaimTemplate(_));
    let volumes = &template.spec.volumes;
    if group.workload.kind != WorkloadKind::StatefulSet || !volumes.iter().any(templated) {
        return Vec::new();
    }
    let by_name: BTreeMap<&str, &Pod> = live.iter().map(|pod| (&*pod.name, *pod)).collect();
    let ordinals = first_ordinal..first_ordinal.saturating_add(group.counts.planned);
    let namespace = &group.workload.namespace;
    grouped(ordinals.map(|ordinal| {
        let name = format!("{}-{ordinal}", group.workload.name);
        let node = by_name.get(name.as_str()).and_then(|pod| pod.node.clone());
        let shape = if claims.has_existing_claim(namespace, volumes, &name) {
            Arc::new(claims.with_volumes(&group.shape, volumes, Some(&name)))
        } else {
            Arc::clone(&group.shape)
        };
        (shape, node)
    }))
}

/// Returns the partitions of a workload that exists only in the cluster, by the volumes of its
/// pods.
pub(super) fn live_partitions(
    shape: &PodShape,
    claims: &Claims<'_>,
    pods: &[&Pod],
    templates: &BTreeMap<String, Arc<PodTemplate>>,
) -> Vec<ReplicaPartition> {
    grouped(pods.iter().map(|pod| {
        let volumes = templates.get(&*pod.template).map(|t| t.spec.volumes.as_slice());
        let shape = claims.with_volumes(shape, volumes.unwrap_or_default(), Some(&pod.name));
        (Arc::new(shape), pod.node.clone())
    }))
}

/// Groups pods of equal shape.
fn grouped(pods: impl Iterator<Item = (Arc<PodShape>, Option<NodeName>)>) -> Vec<ReplicaPartition> {
    let mut parts: BTreeMap<Arc<PodShape>, (u32, BTreeMap<NodeName, u32>)> = BTreeMap::new();
    for (shape, node) in pods {
        let (planned, running) = parts.entry(shape).or_default();
        *planned += 1;
        if let Some(node) = node {
            *running.entry(node).or_insert(0) += 1;
        }
    }
    let part = |(shape, (planned, running))| ReplicaPartition { shape, planned, running };
    parts.into_iter().map(part).collect()
}

impl PodGroup {
    /// Sets the partitions of the group. A single partition becomes the shape of the group.
    pub(super) fn set_partitions(&mut self, mut parts: Vec<ReplicaPartition>) {
        parts.retain(|part| part.planned > 0);
        if let [only] = parts.as_slice() {
            self.shape = Arc::clone(&only.shape);
            parts.clear();
        }
        if let Some(first) = parts.iter().find(|part| part.shape.unsupported.is_empty()) {
            // Use the common shape: the workload is as placeable as one of its partitions.
            let mut common = (*first.shape).clone();
            common.nodes.any_of = common.nodes.stated().to_vec();
            common.nodes.without_volumes = None;
            self.shape = Arc::new(common);
        }
        self.partitions = parts;
    }

    /// Returns the partitions of the group, or one partition if all pods are equal.
    fn as_parts(&self) -> Vec<ReplicaPartition> {
        let Self { shape, counts, running, partitions: parts, .. } = self;
        let whole = || ReplicaPartition {
            shape: Arc::clone(shape),
            planned: counts.planned,
            running: running.clone(),
        };
        if parts.is_empty() { vec![whole()] } else { parts.clone() }
    }
}

impl Demand {
    /// Assigns claims to pods. A claim with a single user becomes the pod's own. A single-pod claim
    /// goes to the pod that uses it, or else to the first pod of the highest priority. All other
    /// pods of that claim are blocked.
    pub(super) fn share_claims(&mut self) {
        let claim_users = self.claim_users();
        let is_exclusive = |name: &str| claim_users.get(name).is_none_or(|count| *count <= 1);
        let mut order: Vec<usize> = (0..self.groups.len()).collect();
        order.sort_by_key(|index| {
            let PodGroup { running, shape, workload, .. } = &self.groups[*index];
            (running.is_empty(), std::cmp::Reverse(shape.priority), workload.clone())
        });
        let mut taken: BTreeSet<String> = BTreeSet::new();
        for index in order {
            let group = &mut self.groups[index];
            if !has_shared_claims(&group.shape)
                && !group.partitions.iter().any(|part| has_shared_claims(&part.shape))
            {
                continue;
            }
            let parts = group.as_parts().into_iter();
            let parts = parts
                .flat_map(|part| assign_single_pod_claims(part, &is_exclusive, &mut taken))
                .collect();
            group.set_partitions(parts);
        }
    }

    /// Returns the number of planned pods that use each shareable claim.
    fn claim_users(&self) -> BTreeMap<String, u32> {
        let mut claim_users: BTreeMap<String, u32> = BTreeMap::new();
        let mut count = |shape: &PodShape, pods: u32| {
            for mount in shape.volumes.iter().filter(|mount| mount.sharing != Sharing::Own) {
                let count = claim_users.entry(mount.name.clone()).or_insert(0);
                *count = count.saturating_add(pods);
            }
        };
        for group in &self.groups {
            group.as_parts().iter().for_each(|part| count(&part.shape, part.planned));
        }
        // A DaemonSet runs a pod on every node, so it counts as more than one user.
        self.daemons.iter().for_each(|daemon| count(&daemon.shape, 2));
        claim_users
    }
}

fn has_shared_claims(shape: &PodShape) -> bool {
    shape.volumes.iter().any(|mount| mount.sharing != Sharing::Own)
}

/// Splits a partition into the pod that gets the single-pod claims, and the blocked pods.
fn assign_single_pod_claims(
    part: ReplicaPartition,
    is_exclusive: &impl Fn(&str) -> bool,
    taken: &mut BTreeSet<String>,
) -> Vec<ReplicaPartition> {
    let mut shape = (*part.shape).clone();
    for mount in shape.volumes.iter_mut().filter(|mount| is_exclusive(&mount.name)) {
        mount.sharing = Sharing::Own;
    }
    shape.add_claim_affinity();
    let contested = shape.volumes.iter().filter(|mount| mount.sharing == Sharing::OnePod);
    let contested: Vec<String> = contested.map(|mount| mount.name.clone()).collect();
    if contested.is_empty() || part.planned == 0 {
        return vec![ReplicaPartition { shape: Arc::new(shape), ..part }];
    }
    let first = u32::from(!contested.iter().any(|name| taken.contains(name)));
    taken.extend(contested.iter().cloned());
    let (here, rest) = split(&part.running, first);
    let winner = ReplicaPartition { shape: Arc::new(shape.clone()), planned: first, running: here };
    for mount in shape.volumes.iter_mut().filter(|mount| contested.contains(&mount.name)) {
        mount.problem = mount.problem.take().or(Some(VolumeProblem::InUse));
    }
    if !shape.unsupported.contains(&Unsupported::Volumes) {
        shape.unsupported.push(Unsupported::Volumes);
        shape.unsupported.sort();
    }
    let planned = part.planned - first;
    vec![winner, ReplicaPartition { shape: Arc::new(shape), planned, running: rest }]
}

/// Splits the first `count` running pods from the rest.
fn split(
    running: &BTreeMap<NodeName, u32>,
    mut count: u32,
) -> (BTreeMap<NodeName, u32>, BTreeMap<NodeName, u32>) {
    let (mut first, mut rest) = (BTreeMap::new(), BTreeMap::new());
    for (node, pods) in running {
        let taken = count.min(*pods);
        count -= taken;
        for (list, pods) in [(&mut first, taken), (&mut rest, pods - taken)] {
            if pods > 0 {
                list.insert(node.clone(), pods);
            }
        }
    }
    (first, rest)
}

#[cfg(test)]
mod tests;
