//! Observed state of autoscalers.

use std::collections::BTreeMap;

use fleetwright::model::desired::Desired;
use fleetwright::model::ids::WorkloadId;
use fleetwright::model::observed::{
    LiveEvents, LiveHorizontal, LiveMetric, LiveVertical, LiveWorkload, Observed, Recommendation,
};
use fleetwright::model::units::Quantity;

use super::case_line::CaseLine;

const NAMESPACE: &str = "default";

/// Adds `runs NAME COUNT`: the live replicas of a workload.
pub(super) fn runs(world: &mut Observed, line: &CaseLine, desired: &Desired) -> Result<(), String> {
    let (name, replicas) = (line.word(1)?, line.count(2)?);
    let of = |id: &&WorkloadId| &*id.name == name;
    let id = desired.workloads.keys().find(of).ok_or(format!("no workload {name}"))?.clone();
    world.workloads.push(LiveWorkload {
        id,
        replicas,
        first_ordinal: 0,
        delivered: true,
        template: None,
        job: None,
    });
    Ok(())
}

/// Adds `hpa NAME CURRENT METRIC=VALUE…`: the status of an HPA. A value in percent is a
/// utilization, and any other value an average per pod. `desired`, `ready` and `highest` are
/// counts.
pub(super) fn hpa(world: &mut Observed, line: &CaseLine) -> Result<(), String> {
    let current = line.count(2)?;
    let count = |key: &str| line.option(key).map(str::parse).transpose();
    let number = |key: &str| count(key).map_err(|_| format!("`{key}` is a count"));
    let mut metrics = Vec::new();
    for (name, value) in &line.options {
        if ["desired", "ready", "highest"].contains(&name.as_str()) {
            continue;
        }
        let mut metric = LiveMetric { name: name.clone(), ..LiveMetric::default() };
        if let Some(share) = value.strip_suffix('%') {
            metric.utilization = Some(share.parse().map_err(|_| "a percentage is a number")?);
        } else {
            let value: Quantity = value.parse().map_err(|_| "a metric is a quantity")?;
            metric.average_milli = Some(value.ceil_milli());
        }
        metrics.push(metric);
    }
    world.scaling.horizontal.push(LiveHorizontal {
        namespace: NAMESPACE.into(),
        name: line.word(1)?.to_owned(),
        current_replicas: current,
        desired_replicas: number("desired")?.unwrap_or(current),
        ready_replicas: number("ready")?,
        highest_recent: number("highest")?.or(Some(0)),
        metrics,
    });
    Ok(())
}

/// Adds `recommends NAME CONTAINER cpu=… memory=…`: a recommendation of a vertical autoscaler.
pub(super) fn recommends(world: &mut Observed, line: &CaseLine) -> Result<(), String> {
    let mut target = BTreeMap::new();
    for (name, value) in &line.options {
        let value: Quantity = value.parse().map_err(|_| "a recommendation is a quantity")?;
        let amount = if name == "cpu" { value.ceil_milli() } else { value.ceil_units() };
        target.insert(name.as_str().into(), amount);
    }
    let container = line.word(2)?.to_owned();
    let recommendation = Recommendation { target, ..Recommendation::default() };
    world.scaling.vertical.push(LiveVertical {
        namespace: NAMESPACE.into(),
        name: line.word(1)?.to_owned(),
        containers: [(container, recommendation)].into(),
    });
    Ok(())
}

/// Adds `queue NAME JOBS`: the number of jobs that a ScaledJob needs.
pub(super) fn queue(world: &mut Observed, line: &CaseLine) -> Result<(), String> {
    world.scaling.event_driven.push(LiveEvents {
        namespace: NAMESPACE.into(),
        name: line.word(1)?.to_owned(),
        in_fallback: false,
        wanted_jobs: Some(line.count(2)?),
        pending_jobs: None,
    });
    Ok(())
}
