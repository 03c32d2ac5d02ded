//! Lints for autoscalers that do not behave as intended.

use jiff::Timestamp;

use super::warning;
use crate::demand::{Demand, is_active_at};
use crate::model::code::Code;
use crate::model::desired::{
    CronTrigger, Desired, Horizontal, Metric, MetricSource, MetricTarget, Problem,
    ProportionalMode, Scale, Scaler, ScalerRule, UpdateMode, VerticalScaler, Workload,
};
use crate::model::units::ResourceName;

/// Start of the two weeks in which windows are checked, a Monday.
const FROM: &str = "2026-06-01T00:00:00Z";
const DAYS: i64 = 14;
/// Maximum number of checked ends of a window: one every twenty minutes.
const ENDS_MAX: usize = 1_008;

/// Returns a warning for each cron window that remains open after its own end.
pub(super) fn windows(desired: &Desired) -> Vec<Problem> {
    let mut found = Vec::new();
    for scaler in &desired.scalers {
        let ScalerRule::EventDriven(rule) = &scaler.rule else { continue };
        found.extend(rule.crons.iter().filter_map(|cron| overlong_window(scaler, cron)));
    }
    found
}

/// Returns a warning for a cron trigger whose window reopens at its end.
///
/// KEDA treats a trigger as active while its next end precedes its next start. An end on a day
/// without a start therefore reopens the window until the next end.
fn overlong_window(scaler: &Scaler, cron: &CronTrigger) -> Option<Problem> {
    let from: Timestamp = FROM.parse().expect("the constant is a time");
    let to = from + jiff::SignedDuration::from_hours(24 * DAYS);
    let ends = cron.end.times_between(from, to, ENDS_MAX);
    let mut ends = ends.iter();
    let end = ends.find(|end| is_active_at(cron, **end))?;
    let until = ends.find(|later| !is_active_at(cron, **later))?;
    let local = |at: &Timestamp| cron.end.zone().to_datetime(*at).strftime("%A %H:%M").to_string();
    Some(warning(
        &cron.origin,
        &scaler.object,
        format!(
            "its window stays open after its end on {}, until {}: `end` {} is due on days without \
             `start` {}",
            local(end),
            local(until),
            cron.end.as_str(),
            cron.start.as_str()
        ),
        "give `end` the days of `start`",
    ))
}

/// Returns a warning for each workload with a horizontal and a vertical autoscaler on the same
/// resource.
pub(super) fn conflicting_autoscalers(desired: &Desired) -> Vec<Problem> {
    let mut found = Vec::new();
    for vertical in desired.vertical_scalers.iter().filter(|v| v.mode != UpdateMode::Off) {
        for scaler in &desired.scalers {
            let ScalerRule::Horizontal(rule) = &scaler.rule else { continue };
            if scaler.namespace == vertical.namespace && scaler.targets.contains(&vertical.target) {
                found.extend(shared_metric(vertical, scaler, rule));
            }
        }
    }
    found
}

fn shared_metric(vertical: &VerticalScaler, scaler: &Scaler, rule: &Horizontal) -> Option<Problem> {
    let default = crate::model::desired::ContainerPolicy::default();
    let policy = vertical.policies.get("*").unwrap_or(&default);
    let is_shared = |metric: &&Metric| {
        let inner =
            matches!(metric.source, MetricSource::Resource | MetricSource::ContainerResource(_));
        let is_share = matches!(metric.target, MetricTarget::Utilization(_));
        let controlled = match metric.name.as_str() {
            "cpu" => policy.controls_cpu,
            "memory" => policy.controls_memory,
            _ => false,
        };
        inner && is_share && controlled
    };
    let metric = rule.metrics.iter().find(is_shared)?;
    Some(
        warning(
            &vertical.origin,
            &vertical.object,
            format!(
                "changes the {} request that {} at {} scales by: the two autoscalers conflict",
                metric.name, scaler.object, scaler.origin
            ),
            "remove the resource from controlledResources, or use another metric in the other \
         autoscaler",
        )
        .code(Code::AutoscalerConflict),
    )
}

/// Returns a warning for each scaler with an unsuitable target: missing, a DaemonSet, or without
/// the request for its utilization metric.
pub(super) fn targets(desired: &Desired) -> Vec<Problem> {
    let mut found = Vec::new();
    for scaler in &desired.scalers {
        for target in &scaler.targets {
            let workload = desired.workloads.values().find(|workload| {
                workload.id.namespace == scaler.namespace
                    && workload.id.kind.as_str() == target.kind
                    && *workload.id.name == *target.name
            });
            match (workload, &scaler.rule) {
                (Some(workload), _) if workload.scale == Scale::PerNode => found.push(warning(
                    &scaler.origin,
                    &scaler.object,
                    format!(
                        "scales {} {}, which runs one pod per node: it never acts",
                        target.kind, workload.id
                    ),
                    "remove it, or let it scale a Deployment",
                )),
                (Some(workload), ScalerRule::Horizontal(rule)) => {
                    found.extend(unmeasurable_metric(scaler, rule, workload, desired));
                }
                (Some(_), _) => {}
                // The target may be in a source that is not rendered.
                (None, _) if !desired.unresolved.is_empty() => {}
                (None, _) => found.push(warning(
                    &scaler.origin,
                    &scaler.object,
                    format!(
                        "scales {} {}/{}, which is not in the repository",
                        target.kind, scaler.namespace, target.name
                    ),
                    "correct its target, or add the workload",
                )),
            }
        }
    }
    found
}

/// Returns a warning for each vertical autoscaler with a missing target, or with a minimum above
/// its maximum.
pub(super) fn verticals(desired: &Desired) -> Vec<Problem> {
    let mut found = Vec::new();
    for vertical in &desired.vertical_scalers {
        let VerticalScaler { object, origin, namespace, target, policies, .. } = vertical;
        let is_target = |workload: &Workload| {
            workload.id.namespace == *namespace
                && workload.id.kind.as_str() == target.kind
                && *workload.id.name == *target.name
        };
        // The target may be in a source that is not rendered.
        if desired.unresolved.is_empty() && !desired.workloads.values().any(is_target) {
            let (kind, name) = (&target.kind, &target.name);
            let message =
                format!("sizes {kind} {namespace}/{name}, which is not in the repository");
            found.push(warning(origin, object, message, "correct its target, or add the workload"));
        }
        for (container, policy) in policies {
            let crossed = |(name, least): (&ResourceName, &i64)| {
                policy.max.get(name).is_some_and(|most| most < least).then(|| name.clone())
            };
            for name in policy.min.iter().filter_map(crossed) {
                let message = format!(
                    "of container {container}, minAllowed is above maxAllowed for {name}: the \
                     minimum counts"
                );
                found.push(warning(origin, object, message, "let minAllowed be the lower one"));
            }
        }
    }
    found
}

/// Returns a warning if utilization cannot be computed because a container has no request.
fn unmeasurable_metric(
    scaler: &Scaler,
    rule: &Horizontal,
    workload: &Workload,
    desired: &Desired,
) -> Option<Problem> {
    let spec = &workload.template.spec;
    if spec.resources.is_some() || desired.limit_ranges.contains_key(&scaler.namespace) {
        return None;
    }
    let is_sized = desired.vertical_scalers.iter().any(|v| v.namespace == scaler.namespace);
    let is_open = |metric: &&Metric| {
        let key = crate::model::units::ResourceName::from(metric.name.as_str());
        metric.source == MetricSource::Resource
            && matches!(metric.target, MetricTarget::Utilization(_))
            && spec.containers.iter().any(|container| {
                let stated = &container.resources;
                !stated.requests.contains_key(&key) && !stated.limits.contains_key(&key)
            })
    };
    let metric = rule.metrics.iter().find(is_open).filter(|_| !is_sized)?;
    Some(warning(
        &scaler.origin,
        &scaler.object,
        format!(
            "measures {} utilization of {}, whose pods do not request it: it never acts",
            metric.name, workload.id
        ),
        "state the request in every container",
    ))
}

/// Returns a warning for each proportional autoscaler without a maximum whose replicas request at
/// least the cores per replica.
pub(super) fn proportional(desired: &Desired, demand: &Demand) -> Vec<Problem> {
    let mut found = Vec::new();
    for scaler in &desired.scalers {
        let ScalerRule::Proportional(rule) = &scaler.rule else { continue };
        let ProportionalMode::Linear(linear) = &rule.mode else { continue };
        let Some(per) = linear.cores_per_replica_milli else { continue };
        let cpu_request = |target: &crate::model::desired::ScaleTarget| {
            let group = demand.groups.iter().find(|group| {
                group.workload.namespace == scaler.namespace
                    && group.workload.kind.as_str() == target.kind
                    && *group.workload.name == *target.name
            });
            group.map_or(0, |group| group.shape.requests.cpu.0)
        };
        let requested: i64 = scaler.targets.iter().map(cpu_request).fold(0, i64::saturating_add);
        if requested >= per && linear.max == 0 {
            found.push(warning(
                &scaler.origin,
                &scaler.object,
                format!(
                    "adds a replica for each {per}m of CPU, and a replica requests {requested}m: pods \
                     and nodes grow without bound"
                ),
                "lower the requests of a replica, raise coresPerReplica, or set `max`",
            ));
        }
    }
    found
}
