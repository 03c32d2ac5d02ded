//! The capacity-related fields of eksctl's `ClusterConfig`, and Fargate profiles of the ACK
//! controller.
//!
//! A file may contain many clusters. Only this fleet's cluster is read; the others are skipped.

mod fargate_profiles;
mod node_groups;

pub(super) use fargate_profiles::ack_profile;

use super::collector::Collector;
use super::decode::FieldMap;
use super::object_meta::ObjectMeta;
use crate::model::desired::GroupKind;

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
    for (key, kind) in
        [("nodeGroups", GroupKind::Unmanaged), ("managedNodeGroups", GroupKind::Managed)]
    {
        if let Some(listed) = root.get(key) {
            for item in listed.items() {
                node_groups::group(&kind, &meta.name, &item, into);
            }
        }
    }
    root.ignore(IRRELEVANT);
    root.finish_with_typo_check();
}
