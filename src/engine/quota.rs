//! Launches that the account's quotas would refuse.

use std::collections::BTreeMap;

use super::Inputs;
use crate::catalog::{CapacityType, Quota, QuotaClass, Quotas};
use crate::ids::InstanceTypeName;
use crate::plan::wire::{Action, Diagnostic, Plan, ResourceChange};

/// Returns a warning for each quota of vCPUs that the plan would go beyond. What the account runs beside
/// the cluster is not counted: such a warning is certain, and its absence promises nothing.
pub(super) fn beyond(inputs: &Inputs, plan: &Plan) -> Vec<Diagnostic> {
    let Some(quotas) = &inputs.catalog.quotas else { return Vec::new() };
    let asked = asked(inputs, plan);
    // New machines come before old ones go: both run at the same time.
    let running = running(inputs);
    let warning = |(quota, asked): (Quota, i64)| {
        let most = quotas.get(quota)?;
        let runs = running.get(&quota).copied().unwrap_or(0);
        let sum = runs.saturating_add(asked);
        (sum > most).then(|| told(quota, (runs, asked), most))
    };
    asked.into_iter().filter_map(warning).collect()
}

fn told(quota: Quota, (runs, asked): (i64, i64), most: i64) -> Diagnostic {
    let (how, class) = quota;
    let code = Quotas::code(quota).unwrap_or_default();
    Diagnostic {
        severity: "warning".to_owned(),
        origin: None,
        object: format!("quota {code}"),
        message: format!(
            "the cluster runs {runs} vCPUs of {} {how} instances, the plan launches {asked} more \
             before any go, and the account may run {most}",
            class.words()
        ),
        hint: Some(format!(
            "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code \
             {code} --desired-value VCPUS"
        )),
    }
}

/// Returns the vCPUs that run, by quota.
fn running(inputs: &Inputs) -> BTreeMap<Quota, i64> {
    let mut running = BTreeMap::new();
    let active = inputs.observed.instances.values().filter(|instance| instance.is_active());
    for instance in active {
        let vcpus = vcpus(inputs, &instance.instance_type);
        add(&mut running, (instance.capacity_type, &instance.instance_type), vcpus);
    }
    running
}

/// Returns the vCPUs that the plan launches, by quota: machines of pools, and members of groups.
fn asked(inputs: &Inputs, plan: &Plan) -> BTreeMap<Quota, i64> {
    let mut asked = BTreeMap::new();
    for row in &plan.resource_changes {
        let Some(after) = row.change.after.as_ref().filter(|_| launches(row)) else { continue };
        let Some((kind, how)) = after.instance_type.as_ref().zip(after.capacity_type) else {
            continue;
        };
        add(&mut asked, (how, kind), vcpus(inputs, kind));
    }
    asked
}

/// Returns whether a row launches a machine. New members of groups have rows of their own.
fn launches(row: &ResourceChange) -> bool {
    row.change.actions.contains(&Action::Create)
}

/// Returns the vCPUs of a type; 0 where it is not known.
fn vcpus(inputs: &Inputs, kind: &InstanceTypeName) -> i64 {
    inputs.catalog.types.get(kind).map_or(0, |kind| kind.vcpus)
}

/// Adds vCPUs to the quota that a type counts against. What is reserved was counted as it was reserved.
fn add(
    sums: &mut BTreeMap<Quota, i64>,
    (how, kind): (CapacityType, &InstanceTypeName),
    vcpus: i64,
) {
    let Some(class) = QuotaClass::of(kind) else { return };
    if vcpus == 0 || how == CapacityType::Reserved {
        return;
    }
    let sum = sums.entry((how, class)).or_insert(0);
    *sum = sum.saturating_add(vcpus);
}
