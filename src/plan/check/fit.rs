//! Placement: every planned pod can be where the plan puts it, all of them at once.
//!
//! Here is what each node and each pod decide alone: labels, taints, names, room. What pods demand
//! of each other is judged in `together`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;

use super::Verdict;
use super::case::{Case, Row, Running, number, resources};
use super::state::{Crowd, CrowdKind, EndState, Presence, Site};
use super::{parts, together};
use crate::demand::{PodGroup, PodShape};
use crate::ids::{Address, LabelKey, Labels};
use crate::plan::wire::NodeState;
use crate::pod::{Taint, TaintEffect, untolerated};
use crate::solve::workload_key;
use crate::units::{ResourceName, Resources};

/// How long a node may be there before it reports its devices.
const PLUGINS_START_WITHIN: SignedDuration = SignedDuration::from_mins(15);

/// The taints that the DaemonSet controller makes its pods tolerate.
const DAEMONS_TOLERATE: [(&str, TaintEffect); 6] = [
    ("node.kubernetes.io/not-ready", TaintEffect::NoExecute),
    ("node.kubernetes.io/unreachable", TaintEffect::NoExecute),
    ("node.kubernetes.io/disk-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/memory-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/pid-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/unschedulable", TaintEffect::NoSchedule),
];

/// A node as admission looks at it, once the plan is carried out. Startup taints are gone by then.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a> {
    pub(super) labels: &'a Labels,
    pub(super) taints: &'a [Taint],
    /// Its name, where it has one already.
    pub(super) name: Option<&'a str>,
}

pub(super) fn check(case: &Case<'_>, state: &EndState<'_>, verdict: &mut Verdict) {
    for row in &case.rows {
        named(case, row, verdict);
    }
    for (index, site) in state.sites.iter().enumerate() {
        stays(case, state, index, verdict);
        for (crowd, _) in state.on(index).filter(|(_, pods)| pods.come > 0) {
            admission(case, site, crowd, verdict);
        }
        room(case, state, index, verdict);
    }
    placements(case, state, verdict);
    parts::check(case, state, verdict);
    together::check(case, state, verdict);
}

/// Holds the pods planned on a row to workloads of the demand, and to a node that is there.
fn named(case: &Case<'_>, row: &Row<'_>, verdict: &mut Verdict) {
    if row.after.is_none() {
        if row.pods().next().is_some() {
            verdict.row("fit/gone", row.address, "pods are planned on a node that goes");
        }
        return;
    }
    for (key, _) in row.pods().filter(|(key, _)| !case.groups.contains_key(*key)) {
        verdict.row("fit/workload", row.address, format!("{key} is no workload of the demand"));
    }
}

/// Holds the pods that run on a node to stay there: nothing drains a node that is kept. A workload
/// that shrinks may lose its surplus anywhere, and one whose pods may no longer run here is rolled
/// by whoever delivers it. Where requests were raised, not all that run here fit any more, beside
/// what DaemonSets and static pods take; the rest is rolled elsewhere.
fn stays(case: &Case<'_>, state: &EndState<'_>, index: usize, verdict: &mut Verdict) {
    let Site { row, name, .. } = &state.sites[index];
    let Some((before, node)) = row.before.zip(*name) else { return };
    let overdrawn = || {
        let here = case.running_on(node);
        let asked = here.map(|here| here.group.shape.requests.times(i64::from(here.pods)));
        let others = state.on(index).filter(|(crowd, _)| crowd.kind != CrowdKind::Placed);
        let others = others.map(|(crowd, pods)| crowd.shape.requests.times(i64::from(pods.stay)));
        let asked = asked.chain(others).fold(Resources::default(), |sum, r| sum.plus(&r));
        !asked.fits(&resources(&before.allocatable))
    };
    for Running { key, group, pods: running, everywhere } in case.running_on(node) {
        let pods = row.planned(key);
        let surplus = everywhere.saturating_sub(group.counts.planned);
        let admitted = || refusal_of(group, &state.sites[index].spot()).is_none();
        if running > pods.saturating_add(surplus) && admitted() && !overdrawn() {
            let fault =
                format!("{running} pods of {key} run on node {node} and stay, {pods} are planned");
            verdict.row("fit/stays", row.address, fault);
        }
    }
}

/// Holds a node to admit the pods of `crowd` that come to it.
fn admission(case: &Case<'_>, site: &Site<'_>, crowd: &Crowd, verdict: &mut Verdict) {
    let Crowd { name, shape, .. } = crowd;
    if let Some(feature) = shape.unsupported.first() {
        let fault =
            format!("{name} comes here and uses {}, which nothing here judges", feature.as_str());
        verdict.row("fit/unsupported", site.row.address, fault);
    }
    let refused = case.groups.get(name).and_then(|group| refusal_of(group, &site.spot()));
    if let Some((rule, why)) = refused {
        verdict.row(
            rule,
            site.row.address,
            format!("{name} comes here and is not admitted: {why}"),
        );
    }
    if site.row.deed.stays() && site.row.node.is_some_and(|node| node.unschedulable) {
        let fault = format!("{name} comes here, but the node is cordoned");
        verdict.row("fit/cordoned", site.row.address, fault);
    }
}

/// Returns the rule by which a node admits no pod of `group`, and why: none of its parts, where its
/// pods differ.
pub(super) fn refusal_of(group: &PodGroup, spot: &Spot<'_>) -> Option<(&'static str, String)> {
    let mut parts = group.parts.iter().map(|part| refusal(&part.shape, spot));
    match parts.next() {
        None => refusal(&group.shape, spot),
        Some(first) => first.filter(|_| parts.all(|refused| refused.is_some())),
    }
}

/// Returns the rule by which a node does not admit such a pod, and why.
pub(super) fn refusal(shape: &PodShape, spot: &Spot<'_>) -> Option<(&'static str, String)> {
    if let Some(name) = shape.nodes.name.as_deref()
        && spot.name != Some(name)
    {
        return Some(("fit/node-name", format!("it asks for node {name}")));
    }
    let choices = &shape.nodes.any_of;
    if !choices.iter().any(|choice| choice.match_labels(spot.labels)) {
        let keys: BTreeSet<_> =
            choices.iter().filter_map(|choice| choice.unmatched(spot.labels)).collect();
        let keys: Vec<_> = keys.into_iter().map(LabelKey::as_str).collect();
        let why = match keys.as_slice() {
            [] => "its node affinity admits no node".to_owned(),
            keys => format!("label {} of the node does not suit it", keys.join(", ")),
        };
        return Some(("fit/labels", why));
    }
    let Taint { key, value, effect } = untolerated(spot.taints, &shape.tolerations)?;
    Some(("fit/taints", format!("it does not tolerate the taint {key}={value}:{effect:?}")))
}

/// Returns whether a DaemonSet with pods of `shape` runs one on the node.
pub(super) fn runs_daemon(shape: &PodShape, spot: &Spot<'_>) -> bool {
    let stood = |taint: &Taint| DAEMONS_TOLERATE.contains(&(taint.key.as_str(), taint.effect));
    if !spot.taints.iter().any(stood) {
        return refusal(shape, spot).is_none();
    }
    let taints: Vec<Taint> = spot.taints.iter().filter(|taint| !stood(taint)).cloned().collect();
    refusal(shape, &Spot { taints: &taints, ..*spot }).is_none()
}

/// Holds the node to have room for what comes, beside what stays and its daemons.
///
/// A node that is kept may be overdrawn already, by a daemon that grew or a limit that fell: that is
/// not the plan's doing, and forbids only to add more of what is short. A node to come has room for
/// everything or is the wrong one.
fn room(case: &Case<'_>, state: &EndState<'_>, index: usize, verdict: &mut Verdict) {
    let Site { row, after, .. } = &state.sites[index];
    let [mut daemons, mut stay, mut come] = [(); 3].map(|()| Resources::default());
    for (crowd, Presence { stay: here, come: comes }) in state.on(index) {
        let requests = &crowd.shape.requests;
        let sum = if crowd.kind == CrowdKind::Daemon { &mut daemons } else { &mut stay };
        if here > 0 {
            *sum = sum.plus(&requests.times(i64::from(here)));
        }
        if comes > 0 {
            come = come.plus(&requests.times(i64::from(comes)));
        }
    }
    let stated = row.explain.map(|explain| resources(&explain.daemons)).unwrap_or_default();
    verdict.row_amounts("fit/daemons", row.address, ("what daemons take", &stated, &daemons));
    let mut allocatable = resources(&after.allocatable);
    for (name, amount) in devices_to_come(case, row, after) {
        allocatable.extended.entry(name).or_insert(amount);
    }
    let there = stay.plus(&daemons);
    let all = there.plus(&come);
    let short = if row.deed.creates() {
        all.exceeding(&allocatable)
    } else {
        come.exceeding(&allocatable.minus(&there))
    };
    if !short.is_empty() {
        let fault = format!(
            "{} of the node do not suffice: its pods ask for {all}, it has {allocatable}",
            short.join(", ")
        );
        verdict.row("fit/resources", row.address, fault);
    }
}

/// Returns the devices of a node's type where the node may not report them yet: a machine of ours
/// whose plugins are starting.
fn devices_to_come(
    case: &Case<'_>,
    row: &Row<'_>,
    after: &NodeState,
) -> BTreeMap<ResourceName, i64> {
    let young = row.node.is_some_and(|node| {
        case.plan.timestamp.duration_since(node.created_at) <= PLUGINS_START_WITHIN
    });
    let ours = row.instance.is_some_and(|instance| case.is_ours(instance));
    let pool = after.pool.as_ref().and_then(|name| case.pool(name));
    let kind = case.kind(after).filter(|_| young && ours && row.deed.stays());
    let offered =
        pool.zip(kind).and_then(|(pool, kind)| case.allocation(pool, kind, &after.labels));
    offered.map(|offered| offered.allocatable.extended).unwrap_or_default()
}

/// Holds the list of placements to the pods that come.
fn placements(case: &Case<'_>, state: &EndState<'_>, verdict: &mut Verdict) {
    let mut expected: BTreeMap<(&str, &Address), u32> = BTreeMap::new();
    for crowd in &state.crowds {
        for (site, pods) in crowd.on.iter().filter(|(_, pods)| pods.come > 0) {
            expected.insert((&crowd.name, state.sites[*site].row.address), pods.come);
        }
    }
    let rows = &case.plan.capacity.placements;
    let keys: Vec<String> = rows.iter().map(|row| workload_key(&row.workload)).collect();
    let stated: BTreeMap<(&str, &Address), u32> =
        keys.iter().zip(rows).map(|(key, row)| ((key.as_str(), &row.address), row.pods)).collect();
    let places: BTreeSet<_> = stated.keys().chain(expected.keys()).collect();
    for place in places {
        let of = |list: &BTreeMap<(&str, &Address), u32>| list.get(place).copied().unwrap_or(0);
        let (stated, comes) = (of(&stated), of(&expected));
        if stated != comes || stated == 0 {
            let fault = format!("{stated} pods of {} are listed to come here, {comes} do", place.0);
            verdict.row("fit/placements", place.1, fault);
        }
    }
    if number(rows) != number(&stated) {
        verdict.plan("fit/placements", "a place stands twice in `placements`");
    }
}
