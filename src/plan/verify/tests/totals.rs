//! Defects of the totals of pods and nodes, and of the cost.

use super::*;
use crate::model::desired::Unresolved;
use crate::model::ids::WorkloadKind;
use crate::plan::wire::{EvictionRow, UnresolvedRow};

pub(super) const TOTALS: &[Defect] = &[
    ("totals/demand", "another count than the demand's", |p, _| {
        p.capacity.demand[0].counts.planned += 1;
    }),
    ("totals/demand", "other requests than the demand's", |p, _| {
        p.capacity.demand[0].requests.cpu_milli -= 1;
    }),
    ("totals/demand", "a missing workload", |p, _| drop(p.capacity.demand.pop())),
    ("totals/demand", "a duplicate workload in the demand", |_, i| {
        let twice = i.demand.groups[0].clone();
        i.demand.groups.push(twice);
    }),
    ("totals/daemons", "missing DaemonSets", |p, _| p.capacity.daemons.clear()),
    ("totals/unschedulable", "no unschedulable pods", |p, _| p.capacity.unschedulable[0].pods = 0),
    ("totals/unschedulable", "no unschedulable workload", |p, _| {
        p.capacity.unschedulable[0].workload.kind = WorkloadKind::Job;
    }),
    ("totals/eviction", "a pod of equal priority is evicted", |p, _| {
        let row = &mut p.capacity.unschedulable[0];
        let evicts = [("shop/Deployment/api".to_owned(), 1)].into();
        row.eviction = Some(EvictionRow { lets_in: 1, evicts });
    }),
    ("totals/group", "missing unschedulable pods", |p, _| p.capacity.unschedulable.clear()),
    ("totals/group", "a pod placed twice", |p, _| {
        *explain(p, "3").pods.get_mut("shop/Deployment/batch").unwrap() += 1;
    }),
    ("totals/pods", "a sum that does not add up", |p, _| p.capacity.pods.total += 1),
    ("totals/pods", "node pods counted as Fargate pods", |p, _| {
        p.capacity.pods.fargate = 1;
        p.capacity.pods.placed -= 1;
    }),
    ("totals/pods", "an unresolved workload that is not counted", |_, i| {
        i.demand.unresolved.push(Unresolved {
            origin: Origin::new("shop.yaml", 9),
            object: "HelmRelease shop/web".to_owned(),
            reason: "not rendered".to_owned(),
        });
    }),
    ("totals/pods", "an unknown unresolved workload", |p, _| {
        p.capacity.pods.unresolved = 1;
        p.capacity.unresolved.push(UnresolvedRow {
            running: 0,
            object: "HelmRelease shop/web".to_owned(),
            origin: Origin::new("shop.yaml", 9),
            reason: "not rendered".to_owned(),
        });
    }),
    ("totals/moved", "moved pods that are not counted", |p, _| p.capacity.pods.moved = 0),
    ("totals/summary", "a removal that is not counted", |p, _| p.summary.destroy = 1),
    ("totals/summary", "a removal without the destructive flag", |p, _| {
        p.summary.destructive = false;
    }),
    ("totals/summary", "a node that is not counted", |p, _| p.summary.nodes.before = 9),
    ("totals/summary", "a blocked node that is not counted", |p, _| p.summary.blocked = 0),
];

pub(super) const COST: &[Defect] = &[
    ("cost/price", "a launch at half its price", |p, _| {
        explain(p, "3").hourly_after = Some(MicroUsd(96_000));
    }),
    ("cost/price", "a launch without a price", |p, _| explain(p, "3").hourly_after = None),
    ("cost/price", "a price of a node that does not exist", |p, _| {
        explain(p, "3").hourly_before = Some(MicroUsd(1));
    }),
    ("cost/sum", "a sum that does not add up", |p, _| p.capacity.cost.hourly_after.0 += 1),
    ("cost/sum", "a month with another number of hours", |p, _| {
        p.capacity.cost.monthly_delta = MicroUsd(-11_000 * 720);
    }),
    ("cost/sum", "a saving that does not exist", |p, _| p.capacity.cost.hourly_delta.0 -= 1),
    ("cost/source", "another currency", |p, _| p.capacity.cost.currency = "EUR".to_owned()),
    ("cost/source", "another price list", |p, _| p.capacity.cost.prices.is_other_region = true),
    ("cost/unpriced", "a node without a price that is not counted", |p, _| {
        p.capacity.cost.unpriced = 0;
    }),
    ("cost/estimated", "an estimate that is not counted", |_, i| {
        i.catalog.types.get_mut("c5.large").unwrap().offerings[0].estimated = true;
    }),
    ("cost/bound", "a negative bound", |p, _| {
        p.capacity.cost.lower_bound_hourly = MicroUsd(-1);
    }),
    ("cost/bound", "a bound above the price", |p, _| {
        p.capacity.unschedulable.clear();
        p.capacity.cost.lower_bound_hourly = MicroUsd(373_001);
    }),
    ("cost/gap", "a gap that is too small", |p, _| {
        p.capacity.cost.gap_percent = "24.32".to_owned();
    }),
    ("cost/gap", "a gap without decimals", |p, _| p.capacity.cost.gap_percent = "24".to_owned()),
];
