//! Reads the live state through the ports into one [`Observed`].
//!
//! This module orders the reads and marks incomplete ones. It neither retries nor decides.
//!
//! Invariant: unknown is not empty. A failed or contradictory read is marked in `sources`.

use std::collections::{BTreeMap, BTreeSet};

use crate::apply::ports::{Clock, Cloud, CloudInventory, Cluster, ClusterObjects, PortError};
use crate::model::ids::NodeName;
use crate::model::observed::{
    ClusterIdentity, Completeness, FORMAT_VERSION, KEY_LABEL, Node, Observed,
};
use crate::model::units::Resources;

/// Name of the source for instances.
pub const EC2: &str = "ec2";
/// Name of the source for nodes, pods and workloads.
pub const KUBERNETES: &str = "kubernetes";

/// Reads EC2, then Kubernetes, and marks failed reads.
///
/// EC2 is read first, so that every later node is in the instance list or too young to matter.
pub async fn observe<C: Cloud, K: Cluster, T: Clock>(
    cloud: &C,
    cluster: &K,
    clock: &T,
    identity: ClusterIdentity,
) -> Observed {
    let taken_at = clock.now();
    let inventory = cloud.inventory().await;
    let objects = cluster.objects().await;
    let (ec2, kubernetes) =
        (ec2_completeness(&inventory, &objects), kubernetes_completeness(&objects));
    let CloudInventory { instances, groups, reservations, fargate_profiles, resolved, unread: _ } =
        inventory.unwrap_or_default();
    let ClusterObjects {
        nodes,
        pods,
        templates,
        workloads,
        storage,
        scaling,
        unread: _,
        unread_objects: unread,
    } = objects.unwrap_or_default();
    let mut observed = Observed {
        format_version: FORMAT_VERSION.to_owned(),
        cluster: identity,
        taken_at,
        sources: [(EC2.to_owned(), ec2), (KUBERNETES.to_owned(), kubernetes)].into(),
        instances: instances.into_iter().map(|i| (i.id.clone(), i)).collect(),
        nodes: nodes.into_iter().map(|n| (n.name.clone(), n)).collect(),
        workloads,
        templates,
        pods,
        storage,
        // No port reports insufficient capacity yet.
        exclusions: Vec::new(),
        reservations: reservations.into_iter().map(|r| (r.id.clone(), r)).collect(),
        groups: groups.into_iter().map(|g| (g.name.clone(), g)).collect(),
        fargate_profiles: fargate_profiles.into_iter().map(|p| (p.name.clone(), p)).collect(),
        unread,
        planned_pods: BTreeMap::new(),
        // Prices are read elsewhere.
        market: None,
        resolved,
        scaling,
    };
    remove_unreported_nodes(&mut observed);
    observed.canonicalize();
    observed
}

/// Removes nodes that have registered and have not reported their resources yet. Their instances
/// count as starting, with the resources of their type. As nodes, they would have no room.
fn remove_unreported_nodes(observed: &mut Observed) {
    let used: BTreeSet<NodeName> =
        observed.pods.iter().filter_map(|pod| pod.node.clone()).collect();
    observed.nodes.retain(|name, node| {
        let reports = |resources: &Resources| resources.cpu.0 > 0 || resources.memory.0 > 0;
        let is_reported = reports(&node.capacity) || reports(&node.allocatable);
        node.ready || is_reported || node.instance.is_none() || used.contains(name)
    });
}

fn ec2_completeness(
    inventory: &Result<CloudInventory, PortError>,
    objects: &Result<ClusterObjects, PortError>,
) -> Completeness {
    let inventory = match inventory {
        Ok(inventory) => inventory,
        Err(error) => return Completeness::Failed { reason: error.to_string() },
    };
    if let Some(partial) = partial(&inventory.unread) {
        return partial;
    }
    let nodes = objects.as_ref().map_or(&[][..], |objects| &objects.nodes);
    let listed: BTreeSet<_> = inventory.instances.iter().map(|instance| &instance.id).collect();
    // A managed Ready node has a running instance. EC2's responses may lag, and a filter may be
    // wrong.
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

/// Returns the completeness of a source with `unread` objects; `None` if there are none.
fn partial(unread: &[String]) -> Option<Completeness> {
    let first = unread.first()?;
    let more = match unread.len() {
        1 => String::new(),
        n => format!(", and {} more", n - 1),
    };
    Some(Completeness::Partial { reason: format!("{first}{more}") })
}

fn kubernetes_completeness(objects: &Result<ClusterObjects, PortError>) -> Completeness {
    let objects = match objects {
        Ok(objects) => objects,
        Err(error) => return Completeness::Failed { reason: error.to_string() },
    };
    if let Some(partial) = partial(&objects.unread) {
        return partial;
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
