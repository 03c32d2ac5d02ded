//! What autoscalers last saw and decided.

use std::collections::BTreeMap;

use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, MetricStatus, MetricValueStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::Deserialize;
use serde_json::Value as Json;

use super::node::read_amounts;
use crate::fleet::{LiveHorizontal, LiveMetric, LiveVertical, Recommendation};
use crate::pod::Amounts;
use crate::units::Quantity;

/// Reads the status of a `HorizontalPodAutoscaler`; `None` where it has none yet.
pub(super) fn horizontal(object: &Json) -> Result<Option<LiveHorizontal>, String> {
    let found = HorizontalPodAutoscaler::deserialize(object).map_err(|error| error.to_string())?;
    let meta = found.metadata;
    // One that KEDA made goes by the name of its ScaledObject.
    let owners = meta.owner_references.unwrap_or_default();
    let owner = owners.into_iter().find(|owner| owner.kind == "ScaledObject");
    let name = owner.map(|owner| owner.name).or(meta.name).ok_or("an autoscaler has no name")?;
    let namespace = meta.namespace.unwrap_or_default();
    let Some(status) = found.status else { return Ok(None) };
    let count = |count: i32| u32::try_from(count).unwrap_or(0);
    let metrics = status.current_metrics.unwrap_or_default();
    let wrong = |what: String| format!("HorizontalPodAutoscaler {namespace}/{name}: {what}");
    let metrics = metrics.into_iter().filter_map(metric).collect::<Result<_, _>>();
    Ok(Some(LiveHorizontal {
        current_replicas: count(status.current_replicas.unwrap_or(0)),
        desired_replicas: count(status.desired_replicas),
        ready_replicas: None,
        highest_recent: None,
        metrics: metrics.map_err(wrong)?,
        namespace: namespace.as_str().into(),
        name,
    }))
}

/// Reads the present value of a metric; `None` where it has no value, which is one that failed.
fn metric(status: MetricStatus) -> Option<Result<LiveMetric, String>> {
    let (name, container, current) = match status.type_.as_str() {
        "Resource" => status.resource.map(|found| (found.name, None, found.current))?,
        "ContainerResource" => status
            .container_resource
            .map(|found| (found.name, Some(found.container), found.current))?,
        "Pods" => status.pods.map(|found| (found.metric.name, None, found.current))?,
        "Object" => status.object.map(|found| (found.metric.name, None, found.current))?,
        "External" => status.external.map(|found| (found.metric.name, None, found.current))?,
        _ => return None,
    };
    let MetricValueStatus { average_utilization, average_value, value } = current;
    if average_utilization.is_none() && average_value.is_none() && value.is_none() {
        return None;
    }
    let milli = |amount: Option<ApiQuantity>| {
        let read = |ApiQuantity(text): ApiQuantity| {
            let quantity: Result<Quantity, _> = text.parse();
            quantity.map(Quantity::ceil_milli).map_err(|_| format!("{name} is `{text}`"))
        };
        amount.map(read).transpose()
    };
    let read = || {
        Ok(LiveMetric {
            utilization: average_utilization.and_then(|share| u32::try_from(share).ok()),
            average_milli: milli(average_value)?,
            value_milli: milli(value)?,
            container,
            name: name.clone(),
        })
    };
    Some(read())
}

/// The part of a `VerticalPodAutoscaler` that is its recommendation.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Recommended {
    container_recommendations: Vec<RecommendedContainer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RecommendedContainer {
    container_name: String,
    target: BTreeMap<String, ApiQuantity>,
    lower_bound: BTreeMap<String, ApiQuantity>,
    upper_bound: BTreeMap<String, ApiQuantity>,
}

/// Reads the recommendation of a `VerticalPodAutoscaler`; `None` where it has none yet.
pub(super) fn vertical(object: &Json) -> Result<Option<LiveVertical>, String> {
    let meta = super::workload::meta_of(object).ok_or("an autoscaler has no metadata")?;
    let (name, namespace) = (meta.name.unwrap_or_default(), meta.namespace.unwrap_or_default());
    let wrong = |what: String| format!("VerticalPodAutoscaler {namespace}/{name}: {what}");
    let Some(found) = object.pointer("/status/recommendation") else { return Ok(None) };
    let found = Recommended::deserialize(found).map_err(|error| wrong(error.to_string()))?;
    let container = |found: RecommendedContainer| -> Result<(String, Recommendation), String> {
        let amounts = |amounts| -> Result<Amounts, String> { read_amounts(amounts) };
        let recommendation = Recommendation {
            target: amounts(found.target)?,
            lower: amounts(found.lower_bound)?,
            upper: amounts(found.upper_bound)?,
        };
        Ok((found.container_name, recommendation))
    };
    let containers = found.container_recommendations.into_iter().map(container);
    let containers = containers.collect::<Result<_, _>>().map_err(wrong)?;
    Ok(Some(LiveVertical { namespace: namespace.as_str().into(), name, containers }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_autoscaler_of_pods_is_read_with_what_it_measured() {
        let object = json!({
            "metadata": { "name": "keda-hpa-queue", "namespace": "web", "ownerReferences": [{
                "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "queue", "uid": "u"
            }] },
            "spec": { "maxReplicas": 10, "scaleTargetRef": { "kind": "Deployment", "name": "q" } },
            "status": {
                "currentReplicas": 3, "desiredReplicas": 6,
                "currentMetrics": [
                    { "type": "Resource", "resource": { "name": "cpu", "current": {
                        "averageUtilization": 242, "averageValue": "484m" } } },
                    { "type": "External", "external": {
                        "metric": { "name": "lag" }, "current": { "averageValue": "1500m" } } },
                    { "type": "Pods", "pods": { "metric": { "name": "lost" }, "current": {} } },
                    { "type": "" }
                ]
            }
        });
        let read = horizontal(&object).expect("readable").expect("a status");
        assert_eq!((read.name.as_str(), read.namespace.as_str()), ("queue", "web"));
        assert_eq!((read.current_replicas, read.desired_replicas), (3, 6));
        assert_eq!(read.metrics.len(), 2, "a metric without a value failed: {:?}", read.metrics);
        assert_eq!(read.metrics[0].utilization, Some(242));
        assert_eq!(read.metrics[1].average_milli, Some(1500));
    }

    #[test]
    fn a_recommendation_is_read_in_the_units_of_requests() {
        let object = json!({
            "metadata": { "name": "api", "namespace": "web" },
            "status": { "recommendation": { "containerRecommendations": [{
                "containerName": "api",
                "target": { "cpu": "587m", "memory": "262144k" },
                "uncappedTarget": { "cpu": "587m", "memory": "262144k" }
            }] } }
        });
        let read = vertical(&object).expect("readable").expect("a recommendation");
        let target = &read.containers["api"].target;
        assert_eq!((target["cpu"], target["memory"]), (587, 262_144_000));
        let none = json!({ "metadata": { "name": "api", "namespace": "web" } });
        assert_eq!(vertical(&none), Ok(None));
    }
}
