//! What is changed: nodes are cordoned and deleted, pods evicted.

use ::kube::Error;
use ::kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use ::kube::core::PartialObjectMeta;
use k8s_openapi::api::core::v1::{Node as ApiNode, Pod as ApiPod};
use serde_json::{Value as Json, json};

use super::client::Kubernetes;
use super::port_error;
use crate::fleet::{CORDONED_ANNOTATION, CordonedFor, Node, Pod};
use crate::ids::{NodeName, Uid};
use crate::port::{Cluster, ClusterObjects, CordonOutcome, EvictOutcome, PortError};

/// Who writes, as `managedFields` and events show it.
pub(super) const MANAGER: &str = "fleetwright";

/// Cause by which the API server says that a disruption budget forbids an eviction.
const BUDGET_CAUSE: &str = "DisruptionBudget";

impl Cluster for Kubernetes {
    async fn objects(&self) -> Result<ClusterObjects, PortError> {
        self.read_objects().await.map_err(|error| port_error("read cluster", &error))
    }

    async fn cordon(
        &self,
        node: &Node,
        mark: Option<CordonedFor>,
    ) -> Result<CordonOutcome, PortError> {
        let text = mark.map(CordonedFor::as_str);
        // UID and version in the patch are preconditions: the API server refuses it for another node, and for this one
        // where somebody, who may have cordoned it for a reason of their own, wrote it since it was seen.
        let mut patch = json!({
            "metadata": { "uid": node.uid, "annotations": { CORDONED_ANNOTATION: text } },
            "spec": { "unschedulable": mark.is_some() },
        });
        if let Some(version) = node.version.name() {
            patch["metadata"]["resourceVersion"] = version.into();
        }
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        let nodes: Api<ApiNode> = Api::all(self.writer.clone());
        let patched: Result<PartialObjectMeta<ApiNode>, Error> =
            nodes.patch_metadata(node.name.as_str(), &params, &Patch::Merge(&patch)).await;
        match patched {
            Ok(_) => Ok(CordonOutcome::Written),
            Err(Error::Api(status)) if is_outdated(&status) => Ok(CordonOutcome::Outdated),
            Err(error) => Err(port_error("cordon node", &error)),
        }
    }

    async fn evict(&self, pod: &Pod) -> Result<EvictOutcome, PortError> {
        let pods: Api<ApiPod> = Api::namespaced(self.writer.clone(), pod.namespace.as_str());
        // Made by hand: the client library spells the options in a way that the API server passes
        // over, and the UID with them.
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": pod.name, "namespace": pod.namespace },
            "deleteOptions": { "preconditions": { "uid": pod.uid } },
        });
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        let asked: Result<Json, Error> =
            pods.create_subresource("eviction", &pod.name, &params, &eviction).await;
        match asked {
            Ok(_) => Ok(EvictOutcome::Evicted),
            Err(Error::Api(status)) => match status.code {
                // Gone, or another pod of that name by now.
                404 | 409 => Ok(EvictOutcome::Evicted),
                429 if is_budget(&status) => {
                    Ok(EvictOutcome::Blocked { budget: budget(pod, &status) })
                }
                _ => Err(port_error("evict pod", &Error::Api(status))),
            },
            Err(error) => Err(port_error("evict pod", &error)),
        }
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        let nodes: Api<ApiNode> = Api::all(self.writer.clone());
        let same = Preconditions { uid: Some(uid.to_string()), ..Preconditions::default() };
        let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
        match nodes.delete(node.as_str(), &params).await {
            Ok(_) => Ok(()),
            Err(Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(port_error("delete node", &error)),
        }
    }
}

impl Kubernetes {
    /// Sets the node that the scheduler tries first for a pod that waits: a part of its status, never a
    /// binding.
    ///
    /// # Errors
    /// When it cannot be written; then the pod goes wherever the scheduler has it.
    pub async fn nominate(&self, pod: &Pod, node: &NodeName) -> Result<(), PortError> {
        let pods: Api<ApiPod> = Api::namespaced(self.writer.clone(), pod.namespace.as_str());
        // The UID in the patch is a precondition, as with nodes.
        let patch = json!({
            "metadata": { "uid": pod.uid }, "status": { "nominatedNodeName": node.as_str() },
        });
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        let patched: Result<ApiPod, Error> =
            pods.patch_status(&pod.name, &params, &Patch::Merge(&patch)).await;
        patched.map(|_| ()).map_err(|error| port_error("nominate pod", &error))
    }
}

/// Returns whether a patch is refused because its object is gone, another, or not as it was seen. Of another one the API
/// server says either that the versions differ or, where they do not, that nobody may change a UID.
fn is_outdated(status: &::kube::core::Status) -> bool {
    let causes = status.details.as_ref().map(|details| &details.causes);
    let of_uid = causes.into_iter().flatten().any(|cause| cause.field == "metadata.uid");
    matches!(status.code, 404 | 409) || status.code == 422 && of_uid
}

/// Returns whether a budget forbids the eviction, rather than the API server asking for patience.
fn is_budget(status: &::kube::core::Status) -> bool {
    let causes = status.details.as_ref().map(|details| &details.causes);
    causes.into_iter().flatten().any(|cause| cause.reason == BUDGET_CAUSE)
        || status.message.contains("disruption budget")
}

/// Returns the budget that the API server names, such as `web/api`.
fn budget(pod: &Pod, status: &::kube::core::Status) -> String {
    let causes = status.details.as_ref().map(|details| &details.causes);
    let messages = causes.into_iter().flatten().map(|cause| cause.message.as_str());
    let named = messages.filter_map(|text| {
        let (_, rest) = text.split_once("disruption budget ")?;
        rest.split_whitespace().next()
    });
    let mut named = named.map(|name| format!("{}/{name}", pod.namespace));
    named.next().unwrap_or_else(|| format!("a budget of namespace {}", pod.namespace))
}

#[cfg(test)]
mod tests {
    use ::kube::core::response::{Status, StatusCause, StatusDetails};

    use super::*;

    #[test]
    fn a_budget_that_forbids_is_told_from_a_server_that_asks_for_patience() {
        let with = |cause: Option<(&str, &str)>| {
            let mut status = Status::failure("Cannot evict pod", "TooManyRequests");
            status.code = 429;
            let causes = cause.map(|(reason, message)| StatusCause {
                reason: reason.to_owned(),
                message: message.to_owned(),
                field: String::new(),
            });
            let causes = causes.into_iter().collect();
            status.details = Some(StatusDetails {
                name: String::new(),
                group: String::new(),
                kind: String::new(),
                uid: String::new(),
                causes,
                retry_after_seconds: 0,
            });
            status
        };
        let says = "The disruption budget api needs 2 healthy pods and has 2 currently";
        let status = with(Some((BUDGET_CAUSE, says)));
        assert!(is_budget(&status));
        assert!(!is_budget(&with(None)));
    }
}
