//! Placement: all planned pods can run on their planned nodes at the same time.
//!
//! This file checks the properties of a single node and a single pod: labels, taints, names and
//! resources. Module `inter_pod` checks the rules between pods.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use jiff::SignedDuration;

use super::admission::refusal_of;
use super::context::{CheckContext, CheckedRow, RunningPods, count, resources};
use super::end_state::{EndNode, EndState, PodSet, PodSetKind, Presence};
use super::{Violations, inter_pod, part_assignment};
use crate::demand::PodGroup;
use crate::model::desired::Workload;
use crate::model::ids::{Address, NodeName, WorkloadId, WorkloadKind, workload_key};
use crate::model::units::{ResourceName, Resources};
use crate::plan::wire::NodeState;

/// Period after the creation of a node during which device plugins may still start.
const DEVICE_PLUGIN_START_TIMEOUT: SignedDuration = SignedDuration::from_mins(15);

/// Pods of each declared `StatefulSet` on each node that its controller deletes.
type UnwantedOrdinals<'a> = BTreeMap<(&'a WorkloadId, &'a NodeName), u32>;

pub(super) fn check(context: &CheckContext<'_>, state: &EndState<'_>, violations: &mut Violations) {
    for row in &context.rows {
        check_workloads(context, row, violations);
    }
    let unwanted = unwanted_ordinals(context);
    for (index, end_node) in state.nodes.iter().enumerate() {
        check_staying_pods(context, &unwanted, (state, index), violations);
        for (pod_set, _) in state.pods_on(index).filter(|(_, pods)| pods.arriving > 0) {
            admission(context, end_node, pod_set, violations);
        }
        check_resources(context, state, index, violations);
    }
    placements(context, state, violations);
    part_assignment::check(context, state, violations);
    inter_pod::check(context, state, violations);
}

/// Checks that planned pods belong to workloads of the demand, and that their row retains or
/// launches a node.
fn check_workloads(context: &CheckContext<'_>, row: &CheckedRow<'_>, violations: &mut Violations) {
    if row.after.is_none() {
        if row.pods().next().is_some() {
            violations.report_row(
                "fit/gone",
                row.address,
                "pods are planned on a node that is removed",
            );
        }
        return;
    }
    for (key, _) in row.pods().filter(|(key, _)| !context.groups.contains_key(*key)) {
        violations.report_row(
            "fit/workload",
            row.address,
            format!("{key} is not a workload of the demand"),
        );
    }
}

/// Checks that running pods stay on a retained node, which is not drained.
///
/// A shrinking `StatefulSet` loses the pods of known ordinals. Other shrinking workloads may lose
/// their surplus pods on any node. The controller of a workload replaces pods that the node no
/// longer admits. After an increase of requests, some running pods may no longer fit beside
/// DaemonSet and static pods, and are replaced on other nodes.
fn check_staying_pods(
    context: &CheckContext<'_>,
    unwanted: &UnwantedOrdinals<'_>,
    (state, index): (&EndState<'_>, usize),
    violations: &mut Violations,
) {
    let EndNode { row, name, .. } = &state.nodes[index];
    let Some((before, node)) = row.before.zip(*name) else { return };
    let overdrawn = || {
        let here = context.running_on(node);
        let requested = here.map(|here| here.group.shape.requests.times(i64::from(here.pods)));
        let others = state.pods_on(index).filter(|(pod_set, _)| pod_set.kind != PodSetKind::Placed);
        let others =
            others.map(|(pod_set, pods)| pod_set.shape.requests.times(i64::from(pods.staying)));
        let requested = requested.chain(others).fold(Resources::default(), |sum, r| sum.plus(&r));
        !requested.fits(&resources(&before.allocatable))
    };
    for RunningPods { key, group, pods: running, on_all_nodes } in context.running_on(node) {
        let pods = row.planned(key);
        let by_count = on_all_nodes.saturating_sub(group.counts.planned);
        let is_partly_on_fargate = context.facts.demand.planned(group) > group.counts.planned;
        let surplus = if declared_set(context, group).is_some() {
            let by_ordinal = unwanted.get(&(&group.workload, node)).copied().unwrap_or(0);
            // Ordinals do not show which wanted pods are planned for Fargate.
            if is_partly_on_fargate { by_ordinal.max(by_count) } else { by_ordinal }
        } else {
            by_count
        };
        let admitted = || refusal_of(group, &state.nodes[index].admission_view()).is_none();
        if running > pods.saturating_add(surplus) && admitted() && !overdrawn() {
            let fault =
                format!("{running} pods of {key} run on node {node} and stay, {pods} are planned");
            violations.report_row("fit/stays", row.address, fault);
        }
    }
}

/// Returns the declaration of a `StatefulSet`.
fn declared_set<'a>(context: &CheckContext<'a>, group: &PodGroup) -> Option<&'a Workload> {
    let declared = context.facts.desired.workloads.get(&group.workload);
    declared.filter(|workload| workload.id.kind == WorkloadKind::StatefulSet)
}

/// Counts the active pods whose ordinals their `StatefulSet` does not want.
///
/// Its controller deletes them whatever number of its pods runs: pods of wanted ordinals may be
/// pending. Pods on Fargate have ordinals as well.
fn unwanted_ordinals<'a>(context: &CheckContext<'a>) -> UnwantedOrdinals<'a> {
    let facts = context.facts;
    let wanted = facts.demand.groups.iter().filter_map(|group| {
        let first = declared_set(context, group)?.first_ordinal;
        Some((&group.workload, first..first.saturating_add(facts.demand.planned(group))))
    });
    let wanted: BTreeMap<&WorkloadId, Range<u32>> = wanted.collect();
    let mut unwanted = UnwantedOrdinals::new();
    for pod in facts.observed.pods.iter().filter(|pod| pod.is_active()) {
        let Some((set, node)) = pod.owner.as_ref().zip(pod.node.as_ref()) else { continue };
        let Some(wanted) = wanted.get(set) else { continue };
        let ordinal = pod.name.rsplit_once('-').and_then(|(_, text)| text.parse::<u32>().ok());
        let is_wanted = ordinal.is_some_and(|ordinal| wanted.contains(&ordinal));
        if !is_wanted {
            *unwanted.entry((set, node)).or_default() += 1;
        }
    }
    unwanted
}

/// Checks that a node admits the arriving pods of a set.
fn admission(
    context: &CheckContext<'_>,
    end_node: &EndNode<'_>,
    pod_set: &PodSet,
    violations: &mut Violations,
) {
    let PodSet { name, shape, .. } = pod_set;
    if let Some(feature) = shape.unsupported.first() {
        let fault =
            format!("{name} is placed here and uses {}, which is not supported", feature.as_str());
        violations.report_row("fit/unsupported", end_node.row.address, fault);
    }
    let refused =
        context.groups.get(name).and_then(|group| refusal_of(group, &end_node.admission_view()));
    if let Some((rule, why)) = refused {
        violations.report_row(
            rule,
            end_node.row.address,
            format!("{name} is placed here and is not admitted: {why}"),
        );
    }
    if end_node.row.action.keeps() && end_node.row.node.is_some_and(|node| node.unschedulable) {
        let fault = format!("{name} is placed here, but the node is cordoned");
        violations.report_row("fit/cordoned", end_node.row.address, fault);
    }
}

/// Checks that the node has resources for arriving pods beside staying pods and DaemonSets.
///
/// A retained node may already be overcommitted, for example after a DaemonSet raised its requests.
/// The plan must not increase the shortage. A new node must fit all its pods.
fn check_resources(
    context: &CheckContext<'_>,
    state: &EndState<'_>,
    index: usize,
    violations: &mut Violations,
) {
    let EndNode { row, after, .. } = &state.nodes[index];
    let [mut daemons, mut staying_requests, mut arriving_requests] =
        [(); 3].map(|()| Resources::default());
    for (pod_set, Presence { staying: here, arriving: arriving_pods }) in state.pods_on(index) {
        let requests = &pod_set.shape.requests;
        let sum =
            if pod_set.kind == PodSetKind::Daemon { &mut daemons } else { &mut staying_requests };
        if here > 0 {
            *sum = sum.plus(&requests.times(i64::from(here)));
        }
        if arriving_pods > 0 {
            arriving_requests = arriving_requests.plus(&requests.times(i64::from(arriving_pods)));
        }
    }
    let stated = row.explain.map(|explain| resources(&explain.daemons)).unwrap_or_default();
    violations.require_row_amounts(
        "fit/daemons",
        row.address,
        "the requests of DaemonSet pods",
        &stated,
        &daemons,
    );
    let mut allocatable = resources(&after.allocatable);
    let is_unreported = |name: &ResourceName| !allocatable.extended.contains_key(name);
    let runs_unreported = staying_requests.extended.keys().any(is_unreported);
    for (name, amount) in expected_devices(context, row, after, runs_unreported) {
        allocatable.extended.entry(name).or_insert(amount);
    }
    let present = staying_requests.plus(&daemons);
    let all = present.plus(&arriving_requests);
    let short = if row.action.creates() {
        all.exceeding(&allocatable)
    } else {
        arriving_requests.exceeding(&allocatable.minus(&present))
    };
    if !short.is_empty() {
        let fault = format!(
            "{} of the node is insufficient: its pods request {all}, it has {allocatable}",
            short.join(", ")
        );
        violations.report_row("fit/resources", row.address, fault);
    }
}

/// Returns the devices of a managed node that was created recently, so that its device plugins may
/// still start, or whose running pods have devices that it does not report.
fn expected_devices(
    context: &CheckContext<'_>,
    row: &CheckedRow<'_>,
    after: &NodeState,
    runs_unreported: bool,
) -> BTreeMap<ResourceName, i64> {
    let young = row.node.is_some_and(|node| {
        context.plan.timestamp.duration_since(node.created_at) <= DEVICE_PLUGIN_START_TIMEOUT
    });
    let ours = row.instance.is_some_and(|instance| context.is_managed(instance));
    let pool = after.pool.as_ref().and_then(|name| context.pool(name));
    let kind =
        context.kind(after).filter(|_| (young || runs_unreported) && ours && row.action.keeps());
    let offered =
        pool.zip(kind).and_then(|(pool, kind)| context.allocation(pool, kind, &after.labels));
    offered.map(|offered| offered.allocatable.extended).unwrap_or_default()
}

/// Checks that the list of placements matches the arriving pods.
fn placements(context: &CheckContext<'_>, state: &EndState<'_>, violations: &mut Violations) {
    let mut expected: BTreeMap<(&str, &Address), u32> = BTreeMap::new();
    for pod_set in &state.pod_sets {
        for (end_node, pods) in pod_set.by_node.iter().filter(|(_, pods)| pods.arriving > 0) {
            expected.insert((&pod_set.name, state.nodes[*end_node].row.address), pods.arriving);
        }
    }
    let rows = &context.plan.capacity.placements;
    let keys: Vec<String> = rows.iter().map(|row| workload_key(&row.workload)).collect();
    let stated: BTreeMap<(&str, &Address), u32> =
        keys.iter().zip(rows).map(|(key, row)| ((key.as_str(), &row.address), row.pods)).collect();
    let places: BTreeSet<_> = stated.keys().chain(expected.keys()).collect();
    for place in places {
        let of = |list: &BTreeMap<(&str, &Address), u32>| list.get(place).copied().unwrap_or(0);
        let (stated, arriving_pods) = (of(&stated), of(&expected));
        if stated != arriving_pods || stated == 0 {
            let fault = format!(
                "{stated} pods of {} are listed for this node, {arriving_pods} are placed \
                                 here",
                place.0
            );
            violations.report_row("fit/placements", place.1, fault);
        }
    }
    if count(rows) != count(&stated) {
        violations.report_plan("fit/placements", "a placement occurs twice in `placements`");
    }
}
