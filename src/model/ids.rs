//! Typed identifiers, and the origin of objects in the repository.
//!
//! An id is a cheap, ordered, immutable text. The types prevent passing a pool's name as a node's.
//! They guarantee nothing about the characters inside: output for people must escape them.

mod shared;

pub use shared::Shared;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Defines a newtype over shared text with the conversions that ids need.
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
            /// Returns the id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Replaces the text of the id by the interned copy.
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
    /// The name of a pool (`NodePool` or `Provisioner`).
    PoolName,
    /// The name of a node class (`EC2NodeClass` or `AWSNodeTemplate`).
    NodeClassName,
    /// The name of an EC2 instance type, such as `m5.large`.
    InstanceTypeName,
    /// The name of an AWS region, such as `eu-west-1`.
    Region,
    /// The name of an availability zone in one account, such as `us-east-1a`.
    ZoneName,
    /// The id of an availability zone, the same in every account, such as `use1-az1`.
    ZoneId,
    /// The id of an EC2 instance, such as `i-0abc`.
    InstanceId,
    /// The id of an EC2 capacity reservation, such as `cr-0abc`.
    ReservationId,
    /// The id of a machine image, such as `ami-0abc`.
    ImageId,
    /// The id of a subnet, such as `subnet-0abc`.
    SubnetId,
    /// The id of a security group, such as `sg-0abc`.
    SecurityGroupId,
    /// The name of an Auto Scaling group.
    GroupName,
    /// The name of a Kubernetes node.
    NodeName,
    /// The UID that the API server gave an object.
    Uid,
    /// The name of a Kubernetes namespace.
    Namespace,
    /// The key of a label.
    LabelKey,
    /// The value of a label.
    LabelValue,
    /// A workload as `namespace/kind/name`.
    WorkloadKey,
    /// The address of a row of a plan, such as `ec2_instance.web["0"]`.
    Address,
    /// The identity of one change: a hash over plan id and address, carried as a tag of what it launches.
    ChangeId,
    /// The identity of one plan over one world: what is applied at most once.
    PlanId,
    /// A SHA-256 over the decisions of a plan: what is approved. Written `sha256:` and 64 hex digits.
    Digest,
}

/// Interned texts: equal ids share one copy.
#[derive(Debug, Default)]
pub struct TextInterner(BTreeSet<Arc<str>>);

impl TextInterner {
    /// Replaces `text` by the interned copy, or interns it.
    pub fn share(&mut self, text: &mut Arc<str>) {
        match self.0.get(text) {
            Some(known) => *text = Arc::clone(known),
            None => drop(self.0.insert(Arc::clone(text))),
        }
    }

    /// Drops texts that no id uses.
    pub fn drop_unused(&mut self) {
        self.0.retain(|text| Arc::strong_count(text) > 1);
    }
}

/// Labels of a Kubernetes object.
pub type Labels = Shared<LabelKey, LabelValue>;

/// Tags of an EC2 resource.
pub type Tags = Shared<String, String>;

/// The file and line that an object came from.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct Origin {
    /// Path below the root of the repository, with `/` between its parts.
    pub file: Arc<str>,
    /// Line, counted from 1; 0 means the file as a whole.
    pub line: u32,
}

impl Origin {
    /// Returns the origin at `line` of `file`.
    #[must_use]
    pub fn new(file: &str, line: u32) -> Self {
        Self { file: file.into(), line }
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

/// The kinds of object that own pods.
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
    /// `apps/v1` ReplicaSet without a Deployment above it.
    ReplicaSet,
    /// `v1` ReplicationController.
    ReplicationController,
    /// `batch/v1` Job.
    Job,
    /// `batch/v1` CronJob.
    CronJob,
    /// `v1` Pod that nothing owns.
    Pod,
    /// `argoproj.io` Rollout.
    Rollout,
    /// `keda.sh` ScaledJob.
    ScaledJob,
    /// `autoscaling.x-k8s.io` CapacityBuffer, whose pods are room for others.
    CapacityBuffer,
}

impl WorkloadKind {
    /// Returns the kind as a manifest spells it.
    #[must_use]
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

    /// Returns whether the scheduler applies its default spread constraints to pods of such a
    /// controller.
    ///
    /// Source: `pkg/scheduler/framework/plugins/helper/spread.go`.
    #[must_use]
    pub fn is_spread_by_default(self) -> bool {
        match self {
            Self::Deployment
            | Self::StatefulSet
            | Self::ReplicaSet
            | Self::ReplicationController
            // Its pods belong to a ReplicaSet.
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

/// The identity of a workload. Orders by namespace, then name, then kind.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct WorkloadId {
    /// Namespace; `default` where the manifest names none.
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

/// Returns the key of a workload in reasons: `namespace/kind/name`.
#[must_use]
pub fn workload_key(workload: &WorkloadId) -> String {
    format!("{}/{}/{}", workload.namespace, workload.kind, workload.name)
}
