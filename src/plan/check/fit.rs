//! Placement: every planned pod can be where the plan puts it, all of them at once.

use std::collections::{BTreeMap, BTreeSet};

use super::Verdict;
use super::case::{Case, Row, number, resources};
use crate::demand::{PodGroup, PodShape};
use crate::ids::{Address, LabelKey, Labels, NodeName};
use crate::plan::wire::{NodeState, PlacementRow};
use crate::pod::{Taint, TaintEffect, untolerated};
use crate::solve::workload_key;
use crate::units::Resources;

/// The taints that the DaemonSet controller makes its pods tolerate.
const DAEMONS_TOLERATE: [(&str, TaintEffect); 6] = [
    ("node.kubernetes.io/not-ready", TaintEffect::NoExecute),
    ("node.kubernetes.io/unreachable", TaintEffect::NoExecute),
    ("node.kubernetes.io/disk-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/memory-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/pid-pressure", TaintEffect::NoSchedule),
    ("node.kubernetes.io/unschedulable", TaintEffect::NoSchedule),
];

/// A node as pods see it once the plan is carried out. Startup taints are gone by then.
pub(super) struct Site<'a> {
    pub(super) labels: &'a Labels,
    pub(super) taints: &'a [Taint],
    pub(super) allocatable: Resources,
    /// Its name, where it has one already.
    pub(super) name: Option<&'a str>,
}

/// The pods of one group on one node.
struct Share<'a> {
    group: &'a PodGroup,
    /// Pods that run there and stay.
    stay: u32,
    /// Pods that come.
    come: u32,
}

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    let mut expected: BTreeMap<(String, &Address), u32> = BTreeMap::new();
    let running = running(case);
    for row in &case.rows {
        let Some(after) = row.after else {
            let left = row.explain.is_some_and(|explain| !explain.pods.is_empty());
            if left {
                verdict.row("fit/gone", row.address, "pods are planned on a node that goes");
            }
            continue;
        };
        let shares = shares(case, row, &running, verdict);
        for share in shares.iter().filter(|share| share.come > 0) {
            expected.insert((workload_key(&share.group.workload), row.address), share.come);
        }
        let name = row.before.filter(|_| row.deed.stays()).and_then(|state| state.node.as_ref());
        let site = Site {
            labels: &after.labels,
            taints: &after.taints,
            allocatable: resources(&after.allocatable),
            name: name.map(NodeName::as_str),
        };
        admission(row, &shares, &site, verdict);
        room(case, row, &shares, &site, verdict);
    }
    placements(case, &expected, verdict);
}

/// Returns what runs on each node, by workload key.
fn running<'a>(case: &Case<'a>) -> BTreeMap<&'a NodeName, Vec<(String, u32)>> {
    let mut running: BTreeMap<&NodeName, Vec<(String, u32)>> = BTreeMap::new();
    for group in &case.facts.demand.groups {
        for (node, pods) in &group.running {
            running.entry(node).or_default().push((workload_key(&group.workload), *pods));
        }
    }
    running
}

/// Returns the groups with pods on the node, and holds the pods that run there to stay there:
/// nothing drains a node that is kept. A workload that shrinks may lose its surplus anywhere, and
/// one whose pods may no longer run here is rolled by whoever delivers it.
fn shares<'a>(
    case: &Case<'a>,
    row: &Row<'a>,
    running: &BTreeMap<&NodeName, Vec<(String, u32)>>,
    verdict: &mut Verdict,
) -> Vec<Share<'a>> {
    let node = row.before.filter(|_| row.deed.stays()).and_then(|before| before.node.as_ref());
    let mut shares = Vec::new();
    for (key, pods) in row.pods() {
        let Some(group) = case.groups.get(key) else {
            verdict.row("fit/workload", row.address, format!("{key} is no workload of the demand"));
            continue;
        };
        let running = Case::running(group, node);
        let stay = running.min(pods);
        shares.push(Share { group, stay, come: pods - stay });
    }
    let planned: BTreeMap<&str, u32> = row.pods().collect();
    // Where requests were raised, not all that run here fit any more; the rest is rolled elsewhere.
    let overdrawn = || {
        let here = node.and_then(|name| running.get(name)).into_iter().flatten();
        let asked = here.filter_map(|(key, pods)| {
            Some(case.groups.get(key.as_str())?.shape.requests.times(i64::from(*pods)))
        });
        let asked = asked.fold(Resources::default(), |sum, requests| sum.plus(&requests));
        row.before.is_some_and(|before| !asked.fits(&resources(&before.allocatable)))
    };
    for (key, running) in node.and_then(|name| running.get(name)).into_iter().flatten() {
        let pods = planned.get(key.as_str()).copied().unwrap_or(0);
        let Some(group) = case.groups.get(key) else { continue };
        let surplus = group.running.values().sum::<u32>().saturating_sub(group.counts.planned);
        let admitted = || row.before.is_none_or(|b| admits_labels(&group.shape, &b.labels));
        if *running > pods.saturating_add(surplus) && admitted() && !overdrawn() {
            let fault = format!("{running} pods of {key} run here and stay, {pods} are planned");
            verdict.row("fit/stays", row.address, fault);
        }
    }
    shares
}

fn admits_labels(shape: &PodShape, labels: &crate::ids::Labels) -> bool {
    shape.nodes.any_of.iter().any(|choice| choice.match_labels(labels))
}

/// Holds the pods that come to a node that admits them.
fn admission(row: &Row<'_>, shares: &[Share<'_>], site: &Site<'_>, verdict: &mut Verdict) {
    for share in shares.iter().filter(|share| share.come > 0) {
        let workload = &share.group.workload;
        if let Some(feature) = share.group.shape.unsupported.first() {
            let fault = format!("{workload} uses {}, which nothing here judges", feature.as_str());
            verdict.row("fit/unsupported", row.address, fault);
        }
        if let Some((rule, why)) = refusal(&share.group.shape, site) {
            verdict.row(rule, row.address, format!("{workload} is not admitted: {why}"));
        }
        if row.deed.stays() && row.node.is_some_and(|node| node.unschedulable) {
            let fault = format!("{workload} is placed on a node that is cordoned");
            verdict.row("fit/cordoned", row.address, fault);
        }
    }
}

/// Returns the rule by which the node does not admit such a pod, and why.
pub(super) fn refusal(shape: &PodShape, site: &Site<'_>) -> Option<(&'static str, String)> {
    if let Some(name) = shape.nodes.name.as_deref()
        && site.name != Some(name)
    {
        return Some(("fit/node-name", format!("it asks for node {name}")));
    }
    if !shape.nodes.any_of.iter().any(|choice| choice.match_labels(site.labels)) {
        let keys: BTreeSet<_> =
            shape.nodes.any_of.iter().filter_map(|choice| choice.unmatched(site.labels)).collect();
        let keys: Vec<_> = keys.into_iter().map(LabelKey::as_str).collect();
        return Some(("fit/labels", format!("labels {} do not suit it", keys.join(", "))));
    }
    let taint = untolerated(site.taints, &shape.tolerations)?;
    Some(("fit/taints", format!("it does not tolerate {}", taint.key)))
}

/// Returns what DaemonSet pods take of the node.
pub(super) fn daemons(case: &Case<'_>, site: &Site<'_>) -> Resources {
    let stood = |taint: &&Taint| !DAEMONS_TOLERATE.contains(&(taint.key.as_str(), taint.effect));
    let taints: Vec<Taint> = site.taints.iter().filter(stood).cloned().collect();
    let site = Site { taints: &taints, allocatable: Resources::default(), ..*site };
    let daemons = case.facts.demand.daemons.iter().map(|daemon| &daemon.shape);
    let admitted = daemons.filter(|shape| refusal(shape, &site).is_none());
    admitted.fold(Resources::default(), |sum, shape| sum.plus(&shape.requests))
}

/// Holds the node to have room for what comes, beside what stays and its daemons.
///
/// A node that is kept may be overdrawn already, by a daemon that grew or a limit that fell: that is
/// not the plan's doing, and forbids only to add more of what is short. A node to come has room for
/// everything or is the wrong one.
fn room(
    case: &Case<'_>,
    row: &Row<'_>,
    shares: &[Share<'_>],
    site: &Site<'_>,
    verdict: &mut Verdict,
) {
    let sum = |count: fn(&Share<'_>) -> u32| {
        shares.iter().fold(Resources::default(), |sum, share| {
            sum.plus(&share.group.shape.requests.times(i64::from(count(share))))
        })
    };
    let daemons = daemons(case, site);
    let stated = row.explain.map(|explain| resources(&explain.daemons)).unwrap_or_default();
    verdict.row_equal("fit/daemons", row.address, ("what daemons take", &stated, &daemons));
    let (stay, come) = (sum(|share| share.stay), sum(|share| share.come));
    let free = site.allocatable.minus(&stay).minus(&daemons);
    let all = stay.plus(&come).plus(&daemons);
    let short =
        if row.deed.creates() { all.exceeding(&site.allocatable) } else { come.exceeding(&free) };
    if !short.is_empty() {
        let fault = format!("{} do not suffice: {all} of {}", short.join(", "), site.allocatable);
        verdict.row("fit/resources", row.address, fault);
    }
}

/// Holds the list of placements to the pods that come.
fn placements(
    case: &Case<'_>,
    expected: &BTreeMap<(String, &Address), u32>,
    verdict: &mut Verdict,
) {
    let key = |row: &PlacementRow| workload_key(&row.workload);
    let rows = &case.plan.capacity.placements;
    let stated: BTreeMap<(String, &Address), u32> =
        rows.iter().map(|row| ((key(row), &row.address), row.pods)).collect();
    let places: BTreeSet<_> = stated.keys().chain(expected.keys()).collect();
    for place in places {
        let (stated, holds) = (stated.get(place), expected.get(place));
        let what = format!("the pods of {} that come", place.0);
        verdict.row_equal("fit/placements", place.1, (&what, &stated, &holds));
    }
    if number(rows) != number(&stated) {
        verdict.plan("fit/placements", "a place stands twice in `placements`");
    }
}

/// Returns why the pods planned for `row` and the daemons would not all fit on `site` in its place.
pub(super) fn misfit(case: &Case<'_>, row: &Row<'_>, site: &Site<'_>) -> Option<String> {
    let mut all = daemons(case, site);
    for (key, pods) in row.pods() {
        let group = case.groups.get(key)?;
        if let Some((_, why)) = refusal(&group.shape, site) {
            return Some(format!("{} is not admitted: {why}", group.workload));
        }
        all = all.plus(&group.shape.requests.times(i64::from(pods)));
    }
    let short = all.exceeding(&site.allocatable);
    (!short.is_empty()).then(|| format!("{} do not suffice", short.join(", ")))
}

/// Returns the site that `state` is for pods that come to it.
pub(super) fn site_of<'a>(
    state: &'a NodeState,
    labels: &'a Labels,
    allocatable: Resources,
) -> Site<'a> {
    Site { labels, taints: &state.taints, allocatable, name: None }
}
