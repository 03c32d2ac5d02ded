//! Nodes, storage and classes.

use serde_json::{Value as Json, json};

use super::pods::{node_term, toleration};
use super::workloads::claim_spec;
use super::{NAMESPACE, Odd, OddObject};

fn cluster_wide(group: &str, kind: &str, plural: &str) -> OddObject {
    let root = if group == "v1" { "/api" } else { "/apis" };
    OddObject {
        path: format!("{root}/{group}/{plural}"),
        object: json!({ "apiVersion": group, "kind": kind, "metadata": {} }),
        status: None,
    }
}

pub(super) fn runtime_class(odd: &mut Odd, n: usize) -> OddObject {
    let mut made = cluster_wide("node.k8s.io/v1", "RuntimeClass", "runtimeclasses");
    made.object["metadata"]["name"] = json!(format!("odd-class-{n}"));
    made.object["handler"] = json!("x");
    let overhead = ["120m", "1e-3", "7Ei", "0.0000000001"][n % 4];
    made.object["overhead"] = json!({ "podFixed": { "cpu": overhead, "memory": "1.5Gi" } });
    odd.maybe(
        2,
        &mut made.object,
        "scheduling",
        |odd| json!({ "nodeSelector": { "a": "b" }, "tolerations": odd.list(2, toleration) }),
    );
    made
}

pub(super) fn node(odd: &mut Odd, n: usize) -> OddObject {
    let mut made = cluster_wide("v1", "Node", "nodes");
    made.object["metadata"]["labels"] = odd.labels(5);
    made.object["metadata"]["annotations"] =
        json!({ "karpenter.sh/do-not-disrupt": odd.label_value() });
    let mut spec = json!({});
    odd.maybe(2, &mut spec, "providerID", |odd| {
        let id = format!("aws:///us-east-1a/i-{n:017x}");
        json!(odd.pick(&[id.as_str(), "", "aws://", "kind://x", "aws:///us-east-1a/i-"]))
    });
    odd.maybe(2, &mut spec, "taints", |odd| {
        odd.list(3, |odd| {
            json!({
                "key": odd.label_key(), "value": odd.label_value(),
                "effect": odd.pick(&["NoSchedule", "PreferNoSchedule", "NoExecute"]),
            })
        })
    });
    odd.maybe(4, &mut spec, "unschedulable", |odd| json!(odd.one_in(2)));
    made.object["spec"] = spec;
    let amounts = |odd: &mut Odd| {
        let mut amounts = json!({});
        for name in ["cpu", "memory", "ephemeral-storage", "pods"] {
            odd.maybe(1, &mut amounts, name, Odd::quantity);
        }
        odd.maybe(3, &mut amounts, "example.com/gpu", |odd| json!(odd.pick(&["0", "1", "9E"])));
        odd.maybe(5, &mut amounts, "attachable-volumes-aws-ebs", |_| json!("39"));
        amounts
    };
    let (capacity, allocatable) = (amounts(odd), amounts(odd));
    made.status = Some(json!({
        "capacity": capacity, "allocatable": allocatable,
        "conditions": [{ "type": "Ready", "status": odd.pick(&["True", "False", "Unknown", ""]) }],
    }));
    made
}

pub(super) fn claim(odd: &mut Odd, _: usize) -> OddObject {
    let mut made = cluster_wide("v1", "PersistentVolumeClaim", "");
    made.path = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims");
    made.object["spec"] = claim_spec(odd);
    odd.maybe(3, &mut made.object["metadata"], "annotations", |odd| {
        let key = odd.pick(&[
            "volume.kubernetes.io/selected-node",
            "pv.kubernetes.io/bind-completed",
            "volume.beta.kubernetes.io/storage-class",
        ]);
        json!({ key: odd.label_value() })
    });
    made.status = odd.one_in(3).then(|| {
        json!({
            "phase": odd.pick(&["Pending", "Bound", "Lost", ""]),
            "capacity": { "storage": odd.quantity() },
        })
    });
    made
}

pub(super) fn volume(odd: &mut Odd, _: usize) -> OddObject {
    let mut made = cluster_wide("v1", "PersistentVolume", "persistentvolumes");
    let mut spec = json!({
        "capacity": { "storage": odd.quantity() },
        "accessModes": [odd.pick(&["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"])],
    });
    match odd.below(4) {
        0 => {
            spec["csi"] = json!({ "driver": "ebs.csi.aws.com", "volumeHandle": odd.label_value() });
        }
        1 => spec["nfs"] = json!({ "server": "s", "path": "/" }),
        2 => spec["hostPath"] = json!({ "path": "/x" }),
        _ => spec["awsElasticBlockStore"] = json!({ "volumeID": "aws://us-east-1a/vol-1" }),
    }
    odd.maybe(
        2,
        &mut spec,
        "nodeAffinity",
        |odd| json!({ "required": { "nodeSelectorTerms": [node_term(odd), node_term(odd)] } }),
    );
    odd.maybe(3, &mut spec, "storageClassName", |odd| json!(odd.pick(&["", "gp3"])));
    odd.maybe(3, &mut spec, "claimRef", |_| json!({ "namespace": NAMESPACE, "name": "odd-1" }));
    odd.maybe(4, &mut spec, "volumeMode", |odd| json!(odd.pick(&["Block", "Filesystem"])));
    odd.maybe(4, &mut spec, "mountOptions", |_| json!(["", "ro"]));
    made.object["metadata"]["labels"] = odd.labels(3);
    made.object["spec"] = spec;
    made
}

pub(super) fn storage_class(odd: &mut Odd, _: usize) -> OddObject {
    let mut made = cluster_wide("storage.k8s.io/v1", "StorageClass", "storageclasses");
    made.object["provisioner"] = json!(odd.pick(&["ebs.csi.aws.com", "example.com/x", "a"]));
    odd.maybe(2, &mut made.object, "volumeBindingMode", |odd| {
        json!(odd.pick(&["Immediate", "WaitForFirstConsumer"]))
    });
    odd.maybe(2, &mut made.object, "allowedTopologies", |odd| {
        odd.list(2, |odd| {
            let expressions = odd.list(2, |odd| {
                json!({ "key": odd.label_key(), "values": [odd.label_value(), odd.label_value()] })
            });
            json!({ "matchLabelExpressions": expressions })
        })
    });
    odd.maybe(3, &mut made.object, "parameters", |odd| odd.labels(2));
    odd.maybe(4, &mut made.object, "reclaimPolicy", |odd| json!(odd.pick(&["Delete", "Retain"])));
    odd.maybe(4, &mut made.object["metadata"], "annotations", |odd| {
        json!({ "storageclass.kubernetes.io/is-default-class": odd.pick(&["true", "false", "yes"]) })
    });
    made
}

pub(super) fn priority_class(odd: &mut Odd, _: usize) -> OddObject {
    let mut made = cluster_wide("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses");
    made.object["value"] = json!(odd.pick(&[0, -2_147_483_648, 1_000_000_000, 1]));
    odd.maybe(2, &mut made.object, "preemptionPolicy", |odd| {
        json!(odd.pick(&["Never", "PreemptLowerPriority"]))
    });
    made
}

pub(super) fn attachment(odd: &mut Odd, _: usize) -> OddObject {
    let mut made = cluster_wide("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments");
    let source = match odd.below(2) {
        0 => json!({ "persistentVolumeName": odd.pick(&["odd-1", "gone"]) }),
        _ => json!({ "inlineVolumeSpec": {
            "csi": { "driver": "d", "volumeHandle": "h" }, "accessModes": ["ReadWriteOnce"],
            "capacity": { "storage": "1" },
        } }),
    };
    made.object["spec"] =
        json!({ "attacher": "ebs.csi.aws.com", "nodeName": "x", "source": source });
    made
}

pub(super) fn csi_node(odd: &mut Odd, _: usize) -> OddObject {
    let mut made = cluster_wide("storage.k8s.io/v1", "CSINode", "csinodes");
    let drivers: Json = (0..odd.below(3))
        .map(|n| {
            let mut driver = json!({ "name": format!("d{n}.example.com"), "nodeID": "x" });
            odd.maybe(1, &mut driver, "topologyKeys", |odd| json!([odd.label_key()]));
            odd.maybe(2, &mut driver, "allocatable", |odd| match odd.below(4) {
                0 => json!({}),
                _ => json!({ "count": odd.count() }),
            });
            driver
        })
        .collect();
    made.object["spec"] = json!({ "drivers": drivers });
    made
}
