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

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use packing::{Packing, Rules, WorkBudget, pack};

use super::capacity_mix::growth_price;
use super::external::{add_observed_group, unread_part};
use super::{LAUNCH_PROCESS, is_bare, live_group, member_count};
use crate::demand::{Demand, PodGroup};
use crate::model::cluster_autoscaler::{AutoscalerFlags, ClusterAutoscaler, cluster_autoscalers};
use crate::model::desired::{Desired, ExternalGroup, NodeGroup};
use crate::model::expander_priorities::{GroupPriorities, PRIORITY_EXPANDER};
use crate::model::ids::{GroupName, Origin, PoolName, WorkloadId, workload_key};
use crate::model::observed::Group;
use crate::model::requirement::key;
use crate::model::units::MicroUsd;
use crate::solver::Input;
use crate::solver::attach_limits::VolumeLimits;
use crate::solver::node_template::{NodeTemplate, RequestedLabels};
use crate::solver::offer::{Offer, OfferInput, PoolRefusal, admits};
use crate::solver::target_builder::PodPlacements;
use crate::solver::unschedulable::refusal_message;

/// Maximum number of nodes that one group is expected to add, as in `--max-nodes-per-scaleup`.
const NODES_MAX: u32 = 1_000;

/// Maximum number of steps: attempts to add pods to a node, and comparisons of groups.
const STEPS_MAX: u64 = 2_000_000;

const CUT_SHORT: &str = "too many pods and node groups to compute all scale-ups of Cluster \
                         Autoscaler: further pods that it serves count as unschedulable";

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

/// Groups that Cluster Autoscaler scales up, with messages about groups and pods that are not counted.
#[derive(Debug, Default)]
pub(in crate::solver) struct Growths {
    /// In the order of names.
    pub(in crate::solver) groups: Vec<GroupGrowth>,
    pub(in crate::solver) messages: Vec<String>,
}

/// Moves pods from `placements.unplaced` to the groups that Cluster Autoscaler scales up for them.
/// Pods for which `waits` is false stay.
pub(in crate::solver) fn grow(
    input: &Input,
    groups: &[PodGroup],
    placements: &mut PodPlacements,
    waits: impl Fn(usize) -> bool,
) -> Growths {
    let mut growths = Growths::default();
    if placements.unplaced.is_empty() {
        return growths;
    }
    let found = cluster_autoscalers(input.desired, input.observed).into_iter();
    let acting = found.filter(|autoscaler| acts(autoscaler, input.demand, groups, placements));
    let acting: Vec<(&WorkloadId, &AutoscalerFlags)> =
        acting.filter_map(|autoscaler| Some((autoscaler.workload, autoscaler.flags?))).collect();
    let with_observed = with_observed_groups(input, &acting, &mut growths.messages);
    let desired = &*with_observed;
    let mut budget = WorkBudget::new(STEPS_MAX);
    for (autoscaler, flags) in acting {
        let rules = Rules::new(input, groups, flags.priority_cutoff());
        let mut pending = placements.unplaced.clone();
        pending.retain(|at, _| waits(*at) && rules.is_expected(&groups[*at].shape));
        if pending.is_empty() {
            continue;
        }
        let mut choices = choices(input, desired, flags, &mut growths.messages);
        let is_taken = |choice: &Choice| {
            growths.groups.iter().any(|growth| growth.group == choice.group.name.as_str())
        };
        choices.retain(|choice| !is_taken(choice));
        let priorities = priorities(input, flags, &choices);
        let budget = &mut budget;
        let mut round = ScaleUp { groups, flags, pending, choices, priorities, budget };
        let mut sets = round.similar_sets();
        while let Some(chosen) = round.choose_set(&mut sets) {
            for GroupShare { group: at, nodes, pods } in round.distribute(&chosen) {
                for (group, count) in &pods {
                    take(&mut placements.unplaced, *group, *count);
                    take(&mut round.pending, *group, *count);
                }
                let choice = &round.choices[at];
                let named = |(group, n): (usize, u32)| (workload_key(&groups[group].workload), n);
                let mut by_workload = BTreeMap::new();
                for (workload, count) in pods.into_iter().map(named) {
                    *by_workload.entry(workload).or_insert(0) += count;
                }
                growths.groups.push(GroupGrowth {
                    group: choice.group.name.to_string(),
                    autoscaler: autoscaler.to_string(),
                    nodes,
                    maximum: choice.sizes.maximum,
                    hourly: choice.price_of(input, nodes),
                    pods: by_workload,
                    instead: chosen.alternatives.clone(),
                });
            }
        }
    }
    if budget.is_exhausted() {
        growths.messages.push(CUT_SHORT.to_owned());
    }
    growths.groups.sort_by(|a, b| a.group.cmp(&b.group));
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
    placements: &PodPlacements,
) -> bool {
    let is_one = |group: &usize| groups[*group].workload == *autoscaler.workload;
    autoscaler.is_running
        || placements.by_group.iter().any(|(group, nodes)| is_one(group) && !nodes.is_empty())
        || demand.fargate.iter().any(|taken| taken.workload == *autoscaler.workload)
}

/// A group that Cluster Autoscaler may scale up.
struct Choice<'a> {
    group: &'a NodeGroup,
    /// Name of its Auto Scaling group; `None` before it exists.
    live: Option<&'a GroupName>,
    sizes: GroupSizes,
    /// Its next node.
    offer: Offer,
    /// Price per hour of its next node; `None` if it is unknown.
    price: Option<MicroUsd>,
}

impl Choice<'_> {
    /// Returns the price per hour of the next `nodes` nodes.
    fn price_of(&self, input: &Input, nodes: u32) -> Option<MicroUsd> {
        let price = self.price?;
        let mixed = growth_price(input, self.group, &self.offer.node, nodes);
        Some(mixed.unwrap_or_else(|| price.times(i64::from(nodes))))
    }
}

/// Returns the groups that the flags select and whose next node is known, in the order of names.
/// Adds a message for each other group that the flags select.
fn choices<'a>(
    input: &Input<'a>,
    desired: &'a Desired,
    flags: &AutoscalerFlags,
    messages: &mut Vec<String>,
) -> Vec<Choice<'a>> {
    let Input { observed, catalog, at, demand, .. } = *input;
    let supply = OfferInput { desired, catalog, observed, at };
    let attach = VolumeLimits::new(desired, observed, catalog, demand);
    let mut choices = Vec::new();
    for group in desired.node_groups.values() {
        let Some(sizes) = selected_sizes(group, flags, input) else { continue };
        match next_node(group, &supply, demand) {
            Ok((price, mut offer)) => {
                attach.limit_offers([&mut offer]);
                let live = live_group(group, observed).map(|live| &live.name);
                choices.push(Choice { group, live, sizes, offer, price });
            }
            // A message about its unknown types exists already.
            Err(_) if group.types.is_empty() => {}
            Err(why) => messages.push(format!(
                "no pod counts as served by group {}, which Cluster Autoscaler may scale up: {why}",
                group.name
            )),
        }
    }
    choices
}

/// Returns the priority of each choice for the expander `priority`, or `None` if they are not known.
/// Expressions match names, which are not known before the groups exist.
fn priorities(
    input: &Input,
    flags: &AutoscalerFlags,
    choices: &[Choice<'_>],
) -> Option<Vec<Option<i64>>> {
    flags.expanders().find(|name| *name == PRIORITY_EXPANDER)?;
    match GroupPriorities::find(flags, input.desired, input.observed) {
        GroupPriorities::Unknown(_) => None,
        GroupPriorities::Absent => Some(vec![None; choices.len()]),
        found @ GroupPriorities::Levels(_) => {
            let priority = |choice: &Choice<'_>| Some(found.of_group(choice.live?.as_str()));
            choices.iter().map(priority).collect()
        }
    }
}

/// Returns the cheapest next node of a group with its price, or the reason why it is unknown.
fn next_node(
    group: &NodeGroup,
    supply: &OfferInput<'_>,
    demand: &Demand,
) -> Result<(Option<MicroUsd>, Offer), String> {
    let pool = supply.desired.pools.get(&group.name);
    let pool = pool.ok_or_else(|| "it has no readable settings".to_owned())?;
    let template = NodeTemplate::of_any_group(pool, supply).map_err(|refusal| {
        if let PoolRefusal::Group { why } = refusal {
            why
        } else {
            refusal_message(&pool.name, &refusal)
        }
    })?;
    let stock = template.pool_offers(&RequestedLabels::default(), &demand.daemons);
    let priced = stock.offers.into_iter().map(|offer| (Some(offer.node.price), offer));
    let unpriced = stock.unpriced.into_iter().map(|offer| (None, offer));
    let least = |(price, _): &(Option<MicroUsd>, Offer)| *price;
    let next = priced.min_by_key(least).or_else(|| unpriced.min_by_key(least));
    let region = supply.observed.region();
    next.ok_or_else(|| match group.zones.iter().find(|zone| zone.is_edge_of(&region)) {
        Some(zone) => format!(
            "its zone {zone} is a Local Zone or Wavelength Zone, whose offerings are not read"
        ),
        None => "none of its types is available in its zones".to_owned(),
    })
}

/// Returns the desired state with a pool for each observed group that a Cluster Autoscaler selects
/// and no file describes. Adds messages about those that are not added, or not read completely.
fn with_observed_groups<'a>(
    input: &Input<'a>,
    acting: &[(&WorkloadId, &AutoscalerFlags)],
    messages: &mut Vec<String>,
) -> Cow<'a, Desired> {
    let Input { desired, observed, .. } = *input;
    let mut all = Cow::Borrowed(desired);
    let is_declared = |live: &Group| {
        desired.node_groups.values().any(|group| group.matches_live_group(&live.name, &live.tags))
    };
    let is_selected = |live: &Group| {
        let bounds = (live.min, live.max);
        let selects = |flags: &AutoscalerFlags| flags.bounds(Some(&live.name), &live.tags, bounds);
        acting.iter().any(|(_, flags)| selects(flags).is_some())
    };
    for live in observed.groups.values().filter(|live| is_selected(live) && !is_declared(live)) {
        let name = PoolName::from(live.name.as_str());
        if desired.pools.contains_key(&name) {
            messages.push(format!(
                "no pod counts as served by Auto Scaling group {name}, which Cluster Autoscaler may \
                 scale up: a pool has the same name"
            ));
            continue;
        }
        messages.extend(unread_part(&name, live, observed).map(|unread| unread.message));
        let found = ExternalGroup { manage: false, origin: Origin::new("", 0) };
        add_observed_group(all.to_mut(), &name, &found, live, observed);
    }
    all
}

/// Sizes of a group that Cluster Autoscaler may scale up.
struct GroupSizes {
    current: u32,
    /// Number of nodes that it may still add.
    room: u32,
    maximum: u32,
}

/// Returns the sizes of a group, if the flags select it, Auto Scaling launches its nodes, and it is
/// not full. Members that are still missing are launched anyway, so that their room counts.
///
/// No room counts twice: the plan resizes no group while a Cluster Autoscaler may (`group_resizer`).
fn selected_sizes(group: &NodeGroup, flags: &AutoscalerFlags, input: &Input) -> Option<GroupSizes> {
    let Input { observed, .. } = *input;
    let Some(live) = live_group(group, observed) else {
        // In an empty world, the group is created with the cluster.
        let bounds = flags.bounds(None, &group.tags_at_creation(), (group.min, group.max));
        let (_, maximum) = bounds.filter(|_| is_bare(observed))?;
        return Some(GroupSizes { current: 0, room: maximum, maximum });
    };
    let (_, maximum) = flags.bounds(Some(&live.name), &live.tags, (live.min, live.max))?;
    let room = maximum.saturating_sub(member_count(observed, &live.name));
    let is_suspended = live.suspended.iter().any(|process| process == LAUNCH_PROCESS);
    let may_grow = !is_suspended && room > 0;
    may_grow.then_some(GroupSizes { current: live.desired, room, maximum })
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
    choices: Vec<Choice<'a>>,
    /// Priority of each choice, if one matches; `None` if priorities are not known.
    priorities: Option<Vec<Option<i64>>>,
    budget: &'a mut WorkBudget,
}

/// Groups that grow together, by their index in the choices.
struct SimilarGroups {
    groups: Vec<usize>,
    /// Nodes for the pending pods; `None` if they are not computed yet.
    packing: Option<Packing>,
}

/// The groups that the expander chooses.
struct ChosenSet {
    /// Groups of the set, by their index in the choices.
    groups: Vec<usize>,
    /// Nodes for the pending pods.
    packing: Packing,
    /// Names of groups that the expander may choose instead.
    alternatives: BTreeSet<String>,
}

/// Nodes that a scale-up adds to one group, and their pods.
struct GroupShare {
    /// Index in the choices.
    group: usize,
    nodes: u32,
    pods: BTreeMap<usize, u32>,
}

impl ScaleUp<'_> {
    /// Returns the sets of groups that grow together: similar groups if they are balanced, else
    /// single groups.
    fn similar_sets(&mut self) -> Vec<SimilarGroups> {
        if !self.flags.balances {
            let single = |at| SimilarGroups { groups: vec![at], packing: None };
            return (0..self.choices.len()).map(single).collect();
        }
        let mut sets: Vec<(Vec<bool>, Vec<usize>)> = Vec::new();
        for (index, choice) in self.choices.iter().enumerate() {
            if self.budget.spend(self.pending.len() + sets.len()).is_none() {
                return Vec::new();
            }
            let node = &choice.offer.node;
            let shapes = self.pending.keys().map(|group| &self.groups[*group].shape);
            let admitted: Vec<bool> =
                shapes.map(|shape| admits(shape, &node.labels, &node.taints)).collect();
            let joins = |(of_set, set): &&mut (Vec<bool>, Vec<usize>)| {
                let first = &self.choices[set[0]];
                *of_set == admitted && is_similar(&first.offer, &choice.offer, self.flags)
            };
            match sets.iter_mut().find(joins) {
                Some((_, set)) => set.push(index),
                None => sets.push((admitted, vec![index])),
            }
        }
        sets.into_iter().map(|(_, groups)| SimilarGroups { groups, packing: None }).collect()
    }

    /// Removes the set of groups that the expander chooses for the pending pods, and sets that help
    /// no pod. Returns `None` if no set helps, or if the budget is exhausted.
    fn choose_set(&mut self, sets: &mut Vec<SimilarGroups>) -> Option<ChosenSet> {
        self.pack_missing(sets)?;
        sets.retain(|set| set.packing.as_ref().is_some_and(|packing| !packing.nodes.is_empty()));
        let chosen = self.best_sets(sets);
        let first = *chosen.first()?;
        let others = chosen.iter().skip(1).flat_map(|at| sets[*at].groups.clone());
        let alternatives = others.map(|at| self.choices[at].group.name.to_string()).collect();
        let SimilarGroups { groups, packing } = sets.remove(first);
        let packing = packing?;
        invalidate_packings(sets, &packing);
        Some(ChosenSet { groups, packing, alternatives })
    }

    /// Packs the pending pods on nodes of each set without a packing. Returns `None` if the budget is
    /// exhausted.
    fn pack_missing(&mut self, sets: &mut [SimilarGroups]) -> Option<()> {
        for set in sets.iter_mut().filter(|set| set.packing.is_none()) {
            let room = set.groups.iter().map(|at| self.choices[*at].sizes.room);
            let most = room.fold(0, u32::saturating_add).min(NODES_MAX);
            let offer = &self.choices[set.groups[0]].offer;
            set.packing = Some(pack(offer, most, &self.pending, self.groups, self.budget)?);
        }
        Some(())
    }

    /// Returns the sets that the expanders rank equally and best, by index.
    fn best_sets(&self, sets: &[SimilarGroups]) -> Vec<usize> {
        let mut best_sets: Vec<usize> = (0..sets.len()).collect();
        for expander in self.flags.expanders() {
            if let (PRIORITY_EXPANDER, Some(known)) = (expander, &self.priorities) {
                // Without a match, all are of equal rank.
                let priority =
                    |at: &usize| sets[*at].groups.iter().map(|group| known[*group]).max();
                let best = best_sets.iter().map(priority).max();
                best_sets.retain(|at| Some(priority(at)) == best);
                continue;
            }
            let score = |at: &usize| sets[*at].packing.as_ref()?.score(expander);
            // Random, and expanders with rules of their own, may choose any of the rest.
            let Some(best) = best_sets.iter().filter_map(score).max() else { break };
            best_sets.retain(|at| score(at) == Some(best));
        }
        best_sets
    }

    /// Distributes new nodes over similar groups, each to the smallest group with room.
    fn distribute(&self, chosen: &ChosenSet) -> Vec<GroupShare> {
        let empty = |at: &usize| GroupShare { group: *at, nodes: 0, pods: BTreeMap::new() };
        let mut shares: Vec<GroupShare> = chosen.groups.iter().map(empty).collect();
        let sizes = |share: &GroupShare| &self.choices[share.group].sizes;
        for node in &chosen.packing.nodes {
            let with_room = shares.iter_mut().filter(|share| share.nodes < sizes(share).room);
            let smallest =
                with_room.min_by_key(|share| sizes(share).current.saturating_add(share.nodes));
            let Some(share) = smallest else { break };
            share.nodes += 1;
            for (group, count) in node {
                *share.pods.entry(*group).or_insert(0) += count;
            }
        }
        shares.retain(|share| share.nodes > 0);
        shares
    }
}

/// Drops the packings of pods that a chosen packing places. Other packings stay the same.
fn invalidate_packings(sets: &mut [SimilarGroups], chosen: &Packing) {
    let placed: BTreeSet<usize> = chosen.pod_groups().collect();
    for set in sets {
        set.packing.take_if(|packing| packing.pod_groups().any(|at| placed.contains(&at)));
    }
}
