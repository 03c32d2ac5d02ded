//! Eviction order of a node's pods, and volumes that must be detached after the drain.

use std::collections::BTreeSet;

use crate::model::observed::{Node, Observed, Pod};
use crate::model::pod::VolumeSource;

const CRITICAL: [&str; 2] = ["system-cluster-critical", "system-node-critical"];

/// Returns the pods to evict next. Critical pods are evicted last, after the pods that depend on
/// them.
/// Source: Karpenter's drain, and the kubelet's graceful shutdown.
pub(crate) fn next_to_evict<'o>(pods: Vec<&'o Pod>, observed: &Observed) -> Vec<&'o Pod> {
    let is_critical = |pod: &&Pod| {
        let template = observed.templates.get(&*pod.template);
        let class = template.and_then(|template| template.spec.priority_class_name.as_deref());
        class.is_some_and(|class| CRITICAL.contains(&class))
    };
    let (critical, others): (Vec<&Pod>, Vec<&Pod>) = pods.into_iter().partition(is_critical);
    if others.is_empty() { critical } else { others }
}

/// Returns an attached volume of the node that no remaining pod uses.
pub(crate) fn remaining_attachment<'o>(node: &Node, observed: &'o Observed) -> Option<&'o String> {
    let mut attached = observed.storage.attached.get(&node.name)?.iter().peekable();
    attached.peek()?;
    let stays = |pod: &Pod| pod.node.as_ref() == Some(&node.name) && !pod.needs_eviction();
    let used: BTreeSet<&String> = observed
        .pods
        .iter()
        .filter(|pod| stays(pod))
        .filter_map(|pod| Some((pod, observed.templates.get(&*pod.template)?)))
        .flat_map(|(pod, template)| {
            let claims = template.spec.volumes.iter().filter_map(|volume| match &volume.source {
                VolumeSource::Claim(claim) => Some(claim),
                VolumeSource::EphemeralClaim(_)
                | VolumeSource::ClaimTemplate(_)
                | VolumeSource::HostPath
                | VolumeSource::EmptyDir
                | VolumeSource::Ebs(_)
                | VolumeSource::NetworkDisk(_)
                | VolumeSource::InTree(_)
                | VolumeSource::Other => None,
            });
            claims.filter_map(|claim| observed.storage.claim(&pod.namespace, claim))
        })
        .filter_map(|claim| claim.volume_name.as_ref())
        .collect();
    attached.find(|volume| !used.contains(volume))
}
