//! Declared objects that the world does not simulate, as a delivery tool creates them: pod
//! autoscalers and cron jobs.

use serde_json::{Value as Json, json};

use super::kubernetes_objects::uid;
use super::pod_template;
use crate::model::desired::{
    Concurrency, CronSchedule, Horizontal, Metric, MetricSource, MetricTarget, Scale, ScaleTarget,
    Scaler, ScalerRule, Workload,
};
use crate::model::ids::{Namespace, WorkloadId, WorkloadKind};
use crate::model::units::Quantity;

/// Returns an autoscaler, or `None` if it is of another kind or does not have exactly one target.
///
/// `replicas` returns the pods of a target. There are no metrics, so that current values are
/// unknown.
pub(super) fn horizontal(
    scaler: &Scaler,
    replicas: impl Fn(&ScaleTarget) -> Option<u32>,
) -> Option<Json> {
    let Scaler { namespace, name, targets, rule, .. } = scaler;
    let (ScalerRule::Horizontal(rule), [target]) = (rule, targets.as_slice()) else { return None };
    let Horizontal { min, max, metrics, behavior: _ } = rule;
    let ScaleTarget { kind, name: of } = target;
    let mut object = object_head("autoscaling/v2", "HorizontalPodAutoscaler", namespace, name);
    object["spec"] = json!({
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": kind, "name": of },
        "minReplicas": min, "maxReplicas": max,
        "metrics": metrics.iter().map(metric).collect::<Vec<_>>()
    });
    if let Some(replicas) = replicas(target) {
        object["status"] = json!({ "currentReplicas": replicas, "desiredReplicas": replicas });
    }
    Some(object)
}

fn metric(metric: &Metric) -> Json {
    let Metric { source, name, target } = metric;
    let target = match target {
        MetricTarget::Utilization(share) => {
            json!({ "type": "Utilization", "averageUtilization": share })
        }
        MetricTarget::AverageValue(amount) => {
            json!({ "type": "AverageValue", "averageValue": milli_text(*amount) })
        }
        MetricTarget::Value(amount) => json!({ "type": "Value", "value": milli_text(*amount) }),
    };
    let named = json!({ "metric": { "name": name }, "target": target });
    match source {
        MetricSource::Resource => {
            json!({ "type": "Resource", "resource": { "name": name, "target": target } })
        }
        MetricSource::ContainerResource(container) => json!({
            "type": "ContainerResource",
            "containerResource": { "name": name, "container": container, "target": target }
        }),
        MetricSource::Pods => json!({ "type": "Pods", "pods": named }),
        MetricSource::Object => json!({ "type": "Object", "object": named }),
        MetricSource::External => json!({ "type": "External", "external": named }),
    }
}

fn milli_text(amount: Quantity) -> String {
    format!("{}m", amount.ceil_milli())
}

/// Returns a cron job, or `None` for any other workload.
pub(super) fn cron_job(id: &WorkloadId, workload: &Workload) -> Option<Json> {
    let Scale::CronJob { pods, suspended, schedule } = &workload.scale else { return None };
    let CronSchedule { schedule: due, concurrency, deadline } = schedule;
    let policy = match concurrency {
        Concurrency::Allow => "Allow",
        Concurrency::Forbid => "Forbid",
        Concurrency::Replace => "Replace",
    };
    let mut job = json!({
        "parallelism": pods, "completions": pods,
        "template": pod_template::template(&workload.template, None)
    });
    if let Some(deadline) = deadline {
        job["activeDeadlineSeconds"] = deadline.as_secs().into();
    }
    let mut object =
        object_head("batch/v1", WorkloadKind::CronJob.as_str(), &id.namespace, &id.name);
    object["spec"] = json!({
        "schedule": due.as_str(), "suspend": suspended, "concurrencyPolicy": policy,
        "jobTemplate": { "spec": job }
    });
    if let Some(zone) = due.zone().iana_name() {
        object["spec"]["timeZone"] = zone.into();
    }
    Some(object)
}

fn object_head(version: &str, kind: &str, namespace: &Namespace, name: &str) -> Json {
    json!({
        "apiVersion": version, "kind": kind,
        "metadata": {
            "name": name, "namespace": namespace, "generation": 1,
            "uid": uid(kind, namespace.as_str(), name)
        }
    })
}
