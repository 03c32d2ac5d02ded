//! What is changed: nodes are cordoned and deleted, pods evicted.

use std::time::Duration;

use ::kube::Error;
use ::kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use ::kube::core::PartialObjectMeta;
use k8s_openapi::api::core::v1::{Node as ApiNode, Pod as ApiPod};
use serde_json::{Value as Json, json};

use super::client::{Kubernetes, WRITTEN_WITHIN};
use super::port_error;
use crate::fleet::{CORDONED_ANNOTATION, Cordon, CordonedFor, Node, Pod};
use crate::ids::{NodeName, Uid};
use crate::port::{Cluster, ClusterObjects, CordonOutcome, EvictOutcome, Fate, NodeNow, PortError};

/// Who writes, as `managedFields` and events show it.
pub(super) const MANAGER: &str = "fleetwright";

/// How often a node is read anew because somebody wrote it between read and write.
const CONFLICTS_MAX: u32 = 5;

/// How much longer each time it is waited before that.
const CONFLICT_PAUSE: Duration = Duration::from_millis(10);

/// Cause by which the API server says that a disruption budget forbids an eviction.
const BUDGET_CAUSE: &str = "DisruptionBudget";

impl Cluster for Kubernetes {
    async fn objects(&self) -> Result<ClusterObjects, PortError> {
        self.read_objects().await.map_err(|error| port_error("read cluster", &error))
    }

    async fn node(&self, name: &NodeName) -> Result<NodeNow, PortError> {
        self.read_node(name).await
    }

    async fn cordon(
        &self,
        node: &Node,
        mark: Option<CordonedFor>,
    ) -> Result<CordonOutcome, PortError> {
        const VERB: &str = "cordon node";
        match tokio::time::timeout(WRITTEN_WITHIN, self.cordon_as_seen(node, mark)).await {
            Ok(Ok(Some(outcome))) => Ok(outcome),
            Ok(Ok(None)) => Err(PortError {
                verb: VERB.to_owned(),
                reason: "others write it all the time".to_owned(),
                fate: Fate::TurnedAway,
            }),
            Ok(Err(error)) => Err(port_error(VERB, &error)),
            Err(_) => Err(PortError {
                verb: VERB.to_owned(),
                reason: format!("no answer within {} s", WRITTEN_WITHIN.as_secs()),
                fate: Fate::Unknown,
            }),
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
    /// Cordons or uncordons a node that stands as it was seen. A kubelet writes its node whenever it likes, most of all while
    /// it boots: what it was just read as is the precondition, and not what the look showed that this was decided from. `None`
    /// where each time somebody wrote it in between.
    async fn cordon_as_seen(
        &self,
        seen: &Node,
        mark: Option<CordonedFor>,
    ) -> Result<Option<CordonOutcome>, Error> {
        let nodes: Api<ApiNode> = Api::all(self.writer.clone());
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        for tried in 0..CONFLICTS_MAX {
            tokio::time::sleep(CONFLICT_PAUSE * tried).await;
            let Some(found) = nodes.get_opt(seen.name.as_str()).await? else {
                return Ok(Some(CordonOutcome::Outdated));
            };
            if cordon_of(&found) != seen.cordon() {
                return Ok(Some(CordonOutcome::Outdated));
            }
            let mark = mark.map(CordonedFor::as_str);
            let patch = json!({
                "metadata": {
                    "resourceVersion": found.metadata.resource_version,
                    "annotations": { CORDONED_ANNOTATION: mark },
                },
                "spec": { "unschedulable": mark.is_some() },
            });
            let patched: Result<PartialObjectMeta<ApiNode>, Error> =
                nodes.patch_metadata(seen.name.as_str(), &params, &Patch::Merge(&patch)).await;
            match patched {
                Ok(_) => return Ok(Some(CordonOutcome::Written)),
                // Somebody wrote it in between, or it is gone.
                Err(Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

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

/// Returns how a node stands, as the API server has it.
fn cordon_of(found: &ApiNode) -> Cordon {
    let meta = &found.metadata;
    let annotations = meta.annotations.as_ref();
    Cordon {
        uid: meta.uid.as_deref().unwrap_or_default().into(),
        unschedulable: found.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false),
        mark: annotations.and_then(|all| all.get(CORDONED_ANNOTATION)).cloned(),
    }
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
