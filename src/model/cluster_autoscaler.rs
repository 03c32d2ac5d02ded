//! Cluster Autoscaler: the flags of its container, and the node groups that they let it resize.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::competing_autoscaler::{is_in_system_namespace, resizer_kind};
use crate::model::desired::{Desired, Scale};
use crate::model::ids::{GroupName, WorkloadId, WorkloadKind};
use crate::model::observed::{Observed, Pod, PodPhase};
use crate::model::pod::PodTemplate;

/// Names of flags.
const EXPANDER: &str = "expander";
const PRIORITY_CUTOFF: &str = "expendable-pods-priority-cutoff";
const NAMESPACE: &str = "namespace";
/// Default of `--expander`.
const DEFAULT_EXPANDER: &str = "least-waste";
/// Default of `--namespace`.
const DEFAULT_NAMESPACE: &str = "kube-system";
/// Default of `--expendable-pods-priority-cutoff`.
const DEFAULT_PRIORITY_CUTOFF: i32 = -10;

/// Flags of Cluster Autoscaler that decide which groups it scales up, and in which order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoscalerFlags {
    /// Groups of `--nodes`, with their minimum and maximum size.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<GroupName, (u32, u32)>,
    /// Tags of each `--node-group-auto-discovery`. A group is selected if it has all tags of one
    /// flag; `None` accepts any value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub discovery: Vec<BTreeMap<String, Option<String>>>,
    /// Expanders of `--expander`, in order; empty means the default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expanders: Vec<String>,
    /// Namespace of its ConfigMaps (`--namespace`); `None` means the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// True if similar groups are balanced (`--balance-similar-node-groups`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub balances: bool,
    /// Labels that similar groups may differ in (`--balancing-ignore-label`).
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub ignored_labels: BTreeSet<String>,
    /// Labels that alone decide whether groups are similar (`--balancing-label`).
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub similarity_labels: BTreeSet<String>,
    /// Lowest priority of pods that it scales up for; `None` means the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_cutoff: Option<i32>,
    /// Names of flags that limit the whole cluster, such as `max-nodes-total`. They are not modeled,
    /// so with one of them no pod counts as served.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub cluster_limits: BTreeSet<String>,
    /// Names of flags whose values could not be read. Nothing is assumed for them.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub unread: BTreeSet<String>,
}

impl AutoscalerFlags {
    /// Returns the minimum and maximum size of a group, if the flags select it. `own` are the
    /// bounds of the group itself, which Auto Scaling enforces. The name is unknown before the group
    /// exists.
    pub fn bounds(
        &self,
        name: Option<&GroupName>,
        tags: &BTreeMap<String, String>,
        own: (u32, u32),
    ) -> Option<(u32, u32)> {
        if !self.cluster_limits.is_empty() {
            return None;
        }
        if let Some((least, most)) = name.and_then(|name| self.groups.get(name)) {
            return Some(((*least).max(own.0), (*most).min(own.1)));
        }
        let has = |(tag, value): (&String, &Option<String>)| {
            tags.get(tag).is_some_and(|held| value.as_ref().is_none_or(|value| value == held))
        };
        let selects = |wanted: &BTreeMap<String, Option<String>>| {
            !wanted.is_empty() && wanted.iter().all(has)
        };
        self.discovery.iter().any(selects).then_some(own)
    }

    /// Returns the expanders, in order. One that was not read has the name of its flag.
    pub fn expanders(&self) -> impl Iterator<Item = &str> {
        let is_unread = self.unread.contains(EXPANDER);
        let default = if is_unread { EXPANDER } else { DEFAULT_EXPANDER };
        let default = self.expanders.is_empty().then_some(default);
        self.expanders.iter().map(String::as_str).chain(default)
    }

    /// Returns the namespace of its ConfigMaps, or `None` if it was not read.
    pub fn namespace(&self) -> Option<&str> {
        let is_unread = self.unread.contains(NAMESPACE);
        (!is_unread).then_some(self.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE))
    }

    /// Returns the lowest priority of pods that it scales up for. If it was not read, no pod counts.
    pub fn priority_cutoff(&self) -> i32 {
        if self.unread.contains(PRIORITY_CUTOFF) {
            return i32::MAX;
        }
        self.priority_cutoff.unwrap_or(DEFAULT_PRIORITY_CUTOFF)
    }
}

/// A Cluster Autoscaler that is declared, or runs.
#[derive(Debug, Clone, Copy)]
pub struct ClusterAutoscaler<'a> {
    /// Its Deployment.
    pub workload: &'a WorkloadId,
    /// Its flags; `None` if no container of it could be recognized.
    pub flags: Option<&'a AutoscalerFlags>,
    /// True if it runs in the cluster.
    pub is_running: bool,
}

/// Returns every Cluster Autoscaler that is declared or runs in the declared namespaces (default:
/// the system namespaces), in the order of names. Of one that runs, the flags of the cluster count.
///
/// A tenant can give a Deployment any name and any flags. Outside of these namespaces, one whose pod
/// runs blocks changes of groups, but no pod counts as served by it.
pub fn cluster_autoscalers<'a>(
    desired: &'a Desired,
    observed: &'a Observed,
) -> Vec<ClusterAutoscaler<'a>> {
    let is_one = |id: &WorkloadId, template: Option<&PodTemplate>| {
        let named = resizer_kind(&id.name, template.map(|template| &template.labels)).is_some();
        let is_recognized = template.is_some_and(|template| template.cluster_autoscaler.is_some());
        id.kind == WorkloadKind::Deployment
            && (named || is_recognized)
            && match &desired.autoscaler_namespaces {
                Some(namespaces) => namespaces.contains(&id.namespace),
                None => is_in_system_namespace(id),
            }
    };
    let flags = |template: &'a PodTemplate| template.cluster_autoscaler.as_deref();
    let mut found: BTreeMap<&WorkloadId, ClusterAutoscaler<'a>> = BTreeMap::new();
    for declared in desired.workloads.values() {
        let is_stopped = declared.scale == Scale::Replicas(0);
        if !is_stopped && is_one(&declared.id, Some(&declared.template)) {
            let (workload, flags) = (&declared.id, flags(&declared.template));
            found.insert(workload, ClusterAutoscaler { workload, flags, is_running: false });
        }
    }
    let is_stopped = |id: &WorkloadId| {
        desired.workloads.get(id).is_some_and(|declared| declared.scale == Scale::Replicas(0))
    };
    let live = observed.workloads.iter().filter(|live| live.replicas > 0 && !is_stopped(&live.id));
    for live in live {
        let template = live.template.as_ref().and_then(|key| observed.templates.get(key));
        if is_one(&live.id, template.map(AsRef::as_ref)) {
            let is_bound = |pod: &Pod| {
                pod.phase == PodPhase::Running
                    && !pod.terminating
                    && pod.node.is_some()
                    && pod.owner.as_ref() == Some(&live.id)
            };
            let is_running = observed.pods.iter().any(|pod| is_bound(pod));
            let (workload, flags) = (&live.id, template.and_then(|template| flags(template)));
            found.insert(workload, ClusterAutoscaler { workload, flags, is_running });
        }
    }
    found.into_values().collect()
}
