//! Reads what runs, through the ports, into one [`Observed`].
//!
//! This module knows in which order to read and how to mark what could not be read. It decides
//! nothing, retries nothing and knows no adapter. Invariant: unknown is not empty; a read that
//! failed, or that contradicts another read, leaves its mark in `sources`.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleet::{
    ClusterIdentity, Completeness, FORMAT_VERSION, Instance, KEY_LABEL, Node, Observed,
};
use crate::port::{Clock, Cloud, Cluster, ClusterObjects, PortError};

/// Name of the source that holds instances.
pub const EC2: &str = "ec2";
/// Name of the source that holds nodes, pods and workloads.
pub const KUBERNETES: &str = "kubernetes";

/// Reads EC2, then Kubernetes; a read that fails is marked, never taken for an empty one.
///
/// EC2 comes first, so that a node seen in Kubernetes was launched before the list of instances
/// was made or is too young to matter.
pub async fn observe<C: Cloud, K: Cluster, T: Clock>(
    cloud: &C,
    cluster: &K,
    clock: &T,
    identity: ClusterIdentity,
) -> Observed {
    let taken_at = clock.now();
    let groups = cloud.groups().await;
    let instances = cloud.instances().await;
    let objects = cluster.objects().await;
    let ec2 = match &groups {
        Ok(_) => judge_ec2(&instances, &objects),
        Err(error) => Completeness::Failed { reason: error.to_string() },
    };
    let kubernetes = judge_kubernetes(&objects);
    let ClusterObjects { nodes, pods, templates, workloads, storage, scaling, unread: _ } =
        objects.unwrap_or_default();
    let mut observed = Observed {
        format_version: FORMAT_VERSION.to_owned(),
        cluster: identity,
        taken_at,
        sources: [(EC2.to_owned(), ec2), (KUBERNETES.to_owned(), kubernetes)].into(),
        instances: instances.unwrap_or_default().into_iter().map(|i| (i.id.clone(), i)).collect(),
        nodes: nodes.into_iter().map(|n| (n.name.clone(), n)).collect(),
        workloads,
        templates,
        pods,
        storage,
        // No port tells yet what is sold out, or reserved.
        exclusions: Vec::new(),
        reservations: BTreeMap::new(),
        groups: groups.unwrap_or_default().into_iter().map(|g| (g.name.clone(), g)).collect(),
        fargate_profiles: BTreeMap::new(),
        scaling,
    };
    observed.canonicalize();
    observed
}

/// Judges the list of instances, by what the list of nodes says about it.
fn judge_ec2(
    instances: &Result<Vec<Instance>, PortError>,
    objects: &Result<ClusterObjects, PortError>,
) -> Completeness {
    let instances = match instances {
        Ok(instances) => instances,
        Err(error) => return Completeness::Failed { reason: error.to_string() },
    };
    let nodes = objects.as_ref().map_or(&[][..], |objects| &objects.nodes);
    let listed: BTreeSet<_> = instances.iter().map(|instance| &instance.id).collect();
    // A node of ours that is Ready has a kubelet that answers: its machine exists, whatever the
    // list says. Describe calls lag behind, and a filter may be wrong.
    let missing = |node: &&Node| {
        let ours = node.ready && node.labels.contains_key(KEY_LABEL);
        ours && node.instance.as_ref().is_some_and(|id| !listed.contains(id))
    };
    match nodes.iter().find(missing) {
        None => Completeness::Complete,
        Some(node) => Completeness::Partial {
            reason: format!(
                "EC2 does not list the instance of node `{}`, which is Ready",
                node.name
            ),
        },
    }
}

fn judge_kubernetes(objects: &Result<ClusterObjects, PortError>) -> Completeness {
    let objects = match objects {
        Ok(objects) => objects,
        Err(error) => return Completeness::Failed { reason: error.to_string() },
    };
    if let Some(first) = objects.unread.first() {
        let more = match objects.unread.len() {
            1 => String::new(),
            n => format!(", and {} more", n - 1),
        };
        return Completeness::Partial { reason: format!("{first}{more}") };
    }
    let known = |template: &str| objects.templates.contains_key(template);
    match objects.pods.iter().find(|pod| !known(&pod.template)) {
        None => Completeness::Complete,
        Some(pod) => Completeness::Partial {
            reason: format!("pod `{}/{}` was read without its template", pod.namespace, pod.name),
        },
    }
}

#[cfg(test)]
mod tests;
