//! Autoscalers of add-ons: `HTTPScaledObject` of KEDA and `WatermarkPodAutoscaler` of Datadog. Their
//! metrics are known in the cluster alone, so that their bounds decide.

use jiff::SignedDuration;

use super::super::collector::Collector;
use super::super::decode::{Field, FieldMap};
use super::super::object_meta::ObjectMeta;
use super::keda::{COOLDOWN_SECONDS, MAX_REPLICAS, POLLING_SECONDS, STABILIZATION_SECONDS};
use super::{scaler, target};
use crate::model::desired::{
    EventDriven, Horizontal, Metric, MetricSource, MetricTarget, PauseMode, ScaleTarget,
    ScalerRule, Severity,
};
use crate::model::units::Quantity;

/// Trigger of the `ScaledObject` that the HTTP add-on of KEDA makes.
const HTTP_TRIGGER: &str = "external-push";

/// Fields of `HTTPScaledObject` that set no bound.
const HTTP_IRRELEVANT: [&str; 9] = [
    "coldStartTimeoutFailoverRef",
    "headers",
    "hosts",
    "initialCooldownPeriod",
    "pathPrefixes",
    "placeholderConfig",
    "scalingMetric",
    "targetPendingRequests",
    "timeouts",
];

/// Reads an `HTTPScaledObject`.
/// Source: `kedacore/http-add-on`, `operator/apis/http/v1alpha1/httpscaledobject_types.go`.
pub(in super::super) fn http_scaled_object(
    meta: ObjectMeta,
    root: &FieldMap<'_>,
    into: &mut Collector,
) {
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let found = spec.required("scaleTargetRef").and_then(|field| http_target(&field));
    let rule = http_rule(&spec);
    spec.ignore(&HTTP_IRRELEVANT);
    spec.finish_with_typo_check();
    root.ignore(&["apiVersion", "kind", "metadata", "spec", "status"]);
    root.finish(Severity::Warning);
    let Some(target) = found else { return };
    into.add_scaler(scaler(meta, root, vec![target], rule.map(ScalerRule::EventDriven)), root);
}

/// Reads the target. Early versions name a Deployment.
fn http_target(field: &Field<'_>) -> Option<ScaleTarget> {
    let map = field.map()?;
    match map.get("deployment") {
        Some(name) => {
            let name = name.non_empty_text()?.into_owned();
            Some(ScaleTarget { kind: "Deployment".to_owned(), name })
        }
        None => target(field, Some("Deployment")),
    }
}

fn http_rule(spec: &FieldMap<'_>) -> Option<EventDriven> {
    let cooldown = spec.get("scaledownPeriod");
    let cooldown = cooldown.map_or(Some(COOLDOWN_SECONDS), |field| field.int::<i32>(0));
    let bounds = spec.get("replicas").map(|field| {
        let map = field.map()?;
        let min = map.get("min").map_or(Some(0), |field| field.int::<u32>(0));
        let max = map.get("max").map_or(Some(MAX_REPLICAS), |field| field.int::<u32>(1));
        map.finish_with_typo_check();
        let (min, max) = (min?, max?);
        if min > max {
            field.error(format_args!("has `min` {min}, above its `max` {max}"), None);
        }
        Some((min, max))
    });
    let (min, max) = bounds.unwrap_or(Some((0, MAX_REPLICAS)))?;
    Some(EventDriven {
        min,
        max,
        idle: None,
        polling: SignedDuration::from_secs(POLLING_SECONDS.into()),
        cooldown: SignedDuration::from_secs(cooldown?.into()),
        stabilization: SignedDuration::from_secs(STABILIZATION_SECONDS),
        behavior: None,
        fallback: None,
        crons: Vec::new(),
        triggers: vec![HTTP_TRIGGER.to_owned()],
        has_formula: false,
        paused: PauseMode::No,
        is_forced: false,
    })
}

/// Reads a `WatermarkPodAutoscaler`. One that only reports what it would do scales nothing.
/// Source: `DataDog/watermarkpodautoscaler`, `apis/datadoghq/v1alpha1`.
pub(in super::super) fn watermark_autoscaler(
    meta: ObjectMeta,
    root: &FieldMap<'_>,
    into: &mut Collector,
) {
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let found = spec.required("scaleTargetRef").and_then(|field| target(&field, None));
    let rule = watermark_rule(&spec);
    let is_dry_run = spec.get("dryRun").and_then(|field| field.boolean()).unwrap_or(false);
    root.ignore(&["apiVersion", "kind", "metadata", "spec", "status"]);
    root.finish(Severity::Warning);
    let Some(target) = found.filter(|_| !is_dry_run) else { return };
    into.add_scaler(scaler(meta, root, vec![target], rule.map(ScalerRule::Horizontal)), root);
}

fn watermark_rule(spec: &FieldMap<'_>) -> Option<Horizontal> {
    let min = spec.get("minReplicas").map_or(Some(1), |field| field.int::<u32>(0));
    let max = spec.required("maxReplicas").and_then(|field| field.int::<u32>(1));
    let (min, max) = (min?, max?);
    if min > max {
        spec.field.error(
            format_args!("has `minReplicas` {min}, above its `maxReplicas` {max}"),
            "swap them, or leave `minReplicas` out".to_owned(),
        );
    }
    // The values of its metrics and their bounds are not read: the current count stays between the
    // two bounds.
    let metric = Metric {
        source: MetricSource::External,
        name: "watermark".to_owned(),
        target: MetricTarget::Value(Quantity::from_units(1)),
    };
    Some(Horizontal { min, max, metrics: vec![metric], behavior: None })
}
