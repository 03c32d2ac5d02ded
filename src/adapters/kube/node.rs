//! Parses nodes and their attach limits.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node as ApiNode, NodeCondition, Taint as ApiTaint};
use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::demand::to_resources;
use crate::model::ids::{InstanceId, NodeName};
use crate::model::observed::{Node, NodeFault};
use crate::model::pod::{ResourceList, Taint, TaintEffect};
use crate::model::saturating_time::later;
use crate::model::storage::AttachLimits;
use crate::model::units::Quantity;

/// Annotation domains that affect node capacity.
const ANNOTATION_DOMAINS: [&str; 3] =
    ["karpenter.sh/", "cluster-autoscaler.kubernetes.io/", "fleetwright.dev/"];

/// Taints that repeat `unschedulable` and the condition `Ready`.
const MIRROR_TAINTS: [&str; 3] =
    ["node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready", UNREACHABLE];

/// Taint of a node whose kubelet reports nothing.
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Longest time from the creation of a node to the first report of its kubelet. The clocks of the
/// two may differ by some seconds.
const FIRST_REPORT_MAX: SignedDuration = SignedDuration::from_mins(1);

/// Parses a node, and returns the reasons for parts that could not be parsed.
///
/// # Errors
/// Returns the reason if the node has no identity.
pub(super) fn parse_node(object: &Json) -> Result<(Node, Vec<String>), String> {
    let node = ApiNode::deserialize(object).map_err(|error| error.to_string())?;
    let meta = node.metadata;
    let name = meta.name.ok_or("a node has no name")?;
    let wrong = |what: &str| format!("node `{name}` has {what}");
    let (spec, status) = (node.spec.unwrap_or_default(), node.status.unwrap_or_default());
    let conditions = status.conditions.unwrap_or_default();
    let annotations = meta.annotations.unwrap_or_default();
    let counts = |key: &str| ANNOTATION_DOMAINS.iter().any(|domain| key.starts_with(domain));
    let mut unread = Vec::new();
    let found = spec.taints.unwrap_or_default();
    let is_unreachable = found.iter().any(|taint| taint.key == UNREACHABLE);
    let (taints, unknown) = parse_taints(&found);
    unread.extend(unknown.iter().map(|what| wrong(what)));
    let mut read = |amounts: Option<BTreeMap<String, ApiQuantity>>| {
        let (amounts, unknown) = parse_known_amounts(amounts.unwrap_or_default());
        unread.extend(unknown.iter().map(|what| wrong(what)));
        to_resources(&amounts)
    };
    let (capacity, allocatable) = (read(status.capacity), read(status.allocatable));
    let created_at = meta.creation_timestamp.ok_or_else(|| wrong("no time of creation"))?.0;
    let node = Node {
        uid: meta.uid.ok_or_else(|| wrong("no UID"))?.into(),
        instance: spec.provider_id.as_deref().and_then(instance_from_provider_id),
        labels: meta
            .labels
            .unwrap_or_default()
            .iter()
            .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
            .collect(),
        annotations: annotations.into_iter().filter(|(key, _)| counts(key)).collect(),
        taints,
        capacity,
        allocatable,
        ready: conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"),
        was_ready: was_ready(&conditions, is_unreachable, created_at),
        faults: NodeFault::ALL
            .into_iter()
            .filter(|fault| {
                conditions.iter().any(|c| c.type_ == fault.condition() && c.status == "False")
            })
            .collect(),
        unschedulable: spec.unschedulable.unwrap_or(false),
        created_at,
        name: name.as_str().into(),
    };
    Ok((node, unread))
}

/// Returns true if a node is not Ready although it was before, or if its kubelet reports nothing. The
/// condition of a node that starts has not changed since its creation.
fn was_ready(conditions: &[NodeCondition], is_unreachable: bool, created_at: Timestamp) -> bool {
    let Some(ready) = conditions.iter().find(|condition| condition.type_ == "Ready") else {
        return is_unreachable;
    };
    let changed_at = ready.last_transition_time.as_ref().map(|at| at.0);
    let has_changed = changed_at.is_some_and(|at| at > later(created_at, FIRST_REPORT_MAX));
    match ready.status.as_str() {
        "True" => false,
        "Unknown" => true,
        _ => is_unreachable || has_changed,
    }
}

/// Parses the taints that mirror nothing, and returns the reasons for those with an unknown effect.
/// They count as `NoSchedule`.
fn parse_taints(found: &[ApiTaint]) -> (Vec<Taint>, Vec<String>) {
    let mut unknown = Vec::new();
    let taints = found.iter().filter(|taint| !MIRROR_TAINTS.contains(&taint.key.as_str()));
    let taints = taints.map(|found| {
        let effect = match found.effect.as_str() {
            "NoSchedule" => TaintEffect::NoSchedule,
            "PreferNoSchedule" => TaintEffect::PreferNoSchedule,
            "NoExecute" => TaintEffect::NoExecute,
            other => {
                unknown.push(format!("a taint of the unknown effect `{other}`"));
                TaintEffect::NoSchedule
            }
        };
        let value = found.value.as_deref().unwrap_or_default();
        Taint { key: found.key.as_str().into(), value: value.into(), effect }
    });
    (taints.collect(), unknown)
}

/// Maximum number of hexadecimal digits of an instance ID.
const INSTANCE_ID_DIGITS_MAX: usize = 17;

/// Returns the instance of a provider ID such as `aws:///us-east-1a/i-0123456789abcdef0`.
fn instance_from_provider_id(provider_id: &str) -> Option<InstanceId> {
    let id = provider_id.strip_prefix("aws://")?.rsplit('/').next()?;
    let digits = id.strip_prefix("i-")?;
    // A kubelet states the ID, and EC2 is asked about it.
    let is_id = (1..=INSTANCE_ID_DIGITS_MAX).contains(&digits.len())
        && digits.bytes().all(|b| b.is_ascii_hexdigit());
    is_id.then(|| id.into())
}

/// Parses amounts by resource: `cpu` in millicores, others in whole units.
pub(super) fn parse_amounts(
    amounts: BTreeMap<String, ApiQuantity>,
) -> Result<ResourceList, String> {
    let (amounts, unknown) = parse_known_amounts(amounts);
    unknown.into_iter().next().map_or(Ok(amounts), Err)
}

/// Parses amounts as [`parse_amounts`], and returns the reasons for those that are no quantities.
pub(super) fn parse_known_amounts(
    amounts: BTreeMap<String, ApiQuantity>,
) -> (ResourceList, Vec<String>) {
    let (mut known, mut unknown) = (ResourceList::new(), Vec::new());
    for (name, ApiQuantity(text)) in amounts {
        match text.parse::<Quantity>() {
            // An API server takes a negative amount in a status. It grants nothing.
            Ok(quantity) if quantity.is_negative() => drop(known.insert(name.into(), 0)),
            Ok(quantity) if name == "cpu" => drop(known.insert(name.into(), quantity.ceil_milli())),
            Ok(quantity) => drop(known.insert(name.into(), quantity.ceil_units())),
            Err(_) => unknown.push(format!("the amount `{text}` of {name}")),
        }
    }
    (known, unknown)
}

/// Parses the attach limits of a node by driver. Drivers without a limit are omitted.
pub(super) fn parse_attach_limits(object: &Json) -> Result<(NodeName, AttachLimits), String> {
    let node = CSINode::deserialize(object).map_err(|error| error.to_string())?;
    let name = node.metadata.name.ok_or("a CSINode has no name")?;
    let limit = |driver: k8s_openapi::api::storage::v1::CSINodeDriver| {
        let count = u32::try_from(driver.allocatable?.count?).ok()?;
        Some((driver.name, count))
    };
    Ok((name.into(), node.spec.drivers.into_iter().filter_map(limit).collect()))
}

/// Returns the node and the volume of an attachment.
pub(super) fn parse_attachment(object: &Json) -> Option<(NodeName, String)> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Json::as_str);
    let volume = text("/spec/source/persistentVolumeName")?;
    Some((text("/spec/nodeName")?.into(), volume.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object() -> Json {
        json!({
            "metadata": {
                "name": "ip-10-0-0-1", "uid": "u1", "creationTimestamp": "2026-11-21T09:00:00Z",
                "labels": { "topology.kubernetes.io/zone": "us-east-1a" },
                "annotations": { "karpenter.sh/do-not-disrupt": "true", "csi.volume/nodeid": "x" }
            },
            "spec": {
                "providerID": "aws:///us-east-1a/i-0123456789abcdef0", "unschedulable": true,
                "taints": [
                    { "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" },
                    { "key": "dedicated", "value": "ml", "effect": "NoExecute" }
                ]
            },
            "status": {
                "capacity": { "cpu": "4", "memory": "16093300Ki", "pods": "58" },
                "allocatable": { "cpu": "3920m", "memory": "15076468Ki", "pods": "58" },
                "conditions": [
                    { "type": "Ready", "status": "True",
                      "lastHeartbeatTime": null, "lastTransitionTime": null },
                    { "type": "KernelReady", "status": "False" },
                    { "type": "StorageReady", "status": "True" },
                    { "type": "NetworkingReady", "status": "Unknown" },
                    { "type": "DiskPressure", "status": "False" }
                ]
            }
        })
    }

    #[test]
    fn node_is_parsed_without_mirror_taints() {
        let (node, unread) = parse_node(&object()).expect("a node");
        assert_eq!(unread, [""; 0]);
        assert_eq!(node.instance, Some("i-0123456789abcdef0".into()));
        assert!(node.ready && node.unschedulable);
        assert_eq!(node.faults, [NodeFault::Kernel].into());
        assert_eq!(node.taints.len(), 1);
        assert_eq!(node.allocatable.cpu.0, 3920);
        assert_eq!(node.capacity.memory.0, 16_093_300 * 1024);
        assert_eq!(node.annotations.len(), 1);
    }

    #[test]
    fn unreadable_parts_of_a_node_are_named() {
        let mut broken = object();
        broken["status"]["allocatable"]["memory"] = json!("lots");
        broken["spec"]["taints"][1]["effect"] = json!("Never");
        let (node, unread) = parse_node(&broken).expect("a node");
        assert_eq!(
            unread,
            [
                "node `ip-10-0-0-1` has a taint of the unknown effect `Never`",
                "node `ip-10-0-0-1` has the amount `lots` of memory"
            ]
        );
        assert_eq!((node.allocatable.memory.0, node.allocatable.cpu.0), (0, 3920));
        assert_eq!(node.taints[0].effect, TaintEffect::NoSchedule);
        broken["metadata"]["uid"] = json!(null);
        assert!(parse_node(&broken).expect_err("no identity").contains("no UID"));
    }

    #[test]
    fn only_ec2_provider_ids_are_instances() {
        for (provider_id, expected) in [
            ("aws:///us-east-1a/i-0abc", Some("i-0abc")),
            ("aws://i-0abc", Some("i-0abc")),
            ("aws:///us-east-1a/i-", None),
            ("aws:///us-east-1a/i-0;reboot", None),
            ("aws:///us-east-1a/fargate-ip-10-0-0-1", None),
            ("kind://docker/kind/kind-control-plane", None),
            ("", None),
        ] {
            let expected = expected.map(InstanceId::from);
            assert_eq!(instance_from_provider_id(provider_id), expected, "{provider_id}");
        }
    }

    #[test]
    fn node_was_ready_if_its_condition_changed_after_its_start() {
        let parse = |status: &str, changed_at: &str, taint: &str| {
            let object = serde_json::json!({
                "metadata": { "name": "n", "uid": "u", "creationTimestamp": "2026-09-01T10:00:00Z" },
                "spec": { "taints": [{ "key": taint, "effect": "NoExecute" }] },
                "status": { "conditions": [
                    { "type": "Ready", "status": status, "lastTransitionTime": changed_at }
                ] }
            });
            parse_node(&object).expect("a node").0.was_ready
        };
        let (start, later) = ("2026-09-01T10:00:20Z", "2026-09-01T10:05:00Z");
        let not_ready = "node.kubernetes.io/not-ready";
        assert!(!parse("False", start, not_ready), "it starts");
        assert!(!parse("True", later, not_ready), "it is Ready");
        assert!(parse("False", later, not_ready), "it was Ready before");
        assert!(parse("Unknown", start, not_ready), "its kubelet reports nothing");
        assert!(parse("False", start, "node.kubernetes.io/unreachable"));
    }
}
