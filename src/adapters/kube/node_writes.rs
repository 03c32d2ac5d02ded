//! Writes: cordon and delete nodes, evict and nominate pods.

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

/// Field manager of all writes, also the source of events.
pub(super) const FIELD_MANAGER: &str = "fleetwright";

/// Maximum number of tries of a write to a node that concurrent writes disturb.
pub(super) const CONFLICTS_MAX: u32 = 5;

/// Increment of the pause before each retry.
pub(super) const CONFLICT_PAUSE: Duration = Duration::from_millis(10);

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
        self.open_within(node, annotations, WRITE_TIMEOUT).await
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
            Ok(Err(Error::Api(status))) if is_bound_already(&status) => Ok(()),
            Ok(patched) => patched.map(|_| ()).map_err(|error| port_error(VERB, &error)),
            Err(_) => Err(unanswered(VERB, WRITE_TIMEOUT)),
        }
    }

    async fn evict(&self, pod: &Pod) -> Result<EvictOutcome, PortError> {
        const VERB: &str = "evict pod";
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
        let evicted = pods.create_subresource("eviction", &pod.name, &params, &eviction);
        let response: Result<Json, Error> = match tokio::time::timeout(WRITE_TIMEOUT, evicted).await
        {
            Ok(response) => response,
            Err(_) => return Err(unanswered(VERB, WRITE_TIMEOUT)),
        };
        match response {
            Ok(_) => Ok(EvictOutcome::Evicted),
            Err(Error::Api(status)) => match status.code {
                // Gone, or replaced by another pod of that name.
                404 | 409 => Ok(EvictOutcome::Evicted),
                429 if is_blocked_by_budget(&status) => {
                    Ok(EvictOutcome::Blocked { budget: blocking_budget(pod, &status) })
                }
                _ => Err(port_error(VERB, &Error::Api(status))),
            },
            Err(error) => Err(port_error(VERB, &error)),
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
            Err(_) => Err(unanswered(VERB, WRITE_TIMEOUT)),
        }
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        const VERB: &str = "delete node";
        let nodes: Api<ApiNode> = Api::all(self.writer.clone());
        let same = Preconditions { uid: Some(uid.to_string()), ..Preconditions::default() };
        let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
        let deleted = nodes.delete(node.as_str(), &params);
        match tokio::time::timeout(WRITE_TIMEOUT, deleted).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(Error::Api(status))) if status.code == 404 => Ok(()),
            Ok(Err(error)) => Err(port_error(VERB, &error)),
            Err(_) => Err(unanswered(VERB, WRITE_TIMEOUT)),
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
        write_within(verb, WRITE_TIMEOUT, self.cordon_if_unchanged(node, mark)).await
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
}

/// Returns the result of a write to a node that is repeated after concurrent writes. The write
/// returns `None` if they exhausted its tries.
pub(super) async fn write_within<T>(
    verb: &str,
    bound: Duration,
    write: impl Future<Output = Result<Option<T>, Error>>,
) -> Result<T, PortError> {
    match tokio::time::timeout(bound, write).await {
        Ok(Ok(Some(outcome))) => Ok(outcome),
        Ok(Ok(None)) => Err(conflicting(verb)),
        Ok(Err(error)) => Err(port_error(verb, &error)),
        Err(_) => Err(unanswered(verb, bound)),
    }
}

fn unanswered(verb: &str, bound: Duration) -> PortError {
    PortError {
        verb: verb.to_owned(),
        reason: format!("no answer within {} s", bound.as_secs()),
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

/// Returns true if a nomination came too late, because kube-scheduler has placed the pod meanwhile.
fn is_bound_already(status: &::kube::core::Status) -> bool {
    status.code == 422 && status.message.contains("already bound")
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

    #[tokio::test]
    async fn exhausted_and_unanswered_writes_are_errors() {
        let bound = Duration::from_millis(10);
        let exhausted = write_within::<()>("open node", bound, async { Ok(None) }).await;
        let exhausted = exhausted.expect_err("no try was left");
        assert_eq!(exhausted.to_string(), "open node failed: too many concurrent writes");
        assert_eq!(exhausted.effect, CallEffect::NotApplied);
        let unanswered = write_within::<()>("cordon node", bound, std::future::pending()).await;
        let unanswered = unanswered.expect_err("the write hangs");
        assert_eq!(unanswered.to_string(), "cordon node failed: no answer within 0 s");
        assert_eq!(unanswered.effect, CallEffect::Unknown);
    }

    #[test]
    fn late_nomination_differs_from_an_invalid_one() {
        let refused = |message: &str| {
            let mut status = Status::failure(message, "Invalid");
            status.code = 422;
            status
        };
        let late = "Pod \"web\" is invalid: status.nominatedNodeName: Forbidden: may not be set on \
                    pods that are already bound to a node";
        let invalid = "Pod \"web\" is invalid: status.nominatedNodeName: Invalid value: \"-\"";
        assert!(is_bound_already(&refused(late)));
        assert!(!is_bound_already(&refused(invalid)));
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
