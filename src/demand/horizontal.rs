//! What a `HorizontalPodAutoscaler` does next, from what its metrics are.
//!
//! Source of every formula: the controller of Kubernetes 1.36 (`pkg/controller/podautoscaler`), as
//! collected with references in the facts about autoscalers. All arithmetic is in whole numbers.

use crate::model::desired::{
    Behavior, Horizontal, Metric, MetricSource, MetricTarget, ScalingPolicy, ScalingRules,
    SelectPolicy,
};
use crate::model::observed::{LiveHorizontal, LiveMetric};

/// The deviation from its target that changes nothing, in thousandths.
const TOLERANCE_MILLI: i64 = 100;
/// What may be reached in one step where no behavior is stated, whatever runs.
const STEP_MIN: u32 = 4;

/// What an autoscaler does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScalingStep {
    /// How many pods it goes to.
    pub(super) count: u32,
    /// How many pods its metrics ask for, before any limit on bounds and rates.
    pub(super) wanted: u32,
    /// The metric that asks for most, such as `cpu 242% of 50%`.
    pub(super) metric: String,
}

/// Returns the next step; `None` where it takes none, since no metric could be read or it is off.
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
    let is_blind = proposals.iter().any(Option::is_none);
    let (wanted, metric) = proposals.into_iter().flatten().max()?;
    // A metric that cannot be read may be the one that needs the pods.
    let wanted_now = if is_blind { wanted.max(current) } else { wanted };
    let count = match &rule.behavior {
        None => {
            let most = current.saturating_mul(2).max(STEP_MIN);
            stabilized_down(wanted_now, live).min(most)
        }
        Some(behavior) => limit_by_behavior(wanted_now, behavior, live),
    };
    Some(ScalingStep { count: count.clamp(rule.min, rule.max), wanted, metric })
}

/// Returns `wanted`, or the highest count of the stabilization window where it is lower.
fn stabilized_down(wanted: u32, live: &LiveHorizontal) -> u32 {
    if wanted >= live.current_replicas {
        return wanted;
    }
    // Where the history is not known, what it last decided is the least that it can be.
    let highest = live.highest_recent.unwrap_or(live.desired_replicas);
    wanted.max(highest.min(live.current_replicas))
}

fn limit_by_behavior(wanted: u32, behavior: &Behavior, live: &LiveHorizontal) -> u32 {
    let current = live.current_replicas;
    if wanted > current {
        let has_window = behavior.up.window.is_some_and(|window| !window.is_zero());
        // The gentlest proposal of the window counts; what it last decided is the least that it
        // was.
        let wanted =
            if has_window { wanted.min(live.desired_replicas.max(current)) } else { wanted };
        return wanted.min(scale_up_limit(&behavior.up, current));
    }
    let has_window = behavior.down.window.is_none_or(|window| !window.is_zero());
    let wanted = if has_window { stabilized_down(wanted, live) } else { wanted };
    wanted.max(scale_down_limit(&behavior.down, current))
}

/// Returns the most pods that growth may reach.
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

/// Returns the fewest pods that shrinking may leave.
fn scale_down_limit(rules: &ScalingRules, current: u32) -> u32 {
    let leave = |policy: &ScalingPolicy| {
        if policy.is_percent {
            let kept = u64::from(100_u32.saturating_sub(policy.amount));
            u32::try_from(u64::from(current) * kept / 100).unwrap_or(u32::MAX)
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

/// A metric and its target: what there is over what there should be.
struct Ratio {
    current: i128,
    target: i128,
}

impl Ratio {
    /// Returns `count × now ÷ aim`, rounded up.
    fn scale(&self, count: u32) -> u32 {
        let product = i128::from(count) * self.current;
        let rounded =
            product.div_euclid(self.target) + i128::from(product.rem_euclid(self.target) != 0);
        u32::try_from(rounded.max(0)).unwrap_or(u32::MAX)
    }

    /// Returns whether the deviation is small enough to change nothing.
    fn is_tolerated(&self, behavior: Option<&Behavior>) -> bool {
        let of = |rules: Option<&ScalingRules>| {
            rules.and_then(|rules| rules.tolerance_milli).unwrap_or(TOLERANCE_MILLI)
        };
        let (up, down) = (of(behavior.map(|b| &b.up)), of(behavior.map(|b| &b.down)));
        let milli = self.current * 1000;
        milli <= self.target * i128::from(1000 + up)
            && milli >= self.target * i128::from(1000 - down)
    }
}

/// Returns how many pods a metric asks for, and what it says; `None` where it could not be read.
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
    let outer = matches!(metric.source, MetricSource::Object | MetricSource::External);
    let (ratio, count, said) = match metric.target {
        MetricTarget::Utilization(percent) => {
            let now = found.utilization?;
            let ratio = Ratio { current: now.into(), target: percent.into() };
            (ratio, ready, format!("{now}% of {percent}%"))
        }
        MetricTarget::AverageValue(quantity) if outer => {
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
    Some((count, format!("{} {said}", metric.name)))
}

fn format_milli(amount: i64) -> String {
    if amount % 1000 == 0 { (amount / 1000).to_string() } else { format!("{amount}m") }
}

#[cfg(test)]
mod tests;
