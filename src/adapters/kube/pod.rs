//! Parses the state of pods. The manifest readers parse their templates.

use std::collections::BTreeMap;

use ::kube::api::ObjectMeta;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use serde::Deserialize;
use serde_json::Value as Json;

use super::node::parse_known_amounts;
use super::owner_references::{controller_owner, parse_metadata};
use crate::model::observed::{Pod, PodPhase};
use crate::model::pod::{PodTemplate, ResourceList};

/// Annotation by which a user chooses the surplus pods that are deleted first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Annotation of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Parses a pod whose template has the key `key`, and returns the reasons for parts that could not be
/// parsed. Its owner is the direct owner. A pod with an unreadable status counts as running.
///
/// # Errors
/// Returns the reason if the pod has no identity.
pub(super) fn parse_pod(
    object: &Json,
    key: String,
    template: &PodTemplate,
) -> Result<(Pod, Vec<String>), String> {
    let meta = parse_metadata(object).ok_or("a pod has no metadata")?;
    let name = meta.name.clone().ok_or("a pod has no name")?;
    let namespace = meta.namespace.clone().unwrap_or_default();
    let wrong = |what: &str| format!("pod `{namespace}/{name}` has {what}");
    let mut unread = Vec::new();
    let running = || PodStatus { phase: Some("Running".to_owned()), ..PodStatus::default() };
    let status = object.get("status").map(PodStatus::deserialize).transpose();
    let status = status.unwrap_or_else(|error| {
        unread.push(wrong(&format!("a status that is unreadable: {error}")));
        Some(running())
    });
    let status = status.unwrap_or_default();
    let started_at = status.start_time.as_ref().map(|at| at.0);
    let ready_at = ready_at(&status);
    let annotation = |key: &str| meta.annotations.as_ref()?.get(key);
    let phase = match status.phase.as_deref() {
        Some("Pending" | "") | None => PodPhase::Pending,
        // A pod on an unreachable node may still run and keeps its resources.
        Some("Running" | "Unknown") => PodPhase::Running,
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        Some(other) => {
            unread.push(wrong(&format!("the unknown phase `{other}`")));
            PodPhase::Running
        }
    };
    let node = object.pointer("/spec/nodeName").and_then(Json::as_str);
    let nominated = object.pointer("/status/nominatedNodeName").and_then(Json::as_str);
    let (granted, unknown) = granted_resources(status, template);
    unread.extend(unknown.iter().map(|what| wrong(what)));
    let pod = Pod {
        uid: meta.uid.clone().ok_or_else(|| wrong("no UID"))?.into(),
        owner: controller_owner(&meta),
        template: key.into(),
        node: node.filter(|name| !name.is_empty()).map(Into::into),
        nominated: nominated.filter(|name| !name.is_empty()).map(Into::into),
        phase,
        created_at: meta.creation_timestamp.as_ref().ok_or_else(|| wrong("no time of creation"))?.0,
        terminating: meta.deletion_timestamp.is_some(),
        mirror: annotation(MIRROR).is_some(),
        started_at,
        ready_at,
        // Controllers ignore an annotation that is no number.
        deletion_cost: annotation(DELETION_COST).and_then(|cost| cost.parse().ok()).unwrap_or(0),
        granted,
        namespace: namespace.as_str().into(),
        name: name.as_str().into(),
    };
    Ok((pod, unread))
}

/// Returns the time at which a pod became ready; `None` if it is not ready.
fn ready_at(status: &PodStatus) -> Option<Timestamp> {
    let mut conditions = status.conditions.iter().flatten();
    let ready = conditions.find(|c| c.type_ == "Ready" && c.status == "True")?;
    Some(ready.last_transition_time.as_ref()?.0)
}

/// Returns the resources that the kubelet granted to containers of a resized pod: the larger of
/// `allocatedResources` and `resources`. Empty if all of them equal the template. Amounts that cannot
/// be parsed are returned as reasons.
fn granted_resources(
    status: PodStatus,
    template: &PodTemplate,
) -> (BTreeMap<String, ResourceList>, Vec<String>) {
    let (mut granted, mut unread) = (BTreeMap::new(), Vec::new());
    let all = status.container_statuses.into_iter().chain(status.init_container_statuses);
    for container in all.flatten() {
        let (mut amounts, unknown) =
            parse_known_amounts(container.allocated_resources.unwrap_or_default());
        unread.extend(unknown);
        let actual = container.resources.and_then(|resources| resources.requests);
        let (actual, unknown) = parse_known_amounts(actual.unwrap_or_default());
        unread.extend(unknown);
        for (name, amount) in actual {
            let larger = amounts.entry(name).or_insert(amount);
            *larger = amount.max(*larger);
        }
        let spec = &template.spec;
        let mut stated = spec.containers.iter().chain(&spec.init_containers);
        let stated = stated.find(|stated| stated.name == container.name);
        let is_stated = |(name, amount): (&crate::model::units::ResourceName, &i64)| {
            stated.is_some_and(|c| c.resources.requests.get(name) == Some(amount))
        };
        if !amounts.is_empty() && !amounts.iter().all(is_stated) {
            granted.insert(container.name, amounts);
        }
    }
    (granted, unread)
}

/// Returns whether the author of the pod chose its node, not a scheduler. The field then belongs to
/// a field manager of the spec, unlike after a binding.
pub(super) fn has_chosen_node(meta: &ObjectMeta) -> bool {
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
        let live = crate::manifest::read_live_objects([&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "x", "namespace": "web" },
            "spec": { "containers": [{
                "name": "api", "resources": { "requests": { "cpu": "500m", "memory": "1Gi" } }
            }] }
        })]);
        let workload = live.workloads.into_values().next().expect("a pod");
        (*workload.template).clone()
    }

    fn parse(object: &Json) -> (Pod, Vec<String>) {
        parse_pod(object, "k".to_owned(), &template()).expect("a pod")
    }

    fn read(object: &Json) -> Pod {
        let (pod, unread) = parse(object);
        assert_eq!(unread, [""; 0]);
        pod
    }

    #[test]
    fn bound_pod_has_not_chosen_its_node() {
        let bound = object();
        assert_eq!(read(&bound).node, Some("n1".into()));
        assert!(!has_chosen_node(&parse_metadata(&bound).expect("metadata")));
        let mut chosen_node = object();
        chosen_node["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:nodeName"] = json!({});
        assert!(has_chosen_node(&parse_metadata(&chosen_node).expect("metadata")));
    }

    #[test]
    fn pod_states_by_what_controllers_choose_surplus_pods() {
        let parts = |pod: Pod| (pod.ready_at, pod.deletion_cost);
        let mut ready = object();
        assert_eq!(parts(read(&ready)), (None, 0));
        let at = "2026-11-21T09:01:00Z";
        ready["metadata"]["annotations"][DELETION_COST] = json!("-7");
        ready["status"]["conditions"] =
            json!([{ "type": "Ready", "status": "True", "lastTransitionTime": at }]);
        assert_eq!(parts(read(&ready)), (at.parse().ok(), -7));
        ready["metadata"]["annotations"][DELETION_COST] = json!("low");
        ready["status"]["conditions"][0]["status"] = json!("False");
        assert_eq!(parts(read(&ready)), (None, 0));
    }

    #[test]
    fn granted_resources_are_kept_only_if_different() {
        let with = |allocated: &str, actual: &str| {
            let mut object = object();
            object["status"]["containerStatuses"] = json!([{
                "name": "api", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResources": { "cpu": allocated, "memory": "1Gi" },
                "resources": { "requests": { "cpu": actual, "memory": "1Gi" } }
            }]);
            read(&object).granted
        };
        assert!(with("500m", "500m").is_empty());
        for (allocated, actual) in [("1", "500m"), ("500m", "1")] {
            assert_eq!(with(allocated, actual)["api"]["cpu"], 1000, "{allocated} {actual}");
        }
    }

    #[test]
    fn pod_with_an_unreadable_status_keeps_its_node() {
        let mut lost = object();
        lost["status"]["phase"] = json!("Unknown");
        assert_eq!(read(&lost).phase, PodPhase::Running);
        for (pointer, value, reason) in [
            ("phase", json!("Resting"), "unknown phase `Resting`"),
            ("startTime", json!("yesterday"), "status that is unreadable"),
            (
                "containerStatuses",
                json!([{
                    "name": "api", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "allocatedResources": { "cpu": "half" }
                }]),
                "amount `half` of cpu",
            ),
        ] {
            let mut broken = object();
            broken["status"][pointer] = value;
            let (pod, unread) = parse(&broken);
            assert_eq!((pod.node, pod.phase), (Some("n1".into()), PodPhase::Running));
            assert!(unread.len() == 1 && unread[0].contains(reason), "{unread:?}");
        }
    }
}
