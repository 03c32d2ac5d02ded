//! Fargate: every pod on Fargate has a sufficient size, is counted once, and is priced.

use std::collections::BTreeMap;

use super::Violations;
use super::context::{CheckContext, total};
use crate::demand::FargatePods;
use crate::model::fargate::{FargateSize, Rates};
use crate::model::ids::workload_key;
use crate::model::observed::Node;
use crate::model::units::MicroUsd;
use crate::plan::wire::{FARGATE_REASON, FargateBill, FargateCost, FargateRow, UnschedulableRow};

/// Memory that Fargate reserves in each microVM, in MiB.
const RESERVED_MIB: i64 = 256;
const MIB: i64 = 1 << 20;

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    nodes(context, violations);
    for (key, fargate_pods) in &context.fargate {
        rows(context, key, fargate_pods, violations);
        unrunnable(context, key, fargate_pods, violations);
    }
    cost(context, violations);
}

/// Checks that no row plans a Fargate node.
fn nodes(context: &CheckContext<'_>, violations: &mut Violations) {
    let is_fargate = |row: &&super::context::CheckedRow<'_>| row.node.is_some_and(Node::is_fargate);
    for row in context.rows.iter().filter(is_fargate) {
        violations.report_row(
            "fargate/node",
            row.address,
            "Fargate runs this node, so it must not have a row",
        );
    }
}

fn rows(
    context: &CheckContext<'_>,
    key: &str,
    fargate_pods: &FargatePods,
    violations: &mut Violations,
) {
    let row = context.plan.capacity.demand.iter().find(|row| workload_key(&row.workload) == key);
    let stated = row.and_then(|row| row.fargate.as_ref());
    let size = fargate_pods.size.as_ref().ok();
    let actual = FargateRow {
        profile: fargate_pods.profile.clone(),
        pods: fargate_pods.pods,
        size: size.copied(),
    };
    if stated != Some(&actual) {
        violations.report_plan(
            "fargate/row",
            format!("the row of {key} does not match its pods on Fargate"),
        );
    }
    if let Some(size) = size
        && !is_least(*size, fargate_pods)
    {
        let FargateSize { cpu_milli, memory_mib } = size;
        let fault = format!("{key}: {cpu_milli}m and {memory_mib} MiB is not the size of its pods");
        violations.report_plan("fargate/size", fault);
    }
    let on_nodes = context.groups.get(key).map_or(0, |group| group.counts.planned);
    if on_nodes.saturating_add(fargate_pods.pods) != fargate_pods.counts.planned {
        let fault = format!(
            "{key}: {on_nodes} pods for nodes and {} for Fargate are not the {} planned",
            fargate_pods.pods, fargate_pods.counts.planned
        );
        violations.report_plan("fargate/count", fault);
    }
}

/// Returns whether `size` is the smallest offered size that fits a pod and the reserved memory.
fn is_least(size: FargateSize, fargate_pods: &FargatePods) -> bool {
    let (cpu, bytes) = (fargate_pods.requests.cpu.0, fargate_pods.requests.memory.0);
    let fits = |(cpu_milli, memory_mib): (i64, i64)| {
        cpu_milli >= cpu && (memory_mib - RESERVED_MIB).saturating_mul(MIB) >= bytes
    };
    let least = sizes().filter(|size| fits(*size)).min();
    least == Some((size.cpu_milli, size.memory_mib))
}

/// Returns every Fargate size in the EKS documentation, in thousandths of a vCPU and MiB.
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

/// Returns whether a row is about pods that Fargate cannot run.
pub(super) fn is_unrunnable(row: &UnschedulableRow) -> bool {
    row.reasons.iter().any(|why| why.reason == FARGATE_REASON)
}

fn unrunnable(
    context: &CheckContext<'_>,
    key: &str,
    fargate_pods: &FargatePods,
    violations: &mut Violations,
) {
    let rows = context.plan.capacity.unschedulable.iter().filter(|row| is_unrunnable(row));
    let stated = total(rows.filter(|row| workload_key(&row.workload) == key), |row| row.pods);
    let actual = if fargate_pods.size.is_err() { fargate_pods.pods } else { 0 };
    if stated != actual {
        let fault = format!(
            "{key}: {stated} pods are stated as not runnable on Fargate, but \
                             {actual} are"
        );
        violations.report_plan("fargate/stuck", fault);
    }
}

fn cost(context: &CheckContext<'_>, violations: &mut Violations) {
    let rates = context.facts.desired.fargate_rates;
    let demand = &context.facts.demand.fargate;
    let mut live: BTreeMap<FargateSize, u32> = BTreeMap::new();
    for (size, pods) in demand.iter().flat_map(|fargate_pods| &fargate_pods.running) {
        *live.entry(*size).or_default() += pods;
    }
    let planned = demand
        .iter()
        .filter_map(|fargate_pods| Some((*fargate_pods.size.as_ref().ok()?, fargate_pods.pods)));
    let before = bill(live.into_iter(), rates);
    let after = bill(planned, rates);
    let actual =
        (before.pods > 0 || after.pods > 0).then_some(FargateCost { rates, before, after });
    violations.require_equal(
        "fargate/cost",
        "cost.fargate",
        &context.plan.capacity.cost.fargate,
        &actual,
    );
}

fn bill(sizes: impl Iterator<Item = (FargateSize, u32)>, rates: Option<Rates>) -> FargateBill {
    let mut bill = FargateBill { pods: 0, cpu_milli: 0, memory_mib: 0, hourly: None };
    let mut micro = 0_i64;
    for (FargateSize { cpu_milli, memory_mib }, pods) in sizes {
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
