//! Pods, as far as their state goes; their templates are read by the readers of files.

use std::collections::BTreeMap;

use ::kube::api::ObjectMeta;
use k8s_openapi::api::core::v1::PodStatus;
use serde::Deserialize;
use serde_json::Value as Json;

use super::node::read_amounts;
use super::workload::{meta_of, owner_of};
use crate::fleet::{Pod, PodPhase};
use crate::pod::{Amounts, PodTemplate};

/// Annotation of a pod that a kubelet made from a file of its node.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Reads a pod whose template is known by `key`. Its owner is the one that it names itself.
pub(super) fn pod(object: &Json, (key, template): (String, &PodTemplate)) -> Result<Pod, String> {
    let meta = meta_of(object).ok_or("a pod has no metadata")?;
    let name = meta.name.clone().ok_or("a pod has no name")?;
    let namespace = meta.namespace.clone().unwrap_or_default();
    let wrong = |what: &str| format!("pod `{namespace}/{name}` has {what}");
    let status = object.get("status").map(PodStatus::deserialize).transpose();
    let status = status.map_err(|error| wrong(&format!("a status that is unreadable: {error}")))?;
    let status = status.unwrap_or_default();
    let started_at = status.start_time.as_ref().map(|at| at.0);
    let phase = match status.phase.as_deref() {
        Some("Pending") | None => PodPhase::Pending,
        // A pod of an unreachable node may still run: it keeps its room.
        Some("Running" | "Unknown") => PodPhase::Running,
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        Some(other) => return Err(wrong(&format!("the unknown phase `{other}`"))),
    };
    let node = object.pointer("/spec/nodeName").and_then(Json::as_str);
    Ok(Pod {
        uid: meta.uid.clone().ok_or_else(|| wrong("no UID"))?.into(),
        owner: owner_of(&meta),
        template: key,
        node: node.filter(|name| !name.is_empty()).map(Into::into),
        phase,
        created_at: meta.creation_timestamp.as_ref().ok_or_else(|| wrong("no time of creation"))?.0,
        terminating: meta.deletion_timestamp.is_some(),
        mirror: meta.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR)),
        started_at,
        granted: granted(status, template).map_err(|what| wrong(&what))?,
        namespace: namespace.as_str().into(),
        name: name.as_str().into(),
    })
}

/// Returns what the kubelet granted to the containers of a pod that is or was resized in place: the
/// larger of what it reserves (`allocatedResources`) and what runs (`resources`). Nothing where all
/// of it is what the template says.
fn granted(status: PodStatus, template: &PodTemplate) -> Result<BTreeMap<String, Amounts>, String> {
    let mut granted = BTreeMap::new();
    let all = status.container_statuses.into_iter().chain(status.init_container_statuses);
    for container in all.flatten() {
        let mut amounts = read_amounts(container.allocated_resources.unwrap_or_default())?;
        let actual = container.resources.and_then(|resources| resources.requests);
        for (name, amount) in read_amounts(actual.unwrap_or_default())? {
            let held = amounts.entry(name).or_insert(amount);
            *held = amount.max(*held);
        }
        let spec = &template.spec;
        let mut stated = spec.containers.iter().chain(&spec.init_containers);
        let stated = stated.find(|stated| stated.name == container.name);
        let is_stated = |(name, amount): (&crate::units::ResourceName, &i64)| {
            stated.is_some_and(|c| c.resources.requests.get(name) == Some(amount))
        };
        if !amounts.is_empty() && !amounts.iter().all(is_stated) {
            granted.insert(container.name, amounts);
        }
    }
    Ok(granted)
}

/// Returns whether whoever made the pod also chose its node, rather than a scheduler later: then the
/// field is among those that the maker set. A binding leaves no such mark.
pub(super) fn names_its_node(meta: &ObjectMeta) -> bool {
    let entries = meta.managed_fields.iter().flatten();
    let mut fields = entries.filter(|entry| entry.subresource.as_deref().is_none_or(str::is_empty));
    fields.any(|entry| {
        let set = entry.fields_v1.as_ref();
        set.is_some_and(|set| set.0.pointer("/f:spec/f:nodeName").is_some())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object() -> Json {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "api-1", "namespace": "web", "uid": "u1",
                "creationTimestamp": "2026-11-21T09:00:00Z",
                "managedFields": [{
                    "manager": "kube-controller-manager", "operation": "Update",
                    "apiVersion": "v1", "fieldsType": "FieldsV1",
                    "fieldsV1": { "f:spec": { "f:containers": {} } }
                }]
            },
            "spec": { "nodeName": "n1", "containers": [{ "name": "api" }] },
            "status": { "phase": "Running" }
        })
    }

    fn template() -> PodTemplate {
        let live = crate::manifest::read_live([&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "x", "namespace": "web" },
            "spec": { "containers": [{
                "name": "api", "resources": { "requests": { "cpu": "500m", "memory": "1Gi" } }
            }] }
        })]);
        let workload = live.workloads.into_values().next().expect("a pod");
        (*workload.template).clone()
    }

    fn read(object: &Json) -> Result<Pod, String> {
        pod(object, ("k".to_owned(), &template()))
    }

    #[test]
    fn a_pod_that_was_bound_by_a_scheduler_did_not_choose_its_node() {
        let bound = object();
        assert_eq!(read(&bound).expect("a pod").node, Some("n1".into()));
        assert!(!names_its_node(&meta_of(&bound).expect("metadata")));
        let mut chosen = object();
        chosen["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:nodeName"] = json!({});
        assert!(names_its_node(&meta_of(&chosen).expect("metadata")));
    }

    #[test]
    fn what_the_kubelet_granted_is_kept_only_where_it_differs() {
        let with = |allocated: &str, actual: &str| {
            let mut object = object();
            object["status"]["containerStatuses"] = json!([{
                "name": "api", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResources": { "cpu": allocated, "memory": "1Gi" },
                "resources": { "requests": { "cpu": actual, "memory": "1Gi" } }
            }]);
            read(&object).expect("a pod").granted
        };
        assert!(with("500m", "500m").is_empty());
        for (allocated, actual) in [("1", "500m"), ("500m", "1")] {
            assert_eq!(with(allocated, actual)["api"]["cpu"], 1000, "{allocated} {actual}");
        }
    }

    #[test]
    fn a_phase_that_is_not_known_is_an_error_and_an_unreachable_pod_runs() {
        let mut lost = object();
        lost["status"]["phase"] = json!("Unknown");
        assert_eq!(read(&lost).expect("a pod").phase, PodPhase::Running);
        lost["status"]["phase"] = json!("Resting");
        assert!(read(&lost).expect_err("unknown").contains("unknown phase `Resting`"));
    }
}
