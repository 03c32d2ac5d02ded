//! The observed status of the cluster's pod autoscalers.
//!
//! Every part may be missing: the status of an autoscaler without a row here is unknown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::ids::Namespace;
use crate::model::pod::ResourceList;

/// The live state of autoscalers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Scaling {
    /// HPAs, those that KEDA generated under the name of their ScaledObject included.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub horizontal: Vec<LiveHorizontal>,
    /// Recommendations of vertical autoscalers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vertical: Vec<LiveVertical>,
    /// Sizes of objects with a scale whose kind is not a workload of Kubernetes' own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scales: Vec<LiveScale>,
    /// Status of KEDA's scalers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub event_driven: Vec<LiveEvents>,
}

impl Scaling {
    /// Returns whether no status is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Sorts rows by namespace and name.
    pub fn sort(&mut self) {
        self.horizontal.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        self.vertical.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        self.event_driven.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        self.scales.sort();
    }
}

/// The status of a `HorizontalPodAutoscaler`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveHorizontal {
    /// Namespace.
    pub namespace: Namespace,
    /// Name; of a generated one, that of its ScaledObject.
    pub name: String,
    /// Current pods.
    pub current_replicas: u32,
    /// Desired pods.
    pub desired_replicas: u32,
    /// Ready pods; all of them if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<u32>,
    /// The highest count that it proposed within its stabilization window, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest_recent: Option<u32>,
    /// Current metrics; a missing one could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<LiveMetric>,
}

/// The present value of a metric: one of the three forms.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveMetric {
    /// Name of the resource or metric.
    pub name: String,
    /// Container, of a metric of one container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Use in percent of what is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization: Option<u32>,
    /// Value for each pod, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average_milli: Option<i64>,
    /// Value in all, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_milli: Option<i64>,
}

/// The recommendation of a `VerticalPodAutoscaler`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveVertical {
    /// Namespace.
    pub namespace: Namespace,
    /// Name.
    pub name: String,
    /// Recommendations by container; CPU in thousandths, memory in bytes.
    #[serde(default)]
    pub containers: BTreeMap<String, Recommendation>,
}

/// Recommended requests of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Recommendation {
    /// Recommended request.
    pub target: ResourceList,
    /// Lower bound.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lower: ResourceList,
    /// Upper bound.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub upper: ResourceList,
}

/// The size of an object with a scale.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LiveScale {
    /// Namespace.
    pub namespace: Namespace,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Configured pods.
    pub replicas: u32,
}

/// The status of a `ScaledObject` or `ScaledJob` of KEDA.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveEvents {
    /// Namespace.
    pub namespace: Namespace,
    /// Name.
    pub name: String,
    /// Whether a trigger has failed for longer than its threshold.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_fallback: bool,
    /// Jobs that the queue requires (its length over the target), if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_jobs: Option<u32>,
    /// Pending jobs, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_jobs: Option<u32>,
}
