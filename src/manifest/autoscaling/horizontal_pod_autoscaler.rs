//! `HorizontalPodAutoscaler`, in every version that was ever served.

use jiff::SignedDuration;

use super::super::collector::Collector;
use super::super::decode::{Field, FieldMap};
use super::super::object_meta::ObjectMeta;
use super::{scaler, target};
use crate::model::desired::{
    Behavior, Horizontal, Metric, MetricSource, MetricTarget, ScalerRule, ScalingPolicy,
    ScalingRules, SelectPolicy, Severity,
};
use crate::model::units::Quantity;

/// Default CPU utilization target without metrics, in percent.
const DEFAULT_UTILIZATION: u32 = 80;
/// The longest stabilization window, in seconds.
const WINDOW_MAX: i64 = 3_600;
/// The longest period of a policy, in seconds.
const PERIOD_MAX: u32 = 1_800;

/// Reads a `HorizontalPodAutoscaler`.
pub(in super::super) fn horizontal(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let found = spec.required("scaleTargetRef").and_then(|field| target(&field, None));
    let rule = rule(&spec);
    spec.finish_with_typo_check();
    root.ignore(&["apiVersion", "kind", "metadata", "spec", "status"]);
    root.finish(Severity::Warning);
    let Some(target) = found else { return };
    into.add_scaler(scaler(meta, root, vec![target], rule.map(ScalerRule::Horizontal)), root);
}

fn rule(spec: &FieldMap<'_>) -> Option<Horizontal> {
    let min_field = spec.get("minReplicas");
    let min = min_field.as_ref().map_or(Some(1), |field| field.int(0));
    let max = spec.required("maxReplicas").and_then(|field| field.int(1));
    let v1 = spec.get("targetCPUUtilizationPercentage").map(|field| field.int::<u32>(1));
    let listed = spec.get("metrics").map(|field| field.items().map(|m| metric(&m)).collect());
    let behavior = spec.get("behavior").and_then(|field| behavior(&field));
    let (min, max) = (min?, max?);
    if min > max {
        spec.field.error(
            format_args!("has `minReplicas` {min}, above its `maxReplicas` {max}"),
            "swap them, or leave `minReplicas` out".to_owned(),
        );
    }
    let metrics: Option<Vec<Metric>> = match (listed, v1) {
        (Some(listed), _) => listed,
        (None, Some(percent)) => Some(vec![cpu(percent?)]),
        (None, None) => Some(vec![cpu(DEFAULT_UTILIZATION)]),
    };
    let metrics = metrics?;
    let outside = |m: &Metric| matches!(m.source, MetricSource::Object | MetricSource::External);
    if min == 0 && !metrics.iter().any(outside) {
        spec.field.error(
            "has `minReplicas` 0, which needs a metric of type Object or External",
            "write minReplicas: 1, or scale to zero with KEDA".to_owned(),
        );
    }
    let metrics = if metrics.is_empty() { vec![cpu(DEFAULT_UTILIZATION)] } else { metrics };
    Some(Horizontal { min, max, metrics, behavior })
}

fn cpu(percent: u32) -> Metric {
    let target = MetricTarget::Utilization(percent);
    Metric { source: MetricSource::Resource, name: "cpu".to_owned(), target }
}

#[derive(Clone, Copy)]
enum MetricType {
    Resource,
    ContainerResource,
    Pods,
    Object,
    External,
}

const METRIC_TYPES: [(&str, MetricType); 5] = [
    ("Resource", MetricType::Resource),
    ("ContainerResource", MetricType::ContainerResource),
    ("Pods", MetricType::Pods),
    ("Object", MetricType::Object),
    ("External", MetricType::External),
];

/// Reads one entry of `metrics`, in the format of v2 or of the betas.
fn metric(field: &Field<'_>) -> Option<Metric> {
    let map = field.map()?;
    let kind = map.required("type")?.choice(&METRIC_TYPES)?;
    let key = match kind {
        MetricType::Resource => "resource",
        MetricType::ContainerResource => "containerResource",
        MetricType::Pods => "pods",
        MetricType::Object => "object",
        MetricType::External => "external",
    };
    let source = map.required(key)?;
    map.finish_with_typo_check();
    let source = source.map()?;
    let named = || Some(source.required("name")?.non_empty_text()?.into_owned());
    let of_metric = || match source.get("metric") {
        Some(metric) => {
            let metric = metric.map()?;
            Some(metric.required("name")?.non_empty_text()?.into_owned())
        }
        None => Some(source.required("metricName")?.non_empty_text()?.into_owned()),
    };
    let (source_kind, name) = match kind {
        MetricType::Resource => (MetricSource::Resource, named()?),
        MetricType::ContainerResource => {
            let container = source.required("container")?.non_empty_text()?.into_owned();
            (MetricSource::ContainerResource(container), named()?)
        }
        MetricType::Pods => (MetricSource::Pods, of_metric()?),
        MetricType::Object => (MetricSource::Object, of_metric()?),
        MetricType::External => (MetricSource::External, of_metric()?),
    };
    source.ignore(&["describedObject", "selector", "metricSelector"]);
    let old = source.get("metricName").is_some() || source.get("target").is_none();
    let target = if old { v2beta1_target(&source) } else { v2_target(&source) };
    source.finish_with_typo_check();
    Some(Metric { source: source_kind, name, target: target? })
}

/// Reads `target {type, averageUtilization | averageValue | value}`.
fn v2_target(source: &FieldMap<'_>) -> Option<MetricTarget> {
    let target = source.required("target")?;
    let target = target.map()?;
    let kinds = [("Utilization", 0), ("AverageValue", 1), ("Value", 2)];
    let kind = target.required("type").and_then(|field| field.choice(&kinds));
    let found = match kind? {
        0 => MetricTarget::Utilization(target.required("averageUtilization")?.int(1)?),
        1 => MetricTarget::AverageValue(positive(&target.required("averageValue")?)?),
        _ => MetricTarget::Value(positive(&target.required("value")?)?),
    };
    target.ignore(&["averageUtilization", "averageValue", "value"]);
    target.finish_with_typo_check();
    Some(found)
}

/// Reads the target of `autoscaling/v2beta1`, whose fields are siblings of the name.
fn v2beta1_target(source: &FieldMap<'_>) -> Option<MetricTarget> {
    source.ignore(&["target"]);
    if let Some(field) = source.get("targetAverageUtilization") {
        return Some(MetricTarget::Utilization(field.int(1)?));
    }
    if let Some(field) = source.get("targetAverageValue") {
        return Some(MetricTarget::AverageValue(positive(&field)?));
    }
    // `averageValue` belongs to Object metrics, and `targetValue` to both Object and External
    // metrics.
    if let Some(field) = source.get("averageValue") {
        return Some(MetricTarget::AverageValue(positive(&field)?));
    }
    let Some(field) = source.get("targetValue") else {
        source.required("target");
        return None;
    };
    Some(MetricTarget::Value(positive(&field)?))
}

fn positive(field: &Field<'_>) -> Option<Quantity> {
    let quantity = field.quantity()?;
    if quantity <= Quantity::from_units(0) {
        field.error(format_args!("is {quantity}, which is not a valid metric target"), None);
        return None;
    }
    Some(quantity)
}

/// Reads `behavior`, also of KEDA's `horizontalPodAutoscalerConfig`.
pub(super) fn behavior(field: &Field<'_>) -> Option<Behavior> {
    let map = field.map()?;
    let pods = |amount, is_percent| ScalingPolicy { is_percent, amount };
    let up = rules(&map, "scaleUp", vec![pods(4, false), pods(100, true)]);
    let down = rules(&map, "scaleDown", vec![pods(100, true)]);
    map.finish_with_typo_check();
    let mut up = up?;
    // Scale-up has no stabilization window by default.
    up.window = Some(up.window.unwrap_or(SignedDuration::ZERO));
    Some(Behavior { up, down: down? })
}

fn rules(
    map: &FieldMap<'_>,
    key: &'static str,
    default: Vec<ScalingPolicy>,
) -> Option<ScalingRules> {
    let absent = ScalingRules {
        window: None,
        select: SelectPolicy::Max,
        policies: default.clone(),
        tolerance_milli: None,
    };
    let Some(field) = map.get(key) else { return Some(absent) };
    let map = field.map()?;
    let window = match map.get("stabilizationWindowSeconds") {
        None => None,
        Some(field) => {
            let seconds: i64 = field.int(0)?;
            if seconds > WINDOW_MAX {
                field.error(format_args!("is {seconds}, above {WINDOW_MAX}"), None);
            }
            Some(SignedDuration::from_secs(seconds))
        }
    };
    let selects = [
        ("Max", SelectPolicy::Max),
        ("Min", SelectPolicy::Min),
        ("Disabled", SelectPolicy::Disabled),
    ];
    let select =
        map.get("selectPolicy").map_or(Some(SelectPolicy::Max), |field| field.choice(&selects));
    let policies = map.get("policies").map(|field| {
        field.items().map(|item| policy(&item)).collect::<Option<Vec<ScalingPolicy>>>()
    });
    let tolerance_milli = match map.get("tolerance") {
        None => None,
        Some(field) => Some(field.quantity()?.ceil_milli()),
    };
    map.finish_with_typo_check();
    let policies = policies.unwrap_or(Some(default))?;
    Some(ScalingRules { window, select: select?, policies, tolerance_milli })
}

fn policy(field: &Field<'_>) -> Option<ScalingPolicy> {
    let map = field.map()?;
    let is_percent = map.required("type")?.choice(&[("Pods", false), ("Percent", true)]);
    let amount = map.required("value").and_then(|field| field.int(1));
    let period = map.required("periodSeconds");
    let seconds = period.as_ref().and_then(|field| field.int::<u32>(1));
    map.finish_with_typo_check();
    if let (Some(field), Some(seconds)) = (&period, seconds.filter(|s| *s > PERIOD_MAX)) {
        field.error(format_args!("is {seconds}, above {PERIOD_MAX}"), None);
    }
    let (is_percent, amount) = (is_percent?, seconds.and(amount)?);
    Some(ScalingPolicy { is_percent, amount })
}
