//! Warnings about launches that exceed the vCPU quotas of the account.

use std::collections::BTreeMap;

use super::Inputs;
use crate::model::code::Code;
use crate::model::ids::InstanceTypeName;
use crate::model::market::{CapacityType, Quota, QuotaClass, Quotas};
use crate::plan::wire::{Action, Diagnostic, Plan, ResourceChange};

/// Returns a warning for each vCPU quota that the plan would exceed.
///
/// Instances outside the cluster are ignored. The excess is therefore a lower bound, and the
/// absence of a warning guarantees nothing.
pub(super) fn quota_warnings(inputs: &Inputs, plan: &Plan) -> Vec<Diagnostic> {
    let Some(quotas) = &inputs.catalog.quotas else { return Vec::new() };
    let planned = planned_vcpus(inputs, plan);
    // Launches precede terminations, so both run at the same time.
    let running = running_vcpus(inputs);
    let warning = |(quota, planned): (Quota, i64)| {
        let most = quotas.get(quota)?;
        let runs = running.get(&quota).copied().unwrap_or(0);
        let sum = runs.saturating_add(planned);
        (sum > most).then(|| quota_warning(quota, runs, planned, most))
    };
    planned.into_iter().filter_map(warning).collect()
}

fn quota_warning(quota: Quota, runs: i64, planned: i64, most: i64) -> Diagnostic {
    let (capacity_type, class) = quota;
    let code = Quotas::code(quota).unwrap_or_default();
    Diagnostic::warning(
        format!("quota {code}"),
        format!(
            "the cluster runs {runs} vCPUs of {} {capacity_type} instances, the plan launches \
             {planned} more before it terminates any, and the quota of the account is {most}",
            class.service_quotas_name()
        ),
    )
    .hint(format!(
        "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code \
             {code} --desired-value VCPUS"
    ))
    .code(Code::QuotaExceeded)
}

/// Returns the running vCPUs, by quota.
fn running_vcpus(inputs: &Inputs) -> BTreeMap<Quota, i64> {
    let mut running = BTreeMap::new();
    let active = inputs.observed.instances.values().filter(|instance| instance.is_active());
    for instance in active {
        let vcpus = vcpus(inputs, &instance.instance_type);
        add_vcpus(&mut running, instance.capacity_type, &instance.instance_type, vcpus);
    }
    running
}

/// Returns the launched vCPUs of the plan, by quota, including members of groups.
fn planned_vcpus(inputs: &Inputs, plan: &Plan) -> BTreeMap<Quota, i64> {
    let mut planned = BTreeMap::new();
    for row in &plan.resource_changes {
        let Some(after) = row.change.after.as_ref().filter(|_| is_launch(row)) else { continue };
        let Some((kind, capacity_type)) = after.instance_type.as_ref().zip(after.capacity_type)
        else {
            continue;
        };
        add_vcpus(&mut planned, capacity_type, kind, vcpus(inputs, kind));
    }
    planned
}

/// Returns true if a row launches an instance. New members of groups have separate rows.
fn is_launch(row: &ResourceChange) -> bool {
    row.change.actions.contains(&Action::Create)
}

/// Returns the vCPUs of an instance type; 0 if unknown.
fn vcpus(inputs: &Inputs, kind: &InstanceTypeName) -> i64 {
    inputs.catalog.types.get(kind).map_or(0, |kind| kind.vcpus)
}

/// Adds vCPUs to the quota of an instance type. Reserved capacity is skipped, because it has
/// counted since its reservation.
fn add_vcpus(
    sums: &mut BTreeMap<Quota, i64>,
    capacity_type: CapacityType,
    kind: &InstanceTypeName,
    vcpus: i64,
) {
    let Some(class) = QuotaClass::from_instance_type(kind) else { return };
    if vcpus == 0 || capacity_type == CapacityType::Reserved {
        return;
    }
    let sum = sums.entry((capacity_type, class)).or_insert(0);
    *sum = sum.saturating_add(vcpus);
}
