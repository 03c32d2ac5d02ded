//! Reads the live state through the ports into one [`Observed`].
//!
//! This module orders the reads and marks incomplete ones. It neither retries nor decides.
//!
//! Invariant: unknown is not empty. A failed or contradictory read is marked in `sources`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::apply::ports::{Clock, Cloud, CloudInventory, Cluster, ClusterObjects, PortError};
use crate::model::ids::NodeName;
use crate::model::observed::{
    ClusterIdentity, Completeness, FORMAT_VERSION, Observed, UnreadObject, UntaggedNode,
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
    let (ec2, kubernetes) = (ec2_completeness(&inventory), kubernetes_completeness(&objects));
    let CloudInventory { instances, groups, reservations, fargate_profiles, resolved, unread: _ } =
        inventory.unwrap_or_default();
    let ClusterObjects {
        nodes,
        pods,
        templates,
        workloads,
        jobs,
        storage,
        scaling,
        unread: _,
        unread_objects: unread,
        pools,
    } = objects.unwrap_or_default();
    let mut observed = Observed {
        format_version: FORMAT_VERSION.to_owned(),
        cluster: identity,
        taken_at,
        sources: [(EC2.to_owned(), ec2), (KUBERNETES.to_owned(), kubernetes)].into(),
        instances: instances.into_iter().map(|i| (i.id.clone(), i)).collect(),
        nodes: nodes.into_iter().map(|n| (n.name.clone(), n)).collect(),
        workloads,
        jobs,
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
        pools: pools.map(Arc::new),
    };
    remove_unreported_nodes(&mut observed);
    add_unlisted_instances(cloud, &mut observed).await;
    name_disowned_nodes(&mut observed);
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

fn ec2_completeness(inventory: &Result<CloudInventory, PortError>) -> Completeness {
    match inventory {
        Ok(inventory) => partial(&inventory.unread).unwrap_or(Completeness::Complete),
        Err(error) => Completeness::Failed { reason: error.to_string() },
    }
}

/// Adds the instances of our nodes that the list of EC2 lacks: they lost their tags, or are newer
/// than the list.
async fn add_unlisted_instances<C: Cloud>(cloud: &C, observed: &mut Observed) {
    let ids = observed.unlisted_instances();
    if ids.is_empty() || observed.sources.get(EC2) != Some(&Completeness::Complete) {
        return;
    }
    match cloud.find_instances(&ids).await {
        Ok(found) => observed.instances.extend(found.into_iter().map(|i| (i.id.clone(), i))),
        Err(error) => mark_ec2_partial(observed, error.to_string()),
    }
}

fn mark_ec2_partial(observed: &mut Observed, reason: String) {
    observed.sources.insert(EC2.to_owned(), Completeness::Partial { reason });
}

/// Names our nodes whose instances lost their tags, or are not ours. Each of them stays.
///
/// If no node of ours has an instance of ours, the name of the cluster or the account may be wrong.
/// The read is then incomplete.
fn name_disowned_nodes(observed: &mut Observed) {
    if observed.sources.get(EC2) != Some(&Completeness::Complete) {
        return;
    }
    let contradicted = observed.contradicted_nodes();
    if let Some((node, reason)) = contradicted.first_key_value()
        && !observed.has_tagged_node()
    {
        let reason = format!("no instance of a Ready node has our tags: node `{node}` {reason}");
        return mark_ec2_partial(observed, reason);
    }
    let untagged = observed.untagged_nodes().into_iter().map(|(name, node)| {
        let UntaggedNode { instance, .. } = &node;
        let lost = node.lost_tags();
        (name, format!("has instance {instance}, which runs without the tags {lost}"))
    });
    let named = untagged.chain(contradicted).map(|(name, reason)| UnreadObject {
        object: format!("Node {name}"),
        reason,
        nodes: [name.clone()].into(),
        hides_requests: false,
    });
    let named: Vec<UnreadObject> = named.collect();
    observed.unread.extend(named);
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
