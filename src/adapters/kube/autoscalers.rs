//! Parses the status of autoscalers.

use std::collections::BTreeMap;

use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, MetricStatus, MetricValueStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::Deserialize;
use serde_json::Value as Json;

use super::node::parse_amounts;
use crate::model::observed::{LiveHorizontal, LiveMetric, LiveVertical, Recommendation};
use crate::model::pod::ResourceList;
use crate::model::units::Quantity;

/// Parses the status of a `HorizontalPodAutoscaler`. Returns `None` if it has no status yet.
pub(super) fn parse_horizontal(object: &Json) -> Result<Option<LiveHorizontal>, String> {
    let found = HorizontalPodAutoscaler::deserialize(object).map_err(|error| error.to_string())?;
    let meta = found.metadata;
    // An autoscaler created by KEDA is named after its ScaledObject.
    let owners = meta.owner_references.unwrap_or_default();
    let owner = owners.into_iter().find(|owner| owner.kind == "ScaledObject");
    let name = owner.map(|owner| owner.name).or(meta.name).ok_or("an autoscaler has no name")?;
    let namespace = meta.namespace.unwrap_or_default();
    let Some(status) = found.status else { return Ok(None) };
    let count = |count: i32| u32::try_from(count).unwrap_or(0);
    let metrics = status.current_metrics.unwrap_or_default();
    let wrong = |what: String| format!("HorizontalPodAutoscaler {namespace}/{name}: {what}");
    let metrics = metrics.into_iter().filter_map(parse_metric).collect::<Result<_, _>>();
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

/// Parses the current value of a metric. Returns `None` for a failed metric, which has no value.
fn parse_metric(status: MetricStatus) -> Option<Result<LiveMetric, String>> {
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

/// The recommendation of a `VerticalPodAutoscaler`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VpaRecommendation {
    container_recommendations: Vec<VpaContainer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VpaContainer {
    container_name: String,
    target: BTreeMap<String, IntOrQuantity>,
    lower_bound: BTreeMap<String, IntOrQuantity>,
    upper_bound: BTreeMap<String, IntOrQuantity>,
}

/// A quantity of a custom resource, whose schema admits both forms.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum IntOrQuantity {
    Int(i64),
    Quantity(ApiQuantity),
}

impl From<IntOrQuantity> for ApiQuantity {
    fn from(amount: IntOrQuantity) -> Self {
        match amount {
            IntOrQuantity::Int(amount) => Self(amount.to_string()),
            IntOrQuantity::Quantity(quantity) => quantity,
        }
    }
}

/// Parses the recommendation of a `VerticalPodAutoscaler`. Returns `None` if it has none yet.
pub(super) fn parse_vertical(object: &Json) -> Result<Option<LiveVertical>, String> {
    let meta =
        super::owner_references::parse_metadata(object).ok_or("an autoscaler has no metadata")?;
    let (name, namespace) = (meta.name.unwrap_or_default(), meta.namespace.unwrap_or_default());
    let wrong = |what: String| format!("VerticalPodAutoscaler {namespace}/{name}: {what}");
    let Some(found) = object.pointer("/status/recommendation") else { return Ok(None) };
    let found = VpaRecommendation::deserialize(found).map_err(|error| wrong(error.to_string()))?;
    let container = |found: VpaContainer| -> Result<(String, Recommendation), String> {
        let amounts = |amounts: BTreeMap<String, IntOrQuantity>| -> Result<ResourceList, String> {
            parse_amounts(amounts.into_iter().map(|(name, n)| (name, n.into())).collect())
        };
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
    fn horizontal_autoscaler_metrics_are_parsed() {
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
        let read = parse_horizontal(&object).expect("readable").expect("a status");
        assert_eq!((read.name.as_str(), read.namespace.as_str()), ("queue", "web"));
        assert_eq!((read.current_replicas, read.desired_replicas), (3, 6));
        assert_eq!(read.metrics.len(), 2, "a metric without a value failed: {:?}", read.metrics);
        assert_eq!(read.metrics[0].utilization, Some(242));
        assert_eq!(read.metrics[1].average_milli, Some(1500));
    }

    #[test]
    fn vertical_recommendation_is_parsed_in_request_units() {
        let object = json!({
            "metadata": { "name": "api", "namespace": "web" },
            "status": { "recommendation": { "containerRecommendations": [{
                "containerName": "api",
                "target": { "cpu": "587m", "memory": "262144k" },
                "uncappedTarget": { "cpu": "587m", "memory": "262144k" }
            }] } }
        });
        let read = parse_vertical(&object).expect("readable").expect("a recommendation");
        let target = &read.containers["api"].target;
        assert_eq!((target["cpu"], target["memory"]), (587, 262_144_000));
        let none = json!({ "metadata": { "name": "api", "namespace": "web" } });
        assert_eq!(parse_vertical(&none), Ok(None));
    }
}
