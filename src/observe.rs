//! Reads what runs, through the ports, into one [`Observed`].
//!
//! This module knows in which order to read and how to mark what could not be read. It decides
//! nothing, retries nothing and knows no adapter. Invariant: unknown is not empty; a read that
//! failed, or that contradicts another read, leaves its mark in `sources`.

use std::collections::BTreeSet;

use crate::fleet::{ClusterIdentity, Completeness, FORMAT_VERSION, KEY_LABEL, Node, Observed};
use crate::port::{Clock, Cloud, Cluster, ClusterObjects, Holdings, PortError};

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
    let holdings = cloud.holdings().await;
    let objects = cluster.objects().await;
    let (ec2, kubernetes) = (judge_ec2(&holdings, &objects), judge_kubernetes(&objects));
    let Holdings { instances, groups, reservations, fargate_profiles, resolved, unread: _ } =
        holdings.unwrap_or_default();
    let ClusterObjects { nodes, pods, templates, workloads, storage, scaling, unread: _ } =
        objects.unwrap_or_default();
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
        // No port tells yet what is sold out.
        exclusions: Vec::new(),
        reservations: reservations.into_iter().map(|r| (r.id.clone(), r)).collect(),
        groups: groups.into_iter().map(|g| (g.name.clone(), g)).collect(),
        fargate_profiles: fargate_profiles.into_iter().map(|p| (p.name.clone(), p)).collect(),
        // No port tells it: it changes by itself, whoever runs.
        market: None,
        resolved,
        scaling,
    };
    observed.canonicalize();
    observed
}

/// Judges what the account holds, by what the list of nodes says about it.
fn judge_ec2(
    holdings: &Result<Holdings, PortError>,
    objects: &Result<ClusterObjects, PortError>,
) -> Completeness {
    let holdings = match holdings {
        Ok(holdings) => holdings,
        Err(error) => return Completeness::Failed { reason: error.to_string() },
    };
    if let Some(partial) = partial(&holdings.unread) {
        return partial;
    }
    let nodes = objects.as_ref().map_or(&[][..], |objects| &objects.nodes);
    let listed: BTreeSet<_> = holdings.instances.iter().map(|instance| &instance.id).collect();
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

/// Returns the mark of a source of which `unread` could not be read.
fn partial(unread: &[String]) -> Option<Completeness> {
    let first = unread.first()?;
    let more = match unread.len() {
        1 => String::new(),
        n => format!(", and {} more", n - 1),
    };
    Some(Completeness::Partial { reason: format!("{first}{more}") })
}

fn judge_kubernetes(objects: &Result<ClusterObjects, PortError>) -> Completeness {
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
