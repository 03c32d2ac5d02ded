//! The capacity-related fields of eksctl's `ClusterConfig`, and Fargate profiles of the ACK
//! controller.
//!
//! A file may contain many clusters. Only this fleet's cluster is read; the others are skipped.

mod bootstrap_command;
mod bottlerocket;
mod fargate_profiles;
mod node_groups;

pub(super) use fargate_profiles::ack_profile;

use std::collections::BTreeMap;

use super::collector::Collector;
use super::decode::{Field, FieldMap};
use super::object_meta::ObjectMeta;
use crate::model::desired::{DISCOVERY_PREFIX, GroupKind};

/// Fields of a `ClusterConfig` that do not affect capacity.
const IRRELEVANT: &[&str] = &[
    "apiVersion",
    "kind",
    "metadata",
    "accessConfig",
    "addons",
    "addonsConfig",
    "autoModeConfig",
    "availabilityZones",
    "capabilities",
    "cloudWatch",
    "controlPlaneScalingConfig",
    "deletionProtection",
    "gitops",
    "iam",
    "iamIdentityMappings",
    "identityProviders",
    "karpenter",
    "kubernetesNetworkConfig",
    "localZones",
    "outpost",
    "privateCluster",
    "remoteNetworkConfig",
    "secretsEncryption",
    "status",
    "upgradePolicy",
    "vpc",
    "zonalShiftConfig",
];

/// Reads a `ClusterConfig`.
pub(super) fn cluster_config(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    if !into.accepts_cluster(&meta.name) {
        return into.skip(meta.origin, format!("cluster {}", super::decode::shorten(&meta.name)));
    }
    if let Some(profiles) = root.get("fargateProfiles") {
        for item in profiles.items() {
            fargate_profiles::profile(&item, into);
        }
    }
    let cluster = node_groups::ClusterSettings { name: meta.name, tags: autoscaler_tags(root) };
    for (key, kind) in
        [("nodeGroups", GroupKind::Unmanaged), ("managedNodeGroups", GroupKind::Managed)]
    {
        if let Some(listed) = root.get(key) {
            for item in listed.items() {
                node_groups::group(&kind, &cluster, &item, into);
            }
        }
    }
    root.ignore(IRRELEVANT);
    root.finish_with_typo_check();
}

/// Returns the tags of the cluster that Cluster Autoscaler reads. eksctl copies them to every group.
fn autoscaler_tags(root: &FieldMap<'_>) -> BTreeMap<String, String> {
    let tags = root.get("metadata").and_then(|metadata| {
        let metadata = metadata.map()?;
        let tags = metadata.get("tags")?;
        let tags = tags.map()?;
        let of_autoscaler = tags.entries().filter(|(key, _)| key.starts_with(DISCOVERY_PREFIX));
        let read =
            |(key, value): (&str, Field<'_>)| Some((key.to_owned(), value.text()?.into_owned()));
        Some(of_autoscaler.filter_map(read).collect())
    });
    tags.unwrap_or_default()
}
