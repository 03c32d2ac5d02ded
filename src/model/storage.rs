//! Storage that restricts where pods run: classes, volumes, claims, and attach limits of nodes.
//!
//! The types follow Kubernetes' own fields, so that an object read from a manifest and one read from
//! a cluster become the same thing. They hold names and topology only: no parameters of drivers, no
//! handles that could carry a secret. This module holds no rule: `demand` derives the nodes that a
//! pod's volumes allow, `scheduler` counts the volumes that nodes attach.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::ids::{Namespace, NodeName};
use crate::model::pod::NodeTerm;
use crate::model::units::ResourceName;

/// The CSI driver of EBS volumes.
pub const EBS_DRIVER: &str = "ebs.csi.aws.com";

/// The in-tree driver of EBS volumes, as volumes name it.
pub const EBS_IN_TREE: &str = "awsElasticBlockStore";

/// The provisioner of classes whose volumes are created by hand.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Prefix of the resource name that counts attached volumes.
const ATTACHABLE: &str = "attachable-volumes-csi-";

/// Drivers of network file systems.
const FILE_DRIVERS: [&str; 6] = [
    "efs.csi.aws.com",
    "file.csi.azure.com",
    "fsx.csi.aws.com",
    "fsx.openzfs.csi.aws.com",
    "nfs.csi.k8s.io",
    "s3.csi.aws.com",
];

/// Maximum number of volumes on a node, by CSI driver.
pub type AttachLimits = BTreeMap<String, u32>;

/// Returns the CSI driver that replaced an in-tree `provisioner`; old objects still name the latter.
///
/// Source: `k8s.io/csi-translation-lib/plugins`.
#[must_use]
pub fn csi_driver(provisioner: &str) -> &str {
    match provisioner {
        "kubernetes.io/aws-ebs" => EBS_DRIVER,
        "kubernetes.io/gce-pd" => "pd.csi.storage.gke.io",
        "kubernetes.io/azure-disk" => "disk.csi.azure.com",
        "kubernetes.io/azure-file" => "file.csi.azure.com",
        "kubernetes.io/cinder" => "cinder.csi.openstack.org",
        "kubernetes.io/vsphere-volume" => "csi.vsphere.vmware.com",
        "kubernetes.io/portworx-volume" => "pxd.portworx.com",
        _ => provisioner,
    }
}

/// Returns the resource name that counts the attached volumes of a driver.
///
/// Source: `pkg/volume/util/attach_limit.go`, `GetCSIAttachLimitKey`, for names of any length.
#[must_use]
pub fn attach_resource(driver: &str) -> ResourceName {
    format!("{ATTACHABLE}{driver}").into()
}

/// Returns whether [`attach_resource`] produced `name`.
#[must_use]
pub fn is_attach_resource(name: &ResourceName) -> bool {
    name.as_str().starts_with(ATTACHABLE)
}

/// Returns whether the volumes of a driver are network file systems, which any node can reach.
#[must_use]
pub fn is_file_system(driver: &str) -> bool {
    FILE_DRIVERS.contains(&driver)
}

/// Returns the zone in the id of an in-tree EBS volume, such as `aws://us-east-1a/vol-1`.
#[must_use]
pub fn ebs_zone(id: &str) -> Option<&str> {
    let (zone, _) = id.strip_prefix("aws://")?.split_once('/')?;
    Some(zone).filter(|zone| !zone.is_empty())
}

/// The storage objects of a cluster, and the attach limits of its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Storage {
    /// Storage classes, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, StorageClass>,
    /// Persistent volumes, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: BTreeMap<String, PersistentVolume>,
    /// Claims, by namespace and name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<Namespace, BTreeMap<String, Claim>>,
    /// Attach limits by node, from its `CSINode`. Drivers without a limit are not listed, nor are
    /// nodes without a registered driver.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attach_limits: BTreeMap<NodeName, AttachLimits>,
    /// The volumes that are attached to each node or detaching from it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attached: BTreeMap<NodeName, BTreeSet<String>>,
}

impl Storage {
    /// Returns whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { classes, volumes, claims, attach_limits, attached } = self;
        let none = classes.is_empty() && volumes.is_empty() && claims.is_empty();
        none && attach_limits.is_empty() && attached.is_empty()
    }

    /// Returns the claim of that name.
    #[must_use]
    pub fn claim(&self, namespace: &Namespace, name: &str) -> Option<&Claim> {
        self.claims.get(namespace)?.get(name)
    }
}

/// A `StorageClass`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageClass {
    /// Provisioner.
    pub provisioner: String,
    /// Whether a volume is bound only when its first pod is scheduled (`WaitForFirstConsumer`).
    #[serde(rename = "waits_for_pod", default)]
    pub wait_for_first_consumer: bool,
    /// Topologies in which volumes may be created; empty means any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_topologies: Vec<NodeTerm>,
    /// Whether claims that name no class get this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_default: bool,
    /// When it was created: of several default classes the youngest counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
}

/// A `PersistentVolume`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    /// Node terms, one of which must hold; empty means any node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_terms: Vec<NodeTerm>,
    /// CSI driver that attaches it; an in-tree driver by its CSI name. `None`: it is not attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Storage class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// The claim that it is bound to or reserved for, as `namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Size in bytes, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<i64>,
    /// Access modes as written; empty if unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
}

impl PersistentVolume {
    /// Returns whether the claim can be bound to the volume: it is not reserved for another claim, is
    /// large enough, and has the requested access modes.
    #[must_use]
    pub fn can_bind(&self, claim: &Claim, full: &str) -> bool {
        let is_free = self.claim.as_deref().is_none_or(|reserved_for| reserved_for == full);
        let holds = claim.request.zip(self.capacity).is_none_or(|(asked, size)| asked <= size);
        let mut modes = claim.access_modes.iter();
        let has_modes =
            self.access_modes.is_empty() || modes.all(|m| self.access_modes.contains(m));
        is_free && holds && has_modes
    }
}

/// A `PersistentVolumeClaim`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Claim {
    /// Storage class; `None` means the default one, an empty name no class at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// The volume it is bound to, or asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_name: Option<String>,
    /// Access modes as written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
    /// Requested size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<i64>,
    /// Phase of its binding.
    pub phase: ClaimPhase,
    /// Whether it is being deleted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
}

impl Claim {
    /// Returns whether only one pod of the cluster may use it (`ReadWriteOncePod`).
    #[must_use]
    pub fn is_single_pod(&self) -> bool {
        self.access_modes.iter().any(|mode| mode == "ReadWriteOncePod")
    }
}

/// The phase of a claim's binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum ClaimPhase {
    /// Not bound, or not yet bound on both sides.
    #[default]
    Pending,
    /// Bound, and marked so by the controller (`pv.kubernetes.io/bind-completed`).
    Bound,
    /// Its volume no longer exists.
    Lost,
}
