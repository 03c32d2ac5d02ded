//! eksctl's `ClusterConfig`, as far as it decides capacity; and Fargate profiles of the ACK
//! controller.
//!
//! A file may hold the clusters of a whole company: only that of this fleet counts, and others are
//! noted as no input.

mod fargate;
mod groups;

pub(super) use fargate::ack_profile;

use super::collect::Collected;
use super::decode::Map;
use super::group::GroupKind;
use super::meta::Meta;

/// Fields of a `ClusterConfig` that do not decide capacity.
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
pub(super) fn cluster_config(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    if !into.is_of_cluster(&meta.name) {
        return into.skip(meta.origin, format!("cluster {}", super::decode::shorten(&meta.name)));
    }
    if let Some(profiles) = root.get("fargateProfiles") {
        for item in profiles.items() {
            fargate::profile(&item, into);
        }
    }
    for (key, kind) in
        [("nodeGroups", GroupKind::Unmanaged), ("managedNodeGroups", GroupKind::Managed)]
    {
        if let Some(listed) = root.get(key) {
            for item in listed.items() {
                groups::group(&kind, &meta.name, &item, into);
            }
        }
    }
    root.ignore(IRRELEVANT);
    root.finish_exact();
}
