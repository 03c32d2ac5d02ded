//! The metrics API of `kubectl top`. Nothing is measured: the usage of a container is its request.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::kube_api::ApiResponse;
use super::object::format_time;
use super::pod_template;
use super::request::{ApiRequest, RequestTarget};
use super::resource::METRICS_GROUP;
use super::selectors::ObjectSelector;
use super::status_error::StatusError;
use crate::model::ids::NodeName;
use crate::model::observed::{Pod, PodPhase};
use crate::model::pod::{Container, ResourceList};
use crate::simulator::{World, WorldView};

/// Interval that each value stands for.
const WINDOW: &str = "30s";

/// Resources with a usage.
const MEASURED: [&str; 2] = ["cpu", "memory"];

/// Answers a read of metrics. Returns `None` for other requests.
pub(super) fn respond(world: &World, request: &ApiRequest) -> Option<ApiResponse> {
    let target = RequestTarget::parse(&request.path).ok()?;
    if target.resource.group != METRICS_GROUP || request.method != "GET" {
        return None;
    }
    Some(
        read(world, &target, request)
            .unwrap_or_else(|error| ApiResponse::json(error.code, &error.to_status())),
    )
}

fn read(
    world: &World,
    target: &RequestTarget<'_>,
    request: &ApiRequest,
) -> Result<ApiResponse, StatusError> {
    let labels = request.parameter("labelSelector");
    let selection =
        ObjectSelector::parse(target.resource, labels, request.parameter("fieldSelector"))?;
    let view = world.view();
    let mut items = if target.resource.namespaced { of_pods(&view) } else { of_nodes(&view) };
    for item in &mut items {
        item["kind"] = target.resource.kind.into();
        item["apiVersion"] = target.resource.api_version().into();
        item["timestamp"] = format_time(request.at).into();
        item["window"] = WINDOW.into();
    }
    items.retain(|item| {
        let namespace = item["metadata"]["namespace"].as_str();
        target.namespace.is_none_or(|own| namespace == Some(own)) && selection.matches(item)
    });
    let Some(name) = target.name else {
        let list = json!({
            "kind": format!("{}List", target.resource.kind),
            "apiVersion": target.resource.api_version(), "metadata": {}, "items": items
        });
        return Ok(ApiResponse::json(200, &list));
    };
    let found = items.iter().find(|item| item["metadata"]["name"] == name);
    let found = found.ok_or_else(|| StatusError::not_found(target.resource.plural, name))?;
    Ok(ApiResponse::json(200, found))
}

fn is_running(pod: &Pod) -> bool {
    pod.phase == PodPhase::Running && pod.node.is_some()
}

fn requests(container: &Container) -> ResourceList {
    let mut usage = container.resources.requests.clone();
    usage.retain(|name, _| MEASURED.contains(&name.as_str()));
    for name in MEASURED {
        usage.entry(name.into()).or_insert(0);
    }
    usage
}

fn of_pods(view: &WorldView<'_>) -> Vec<Json> {
    let of_pod = |pod: &Pod| {
        let template = view.template(&pod.template)?;
        let usage = |container: &Container| {
            let usage = pod_template::quantities(&requests(container));
            json!({ "name": container.name, "usage": usage })
        };
        let containers: Vec<Json> = template.spec.containers.iter().map(usage).collect();
        Some(json!({
            "metadata": {
                "name": pod.name, "namespace": pod.namespace, "labels": template.labels
            },
            "containers": containers
        }))
    };
    view.pods().filter(|pod| is_running(pod)).filter_map(of_pod).collect()
}

fn of_nodes(view: &WorldView<'_>) -> Vec<Json> {
    let mut usages: BTreeMap<&NodeName, ResourceList> = BTreeMap::new();
    for pod in view.pods().filter(|pod| is_running(pod)) {
        let (Some(node), Some(template)) = (&pod.node, view.template(&pod.template)) else {
            continue;
        };
        for (name, amount) in template.spec.containers.iter().flat_map(requests) {
            let sum = usages.entry(node).or_default().entry(name).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
    let none: ResourceList = MEASURED.map(|name| (name.into(), 0)).into();
    let of_node = |(name, node): (&NodeName, &crate::model::observed::Node)| {
        let usage = pod_template::quantities(usages.get(name).unwrap_or(&none));
        json!({ "metadata": { "name": name, "labels": node.labels }, "usage": usage })
    };
    view.nodes().iter().filter(|(_, node)| node.ready).map(of_node).collect()
}
