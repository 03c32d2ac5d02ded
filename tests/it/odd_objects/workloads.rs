//! Workloads, autoscalers, budgets and limits.

use serde_json::{Value as Json, json};

use super::pods::template;
use super::{NAMESPACE, Odd, OddObject};

#[expect(clippy::needless_pass_by_value, reason = "callers build the value in place")]
fn namespaced(group: &str, kind: &str, plural: &str, spec: Json) -> OddObject {
    let root = if group == "v1" { "/api" } else { "/apis" };
    OddObject {
        path: format!("{root}/{group}/namespaces/{NAMESPACE}/{plural}"),
        object: json!({ "apiVersion": group, "kind": kind, "metadata": {}, "spec": spec }),
        status: None,
    }
}

/// Returns a selector of the template and the template.
fn scaled(odd: &mut Odd) -> Json {
    let mut template = template(odd);
    template["spec"]["restartPolicy"] = json!("Always");
    if let Some(spec) = template["spec"].as_object_mut() {
        spec.remove("activeDeadlineSeconds");
    }
    let mut spec = json!({ "selector": { "matchLabels": { "app": "odd" } }, "template": template });
    odd.maybe(1, &mut spec, "replicas", Odd::count);
    odd.maybe(4, &mut spec, "minReadySeconds", Odd::count);
    spec
}

pub(super) fn deployment(odd: &mut Odd, _: usize) -> OddObject {
    let mut spec = scaled(odd);
    odd.maybe(2, &mut spec, "strategy", |odd| match odd.below(3) {
        0 => json!({ "type": "Recreate" }),
        _ => json!({ "type": "RollingUpdate", "rollingUpdate": {
            "maxSurge": odd.count_or_share(), "maxUnavailable": odd.count_or_share(),
        } }),
    });
    odd.maybe(4, &mut spec, "progressDeadlineSeconds", |_| json!(2_147_483_647));
    odd.maybe(4, &mut spec, "paused", |_| json!(true));
    namespaced("apps/v1", "Deployment", "deployments", spec)
}

pub(super) fn replica_set(odd: &mut Odd, n: usize) -> OddObject {
    let mut made = namespaced("apps/v1", "ReplicaSet", "replicasets", scaled(odd));
    odd.maybe(2, &mut made.object["metadata"], "ownerReferences", |odd| {
        json!([{
            "apiVersion": "apps/v1", "kind": odd.pick(&["Deployment", "Rollout"]),
            "name": format!("owner-{n}"), "uid": "u", "controller": true,
        }])
    });
    made
}

pub(super) fn stateful_set(odd: &mut Odd, _: usize) -> OddObject {
    let mut spec = scaled(odd);
    spec["serviceName"] = json!("odd");
    odd.maybe(3, &mut spec, "ordinals", |odd| json!({ "start": odd.count() }));
    odd.maybe(3, &mut spec, "podManagementPolicy", |odd| {
        json!(odd.pick(&["Parallel", "OrderedReady"]))
    });
    odd.maybe(3, &mut spec, "updateStrategy", |odd| match odd.below(2) {
        0 => json!({ "type": "OnDelete" }),
        _ => json!({ "type": "RollingUpdate", "rollingUpdate": {
            "partition": odd.count(), "maxUnavailable": odd.count_or_share(),
        } }),
    });
    odd.maybe(
        3,
        &mut spec,
        "volumeClaimTemplates",
        |odd| json!([{ "metadata": { "name": "data" }, "spec": claim_spec(odd) }]),
    );
    namespaced("apps/v1", "StatefulSet", "statefulsets", spec)
}

pub(super) fn daemon_set(odd: &mut Odd, _: usize) -> OddObject {
    let mut spec = scaled(odd);
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("replicas");
    }
    odd.maybe(2, &mut spec, "updateStrategy", |odd| match odd.below(2) {
        0 => json!({ "type": "OnDelete" }),
        _ => json!({ "type": "RollingUpdate", "rollingUpdate": {
            "maxSurge": odd.count_or_share(), "maxUnavailable": odd.count_or_share(),
        } }),
    });
    namespaced("apps/v1", "DaemonSet", "daemonsets", spec)
}

pub(super) fn replication_controller(odd: &mut Odd, _: usize) -> OddObject {
    let mut spec = scaled(odd);
    spec["selector"] = json!({ "app": "odd" });
    namespaced("v1", "ReplicationController", "replicationcontrollers", spec)
}

fn job_spec(odd: &mut Odd) -> Json {
    let mut template = template(odd);
    template["spec"]["restartPolicy"] = json!(odd.pick(&["Never", "OnFailure"]));
    let mut spec = json!({ "template": template });
    odd.maybe(2, &mut spec, "parallelism", Odd::count);
    odd.maybe(2, &mut spec, "completions", Odd::count);
    odd.maybe(3, &mut spec, "completionMode", |odd| json!(odd.pick(&["Indexed", "NonIndexed"])));
    odd.maybe(4, &mut spec, "backoffLimit", Odd::count);
    odd.maybe(4, &mut spec, "activeDeadlineSeconds", Odd::seconds);
    odd.maybe(4, &mut spec, "ttlSecondsAfterFinished", Odd::count);
    odd.maybe(4, &mut spec, "suspend", |odd| json!(odd.one_in(2)));
    odd.maybe(6, &mut spec, "podReplacementPolicy", |odd| {
        json!(odd.pick(&["Failed", "TerminatingOrFailed"]))
    });
    odd.maybe(6, &mut spec, "managedBy", |_| json!("example.com/x"));
    spec
}

pub(super) fn job(odd: &mut Odd, _: usize) -> OddObject {
    let mut made = namespaced("batch/v1", "Job", "jobs", job_spec(odd));
    odd.maybe(3, &mut made.object["metadata"], "ownerReferences", |_| {
        json!([{
            "apiVersion": "batch/v1", "kind": "CronJob", "name": "odd", "uid": "u",
            "controller": true,
        }])
    });
    made
}

/// Schedules that robfig/cron accepts, and a few that it refuses.
const SCHEDULES: [&str; 34] = [
    "0 5 * * 1-5",
    "*/7 1,3 */2 JAN-MAR ?",
    "@hourly",
    "@yearly",
    "@annually",
    "@midnight",
    "@weekly",
    "@monthly",
    "@daily",
    "@every 1h30m10s",
    "@every 1ns",
    "@every 0s",
    "@every -1h",
    "@every 1.5h",
    "@every 2562047h47m16s",
    "@every 1us",
    "@every 1µs",
    "+5 * * * *",
    "1,,2 * * * *",
    ",1 * * * *",
    "*/61 * * * *",
    "59/1 * * * *",
    "0-59/7 * * * *",
    "0 0 31 2 *",
    "0 0 ? * SUN",
    "0 0 * * sun-sat",
    "0 0 * * 0-7",
    "  0   0 * * * ",
    "0 0 1 JAN-DEC *",
    "*/0 * * * *",
    "5-3 * * * *",
    "00000000000000000005 0 * * *",
    "0 0 L * *",
    "*-5 * * * *",
];

/// Names of time zones. Go looks them up in its own database.
const ZONES: [&str; 18] = [
    "Etc/UTC",
    "UTC",
    "GMT",
    "EST5EDT",
    "Asia/Kathmandu",
    "America/New_York",
    "Etc/GMT+12",
    "Zulu",
    "US/Pacific",
    "Europe/Kyiv",
    "Europe/Kiev",
    "Pacific/Kanton",
    "Antarctica/Troll",
    "CET",
    "EST",
    "Factory",
    "America/Coyhaique",
    "utc",
];

pub(super) fn cron_job(odd: &mut Odd, _: usize) -> OddObject {
    let schedule = odd.pick(&SCHEDULES);
    let mut job = json!({ "spec": job_spec(odd) });
    odd.maybe(3, &mut job, "metadata", |odd| json!({ "labels": odd.labels(2) }));
    let mut spec = json!({ "schedule": schedule, "jobTemplate": job });
    odd.maybe(2, &mut spec, "timeZone", |odd| json!(odd.pick(&ZONES)));
    odd.maybe(3, &mut spec, "startingDeadlineSeconds", Odd::seconds);
    odd.maybe(3, &mut spec, "concurrencyPolicy", |odd| {
        json!(odd.pick(&["Allow", "Forbid", "Replace"]))
    });
    odd.maybe(4, &mut spec, "suspend", |odd| json!(odd.one_in(2)));
    odd.maybe(4, &mut spec, "successfulJobsHistoryLimit", Odd::count);
    namespaced("batch/v1", "CronJob", "cronjobs", spec)
}

pub(super) fn pod_template(odd: &mut Odd, _: usize) -> OddObject {
    let mut made = namespaced("v1", "PodTemplate", "podtemplates", Json::Null);
    made.object["template"] = template(odd);
    if let Some(object) = made.object.as_object_mut() {
        object.remove("spec");
    }
    made
}

fn metric(odd: &mut Odd) -> Json {
    let target = match odd.below(3) {
        0 => {
            json!({ "type": "Utilization", "averageUtilization": odd.pick(&[1, 50, 2_147_483_647]) })
        }
        1 => json!({ "type": "AverageValue", "averageValue": odd.quantity() }),
        _ => json!({ "type": "Value", "value": odd.quantity() }),
    };
    match odd.below(4) {
        0 => json!({ "type": "Resource", "resource": {
            "name": odd.pick(&["cpu", "memory", "example.com/x"]), "target": target,
        } }),
        1 => json!({ "type": "ContainerResource", "containerResource": {
            "name": "cpu", "container": "c0", "target": target,
        } }),
        2 => json!({ "type": "Pods", "pods": {
            "metric": { "name": "m", "selector": odd.label_selector() },
            "target": { "type": "AverageValue", "averageValue": odd.quantity() },
        } }),
        _ => {
            json!({ "type": "External", "external": { "metric": { "name": "m" }, "target": target } })
        }
    }
}

pub(super) fn horizontal(odd: &mut Odd, _: usize) -> OddObject {
    let kind = odd.pick(&["Deployment", "StatefulSet", "Widget"]);
    let mut spec = json!({
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": kind, "name": "odd-1" },
        "maxReplicas": odd.pick(&[1, 5, 2_147_483_647]),
    });
    odd.maybe(2, &mut spec, "minReplicas", |odd| json!(odd.pick(&[1, 2])));
    odd.maybe(1, &mut spec, "metrics", |odd| odd.list(2, metric));
    odd.maybe(3, &mut spec, "behavior", |odd| {
        json!({ odd.pick(&["scaleUp", "scaleDown"]): {
            "stabilizationWindowSeconds": odd.pick(&[0, 3_600]),
            "selectPolicy": odd.pick(&["Max", "Min", "Disabled"]),
            "policies": [{
                "type": odd.pick(&["Pods", "Percent"]), "value": odd.pick(&[1, 2_147_483_647]),
                "periodSeconds": odd.pick(&[1, 1_800]),
            }],
        } })
    });
    let mut made =
        namespaced("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", spec);
    made.status = odd.one_in(2).then(|| {
        json!({
            "currentReplicas": odd.count(), "desiredReplicas": odd.count(), "conditions": [],
            "currentMetrics": [
                { "type": "Resource", "resource": { "name": "cpu", "current": {
                    "averageUtilization": odd.count(), "averageValue": odd.quantity(),
                } } },
                { "type": "External", "external": {
                    "metric": { "name": "m" }, "current": { "value": odd.quantity() },
                } },
            ],
        })
    });
    made
}

pub(super) fn budget(odd: &mut Odd, _: usize) -> OddObject {
    let mut spec = json!({});
    odd.maybe(1, &mut spec, "selector", Odd::label_selector);
    let key = odd.pick(&["minAvailable", "maxUnavailable"]);
    odd.maybe(1, &mut spec, key, Odd::count_or_share);
    odd.maybe(3, &mut spec, "unhealthyPodEvictionPolicy", |odd| {
        json!(odd.pick(&["AlwaysAllow", "IfHealthyBudget"]))
    });
    namespaced("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", spec)
}

pub(super) fn limit_range(odd: &mut Odd, _: usize) -> OddObject {
    let kind = odd.pick(&["Container", "Pod", "PersistentVolumeClaim"]);
    let mut item = json!({ "type": kind });
    let name = if kind == "PersistentVolumeClaim" { "storage" } else { "cpu" };
    for key in ["min", "max", "maxLimitRequestRatio"] {
        odd.maybe(3, &mut item, key, |odd| json!({ name: odd.quantity() }));
    }
    // In a namespace of its own: it changes other pods.
    let mut made = namespaced("v1", "LimitRange", "limitranges", json!({ "limits": [item] }));
    "/api/v1/namespaces/default/limitranges".clone_into(&mut made.path);
    made
}

pub(super) fn claim_spec(odd: &mut Odd) -> Json {
    let mode = odd.pick(&["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"]);
    let mut spec = json!({
        "accessModes": [mode], "resources": { "requests": { "storage": odd.quantity() } },
    });
    odd.maybe(2, &mut spec, "storageClassName", |odd| json!(odd.pick(&["", "gp3", "odd-5"])));
    odd.maybe(4, &mut spec, "volumeMode", |odd| json!(odd.pick(&["Block", "Filesystem"])));
    odd.maybe(4, &mut spec, "selector", Odd::label_selector);
    odd.maybe(5, &mut spec, "volumeName", |odd| json!(odd.pick(&["odd-1", "gone"])));
    odd.maybe(5, &mut spec, "volumeAttributesClassName", |_| json!("x"));
    odd.maybe(
        6,
        &mut spec,
        "dataSource",
        |_| json!({ "kind": "PersistentVolumeClaim", "name": "y" }),
    );
    spec
}
