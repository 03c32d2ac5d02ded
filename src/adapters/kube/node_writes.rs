//! Writes: cordon and delete nodes, evict and nominate pods.

use std::collections::BTreeMap;
use std::time::Duration;

use ::kube::Error;
use ::kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use ::kube::core::PartialObjectMeta;
use k8s_openapi::api::core::v1::{Node as ApiNode, Pod as ApiPod};
use serde_json::{Value as Json, json};

use super::client::{Kubernetes, WRITE_TIMEOUT};
use super::port_error;
use crate::apply::ports::{
    CallEffect, Cluster, ClusterObjects, CordonOutcome, EvictOutcome, NodeAndPods, PortError,
};
use crate::model::ids::{NodeName, Uid};
use crate::model::node_annotations::NodeAnnotations;
use crate::model::observed::{
    CORDONED_ANNOTATION, CordonMark, CordonState, GRACE_PERIOD_ANNOTATION, Node, Pod,
};
use crate::model::pod::OPENING_TAINT;

/// Field manager of all writes, also the source of events.
pub(super) const FIELD_MANAGER: &str = "fleetwright";

/// Maximum number of retries after a concurrent write to a node.
const CONFLICTS_MAX: u32 = 5;

/// Increment of the pause before each retry.
const CONFLICT_PAUSE: Duration = Duration::from_millis(10);

/// Status codes with which the API server refuses the content of a write.
const REFUSED_CODES: [u16; 4] = [400, 403, 413, 422];

/// Error cause of an eviction that a disruption budget forbids.
const BUDGET_CAUSE: &str = "DisruptionBudget";

impl Cluster for Kubernetes {
    async fn objects(&self) -> Result<ClusterObjects, PortError> {
        self.list_cluster_objects().await.map_err(|error| port_error("read cluster", &error))
    }

    async fn node(&self, name: &NodeName) -> Result<NodeAndPods, PortError> {
        self.read_node(name).await
    }

    async fn cordon(&self, node: &Node, mark: CordonMark) -> Result<CordonOutcome, PortError> {
        self.write_cordon("cordon node", node, Some(mark)).await
    }

    async fn uncordon(&self, node: &Node) -> Result<CordonOutcome, PortError> {
        self.write_cordon("uncordon node", node, None).await
    }

    async fn open(&self, node: &Node, annotations: &NodeAnnotations) -> Result<(), PortError> {
        const VERB: &str = "open node";
        match tokio::time::timeout(WRITE_TIMEOUT, self.write_opening(node, annotations)).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(conflicting(VERB)),
            Ok(Err(error)) => Err(port_error(VERB, &error)),
            Err(_) => Err(unanswered(VERB)),
        }
    }

    async fn nominate(&self, pod: &Pod, node: &NodeName) -> Result<(), PortError> {
        const VERB: &str = "nominate pod";
        let pods: Api<ApiPod> = Api::namespaced(self.writer.clone(), pod.namespace.as_str());
        // The nomination is part of the pod status, not a binding. The UID in the patch is a
        // precondition, as for nodes.
        let patch = json!({
            "metadata": { "uid": pod.uid }, "status": { "nominatedNodeName": node.as_str() },
        });
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        let patch = Patch::Merge(&patch);
        let patched = pods.patch_status(&pod.name, &params, &patch);
        match tokio::time::timeout(WRITE_TIMEOUT, patched).await {
            Ok(patched) => patched.map(|_| ()).map_err(|error| port_error(VERB, &error)),
            Err(_) => Err(unanswered(VERB)),
        }
    }

    async fn evict(&self, pod: &Pod) -> Result<EvictOutcome, PortError> {
        let pods: Api<ApiPod> = Api::namespaced(self.writer.clone(), pod.namespace.as_str());
        // Built by hand: the client library misspells the options, and the API server then ignores
        // the UID.
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": pod.name, "namespace": pod.namespace },
            "deleteOptions": { "preconditions": { "uid": pod.uid } },
        });
        let params =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        let response: Result<Json, Error> =
            pods.create_subresource("eviction", &pod.name, &params, &eviction).await;
        match response {
            Ok(_) => Ok(EvictOutcome::Evicted),
            Err(Error::Api(status)) => match status.code {
                // Gone, or replaced by another pod of that name.
                404 | 409 => Ok(EvictOutcome::Evicted),
                429 if is_blocked_by_budget(&status) => {
                    Ok(EvictOutcome::Blocked { budget: blocking_budget(pod, &status) })
                }
                _ => Err(port_error("evict pod", &Error::Api(status))),
            },
            Err(error) => Err(port_error("evict pod", &error)),
        }
    }

    async fn delete_pod(&self, pod: &Pod, grace_seconds: u32) -> Result<(), PortError> {
        const VERB: &str = "delete pod";
        let pods: Api<ApiPod> = Api::namespaced(self.writer.clone(), pod.namespace.as_str());
        let same = Preconditions { uid: Some(pod.uid.to_string()), ..Preconditions::default() };
        let params = DeleteParams {
            preconditions: Some(same),
            // With zero, the API server would forget a pod whose containers may still run.
            grace_period_seconds: Some(grace_seconds.max(1)),
            ..DeleteParams::default()
        };
        match tokio::time::timeout(WRITE_TIMEOUT, pods.delete(&pod.name, &params)).await {
            Ok(Ok(_)) => Ok(()),
            // Gone, or replaced by another pod of that name.
            Ok(Err(Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(()),
            Ok(Err(error)) => Err(port_error(VERB, &error)),
            Err(_) => Err(unanswered(VERB)),
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
    /// Cordons a node with `mark`, or uncordons it if there is none.
    async fn write_cordon(
        &self,
        verb: &str,
        node: &Node,
        mark: Option<CordonMark>,
    ) -> Result<CordonOutcome, PortError> {
        match tokio::time::timeout(WRITE_TIMEOUT, self.cordon_if_unchanged(node, mark)).await {
            Ok(Ok(Some(outcome))) => Ok(outcome),
            Ok(Ok(None)) => Err(conflicting(verb)),
            Ok(Err(error)) => Err(port_error(verb, &error)),
            Err(_) => Err(unanswered(verb)),
        }
    }

    /// Cordons or uncordons a node whose cordon state is as observed. Kubelets update their nodes
    /// often, most of all during boot. The precondition is therefore the state that was just read,
    /// not the observed resource version. Returns `None` if concurrent writes exhausted the
    /// retries.
    async fn cordon_if_unchanged(
        &self,
        seen: &Node,
        mark: Option<CordonMark>,
    ) -> Result<Option<CordonOutcome>, Error> {
        let nodes: Api<ApiNode> = Api::all(self.writer.clone());
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        for tried in 0..CONFLICTS_MAX {
            tokio::time::sleep(CONFLICT_PAUSE * tried).await;
            let Some(found) = nodes.get_opt(seen.name.as_str()).await? else {
                return Ok(Some(CordonOutcome::Outdated));
            };
            if cordon_state(&found) != seen.cordon_state() {
                return Ok(Some(CordonOutcome::Outdated));
            }
            let patch = json!({
                            "metadata": {
                                "resourceVersion": found.metadata.resource_version,
                                "annotations": {
                                    CORDONED_ANNOTATION: mark.map(|mark| mark.reason.as_str()),
                                    GRACE_PERIOD_ANNOTATION: mark
            .and_then(|mark| mark.grace_period_began_at)
            .map(|at| at.to_string()),
                                },
                            },
                            "spec": { "unschedulable": mark.is_some() },
                        });
            let patched: Result<PartialObjectMeta<ApiNode>, Error> =
                nodes.patch_metadata(seen.name.as_str(), &params, &Patch::Merge(&patch)).await;
            match patched {
                Ok(_) => return Ok(Some(CordonOutcome::Written)),
                // A concurrent write, or the node is gone.
                Err(Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Removes the opening taint of a node, and sets the annotations that it lacks. Returns false
    /// if concurrent writes exhausted the retries.
    async fn write_opening(
        &self,
        seen: &Node,
        annotations: &NodeAnnotations,
    ) -> Result<bool, Error> {
        let nodes: Api<ApiNode> = Api::all(self.writer.clone());
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        let (mut annotations, none) = (annotations, NodeAnnotations::new());
        for tried in 0..CONFLICTS_MAX {
            tokio::time::sleep(CONFLICT_PAUSE * tried).await;
            let Some(found) = nodes.get_opt(seen.name.as_str()).await? else { return Ok(true) };
            let Some(patch) = opening_patch(&found, &seen.uid, annotations) else {
                return Ok(true);
            };
            let patched: Result<PartialObjectMeta<ApiNode>, Error> =
                nodes.patch_metadata(seen.name.as_str(), &params, &Patch::Merge(&patch)).await;
            match patched {
                Ok(_) => return Ok(true),
                // A concurrent write, or the node is gone.
                Err(Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                // Pods wait for the node, whatever an admission webhook thinks of its annotations.
                Err(Error::Api(status))
                    if !annotations.is_empty() && REFUSED_CODES.contains(&status.code) =>
                {
                    let reason = &status.message;
                    tracing::warn!(node = %seen.name, %reason, "node opens without annotations");
                    annotations = &none;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// Returns the patch that opens a node. Annotations with other values stay as they are. `None` if
/// the node is open and lacks none, or if it is another node of that name.
///
/// The list of taints is replaced as a whole, so the resource version is the precondition.
fn opening_patch(found: &ApiNode, uid: &Uid, annotations: &NodeAnnotations) -> Option<Json> {
    if found.metadata.uid.as_deref() != Some(uid.as_str()) {
        return None;
    }
    let present = found.metadata.annotations.as_ref();
    let is_missing = |key: &String| !present.is_some_and(|present| present.contains_key(key));
    let missing: BTreeMap<&String, &String> =
        annotations.iter().filter(|(key, _)| is_missing(key)).collect();
    let taints = found.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let taints = taints.map(Vec::as_slice).unwrap_or_default();
    let kept: Vec<_> = taints.iter().filter(|taint| taint.key != OPENING_TAINT).collect();
    let is_closed = kept.len() < taints.len();
    let mut patch = json!({ "metadata": { "resourceVersion": found.metadata.resource_version } });
    if is_closed {
        patch["spec"] = json!({ "taints": kept });
    }
    if !missing.is_empty() {
        patch["metadata"]["annotations"] = json!(missing);
    }
    (is_closed || !missing.is_empty()).then_some(patch)
}

fn unanswered(verb: &str) -> PortError {
    PortError {
        verb: verb.to_owned(),
        reason: format!("no answer within {} s", WRITE_TIMEOUT.as_secs()),
        effect: CallEffect::Unknown,
    }
}

fn conflicting(verb: &str) -> PortError {
    PortError {
        verb: verb.to_owned(),
        reason: "too many concurrent writes".to_owned(),
        effect: CallEffect::NotApplied,
    }
}

/// Returns the current cordon state of a node.
fn cordon_state(found: &ApiNode) -> CordonState {
    let meta = &found.metadata;
    let annotations = meta.annotations.as_ref();
    CordonState {
        uid: meta.uid.as_deref().unwrap_or_default().into(),
        unschedulable: found.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false),
        annotation: annotations.and_then(|all| all.get(CORDONED_ANNOTATION)).cloned(),
    }
}

/// Returns whether a disruption budget forbids the eviction. Otherwise the API server is
/// throttling.
fn is_blocked_by_budget(status: &::kube::core::Status) -> bool {
    let causes = status.details.as_ref().map(|details| &details.causes);
    causes.into_iter().flatten().any(|cause| cause.reason == BUDGET_CAUSE)
        || status.message.contains("disruption budget")
}

/// Returns the budget that the API server names, such as `web/api`.
fn blocking_budget(pod: &Pod, status: &::kube::core::Status) -> String {
    let causes = status.details.as_ref().map(|details| &details.causes);
    let messages = causes.into_iter().flatten().map(|cause| cause.message.as_str());
    let named = messages.filter_map(|text| {
        let (_, rest) = text.split_once("disruption budget ")?;
        rest.split_whitespace().next()
    });
    let mut named = named.map(|name| format!("{}/{name}", pod.namespace));
    named.next().unwrap_or_else(|| format!("a budget in namespace {}", pod.namespace))
}

#[cfg(test)]
mod tests {
    use ::kube::core::response::{Status, StatusCause, StatusDetails};

    use super::*;

    #[test]
    fn opening_adds_only_missing_annotations() {
        let annotations = |pairs: &[(&str, &str)]| -> NodeAnnotations {
            let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            pairs.collect()
        };
        let found = |taints: Json| -> ApiNode {
            let object = json!({
                "metadata": { "name": "n", "uid": "u", "resourceVersion": "7",
                              "annotations": { "team": "by-hand" } },
                "spec": { "taints": taints },
            });
            serde_json::from_value(object).expect("a node")
        };
        let closed = json!([
            { "key": OPENING_TAINT, "effect": "NoSchedule" },
            { "key": "dedicated", "value": "web", "effect": "NoSchedule" },
        ]);
        let declared = annotations(&[("team", "web"), ("example.com/owner", "shop")]);
        let patch = opening_patch(&found(closed.clone()), &"u".into(), &declared);
        let missing = json!({ "example.com/owner": "shop" });
        let expected = json!({
            "metadata": { "resourceVersion": "7", "annotations": missing },
            "spec": { "taints": [{ "key": "dedicated", "value": "web", "effect": "NoSchedule" }] },
        });
        assert_eq!(patch, Some(expected));
        // Another client has opened the node.
        let open = found(json!([]));
        let expected = json!({ "metadata": { "resourceVersion": "7", "annotations": missing } });
        assert_eq!(opening_patch(&open, &"u".into(), &declared), Some(expected));
        let present = annotations(&[("team", "web")]);
        assert_eq!(opening_patch(&open, &"u".into(), &present), None);
        assert_eq!(opening_patch(&found(closed), &"another".into(), &declared), None);
    }

    #[test]
    fn blocked_eviction_differs_from_throttling() {
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
        assert!(is_blocked_by_budget(&status));
        assert!(!is_blocked_by_budget(&with(None)));
    }
}
