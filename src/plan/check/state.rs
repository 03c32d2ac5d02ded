//! The state that a plan ends in: its nodes, and which pods are on them.
//!
//! It tells apart who is on a node already and who comes: where a node is kept on which `n` pods of
//! a workload run and `m` are planned, the lesser of both stay, and the rest comes. DaemonSet pods
//! come with their node, and static pods belong to it: both are there before any other pod. It
//! refuses to know what is allowed; that is for the rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::case::{Case, Row};
use super::fit::{Spot, runs_daemon};
use crate::demand::{PodShape, ShapeContext, shape_of};
use crate::ids::{Namespace, NodeName, WorkloadKind};
use crate::plan::wire::NodeState;
use crate::solve::workload_key;

/// The nodes of the end, and the pods on them.
pub(super) struct EndState<'a> {
    /// The nodes, in the order of the plan's rows.
    pub(super) sites: Vec<Site<'a>>,
    /// The pods.
    pub(super) crowds: Vec<Crowd>,
    /// The crowds with pods on each site.
    pub(super) by_site: Vec<Vec<usize>>,
}

/// A node that is there in the end.
pub(super) struct Site<'a> {
    pub(super) row: &'a Row<'a>,
    pub(super) after: &'a NodeState,
    /// Its name in Kubernetes, where it is kept and has one.
    pub(super) name: Option<&'a NodeName>,
    /// Whether it is kept, and cordoned or not ready: then it has a taint that no plan shows.
    pub(super) closed: bool,
    /// Whether it is an instance that has not joined and of which nothing tells what node it becomes:
    /// its pool makes no such nodes any more. No pod is planned there, and no rule looks at it.
    pub(super) unknown: bool,
}

/// Pods that are alike to every rule: those of one workload, of one DaemonSet, or of one static
/// template.
pub(super) struct Crowd {
    /// `namespace/kind/name`.
    pub(super) name: String,
    pub(super) shape: Arc<PodShape>,
    pub(super) kind: CrowdKind,
    /// Its pods, by site.
    pub(super) on: BTreeMap<usize, Presence>,
}

/// Where the pods of a crowd come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CrowdKind {
    /// The plan places them.
    Placed,
    /// They come with every node that admits them.
    Daemon,
    /// They belong to their node: static pods, and DaemonSet pods that no rule expects there.
    Fixed,
}

/// How many pods are there, and how many come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Presence {
    pub(super) stay: u32,
    pub(super) come: u32,
}

impl Presence {
    pub(super) fn all(self) -> u32 {
        self.stay.saturating_add(self.come)
    }

    pub(super) fn add(&mut self, other: Self) {
        self.stay = self.stay.saturating_add(other.stay);
        self.come = self.come.saturating_add(other.come);
    }
}

impl<'a> Site<'a> {
    fn of(row: &'a Row<'a>) -> Option<Self> {
        let after = row.after?;
        let kept = row.before.filter(|_| row.deed.stays());
        let node = row.node.filter(|_| kept.is_some());
        let closed = node.is_some_and(|node| node.unschedulable || !node.ready);
        let name = kept.and_then(|state| state.node.as_ref());
        let unknown = kept.is_some() && name.is_none() && after.labels.is_empty();
        Some(Self { row, after, name, closed, unknown })
    }

    /// Returns the site as admission looks at it.
    pub(super) fn spot(&self) -> Spot<'_> {
        let Self { after, name, .. } = self;
        Spot { labels: &after.labels, taints: &after.taints, name: name.map(NodeName::as_str) }
    }
}

impl<'a> EndState<'a> {
    pub(super) fn of(case: &'a Case<'a>) -> Self {
        let sites: Vec<Site<'a>> = case.rows.iter().filter_map(Site::of).collect();
        let mut crowds = placed(case, &sites);
        let daemons = daemons(case, &sites);
        let fixed = fixed(case, &sites, &daemons);
        crowds.extend(daemons);
        crowds.extend(fixed);
        let mut by_site = vec![Vec::new(); sites.len()];
        for (index, crowd) in crowds.iter().enumerate() {
            crowd.on.keys().for_each(|site| by_site[*site].push(index));
        }
        Self { sites, crowds, by_site }
    }

    /// Returns the crowds on `site`, with their pods there.
    pub(super) fn on(&self, site: usize) -> impl Iterator<Item = (&Crowd, Presence)> {
        let crowds = self.by_site[site].iter().map(|crowd| &self.crowds[*crowd]);
        crowds.filter_map(move |crowd| Some((crowd, *crowd.on.get(&site)?)))
    }
}

/// Returns the pods of workloads; what the plan calls otherwise is left to the rules of `fit`.
fn placed(case: &Case<'_>, sites: &[Site<'_>]) -> Vec<Crowd> {
    let crowd = |(name, group): (&String, &&crate::demand::PodGroup)| Crowd {
        name: name.clone(),
        shape: Arc::clone(&group.shape),
        kind: CrowdKind::Placed,
        on: BTreeMap::new(),
    };
    let mut crowds: Vec<Crowd> = case.groups.iter().map(crowd).collect();
    let groups: Vec<_> = case.groups.values().copied().collect();
    let index: BTreeMap<&str, usize> =
        case.groups.keys().enumerate().map(|(index, key)| (key.as_str(), index)).collect();
    for (at, site) in sites.iter().enumerate() {
        for (key, pods) in site.row.pods().filter(|(_, pods)| *pods > 0) {
            let Some(index) = index.get(key) else { continue };
            let stay = Case::running(groups[*index], site.name).min(pods);
            crowds[*index].on.insert(at, Presence { stay, come: pods - stay });
        }
    }
    crowds
}

fn daemons(case: &Case<'_>, sites: &[Site<'_>]) -> Vec<Crowd> {
    let one = Presence { stay: 1, come: 0 };
    let crowd = |daemon: &crate::demand::Daemon| {
        let runs = |site: &Site<'_>| !site.unknown && runs_daemon(&daemon.shape, &site.spot());
        let on = sites.iter().enumerate().filter(|(_, site)| runs(site));
        Crowd {
            name: workload_key(&daemon.workload),
            shape: Arc::clone(&daemon.shape),
            kind: CrowdKind::Daemon,
            on: on.map(|(at, _)| (at, one)).collect(),
        }
    };
    case.facts.demand.daemons.iter().map(crowd).collect()
}

/// Returns the pods that no plan moves and no demand counts: static ones, and those of DaemonSets
/// that are not expected on the node that they run on.
fn fixed(case: &Case<'_>, sites: &[Site<'_>], daemons: &[Crowd]) -> Vec<Crowd> {
    let observed = case.facts.observed;
    let context = ShapeContext::of(case.facts.desired);
    let names = sites.iter().enumerate().filter_map(|(at, site)| Some((site.name?, at)));
    let names: BTreeMap<&NodeName, usize> = names.collect();
    let daemons: BTreeMap<&str, &Crowd> =
        daemons.iter().map(|crowd| (crowd.name.as_str(), crowd)).collect();
    let mut fixed: BTreeMap<(&Namespace, &str), Crowd> = BTreeMap::new();
    for pod in observed.pods.iter().filter(|pod| pod.is_active()) {
        let set = pod.owner.as_ref().filter(|owner| owner.kind == WorkloadKind::DaemonSet);
        // Most pods are neither, and need not be looked for among the nodes.
        if !pod.mirror && set.is_none() {
            continue;
        }
        let Some(at) = pod.node.as_ref().and_then(|name| names.get(name)) else { continue };
        let set = set.map(workload_key);
        let expected =
            |key: &String| daemons.get(key.as_str()).is_some_and(|c| c.on.contains_key(at));
        if !(pod.mirror || set.as_ref().is_some_and(|key| !expected(key))) {
            continue;
        }
        let Some(template) = observed.templates.get(&pod.template) else { continue };
        let crowd = fixed.entry((&pod.namespace, &pod.template)).or_insert_with(|| Crowd {
            name: set.unwrap_or_else(|| format!("{}/Pod/{}", pod.namespace, pod.name)),
            shape: Arc::new(shape_of(&pod.namespace, template, &context)),
            kind: CrowdKind::Fixed,
            on: BTreeMap::new(),
        });
        crowd.on.entry(*at).or_default().add(Presence { stay: 1, come: 0 });
    }
    fixed.into_values().collect()
}
