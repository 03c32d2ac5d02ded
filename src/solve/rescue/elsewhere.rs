//! What keeps the pods of a workload off the nodes that hold none of them.
//!
//! Asked of the scheduler's model over the fleet as it was settled, every pod in its place: would one
//! more pod of the workload run there? It explains a placement and decides nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::super::rehearse::{Settled, Stage};
use super::super::runs::planned_pods;
use super::super::settle::is_rehearsed;
use super::super::target::{Place, Rejection};
use super::super::unplaced::kept_off;
use super::Rescue;
use crate::schedule::UnfitReason;
use crate::units::Resources;

/// Workloads times nodes above which nobody is asked: planning is not to take longer for it.
const WORK_MAX: usize = 100_000;

/// Pods times nodes above which the fleet is not put on stage for it once more.
const STAGE_WORK_MAX: u64 = 20_000_000;

/// Most reasons of one workload.
const REASONS_MAX: usize = 8;

impl Stage<'_> {
    /// Returns for each group with placed pods what keeps them off the other nodes, and off how many;
    /// nothing for fleets that are too large to ask.
    pub(in super::super) fn elsewhere(&self, settled: &Settled) -> BTreeMap<usize, Vec<Rejection>> {
        let nodes = self.ground.standing.len() + settled.offers.len();
        let work =
            planned_pods(self.groups).saturating_mul(u64::try_from(nodes).unwrap_or(u64::MAX));
        if self.groups.len().saturating_mul(nodes) > WORK_MAX
            || work > STAGE_WORK_MAX
            || !is_rehearsed(self.groups)
        {
            return BTreeMap::new();
        }
        let rescue = Rescue::of(self, settled);
        let scene = self.scene(&settled.layout, &settled.offers);
        let of_group = |group: usize| {
            let held = settled.placements.get(&group)?;
            let mut counts: BTreeMap<(String, String), u32> = BTreeMap::new();
            let shape = &self.groups[group].shape;
            let all = scene.cast().zip(rescue.scheduler.nodes());
            for ((node, place, offer), at) in
                all.filter(|((_, place, _), _)| !held.contains_key(*place))
            {
                let reasons = rescue.scheduler.fits(scene.classes[group], at).err();
                let first = reasons.and_then(|reasons| reasons.into_iter().next());
                let room = self.room_of(place, offer);
                let why = match first {
                    None => ("as-good", "it would hold one as well".to_owned()),
                    Some(UnfitReason::Insufficient(resource)) if shape.requests.fits(&room) => {
                        ("full", format!("its {resource} is taken by other pods"))
                    }
                    Some(UnfitReason::TooManyPods) => {
                        ("full", "it runs as many pods as it may".to_owned())
                    }
                    Some(reason) => kept_off(shape, node, &reason),
                };
                *counts.entry((why.0.to_owned(), why.1)).or_insert(0) += 1;
            }
            let mut list: Vec<Rejection> = counts
                .into_iter()
                .map(|((reason, detail), count)| Rejection { reason, detail, count })
                .collect();
            list.sort_by_key(|rejection| (Reverse(rejection.count), rejection.clone()));
            list.truncate(REASONS_MAX);
            Some((group, list))
        };
        (0..self.groups.len()).filter_map(of_group).collect()
    }

    /// Returns what a node leaves to pods that are not those of DaemonSets.
    fn room_of(&self, place: &Place, offer: Option<usize>) -> Resources {
        match (place, offer) {
            (Place::Node(name), _) => self.ground.standing[self.ground.index_of(name)].room.clone(),
            (Place::Launch(_), Some(offer)) => self.offers[offer].room.clone(),
            (Place::Launch(_), None) => Resources::default(),
        }
    }
}
