//! KEDA: `ScaledObject` and `ScaledJob`.

use std::sync::Arc;

use jiff::SignedDuration;

use super::super::collector::{Collector, Definition};
use super::super::cron;
use super::super::decode::{Field, FieldMap, shorten};
use super::super::job_retries;
use super::super::object_meta::ObjectMeta;
use super::super::workload::job_template;
use super::{horizontal_pod_autoscaler, scaler, target};
use crate::model::desired::{
    Behavior, CronTrigger, EventDriven, Fallback, FallbackBehavior, JobScaling, JobStrategy,
    PauseMode, Scale, ScalerRule, Severity, Workload,
};
use crate::model::ids::{WorkloadId, WorkloadKind};
use crate::model::units::Quantity;

pub(super) const POLLING_SECONDS: i32 = 30;
pub(super) const COOLDOWN_SECONDS: i32 = 300;
/// Default scale-down stabilization window of an HPA.
pub(super) const STABILIZATION_SECONDS: i64 = 300;
pub(super) const MAX_REPLICAS: u32 = 100;
/// Triggers that are metrics of the generated HPA alone, and cannot scale to zero.
/// Source: `kedacore/keda`, `apis/keda/v1alpha1/scaledobject_webhook.go`.
const RESOURCE_TRIGGERS: [&str; 2] = ["cpu", "memory"];
/// Maximum number of triggers of one object; etcd would not store an object with many times that.
const TRIGGERS_MAX: usize = 1_000;

const PAUSED: &str = "autoscaling.keda.sh/paused";
const PAUSED_REPLICAS: &str = "autoscaling.keda.sh/paused-replicas";
const PAUSED_IN: &str = "autoscaling.keda.sh/paused-scale-in";
const PAUSED_OUT: &str = "autoscaling.keda.sh/paused-scale-out";
const FORCE_ACTIVATION: &str = "autoscaling.keda.sh/force-activation";

/// Reads a `ScaledObject`.
pub(in super::super) fn scaled_object(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let found =
        spec.required("scaleTargetRef").and_then(|field| target(&field, Some("Deployment")));
    let rule = rule(&meta, &spec, root);
    spec.finish_with_typo_check();
    root.ignore(&["apiVersion", "kind", "metadata", "spec", "status"]);
    root.finish(Severity::Warning);
    let Some(target) = found else { return };
    into.add_scaler(scaler(meta, root, vec![target], rule.map(ScalerRule::EventDriven)), root);
}

fn rule(meta: &ObjectMeta, spec: &FieldMap<'_>, root: &FieldMap<'_>) -> Option<EventDriven> {
    let seconds = |key, default| {
        let read = spec.get(key).map_or(Some(default), |field| field.int::<i32>(0));
        read.map(|seconds| SignedDuration::from_secs(seconds.into()))
    };
    let polling = seconds("pollingInterval", POLLING_SECONDS);
    let cooldown = seconds("cooldownPeriod", COOLDOWN_SECONDS);
    let min_field = spec.get("minReplicaCount");
    let min = min_field.map_or(Some(0), |field| field.int::<u32>(0));
    let max = spec.get("maxReplicaCount").map_or(Some(MAX_REPLICAS), |field| field.int::<u32>(1));
    let idle_field = spec.get("idleReplicaCount");
    let idle = idle_field.as_ref().map(|field| field.int::<u32>(0));
    let fallback = spec.get("fallback").map(|field| fallback(&field));
    let advanced = spec.get("advanced").map(|field| advanced(&field));
    let found = spec.required("triggers").map(|field| triggers(&field));
    spec.ignore(&["initialCooldownPeriod"]);
    let (min, max) = (min?, max?);
    if min > max {
        spec.field.error(
            format_args!("has `minReplicaCount` {min}, above its `maxReplicaCount` {max}"),
            None,
        );
    }
    // KEDA compares it with the minimum of the HPA, and a stated 0 is 1 there. Without a minimum it
    // compares with 0. Source: KEDA, `CheckReplicaCountBoundsAreValid`.
    let above_idle = if min_field.is_some() { min.max(1) } else { min };
    let idle = idle_field
        .zip(idle.flatten())
        .and_then(|(field, idle)| idle_count(&field, idle, above_idle))
        // The same as no idle count: KEDA scales to 0 anyway.
        .filter(|_| min > 0);
    let Advanced { behavior, has_formula } = advanced.unwrap_or(Some(Advanced::default()))?;
    let window = behavior.as_ref().and_then(|behavior| behavior.down.window);
    let stabilization = window.unwrap_or(SignedDuration::from_secs(STABILIZATION_SECONDS));
    let KedaTriggers { crons, others } = found?;
    let has_resources_only = crons.is_empty()
        && !others.is_empty()
        && others.iter().all(|kind| RESOURCE_TRIGGERS.contains(&kind.as_str()));
    if has_resources_only && min == 0 {
        spec.field.warn(
            "needs a `minReplicaCount` above 0, because its triggers are CPU and memory alone: KEDA \
             never scales to 0 by them, and one replica counts",
            "set minReplicaCount: 1".to_owned(),
        );
    }
    let min = if has_resources_only { min.max(1) } else { min };
    let annotation = |key: &str| meta.annotations.get(key).map(String::as_str);
    Some(EventDriven {
        min,
        max,
        idle,
        polling: polling?,
        cooldown: cooldown?,
        stabilization,
        behavior,
        fallback: match fallback {
            None => None,
            Some(read) => Some(read?),
        },
        crons,
        triggers: others,
        has_formula,
        paused: paused(annotation, root)?,
        is_forced: annotation(FORCE_ACTIVATION).is_some_and(is_truthy),
    })
}

/// Returns the count while no trigger is active, if KEDA supports it.
fn idle_count(field: &Field<'_>, idle: u32, min: u32) -> Option<u32> {
    if idle >= min {
        field.error(
            format_args!("is {idle}, which must be less than `minReplicaCount` {min}"),
            "leave it out, or raise minReplicaCount".to_owned(),
        );
    } else if idle > 0 {
        field.warn(
            format_args!(
                "is {idle}, and KEDA supports only 0: the HorizontalPodAutoscaler raises the pods \
                 to `minReplicaCount` {min}, which count"
            ),
            "write 0, or leave it out".to_owned(),
        );
    }
    Some(idle).filter(|idle| *idle == 0)
}

/// Returns whether an annotation value enables the setting: any value except a false boolean.
fn is_truthy(text: &str) -> bool {
    !matches!(text, "false" | "False" | "FALSE" | "f" | "F" | "0")
}

fn paused<'a>(
    annotation: impl Fn(&str) -> Option<&'a str>,
    root: &FieldMap<'_>,
) -> Option<PauseMode> {
    if let Some(text) = annotation(PAUSED_REPLICAS) {
        let Ok(count) = text.parse() else {
            root.field.error(
                format_args!("has the annotation {PAUSED_REPLICAS} `{}`", shorten(text)),
                "write a whole number in quotes".to_owned(),
            );
            return None;
        };
        return Some(PauseMode::At(count));
    }
    let is = |key: &str| annotation(key).is_some_and(is_truthy);
    Some(if is(PAUSED) || (is(PAUSED_IN) && is(PAUSED_OUT)) {
        PauseMode::AsIs
    } else if is(PAUSED_IN) {
        PauseMode::ScaleIn
    } else if is(PAUSED_OUT) {
        PauseMode::ScaleOut
    } else {
        PauseMode::No
    })
}

const BEHAVIORS: [(&str, FallbackBehavior); 5] = [
    ("static", FallbackBehavior::Static),
    ("currentReplicas", FallbackBehavior::Current),
    ("currentReplicasIfHigher", FallbackBehavior::CurrentIfHigher),
    ("currentReplicasIfLower", FallbackBehavior::CurrentIfLower),
    ("scalingModifiers", FallbackBehavior::Formula),
];

fn fallback(field: &Field<'_>) -> Option<Fallback> {
    let map = field.map()?;
    let replicas = map.required("replicas").and_then(|field| field.int(0));
    // Only the cluster shows when the fallback begins.
    let threshold = map.required("failureThreshold").and_then(|field| field.int::<u32>(0));
    let behavior = map.get("behavior");
    let behavior = behavior.map_or(Some(FallbackBehavior::Static), |f| f.choice(&BEHAVIORS));
    map.finish_with_typo_check();
    threshold?;
    Some(Fallback { replicas: replicas?, behavior: behavior? })
}

/// The parts of `advanced` that matter for counts.
#[derive(Default)]
struct Advanced {
    /// Behavior of the generated HPA.
    behavior: Option<Behavior>,
    /// True if a formula replaces the maximum over the triggers.
    has_formula: bool,
}

fn advanced(field: &Field<'_>) -> Option<Advanced> {
    let map = field.map()?;
    let formula = map.get("scalingModifiers").map(|field| {
        let map = field.map()?;
        Some(map.get("formula")?.text()?.into_owned()).filter(|formula| !formula.is_empty())
    });
    let config = map.get("horizontalPodAutoscalerConfig").map(|field| {
        let map = field.map()?;
        map.ignore(&["name"]);
        let behavior = map.get("behavior").map(|field| horizontal_pod_autoscaler::behavior(&field));
        map.finish_with_typo_check();
        match behavior {
            None => Some(None),
            Some(read) => Some(Some(read?)),
        }
    });
    map.ignore(&["restoreToOriginalReplicaCount"]);
    map.finish_with_typo_check();
    let behavior = config.unwrap_or(Some(None))?;
    Some(Advanced { behavior, has_formula: formula.flatten().is_some() })
}

#[derive(Default)]
struct KedaTriggers {
    crons: Vec<CronTrigger>,
    others: Vec<String>,
}

fn triggers(field: &Field<'_>) -> KedaTriggers {
    let mut all = KedaTriggers::default();
    let items: Vec<Field<'_>> = field.items().collect();
    for item in items.iter().take(TRIGGERS_MAX) {
        let Some(map) = item.map() else { continue };
        let kind =
            map.required("type").and_then(|field| Some(field.non_empty_text()?.into_owned()));
        let metadata = map.required("metadata");
        map.ignore(&["name", "metricType", "useCachedMetrics", "authenticationRef"]);
        map.finish_with_typo_check();
        match (kind, metadata) {
            (Some(kind), Some(metadata)) if kind == "cron" => {
                all.crons.extend(cron_trigger(item, &metadata));
            }
            (Some(kind), Some(metadata)) => {
                // The API server accepts only strings. Their values set no bound, so a placeholder
                // needs no value.
                let entries = metadata.map();
                let values = entries.iter().flat_map(FieldMap::entries).map(|(_, value)| value);
                let is_open =
                    |value: &Field<'_>| value.node.text().is_some_and(|text| text.contains("${"));
                values.filter(|value| !is_open(value)).for_each(|value| drop(value.text()));
                all.others.push(kind);
            }
            (_, _) => {}
        }
    }
    match items.len() {
        0 => field.error("names no trigger", None),
        many if many > TRIGGERS_MAX => {
            field.error(format_args!("names {many} triggers, above {TRIGGERS_MAX}"), None);
        }
        _ => {}
    }
    all
}

fn cron_trigger(item: &Field<'_>, metadata: &Field<'_>) -> Option<CronTrigger> {
    let map = metadata.map()?;
    let zone = map.required("timezone").and_then(|field| cron::time_zone(&field));
    let expression = |key| {
        let field = map.required(key)?;
        if field.node.text().is_some_and(|text| text.starts_with('@')) {
            let hint = "write five fields, such as \"0 9 * * 1-5\"".to_owned();
            field.error("is a macro, which KEDA does not support", hint);
            return None;
        }
        cron::expression(&field)
    };
    let (start, end) = (expression("start"), expression("end"));
    let desired = map.required("desiredReplicas").and_then(|field| {
        let text = field.text()?;
        let count = text.trim().parse::<u32>().ok().filter(|count| *count > 0);
        if count.is_none() {
            let hint = "write the number of pods for the window, such as \"5\"; a window cannot remove pods";
            field.error(
                format_args!("is `{}`, which is not a positive number of pods", shorten(&text)),
                hint.to_owned(),
            );
        }
        count
    });
    map.finish_with_typo_check();
    let (zone, start, end) = (zone?, start?, end?);
    if start.as_str().split_whitespace().eq(end.as_str().split_whitespace()) {
        let hint = "let the window end later than it begins".to_owned();
        metadata.error(format_args!("begins and ends at the same time, `{}`", end.as_str()), hint);
        return None;
    }
    let (start, end) = (start.in_time_zone(zone.clone()), end.in_time_zone(zone));
    Some(CronTrigger { origin: item.origin(), start, end, desired: desired? })
}

/// Reads the scaling strategy. KEDA treats a custom strategy without a share as the default one.
fn strategy(field: &Field<'_>) -> Option<JobStrategy> {
    let map = field.map()?;
    let deduction = map.get("customScalingQueueLengthDeduction");
    let deduction = deduction.map_or(Some(0), |field| field.int::<u32>(0));
    let running = map.get("customScalingRunningJobPercentage").map(|field| share(&field));
    let custom = match (deduction, running) {
        (None, _) | (_, Some(None)) => return None,
        (Some(_), None) => JobStrategy::Default,
        (Some(deduction), Some(Some(running_milli))) => {
            JobStrategy::Custom { deduction, running_milli }
        }
    };
    map.get("strategy").map_or(Some(JobStrategy::Default), |field| {
        field.choice(&[
            ("default", JobStrategy::Default),
            ("custom", custom),
            ("accurate", JobStrategy::Accurate),
            ("eager", JobStrategy::Eager),
        ])
    })
}

/// Reads a share such as `"0.5"`, in thousandths.
fn share(field: &Field<'_>) -> Option<u32> {
    let text = field.text_or_number()?;
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let milli = text.parse::<Quantity>().ok().filter(|_| is_number).map(Quantity::ceil_milli);
    let milli = milli.and_then(|milli| u32::try_from(milli).ok());
    if milli.is_none() {
        let hint = "write a share such as \"0.5\"".to_owned();
        field.error(format_args!("is `{}`, which is not a share", shorten(&text)), hint);
    }
    milli
}

/// Reads a `ScaledJob`: a workload of its own that creates jobs.
pub(in super::super) fn scaled_job(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let job = spec.required("jobTargetRef").and_then(|field| job_template(&field));
    let min = spec.get("minReplicaCount").map_or(Some(0), |field| field.int::<u32>(0));
    let max = spec.get("maxReplicaCount").map_or(Some(MAX_REPLICAS), |field| field.int::<u32>(1));
    let strategy =
        spec.get("scalingStrategy").map_or(Some(JobStrategy::Default), |field| strategy(&field));
    spec.required("triggers").map(|field| triggers(&field));
    spec.ignore(&[
        "pollingInterval",
        "successfulJobsHistoryLimit",
        "failedJobsHistoryLimit",
        "envSourceContainerName",
        "rollout",
        "rolloutStrategy",
    ]);
    spec.finish_with_typo_check();
    root.ignore(&["apiVersion", "kind", "metadata", "spec", "status"]);
    if let Some(field) = root.field.scope.first_failed_field() {
        let object = root.field.scope.object.clone();
        return into.add_unresolved(
            meta.origin,
            object,
            format!("its `{field}` could not be read"),
        );
    }
    let (Some(job), Some(min), Some(max), Some(strategy)) = (job, min, max, strategy) else {
        return;
    };
    if min > max {
        spec.field.warn(
            format_args!(
                "has `minReplicaCount` {min}, above its `maxReplicaCount` {max}: KEDA uses {max}"
            ),
            "lower minReplicaCount, or raise maxReplicaCount".to_owned(),
        );
    }
    // Source: KEDA, `apis/keda/v1alpha1/scaledjob_types.go`, `MinReplicaCount` and `MaxReplicaCount`.
    let min = min.min(max);
    let is_paused = meta.annotations.get(PAUSED).is_some_and(|text| is_truthy(text));
    let kind = WorkloadKind::ScaledJob;
    let id = WorkloadId { namespace: meta.namespace, name: meta.name.into(), kind };
    let named = Definition {
        kind: kind.as_str(),
        name: id.to_string(),
        scope: root.field.scope,
        origin: meta.origin.clone(),
    };
    let pods = job.pods();
    let scale = Scale::ScaledJob(JobScaling { pods, min, max, strategy, is_paused });
    let (origin, template) = (meta.origin, Arc::new(job.template));
    let retries = job_retries::read_declared(kind, root);
    let workload = Workload { retries, ..Workload::new(id.clone(), origin, scale, template) };
    let same = |a: &Workload, b: &Workload| a.scale == b.scale && a.template == b.template;
    into.insert(named, |all| &mut all.desired.workloads, id, workload, same);
}
