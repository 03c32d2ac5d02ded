//! Retains nodes that would be replaced by equal ones.
//!
//! A cheaper fleet may lack a node and launch an equal one: of the same pool, instance type, zone
//! and capacity type. If the removed node has room for the pods of the launch beside its own, the
//! launch is not needed. Its pods are planned on the removed node instead, and no pod of it moves.
//!
//! Invariant: no plan removes a node without pods to save cost, and launches an equal node whose
//! pods the removed node admits and has room for.

use std::collections::{BTreeMap, BTreeSet};

use super::consolidate::price_or_minimum;
use super::existing_node::zone_of;
use super::idle_removal::idle_nodes;
use super::layout::{Layout, PodsByClass};
use super::node_disposition::NodeDisposition;
use super::node_packing::PodSet;
use super::problem::{Problem, VerifiedFleet};
use super::repair::{is_simulated, pin_offers, repair};
use super::scheduling_runs::CoveredOrders;
use super::simulation::Simulation;
use super::strategy::{SolvedFleet, Strategy};
use super::target_fleet::NodeRef;
use super::tie_break_sampling::passes_same_samples;
use super::work_budget::WorkBudget;

/// Retains a node instead of a new one of the same kind.
pub(super) struct EqualNodeReuse;

impl Strategy for EqualNodeReuse {
    fn improve(&self, simulation: &mut Simulation, current: SolvedFleet) -> SolvedFleet {
        let problem = simulation.problem;
        let mut solved = current;
        let pairs = equal_pairs(problem, &solved.fleet.layout, &solved.fleet.offers);
        let all = reused(simulation, &solved.fleet, &pairs, CoveredOrders::All);
        if let Some(fleet) = all.filter(|fleet| is_as_good(simulation, fleet, &solved.fleet)) {
            solved.fleet = fleet;
        }
        // Each retained node may make another pair, or end one.
        let mut declined = BTreeSet::new();
        let next = |fleet: &VerifiedFleet, declined: &BTreeSet<usize>| {
            (0..problem.existing.len())
                .find(|node| !declined.contains(node) && is_replaced(problem, fleet, *node))
        };
        while let Some(node) = next(&solved.fleet, &declined) {
            match retain(simulation, &solved, node) {
                Some(RetainedNode { fleet, is_covered }) => {
                    declined.clear();
                    solved.fleet = fleet;
                    solved.is_partly_covered |= !is_covered;
                }
                None => drop(declined.insert(node)),
            }
        }
        solved
    }
}

/// A removed node, and an equal new node whose pods it can hold.
#[derive(Debug, Clone, Copy)]
struct EqualPair {
    node: usize,
    launch: usize,
}

/// Returns true if a node is removed to save cost, and a new one of its kind is launched.
fn is_replaced(problem: &Problem, fleet: &VerifiedFleet, node: usize) -> bool {
    let alike = |offer: &usize| problem.offers[*offer].is_same_kind_as(&problem.existing[node]);
    is_removed_for_cost(problem, &fleet.layout, node) && fleet.offers.iter().any(alike)
}

fn is_removed_for_cost(problem: &Problem, layout: &Layout, node: usize) -> bool {
    let existing = &problem.existing[node];
    let is_optional = match existing.disposition {
        NodeDisposition::Consolidatable | NodeDisposition::RemoveWhenEmpty(_) => true,
        NodeDisposition::Keep(_) | NodeDisposition::Retire(_) => false,
    };
    is_optional && !layout.retained[node] && !existing.is_planned
}

/// Returns disjoint pairs of removed nodes and equal launches.
fn equal_pairs(problem: &Problem, layout: &Layout, offers: &[usize]) -> Vec<EqualPair> {
    let mut used = BTreeSet::new();
    let removed =
        (0..problem.existing.len()).filter(|node| is_removed_for_cost(problem, layout, *node));
    removed.filter_map(|node| equal_pair(problem, (layout, offers), node, &mut used)).collect()
}

/// Returns an equal launch of a removed node that is not in `used`, and adds it there.
fn equal_pair(
    problem: &Problem,
    (layout, offers): (&Layout, &[usize]),
    node: usize,
    used: &mut BTreeSet<usize>,
) -> Option<EqualPair> {
    let existing = &problem.existing[node];
    let zone = zone_of(&existing.labels);
    let launch = (0..offers.len()).find(|launch| {
        let offer = &problem.offers[offers[*launch]];
        !used.contains(launch)
            && offer.is_same_kind_as(existing)
            && zone == Some(offer.node.zone.as_str())
            && holds(problem, layout, EqualPair { node, launch: *launch })
    })?;
    used.insert(launch);
    Some(EqualPair { node, launch })
}

/// Returns true if the node has room for the pods of the launch beside those that run there.
fn holds(problem: &Problem, layout: &Layout, pair: EqualPair) -> bool {
    let bin = &problem.model.bins[pair.node];
    let mut pods = layout.packing.new_nodes[pair.launch].pods.clone();
    let is_needless = pods.is_empty();
    for (class, running) in running_pods(problem, pair.node) {
        let here = pods.entry(class).or_insert(0);
        *here = running.max(*here);
    }
    bin.schedulable
        && (is_needless || PodSet::new(problem.model, &pods).fits(&bin.room, &bin.admits))
}

/// Returns the planned pods that run on a node and may stay there, by class.
fn running_pods<'p>(problem: &'p Problem, node: usize) -> impl Iterator<Item = (usize, u32)> + 'p {
    let bin = &problem.model.bins[node];
    let running = bin.running.iter().copied().enumerate();
    running.filter(|(class, pods)| *pods > 0 && bin.admits[*class])
}

/// Returns the layout with the nodes of `pairs` instead of their launches.
fn substitute(problem: &Problem, fleet: &VerifiedFleet, pairs: &[EqualPair]) -> Layout {
    let mut layout = pin_offers(fleet);
    for EqualPair { node, launch } in pairs.iter().copied() {
        let new_node = &mut layout.packing.new_nodes[launch];
        let mut pods = std::mem::take(&mut new_node.pods);
        let price = problem.model.offer_classes[new_node.offer_class].price;
        layout.price = layout.price - price + price_or_minimum(&problem.existing[node]);
        let mut staying = PodsByClass::new();
        for (class, running) in running_pods(problem, node) {
            let here = pods.get(&class).copied().unwrap_or(0);
            let returning = take_arriving(&mut layout, class, running.saturating_sub(here));
            let stays = running.min(here + returning);
            if stays > 0 {
                staying.insert(class, stays);
                pods.insert(class, here + returning);
            }
        }
        layout.retained[node] = true;
        layout.pods_on[node] = pods;
        layout.staying[node] = staying;
    }
    let needless: BTreeSet<usize> = pairs.iter().map(|pair| pair.launch).collect();
    let new_nodes = std::mem::take(&mut layout.packing.new_nodes).into_iter().enumerate();
    layout.packing.new_nodes =
        new_nodes.filter(|(index, _)| !needless.contains(index)).map(|(_, node)| node).collect();
    layout
}

/// Removes up to `wanted` arriving pods of a class, from new nodes first, and returns their number.
fn take_arriving(layout: &mut Layout, class: usize, wanted: u32) -> u32 {
    let new = layout.packing.new_nodes.iter_mut().map(|node| (&mut node.pods, 0));
    let existing = layout.pods_on.iter_mut().zip(&layout.staying);
    let existing = existing.map(|(on, staying)| (on, staying.get(&class).copied().unwrap_or(0)));
    let mut taken = 0;
    for (on, staying) in new.chain(existing) {
        let Some(count) = on.get_mut(&class) else { continue };
        let part = count.saturating_sub(staying).min(wanted - taken);
        *count -= part;
        taken += part;
        if *count == 0 {
            on.remove(&class);
        }
    }
    taken
}

/// Returns the fleet with the nodes of `pairs` instead of their launches, if every run of these
/// orders places all pods.
fn reused(
    simulation: &Simulation,
    fleet: &VerifiedFleet,
    pairs: &[EqualPair],
    orders: CoveredOrders,
) -> Option<VerifiedFleet> {
    if pairs.is_empty() {
        return None;
    }
    let problem = simulation.problem;
    let layout = substitute(problem, fleet, pairs);
    let packed_price = fleet.packed_price.min(layout.price);
    if !is_simulated(problem.groups) {
        return Some(VerifiedFleet { packed_price, ..problem.as_packed(&layout) });
    }
    let work = &mut WorkBudget::unlimited();
    let reused = simulation.simulate_orders(&layout, fleet.unplaced.clone(), orders, work)?;
    let is_idle = problem.settings.steer && idle_nodes(&reused).len() > idle_nodes(fleet).len();
    (!is_idle).then_some(VerifiedFleet { packed_price, ..reused })
}

/// Returns true if `next` leaves the same pods and passes every sample that `current` passes.
fn is_as_good(simulation: &Simulation, next: &VerifiedFleet, current: &VerifiedFleet) -> bool {
    let work = &mut WorkBudget::unlimited();
    next.unplaced == current.unplaced && passes_same_samples(simulation, next, current, 0, work)
}

/// A fleet with a retained node.
struct RetainedNode {
    fleet: VerifiedFleet,
    /// True if every run places all pods.
    is_covered: bool,
}

/// Returns the fleet with one replaced node. `None` if that costs more, and the node has pods or
/// cannot hold those of an equal launch.
fn retain(simulation: &mut Simulation, solved: &SolvedFleet, node: usize) -> Option<RetainedNode> {
    let (problem, fleet) = (simulation.problem, &solved.fleet);
    let (price, is_steered) = (fleet.layout.price, problem.settings.steer);
    let pair = equal_pair(problem, (&fleet.layout, &fleet.offers), node, &mut BTreeSet::new());
    let pairs: Vec<EqualPair> = pair.into_iter().collect();
    let in_all_orders = reused(simulation, fleet, &pairs, CoveredOrders::All);
    if let Some(next) = in_all_orders.as_ref().filter(|next| is_as_good(simulation, next, fleet)) {
        return Some(RetainedNode { fleet: next.clone(), is_covered: true });
    }
    let mut retained = fleet.layout.retained.clone();
    retained[node] = true;
    let other = repair(simulation, &problem.layout(retained));
    let is_mandatory = pair.is_some() && running_pods(problem, node).next().is_none();
    // Without nominations, the removal may not pay at all: the node receives pods until its drain.
    let price_max =
        if is_mandatory && !is_steered { price.max(solved.baseline_price) } else { price };
    let is_idle = is_steered && idle_nodes(&other).len() > idle_nodes(fleet).len();
    if other.layout.price <= price_max && !is_idle && is_as_good(simulation, &other, fleet) {
        let packed_price = fleet.packed_price.min(other.packed_price);
        let fleet = VerifiedFleet { packed_price, ..other };
        return Some(RetainedNode { fleet, is_covered: true });
    }
    let pair = pair.filter(|_| is_mandatory)?;
    if let Some(fleet) = in_all_orders {
        return Some(RetainedNode { fleet, is_covered: true });
    }
    let next = [CoveredOrders::Likely, CoveredOrders::Declared]
        .into_iter()
        .find_map(|orders| reused(simulation, fleet, &pairs, orders));
    let fleet = next.unwrap_or_else(|| renamed(problem, fleet, pair));
    Some(RetainedNode { fleet, is_covered: false })
}

/// Returns the fleet with the node of a pair instead of its launch, and every pod where it was.
fn renamed(problem: &Problem, fleet: &VerifiedFleet, pair: EqualPair) -> VerifiedFleet {
    let layout = substitute(problem, fleet, &[pair]);
    let place = |node_ref: &NodeRef| match node_ref {
        NodeRef::Launch(index) if *index == pair.launch => {
            NodeRef::Existing(problem.existing[pair.node].name.clone())
        }
        NodeRef::Launch(index) if *index > pair.launch => NodeRef::Launch(index - 1),
        NodeRef::Launch(_) | NodeRef::Existing(_) => node_ref.clone(),
    };
    let of_group = |nodes: &BTreeMap<NodeRef, u32>| {
        nodes.iter().map(|(node_ref, pods)| (place(node_ref), *pods)).collect()
    };
    let placements =
        fleet.placements.iter().map(|(group, nodes)| (*group, of_group(nodes))).collect();
    let mut offers = fleet.offers.clone();
    offers.remove(pair.launch);
    let packed_price = fleet.packed_price.min(layout.price);
    VerifiedFleet { layout, offers, placements, unplaced: fleet.unplaced.clone(), packed_price }
}
