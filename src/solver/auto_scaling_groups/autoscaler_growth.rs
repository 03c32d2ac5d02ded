//! Growth by Cluster Autoscaler: the groups that it scales up for pods that no planned node has
//! room for.
//!
//! The pods of one round go to the group that its expander chooses, as in Cluster Autoscaler.
//! Deliberate differences:
//!
//! * A new node offers the allocatable resources of the smallest type of its group. Cluster
//!   Autoscaler counts the whole capacity of the first type, and adds nodes that are too small.
//! * Pods whose rules depend on other nodes or on the zone are not counted, because the zone of the
//!   next node is not known in advance.
//! * The plan never relies on the growth: no node is removed, and no launch dropped, for it.
//!
//! Source: cluster-autoscaler `estimator`, `expander`, `processors/nodegroupset`.

mod packing;

use std::collections::{BTreeMap, BTreeSet};

use packing::{Packing, Rules, pack};

use super::external::add_observed_group;
use super::{is_bare, live_group, members};
use crate::demand::{Demand, PodGroup};
use crate::model::cluster_autoscaler::{AutoscalerFlags, ClusterAutoscaler, cluster_autoscalers};
use crate::model::desired::{Desired, ExternalGroup, NodeGroup};
use crate::model::ids::{Origin, PoolName, workload_key};
use crate::model::observed::{Group, Observed};
use crate::model::requirement::key;
use crate::model::units::MicroUsd;
use crate::solver::Input;
use crate::solver::attach_limits::VolumeLimits;
use crate::solver::node_template::{NodeTemplate, RequestedLabels};
use crate::solver::offer::{Offer, OfferInput, admits};
use crate::solver::target_builder::PodPlacements;

/// Maximum number of nodes that one group is expected to add, as in `--max-nodes-per-scaleup`.
const NODES_MAX: u32 = 1_000;

/// Process of Auto Scaling without which a group launches nothing.
const LAUNCH_PROCESS: &str = "Launch";

/// Labels that similar groups may differ in.
const IGNORED_LABELS: [&str; 12] = [
    key::HOSTNAME,
    key::REGION,
    key::ZONE,
    key::ZONE_ID,
    "alpha.eksctl.io/instance-id",
    "alpha.eksctl.io/nodegroup-name",
    "eks.amazonaws.com/nodegroup",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "k8s.amazonaws.com/eniConfig",
    "lifecycle",
    "topology.ebs.csi.aws.com/zone",
];

/// A group that Cluster Autoscaler scales up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupGrowth {
    /// Name of the group, as its row has it.
    pub group: String,
    /// Deployment of Cluster Autoscaler.
    pub autoscaler: String,
    /// Number of nodes that the pods need.
    pub nodes: u32,
    /// Maximum number of nodes of the group.
    pub maximum: u32,
    /// Price per hour of the nodes; `None` if it is unknown.
    pub hourly: Option<MicroUsd>,
    /// Number of pods, by workload.
    pub pods: BTreeMap<String, u32>,
    /// Groups that the expander may choose instead.
    pub instead: BTreeSet<String>,
}

/// Moves pods from `places.unplaced` to the groups that Cluster Autoscaler scales up for them.
/// Pods for which `waits` is false stay.
pub(in crate::solver) fn grow(
    input: &Input,
    groups: &[PodGroup],
    places: &mut PodPlacements,
    waits: impl Fn(usize) -> bool,
) -> Vec<GroupGrowth> {
    let mut growths: Vec<GroupGrowth> = Vec::new();
    if places.unplaced.is_empty() {
        return growths;
    }
    for autoscaler in cluster_autoscalers(input.desired, input.observed) {
        let Some(flags) = autoscaler.flags else { continue };
        if !acts(&autoscaler, input.demand, groups, places) {
            continue;
        }
        let rules = Rules::new(input, groups, flags.priority_cutoff());
        let mut pending = places.unplaced.clone();
        pending.retain(|at, _| waits(*at) && rules.is_expected(&groups[*at].shape));
        let mut choices = choices(input, flags);
        choices.retain(|choice| growths.iter().all(|growth| growth.group != choice.name));
        let mut round = ScaleUp { groups, flags, pending, choices };
        let mut sets = round.similar_sets();
        while let Some((set, packing, instead)) = round.next(&mut sets) {
            for (at, nodes, pods) in round.distribute(&set, packing) {
                for (group, count) in &pods {
                    take(&mut places.unplaced, *group, *count);
                    take(&mut round.pending, *group, *count);
                }
                let choice = &round.choices[at];
                let named = |(group, n): (usize, u32)| (workload_key(&groups[group].workload), n);
                let mut by_workload = BTreeMap::new();
                for (workload, count) in pods.into_iter().map(named) {
                    *by_workload.entry(workload).or_insert(0) += count;
                }
                growths.push(GroupGrowth {
                    group: choice.name.clone(),
                    autoscaler: autoscaler.workload.to_string(),
                    nodes,
                    maximum: choice.maximum,
                    hourly: choice.price.map(|price| price.times(i64::from(nodes))),
                    pods: by_workload,
                    instead: instead.clone(),
                });
            }
        }
    }
    growths.sort_by(|a, b| a.group.cmp(&b.group));
    growths
}

fn take(pods: &mut BTreeMap<usize, u32>, group: usize, count: u32) {
    if let Some(left) = pods.get_mut(&group) {
        *left = left.saturating_sub(count);
        if *left == 0 {
            pods.remove(&group);
        }
    }
}

/// Returns true if Cluster Autoscaler runs, or will run once the plan is applied. One that has no
/// node itself scales nothing up.
fn acts(
    autoscaler: &ClusterAutoscaler<'_>,
    demand: &Demand,
    groups: &[PodGroup],
    places: &PodPlacements,
) -> bool {
    let is_one = |group: &usize| groups[*group].workload == *autoscaler.workload;
    autoscaler.is_running
        || places.placements.iter().any(|(group, nodes)| is_one(group) && !nodes.is_empty())
        || demand.fargate.iter().any(|taken| taken.workload == *autoscaler.workload)
}

/// A group that Cluster Autoscaler may scale up.
struct Choice {
    name: String,
    /// Current size.
    size: u32,
    maximum: u32,
    /// Number of nodes that it may still add.
    room: u32,
    /// Its next node.
    offer: Offer,
    /// Price per hour of its next node; `None` if it is unknown.
    price: Option<MicroUsd>,
}

/// Returns the groups that the flags select and whose next node is known, in the order of names.
fn choices(input: &Input, flags: &AutoscalerFlags) -> Vec<Choice> {
    let desired = &with_observed_groups(input, flags);
    let Input { observed, catalog, at, demand, .. } = *input;
    let supply = OfferInput { desired, catalog, observed, at };
    let attach = VolumeLimits::new(desired, observed, catalog, demand);
    let choice = |group: &NodeGroup| {
        let pool = desired.pools.get(&group.name)?;
        let SelectedGroup { name, size, room, maximum } = selected(group, flags, observed)?;
        let template = NodeTemplate::of_any_group(pool, &supply).ok()?;
        let stock = template.pool_offers(&RequestedLabels::default(), &demand.daemons);
        let priced = stock.offers.into_iter().map(|offer| (Some(offer.node.price), offer));
        let unpriced = stock.unpriced.into_iter().map(|offer| (None, offer));
        let least = |(price, _): &(Option<MicroUsd>, Offer)| *price;
        let (price, mut offer) = priced.min_by_key(least).or_else(|| unpriced.min_by_key(least))?;
        attach.limit_offers([&mut offer]);
        Some(Choice { name, size, maximum, room, offer, price })
    };
    desired.node_groups.values().filter_map(choice).collect()
}

/// Returns the desired state with a pool for each observed group that the flags select and no file
/// describes.
fn with_observed_groups(input: &Input, flags: &AutoscalerFlags) -> Desired {
    let Input { desired, observed, .. } = *input;
    let mut all = desired.clone();
    let is_declared = |live: &Group| {
        desired.node_groups.values().any(|group| group.matches_live_group(&live.name, &live.tags))
    };
    for live in observed.groups.values().filter(|live| !is_declared(live)) {
        let name = PoolName::from(live.name.as_str());
        let is_selected = flags.bounds(Some(&live.name), &live.tags, (live.min, live.max));
        if is_selected.is_some() && !desired.pools.contains_key(&name) {
            let found = ExternalGroup { manage: false, origin: Origin::new("", 0) };
            add_observed_group(&mut all, &name, &found, live, observed);
        }
    }
    all
}

/// Sizes of a group that the flags select.
struct SelectedGroup {
    name: String,
    size: u32,
    room: u32,
    maximum: u32,
}

/// Returns the sizes of a group, if the flags select it and Auto Scaling launches its nodes. Members
/// that are still missing are launched anyway, so that their room counts.
fn selected(
    group: &NodeGroup,
    flags: &AutoscalerFlags,
    observed: &Observed,
) -> Option<SelectedGroup> {
    let name = group.name.to_string();
    let Some(live) = live_group(group, observed) else {
        // In an empty world, the group is created with the cluster.
        let bounds = flags.bounds(None, &group.tags, (group.min, group.max));
        let (_, maximum) = bounds.filter(|_| is_bare(observed))?;
        return Some(SelectedGroup { name, size: 0, room: maximum, maximum });
    };
    let (_, maximum) = flags.bounds(Some(&live.name), &live.tags, (live.min, live.max))?;
    let there = u32::try_from(members(observed, &live.name).count()).unwrap_or(u32::MAX);
    let room = maximum.saturating_sub(there);
    let is_suspended = live.suspended.iter().any(|process| process == LAUNCH_PROCESS);
    (!is_suspended).then_some(SelectedGroup { name, size: live.desired, room, maximum })
}

/// Returns true if two groups count as similar, and admit the same pods.
fn is_similar(a: &Offer, b: &Offer, flags: &AutoscalerFlags) -> bool {
    let counts = |key: &str| {
        if flags.similarity_labels.is_empty() {
            !IGNORED_LABELS.contains(&key) && !flags.ignored_labels.contains(key)
        } else {
            flags.similarity_labels.contains(key)
        }
    };
    let (a, b) = (&a.node, &b.node);
    let keys: BTreeSet<_> = a.labels.keys().chain(b.labels.keys()).collect();
    let mut keys = keys.into_iter().filter(|key| counts(key.as_str()));
    let is_same_size = || {
        let (most, least) = (
            a.capacity.memory.0.max(b.capacity.memory.0),
            a.capacity.memory.0.min(b.capacity.memory.0),
        );
        // Memory of one type varies from instance to instance.
        a.capacity.cpu == b.capacity.cpu
            && a.capacity.extended == b.capacity.extended
            && most.saturating_sub(least) <= most / 1000 * 15
    };
    keys.all(|key| a.labels.get(key) == b.labels.get(key))
        && (!flags.similarity_labels.is_empty() || is_same_size())
}

/// Pods and groups of the scale-ups of one Cluster Autoscaler.
struct ScaleUp<'a> {
    groups: &'a [PodGroup],
    flags: &'a AutoscalerFlags,
    pending: BTreeMap<usize, u32>,
    choices: Vec<Choice>,
}

impl ScaleUp<'_> {
    /// Returns the sets of groups that grow together: similar groups if they are balanced, else
    /// single groups.
    fn similar_sets(&self) -> Vec<Vec<usize>> {
        let mut sets: Vec<Vec<usize>> = Vec::new();
        for (index, choice) in self.choices.iter().enumerate() {
            let admitted = |choice: &Choice| -> Vec<bool> {
                let node = &choice.offer.node;
                let shapes = self.pending.keys().map(|group| &self.groups[*group].shape);
                shapes.map(|shape| admits(shape, &node.labels, &node.taints)).collect()
            };
            let joins = |set: &&mut Vec<usize>| {
                let first = &self.choices[set[0]];
                is_similar(&first.offer, &choice.offer, self.flags)
                    && admitted(first) == admitted(choice)
            };
            match sets.iter_mut().find(joins).filter(|_| self.flags.balances) {
                Some(set) => set.push(index),
                None => sets.push(vec![index]),
            }
        }
        sets
    }

    /// Returns the set of groups that the expander chooses for the pending pods, with the nodes of
    /// the set and the names of other groups that it may choose. Removes the set, and sets that help
    /// no pod.
    fn next(&self, sets: &mut Vec<Vec<usize>>) -> Option<(Vec<usize>, Packing, BTreeSet<String>)> {
        let packed = |set: &Vec<usize>| {
            let room = set.iter().map(|at| self.choices[*at].room).fold(0, u32::saturating_add);
            let offer = &self.choices[set[0]].offer;
            pack(offer, room.min(NODES_MAX), &self.pending, self.groups)
        };
        let mut packings: Vec<(Vec<usize>, Packing)> =
            sets.drain(..).map(|set| (set.clone(), packed(&set))).collect();
        packings.retain(|(_, packing)| !packing.nodes.is_empty());
        let mut chosen: Vec<usize> = (0..packings.len()).collect();
        for expander in self.flags.expanders() {
            let score = |at: &usize| packings[*at].1.score(expander);
            // Random, and expanders with rules of their own, may choose any of the rest.
            let Some(best) = chosen.iter().filter_map(score).max() else { break };
            chosen.retain(|at| score(at) == Some(best));
        }
        let first = *chosen.first()?;
        let names = |at: &usize| packings[*at].0.iter().map(|at| self.choices[*at].name.clone());
        let instead = chosen.iter().skip(1).flat_map(names).collect();
        let (set, packing) = packings.remove(first);
        sets.extend(packings.into_iter().map(|(set, _)| set));
        Some((set, packing, instead))
    }

    /// Distributes new nodes over similar groups, each to the smallest group with room. Returns for
    /// each group its nodes and pods.
    fn distribute(
        &self,
        set: &[usize],
        packing: Packing,
    ) -> Vec<(usize, u32, BTreeMap<usize, u32>)> {
        let mut grown: Vec<(usize, u32, BTreeMap<usize, u32>)> =
            set.iter().map(|at| (*at, 0, BTreeMap::new())).collect();
        for node in packing.nodes {
            let has_room = |at: usize, added: u32| added < self.choices[at].room;
            let smallest = grown
                .iter_mut()
                .filter(|(at, added, _)| has_room(*at, *added))
                .min_by_key(|(at, added, _)| self.choices[*at].size.saturating_add(*added));
            let Some((_, added, pods)) = smallest else { break };
            *added += 1;
            for (group, count) in node {
                *pods.entry(group).or_insert(0) += count;
            }
        }
        grown.retain(|(_, added, _)| *added > 0);
        grown
    }
}
