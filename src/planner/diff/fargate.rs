//! Fargate pods: demand rows, unschedulable rows and cost.

use std::collections::BTreeMap;

use crate::demand::{Demand, FargatePods};
use crate::model::fargate::{FargateSize, Rates};
use crate::model::ids::WorkloadId;
use crate::model::reason::Rejection;
use crate::model::units::MicroUsd;
use crate::plan::wire::{
    Amount, DemandRow, FARGATE_REASON, FargateBill, FargateCost, FargateRow, UnschedulableRow,
};

/// Adds Fargate pods to the demand rows, and rows for workloads that run only on Fargate.
pub(super) fn add_fargate_rows(rows: &mut Vec<DemandRow>, demand: &Demand) {
    let mut taken: BTreeMap<&WorkloadId, &FargatePods> =
        demand.fargate.iter().map(|taken| (&taken.workload, taken)).collect();
    for row in rows.iter_mut() {
        if let Some(taken) = taken.remove(&row.workload) {
            row.counts = taken.counts;
            row.fargate = Some(fargate_row(taken));
        }
    }
    rows.extend(taken.into_values().map(|taken| DemandRow {
        workload: taken.workload.clone(),
        origin: taken.origin.clone(),
        counts: taken.counts,
        decided_by: taken.decided_by.clone(),
        requests: Amount::from(&taken.requests),
        fargate: Some(fargate_row(taken)),
        sized_by: demand.sizings.get(&taken.workload).cloned(),
        rules: Vec::new(),
        elsewhere: Vec::new(),
    }));
    rows.sort_by(|a, b| a.workload.cmp(&b.workload));
}

fn fargate_row(taken: &FargatePods) -> FargateRow {
    FargateRow { profile: taken.profile.clone(), pods: taken.pods, size: taken.size.clone().ok() }
}

/// Returns the rows of pods that a Fargate profile selects but Fargate cannot run.
pub(super) fn unrunnable(demand: &Demand) -> impl Iterator<Item = UnschedulableRow> {
    demand.fargate.iter().filter(|taken| taken.rejected_pods() > 0).filter_map(|taken| {
        let misfit = taken.size.as_ref().err()?;
        let profile = taken.profile.as_deref().unwrap_or_default();
        let detail = format!("profile {profile} takes them: {}", misfit.reason);
        Some(UnschedulableRow {
            workload: taken.workload.clone(),
            origin: taken.origin.clone(),
            pods: taken.rejected_pods(),
            offerings: 0,
            reasons: vec![Rejection { reason: FARGATE_REASON.to_owned(), detail, count: 0 }],
            nearest: Some(misfit.remedy.clone()),
            eviction: None,
            displaces: BTreeMap::new(),
        })
    })
}

/// Returns the number of pods on Fargate.
pub(super) fn placed_pods(demand: &Demand) -> u32 {
    demand.fargate.iter().map(FargatePods::pods_on_fargate).fold(0, u32::saturating_add)
}

/// Returns the cost of Fargate, which is separate from the cost of nodes; `None` without Fargate
/// pods.
pub(super) fn cost(demand: &Demand, rates: Option<Rates>) -> Option<FargateCost> {
    let before =
        demand.fargate.iter().flat_map(|taken| taken.running.iter().map(|(s, n)| (*s, *n)));
    let after =
        demand.fargate.iter().filter_map(|taken| Some((taken.size.clone().ok()?, taken.pods)));
    let (before, after) = (bill(before, rates), bill(after, rates));
    (before.pods + after.pods > 0).then_some(FargateCost { rates, before, after })
}

fn bill(sizes: impl Iterator<Item = (FargateSize, u32)>, rates: Option<Rates>) -> FargateBill {
    let nothing =
        FargateBill { pods: 0, cpu_milli: 0, memory_mib: 0, hourly: rates.map(|_| MicroUsd::ZERO) };
    sizes.fold(nothing, |sum, (size, pods)| {
        let count = i64::from(pods);
        FargateBill {
            pods: sum.pods.saturating_add(pods),
            cpu_milli: sum.cpu_milli + size.cpu_milli * count,
            memory_mib: sum.memory_mib + size.memory_mib * count,
            hourly: sum.hourly.zip(rates).map(|(sum, rates)| sum + size.price(rates).times(count)),
        }
    })
}
