//! Explains why the pods of a workload are not on the nodes that hold none of them.
//!
//! The scheduler model holds the verified fleet with every pod bound, and is asked whether one more
//! pod of the workload fits each node. The result explains a placement and decides nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::super::problem::{Problem, VerifiedFleet};
use super::super::repair::is_simulated;
use super::super::scheduling_runs::planned_pods;
use super::super::simulation::Simulation;
use super::super::target_fleet::NodeRef;
use super::super::unschedulable::explain_unfit;
use super::Rescue;
use crate::model::code::Code;
use crate::model::reason::Rejection;
use crate::model::units::Resources;
use crate::scheduler::{ScheduleNode, UnfitReason};

/// Workloads times nodes above which explanations are skipped, to keep planning fast.
const WORK_MAX: usize = 100_000;

/// Pods times nodes above which the fleet is not simulated once more for explanations.
const SIMULATION_WORK_MAX: u64 = 20_000_000;

/// Maximum number of reasons of one workload.
const REASONS_MAX: usize = 8;

/// Returns, by original group, the reasons that keep its placed pods off the nodes without a pod of
/// it, with counts; empty for fleets that are too large. `group_of` has the original group of each
/// group. A node that only some variants of the pods can reach has their reason.
pub(in super::super) fn placement_rejections(
    simulation: &Simulation,
    fleet: &VerifiedFleet,
    group_of: &[usize],
) -> BTreeMap<usize, Vec<Rejection>> {
    let problem = simulation.problem;
    let nodes = problem.existing.len() + fleet.offers.len();
    let work =
        planned_pods(problem.groups).saturating_mul(u64::try_from(nodes).unwrap_or(u64::MAX));
    if problem.groups.len().saturating_mul(nodes) > WORK_MAX
        || work > SIMULATION_WORK_MAX
        || !is_simulated(problem.groups)
    {
        return BTreeMap::new();
    }
    let rescue = Rescue::new(simulation, fleet);
    let state = simulation.initial_state(&fleet.layout, &fleet.offers);
    let mut variants: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (group, original) in group_of.iter().enumerate() {
        if fleet.placements.contains_key(&group) {
            variants.entry(*original).or_default().push(group);
        }
    }
    let of_variants = |variants: &[usize]| {
        let has_pod = |place: &NodeRef| {
            variants.iter().any(|group| fleet.placements[group].contains_key(place))
        };
        let mut counts: BTreeMap<(String, String), u32> = BTreeMap::new();
        let all = state.nodes_with_offers().zip(rescue.scheduler.nodes());
        for ((node, place, offer), at) in all.filter(|((_, place, _), _)| !has_pod(place)) {
            let unfit = |group: &usize| {
                let reasons = rescue.scheduler.fits(state.classes[*group], at).err();
                (*group, reasons.and_then(|reasons| reasons.into_iter().next()))
            };
            let mut each = variants.iter().map(unfit);
            let reaches = |(_, reason): &(usize, Option<UnfitReason>)| {
                *reason != Some(UnfitReason::VolumeElsewhere)
            };
            let (code, detail) = match each.find(reaches) {
                Some((group, reason)) => {
                    let shape = &problem.groups[group].shape;
                    match reason {
                        None => ("as-good", "it would hold one as well".to_owned()),
                        Some(UnfitReason::Insufficient(resource))
                            if shape.requests.fits(&room_of(problem, place, offer)) =>
                        {
                            ("full", format!("its {resource} is taken by other pods"))
                        }
                        Some(UnfitReason::TooManyPods) => {
                            ("full", "it runs as many pods as it may".to_owned())
                        }
                        Some(reason) => explain_unfit(shape, node, &reason),
                    }
                }
                None => explain_volumes_elsewhere(problem, variants, node),
            };
            *counts.entry((code.to_owned(), detail)).or_insert(0) += 1;
        }
        let mut list: Vec<Rejection> = counts
            .into_iter()
            .map(|((reason, detail), count)| Rejection { reason, detail, count })
            .collect();
        list.sort_by_key(|rejection| (Reverse(rejection.count), rejection.clone()));
        list.truncate(REASONS_MAX);
        list
    };
    variants.into_iter().map(|(original, groups)| (original, of_variants(&groups))).collect()
}

/// Explains a node that reaches the volumes of no variant of the pods.
fn explain_volumes_elsewhere(
    problem: &Problem,
    variants: &[usize],
    node: &ScheduleNode,
) -> (&'static str, String) {
    if let [only] = variants {
        let shape = &problem.groups[*only].shape;
        return explain_unfit(shape, node, &UnfitReason::VolumeElsewhere);
    }
    let detail = "it reaches the volumes of none of the pods".to_owned();
    (Code::VolumeElsewhere.as_str(), detail)
}

/// Returns the resources of a node for pods other than DaemonSet pods.
fn room_of(problem: &Problem, place: &NodeRef, offer: Option<usize>) -> Resources {
    match (place, offer) {
        (NodeRef::Existing(name), _) => problem.existing[problem.index_of(name)].room.clone(),
        (NodeRef::Launch(_), Some(offer)) => problem.offers[offer].room.clone(),
        (NodeRef::Launch(_), None) => Resources::default(),
    }
}
