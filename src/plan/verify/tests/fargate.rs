//! Tests of the Fargate rules, with a valid plan and planted defects.

use super::*;
use crate::demand::{Counts, Decider, FargatePods, FargateRejection};
use crate::model::fargate::{FargateSize, Rates};
use crate::model::units::{Bytes, MilliCpu};
use crate::plan::wire::{DemandRow, FARGATE_REASON, FargateBill, FargateCost, FargateRow};
use crate::testing::plan::{demand_row, rejection, unschedulable};
use crate::testing::pods::resources;

pub(super) const SIZE: FargateSize = FargateSize { cpu_milli: 1_000, memory_mib: 2_048 };
const RATES: Rates = Rates { vcpu_hour: MicroUsd(40_480), gb_hour: MicroUsd(4_445) };

pub(super) fn fargate_pods(name: &str, size: Result<FargateSize, FargateRejection>) -> FargatePods {
    FargatePods {
        workload: workload(name),
        origin: None,
        counts: Counts { floor: 2, live: 2, ceiling: 2, planned: 2 },
        decided_by: Decider::Git,
        pods: 2,
        profile: Some("web".to_owned()),
        requests: resources(1_000, 1_024),
        size,
        running: [(SIZE, 1)].into(),
    }
}

fn bill(pods: u32, hourly: i64) -> FargateBill {
    let count = i64::from(pods);
    FargateBill {
        pods,
        cpu_milli: 1_000 * count,
        memory_mib: 2_048 * count,
        hourly: Some(MicroUsd(hourly)),
    }
}

/// Returns the valid plan with two pods that Fargate runs and two that it cannot run.
fn with_fargate() -> (Plan, Inputs) {
    let (mut plan, mut inputs) = (plan(), inputs());
    let misfit =
        FargateRejection { reason: "they use hostNetwork".into(), remedy: "do not".into() };
    inputs.demand.fargate =
        vec![fargate_pods("runs", Ok(SIZE)), fargate_pods("stuck", Err(misfit))];
    inputs.desired.fargate_rates = Some(RATES);
    let capacity = &mut plan.capacity;
    for (name, size) in [("runs", Some(SIZE)), ("stuck", None)] {
        let of = fargate_pods(name, Ok(SIZE));
        let fargate = Some(FargateRow { profile: of.profile, pods: 2, size });
        let row = demand_row(of.workload, of.counts, Amount::from(&of.requests));
        capacity.demand.push(DemandRow { fargate, ..row });
    }
    let reasons = vec![rejection(FARGATE_REASON, "", 0)];
    capacity.unschedulable.push(unschedulable(workload("stuck"), 2, reasons));
    capacity.pods.total += 4;
    capacity.pods.fargate = 2;
    capacity.pods.unschedulable += 2;
    capacity.cost.fargate = Some(FargateCost {
        rates: Some(RATES),
        before: bill(2, 2 * 49_370),
        after: bill(2, 2 * 49_370),
    });
    (plan.with_identity(), inputs)
}

const DEFECTS: &[Defect] = &[
    ("fargate/row", "no Fargate row", |p, _| {
        p.capacity.demand.iter_mut().for_each(|row| row.fargate = None);
    }),
    ("fargate/row", "another profile", |p, _| {
        let row = p.capacity.demand.iter_mut().find_map(|row| row.fargate.as_mut());
        row.unwrap().profile = None;
    }),
    ("fargate/size", "a size that is too small", |_, i| {
        i.demand.fargate[0].requests.memory = Bytes::gib(2);
    }),
    ("fargate/size", "a size that is too large", |_, i| {
        i.demand.fargate[0].requests.cpu = MilliCpu(250);
    }),
    ("fargate/size", "a size that is not offered", |_, i| {
        i.demand.fargate[0].size = Ok(FargateSize { cpu_milli: 1_000, memory_mib: 2_000 });
    }),
    ("fargate/count", "pods on nodes and on Fargate", |_, i| i.demand.fargate[0].pods = 1),
    ("fargate/stuck", "unrunnable pods that are not reported", |p, _| {
        p.capacity.unschedulable.pop();
    }),
    ("fargate/cost", "no cost", |p, _| p.capacity.cost.fargate = None),
    ("fargate/cost", "half the price", |p, _| {
        p.capacity.cost.fargate.as_mut().unwrap().after.hourly = Some(MicroUsd(49_370));
    }),
    ("fargate/cost", "undeclared prices", |_, i| i.desired.fargate_rates = None),
    ("fargate/node", "a Fargate node with a row", |_, i| {
        let node = i.observed.nodes.values_mut().next().unwrap();
        node.labels.extend([label("eks.amazonaws.com/compute-type", "fargate")]);
    }),
    ("totals/pods", "a total that is too small", |p, _| p.capacity.pods.fargate -= 1),
    ("totals/demand", "a missing Fargate workload", |p, _| drop(p.capacity.demand.pop())),
];

#[test]
fn plan_with_fargate_pods_breaks_no_rule() {
    let (plan, inputs) = with_fargate();
    assert_eq!(verify(&plan, &inputs.facts()), []);
}

#[test]
fn every_fargate_defect_is_found() {
    for (rule, defect, plant) in DEFECTS {
        let (mut plan, mut inputs) = with_fargate();
        plant(&mut plan, &mut inputs);
        let found = verify(&plan.with_identity(), &inputs.facts());
        assert!(found.iter().any(|v| v.rule == *rule), "{rule}: {defect}: {found:?}");
    }
}
