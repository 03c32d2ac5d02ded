//! Storage objects that constrain placement: classes, volumes, claims and attach limits.
//!
//! The types follow the fields of Kubernetes, so that objects from manifests and from clusters have
//! the same representation. They contain only names and topology, and exclude driver parameters and
//! handles that could contain secrets. This module contains no rules: `demand` derives the nodes
//! that the volumes of a pod permit, and `scheduler` counts attached volumes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::ids::{Labels, Namespace, NodeName};
use crate::model::pod::{NodeTerm, Selector};
use crate::model::units::ResourceName;

/// CSI driver of EBS volumes.
pub const EBS_DRIVER: &str = "ebs.csi.aws.com";

/// In-tree volume plugin for EBS, as a key in volume specifications.
pub const EBS_IN_TREE: &str = "awsElasticBlockStore";

/// Provisioner of storage classes with manually created volumes.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Prefix of resource names for attached volumes.
const ATTACHABLE: &str = "attachable-volumes-csi-";

/// CSI drivers of network file systems.
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

/// Returns the CSI driver that replaces an in-tree `provisioner`, which old objects still name.
/// Other provisioners are returned unchanged.
///
/// Source: `k8s.io/csi-translation-lib/plugins`.
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

/// Returns the resource name for attached volumes of a driver.
///
/// Source: `pkg/volume/util/attach_limit.go`, `GetCSIAttachLimitKey`, extended to names of any
/// length.
pub fn attach_resource(driver: &str) -> ResourceName {
    format!("{ATTACHABLE}{driver}").into()
}

/// Returns true for a name of the form that [`attach_resource`] returns.
pub fn is_attach_resource(name: &ResourceName) -> bool {
    name.as_str().starts_with(ATTACHABLE)
}

/// Returns true for a driver of network file systems, which are reachable from every node.
pub fn is_file_system(driver: &str) -> bool {
    FILE_DRIVERS.contains(&driver)
}

/// Returns the zone in the ID of an in-tree EBS volume, such as `aws://us-east-1a/vol-1`.
pub fn ebs_zone(id: &str) -> Option<&str> {
    let (zone, _) = id.strip_prefix("aws://")?.split_once('/')?;
    Some(zone).filter(|zone| !zone.is_empty())
}

/// Storage objects of a cluster, and attach limits of its nodes.
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
    /// Attach limits by node, from `CSINode` objects. Drivers without a limit and nodes without a
    /// registered driver are omitted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attach_limits: BTreeMap<NodeName, AttachLimits>,
    /// Volumes that are attached to each node or detaching from it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attached: BTreeMap<NodeName, BTreeSet<String>>,
}

impl Storage {
    /// Returns true if there is no storage data.
    pub fn is_empty(&self) -> bool {
        let Self { classes, volumes, claims, attach_limits, attached } = self;
        let none = classes.is_empty() && volumes.is_empty() && claims.is_empty();
        none && attach_limits.is_empty() && attached.is_empty()
    }

    /// Returns the claim with this name.
    pub fn claim(&self, namespace: &Namespace, name: &str) -> Option<&Claim> {
        self.claims.get(namespace)?.get(name)
    }
}

/// A `StorageClass`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageClass {
    /// Provisioner.
    pub provisioner: String,
    /// True if volume binding is delayed until the first pod is scheduled (`WaitForFirstConsumer`).
    #[serde(rename = "waits_for_pod", default)]
    pub wait_for_first_consumer: bool,
    /// Topologies permitted for new volumes; empty means any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_topologies: Vec<NodeTerm>,
    /// True for the default class, which applies to claims without a class.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_default: bool,
    /// Creation time. If there are several default classes, the newest applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
}

/// A `PersistentVolume`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    /// Labels, which claims select.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: Labels,
    /// Required node terms; a node must match at least one. Empty means any node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_terms: Vec<NodeTerm>,
    /// CSI driver that attaches the volume. In-tree drivers have their CSI name. `None` means that
    /// the volume needs no attachment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Storage class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// Claim to which the volume is bound or for which it is reserved, as `namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Size in bytes, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<i64>,
    /// Access modes as declared; empty if unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
}

impl PersistentVolume {
    /// Returns true if the claim with the full name `full` can be bound to the volume. The volume
    /// must be large enough, have the requested access modes, and not be reserved for another
    /// claim.
    pub fn can_bind(&self, claim: &Claim, full: &str) -> bool {
        let is_free = self.claim.as_deref().is_none_or(|reserved_for| reserved_for == full);
        let is_large_enough =
            claim.request.zip(self.capacity).is_none_or(|(requested, size)| requested <= size);
        let mut modes = claim.access_modes.iter();
        let has_modes =
            self.access_modes.is_empty() || modes.all(|m| self.access_modes.contains(m));
        is_free && is_large_enough && has_modes
    }

    /// Returns the storage class; empty for none.
    pub fn class(&self) -> &str {
        self.storage_class.as_deref().unwrap_or_default()
    }

    /// Returns true if an unbound claim may take the volume: it is reserved for no claim, has
    /// storage class `class`, suffices, and has the labels that the claim selects.
    ///
    /// Source: `k8s.io/component-helpers/storage/volume`, `FindMatchingVolume`.
    pub fn suits(&self, claim: &Claim, class: &str) -> bool {
        let is_selected =
            || claim.selector.as_ref().is_none_or(|selector| selector.matches(&self.labels));
        self.claim.is_none() && self.class() == class && self.can_bind(claim, "") && is_selected()
    }

    /// Returns the order in which a claim takes the volumes that suit it: those with the fewest
    /// access modes first, and of these the smallest.
    pub fn choice_order(&self) -> (usize, Option<i64>) {
        (self.access_modes.len(), self.capacity)
    }
}

/// A `PersistentVolumeClaim`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Claim {
    /// Storage class. `None` means the default class, and an empty name means no class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// Name of the bound or requested volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_name: Option<String>,
    /// Selector of the labels of the volume; `None` selects every volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Requested access modes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
    /// Requested size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<i64>,
    /// Binding phase.
    pub phase: ClaimPhase,
    /// True if the claim is being deleted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
}

impl Claim {
    /// Returns true if only a single pod of the cluster may use the claim (`ReadWriteOncePod`).
    pub fn is_single_pod(&self) -> bool {
        self.access_modes.iter().any(|mode| mode == "ReadWriteOncePod")
    }
}

/// Binding phase of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum ClaimPhase {
    /// The claim is unbound, or the binding is incomplete.
    #[default]
    Pending,
    /// The claim is bound, and marked so by Kubernetes (`pv.kubernetes.io/bind-completed`).
    Bound,
    /// The volume of the claim no longer exists.
    Lost,
}
