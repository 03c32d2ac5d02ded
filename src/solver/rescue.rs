//! Places leftover pods with the scheduler model.
//!
//! The packing approximates inter-pod rules by amounts. That is fast and sometimes wrong: a pod may
//! fit although the packing has no room for it. Leftover pods are therefore given to the scheduler
//! model one by one, on existing nodes and on nodes that could be launched. The result is simulated
//! like any other before it counts.

mod placement_rejections;

pub(super) use placement_rejections::placement_rejections;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::greedy_packing::PackedNode;
use super::layout::Layout;
use super::limits::RemainingLimits;
use super::offer::Offer;
use super::problem::VerifiedFleet;
use super::repair::{is_simulated, pin_offers};
use super::simulation::Simulation;
use super::simulation_run::BoundClasses;
use super::target_fleet::NodeRef;
use super::work_budget::WorkBudget;
use crate::demand::PodGroup;
use crate::model::ids::{LabelKey, LabelValue, PoolName, WorkloadId};
use crate::scheduler::{ClassIndex, EvictionBudget, NodeIndex, Preemption, Scheduler, UnfitReason};

/// Maximum number of rounds; each retries pods after some were placed.
const ROUNDS_MAX: u32 = 10;

/// Maximum number of pods tried one by one, per group and in total. Each round tries twice as many.
const TRIED_MAX: u32 = 256;
const TRIED_TOTAL_MAX: u32 = 2_048;

/// Number of offers tried at one location before the location is ruled out.
const TRIES_PER_LOCATION: usize = 2;

/// Scheduler state with all pods placed, to query one more pod on nodes that could be launched.
pub(super) struct RescueContext<'a> {
    rescue: Rescue<'a>,
    cached_reasons: BTreeMap<(usize, OfferLocation<'a>), Vec<UnfitReason>>,
    /// Remaining pool limits.
    limits: RemainingLimits,
}

impl<'a> RescueContext<'a> {
    /// Returns the context of a verified fleet.
    pub(super) fn new(simulation: &'a Simulation<'a>, fleet: &VerifiedFleet) -> Self {
        let rescue = Rescue::new(simulation, fleet);
        let limits = simulation.problem.limits_after(&rescue.layout);
        Self { rescue, cached_reasons: BTreeMap::new(), limits }
    }

    /// Returns the context with budgets that evictions respect if possible.
    pub(super) fn with_budgets(mut self, budgets: Vec<EvictionBudget>) -> Self {
        self.rescue.scheduler = self.rescue.scheduler.with_budgets(budgets);
        self
    }

    /// Places one more pod of the group and returns the workloads of the evicted pods: none if the
    /// pod has room, `None` if no eviction helps.
    pub(super) fn evict_for(&mut self, group: usize) -> Option<Vec<&'a WorkloadId>> {
        let (class, simulation) = (self.rescue.classes[group], self.rescue.simulation);
        let scheduler = &mut self.rescue.scheduler;
        if scheduler.try_schedule(class, None).is_some() {
            return Some(Vec::new());
        }
        let Preemption { node, victims } = scheduler.preempt(class)?;
        let groups = self
            .rescue
            .classes
            .iter()
            .zip(simulation.problem.groups.iter().map(|group| &group.workload));
        let daemons = simulation.problem.daemons.iter().map(|daemon| &daemon.workload);
        let known: BTreeMap<ClassIndex, &WorkloadId> = self
            .rescue
            .fixed
            .daemons
            .iter()
            .zip(daemons)
            .chain(groups)
            .map(|(c, w)| (*c, w))
            .collect();
        for victim in &victims {
            scheduler.unbind(*victim, node);
        }
        scheduler.bind(class, node);
        Some(victims.iter().filter_map(|victim| known.get(victim).copied()).collect())
    }

    /// Returns true if the pool limits leave room for one more node of the offer.
    pub(super) fn is_within_limits(&self, offer: usize) -> bool {
        self.limits.allows(self.rescue.simulation.problem.model.class_of_offer[offer])
    }

    /// Returns true if the pool limits leave room once retiring nodes are gone. Until then those
    /// count, because new nodes are launched first.
    pub(super) fn is_within_limits_once_applied(&self, offer: usize) -> bool {
        let Rescue { simulation, layout, .. } = &self.rescue;
        let mut limits = simulation.problem.limits_after(layout);
        let gone = simulation
            .problem
            .existing
            .iter()
            .zip(&layout.retained)
            .filter(|(node, retained)| !node.is_planned && !**retained);
        gone.for_each(|(node, _)| limits.remove_existing(node));
        limits.allows(simulation.problem.model.class_of_offer[offer])
    }

    /// Returns the amounts that the limits of a pool lack for further nodes. `further` holds offers
    /// of this pool with their nodes.
    pub(super) fn limit_shortfall(&self, further: &[(usize, i64)]) -> Vec<(String, i64)> {
        let class_of_offer = &self.rescue.simulation.problem.model.class_of_offer;
        let further = further.iter().map(|(offer, nodes)| (class_of_offer[*offer], *nodes));
        self.limits.shortfall(&further.collect::<Vec<_>>())
    }

    /// Returns the reasons against a pod of the group on a node of the offer that has room.
    pub(super) fn refusal(&mut self, group: usize, offer: usize) -> Vec<UnfitReason> {
        let place = self.rescue.location_of(offer);
        if let Some(known) = self.cached_reasons.get(&(group, place.clone())) {
            return known.clone();
        }
        let at = self.rescue.add_node(offer);
        let reasons =
            self.rescue.scheduler.fits(self.rescue.classes[group], at).err().unwrap_or_default();
        self.rescue.scheduler.remove_node(at);
        self.cached_reasons.insert((group, place), reasons.clone());
        reasons
    }
}

/// The scheduler with all placed pods bound, and nodes that are launched on demand.
struct Rescue<'a> {
    simulation: &'a Simulation<'a>,
    scheduler: Scheduler,
    /// Class of each group.
    classes: Vec<ClassIndex>,
    /// Classes of the pods that start with their node.
    fixed: BoundClasses,
    layout: Layout,
    /// Number of launched nodes.
    launches: usize,
    /// Offers by pool weight, heaviest first; within one weight cheapest first.
    order: Vec<usize>,
    keys: BTreeSet<&'a LabelKey>,
}

/// Returns `fleet` with as many leftover pods placed as the scheduler finds room for.
pub(super) fn rescue(simulation: &mut Simulation, mut fleet: VerifiedFleet) -> VerifiedFleet {
    let groups = simulation.problem.groups;
    let work = &mut WorkBudget::unlimited();
    for round in 0..ROUNDS_MAX {
        if fleet.unplaced.is_empty() || !is_simulated(groups) {
            break;
        }
        let Some(layout) = with_room(simulation, &fleet, 1 << round) else { break };
        let trial = match simulation.passing(&layout, work) {
            Some(passed) => passed,
            None => simulation.exclude_until_passed(&layout, work),
        };
        if trial.unplaced_by_priority(groups) >= fleet.unplaced_by_priority(groups) {
            break;
        }
        fleet = without_idle(simulation, trial, work);
    }
    fleet
}

/// Removes launched nodes whose pods went to other nodes.
pub(super) fn without_idle(
    simulation: &mut Simulation,
    fleet: VerifiedFleet,
    work: &mut WorkBudget,
) -> VerifiedFleet {
    let model = simulation.problem.model;
    let mut layout = pin_offers(&fleet);
    layout.packing.new_nodes.retain(|node| !node.pods.is_empty());
    if layout.packing.new_nodes.len() == fleet.offers.len() {
        return fleet;
    }
    layout.price =
        fleet.layout.price - fleet.layout.packing.price(model) + layout.packing.price(model);
    let leaner = simulation.passing(&layout, work);
    leaner.filter(|leaner| leaner.unplaced == fleet.unplaced).unwrap_or(fleet)
}

/// Returns the layout with room for leftover pods; `times` multiplies the number of pods tried.
fn with_room(simulation: &Simulation, fleet: &VerifiedFleet, times: u32) -> Option<Layout> {
    let problem = simulation.problem;
    let mut rescue = Rescue::new(simulation, fleet);
    let mut groups: Vec<usize> = fleet.unplaced.keys().copied().collect();
    groups.sort_by_key(|group| (Reverse(problem.groups[*group].shape.priority), *group));
    let (mut found, mut asked) = (0, 0);
    for group in groups {
        if !problem.groups[group].shape.unsupported.is_empty() {
            continue;
        }
        let wanted =
            fleet.unplaced[&group].min(TRIED_MAX * times).min(TRIED_TOTAL_MAX * times - asked);
        asked += wanted;
        for _ in 0..wanted {
            if !rescue.place_pod(group) {
                break;
            }
            if let Some(class) = problem.model.classes_of_group[group].last() {
                let left = &mut rescue.layout.packing.left[*class];
                *left = left.saturating_sub(1);
            }
            found += 1;
        }
    }
    (found > 0).then_some(rescue.layout)
}

impl<'a> Rescue<'a> {
    fn new(simulation: &'a Simulation<'a>, fleet: &VerifiedFleet) -> Self {
        let state = simulation.initial_state(&fleet.layout, &fleet.offers);
        let mut scheduler = state.scheduler;
        for (group, places) in &fleet.placements {
            for (place, count) in places {
                let name = match place {
                    NodeRef::Existing(name) => name.clone(),
                    NodeRef::Launch(index) => format!("launch/{index}").as_str().into(),
                };
                let node = scheduler.node(&name).expect("pods are placed on nodes of the scene");
                let stays = state.staying.get(group).and_then(|on| on.get(place)).unwrap_or(&0);
                for _ in *stays..*count {
                    scheduler.bind(state.classes[*group], node);
                }
            }
        }
        let layout = pin_offers(fleet);
        let problem = simulation.problem;
        let keys = rule_topology_keys(problem.groups, problem.offers);
        let launches = fleet.offers.len();
        let mut order: Vec<usize> = (0..simulation.problem.offers.len()).collect();
        order.sort_by_key(|offer| Reverse(simulation.problem.offers[*offer].weight));
        let (classes, fixed) = (state.classes, state.fixed);
        Self { simulation, scheduler, classes, fixed, layout, launches, order, keys }
    }

    /// Places one pod on an existing node, or on a node launched for it.
    fn place_pod(&mut self, group: usize) -> bool {
        let class = self.classes[group];
        self.scheduler.try_schedule(class, None).is_some()
            || self.launch_for(group, class).is_some_and(|node| {
                self.scheduler.bind(class, node);
                true
            })
    }

    /// Returns the location of an offer's nodes for inter-pod rules.
    fn location_of(&self, offer: usize) -> OfferLocation<'a> {
        offer_location(&self.simulation.problem.offers[offer], &self.keys)
    }

    /// Adds a node of the offer, with its DaemonSet pods.
    fn add_node(&mut self, offer: usize) -> NodeIndex {
        let node = self.simulation.launched_node(offer, self.launches);
        let at = self.scheduler.add_node(node.clone());
        let whole = &self.simulation.problem.offers[offer].node.allocatable;
        self.simulation.bind_fixed(&mut self.scheduler, &self.fixed, (&node, at), whole);
        at
    }

    /// Launches the cheapest node on which the scheduler places a pod of the group, of the heaviest
    /// pool that has one.
    fn launch_for(&mut self, group: usize, class: ClassIndex) -> Option<NodeIndex> {
        let simulation = self.simulation;
        let shape = &simulation.problem.groups[group].shape;
        let admitted = simulation.problem.admission.of_group(group);
        let limits = simulation.problem.limits_after(&self.layout);
        let mut wrong: BTreeMap<OfferLocation, usize> = BTreeMap::new();
        for index in self.order.clone() {
            let offer = &simulation.problem.offers[index];
            let column = simulation.problem.model.class_of_offer[index];
            let suits =
                admitted[index] && shape.requests.fits(&offer.room) && limits.allows(column);
            if !suits {
                continue;
            }
            let place = self.location_of(index);
            if wrong.get(&place).is_some_and(|tries| *tries >= TRIES_PER_LOCATION) {
                continue;
            }
            let at = self.add_node(index);
            if self.scheduler.fits(class, at).is_ok() {
                let pods = BTreeMap::new();
                self.layout.packing.new_nodes.push(PackedNode {
                    offer_class: column,
                    pods,
                    offer: Some(index),
                });
                self.layout.price += offer.node.price;
                self.launches += 1;
                return Some(at);
            }
            self.scheduler.remove_node(at);
            *wrong.entry(place).or_insert(0) += 1;
        }
        None
    }
}

/// Properties of an offer that inter-pod rules can distinguish: its pool and its topology labels.
pub(super) type OfferLocation<'a> = (&'a PoolName, Vec<Option<&'a LabelValue>>);

/// Returns the location of an offer's nodes for rules over these keys.
pub(super) fn offer_location<'a>(
    offer: &'a Offer,
    keys: &BTreeSet<&LabelKey>,
) -> OfferLocation<'a> {
    let node = &offer.node;
    (&node.pool, keys.iter().map(|key| node.labels.get(*key)).collect())
}

/// Returns the topology keys of all inter-pod rules that the nodes of some offer have. The other
/// keys do not distinguish offers, and pods may name thousands of them.
pub(super) fn rule_topology_keys<'g>(
    groups: &'g [PodGroup],
    offers: &[Offer],
) -> BTreeSet<&'g LabelKey> {
    let mut keys: BTreeSet<&LabelKey> = groups.iter().flat_map(topology_keys).collect();
    let offered: BTreeSet<&LabelKey> =
        offers.iter().flat_map(|offer| offer.node.labels.keys()).collect();
    keys.retain(|key| offered.contains(key));
    keys
}

fn topology_keys(group: &PodGroup) -> Vec<&LabelKey> {
    let shape = &group.shape;
    let terms = shape.affinity.required.iter().chain(&shape.anti_affinity.required);
    let spread = shape.spread.iter().map(|rule| &rule.topology_key);
    terms.map(|term| &term.topology_key).chain(spread).collect()
}
