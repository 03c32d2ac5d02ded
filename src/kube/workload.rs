//! Who owns a pod, and the controllers at the top.

use std::collections::BTreeMap;

use ::kube::api::ObjectMeta;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::ids::{Namespace, WorkloadId, WorkloadKind};

/// Owners of what owns pods: `ReplicaSet`s of Deployments, Jobs of `CronJob`s.
#[derive(Debug, Default)]
pub(super) struct Owners {
    above: BTreeMap<WorkloadId, WorkloadId>,
}

impl Owners {
    /// Notes who owns `object`, of the kind `kind`.
    pub(super) fn note(&mut self, kind: WorkloadKind, object: &Json) {
        let Some(meta) = meta_of(object) else { return };
        let (Some(name), Some(namespace)) = (&meta.name, &meta.namespace) else { return };
        if let Some(owner) = owner_of(&meta) {
            self.above.insert(id(kind, namespace, name), owner);
        }
    }

    /// Returns the workload at the top of the owners of `owner`, itself included.
    ///
    /// An owner of a kind that is not known ends the chain: what is below it is the top.
    pub(super) fn top(&self, owner: WorkloadId) -> WorkloadId {
        self.above.get(&owner).cloned().unwrap_or(owner)
    }

    /// Returns whether `id` is owned by something that is known.
    pub(super) fn is_owned(&self, id: &WorkloadId) -> bool {
        self.above.contains_key(id)
    }
}

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn owned(name: &str, api_version: &str, kind: &str, owner: &str) -> Json {
        json!({ "metadata": { "name": name, "namespace": "web", "ownerReferences": [{
            "apiVersion": api_version, "kind": kind, "name": owner, "uid": "u", "controller": true
        }] } })
    }

    #[test]
    fn the_top_of_the_chain_owns_the_pod() {
        let mut owners = Owners::default();
        owners.note(WorkloadKind::ReplicaSet, &owned("api-7f", "apps/v1", "Deployment", "api"));
        owners.note(WorkloadKind::Job, &owned("sync-1", "batch/v1", "CronJob", "sync"));
        owners.note(WorkloadKind::ReplicaSet, &owned("canary-1", "argoproj.io/v1", "Rollout", "c"));
        for (api_version, kind, owner, expected) in [
            ("apps/v1", "ReplicaSet", "api-7f", Some((WorkloadKind::Deployment, "api"))),
            ("apps/v1", "ReplicaSet", "other", Some((WorkloadKind::ReplicaSet, "other"))),
            ("apps/v1", "ReplicaSet", "canary-1", Some((WorkloadKind::ReplicaSet, "canary-1"))),
            ("batch/v1", "Job", "sync-1", Some((WorkloadKind::CronJob, "sync"))),
            ("apps/v1", "StatefulSet", "db", Some((WorkloadKind::StatefulSet, "db"))),
            ("v1", "Node", "ip-10-0-0-1", None),
        ] {
            let meta = meta_of(&owned("pod", api_version, kind, owner)).expect("metadata");
            let expected = expected.map(|(kind, name)| id(kind, "web", name));
            assert_eq!(owner_of(&meta).map(|o| owners.top(o)), expected, "{kind} {owner}");
        }
    }
}
