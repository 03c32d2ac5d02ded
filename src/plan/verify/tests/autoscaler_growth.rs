//! Tests of groups that Cluster Autoscaler scales up, with planted defects.

use super::groups::{NAME, with_group};
use super::*;
use crate::model::cluster_autoscaler::AutoscalerFlags;
use crate::model::pod::PodTemplate;
use crate::plan::wire::AutoscalerGrowthRow;
use crate::testing::pods::{self, deployment, no_schedule};
use crate::testing::world::live_workload;

const BATCH: &str = "shop/Deployment/batch";

/// Returns the plan that resizes a group, in a cluster whose Cluster Autoscaler adds one node for
/// pods of `shop/batch`.
fn with_growth() -> (Plan, Inputs) {
    let (mut plan, mut inputs) = with_group();
    let id = deployment("kube-system", "cluster-autoscaler");
    let flags =
        AutoscalerFlags { groups: [(NAME.into(), (0, 9))].into(), ..AutoscalerFlags::default() };
    let template =
        PodTemplate { cluster_autoscaler: Some(Box::new(flags)), ..pods::template(0, 0) };
    let mut live = live_workload(&id, 1);
    live.template = Some(id.to_string());
    inputs.observed.templates.insert(id.to_string(), template.into());
    inputs.observed.workloads.push(live);
    plan.capacity.cluster_autoscaler = vec![AutoscalerGrowthRow {
        address: "autoscaling_group.web".into(),
        autoscaler: "kube-system/cluster-autoscaler".to_owned(),
        nodes: 1,
        maximum: 6,
        hourly: None,
        pods: [(BATCH.to_owned(), 1)].into(),
        instead: [].into(),
    }];
    (plan, inputs)
}

fn is_found(plan: &Plan, inputs: &Inputs) -> bool {
    verify(plan, &inputs.facts()).iter().any(|found| found.rule == "autoscaler/growth")
}

fn growth(plan: &mut Plan) -> &mut AutoscalerGrowthRow {
    &mut plan.capacity.cluster_autoscaler[0]
}

#[test]
fn every_growth_defect_is_found() {
    type Plant = fn(&mut Plan, &mut Inputs);
    let (plan, inputs) = with_growth();
    assert!(!is_found(&plan, &inputs));
    let defects: [(&str, Plant); 5] = [
        ("an untolerated taint", |_, i| pool(i).taints.push(no_schedule("gpu", "true"))),
        ("a priority below the cutoff", |_, i| shape(i, "batch", |shape| shape.priority = -11)),
        ("suspended launches", |_, i| {
            i.observed.groups.get_mut(NAME).unwrap().suspended.push("Launch".to_owned());
        }),
        // Of three members that exist, none leaves before the two new ones are there.
        ("room that the plan fills itself", |p, i| {
            growth(p).maximum = 5;
            i.observed.groups.get_mut(NAME).unwrap().max = 5;
        }),
        ("pods for which only the largest type has room", |p, _| {
            growth(p).pods.insert(BATCH.to_owned(), 2);
        }),
    ];
    for (what, plant) in defects {
        let (mut plan, mut inputs) = with_growth();
        plant(&mut plan, &mut inputs);
        assert!(is_found(&plan, &inputs), "{what}");
    }
}

/// The types of starting members are not known to the planner.
#[test]
fn members_of_other_types_are_no_defect() {
    let (mut plan, mut inputs) = with_growth();
    growth(&mut plan).pods.insert(BATCH.to_owned(), 2);
    inputs.desired.node_groups.get_mut("web").unwrap().types.clear();
    inputs.observed.groups.get_mut(NAME).unwrap().types.clear();
    assert!(!is_found(&plan, &inputs));
}
