//! Fargate: every pod that needs no node has a size that holds it, is counted once, and is priced.

use std::collections::BTreeMap;

use super::Verdict;
use super::case::{Case, total};
use crate::demand::FargatePods;
use crate::fargate::{Rates, Size};
use crate::fleet::Node;
use crate::plan::wire::{FARGATE_REASON, FargateBill, FargateCost, FargateRow, UnschedulableRow};
use crate::solve::workload_key;
use crate::units::MicroUsd;

/// What Fargate keeps of each machine for itself, in MiB.
const OWN_SHARE_MIB: i64 = 256;
const MIB: i64 = 1 << 20;

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    nodes(case, verdict);
    for (key, taken) in &case.fargate {
        rows(case, key, taken, verdict);
        stuck(case, key, taken, verdict);
    }
    cost(case, verdict);
}

/// A node that Fargate runs is nobody's to plan.
fn nodes(case: &Case<'_>, verdict: &mut Verdict) {
    let is_fargate = |row: &&super::case::Row<'_>| row.node.is_some_and(Node::is_fargate);
    for row in case.rows.iter().filter(is_fargate) {
        verdict.row("fargate/node", row.address, "Fargate runs this node, so that it has no row");
    }
}

fn rows(case: &Case<'_>, key: &str, taken: &FargatePods, verdict: &mut Verdict) {
    let row = case.plan.capacity.demand.iter().find(|row| workload_key(&row.workload) == key);
    let stated = row.and_then(|row| row.fargate.as_ref());
    let size = taken.size.as_ref().ok();
    let holds =
        FargateRow { profile: taken.profile.clone(), pods: taken.pods, size: size.copied() };
    if stated != Some(&holds) {
        verdict.plan("fargate/row", format!("the row of {key} does not say what Fargate runs"));
    }
    if let Some(size) = size
        && !is_least(*size, taken)
    {
        let Size { cpu_milli, memory_mib } = size;
        let fault = format!("{key}: {cpu_milli}m and {memory_mib} MiB is not the size of its pods");
        verdict.plan("fargate/size", fault);
    }
    let on_nodes = case.groups.get(key).map_or(0, |group| group.counts.planned);
    if on_nodes.saturating_add(taken.pods) != taken.counts.planned {
        let fault = format!(
            "{key}: {on_nodes} pods for nodes and {} for Fargate are not the {} planned",
            taken.pods, taken.counts.planned
        );
        verdict.plan("fargate/count", fault);
    }
}

/// Returns whether a size holds a pod with Fargate's own share, is sold, and no smaller one is both.
fn is_least(size: Size, taken: &FargatePods) -> bool {
    let (cpu, bytes) = (taken.requests.cpu.0, taken.requests.memory.0);
    let holds = |(cpu_milli, memory_mib): (i64, i64)| {
        cpu_milli >= cpu && (memory_mib - OWN_SHARE_MIB).saturating_mul(MIB) >= bytes
    };
    let least = sizes().filter(|size| holds(*size)).min();
    least == Some((size.cpu_milli, size.memory_mib))
}

/// Returns every size that Fargate sells, as EKS' table lists them: vCPU in thousandths, and MiB.
fn sizes() -> impl Iterator<Item = (i64, i64)> {
    let gb = |from: i64, to: i64, step: usize| (from..=to).step_by(step).map(|gb| gb * 1024);
    let quarter = [512, 1024, 2048].into_iter().map(|mib| (250, mib));
    quarter
        .chain(gb(1, 4, 1).map(|mib| (500, mib)))
        .chain(gb(2, 8, 1).map(|mib| (1_000, mib)))
        .chain(gb(4, 16, 1).map(|mib| (2_000, mib)))
        .chain(gb(8, 30, 1).map(|mib| (4_000, mib)))
        .chain(gb(16, 60, 4).map(|mib| (8_000, mib)))
        .chain(gb(32, 120, 8).map(|mib| (16_000, mib)))
}

/// Returns whether a row is of pods that Fargate does not run.
pub(super) fn is_stuck(row: &UnschedulableRow) -> bool {
    row.reasons.iter().any(|why| why.reason == FARGATE_REASON)
}

fn stuck(case: &Case<'_>, key: &str, taken: &FargatePods, verdict: &mut Verdict) {
    let rows = case.plan.capacity.unschedulable.iter().filter(|row| is_stuck(row));
    let stated = total(rows.filter(|row| workload_key(&row.workload) == key), |row| row.pods);
    let holds = if taken.size.is_err() { taken.pods } else { 0 };
    if stated != holds {
        let fault = format!("{key}: {stated} pods are said to be stuck, but {holds} are");
        verdict.plan("fargate/stuck", fault);
    }
}

fn cost(case: &Case<'_>, verdict: &mut Verdict) {
    let rates = case.facts.desired.fargate_rates;
    let demand = &case.facts.demand.fargate;
    let mut live: BTreeMap<Size, u32> = BTreeMap::new();
    for (size, pods) in demand.iter().flat_map(|taken| &taken.running) {
        *live.entry(*size).or_default() += pods;
    }
    let planned = demand.iter().filter_map(|taken| Some((*taken.size.as_ref().ok()?, taken.pods)));
    let before = bill(live.into_iter(), rates);
    let after = bill(planned, rates);
    let holds = (before.pods > 0 || after.pods > 0).then_some(FargateCost { rates, before, after });
    verdict.equal("fargate/cost", "cost.fargate", &case.plan.capacity.cost.fargate, &holds);
}

fn bill(sizes: impl Iterator<Item = (Size, u32)>, rates: Option<Rates>) -> FargateBill {
    let mut bill = FargateBill { pods: 0, cpu_milli: 0, memory_mib: 0, hourly: None };
    let mut micro = 0_i64;
    for (Size { cpu_milli, memory_mib }, pods) in sizes {
        bill.pods = bill.pods.saturating_add(pods);
        bill.cpu_milli += cpu_milli * i64::from(pods);
        bill.memory_mib += memory_mib * i64::from(pods);
        if let Some(Rates { vcpu_hour, gb_hour }) = rates {
            let of = |amount: i64, price: MicroUsd, unit: i64| (amount * price.0 + unit / 2) / unit;
            let each = of(cpu_milli, vcpu_hour, 1000) + of(memory_mib, gb_hour, 1024);
            micro = micro.saturating_add(each.saturating_mul(i64::from(pods)));
        }
    }
    bill.hourly = rates.map(|_| MicroUsd(micro));
    bill
}
