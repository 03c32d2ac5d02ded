//! Pods of one workload that their volumes bind to different nodes, and claims that not every pod
//! can have.
//!
//! Invariant: the parts of a group add up to what is planned of it, and each of its pods that runs
//! and stays is in one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::claims::Claims;
use super::pod_volume::{Sharing, VolumeProblem};
use super::shape::Unsupported;
use super::{Demand, PodGroup, PodShape, ReplicaPartition};
use crate::model::ids::{NodeName, WorkloadKind};
use crate::model::observed::Pod;
use crate::model::pod::{PodTemplate, Volume, VolumeSource};

/// Returns the parts of a `StatefulSet`: the claims of each of its ordinals may be bound elsewhere.
/// None where all its pods are alike.
pub(super) fn stateful_set_partitions(
    group: &PodGroup,
    (template, first_ordinal): (&PodTemplate, u32),
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
    joined(ordinals.map(|ordinal| {
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

/// Returns the parts of a workload that only the world knows: each of its pods has volumes of its
/// own. None where all its pods are alike.
pub(super) fn live_partitions(
    shape: &PodShape,
    claims: &Claims<'_>,
    pods: &[&Pod],
    templates: &BTreeMap<String, Arc<PodTemplate>>,
) -> Vec<ReplicaPartition> {
    joined(pods.iter().map(|pod| {
        let volumes = templates.get(&pod.template).map(|t| t.spec.volumes.as_slice());
        let shape = claims.with_volumes(shape, volumes.unwrap_or_default(), Some(&pod.name));
        (Arc::new(shape), pod.node.clone())
    }))
}

/// Joins pods that are alike.
fn joined(pods: impl Iterator<Item = (Arc<PodShape>, Option<NodeName>)>) -> Vec<ReplicaPartition> {
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
    /// Makes `parts` the pods of the group; where there is just one, all its pods are alike.
    pub(super) fn set_partitions(&mut self, mut parts: Vec<ReplicaPartition>) {
        parts.retain(|part| part.planned > 0);
        if let [only] = parts.as_slice() {
            self.shape = Arc::clone(&only.shape);
            parts.clear();
        }
        if let Some(first) = parts.iter().find(|part| part.shape.unsupported.is_empty()) {
            // What the parts have in common: a workload is as placeable as some part of it.
            let mut common = (*first.shape).clone();
            common.nodes.any_of = common.nodes.stated().to_vec();
            common.nodes.without_volumes = None;
            self.shape = Arc::new(common);
        }
        self.partitions = parts;
    }

    /// Returns its pods as parts, one where all are alike.
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
    /// Settles who has which claim: one that a single pod uses is that pod's own; one that is for
    /// one pod goes to the pod that has it, else to the first of the highest priority, and every
    /// other pod waits.
    pub(super) fn share_claims(&mut self) {
        let users = self.users();
        let alone = |name: &str| users.get(name).is_none_or(|users| *users <= 1);
        let mut order: Vec<usize> = (0..self.groups.len()).collect();
        order.sort_by_key(|index| {
            let PodGroup { running, shape, workload, .. } = &self.groups[*index];
            (running.is_empty(), std::cmp::Reverse(shape.priority), workload.clone())
        });
        let mut taken: BTreeSet<String> = BTreeSet::new();
        for index in order {
            let group = &mut self.groups[index];
            if !shares(&group.shape) && !group.partitions.iter().any(|part| shares(&part.shape)) {
                continue;
            }
            let parts = group.as_parts().into_iter();
            let parts = parts.flat_map(|part| one_by_one(part, &alone, &mut taken)).collect();
            group.set_partitions(parts);
        }
    }

    /// Returns how many planned pods use each claim that several may use.
    fn users(&self) -> BTreeMap<String, u32> {
        let mut users: BTreeMap<String, u32> = BTreeMap::new();
        let mut count = |shape: &PodShape, pods: u32| {
            for mount in shape.volumes.iter().filter(|mount| mount.sharing != Sharing::Own) {
                let users = users.entry(mount.name.clone()).or_insert(0);
                *users = users.saturating_add(pods);
            }
        };
        for group in &self.groups {
            group.as_parts().iter().for_each(|part| count(&part.shape, part.planned));
        }
        // A daemon has a pod on every node, so that what it uses is never another pod's alone.
        self.daemons.iter().for_each(|daemon| count(&daemon.shape, 2));
        users
    }
}

fn shares(shape: &PodShape) -> bool {
    shape.volumes.iter().any(|mount| mount.sharing != Sharing::Own)
}

/// Splits a part into the pod that gets the claims that are for one pod, and those that wait.
fn one_by_one(
    part: ReplicaPartition,
    alone: &impl Fn(&str) -> bool,
    taken: &mut BTreeSet<String>,
) -> Vec<ReplicaPartition> {
    let mut shape = (*part.shape).clone();
    for mount in shape.volumes.iter_mut().filter(|mount| alone(&mount.name)) {
        mount.sharing = Sharing::Own;
    }
    shape.keep_to_zones_of_claims();
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

/// Splits off the first `count` of the pods that run.
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
