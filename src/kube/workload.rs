//! Who owns a pod, and the controllers at the top.

use ::kube::api::ObjectMeta;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::ids::{Namespace, WorkloadId, WorkloadKind};

/// Returns the workload that controls an object with `meta`.
pub(super) fn owner_of(meta: &ObjectMeta) -> Option<WorkloadId> {
    of_reference(controller(meta)?, meta.namespace.as_deref()?)
}

/// Reads the metadata of an object.
pub(super) fn meta_of(object: &Json) -> Option<ObjectMeta> {
    ObjectMeta::deserialize(object.get("metadata")?).ok()
}

fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = meta.owner_references.as_ref()?.iter();
    owners.find(|owner| owner.controller == Some(true))
}

fn of_reference(owner: &OwnerReference, namespace: &str) -> Option<WorkloadId> {
    let kind = match (owner.kind.as_str(), owner.api_version.split('/').next()) {
        ("Deployment", Some("apps")) => WorkloadKind::Deployment,
        ("StatefulSet", Some("apps")) => WorkloadKind::StatefulSet,
        ("DaemonSet", Some("apps")) => WorkloadKind::DaemonSet,
        ("ReplicaSet", Some("apps")) => WorkloadKind::ReplicaSet,
        ("ReplicationController", Some("v1")) => WorkloadKind::ReplicationController,
        ("Job", Some("batch")) => WorkloadKind::Job,
        ("CronJob", Some("batch")) => WorkloadKind::CronJob,
        _ => return None,
    };
    Some(id(kind, namespace, &owner.name))
}

fn id(kind: WorkloadKind, namespace: &str, name: &str) -> WorkloadId {
    WorkloadId { namespace: Namespace::from(namespace), name: name.into(), kind }
}
