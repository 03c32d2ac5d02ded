//! Views of instances as `NodeClaim` objects of Karpenter. They are computed and read-only.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::kubernetes_objects::{to_amounts, uid};
use super::object::format_time;
use super::pod_template::quantities;
use super::store::ObjectKey;
use crate::model::ids::{InstanceId, LabelValue};
use crate::model::observed::{Instance, Node, tag};
use crate::model::requirement::key;
use crate::simulator::WorldView;

/// Returns a claim for each instance of a pool that has not ended.
pub(super) fn node_claims(view: &WorldView<'_>) -> BTreeMap<ObjectKey, Json> {
    let nodes = view.nodes().values().filter_map(|node| Some((node.instance.as_ref()?, node)));
    let nodes: BTreeMap<&InstanceId, &Node> = nodes.collect();
    let instances = view.instances().values().filter(|instance| !instance.has_ended());
    let claims = instances.filter_map(|instance| {
        let pool = instance.tags.get(tag::POOL)?;
        let claim = claim(instance, pool, nodes.get(&instance.id).copied());
        let name = claim["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        Some((ObjectKey::new("NodeClaim", "", &name), claim))
    });
    claims.collect()
}

fn claim(instance: &Instance, pool: &str, node: Option<&Node>) -> Json {
    let id = instance.id.as_str();
    let name = format!("{pool}-{}", id.trim_start_matches("i-"));
    let properties = [
        (key::INSTANCE_TYPE, instance.instance_type.as_str()),
        (key::CAPACITY_TYPE, instance.capacity_type.as_str()),
        (key::ZONE, instance.zone.as_str()),
        (key::NODEPOOL, pool),
    ];
    let labels = match node {
        Some(node) => json!(node.labels),
        None => json!(BTreeMap::from(properties)),
    };
    let requirement =
        |(key, value): (&str, &str)| json!({ "key": key, "operator": "In", "values": [value] });
    let class = node.and_then(|node| node.labels.get(key::NODE_CLASS)).map(LabelValue::as_str);
    let since = format_time(instance.launched_at);
    let condition = |kind: &str, is: bool| {
        json!({
            "type": kind, "status": if is { "True" } else { "Unknown" }, "reason": kind,
            "message": "", "lastTransitionTime": since
        })
    };
    let is_ready = node.is_some_and(|node| node.ready);
    let mut status = json!({
        "providerID": format!("aws:///{}/{id}", instance.zone),
        "imageID": instance.launched_with.image,
        "conditions": [
            condition("Launched", true),
            condition("Registered", node.is_some()),
            condition("Initialized", is_ready),
            condition("Ready", is_ready),
        ],
    });
    if let Some(node) = node {
        status["nodeName"] = json!(node.name);
        status["capacity"] = quantities(&to_amounts(&node.capacity));
        status["allocatable"] = quantities(&to_amounts(&node.allocatable));
    }
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": name, "uid": uid("NodeClaim", "", &name), "generation": 1,
            "creationTimestamp": since, "labels": labels,
            "ownerReferences": [{
                "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": pool,
                "uid": uid("NodePool", "", pool), "blockOwnerDeletion": true
            }]
        },
        "spec": {
            "nodeClassRef": {
                "group": "karpenter.k8s.aws", "kind": "EC2NodeClass",
                "name": class.unwrap_or_default()
            },
            "requirements": properties.map(requirement),
            "taints": node.map(|node| &node.taints)
        },
        "status": status
    })
}
