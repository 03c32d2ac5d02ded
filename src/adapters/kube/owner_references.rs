//! Owner references of pods and workloads.

use ::kube::api::ObjectMeta;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::model::ids::{Namespace, WorkloadId, WorkloadKind};

/// Returns the workload that controls an object.
pub(super) fn controller_owner(meta: &ObjectMeta) -> Option<WorkloadId> {
    workload_id(controller_reference(meta)?, meta.namespace.as_deref()?)
}

pub(super) fn parse_metadata(object: &Json) -> Option<ObjectMeta> {
    ObjectMeta::deserialize(object.get("metadata")?).ok()
}

fn controller_reference(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = meta.owner_references.as_ref()?.iter();
    owners.find(|owner| owner.controller == Some(true))
}

/// Returns the identity of an owner; `None` if its kind is not a workload that is planned.
pub(super) fn workload_id(owner: &OwnerReference, namespace: &str) -> Option<WorkloadId> {
    let kind = match (owner.kind.as_str(), owner.api_version.split('/').next()) {
        ("Deployment", Some("apps")) => WorkloadKind::Deployment,
        ("StatefulSet", Some("apps")) => WorkloadKind::StatefulSet,
        ("DaemonSet", Some("apps")) => WorkloadKind::DaemonSet,
        ("ReplicaSet", Some("apps")) => WorkloadKind::ReplicaSet,
        ("ReplicationController", Some("v1")) => WorkloadKind::ReplicationController,
        ("Job", Some("batch")) => WorkloadKind::Job,
        ("CronJob", Some("batch")) => WorkloadKind::CronJob,
        ("Rollout", Some("argoproj.io")) => WorkloadKind::Rollout,
        ("ScaledJob", Some("keda.sh")) => WorkloadKind::ScaledJob,
        _ => return None,
    };
    Some(new_workload_id(kind, namespace, &owner.name))
}

fn new_workload_id(kind: WorkloadKind, namespace: &str, name: &str) -> WorkloadId {
    WorkloadId { namespace: Namespace::from(namespace), name: name.into(), kind }
}
