//! Rows for people: what `kubectl get` shows of each kind.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::resource::Resource;

/// A column: its title, and whether it is shown only where there is room.
type Column = (&'static str, bool);

/// Returns a list as a table.
pub(super) fn table(resource: &Resource, items: &[Arc<Json>], meta: &Json, now: Timestamp) -> Json {
    let columns: Vec<Json> = columns(resource.kind)
        .iter()
        .map(|(name, wide)| {
            let format = if *name == "Name" { "name" } else { "" };
            json!({
                "name": name, "type": "string", "format": format, "description": "",
                "priority": i32::from(*wide)
            })
        })
        .collect();
    let rows: Vec<Json> = items.iter().map(|item| row(resource.kind, item, now)).collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
        "columnDefinitions": columns, "rows": rows
    })
}

fn columns(kind: &str) -> &'static [Column] {
    const fn of(name: &'static str) -> Column {
        (name, false)
    }
    const fn wide(name: &'static str) -> Column {
        (name, true)
    }
    match kind {
        "Node" => {
            &const {
                [
                    of("Name"),
                    of("Status"),
                    of("Roles"),
                    of("Age"),
                    of("Version"),
                    wide("Type"),
                    wide("Zone"),
                ]
            }
        }
        "Pod" => {
            &const {
                [
                    of("Name"),
                    of("Ready"),
                    of("Status"),
                    of("Restarts"),
                    of("Age"),
                    wide("IP"),
                    wide("Node"),
                ]
            }
        }
        "Deployment" => {
            &const { [of("Name"), of("Ready"), of("Up-to-date"), of("Available"), of("Age")] }
        }
        "StatefulSet" => &const { [of("Name"), of("Ready"), of("Age")] },
        "DaemonSet" | "ReplicaSet" | "ReplicationController" => {
            &const { [of("Name"), of("Desired"), of("Current"), of("Ready"), of("Age")] }
        }
        "PodDisruptionBudget" => {
            &const {
                [
                    of("Name"),
                    of("Min Available"),
                    of("Max Unavailable"),
                    of("Allowed Disruptions"),
                    of("Age"),
                ]
            }
        }
        "Namespace" | "PersistentVolumeClaim" => &const { [of("Name"), of("Status"), of("Age")] },
        "Lease" => &const { [of("Name"), of("Holder"), of("Age")] },
        "Event" => {
            &const {
                [
                    of("Last Seen"),
                    of("Type"),
                    of("Reason"),
                    of("Object"),
                    of("Message"),
                    wide("Name"),
                ]
            }
        }
        _ => &const { [of("Name"), of("Age")] },
    }
}

fn row(kind: &str, object: &Json, now: Timestamp) -> Json {
    let meta = &object["metadata"];
    let (spec, status) = (&object["spec"], &object["status"]);
    let age = || since(&meta["creationTimestamp"], now);
    let name = || text(&meta["name"]);
    let count = |value: &Json| value.as_i64().unwrap_or(0).to_string();
    let or = |value: String, other: &str| if value.is_empty() { other.to_owned() } else { value };
    let of = |ready: &Json, all: &Json| format!("{}/{}", count(ready), count(all));
    let cells = match kind {
        "Node" => vec![
            name(),
            node_status(object),
            "<none>".to_owned(),
            age(),
            or(text(&status["nodeInfo"]["kubeletVersion"]), "<unknown>"),
            text(&meta["labels"]["node.kubernetes.io/instance-type"]),
            text(&meta["labels"]["topology.kubernetes.io/zone"]),
        ],
        "Pod" => vec![
            name(),
            pod_ready(object),
            pod_status(object),
            "0".to_owned(),
            age(),
            or(text(&status["podIP"]), "<none>"),
            or(text(&spec["nodeName"]), "<none>"),
        ],
        "Deployment" => vec![
            name(),
            of(&status["readyReplicas"], &spec["replicas"]),
            count(&status["updatedReplicas"]),
            count(&status["availableReplicas"]),
            age(),
        ],
        "ReplicaSet" | "ReplicationController" => vec![
            name(),
            count(&spec["replicas"]),
            count(&status["replicas"]),
            count(&status["readyReplicas"]),
            age(),
        ],
        "StatefulSet" => vec![name(), of(&status["readyReplicas"], &spec["replicas"]), age()],
        "DaemonSet" => vec![
            name(),
            count(&status["desiredNumberScheduled"]),
            count(&status["currentNumberScheduled"]),
            count(&status["numberReady"]),
            age(),
        ],
        "PodDisruptionBudget" => vec![
            name(),
            or(text(&spec["minAvailable"]), "N/A"),
            or(text(&spec["maxUnavailable"]), "N/A"),
            count(&status["disruptionsAllowed"]),
            age(),
        ],
        "Namespace" | "PersistentVolumeClaim" => vec![name(), text(&status["phase"]), age()],
        "Lease" => vec![name(), text(&spec["holderIdentity"]), age()],
        "Event" => event(object, now),
        _ => vec![name(), age()],
    };
    json!({
        "cells": cells,
        "object": { "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta }
    })
}

fn event(object: &Json, now: Timestamp) -> Vec<String> {
    let involved = &object["involvedObject"];
    let kind = text(&involved["kind"]).to_ascii_lowercase();
    vec![
        since(&object["lastTimestamp"], now),
        text(&object["type"]),
        text(&object["reason"]),
        format!("{kind}/{}", text(&involved["name"])),
        text(&object["message"]),
        text(&object["metadata"]["name"]),
    ]
}

/// Returns a value as a cell shows it.
fn text(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Null => String::new(),
        other @ (Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_)) => {
            other.to_string()
        }
    }
}

fn node_status(node: &Json) -> String {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.filter(|c| c["type"] == "Ready").map(|c| &c["status"]).next();
    let mut status = match ready.and_then(Json::as_str) {
        Some("True") => "Ready".to_owned(),
        Some("False") => "NotReady".to_owned(),
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

/// Returns how long ago a moment was, as `kubectl` words it: two units at most, coarser with age.
fn since(then: &Json, now: Timestamp) -> String {
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
    fn ages_are_worded_as_kubectl_words_them() {
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
            assert_eq!(since(&json!(then), now), expected, "{then}");
        }
    }

    #[test]
    fn every_row_has_a_cell_for_each_column() {
        let now = Timestamp::UNIX_EPOCH;
        for resource in super::super::resource::RESOURCES {
            let table = table(resource, &[Arc::new(json!({ "metadata": {} }))], &json!({}), now);
            let columns = table["columnDefinitions"].as_array().map(Vec::len);
            assert_eq!(table["rows"][0]["cells"].as_array().map(Vec::len), columns, "{resource:?}");
        }
    }
}
