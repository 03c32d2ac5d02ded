//! Next scaling step of a `HorizontalPodAutoscaler`, computed from its observed metrics.
//!
//! Source of every formula: the controller of Kubernetes 1.36 (`pkg/controller/podautoscaler`). All
//! arithmetic uses integers.

use crate::model::desired::{
    Behavior, Horizontal, Metric, MetricSource, MetricTarget, ScalingPolicy, ScalingRules,
    SelectPolicy,
};
use crate::model::observed::{LiveHorizontal, LiveMetric};

/// Default tolerance: the deviation from the target that changes nothing, in thousandths.
const TOLERANCE_MILLI: i64 = 100;
/// Replica count that one step may always reach if no behavior is stated.
const STEP_MIN: u32 = 4;

/// Next step of an autoscaler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScalingStep {
    /// Replica count after the step.
    pub(super) count: u32,
    /// Replica count that the metrics request, before bounds and rate limits.
    pub(super) wanted: u32,
    /// Metric with the highest request, such as `cpu 242% of 50%`.
    pub(super) metric: String,
}

/// Returns the next step; `None` if no metric could be read or the autoscaler is disabled.
pub(super) fn next_step(rule: &Horizontal, live: &LiveHorizontal) -> Option<ScalingStep> {
    let current = live.current_replicas;
    if current == 0 && rule.min > 0 {
        return None;
    }
    let bounded = current.clamp(rule.min, rule.max);
    if bounded != current {
        return Some(ScalingStep {
            count: bounded,
            wanted: bounded,
            metric: "its bounds".to_owned(),
        });
    }
    let proposals: Vec<Option<(u32, String)>> =
        rule.metrics.iter().map(|metric| metric_proposal(metric, rule, live)).collect();
    let has_unreadable = proposals.iter().any(Option::is_none);
    let (wanted, metric) = proposals.into_iter().flatten().max()?;
    // An unreadable metric may be the one that needs the pods.
    let wanted_now = if has_unreadable { wanted.max(current) } else { wanted };
    let count = match &rule.behavior {
        None => {
            let most = current.saturating_mul(2).max(STEP_MIN);
            stabilized_down(wanted_now, live).min(most)
        }
        Some(behavior) => limit_by_behavior(wanted_now, behavior, live),
    };
    Some(ScalingStep { count: count.clamp(rule.min, rule.max), wanted, metric })
}

/// Returns `wanted`, or the highest count of the stabilization window if `wanted` is lower.
fn stabilized_down(wanted: u32, live: &LiveHorizontal) -> u32 {
    if wanted >= live.current_replicas {
        return wanted;
    }
    // Without a history, the last decision is a lower bound of the highest count.
    let highest = live.highest_recent.unwrap_or(live.desired_replicas);
    wanted.max(highest.min(live.current_replicas))
}

fn limit_by_behavior(wanted: u32, behavior: &Behavior, live: &LiveHorizontal) -> u32 {
    let current = live.current_replicas;
    if wanted > current {
        let has_window = behavior.up.window.is_some_and(|window| !window.is_zero());
        // The lowest proposal of the window counts. The last decision stands for it.
        let wanted =
            if has_window { wanted.min(live.desired_replicas.max(current)) } else { wanted };
        return wanted.min(scale_up_limit(&behavior.up, current));
    }
    let has_window = behavior.down.window.is_none_or(|window| !window.is_zero());
    let wanted = if has_window { stabilized_down(wanted, live) } else { wanted };
    wanted.max(scale_down_limit(&behavior.down, current))
}

/// Returns the maximum replica count of a scale-up step.
fn scale_up_limit(rules: &ScalingRules, current: u32) -> u32 {
    let reach = |policy: &ScalingPolicy| {
        let more = if policy.is_percent {
            let share = u64::from(current) * u64::from(policy.amount);
            u32::try_from(share.div_ceil(100)).unwrap_or(u32::MAX)
        } else {
            policy.amount
        };
        current.saturating_add(more)
    };
    let reached = rules.policies.iter().map(reach);
    let found = match rules.select {
        SelectPolicy::Max => reached.max(),
        SelectPolicy::Min => reached.min(),
        SelectPolicy::Disabled => Some(current),
    };
    found.unwrap_or(u32::MAX)
}

/// Returns the minimum replica count of a scale-down step.
fn scale_down_limit(rules: &ScalingRules, current: u32) -> u32 {
    let leave = |policy: &ScalingPolicy| {
        if policy.is_percent {
            let retained = u64::from(100_u32.saturating_sub(policy.amount));
            u32::try_from(u64::from(current) * retained / 100).unwrap_or(u32::MAX)
        } else {
            current.saturating_sub(policy.amount)
        }
    };
    let left = rules.policies.iter().map(leave);
    let found = match rules.select {
        SelectPolicy::Max => left.min(),
        SelectPolicy::Min => left.max(),
        SelectPolicy::Disabled => Some(current),
    };
    found.unwrap_or(0)
}

/// Current value and target of a metric.
struct Ratio {
    current: i128,
    target: i128,
}

impl Ratio {
    /// Returns `count × current ÷ target`, rounded up.
    fn scale(&self, count: u32) -> u32 {
        let product = i128::from(count) * self.current;
        let rounded =
            product.div_euclid(self.target) + i128::from(product.rem_euclid(self.target) != 0);
        u32::try_from(rounded.max(0)).unwrap_or(u32::MAX)
    }

    /// Returns true if the deviation is within the tolerance.
    fn is_tolerated(&self, behavior: Option<&Behavior>) -> bool {
        let tolerance = |rules: Option<&ScalingRules>| {
            rules.and_then(|rules| rules.tolerance_milli).unwrap_or(TOLERANCE_MILLI)
        };
        let (up, down) = (tolerance(behavior.map(|b| &b.up)), tolerance(behavior.map(|b| &b.down)));
        let milli = self.current * 1000;
        milli <= self.target * i128::from(1000 + up)
            && milli >= self.target * i128::from(1000 - down)
    }
}

/// Returns the replica count that a metric requests, and a description; `None` if it could not be
/// read.
fn metric_proposal(
    metric: &Metric,
    rule: &Horizontal,
    live: &LiveHorizontal,
) -> Option<(u32, String)> {
    let container = match &metric.source {
        MetricSource::ContainerResource(container) => Some(container),
        MetricSource::Resource
        | MetricSource::Pods
        | MetricSource::Object
        | MetricSource::External => None,
    };
    let same =
        |found: &&LiveMetric| found.name == metric.name && found.container.as_ref() == container;
    let found = live.metrics.iter().find(same)?;
    let current = live.current_replicas;
    let ready = live.ready_replicas.unwrap_or(current).min(current);
    let is_external = matches!(metric.source, MetricSource::Object | MetricSource::External);
    let (ratio, count, description) = match metric.target {
        MetricTarget::Utilization(percent) => {
            let now = found.utilization?;
            let ratio = Ratio { current: now.into(), target: percent.into() };
            (ratio, ready, format!("{now}% of {percent}%"))
        }
        MetricTarget::AverageValue(quantity) if is_external => {
            let total = found
                .value_milli
                .or_else(|| Some(found.average_milli?.saturating_mul(i64::from(current))))?;
            let aim = i128::from(quantity.ceil_milli()) * i128::from(current.max(1));
            let ratio = Ratio { current: total.into(), target: aim };
            (ratio, current.max(1), format!("{} of {quantity} a pod", format_milli(total)))
        }
        MetricTarget::AverageValue(quantity) => {
            let now = found.average_milli?;
            let ratio = Ratio { current: now.into(), target: quantity.ceil_milli().into() };
            (ratio, ready, format!("{} of {quantity} a pod", format_milli(now)))
        }
        MetricTarget::Value(quantity) => {
            let now = found.value_milli?;
            let ratio = Ratio { current: now.into(), target: quantity.ceil_milli().into() };
            (
                ratio,
                if current == 0 { 1 } else { ready },
                format!("{} of {quantity}", format_milli(now)),
            )
        }
    };
    let tolerated = current > 0 && ratio.is_tolerated(rule.behavior.as_ref());
    let count = if tolerated { current } else { ratio.scale(count) };
    Some((count, format!("{} {description}", metric.name)))
}

fn format_milli(amount: i64) -> String {
    if amount % 1000 == 0 { (amount / 1000).to_string() } else { format!("{amount}m") }
}

#[cfg(test)]
mod tests;
