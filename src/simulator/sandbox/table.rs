//! Tables of `kubectl get`.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::resource::ServedResource;
use crate::model::requirement::key;

/// The object format in table rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IncludedObject {
    Metadata,
    Object,
    Nothing,
}

impl IncludedObject {
    /// Parses the requested format, by default metadata.
    pub(super) fn parse(requested: &str) -> Self {
        match requested {
            "Object" => Self::Object,
            "None" => Self::Nothing,
            _ => Self::Metadata,
        }
    }

    fn project(self, object: &Json) -> Json {
        match self {
            Self::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": object["metadata"]
            }),
            Self::Object => object.clone(),
            Self::Nothing => Json::Null,
        }
    }
}

/// Column titles by kind. A `+` marks columns of wide output.
const COLUMNS: [(&str, &str); 21] = [
    ("CapacityPlan", "Name|Current|Ready|Why|Plan|+Commit|+Health|+Says|Age"),
    ("CapacityPool", "Name|Nodes|Planned|Hourly|Ready|Why|Commit|+Says"),
    ("CronJob", "Name|Schedule|Timezone|Suspend|Age"),
    ("DaemonSet", "Name|Desired|Current|Ready|Age"),
    ("Deployment", "Name|Ready|Up-to-date|Available|Age"),
    ("EC2NodeClass", "Name|Role|AMI Family|Age"),
    ("Event", "Last Seen|Type|Reason|Object|Message|+Name"),
    ("HorizontalPodAutoscaler", "Name|Reference|Targets|MinPods|MaxPods|Replicas|Age"),
    ("Lease", "Name|Holder|Age"),
    ("Namespace", "Name|Status|Age"),
    ("Node", "Name|Status|Roles|Age|Version|+Type|+Zone"),
    ("NodeClaim", "Name|Type|Capacity|Zone|Node|Ready|Age|+ID|+NodePool|+NodeClass"),
    ("NodePool", "Name|NodeClass|Weight|Age"),
    ("PersistentVolumeClaim", "Name|Status|Age"),
    ("Pod", "Name|Ready|Status|Restarts|Age|+IP|+Node"),
    ("PodDisruptionBudget", "Name|Min Available|Max Unavailable|Allowed Disruptions|Age"),
    ("ReplicaSet", "Name|Desired|Current|Ready|Age"),
    ("ReplicationController", "Name|Desired|Current|Ready|Age"),
    ("ScaledObject", "Name|Target|Min|Max|Age"),
    ("StatefulSet", "Name|Ready|Age"),
    ("VerticalPodAutoscaler", "Name|Target|Mode|Age"),
];

const DEFAULT_COLUMNS: &str = "Name|Age";

pub(super) fn table(
    resource: &ServedResource,
    items: &[Arc<Json>],
    included: IncludedObject,
    meta: &Json,
    now: Timestamp,
) -> Json {
    let found = COLUMNS.iter().find(|(kind, _)| *kind == resource.kind);
    let columns = found.map_or(DEFAULT_COLUMNS, |(_, columns)| columns).split('|').map(|title| {
        let (name, wide) = title.strip_prefix('+').map_or((title, false), |name| (name, true));
        let format = if name == "Name" { "name" } else { "" };
        json!({
            "name": name, "type": "string", "format": format, "description": "",
            "priority": i32::from(wide)
        })
    });
    let columns: Vec<Json> = columns.collect();
    let row = |item: &Arc<Json>| json!({ "cells": cells(resource.kind, item, now), "object": included.project(item) });
    let rows: Vec<Json> = items.iter().map(row).collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
        "columnDefinitions": columns, "rows": rows
    })
}

/// Cells of most tables.
struct CommonCells {
    name: String,
    age: String,
}

fn cells(kind: &str, object: &Json, now: Timestamp) -> Vec<String> {
    let meta = &object["metadata"];
    let common =
        CommonCells { name: text(&meta["name"]), age: age(&meta["creationTimestamp"], now) };
    match kind {
        "Event" => event_cells(object, now),
        "Node" | "Pod" => node_and_pod_cells(kind, object, common),
        "CapacityPlan" | "CapacityPool" => capacity_cells(kind, object, common),
        "CronJob"
        | "EC2NodeClass"
        | "HorizontalPodAutoscaler"
        | "NodeClaim"
        | "NodePool"
        | "PodDisruptionBudget"
        | "ScaledObject"
        | "VerticalPodAutoscaler" => policy_cells(kind, object, common),
        _ => workload_cells(kind, object, common),
    }
}

fn count(value: &Json) -> String {
    value.as_i64().unwrap_or(0).to_string()
}

fn text_or(value: &Json, other: &str) -> String {
    let value = text(value);
    if value.is_empty() { other.to_owned() } else { value }
}

fn node_and_pod_cells(kind: &str, object: &Json, common: CommonCells) -> Vec<String> {
    let CommonCells { name, age } = common;
    let (spec, status, labels) =
        (&object["spec"], &object["status"], &object["metadata"]["labels"]);
    if kind == "Node" {
        return vec![
            name,
            node_status(object),
            "<none>".to_owned(),
            age,
            text_or(&status["nodeInfo"]["kubeletVersion"], "<unknown>"),
            text(&labels["node.kubernetes.io/instance-type"]),
            text(&labels["topology.kubernetes.io/zone"]),
        ];
    }
    vec![
        name,
        pod_ready(object),
        pod_status(object),
        "0".to_owned(),
        age,
        text_or(&status["podIP"], "<none>"),
        text_or(&spec["nodeName"], "<none>"),
    ]
}

/// Returns the cells of workloads and of other objects with name and age only.
fn workload_cells(kind: &str, object: &Json, common: CommonCells) -> Vec<String> {
    let CommonCells { name, age } = common;
    let (spec, status) = (&object["spec"], &object["status"]);
    let ready = || format!("{}/{}", count(&status["readyReplicas"]), count(&spec["replicas"]));
    match kind {
        "Deployment" => vec![
            name,
            ready(),
            count(&status["updatedReplicas"]),
            count(&status["availableReplicas"]),
            age,
        ],
        "ReplicaSet" | "ReplicationController" => vec![
            name,
            count(&spec["replicas"]),
            count(&status["replicas"]),
            count(&status["readyReplicas"]),
            age,
        ],
        "StatefulSet" => vec![name, ready(), age],
        "DaemonSet" => vec![
            name,
            count(&status["desiredNumberScheduled"]),
            count(&status["currentNumberScheduled"]),
            count(&status["numberReady"]),
            age,
        ],
        "Namespace" | "PersistentVolumeClaim" => vec![name, text(&status["phase"]), age],
        "Lease" => vec![name, text(&spec["holderIdentity"]), age],
        _ => vec![name, age],
    }
}

/// Returns the cells of autoscalers, schedules, disruption budgets, pools and node classes.
fn policy_cells(kind: &str, object: &Json, common: CommonCells) -> Vec<String> {
    let CommonCells { name, age } = common;
    let (spec, status) = (&object["spec"], &object["status"]);
    match kind {
        "HorizontalPodAutoscaler" => {
            let target = &spec["scaleTargetRef"];
            vec![
                name,
                format!("{}/{}", text(&target["kind"]), text(&target["name"])),
                text_or(&metric_targets(object).into(), "<none>"),
                text_or(&spec["minReplicas"], "<unset>"),
                count(&spec["maxReplicas"]),
                count(&status["currentReplicas"]),
                age,
            ]
        }
        "EC2NodeClass" => {
            let family = text_or(&spec["amiFamily"], "<none>");
            vec![name, text_or(&spec["role"], "<none>"), family, age]
        }
        "NodeClaim" => {
            let label = |key: &str| text(&object["metadata"]["labels"][key]);
            vec![
                name,
                label(key::INSTANCE_TYPE),
                label(key::CAPACITY_TYPE),
                label(key::ZONE),
                text(&status["nodeName"]),
                ready_condition(object, "status"),
                age,
                text(&status["providerID"]),
                label(key::NODEPOOL),
                text(&spec["nodeClassRef"]["name"]),
            ]
        }
        "NodePool" => {
            let class = text(&spec["template"]["spec"]["nodeClassRef"]["name"]);
            vec![name, class, text_or(&spec["weight"], "<none>"), age]
        }
        "ScaledObject" => {
            let target = text(&spec["scaleTargetRef"]["name"]);
            let counts = ["minReplicaCount", "maxReplicaCount"];
            let [least, most] = counts.map(|field| text_or(&spec[field], "<unset>"));
            vec![name, target, least, most, age]
        }
        "VerticalPodAutoscaler" => {
            let target = &spec["targetRef"];
            let target = format!("{}/{}", text(&target["kind"]), text(&target["name"]));
            vec![name, target, text_or(&spec["updatePolicy"]["updateMode"], "Auto"), age]
        }
        "CronJob" => vec![
            name,
            text(&spec["schedule"]),
            text_or(&spec["timeZone"], "<none>"),
            text_or(&spec["suspend"], "false"),
            age,
        ],
        _ => vec![
            name,
            text_or(&spec["minAvailable"], "N/A"),
            text_or(&spec["maxUnavailable"], "N/A"),
            count(&status["disruptionsAllowed"]),
            age,
        ],
    }
}

/// Returns the cells of controller objects.
fn capacity_cells(kind: &str, object: &Json, common: CommonCells) -> Vec<String> {
    let CommonCells { name, age } = common;
    let (spec, status) = (&object["spec"], &object["status"]);
    let ready = |part: &str| ready_condition(object, part);
    if kind == "CapacityPlan" {
        return vec![
            name,
            text(&status["current"]),
            ready("status"),
            ready("reason"),
            text(&spec["summary"]),
            text(&spec["commit"]),
            text(&status["health"]),
            ready("message"),
            age,
        ];
    }
    vec![
        name,
        text(&status["nodes"]),
        text(&status["nodesPlanned"]),
        text(&status["hourly"]),
        ready("status"),
        ready("reason"),
        text(&status["commit"]),
        ready("message"),
    ]
}

fn event_cells(object: &Json, now: Timestamp) -> Vec<String> {
    let involved = &object["involvedObject"];
    let kind = text(&involved["kind"]).to_ascii_lowercase();
    vec![
        age(&object["lastTimestamp"], now),
        text(&object["type"]),
        text(&object["reason"]),
        format!("{kind}/{}", text(&involved["name"])),
        text(&object["message"]),
        text(&object["metadata"]["name"]),
    ]
}

fn text(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Null => String::new(),
        other @ (Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_)) => {
            other.to_string()
        }
    }
}

/// Returns a field of the condition `Ready`.
fn ready_condition(object: &Json, part: &str) -> String {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let found = conditions.find(|condition| condition["type"] == "Ready");
    found.map(|condition| text(&condition[part])).unwrap_or_default()
}

/// Returns the targets of an autoscaler in the format of `kubectl`. Current values are unknown.
fn metric_targets(scaler: &Json) -> String {
    let metrics = scaler["spec"]["metrics"].as_array().into_iter().flatten();
    let target = |metric: &Json| {
        let source = metric.as_object()?.values().find(|value| value.is_object())?;
        let target = &source["target"];
        let name = [&source["name"], &source["metric"]["name"]].map(text).concat();
        let aim = ["averageUtilization", "averageValue", "value"].map(|key| text(&target[key]));
        let unit = if target["averageUtilization"].is_null() { "" } else { "%" };
        Some(format!("{name}: <unknown>/{}{unit}", aim.concat()))
    };
    metrics.filter_map(target).collect::<Vec<_>>().join(", ")
}

fn node_status(node: &Json) -> String {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.filter(|c| c["type"] == "Ready").map(|c| &c["status"]).next();
    let mut status = match ready.and_then(Json::as_str) {
        Some("True") => "Ready".to_owned(),
        Some("False" | "Unknown") => "NotReady".to_owned(),
        Some(_) | None => "Unknown".to_owned(),
    };
    if node["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    status
}

fn pod_ready(pod: &Json) -> String {
    let all = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    let runs = pod["status"]["phase"] == "Running";
    format!("{}/{all}", if runs { all } else { 0 })
}

fn pod_status(pod: &Json) -> String {
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return "Terminating".to_owned();
    }
    let phase = text(&pod["status"]["phase"]);
    if phase == "Pending" && pod["spec"]["nodeName"].is_string() {
        return "ContainerCreating".to_owned();
    }
    phase
}

/// Returns the age in the format of `kubectl`: at most two units, coarser with age.
fn age(then: &Json, now: Timestamp) -> String {
    let then: Option<Timestamp> = then.as_str().and_then(|then| then.parse().ok());
    let Some(then) = then else { return "<unknown>".to_owned() };
    let seconds = now.duration_since(then).as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |whole: i64, unit: &str, rest: i64, part: &str| {
        if rest == 0 { format!("{whole}{unit}") } else { format!("{whole}{unit}{rest}{part}") }
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if hours < 3 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_match_kubectl() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
        for (then, expected) in [
            ("2026-11-21T12:00:05Z", "0s"),
            ("2026-11-21T11:58:30Z", "90s"),
            ("2026-11-21T11:55:30Z", "4m30s"),
            ("2026-11-21T10:00:00Z", "120m"),
            ("2026-11-21T07:30:00Z", "4h30m"),
            ("2026-11-20T12:00:00Z", "24h"),
            ("2026-11-18T09:00:00Z", "3d3h"),
            ("2026-09-01T12:00:00Z", "81d"),
            ("soon", "<unknown>"),
        ] {
            assert_eq!(age(&json!(then), now), expected, "{then}");
        }
    }

    #[test]
    fn rows_have_a_cell_per_column() {
        let now = Timestamp::UNIX_EPOCH;
        for resource in super::super::resource::RESOURCES {
            let one = [Arc::new(json!({ "metadata": {} }))];
            let table = table(resource, &one, IncludedObject::Metadata, &json!({}), now);
            let columns = table["columnDefinitions"].as_array().map(Vec::len);
            assert_eq!(table["rows"][0]["cells"].as_array().map(Vec::len), columns, "{resource:?}");
        }
    }
}
