//! Workloads of Kueue: pods that start once their queue admits them.
//!
//! Source: <https://kueue.sigs.k8s.io/docs/concepts/workload/>.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::model::ids::{Labels, Namespace, Uid, WorkloadId};
use crate::model::pod::Toleration;

/// A Workload of Kueue that has not finished.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QueuedWorkload {
    /// Namespace.
    pub namespace: Namespace,
    /// Name.
    pub name: String,
    /// Name of the `LocalQueue`; empty if it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub queue: String,
    /// Top-level owner of the Job or StatefulSet that owns it, such as a CronJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<WorkloadId>,
    /// UIDs of the pods that own it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub pods: BTreeSet<Uid>,
    /// Decision of its queue.
    pub admission: QueueAdmission,
}

/// Decision of a queue on a Workload.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum QueueAdmission {
    /// Its pods may start.
    Admitted {
        /// Number of its pods, without those that need no room anymore.
        pods: u32,
        /// What Kueue adds to the pods: the node labels and tolerations of their `ResourceFlavors`.
        #[serde(default)]
        flavor: QueueFlavor,
    },
    /// Its pods may start, and where they may run is not known.
    Unknown {
        /// Reason, as a phrase.
        because: String,
    },
    /// Its pods may not start.
    Waiting {
        /// Reason, as a phrase.
        because: String,
        /// Admission check that waits for a `ProvisioningRequest`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provisioning_check: Option<String>,
    },
}

/// Scheduling rules that a `ResourceFlavor` adds to pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueFlavor {
    /// Labels that the node of the pods must have.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub node_labels: Labels,
    /// Tolerations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
}
