mod fargate;
mod groups;
mod pools;

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::catalog::CapacityType;
use crate::demand::{PodGroup, PodShape, Unsupported};
use crate::fleet::{Completeness, InstanceState, tag};
use crate::ids::{Origin, WorkloadKind};
use crate::manifest::{Problem, Severity, Unresolved};
use crate::plan::fixture::{Inputs, address, inputs, plan, sealed, workload};
use crate::plan::wire::{
    Action, Amount, Condition, EvictionRow, ExplainRow, NodeState, PlacementRow, Precondition,
    ResourceChange, ResourceKind, UnresolvedRow, Wave, WaveStep,
};
use crate::requirement::{Requirements, key, label};
use crate::solve::RetireReason;
use crate::units::{MicroUsd, Resources};

/// A defect: the rule that finds it, what it is, and how it is planted.
type Defect = (&'static str, &'static str, fn(&mut Plan, &mut Inputs));

fn row<'a>(plan: &'a mut Plan, key: &str) -> &'a mut ResourceChange {
    let address = address(key);
    plan.resource_changes.iter_mut().find(|row| row.address == address).unwrap()
}

fn before<'a>(plan: &'a mut Plan, key: &str) -> &'a mut NodeState {
    row(plan, key).change.before.as_mut().unwrap()
}

fn after<'a>(plan: &'a mut Plan, key: &str) -> &'a mut NodeState {
    row(plan, key).change.after.as_mut().unwrap()
}

/// Changes both states of a row that is kept.
fn kept(plan: &mut Plan, edit: fn(&mut NodeState)) {
    edit(before(plan, "0"));
    edit(after(plan, "0"));
}

fn explain<'a>(plan: &'a mut Plan, key: &str) -> &'a mut ExplainRow {
    let address = address(key);
    plan.capacity.explain.iter_mut().find(|row| row.address == address).unwrap()
}

fn group<'a>(inputs: &'a mut Inputs, name: &str) -> &'a mut PodGroup {
    let id = workload(name);
    inputs.demand.groups.iter_mut().find(|group| group.workload == id).unwrap()
}

fn shape(inputs: &mut Inputs, name: &str, edit: fn(&mut PodShape)) {
    let group = group(inputs, name);
    let mut shape = PodShape::clone(&group.shape);
    edit(&mut shape);
    group.shape = shape.into();
}

/// Changes what a group asks for, in the demand and in the plan's row of it.
fn requests(plan: &mut Plan, inputs: &mut Inputs, name: &str, edit: fn(&mut Resources)) {
    let group = group(inputs, name);
    let mut shape = PodShape::clone(&group.shape);
    edit(&mut shape.requests);
    let row = plan.capacity.demand.iter_mut().find(|row| row.workload == group.workload);
    row.unwrap().requests = Amount::from(&shape.requests);
    group.shape = shape.into();
}

fn pool(inputs: &mut Inputs) -> &mut crate::manifest::Pool {
    inputs.desired.pools.get_mut("web").unwrap()
}

fn problem() -> Problem {
    Problem {
        origin: Origin::new("shop.yaml", 3),
        severity: Severity::Error,
        object: "Deployment shop/api".to_owned(),
        message: "wrong".to_owned(),
        hint: None,
    }
}

/// Moves `pods` pods of a workload that come from one node to another, in every place that says so.
fn move_pods(plan: &mut Plan, name: &str, from: &str, to: &str) {
    let key = format!("shop/Deployment/{name}");
    let pods = explain(plan, from).pods.remove(&key).unwrap();
    *explain(plan, to).pods.entry(key).or_default() += pods;
    let rows = &mut plan.capacity.placements;
    for row in rows.iter_mut() {
        if row.workload == workload(name) && row.address == address(from) {
            row.address = address(to);
        }
    }
    rows.sort();
}

/// Renames a row and everything that refers to it.
fn rename(plan: &mut Plan, key: &str, to: &str) {
    let old = address(key);
    let moved = row(plan, key);
    (moved.address, moved.index) = (address(to), Some(to.to_owned()));
    if let Some(after) = &mut moved.change.after {
        after.labels.extend([label(crate::fleet::KEY_LABEL, to)]);
    }
    let capacity = &mut plan.capacity;
    let addresses = capacity.waves.iter_mut().flat_map(|wave| &mut wave.addresses);
    let addresses = addresses
        .chain(capacity.explain.iter_mut().map(|row| &mut row.address))
        .chain(capacity.alternatives.iter_mut().map(|row| &mut row.address))
        .chain(capacity.placements.iter_mut().map(|row| &mut row.address))
        .chain(capacity.base.preconditions.iter_mut().map(|row| &mut row.address));
    for address in addresses.filter(|address| **address == old) {
        *address = self::address(to);
    }
    for precondition in &mut capacity.base.preconditions {
        if let Condition::KeyUnused { key: held, .. } = &mut precondition.condition
            && held == key
        {
            to.clone_into(held);
        }
    }
}

#[test]
fn a_valid_plan_breaks_no_rule() {
    assert_eq!(check(&plan(), &inputs().facts()), []);
}

#[test]
fn a_replacement_may_have_a_key_of_its_own() {
    let (mut plan, inputs) = (plan(), inputs());
    rename(&mut plan, "3", "4");
    rename(&mut plan, "2", "3");
    plan.capacity.base.preconditions.push(Precondition {
        address: address("3"),
        condition: Condition::KeyUnused { pool: "web".into(), key: "3".to_owned() },
    });
    plan.capacity.base.preconditions.sort();
    assert_eq!(check(&sealed(plan), &inputs.facts()), []);
}

const IDENTITY: &[Defect] = &[
    ("plan/version", "a version of its own", |p, _| p.format_version = "1.9".to_owned()),
    ("base/cluster", "another cluster", |p, _| p.capacity.base.world.cluster.uid.push('x')),
    ("base/world", "an older world", |_, i| i.observed.taken_at = jiff::Timestamp::MAX),
    ("base/world", "a source that failed", |p, _| {
        let failed = Completeness::Failed { reason: "403".to_owned() };
        p.capacity.base.world.sources.insert("ec2".to_owned(), failed);
    }),
    ("flags/errored", "an error of the manifests", |_, i| i.desired.problems.push(problem())),
    ("flags/errored", "an error of the demand", |_, i| i.demand.problems.push(problem())),
    ("flags/errored", "a world read in part", |p, i| {
        let partial = Completeness::Partial { reason: "throttled".to_owned() };
        i.observed.sources.insert("ec2".to_owned(), partial);
        p.capacity.base.world.sources = i.observed.sources.clone();
    }),
    ("flags/applyable", "errored, yet applyable", |p, _| p.errored = true),
    ("flags/applyable", "an empty world", |p, _| {
        p.capacity.base.world.name = "empty".to_owned();
    }),
    ("flags/expiry", "expired when made", |p, _| p.capacity.expires_at = p.timestamp),
];

const ROWS: &[Defect] = &[
    ("row/order", "rows out of order", |p, _| p.resource_changes.swap(0, 1)),
    ("row/order", "a row twice", |p, _| {
        let twice = p.resource_changes[0].clone();
        p.resource_changes.insert(0, twice);
    }),
    ("row/order", "demand out of order", |p, _| p.capacity.demand.reverse()),
    ("row/order", "placements out of order", |p, _| p.capacity.placements.reverse()),
    ("row/missing", "a row of which only the reason is left", |p, _| {
        drop(p.resource_changes.remove(3));
    }),
    ("row/address", "an address without its key", |p, _| {
        row(p, "0").address = "ec2_instance.web".into();
    }),
    ("row/address", "an index other than the address", |p, _| {
        row(p, "0").index = Some("00".to_owned());
    }),
    ("row/address", "the name of another pool", |p, _| {
        kept(p, |state| state.pool = Some("api".into()));
    }),
    ("row/actions", "an unknown list of actions", |p, _| row(p, "2").change.actions.reverse()),
    ("row/actions", "no actions", |p, _| row(p, "0").change.actions.clear()),
    ("row/actions", "a create with a state before", |p, _| {
        row(p, "2").change.actions = vec![Action::Create];
    }),
    ("row/actions", "a no-op that changes a label", |p, _| {
        after(p, "0").labels.extend([label("a", "b")]);
    }),
    ("row/actions", "an update that changes nothing", |p, _| {
        row(p, "0").change.actions = vec![Action::Update];
    }),
    ("row/undecided", "a launch without a zone", |p, _| after(p, "3").zone = None),
    ("row/undecided", "a launch without an image", |p, _| after(p, "3").image = None),
    ("row/unknown", "the id of an instance to come", |p, _| {
        after(p, "3").instance_id = Some("i-7".into());
    }),
    ("row/unknown", "a type left to chance", |p, _| {
        row(p, "3").change.after_unknown.insert("instance_type".to_owned(), true);
    }),
    ("row/unknown", "something unknown where nothing comes", |p, _| {
        row(p, "0").change.after_unknown.insert("node".to_owned(), true);
    }),
    ("row/kind", "a group", |p, _| row(p, "0").kind = ResourceKind::AutoscalingGroup),
    ("explain/missing", "a row without a reason", |p, _| drop(p.capacity.explain.remove(0))),
    ("explain/reason", "a launch for the reason of a removal", |p, _| {
        explain(p, "3").reason = explain(p, "1").reason.clone();
    }),
    ("explain/reason", "a replacement that does not say why the old node goes", |p, _| {
        explain(p, "2").retire_reason = None;
    }),
];

const OBSERVED: &[Defect] = &[
    ("observed/exists", "an instance nobody saw", |p, _| {
        before(p, "1").instance_id = Some("i-7".into());
    }),
    ("observed/exists", "a node nobody saw", |p, _| {
        kept(p, |state| state.node = Some("n7".into()));
    }),
    ("observed/exists", "a row of no instance", |p, _| {
        kept(p, |state| state.instance_id = None);
    }),
    ("observed/instance", "another type", |p, _| {
        kept(p, |state| state.instance_type = Some("m5.xlarge".into()));
    }),
    ("observed/instance", "another zone", |p, _| {
        kept(p, |state| state.zone = Some("us-east-1b".into()));
    }),
    ("observed/instance", "another key", |_, i| {
        let instance = i.observed.instances.get_mut("i-0").unwrap();
        instance.tags.insert(tag::KEY.to_owned(), "5".to_owned());
    }),
    ("observed/node", "labels it does not have", |p, _| {
        kept(p, |state| state.labels.extend([label("a", "b")]));
    }),
    ("observed/node", "a taint left out", |p, _| kept(p, |state| state.taints.clear())),
    ("observed/node", "another node of the same name", |p, _| {
        kept(p, |state| state.node_uid = Some("uid-7".into()));
    }),
    ("observed/amounts", "more room than the node has", |p, _| {
        kept(p, |state| state.allocatable.cpu_milli += 1000);
    }),
    ("observed/amounts", "more room than an instance will have", |p, i| {
        i.observed.nodes.remove("n0");
        kept(p, |state| {
            (state.node, state.node_uid) = (None, None);
            state.allocatable.memory_bytes += 1;
        });
    }),
    ("observed/rows", "a node without a row", |p, _| drop(p.resource_changes.pop())),
    ("observed/rows", "an instance of ours without a row", |p, i| {
        drop(p.resource_changes.remove(0));
        i.observed.nodes.remove("n0");
    }),
    ("observed/rows", "a node with two rows", |p, _| {
        let mut twice = p.resource_changes[4].clone();
        (twice.name, twice.address) = ("n99".to_owned(), "kubernetes_node.n99".into());
        p.resource_changes.push(twice);
    }),
];

const OWNERSHIP: &[Defect] = &[
    ("ownership/ours", "an instance without our tags", |_, i| {
        i.observed.instances.get_mut("i-1").unwrap().tags.clear();
    }),
    ("ownership/ours", "an instance of another cluster", |_, i| {
        let instance = i.observed.instances.get_mut("i-1").unwrap();
        instance.tags.insert(tag::CLUSTER.to_owned(), "other".to_owned());
    }),
    ("ownership/ours", "an instance that nobody saw", |_, i| {
        i.observed.instances.remove("i-1");
    }),
    ("ownership/ours", "a node that is not ours", |p, _| {
        let row = &mut p.resource_changes[4].change;
        (row.actions, row.after) = (vec![Action::Delete], None);
    }),
    ("ownership/node", "a node that is another by now", |_, i| {
        i.observed.nodes.get_mut("n1").unwrap().uid = "uid-7".into();
    }),
    ("ownership/pinned", "a node that says not to disrupt it", |_, i| {
        let node = i.observed.nodes.get_mut("n1").unwrap();
        node.annotations.insert("karpenter.sh/do-not-disrupt".to_owned(), "true".to_owned());
    }),
    ("ownership/pinned", "a pod that may not be moved", |_, i| {
        shape(i, "api", |shape| shape.pinned = true);
    }),
    ("ownership/errored", "an errored plan that deletes", |p, _| p.errored = true),
    ("ownership/unknown", "a world read in part", |_, i| {
        let partial = Completeness::Partial { reason: "throttled".to_owned() };
        i.observed.sources.insert("kubernetes".to_owned(), partial);
    }),
    ("ownership/hidden", "a node that no action deletes", |p, _| {
        row(p, "1").change.actions = vec![Action::Update];
    }),
];

const LAUNCHES: &[Defect] = &[
    ("launch/pool", "a pool that is not declared", |_, i| i.desired.pools.clear()),
    ("launch/class", "a class that is not declared", |_, i| i.desired.node_classes.clear()),
    ("launch/type", "a type that does not exist", |p, _| {
        after(p, "3").instance_type = Some("m5.huge".into());
    }),
    ("launch/offering", "a zone without the type", |p, _| {
        after(p, "3").zone = Some("us-east-1c".into());
    }),
    ("launch/offering", "a capacity type that nobody sells", |p, _| {
        after(p, "3").capacity_type = Some(CapacityType::Spot);
    }),
    ("launch/offering", "an offering without a price", |_, i| {
        i.catalog.types.get_mut("m5.xlarge").unwrap().offerings[0].price = None;
    }),
    ("launch/zone-id", "the id of another zone", |p, _| {
        after(p, "3").zone_id = Some("use1-az9".into());
    }),
    ("launch/image", "another image", |p, _| after(p, "3").image = Some("al2@v1".to_owned())),
    ("launch/taints", "a taint left out", |p, _| after(p, "3").taints.clear()),
    ("launch/taints", "a startup taint that would stay", |p, _| {
        let taints = std::mem::take(&mut after(p, "3").startup_taints);
        after(p, "3").taints.extend(taints);
    }),
    ("launch/labels", "a label of the pool left out", |p, _| {
        after(p, "3").labels.remove("team");
    }),
    ("launch/labels", "a label of another type", |p, _| {
        after(p, "3").labels.extend([label("karpenter.k8s.aws/instance-cpu", "64")]);
    }),
    ("launch/labels", "no label of its pool", |p, _| {
        after(p, "3").labels.remove(key::NODEPOOL);
    }),
    ("launch/labels", "the other generation's label of another pool", |p, _| {
        after(p, "3").labels.extend([label(key::PROVISIONER, "api")]);
    }),
    ("launch/labels", "the key of another node", |p, _| {
        after(p, "3").labels.extend([label(crate::fleet::KEY_LABEL, "7")]);
    }),
    ("launch/requirements", "a type that the pool does not allow", |_, i| {
        pool(i).requirements[0].values = vec!["c5.large".into()];
    }),
    ("launch/amounts", "more room than the type has", |p, _| {
        after(p, "3").allocatable.cpu_milli += 1;
    }),
    ("launch/amounts", "less capacity than limits count", |p, _| {
        after(p, "3").capacity.cpu_milli -= 1;
    }),
    ("launch/key", "a key in use", |_, i| {
        i.observed.instances.get_mut("i-1").unwrap().tags.insert(tag::KEY.to_owned(), "3".into());
    }),
    ("launch/key", "a key above the lowest", |p, _| rename(p, "3", "4")),
    ("launch/key", "a key that is no number", |p, _| rename(p, "3", "x")),
    ("alternatives/row", "alternatives to what stays", |p, _| {
        p.capacity.alternatives[0].address = address("0");
    }),
    ("alternatives/order", "the dearest first", |p, _| {
        p.capacity.alternatives[0].offerings.reverse();
    }),
    ("alternatives/offering", "an alternative that nobody sells", |p, _| {
        p.capacity.alternatives[0].offerings[0].capacity_type = CapacityType::Spot;
    }),
    ("alternatives/price", "an alternative at another price", |p, _| {
        p.capacity.alternatives[0].offerings[0].hourly = MicroUsd(1);
    }),
    ("alternatives/requirements", "an alternative that the pool does not allow", |_, i| {
        pool(i).requirements[0].values = vec!["c5.large".into(), "m5.xlarge".into()];
    }),
    ("alternatives/fit", "an alternative too small for its pods", |p, _| {
        p.capacity.alternatives[1].offerings = p.capacity.alternatives[0].offerings.clone();
    }),
    ("alternatives/fit", "an alternative in a zone that its pods do not want", |_, i| {
        shape(i, "api", |shape| {
            let here = [label(key::ZONE, "us-east-1a")].into();
            shape.nodes.any_of = vec![Requirements::from_labels(&here)];
        });
    }),
];

const LIMITS: &[Defect] = &[
    ("limits/resources", "more CPU than the pool may have", |_, i| {
        pool(i).limits.resources = [("cpu".into(), 13_999)].into();
    }),
    ("limits/resources", "more memory than the pool may have", |_, i| {
        pool(i).limits.resources = [("memory".into(), 52 << 30)].into();
        pool(i).limits.resources.values_mut().for_each(|limit| *limit -= 1);
    }),
    ("limits/nodes", "more nodes than the pool may have", |_, i| {
        pool(i).limits.nodes = Some(2);
    }),
    ("limits/nodes", "no room for what goes beside what comes", |_, i| {
        pool(i).limits.nodes = Some(4);
    }),
    ("limits/alternative", "an alternative beyond the pool's limit", |p, _| {
        let large = p.capacity.alternatives[1].offerings.clone();
        p.capacity.alternatives[0].offerings = large;
    }),
];

const FIT: &[Defect] = &[
    ("fit/resources", "more CPU than a node to come has", |p, i| {
        requests(p, i, "batch", |requests| requests.cpu.0 = 1901);
    }),
    ("fit/resources", "more memory than a node to come has", |p, i| {
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
    ("fit/resources", "more than is free on a node that stays", |p, _| {
        move_pods(p, "batch", "3", "0");
    }),
    ("fit/daemons", "daemons forgotten", |p, _| {
        explain(p, "3").daemons = Amount::default();
    }),
    ("fit/labels", "a node that the pods do not select", |_, i| {
        shape(i, "batch", |shape| {
            let other = [label("team", "api")].into();
            shape.nodes.any_of = vec![Requirements::from_labels(&other)];
        });
    }),
    ("fit/labels", "pods that no node can suit", |_, i| {
        shape(i, "batch", |shape| shape.nodes.any_of.clear());
    }),
    ("fit/taints", "a taint that the pods do not tolerate", |_, i| {
        shape(i, "batch", |shape| shape.tolerations.clear());
    }),
    ("fit/node-name", "pods that ask for another node", |_, i| {
        shape(i, "batch", |shape| shape.nodes.name = Some("n0".to_owned()));
    }),
    ("fit/unsupported", "pods with a feature that nothing judges", |_, i| {
        shape(i, "batch", |shape| shape.unsupported.push(Unsupported::SchedulingGates));
    }),
    ("fit/cordoned", "pods on a node that is cordoned", |p, i| {
        i.observed.nodes.get_mut("n0").unwrap().unschedulable = true;
        move_pods(p, "batch", "3", "0");
    }),
    ("fit/stays", "a running pod that vanishes", |p, _| {
        explain(p, "0").pods.clear();
    }),
    ("fit/gone", "pods on a node that goes", |p, _| {
        explain(p, "1").pods.insert("shop/Deployment/api".to_owned(), 1);
    }),
    ("fit/workload", "pods of no workload", |p, _| {
        explain(p, "3").pods.insert("shop/Deployment/ghost".to_owned(), 1);
    }),
    ("fit/placements", "a move that is not listed", |p, _| {
        drop(p.capacity.placements.remove(0));
    }),
    ("fit/placements", "pods listed that stay where they are", |p, _| {
        let stays = PlacementRow { workload: workload("api"), address: address("0"), pods: 2 };
        p.capacity.placements.insert(0, stays);
    }),
    ("fit/placements", "a place listed twice", |p, _| {
        let twice = p.capacity.placements[0].clone();
        p.capacity.placements.insert(0, twice);
    }),
];

const TOTALS: &[Defect] = &[
    ("totals/demand", "another count than the demand's", |p, _| {
        p.capacity.demand[0].counts.planned += 1;
    }),
    ("totals/demand", "other requests than the demand's", |p, _| {
        p.capacity.demand[0].requests.cpu_milli -= 1;
    }),
    ("totals/demand", "a workload left out", |p, _| drop(p.capacity.demand.pop())),
    ("totals/demand", "a workload twice in the demand", |_, i| {
        let twice = i.demand.groups[0].clone();
        i.demand.groups.push(twice);
    }),
    ("totals/daemons", "daemons left out", |p, _| p.capacity.daemons.clear()),
    ("totals/unschedulable", "none without a place", |p, _| p.capacity.unschedulable[0].pods = 0),
    ("totals/unschedulable", "no workload without a place", |p, _| {
        p.capacity.unschedulable[0].workload.kind = WorkloadKind::Job;
    }),
    ("totals/eviction", "somebody who is as important is evicted", |p, _| {
        let row = &mut p.capacity.unschedulable[0];
        let evicts = [("shop/Deployment/api".to_owned(), 1)].into();
        row.eviction = Some(EvictionRow { lets_in: 1, evicts });
    }),
    ("totals/group", "pods lost", |p, _| p.capacity.unschedulable.clear()),
    ("totals/group", "a pod placed twice", |p, _| {
        *explain(p, "3").pods.get_mut("shop/Deployment/batch").unwrap() += 1;
    }),
    ("totals/pods", "a sum that does not add up", |p, _| p.capacity.pods.total += 1),
    ("totals/pods", "pods counted away to Fargate", |p, _| {
        p.capacity.pods.fargate = 1;
        p.capacity.pods.placed -= 1;
    }),
    ("totals/pods", "an unresolved workload taken for none", |_, i| {
        i.demand.unresolved.push(Unresolved {
            origin: Origin::new("shop.yaml", 9),
            object: "HelmRelease shop/web".to_owned(),
            reason: "not rendered".to_owned(),
        });
    }),
    ("totals/pods", "an unresolved workload that nobody has", |p, _| {
        p.capacity.pods.unresolved = 1;
        p.capacity.unresolved.push(UnresolvedRow {
            object: "HelmRelease shop/web".to_owned(),
            origin: Origin::new("shop.yaml", 9),
            reason: "not rendered".to_owned(),
        });
    }),
    ("totals/moved", "moves not told", |p, _| p.capacity.pods.moved = 0),
    ("totals/summary", "a removal not counted", |p, _| p.summary.destroy = 1),
    ("totals/summary", "destructive, yet not said so", |p, _| p.summary.destructive = false),
    ("totals/summary", "a node not counted", |p, _| p.summary.nodes.before = 9),
    ("totals/summary", "a node blocked and not counted", |p, _| p.summary.blocked = 0),
];

const COST: &[Defect] = &[
    ("cost/price", "a launch at half its price", |p, _| {
        explain(p, "3").hourly_after = Some(MicroUsd(96_000));
    }),
    ("cost/price", "a launch for nothing", |p, _| explain(p, "3").hourly_after = None),
    ("cost/price", "a price of what is not there", |p, _| {
        explain(p, "3").hourly_before = Some(MicroUsd(1));
    }),
    ("cost/sum", "a sum that does not add up", |p, _| p.capacity.cost.hourly_after.0 += 1),
    ("cost/sum", "a month of another length", |p, _| {
        p.capacity.cost.monthly_delta = MicroUsd(-11_000 * 720);
    }),
    ("cost/sum", "a saving that is none", |p, _| p.capacity.cost.hourly_delta.0 -= 1),
    ("cost/source", "another currency", |p, _| p.capacity.cost.currency = "EUR".to_owned()),
    ("cost/source", "another price list", |p, _| p.capacity.cost.prices.stand_in = true),
    ("cost/unpriced", "a node without a price not counted", |p, _| p.capacity.cost.unpriced = 0),
    ("cost/estimated", "an estimate not told", |_, i| {
        i.catalog.types.get_mut("c5.large").unwrap().offerings[0].estimated = true;
    }),
    ("cost/bound", "a bound below nothing", |p, _| {
        p.capacity.cost.lower_bound_hourly = MicroUsd(-1);
    }),
    ("cost/bound", "a bound above the price", |p, _| {
        p.capacity.unschedulable.clear();
        p.capacity.cost.lower_bound_hourly = MicroUsd(373_001);
    }),
    ("cost/gap", "a gap that is too small", |p, _| {
        p.capacity.cost.gap_percent = "24.32".to_owned();
    }),
    ("cost/gap", "a gap without its digits", |p, _| p.capacity.cost.gap_percent = "24".to_owned()),
];

const ORDER: &[Defect] = &[
    ("waves/rows", "a launch that nobody carries out", |p, _| {
        drop(p.capacity.waves[0].addresses.pop());
    }),
    ("waves/rows", "a replacement that keeps the old node", |p, _| {
        drop(p.capacity.waves[1].addresses.pop());
    }),
    ("waves/rows", "a node that stays in a wave that retires", |p, _| {
        p.capacity.waves[1].addresses.insert(0, address("0"));
    }),
    ("waves/rows", "a wave of what is no row", |p, _| {
        p.capacity.waves[1].addresses.push(address("7"));
    }),
    ("waves/rows", "a node launched twice", |p, _| {
        let again = Wave { step: WaveStep::Launch, addresses: vec![address("3")] };
        p.capacity.waves.insert(0, again);
    }),
    ("waves/rows", "an update that nobody carries out", |p, _| {
        row(p, "0").change.actions = vec![Action::Update];
    }),
    ("waves/order", "retirement before launch", |p, _| p.capacity.waves.reverse()),
    ("waves/order", "addresses out of order", |p, _| p.capacity.waves[0].addresses.reverse()),
    ("waves/empty", "a wave of nothing", |p, _| {
        p.capacity.waves.push(Wave { step: WaveStep::Retire, addresses: Vec::new() });
    }),
    ("conditions/order", "conditions out of order", |p, _| {
        p.capacity.base.preconditions.reverse();
    }),
    ("conditions/missing", "no identity of what goes", |p, _| {
        drop(p.capacity.base.preconditions.remove(0));
    }),
    ("conditions/missing", "no wait for a workload that shrinks", |p, _| {
        drop(p.capacity.base.preconditions.remove(1));
    }),
    ("conditions/missing", "no wait for a workload that is deleted", |_, i| {
        let mut orphan = i.observed.pods[2].clone();
        orphan.owner = Some(workload("ghost"));
        i.observed.pods.push(orphan);
    }),
    ("conditions/missing", "a key that may be in use", |p, _| {
        drop(p.capacity.base.preconditions.pop());
    }),
    ("conditions/possible", "the node of another", |p, _| {
        p.capacity.base.preconditions[0].condition =
            Condition::InstanceIs { instance_id: "i-1".into(), node_uid: None };
    }),
    ("conditions/possible", "a key that is in use", |p, _| {
        let key = Condition::KeyUnused { pool: "web".into(), key: "0".to_owned() };
        p.capacity.base.preconditions[4].condition = key;
    }),
    ("conditions/possible", "other replicas than planned", |p, _| {
        p.capacity.base.preconditions[1].condition =
            Condition::ReplicasAtMost { workload: workload("api"), replicas: 4 };
    }),
    ("conditions/row", "a condition of what stays", |p, _| {
        p.capacity.base.preconditions[0].address = address("0");
    }),
];

fn defects() -> impl Iterator<Item = &'static Defect> {
    let all = [
        IDENTITY,
        ROWS,
        OBSERVED,
        OWNERSHIP,
        LAUNCHES,
        LIMITS,
        pools::DEFECTS,
        FIT,
        TOTALS,
        COST,
        ORDER,
    ];
    all.into_iter().flatten()
}

#[test]
fn every_planted_defect_is_found_by_its_rule() {
    for (rule, what, plant) in defects() {
        let (mut plan, mut inputs) = (plan(), inputs());
        plant(&mut plan, &mut inputs);
        let found = check(&sealed(plan), &inputs.facts());
        let rules: BTreeSet<_> = found.iter().map(|violation| violation.rule).collect();
        assert!(rules.contains(rule), "{what}: {rule} is not among {rules:?}");
        assert!(!rules.contains("plan/digest"), "{what}");
    }
}

#[test]
fn a_plan_that_states_another_digest_or_identity_is_found() {
    let claims: [Defect; 3] = [
        ("plan/digest", "another digest", |plan, _| plan.capacity.digest = "sha256:0".into()),
        ("plan/id", "another identity", |plan, _| plan.capacity.plan_id = "0".into()),
        ("plan/id", "another commit", |plan, _| {
            plan.capacity.base.commit = Some("beef".to_owned());
        }),
    ];
    for (rule, what, plant) in claims {
        let (mut plan, mut inputs) = (plan(), inputs());
        plant(&mut plan, &mut inputs);
        let found = check(&plan, &inputs.facts());
        assert_eq!(found.iter().map(|v| v.rule).collect::<Vec<_>>(), [rule], "{what}");
    }
}

/// Defects that are none: what a rule must let pass.
const HARMLESS: &[Defect] = &[
    ("fit/resources", "a node that was overdrawn before stays as it is", |_, i| {
        shape(i, "api", |shape| shape.tolerations.clear());
    }),
    ("fit/labels", "pods that run where they would not go again stay", |p, i| {
        i.observed.nodes.get_mut("n0").unwrap().labels.remove("team");
        kept(p, |state| drop(state.labels.remove("team")));
        explain(p, "0").daemons = Amount::default();
    }),
    ("fit/stays", "pods that no longer tolerate their node are rolled elsewhere", |p, i| {
        shape(i, "api", |shape| shape.tolerations.clear());
        explain(p, "0").pods.clear();
    }),
    ("limits/resources", "a pool above a lowered limit that does not grow", |p, i| {
        pool(i).limits.resources = [("cpu".into(), 1)].into();
        for key in ["2", "3"] {
            let states = &mut row(p, key).change;
            states.after.iter_mut().for_each(|state| state.pool = None);
        }
    }),
    ("observed/rows", "a node whose instance is going needs no row", |p, i| {
        drop(p.resource_changes.remove(0));
        i.observed.instances.get_mut("i-0").unwrap().state = InstanceState::ShuttingDown;
    }),
    ("observed/rows", "an instance of another owner needs no row", |p, i| {
        drop(p.resource_changes.remove(0));
        i.observed.nodes.remove("n0");
        i.observed.instances.get_mut("i-0").unwrap().tags.clear();
    }),
    ("launch/key", "the key of an instance that is gone may be used again", |_, i| {
        let mut gone = i.observed.instances["i-0"].clone();
        (gone.id, gone.state) = ("i-7".into(), InstanceState::Terminated);
        gone.tags.insert(tag::KEY.to_owned(), "3".to_owned());
        i.observed.instances.insert(gone.id.clone(), gone);
    }),
    ("cost/bound", "a bound above the price says nothing where pods have no place", |p, _| {
        p.capacity.cost.lower_bound_hourly = MicroUsd(373_001);
    }),
    ("ownership/pinned", "a node that must go goes, whatever runs there", |p, i| {
        shape(i, "api", |shape| shape.pinned = true);
        explain(p, "2").retire_reason = Some(RetireReason::Requested);
    }),
    ("cost/gap", "a gap may be rounded up", |p, _| {
        p.capacity.cost.gap_percent = "24.34".to_owned();
    }),
    ("observed/node", "a startup taint may still be there", |p, i| {
        let starting = pool(i).startup_taints[0].clone();
        i.observed.nodes.get_mut("n0").unwrap().taints.push(starting);
        let startup = after(p, "3").startup_taints.clone();
        before(p, "0").startup_taints.clone_from(&startup);
        after(p, "0").startup_taints = startup;
    }),
    ("fit/daemons", "daemons stand the taints of a node in trouble", |p, i| {
        let pressure = crate::pod::Taint {
            key: "node.kubernetes.io/memory-pressure".into(),
            value: "".into(),
            effect: crate::pod::TaintEffect::NoSchedule,
        };
        i.observed.nodes.get_mut("n0").unwrap().taints.push(pressure.clone());
        before(p, "0").taints.push(pressure.clone());
        after(p, "0").taints.push(pressure);
    }),
];

#[test]
fn what_is_no_defect_breaks_no_rule() {
    for (rule, what, plant) in HARMLESS {
        let (mut plan, mut inputs) = (plan(), inputs());
        plant(&mut plan, &mut inputs);
        let found = check(&sealed(plan), &inputs.facts());
        assert!(found.iter().all(|violation| violation.rule != *rule), "{what}: {found:?}");
    }
}

#[test]
fn a_violation_names_rule_row_and_both_values() {
    let mut plan = plan();
    after(&mut plan, "3").image = Some("al2@v1".to_owned());
    let found = check(&sealed(plan), &inputs().facts());
    let text: Vec<String> = found.iter().map(ToString::to_string).collect();
    let expected = "launch/image: ec2_instance.web[\"3\"]: image is stated as al2@v1, \
                    but is al2023@latest";
    assert_eq!(text, [expected]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_plan_makes_the_judge_panic_and_the_verdict_is_always_the_same(
        planted in proptest::sample::subsequence(defects().collect::<Vec<_>>(), 1..5),
    ) {
        // A defect may take away what a later one is planted in; that one is then left out.
        let (mut judged, mut facts) = (plan(), inputs());
        for (_, _, plant) in planted {
            let attempt = std::panic::catch_unwind(|| {
                let (mut plan, mut inputs) = (judged.clone(), facts.clone());
                plant(&mut plan, &mut inputs);
                (plan, inputs)
            });
            if let Ok((plan, inputs)) = attempt {
                (judged, facts) = (plan, inputs);
            }
        }
        let judged = sealed(judged);
        prop_assert_eq!(check(&judged, &facts.facts()), check(&judged, &facts.facts()));
    }
}
