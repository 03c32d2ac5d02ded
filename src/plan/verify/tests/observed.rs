//! Defects of the states before, and of ownership.

use super::*;
use crate::model::ids::{WorkloadId, WorkloadKind};
use crate::model::job::{JobRetries, OnEviction};
use crate::model::observed::LiveJob;
use crate::testing::pods::pod_group;
use crate::testing::world;

pub(super) const OBSERVED: &[Defect] = &[
    ("observed/exists", "an unobserved instance", |p, _| {
        before(p, "1").instance_id = Some("i-7".into());
    }),
    ("observed/exists", "an unobserved node", |p, _| {
        edit_kept_node(p, |state| state.node = Some("n7".into()));
    }),
    ("observed/exists", "a row without an instance", |p, _| {
        edit_kept_node(p, |state| state.instance_id = None);
    }),
    ("observed/instance", "another type", |p, _| {
        edit_kept_node(p, |state| state.instance_type = Some("m5.xlarge".into()));
    }),
    ("observed/instance", "another zone", |p, _| {
        edit_kept_node(p, |state| state.zone = Some("us-east-1b".into()));
    }),
    ("observed/instance", "another key", |_, i| {
        let instance = i.observed.instances.get_mut("i-0").unwrap();
        instance.tags.insert(tag::KEY.to_owned(), "5".to_owned());
    }),
    ("observed/node", "labels that the node does not have", |p, _| {
        edit_kept_node(p, |state| state.labels.extend([label("a", "b")]));
    }),
    ("observed/node", "a missing taint", |p, _| edit_kept_node(p, |state| state.taints.clear())),
    ("observed/node", "another node of the same name", |p, _| {
        edit_kept_node(p, |state| state.node_uid = Some("uid-7".into()));
    }),
    ("observed/amounts", "more allocatable CPU than the node has", |p, _| {
        edit_kept_node(p, |state| state.allocatable.cpu_milli += 1000);
    }),
    ("observed/amounts", "more allocatable memory than an instance will have", |p, i| {
        i.observed.nodes.remove("n0");
        edit_kept_node(p, |state| {
            (state.node, state.node_uid) = (None, None);
            state.allocatable.memory_bytes += 1;
        });
    }),
    ("observed/rows", "a node without a row", |p, _| drop(p.resource_changes.pop())),
    ("observed/rows", "a managed instance without a row", |p, i| {
        drop(p.resource_changes.remove(0));
        i.observed.nodes.remove("n0");
    }),
    ("observed/rows", "a node with two rows", |p, _| {
        let mut twice = p.resource_changes[4].clone();
        (twice.name, twice.address) = ("n99".to_owned(), "kubernetes_node.n99".into());
        p.resource_changes.push(twice);
    }),
];

pub(super) const OWNERSHIP: &[Defect] = &[
    ("ownership/ours", "an instance without our tags", |_, i| {
        i.observed.instances.get_mut("i-1").unwrap().tags.clear();
    }),
    ("ownership/ours", "an instance of another cluster", |_, i| {
        let instance = i.observed.instances.get_mut("i-1").unwrap();
        instance.tags.insert(tag::CLUSTER.to_owned(), "other".to_owned());
    }),
    ("ownership/ours", "an unobserved instance", |_, i| {
        i.observed.instances.remove("i-1");
    }),
    ("ownership/ours", "an unmanaged node", |p, _| {
        let row = &mut p.resource_changes[4].change;
        (row.actions, row.after) = (vec![Action::Delete], None);
    }),
    ("ownership/node", "a node with another UID", |_, i| {
        i.observed.nodes.get_mut("n1").unwrap().uid = "uid-7".into();
    }),
    ("ownership/pinned", "a node with a do-not-disrupt annotation", |_, i| {
        let node = i.observed.nodes.get_mut("n1").unwrap();
        node.annotations.insert("karpenter.sh/do-not-disrupt".to_owned(), "true".to_owned());
    }),
    ("ownership/pinned", "a pod with a do-not-disrupt annotation", |_, i| {
        shape(i, "api", |shape| shape.do_not_disrupt = true);
    }),
    ("ownership/pinned", "a pod whose Job might fail without it", |_, i| run_job(i, 0)),
    ("ownership/pinned", "a drifted node whose pod must not be moved", |p, i| {
        shape(i, "api", |shape| shape.do_not_disrupt = true);
        explain(p, "2").retire_reason = Some(drifted());
    }),
    (
        "ownership/stranded",
        "a replacement for cost that takes the place of running pods",
        |p, _| {
            explain(p, "2").pods.remove("shop/Deployment/api");
        },
    ),
    ("ownership/grace", "a grace period that the pool does not declare", |p, _| {
        explain(p, "2").retire_reason = Some(drifted());
        row(p, "2").change.termination_grace_seconds = Some(60);
    }),
    ("ownership/grace", "a grace period of a removal that saves cost", |p, i| {
        pool(i).termination_grace_period = Some(SignedDuration::from_mins(1));
        row(p, "2").change.termination_grace_seconds = Some(60);
    }),
    ("ownership/grace", "a drifted node without the grace period of its pool", |p, i| {
        pool(i).termination_grace_period = Some(SignedDuration::from_mins(1));
        explain(p, "2").retire_reason = Some(drifted());
    }),
    ("ownership/errored", "an errored plan that deletes", |p, _| p.errored = true),
    ("ownership/unknown", "a partial observation", |_, i| {
        let partial = Completeness::Partial { reason: "throttled".to_owned() };
        i.observed.sources.insert("kubernetes".to_owned(), partial);
    }),
    ("ownership/hidden", "a node that disappears without a delete action", |p, _| {
        row(p, "1").change.actions = vec![Action::Update];
    }),
];

/// Runs a pod of a Job on the node that the plan replaces.
pub(super) fn run_job(inputs: &mut Inputs, backoff_limit: u32) {
    let id = WorkloadId { kind: WorkloadKind::Job, ..workload("import") };
    let retries = JobRetries { backoff_limit, per_index: None, on_eviction: OnEviction::Counted };
    inputs.observed.jobs.push(LiveJob { id: id.clone(), retries, failed: 0 });
    inputs.observed.pods.push(world::pod("import").owned_by(&id).on("n2").into());
    let shape = PodShape::clone(&group(inputs, "api").shape);
    let mut import = pod_group(id, shape, 1);
    import.running.insert("n2".into(), 1);
    inputs.demand.groups.push(import);
}
