//! Opening of a node: its taint is removed, and its annotations are set.
//!
//! Invariant: a closed node opens whatever happens to its annotations, because pods wait for it.
//! Annotations that could not be set are set later.

use std::collections::BTreeMap;
use std::time::Duration;

use ::kube::Error;
use ::kube::api::{Api, Patch, PatchParams};
use ::kube::core::PartialObjectMeta;
use k8s_openapi::api::core::v1::Node as ApiNode;
use serde_json::{Value as Json, json};

use super::client::Kubernetes;
use super::node_writes::{CONFLICT_PAUSE, CONFLICTS_MAX, FIELD_MANAGER, write_within};
use crate::apply::ports::PortError;
use crate::model::ids::Uid;
use crate::model::node_annotations::NodeAnnotations;
use crate::model::observed::Node;
use crate::model::pod::OPENING_TAINT;

/// Number of the last tries, which are without annotations: an admission webhook may deny them with
/// the status code of a concurrent write.
const PLAIN_TRIES: u32 = 2;

impl Kubernetes {
    /// Opens a node within `bound`. Annotations have half of it: an admission webhook may delay or
    /// deny every write of them. For a node that was observed open, their failure is the answer.
    pub(super) async fn open_within(
        &self,
        node: &Node,
        annotations: &NodeAnnotations,
        bound: Duration,
    ) -> Result<(), PortError> {
        if annotations.is_empty() {
            return self.try_opening(node, annotations, CONFLICTS_MAX, bound).await;
        }
        let (tries, half) = (CONFLICTS_MAX - PLAIN_TRIES, bound / 2);
        match self.try_opening(node, annotations, tries, half).await {
            Err(error) if node.is_closed() => {
                let reason = &error.reason;
                tracing::warn!(node = %node.name, %reason, "opening node without its annotations");
                self.try_opening(node, &NodeAnnotations::new(), PLAIN_TRIES, half).await
            }
            answer => answer,
        }
    }

    async fn try_opening(
        &self,
        node: &Node,
        annotations: &NodeAnnotations,
        tries: u32,
        bound: Duration,
    ) -> Result<(), PortError> {
        let verb = if node.is_closed() { "open node" } else { "annotate node" };
        write_within(verb, bound, self.write_opening(node, annotations, tries)).await
    }

    /// Removes the opening taint of a node, and sets the annotations that it lacks. Returns
    /// `None` if concurrent writes exhausted the tries.
    async fn write_opening(
        &self,
        seen: &Node,
        annotations: &NodeAnnotations,
        tries: u32,
    ) -> Result<Option<()>, Error> {
        let nodes: Api<ApiNode> = Api::all(self.writer.clone());
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        for tried in 0..tries {
            tokio::time::sleep(CONFLICT_PAUSE * tried).await;
            let Some(found) = nodes.get_opt(seen.name.as_str()).await? else {
                return Ok(Some(()));
            };
            let Some(patch) = opening_patch(&found, &seen.uid, annotations) else {
                return Ok(Some(()));
            };
            let patched: Result<PartialObjectMeta<ApiNode>, Error> =
                nodes.patch_metadata(seen.name.as_str(), &params, &Patch::Merge(&patch)).await;
            match patched {
                Ok(_) => return Ok(Some(())),
                // A concurrent write, or the node is gone.
                Err(Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::apply::ports::CallEffect;
    use crate::model::pod::Taint;
    use crate::testing::world::node;

    /// What an admission webhook does with writes of annotations.
    #[derive(Debug, Clone, Copy)]
    enum Webhook {
        Denies(u16),
        Hangs,
    }

    /// Patches that an API server received.
    type Patches = Arc<Mutex<Vec<Json>>>;

    fn annotations(pairs: &[(&str, &str)]) -> NodeAnnotations {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        pairs.collect()
    }

    /// Returns a cluster with the node `n`, and the patches that it receives.
    fn cluster(webhook: Webhook, taints: &Json) -> (Kubernetes, Patches) {
        let patches = Patches::default();
        let found = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "n", "uid": "n", "resourceVersion": "7" },
            "spec": { "taints": taints },
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let received = Arc::clone(&patches);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (found, received) = (found.clone(), Arc::clone(&received));
                std::thread::spawn(move || serve(&mut stream, webhook, &found, &received));
            }
        });
        (Kubernetes::connect_to(&url).expect("a client"), patches)
    }

    fn serve(stream: &mut TcpStream, webhook: Webhook, found: &Json, received: &Patches) {
        let Some(patch) = patch(stream) else { return };
        if patch.is_null() {
            return answer(stream, 200, found);
        }
        let is_annotated = has_annotations(&patch);
        received.lock().expect("no panic").push(patch);
        match webhook {
            Webhook::Denies(code) if is_annotated => {
                let status = json!({
                    "apiVersion": "v1", "kind": "Status", "status": "Failure",
                    "message": "denied by a webhook", "reason": "Unknown", "code": code,
                });
                answer(stream, code, &status);
            }
            // The client disconnects.
            Webhook::Hangs if is_annotated => {
                assert_eq!(stream.read(&mut [0]).unwrap_or_default(), 0);
            }
            Webhook::Denies(_) | Webhook::Hangs => {
                let patched = json!({
                    "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                    "metadata": { "name": "n", "uid": "n", "resourceVersion": "8" },
                });
                answer(stream, 200, &patched);
            }
        }
    }

    /// Returns the patch of a request, null for a read.
    fn patch(stream: &mut TcpStream) -> Option<Json> {
        let mut request = Vec::new();
        loop {
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
            request.extend_from_slice(&bytes[..count]);
            let text = String::from_utf8_lossy(&request);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            if head.starts_with("GET") {
                return Some(Json::Null);
            }
            let (Some(start), Some(end)) = (body.find('{'), body.rfind('}')) else { continue };
            if let Ok(patch) = serde_json::from_str(&body[start..=end]) {
                return Some(patch);
            }
        }
    }

    fn answer(stream: &mut TcpStream, code: u16, body: &Json) {
        let body = body.to_string();
        let length = body.len();
        // A client may disconnect at any time.
        let _ = write!(
            stream,
            "HTTP/1.1 {code} Answer\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
    }

    fn has_annotations(patch: &Json) -> bool {
        patch["metadata"]["annotations"].is_object()
    }

    #[tokio::test]
    async fn node_opens_whatever_happens_to_its_annotations() {
        let closed = Node { taints: vec![Taint::opening()], ..node("n") };
        let taints = json!([{ "key": OPENING_TAINT, "effect": "NoSchedule" }]);
        for (webhook, annotated) in [
            (Webhook::Denies(500), 1),
            (Webhook::Denies(403), 1),
            (Webhook::Denies(429), 1),
            // They look like concurrent writes.
            (Webhook::Denies(404), 3),
            (Webhook::Denies(409), 3),
            (Webhook::Hangs, 1),
        ] {
            let (kubernetes, patches) = cluster(webhook, &taints);
            let (team, bound) = (annotations(&[("team", "web")]), Duration::from_secs(4));
            assert_eq!(kubernetes.open_within(&closed, &team, bound).await, Ok(()), "{webhook:?}");
            let patches = patches.lock().expect("no panic").clone();
            let (last, before) = patches.split_last().expect("a write");
            assert_eq!(before.len(), annotated, "{webhook:?}");
            assert!(before.iter().all(has_annotations), "{before:?}");
            assert!(!has_annotations(last) && last["spec"]["taints"] == json!([]), "{last}");
        }
    }

    #[tokio::test]
    async fn refused_annotations_of_an_open_node_are_an_error() {
        let (kubernetes, patches) = cluster(Webhook::Denies(403), &json!([]));
        let (team, bound) = (annotations(&[("team", "web")]), Duration::from_secs(4));
        let error = kubernetes.open_within(&node("n"), &team, bound).await.expect_err("refused");
        assert_eq!(error.to_string(), "annotate node failed: denied by a webhook (403)");
        assert_eq!(error.effect, CallEffect::Refused);
        assert_eq!(patches.lock().expect("no panic").len(), 1);
    }

    #[test]
    fn opening_adds_only_missing_annotations() {
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
}
