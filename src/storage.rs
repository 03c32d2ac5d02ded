//! Storage, as far as it binds pods to nodes: classes, volumes, claims, and what nodes can attach.
//!
//! The types follow Kubernetes' own fields, so that an object read from a manifest and one read from
//! a cluster become the same thing. They hold names and topology only: no parameters of drivers, no
//! handles that could carry a secret. This module holds no rule: `demand` works out where the volumes
//! of a pod let it run, `schedule` counts what nodes attach.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::{Namespace, NodeName};
use crate::pod::NodeTerm;
use crate::units::ResourceName;

/// The CSI driver of EBS volumes.
pub const EBS_DRIVER: &str = "ebs.csi.aws.com";

/// The driver of EBS volumes that was built into Kubernetes, as volumes name it.
pub const EBS_IN_TREE: &str = "awsElasticBlockStore";

/// What a provisioner is called that makes no volumes: they are made by hand.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// What names of attachments begin with, as a resource.
const ATTACHABLE: &str = "attachable-volumes-csi-";

/// Drivers of file systems on the network.
const FILE_DRIVERS: [&str; 6] = [
    "efs.csi.aws.com",
    "file.csi.azure.com",
    "fsx.csi.aws.com",
    "fsx.openzfs.csi.aws.com",
    "nfs.csi.k8s.io",
    "s3.csi.aws.com",
];

/// Most volumes of a node, by CSI driver.
pub type AttachLimits = BTreeMap<String, u32>;

/// Returns the CSI driver that does the work of `provisioner`: built-in ones were moved out of
/// Kubernetes, and their names stay in old objects.
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

/// Returns the name under which what a node can attach of a driver's volumes is counted, as one more
/// resource.
///
/// Source: `pkg/volume/util/attach_limit.go`, `GetCSIAttachLimitKey`, for names of any length.
#[must_use]
pub fn attach_resource(driver: &str) -> ResourceName {
    format!("{ATTACHABLE}{driver}").into()
}

/// Returns whether `name` is one that [`attach_resource`] gives.
#[must_use]
pub fn is_attach_resource(name: &ResourceName) -> bool {
    name.as_str().starts_with(ATTACHABLE)
}

/// Returns whether the volumes of a driver are file systems on the network: any node reaches them,
/// whenever they are bound.
#[must_use]
pub fn is_file_system(driver: &str) -> bool {
    FILE_DRIVERS.contains(&driver)
}

/// Returns the zone that the id of a built-in EBS volume names, such as `aws://us-east-1a/vol-1`.
#[must_use]
pub fn ebs_zone(id: &str) -> Option<&str> {
    let (zone, _) = id.strip_prefix("aws://")?.split_once('/')?;
    Some(zone).filter(|zone| !zone.is_empty())
}

/// The storage objects of a cluster, and what its nodes can attach.
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
    /// What the `CSINode` of each node says that it can attach. A driver that states no limit is not
    /// listed, and a node that no driver has registered on neither.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attach_limits: BTreeMap<NodeName, AttachLimits>,
    /// The volumes that are attached to each node, or on their way off it.
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
    /// Whether a volume waits for its first pod (`WaitForFirstConsumer`).
    #[serde(default)]
    pub waits_for_pod: bool,
    /// Topologies of which a volume must be in one; empty means any.
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
    /// Node terms of which one must hold; empty means any node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_terms: Vec<NodeTerm>,
    /// CSI driver that attaches it; a built-in driver by its CSI name. `None`: nothing attaches it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Storage class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// The claim that it is bound to or kept for, as `namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Size in bytes, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<i64>,
    /// Access modes as written; none where they are not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
}

impl PersistentVolume {
    /// Returns whether a claim of that name may be bound to it, as far as both say: it is kept for no
    /// other, is large enough, and has the modes that are asked for.
    #[must_use]
    pub fn suits(&self, claim: &Claim, full: &str) -> bool {
        let is_free = self.claim.as_deref().is_none_or(|kept_for| kept_for == full);
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
    /// The least size that it asks for, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<i64>,
    /// How far its binding is.
    pub phase: ClaimPhase,
    /// Whether it is on its way out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
}

impl Claim {
    /// Returns whether one pod of the whole cluster may use it, and no second one.
    #[must_use]
    pub fn is_for_one_pod(&self) -> bool {
        self.access_modes.iter().any(|mode| mode == "ReadWriteOncePod")
    }
}

/// How far the binding of a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum ClaimPhase {
    /// Not bound, or not yet bound on both sides.
    #[default]
    Pending,
    /// Bound, and marked so by the controller (`pv.kubernetes.io/bind-completed`).
    Bound,
    /// Its volume is gone.
    Lost,
}
