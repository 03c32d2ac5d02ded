//! Defects of placement.

use super::fargate::{SIZE, fargate_pods};
use super::*;
use crate::demand::{FargatePods, Unsupported};
use crate::model::desired::{DeviceAmount, DeviceClaim, DeviceRequest, Scale, Workload};
use crate::model::ids::{NodeName, WorkloadId, WorkloadKind};
use crate::plan::wire::PlacementRow;
use crate::testing::pods::{pod_group, resources};
use crate::testing::world;

pub(super) const DEFECTS: &[Defect] = &[
    ("fit/resources", "more CPU than a new node has", |p, i| {
        requests(p, i, "batch", |requests| requests.cpu.0 = 1901);
    }),
    ("fit/resources", "more memory than a new node has", |p, i| {
        requests(p, i, "batch", |requests| requests.memory.0 = 8 << 30);
    }),
    ("fit/resources", "a resource that no node has", |p, i| {
        requests(p, i, "batch", |requests| {
            requests.extended.insert("nvidia.com/gpu".into(), 1);
        });
    }),
    ("fit/resources", "more pods than the kubelet admits", |p, i| {
        requests(p, i, "batch", |requests| requests.pods = 15);
    }),
    ("fit/resources", "more than the free resources of a retained node", |p, _| {
        move_pods(p, "batch", "3", "0");
    }),
    ("fit/daemons", "missing DaemonSet requests", |p, _| {
        explain(p, "3").daemons = Amount::default();
    }),
    ("fit/labels", "a node that the pods do not select", |_, i| {
        shape(i, "batch", |shape| {
            let other = [label("team", "api")].into();
            shape.nodes.any_of = vec![Requirements::from_labels(&other)];
        });
    }),
    ("fit/labels", "pods that no node matches", |_, i| {
        shape(i, "batch", |shape| shape.nodes.any_of.clear());
    }),
    ("fit/taints", "a taint that the pods do not tolerate", |_, i| {
        shape(i, "batch", |shape| shape.tolerations.clear());
    }),
    ("fit/node-name", "pods that require another node", |_, i| {
        shape(i, "batch", |shape| shape.nodes.name = Some("n0".to_owned()));
    }),
    ("fit/unsupported", "pods with an unsupported feature", |_, i| {
        shape(i, "batch", |shape| shape.unsupported.push(Unsupported::SchedulingGates));
    }),
    ("fit/devices", "claimed devices that are not requested", |_, i| {
        claim_devices(i, "gpu.nvidia.com");
    }),
    ("fit/devices", "claimed devices that are not known", |_, i| {
        claim_devices(i, "mig.nvidia.com");
    }),
    ("fit/cordoned", "pods on a cordoned node", |p, i| {
        i.observed.nodes.get_mut("n0").unwrap().unschedulable = true;
        move_pods(p, "batch", "3", "0");
    }),
    ("fit/stays", "a running pod that is not planned", |p, _| {
        explain(p, "0").pods.clear();
    }),
    ("fit/stays", "a pod of a wanted ordinal, beside surplus pods elsewhere", |_, i| {
        run_stateful_set(i, &[("db-0", "n0"), ("db-7", "n2"), ("db-8", "n2")]);
    }),
    ("fit/stays", "a pod of a wanted ordinal, beside a pod on Fargate", |_, i| {
        run_stateful_set(i, &[("db-1", "n0")]);
        let db = i.demand.groups.last_mut().unwrap();
        let on_fargate = fargate_pods("db", Ok(SIZE));
        let workload = db.workload.clone();
        i.demand.fargate.push(FargatePods { workload, pods: 1, ..on_fargate });
        db.counts.planned = 1;
    }),
    ("fit/gone", "pods on a removed node", |p, _| {
        explain(p, "1").pods.insert("shop/Deployment/api".into(), 1);
    }),
    ("fit/workload", "pods of an unknown workload", |p, _| {
        explain(p, "3").pods.insert("shop/Deployment/ghost".into(), 1);
    }),
    ("fit/placements", "an arriving pod without a placement", |p, _| {
        drop(p.capacity.placements.remove(0));
    }),
    ("fit/placements", "a placement of staying pods", |p, _| {
        let stays = PlacementRow { workload: workload("api"), address: address("0"), pods: 2 };
        p.capacity.placements.insert(0, stays);
    }),
    ("fit/placements", "a duplicate placement", |p, _| {
        let twice = p.capacity.placements[0].clone();
        p.capacity.placements.insert(0, twice);
    }),
];

/// Declares `batch` with a claim for one device of a class.
fn claim_devices(inputs: &mut Inputs, class: &str) {
    let mut template = crate::testing::pods::template(100, 100);
    template.spec.resource_claims = vec!["gpu".to_owned()];
    template.spec.resource_claim_templates = [("gpu".to_owned(), "one".to_owned())].into();
    let id = workload("batch");
    let request = DeviceRequest {
        name: "gpu".to_owned(),
        class: class.to_owned(),
        selectors: Vec::new(),
        amount: DeviceAmount::Exactly(1),
    };
    let claim = DeviceClaim { requests: vec![request], is_constrained: false };
    inputs.desired.claim_templates.insert((id.namespace.clone(), "one".to_owned()), claim);
    let origin = Origin::new("batch.yaml", 1);
    let declared = Workload::new(id.clone(), origin, Scale::Replicas(1), template.into());
    inputs.desired.workloads.insert(id, declared);
}

/// Declares a `StatefulSet` of two pods. Of its pods, only these run, each on a node.
pub(super) fn run_stateful_set(inputs: &mut Inputs, running: &[(&str, &str)]) {
    let id = WorkloadId { kind: WorkloadKind::StatefulSet, ..workload("db") };
    let template = crate::testing::pods::template(10, 10);
    let origin = Origin::new("db.yaml", 1);
    let declared = Workload::new(id.clone(), origin, Scale::Replicas(2), template.into());
    inputs.desired.workloads.insert(id.clone(), declared);
    let mut shape = PodShape::clone(&group(inputs, "api").shape);
    shape.requests = resources(10, 10);
    let mut db = pod_group(id.clone(), shape, 2);
    for (name, node) in running {
        *db.running.entry(NodeName::from(*node)).or_default() += 1;
        inputs.observed.pods.push(world::pod(name).owned_by(&id).on(node).into());
    }
    inputs.demand.groups.push(db);
}
