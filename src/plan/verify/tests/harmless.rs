//! Valid changes that a rule must accept.

use super::*;
use crate::model::observed::InstanceState;

pub(super) const HARMLESS: &[Defect] = &[
    ("fit/resources", "a retained node that was overcommitted before", |_, i| {
        shape(i, "api", |shape| shape.tolerations.clear());
    }),
    ("fit/labels", "staying pods on a node that no longer admits them", |p, i| {
        i.observed.nodes.get_mut("n0").unwrap().labels.remove("team");
        edit_kept_node(p, |state| drop(state.labels.remove("team")));
        explain(p, "0").daemons = Amount::default();
    }),
    ("fit/stays", "pods that no longer tolerate their node are replaced on other nodes", |p, i| {
        shape(i, "api", |shape| shape.tolerations.clear());
        explain(p, "0").pods.clear();
    }),
    ("fit/stays", "a StatefulSet deletes ordinals while wanted ones are pending", |_, i| {
        super::fit::run_stateful_set(i, &[("db-7", "n0"), ("db-8", "n0")]);
    }),
    ("limits/resources", "a pool above a lowered limit that does not grow", |p, i| {
        pool(i).limits.resources = [("cpu".into(), 1)].into();
        for key in ["2", "3"] {
            let states = &mut row(p, key).change;
            states.after.iter_mut().for_each(|state| state.pool = None);
        }
    }),
    ("observed/rows", "a node whose instance is shutting down needs no row", |p, i| {
        drop(p.resource_changes.remove(0));
        i.observed.instances.get_mut("i-0").unwrap().state = InstanceState::ShuttingDown;
    }),
    ("observed/rows", "an unmanaged instance needs no row", |p, i| {
        drop(p.resource_changes.remove(0));
        i.observed.nodes.remove("n0");
        i.observed.instances.get_mut("i-0").unwrap().tags.clear();
    }),
    ("launch/key", "the key of a terminated instance may be reused", |_, i| {
        let mut terminated = i.observed.instances["i-0"].clone();
        (terminated.id, terminated.state) = ("i-7".into(), InstanceState::Terminated);
        terminated.tags.insert(tag::KEY.to_owned(), "3".to_owned());
        i.observed.instances.insert(terminated.id.clone(), terminated);
    }),
    ("launch/key", "a partial plan reserves the keys of nodes outside of it", |p, _| {
        p.complete = false;
        rename(p, "3", "4");
    }),
    ("cost/bound", "a bound above the price is valid if pods are unschedulable", |p, _| {
        p.capacity.cost.lower_bound_hourly = MicroUsd(373_001);
    }),
    ("ownership/pinned", "a required removal ignores do-not-disrupt", |p, i| {
        shape(i, "api", |shape| shape.do_not_disrupt = true);
        explain(p, "2").retire_reason = Some(RetireReason::Requested);
    }),
    ("ownership/pinned", "a pod of a Job that survives its eviction", |_, i| {
        super::observed::run_job(i, 6);
    }),
    ("ownership/pinned", "a drain that ends by force ignores do-not-disrupt of pods", |p, i| {
        shape(i, "api", |shape| shape.do_not_disrupt = true);
        pool(i).termination_grace_period = Some(SignedDuration::from_mins(1));
        explain(p, "2").retire_reason = Some(drifted());
        row(p, "2").change.termination_grace_seconds = Some(60);
    }),
    ("cost/gap", "a gap may be rounded up", |p, _| {
        p.capacity.cost.gap_percent = "24.34".to_owned();
    }),
    ("observed/node", "a startup taint may still be present", |p, i| {
        let starting = pool(i).startup_taints[0].clone();
        i.observed.nodes.get_mut("n0").unwrap().taints.push(starting);
        let startup = after(p, "3").startup_taints.clone();
        before(p, "0").startup_taints.clone_from(&startup);
        after(p, "0").startup_taints = startup;
    }),
    ("fit/daemons", "DaemonSet pods tolerate pressure taints", |p, i| {
        let pressure = crate::model::pod::Taint {
            key: "node.kubernetes.io/memory-pressure".into(),
            value: "".into(),
            effect: crate::model::pod::TaintEffect::NoSchedule,
        };
        i.observed.nodes.get_mut("n0").unwrap().taints.push(pressure.clone());
        before(p, "0").taints.push(pressure.clone());
        after(p, "0").taints.push(pressure);
    }),
];
