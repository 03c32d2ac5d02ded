//! Pods and pod templates.

use serde_json::{Value as Json, json};

use super::{NAMESPACE, Odd, OddObject};

pub(super) fn pod(odd: &mut Odd, n: usize) -> OddObject {
    let mut spec = pod_spec(odd);
    odd.maybe(2, &mut spec, "nodeName", |odd| {
        json!(odd.pick(&["odd-node", "gone", "ip-10-0-0-1"]))
    });
    let mut object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "labels": odd.labels(3), "annotations": annotations(odd) },
        "spec": spec,
    });
    odd.maybe(4, &mut object["metadata"], "ownerReferences", |odd| {
        let kind = odd.pick(&["ReplicaSet", "DaemonSet", "Job", "StatefulSet", "Node", "Widget"]);
        let version = if kind == "Job" { "batch/v1" } else { "apps/v1" };
        json!([{
            "apiVersion": version, "kind": kind, "name": format!("owner-{}", n % 7),
            "uid": "00000000-0000-0000-0000-000000000001", "controller": odd.one_in(2),
        }])
    });
    let status = odd.one_in(3).then(|| pod_status(odd));
    OddObject { path: format!("/api/v1/namespaces/{NAMESPACE}/pods"), object, status }
}

/// Returns a template. Its labels include `app`.
pub(super) fn template(odd: &mut Odd) -> Json {
    let mut labels = odd.labels(2);
    labels["app"] = json!("odd");
    json!({ "metadata": { "labels": labels, "annotations": annotations(odd) }, "spec": pod_spec(odd) })
}

fn annotations(odd: &mut Odd) -> Json {
    let mut all = json!({});
    odd.maybe(6, &mut all, "karpenter.sh/do-not-disrupt", |odd| {
        json!(odd.pick(&["true", "false", "", "1h", "-1h", "99999999999h", "1h30m", "TRUE"]))
    });
    odd.maybe(6, &mut all, "cluster-autoscaler.kubernetes.io/safe-to-evict", |odd| {
        json!(odd.pick(&["true", "false", "no", ""]))
    });
    odd.maybe(9, &mut all, "controller.kubernetes.io/pod-deletion-cost", |odd| {
        json!(odd.pick(&["-2147483648", "2147483647", "0"]))
    });
    odd.maybe(9, &mut all, "example.com/note", |_| json!("${HOME} {{ x }}\u{202e}\u{1b}[31m"));
    all
}

fn pod_spec(odd: &mut Odd) -> Json {
    let containers: Json = (0..=odd.below(3)).map(|n| container(odd, &format!("c{n}"))).collect();
    let mut spec = json!({ "containers": containers });
    odd.maybe(3, &mut spec, "initContainers", |odd| {
        (0..=odd.below(2))
            .map(|n| {
                let mut init = container(odd, &format!("i{n}"));
                odd.maybe(2, &mut init, "restartPolicy", |_| json!("Always"));
                init
            })
            .collect()
    });
    odd.maybe(4, &mut spec, "terminationGracePeriodSeconds", Odd::seconds);
    odd.maybe(9, &mut spec, "activeDeadlineSeconds", Odd::seconds);
    odd.maybe(5, &mut spec, "nodeSelector", |odd| odd.labels(3));
    odd.maybe(3, &mut spec, "affinity", affinity);
    odd.maybe(3, &mut spec, "topologySpreadConstraints", |odd| odd.list(2, spread));
    odd.maybe(4, &mut spec, "tolerations", |odd| odd.list(3, toleration));
    odd.maybe(8, &mut spec, "schedulingGates", |odd| {
        odd.list(2, |odd| json!({ "name": odd.pick(&["example.com/a", "gate", "x.y/z"]) }))
    });
    odd.maybe(8, &mut spec, "runtimeClassName", |odd| {
        json!(odd.pick(&["odd-class-0", "odd-class-1", "odd-class-2", "odd-class-3"]))
    });
    odd.maybe(8, &mut spec, "priorityClassName", |odd| {
        json!(odd.pick(&["system-node-critical", "system-cluster-critical"]))
    });
    odd.maybe(9, &mut spec, "preemptionPolicy", |_| json!("PreemptLowerPriority"));
    odd.maybe(8, &mut spec, "schedulerName", |odd| {
        json!(odd.pick(&["default-scheduler", "x", ""]))
    });
    odd.maybe(9, &mut spec, "hostNetwork", |odd| json!(odd.one_in(2)));
    odd.maybe(9, &mut spec, "os", |odd| json!({ "name": odd.pick(&["linux", "windows"]) }));
    odd.maybe(9, &mut spec, "restartPolicy", |odd| {
        json!(odd.pick(&["Always", "Never", "OnFailure"]))
    });
    odd.maybe(6, &mut spec, "resources", pod_resources);
    volumes(odd, &mut spec);
    claims(odd, &mut spec);
    spec
}

fn container(odd: &mut Odd, name: &str) -> Json {
    let mut container = json!({ "name": name, "image": "i" });
    odd.maybe(2, &mut container, "resources", resources);
    odd.maybe(6, &mut container, "ports", |odd| {
        odd.list(2, |odd| {
            let mut port = json!({ "containerPort": odd.pick(&[1, 80, 65_535]) });
            odd.maybe(2, &mut port, "hostPort", |odd| json!(odd.pick(&[0, 1, 80, 65_535])));
            odd.maybe(2, &mut port, "protocol", |odd| json!(odd.pick(&["TCP", "UDP", "SCTP"])));
            odd.maybe(3, &mut port, "hostIP", |odd| {
                json!(odd.pick(&["", "0.0.0.0", "::", "10.0.0.1"]))
            });
            port
        })
    });
    odd.maybe(9, &mut container, "resizePolicy", |odd| {
        json!([{
            "resourceName": odd.pick(&["cpu", "memory"]),
            "restartPolicy": odd.pick(&["NotRequired", "RestartContainer"]),
        }])
    });
    container
}

/// Returns requests, limits or both. Limits equal the requests, because they must not be below.
fn resources(odd: &mut Odd) -> Json {
    let mut amounts = json!({});
    for name in ["cpu", "memory", "ephemeral-storage"] {
        odd.maybe(2, &mut amounts, name, Odd::quantity);
    }
    let mut limits = json!({});
    odd.maybe(9, &mut limits, "example.com/gpu", |odd| json!(odd.pick(&["0", "1", "2k", "9E"])));
    odd.maybe(12, &mut limits, "hugepages-2Mi", |odd| json!(odd.pick(&["0", "2Mi", "4Mi", "1Gi"])));
    match odd.below(4) {
        0 => json!({ "limits": amounts }),
        1 => json!({ "limits": amounts, "requests": amounts }),
        2 => json!({ "requests": amounts, "limits": limits, "claims": [] }),
        _ => json!({ "requests": amounts, "limits": limits }),
    }
}

/// Returns resources of a whole pod.
fn pod_resources(odd: &mut Odd) -> Json {
    let large = odd.pick(&["9E", "8Ei", "1E", "2T", "100m"]);
    let mut amounts = json!({});
    odd.maybe(2, &mut amounts, "cpu", |_| json!(large));
    odd.maybe(2, &mut amounts, "memory", |_| json!(large));
    match odd.below(3) {
        0 => json!({ "limits": amounts }),
        1 => json!({ "limits": amounts, "requests": amounts }),
        _ => json!({ "requests": amounts }),
    }
}

fn affinity(odd: &mut Odd) -> Json {
    let mut affinity = json!({});
    odd.maybe(2, &mut affinity, "nodeAffinity", |odd| {
        let mut node = json!({});
        odd.maybe(
            2,
            &mut node,
            "requiredDuringSchedulingIgnoredDuringExecution",
            |odd| json!({ "nodeSelectorTerms": [node_term(odd), node_term(odd)] }),
        );
        odd.maybe(2, &mut node, "preferredDuringSchedulingIgnoredDuringExecution", |odd| {
            odd.list(
                2,
                |odd| json!({ "weight": odd.pick(&[1, 50, 100]), "preference": node_term(odd) }),
            )
        });
        node
    });
    for key in ["podAffinity", "podAntiAffinity"] {
        odd.maybe(3, &mut affinity, key, |odd| {
            let mut rules = json!({});
            odd.maybe(2, &mut rules, "requiredDuringSchedulingIgnoredDuringExecution", |odd| {
                odd.list(2, pod_term)
            });
            odd.maybe(2, &mut rules, "preferredDuringSchedulingIgnoredDuringExecution", |odd| {
                odd.list(2, |odd| {
                    json!({ "weight": odd.pick(&[1, 100]), "podAffinityTerm": pod_term(odd) })
                })
            });
            rules
        });
    }
    affinity
}

pub(super) fn node_term(odd: &mut Odd) -> Json {
    let mut term = json!({});
    odd.maybe(1, &mut term, "matchExpressions", Odd::node_expressions);
    odd.maybe(6, &mut term, "matchFields", |odd| {
        json!([{
            "key": "metadata.name", "operator": odd.pick(&["In", "NotIn"]), "values": ["odd-node"],
        }])
    });
    term
}

fn pod_term(odd: &mut Odd) -> Json {
    let mut term = json!({ "topologyKey": odd.label_key() });
    odd.maybe(1, &mut term, "labelSelector", Odd::label_selector);
    odd.maybe(4, &mut term, "namespaces", |odd| json!([odd.pick(&["odd", "other"])]));
    odd.maybe(4, &mut term, "namespaceSelector", Odd::label_selector);
    odd.maybe(5, &mut term, "matchLabelKeys", |odd| json!([odd.label_key()]));
    odd.maybe(5, &mut term, "mismatchLabelKeys", |odd| json!([odd.label_key()]));
    term
}

fn spread(odd: &mut Odd) -> Json {
    let when = odd.pick(&["DoNotSchedule", "ScheduleAnyway"]);
    let mut rule = json!({
        "maxSkew": odd.pick(&[1, 2, 2_147_483_647]), "topologyKey": odd.label_key(),
        "whenUnsatisfiable": when,
    });
    odd.maybe(2, &mut rule, "labelSelector", Odd::label_selector);
    if when == "DoNotSchedule" {
        odd.maybe(3, &mut rule, "minDomains", |odd| json!(odd.pick(&[1, 2_147_483_647])));
    }
    odd.maybe(3, &mut rule, "nodeAffinityPolicy", |odd| json!(odd.pick(&["Honor", "Ignore"])));
    odd.maybe(3, &mut rule, "nodeTaintsPolicy", |odd| json!(odd.pick(&["Honor", "Ignore"])));
    odd.maybe(5, &mut rule, "matchLabelKeys", |odd| json!([odd.label_key()]));
    rule
}

pub(super) fn toleration(odd: &mut Odd) -> Json {
    let operator =
        odd.pick(&["Exists", "Exists", "Exists", "Equal", "Equal", "Equal", "", "", "Lt"]);
    let mut toleration = json!({ "operator": operator });
    if operator == "Exists" {
        odd.maybe(2, &mut toleration, "key", |odd| json!(odd.label_key()));
    } else {
        toleration["key"] = json!(odd.label_key());
        odd.maybe(1, &mut toleration, "value", |odd| json!(odd.label_value()));
    }
    let effect = odd.pick(&["", "NoSchedule", "PreferNoSchedule", "NoExecute"]);
    toleration["effect"] = json!(effect);
    if effect == "NoExecute" {
        odd.maybe(2, &mut toleration, "tolerationSeconds", Odd::seconds);
    }
    toleration
}

fn volumes(odd: &mut Odd, spec: &mut Json) {
    odd.maybe(4, spec, "volumes", |odd| {
        (0..=odd.below(2)).map(|n| volume(odd, &format!("v{n}"))).collect()
    });
}

fn volume(odd: &mut Odd, name: &str) -> Json {
    let mut volume = match odd.below(12) {
        0 => json!({ "emptyDir": { "medium": odd.pick(&["", "Memory", "HugePages"]) } }),
        1 => json!({ "emptyDir": { "sizeLimit": odd.quantity() } }),
        2 => {
            json!({ "hostPath": { "path": "/x", "type": odd.pick(&["", "Directory", "Socket"]) } })
        }
        3 => json!({ "configMap": { "name": "x", "optional": true } }),
        4 => {
            json!({ "persistentVolumeClaim": { "claimName": "odd-1", "readOnly": odd.one_in(2) } })
        }
        5 => json!({ "ephemeral": { "volumeClaimTemplate": { "spec": {
            "accessModes": [odd.pick(&["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"])],
            "resources": { "requests": { "storage": odd.quantity() } },
        } } } }),
        6 => json!({ "csi": { "driver": "x.csi.example.com" } }),
        7 => json!({ "projected": { "sources": [] } }),
        8 => {
            json!({ "awsElasticBlockStore": { "volumeID": "vol-1", "partition": odd.pick(&[0, 255]) } })
        }
        9 => json!({ "nfs": { "server": "s", "path": "/" } }),
        10 => json!({ "image": { "reference": "i" } }),
        _ => {
            json!({ "iscsi": { "targetPortal": "1.2.3.4", "iqn": "iqn.2001-04.com.x:y", "lun": 0 } })
        }
    };
    volume["name"] = json!(name);
    volume
}

/// Adds resource claims, and their use by the first container.
fn claims(odd: &mut Odd, spec: &mut Json) {
    if !odd.one_in(12) {
        return;
    }
    let source = odd.pick(&["resourceClaimName", "resourceClaimTemplateName"]);
    spec["resourceClaims"] = json!([{ "name": "gpu", source: "x" }]);
    if odd.one_in(2) {
        spec["containers"][0]["resources"]["claims"] = json!([{ "name": "gpu" }]);
    }
}

fn pod_status(odd: &mut Odd) -> Json {
    let mut status = json!({
        "phase": odd.pick(&["Pending", "Running", "Succeeded", "Failed", "Unknown", ""]),
    });
    odd.maybe(3, &mut status, "nominatedNodeName", |odd| json!(odd.pick(&["odd-node", ""])));
    odd.maybe(3, &mut status, "startTime", |odd| {
        json!(odd.pick(&["2026-11-27T00:00:00Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]))
    });
    odd.maybe(3, &mut status, "containerStatuses", |odd| {
        let mut amounts = json!({});
        odd.maybe(2, &mut amounts, "cpu", Odd::quantity);
        odd.maybe(2, &mut amounts, "memory", Odd::quantity);
        json!([{
            "name": "c0", "image": "i", "imageID": "", "ready": odd.one_in(2),
            "restartCount": odd.pick(&[0, 2_147_483_647]), "allocatedResources": amounts,
            "resources": { "requests": amounts },
        }])
    });
    status
}
