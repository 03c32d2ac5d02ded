//! Tests of the Kubernetes adapter, the port `Cluster`, against a real kube-apiserver.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use fleetwright::adapters::kube::{Kubernetes, LeaseClient, LeaseError};
use fleetwright::apply::ports::{Cluster, ClusterObjects, CordonOutcome, EvictOutcome, PortError};
use fleetwright::model::ids::WorkloadKind;
use fleetwright::model::observed::{
    CORDONED_ANNOTATION, CordonMark, CordonReason, GRACE_PERIOD_ANNOTATION, Node, Pod,
};
use jiff::Timestamp;
use kube::{Client, Config};
use serde_json::{Value as Json, json};
use tokio::runtime::Runtime;

use super::control_plane::ControlPlane;

pub(super) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Returns a command of the program in `directory` that connects to a cluster and to AWS at `aws`.
pub(super) fn fleetwright(directory: &Path, kubeconfig: &Path, aws: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetwright"));
    command
        .current_dir(directory)
        .env("KUBECONFIG", kubeconfig)
        .env("AWS_ENDPOINT_URL", aws)
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("XDG_CACHE_HOME", directory.join(".cache"))
        .env("NO_COLOR", "1")
        .stdin(Stdio::null());
    command
}

pub(super) async fn post(client: &Client, path: &str, object: &Json) -> Json {
    send(client, "POST", path, "application/json", object).await
}

pub(super) async fn send(
    client: &Client,
    method: &str,
    path: &str,
    kind: &str,
    object: &Json,
) -> Json {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind)
        .body(object.to_string().into_bytes())
        .expect("a request");
    client.request(request).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

fn pod_spec() -> Json {
    json!({
        "containers": [{
            "name": "api", "image": "api:1",
            "env": [{ "name": "PASSWORD", "value": "hunter2" }],
            "resources": { "requests": { "cpu": "500m", "memory": "1Gi" } }
        }],
        "nodeSelector": { "tier": "web" }
    })
}

/// Creates the roles of `deploy/kubernetes/rbac.yaml`.
pub(super) async fn grant(client: &Client) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/kubernetes/rbac.yaml");
    let text = std::fs::read_to_string(path).expect("the roles");
    for document in text.split("\n---\n") {
        let object: Json = serde_saphyr::from_str(document).expect("YAML");
        let kind = object["kind"].as_str().expect("a kind").to_ascii_lowercase();
        let scope = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("namespaces/{namespace}/"),
            None => String::new(),
        };
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{scope}{kind}s");
        post(client, &path, &object).await;
    }
}

/// Creates one node, a Deployment with its `ReplicaSet` and two bound pods, a bare pod and storage
/// objects.
async fn create_objects(client: &Client) {
    let node = json!({
        "metadata": { "name": "n1", "labels": { "tier": "web" } },
        "spec": { "providerID": "aws:///us-east-1a/i-0123456789abcdef0" }
    });
    post(client, "/api/v1/nodes", &node).await;
    let status = json!({ "status": {
        "capacity": { "cpu": "4", "memory": "16Gi", "pods": "58" },
        "allocatable": { "cpu": "3920m", "memory": "15Gi", "pods": "58" },
        "conditions": [{ "type": "Ready", "status": "True" }]
    } });
    let merge = "application/merge-patch+json";
    send(client, "PATCH", "/api/v1/nodes/n1/status", merge, &status).await;
    let labels = json!({ "app": "api" });
    let template = json!({ "metadata": { "labels": labels }, "spec": pod_spec() });
    let spec = json!({
        "replicas": 2, "selector": { "matchLabels": labels }, "template": template
    });
    let deployment = json!({ "metadata": { "name": "api" }, "spec": spec });
    let made = post(client, "/apis/apps/v1/namespaces/default/deployments", &deployment).await;
    let owner = |kind: &str, object: &Json| {
        json!([{
            "apiVersion": "apps/v1", "kind": kind, "controller": true,
            "name": object["metadata"]["name"], "uid": object["metadata"]["uid"]
        }])
    };
    let set = json!({
        "metadata": { "name": "api-7f", "ownerReferences": owner("Deployment", &made) },
        "spec": spec
    });
    let set = post(client, "/apis/apps/v1/namespaces/default/replicasets", &set).await;
    let pods = "/api/v1/namespaces/default/pods";
    for name in ["api-1", "api-2"] {
        let pod = json!({
            "metadata": {
                "name": name, "labels": labels, "ownerReferences": owner("ReplicaSet", &set)
            },
            "spec": pod_spec()
        });
        post(client, pods, &pod).await;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": name }, "target": { "kind": "Node", "name": "n1" }
        });
        post(client, &format!("{pods}/{name}/binding"), &binding).await;
        let status = json!({ "status": {
            "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }]
        } });
        send(client, "PATCH", &format!("{pods}/{name}/status"), merge, &status).await;
    }
    let mut spec = pod_spec();
    spec["nodeName"] = json!("n1");
    post(client, pods, &json!({ "metadata": { "name": "bare" }, "spec": spec })).await;
    create_storage(client).await;
}

/// Creates a storage class, a claim and the attach limit of the node.
async fn create_storage(client: &Client) {
    let class = json!({
        "metadata": { "name": "gp3" }, "provisioner": "ebs.csi.aws.com",
        "volumeBindingMode": "WaitForFirstConsumer"
    });
    post(client, "/apis/storage.k8s.io/v1/storageclasses", &class).await;
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "gp3",
            "resources": { "requests": { "storage": "1Gi" } }
        }
    });
    post(client, "/api/v1/namespaces/default/persistentvolumeclaims", &claim).await;
    let csi = json!({
        "metadata": { "name": "n1" },
        "spec": { "drivers": [{
            "name": "ebs.csi.aws.com", "nodeID": "i", "allocatable": { "count": 25 }
        }] }
    });
    post(client, "/apis/storage.k8s.io/v1/csinodes", &csi).await;
}

fn pod_named<'o>(objects: &'o ClusterObjects, name: &str) -> &'o Pod {
    objects.pods.iter().find(|pod| &*pod.name == name).expect("the pod")
}

#[test]
fn real_cluster_is_read_changed_and_locked() {
    let Some(plane) = ControlPlane::start() else { return };
    runtime().block_on(async {
        // A call that the roles of `deploy/` do not allow fails here.
        check_cluster(plane.config("admin").await, plane.config("apply").await).await;
    });
}

/// Runs the same checks against the API of `fleetwright sandbox`, which replaces the real one in
/// other tests.
#[cfg(feature = "sandbox")]
#[test]
fn sandbox_cluster_behaves_like_a_real_cluster() {
    let config = super::sandbox_api::empty();
    runtime().block_on(check_cluster(config.clone(), config));
}

async fn check_cluster(admin: Config, apply: Config) {
    let client = Client::try_from(admin).expect("a client");
    grant(&client).await;
    let kubernetes = Kubernetes::from_config(apply).expect("a client");
    assert!(!kubernetes.cluster_uid().await.expect("a UID").as_str().is_empty());
    create_objects(&client).await;
    check_objects(&kubernetes).await;
    check_cordons(&kubernetes).await;
    check_cordons_with_other_writers(&kubernetes, &client).await;
    check_evictions(&kubernetes, &client).await;
    check_deletions(&kubernetes).await;
    check_lease(&kubernetes).await;
}

async fn check_objects(kubernetes: &Kubernetes) {
    let objects = kubernetes.objects().await.expect("read");
    assert_eq!(objects.unread, Vec::<String>::new());
    assert_eq!(objects.nodes.len(), 1);
    assert!(objects.nodes[0].ready);
    assert_eq!(objects.nodes[0].allocatable.cpu.0, 3920);
    let pod = pod_named(&objects, "api-1");
    let owner = pod.owner.as_ref().expect("an owner");
    assert_eq!((owner.kind, &*owner.name), (WorkloadKind::Deployment, "api"));
    assert_eq!(pod.node, Some("n1".into()));
    let template = &objects.templates[&*pod.template];
    assert_eq!(template.spec.node_name, None, "a scheduler bound it");
    let bare = &objects.templates[&*pod_named(&objects, "bare").template];
    assert_eq!(bare.spec.node_name.as_deref(), Some("n1"), "its creator chose the node");
    let workload = objects.workloads.iter().find(|w| &*w.id.name == "api").expect("listed");
    assert_eq!((workload.id.kind, workload.replicas), (WorkloadKind::Deployment, 2));
    assert_eq!(objects.workloads.len(), 1, "the ReplicaSet of the Deployment is no workload");
    // Admission adds tolerations and a priority to a pod. Its requests equal those of its owner.
    let of_owner = &objects.templates[workload.template.as_ref().expect("a template")];
    assert_eq!(of_owner.spec.containers, template.spec.containers);
    assert_eq!(of_owner.spec.node_selector, template.spec.node_selector);
    assert!(objects.storage.classes["gp3"].wait_for_first_consumer);
    assert!(objects.storage.claim(&"default".into(), "data").is_some());
    assert_eq!(objects.storage.attach_limits["n1"]["ebs.csi.aws.com"], 25);
    let templates = serde_json::to_string(&objects.templates).expect("JSON");
    assert!(!templates.contains("hunter2"), "templates hold no secrets");
    check_one_node(kubernetes, &objects).await;
}

/// Checks that reading one node returns the same as the list.
async fn check_one_node(kubernetes: &Kubernetes, objects: &ClusterObjects) {
    let now = kubernetes.node(&"n1".into()).await.expect("read");
    assert_eq!(now.node.as_ref(), objects.nodes.first());
    let on = |pod: &&Arc<Pod>| pod.node == Some("n1".into());
    let listed: BTreeSet<_> = objects.pods.iter().filter(on).map(|pod| &pod.uid).collect();
    let found: BTreeSet<_> = now.pods.iter().map(|pod| &pod.uid).collect();
    assert_eq!((found.len(), &found), (3, &listed));
    let missing = kubernetes.node(&"n2".into()).await.expect("read");
    assert_eq!((missing.node, missing.pods), (None, vec![]));
}

/// Cordons a node with `mark`, or uncordons it if there is none.
pub(super) async fn set_cordon(
    cluster: &impl Cluster,
    node: &Node,
    mark: Option<CordonMark>,
) -> Result<CordonOutcome, PortError> {
    match mark {
        Some(mark) => cluster.cordon(node, mark).await,
        None => cluster.uncordon(node).await,
    }
}

async fn check_cordons(kubernetes: &Kubernetes) {
    let node = kubernetes.objects().await.expect("read").nodes.remove(0);
    let drain = Some(CordonReason::Drain);
    let another = Node { uid: "another".into(), ..node.clone() };
    let another = set_cordon(kubernetes, &another, drain.map(Into::into)).await.expect("answered");
    assert_eq!(another, CordonOutcome::Outdated);
    assert!(!kubernetes.objects().await.expect("read").nodes[0].unschedulable);
    let began: Timestamp = "2026-11-27T12:00:00Z".parse().expect("a time");
    let mark = |reason| {
        let grace_period_began_at = (reason == CordonReason::Drain).then_some(began);
        CordonMark { reason, grace_period_began_at }
    };
    for reason in [drain, Some(CordonReason::Interruption), None] {
        let node = kubernetes.objects().await.expect("read").nodes.remove(0);
        let written = set_cordon(kubernetes, &node, reason.map(mark)).await.expect("answered");
        assert_eq!(written, CordonOutcome::Written);
        // The observed node is outdated by now.
        let repeated = kubernetes.uncordon(&node).await.expect("answered");
        assert_eq!(repeated, CordonOutcome::Outdated);
        let seen = kubernetes.objects().await.expect("read").nodes.remove(0);
        assert_eq!((seen.unschedulable, seen.cordon_reason()), (reason.is_some(), reason));
        assert_eq!(seen.grace_period_began_at(), (reason == drain).then_some(began));
        let leftover = reason.is_none() && seen.annotations.contains_key(GRACE_PERIOD_ANNOTATION);
        assert!(!leftover, "{:?}", seen.annotations);
    }
}

/// Checks cordons of a node that other clients write. Writes to other fields do not conflict. A
/// cordon by another client is not overwritten.
async fn check_cordons_with_other_writers(kubernetes: &Kubernetes, client: &Client) {
    const MERGE: &str = "application/merge-patch+json";
    let seen = kubernetes.objects().await.expect("read").nodes.remove(0);
    let path = format!("/api/v1/nodes/{}", seen.name);
    let reports = async {
        for n in 0_u32.. {
            let report =
                json!({ "metadata": { "annotations": { "example.com/beat": n.to_string() } } });
            send(client, "PATCH", &path, MERGE, &report).await;
            // 100 times more often than a kubelet.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let writes = async {
        let (mut written, mut tries) = (0, 0);
        for (seen, reason) in
            [(&seen, Some(CordonReason::Drain)), (&with_drain_cordon(&seen), None)]
                .into_iter()
                .cycle()
        {
            // A conflict is a transient error and never counts as an outdated node.
            while let Err(error) =
                set_cordon(kubernetes, seen, reason.map(Into::into)).await.map(|outcome| {
                    assert_eq!(outcome, CordonOutcome::Written);
                })
            {
                assert!(error.is_transient() && tries < 100, "{error}");
                tries += 1;
            }
            written += 1;
            if written == 40 {
                return;
            }
        }
    };
    tokio::select! { () = reports => {}, () = writes => {} }

    let annotation = |value: Option<&str>| json!({ "annotations": { CORDONED_ANNOTATION: value } });
    let cordon = |unschedulable: bool| json!({ "unschedulable": unschedulable });
    for (seen, patch) in [
        // The user cordons the node, as `kubectl cordon` does. A write of Fleetwright would hide
        // the owner of the cordon.
        (seen.clone(), json!({ "spec": cordon(true) })),
        // The user takes over the cordon of Fleetwright, or uncordons its node, as `kubectl
        // uncordon` does.
        (with_drain_cordon(&seen), json!({ "metadata": annotation(None), "spec": cordon(true) })),
        (
            with_drain_cordon(&seen),
            json!({ "metadata": annotation(Some("drain")), "spec": cordon(false) }),
        ),
    ] {
        send(client, "PATCH", &path, MERGE, &patch).await;
        let before = kubernetes.objects().await.expect("read").nodes.remove(0);
        for reason in [Some(CordonReason::Drain), Some(CordonReason::Interruption), None] {
            let written =
                set_cordon(kubernetes, &seen, reason.map(Into::into)).await.expect("answered");
            assert_eq!(written, CordonOutcome::Outdated, "{patch}");
        }
        assert_eq!(kubernetes.objects().await.expect("read").nodes.remove(0), before);
    }
    let as_before = json!({ "metadata": annotation(None), "spec": cordon(false) });
    send(client, "PATCH", &path, MERGE, &as_before).await;
}

/// Returns the node with the cordon of a drain.
fn with_drain_cordon(node: &Node) -> Node {
    let mut annotations = node.annotations.clone();
    annotations.insert(CORDONED_ANNOTATION.to_owned(), CordonReason::Drain.as_str().to_owned());
    Node { unschedulable: true, annotations, ..node.clone() }
}

async fn check_evictions(kubernetes: &Kubernetes, client: &Client) {
    let objects = kubernetes.objects().await.expect("read");
    let pod = pod_named(&objects, "api-1").clone();
    // The same name with another UID: the requested pod is gone, and the new pod must stay.
    let missing = Pod { uid: "gone".into(), ..pod.clone() };
    assert_eq!(kubernetes.evict(&missing).await, Ok(EvictOutcome::Evicted));
    let objects = kubernetes.objects().await.expect("read");
    assert!(!pod_named(&objects, "api-1").terminating, "the UID is a precondition");
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({
        "metadata": { "name": "api" },
        "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "api" } } }
    });
    post(client, budgets, &budget).await;
    let status = json!({ "status": {
        "observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 2,
        "desiredHealthy": 2, "expectedPods": 2
    } });
    let (path, merge) = (format!("{budgets}/api/status"), "application/merge-patch+json");
    send(client, "PATCH", &path, merge, &status).await;
    let blocked = kubernetes.evict(&pod).await.expect("an answer");
    assert_eq!(blocked, EvictOutcome::Blocked { budget: "default/api".to_owned() });
    let status = json!({ "status": { "disruptionsAllowed": 1 } });
    send(client, "PATCH", &path, merge, &status).await;
    assert_eq!(kubernetes.evict(&pod).await, Ok(EvictOutcome::Evicted));
    let objects = kubernetes.objects().await.expect("read");
    let remaining = objects.pods.iter().find(|found| found.uid == pod.uid);
    assert!(remaining.is_none_or(|pod| pod.terminating), "the pod is terminating");
    // The end of a grace period deletes a pod that its budget protects, and no other of its name.
    let stays = |pod: &&Arc<Pod>| pod.name.starts_with("api-") && !pod.terminating;
    let protected = objects.pods.iter().find(stays).expect("another pod");
    let other = Pod { uid: "gone".into(), ..protected.as_ref().clone() };
    for (pod, remains) in [(&other, true), (protected.as_ref(), false), (protected, false)] {
        kubernetes.delete_pod(pod, 5).await.expect("a missing pod is no error");
        let objects = kubernetes.objects().await.expect("read");
        let found = objects.pods.iter().find(|found| found.uid == protected.uid);
        assert_eq!(found.is_some_and(|pod| !pod.terminating), remains);
    }
}

async fn check_deletions(kubernetes: &Kubernetes) {
    let node = kubernetes.objects().await.expect("read").nodes.remove(0);
    let other = kubernetes.delete_node(&node.name, &"another".into()).await;
    assert!(other.is_err(), "another node");
    kubernetes.delete_node(&node.name, &node.uid).await.expect("deleted");
    assert!(kubernetes.objects().await.expect("read").nodes.is_empty());
    kubernetes.delete_node(&node.name, &node.uid).await.expect("a missing node is no error");
}

async fn check_lease(kubernetes: &Kubernetes) {
    let lease = |holder: &str| {
        LeaseClient::new(kubernetes, "kube-system", "fleetwright-apply", holder.to_owned())
    };
    let (first, second) = (lease("first"), lease("second"));
    let held = first.acquire(Timestamp::now()).await.expect("free");
    assert!(held.is_certain());
    let refused = second.acquire(Timestamp::now()).await.expect_err("taken");
    assert!(
        matches!(&refused, LeaseError::HeldByOther { holder, .. } if holder == "first"),
        "{refused}"
    );
    let renewed = first.renew(&held, Timestamp::now()).await.expect("renewed");
    // Two processes have the same name, as in one pod. The older one detects that it no longer
    // holds the lease.
    let same_name = lease("first");
    let taken = same_name.acquire(Timestamp::now()).await.expect("it has the name of the holder");
    assert!(taken.epoch > renewed.epoch, "no two holders have the same number");
    let lost = first.renew(&renewed, Timestamp::now()).await.expect_err("another holder");
    assert!(matches!(lost, LeaseError::Lost { .. }), "{lost}");
    same_name.release(&taken, Timestamp::now()).await.expect("released");
    let next = second.acquire(Timestamp::now()).await.expect("free again");
    assert!(next.epoch > held.epoch, "no two holders have the same number");
    second.release(&next, Timestamp::now()).await.expect("released");
    check_concurrent_candidates(&lease("third"), &lease("fourth")).await;
}

/// Checks that one of two concurrent candidates acquires a lease, independent of their clocks. The
/// holder keeps it although another process writes to the lease.
async fn check_concurrent_candidates(third: &LeaseClient, fourth: &LeaseClient) {
    let hours = |n: i64| {
        let at = Timestamp::now().checked_add(jiff::SignedDuration::from_hours(n));
        at.expect("a time")
    };
    let (a, b) = tokio::join!(third.acquire(hours(1)), fourth.acquire(hours(-1)));
    let (holder, held, other) = match (a, b) {
        (Ok(held), Err(error)) => (third, held, (fourth, error)),
        (Err(error), Ok(held)) => (fourth, held, (third, error)),
        both => panic!("exactly one candidate must acquire the lease: {both:?}"),
    };
    let (other, error) = other;
    assert!(!matches!(error, LeaseError::Port(_)), "{error}");
    // A clock that is ahead by more than the lease duration takes nothing: only observed renewals
    // count.
    let refused = other.acquire(hours(9)).await.expect_err("it is held");
    assert!(matches!(refused, LeaseError::HeldByOther { .. }), "{refused}");
    other.request().await.expect("requested");
    let renewed = holder.renew(&held, hours(-9)).await.expect("a request takes nothing");
    assert!(renewed.is_certain() && renewed.requested_by().is_some());
    // A renewal that was sent earlier and arrives later is of the same holder.
    let late = holder.renew(&held, hours(0)).await.expect("it is still held");
    holder.release(&late, hours(0)).await.expect("released");
    let lost = holder.renew(&late, hours(0)).await.expect_err("a released lease is not held");
    assert!(matches!(lost, LeaseError::Lost { .. }), "{lost}");
    let requested = other.acquire(hours(0)).await.expect("the lease is free for its requester");
    other.release(&requested, hours(0)).await.expect("released");
}
