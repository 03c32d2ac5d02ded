//! Workloads of Kueue, with their resource flavors and admission checks. A cluster may not serve them.
//!
//! The fields that are read have the same names in v1beta1, which alone is served before Kueue 0.15.
//!
//! Source: <https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2/>.

use std::collections::{BTreeMap, BTreeSet};

use ::kube::api::ObjectMeta;
use serde::Deserialize;
use serde_json::Value as Json;

use super::list::ApiResource;
use super::owner_references::workload_id;
use crate::model::ids::{Labels, WorkloadKind};
use crate::model::observed::{QueueAdmission, QueueFlavor, QueuedWorkload};
use crate::model::pod::Toleration;
use crate::model::text::shorten;

const fn resource(kind: &'static str, path: &'static str) -> ApiResource {
    ApiResource { api_version: "kueue.x-k8s.io/v1beta2", kind, path, name: None }
}

pub(super) const QUEUED: ApiResource =
    resource("Workload", "/apis/kueue.x-k8s.io/v1beta2/workloads");
pub(super) const FLAVORS: ApiResource =
    resource("ResourceFlavor", "/apis/kueue.x-k8s.io/v1beta2/resourceflavors");
pub(super) const CHECKS: ApiResource =
    resource("AdmissionCheck", "/apis/kueue.x-k8s.io/v1beta2/admissionchecks");

const fn older(kind: &'static str, path: &'static str) -> ApiResource {
    ApiResource { api_version: "kueue.x-k8s.io/v1beta1", kind, path, name: None }
}

/// The resource types with their older versions.
const VERSIONS: [(ApiResource, ApiResource); 3] = [
    (QUEUED, older("Workload", "/apis/kueue.x-k8s.io/v1beta1/workloads")),
    (FLAVORS, older("ResourceFlavor", "/apis/kueue.x-k8s.io/v1beta1/resourceflavors")),
    (CHECKS, older("AdmissionCheck", "/apis/kueue.x-k8s.io/v1beta1/admissionchecks")),
];

/// Controller of admission checks of Workloads that run in another cluster.
const MULTI_KUEUE: &str = "kueue.x-k8s.io/multikueue";

/// Controller of admission checks that wait for a `ProvisioningRequest`.
const PROVISIONING: &str = "kueue.x-k8s.io/provisioning-request";

/// Maximum number of characters of a message of Kueue.
const MESSAGE_CHARS_MAX: usize = 200;

/// Returns whether the objects of a resource type are of Kueue.
pub(super) fn is_queue_resource(resource: ApiResource) -> bool {
    VERSIONS.iter().any(|(newer, older)| [newer.path, older.path].contains(&resource.path))
}

/// Returns the older version of a resource type, which older releases of Kueue serve in its place.
pub(super) fn older_version(resource: ApiResource) -> Option<ApiResource> {
    let found = VERSIONS.into_iter().find(|(newer, _)| newer.path == resource.path);
    found.map(|(_, older)| older)
}

/// Removes the pod templates of a Workload, which are large.
pub(super) fn without_templates(mut object: Json) -> Json {
    let pod_sets = object.pointer_mut("/spec/podSets").and_then(Json::as_array_mut);
    for pod_set in pod_sets.into_iter().flatten().filter_map(Json::as_object_mut) {
        pod_set.remove("template");
    }
    object
}

/// Returns true if Kueue has admitted a Workload.
pub(super) fn is_admitted(object: &Json) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Json::as_array);
    conditions.into_iter().flatten().any(|condition| {
        condition.get("type").is_some_and(|kind| kind == "Admitted")
            && condition.get("status").is_some_and(|status| status == "True")
    })
}

#[derive(Debug, Deserialize)]
struct Workload {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WorkloadSpec,
    #[serde(default)]
    status: WorkloadStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WorkloadSpec {
    pod_sets: Vec<PodCount>,
    queue_name: String,
    active: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WorkloadStatus {
    conditions: Vec<Condition>,
    admission: Option<Admission>,
    reclaimable_pods: Vec<PodCount>,
    admission_checks: Vec<Check>,
    cluster_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodCount {
    name: String,
    count: u32,
}

#[derive(Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Admission {
    pod_set_assignments: Vec<Assignment>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Assignment {
    name: String,
    flavors: BTreeMap<String, String>,
    count: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Check {
    name: String,
    #[serde(default)]
    state: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FlavorSpec {
    node_labels: Labels,
    tolerations: Vec<Toleration>,
}

/// Objects of Kueue that were read so far.
#[derive(Debug, Default)]
pub(super) struct Queues {
    workloads: Vec<Workload>,
    /// `ResourceFlavor`s, or the reason why one cannot be parsed.
    flavors: BTreeMap<String, Result<FlavorSpec, String>>,
    /// Controllers of the admission checks.
    checks: BTreeMap<String, String>,
}

/// A Workload that refers to an object that was not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnreadWorkload {
    /// Namespace and name.
    pub(super) key: String,
    /// Reason, as a phrase.
    pub(super) reason: String,
}

impl Queues {
    /// Adds a Workload.
    ///
    /// # Errors
    /// Returns the reason if it cannot be parsed.
    pub(super) fn add_workload(&mut self, object: &Json) -> Result<(), String> {
        let workload = Workload::deserialize(object).map_err(|error| error.to_string())?;
        if !workload.has("Finished") && workload.metadata.deletion_timestamp.is_none() {
            self.workloads.push(workload);
        }
        Ok(())
    }

    /// Adds a `ResourceFlavor`. One that cannot be parsed makes its Workloads unread.
    pub(super) fn add_flavor(&mut self, key: &str, object: &Json) {
        let spec =
            object.get("spec").map_or_else(|| Ok(FlavorSpec::default()), FlavorSpec::deserialize);
        let spec = spec.map_err(|error| error.to_string());
        self.flavors.insert(key.trim_start_matches('/').to_owned(), spec);
    }

    /// Adds an `AdmissionCheck`.
    pub(super) fn add_check(&mut self, key: &str, object: &Json) {
        let controller = object.pointer("/spec/controllerName").and_then(Json::as_str);
        if let Some(controller) = controller {
            self.checks.insert(key.trim_start_matches('/').to_owned(), controller.to_owned());
        }
    }

    /// Returns the Workloads that have not finished, and those of them that are unread. Their owner
    /// is the direct one.
    pub(super) fn queued(&self) -> (Vec<QueuedWorkload>, Vec<UnreadWorkload>) {
        let mut unread = Vec::new();
        let read = |workload: &Workload| {
            let admission = self.admission(workload).unwrap_or_else(|reason| {
                let meta = &workload.metadata;
                let namespace = meta.namespace.as_deref().unwrap_or_default();
                let name = meta.name.as_deref().unwrap_or_default();
                let key = format!("{namespace}/{name}");
                unread.push(UnreadWorkload { key, reason: reason.clone() });
                QueueAdmission::Unknown { because: reason }
            });
            Self::queued_workload(workload, admission)
        };
        let queued = self.workloads.iter().map(read).collect();
        (queued, unread)
    }

    fn queued_workload(workload: &Workload, admission: QueueAdmission) -> QueuedWorkload {
        let meta = &workload.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let owners = meta.owner_references.iter().flatten();
        let is_pod = |owner: &str, version: &str| owner == "Pod" && version == "v1";
        let pods = owners.clone().filter(|owner| is_pod(&owner.kind, &owner.api_version));
        let mut owners = owners.filter_map(|owner| workload_id(owner, namespace));
        let starts_pods = |kind| matches!(kind, WorkloadKind::Job | WorkloadKind::StatefulSet);
        QueuedWorkload {
            namespace: namespace.into(),
            name: meta.name.clone().unwrap_or_default(),
            queue: workload.spec.queue_name.clone(),
            pods: pods.map(|owner| owner.uid.as_str().into()).collect(),
            owner: owners.find(|owner| starts_pods(owner.kind)),
            admission,
        }
    }

    /// Returns the decision of the queue.
    ///
    /// # Errors
    /// Returns the reason if Kueue has admitted it, and an object that it refers to was not read.
    fn admission(&self, workload: &Workload) -> Result<QueueAdmission, String> {
        let waiting =
            |because: String| Ok(QueueAdmission::Waiting { because, provisioning_check: None });
        if workload.spec.active == Some(false) {
            return waiting("it is not active".to_owned());
        }
        if workload.has("Evicted") {
            return waiting(workload.message("Evicted"));
        }
        if self.runs_elsewhere(workload) {
            return waiting("it runs in another cluster".to_owned());
        }
        if !workload.has("Admitted") {
            return Ok(self.pending(workload));
        }
        let mut checks = workload.status.admission_checks.iter();
        if let Some(check) = checks.find(|check| !self.checks.contains_key(&check.name)) {
            return Err(format!("its AdmissionCheck {} was not read", check.name));
        }
        let Some(admission) = &workload.status.admission else {
            return waiting("it is admitted without an assignment of pods".to_owned());
        };
        let pods = workload.pods(admission);
        Ok(match self.flavor(&admission.pod_set_assignments)? {
            Some(flavor) => QueueAdmission::Admitted { pods, flavor },
            None => QueueAdmission::Unknown {
                because: "its pods have several ResourceFlavors, and count once they start"
                    .to_owned(),
            },
        })
    }

    /// Returns true if `MultiKueue` runs the pods in another cluster.
    fn runs_elsewhere(&self, workload: &Workload) -> bool {
        let controller = |check: &Check| self.checks.get(&check.name).map(String::as_str);
        let mut checks = workload.status.admission_checks.iter();
        !workload.status.cluster_name.is_empty()
            || checks.any(|check| controller(check) == Some(MULTI_KUEUE))
    }

    /// Returns why a Workload is not admitted: it has no quota, or it waits for admission checks.
    fn pending(&self, workload: &Workload) -> QueueAdmission {
        if !workload.has("QuotaReserved") {
            let because = workload.message("QuotaReserved");
            return QueueAdmission::Waiting { because, provisioning_check: None };
        }
        let checks = workload.status.admission_checks.iter();
        let open: Vec<&str> =
            checks.filter(|check| check.state != "Ready").map(|check| &*check.name).collect();
        let is_provisioning = |name: &&&str| {
            self.checks.get(**name).is_some_and(|controller| controller == PROVISIONING)
        };
        let provisioning_check = open.iter().find(is_provisioning);
        let provisioning_check = provisioning_check.map(|name| (*name).to_owned());
        let because = match &provisioning_check {
            Some(check) => format!("admission check {check} waits for a ProvisioningRequest"),
            None if open.is_empty() => "its queue is about to admit it".to_owned(),
            None => format!("it waits for its admission checks: {}", open.join(", ")),
        };
        QueueAdmission::Waiting { because, provisioning_check }
    }

    /// Returns the common flavor of all pods; `None` if they have several.
    ///
    /// # Errors
    /// Returns the reason if a flavor was not read.
    fn flavor(&self, assignments: &[Assignment]) -> Result<Option<QueueFlavor>, String> {
        let names = |assignment: &Assignment| -> BTreeSet<String> {
            assignment.flavors.values().cloned().collect()
        };
        let Some(first) = assignments.first().map(names) else {
            return Ok(Some(QueueFlavor::default()));
        };
        if assignments.iter().any(|other| names(other) != first) {
            return Ok(None);
        }
        let mut all = QueueFlavor::default();
        for name in &first {
            let flavor = match self.flavors.get(name) {
                Some(Ok(flavor)) => flavor,
                Some(Err(why)) => {
                    return Err(format!("its ResourceFlavor {name} was not read: {why}"));
                }
                None => return Err(format!("its ResourceFlavor {name} was not read")),
            };
            all.node_labels.extend(flavor.node_labels.clone());
            all.tolerations.extend(flavor.tolerations.iter().cloned());
        }
        Ok(Some(all))
    }
}

impl Workload {
    fn has(&self, kind: &str) -> bool {
        self.status.conditions.iter().any(|found| found.kind == kind && found.status == "True")
    }

    /// Returns the message of a condition.
    fn message(&self, kind: &str) -> String {
        let found = self.status.conditions.iter().find(|found| found.kind == kind);
        let message = found.map(|found| found.message.trim()).filter(|text| !text.is_empty());
        shorten(message.unwrap_or("its queue has not considered it yet"), MESSAGE_CHARS_MAX)
    }

    /// Returns the number of pods that need room.
    fn pods(&self, admission: &Admission) -> u32 {
        let count = |list: &[PodCount], name: &str| {
            list.iter().find(|found| found.name == name).map_or(0, |found| found.count)
        };
        let of = |assignment: &Assignment| {
            let name = &assignment.name;
            let all = assignment.count.unwrap_or_else(|| count(&self.spec.pod_sets, name));
            all.saturating_sub(count(&self.status.reclaimable_pods, name))
        };
        admission.pod_set_assignments.iter().map(of).fold(0, u32::saturating_add)
    }
}

#[cfg(test)]
mod tests;
