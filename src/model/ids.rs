//! Typed identifiers, and origins of objects in the repository.
//!
//! An ID is an immutable, ordered text that is cheap to clone. Distinct types prevent the use of a
//! pool name as a node name. The types do not validate characters, so human-readable output must
//! escape them.

mod shared;

pub use shared::Shared;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Defines ID types as newtypes over shared text, with the usual conversions.
macro_rules! define_id {
    ($(#[$doc:meta] $name:ident),+ $(,)?) => {$(
        #[$doc]
        #[derive(
            Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        #[serde(transparent)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Returns the ID as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Replaces the text of the ID with the interned copy.
            pub fn share(&mut self, interner: &mut $crate::model::ids::TextInterner) {
                interner.share(&mut self.0);
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }
    )+};
}
pub(crate) use define_id;

define_id! {
    /// Name of a pool (`NodePool` or `Provisioner`).
    PoolName,
    /// Name of a node class (`EC2NodeClass` or `AWSNodeTemplate`).
    NodeClassName,
    /// Name of an EC2 instance type, such as `m5.large`.
    InstanceTypeName,
    /// Name of an AWS region, such as `eu-west-1`.
    Region,
    /// Name of an availability zone in one account, such as `us-east-1a`.
    ZoneName,
    /// ID of an availability zone, equal in all accounts, such as `use1-az1`.
    ZoneId,
    /// ID of an EC2 instance, such as `i-0abc`.
    InstanceId,
    /// ID of an EC2 capacity reservation, such as `cr-0abc`.
    ReservationId,
    /// ID of a machine image, such as `ami-0abc`.
    ImageId,
    /// ID of a subnet, such as `subnet-0abc`.
    SubnetId,
    /// ID of a security group, such as `sg-0abc`.
    SecurityGroupId,
    /// Name of an Auto Scaling group.
    GroupName,
    /// Name of a Kubernetes node.
    NodeName,
    /// UID of an object, assigned by the API server.
    Uid,
    /// Name of a Kubernetes namespace.
    Namespace,
    /// Key of a label.
    LabelKey,
    /// Value of a label.
    LabelValue,
    /// Key of a workload, as `namespace/kind/name`.
    WorkloadKey,
    /// Address of a plan row, such as `ec2_instance.web["0"]`.
    Address,
    /// ID of a change: a hash of plan ID and address. Launched instances carry it as a tag.
    ChangeId,
    /// ID of a plan for one observed world. A repeated apply of it launches nothing twice.
    PlanId,
    /// SHA-256 of the decisions of a plan, as `sha256:` and 64 hex digits. Approvals refer to it.
    Digest,
}

/// Interned texts. Equal IDs share one copy.
#[derive(Debug, Default)]
pub struct TextInterner(BTreeSet<Arc<str>>);

impl TextInterner {
    /// Replaces `text` with its interned copy. A new text is interned.
    pub fn share(&mut self, text: &mut Arc<str>) {
        match self.0.get(text) {
            Some(known) => *text = Arc::clone(known),
            None => drop(self.0.insert(Arc::clone(text))),
        }
    }

    /// Drops texts that are unused by any ID.
    pub fn drop_unused(&mut self) {
        self.0.retain(|text| Arc::strong_count(text) > 1);
    }
}

/// Labels of a Kubernetes object.
pub type Labels = Shared<LabelKey, LabelValue>;

/// Tags of an EC2 resource.
pub type Tags = Shared<String, String>;

/// Source file and line of an object.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct Origin {
    /// Path relative to the repository root, with `/` separators.
    pub file: Arc<str>,
    /// Line number, starting at 1; 0 means the whole file.
    pub line: u32,
}

impl ZoneName {
    /// Returns true for a Local Zone or a Wavelength Zone of `region`, such as `us-east-1-bos-1a`.
    pub fn is_edge_of(&self, region: &Region) -> bool {
        let rest = self.as_str().strip_prefix(region.as_str());
        !region.as_str().is_empty() && rest.is_some_and(|rest| rest.starts_with('-'))
    }
}

/// Beginning of the place of an object that is read from the API server.
const CLUSTER_PREFIX: &str = "cluster:";

impl Origin {
    /// Returns the origin at `line` of `file`.
    pub fn new(file: &str, line: u32) -> Self {
        Self { file: file.into(), line }
    }

    /// Returns the place of an object of the cluster, such as `cluster:nodepool/general`.
    pub fn in_cluster(kind: &str, name: &str) -> Self {
        Self::new(&format!("{CLUSTER_PREFIX}{}/{name}", kind.to_ascii_lowercase()), 0)
    }

    /// Returns true if the object is in the cluster, so that no file has it.
    pub fn is_in_cluster(&self) -> bool {
        self.line == 0 && self.file.starts_with(CLUSTER_PREFIX)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "{}", self.file)
        } else {
            write!(f, "{}:{}", self.file, self.line)
        }
    }
}

/// Kind of an object that owns pods.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum WorkloadKind {
    /// `apps/v1` Deployment.
    Deployment,
    /// `apps/v1` StatefulSet.
    StatefulSet,
    /// `apps/v1` DaemonSet.
    DaemonSet,
    /// `apps/v1` ReplicaSet without an owning Deployment.
    ReplicaSet,
    /// `v1` ReplicationController.
    ReplicationController,
    /// `batch/v1` Job.
    Job,
    /// `batch/v1` CronJob.
    CronJob,
    /// `v1` Pod without an owner.
    Pod,
    /// `argoproj.io` Rollout.
    Rollout,
    /// `keda.sh` ScaledJob.
    ScaledJob,
    /// `autoscaling.x-k8s.io` CapacityBuffer, a placeholder for future pods.
    CapacityBuffer,
}

impl WorkloadKind {
    /// Returns the kind as spelled in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::ReplicaSet => "ReplicaSet",
            Self::ReplicationController => "ReplicationController",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
            Self::Pod => "Pod",
            Self::Rollout => "Rollout",
            Self::ScaledJob => "ScaledJob",
            Self::CapacityBuffer => "CapacityBuffer",
        }
    }

    /// Returns true if kube-scheduler applies its default spread constraints to pods of this kind
    /// of controller.
    ///
    /// Source: `pkg/scheduler/framework/plugins/helper/spread.go`.
    pub fn is_spread_by_default(self) -> bool {
        match self {
            Self::Deployment
            | Self::StatefulSet
            | Self::ReplicaSet
            | Self::ReplicationController
            // The pods of a Rollout belong to a ReplicaSet.
            | Self::Rollout => true,
            Self::DaemonSet
            | Self::Job
            | Self::CronJob
            | Self::ScaledJob
            | Self::CapacityBuffer
            | Self::Pod => false,
        }
    }
}

impl fmt::Display for WorkloadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Identity of a workload, ordered by namespace, name and kind.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct WorkloadId {
    /// Namespace; `default` if the manifest declares no namespace.
    pub namespace: Namespace,
    /// Name of the object.
    pub name: Arc<str>,
    /// Kind of the object.
    pub kind: WorkloadKind,
}

impl fmt::Display for WorkloadId {
    /// Writes `namespace/name`, without the kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Mark between the prefix of a generated name and the place of its object, as in `run-@job.yaml:1`.
pub const PLACE_MARK: char = '@';

/// Returns the key of a workload in reasons: `namespace/kind/name`.
pub fn workload_key(workload: &WorkloadId) -> String {
    format!("{}/{}/{}", workload.namespace, workload.kind, workload.name)
}
